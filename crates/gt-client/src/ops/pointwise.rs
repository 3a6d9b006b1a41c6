//! Elementwise functions that are compositions: clamping, logic, division modes, classification of floats.

use super::arith::{binary, cast, int_range, no_bool, result_type, select, unary};
use super::bin;
use crate::Tensor;
use crate::default;
use gt_ir::{Binary, DType, Kind, Operand, Result, Scalar, Unary, bail};

/// `a + alpha * b`.
pub fn add(a: &Operand<Tensor>, b: &Operand<Tensor>, alpha: Scalar) -> Result<Tensor> {
    binary(Binary::Add, a, &scaled("add", b, alpha, result_type(a, b))?)
}

/// `a - alpha * b`.
pub fn sub(a: &Operand<Tensor>, b: &Operand<Tensor>, alpha: Scalar) -> Result<Tensor> {
    no_bool(a, b)?;
    binary(Binary::Sub, a, &scaled("sub", b, alpha, result_type(a, b))?)
}

/// `alpha * x` in the type of the result it goes into, or `x` itself where alpha is 1.
pub(crate) fn scaled(op: &str, x: &Operand<Tensor>, alpha: Scalar, result: DType) -> Result<Operand<Tensor>> {
    if alpha.as_f64() == 1.0 {
        return Ok(x.clone());
    }
    if alpha.kind() == Kind::Float && !result.is_float() {
        bail!(
            Runtime,
            "{op}: for integral input tensors, argument alpha must not be a floating point number."
        );
    }
    match x {
        Operand::Val(t) if result == DType::Bool => {
            bin(Binary::And, t, Scalar::Bool(alpha.as_bool())).map(Operand::Val)
        }
        Operand::Val(t) => bin(Binary::Mul, &cast(t, result)?, alpha).map(Operand::Val),
        Operand::Num(n) if result == DType::Bool => {
            Ok(Operand::Num(Scalar::Bool(n.as_bool() && alpha.as_bool())))
        }
        Operand::Num(n) if n.kind() == Kind::Float || alpha.kind() == Kind::Float => {
            Ok(Operand::Num(Scalar::Float(n.as_f64() * alpha.as_f64())))
        }
        Operand::Num(n) => Ok(Operand::Num(Scalar::Int(n.as_i64().wrapping_mul(alpha.as_i64())))),
    }
}

/// Division; `mode` is none for true division, `"trunc"` or `"floor"` for rounded ones.
pub fn div(a: &Operand<Tensor>, b: &Operand<Tensor>, mode: Option<&str>) -> Result<Tensor> {
    match mode {
        None => binary(Binary::Div, a, b),
        Some("floor") => binary(Binary::FloorDiv, a, b),
        Some("trunc") if result_type(a, b).is_float() => unary(Unary::Trunc, &binary(Binary::Div, a, b)?),
        Some("trunc") => {
            let (size, sign) = (both(Unary::Abs, a, b)?, both(Unary::Sign, a, b)?);
            let whole = binary(Binary::FloorDiv, &size.0, &size.1)?;
            bin(Binary::Mul, &whole, &binary(Binary::Mul, &sign.0, &sign.1)?)
        }
        Some(other) => bail!(
            Runtime,
            "div expected rounding_mode to be one of None, 'trunc', or 'floor' but found '{other}'"
        ),
    }
}

/// A unary op on both operands.
fn both(op: Unary, a: &Operand<Tensor>, b: &Operand<Tensor>) -> Result<(Operand<Tensor>, Operand<Tensor>)> {
    let one = |x: &Operand<Tensor>| -> Result<Operand<Tensor>> {
        Ok(match x {
            // Truth values are their own size and sign.
            Operand::Val(t) if t.dtype() == DType::Bool => Operand::Val(t.clone()),
            Operand::Val(t) => Operand::Val(unary(op, t)?),
            Operand::Num(n) if n.kind() == Kind::Float => Operand::Num(Scalar::Float(op.real(n.as_f64()))),
            Operand::Num(n) => Operand::Num(Scalar::Int(op.int(n.as_i64()))),
        })
    };
    Ok((one(a)?, one(b)?))
}

/// `a // b` rounded down.
pub fn floor_divide(a: &Operand<Tensor>, b: &Operand<Tensor>) -> Result<Tensor> {
    binary(Binary::FloorDiv, a, b)
}

/// Python's remainder: the sign is that of the divisor.
pub fn remainder(a: &Operand<Tensor>, b: &Operand<Tensor>) -> Result<Tensor> {
    binary(Binary::Rem, a, b)
}

