//! Indexing: `x[...]` and `x[...] = value` as Python writes them.

use super::moves::{expand_to, reshape_to, signed, slice, squeeze, unsqueeze};
use super::{apply, arith, bin, create, inplace, moves, reduce};
use crate::Tensor;
use gt_ir::error::MISCOUNTED;
use gt_ir::{Binary, DType, Ints, Kind, Op, Operand, Result, Scalar, ScatterMode, Shape, View, bail};

pub use super::scatter::*;

/// One item between the brackets.
#[derive(Clone)]
pub enum Index {
    Int(i64),
    Slice {
        start: Option<i64>,
        stop: Option<i64>,
        step: Option<i64>,
    },
    NewAxis,
    Ellipsis,
    Bool(bool),
    /// Integers, or bools that mask as many dimensions as the tensor has.
    Tensor(Tensor),
}

/// A tensor that picks along dimensions of a view.
enum Pick {
    Ints(Tensor),
    Mask(Tensor),
}

/// The basic part of an index as a view, and the tensors that pick from it, each with its dimension there.
struct Parsed {
    view: Tensor,
    picks: Vec<(usize, Pick)>,
}

fn is_mask(t: &Tensor) -> bool {
    matches!(t.dtype(), DType::Bool | DType::U8)
}

fn parse(x: &Tensor, index: &[Index]) -> Result<Parsed> {
    let rank = x.ndim();
    let mut used = 0;
    for i in index {
        match i {
            Index::Int(_) | Index::Slice { .. } => used += 1,
            Index::Tensor(t) if is_mask(t) => used += t.ndim(),
            Index::Tensor(t) if t.dtype().kind() == Kind::Int => used += 1,
            Index::Tensor(t) => bail!(
                Index,
                "tensors used as indices must be long, int, byte or bool tensors, got {}",
                t.dtype().name()
            ),
            Index::Ellipsis => {}
            Index::NewAxis | Index::Bool(_) => {}
        }
    }
    if rank == 0 && index.iter().any(|i| matches!(i, Index::Int(_))) {
        bail!(
            Index,
            "invalid index of a 0-dim tensor. Use `tensor.item()` in Python to convert a 0-dim tensor to a number"
        );
    }
    if used > rank {
        bail!(Index, "too many indices for tensor of dimension {rank}");
    }
    // `dim` counts in the view, `at` in the tensor as the user sees it.
    let (mut view, mut dim, mut at) = (x.clone(), 0, 0);
    let mut rest = rank - used;
    let mut picks = Vec::new();
    for i in index {
        match i {
            Index::Int(i) => {
                let n = view.shape()[dim] as i64;
                if *i < -n || *i >= n {
                    return Err(gt_ir::Error::out_of_bounds(*i, at, n as usize));
                }
                let row = slice(&view, dim, i.rem_euclid(n) as usize, 1, 1)?;
                view = squeeze(&row, Some(&[dim as i64]))?;
                at += 1;
            }
            Index::Slice { start, stop, step } => {
                let n = view.shape()[dim];
                let (from, len, by) = span(*start, *stop, *step, n)?;
                if (from, len, by) != (0, n, 1) {
                    view = slice(&view, dim, from, len, by)?;
                }
                dim += 1;
                at += 1;
            }
            Index::NewAxis => {
                view = unsqueeze(&view, dim as i64)?;
                dim += 1;
            }
            // A second one stands for nothing more.
            Index::Ellipsis => {
                let rest = std::mem::take(&mut rest);
                dim += rest;
                at += rest;
            }
            Index::Bool(on) => {
                view = unsqueeze(&view, dim as i64)?;
                let none = create::arange_in(
                    &x.session()?,
                    Scalar::Int(0),
                    Scalar::Int(1),
                    *on as usize,
                    DType::I64,
                )?;
                picks.push((dim, Pick::Ints(none)));
                dim += 1;
            }
            Index::Tensor(t) if is_mask(t) => {
                let mask = arith::cast(&t.detach(), DType::Bool)?;
                if t.ndim() == 0 {
                    view = unsqueeze(&view, dim as i64)?;
                    picks.push((dim, Pick::Mask(moves::reshape(&mask, &[1])?)));
                    dim += 1;
                    continue;
                }
                for k in 0..t.ndim() {
                    if t.shape()[k] != view.shape()[dim + k] {
                        bail!(
                            Index,
                            "The shape of the mask {} at index {k} does not match the shape of the indexed tensor {} \
                             at index {}",
                            t.shape(),
                            x.shape(),
                            at + k
                        );
                    }
                }
                picks.push((dim, Pick::Mask(mask)));
                dim += t.ndim();
                at += t.ndim();
            }
            Index::Tensor(t) => {
                picks.push((dim, Pick::Ints(t.detach())));
                dim += 1;
                at += 1;
            }
        }
    }
    Ok(Parsed { view, picks })
}

