//! Program -> graph -> plan. Knows no device: a backend turns the plan's steps into work.
//!
//! `expand` writes out composites that the backend does not take whole, `graph` shares and drops values and turns views into index maps, `fuse` groups elementwise work into kernels
//! and orders the steps, `steps` writes those that are no kernels, `place` gives every value its memory. What comes out is a [`Plan`].

mod expand;
mod fuse;
mod graph;
pub mod map;
mod place;
pub mod plan;
mod steps;
mod text;

pub use map::{Map, Strides};
pub use plan::*;

use gt_ir::{Op, Result, Structure, Ty};

/// What the compiler may do.
#[derive(Clone, Copy, Debug)]
pub struct CompileOptions {
    /// Group elementwise work. Off, every instruction is a step of its own; the bits are the same (C7).
    pub fuse: bool,
    /// Which composites the backend takes whole; the others are expanded. Only softmax and attention have steps.
    pub takes: fn(&Op) -> bool,
}

impl Default for CompileOptions {
    fn default() -> CompileOptions {
        CompileOptions { fuse: true, takes: |op| matches!(op, Op::Softmax { .. } | Op::LogSoftmax { .. }) }
    }
}

/// Makes a plan for a checked structure, whose value types are given.
pub fn compile(structure: &Structure, types: &[Ty], options: CompileOptions) -> Result<Plan> {
    let Some(expanded) = expand::expand(structure, types, options.takes)? else {
        return compile_all(structure, types, options);
    };
    let mut plan = compile_all(&expanded.structure, &expanded.types, options)?;
    for step in &mut plan.steps {
        step.instr = expanded.origins[step.instr as usize];
    }
    Ok(plan)
}

fn compile_all(structure: &Structure, types: &[Ty], options: CompileOptions) -> Result<Plan> {
    let graph = graph::Graph::new(structure, types)?;
    let draft = fuse::schedule(&graph, structure, options);
    Ok(place::place(draft, structure))
}
