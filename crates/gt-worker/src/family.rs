//! Programs that come back with other sizes or numbers (C4): decoding with a growing cache, a last batch that shrinks, a
//! fill by the number of a step.
//!
//! A family is one structure with its sizes left open. Against its first member, every instruction of a new one either
//! is the same, operand types and numbers included, or has changed. The changed ones become parts of their own; all others keep the
//! plans they have. That an instruction is the same is compared in full each time, so nothing rests on a guess.

use crate::parts::{Part, divide};
use foldhash::fast::FixedState;
use gt_ir::{Arg, ArgTy, Instr, Op, Structure, Ty, infer_all};
use smallvec::SmallVec;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// So many members in a row whose plans served once mean that the next one's would, too.
const RESTLESS: usize = 8;

/// One structure with its sizes left open.
pub struct Family {
    first: Arc<Structure>,
    types: Vec<Ty>,
    pub starts: Vec<u32>,
    /// How often each op occurs.
    pub ops: Arc<[(&'static str, u64)]>,
    /// Different sizes seen.
    pub sizes: u32,
    pub used: u64,
    /// Instructions that have changed at some time.
    changes: Vec<bool>,
    /// How members are divided; none if that does not pay.
    pub parts: Option<Vec<FamilyPart>>,
    /// How often the last members with plans of their own were used.
    uses: VecDeque<Arc<AtomicU64>>,
}

/// A part of all members.
pub struct FamilyPart {
    pub part: Arc<Part>,
    /// It has changed at some time.
    pub changes: bool,
    /// Key and structure of one that never changed; filled when first needed.
    pub known: Option<(u64, Arc<Structure>)>,
}

/// The types of a member's values that are not those of the first.
pub type Fresh = HashMap<u32, Ty, FixedState>;

/// Roughly, how much compiling an instruction takes.
fn weight(instr: &Instr) -> usize {
    match instr.op {
        // Expanded into a dozen instructions per parameter.
        Op::Sgd { .. } | Op::Adam { .. } => 3 * instr.args.len(),
        _ if instr.op.is_composite() => 8,
        _ => 1,
    }
}

impl Family {
    pub fn new(first: &Arc<Structure>, types: Vec<Ty>, ops: Arc<[(&'static str, u64)]>, used: u64) -> Family {
        let (starts, changes) = (first.starts(), vec![false; first.instrs.len()]);
        Family {
            first: first.clone(),
            types,
            starts,
            ops,
            sizes: 1,
            used,
            changes,
            parts: None,
            uses: VecDeque::new(),
        }
    }

    /// A member has a plan of its own now, whose uses are counted.
    pub fn compiled(&mut self, uses: Arc<AtomicU64>) {
        if self.uses.len() == RESTLESS {
            self.uses.pop_front();
        }
        self.uses.push_back(uses);
    }

    /// True if none of the plans that were made lately has been used again.
    pub fn is_restless(&self) -> bool {
        self.uses.len() == RESTLESS && self.uses.iter().all(|uses| uses.load(Ordering::Relaxed) < 2)
    }

    /// The types of a member's values that are not those of the first, after noting which instructions have changed.
    /// Nothing if it is no member.
    pub fn compare(&mut self, s: &Structure) -> Option<Fresh> {
        let first = &*self.first;
        let alike = first.inputs.len() == s.inputs.len()
            && first.instrs.len() == s.instrs.len()
            && first.outs == s.outs
            && first.slots == s.slots
            && first.inputs.iter().zip(&s.inputs).all(|(a, b)| a.dies == b.dies);
        if !alike {
            return None;
        }
        let mut fresh = Fresh::default();
        for (v, (a, b)) in first.inputs.iter().zip(&s.inputs).enumerate() {
            if a.ty != b.ty {
                fresh.insert(v as u32, b.ty.clone());
            }
        }
        let mut more = false;
        for (i, (a, b)) in first.instrs.iter().zip(&s.instrs).enumerate() {
            let moved = |arg: &Arg| matches!(arg, Arg::Value(v) if fresh.contains_key(v));
            if a == b && (fresh.is_empty() || !b.args.iter().any(moved)) {
                continue;
            }
            let same = |(a, b): (&Arg, &Arg)| match (a, b) {
                (Arg::Const(_), Arg::Const(_)) => true,
                (a, b) => a == b,
            };
            let fits = a.args.len() == b.args.len() && a.args.iter().zip(&b.args).all(same);
            if !fits || a.results() != b.results() {
                return None;
            }
            let types = {
                let ty = |arg: &Arg| match arg {
                    Arg::Value(v) => ArgTy::Val(fresh.get(v).unwrap_or(&self.types[*v as usize])),
                    Arg::Const(_) | Arg::Slot(_) => ArgTy::Num,
                };
                let args: SmallVec<[ArgTy; 4]> = b.args.iter().map(ty).collect();
                infer_all(&b.op, &args).ok()?
            };
            for (v, ty) in (self.starts[i]..).zip(types) {
                if ty != self.types[v as usize] {
                    fresh.insert(v, ty);
                }
            }
            more |= !std::mem::replace(&mut self.changes[i], true);
        }
        if more {
            self.divide();
        }
        Some(fresh)
    }

    /// The type of a value of a member.
    pub fn ty<'a>(&'a self, fresh: &'a Fresh, v: u32) -> &'a Ty {
        fresh.get(&v).unwrap_or(&self.types[v as usize])
    }

    /// How many values a member has.
    pub fn values(&self) -> usize {
        self.types.len()
    }

    /// The part of every instruction: changed and unchanged ones by turns, each as early as what it depends on allows.
    fn levels(&self) -> Vec<u32> {
        let s = &*self.first;
        let mut level_of_value: Vec<u32> = vec![0; self.types.len()];
        let mut levels = Vec::with_capacity(s.instrs.len());
        for (i, instr) in s.instrs.iter().enumerate() {
            let after = instr.args.iter().filter_map(|arg| match arg {
                Arg::Value(v) => Some(level_of_value[*v as usize]),
                Arg::Const(_) | Arg::Slot(_) => None,
            });
            // Odd levels are the changed ones.
            let mut level = after.max().unwrap_or(0);
            level += (level % 2 != self.changes[i] as u32) as u32;
            level_of_value[self.starts[i] as usize..self.starts[i + 1] as usize].fill(level);
            levels.push(level);
        }
        levels
    }

    fn divide(&mut self) {
        let s = &*self.first;
        let all: usize = s.instrs.iter().map(weight).sum();
        let changed: usize =
            s.instrs.iter().zip(&self.changes).filter(|(_, c)| **c).map(|(i, _)| weight(i)).sum();
        let levels = self.levels();
        let count = levels.iter().max().map_or(0, |m| *m as usize + 1);
        self.parts = None;
        if 2 * changed <= all && count <= 2 + s.instrs.len() / 8 {
            let parts = divide(s, &self.starts, &levels).into_iter().map(|part| {
                let changes = part.instrs().iter().any(|i| self.changes[*i as usize]);
                FamilyPart { part: Arc::new(part), changes, known: None }
            });
            self.parts = Some(parts.collect());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Backend, Buffer, Effort, HostBytes};
    use crate::backends::cpu::CpuBackend;
    use crate::parts::InParts;
    use gt_ir::sample::{RandomProgram, random_program};

    #[test]
    fn whichever_instructions_change_the_parts_give_the_same_bits() {
        let backend = CpuBackend::new(Some(1));
        for seed in 0..300 {
            let RandomProgram { structure, inputs, slots } = random_program(seed, 30);
            let structure = Arc::new(structure);
            let types = structure.check().unwrap();
            let mut family = Family::new(&structure, types.clone(), Arc::default(), 0);
            let changes = |i: usize| (i as u64 * 31 + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 62 == 0;
            family.changes = (0..structure.instrs.len()).map(changes).collect();
            let parts = divide(&structure, &family.starts, &family.levels()).into_iter().map(|part| {
                let own = Arc::new(part.structure(&structure, &family.starts, |v| &types[v as usize]));
                let plan = backend.compile(&own, &own.check().unwrap(), Effort::Quick).unwrap();
                (Arc::new(part), plan)
            });
            let parts = parts.collect();
            let parts =
                InParts { parts, outs: Arc::default(), ops: Arc::default(), reserve: 0, values: types.len() };
            let upload = || -> Vec<Buffer> {
                let load = |t: &gt_ir::HostTensor| {
                    backend.upload(&t.ty, HostBytes::Owned(Arc::new(t.data.clone()))).unwrap()
                };
                inputs.iter().map(load).collect()
            };
            let read = |outs: Vec<Buffer>| -> Vec<_> {
                outs.iter().map(|out| backend.download(out).unwrap()).collect()
            };
            let plan = backend.compile(&structure, &types, Effort::Quick).unwrap();
            let whole = read(plan.run(&mut upload(), &slots).unwrap());
            assert!(
                whole
                    == read(
                        parts
                            .run(&structure, &mut upload(), &slots, &crate::backend::StepClock::start())
                            .unwrap()
                    ),
                "seed {seed}"
            );
        }
    }
}
