//! A plan on the device: storages bound to memory, the steps queued on the session's stream, nothing waited for.

use super::account::Owner;
use super::checks;
use super::cuda_memory;
use super::gang;
use super::graph::{Launched, Midway, Shape, What, seconds};
use super::lane::Lane;
use super::memory::{Block, CudaMemory};
use super::ranges::{Range, Ranges, Verdict, judge};
use super::shared::Shared;
use super::staging::Parcel;
use super::steps::{Bound, Makers, Ready, Steps};
use super::ticks::Ticks;
use crate::backend::{Buffer, EARLY_BYTES, Early, Plan, PlanError, StepClock};
use crate::gang::Group;
use crate::timing::steps_of;
use gt_compiler::{Place, Work};
use gt_ir::{Error, Result, Slot, Structure};
use gt_net::observe::StepInfo;
use gt_sync::Mutex;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// A plan for the device. Its kernels get better while it is used; its numbers do not change by that (C7).
pub struct CudaPlan(Arc<Inner>);

pub struct Inner {
    pub(super) id: u64,
    pub(super) plan: gt_compiler::Plan,
    pub(super) structure: Arc<Structure>,
    pub(super) shared: Arc<Shared>,
    pub(super) ranges: Ranges,
    /// Steps that look at values and may fail.
    pub(super) checks: Vec<usize>,
    plain: OnceLock<Result<Arc<Steps>>>,
    made: OnceLock<Option<Made>>,
    asked: AtomicBool,
    /// Runs with kernels of its own.
    runs: AtomicU32,
    /// It could not be captured.
    refused: AtomicBool,
    reserve: usize,
    /// When the steps of the last run that was timed were done.
    ticks: Mutex<Option<Ticks>>,
    pub(super) gangs: gang::Ready,
    /// Tells graphs that the plan is still there.
    pub(super) alive: Arc<()>,
}

/// Steps with kernels of the plan's own.
pub(super) struct Made {
    pub(super) steps: Arc<Steps>,
    pub(super) shape: Shape,
}

/// Memory of one run.
pub(super) struct Bind {
    /// One address per storage.
    pub(super) addresses: SmallVec<[u64; 16]>,
    /// Fresh memory of live-outs.
    blocks: SmallVec<[Option<Block>; 16]>,
    /// Kept until all is queued; it goes back in the stream's order.
    _arena: Option<Block>,
}

/// Values to be given early.
#[derive(Default)]
struct Due {
    /// How many steps have to be queued before; 0 where there are no such values.
    after: usize,
    /// Their places in what was asked for, their storages and bytes.
    values: SmallVec<[(usize, u32, usize); 2]>,
}

/// A value is given early if the device is busy for at least this long after it, and a step takes at least so long.
const WORTH: f64 = 25e-6;
const LEAST: f64 = 2e-6;

/// Memory that steps take beside the plan's own, attention apart; the plan's need is told before they are made ready.
pub(super) const ASIDE: usize = 1 << 20;

/// Memory that a step takes beside the plan's own: attention does, in the lane's scratch memory or its workspace.
fn aside(work: &Work, plan: &gt_compiler::Plan, shared: &Shared) -> usize {
    gt_kernels::attention::scratch(work, plan).max(shared.cudnn.need(work, plan))
}

impl CudaPlan {
    pub fn new(plan: gt_compiler::Plan, structure: Arc<Structure>, shared: Arc<Shared>) -> CudaPlan {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let ranges = Ranges::new(&plan, &structure);
        let checks = (0..plan.steps.len()).filter(|i| plan.steps[*i].can_fail()).collect();
        let outs: usize = plan.storages.iter().filter(|s| s.place == Place::Out).map(|s| s.bytes).sum();
        let aside = plan.steps.iter().map(|step| aside(&step.work, &plan, &shared)).max().unwrap_or(0);
        let reserve = plan.arena + outs + aside.max(ASIDE) + gang::scratch(&plan);
        CudaPlan(Arc::new(Inner {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            plan,
            structure,
            shared,
            ranges,
            checks,
            plain: OnceLock::new(),
            made: OnceLock::new(),
            asked: AtomicBool::new(false),
            runs: AtomicU32::new(0),
            refused: AtomicBool::new(false),
            reserve,
            ticks: Mutex::new(None),
            gangs: gang::Ready::default(),
            alive: Arc::new(()),
        }))
    }

