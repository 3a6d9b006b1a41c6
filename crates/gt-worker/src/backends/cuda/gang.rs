//! A plan as one rank of a gang: its steps on the session's stream, its collectives together with the other ranks.
//!
//! Ranks agree on how they run it once each has its memory (`gang_pact`): by then nothing is left that could fail on the
//! host. Where no rank has a check that only the device can make, all of it is queued and nobody waits: the gang is aloft,
//! and whoever watches it hears of a rank that dies. Else a rank learns of all others' success before it overwrites
//! anything that was given up (C5): by one more reduction, of the words that failed checks are noted in, behind the last
//! collective. The host waits for that, and queues what follows. By way of the host it is the gang's own agreement.

use super::driver::Event;
use super::gang_aloft::Aloft;
use super::gang_moves::most_scratch;
use super::gang_nccl::{Exchanges, Gang, types};
use super::gang_pact::{self, Offer, Way};
use super::gang_tie::{self, Comms};
use super::graph::{Launched, What};
use super::lane::{Kept, Lane};
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

/// Gangs that ran by NCCL, by way of the host, and as graphs.
static RUN: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];
const BY_NCCL: usize = 0;
const BY_HOST: usize = 1;
const AS_GRAPHS: usize = 2;

/// How many gangs of this process ran by NCCL, how many by way of the host, and how many of the first as graphs.
pub fn gangs_run() -> (u64, u64, u64) {
    let of = |what: usize| RUN[what].load(Ordering::Relaxed);
    (of(BY_NCCL), of(BY_HOST), of(AS_GRAPHS))
}

fn count(what: usize) {
    RUN[what].fetch_add(1, Ordering::Relaxed);
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
        count(if comms.is_some() { BY_NCCL } else { BY_HOST });
        match comms {
            Some(comms) => {
                let exchanges = self.exchanges(group, &axes)?;
                let met = self.plan.steps.iter().rposition(|s| s.can_fail()).map_or(0, |last| last + 1);
                let gang = Gang { plan: &self.plan, exchanges: &exchanges, comms: &comms, met, waits: false };
                let start = self.start(inputs, slots, exchanges.scratch, ticks).map_err(wrong)?;
                let mut bind = self.by_nccl(&start, inputs, slots, group, &gang).inspect_err(|failed| {
                    comms.cut_for(&failed.error);
                    start.lane.kept.lock().graphs.forget(&comms);
                })?;
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
        let Some(all) = group.all() else { return Err(wrong(Error::Runtime("gang: no ranks".into()))) };
        // Ranks that meet for the first time make connections, for which the host may have to wait.
        let known = gang.comms.each().all(|comm| comm.has_met(self.id));
        let waits = !known || !start.open.is_empty() || gang_tie::compares();
        let (_, made) = self.steps().map_err(wrong)?;
        let made = made.filter(|made| !waits && start.ticks.is_none() && Arc::ptr_eq(&made.steps, steps));
        let made = made.filter(|made| self.graphs(made));
        // Held until all is queued, so that nobody takes away what this rank has offered.
        let mut kept = lane.kept.lock();
        let mut arena = kept.graphs.arena(self.id);
        if arena.is_none() && made.is_some() {
            arena = kept.graphs.new_arena(lane, self.plan.arena).map_err(wrong)?;
        }
        let at = arena.as_ref().map(|a| a.address());
        let bind = self.bind(inputs, lane, at).map_err(wrong)?;
        let run = start.bound(&bind, slots, Some(gang));
        let what = made.map(|made| self.what(made, lane));
        let fits = match &what {
            Some(what) => kept.graphs.offer(what, arena, &run, gang.comms).map_err(wrong)?,
            None => None,
        };
        let offer = Offer { waits, graphs: fits.is_some(), fits: fits.unwrap_or_default() };
        let way = gang_pact::agree(all, offer)?;
        self.shared.gangs.follow(lane).map_err(wrong)?;
        let launched = match (way, &what) {
            (Way::Watched, _) => {
                drop(kept);
                self.watched(start, &run, group, gang, known)?;
                return Ok(bind);
            }
            (Way::Capture, Some(what)) => {
                let number = gang.comms.all.next_capture();
                match self.captured(&mut kept, what, &run, group, gang, number)? {
                    true => Some(kept.graphs.replay(what, &run, number).map_err(wrong)?),
                    false => None,
                }
            }
            (Way::Replay(number), Some(what)) => Some(kept.graphs.replay(what, &run, number).map_err(wrong)?),
            (Way::Plain | Way::Capture | Way::Replay(_), _) => None,
        };
        drop(kept);
        match launched {
            Some(Launched::Torn(error)) => return Err(wrong(error)),
            Some(Launched::All | Launched::Nothing) => count(AS_GRAPHS),
            None => self.queue(steps, 0..steps.list.len(), passed, &run, lane)?,
        }
        let aloft = Aloft::new(lane, gang.comms).map_err(wrong)?;
        self.shared.gangs.queued(lane, aloft.end());
        group.depart(Box::new(aloft))?;
        Ok(bind)
    }

    /// Captures the plan with all other ranks. Where one of them could not, none launches it, and all do without from
    /// now on.
    fn captured(
        &self,
        kept: &mut Kept,
        what: &What,
        run: &Bound,
        group: &dyn Group,
        gang: &Gang,
        number: u32,
    ) -> Result<bool, PlanError> {
        let Some(all) = group.all() else { return Ok(false) };
        let mut done = Ok(());
        let graphs = &mut kept.graphs;
        patiently(gang.comms, group, || {
            what.lane.device.enter().map_err(wrong)?;
            done = graphs.capture(what, run, number, gang.comms);
            Ok(())
        })?;
        if gang_pact::all_could(all, done.is_ok())? {
            return Ok(true);
        }
        graphs.drop_capture(self.id, number);
        self.refuse(done.err().as_ref());
        Ok(false)
    }

    /// Queues steps up to where nothing can fail any more, waits until all ranks have come there, and queues the rest.
    fn watched(
        self: &Arc<Inner>,
        start: &Start,
        run: &Bound,
        group: &dyn Group,
        gang: &Gang,
        known: bool,
    ) -> Result<(), PlanError> {
        let Start { lane, steps, passed, .. } = start;
        let gang = &Gang { waits: true, ..*gang };
        let run = &Bound { gang: Some(gang), ..*run };
        let put = |which: std::ops::Range<usize>| {
            lane.device.enter().map_err(wrong)?;
            match gang_tie::compares() {
                false => self.queue(steps, which, passed, run, lane),
                true => self.compared(steps, which, passed, run, lane, group, gang),
            }
        };
        match known {
            true => put(0..gang.met)?,
            false => patiently(gang.comms, group, || put(0..gang.met))?,
        }
        self.agreed(run, lane, group, gang)?;
        gang.comms.each().for_each(|comm| comm.note(self.id));
        put(gang.met..steps.list.len())?;
        let end = Event::record(&lane.stream).map_err(wrong)?;
        self.shared.gangs.queued(lane, &Arc::new(end));
        Ok(())
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
