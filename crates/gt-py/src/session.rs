//! Sessions: connecting, waiting, counters, the end of the process.

use crate::errors::{Result, runtime_error, value_error};
use crate::random::PyGenerator;
use crate::start;
use crate::wait::SLICE;
use gt_client::wait::INTERRUPTED;
use gt_client::{Session, current};
use gt_ir::Error;
use gt_net::msg::Tidy;
use gt_sync::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;

/// Every open session of this process: each lives until it is closed, so that its tensors do.
static SESSIONS: Mutex<Vec<Arc<Session>>> = Mutex::new(Vec::new());

/// Keeps a session until it is closed or the process ends.
pub fn remember(session: &Arc<Session>) {
    let mut sessions = SESSIONS.lock();
    sessions.retain(|s| !s.is_closed());
    sessions.push(session.clone());
}

/// Starts the session of a process that never connected.
pub fn start_default() -> gt_ir::Result<Arc<Session>> {
    let session = start::start_default()?;
    remember(&session);
    Ok(session)
}

/// A connection to a dispatcher. As a context, operations inside go to it.
#[pyclass(name = "Session", module = "gt", frozen)]
pub struct PySession(pub Arc<Session>);

#[pymethods]
impl PySession {
    fn __enter__(slf: Bound<Self>) -> Bound<Self> {
        current::enter(slf.get().0.clone());
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, _error: &Bound<PyTuple>) {
        current::leave();
    }

    fn __repr__(&self) -> String {
        let state = if self.0.is_closed() { "closed" } else { "open" };
        format!("<gt.Session with {}, {state}>", self.0.peer())
    }

    /// The dispatcher in words: `in-process`, `localhost:12345`.
    #[getter]
    fn peer(&self) -> String {
        self.0.peer()
    }

    #[getter]
    fn closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Runs all that is recorded and waits until it is done.
    fn synchronize(&self) -> Result<()> {
        Ok(self.0.synchronize()?)
    }

    /// Restarts the random numbers.
    fn manual_seed(&self, seed: i64) {
        self.0.seed(seed as u64);
    }

    /// Runs what is recorded, and ends the session.
    fn close(&self) -> Result<()> {
        let result = self.0.finish();
        if current::get_default().is_none_or(|d| Arc::ptr_eq(&d, &self.0)) {
            current::set_default(None);
        }
        Ok(result?)
    }

    fn stats<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>> {
        stats(py, &self.0)
    }
}

/// Connects to a server; the session becomes the default of the process. Tensors of the former default stay usable.
#[pyfunction]
#[pyo3(signature = (address, token = None))]
pub fn connect(py: Python, address: &str, token: Option<String>) -> Result<PySession> {
    let known = current::get_default().filter(|s| !s.is_lost() && start::is_peer(&s.peer(), address));
    if let Some(session) = known {
        return runtime_error(format!(
            "connect: already connected to {}: go on using it, call gt.disconnect() first, or open a second session \
             beside it with `with gt.open_session(address):`",
            session.peer()
        ));
    }
    let session = open(py, address, token)?;
    current::set_default(Some(session.0.clone()));
    Ok(session)
}

/// Opens a further session, for use as a context, without making it the default.
#[pyfunction]
#[pyo3(signature = (address, token = None))]
pub fn open_session(py: Python, address: &str, token: Option<String>) -> Result<PySession> {
    open(py, address, token)
}

fn open(py: Python, address: &str, token: Option<String>) -> Result<PySession> {
    let address = address.to_string();
    // On a thread of its own, so that Ctrl-C ends the wait for a server that does not answer.
    let (send, answer) = std::sync::mpsc::channel();
    let answer = Mutex::new(answer);
    std::thread::spawn(move || send.send(start::connect(&address, token)));
    loop {
        match py.detach(|| answer.lock().recv_timeout(SLICE)) {
            Ok(session) => {
                let session = session?;
                remember(&session);
                return Ok(PySession(session));
            }
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => return runtime_error("connect: the attempt broke off"),
        }
    }
}

/// Runs what is recorded, and ends the default session.
#[pyfunction]
pub fn disconnect() -> Result<()> {
    match current::set_default(None) {
        Some(session) => Ok(session.finish()?),
        None => Ok(()),
    }
}

/// The session operations go to now, started if need be.
#[pyfunction]
pub fn current_session() -> Result<PySession> {
    Ok(PySession(current::current_session()?))
}

/// Runs everything recorded on every thread and waits until it is done.
#[pyfunction]
pub fn synchronize() -> Result<()> {
    Ok(current::current_session()?.synchronize()?)
}

/// Restarts the random numbers: the same seed and program give the same tensors.
#[pyfunction]
pub fn manual_seed(seed: i64) -> Result<PyGenerator> {
    current::current_session()?.seed(seed as u64);
    Ok(PyGenerator::of_session())
}

/// The state of the random numbers, for `set_rng_state`.
#[pyfunction]
pub fn get_rng_state() -> Result<(u64, u64)> {
    let g = current::current_session()?.generator();
    Ok((g.key, g.offset))
}

/// Puts back a state taken by `get_rng_state`.
#[pyfunction]
pub fn set_rng_state(state: (u64, u64)) -> Result<()> {
    let (key, offset) = state;
    current::current_session()?.set_generator(gt_client::session::Generator { key, offset });
    Ok(())
}

/// Makes this process a data-loader worker: it makes host tensors, and starts nothing.
#[pyfunction]
pub fn _set_host_only() {
    start::set_host_only();
}

/// True in a data-loader worker.
#[pyfunction]
pub fn _is_host_only() -> bool {
    start::is_host_only()
}

