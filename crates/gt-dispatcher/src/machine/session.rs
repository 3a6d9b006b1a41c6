//! One client's session: its tensors, its unfinished programs, and what is on its way to and from workers.

use super::Cx;
use super::course::Taken;
use super::gang::{ADDED, Sharding, Wait};
use super::log::Log;
use super::mesh::Mesh;
use super::signals::Signals;
use super::tensor::{Spread, Tensor};
use super::tensors::Tensors;
use crate::shard::Divided;
use foldhash::fast::FixedState;
use gt_ir::{Error, Result, TensorId, Ty, bail};
use gt_net::compiling::Compiling;
use gt_net::msg::{ClientMsg, Failure, Piece, SessionId, SessionMsg, Share, Value, WorkerCmd, WorkerId};
use gt_net::observe::Detail;
use smallvec::SmallVec;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use super::Action;

/// A copy on its way to a worker. It arrives even if the client drops the tensor meanwhile: programs wait for it.
#[derive(Debug)]
pub(super) struct Move {
    pub from: WorkerId,
    pub ty: Ty,
}

/// A copy that was brought to a worker, remembered for whoever asks why.
#[derive(Debug)]
pub(super) struct Moved {
    pub at: u64,
    /// The program that needed it.
    pub seq: u64,
    pub tensor: TensorId,
    pub bytes: u64,
    pub from: WorkerId,
    pub to: WorkerId,
}

/// Copies remembered.
const MAX_MOVED: usize = 256;

/// A program sent to workers and not reported as finished by all of them.
#[derive(Debug)]
pub(super) struct Pending {
    /// The workers that have not reported, and all of them.
    pub workers: SmallVec<[WorkerId; 1]>,
    pub ran: SmallVec<[WorkerId; 1]>,
    /// Why it failed, so far; and what it could spare.
    pub failure: Option<(Failure, Vec<TensorId>)>,
    /// For a program that was divided: the instruction of the whole that each of its own belongs to.
    pub origins: Option<Arc<Vec<u32>>>,
    /// And the whole program itself, to be run again without what failed.
    pub whole: Option<Box<Share>>,
    /// The mesh that all its workers are.
    pub mesh: Option<Arc<Mesh>>,
    /// What it is left of, if it was added after a failure.
    pub rest: Option<Rest>,
    /// How often it was sent again, because what it reads was computed again.
    pub again: u8,
    /// What it makes, unless the whole program says so.
    outs: Vec<TensorId>,
    /// How the tensor lay that it puts together, if that is what it does.
    pub joins: Option<Arc<Spread>>,
    /// What it frees if it succeeds, dying inputs included.
    pub frees: Vec<TensorId>,
}

impl Pending {
    pub fn new(workers: &[WorkerId], outs: Vec<TensorId>, frees: Vec<TensorId>) -> Pending {
        let workers = SmallVec::from_slice(workers);
        let ran = workers.clone();
        Pending {
            ran,
            workers,
            failure: None,
            origins: None,
            whole: None,
            mesh: None,
            rest: None,
            again: 0,
            outs,
            joins: None,
            frees,
        }
    }

    /// One that puts a tensor together, which lies so.
    pub fn joining(id: TensorId, spread: &Arc<Spread>) -> Pending {
        let joins = Some(spread.clone());
        Pending { joins, ..Pending::new(&spread.mesh.workers, vec![id], Vec::new()) }
    }

    /// One that was sent because of a failure.
    pub fn after(self, rest: Option<Rest>, again: u8) -> Pending {
        Pending { rest, again, ..self }
    }

    /// What it puts together is computed again: if it fails, that is of before.
    pub fn put_off(&mut self) {
        self.outs.clear();
        self.joins = None;
    }

    /// A program that was divided over a mesh.
    pub fn divided(whole: Share, mesh: &Arc<Mesh>, divided: &Divided, frees: Vec<TensorId>) -> Pending {
        Pending {
            origins: divided.parts.first().map(|part| part.origins.clone()),
            whole: Some(Box::new(whole)),
            mesh: Some(mesh.clone()),
            ..Pending::new(&mesh.workers, Vec::new(), frees)
        }
    }

