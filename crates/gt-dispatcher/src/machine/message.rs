//! What a client says, in its order: kept while there is no worker, then carried out. `place` has its programs, `transfer`
//! its bytes.

use super::Cx;
use super::gang::Ready;
use super::session::{Session, no_workers};
use gt_ir::{Program, Result, Slot, bail};
use gt_net::msg::{Batch, ClientMsg, WorkerCmd, WorkerId};
use smallvec::SmallVec;
use std::collections::BTreeSet;

/// What one client message becomes: a batch per worker, in order of first use.
pub(super) type Parts = SmallVec<[(WorkerId, Batch); 1]>;

pub(super) fn part(parts: &mut Parts, worker: WorkerId) -> &mut Batch {
    let at = parts.iter().position(|(w, _)| *w == worker).unwrap_or_else(|| {
        parts.push((worker, Batch::default()));
        parts.len() - 1
    });
    &mut parts[at].1
}

impl Session {
    /// Takes a message, or keeps it until there is a worker. An error ends the session.
    pub(super) fn message(&mut self, message: ClientMsg, cx: &mut Cx) -> Result<()> {
        self.counters.messages += 1;
        if self.logs(cx) {
            self.note_client_msg(cx, &message);
        }
        if cx.pool.is_empty() || self.is_held() {
            self.hold(message, cx)
        } else {
            self.act_in_turn(message, cx)
        }
    }

    /// Takes a message, or keeps it behind a program that waits.
    fn act_in_turn(&mut self, message: ClientMsg, cx: &mut Cx) -> Result<()> {
        match self.waits.is_some() && waits_its_turn(&message) {
            true => self.defer(message, cx),
            false => self.act(message, cx),
        }
    }

    pub(super) fn is_held(&self) -> bool {
        !self.held.messages.is_empty()
    }

    fn hold(&mut self, message: ClientMsg, cx: &mut Cx) -> Result<()> {
        if let ClientMsg::Prefix(_) | ClientMsg::Forget { .. } = message {
            // What is to begin early is of no use later.
            return Ok(());
        }
        let held = &mut self.held;
        held.bytes += match &message {
            ClientMsg::Batch(batch) => {
                held.runs += batch.runs.len() as u64;
                if !batch.fetches.is_empty() {
                    held.looked.get_or_insert(cx.now);
                }
                batch.runs.iter().map(|r| program_bytes(&r.program)).sum::<u64>() + 64
            }
            ClientMsg::Upload { data, .. } => data.as_ref().map_or(0, |d| d.len() as u64) + 64,
            ClientMsg::Relay { data, .. } => data.len() as u64 + 64,
            ClientMsg::Sync { .. } => {
                held.synced.get_or_insert(cx.now);
                64
            }
            ClientMsg::Withdraw { .. }
            | ClientMsg::Prefix(_)
            | ClientMsg::Forget { .. }
            | ClientMsg::Carry { .. }
            | ClientMsg::FetchRelay { .. }
            | ClientMsg::Signals { .. }
            | ClientMsg::Stats { .. }
            | ClientMsg::Tidy { .. }
            | ClientMsg::Watch { .. }
            | ClientMsg::Recent
            | ClientMsg::Tensors { .. }
            | ClientMsg::Lines { .. }
            | ClientMsg::Bye => 64,
        };
        // A client out of credit waits for programs to finish, as one that asked does.
        if held.runs >= cx.config.credit_programs {
            held.synced.get_or_insert(cx.now);
        }
        if held.bytes > cx.config.max_held_bytes || held.runs > cx.config.max_unfinished as u64 {
            return Err(no_workers(&cx.config.address));
        }
        held.messages.push_back(message);
        *cx.wants_tick = true;
        Ok(())
    }

    /// Takes the messages that were kept. Without a worker their programs fail.
    pub(super) fn release(&mut self, cx: &mut Cx) -> Result<()> {
        let held = std::mem::take(&mut self.held);
        held.messages.into_iter().try_for_each(|message| self.act_in_turn(message, cx))
    }

