//! After a failure: results that do not depend on the failed instruction still get their values.
//!
//! The program fails as a whole for its cells (C5), but a tensor that was merely recorded beside a mistake is not
//! lost with it.

use crate::backend::{Backend, Buffer, Effort, PlanError};
use gt_ir::program::Without;
use gt_ir::{Error, Program, Structure, Ty};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// How many failing instructions of one program are worked around.
const TRIES: usize = 8;

/// Live-outs of a failed program that do not share its fate, by their position.
#[derive(Default)]
pub struct Rescued {
    pub spared: Vec<(usize, Ty, Buffer)>,
    /// Lost to instructions that fail, too, with what is wrong with those.
    pub others: Vec<(usize, PlanError)>,
}

/// The instruction that a failure is told of. One for want of memory names none: it is that of the largest result.
pub fn blame(structure: &Structure, failed: PlanError) -> PlanError {
    let (None, Error::Memory(_)) = (failed.instr, &failed.error) else { return failed };
    let (Ok(types), starts) = (structure.check(), structure.starts()) else { return failed };
    let made = |i: &usize| types[starts[*i] as usize..starts[*i + 1] as usize].iter();
    let largest = (0..structure.instrs.len()).max_by_key(|i| made(i).map(|ty| ty.bytes()).max());
    let Some(i) = largest else { return failed };
    let names: Vec<String> = made(&i).map(|ty| ty.to_string()).collect();
    let what = format!("{} of {}", structure.instrs[i].op.text(), names.join(", "));
    PlanError { instr: Some(i as u32), error: failed.error.map_message(|m| format!("{what}: {m}")) }
}

/// Runs what does not depend on the instruction that failed.
pub fn rescue(backend: &dyn Backend, program: &Program, inputs: &[Buffer], failed: Option<u32>) -> Rescued {
    let mut rescued = Rescued::default();
    let Some(mut failed) = failed else { return rescued };
    let (starts, outs) = (program.structure.starts(), &program.structure.outs);
    let mut lost = vec![false; starts[starts.len() - 1] as usize];
    // What else went wrong.
    let mut other: Option<PlanError> = None;
    for _ in 0..TRIES {
        let before = lost.clone();
        let left = program.structure.without(&starts, &mut lost, failed as usize);
        if let Some(other) = other.take() {
            let now = |at: &usize| lost[outs[*at] as usize] && !before[outs[*at] as usize];
            let lost = (0..outs.len()).filter(now).map(|at| (at, other.clone()));
            rescued.others.extend(lost);
        }
        let Some(Without { structure, kept, outs }) = left else { return rescued };
        let structure = Arc::new(structure);
        let run = || {
            let types = structure.check().ok()?;
            let plan = backend.compile(&structure, &types, Effort::Quick).ok()?;
            let mut buffers = inputs.to_vec();
            Some((plan.run(&mut buffers, &program.slots), types))
        };
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Some((Ok(buffers), types))) => {
                let typed = structure.outs.iter().map(|&v| types[v as usize].clone());
                rescued.spared =
                    outs.into_iter().zip(typed).zip(buffers).map(|((at, ty), b)| (at, ty, b)).collect();
                return rescued;
            }
            Ok(Some((Err(error), ..))) => {
                let error = blame(&structure, error);
                let Some(&next) = error.instr.and_then(|i| kept.get(i as usize)) else { return rescued };
                failed = next;
                other = Some(PlanError { instr: Some(next), ..error });
            }
            Ok(None) | Err(_) => return rescued,
        }
    }
    rescued
}
