//! Differentiation from Python: modes, gradients, hooks, and functions with a backward pass of their own.

use crate::device::Device;
use crate::errors::{Fault, Result, carry, runtime_error, type_error};
use crate::tensor::{PyTensor, tensors};
use gt_client::autograd::{CustomBackward, Edge, GradSlot, Hook, Node, NodeArg, NodeKind, Var};
use gt_client::ops::arith;
use gt_client::value::Value;
use gt_client::{Tensor, autograd};
use gt_ir::{Error, Operand, Ty};
use gt_sync::Mutex;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use smallvec::SmallVec;
use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// True if operations on this thread are recorded for differentiation.
#[pyfunction]
pub fn is_grad_enabled() -> bool {
    autograd::grad_enabled()
}

/// Sets the thread's mode and returns the former one.
#[pyfunction]
pub fn _set_grad_enabled(on: bool) -> bool {
    autograd::set_grad_enabled(on)
}

/// True inside `inference_mode`.
#[pyfunction]
pub fn is_inference_mode_enabled() -> bool {
    autograd::inference_mode()
}

/// Inference mode until closed.
#[pyclass(name = "_InferenceGuard", frozen)]
pub struct InferenceGuard(Mutex<Option<autograd::GradMode>>);

#[pymethods]
impl InferenceGuard {
    #[new]
    fn new(mode: bool) -> InferenceGuard {
        InferenceGuard(Mutex::new(Some(autograd::GradMode::inference(mode))))
    }

    fn close(&self) {
        drop(self.0.lock().take());
    }
}

/// Gradients given beside `n` roots: none, one, or a sequence.
fn seeds(obj: Option<&Bound<PyAny>>, n: usize) -> Result<Vec<Option<Tensor>>> {
    let Some(obj) = obj.filter(|o| !o.is_none()) else { return Ok(vec![None; n]) };
    if let Ok(t) = obj.cast::<PyTensor>() {
        return Ok(vec![Some(t.get().t.clone())]);
    }
    let mut out = Vec::new();
    for x in obj.try_iter()? {
        let x = x?;
        out.push(match x.cast::<PyTensor>() {
            Ok(t) => Some(t.get().t.clone()),
            Err(_) if x.is_none() => None,
            Err(_) => return type_error("gradients can be either Tensors or None"),
        });
    }
    if out.len() != n {
        return runtime_error(format!("got {n} tensors and {} gradients", out.len()));
    }
    Ok(out)
}

/// Gradients of the tensors into `.grad` of the leaves they were made from.
#[pyfunction]
#[pyo3(signature = (tensors, grad_tensors = None, retain_graph = None, create_graph = false, inputs = None))]
pub fn backward(
    tensors: &Bound<PyAny>,
    grad_tensors: Option<&Bound<PyAny>>,
    retain_graph: Option<bool>,
    create_graph: bool,
    inputs: Option<&Bound<PyAny>>,
) -> Result<()> {
    let roots = crate::tensor::tensors(tensors)?;
    let grads = seeds(grad_tensors, roots.len())?;
    crate::tensor::backward(&roots, grads, retain_graph, create_graph, inputs)
}

/// The gradients of `outputs` for each of `inputs`.
#[pyfunction]
#[pyo3(signature = (
    outputs, inputs, grad_outputs = None, retain_graph = None, create_graph = false, allow_unused = None,
    is_grads_batched = false, materialize_grads = false
))]
pub fn grad<'py>(
    py: Python<'py>,
    outputs: &Bound<'py, PyAny>,
    inputs: &Bound<'py, PyAny>,
    grad_outputs: Option<&Bound<'py, PyAny>>,
    retain_graph: Option<bool>,
    create_graph: bool,
    allow_unused: Option<bool>,
    is_grads_batched: bool,
    materialize_grads: bool,
) -> Result<Bound<'py, PyTuple>> {
    if is_grads_batched {
        return runtime_error("grad: is_grads_batched is not supported: call grad once per gradient");
    }
    let roots = tensors(outputs)?;
    let wanted = tensors(inputs)?;
    let seeds = seeds(grad_outputs, roots.len())?;
    let retain = retain_graph.unwrap_or(create_graph);
    let unused = allow_unused.unwrap_or(materialize_grads) || materialize_grads;
    let found = autograd::grad(&roots, &wanted, seeds, retain, create_graph, unused)?;
    let mut out = Vec::with_capacity(found.len());
    for (g, input) in found.into_iter().zip(&wanted) {
        let g = match g {
            None if materialize_grads => {
                Some(gt_client::ops::create::full(input.shape().clone(), 0.0, input.dtype())?)
            }
            g => g,
        };
        out.push(g.map(PyTensor::new));
    }
    Ok(PyTuple::new(py, out)?)
}

