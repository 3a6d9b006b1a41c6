//! What a worker asks of a device. The executor knows only this; `backends/` holds the devices.

use crate::gang::Group;
use gt_ir::{Error, Result, Slot, Structure, Ty};
use gt_net::observe::{StepInfo, StepTime};
use gt_sync::Mutex;
use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Dense memory of one tensor on a device.
pub trait Memory: Send + Sync {
    fn bytes(&self) -> usize;
    /// For the backend that made it.
    fn as_any(&self) -> &dyn Any;
    fn as_any_mut(&mut self) -> &mut dyn Any;
}

/// A shared handle to a tensor's memory. Whoever holds the only one may write in place.
pub type Buffer = Arc<dyn Memory>;

/// A program failed on the device.
#[derive(Clone, Debug)]
pub struct PlanError {
    /// The instruction that failed, where that is known.
    pub instr: Option<u32>,
    pub error: Error,
}

/// Notes when the steps of a run begin and end. Steps may run on several threads.
pub struct StepClock {
    start: Instant,
    times: Mutex<Vec<StepTime>>,
    watched: bool,
}

impl StepClock {
    /// The run begins now.
    pub fn start() -> StepClock {
        StepClock { start: Instant::now(), times: Mutex::default(), watched: false }
    }

    /// The run begins now, and somebody wants the times of this very one: a device that queues work waits for them.
    pub fn watched() -> StepClock {
        StepClock { watched: true, ..StepClock::start() }
    }

    pub fn is_watched(&self) -> bool {
        self.watched
    }

    /// Nanoseconds since the run began.
    pub fn now(&self) -> u32 {
        self.start.elapsed().as_nanos().min(u32::MAX as u128) as u32
    }

    /// A step that began at `start` ends now.
    pub fn end(&self, step: u32, start: u32) {
        let took = self.now() - start;
        self.times.lock().push(StepTime { step, start, took });
    }

    /// Notes a step whose times were measured elsewhere.
    pub fn add(&self, time: StepTime) {
        self.times.lock().push(time);
    }

    /// What was noted, in the order of ending.
    pub fn times(self) -> Vec<StepTime> {
        self.times.into_inner()
    }
}

/// A value's bytes on their way to the host.
pub type Coming = Box<dyn Pending<Arc<Vec<u8>>>>;

/// Live-outs that somebody waits for while their program still runs.
pub struct Early<'a> {
    /// Their numbers among the live-outs.
    pub outs: &'a [usize],
    /// So many of them are waited for; the others may be asked for soon, and are given where that costs nothing.
    pub asked: usize,
    /// Takes the bytes of one, by its place in `outs`.
    pub give: &'a dyn Fn(usize, Coming),
}

/// Larger values are not given early.
pub const EARLY_BYTES: usize = 16 << 10;

/// How much work goes into a plan. The bits of what it computes are the same (C7).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Effort {
    /// Every instruction for itself.
    Apart,
    /// What is worked out while a program waits.
    Quick,
    /// All the device knows, made on the side.
    Full,
}

/// A program made ready for a device, good for any binding of its structure.
pub trait Plan: Send + Sync {
    /// Runs it. `inputs` holds one buffer per live-in; for one that dies the caller has given up its own handle, so
    /// that the plan finds it unshared and may reuse it. On failure `inputs` is left as it was, bytes included (C5).
    /// Returns one buffer per live-out; one that took over a donated input is shared with `inputs` until the caller
    /// drops those.
    fn run(&self, inputs: &mut Vec<Buffer>, slots: &[Slot]) -> Result<Vec<Buffer>, PlanError>;

    /// Runs it as one rank of a gang, and notes when each step ran if a clock is given; all ranks succeed or fail together, but for a rank that dies.
    fn run_gang(
        &self,
        _inputs: &mut Vec<Buffer>,
        _slots: &[Slot],
        _group: &dyn Group,
        _clock: Option<&StepClock>,
    ) -> Result<Vec<Buffer>, PlanError> {
        let error = Error::Runtime("this backend cannot run programs together with other workers".into());
        Err(PlanError { instr: None, error })
    }

    /// Runs it as `run` does and says how many seconds each step took; empty where that cannot be told.
    fn profile(&self, _inputs: &mut Vec<Buffer>, _slots: &[Slot]) -> Result<Vec<(String, f64)>, PlanError> {
        Ok(Vec::new())
    }

    /// Runs it as `run` does and notes when each step ran; nothing where that cannot be told. Where nobody watches, a
    /// device that queues work notes the times of an earlier run instead of waiting.
    fn run_timed(
        &self,
        inputs: &mut Vec<Buffer>,
        slots: &[Slot],
        _clock: &StepClock,
    ) -> Result<Vec<Buffer>, PlanError> {
        self.run(inputs, slots)
    }

    /// Runs it as `run` or `run_timed` does, and gives values that somebody waits for as soon as they are there. Only
    /// what gains by it is given, and only once nothing that can fail is left to do: whoever has a value of a
    /// program may go on from its success (C5).
    fn run_early(
        &self,
        inputs: &mut Vec<Buffer>,
        slots: &[Slot],
        clock: Option<&StepClock>,
        _early: &Early,
    ) -> Result<Vec<Buffer>, PlanError> {
        match clock {
            Some(clock) => self.run_timed(inputs, slots, clock),
            None => self.run(inputs, slots),
        }
    }

    /// The steps that `run_timed` speaks of.
    fn steps(&self) -> Vec<StepInfo> {
        Vec::new()
    }

    /// Bytes it needs beyond its inputs, known before it runs.
    fn reserve(&self) -> usize;

    /// True if a plan of full effort would be better.
    fn can_improve(&self) -> bool {
        false
    }

