//! Shapes, views, copies and conversions.

use super::PyTensor;
use crate::convert::{Dims, DimsArg, Num, varargs};
use crate::device::Device;
use crate::dtype::DTypeArg;
use crate::errors::{Result, runtime_error, type_error};
use gt_client::Tensor;
use gt_client::ops::{arith, join, moves};
use gt_ir::{DType, Scalar};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyTuple};

impl PyTensor {
    /// Several results, as Python's tuple.
    pub fn wrap_all<'py>(&self, py: Python<'py>, list: Vec<Tensor>) -> Result<Bound<'py, PyTuple>> {
        Ok(PyTuple::new(py, list.into_iter().map(|t| self.wrap(t)))?)
    }
}

macro_rules! takes_sizes {
    ($($name:ident $word:ident)*) => {
        #[pymethods]
        impl PyTensor {
            $(#[pyo3(signature = (*args, $word = None))]
            fn $name(&self, args: &Bound<PyTuple>, $word: Option<DimsArg>) -> Result<PyTensor> {
                Ok(self.wrap(moves::$name(&self.t, &given(args, $word)?)?))
            })*
        }
    };
}

takes_sizes! { reshape shape permute dims expand size broadcast_to size flip dims repeat repeats tile dims }

/// Sizes given by position or by name.
pub fn given(args: &Bound<PyTuple>, named: Option<DimsArg>) -> Result<Dims> {
    match named {
        None => varargs(args),
        Some(_) if !args.is_empty() => type_error("sizes were given twice: by position and by name"),
        Some(dims) => Ok(dims.0),
    }
}

#[pymethods]
impl PyTensor {
    /// The same elements in another shape, sharing storage.
    #[pyo3(signature = (*args, size = None))]
    fn view(&self, args: &Bound<PyTuple>, size: Option<DimsArg>) -> Result<PyTensor> {
        if args.len() == 1
            && let Ok(d) = args.get_item(0)?.cast::<crate::dtype::PyDType>()
        {
            if d.get().0 != self.t.dtype() {
                return runtime_error(
                    "view: another dtype over the same bytes is not supported: use .to(dtype)",
                );
            }
            return Ok(self.wrap(self.t.clone()));
        }
        Ok(self.wrap(moves::view(&self.t, &given(args, size)?)?))
    }

    fn view_as(&self, other: &PyTensor) -> Result<PyTensor> {
        Ok(self.wrap(moves::view(&self.t, &sizes(&other.t))?))
    }

    fn reshape_as(&self, other: &PyTensor) -> Result<PyTensor> {
        Ok(self.wrap(moves::reshape(&self.t, &sizes(&other.t))?))
    }

    fn expand_as(&self, other: &PyTensor) -> Result<PyTensor> {
        Ok(self.wrap(moves::expand_as(&self.t, &other.t)?))
    }

    fn transpose(&self, dim0: i64, dim1: i64) -> Result<PyTensor> {
        Ok(self.wrap(moves::transpose(&self.t, dim0, dim1)?))
    }

    fn swapaxes(&self, axis0: i64, axis1: i64) -> Result<PyTensor> {
        self.transpose(axis0, axis1)
    }

    fn swapdims(&self, dim0: i64, dim1: i64) -> Result<PyTensor> {
        self.transpose(dim0, dim1)
    }

    fn t(&self) -> Result<PyTensor> {
        Ok(self.wrap(moves::t(&self.t)?))
    }

    /// The dimensions in reverse order.
    #[getter]
    #[allow(non_snake_case)]
    fn T(&self) -> Result<PyTensor> {
        let dims: Vec<i64> = (0..self.t.ndim() as i64).rev().collect();
        Ok(self.wrap(moves::permute(&self.t, &dims)?))
    }

    /// The last two dimensions exchanged.
    #[getter]
    #[allow(non_snake_case)]
    fn mT(&self) -> Result<PyTensor> {
        if self.t.ndim() < 2 {
            return runtime_error("tensor.mT is only supported on matrices or batches of matrices");
        }
        self.transpose(-2, -1)
    }

    fn movedim(&self, source: DimsArg, destination: DimsArg) -> Result<PyTensor> {
        Ok(self.wrap(moves::movedim(&self.t, &source.0, &destination.0)?))
    }

    fn moveaxis(&self, source: DimsArg, destination: DimsArg) -> Result<PyTensor> {
        self.movedim(source, destination)
    }

    #[pyo3(signature = (dim = None, *, axis = None))]
    fn squeeze(&self, dim: Option<DimsArg>, axis: Option<DimsArg>) -> Result<PyTensor> {
        let dims = dim.or(axis).map(|d| d.0);
        Ok(self.wrap(moves::squeeze(&self.t, dims.as_deref())?))
    }

    #[pyo3(signature = (dim = None, *, axis = None))]
    fn unsqueeze(&self, dim: Option<i64>, axis: Option<i64>) -> Result<PyTensor> {
        let dim = super::pointwise::one_dim("unsqueeze", dim, axis)?;
        Ok(self.wrap(moves::unsqueeze(&self.t, dim)?))
    }

