//! Kernels by name and by text: those that ship with the program, and those made for plans, compiled once.

use super::device::Device;
use super::disk::{Disk, hash};
use super::driver::{self, Function, Module};
use super::leave;
use super::shared::library;
use super::stages::stage;
use cudarc::nvrtc::{result as checked, sys as raw};
use gt_ir::{Error, Result};
use gt_kernels::launch::{Function as Wanted, Launches};
use gt_sync::Mutex;
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::sync::{Arc, Once, OnceLock};

/// A kernel with the module that holds it.
#[derive(Clone)]
pub struct Kernel {
    pub function: Function,
    _module: Arc<Module>,
}

/// A kernel made for a plan, with its text.
type Made = HashMap<Arc<str>, (Arc<str>, Kernel)>;

/// Bytes of stack that NVRTC may use.
const STACK: usize = 256 << 20;
/// Kernels remembered at most.
const MOST: usize = 16 << 10;

/// All kernels of a device.
pub struct Kernels {
    device: Arc<Device>,
    disk: Option<Disk>,
    plain: OnceLock<Result<Arc<Module>>>,
    /// Whether kernels can be compiled here.
    compiler: OnceLock<Result<()>>,
    /// Images of several kernels that ship, by name.
    shipped: Mutex<HashMap<&'static str, Arc<Module>>>,
    found: Mutex<HashMap<&'static str, Kernel>>,
    made: Mutex<Made>,
}

impl Kernels {
    pub fn new(device: Arc<Device>) -> Kernels {
        Kernels {
            device,
            disk: Disk::open(),
            plain: OnceLock::new(),
            compiler: OnceLock::new(),
            shipped: Mutex::default(),
            found: Mutex::default(),
            made: Mutex::default(),
        }
    }

    /// Loads the kernels that ship with the program.
    pub fn warm(&self) -> Result<Arc<Module>> {
        let load = || {
            self.device.enter()?;
            // A build without images has the source alone.
            match gt_kernels::plain_image(&self.device.arch_name()) {
                Some(image) => match Module::load(image) {
                    Ok(module) => Ok(Arc::new(module)),
                    // A driver that does not take it may take what NVRTC makes here.
                    Err(error) => {
                        let made = self.compile(gt_kernels::PLAIN).and_then(|image| Module::load(&image));
                        made.map(Arc::new).map_err(|_| error)
                    }
                },
                None => Module::load(&self.compile(gt_kernels::PLAIN)?).map(Arc::new),
            }
        };
        self.plain.get_or_init(|| stage("kernels that ship loaded", load)).clone()
    }

    /// Whether kernels can be compiled here, found out by doing it once. An NVRTC that is newer than the driver may make
    /// what that does not load; plans then keep the kernels that ship.
    pub fn compiler(&self) -> Result<()> {
        let try_out = || {
            let image = cubin_aside("extern \"C\" __global__ void gt_try() {}\n", &self.options())?;
            self.device.enter()?;
            Module::load(&image).map(drop)
        };
        let found = self.compiler.get_or_init(|| stage("compiler loaded and tried", try_out));
        static SAID: Once = Once::new();
        if let Err(error) = found {
            SAID.call_once(|| {
                gt_ir::say!(
                    "gt worker: plans keep the kernels that ship with the program: {error}{}",
                    newer()
                );
            });
        }
        found.clone()
    }

    /// One that ships with the program.
    fn plain(&self, name: &'static str) -> Result<Kernel> {
        if let Some(kernel) = self.found.lock().get(name) {
            return Ok(kernel.clone());
        }
        let module = self.warm()?;
        self.device.enter()?;
        let kernel = Kernel { function: module.function(name)?, _module: module };
        self.found.lock().insert(name, kernel.clone());
        Ok(kernel)
    }