/// C's remainder: the sign is that of the dividend.
pub fn fmod(a: &Operand<Tensor>, b: &Operand<Tensor>) -> Result<Tensor> {
    let Operand::Val(x) = a else {
        let (size, sign) = (both(Unary::Abs, a, b)?, both(Unary::Sign, a, a)?.0);
        return bin(Binary::Mul, &binary(Binary::Rem, &size.0, &size.1)?, sign);
    };
    let size = both(Unary::Abs, b, b)?.0;
    if x.dtype() == DType::Bool {
        return binary(Binary::Rem, a, &size);
    }
    // Both signs have their own side, so that the gradient is 1 at 0 too.
    let below = bin(Binary::Lt, x, Scalar::Int(0))?;
    let turned = |x: &Tensor| select(&below, &(&unary(Unary::Neg, x)?).into(), &x.into());
    turned(&binary(Binary::Rem, &(&turned(x)?).into(), &size)?)
}

/// `a` to the power `b`.
pub fn pow(a: &Operand<Tensor>, b: &Operand<Tensor>) -> Result<Tensor> {
    binary(Binary::Pow, a, b)
}

/// `x * x`; of bools, as integers.
pub fn square(x: &Tensor) -> Result<Tensor> {
    let x = &if x.dtype() == DType::Bool { cast(x, DType::I64)? } else { x.clone() };
    bin(Binary::Mul, x, x)
}

/// `1 / x`.
pub fn reciprocal(x: &Tensor) -> Result<Tensor> {
    unary(Unary::Recip, x)
}

/// Logarithm to base 2.
pub fn log2(x: &Tensor) -> Result<Tensor> {
    bin(Binary::Div, &unary(Unary::Log, x)?, std::f64::consts::LN_2)
}

/// Logarithm to base 10.
pub fn log10(x: &Tensor) -> Result<Tensor> {
    bin(Binary::Div, &unary(Unary::Log, x)?, std::f64::consts::LN_10)
}

/// 2 to the power `x`.
pub fn exp2(x: &Tensor) -> Result<Tensor> {
    let x = if x.dtype().is_float() { x.clone() } else { cast(x, default::float())? };
    bin(Binary::Pow, 2.0, &x)
}

pub fn tan(x: &Tensor) -> Result<Tensor> {
    bin(Binary::Div, &unary(Unary::Sin, x)?, &unary(Unary::Cos, x)?)
}

pub fn sinh(x: &Tensor) -> Result<Tensor> {
    let (a, b) = (unary(Unary::Expm1, x)?, unary(Unary::Expm1, &unary(Unary::Neg, &as_float(x)?)?)?);
    bin(Binary::Mul, &bin(Binary::Sub, &a, &b)?, 0.5)
}

pub fn cosh(x: &Tensor) -> Result<Tensor> {
    let (a, b) = (unary(Unary::Exp, x)?, unary(Unary::Exp, &unary(Unary::Neg, &as_float(x)?)?)?);
    bin(Binary::Mul, &bin(Binary::Add, &a, &b)?, 0.5)
}

/// `x` less its whole part.
pub fn frac(x: &Tensor) -> Result<Tensor> {
    bin(Binary::Sub, x, &unary(Unary::Trunc, x)?)
}

/// Integers and bools as `f32`, floats as they are.
pub(crate) fn as_float(x: &Tensor) -> Result<Tensor> {
    if x.dtype().is_float() { Ok(x.clone()) } else { cast(x, default::float()) }
}

/// The larger of two, NaN if either is.
pub fn maximum(a: &Operand<Tensor>, b: &Operand<Tensor>) -> Result<Tensor> {
    binary(Binary::Max, a, b)
}

/// The smaller of two, NaN if either is.
pub fn minimum(a: &Operand<Tensor>, b: &Operand<Tensor>) -> Result<Tensor> {
    binary(Binary::Min, a, b)
}

/// Elements below `min` become `min`, those above `max` become `max`. At a bound that is a number the gradient is zero, at a
/// tensor's it is shared.
pub fn clamp(x: &Tensor, min: Option<&Operand<Tensor>>, max: Option<&Operand<Tensor>>) -> Result<Tensor> {
    if min.is_none() && max.is_none() {
        bail!(Runtime, "clamp: at least one of 'min' or 'max' must not be None");
    }
    let (min, max) = (bound(x, min, true)?, bound(x, max, false)?);
    let mut out = x.clone();
    if let Some(lo) = &min {
        out = maximum(&(&out).into(), lo)?;
    }
    if let Some(hi) = &max {
        out = minimum(&(&out).into(), hi)?;
    }
    Ok(out)
}

