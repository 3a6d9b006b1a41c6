//! Attention and its gradient as graphs of cuDNN's operations, in the shape its flash kernels know.

use super::graph::{Lay, Ops, Pointwise, Reduce, Tensor, Type};
use gt_ir::Result;

/// Ids of the tensors that are given when a graph runs.
pub mod id {
    pub const Q: i64 = 1;
    pub const K: i64 = 2;
    pub const V: i64 = 3;
    pub const OUT: i64 = 4;
    pub const LSE: i64 = 5;
    pub const DOUT: i64 = 6;
    pub const DQ: i64 = 7;
    pub const DK: i64 = 8;
    pub const DV: i64 = 9;
    /// Numbers of the host's.
    pub const SCALE: i64 = 10;
    pub const LEAST: i64 = 11;
    pub const ONE: i64 = 12;
    /// Memory beside the operands: `rows(dout * out)`, and sums of `dq` in f32.
    pub const DELTA: i64 = 13;
    pub const DQ_SUMS: i64 = 14;
}

/// The sizes of an attention and how its operands lie: `[batch, heads, rows or columns, width]`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Sdpa {
    pub of: Type,
    pub causal: bool,
    pub q: Lay,
    pub k: Lay,
    pub v: Lay,
    pub out: Lay,
    /// Of a gradient: dout, dq, dk, dv.
    pub grad: Option<[Lay; 4]>,
}

/// How a gradient adds up `dq`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Sums {
    /// By one product over all scores, which the library keeps: the same bits in every run, memory for all scores.
    Kept,
    /// In f32 beside it, in the order in which blocks come along, or in a fixed one where the engine has that.
    Added,
}

impl Sdpa {
    fn sizes(&self) -> [i64; 6] {
        let ([b, h, rows, d], [_, _, cols, e]) = (self.q.dims, self.v.dims);
        [b, h, rows, cols, d, e]
    }

    fn scores(&self) -> Lay {
        let [b, h, rows, cols, ..] = self.sizes();
        Lay::dense([b, h, rows, cols])
    }

    /// One number for each row.
    pub fn per_row(&self) -> Lay {
        let [b, h, rows, ..] = self.sizes();
        Lay::dense([b, h, rows, 1])
    }

    /// Scores of columns after their row are the least there is.
    fn mask(&self, ops: &mut Ops, x: Tensor) -> Result<Tensor> {
        if !self.causal {
            return Ok(x);
        }
        let all = self.scores();
        let (row, column) = (ops.between(Type::I32, all)?, ops.between(Type::I32, all)?);
        ops.pointwise_along(Pointwise::Index, &[&x], &row, Type::F32, Some(2))?;
        ops.pointwise_along(Pointwise::Index, &[&x], &column, Type::F32, Some(3))?;
        let seen = ops.between(Type::Bool, all)?;
        ops.pointwise_along(Pointwise::GreaterEqual, &[&row, &column], &seen, Type::Bool, None)?;
        let (least, y) = (ops.number(id::LEAST)?, ops.between(Type::F32, all)?);
        ops.pointwise(Pointwise::Select, &[&x, &least, &seen], &y)?;
        Ok(y)
    }

    /// `out` and the log-sum-exp of each row.
    pub fn forward(&self) -> Result<Ops> {
        let mut ops = Ops::default();
        let ops = &mut ops;
        let (all, one) = (self.scores(), self.per_row());
        let q = ops.given(id::Q, self.of, self.q)?;
        let k = ops.given(id::K, self.of, self.k.turned())?;
        let v = ops.given(id::V, self.of, self.v)?;
        let scale = ops.number(id::SCALE)?;
        let (product, scaled) = (ops.between(Type::F32, all)?, ops.between(Type::F32, all)?);
        ops.matmul(&q, &k, &product)?;
        ops.pointwise(Pointwise::Mul, &[&product, &scale], &scaled)?;
        let s = self.mask(ops, scaled)?;

        let (top, less) = (ops.between(Type::F32, one)?, ops.between(Type::F32, all)?);
        ops.reduce(Reduce::Max, &s, &top)?;
        ops.pointwise(Pointwise::Sub, &[&s, &top], &less)?;
        let (e, total) = (ops.between(Type::F32, all)?, ops.between(Type::F32, one)?);
        ops.pointwise(Pointwise::Exp, &[&less], &e)?;
        ops.reduce(Reduce::Add, &e, &total)?;
        let (log, lse) = (ops.between(Type::F32, one)?, ops.given(id::LSE, Type::F32, one)?);
        ops.pointwise(Pointwise::Log, &[&total], &log)?;
        ops.pointwise(Pointwise::Add, &[&top, &log], &lse)?;
        let p = ops.between(self.of, all)?;
        ops.pointwise(Pointwise::Div, &[&e, &total], &p)?;
        let out = ops.given(id::OUT, self.of, self.out)?;
        ops.matmul(&p, &v, &out)?;
        Ok(std::mem::take(ops))
    }

