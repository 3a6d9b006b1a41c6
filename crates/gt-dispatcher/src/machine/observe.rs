//! Those who watch: snapshots of the whole at their intervals, and lines of the log as things happen. Nothing is asked
//! of workers, and nothing is formatted, while nobody does.

use super::log::Log;
use super::note::Details;
use super::session::Moved;
use super::{Action, Machine, Session};
use gt_net::msg::{SessionId, SessionMsg, WorkerCmd, WorkerId};
use gt_net::observe::{ClientView, Detail, Gauge, Ran, Scope, Snapshot, StepInfo, WorkEvent, WorkerView};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Snapshots are not sent more often than this.
const LEAST_MS: u32 = 50;

/// Somebody who watches.
struct Watching {
    scope: Scope,
    detail: Detail,
    every_ms: u64,
    /// When the next snapshot is due.
    due: u64,
    /// Workers were asked for their counters; the snapshot goes out with the next tick.
    asked: bool,
}

impl Watching {
    /// True for one who wants lines of everybody's work, seen this closely.
    fn traces(&self, detail: Detail) -> bool {
        self.scope == Scope::All && self.detail >= detail
    }
}

#[derive(Default)]
pub(super) struct Observers {
    watching: BTreeMap<SessionId, Watching>,
    gauges: BTreeMap<WorkerId, Gauge>,
    /// What to add to a worker's clock to get ours, in microseconds.
    offsets: BTreeMap<WorkerId, i64>,
    /// How closely workers were told to watch everybody.
    told: Detail,
}

impl Observers {
    /// True if somebody wants lines of everybody's work, seen this closely.
    pub fn traces(&self, detail: Detail) -> bool {
        self.watching.values().any(|w| w.traces(detail))
    }

    pub fn is_empty(&self) -> bool {
        self.watching.is_empty()
    }

    pub fn watches(&self, session: SessionId) -> bool {
        self.watching.contains_key(&session)
    }

    /// A worker's time on our clock. The quickest message so far is taken to have taken no time.
    fn offset(&mut self, worker: WorkerId, theirs: u64, ours: u64) -> i64 {
        let offset = ours as i64 - theirs as i64;
        let best = self.offsets.entry(worker).or_insert(offset);
        *best = (*best).min(offset);
        *best
    }
}

impl Machine {
    /// A client wants to see what happens, in another way than before, or not any more.
    pub(super) fn watch(
        &mut self,
        now: u64,
        id: SessionId,
        scope: Scope,
        detail: Detail,
        every_ms: u32,
        out: &mut Vec<Action>,
    ) {
        // What has happened so far is for those who watched.
        self.flush_traces(out);
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let own = if scope == Scope::Own { detail } else { Detail::Nothing };
        session.watch_own(own, out);
        let every_ms = if every_ms == 0 { 0 } else { every_ms.max(LEAST_MS) as u64 };
        match detail {
            Detail::Nothing => drop(self.observers.watching.remove(&id)),
            _ => {
                let watching = Watching { scope, detail, every_ms, due: now, asked: false };
                self.observers.watching.insert(id, watching);
            }
        }
        self.watch_workers(out);
        if scope == Scope::All && detail >= Detail::Runs {
            self.introduce(now, id, out);
        }
        if scope == Scope::All && detail >= Detail::Programs {
            self.sessions.keys().for_each(|other| self.ask_lines(*other, out));
        }
        self.wants_tick = true;
    }

    /// One who watched is gone.
    pub(super) fn unwatch(&mut self, id: SessionId, out: &mut Vec<Action>) {
        if self.observers.watching.remove(&id).is_some() {
            self.watch_workers(out);
        }
    }

    /// Asks a client for source lines, if somebody wants to see them. One that watches itself is not asked.
    pub(super) fn ask_lines(&self, id: SessionId, out: &mut Vec<Action>) {
        if self.observers.traces(Detail::Programs) && !self.observers.watches(id) {
            out.push(Action::ToClient(id, SessionMsg::TellLines { on: true }));
        }
    }