/// Workers inside one process at most: each has threads of its own.
pub const MAX_WORKERS: usize = 1024;

/// Sets the number of workers inside this process, before or after it has started.
#[pyfunction]
pub fn gpu_workers(n: i64) -> Result<()> {
    match usize::try_from(n).ok().filter(|n| (1..=MAX_WORKERS).contains(n)) {
        Some(n) => Ok(start::set_workers(n)?),
        None => value_error(format!("gpu_workers: expected 1 to {MAX_WORKERS}, got {n}")),
    }
}

/// Counters of the session and its workers.
#[pyfunction]
pub fn _stats(py: Python) -> Result<Bound<PyDict>> {
    stats(py, &current::current_session()?)
}

fn stats<'py>(py: Python<'py>, session: &Arc<Session>) -> Result<Bound<'py, PyDict>> {
    let s = session.stats()?;
    let out = PyDict::new(py);
    out.set_item("messages", s.messages)?;
    out.set_item("programs", s.programs)?;
    out.set_item("instructions", s.instructions)?;
    out.set_item("moves", s.moves)?;
    out.set_item("moved_bytes", s.moved_bytes)?;
    out.set_item("sessions", s.sessions)?;
    let workers = pyo3::types::PyList::empty(py);
    for w in s.workers {
        let row = PyDict::new(py);
        row.set_item("name", w.name)?;
        row.set_item("backend", w.backend)?;
        row.set_item("device", w.device)?;
        row.set_item("threads", w.threads)?;
        row.set_item("memory", w.memory)?;
        row.set_item("queued", w.queued)?;
        row.set_item("programs", w.programs)?;
        row.set_item("instructions", w.instructions)?;
        row.set_item("plan_hits", w.plan_hits)?;
        row.set_item("plan_misses", w.plan_misses)?;
        row.set_item("resized", w.resized)?;
        row.set_item("improved", w.improved)?;
        row.set_item(
            "miss_reasons",
            w.miss_reasons.into_iter().collect::<std::collections::BTreeMap<_, _>>(),
        )?;
        row.set_item("plans", w.plans)?;
        row.set_item("plans_made", w.planned.0)?;
        row.set_item("planned_instructions", w.planned.1)?;
        row.set_item("begun_early", w.begun_early)?;
        row.set_item("graphs", w.graphs)?;
        row.set_item("checks", w.checks)?;
        row.set_item("plan_seconds", w.plan_seconds)?;
        row.set_item("resize_seconds", w.resize_seconds)?;
        row.set_item("hot_instructions", w.sequences.hot_instructions)?;
        row.set_item("unique_sequences", w.sequences.unique)?;
        row.set_item("hot_sequences", w.sequences.hot)?;
        row.set_item("busy_seconds", w.busy_seconds)?;
        row.set_item("bytes_in_use", w.bytes_in_use)?;
        row.set_item("bytes_peak", w.bytes_peak)?;
        row.set_item("ops", w.ops.into_iter().collect::<std::collections::BTreeMap<_, _>>())?;
        workers.append(row)?;
    }
    out.set_item("workers", workers)?;
    Ok(out)
}

/// Counts the most memory in use on every worker anew.
#[pyfunction]
pub fn _reset_peak() -> Result<()> {
    Ok(current::current_session()?.tidy(Tidy::ResetPeak)?)
}

/// Has every worker give back memory that is kept for speed alone.
#[pyfunction]
pub fn _shrink() -> Result<()> {
    Ok(current::current_session()?.tidy(Tidy::Shrink)?)
}

/// What this thread has recorded and not sent yet, line by line.
#[pyfunction]
pub fn _tape() -> Result<Vec<String>> {
    Ok(current::current()?.1.tape())
}

/// Saves what this thread has recorded and not sent yet, with its inputs.
#[pyfunction]
pub fn _save_program(path: std::path::PathBuf) -> Result<()> {
    let (session, stream) = current::current()?;
    let (program, inputs) = session.snapshot(&stream)?;
    Ok(gt_cli::replay::save(&path, &program, &inputs)?)
}

/// The program `gt`: runs it with the given arguments and gives its exit status.
#[pyfunction]
pub fn main(py: Python, args: Vec<String>) -> i32 {
    py.detach(|| gt_cli::main(args))
}

/// Ends every session; gives what failed unseen. Without waiting, what is still running is given up.
#[pyfunction]
pub fn _finish(wait: bool) -> Result<Vec<String>> {
    let sessions: Vec<_> = SESSIONS.lock().drain(..).collect();
    let mut failures = Vec::new();
    for session in sessions {
        if !wait {
            session.close();
        } else if let Err(error) = session.finish() {
            match error {
                Error::Runtime(m) if m == INTERRUPTED => return Err(Error::Runtime(m).into()),
                error => failures.push(error.to_string()),
            }
        }
    }
    gt_cli::local::leaving();
    Ok(failures)
}

/// Has the process end badly where its program would end well: a failure was told after its last line.
#[pyfunction]
pub fn _end_badly() {
    type Ended = extern "C" fn(libc::c_int, *mut libc::c_void);
    unsafe extern "C" {
        fn on_exit(call: Ended, argument: *mut libc::c_void) -> libc::c_int;
    }
    extern "C" fn ended(status: libc::c_int, _: *mut libc::c_void) {
        if status == 0 {
            // SAFETY: what was written is flushed before the process ends, and nothing runs after that.
            unsafe {
                libc::fflush(std::ptr::null_mut());
                libc::_exit(1)
            }
        }
    }
    // SAFETY: `ended` lives as long as the process and uses no argument.
    unsafe { on_exit(ended, std::ptr::null_mut()) };
}
