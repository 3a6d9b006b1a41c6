//! How this process waits. The Python layer installs a waiter that releases the GIL and obeys Ctrl-C (C12).

use gt_ir::{Error, Result};
use std::sync::OnceLock;
use std::time::Duration;

/// Waits up to the given time; true when what is waited for has come.
pub type Attempt<'a> = dyn FnMut(Duration) -> bool + Send + 'a;

/// What is waited for, for whoever watches a terminal.
#[derive(Clone, Debug, Default)]
pub struct Waiting {
    pub what: String,
    /// How much of it has come, where that is known.
    pub part: Option<f64>,
}

/// Calls the attempt until it says true, or gives up with false when the user interrupts. When it takes long, the
/// other function says what is waited for.
pub type Waiter = fn(&mut Attempt, &(dyn Fn() -> Waiting + Sync)) -> bool;

static WAITER: OnceLock<Waiter> = OnceLock::new();

/// Installs the process's way to wait. Only the first call counts.
pub fn install(waiter: Waiter) {
    let _ = WAITER.set(waiter);
}

pub(crate) fn block_on(attempt: &mut Attempt, what: &(dyn Fn() -> Waiting + Sync)) -> Result<()> {
    let done = match WAITER.get() {
        Some(waiter) => waiter(attempt, what),
        None => {
            while !attempt(Duration::from_millis(200)) {}
            true
        }
    };
    if done { Ok(()) } else { Err(Error::Runtime(INTERRUPTED.into())) }
}

/// The message of the error that stands for an interrupt; the Python layer raises what Python has pending instead.
pub const INTERRUPTED: &str = "interrupted";
