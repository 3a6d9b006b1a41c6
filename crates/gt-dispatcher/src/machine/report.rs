//! What workers say, what becomes of a session when one is lost, and what its client is told.

use super::gang::ADDED;
use super::message::Parts;
use super::session::{Asked, Late, Move, Pending, Session, no_workers};
use super::tensor::{Joined, Spread, Tensor};
use super::{Action, Carry, Cx, Way};
use gt_ir::{Error, Result, TensorId};
use gt_net::msg::{Batch, Bytes, ClientMsg, Failure, Fetch, Payload, SessionMsg, Value, WorkerCmd, WorkerId};
use smallvec::SmallVec;
use std::sync::Arc;

/// Frees that may wait for the next message to a worker.
const MAX_FREES: usize = 1024;
/// Bytes of dropped tensors that do not wait for it.
const MUCH: u64 = 8 << 20;
/// Failures of added programs that are remembered.
const RETOLD: usize = 64;

impl Session {
    /// Programs have finished and values have come. What does not fit what was asked of the worker is ignored.
    pub(super) fn worker_update(
        &mut self,
        worker: WorkerId,
        finished: Vec<u64>,
        values: Vec<Value>,
        mut failures: Vec<(u64, Failure)>,
        spared: &[TensorId],
        cx: &mut Cx,
    ) {
        self.counters.messages += 1;
        if self.logs(cx) {
            self.note_update(cx, worker, &finished, &values, &failures);
        }
        failures.retain(|(seq, _)| self.unfinished(*seq).is_some_and(|p| p.workers.contains(&worker)));
        let failed: SmallVec<[u64; 2]> = failures.iter().map(|(seq, _)| *seq).collect();
        for (seq, failure) in failures {
            self.done_at(worker, seq, Some((failure, spared.to_vec())), cx);
        }
        // One that failed may have been sent again by now.
        for seq in finished.into_iter().filter(|seq| !failed.contains(seq)) {
            self.done_at(worker, seq, None, cx);
        }
        for value in values {
            if self.gathers.contains_key(&value.req) {
                self.got_piece(worker, value);
            } else if self.fetches.get(&value.req).is_some_and(|a| a.worker == worker) {
                let Some(Asked { tensor, remade, .. }) = self.fetches.remove(&value.req) else { continue };
                match value.result {
                    Err(failure) => self.tell_failure(Late { req: value.req, tensor, failure }, remade),
                    Ok(payload) => {
                        if let Payload::Bulk { .. } = payload {
                            self.granted(value.req, worker);
                        }
                        self.news.values.push(Value { req: value.req, result: Ok(payload) });
                    }
                }
            }
        }
        self.tell_late(cx);
    }

    /// Answers that there is no value, or waits until that is certain.
    pub(super) fn tell_failure(&mut self, late: Late, remade: bool) {
        if remade || self.is_open(&late) {
            return self.late.push(late);
        }
        let result = Err(self.retell(late.failure));
        self.news.values.push(Value { req: late.req, result });
    }

    /// True if the tensor may get a value after all: a program that failed is not known in full, or one that makes the
    /// tensor is under way.
    pub(super) fn is_open(&self, late: &Late) -> bool {
        let mut unfinished = self.pending.iter().chain(&self.added);
        unfinished.any(|(seq, p)| *seq == late.failure.root || p.outs().contains(&late.tensor))
    }

    /// Answers what was kept back and is certain now: tensors that have a value are asked for again.
    fn tell_late(&mut self, cx: &mut Cx) {
        if self.late.is_empty() {
            return;
        }
        let mut parts = Parts::new();
        for late in std::mem::take(&mut self.late) {
            if self.is_open(&late) {
                self.late.push(late);
                continue;
            }
            let Late { req, tensor, failure } = late;
            let known = self.tensors.get(tensor).filter(|t| t.freed_by == 0);
            let told = match known {
                Some(Tensor { poison: Some(why), .. }) => Err((**why).clone()),
                Some(_) => self.fetch(Fetch { req, tensor }, &mut parts, cx).map_err(|error| Failure {
                    root: 0,
                    instr: None,
                    error,
                }),
                None => Err(self.retell(failure)),
            };
            if let Err(failure) = told {
                self.news.values.push(Value { req, result: Err(failure) });
            }
        }
        for (worker, batch) in parts {
            self.send_part(worker, batch, cx);
        }
    }

    /// A failure as the client can place it: what failed in a program that was added is an instruction of its own.
    fn retell(&self, failure: Failure) -> Failure {
        let told = self.retold.iter().find(|(seq, _)| *seq == failure.root);
        told.map_or(failure, |(_, told)| told.clone())
    }

