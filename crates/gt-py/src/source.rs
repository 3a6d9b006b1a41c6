//! Finds the user's line: the innermost Python frame outside the package.

use crate::frames::{Frame, Layout, find_layout};
use foldhash::fast::FixedState;
use gt_sync::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyString;
use pyo3::{ffi, intern};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{LazyLock, OnceLock};

/// No more code objects than this are told apart; code made at run time without end must not fill the memory.
const MAX_CODES: usize = 1 << 16;

/// Nor more instructions than this.
const MAX_SPOTS: usize = 1 << 20;
/// Frames of the package that may lie between the user's and the operation.
const MAX_DEPTH: usize = 64;

/// An instruction of a code object.
type Spot = (usize, i32);
/// A code object's address, and a line.
type Place = (usize, u32);

#[derive(Default)]
struct Known {
    codes: HashMap<usize, Code>,
    lines: HashMap<Spot, u32>,
    /// The place asked for last, which most often is asked for again.
    last: Option<(Spot, Option<Place>)>,
    /// What code objects and instructions by their addresses say: a place, or none for the package's own.
    spots: HashMap<(usize, usize), Option<Place>, FixedState>,
}

struct Code {
    /// Kept so that its address stays its own.
    object: Py<PyAny>,
    inside: bool,
}

static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
/// The folder of the package.
static HOME: OnceLock<String> = OnceLock::new();
/// How frames are read where they lie, and the address of the type of code objects; none where that is not known.
static LAYOUT: OnceLock<Option<(Layout, usize)>> = OnceLock::new();

/// Tells apart the package's own frames by their files. Called from a function of Python, which a function of Python
/// called.
pub fn install(py: Python, home: String) {
    let code_type = || Some(py.eval(c"(lambda: 0).__code__", None, None).ok()?.get_type().as_ptr() as usize);
    LAYOUT.get_or_init(|| find_layout(py).zip(code_type()));
    f_lasti(py);
    co_filename(py);
    if HOME.set(home).is_ok() {
        gt_client::source::install(locate, file_name);
    }
}

// Names of what is read while `KNOWN` is locked. Making one may let other threads run, which would then wait for the lock
// with the GIL, so `install` makes them.
fn f_lasti(py: Python<'_>) -> &Bound<'_, PyString> {
    intern!(py, "f_lasti")
}

fn co_filename(py: Python<'_>) -> &Bound<'_, PyString> {
    intern!(py, "co_filename")
}

/// The file (by its code object's address) and line being executed. Needs the GIL, which recording has.
fn locate() -> Option<Place> {
    Python::try_attach(find).flatten()
}

fn find(py: Python) -> Option<Place> {
    let Some((layout, code_type)) = LAYOUT.get().copied().flatten() else { return ask(py) };
    let mut known = KNOWN.lock();
    let mut frame = Frame::current(py, layout)?;
    for _ in 0..MAX_DEPTH {
        let spot = frame.spot();
        match known.spots.get(&spot) {
            Some(Some(place)) => return Some(*place),
            Some(None) => {}
            None => {
                if !known.is_own(py, spot, code_type) {
                    drop(known);
                    return learn(py, spot);
                }
            }
        }
        frame = frame.previous()?;
    }
    None
}

/// The place of the innermost frame outside the package, which is at `spot`.
#[cold]
fn learn(py: Python, spot: (usize, usize)) -> Option<Place> {
    let place = ask(py).filter(|place| place.0 == spot.0)?;
    let mut known = KNOWN.lock();
    // Addresses stay what they are as long as the code objects are kept.
    if known.codes.contains_key(&spot.0) && known.spots.len() < MAX_SPOTS {
        known.spots.insert(spot, Some(place));
    }
    Some(place)
}

/// The same by asking Python for its frames.
fn ask(py: Python) -> Option<Place> {
    // SAFETY: attached to the interpreter; gives a borrowed reference or null.
    let mut frame = unsafe { Bound::from_borrowed_ptr_or_opt(py, ffi::PyEval_GetFrame().cast())? };
    for _ in 0..MAX_DEPTH {
        // Making the object of the next frame may collect garbage, and run other threads: nothing is locked then.
        let place = KNOWN.lock().place(&frame);
        match place {
            Ok(Some(place)) => return Some(place),
            Ok(None) => {}
            Err(_) => return None,
        }
        frame = frame.getattr(intern!(py, "f_back")).ok().filter(|f| !f.is_none())?;
    }
    None
}

impl Known {
    /// True if the code object at this spot, which was not seen before, belongs to the package; that is remembered.
    #[cold]
    fn is_own(&mut self, py: Python, spot: (usize, usize), code_type: usize) -> bool {
        // SAFETY: what a frame executes is an object, which the frame keeps alive.
        let code = unsafe { Bound::<PyAny>::from_borrowed_ptr(py, spot.0 as *mut ffi::PyObject) };
        // Between calls from C there are frames of the interpreter's own, with or without code.
        if code.get_type().as_ptr() as usize != code_type {
            return true;
        }
        let own = if let Some(code) = self.codes.get(&spot.0) {
            code.inside
        } else if self.codes.len() >= MAX_CODES {
            false
        } else {
            let inside = is_inside(&file(&code));
            self.codes.insert(spot.0, Code { object: code.unbind(), inside });
            inside
        };
        if own && self.spots.len() < MAX_SPOTS {
            self.spots.insert(spot, None);
        }
        own
    }

    /// The place of a frame, or none if it belongs to the package.
    fn place(&mut self, frame: &Bound<PyAny>) -> PyResult<Option<Place>> {
        let py = frame.py();
        // SAFETY: `frame` is a frame object.
        let code: Bound<PyAny> = unsafe {
            let code = ffi::PyFrame_GetCode(frame.as_ptr().cast());
            Bound::from_owned_ptr(py, code.cast())
        };
        let key = code.as_ptr() as usize;
        let at: i32 = frame.getattr(f_lasti(py))?.extract()?;
        if let Some((seen, place)) = self.last
            && seen == (key, at)
        {
            return Ok(place);
        }
        let full = self.codes.len() >= MAX_CODES;
        let inside = match self.codes.entry(key) {
            Entry::Occupied(e) => e.get().inside,
            Entry::Vacant(_) if full => return Ok(None),
            Entry::Vacant(e) => {
                let inside = is_inside(&file(&code));
                e.insert(Code { object: code.unbind(), inside }).inside
            }
        };
        let place = if inside {
            None
        } else {
            let line = *self.lines.entry((key, at)).or_insert_with(|| {
                // SAFETY: `frame` is a frame object.
                unsafe { ffi::PyFrame_GetLineNumber(frame.as_ptr().cast()) as u32 }
            });
            Some((key, line))
        };
        self.last = Some(((key, at), place));
        Ok(place)
    }
}

fn file(code: &Bound<PyAny>) -> String {
    code.getattr(co_filename(code.py())).map(|f| f.to_string()).unwrap_or_default()
}

/// True for files of the package itself.
fn is_inside(file: &str) -> bool {
    file.starts_with("<frozen")
        || file.starts_with("<shim")
        || HOME.get().is_some_and(|home| file.starts_with(home.as_str()))
}

/// The file of a code object found by `locate`.
fn file_name(key: usize) -> String {
    Python::attach(|py| KNOWN.lock().codes.get(&key).map(|c| file(c.object.bind(py))).unwrap_or_default())
}
