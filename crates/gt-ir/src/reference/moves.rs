//! The reference meaning of ops that move elements.

use super::RefArg;
use crate::host::{HostTensor, ravel, unravel};
use crate::infer::view_shape;
use crate::op::View;
use crate::{Result, Scalar, Shape, Ty, bail};

/// For every element that a view shows, in row-major order, its row-major position in the tensor looked at.
/// `start` is read by slices alone.
pub fn sources(view: &View, start: i64, x: &Shape) -> Result<Vec<usize>> {
    let shape = view_shape("VIEW", view, x)?;
    if let View::Slice { dim, len, step } = view {
        let last = start as i128 + len.saturating_sub(1) as i128 * *step as i128;
        if start < 0 || (*len > 0 && last >= x[*dim] as i128) || start as u128 > x[*dim] as u128 {
            bail!(Index, "SLICE: {len} elements from {start} do not fit dimension {dim} of {x}");
        }
    }
    let source = |i: usize| {
        let at = unravel(i, &shape);
        match view {
            View::Reshape(_) => i,
            View::Permute(perm) => {
                let mut from = vec![0; at.len()];
                for (k, &d) in perm.iter().enumerate() {
                    from[d] = at[k];
                }
                ravel(&from, x)
            }
            View::Expand(_) => {
                let lead = at.len() - x.len();
                let from: Vec<usize> =
                    (0..x.len()).map(|d| if x[d] == 1 { 0 } else { at[lead + d] }).collect();
                ravel(&from, x)
            }
            View::Slice { dim, step, .. } => {
                let mut from = at;
                from[*dim] = start as usize + from[*dim] * step;
                ravel(&from, x)
            }
        }
    };
    Ok((0..shape.numel()).map(source).collect())
}

pub(super) fn pad(x: &HostTensor, lo: &[usize], fill: Scalar, out: &Ty) -> HostTensor {
    let mut result = HostTensor::from_scalars(out, (0..out.shape.numel()).map(|_| fill));
    for i in 0..x.numel() {
        let at: Vec<usize> = unravel(i, &x.ty.shape).iter().zip(lo).map(|(a, l)| a + l).collect();
        result.set(ravel(&at, &out.shape), x.get(i));
    }
    result
}

pub(super) fn concat(parts: &[&HostTensor], dim: usize, out: &Ty) -> HostTensor {
    let mut result = HostTensor::zeros(out);
    let mut start = 0;
    for part in parts {
        for i in 0..part.numel() {
            let mut at = unravel(i, &part.ty.shape);
            at[dim] += start;
            result.set(ravel(&at, &out.shape), part.get(i));
        }
        start += part.ty.shape[dim];
    }
    result
}

pub(super) fn flip(x: &HostTensor, dims: &[usize]) -> HostTensor {
    let shape = &x.ty.shape;
    let mut result = HostTensor::zeros(&x.ty);
    for i in 0..x.numel() {
        let mut at = unravel(i, shape);
        for &d in dims {
            at[d] = shape[d] - 1 - at[d];
        }
        result.set(ravel(&at, shape), x.get(i));
    }
    result
}

/// Writes in row-major order of the view, so of several writers to one element the last wins.
pub(super) fn put(base: &HostTensor, value: RefArg, path: &[View], starts: &[i64]) -> Result<HostTensor> {
    let mut shape = base.ty.shape.clone();
    let mut map: Vec<usize> = (0..base.numel()).collect();
    let mut starts = starts.iter();
    for view in path {
        let start = if view.has_start() { starts.next().copied().unwrap_or(0) } else { 0 };
        map = sources(view, start, &shape)?.into_iter().map(|i| map[i]).collect();
        shape = view_shape("PUT", view, &shape)?;
    }
    let mut result = base.clone();
    for (i, &to) in map.iter().enumerate() {
        match value {
            RefArg::Val(v) => result.set(to, v.get(i)),
            RefArg::Num(x) => result.set(to, x),
            RefArg::Data(_) => bail!(Type, "PUT: expected a tensor or a number, got bytes"),
        }
    }
    Ok(result)
}
