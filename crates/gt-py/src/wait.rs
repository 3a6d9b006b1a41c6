//! Waiting: the GIL is released, Ctrl-C is obeyed (C12).

use crate::errors::carry;
use gt_client::wait::Attempt;
use pyo3::prelude::*;
use std::time::Duration;

/// How long a wait lasts before Python's signal handlers get their turn.
pub const SLICE: Duration = Duration::from_millis(25);

/// Waits until the attempt succeeds, or gives up when a signal handler raises.
pub fn wait(attempt: &mut Attempt) -> bool {
    Python::attach(|py| {
        loop {
            if py.detach(|| attempt(SLICE)) {
                return true;
            }
            if let Err(e) = py.check_signals() {
                let _ = carry(e);
                return false;
            }
        }
    })
}
