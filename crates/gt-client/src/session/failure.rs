//! Failures: raised once, with the user's line, after cells have gone back to what they held (C5).

use super::Session;
use super::outbox::{Kept, Outbox};
use super::repair::{Repair, Wanted};
use crate::cell::Cell;
use crate::stream::SourceLine;
use crate::value::{SETTLED, Value, ValueInner};
use gt_ir::{Error, Result, TensorId, Ty};
use gt_net::msg::{Batch, ClientMsg, Failure};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// What a cell held before it was written.
enum Back {
    /// Something older than the program that failed.
    To(Value),
    /// A result of that program, with its type, if it is there.
    Made(usize, Ty, Option<Value>),
}

/// A failed program's writes to one cell, the last one first.
struct Written {
    cell: Arc<Cell>,
    /// Which of the programs made what it held first.
    program: usize,
    backs: Vec<Back>,
}

impl Session {
    /// Raises the root cause of a failure of this thread's programs once, after its cells have gone back to what they
    /// held (C5). Those of others are kept until their threads go on, and raised by anybody once these have ended.
    pub fn raise_failures(&self) -> Result<()> {
        self.raise(false)
    }

    /// Raises what has failed on any thread.
    pub(super) fn raise_all(&self) -> Result<()> {
        self.raise(true)
    }

    fn raise(&self, all: bool) -> Result<()> {
        if self.shared.failed.load(Ordering::Acquire) {
            // What was recorded from what is lost fails now, too, and not together with what comes next.
            let fatal = self.shared.inbox.lock().fatal.is_some();
            if !fatal {
                self.flush_all()?;
            }
            self.settle()?;
            let (failures, fatal, first) = self.sort_out(all);
            self.revert(&failures);
            if let Some(error) = first.or(fatal) {
                return Err(error);
            }
        }
        match self.keeps.load(Ordering::Acquire) {
            true => self.raise_kept(all),
            false => Ok(()),
        }
    }

    /// Takes what has failed, in order, with the end of the session if that has come: what is for this thread to hear
    /// is described, what is for others is kept.
    fn sort_out(&self, all: bool) -> (Vec<(u64, Failure)>, Option<Error>, Option<Error>) {
        let (me, living) = (crate::current::number_in(self.number), self.going_on());
        let mut outbox = self.outbox.lock();
        // Whoever looks meanwhile waits for the lock.
        self.keeps.store(true, Ordering::Release);
        let (mut failures, fatal) = {
            let mut inbox = self.shared.inbox.lock();
            self.shared.failed.store(inbox.fatal.is_some(), Ordering::Release);
            inbox.told |= inbox.fatal.is_some();
            (std::mem::take(&mut inbox.failures), inbox.fatal.clone())
        };
        failures.sort_by_key(|(seq, _)| *seq);
        let mut first = None;
        for (_, failure) in &failures {
            if !outbox.is_news(failure) {
                continue;
            }
            let owner = outbox.owner(failure);
            let everybodys = all || matches!(failure.error, Error::Connection(_)) || !living.contains(&owner);
            if everybodys || owner == me {
                if first.is_none() {
                    outbox.tell(failure);
                    first = Some(self.in_words(failure, outbox.line_of(failure)));
                }
            } else if !outbox.kept.iter().any(|kept| kept.stream == owner) {
                outbox.tell(failure);
                let error = self.in_words(failure, outbox.line_of(failure));
                outbox.kept.push(Kept { stream: owner, root: failure.root, error });
            }
        }
        self.keeps.store(!outbox.kept.is_empty(), Ordering::Release);
        (failures, fatal, first)
    }

    /// Raises what was kept for this thread, or for one that has ended.
    fn raise_kept(&self, all: bool) -> Result<()> {
        let (me, living) = (crate::current::number_in(self.number), self.going_on());
        let mut outbox = self.outbox.lock();
        let mine = |kept: &Kept| all || kept.stream == me || !living.contains(&kept.stream);
        let found = outbox.kept.iter().position(mine).map(|at| outbox.kept.remove(at));
        self.keeps.store(!outbox.kept.is_empty(), Ordering::Release);
        found.map_or(Ok(()), |kept| Err(kept.error))
    }

    /// Who looked at a value was told why it has none: nobody else need be.
    pub(super) fn told(&self, failure: &Failure) {
        if self.keeps.load(Ordering::Acquire) {
            let mut outbox = self.outbox.lock();
            outbox.kept.retain(|kept| kept.root != failure.root);
            self.keeps.store(!outbox.kept.is_empty(), Ordering::Release);
        }
    }

    /// The streams whose threads go on.
    fn going_on(&self) -> Vec<u64> {
        let streams = self.streams.lock();
        let living = streams.iter().filter_map(Weak::upgrade).filter(|stream| !stream.is_over());
        living.map(|stream| stream.number).collect()
    }

