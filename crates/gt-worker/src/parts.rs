//! Programs that run in parts, each with a plan of its own: op by op (`GT_AUTO_COMPILE=0`), or so that what changed
//! since last time lies apart from what did not (`family`).
//!
//! The program stays atomic (C5): a live-in is given up only where nothing that comes later can fail.

use crate::backend::{Buffer, Plan, PlanError, StepClock};
use gt_ir::{Arg, Binary, Error, Input, Instr, Op, Slot, Structure, Ty};
use gt_net::observe::StepInfo;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Some instructions of a program that run together.
pub struct Part {
    /// Their numbers in the program, in order. Views that lie in other parts are looked through again here.
    instrs: Vec<u32>,
    /// The values it reads, and whether nobody reads them afterwards.
    inputs: Vec<(u32, bool)>,
    /// The values others read.
    outs: Vec<u32>,
    /// The program's slots it reads.
    slots: Vec<u32>,
}

/// A program ready to run in parts.
pub struct InParts {
    pub parts: Vec<(Arc<Part>, Arc<dyn Plan>)>,
    /// The type of each live-out.
    pub outs: Arc<[Ty]>,
    pub ops: Arc<[(&'static str, u64)]>,
    /// Bytes it needs at most beyond its inputs.
    pub reserve: usize,
    /// Values of the program.
    pub values: usize,
}

/// True if an instruction can fail when it runs.
fn may_fail(op: &Op) -> bool {
    match op {
        Op::Gather { .. } | Op::Take { .. } | Op::Scatter { .. } | Op::TakePut { .. } | Op::CrossEntropy => {
            true
        }
        Op::Binary(op) => matches!(op, Binary::FloorDiv | Binary::Rem),
        _ => false,
    }
}

/// Divides a program; `part_of` gives every instruction the number of its part, never before those it depends on.
pub fn divide(s: &Structure, starts: &[u32], part_of: &[u32]) -> Vec<Part> {
    const NONE: u32 = u32::MAX;
    let count = part_of.iter().max().map_or(0, |m| *m as usize + 1);
    let inputs = s.inputs.len();
    let mut producer = vec![NONE; starts[s.instrs.len()] as usize];
    for i in 0..s.instrs.len() {
        producer[starts[i] as usize..starts[i + 1] as usize].fill(i as u32);
    }
    let mut parts: Vec<Part> = (0..count)
        .map(|_| Part { instrs: Vec::new(), inputs: Vec::new(), outs: Vec::new(), slots: Vec::new() })
        .collect();
    // The part that last read a value from outside, and the one that had an instruction last.
    let mut read = vec![NONE; producer.len()];
    let mut there = vec![NONE; s.instrs.len()];
    let mut members: Vec<Vec<u32>> = vec![Vec::new(); count];
    for (i, &part) in part_of.iter().enumerate() {
        members[part as usize].push(i as u32);
    }
    let mut todo: Vec<(u32, usize)> = Vec::new();
    for (k, members) in members.into_iter().enumerate() {
        let part = &mut parts[k];
        for i in members {
            todo.push((i, 0));
            // Operands come first; views of other parts are taken in on the way.
            while let Some((i, at)) = todo.pop() {
                if there[i as usize] == k as u32 {
                    continue;
                }
                let instr = &s.instrs[i as usize];
                let Some(arg) = instr.args.get(at) else {
                    there[i as usize] = k as u32;
                    part.instrs.push(i);
                    continue;
                };
                todo.push((i, at + 1));
                match *arg {
                    Arg::Value(v) => {
                        let p = producer[v as usize];
                        let here = p != NONE && part_of[p as usize] == k as u32;
                        if !here && p != NONE && s.instrs[p as usize].op.is_view() {
                            todo.push((p, 0));
                        } else if !here && read[v as usize] != k as u32 {
                            read[v as usize] = k as u32;
                            part.inputs.push((v, false));
                        }
                    }
                    Arg::Slot(slot) if !part.slots.contains(&slot) => part.slots.push(slot),
                    Arg::Slot(_) | Arg::Const(_) => {}
                }
            }
        }
    }
    let mut last_fallible = 0;
    for (k, part) in parts.iter().enumerate() {
        if part.instrs.iter().any(|i| may_fail(&s.instrs[*i as usize].op)) {
            last_fallible = k;
        }
    }
    // From here on `read` is the last part that reads a value; live-outs are read in the end.
    for &out in &s.outs {
        read[out as usize] = count as u32;
    }
    for (k, part) in parts.iter_mut().enumerate() {
        for (v, dies) in &mut part.inputs {
            let given = (*v as usize) >= inputs || (s.inputs[*v as usize].dies && k >= last_fallible);
            *dies = read[*v as usize] == k as u32 && given;
        }
        for &i in part.instrs.iter().filter(|i| part_of[**i as usize] == k as u32) {
            part.outs.extend(
                (starts[i as usize]..starts[i as usize + 1])
                    .filter(|v| read[*v as usize] != NONE && read[*v as usize] > k as u32),
            );
        }
    }
    // What nobody reads is not computed.
    parts.retain(|part| !part.outs.is_empty());
    parts
}

impl Part {
    /// The part of `s` as a program of its own, given the types of the program's values.
    pub fn structure<'a>(&self, s: &Structure, starts: &[u32], ty: impl Fn(u32) -> &'a Ty) -> Structure {
        let mut number: std::collections::HashMap<u32, u32, foldhash::fast::FixedState> =
            self.inputs.iter().zip(0..).map(|((v, _), n)| (*v, n)).collect();
        let mut next = self.inputs.len() as u32;
        let mut instrs = Vec::with_capacity(self.instrs.len());
        for &i in &self.instrs {
            let instr = &s.instrs[i as usize];
            let args = instr.args.iter().map(|arg| match *arg {
                Arg::Value(v) => Arg::Value(number[&v]),
                Arg::Slot(k) => Arg::Slot(self.slots.iter().position(|slot| *slot == k).unwrap_or(0) as u32),
                number => number,
            });
            instrs.push(Instr { op: instr.op.clone(), args: args.collect() });
            for v in starts[i as usize]..starts[i as usize + 1] {
                number.insert(v, next);
                next += 1;
            }
        }
        Structure {
            inputs: self.inputs.iter().map(|(v, dies)| Input { ty: ty(*v).clone(), dies: *dies }).collect(),
            instrs,
            outs: self.outs.iter().map(|v| number[v]).collect(),
            slots: self.slots.len() as u32,
            ..Default::default()
        }
    }

    /// The values others read.
    pub fn outs(&self) -> &[u32] {
        &self.outs
    }

    /// The instructions, those of other parts that are looked through again among them.
    pub fn instrs(&self) -> &[u32] {
        &self.instrs
    }

    /// The values from `first` on that end with this part.
    pub fn ends(&self, first: usize) -> impl Iterator<Item = u32> {
        self.inputs.iter().filter(move |(v, dies)| *dies && *v as usize >= first).map(|(v, _)| *v)
    }
}

impl InParts {
    /// The parts as steps, for whoever asks where time went.
    pub fn steps(&self, s: &Structure) -> Vec<StepInfo> {
        let info = |(part, _): &(Arc<Part>, Arc<dyn Plan>)| {
            let op = |i: &u32| s.instrs.get(*i as usize).map(|instr| &instr.op);
            // The last that does more than look: it is what others read.
            let mut ops = part.instrs.iter().rev().filter_map(op);
            let named = ops.clone().find(|op| !op.is_view()).or_else(|| ops.next());
            StepInfo {
                name: named.map_or("NOTHING", Op::text).into(),
                family: named.map_or(gt_ir::Family::Other, Op::family),
                instrs: part.instrs.iter().rev().copied().collect(),
            }
        };
        self.parts.iter().map(info).collect()
    }

