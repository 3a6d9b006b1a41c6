//! A plan on the cpu: storages bound to memory, then the steps in order.

mod together;

use super::fold::FoldStep;
use super::kernel::{self, Bases, PARALLEL, tasks};
use super::lower::{FoldOrder, Lowered, lower};
use super::memory::{Block, CpuMemory, Pool};
use super::threads::{Ptr, Threads};
use super::waves::{Wave, waves};
use super::{attend, cpu_memory, index, matmul, random, rows, sort};
use crate::backend::{Buffer, EARLY_BYTES, Early, Here, Plan, PlanError, StepClock};
use crate::gang::Group;
use crate::timing::steps_of;
use gt_compiler::{Place, Work};
use gt_ir::{Error, Op, Slot, Structure};
use gt_net::observe::StepInfo;
use gt_sync::Mutex;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

pub struct CpuPlan {
    plan: gt_compiler::Plan,
    /// One per step; `None` where the step itself says all.
    ready: Vec<Option<Ready>>,
    structure: Arc<Structure>,
    pool: Arc<Pool>,
    threads: Arc<Threads>,
    reserve: usize,
    /// Has so much to do that threads will be called again and again.
    long: bool,
    runs: AtomicU32,
    /// Steps that may run at the same time, worked out once the plan comes back.
    waves: OnceLock<Vec<Wave>>,
}

/// A step made ready.
enum Ready {
    Kernel(Lowered),
    Fold(FoldStep),
}

/// Copies bytes with as many threads as pay.
pub fn copy(threads: &Threads, from: *const u8, to: *mut u8, bytes: usize) {
    let (from, to) = (Ptr::new(from as *mut u8), Ptr::new(to));
    let tasks = tasks(threads, bytes / 4, bytes / 4096 + 1);
    threads.run(tasks, &|t| {
        let (first, last) = (bytes * t / tasks, bytes * (t + 1) / tasks);
        // SAFETY: both sides hold `bytes` bytes and do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from.get().add(first), to.get().add(first), last - first) };
    });
}

impl CpuPlan {
    pub fn new(
        plan: gt_compiler::Plan,
        structure: Arc<Structure>,
        pool: Arc<Pool>,
        threads: Arc<Threads>,
    ) -> CpuPlan {
        let ready: Vec<Option<Ready>> = plan
            .steps
            .iter()
            .map(|step| match &step.work {
                Work::Kernel(k) => Some(match &k.fold {
                    None => Ready::Kernel(lower(k, None, &plan)),
                    Some(fold) => {
                        let order = FoldOrder::new(&k.shape, &fold.dims);
                        Ready::Fold(FoldStep {
                            kernel: lower(k, Some(&order), &plan),
                            order,
                            kind: fold.kind,
                            reg: fold.reg as usize,
                            dtype: fold.dtype,
                            storage: fold.storage,
                        })
                    }
                }),
                _ => None,
            })
            .collect();
        let outs: usize = plan.storages.iter().filter(|s| s.place == Place::Out).map(|s| s.bytes).sum();
        let reserve = plan.arena + outs;
        let folds = ready.iter().flatten().map(|r| match r {
            Ready::Fold(fold) => fold.scratch(),
            Ready::Kernel(_) => 0,
        });
        let aside = folds.max().unwrap_or(0);
        let products = plan.steps.iter().map(|step| match &step.work {
            Work::Matmul(mm) => mm.batch.numel() * mm.m * mm.n * mm.k,
            _ => 0,
        });
        let long = plan.steps.len() > 4 && (reserve > 4 << 20 || products.sum::<usize>() > 4 << 20);
        let (runs, waves) = (AtomicU32::new(0), OnceLock::new());
        let reserve = reserve.saturating_add(aside);
        CpuPlan { plan, ready, structure, pool, threads, reserve, long, runs, waves }
    }

    /// Roughly, the work of a step that has too little to do for several threads.
    fn small(&self, i: usize) -> Option<usize> {
        let work = match (&self.plan.steps[i].work, &self.ready[i]) {
            (_, Some(Ready::Kernel(k))) => k.numel * k.cost,
            (_, Some(Ready::Fold(f))) => f.kernel.numel * f.kernel.cost,
            (Work::Matmul(mm), None) => mm.batch.numel() * mm.m * mm.n * mm.k / 24,
            (Work::Attention(_) | Work::AttentionGrad(_) | Work::Sort { .. } | Work::Collective(_), None) => {
                return None;
            }
            (_, None) => {
                let mut bytes = 0;
                self.plan.steps[i].writes(|s| bytes += self.plan.storages[s as usize].bytes);
                bytes
            }
        };
        (work < 2 * PARALLEL).then_some(work)
    }

