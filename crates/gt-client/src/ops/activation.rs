//! Activation functions, softmax and dropout.

use super::arith::{cast, select, unary};
use super::autocast::careful;
use super::pointwise::{as_float, clamp};
use super::{apply, bin};
use crate::Tensor;
use crate::tensor::need_float;
use gt_ir::{Binary, DType, Op, Result, Scalar, Unary, bail, norm_dim};

pub fn relu(x: &Tensor) -> Result<Tensor> {
    match x.dtype() {
        DType::Bool => bail!(Runtime, "relu: boolean inputs not supported for relu"),
        _ => unary(Unary::Relu, x),
    }
}

/// Gaussian error linear unit, exact or by the tanh approximation.
pub fn gelu(x: &Tensor, tanh_approx: bool) -> Result<Tensor> {
    need_float("gelu", x)?;
    if !tanh_approx {
        return unary(Unary::Gelu, x);
    }
    wide(x, gelu_tanh)
}

fn gelu_tanh(x: &Tensor) -> Result<Tensor> {
    let cubed = bin(Binary::Mul, &bin(Binary::Mul, x, x)?, x)?;
    let inner = bin(Binary::Add, x, &bin(Binary::Mul, &cubed, 0.044715)?)?;
    let t = unary(Unary::Tanh, &bin(Binary::Mul, &inner, (2.0 / std::f64::consts::PI).sqrt())?)?;
    let half = bin(Binary::Mul, x, 0.5)?;
    bin(Binary::Mul, &half, &bin(Binary::Add, &t, 1.0)?)
}

/// A function of halves computed in `f32`, where what is in between does not overflow.
fn wide(x: &Tensor, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    match x.dtype() {
        DType::F16 | DType::BF16 => cast(&f(&cast(x, DType::F32)?)?, x.dtype()),
        _ => f(x),
    }
}

pub fn silu(x: &Tensor) -> Result<Tensor> {
    need_float("silu", x)?;
    unary(Unary::Silu, x)
}

/// `log(1 + exp(x))` without overflow. Each side of 0 is smooth up to it, so that all derivatives hold there.
pub(crate) fn softplus_plain(x: &Tensor) -> Result<Tensor> {
    let above = bin(Binary::Gt, x, 0.0)?;
    let below = select(&above, &(&unary(Unary::Neg, x)?).into(), &x.into())?;
    bin(Binary::Add, &unary(Unary::Relu, x)?, &unary(Unary::Log1p, &unary(Unary::Exp, &below)?)?)
}

/// `log(1 + exp(beta * x)) / beta`, and `x` itself where `beta * x` exceeds the threshold.
pub fn softplus(x: &Tensor, beta: f64, threshold: f64) -> Result<Tensor> {
    need_float("softplus", x)?;
    let scaled = if beta == 1.0 { x.clone() } else { bin(Binary::Mul, x, beta)? };
    let soft = softplus_plain(&scaled)?;
    let soft = if beta == 1.0 { soft } else { bin(Binary::Div, &soft, beta)? };
    let far = bin(Binary::Gt, &scaled, threshold)?;
    select(&far, &x.into(), &(&soft).into())
}

/// `log(sigmoid(x))` without overflow.
pub fn logsigmoid(x: &Tensor) -> Result<Tensor> {
    need_float("logsigmoid", x)?;
    unary(Unary::Neg, &softplus_plain(&unary(Unary::Neg, x)?)?)
}

pub fn leaky_relu(x: &Tensor, slope: f64) -> Result<Tensor> {
    need_float("leaky_relu", x)?;
    let on = bin(Binary::Gt, x, 0.0)?;
    select(&on, &x.into(), &(&bin(Binary::Mul, x, slope)?).into())
}

/// `x` where positive, else `alpha * (exp(x) - 1)`.
pub fn elu(x: &Tensor, alpha: f64) -> Result<Tensor> {
    need_float("elu", x)?;
    let on = bin(Binary::Gt, x, 0.0)?;
    // The other branch must stay finite where it is not taken: its gradient is multiplied by zero.
    let low = select(&on, &0.0.into(), &x.into())?;
    let curve = bin(Binary::Mul, &unary(Unary::Expm1, &low)?, alpha)?;
    select(&on, &x.into(), &(&curve).into())
}

