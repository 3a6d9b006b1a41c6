//! After a failure: results that do not depend on the failed instruction still get their values.
//!
//! The program fails as a whole for its cells (C5), but a tensor that was merely recorded beside a mistake is not
//! lost with it.

use crate::backend::{Backend, Buffer, Effort};
use gt_ir::program::Without;
use gt_ir::{Program, Ty};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// How many failing instructions of one program are worked around.
const TRIES: usize = 8;

/// Runs what does not depend on the instruction that failed. Gives (position among the live-outs, type, buffer).
pub fn rescue(
    backend: &dyn Backend,
    program: &Program,
    inputs: &[Buffer],
    failed: Option<u32>,
) -> Vec<(usize, Ty, Buffer)> {
    let Some(mut failed) = failed else { return Vec::new() };
    let starts = program.structure.starts();
    let mut lost = vec![false; starts[starts.len() - 1] as usize];
    for _ in 0..TRIES {
        let Some(Without { structure, kept, outs }) =
            program.structure.without(&starts, &mut lost, failed as usize)
        else {
            return Vec::new();
        };
        let run = || {
            let types = structure.check().ok()?;
            let structure = Arc::new(structure);
            let plan = backend.compile(&structure, &types, Effort::Quick).ok()?;
            let mut buffers = inputs.to_vec();
            Some((plan.run(&mut buffers, &program.slots), structure, types))
        };
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Some((Ok(buffers), structure, types))) => {
                let typed = structure.outs.iter().map(|&v| types[v as usize].clone());
                return outs.into_iter().zip(typed).zip(buffers).map(|((at, ty), b)| (at, ty, b)).collect();
            }
            Ok(Some((Err(error), ..))) => match error.instr.and_then(|i| kept.get(i as usize)) {
                Some(&next) => failed = next,
                None => return Vec::new(),
            },
            Ok(None) | Err(_) => return Vec::new(),
        }
    }
    Vec::new()
}