    /// What it makes.
    pub fn outs(&self) -> &[TensorId] {
        self.whole.as_ref().map_or(&self.outs, |whole| &whole.ids.outs)
    }
}

/// What is left of a program without the instructions that failed.
#[derive(Clone, Debug)]
pub(super) struct Rest {
    /// The client's program.
    pub root: u64,
    /// Which of its instructions each one is.
    pub kept: Vec<u32>,
}

/// A fetch of a tensor that lies on several workers.
#[derive(Debug)]
pub(super) struct Gather {
    pub tensor: TensorId,
    /// Who has not answered, and where their pieces begin and end.
    pub waiting: Vec<(WorkerId, Vec<u64>, Vec<u64>)>,
    /// The pieces that have come, and from whom.
    pub got: Vec<Piece>,
    pub from: Vec<WorkerId>,
    /// Why one of them has none.
    pub failure: Option<Failure>,
    /// The tensor has been computed again since it was asked for: who says that it has no value may not know that.
    pub remade: bool,
}

/// A fetch that a worker has not answered.
#[derive(Debug)]
pub(super) struct Asked {
    pub worker: WorkerId,
    pub tensor: TensorId,
    /// As in `Gather`.
    pub remade: bool,
}

/// An answer that tells of a failure, kept back until it is known in full: the tensor may get a value after all.
#[derive(Debug)]
pub(super) struct Late {
    pub req: u64,
    pub tensor: TensorId,
    pub failure: Failure,
}

/// What the client will be told with the next update.
#[derive(Debug, Default)]
pub(super) struct News {
    pub values: Vec<Value>,
    pub failures: Vec<(u64, Failure)>,
}

/// Sums over a session's life.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub messages: u64,
    pub programs: u64,
    pub instructions: u64,
    pub moves: u64,
    pub moved_bytes: u64,
}

/// Messages kept while no worker is connected.
#[derive(Debug, Default)]
pub(super) struct Held {
    pub messages: VecDeque<ClientMsg>,
    pub bytes: u64,
    pub runs: u64,
    /// When someone began to wait for a value.
    pub looked: Option<u64>,
    /// When someone began to wait for programs to finish.
    pub synced: Option<u64>,
}

/// Where a session's log goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogTo {
    pub file: bool,
    pub debug: bool,
    /// The client watches itself.
    pub trace: bool,
}

