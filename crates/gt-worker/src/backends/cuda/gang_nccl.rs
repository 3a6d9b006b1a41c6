//! Collectives between GPUs by NCCL, on the session's stream.

use super::driver::{Stream, check};
use super::gang_host::address;
use super::gang_moves::{Act, At, Moves, moves};
use super::gang_tie::Comms;
use super::kernels::{Kernel, Kernels};
use super::lane::Lane;
use super::memory::JOINT;
use super::nccl::Call;
use super::steps::Bound;
use cudarc::driver::sys;
use gt_compiler::{Plan, Together, Work};
use gt_ir::{DType, ReduceKind, Result, Ty};
use gt_kernels::Launch as Wanted;
use gt_kernels::launch::Launches;
use std::ffi::c_void;

/// The collectives of a plan, made ready for one rank.
pub struct Exchanges {
    /// By step of the plan.
    list: Vec<Option<Moves>>,
    joins: Vec<((ReduceKind, DType), Kernel)>,
    /// Bytes of scratch memory, at most.
    pub scratch: usize,
}

/// The other ranks as one run sees them.
pub struct Gang<'a> {
    pub plan: &'a Plan,
    pub exchanges: &'a Exchanges,
    pub comms: &'a Comms,
    /// Steps after which nothing can fail any more: there ranks tell each other whether they have failed, if they wait
    /// to know.
    pub met: usize,
    pub waits: bool,
}

impl Gang<'_> {
    /// True if something is done together with the others in a step, or after it.
    pub fn acts(&self, i: usize) -> bool {
        self.tells(i) || matches!(self.plan.steps[i].work, Work::Collective(_))
    }

    /// True if ranks tell each other after a step whether they have failed.
    fn tells(&self, i: usize) -> bool {
        self.waits && i + 1 == self.met
    }

    /// What is done together with the others in a step, or after it.
    pub fn step(&self, i: usize, run: &Bound, lane: &Lane) -> Result<()> {
        if let Work::Collective(c) = &self.plan.steps[i].work {
            self.exchanges.enqueue(i, c, run, self.comms, &lane.stream)?;
        }
        if self.tells(i) { self.verdict(lane) } else { Ok(()) }
    }

    /// Reduces the failure words of all ranks: every rank gets to know whether any has failed.
    fn verdict(&self, lane: &Lane) -> Result<()> {
        let (from, to) = (lane.failed, lane.failed + JOINT);
        let (kind, dtype) = (ReduceKind::Max, DType::I64);
        // SAFETY: both words are the lane's own.
        unsafe { self.comms.all.call(&[Call::AllReduce { from, to, count: 1, kind, dtype }], &lane.stream) }
    }
}

/// The types of a collective's operands.
pub fn types(c: &Together) -> Vec<Ty> {
    c.xs.iter().map(|x| Ty { dtype: x.dtype, shape: x.shape.clone() }).collect()
}

impl Exchanges {
    /// Makes them ready; `place` gives the rank and the number of ranks along an axis.
    pub fn new(plan: &Plan, kernels: &Kernels, place: impl Fn(u8) -> (usize, usize)) -> Result<Exchanges> {
        let made = |work: &Work| match work {
            Work::Collective(c) => {
                let (rank, size) = place(c.axis);
                Some(moves(&c.what, &types(c), rank, size))
            }
            _ => None,
        };
        let list: Vec<Option<Moves>> = plan.steps.iter().map(|step| made(&step.work)).collect();
        let mut wanted: Vec<(ReduceKind, DType)> = Vec::new();
        for act in list.iter().flatten().flat_map(|m| &m.acts) {
            if let Act::Join { kind, dtype, .. } = act
                && !wanted.contains(&(*kind, *dtype))
            {
                wanted.push((*kind, *dtype));
            }
        }
        let launch = |&(kind, dtype): &(ReduceKind, DType)| {
            let function = gt_kernels::gang::join(kind, dtype);
            Wanted { function, grid: [1; 3], block: gt_kernels::gang::BLOCK, shared: 0, args: Vec::new() }
        };
        let launches = Launches { list: wanted.iter().map(launch).collect(), ..Launches::default() };
        kernels.make(std::iter::once(&launches))?;
        let joins = wanted.into_iter().zip(&launches.list);
        let joins = joins.map(|(what, launch)| Ok((what, kernels.get(&launch.function)?)));
        let joins = joins.collect::<Result<Vec<_>>>()?;
        let scratch = list.iter().flatten().map(|m| m.scratch).max().unwrap_or(0);
        Ok(Exchanges { list, joins, scratch })
    }

