//! The dispatcher: gives each client a session, places its programs on workers, and moves what lies elsewhere.
//!
//! `machine` is all of it, without I/O (C10). `shell` drives it from a network, `local` inside one process.

pub mod local;
pub mod machine;
pub mod shell;

pub use local::{LocalClient, LocalHub, LocalWorker};
pub use machine::{Action, Config, Event, Machine};
pub use shell::{Server, ServerConfig};