/// A bound of `clamp`. In an integer type it would wrap around beyond the type's range, where it says nothing or all.
fn bound(x: &Tensor, bound: Option<&Operand<Tensor>>, lower: bool) -> Result<Option<Operand<Tensor>>> {
    let Some(Operand::Num(Scalar::Int(n))) = bound else { return Ok(bound.cloned()) };
    if x.dtype().kind() != Kind::Int {
        return Ok(bound.cloned());
    }
    let (min, max) = int_range(x.dtype());
    if if lower { *n > max } else { *n < min } {
        bail!(Runtime, "clamp: bound {n} is outside the representable range of {}", x.dtype().name());
    }
    Ok(Some(Operand::Num(Scalar::Int((*n).clamp(min, max)))))
}

/// True where `x` is not zero.
pub fn to_bool(x: &Operand<Tensor>) -> Result<Operand<Tensor>> {
    Ok(match x {
        Operand::Val(t) if t.dtype() == DType::Bool => x.clone(),
        Operand::Val(t) => Operand::Val(bin(Binary::Ne, t, Scalar::Int(0))?),
        Operand::Num(n) => Operand::Num(Scalar::Bool(n.as_bool())),
    })
}

pub fn logical_not(x: &Tensor) -> Result<Tensor> {
    match x.dtype() {
        DType::Bool => unary(Unary::Not, x),
        _ => bin(Binary::Eq, x, Scalar::Int(0)),
    }
}

pub fn logical_and(a: &Operand<Tensor>, b: &Operand<Tensor>) -> Result<Tensor> {
    binary(Binary::And, &to_bool(a)?, &to_bool(b)?)
}

pub fn logical_or(a: &Operand<Tensor>, b: &Operand<Tensor>) -> Result<Tensor> {
    binary(Binary::Or, &to_bool(a)?, &to_bool(b)?)
}

pub fn logical_xor(a: &Operand<Tensor>, b: &Operand<Tensor>) -> Result<Tensor> {
    binary(Binary::Xor, &to_bool(a)?, &to_bool(b)?)
}

/// Bitwise not of integers, logical not of bool.
pub fn bitwise_not(x: &Tensor) -> Result<Tensor> {
    unary(Unary::Not, x)
}

/// True where an element is not a number.
pub fn isnan(x: &Tensor) -> Result<Tensor> {
    bin(Binary::Ne, x, x)
}

/// True where an element is an infinity.
pub fn isinf(x: &Tensor) -> Result<Tensor> {
    if !x.dtype().is_float() {
        return bin(Binary::Ne, x, x);
    }
    bin(Binary::Eq, &unary(Unary::Abs, x)?, f64::INFINITY)
}

/// True where an element is neither NaN nor an infinity.
pub fn isfinite(x: &Tensor) -> Result<Tensor> {
    if !x.dtype().is_float() {
        return bin(Binary::Eq, x, x);
    }
    bin(Binary::Lt, &unary(Unary::Abs, x)?, f64::INFINITY)
}

/// NaN and infinities replaced by numbers; by default 0 and the largest finite ones.
pub fn nan_to_num(x: &Tensor, nan: f64, posinf: Option<f64>, neginf: Option<f64>) -> Result<Tensor> {
    let largest = match x.dtype() {
        DType::F16 => 65504.0,
        DType::BF16 => 3.389_531_389_251_535_5e38,
        DType::F32 => f32::MAX as f64,
        DType::F64 => f64::MAX,
        DType::Bool | DType::U8 | DType::I8 | DType::I16 | DType::I32 | DType::I64 => {
            return super::moves::clone(x);
        }
    };
    let x1 = select(&isnan(x)?, &nan.into(), &x.into())?;
    let top = bin(Binary::Eq, x, f64::INFINITY)?;
    let x2 = select(&top, &posinf.unwrap_or(largest).into(), &(&x1).into())?;
    let bottom = bin(Binary::Eq, x, f64::NEG_INFINITY)?;
    select(&bottom, &neginf.unwrap_or(-largest).into(), &(&x2).into())
}

/// True where `|a - b| <= atol + rtol * |b|`.
pub fn isclose(a: &Tensor, b: &Tensor, rtol: f64, atol: f64, equal_nan: bool) -> Result<Tensor> {
    if a.dtype() != b.dtype() {
        bail!(Runtime, "isclose: {} did not match {}", a.dtype().name(), b.dtype().name());
    }
    for (name, bound) in [("rtol", rtol), ("atol", atol)] {
        if bound < 0.0 {
            bail!(Runtime, "isclose: {name} must be greater than or equal to zero, but got {bound}");
        }
    }
    let mut same = bin(Binary::Eq, a, b)?;
    if equal_nan && a.dtype().is_float() {
        let both_nan = bin(Binary::And, &isnan(a)?, &isnan(b)?)?;
        same = bin(Binary::Or, &same, &both_nan)?;
    }
    let (fa, fb) = (as_float(a)?, as_float(b)?);
    let gap = unary(Unary::Abs, &bin(Binary::Sub, &fa, &fb)?)?;
    let allowed = bin(Binary::Mul, &unary(Unary::Abs, &fb)?, rtol)?;
    let near = bin(Binary::Le, &gap, &bin(Binary::Add, &allowed, atol)?)?;
    let near = bin(Binary::And, &near, &isfinite(&gap)?)?;
    bin(Binary::Or, &same, &near)
}