    #[pyo3(signature = (start_dim = 0, end_dim = -1))]
    fn flatten(&self, start_dim: i64, end_dim: i64) -> Result<PyTensor> {
        Ok(self.wrap(moves::flatten(&self.t, start_dim, end_dim)?))
    }

    fn ravel(&self) -> Result<PyTensor> {
        self.flatten(0, -1)
    }

    fn unflatten(&self, dim: i64, sizes: DimsArg) -> Result<PyTensor> {
        Ok(self.wrap(moves::unflatten(&self.t, dim, &sizes.0)?))
    }

    fn narrow(&self, dim: i64, start: i64, length: i64) -> Result<PyTensor> {
        Ok(self.wrap(moves::narrow(&self.t, dim, start, length)?))
    }

    fn select(&self, dim: i64, index: i64) -> Result<PyTensor> {
        Ok(self.wrap(moves::select(&self.t, dim, index)?))
    }

    #[pyo3(signature = (memory_format = None))]
    fn contiguous<'py>(
        slf: Bound<'py, Self>,
        memory_format: Option<&Bound<PyAny>>,
    ) -> Result<Bound<'py, Self>> {
        let (me, _) = (slf.get(), memory_format);
        match me.t.is_contiguous() {
            true => Ok(slf),
            false => Ok(Bound::new(slf.py(), me.wrap(moves::contiguous(&me.t)?))?),
        }
    }

    #[pyo3(signature = (*, memory_format = None))]
    fn clone(&self, memory_format: Option<&Bound<PyAny>>) -> Result<PyTensor> {
        let _ = memory_format;
        Ok(self.wrap(moves::clone(&self.t)?))
    }

    fn fliplr(&self) -> Result<PyTensor> {
        Ok(self.wrap(moves::flip(&self.t, &[1])?))
    }

    fn flipud(&self) -> Result<PyTensor> {
        Ok(self.wrap(moves::flip(&self.t, &[0])?))
    }

    #[pyo3(name = "_repeat_interleave", signature = (repeats, dim = None))]
    fn repeat_interleave(&self, repeats: i64, dim: Option<i64>) -> Result<PyTensor> {
        Ok(self.wrap(moves::repeat_interleave(&self.t, repeats, dim)?))
    }

    #[pyo3(signature = (shifts, dims = None))]
    fn roll(&self, shifts: DimsArg, dims: Option<DimsArg>) -> Result<PyTensor> {
        let dims = dims.map(|d| d.0).unwrap_or_default();
        Ok(self.wrap(moves::roll(&self.t, &shifts.0, &dims)?))
    }

    #[pyo3(signature = (diagonal = 0))]
    fn tril(&self, diagonal: i64) -> Result<PyTensor> {
        Ok(self.wrap(moves::tril(&self.t, diagonal)?))
    }

    #[pyo3(signature = (diagonal = 0))]
    fn triu(&self, diagonal: i64) -> Result<PyTensor> {
        Ok(self.wrap(moves::triu(&self.t, diagonal)?))
    }

    #[pyo3(signature = (offset = 0, dim1 = 0, dim2 = 1))]
    fn diagonal(&self, offset: i64, dim1: i64, dim2: i64) -> Result<PyTensor> {
        Ok(self.wrap(moves::diagonal(&self.t, offset, dim1, dim2)?))
    }

    #[pyo3(signature = (split_size, dim = 0, *, axis = None))]
    fn split<'py>(
        &self,
        py: Python<'py>,
        split_size: &Bound<'py, PyAny>,
        dim: i64,
        axis: Option<i64>,
    ) -> Result<Bound<'py, PyTuple>> {
        let dim = axis.unwrap_or(dim);
        let parts = match split_size.extract::<i64>() {
            Ok(n) => join::split_size(&self.t, n, dim)?,
            Err(_) => join::split(&self.t, &split_size.extract::<DimsArg>()?.0, dim)?,
        };
        self.wrap_all(py, parts)
    }

    #[pyo3(signature = (chunks, dim = 0, *, axis = None))]
    fn chunk<'py>(
        &self,
        py: Python<'py>,
        chunks: i64,
        dim: i64,
        axis: Option<i64>,
    ) -> Result<Bound<'py, PyTuple>> {
        self.wrap_all(py, join::chunk(&self.t, chunks, axis.unwrap_or(dim))?)
    }

    #[pyo3(signature = (dim = 0, *, axis = None))]
    fn unbind<'py>(&self, py: Python<'py>, dim: i64, axis: Option<i64>) -> Result<Bound<'py, PyTuple>> {
        self.wrap_all(py, join::unbind(&self.t, axis.unwrap_or(dim))?)
    }

    #[pyo3(signature = (pad, mode = "constant", value = None))]
    fn pad(&self, pad: DimsArg, mode: &str, value: Option<Num>) -> Result<PyTensor> {
        if mode != "constant" {
            return runtime_error(format!("pad: mode '{mode}' is not supported, only 'constant'"));
        }
        let value = value.map_or(Scalar::Int(0), |v| v.0);
        Ok(self.wrap(moves::pad(&self.t, &pad.0, value)?))
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyAny>> {
        if self.t.ndim() == 0 {
            return type_error("iteration over a 0-d tensor");
        }
        Ok(self.unbind(py, 0, None)?.try_iter()?.into_any())
    }

    /// Another dtype and device, given in any order, or those of another tensor.
    #[pyo3(signature = (*args, dtype = None, device = None, non_blocking = false, copy = false, **other))]
    fn to<'py>(
        slf: &Bound<'py, Self>,
        args: &Bound<'py, PyTuple>,
        dtype: Option<DTypeArg>,
        device: Option<Device>,
        non_blocking: bool,
        copy: bool,
        other: Option<&Bound<'py, PyDict>>,
    ) -> Result<Bound<'py, PyAny>> {
        let _ = (non_blocking, other);
        let mut copy = copy;
        // By position: whether to wait, and whether to copy.
        let flags: Vec<bool> = args
            .iter()
            .filter(|a| a.is_instance_of::<PyBool>())
            .map(|a| a.extract())
            .collect::<PyResult<_>>()?;
        if let Some(&second) = flags.get(1) {
            copy = second;
        }
        let me = slf.get();
        let (mut dtype, mut device) = (dtype.map(|d| d.0), device);
        for arg in args.iter() {
            if let Ok(t) = arg.cast::<PyTensor>() {
                dtype = Some(t.get().t.dtype());
                device = Some(t.get().device());
            } else if let Ok(d) = arg.extract::<DTypeArg>() {
                dtype = Some(d.0);
            } else if !arg.is_none() && !arg.is_instance_of::<PyBool>() {
                device = Some(arg.extract::<Device>()?);
            }
        }
        me.converted(slf, dtype, device, copy)
    }

    /// The type's name, or the tensor in another type.
    #[pyo3(signature = (dtype = None))]
    fn r#type<'py>(slf: &Bound<'py, Self>, dtype: Option<DTypeArg>) -> Result<Bound<'py, PyAny>> {
        match dtype {
            Some(d) => slf.get().converted(slf, Some(d.0), None, false),
            None => {
                let name = match slf.get().t.dtype() {
                    DType::Bool => "Bool",
                    DType::U8 => "Byte",
                    DType::I8 => "Char",
                    DType::I16 => "Short",
                    DType::I32 => "Int",
                    DType::I64 => "Long",
                    DType::F16 => "Half",
                    DType::BF16 => "BFloat16",
                    DType::F32 => "Float",
                    DType::F64 => "Double",
                };
                Ok(pyo3::types::PyString::new(slf.py(), &format!("gt.{name}Tensor")).into_any())
            }
        }
    }

    fn type_as<'py>(slf: &Bound<'py, Self>, other: &PyTensor) -> Result<Bound<'py, PyAny>> {
        slf.get().converted(slf, Some(other.t.dtype()), None, false)
    }

    fn cpu<'py>(slf: &Bound<'py, Self>) -> Result<Bound<'py, PyAny>> {
        slf.get().converted(slf, None, Some(Device::CPU), false)
    }

    #[pyo3(signature = (device = None, non_blocking = false))]
    fn cuda<'py>(
        slf: &Bound<'py, Self>,
        device: Option<Device>,
        non_blocking: bool,
    ) -> Result<Bound<'py, PyAny>> {
        let _ = non_blocking;
        slf.get().converted(slf, None, Some(device.unwrap_or(Device::CUDA)), false)
    }
}

