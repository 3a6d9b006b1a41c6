//! Waiting: the GIL is released, Ctrl-C is obeyed (C12), and on a terminal a long wait says what it is for.

use crate::errors::carry;
use gt_cli::progress::Progress;
use gt_client::wait::{Attempt, Waiting};
use pyo3::prelude::*;
use std::time::{Duration, Instant};

/// How long a wait lasts before Python's signal handlers get their turn.
pub const SLICE: Duration = Duration::from_millis(25);
/// How long a wait lasts before something is shown.
const PATIENCE: Duration = Duration::from_secs(2);

/// Waits until the attempt succeeds, or gives up when a signal handler raises.
pub fn wait(attempt: &mut Attempt, what: &(dyn Fn() -> Waiting + Sync)) -> bool {
    let began = Instant::now();
    let mut shown: Option<Progress> = None;
    Python::attach(|py| {
        loop {
            if py.detach(|| attempt(SLICE)) {
                return true;
            }
            if let Err(e) = py.check_signals() {
                let _ = carry(e);
                return false;
            }
            if began.elapsed() > PATIENCE {
                let Waiting { what, part } = what();
                shown.get_or_insert_with(|| Progress::new("gt", 1.0)).show(part, &what);
            }
        }
    })
}
