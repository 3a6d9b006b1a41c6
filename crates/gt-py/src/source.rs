//! Finds the user's line: the innermost Python frame outside the package.

use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::{ffi, intern};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{LazyLock, OnceLock};

/// No more code objects than this are told apart; code made at run time without end must not fill the memory.
const MAX_CODES: usize = 1 << 16;

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
}

struct Code {
    /// Kept so that its address stays its own.
    object: Py<PyAny>,
    inside: bool,
}

static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
/// The folder of the package.
static HOME: OnceLock<String> = OnceLock::new();

/// Tells apart the package's own frames by their files.
pub fn install(home: String) {
    if HOME.set(home).is_ok() {
        gt_client::source::install(locate, file_name);
    }
}

/// The file (by its code object's address) and line being executed. Needs the GIL, which recording has.
fn locate() -> Option<Place> {
    Python::try_attach(find).flatten()
}

fn find(py: Python) -> Option<Place> {
    // SAFETY: attached to the interpreter; gives a borrowed reference or null.
    let mut frame = unsafe { Bound::from_borrowed_ptr_or_opt(py, ffi::PyEval_GetFrame().cast())? };
    let mut known = KNOWN.lock();
    for _ in 0..64 {
        match known.place(&frame) {
            Ok(Some(place)) => return Some(place),
            Ok(None) => {}
            Err(_) => return None,
        }
        frame = frame.getattr(intern!(py, "f_back")).ok().filter(|f| !f.is_none())?;
    }
    None
}

impl Known {
    /// The place of a frame, or none if it belongs to the package.
    fn place(&mut self, frame: &Bound<PyAny>) -> PyResult<Option<Place>> {
        let py = frame.py();
        // SAFETY: `frame` is a frame object.
        let code: Bound<PyAny> = unsafe {
            let code = ffi::PyFrame_GetCode(frame.as_ptr().cast());
            Bound::from_owned_ptr(py, code.cast())
        };
        let key = code.as_ptr() as usize;
        let at: i32 = frame.getattr(intern!(py, "f_lasti"))?.extract()?;
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
    code.getattr(intern!(code.py(), "co_filename")).map(|f| f.to_string()).unwrap_or_default()
}

/// True for files of the package itself.
fn is_inside(file: &str) -> bool {
    file.starts_with("<frozen") || HOME.get().is_some_and(|home| file.starts_with(home.as_str()))
}

/// The file of a code object found by `locate`.
fn file_name(key: usize) -> String {
    Python::attach(|py| KNOWN.lock().codes.get(&key).map(|c| file(c.object.bind(py))).unwrap_or_default())
}
