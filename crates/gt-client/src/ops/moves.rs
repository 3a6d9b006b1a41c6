//! Functions that move elements: views where PyTorch gives views, copies where it copies.

use super::{apply, apply_with, bin, identity, norm_dims, shape_of};
use crate::Tensor;
use crate::tensor::restride;
use gt_ir::{Binary, Ints, Op, Operand, Result, Scalar, Shape, View, bail, norm_dim};

pub use super::join::{cat, chunk, hstack, split, split_size, stack, unbind, vstack};

/// A shape with at most one -1, resolved against the number of elements.
pub(crate) fn resolve(sizes: &[i64], numel: usize) -> Result<Shape> {
    let mut known = 1usize;
    let mut hole = None;
    for (i, &n) in sizes.iter().enumerate() {
        match n {
            -1 if hole.is_some() => bail!(Runtime, "only one dimension can be inferred, got {sizes:?}"),
            -1 => hole = Some(i),
            n if n < 0 => bail!(Runtime, "invalid shape dimension {n} at index {i} of shape {sizes:?}"),
            n => known = known.saturating_mul(n as usize),
        }
    }
    let fail = || gt_ir::Error::Runtime(format!("shape '{sizes:?}' is invalid for input of size {numel}"));
    let mut shape: Shape = sizes.iter().map(|&n| n.max(0) as usize).collect();
    match hole {
        Some(_) if known == 0 && numel == 0 => bail!(
            Runtime,
            "cannot reshape tensor of 0 elements into shape {sizes:?} because the unspecified dimension size -1 can \
             be any value and is ambiguous"
        ),
        Some(i) if known > 0 && numel.is_multiple_of(known) => shape[i] = numel / known,
        None if known == numel => {}
        _ => return Err(fail()),
    }
    Ok(shape)
}

/// The same elements in another shape: a view where the strides allow, else a copy.
pub fn reshape(x: &Tensor, sizes: &[i64]) -> Result<Tensor> {
    reshape_to(x, resolve(sizes, x.numel())?)
}

pub(crate) fn reshape_to(x: &Tensor, shape: Shape) -> Result<Tensor> {
    match restride(x.shape(), &x.strides(), &shape) {
        Some(_) => x.view_step(View::Reshape(shape), None),
        None => apply(Op::View(View::Reshape(shape)), &[x]),
    }
}

/// The same elements in another shape, never a copy.
pub fn view(x: &Tensor, sizes: &[i64]) -> Result<Tensor> {
    x.view_step(View::Reshape(resolve(sizes, x.numel())?), None)
}

/// Dimension i of the result is dimension `dims[i]` of `x`.
pub fn permute(x: &Tensor, dims: &[i64]) -> Result<Tensor> {
    if dims.len() != x.ndim() {
        bail!(
            Runtime,
            "permute(sparse_coo): number of dimensions in the tensor input does not match the length of the desired \
             ordering of dimensions i.e. input.dim() = {} is not equal to len(dims) = {}",
            x.ndim(),
            dims.len()
        );
    }
    let mut perm = Ints::new();
    for &dim in dims {
        let d = norm_dim("permute", dim, x.ndim())?;
        if perm.contains(&d) {
            bail!(Runtime, "permute(): duplicate dims are not allowed, got {dims:?}");
        }
        perm.push(d);
    }
    x.view_step(View::Permute(perm), None)
}

/// Two dimensions change places.
pub fn transpose(x: &Tensor, a: i64, b: i64) -> Result<Tensor> {
    let (a, b) = (norm_dim("transpose", a, x.ndim())?, norm_dim("transpose", b, x.ndim())?);
    let mut perm: Ints = (0..x.ndim()).collect();
    if x.ndim() > 0 {
        perm.swap(a, b);
    }
    x.view_step(View::Permute(perm), None)
}

/// The transpose of a matrix; vectors and numbers as they are.
pub fn t(x: &Tensor) -> Result<Tensor> {
    match x.ndim() {
        0 | 1 => alias(x),
        2 => transpose(x, 0, 1),
        n => bail!(Runtime, "t() expects a tensor with <= 2 dimensions, but self is {n}D"),
    }
}

/// Another tensor that shows the same.
pub(crate) fn alias(x: &Tensor) -> Result<Tensor> {
    x.view_step(View::Reshape(x.shape().clone()), None)
}

