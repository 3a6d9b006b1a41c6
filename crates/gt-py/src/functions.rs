//! Functions that are no methods: making tensors, joining them.

use crate::array;
use crate::convert::{Dims, DimsArg, Num, Other, shape, varargs};
use crate::data;
use crate::device::Device;
use crate::dtype::{DTypeArg, PyDType, dtype_object};
use crate::errors::{Result, type_error};
use crate::print::{OPTIONS, Options};
use crate::random::{PyGenerator, drawn};
use crate::tensor::PyTensor;
use gt_client::Tensor;
use gt_client::default;
use gt_client::ops::{arith, create, join, moves, pointwise};
use gt_ir::{DType, Scalar};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// A new tensor with the device and the wish for gradients it was asked for.
fn made(t: Tensor, device: Option<Device>, requires_grad: bool) -> Result<PyTensor> {
    if requires_grad {
        t.set_requires_grad(true)?;
    }
    Ok(PyTensor::on(t, device.map_or_else(Device::default, Device::settled)))
}

fn or_float(dtype: Option<DTypeArg>) -> DType {
    dtype.map_or_else(default::float, |d| d.0)
}

/// A tensor from numbers, nested lists or arrays, whose elements are copied.
#[pyfunction]
#[pyo3(signature = (data, *, dtype = None, device = None, requires_grad = false, pin_memory = false))]
pub fn tensor(
    data: &Bound<PyAny>,
    dtype: Option<DTypeArg>,
    device: Option<Device>,
    requires_grad: bool,
    pin_memory: bool,
) -> Result<PyTensor> {
    let _ = pin_memory;
    let device = device.or_else(|| data.cast::<PyTensor>().ok().map(|t| t.get().device()));
    made(data::tensor(data, dtype.map(|d| d.0), requires_grad)?, device, requires_grad)
}

/// The tensor itself, or one from numbers, nested lists or arrays.
#[pyfunction]
#[pyo3(signature = (data, dtype = None, device = None))]
pub fn as_tensor<'py>(
    data: &Bound<'py, PyAny>,
    dtype: Option<DTypeArg>,
    device: Option<Device>,
) -> Result<Bound<'py, PyAny>> {
    let dtype = dtype.map(|d| d.0);
    let t = match data.cast::<PyTensor>() {
        Ok(t) => {
            let me = t.get();
            if dtype.is_none_or(|d| d == me.t.dtype()) && device.is_none_or(|d| d.settled() == me.device()) {
                return Ok(data.clone());
            }
            arith::cast(&me.t, dtype.unwrap_or(me.t.dtype()))?
        }
        Err(_) => data::tensor(data, dtype, false)?,
    };
    Ok(Bound::new(data.py(), made(t, device, false)?)?.into_any())
}

/// A tensor with the elements of a NumPy array. The bytes are taken before this returns.
#[pyfunction]
#[pyo3(signature = (ndarray, *, requires_grad = false))]
pub fn from_numpy(ndarray: &Bound<PyAny>, requires_grad: bool) -> Result<PyTensor> {
    if !array::is_array(ndarray)? {
        return type_error(format!("from_numpy: expected np.ndarray (got {})", ndarray.get_type().name()?));
    }
    let t = array::from_array(ndarray)?;
    let t = if requires_grad && !t.dtype().is_float() { arith::cast(&t, default::float())? } else { t };
    made(t, Some(Device::CPU), requires_grad)
}

