//! Whether operations are recorded for differentiation; a setting of each thread.

use std::cell::Cell;

thread_local! {
    static ENABLED: Cell<bool> = const { Cell::new(true) };
    static INFERENCE: Cell<bool> = const { Cell::new(false) };
}

/// True if operations on this thread are recorded for differentiation.
#[inline]
pub fn grad_enabled() -> bool {
    ENABLED.get()
}

/// Sets the mode and returns the former one.
pub fn set_grad_enabled(on: bool) -> bool {
    ENABLED.replace(on)
}

/// True inside `inference_mode`.
pub fn inference_mode() -> bool {
    INFERENCE.get()
}

/// Sets a mode until dropped.
pub struct GradMode {
    enabled: bool,
    inference: bool,
}

impl GradMode {
    /// Switches recording on or off.
    pub fn set(on: bool) -> GradMode {
        GradMode { enabled: ENABLED.replace(on), inference: INFERENCE.get() }
    }

    /// Switches recording off and marks tensors made here as unfit for autograd.
    pub fn inference(on: bool) -> GradMode {
        GradMode { enabled: ENABLED.replace(!on), inference: INFERENCE.replace(on) }
    }
}

impl Drop for GradMode {
    fn drop(&mut self) {
        ENABLED.set(self.enabled);
        INFERENCE.set(self.inference);
    }
}