/// Dimensions moved to other places, the others in their order.
pub fn movedim(x: &Tensor, from: &[i64], to: &[i64]) -> Result<Tensor> {
    let rank = x.ndim();
    if from.len() != to.len() {
        bail!(
            Runtime,
            "movedim: Invalid source or destination dims: source ({from:?} dims) should contain the same number of \
             dims as destination ({to:?} dims)"
        );
    }
    let resolve = |dims: &[i64]| -> Result<Vec<usize>> {
        norm_dims("movedim", dims, rank)?;
        dims.iter().map(|&d| norm_dim("movedim", d, rank)).collect()
    };
    if rank == 0 || from.is_empty() {
        return alias(x);
    }
    let (from, to) = (resolve(from)?, resolve(to)?);
    let mut rest = (0..rank).filter(|d| !from.contains(d));
    let perm: Ints = (0..rank)
        .map(|d| match to.iter().position(|&t| t == d) {
            Some(i) => from[i],
            None => rest.next().unwrap_or(0),
        })
        .collect();
    x.view_step(View::Permute(perm), None)
}

/// Without dimensions of size 1: those given, or all.
pub fn squeeze(x: &Tensor, dims: Option<&[i64]>) -> Result<Tensor> {
    let drop: Ints = match dims {
        Some([]) => Ints::new(),
        Some(dims) => norm_dims("squeeze", dims, x.ndim())?,
        None => (0..x.ndim()).collect(),
    };
    let kept = (0..x.ndim()).filter(|d| x.shape()[*d] != 1 || !drop.contains(d));
    let shape: Shape = kept.map(|d| x.shape()[d]).collect();
    x.view_step(View::Reshape(shape), None)
}

/// With a dimension of size 1 more.
pub fn unsqueeze(x: &Tensor, dim: i64) -> Result<Tensor> {
    let dim = norm_dim("unsqueeze", dim, x.ndim() + 1)?;
    let mut shape = x.shape().clone();
    shape.insert(dim, 1);
    x.view_step(View::Reshape(shape), None)
}

/// Dimensions of size 1 repeated without copying; -1 keeps a size.
pub fn expand(x: &Tensor, sizes: &[i64]) -> Result<Tensor> {
    if sizes.len() < x.ndim() {
        bail!(
            Runtime,
            "expand: the number of sizes provided ({}) must be greater or equal to the number of dimensions in the \
             tensor ({})",
            sizes.len(),
            x.ndim()
        );
    }
    let lead = sizes.len() - x.ndim();
    let mut shape = Shape::scalar();
    for (d, &n) in sizes.iter().enumerate() {
        let own = d.checked_sub(lead).map(|d| x.shape()[d]);
        shape.push(match (n, own) {
            (-1, Some(own)) => own,
            (n, _) if n < 0 => bail!(
                Runtime,
                "expand: the expanded size of the tensor ({n}) isn't allowed in a leading, non-existing dimension {d}"
            ),
            (n, Some(own)) if own != 1 && own != n as usize => bail!(
                Runtime,
                "The expanded size of the tensor ({n}) must match the existing size ({own}) at non-singleton \
                 dimension {d}.  Target sizes: {sizes:?}.  Tensor sizes: {}",
                x.shape()
            ),
            (n, _) => n as usize,
        });
    }
    expand_to(x, &shape)
}

pub(crate) fn expand_to(x: &Tensor, shape: &Shape) -> Result<Tensor> {
    x.view_step(View::Expand(shape.clone()), None)
}

pub fn expand_as(x: &Tensor, other: &Tensor) -> Result<Tensor> {
    broadcast_to(x, &signed(other.shape()))
}

pub fn broadcast_to(x: &Tensor, sizes: &[i64]) -> Result<Tensor> {
    expand(x, sizes)
}

/// All tensors expanded to their common shape.
pub fn broadcast_tensors(tensors: &[Tensor]) -> Result<Vec<Tensor>> {
    let mut shape = Shape::scalar();
    for t in tensors {
        shape = Shape::broadcast("broadcast_tensors", &shape, t.shape())?;
    }
    tensors.iter().map(|t| expand_to(t, &shape)).collect()
}

