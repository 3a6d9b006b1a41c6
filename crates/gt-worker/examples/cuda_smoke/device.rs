//! The GPU: its stream, its memory, and kernels compiled for it. Everything is loaded at run time.

use crate::Res;
use crate::kernel_text::PRELUDE;
use cudarc::driver::{CudaContext, CudaStream, result, sys};
use cudarc::nvrtc;
use std::ffi::{CStr, CString, c_void};
use std::sync::Arc;

/// The first GPU of the machine, with one stream on which all work is ordered.
pub struct Device {
    context: Arc<CudaContext>,
    pub stream: Arc<CudaStream>,
    /// `sm_90`.
    pub arch: String,
}

impl Device {
    /// The first GPU, or `None` where there is no NVIDIA driver or no device behind it.
    pub fn find() -> Res<Option<Device>> {
        // SAFETY: only tries to open the libraries.
        let (driver, nvrtc, blas) = unsafe {
            (
                sys::is_culib_present(),
                nvrtc::sys::is_culib_present(),
                cudarc::cublaslt::sys::is_culib_present(),
            )
        };
        if !driver || result::init().is_err() || result::device::get_count()? == 0 {
            return Ok(None);
        }
        if !nvrtc || !blas {
            let missing = if nvrtc { "libcublasLt" } else { "libnvrtc" };
            return Err(
                format!("cuda: {missing} not found, expected it beside the driver: install CUDA 13").into()
            );
        }
        let context = CudaContext::new(0)?;
        // SAFETY: there is one stream, so no event has to order anything; with tracking on, capture fails.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream()?;
        let (major, minor) = context.compute_capability()?;
        Ok(Some(Device { context, stream, arch: format!("sm_{major}{minor}") }))
    }

    /// The device in words.
    pub fn name(&self) -> Res<String> {
        Ok(self.context.name()?)
    }

    pub fn alloc(&self, bytes: usize) -> Res<Memory> {
        // SAFETY: the context is current on this thread; the address is freed once, by `Memory::drop`.
        let address = unsafe { result::malloc_sync(bytes.max(1))? };
        Ok(Memory { address, bytes, stream: self.stream.clone() })
    }

    /// Compiles the kernels of a plan together, for this very device.
    pub fn compile(&self, kernels: &str) -> Res<Module> {
        let image = cubin(&format!("{PRELUDE}\n{kernels}"), &self.arch)?;
        // SAFETY: `image` is a whole cubin, which the driver copies.
        Ok(Module(unsafe { result::module::load_data(image.as_ptr().cast())? }))
    }
}

/// Compiles CUDA C to machine code. Contraction is off: each instruction rounds (C7).
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

/// Loaded kernels.
pub struct Module(sys::CUmodule);

impl Module {
    /// A kernel by name, good as long as the module lives.
    pub fn function(&self, name: &str) -> Res<sys::CUfunction> {
        // SAFETY: the module is loaded.
        Ok(unsafe { result::module::get_function(self.0, CString::new(name)?)? })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: nothing runs any more: whoever launches waits before it drops the module.
        if let Err(error) = unsafe { result::module::unload(self.0) } {
            eprintln!("cuda: unload: {error}");
        }
    }
}

/// Puts one run of a kernel on the stream, or into the graph being captured. Every argument is eight bytes.
pub fn launch(stream: &CudaStream, function: sys::CUfunction, threads: usize, words: &mut [u64]) -> Res<()> {
    let blocks = u32::try_from(threads.div_ceil(BLOCK))?;
    let mut args = pointers(words);
    // SAFETY: the kernel takes as many eight-byte arguments as there are words, and its module is loaded.
    unsafe {
        let (grid, block) = ((blocks, 1, 1), (BLOCK as u32, 1, 1));
        result::launch_kernel(function, grid, block, 0, stream.cu_stream(), &mut args)?;
    }
    Ok(())
}

const BLOCK: usize = 256;

/// Where the driver finds each argument.
pub fn pointers(words: &mut [u64]) -> Vec<*mut c_void> {
    words.iter_mut().map(|w| (w as *mut u64).cast()).collect()
}

/// Memory on the device. Reads and writes wait for the stream.
pub struct Memory {
    pub address: u64,
    bytes: usize,
    stream: Arc<CudaStream>,
}

impl Memory {
    /// Sets every byte.
    pub fn fill(&self, byte: u8) -> Res<()> {
        // SAFETY: the range is this memory's own.
        unsafe { result::memset_d8_async(self.address, byte, self.bytes, self.stream.cu_stream())? };
        Ok(self.stream.synchronize()?)
    }

    pub fn write(&self, data: &[u8]) -> Res<()> {
        assert_eq!(data.len(), self.bytes, "write: wrong number of bytes");
        // SAFETY: the range is this memory's own, and `data` outlives the wait.
        unsafe { result::memcpy_htod_async(self.address, data, self.stream.cu_stream())? };
        Ok(self.stream.synchronize()?)
    }

    pub fn read(&self) -> Res<Vec<u8>> {
        let mut data = vec![0u8; self.bytes];
        // SAFETY: the range is this memory's own, and `data` outlives the wait.
        unsafe { result::memcpy_dtoh_async(&mut data, self.address, self.stream.cu_stream())? };
        self.stream.synchronize()?;
        Ok(data)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the address came from `alloc` and is freed once; the free waits for the device.
        if let Err(error) = unsafe { result::free_sync(self.address) } {
            eprintln!("cuda: free: {error}");
        }
    }
}
