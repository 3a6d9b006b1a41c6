//! This host: versions, driver, CUDA libraries, ports, shared memory, limits.

use super::Finding;
use crate::see::text::bytes;
use std::ffi::{CStr, CString, c_int, c_void};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Bytes written to shared memory to see how fast it is.
const SAMPLE: usize = 64 << 20;

pub fn look() -> Vec<Finding> {
    let mut out = vec![version(), processor(), driver()];
    out.extend(libraries());
    out.extend([shared_memory(), files(), port()]);
    out
}

fn version() -> Finding {
    let versions = gt_net::handshake::VERSIONS;
    let text = format!(
        "gt {}, protocol {} to {}, {} {}",
        env!("CARGO_PKG_VERSION"),
        versions.min,
        versions.max,
        std::env::consts::OS,
        std::env::consts::ARCH
    );
    Finding::good("version", text)
}

fn processor() -> Finding {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    match gt_worker::backends::open("cpu", None) {
        Ok(backend) => {
            let text = format!("{}, {} for tensors", backend.device(), bytes(backend.memory() as f64));
            match cores {
                0..2 => Finding::weak(
                    "cpu",
                    text,
                    "one core runs client, server and worker in turns: more are better",
                ),
                _ => Finding::good("cpu", text),
            }
        }
        Err(error) => Finding::bad("cpu", error.to_string(), "the cpu backend is always there: report this"),
    }
}