    /// Compiles the plan's own kernels now.
    pub fn make_now(&self) {
        if !self.0.asked.swap(true, Ordering::AcqRel) {
            self.0.make();
        }
    }
}

impl Inner {
    fn makers(&self) -> Makers<'_> {
        let Shared { kernels, blas, cudnn, .. } = &*self.shared;
        Makers { kernels, blas, cudnn }
    }

    /// Makes the plan's own kernels; what fails leaves it as it is.
    fn make(&self) {
        let made = self.shared.device.enter().and_then(|()| Steps::made(&self.plan, &self.makers()));
        let made = match made {
            Ok(steps) => {
                let shape = Shape::new(&self.plan, &steps);
                Some(Made { steps: Arc::new(steps), shape })
            }
            Err(error) => {
                gt_ir::say!("gt worker: a plan keeps its plain kernels: {error}");
                None
            }
        };
        let _ = self.made.set(made);
    }

    /// The steps by kernels that ship with the program, where they were asked for.
    pub(super) fn plain_steps(&self) -> Option<Arc<Steps>> {
        self.plain.get()?.clone().ok()
    }

    /// The steps as they are best now. The second run asks for the plan's own kernels.
    pub(super) fn steps(self: &Arc<Inner>) -> Result<(Arc<Steps>, Option<&Made>)> {
        if let Some(Some(made)) = self.made.get() {
            return Ok((made.steps.clone(), Some(made)));
        }
        let again = self.plain.get().is_some();
        if again && !self.asked.swap(true, Ordering::AcqRel) {
            let plan = Arc::downgrade(self);
            self.shared.aside(Box::new(move || {
                if let Some(plan) = plan.upgrade() {
                    plan.make();
                }
            }));
        }
        let make = || Steps::plain(&self.plan, &self.makers()).map(Arc::new);
        Ok((self.plain.get_or_init(make).clone()?, None))
    }

    /// Binds storages to memory; live-outs get fresh memory unless they take over a dying input.
    pub(super) fn bind(&self, inputs: &mut [Buffer], lane: &Arc<Lane>, arena: Option<u64>) -> Result<Bind> {
        let plan = &self.plan;
        if inputs.len() != self.structure.inputs.len() {
            return Err(Error::Value("program: the binding does not fit its structure".into()));
        }
        let own =
            if arena.is_none() && plan.arena > 0 { Some(lane.take(Owner::Arena, plan.arena)?) } else { None };
        let arena = arena.or(own.as_ref().map(Block::address)).unwrap_or(0);
        let mut bind = Bind { addresses: SmallVec::new(), blocks: SmallVec::new(), _arena: own };
        for input in inputs.iter() {
            cuda_memory(input)?.join(lane)?;
        }
        for storage in &plan.storages {
            let mut block = None;
            let donated = storage.reuse.and_then(|i| {
                let memory = Arc::get_mut(&mut inputs[i as usize])?;
                memory.as_any_mut().downcast_mut::<CudaMemory>().map(|memory| memory.address())
            });
            let address = match (donated, storage.place) {
                (Some(address), _) => address,
                (None, Place::Input(i)) => {
                    let memory = cuda_memory(&inputs[i as usize])?;
                    let bytes = crate::backend::Memory::bytes(memory);
                    if bytes != storage.bytes {
                        return Err(Error::Value(format!(
                            "program: input {i} has {bytes} bytes, expected {}",
                            storage.bytes
                        )));
                    }
                    memory.address()
                }
                (None, Place::Arena(offset)) => arena + offset as u64,
                (None, Place::Out) => block.insert(lane.take(Owner::Tensors, storage.bytes)?).address(),
            };
            bind.addresses.push(address);
            bind.blocks.push(block);
        }
        Ok(bind)
    }

    /// Bounds of integer values, where anything asks for them.
    pub(super) fn bounds(&self, inputs: &[Buffer], slots: &[Slot]) -> Vec<Option<Range>> {
        let of = |i: usize| inputs.get(i).and_then(|b| cuda_memory(b).ok()).and_then(CudaMemory::range);
        self.ranges.follow(&self.plan, slots, of)
    }

    /// Queues the steps of a range. Checks that are known to pass are left out.
    pub(super) fn queue(
        &self,
        steps: &Steps,
        which: std::ops::Range<usize>,
        passed: &[usize],
        run: &Bound,
        lane: &Lane,
    ) -> Result<(), PlanError> {
        for i in which {
            let passes = passed.contains(&i);
            let ticks = run.ticks.filter(|_| !passes);
            let begun = ticks.map_or(Ok(()), |ticks| ticks.begin(lane));
            let queued = begun.and_then(|()| if passes { Ok(()) } else { steps.enqueue(i, run, lane) });
            let met = queued.and_then(|()| run.gang.map_or(Ok(()), |gang| gang.step(i, run, lane)));
            let works = !matches!(steps.list[i], Ready::Nothing) || run.gang.is_some_and(|gang| gang.acts(i));
            let noted = met.and_then(|()| ticks.map_or(Ok(()), |ticks| ticks.done(i, works, lane)));
            noted.map_err(|error| PlanError { instr: Some(self.plan.steps[i].instr), error })?;
        }
        Ok(())
    }

    /// Runs the plan; what it leaves to the device has been queued when this returns. With `ticks` it runs step by step.
    fn run(
        self: &Arc<Inner>,
        inputs: &mut [Buffer],
        slots: &[Slot],
        early: Option<&Early>,
        ticks: Option<&Ticks>,
    ) -> Result<Vec<Buffer>, PlanError> {
        let wrong = |error| PlanError { instr: None, error };
        let lane = self.shared.lanes.mine().map_err(wrong)?;
        let (steps, made) = self.steps().map_err(wrong)?;
        lane.begin().map_err(wrong)?;
        let scratch = lane.scratch(steps.scratch.max(ASIDE)).map_err(wrong)?;
        let workspace = match steps.workspace {
            0 => 0,
            bytes => lane.workspace(bytes.max(super::WORKSPACE)).map_err(wrong)?,
        };
        let ranges = self.bounds(inputs, slots);
        let right = |i: &usize| judge(&self.plan.steps[*i].work, slots, &ranges) == Verdict::Right;
        let (passed, open): (Vec<usize>, Vec<usize>) = self.checks.iter().partition(|i| right(i));
        let count = self.plan.steps.len();
        let checked = open.last().map_or(0, |last| last + 1);
        let due = early.map_or_else(Due::default, |early| self.due(early, checked));
        let act = |addresses: &[u64]| self.give(early, &due, addresses, &lane);
        let midway = (due.after > 0).then_some(Midway { after: due.after, act: &act });
        let mut bind;
        let run = |addresses| Bound {
            addresses,
            slots,
            scratch,
            workspace,
            failed: lane.failed,
            ticks,
            gang: None,
        };
        match made.filter(|made| open.is_empty() && self.graphs(made) && ticks.is_none()) {
            Some(made) => {
                let mut kept = lane.kept.lock();
                let arena = match kept.graphs.arena(self.id) {
                    Some(arena) => Some(arena),
                    None => kept.graphs.new_arena(&lane, self.plan.arena).map_err(wrong)?,
                };
                let at = arena.as_ref().map_or(0, |a| a.address());
                bind = self.bind(inputs, &lane, Some(at)).map_err(wrong)?;
                let bound = run(&bind.addresses);
                let what = self.what(made, &lane);
                let done = kept.graphs.launch(&what, arena, &bound, midway.as_ref());
                drop(kept);
                // Nothing has been queued where it did not work out.
                if !self.heard(done)? {
                    self.queue(&steps, 0..count, &passed, &bound, &lane)?;
                }
            }
            None => {
                // What is queued runs in order, so the memory of the plan's graph serves here too.
                let arena = lane.kept.lock().graphs.arena(self.id);
                let at = arena.as_ref().map(|a| a.address());
                bind = self.bind(inputs, &lane, at).map_err(wrong)?;
                let bound = run(&bind.addresses);
                self.queue(&steps, 0..checked, &passed, &bound, &lane)?;
                if checked > 0 {
                    // Nothing that was given up has been written yet: whether all is well decides what follows.
                    self.heed(&bind.addresses, slots, &lane)?;
                }
                if let Some(midway) = &midway {
                    self.queue(&steps, checked..midway.after, &passed, &bound, &lane)?;
                    act(&bind.addresses);
                }
                let first = midway.map_or(checked, |midway| midway.after);
                self.queue(&steps, first..count, &passed, &bound, &lane)?;
            }
        }
        Ok(self.outs(&mut bind, inputs, &ranges))
    }

    /// Which of the values that are waited for can be given early, and after how many steps all of those are there.
    fn due(&self, early: &Early, checked: usize) -> Due {
        let mut due = Due::default();
        for (k, &out) in early.outs.iter().enumerate() {
            let storage = self.plan.outs[out];
            let bytes = self.plan.storages[storage as usize].bytes;
            let after = self.plan.made_after(out).max(checked);
            let good = match k < early.asked {
                true => after > 0 && bytes <= EARLY_BYTES && self.gains(after),
                // What is not waited for yet comes along if it is there by then.
                false => after <= due.after,
            };
            if good {
                due.after = due.after.max(after);
                due.values.push((k, storage, bytes));
            }
        }
        due
    }

    /// True if so much is left to do after some steps that values should not wait for it.
    fn gains(&self, after: usize) -> bool {
        (self.plan.steps.len() - after) as f64 * LEAST + seconds(&self.plan, after) > WORTH
    }

    /// Starts bringing values to the host; what is queued later cannot change them. What cannot be brought now is asked
    /// for again when the program has run.
    fn give(&self, early: Option<&Early>, due: &Due, addresses: &[u64], lane: &Lane) {
        for &(k, storage, bytes) in &due.values {
            // SAFETY: the run keeps the storage until all is queued, and its memory goes back in the stream's order.
            let landed = unsafe { lane.receive(&lane.stream, addresses[storage as usize], bytes) };
            if let (Some(early), Ok(landed)) = (early, landed) {
                (early.give)(k, Box::new(Parcel { landed, bytes }));
            }
        }
    }

    /// The plan as graphs know it.
    pub(super) fn what<'a>(&'a self, made: &'a Made, lane: &'a Arc<Lane>) -> What<'a> {
        let Inner { id, alive, plan, .. } = self;
        What { id: *id, alive, plan, shape: &made.shape, steps: &made.steps, lane }
    }

    /// True if the plan is to run as a graph: its own kernels have run before.
    pub(super) fn graphs(&self, made: &Made) -> bool {
        let before = self.runs.fetch_add(1, Ordering::Relaxed);
        let refused = self.refused.load(Ordering::Relaxed);
        before > 0 && !refused && made.shape.graphable() && self.shared.graphs
    }

    /// Whether a graph was launched. A plan that cannot be captured runs without from now on.
    pub(super) fn heard(&self, launched: Result<Launched>) -> Result<bool, PlanError> {
        match launched {
            Ok(Launched::All) => {
                self.shared.ran.fetch_add(1, Ordering::Relaxed);
                Ok(true)
            }
            Ok(Launched::Nothing) => Ok(false),
            Ok(Launched::Torn(error)) => Err(PlanError { instr: None, error }),
            Err(error) if super::broken().is_some() => Err(PlanError { instr: None, error }),
            Err(error) => {
                self.refuse(Some(&error));
                Ok(false)
            }
        }
    }

    /// The plan runs without a graph from now on, here or on another rank because of an error.
    pub(super) fn refuse(&self, error: Option<&Error>) {
        if let Some(error) = error {
            gt_ir::say!("gt worker: a plan runs without a graph: {error}");
        }
        self.refused.store(true, Ordering::Relaxed);
    }

    /// Waits for the checks and reports the first that failed.
    pub(super) fn heed(&self, addresses: &[u64], slots: &[Slot], lane: &Lane) -> Result<(), PlanError> {
        let wrong = |error| PlanError { instr: None, error };
        self.shared.checked.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the failure word is the lane's own.
        let word = unsafe { lane.receive(&lane.stream, lane.failed, 8) }.map_err(wrong)?;
        let word = word.wait(8, |bytes| bytes.try_into().map_or(0, u64::from_ne_bytes)).map_err(wrong)?;
        let Some(step) = word.checked_sub(1) else { return Ok(()) };
        // SAFETY: as above.
        unsafe { lane.stream.zero(lane.failed, 8) }.map_err(wrong)?;
        let Some(step) = self.plan.steps.get(step as usize) else {
            return Err(wrong(Error::Runtime(format!("cuda: a check failed that does not exist ({step})"))));
        };
        let error = checks::explain(step, &self.structure, addresses, slots, lane);
        Err(PlanError { instr: Some(step.instr), error })
    }

    /// The live-outs, with what is known of them.
    pub(super) fn outs(&self, bind: &mut Bind, inputs: &[Buffer], ranges: &[Option<Range>]) -> Vec<Buffer> {
        let mut outs: Vec<Buffer> = Vec::with_capacity(self.plan.outs.len());
        for (k, &storage) in self.plan.outs.iter().enumerate() {
            let at = storage as usize;
            let info = &self.plan.storages[at];
            let made: Buffer = match bind.blocks[at].take() {
                Some(block) => Arc::new(CudaMemory::new(block, info.bytes)),
                None => match (info.place, info.reuse) {
                    (Place::Input(i), _) => {
                        outs.push(inputs[i as usize].clone());
                        continue;
                    }
                    (_, reuse) => match self.plan.outs[..k].iter().position(|&s| s == storage) {
                        Some(earlier) => outs[earlier].clone(),
                        None => inputs[reuse.unwrap_or(0) as usize].clone(),
                    },
                },
            };
            if let Ok(memory) = cuda_memory(&made) {
                memory.set_range(ranges[at]);
            }
            outs.push(made);
        }
        outs
    }

    /// Runs the plan step by step, with the times at which its steps are done.
    fn timed(
        &self,
        run: impl FnOnce(&Ticks) -> Result<Vec<Buffer>, PlanError>,
    ) -> Result<(Vec<Buffer>, Ticks), PlanError> {
        let wrong = |error| PlanError { instr: None, error };
        let ticks = self.shared.lanes.mine().and_then(|lane| Ticks::start(&lane)).map_err(wrong)?;
        let outs = run(&ticks)?;
        Ok((outs, ticks))
    }

    /// The same; the clock is told, where nobody watches with the next run's.
    fn noted(
        &self,
        clock: &StepClock,
        run: impl FnOnce(&Ticks) -> Result<Vec<Buffer>, PlanError>,
    ) -> Result<Vec<Buffer>, PlanError> {
        let (outs, ticks) = self.timed(run)?;
        if clock.is_watched() {
            ticks.wait().map_err(|error| PlanError { instr: None, error })?;
            ticks.note(clock);
            return Ok(outs);
        }
        let earlier = self.ticks.lock().replace(ticks);
        if let Some(earlier) = earlier.filter(|ticks| ticks.passed().unwrap_or(false)) {
            earlier.note(clock);
        }
        Ok(outs)
    }
}