    /// The steps in waves. Steps that together are less than calling a thread costs run one after the other.
    fn waves(&self) -> Vec<Wave> {
        let pays =
            |wave: &Wave| wave.iter().filter_map(|i| self.small(*i as usize)).sum::<usize>() >= PARALLEL;
        let mut out = Vec::with_capacity(self.plan.steps.len());
        for wave in waves(&self.plan, |i| self.small(i).is_some()) {
            match pays(&wave) {
                true => out.push(wave),
                false => out.extend(wave.into_iter().map(|i| Wave::from_slice(&[i]))),
            }
        }
        out
    }

    /// Runs all steps: in order the first time, as waves when the plan has come back.
    fn run_steps(
        &self,
        bases: Bases,
        clock: Option<&StepClock>,
        early: Option<&Early>,
    ) -> Result<(), PlanError> {
        let alone = |i: usize| self.alone(i, bases, clock);
        let mut due = early.map_or_else(Due::default, |early| self.due(early));
        let mut done = |steps: &[u32]| due.after(steps, |k, out| self.give(early, k, out, bases));
        let first = self.runs.fetch_add(1, Ordering::Relaxed) == 0;
        if first || self.threads.count() == 1 || self.plan.steps.len() < 3 {
            for i in 0..self.plan.steps.len() {
                alone(i)?;
                done(&[i as u32]);
            }
            return Ok(());
        }
        let waves = self.waves.get_or_init(|| self.waves());
        for wave in waves {
            if let [one] = wave.as_slice() {
                alone(*one as usize)?;
                done(wave);
                continue;
            }
            let failed = Mutex::new(None);
            self.threads.run(wave.len(), &|k| {
                if let Err(error) = alone(wave[k] as usize) {
                    *failed.lock() = Some(error);
                }
            });
            if let Some(error) = failed.into_inner() {
                return Err(error);
            }
            done(wave);
        }
        Ok(())
    }

    /// Which of the values that are waited for can be given early, and after which steps.
    fn due(&self, early: &Early) -> Due {
        let small = |out: &usize| self.plan.storages[self.plan.outs[*out] as usize].bytes <= EARLY_BYTES;
        let after = |out: usize| self.plan.made_after(out).max(self.plan.sure_after());
        let gains = |after: usize| after > 0 && self.seconds(after) > WORTH;
        let outs = early.outs.iter().enumerate().filter(|(_, out)| small(out));
        let due = outs.map(|(k, &out)| (after(out), k, out)).filter(|(after, ..)| gains(*after));
        Due(due.map(|(after, k, out)| (after as u32 - 1, k, out)).collect())
    }

    /// Gives a value whose last step is done.
    fn give(&self, early: Option<&Early>, k: usize, out: usize, bases: Bases) {
        let Some(early) = early else { return };
        let storage = self.plan.outs[out] as usize;
        // SAFETY: the storage has that many bytes, and no step that is left writes it.
        let bytes =
            unsafe { std::slice::from_raw_parts(bases.ptrs[storage], self.plan.storages[storage].bytes) };
        (early.give)(k, Box::new(Here(Arc::new(bytes.to_vec()))));
    }

    /// Roughly, how long the steps from `first` on take.
    fn seconds(&self, first: usize) -> f64 {
        let (mut bytes, mut flops) = (0, 0);
        for step in &self.plan.steps[first..] {
            step.writes(|s| bytes += self.plan.storages[s as usize].bytes);
            if let Work::Matmul(mm) = &step.work {
                flops += 2 * mm.batch.numel() * mm.m * mm.n * mm.k;
            }
        }
        bytes as f64 / 20e9 + flops as f64 / 200e9
    }

    fn alone(&self, i: usize, bases: Bases, clock: Option<&StepClock>) -> Result<(), PlanError> {
        let instr = Some(self.plan.steps[i].instr);
        let start = clock.map(StepClock::now);
        let done = self.step(i, bases).map_err(|error| PlanError { instr, error });
        if let (Some(clock), Some(start)) = (clock, start) {
            clock.end(i as u32, start);
        }
        done
    }

