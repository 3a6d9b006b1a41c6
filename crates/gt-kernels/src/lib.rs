//! CUDA work for the steps of a plan: which kernels are launched, their text, and what is passed to them. Knows no driver:
//! `gt-worker`'s cuda backend compiles, binds and launches.
//!
//! Every step can be launched in two ways that give the same bits: by `plain` kernels, which ship compiled and take shapes,
//! strides and types as run-time data, and by `made` ones, whose text is written for the step.

pub mod attention;
pub mod gang;
pub mod launch;
mod lower;
mod made;
pub mod matmul;
pub mod matmul_pack;
mod plain;
mod sections;
mod shipped;
mod table;
pub mod tree;
mod works;

pub use launch::{Arg, Fill, Function, Launch, Launches, Word};
pub use shipped::{Shipped, shipped};

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

include!(concat!(env!("OUT_DIR"), "/images.rs"));

/// The plain kernels compiled for an architecture such as `sm_90`: a cubin for it or for an older one of its generation, else
/// PTX, which the driver compiles. None in a build without them (`tools/kernels.py`): `PLAIN` is then to be compiled.
pub fn plain_image(arch: &str) -> Option<&'static [u8]> {
    let number = |name: &str| name.strip_prefix("sm_")?.trim_end_matches(['a', 'f']).parse::<u32>().ok();
    let wanted = number(arch)?;
    // A cubin runs on later devices of the same generation.
    let fits = |made: u32| made <= wanted && made / 10 == wanted / 10;
    let cubins = IMAGES.iter().filter_map(|(name, image)| Some((number(name).filter(|&n| fits(n))?, *image)));
    let cubin = cubins.max_by_key(|(made, _)| *made).map(|(_, image)| image);
    cubin.or_else(|| IMAGES.iter().find(|(name, _)| *name == "compute_80").map(|(_, image)| *image))
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_for_this_source() {
        // A build without images has none to look at.
        if IMAGES.is_empty() {
            return;
        }
        for arch in ["sm_80", "sm_86", "sm_90", "sm_90a", "sm_100"] {
            assert!(plain_image(arch).is_some_and(|i| i.starts_with(b"\x7fELF")), "{arch}");
        }
        assert!(plain_image("sm_120").is_some_and(|i| i.starts_with(b"//")), "PTX for what comes later");
        assert_eq!(plain_image("gfx90a"), None);
    }
}