/// Elements kept within [lo, hi]; the gradient is zero at and beyond the bounds.
pub fn hardtanh(x: &Tensor, lo: f64, hi: f64) -> Result<Tensor> {
    if lo > hi {
        bail!(Value, "hardtanh: expected min_val <= max_val, got {lo} and {hi}");
    }
    // Integers stay integers.
    let bound = |n: f64| match x.dtype().is_float() {
        true => Scalar::Float(n),
        false => Scalar::Int(n as i64),
    };
    let (lo, hi) = (bound(lo), bound(hi));
    let low = bin(Binary::Le, x, lo)?;
    let x1 = select(&low, &lo.into(), &x.into())?;
    let high = bin(Binary::Ge, &x1, hi)?;
    select(&high, &hi.into(), &(&x1).into())
}

pub fn relu6(x: &Tensor) -> Result<Tensor> {
    hardtanh(x, 0.0, 6.0)
}

/// `clamp(x / 6 + 1 / 2, 0, 1)`.
pub fn hardsigmoid(x: &Tensor) -> Result<Tensor> {
    need_float("hardsigmoid", x)?;
    let ramp = bin(Binary::Div, &hardtanh(&bin(Binary::Add, x, 3.0)?, 0.0, 6.0)?, 6.0)?;
    Ok(ramp)
}

pub fn hardswish(x: &Tensor) -> Result<Tensor> {
    need_float("hardswish", x)?;
    wide(x, |x| {
        let gate = clamp(&bin(Binary::Add, x, 3.0)?, Some(&0.0.into()), Some(&6.0.into()))?;
        bin(Binary::Div, &bin(Binary::Mul, x, &gate)?, 6.0)
    })
}

/// `x * tanh(softplus(x))`.
pub fn mish(x: &Tensor) -> Result<Tensor> {
    need_float("mish", x)?;
    bin(Binary::Mul, x, &unary(Unary::Tanh, &softplus_plain(x)?)?)
}

/// `x / (1 + |x|)`.
pub fn softsign(x: &Tensor) -> Result<Tensor> {
    let x = as_float(x)?;
    bin(Binary::Div, &x, &bin(Binary::Add, &unary(Unary::Abs, &x)?, 1.0)?)
}

/// Exponentials that sum to one along `dim`, computed in `dtype` if one is given.
pub fn softmax(x: &Tensor, dim: i64, dtype: Option<DType>) -> Result<Tensor> {
    let x = prepared("softmax", x, dtype)?;
    let dim = norm_dim("softmax", dim, x.ndim())?;
    apply(Op::Softmax { dim }, &[&x])
}

/// The logarithm of `softmax`.
pub fn log_softmax(x: &Tensor, dim: i64, dtype: Option<DType>) -> Result<Tensor> {
    let x = prepared("log_softmax", x, dtype)?;
    let dim = norm_dim("log_softmax", dim, x.ndim())?;
    apply(Op::LogSoftmax { dim }, &[&x])
}

fn prepared(op: &str, x: &Tensor, dtype: Option<DType>) -> Result<Tensor> {
    let x = match dtype {
        Some(dtype) => cast(x, dtype)?,
        None => careful(&[x])?.map_or_else(|| x.clone(), |xs| xs[0].clone()),
    };
    if !x.dtype().is_float() {
        bail!(
            Runtime,
            "{op}: not implemented for {}, expected a floating-point tensor: pass dtype=gt.float32",
            x.dtype().name()
        );
    }
    Ok(x)
}

/// In training, zeroes each element with probability `p` and scales the others by `1 / (1 - p)`.
pub fn dropout(x: &Tensor, p: f64, training: bool) -> Result<Tensor> {
    if !(0.0..=1.0).contains(&p) {
        bail!(Value, "dropout probability has to be between 0 and 1, but got {p}");
    }
    if !training || p == 0.0 || x.numel() == 0 {
        return Ok(x.clone());
    }
    need_float("dropout", x)?;
    if p == 1.0 {
        return bin(Binary::Mul, x, 0.0);
    }
    let u = super::create::rand_in(&x.session()?, x.shape().clone(), DType::F32)?;
    let keep = bin(Binary::Ge, &u, p)?;
    let scaled = bin(Binary::Mul, x, 1.0 / (1.0 - p))?;
    select(&keep, &(&scaled).into(), &0.0.into())
}
