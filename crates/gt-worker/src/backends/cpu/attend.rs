//! The attention steps of a plan: their tensors as views of four dimensions.

use super::attention::{self, Gradient, Sizes, View};
use super::kernel::Bases;
use super::threads::Threads;
use gt_compiler::{Num, Tensor};
use gt_ir::{DType, Shape};

/// A tensor of a step, where its dimensions before the last four are at `outer`.
fn view(x: &Tensor, outer: &[usize], bases: Bases) -> View {
    let offset = x.map.offset(bases.slots) * x.dtype.size() as isize;
    let at = bases.ptrs[x.storage as usize].wrapping_offset(offset);
    shown(at, x.dtype, &x.map.strides, outer)
}

fn shown(at: *mut u8, dtype: DType, strides: &[isize], outer: &[usize]) -> View {
    let rank = strides.len();
    let before: isize = outer.iter().zip(strides).map(|(&i, &s)| i as isize * s).sum();
    let batch = if rank > 3 { strides[rank - 4] } else { 0 };
    View {
        at: at.wrapping_offset(before * dtype.size() as isize),
        dtype,
        strides: [batch, strides[rank - 3], strides[rank - 2], strides[rank - 1]],
    }
}

/// A dense result.
fn dense(storage: u32, dtype: DType, shape: &Shape, outer: &[usize], bases: Bases) -> View {
    shown(bases.ptrs[storage as usize], dtype, &shape.strides(), outer)
}

/// The shape of query rows with another last dimension.
fn with_last(q: &Shape, last: usize) -> Shape {
    let mut shape: Shape = q[..q.len() - 1].into();
    shape.push(last);
    shape
}

/// Calls `f` for every index of the dimensions before the last four.
fn each_outer(shape: &Shape, mut f: impl FnMut(&[usize])) {
    let outer = &shape[..shape.len().saturating_sub(4)];
    let mut index = vec![0; outer.len()];
    for i in 0..outer.iter().product::<usize>() {
        let mut rest = i;
        for (at, &n) in index.iter_mut().zip(outer).rev() {
            *at = rest % n;
            rest /= n;
        }
        f(&index);
    }
}

/// One column after the last dimension, for what has one number per row.
fn column(x: &Tensor) -> Tensor {
    let mut x = x.clone();
    x.shape.push(1);
    x.map.strides.push(1);
    x
}

fn operands(
    [q, k, v]: [&Tensor; 3],
    mask: Option<&Tensor>,
    scale: Num,
    causal: bool,
    outer: &[usize],
    bases: Bases,
) -> attention::Attention {
    let rank = q.shape.len();
    let sizes = Sizes {
        batch: if rank > 3 { q.shape[rank - 4] } else { 1 },
        heads: q.shape[rank - 3],
        kv_heads: k.shape[rank - 3],
        queries: q.shape[rank - 2],
        keys: k.shape[rank - 2],
        width: q.shape[rank - 1],
        value_width: v.shape[rank - 1],
    };
    attention::Attention {
        sizes,
        scale: scale.get(bases.slots).as_f64(),
        causal,
        mask: mask.map(|x| view(x, outer, bases)),
        q: view(q, outer, bases),
        k: view(k, outer, bases),
        v: view(v, outer, bases),
    }
}

fn lse_type(q: DType) -> DType {
    if q == DType::F64 { DType::F64 } else { DType::F32 }
}

pub fn forward(x: &gt_compiler::Attention, bases: Bases, threads: &Threads) {
    let (q, last) = (&x.q.shape, x.v.shape.len() - 1);
    let (of_out, of_lse) = (with_last(q, x.v.shape[last]), with_last(q, 1));
    each_outer(q, |outer| {
        let given = operands([&x.q, &x.k, &x.v], x.mask.as_ref(), x.scale, x.causal, outer, bases);
        let out = dense(x.out, x.q.dtype, &of_out, outer, bases);
        let lse = dense(x.lse, lse_type(x.q.dtype), &of_lse, outer, bases);
        attention::forward(&given, out, Some(lse), threads);
    });
}

pub fn backward(x: &gt_compiler::AttentionGrad, bases: Bases, threads: &Threads) {
    let lse = column(&x.lse);
    each_outer(&x.q.shape, |outer| {
        let given = operands([&x.q, &x.k, &x.v], x.mask.as_ref(), x.scale, x.causal, outer, bases);
        let gradient = Gradient {
            out: view(&x.out, outer, bases),
            lse: view(&lse, outer, bases),
            grad: view(&x.dout, outer, bases),
            dq: dense(x.dq, x.q.dtype, &x.q.shape, outer, bases),
            dk: dense(x.dk, x.k.dtype, &x.k.shape, outer, bases),
            dv: dense(x.dv, x.v.dtype, &x.v.shape, outer, bases),
        };
        attention::backward(&given, &gradient, threads);
    });
}
