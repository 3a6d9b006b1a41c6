//! `gt worker`.

use crate::{stop_on_signals, token};
use gt_ir::{Error, Result};
use gt_net::addr::Addr;
use gt_net::compiling::Compiling;
use gt_worker::remote::{self, DataPlane};
use gt_worker::{WorkerConfig, backends};
use std::path::PathBuf;

#[derive(clap::Args)]
pub struct Args {
    /// Host of the server (or GT_SERVER=host:port for both).
    #[arg(long)]
    host: Option<String>,
    /// Port of the server.
    #[arg(short, long)]
    port: Option<u16>,
    /// Unix socket of the server, instead of host and port.
    #[arg(long)]
    unix: Option<PathBuf>,
    /// auto, cuda, cpu or reference; `pytorch` and `numpy` are taken as auto and reference (or GT_BACKEND).
    #[arg(long)]
    backend: Option<String>,
    /// The GPU to use, by its number among those CUDA_VISIBLE_DEVICES leaves; the first unless given.
    #[arg(long)]
    device: Option<u32>,
    /// CPU threads to use; all cores unless given.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    threads: Option<u32>,
    /// Cores to stay on, a thread for each, as in `0-3,8`: workers that share a host keep out of each other's way.
    #[arg(long, conflicts_with = "threads")]
    cores: Option<String>,
    /// A name for logs and monitors.
    #[arg(long)]
    name: Option<String>,
    /// File with the server's token (or GT_TOKEN_FILE).
    #[arg(long)]
    token_file: Option<PathBuf>,
    /// Host name under which clients and other workers reach this one.
    #[arg(long)]
    advertise: Option<String>,
    /// Port for tensor bytes; a free one unless given.
    #[arg(long, default_value_t = 0)]
    data_port: u16,
}

impl Args {
    /// Where the server is: the flags, else `GT_SERVER`, else this host.
    fn addr(&self) -> Result<Addr> {
        if let Some(path) = &self.unix {
            return Ok(Addr::Unix(path.clone()));
        }
        let server = std::env::var("GT_SERVER").ok().filter(|v| !v.is_empty());
        if let (None, None, Some(server)) = (&self.host, self.port, &server) {
            return server.parse().map_err(|e| Error::Value(format!("GT_SERVER: {e}")));
        }
        let host = self.host.clone().unwrap_or_else(|| "localhost".into());
        Ok(Addr::Tcp(host, self.port.unwrap_or(12345)))
    }
}

/// The cores that a text like `0-3,8` names.
fn cores(text: &str) -> Result<Vec<usize>> {
    let wrong = || Error::Value(format!("--cores: expected numbers and ranges such as 0-3,8, got {text:?}"));
    let mut cores = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.trim().parse::<usize>().map_err(|_| wrong());
        let (first, last) = (number(first)?, number(last)?);
        if last < first || last - first > 4096 {
            return Err(wrong());
        }
        cores.extend(first..=last);
    }
    Ok(cores)
}

pub fn run(args: Args) -> Result<i32> {
    gt_ir::env::check()?;
    let stop = stop_on_signals()?;
    let addr = args.addr()?;
    let token = token::read(args.token_file.as_deref())?;
    let backend = args.backend.or_else(|| std::env::var("GT_BACKEND").ok()).unwrap_or_else(|| "auto".into());
    let (backend, why) = match &args.cores {
        Some(text) => backends::choose_on(&backend, &cores(text)?, args.device)?,
        None => backends::choose(&backend, args.threads, args.device)?,
    };
    let name = args.name.unwrap_or_else(|| format!("worker-{}", std::process::id()));
    println!("gt worker {name}: {} on {}, {} threads", backend.name(), backend.device(), backend.threads());
    if let Some(why) = why {
        println!("gt worker {name}: no GPU is used: {why}");
    }
    let compiling = Compiling::from_env()?;
    let config = WorkerConfig { name: name.clone(), threads: backend.threads(), backend, compiling };
    let plane = DataPlane { advertise: args.advertise, port: args.data_port };
    println!("gt worker {name}: looking for the server at {addr}");
    let device = config.backend.clone();
    let done = remote::run(&addr, token, config, &plane, &stop, &|what| println!("gt worker {name}: {what}"));
    if let (Err(error), Some(_)) = (&done, device.broken()) {
        gt_ir::say!("gt worker {name}: {error}: starting over");
        return Err(start_over());
    }
    done.map(|()| 0)
}

/// Puts this very command in the place of this process: a device that broke is whole for another one.
fn start_over() -> Error {
    use std::os::unix::process::CommandExt;
    std::thread::sleep(std::time::Duration::from_secs(1));
    let mut command = std::env::args_os();
    let program = command.next().unwrap_or_else(|| "gt".into());
    let error = std::process::Command::new(program).args(command).exec();
    Error::Runtime(format!("worker: cannot start over: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_numbers_and_ranges() {
        assert_eq!(cores("0-3,8").unwrap(), [0, 1, 2, 3, 8]);
        assert_eq!(cores("5").unwrap(), [5]);
        for wrong in ["", "a", "3-1", "1-", "0-999999"] {
            assert!(cores(wrong).unwrap_err().to_string().contains("--cores"), "{wrong}");
        }
    }
}
