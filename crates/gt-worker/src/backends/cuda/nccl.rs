//! NCCL, loaded when the first gang needs it: the few functions used here, and a communicator that can be cut off.

use super::device::Device;
use super::driver::Stream;
use super::libs::{self, Library};
use gt_ir::{DType, Error, ReduceKind, Result, bail};
use gt_sync::Mutex;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

/// What rank 0 makes, for all ranks to find each other by.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId(pub [u8; UniqueId::BYTES]);

impl UniqueId {
    pub const BYTES: usize = 128;
}

type Handle = *mut c_void;
type RawStream = *mut c_void;

/// NCCL's functions. Each gives 0, or what went wrong.
struct Api {
    get_version: unsafe extern "C" fn(*mut c_int) -> c_int,
    get_unique_id: unsafe extern "C" fn(*mut UniqueId) -> c_int,
    comm_init_rank: unsafe extern "C" fn(*mut Handle, c_int, UniqueId, c_int) -> c_int,
    comm_abort: unsafe extern "C" fn(Handle) -> c_int,
    get_async_error: unsafe extern "C" fn(Handle, *mut c_int) -> c_int,
    get_error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    group_start: unsafe extern "C" fn() -> c_int,
    group_end: unsafe extern "C" fn() -> c_int,
    all_reduce: unsafe extern "C" fn(u64, u64, usize, c_int, c_int, Handle, RawStream) -> c_int,
    all_gather: unsafe extern "C" fn(u64, u64, usize, c_int, Handle, RawStream) -> c_int,
    reduce_scatter: unsafe extern "C" fn(u64, u64, usize, c_int, c_int, Handle, RawStream) -> c_int,
    broadcast: unsafe extern "C" fn(u64, u64, usize, c_int, c_int, Handle, RawStream) -> c_int,
    send: unsafe extern "C" fn(u64, usize, c_int, c_int, Handle, RawStream) -> c_int,
    recv: unsafe extern "C" fn(u64, usize, c_int, c_int, Handle, RawStream) -> c_int,
}

/// Finds a function of the library. The type is that of the field it is written to.
macro_rules! function {
    ($library:expr, $name:literal) => {{
        let Some(at) = $library.symbol($name) else {
            bail!(
                Runtime,
                "nccl: {} is missing in libnccl: install NCCL 2.18 or newer",
                $name.to_string_lossy()
            )
        };
        // SAFETY: NCCL's function of that name has that type.
        unsafe { std::mem::transmute(at) }
    }};
}

impl Api {
    // The fields say what the functions are.
    #[allow(clippy::missing_transmute_annotations)]
    fn load(library: Library) -> Result<Api> {
        Ok(Api {
            get_version: function!(library, c"ncclGetVersion"),
            get_unique_id: function!(library, c"ncclGetUniqueId"),
            comm_init_rank: function!(library, c"ncclCommInitRank"),
            comm_abort: function!(library, c"ncclCommAbort"),
            get_async_error: function!(library, c"ncclCommGetAsyncError"),
            get_error_string: function!(library, c"ncclGetErrorString"),
            group_start: function!(library, c"ncclGroupStart"),
            group_end: function!(library, c"ncclGroupEnd"),
            all_reduce: function!(library, c"ncclAllReduce"),
            all_gather: function!(library, c"ncclAllGather"),
            reduce_scatter: function!(library, c"ncclReduceScatter"),
            broadcast: function!(library, c"ncclBroadcast"),
            send: function!(library, c"ncclSend"),
            recv: function!(library, c"ncclRecv"),
        })
    }

    /// The result of a call as an error a person can read. NCCL gives 7 for what goes on beside.
    fn check(&self, what: &str, code: c_int) -> Result<()> {
        if code == 0 || code == 7 {
            return Ok(());
        }
        // SAFETY: gives a text that is never freed, for any number.
        let text = unsafe { CStr::from_ptr((self.get_error_string)(code)) };
        bail!(Runtime, "nccl: {what}: {} (NCCL_DEBUG=INFO says more)", text.to_string_lossy())
    }
}

/// NCCL, or why there is none.
fn api() -> Result<&'static Api> {
    static API: OnceLock<Result<Api>> = OnceLock::new();
    let load = || match libs::find("libnccl.so") {
        Some(library) => {
            super::leave::before_libraries();
            Api::load(library)
        }
        None => bail!(
            Runtime,
            "nccl: libnccl.so.2 not found in {}: install NCCL, or `pip install nvidia-nccl-cu13`",
            libs::searched()
        ),
    };
    API.get_or_init(load).as_ref().map_err(Clone::clone)
}

