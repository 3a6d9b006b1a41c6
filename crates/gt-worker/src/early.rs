//! Values that reach their client while the rest of their program still runs: a loss that is looked at each step is
//! there after the forward pass, and the next step is recorded while the device is at the backward pass.
//!
//! A value is given only when nothing that can fail is left of its program, so it needs no taking back.

use crate::backend::Pending;
use crate::finish::{Answer, Closing};
use crate::table::{Item, SessionTable};
use crate::worker::Core;
use gt_ir::Program;
use gt_net::msg::{Bytes, Fetch, SessionId};
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::Duration;

/// How long the word that programs are finished waits for the next answer to ride with, once their values are given. A
/// client that waits for the word itself has the dispatcher send an empty batch, which ends this.
pub const PATIENCE: Duration = Duration::from_millis(2);

/// Live-outs of a program that its batch asks for: numbers among its live-outs, and requests.
pub type Wanted = SmallVec<[(usize, u64); 2]>;

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

    /// Takes a request off the batch that is being run; false if it is not there.
    fn answered(&mut self, req: u64) -> bool {
        let close = self.queue.iter_mut().find_map(|item| match item {
            Item::Close { fetches, .. } => Some(fetches),
            _ => None,
        });
        let at = close.as_ref().and_then(|fetches| fetches.iter().position(|f| f.req == req));
        close.zip(at).map(|(fetches, at)| fetches.remove(at)).is_some()
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
    /// Gives a value whose program still runs.
    pub fn give(self: &Arc<Core>, session: SessionId, req: u64, bytes: Box<dyn Pending<Bytes>>) {
        let mut state = self.state.lock();
        let Some(table) = state.sessions.get_mut(&session) else { return };
        if !table.answered(req) {
            return;
        }
        table.gave = true;
        let value = (req, Ok(Answer::Coming(bytes)));
        let queues = self.config.backend.queues();
        // What has finished before may be told with it, if it is known to have finished.
        let close = match queues {
            true => Closing { session_bytes: table.bytes, ..Closing::new(session) },
            false => table.closing(session),
        };
        drop(state);
        let close = Closing { values: vec![value], ..close };
        match queues {
            true => self.finish_later(close),
            false => close.finish(self),
        }
    }
}
