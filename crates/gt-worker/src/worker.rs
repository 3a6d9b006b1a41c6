//! A worker: takes commands without waiting, runs them on its own thread, and reports.

use crate::aside::Aside;
use crate::backend::{Backend, Buffer, HostBytes};
use crate::executor::Executor;
use crate::finish::Finisher;
use crate::gang::aloft::Aloft;
use crate::gang::post::Letterbox;
use crate::gang::seats::Seats;
use crate::neighbours::Neighbours;
use crate::plans::{Found, Miss};
use crate::relay::Relays;
use crate::road::{self, Job, Parcel};
use crate::sequences::Sequences;
use crate::speed;
use crate::table::{Entry, Item, SessionTable, Watch};
use crate::watched::{Carriage, Watched};
use gt_ir::{Error, TensorId, Ty};
use gt_net::bulk::{BulkBytes, Endpoint, Ticket, TicketKey};
use gt_net::compiling::Compiling;
use gt_net::msg::{SessionId, Speed, Tidy, WorkerCmd, WorkerId, WorkerInfo, WorkerMsg, WorkerStats};
use gt_net::process::Process;
use gt_net::spin::Habit;
use gt_sync::{Condvar, Mutex};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What a worker is made of.
#[derive(Clone)]
pub struct WorkerConfig {
    /// For logs, errors and `gt top`.
    pub name: String,
    /// Threads its device may use, as told to the dispatcher.
    pub threads: u32,
    pub backend: Arc<dyn Backend>,
    /// How programs are compiled where a session does not say.
    pub compiling: Compiling,
}

/// Takes what a worker says. Called on the worker's threads, with no lock held.
pub type Say = Box<dyn Fn(WorkerMsg) + Send + Sync>;

/// A running worker. Dropping it ends its threads after the program they are in.
pub struct Worker {
    core: Arc<Core>,
    threads: Vec<JoinHandle<()>>,
}

/// What the worker's threads share.
pub(crate) struct Core {
    pub config: WorkerConfig,
    pub state: Mutex<State>,
    /// Told when there may be something to do.
    pub wake: Condvar,
    /// Counts commands, so that the executor notices one without taking the lock.
    pub told: AtomicU64,
    /// Of `habit`, once it is known where clients are.
    pub habit: OnceLock<Habit>,
    /// Where the executor is, for who reads commands; unless they share few cores, nowhere.
    pub aside: OnceLock<Option<Aside>>,
    pub say: Say,
    pub jobs: Mutex<Sender<Job>>,
    /// The bulk plane, once it is there, with the key of its tickets.
    pub plane: OnceLock<(Endpoint, TicketKey)>,
    /// What passes through the server in pieces, once there is a server.
    pub relays: OnceLock<Relays>,
    /// Other workers of this process, where there are any.
    pub neighbours: OnceLock<Neighbours>,
    /// Repeated sequences of all sessions.
    pub sequences: Arc<Mutex<Sequences>>,
    /// What other ranks have sent to this one.
    pub letters: Arc<Letterbox>,
    /// Where batches end whose work is only queued, by session.
    pub finishers: Mutex<HashMap<SessionId, Finisher>>,
    /// Gangs that the device is at.
    pub aloft: Aloft,
    pub carriage: Carriage,
    /// The worker's clock begins here.
    pub started: Instant,
}

#[derive(Default)]
pub(crate) struct State {
    pub sessions: BTreeMap<SessionId, SessionTable>,
    /// Bytes that have come and are not on the device yet.
    pub uploads: VecDeque<Upload>,
    /// Bytes that came before the dispatcher's word that they would.
    pub early: HashMap<(SessionId, TensorId), (BulkBytes, u64)>,
    /// Values promised by ticket: nonce -> value.
    pub promised: HashMap<u64, Promised>,
    /// The gangs that have come and are not done, in their order.
    pub gangs: VecDeque<u64>,
    pub seats: Seats,
    /// The last sessions that ended; bytes that come for them are refused.
    pub ended: VecDeque<SessionId>,
    /// The session whose last programs have finished, which the dispatcher has not been told.
    pub untold: Option<SessionId>,
    /// Whose turn was last.
    pub turn: u64,
    pub stop: bool,
    pub counters: Counters,
    pub watched: Watched,
}

pub(crate) struct Upload {
    pub session: SessionId,
    pub tensor: TensorId,
    pub ty: Ty,
    pub data: HostBytes,
}

