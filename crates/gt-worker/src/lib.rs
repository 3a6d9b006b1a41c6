//! A worker: runs programs on one device, and keeps the tensors of every session apart.
//!
//! `worker` takes commands, `executor` runs them, `plans` finds what repeats, `table` holds tensors, `road` moves
//! their bytes. A device is a `backend`; `backends` has them all. `remote` makes a worker process.

pub mod backend;
pub mod backends;
mod begun;
mod executor;
mod plans;
mod relay;
pub mod remote;
mod rescue;
mod road;
mod table;
mod worker;

pub use worker::{Say, Worker, WorkerConfig};
