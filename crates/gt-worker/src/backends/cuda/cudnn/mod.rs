//! Attention by cuDNN, where it is there and faster than kernels of our own.
//!
//! `api` and `desc` are the library's functions and descriptors, `graph` its operations and plans, `sdpa` attention written
//! in them; `choice` says which steps it runs, and `attend` makes those ready.

mod api;
mod attend;
mod choice;
mod desc;
pub mod graph;
mod handle;
pub mod sdpa;

pub use api::{api, spelled};
pub use attend::{Attend, Cudnn};
pub use choice::{Choice, Wish, in_order};
pub use handle::Handle;
