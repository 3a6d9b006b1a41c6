//! The autograd side of a tensor.

use super::PyTensor;
use crate::autograd::{HookHandle, Object, PyNode, python_hook};
use crate::errors::{Result, runtime_error, type_error};
use gt_client::{Tensor, autograd};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

#[pymethods]
impl PyTensor {
    /// Shows the garbage collector what hooks hold that only this tensor keeps alive: often the tensor itself.
    fn __traverse__(&self, visit: PyVisit) -> std::result::Result<(), PyTraverseError> {
        let mut seen = Ok(());
        self.t.see_held(&mut |held| {
            if let (true, Some(object)) = (seen.is_ok(), held.downcast_ref::<Object>()) {
                seen = object.visit(&visit);
            }
        });
        seen
    }

    fn __clear__(&self) {
        let mut dropped = Vec::new();
        self.t.see_held(&mut |held| dropped.extend(held.downcast_ref::<Object>().and_then(Object::take)));
        drop(dropped);
    }

    #[getter]
    fn requires_grad(&self) -> bool {
        self.t.requires_grad()
    }

    #[setter]
    fn set_requires_grad(&self, on: bool) -> Result<()> {
        Ok(self.t.set_requires_grad(on)?)
    }

    /// Starts or stops asking for gradients of a leaf.
    #[pyo3(signature = (requires_grad = true))]
    fn requires_grad_<'py>(slf: Bound<'py, Self>, requires_grad: bool) -> Result<Bound<'py, Self>> {
        slf.get().t.set_requires_grad(requires_grad)?;
        Ok(slf)
    }

    #[getter]
    fn is_leaf(&self) -> bool {
        self.t.is_leaf()
    }

    #[getter]
    fn grad_fn(&self) -> Option<PyNode> {
        self.t.edge().filter(|_| !self.t.is_leaf()).map(|e| PyNode(e.node))
    }

    #[getter]
    fn _version(&self) -> u32 {
        self.t.version()
    }

    /// The accumulated gradient.
    #[getter]
    fn grad(&self) -> Option<PyTensor> {
        self.t.grad().map(|g| self.wrap(g))
    }

    #[setter]
    fn set_grad(&self, grad: Option<&PyTensor>) -> Result<()> {
        Ok(self.t.set_grad(grad.map(|g| g.t.clone()))?)
    }

    #[deleter]
    fn delete_grad(&self) -> Result<()> {
        Ok(self.t.set_grad(None)?)
    }

    /// The same storage without gradient history; autograd does not count writes through it.
    #[getter]
    fn data(&self) -> PyTensor {
        self.wrap(self.t.data())
    }

    #[setter]
    fn set_data(&self, value: &PyTensor) -> Result<()> {
        if value.t.ty() == self.t.ty() && value.device() == self.device() {
            return Ok(self.t.data().assign(value.t.var()?.value)?);
        }
        if !self.t.is_leaf() {
            return runtime_error(format!(
                "data: expected {}, got {}: only a tensor that no operation made can change its type and shape",
                self.t.ty(),
                value.t.ty()
            ));
        }
        let new = value.t.detach();
        new.set_requires_grad(self.t.requires_grad())?;
        self.t.exchange(new, value.device())
    }

    /// Stands for another tensor from now on: `t_`, `unsqueeze_` and their kin.
    fn _become<'py>(slf: Bound<'py, Self>, other: &PyTensor) -> Result<Bound<'py, Self>> {
        let me = slf.get();
        if me.t.requires_grad() && me.t.is_leaf() {
            return runtime_error(
                "a leaf Variable that requires grad is being used in an in-place operation: use it under gt.no_grad() \
                 on .data, or the function without _",
            );
        }
        me.t.exchange(other.t.clone(), other.device())?;
        Ok(slf)
    }

    /// The same storage without gradient history.
    fn detach(&self) -> PyTensor {
        self.wrap(self.t.detach())
    }

    /// Forgets the gradient history.
    fn detach_(slf: Bound<Self>) -> Result<Bound<Self>> {
        let t = &slf.get().t;
        if t.is_leaf() {
            t.set_requires_grad(false)?;
        } else if t.is_view() {
            return runtime_error("detach_: can't detach views in place: use .detach() instead");
        } else {
            t.forget_history();
        }
        Ok(slf)
    }

    /// Keeps the gradient of a tensor that is not a leaf in `.grad`.
    fn retain_grad(&self) -> Result<()> {
        Ok(self.t.retain_grad()?)
    }

    #[getter]
    fn retains_grad(&self) -> bool {
        self.t.retains_grad()
    }

    /// Calls `hook(grad)` in each backward pass; a tensor it returns replaces the gradient.
    fn register_hook(&self, hook: Py<PyAny>) -> Result<HookHandle> {
        let (call, held) = python_hook(hook, self.device());
        let (node, id) = self.t.register_holding_hook(call, Some(held))?;
        Ok(HookHandle::of_node(&node, id))
    }

    /// Calls `hook(tensor)` after each accumulation into `.grad` of this leaf.
    fn register_post_accumulate_grad_hook(slf: &Bound<Self>, hook: Py<PyAny>) -> Result<HookHandle> {
        let t = &slf.get().t;
        if !t.requires_grad() || !t.is_leaf() {
            return runtime_error("post accumulate grad hooks cannot be registered on non-leaf tensors");
        }
        Ok(HookHandle::after_accumulation(t, slf.get().device(), hook))
    }

    /// Gradients of this tensor into `.grad` of the leaves it was made from.
    #[pyo3(signature = (gradient = None, retain_graph = None, create_graph = false, inputs = None))]
    fn backward(
        &self,
        gradient: Option<&PyTensor>,
        retain_graph: Option<bool>,
        create_graph: bool,
        inputs: Option<&Bound<PyAny>>,
    ) -> Result<()> {
        let roots = [self.t.clone()];
        let grads = vec![gradient.map(|g| g.t.clone())];
        backward(&roots, grads, retain_graph, create_graph, inputs)
    }
}

