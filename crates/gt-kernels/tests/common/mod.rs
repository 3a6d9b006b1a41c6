//! Runs plans on the emulated device: kernels are compiled by the C++ compiler of this machine.
#![allow(dead_code)]

use gt_compiler::{Place, Plan, Storage, Tensor, Work};
use gt_ir::host::{HostTensor, unravel};
use gt_ir::{Kind, Scalar, Shape, Slot, Structure, Ty};
use gt_kernels::{Function, Launch, Launches};
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A kernel in the emulation: grid, block and shared memory, then the addresses of the arguments.
type Entry = unsafe extern "C" fn(*const u32, *const *mut c_void);

/// Kernels that can be called.
#[derive(Default)]
pub struct Kernels {
    entries: HashMap<String, Entry>,
}

/// The C++ compiler, unless this machine has none.
pub fn compiler() -> Option<&'static str> {
    let found = ["g++", "clang++", "c++"]
        .into_iter()
        .find(|name| Command::new(name).arg("--version").output().is_ok_and(|out| out.status.success()));
    if found.is_none() {
        eprintln!("skipped: no C++ compiler found to emulate kernels with");
    }
    found
}

fn folder() -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulated");
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// The names of the kernels in a text.
pub fn names(text: &str) -> Vec<String> {
    let mut out: Vec<String> =
        text.split("\nGT_STEP(").skip(1).filter_map(|p| p.split(',').next()).map(String::from).collect();
    for part in text.split("extern \"C\" __global__ void").skip(1) {
        let mut part = part.trim_start();
        if let Some(rest) = part.strip_prefix("__launch_bounds__(") {
            part = rest.split_once(") ").map_or("", |p| p.1);
        }
        out.extend(part.split('(').next().map(|n| n.trim().to_string()).filter(|n| n != "name"));
    }
    out
}

impl Kernels {
    pub fn plain(compiler: &str) -> Kernels {
        let mut kernels = Kernels::default();
        // Attention has tests of its own.
        let attention = include_str!("../../src/attention_parts.cu");
        let text = gt_kernels::PLAIN.split(attention).next().unwrap_or_default();
        kernels.add(compiler, "-O1", text, &names(text));
        kernels
    }

    /// Compiles a text and makes its kernels callable.
    pub fn add(&mut self, compiler: &str, level: &str, text: &str, names: &[String]) {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut source = format!("#include \"emulate.h\"\n{text}\n");
        for name in names {
            source += &format!(
                "extern \"C\" void emulate_{name}(const unsigned* size, void** args) {{ gt_emulated::run({name}, size, args); }}\n"
            );
        }
        let header = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/emulate");
        let mut hasher = DefaultHasher::new();
        (&source, std::fs::read_to_string(format!("{header}/emulate.h")).unwrap()).hash(&mut hasher);
        let stem = folder().join(format!("{:016x}", hasher.finish()));
        let library = stem.with_extension("so");
        if !library.exists() {
            // Tests run side by side may compile the same.
            let own =
                format!("{}-{:?}", std::process::id(), std::thread::current().id()).replace(['(', ')'], "");
            let (file, new) =
                (stem.with_extension(format!("{own}.cpp")), stem.with_extension(format!("{own}.new")));
            std::fs::write(&file, &source).unwrap();
            let out = Command::new(compiler)
                .args([
                    "-std=c++17",
                    level,
                    "-fPIC",
                    "-shared",
                    "-fwrapv",
                    "-fno-strict-aliasing",
                    "-ffp-contract=off",
                    "-w",
                    "-I",
                ])
                .args([header, file.to_str().unwrap(), "-o", new.to_str().unwrap()])
                .output()
                .unwrap();
            assert!(out.status.success(), "{}: {}", file.display(), String::from_utf8_lossy(&out.stderr));
            std::fs::rename(&new, &library).unwrap();
            let _ = std::fs::remove_file(&file);
        }
        let path = CString::new(library.to_str().unwrap()).unwrap();
        // SAFETY: the library is the one just made; it stays loaded.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{} cannot be loaded", library.display());
        for name in names {
            let symbol = CString::new(format!("emulate_{name}")).unwrap();
            // SAFETY: the symbol is a function of the type of `Entry`, written above.
            let entry = unsafe {
                let at = libc::dlsym(handle, symbol.as_ptr());
                assert!(!at.is_null(), "no kernel {name}");
                std::mem::transmute::<*mut c_void, Entry>(at)
            };
            self.entries.insert(name.clone(), entry);
        }
    }

