//! An attention in the terms of a library: sizes, and for each operand where it starts and the distances of its batches,
//! heads and rows.

use super::{LITTLE, Problem};
use crate::matmul::Origin;
use gt_compiler::{Map, Num, Plan, Strides, Work};
use gt_ir::DType;

/// An operand or a result: `[batch, heads, rows, width]`, of which the last lies together.
#[derive(Clone, Debug)]
pub struct Side {
    pub origin: Origin,
    /// Of batches, heads and rows, in elements; where there is one of something, as if more followed.
    pub strides: [usize; 3],
}

/// An attention of half types without a mask, whose batches advance evenly in every operand.
#[derive(Clone, Debug)]
pub struct Form {
    pub dtype: DType,
    pub causal: bool,
    pub scale: Num,
    /// Kernels of ours take it by Hopper's own products.
    pub grouped: bool,
    pub batches: usize,
    pub heads: usize,
    pub key_heads: usize,
    pub rows: usize,
    pub cols: usize,
    /// Widths of keys and of values.
    pub d: usize,
    pub e: usize,
    pub q: Side,
    pub k: Side,
    pub v: Side,
    pub out: Side,
    /// One number for each row, dense.
    pub lse: Origin,
    /// Of a gradient: dout, dq, dk, dv.
    pub grad: Option<[Side; 4]>,
}

impl Form {
    /// The form of an attention step, `None` for other steps, for what no library takes, and for so little work that the
    /// simple kernels do.
    pub fn new(work: &Work, plan: &Plan) -> Option<Form> {
        let problem = match work {
            Work::Attention(a) => Problem::forward(a, plan),
            Work::AttentionGrad(a) => Problem::backward(a, plan),
            _ => return None,
        };
        Problem { target: super::target(), ..problem }.form(plan)
    }
}

impl Problem<'_> {
    fn form(&self, plan: &Plan) -> Option<Form> {
        let scores = self.total() * self.heads * self.rows * self.cols;
        let taken = self.is_half() && self.tensors[super::MASK].is_none() && self.calls.len() == 1;
        if !taken || !self.aligned || scores * (self.d + self.e) < LITTLE || self.d.min(self.e) == 0 {
            return None;
        }
        let (rows, cols) = ([self.heads, self.rows], [self.key_heads, self.cols]);
        let [q, k, v] = [(0, rows, self.d), (1, cols, self.d), (2, cols, self.e)]
            .map(|(i, sizes, width)| self.operand(i, sizes, width));
        let result = |i: usize, sizes, width| self.result(i, sizes, width, plan);
        let (out, lse, grad) = match self.tensors[super::LSE] {
            None => (result(0, rows, self.e)?, at(self.to[1].storage, 0), None),
            Some(lse) => {
                let dense = lse.map.strides == Map::dense(&lse.shape).strides;
                let origin = Origin::Storage { storage: lse.storage, start: start(&lse.map) };
                if !dense {
                    return None;
                }
                let grad = [
                    self.operand(4, rows, self.e)?,
                    result(0, rows, self.d)?,
                    result(1, cols, self.d)?,
                    result(2, cols, self.e)?,
                ];
                (self.operand(3, rows, self.e)?, origin, Some(grad))
            }
        };
        Some(Form {
            dtype: self.dtype,
            causal: self.causal,
            scale: self.scale,
            grouped: self.grouped(),
            batches: self.batches,
            heads: self.heads,
            key_heads: self.key_heads,
            rows: self.rows,
            cols: self.cols,
            d: self.d,
            e: self.e,
            q: q?,
            k: k?,
            v: v?,
            out,
            lse,
            grad,
        })
    }

    /// An operand, where its rows lie together and nothing is seen twice.
    fn operand(&self, i: usize, sizes: [usize; 2], width: usize) -> Option<Side> {
        let t = self.tensors[i]?;
        let rank = t.shape.len();
        let strides = [self.batch_strides[i], t.map.strides[rank - 3], t.map.strides[rank - 2]];
        let together = width == 1 || t.map.strides[rank - 1] == 1;
        let strides = self.strides(strides, sizes, width).filter(|_| together)?;
        Some(Side { origin: Origin::Storage { storage: t.storage, start: start(&t.map) }, strides })
    }

    fn result(&self, i: usize, sizes: [usize; 2], width: usize, plan: &Plan) -> Option<Side> {
        let to = &self.to[i];
        let strides = self.strides(to.strides, sizes, width)?;
        let even = |n: usize| (n * self.dtype.size()).is_multiple_of(16);
        let fine = to.is_aligned(self.dtype.size(), plan) && strides.iter().all(|n| even(*n));
        fine.then(|| Side { origin: at(to.storage, to.start), strides })
    }

    /// Distances of batches, heads and rows; `None` where something is seen twice or backwards.
    fn strides(&self, strides: [isize; 3], [heads, rows]: [usize; 2], width: usize) -> Option<[usize; 3]> {
        let counts = [self.batches, heads, rows];
        let mut out = [0; 3];
        for (i, count) in counts.into_iter().enumerate() {
            out[i] = usize::try_from(strides[i]).ok().filter(|n| *n > 0 || count < 2)?;
        }
        // Where there is one of something its distance means nothing, but libraries look at it.
        let all = (0..3).filter(|i| counts[*i] > 1).map(|i| out[i] * counts[i]).max().unwrap_or(width);
        for (i, count) in counts.into_iter().enumerate().filter(|(_, count)| *count < 2) {
            out[i] = all * count.max(1);
        }
        Some(out)
    }
}

fn start(map: &Map) -> Map {
    Map { strides: Strides::new(), offset: map.offset, slots: map.slots.clone() }
}

/// An element of a storage.
fn at(storage: u32, element: usize) -> Origin {
    let start = Map { strides: Strides::new(), offset: element as isize, slots: Default::default() };
    Origin::Storage { storage, start }
}
