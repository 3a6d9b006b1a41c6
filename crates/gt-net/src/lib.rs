//! What carries GT's messages and bulk bytes: in-process, unix socket, TCP and shared memory.
//!
//! Bytes, frames and meaning are three layers. `stream` and `frame` know bytes and frames, `link` makes a
//! numbered link of them that survives cuts, `handshake` opens it; `peer` and `server` are its two ends.
//! `bulk` is the data plane beside it, `relay` the one through the server. Only `msg` knows what a payload means.

pub mod addr;
pub mod bulk;
pub mod compiling;
mod connect;
pub mod copy;
mod drivers;
pub mod frame;
pub mod handshake;
pub mod inproc;
pub mod intern;
pub mod link;
mod listen;
pub mod msg;
pub mod observe;
mod outbox;
pub mod peer;
mod peer_io;
pub mod pieces;
pub mod port;
pub mod process;
pub mod relay;
pub mod server;
mod serving;
mod share;
pub mod shm;
pub mod spin;
mod stream;
