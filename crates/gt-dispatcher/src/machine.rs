//! The dispatcher as a state machine: an event in, actions out; no I/O, no thread, no clock of its own (C10).

mod checked;
mod course;
mod gang;
mod going;
mod holders;
mod invariants;
mod kinds;
mod log;
mod mesh;
mod message;
mod note;
mod observe;
mod pieces;
mod place;
mod pool;
mod report;
mod session;
mod signals;
mod speeds;
mod stats;
mod tensor;
mod tensors;
mod transfer;

pub use checked::Vouched;
pub use session::Session;
pub use tensor::Tensor;

use crate::shard::{Answer, Ask};
use checked::Checked;
use gt_ir::{Error, TensorId, bail};
use gt_net::msg::{
    ClientMsg, SessionId, SessionMsg, SessionWelcome, WorkerCmd, WorkerId, WorkerInfo, WorkerMsg,
};
use log::Log;
use mesh::Meshes;
use observe::Observers;
use pool::Pool;
use stats::Asks;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// What happened outside.
#[derive(Clone, Debug)]
pub enum Event {
    /// A client has connected; `session` was never used before. `name` is for logs, `vars` are its `GT_*`.
    ClientUp { session: SessionId, name: String, vars: Vec<(String, String)> },
    /// A client says something.
    Client(SessionId, ClientMsg),
    /// Structures that a client's next message brings were checked on another thread.
    Vouched(Vec<Vouched>),
    /// A client is gone for good.
    ClientGone(SessionId),
    /// A worker has registered; `worker` was never used before.
    WorkerUp { worker: WorkerId, info: WorkerInfo },
    /// A worker says something.
    Worker(WorkerId, WorkerMsg),
    /// Nothing has been heard of a worker for so long; it may come back within a time.
    WorkerSilent { worker: WorkerId, silent_ms: u64, left_ms: u64 },
    /// A worker that was silent is back.
    WorkerBack(WorkerId),
    /// A worker is gone for good.
    WorkerGone { worker: WorkerId, reason: String },
    /// A program has been divided, or cannot be.
    Planned { ask: u64, result: Answer },
    /// Time has passed.
    Tick,
}

/// What is to be done outside, in order.
#[derive(Clone, Debug)]
pub enum Action {
    ToClient(SessionId, SessionMsg),
    ToWorker(WorkerId, WorkerCmd),
    /// A tensor's bytes are to pass between a client and a worker, in pieces.
    Carry(Carry),
    /// A program is to be divided (`shard::divide`), which may take long; the answer is `Event::Planned`.
    Plan {
        ask: u64,
        program: Arc<Ask>,
    },
    /// A line for the server's own instruction log.
    Log(String),
}

/// A tensor that passes through the server. Its bytes never come to the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Carry {
    pub session: SessionId,
    pub tensor: TensorId,
    /// The worker that sends or takes them; none when nobody expects an upload any more.
    pub worker: Option<WorkerId>,
    pub way: Way,
}

/// Which way a tensor is carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// So many bytes, to the worker.
    Up { bytes: u64 },
    /// To the client, as the answer to this request.
    Down { req: u64 },
}

/// Limits and times of a dispatcher.
#[derive(Clone, Debug)]
pub struct Config {
    /// Programs a client may have unfinished before it waits.
    pub credit_programs: u64,
    /// Programs of one session that may be unfinished before it counts as broken.
    pub max_unfinished: usize,
    /// Bytes of messages kept per session while no worker is connected.
    pub max_held_bytes: u64,
    /// How long a look waits for a first worker.
    pub no_worker_ms: u64,
    /// How long progress that nobody asked for may go unreported once a session has nothing left to do.
    pub settle_ms: u64,
    /// How long workers may take to answer a request for counters.
    pub stats_ms: u64,
    /// How long a ticket is good.
    pub ticket_ms: u64,
    /// Milliseconds since 1970 at the machine's time 0: the clock of tickets.
    pub epoch_ms: u64,
    /// Where workers are to connect, for hints: `localhost:12345`.
    pub address: String,
    /// Tells this dispatcher from others whose workers share a process with its own.
    pub cluster: u64,
    /// Keep the server's own instruction log.
    pub log: bool,
    /// List every program's instructions each time, not only the first.
    pub log_full: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            credit_programs: 64,
            max_unfinished: 1 << 16,
            max_held_bytes: 1 << 30,
            no_worker_ms: 10_000,
            settle_ms: 20,
            stats_ms: 2_000,
            ticket_ms: 120_000,
            epoch_ms: 0,
            address: "localhost:12345".into(),
            cluster: 0,
            log: false,
            log_full: false,
        }
    }
}

