//! What a tensor is, and looking at its elements.

use super::PyTensor;
use crate::array;
use crate::convert::{shape, to_python, varargs};
use crate::data;
use crate::device::{Device, PyDevice};
use crate::dtype::{DTypeArg, PyDType, dtype_object};
use crate::errors::{Result, runtime_error, type_error, value_error};
use crate::print::{self, OPTIONS};
use gt_client::Tensor;
use gt_client::autograd::GradMode;
use gt_client::default;
use gt_client::ops::moves;
use gt_ir::{DType, HostTensor, Scalar, View, norm_dim};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyInt, PyString, PyTuple, PyType};
use pyo3::{IntoPyObjectExt, intern};

/// A shape as `gt.Size`.
pub fn size<'py>(py: Python<'py>, dims: &[usize]) -> PyResult<Bound<'py, PyAny>> {
    size_class(py)?.call1((PyTuple::new(py, dims)?,))
}

fn size_class(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static SIZE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    SIZE.import(py, "gt._size", "Size")
}

/// The only element, for Python's `float` and `int`.
fn lone(t: &Tensor) -> Result<Scalar> {
    match t.numel() {
        1 => item(t),
        n => value_error(format!(
            "only one element tensors can be converted to Python scalars, got {n}: index it first, or use .tolist()"
        )),
    }
}

/// The only element; waits for it.
fn item(t: &Tensor) -> Result<Scalar> {
    Ok(t.item()?)
}

#[pymethods]
impl PyTensor {
    /// Numbers, nested lists, an array, or a tensor to share storage with.
    /// Several numbers, or `gt.Size`, are the sizes of a tensor of zeros.
    #[new]
    #[pyo3(signature = (*data))]
    fn py_new(data: &Bound<PyTuple>) -> Result<PyTensor> {
        let py = data.py();
        let first = data.get_item(0).ok();
        let sized = |x: &Bound<PyAny>| -> Result<bool> {
            Ok(x.is_exact_instance_of::<PyInt>() || x.get_type().is(size_class(py)?))
        };
        let Some(data) = first.filter(|_| data.len() == 1).filter(|x| !sized(x).unwrap_or(false)) else {
            let sizes = if data.is_empty() { [0].into_iter().collect() } else { varargs(data)? };
            return Ok(PyTensor::new(gt_client::ops::create::full(
                shape("Tensor", &sizes)?,
                0.0,
                default::float(),
            )?));
        };
        let data = &data;
        match data.cast::<PyTensor>() {
            Ok(t) => Ok(t.get().wrap(t.get().t.detach())),
            Err(_) => Ok(PyTensor::new(data::tensor(data, Some(default::float()), false)?)),
        }
    }

