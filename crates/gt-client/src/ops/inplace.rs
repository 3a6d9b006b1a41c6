//! In-place functions. Each computes the new value from what the tensor holds now and writes it back.

use super::arith::{cast, element, no_bool, result_type, unary};
use super::{create, identity, pointwise, scatter};
use crate::Tensor;
use crate::autograd::{GradMode, Recorder, Var};
use gt_ir::{Binary, Build, DType, Dist, Kind, Operand, Result, Scalar, Unary, bail};

/// What `x` holds now, as a tensor of its own: gradient rules may keep it although `x` is written afterwards, and a result that
/// was computed in another shape is no view of what nobody knows.
pub(crate) fn snapshot(x: &Tensor) -> Result<Tensor> {
    Ok(Tensor::from_var(Var { owner: None, ..x.var()? }))
}

/// Replaces `x` by a function of what it holds; the result is cast to its type.
pub(crate) fn replace(x: &Tensor, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<()> {
    x.check_inplace(false)?;
    x.in_one_step(|| replace_now(x, f))
}

fn replace_now(x: &Tensor, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<()> {
    let new = f(&snapshot(x)?)?;
    if new.dtype().kind() > x.dtype().kind() {
        bail!(
            Runtime,
            "result type {} can't be cast to the desired output type {}",
            new.dtype().name(),
            x.dtype().name()
        );
    }
    if new.shape() != x.shape() {
        bail!(Runtime, "output with shape {} doesn't match the broadcast shape {}", x.shape(), new.shape());
    }
    x.write(Operand::Val(fresh(&new, x.dtype())?))
}

/// The tensor's value and a step of the graph that no other tensor stands for.
fn fresh(new: &Tensor, dtype: DType) -> Result<Var> {
    let var = Var { owner: None, ..cast(new, dtype)?.var()? };
    let leaf = var.edge.as_ref().is_some_and(|e| matches!(e.node.kind, crate::autograd::NodeKind::Leaf(_)));
    Ok(if leaf { identity(var) } else { var })
}

/// `x[...] = value` for all of `x`: broadcasts and casts.
pub(crate) fn assign(x: &Tensor, value: &Operand<Tensor>) -> Result<()> {
    match value {
        Operand::Num(n) => fill_(x, &Operand::Num(*n)),
        Operand::Val(v) => copy_(x, v),
    }
}

/// Copies `src` into `x`, broadcast and cast.
pub fn copy_(x: &Tensor, src: &Tensor) -> Result<()> {
    x.check_inplace(false)?;
    if !src.shape().expands_to(x.shape()) {
        bail!(
            Runtime,
            "The expanded size of the tensor must match the existing size at every non-singleton dimension: cannot \
             copy {} into {}",
            src.shape(),
            x.shape()
        );
    }
    let value = Recorder.cast(&src.var()?, x.dtype())?;
    let value = Recorder.expand(&value, x.shape())?;
    let mut value = identity(value);
    // What was there is overwritten: a gradient of zeros goes to it, as a put into a part of it gives.
    if let (Some(_), false, Some(before)) = (&value.edge, x.is_view(), x.edge()) {
        value.edge = Some(super::put_edge(&[], Some(before), x.ty(), Operand::Val(value.clone()))?);
    }
    x.write(Operand::Val(value))
}

/// Sets every element to one number or to a 0-d tensor.
pub fn fill_(x: &Tensor, value: &Operand<Tensor>) -> Result<()> {
    x.check_inplace(false)?;
    match value {
        Operand::Num(n) => x.write(Operand::Num(element(*n, x.dtype())?)),
        Operand::Val(v) if v.ndim() == 0 => copy_(x, v),
        Operand::Val(v) => bail!(
            Runtime,
            "fill_ only supports 0-dimension value tensor but got tensor with {} dimensions.",
            v.ndim()
        ),
    }
}

pub fn zero_(x: &Tensor) -> Result<()> {
    fill_(x, &Operand::Num(Scalar::Int(0)))
}

/// Replaces the elements by random ones, which no gradient reaches.
fn random_(x: &Tensor, draw: impl FnOnce() -> Result<Tensor>) -> Result<()> {
    x.check_inplace(false)?;
    let new = {
        let _mode = GradMode::set(false);
        cast(&draw()?, x.dtype())?.var()?
    };
    x.write(Operand::Val(Var::plain(new.value)))
}

fn floating(op: &str, x: &Tensor) -> Result<()> {
    crate::tensor::need_float(op, x)
}

/// Normal numbers.
pub fn normal_(x: &Tensor, mean: f64, std: f64) -> Result<()> {
    floating("normal_", x)?;
    if std < 0.0 {
        bail!(Runtime, "normal_ expects std >= 0.0, but found std={std}");
    }
    random_(x, || {
        let z = create::random_in(&x.session()?, Dist::Normal, x.shape().clone(), x.dtype())?;
        affine(z, std, mean)
    })
}

/// Uniform numbers in [low, high).
pub fn uniform_(x: &Tensor, low: f64, high: f64) -> Result<()> {
    floating("uniform_", x)?;
    if low > high {
        bail!(Runtime, "uniform_ expects to return a [from, to) range, but found from={low} > to={high}");
    }
    random_(x, || {
        let u = create::random_in(&x.session()?, Dist::Uniform, x.shape().clone(), x.dtype())?;
        affine(u, high - low, low)
    })
}

fn affine(x: Tensor, scale: f64, shift: f64) -> Result<Tensor> {
    let x = if scale == 1.0 { x } else { super::bin(Binary::Mul, &x, scale)? };
    if shift == 0.0 { Ok(x) } else { super::bin(Binary::Add, &x, shift) }
}

/// 1 with probability `p`, else 0.
pub fn bernoulli_(x: &Tensor, p: &Operand<Tensor>) -> Result<()> {
    if let Operand::Num(p) = p
        && !(0.0..=1.0).contains(&p.as_f64())
    {
        bail!(Runtime, "bernoulli_ expects p to be in [0, 1], but got p={}", p.as_f64());
    }
    random_(x, || {
        let u = create::rand_in(&x.session()?, x.shape().clone(), DType::F32)?;
        super::arith::binary(Binary::Lt, &(&u).into(), p)
    })
}

/// Uniform integers in [low, high).
pub fn random_int_(x: &Tensor, low: i64, high: i64) -> Result<()> {
    random_(x, || {
        let dtype = if x.dtype().kind() == Kind::Int { x.dtype() } else { DType::I64 };
        create::random_in(&x.session()?, Dist::Int { low, high }, x.shape().clone(), dtype)
    })
}

/// Exponential numbers of the given rate.
pub fn exponential_(x: &Tensor, rate: f64) -> Result<()> {
    floating("exponential_", x)?;
    random_(x, || {
        let u = create::random_in(&x.session()?, Dist::Uniform, x.shape().clone(), DType::F64)?;
        let e = unary(Unary::Log1p, &unary(Unary::Neg, &u)?)?;
        super::bin(Binary::Div, &e, -rate)
    })
}

/// A unary op in place.
pub fn unary_(x: &Tensor, op: Unary) -> Result<()> {
    replace(x, |old| unary(op, old))
}

/// `x += alpha * other`. `lenient` is for augmented assignment, see `Tensor::check_inplace`.
pub fn add_(x: &Tensor, other: &Operand<Tensor>, alpha: Scalar, lenient: bool) -> Result<()> {
    let dtype = result_type(&x.into(), other);
    x.binary_(Binary::Add, &pointwise::scaled("add_", other, alpha, dtype)?, lenient)
}

/// `x -= alpha * other`. `lenient` is for augmented assignment, see `Tensor::check_inplace`.
pub fn sub_(x: &Tensor, other: &Operand<Tensor>, alpha: Scalar, lenient: bool) -> Result<()> {
    no_bool(&x.into(), other)?;
    let dtype = result_type(&x.into(), other);
    x.binary_(Binary::Sub, &pointwise::scaled("sub_", other, alpha, dtype)?, lenient)
}

/// Division in place, with PyTorch's rounding modes.
pub fn div_(x: &Tensor, other: &Operand<Tensor>, mode: Option<&str>) -> Result<()> {
    replace(x, |old| pointwise::div(&old.into(), other, mode))
}

pub fn clamp_(x: &Tensor, min: Option<&Operand<Tensor>>, max: Option<&Operand<Tensor>>) -> Result<()> {
    replace(x, |old| pointwise::clamp(old, min, max))
}

pub fn pow_(x: &Tensor, exponent: &Operand<Tensor>) -> Result<()> {
    let dtype = result_type(&x.into(), exponent);
    if dtype.kind() > x.dtype().kind() {
        bail!(
            Runtime,
            "result type {} can't be cast to the desired output type {}",
            dtype.name(),
            x.dtype().name()
        );
    }
    replace(x, |old| pointwise::pow(&old.into(), exponent))
}

pub fn lerp_(x: &Tensor, end: &Tensor, weight: &Operand<Tensor>) -> Result<()> {
    replace(x, |old| pointwise::lerp(old, end, weight))
}

pub fn addcmul_(x: &Tensor, a: &Operand<Tensor>, b: &Operand<Tensor>, value: Scalar) -> Result<()> {
    replace(x, |old| pointwise::addcmul(old, a, b, value))
}

pub fn addcdiv_(x: &Tensor, a: &Operand<Tensor>, b: &Operand<Tensor>, value: Scalar) -> Result<()> {
    replace(x, |old| pointwise::addcdiv(old, a, b, value))
}

pub fn masked_fill_(x: &Tensor, mask: &Tensor, value: &Operand<Tensor>) -> Result<()> {
    replace(x, |old| scatter::masked_fill(old, mask, value))
}

pub fn masked_scatter_(x: &Tensor, mask: &Tensor, source: &Tensor) -> Result<()> {
    if !mask.shape().expands_to(x.shape()) {
        bail!(
            Runtime,
            "masked_scatter_: expected a mask that broadcasts to {}, got {}: broadcast the tensor first",
            x.shape(),
            mask.shape()
        );
    }
    replace(x, |old| scatter::masked_scatter(old, mask, source))
}

pub fn scatter_(x: &Tensor, dim: i64, index: &Tensor, src: &Operand<Tensor>) -> Result<()> {
    replace(x, |old| scatter::scatter(old, dim, index, src))
}

pub fn scatter_add_(x: &Tensor, dim: i64, index: &Tensor, src: &Tensor) -> Result<()> {
    replace(x, |old| scatter::scatter_add(old, dim, index, src))
}

pub fn index_add_(x: &Tensor, dim: i64, index: &Tensor, src: &Tensor, alpha: Scalar) -> Result<()> {
    replace(x, |old| scatter::index_add(old, dim, index, src, alpha))
}

pub fn index_copy_(x: &Tensor, dim: i64, index: &Tensor, src: &Tensor) -> Result<()> {
    replace(x, |old| scatter::index_copy(old, dim, index, src))
}

pub fn index_fill_(x: &Tensor, dim: i64, index: &Tensor, value: &Operand<Tensor>) -> Result<()> {
    replace(x, |old| scatter::index_fill(old, dim, index, value))
}

pub fn tril_(x: &Tensor, k: i64) -> Result<()> {
    replace(x, |old| super::moves::tril(old, k))
}

pub fn triu_(x: &Tensor, k: i64) -> Result<()> {
    replace(x, |old| super::moves::triu(old, k))
}

/// Any function of one tensor in place, for callers with a function of their own.
pub fn apply_(x: &Tensor, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<()> {
    replace(x, f)
}
