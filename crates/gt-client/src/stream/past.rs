//! The programs that a stream has recorded before: what they were made of, and in which ways they were sealed.

use super::open::INPUT;
use super::sizes::{Resized, Sizes};
use crate::autograd::Replay;
use gt_ir::{Arg, Instr, Slot, Structure, Ty};
use gt_sync::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Programs that a stream remembers.
const MAX_PASTS: usize = 16;
/// Ways in which the results and inputs of one program live and die.
const MAX_WAYS: usize = 4;

/// A value of a program that came before.
#[derive(PartialEq)]
pub(super) struct Made {
    /// The instruction whose first result it is, with operands as in an open program.
    pub instr: Option<Instr>,
    pub ty: Ty,
}

/// A program that came before: twice, or in several sizes.
pub(crate) struct Past {
    pub(super) made: Vec<Made>,
    pub(super) inputs: Vec<Ty>,
    pub(super) ways: Mutex<Vec<Arc<Way>>>,
    replays: Mutex<Vec<Arc<Replay>>>,
}

/// One way a program was sealed: what outlived it, what died in it, and which of its numbers are slots.
pub(crate) struct Way {
    pub structure: Arc<Structure>,
    pub key: u64,
    pub(super) alive: Vec<bool>,
    /// Numbers that are slots: (the value that the instruction makes, the operand).
    pub(super) varying: Vec<(u32, u32)>,
    /// Bytes of results that stay alive.
    pub(super) bytes: u64,
    /// The same in other sizes.
    pub(super) resized: Resized,
}

/// The programs that a stream remembers, the last used first.
#[derive(Default)]
pub(crate) struct Pasts {
    list: Mutex<VecDeque<Arc<Past>>>,
    any: AtomicBool,
}

impl Past {
    /// What a program that was sealed as a whole looked like while it was open. The first `slots` of its slots were
    /// slots from the start, the others numbers.
    pub fn new(structure: &Structure, types: Vec<Ty>, values: &[Slot], slots: usize) -> Past {
        let inputs = structure.inputs.len() as u32;
        let open = |arg: &Arg| match *arg {
            Arg::Value(v) if v < inputs => Arg::Value(INPUT | v),
            Arg::Value(v) => Arg::Value(v - inputs),
            Arg::Slot(k) if k as usize >= slots => match &values[k as usize] {
                Slot::Num(x) => Arg::Const(*x),
                Slot::Data(_) => Arg::Slot(k),
            },
            other => other,
        };
        let mut types = types.into_iter();
        let mut made = Vec::with_capacity(types.len());
        for instr in &structure.instrs {
            let open = Instr { op: instr.op.clone(), args: instr.args.iter().map(open).collect() };
            let mut instr = Some(open);
            made.extend(
                types
                    .by_ref()
                    .take(instr.as_ref().map_or(1, Instr::results))
                    .map(|ty| Made { instr: instr.take(), ty }),
            );
        }
        let inputs = structure.inputs.iter().map(|input| input.ty.clone()).collect();
        Past { made, inputs, ways: Mutex::default(), replays: Mutex::default() }
    }

    /// Remembers how it was sealed.
    pub fn learn(&self, way: Way) {
        let mut ways = self.ways.lock();
        if ways.len() >= MAX_WAYS {
            ways.remove(0);
        }
        ways.push(Arc::new(way));
    }

    /// A backward pass that it had.
    pub fn replay(&self, fits: impl Fn(&Replay) -> bool) -> Option<Arc<Replay>> {
        self.replays.lock().iter().find(|replay| fits(replay)).cloned()
    }

    /// Remembers a backward pass that it had.
    pub fn learn_replay(&self, replay: Replay) {
        let mut replays = self.replays.lock();
        if replays.len() >= MAX_WAYS {
            replays.remove(0);
        }
        replays.push(Arc::new(replay));
    }

    /// True if its first values and inputs are those of another. An input's type is not always told by the
    /// instructions that take it: a reshape gives the same from many.
    pub(super) fn begins_like(&self, other: &Past, values: usize, inputs: usize) -> bool {
        let (own, others) = (self.inputs.get(..inputs), other.inputs.get(..inputs));
        self.made.get(..values) == other.made.get(..values) && own.is_some() && own == others
    }

    /// The type of value `i`.
    pub fn ty(&self, i: usize) -> &Ty {
        &self.made[i].ty
    }

    /// The instruction that makes value `i`.
    pub fn instr(&self, i: usize) -> Option<&Instr> {
        self.made.get(i)?.instr.as_ref()
    }
}

impl Way {
    /// How a program of `results` values was sealed; see `Past::new`.
    pub fn new(structure: &Arc<Structure>, key: u64, results: usize, slots: usize, bytes: u64) -> Way {
        let inputs = structure.inputs.len();
        let mut alive = vec![false; results];
        for out in &structure.outs {
            if let Some(alive) = (*out as usize).checked_sub(inputs).and_then(|i| alive.get_mut(i)) {
                *alive = true;
            }
        }
        let mut varying = Vec::new();
        let mut value = 0;
        for instr in &structure.instrs {
            for (j, arg) in instr.args.iter().enumerate() {
                if matches!(arg, Arg::Slot(k) if *k as usize >= slots) {
                    varying.push((value, j as u32));
                }
            }
            value += instr.results() as u32;
        }
        Way { structure: structure.clone(), key, alive, varying, bytes, resized: Resized::default() }
    }

    /// The same with a structure that differs in sizes alone.
    pub(super) fn in_other_sizes(&self, structure: Structure, bytes: u64) -> Way {
        let key = structure.key();
        let (alive, varying) = (self.alive.clone(), self.varying.clone());
        Way { structure: Arc::new(structure), key, alive, varying, bytes, resized: Resized::default() }
    }

    /// Bytes of results that stay alive in other sizes.
    pub(super) fn bytes_in(&self, past: &Past, sizes: &Sizes) -> u64 {
        let kept = self.alive.iter().enumerate().filter(|(_, alive)| **alive);
        kept.map(|(i, _)| sizes.ty(i).unwrap_or_else(|| past.ty(i)).bytes() as u64).sum()
    }
}

impl Pasts {
    /// Remembers a program, unless it is there already.
    pub fn add(&self, past: Past) -> Arc<Past> {
        if let Some(same) = self.find(|p| p.made == past.made && p.inputs == past.inputs) {
            return same;
        }
        let past = Arc::new(past);
        let mut pasts = self.list.lock();
        pasts.truncate(MAX_PASTS - 1);
        pasts.push_front(past.clone());
        self.any.store(true, Ordering::Relaxed);
        past
    }

    /// True if there is one at all.
    #[inline]
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// The last used program that fits.
    pub(super) fn find(&self, fits: impl Fn(&Past) -> bool) -> Option<Arc<Past>> {
        self.list.lock().iter().find(|past| fits(past)).cloned()
    }

    /// Notes that a program was used.
    pub(super) fn used(&self, past: &Arc<Past>) {
        let mut pasts = self.list.lock();
        if let Some(i) = pasts.iter().position(|p| Arc::ptr_eq(p, past))
            && i > 0
            && let Some(past) = pasts.remove(i)
        {
            pasts.push_front(past);
        }
    }
}