pub(crate) fn signed(shape: &Shape) -> Vec<i64> {
    shape.iter().map(|&n| n as i64).collect()
}

/// Dimensions `start` to `end` joined into one.
pub fn flatten(x: &Tensor, start: i64, end: i64) -> Result<Tensor> {
    let (a, b) = (norm_dim("flatten", start, x.ndim())?, norm_dim("flatten", end, x.ndim())?);
    if a > b {
        bail!(Runtime, "flatten() has invalid args: start_dim cannot come after end_dim");
    }
    if x.ndim() == 0 {
        return reshape(x, &[1]);
    }
    if a == b {
        return Ok(x.clone());
    }
    let s = x.shape();
    let joined: usize = s[a..=b].iter().product();
    let shape = s[..a].iter().copied().chain([joined]).chain(s[b + 1..].iter().copied()).collect();
    reshape_to(x, shape)
}

/// One dimension split into several; one of them may be -1.
pub fn unflatten(x: &Tensor, dim: i64, sizes: &[i64]) -> Result<Tensor> {
    let d = norm_dim("unflatten", dim, x.ndim())?;
    if sizes.is_empty() || x.ndim() == 0 {
        bail!(Runtime, "unflatten: sizes must be non-empty and the tensor must have dimensions");
    }
    let s = x.shape();
    let inner = resolve(sizes, s[d]).map_err(|_| {
        gt_ir::Error::Runtime(format!(
            "unflatten: Provided sizes {sizes:?} don't multiply up to the size of dim {d} ({}) in the input tensor",
            s[d]
        ))
    })?;
    let shape = s[..d].iter().chain(inner.iter()).chain(&s[d + 1..]).copied().collect();
    x.view_step(View::Reshape(shape), None)
}

/// `len` elements along `dim` from `start`, `step` apart: a view.
pub(crate) fn slice(x: &Tensor, dim: usize, start: usize, len: usize, step: usize) -> Result<Tensor> {
    x.view_step(View::Slice { dim, len, step }, Some(start as i64))
}

/// `length` elements along `dim` from `start`.
pub fn narrow(x: &Tensor, dim: i64, start: i64, length: i64) -> Result<Tensor> {
    if x.ndim() == 0 {
        bail!(Runtime, "narrow() cannot be applied to a 0-dim tensor.");
    }
    let d = norm_dim("narrow", dim, x.ndim())?;
    let n = x.shape()[d] as i64;
    if length < 0 {
        bail!(Runtime, "narrow(): length must be non-negative, got {length}");
    }
    if start < -n || start > n {
        bail!(Index, "narrow: start out of range (expected to be in range of [-{n}, {n}], but got {start})");
    }
    let from = if start < 0 { start + n } else { start };
    if from + length > n {
        bail!(Runtime, "start ({from}) + length ({length}) exceeds dimension size ({n}).");
    }
    slice(x, d, from as usize, length as usize, 1)
}

/// One element along `dim`; the dimension goes.
pub fn select(x: &Tensor, dim: i64, index: i64) -> Result<Tensor> {
    if x.ndim() == 0 {
        bail!(Index, "select() cannot be applied to a 0-dim tensor.");
    }
    let d = norm_dim("select", dim, x.ndim())?;
    let n = x.shape()[d] as i64;
    if index < -n || index >= n {
        bail!(
            Index,
            "select(): index {index} out of range for tensor of size {} at dimension {d}",
            x.shape()
        );
    }
    let at = if index < 0 { index + n } else { index };
    let row = slice(x, d, at as usize, 1, 1)?;
    squeeze(&row, Some(&[d as i64]))
}

/// The tensor itself if its elements lie in order, else a copy that does.
pub fn contiguous(x: &Tensor) -> Result<Tensor> {
    if x.is_contiguous() { Ok(x.clone()) } else { clone(x) }
}

/// A copy with storage of its own.
pub fn clone(x: &Tensor) -> Result<Tensor> {
    Ok(Tensor::from_var(identity(x.var()?)))
}

/// The order along some dimensions reversed.
pub fn flip(x: &Tensor, dims: &[i64]) -> Result<Tensor> {
    let dims = if dims.is_empty() { Ints::new() } else { norm_dims("flip", dims, x.ndim())? };
    apply(Op::Flip { dims }, &[x])
}

