//! Means, variances, norms and log-sum-exp: reductions that are compositions.

use super::arith::{cast, select, unary};
use super::pointwise::as_float;
use super::reduce::{amax, amin, count_nonzero, sum};
use super::{bin, norm_dims};
use crate::Tensor;
use gt_ir::{Binary, DType, Operand, Result, Unary, bail};

/// Half types are reduced in `f32`, so that neither range nor precision is lost on the way.
fn wide(x: &Tensor) -> Result<Tensor> {
    match x.dtype() {
        DType::F16 | DType::BF16 => cast(x, DType::F32),
        _ => Ok(x.clone()),
    }
}

/// How many elements go into each result of a reduction.
fn group(op: &str, x: &Tensor, dims: &[i64]) -> Result<f64> {
    Ok(norm_dims(op, dims, x.ndim())?.iter().map(|&d| x.shape()[d]).product::<usize>() as f64)
}

fn long_name(dtype: DType) -> &'static str {
    match dtype {
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
    }
}

/// The mean along dimensions (all if none are given).
pub fn mean(x: &Tensor, dims: &[i64], keepdim: bool, dtype: Option<DType>) -> Result<Tensor> {
    let x = match dtype {
        Some(dtype) => cast(x, dtype)?,
        None => x.clone(),
    };
    if !x.dtype().is_float() {
        bail!(
            Runtime,
            "mean(): could not infer output dtype. Input dtype must be either a floating point or complex dtype. \
             Got: {}",
            long_name(x.dtype())
        );
    }
    let total = sum(&wide(&x)?, dims, keepdim, None)?;
    cast(&bin(Binary::Div, &total, group("mean", &x, dims)?)?, x.dtype())
}

/// The variance; `correction` is 1 for the unbiased estimate.
pub fn var(x: &Tensor, dims: &[i64], correction: f64, keepdim: bool) -> Result<Tensor> {
    Ok(var_mean(x, dims, correction, keepdim)?.0)
}

/// The variance and the mean.
pub fn var_mean(x: &Tensor, dims: &[i64], correction: f64, keepdim: bool) -> Result<(Tensor, Tensor)> {
    if !x.dtype().is_float() {
        bail!(
            Runtime,
            "std and var only support floating point and complex dtypes, got {}",
            x.dtype().name()
        );
    }
    let n = group("var", x, dims)?;
    let w = wide(x)?;
    let centre = bin(Binary::Div, &sum(&w, dims, true, None)?, n)?;
    let gap = bin(Binary::Sub, &w, &centre)?;
    let total = sum(&bin(Binary::Mul, &gap, &gap)?, dims, keepdim, None)?;
    let var = bin(Binary::Div, &total, (n - correction).max(0.0))?;
    let shape: Vec<i64> = var.shape().iter().map(|&n| n as i64).collect();
    let centre = super::moves::reshape(&centre, &shape)?;
    Ok((cast(&var, x.dtype())?, cast(&centre, x.dtype())?))
}

/// The standard deviation; its gradient is zero where it is zero.
pub fn std(x: &Tensor, dims: &[i64], correction: f64, keepdim: bool) -> Result<Tensor> {
    root(&var(x, dims, correction, keepdim)?)
}

/// A square root whose gradient at zero is zero.
fn root(x: &Tensor) -> Result<Tensor> {
    let zero = bin(Binary::Eq, x, 0.0)?;
    let safe = select(&zero, &1.0.into(), &x.into())?;
    select(&zero, &0.0.into(), &(&unary(Unary::Sqrt, &safe)?).into())
}

/// `log(sum(exp(x)))` without overflow.
pub fn logsumexp(x: &Tensor, dims: &[i64], keepdim: bool) -> Result<Tensor> {
    let x = as_float(x)?;
    if x.numel() == 0 {
        return unary(Unary::Log, &sum(&unary(Unary::Exp, &x)?, dims, keepdim, None)?);
    }
    let top = amax(&x.detach(), dims, true)?;
    let endless = bin(Binary::Eq, &unary(Unary::Abs, &top)?, f64::INFINITY)?;
    let top = select(&endless, &0.0.into(), &(&top).into())?;
    let total = sum(&unary(Unary::Exp, &bin(Binary::Sub, &x, &top)?)?, dims, keepdim, None)?;
    let shape: Vec<i64> = total.shape().iter().map(|&n| n as i64).collect();
    bin(Binary::Add, &unary(Unary::Log, &total)?, &super::moves::reshape(&top, &shape)?)
}

/// The p-norm; p may be 0 (how many are not zero) or an infinity.
pub fn norm(x: &Tensor, p: f64, dims: &[i64], keepdim: bool) -> Result<Tensor> {
    if !x.dtype().is_float() {
        bail!(
            Runtime,
            "linalg.vector_norm: Expected a floating point or complex tensor as input. Got {}",
            long_name(x.dtype())
        );
    }
    let size = || unary(Unary::Abs, x);
    if p == f64::INFINITY {
        return amax(&size()?, dims, keepdim);
    }
    if p == f64::NEG_INFINITY {
        return amin(&size()?, dims, keepdim);
    }
    if p == 0.0 {
        let kept: Vec<i64> = norm_dims("norm", dims, x.ndim())?.iter().map(|&d| d as i64).collect();
        let mut count = count_nonzero(x, dims)?;
        if keepdim {
            for d in kept {
                count = super::moves::unsqueeze(&count, d)?;
            }
        }
        return cast(&count, x.dtype());
    }
    let w = wide(x)?;
    if p == 1.0 {
        return cast(&sum(&unary(Unary::Abs, &w)?, dims, keepdim, None)?, x.dtype());
    }
    if p == 2.0 {
        let total = sum(&bin(Binary::Mul, &w, &w)?, dims, keepdim, None)?;
        return cast(&root(&total)?, x.dtype());
    }
    let powers = bin(Binary::Pow, &unary(Unary::Abs, &w)?, p)?;
    let total = sum(&powers, dims, keepdim, None)?;
    let zero = bin(Binary::Eq, &total, 0.0)?;
    let safe = select(&zero, &1.0.into(), &Operand::from(&total))?;
    let out = select(&zero, &0.0.into(), &(&bin(Binary::Pow, &safe, 1.0 / p)?).into())?;
    cast(&out, x.dtype())
}