    pub(super) fn unfinished(&mut self, seq: u64) -> Option<&mut Pending> {
        if seq > ADDED { self.added.get_mut(&seq) } else { self.pending.get_mut(&seq) }
    }

    /// A worker is done with a program, well or badly. The program is done when all its workers are.
    fn done_at(
        &mut self,
        worker: WorkerId,
        seq: u64,
        failure: Option<(Failure, Vec<TensorId>)>,
        cx: &mut Cx,
    ) {
        let Some(pending) = self.unfinished(seq) else { return };
        let Some(at) = pending.workers.iter().position(|w| *w == worker) else { return };
        pending.workers.remove(at);
        if pending.failure.is_none() {
            pending.failure = failure;
        }
        let left = !pending.workers.is_empty();
        if let Some(worker) = cx.pool.get_mut(worker) {
            worker.queued -= 1;
        }
        if left {
            return;
        }
        let map = if seq > ADDED { &mut self.added } else { &mut self.pending };
        let Some(mut done) = map.remove(&seq) else { return };
        if self.pending.is_empty() {
            self.looked.clear();
        }
        match done.failure.take() {
            None => self.drop_freed(cx, done.frees, done.mesh.as_deref(), &done.ran),
            Some((failure, spared)) => self.failed(seq, done, failure, spared, cx),
        }
    }

    /// The program's results get the root cause, but for those it spared; what it would have freed stays (C5).
    fn failed(
        &mut self,
        seq: u64,
        done: Pending,
        mut failure: Failure,
        mut spared: Vec<TensorId>,
        cx: &mut Cx,
    ) {
        if let Some(origins) = done.origins.as_ref().filter(|_| failure.root == seq) {
            failure.instr = failure.instr.and_then(|i| origins.get(i as usize).copied());
        }
        let lost = matches!(failure.error, Error::Connection(_));
        let own = failure.root == seq && !lost;
        let done = match failure.root == seq || lost {
            true => done,
            false => match self.send_again(seq, done, cx) {
                Some(done) => done,
                None => return,
            },
        };
        if let (Some(whole), Some(instr), true) = (&done.whole, failure.instr, own) {
            spared = self.rescue(whole, done.rest.as_ref(), instr as usize, cx);
        }
        if let (Some(rest), true) = (&done.rest, own) {
            let instr = failure.instr.and_then(|i| rest.kept.get(i as usize).copied());
            failure = Failure { root: rest.root, instr, error: failure.error };
            if self.retold.len() == RETOLD {
                self.retold.pop_front();
            }
            self.retold.push_back((seq, failure.clone()));
        } else {
            failure = self.retell(failure);
        }
        if let (Some(was), [id], true) = (&done.joins, done.outs(), own)
            && self.in_pieces_again(*id, was, cx)
        {
            spared.push(*id);
        }
        for id in done.outs() {
            if let Some(tensor) = self.tensors.get_mut(*id).filter(|_| !spared.contains(id)) {
                tensor.poison = Some(Box::new(failure.clone()));
            }
        }
        for id in done.frees {
            if let Some(tensor) = self.tensors.get_mut(id) {
                tensor.freed_by = 0;
            }
        }
        if seq < ADDED {
            self.news.failures.push((seq, failure));
        }
    }

    /// A tensor could not be put together: its pieces are where they were, and stay there. False if there is more of it
    /// elsewhere by now, which will not come.
    fn in_pieces_again(&mut self, id: TensorId, was: &Arc<Spread>, cx: &mut Cx) -> bool {
        let fits = |t: &&mut Tensor| t.poison.is_none() && t.holders.mesh() == Some(&was.mesh);
        let Some(tensor) = self.tensors.get_mut(id).filter(fits) else { return false };
        tensor.joined = Joined::Cannot;
        self.lies_now(id, Some(was.clone()), cx);
        true
    }

    /// A `Send` is done: the copy has arrived, or is here to be passed on, or will never come.
    pub(super) fn moved(
        &mut self,
        from: WorkerId,
        id: TensorId,
        goal: Option<WorkerId>,
        result: Result<Option<Bytes>, Failure>,
        cx: &mut Cx,
    ) {
        self.counters.messages += 1;
        if self.logs(cx) {
            self.note_moved(cx, from, id, goal, &result);
        }
        let Some(goal) = goal else { return self.relayed(from, id, result, cx) };
        if self.moves.get(&(id, goal)).is_none_or(|m| m.from != from) {
            return;
        }
        self.moves.remove(&(id, goal));
        if let Some(tensor) = self.tensors.get_mut(id) {
            tensor.facts().holders.set_moving(goal, None);
        }
        let session = self.id;
        match result {
            Ok(None) => {}
            Ok(Some(data)) => self.tell_worker(cx, goal, WorkerCmd::Fulfil { session, tensor: id, data }),
            Err(failure) => {
                self.copy_failed(id, goal, &failure, cx);
                self.tell_worker(cx, goal, WorkerCmd::Poison { session, tensor: id, failure });
            }
        }
    }

