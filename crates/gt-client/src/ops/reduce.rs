//! Reductions along dimensions. An empty list of dimensions means all of them.

use super::arith::cast;
use super::autocast::careful;
use super::inplace::snapshot;
use super::pointwise::to_bool;
use super::{apply, bin, moves, norm_dims};
use crate::Tensor;
use gt_ir::{ArgKind, Binary, DType, Op, Operand, ReduceKind, Result, Scalar, ScanKind, bail, norm_dim};

pub use super::activation::{log_softmax, softmax};
pub use super::stat::{logsumexp, mean, norm, std, var, var_mean};

pub(crate) fn reduce(op: &str, kind: ReduceKind, x: &Tensor, dims: &[i64], keepdim: bool) -> Result<Tensor> {
    let dims = norm_dims(op, dims, x.ndim())?;
    apply(Op::Reduce { kind, dims, keepdim }, &[x])
}

/// Integers and bools are summed as `i64` unless a dtype is given.
fn widened(x: &Tensor, dtype: Option<DType>) -> Result<Tensor> {
    match dtype {
        Some(dtype) => cast(x, dtype),
        None if x.dtype().is_float() => Ok(careful(&[x])?.map_or_else(|| x.clone(), |xs| xs[0].clone())),
        None => cast(x, DType::I64),
    }
}

pub fn sum(x: &Tensor, dims: &[i64], keepdim: bool, dtype: Option<DType>) -> Result<Tensor> {
    reduce("sum", ReduceKind::Sum, &widened(x, dtype)?, dims, keepdim)
}

pub fn prod(x: &Tensor, dims: &[i64], keepdim: bool, dtype: Option<DType>) -> Result<Tensor> {
    reduce("prod", ReduceKind::Prod, &widened(x, dtype)?, dims, keepdim)
}

/// The largest elements; the gradient is shared by equals.
pub fn amax(x: &Tensor, dims: &[i64], keepdim: bool) -> Result<Tensor> {
    reduce("amax", ReduceKind::Max, x, dims, keepdim)
}

/// The smallest elements; the gradient is shared by equals.
pub fn amin(x: &Tensor, dims: &[i64], keepdim: bool) -> Result<Tensor> {
    reduce("amin", ReduceKind::Min, x, dims, keepdim)
}

/// The largest element of all; the gradient is shared by equals.
pub fn max_all(x: &Tensor) -> Result<Tensor> {
    not_empty("max", x)?;
    amax(x, &[], false)
}

/// The smallest element of all; the gradient is shared by equals.
pub fn min_all(x: &Tensor) -> Result<Tensor> {
    not_empty("min", x)?;
    amin(x, &[], false)
}

fn not_empty(op: &str, x: &Tensor) -> Result<()> {
    if x.numel() == 0 {
        bail!(
            Runtime,
            "{op}(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim with \
             the 'dim' argument."
        );
    }
    Ok(())
}

/// The largest elements along one dimension and where they are; the gradient goes to those elements.
pub fn max_dim(x: &Tensor, dim: i64, keepdim: bool) -> Result<(Tensor, Tensor)> {
    extreme("max", ArgKind::Max, x, dim, keepdim)
}

/// The smallest elements along one dimension and where they are; the gradient goes to those elements.
pub fn min_dim(x: &Tensor, dim: i64, keepdim: bool) -> Result<(Tensor, Tensor)> {
    extreme("min", ArgKind::Min, x, dim, keepdim)
}

fn extreme(op: &str, kind: ArgKind, x: &Tensor, dim: i64, keepdim: bool) -> Result<(Tensor, Tensor)> {
    let d = norm_dim(op, dim, x.ndim())?;
    if x.ndim() == 0 {
        return Ok((moves::clone(x)?, super::create::zeros_like(x, Some(DType::I64))?));
    }
    if x.shape()[d] == 0 {
        bail!(Index, "{op}(): Expected reduction dim {d} to have non-zero size.");
    }
    let index = apply(Op::ArgReduce { kind, dim: d, keepdim: true }, &[x])?;
    let values = apply(Op::Gather { dim: d }, &[x, &index])?;
    if keepdim {
        return Ok((values, index));
    }
    let narrow = |x: &Tensor| snapshot(&moves::squeeze(x, Some(&[d as i64]))?);
    Ok((narrow(&values)?, narrow(&index)?))
}