/// The tensor repeated `times` along each dimension; more numbers than dimensions add leading ones.
pub fn repeat(x: &Tensor, times: &[i64]) -> Result<Tensor> {
    let times = shape_of("repeat", times)?;
    if times.len() < x.ndim() {
        bail!(
            Runtime,
            "Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor, got {} and {}",
            times.len(),
            x.ndim()
        );
    }
    let lead = times.len() - x.ndim();
    let (mut apart, mut wide, mut out) = (Shape::scalar(), Shape::scalar(), Shape::scalar());
    for (d, &k) in times.iter().enumerate() {
        let n = if d < lead { 1 } else { x.shape()[d - lead] };
        apart.extend([1, n]);
        wide.extend([k, n]);
        out.push(k * n);
    }
    fill_out(x, apart, wide, out)
}

/// Like `repeat`, with leading ones added to `times` as needed.
pub fn tile(x: &Tensor, times: &[i64]) -> Result<Tensor> {
    let mut all = vec![1; x.ndim().saturating_sub(times.len())];
    all.extend(times);
    repeat(x, &all)
}

/// Every element repeated `times` along `dim`; without a dimension the tensor is flattened first.
pub fn repeat_interleave(x: &Tensor, times: i64, dim: Option<i64>) -> Result<Tensor> {
    if times < 0 {
        bail!(Runtime, "repeats has to be non-negative, got {times}");
    }
    let Some(dim) = dim else { return repeat_interleave(&reshape(x, &[-1])?, times, Some(0)) };
    let d = norm_dim("repeat_interleave", dim, x.ndim())?;
    let x = if x.ndim() == 0 { reshape(x, &[1])? } else { x.clone() };
    let (mut apart, mut wide, mut out) = (x.shape().clone(), x.shape().clone(), x.shape().clone());
    apart.insert(d + 1, 1);
    wide.insert(d + 1, times as usize);
    out[d] *= times as usize;
    fill_out(&x, apart, wide, out)
}

/// Reshape, expand, reshape: a copy with repeated elements.
fn fill_out(x: &Tensor, apart: Shape, wide: Shape, out: Shape) -> Result<Tensor> {
    out.check("repeat", x.dtype())?;
    let wide = expand_to(&reshape_to(x, apart)?, &wide)?;
    apply(Op::View(View::Reshape(out)), &[&wide])
}

/// Elements shifted along dimensions, those pushed out coming in again at the other end.
pub fn roll(x: &Tensor, shifts: &[i64], dims: &[i64]) -> Result<Tensor> {
    if dims.is_empty() {
        let [shift] = shifts else {
            bail!(Runtime, "shifts and dimensions must align. shifts: {}, dims:0", shifts.len());
        };
        let flat = roll(&reshape(x, &[-1])?, &[*shift], &[0])?;
        return reshape(&flat, &signed(x.shape()));
    }
    if dims.len() != shifts.len() {
        bail!(Runtime, "shifts and dimensions must align. shifts: {}, dims:{}", shifts.len(), dims.len());
    }
    let mut out = clone(x)?;
    for (&shift, &dim) in shifts.iter().zip(dims) {
        if x.ndim() == 0 {
            bail!(Index, "roll: dimension specified as {dim} but tensor has no dimensions");
        }
        let d = norm_dim("roll", dim, x.ndim())?;
        if x.shape()[d] == 0 {
            continue;
        }
        let n = x.shape()[d];
        let by = shift.rem_euclid(n as i64) as usize;
        if by > 0 {
            let (tail, head) = (slice(&out, d, n - by, by, 1)?, slice(&out, d, 0, n - by, 1)?);
            out = cat(&[tail, head], d as i64)?;
        }
    }
    Ok(out)
}

/// The lower triangle of the last two dimensions, up to diagonal `k`; the rest is zero.
pub fn tril(x: &Tensor, k: i64) -> Result<Tensor> {
    triangle("tril", x, Binary::Le, k)
}

/// The upper triangle of the last two dimensions, from diagonal `k` on; the rest is zero.
pub fn triu(x: &Tensor, k: i64) -> Result<Tensor> {
    triangle("triu", x, Binary::Ge, k)
}

