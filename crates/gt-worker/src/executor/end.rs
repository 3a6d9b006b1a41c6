//! The ends of programs and of batches.

use super::Executor;
use crate::backend::{Buffer, PlanError};
use crate::finish::Closing;
use crate::gang::aloft::Doubt;
use crate::rescue::Rescued;
use crate::table::{Entry, Inputs};
use crate::worker::State;
use gt_ir::{TensorId, Ty};
use gt_net::msg::{Failure, Fetch, Run, SessionId};
use gt_sync::MutexGuard;
use std::sync::Arc;
use std::time::Duration;

impl Executor {
    /// Ends a batch: gives the values asked for, carries out its frees and tells the dispatcher, once the device is done.
    pub(super) fn close(&self, session: SessionId, fetches: &[Fetch], frees: &[TensorId]) {
        let backend = &self.core.config.backend;
        backend.turn(session.0);
        if !fetches.is_empty() {
            // Whoever gets the answer, and whoever brings it, needs a core now.
            backend.rest();
        }
        let mut values = Vec::with_capacity(fetches.len());
        for fetch in fetches {
            let what = self.core.state.lock().find(session, fetch.tensor);
            let answer = what.and_then(|(ty, buffer)| self.core.answer(session, fetch.tensor, &ty, buffer));
            values.push((fetch.req, answer));
        }
        let mut state = self.core.state.lock();
        let Some(table) = state.sessions.get_mut(&session) else { return };
        let dropped: Vec<_> = frees.iter().filter_map(|id| table.remove(*id)).collect();
        let may_wait = values.is_empty() && table.may_wait();
        table.gave = false;
        if may_wait && !backend.queues() {
            state.untold = Some(session);
            drop(state);
            return drop(dropped);
        }
        let doubts =
            |f: &Fetch| table.doubts(f.tensor).into_iter().map(|doubt| (f.req, doubt)).collect::<Vec<_>>();
        let doubted = fetches.iter().flat_map(doubts).collect();
        let close = Closing { values, may_wait, doubted, ..table.closing(session) };
        let ran = std::mem::take(&mut table.queued);
        drop(state);
        drop(dropped);
        if close.finished.is_empty() && close.values.is_empty() {
            // Whoever keeps the word of earlier ones is not to keep it any longer.
            if backend.queues() {
                self.core.finish_later(close);
            }
            return;
        }
        match backend.queues() {
            true => self.core.finish_later(Closing { ran, done: Some(backend.mark()), ..close }),
            false => close.finish(&self.core),
        }
        self.core.tell_if_due();
    }

    /// Tells what waited for an answer to ride with.
    pub(super) fn tell(&self, session: SessionId) {
        let close = self.core.state.lock().sessions.get_mut(&session).map(|table| table.closing(session));
        if let Some(close) = close.filter(|close| !close.finished.is_empty()) {
            close.finish(&self.core);
        }
        self.core.tell_if_due();
    }
}

pub(super) fn succeeded(
    state: &mut State,
    session: SessionId,
    run: &Run,
    types: &[Ty],
    outs: Vec<Buffer>,
    busy: Duration,
    doubt: Option<&Arc<Doubt>>,
) -> Vec<Entry> {
    let outs = types.iter().zip(outs).map(|(ty, buffer)| Entry::Here { ty: ty.clone(), buffer });
    // A session that ended meanwhile wants nothing.
    let Some(table) = state.sessions.get_mut(&session) else { return outs.collect() };
    for (&id, out) in run.program.outs.iter().zip(outs) {
        table.insert(id, out);
    }
    table.busy += busy;
    table.finished.push(run.seq);
    match doubt {
        Some(doubt) => table.in_doubt(doubt.clone(), &run.program),
        None => table.hangs(run.seq, &run.program),
    }
    run.program.frees.iter().filter_map(|id| table.remove(*id)).collect()
}

pub(super) fn failed(
    mut state: MutexGuard<State>,
    session: SessionId,
    run: &Run,
    inputs: Option<Inputs>,
    failure: Failure,
    rescued: Rescued,
) {
    let Some(table) = state.sessions.get_mut(&session) else { return };
    if let Some(inputs) = inputs {
        table.put_back(&run.program, inputs, &failure);
    }
    // What would have been replaced stays as it is.
    for &id in run.program.outs.iter().filter(|id| !run.program.inputs.contains(id)) {
        table.insert(id, Entry::Poisoned(failure.clone()));
    }
    let spared = rescued.spared.into_iter().map(|(at, ty, buffer)| (at, Entry::Here { ty, buffer }));
    let others = rescued.others.into_iter().map(|(at, PlanError { instr, error })| {
        (at, Entry::Poisoned(Failure { root: run.seq, instr, error }))
    });
    for (at, entry) in spared.chain(others) {
        table.insert(run.program.outs[at], entry);
        table.spared.push(run.program.outs[at]);
    }
    table.finished.push(run.seq);
    table.failures.push((run.seq, failure));
}
