//! Nested lists in and out.

use crate::array;
use crate::convert::{number, to_python};
use crate::errors::{Result, type_error, value_error};
use crate::tensor::PyTensor;
use gt_client::Tensor;
use gt_client::default;
use gt_client::ops::{arith, create};
use gt_ir::{DType, Ints, Kind, Scalar, Shape, Ty};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString, PyTuple};

/// A tensor from numbers, nested lists, arrays or another tensor, whose elements are copied.
pub fn tensor(obj: &Bound<PyAny>, dtype: Option<DType>, wants_grad: bool) -> Result<Tensor> {
    let t = if let Ok(t) = obj.cast::<PyTensor>() {
        gt_client::ops::moves::clone(&t.get().t.detach())?
    } else if let Some(x) = python_number(obj)? {
        let dtype = dtype.unwrap_or_else(|| natural(x.kind(), wants_grad));
        create::full(Shape::scalar(), x, dtype)?
    } else if array::is_array(obj)? {
        array::from_array(obj)?
    } else if obj.is_instance_of::<PyList>() || obj.is_instance_of::<PyTuple>() {
        return nested(obj, dtype, wants_grad);
    } else if obj.hasattr(intern!(obj.py(), "__array__"))? {
        array::from_array(&obj.call_method0(intern!(obj.py(), "__array__"))?)?
    } else if !obj.is_instance_of::<PyString>() && obj.hasattr(intern!(obj.py(), "__getitem__"))? {
        let list = obj.py().get_type::<PyList>().call1((obj,))?;
        return nested(&list, dtype, wants_grad);
    } else {
        return type_error(format!(
            "tensor: expected numbers, nested lists, an array or a tensor, got {}",
            obj.get_type().name()?
        ));
    };
    let to = match dtype {
        Some(d) => d,
        None if wants_grad && !t.dtype().is_float() => default::float(),
        None => t.dtype(),
    };
    Ok(arith::cast(&t, to)?)
}

/// A number that is no NumPy scalar: those bring their own type.
fn python_number(obj: &Bound<PyAny>) -> Result<Option<Scalar>> {
    if array::is_array(obj)? { Ok(None) } else { number(obj) }
}

fn natural(kind: Kind, wants_grad: bool) -> DType {
    match kind {
        Kind::Float => default::float(),
        _ if wants_grad => default::float(),
        Kind::Int => DType::I64,
        Kind::Bool => DType::Bool,
    }
}

#[derive(Default)]
struct Reader {
    shape: Ints,
    elements: Vec<Scalar>,
    kind: Option<Kind>,
    /// The type that arrays and tensors inside the list bring.
    dtype: Option<DType>,
}

fn nested(obj: &Bound<PyAny>, dtype: Option<DType>, wants_grad: bool) -> Result<Tensor> {
    let mut reader = Reader::default();
    reader.measure(obj)?;
    reader.read(obj, 0)?;
    let found = match (reader.dtype, reader.kind) {
        (Some(d), Some(kind)) if kind > d.kind() => natural(kind, wants_grad),
        (Some(d), _) if d.is_float() || !wants_grad => d,
        (Some(_), _) => DType::F32,
        (None, kind) => natural(kind.unwrap_or(Kind::Float), wants_grad),
    };
    let ty = Ty::new(dtype.unwrap_or(found), Shape(reader.shape));
    let mut bytes = Vec::with_capacity(ty.bytes());
    for x in reader.elements {
        arith::element(x, ty.dtype)?.write(ty.dtype, &mut bytes);
    }
    Ok(create::from_bytes(ty, bytes)?)
}

impl Reader {
    /// The shape, as the first element of each level tells it.
    fn measure(&mut self, obj: &Bound<PyAny>) -> Result<()> {
        let mut at = obj.clone();
        loop {
            let n = match (at.cast::<PyList>(), at.cast::<PyTuple>()) {
                (Ok(list), _) => list.len(),
                (_, Ok(tuple)) => tuple.len(),
                _ => break,
            };
            self.shape.push(n);
            if n == 0 {
                return Ok(());
            }
            at = at.get_item(0)?;
        }
        if let Some(shape) = inner_shape(&at)? {
            self.shape.extend(shape);
        }
        Ok(())
    }

