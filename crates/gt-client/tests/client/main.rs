//! The client against a link that runs programs by the reference: functions, aliasing, autograd and recording.

#[path = "../common/mod.rs"]
mod common;

mod aliasing;
mod backward;
mod functions;
mod gradients;
mod indexing;
mod losses;
#[path = "../../examples/mlp.rs"]
#[allow(dead_code)]
mod mlp;
mod prefixes;
mod products;
mod programs;
mod signals;
