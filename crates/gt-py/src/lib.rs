//! The Python face of GT: conversions and one error map.
use pyo3::prelude::*;
#[pymodule]
mod _gt {}