    /// What may round differently from other plans of its structure (C7); a better plan has the same.
    fn numerics(&self) -> u64 {
        0
    }

    /// The plan in a form a person can read (`GT_DEBUG_COMPILE=1`).
    fn text(&self) -> String;
}

/// Host bytes on their way to a device, perhaps a mapping that can be kept as it is.
pub enum HostBytes {
    Owned(Arc<Vec<u8>>),
    Shared(Box<dyn AsRef<[u8]> + Send + Sync>),
}

impl HostBytes {
    pub fn as_slice(&self) -> &[u8] {
        match self {
            HostBytes::Owned(v) => v,
            HostBytes::Shared(m) => (**m).as_ref(),
        }
    }
}

/// Something that a device is still at.
pub trait Pending<T>: Send {
    /// Waits for it. Called on any thread, once.
    fn wait(self: Box<Self>) -> Result<T>;
    /// True if nothing is left to wait for.
    fn passed(&self) -> Result<bool>;
}

/// A device.
pub trait Backend: Send + Sync {
    /// `cpu`, `reference`, `cuda`.
    fn name(&self) -> &'static str;
    /// The device in words.
    fn device(&self) -> String;
    fn threads(&self) -> u32;
    /// Bytes it may use for tensors.
    fn memory(&self) -> u64;
    /// So many workers of this process use the same memory: each may use its share.
    fn share_memory(&self, _among: usize) {}
    /// Bytes in use for tensors now, and at most so far.
    fn memory_in_use(&self) -> (u64, u64);
    /// How often plans ran as one captured graph, and how often one waited for the device to check indices.
    fn graphs_and_checks(&self) -> (u64, u64) {
        (0, 0)
    }
    /// Makes a plan. `structure` has been checked; `types` are the types of all its values.
    fn compile(&self, structure: &Arc<Structure>, types: &[Ty], effort: Effort) -> Result<Arc<dyn Plan>>;
    /// Called once by the thread that will run plans.
    fn settle(&self) {}
    /// True if its plans have `run_gang`.
    fn gangs(&self) -> bool {
        false
    }
    fn upload(&self, ty: &Ty, data: HostBytes) -> Result<Buffer>;
    /// A copy of a buffer of another backend of its kind in this process, if there is a way that does not pass through
    /// the host.
    fn adopt(&self, _buffer: &Buffer) -> Option<Result<Buffer>> {
        None
    }
    /// True if buffers can be shown to other processes of this host without passing through its memory (`lend`).
    fn lends(&self) -> bool {
        false
    }
    /// Shows a buffer piece by piece to a process of this host, after all work on it; returns when all was taken.
    fn lend(&self, _buffer: &Buffer, _to: &mut dyn Borrower) -> Result<()> {
        Err(Error::Runtime(format!("{}: memory of this device is not shared between processes", self.name())))
    }
    /// Memory for a tensor that another process of this host lends.
    fn borrow(&self, _bytes: usize) -> Result<Box<dyn Borrowed>> {
        Err(Error::Runtime(format!("{}: memory of this device is not shared between processes", self.name())))
    }
    /// The dense bytes of a buffer where they lie, if that is host memory and all work on it is done.
    fn host_bytes<'a>(&self, _buffer: &'a Buffer) -> Option<&'a [u8]> {
        None
    }
    /// A copy of the dense bytes of a buffer, after all work on it is done.
    fn download(&self, buffer: &Buffer) -> Result<Arc<Vec<u8>>>;

    /// What this thread asks for from now on is for this session. A device that queues work orders it by session.
    fn turn(&self, _session: u64) {}
    /// The session is over.
    fn end(&self, _session: u64) {}
    /// True if work is only queued when a call returns: it is waited for by `fetch` and `mark`.
    fn queues(&self) -> bool {
        false
    }
    /// Starts a download without waiting for it.
    fn fetch(&self, buffer: &Buffer) -> Result<Box<dyn Pending<Arc<Vec<u8>>>>> {
        Ok(Box::new(Here(self.download(buffer)?)))
    }
    /// All work of this thread's session so far; gives the seconds the device was at it since the last mark.
    fn mark(&self) -> Result<Box<dyn Pending<f64>>> {
        Ok(Box::new(Here(0.0)))
    }
    /// There is nothing to run: threads that look for work may sleep.
    fn rest(&self) {}

    /// A client is expected to work for about this long on the cores that the device may be using, or it is done (`None`).
    fn leave_room(&self, _time: Option<Duration>) {}
    /// Why the device can do nothing any more, if so.
    fn broken(&self) -> Option<String> {
        None
    }
    /// From now on the most memory in use is counted anew.
    fn reset_peak(&self) {}
    /// Gives memory back that is kept for speed alone.
    fn shrink(&self) {}
}

/// Whom a buffer is lent to.
pub trait Borrower {
    /// Shows where a piece lies, without waiting until it is taken.
    fn show(&mut self, card: &[u8]) -> Result<()>;
    /// Waits until the oldest piece that has not been waited for is taken.
    fn taken(&mut self) -> Result<()>;
}

/// A tensor that comes piece by piece from another process.
pub trait Borrowed: Send {
    /// Copies a piece; returns when that is done.
    fn take(&mut self, card: &[u8]) -> Result<()>;
    /// The tensor, once all of it was taken.
    fn end(self: Box<Self>) -> Result<Buffer>;
}

/// What is there already.
pub struct Here<T>(pub T);

impl<T: Send> Pending<T> for Here<T> {
    fn wait(self: Box<Self>) -> Result<T> {
        Ok(self.0)
    }

    fn passed(&self) -> Result<bool> {
        Ok(true)
    }
}
