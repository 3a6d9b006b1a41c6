//! How exactly `f32` matrices are multiplied.

use crate::errors::Result;
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
