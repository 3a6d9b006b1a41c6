//! Softmax and cross entropy.

use super::{wide, widened};
use crate::build::{Build, Operand, Saved, Values};
use crate::elementwise::{Binary, Unary};
use crate::grad::Grads;
use crate::op::{Op, ReduceKind, ScatterMode};
use crate::{DType, Result, Scalar, Shape};
use smallvec::smallvec;

pub(super) fn softmax<B: Build>(b: &mut B, x: &B::V, dim: usize, log: bool) -> Result<B::V> {
    let ty = b.ty(x);
    let dims: &[usize] = if ty.shape.is_empty() { &[] } else { &[dim] };
    if ty.shape.numel() == 0 {
        return Ok(x.clone());
    }
    let x = widened(b, x)?;
    let top = b.reduce(ReduceKind::Max, &x, dims, true)?;
    let less = b.bin(Binary::Sub, &x, &top)?;
    let e = b.un(Unary::Exp, &less)?;
    let total = b.reduce(ReduceKind::Sum, &e, dims, true)?;
    let y = if log {
        let log = b.un(Unary::Log, &total)?;
        b.bin(Binary::Sub, &less, &log)?
    } else {
        let part = b.un(Unary::Recip, &total)?;
        b.mul(&e, &part)?
    };
    b.cast(&y, ty.dtype)
}

pub(super) fn softmax_grad<B: Build>(
    b: &mut B,
    y: &B::V,
    g: &B::V,
    dim: usize,
    log: bool,
) -> Result<Grads<B::V>> {
    let dims: &[usize] = if b.ty(y).shape.is_empty() { &[] } else { &[dim] };
    let d = if log {
        let total = b.reduce(ReduceKind::Sum, g, dims, true)?;
        let p = b.un(Unary::Exp, y)?;
        let scaled = b.mul(&p, &total)?;
        b.bin(Binary::Sub, g, &scaled)?
    } else {
        let gy = b.mul(g, y)?;
        let total = b.reduce(ReduceKind::Sum, &gy, dims, true)?;
        let centred = b.bin(Binary::Sub, g, &total)?;
        b.mul(y, &centred)?
    };
    Ok(smallvec![Some(d)])
}

/// With a dimension of one element behind all others.
fn column<B: Build>(b: &mut B, x: &B::V) -> Result<B::V> {
    let mut shape = b.ty(x).shape;
    shape.push(1);
    b.reshape(x, &shape)
}

/// The targets as a column of `i64`, 0 where they are ignored, and where they are not.
fn classes<B: Build>(b: &mut B, target: &B::V, ignore: Operand<B::V>) -> Result<(B::V, B::V)> {
    let target = b.cast(target, DType::I64)?;
    let kept = b.bin(Binary::Ne, &target, ignore)?;
    let safe = b.select(&kept, &target, Scalar::Int(0))?;
    Ok((column(b, &safe)?, kept))
}

/// (loss of every row, its log-sum-exp). A target out of range fails as an index does.
pub(super) fn cross_entropy<B: Build>(
    b: &mut B,
    x: &B::V,
    target: &B::V,
    ignore: Operand<B::V>,
) -> Result<Values<B::V>> {
    let ty = b.ty(x);
    let last = ty.shape.len() - 1;
    let rows: Shape = ty.shape[..last].into();
    if rows.numel() == 0 {
        let lse = crate::Ty { dtype: wide(ty.dtype), shape: rows.clone() };
        let loss = b.full(&crate::Ty { dtype: ty.dtype, shape: rows }, 0.0)?;
        return Ok(smallvec![loss, b.full(&lse, 0.0)?]);
    }
    let (index, kept) = classes(b, target, ignore)?;
    let own = b.emit(Op::Gather { dim: last }, smallvec![x.into(), (&index).into()])?;
    let own = widened(b, &own)?;
    let own = b.reshape(&own, &rows)?;
    let x = widened(b, x)?;
    let top = b.reduce(ReduceKind::Max, &x, &[last], true)?;
    let less = b.bin(Binary::Sub, &x, &top)?;
    let e = b.un(Unary::Exp, &less)?;
    let total = b.reduce(ReduceKind::Sum, &e, &[last], true)?;
    let log = b.un(Unary::Log, &total)?;
    let lse = b.add(&top, &log)?;
    let lse = b.reshape(&lse, &rows)?;
    let loss = b.bin(Binary::Sub, &lse, &own)?;
    let loss = b.select(&kept, &loss, 0.0)?;
    let loss = b.cast(&loss, ty.dtype)?;
    Ok(smallvec![loss, lse])
}

/// `(exp(x - lse) - onehot) * g` where the target counts, and `exp(x - lse) * h` for the gradient `h` of lse.
pub(super) fn cross_entropy_grad<B: Build>(
    b: &mut B,
    s: &Saved<B::V>,
    g: Option<&B::V>,
    h: Option<&B::V>,
) -> Result<Grads<B::V>> {
    let ty = s.ty(0)?.clone();
    let x = widened(b, s.arg(0)?)?;
    let lse = column(b, s.out(1)?)?;
    let less = b.bin(Binary::Sub, &x, &lse)?;
    let p = b.un(Unary::Exp, &less)?;
    let mut d = None;
    if let Some(g) = g {
        let (index, kept) = classes(b, s.arg(1)?, s.operand(2)?)?;
        let g = widened(b, g)?;
        let g = b.select(&kept, &g, 0.0)?;
        let g = column(b, &g)?;
        let all = b.mul(&p, &g)?;
        let less = b.un(Unary::Neg, &g)?;
        let op = Op::Scatter { dim: ty.shape.len() - 1, mode: ScatterMode::Add };
        d = Some(b.emit(op, smallvec![(&all).into(), (&index).into(), (&less).into()])?);
    }
    if let Some(h) = h {
        let h = column(b, h)?;
        let more = b.mul(&p, &h)?;
        d = Some(match d {
            Some(d) => b.add(&d, &more)?,
            None => more,
        });
    }
    let d = d.map(|d| b.cast(&d, ty.dtype)).transpose()?;
    Ok(smallvec![d, None, None])
}
