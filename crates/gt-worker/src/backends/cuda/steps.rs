//! The steps of a plan as the device takes them: kernels found, products prepared. A run gives addresses and slots.

use super::cudnn::{Attend, Cudnn};
use super::driver::Stream;
use super::gang_nccl::Gang;
use super::kernels::{Kernel, Kernels};
use super::lane::Lane;
use super::matmul::{Blas, Prepared};
use super::ticks::Ticks;
use gt_compiler::{Num, Plan, Work};
use gt_ir::{Result, Slot};
use gt_kernels::launch::{Arg, Function, Launches, Word};
use smallvec::SmallVec;
use std::ffi::c_void;
use std::sync::Arc;

/// What a run knows.
pub struct Bound<'a> {
    /// One address per storage.
    pub addresses: &'a [u64],
    pub slots: &'a [Slot],
    /// Memory for one step at a time.
    pub scratch: u64,
    pub workspace: u64,
    /// The failure word.
    pub failed: u64,
    /// Notes when each step is done, where somebody asks.
    pub ticks: Option<&'a Ticks>,
    /// The other ranks, for a plan that runs with them by NCCL.
    pub gang: Option<&'a Gang<'a>>,
}

/// A launch with its kernel.
pub struct Launch {
    pub kernel: Kernel,
    pub grid: [u32; 3],
    pub block: u32,
    pub shared: u32,
    args: Vec<Arg>,
    /// The storages whose addresses it is given.
    pub storages: SmallVec<[u32; 8]>,
    /// Slots decide what it is given.
    pub slotted: bool,
}

/// The arguments of a launch, filled in.
pub struct Filled {
    bytes: SmallVec<[u64; 64]>,
    /// Where each argument starts, in words.
    starts: SmallVec<[u16; 16]>,
}

impl Filled {
    /// Where the driver finds each argument.
    pub fn pointers(&mut self) -> SmallVec<[*mut c_void; 16]> {
        let base = self.bytes.as_mut_ptr();
        // SAFETY: every start lies within the words.
        self.starts.iter().map(|&at| unsafe { base.add(at as usize) }.cast()).collect()
    }
}

/// True if slots decide a word.
fn is_slotted(word: &Word) -> bool {
    match word {
        Word::Number(num, _) => matches!(num, Num::Slot(_)),
        Word::Start(map) => !map.slots.is_empty(),
        Word::Address(_) | Word::Byte(..) | Word::Scratch(_) | Word::Failed => false,
    }
}

impl Launch {
    fn new(from: &gt_kernels::Launch, kernels: &Kernels) -> Result<Launch> {
        let kernel = kernels.get(&from.function)?;
        kernel.function.allow_shared(from.shared)?;
        let words = || from.args.iter().flat_map(|arg| &arg.fills).map(|fill| &fill.word);
        let storages = words().filter_map(|word| match word {
            Word::Address(storage) | Word::Byte(storage, _) => Some(*storage),
            _ => None,
        });
        Ok(Launch {
            kernel,
            grid: from.grid,
            block: from.block,
            shared: from.shared,
            args: from.args.clone(),
            storages: storages.collect(),
            slotted: words().any(is_slotted),
        })
    }

    /// The arguments for one run.
    pub fn fill(&self, run: &Bound) -> Filled {
        let mut out = Filled { bytes: SmallVec::new(), starts: SmallVec::new() };
        for arg in &self.args {
            let start = out.bytes.len();
            out.starts.push(start as u16);
            // Arguments start at multiples of eight bytes; larger alignments do not occur.
            out.bytes.resize(start + arg.bytes.len().div_ceil(8).max(1), 0);
            // SAFETY: the words were just made room for, and any bytes make words.
            let bytes = unsafe {
                let at = out.bytes.as_mut_ptr().add(start).cast::<u8>();
                std::slice::from_raw_parts_mut(at, arg.bytes.len())
            };
            bytes.copy_from_slice(&arg.bytes);
            for fill in &arg.fills {
                let word = fill.word.get(run.addresses, run.slots, run.scratch, run.failed);
                let at = fill.at as usize;
                bytes[at..at + 8].copy_from_slice(&word.to_ne_bytes());
            }
        }
        out
    }

