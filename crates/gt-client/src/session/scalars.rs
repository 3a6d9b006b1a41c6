//! Numbers that become slots when they come back changed (C4).

use foldhash::fast::FixedState;
use gt_ir::{Arg, Scalar, Slot, Structure};
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher};

/// Remembers the numbers of programs that differ in nothing else, and makes a slot of each that changes (C4).
#[derive(Default)]
pub(super) struct ScalarTable {
    seen: HashMap<u64, (Vec<Scalar>, Vec<bool>), FixedState>,
}

impl ScalarTable {
    pub(super) fn promote(&mut self, structure: &mut Structure, slots: &mut Vec<Slot>) {
        let mut hasher = FixedState::with_seed(7).build_hasher();
        let mut now: Vec<Scalar> = Vec::new();
        structure.inputs.hash(&mut hasher);
        structure.outs.hash(&mut hasher);
        for instr in &structure.instrs {
            instr.op.hash(&mut hasher);
            for (i, arg) in instr.args.iter().enumerate() {
                match arg {
                    Arg::Const(x) if instr.op.may_become_slot(i) => {
                        hasher.write_u8(x.kind() as u8);
                        now.push(*x);
                    }
                    other => other.hash(&mut hasher),
                }
            }
        }
        if now.is_empty() {
            return;
        }
        if self.seen.len() >= 1024 {
            self.seen.clear();
        }
        let (last, varies) =
            self.seen.entry(hasher.finish()).or_insert_with(|| (now.clone(), vec![false; now.len()]));
        if last.len() != now.len() {
            return;
        }
        for i in 0..now.len() {
            varies[i] |= last[i] != now[i];
        }
        if !varies.contains(&true) {
            return;
        }
        let mut k = 0;
        for instr in &mut structure.instrs {
            for i in 0..instr.args.len() {
                if let Arg::Const(x) = instr.args[i]
                    && instr.op.may_become_slot(i)
                {
                    if varies[k] {
                        instr.args[i] = Arg::Slot(slots.len() as u32);
                        slots.push(Slot::Num(x));
                    }
                    k += 1;
                }
            }
        }
        structure.slots = slots.len() as u32;
    }
}