    /// `dq`, `dk` and `dv`; `grad` has to be there.
    pub fn backward(&self, sums: Sums) -> Result<Ops> {
        let mut ops = Ops::default();
        let ops = &mut ops;
        let Some([dout, dq, dk, dv]) = self.grad else { return Ok(std::mem::take(ops)) };
        let [b, h, rows, cols, d, e] = self.sizes();
        let (all, one) = (self.scores(), self.per_row());
        let q = ops.given(id::Q, self.of, self.q)?;
        let k = ops.given(id::K, self.of, self.k.turned())?;
        let v = ops.given(id::V, self.of, self.v.turned())?;
        let out = ops.given(id::OUT, self.of, self.out)?;
        let dout = ops.given(id::DOUT, self.of, dout)?;
        let lse = ops.given(id::LSE, Type::F32, one)?;
        let scale = ops.number(id::SCALE)?;

        // Each row of dout along out.
        let along = Lay { dims: [b, h, rows, e], strides: [h * rows * e, rows * e, h * e, 1] };
        let (along, sum) = (ops.between(Type::F32, along)?, ops.between(Type::F32, one)?);
        ops.pointwise(Pointwise::Mul, &[&dout, &out], &along)?;
        ops.reduce(Reduce::Add, &along, &sum)?;
        let (unit, delta) = (ops.number(id::ONE)?, ops.given(id::DELTA, Type::F32, one)?);
        ops.pointwise(Pointwise::Mul, &[&sum, &unit], &delta)?;

        // The weights again, and dv.
        let [product, scaled, less, p] = [
            ops.between(Type::F32, all)?,
            ops.between(Type::F32, all)?,
            ops.between(Type::F32, all)?,
            ops.between(Type::F32, all)?,
        ];
        ops.matmul(&q, &k, &product)?;
        ops.pointwise(Pointwise::Mul, &[&product, &scale], &scaled)?;
        ops.pointwise(Pointwise::Sub, &[&scaled, &lse], &less)?;
        let less = self.mask(ops, less)?;
        ops.pointwise(Pointwise::Exp, &[&less], &p)?;
        let across = ops.between(self.of, all.turned())?;
        ops.reshape(&p, &across)?;
        self.shared(ops, [&across, &dout], id::DV, dv, [b, h, cols, e])?;

        // The gradient of the scores, and dk.
        let [dp, ds, weighed, gradient] = [
            ops.between(Type::F32, all)?,
            ops.between(Type::F32, all)?,
            ops.between(Type::F32, all)?,
            ops.between(Type::F32, all)?,
        ];
        ops.matmul(&dout, &v, &dp)?;
        ops.pointwise(Pointwise::Sub, &[&dp, &delta], &ds)?;
        ops.pointwise(Pointwise::Mul, &[&ds, &p], &weighed)?;
        ops.pointwise(Pointwise::Mul, &[&weighed, &scale], &gradient)?;
        let across = ops.between(self.of, all.turned())?;
        ops.reshape(&gradient, &across)?;
        self.shared(ops, [&across, &q], id::DK, dk, [b, h, cols, d])?;

        let keys = ops.between(Type::F32, self.k)?;
        ops.reshape(&k, &keys)?;
        let dq = ops.given(id::DQ, self.of, dq)?;
        match sums {
            Sums::Kept => ops.matmul(&gradient, &keys, &dq)?,
            Sums::Added => {
                let added = ops.given(id::DQ_SUMS, Type::F32, Lay::dense([b, h, rows, d]))?;
                ops.matmul(&gradient, &keys, &added)?;
                ops.pointwise(Pointwise::Identity, &[&added], &dq)?;
            }
        }
        Ok(std::mem::take(ops))
    }

    /// A product whose heads are added where several of them share a key head.
    fn shared(&self, ops: &mut Ops, [a, b]: [&Tensor; 2], id: i64, lay: Lay, full: [i64; 4]) -> Result<()> {
        let y = ops.given(id, self.of, lay)?;
        if lay.dims[1] == full[1] {
            return ops.matmul(a, b, &y);
        }
        let each = ops.between(self.of, Lay::dense(full))?;
        ops.matmul(a, b, &each)?;
        ops.reduce(Reduce::Add, &each, &y)
    }
}
