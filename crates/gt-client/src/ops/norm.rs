//! Normalization over the last dimensions.

use super::arith::cast;
use super::autocast::careful;
use super::{bin, shape_of};
use crate::Tensor;
use crate::autograd::{Var, record};
use crate::tensor::need_float;
use gt_ir::{Binary, DType, Op, Operand, Operands, Result, bail};
use smallvec::smallvec;

/// Normalizes to mean 0 and variance 1 over `sizes`, the last dimensions, then scales and shifts.
pub fn layer_norm(
    x: &Tensor,
    sizes: &[i64],
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f64,
) -> Result<Tensor> {
    if let Some(xs) = careful(&[x, weight.unwrap_or(x), bias.unwrap_or(x)])? {
        return layer_norm(&xs[0], sizes, weight.map(|_| &xs[1]), bias.map(|_| &xs[2]), eps);
    }
    let dims = fits("layer_norm", x, sizes, [("weight", weight), ("bias", bias)])?;
    // A bias alone comes after the norm.
    let inside = if weight.is_some() { bias } else { None };
    let y = normed(Op::LayerNorm { dims }, x, eps, [weight, inside])?;
    match bias {
        Some(bias) if weight.is_none() => cast(&bin(Binary::Add, &y, bias)?, x.dtype()),
        _ => Ok(y),
    }
}

/// Divides by the root of the mean square over `sizes`, the last dimensions, then scales. Without `eps` the smallest
/// step of the computing type is added.
pub fn rms_norm(x: &Tensor, sizes: &[i64], weight: Option<&Tensor>, eps: Option<f64>) -> Result<Tensor> {
    let dims = fits("rms_norm", x, sizes, [("weight", weight), ("bias", None)])?;
    let least = if x.dtype() == DType::F64 { f64::EPSILON } else { f32::EPSILON as f64 };
    normed(Op::RmsNorm { dims }, x, eps.unwrap_or(least), [weight, None])
}

/// Checks the sizes that are normalized over; gives how many dimensions that are.
fn fits(op: &str, x: &Tensor, sizes: &[i64], affine: [(&str, Option<&Tensor>); 2]) -> Result<usize> {
    need_float(op, x)?;
    let shape = shape_of(op, sizes)?;
    if shape.is_empty() {
        bail!(
            Runtime,
            "{op}: expected normalized_shape to be at least 1-dimensional, i.e., containing at least one element, \
             but got normalized_shape = []"
        );
    }
    if !x.shape().ends_with(&shape) {
        bail!(
            Runtime,
            "{op}: given normalized_shape={sizes:?}, expected input with a shape that ends so, but got input of size{}",
            x.shape()
        );
    }
    for (what, t) in affine {
        if let Some(t) = t.filter(|t| *t.shape() != shape) {
            bail!(
                Runtime,
                "{op}: expected {what} to be of same shape as normalized_shape, but got {what} of shape {} and \
                 normalized_shape = {sizes:?}",
                t.shape()
            );
        }
    }
    Ok(shape.len())
}

/// Records a norm; operands of other types meet in the widest, and the result has the input's type.
fn normed(op: Op, x: &Tensor, eps: f64, affine: [Option<&Tensor>; 2]) -> Result<Tensor> {
    let dtype = affine.iter().flatten().fold(x.dtype(), |dtype, t| dtype.promote(t.dtype()));
    let mut args: Operands<Var> = smallvec![Operand::Val(cast(x, dtype)?.var()?), eps.into()];
    for t in affine.into_iter().flatten() {
        args.push(Operand::Val(cast(t, dtype)?.var()?));
    }
    cast(&Tensor::from_var(record(op, args)?), x.dtype())
}
