//! Order along a dimension.

use super::PyTensor;
use super::reduce::values_indices;
use crate::errors::Result;
use gt_client::ops::sort;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

#[pymethods]
impl PyTensor {
    /// Elements in order along a dimension, and where they were. Equals always keep their order.
    #[pyo3(signature = (dim = -1, descending = false, stable = None, *, axis = None))]
    fn sort<'py>(
        &self,
        py: Python<'py>,
        dim: i64,
        descending: bool,
        stable: Option<bool>,
        axis: Option<i64>,
    ) -> Result<Bound<'py, PyAny>> {
        let _ = stable;
        values_indices(py, self, "sort", sort::sort(&self.t, axis.unwrap_or(dim), descending)?)
    }

    /// Where the elements of the sorted tensor were.
    #[pyo3(signature = (dim = -1, descending = false, stable = None, *, axis = None))]
    fn argsort(
        &self,
        dim: i64,
        descending: bool,
        stable: Option<bool>,
        axis: Option<i64>,
    ) -> Result<PyTensor> {
        let _ = stable;
        Ok(self.wrap(sort::argsort(&self.t, axis.unwrap_or(dim), descending)?))
    }

    /// The elements in order along the first dimension.
    fn msort(&self) -> Result<PyTensor> {
        Ok(self.wrap(sort::sort(&self.t, 0, false)?.0))
    }

    /// The `k` largest or smallest elements along a dimension, always in order, and where they are.
    #[pyo3(signature = (k, dim = -1, largest = true, sorted = true, *, axis = None))]
    fn topk<'py>(
        &self,
        py: Python<'py>,
        k: i64,
        dim: i64,
        largest: bool,
        sorted: bool,
        axis: Option<i64>,
    ) -> Result<Bound<'py, PyAny>> {
        let _ = sorted;
        values_indices(py, self, "topk", sort::topk(&self.t, k, axis.unwrap_or(dim), largest)?)
    }

    /// The `k`th smallest element along a dimension, counted from 1, and where it is.
    #[pyo3(signature = (k, dim = -1, keepdim = false, *, axis = None, keepdims = false))]
    fn kthvalue<'py>(
        &self,
        py: Python<'py>,
        k: i64,
        dim: i64,
        keepdim: bool,
        axis: Option<i64>,
        keepdims: bool,
    ) -> Result<Bound<'py, PyAny>> {
        let found = sort::kthvalue(&self.t, k, axis.unwrap_or(dim), keepdim || keepdims)?;
        values_indices(py, self, "kthvalue", found)
    }

    /// The median of all elements, or along a dimension with its place; of two the smaller.
    #[pyo3(signature = (dim = None, keepdim = false, *, axis = None, keepdims = false))]
    fn median<'py>(
        &self,
        py: Python<'py>,
        dim: Option<i64>,
        keepdim: bool,
        axis: Option<i64>,
        keepdims: bool,
    ) -> Result<Bound<'py, PyAny>> {
        let keepdim = keepdim || keepdims;
        match dim.or(axis) {
            None => Ok(Bound::new(py, self.wrap(sort::median_all(&self.t)?))?.into_any()),
            Some(dim) => values_indices(py, self, "median", sort::median(&self.t, dim, keepdim)?),
        }
    }

    /// The distinct elements, always in order; perhaps with the place of each element among them, and their counts.
    #[pyo3(name = "_unique", signature = (return_inverse = false, return_counts = false))]
    fn unique<'py>(
        &self,
        py: Python<'py>,
        return_inverse: bool,
        return_counts: bool,
    ) -> Result<Bound<'py, PyAny>> {
        let found = sort::unique(&self.t)?;
        let mut list = vec![self.wrap(found.values)];
        list.extend(return_inverse.then(|| self.wrap(found.inverse)));
        list.extend(return_counts.then(|| self.wrap(found.counts)));
        if list.len() == 1 {
            return Ok(Bound::new(py, list.remove(0))?.into_any());
        }
        Ok(PyTuple::new(py, list)?.into_any())
    }
}