/// The dispatcher. See `invariants` for what always holds.
pub struct Machine {
    config: Config,
    sessions: BTreeMap<SessionId, Session>,
    pool: Pool,
    checked: Checked,
    asks: Asks,
    meshes: Meshes,
    log: Log,
    observers: Observers,
    /// Something waits for time to pass.
    wants_tick: bool,
}

/// What a session's steps may touch besides the session.
struct Cx<'a> {
    now: u64,
    config: &'a Config,
    pool: &'a mut Pool,
    checked: &'a mut Checked,
    meshes: &'a mut Meshes,
    log: &'a mut Log,
    wants_tick: &'a mut bool,
    out: &'a mut Vec<Action>,
}

impl Machine {
    pub fn new(config: Config) -> Machine {
        Machine {
            log: Log::new(config.log, config.log_full),
            config,
            sessions: BTreeMap::new(),
            pool: Pool::default(),
            checked: Checked::default(),
            asks: Asks::default(),
            meshes: Meshes::default(),
            observers: Observers::default(),
            wants_tick: false,
        }
    }

    /// What a client that is about to come up is told in its handshake.
    pub fn welcome(&self, session: SessionId) -> SessionWelcome {
        SessionWelcome {
            session,
            workers: self.pool.len() as u32,
            credit_programs: self.config.credit_programs,
        }
    }

    /// Takes one event; `now_ms` never goes backwards.
    pub fn step(&mut self, now_ms: u64, event: Event, out: &mut Vec<Action>) {
        match event {
            Event::ClientUp { session, name, vars } => {
                let mut new = match Session::new(session, name, &vars) {
                    Ok(new) => new,
                    Err(error) => {
                        return out.push(Action::ToClient(session, SessionMsg::Fatal { error }));
                    }
                };
                let (_, mut cx) = self.split(now_ms, out);
                new.note(&mut cx, "CONNECT", None, "Session", 0, || format!("session={}", session.0));
                self.sessions.insert(session, new);
                self.ask_lines(session, out);
            }
            Event::Client(session, ClientMsg::Bye) => self.end(now_ms, session, "goodbye", out),
            Event::Client(session, ClientMsg::Stats { req }) => self.ask_stats(now_ms, session, req, out),
            Event::Client(session, ClientMsg::Tidy { what }) => self.tidy(now_ms, session, what, out),
            Event::Client(id, ClientMsg::Recent) => self.ask_recent(id, out),
            Event::Client(id, ClientMsg::Tensors { req }) => self.tell_tensors(id, req, out),
            Event::Client(id, ClientMsg::Watch { scope, detail, every_ms }) => {
                self.watch(now_ms, id, scope, detail, every_ms, out)
            }
            Event::Client(id, ClientMsg::Lines { key, text }) => self.told_lines(now_ms, id, key, &text, out),
            Event::Client(id, message) => {
                self.with_session(now_ms, id, out, |session, cx| session.message(message, cx))
            }
            Event::Vouched(vouched) => vouched.into_iter().for_each(|v| self.checked.learn(v)),
            Event::ClientGone(session) => self.end(now_ms, session, "gone", out),
            Event::WorkerUp { worker, info } => self.worker_up(now_ms, worker, info, out),
            Event::Worker(worker, message) => self.worker(now_ms, worker, message, out),
            Event::WorkerSilent { worker, silent_ms, left_ms } => self.heard(worker, false, out, |name| {
                let (silent, left) = (silent_ms / 1000, left_ms / 1000);
                format!("gt: waiting for worker {name}, silent for {silent} s: it is given up in {left} s")
            }),
            Event::WorkerBack(worker) => {
                self.heard(worker, true, out, |name| format!("gt: worker {name} is back"))
            }
            Event::WorkerGone { worker, reason } => self.worker_gone(now_ms, worker, &reason, out),
            Event::Planned { ask, result } => {
                self.log.planned(now_ms, out, &mesh::Known::Done(result.clone()));
                self.meshes.planned(ask, result);
                let waiting: Vec<_> =
                    self.sessions.values().filter(|s| s.waits_for_plan(ask)).map(|s| s.id).collect();
                for id in waiting {
                    self.with_session(now_ms, id, out, |session, cx| session.resume(cx));
                }
            }
            Event::Tick => self.tick(now_ms, out),
        }
        if self.log.is_full() {
            self.flush_traces(out);
        }
    }

