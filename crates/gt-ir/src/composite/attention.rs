//! Scaled dot product attention and its gradient.

use super::widened;
use crate::build::{Build, Operand, Values};
use crate::elementwise::{Binary, Unary};
use crate::op::{Op, ReduceKind};
use crate::{DType, Result, Scalar, Shape, Ty};
use smallvec::smallvec;

const LEAST: f64 = f64::NEG_INFINITY;

/// The sizes of one attention. Query heads that share a key head are rows of one product.
struct Sizes {
    /// `[.., heads, rows, columns]`.
    scores: Shape,
    /// `[.., key heads, heads / key heads * rows]`, without the last dimension.
    folded: Shape,
}

impl Sizes {
    fn new(q: &Shape, k: &Shape) -> Sizes {
        let rank = q.len();
        let mut scores: Shape = q[..rank - 1].into();
        scores.push(k[rank - 2]);
        let mut folded: Shape = k[..rank - 2].into();
        let groups = q[rank - 3].checked_div(k[rank - 3]).unwrap_or(1);
        folded.push(groups * q[rank - 2]);
        Sizes { scores, folded }
    }

    /// A tensor of query rows with the rows of all heads that share a key head together.
    fn fold<B: Build>(&self, b: &mut B, x: &B::V) -> Result<B::V> {
        let from = b.ty(x).shape;
        let mut shape = self.folded.clone();
        shape.push(from[from.len() - 1]);
        b.reshape(x, &shape)
    }

    /// The reverse of `fold`.
    fn unfold<B: Build>(&self, b: &mut B, x: &B::V) -> Result<B::V> {
        let from = b.ty(x).shape;
        let mut shape: Shape = self.scores[..self.scores.len() - 1].into();
        shape.push(from[from.len() - 1]);
        b.reshape(x, &shape)
    }
}

fn product<B: Build>(b: &mut B, x: &B::V, y: &B::V, ta: bool, tb: bool) -> Result<B::V> {
    b.emit(Op::Matmul { ta, tb, tf32: false }, smallvec![x.into(), y.into()])
}

/// `q @ k.T * scale` with the mask; wide.
fn scores<B: Build>(
    b: &mut B,
    sizes: &Sizes,
    [q, k]: [&B::V; 2],
    scale: Operand<B::V>,
    mask: Option<&B::V>,
    causal: bool,
) -> Result<B::V> {
    let folded = sizes.fold(b, q)?;
    let s = product(b, &folded, k, false, true)?;
    let s = b.bin(Binary::Mul, &s, scale)?;
    let mut s = sizes.unfold(b, &s)?;
    if let Some(mask) = mask {
        s = match b.ty(mask).dtype {
            DType::Bool => b.select(mask, &s, LEAST)?,
            _ => {
                let mask = widened(b, mask)?;
                b.add(&s, &mask)?
            }
        };
    }
    if causal {
        let rank = sizes.scores.len();
        let (rows, columns) = (sizes.scores[rank - 2], sizes.scores[rank - 1]);
        let mut count = |len: usize| {
            let op = Op::Arange { len, dtype: DType::I64 };
            b.emit(op, smallvec![Scalar::Int(0).into(), Scalar::Int(1).into()])
        };
        let (row, column) = (count(rows)?, count(columns)?);
        let row = b.reshape(&row, &[rows, 1].into())?;
        let seen = b.bin(Binary::Ge, &row, &column)?;
        s = b.select(&seen, &s, LEAST)?;
    }
    Ok(s)
}

