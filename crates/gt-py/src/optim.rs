//! Optimizer steps. What is kept per parameter lies in the dictionaries that a user sees as `optimizer.state`.

use crate::errors::{Result, type_error};
use crate::tensor::{PyTensor, tensors};
use gt_client::Tensor;
use gt_client::ops::optim::{self, Adam, AdamState, Sgd};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};

/// Forgets the gradients of parameters.
#[pyfunction]
pub fn _zero_grad(params: &Bound<PyList>) -> Result<()> {
    for p in params.iter() {
        match p.cast::<PyTensor>() {
            Ok(p) => p.get().t.clear_grad(),
            Err(_) => p.setattr(intern!(p.py(), "grad"), p.py().None())?,
        }
    }
    Ok(())
}

/// What is kept for a parameter, if there is something.
fn kept<'py>(state: &Bound<'py, PyDict>, p: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyDict>>> {
    match state.get_item(p)? {
        Some(entry) if entry.is_truthy()? => Ok(Some(entry.cast_into()?)),
        _ => Ok(None),
    }
}

/// A tensor that is kept under a name, if there is one.
fn tensor(entry: &Bound<PyDict>, name: &Bound<PyString>) -> Result<Option<Tensor>> {
    match entry.get_item(name)? {
        Some(x) if !x.is_none() => match x.cast::<PyTensor>() {
            Ok(t) => Ok(Some(t.get().t.clone())),
            Err(_) => {
                type_error(format!("optimizer: expected a Tensor as {name}, got {}", x.get_type().name()?))
            }
        },
        _ => Ok(None),
    }
}

/// A tensor that must be there.
fn needed(entry: &Bound<PyDict>, name: &Bound<PyString>) -> Result<Tensor> {
    match tensor(entry, name)? {
        Some(t) => Ok(t),
        None => Err(pyo3::exceptions::PyKeyError::new_err(name.clone().unbind()).into()),
    }
}

/// One step of SGD for all parameters. `state` holds the momentum of each, filled on the first step.
#[pyfunction]
pub fn _sgd_step(
    params: &Bound<PyList>,
    state: &Bound<PyDict>,
    lr: f64,
    momentum: f64,
    dampening: f64,
    weight_decay: f64,
    nesterov: bool,
    maximize: bool,
) -> Result<()> {
    let name = intern!(params.py(), "momentum_buffer");
    let list = tensors(params)?;
    let grads: Vec<Option<Tensor>> = list.iter().map(Tensor::grad).collect();
    let mut buffers: Vec<Option<Tensor>> = vec![None; list.len()];
    if momentum != 0.0 {
        for (p, buffer) in params.iter().zip(&mut buffers) {
            if let Some(entry) = kept(state, &p)? {
                *buffer = tensor(&entry, name)?;
            }
        }
    }
    let had: Vec<bool> = buffers.iter().map(Option::is_some).collect();
    let o = Sgd { lr, momentum, dampening, weight_decay, nesterov, maximize };
    optim::sgd_step(&list, &grads, &mut buffers, &o)?;
    for ((p, buffer), had) in params.iter().zip(buffers).zip(had) {
        if let (Some(t), false) = (buffer, had) {
            entry_of(state, &p)?.set_item(name, PyTensor::new(t))?;
        }
    }
    Ok(())
}

/// What is kept for a parameter, made if there is nothing yet.
fn entry_of<'py>(state: &Bound<'py, PyDict>, p: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
    if let Some(entry) = state.get_item(p)? {
        return Ok(entry.cast_into()?);
    }
    let entry = PyDict::new(state.py());
    state.set_item(p, &entry)?;
    Ok(entry)
}

/// One step of Adam or AdamW for all parameters. `state` is filled on the first step.
#[pyfunction]
pub fn _adam_step(
    params: &Bound<PyList>,
    state: &Bound<PyDict>,
    lr: f64,
    betas: (f64, f64),
    eps: f64,
    weight_decay: f64,
    decoupled: bool,
    amsgrad: bool,
    maximize: bool,
) -> Result<()> {
    let py = params.py();
    let (step, mean, square, largest) = (
        intern!(py, "step"),
        intern!(py, "exp_avg"),
        intern!(py, "exp_avg_sq"),
        intern!(py, "max_exp_avg_sq"),
    );
    let list = tensors(params)?;
    let grads: Vec<Option<Tensor>> = list.iter().map(Tensor::grad).collect();
    let mut entries: Vec<Option<Bound<PyDict>>> = Vec::with_capacity(list.len());
    let mut states: Vec<Option<AdamState>> = Vec::with_capacity(list.len());
    for (p, g) in params.iter().zip(&grads) {
        let entry = if g.is_some() { kept(state, &p)? } else { None };
        states.push(match &entry {
            Some(e) => Some(AdamState {
                step: steps(e, step)?,
                mean: needed(e, mean)?,
                square: needed(e, square)?,
                largest: tensor(e, largest)?,
            }),
            None => None,
        });
        entries.push(entry);
    }
    let o = Adam { lr, betas, eps, weight_decay, decoupled, amsgrad, maximize };
    optim::adam_step(&list, &grads, &mut states, &o)?;
    for ((p, entry), new) in params.iter().zip(entries).zip(states) {
        let Some(new) = new else { continue };
        if let Some(entry) = entry {
            entry.set_item(step, new.step)?;
            continue;
        }
        let entry = entry_of(state, &p)?;
        entry.set_item(step, new.step)?;
        entry.set_item(mean, PyTensor::new(new.mean))?;
        entry.set_item(square, PyTensor::new(new.square))?;
        if let Some(t) = new.largest {
            entry.set_item(largest, PyTensor::new(t))?;
        }
    }
    Ok(())
}

/// How many steps a parameter has taken: a number, which may be a tensor in a state that comes from elsewhere.
fn steps(entry: &Bound<PyDict>, name: &Bound<PyString>) -> Result<u64> {
    match entry.get_item(name)? {
        Some(n) => match n.extract::<u64>() {
            Ok(n) => Ok(n),
            Err(_) => Ok(n.call_method0(intern!(n.py(), "__int__"))?.extract()?),
        },
        None => Err(pyo3::exceptions::PyKeyError::new_err(name.clone().unbind()).into()),
    }
}