    /// A copy will never come, because the tensor has no value or only because the road is closed.
    fn copy_failed(&mut self, id: TensorId, goal: WorkerId, failure: &Failure, cx: &mut Cx) {
        let Some(tensor) = self.tensors.get_mut(id) else { return };
        // A program over several workers would only ask for the same copy again.
        let again = self.waits.is_none();
        if again && tensor.poison.is_none() && matches!(failure.error, Error::Connection(_)) {
            tensor.facts().holders.remove(goal);
            cx.pool.release(goal, tensor.bytes());
            self.frees.entry(goal).or_default().push(id);
        } else {
            tensor.poison.get_or_insert_with(|| Box::new(failure.clone()));
        }
    }

    /// The bytes that a client asked for, or the word that they follow in pieces.
    fn relayed(&mut self, from: WorkerId, id: TensorId, result: Result<Option<Bytes>, Failure>, cx: &mut Cx) {
        let Some(at) = self.relays.iter().position(|(w, t, _)| *w == from && *t == id) else { return };
        let (_, _, req) = self.relays.remove(at);
        let result = match result {
            Ok(None) => {
                let (worker, way) = (Some(from), Way::Down { req });
                return cx.out.push(Action::Carry(Carry { session: self.id, tensor: id, worker, way }));
            }
            Ok(Some(data)) => Ok(Payload::Inline(data)),
            Err(failure) => Err(failure),
        };
        self.news.values.push(Value { req, result });
    }

    /// A worker is gone: its programs fail, tensors that were only there have no value any more, and copies that
    /// were on their way from it are taken from elsewhere.
    pub(super) fn worker_lost(&mut self, worker: WorkerId, name: &str, reason: &str, cx: &mut Cx) {
        let why = |root: u64| Failure {
            root,
            instr: None,
            error: Error::Connection(format!(
                "worker {name} was lost ({reason}), tensors on it are gone: make them again, or load a checkpoint"
            )),
        };
        self.touched.remove(&worker);
        self.frees.remove(&worker);
        self.arriving.retain(|_, at| *at != worker);
        self.prefixes.retain(|_, at| *at != worker);
        if self.home == Some(worker) {
            self.home = None;
        }
        let unfinished: Vec<u64> = self
            .pending
            .iter()
            .chain(&self.added)
            .filter(|(_, p)| p.workers.contains(&worker))
            .map(|(seq, _)| *seq)
            .collect();
        for seq in unfinished {
            self.done_at(worker, seq, Some((why(seq), Vec::new())), cx);
        }
        self.moves.retain(|(_, goal), _| *goal != worker);
        let mut ids: Vec<TensorId> =
            self.tensors.iter().filter(|(_, t)| t.is_at(worker)).map(|(id, _)| id).collect();
        ids.sort_unstable();
        for id in ids {
            let Some(tensor) = self.tensors.get_mut(id) else { continue };
            tensor.facts().holders.remove(worker);
            if tensor.source().is_none() || tensor.spread.is_some() {
                tensor.poison.get_or_insert_with(|| Box::new(why(0)));
            }
        }
        let stranded: Vec<(TensorId, WorkerId)> =
            self.moves.iter().filter(|(_, m)| m.from == worker).map(|(at, _)| *at).collect();
        for (id, goal) in stranded {
            self.rescue_copy(id, goal, why(0), cx);
        }
        let asked: Vec<(u64, TensorId)> = self
            .fetches
            .iter()
            .filter(|(_, a)| a.worker == worker)
            .map(|(req, a)| (*req, a.tensor))
            .collect();
        for (req, tensor) in asked {
            self.fetches.remove(&req);
            self.ask_again(req, tensor, why(0), cx);
        }
        let asked: Vec<u64> = self
            .gathers
            .iter()
            .filter(|(_, g)| g.waiting.iter().any(|(w, ..)| *w == worker))
            .map(|(req, _)| *req)
            .collect();
        for req in asked {
            self.gathers.remove(&req);
            self.news.values.push(Value { req, result: Err(why(0)) });
        }
        self.tell_late(cx);
        let (lost, kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.relays).into_iter().partition(|(w, _, _)| *w == worker);
        self.relays = kept;
        for (_, _, req) in lost {
            self.news.values.push(Value { req, result: Err(why(0)) });
        }
    }