/// Python's slice of a dimension of size `n`: (start, length, step).
fn span(start: Option<i64>, stop: Option<i64>, step: Option<i64>, n: usize) -> Result<(usize, usize, usize)> {
    let by = step.unwrap_or(1);
    if by <= 0 {
        bail!(Value, "step must be greater than zero, got {by}");
    }
    let n = n as i64;
    let place = |x: i64| if x < 0 { (x + n).max(0) } else { x.min(n) };
    let (from, to) = (place(start.unwrap_or(0)), place(stop.unwrap_or(n)));
    let len = if to > from { (to - from + by - 1) / by } else { 0 };
    // A step past the end says the same as 1, and keeps the view valid.
    let by = if len <= 1 { 1 } else { by };
    Ok((if len == 0 { 0 } else { from as usize }, len as usize, by as usize))
}

/// `x[index]`: a view for integers, 0-d tensors of them, slices, `None` and `...`, else a copy. Masks wait for their
/// count.
pub fn get(x: &Tensor, index: &[Index]) -> Result<Tensor> {
    let Parsed { view, picks } = parse(x, index)?;
    if picks.is_empty() {
        return if view.same(x) { moves::alias(x) } else { Ok(view) };
    }
    if let [(dim, Pick::Mask(mask))] = picks.as_slice() {
        let found = flat_nonzero(mask)?;
        let flat = joined(&view, *dim, mask.ndim())?;
        return apply(Op::Take { dim: *dim }, &[&flat, &found]);
    }
    let picks = to_ints(picks)?;
    if picks.iter().all(|(_, index)| index.ndim() == 0) {
        // The last dimension first, so that the others keep their numbers.
        return picks.iter().rev().try_fold(view, |view, (dim, index)| view.pick(*dim, index));
    }
    if let [(dim, index)] = picks.as_slice() {
        return apply(Op::Take { dim: *dim }, &[&view, index]);
    }
    let plan = Plan::of(&view, &picks)?;
    let taken = apply(Op::Take { dim: 0 }, &[&plan.flat(&view)?, &plan.linear(&view, &picks)?])?;
    let placed = plan.placement();
    if placed.iter().enumerate().all(|(i, &d)| i == d) {
        return Ok(taken);
    }
    apply(Op::View(View::Permute(placed)), &[&taken])
}

/// `count` dimensions from `dim` on joined into one.
fn joined(x: &Tensor, dim: usize, count: usize) -> Result<Tensor> {
    let s = x.shape();
    let size: usize = s[dim..dim + count].iter().product();
    reshape_to(x, s[..dim].iter().chain([&size]).chain(&s[dim + count..]).copied().collect())
}

/// Masks as the integers they stand for, one tensor per dimension.
fn to_ints(picks: Vec<(usize, Pick)>) -> Result<Vec<(usize, Tensor)>> {
    let mut out = Vec::new();
    for (dim, pick) in picks {
        match pick {
            Pick::Ints(t) => out.push((dim, t)),
            Pick::Mask(mask) => {
                for (k, t) in nonzero_tuple(&mask)?.into_iter().enumerate() {
                    out.push((dim + k, t));
                }
            }
        }
    }
    Ok(out)
}

/// How several index tensors pick from a view: the picked dimensions come first, flattened to one.
struct Plan {
    /// Picked dimensions first, then the rest in order.
    perm: Ints,
    picked: Ints,
    rest: Ints,
    /// The common shape of the index tensors.
    shape: Shape,
    /// Where the common shape stands among the rest in the result.
    at: usize,
}