    /// Puts it on the stream, or into the graph being captured.
    pub fn enqueue(&self, run: &Bound, stream: &Stream) -> Result<()> {
        let mut filled = self.fill(run);
        let mut args = filled.pointers();
        // SAFETY: the arguments are what the kernel was written for, and the run keeps its memory.
        unsafe { self.kernel.function.launch(self.grid, self.block, self.shared, &mut args, stream) }
    }
}

/// One or more steps made ready.
pub enum Ready {
    /// Nothing to do here: done on the host, or by another step.
    Nothing,
    Kernels {
        list: Vec<Launch>,
        /// Bytes of scratch memory that are zero at the start.
        zeroed: usize,
    },
    Product {
        before: Vec<Launch>,
        prepared: Arc<Prepared>,
        after: Vec<Launch>,
    },
    /// Attention by cuDNN.
    Attend(Box<Attend>),
    Copy {
        from: u32,
        to: u32,
        bytes: usize,
    },
    Data {
        slot: u32,
        out: u32,
        bytes: usize,
    },
    /// A check that looks at values, left out where those are known to be right.
    Check {
        list: Vec<Launch>,
        zeroed: usize,
    },
}

impl Ready {
    /// Launches of one run, roughly.
    pub fn launches(&self) -> usize {
        match self {
            Ready::Kernels { list, zeroed } => list.len() + (*zeroed > 0) as usize,
            Ready::Product { before, after, .. } => before.len() + 1 + after.len(),
            Ready::Attend(attend) => attend.calls(),
            Ready::Copy { .. } | Ready::Data { .. } => 1,
            Ready::Check { .. } | Ready::Nothing => 0,
        }
    }
}

/// All steps of a plan, made ready.
pub struct Steps {
    /// By step of the plan.
    pub list: Vec<Ready>,
    /// Bytes of scratch memory, and of the libraries' workspace, at most.
    pub scratch: usize,
    pub workspace: usize,
    /// Launches of one run, roughly.
    pub launches: usize,
}

/// What a plan's steps are made with.
pub struct Makers<'a> {
    pub kernels: &'a Kernels,
    pub blas: &'a Blas,
    pub cudnn: &'a Cudnn,
}

impl Makers<'_> {
    /// By step, the attention that cuDNN runs.
    fn attends(&self, plan: &Plan) -> Attends {
        plan.steps.iter().map(|step| self.cudnn.prepare(&step.work, plan).map(Box::new)).collect()
    }
}

type Attends = Vec<Option<Box<Attend>>>;

impl Steps {
    /// Makes the steps ready with the kernels that ship with the program.
    pub fn plain(plan: &Plan, makers: &Makers) -> Result<Steps> {
        let attends = makers.attends(plan);
        // Attention has kernels of its own from the start: simpler ones would round otherwise (C7).
        let own = |i: usize| {
            let whole = attends[i].is_none()
                && matches!(plan.steps[i].work, Work::Attention(_) | Work::AttentionGrad(_));
            whole.then(|| gt_kernels::plain(i, plan))
        };
        let mut own: Vec<Option<Launches>> = (0..plan.steps.len()).map(own).collect();
        if let Err(error) = makers.kernels.make(own.iter().flatten()) {
            if makers.kernels.compiler().is_ok() {
                return Err(error);
            }
            // Where nothing can be compiled, attention that does not ship is simple in all plans of the process.
            let refused = |own: &Launches| makers.kernels.make(std::iter::once(own)).is_err();
            for (i, own) in own.iter_mut().enumerate().filter(|(_, own)| own.as_ref().is_some_and(refused)) {
                *own = gt_kernels::attention::simple(&plan.steps[i].work, plan);
            }
        }
        let launches = |i: usize| own[i].take().unwrap_or_else(|| gt_kernels::plain(i, plan));
        Steps::new(plan, makers, launches, &[], attends)
    }

