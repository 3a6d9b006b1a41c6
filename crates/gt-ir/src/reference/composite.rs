//! The reference meaning of composites: their decomposition, one primitive after another.

use super::{RefArg, eval_all};
use crate::build::{Build, Operand, Operands, Values};
use crate::composite::decompose;
use crate::host::HostTensor;
use crate::op::Op;
use crate::{Result, Ty, bail};
use std::rc::Rc;

/// A `Build` that computes what it is told to write.
struct Evaluator;

impl Build for Evaluator {
    type V = Rc<HostTensor>;

    fn ty(&self, v: &Rc<HostTensor>) -> Ty {
        v.ty.clone()
    }

    fn emit(&mut self, op: Op, args: Operands<Rc<HostTensor>>) -> Result<Rc<HostTensor>> {
        self.emit_all(op, args).map(|mut outs| outs.swap_remove(0))
    }

    fn emit_all(&mut self, op: Op, args: Operands<Rc<HostTensor>>) -> Result<Values<Rc<HostTensor>>> {
        let given: Vec<RefArg> = args
            .iter()
            .map(|arg| match arg {
                Operand::Val(v) => RefArg::Val(v),
                Operand::Num(x) => RefArg::Num(*x),
            })
            .collect();
        Ok(eval_all(&op, &given)?.into_iter().map(Rc::new).collect())
    }
}

/// The results of a composite. Errors of its primitives carry its name.
pub(super) fn eval(op: &Op, args: &[RefArg]) -> Result<Vec<HostTensor>> {
    let mut given: Operands<Rc<HostTensor>> = Operands::new();
    for arg in args {
        given.push(match arg {
            RefArg::Val(v) => Operand::Val(Rc::new((*v).clone())),
            RefArg::Num(x) => Operand::Num(*x),
            RefArg::Data(_) => bail!(Type, "{}: expected a tensor or a number, got bytes", op.text()),
        });
    }
    let outs = decompose(&mut Evaluator, op, &given).map_err(|e| {
        e.map_message(|m| match m.split_once(": ") {
            Some((_, rest)) => format!("{}: {rest}", op.text()),
            None => m,
        })
    })?;
    Ok(outs.into_iter().map(|v| Rc::try_unwrap(v).unwrap_or_else(|v| (*v).clone())).collect())
}
