//! A GPU of NVIDIA's. Every library is loaded at run time: the program is the same with and without one.
//!
//! Programs are queued on a stream per session (`lane`) and nothing waits for them but who looks at a value. Memory is
//! ordered by those streams. A plan runs with the kernels that ship with the program until its own are compiled
//! (`kernels`), and as a graph once it comes back (`graph`).

mod account;
mod batch;
mod checks;
pub mod cudnn;
mod device;
mod disk;
mod driver;
mod gang;
mod gang_aloft;
mod gang_check;
mod gang_host;
mod gang_moves;
mod gang_nccl;
mod gang_pact;
mod gang_tie;
mod graph;
mod graph_exec;
mod ipc;
mod kernels;
mod lane;
mod leave;
mod libs;
pub mod matmul;
mod matmul_call;
mod memory;
mod nccl;
mod peer;
mod pins;
mod plan;
mod ranges;
mod shared;
mod stages;
mod staging;
mod steps;
mod ticks;
mod tune;

pub use device::count;
pub use driver::{broken, on_break};
pub use gang::gangs_run;
pub use ipc::tensors_moved;
pub use leave::now as leaving;

use crate::backend::{Backend, Borrowed, Borrower, Buffer, Effort, HostBytes, Pending, Plan};
use account::{Account, Owner};
use cudnn::Wish;
use device::Device;
use driver::Event;
use gt_compiler::CompileOptions;
use gt_ir::{Op, Result, Structure, Ty, bail};
use lane::Lane;
use memory::{Block, CudaMemory};
use shared::Shared;
use stages::stage;
use staging::{Landed, Pinned};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use steps::Wanted;

/// Memory for cuBLASLt, at least. It grows by doubling where products ask for more, so that its place seldom changes.
const WORKSPACE: usize = 1 << 20;
/// Up to this size bytes go by the stream of the programs: another stream costs more than it saves.
const SMALL: usize = 16 << 10;
/// Memory of the device left for contexts, kernels and libraries.
const LEFT: u64 = 1 << 30;
/// Integer uploads up to this size have their bounds looked for.
const BOUNDED: usize = 64 << 20;

/// Longer rows are reduced by several blocks. The logits of a large vocabulary are still taken row by row: read again
/// from the cache they cost less than in another kernel.
const LONGEST_ROW: usize = 256 << 10;

/// Composites with a kernel of their own. A softmax along the last dimension is better written out: its rows fuse with
/// what comes before and after.
fn takes(op: &Op, x: &Ty) -> bool {
    match op {
        Op::Softmax { dim } | Op::LogSoftmax { dim } => {
            dim + 1 < x.shape.len() || x.shape.last().is_some_and(|&n| n > LONGEST_ROW)
        }
        Op::Attention { .. } | Op::AttentionGrad { .. } => x.dtype.is_float(),
        _ => false,
    }
}

/// One GPU as a device.
pub struct CudaBackend {
    shared: Arc<Shared>,
    options: CompileOptions,
}

impl CudaBackend {
    /// Opens a GPU by its number among those that `CUDA_VISIBLE_DEVICES` leaves.
    pub fn open(number: u32) -> Result<CudaBackend> {
        CudaBackend::with_options(number, CompileOptions::default())
    }

    /// What steps there are is the backend's own to say.
    pub fn with_options(number: u32, options: CompileOptions) -> Result<CudaBackend> {
        CudaBackend::attending(number, options, Wish::from_env()?)
    }

    /// The same, where somebody says whose kernels attend.
    pub fn attending(number: u32, options: CompileOptions, wish: Wish) -> Result<CudaBackend> {
        let device = Device::open(number)?;
        let own = std::env::var("GT_HOPPER").map_or(true, |on| on != "0");
        gt_kernels::attention::use_hopper(own && device.arch_name() == "sm_90");
        let account = Arc::new(Account::new(device.memory.saturating_sub(LEFT)));
        let shared = Shared::new(device, account, wish)?;
        let warm = Arc::downgrade(&shared);
        shared.aside(Box::new(move || {
            // Whoever needs a kernel and finds none says why.
            if let Some(shared) = warm.upgrade() {
                let _ = shared.kernels.warm();
                let _ = shared.kernels.compiler();
            }
        }));
        let free = CompileOptions { again: 8, free_math: true, one_hot: true, ..options };
        let options = CompileOptions { takes, longest_row: LONGEST_ROW, ..free };
        Ok(CudaBackend { shared, options })
    }