/// A step of the autograd graph, seen from Python.
#[pyclass(name = "Node", module = "gt.autograd", frozen)]
pub struct PyNode(pub Arc<Node>);

#[pymethods]
impl PyNode {
    fn name(&self) -> String {
        self.0.name()
    }

    fn __repr__(&self) -> String {
        format!("<{} object at {:p}>", self.0.name(), Arc::as_ptr(&self.0))
    }

    /// Later nodes have larger numbers.
    #[getter]
    fn seq(&self) -> u64 {
        self.0.seq
    }

    fn __eq__(&self, other: &PyNode) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn __hash__(&self) -> usize {
        Arc::as_ptr(&self.0) as usize >> 4
    }

    /// The nodes this one passes gradients to, each with the number of the result.
    #[getter]
    fn next_functions<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let next: Vec<(Option<PyNode>, u32)> = self
            .0
            .args
            .lock()
            .iter()
            .filter_map(|arg| match arg {
                NodeArg::Val { edge: Some(e), .. } => Some((Some(PyNode(e.node.clone())), e.nr)),
                NodeArg::Val { edge: None, .. } => Some((None, 0)),
                NodeArg::Num(_) => None,
            })
            .collect();
        PyTuple::new(py, next)
    }
}

/// A Python object held from Rust, where the garbage collector sees it through the tensor that keeps it alive (C12).
/// Empty once the collector has cleared it.
pub struct Object(Mutex<Option<Py<PyAny>>>);

impl Object {
    fn new(object: Py<PyAny>) -> Object {
        Object(Mutex::new(Some(object)))
    }

    fn get(&self, py: Python) -> Option<Py<PyAny>> {
        self.0.lock().as_ref().map(|object| object.clone_ref(py))
    }

    /// Takes the object out.
    pub fn take(&self) -> Option<Py<PyAny>> {
        self.0.lock().take()
    }

    /// Shows the object to the collector, unless it is in use just now.
    pub fn visit(&self, visit: &PyVisit) -> Result<(), PyTraverseError> {
        match self.0.try_lock() {
            Some(object) => visit.call(&*object),
            None => Ok(()),
        }
    }
}

/// A Python callable as a hook of the engine, and what it holds.
pub fn python_hook(hook: Py<PyAny>, device: Device) -> (Hook, Arc<Object>) {
    let held = Arc::new(Object::new(hook));
    let object = held.clone();
    let call = Arc::new(move |g: &Tensor| {
        Python::attach(|py| {
            let Some(hook) = object.get(py) else { return Ok(None) };
            let given = PyTensor::on(g.clone(), device);
            let result = hook.bind(py).call1((given,)).map_err(carry)?;
            if result.is_none() {
                return Ok(None);
            }
            match result.cast::<PyTensor>() {
                Ok(t) if t.get().t.ty() == g.ty() => Ok(Some(t.get().t.clone())),
                Ok(t) => {
                    let (given, what) = (t.get().t.ty(), hook.bind(py).getattr("__name__"));
                    let what = what.map_or("hook".into(), |name| name.to_string());
                    let changed = if given.shape == g.ty().shape { "type" } else { "size" };
                    Err(Error::Runtime(format!(
                        "hook '{what}' has changed the {changed} of value (was {} got {given})",
                        g.ty()
                    )))
                }
                Err(_) => Err(Error::Type("hook: expected a Tensor or None to be returned".into())),
            }
        })
    });
    (call, held)
}

enum Hooked {
    Node(Weak<Node>),
    Slot(Weak<GradSlot>),
}

/// A registered hook, until `remove()` is called.
#[pyclass(name = "RemovableHandle", module = "gt.autograd", frozen)]
pub struct HookHandle {
    at: Hooked,
    #[pyo3(get)]
    id: u64,
}

static POST_HOOKS: AtomicU64 = AtomicU64::new(1);

