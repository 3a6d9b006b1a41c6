//! The gradient rule of every op, as more instructions, so that second derivatives come by themselves.

mod prod;

use crate::build::{Build, Kept, Operand, Operands, Saved};
use crate::elementwise::{Binary, Needs};
use crate::op::{Op, ReduceKind, ScanKind, ScatterMode, View};
use crate::{Ints, Result, Scalar, Shape, Ty, composite};
use smallvec::{SmallVec, smallvec};

/// One gradient per operand; `None` claims zero.
pub type Grads<V> = SmallVec<[Option<V>; 3]>;

const ARG0: Needs = Needs { args: 1, outs: false };
const ARG1: Needs = Needs { args: 2, outs: false };
const NOTHING: Needs = Needs { args: 0, outs: false };
const OUT: Needs = Needs { args: 0, outs: true };

impl Op {
    /// True if a gradient can flow through the op to some operand.
    pub fn differentiable(&self) -> bool {
        match self {
            Op::Full { .. }
            | Op::Arange { .. }
            | Op::Random { .. }
            | Op::Data { .. }
            | Op::ArgReduce { .. }
            | Op::Sgd { .. }
            | Op::Adam { .. }
            | Op::Collective(_) => false,
            Op::Binary(op) => op.gives() == crate::elementwise::Gives::Same,
            Op::Cast(dtype) => dtype.is_float(),
            _ => true,
        }
    }

    /// What the gradient rule reads; only that is kept for the backward pass.
    pub fn needs(&self) -> Needs {
        match self {
            Op::Full { .. } | Op::Arange { .. } | Op::Random { .. } | Op::Data { .. } => NOTHING,
            Op::Unary(op) => op.needs(),
            Op::Binary(op) => op.needs(),
            Op::Where => ARG0,
            Op::Cast(_)
            | Op::View(_)
            | Op::Pad { .. }
            | Op::Concat { .. }
            | Op::Flip { .. }
            | Op::Put { .. } => NOTHING,
            Op::Reduce { kind: ReduceKind::Sum, .. } => NOTHING,
            Op::Reduce { kind: ReduceKind::Prod, .. } => ARG0,
            Op::Reduce { kind: ReduceKind::Max | ReduceKind::Min, .. } => Needs { args: 1, outs: true },
            Op::ArgReduce { .. } => NOTHING,
            Op::Scan { kind: ScanKind::Sum, .. } => NOTHING,
            Op::Scan { kind: ScanKind::Prod, .. } => ARG0,
            Op::Matmul { .. } => Needs { args: 3, outs: false },
            Op::Gather { .. } | Op::Take { .. } => ARG1,
            Op::Scatter { mode, .. } | Op::TakePut { mode, .. } => match mode {
                ScatterMode::Set | ScatterMode::Add => ARG1,
                ScatterMode::Max => Needs { args: 7, outs: true },
            },
            Op::Sort { .. } | Op::TopK { .. } => OUT,
            Op::Softmax { .. } | Op::LogSoftmax { .. } => OUT,
            Op::RmsNorm { .. } | Op::LayerNorm { .. } => Needs { args: 0b101, outs: false },
            Op::CrossEntropy => Needs { args: 0b11, outs: true },
            Op::Attention { .. } => Needs { args: 0b1_0111, outs: true },
            Op::AttentionGrad { .. } => Needs { args: 0b1011_1111, outs: false },
            Op::Sgd { .. } | Op::Adam { .. } | Op::Collective(_) => NOTHING,
        }
    }

    /// What the gradient rule reads when only the operands that `wanted` marks ask for a gradient.
    pub fn needs_for(&self, wanted: &[bool]) -> Needs {
        let [a, b, c] = [0, 1, 2].map(|i| wanted.get(i) == Some(&true));
        let args =
            |first: bool, second: bool| Needs { args: first as u32 | (second as u32) << 1, outs: false };
        match self {
            Op::Binary(Binary::Mul) | Op::Matmul { .. } => args(b, a),
            Op::Binary(Binary::Div) => args(b, a || b),
            Op::Binary(Binary::Rem) => args(b, b),
            Op::Binary(Binary::Pow) => Needs { outs: b, ..self.needs() },
            Op::Scatter { mode: ScatterMode::Add, .. } | Op::TakePut { mode: ScatterMode::Add, .. } => {
                args(false, c)
            }
            op => op.needs(),
        }
    }
}