/// A function of half types in single precision, rounded once: what stands between need not be in their range.
fn wide(
    x: &Tensor,
    rest: [&Operand<Tensor>; 2],
    f: impl FnOnce(&Tensor, &Operand<Tensor>, &Operand<Tensor>) -> Result<Tensor>,
) -> Result<Tensor> {
    let half = matches!(x.dtype(), DType::F16 | DType::BF16);
    let alike = |o: &&Operand<Tensor>| !matches!(o, Operand::Val(t) if t.dtype() != x.dtype());
    if !half || !rest.iter().all(alike) {
        return f(x, rest[0], rest[1]);
    }
    let single = |o: &Operand<Tensor>| match o {
        Operand::Val(t) => cast(t, DType::F32).map(Operand::Val),
        Operand::Num(n) => Ok(Operand::Num(*n)),
    };
    cast(&f(&cast(x, DType::F32)?, &single(rest[0])?, &single(rest[1])?)?, x.dtype())
}

/// `a + weight * (b - a)`.
pub fn lerp(a: &Tensor, b: &Tensor, weight: &Operand<Tensor>) -> Result<Tensor> {
    wide(a, [&b.into(), weight], |a, b, weight| match b {
        Operand::Val(b) => between(a, b, weight),
        Operand::Num(_) => unreachable!("a tensor stays one"),
    })
}

fn between(a: &Tensor, b: &Tensor, weight: &Operand<Tensor>) -> Result<Tensor> {
    let gap = bin(Binary::Sub, b, a)?;
    let from_a = |w: &Operand<Tensor>| bin(Binary::Add, a, &binary(Binary::Mul, w, &(&gap).into())?);
    let from_b = |w: &Operand<Tensor>| bin(Binary::Sub, b, &binary(Binary::Mul, w, &(&gap).into())?);
    match weight {
        Operand::Num(w) if w.as_f64() < 0.5 => from_a(weight),
        Operand::Num(w) => from_b(&(1.0 - w.as_f64()).into()),
        Operand::Val(w) => {
            let rest = bin(Binary::Sub, 1.0, w)?;
            let (low, high) = (from_a(weight)?, from_b(&(&rest).into())?);
            let near_a = bin(Binary::Lt, &unary(Unary::Abs, w)?, 0.5)?;
            select(&near_a, &(&low).into(), &(&high).into())
        }
    }
}

/// `x + value * a * b`.
pub fn addcmul(x: &Tensor, a: &Operand<Tensor>, b: &Operand<Tensor>, value: Scalar) -> Result<Tensor> {
    wide(x, [a, b], |x, a, b| add(&x.into(), &(&binary(Binary::Mul, a, b)?).into(), value))
}

/// `x + value * a / b`.
pub fn addcdiv(x: &Tensor, a: &Operand<Tensor>, b: &Operand<Tensor>, value: Scalar) -> Result<Tensor> {
    wide(x, [a, b], |x, a, b| add(&x.into(), &(&binary(Binary::Div, a, b)?).into(), value))
}

/// The nearest whole numbers, or the nearest with so many decimals; halves go to the even one.
pub fn round(x: &Tensor, decimals: i32) -> Result<Tensor> {
    if decimals == 0 {
        return unary(Unary::Round, x);
    }
    let scale = Scalar::Float(10f64.powi(decimals));
    bin(Binary::Div, &unary(Unary::Round, &bin(Binary::Mul, x, scale)?)?, scale)
}

/// `x * log(y)`, zero where `x` is zero.
pub fn xlogy(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    let zero = bin(Binary::Eq, x, Scalar::Int(0))?;
    let safe = select(&zero, &1.0.into(), &y.into())?;
    bin(Binary::Mul, x, &unary(Unary::Log, &safe)?)
}

/// Elements of `a` where `cond` holds, else of `b`.
pub fn where_(cond: &Tensor, a: &Operand<Tensor>, b: &Operand<Tensor>) -> Result<Tensor> {
    let cond = if cond.dtype() == DType::U8 { cast(cond, DType::Bool)? } else { cond.clone() };
    select(&cond, a, b)
}

/// True if all elements and the shapes are equal; waits for the answer.
pub fn equal(a: &Tensor, b: &Tensor) -> Result<bool> {
    if a.shape() != b.shape() {
        return Ok(false);
    }
    let same = super::reduce::all(&bin(Binary::Eq, a, b)?, &[], false)?;
    Ok(same.item()?.as_bool())
}