    fn read(&mut self, obj: &Bound<PyAny>, depth: usize) -> Result<()> {
        let check = |n: usize, shape: &Ints| match shape.get(depth) {
            Some(&expected) if n == expected => Ok(()),
            Some(&expected) => value_error(format!(
                "tensor: expected sequence of length {expected} at dim {depth} (got {n})"
            )),
            None => value_error(format!("tensor: a sequence of length {n} where a number was expected")),
        };
        if let Ok(list) = obj.cast::<PyList>() {
            check(list.len(), &self.shape)?;
            return list.iter().try_for_each(|x| self.read(&x, depth + 1));
        }
        if let Ok(tuple) = obj.cast::<PyTuple>() {
            check(tuple.len(), &self.shape)?;
            return tuple.iter().try_for_each(|x| self.read(&x, depth + 1));
        }
        if let Some(shape) = inner_shape(obj)? {
            return self.read_array(obj, shape, depth);
        }
        if depth != self.shape.len() {
            return type_error(format!("tensor: expected a sequence at dim {depth}, got {}", obj.repr()?));
        }
        match number(obj)? {
            Some(x) => {
                self.kind = self.kind.max(Some(x.kind()));
                self.elements.push(x);
                Ok(())
            }
            None => type_error(format!("tensor: expected a number, got {}", obj.get_type().name()?)),
        }
    }

    /// A tensor or an array inside a list.
    fn read_array(&mut self, obj: &Bound<PyAny>, shape: Ints, depth: usize) -> Result<()> {
        if self.shape[depth.min(self.shape.len())..] != shape[..] {
            return value_error(format!(
                "tensor: an array of shape {:?} inside a list whose shape is {:?}",
                shape, self.shape
            ));
        }
        let (ty, bytes) = match obj.cast::<PyTensor>() {
            Ok(t) => (t.get().t.ty().clone(), t.get().t.bytes()?.to_vec()),
            Err(_) => array::read(obj)?,
        };
        self.dtype = Some(self.dtype.map_or(ty.dtype, |d| d.promote(ty.dtype)));
        self.elements.extend(bytes.chunks_exact(ty.dtype.size()).map(|b| Scalar::read(ty.dtype, b)));
        Ok(())
    }
}

/// The shape of a tensor or an array.
fn inner_shape(obj: &Bound<PyAny>) -> Result<Option<Ints>> {
    if let Ok(t) = obj.cast::<PyTensor>() {
        let shape = &t.get().t.shape().0;
        // A tensor of one element stands for a number.
        return Ok(Some(if t.get().t.numel() == 1 { Ints::new() } else { shape.clone() }));
    }
    if obj.is_exact_instance_of::<pyo3::types::PyInt>()
        || obj.is_exact_instance_of::<pyo3::types::PyFloat>()
        || obj.is_exact_instance_of::<pyo3::types::PyBool>()
    {
        return Ok(None);
    }
    if array::is_array(obj)? {
        let dims: Vec<usize> = obj.getattr(intern!(obj.py(), "shape"))?.extract()?;
        return Ok(Some(dims.into()));
    }
    Ok(None)
}

/// A number, or nested lists of numbers; waits for them.
pub fn to_list<'py>(py: Python<'py>, t: &Tensor) -> Result<Bound<'py, PyAny>> {
    let bytes = t.bytes()?;
    let mut elements = bytes.chunks_exact(t.dtype().size()).map(|b| Scalar::read(t.dtype(), b));
    Ok(list(py, t.shape(), &mut elements)?)
}

fn list<'py>(
    py: Python<'py>,
    shape: &[usize],
    elements: &mut impl Iterator<Item = Scalar>,
) -> PyResult<Bound<'py, PyAny>> {
    match shape {
        [] => to_python(py, elements.next().unwrap_or(Scalar::Int(0))),
        [n, rest @ ..] => {
            let out = PyList::empty(py);
            for _ in 0..*n {
                out.append(list(py, rest, elements)?)?;
            }
            Ok(out.into_any())
        }
    }
}
