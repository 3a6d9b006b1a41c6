//! Reductions.

use super::PyTensor;
use super::pointwise::one_dim;
use crate::convert::{Dims, DimsArg};
use crate::dtype::DTypeArg;
use crate::errors::{Result, type_error};
use gt_client::Tensor;
use gt_client::ops::{arith, pointwise, reduce, stat};
use gt_ir::{Binary, DType, Operand, Scalar};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

/// Dimensions given as `dim` or `axis`; none means all.
fn dims(dim: Option<DimsArg>, axis: Option<DimsArg>) -> Dims {
    dim.or(axis).map(|d| d.0).unwrap_or_default()
}

fn keep(keepdim: Option<bool>, keepdims: Option<bool>) -> bool {
    keepdim.or(keepdims).unwrap_or(false)
}

/// Elements and where they are, as PyTorch's named tuple.
pub fn values_indices<'py>(
    py: Python<'py>,
    me: &PyTensor,
    name: &str,
    pair: (Tensor, Tensor),
) -> Result<Bound<'py, PyAny>> {
    static PAIR: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let class = PAIR.import(py, "gt._size", "ValuesIndices")?;
    Ok(class.call1((name, me.wrap(pair.0), me.wrap(pair.1)))?)
}

macro_rules! over_dims {
    ($($family:ident::$name:ident)*) => {
        #[pymethods]
        impl PyTensor {
            $(#[pyo3(signature = (dim = None, keepdim = None, *, axis = None, keepdims = None))]
            fn $name(
                &self,
                dim: Option<DimsArg>,
                keepdim: Option<bool>,
                axis: Option<DimsArg>,
                keepdims: Option<bool>,
            ) -> Result<PyTensor> {
                Ok(self.wrap($family::$name(&self.t, &dims(dim, axis), keep(keepdim, keepdims))?))
            })*
        }
    };
}

over_dims! { reduce::amax reduce::amin stat::logsumexp }

macro_rules! truths {
    ($($name:ident)*) => {
        #[pymethods]
        impl PyTensor {
            $(#[pyo3(signature = (dim = None, keepdim = None, *, axis = None, keepdims = None))]
            fn $name(
                &self,
                dim: Option<DimsArg>,
                keepdim: Option<bool>,
                axis: Option<DimsArg>,
                keepdims: Option<bool>,
            ) -> Result<PyTensor> {
                // An empty list of dimensions is none of them here, as in PyTorch.
                if dim.as_ref().or(axis.as_ref()).is_some_and(|d| d.0.is_empty()) {
                    let zero = Operand::Num(Scalar::Int(0));
                    let found = arith::binary(Binary::Ne, &(&*self.t).into(), &zero)?;
                    // Bytes stay bytes, as along other dimensions.
                    let bytes = self.t.dtype() == DType::U8;
                    return Ok(self.wrap(if bytes { arith::cast(&found, DType::U8)? } else { found }));
                }
                Ok(self.wrap(reduce::$name(&self.t, &dims(dim, axis), keep(keepdim, keepdims))?))
            })*
        }
    };
}

truths! { all any }

macro_rules! over_dims_in_dtype {
    ($($family:ident::$name:ident)*) => {
        #[pymethods]
        impl PyTensor {
            $(#[pyo3(signature = (dim = None, keepdim = None, *, dtype = None, axis = None, keepdims = None))]
            fn $name(
                &self,
                dim: Option<DimsArg>,
                keepdim: Option<bool>,
                dtype: Option<DTypeArg>,
                axis: Option<DimsArg>,
                keepdims: Option<bool>,
            ) -> Result<PyTensor> {
                let dtype = dtype.map(|d| d.0);
                Ok(self.wrap($family::$name(&self.t, &dims(dim, axis), keep(keepdim, keepdims), dtype)?))
            })*
        }
    };
}

over_dims_in_dtype! { reduce::sum reduce::prod stat::mean }

macro_rules! extremes {
    ($($name:ident $all:ident $along:ident $two:ident $arg:ident;)*) => {
        #[pymethods]
        impl PyTensor {
            $(
                /// The extreme of all elements, or along a dimension with its place, or of two tensors.
                #[pyo3(signature = (dim = None, keepdim = None, *, axis = None, keepdims = None, other = None))]
                fn $name<'py>(
                    &self,
                    py: Python<'py>,
                    dim: Option<&Bound<'py, PyAny>>,
                    keepdim: Option<bool>,
                    axis: Option<i64>,
                    keepdims: Option<bool>,
                    other: Option<&PyTensor>,
                ) -> Result<Bound<'py, PyAny>> {
                    let pair = |other: &PyTensor| -> Result<Bound<'py, PyAny>> {
                        let other = Operand::Val(other.t.clone());
                        let t = pointwise::$two(&Operand::Val(self.t.clone()), &other)?;
                        Ok(Bound::new(py, self.wrap(t))?.into_any())
                    };
                    if let Some(other) = other {
                        return pair(other);
                    }
                    let dim = match dim {
                        None => axis,
                        Some(d) => match d.cast::<PyTensor>() {
                            Ok(other) => return pair(other.get()),
                            Err(_) => Some(d.extract()?),
                        },
                    };
                    match dim {
                        None => Ok(Bound::new(py, self.wrap(reduce::$all(&self.t)?))?.into_any()),
                        Some(d) => {
                            let pair = reduce::$along(&self.t, d, keep(keepdim, keepdims))?;
                            values_indices(py, self, stringify!($name), pair)
                        }
                    }
                }

                #[pyo3(signature = (dim = None, keepdim = None, *, axis = None, keepdims = None))]
                fn $arg(
                    &self,
                    dim: Option<i64>,
                    keepdim: Option<bool>,
                    axis: Option<i64>,
                    keepdims: Option<bool>,
                ) -> Result<PyTensor> {
                    Ok(self.wrap(reduce::$arg(&self.t, dim.or(axis), keep(keepdim, keepdims))?))
                }
            )*
        }
    };
}