pub(crate) struct Promised {
    pub session: SessionId,
    pub tensor: TensorId,
    pub buffer: Buffer,
    pub expires_ms: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub programs: u64,
    pub instructions: u64,
    pub plan_hits: u64,
    pub plan_misses: u64,
    pub resized: u64,
    pub improved: u64,
    pub planned: (u64, u64),
    pub resize_seconds: f64,
    pub misses: HashMap<Miss, u64>,
    pub plans: u64,
    pub begun_early: u64,
    pub plan_seconds: f64,
    pub busy_seconds: f64,
    pub ops: BTreeMap<&'static str, u64>,
}

/// Clients that take no longer for their next program are waited for awake.
const RECORDING: Duration = Duration::from_millis(1);
/// Ended sessions remembered.
const ENDED: usize = 1024;

impl Worker {
    /// Starts the worker's threads. What it has to say goes to `say`.
    pub fn start(config: WorkerConfig, say: Say) -> Worker {
        let (jobs, todo) = std::sync::mpsc::channel();
        let core = Arc::new(Core {
            config,
            state: Mutex::default(),
            wake: Condvar::new(),
            told: AtomicU64::new(0),
            habit: OnceLock::new(),
            aside: OnceLock::new(),
            say,
            jobs: Mutex::new(jobs),
            plane: OnceLock::new(),
            relays: OnceLock::new(),
            neighbours: OnceLock::new(),
            sequences: Arc::default(),
            letters: Arc::default(),
            finishers: Mutex::default(),
            aloft: Aloft::default(),
            carriage: Carriage::default(),
            started: Instant::now(),
        });
        let (running, moving) = (core.clone(), core.clone());
        let spawn = |name: &str, body: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name.into()).spawn(body)
        };
        let threads = [
            spawn("gt-executor", Box::new(move || Executor::new(running).run())),
            spawn("gt-mover", Box::new(move || road::run(&moving, &todo))),
        ];
        // A process that cannot start a thread cannot do anything else either.
        let threads = threads.into_iter().map(|t| t.expect("cannot start a thread")).collect();
        Worker { core, threads }
    }

    /// What this worker tells of itself when it registers.
    pub fn info(&self) -> WorkerInfo {
        let (config, plane) = (&self.core.config, self.core.plane.get());
        WorkerInfo {
            name: config.name.clone(),
            backend: config.backend.name().into(),
            device: config.backend.device(),
            threads: config.threads,
            memory: config.backend.memory(),
            endpoint: plane.map(|(endpoint, _)| endpoint.clone()),
            ticket_key: plane.map_or([0; 16], |(_, key)| key.0),
            process: Process::this(),
            gangs: config.backend.gangs(),
            speed: Speed::default(),
        }
    }

    /// The same with what its device is measured to do, which takes some milliseconds: for a worker that shares programs
    /// with others.
    pub fn measured_info(&self) -> WorkerInfo {
        WorkerInfo { speed: speed::of(&*self.core.config.backend), ..self.info() }
    }

    /// So many workers of this process share its memory.
    pub fn share_memory(&self, among: usize) {
        self.core.config.backend.share_memory(among);
    }

    /// Takes a command. Never waits for work.
    pub fn handle(&self, command: WorkerCmd) {
        self.core.handle(command);
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Tensors and prefixes held now, of all sessions.
    pub fn tensors(&self) -> usize {
        self.core.state.lock().sessions.values().map(SessionTable::len).sum()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let mut state = self.core.state.lock();
        state.stop = true;
        let ends = format!("worker {} ends", self.core.config.name);
        state.seats.disband_all(&Error::Connection(ends));
        drop(state);
        self.core.wake.notify_all();
        let _ = self.core.jobs.lock().send(Job::Stop);
        for thread in self.threads.drain(..) {
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
        self.core.stop_watching();
        let finishers = std::mem::take(&mut *self.core.finishers.lock());
        for thread in finishers.into_values().map(Finisher::close) {
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl Core {
    fn handle(self: &Arc<Core>, command: WorkerCmd) {
        let mut state = self.state.lock();
        match command {
            WorkerCmd::Batch { session, mut batch } => {
                if !batch.runs.is_empty() {
                    self.config.backend.leave_room(None);
                }
                let table = state.session(session);
                let known = table.answer_known(session, &mut batch);
                let asks = known.is_some() && batch.fetches.is_empty() && batch.frees.is_empty();
                if !asks {
                    table.push_batch(batch);
                }
                if let Some(known) = known {
                    drop(state);
                    self.finish_later(known);
                    self.stir();
                    return;
                }
            }
            WorkerCmd::Gang { session, gang, share } => {
                state.gangs.push_back(gang.number);
                let table = state.session(session);
                table.arrived.push_back(Instant::now());
                table.queue.push_back(Item::Gang(gang, Box::new(share)));
                table.queue.push_back(Item::Close { fetches: Vec::new(), frees: Vec::new() });
            }
            WorkerCmd::Mesh(mesh) => state.seats.join(mesh, &self.letters),
            WorkerCmd::Disband { mesh, error } => state.seats.disband(mesh, error),
            WorkerCmd::Prefix { session, prefix } => {
                state.session(session).queue.push_back(Item::Prefix(prefix));
            }
            WorkerCmd::Forget { session, prefix } => {
                state.session(session).queue.push_back(Item::Forget(prefix));
            }
            WorkerCmd::Upload { session, tensor, ty, data } => {
                let table = state.session(session);
                if table.get(tensor).is_none() {
                    table.insert(tensor, Entry::Waiting { ty: ty.clone() });
                }
                let data = HostBytes::Owned(data);
                state.uploads.push_back(Upload { session, tensor, ty, data });
            }
            WorkerCmd::Expect { session, tensor, ty, tell } => {
                let table = state.session(session);
                if tell {
                    table.tell.insert(tensor);
                }
                if table.get(tensor).is_none() {
                    table.insert(tensor, Entry::Waiting { ty: ty.clone() });
                }
                if let Some((bytes, _)) = state.early.remove(&(session, tensor)) {
                    let data = HostBytes::Shared(Box::new(Arrived(bytes)));
                    state.uploads.push_back(Upload { session, tensor, ty, data });
                }
            }
            WorkerCmd::Fulfil { session, tensor, data } => {
                let table = state.sessions.get(&session);
                if let Some(ty) = table.and_then(|t| t.waits_for(tensor)).cloned() {
                    let data = HostBytes::Owned(data);
                    state.uploads.push_back(Upload { session, tensor, ty, data });
                }
            }
            WorkerCmd::Send { session, tensor, goal, to, now: true } => {
                let parcel = state.parcel(session, tensor, goal, to);
                drop(state);
                let _ = self.jobs.lock().send(Job::Send(Box::new(parcel)));
                return;
            }
            WorkerCmd::Send { session, tensor, goal, to, now: false } => {
                state.session(session).queue.push_back(Item::Send { tensor, goal, to });
            }
            WorkerCmd::Poison { session, tensor, failure } => {
                let table = state.session(session);
                if table.waits_for(tensor).is_some() {
                    table.insert(tensor, Entry::Poisoned(failure));
                }
            }
            WorkerCmd::Watch { session, work, plans } => state.session(session).watch = Watch { work, plans },
            WorkerCmd::Observe { session: Some(session), detail } => {
                state.session(session).detail = detail;
                let all = state.watched.all;
                state.watched.watch(all);
            }
            WorkerCmd::Observe { session: None, detail } => state.watched.watch(detail),
            WorkerCmd::Recent { session } => {
                drop(state);
                let _ = self.jobs.lock().send(Job::Recent { session });
                return;
            }
            WorkerCmd::Gauge => {
                drop(state);
                let _ = self.jobs.lock().send(Job::Gauge);
                return;
            }
            WorkerCmd::Compile { session, how } => state.session(session).compiling = how,
            WorkerCmd::End { session } => {
                let table = state.sessions.remove(&session);
                let excuses = state.drop_gangs(table.as_ref());
                state.early.retain(|(s, _), _| *s != session);
                state.promised.retain(|_, p| p.session != session);
                if state.ended.len() == ENDED {
                    state.ended.pop_front();
                }
                state.ended.push_back(session);
                drop(state);
                drop(table);
                for excuse in excuses {
                    let _ = self.jobs.lock().send(excuse);
                }
                self.finishers.lock().remove(&session);
                self.config.backend.end(session.0);
                if let Some(relays) = self.relays.get() {
                    relays.end(session);
                }
                return;
            }
            WorkerCmd::Tidy { what } => {
                drop(state);
                match what {
                    Tidy::ResetPeak => self.config.backend.reset_peak(),
                    Tidy::Shrink => self.config.backend.shrink(),
                }
                return;
            }
            WorkerCmd::Stats { req } => {
                drop(state);
                let _ = self.jobs.lock().send(Job::Stats { req });
                return;
            }
        }
        drop(state);
        self.stir();
    }

    /// How soon commands have come of late. Unless told otherwise, clients are in this process.
    pub fn habit(&self) -> &Habit {
        self.habit.get_or_init(|| Habit::in_turn(RECORDING))
    }

    /// There may be something to do.
    fn stir(&self) {
        self.told.fetch_add(1, Ordering::Release);
        self.wake.notify_one();
    }

    /// Fulfils or poisons a tensor whose bytes were on their way, and says so if that was asked for. The entry comes
    /// back if nobody waits any more.
    pub fn fulfil(&self, session: SessionId, tensor: TensorId, entry: Entry) -> Option<Entry> {
        let mut state = self.state.lock();
        let unwanted = state.fulfil(session, tensor, entry);
        let told = state.sessions.get_mut(&session).is_some_and(|t| t.tell.remove(&tensor));
        drop(state);
        if told {
            (self.say)(WorkerMsg::Arrived { session, tensor });
        }
        unwanted
    }

    pub fn stats(&self) -> WorkerStats {
        let backend = &self.config.backend;
        let (bytes_in_use, bytes_peak) = backend.memory_in_use();
        let (graphs, checks) = backend.graphs_and_checks();
        let mut sequences = self.sequences.lock().stats();
        let state = self.state.lock();
        let c = &state.counters;
        // Sequences are counted when plans are looked up: a program that then fails has not run.
        sequences.hot_instructions = sequences.hot_instructions.min(c.instructions);
        let reasons = Miss::ALL.iter().filter_map(|m| Some((m.text().to_string(), *c.misses.get(m)?)));
        WorkerStats {
            name: self.config.name.clone(),
            backend: backend.name().into(),
            device: backend.device(),
            threads: self.config.threads,
            memory: backend.memory(),
            queued: 0,
            programs: c.programs,
            instructions: c.instructions,
            plan_hits: c.plan_hits,
            plan_misses: c.plan_misses,
            resized: c.resized,
            improved: c.improved,
            miss_reasons: reasons.collect(),
            plans: c.plans,
            planned: c.planned,
            begun_early: c.begun_early,
            graphs,
            checks,
            plan_seconds: c.plan_seconds,
            resize_seconds: c.resize_seconds,
            busy_seconds: c.busy_seconds,
            bytes_in_use,
            bytes_peak,
            ops: c.ops.iter().map(|(op, n)| (op.to_string(), *n)).collect(),
            sequences,
        }
    }
}

impl Counters {
    /// Counts what looking up plans came to.
    pub fn found(&mut self, found: &Found) {
        self.plan_hits += found.hits;
        self.plan_misses += found.misses;
        self.resized += found.resized as u64;
        self.improved += found.improved;
        if let Some(why) = found.why.filter(|_| found.misses > 0) {
            *self.misses.entry(why).or_default() += found.misses;
        }
        self.planned = (self.planned.0 + found.made.0, self.planned.1 + found.made.1);
        self.plan_seconds += found.took.as_secs_f64();
        if found.resized {
            self.resize_seconds += found.took.as_secs_f64();
        }
        self.plans = found.kept;
    }
}

impl State {
    pub fn session(&mut self, id: SessionId) -> &mut SessionTable {
        self.sessions.entry(id).or_default()
    }

    /// A tensor to be sent as it is now.
    pub fn parcel(
        &self,
        session: SessionId,
        tensor: TensorId,
        goal: Option<WorkerId>,
        to: Option<(Endpoint, Ticket)>,
    ) -> Parcel {
        let doubts = self.sessions.get(&session).map_or_else(Vec::new, |table| table.doubts(tensor));
        let promised = if goal.is_none() { self.promised(session, tensor) } else { None };
        let what = promised.map_or_else(|| self.find(session, tensor), Ok);
        Parcel { session, tensor, goal, to, what, doubts }
    }

    /// Fulfils or poisons a tensor whose bytes were on their way. The entry comes back if nobody waits any more.
    pub fn fulfil(&mut self, session: SessionId, tensor: TensorId, entry: Entry) -> Option<Entry> {
        match self.sessions.get_mut(&session) {
            Some(table) if table.waits_for(tensor).is_some() => {
                table.insert(tensor, entry);
                None
            }
            _ => Some(entry),
        }
    }
}

/// Bulk bytes as the device sees them.
pub(crate) struct Arrived(pub BulkBytes);

impl AsRef<[u8]> for Arrived {
    fn as_ref(&self) -> &[u8] {
        self.0.as_slice()
    }
}
