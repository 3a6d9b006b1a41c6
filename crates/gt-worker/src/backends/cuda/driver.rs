//! The driver behind safe handles: streams, events, modules. What fails for good poisons the device.

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use gt_ir::{Error, Result};
use gt_sync::Mutex;
use std::ffi::{CString, c_void};
use std::sync::OnceLock;

/// Why the device of this process can do nothing any more.
static BROKEN: OnceLock<String> = OnceLock::new();
/// Told when the device breaks.
static ON_BREAK: OnceLock<Listener> = OnceLock::new();

/// Hears why a device broke.
pub type Listener = Box<dyn Fn(&str) + Send + Sync>;

/// Hears of it when a device of this process breaks for good. Only the first listener is kept.
pub fn on_break(listener: Listener) {
    let _ = ON_BREAK.set(listener);
}

/// Why no device of this process can do anything any more.
pub fn broken() -> Option<&'static str> {
    BROKEN.get().map(String::as_str)
}

/// True for errors after which every call of the process fails: the context is lost.
fn is_sticky(code: u32) -> bool {
    matches!(code, 214 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=719 | 721)
}

/// The result of a driver call as an error a person can read.
pub fn check<T>(what: &str, result: std::result::Result<T, DriverError>) -> Result<T> {
    result.map_err(|error| failure(what, error))
}

fn failure(what: &str, error: DriverError) -> Error {
    let text = |s: std::result::Result<&std::ffi::CStr, DriverError>| {
        s.map(|s| s.to_string_lossy().into_owned()).unwrap_or_default()
    };
    let message = format!("cuda: {what}: {} ({})", text(error.error_name()), text(error.error_string()));
    let code = error.0 as u32;
    if error.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
        return Error::Memory(message);
    }
    if is_sticky(code) && BROKEN.set(format!("{message}: the device is lost to this process")).is_ok() {
        let said = BROKEN.get().map_or("", String::as_str);
        match ON_BREAK.get() {
            Some(tell) => tell(said),
            None => gt_ir::say!("gt worker: {said}"),
        }
    }
    Error::Runtime(message)
}

/// The driver's version: 13000 for CUDA 13.0.
pub fn version() -> i32 {
    static VERSION: OnceLock<i32> = OnceLock::new();
    *VERSION.get_or_init(|| {
        let mut version = 0;
        // SAFETY: plain query.
        let known = unsafe { sys::cuDriverGetVersion(&mut version) };
        if known.result().is_ok() { version } else { 0 }
    })
}

/// A stream of its own, not ordered with the default one.
pub struct Stream(sys::CUstream);

// SAFETY: the driver's handles may be used from any thread whose context is current.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// A new stream in the current context.
    pub fn new() -> Result<Stream> {
        Ok(Stream(check("stream", result::stream::create(result::stream::StreamKind::NonBlocking))?))
    }

    pub fn raw(&self) -> sys::CUstream {
        self.0
    }

    /// Waits until all work on it is done.
    pub fn wait(&self) -> Result<()> {
        // SAFETY: the stream lives as long as this.
        check("synchronise", unsafe { result::stream::synchronize(self.0) })
    }

    /// Work put on it from now on waits for the event.
    pub fn after(&self, event: &Event) -> Result<()> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both handles live.
        check("wait for an event", unsafe { result::stream::wait_event(self.0, event.raw, flags) })
    }

    /// Copies between places on the device.
    ///
    /// # Safety
    /// Both ranges are memory of the device that stays until the stream is done.
    pub unsafe fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<()> {
        // SAFETY: the caller's.
        check("copy", unsafe { result::memcpy_dtod_async(to, from, bytes, self.0) })
    }

    /// Copies from the host.
    ///
    /// # Safety
    /// Both ranges stay until the stream is done.
    pub unsafe fn upload(&self, to: u64, from: *const u8, bytes: usize) -> Result<()> {
        // SAFETY: the caller's.
        let done = unsafe { sys::cuMemcpyHtoDAsync_v2(to, from as *const c_void, bytes, self.0) };
        check("upload", done.result())
    }

    /// Copies to the host.
    ///
    /// # Safety
    /// Both ranges stay until the stream is done, and nobody reads the host's before.
    pub unsafe fn download(&self, to: *mut u8, from: u64, bytes: usize) -> Result<()> {
        // SAFETY: the caller's.
        let done = unsafe { sys::cuMemcpyDtoHAsync_v2(to as *mut c_void, from, bytes, self.0) };
        check("download", done.result())
    }

    /// Sets bytes to zero.
    ///
    /// # Safety
    /// The range is memory of the device that stays until the stream is done.
    pub unsafe fn zero(&self, at: u64, bytes: usize) -> Result<()> {
        // SAFETY: the caller's.
        check("memset", unsafe { result::memset_d8_async(at, 0, bytes, self.0) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once; the driver finishes what is queued.
        if let Err(error) = unsafe { result::stream::destroy(self.0) } {
            log_drop("stream", error);
        }
    }
}

/// What went wrong in a destructor is said, unless everything is lost anyway.
pub fn log_drop(what: &str, error: DriverError) {
    // At exit the driver may go before the last handle.
    if broken().is_none() && error.0 != sys::CUresult::CUDA_ERROR_DEINITIALIZED {
        gt_ir::say!("gt worker: cuda: {what}: {error}");
    }
}

/// A point in a stream. Without time it costs less.
pub struct Event {
    raw: sys::CUevent,
    /// Its context, and whether it has a time.
    kind: (usize, bool),
}

// SAFETY: as for `Stream`.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

/// An event that nobody uses.
struct Spare(sys::CUevent);

// SAFETY: as for `Stream`.
unsafe impl Send for Spare {}

/// Events to be used again, by context and by whether they have a time.
static SPARE: Mutex<Vec<((usize, bool), Spare)>> = Mutex::new(Vec::new());
const MAX_SPARE: usize = 256;

/// The context current on this thread, as a number.
fn context() -> usize {
    result::ctx::get_current().ok().flatten().map_or(0, |c| c as usize)
}

impl Event {
    /// The point after all work that is on the stream now.
    pub fn record(stream: &Stream) -> Result<Event> {
        Event::new(stream, false)
    }

    /// The same, with the time at which it was passed.
    pub fn timed(stream: &Stream) -> Result<Event> {
        Event::new(stream, true)
    }

    fn new(stream: &Stream, timed: bool) -> Result<Event> {
        let kind = (context(), timed);
        let mut spare = SPARE.lock();
        let found = spare.iter().rposition(|(of, _)| *of == kind).map(|i| spare.swap_remove(i));
        drop(spare);
        let raw = match (found, timed) {
            (Some((_, Spare(raw))), _) => raw,
            (None, true) => check("event", result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT))?,
            (None, false) => {
                check("event", result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING))?
            }
        };
        let event = Event { raw, kind };
        // SAFETY: both handles live.
        check("record an event", unsafe { result::event::record(raw, stream.0) })?;
        Ok(event)
    }

    /// Waits until the point is passed.
    pub fn wait(&self) -> Result<()> {
        // SAFETY: the event lives.
        check("wait", unsafe { result::event::synchronize(self.raw) })
    }

    /// True if the point is passed.
    pub fn passed(&self) -> Result<bool> {
        // SAFETY: the event lives.
        match unsafe { result::event::query(self.raw) } {
            Ok(()) => Ok(true),
            Err(e) if e.0 == sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            Err(e) => Err(failure("event", e)),
        }
    }

    /// Seconds between two timed points that are passed.
    pub fn seconds_since(&self, earlier: &Event) -> f64 {
        // SAFETY: both events live.
        unsafe { result::event::elapsed(earlier.raw, self.raw) }.map_or(0.0, |ms| ms as f64 / 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if broken().is_none() {
            let mut spare = SPARE.lock();
            if spare.len() < MAX_SPARE {
                return spare.push((self.kind, Spare(self.raw)));
            }
        }
        // SAFETY: destroyed once.
        if let Err(error) = unsafe { result::event::destroy(self.raw) } {
            log_drop("event", error);
        }
    }
}

