//! The library opened on one device.

use super::api::{Raw, api};
use super::graph::{Plan, execute};
use cudarc::driver::sys;
use gt_ir::Result;
use gt_sync::Mutex;

/// The library on the device whose context was current when it was opened. One call at a time.
pub struct Handle(Mutex<Opened>);

struct Opened(Raw);

// SAFETY: the handle belongs to no thread; a lock keeps calls apart.
unsafe impl Send for Opened {}

impl Handle {
    /// Opens the library on the device of the current context.
    pub fn open() -> Result<Handle> {
        let api = api()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: gives a handle, or an error.
        api.check("open", unsafe { (api.create)(&mut raw) })?;
        Ok(Handle(Mutex::new(Opened(raw))))
    }

    /// Does something with the handle that runs nothing.
    pub fn with<T>(&self, act: impl FnOnce(Raw) -> T) -> T {
        act(self.0.lock().0)
    }

    /// Puts a plan on a stream, or into the graph being captured there.
    ///
    /// # Safety
    /// As for `graph::execute`.
    pub unsafe fn run(
        &self,
        plan: &Plan,
        ids: &[i64],
        pointers: &[Raw],
        workspace: u64,
        stream: sys::CUstream,
    ) -> Result<()> {
        let api = api()?;
        let handle = self.0.lock();
        // SAFETY: the stream is one of the handle's device.
        api.check("stream", unsafe { (api.set_stream)(handle.0, stream.cast()) })?;
        // SAFETY: the caller's.
        unsafe { execute(handle.0, plan, ids, pointers, workspace) }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Ok(api) = api() {
            // SAFETY: made in `open`, destroyed once.
            if let Err(error) = api.check("close", unsafe { (api.destroy)(self.0.lock().0) }) {
                gt_ir::say!("gt worker: {error}");
            }
        }
    }
}
