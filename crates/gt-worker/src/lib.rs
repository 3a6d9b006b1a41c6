//! A worker: runs programs on one device, and keeps the tensors of every session apart.
//!
//! `worker` takes commands, `executor` runs them, `ahead` finds those that need not wait for their turn, `plans` finds what
//! repeats, `family` what repeats with other sizes, `better` makes better plans on the side, `early` gives values whose
//! programs still run, `parts` runs a program piece by piece, `sequences` counts what comes often, `table` holds tensors,
//! `road` moves their bytes, `neighbours` hands them to another worker of the process, `timing` and `watched` are what can
//! be seen of all that. A device is a `backend`; `backends` has them all. `remote` makes a worker process, whose threads go `aside`
//! for each other.

mod ahead;
mod aside;
pub mod backend;
pub mod backends;
mod begun;
mod better;
mod doubts;
mod early;
mod executor;
mod family;
mod finish;
pub mod gang;
mod neighbours;
mod parts;
mod plans;
mod relay;
pub mod remote;
mod rescue;
mod road;
mod sequences;
mod speed;
mod table;
mod timing;
mod watched;
mod worker;

pub use neighbours::Neighbours;
pub use worker::{Say, Worker, WorkerConfig};
