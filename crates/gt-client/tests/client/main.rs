//! The client against a link that runs programs by the reference: functions, aliasing, autograd and recording.

#[path = "../common/mod.rs"]
mod common;

mod aliasing;
mod backward;
mod functions;
mod gradients;
mod indexing;
mod losses;
mod products;
mod programs;