macro_rules! casts {
    ($($name:ident $dtype:ident;)*) => {
        #[pymethods]
        impl PyTensor {
            $(#[pyo3(signature = (memory_format = None))]
            fn $name<'py>(
                slf: &Bound<'py, Self>,
                memory_format: Option<&Bound<'py, PyAny>>,
            ) -> Result<Bound<'py, PyAny>> {
                let _ = memory_format;
                slf.get().converted(slf, Some(DType::$dtype), None, false)
            })*
        }
    };
}

casts! {
    bool Bool; byte U8; char I8; short I16; int I32; long I64; half F16; bfloat16 BF16; float F32; double F64;
}

fn sizes(t: &Tensor) -> Vec<i64> {
    t.shape().iter().map(|&n| n as i64).collect()
}

impl PyTensor {
    /// In another type or with another device; the very same object if nothing changes.
    fn converted<'py>(
        &self,
        slf: &Bound<'py, Self>,
        dtype: Option<DType>,
        device: Option<Device>,
        copy: bool,
    ) -> Result<Bound<'py, PyAny>> {
        let device = device.map_or(self.device(), Device::settled);
        let dtype = dtype.unwrap_or(self.t.dtype());
        let same_type = dtype == self.t.dtype();
        if same_type && device == self.device() && !copy {
            return Ok(slf.clone().into_any());
        }
        // Another device is a copy, as in PyTorch.
        let t = if same_type { moves::clone(&self.t)? } else { arith::cast(&self.t, dtype)? };
        Ok(Bound::new(slf.py(), PyTensor::on(t, device))?.into_any())
    }
}
