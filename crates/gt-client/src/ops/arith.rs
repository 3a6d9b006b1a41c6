//! Arithmetic, comparison and logic with PyTorch's promotion.

use super::autocast::{careful_power, careful_unary};
use super::{apply, operand};
use crate::Tensor;
use crate::autograd::{Recorder, Var, record};
use crate::default;
use gt_ir::elementwise::{Gives, Takes};
use gt_ir::{Binary, Build, DType, Kind, Op, Operand, Result, Scalar, Unary, bail};
use smallvec::smallvec;

/// The type PyTorch computes in for these operands: tensors with dimensions count before 0-d ones, those before
/// numbers, within a kind of type.
pub fn result_type(a: &Operand<Tensor>, b: &Operand<Tensor>) -> DType {
    #[derive(Clone, Copy)]
    struct Rank(DType, u8);
    let rank = |x: &Operand<Tensor>| match x {
        Operand::Val(t) => Rank(t.dtype(), if t.ndim() > 0 { 2 } else { 1 }),
        Operand::Num(Scalar::Bool(_)) => Rank(DType::Bool, 0),
        Operand::Num(Scalar::Int(_)) => Rank(DType::I64, 0),
        Operand::Num(Scalar::Float(_)) => Rank(default::float(), 0),
    };
    let (Rank(da, ra), Rank(db, rb)) = (rank(a), rank(b));
    if ra == rb {
        return da.promote(db);
    }
    let (strong, weak) = if ra > rb { (da, db) } else { (db, da) };
    if weak.kind() > strong.kind() {
        // A number of a higher kind brings the default type of that kind; a 0-d tensor its own.
        return if ra.min(rb) == 0 && weak.is_float() { default::float() } else { weak };
    }
    strong
}

/// Elementwise op of two operands, at least one of them a tensor.
#[inline]
pub fn binary(op: Binary, a: &Operand<Tensor>, b: &Operand<Tensor>) -> Result<Tensor> {
    if op == Binary::Pow
        && let Some([a, b]) = careful_power(a, b)?
    {
        return binary(op, &a, &b);
    }
    if let (Operand::Val(x), Operand::Val(y)) = (a, b)
        && x.dtype() == y.dtype()
        && op.takes().accepts(x.dtype())
    {
        return apply(Op::Binary(op), &[x, y]);
    }
    binary_var(op, a, b).map(Tensor::from_var)
}

fn binary_var(op: Binary, a: &Operand<Tensor>, b: &Operand<Tensor>) -> Result<Var> {
    if op == Binary::Sub {
        no_bool(a, b)?;
    }
    let mut dtype = result_type(a, b);
    match op.takes() {
        Takes::Float if !dtype.is_float() => dtype = default::float(),
        Takes::Number if dtype == DType::Bool => dtype = DType::I64,
        Takes::Bits if dtype.is_float() => bail!(
            Runtime,
            "{}: expected bool or integer operands, got {}",
            op.text().to_lowercase(),
            dtype.name()
        ),
        _ => {}
    }
    if op == Binary::Pow
        && dtype.kind() == Kind::Int
        && let Operand::Num(e) = b
        && e.as_i64() < 0
    {
        bail!(Runtime, "Integers to negative integer powers are not allowed.");
    }
    let cast = |x: &Operand<Tensor>| -> Result<Operand<Var>> {
        Ok(match operand(x)? {
            Operand::Val(v) => Operand::Val(Recorder.cast(&v, dtype)?),
            Operand::Num(n) => Operand::Num(as_kind(n, dtype)),
        })
    };
    record(Op::Binary(op), smallvec![cast(a)?, cast(b)?])
}

/// Refuses bools, which have no difference.
pub(crate) fn no_bool(a: &Operand<Tensor>, b: &Operand<Tensor>) -> Result<()> {
    let is_bool = |x: &Operand<Tensor>| match x {
        Operand::Val(t) => t.dtype() == DType::Bool,
        Operand::Num(n) => n.kind() == Kind::Bool,
    };
    match (is_bool(a), is_bool(b)) {
        (false, false) => Ok(()),
        (true, true) => bail!(
            Runtime,
            "Subtraction, the `-` operator, with two bool tensors is not supported. Use the `^` or `logical_xor()` \
             operator instead."
        ),
        _ => bail!(
            Runtime,
            "Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying to invert a mask, \
             use the `~` or `logical_not()` operator instead."
        ),
    }
}

/// The least and the largest element of an integer type.
pub(crate) fn int_range(dtype: DType) -> (i64, i64) {
    match dtype {
        DType::U8 => (0, u8::MAX as i64),
        DType::I8 => (i8::MIN as i64, i8::MAX as i64),
        DType::I16 => (i16::MIN as i64, i16::MAX as i64),
        DType::I32 => (i32::MIN as i64, i32::MAX as i64),
        _ => (i64::MIN, i64::MAX),
    }
}