/// One client's session.
pub struct Session {
    pub id: SessionId,
    pub(super) name: String,
    /// What the log calls its client.
    pub(super) whom: Arc<str>,
    /// Places all work on the least-loaded worker instead of at home (`GT_PLACEMENT=spread`).
    pub(super) spread: bool,
    pub(super) log: Option<Box<Log>>,
    /// The client reads its log on stderr (`GT_DEBUG_DISPATCHER`), in a file (`GT_INSTRUCTION_LOG`), or both.
    pub(super) log_to: LogTo,
    /// How closely the client watches its own work, and how closely its log does.
    pub(super) own: Detail,
    pub(super) file_detail: Detail,
    /// What the client wants to see of its workers (`GT_DEBUG_WORKER`, `GT_DEBUG_COMPILE`).
    watch: (bool, bool),
    /// How its programs are to be compiled (`GT_AUTO_COMPILE` and its kin).
    compiling: Compiling,
    /// Where its programs run unless there is a reason against it.
    pub(super) home: Option<WorkerId>,
    pub(super) tensors: Tensors,
    /// How often the inputs of a program were looked through.
    pub(super) reads: u64,
    /// How its programs went over meshes, by plan key.
    pub(super) courses: HashMap<u64, Taken, FixedState>,
    /// No tensor with a higher number has come so far.
    pub(super) newest: TensorId,
    /// The number of the last program received.
    pub(super) last_seq: u64,
    pub(super) pending: BTreeMap<u64, Pending>,
    /// Where programs were begun that have not come yet, by the number of their prefix.
    pub(super) prefixes: BTreeMap<u64, WorkerId>,
    pub(super) fetches: BTreeMap<u64, Asked>,
    pub(super) gathers: BTreeMap<u64, Gather>,
    /// How its programs are divided over workers, if they are (`GT_AUTO_SHARD`).
    pub(super) sharding: Option<Sharding>,
    /// Programs the dispatcher itself has added, by numbers far above the client's.
    pub(super) added: BTreeMap<u64, Pending>,
    pub(super) last_added: u64,
    pub(super) late: Vec<Late>,
    /// The last failures of added programs, as failures of the client's.
    pub(super) retold: VecDeque<(u64, Failure)>,
    /// Messages that wait for `waits`.
    pub(super) deferred: VecDeque<ClientMsg>,
    /// Workers that were asked for values since all programs had finished: they may keep the word that others have.
    pub(super) looked: BTreeSet<WorkerId>,
    /// Uploads whose bytes are not at their worker yet, where that matters.
    pub(super) arriving: BTreeMap<TensorId, WorkerId>,
    pub(super) waits: Option<Wait>,
    /// Copies on their way, by tensor and goal.
    pub(super) moves: BTreeMap<(TensorId, WorkerId), Move>,
    /// Values asked for as bytes in a message: (worker, tensor, request).
    pub(super) relays: Vec<(WorkerId, TensorId, u64)>,
    /// The last answers that went out as bulk tickets: (request, worker).
    pub(super) granted: VecDeque<(u64, WorkerId)>,
    /// The last uploads that were sent to the bulk plane; their bytes may yet come here to be relayed.
    pub(super) uploads: VecDeque<(TensorId, WorkerId, Ty)>,
    /// Frees that go with the next message to a worker.
    pub(super) frees: BTreeMap<WorkerId, Vec<TensorId>>,
    /// The bytes of tensors dropped since there were none.
    pub(super) freed_bytes: u64,
    /// Workers that know of this session.
    pub(super) touched: BTreeSet<WorkerId>,
    pub(super) signals: Signals,
    /// The client was told of workers that its programs are not divided over.
    pub(super) told_apart: Cell<bool>,
    pub(super) held: Held,
    pub(super) news: News,
    /// What the client was told last.
    pub(super) reported: u64,
    /// The client waits for this program.
    pub(super) sync: Option<u64>,
    /// When `completed` last grew, and to what.
    pub(super) progress: (u64, u64),
    pub(super) counters: Counters,
    /// The last copies.
    pub(super) moved: VecDeque<Moved>,
}

/// Answers remembered in `granted`.
const REMEMBERED: usize = 256;
/// Uploads remembered in `uploads`: a client without a direct road may have so many on their way.
const MAX_UPLOADS: usize = 1 << 16;

