//! Matrix products in all of PyTorch's forms.

use super::autocast::narrowed;
use super::inplace::snapshot;
use super::moves::{reshape_to, unsqueeze};
use super::{apply, bin, moves};
use crate::Tensor;
use crate::autograd::{Var, record};
use gt_ir::{Binary, DType, Op, Operand, Operands, Result, Scalar, Shape, bail};
use smallvec::smallvec;
use std::sync::atomic::{AtomicU8, Ordering};

pub use super::einsum::{einsum, tensordot};

/// How exactly `f32` matrices are multiplied, in all of a process. Devices without a quicker way ignore it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Precision {
    /// In `f32` throughout.
    Highest,
    /// Operands may be rounded to TF32.
    High,
    /// As `High`: no device multiplies `f32` more coarsely than in TF32.
    Medium,
}

impl Precision {
    const ALL: [(Precision, &str); 3] =
        [(Precision::Highest, "highest"), (Precision::High, "high"), (Precision::Medium, "medium")];

    /// The name in PyTorch.
    pub fn text(self) -> &'static str {
        Precision::ALL[self as usize].1
    }

    /// The precision of that name.
    pub fn parse(name: &str) -> Result<Precision> {
        match Precision::ALL.iter().find(|(_, text)| *text == name) {
            Some((precision, _)) => Ok(*precision),
            None => bail!(
                Value,
                "set_float32_matmul_precision: expected 'highest', 'high' or 'medium', got {name:?}"
            ),
        }
    }
}

static PRECISION: AtomicU8 = AtomicU8::new(Precision::Highest as u8);

/// Sets the precision of products recorded from now on, and of their gradients.
pub fn set_float32_matmul_precision(precision: Precision) {
    PRECISION.store(precision as u8, Ordering::Relaxed);
}

/// The precision of products recorded now.
pub fn float32_matmul_precision() -> Precision {
    Precision::ALL[PRECISION.load(Ordering::Relaxed) as usize].0
}

/// True if operands of this type may be rounded to TF32. Structure, so other types never say it.
fn tf32(dtype: DType) -> bool {
    dtype == DType::F32 && float32_matmul_precision() != Precision::Highest
}

fn c_name(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "bool",
        DType::U8 => "unsigned char",
        DType::I8 => "signed char",
        DType::I16 => "short",
        DType::I32 => "int",
        DType::I64 => "long long",
        DType::F16 => "c10::Half",
        DType::BF16 => "c10::BFloat16",
        DType::F32 => "float",
        DType::F64 => "double",
    }
}

fn same_dtype(a: &Tensor, b: &Tensor) -> Result<()> {
    if a.dtype() != b.dtype() {
        bail!(
            Runtime,
            "expected m1 and m2 to have the same dtype, but got: {} != {}",
            c_name(a.dtype()),
            c_name(b.dtype())
        );
    }
    Ok(())
}

/// An operand of a product: a transposed view is passed as what lies beneath it and a flag, so nothing is copied.
fn side(x: &Tensor) -> Result<(Var, bool)> {
    Ok(match x.untransposed()? {
        Some(beneath) => (beneath, true),
        None => (x.var()?, false),
    })
}

/// One product of matrices with batch dimensions, and a bias added before rounding.
fn product(a: &Tensor, b: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    product_of(a, side(b)?, bias)
}

/// The same with a right side that may be stored transposed.
fn product_of(a: &Tensor, (b, tb): (Var, bool), bias: Option<&Tensor>) -> Result<Tensor> {
    let tf32 = tf32(a.dtype());
    let (a, ta) = side(a)?;
    let mut args: Operands<Var> = smallvec![Operand::Val(a), Operand::Val(b)];
    if let Some(bias) = bias {
        args.push(Operand::Val(bias.var()?));
    }
    record(Op::Matmul { ta, tb, tf32 }, args).map(Tensor::from_var)
}

/// Matrix product: vectors are rows on the left and columns on the right, leading dimensions broadcast.
pub fn matmul(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    match narrowed(&[a, b])? {
        Some(xs) => multiply(&xs[0], &xs[1]),
        None => multiply(a, b),
    }
}

