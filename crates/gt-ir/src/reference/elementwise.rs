//! The reference meaning of elementwise ops, from the table.

use super::RefArg;
use crate::elementwise::{Binary, Unary};
use crate::host::{HostTensor, ravel, unravel};
use crate::{DType, Error, Kind, Result, Scalar, Shape, Ty};

/// Element `at` of an operand that broadcasts.
pub(super) fn broadcast_get(x: &HostTensor, at: &[usize]) -> Scalar {
    let skip = at.len() - x.ty.shape.len();
    let own: Vec<usize> =
        at[skip..].iter().zip(x.ty.shape.iter()).map(|(&i, &n)| if n == 1 { 0 } else { i }).collect();
    x.get(ravel(&own, &x.ty.shape))
}

/// A number as arithmetic with tensors of `dtype` sees it.
pub(super) fn computing(x: Scalar, dtype: DType) -> Scalar {
    match dtype {
        DType::F16 | DType::BF16 | DType::F32 => x.to_dtype(DType::F32),
        DType::Bool | DType::U8 | DType::I8 | DType::I16 | DType::I32 | DType::I64 | DType::F64 => {
            x.to_dtype(dtype)
        }
    }
}

pub(super) fn unary(op: Unary, x: &HostTensor) -> HostTensor {
    let dtype = x.ty.dtype;
    let element = |v: Scalar| match dtype.kind() {
        Kind::Float => Scalar::Float(op.real(v.as_f64())),
        Kind::Int => Scalar::Int(op.int(v.as_i64())),
        Kind::Bool => Scalar::Bool(op.bool(v.as_bool())),
    };
    HostTensor::from_scalars(&x.ty, x.scalars().map(element))
}

pub(super) fn binary(op: Binary, a: RefArg, b: RefArg, out: &Ty) -> Result<HostTensor> {
    let dtype = match (a, b) {
        (RefArg::Val(v), _) | (_, RefArg::Val(v)) => v.ty.dtype,
        _ => return Err(Error::Type(format!("{}: expected at least one tensor", op.text()))),
    };
    let get = |arg: RefArg, at: &[usize]| match arg {
        RefArg::Val(v) => broadcast_get(v, at),
        RefArg::Num(x) => computing(x, dtype),
        RefArg::Data(_) => Scalar::Int(0),
    };
    let mut result = HostTensor::zeros(out);
    for i in 0..out.shape.numel() {
        let at = unravel(i, &out.shape);
        let (x, y) = (get(a, &at), get(b, &at));
        let value = match dtype.kind() {
            Kind::Float => Scalar::Float(op.real(x.as_f64(), y.as_f64())),
            Kind::Int | Kind::Bool => {
                if matches!(op, Binary::FloorDiv | Binary::Rem) && y.as_i64() == 0 {
                    return Err(Error::Runtime(format!(
                        "{}: ZeroDivisionError: integer division or modulo by zero",
                        op.text()
                    )));
                }
                Scalar::Int(op.int(x.as_i64(), y.as_i64()))
            }
        };
        result.set(i, value);
    }
    Ok(result)
}

pub(super) fn select(cond: &HostTensor, a: RefArg, b: RefArg, out: &Ty) -> Result<HostTensor> {
    let shape: &Shape = &out.shape;
    let mut result = HostTensor::zeros(out);
    for i in 0..shape.numel() {
        let at = unravel(i, shape);
        let value = match if broadcast_get(cond, &at).as_bool() { a } else { b } {
            RefArg::Val(v) => broadcast_get(v, &at),
            RefArg::Num(x) => x,
            RefArg::Data(_) => return Err(Error::Type("WHERE: expected a number, got bytes".into())),
        };
        result.set(i, value);
    }
    Ok(result)
}