impl Session {
    /// Fails on variables that cannot be meant.
    pub(super) fn new(id: SessionId, name: String, vars: &[(String, String)]) -> Result<Session> {
        let var = |name: &str| vars.iter().find(|(n, v)| n == name && !v.is_empty()).map(|(_, v)| v.as_str());
        let on = |name: &str| gt_ir::env::switch(name, var(name));
        let compiling = Compiling::read(|name| var(name).map(str::to_string))?;
        let full = on("GT_INSTRUCTION_LOG_FULL")?;
        let spread = match var("GT_PLACEMENT") {
            None => false,
            Some("spread") => true,
            Some(other) => bail!(Value, "GT_PLACEMENT: expected `spread` or nothing, got {other:?}"),
        };
        let log_to = LogTo {
            file: var("GT_INSTRUCTION_LOG").is_some(),
            debug: on("GT_DEBUG_DISPATCHER")?,
            trace: false,
        };
        let file_detail = match log_to.file {
            true if on("GT_INSTRUCTION_LOG_KERNELS")? => Detail::Kernels,
            true => Detail::Programs,
            false => Detail::Nothing,
        };
        Ok(Session {
            id,
            whom: format!("CLIENT {name}").into(),
            name,
            spread,
            log: (log_to.file || log_to.debug).then(|| Box::new(Log::new(true, full))),
            log_to,
            own: Detail::Nothing,
            file_detail,
            watch: (on("GT_DEBUG_WORKER")?, on("GT_DEBUG_COMPILE")?),
            compiling,
            home: None,
            tensors: Tensors::default(),
            reads: 0,
            courses: HashMap::default(),
            newest: TensorId(0),
            last_seq: 0,
            pending: BTreeMap::new(),
            prefixes: BTreeMap::new(),
            fetches: BTreeMap::new(),
            gathers: BTreeMap::new(),
            sharding: Sharding::read(&var)?,
            added: BTreeMap::new(),
            last_added: ADDED,
            late: Vec::new(),
            retold: VecDeque::new(),
            deferred: VecDeque::new(),
            looked: BTreeSet::new(),
            arriving: BTreeMap::new(),
            waits: None,
            moves: BTreeMap::new(),
            relays: Vec::new(),
            granted: VecDeque::new(),
            uploads: VecDeque::new(),
            frees: BTreeMap::new(),
            freed_bytes: 0,
            touched: BTreeSet::new(),
            signals: Signals::default(),
            told_apart: Cell::new(false),
            held: Held::default(),
            news: News::default(),
            reported: 0,
            sync: None,
            progress: (0, 0),
            counters: Counters::default(),
            moved: VecDeque::new(),
        })
    }

    pub(super) fn remember_move(&mut self, moved: Moved) {
        if self.moved.len() == MAX_MOVED {
            self.moved.pop_front();
        }
        self.moved.push_back(moved);
    }

    /// Every program up to this one has finished.
    pub(super) fn completed(&self) -> u64 {
        self.pending.keys().next().map_or(self.last_seq, |first| first - 1)
    }

    pub(super) fn tell_client(&mut self, cx: &mut Cx, message: SessionMsg) {
        self.counters.messages += 1;
        match &message {
            SessionMsg::Update { failures, .. } => {
                // What only depends on the first failure is no other trouble.
                for (_, failure) in failures.iter().filter(|(seq, f)| f.root == *seq || f.root == 0) {
                    cx.log.trouble(cx.now, &self.name, failure.error.to_string());
                }
            }
            SessionMsg::Fatal { error } => cx.log.trouble(cx.now, &self.name, error.to_string()),
            _ => {}
        }
        if self.logs(cx) {
            self.note_session_msg(cx, &message);
        }
        cx.out.push(Action::ToClient(self.id, message));
    }

    pub(super) fn tell_worker(&mut self, cx: &mut Cx, worker: WorkerId, command: WorkerCmd) {
        let Some(state) = cx.pool.get_mut(worker) else { return };
        state.sessions.insert(self.id);
        let (work, plans) = self.watch;
        if self.touched.insert(worker) {
            if work || plans {
                cx.out.push(Action::ToWorker(worker, WorkerCmd::Watch { session: self.id, work, plans }));
            }
            if self.own_detail() > Detail::Nothing {
                let (session, detail) = (Some(self.id), self.own_detail());
                cx.out.push(Action::ToWorker(worker, WorkerCmd::Observe { session, detail }));
            }
            if self.compiling != Compiling::default() {
                let command = WorkerCmd::Compile { session: self.id, how: self.compiling };
                cx.out.push(Action::ToWorker(worker, command));
            }
        }
        self.counters.messages += 1;
        if self.logs(cx) {
            self.note_worker_cmd(cx, worker, &command);
        }
        cx.out.push(Action::ToWorker(worker, command));
    }

