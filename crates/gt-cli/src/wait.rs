//! `gt wait`: until enough workers are connected. Launchers and scripts call it before they start a program.

use crate::{stop_on_signals, token};
use gt_client::{Session, Settings};
use gt_ir::{Error, Result, bail};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub struct Args {
    /// Host of the server (or GT_SERVER=host:port for both).
    #[arg(long)]
    host: Option<String>,
    /// Port of the server.
    #[arg(short, long)]
    port: Option<u16>,
    /// How many workers to wait for.
    #[arg(short, long, default_value_t = 1)]
    workers: u32,
    /// Seconds to wait at most.
    #[arg(long, default_value_t = 120.0)]
    timeout: f64,
    /// File with the server's token (or GT_TOKEN_FILE).
    #[arg(long)]
    token_file: Option<PathBuf>,
}

pub fn run(args: Args) -> Result<i32> {
    let stop = stop_on_signals()?;
    let server = std::env::var("GT_SERVER").ok().filter(|v| !v.is_empty());
    let addr = match (&args.host, args.port, server) {
        (None, None, Some(server)) => server,
        (host, port, _) => {
            format!("{}:{}", host.as_deref().unwrap_or("localhost"), port.unwrap_or(12345))
        }
    };
    let token = token::read(args.token_file.as_deref())?;
    let deadline = Instant::now() + Duration::from_secs_f64(args.timeout.clamp(0.0, 1e6));
    let names = for_workers(&addr, token, args.workers, deadline, &stop, &mut || Ok(()))?;
    println!("gt: {} worker(s) at {addr}: {}", names.len(), names.join(", "));
    Ok(0)
}

/// Waits until so many workers are connected to the server; gives their names. `look` is called in between and may
/// give up.
pub fn for_workers(
    addr: &str,
    token: Option<String>,
    wanted: u32,
    deadline: Instant,
    stop: &Arc<AtomicBool>,
    look: &mut dyn FnMut() -> Result<()>,
) -> Result<Vec<String>> {
    let mut session: Option<Arc<Session>> = None;
    let mut last = (Error::Connection(String::new()), 0);
    loop {
        if stop.load(Ordering::Relaxed) {
            bail!(Runtime, "interrupted while waiting for workers");
        }
        look()?;
        let found = match &session {
            Some(session) => session.stats().map(|stats| stats.workers),
            None => gt_client::remote::connect(addr, token.clone(), Settings::from_env()?).and_then(|new| {
                let stats = new.stats()?;
                session = Some(new);
                Ok(stats.workers)
            }),
        };
        match found {
            Ok(workers) if workers.len() >= wanted as usize => {
                return Ok(workers.into_iter().map(|w| w.name).collect());
            }
            Ok(workers) => last.1 = workers.len(),
            Err(error) => {
                session = None;
                last.0 = error;
            }
        }
        if Instant::now() >= deadline {
            match session {
                None => bail!(Connection, "waited in vain for the server at {addr}: {}", last.0),
                Some(_) => bail!(
                    Connection,
                    "{} of {wanted} workers are connected to {addr} and no more came in time: look at what the others \
                     print, and whether they can reach this address",
                    last.1
                ),
            }
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}
