//! Joining tensors and taking them apart.

use super::moves::{reshape, select, slice, unsqueeze};
use super::{apply, arith};
use crate::Tensor;
use gt_ir::{Op, Result, bail, norm_dim};

/// Tensors joined along an existing dimension. Dtypes promote; empty 1-d tensors are left out.
pub fn cat(tensors: &[Tensor], dim: i64) -> Result<Tensor> {
    let Some(first) = tensors.first() else {
        bail!(Value, "cat: expected a non-empty list of Tensors");
    };
    if let Some(i) = tensors.iter().position(|t| t.ndim() == 0) {
        bail!(Runtime, "zero-dimensional tensor (at position {i}) cannot be concatenated");
    }
    let dtype = tensors.iter().fold(first.dtype(), |d, t| d.promote(t.dtype()));
    let legacy = |t: &Tensor| t.ndim() == 1 && t.numel() == 0;
    let mut parts: Vec<(usize, &Tensor)> = tensors.iter().enumerate().filter(|(_, t)| !legacy(t)).collect();
    if parts.is_empty() {
        parts.extend(tensors.iter().enumerate());
    }
    let lead = parts[0].1;
    let d = norm_dim("cat", dim, lead.ndim())?;
    for (i, t) in &parts {
        if t.ndim() != lead.ndim() {
            bail!(
                Runtime,
                "Tensors must have same number of dimensions: got {} and {}",
                lead.ndim(),
                t.ndim()
            );
        }
        for k in 0..lead.ndim() {
            if k != d && t.shape()[k] != lead.shape()[k] {
                bail!(
                    Runtime,
                    "Sizes of tensors must match except in dimension {d}. Expected size {} but got size {} for \
                     tensor number {i} in the list.",
                    lead.shape()[k],
                    t.shape()[k]
                );
            }
        }
    }
    let parts: Vec<Tensor> = parts.iter().map(|(_, t)| arith::cast(t, dtype)).collect::<Result<_>>()?;
    match parts.as_slice() {
        [only] => super::moves::clone(only),
        parts => apply(Op::Concat { dim: d }, &parts.iter().collect::<Vec<_>>()),
    }
}

/// Tensors of one shape joined along a new dimension.
pub fn stack(tensors: &[Tensor], dim: i64) -> Result<Tensor> {
    let Some(first) = tensors.first() else {
        bail!(Runtime, "stack expects a non-empty TensorList");
    };
    for (i, t) in tensors.iter().enumerate() {
        if t.shape() != first.shape() {
            bail!(
                Runtime,
                "stack expects each tensor to be equal size, but got {} at entry 0 and {} at entry {i}",
                first.shape(),
                t.shape()
            );
        }
    }
    let d = norm_dim("stack", dim, first.ndim() + 1)? as i64;
    let wide: Vec<Tensor> = tensors.iter().map(|t| unsqueeze(t, d)).collect::<Result<_>>()?;
    match wide.as_slice() {
        // A single empty vector must not be taken for a legacy empty tensor.
        [only] => super::moves::clone(only),
        wide => cat(wide, d),
    }
}

/// Stacked along the first dimension, vectors as rows.
pub fn vstack(tensors: &[Tensor]) -> Result<Tensor> {
    some("vstack", tensors)?;
    let rows: Vec<Tensor> = tensors
        .iter()
        .map(|t| match t.ndim() {
            0 => reshape(t, &[1, 1]),
            1 => unsqueeze(t, 0),
            _ => Ok(t.clone()),
        })
        .collect::<Result<_>>()?;
    cat(&rows, 0)
}

fn some(op: &str, tensors: &[Tensor]) -> Result<()> {
    if tensors.is_empty() {
        bail!(Runtime, "{op}: expected a non-empty list of tensors");
    }
    Ok(())
}

/// Stacked along the second dimension, vectors along the first.
pub fn hstack(tensors: &[Tensor]) -> Result<Tensor> {
    some("hstack", tensors)?;
    let parts: Vec<Tensor> = tensors
        .iter()
        .map(|t| if t.ndim() == 0 { reshape(t, &[1]) } else { Ok(t.clone()) })
        .collect::<Result<_>>()?;
    cat(&parts, parts.first().is_some_and(|t| t.ndim() > 1) as i64)
}

/// Parts of the given sizes along `dim`: views.
pub fn split(x: &Tensor, sizes: &[i64], dim: i64) -> Result<Vec<Tensor>> {
    let d = dims_of("split", x, dim)?;
    let n = x.shape()[d] as i64;
    if sizes.iter().any(|&s| s < 0) || sizes.iter().sum::<i64>() != n {
        bail!(
            Runtime,
            "split_with_sizes expects split_sizes to sum exactly to {n} (input tensor's size at dimension {d}), but \
             got split_sizes={sizes:?}"
        );
    }
    let mut start = 0;
    let mut parts = Vec::with_capacity(sizes.len());
    for &size in sizes {
        parts.push(slice(x, d, start as usize, size as usize, 1)?);
        start += size;
    }
    Ok(parts)
}

/// Parts of one size along `dim`, the last perhaps smaller: views.
pub fn split_size(x: &Tensor, size: i64, dim: i64) -> Result<Vec<Tensor>> {
    let d = dims_of("split", x, dim)?;
    let n = x.shape()[d] as i64;
    if size < 0 {
        bail!(Runtime, "split expects split_size be non-negative, but got split_size={size}");
    }
    if size == 0 && n != 0 {
        bail!(Runtime, "split_size can only be 0 if dimension size is 0, but got dimension size of {n}");
    }
    if n == 0 {
        return split(x, &[0], dim);
    }
    let sizes: Vec<i64> = (0..n).step_by(size as usize).map(|at| size.min(n - at)).collect();
    split(x, &sizes, dim)
}

/// At most `chunks` parts of nearly one size along `dim`: views.
pub fn chunk(x: &Tensor, chunks: i64, dim: i64) -> Result<Vec<Tensor>> {
    let d = dims_of("chunk", x, dim)?;
    if chunks <= 0 {
        bail!(Runtime, "chunk expects `chunks` to be greater than 0, got: {chunks}");
    }
    let n = x.shape()[d];
    if n == 0 {
        return split(x, &vec![0; chunks as usize], dim);
    }
    split_size(x, n.div_ceil(chunks as usize) as i64, dim)
}

fn dims_of(op: &str, x: &Tensor, dim: i64) -> Result<usize> {
    if x.ndim() == 0 {
        bail!(Runtime, "{op} expects at least a 1-dimensional tensor");
    }
    norm_dim(op, dim, x.ndim())
}

/// One view per element along `dim`; the dimension goes.
pub fn unbind(x: &Tensor, dim: i64) -> Result<Vec<Tensor>> {
    if x.ndim() == 0 {
        bail!(Index, "unbind: dimension specified as {dim} but tensor has no dimensions");
    }
    let d = dims_of("unbind", x, dim)?;
    (0..x.shape()[d] as i64).map(|i| select(x, d as i64, i)).collect()
}