impl Plan {
    fn of(view: &Tensor, picks: &[(usize, Tensor)]) -> Result<Plan> {
        let mut shape = Shape::scalar();
        for (_, t) in picks {
            shape = Shape::broadcast("index", &shape, t.shape()).map_err(|_| {
                let all: Vec<String> = picks.iter().map(|(_, t)| t.shape().to_string()).collect();
                gt_ir::Error::Index(format!(
                    "shape mismatch: indexing tensors could not be broadcast together with shapes {}",
                    all.join(", ")
                ))
            })?;
        }
        let picked: Ints = picks.iter().map(|(d, _)| *d).collect();
        let rest: Ints = (0..view.ndim()).filter(|d| !picked.contains(d)).collect();
        // 0-d indices select: they do not count when the others are looked at for being neighbours.
        let scalars: Ints = picks.iter().filter(|(_, t)| t.ndim() == 0).map(|(d, _)| *d).collect();
        let arrays: Ints = picks
            .iter()
            .filter(|(_, t)| t.ndim() > 0)
            .map(|(d, _)| d - scalars.iter().filter(|s| *s < d).count())
            .collect();
        let neighbours = arrays.windows(2).all(|w| w[1] == w[0] + 1);
        let at = if neighbours { arrays.first().copied().unwrap_or(0) } else { 0 };
        let perm = picked.iter().chain(&rest).copied().collect();
        Ok(Plan { perm, picked, rest, shape, at })
    }

    /// The view with its picked dimensions first, as one.
    fn flat(&self, view: &Tensor) -> Result<Tensor> {
        let front = view.view_step(View::Permute(self.perm.clone()), None)?;
        joined(&front, 0, self.picked.len())
    }

    /// The picks as one index into the flattened dimension. `Take` of a range wraps negative ones and checks each
    /// against its own dimension.
    fn linear(&self, view: &Tensor, picks: &[(usize, Tensor)]) -> Result<Tensor> {
        let session = view.session()?;
        let mut total: Option<Tensor> = None;
        for (dim, t) in picks {
            let n = view.shape()[*dim];
            let wrapped = apply(Op::Take { dim: 0 }, &[&create::indices_in(&session, n)?, t])?;
            total = Some(match total {
                None => wrapped,
                Some(before) => {
                    let scaled = bin(Binary::Mul, &before, Scalar::Int(n as i64))?;
                    bin(Binary::Add, &scaled, &wrapped)?
                }
            });
        }
        match total {
            Some(index) => expand_to(&index, &self.shape),
            None => bail!(Index, "index: expected at least one index tensor"),
        }
    }

    /// From (common shape, rest) to the order of the result.
    fn placement(&self) -> Ints {
        let (b, at) = (self.shape.len(), self.at);
        let rest = b..b + self.rest.len();
        rest.clone().take(at).chain(0..b).chain(rest.skip(at)).collect()
    }

    /// The shape of the result.
    fn result(&self, view: &Tensor) -> Shape {
        let rest = self.rest.iter().map(|&d| view.shape()[d]);
        rest.clone().take(self.at).chain(self.shape.iter().copied()).chain(rest.skip(self.at)).collect()
    }
}

/// The inverse of a permutation.
pub(crate) fn inverse(perm: &Ints) -> Ints {
    let mut out = perm.clone();
    for (i, &d) in perm.iter().enumerate() {
        out[d] = i;
    }
    out
}

/// `x[index] = value`, in place. Waits for nothing unless masks are mixed with other index tensors.
pub fn set(x: &Tensor, index: &[Index], value: &Operand<Tensor>) -> Result<()> {
    let Parsed { view, picks } = parse(x, index)?;
    if picks.is_empty() {
        let value = match value {
            Operand::Val(v) => Operand::Val(without_leading_ones(v, view.ndim())?),
            Operand::Num(n) => Operand::Num(*n),
        };
        return inplace::assign(&view, &value);
    }
    if let [(dim, Pick::Mask(mask))] = picks.as_slice() {
        return inplace::replace(&view, |old| masked(old, *dim, mask, value));
    }
    let picks = to_ints(picks)?;
    inplace::replace(&view, |old| put(old, &picks, value, ScatterMode::Set))
}