/// NCCL's version as a number: 22803 for 2.28.3. All ranks of a group need the same.
pub fn version() -> Result<u32> {
    let api = api()?;
    let mut version = 0;
    // SAFETY: plain query.
    api.check("version", unsafe { (api.get_version)(&mut version) })?;
    Ok(version as u32)
}

/// A name for a new group of ranks.
pub fn unique_id() -> Result<UniqueId> {
    let api = api()?;
    let mut id = UniqueId([0; UniqueId::BYTES]);
    // SAFETY: the place has NCCL's size.
    api.check("unique id", unsafe { (api.get_unique_id)(&mut id) })?;
    Ok(id)
}

/// NCCL's number for a type of bytes, and for those types that it computes with.
const BYTE: c_int = 0;

/// NCCL's number for a type, where it has one.
fn number(dtype: DType) -> Option<c_int> {
    Some(match dtype {
        DType::I8 => 0,
        DType::U8 | DType::Bool => 1,
        DType::I32 => 2,
        DType::I64 => 4,
        DType::F32 => 7,
        DType::F64 => 8,
        DType::I16 | DType::F16 | DType::BF16 => return None,
    })
}

/// NCCL's numbers for a reduction that it does as the language has it. Halves would be rounded at every step, NaN may be lost
/// in a maximum of floats, and there is no `i16`. A sum of truth values is their maximum, a product their minimum.
pub fn native(kind: ReduceKind, dtype: DType) -> Option<(c_int, c_int)> {
    let op = match (kind, dtype) {
        (ReduceKind::Sum, DType::Bool) => 2,
        (ReduceKind::Prod, DType::Bool) => 3,
        (ReduceKind::Sum, _) => 0,
        (ReduceKind::Prod, _) => 1,
        (ReduceKind::Max | ReduceKind::Min, _) if dtype.is_float() => return None,
        (ReduceKind::Max, _) => 2,
        (ReduceKind::Min, _) => 3,
    };
    Some((number(dtype)?, op))
}

/// A call of NCCL's. Addresses are the device's, counts are of elements, or of bytes where no type is given.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Call<A> {
    AllReduce { from: A, to: A, count: usize, kind: ReduceKind, dtype: DType },
    ReduceScatter { from: A, to: A, count: usize, kind: ReduceKind, dtype: DType },
    AllGather { from: A, to: A, bytes: usize },
    Broadcast { from: A, to: A, bytes: usize, root: usize },
    Send { from: A, bytes: usize, to: usize },
    Recv { to: A, bytes: usize, from: usize },
}

/// One rank's end of a group of GPUs.
pub struct Comm {
    handle: Mutex<Option<Raw>>,
    /// Why it was cut off, told before it is.
    why: OnceLock<Error>,
    device: Arc<Device>,
    /// Plans that have run with it: what they need between ranks is there.
    met: Mutex<Vec<u64>>,
    /// Captures that its ranks have made together.
    captures: AtomicU32,
}

struct Raw(Handle);

// SAFETY: NCCL's handles may be used from any thread, one call at a time, and cut off from any.
unsafe impl Send for Raw {}

impl Comm {
    /// Joins a group; returns when all its ranks have come.
    pub fn join(device: &Arc<Device>, id: UniqueId, rank: usize, size: usize) -> Result<Comm> {
        let api = api()?;
        device.enter()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the id is NCCL's own, and this device's context is current.
        let done = unsafe { (api.comm_init_rank)(&mut handle, size as c_int, id, rank as c_int) };
        api.check("init", done)?;
        Ok(Comm {
            handle: Mutex::new(Some(Raw(handle))),
            why: OnceLock::new(),
            device: device.clone(),
            met: Mutex::default(),
            captures: AtomicU32::new(0),
        })
    }

    fn raw(&self) -> Result<Handle> {
        match &*self.handle.lock() {
            Some(raw) => Ok(raw.0),
            None => Err(self.reason()),
        }
    }

    /// Why the group is of no use any more.
    fn reason(&self) -> Error {
        let unknown = || Error::Runtime("nccl: the group was cut off".into());
        self.why.get().cloned().unwrap_or_else(unknown)
    }

    /// Why it was cut off, if it was. What it did on the device before that has all its values.
    pub fn broken(&self) -> Option<Error> {
        self.handle.lock().is_none().then(|| self.reason())
    }