    /// Drops a tensor here, and at its holders with the next message to each.
    pub(super) fn drop_tensor(&mut self, cx: &mut Cx, id: TensorId, except: &[WorkerId]) {
        if let Some(tensor) = self.tensors.remove(id) {
            self.dropped(cx, id, &tensor, except);
        }
    }

    /// Has a tensor that is gone from here dropped at its holders.
    fn dropped(&mut self, cx: &mut Cx, id: TensorId, tensor: &Tensor, except: &[WorkerId]) {
        // Nobody hears of bytes that come for what is gone.
        self.arriving.remove(&id);
        cx.pool.release_all(&tensor.holders, tensor.bytes());
        self.freed_bytes += tensor.bytes();
        for holder in tensor.holders.iter() {
            if !except.contains(&holder.worker) {
                self.frees.entry(holder.worker).or_default().push(id);
            }
        }
    }

    /// Notes that `worker` answered `req` with a ticket.
    pub(super) fn granted(&mut self, req: u64, worker: WorkerId) {
        if self.granted.len() == REMEMBERED {
            self.granted.pop_front();
        }
        self.granted.push_back((req, worker));
    }

    /// Notes that the bytes of an upload are on their way to `worker`.
    pub(super) fn expect_upload(&mut self, id: TensorId, worker: WorkerId, ty: Ty) {
        if self.uploads.len() == MAX_UPLOADS {
            self.uploads.pop_front();
        }
        self.uploads.push_back((id, worker, ty));
    }

    /// Forgets an upload whose bytes come another way or never; gives its worker and type.
    pub(super) fn take_upload(&mut self, id: TensorId) -> Option<(WorkerId, Ty)> {
        let at = self.uploads.iter().position(|(tensor, ..)| *tensor == id)?;
        self.uploads.remove(at).map(|(_, worker, ty)| (worker, ty))
    }

    /// Drops what a program frees. The workers that ran it, which are those of its mesh if it has one, have dropped it
    /// themselves.
    pub(super) fn drop_freed(
        &mut self,
        cx: &mut Cx,
        ids: Vec<TensorId>,
        mesh: Option<&Mesh>,
        ran: &[WorkerId],
    ) {
        let only = |tensor: &Tensor| match (mesh, ran) {
            (Some(mesh), _) => tensor.holders.mesh().is_some_and(|m| m.id == mesh.id),
            (None, [worker]) => tensor.holders.only() == Some(*worker),
            (None, _) => false,
        };
        let mut bytes = 0;
        for id in ids {
            let Some(tensor) = self.tensors.remove(id) else { continue };
            if only(&tensor) && self.arriving.is_empty() {
                bytes += tensor.bytes();
            } else {
                self.dropped(cx, id, &tensor, ran);
            }
        }
        ran.iter().for_each(|w| cx.pool.release(*w, bytes));
    }

    /// Gives up all that workers hold for this session.
    pub(super) fn end(&mut self, cx: &mut Cx) {
        for worker in std::mem::take(&mut self.touched) {
            if let Some(state) = cx.pool.get_mut(worker) {
                state.sessions.remove(&self.id);
            }
            cx.out.push(Action::ToWorker(worker, WorkerCmd::End { session: self.id }));
        }
        for worker in self.pending.values().chain(self.added.values()).flat_map(|p| &p.workers) {
            if let Some(worker) = cx.pool.get_mut(*worker) {
                worker.queued -= 1;
            }
        }
        if let Some(home) = self.home.and_then(|id| cx.pool.get_mut(id)) {
            home.homes -= 1;
        }
        for (_, tensor) in self.tensors.iter() {
            cx.pool.release_all(&tensor.holders, tensor.bytes());
        }
        self.tensors.clear();
        self.courses.clear();
        self.pending.clear();
        self.added.clear();
    }
}

/// What happens to work when no worker is connected.
pub(super) fn no_workers(address: &str) -> Error {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, "12345"));
    Error::Connection(format!(
        "no workers are connected to the server at {address}: start one with `gt worker --host {host} -p {port}`"
    ))
}
