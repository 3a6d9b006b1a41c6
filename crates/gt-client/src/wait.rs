//! How this process waits. The Python layer installs a waiter that releases the GIL and obeys Ctrl-C (C12).

use crate::session::Session;
use gt_ir::{Error, Result};
use std::cell::Cell;
use std::sync::{Arc, OnceLock};
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

thread_local! {
    /// How many steps that nothing may break this thread is within, and whether a wait was put off meanwhile.
    static UNBROKEN: Cell<(u32, bool)> = const { Cell::new((0, false)) };
}

/// While it lives this thread waits for nothing: other threads of the process, which run while one waits, see the step as
/// a whole, and may not come upon its locks.
pub(crate) struct Unbroken(());

impl Unbroken {
    #[inline]
    pub fn begin() -> Unbroken {
        let (depth, owed) = UNBROKEN.get();
        UNBROKEN.set((depth + 1, owed && depth > 0));
        Unbroken(())
    }

    /// The step is done, and its locks are free: what was put off is waited for.
    #[inline]
    pub fn end(self, session: impl FnOnce() -> Result<Arc<Session>>) -> Result<()> {
        drop(self);
        match UNBROKEN.get() {
            (0, true) => session()?.catch_up(),
            _ => Ok(()),
        }
    }

    /// True if a wait that is due has to be put off.
    pub fn puts_off() -> bool {
        let (depth, _) = UNBROKEN.get();
        if depth > 0 {
            UNBROKEN.set((depth, true));
        }
        depth > 0
    }
}

impl Drop for Unbroken {
    #[inline]
    fn drop(&mut self) {
        let (depth, owed) = UNBROKEN.get();
        UNBROKEN.set((depth - 1, owed));
    }
}

/// The message of the error that stands for an interrupt; the Python layer raises what Python has pending instead.
pub const INTERRUPTED: &str = "interrupted";
