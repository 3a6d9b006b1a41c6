//! A plan as one rank of a gang: its steps on the session's stream, its collectives together with the other ranks.
//!
//! A rank learns of all others' success before it overwrites anything that was given up (C5). By NCCL this is one more
//! reduction, of the words that failed checks are noted in, behind the last collective: the host waits for it, and what
//! follows is queued. By way of the host it is the gang's own agreement.

use super::gang_moves::most_scratch;
use super::gang_nccl::{Exchanges, Gang, types};
use super::gang_tie::{self, Comms};
use super::graph::Midway;
use super::lane::Lane;
use super::memory::JOINT;
use super::plan::{ASIDE, Bind, Inner};
use super::ranges::{Range, Verdict, judge};
use super::steps::{Bound, Steps};
use super::ticks::Ticks;
use super::{checks, gang_host};
use crate::backend::{Buffer, PlanError};
use crate::gang::Group;
use gt_compiler::{Plan, Work};
use gt_ir::{Error, Result, Slot, Structure};
use gt_sync::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a rank waits to hear why another one failed.
const HEARING: Duration = Duration::from_secs(10);

/// Axes of a plan's collectives, each with this rank's place along it and the number of ranks.
type Places = Vec<(u8, usize, usize)>;

/// Gangs that ran by NCCL, and by way of the host.
static RUN: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// How many gangs of this process ran by NCCL, and how many by way of the host.
pub fn gangs_run() -> (u64, u64) {
    (RUN[0].load(Ordering::Relaxed), RUN[1].load(Ordering::Relaxed))
}

/// What a plan has made ready for gangs.
#[derive(Default)]
pub struct Ready {
    exchanges: Mutex<Vec<(Places, Arc<Exchanges>)>>,
}

/// What a run needs before its steps are queued.
struct Start<'a> {
    lane: Arc<Lane>,
    /// Somebody wants to know when each step is done.
    ticks: Option<&'a Ticks>,
    steps: Arc<Steps>,
    scratch: u64,
    workspace: u64,
    ranges: Vec<Option<Range>>,
    /// Checks that are known to pass, and those that are not.
    passed: Vec<usize>,
    open: Vec<usize>,
}

fn wrong(error: Error) -> PlanError {
    PlanError { instr: None, error }
}

/// Steps after which all ranks agree that none has failed: from there on dying inputs are overwritten. None where
/// the last step that can fail is a collective, in which all have met.
fn agrees_at(plan: &Plan, structure: &Structure) -> Option<usize> {
    let last = plan.steps.iter().rposition(|s| s.can_fail());
    let met = last.is_some_and(|i| matches!(plan.steps[i].work, Work::Collective(_)));
    let donates = structure.inputs.iter().any(|i| i.dies);
    (donates && !met).then_some(last.map_or(0, |i| i + 1))
}

/// Bytes of scratch memory that the collectives of a plan may take.
pub fn scratch(plan: &Plan) -> usize {
    let most = |work: &Work| match work {
        Work::Collective(c) => most_scratch(&c.what, &types(c)),
        _ => 0,
    };
    plan.steps.iter().map(|step| most(&step.work)).max().unwrap_or(0)
}

impl Start<'_> {
    fn bound<'a>(&'a self, bind: &'a Bind, slots: &'a [Slot], gang: Option<&'a Gang<'a>>) -> Bound<'a> {
        let (addresses, failed) = (&bind.addresses[..], self.lane.failed);
        let Start { scratch, workspace, ticks, .. } = *self;
        Bound { addresses, slots, scratch, workspace, failed, ticks, gang }
    }
}

impl Inner {
    /// Runs the plan as one rank of a gang. What comes after the last collective has been queued when this returns.
    pub(super) fn run_gang(
        self: &Arc<Inner>,
        inputs: &mut [Buffer],
        slots: &[Slot],
        group: &dyn Group,
        ticks: Option<&Ticks>,
    ) -> Result<Vec<Buffer>, PlanError> {
        let mut axes: Vec<u8> = Vec::new();
        for step in &self.plan.steps {
            if let Work::Collective(c) = &step.work
                && !axes.contains(&c.axis)
            {
                axes.push(c.axis);
            }
        }
        let comms = match axes.is_empty() {
            true => None,
            false => gang_tie::comms(&self.shared, group, &axes)?,
        };
        RUN[comms.is_none() as usize].fetch_add(1, Ordering::Relaxed);
        match comms {
            Some(comms) => {
                let exchanges = self.exchanges(group, &axes)?;
                let met = self.plan.steps.iter().rposition(|s| s.can_fail()).map_or(0, |last| last + 1);
                let gang = Gang { plan: &self.plan, exchanges: &exchanges, comms: &comms, met };
                let start = self.start(inputs, slots, exchanges.scratch, ticks).map_err(wrong)?;
                let mut bind = self
                    .by_nccl(&start, inputs, slots, group, &gang)
                    .inspect_err(|_| comms.each().for_each(|comm| comm.cut()))?;
                Ok(self.outs(&mut bind, inputs, &start.ranges))
            }
            None => {
                let start = self.start(inputs, slots, 0, ticks).map_err(wrong)?;
                let mut bind = self.bind(inputs, &start.lane, None).map_err(wrong)?;
                self.by_host(&start, &bind, slots, group)?;
                Ok(self.outs(&mut bind, inputs, &start.ranges))
            }
        }
    }