    /// Waits until all that was sent is done, well or badly.
    pub(super) fn settle(&self) -> Result<()> {
        let sent = self.outbox.lock().seq;
        let going_on = {
            let inbox = self.shared.inbox.lock();
            inbox.fatal.is_none() && inbox.completed < sent
        };
        if going_on {
            self.ask_for(sent)?;
            self.wait(|inbox| (inbox.completed >= sent).then_some(()))?;
        }
        Ok(())
    }

    /// Puts back what the failed programs had rebound, newest first, and frees what nobody went back to.
    fn revert(&self, failures: &[(u64, Failure)]) {
        let mut frees: Vec<TensorId> = Vec::new();
        let mut written: Vec<Written> = Vec::new();
        let mut known: HashMap<*const Cell, usize> = HashMap::new();
        let mut repairs: Vec<Repair> = Vec::new();
        let mut revived: Vec<(Arc<Cell>, Value)> = Vec::new();
        let mut outbox = self.outbox.lock();
        let mut there: HashSet<TensorId> = HashSet::new();
        for (seq, failure) in failures.iter().rev() {
            let Some(i) = outbox.unfinished.iter().position(|u| u.seq == *seq) else { continue };
            let Some(failed) = outbox.unfinished.remove(i) else { continue };
            outbox.bytes -= failed.bytes;
            let instr = failure.instr.filter(|_| failure.root == *seq);
            let again = failed.again.zip(instr);
            let repair = again.map(|(again, instr)| Repair::new(again, instr, failed.lines.clone()));
            outbox.failed.push_back((failed.seq, failed.lines));
            if outbox.failed.len() > 32 {
                outbox.failed.pop_front();
            }
            let mut lost = failed.frees;
            there.extend(&lost);
            for rebind in failed.rebinds.into_iter().rev() {
                let Some(cell) = rebind.cell.upgrade() else { continue };
                let own = repair.as_ref().and_then(|repair| repair.result(rebind.old_pos));
                let back = match (own, rebind.old.upgrade()) {
                    (Some(result), value) => Back::Made(result, rebind.old_ty, value),
                    (None, Some(value)) => Back::To(value),
                    (None, None) => {
                        if !lost.contains(&rebind.old_id) {
                            continue;
                        }
                        lost.retain(|id| *id != rebind.old_id);
                        let (id, ty, stream) = (rebind.old_id, rebind.old_ty, cell.stream());
                        Back::To(Arc::new(ValueInner { id, ty, stream, pos: SETTLED }))
                    }
                };
                let at = *known.entry(Arc::as_ptr(&cell)).or_insert(written.len());
                if at == written.len() {
                    written.push(Written { cell, program: 0, backs: Vec::new() });
                }
                written[at].program = repairs.len();
                written[at].backs.push(back);
            }
            repairs.extend(repair);
            frees.extend(lost);
        }
        // Dropped when no lock is held.
        let (mut passed, mut held) = (Vec::new(), Vec::new());
        for Written { cell, program, mut backs } in written {
            let now = cell.read().value;
            match (backs.pop(), repairs.get_mut(program)) {
                (Some(Back::To(value)), _) => revived.push((cell, value)),
                (Some(first @ Back::Made(..)), Some(repair)) if !repair.is_left(&now) => {
                    backs.push(first);
                    let made = backs.iter_mut().find_map(|back| match back {
                        Back::Made(result, ty, value) if !repair.is_lost(*result) => {
                            Some((*result, ty.clone(), value.take()))
                        }
                        _ => None,
                    });
                    match made {
                        Some((.., Some(value))) => revived.push((cell, value)),
                        Some((result, ty, None)) => repair.wanted.push(Wanted { cell, result, ty }),
                        None => {}
                    }
                }
                _ => {}
            }
            passed.push(backs);
            held.push(now);
        }
        for repair in repairs {
            let exists = |outbox: &Outbox, id| there.contains(&id) || outbox.lived.has(id);
            revived.extend(self.repair(&mut outbox, repair, exists));
        }
        let runs = std::mem::take(&mut outbox.queue);
        if !frees.is_empty() || !runs.is_empty() {
            let _ = self.send(ClientMsg::Batch(Batch { runs, fetches: Vec::new(), frees }));
        }
        drop(outbox);
        drop((passed, held));
        for (cell, value) in revived {
            cell.revert(value);
        }
    }

    /// The failure in words, with the user's source line.
    pub(super) fn describe(&self, failure: &Failure) -> Error {
        let line = self.outbox.lock().line_of(failure);
        self.in_words(failure, line)
    }

    fn in_words(&self, failure: &Failure, line: Option<SourceLine>) -> Error {
        match line.and_then(|at| self.files.lock().describe(at)) {
            Some(line) => failure.error.clone().map_message(|m| format!("{m}\n  recorded at {line}")),
            None => failure.error.clone(),
        }
    }
}
