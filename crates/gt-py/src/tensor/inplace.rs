//! Methods that change a tensor and give it back.

use super::PyTensor;
use crate::convert::{DimsArg, Num, Other};
use crate::device::Device;
use crate::dtype::DTypeArg;
use crate::errors::{Result, type_error};
use crate::random::{PyGenerator, drawn};
use gt_client::ops::{activation, inplace, pointwise};
use gt_ir::{Binary, Scalar, Unary};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

type Me<'py> = Bound<'py, PyTensor>;

macro_rules! unary_inplace {
    ($($name:ident $op:ident;)*) => {
        #[pymethods]
        impl PyTensor {
            $(fn $name<'py>(slf: Bound<'py, Self>) -> Result<Me<'py>> {
                inplace::unary_(&slf.get().t, Unary::$op)?;
                Ok(slf)
            })*
        }
    };
}

unary_inplace! {
    neg_ Neg; abs_ Abs; exp_ Exp; log_ Log; sqrt_ Sqrt; rsqrt_ Rsqrt; sin_ Sin; cos_ Cos; tanh_ Tanh; floor_ Floor;
    sigmoid_ Sigmoid; relu_ Relu; erf_ Erf; ceil_ Ceil; trunc_ Trunc; reciprocal_ Recip; sign_ Sign;
    bitwise_not_ Not; asin_ Asin; arcsin_ Asin; acos_ Acos; arccos_ Acos; atan_ Atan; arctan_ Atan; expm1_ Expm1; log1p_ Log1p;
}

macro_rules! binary_inplace {
    ($($name:ident $op:ident;)*) => {
        #[pymethods]
        impl PyTensor {
            $(fn $name<'py>(slf: Bound<'py, Self>, other: Other) -> Result<Me<'py>> {
                slf.get().t.binary_(Binary::$op, &other.0, false)?;
                Ok(slf)
            })*
        }
    };
}

binary_inplace! {
    mul_ Mul; multiply_ Mul; floor_divide_ FloorDiv; remainder_ Rem; bitwise_and_ And; bitwise_or_ Or;
    bitwise_xor_ Xor; atan2_ Atan2; arctan2_ Atan2; eq_ Eq; ne_ Ne; lt_ Lt; le_ Le; gt_ Gt; ge_ Ge;
}

