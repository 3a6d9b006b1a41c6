//! The end of the process. The CUDA libraries take themselves down in `exit`, while threads of ours may still be inside
//! them: compiling, queueing, waiting for the device. That ends in a crash after all was well, so the process goes before.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

unsafe extern "C" {
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// Ends the process with what has been printed and its own status.
extern "C" fn leave(status: c_int, _: *mut c_void) {
    // SAFETY: both are made for this moment; with null all streams are flushed.
    unsafe {
        libc::fflush(std::ptr::null_mut());
        libc::_exit(status);
    }
}

/// A library of CUDA's is there, or is being loaded.
static LOADED: AtomicBool = AtomicBool::new(false);

/// To be called when a library has been loaded: what is registered last runs first, before that library's own clean-up.
pub fn before_libraries() {
    LOADED.store(true, Ordering::Relaxed);
    // SAFETY: the function stays as long as the process.
    let refused = unsafe { on_exit(leave, std::ptr::null_mut()) };
    // With no room for it the process ends as it would have without.
    let _ = refused;
}

/// To be called where the process is about to end. A library that a thread is loading right now has registered its own
/// clean-up after ours.
pub fn now() {
    if LOADED.load(Ordering::Relaxed) {
        before_libraries();
    }
}