    /// The time of the next step in microseconds, for the log.
    pub fn clock(&mut self, now_us: u64) {
        self.log.clock(now_us);
    }

    /// True if a `Tick` within the next 100 ms or so would be of use.
    pub fn wants_tick(&self) -> bool {
        self.wants_tick
    }

    /// True if a message brings no large structure that is new here: what follows from it takes no time to speak of.
    /// For others, `Vouched::all` does the slow part on any thread, to be told as an event ahead of the message.
    pub fn is_quick(&mut self, message: &ClientMsg) -> bool {
        checked::large(message).all(|program| self.checked.knows(program))
    }

    /// Sessions and workers connected now.
    pub fn count(&self) -> (usize, usize) {
        (self.sessions.len(), self.pool.len())
    }

    fn split<'a>(
        &'a mut self,
        now: u64,
        out: &'a mut Vec<Action>,
    ) -> (&'a mut BTreeMap<SessionId, Session>, Cx<'a>) {
        let cx = Cx {
            now,
            config: &self.config,
            pool: &mut self.pool,
            checked: &mut self.checked,
            meshes: &mut self.meshes,
            log: &mut self.log,
            wants_tick: &mut self.wants_tick,
            out,
        };
        (&mut self.sessions, cx)
    }

    /// Runs one step of a session. Its error ends that session and no other, and so does a panic: the peer whose
    /// message is at hand may be a worker that serves others too (C14).
    fn with_session(
        &mut self,
        now: u64,
        id: SessionId,
        out: &mut Vec<Action>,
        step: impl FnOnce(&mut Session, &mut Cx) -> Result<(), Error>,
    ) {
        let (sessions, mut cx) = self.split(now, out);
        // Messages may still arrive from a session that has been ended.
        let Some(session) = sessions.get_mut(&id) else { return };
        let done = catch_unwind(AssertUnwindSafe(|| step(session, &mut cx)));
        let broken = |_| bail!(Runtime, "the server failed on this session: see its log, and connect again");
        if let Err(error) = done.unwrap_or_else(broken) {
            session.tell_client(&mut cx, SessionMsg::Fatal { error });
            self.end(now, id, "ended by an error", out);
        } else {
            session.report(&mut cx);
        }
    }

    fn end(&mut self, now: u64, id: SessionId, why: &str, out: &mut Vec<Action>) {
        let Some(mut session) = self.sessions.remove(&id) else { return };
        self.asks.forget(id);
        self.unwatch(id, out);
        let (_, mut cx) = self.split(now, out);
        session.end(&mut cx);
        session.note(&mut cx, "DISCONNECT", None, "Session", 0, || why.to_string());
    }

    fn worker_up(&mut self, now: u64, worker: WorkerId, info: WorkerInfo, out: &mut Vec<Action>) {
        let details = || {
            let speed = &info.speed;
            let measured = format!(
                "{:.3e} flop/s, {:.3e} B/s, wakes in {:.1e} s",
                speed.flops, speed.memory, speed.wake
            );
            format!("{} on {}, {} threads, {measured}", info.backend, info.device, info.threads)
        };
        self.log.line(now, out, "CONNECT", &pool::whom(&info), "Worker", 0, details);
        self.pool.add(worker, info);
        self.watch_worker(worker, out);
        let waiting: Vec<_> = self.sessions.values().filter(|s| s.is_held()).map(|s| s.id).collect();
        for id in waiting {
            self.with_session(now, id, out, |session, cx| session.release(cx));
        }
    }

    fn worker(&mut self, now: u64, worker: WorkerId, message: WorkerMsg, out: &mut Vec<Action>) {
        match message {
            WorkerMsg::Update { session, finished, values, failures, spared, compiled, .. } => self
                .with_session(now, session, out, |s, cx| {
                    s.note_compiled(cx, worker, &compiled);
                    s.worker_update(worker, finished, values, failures, &spared, cx);
                    s.resume(cx)
                }),
            WorkerMsg::Moved { session, tensor, goal, result } => {
                self.with_session(now, session, out, |s, cx| {
                    s.moved(worker, tensor, goal, result, cx);
                    s.resume(cx)
                })
            }
            WorkerMsg::Arrived { session, tensor } => {
                self.with_session(now, session, out, |s, cx| s.arrived(tensor, cx))
            }
            WorkerMsg::Lines { session, lines } => self.with_session(now, session, out, |s, cx| {
                s.worker_lines(cx, lines);
                Ok(())
            }),
            WorkerMsg::Recent { session, now_us, events } => {
                self.recent(now, worker, session, now_us, events, out)
            }
            WorkerMsg::Gauge(gauge) => self.gauge(worker, *gauge),
            WorkerMsg::Events { now_us, events } => self.events(now, worker, now_us, events, out),
            WorkerMsg::Stats { req, stats } => {
                if let Some(ask) = self.asks.answered(req, worker, stats) {
                    self.answer_stats(ask, out);
                }
            }
        }
    }

    /// A worker is silent, or is back: clients that have something there are told.
    fn heard(&mut self, worker: WorkerId, back: bool, out: &mut Vec<Action>, line: impl Fn(&str) -> String) {
        let Some(known) = self.pool.get_mut(worker) else { return };
        known.silent = !back;
        let line = line(&known.info.name);
        for session in &known.sessions {
            let message = SessionMsg::Log { line: line.clone(), debug: true };
            out.push(Action::ToClient(*session, message));
        }
    }

    fn worker_gone(&mut self, now: u64, worker: WorkerId, reason: &str, out: &mut Vec<Action>) {
        let Some(lost) = self.pool.remove(worker) else { return };
        self.forget_worker(worker);
        self.log.trouble(now, &lost.info.name, format!("lost: {reason}"));
        self.log.line(now, out, "DISCONNECT", &lost.whom, "Worker", 0, || reason.to_string());
        self.meshes.worker_lost(worker, &lost.info.name, reason, out);
        // Some may have their home there and nothing else yet.
        let homeless = self.sessions.values().filter(|s| s.home == Some(worker)).map(|s| s.id);
        let sessions: BTreeSet<SessionId> = lost.sessions.iter().copied().chain(homeless).collect();
        for id in sessions {
            self.with_session(now, id, out, |session, cx| {
                session.worker_lost(worker, &lost.info.name, reason, cx);
                session.resume(cx)
            });
        }
        for ask in self.asks.worker_gone(worker) {
            self.answer_stats(ask, out);
        }
    }

    fn tick(&mut self, now: u64, out: &mut Vec<Action>) {
        self.wants_tick = false;
        let ids: Vec<_> = self.sessions.keys().copied().collect();
        for id in ids {
            self.with_session(now, id, out, |session, cx| session.tick(cx));
        }
        for ask in self.asks.overdue(now, self.config.stats_ms) {
            self.answer_stats(ask, out);
        }
        self.wants_tick |= !self.asks.is_empty();
        self.tick_observers(now, out);
    }
}
