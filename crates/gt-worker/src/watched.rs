//! What a worker shows of itself: counters at any time, events while somebody watches.

use crate::timing::Spent;
use crate::worker::{Core, State};
use gt_ir::{Family, TensorId};
use gt_net::msg::{SessionId, WorkerMsg};
use gt_net::observe::{Carried, Detail, Gauge, Ran, SessionUse, StepInfo, StepTime, Timing, WorkEvent};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Events that wait at most, and for how long: whoever watches sees them soon enough, and telling each on its own would
/// cost as much as running a small program.
const MAX_EVENTS: usize = 512;
const MAX_WAIT: Duration = Duration::from_millis(50);
/// Plans whose steps are remembered as told.
const MAX_TOLD: usize = 4096;

/// Bytes that came and went.
#[derive(Default)]
pub(crate) struct Carriage {
    pub inward: AtomicU64,
    pub outward: AtomicU64,
}

/// What watchers are told next.
#[derive(Default)]
pub(crate) struct Watched {
    /// How closely everybody is watched.
    pub all: Detail,
    events: Vec<WorkEvent>,
    since: Option<Instant>,
    /// Steps that were told last, by the plan's key: a better plan has others.
    told: HashMap<u64, Arc<Vec<StepInfo>>>,
    /// The program that runs now.
    pub running: Option<(SessionId, Instant)>,
    pub families: [f64; Family::ALL.len()],
    pub failures: u64,
}

/// A program that has run.
#[derive(Clone)]
pub(crate) struct Record {
    pub session: SessionId,
    pub seq: u64,
    pub key: u64,
    pub instrs: u32,
    pub start: Instant,
    pub took: Duration,
    pub waited: Duration,
    pub planning: Duration,
    pub why: Option<&'static str>,
    pub failed: bool,
    pub begun_early: bool,
    pub spent: Spent,
}

impl Watched {
    fn push(&mut self, event: WorkEvent) {
        self.since.get_or_insert_with(Instant::now);
        self.events.push(event);
    }

    /// How long what is to be told may wait; nothing if there is nothing.
    pub fn due_in(&self) -> Option<Duration> {
        let full = self.events.len() >= MAX_EVENTS;
        self.since.map(|since| if full { Duration::ZERO } else { MAX_WAIT.saturating_sub(since.elapsed()) })
    }

    /// Watching begins or ends; whoever is new knows no steps.
    pub fn watch(&mut self, detail: Detail) {
        self.all = detail;
        self.told.clear();
    }

    /// Counts a program, and keeps what is to be told of it.
    fn ran(&mut self, core: &Core, record: &Record, detail: Detail) {
        for (sum, share) in self.families.iter_mut().zip(record.spent.shares) {
            *sum += share as f64 * record.took.as_secs_f64();
        }
        self.failures += record.failed as u64;
        if detail >= Detail::Runs {
            self.tell(core, record, detail);
        }
    }

    fn tell(&mut self, core: &Core, record: &Record, detail: Detail) {
        let mut kernels = Vec::new();
        if detail >= Detail::Kernels {
            kernels.clone_from(&record.spent.kernels);
            if self.told.len() >= MAX_TOLD {
                self.told.clear();
            }
            if let Some(steps) = untold(&mut self.told, record) {
                self.push(steps);
            }
        }
        self.push(WorkEvent::Ran(Box::new(record.told(core, kernels))));
    }
}

/// The steps of what has run, unless those told last for its key are the same.
fn untold(told: &mut HashMap<u64, Arc<Vec<StepInfo>>>, record: &Record) -> Option<WorkEvent> {
    let steps = &record.spent.timing.as_ref()?.steps;
    match told.insert(record.key, steps.clone()) {
        Some(before) if Arc::ptr_eq(&before, steps) => None,
        _ => Some(WorkEvent::Steps { key: record.key, steps: steps.to_vec() }),
    }
}

impl Record {
    fn told(&self, core: &Core, kernels: Vec<StepTime>) -> Ran {
        Ran {
            session: self.session,
            seq: self.seq,
            key: self.key,
            instrs: self.instrs,
            start_us: core.micros(self.start),
            took_us: self.took.as_micros() as u64,
            waited_us: self.waited.as_micros() as u64,
            plan_us: self.planning.as_micros() as u64,
            why: self.why.map(str::to_string),
            failed: self.failed,
            begun_early: self.begun_early,
            shares: self.spent.shares,
            kernels,
        }
    }

    /// When its steps ran: as timed, or as they ran when its plan was last timed.
    fn kernels(&self) -> Vec<StepTime> {
        match &self.spent.timing {
            _ if !self.spent.kernels.is_empty() => self.spent.kernels.clone(),
            Some(timing) => scaled(timing, self.took),
            None => Vec::new(),
        }
    }
}

/// The times of a plan's steps, stretched to how long it took this time.
fn scaled(timing: &Timing, took: Duration) -> Vec<StepTime> {
    let end = timing.times.iter().map(|t| t.start + t.took).max().unwrap_or(0).max(1);
    let factor = took.as_nanos() as f64 / end as f64;
    let scale = |ns: u32| (ns as f64 * factor) as u32;
    timing
        .times
        .iter()
        .map(|t| StepTime { step: t.step, start: scale(t.start), took: scale(t.took) })
        .collect()
}

impl State {
    /// Counts a program whose time is known.
    pub fn ran(&mut self, core: &Core, record: Record, detail: Detail) {
        self.watched.ran(core, &record, detail);
        if let Some(table) = self.sessions.get_mut(&record.session) {
            table.remember(record);
        }
    }

