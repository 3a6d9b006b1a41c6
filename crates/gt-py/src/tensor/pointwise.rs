//! Elementwise methods.

use super::PyTensor;
use crate::convert::{Num, Other};
use crate::dtype::DTypeArg;
use crate::errors::{Result, runtime_error, type_error};
use gt_client::Tensor;
use gt_client::ops::{activation, pointwise};
use gt_ir::{Binary, Operand, Scalar, Unary};
use pyo3::prelude::*;

impl PyTensor {
    fn me(&self) -> Operand<Tensor> {
        Operand::Val(self.t.clone())
    }
}

macro_rules! unary_methods {
    ($($name:ident $op:ident;)*) => {
        #[pymethods]
        impl PyTensor {
            $(fn $name(&self) -> Result<PyTensor> {
                self.unary(Unary::$op)
            })*
        }
    };
}

unary_methods! {
    neg Neg; negative Neg; abs Abs; absolute Abs; sign Sign; exp Exp; expm1 Expm1; log Log; log1p Log1p; sqrt Sqrt;
    rsqrt Rsqrt; sin Sin; cos Cos; asin Asin; arcsin Asin; acos Acos; arccos Acos; atan Atan; arctan Atan; tanh Tanh; sigmoid Sigmoid; erf Erf; floor Floor; ceil Ceil; trunc Trunc;
}

macro_rules! simple_methods {
    ($($family:ident: $($name:ident)*;)*) => {
        #[pymethods]
        impl PyTensor {
            $($(fn $name(&self) -> Result<PyTensor> {
                Ok(self.wrap($family::$name(&self.t)?))
            })*)*
        }
    };
}

simple_methods! {
    pointwise: square reciprocal log2 log10 exp2 tan sinh cosh frac logical_not bitwise_not isnan isinf isfinite;
    activation: relu silu logsigmoid relu6 hardsigmoid hardswish mish softsign;
}

macro_rules! binary_methods {
    ($($family:ident: $($name:ident)*;)*) => {
        #[pymethods]
        impl PyTensor {
            $($(fn $name(&self, other: Other) -> Result<PyTensor> {
                Ok(self.wrap($family::$name(&self.me(), &other.0)?))
            })*)*
        }
    };
}

binary_methods! {
    pointwise: floor_divide remainder fmod logical_and logical_or logical_xor;
}

macro_rules! table_methods {
    ($($name:ident $op:ident;)*) => {
        #[pymethods]
        impl PyTensor {
            $(fn $name(&self, other: Other) -> Result<PyTensor> {
                self.binary(Binary::$op, &other.0)
            })*
        }
    };
}

table_methods! {
    mul Mul; multiply Mul; eq Eq; ne Ne; not_equal Ne; lt Lt; less Lt; le Le; less_equal Le; gt Gt; greater Gt;
    ge Ge; greater_equal Ge; atan2 Atan2; arctan2 Atan2; bitwise_and And; bitwise_or Or; bitwise_xor Xor;
}

fn optional(x: &Option<Other>) -> Option<&Operand<Tensor>> {
    x.as_ref().map(|x| &x.0)
}

#[pymethods]
impl PyTensor {
    #[pyo3(signature = (other, *, alpha = Num(Scalar::Int(1))))]
    fn add(&self, other: Other, alpha: Num) -> Result<PyTensor> {
        Ok(self.wrap(pointwise::add(&self.me(), &other.0, alpha.0)?))
    }

    #[pyo3(signature = (other, *, alpha = Num(Scalar::Int(1))))]
    fn sub(&self, other: Other, alpha: Num) -> Result<PyTensor> {
        Ok(self.wrap(pointwise::sub(&self.me(), &other.0, alpha.0)?))
    }

    #[pyo3(signature = (other, *, alpha = Num(Scalar::Int(1))))]
    fn subtract(&self, other: Other, alpha: Num) -> Result<PyTensor> {
        self.sub(other, alpha)
    }