    /// Sizes, outermost dimension first.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        size(py, self.t.shape())
    }

    /// Sizes, or the size of one dimension.
    #[pyo3(signature = (dim = None))]
    fn size<'py>(&self, py: Python<'py>, dim: Option<i64>) -> Result<Bound<'py, PyAny>> {
        match dim {
            None => Ok(size(py, self.t.shape())?),
            Some(dim) => {
                let d = norm_dim("size", dim, self.t.ndim())?;
                match self.t.shape().get(d) {
                    Some(n) => Ok(n.into_bound_py_any(py)?),
                    None => Err(gt_ir::Error::Index("size: a 0-d tensor has no dimensions".into()).into()),
                }
            }
        }
    }

    #[getter]
    fn dtype(&self, py: Python) -> PyResult<Py<PyDType>> {
        dtype_object(py, self.t.dtype())
    }

    /// The device the tensor was given; it says nothing of where the tensor lies.
    #[getter(device)]
    fn py_device(&self) -> PyDevice {
        PyDevice(self.device())
    }

    #[getter]
    fn ndim(&self) -> usize {
        self.t.ndim()
    }

    fn dim(&self) -> usize {
        self.t.ndim()
    }

    fn ndimension(&self) -> usize {
        self.t.ndim()
    }

    fn numel(&self) -> usize {
        self.t.numel()
    }

    fn nelement(&self) -> usize {
        self.t.numel()
    }

    /// Bytes per element.
    fn element_size(&self) -> usize {
        self.t.dtype().size()
    }

    #[getter]
    fn itemsize(&self) -> usize {
        self.t.dtype().size()
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.t.ty().bytes()
    }

    /// Steps in elements from one index to the next, for all dimensions or one.
    #[pyo3(signature = (dim = None))]
    fn stride<'py>(&self, py: Python<'py>, dim: Option<i64>) -> Result<Bound<'py, PyAny>> {
        let strides = self.t.strides();
        Ok(match dim {
            None => PyTuple::new(py, &strides)?.into_any(),
            Some(dim) => strides[norm_dim("stride", dim, self.t.ndim())?].into_bound_py_any(py)?,
        })
    }

    fn storage_offset(&self) -> isize {
        self.t.storage_offset()
    }

    fn is_contiguous(&self) -> bool {
        self.t.is_contiguous()
    }

    fn is_floating_point(&self) -> bool {
        self.t.dtype().is_float()
    }

    fn is_complex(&self) -> bool {
        false
    }

    fn is_signed(&self) -> bool {
        !matches!(self.t.dtype(), DType::Bool | DType::U8)
    }

    #[getter]
    fn is_cuda(&self) -> bool {
        self.device().is_cuda()
    }

    #[getter]
    fn is_cpu(&self) -> bool {
        self.device().is_cpu()
    }

    /// True if both look at one storage.
    fn shares_storage(&self, other: &PyTensor) -> bool {
        self.t.shares_storage(&other.t)
    }

    /// The only element as a Python number; waits for it.
    fn item<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyAny>> {
        Ok(to_python(py, item(&self.t)?)?)
    }

    /// The elements as nested lists; waits for them.
    fn tolist<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyAny>> {
        data::to_list(py, &self.t)
    }

    /// The elements as a NumPy array of their own; waits for them.
    #[pyo3(signature = (*, force = false))]
    fn numpy<'py>(&self, py: Python<'py>, force: bool) -> Result<Bound<'py, PyAny>> {
        if self.t.requires_grad() && !force {
            return runtime_error(
                "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.",
            );
        }
        array::to_array(py, &self.t)
    }

    #[pyo3(signature = (dtype = None, copy = None))]
    fn __array__<'py>(
        &self,
        py: Python<'py>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> Result<Bound<'py, PyAny>> {
        let _ = copy;
        let array = self.numpy(py, false)?;
        match dtype.filter(|d| !d.is_none()) {
            None => Ok(array),
            Some(d) => {
                let kwargs = pyo3::types::PyDict::new(py);
                kwargs.set_item("copy", false)?;
                Ok(array.call_method(intern!(py, "astype"), (d,), Some(&kwargs))?)
            }
        }
    }

    /// NumPy leaves operators with a tensor on the right to the tensor.
    #[classattr]
    fn __array_priority__() -> i32 {
        1000
    }

    fn __len__(&self) -> Result<usize> {
        match self.t.shape().first() {
            Some(&n) => Ok(n),
            None => type_error("len() of a 0-d tensor"),
        }
    }

    fn __bool__(&self) -> Result<bool> {
        match self.t.numel() {
            1 => Ok(item(&self.t)?.as_bool()),
            0 => runtime_error("Boolean value of Tensor with no values is ambiguous"),
            _ => runtime_error(
                "Boolean value of Tensor with more than one value is ambiguous: use .any() or .all()",
            ),
        }
    }

    fn __int__<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyAny>> {
        let x = to_python(py, lone(&self.t)?)?;
        Ok(py.get_type::<pyo3::types::PyInt>().call1((x,))?)
    }

    fn __float__(&self) -> Result<f64> {
        Ok(lone(&self.t)?.as_f64())
    }

    /// The rows, the last one first.
    fn __reversed__<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyAny>> {
        let flipped = if self.t.ndim() == 0 { self.t.clone() } else { moves::flip(&self.t, &[0])? };
        Ok(Bound::new(py, self.wrap(flipped))?.into_any())
    }

    /// A number for the place of the first element: the same for every tensor that begins there.
    fn data_ptr(&self) -> usize {
        let offset = self.t.storage_offset() as usize * self.t.dtype().size();
        self.t.storage_address().wrapping_add(offset)
    }

    fn _is_view(&self) -> bool {
        self.t.is_view()
    }

    fn __index__(&self) -> Result<i64> {
        if self.t.dtype().is_float() || self.t.numel() != 1 {
            return type_error("only integer tensors of a single element can be converted to an index");
        }
        Ok(item(&self.t)?.as_i64())
    }

    fn __contains__(&self, element: crate::convert::Other) -> Result<bool> {
        let equal = self.binary(gt_ir::Binary::Eq, &element.0)?;
        Ok(gt_client::ops::reduce::any(&equal.t, &[], false)?.item()?.as_bool())
    }

    fn __repr__(slf: &Bound<Self>) -> Result<String> {
        let py = slf.py();
        let class = slf.get_type();
        let plain = class.is(py.get_type::<PyTensor>());
        let prefix = if plain { "tensor(".to_string() } else { format!("{}(", class.name()?) };
        if !plain && class.name()? == "Parameter" {
            // As PyTorch shows parameters.
            return Ok(format!(
                "Parameter containing:\n{}",
                repr(&slf.get().t, slf.get().device(), "tensor(")?
            ));
        }
        repr(&slf.get().t, slf.get().device(), &prefix)
    }

    fn __format__<'py>(slf: &Bound<'py, Self>, spec: &Bound<'py, PyString>) -> Result<Bound<'py, PyAny>> {
        let t = &slf.get().t;
        if t.ndim() == 0 {
            let x = to_python(slf.py(), item(t)?)?;
            return Ok(x.call_method1(intern!(slf.py(), "__format__"), (spec,))?);
        }
        if spec.len()? == 0 {
            return Ok(slf.str()?.into_any());
        }
        type_error(
            "unsupported format string passed to a tensor with dimensions: use .item() or .tolist() first",
        )
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> Result<Bound<'py, PyAny>> {
        let py = slf.py();
        let t = &slf.get().t;
        let rebuild = py.import("gt._gt")?.getattr("_rebuild")?;
        let bytes = pyo3::types::PyBytes::new(py, &t.bytes()?);
        let shape = PyTuple::new(py, t.shape().iter())?;
        let args =
            (slf.get_type(), bytes, t.dtype().name(), shape, slf.get().device().text(), t.requires_grad());
        Ok((rebuild, args).into_pyobject(py)?.into_any())
    }

    fn __deepcopy__<'py>(slf: &Bound<'py, Self>, memo: &Bound<'py, PyAny>) -> Result<Bound<'py, PyAny>> {
        let me = slf.get();
        if !me.t.is_leaf() {
            return runtime_error(
                "Only Tensors created explicitly by the user support the deepcopy protocol at the moment: use .detach()",
            );
        }
        let copy = moves::clone(&me.t.detach())?;
        copy.set_requires_grad(me.t.requires_grad())?;
        let id = slf.as_ptr() as usize;
        let out = of_class(&slf.get_type(), me.wrap(copy))?;
        memo.set_item(id, &out)?;
        Ok(out)
    }
}