fn multiply(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if a.ndim() == 0 || b.ndim() == 0 {
        bail!(
            Runtime,
            "both arguments to matmul need to be at least 1D, but they are {}D and {}D",
            a.ndim(),
            b.ndim()
        );
    }
    same_dtype(a, b)?;
    let (la, lb) = (a.ndim(), b.ndim());
    let inner = |s: &Shape, left: bool| if left || s.len() == 1 { s[s.len() - 1] } else { s[s.len() - 2] };
    let (k, k2) = (inner(a.shape(), true), inner(b.shape(), false));
    if k != k2 {
        return Err(shapes_differ(a, b));
    }
    let left = if la == 1 { unsqueeze(a, 0)? } else { a.clone() };
    let right = if lb == 1 { unsqueeze(b, 1)? } else { b.clone() };
    let out = product(&left, &right, None)?;
    if la > 1 && lb > 1 {
        return Ok(out);
    }
    let mut shape = out.shape().clone();
    if lb == 1 {
        shape.pop();
    }
    if la == 1 {
        let row = shape.len() - if lb == 1 { 1 } else { 2 };
        shape.remove(row);
    }
    snapshot(&reshape_to(&out, shape)?)
}

fn shapes_differ(a: &Tensor, b: &Tensor) -> gt_ir::Error {
    let (sa, sb) = (a.shape(), b.shape());
    gt_ir::Error::Runtime(match (sa.len(), sb.len()) {
        (1, 1) => format!(
            "inconsistent tensor size, expected tensor {sa} and src {sb} to have the same number of elements, but got \
             {} and {} elements respectively",
            sa[0], sb[0]
        ),
        (_, 1) => format!("size mismatch, got input ({}), mat {sa}, vec {sb}", sa[0]),
        (la, lb) => {
            // Leading dimensions of a stack times one matrix are rows.
            let rows: usize = if lb == 2 {
                sa[..la - 1].iter().product()
            } else {
                sa.get(la.wrapping_sub(2)).map_or(1, |&n| n)
            };
            format!(
                "mat1 and mat2 shapes cannot be multiplied ({rows}x{} and {}x{}), got {sa} and {sb}",
                sa[la - 1],
                sb[lb - 2],
                sb[lb - 1]
            )
        }
    })
}

fn ranked(op: &str, x: &Tensor, rank: usize, name: &str) -> Result<()> {
    if x.ndim() != rank {
        bail!(Runtime, "{op}: {name} must be a {rank}-D tensor, got shape {}", x.shape());
    }
    Ok(())
}

/// Product of two matrices.
pub fn mm(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    ranked("mm", a, 2, "self")?;
    ranked("mm", b, 2, "mat2")?;
    matmul(a, b)
}

/// Product of two stacks of matrices of one length.
pub fn bmm(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    ranked("bmm", a, 3, "batch1")?;
    ranked("bmm", b, 3, "batch2")?;
    if a.shape()[0] != b.shape()[0] || a.shape()[2] != b.shape()[1] {
        bail!(
            Runtime,
            "Expected size for first two dimensions of batch2 tensor to be: [{}, {}] but got: [{}, {}].",
            a.shape()[0],
            a.shape()[2],
            b.shape()[0],
            b.shape()[1]
        );
    }
    matmul(a, b)
}

/// Matrix times vector.
pub fn mv(a: &Tensor, v: &Tensor) -> Result<Tensor> {
    ranked("mv", a, 2, "self")?;
    ranked("mv", v, 1, "vec")?;
    matmul(a, v)
}

/// Inner product of two vectors.
pub fn dot(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if a.ndim() != 1 || b.ndim() != 1 {
        bail!(Runtime, "1D tensors expected, but got {}D and {}D tensors", a.ndim(), b.ndim());
    }
    if a.dtype() != b.dtype() {
        bail!(
            Runtime,
            "dot : expected both vectors to have same dtype, but found {} and {}",
            c_name(a.dtype()),
            c_name(b.dtype())
        );
    }
    multiply(a, b)
}

/// Products of all pairs of elements of two vectors.
pub fn outer(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    ranked("outer", a, 1, "self")?;
    ranked("outer", b, 1, "vec2")?;
    bin(Binary::Mul, &unsqueeze(a, 1)?, b)
}

