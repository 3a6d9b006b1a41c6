//! Gangs in the simulated world: ranks meet in collectives, one at a time, and all succeed or fail.

use super::worker::{BOOM, Numbers, to_bytes, to_numbers};
use gt_ir::layout::place;
use gt_ir::{Error, HostTensor, Slot, collective, reference};
use gt_net::msg::{Failure, Run};
use std::collections::{BTreeMap, BTreeSet};

type Held = Vec<HostTensor>;

/// All gangs of a world, by number.
#[derive(Default)]
pub struct Gangs(BTreeMap<u64, State>);

#[derive(Default)]
struct State {
    /// What ranks have brought to each collective, and what came of it where all of a group have.
    brought: Vec<BTreeMap<usize, Held>>,
    results: Vec<BTreeMap<usize, Held>>,
    failed: Option<Failure>,
    /// Ranks that have come to the end.
    agreed: BTreeSet<usize>,
}

/// Where a rank stands.
pub enum Stand {
    /// For others, who may go on if it has `moved`: it has brought them something, or come to the end.
    Waits {
        moved: bool,
    },
    Done(Result<Vec<Numbers>, Failure>),
}

/// The ranks that meet along an axis, in order, of which this is one.
fn group(shape: &[usize], axis: usize, rank: usize) -> Vec<usize> {
    let mine = place(shape, rank);
    let meets = |other: &usize| {
        let mut other = place(shape, *other);
        other[axis] = mine[axis];
        other == mine
    };
    (0..shape.iter().product()).filter(meets).collect()
}

impl Gangs {
    /// A rank has failed, and so all do that are not done.
    pub fn fail(&mut self, number: u64, failure: Failure) {
        self.0.entry(number).or_default().failed.get_or_insert(failure);
    }

    /// Lets a rank go on as far as it can.
    pub fn go(&mut self, number: u64, rank: usize, shape: &[usize], run: &Run, inputs: &[Numbers]) -> Stand {
        let n = shape.iter().product();
        let state = self.0.entry(number).or_default();
        let (program, seq) = (&run.program, run.seq);
        let boom = program.slots.contains(&Slot::Num(gt_ir::Scalar::Int(BOOM)));
        if boom && rank == number as usize % n {
            let error = Error::Index(format!("boom {seq}"));
            state.failed.get_or_insert(Failure { root: seq, instr: Some(0), error });
        }
        if state.agreed.len() < n
            && let Some(failure) = &state.failed
        {
            return Stand::Done(Err(failure.clone()));
        }
        let held: Held = inputs
            .iter()
            .zip(&program.structure.inputs)
            .map(|(x, input)| HostTensor { ty: input.ty.clone(), data: to_bytes(x).to_vec() })
            .collect();
        let (mut at, mut waits, mut moved) = (0, false, false);
        let done = reference::run_part(&program.structure, &held, &program.slots, &mut |c, xs| {
            let k = at;
            at += 1;
            assert_eq!(c.number as usize, k, "collectives come in order");
            if state.brought.len() == k {
                state.brought.push(BTreeMap::new());
                state.results.push(BTreeMap::new());
            }
            let brought = xs.iter().map(|x| (*x).clone()).collect();
            moved |= state.brought[k].insert(rank, brought).is_none();
            let group = group(shape, c.axis as usize, rank);
            let parts: Vec<Held> = group.iter().filter_map(|r| state.brought[k].get(r).cloned()).collect();
            if parts.len() == group.len() && !state.results[k].contains_key(&rank) {
                let results = collective::eval_parts(&c.what, &parts)?;
                state.results[k].extend(group.into_iter().zip(results));
            }
            match state.results[k].get(&rank) {
                Some(result) => Ok(result.clone()),
                None => {
                    waits = true;
                    Err(Error::Runtime("waits".into()))
                }
            }
        });
        if waits {
            return Stand::Waits { moved };
        }
        let outs = done.unwrap_or_else(|(i, e)| panic!("instruction {i} of {seq}: {e}"));
        moved |= state.agreed.insert(rank);
        if state.agreed.len() < n {
            return Stand::Waits { moved };
        }
        Stand::Done(Ok(outs.iter().map(|x| to_numbers(&x.data)).collect()))
    }
}