/// A tensor with the elements of a buffer.
#[pyfunction]
#[pyo3(signature = (buffer, *, dtype, count = -1, offset = 0, requires_grad = false))]
pub fn frombuffer(
    buffer: &Bound<PyAny>,
    dtype: DTypeArg,
    count: i64,
    offset: usize,
    requires_grad: bool,
) -> Result<PyTensor> {
    let bytes = array::buffer_bytes(buffer)?;
    let size = dtype.0.size();
    let rest = bytes.len().saturating_sub(offset);
    let n = if count < 0 { rest / size } else { count as usize };
    if n * size > rest {
        return crate::errors::value_error(format!(
            "frombuffer: {n} elements of {size} bytes in {rest} bytes"
        ));
    }
    let ty = gt_ir::Ty::new(dtype.0, [n]);
    made(create::from_bytes(ty, bytes[offset..offset + n * size].to_vec())?, Some(Device::CPU), requires_grad)
}

fn sizes(args: &Bound<PyTuple>, size: Option<DimsArg>) -> Result<Dims> {
    match size {
        Some(size) => Ok(size.0),
        None => varargs(args),
    }
}

macro_rules! fills {
    ($($(#[$doc:meta])* $name:ident $dims:ident, $dtype:ident => $make:expr;)*) => {
        $($(#[$doc])*
        #[pyfunction]
        #[allow(clippy::too_many_arguments)]
        #[pyo3(signature = (*shape, size = None, dtype = None, device = None, requires_grad = false, generator = None, pin_memory = false, layout = None, memory_format = None))]
        pub fn $name(
            shape: &Bound<PyTuple>,
            size: Option<DimsArg>,
            dtype: Option<DTypeArg>,
            device: Option<Device>,
            requires_grad: bool,
            generator: Option<&Bound<PyGenerator>>,
            pin_memory: bool,
            layout: Option<&Bound<PyAny>>,
            memory_format: Option<&Bound<PyAny>>,
        ) -> Result<PyTensor> {
            let _ = (pin_memory, layout, memory_format);
            let $dims = crate::convert::shape(stringify!($name), &sizes(shape, size)?)?;
            let $dtype = or_float(dtype);
            drawn(generator, || made($make?, device, requires_grad))
        })*
    };
}

fills! {
    /// Zeros.
    zeros dims, dtype => create::zeros(dims, dtype);
    /// Ones.
    ones dims, dtype => create::ones(dims, dtype);
    /// Zeros: memory is never handed out unwritten.
    empty dims, dtype => create::zeros(dims, dtype);
    /// Uniform random numbers from [0, 1).
    rand dims, dtype => create::rand(dims, dtype);
    /// Standard normal random numbers.
    randn dims, dtype => create::randn(dims, dtype);
}

macro_rules! likes {
    ($($(#[$doc:meta])* $name:ident $x:ident, $dtype:ident => $make:expr;)*) => {
        $($(#[$doc])*
        #[pyfunction]
        #[pyo3(signature = (input, *, dtype = None, layout = None, device = None, requires_grad = false, pin_memory = false, memory_format = None))]
        pub fn $name(
            input: &PyTensor,
            dtype: Option<DTypeArg>,
            layout: Option<&Bound<PyAny>>,
            device: Option<Device>,
            requires_grad: bool,
            pin_memory: bool,
            memory_format: Option<&Bound<PyAny>>,
        ) -> Result<PyTensor> {
            let _ = (layout, pin_memory, memory_format);
            let ($x, $dtype) = (&input.t, dtype.map(|d| d.0));
            made($make?, device.or(Some(input.device())), requires_grad)
        })*
    };
}

likes! {
    zeros_like x, dtype => create::zeros_like(x, dtype);
    ones_like x, dtype => create::ones_like(x, dtype);
    empty_like x, dtype => create::zeros_like(x, dtype);
    rand_like x, dtype => create::rand_like(x, dtype);
    randn_like x, dtype => create::randn_like(x, dtype);
}

/// A tensor filled with one number.
#[pyfunction]
#[pyo3(signature = (size, fill_value, *, dtype = None, device = None, requires_grad = false))]
pub fn full(
    size: DimsArg,
    fill_value: Num,
    dtype: Option<DTypeArg>,
    device: Option<Device>,
    requires_grad: bool,
) -> Result<PyTensor> {
    let dtype = match (dtype, fill_value.0) {
        (Some(d), _) => d.0,
        (None, Scalar::Bool(_)) => DType::Bool,
        (None, Scalar::Int(_)) if !requires_grad => DType::I64,
        (None, _) => default::float(),
    };
    made(create::full(shape("full", &size.0)?, fill_value.0, dtype)?, device, requires_grad)
}

#[pyfunction]
#[pyo3(signature = (input, fill_value, *, dtype = None, layout = None, device = None, requires_grad = false, pin_memory = false, memory_format = None))]
#[allow(clippy::too_many_arguments)]
pub fn full_like(
    input: &PyTensor,
    fill_value: Num,
    dtype: Option<DTypeArg>,
    layout: Option<&Bound<PyAny>>,
    device: Option<Device>,
    requires_grad: bool,
    pin_memory: bool,
    memory_format: Option<&Bound<PyAny>>,
) -> Result<PyTensor> {
    let _ = (layout, pin_memory, memory_format);
    let t = create::full_like(&input.t, fill_value.0, dtype.map(|d| d.0))?;
    made(t, device.or(Some(input.device())), requires_grad)
}

/// Numbers from `start` up to, not including, `end`.
#[pyfunction]
#[pyo3(signature = (start = None, end = None, step = None, *, dtype = None, device = None, requires_grad = false))]
pub fn arange(
    start: Option<Num>,
    end: Option<Num>,
    step: Option<Num>,
    dtype: Option<DTypeArg>,
    device: Option<Device>,
    requires_grad: bool,
) -> Result<PyTensor> {
    let (start, end) = match (start, end) {
        (Some(start), Some(end)) => (start.0, end.0),
        (Some(end), None) | (None, Some(end)) => (Scalar::Int(0), end.0),
        (None, None) => return type_error("arange: missing the end"),
    };
    let dtype = match dtype {
        Some(d) => Some(d.0),
        None if requires_grad => Some(default::float()),
        None => None,
    };
    let t = create::range(start, end, step.map_or(Scalar::Int(1), |s| s.0), dtype)?;
    made(t, device, requires_grad)
}

/// `steps` numbers, evenly spaced from `start` to `end`, both included.
#[pyfunction]
#[pyo3(signature = (start, end, steps, *, dtype = None, device = None, requires_grad = false))]
pub fn linspace(
    start: f64,
    end: f64,
    steps: i64,
    dtype: Option<DTypeArg>,
    device: Option<Device>,
    requires_grad: bool,
) -> Result<PyTensor> {
    made(create::linspace(start, end, steps, or_float(dtype))?, device, requires_grad)
}

/// Ones on the diagonal, zeros elsewhere.
#[pyfunction]
#[pyo3(signature = (n, m = None, *, dtype = None, device = None, requires_grad = false))]
pub fn eye(
    n: i64,
    m: Option<i64>,
    dtype: Option<DTypeArg>,
    device: Option<Device>,
    requires_grad: bool,
) -> Result<PyTensor> {
    made(create::eye(n, m, or_float(dtype))?, device, requires_grad)
}

/// Random integers from `low` up to, not including, `high`.
#[pyfunction]
#[pyo3(signature = (*args, low = None, high = None, size = None, dtype = None, device = None, requires_grad = false, generator = None))]
pub fn randint(
    args: &Bound<PyTuple>,
    low: Option<i64>,
    high: Option<i64>,
    size: Option<DimsArg>,
    dtype: Option<DTypeArg>,
    device: Option<Device>,
    requires_grad: bool,
    generator: Option<&Bound<PyGenerator>>,
) -> Result<PyTensor> {
    let mut bounds: Vec<i64> = Vec::new();
    let (named, mut size) = (size.is_some(), size.map(|s| s.0));
    for arg in args.iter() {
        match arg.extract::<i64>() {
            Ok(i) if (named || size.is_none()) && bounds.len() < 2 => bounds.push(i),
            _ if size.is_none() => size = Some(arg.extract::<DimsArg>()?.0),
            _ => return type_error("randint: expected ([low], high, size)"),
        }
    }
    let (low, high) = match (bounds.as_slice(), low, high) {
        ([low, high], None, None) => (*low, *high),
        ([high], low, None) => (low.unwrap_or(0), *high),
        ([low], None, Some(high)) => (*low, high),
        ([], low, Some(high)) => (low.unwrap_or(0), high),
        _ => return type_error("randint: expected ([low], high, size)"),
    };
    let Some(size) = size else { return type_error("randint: missing the size, a tuple of ints") };
    let dtype = dtype.map_or(DType::I64, |d| d.0);
    let size = shape("randint", &size)?;
    drawn(generator, || made(create::randint(low, high, size, dtype)?, device, requires_grad))
}

/// The integers below `n` in random order.
#[pyfunction]
#[pyo3(signature = (n, *, dtype = None, device = None, generator = None))]
pub fn randperm(
    n: i64,
    dtype: Option<DTypeArg>,
    device: Option<Device>,
    generator: Option<&Bound<PyGenerator>>,
) -> Result<PyTensor> {
    drawn(generator, || made(create::randperm(n, dtype.map_or(DType::I64, |d| d.0))?, device, false))
}

/// Zeros and ones, ones with the given probabilities.
#[pyfunction]
#[pyo3(signature = (input, *, generator = None))]
pub fn bernoulli(input: &PyTensor, generator: Option<&Bound<PyGenerator>>) -> Result<PyTensor> {
    drawn(generator, || Ok(input.wrap(create::bernoulli(&input.t)?)))
}

/// Indices drawn with the given weights.
#[pyfunction]
#[pyo3(signature = (input, num_samples, replacement = false, *, generator = None))]
pub fn multinomial(
    input: &PyTensor,
    num_samples: i64,
    replacement: bool,
    generator: Option<&Bound<PyGenerator>>,
) -> Result<PyTensor> {
    drawn(generator, || Ok(input.wrap(create::multinomial(&input.t, num_samples, replacement)?)))
}

/// The device of the first tensor that has one of its own.
fn common_device(list: &Bound<PyAny>) -> Device {
    let Ok(items) = list.try_iter() else { return Device::CPU };
    items.flatten().fold(Device::CPU, |d, x| match x.cast::<PyTensor>() {
        Ok(t) => d.or(t.get().device()),
        Err(_) => d,
    })
}

/// A sequence of tensors, and not one tensor, which is a mistake for a list of it.
fn several(name: &str, list: &Bound<PyAny>) -> Result<Vec<Tensor>> {
    if list.cast::<PyTensor>().is_ok() {
        return type_error(format!(
            "{name}(): argument 'tensors' (position 1) must be tuple of Tensors, not Tensor"
        ));
    }
    crate::tensor::tensors(list)
}

macro_rules! joins {
    ($($name:ident)*) => {
        $(#[pyfunction]
        #[pyo3(signature = (tensors, dim = 0, *, axis = None))]
        pub fn $name(tensors: &Bound<PyAny>, dim: i64, axis: Option<i64>) -> Result<PyTensor> {
            let list = several(stringify!($name), tensors)?;
            Ok(PyTensor::on(join::$name(&list, axis.unwrap_or(dim))?, common_device(tensors)))
        })*
    };
}

joins! { cat stack }

macro_rules! joins_all {
    ($($name:ident)*) => {
        $(#[pyfunction]
        pub fn $name(tensors: &Bound<PyAny>) -> Result<PyTensor> {
            let list = several(stringify!($name), tensors)?;
            Ok(PyTensor::on(join::$name(&list)?, common_device(tensors)))
        })*
    };
}

joins_all! { vstack hstack }

/// Elements of `input` where the condition holds, else of `other`; alone, the indices where it holds.
#[pyfunction]
#[pyo3(name = "where", signature = (condition, input = None, other = None))]
pub fn where_<'py>(
    condition: &Bound<'py, PyTensor>,
    input: Option<Other>,
    other: Option<Other>,
) -> Result<Bound<'py, PyAny>> {
    let py = condition.py();
    let cond = condition.get();
    match (input, other) {
        (Some(a), Some(b)) => {
            let t = pointwise::where_(&cond.t, &a.0, &b.0)?;
            Ok(Bound::new(py, cond.wrap(t))?.into_any())
        }
        (None, None) => {
            let columns = gt_client::ops::index::nonzero(&cond.t)?;
            let list = join::unbind(&columns, 1)?;
            Ok(cond.wrap_all(py, list)?.into_any())
        }
        _ => type_error("where: expected (condition, input, other) or (condition)"),
    }
}

/// `input ** exponent`, where either may be a number.
#[pyfunction]
pub fn pow(input: Other, exponent: Other) -> Result<PyTensor> {
    Ok(PyTensor::new(pointwise::pow(&input.0, &exponent.0)?))
}

/// All tensors expanded to their common shape.
#[pyfunction]
#[pyo3(signature = (*tensors))]
pub fn broadcast_tensors<'py>(tensors: &Bound<'py, PyTuple>) -> Result<Bound<'py, PyTuple>> {
    let list = crate::tensor::tensors(tensors)?;
    let out = moves::broadcast_tensors(&list)?;
    Ok(PyTuple::new(tensors.py(), out.into_iter().map(PyTensor::new))?)
}

/// The type that results when types are combined.
#[pyfunction]
pub fn promote_types(py: Python, type1: DTypeArg, type2: DTypeArg) -> Result<Py<PyDType>> {
    Ok(dtype_object(py, type1.0.promote(type2.0))?)
}

/// The type that results when two operands are combined.
#[pyfunction]
pub fn result_type(py: Python, tensor1: Other, tensor2: Other) -> Result<Py<PyDType>> {
    Ok(dtype_object(py, arith::result_type(&tensor1.0, &tensor2.0))?)
}

/// True if the object is a tensor.
#[pyfunction]
pub fn is_tensor(obj: &Bound<PyAny>) -> bool {
    obj.is_instance_of::<PyTensor>()
}

/// How tensors are printed.
#[pyfunction]
#[pyo3(signature = (
    precision = None, threshold = None, edgeitems = None, linewidth = None, profile = None, sci_mode = None
))]
pub fn set_printoptions(
    precision: Option<usize>,
    threshold: Option<f64>,
    edgeitems: Option<usize>,
    linewidth: Option<usize>,
    profile: Option<&str>,
    sci_mode: Option<bool>,
) {
    let mut o = OPTIONS.lock();
    match profile {
        Some("default") => *o = Options::DEFAULT,
        Some("short") => *o = Options { precision: 2, edgeitems: 2, ..Options::DEFAULT },
        Some("full") => *o = Options { threshold: usize::MAX, ..Options::DEFAULT },
        _ => {}
    }
    o.precision = precision.unwrap_or(o.precision);
    o.threshold = threshold.map_or(o.threshold, |t| t.min(usize::MAX as f64) as usize);
    o.edgeitems = edgeitems.unwrap_or(o.edgeitems);
    o.linewidth = linewidth.unwrap_or(o.linewidth);
    o.sci_mode = sci_mode;
}

/// The type of floating-point tensors made without one.
#[pyfunction]
pub fn get_default_dtype(py: Python) -> PyResult<Py<crate::dtype::PyDType>> {
    crate::dtype::dtype_object(py, default::float())
}

/// Sets the type of floating-point tensors made without one.
#[pyfunction]
pub fn set_default_dtype(d: DTypeArg) -> Result<()> {
    Ok(default::set_float(d.0)?)
}