    /// Runs all parts, each of them a step of `clock`. On failure `inputs` is left as it was, or empty if that cannot
    /// be.
    pub fn run(
        &self,
        s: &Structure,
        inputs: &mut Vec<Buffer>,
        slots: &[Slot],
        clock: &StepClock,
    ) -> Result<Vec<Buffer>, PlanError> {
        let given = inputs.len();
        let broken =
            || PlanError { instr: None, error: Error::Runtime("the parts do not fit their program".into()) };
        let mut held: Vec<Option<Buffer>> = Vec::with_capacity(self.values);
        held.extend(inputs.drain(..).map(Some));
        held.resize(self.values, None);
        for (k, (part, plan)) in self.parts.iter().enumerate() {
            let start = clock.now();
            let take = |(v, dies): &(u32, bool)| match dies {
                true => held[*v as usize].take(),
                false => held[*v as usize].clone(),
            };
            let mut reads: Vec<Buffer> = part.inputs.iter().map_while(take).collect();
            let slots: Vec<Slot> =
                part.slots.iter().filter_map(|k| slots.get(*k as usize).cloned()).collect();
            let done = match reads.len() == part.inputs.len() {
                true => catch_unwind(AssertUnwindSafe(|| plan.run(&mut reads, &slots))).unwrap_or_else(|p| {
                    let text = crate::plans::panic_text(&*p);
                    let error = Error::Runtime(format!("the program panicked: {text}"));
                    Err(PlanError { instr: None, error })
                }),
                false => Err(broken()),
            };
            match done {
                Ok(outs) => {
                    part.outs.iter().zip(outs).for_each(|(v, out)| held[*v as usize] = Some(out));
                    clock.end(k as u32, start);
                }
                Err(mut error) => {
                    for ((v, _), buffer) in part.inputs.iter().zip(reads) {
                        held[*v as usize] = Some(buffer);
                    }
                    held.truncate(given);
                    if held.iter().all(Option::is_some) {
                        inputs.extend(held.into_iter().flatten());
                    }
                    error.instr = error.instr.and_then(|i| part.instrs.get(i as usize).copied());
                    return Err(error);
                }
            }
        }
        s.outs.iter().map(|v| held[*v as usize].clone()).collect::<Option<_>>().ok_or_else(broken)
    }
}
