//! Attention by cuDNN, where it is there and faster than kernels of our own.

mod api;
mod desc;
pub mod graph;
mod handle;
pub mod sdpa;

pub use api::{api, spelled};
pub use handle::Handle;
