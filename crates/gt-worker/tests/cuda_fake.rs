//! The cuda backend on a driver without a GPU (`fake_cuda`): who waits for whom, what memory is held, what is captured.
//! Kernels do nothing there, so no result of one is looked at.

use gt_ir::{DType, Slot, Ty, text};
use gt_worker::backend::{Backend, Buffer, Effort, HostBytes};
use gt_worker::backends::cuda::CudaBackend;
use std::ffi::CString;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, OnceLock};

/// The fake driver's counters.
#[derive(Clone, Copy)]
enum Count {
    Live,
    Kernels,
    Launches,
    Captures,
    Sets,
}

/// Builds and loads the fake libraries, once.
fn fake() -> &'static (impl Fn(Count) -> u64 + use<>) {
    static COUNT: OnceLock<extern "C" fn(i32) -> u64> = OnceLock::new();
    static ASK: OnceLock<fn(Count) -> u64> = OnceLock::new();
    COUNT.get_or_init(|| {
        let folder = std::env::temp_dir().join(format!("gt-fake-cuda-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        // SAFETY: no other thread of this test process reads the environment yet.
        unsafe { std::env::set_var("GT_KERNEL_CACHE", folder.join("kernels")) };
        let driver = load(&folder, "cuda.c", "libcuda.so.1");
        load(&folder, "nvrtc.c", "libnvrtc.so.13");
        let name = CString::new("fake_count").unwrap();
        // SAFETY: the library was just loaded and has this function.
        unsafe { std::mem::transmute(libc::dlsym(driver, name.as_ptr())) }
    });
    ASK.get_or_init(|| |what| COUNT.get().map_or(0, |count| count(what as i32)))
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

fn open() -> CudaBackend {
    fake();
    CudaBackend::open(0).unwrap()
}

fn bytes(n: usize, seed: usize) -> Vec<u8> {
    (0..n).map(|i| (i * 31 + seed * 7 + i / 253) as u8).collect()
}

fn upload(backend: &CudaBackend, data: &[u8]) -> Buffer {
    let ty = Ty::new(DType::U8, [data.len()]);
    backend.upload(&ty, HostBytes::Owned(Arc::new(data.to_vec()))).unwrap()
}

#[test]
fn bytes_come_back_as_they_went_whatever_their_number() {
    let backend = open();
    let sizes = [0, 1, 100, 5000, 16 << 10, (16 << 10) + 1, 100_000, 1 << 20, 8 << 20, (20 << 20) + 3];
    for round in 0..3 {
        backend.turn(round as u64);
        let data: Vec<Vec<u8>> = sizes.iter().map(|&n| bytes(n, n + round)).collect();
        let held: Vec<Buffer> = data.iter().map(|d| upload(&backend, d)).collect();
        let coming: Vec<_> = held.iter().map(|b| backend.fetch(b).unwrap()).collect();
        drop(held);
        for (pending, data) in coming.into_iter().zip(&data) {
            assert!(*pending.wait().unwrap() == *data, "{} bytes", data.len());
        }
    }
}

#[test]
fn small_data_of_a_program_arrives() {
    let backend = open();
    backend.turn(50);
    let structure = Arc::new(
        text::parse_structure("slot $0\nTENSOR[0] := DATA{shape=[3],dtype=i32} $0\nout TENSOR[0]").unwrap(),
    );
    let plan = backend.compile(&structure, &structure.check().unwrap(), Effort::Quick).unwrap();
    for round in 0..20i32 {
        let data: Vec<u8> = [round, -round, 7].iter().flat_map(|x| x.to_ne_bytes()).collect();
        let outs = plan.run(&mut Vec::new(), &[Slot::Data(data.clone().into())]).unwrap();
        assert_eq!(*backend.download(&outs[0]).unwrap(), data);
    }
}

#[test]
fn memory_is_counted_and_goes_back() {
    let count = fake();
    let backend = open();
    backend.turn(60);
    let data = bytes(1 << 20, 1);
    let before = backend.memory_in_use().0;
    let a = upload(&backend, &data);
    assert_eq!(backend.memory_in_use().0, before + (1 << 20));
    let live = count(Count::Live);
    assert!(live >= 1 << 20);
    drop(a);
    assert_eq!(backend.memory_in_use().0, before);
    assert!(backend.memory_in_use().1 > before);
    backend.reset_peak();
    assert_eq!(backend.memory_in_use().1, before);
    let ty = Ty::new(DType::U8, [backend.memory() as usize + 1]);
    let error = backend.upload(&ty, HostBytes::Owned(Arc::new(Vec::new())));
    assert!(error.is_err());
}
