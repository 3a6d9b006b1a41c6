//! What leaves for the dispatcher, and what is known of programs under way.

use super::repair::Again;
use super::scalars::ScalarTable;
use crate::lived::Lived;
use crate::seen::{Recent, Sources};
use crate::stream::{Rebind, SourceLine};
use foldhash::fast::FixedState;
use gt_ir::{Error, Structure, TensorId};
use gt_net::msg::{Failure, Run};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

/// A program on its way.
pub(super) struct Unfinished {
    pub(super) seq: u64,
    pub(super) bytes: u64,
    /// Bytes of host data that travel with it.
    pub(super) data: u64,
    pub(super) frees: Vec<TensorId>,
    pub(super) rebinds: Vec<Rebind>,
    /// The program, if cells held what it made before it made more of them.
    pub(super) again: Option<Box<Again>>,
    pub(super) lines: Vec<SourceLine>,
    pub(super) ends_step: bool,
    /// The number of the stream that recorded it; 0 for none.
    pub(super) stream: u64,
    pub(super) instrs: usize,
    /// No program of its structure was sent before.
    pub(super) new: bool,
}

/// A failure that is for the thread of a stream to hear.
pub(super) struct Kept {
    pub(super) stream: u64,
    pub(super) root: u64,
    pub(super) error: Error,
}

/// What leaves for the dispatcher, in order.
#[derive(Default)]
pub(super) struct Outbox {
    pub(super) seq: u64,
    pub(super) bytes: u64,
    /// A program sealed at the end of an optimizer step: it travels with what is sent next.
    pub(super) queue: Vec<Run>,
    pub(super) unfinished: VecDeque<Unfinished>,
    /// Roots of failures that a person has been told of.
    told_of: VecDeque<u64>,
    /// Failures of other threads' programs, until those threads go on.
    pub(super) kept: Vec<Kept>,
    /// Source lines of programs that failed, for tensors that are looked at later.
    pub(super) failed: VecDeque<(u64, Vec<SourceLine>)>,
    pub(super) scalars: ScalarTable,
    pub(super) structures: HashMap<u64, Arc<Structure>, FixedState>,
    /// How often programs came that differ in sizes and numbers alone, each of them new.
    kin: HashMap<u64, u32, FixedState>,
    /// How many signals the dispatcher has been told of.
    pub(super) signals: usize,
    /// What the programs sent so far look like up to where a prefix may end.
    pub(super) marks: HashSet<u64, FixedState>,
    /// What came of the last programs' source lines.
    pub(super) recent: Recent,
    pub(super) lived: Lived,
    /// Plan keys whose source lines the log has.
    pub(super) logged: HashSet<u64>,
    /// Those told to the server, since which of its wishes.
    pub(super) told: (u64, HashSet<u64>),
}

/// So many failures that were told are remembered: what depends on them is not told again.
const TOLD: usize = 64;
/// At most this many bytes of host data may be under way inside programs: the server keeps them for its workers.
const CREDIT_DATA: u64 = 32 << 20;

impl Outbox {
    /// Forgets programs that have finished. Failed ones are kept until their cells were reverted.
    pub(super) fn retire(&mut self, completed: u64, failed: bool) {
        while !failed && self.unfinished.front().is_some_and(|u| u.seq <= completed) {
            if let Some(done) = self.unfinished.pop_front() {
                self.bytes -= done.bytes;
                let Unfinished { seq, lines, ends_step, .. } = done;
                self.recent.push(Sources { seq, lines, ends_step });
            }
        }
    }

    /// True if nobody has been told of a failure, nor of what it comes from.
    pub(super) fn is_news(&self, failure: &Failure) -> bool {
        failure.root == 0 || !self.told_of.contains(&failure.root)
    }

    /// Somebody is told of a failure, or will be.
    pub(super) fn tell(&mut self, failure: &Failure) {
        self.told_of.push_back(failure.root);
        if self.told_of.len() > TOLD {
            self.told_of.pop_front();
        }
    }

    /// The stream whose program failed first; 0 where that is nobody's or not known any more.
    pub(super) fn owner(&self, failure: &Failure) -> u64 {
        self.unfinished.iter().find(|u| u.seq == failure.root).map_or(0, |u| u.stream)
    }

    /// The user's line of the instruction that failed, where it is known.
    pub(super) fn line_of(&self, failure: &Failure) -> Option<SourceLine> {
        let instr = failure.instr?;
        let open = self.unfinished.iter().map(|u| (u.seq, &u.lines));
        let failed = self.failed.iter().map(|(seq, lines)| (*seq, lines));
        let (_, lines) = open.chain(failed).find(|(seq, _)| *seq == failure.root)?;
        lines.get(instr as usize).copied()
    }

    /// The program that has to finish before more host data may leave.
    pub(super) fn behind(&self) -> Option<u64> {
        let mut data = 0;
        let over = |u: &&Unfinished| {
            data += u.data;
            data > CREDIT_DATA
        };
        self.unfinished.iter().rev().find(over).map(|u| u.seq)
    }

    /// Remembers what a program looks like, so that the next of its kind is not begun early.
    pub(super) fn remember(&mut self, marks: &[u64]) {
        if self.marks.len() >= 4096 {
            self.marks.clear();
        }
        self.marks.extend(marks);
    }

    /// True if a program that is new may be followed in other sizes from now on: others like it have come, and none of
    /// them has been offered for that, or not for long.
    pub(super) fn has_kin(&mut self, structure: &Structure) -> bool {
        if self.kin.len() >= 1024 {
            self.kin.clear();
        }
        let times = self.kin.entry(structure.kin()).or_default();
        *times += 1;
        *times > 1 && times.is_power_of_two()
    }

    /// The shared copy of a structure, so that a repeated step is recognised by its address; its key, and whether it
    /// came before.
    pub(super) fn share(&mut self, structure: Structure) -> (Arc<Structure>, u64, bool) {
        let key = structure.key();
        match self.structures.get(&key) {
            Some(known) if **known == structure => (known.clone(), key, true),
            _ => {
                if self.structures.len() >= 256 {
                    self.structures.clear();
                }
                let shared = Arc::new(structure);
                self.structures.insert(key, shared.clone());
                (shared, key, false)
            }
        }
    }
}