    /// Plans of full effort for several programs, their kernels compiled in one go.
    pub fn compile_all(&self, programs: &[Arc<Structure>]) -> Vec<Result<Arc<dyn Plan>>> {
        let options = self.options(Effort::Full);
        let compile = |s: &Arc<Structure>| gt_compiler::compile(s, &s.check()?, options);
        let plans: Vec<Result<gt_compiler::Plan>> = programs.iter().map(compile).collect();
        let wanted: Vec<Wanted> = plans.iter().flatten().map(Wanted::new).collect();
        // Whoever has a kernel that does not compile hears of it alone, below.
        let _ = self.shared.kernels.make(wanted.iter().flat_map(Wanted::launches));
        let finish = |(plan, s): (Result<gt_compiler::Plan>, &Arc<Structure>)| {
            let plan = plan::CudaPlan::new(plan?, s.clone(), self.shared.clone());
            plan.make_now();
            Ok(Arc::new(plan) as Arc<dyn Plan>)
        };
        plans.into_iter().zip(programs).map(finish).collect()
    }

    /// Epilogues are for plans that come back: whether the library has one may have to be tried.
    fn options(&self, effort: Effort) -> CompileOptions {
        let (apart, epilogues) = (effort == Effort::Apart, effort == Effort::Full);
        CompileOptions { apart, epilogues, ..self.options }
    }

    fn mine(&self) -> Result<Arc<Lane>> {
        self.shared.lanes.mine()
    }

    /// Starts bringing a buffer to the host.
    fn begin(&self, buffer: &Buffer) -> Result<Download> {
        let memory = cuda_memory(buffer)?;
        let lane = memory.lane().clone();
        lane.device.enter()?;
        memory.join(&lane)?;
        let bytes = buffer.bytes();
        let landed = if bytes <= SMALL {
            // SAFETY: `buffer` is kept until the bytes have landed.
            Some(unsafe { lane.receive(&lane.stream, memory.address(), bytes)? })
        } else {
            lane.down.after(&Event::record(&lane.stream)?)?;
            match bytes <= Pinned::PIECE {
                // SAFETY: as above.
                true => Some(unsafe { lane.receive(&lane.down, memory.address(), bytes)? }),
                false => None,
            }
        };
        Ok(Download { buffer: buffer.clone(), lane, landed })
    }
}

/// Bytes on their way to the host.
struct Download {
    buffer: Buffer,
    lane: Arc<Lane>,
    /// Nothing yet where there are too many for one piece.
    landed: Option<Landed>,
}

impl Download {
    fn finish(mut self) -> Result<Arc<Vec<u8>>> {
        let bytes = self.buffer.bytes();
        let mut out = Vec::with_capacity(bytes);
        if let Some(landed) = self.landed.take() {
            landed.wait(bytes, |from| out.extend_from_slice(from))?;
            return Ok(Arc::new(out));
        }
        self.lane.device.enter()?;
        let base = cuda_memory(&self.buffer)?.address();
        let pieces: Vec<usize> = (0..bytes).step_by(Pinned::PIECE).collect();
        let len = |at: usize| Pinned::PIECE.min(bytes - at);
        // While one piece is read the next is under way.
        let mut coming: Option<(usize, Landed)> = None;
        for at in pieces {
            // SAFETY: the buffer is kept until the bytes have landed.
            let next = unsafe { self.lane.receive(&self.lane.down, base + at as u64, len(at))? };
            if let Some((n, landed)) = coming.replace((len(at), next)) {
                landed.wait(n, |from| out.extend_from_slice(from))?;
            }
        }
        if let Some((n, landed)) = coming {
            landed.wait(n, |from| out.extend_from_slice(from))?;
        }
        Ok(Arc::new(out))
    }
}

impl Pending<Arc<Vec<u8>>> for Download {
    fn wait(self: Box<Self>) -> Result<Arc<Vec<u8>>> {
        self.finish()
    }

    fn passed(&self) -> Result<bool> {
        self.landed.as_ref().map_or(Ok(false), Landed::passed)
    }
}

/// All work of a session up to a point.
struct Mark {
    lane: Arc<Lane>,
    began: Option<Event>,
    end: Event,
}

impl Pending<f64> for Mark {
    fn wait(self: Box<Self>) -> Result<f64> {
        self.lane.device.enter()?;
        self.end.wait()?;
        Ok(self.began.as_ref().map_or(0.0, |began| self.end.seconds_since(began)))
    }

    fn passed(&self) -> Result<bool> {
        self.lane.device.enter()?;
        self.end.passed()
    }
}