    /// Compiles what is new among the made kernels of launches.
    pub fn add_made(&mut self, compiler: &str, launches: &[Launches]) {
        let mut text = String::from(gt_kernels::PRELUDE);
        let mut fresh: Vec<String> = Vec::new();
        for launch in launches.iter().flat_map(|l| &l.list) {
            if let Function::Made { name, text: t } = &launch.function
                && !self.entries.contains_key(&**name)
                && !fresh.iter().any(|f| **f == **name)
            {
                fresh.push(name.to_string());
                text += t;
            }
        }
        if !fresh.is_empty() {
            self.add(compiler, "-O0", &text, &fresh);
        }
    }

    /// Launches a kernel with its arguments as words.
    pub fn call(&self, launch: &Launch, args: &mut [Vec<u64>]) {
        let name = match &launch.function {
            Function::Plain(name) => *name,
            Function::Made { name, .. } => name,
        };
        let entry = self.entries.get(name).unwrap_or_else(|| panic!("no kernel {name}"));
        let size = [launch.grid[0], launch.grid[1], launch.grid[2], launch.block, launch.shared];
        let list: Vec<*mut c_void> = args.iter_mut().map(|a| a.as_mut_ptr() as *mut c_void).collect();
        // The emulated device is one, with its memory in static variables.
        static DEVICE: std::sync::Mutex<()> = std::sync::Mutex::new(());
        let _alone = DEVICE.lock().unwrap_or_else(|e| e.into_inner());
        // SAFETY: the arguments are laid out as the kernel takes them, which is what the test is about.
        unsafe { entry(size.as_ptr(), list.as_ptr()) };
    }
}

/// Bytes at a multiple of 256, with a guard behind them.
pub struct Memory {
    words: Vec<u64>,
    start: usize,
    bytes: usize,
}

const GUARD: usize = 64;

impl Memory {
    pub fn new(bytes: usize) -> Memory {
        let words = vec![u64::MAX; (bytes + GUARD).div_ceil(8) + 64];
        let start = words.as_ptr() as usize;
        Memory { start: start.next_multiple_of(256) - start, words, bytes }
    }

    pub fn address(&self) -> u64 {
        (self.words.as_ptr() as usize + self.start) as u64
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is this vector's.
        unsafe { std::slice::from_raw_parts(self.address() as *const u8, self.bytes) }
    }

    pub fn write(&mut self, from: &[u8]) {
        // SAFETY: as above, borrowed for writing.
        unsafe { std::slice::from_raw_parts_mut(self.address() as *mut u8, from.len()) }
            .copy_from_slice(from);
    }

    fn check(&self) {
        // SAFETY: as above; the guard lies behind the bytes.
        let guard =
            unsafe { std::slice::from_raw_parts((self.address() as usize + self.bytes) as *const u8, GUARD) };
        assert!(guard.iter().all(|b| *b == 255), "bytes behind a storage were overwritten");
    }
}

/// How steps are launched.
pub type Way<'a> = &'a dyn Fn(usize, &Plan) -> Launches;

