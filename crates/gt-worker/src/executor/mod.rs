//! The thread that runs programs: in order within a session, in turns between sessions.

mod end;
mod next;
mod run;

use crate::aside::Aside;
use crate::backend::PlanError;
use crate::begun::Begun;
use crate::early::Wanted;
use crate::gang::aloft::Doubt;
use crate::gang::seats::Seated;
use crate::plans::{Found, Plans};
use crate::rescue::{Rescued, blame, rescue};
use crate::road::Job;
use crate::table::{Item, Watch};
use crate::timing::Spent;
use crate::watched::Record;
use crate::worker::{Core, State, Upload};
use end::{failed, succeeded};
use gt_ir::Program;
use gt_net::msg::{Compiled, Failure, Gang, Prefix, Run, SessionId, WorkerMsg};
use gt_net::observe::Detail;
use next::{Next, next};
use run::Look;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) struct Executor {
    core: Arc<Core>,
    plans: Plans,
    /// Says what it does on stderr (`GT_DEBUG_WORKER=1`).
    debug: bool,
}

/// More bytes than this are brought to a device that queues work by the moving thread.
const ASIDE: usize = 4 << 20;

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
                Next::Item(session, Item::Run(run)) => drop(self.program(session, run, None)),
                Next::Item(session, Item::Gang(gang, share)) => {
                    let seat = core.sit(gang);
                    match self.program(session, share.run(), Some((gang, &seat))) {
                        Some(doubt) => {
                            core.pass(gang);
                            core.watch(&doubt);
                        }
                        None => core.rise(gang),
                    }
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
                    let parcel = core.state.lock().parcel(session, tensor, goal, to);
                    let _ = core.jobs.lock().send(Job::Send(Box::new(parcel)));
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

    /// Runs a program. It succeeds as a whole or changes nothing but its results' poison (C5). Gives the doubt in which a
    /// gang's program is while the device is at it.
    fn program(&mut self, session: SessionId, run: Run, gang: Option<(Gang, &Seated)>) -> Option<Arc<Doubt>> {
        let Run { seq, program, prefix } = &run;
        let seat = gang.map(|(_, seat)| seat);
        self.core.config.backend.turn(session.0);
        self.core.aside.get().into_iter().flatten().for_each(Aside::note);
        let mut state = self.core.state.lock();
        let detail = state.detail(session);
        let table = state.sessions.get_mut(&session)?;
        let start = Instant::now();
        let waited = table.arrived.pop_front().map_or(Duration::ZERO, |came| start - came);
        table.waited += waited;
        table.programs += 1;
        let watch = table.watch;
        let how = table.compiling.or(self.core.config.compiling);
        let mut novel = table.novel;
        let begun = prefix.and_then(|id| table.take_begun(id));
        let mut inputs = match table.take_inputs(*seq, program) {
            Ok(inputs) => inputs,
            Err(failure) => {
                failed(state, session, &run, None, failure.clone(), Rescued::default());
                let Failure { instr, error, .. } = failure;
                seat.into_iter().for_each(|s| s.fail(&PlanError { instr, error: error.clone() }));
                return None;
            }
        };
        // Nothing is given before its end while anything is in doubt.
        let wanted = if table.hanging.is_empty() { table.wanted(program) } else { Wanted::new() };
        let past = std::mem::take(&mut table.known);
        state.watched.running = Some((session, start));
        drop(state);
        drop(past);
        let core = self.core.clone();
        let take = |out: usize, req: Option<u64>, bytes| match req {
            Some(req) => core.give(session, req, bytes),
            None => core.keep(session, program.outs[out], bytes),
        };
        let look = Look { detail, wanted, take: &take };
        let (begun_early, (found, busy, outcome)) = match seat {
            Some(seat) => (false, self.together(session, how, program, &mut inputs.buffers, seat, detail)),
            None => match self.go_on(session, how, begun, program, &mut inputs.buffers) {
                Some(done) => (true, done),
                None => (false, self.whole(session, how, &mut novel, program, &mut inputs.buffers, &look)),
            },
        };
        if self.debug || watch.work || watch.plans {
            self.describe(session, watch, &run, &found, busy, outcome.is_err());
        }
        // A device that queues work tells its time later.
        let took = if self.core.config.backend.queues() { Duration::ZERO } else { busy };
        let spent = outcome.as_ref().map_or_else(|_| Spent::default(), |done| done.spent.clone());
        let record = Record {
            session,
            seq: *seq,
            key: program.key,
            instrs: program.structure.instrs.len() as u32,
            start,
            took,
            waited,
            planning: found.took,
            why: found.why(),
            failed: outcome.is_err(),
            begun_early,
            spent,
        };
        let mut state = self.core.state.lock();
        self.note(&mut state, program, &found, novel, record, detail);
        match outcome {
            Ok(done) => {
                let flight = done.flight.zip(gang);
                let doubt = flight.map(|(f, (gang, seat))| Doubt::new(*seq, gang, f, seat.clone()));
                for (op, count) in done.ops.iter() {
                    *state.counters.ops.entry(op).or_default() += count;
                }
                let dropped =
                    succeeded(&mut state, session, &run, &done.types, done.outs, took, doubt.as_ref());
                drop(state);
                // Memory goes back with no lock held.
                drop((dropped, inputs));
                doubt
            }
            Err(failure) => {
                drop(state);
                let PlanError { instr, error } = blame(&program.structure, failure);
                let rescued = match seat {
                    Some(_) => Rescued::default(),
                    None => rescue(&*self.core.config.backend, program, &inputs.buffers, instr),
                };
                let failure = Failure { root: *seq, instr, error };
                failed(self.core.state.lock(), session, &run, Some(inputs), failure, rescued);
                None
            }
        }
    }

    /// Counts a program that has run.
    fn note(
        &self,
        state: &mut State,
        program: &Program,
        found: &Found,
        novel: u32,
        record: Record,
        detail: Detail,
    ) {
        let (session, backend) = (record.session, &self.core.config.backend);
        let counters = &mut state.counters;
        counters.programs += 1;
        counters.instructions += program.structure.instrs.len() as u64;
        counters.busy_seconds += record.took.as_secs_f64();
        counters.found(found);
        let compiled = found.why().map(|why| Compiled {
            key: program.key,
            instrs: program.structure.instrs.len() as u32,
            micros: found.took.as_micros() as u64,
            why: why.into(),
        });
        state.watched.running = None;
        let Some(table) = state.sessions.get_mut(&session) else {
            // It ended meanwhile, and what the device keeps for it goes too.
            backend.end(session.0);
            return state.ran(&self.core, record, detail);
        };
        table.compiled.extend(compiled);
        table.novel = novel;
        match backend.queues() {
            // Its time is known when the batch ends.
            true => table.queued.push(record),
            false => state.ran(&self.core, record, detail),
        }
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
            work.iter().for_each(|line| gt_ir::say!("{line}"));
        }
        let mut lines = if watch.plans { plans } else { Vec::new() };
        if watch.work {
            lines.append(&mut work);
        }
        if !lines.is_empty() {
            (self.core.say)(WorkerMsg::Lines { session, lines });
        }
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
            gt_ir::say!("gt worker: session {} prefix {id} of {ops} ops {how} in {busy:?}", session.0);
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
}
