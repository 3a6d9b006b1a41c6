//! How exactly `f32` matrices are multiplied, and what is computed in narrower types.

use crate::dtype::{PyDType, dtype_object};
use crate::errors::Result;
use gt_client::ops::autocast::{self, Autocast};
use gt_client::ops::linalg::{self, Precision};
use pyo3::prelude::*;

/// Sets how exactly `float32` matrices are multiplied from now on: 'highest' (throughout in float32), 'high' or 'medium'
/// (operands may be rounded to TF32 where a GPU has it). Gradients follow the product they belong to.
#[pyfunction]
pub fn set_float32_matmul_precision(precision: &str) -> Result<()> {
    linalg::set_float32_matmul_precision(Precision::parse(precision)?);
    Ok(())
}

/// What `set_float32_matmul_precision` set, 'highest' before that.
#[pyfunction]
pub fn get_float32_matmul_precision() -> &'static str {
    linalg::float32_matmul_precision().text()
}

/// Has this thread take products in `dtype`, or as they come, and what loses by that in float32; gives what was before.
#[pyfunction]
#[pyo3(signature = (dtype, careful))]
pub fn _set_autocast(
    py: Python,
    dtype: Option<&PyDType>,
    careful: bool,
) -> PyResult<(Option<Py<PyDType>>, bool)> {
    old(py, autocast::set_autocast(dtype.map(|dtype| Autocast { dtype: dtype.0, careful })))
}

/// The type this thread takes products in, if that was set, and whether it is careful with others.
#[pyfunction]
pub fn _get_autocast(py: Python) -> PyResult<(Option<Py<PyDType>>, bool)> {
    old(py, autocast::autocast())
}

fn old(py: Python, mode: Option<Autocast>) -> PyResult<(Option<Py<PyDType>>, bool)> {
    let dtype = mode.map(|mode| dtype_object(py, mode.dtype)).transpose()?;
    Ok((dtype, mode.is_some_and(|mode| mode.careful)))
}
