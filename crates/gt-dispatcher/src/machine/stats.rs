//! Requests for counters: asked of every worker, answered when all have replied or time is up.

use super::{Action, Machine};
use gt_net::msg::{SessionId, SessionMsg, Stats, Tidy, WorkerCmd, WorkerId, WorkerStats};
use std::collections::{BTreeMap, BTreeSet};

/// One request.
pub(super) struct Ask {
    session: SessionId,
    req: u64,
    since: u64,
    missing: BTreeSet<WorkerId>,
    got: BTreeMap<WorkerId, WorkerStats>,
}

#[derive(Default)]
pub(super) struct Asks {
    open: BTreeMap<u64, Ask>,
    next: u64,
}

impl Asks {
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Notes an answer; gives the request if it was the last one missing.
    pub fn answered(&mut self, number: u64, worker: WorkerId, stats: WorkerStats) -> Option<Ask> {
        let ask = self.open.get_mut(&number)?;
        if ask.missing.remove(&worker) {
            ask.got.insert(worker, stats);
        }
        if ask.missing.is_empty() { self.open.remove(&number) } else { None }
    }

    /// A worker will not answer any more.
    pub fn worker_gone(&mut self, worker: WorkerId) -> Vec<Ask> {
        for ask in self.open.values_mut() {
            ask.missing.remove(&worker);
        }
        self.take(|ask| ask.missing.is_empty())
    }

    /// Requests that have waited long enough.
    pub fn overdue(&mut self, now: u64, patience: u64) -> Vec<Ask> {
        self.take(|ask| now >= ask.since + patience)
    }

    fn take(&mut self, which: impl Fn(&Ask) -> bool) -> Vec<Ask> {
        let numbers: Vec<u64> = self.open.iter().filter(|(_, ask)| which(ask)).map(|(n, _)| *n).collect();
        numbers.iter().filter_map(|n| self.open.remove(n)).collect()
    }

    /// The session is over.
    pub fn forget(&mut self, session: SessionId) {
        self.open.retain(|_, ask| ask.session != session);
    }
}

impl Machine {
    /// Has all workers tidy up their memory.
    pub(super) fn tidy(&mut self, now: u64, session: SessionId, what: Tidy, out: &mut Vec<Action>) {
        if self.sessions.contains_key(&session) {
            self.send_frees(now, session, out);
            out.extend(self.pool.iter().map(|(id, _)| Action::ToWorker(id, WorkerCmd::Tidy { what })));
        }
    }

    /// Whoever deletes a tensor and then asks for the memory in use, or tidies up, is to see it fall.
    fn send_frees(&mut self, now: u64, session: SessionId, out: &mut Vec<Action>) {
        self.with_session(now, session, out, |session, cx| {
            session.flush_frees(cx, 1);
            Ok(())
        });
    }

    pub(super) fn ask_stats(&mut self, now: u64, session: SessionId, req: u64, out: &mut Vec<Action>) {
        if !self.sessions.contains_key(&session) {
            return;
        }
        self.send_frees(now, session, out);
        let missing: BTreeSet<WorkerId> = self.pool.iter().map(|(id, _)| id).collect();
        let ask = Ask { session, req, since: now, missing, got: BTreeMap::new() };
        if ask.missing.is_empty() {
            return self.answer_stats(ask, out);
        }
        self.asks.next += 1;
        let number = self.asks.next;
        out.extend(ask.missing.iter().map(|w| Action::ToWorker(*w, WorkerCmd::Stats { req: number })));
        self.asks.open.insert(number, ask);
        self.wants_tick = true;
    }

    /// The counters themselves are outside the count of messages, so that asking does not change the answer.
    pub(super) fn answer_stats(&mut self, mut ask: Ask, out: &mut Vec<Action>) {
        for (worker, stats) in &mut ask.got {
            stats.queued = self.pool.get(*worker).map_or(0, |w| w.queued);
        }
        // In the order in which signals count them.
        let mut got: Vec<(WorkerId, WorkerStats)> = ask.got.into_iter().collect();
        got.sort_by_key(|(worker, _)| self.pool.get(*worker).map(|w| w.position));
        let sessions = self.sessions.len() as u64;
        let Some(session) = self.sessions.get(&ask.session) else { return };
        let c = &session.counters;
        let stats = Stats {
            messages: c.messages,
            programs: c.programs,
            instructions: c.instructions,
            moves: c.moves,
            moved_bytes: c.moved_bytes,
            sessions,
            workers: got.into_iter().map(|(_, stats)| stats).collect(),
        };
        out.push(Action::ToClient(ask.session, SessionMsg::Stats { req: ask.req, stats }));
    }
}
