//! The reference meaning of reductions, scans, products and softmax.

use super::elementwise::broadcast_get;
use crate::elementwise::Binary;
use crate::host::{HostTensor, ravel, unravel};
use crate::op::{ArgKind, ReduceKind, ScanKind};
use crate::{Kind, Scalar, Shape, Ty};

/// Combines two elements in the wide type of their kind, NaN winning over everything in max and min.
fn combine(op: Binary, kind: Kind, a: Scalar, b: Scalar) -> Scalar {
    match kind {
        Kind::Float => Scalar::Float(op.real(a.as_f64(), b.as_f64())),
        Kind::Int | Kind::Bool => Scalar::Int(op.int(a.as_i64(), b.as_i64())),
    }
}

/// The row-major positions of `x` that fall together in each element of the reduction, in row-major order.
fn groups(x: &Shape, dims: &[usize]) -> Vec<Vec<usize>> {
    let kept = x.reduced(dims, true);
    let mut groups = vec![Vec::new(); kept.numel()];
    for i in 0..x.numel() {
        let mut at = unravel(i, x);
        for &d in dims {
            at[d] = 0;
        }
        groups[ravel(&at, &kept)].push(i);
    }
    groups
}

pub(super) fn reduce(kind: ReduceKind, x: &HostTensor, dims: &[usize], out: &Ty) -> HostTensor {
    let number = x.ty.dtype.kind();
    let (op, identity) = match kind {
        ReduceKind::Sum => (Binary::Add, Some(Scalar::Int(0))),
        ReduceKind::Prod => (Binary::Mul, Some(Scalar::Int(1))),
        ReduceKind::Max => (Binary::Max, None),
        ReduceKind::Min => (Binary::Min, None),
    };
    let total = |group: Vec<usize>| {
        let mut elements = group.into_iter().map(|i| x.get(i));
        let first = identity.or_else(|| elements.next()).unwrap_or(Scalar::Int(0));
        elements.fold(first, |a, b| combine(op, number, a, b))
    };
    HostTensor::from_scalars(out, groups(&x.ty.shape, dims).into_iter().map(total))
}

pub(super) fn arg_reduce(kind: ArgKind, x: &HostTensor, dim: usize, out: &Ty) -> HostTensor {
    let better = |a: Scalar, b: Scalar| match (a, b) {
        (Scalar::Float(a), Scalar::Float(b)) => {
            !b.is_nan() && (a.is_nan() || if kind == ArgKind::Max { a > b } else { a < b })
        }
        (a, b) if kind == ArgKind::Max => a.as_i64() > b.as_i64(),
        (a, b) => a.as_i64() < b.as_i64(),
    };
    let winner = |group: Vec<usize>| {
        let mut best = 0;
        for k in 1..group.len() {
            if better(x.get(group[k]), x.get(group[best])) {
                best = k;
            }
        }
        Scalar::Int(best as i64)
    };
    HostTensor::from_scalars(out, groups(&x.ty.shape, &[dim]).into_iter().map(winner))
}

pub(super) fn scan(kind: ScanKind, x: &HostTensor, dim: usize) -> HostTensor {
    let op = match kind {
        ScanKind::Sum => Binary::Add,
        ScanKind::Prod => Binary::Mul,
    };
    let mut result = HostTensor::zeros(&x.ty);
    for group in groups(&x.ty.shape, &[dim]) {
        let mut so_far: Option<Scalar> = None;
        for i in group {
            let next = match so_far {
                None => x.get(i),
                Some(total) => combine(op, x.ty.dtype.kind(), total, x.get(i)),
            };
            result.set(i, next);
            so_far = Some(next);
        }
    }
    result
}

pub(super) fn matmul(
    a: &HostTensor,
    b: &HostTensor,
    bias: Option<&HostTensor>,
    ta: bool,
    tb: bool,
    out: &Ty,
) -> HostTensor {
    let rank = out.shape.len();
    let inner = a.ty.shape[a.ty.shape.len() - if ta { 2 } else { 1 }];
    let kind = out.dtype.kind();
    // Element (row, col) of the matrix in `x` that belongs to the batch in `at`.
    let element = |x: &HostTensor, at: &[usize], row: usize, col: usize, transposed: bool| {
        let mut at = at.to_vec();
        (at[rank - 2], at[rank - 1]) = if transposed { (col, row) } else { (row, col) };
        let skip = rank - x.ty.shape.len();
        let own: Vec<usize> =
            (skip..rank).map(|d| if d < rank - 2 && x.ty.shape[d - skip] == 1 { 0 } else { at[d] }).collect();
        x.get(ravel(&own, &x.ty.shape))
    };
    let total = |i: usize| {
        let at = unravel(i, &out.shape);
        let mut sum = Scalar::Int(0);
        for k in 0..inner {
            let (x, y) = (element(a, &at, at[rank - 2], k, ta), element(b, &at, k, at[rank - 1], tb));
            sum = combine(Binary::Add, kind, sum, combine(Binary::Mul, kind, x, y));
        }
        match bias {
            Some(bias) => combine(Binary::Add, kind, sum, broadcast_get(bias, &at)),
            None => sum,
        }
    };
    HostTensor::from_scalars(out, (0..out.shape.numel()).map(total))
}

/// Softmax or its logarithm; a 0-d tensor counts as one row of one element.
pub(super) fn softmax(x: &HostTensor, dim: usize, log: bool) -> HostTensor {
    let rows = if x.ty.shape.is_empty() { vec![vec![0]] } else { groups(&x.ty.shape, &[dim]) };
    let mut result = HostTensor::zeros(&x.ty);
    for row in rows {
        let v: Vec<f64> = row.iter().map(|&i| x.get(i).as_f64()).collect();
        let top = v.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = v.iter().map(|&e| (e - top).exp()).sum();
        for (&i, &e) in row.iter().zip(&v) {
            let y = if log { (e - top) - total.ln() } else { (e - top).exp() / total };
            result.set(i, Scalar::Float(y));
        }
    }
    result
}
