//! Reads the interpreter's frames where they lie.
//!
//! Asking Python for a frame makes an object of it, and its place in the code is another: for a line per recorded op that
//! costs as much as the op. The interpreter itself keeps a chain of plain structs, one per call, each with its code and
//! the instruction it is at. Their layout differs between versions, so it is found out at start by comparing it with
//! frames asked for in the usual way; where it is not found beyond doubt, that way stays the only one.

use pyo3::prelude::*;
use pyo3::{ffi, intern};

/// Words of a frame's struct that are looked at: in all versions it is longer.
const WORDS: usize = 9;
/// Words of the thread's state that are looked at.
const STATE_WORDS: usize = 16;
/// The word of a frame object that points to the frame's struct.
const STRUCT: usize = 3;
/// The word of the thread's state that points to a struct with the current frame, where that has no word of its own.
const VIA: usize = 7;
/// More bytes of code than this lie between a code object and one of its instructions in no function.
const MAX_CODE: usize = 1 << 24;

/// One word of memory behind a pointer.
///
/// # Safety
/// `at` points to at least `i + 1` words.
unsafe fn word(at: usize, i: usize) -> usize {
    // SAFETY: the caller's.
    unsafe { *(at as *const usize).add(i) }
}

/// Where the interpreter keeps what, in words.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    state: State,
    code: usize,
    instr: usize,
    previous: usize,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// The thread's state points to the frame.
    Direct(usize),
    /// It points to a struct that does.
    Via(usize),
}

/// A call that is under way.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    at: usize,
    layout: Layout,
}

impl Frame {
    /// The innermost one of this thread.
    pub fn current(_: Python, layout: Layout) -> Option<Frame> {
        // SAFETY: attached to the interpreter, so there is a thread state, and its layout was found out.
        let at = unsafe {
            let state = ffi::PyThreadState_Get() as usize;
            match layout.state {
                State::Direct(i) => word(state, i),
                State::Via(i) => word(word(state, VIA), i),
            }
        };
        (at != 0).then_some(Frame { at, layout })
    }

    /// The address of its code object, and of the instruction it is at.
    pub fn spot(&self) -> (usize, usize) {
        // SAFETY: a frame of the chain, whose layout was found out; it stays while this thread is inside the call.
        unsafe { (word(self.at, self.layout.code), word(self.at, self.layout.instr)) }
    }

    /// The call it was called from.
    pub fn previous(&self) -> Option<Frame> {
        // SAFETY: as for `spot`.
        let at = unsafe { word(self.at, self.layout.previous) };
        (at != 0).then_some(Frame { at, layout: self.layout })
    }
}

/// A frame as Python gives it: its struct, its code and the offset of its instruction.
fn asked(frame: &Bound<PyAny>) -> PyResult<(usize, usize, usize)> {
    let code = frame.getattr(intern!(frame.py(), "f_code"))?.as_ptr() as usize;
    let at: usize = frame.getattr(intern!(frame.py(), "f_lasti"))?.extract()?;
    // SAFETY: a frame object of a version whose objects begin like this.
    let inside = unsafe { word(frame.as_ptr() as usize, STRUCT) };
    Ok((inside, code, at))
}

/// The only index below `n` for which `fits` holds.
fn only(n: usize, fits: impl Fn(usize) -> bool) -> Option<usize> {
    let mut found = (0..n).filter(|&i| fits(i));
    let first = found.next()?;
    found.next().is_none().then_some(first)
}

/// Finds the layout out, from the function that is being executed and the one it was called from, both Python's.
pub fn find_layout(py: Python) -> Option<Layout> {
    let version = py.version_info();
    if !((3, 11)..=(3, 13)).contains(&(version.major, version.minor)) {
        return None;
    }
    // SAFETY: attached to the interpreter; gives a borrowed reference or null.
    let inner = unsafe { Bound::from_borrowed_ptr_or_opt(py, ffi::PyEval_GetFrame().cast())? };
    let outer = inner.getattr(intern!(py, "f_back")).ok().filter(|f| !f.is_none())?;
    let ((inner, code, at), (outer, outer_code, outer_at)) = (asked(&inner).ok()?, asked(&outer).ok()?);
    // SAFETY: both are structs of frames under way, which have that many words and more.
    let (a, b) = unsafe {
        let words = |at: usize| -> [usize; WORDS] { std::array::from_fn(|i| word(at, i)) };
        (words(inner), words(outer))
    };
    let first = |from: usize, code: usize, at: usize| from.wrapping_sub(code).wrapping_sub(at);
    let starts = |i: usize| (first(a[i], code, at), first(b[i], outer_code, outer_at));
    let layout = Layout {
        state: find_state(py, inner)?,
        code: only(WORDS, |i| a[i] == code && b[i] == outer_code)?,
        previous: only(WORDS, |i| a[i] == outer)?,
        instr: only(WORDS, |i| {
            let (one, other) = starts(i);
            one == other && one > 0 && one < MAX_CODE
        })?,
    };
    Some(layout)
}

/// Where the thread's state says which frame is the current one.
fn find_state(py: Python, current: usize) -> Option<State> {
    // SAFETY: attached to the interpreter; its thread states have that many words and more.
    let words: [usize; STATE_WORDS] = unsafe {
        let state = ffi::PyThreadState_Get() as usize;
        std::array::from_fn(|i| word(state, i))
    };
    if let Some(i) = only(STATE_WORDS, |i| words[i] == current) {
        return Some(State::Direct(i));
    }
    if py.version_info().minor > 12 {
        return None;
    }
    // SAFETY: in these versions the word points to a struct of at least two words, which holds the current frame.
    only(2, |i| unsafe { word(words[VIA], i) } == current).map(State::Via)
}
