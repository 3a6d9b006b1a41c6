//! The tensor functions a user calls, written in terms of the language. One file per family.

pub mod arith;
pub mod create;

use crate::Tensor;
use crate::autograd::{Edge, Var};
use crate::tensor::Step;
use gt_ir::{Op, Operand, Operands, Result, Scalar, Ty};
use smallvec::smallvec;

/// Records one op on tensors and wraps the result.
#[inline]
pub(crate) fn apply(op: Op, args: &[&Tensor]) -> Result<Tensor> {
    let mut list: Operands<Var> = Operands::new();
    for t in args {
        list.push(Operand::Val(t.var()?));
    }
    crate::autograd::record(op, list).map(Tensor::from_var)
}

/// A tensor operand or a number as the recorder takes it.
#[inline]
pub(crate) fn operand(x: &Operand<Tensor>) -> Result<Operand<Var>> {
    Ok(match x {
        Operand::Val(t) => Operand::Val(t.var()?),
        Operand::Num(x) => Operand::Num(*x),
    })
}

/// The history of a put into a detached view: its value was recorded at the storage, here only the graph grows.
pub(crate) fn grad_only_put(
    steps: &[Step],
    root: Option<Edge>,
    root_ty: &Ty,
    new: Operand<Var>,
) -> Result<Edge> {
    use crate::autograd::NodeArg;
    use crate::autograd::{Node, NodeKind};
    let mut args = smallvec![NodeArg::Val { ty: root_ty.clone(), edge: root, saved: None }];
    args.push(match new {
        Operand::Num(x) => NodeArg::Num(x),
        Operand::Val(v) => NodeArg::Val { ty: v.value.ty.clone(), edge: v.edge, saved: None },
    });
    args.extend(steps.iter().filter_map(|s| s.start).map(|s| NodeArg::Num(Scalar::Int(s))));
    let op = Op::Put { path: steps.iter().map(|s| s.view.clone()).collect() };
    Ok(Edge { node: Node::new(NodeKind::Op(op), args, root_ty.clone()), nr: 0 })
}