/// Loaded kernels.
pub struct Module(sys::CUmodule);

// SAFETY: as for `Stream`.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// Loads a cubin, a fatbin or PTX into the current context.
    pub fn load(image: &[u8]) -> Result<Module> {
        // PTX has to end in a zero; to the other kinds it does no harm.
        let mut image = image.to_vec();
        image.push(0);
        // SAFETY: the image is whole, and the driver copies it.
        Ok(Module(check("load kernels", unsafe { result::module::load_data(image.as_ptr().cast()) })?))
    }

    /// A kernel by name, good as long as the module lives, loaded so that no later launch waits for that.
    pub fn function(&self, name: &str) -> Result<Function> {
        let name = CString::new(name).map_err(|_| Error::Runtime("cuda: a kernel's name".into()))?;
        // SAFETY: the module is loaded.
        let function = check("find a kernel", unsafe { result::module::get_function(self.0, name.clone()) })
            .map_err(|e| e.map_message(|m| format!("{m}: {}", name.to_string_lossy())))?;
        // Older drivers load a kernel at its first launch.
        if version() >= 12040 {
            // SAFETY: the function was just found.
            check("load a kernel", unsafe { sys::cuFuncLoad(function) }.result())?;
        }
        Ok(Function(function))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: whoever holds a function holds the module, also while its launches are queued.
        if let Err(error) = unsafe { result::module::unload(self.0) } {
            log_drop("unload kernels", error);
        }
    }
}

/// A kernel; its module is kept by whoever holds this.
#[derive(Clone, Copy)]
pub struct Function(pub sys::CUfunction);

// SAFETY: as for `Stream`.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Function {
    /// Lets a block have this much dynamic shared memory.
    pub fn allow_shared(&self, bytes: u32) -> Result<()> {
        if bytes <= 48 << 10 {
            return Ok(());
        }
        let what = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function's module is loaded.
        check("shared memory", unsafe { sys::cuFuncSetAttribute(self.0, what, bytes as i32) }.result())
    }

    /// Puts a launch on the stream, or into the graph being captured.
    ///
    /// # Safety
    /// `args` point to as many values of the sizes that the kernel takes, and the memory those name stays until
    /// the stream is done.
    pub unsafe fn launch(
        &self,
        grid: [u32; 3],
        block: u32,
        shared: u32,
        args: &mut [*mut c_void],
        stream: &Stream,
    ) -> Result<()> {
        let (grid, block) = ((grid[0], grid[1], grid[2]), (block, 1, 1));
        // SAFETY: the caller's.
        check("launch", unsafe { result::launch_kernel(self.0, grid, block, shared, stream.0, args) })
    }
}
