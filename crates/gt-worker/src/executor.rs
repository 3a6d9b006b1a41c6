//! The thread that runs programs: in order within a session, in turns between sessions.

use crate::backend::{Buffer, Coming, Early, Plan, PlanError, StepClock};
use crate::begun::{Begun, Rest};
use crate::early::{Looked, PATIENCE, Wanted};
use crate::finish::Closing;
use crate::gang::Group;
use crate::gang::seats::Seated;
use crate::parts::InParts;
use crate::plans::{Found, Made, Plans, Way, count_ops, panic_text};
use crate::rescue::rescue;
use crate::road::{self, Job, Parcel};
use crate::table::{Entry, Inputs, Item, SessionTable, Watch};
use crate::timing::{self, Spent};
use crate::watched::Record;
use crate::worker::{Core, State, Upload};
use gt_ir::{Error, Program, Slot, Structure, TensorId, Ty};
use gt_net::compiling::Compiling;
use gt_net::msg::{Compiled, Failure, Fetch, Prefix, Run, SessionId, WorkerMsg};
use gt_net::observe::{Detail, Timing};
use gt_net::spin;
use gt_sync::MutexGuard;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

pub(crate) struct Executor {
    core: Arc<Core>,
    plans: Plans,
    /// Says what it does on stderr (`GT_DEBUG_WORKER=1`).
    debug: bool,
}

/// What to do next.
enum Next {
    Upload(Upload),
    Item(SessionId, Item),
    /// Nothing that would tell of this session's finished programs.
    Tell(SessionId),
    /// Nothing: a plan that is owed may be made.
    Spare,
    Stop,
}

/// Who looks at a program while it runs.
struct Look<'a> {
    detail: Detail,
    wanted: Wanted,
    /// Takes a live-out by its number, with the request for it if there is one.
    take: &'a dyn Fn(usize, Option<u64>, Coming),
}