/// The memory behind a handle that this backend made.
fn cuda_memory(buffer: &Buffer) -> Result<&CudaMemory> {
    match buffer.as_any().downcast_ref::<CudaMemory>() {
        Some(memory) => Ok(memory),
        None => bail!(Runtime, "cuda: a buffer of another backend"),
    }
}

impl Backend for CudaBackend {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn device(&self) -> String {
        let device = &self.shared.device;
        let gib = device.memory as f64 / (1u64 << 30) as f64;
        format!("{} (cuda:{}, {}, {gib:.0} GiB)", device.name, device.number, device.arch_name())
    }

    fn threads(&self) -> u32 {
        1
    }

    fn memory(&self) -> u64 {
        self.shared.account.limit
    }

    fn graphs_and_checks(&self) -> (u64, u64) {
        (self.shared.ran.load(Ordering::Relaxed), self.shared.checked.load(Ordering::Relaxed))
    }

    fn memory_in_use(&self) -> (u64, u64) {
        self.shared.account.usage()
    }

    fn broken(&self) -> Option<String> {
        broken().map(Into::into)
    }

    fn reset_peak(&self) {
        self.shared.account.reset_peak();
    }

    fn shrink(&self) {
        self.shared.lanes.shrink();
        let _ = self.shared.device.trim();
    }

    fn turn(&self, session: u64) {
        lane::turn(session);
    }

    fn end(&self, session: u64) {
        self.shared.lanes.end(session);
    }

    fn compile(&self, structure: &Arc<Structure>, types: &[Ty], effort: Effort) -> Result<Arc<dyn Plan>> {
        let made = stage("plan", || gt_compiler::compile(structure, types, self.options(effort)))?;
        let made = plan::CudaPlan::new(made, structure.clone(), self.shared.clone());
        if effort == Effort::Full {
            made.make_now();
        }
        Ok(Arc::new(made))
    }

    fn gangs(&self) -> bool {
        true
    }

    fn upload(&self, ty: &Ty, data: HostBytes) -> Result<Buffer> {
        let bytes = data.as_slice();
        if bytes.len() != ty.bytes() {
            bail!(Value, "upload: {} bytes for {ty}, expected {}", bytes.len(), ty.bytes());
        }
        let lane = self.mine()?;
        let stream = if bytes.len() <= SMALL { &lane.stream } else { &lane.up };
        let block = Block::new(&lane, stream, Owner::Tensors, bytes.len())?;
        // SAFETY: the block is new and has at least this many bytes.
        unsafe { lane.send(stream, block.address(), bytes)? };
        let range = if bytes.len() <= BOUNDED { ranges::of_bytes(ty.dtype, bytes) } else { None };
        if bytes.len() <= SMALL {
            let memory = CudaMemory::new(block, bytes.len());
            memory.set_range(range);
            return Ok(Arc::new(memory));
        }
        let after = Event::record(stream)?;
        Ok(Arc::new(CudaMemory::arriving(block, bytes.len(), after, range)))
    }

    fn adopt(&self, buffer: &Buffer) -> Option<Result<Buffer>> {
        cuda_memory(buffer).ok()?;
        Some(self.mine().and_then(|lane| peer::adopt(&lane, buffer)))
    }

    fn lends(&self) -> bool {
        true
    }

    fn lend(&self, buffer: &Buffer, to: &mut dyn Borrower) -> Result<()> {
        self.shared.around.lend(buffer, to)
    }

    fn borrow(&self, bytes: usize) -> Result<Box<dyn Borrowed>> {
        let lane = self.mine()?;
        let block = Block::new(&lane, &lane.up, Owner::Tensors, bytes)?;
        Ok(Box::new(ipc::Coming { around: self.shared.around.clone(), lane, block, bytes, come: 0 }))
    }

    fn download(&self, buffer: &Buffer) -> Result<Arc<Vec<u8>>> {
        self.begin(buffer)?.finish()
    }

    fn fetch(&self, buffer: &Buffer) -> Result<Box<dyn Pending<Arc<Vec<u8>>>>> {
        Ok(Box::new(self.begin(buffer)?))
    }

    fn queues(&self) -> bool {
        true
    }

    fn mark(&self) -> Result<Box<dyn Pending<f64>>> {
        let lane = self.mine()?;
        let began = lane.kept.lock().began.take();
        let end = if began.is_some() { Event::timed(&lane.stream)? } else { Event::record(&lane.stream)? };
        Ok(Box::new(Mark { lane, began, end }))
    }
}