    fn step(&self, i: usize, bases: Bases) -> Result<(), Error> {
        let step = &self.plan.steps[i];
        let threads = &*self.threads;
        match &step.work {
            Work::Kernel(_) => match &self.ready[i] {
                Some(Ready::Kernel(kernel)) => kernel::run(kernel, bases, threads),
                Some(Ready::Fold(fold)) => fold.run(bases, threads),
                None => {}
            },
            Work::Copy { from, to } => {
                let (src, dst) = (bases.ptrs[*from as usize], bases.ptrs[*to as usize]);
                if src != dst {
                    copy(threads, src, dst, self.plan.storages[*to as usize].bytes);
                }
            }
            Work::CheckIndex { index, size, wrap } => {
                let op = &self.structure.instrs[step.instr as usize].op;
                let dim = match op {
                    Op::Gather { dim }
                    | Op::Take { dim }
                    | Op::Scatter { dim, .. }
                    | Op::TakePut { dim, .. } => *dim,
                    // The reference names the dimension of the decomposition's own index.
                    _ => 0,
                };
                return index::check_index(index, *size, *wrap, (op.text(), dim), bases);
            }
            Work::CheckNonzero { divisor, dtype } => {
                let name = self.structure.instrs[step.instr as usize].op.text();
                return index::check_nonzero(divisor, *dtype, name, bases);
            }
            Work::Matmul(mm) => matmul::run(mm, bases, threads),
            Work::Attention(x) => attend::forward(x, bases, threads),
            Work::AttentionGrad(x) => attend::backward(x, bases, threads),
            Work::Random { dist, dtype, len, key, offset, out } => {
                let (key, offset) = (key.get(bases.slots).as_i64(), offset.get(bases.slots).as_i64());
                let size = dtype.size();
                let to = Ptr::new(bases.ptrs[*out as usize]);
                let tasks = tasks(threads, len * 8, len / 64);
                threads.run(tasks, &|t| {
                    let (first, last) = (len * t / tasks, len * (t + 1) / tasks);
                    // SAFETY: tasks write disjoint parts of the result.
                    let out = unsafe {
                        let start = to.get().add(first * size);
                        std::slice::from_raw_parts_mut(start, (last - first) * size)
                    };
                    // SAFETY: safe code, compiled for the processor's vectors.
                    unsafe { random::fill(*dist, *dtype, key as u64, offset as u64, first as u64, out) };
                });
            }
            Work::Data { slot, out } => {
                if let Slot::Data(bytes) = &bases.slots[*slot as usize] {
                    let room = self.plan.storages[*out as usize].bytes.min(bytes.len());
                    copy(threads, bytes.as_ptr(), bases.ptrs[*out as usize], room);
                }
            }
            Work::Gather { dim, x, index, out } => index::gather(*dim, x, index, *out, bases, threads),
            Work::Scatter { dim, mode, base, index, src, dtype, out } => {
                index::scatter((*dim, *mode), base, index, src, *dtype, *out, bases, threads)
            }
            Work::Take { dim, x, index, out } => index::take(*dim, x, index, *out, bases, threads),
            Work::TakePut { dim, mode, base, index, src, out } => {
                index::take_put((*dim, *mode), base, index, src, *out, bases, threads)
            }
            Work::ArgReduce { kind, dim, x, out } => rows::arg_reduce(*kind, *dim, x, *out, bases, threads),
            Work::Scan { kind, dim, x, out } => rows::scan(*kind, *dim, x, *out, bases, threads),
            Work::Sort { dim, descending, k, x, values, indices } => {
                sort::sort((*dim, *descending, *k), x, [*values, *indices], bases, threads)
            }
            Work::Collective(_) => {
                return Err(Error::Runtime("a part of a gang was run alone".into()));
            }
            Work::Softmax { log, dim, x, out } => rows::softmax(*log, *dim, x, *out, bases, threads),
        }
        Ok(())
    }

    fn bind(&self, inputs: &mut [Buffer]) -> Result<Bound, Error> {
        let plan = &self.plan;
        if inputs.len() != self.structure.inputs.len() {
            return Err(Error::Value("program: the binding does not fit its structure".into()));
        }
        let arena = if plan.arena > 0 { Some(self.pool.take_arena(plan.arena)?) } else { None };
        let mut bound = Bound { ptrs: SmallVec::new(), blocks: SmallVec::new(), arena };
        for storage in &plan.storages {
            let mut block = None;
            let donated = storage.reuse.and_then(|i| {
                let memory = Arc::get_mut(&mut inputs[i as usize])?;
                memory.as_any_mut().downcast_mut::<CpuMemory>().map(|memory| memory.0.ptr())
            });
            let ptr = match (donated, storage.place) {
                (Some(ptr), _) => ptr,
                (None, Place::Input(i)) => {
                    let bytes = cpu_memory(&inputs[i as usize])?.as_slice();
                    if bytes.len() != storage.bytes {
                        return Err(Error::Value(format!(
                            "program: input {i} has {} bytes, expected {}",
                            bytes.len(),
                            storage.bytes
                        )));
                    }
                    bytes.as_ptr() as *mut u8
                }
                (None, Place::Arena(offset)) => {
                    bound.arena.as_ref().map_or(std::ptr::null_mut(), |a| a.ptr().wrapping_add(offset))
                }
                (None, Place::Out) => block.insert(self.pool.take(storage.bytes)?).ptr(),
            };
            bound.ptrs.push(ptr);
            bound.blocks.push(block);
        }
        Ok(bound)
    }
}

