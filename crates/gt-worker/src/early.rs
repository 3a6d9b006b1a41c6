//! Values that reach their client while the rest of their program still runs: a loss that is looked at each step is
//! there after the forward pass, and the next step is recorded while the device is at the backward pass.
//!
//! A value is given only when nothing that can fail is left of its program, so it needs no taking back.

use crate::backend::Pending;
use crate::finish::{Answer, Closing};
use crate::table::{Item, SessionTable};
use crate::worker::Core;
use gt_ir::{Program, TensorId, Ty};
use gt_net::msg::{Batch, Bytes, Fetch, SessionId};
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the word that programs are finished waits for the next answer to ride with, once their values are given. A
/// client that waits for the word itself has the dispatcher send an empty batch, which ends this.
pub const PATIENCE: Duration = Duration::from_millis(2);

/// A client that takes longer for its next programs is not left a core for it.
const ROOM: Duration = Duration::from_millis(3);

/// Live-outs of a program that its batch asks for: numbers among its live-outs, and requests.
pub type Wanted = SmallVec<[(usize, u64); 2]>;

/// Numbers beside those that are kept at hand at most: losses and measures come in small numbers.
const AT_HAND: usize = 8;

/// What is looked at of a program while it runs.
pub struct Looked {
    /// Numbers of live-outs: those asked for, then those that may be.
    pub outs: SmallVec<[usize; 4]>,
    /// The requests of the first.
    pub reqs: SmallVec<[u64; 2]>,
}

impl Looked {
    /// Adds single numbers among the live-outs, of the given types, to those that are asked for, if there are any.
    pub fn new(wanted: &Wanted, types: &[Ty]) -> Looked {
        let mut outs: SmallVec<[usize; 4]> = wanted.iter().map(|(out, _)| *out).collect();
        if !wanted.is_empty() {
            let others = (0..types.len()).filter(|k| types[*k].shape.numel() == 1 && !outs.contains(k));
            let others: SmallVec<[usize; 4]> = others.take(AT_HAND).collect();
            outs.extend(others);
        }
        Looked { outs, reqs: wanted.iter().map(|(_, req)| *req).collect() }
    }
}

impl SessionTable {
    /// What the batch asks for whose programs come next.
    fn asked(&self) -> &[Fetch] {
        let close = self.queue.iter().find_map(|item| match item {
            Item::Close { fetches, .. } => Some(fetches.as_slice()),
            _ => None,
        });
        close.unwrap_or_default()
    }

    /// The live-outs of a program that its batch asks for.
    pub fn wanted(&self, program: &Program) -> Wanted {
        let number = |f: &Fetch| program.outs.iter().position(|id| *id == f.tensor).map(|at| (at, f.req));
        self.asked().iter().filter_map(number).collect()
    }

    /// Programs have come: notes how long their client took for them since it was given a value.
    pub fn note_recording(&mut self) {
        if let Some(at) = self.gave_at.take() {
            let now = at.elapsed();
            self.records_for = Some(self.records_for.map_or(now, |before| (before * 3 + now) / 4));
        }
    }

    /// Takes a request off the batch that is being run; false if it is not there.
    fn answered(&mut self, req: u64) -> bool {
        let close = self.queue.iter_mut().find_map(|item| match item {
            Item::Close { fetches, .. } => Some(fetches),
            _ => None,
        });
        let at = close.as_ref().and_then(|fetches| fetches.iter().position(|f| f.req == req));
        close.zip(at).map(|(fetches, at)| fetches.remove(at)).is_some()
    }

    /// Takes a request for a tensor off what has come since its program began.
    fn asked_since(&mut self, tensor: TensorId) -> Option<u64> {
        self.queue.iter_mut().find_map(|item| match item {
            Item::Close { fetches, .. } => {
                let at = fetches.iter().position(|f| f.tensor == tensor)?;
                Some(fetches.remove(at).req)
            }
            _ => None,
        })
    }

    /// Answers what is asked of the program that runs and is at hand, ahead of all that waits.
    pub fn answer_known(&mut self, session: SessionId, batch: &mut Batch) -> Option<Closing> {
        if !batch.runs.is_empty() || self.known.is_empty() {
            return None;
        }
        let mut values = Vec::new();
        batch.fetches.retain(|fetch| match self.known.iter().position(|(id, _)| *id == fetch.tensor) {
            Some(at) => {
                values.push((fetch.req, Ok(Answer::Coming(self.known.swap_remove(at).1))));
                false
            }
            None => true,
        });
        let close = Closing { values, session_bytes: self.bytes, ..Closing::new(session) };
        (!close.values.is_empty()).then_some(close)
    }

    /// True if all there is to tell is that programs have finished whose values are given, and an answer follows that
    /// can tell it too.
    pub fn may_wait(&self) -> bool {
        self.gave && self.failures.is_empty()
    }

    /// True if the next batch ends in an answer.
    pub fn will_answer(&self) -> bool {
        !self.asked().is_empty()
    }
}

impl Core {
    /// Keeps a value at hand whose program still runs, should it be asked for. It may have been asked for already.
    pub fn keep(self: &Arc<Core>, session: SessionId, tensor: TensorId, bytes: Box<dyn Pending<Bytes>>) {
        let mut state = self.state.lock();
        let Some(table) = state.sessions.get_mut(&session) else { return };
        match table.asked_since(tensor) {
            Some(req) => {
                let values = vec![(req, Ok(Answer::Coming(bytes)))];
                let close = Closing { values, session_bytes: table.bytes, ..Closing::new(session) };
                drop(state);
                self.send_off(close);
            }
            None => table.known.push((tensor, bytes)),
        }
    }

    /// Sends an answer at once, or when its value is there.
    fn send_off(self: &Arc<Core>, close: Closing) {
        match self.config.backend.queues() {
            true => self.finish_later(close),
            false => close.finish(self),
        }
    }

    /// Gives a value whose program still runs.
    pub fn give(self: &Arc<Core>, session: SessionId, req: u64, bytes: Box<dyn Pending<Bytes>>) {
        let mut state = self.state.lock();
        let Some(table) = state.sessions.get_mut(&session) else { return };
        if !table.answered(req) {
            return;
        }
        table.gave = true;
        table.gave_at = Some(Instant::now());
        let room = table.records_for.filter(|time| *time < ROOM);
        let value = (req, Ok(Answer::Coming(bytes)));
        // What has finished before may be told with it, if it is known to have finished.
        let close = match self.config.backend.queues() {
            true => Closing { session_bytes: table.bytes, ..Closing::new(session) },
            false => table.closing(session),
        };
        drop(state);
        if room.is_some() {
            self.config.backend.leave_room(room);
        }
        self.send_off(Closing { values: vec![value], ..close });
    }
}