/// Runs a plan; an error is the number of the check that failed.
pub fn run(
    kernels: &Kernels,
    plan: &Plan,
    structure: &Structure,
    inputs: &[HostTensor],
    slots: &[Slot],
    way: Way,
) -> Result<Vec<HostTensor>, usize> {
    let types = structure.check().unwrap();
    let mut given: Vec<Memory> = inputs.iter().map(|t| Memory::new(t.data.len())).collect();
    given.iter_mut().zip(inputs).for_each(|(m, t)| m.write(&t.data));
    let own: Vec<Memory> = plan.storages.iter().map(|s| Memory::new(s.bytes)).collect();
    let lies = |(k, s): (usize, &Storage)| match (s.place, s.reuse) {
        (Place::Input(i), _) | (_, Some(i)) => given[i as usize].address(),
        (Place::Out | Place::Arena(_), None) => own[k].address(),
    };
    let addresses: Vec<u64> = plan.storages.iter().enumerate().map(lies).collect();
    let mut failed = vec![0u64; 1];
    for (s, step) in plan.steps.iter().enumerate() {
        let launches = match &step.work {
            Work::Copy { from, to } => {
                let (from, to) = (addresses[*from as usize], addresses[*to as usize]);
                if from != to && failed[0] == 0 {
                    let n = plan.storages[match &step.work {
                        Work::Copy { from, .. } => *from as usize,
                        _ => 0,
                    }]
                    .bytes;
                    // SAFETY: both storages hold that many bytes.
                    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, n) };
                }
                Launches::default()
            }
            Work::Data { slot, out } => {
                if let Slot::Data(bytes) = &slots[*slot as usize] {
                    // SAFETY: the storage is as large as the data.
                    unsafe {
                        std::ptr::copy(bytes.as_ptr(), addresses[*out as usize] as *mut u8, bytes.len())
                    };
                }
                Launches::default()
            }
            Work::Matmul(m) => {
                let out = matmul(m, &addresses, slots);
                // SAFETY: the storage is as large as the result.
                unsafe { std::ptr::copy(out.as_ptr(), addresses[m.out as usize] as *mut u8, out.len()) };
                let more = m.relu || m.residual.is_some();
                if more { gt_kernels::matmul::after(m, plan) } else { Launches::default() }
            }
            _ => way(s, plan),
        };
        let mut scratch = Memory::new(launches.scratch);
        scratch.write(&vec![0; launches.zeroed]);
        for launch in &launches.list {
            assert!(launch.grid.iter().all(|&n| n > 0), "step {s}: an empty grid");
            assert!(
                launch.args.iter().map(|a| a.bytes.len()).sum::<usize>() <= 4096,
                "step {s}: long arguments"
            );
            let mut args: Vec<Vec<u64>> = Vec::new();
            for arg in &launch.args {
                let mut words: Vec<u64> = arg
                    .bytes
                    .chunks(8)
                    .map(|c| {
                        let mut w = [0; 8];
                        w[..c.len()].copy_from_slice(c);
                        u64::from_ne_bytes(w)
                    })
                    .collect();
                for fill in &arg.fills {
                    assert_eq!(fill.at % 8, 0);
                    let flag = failed.as_mut_ptr() as u64;
                    words[fill.at as usize / 8] = fill.word.get(&addresses, slots, scratch.address(), flag);
                }
                args.push(words);
            }
            kernels.call(launch, &mut args);
        }
        scratch.check();
        own.iter().chain(&given).for_each(Memory::check);
    }
    if failed[0] != 0 {
        for (m, t) in given.iter().zip(inputs) {
            assert_eq!(m.bytes(), t.data, "a failure changed an input");
        }
        return Err(failed[0] as usize - 1);
    }
    let outs = plan.outs.iter().zip(&structure.outs).map(|(&s, &v)| {
        let ty = types[v as usize].clone();
        // SAFETY: the storage holds the tensor.
        let data =
            unsafe { std::slice::from_raw_parts(addresses[s as usize] as *const u8, ty.bytes()) }.to_vec();
        HostTensor { ty, data }
    });
    Ok(outs.collect())
}

fn element(t: &Tensor, at: &[usize], addresses: &[u64], slots: &[Slot]) -> Scalar {
    let place = at.iter().zip(&t.map.strides).fold(t.map.offset(slots), |p, (&i, &s)| p + i as isize * s);
    let size = t.dtype.size();
    let from = addresses[t.storage as usize] as usize + place as usize * size;
    // SAFETY: the plan's maps show elements that exist.
    Scalar::read(t.dtype, unsafe { std::slice::from_raw_parts(from as *const u8, size) })
}

/// A product by its definition.
fn matmul(m: &gt_compiler::Matmul, addresses: &[u64], slots: &[Slot]) -> Vec<u8> {
    let mut shape: Shape = m.batch.clone();
    shape.push(m.m);
    shape.push(m.n);
    let rank = shape.len();
    let mut out = HostTensor::zeros(&Ty { dtype: m.a.dtype, shape: shape.clone() });
    for i in 0..shape.numel() {
        let at = unravel(i, &shape);
        let (mut a, mut b) = (at.clone(), at.clone());
        let (mut real, mut int) = (0f64, 0i64);
        for k in 0..m.k {
            (a[rank - 1], b[rank - 2]) = (k, k);
            let (x, y) = (element(&m.a, &a, addresses, slots), element(&m.b, &b, addresses, slots));
            real += x.as_f64() * y.as_f64();
            int = int.wrapping_add(x.as_i64().wrapping_mul(y.as_i64()));
        }
        if let Some(bias) = &m.bias {
            let x = element(bias, &at, addresses, slots);
            real += x.as_f64();
            int = int.wrapping_add(x.as_i64());
        }
        let total = if m.a.dtype.kind() == Kind::Float { Scalar::Float(real) } else { Scalar::Int(int) };
        out.set(i, total);
    }
    out.data
}
