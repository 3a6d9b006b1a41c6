//! The cpu backend: plans interpreted tile by tile, on all cores.

mod acts;
#[cfg(target_arch = "x86_64")]
mod amx;
mod attend;
pub mod attention;
mod chain;
mod collective;
pub(crate) mod convert;
mod fold;
mod forms;
mod halves;
mod index;
pub(crate) mod isa;
mod kernel;
mod lanes;
mod lower;
mod math;
mod matmul;
mod memory;
mod phi;
mod plan;
mod product;
mod product_half;
mod random;
mod rows;
mod runs;
mod soon;
mod sort;
pub mod threads;
mod tile;
mod tile_size;
mod waves;
mod ways;
#[cfg(target_arch = "x86_64")]
mod wide;

use crate::backend::{Backend, Buffer, Effort, HostBytes, Plan};
use gt_compiler::CompileOptions;
use gt_ir::{Error, Op, Result, Structure, Ty, bail};
use memory::{CpuMemory, Pool};
use std::sync::Arc;
use std::time::Duration;
use threads::Threads;

/// This machine's processor as a device.
pub struct CpuBackend {
    pool: Arc<Pool>,
    threads: Arc<Threads>,
    options: CompileOptions,
    /// The cores its threads stay on.
    cores: Option<Vec<usize>>,
    /// It uses all cores there are, so that clients of this machine have none of their own.
    crowded: bool,
}

impl CpuBackend {
    /// A device of its own threads, one for each of these cores, which they do not leave: for several workers of one
    /// process that run at the same time.
    pub fn on_cores(cores: &[usize]) -> CpuBackend {
        let mut backend = CpuBackend::new(Some(1));
        backend.threads = Arc::new(Threads::pinned(cores));
        backend.cores = Some(cores.to_vec());
        // Its threads stay where they are, and others go elsewhere.
        backend.crowded = false;
        backend
    }

    /// A device of `threads` threads, by default one per core.
    pub fn new(threads: Option<u32>) -> CpuBackend {
        CpuBackend::with_options(threads, CompileOptions::default())
    }

    /// Which composites it takes whole is the backend's own to say.
    pub fn with_options(threads: Option<u32>, options: CompileOptions) -> CpuBackend {
        let options = CompileOptions { takes, longest_row: LONGEST_ROW, ..options };
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let count = threads.map_or(cores, |n| n.max(1) as usize);
        CpuBackend {
            pool: Pool::new(usable_memory()),
            threads: Threads::shared(count),
            options,
            cores: None,
            crowded: count >= cores,
        }
    }
}

/// Longer rows do not stay in cache between the passes over them.
const LONGEST_ROW: usize = 16 << 10;

/// Composites with a kernel of their own. A softmax along the last dimension is better written out: its rows fuse with
/// what comes before and after.
fn takes(op: &Op, x: &Ty) -> bool {
    match op {
        Op::Softmax { dim } | Op::LogSoftmax { dim } => {
            dim + 1 < x.shape.len() || x.shape.last().is_some_and(|&n| n > LONGEST_ROW)
        }
        op => matches!(op, Op::Attention { .. } | Op::AttentionGrad { .. }),
    }
}

/// Bytes that tensors may take: the rest is for the system.
fn usable_memory() -> u64 {
    total_memory() / 10 * 9
}

/// Bytes of memory of this machine.
fn total_memory() -> u64 {
    // SAFETY: plain queries.
    let (pages, size) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    if pages > 0 && size > 0 { pages as u64 * size as u64 } else { 4 << 30 }
}

fn model() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':'));
    name.map_or("cpu", |(_, name)| name.trim()).to_string()
}

/// The memory behind a handle that this backend made.
fn cpu_memory(buffer: &Buffer) -> Result<&CpuMemory> {
    match buffer.as_any().downcast_ref::<CpuMemory>() {
        Some(memory) => Ok(memory),
        None => bail!(Runtime, "cpu: a buffer of another backend"),
    }
}

impl Backend for CpuBackend {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn device(&self) -> String {
        format!("{} ({} threads, {})", model(), self.threads(), isa::name())
    }

    fn threads(&self) -> u32 {
        self.threads.count() as u32
    }

    fn memory(&self) -> u64 {
        self.pool.limit()
    }

    fn share_memory(&self, among: usize) {
        self.pool.set_limit(usable_memory() / among.max(1) as u64);
    }

    fn memory_in_use(&self) -> (u64, u64) {
        self.pool.usage()
    }

    fn reset_peak(&self) {
        self.pool.reset_peak();
    }

    fn shrink(&self) {
        self.pool.release_kept(0);
    }

    fn compile(&self, structure: &Arc<Structure>, types: &[Ty], effort: Effort) -> Result<Arc<dyn Plan>> {
        let options = CompileOptions { apart: effort == Effort::Apart, ..self.options };
        let plan = gt_compiler::compile(structure, types, options)?;
        let made = plan::CpuPlan::new(plan, structure.clone(), self.pool.clone(), self.threads.clone());
        Ok(Arc::new(made))
    }

    fn settle(&self) {
        if let Some(core) = self.cores.as_ref().and_then(|c| c.first()) {
            threads::pin(*core);
        }
    }

    fn gangs(&self) -> bool {
        true
    }

    fn rest(&self) {
        if self.crowded {
            self.threads.rest();
        }
    }

    fn leave_room(&self, time: Option<Duration>) {
        if self.crowded {
            self.threads.leave_one(time);
        }
    }

    fn upload(&self, ty: &Ty, data: HostBytes) -> Result<Buffer> {
        let bytes = data.as_slice();
        if bytes.len() != ty.bytes() {
            bail!(Value, "upload: {} bytes for {ty}, expected {}", bytes.len(), ty.bytes());
        }
        // A client's segment is copied rather than kept: it goes back warm, and a fresh one would cost more in page
        // faults than this copy.
        let block = self.pool.take(bytes.len())?;
        // SAFETY: the block is new and has at least this many bytes.
        let into = unsafe { std::slice::from_raw_parts_mut(block.ptr(), bytes.len()) };
        gt_net::copy::copy(into, bytes);
        Ok(Arc::new(CpuMemory(block)))
    }

    fn host_bytes<'a>(&self, buffer: &'a Buffer) -> Option<&'a [u8]> {
        cpu_memory(buffer).ok().map(CpuMemory::as_slice)
    }

    fn download(&self, buffer: &Buffer) -> Result<Arc<Vec<u8>>, Error> {
        Ok(Arc::new(cpu_memory(buffer)?.as_slice().to_vec()))
    }
}