/// A tensor as an object of the same class as another.
pub fn of_class<'py>(class: &Bound<'py, PyType>, t: PyTensor) -> Result<Bound<'py, PyAny>> {
    let py = class.py();
    let base = py.get_type::<PyTensor>();
    let wanted = t.t.requires_grad();
    let t = Bound::new(py, t)?;
    if class.is(&base) {
        return Ok(t.into_any());
    }
    let out = base.call_method1(intern!(py, "__new__"), (class, t))?;
    out.cast::<PyTensor>()?.get().t.set_requires_grad(wanted)?;
    Ok(out)
}

fn repr(t: &Tensor, device: Device, prefix: &str) -> Result<String> {
    let options = *OPTIONS.lock();
    let shape = t.shape().clone();
    let dtype = t.dtype();
    let mut suffixes = Vec::new();
    if !device.is_cpu() {
        suffixes.push(format!("device='{}'", device.text()));
    }
    if shape.numel() == 0 {
        if shape.len() != 1 {
            let dims: Vec<String> = shape.iter().map(usize::to_string).collect();
            suffixes.push(format!("size=({})", dims.join(", ")));
        }
        if dtype != default::float() {
            suffixes.push(format!("dtype=gt.{}", dtype.name()));
        }
    } else if dtype != default::float() && !matches!(dtype, DType::I64 | DType::Bool) {
        suffixes.push(format!("dtype=gt.{}", dtype.name()));
    }
    match t.edge() {
        Some(_) if t.is_leaf() => suffixes.push("requires_grad=True".into()),
        Some(edge) => suffixes.push(format!("grad_fn=<{}>", edge.node.name())),
        None => {}
    }
    let edges = ends(t, &options)?;
    let host = HostTensor { ty: edges.ty().clone(), data: edges.bytes()?.to_vec() };
    Ok(print::text(prefix, &shape, &host, &suffixes, &options))
}

/// The part of a tensor that is printed: of long dimensions only the two ends.
fn ends(t: &Tensor, o: &print::Options) -> Result<Tensor> {
    let _mode = GradMode::set(false);
    let mut t = t.detach();
    if t.numel() <= o.threshold {
        return Ok(t);
    }
    for dim in 0..t.ndim() {
        let n = t.shape()[dim];
        if print::shortened(n, o) {
            let slice = |start: usize| {
                t.view_step(View::Slice { dim, len: o.edgeitems, step: 1 }, Some(start as i64))
            };
            let both = [slice(0)?, slice(n - o.edgeitems)?];
            t = gt_client::ops::join::cat(&both, dim as i64)?;
        }
    }
    Ok(t)
}

/// Rebuilds a pickled tensor.
#[pyfunction]
pub fn _rebuild<'py>(
    cls: &Bound<'py, PyType>,
    data: &[u8],
    dtype: DTypeArg,
    shape: Vec<usize>,
    device: Device,
    requires_grad: bool,
) -> Result<Bound<'py, PyAny>> {
    let t = gt_client::ops::create::from_bytes(gt_ir::Ty::new(dtype.0, shape), data.to_vec())?;
    t.set_requires_grad(requires_grad)?;
    of_class(cls, PyTensor::on(t, device))
}