/// Gradients of the operands that `wanted` marks, given those of the results; a missing one is zero.
pub fn vjp<B: Build>(
    b: &mut B,
    op: &Op,
    s: &Saved<B::V>,
    grads: &[Option<B::V>],
    wanted: &[bool],
) -> Result<Grads<B::V>> {
    let Some(Some(g)) = grads.first() else {
        return match op.is_composite() {
            true => composite::vjp(b, op, s, grads, wanted),
            // Primitives have one result, or one that is differentiable.
            false => Ok(SmallVec::from_elem(None, s.args.len())),
        };
    };
    let want = |i: usize| wanted.get(i).copied().unwrap_or(false);
    let one = |x: Option<B::V>| -> Result<Grads<B::V>> { Ok(smallvec![x]) };
    match op {
        Op::Full { .. } | Op::Arange { .. } | Op::Random { .. } | Op::Data { .. } | Op::ArgReduce { .. } => {
            Ok(SmallVec::from_elem(None, s.args.len()))
        }
        Op::Unary(op) => {
            let d = op.grad(b, g, s)?;
            one(d)
        }
        Op::Binary(op) => {
            let mut out: Grads<B::V> = smallvec![None, None];
            for i in 0..2 {
                if !want(i) {
                    continue;
                }
                let d = if i == 0 { op.grad_a(b, g, s)? } else { op.grad_b(b, g, s)? };
                if let Some(d) = d {
                    out[i] = Some(b.sum_to(&d, &s.ty(i)?.shape)?);
                }
            }
            Ok(out)
        }
        Op::Where => {
            let cond = s.arg(0)?;
            let mut out: Grads<B::V> = smallvec![None, None, None];
            if want(1) {
                let d = b.select(cond, g, 0.0)?;
                out[1] = Some(b.sum_to(&d, &s.ty(1)?.shape)?);
            }
            if want(2) {
                let d = b.select(cond, 0.0, g)?;
                out[2] = Some(b.sum_to(&d, &s.ty(2)?.shape)?);
            }
            Ok(out)
        }
        Op::Cast(_) => {
            let d = b.cast(g, s.ty(0)?.dtype)?;
            one(Some(d))
        }
        Op::View(view) => {
            let x = s.ty(0)?;
            let d = match view {
                View::Reshape(_) => b.reshape(g, &x.shape)?,
                View::Permute(perm) => {
                    let mut inverse: Ints = perm.clone();
                    for (i, &d) in perm.iter().enumerate() {
                        inverse[d] = i;
                    }
                    b.permute(g, inverse)?
                }
                View::Expand(_) => b.sum_to(g, &x.shape)?,
                View::Slice { .. } => {
                    let zeros = b.full(&x.clone(), 0.0)?;
                    let start = Scalar::Int(s.int(1)?);
                    let args = smallvec![Operand::from(&zeros), Operand::from(g), Operand::Num(start)];
                    b.emit(Op::Put { path: vec![view.clone()] }, args)?
                }
            };
            Ok(smallvec![Some(d), None])
        }
        Op::Pad { lo, .. } => {
            let x = s.ty(0)?.shape.clone();
            let d = window(b, g, lo, &x)?;
            Ok(smallvec![Some(d), None])
        }
        Op::Concat { dim } => {
            let mut out = Grads::new();
            let mut start = 0;
            for i in 0..s.args.len() {
                let len = s.ty(i)?.shape[*dim];
                out.push(if want(i) {
                    let view = View::Slice { dim: *dim, len, step: 1 };
                    Some(b.view(g, view, Some(start as i64))?)
                } else {
                    None
                });
                start += len;
            }
            Ok(out)
        }
        Op::Flip { dims } => {
            let d = b.emit(Op::Flip { dims: dims.clone() }, smallvec![g.into()])?;
            one(Some(d))
        }
        Op::Put { path } => put_grad(b, path, s, g, want(0), want(1)),
        Op::Reduce { kind, dims, .. } => {
            let x = s.ty(0)?.clone();
            let d = reduce_grad(b, *kind, dims, &x, s, g)?;
            one(Some(d))
        }
        Op::Scan { kind, dim } => {
            let d = scan_grad(b, *kind, *dim, s, g)?;
            one(Some(d))
        }
        Op::Matmul { ta, tb, tf32 } => matmul_grad(b, [*ta, *tb, *tf32], s, g, [want(0), want(1), want(2)]),
        Op::Gather { dim } => {
            let zeros = b.full(&s.ty(0)?.clone(), 0.0)?;
            let add = Op::Scatter { dim: *dim, mode: ScatterMode::Add };
            let d = b.emit(add, smallvec![(&zeros).into(), s.operand(1)?, g.into()])?;
            Ok(smallvec![Some(d), None])
        }
        Op::Take { dim } => {
            let zeros = b.full(&s.ty(0)?.clone(), 0.0)?;
            let add = Op::TakePut { dim: *dim, mode: ScatterMode::Add };
            let d = b.emit(add, smallvec![(&zeros).into(), s.operand(1)?, g.into()])?;
            Ok(smallvec![Some(d), None])
        }
        Op::Scatter { dim, mode } => scatter_grad(b, op, Op::Gather { dim: *dim }, *mode, s, g, want(2)),
        Op::TakePut { dim, mode } => scatter_grad(b, op, Op::Take { dim: *dim }, *mode, s, g, want(2)),
        Op::Sort { dim, .. } | Op::TopK { dim, .. } => {
            let zeros = b.full(&s.ty(0)?.clone(), 0.0)?;
            let add = Op::Scatter { dim: *dim, mode: ScatterMode::Add };
            let d = b.emit(add, smallvec![(&zeros).into(), s.out(1)?.into(), g.into()])?;
            one(Some(d))
        }
        Op::Softmax { .. }
        | Op::LogSoftmax { .. }
        | Op::RmsNorm { .. }
        | Op::LayerNorm { .. }
        | Op::CrossEntropy
        | Op::Attention { .. }
        | Op::AttentionGrad { .. }
        | Op::Sgd { .. }
        | Op::Adam { .. } => composite::vjp(b, op, s, grads, wanted),
        Op::Collective(_) => Err(crate::Error::Runtime(format!("{}: has no gradient", op.text()))),
    }
}