    /// Takes a copy whose source is gone from another holder, or gives it up.
    fn rescue_copy(&mut self, id: TensorId, goal: WorkerId, why: Failure, cx: &mut Cx) {
        let Some(Move { ty, .. }) = self.moves.remove(&(id, goal)) else { return };
        let (mut source, mut failure) = (None, why);
        if let Some(tensor) = self.tensors.get_mut(id) {
            source = tensor.source();
            tensor.facts().holders.set_moving(goal, source);
            failure = tensor.poison.as_deref().cloned().unwrap_or(failure);
        }
        match source {
            Some(source) => {
                // What is still being put together there is sent after that.
                let now = !self.added.values().any(|p| p.outs().contains(&id));
                self.send_copy(id, ty, source, goal, now, cx)
            }
            None => self.tell_worker(cx, goal, WorkerCmd::Poison { session: self.id, tensor: id, failure }),
        }
    }

    /// Asks another holder for a value, or answers why there is none.
    fn ask_again(&mut self, req: u64, tensor: TensorId, why: Failure, cx: &mut Cx) {
        let known = self.tensors.get(tensor);
        match known.filter(|t| t.poison.is_none()).and_then(|t| t.source()) {
            Some(worker) => {
                self.fetches.insert(req, Asked { worker, tensor, remade: false });
                let batch = Batch { fetches: vec![Fetch { req, tensor }], ..Batch::default() };
                self.send_part(worker, batch, cx);
            }
            None => {
                let failure = known.and_then(|t| t.poison.as_deref().cloned()).unwrap_or(why);
                self.news.values.push(Value { req, result: Err(failure) });
            }
        }
    }

    /// Tells the client what it needs to know now; the rest waits (the message budget).
    pub(super) fn report(&mut self, cx: &mut Cx) {
        let completed = self.completed();
        if completed > self.progress.1 {
            self.progress = (cx.now, completed);
        }
        let news = !self.news.values.is_empty() || !self.news.failures.is_empty();
        let credit = completed - self.reported >= (cx.config.credit_programs / 2).max(1);
        let asked = self.sync.is_some_and(|seq| completed >= seq);
        if news || credit || asked {
            self.update(cx);
        }
        // Much memory does not wait: the next program may take it over.
        self.flush_frees(cx, if self.freed_bytes >= MUCH { 1 } else { MAX_FREES });
        if self.frees.is_empty() {
            self.freed_bytes = 0;
        }
        *cx.wants_tick |= !self.frees.is_empty() || self.settles() || self.is_held();
    }

    fn update(&mut self, cx: &mut Cx) {
        let completed = self.completed();
        self.reported = completed;
        self.sync = self.sync.filter(|seq| *seq > completed);
        let news = std::mem::take(&mut self.news);
        let (values, failures) = (news.values, news.failures);
        self.tell_client(cx, SessionMsg::Update { completed, values, failures });
    }

    /// True when all is done and the client has not been told.
    fn settles(&self) -> bool {
        self.pending.is_empty() && self.last_seq > self.reported
    }

    /// Sends frees that have waited for a message to ride with, where there are at least `least`.
    pub(super) fn flush_frees(&mut self, cx: &mut Cx, least: usize) {
        let ready: Vec<WorkerId> =
            self.frees.iter().filter(|(_, f)| f.len() >= least).map(|(w, _)| *w).collect();
        for worker in ready {
            self.send_part(worker, Batch::default(), cx);
        }
    }

    pub(super) fn tick(&mut self, cx: &mut Cx) -> Result<()> {
        self.flush_frees(cx, 1);
        if self.settles() && cx.now >= self.progress.0 + cx.config.settle_ms {
            self.update(cx);
        }
        let overdue = |since: Option<u64>| since.is_some_and(|t| cx.now >= t + cx.config.no_worker_ms);
        if overdue(self.held.synced) {
            return self.release(cx);
        }
        if overdue(self.held.looked) {
            self.held.looked = None;
            let failure = Failure { root: 0, instr: None, error: no_workers(&cx.config.address) };
            for message in &mut self.held.messages {
                let ClientMsg::Batch(batch) = message else { continue };
                for fetch in batch.fetches.drain(..) {
                    self.news.values.push(Value { req: fetch.req, result: Err(failure.clone()) });
                }
            }
        }
        Ok(())
    }
}
