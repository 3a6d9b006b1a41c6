//! What every transport looks like to its user: a port that messages are sent into.

use std::any::Any;
use std::fmt;

use thiserror::Error;

use crate::link::LinkError;

/// A message: bytes for any transport, or a value handed over as it is within one process.
pub enum Payload {
    /// An encoded message.
    Bytes(Vec<u8>),
    /// A typed message; only in-process ports take it.
    Local(Box<dyn Any + Send>),
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Payload::Bytes(bytes) => write!(f, "Bytes({})", bytes.len()),
            Payload::Local(_) => f.write_str("Local"),
        }
    }
}

/// Why a message was not accepted.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SendError {
    /// This side closed the port.
    #[error("send: the connection is closed")]
    Closed,
    /// The link is lost for good.
    #[error("send: the connection is lost: {0}")]
    Lost(String),
    /// The peer takes nothing, or the message fits no frame.
    #[error("send: {0}")]
    Link(#[from] LinkError),
    /// The process forked; connections stay with the parent.
    #[error("send: this connection belongs to the parent process: connect again after a fork")]
    Forked,
    /// A typed value was sent over a transport that carries bytes.
    #[error("send: this connection carries bytes, got an in-process value")]
    NotBytes,
}

/// One end of a connection, over any transport.
pub trait Port: Send + Sync {
    /// Sends a message; in order, and never waiting for the receiver to handle it.
    fn send(&self, payload: Payload) -> Result<(), SendError>;
    /// Ends the connection; later sends fail.
    fn close(&self);
}
