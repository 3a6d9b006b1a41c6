//! Making tensors: fills, ranges, random numbers, host data.

use crate::Tensor;
use crate::autograd::Var;
use crate::current::{current, current_stream};
use crate::session::Session;
use crate::stream::RecordArg;
use gt_ir::{DType, Dist, Op, Result, Scalar, Shape, Ty, bail};
use gt_net::msg::INLINE_BYTES;
use std::sync::Arc;

/// A tensor filled with one number, in a given session.
pub(crate) fn full_var(session: &Arc<Session>, ty: &Ty, x: Scalar) -> Result<Var> {
    ty.shape.check("full", ty.dtype)?;
    session.before_op()?;
    let op = Op::Full { shape: ty.shape.clone(), dtype: ty.dtype };
    let x = super::arith::as_kind(x, ty.dtype);
    let value = current_stream(session).record(session, op, &[RecordArg::Num(x)], ty.clone())?;
    Ok(Var::plain(value))
}

/// A tensor filled with one number.
pub fn full(shape: impl Into<Shape>, x: impl Into<Scalar>, dtype: DType) -> Result<Tensor> {
    let (session, _) = current()?;
    full_var(&session, &Ty::new(dtype, shape), x.into()).map(Tensor::from_var)
}

/// A tensor of host bytes, dense and in the machine's byte order. The bytes are taken before this returns.
pub fn from_bytes(ty: Ty, bytes: Vec<u8>) -> Result<Tensor> {
    ty.shape.check("from_bytes", ty.dtype)?;
    if bytes.len() != ty.bytes() {
        bail!(Value, "from_bytes: {} needs {} bytes, got {}", ty, ty.bytes(), bytes.len());
    }
    let (session, stream) = current()?;
    session.before_op()?;
    let value = if bytes.len() <= INLINE_BYTES {
        let op = Op::Data { shape: ty.shape.clone(), dtype: ty.dtype };
        stream.record(&session, op, &[RecordArg::Data(Arc::new(bytes))], ty)?
    } else {
        session.upload(&stream, ty, Arc::new(bytes))?
    };
    Ok(Tensor::from_value(value))
}

/// Evenly spaced numbers: `start + i * step` for `i` below `len`.
pub fn arange(start: Scalar, step: Scalar, len: usize, dtype: DType) -> Result<Tensor> {
    let (session, stream) = current()?;
    session.before_op()?;
    let ty = Ty::new(dtype, [len]);
    ty.shape.check("arange", dtype)?;
    let (start, step) = (super::arith::as_kind(start, dtype), super::arith::as_kind(step, dtype));
    let args = [RecordArg::Num(start), RecordArg::Num(step)];
    stream.record(&session, Op::Arange { len, dtype }, &args, ty).map(Tensor::from_value)
}

/// Random numbers of a distribution.
pub fn random(dist: Dist, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
    let (session, stream) = current()?;
    session.before_op()?;
    let ty = Ty::new(dtype, shape);
    let op = Op::Random { dist, shape: ty.shape.clone(), dtype };
    gt_ir::infer(&op, &[gt_ir::ArgTy::Num, gt_ir::ArgTy::Num])?;
    let state = session.random(gt_ir::philox::blocks(dist, dtype, ty.shape.numel()));
    let args =
        [RecordArg::Num(Scalar::Int(state.key as i64)), RecordArg::Num(Scalar::Int(state.offset as i64))];
    stream.record(&session, op, &args, ty).map(Tensor::from_value)
}
