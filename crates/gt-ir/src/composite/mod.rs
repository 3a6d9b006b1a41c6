//! Composites: instructions with a written decomposition into primitives. A backend may take one whole.
//!
//! A composite rounds once (C7): halves are computed in `f32` and rounded at the end. Decompositions never look at
//! the value of a number, which may be a slot.

mod attention;
mod norm;
mod optim;
mod softmax;
mod through;

use crate::build::{Build, Operand, Saved, Values};
use crate::grad::Grads;
use crate::op::Op;
use crate::{DType, Result, bail};
use smallvec::{SmallVec, smallvec};
pub use through::vjp_through;

impl Op {
    /// True if the op has a decomposition.
    pub fn is_composite(&self) -> bool {
        matches!(
            self,
            Op::Softmax { .. }
                | Op::LogSoftmax { .. }
                | Op::RmsNorm { .. }
                | Op::LayerNorm { .. }
                | Op::CrossEntropy
                | Op::Attention { .. }
                | Op::AttentionGrad { .. }
                | Op::Sgd { .. }
                | Op::Adam { .. }
        )
    }
}

/// Writes a composite as primitives; gives its results.
pub fn decompose<B: Build>(b: &mut B, op: &Op, args: &[Operand<B::V>]) -> Result<Values<B::V>> {
    let a = Reads { op, args };
    match op {
        Op::Softmax { dim } => softmax::softmax(b, a.val(0)?, *dim, false).map(|y| smallvec![y]),
        Op::LogSoftmax { dim } => softmax::softmax(b, a.val(0)?, *dim, true).map(|y| smallvec![y]),
        Op::RmsNorm { dims } => {
            norm::rms_norm(b, a.val(0)?, a.get(1)?, a.may(2), *dims).map(|y| smallvec![y])
        }
        Op::LayerNorm { dims } => {
            norm::layer_norm(b, a.val(0)?, a.get(1)?, [a.may(2), a.may(3)], *dims).map(|y| smallvec![y])
        }
        Op::CrossEntropy => softmax::cross_entropy(b, a.val(0)?, a.val(1)?, a.get(2)?),
        Op::Attention { causal } => {
            attention::attention(b, [a.val(0)?, a.val(1)?, a.val(2)?], a.get(3)?, a.may(4), *causal)
        }
        Op::AttentionGrad { causal } => {
            let given = [a.val(0)?, a.val(1)?, a.val(2)?, a.val(3)?, a.val(4)?, a.val(5)?];
            attention::attention_grad(b, given, a.get(6)?, a.may(7), *causal)
        }
        Op::Sgd { .. } => optim::sgd(b, op, args),
        Op::Adam { .. } => optim::adam(b, op, args),
        op => bail!(Value, "{}: is no composite", op.text()),
    }
}

/// Gradients of a composite's operands, as `grad::vjp` gives them.
pub(crate) fn vjp<B: Build>(
    b: &mut B,
    op: &Op,
    s: &Saved<B::V>,
    grads: &[Option<B::V>],
    wanted: &[bool],
) -> Result<Grads<B::V>> {
    let none = || SmallVec::from_elem(None, s.args.len());
    let grad = |k: usize| grads.get(k).and_then(Option::as_ref);
    match (op, grad(0)) {
        (Op::CrossEntropy, g) => softmax::cross_entropy_grad(b, s, g, grad(1)),
        (Op::Attention { causal }, Some(g)) if grad(1).is_none() && wanted.get(4) != Some(&true) => {
            let mut args: crate::Operands<B::V> = (0..3).map(|i| s.operand(i)).collect::<Result<_>>()?;
            args.extend([s.out(0)?.into(), s.out(1)?.into(), g.into(), s.operand(3)?]);
            if s.args.len() > 4 {
                args.push(s.operand(4)?);
            }
            let found = b.emit_all(Op::AttentionGrad { causal: *causal }, args)?;
            let mut out: Grads<B::V> = found.into_iter().map(Some).collect();
            out.resize(s.args.len(), None);
            Ok(out)
        }
        (Op::Attention { .. } | Op::AttentionGrad { .. }, _) => vjp_through(b, op, s, grads, wanted),
        (Op::Sgd { .. } | Op::Adam { .. }, _) | (_, None) => Ok(none()),
        (Op::Softmax { dim }, Some(g)) => softmax::softmax_grad(b, s.out(0)?, g, *dim, false),
        (Op::LogSoftmax { dim }, Some(g)) => softmax::softmax_grad(b, s.out(0)?, g, *dim, true),
        (Op::RmsNorm { dims }, Some(g)) => norm::rms_norm_grad(b, s, g, *dims, wanted),
        (Op::LayerNorm { dims }, Some(g)) => norm::layer_norm_grad(b, s, g, *dims, wanted),
        (op, Some(_)) => bail!(Value, "{}: is no composite", op.text()),
    }
}

/// The operands of a composite, read by position. `infer` has accepted their kinds.
struct Reads<'a, V> {
    op: &'a Op,
    args: &'a [Operand<V>],
}

impl<'a, V: Clone> Reads<'a, V> {
    fn get(&self, i: usize) -> Result<Operand<V>> {
        match self.args.get(i) {
            Some(x) => Ok(x.clone()),
            None => bail!(Type, "{}: operand {i} is missing", self.op.text()),
        }
    }

    fn val(&self, i: usize) -> Result<&'a V> {
        match self.args.get(i) {
            Some(Operand::Val(v)) => Ok(v),
            _ => bail!(Type, "{}: operand {i} must be a tensor", self.op.text()),
        }
    }

    /// An operand that may be missing.
    fn may(&self, i: usize) -> Option<&'a V> {
        self.args.get(i).and_then(Operand::val)
    }
}

/// The type a composite computes in.
pub(crate) fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    }
}

/// A value in the type a composite computes in.
fn widened<B: Build>(b: &mut B, x: &B::V) -> Result<B::V> {
    let dtype = wide(b.ty(x).dtype);
    b.cast(x, dtype)
}
