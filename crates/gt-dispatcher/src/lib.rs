//! The dispatcher: gives each client a session, places its programs on workers, and moves what lies elsewhere.
//!
//! `machine` is all of it, without I/O (C10). `shard` divides programs over workers; `shell` drives it from a network, reads
//! what takes long on threads beside it (`reading`) and lets tensors pass where there is no direct road (`routes`); `local`
//! drives it inside one process.

pub mod local;
pub mod machine;
mod reading;
mod routes;
pub mod shard;
pub mod shell;

pub use local::{LocalClient, LocalHub, LocalWorker};
pub use machine::{Action, Carry, Config, Event, Machine, Vouched, Way};
pub use shell::{Server, ServerConfig};