/// A library of the system, by one of its names.
fn open(names: &[&str]) -> Option<(*mut c_void, String)> {
    let mut tried: Vec<PathBuf> = names.iter().map(PathBuf::from).collect();
    tried.extend(packaged(names));
    for name in tried {
        let text = CString::new(name.to_string_lossy().as_bytes()).ok()?;
        // SAFETY: a C string; the vendor's libraries may be loaded at any time.
        let handle = unsafe { libc::dlopen(text.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
        if !handle.is_null() {
            return Some((handle, name.display().to_string()));
        }
    }
    None
}

/// The same libraries as pip packages bring them, beside this one.
fn packaged(names: &[&str]) -> Vec<PathBuf> {
    let Some(home) = std::env::var_os("VIRTUAL_ENV") else { return Vec::new() };
    let Ok(versions) = std::fs::read_dir(Path::new(&home).join("lib")) else { return Vec::new() };
    let mut found = Vec::new();
    for version in versions.flatten() {
        let Ok(packages) = std::fs::read_dir(version.path().join("site-packages/nvidia")) else { continue };
        for package in packages.flatten() {
            found.extend(names.iter().map(|name| package.path().join("lib").join(name)));
        }
    }
    found.retain(|path| path.exists());
    found
}

fn driver() -> Finding {
    let Some((handle, _)) = open(&["libcuda.so.1", "libcuda.so"]) else {
        return Finding::weak(
            "nvidia driver",
            "none: workers here use the cpu",
            "for a GPU install NVIDIA's driver (nvidia-smi shows whether it works)",
        );
    };
    type Init = unsafe extern "C" fn(u32) -> c_int;
    type Number = unsafe extern "C" fn(*mut c_int) -> c_int;
    let find = |name: &CStr| {
        // SAFETY: `handle` is an open library.
        let at = unsafe { libc::dlsym(handle, name.as_ptr()) };
        (!at.is_null()).then_some(at)
    };
    let (Some(init), Some(version), Some(count)) =
        (find(c"cuInit"), find(c"cuDriverGetVersion"), find(c"cuDeviceGetCount"))
    else {
        return Finding::bad("nvidia driver", "libcuda is there but broken", "install NVIDIA's driver again");
    };
    // SAFETY: these are the driver's own functions with their documented types.
    let (init, version, count) = unsafe {
        (
            std::mem::transmute::<*mut c_void, Init>(init),
            std::mem::transmute::<*mut c_void, Number>(version),
            std::mem::transmute::<*mut c_void, Number>(count),
        )
    };
    let (mut number, mut devices) = (0, 0);
    // SAFETY: the pointers are valid for the calls.
    let failed = unsafe { (init(0), version(&mut number), count(&mut devices)) };
    let text = format!("CUDA {}.{}, {devices} devices", number / 1000, number % 1000 / 10);
    match failed {
        (0, 0, 0) if devices > 0 => Finding::good("nvidia driver", text),
        (0, 0, 0) => Finding::weak(
            "nvidia driver",
            text,
            "no device is visible: see CUDA_VISIBLE_DEVICES and nvidia-smi",
        ),
        (error, ..) => Finding::bad(
            "nvidia driver",
            format!("cuInit fails with {error}"),
            "see whether nvidia-smi works; after an update of the driver reboot the machine",
        ),
    }
}

/// The libraries that the cuda backend loads, and what goes without each.
fn libraries() -> Vec<Finding> {
    let wanted: [(&'static str, &[&str], &str); 3] = [
        ("cublaslt", &["libcublasLt.so.13", "libcublasLt.so.12"], "matrix products on a GPU"),
        ("nvrtc", &["libnvrtc.so.13", "libnvrtc.so.12"], "fused kernels on a GPU"),
        ("nccl", &["libnccl.so.2"], "collectives between GPUs"),
    ];
    let gpu = open(&["libcuda.so.1", "libcuda.so"]).is_some();
    let others = wanted.into_iter().map(|(name, files, used)| match open(files) {
        Some((_, path)) => Finding::good(name, path),
        None if gpu => Finding::bad(
            name,
            "not found",
            format!("needed for {used}: install CUDA's libraries, or put their folder on LD_LIBRARY_PATH"),
        ),
        None => Finding::good(name, format!("not found, and only of use with a GPU ({used})")),
    });
    others.chain([cudnn(gpu)]).collect()
}

/// The library that attends where it is faster than kernels of our own; nothing needs it.
fn cudnn(gpu: bool) -> Finding {
    use gt_worker::backends::cuda::cudnn::{api, spelled};
    match api() {
        Ok(api) => Finding::good("cudnn", format!("version {}", spelled(api.version()))),
        Err(error) if gpu => {
            Finding::weak("cudnn", "none: attention runs by kernels of our own", error.to_string())
        }
        Err(_) => Finding::good("cudnn", "not found, and only of use with a GPU (attention)"),
    }
}

fn shared_memory() -> Finding {
    let advice =
        "tensors between processes of this host go through sockets: allow memfd_create (container profile)";
    let Ok(mut shm) = gt_net::shm::Shm::create(SAMPLE) else {
        return Finding::bad("shared memory", "memfd cannot be made", advice);
    };
    let data = vec![1u8; SAMPLE];
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        let start = Instant::now();
        gt_net::copy::copy(shm.as_mut_slice(), &data);
        best = best.min(start.elapsed().as_secs_f64());
    }
    Finding::good("shared memory", format!("memfd works, {}/s", bytes(SAMPLE as f64 / best)))
}

fn files() -> Finding {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for the call.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    let text = format!("{} may be open", limit.rlim_cur);
    match limit.rlim_cur {
        0..1024 => Finding::weak("open files", text, "every client and worker takes some: `ulimit -n 4096`"),
        _ => Finding::good("open files", text),
    }
}

fn port() -> Finding {
    let loopback = TcpListener::bind(("127.0.0.1", 0));
    if let Err(error) = loopback {
        return Finding::bad(
            "ports",
            format!("cannot listen on loopback: {error}"),
            "see the sandbox or firewall of this host",
        );
    }
    match TcpListener::bind(("127.0.0.1", 12345)) {
        Ok(_) => Finding::good("ports", "12345, the usual one, is free"),
        Err(_) => Finding::good("ports", "12345, the usual one, is taken (by a server, most likely)"),
    }
}
