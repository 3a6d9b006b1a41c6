//! Making tensors: fills, ranges, random numbers, host data.

use crate::Tensor;
use crate::autograd::Var;
use crate::current::{current, current_session, current_stream};
use crate::default;
use crate::session::Session;
use crate::signal::Scope;
use crate::stream::RecordArg;
use gt_ir::{Binary, DType, Dist, Kind, Op, Operand, Result, Scalar, Shape, Ty, Unary, View, bail, philox};
use gt_net::msg::INLINE_BYTES;
use std::sync::Arc;

/// A tensor filled with one number, in a given session.
pub(crate) fn full_var(session: &Arc<Session>, ty: &Ty, x: Scalar) -> Result<Var> {
    ty.shape.check("full", ty.dtype)?;
    session.before_op()?;
    let op = Op::Full { shape: ty.shape.clone(), dtype: ty.dtype };
    let x = super::arith::element(x, ty.dtype)?;
    let value = current_stream(session).record(session, op, &[RecordArg::Num(x)], ty.clone())?;
    Ok(Var::plain(value))
}

/// A tensor filled with one number.
pub fn full(shape: impl Into<Shape>, x: impl Into<Scalar>, dtype: DType) -> Result<Tensor> {
    let (session, _) = current()?;
    full_var(&session, &Ty::new(dtype, shape), x.into()).map(Tensor::from_var)
}

/// A tensor of host bytes, dense and in the machine's byte order. The bytes are taken before this returns.
pub fn from_slice(ty: Ty, bytes: &[u8]) -> Result<Tensor> {
    ty.shape.check("from_slice", ty.dtype)?;
    if bytes.len() != ty.bytes() {
        bail!(Value, "from_slice: {} needs {} bytes, got {}", ty, ty.bytes(), bytes.len());
    }
    let (session, stream) = current()?;
    session.before_op()?;
    let value = if bytes.len() <= INLINE_BYTES {
        let op = Op::Data { shape: ty.shape.clone(), dtype: ty.dtype };
        stream.record(&session, op, &[RecordArg::Data(Arc::new(bytes.to_vec()))], ty)?
    } else {
        let value = session.upload(&stream, ty, bytes)?;
        match crate::signal::now() {
            scope if scope.forward != 0 && value.ty.shape.len() >= scope.rank as usize => {
                let op = Op::View(View::Reshape(value.ty.shape.clone()));
                let (ty, arg) = (value.ty.clone(), RecordArg::Val(&value));
                let record = || stream.record(&session, op, &[arg], ty);
                crate::signal::with_scope(Scope { firm: true, ..scope }, record)?
            }
            _ => value,
        }
    };
    Ok(Tensor::from_value(value))
}

/// A tensor of owned host bytes.
pub fn from_bytes(ty: Ty, bytes: Vec<u8>) -> Result<Tensor> {
    from_slice(ty, &bytes)
}

/// Evenly spaced numbers: `start + i * step` for `i` below `len`.
pub fn arange(start: Scalar, step: Scalar, len: usize, dtype: DType) -> Result<Tensor> {
    arange_in(&current_session()?, start, step, len, dtype)
}

/// Evenly spaced numbers, in a given session.
pub(crate) fn arange_in(
    session: &Arc<Session>,
    start: Scalar,
    step: Scalar,
    len: usize,
    dtype: DType,
) -> Result<Tensor> {
    session.before_op()?;
    let ty = Ty::new(dtype, [len]);
    ty.shape.check("arange", dtype)?;
    let (start, step) = (super::arith::as_kind(start, dtype), super::arith::as_kind(step, dtype));
    let args = [RecordArg::Num(start), RecordArg::Num(step)];
    let op = Op::Arange { len, dtype };
    current_stream(session).record(session, op, &args, ty).map(Tensor::from_value)
}

/// 0, 1, ... up to `len`, as indices.
pub(crate) fn indices_in(session: &Arc<Session>, len: usize) -> Result<Tensor> {
    arange_in(session, Scalar::Int(0), Scalar::Int(1), len, DType::I64)
}

