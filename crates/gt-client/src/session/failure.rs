//! Failures: raised once, with the user's line, after cells have gone back to what they held (C5).

use super::Session;
use super::outbox::Outbox;
use super::repair::{Repair, Wanted};
use crate::cell::Cell;
use crate::value::{SETTLED, Value, ValueInner};
use gt_ir::{Error, Result, TensorId, Ty};
use gt_net::msg::{Batch, ClientMsg, Failure};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

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
    /// Raises the root cause of a failure once, after its cells have gone back to what they held (C5).
    pub fn raise_failures(&self) -> Result<()> {
        if !self.shared.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        // What was recorded from what is lost fails now, too, and not together with what comes next.
        let fatal = self.shared.inbox.lock().fatal.is_some();
        if !fatal {
            self.flush_all()?;
        }
        self.settle()?;
        let (mut failures, fatal) = {
            let mut inbox = self.shared.inbox.lock();
            self.shared.failed.store(inbox.fatal.is_some(), Ordering::Release);
            inbox.told |= inbox.fatal.is_some();
            (std::mem::take(&mut inbox.failures), inbox.fatal.clone())
        };
        failures.sort_by_key(|(seq, _)| *seq);
        let news = self.outbox.lock().first_news(&failures);
        let first = news.map(|f| self.describe(&f));
        self.revert(&failures);
        match first.or(fatal) {
            Some(error) => Err(error),
            None => Ok(()),
        }
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
        let line = failure.instr.and_then(|i| {
            let outbox = self.outbox.lock();
            let open = outbox.unfinished.iter().map(|u| (u.seq, &u.lines));
            let failed = outbox.failed.iter().map(|(seq, lines)| (*seq, lines));
            let (_, lines) = open.chain(failed).find(|(seq, _)| *seq == failure.root)?;
            let at = *lines.get(i as usize)?;
            self.files.lock().describe(at)
        });
        match line {
            Some(line) => failure.error.clone().map_message(|m| format!("{m}\n  recorded at {line}")),
            None => failure.error.clone(),
        }
    }
}
