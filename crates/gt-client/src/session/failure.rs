//! Failures: raised once, with the user's line, after cells have gone back to what they held (C5).

use super::Session;
use crate::value::{SETTLED, Value, ValueInner};
use gt_ir::{Error, Result, TensorId};
use gt_net::msg::{Batch, ClientMsg, Failure};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Session {
    /// Raises the root cause of a failure once, after its cells have gone back to what they held (C5).
    pub fn raise_failures(&self) -> Result<()> {
        if !self.shared.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        self.settle()?;
        let (mut failures, fatal) = {
            let mut inbox = self.shared.inbox.lock();
            self.shared.failed.store(inbox.fatal.is_some(), Ordering::Release);
            inbox.told |= inbox.fatal.is_some();
            (std::mem::take(&mut inbox.failures), inbox.fatal.clone())
        };
        failures.sort_by_key(|(seq, _)| *seq);
        let first = failures.first().map(|(_, f)| self.describe(f));
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
            self.send(ClientMsg::Sync { seq: sent })?;
            self.wait(|inbox| (inbox.completed >= sent).then_some(()))?;
        }
        Ok(())
    }

    /// Puts back what the failed programs had rebound, newest first, and frees what nobody went back to.
    fn revert(&self, failures: &[(u64, Failure)]) {
        let mut frees: Vec<TensorId> = Vec::new();
        let mut revived: Vec<(Arc<crate::cell::Cell>, Value)> = Vec::new();
        {
            let mut outbox = self.outbox.lock();
            for (seq, _) in failures.iter().rev() {
                let Some(i) = outbox.unfinished.iter().position(|u| u.seq == *seq) else { continue };
                let Some(failed) = outbox.unfinished.remove(i) else { continue };
                outbox.bytes -= failed.bytes;
                outbox.failed.push_back((failed.seq, failed.lines));
                if outbox.failed.len() > 32 {
                    outbox.failed.pop_front();
                }
                let mut lost = failed.frees;
                for rebind in failed.rebinds.into_iter().rev() {
                    let Some(cell) = rebind.cell.upgrade() else { continue };
                    let value = match rebind.old.upgrade() {
                        Some(value) => value,
                        None => {
                            if !lost.contains(&rebind.old_id) {
                                continue;
                            }
                            lost.retain(|id| *id != rebind.old_id);
                            let stream = cell.stream();
                            Arc::new(ValueInner {
                                id: rebind.old_id,
                                ty: rebind.old_ty,
                                stream,
                                pos: SETTLED,
                            })
                        }
                    };
                    revived.push((cell, value));
                }
                frees.extend(lost);
            }
            if !frees.is_empty() {
                let batch = Batch { runs: Vec::new(), fetches: Vec::new(), frees };
                let _ = self.send(ClientMsg::Batch(batch));
            }
        }
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