impl Plan for CudaPlan {
    fn run(&self, inputs: &mut Vec<Buffer>, slots: &[Slot]) -> Result<Vec<Buffer>, PlanError> {
        self.0.run(inputs, slots, None, None)
    }

    fn run_early(
        &self,
        inputs: &mut Vec<Buffer>,
        slots: &[Slot],
        clock: Option<&StepClock>,
        early: &Early,
    ) -> Result<Vec<Buffer>, PlanError> {
        match clock {
            Some(clock) => self.run_timed(inputs, slots, clock),
            None => self.0.run(inputs, slots, Some(early), None),
        }
    }

    fn run_timed(
        &self,
        inputs: &mut Vec<Buffer>,
        slots: &[Slot],
        clock: &StepClock,
    ) -> Result<Vec<Buffer>, PlanError> {
        self.0.noted(clock, |ticks| self.0.run(inputs, slots, None, Some(ticks)))
    }

    fn run_gang(
        &self,
        inputs: &mut Vec<Buffer>,
        slots: &[Slot],
        group: &dyn Group,
        clock: Option<&StepClock>,
    ) -> Result<Vec<Buffer>, PlanError> {
        match clock {
            Some(clock) => self.0.noted(clock, |ticks| self.0.run_gang(inputs, slots, group, Some(ticks))),
            None => self.0.run_gang(inputs, slots, group, None),
        }
    }

    fn profile(&self, inputs: &mut Vec<Buffer>, slots: &[Slot]) -> Result<Vec<(String, f64)>, PlanError> {
        let (_outs, ticks) = self.0.timed(|ticks| self.0.run(inputs, slots, None, Some(ticks)))?;
        ticks.wait().map_err(|error| PlanError { instr: None, error })?;
        let name = |step: u32| self.0.plan.steps[step as usize].work.to_string();
        Ok(ticks.times().into_iter().map(|(step, _, took)| (name(step), took)).collect())
    }

    fn steps(&self) -> Vec<StepInfo> {
        steps_of(&self.0.plan, &self.0.structure)
    }

    fn reserve(&self) -> usize {
        self.0.reserve
    }

    fn text(&self) -> String {
        self.0.plan.to_string()
    }
}