/// What a program has come to.
struct Done {
    outs: Vec<Buffer>,
    types: Arc<[Ty]>,
    /// How often each op occurs.
    ops: Arc<[(&'static str, u64)]>,
    spent: Spent,
}

/// More bytes than this are brought to a device that queues work by the moving thread.
const ASIDE: usize = 4 << 20;

/// How often promises and early bytes are looked through while any are left.
const SWEEP: Duration = Duration::from_secs(10);

impl Executor {
    pub fn new(core: Arc<Core>) -> Executor {
        let plans = Plans::new(core.sequences.clone());
        Executor { core, plans, debug: gt_ir::env::on("GT_DEBUG_WORKER") }
    }

    pub fn run(mut self) {
        let core = self.core.clone();
        core.config.backend.settle();
        loop {
            match next(&core, self.plans.owes()) {
                Next::Stop => return,
                Next::Spare => self.make_owed(),
                Next::Tell(session) => self.tell(session),
                Next::Upload(upload) => self.upload(upload),
                Next::Item(session, Item::Run(run)) => self.program(session, run, None),
                Next::Item(session, Item::Gang(gang, run)) => {
                    let seat = core.sit(gang);
                    self.program(session, *run, Some(&seat));
                    core.rise(gang);
                }
                Next::Item(session, Item::Prefix(prefix)) => self.prefix(session, prefix),
                Next::Item(session, Item::Forget(prefix)) => {
                    let mut state = core.state.lock();
                    let begun = state.sessions.get_mut(&session).and_then(|t| t.take_begun(prefix));
                    drop(state);
                    drop(begun);
                }
                Next::Item(session, Item::Close { fetches, frees }) => self.close(session, &fetches, &frees),
                Next::Item(session, Item::Send { tensor, goal, to }) => {
                    let what = core.state.lock().find(session, tensor);
                    let _ = core.jobs.lock().send(Job::Send(Box::new(Parcel {
                        session,
                        tensor,
                        goal,
                        to,
                        what,
                    })));
                }
            }
        }
    }

    fn upload(&self, upload: Upload) {
        // Copying much takes time, in which programs can be queued.
        if self.core.config.backend.queues() && upload.ty.bytes() > ASIDE {
            let _ = self.core.jobs.lock().send(Job::Upload(Box::new(upload)));
            return;
        }
        self.core.take_in(upload);
    }

    /// Runs a program. It succeeds as a whole or changes nothing but its results' poison (C5).
    fn program(&mut self, session: SessionId, run: Run, seat: Option<&Seated>) {
        let Run { seq, program, prefix } = &run;
        self.core.config.backend.turn(session.0);
        let mut state = self.core.state.lock();
        let detail = state.detail(session);
        let Some(table) = state.sessions.get_mut(&session) else { return };
        let begin = Instant::now();
        let waited = table.arrived.pop_front().map_or(Duration::ZERO, |came| begin - came);
        table.waited += waited;
        table.programs += 1;
        let watch = table.watch;
        let how = table.compiling.or(self.core.config.compiling);
        let mut novel = table.novel;
        let begun = prefix.and_then(|id| table.take_begun(id));
        let mut inputs = match table.take_inputs(*seq, program) {
            Ok(inputs) => inputs,
            Err(failure) => {
                failed(state, session, &run, None, failure.clone(), Vec::new());
                let Failure { instr, error, .. } = failure;
                return seat.into_iter().for_each(|s| s.fail(&PlanError { instr, error: error.clone() }));
            }
        };
        let wanted = table.wanted(program);
        let past = std::mem::take(&mut table.known);
        state.watched.running = Some((session, begin));
        drop(state);
        drop(past);
        let core = self.core.clone();
        let take = |out: usize, req: Option<u64>, bytes| match req {
            Some(req) => core.give(session, req, bytes),
            None => core.keep(session, program.outs[out], bytes),
        };
        let look = Look { detail, wanted, take: &take };
        let (early, (found, busy, outcome)) = match seat {
            Some(seat) => (false, self.together(session, how, program, &mut inputs.buffers, seat, detail)),
            None => match self.go_on(session, how, begun, program, &mut inputs.buffers) {
                Some(done) => (true, done),
                None => (false, self.whole(session, how, &mut novel, program, &mut inputs.buffers, &look)),
            },
        };
        if self.debug || watch.work || watch.plans {
            self.describe(session, watch, &run, &found, busy, outcome.is_err());
        }
        let mut state = self.core.state.lock();
        let counters = &mut state.counters;
        counters.programs += 1;
        counters.instructions += program.structure.instrs.len() as u64;
        // A device that queues work tells its time later.
        let busy = if self.core.config.backend.queues() { Duration::ZERO } else { busy };
        counters.busy_seconds += busy.as_secs_f64();
        counters.found(&found);
        let compiled = found.why().map(|why| Compiled {
            key: program.key,
            instrs: program.structure.instrs.len() as u32,
            micros: found.took.as_micros() as u64,
            why: why.into(),
        });
        match state.sessions.get_mut(&session) {
            Some(table) => {
                table.compiled.extend(compiled);
                table.novel = novel;
            }
            // It ended meanwhile, and what the device keeps for it goes too.
            None => self.core.config.backend.end(session.0),
        }
        let spent = outcome.as_ref().map_or_else(|_| Spent::default(), |done| done.spent.clone());
        let record = Record {
            session,
            seq: *seq,
            key: program.key,
            instrs: program.structure.instrs.len() as u32,
            start: begin,
            took: busy,
            waited,
            planning: found.took,
            why: found.why(),
            failed: outcome.is_err(),
            begun_early: early,
            spent,
        };
        state.watched.running = None;
        match state.sessions.get_mut(&session).filter(|_| self.core.config.backend.queues()) {
            // Its time is known when the batch ends.
            Some(table) => table.queued.push(record),
            None => state.ran(&self.core, record, detail),
        }
        let counters = &mut state.counters;
        let dropped = match outcome {
            Ok(Done { outs, types, ops, .. }) => {
                for (op, count) in ops.iter() {
                    *counters.ops.entry(op).or_default() += count;
                }
                succeeded(&mut state, session, &run, &types, outs, busy)
            }
            Err(PlanError { instr, error }) => {
                drop(state);
                let spared = match seat {
                    Some(_) => Vec::new(),
                    None => rescue(&*self.core.config.backend, program, &inputs.buffers, instr),
                };
                let failure = Failure { root: *seq, instr, error };
                return failed(self.core.state.lock(), session, &run, Some(inputs), failure, spared);
            }
        };
        drop(state);
        // Memory goes back with no lock held.
        drop((dropped, inputs));
    }

    /// Says what was done for a program: here (`GT_DEBUG_WORKER`), and to a client that watches (C13).
    fn describe(
        &self,
        session: SessionId,
        watch: Watch,
        run: &Run,
        found: &Found,
        busy: Duration,
        failed: bool,
    ) {
        let (key, ops) = (run.program.key, run.program.structure.instrs.len());
        let mut work = Vec::new();
        let mut plans = Vec::new();
        if let Some(why) = found.why() {
            let line = format!("plan {key:016x} of {ops} ops made in {:?} ({why})", found.took);
            plans.push(format!("gt compile: {line}"));
            plans.extend(self.plans.text(&run.program));
            work.push(format!("gt worker: {line}"));
        }
        let how = if failed { ", failed" } else { "" };
        let (id, seq) = (session.0, run.seq);
        work.push(format!("gt worker: session {id} program {seq} key={key:016x} ran in {busy:?}{how}"));
        if self.debug {
            work.iter().for_each(|line| eprintln!("{line}"));
        }
        let mut lines = if watch.plans { plans } else { Vec::new() };
        if watch.work {
            lines.append(&mut work);
        }
        if !lines.is_empty() {
            (self.core.say)(WorkerMsg::Lines { session, lines });
        }
    }

    /// Runs this worker's part of a gang. Every rank has a plan of the whole, so that all meet in the same order.
    fn together(
        &mut self,
        session: SessionId,
        how: Compiling,
        program: &Program,
        inputs: &mut Vec<Buffer>,
        seat: &Seated,
        detail: Detail,
    ) -> (Found, Duration, Result<Done, PlanError>) {
        let core = self.core.clone();
        let (found, made) = self.plans.compiled(&core.config.backend, program.key, &program.structure, how);
        let start = Instant::now();
        let run = |made: &Made| {
            let group = seat.group()?;
            let look = Look { detail, wanted: Wanted::new(), take: &|_, _, _| {} };
            let (outs, spent) = run_made(&core, session, made, inputs, &program.slots, &look, Some(group))?;
            Ok(Done { outs, types: made.outs.clone(), ops: made.ops.clone(), spent })
        };
        let done = made.map_err(|error| PlanError { instr: None, error }).and_then(run);
        if let Err(error) = &done {
            seat.fail(error);
        }
        (found, start.elapsed(), done)
    }

    /// Runs a program from its start, by its plan or in parts.
    fn whole(
        &mut self,
        session: SessionId,
        how: Compiling,
        novel: &mut u32,
        program: &Program,
        inputs: &mut Vec<Buffer>,
        look: &Look,
    ) -> (Found, Duration, Result<Done, PlanError>) {
        let (backend, structure) = (&self.core.config.backend, &program.structure);
        let (found, way) = match how.auto() {
            true => self.plans.get(backend, program.key, structure, how, novel),
            false => {
                let (found, parts) = self.plans.op_by_op(backend, structure, how);
                (found, parts.map(Way::Parts))
            }
        };
        let start = Instant::now();
        let done = way.map_err(|error| PlanError { instr: None, error }).and_then(|way| match way {
            Way::Whole(made) => {
                let (outs, spent) = run_made(&self.core, session, made, inputs, &program.slots, look, None)?;
                Ok(Done { outs, types: made.outs.clone(), ops: made.ops.clone(), spent })
            }
            Way::Parts(parts) => {
                let clock = StepClock::start();
                let outs = run_parts(&self.core, session, &parts, structure, inputs, &program.slots, &clock)?;
                let spent = spent_in_parts(&parts, structure, clock);
                Ok(Done { outs, types: parts.outs, ops: parts.ops, spent })
            }
        });
        (found, start.elapsed(), done)
    }

    /// Runs what is left of a program that was begun early. Nothing if it has to run from its start after all: its
    /// plan is there, it began otherwise, or what is left has failed, which is told better by the whole (C5).
    fn go_on(
        &mut self,
        session: SessionId,
        how: Compiling,
        begun: Option<Begun>,
        program: &Program,
        inputs: &mut Vec<Buffer>,
    ) -> Option<(Found, Duration, Result<Done, PlanError>)> {
        let rest = begun.filter(|_| !self.plans.has(program))?.rest(program)?;
        let given = inputs.len();
        match self.run_rest(session, how, rest, inputs, &program.slots) {
            Ok(Ran { planning, busy, types, outs }) => {
                self.core.state.lock().counters.begun_early += 1;
                let shares = timing::estimate(&program.structure);
                let spent = Spent { shares, ..Spent::default() };
                let done = Done { outs, types: types.into(), ops: count_ops(&program.structure), spent };
                let found = match how.auto() {
                    true => self.plans.owe(&self.core.config.backend, program, how, planning),
                    // Its plans are counted already.
                    false => self.plans.nothing(),
                };
                Some((found, busy, Ok(done)))
            }
            Err(error) if inputs.len() < given => {
                // It panicked and lost its inputs: there is nothing to start from.
                let backend = &self.core.config.backend;
                let found = self.plans.owe(backend, program, how, Duration::ZERO);
                Some((found, Duration::ZERO, Err(error)))
            }
            Err(_) => {
                inputs.truncate(given);
                None
            }
        }
    }

    /// Runs what is left of a program; its own inputs come first.
    fn run_rest(
        &mut self,
        session: SessionId,
        how: Compiling,
        mut rest: Rest,
        inputs: &mut Vec<Buffer>,
        slots: &[Slot],
    ) -> Result<Ran, PlanError> {
        let core = self.core.clone();
        let backend = &core.config.backend;
        let wrong = |error| PlanError { instr: None, error };
        let start = Instant::now();
        let structure = Arc::new(rest.take_structure());
        // Nothing may be left to do.
        if structure.instrs.is_empty() && structure.outs.is_empty() {
            inputs.append(&mut rest.buffers);
            let planning = rest.planning;
            let (types, outs) = rest.finish(&[], Vec::new());
            return Ok(Ran { planning, busy: Duration::ZERO, types, outs });
        }
        let (mut found, way) = match how.auto() {
            true => self.plans.get(backend, structure.key(), &structure, how, &mut 0),
            false => {
                let (found, parts) = self.plans.op_by_op(backend, &structure, how);
                (found, parts.map(Way::Parts))
            }
        };
        if how.auto() {
            // It is the whole that hits or misses, and its time is counted with it.
            (found.hits, found.misses, found.resized, found.took) = (0, 0, false, Duration::ZERO);
        }
        core.state.lock().counters.found(&found);
        let (way, planned) = (way.map_err(wrong)?, Instant::now());
        let planning = planned - start + rest.planning;
        inputs.append(&mut rest.buffers);
        let (made, types) = match way {
            Way::Whole(own) => {
                (run_plan(&core, session, &*own.plan, inputs, slots, None, None, None)?, own.outs.clone())
            }
            Way::Parts(parts) => {
                let clock = StepClock::start();
                (run_parts(&core, session, &parts, &structure, inputs, slots, &clock)?, parts.outs)
            }
        };
        let (types, outs) = rest.finish(&types, made);
        Ok(Ran { planning, busy: planned.elapsed(), types, outs })
    }

    /// Begins a program early. Whatever goes wrong is forgotten: the program will come.
    fn prefix(&mut self, session: SessionId, prefix: Prefix) {
        let Prefix { id, program } = prefix;
        self.core.config.backend.turn(session.0);
        let mut state = self.core.state.lock();
        let Some(table) = state.sessions.get_mut(&session) else { return };
        let how = table.compiling.or(self.core.config.compiling);
        let before = table.take_begun(id).unwrap_or_default();
        let donates = program.structure.inputs.iter().any(|input| input.dies);
        let inputs = if donates { None } else { table.take_inputs(0, &program).ok() };
        drop(state);
        let (Some(mut inputs), Some(rest)) = (inputs, before.rest(&program)) else { return };
        let done = self.run_rest(session, how, rest, &mut inputs.buffers, &program.slots).ok();
        drop(inputs);
        let busy = done.as_ref().map_or(Duration::ZERO, |ran| ran.busy);
        if self.debug {
            let (ops, how) = (program.structure.instrs.len(), if done.is_some() { "ran" } else { "failed" });
            eprintln!("gt worker: session {} prefix {id} of {ops} ops {how} in {busy:?}", session.0);
        }
        let begun = done.map(|ran| Begun::new(program, ran.types, ran.outs, ran.planning));
        let mut state = self.core.state.lock();
        state.counters.busy_seconds += busy.as_secs_f64();
        let table = state.sessions.get_mut(&session);
        let unwanted = match (table, begun) {
            (Some(table), Some(begun)) => table.keep_begun(id, begun),
            (_, begun) => begun,
        };
        drop(state);
        drop(unwanted);
    }

    /// Makes a plan that could not be made when its program ran.
    fn make_owed(&mut self) {
        if let Some(found) = self.plans.make_owed(&self.core.config.backend) {
            self.core.state.lock().counters.found(&found);
        }
    }

    /// Ends a batch: gives the values asked for, carries out its frees and tells the dispatcher, once the device is done.
    fn close(&self, session: SessionId, fetches: &[Fetch], frees: &[TensorId]) {
        let backend = &self.core.config.backend;
        backend.turn(session.0);
        if !fetches.is_empty() {
            // Whoever gets the answer, and whoever brings it, needs a core now.
            backend.rest();
        }
        let mut values = Vec::with_capacity(fetches.len());
        for fetch in fetches {
            let what = self.core.state.lock().find(session, fetch.tensor);
            let answer = what.and_then(|(ty, buffer)| self.core.answer(session, fetch.tensor, &ty, buffer));
            values.push((fetch.req, answer));
        }
        let mut state = self.core.state.lock();
        let Some(table) = state.sessions.get_mut(&session) else { return };
        let dropped: Vec<_> = frees.iter().filter_map(|id| table.remove(*id)).collect();
        let may_wait = values.is_empty() && table.may_wait();
        table.gave = false;
        if may_wait && !backend.queues() {
            state.untold = Some(session);
            drop(state);
            return drop(dropped);
        }
        let close = Closing { values, may_wait, ..table.closing(session) };
        let ran = std::mem::take(&mut table.queued);
        drop(state);
        drop(dropped);
        if close.finished.is_empty() && close.values.is_empty() {
            // Whoever keeps the word of earlier ones is not to keep it any longer.
            if backend.queues() {
                self.core.finish_later(close);
            }
            return;
        }
        match backend.queues() {
            true => self.core.finish_later(Closing { ran, done: Some(backend.mark()), ..close }),
            false => close.finish(&self.core),
        }
        self.core.tell_if_due();
    }

    /// Tells what waited for an answer to ride with.
    fn tell(&self, session: SessionId) {
        let close = self.core.state.lock().sessions.get_mut(&session).map(|table| table.closing(session));
        if let Some(close) = close.filter(|close| !close.finished.is_empty()) {
            close.finish(&self.core);
        }
        self.core.tell_if_due();
    }
}

/// Runs a plan if there is room for it. A panic is an error like others.
#[allow(clippy::too_many_arguments)]
fn run_plan(
    core: &Core,
    session: SessionId,
    plan: &dyn Plan,
    inputs: &mut Vec<Buffer>,
    slots: &[Slot],
    clock: Option<&StepClock>,
    early: Option<&Early>,
    group: Option<&dyn Group>,
) -> Result<Vec<Buffer>, PlanError> {
    core.reserve(session, plan.reserve()).map_err(|error| PlanError { instr: None, error })?;
    let run = AssertUnwindSafe(|| match (group, early, clock) {
        (Some(group), _, clock) => plan.run_gang(inputs, slots, group, clock),
        (None, Some(early), clock) => plan.run_early(inputs, slots, clock, early),
        (None, None, Some(clock)) => plan.run_timed(inputs, slots, clock),
        (None, None, None) => plan.run(inputs, slots),
    });
    catch_unwind(run).unwrap_or_else(|panic| {
        let error = Error::Runtime(format!("the program panicked: {}", panic_text(&*panic)));
        Err(PlanError { instr: None, error })
    })
}

/// Runs a plan, timing its steps when that is due or somebody wants to know.
fn run_made(
    core: &Core,
    session: SessionId,
    made: &Made,
    inputs: &mut Vec<Buffer>,
    slots: &[Slot],
    look: &Look,
    group: Option<&dyn Group>,
) -> Result<(Vec<Buffer>, Spent), PlanError> {
    let looked = Looked::new(&look.wanted, &made.outs);
    let give = |k: usize, bytes| (look.take)(looked.outs[k], looked.reqs.get(k).copied(), bytes);
    let early = Early { outs: &looked.outs, asked: looked.reqs.len(), give: &give };
    let early = (early.asked > 0).then_some(&early);
    if !made.timed.is_due() && look.detail < Detail::Kernels {
        let outs = run_plan(core, session, &*made.plan, inputs, slots, None, early, group)?;
        return Ok((outs, made.timed.known(&made.structure)));
    }
    let clock = if look.detail < Detail::Kernels { StepClock::start() } else { StepClock::watched() };
    let outs = run_plan(core, session, &*made.plan, inputs, slots, Some(&clock), early, group)?;
    Ok((outs, made.timed.note(&*made.plan, &made.structure, clock)))
}

/// Where the time of a program went that ran in parts.
fn spent_in_parts(parts: &InParts, structure: &Structure, clock: StepClock) -> Spent {
    let (steps, times) = (parts.steps(structure), clock.times());
    let shares = timing::shares(&steps, &times);
    let timing = Timing { steps: Arc::new(steps), times: times.clone(), shares };
    Spent { timing: Some(Arc::new(timing)), kernels: times, shares }
}

/// Runs a program in parts if there is room for it.
fn run_parts(
    core: &Core,
    session: SessionId,
    parts: &InParts,
    structure: &Structure,
    inputs: &mut Vec<Buffer>,
    slots: &[Slot],
    clock: &StepClock,
) -> Result<Vec<Buffer>, PlanError> {
    core.reserve(session, parts.reserve).map_err(|error| PlanError { instr: None, error })?;
    parts.run(structure, inputs, slots, clock)
}

/// What the rest of a program has come to.
struct Ran {
    /// How long plans took, those of the prefix included.
    planning: Duration,
    /// How long it ran.
    busy: Duration,
    types: Vec<Ty>,
    outs: Vec<Buffer>,
}

/// Waits for something to do: bytes first, then the next ready session after the one served last.
fn next(core: &Core, owes: bool) -> Next {
    let mut state = core.state.lock();
    let (mut rested, mut idle) = (false, None);
    // Learns how long it takes until there is something to do again.
    let found = |idle: Option<Instant>| idle.into_iter().for_each(|since| core.habit().took(since.elapsed()));
    loop {
        if state.stop {
            return Next::Stop;
        }
        if let Some(upload) = state.uploads.pop_front() {
            found(idle);
            return Next::Upload(upload);
        }
        let turn = SessionId(state.turn);
        let after = state.sessions.range((std::ops::Bound::Excluded(turn), std::ops::Bound::Unbounded));
        let gang = state.gangs.front().copied();
        let room = || has_room(core);
        let ready = after
            .chain(state.sessions.range(..=turn))
            .find_map(|(id, t)| t.ready(gang, room).map(|at| (*id, at)));
        if let Some((id, at)) = ready {
            // What waits to be told goes with the session's next answer, or now.
            if let Some(untold) = state.untold.take()
                && (untold != id || !state.sessions.get(&id).is_some_and(SessionTable::will_answer))
            {
                return Next::Tell(untold);
            }
            state.turn = id.0;
            if let Some(item) = state.sessions.get_mut(&id).and_then(|t| t.take(at)) {
                found(idle);
                return Next::Item(id, item);
            }
        }
        idle.get_or_insert_with(Instant::now);
        if !rested {
            // The next command is often near: stay awake for a moment, with the lock open, and look again.
            rested = true;
            core.config.backend.rest();
            let told = core.told.load(Ordering::Acquire);
            let more = || core.told.load(Ordering::Acquire) != told;
            let most = if state.untold.is_some() { PATIENCE } else { Duration::MAX };
            let awake = core.habit().awake_a_moment().min(most);
            MutexGuard::unlocked(&mut state, || spin::within(awake, more));
            continue;
        }
        if let Some(untold) = state.untold {
            let late = core.wake.wait_for(&mut state, PATIENCE).timed_out();
            if late && state.untold == Some(untold) {
                state.untold = None;
                return Next::Tell(untold);
            }
            continue;
        }
        let due = state.watched.due_in();
        if due.is_some_and(|left| left.is_zero()) {
            MutexGuard::unlocked(&mut state, || core.tell_events());
            continue;
        }
        if owes {
            return Next::Spare;
        }
        rested = false;
        let sweeps = !state.early.is_empty() || !state.promised.is_empty();
        match due.or(sweeps.then_some(SWEEP)) {
            Some(time) => drop(core.wake.wait_for(&mut state, time)),
            None => core.wake.wait(&mut state),
        }
        if sweeps {
            road::sweep(&mut state);
        }
    }
}

/// True if programs may run ahead of their turn: what they hold for longer leaves half of the memory free.
fn has_room(core: &Core) -> bool {
    let backend = &core.config.backend;
    backend.memory_in_use().0 < backend.memory() / 2
}

fn succeeded(
    state: &mut State,
    session: SessionId,
    run: &Run,
    types: &[Ty],
    outs: Vec<Buffer>,
    busy: Duration,
) -> Vec<Entry> {
    let outs = types.iter().zip(outs).map(|(ty, buffer)| Entry::Here { ty: ty.clone(), buffer });
    // A session that ended meanwhile wants nothing.
    let Some(table) = state.sessions.get_mut(&session) else { return outs.collect() };
    for (&id, out) in run.program.outs.iter().zip(outs) {
        table.insert(id, out);
    }
    table.busy += busy;
    table.finished.push(run.seq);
    run.program.frees.iter().filter_map(|id| table.remove(*id)).collect()
}

fn failed(
    mut state: MutexGuard<State>,
    session: SessionId,
    run: &Run,
    inputs: Option<Inputs>,
    failure: Failure,
    spared: Vec<(usize, Ty, Buffer)>,
) {
    let Some(table) = state.sessions.get_mut(&session) else { return };
    if let Some(inputs) = inputs {
        table.put_back(&run.program, inputs, &failure);
    }
    for &id in &run.program.outs {
        table.insert(id, Entry::Poisoned(failure.clone()));
    }
    for (at, ty, buffer) in spared {
        table.insert(run.program.outs[at], Entry::Here { ty, buffer });
        table.spared.push(run.program.outs[at]);
    }
    table.finished.push(run.seq);
    table.failures.push((run.seq, failure));
}