    /// The number of a capture that all ranks make now: the same on all of them.
    pub fn next_capture(&self) -> u32 {
        self.captures.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Cuts this rank off because of an error.
    pub fn cut_for(&self, error: &Error) {
        let _ = self.why.set(error.clone());
        self.cut();
    }

    /// Cuts this rank off, for good: whatever waits for others on the host or on the device ends soon. NCCL takes its time
    /// for that, so it is left to a thread.
    fn cut(&self) {
        let Some(raw) = self.handle.lock().take() else { return };
        let device = self.device.clone();
        let abort = move || {
            let raw = raw;
            let (Ok(api), Ok(())) = (api(), device.enter()) else { return };
            // SAFETY: the handle is used no more; a call that waits in it on another thread is what this is for.
            let done = unsafe { (api.comm_abort)(raw.0) };
            if let Err(error) = api.check("abort", done) {
                gt_ir::say!("gt worker: {error}");
            }
        };
        if let Err(error) = std::thread::Builder::new().name("gt-nccl".into()).spawn(abort) {
            gt_ir::say!("gt worker: no thread to end NCCL: {error}");
        }
    }

    /// What went wrong between the ranks, if anything did.
    pub fn error(&self) -> Option<Error> {
        let api = api().ok()?;
        let held = self.handle.lock();
        let handle = held.as_ref()?.0;
        let mut state = 0;
        // SAFETY: the handle lives: whoever cuts it off takes it away first.
        let asked = unsafe { (api.get_async_error)(handle, &mut state) };
        api.check("group", asked).and_then(|()| api.check("group", state)).err()
    }

    /// True if a plan has run with this group before.
    pub fn has_met(&self, plan: u64) -> bool {
        self.met.lock().contains(&plan)
    }

    pub fn note(&self, plan: u64) {
        let mut met = self.met.lock();
        if !met.contains(&plan) {
            met.push(plan);
        }
    }

    /// Queues calls that belong together. All ranks make the same ones.
    ///
    /// # Safety
    /// The addresses are memory of the device with room for the counts, which stays until the stream is done.
    pub unsafe fn call(&self, calls: &[Call<u64>], stream: &Stream) -> Result<()> {
        if calls.is_empty() {
            return Ok(());
        }
        let (api, handle) = (api()?, self.raw()?);
        // SAFETY: starts and ends on this thread, whatever happens between.
        api.check("group start", unsafe { (api.group_start)() })?;
        // SAFETY: the caller's.
        let made = calls.iter().try_for_each(|call| unsafe { one(api, call, handle, stream) });
        // SAFETY: as above.
        let ended = api.check("group end", unsafe { (api.group_end)() });
        made.and(ended)
    }
}

/// # Safety
/// As for `Comm::call`.
unsafe fn one(api: &Api, call: &Call<u64>, comm: Handle, stream: &Stream) -> Result<()> {
    let stream = stream.raw().cast();
    let numbers = |kind: ReduceKind, dtype: DType| match native(kind, dtype) {
        Some(numbers) => Ok(numbers),
        None => bail!(Runtime, "nccl: no {} of {dtype}", kind.text()),
    };
    // SAFETY: the caller's.
    unsafe {
        match *call {
            Call::AllReduce { from, to, count, kind, dtype } => {
                let (dtype, op) = numbers(kind, dtype)?;
                api.check("all-reduce", (api.all_reduce)(from, to, count, dtype, op, comm, stream))
            }
            Call::ReduceScatter { from, to, count, kind, dtype } => {
                let (dtype, op) = numbers(kind, dtype)?;
                api.check("reduce-scatter", (api.reduce_scatter)(from, to, count, dtype, op, comm, stream))
            }
            Call::AllGather { from, to, bytes } => {
                api.check("all-gather", (api.all_gather)(from, to, bytes, BYTE, comm, stream))
            }
            Call::Broadcast { from, to, bytes, root } => {
                let root = root as c_int;
                api.check("broadcast", (api.broadcast)(from, to, bytes, BYTE, root, comm, stream))
            }
            Call::Send { from, bytes, to } => {
                api.check("send", (api.send)(from, bytes, BYTE, to as c_int, comm, stream))
            }
            Call::Recv { to, bytes, from } => {
                api.check("recv", (api.recv)(to, bytes, BYTE, from as c_int, comm, stream))
            }
        }
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        self.cut();
    }
}