/// The part of `x` that starts at `lo` and has shape `shape`.
fn window<B: Build>(b: &mut B, x: &B::V, lo: &[usize], shape: &Shape) -> Result<B::V> {
    let mut out = x.clone();
    for d in 0..shape.len() {
        if b.ty(&out).shape[d] != shape[d] {
            out = b.view(&out, View::Slice { dim: d, len: shape[d], step: 1 }, Some(lo[d] as i64))?;
        }
    }
    Ok(out)
}

fn put_grad<B: Build>(
    b: &mut B,
    path: &[View],
    s: &Saved<B::V>,
    g: &B::V,
    want_base: bool,
    want_value: bool,
) -> Result<Grads<B::V>> {
    let starts: Vec<i64> = (2..s.args.len()).map(|i| s.int(i)).collect::<Result<_>>()?;
    let mut out: Grads<B::V> = SmallVec::from_elem(None, s.args.len());
    if want_base {
        let mut args: Operands<B::V> = smallvec![g.into(), Operand::Num(Scalar::Float(0.0))];
        args.extend(starts.iter().map(|&i| Operand::Num(Scalar::Int(i))));
        out[0] = Some(b.emit(Op::Put { path: path.to_vec() }, args)?);
    }
    if want_value {
        let mut d = g.clone();
        let mut rest = starts.iter();
        for view in path {
            let start = if view.has_start() { rest.next().copied() } else { None };
            d = b.view(&d, view.clone(), start)?;
        }
        out[1] = Some(d);
    }
    Ok(out)
}

fn reduce_grad<B: Build>(
    b: &mut B,
    kind: ReduceKind,
    dims: &[usize],
    x: &Ty,
    s: &Saved<B::V>,
    g: &B::V,
) -> Result<B::V> {
    let kept = x.shape.reduced(dims, true);
    let g = b.reshape(g, &kept)?;
    match kind {
        ReduceKind::Sum => b.expand(&g, &x.shape),
        ReduceKind::Max | ReduceKind::Min => {
            let y = b.reshape(s.out(0)?, &kept)?;
            let hit = b.bin(Binary::Eq, s.arg(0)?, &y)?;
            // Where the result is not a number, those that are none have made it so.
            let nan = b.bin(Binary::Ne, s.arg(0)?, s.arg(0)?)?;
            let hit = b.bin(Binary::Or, &hit, &nan)?;
            let hit = b.cast(&hit, x.dtype)?;
            let ties = b.reduce(ReduceKind::Sum, &hit, dims, true)?;
            let share = b.bin(Binary::Div, &g, &ties)?;
            b.mul(&hit, &share)
        }
        ReduceKind::Prod if dims.is_empty() || x.shape.numel() == 0 => b.expand(&g, &x.shape),
        ReduceKind::Prod => {
            let d = prod::others(b, s.arg(0)?, dims)?;
            b.mul(&g, &d)
        }
    }
}

