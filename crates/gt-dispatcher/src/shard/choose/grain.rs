//! Dimensions that are split in grains: where a reshape joins a batch and its rows, the rows of one sample stay together,
//! so that a batch that does not divide evenly is split all the same, with nothing moved.

use crate::shard::Ask;
use gt_ir::layout::{Grains, Layout, Layouts, by_blocks};
use gt_ir::{Arg, Op, Ty, View};
use std::collections::BTreeSet;

/// How often the program is gone through: a size may get its grain from another that is found later.
const PASSES: usize = 3;

/// The grains of a program's dimensions, by their sizes. Sizes of live-outs, and of live-ins that lie in pieces, have
/// none: how those lie says nothing of grains.
pub(super) fn grains(ask: &Ask) -> Grains {
    let joined = joined(ask);
    let mut grains = Grains::default();
    if joined.is_empty() {
        return grains;
    }
    let taken = taken(ask);
    for _ in 0..PASSES {
        for (batch, all) in joined.iter().filter(|(_, all)| !taken.contains(all)) {
            grains.set(*all, all / batch * grains.of(*batch));
        }
    }
    grains
}

/// Sizes of batches that some axis does not divide evenly, and those of what they become together with their rows.
fn joined(ask: &Ask) -> Vec<(usize, usize)> {
    let mut joined = Vec::new();
    for instr in &ask.structure.instrs {
        let (Op::View(View::Reshape(to)), [Arg::Value(v)]) = (&instr.op, &instr.args[..]) else { continue };
        let x = &ask.types[*v as usize].shape;
        let leads = |&(d, _): &(usize, usize)| x[..d].iter().product::<usize>() == 1;
        for (d, e) in by_blocks(to, x).into_iter().filter(leads) {
            let pair = (x[d].min(to[e]), x[d].max(to[e]));
            let uneven = ask.shape.iter().any(|parts| !pair.0.is_multiple_of(*parts));
            if uneven && pair.1.is_multiple_of(pair.0) && !joined.contains(&pair) {
                joined.push(pair);
            }
        }
    }
    joined
}

/// The sizes that must be split as everywhere.
fn taken(ask: &Ask) -> BTreeSet<usize> {
    let outs = ask.structure.outs.iter().flat_map(|v| ask.types[*v as usize].shape.iter().copied());
    let split = |(ty, lies): (&Ty, &Layouts)| -> Vec<usize> {
        let size = |layout: &Layout| if let Layout::Split(d) = layout { Some(ty.shape[*d]) } else { None };
        lies.iter().filter_map(size).collect()
    };
    outs.chain(ask.types.iter().zip(&ask.inputs).flat_map(split)).collect()
}
