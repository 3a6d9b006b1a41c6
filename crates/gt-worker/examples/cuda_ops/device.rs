//! The first GPU: a stream, memory, kernels and a clock.

use crate::Res;
use cudarc::driver::{CudaContext, CudaStream, result, sys};
use cudarc::nvrtc;
use gt_ir::Slot;
use gt_kernels::{Function, Launch, Launches};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_void};
use std::sync::Arc;

pub struct Device {
    context: Arc<CudaContext>,
    pub stream: Arc<CudaStream>,
    arch: String,
    /// Kernels that are compiled, by name; those that ship come from one source.
    functions: RefCell<HashMap<String, sys::CUfunction>>,
    plain: RefCell<Option<sys::CUmodule>>,
}

impl Device {
    /// The first GPU, or `None` where there is no NVIDIA driver or no device behind it.
    pub fn find() -> Res<Option<Device>> {
        // SAFETY: only tries to open the libraries.
        let (driver, compiler) = unsafe { (sys::is_culib_present(), nvrtc::sys::is_culib_present()) };
        if !driver || result::init().is_err() || result::device::get_count()? == 0 {
            return Ok(None);
        }
        if !compiler {
            return Err("cuda: libnvrtc not found, expected it beside the driver: install CUDA 13".into());
        }
        let context = CudaContext::new(0)?;
        // SAFETY: there is one stream, so no event has to order anything; with tracking on, capture fails.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream()?;
        let (major, minor) = context.compute_capability()?;
        Ok(Some(Device {
            context,
            stream,
            arch: if major == 9 { "sm_90a".into() } else { format!("sm_{major}{minor}") },
            functions: RefCell::default(),
            plain: RefCell::default(),
        }))
    }

    pub fn name(&self) -> Res<String> {
        Ok(format!("{} ({})", self.context.name()?, self.arch))
    }

    /// Compute capability: 90 for Hopper.
    pub fn arch(&self) -> u32 {
        self.arch.trim_start_matches("sm_").trim_end_matches('a').parse().unwrap_or(0)
    }

    /// True if kernels are compiled with what only Hopper has.
    pub fn is_hopper(&self) -> bool {
        self.arch == "sm_90a"
    }

    pub fn context(&self) -> sys::CUcontext {
        self.context.cu_ctx()
    }

    pub fn memory(&self, bytes: usize) -> Res<Memory> {
        // SAFETY: the context is current on this thread; the address is freed once, by `Memory::drop`.
        let address = unsafe { result::malloc_sync(bytes.max(256))? };
        Ok(Memory { address, bytes, stream: self.stream.clone() })
    }

    pub fn holding(&self, data: &[u8]) -> Res<Memory> {
        let memory = self.memory(data.len())?;
        if !data.is_empty() {
            // SAFETY: the range is this memory's own, and `data` outlives the wait.
            unsafe { result::memcpy_htod_async(memory.address, data, self.stream.cu_stream())? };
            self.stream.synchronize()?;
        }
        Ok(memory)
    }

    fn function(&self, wanted: &Function) -> Res<sys::CUfunction> {
        let name = match wanted {
            Function::Plain(name) => name,
            Function::Made { name, .. } => &**name,
        };
        if let Some(found) = self.functions.borrow().get(name) {
            return Ok(*found);
        }
        let module = match wanted {
            Function::Made { text, .. } => self.load(text)?,
            Function::Plain(_) => {
                let loaded = *self.plain.borrow();
                match loaded {
                    Some(module) => module,
                    None => {
                        let parts = [gt_kernels::attention::PLAIN, gt_kernels::matmul_pack::PLAIN];
                        let module = self.load(&parts.concat())?;
                        *self.plain.borrow_mut() = Some(module);
                        module
                    }
                }
            }
        };
        // SAFETY: the module is loaded, and never unloaded.
        let found = unsafe { result::module::get_function(module, CString::new(name)?)? };
        self.functions.borrow_mut().insert(name.to_string(), found);
        Ok(found)
    }

    fn load(&self, text: &str) -> Res<sys::CUmodule> {
        let image = cubin(text, &self.arch)?;
        // SAFETY: `image` is a whole cubin, which the driver copies.
        Ok(unsafe { result::module::load_data(image.as_ptr().cast())? })
    }