    /// The kernel of a launch; one made for a plan must have been compiled.
    pub fn get(&self, wanted: &Wanted) -> Result<Kernel> {
        match wanted {
            Wanted::Plain(name) => self.plain(name),
            Wanted::Made { name, text } => match self.made.lock().get(name) {
                Some((own, kernel)) if own == text => Ok(kernel.clone()),
                _ => Err(Error::Runtime(format!("cuda: kernel {name} was not compiled"))),
            },
        }
    }

    /// Compiles what is not there yet of the kernels of a plan, all together.
    pub fn make<'a>(&self, launches: impl Iterator<Item = &'a Launches>) -> Result<()> {
        let mut missing: Vec<(Arc<str>, Arc<str>)> = Vec::new();
        let made = self.made.lock();
        for launch in launches.flat_map(|l| &l.list) {
            if let Wanted::Made { name, text } = &launch.function
                && made.get(name).is_none_or(|(own, _)| own != text)
                && !missing.iter().any(|(n, _)| n == name)
            {
                missing.push((name.clone(), text.clone()));
            }
        }
        drop(made);
        self.take_shipped(&mut missing)?;
        if missing.is_empty() {
            return Ok(());
        }
        // The same kernels make the same source, whatever order they came in.
        missing.sort();
        let mut source = gt_kernels::PRELUDE.to_string();
        for (_, text) in &missing {
            source.push('\n');
            source.push_str(text);
        }
        let image = stage(&format!("{} kernels compiled", missing.len()), || self.compile(&source))?;
        self.device.enter()?;
        let module = Arc::new(Module::load(&image)?);
        missing.into_iter().try_for_each(|(name, text)| self.keep(&module, name, text))
    }

    /// Remembers a kernel of a module.
    fn keep(&self, module: &Arc<Module>, name: Arc<str>, text: Arc<str>) -> Result<()> {
        let kernel = Kernel { function: module.function(&name)?, _module: module.clone() };
        let mut made = self.made.lock();
        // Plans keep the kernels they use.
        if made.len() > MOST {
            made.clear();
        }
        made.insert(name, (text, kernel));
        Ok(())
    }

    /// Takes those kernels that ship compiled off the list of what is missing. An image that the driver does not take is
    /// as good as none.
    fn take_shipped(&self, missing: &mut Vec<(Arc<str>, Arc<str>)>) -> Result<()> {
        let arch = self.device.arch_name();
        self.device.enter()?;
        let mut shipped = self.shipped.lock();
        missing.retain(|(name, text)| {
            let Some(found) = gt_kernels::shipped(name, text, &arch) else { return true };
            let module = match shipped.get(found.name) {
                Some(module) => module.clone(),
                None => match stage(found.name, || Module::load(found.image)) {
                    Ok(module) => shipped.entry(found.name).or_insert(Arc::new(module)).clone(),
                    Err(_) => return true,
                },
            };
            self.keep(&module, name.clone(), text.clone()).is_err()
        });
        Ok(())
    }

    fn options(&self) -> Vec<String> {
        options(&self.device.arch_name())
    }

    /// Machine code for this very device, from disk where it was made before.
    fn compile(&self, source: &str) -> Result<Vec<u8>> {
        let options = self.options();
        let key = key(source, &options, version()?);
        if let Some(image) = self.disk.as_ref().and_then(|disk| disk.get(key)) {
            return Ok(image);
        }
        let image = cubin_aside(source, &options)?;
        if let Some(disk) = &self.disk {
            disk.put(key, &image);
        }
        Ok(image)
    }
}

/// Says so where the compiler is newer than the driver.
fn newer() -> String {
    let Ok((major, minor)) = version() else { return String::new() };
    let driver = driver::version();
    match major * 1000 + minor * 10 > driver {
        true => format!(
            " (NVRTC {major}.{minor} is newer than the driver, which is for CUDA {}.{}: install an older one, or a newer \
             driver)",
            driver / 1000,
            driver % 1000 / 10
        ),
        false => String::new(),
    }
}

