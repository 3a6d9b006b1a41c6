//! Indexing, gathering and scattering.

use super::PyTensor;
use super::pointwise::one_dim;
use crate::convert::{Num, Other, operand};
use crate::data;
use crate::errors::{Result, runtime_error, type_error};
use gt_client::Tensor;
use gt_client::ops::index::{self, Index};
use gt_client::ops::{inplace, scatter};
use gt_ir::{Operand, Scalar};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyEllipsis, PyInt, PyList, PyRange, PySequence, PySlice, PyTuple};
use smallvec::SmallVec;

type Indices = SmallVec<[Index; 4]>;

fn indices(key: &Bound<PyAny>) -> Result<Indices> {
    let mut out = Indices::new();
    if let Ok(tuple) = key.cast::<PyTuple>() {
        for item in tuple.iter() {
            out.push(one(&item)?);
        }
    } else if let Some(list) = nested(key) {
        for item in list.iter() {
            out.push(one(&item)?);
        }
    } else {
        out.push(one(key)?);
    }
    Ok(out)
}

/// A list that stands for a tuple of indices, as in PyTorch: a short one with more than numbers in it.
fn nested<'a, 'py>(key: &'a Bound<'py, PyAny>) -> Option<&'a Bound<'py, PyList>> {
    let list = key.cast::<PyList>().ok().filter(|list| list.len() < 32)?;
    let is_more = |x: Bound<PyAny>| {
        x.cast::<PyTensor>().is_ok()
            || x.is_instance_of::<PySlice>()
            || x.is_instance_of::<PyEllipsis>()
            || x.is_none()
            || x.cast::<PySequence>().is_ok()
    };
    list.iter().any(is_more).then_some(list)
}

fn one(item: &Bound<PyAny>) -> Result<Index> {
    if item.is_exact_instance_of::<PyInt>() {
        return Ok(Index::Int(item.extract()?));
    }
    if let Ok(s) = item.cast::<PySlice>() {
        let part = |name: &str| -> Result<Option<i64>> {
            let x = s.getattr(name)?;
            if x.is_none() { Ok(None) } else { Ok(Some(x.extract()?)) }
        };
        return Ok(Index::Slice { start: part("start")?, stop: part("stop")?, step: part("step")? });
    }
    if let Ok(t) = item.cast::<PyTensor>() {
        let t = &t.get().t;
        return Ok(Index::Tensor(Tensor::clone(t)));
    }
    if item.is_none() {
        return Ok(Index::NewAxis);
    }
    if item.is_instance_of::<PyEllipsis>() {
        return Ok(Index::Ellipsis);
    }
    if item.is_exact_instance_of::<PyBool>() {
        return Ok(Index::Bool(item.is_truthy()?));
    }
    let is_sequence = item.is_instance_of::<PyList>() || item.is_instance_of::<PyTuple>();
    if is_sequence || item.is_instance_of::<PyRange>() || crate::array::is_array(item)? {
        let t = data::tensor(item, None, false)?;
        if t.ndim() == 0 && t.dtype() != gt_ir::DType::Bool {
            return Ok(Index::Int(item.extract()?));
        }
        // An empty list picks nothing.
        let t = if t.numel() == 0 { gt_client::ops::arith::cast(&t, gt_ir::DType::I64)? } else { t };
        return Ok(Index::Tensor(t));
    }
    if let Ok(i) = item.extract::<i64>() {
        return Ok(Index::Int(i));
    }
    let what = item.get_type();
    if item.cast::<PySequence>().is_ok() {
        return type_error(format!("index: expected a tensor or a list, got {}", what.name()?));
    }
    Err(gt_ir::Error::Index(format!(
        "only integers, slices (`:`), ellipsis (`...`), None and integer or boolean tensors are valid indices, got {}",
        what.name()?
    ))
    .into())
}

/// An index that must be given.
fn needed<'a>(op: &str, index: Option<&'a PyTensor>) -> Result<&'a PyTensor> {
    match index {
        Some(index) => Ok(index),
        None => type_error(format!("{op}() missing required argument: 'index'")),
    }
}

