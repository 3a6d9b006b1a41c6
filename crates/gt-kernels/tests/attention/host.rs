//! Kernels compiled for the host and called with the arguments of a launch.

use gt_kernels::{Function, Launch};
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::process::Command;
use std::sync::Mutex;

type Entry = unsafe extern "C" fn(*const c_void, *const c_void, *const u32, u32, usize);

/// Libraries that are made, by text.
static MADE: Mutex<Option<HashMap<String, usize>>> = Mutex::new(None);

/// Compiles a text for the host and opens what came out.
fn library(text: &str) -> *mut c_void {
    let mut all = MADE.lock().unwrap();
    let count = all.get_or_insert_default().len();
    let made = all.get_or_insert_default().entry(text.to_string()).or_insert_with(|| load(text, count));
    *made as *mut c_void
}

fn load(text: &str, count: usize) -> usize {
    let dir = std::env::temp_dir().join(format!("gt-attention-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let header = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/attention/emulate.h");
    let entry = "extern \"C\" void run(void (*kernel)(GtaParams), const void *p, const unsigned *grid, unsigned block, \
                 size_t shared) { emu_launch(kernel, p, grid, block, shared); }";
    let (source, library) = (dir.join(format!("{count}.cpp")), dir.join(format!("{count}.so")));
    std::fs::write(&source, format!("#include \"{header}\"\n{text}\n{entry}\n")).unwrap();
    let flags = ["-std=c++17", "-O1", "-ffp-contract=off", "-shared", "-fPIC", "-w", "-U_FORTIFY_SOURCE"];
    let said = Command::new("g++").args(flags).arg(&source).arg("-o").arg(&library).output().unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let path = CString::new(library.to_str().unwrap()).unwrap();
    // SAFETY: opens a library just made, which runs nothing when it is opened.
    let opened = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!opened.is_null(), "{path:?} does not open");
    std::fs::remove_dir_all(&dir).unwrap();
    opened as usize
}

fn symbol(library: *mut c_void, name: &str) -> *mut c_void {
    let name = CString::new(name).unwrap();
    // SAFETY: the library is open and never closed.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!found.is_null(), "{name:?} was not found");
    found
}

/// Runs a launch; plain kernels come from `plain`.
pub fn run(launch: &Launch, plain: &str, addresses: &[u64], scratch: u64) {
    let mut bytes = launch.args[0].bytes.clone();
    for fill in &launch.args[0].fills {
        let word = fill.word.get(addresses, &[], scratch, 0);
        bytes[fill.at as usize..][..8].copy_from_slice(&word.to_ne_bytes());
    }
    let mut params: Vec<u64> = bytes.chunks(8).map(|c| u64::from_ne_bytes(c.try_into().unwrap())).collect();
    params.push(0);
    let (name, text): (&str, &str) = match &launch.function {
        Function::Plain(name) => (name, plain),
        Function::Made { name, text } => (name, text),
    };
    let library = library(text);
    let kernel = symbol(library, name);
    // SAFETY: every library made here exports a function of this type by this name.
    let entry = unsafe { std::mem::transmute::<*mut c_void, Entry>(symbol(library, "run")) };
    // One kernel at a time: its threads and their shared memory are statics of its library.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock();
    // SAFETY: the parameters are what the kernel takes, with addresses of memory that is large enough.
    unsafe {
        entry(kernel, params.as_ptr().cast(), launch.grid.as_ptr(), launch.block, launch.shared as usize)
    };
}