impl HookHandle {
    pub fn of_node(node: &Arc<Node>, id: u64) -> HookHandle {
        HookHandle { at: Hooked::Node(Arc::downgrade(node)), id }
    }

    pub fn after_accumulation(t: &Tensor, device: Device, hook: Py<PyAny>) -> HookHandle {
        let slot = t.grad_slot();
        let id = POST_HOOKS.fetch_add(1, Ordering::Relaxed);
        // The slot is the tensor's: it must not keep the tensor alive.
        let (t, held) = (t.downgrade(), Arc::new(Object::new(hook)));
        let object = held.clone();
        let call = move || {
            let Some(t) = t.upgrade() else { return Ok(()) };
            Python::attach(|py| match object.get(py) {
                Some(hook) => hook.bind(py).call1((PyTensor::on(t, device),)).map(drop).map_err(carry),
                None => Ok(()),
            })
        };
        slot.post_hooks.lock().push((id, Arc::new(call), Some(held)));
        HookHandle { at: Hooked::Slot(Arc::downgrade(&slot)), id }
    }
}

#[pymethods]
impl HookHandle {
    fn remove(&self) {
        match &self.at {
            Hooked::Node(node) => {
                if let Some(node) = node.upgrade() {
                    node.remove_hook(self.id);
                }
            }
            Hooked::Slot(slot) => {
                if let Some(slot) = slot.upgrade() {
                    let mut hooks = slot.post_hooks.lock();
                    let removed = hooks.iter().position(|(id, ..)| *id == self.id).map(|i| hooks.remove(i));
                    drop(hooks);
                    drop(removed);
                }
            }
        }
    }

    fn __enter__(slf: Bound<Self>) -> Bound<Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, _error: &Bound<PyTuple>) {
        self.remove();
    }
}

/// The backward pass of one call of a `gt.autograd.Function`.
struct PythonBackward {
    name: String,
    /// Calls `backward` with the gradients, one per output.
    call: Object,
    outputs: Vec<Ty>,
    materialize: bool,
    /// For each argument of `apply`: is it a tensor, and with which type.
    inputs: Vec<Option<Ty>>,
}

