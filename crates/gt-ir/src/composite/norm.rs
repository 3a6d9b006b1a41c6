//! Normalization over trailing dimensions.

use super::widened;
use crate::build::{Build, Operand, Saved};
use crate::elementwise::{Binary, Unary};
use crate::grad::Grads;
use crate::op::ReduceKind;
use crate::{Ints, Result, Shape};
use smallvec::SmallVec;

/// The trailing dimensions, and how many elements they have together.
fn trailing(shape: &Shape, dims: usize) -> (Ints, f64) {
    let first = shape.len() - dims;
    ((first..shape.len()).collect(), shape[first..].iter().product::<usize>() as f64)
}

fn mean<B: Build>(b: &mut B, x: &B::V, over: &(Ints, f64)) -> Result<B::V> {
    let total = b.reduce(ReduceKind::Sum, x, &over.0, true)?;
    b.bin(Binary::Div, &total, over.1)
}

/// `x` as it is scaled (centred if told), and one over its deviation.
fn scaled<B: Build>(
    b: &mut B,
    x: &B::V,
    eps: Operand<B::V>,
    over: &(Ints, f64),
    centre: bool,
) -> Result<(B::V, B::V)> {
    let mut x = widened(b, x)?;
    if centre {
        let middle = mean(b, &x, over)?;
        x = b.bin(Binary::Sub, &x, &middle)?;
    }
    let square = b.mul(&x, &x)?;
    let spread = mean(b, &square, over)?;
    let spread = b.bin(Binary::Add, &spread, eps)?;
    let by = b.un(Unary::Rsqrt, &spread)?;
    Ok((x, by))
}

pub(super) fn rms_norm<B: Build>(
    b: &mut B,
    x: &B::V,
    eps: Operand<B::V>,
    weight: Option<&B::V>,
    dims: usize,
) -> Result<B::V> {
    normed(b, x, eps, [weight, None], dims, false)
}

pub(super) fn layer_norm<B: Build>(
    b: &mut B,
    x: &B::V,
    eps: Operand<B::V>,
    affine: [Option<&B::V>; 2],
    dims: usize,
) -> Result<B::V> {
    normed(b, x, eps, affine, dims, true)
}

fn normed<B: Build>(
    b: &mut B,
    x: &B::V,
    eps: Operand<B::V>,
    [weight, bias]: [Option<&B::V>; 2],
    dims: usize,
    centre: bool,
) -> Result<B::V> {
    let ty = b.ty(x);
    let over = trailing(&ty.shape, dims);
    let (x, by) = scaled(b, x, eps, &over, centre)?;
    let mut y = b.mul(&x, &by)?;
    if let Some(weight) = weight {
        let weight = widened(b, weight)?;
        y = b.mul(&y, &weight)?;
    }
    if let Some(bias) = bias {
        let bias = widened(b, bias)?;
        y = b.add(&y, &bias)?;
    }
    b.cast(&y, ty.dtype)
}

pub(super) fn rms_norm_grad<B: Build>(
    b: &mut B,
    s: &Saved<B::V>,
    g: &B::V,
    dims: usize,
    wanted: &[bool],
) -> Result<Grads<B::V>> {
    norm_grad(b, s, g, dims, wanted, false)
}

pub(super) fn layer_norm_grad<B: Build>(
    b: &mut B,
    s: &Saved<B::V>,
    g: &B::V,
    dims: usize,
    wanted: &[bool],
) -> Result<Grads<B::V>> {
    norm_grad(b, s, g, dims, wanted, true)
}

fn norm_grad<B: Build>(
    b: &mut B,
    s: &Saved<B::V>,
    g: &B::V,
    dims: usize,
    wanted: &[bool],
    centre: bool,
) -> Result<Grads<B::V>> {
    let want = |i: usize| wanted.get(i) == Some(&true);
    let ty = s.ty(0)?.clone();
    let over = trailing(&ty.shape, dims);
    let mut out: Grads<B::V> = SmallVec::from_elem(None, s.args.len());
    let g = widened(b, g)?;
    if want(0) || want(2) {
        let (x, by) = scaled(b, s.arg(0)?, s.operand(1)?, &over, centre)?;
        let y = b.mul(&x, &by)?;
        if want(0) {
            // What reaches `y`, less its mean (if centred) and its part along `y`.
            let mut d = g.clone();
            if s.args.len() > 2 {
                let weight = widened(b, s.arg(2)?)?;
                d = b.mul(&d, &weight)?;
            }
            let along = b.mul(&d, &y)?;
            let along = mean(b, &along, &over)?;
            let along = b.mul(&y, &along)?;
            if centre {
                let middle = mean(b, &d, &over)?;
                d = b.bin(Binary::Sub, &d, &middle)?;
            }
            let d = b.bin(Binary::Sub, &d, &along)?;
            let d = b.mul(&d, &by)?;
            out[0] = Some(b.cast(&d, ty.dtype)?);
        }
        if want(2) {
            let d = b.mul(&g, &y)?;
            let d = b.sum_to(&d, &s.ty(2)?.shape)?;
            out[2] = Some(b.cast(&d, ty.dtype)?);
        }
    }
    if want(3) {
        let d = b.sum_to(&g, &s.ty(3)?.shape)?;
        out[3] = Some(b.cast(&d, ty.dtype)?);
    }
    Ok(out)
}