#[pymethods]
impl PyTensor {
    #[pyo3(signature = (*, decimals = 0))]
    fn round_(slf: Bound<'_, Self>, decimals: i32) -> Result<Me<'_>> {
        inplace::apply_(&slf.get().t, |x| pointwise::round(x, decimals))?;
        Ok(slf)
    }

    #[pyo3(signature = (other, *, alpha = Num(Scalar::Int(1))))]
    fn add_<'py>(slf: Bound<'py, Self>, other: Other, alpha: Num) -> Result<Me<'py>> {
        inplace::add_(&slf.get().t, &other.0, alpha.0, false)?;
        Ok(slf)
    }

    #[pyo3(signature = (other, *, alpha = Num(Scalar::Int(1))))]
    fn sub_<'py>(slf: Bound<'py, Self>, other: Other, alpha: Num) -> Result<Me<'py>> {
        inplace::sub_(&slf.get().t, &other.0, alpha.0, false)?;
        Ok(slf)
    }

    #[pyo3(signature = (other, *, rounding_mode = None))]
    fn div_<'py>(slf: Bound<'py, Self>, other: Other, rounding_mode: Option<&str>) -> Result<Me<'py>> {
        inplace::div_(&slf.get().t, &other.0, rounding_mode)?;
        Ok(slf)
    }

    fn pow_<'py>(slf: Bound<'py, Self>, exponent: Other) -> Result<Me<'py>> {
        inplace::pow_(&slf.get().t, &exponent.0)?;
        Ok(slf)
    }

    /// Copies another tensor into this one, broadcast and converted.
    #[pyo3(signature = (src, non_blocking = false))]
    fn copy_<'py>(slf: Bound<'py, Self>, src: &Bound<'py, PyAny>, non_blocking: bool) -> Result<Me<'py>> {
        let _ = non_blocking;
        match src.cast::<PyTensor>() {
            Ok(src) => inplace::copy_(&slf.get().t, &src.get().t)?,
            Err(_) => {
                let src = crate::data::tensor(src, Some(slf.get().t.dtype()), false)?;
                inplace::copy_(&slf.get().t, &src)?;
            }
        }
        Ok(slf)
    }

    fn fill_<'py>(slf: Bound<'py, Self>, value: Other) -> Result<Me<'py>> {
        inplace::fill_(&slf.get().t, &value.0)?;
        Ok(slf)
    }

    fn zero_(slf: Bound<Self>) -> Result<Me> {
        inplace::zero_(&slf.get().t)?;
        Ok(slf)
    }

    #[pyo3(signature = (mean = 0.0, std = 1.0, *, generator = None))]
    fn normal_<'py>(
        slf: Bound<'py, Self>,
        mean: f64,
        std: f64,
        generator: Option<&Bound<'py, PyGenerator>>,
    ) -> Result<Me<'py>> {
        drawn(generator, || Ok(inplace::normal_(&slf.get().t, mean, std)?))?;
        Ok(slf)
    }

    #[pyo3(name = "uniform_", signature = (from_ = 0.0, to = 1.0, *, generator = None))]
    fn uniform_<'py>(
        slf: Bound<'py, Self>,
        from_: f64,
        to: f64,
        generator: Option<&Bound<'py, PyGenerator>>,
    ) -> Result<Me<'py>> {
        drawn(generator, || Ok(inplace::uniform_(&slf.get().t, from_, to)?))?;
        Ok(slf)
    }

    #[pyo3(signature = (p = None, *, generator = None))]
    fn bernoulli_<'py>(
        slf: Bound<'py, Self>,
        p: Option<Other>,
        generator: Option<&Bound<'py, PyGenerator>>,
    ) -> Result<Me<'py>> {
        let p = p.map_or(gt_ir::Operand::Num(Scalar::Float(0.5)), |p| p.0);
        drawn(generator, || Ok(inplace::bernoulli_(&slf.get().t, &p)?))?;
        Ok(slf)
    }

    #[pyo3(signature = (lambd = 1.0, *, generator = None))]
    fn exponential_<'py>(
        slf: Bound<'py, Self>,
        lambd: f64,
        generator: Option<&Bound<'py, PyGenerator>>,
    ) -> Result<Me<'py>> {
        drawn(generator, || Ok(inplace::exponential_(&slf.get().t, lambd)?))?;
        Ok(slf)
    }

    /// Random integers from `low` up to, not including, `high`.
    #[pyo3(signature = (low, high = None, *, generator = None))]
    fn random_<'py>(
        slf: Bound<'py, Self>,
        low: i64,
        high: Option<i64>,
        generator: Option<&Bound<'py, PyGenerator>>,
    ) -> Result<Me<'py>> {
        let (low, high) = high.map_or((0, low), |high| (low, high));
        drawn(generator, || Ok(inplace::random_int_(&slf.get().t, low, high)?))?;
        Ok(slf)
    }

    #[pyo3(signature = (min = None, max = None))]
    fn clamp_<'py>(slf: Bound<'py, Self>, min: Option<Other>, max: Option<Other>) -> Result<Me<'py>> {
        let (min, max) = (min.as_ref().map(|x| &x.0), max.as_ref().map(|x| &x.0));
        inplace::clamp_(&slf.get().t, min, max)?;
        Ok(slf)
    }

    fn clamp_min_<'py>(slf: Bound<'py, Self>, min: Other) -> Result<Me<'py>> {
        PyTensor::clamp_(slf, Some(min), None)
    }

    fn clamp_max_<'py>(slf: Bound<'py, Self>, max: Other) -> Result<Me<'py>> {
        PyTensor::clamp_(slf, None, Some(max))
    }

    fn lerp_<'py>(slf: Bound<'py, Self>, end: &PyTensor, weight: Other) -> Result<Me<'py>> {
        inplace::lerp_(&slf.get().t, &end.t, &weight.0)?;
        Ok(slf)
    }

    #[pyo3(signature = (tensor1, tensor2, *, value = Num(Scalar::Int(1))))]
    fn addcmul_<'py>(slf: Bound<'py, Self>, tensor1: Other, tensor2: Other, value: Num) -> Result<Me<'py>> {
        inplace::addcmul_(&slf.get().t, &tensor1.0, &tensor2.0, value.0)?;
        Ok(slf)
    }

    #[pyo3(signature = (tensor1, tensor2, *, value = Num(Scalar::Int(1))))]
    fn addcdiv_<'py>(slf: Bound<'py, Self>, tensor1: Other, tensor2: Other, value: Num) -> Result<Me<'py>> {
        inplace::addcdiv_(&slf.get().t, &tensor1.0, &tensor2.0, value.0)?;
        Ok(slf)
    }

    #[pyo3(signature = (diagonal = 0))]
    fn tril_(slf: Bound<'_, Self>, diagonal: i64) -> Result<Me<'_>> {
        inplace::tril_(&slf.get().t, diagonal)?;
        Ok(slf)
    }

    #[pyo3(signature = (diagonal = 0))]
    fn triu_(slf: Bound<'_, Self>, diagonal: i64) -> Result<Me<'_>> {
        inplace::triu_(&slf.get().t, diagonal)?;
        Ok(slf)
    }

    fn silu_(slf: Bound<Self>) -> Result<Me> {
        inplace::apply_(&slf.get().t, activation::silu)?;
        Ok(slf)
    }

    #[pyo3(signature = (dim, dtype = None))]
    fn cumsum_(slf: Bound<'_, Self>, dim: i64, dtype: Option<DTypeArg>) -> Result<Me<'_>> {
        let dtype = dtype.map(|d| d.0);
        inplace::apply_(&slf.get().t, |x| gt_client::ops::reduce::cumsum(x, dim, dtype))?;
        Ok(slf)
    }

    #[pyo3(signature = (size, fill_value, *, dtype = None, device = None, requires_grad = false, **other))]
    fn new_full(
        &self,
        size: DimsArg,
        fill_value: Num,
        dtype: Option<DTypeArg>,
        device: Option<Device>,
        requires_grad: bool,
        other: Option<&Bound<PyDict>>,
    ) -> Result<PyTensor> {
        means_little("new_full", other)?;
        let shape = crate::convert::shape("new_full", &size.0)?;
        let dtype = dtype.map_or(self.t.dtype(), |d| d.0);
        let t = gt_client::ops::create::full(shape, fill_value.0, dtype)?;
        t.set_requires_grad(requires_grad)?;
        Ok(PyTensor::on(t, device.map_or(self.device(), Device::settled)))
    }

    #[pyo3(signature = (data, *, dtype = None, device = None, requires_grad = false, **other))]
    fn new_tensor(
        &self,
        data: &Bound<PyAny>,
        dtype: Option<DTypeArg>,
        device: Option<Device>,
        requires_grad: bool,
        other: Option<&Bound<PyDict>>,
    ) -> Result<PyTensor> {
        means_little("new_tensor", other)?;
        let t = crate::data::tensor(data, Some(dtype.map_or(self.t.dtype(), |d| d.0)), requires_grad)?;
        t.set_requires_grad(requires_grad)?;
        Ok(PyTensor::on(t, device.map_or(self.device(), Device::settled)))
    }
}

macro_rules! new_filled {
    ($($name:ident $number:literal;)*) => {
        #[pymethods]
        impl PyTensor {
            $(#[pyo3(signature = (*args, size = None, dtype = None, device = None, requires_grad = false, **other))]
            fn $name(
                &self,
                args: &Bound<PyTuple>,
                size: Option<DimsArg>,
                dtype: Option<DTypeArg>,
                device: Option<Device>,
                requires_grad: bool,
                other: Option<&Bound<PyDict>>,
            ) -> Result<PyTensor> {
                means_little(stringify!($name), other)?;
                let size = DimsArg(super::moves::given(args, size)?);
                self.new_full(size, Num(Scalar::Int($number)), dtype, device, requires_grad, None)
            })*
        }
    };
}

new_filled! { new_zeros 0; new_ones 1; new_empty 0; }

/// Refuses names that are none of PyTorch's arguments without a meaning here.
fn means_little(name: &str, other: Option<&Bound<PyDict>>) -> Result<()> {
    for key in other.iter().flat_map(|d| d.keys()) {
        let key: String = key.extract()?;
        if !matches!(key.as_str(), "layout" | "pin_memory" | "memory_format") {
            return type_error(format!("{name}() got an unexpected keyword argument '{key}'"));
        }
    }
    Ok(())
}