    /// How closely a session is watched.
    pub fn detail(&self, session: SessionId) -> Detail {
        let own = self.sessions.get(&session).map_or(Detail::Nothing, |t| t.detail);
        own.max(self.watched.all)
    }
}

impl Core {
    /// Microseconds on the worker's clock.
    pub fn micros(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.started).as_micros() as u64
    }

    /// Tells watchers what has happened.
    pub fn tell_events(&self) {
        let mut state = self.state.lock();
        let events = std::mem::take(&mut state.watched.events);
        state.watched.since = None;
        drop(state);
        if !events.is_empty() {
            (self.say)(WorkerMsg::Events { now_us: self.micros(Instant::now()), events });
        }
    }

    /// Tells watchers what has happened, if that should not wait any longer.
    pub fn tell_if_due(&self) {
        let due = self.state.lock().watched.due_in();
        if due.is_some_and(|left| left.is_zero()) {
            self.tell_events();
        }
    }

    /// What is remembered of a session's last programs.
    pub fn recent(&self, session: SessionId) -> WorkerMsg {
        let state = self.state.lock();
        let records = state.sessions.get(&session).map(|t| t.recent.iter().cloned().collect::<Vec<_>>());
        drop(state);
        let mut events = Vec::new();
        let mut told = HashMap::new();
        for record in records.unwrap_or_default() {
            events.extend(untold(&mut told, &record));
            events.push(WorkEvent::Recent(Box::new(record.told(self, record.kernels()))));
        }
        WorkerMsg::Recent { session, now_us: self.micros(Instant::now()), events }
    }

    /// Counts tensor bytes that came or went.
    pub fn carried(&self, session: SessionId, tensor: TensorId, bytes: u64, inward: bool, start: Instant) {
        let sum = if inward { &self.carriage.inward } else { &self.carriage.outward };
        sum.fetch_add(bytes, Ordering::Relaxed);
        let mut state = self.state.lock();
        if state.detail(session) >= Detail::Programs {
            let took_us = start.elapsed().as_micros() as u64;
            let start_us = self.micros(start);
            let carried = Carried { session, tensor: tensor.0, bytes, inward, start_us, took_us };
            state.watched.push(WorkEvent::Carried(carried));
        }
    }

    /// The counters of this moment.
    pub fn gauge(&self) -> Gauge {
        let backend = &self.config.backend;
        let (memory, memory_peak) = backend.memory_in_use();
        let state = self.state.lock();
        let (c, w) = (&state.counters, &state.watched);
        let running = w.running.map(|(session, since)| (session.0, since.elapsed().as_micros() as u64));
        let used = state.sessions.iter().map(|(id, table)| SessionUse {
            session: id.0,
            busy_us: table.busy.as_micros() as u64,
            waited_us: table.waited.as_micros() as u64,
            programs: table.programs,
            bytes: table.bytes,
            queued: table.arrived.len() as u32,
        });
        let sessions: Vec<SessionUse> = used.collect();
        Gauge {
            now_us: self.micros(Instant::now()),
            busy_us: (c.busy_seconds * 1e6) as u64 + running.map_or(0, |(_, us)| us),
            families_us: w.families.map(|s| (s * 1e6) as u64),
            running,
            programs: c.programs,
            instructions: c.instructions,
            plan_hits: c.plan_hits,
            plan_misses: c.plan_misses,
            resized: c.resized,
            plans: c.plans,
            plan_us: (c.plan_seconds * 1e6) as u64,
            miss_reasons: c.misses.iter().map(|(why, n)| (why.text().to_string(), *n)).collect(),
            queued: sessions.iter().map(|s| s.queued).sum(),
            failures: w.failures,
            bytes_in: self.carriage.inward.load(Ordering::Relaxed),
            bytes_out: self.carriage.outward.load(Ordering::Relaxed),
            memory,
            memory_peak,
            memory_limit: backend.memory(),
            version: env!("CARGO_PKG_VERSION").into(),
            sessions,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run of the plan of this key whose steps are these.
    fn ran(key: u64, steps: &Arc<Vec<StepInfo>>) -> Record {
        let timing = Timing { steps: steps.clone(), times: Vec::new(), shares: Default::default() };
        Record {
            session: SessionId(1),
            seq: 1,
            key,
            instrs: 2,
            start: Instant::now(),
            took: Duration::ZERO,
            waited: Duration::ZERO,
            planning: Duration::ZERO,
            why: None,
            failed: false,
            begun_early: false,
            spent: Spent { timing: Some(Arc::new(timing)), ..Spent::default() },
        }
    }

    #[test]
    fn a_better_plan_s_steps_are_told_before_its_times() {
        let steps = |instrs: &[u32]| {
            let step = |i: &u32| StepInfo { name: "add".into(), family: Family::Other, instrs: vec![*i] };
            Arc::new(instrs.iter().map(step).collect::<Vec<_>>())
        };
        let (quick, better) = (steps(&[0, 1]), steps(&[1]));
        let mut told = HashMap::new();
        for (key, steps, new) in [
            (7, &quick, true),
            (7, &quick, false),
            (8, &quick, true),
            (7, &better, true),
            (7, &better, false),
            (8, &quick, false),
        ] {
            match untold(&mut told, &ran(key, steps)) {
                Some(WorkEvent::Steps { key: of, steps: now }) => {
                    assert!(new && of == key && now.len() == steps.len())
                }
                other => assert!(!new && other.is_none()),
            }
        }
    }
}
