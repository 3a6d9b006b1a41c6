//! The `gt` program, and the whole system inside one process. `python -m gt.server` and friends call the same code.

mod doctor;
pub mod host;
mod launch;
pub mod local;
pub mod progress;
pub mod replay;
pub mod see;
mod server;
pub mod token;
mod wait;
mod worker;

use clap::{Parser, Subcommand};
use gt_ir::Result;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

#[derive(Parser)]
#[command(name = "gt", version, about = "GT: many GPUs as one PyTorch-like device, shared by many people")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start the server (dispatcher) that clients and workers connect to.
    Server(server::Args),
    /// Start a worker: one per GPU.
    Worker(worker::Args),
    /// Start a server here and workers on other hosts over ssh, and end them together.
    Launch(launch::Args),
    /// Wait until enough workers are connected to a server.
    Wait(wait::Args),
    /// Run a saved program again, on any backend, and compare the numbers.
    Replay(replay::Args),
    /// Watch workers and clients on the whole screen.
    Top(see::top::Args),
    /// Write down what a running system does for a while.
    Trace(see::trace::Args),
    /// Draw the timeline of instruction logs.
    Visualize(see::visualize::Args),
    /// Say what the last step did and why: moves, collectives, plans, and where the time went.
    Explain(see::explain::Args),
    /// Check this host and a running system, and say what is wrong and what to do.
    Doctor(doctor::Args),
}

/// Runs the program with the given arguments (the first is the program's name) and gives its exit status.
pub fn main(args: Vec<String>) -> i32 {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return error.exit_code();
        }
    };
    let result = match cli.command {
        Command::Server(args) => server::run(args),
        Command::Worker(args) => worker::run(args),
        Command::Launch(args) => launch::run(args),
        Command::Wait(args) => wait::run(args),
        Command::Replay(args) => replay::run(args),
        Command::Top(args) => see::top::run(args),
        Command::Trace(args) => see::trace::run(args),
        Command::Visualize(args) => see::visualize::run(args),
        Command::Explain(args) => see::explain::run(args),
        Command::Doctor(args) => doctor::run(args),
    };
    match result {
        Ok(status) => status,
        Err(error) => {
            gt_ir::say!("gt: {error}");
            1
        }
    }
}

/// A flag that Ctrl-C and SIGTERM raise. A second Ctrl-C ends the process at once.
fn stop_on_signals() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        let error = |e| gt_ir::Error::Runtime(format!("cannot watch for signals: {e}"));
        signal_hook::flag::register_conditional_shutdown(signal, 130, stop.clone()).map_err(error)?;
        signal_hook::flag::register(signal, stop.clone()).map_err(error)?;
    }
    Ok(stop)
}
