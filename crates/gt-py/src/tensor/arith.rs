//! Operators.
#![allow(unsafe_op_in_unsafe_fn, reason = "PyO3's own code, to which a macro gives this crate's edition")]

use super::{Answer, PyTensor};
use crate::array::is_array;
use crate::convert::{number, operand};
use crate::data;
use crate::errors::{Result, type_error};
use gt_client::ops::arith;
use gt_ir::{Binary, Operand, Unary};
use pyo3::prelude::*;
use pyo3::pyclass::CompareOp;

/// `a op b`, or `b op a` if reflected.
#[inline]
fn operator(a: &PyTensor, op: Binary, b: &Bound<PyAny>, reflected: bool) -> Result<Answer> {
    let me = Operand::Val(a.t.clone());
    let (other, device) = if let Ok(b) = b.cast::<PyTensor>() {
        let b = b.get();
        (Operand::Val(b.t.clone()), a.device().or(b.device()))
    } else {
        match number(b)? {
            Some(x) => (Operand::Num(x), a.device()),
            None if is_array(b)? => (Operand::Val(data::tensor(b, None, false)?), a.device()),
            None => return Ok(Answer(None)),
        }
    };
    let t = if reflected { arith::binary(op, &other, &me)? } else { arith::binary(op, &me, &other)? };
    Ok(Answer(Some(PyTensor::on(t, device))))
}

/// `a op= b`.
fn assign(a: &PyTensor, op: Binary, b: &Bound<PyAny>) -> Result<()> {
    match operand(b)? {
        Some(b) => Ok(a.t.binary_(op, &b, true)?),
        None if is_array(b)? => Ok(a.t.binary_(op, &Operand::Val(data::tensor(b, None, false)?), true)?),
        None => type_error(format!(
            "{}: expected a Tensor or a number on the right, got {}",
            op.text().to_lowercase(),
            b.get_type().name()?
        )),
    }
}

impl PyTensor {
    /// Elementwise op with a tensor or a number.
    pub fn binary(&self, op: Binary, other: &Operand<gt_client::Tensor>) -> Result<PyTensor> {
        Ok(self.wrap(arith::binary(op, &Operand::Val(self.t.clone()), other)?))
    }

    pub fn unary(&self, op: Unary) -> Result<PyTensor> {
        Ok(self.wrap(arith::unary(op, &self.t)?))
    }
}

macro_rules! operators {
    ($($op:ident $forward:ident $reflected:ident $inplace:ident;)*) => {
        #[pymethods]
        impl PyTensor {
            $(
                fn $forward(&self, other: &Bound<PyAny>) -> Result<Answer> {
                    operator(self, Binary::$op, other, false)
                }

                fn $reflected(&self, other: &Bound<PyAny>) -> Result<Answer> {
                    operator(self, Binary::$op, other, true)
                }

                fn $inplace(&self, other: &Bound<PyAny>) -> Result<()> {
                    assign(self, Binary::$op, other)
                }
            )*
        }
    };
}

operators! {
    Add __add__ __radd__ __iadd__;
    Sub __sub__ __rsub__ __isub__;
    Mul __mul__ __rmul__ __imul__;
    Div __truediv__ __rtruediv__ __itruediv__;
    FloorDiv __floordiv__ __rfloordiv__ __ifloordiv__;
    Rem __mod__ __rmod__ __imod__;
    And __and__ __rand__ __iand__;
    Or __or__ __ror__ __ior__;
    Xor __xor__ __rxor__ __ixor__;
}

#[pymethods]
impl PyTensor {
    fn __pow__(&self, other: &Bound<PyAny>, _modulo: Option<&Bound<PyAny>>) -> Result<Answer> {
        operator(self, Binary::Pow, other, false)
    }

    fn __rpow__(&self, other: &Bound<PyAny>, _modulo: Option<&Bound<PyAny>>) -> Result<Answer> {
        operator(self, Binary::Pow, other, true)
    }

    fn __ipow__(&self, other: &Bound<PyAny>, _modulo: Option<&Bound<PyAny>>) -> Result<()> {
        assign(self, Binary::Pow, other)
    }

    fn __neg__(&self) -> Result<PyTensor> {
        self.unary(Unary::Neg)
    }

    fn __pos__(slf: Bound<Self>) -> Bound<Self> {
        slf
    }

    fn __abs__(&self) -> Result<PyTensor> {
        self.unary(Unary::Abs)
    }

    fn __invert__(&self) -> Result<PyTensor> {
        self.unary(Unary::Not)
    }

    fn __richcmp__(&self, other: &Bound<PyAny>, op: CompareOp) -> Result<Answer> {
        let op = match op {
            CompareOp::Lt => Binary::Lt,
            CompareOp::Le => Binary::Le,
            CompareOp::Eq => Binary::Eq,
            CompareOp::Ne => Binary::Ne,
            CompareOp::Gt => Binary::Gt,
            CompareOp::Ge => Binary::Ge,
        };
        operator(self, op, other, false)
    }

    fn __hash__(slf: &Bound<Self>) -> isize {
        // Of the object, as in PyTorch: equality is elementwise.
        (slf.as_ptr() as isize) >> 4
    }
}
