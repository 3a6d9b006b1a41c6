//! Mixed precision as PyTorch's autocast has it: products are taken in a narrow type, what would lose by that in `f32`. A
//! setting of each thread. Gradients have the types of what they belong to, so nothing of this concerns them.

use super::arith::cast;
use crate::Tensor;
use gt_ir::{DType, Operand, Result, Unary};
use smallvec::SmallVec;
use std::cell::Cell;

/// What is cast while it lasts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Autocast {
    /// The type products are taken in.
    pub dtype: DType,
    /// Sums, powers, norms and softmax are taken in `f32`, as PyTorch does on GPUs; losses always are.
    pub careful: bool,
}

thread_local! {
    static NOW: Cell<Option<Autocast>> = const { Cell::new(None) };
}

/// What this thread casts.
#[inline]
pub fn autocast() -> Option<Autocast> {
    NOW.get()
}

/// Sets what is cast from now on; gives what was before.
pub fn set_autocast(to: Option<Autocast>) -> Option<Autocast> {
    NOW.replace(to)
}

type Cast = Result<Option<SmallVec<[Tensor; 4]>>>;

/// Operands of a product in the narrow type, if any has to change.
#[inline]
pub fn narrowed(xs: &[&Tensor]) -> Cast {
    match NOW.get() {
        Some(mode) => all(xs, mode.dtype),
        None => Ok(None),
    }
}

/// Operands of a loss in `f32`, if any has to change.
#[inline]
pub fn widened(xs: &[&Tensor]) -> Cast {
    match NOW.get() {
        Some(_) => all(xs, DType::F32),
        None => Ok(None),
    }
}

/// Operands of what is done in `f32` on GPUs.
#[inline]
pub fn careful(xs: &[&Tensor]) -> Cast {
    match NOW.get() {
        Some(Autocast { careful: true, .. }) => all(xs, DType::F32),
        _ => Ok(None),
    }
}

/// As `careful`, for the functions that lose most of their digits in a narrow type.
#[inline]
pub fn careful_unary(op: Unary, x: &Tensor) -> Cast {
    if NOW.get().is_none() {
        return Ok(None);
    }
    let loses =
        matches!(op, Unary::Exp | Unary::Expm1 | Unary::Log | Unary::Log1p | Unary::Rsqrt | Unary::Recip);
    if loses { careful(&[x]) } else { Ok(None) }
}

/// As `careful`, for operands of a power.
#[inline]
pub fn careful_power(a: &Operand<Tensor>, b: &Operand<Tensor>) -> Result<Option<[Operand<Tensor>; 2]>> {
    if !NOW.get().is_some_and(|mode| mode.careful) {
        return Ok(None);
    }
    let narrow =
        |x: &Operand<Tensor>| matches!(x, Operand::Val(t) if matches!(t.dtype(), DType::F16 | DType::BF16));
    if !narrow(a) && !narrow(b) {
        return Ok(None);
    }
    let wide = |x: &Operand<Tensor>| match x {
        Operand::Val(t) if narrow(x) => cast(t, DType::F32).map(Operand::Val),
        _ => Ok(x.clone()),
    };
    Ok(Some([wide(a)?, wide(b)?]))
}

/// Doubles and what is no float stay as they are.
fn all(xs: &[&Tensor], dtype: DType) -> Cast {
    let changes = |x: &Tensor| x.dtype().is_float() && x.dtype() != DType::F64 && x.dtype() != dtype;
    if !xs.iter().any(|x| changes(x)) {
        return Ok(None);
    }
    xs.iter()
        .map(|x| if changes(x) { cast(x, dtype) } else { Ok((*x).clone()) })
        .collect::<Result<_>>()
        .map(Some)
}
