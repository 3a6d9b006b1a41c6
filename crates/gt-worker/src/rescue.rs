//! After a failure: results that do not depend on the failed instruction still get their values.
//!
//! The program fails as a whole for its cells (C5), but a tensor that was merely recorded beside a mistake is not
//! lost with it.

use crate::backend::{Backend, Buffer, Effort};
use gt_ir::{Arg, Input, Instr, Program, Structure, Ty};
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
        let Some((structure, kept, outs)) = without(&program.structure, &starts, &mut lost, failed as usize)
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

/// The structure without an instruction and all that depends on it; which instructions are left, and which live-outs.
fn without(
    s: &Structure,
    starts: &[u32],
    lost: &mut [bool],
    failed: usize,
) -> Option<(Structure, Vec<u32>, Vec<usize>)> {
    let mut next = s.inputs.len() as u32;
    *lost.get_mut(*starts.get(failed)? as usize)? = true;
    let mut number: Vec<u32> = (0..next).collect();
    let mut kept = Vec::new();
    let mut instrs = Vec::new();
    for (i, instr) in s.instrs.iter().enumerate() {
        let reads_lost = |arg: &Arg| matches!(arg, Arg::Value(v) if lost[*v as usize]);
        let results = starts[i] as usize..starts[i + 1] as usize;
        if lost[starts[i] as usize] || instr.args.iter().any(reads_lost) {
            lost[results.clone()].fill(true);
            number.extend(results.map(|_| u32::MAX));
            continue;
        }
        let args = instr.args.iter().map(|arg| match *arg {
            Arg::Value(v) => Arg::Value(number[v as usize]),
            other => other,
        });
        let args = args.collect();
        for _ in results {
            number.push(next);
            next += 1;
        }
        kept.push(i as u32);
        instrs.push(Instr { op: instr.op.clone(), args });
    }
    let outs: Vec<usize> = (0..s.outs.len()).filter(|&k| !lost[s.outs[k] as usize]).collect();
    if outs.is_empty() {
        return None;
    }
    let inputs = s.inputs.iter().map(|i| Input { ty: i.ty.clone(), dies: false }).collect();
    let live = outs.iter().map(|&k| number[s.outs[k] as usize]).collect();
    Some((Structure { inputs, instrs, outs: live, slots: s.slots, ..Default::default() }, kept, outs))
}