    /// Source lines of a client's program, for those who watch.
    pub(super) fn told_lines(
        &mut self,
        now: u64,
        id: SessionId,
        key: u64,
        text: &str,
        out: &mut Vec<Action>,
    ) {
        let Some(session) = self.sessions.get(&id) else { return };
        if !self.observers.traces(Detail::Programs) {
            return out.push(Action::ToClient(id, SessionMsg::TellLines { on: false }));
        }
        let whom = session.whom.clone();
        let clean: String = text.chars().filter(|c| *c == '\t' || !c.is_control()).collect();
        self.log.line(now, out, "LINES", &whom, "Program", 0, || format!("session={} key={key:016x}", id.0));
        self.log.lines(&[format!("    LINES key={key:016x}{clean}")], out);
    }

    /// Tells workers how closely to watch, if that has changed.
    fn watch_workers(&mut self, out: &mut Vec<Action>) {
        let all = self.observers.watching.values().filter(|w| w.scope == Scope::All);
        let seen = all.map(|w| w.detail).max().unwrap_or_default();
        self.log.trace(seen);
        let wanted = seen.max(self.log.own_detail());
        if std::mem::replace(&mut self.observers.told, wanted) != wanted {
            for (worker, _) in self.pool.iter() {
                out.push(Action::ToWorker(worker, WorkerCmd::Observe { session: None, detail: wanted }));
            }
        }
    }

    /// A worker that is new is told what the others know.
    pub(super) fn watch_worker(&mut self, worker: WorkerId, out: &mut Vec<Action>) {
        let detail = self.observers.told.max(self.log.own_detail());
        self.observers.told = detail;
        if detail > Detail::Counters {
            out.push(Action::ToWorker(worker, WorkerCmd::Observe { session: None, detail }));
        }
    }

    pub(super) fn forget_worker(&mut self, worker: WorkerId) {
        self.observers.gauges.remove(&worker);
        self.observers.offsets.remove(&worker);
    }

    /// Tells one who begins to trace who is there, as if all had just come.
    fn introduce(&mut self, now: u64, to: SessionId, out: &mut Vec<Action>) {
        let mut lines = Vec::new();
        for (_, worker) in self.pool.iter() {
            let info = &worker.info;
            let details = format!("{} on {}, {} threads", info.backend, info.device, info.threads);
            lines.push(self.log.format(now, "CONNECT", &worker.whom, "Worker", 0, details));
        }
        for session in self.sessions.values().filter(|s| !self.observers.watches(s.id)) {
            let details = format!("session={}", session.id.0);
            lines.push(self.log.format(now, "CONNECT", &session.whom, "Session", 0, details));
        }
        out.push(Action::ToClient(to, SessionMsg::Trace { lines }));
    }

    pub(super) fn gauge(&mut self, worker: WorkerId, gauge: Gauge) {
        if self.pool.get(worker).is_some() {
            self.observers.gauges.insert(worker, gauge);
        }
    }

    /// What a worker has done, for all who want to know.
    pub(super) fn events(
        &mut self,
        now: u64,
        worker: WorkerId,
        now_us: u64,
        events: Vec<WorkEvent>,
        out: &mut Vec<Action>,
    ) {
        let ours = self.log.micros(now);
        let offset = self.observers.offset(worker, now_us, ours);
        let at = |us: u64| us.saturating_add_signed(offset);
        for event in events {
            match event {
                WorkEvent::Ran(ran) => self.with_session(now, ran.session, out, |s, cx| {
                    let (start, ran) = (at(ran.start_us), Arc::new(*ran));
                    s.note(cx, "RAN", Some(worker), "Program", 0, || Details::Ran(ran.clone(), start));
                    if !ran.kernels.is_empty() {
                        s.note(cx, "KERNELS", Some(worker), "Program", 0, || Details::Kernels(ran, start));
                    }
                    Ok(())
                }),
                WorkEvent::Carried(c) => self.with_session(now, c.session, out, |s, cx| {
                    let way = if c.inward { "In" } else { "Out" };
                    s.note(cx, "CARRY", Some(worker), way, c.bytes, || {
                        let (start, took) = (seconds(at(c.start_us)), c.took_us as f64 / 1e3);
                        let (id, bytes) = (c.session.0, c.bytes);
                        format!(
                            "session={id} TENSOR[{}] bytes={bytes} start={start}s took={took:.3}ms",
                            c.tensor
                        )
                    });
                    Ok(())
                }),
                WorkEvent::Steps { key, steps } => {
                    self.note_steps(now, worker, key, &steps_text(&self.log, key, &steps), out)
                }
                // These go to their own client alone.
                WorkEvent::Recent(_) => {}
            }
        }
    }

