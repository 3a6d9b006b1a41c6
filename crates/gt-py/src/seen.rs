//! What a session sees of itself: profiles, explanations, live tensors.

use crate::errors::{Result, value_error};
use gt_cli::see::explain;
use gt_cli::see::profile::{Profile, table};
use gt_client::current;
use gt_net::observe::Detail;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

/// A profile that was taken.
#[pyclass(frozen, name = "_Profile", module = "gt._gt")]
pub struct PyProfile(Profile);

#[pymethods]
impl PyProfile {
    /// Rows as dictionaries, from the most time down, and the sums.
    fn rows<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyList>, Bound<'py, PyDict>)> {
        let (rows, totals) = self.0.rows();
        let out = PyList::empty(py);
        for row in rows {
            let item = PyDict::new(py);
            item.set_item("name", row.name)?;
            item.set_item("family", row.family)?;
            item.set_item("calls", row.calls)?;
            item.set_item("seconds", row.seconds)?;
            item.set_item("line", row.line)?;
            out.append(item)?;
        }
        let sums = PyDict::new(py);
        sums.set_item("programs", totals.programs)?;
        sums.set_item("device_seconds", totals.busy)?;
        sums.set_item("queue_seconds", totals.waited)?;
        sums.set_item("plan_seconds", totals.planning)?;
        sums.set_item("bytes_in", totals.bytes_in)?;
        sums.set_item("bytes_out", totals.bytes_out)?;
        sums.set_item("seconds", totals.length)?;
        Ok((out, sums))
    }

    /// The rows as text.
    fn table(&self, limit: usize) -> String {
        let (rows, totals) = self.0.rows();
        table(&rows, &totals, limit)
    }

    /// The trace for Perfetto and Chrome.
    fn json(&self) -> String {
        self.0.json()
    }

    /// The trace in the instruction log's form.
    fn log(&self) -> String {
        self.0.log()
    }
}

/// Begins to trace this session: "programs" or "kernels"; "" ends it.
#[pyfunction]
pub fn _watch(detail: &str) -> Result<()> {
    let detail = match detail {
        "" => Detail::Nothing,
        "programs" => Detail::Programs,
        "kernels" => Detail::Kernels,
        other => return value_error(format!("_watch: expected '', 'programs' or 'kernels', got '{other}'")),
    };
    Ok(current::current_session()?.trace(detail)?)
}

/// What was traced so far, when all that was recorded is done.
#[pyfunction]
pub fn _take_profile() -> Result<PyProfile> {
    let session = current::current_session()?;
    let lines = session.take_trace()?;
    Ok(PyProfile(Profile::new(lines, session.program_lines())))
}

/// What the last step did, and why.
#[pyfunction]
pub fn _explain() -> Result<String> {
    Ok(explain::session(&current::current_session()?.account()?))
}

/// Live tensors of the session: (number, type, bytes, workers, source line or None).
#[pyfunction]
#[allow(clippy::type_complexity)]
pub fn _living() -> Result<Vec<(u64, String, u64, Vec<String>, Option<String>)>> {
    let living = current::current_session()?.living()?;
    Ok(living.into_iter().map(|t| (t.id, t.ty.to_string(), t.bytes, t.workers, t.line)).collect())
}