extremes! {
    max max_all max_dim maximum argmax;
    min min_all min_dim minimum argmin;
}

/// How many degrees of freedom are lost: `correction`, or PyTorch's older `unbiased`.
fn lost(unbiased: Option<bool>, correction: Option<f64>) -> f64 {
    match (correction, unbiased) {
        (Some(c), _) => c,
        (None, Some(false)) => 0.0,
        (None, _) => 1.0,
    }
}

impl PyTensor {
    /// The sum of the singular values, which Python has.
    fn nuclear(&self, py: Python, dims: &[i64], keepdim: bool, dtype: Option<DTypeArg>) -> Result<PyTensor> {
        let t = match dtype {
            Some(d) => gt_client::ops::arith::cast(&self.t, d.0)?,
            None => self.t.clone(),
        };
        let dims = if dims.is_empty() { vec![-2, -1] } else { dims.to_vec() };
        let norm = py.import("gt.linalg")?.getattr("matrix_norm")?;
        let found = norm.call1((self.wrap(t), "nuc", dims, keepdim))?;
        let found = found.cast::<PyTensor>().map_err(PyErr::from)?;
        Ok(self.wrap(found.get().t.clone()))
    }
}

macro_rules! spreads {
    ($($name:ident)*) => {
        #[pymethods]
        impl PyTensor {
            $(#[pyo3(signature = (
                dim = None, unbiased = None, keepdim = None, *, correction = None, axis = None, keepdims = None
            ))]
            fn $name(
                &self,
                dim: Option<&Bound<PyAny>>,
                unbiased: Option<bool>,
                keepdim: Option<bool>,
                correction: Option<f64>,
                axis: Option<DimsArg>,
                keepdims: Option<bool>,
            ) -> Result<PyTensor> {
                // The older form has `unbiased` first.
                let (dim, unbiased) = match dim {
                    Some(d) if d.is_instance_of::<pyo3::types::PyBool>() => (None, Some(d.extract()?)),
                    Some(d) => (Some(d.extract::<DimsArg>()?), unbiased),
                    None => (None, unbiased),
                };
                let correction = lost(unbiased, correction);
                let keep = keep(keepdim, keepdims);
                Ok(self.wrap(stat::$name(&self.t, &dims(dim, axis), correction, keep)?))
            })*
        }
    };
}

spreads! { var std }

#[pymethods]
impl PyTensor {
    #[pyo3(signature = (p = None, dim = None, keepdim = None, dtype = None, *, axis = None, keepdims = None))]
    fn norm(
        &self,
        p: Option<&Bound<PyAny>>,
        dim: Option<DimsArg>,
        keepdim: Option<bool>,
        dtype: Option<DTypeArg>,
        axis: Option<DimsArg>,
        keepdims: Option<bool>,
    ) -> Result<PyTensor> {
        let dims = dims(dim, axis);
        let keep = keep(keepdim, keepdims);
        let p = match p {
            None => 2.0,
            Some(p) => match p.extract::<f64>() {
                Ok(p) => p,
                Err(_) if p.extract::<&str>().is_ok_and(|p| p == "fro") => 2.0,
                Err(_) if p.extract::<&str>().is_ok_and(|p| p == "nuc") => {
                    return self.nuclear(p.py(), &dims, keep, dtype);
                }
                Err(_) => return type_error("norm: p must be a number, 'fro' or 'nuc'"),
            },
        };
        let t = match dtype {
            Some(d) => gt_client::ops::arith::cast(&self.t, d.0)?,
            None => self.t.clone(),
        };
        Ok(self.wrap(stat::norm(&t, p, &dims, keep)?))
    }

    #[pyo3(signature = (dim = None, *, dtype = None, axis = None))]
    fn cumsum(&self, dim: Option<i64>, dtype: Option<DTypeArg>, axis: Option<i64>) -> Result<PyTensor> {
        let dim = one_dim("cumsum", dim, axis)?;
        Ok(self.wrap(reduce::cumsum(&self.t, dim, dtype.map(|d| d.0))?))
    }

    #[pyo3(signature = (dim = None, *, dtype = None, axis = None))]
    fn cumprod(&self, dim: Option<i64>, dtype: Option<DTypeArg>, axis: Option<i64>) -> Result<PyTensor> {
        let dim = one_dim("cumprod", dim, axis)?;
        Ok(self.wrap(reduce::cumprod(&self.t, dim, dtype.map(|d| d.0))?))
    }

    #[pyo3(signature = (dim = None, *, axis = None))]
    fn count_nonzero(&self, dim: Option<DimsArg>, axis: Option<DimsArg>) -> Result<PyTensor> {
        Ok(self.wrap(reduce::count_nonzero(&self.t, &dims(dim, axis))?))
    }
}
