//! Order along a dimension: sort, topk, medians and distinct elements.

use super::inplace::snapshot;
use super::moves::{signed, squeeze};
use super::{apply, apply_all, arith, bin, create, index, join, moves, pointwise, reduce, scatter};
use crate::Tensor;
use crate::autograd::grad_enabled;
use gt_ir::{ArgKind, Binary, DType, Op, Result, Scalar, bail, norm_dim};

/// Elements in order along a dimension, equals in theirs, and where they were; NaN is the largest.
pub fn sort(x: &Tensor, dim: i64, descending: bool) -> Result<(Tensor, Tensor)> {
    let dim = norm_dim("sort", dim, x.ndim())?;
    if x.ndim() == 0 {
        return alone(x);
    }
    pair(Op::Sort { dim, descending }, x)
}

/// Where the elements of the sorted tensor were.
pub fn argsort(x: &Tensor, dim: i64, descending: bool) -> Result<Tensor> {
    Ok(sort(x, dim, descending)?.1)
}

/// The `k` largest or smallest elements along a dimension, in order, and where they are.
pub fn topk(x: &Tensor, k: i64, dim: i64, largest: bool) -> Result<(Tensor, Tensor)> {
    let d = norm_dim("topk", dim, x.ndim())?;
    let n = x.shape().get(d).copied().unwrap_or(1);
    if k < 0 || k as usize > n {
        bail!(
            Runtime,
            "topk: selected index k out of range, got k={k} for dimension {d} of shape {}",
            x.shape()
        );
    }
    if x.ndim() == 0 {
        return match k {
            0 => Ok((create::zeros([0], x.dtype())?, create::zeros([0], DType::I64)?)),
            _ => alone(x),
        };
    }
    pair(Op::TopK { dim: d, k: k as usize, largest }, x)
}

/// The `k`th smallest element along a dimension, counted from 1, and where it is.
pub fn kthvalue(x: &Tensor, k: i64, dim: i64, keepdim: bool) -> Result<(Tensor, Tensor)> {
    let d = norm_dim("kthvalue", dim, x.ndim())?;
    let n = x.shape().get(d).copied().unwrap_or(1);
    if k < 1 || k as usize > n {
        bail!(
            Runtime,
            "kthvalue: selected number k out of range for dimension {d}, got k={k} of {n} elements"
        );
    }
    if x.ndim() == 0 {
        return alone(x);
    }
    let (values, indices) = pair(Op::TopK { dim: d, k: k as usize, largest: false }, x)?;
    let last = |t: &Tensor| -> Result<Tensor> {
        let t = moves::narrow(t, d as i64, k - 1, 1)?;
        snapshot(&if keepdim { t } else { squeeze(&t, Some(&[d as i64]))? })
    };
    Ok((last(&values)?, last(&indices)?))
}

/// The median along a dimension, of two the smaller, and where it is; NaN if there is one.
pub fn median(x: &Tensor, dim: i64, keepdim: bool) -> Result<(Tensor, Tensor)> {
    let d = norm_dim("median", dim, x.ndim())?;
    if x.ndim() == 0 {
        return alone(x);
    }
    let n = x.shape()[d];
    if n == 0 {
        bail!(Index, "median(): Expected reduction dim {d} to have non-zero size.");
    }
    let middle = (n - 1) / 2;
    let (_, order) = pair(Op::TopK { dim: d, k: middle + 1, largest: false }, &x.detach())?;
    let mut at = moves::narrow(&order, d as i64, middle as i64, 1)?;
    if x.dtype().is_float() {
        let first = apply(Op::ArgReduce { kind: ArgKind::Max, dim: d, keepdim: true }, &[x])?;
        let largest = apply(Op::Gather { dim: d }, &[&x.detach(), &first])?;
        at = arith::select(&pointwise::isnan(&largest)?, &(&first).into(), &(&at).into())?;
    }
    let values = apply(Op::Gather { dim: d }, &[x, &at])?;
    if keepdim {
        return Ok((values, at));
    }
    let narrow = |x: &Tensor| snapshot(&squeeze(x, Some(&[d as i64]))?);
    Ok((narrow(&values)?, narrow(&at)?))
}

/// The median of all elements; the gradient is shared by equals.
pub fn median_all(x: &Tensor) -> Result<Tensor> {
    if x.numel() == 0 {
        return create::full([], f64::NAN, x.dtype());
    }
    let flat = moves::reshape(x, &[-1])?;
    let found = median(&flat.detach(), 0, false)?.0;
    if !(grad_enabled() && x.requires_grad()) {
        return Ok(found);
    }
    // What is not among the equals is made smaller than they are: their maximum is the median.
    let other = bin(Binary::And, &bin(Binary::Ne, &flat, &found)?, &bin(Binary::Eq, &flat, &flat)?)?;
    reduce::max_all(&arith::select(&other, &f64::NEG_INFINITY.into(), &(&flat).into())?)
}

/// What `unique` found.
pub struct Unique {
    pub values: Tensor,
    /// Where each element of the input is among the values.
    pub inverse: Tensor,
    /// How often each value occurs.
    pub counts: Tensor,
}

/// The distinct elements in order; waits for their count.
pub fn unique(x: &Tensor) -> Result<Unique> {
    let flat = moves::reshape(&x.detach(), &[-1])?;
    let n = flat.numel() as i64;
    if n == 0 {
        let counts = create::zeros([0], DType::I64)?;
        return Ok(Unique { values: flat, inverse: create::zeros(x.shape().clone(), DType::I64)?, counts });
    }
    let (values, order) = sort(&flat, 0, false)?;
    let (before, after) = (moves::narrow(&values, 0, 0, n - 1)?, moves::narrow(&values, 0, 1, n - 1)?);
    let new = join::cat(&[create::ones([1], DType::Bool)?, bin(Binary::Ne, &after, &before)?], 0)?;
    let starts = index::flat_nonzero(&new)?;
    let rank = bin(Binary::Sub, &reduce::cumsum(&new, 0, None)?, Scalar::Int(1))?;
    let room = create::zeros([n as usize], DType::I64)?;
    let inverse = scatter::scatter(&room, 0, &order, &(&rank).into())?;
    let found = starts.numel() as i64;
    let ends = join::cat(
        &[moves::narrow(&starts, 0, 1, found - 1)?, create::full([1], Scalar::Int(n), DType::I64)?],
        0,
    )?;
    Ok(Unique {
        values: scatter::index_select(&values, 0, &starts)?,
        inverse: moves::reshape(&inverse, &signed(x.shape()))?,
        counts: bin(Binary::Sub, &ends, &starts)?,
    })
}

/// A number is in order as it is.
fn alone(x: &Tensor) -> Result<(Tensor, Tensor)> {
    Ok((moves::clone(x)?, create::zeros_like(x, Some(DType::I64))?))
}

fn pair(op: Op, x: &Tensor) -> Result<(Tensor, Tensor)> {
    let mut both = apply_all(op, &[x])?.into_iter();
    match (both.next(), both.next()) {
        (Some(values), Some(indices)) => Ok((values, indices)),
        _ => bail!(Runtime, "sort: expected two results"),
    }
}