/// `x[index] += value` for integer tensors, counting every repeated index.
pub fn index_put_add(x: &Tensor, index: &[Index], value: &Operand<Tensor>) -> Result<()> {
    let Parsed { view, picks } = parse(x, index)?;
    let picks = to_ints(picks)?;
    if picks.is_empty() {
        return view.binary_(Binary::Add, value, false);
    }
    inplace::replace(&view, |old| put(old, &picks, value, ScatterMode::Add))
}

/// Leading dimensions of size 1 beyond `rank` dropped, as PyTorch does for assigned values.
fn without_leading_ones(v: &Tensor, rank: usize) -> Result<Tensor> {
    let extra = v.ndim().saturating_sub(rank);
    let ones = v.shape()[..extra].iter().take_while(|&&n| n == 1).count();
    if ones == 0 {
        return Ok(v.clone());
    }
    reshape_to(v, v.shape()[ones..].into())
}

/// The value cast to `dtype` and expanded to `shape`.
fn fitted(value: &Operand<Tensor>, like: &Tensor, shape: &Shape) -> Result<Tensor> {
    match value {
        Operand::Num(n) => {
            let ty = gt_ir::Ty { dtype: like.dtype(), shape: shape.clone() };
            create::full_var(&like.session()?, &ty, *n).map(Tensor::from_var)
        }
        Operand::Val(v) => {
            let v = arith::cast(&without_leading_ones(v, shape.len())?, like.dtype())?;
            if !v.shape().expands_to(shape) {
                return Err(mismatch(&v, &shape.to_string()));
            }
            expand_to(&v, shape)
        }
    }
}

fn mismatch(v: &Tensor, shape: &str) -> gt_ir::Error {
    gt_ir::Error::Runtime(format!(
        "shape mismatch: value tensor of shape {} cannot be broadcast to indexing result of shape {shape}",
        v.shape()
    ))
}

/// `view` with the picked elements replaced.
fn put(
    view: &Tensor,
    picks: &[(usize, Tensor)],
    value: &Operand<Tensor>,
    mode: ScatterMode,
) -> Result<Tensor> {
    if let [(dim, index)] = picks {
        let s = view.shape();
        let shape = s[..*dim].iter().chain(index.shape().iter()).chain(&s[dim + 1..]).copied().collect();
        let src = fitted(value, view, &shape)?;
        return apply(Op::TakePut { dim: *dim, mode }, &[view, index, &src]);
    }
    let plan = Plan::of(view, picks)?;
    let src = fitted(value, view, &plan.result(view))?;
    let src = src.view_step(View::Permute(inverse(&plan.placement())), None)?;
    let (flat, index) = (plan.flat(view)?, plan.linear(view, picks)?);
    let done = apply(Op::TakePut { dim: 0, mode }, &[&flat, &index, &src])?;
    let apart: Shape = plan.perm.iter().map(|&d| view.shape()[d]).collect();
    let apart = reshape_to(&done, apart)?;
    apart.view_step(View::Permute(inverse(&plan.perm)), None)
}