fn triangle(op: &str, x: &Tensor, keep: Binary, k: i64) -> Result<Tensor> {
    if x.ndim() < 2 {
        bail!(Runtime, "{op}: input tensor must have at least 2 dimensions, got {}", x.ndim());
    }
    let (n, m) = (x.shape()[x.ndim() - 2], x.shape()[x.ndim() - 1]);
    let session = x.session()?;
    let edge = super::create::arange_in(&session, Scalar::Int(k), Scalar::Int(1), n, gt_ir::DType::I64)?;
    let cols = super::create::indices_in(&session, m)?;
    let keep = bin(keep, &cols, &unsqueeze(&edge, 1)?)?;
    super::arith::select(&keep, &x.into(), &Operand::Num(super::arith::as_kind(Scalar::Int(0), x.dtype())))
}

/// The elements of a diagonal of two dimensions, as a last dimension: a view.
pub fn diagonal(x: &Tensor, offset: i64, dim1: i64, dim2: i64) -> Result<Tensor> {
    let (a, b) = (norm_dim("diagonal", dim1, x.ndim())?, norm_dim("diagonal", dim2, x.ndim())?);
    if a == b {
        bail!(Runtime, "diagonal dimensions cannot be identical {dim1}, {dim2}");
    }
    // Of a tensor in order the flattened one is a view too: so its rows go first.
    let strides = x.strides();
    if strides[a] < strides[b] {
        return diagonal(x, -offset, dim2, dim1);
    }
    let last = x.ndim() as i64 - 1;
    let m = movedim(x, &[a as i64, b as i64], &[last - 1, last])?;
    let (rows, cols) = (x.shape()[a], x.shape()[b]);
    let (down, right) = ((-offset).max(0) as usize, offset.max(0) as usize);
    let len = rows.saturating_sub(down).min(cols.saturating_sub(right));
    let (down, right) = if len == 0 { (0, 0) } else { (down, right) };
    // Where the elements lie is known, whether or not the flattened tensor lies evenly.
    let begin = x.storage_offset() + down as isize * strides[a] + right as isize * strides[b];
    let mut steps = m.strides();
    steps.truncate(x.ndim() - 2);
    steps.push(strides[a] + strides[b]);
    let mut shape: Shape = m.shape()[..x.ndim() - 2].into();
    shape.push(rows * cols);
    let flat = m.view_at(View::Reshape(shape.clone()), None, shape.clone(), (steps.clone(), begin))?;
    let dim = x.ndim() - 2;
    shape[dim] = len;
    let start = Some((down * cols + right) as i64);
    flat.view_at(View::Slice { dim, len, step: cols + 1 }, start, shape, (steps, begin))
}

/// Pads with a number: `pads` lists (before, after) from the last dimension on; negative pads cut away.
pub fn pad(x: &Tensor, pads: &[i64], value: Scalar) -> Result<Tensor> {
    if !pads.len().is_multiple_of(2) {
        bail!(Runtime, "pad: padding length must be divisible by 2, got {}", pads.len());
    }
    if pads.len() > 2 * x.ndim() {
        bail!(
            Runtime,
            "pad: padding length should be less than or equal to two times the input dimension, got {} for {}",
            pads.len(),
            x.shape()
        );
    }
    let rank = x.ndim();
    let (mut lo, mut hi): (Ints, Ints) = ((0..rank).map(|_| 0).collect(), (0..rank).map(|_| 0).collect());
    let mut out = x.clone();
    for (i, pair) in pads.chunks(2).enumerate() {
        let d = rank - 1 - i;
        let n = x.shape()[d] as i64;
        let (cut_lo, cut_hi) = ((-pair[0]).max(0), (-pair[1]).max(0));
        if n + pair[0] + pair[1] < 0 {
            bail!(
                Runtime,
                "pad: the input size {n}, plus negative padding {} and {}, resulted in a negative output size",
                pair[0],
                pair[1]
            );
        }
        if cut_lo + cut_hi > 0 {
            let left = (n - cut_lo - cut_hi).max(0);
            out = slice(&out, d, cut_lo.min(n) as usize, left as usize, 1)?;
        }
        (lo[d], hi[d]) = (pair[0].max(0) as usize, pair[1].max(0) as usize);
    }
    let value = super::arith::as_kind(value, x.dtype());
    apply_with(Op::Pad { lo, hi }, &out, &[value])
}