fn scan_grad<B: Build>(b: &mut B, kind: ScanKind, dim: usize, s: &Saved<B::V>, g: &B::V) -> Result<B::V> {
    match kind {
        ScanKind::Sum => {
            let flip = Op::Flip { dims: smallvec![dim] };
            let x = b.emit(flip.clone(), smallvec![g.into()])?;
            let x = b.emit(Op::Scan { kind, dim }, smallvec![(&x).into()])?;
            b.emit(flip, smallvec![(&x).into()])
        }
        ScanKind::Prod => prod::running(b, s.arg(0)?, dim, g),
    }
}

fn matmul_grad<B: Build>(
    b: &mut B,
    [ta, tb, tf32]: [bool; 3],
    s: &Saved<B::V>,
    g: &B::V,
    want: [bool; 3],
) -> Result<Grads<B::V>> {
    let mut out: Grads<B::V> = SmallVec::from_elem(None, s.args.len());
    let mut product = |b: &mut B, l: Operand<B::V>, r: Operand<B::V>, ta, tb, i: usize| -> Result<()> {
        let d = b.emit(Op::Matmul { ta, tb, tf32 }, smallvec![l, r])?;
        out[i] = Some(b.sum_to(&d, &s.ty(i)?.shape)?);
        Ok(())
    };
    if want[0] {
        if ta {
            product(b, s.operand(1)?, g.into(), tb, true, 0)?;
        } else {
            product(b, g.into(), s.operand(1)?, false, !tb, 0)?;
        }
    }
    if want[1] {
        // A matrix shared by a whole stack: rows of all members in one product, not a product per member and a sum.
        let stack = s.ty(0)?.shape.clone();
        let (x, g) = if s.ty(1)?.shape.len() == 2 && stack.len() > 2 && !ta {
            let rows: usize = stack[..stack.len() - 1].iter().product();
            let flat = |b: &mut B, v: &B::V| -> Result<B::V> {
                let last = b.ty(v).shape[stack.len() - 1];
                b.reshape(v, &[rows, last].into())
            };
            (Operand::Val(flat(b, s.arg(0)?)?), flat(b, g)?)
        } else {
            (s.operand(0)?, g.clone())
        };
        if tb {
            product(b, (&g).into(), x, true, ta, 1)?;
        } else {
            product(b, x, (&g).into(), !ta, false, 1)?;
        }
    }
    if want[2] {
        out[2] = Some(b.sum_to(g, &s.ty(2)?.shape)?);
    }
    Ok(out)
}

/// Gradients of a scatter whose reading counterpart is `read`.
fn scatter_grad<B: Build>(
    b: &mut B,
    op: &Op,
    read: Op,
    mode: ScatterMode,
    s: &Saved<B::V>,
    g: &B::V,
    want_src: bool,
) -> Result<Grads<B::V>> {
    let index = || s.operand(1);
    let src_grad = |b: &mut B, g: &B::V| -> Result<Option<B::V>> {
        if !want_src {
            return Ok(None);
        }
        b.emit(read.clone(), smallvec![g.into(), index()?]).map(Some)
    };
    match mode {
        ScatterMode::Add => Ok(smallvec![Some(g.clone()), None, src_grad(b, g)?]),
        ScatterMode::Set => {
            let zeros = match &s.args[2] {
                Kept::Val(ty, _) => Operand::Val(b.full(&ty.clone(), 0.0)?),
                Kept::Num(_) => Operand::Num(Scalar::Float(0.0)),
            };
            let base = b.emit(op.clone(), smallvec![g.into(), index()?, zeros])?;
            Ok(smallvec![Some(base), None, src_grad(b, g)?])
        }
        ScatterMode::Max => {
            let y = s.out(0)?;
            let kept = b.bin(Binary::Eq, s.operand(0)?, y)?;
            let base = b.select(&kept, g, 0.0)?;
            let src = match src_grad(b, g)? {
                None => None,
                Some(at) => {
                    let won = b.emit(read.clone(), smallvec![y.into(), index()?])?;
                    let hit = b.bin(Binary::Eq, s.operand(2)?, &won)?;
                    Some(b.select(&hit, &at, 0.0)?)
                }
            };
            Ok(smallvec![Some(base), None, src])
        }
    }
}