/// `x @ w.T + bias`, as one instruction.
pub fn linear(x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    if let Some(xs) = narrowed(&[x, w, bias.unwrap_or(w)])? {
        return linear(&xs[0], &xs[1], bias.map(|_| &xs[2]));
    }
    same_dtype(x, w)?;
    if w.ndim() == 1 {
        let out = matmul(x, w)?;
        return match bias {
            Some(bias) => bin(Binary::Add, &out, bias),
            None => Ok(out),
        };
    }
    ranked("linear", w, 2, "weight")?;
    if x.ndim() == 0 || x.shape()[x.ndim() - 1] != w.shape()[1] {
        let (n, k) = (w.shape()[0], w.shape()[1]);
        if x.ndim() == 0 {
            bail!(
                Runtime,
                "linear: expected an input with dimensions, got a 0-d tensor and weight {}",
                w.shape()
            );
        }
        let last = x.shape()[x.ndim() - 1];
        let rows: usize = x.shape()[..x.ndim() - 1].iter().product();
        bail!(
            Runtime,
            "linear: mat1 and mat2 shapes cannot be multiplied ({rows}x{last} and {k}x{n}), got input {} and weight {}",
            x.shape(),
            w.shape()
        );
    }
    if let Some(bias) = bias {
        same_dtype(x, bias)?;
    }
    if x.ndim() == 1 {
        let out = product_of(&unsqueeze(x, 0)?, (w.var()?, true), bias)?;
        return snapshot(&moves::reshape(&out, &[-1])?);
    }
    product_of(x, (w.var()?, true), bias)
}

/// `beta * x + alpha * (a @ b)`.
pub fn addmm(x: &Tensor, a: &Tensor, b: &Tensor, beta: Scalar, alpha: Scalar) -> Result<Tensor> {
    if let Some(xs) = narrowed(&[x, a, b])? {
        return addmm(&xs[0], &xs[1], &xs[2], beta, alpha);
    }
    ranked("addmm", a, 2, "mat1")?;
    ranked("addmm", b, 2, "mat2")?;
    same_dtype(a, b)?;
    same_dtype(x, a)?;
    if a.shape()[1] != b.shape()[0] {
        return Err(shapes_differ(a, b));
    }
    let shape: Shape = [a.shape()[0], b.shape()[1]].into();
    if !x.shape().expands_to(&shape) {
        bail!(
            Runtime,
            "addmm: The expanded size of the tensor must match the existing size, got {} for a result of {shape}",
            x.shape()
        );
    }
    if alpha.as_f64() == 1.0 && beta.as_f64() == 1.0 {
        return product(a, b, Some(x));
    }
    let out = bin(Binary::Mul, &product(a, b, None)?, alpha)?;
    if beta.as_f64() == 0.0 {
        return Ok(out);
    }
    bin(Binary::Add, &bin(Binary::Mul, x, beta)?, &out)
}

/// `beta * x + alpha * (a @ b)` for stacks of matrices.
pub fn baddbmm(x: &Tensor, a: &Tensor, b: &Tensor, beta: Scalar, alpha: Scalar) -> Result<Tensor> {
    if let Some(xs) = narrowed(&[x, a, b])? {
        return baddbmm(&xs[0], &xs[1], &xs[2], beta, alpha);
    }
    ranked("baddbmm", a, 3, "batch1")?;
    ranked("baddbmm", b, 3, "batch2")?;
    if alpha.as_f64() == 1.0 && beta.as_f64() == 1.0 && a.dtype() == b.dtype() && a.dtype() == x.dtype() {
        return product(a, b, Some(x));
    }
    let out = bin(Binary::Mul, &bmm(a, b)?, alpha)?;
    if beta.as_f64() == 0.0 {
        return Ok(out);
    }
    bin(Binary::Add, &bin(Binary::Mul, x, beta)?, &out)
}

/// The product as an unbatched instruction takes it, for callers that have matrices in hand.
pub(crate) fn batched(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if let Some(xs) = narrowed(&[a, b])? {
        return batched(&xs[0], &xs[1]);
    }
    same_dtype(a, b)?;
    apply(Op::Matmul { ta: false, tb: false, tf32: tf32(a.dtype()) }, &[a, b])
}