    /// Makes the steps ready with kernels of their own, compiled together now.
    pub fn made(plan: &Plan, makers: &Makers) -> Result<Steps> {
        if makers.kernels.compiler().is_err() {
            return Steps::plain(plan, makers);
        }
        let attends = makers.attends(plan);
        let wanted = Wanted::except(plan, |i| attends[i].is_some());
        makers.kernels.make(wanted.launches())?;
        let Wanted { mut own, groups } = wanted;
        let steps = Steps::new(
            plan,
            makers,
            |i| own[i].take().unwrap_or_else(|| gt_kernels::plain(i, plan)),
            &groups,
            attends,
        )?;
        // A plan that comes back has products that are worth measuring.
        for ready in &steps.list {
            if let Ready::Product { prepared, .. } = ready {
                makers.blas.tune(prepared);
            }
        }
        Ok(steps)
    }

    fn new(
        plan: &Plan,
        makers: &Makers,
        mut launches: impl FnMut(usize) -> Launches,
        groups: &[(Vec<usize>, Launches)],
        mut attends: Attends,
    ) -> Result<Steps> {
        let mut steps = Steps { list: Vec::new(), scratch: 0, workspace: 0, launches: 0 };
        for (i, step) in plan.steps.iter().enumerate() {
            let group = groups.iter().find(|(group, _)| group.contains(&i));
            if let Some(attend) = attends[i].take() {
                steps.workspace = steps.workspace.max(attend.workspace());
                steps.launches += attend.calls();
                steps.list.push(Ready::Attend(attend));
                continue;
            }
            let ready = match (&step.work, group) {
                (_, Some((group, batch))) => match group.last() == Some(&i) {
                    true => steps.kernels(batch, makers)?,
                    false => Ready::Nothing,
                },
                (Work::Copy { from, to }, _) => {
                    let bytes = plan.storages[*to as usize].bytes;
                    Ready::Copy { from: *from, to: *to, bytes }
                }
                (Work::Data { slot, out }, _) => {
                    let bytes = plan.storages[*out as usize].bytes;
                    Ready::Data { slot: *slot, out: *out, bytes }
                }
                (Work::Matmul(mm), _) => {
                    let prepared = makers.blas.prepare(mm, plan)?;
                    steps.workspace = steps.workspace.max(prepared.workspace());
                    steps.scratch = steps.scratch.max(prepared.after().scratch);
                    let [before, after] = [prepared.before(), prepared.after()].map(|launches| {
                        let made = launches.list.iter().map(|l| Launch::new(l, makers.kernels));
                        made.collect::<Result<Vec<Launch>>>()
                    });
                    Ready::Product { before: before?, prepared: Arc::new(prepared), after: after? }
                }
                (Work::CheckIndex { .. } | Work::CheckNonzero { .. }, _) => {
                    match steps.kernels(&launches(i), makers)? {
                        Ready::Kernels { list, zeroed } => Ready::Check { list, zeroed },
                        other => other,
                    }
                }
                _ => steps.kernels(&launches(i), makers)?,
            };
            steps.launches += ready.launches();
            steps.list.push(ready);
        }
        Ok(steps)
    }

    fn kernels(&mut self, launches: &Launches, makers: &Makers) -> Result<Ready> {
        self.scratch = self.scratch.max(launches.scratch);
        let list =
            launches.list.iter().map(|l| Launch::new(l, makers.kernels)).collect::<Result<Vec<_>>>()?;
        Ok(if list.is_empty() { Ready::Nothing } else { Ready::Kernels { list, zeroed: launches.zeroed } })
    }

    /// Puts one step on the lane's stream, or into the graph being captured there.
    pub fn enqueue(&self, step: usize, run: &Bound, lane: &Lane) -> Result<()> {
        let stream = &lane.stream;
        match &self.list[step] {
            Ready::Nothing => {}
            Ready::Kernels { list, zeroed } | Ready::Check { list, zeroed } => {
                if *zeroed > 0 {
                    // SAFETY: the lane's scratch memory is at least so large.
                    unsafe { stream.zero(run.scratch, *zeroed)? };
                }
                list.iter().try_for_each(|launch| launch.enqueue(run, stream))?;
            }
            Ready::Product { before, prepared, after } => {
                // What is packed first lies in the workspace.
                let packing = Bound { scratch: run.workspace, ..*run };
                before.iter().try_for_each(|launch| launch.enqueue(&packing, stream))?;
                prepared.enqueue(stream.raw(), run.addresses, run.slots, run.workspace)?;
                after.iter().try_for_each(|launch| launch.enqueue(run, stream))?;
            }
            Ready::Attend(attend) => {
                attend.enqueue(stream.raw(), run.addresses, run.slots, run.workspace)?;
            }
            Ready::Copy { from, to, bytes } => {
                let (from, to) = (run.addresses[*from as usize], run.addresses[*to as usize]);
                if from != to && *bytes > 0 {
                    // SAFETY: both storages have that many bytes and the run keeps them.
                    unsafe { stream.copy(to, from, *bytes)? };
                }
            }
            Ready::Data { slot, out, bytes } => {
                if let Slot::Data(data) = &run.slots[*slot as usize] {
                    let n = data.len().min(*bytes);
                    // SAFETY: the storage has that many bytes and the run keeps it.
                    unsafe { lane.send(stream, run.addresses[*out as usize], &data[..n])? };
                }
            }
        }
        Ok(())
    }
}

