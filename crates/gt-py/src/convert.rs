//! Arguments: numbers, dimensions, shapes and operands as Python gives them.

use crate::errors::{Fault, Result, type_error};
use crate::tensor::PyTensor;
use gt_client::Tensor;
use gt_ir::{Ints, Operand, Scalar, Shape};
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
#[cfg(feature = "stubs")]
use pyo3::type_hint_union;
use pyo3::types::{PyBool, PyFloat, PyInt, PyList, PyTuple};
use pyo3::{Borrowed, ffi};
use smallvec::SmallVec;

/// A list of dimensions or sizes, negative ones not yet resolved.
pub type Dims = SmallVec<[i64; 5]>;

/// The number, if the object is one: a Python number, a NumPy scalar or a NumPy array without dimensions.
#[inline]
pub fn number(obj: &Bound<PyAny>) -> Result<Option<Scalar>> {
    if obj.is_exact_instance_of::<PyFloat>() {
        // SAFETY: the object is a Python float.
        return Ok(Some(Scalar::Float(unsafe { ffi::PyFloat_AsDouble(obj.as_ptr()) })));
    }
    if obj.is_exact_instance_of::<PyInt>() {
        return int(obj).map(Some);
    }
    if obj.is_exact_instance_of::<PyBool>() {
        return Ok(Some(Scalar::Bool(obj.is_truthy()?)));
    }
    other_number(obj)
}

fn int(obj: &Bound<PyAny>) -> Result<Scalar> {
    match obj.extract::<i64>() {
        Ok(i) => Ok(Scalar::Int(i)),
        Err(_) => Err(PyOverflowError::new_err(format!("the number {obj} does not fit into 64 bits")).into()),
    }
}

#[cold]
fn other_number(obj: &Bound<PyAny>) -> Result<Option<Scalar>> {
    if obj.is_instance_of::<PyFloat>() {
        return Ok(Some(Scalar::Float(obj.extract()?)));
    }
    if obj.is_instance_of::<PyInt>() {
        return int(obj).map(Some);
    }
    // NumPy's scalars and 0-d arrays.
    let is_scalar = obj.hasattr("__array_interface__")?
        && obj.getattr("shape").and_then(|s| s.len()).is_ok_and(|rank| rank == 0);
    if is_scalar {
        return number(&obj.call_method0("item")?);
    }
    Ok(None)
}

/// The operand, if the object is a tensor or a number.
#[inline]
pub fn operand(obj: &Bound<PyAny>) -> Result<Option<Operand<Tensor>>> {
    if let Ok(t) = obj.cast::<PyTensor>() {
        return Ok(Some(Operand::Val(t.get().t.clone())));
    }
    Ok(number(obj)?.map(Operand::Num))
}

/// A tensor or a number.
pub struct Other(pub Operand<Tensor>);

impl<'a, 'py> FromPyObject<'a, 'py> for Other {
    type Error = Fault;

    #[cfg(feature = "stubs")]
    const INPUT_TYPE: pyo3::inspect::PyStaticExpr =
        type_hint_union!(<PyTensor as pyo3::PyTypeInfo>::TYPE_HINT, <f64 as FromPyObject>::INPUT_TYPE);

    fn extract(obj: Borrowed<'a, 'py, PyAny>) -> Result<Other> {
        match operand(&obj)? {
            Some(x) => Ok(Other(x)),
            None => type_error(format!("expected a Tensor or a number, got {}", obj.get_type().name()?)),
        }
    }
}

/// A number.
pub struct Num(pub Scalar);

impl<'a, 'py> FromPyObject<'a, 'py> for Num {
    type Error = Fault;

    #[cfg(feature = "stubs")]
    const INPUT_TYPE: pyo3::inspect::PyStaticExpr = <f64 as FromPyObject>::INPUT_TYPE;

    fn extract(obj: Borrowed<'a, 'py, PyAny>) -> Result<Num> {
        if let Ok(t) = obj.cast::<PyTensor>() {
            return Ok(Num(t.get().t.item()?));
        }
        match number(&obj)? {
            Some(x) => Ok(Num(x)),
            None => type_error(format!("expected a number, got {}", obj.get_type().name()?)),
        }
    }
}

/// An integer: a Python int, anything with `__index__`, or an integer tensor of one element.
fn integer(obj: &Bound<PyAny>) -> Result<i64> {
    match obj.extract::<i64>() {
        Ok(i) => Ok(i),
        Err(_) => type_error(format!("expected an int, got {}", obj.get_type().name()?)),
    }
}

/// Dimensions as an int, a tuple or a list.
pub struct DimsArg(pub Dims);

impl<'a, 'py> FromPyObject<'a, 'py> for DimsArg {
    type Error = Fault;

    #[cfg(feature = "stubs")]
    const INPUT_TYPE: pyo3::inspect::PyStaticExpr =
        type_hint_union!(<i64 as FromPyObject>::INPUT_TYPE, <Vec<i64> as FromPyObject>::INPUT_TYPE);

    fn extract(obj: Borrowed<'a, 'py, PyAny>) -> Result<DimsArg> {
        dims_of(&obj).map(DimsArg)
    }
}

fn dims_of(obj: &Bound<PyAny>) -> Result<Dims> {
    if let Ok(t) = obj.cast::<PyTuple>() {
        return t.iter().map(|x| integer(&x)).collect();
    }
    if let Ok(l) = obj.cast::<PyList>() {
        return l.iter().map(|x| integer(&x)).collect();
    }
    Ok(SmallVec::from_slice(&[integer(obj)?]))
}

/// Dimensions as varargs, or as one tuple or list.
pub fn varargs(args: &Bound<PyTuple>) -> Result<Dims> {
    if args.len() == 1 {
        return dims_of(&args.get_item(0)?);
    }
    args.iter().map(|x| integer(&x)).collect()
}

/// A shape without unknowns.
pub fn shape(op: &str, dims: &[i64]) -> Result<Shape> {
    let mut out = Ints::new();
    for &d in dims {
        if d < 0 {
            return crate::errors::runtime_error(format!(
                "{op}: sizes must not be negative, got {d} in {:?}",
                dims
            ));
        }
        out.push(d as usize);
    }
    Ok(Shape(out))
}

/// A Python number.
pub fn to_python(py: Python, x: Scalar) -> PyResult<Bound<PyAny>> {
    Ok(match x {
        Scalar::Bool(b) => b.into_pyobject(py)?.to_owned().into_any(),
        Scalar::Int(i) => i.into_pyobject(py)?.into_any(),
        Scalar::Float(f) => f.into_pyobject(py)?.into_any(),
    })
}
