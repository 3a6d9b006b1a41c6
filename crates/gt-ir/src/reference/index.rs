//! The reference meaning of ops that read and write at indices.

use super::RefArg;
use crate::host::{HostTensor, ravel, unravel};
use crate::op::ScatterMode;
use crate::{DType, Error, Kind, Result, Scalar, Ty, bail};
use std::cmp::Ordering;

/// An index as a position in 0..n, or the error a person sees. `wraps`: negative ones count from the end.
fn position(index: i64, n: usize, dim: usize, wraps: bool) -> Result<usize> {
    let at = if wraps && index < 0 { index + n as i64 } else { index };
    if at < 0 || at >= n as i64 {
        return Err(Error::out_of_bounds(index, dim, n));
    }
    Ok(at as usize)
}

fn named<T>(name: &str, result: Result<T>) -> Result<T> {
    result.map_err(|e| e.map_message(|m| format!("{name}: {m}")))
}

pub(super) fn gather(
    name: &str,
    x: &HostTensor,
    index: &HostTensor,
    dim: usize,
    out: &Ty,
) -> Result<HostTensor> {
    let mut result = HostTensor::zeros(out);
    for i in 0..index.numel() {
        let mut at = unravel(i, &index.ty.shape);
        at[dim] = named(name, position(index.get(i).as_i64(), x.ty.shape[dim], dim, false))?;
        result.set(i, x.get(ravel(&at, &x.ty.shape)));
    }
    Ok(result)
}

/// The element of `x` that element `i` of a take shows.
fn taken(x: &HostTensor, index: &HostTensor, dim: usize, out: &Ty, i: usize) -> Result<usize> {
    let at = unravel(i, &out.shape);
    let rank = index.ty.shape.len();
    let k = index.get(ravel(&at[dim..dim + rank], &index.ty.shape)).as_i64();
    let mut from = at[..dim].to_vec();
    from.push(position(k, x.ty.shape[dim], dim, true)?);
    from.extend(&at[dim + rank..]);
    Ok(ravel(&from, &x.ty.shape))
}

pub(super) fn take(
    name: &str,
    x: &HostTensor,
    index: &HostTensor,
    dim: usize,
    out: &Ty,
) -> Result<HostTensor> {
    check_all(name, index, dim, x.ty.shape[dim], true)?;
    let mut result = HostTensor::zeros(out);
    for i in 0..out.shape.numel() {
        result.set(i, x.get(taken(x, index, dim, out, i)?));
    }
    Ok(result)
}

pub(super) fn scatter(
    name: &str,
    base: &HostTensor,
    index: &HostTensor,
    src: RefArg,
    dim: usize,
    mode: ScatterMode,
) -> Result<HostTensor> {
    let mut sums = Elements::of(base);
    for i in 0..index.numel() {
        let mut at = unravel(i, &index.ty.shape);
        at[dim] = named(name, position(index.get(i).as_i64(), base.ty.shape[dim], dim, false))?;
        let value = match src {
            RefArg::Val(v) => v.get(i),
            RefArg::Num(x) => x.to_dtype(base.ty.dtype),
            RefArg::Data(_) => bail!(Type, "{name}: expected a tensor or a number, got bytes"),
        };
        sums.write(ravel(&at, &base.ty.shape), value, mode);
    }
    Ok(sums.rounded(&base.ty))
}

pub(super) fn take_put(
    name: &str,
    base: &HostTensor,
    index: &HostTensor,
    src: &HostTensor,
    dim: usize,
    mode: ScatterMode,
) -> Result<HostTensor> {
    check_all(name, index, dim, base.ty.shape[dim], true)?;
    let mut sums = Elements::of(base);
    for i in 0..src.numel() {
        sums.write(taken(base, index, dim, &src.ty, i)?, src.get(i), mode);
    }
    Ok(sums.rounded(&base.ty))
}

/// A bad index is an error even where the rest of the shape is empty and nothing would be read.
fn check_all(name: &str, index: &HostTensor, dim: usize, n: usize, wraps: bool) -> Result<()> {
    for i in 0..index.numel() {
        named(name, position(index.get(i).as_i64(), n, dim, wraps))?;
    }
    Ok(())
}

/// Elements in the wide type of their kind while they are written to.
struct Elements {
    kind: Kind,
    values: Vec<Scalar>,
}

impl Elements {
    fn of(base: &HostTensor) -> Elements {
        Elements { kind: base.ty.dtype.kind(), values: base.scalars().collect() }
    }

    fn write(&mut self, i: usize, x: Scalar, mode: ScatterMode) {
        let old = self.values[i];
        self.values[i] = match (mode, self.kind) {
            (ScatterMode::Set, _) => x,
            (ScatterMode::Add, Kind::Float) => Scalar::Float(old.as_f64() + x.as_f64()),
            (ScatterMode::Add, Kind::Int | Kind::Bool) => Scalar::Int(old.as_i64().wrapping_add(x.as_i64())),
            (ScatterMode::Max, Kind::Float) => {
                Scalar::Float(crate::real::Real::maximum(old.as_f64(), x.as_f64()))
            }
            (ScatterMode::Max, Kind::Int | Kind::Bool) => Scalar::Int(old.as_i64().max(x.as_i64())),
        };
    }

    fn rounded(self, ty: &Ty) -> HostTensor {
        HostTensor::from_scalars(ty, self.values)
    }
}

/// The first `k` elements along `dim` in order, and where they were. Equals keep their order; NaN is the largest.
pub(super) fn sort(x: &HostTensor, dim: usize, descending: bool, k: usize) -> Vec<HostTensor> {
    let mut ty = x.ty.clone();
    ty.shape[dim] = k;
    let mut values = HostTensor::zeros(&ty);
    let mut indices = HostTensor::zeros(&Ty { dtype: DType::I64, shape: ty.shape.clone() });
    let order = |a: Scalar, b: Scalar| match x.ty.dtype.kind() {
        Kind::Float => match (a.as_f64(), b.as_f64()) {
            (a, b) if a.is_nan() || b.is_nan() => a.is_nan().cmp(&b.is_nan()),
            (a, b) => a.partial_cmp(&b).unwrap_or(Ordering::Equal),
        },
        Kind::Int | Kind::Bool => a.as_i64().cmp(&b.as_i64()),
    };
    for i in 0..values.numel() {
        let mut at = unravel(i, &ty.shape);
        let place = std::mem::replace(&mut at[dim], 0);
        let element = |j: usize| {
            let mut at = at.clone();
            at[dim] = j;
            x.get(ravel(&at, &x.ty.shape))
        };
        let mut row: Vec<usize> = (0..x.ty.shape[dim]).collect();
        row.sort_by(|&a, &b| {
            let order = order(element(a), element(b));
            if descending { order.reverse() } else { order }
        });
        values.set(i, element(row[place]));
        indices.set(i, Scalar::Int(row[place] as i64));
    }
    vec![values, indices]
}