/// (out, log-sum-exp of the scores). A row that sees nothing gives zeros.
pub(super) fn attention<B: Build>(
    b: &mut B,
    [q, k, v]: [&B::V; 3],
    scale: Operand<B::V>,
    mask: Option<&B::V>,
    causal: bool,
) -> Result<Values<B::V>> {
    let (tq, tk, tv) = (b.ty(q), b.ty(k), b.ty(v));
    let sizes = Sizes::new(&tq.shape, &tk.shape);
    let (rank, last) = (tq.shape.len(), tq.shape.len() - 1);
    let rows: Shape = tq.shape[..last].into();
    if sizes.scores.numel() == 0 {
        let mut shape = rows.clone();
        shape.push(tv.shape[last]);
        let out = b.full(&Ty { dtype: tq.dtype, shape }, 0.0)?;
        return Ok(smallvec![out, b.full(&Ty { dtype: super::wide(tq.dtype), shape: rows }, LEAST)?]);
    }
    let (q, k, v) = (widened(b, q)?, widened(b, k)?, widened(b, v)?);
    let s = scores(b, &sizes, [&q, &k], scale, mask, causal)?;
    let top = b.reduce(ReduceKind::Max, &s, &[rank - 1], true)?;
    let nothing = b.bin(Binary::Eq, &top, LEAST)?;
    let top = b.select(&nothing, 0.0, &top)?;
    let less = b.bin(Binary::Sub, &s, &top)?;
    let e = b.un(Unary::Exp, &less)?;
    let total = b.reduce(ReduceKind::Sum, &e, &[rank - 1], true)?;
    let by = b.select(&nothing, 1.0, &total)?;
    let p = b.bin(Binary::Div, &e, &by)?;
    let p = sizes.fold(b, &p)?;
    let out = product(b, &p, &v, false, false)?;
    let out = sizes.unfold(b, &out)?;
    let out = b.cast(&out, tq.dtype)?;
    let log = b.un(Unary::Log, &by)?;
    let lse = b.add(&top, &log)?;
    let lse = b.select(&nothing, LEAST, &lse)?;
    let lse = b.reshape(&lse, &rows)?;
    Ok(smallvec![out, lse])
}

/// (dq, dk, dv) from (q, k, v, out, lse, dout).
pub(super) fn attention_grad<B: Build>(
    b: &mut B,
    [q, k, v, out, lse, dout]: [&B::V; 6],
    scale: Operand<B::V>,
    mask: Option<&B::V>,
    causal: bool,
) -> Result<Values<B::V>> {
    let (tq, tk, tv) = (b.ty(q), b.ty(k), b.ty(v));
    let sizes = Sizes::new(&tq.shape, &tk.shape);
    let last = tq.shape.len() - 1;
    if sizes.scores.numel() == 0 {
        return [tq, tk, tv].iter().map(|ty| b.full(ty, 0.0)).collect();
    }
    let (q, k, v) = (widened(b, q)?, widened(b, k)?, widened(b, v)?);
    let (out, dout) = (widened(b, out)?, widened(b, dout)?);
    let s = scores(b, &sizes, [&q, &k], scale.clone(), mask, causal)?;
    let mut column: Shape = tq.shape[..last].into();
    column.push(1);
    let lse = b.reshape(lse, &column)?;
    let nothing = b.bin(Binary::Eq, &lse, LEAST)?;
    let lse = b.select(&nothing, 0.0, &lse)?;
    let less = b.bin(Binary::Sub, &s, &lse)?;
    let p = b.un(Unary::Exp, &less)?;
    let along = b.mul(&dout, &out)?;
    let along = b.reduce(ReduceKind::Sum, &along, &[last], true)?;

    let folded = sizes.fold(b, &dout)?;
    let weights = sizes.fold(b, &p)?;
    let dv = product(b, &weights, &folded, true, false)?;
    let dp = product(b, &folded, &v, false, true)?;
    let dp = sizes.unfold(b, &dp)?;
    let ds = b.bin(Binary::Sub, &dp, &along)?;
    let ds = b.mul(&p, &ds)?;
    let ds = b.bin(Binary::Mul, &ds, scale)?;
    let ds = sizes.fold(b, &ds)?;
    let dq = product(b, &ds, &k, false, false)?;
    let dq = sizes.unfold(b, &dq)?;
    let rows = sizes.fold(b, &q)?;
    let dk = product(b, &ds, &rows, true, false)?;
    let narrow = |b: &mut B, x: &B::V| b.cast(x, tq.dtype);
    Ok(smallvec![narrow(b, &dq)?, narrow(b, &dk)?, narrow(b, &dv)?])
}