/// Tensors given as one tensor or a sequence of them.
pub fn tensors(obj: &Bound<PyAny>) -> Result<Vec<Tensor>> {
    if let Ok(t) = obj.cast::<PyTensor>() {
        return Ok(vec![t.get().t.clone()]);
    }
    let mut out = Vec::new();
    for x in obj.try_iter()? {
        let x = x?;
        match x.cast::<PyTensor>() {
            Ok(t) => out.push(t.get().t.clone()),
            Err(_) => return type_error(format!("expected Tensors, got {}", x.get_type().name()?)),
        }
    }
    Ok(out)
}

/// The backward pass, into all leaves or some inputs.
pub fn backward(
    roots: &[Tensor],
    grads: Vec<Option<Tensor>>,
    retain_graph: Option<bool>,
    create_graph: bool,
    inputs: Option<&Bound<PyAny>>,
) -> Result<()> {
    let retain = retain_graph.unwrap_or(create_graph);
    let Some(inputs) = inputs else {
        return Ok(autograd::backward(roots, grads, retain, create_graph)?);
    };
    let inputs = tensors(inputs)?;
    if inputs.is_empty() {
        return runtime_error("backward: inputs cannot be empty");
    }
    let found = autograd::grad(roots, &inputs, grads, retain, create_graph, true)?;
    for (input, g) in inputs.iter().zip(found) {
        let Some(g) = g else { continue };
        let sum = match input.grad() {
            None => g,
            Some(old) => gt_client::ops::arith::binary(
                gt_ir::Binary::Add,
                &gt_ir::Operand::Val(old),
                &gt_ir::Operand::Val(g),
            )?,
        };
        input.set_grad(Some(sum))?;
    }
    Ok(())
}
