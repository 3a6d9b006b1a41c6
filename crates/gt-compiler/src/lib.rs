//! Program -> graph -> plan. Knows no device: a backend turns the plan's steps into work.
//!
//! `graph` shares and drops values and turns views into index maps, `fuse` groups elementwise work into kernels
//! and orders the steps, `steps` writes those that are no kernels, `place` gives every value its memory. What comes out is a [`Plan`].

mod fuse;
mod graph;
mod kernel;
pub mod map;
mod place;
pub mod plan;
mod steps;
mod text;

pub use map::{Map, Strides};
pub use plan::*;

use gt_ir::{Result, Structure, Ty};

/// What the compiler may do.
#[derive(Clone, Copy, Debug)]
pub struct CompileOptions {
    /// Group elementwise work. Off, every instruction is a step of its own; the bits are the same (C7).
    pub fuse: bool,
    /// Rows of at most this many elements are reduced in the kernel that feeds and follows the reduction.
    pub longest_row: usize,
}

impl Default for CompileOptions {
    fn default() -> CompileOptions {
        CompileOptions { fuse: true, longest_row: 16 << 10 }
    }
}

/// Makes a plan for a checked structure, whose value types are given.
pub fn compile(structure: &Structure, types: &[Ty], options: CompileOptions) -> Result<Plan> {
    let graph = graph::Graph::new(structure, types)?;
    let draft = fuse::schedule(&graph, structure, options);
    Ok(place::place(draft, structure))
}
