//! The devices a worker can run on.

pub mod cpu;
pub mod cuda;
pub mod reference;

use crate::backend::Backend;
use gt_ir::{Result, bail};
use std::sync::Arc;

/// The names `open` takes.
pub const NAMES: [&str; 6] = ["auto", "cuda", "cpu", "reference", "pytorch", "numpy"];

/// Opens device `i` of `n` that share this machine: GPUs are taken in turns, and processors are divided, so that each
/// device has cores of its own. Says why `auto` is not a GPU.
pub fn choose_share(name: &str, i: usize, n: usize) -> Result<(Arc<dyn Backend>, Option<String>)> {
    let gpus = gpus(name);
    let cores = cpu::threads::cores();
    let each = cores.len() / n.max(1);
    match name {
        "auto" | "pytorch" | "cpu" if gpus == 0 && n > 1 && each > 0 && i < n => {
            Ok((Arc::new(cpu::CpuBackend::on_cores(&cores[i * each..(i + 1) * each])), None))
        }
        // More processors than cores take turns.
        name => {
            let device = if gpus > 0 { Some(i as u32 % gpus) } else { None };
            choose(name, Some(each.max(1) as u32), device)
        }
    }
}

/// Opens a device by name for a process that stays on these cores, a thread on each.
pub fn choose_on(
    name: &str,
    cores: &[usize],
    device: Option<u32>,
) -> Result<(Arc<dyn Backend>, Option<String>)> {
    let allowed = cpu::threads::cores();
    if let Some(core) = cores.iter().find(|core| !allowed.contains(core)) {
        bail!(Value, "cores: core {core} is not among those this process may use, {allowed:?}");
    }
    cpu::threads::confine(cores);
    let (chosen, why) = choose(name, Some(cores.len() as u32), device)?;
    match chosen.name() {
        "cpu" => Ok((Arc::new(cpu::CpuBackend::on_cores(cores)), why)),
        _ => Ok((chosen, why)),
    }
}

/// Opens a device by name. `auto` (also `pytorch`) is the fastest there is, `numpy` is the reference.
pub fn open(name: &str, threads: Option<u32>) -> Result<Arc<dyn Backend>> {
    choose(name, threads, None).map(|(backend, _)| backend)
}

/// Opens a device by name, the GPU by its number where one is meant; says why `auto` is not a GPU.
pub fn choose(
    name: &str,
    threads: Option<u32>,
    device: Option<u32>,
) -> Result<(Arc<dyn Backend>, Option<String>)> {
    let cpu = || Arc::new(cpu::CpuBackend::new(threads));
    Ok(match name {
        "cuda" => (Arc::new(cuda::CudaBackend::open(device.unwrap_or(0))?), None),
        // A device that was asked for by its number is no matter of choice.
        "auto" | "pytorch" => match (cuda::CudaBackend::open(device.unwrap_or(0)), device) {
            (Ok(gpu), _) => (Arc::new(gpu), None),
            (Err(error), Some(_)) => return Err(error),
            (Err(error), None) => (cpu(), Some(error.to_string())),
        },
        "cpu" => (cpu(), None),
        "reference" | "numpy" => (Arc::new(reference::ReferenceBackend::default()), None),
        other => bail!(Value, "backend: unknown backend {other:?}, choose one of {}", NAMES.join(", ")),
    })
}

/// How many GPUs a name would find: none where it means another device.
pub fn gpus(name: &str) -> u32 {
    match name {
        "auto" | "pytorch" | "cuda" => cuda::count().unwrap_or(0),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_gpu_auto_is_the_cpu_and_says_why() {
        if gpus("auto") > 0 {
            return assert_eq!(open("auto", Some(1)).unwrap().name(), "cuda");
        }
        let (backend, why) = choose("auto", Some(1), None).unwrap();
        assert_eq!(backend.name(), "cpu");
        assert!(why.unwrap().starts_with("cuda: "));
        for (name, device) in [("cuda", None), ("auto", Some(0))] {
            let error = choose(name, None, device).err().unwrap().to_string();
            assert!(error.starts_with("cuda: "), "{error}");
        }
        assert!(choose("tpu", None, None).err().unwrap().to_string().contains("auto, cuda, cpu"));
    }
}