    #[pyo3(signature = (other, *, alpha = Num(Scalar::Int(1))))]
    fn rsub(&self, other: Other, alpha: Num) -> Result<PyTensor> {
        Ok(self.wrap(pointwise::sub(&other.0, &self.me(), alpha.0)?))
    }

    #[pyo3(signature = (other, *, rounding_mode = None))]
    fn div(&self, other: Other, rounding_mode: Option<&str>) -> Result<PyTensor> {
        Ok(self.wrap(pointwise::div(&self.me(), &other.0, rounding_mode)?))
    }

    #[pyo3(signature = (other, *, rounding_mode = None))]
    fn divide(&self, other: Other, rounding_mode: Option<&str>) -> Result<PyTensor> {
        self.div(other, rounding_mode)
    }

    fn true_divide(&self, other: Other) -> Result<PyTensor> {
        self.div(other, None)
    }

    fn pow(&self, exponent: Other) -> Result<PyTensor> {
        Ok(self.wrap(pointwise::pow(&self.me(), &exponent.0)?))
    }

    /// Rounds to the nearest integer, halves to even, or to a number of decimals.
    #[pyo3(signature = (*, decimals = 0))]
    fn round(&self, decimals: i32) -> Result<PyTensor> {
        Ok(self.wrap(pointwise::round(&self.t, decimals)?))
    }

    fn maximum(&self, other: &PyTensor) -> Result<PyTensor> {
        Ok(self.wrap(pointwise::maximum(&self.me(), &other.me())?))
    }

    fn minimum(&self, other: &PyTensor) -> Result<PyTensor> {
        Ok(self.wrap(pointwise::minimum(&self.me(), &other.me())?))
    }

    #[pyo3(signature = (min = None, max = None))]
    fn clamp(&self, min: Option<Other>, max: Option<Other>) -> Result<PyTensor> {
        Ok(self.wrap(pointwise::clamp(&self.t, optional(&min), optional(&max))?))
    }

    #[pyo3(signature = (min = None, max = None))]
    fn clip(&self, min: Option<Other>, max: Option<Other>) -> Result<PyTensor> {
        self.clamp(min, max)
    }

    fn clamp_min(&self, min: Other) -> Result<PyTensor> {
        self.clamp(Some(min), None)
    }

    fn clamp_max(&self, max: Other) -> Result<PyTensor> {
        self.clamp(None, Some(max))
    }

    /// Elements of this tensor where the condition holds, else of `other`.
    #[pyo3(name = "where")]
    fn where_method(&self, condition: &PyTensor, other: Other) -> Result<PyTensor> {
        Ok(self.wrap(pointwise::where_(&condition.t, &self.me(), &other.0)?))
    }

    #[pyo3(signature = (nan = 0.0, posinf = None, neginf = None))]
    fn nan_to_num(&self, nan: f64, posinf: Option<f64>, neginf: Option<f64>) -> Result<PyTensor> {
        Ok(self.wrap(pointwise::nan_to_num(&self.t, nan, posinf, neginf)?))
    }

    #[pyo3(signature = (other, rtol = 1e-5, atol = 1e-8, equal_nan = false))]
    fn isclose(&self, other: &PyTensor, rtol: f64, atol: f64, equal_nan: bool) -> Result<PyTensor> {
        Ok(self.wrap(pointwise::isclose(&self.t, &other.t, rtol, atol, equal_nan)?))
    }

    /// True if all elements are close; waits for the answer.
    #[pyo3(signature = (other, rtol = 1e-5, atol = 1e-8, equal_nan = false))]
    fn allclose(&self, other: &PyTensor, rtol: f64, atol: f64, equal_nan: bool) -> Result<bool> {
        let close = pointwise::isclose(&self.t, &other.t, rtol, atol, equal_nan)?;
        Ok(gt_client::ops::reduce::all(&close, &[], false)?.item()?.as_bool())
    }

