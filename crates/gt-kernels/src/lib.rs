//! CUDA work for the steps of a plan: which kernels are launched, their text, and what is passed to them. Knows no driver:
//! `gt-worker`'s cuda backend compiles, binds and launches.
//!
//! Every step can be launched in two ways that give the same bits: by `plain` kernels, which ship compiled and take shapes,
//! strides and types as run-time data, and by `made` ones, whose text is written for the step.

pub mod attention;
pub mod launch;
mod lower;
mod made;
pub mod matmul;
pub mod matmul_pack;
mod plain;
mod sections;
mod table;
pub mod tree;
mod works;

pub use launch::{Arg, Fill, Function, Launch, Launches, Word};

use gt_compiler::{Plan, Work};

/// What stands in front of the text of every made kernel.
pub const PRELUDE: &str =
    concat!(include_str!("cuda/prelude.cu"), include_str!("cuda/rows.cu"), include_str!("cuda/joins.cu"));

/// The source of the plain kernels, complete.
pub const PLAIN: &str = concat!(
    include_str!("cuda/prelude.cu"),
    include_str!("cuda/rows.cu"),
    include_str!("cuda/joins.cu"),
    include_str!("cuda/switch.cu"),
    include_str!("cuda/kernels.cu"),
    include_str!("cuda/index.cu"),
    include_str!("cuda/lines.cu"),
    include_str!("matmul_plain.cu"),
    include_str!("attention_parts.cu"),
    include_str!("attention_plain.cu"),
);

/// The launches of a step by plain kernels.
pub fn plain(step: usize, plan: &Plan) -> Launches {
    match &plan.steps[step].work {
        Work::Kernel(kernel) => plain::kernel(kernel, plan),
        work @ (Work::Attention(_) | Work::AttentionGrad(_)) => {
            attention::plain(work, plan).unwrap_or_default()
        }
        _ => works::launches(step, plan),
    }
}

/// The launches of a step by kernels whose text is made for it; none where plain ones are as good.
pub fn made(step: usize, plan: &Plan) -> Option<Launches> {
    match &plan.steps[step].work {
        Work::Kernel(kernel) => made::kernel(kernel, plan),
        work => attention::made(work, plan),
    }
}

/// The launches of several independent steps as one or a few, where their made texts are equal but for addresses and sizes:
/// the updates of all parameters of an optimizer step.
pub fn together(steps: &[usize], plan: &Plan) -> Option<Launches> {
    made::together(steps, plan)
}
