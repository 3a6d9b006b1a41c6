//! Signals: configurations, contexts, and tensors laid out by name.

use crate::errors::{Result, type_error};
use crate::tensor::PyTensor;
use gt_client::signal::node::{Kind, Node, called};
use gt_client::signal::{self, registry};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyInt, PyList, PyString, PyTuple};
use std::path::PathBuf;

/// Enters the context of a signal on this thread.
#[pyfunction]
#[pyo3(signature = (name, backward = None))]
pub fn _signal_enter(name: &str, backward: Option<&str>) -> Result<()> {
    Ok(signal::enter(name, backward)?)
}

/// Leaves the innermost context of this thread, which must have this name if one is given.
#[pyfunction]
#[pyo3(signature = (name = None))]
pub fn _signal_exit(name: Option<&str>) -> Result<()> {
    Ok(signal::exit(name)?)
}

/// The name of the innermost context of this thread.
#[pyfunction]
pub fn _signal_name() -> Option<String> {
    signal::current_name()
}

/// The tensor, lying as a signal says.
#[pyfunction]
pub fn _signal_tensor(tensor: &PyTensor, name: &str) -> Result<PyTensor> {
    Ok(PyTensor::new(signal::lay_out(&tensor.t, name)?))
}

/// Lays out a parameter in place as the patterns of a signal say, or without a name as the signal itself says.
#[pyfunction]
#[pyo3(signature = (tensor, signal, parameter = None))]
pub fn _signal_apply(tensor: &PyTensor, signal: &str, parameter: Option<&str>) -> Result<bool> {
    Ok(signal::apply(&tensor.t, signal, parameter)?)
}

/// The parameters of a module are laid out: what makes them is a program of its own.
#[pyfunction]
pub fn _signal_laid_out(name: &str) -> Result<()> {
    Ok(signal::laid_out(name)?)
}

/// Reads a configuration; gives the names of its signals.
#[pyfunction]
pub fn _signal_load(path: PathBuf) -> Result<Vec<String>> {
    Ok(registry::load(&path)?)
}

/// Adds one signal, given as a file would.
#[pyfunction]
pub fn _signal_register(name: &str, config: &Bound<PyAny>) -> Result<()> {
    let node = called("register_config", kind(config)?);
    Ok(registry::register(name, node)?)
}

/// Forgets all signals.
#[pyfunction]
pub fn _signal_clear() {
    registry::clear();
}

/// Every signal as it was written, by name.
#[pyfunction]
pub fn _signal_all(py: Python) -> Result<Bound<PyDict>> {
    let all = PyDict::new(py);
    for (name, node) in registry::all()? {
        all.set_item(name, object(py, &node)?)?;
    }
    Ok(all)
}

/// What a signal says of modules: None if nothing, else (has rules for parameters, patterns of modules with their
/// signals, (stages, the module they split, where that is written)).
#[pyfunction]
pub fn _signal_patterns(name: &str) -> Result<Option<Patterns>> {
    let found = registry::find(name)?.filter(|s| s.has_patterns());
    Ok(found.map(|s| {
        let stages = s.stages.map(|stages| (stages.count, stages.split, stages.place.to_string()));
        (!s.rules.is_empty(), s.modules, stages)
    }))
}

type Patterns = (bool, Vec<(String, String)>, Option<(u32, Option<String>, String)>);

/// True if a name fits a pattern.
#[pyfunction]
pub fn _signal_fits(pattern: &str, name: &str) -> bool {
    signal::fits(pattern, name)
}

/// The signal of the stage that the `index`-th of `count` layers belongs to.
#[pyfunction]
pub fn _signal_stage(name: &str, index: usize, count: usize) -> Result<Option<String>> {
    Ok(signal::stage_of(name, index, count)?)
}

/// Looks whether the configuration was edited.
#[pyfunction]
pub fn _signal_poll() -> Result<()> {
    Ok(signal::poll()?)
}

/// Counts changes of the configuration.
#[pyfunction]
pub fn _signal_version() -> u64 {
    registry::version()
}

fn kind(obj: &Bound<PyAny>) -> Result<Kind> {
    if obj.is_none() {
        return Ok(Kind::Null);
    }
    if let Ok(x) = obj.cast::<PyBool>() {
        return Ok(Kind::Bool(x.is_true()));
    }
    if obj.is_instance_of::<PyInt>() {
        return Ok(Kind::Int(obj.extract()?));
    }
    if let Ok(x) = obj.cast::<PyString>() {
        return Ok(Kind::Text(x.to_string()));
    }
    if let Ok(x) = obj.cast::<PyDict>() {
        let mut entries = Vec::new();
        for (key, value) in x.iter() {
            entries.push((key.extract::<String>()?, called("register_config", kind(&value)?)));
        }
        return Ok(Kind::Map(entries));
    }
    if obj.is_instance_of::<PyList>() || obj.is_instance_of::<PyTuple>() || obj.hasattr("__iter__")? {
        let mut items = Vec::new();
        for item in obj.try_iter()? {
            items.push(called("register_config", kind(&item?)?));
        }
        return Ok(Kind::List(items));
    }
    // Whole numbers of other types, as NumPy's. Arrays have an `__index__`, too.
    if obj.hasattr("__index__")? {
        return Ok(Kind::Int(obj.extract()?));
    }
    type_error(format!("register_config: {} cannot be part of a configuration", obj.get_type().name()?))
}

fn object<'py>(py: Python<'py>, node: &Node) -> Result<Bound<'py, PyAny>> {
    Ok(match &node.kind {
        Kind::Null => py.None().into_bound(py),
        Kind::Bool(x) => PyBool::new(py, *x).to_owned().into_any(),
        Kind::Int(x) => x.into_pyobject(py).map_err(PyErr::from)?.into_any(),
        Kind::Text(x) => PyString::new(py, x).into_any(),
        Kind::List(items) => {
            let list = PyList::empty(py);
            for item in items {
                list.append(object(py, item)?)?;
            }
            list.into_any()
        }
        Kind::Map(entries) => {
            let dict = PyDict::new(py);
            for (key, value) in entries {
                dict.set_item(key, object(py, value)?)?;
            }
            dict.into_any()
        }
    })
}
