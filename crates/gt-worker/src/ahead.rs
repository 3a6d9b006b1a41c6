//! What a session may do while its next step waits for bytes from elsewhere: later steps that are independent of it
//! (C9). A stage of a pipeline goes on with the next micro-batch while the gradient of the last is on its way; the
//! oldest step that can run runs first, so a gradient that has come goes before further micro-batches.

use crate::table::{Entry, Item, SessionTable};
use gt_ir::TensorId;
use gt_net::msg::Run;
use smallvec::SmallVec;

/// Steps looked at past one that waits.
const FAR: usize = 64;

/// What steps that were passed over have to do with tensors.
#[derive(Default)]
struct Passed {
    /// They still read these.
    needed: SmallVec<[TensorId; 64]>,
    /// These are here and will be written anew: a piece that a gang is to make whole, or a result that one is to work
    /// out again.
    rewritten: SmallVec<[TensorId; 4]>,
}

impl SessionTable {
    /// The number in the queue of the step to take next. Gangs start in their order, of which `gang` is next; with no
    /// `room` steps are taken strictly in turn, since what runs ahead keeps its results for longer.
    pub fn ready(&self, gang: Option<u64>, room: impl FnOnce() -> bool) -> Option<usize> {
        let first = self.queue.front()?;
        if self.is_ready(first, gang) {
            return Some(0);
        }
        if self.queue.len() == 1 || !room() {
            return None;
        }
        let mut passed = Passed::default();
        self.pass(first, &mut passed);
        for (at, item) in self.queue.iter().enumerate().take(FAR).skip(1) {
            if self.may_pass(item, &passed) {
                return Some(at);
            }
            self.pass(item, &mut passed);
        }
        None
    }

    /// Takes a step out of the queue.
    pub fn take(&mut self, at: usize) -> Option<Item> {
        let item = self.queue.remove(at)?;
        let earlier = self.queue.iter().take(at).filter(|item| is_program(item)).count();
        if earlier > 0 && is_program(&item) {
            let came = self.arrived.remove(earlier);
            came.into_iter().for_each(|came| self.arrived.push_front(came));
        }
        Some(item)
    }

    /// True if a step waits for nothing when its turn has come.
    fn is_ready(&self, item: &Item, gang: Option<u64>) -> bool {
        let there = |id: &TensorId| self.waits_for(*id).is_none();
        match item {
            Item::Run(run) => run.program.inputs.iter().all(there),
            Item::Gang(of, share) => gang == Some(of.number) && share.ids.inputs.iter().all(there),
            Item::Prefix(prefix) => prefix.program.inputs.iter().all(there),
            Item::Forget(_) => true,
            Item::Close { fetches, .. } => fetches.iter().all(|f| there(&f.tensor)),
            Item::Send { tensor, .. } => there(tensor),
        }
    }

    /// True if a step can go before those passed over: all it reads has been made for good, and it takes nothing away.
    fn may_pass(&self, item: &Item, passed: &Passed) -> bool {
        let made = |id: &TensorId| {
            let here = matches!(self.get(*id), Some(Entry::Here { .. } | Entry::Poisoned(_)));
            here && !passed.rewritten.contains(id)
        };
        match item {
            Item::Run(run) => {
                let takes = taken(run).any(|id| passed.needed.contains(&id));
                run.prefix.is_none() && run.program.inputs.iter().all(made) && !takes
            }
            Item::Send { tensor, .. } => made(tensor),
            // Gangs have their order, prefixes belong to programs, and the end of a batch tells of all before it.
            Item::Gang(..) | Item::Prefix(_) | Item::Forget(_) | Item::Close { .. } => false,
        }
    }

    /// Notes what a step that is passed over reads, and what it writes anew.
    fn pass(&self, item: &Item, to: &mut Passed) {
        match item {
            Item::Run(run) => to.needed.extend_from_slice(&run.program.inputs),
            Item::Gang(_, share) => {
                to.needed.extend_from_slice(&share.ids.inputs);
                let again = share.ids.outs.iter().filter(|id| self.get(**id).is_some());
                to.rewritten.extend(again.copied());
            }
            Item::Prefix(prefix) => to.needed.extend_from_slice(&prefix.program.inputs),
            Item::Close { fetches, .. } => to.needed.extend(fetches.iter().map(|f| f.tensor)),
            Item::Send { tensor, .. } => to.needed.push(*tensor),
            Item::Forget(_) => {}
        }
    }
}

fn is_program(item: &Item) -> bool {
    matches!(item, Item::Run(_) | Item::Gang(..))
}

/// The tensors that are gone when a program has run.
fn taken(run: &Run) -> impl Iterator<Item = TensorId> {
    let program = &run.program;
    let inputs = program.inputs.iter().zip(&program.structure.inputs);
    inputs.filter(|(_, input)| input.dies).map(|(id, _)| *id).chain(program.frees.iter().copied())
}