    /// Puts a collective on the stream.
    pub fn enqueue(
        &self,
        step: usize,
        c: &Together,
        run: &Bound,
        comms: &Comms,
        stream: &Stream,
    ) -> Result<()> {
        let Some(moves) = &self.list[step] else { return Ok(()) };
        let at = |at: At| match at {
            At::X(k, bytes) => address(&c.xs[k], run) + bytes as u64,
            At::Out(k, bytes) => run.addresses[c.outs[k] as usize] + bytes as u64,
            At::Scratch(bytes) => run.scratch + bytes as u64,
        };
        for act in &moves.acts {
            match act {
                Act::Copy { from, to, bytes, rows, from_step, to_step } => {
                    let (from, to) = ((at(*from), *from_step), (at(*to), *to_step));
                    // SAFETY: the operands, the results and the scratch memory have that many bytes.
                    unsafe { copy_rows(from, to, *bytes, *rows, stream)? };
                }
                Act::Calls(calls) => {
                    let calls: Vec<Call<u64>> = calls.iter().map(|call| placed(call, at)).collect();
                    // SAFETY: as above, and the run keeps the memory.
                    unsafe { comms.axis(c.axis).call(&calls, stream)? };
                }
                Act::Join { from, to, runs, count, kind, dtype } => {
                    let known = self.joins.iter().find(|(what, _)| *what == (*kind, *dtype));
                    let Some((_, kernel)) = known else { continue };
                    let mut words = [at(*from), at(*to), *runs as u64, *count as u64];
                    let mut args = words.each_mut().map(|word| (word as *mut u64).cast::<c_void>());
                    let grid = [gt_kernels::gang::grid(*count, *dtype), 1, 1];
                    // SAFETY: the kernel takes two addresses and two numbers of eight bytes.
                    unsafe { kernel.function.launch(grid, gt_kernels::gang::BLOCK, 0, &mut args, stream)? };
                }
            }
        }
        Ok(())
    }
}

/// A call with the device's addresses.
fn placed(call: &Call<At>, at: impl Fn(At) -> u64) -> Call<u64> {
    match *call {
        Call::AllReduce { from, to, count, kind, dtype } => {
            Call::AllReduce { from: at(from), to: at(to), count, kind, dtype }
        }
        Call::ReduceScatter { from, to, count, kind, dtype } => {
            Call::ReduceScatter { from: at(from), to: at(to), count, kind, dtype }
        }
        Call::AllGather { from, to, bytes } => Call::AllGather { from: at(from), to: at(to), bytes },
        Call::Broadcast { from, to, bytes, root } => {
            Call::Broadcast { from: at(from), to: at(to), bytes, root }
        }
        Call::Send { from, bytes, to } => Call::Send { from: at(from), bytes, to },
        Call::Recv { to, bytes, from } => Call::Recv { to: at(to), bytes, from },
    }
}

/// The driver takes no larger steps between rows.
const LONGEST_STEP: usize = i32::MAX as usize;

/// Copies rows on the device, from and to places with their steps.
///
/// # Safety
/// All rows are memory of the device that stays until the stream is done.
unsafe fn copy_rows(
    (from, from_step): (u64, usize),
    (to, to_step): (u64, usize),
    bytes: usize,
    rows: usize,
    stream: &Stream,
) -> Result<()> {
    if rows == 1 || (from_step == bytes && to_step == bytes) {
        // SAFETY: the caller's.
        return unsafe { stream.copy(to, from, bytes * rows) };
    }
    if from_step.max(to_step) > LONGEST_STEP {
        for row in 0..rows {
            // SAFETY: the caller's.
            unsafe { stream.copy(to + (row * to_step) as u64, from + (row * from_step) as u64, bytes)? };
        }
        return Ok(());
    }
    let kind = sys::CUmemorytype::CU_MEMORYTYPE_DEVICE;
    let what = sys::CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: kind,
        srcHost: std::ptr::null(),
        srcDevice: from,
        srcArray: std::ptr::null_mut(),
        srcPitch: from_step,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: kind,
        dstHost: std::ptr::null_mut(),
        dstDevice: to,
        dstArray: std::ptr::null_mut(),
        dstPitch: to_step,
        WidthInBytes: bytes,
        Height: rows,
    };
    // SAFETY: the caller's; the driver reads the description now.
    check("copy rows", unsafe { sys::cuMemcpy2DAsync_v2(&what, stream.raw()) }.result())
}
