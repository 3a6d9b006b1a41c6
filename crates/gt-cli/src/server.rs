//! `gt server`.

use crate::see::dashboard;
use crate::see::find::Announced;
use crate::{stop_on_signals, token};
use gt_dispatcher::shell::{Server, ServerConfig};
use gt_ir::Result;
use gt_net::addr::Addr;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

#[derive(clap::Args)]
pub struct Args {
    /// Port to listen on; 0 picks a free one and prints it.
    #[arg(short, long, default_value_t = 12345)]
    port: u16,
    /// Address to listen on. Anything but loopback needs a token.
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// File with the token that clients and workers must show.
    #[arg(long)]
    token_file: Option<PathBuf>,
    /// Listen on this unix socket too.
    #[arg(long)]
    unix: Option<PathBuf>,
    /// Show the dashboard in the browser on this port, with /metrics and /healthz; 0 picks a free one.
    #[arg(long, value_name = "PORT")]
    http: Option<u16>,
}

pub fn run(args: Args) -> Result<i32> {
    gt_ir::env::check()?;
    let stop = stop_on_signals()?;
    let token = token::read(args.token_file.as_deref())?;
    let config =
        ServerConfig { host: args.host.clone(), port: args.port, token: token.clone(), unix: args.unix };
    let server = Server::start(config)?;
    for addr in server.addrs() {
        println!("gt server listens on {addr}");
    }
    if let Some(port) = args.http {
        let addr = server.addrs().first().cloned().unwrap_or(Addr::Tcp("localhost".into(), args.port));
        let port = dashboard::start(&args.host, port, &reachable(addr), token)?;
        println!("gt server shows itself at http://{}:{port}/", args.host);
    }
    let announced = Announced::new(server.addrs());
    while !stop.load(Ordering::Relaxed) {
        std::thread::park_timeout(Duration::from_millis(100));
    }
    drop(announced);
    server.stop();
    Ok(0)
}

/// Where this process itself reaches a server that listens on all addresses.
fn reachable(addr: Addr) -> Addr {
    match addr {
        Addr::Tcp(host, port) if host == "0.0.0.0" => Addr::Tcp("127.0.0.1".into(), port),
        Addr::Tcp(host, port) if host == "::" => Addr::Tcp("::1".into(), port),
        other => other,
    }
}