/// Values to be given early: the last step each needs, its place in what was asked for, its number as a live-out.
#[derive(Default)]
struct Due(SmallVec<[(u32, usize, usize); 2]>);

impl Due {
    /// Steps are done: gives what waited for one of them.
    fn after(&mut self, steps: &[u32], mut give: impl FnMut(usize, usize)) {
        self.0.retain(|(last, k, out)| {
            let now = steps.contains(last);
            if now {
                give(*k, *out);
            }
            !now
        });
    }
}

/// A value is given early if at least this much is left to do then.
const WORTH: f64 = 50e-6;

/// The memory of one run.
struct Bound {
    /// One pointer per storage.
    ptrs: SmallVec<[*mut u8; 16]>,
    /// The fresh buffers of live-outs.
    blocks: SmallVec<[Option<Block>; 16]>,
    arena: Option<Block>,
}

impl CpuPlan {
    fn run_with(
        &self,
        inputs: &mut [Buffer],
        slots: &[Slot],
        clock: Option<&StepClock>,
        early: Option<&Early>,
        group: Option<&dyn Group>,
    ) -> Result<Vec<Buffer>, PlanError> {
        let mut bound = self.bind(inputs).map_err(|error| PlanError { instr: None, error })?;
        let bases = Bases { ptrs: &bound.ptrs, slots };
        let _awake = self.long.then(|| self.threads.stay_awake());
        match group {
            None => self.run_steps(bases, clock, early)?,
            Some(group) => self.steps_together(bases, group, clock)?,
        }
        let mut outs: Vec<Buffer> = Vec::with_capacity(self.plan.outs.len());
        for (k, &storage) in self.plan.outs.iter().enumerate() {
            let at = storage as usize;
            let made = match bound.blocks[at].take() {
                Some(block) => Arc::new(CpuMemory(block)),
                None => match (self.plan.storages[at].place, self.plan.storages[at].reuse) {
                    (Place::Input(i), _) => inputs[i as usize].clone(),
                    (_, reuse) => match self.plan.outs[..k].iter().position(|&s| s == storage) {
                        Some(earlier) => outs[earlier].clone(),
                        None => inputs[reuse.unwrap_or(0) as usize].clone(),
                    },
                },
            };
            outs.push(made);
        }
        Ok(outs)
    }
}

impl Plan for CpuPlan {
    fn run(&self, inputs: &mut Vec<Buffer>, slots: &[Slot]) -> Result<Vec<Buffer>, PlanError> {
        self.run_with(inputs, slots, None, None, None)
    }

    fn run_gang(
        &self,
        inputs: &mut Vec<Buffer>,
        slots: &[Slot],
        group: &dyn Group,
        clock: Option<&StepClock>,
    ) -> Result<Vec<Buffer>, PlanError> {
        self.run_with(inputs, slots, clock, None, Some(group))
    }

    fn run_timed(
        &self,
        inputs: &mut Vec<Buffer>,
        slots: &[Slot],
        clock: &StepClock,
    ) -> Result<Vec<Buffer>, PlanError> {
        self.run_with(inputs, slots, Some(clock), None, None)
    }

    fn run_early(
        &self,
        inputs: &mut Vec<Buffer>,
        slots: &[Slot],
        clock: Option<&StepClock>,
        early: &Early,
    ) -> Result<Vec<Buffer>, PlanError> {
        self.run_with(inputs, slots, clock, Some(early), None)
    }

    fn steps(&self) -> Vec<StepInfo> {
        steps_of(&self.plan, &self.structure)
    }

    fn profile(&self, inputs: &mut Vec<Buffer>, slots: &[Slot]) -> Result<Vec<(String, f64)>, PlanError> {
        let bound = self.bind(inputs).map_err(|error| PlanError { instr: None, error })?;
        let bases = Bases { ptrs: &bound.ptrs, slots };
        let _awake = self.long.then(|| self.threads.stay_awake());
        let mut took = Vec::with_capacity(self.plan.steps.len());
        for (i, step) in self.plan.steps.iter().enumerate() {
            let start = std::time::Instant::now();
            self.step(i, bases).map_err(|error| PlanError { instr: Some(step.instr), error })?;
            took.push((step.work.to_string(), start.elapsed().as_secs_f64()));
        }
        Ok(took)
    }

    fn reserve(&self) -> usize {
        self.reserve
    }

    fn text(&self) -> String {
        self.plan.to_string()
    }
}
