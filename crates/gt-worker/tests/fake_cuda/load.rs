//! Builds the fake libraries and loads them in the place of NVIDIA's.

use std::ffi::CString;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

/// The fake driver's counters.
#[allow(dead_code)]
#[derive(Clone, Copy)]
pub enum Count {
    Live,
    Kernels,
    Launches,
    Captures,
    Sets,
}

/// Builds and loads the fake libraries, once.
pub fn fake() -> &'static fn(Count) -> u64 {
    static COUNT: OnceLock<extern "C" fn(i32) -> u64> = OnceLock::new();
    static ASK: OnceLock<fn(Count) -> u64> = OnceLock::new();
    COUNT.get_or_init(|| {
        let folder = std::env::temp_dir().join(format!("gt-fake-cuda-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        // SAFETY: no other thread of this test process reads the environment yet.
        unsafe { std::env::set_var("GT_KERNEL_CACHE", folder.join("kernels")) };
        let driver = load(&folder, "cuda.c", "libcuda.so.1");
        load(&folder, "nvrtc.c", "libnvrtc.so.13");
        load(&folder, "cublaslt.c", "libcublasLt.so.13");
        let name = CString::new("fake_count").unwrap();
        // SAFETY: the library was just loaded and has this function.
        unsafe { std::mem::transmute(libc::dlsym(driver, name.as_ptr())) }
    });
    ASK.get_or_init(|| |what| COUNT.get().map_or(0, |count| count(what as i32)))
}

/// Loads the fake NCCL too; gives how many groups were joined, ranks cut off and calls made.
#[allow(dead_code)]
pub fn fake_nccl() -> [u64; 3] {
    static COUNT: OnceLock<extern "C" fn(i32) -> u64> = OnceLock::new();
    fake();
    let count = COUNT.get_or_init(|| {
        let folder = std::env::temp_dir().join(format!("gt-fake-cuda-{}", std::process::id()));
        let library = load(&folder, "nccl.c", "libnccl.so.2");
        let name = CString::new("fake_nccl_count").unwrap();
        // SAFETY: the library was just loaded and has this function.
        unsafe { std::mem::transmute(libc::dlsym(library, name.as_ptr())) }
    });
    [0, 1, 2].map(|what| count(what))
}

/// Loads the fake cuDNN too; gives how many descriptors live, and how many calls, plans and plans from disk there were.
#[allow(dead_code)]
pub fn fake_cudnn() -> [u64; 4] {
    static COUNT: OnceLock<extern "C" fn(i32) -> u64> = OnceLock::new();
    fake();
    let count = COUNT.get_or_init(|| {
        let folder = std::env::temp_dir().join(format!("gt-fake-cuda-{}", std::process::id()));
        let library = load(&folder, "cudnn.c", "libcudnn.so.9");
        let name = CString::new("fake_cudnn_count").unwrap();
        // SAFETY: the library was just loaded and has this function.
        unsafe { std::mem::transmute(libc::dlsym(library, name.as_ptr())) }
    });
    [0, 1, 2, 3].map(|what| count(what))
}

fn load(folder: &Path, source: &str, name: &str) -> *mut libc::c_void {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake_cuda").join(source);
    let library = folder.join(name);
    let soname = format!("-Wl,-soname,{name}");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-w", &soname, "-o"])
        .args([&library, &source])
        .arg("-lpthread")
        .status();
    assert!(built.unwrap().success(), "cc could not build {name}");
    let path = CString::new(library.to_str().unwrap()).unwrap();
    // SAFETY: the library does nothing when it is loaded.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    assert!(!handle.is_null(), "{name} was not loaded");
    handle
}

/// From now on the fake device answers every wait with an error after which nothing works any more.
#[allow(dead_code)]
pub fn break_device() {
    fake();
    let name = CString::new("fake_break").unwrap();
    // SAFETY: the library is loaded and has this function, which takes and gives nothing.
    unsafe {
        let found = libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
        let call: extern "C" fn() = std::mem::transmute(found);
        call();
    }
}