impl CustomBackward for PythonBackward {
    fn backward(&self, grads: Vec<Option<Tensor>>) -> gt_ir::Result<Vec<Option<Tensor>>> {
        Python::attach(|py| {
            let call = self.call.get(py);
            let Some(call) = call else {
                return Err(Error::Runtime("backward: this function's saved values have been freed".into()));
            };
            let mut given: Vec<Option<PyTensor>> = Vec::new();
            for (g, ty) in grads.into_iter().zip(&self.outputs) {
                let g = match g {
                    None if self.materialize => {
                        Some(gt_client::ops::create::full(ty.shape.clone(), 0.0, ty.dtype)?)
                    }
                    g => g,
                };
                given.push(g.map(PyTensor::new));
            }
            let args = PyTuple::new(py, given).map_err(carry)?;
            let result = call.bind(py).call1(args).map_err(carry)?;
            self.take(&result).map_err(|fault| match fault {
                Fault::Gt(e) => e,
                Fault::Py(e) => carry(e),
            })
        })
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn held(&self) -> Option<&(dyn Any + Send + Sync)> {
        Some(&self.call)
    }

    fn release(&self) {
        Python::attach(|py| {
            if let Some(call) = self.call.get(py) {
                // Tells the context that what it saved is gone.
                let _ = call.bind(py).getattr("_release").and_then(|f| f.call0());
            }
        });
    }
}

impl PythonBackward {
    /// The gradients of the tensor arguments from what `backward` returned.
    fn take(&self, result: &Bound<PyAny>) -> Result<Vec<Option<Tensor>>> {
        let given: Vec<Bound<PyAny>> = if let Ok(t) = result.cast::<PyTuple>() {
            t.iter().collect()
        } else if let Ok(l) = result.cast::<PyList>() {
            l.iter().collect()
        } else {
            vec![result.clone()]
        };
        let extra = given.iter().skip(self.inputs.len()).any(|g| !g.is_none());
        if given.len() < self.inputs.len() || extra {
            return runtime_error(format!(
                "function {} returned an incorrect number of gradients (expected {}, got {})",
                self.name,
                self.inputs.len(),
                given.len()
            ));
        }
        let mut out = Vec::new();
        for (i, (g, ty)) in given.iter().zip(&self.inputs).enumerate() {
            let g = match g.cast::<PyTensor>() {
                Ok(g) => Some(g.get().t.clone()),
                Err(_) if g.is_none() => None,
                Err(_) => {
                    return type_error(format!(
                        "function {}: expected a Tensor or None as gradient {i}, got {}",
                        self.name,
                        g.get_type().name()?
                    ));
                }
            };
            match (ty, g) {
                (None, Some(_)) => {
                    return runtime_error(format!(
                        "function {} returned a gradient different from None at position {i}, but the corresponding \
                         forward input was not a Tensor",
                        self.name
                    ));
                }
                (None, None) => {}
                (Some(ty), Some(g)) if g.shape() != &ty.shape => {
                    return runtime_error(format!(
                        "function {} returned an invalid gradient at index {i} - got {} but expected shape compatible \
                         with {}",
                        self.name,
                        g.shape(),
                        ty.shape
                    ));
                }
                (Some(ty), Some(g)) => out.push(Some(arith::cast(&g, ty.dtype)?)),
                (Some(_), None) => out.push(None),
            }
        }
        Ok(out)
    }
}

/// Joins the outputs of a `Function` with the graph: (outputs with history, how to read them again later).
#[pyfunction]
#[pyo3(signature = (call, name, args, outputs, plain, dirty, materialize))]
pub fn _custom_node<'py>(
    py: Python<'py>,
    call: Py<PyAny>,
    name: String,
    args: &Bound<'py, PyTuple>,
    outputs: Vec<Bound<'py, PyTensor>>,
    plain: Vec<bool>,
    dirty: Vec<bool>,
    materialize: bool,
) -> Result<(Bound<'py, PyList>, SavedOutputs)> {
    let mut node_args: SmallVec<[NodeArg; 2]> = SmallVec::new();
    let mut inputs = Vec::new();
    for arg in args.iter() {
        match arg.cast::<PyTensor>() {
            Ok(t) => {
                let t = &t.get().t;
                node_args.push(NodeArg::Val { ty: t.ty().clone(), edge: t.edge(), saved: None });
                inputs.push(Some(t.ty().clone()));
            }
            Err(_) => inputs.push(None),
        }
    }
    let types: Vec<Ty> = outputs.iter().map(|o| o.get().t.ty().clone()).collect();
    let backward =
        PythonBackward { name, call: Object::new(call), outputs: types.clone(), materialize, inputs };
    let Some(first) = types.first().cloned() else {
        return runtime_error("a Function must return at least one Tensor");
    };
    let node = Node::new(NodeKind::Custom(Box::new(backward), types), node_args, first);
    let results = PyList::empty(py);
    let mut values = Vec::new();
    for (i, out) in outputs.iter().enumerate() {
        let me = out.get();
        let value = me.t.var()?.value;
        values.push(value.clone());
        if plain[i] || !me.t.dtype().is_float() {
            results.append(me.wrap(me.t.detach()))?;
            continue;
        }
        let edge = Some(Edge { node: node.clone(), nr: i as u32 });
        let var = Var { value, edge, owner: None };
        if dirty[i] {
            let _mode = autograd::GradMode::set(true);
            me.t.write(Operand::Val(var))?;
            results.append(out)?;
        } else {
            results.append(me.wrap(Tensor::from_var(var)))?;
        }
    }
    Ok((results, SavedOutputs { node: Arc::downgrade(&node), values }))
}

/// Switches the search for NaN in backward passes, and whether it looks; gives what was set before.
#[pyfunction]
pub fn _set_anomaly(on: bool, look: bool) -> (bool, bool) {
    autograd::set_anomaly(on, look)
}

/// The outputs of a `Function`, for a backward pass that reads them. Does not keep the graph alive.
#[pyclass(frozen)]
pub struct SavedOutputs {
    node: Weak<Node>,
    values: Vec<Value>,
}

#[pymethods]
impl SavedOutputs {
    fn get(&self, i: usize) -> Option<PyTensor> {
        let value = self.values.get(i)?.clone();
        let edge = self.node.upgrade().map(|node| Edge { node, nr: i as u32 });
        Some(PyTensor::new(Tensor::from_var(Var { value, edge, owner: None })))
    }
}