    /// What a worker remembers of a session, as lines for its client.
    pub(super) fn recent(
        &mut self,
        now: u64,
        worker: WorkerId,
        session: SessionId,
        now_us: u64,
        events: Vec<WorkEvent>,
        out: &mut Vec<Action>,
    ) {
        if !self.sessions.contains_key(&session) {
            return;
        }
        let offset = self.observers.offset(worker, now_us, self.log.micros(now));
        let whom = self.pool.whom(worker);
        let mut lines = Vec::new();
        let mut log = Log::default();
        for event in events {
            match event {
                WorkEvent::Recent(ran) => {
                    let start = ran.start_us.saturating_add_signed(offset);
                    let ran: Arc<Ran> = Arc::new(*ran);
                    let told = Details::Ran(ran.clone(), start);
                    lines.push(log.format(now, "RAN", &whom, "Program", 0, told));
                    if !ran.kernels.is_empty() {
                        let told = Details::Kernels(ran, start);
                        lines.push(log.format(now, "KERNELS", &whom, "Program", 0, told));
                    }
                }
                WorkEvent::Steps { key, steps } => {
                    let details = format!("key={key:016x} steps={}", steps.len());
                    lines.push(log.format(now, "STEPS", &whom, "Plan", 0, details));
                    lines.extend(steps_text(&self.log, key, &steps));
                }
                WorkEvent::Ran(_) | WorkEvent::Carried(_) => {}
            }
        }
        out.push(Action::ToClient(session, SessionMsg::Trace { lines }));
    }

    /// Answers a client that asks about its last programs: workers tell what they remember, and here is what moved.
    pub(super) fn ask_recent(&self, id: SessionId, out: &mut Vec<Action>) {
        let Some(session) = self.sessions.get(&id) else { return };
        let mut log = Log::default();
        let name = |worker: WorkerId| self.pool.get(worker).map_or("?", |w| w.info.name.as_str());
        let mut text = |m: &Moved| {
            let (tensor, to) = (m.tensor.0, name(m.to));
            let details = format!("TENSOR[{tensor}] to {to} seq={} bytes={}", m.seq, m.bytes);
            log.format(m.at, "MOVE", &self.pool.whom(m.from), "Send", m.bytes, details)
        };
        let lines: Vec<String> = session.moved.iter().map(&mut text).collect();
        out.push(Action::ToClient(id, SessionMsg::Trace { lines }));
        let ask = |worker: &WorkerId| Action::ToWorker(*worker, WorkerCmd::Recent { session: id });
        out.extend(session.touched.iter().map(ask));
    }

    /// The tensors of a session, for its client.
    pub(super) fn tell_tensors(&self, id: SessionId, req: u64, out: &mut Vec<Action>) {
        let Some(session) = self.sessions.get(&id) else { return };
        let name = |worker: WorkerId| self.pool.get(worker).map_or("?".into(), |w| w.info.name.clone());
        let living = session.tensors.iter().filter(|(_, t)| t.poison.is_none());
        let mut tensors: Vec<_> = living
            .map(|(id, t)| {
                let holders: Vec<String> = t.holders.iter().map(|h| name(h.worker)).collect();
                let pieces = t.spread.as_ref().map_or(1, |s| s.pieces());
                let copies = (holders.len() / pieces).max(1);
                (id, t.ty.clone(), (t.ty.bytes() * copies) as u64, holders)
            })
            .collect();
        tensors.sort_by_key(|(id, ..)| *id);
        out.push(Action::ToClient(id, SessionMsg::Tensors { req, tensors }));
    }

    /// Lists a plan's steps wherever kernels are told of.
    fn note_steps(&mut self, now: u64, worker: WorkerId, key: u64, texts: &[String], out: &mut Vec<Action>) {
        let ids: Vec<SessionId> =
            self.sessions.values().filter(|s| s.own_detail() >= Detail::Kernels).map(|s| s.id).collect();
        let details = || format!("key={key:016x} steps={}", texts.len());
        let whom = self.pool.whom(worker);
        self.log.line(now, out, "STEPS", &whom, "Plan", 0, details);
        self.log.lines(texts, out);
        for id in ids {
            self.with_session(now, id, out, |s, cx| {
                s.note_own(cx, "STEPS", &whom, "Plan", 0, details());
                s.own_lines(cx, texts);
                Ok(())
            });
        }
    }