/// The number as a scalar to fill elements of the type with; one that an integer type cannot hold is refused.
pub fn element(x: Scalar, dtype: DType) -> Result<Scalar> {
    if dtype.kind() == Kind::Int {
        let (min, max) = int_range(dtype);
        let fits = match x {
            Scalar::Bool(_) => true,
            // Negative integers wrap around in an unsigned type, as in PyTorch.
            Scalar::Int(i) => i <= max && i >= if min == 0 { -max } else { min },
            Scalar::Float(f) => f >= min as f64 && f <= max as f64,
        };
        if !fits {
            bail!(Runtime, "value {x} cannot be converted to type {} without overflow", dtype.name());
        }
    }
    Ok(as_kind(x, dtype))
}

/// The number as a scalar of the type's kind.
pub(crate) fn as_kind(x: Scalar, dtype: DType) -> Scalar {
    match dtype.kind() {
        Kind::Bool => Scalar::Bool(x.as_bool()),
        Kind::Int => Scalar::Int(x.as_i64()),
        Kind::Float => Scalar::Float(x.as_f64()),
    }
}

/// `self = self op other` in place.
pub(crate) fn binary_inplace(t: &Tensor, op: Binary, other: &Operand<Tensor>, lenient: bool) -> Result<()> {
    let untracked = match other {
        Operand::Val(o) => !o.requires_grad(),
        Operand::Num(_) => true,
    };
    let lenient = lenient && untracked && t.is_leaf() && !t.is_view();
    t.check_inplace(lenient)?;
    let _mode = (lenient && t.requires_grad()).then(|| crate::autograd::GradMode::set(false));
    t.in_one_step(|| binary_inplace_now(t, op, other))
}

fn binary_inplace_now(t: &Tensor, op: Binary, other: &Operand<Tensor>) -> Result<()> {
    // Gradient rules keep what was there before the write.
    let me = Operand::Val(super::inplace::snapshot(t)?);
    let mut dtype = result_type(&me, other);
    if op.takes() == Takes::Float && !dtype.is_float() {
        dtype = default::float();
    }
    if dtype.kind() > t.dtype().kind() && op.gives() == Gives::Same {
        bail!(
            Runtime,
            "result type {} can't be cast to the desired output type {}",
            dtype.name(),
            t.dtype().name()
        );
    }
    let result = binary_var(op, &me, other)?;
    if result.value.ty.shape != *t.shape() {
        bail!(
            Runtime,
            "output with shape {} doesn't match the broadcast shape {}",
            t.shape(),
            result.value.ty.shape
        );
    }
    let result = Recorder.cast(&result, t.dtype())?;
    t.write(Operand::Val(result))
}

/// Elementwise op of one operand; integers become floats where the op needs them.
pub fn unary(op: Unary, x: &Tensor) -> Result<Tensor> {
    let dtype = x.dtype();
    if let Some(xs) = careful_unary(op, x)? {
        return unary(op, &xs[0]);
    }
    if op.takes().accepts(dtype) {
        return apply(Op::Unary(op), &[x]);
    }
    match op.takes() {
        Takes::Float => cast(x, default::float()).and_then(|x| apply(Op::Unary(op), &[&x])),
        Takes::Number => match op {
            Unary::Neg => bail!(
                Runtime,
                "Negation, the `-` operator, on a bool tensor is not supported. Use the `~` or `logical_not()` operator instead."
            ),
            Unary::Sign => super::moves::clone(x),
            _ => bail!(Runtime, "{}: not supported on a bool tensor", op.text().to_lowercase()),
        },
        Takes::Bits | Takes::Any => {
            bail!(Type, "{}: expected {}, got {}", op.text().to_lowercase(), op.takes().words(), dtype.name())
        }
    }
}

/// Self with elements of another type; the same tensor if it has that type.
pub fn cast(x: &Tensor, dtype: DType) -> Result<Tensor> {
    if x.dtype() == dtype {
        return Ok(x.clone());
    }
    apply(Op::Cast(dtype), &[x])
}

/// Elements of `a` where `cond` holds, else of `b`.
pub fn select(cond: &Tensor, a: &Operand<Tensor>, b: &Operand<Tensor>) -> Result<Tensor> {
    let dtype = result_type(a, b);
    if cond.dtype() != DType::Bool {
        bail!(
            Runtime,
            "where expected condition to be a boolean tensor, but got a tensor with dtype {}",
            cond.dtype().name()
        );
    }
    let arg = |x: &Operand<Tensor>| -> Result<Operand<Var>> {
        Ok(match operand(x)? {
            Operand::Val(v) => Operand::Val(Recorder.cast(&v, dtype)?),
            Operand::Num(n) => Operand::Num(as_kind(n, dtype)),
        })
    };
    let (mut a, b) = (arg(a)?, arg(b)?);
    if let (Operand::Num(x), Operand::Num(_)) = (&a, &b) {
        let ty = gt_ir::Ty { dtype, shape: cond.shape().clone() };
        a = Operand::Val(super::create::full_var(&cond.session()?, &ty, *x)?);
    }
    record(Op::Where, smallvec![Operand::Val(cond.var()?), a, b]).map(Tensor::from_var)
}
