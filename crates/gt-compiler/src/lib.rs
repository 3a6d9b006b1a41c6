//! Program -> graph -> plan. Knows no device: a backend turns the plan's steps into work.
//!
//! `expand` writes out composites that the backend does not take whole, `graph` shares and drops values and turns views
//! into index maps, `moves` takes slices and joins through elementwise work, `epilogue` gives products what follows them, `fuse` groups elementwise work into kernels and orders the steps, `kernel` writes those, `steps` all
//! others, `turn` has results written in the order in which they are wanted, `place` gives every value its memory. What comes out is a [`Plan`].

mod beside;
mod epilogue;
mod expand;
mod fuse;
mod graph;
mod join;
mod keep;
mod kernel;
mod label;
pub mod map;
mod moves;
mod place;
pub mod plan;
mod reduce;
mod steps;
mod text;
mod turn;

pub use map::{Map, Strides};
pub use plan::*;

use gt_ir::{Op, Result, Structure, Ty};

/// What the compiler may do.
#[derive(Clone, Copy, Debug)]
pub struct CompileOptions {
    /// Group elementwise work. Off, every instruction is a step of its own; the bits are the same (C7).
    pub fuse: bool,
    /// No kernel does the work of two instructions; one instruction's own work is grouped as ever.
    pub apart: bool,
    /// Rows of at most this many elements are reduced in the kernel that feeds and follows the reduction.
    pub longest_row: usize,
    /// Which composites the backend takes whole, by their first operand; the others are expanded. Only softmax and
    /// attention have steps.
    pub takes: fn(&Op, &Ty) -> bool,
    /// Values of at most this many cheap instructions are computed again by their readers rather than kept.
    pub again: usize,
    /// Functions such as exp count as cheap.
    pub free_math: bool,
    /// A scatter of one element per row becomes a comparison that fuses with the work around it.
    pub one_hot: bool,
    /// What is cut and joined in stretches of at least this many elements is computed piece by piece.
    pub least_run: usize,
    /// Products take in a sum and a relu that follow them where that changes no bit.
    pub epilogues: bool,
}

impl Default for CompileOptions {
    fn default() -> CompileOptions {
        CompileOptions {
            fuse: true,
            apart: false,
            longest_row: 16 << 10,
            takes: |_, _| false,
            again: 3,
            free_math: false,
            one_hot: false,
            least_run: 8,
            epilogues: false,
        }
    }
}

/// Makes a plan for a checked structure, whose value types are given.
pub fn compile(structure: &Structure, types: &[Ty], options: CompileOptions) -> Result<Plan> {
    let Some(expanded) = expand::expand(structure, types, options.takes)? else {
        return compile_all(structure, types, None, options);
    };
    let mut plan = compile_all(&expanded.structure, &expanded.types, Some(&expanded.origins), options)?;
    for step in &mut plan.steps {
        step.instr = expanded.origins[step.instr as usize];
        step.fused.iter_mut().for_each(|i| *i = expanded.origins[*i as usize]);
        step.fused.dedup();
        step.fused.retain(|i| *i != step.instr);
    }
    Ok(plan)
}

/// `origins` are the instructions that those of an expanded structure belong to.
fn compile_all(
    structure: &Structure,
    types: &[Ty],
    origins: Option<&[u32]>,
    options: CompileOptions,
) -> Result<Plan> {
    let mut graph = graph::Graph::new(structure, types, options)?;
    if options.epilogues && options.fuse && !options.apart {
        epilogue::epilogues(&mut graph, structure);
    }
    let mut draft = fuse::schedule(&graph, structure, origins, options);
    if options.fuse && !options.apart {
        turn::turn(&mut draft);
        join::join(&mut draft);
        beside::beside(&mut draft);
    }
    Ok(place::place(draft, structure))
}
