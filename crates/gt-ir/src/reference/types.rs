//! The result types of the reference, worked out by themselves: the law tests hold `infer` against them.

use super::RefArg;
use crate::elementwise::Gives;
use crate::op::{Op, View};
use crate::{DType, Shape, Ty};

/// The type of the (first) result of an op that `infer` has accepted.
pub(super) fn result(op: &Op, args: &[RefArg]) -> Ty {
    let tensors: Vec<&Ty> =
        args.iter().filter_map(|a| if let RefArg::Val(v) = a { Some(&v.ty) } else { None }).collect();
    let same = |i: usize| tensors[i].clone();
    let like = |i: usize, shape: Vec<usize>| Ty { dtype: tensors[i].dtype, shape: shape.into() };
    match op {
        Op::Full { shape, dtype } | Op::Data { shape, dtype } | Op::Random { shape, dtype, .. } => {
            Ty { dtype: *dtype, shape: shape.clone() }
        }
        Op::Arange { len, dtype } => Ty::new(*dtype, [*len]),
        Op::Unary(_) | Op::Flip { .. } | Op::Scan { .. } | Op::Sort { .. } => same(0),
        Op::TopK { dim, k, .. } => {
            let mut shape = tensors[0].shape.to_vec();
            shape[*dim] = *k;
            like(0, shape)
        }
        Op::Softmax { .. } | Op::LogSoftmax { .. } => same(0),
        Op::RmsNorm { .. } | Op::LayerNorm { .. } | Op::AttentionGrad { .. } => same(0),
        Op::Sgd { .. } | Op::Adam { .. } | Op::Collective(_) => same(0),
        Op::CrossEntropy => like(0, tensors[1].shape.to_vec()),
        Op::Attention { .. } => {
            let mut shape = tensors[0].shape.to_vec();
            shape.pop();
            shape.extend(tensors[2].shape.last());
            like(0, shape)
        }
        Op::Put { .. } | Op::Scatter { .. } | Op::TakePut { .. } => same(0),
        Op::Binary(op) => {
            let shape = stretched(&tensors);
            if op.gives() == Gives::Bool { Ty::new(DType::Bool, shape) } else { like(0, shape) }
        }
        Op::Where => like(1, stretched(&tensors)),
        Op::Cast(dtype) => Ty { dtype: *dtype, shape: tensors[0].shape.clone() },
        Op::View(view) => like(0, shown(view, &tensors[0].shape)),
        Op::Pad { lo, hi } => {
            like(0, tensors[0].shape.iter().zip(lo.iter().zip(hi)).map(|(n, (l, h))| l + n + h).collect())
        }
        Op::Concat { dim } => {
            let mut shape = tensors[0].shape.to_vec();
            shape[*dim] = tensors.iter().map(|t| t.shape[*dim]).sum();
            like(0, shape)
        }
        Op::Reduce { dims, keepdim, .. } => like(0, without(&tensors[0].shape, dims, *keepdim)),
        Op::ArgReduce { dim, keepdim, .. } => {
            Ty::new(DType::I64, without(&tensors[0].shape, &[*dim], *keepdim))
        }
        Op::Matmul { ta, tb, .. } => {
            let batches: Vec<Ty> =
                tensors[..2].iter().map(|t| Ty::new(t.dtype, &t.shape[..t.shape.len() - 2])).collect();
            let mut shape = stretched(&[&batches[0], &batches[1]]);
            let (a, b) = (&tensors[0].shape, &tensors[1].shape);
            shape.push(if *ta { a[a.len() - 1] } else { a[a.len() - 2] });
            shape.push(if *tb { b[b.len() - 2] } else { b[b.len() - 1] });
            like(0, shape)
        }
        Op::Gather { .. } => like(0, tensors[1].shape.to_vec()),
        Op::Take { dim } => {
            let mut shape = tensors[0].shape.to_vec();
            shape.splice(*dim..dim + 1, tensors[1].shape.iter().copied());
            like(0, shape)
        }
    }
}

/// Broadcasting: from the right, the size that is not 1.
fn stretched(tensors: &[&Ty]) -> Vec<usize> {
    let rank = tensors.iter().map(|t| t.shape.len()).max().unwrap_or(0);
    let mut shape = vec![1; rank];
    for t in tensors {
        for (size, &n) in shape.iter_mut().rev().zip(t.shape.iter().rev()) {
            if n != 1 {
                *size = n;
            }
        }
    }
    shape
}

fn without(shape: &Shape, dims: &[usize], keepdim: bool) -> Vec<usize> {
    let mut out = shape.to_vec();
    dims.iter().for_each(|&d| out[d] = 1);
    if !keepdim {
        let mut d = 0;
        out.retain(|_| {
            d += 1;
            !dims.contains(&(d - 1))
        });
    }
    out
}

fn shown(view: &View, x: &Shape) -> Vec<usize> {
    match view {
        View::Reshape(to) | View::Expand(to) => to.to_vec(),
        View::Permute(perm) => perm.iter().map(|&d| x[d]).collect(),
        View::Slice { dim, len, .. } => {
            let mut shape = x.to_vec();
            shape[*dim] = *len;
            shape
        }
    }
}
