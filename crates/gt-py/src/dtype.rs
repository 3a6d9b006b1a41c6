//! `gt.dtype`: one object per element type.

use crate::errors::{Fault, Result, type_error};
use gt_ir::DType;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyFloat, PyInt, PyString, PyType};
use pyo3::{Borrowed, PyTypeInfo};

/// The type of a tensor's elements.
#[pyclass(name = "dtype", module = "gt", frozen, eq, hash)]
#[derive(PartialEq, Eq, Hash)]
pub struct PyDType(pub DType);

static ALL: PyOnceLock<Vec<Py<PyDType>>> = PyOnceLock::new();

/// The one object that stands for a type.
pub fn dtype_object(py: Python, dtype: DType) -> PyResult<Py<PyDType>> {
    let all = ALL.get_or_try_init(py, || {
        DType::ALL.iter().map(|d| Py::new(py, PyDType(*d))).collect::<PyResult<_>>()
    })?;
    Ok(all[dtype as usize].clone_ref(py))
}

#[pymethods]
impl PyDType {
    fn __repr__(&self) -> String {
        format!("gt.{}", self.0.name())
    }

    fn __reduce__(&self) -> &'static str {
        self.0.name()
    }

    /// The name without `gt.`.
    #[getter]
    fn name(&self) -> &'static str {
        self.0.name()
    }

    /// Bytes per element.
    #[getter]
    fn itemsize(&self) -> usize {
        self.0.size()
    }

    #[getter]
    fn is_floating_point(&self) -> bool {
        self.0.is_float()
    }

    #[getter]
    fn is_complex(&self) -> bool {
        false
    }

    #[getter]
    fn is_signed(&self) -> bool {
        !matches!(self.0, DType::Bool | DType::U8)
    }
}

/// A type given as `gt.float32`, `"float32"`, `float`, `np.float32` or a NumPy dtype.
pub struct DTypeArg(pub DType);

impl<'a, 'py> FromPyObject<'a, 'py> for DTypeArg {
    type Error = Fault;

    #[cfg(feature = "stubs")]
    const INPUT_TYPE: pyo3::inspect::PyStaticExpr = PyDType::TYPE_HINT;

    fn extract(obj: Borrowed<'a, 'py, PyAny>) -> Result<DTypeArg> {
        if let Ok(d) = obj.cast::<PyDType>() {
            return Ok(DTypeArg(d.get().0));
        }
        let py = obj.py();
        let found = if let Ok(name) = obj.cast::<PyString>() {
            DType::parse(name.to_str()?)
        } else if let Ok(class) = obj.cast::<PyType>() {
            if class.is(PyFloat::type_object(py)) {
                Some(DType::F64)
            } else if class.is(PyBool::type_object(py)) {
                Some(DType::Bool)
            } else if class.is(PyInt::type_object(py)) {
                Some(DType::I64)
            } else {
                DType::parse(class.name()?.to_str()?.trim_end_matches('_'))
            }
        } else {
            // NumPy's dtypes have a name; PyTorch's are known by how they print.
            match obj.getattr("name") {
                Ok(name) => DType::parse(name.str()?.to_str()?),
                Err(_) => DType::parse(obj.str()?.to_str()?),
            }
        };
        match found {
            Some(d) => Ok(DTypeArg(d)),
            None => type_error(format!(
                "dtype: expected one of bool, uint8, int8, int16, int32, int64, float16, bfloat16, float32, float64, got {}",
                obj.repr()?
            )),
        }
    }
}