    /// Sends what is due to those who watch.
    pub(super) fn tick_observers(&mut self, now: u64, out: &mut Vec<Action>) {
        self.flush_traces(out);
        let mut ask = false;
        let mut ready = Vec::new();
        for (id, watching) in &mut self.observers.watching {
            if watching.asked {
                watching.asked = false;
                ready.push(*id);
            } else if watching.every_ms > 0 && now >= watching.due {
                watching.due = (watching.due + watching.every_ms).max(now + watching.every_ms / 2);
                watching.asked = true;
                ask = true;
            }
        }
        if ask {
            out.extend(self.pool.iter().map(|(worker, _)| Action::ToWorker(worker, WorkerCmd::Gauge)));
        }
        if !ready.is_empty() {
            let snapshot = self.snapshot(now);
            let message = |id| Action::ToClient(id, SessionMsg::Snapshot(Box::new(snapshot.clone())));
            out.extend(ready.into_iter().map(message));
        }
        self.wants_tick |= !self.observers.is_empty();
    }

    /// Passes on lines that have gathered.
    pub(super) fn flush_traces(&mut self, out: &mut Vec<Action>) {
        let lines = self.log.take_traced();
        if lines.is_empty() {
            return;
        }
        for (id, watching) in self.observers.watching.iter().filter(|(_, w)| w.traces(Detail::Runs)) {
            let seen = lines.iter().filter(|(detail, _)| *detail <= watching.detail);
            let lines = seen.map(|(_, line)| line.clone()).collect();
            out.push(Action::ToClient(*id, SessionMsg::Trace { lines }));
        }
    }

    /// The system at this moment.
    pub fn snapshot(&self, now: u64) -> Snapshot {
        let gauges = &self.observers.gauges;
        let workers = self.pool.iter().map(|(id, w)| WorkerView {
            id: id.0,
            name: w.info.name.clone(),
            backend: w.info.backend.clone(),
            device: w.info.device.clone(),
            threads: w.info.threads,
            queued: w.queued,
            gauge: gauges.get(&id).cloned(),
        });
        let seen = |s: &&Session| s.last_seq > 0 || !self.observers.watches(s.id);
        let clients = self.sessions.values().filter(seen).map(|s| s.view(now, gauges));
        Snapshot {
            at_ms: now,
            version: env!("CARGO_PKG_VERSION").into(),
            address: self.config.address.clone(),
            workers: workers.collect(),
            clients: clients.collect(),
            troubles: self.log.troubles(),
        }
    }
}

impl Session {
    fn view(&self, now: u64, gauges: &BTreeMap<WorkerId, Gauge>) -> ClientView {
        let used: Vec<_> =
            gauges.values().flat_map(|g| &g.sessions).filter(|u| u.session == self.id.0).collect();
        let unfinished = self.pending.len() as u64;
        ClientView {
            id: self.id.0,
            name: self.name.clone(),
            home: self.home.map(|w| w.0),
            programs: self.counters.programs,
            instructions: self.counters.instructions,
            unfinished,
            waiting_ms: if unfinished == 0 { 0 } else { now.saturating_sub(self.progress.0) },
            tensors: self.tensors.len() as u64,
            bytes: used.iter().map(|u| u.bytes).sum(),
            moves: self.counters.moves,
            moved_bytes: self.counters.moved_bytes,
            messages: self.counters.messages,
            busy_us: used.iter().map(|u| u.busy_us).sum(),
            waited_us: used.iter().map(|u| u.waited_us).sum(),
        }
    }
}

/// The steps of a plan, line by line.
fn steps_text(log: &Log, key: u64, steps: &[StepInfo]) -> Vec<String> {
    let text = |(i, s): (usize, &StepInfo)| {
        let instrs: Vec<String> = s.instrs.iter().map(|i| log.origin(key, *i).to_string()).collect();
        format!("    STEP {i} {} instrs={} {}", s.family.text(), instrs.join(","), s.name)
    };
    steps.iter().enumerate().map(text).collect()
}

/// A time of the log.
fn seconds(us: u64) -> String {
    format!("{}.{:06}", us / 1_000_000, us % 1_000_000)
}
