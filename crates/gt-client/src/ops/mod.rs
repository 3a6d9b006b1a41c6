//! The tensor functions a user calls, written in terms of the language. One file per family.

pub mod activation;
pub mod arith;
pub mod attention;
pub mod autocast;
pub mod create;
pub mod einsum;
pub mod index;
pub mod inplace;
pub mod join;
pub mod linalg;
pub mod loss;
pub mod moves;
pub mod norm;
pub mod optim;
pub mod pointwise;
pub mod reduce;
pub mod scatter;
pub mod sort;
pub mod stat;

use crate::Tensor;
use crate::autograd::{Edge, Node, NodeArg, NodeKind, Var, grad_enabled};
use crate::tensor::Step;
use gt_ir::{Binary, Ints, Op, Operand, Operands, Result, Scalar, Shape, Ty, View, bail, norm_dim};
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

/// Records one op on tensors and wraps all its results.
pub(crate) fn apply_all(op: Op, args: &[&Tensor]) -> Result<Vec<Tensor>> {
    let list: Operands<Var> = args.iter().map(|t| t.var().map(Operand::Val)).collect::<Result<_>>()?;
    Ok(crate::autograd::record_all(op, list)?.into_iter().map(Tensor::from_var).collect())
}

/// A tensor operand or a number as the recorder takes it.
#[inline]
pub(crate) fn operand(x: &Operand<Tensor>) -> Result<Operand<Var>> {
    Ok(match x {
        Operand::Val(t) => Operand::Val(t.var()?),
        Operand::Num(x) => Operand::Num(*x),
    })
}

/// The history of a put, without an instruction. No step is a pick.
pub(crate) fn put_edge(steps: &[Step], root: Option<Edge>, root_ty: &Ty, new: Operand<Var>) -> Result<Edge> {
    let mut args = smallvec![NodeArg::Val { ty: root_ty.clone(), edge: root, saved: None }];
    args.push(match new {
        Operand::Num(x) => NodeArg::Num(x),
        Operand::Val(v) => NodeArg::Val { ty: v.value.ty.clone(), edge: v.edge, saved: None },
    });
    args.extend(steps.iter().filter_map(Step::start).map(|s| NodeArg::Num(Scalar::Int(s))));
    let op = Op::Put { path: steps.iter().filter_map(Step::view).cloned().collect() };
    Ok(Edge { node: Node::new(NodeKind::Op(op), args, root_ty.clone()), nr: 0 })
}

/// Elementwise op of two operands that need not be wrapped first.
pub(crate) fn bin(
    op: Binary,
    a: impl Into<Operand<Tensor>>,
    b: impl Into<Operand<Tensor>>,
) -> Result<Tensor> {
    arith::binary(op, &a.into(), &b.into())
}

/// Records one op on a tensor and numbers.
pub(crate) fn apply_with(op: Op, x: &Tensor, numbers: &[Scalar]) -> Result<Tensor> {
    let mut list: Operands<Var> = smallvec![Operand::Val(x.var()?)];
    list.extend(numbers.iter().map(|&n| Operand::Num(n)));
    crate::autograd::record(op, list).map(Tensor::from_var)
}

/// The same value as a new step of the graph, without an instruction: what `clone` and `copy_` give.
pub(crate) fn identity(x: Var) -> Var {
    let edge = match x.edge {
        Some(edge) if grad_enabled() => {
            let ty = x.value.ty.clone();
            let op = Op::View(View::Reshape(ty.shape.clone()));
            let args = smallvec![NodeArg::Val { ty: ty.clone(), edge: Some(edge), saved: None }];
            Some(Edge { node: Node::new(NodeKind::Op(op), args, ty), nr: 0 })
        }
        _ => None,
    };
    Var { value: x.value, edge, owner: None }
}

/// Resolves possibly negative dimensions, in ascending order. None at all means every dimension.
pub(crate) fn norm_dims(op: &str, dims: &[i64], rank: usize) -> Result<Ints> {
    if dims.is_empty() {
        return Ok((0..rank).collect());
    }
    let mut out = Ints::new();
    for &dim in dims {
        let d = norm_dim(op, dim, rank)?;
        if out.contains(&d) {
            bail!(Runtime, "{op}: dim {d} appears multiple times in the list of dims");
        }
        out.push(d);
    }
    if rank == 0 {
        return Ok(Ints::new());
    }
    out.sort_unstable();
    Ok(out)
}

/// Sizes as a shape; negative ones are refused.
pub(crate) fn shape_of(op: &str, sizes: &[i64]) -> Result<Shape> {
    if let Some(bad) = sizes.iter().find(|&&n| n < 0) {
        bail!(Runtime, "{op}: trying to create tensor with negative dimension {bad}: {sizes:?}");
    }
    Ok(sizes.iter().map(|&n| n as usize).collect())
}
