//! What always holds between two events. The simulator checks all of it after each step.
//!
//! - I1  An unfinished program is on a connected worker.
//! - I2  A holder of a tensor is a connected worker that knows of the session.
//! - I3  A worker's load is the sum over what sessions have there: programs, bytes, homes.
//! - I4  Unfinished programs lie between what is completed and what was sent; what was reported is completed.
//! - I5  A tensor with a value has a holder that does not wait for another worker.
//! - I6  A copy on its way is between connected workers, and comes from a holder unless the tensor was dropped.
//! - I7  An unanswered fetch is at a connected worker that knows of the session.
//! - I8  Session and worker agree on whether the one knows of the other.
//! - I9  Messages are kept only while no worker is connected.
//! - I10 A tensor freed by a program is freed by an unfinished one.
//! - I11 Nothing that the client must hear at once has been kept back.
//! - I12 Without sessions, nothing is left of them.
//! - I13 A program that was begun early, and has not come yet, was begun on a connected worker that knows of the session.
//! - I14 A tensor that lies in pieces and has a value is held by every worker of its mesh, none of them waiting.
//! - I15 Messages are deferred only while the session waits, for a plan that was asked for or for tensors on their way.
//! - I16 An unanswered piece of a fetch is at a connected worker that knows of the session.
//! - I17 An answer is kept back only while a program is unfinished whose failure it tells of, or which makes the tensor.

use super::gang::Wait;
use super::{Machine, Session};
use gt_net::msg::WorkerId;
use std::collections::BTreeMap;

impl Machine {
    /// Checks I1 to I17; gives the first that is broken.
    pub fn check_invariants(&self) -> Result<(), String> {
        let mut loads: BTreeMap<WorkerId, (u64, u64, u64)> = BTreeMap::new();
        for session in self.sessions.values() {
            self.check_session(session, &mut loads).map_err(|e| format!("session {}: {e}", session.id.0))?;
        }
        for (id, worker) in self.pool.iter() {
            let load = loads.remove(&id).unwrap_or_default();
            let kept = (worker.queued, worker.live_bytes, worker.homes);
            ensure(load == kept, || format!("I3: worker {} has {kept:?}, sessions say {load:?}", id.0))?;
            for session in &worker.sessions {
                let knows = self.sessions.get(session).is_some_and(|s| s.touched.contains(&id));
                ensure(knows, || format!("I8: worker {} knows session {}", id.0, session.0))?;
            }
        }
        ensure(!self.sessions.is_empty() || self.asks.is_empty(), || "I12: requests for counters".into())
    }

    fn check_session(
        &self,
        s: &Session,
        loads: &mut BTreeMap<WorkerId, (u64, u64, u64)>,
    ) -> Result<(), String> {
        let knows = |worker: WorkerId| {
            s.touched.contains(&worker) && self.pool.get(worker).is_some_and(|w| w.sessions.contains(&s.id))
        };
        for worker in s.touched.iter().chain(s.frees.keys()) {
            ensure(knows(*worker), || format!("I8: worker {}", worker.0))?;
        }
        for (seq, pending) in s.pending.iter().chain(&s.added) {
            ensure(!pending.workers.is_empty(), || format!("I1: program {seq}"))?;
            for worker in &pending.workers {
                ensure(knows(*worker), || format!("I1: program {seq}"))?;
                loads.entry(*worker).or_default().0 += 1;
            }
        }
        for seq in s.pending.keys() {
            ensure(*seq > s.completed() && *seq <= s.last_seq, || format!("I4: program {seq}"))?;
        }
        ensure(s.reported <= s.completed(), || "I4: reported".into())?;
        for (id, tensor) in s.tensors.iter() {
            let broken = |which: &str| format!("{which}: tensor {} {tensor:?}", id.0);
            for holder in tensor.holders.iter() {
                ensure(knows(holder.worker), || broken("I2"))?;
                let from = |w: WorkerId| tensor.holders.iter().any(|h| h.worker == w && h.moving.is_none());
                ensure(holder.moving.is_none_or(from), || broken("I6"))?;
                let moving = s.moves.get(&(id, holder.worker)).map(|m| m.from);
                ensure(holder.moving == moving, || broken("I6"))?;
                loads.entry(holder.worker).or_default().1 += tensor.bytes();
            }
            ensure(tensor.poison.is_some() || tensor.source().is_some(), || broken("I5"))?;
            if let Some(spread) = tensor.spread.as_ref().filter(|_| tensor.poison.is_none()) {
                let held = |w: &WorkerId| tensor.holders.iter().any(|h| h.worker == *w && h.moving.is_none());
                ensure(spread.mesh.workers.iter().all(held), || broken("I14"))?;
            }
            ensure(tensor.freed_by == 0 || s.pending.contains_key(&tensor.freed_by), || broken("I10"))?;
        }
        for ((id, goal), copy) in &s.moves {
            ensure(knows(*goal) && knows(copy.from), || format!("I6: copy of tensor {}", id.0))?;
        }
        for (req, asked) in &s.fetches {
            ensure(knows(asked.worker), || format!("I7: request {req}"))?;
        }
        for late in &s.late {
            ensure(s.is_open(late), || format!("I17: request {}", late.req))?;
        }
        for (req, gather) in &s.gathers {
            let asked = gather.waiting.iter().all(|(worker, ..)| knows(*worker));
            ensure(asked && !gather.waiting.is_empty(), || format!("I16: request {req}"))?;
        }
        let waits = s.waits.is_none_or(|wait| match wait {
            Wait::Plan(ask) => self.meshes.is_asked(ask),
            Wait::Arrivals => s.is_awaited(),
        });
        ensure(waits && (s.waits.is_some() || s.deferred.is_empty()), || "I15".into())?;
        for (prefix, worker) in &s.prefixes {
            ensure(knows(*worker), || format!("I13: prefix {prefix}"))?;
        }
        if let Some(home) = s.home {
            ensure(self.pool.get(home).is_some(), || "I3: home".into())?;
            loads.entry(home).or_default().2 += 1;
        }
        ensure(self.pool.is_empty() || !s.is_held(), || "I9".into())?;
        let quiet = s.news.values.is_empty() && s.news.failures.is_empty();
        ensure(quiet && s.sync.is_none_or(|seq| seq > s.completed()), || "I11".into())
    }
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}