/// Where the largest element is, the first of equals; without a dimension, in the flattened tensor.
pub fn argmax(x: &Tensor, dim: Option<i64>, keepdim: bool) -> Result<Tensor> {
    arg("argmax", ArgKind::Max, x, dim, keepdim)
}

/// Where the smallest element is, the first of equals; without a dimension, in the flattened tensor.
pub fn argmin(x: &Tensor, dim: Option<i64>, keepdim: bool) -> Result<Tensor> {
    arg("argmin", ArgKind::Min, x, dim, keepdim)
}

fn arg(op: &str, kind: ArgKind, x: &Tensor, dim: Option<i64>, keepdim: bool) -> Result<Tensor> {
    let rank = x.ndim();
    let d = norm_dim(op, dim.unwrap_or(0), rank)?;
    let (x, d) = match dim {
        Some(_) if rank > 0 => (x.clone(), d),
        _ => (moves::reshape(x, &[-1])?, 0),
    };
    if x.shape()[d] == 0 {
        bail!(Index, "{op}(): Expected reduction dim {d} to have non-zero size.");
    }
    let found = apply(Op::ArgReduce { kind, dim: d, keepdim: keepdim && dim.is_some() && rank > 0 }, &[&x])?;
    match dim {
        None if keepdim => moves::reshape(&found, &vec![1; rank]),
        _ => Ok(found),
    }
}

/// True where all elements along the dimensions are non-zero.
pub fn all(x: &Tensor, dims: &[i64], keepdim: bool) -> Result<Tensor> {
    truth("all", x, dims, keepdim, ReduceKind::Min)
}

/// True where some element along the dimensions is non-zero.
pub fn any(x: &Tensor, dims: &[i64], keepdim: bool) -> Result<Tensor> {
    truth("any", x, dims, keepdim, ReduceKind::Max)
}

fn truth(op: &str, x: &Tensor, dims: &[i64], keepdim: bool, kind: ReduceKind) -> Result<Tensor> {
    let Operand::Val(flags) = to_bool(&x.into())? else { bail!(Type, "{op}: expected a tensor") };
    let out = if norm_dims(op, dims, x.ndim())?.iter().any(|&d| x.shape()[d] == 0) {
        // Over no elements `any` is false and `all` is true.
        let count = sum(&flags, dims, keepdim, None)?;
        bin(if kind == ReduceKind::Max { Binary::Ne } else { Binary::Eq }, &count, Scalar::Int(0))?
    } else {
        reduce(op, kind, &flags, dims, keepdim)?
    };
    if x.dtype() == DType::U8 { cast(&out, DType::U8) } else { Ok(out) }
}

/// Running sums along `dim`.
pub fn cumsum(x: &Tensor, dim: i64, dtype: Option<DType>) -> Result<Tensor> {
    scan("cumsum", ScanKind::Sum, x, dim, dtype)
}

/// Running products along `dim`.
pub fn cumprod(x: &Tensor, dim: i64, dtype: Option<DType>) -> Result<Tensor> {
    scan("cumprod", ScanKind::Prod, x, dim, dtype)
}

fn scan(op: &str, kind: ScanKind, x: &Tensor, dim: i64, dtype: Option<DType>) -> Result<Tensor> {
    let dim = norm_dim(op, dim, x.ndim())?;
    let x = widened(x, dtype)?;
    if x.ndim() == 0 {
        return moves::clone(&x);
    }
    apply(Op::Scan { kind, dim }, &[&x])
}

/// How many elements are not zero.
pub fn count_nonzero(x: &Tensor, dims: &[i64]) -> Result<Tensor> {
    let flags = bin(Binary::Ne, x, Scalar::Int(0))?;
    sum(&flags, dims, false, None)
}