/// The kernels that a plan has of its own.
pub struct Wanted {
    /// By step; none where plain ones are as good, or where the step belongs to a group.
    own: Vec<Option<Launches>>,
    /// Steps that are launched together, in the place of the last of them.
    groups: Vec<(Vec<usize>, Launches)>,
}

impl Wanted {
    pub fn new(plan: &Plan) -> Wanted {
        Wanted::except(plan, |_| false)
    }

    /// Without those of steps that somebody else does.
    pub fn except(plan: &Plan, done: impl Fn(usize) -> bool) -> Wanted {
        let own = (0..plan.steps.len()).map(|i| if done(i) { None } else { made(i, plan) });
        let mut own: Vec<Option<Launches>> = own.collect();
        let mut groups = Vec::new();
        for group in super::batch::batches(plan) {
            for alike in alike(&group, &own) {
                if let Some(launches) = gt_kernels::together(&alike, plan) {
                    groups.push((alike, launches));
                }
            }
        }
        for (group, _) in &groups {
            group.iter().for_each(|&i| own[i] = None);
        }
        Wanted { own, groups }
    }

    /// Steps that are launched together.
    pub fn together(&self) -> Vec<Vec<usize>> {
        self.groups.iter().map(|(group, _)| group.clone()).collect()
    }

    /// The text of the kernels made for some steps.
    pub fn text(&self, steps: &[usize]) -> String {
        let batch = self.groups.iter().find(|(group, _)| group == steps).map(|(_, batch)| batch);
        let own = steps.iter().filter_map(|&i| self.own[i].as_ref());
        let texts = batch.into_iter().chain(own).flat_map(|launches| &launches.list);
        texts
            .map(|launch| match &launch.function {
                Function::Made { text, .. } => {
                    format!("grid {:?} block {}\n{text}", launch.grid, launch.block)
                }
                Function::Plain(name) => format!("plain {name}"),
            })
            .collect()
    }

    pub fn launches(&self) -> impl Iterator<Item = &Launches> {
        self.own.iter().flatten().chain(self.groups.iter().map(|(_, batch)| batch))
    }
}

/// Those steps of a group that launch the same kernels, two at least.
fn alike(group: &[usize], own: &[Option<Launches>]) -> Vec<Vec<usize>> {
    let mut out: Vec<(Vec<&str>, Vec<usize>)> = Vec::new();
    for &i in group {
        let Some(launches) = &own[i] else { continue };
        let names: Option<Vec<&str>> = launches
            .list
            .iter()
            .map(|launch| match &launch.function {
                Function::Made { name, .. } => Some(&**name),
                Function::Plain(_) => None,
            })
            .collect();
        let Some(names) = names else { continue };
        match out.iter_mut().find(|(known, _)| *known == names) {
            Some((_, steps)) => steps.push(i),
            None => out.push((names, vec![i])),
        }
    }
    out.into_iter().map(|(_, steps)| steps).filter(|steps| steps.len() > 1).collect()
}

/// The kernels made for a step, where it has any.
fn made(step: usize, plan: &Plan) -> Option<Launches> {
    match &plan.steps[step].work {
        Work::Copy { .. } | Work::Data { .. } | Work::Matmul(_) => None,
        _ => gt_kernels::made(step, plan),
    }
}
