//! How programs run: by a plan of the whole, in parts, together with other workers, or as what is left of a prefix.

use super::Executor;
use crate::backend::{Buffer, Coming, Early, Plan, PlanError, StepClock};
use crate::begun::{Begun, Rest};
use crate::early::{Looked, Wanted};
use crate::gang::seats::Seated;
use crate::gang::ties::Ties;
use crate::gang::{Communicator, Flight, Group};
use crate::parts::InParts;
use crate::plans::{Found, Made, Way, count_ops, panic_text};
use crate::timing::{self, Spent};
use crate::worker::Core;
use gt_ir::{Error, Program, Slot, Structure, Ty};
use gt_net::compiling::Compiling;
use gt_net::msg::SessionId;
use gt_net::observe::{Detail, Timing};
use gt_sync::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Who looks at a program while it runs.
pub(super) struct Look<'a> {
    pub detail: Detail,
    pub wanted: Wanted,
    /// Takes a live-out by its number, with the request for it if there is one.
    pub take: &'a dyn Fn(usize, Option<u64>, Coming),
}

/// What a program has come to.
pub(super) struct Done {
    pub outs: Vec<Buffer>,
    pub types: Arc<[Ty]>,
    /// How often each op occurs.
    pub ops: Arc<[(&'static str, u64)]>,
    pub spent: Spent,
    /// For a rank of a gang whose device is still at it.
    pub flight: Option<Box<dyn Flight>>,
}

/// A gang as the executor shows it to a plan: what departs is kept, to be watched while other programs run.
struct Departures<'a> {
    group: &'a dyn Group,
    flight: Mutex<Option<Box<dyn Flight>>>,
}

impl Group for Departures<'_> {
    fn axis(&self, axis: u8) -> Result<&dyn Communicator, PlanError> {
        self.group.axis(axis)
    }

    fn agree(&self) -> Result<(), PlanError> {
        self.group.agree()
    }

    fn all(&self) -> Option<&dyn Communicator> {
        self.group.all()
    }

    fn failed(&self) -> Option<PlanError> {
        self.group.failed()
    }

    fn ties(&self) -> Option<&Ties> {
        self.group.ties()
    }

    fn depart(&self, flight: Box<dyn Flight>) -> Result<(), PlanError> {
        *self.flight.lock() = Some(flight);
        Ok(())
    }
}

impl Executor {
    /// Runs this worker's part of a gang. Every rank has a plan of the whole, so that all meet in the same order.
    pub(super) fn together(
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
            let group = Departures { group: seat.group()?, flight: Mutex::default() };
            let look = Look { detail, wanted: Wanted::new(), take: &|_, _, _| {} };
            let (outs, spent) = run_made(&core, session, made, inputs, &program.slots, &look, Some(&group))?;
            let flight = group.flight.into_inner();
            Ok(Done { outs, types: made.outs.clone(), ops: made.ops.clone(), spent, flight })
        };
        let done = made.map_err(|error| PlanError { instr: None, error }).and_then(run);
        if let Err(error) = &done {
            seat.fail(error);
        }
        (found, start.elapsed(), done)
    }

    /// Runs a program from its start, by its plan or in parts.
    pub(super) fn whole(
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
                Ok(Done { outs, types: made.outs.clone(), ops: made.ops.clone(), spent, flight: None })
            }
            Way::Parts(parts) => {
                let clock = StepClock::start();
                let outs = run_parts(&self.core, session, &parts, structure, inputs, &program.slots, &clock)?;
                let spent = spent_in_parts(&parts, structure, clock);
                Ok(Done { outs, types: parts.outs, ops: parts.ops, spent, flight: None })
            }
        });
        (found, start.elapsed(), done)
    }

    /// Runs what is left of a program that was begun early. Nothing if it has to run from its start after all: its
    /// plan is there, it began otherwise, or what is left has failed, which is told better by the whole (C5).
    pub(super) fn go_on(
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
                let ops = count_ops(&program.structure);
                let done = Done { outs, types: types.into(), ops, spent, flight: None };
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
    pub(super) fn run_rest(
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
pub(super) struct Ran {
    /// How long plans took, those of the prefix included.
    pub planning: Duration,
    /// How long it ran.
    pub busy: Duration,
    pub types: Vec<Ty>,
    pub outs: Vec<Buffer>,
}
