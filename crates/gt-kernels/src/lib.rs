//! CUDA work for the steps of a plan: which kernels are launched, their text, and what is passed to them. Knows no driver:
//! `gt-worker`'s cuda backend compiles, binds and launches.

pub mod attention;
pub mod launch;
pub mod matmul;
pub mod matmul_pack;

pub use launch::{Arg, Fill, Function, Launch, Launches, Word};
