//! Starting a program before it is whole (C3): which beginnings are worth it, and what is sent of them.
//!
//! A prefix changes nothing but time, so it may be chosen freely: while the workers are idle, and not where a known
//! program is being recorded again, whose plan is better than any beginning of it.

use super::open::{Entry, INPUT, Open, SIGNATURE};
use super::seal::Numbering;
use gt_ir::{Arg, Input, Instr, Op, Program, Structure};
use std::hash::BuildHasher;
use std::sync::Arc;

/// Lengths at which a program's beginning may be sent, unless `GT_PREFIX` says otherwise.
pub const POSITIONS: [usize; 2] = [256, 1024];
/// Bytes that a prefix may keep.
const MAX_KEPT: u64 = 32 << 20;
/// Bytes of host data that may travel twice.
const MAX_DATA: usize = 1 << 20;
/// A larger input is not copied for a write that would happen in place in the whole program.
const MAX_COPIED: usize = 1 << 20;

/// How far the open program has come with its prefixes.
pub(super) struct Progress {
    /// Lengths at which to look.
    positions: Arc<[usize]>,
    /// The length to look at next.
    pub next: usize,
    /// What the program looks like up to each position passed.
    marks: Vec<u64>,
    /// The number its prefixes were sent under.
    sent: Option<u64>,
}

impl Progress {
    pub fn new(positions: Arc<[usize]>) -> Progress {
        let mut progress = Progress { positions, next: 0, marks: Vec::new(), sent: None };
        progress.look_at_next();
        progress
    }

    fn look_at_next(&mut self) {
        self.next = self.positions.get(self.marks.len()).copied().unwrap_or(usize::MAX);
    }

    /// Starts over with the next program; gives the number that was sent and the marks passed.
    pub fn take(&mut self) -> (Option<u64>, Vec<u64>) {
        let out = (self.sent.take(), std::mem::take(&mut self.marks));
        self.look_at_next();
        out
    }

    /// The number to send a prefix under, chosen on first use.
    pub fn number(&mut self, choose: impl FnOnce() -> u64) -> u64 {
        *self.sent.get_or_insert_with(choose)
    }
}

impl Open {
    /// Notes that a position was passed; gives its length and what the program looks like up to there.
    pub(super) fn pass(&mut self) -> (usize, u64) {
        let progress = &mut self.progress;
        let len = progress.next;
        let done = progress.marks.len().checked_sub(1).map_or(0, |last| progress.positions[last]);
        let mut mark = progress.marks.last().copied().unwrap_or(0);
        for e in &self.entries[done..len] {
            let op = e.instr.as_ref().map(|i| &i.op);
            mark =
                (mark.rotate_left(7) ^ SIGNATURE.hash_one((op, &e.ty))).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        progress.marks.push(mark);
        progress.look_at_next();
        (len, mark)
    }

    /// The instructions of the first `len` values as a program that keeps all that is still in reach, if they are worth
    /// a start. An instruction of which only some results would be among them comes along whole.
    pub(super) fn prefix(&self, len: usize) -> Option<Program> {
        let further = self.entries[len..].iter().take_while(|e| e.instr.is_none()).count();
        let len = len + further;
        let (entries, rest) = self.entries.split_at(len);
        // What signals lay out runs where the dispatcher plans it as a whole.
        if self.data > MAX_DATA || self.at_once || entries.iter().any(|e| e.mark != 0 || self.copies(e)) {
            return None;
        }
        let mut kept: Vec<bool> = entries.iter().map(|e| e.alive).collect();
        for arg in rest.iter().flat_map(Entry::args) {
            if let Arg::Value(v) = arg
                && let Some(kept) = kept.get_mut(*v as usize)
            {
                *kept = true;
            }
        }
        let bytes: u64 =
            entries.iter().zip(&kept).filter(|(_, k)| **k).map(|(e, _)| e.ty.bytes() as u64).sum();
        if bytes > MAX_KEPT {
            return None;
        }
        let mut numbering = Numbering::new(self.inputs.len(), self.slots.len());
        entries.iter().flat_map(Entry::args).for_each(|arg| numbering.see(arg));
        let n = numbering.inputs.len() as u32;
        let instr = |i: &Instr| Instr {
            op: i.op.clone(),
            args: i.args.iter().map(|a| numbering.map(a, n)).collect(),
        };
        let input = |&i: &u32| Input { ty: self.inputs[i as usize].1.clone(), dies: false };
        let structure = Structure {
            inputs: numbering.inputs.iter().map(input).collect(),
            instrs: entries.iter().filter_map(|e| e.instr.as_ref()).map(instr).collect(),
            outs: (0..len as u32).filter(|&i| kept[i as usize]).map(|i| n + i).collect(),
            slots: numbering.slots.len() as u32,
            ..Default::default()
        };
        Some(Program {
            key: structure.key(),
            structure: Arc::new(structure),
            inputs: numbering.inputs.iter().map(|&i| self.inputs[i as usize].0).collect(),
            outs: entries.iter().zip(&kept).filter(|(_, k)| **k).map(|(e, _)| e.id).collect(),
            slots: numbering.slots.iter().map(|&k| self.slots[k as usize].clone()).collect(),
            frees: Vec::new(),
        })
    }

    /// True for a write into a large input: a prefix may not write in place.
    fn copies(&self, e: &Entry) -> bool {
        let Some(instr) = &e.instr else { return false };
        let base = instr.args.first();
        let writes = matches!(instr.op, Op::Put { .. } | Op::Scatter { .. } | Op::TakePut { .. });
        writes && matches!(base, Some(Arg::Value(v)) if v & INPUT != 0) && e.ty.bytes() > MAX_COPIED
    }
}