    /// True if shapes and elements are equal; waits for the answer.
    fn equal(&self, other: &PyTensor) -> Result<bool> {
        Ok(pointwise::equal(&self.t, &other.t)?)
    }

    fn lerp(&self, end: &PyTensor, weight: Other) -> Result<PyTensor> {
        Ok(self.wrap(pointwise::lerp(&self.t, &end.t, &weight.0)?))
    }

    #[pyo3(signature = (tensor1, tensor2, *, value = Num(Scalar::Int(1))))]
    fn addcmul(&self, tensor1: Other, tensor2: Other, value: Num) -> Result<PyTensor> {
        Ok(self.wrap(pointwise::addcmul(&self.t, &tensor1.0, &tensor2.0, value.0)?))
    }

    #[pyo3(signature = (tensor1, tensor2, *, value = Num(Scalar::Int(1))))]
    fn addcdiv(&self, tensor1: Other, tensor2: Other, value: Num) -> Result<PyTensor> {
        Ok(self.wrap(pointwise::addcdiv(&self.t, &tensor1.0, &tensor2.0, value.0)?))
    }

    #[pyo3(signature = (*, approximate = "none"))]
    fn gelu(&self, approximate: &str) -> Result<PyTensor> {
        match approximate {
            "none" | "tanh" => Ok(self.wrap(activation::gelu(&self.t, approximate == "tanh")?)),
            other => {
                runtime_error(format!("gelu: approximate argument must be either none or tanh, got {other}"))
            }
        }
    }

    #[pyo3(signature = (beta = 1.0, threshold = 20.0))]
    fn softplus(&self, beta: f64, threshold: f64) -> Result<PyTensor> {
        Ok(self.wrap(activation::softplus(&self.t, beta, threshold)?))
    }

    #[pyo3(signature = (negative_slope = 0.01))]
    fn leaky_relu(&self, negative_slope: f64) -> Result<PyTensor> {
        Ok(self.wrap(activation::leaky_relu(&self.t, negative_slope)?))
    }

    #[pyo3(signature = (alpha = 1.0))]
    fn elu(&self, alpha: f64) -> Result<PyTensor> {
        Ok(self.wrap(activation::elu(&self.t, alpha)?))
    }

    #[pyo3(signature = (min_val = -1.0, max_val = 1.0))]
    fn hardtanh(&self, min_val: f64, max_val: f64) -> Result<PyTensor> {
        Ok(self.wrap(activation::hardtanh(&self.t, min_val, max_val)?))
    }

    #[pyo3(signature = (dim = None, dtype = None, *, axis = None))]
    fn softmax(&self, dim: Option<i64>, dtype: Option<DTypeArg>, axis: Option<i64>) -> Result<PyTensor> {
        let dim = one_dim("softmax", dim, axis)?;
        Ok(self.wrap(activation::softmax(&self.t, dim, dtype.map(|d| d.0))?))
    }

    #[pyo3(signature = (dim = None, dtype = None, *, axis = None))]
    fn log_softmax(&self, dim: Option<i64>, dtype: Option<DTypeArg>, axis: Option<i64>) -> Result<PyTensor> {
        let dim = one_dim("log_softmax", dim, axis)?;
        Ok(self.wrap(activation::log_softmax(&self.t, dim, dtype.map(|d| d.0))?))
    }

    #[pyo3(signature = (p = 0.5, training = true))]
    fn dropout(&self, p: f64, training: bool) -> Result<PyTensor> {
        Ok(self.wrap(activation::dropout(&self.t, p, training)?))
    }
}

/// The dimension, given as `dim` or `axis`.
pub fn one_dim(op: &str, dim: Option<i64>, axis: Option<i64>) -> Result<i64> {
    match dim.or(axis) {
        Some(d) => Ok(d),
        None => type_error(format!("{op}() missing required argument: 'dim'")),
    }
}
