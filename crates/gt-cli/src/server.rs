//! `gt server`.

use crate::see::find::Announced;
use crate::{stop_on_signals, token};
use gt_dispatcher::shell::{Server, ServerConfig};
use gt_ir::Result;
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
}

pub fn run(args: Args) -> Result<i32> {
    let stop = stop_on_signals()?;
    let config = ServerConfig {
        host: args.host,
        port: args.port,
        token: token::read(args.token_file.as_deref())?,
        unix: args.unix,
    };
    let server = Server::start(config)?;
    for addr in server.addrs() {
        println!("gt server listens on {addr}");
    }
    let announced = Announced::new(server.addrs());
    while !stop.load(Ordering::Relaxed) {
        std::thread::park_timeout(Duration::from_millis(100));
    }
    drop(announced);
    server.stop();
    Ok(0)
}