/// Python's `arange(start, end, step)`: integers give `i64`, anything else `f32`, unless a dtype is given.
pub fn range(start: Scalar, end: Scalar, step: Scalar, dtype: Option<DType>) -> Result<Tensor> {
    let floats = [start, end, step].iter().any(|x| x.kind() == Kind::Float);
    let dtype = dtype.unwrap_or(if floats { default::float() } else { DType::I64 });
    let (a, b, by) = (start.as_f64(), end.as_f64(), step.as_f64());
    if by == 0.0 {
        bail!(Runtime, "arange: step must be nonzero");
    }
    if !a.is_finite() || !b.is_finite() || by.is_nan() {
        bail!(Runtime, "arange: unsupported range: {a} -> {b}");
    }
    if (b - a) * by < 0.0 {
        bail!(
            Runtime,
            "arange: upper bound and lower bound inconsistent with step sign, got {a} -> {b} by {by}"
        );
    }
    let len = if floats {
        ((b - a) / by).ceil() as usize
    } else {
        let (gap, by) = (end.as_i64() as i128 - start.as_i64() as i128, step.as_i64() as i128);
        gap.unsigned_abs().div_ceil(by.unsigned_abs()) as usize
    };
    arange(start, step, len, dtype)
}

/// `steps` numbers from `start` to `end`, both included.
pub fn linspace(start: f64, end: f64, steps: i64, dtype: DType) -> Result<Tensor> {
    let Ok(n) = usize::try_from(steps) else {
        bail!(Runtime, "linspace: number of steps must be non-negative, got {steps}");
    };
    if !dtype.is_float() {
        // The ends are integers before anything lies between them.
        let steps = linspace(start.trunc(), end.trunc(), steps, DType::F64)?;
        return super::arith::cast(&steps, dtype);
    }
    if n < 2 {
        return full([n], start, dtype);
    }
    // Counted from both ends, so that both are met exactly.
    let (by, half) = ((end - start) / (n - 1) as f64, n / 2);
    let low = arange(start.into(), by.into(), half, dtype)?;
    let high = arange(end.into(), (-by).into(), n - half, dtype)?;
    super::join::cat(&[low, super::moves::flip(&high, &[0])?], 0)
}

/// Ones on the diagonal, zeros elsewhere.
pub fn eye(n: i64, m: Option<i64>, dtype: DType) -> Result<Tensor> {
    let shape = super::shape_of("eye", &[n, m.unwrap_or(n)])?;
    let session = current_session()?;
    let rows = super::moves::unsqueeze(&indices_in(&session, shape[0])?, 1)?;
    let hit = super::bin(Binary::Eq, &rows, &indices_in(&session, shape[1])?)?;
    super::arith::cast(&hit, dtype)
}

pub fn zeros(shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
    full(shape, 0.0, dtype)
}

pub fn ones(shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
    full(shape, 1.0, dtype)
}

/// A tensor like `x`, filled with one number.
pub fn full_like(x: &Tensor, value: Scalar, dtype: Option<DType>) -> Result<Tensor> {
    let ty = Ty { dtype: dtype.unwrap_or(x.dtype()), shape: x.shape().clone() };
    full_var(&x.session()?, &ty, value).map(Tensor::from_var)
}

pub fn zeros_like(x: &Tensor, dtype: Option<DType>) -> Result<Tensor> {
    full_like(x, Scalar::Int(0), dtype)
}

pub fn ones_like(x: &Tensor, dtype: Option<DType>) -> Result<Tensor> {
    full_like(x, Scalar::Int(1), dtype)
}

/// Random numbers of a distribution.
pub fn random(dist: Dist, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
    random_in(&current_session()?, dist, shape, dtype)
}

/// Random numbers of a distribution, in a given session.
pub(crate) fn random_in(
    session: &Arc<Session>,
    dist: Dist,
    shape: impl Into<Shape>,
    dtype: DType,
) -> Result<Tensor> {
    session.before_op()?;
    let ty = Ty::new(dtype, shape);
    let op = Op::Random { dist, shape: ty.shape.clone(), dtype };
    gt_ir::infer(&op, &[gt_ir::ArgTy::Num, gt_ir::ArgTy::Num])?;
    let state = session.random(philox::blocks(dist, dtype, ty.shape.numel()));
    let args =
        [RecordArg::Num(Scalar::Int(state.key as i64)), RecordArg::Num(Scalar::Int(state.offset as i64))];
    current_stream(session).record(session, op, &args, ty).map(Tensor::from_value)
}

/// Uniform numbers in [0, 1).
pub fn rand(shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
    random(Dist::Uniform, shape, dtype)
}

pub(crate) fn rand_in(session: &Arc<Session>, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
    random_in(session, Dist::Uniform, shape, dtype)
}

/// Standard normal numbers.
pub fn randn(shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
    random(Dist::Normal, shape, dtype)
}

/// Uniform integers in [low, high).
pub fn randint(low: i64, high: i64, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
    if low >= high {
        bail!(Runtime, "random_ expects 'from' to be less than 'to', but got from={low} >= to={high}");
    }
    let drawn = random(Dist::Int { low, high }, shape, if dtype.is_float() { DType::I64 } else { dtype })?;
    super::arith::cast(&drawn, dtype)
}

