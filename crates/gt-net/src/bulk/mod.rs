//! The data plane (C11): tensor bytes go straight to and from a worker, each transfer with a ticket.
//!
//! On one host the bytes lie in a sealed memfd whose descriptor is passed; elsewhere they are streamed.

mod client;
mod letters;
mod pieces;
mod server;
mod ticket;
mod wire;

use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use client::BulkClient;
pub use letters::LetterStream;
pub use pieces::{Pieces, TakesPieces};
pub use server::{BulkServer, BulkServerOptions};
pub use ticket::{Dir, Ticket, TicketError, TicketKey, now_ms};

use crate::shm::Shm;

/// Where a worker's bulk bytes are to be had.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Endpoint {
    /// Host and port, for other hosts.
    pub tcp: Option<(String, u16)>,
    /// The name of an abstract unix socket, for the same host.
    pub unix: Option<String>,
    /// The `host_id` of the worker.
    pub host_id: String,
}

/// Bytes in flight: of this process, or part of a shared segment.
#[derive(Clone)]
pub enum BulkBytes {
    /// Bytes of this process.
    Vec(Vec<u8>),
    /// Bytes that something else of this process keeps.
    Held(Arc<dyn AsRef<[u8]> + Send + Sync>),
    /// Part of a shared segment; keeping the `Arc` keeps the bytes, without a copy.
    Shm {
        /// The segment.
        shm: Arc<Shm>,
        /// Where the bytes start.
        offset: usize,
        /// How many there are.
        len: usize,
    },
}

impl BulkBytes {
    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        match self {
            BulkBytes::Vec(bytes) => bytes,
            BulkBytes::Held(bytes) => (**bytes).as_ref(),
            BulkBytes::Shm { shm, offset, len } => {
                offset.checked_add(*len).and_then(|end| shm.as_slice().get(*offset..end)).unwrap_or(&[])
            }
        }
    }
}

/// What a worker does with bulk bytes. Called on the connections' threads; the text of an error goes back.
pub trait BulkStore: Send + Sync {
    /// Takes the bytes of a put; there are as many as the ticket says. A shared segment may be kept as the
    /// tensor itself, but is never reused for another session: its sender may still see it.
    fn put(&self, ticket: &Ticket, bytes: BulkBytes) -> Result<(), String>;
    /// Gives the bytes of a get, as many as the ticket says. A whole segment (offset 0, full length) is
    /// passed to the client as it is: it must hold nothing else, and is not written before it is dropped.
    fn get(&self, ticket: &Ticket) -> Result<BulkBytes, String>;
    /// Begins a put whose bytes lie in a device's memory. Where it is refused, they come as others do.
    fn take_pieces(&self, _ticket: &Ticket) -> Result<Box<dyn TakesPieces + '_>, String> {
        Err("bulk: there is no device here".into())
    }
}

/// Why a transfer failed.
#[derive(Debug, Error)]
pub enum BulkError {
    /// The worker says why.
    #[error("bulk: the worker refuses: {0}")]
    Refused(String),
    /// The ticket is for something else.
    #[error("bulk: the ticket is for {expected}, got {got}")]
    Mismatch {
        /// What the ticket allows.
        expected: String,
        /// What was asked for.
        got: String,
    },
    /// No way leads there.
    #[error("bulk: no way to reach the worker from this host: {0}")]
    Unreachable(String),
    /// The connection failed.
    #[error("bulk: {0}")]
    Io(#[from] std::io::Error),
}

/// Tells hosts apart: processes with the same id share abstract unix sockets and memory.
pub fn host_id() -> &'static str {
    static ID: OnceLock<String> = OnceLock::new();
    ID.get_or_init(|| {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let network = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
        format!("{}/{}", boot.trim(), network.display())
    })
}