/// `cubin` on a thread of its own: the compiler needs more of a stack than a thread has as a rule.
fn cubin_aside(source: &str, options: &[String]) -> Result<Vec<u8>> {
    version()?;
    let compiled = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("gt-compile".into()).stack_size(STACK);
        thread.spawn_scoped(scope, || cubin(source, options)).map(|thread| thread.join())
    });
    match compiled {
        Ok(Ok(image)) => image,
        Ok(Err(_)) => Err(Error::Runtime("nvrtc: the compiler panicked".into())),
        Err(error) => Err(Error::Runtime(format!("nvrtc: no thread to compile on: {error}"))),
    }
}

/// How kernels are compiled. Contraction is off: each instruction rounds (C7). On Hopper its own instructions may be used.
fn options(arch: &str) -> Vec<String> {
    let arch = if arch == "sm_90" { "sm_90a" } else { arch };
    vec![format!("--gpu-architecture={arch}"), "--fmad=false".into(), "--std=c++17".into()]
}

/// Under what compiled kernels are kept.
fn key(source: &str, options: &[String], version: (i32, i32)) -> u128 {
    let version = format!("nvrtc {}.{}", version.0, version.1);
    hash(&[source.as_bytes(), options.join(" ").as_bytes(), version.as_bytes()])
}

/// The version of NVRTC.
fn version() -> Result<(i32, i32)> {
    library("libnvrtc.so", "nvidia-cuda-nvrtc")?;
    // SAFETY: only tries to open the library; a missing one would panic below.
    if !unsafe { raw::is_culib_present() } {
        return Err(Error::Runtime("cuda: NVRTC is not there".into()));
    }
    let (mut major, mut minor) = (0, 0);
    // SAFETY: plain query.
    nvrtc("version", unsafe { raw::nvrtcVersion(&mut major, &mut minor) }.result())?;
    Ok((major, minor))
}

fn nvrtc<T>(what: &str, result: std::result::Result<T, checked::NvrtcError>) -> Result<T> {
    result.map_err(|e| Error::Runtime(format!("nvrtc: {what}: {:?}", e.0)))
}

/// Compiles CUDA C to machine code.
fn cubin(source: &str, options: &[String]) -> Result<Vec<u8>> {
    static LOADED: Once = Once::new();
    LOADED.call_once(leave::before_libraries);
    let text = CString::new(source).map_err(|_| Error::Runtime("nvrtc: a zero in the source".into()))?;
    let program = nvrtc("create", checked::create_program(&text, None))?;
    // SAFETY: the program lives until it is destroyed below, and the buffer has the size NVRTC asked for.
    unsafe {
        let made = match checked::compile_program(program, options) {
            Ok(()) => {
                let mut size = 0;
                let found = raw::nvrtcGetCUBINSize(program, &mut size).result();
                nvrtc("size", found).and_then(|()| {
                    let mut image = vec![0u8; size];
                    nvrtc("cubin", raw::nvrtcGetCUBIN(program, image.as_mut_ptr().cast()).result())?;
                    Ok(image)
                })
            }
            Err(error) => {
                let log = checked::get_program_log(program).unwrap_or_default();
                let said = match log.last() {
                    Some(0) => CStr::from_ptr(log.as_ptr()).to_string_lossy().into_owned(),
                    _ => String::new(),
                };
                Err(Error::Runtime(format!("nvrtc: {:?}\n{said}", error.0)))
            }
        };
        let _ = checked::destroy_program(program);
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_know_all_that_matters() {
        let base = key("a", &options("sm_90"), (13, 0));
        assert_eq!(base, key("a", &options("sm_90"), (13, 0)));
        for other in [
            key("b", &options("sm_90"), (13, 0)),
            key("a", &options("sm_80"), (13, 0)),
            key("a", &options("sm_90"), (13, 1)),
        ] {
            assert_ne!(base, other);
        }
    }
}