    pub(super) fn act(&mut self, message: ClientMsg, cx: &mut Cx) -> Result<()> {
        match message {
            ClientMsg::Batch(batch) => self.batch(batch, cx),
            ClientMsg::Prefix(prefix) => {
                self.prefix(prefix, cx);
                Ok(())
            }
            ClientMsg::Forget { prefix } => {
                self.forget(prefix, None, cx);
                Ok(())
            }
            ClientMsg::Upload { tensor, ty, data } => self.upload(tensor, ty, data, cx),
            ClientMsg::Relay { tensor, data } => self.relay(tensor, data, cx),
            ClientMsg::Carry { tensor } => {
                self.carry(tensor, cx);
                Ok(())
            }
            ClientMsg::Withdraw { tensor, error } => {
                self.withdraw(tensor, error, cx);
                self.resume(cx)
            }
            ClientMsg::FetchRelay { req, tensor, piece } => self.fetch_relay(req, tensor, piece, cx),
            ClientMsg::Sync { seq } if seq > self.last_seq => {
                bail!(Value, "sync: program {seq} was never sent, the last one is {}", self.last_seq)
            }
            ClientMsg::Sync { seq } => {
                self.sync = self.sync.max(Some(seq));
                self.hurry(seq, cx);
                Ok(())
            }
            // These are the machine's.
            ClientMsg::Stats { .. }
            | ClientMsg::Watch { .. }
            | ClientMsg::Recent
            | ClientMsg::Tensors { .. }
            | ClientMsg::Tidy { .. }
            | ClientMsg::Lines { .. }
            | ClientMsg::Bye => Ok(()),
            ClientMsg::Signals { specs } => self.add_signals(specs),
        }
    }

    /// Someone waits for programs: their workers are not to keep the word that they have finished for the next answer, as
    /// they may where values are looked at.
    fn hurry(&mut self, seq: u64, cx: &mut Cx) {
        let looked = |worker: &WorkerId| self.looked.contains(worker);
        let waited = self.pending.range(..=seq).flat_map(|(_, p)| p.workers.iter().copied());
        let workers: BTreeSet<WorkerId> = waited.filter(looked).collect();
        for worker in workers {
            self.send_part(worker, Batch::default(), cx);
        }
    }

    fn batch(&mut self, batch: Batch, cx: &mut Cx) -> Result<()> {
        let mut parts = Parts::new();
        let mut runs = batch.runs.into_iter();
        while let Some(mut run) = runs.next() {
            let ready = self.prepare(&mut run.program, &mut parts, cx);
            if let Ready::Waits(wait) = ready {
                // The rest comes when what it waits for has come.
                let runs = std::iter::once(run).chain(runs).collect();
                let rest = Batch { runs, fetches: batch.fetches, frees: batch.frees };
                self.waits = Some(wait);
                self.deferred.push_front(ClientMsg::Batch(rest));
                return self.send_parts(parts, cx);
            }
            self.run(run, ready, &mut parts, cx)?;
        }
        for fetch in batch.fetches {
            self.fetch(fetch, &mut parts, cx)?;
        }
        for id in batch.frees {
            if self.tensors.get(id).is_some_and(|t| t.freed_by == 0) {
                self.drop_tensor(cx, id, &[]);
            }
        }
        self.send_parts(parts, cx)
    }

    fn send_parts(&mut self, parts: Parts, cx: &mut Cx) -> Result<()> {
        for (worker, batch) in parts {
            self.send_part(worker, batch, cx);
        }
        *cx.wants_tick |= !self.frees.is_empty();
        Ok(())
    }

    pub(super) fn send_part(&mut self, worker: WorkerId, mut batch: Batch, cx: &mut Cx) {
        if let Some(frees) = self.frees.remove(&worker) {
            batch.frees.extend(frees);
        }
        self.tell_worker(cx, worker, WorkerCmd::Batch { session: self.id, batch });
    }
}

/// False for what earlier messages may still need.
fn waits_its_turn(message: &ClientMsg) -> bool {
    match message {
        ClientMsg::Batch(_)
        | ClientMsg::Upload { .. }
        | ClientMsg::Signals { .. }
        | ClientMsg::Sync { .. }
        | ClientMsg::Prefix(_)
        | ClientMsg::Forget { .. } => true,
        ClientMsg::Relay { .. }
        | ClientMsg::Carry { .. }
        | ClientMsg::Withdraw { .. }
        | ClientMsg::FetchRelay { .. }
        | ClientMsg::Watch { .. }
        | ClientMsg::Recent
        | ClientMsg::Tensors { .. }
        | ClientMsg::Tidy { .. }
        | ClientMsg::Stats { .. }
        | ClientMsg::Lines { .. }
        | ClientMsg::Bye => false,
    }
}

/// About how many bytes a program takes.
pub(super) fn program_bytes(program: &Program) -> u64 {
    let data = |slot: &Slot| match slot {
        Slot::Num(_) => 9,
        Slot::Data(bytes) => bytes.len() as u64,
    };
    let ids = program.inputs.len() + program.outs.len() + program.frees.len();
    ids as u64 * 4 + program.slots.iter().map(data).sum::<u64>() + 16
}