/// A value to be assigned: a tensor, a number, or whatever `gt.tensor` takes.
fn assigned(me: &PyTensor, value: &Bound<PyAny>) -> Result<Operand<Tensor>> {
    match operand(value)? {
        Some(x) => Ok(x),
        None => Ok(Operand::Val(data::tensor(value, Some(me.t.dtype()), false)?)),
    }
}

#[pymethods]
impl PyTensor {
    fn __getitem__(&self, key: &Bound<PyAny>) -> Result<PyTensor> {
        Ok(self.wrap(index::get(&self.t, &indices(key)?)?))
    }

    fn __setitem__(&self, key: &Bound<PyAny>, value: &Bound<PyAny>) -> Result<()> {
        let value = assigned(self, value)?;
        Ok(index::set(&self.t, &indices(key)?, &value)?)
    }

    #[pyo3(signature = (indices, values, accumulate = false))]
    fn index_put_<'py>(
        slf: Bound<'py, Self>,
        indices: &Bound<'py, PyTuple>,
        values: &Bound<'py, PyAny>,
        accumulate: bool,
    ) -> Result<Bound<'py, Self>> {
        let me = slf.get();
        let values = assigned(me, values)?;
        let list = self::indices(indices)?;
        if accumulate {
            index::index_put_add(&me.t, &list, &values)?;
        } else {
            index::set(&me.t, &list, &values)?;
        }
        Ok(slf)
    }

    /// Coordinates of the elements that are not zero; waits for their count.
    #[pyo3(signature = (*, as_tuple = false))]
    fn nonzero<'py>(&self, py: Python<'py>, as_tuple: bool) -> Result<Bound<'py, PyAny>> {
        if as_tuple {
            return Ok(self.wrap_all(py, index::nonzero_tuple(&self.t)?)?.into_any());
        }
        Ok(Bound::new(py, self.wrap(index::nonzero(&self.t)?))?.into_any())
    }

    #[pyo3(signature = (dim = None, index = None, *, sparse_grad = false, axis = None))]
    fn gather(
        &self,
        dim: Option<i64>,
        index: Option<&PyTensor>,
        sparse_grad: bool,
        axis: Option<i64>,
    ) -> Result<PyTensor> {
        let _ = sparse_grad;
        let dim = one_dim("gather", dim, axis)?;
        Ok(self.wrap(scatter::gather(&self.t, dim, &needed("gather", index)?.t)?))
    }

    #[pyo3(signature = (indices, dim = None))]
    fn take_along_dim(&self, indices: &PyTensor, dim: Option<i64>) -> Result<PyTensor> {
        Ok(self.wrap(scatter::take_along_dim(&self.t, &indices.t, dim)?))
    }

    #[pyo3(signature = (dim = None, index = None, *, axis = None))]
    fn index_select(
        &self,
        dim: Option<i64>,
        index: Option<&PyTensor>,
        axis: Option<i64>,
    ) -> Result<PyTensor> {
        let dim = one_dim("index_select", dim, axis)?;
        Ok(self.wrap(scatter::index_select(&self.t, dim, &needed("index_select", index)?.t)?))
    }

    fn take(&self, index: &PyTensor) -> Result<PyTensor> {
        Ok(self.wrap(scatter::take(&self.t, &index.t)?))
    }

    fn masked_select(&self, mask: &PyTensor) -> Result<PyTensor> {
        Ok(self.wrap(scatter::masked_select(&self.t, &mask.t)?))
    }

    fn masked_fill(&self, mask: &PyTensor, value: Other) -> Result<PyTensor> {
        Ok(self.wrap(scatter::masked_fill(&self.t, &mask.t, &value.0)?))
    }

    fn masked_fill_<'py>(slf: Bound<'py, Self>, mask: &PyTensor, value: Other) -> Result<Bound<'py, Self>> {
        inplace::masked_fill_(&slf.get().t, &mask.t, &value.0)?;
        Ok(slf)
    }

    fn masked_scatter(&self, mask: &PyTensor, source: &PyTensor) -> Result<PyTensor> {
        Ok(self.wrap(scatter::masked_scatter(&self.t, &mask.t, &source.t)?))
    }

    fn masked_scatter_<'py>(
        slf: Bound<'py, Self>,
        mask: &PyTensor,
        source: &PyTensor,
    ) -> Result<Bound<'py, Self>> {
        inplace::masked_scatter_(&slf.get().t, &mask.t, &source.t)?;
        Ok(slf)
    }

    #[pyo3(signature = (dim, index, src = None, *, value = None, reduce = None))]
    fn scatter(
        &self,
        dim: i64,
        index: &PyTensor,
        src: Option<Other>,
        value: Option<Num>,
        reduce: Option<&str>,
    ) -> Result<PyTensor> {
        let src = source(src, value)?;
        match (reduce, &src) {
            (None, _) => Ok(self.wrap(scatter::scatter(&self.t, dim, &index.t, &src)?)),
            (Some("add" | "sum"), Operand::Val(src)) => {
                Ok(self.wrap(scatter::scatter_add(&self.t, dim, &index.t, src)?))
            }
            (Some("amax"), Operand::Val(src)) => {
                Ok(self.wrap(scatter::scatter_max(&self.t, dim, &index.t, src)?))
            }
            (Some(other), _) => runtime_error(format!("scatter: reduce='{other}' is not supported")),
        }
    }

    #[pyo3(name = "_scatter_", signature = (dim, index, src = None, *, value = None))]
    fn scatter_<'py>(
        slf: Bound<'py, Self>,
        dim: i64,
        index: &PyTensor,
        src: Option<Other>,
        value: Option<Num>,
    ) -> Result<Bound<'py, Self>> {
        inplace::scatter_(&slf.get().t, dim, &index.t, &source(src, value)?)?;
        Ok(slf)
    }

    fn scatter_add(&self, dim: i64, index: &PyTensor, src: &PyTensor) -> Result<PyTensor> {
        Ok(self.wrap(scatter::scatter_add(&self.t, dim, &index.t, &src.t)?))
    }

    fn scatter_add_<'py>(
        slf: Bound<'py, Self>,
        dim: i64,
        index: &PyTensor,
        src: &PyTensor,
    ) -> Result<Bound<'py, Self>> {
        inplace::scatter_add_(&slf.get().t, dim, &index.t, &src.t)?;
        Ok(slf)
    }

    #[pyo3(signature = (dim, index, source, *, alpha = Num(Scalar::Int(1))))]
    fn index_add(&self, dim: i64, index: &PyTensor, source: &PyTensor, alpha: Num) -> Result<PyTensor> {
        Ok(self.wrap(scatter::index_add(&self.t, dim, &index.t, &source.t, alpha.0)?))
    }

    #[pyo3(signature = (dim, index, source, *, alpha = Num(Scalar::Int(1))))]
    fn index_add_<'py>(
        slf: Bound<'py, Self>,
        dim: i64,
        index: &PyTensor,
        source: &PyTensor,
        alpha: Num,
    ) -> Result<Bound<'py, Self>> {
        inplace::index_add_(&slf.get().t, dim, &index.t, &source.t, alpha.0)?;
        Ok(slf)
    }

    fn index_copy(&self, dim: i64, index: &PyTensor, source: &PyTensor) -> Result<PyTensor> {
        Ok(self.wrap(scatter::index_copy(&self.t, dim, &index.t, &source.t)?))
    }

    fn index_copy_<'py>(
        slf: Bound<'py, Self>,
        dim: i64,
        index: &PyTensor,
        source: &PyTensor,
    ) -> Result<Bound<'py, Self>> {
        inplace::index_copy_(&slf.get().t, dim, &index.t, &source.t)?;
        Ok(slf)
    }

    fn index_fill(&self, dim: i64, index: &PyTensor, value: Other) -> Result<PyTensor> {
        Ok(self.wrap(scatter::index_fill(&self.t, dim, &index.t, &value.0)?))
    }

    fn index_fill_<'py>(
        slf: Bound<'py, Self>,
        dim: i64,
        index: &PyTensor,
        value: Other,
    ) -> Result<Bound<'py, Self>> {
        inplace::index_fill_(&slf.get().t, dim, &index.t, &value.0)?;
        Ok(slf)
    }
}

/// What is scattered: `src`, or one number.
fn source(src: Option<Other>, value: Option<Num>) -> Result<Operand<Tensor>> {
    match (src, value) {
        (Some(src), None) => Ok(src.0),
        (None, Some(value)) => Ok(Operand::Num(value.0)),
        _ => type_error("scatter: expected either src or value"),
    }
}
