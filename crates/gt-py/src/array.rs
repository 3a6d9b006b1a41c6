//! NumPy in and out, without a dependency on it: arrays are read through `__array_interface__`.

use crate::errors::{Result, type_error};
use gt_client::Tensor;
use gt_client::ops::create;
use gt_ir::{DType, Shape, Ty};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use pyo3::{ffi, intern};
use std::sync::Arc;

/// Results of at least this many bytes are handed to NumPy as they are; smaller ones are copied.
const LEND_BYTES: usize = 64 * 1024;

/// True if the object can be read by `from_array`.
pub fn is_array(obj: &Bound<PyAny>) -> PyResult<bool> {
    obj.hasattr(intern!(obj.py(), "__array_interface__"))
}

/// The element type behind a type string such as `<f4`.
fn dtype_of(typestr: &str) -> Option<DType> {
    Some(match typestr.strip_prefix(['<', '|', '='])? {
        "b1" => DType::Bool,
        "u1" => DType::U8,
        "i1" => DType::I8,
        "i2" => DType::I16,
        "i4" => DType::I32,
        "i8" => DType::I64,
        "f2" => DType::F16,
        "f4" => DType::F32,
        "f8" => DType::F64,
        _ => return None,
    })
}

/// Calls `f` with the type and bytes of an array, which it must not keep: the array may change afterwards.
fn with_bytes<T>(array: &Bound<PyAny>, f: impl FnOnce(Ty, &[u8]) -> Result<T>) -> Result<T> {
    let py = array.py();
    let mut array = array.clone();
    let mut face = array.getattr(intern!(py, "__array_interface__"))?;
    let face_dict = face.cast::<PyDict>()?;
    let strided = face_dict.get_item(intern!(py, "strides"))?.is_some_and(|s| !s.is_none());
    let hidden = face_dict.get_item(intern!(py, "data"))?.is_none_or(|d| d.is_none());
    if strided || hidden {
        array = py.import(intern!(py, "numpy"))?.call_method1(intern!(py, "ascontiguousarray"), (&array,))?;
        // `ascontiguousarray` gives 0-d arrays a dimension.
        let shape = face.get_item(intern!(py, "shape"))?;
        if shape.len()? == 0 {
            array = array.call_method1(intern!(py, "reshape"), (shape,))?;
        }
        face = array.getattr(intern!(py, "__array_interface__"))?;
    }
    let typestr: String = face.get_item(intern!(py, "typestr"))?.extract()?;
    let Some(dtype) = dtype_of(&typestr) else {
        return type_error(format!(
            "can't convert an array of type {typestr}: the supported types are float64, float32, float16, int64, \
             int32, int16, int8, uint8 and bool, in the machine's byte order. Convert it with .astype(...) first."
        ));
    };
    let dims: Vec<usize> = face.get_item(intern!(py, "shape"))?.extract()?;
    let ty = Ty::new(dtype, dims);
    let (address, _): (usize, bool) = face.get_item(intern!(py, "data"))?.extract()?;
    let n = ty.bytes();
    let bytes: &[u8] = match n {
        0 => &[],
        // SAFETY: the interface promises `n` dense bytes at the address while `array` lives; the GIL is held.
        _ => unsafe { std::slice::from_raw_parts(address as *const u8, n) },
    };
    let out = f(ty, bytes);
    drop(array);
    out
}

/// The type and a copy of the bytes of an array.
pub fn read(array: &Bound<PyAny>) -> Result<(Ty, Vec<u8>)> {
    with_bytes(array, |ty, bytes| Ok((ty, bytes.to_vec())))
}

/// A tensor with an array's elements.
pub fn from_array(array: &Bound<PyAny>) -> Result<Tensor> {
    with_bytes(array, |ty, bytes| Ok(create::from_slice(ty, bytes)?))
}

/// Bytes that NumPy looks at.
#[pyclass(frozen)]
struct Lent {
    bytes: Vec<u8>,
    shape: Vec<usize>,
    typestr: &'static str,
}

impl Drop for Lent {
    fn drop(&mut self) {
        gt_client::hostmem::give(std::mem::take(&mut self.bytes));
    }
}

#[pymethods]
impl Lent {
    #[getter(__array_interface__)]
    fn interface<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let face = PyDict::new(py);
        face.set_item("version", 3)?;
        face.set_item("typestr", self.typestr)?;
        face.set_item("shape", PyTuple::new(py, &self.shape)?)?;
        face.set_item("data", (self.bytes.as_ptr() as usize, false))?;
        Ok(face)
    }
}

fn typestr(dtype: DType) -> Result<&'static str> {
    Ok(match dtype {
        DType::Bool => "|b1",
        DType::U8 => "|u1",
        DType::I8 => "|i1",
        DType::I16 => "<i2",
        DType::I32 => "<i4",
        DType::I64 => "<i8",
        DType::F16 => "<f2",
        DType::F32 => "<f4",
        DType::F64 => "<f8",
        DType::BF16 => {
            return type_error(
                "numpy: NumPy has no bfloat16: use .float().numpy() (got unsupported ScalarType BFloat16)",
            );
        }
    })
}

/// A NumPy array with a tensor's elements; waits for them.
pub fn to_array<'py>(py: Python<'py>, t: &Tensor) -> Result<Bound<'py, PyAny>> {
    let typestr = typestr(t.dtype())?;
    let shape: &Shape = t.shape();
    let numpy = py.import(intern!(py, "numpy"))?;
    let bytes = t.bytes()?;
    if bytes.len() >= LEND_BYTES {
        let bytes = Arc::try_unwrap(bytes).unwrap_or_else(|shared| shared.as_ref().clone());
        let lent = Bound::new(py, Lent { bytes, shape: shape.to_vec(), typestr })?;
        return Ok(numpy.call_method1(intern!(py, "asarray"), (lent,))?);
    }
    let dims = PyTuple::new(py, shape.iter())?;
    let array = numpy.call_method1(intern!(py, "empty"), (dims, typestr))?;
    if !bytes.is_empty() {
        let face = array.getattr(intern!(py, "__array_interface__"))?;
        let (address, _): (usize, bool) = face.get_item(intern!(py, "data"))?.extract()?;
        // SAFETY: the array is new, dense, and has exactly this many bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) };
    }
    Ok(array)
}

/// The bytes of any object with the buffer protocol, through `memoryview`.
pub fn buffer_bytes(obj: &Bound<PyAny>) -> Result<Vec<u8>> {
    let py = obj.py();
    // SAFETY: gives a new reference or sets an exception.
    let view = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyMemoryView_FromObject(obj.as_ptr()))? };
    Ok(view.call_method0(intern!(py, "tobytes"))?.extract()?)
}
