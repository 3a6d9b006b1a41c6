//! The one map from GT's errors to Python's exceptions.

use gt_client::wait::INTERRUPTED;
use gt_ir::Error;
use pyo3::PyTypeInfo;
use pyo3::exceptions::{
    PyConnectionError, PyIndexError, PyMemoryError, PyRuntimeError, PyTypeError, PyValueError,
};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};
use std::cell::RefCell;

/// What the functions of this crate give.
pub type Result<T, E = Fault> = std::result::Result<T, E>;

/// An error of GT or of Python, on its way to Python.
pub enum Fault {
    Gt(Error),
    Py(PyErr),
}

impl From<Error> for Fault {
    fn from(e: Error) -> Fault {
        Fault::Gt(e)
    }
}

impl From<PyErr> for Fault {
    fn from(e: PyErr) -> Fault {
        Fault::Py(e)
    }
}

impl From<pyo3::CastError<'_, '_>> for Fault {
    fn from(e: pyo3::CastError) -> Fault {
        Fault::Py(e.into())
    }
}

impl From<Fault> for PyErr {
    fn from(fault: Fault) -> PyErr {
        match fault {
            Fault::Py(e) => e,
            Fault::Gt(e) => to_python(e),
        }
    }
}

thread_local! {
    /// A Python exception that travels through Rust code as `INTERRUPTED`.
    static PENDING: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Lets a Python exception travel through code that knows only GT's errors.
pub fn carry(e: PyErr) -> Error {
    PENDING.set(Some(e));
    Error::Runtime(INTERRUPTED.into())
}

fn to_python(error: Error) -> PyErr {
    match error {
        Error::Type(m) => PyTypeError::new_err(m),
        Error::Value(m) => PyValueError::new_err(m),
        Error::Index(m) => Python::attach(|py| match out_of_bounds(py) {
            Ok(class) => PyErr::from_type(class.clone(), m),
            Err(_) => PyIndexError::new_err(m),
        }),
        Error::Runtime(m) if m == INTERRUPTED => PENDING.take().unwrap_or_else(|| PyRuntimeError::new_err(m)),
        Error::Runtime(m) => PyRuntimeError::new_err(m),
        Error::Memory(m) => Python::attach(|py| match out_of_memory(py) {
            Ok(class) => PyErr::from_type(class.clone(), m),
            Err(_) => PyMemoryError::new_err(m),
        }),
        Error::Connection(m) => PyConnectionError::new_err(m),
    }
}

/// `gt.OutOfMemoryError`: a `RuntimeError`, as in PyTorch, and a `MemoryError`.
pub fn out_of_memory(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let doc = "A worker has not enough memory for a program; tensors are as they were before it.";
    both(py, &CLASS, "OutOfMemoryError", PyMemoryError::type_object(py), doc)
}

/// `gt.OutOfBoundsError`: an `IndexError` and a `RuntimeError`, since PyTorch raises now one, now the other.
pub fn out_of_bounds(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let doc = "An index or a dimension that a tensor does not have.";
    both(py, &CLASS, "OutOfBoundsError", PyIndexError::type_object(py), doc)
}

/// A class of exceptions that are a `RuntimeError` and something else.
fn both<'py>(
    py: Python<'py>,
    class: &'static PyOnceLock<Py<PyType>>,
    name: &str,
    other: Bound<'py, PyType>,
    doc: &str,
) -> PyResult<&'py Bound<'py, PyType>> {
    let class = class.get_or_try_init(py, || {
        let body = PyDict::new(py);
        body.set_item("__module__", "gt")?;
        body.set_item("__doc__", doc)?;
        let bases = (other, PyRuntimeError::type_object(py));
        let class = py.get_type::<PyType>().call1((name, bases, body))?;
        Ok::<_, PyErr>(class.cast_into::<PyType>()?.unbind())
    })?;
    Ok(class.bind(py))
}

/// A `TypeError`.
pub fn type_error<T>(message: impl Into<String>) -> Result<T> {
    Err(Fault::Gt(Error::Type(message.into())))
}

/// A `ValueError`.
pub fn value_error<T>(message: impl Into<String>) -> Result<T> {
    Err(Fault::Gt(Error::Value(message.into())))
}

/// A `RuntimeError`.
pub fn runtime_error<T>(message: impl Into<String>) -> Result<T> {
    Err(Fault::Gt(Error::Runtime(message.into())))
}