    fn start<'a>(
        self: &Arc<Inner>,
        inputs: &[Buffer],
        slots: &[Slot],
        scratch: usize,
        ticks: Option<&'a Ticks>,
    ) -> Result<Start<'a>> {
        let lane = self.shared.lanes.mine()?;
        let (steps, _) = self.steps()?;
        lane.begin()?;
        let scratch = lane.scratch(steps.scratch.max(scratch).max(ASIDE))?;
        let workspace = match steps.workspace {
            0 => 0,
            bytes => lane.workspace(bytes.max(super::WORKSPACE))?,
        };
        let ranges = self.bounds(inputs, slots);
        let right = |i: &usize| judge(&self.plan.steps[*i].work, slots, &ranges) == Verdict::Right;
        let checks = self.checks.iter().filter(|i| !matches!(self.plan.steps[**i].work, Work::Collective(_)));
        let (passed, open) = checks.partition(|i| right(i));
        Ok(Start { lane, ticks, steps, scratch, workspace, ranges, passed, open })
    }

    /// The plan's collectives for this rank.
    fn exchanges(&self, group: &dyn Group, axes: &[u8]) -> Result<Arc<Exchanges>, PlanError> {
        let mut places = Places::new();
        for &axis in axes {
            let along = group.axis(axis)?;
            places.push((axis, along.rank(), along.size()));
        }
        let mut known = self.gangs.exchanges.lock();
        if let Some((_, made)) = known.iter().find(|(of, _)| *of == places) {
            return Ok(made.clone());
        }
        let place = |axis: u8| {
            places.iter().find(|(of, ..)| *of == axis).map_or((0, 1), |(_, rank, size)| (*rank, *size))
        };
        self.shared.device.enter().map_err(wrong)?;
        let made = Arc::new(Exchanges::new(&self.plan, &self.shared.kernels, place).map_err(wrong)?);
        known.push((places, made.clone()));
        Ok(made)
    }

    fn by_nccl(
        self: &Arc<Inner>,
        start: &Start,
        inputs: &mut [Buffer],
        slots: &[Slot],
        group: &dyn Group,
        gang: &Gang,
    ) -> Result<Bind, PlanError> {
        let Start { lane, steps, passed, .. } = start;
        // Ranks that meet for the first time make connections, for which the host may have to wait.
        let known = gang.comms.each().all(|comm| comm.has_met(self.id));
        let (_, made) = self.steps().map_err(wrong)?;
        let made = made.filter(|made| known && Arc::ptr_eq(&made.steps, steps) && start.open.is_empty());
        let made = made.filter(|_| start.ticks.is_none() && !gang_tie::compares());
        let bind = match made.filter(|made| self.graphs(made)) {
            Some(made) => {
                let mut kept = lane.kept.lock();
                let arena = match kept.graphs.arena(self.id) {
                    Some(arena) => Some(arena),
                    None => kept.graphs.new_arena(lane, self.plan.arena).map_err(wrong)?,
                };
                let at = arena.as_ref().map_or(0, |a| a.address());
                let bind = self.bind(inputs, lane, Some(at)).map_err(wrong)?;
                let run = start.bound(&bind, slots, Some(gang));
                let act = |addresses: &[u64]| self.agreed(&Bound { addresses, ..run }, lane, group, gang);
                let midway = Midway { after: gang.met, act: &act };
                let done = kept.graphs.launch(
                    self.id,
                    &self.alive,
                    &self.plan,
                    &made.shape,
                    steps,
                    arena,
                    &run,
                    Some(&midway),
                    lane,
                );
                drop(kept);
                if self.heard(done)? {
                    return Ok(bind);
                }
                // Nothing has been queued where it did not work out.
                bind
            }
            None => self.bind(inputs, lane, None).map_err(wrong)?,
        };
        let run = start.bound(&bind, slots, Some(gang));
        let put = || {
            lane.device.enter().map_err(wrong)?;
            match gang_tie::compares() {
                false => self.queue(steps, 0..gang.met, passed, &run, lane),
                true => self.compared(steps, 0..gang.met, passed, &run, lane, group, gang),
            }
        };
        match known {
            true => put()?,
            false => patiently(gang.comms, group, put)?,
        }
        self.agreed(&run, lane, group, gang)?;
        gang.comms.each().for_each(|comm| comm.note(self.id));
        let rest = gang.met..self.plan.steps.len();
        match gang_tie::compares() {
            false => self.queue(steps, rest, passed, &run, lane)?,
            true => self.compared(steps, rest, passed, &run, lane, group, gang)?,
        }
        Ok(bind)
    }

    /// Waits until all ranks have come to where nothing can fail any more.
    fn agreed(&self, run: &Bound, lane: &Lane, group: &dyn Group, gang: &Gang) -> Result<(), PlanError> {
        let joint = JOINT as usize;
        // SAFETY: the words are the lane's own.
        let told = unsafe { lane.receive(&lane.stream, lane.failed, joint + 8) }.map_err(wrong)?;
        gang_tie::wait(gang.comms, group, || told.passed())?;
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
        let words = told.wait(joint + 8, |bytes| (word(&bytes[..8]), word(&bytes[joint..])));
        match words.map_err(wrong)? {
            (0, 0) => Ok(()),
            (0, _) => Err(hear(group)),
            (own, _) => Err(self.explain(own, run, lane)),
        }
    }

    /// What a check says that failed here.
    fn explain(&self, word: u64, run: &Bound, lane: &Lane) -> PlanError {
        // SAFETY: the word is the lane's own.
        if let Err(error) = unsafe { lane.stream.zero(lane.failed, 8) } {
            return wrong(error);
        }
        match self.plan.steps.get(word as usize - 1) {
            Some(step) => {
                let error = checks::explain(step, &self.structure, run.addresses, run.slots, lane);
                PlanError { instr: Some(step.instr), error }
            }
            None => wrong(Error::Runtime(format!("cuda: a check failed that does not exist ({word})"))),
        }
    }

    fn by_host(
        &self,
        start: &Start,
        bind: &Bind,
        slots: &[Slot],
        group: &dyn Group,
    ) -> Result<(), PlanError> {
        let Start { lane, steps, passed, open, .. } = start;
        let run = start.bound(bind, slots, None);
        let agrees_at = agrees_at(&self.plan, &self.structure);
        // A check has been queued that nobody has looked at.
        let mut unheeded = false;
        let count = self.plan.steps.len();
        for i in 0..=count {
            let work = self.plan.steps.get(i).map(|step| &step.work);
            let meets = matches!(work, Some(Work::Collective(_)));
            let agrees = agrees_at == Some(i);
            // Bad values go nowhere: neither to others nor into what was given up.
            if unheeded && (meets || agrees || i == count) {
                self.heed(run.addresses, slots, lane)?;
                unheeded = false;
            }
            if agrees {
                group.agree()?;
            }
            match work {
                None => {}
                Some(Work::Collective(c)) => {
                    let instr = Some(self.plan.steps[i].instr);
                    start.ticks.map_or(Ok(()), |ticks| ticks.begin(lane)).map_err(wrong)?;
                    gang_host::run(c, &self.plan, &run, lane, group)
                        .map_err(|e| PlanError { instr: e.instr.or(instr), ..e })?;
                    start.ticks.map_or(Ok(()), |ticks| ticks.done(i, true, lane)).map_err(wrong)?;
                }
                Some(_) => {
                    self.queue(steps, i..i + 1, passed, &run, lane)?;
                    unheeded |= open.contains(&i);
                }
            }
        }
        Ok(())
    }
}

/// Why another rank failed.
fn hear(group: &dyn Group) -> PlanError {
    let start = Instant::now();
    while start.elapsed() < HEARING {
        if let Some(failed) = group.failed() {
            return failed;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    wrong(Error::Runtime("another rank of the gang failed and did not say why".into()))
}

/// Queues work on a thread of its own, so that ranks which wait for others in vain can be cut off.
fn patiently(
    comms: &Comms,
    group: &dyn Group,
    put: impl FnOnce() -> Result<(), PlanError> + Send,
) -> Result<(), PlanError> {
    std::thread::scope(|s| {
        let putting = s.spawn(put);
        let waited = gang_tie::wait(comms, group, || Ok(putting.is_finished()));
        let put = putting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        waited.and(put)
    })
}
