//! The devices a worker can run on.

pub mod cpu;
pub mod reference;

use crate::backend::Backend;
use gt_ir::{Result, bail};
use std::sync::Arc;

/// The names `open` takes.
pub const NAMES: [&str; 5] = ["auto", "cpu", "reference", "pytorch", "numpy"];

/// Opens device `i` of `n` that share this machine: processors are divided among them, each with cores of its own.
pub fn open_share(name: &str, i: usize, n: usize) -> Result<Arc<dyn Backend>> {
    let cores = cpu::threads::cores();
    let each = cores.len() / n.max(1);
    match name {
        "auto" | "pytorch" | "cpu" if n > 1 && each > 0 && i < n => {
            Ok(Arc::new(cpu::CpuBackend::on_cores(&cores[i * each..(i + 1) * each])))
        }
        // More devices than cores take turns.
        name => open(name, Some((cores.len() / n.max(1)).max(1) as u32)),
    }
}

/// Opens a device by name. `auto` (also `pytorch`) is the fastest there is, `numpy` is the reference.
pub fn open(name: &str, threads: Option<u32>) -> Result<Arc<dyn Backend>> {
    match name {
        "auto" | "pytorch" | "cpu" => Ok(Arc::new(cpu::CpuBackend::new(threads))),
        "reference" | "numpy" => Ok(Arc::new(reference::ReferenceBackend::default())),
        other => bail!(Value, "backend: unknown backend {other:?}, choose one of {}", NAMES.join(", ")),
    }
}
