//! The devices a worker can run on.

pub mod cpu;
pub mod cuda;
pub mod reference;

use crate::backend::Backend;
use gt_ir::{Result, bail};
use std::sync::Arc;

/// The names `open` takes.
pub const NAMES: [&str; 5] = ["auto", "cpu", "reference", "pytorch", "numpy"];

/// Opens a device by name. `auto` (also `pytorch`) is the fastest there is, `numpy` is the reference.
pub fn open(name: &str, threads: Option<u32>) -> Result<Arc<dyn Backend>> {
    match name {
        "auto" | "pytorch" | "cpu" => Ok(Arc::new(cpu::CpuBackend::new(threads))),
        "reference" | "numpy" => Ok(Arc::new(reference::ReferenceBackend::default())),
        other => bail!(Value, "backend: unknown backend {other:?}, choose one of {}", NAMES.join(", ")),
    }
}