/// `view` with the elements under the mask, which covers dimensions from `dim` on, replaced.
fn masked(view: &Tensor, dim: usize, mask: &Tensor, value: &Operand<Tensor>) -> Result<Tensor> {
    let (m, s) = (mask.ndim(), view.shape());
    let after = view.ndim() - dim - m;
    let wide = reshape_to(mask, mask.shape().iter().copied().chain((0..after).map(|_| 1)).collect())?;
    let choose = |new: &Operand<Tensor>| arith::select(&wide, new, &view.into());
    let v = match value {
        Operand::Num(n) => return choose(&Operand::Num(arith::element(*n, view.dtype())?)),
        Operand::Val(v) => arith::cast(&without_leading_ones(v, dim + 1 + after)?, view.dtype())?,
    };
    let words = || {
        let sizes: Vec<String> = s[..dim].iter().map(usize::to_string).collect();
        let rest: Vec<String> = s[dim + m..].iter().map(usize::to_string).collect();
        format!("[{}]", [sizes, vec!["<true elements>".into()], rest].concat().join(", "))
    };
    let lead = v.ndim() as i64 - after as i64 - 1;
    if lead > dim as i64 {
        return Err(mismatch(&v, &words()));
    }
    if lead < 0 || v.shape()[lead as usize] == 1 {
        // The value is the same for all masked places: no count is needed.
        let mut shape = v.shape().clone();
        if lead >= 0 {
            for _ in 1..m {
                shape.insert(lead as usize, 1);
            }
        }
        let v = reshape_to(&v, shape)?;
        if !v.shape().expands_to(s) {
            return Err(mismatch(&v, &words()));
        }
        return choose(&(&v).into());
    }
    let n = v.shape()[lead as usize];
    let full: Shape = s[..dim].iter().chain([&n]).chain(&s[dim + m..]).copied().collect();
    if !v.shape().expands_to(&full) || (mask.numel() == 0 && n > 0) {
        return Err(mismatch(&v, &words()));
    }
    // Each true place reads the value at its rank among the true places. Elsewhere it reads a row of padding, and
    // everywhere an index out of range if the counts differ: that fails on the worker.
    let v = expand_to(&v, &full)?;
    let (mut lo, mut hi): (Ints, Ints) = (full.iter().map(|_| 0).collect(), full.iter().map(|_| 0).collect());
    (lo[dim], hi[dim]) = (0, 1);
    let padded = super::apply_with(Op::Pad { lo, hi }, &v, &[arith::as_kind(Scalar::Int(0), v.dtype())])?;
    let flat = moves::reshape(mask, &[-1])?;
    let rank = bin(Binary::Sub, &reduce::cumsum(&flat, 0, None)?, Scalar::Int(1))?;
    let place = arith::select(&flat, &(&rank).into(), &Scalar::Int(n as i64).into())?;
    let count = reduce::sum(&flat, &[], false, None)?;
    let wrong = bin(Binary::Ne, &count, Scalar::Int(n as i64))?;
    let miscounted = bin(Binary::Add, &count, Scalar::Int(MISCOUNTED))?;
    let place = arith::select(&wrong, &(&miscounted).into(), &(&place).into())?;
    let place = moves::reshape(&place, &signed(mask.shape()))?;
    choose(&(&apply(Op::Take { dim }, &[&padded, &place])?).into())
}

/// Row-major positions of the elements that are not zero; waits for their count.
pub(crate) fn flat_nonzero(x: &Tensor) -> Result<Tensor> {
    let Operand::Val(flags) = super::pointwise::to_bool(&(&x.detach()).into())? else {
        bail!(Type, "nonzero: expected a tensor");
    };
    let count = reduce::sum(&flags, &[], false, None)?.item()?.as_i64();
    // In order, and equals in theirs, the true ones come first.
    Ok(super::sort::topk(&moves::reshape(&flags, &[-1])?, count, 0, true)?.1)
}

/// Coordinates of the elements that are not zero, one tensor per dimension; waits for their count.
pub fn nonzero_tuple(x: &Tensor) -> Result<Vec<Tensor>> {
    if x.ndim() == 0 {
        return nonzero_tuple(&moves::reshape(x, &[1])?);
    }
    // One division for each dimension but the last: the rest is what a product leaves.
    let mut rest = flat_nonzero(x)?;
    let mut out = Vec::new();
    for &stride in &x.shape().strides()[..x.ndim() - 1] {
        let at = bin(Binary::FloorDiv, &rest, Scalar::Int(stride as i64))?;
        rest = bin(Binary::Sub, &rest, &bin(Binary::Mul, &at, Scalar::Int(stride as i64))?)?;
        out.push(at);
    }
    out.push(rest);
    Ok(out)
}

/// Coordinates of the elements that are not zero, one row each; waits for their count.
pub fn nonzero(x: &Tensor) -> Result<Tensor> {
    if x.ndim() == 0 {
        let found = flat_nonzero(&moves::reshape(x, &[1])?)?;
        return create::full([found.numel(), 0], 0i64, DType::I64);
    }
    super::join::stack(&nonzero_tuple(x)?, 1)
}
