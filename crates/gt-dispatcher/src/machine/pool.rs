//! The workers that are connected, and how much each has to do.

use super::holders::Holders;
use gt_ir::TensorId;
use gt_net::bulk::{Dir, Endpoint, Ticket, TicketKey};
use gt_net::msg::{SessionId, WorkerId, WorkerInfo};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// One connected worker.
pub(super) struct Worker {
    pub info: WorkerInfo,
    /// What the log calls it.
    pub whom: Arc<str>,
    /// The number by which signals name it.
    pub position: u32,
    /// Programs sent there and not reported as finished.
    pub queued: u64,
    /// Bytes of all tensors held or expected there.
    pub live_bytes: u64,
    /// Sessions that must be ended there.
    pub sessions: BTreeSet<SessionId>,
    /// Sessions that call it home.
    pub homes: u64,
    /// Nothing is heard of it just now: it is given nothing new where others can have it.
    pub silent: bool,
    /// When work was last placed there, for turns among equals.
    placed: u64,
}

#[derive(Default)]
pub(super) struct Pool {
    workers: BTreeMap<WorkerId, Worker>,
    /// The numbers of workers that are gone, with their names: the others keep theirs.
    gone: BTreeMap<u32, String>,
    placements: u64,
    /// How often a worker has come or gone.
    state: u64,
}

/// What a queued program or a session counts for, in bytes, when loads are compared.
const PROGRAM_LOAD: u64 = 1 << 20;

/// What the log calls a worker.
pub(super) fn whom(info: &WorkerInfo) -> Arc<str> {
    format!("WORKER {}", info.name).into()
}

impl Pool {
    pub fn add(&mut self, id: WorkerId, info: WorkerInfo) {
        let (whom, sessions) = (whom(&info), BTreeSet::new());
        self.state += 1;
        let position = self.free_position(&info.name);
        let (queued, live_bytes, homes, silent, placed) = Default::default();
        let worker = Worker { info, whom, position, queued, live_bytes, sessions, homes, silent, placed };
        self.workers.insert(id, worker);
    }

    /// The number of a worker that comes: that of the one of this name that went, else the lowest that is free.
    fn free_position(&mut self, name: &str) -> u32 {
        let own = self.gone.iter().find(|(_, gone)| *gone == name);
        let free = own.or(self.gone.iter().next()).map(|(position, _)| *position);
        match free {
            Some(position) => {
                self.gone.remove(&position);
                position
            }
            None => self.workers.len() as u32,
        }
    }

    /// The numbers of those that are there, in order.
    pub fn positions(&self) -> Vec<u32> {
        let mut positions: Vec<u32> = self.workers.values().map(|w| w.position).collect();
        positions.sort_unstable();
        positions
    }

    /// The worker of a number, if it is there.
    pub fn at(&self, position: u32) -> Option<WorkerId> {
        self.workers.iter().find(|(_, w)| w.position == position).map(|(id, _)| *id)
    }

    pub fn remove(&mut self, id: WorkerId) -> Option<Worker> {
        self.state += 1;
        let gone = self.workers.remove(&id)?;
        self.gone.insert(gone.position, gone.info.name.clone());
        Some(gone)
    }

    /// A number that stays as it is while the same workers are connected.
    pub fn state(&self) -> u64 {
        self.state
    }

    pub fn get(&self, id: WorkerId) -> Option<&Worker> {
        self.workers.get(&id)
    }

    /// What the log calls a worker.
    pub fn whom(&self, id: WorkerId) -> Arc<str> {
        self.workers.get(&id).map_or_else(|| "WORKER ?".into(), |worker| worker.whom.clone())
    }

    pub fn get_mut(&mut self, id: WorkerId) -> Option<&mut Worker> {
        self.workers.get_mut(&id)
    }

    pub fn len(&self) -> usize {
        self.workers.len()
    }

    pub fn is_empty(&self) -> bool {
        self.workers.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (WorkerId, &Worker)> {
        self.workers.iter().map(|(id, w)| (*id, w))
    }

    /// The worker with the least to do; equals take turns.
    pub fn least_loaded(&mut self) -> Option<WorkerId> {
        let load = |w: &Worker| w.live_bytes + (w.queued + w.homes) * PROGRAM_LOAD;
        let (id, worker) = self.workers.iter_mut().min_by_key(|(_, w)| (w.silent, load(w), w.placed))?;
        self.placements += 1;
        worker.placed = self.placements;
        Some(*id)
    }

    /// Notes that a worker holds, or will hold, `bytes` more.
    pub fn hold(&mut self, worker: WorkerId, bytes: u64) {
        if let Some(w) = self.workers.get_mut(&worker) {
            w.live_bytes += bytes;
        }
    }

    /// Undoes `hold`.
    pub fn release(&mut self, worker: WorkerId, bytes: u64) {
        if let Some(w) = self.workers.get_mut(&worker) {
            w.live_bytes = w.live_bytes.saturating_sub(bytes);
        }
    }

    /// Undoes `hold` for each holder of a tensor.
    pub fn release_all(&mut self, holders: &Holders, bytes: u64) {
        holders.iter().for_each(|holder| self.release(holder.worker, bytes));
    }

    /// Where to bring a tensor's bytes, with a ticket, if the worker has a bulk plane.
    pub fn grant(
        &self,
        worker: WorkerId,
        session: SessionId,
        tensor: TensorId,
        bytes: u64,
        expires_ms: u64,
    ) -> Option<(Endpoint, Ticket)> {
        let info = &self.workers.get(&worker)?.info;
        let at = info.endpoint.clone()?;
        let ticket = TicketKey(info.ticket_key).sign(session.0, tensor.0, bytes, Dir::Put, expires_ms);
        Some((at, ticket))
    }
}
