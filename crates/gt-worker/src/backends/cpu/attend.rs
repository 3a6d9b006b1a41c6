//! Attention steps of a plan: tensors of any rank as the four dimensions the kernels know.

use super::attention::{self, Gradient, Sizes, View};
use super::kernel::Bases;
use super::threads::Threads;
use gt_compiler::{Attention, AttentionGrad, Map, Tensor};
use gt_ir::{DType, Shape};

/// The leading dimensions beyond batch, head, row and element, which are walked one by one.
struct Outer {
    dims: Shape,
}

impl Outer {
    /// The coordinates of one of them.
    fn at(&self, mut i: usize) -> Shape {
        let mut at = self.dims.clone();
        for d in (0..self.dims.len()).rev() {
            at[d] = i % self.dims[d];
            i /= self.dims[d];
        }
        at
    }

    /// A tensor at some coordinates; `flat` ones have no last dimension of elements.
    fn view(&self, t: &Tensor, flat: bool, at: &[usize], bases: Bases) -> View {
        let moved: isize = at.iter().zip(&t.map.strides).map(|(&i, &s)| i as isize * s).sum();
        let start = (t.map.offset(bases.slots) + moved) * t.dtype.size() as isize;
        // From the end: element, row, head, batch; what is not there does not move.
        let mut from_end = t.map.strides.iter().rev().copied();
        let mut next = || from_end.next().unwrap_or(0);
        let element = if flat { 0 } else { next() };
        let (row, head, batch) = (next(), next(), next());
        View {
            at: bases.ptrs[t.storage as usize].wrapping_offset(start),
            dtype: t.dtype,
            strides: [batch, head, row, element],
        }
    }
}

/// A dense result.
fn dense(storage: u32, shape: &[usize], dtype: DType) -> Tensor {
    let shape: Shape = shape.into();
    Tensor { storage, dtype, map: Map::dense(&shape), shape }
}

/// The sizes of one call, and what leads beyond it.
fn sizes(q: &Tensor, k: &Tensor, v: &Tensor) -> (Sizes, Outer) {
    let n = q.shape.len();
    let outer = n.saturating_sub(4);
    let sizes = Sizes {
        batch: if n > 3 { q.shape[n - 4] } else { 1 },
        heads: q.shape[n - 3],
        kv_heads: k.shape[n - 3],
        queries: q.shape[n - 2],
        keys: k.shape[n - 2],
        width: q.shape[n - 1],
        value_width: v.shape[n - 1],
    };
    (sizes, Outer { dims: q.shape[..outer].into() })
}

pub fn forward(x: &Attention, bases: Bases, threads: &Threads) {
    let (sizes, outer) = sizes(&x.q, &x.k, &x.v);
    let n = x.q.shape.len();
    let lse = dense(x.lse, &x.q.shape[..n - 1], lse_type(x.q.dtype));
    for i in 0..outer.dims.numel() {
        let at = outer.at(i);
        let view = |t: &Tensor| outer.view(t, false, &at, bases);
        let work = attention::Attention {
            sizes,
            scale: x.scale.get(bases.slots).as_f64(),
            causal: x.causal,
            mask: x.mask.as_ref().map(view),
            q: view(&x.q),
            k: view(&x.k),
            v: view(&x.v),
        };
        attention::forward(&work, view(&x.out), Some(outer.view(&lse, true, &at, bases)), threads);
    }
}

pub fn backward(x: &AttentionGrad, bases: Bases, threads: &Threads) {
    let (sizes, outer) = sizes(&x.q, &x.k, &x.v);
    for i in 0..outer.dims.numel() {
        let at = outer.at(i);
        let view = |t: &Tensor| outer.view(t, false, &at, bases);
        let work = attention::Attention {
            sizes,
            scale: x.scale.get(bases.slots).as_f64(),
            causal: x.causal,
            mask: x.mask.as_ref().map(view),
            q: view(&x.q),
            k: view(&x.k),
            v: view(&x.v),
        };
        let gradient = Gradient {
            out: view(&x.out),
            lse: outer.view(&x.lse, true, &at, bases),
            grad: view(&x.dout),
            dq: view(&x.dq),
            dk: view(&x.dk),
            dv: view(&x.dv),
        };
        attention::backward(&work, &gradient, threads);
    }
}

fn lse_type(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}