/// Uniform numbers in [0, 1) in the shape of `x`.
pub fn rand_like(x: &Tensor, dtype: Option<DType>) -> Result<Tensor> {
    random_in(&x.session()?, Dist::Uniform, x.shape().clone(), dtype.unwrap_or(x.dtype()))
}

/// Standard normal numbers in the shape of `x`.
pub fn randn_like(x: &Tensor, dtype: Option<DType>) -> Result<Tensor> {
    random_in(&x.session()?, Dist::Normal, x.shape().clone(), dtype.unwrap_or(x.dtype()))
}

/// The integers below `n` in random order, shuffled here from the session's random numbers.
pub fn randperm(n: i64, dtype: DType) -> Result<Tensor> {
    let n = super::shape_of("randperm", &[n])?[0];
    let state = current_session()?.random((n as u64).div_ceil(2));
    let mut order: Vec<i64> = (0..n as i64).collect();
    for i in (1..n).rev() {
        let words = philox::block(state.key, state.offset.wrapping_add(i as u64 / 2));
        let word = philox::word64(words, i % 2) as u128;
        order.swap(i, ((word * (i as u128 + 1)) >> 64) as usize);
    }
    let mut bytes = Vec::with_capacity(n * dtype.size());
    for k in order {
        Scalar::Int(k).write(dtype, &mut bytes);
    }
    from_bytes(Ty::new(dtype, [n]), bytes)
}

/// 1 with the probability each element of `p` says, else 0.
pub fn bernoulli(p: &Tensor) -> Result<Tensor> {
    crate::tensor::need_float("bernoulli", p)?;
    let u = random_in(&p.session()?, Dist::Uniform, p.shape().clone(), DType::F32)?;
    let u = super::arith::cast(&u, if p.dtype() == DType::F64 { DType::F64 } else { DType::F32 })?;
    super::arith::cast(&super::bin(Binary::Lt, &u, &p.detach())?, p.dtype())
}

/// Draws indices with probabilities in proportion to the last dimension of `weights`.
pub fn multinomial(weights: &Tensor, samples: i64, replacement: bool) -> Result<Tensor> {
    crate::tensor::need_float("multinomial", weights)?;
    let rank = weights.ndim();
    if rank != 1 && rank != 2 {
        bail!(Runtime, "prob_dist must be 1 or 2 dim, got {rank} dim");
    }
    let (n, k) = (weights.shape()[rank - 1], samples);
    if k <= 0 {
        bail!(Runtime, "cannot sample n_sample <= 0 samples, got {k}");
    }
    if !replacement && k as usize > n {
        bail!(
            Runtime,
            "cannot sample n_sample > prob_dist.size(-1) samples without replacement, got {k} > {n}"
        );
    }
    let mut weights = super::arith::cast(&weights.detach(), DType::F64)?;
    // Where nothing can be drawn, the draw is a place that is not there, which is an error for whoever looks.
    let sum = super::reduce::sum(&weights, &[-1], true, None)?;
    let least = super::reduce::amin(&weights, &[-1], true)?;
    let some = super::bin(Binary::Gt, &sum, Scalar::Float(0.0))?;
    let finite = super::bin(Binary::Lt, &sum, Scalar::Float(f64::INFINITY))?;
    let positive = super::bin(Binary::Ge, &least, Scalar::Float(0.0))?;
    let fine = super::bin(Binary::And, &super::bin(Binary::And, &some, &finite)?, &positive)?;
    let places = indices_in(&weights.session()?, n)?;
    let nowhere = Operand::Num(Scalar::Int(n as i64));
    let mut drawn = Vec::new();
    for _ in 0..k {
        // The largest weight divided by an exponential variable is a draw in proportion to the weights.
        let u = random_in(&weights.session()?, Dist::Uniform, weights.shape().clone(), DType::F64)?;
        let q = super::arith::unary(Unary::Neg, &super::arith::unary(Unary::Log1p, &neg(&u)?)?)?;
        let score = super::bin(Binary::Div, &weights, &q)?;
        let winner = super::reduce::argmax(&score, Some(-1), true)?;
        if !replacement {
            weights = super::scatter::scatter(&weights, -1, &winner, &Operand::Num(Scalar::Float(-1.0)))?;
        }
        let place = super::arith::select(&fine, &(&winner).into(), &nowhere)?;
        drawn.push(super::apply(gt_ir::Op::Take { dim: 0 }, &[&places, &place])?);
    }
    super::join::cat(&drawn, -1)
}

fn neg(x: &Tensor) -> Result<Tensor> {
    super::arith::unary(Unary::Neg, x)
}