    /// Puts launches on the stream.
    pub fn launch(&self, launches: &Launches, addresses: &[u64], slots: &[Slot], scratch: u64) -> Res<()> {
        launches.list.iter().try_for_each(|launch| self.launch_one(launch, addresses, slots, scratch))
    }

    fn launch_one(&self, launch: &Launch, addresses: &[u64], slots: &[Slot], scratch: u64) -> Res<()> {
        let function = self.function(&launch.function)?;
        if launch.shared > 48 << 10 {
            let what = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function is loaded.
            unsafe { result::function::set_function_attribute(function, what, launch.shared as i32)? };
        }
        let mut args: Vec<Vec<u64>> = Vec::new();
        for arg in &launch.args {
            let mut bytes = arg.bytes.clone();
            for fill in &arg.fills {
                let word = fill.word.get(addresses, slots, scratch, 0);
                bytes[fill.at as usize..][..8].copy_from_slice(&word.to_ne_bytes());
            }
            let words = bytes.chunks(8).map(|c| u64::from_ne_bytes(c.try_into().unwrap_or_default()));
            args.push(words.collect());
        }
        let mut pointers: Vec<*mut c_void> = args.iter_mut().map(|a| a.as_mut_ptr().cast()).collect();
        let [x, y, z] = launch.grid;
        // SAFETY: the arguments are what the kernel was written for, with memory that is there.
        unsafe {
            let (grid, block) = ((x, y, z), (launch.block, 1, 1));
            result::launch_kernel(
                function,
                grid,
                block,
                launch.shared,
                self.stream.cu_stream(),
                &mut pointers,
            )?;
        }
        Ok(())
    }

    /// Seconds of one of `n` repetitions, queued together, after one that does not count.
    pub fn time(&self, n: usize, mut work: impl FnMut() -> Res<()>) -> Res<f64> {
        work()?;
        self.stream.synchronize()?;
        let flags = sys::CUevent_flags::CU_EVENT_DEFAULT;
        let (from, to) = (result::event::create(flags)?, result::event::create(flags)?);
        let stream = self.stream.cu_stream();
        // SAFETY: both events are alive until they are destroyed below.
        unsafe { result::event::record(from, stream)? };
        for _ in 0..n {
            work()?;
        }
        // SAFETY: as above.
        unsafe {
            result::event::record(to, stream)?;
            self.stream.synchronize()?;
            let milliseconds = result::event::elapsed(from, to)?;
            result::event::destroy(from)?;
            result::event::destroy(to)?;
            Ok(milliseconds as f64 / 1e3 / n as f64)
        }
    }
}

/// Compiles CUDA C to machine code, as the worker does: contraction is off.
fn cubin(source: &str, arch: &str) -> Res<Vec<u8>> {
    use nvrtc::{result as checked, sys as raw};
    let program = checked::create_program(&CString::new(source)?, None)?;
    let options = [format!("--gpu-architecture={arch}"), "--fmad=false".into(), "--std=c++17".into()];
    // SAFETY: `program` lives until it is destroyed below, and the buffer has the size NVRTC asked for.
    unsafe {
        let made = match checked::compile_program(program, &options) {
            Ok(()) => {
                let mut size = 0;
                raw::nvrtcGetCUBINSize(program, &mut size).result()?;
                let mut image = vec![0u8; size];
                raw::nvrtcGetCUBIN(program, image.as_mut_ptr().cast()).result()?;
                Ok(image)
            }
            Err(error) => {
                let log = checked::get_program_log(program)?;
                Err(format!("nvrtc: {error:?}\n{}", CStr::from_ptr(log.as_ptr()).to_string_lossy()).into())
            }
        };
        checked::destroy_program(program)?;
        made
    }
}

/// Memory on the device.
pub struct Memory {
    pub address: u64,
    bytes: usize,
    stream: Arc<CudaStream>,
}

impl Memory {
    pub fn read(&self) -> Res<Vec<u8>> {
        let mut data = vec![0u8; self.bytes];
        if self.bytes > 0 {
            // SAFETY: the range is this memory's own, and `data` outlives the wait.
            unsafe { result::memcpy_dtoh_async(&mut data, self.address, self.stream.cu_stream())? };
        }
        self.stream.synchronize()?;
        Ok(data)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the address came from `memory` and is freed once; the free waits for the device.
        if let Err(error) = unsafe { result::free_sync(self.address) } {
            eprintln!("cuda: free: {error}");
        }
    }
}
