//! The instructions of the language.

use crate::collective::Collective;
use crate::elementwise::{Binary, Unary};
use crate::{DType, Ints, Shape};
use serde::{Deserialize, Serialize};

/// Views: other ways to look at the same elements. A slice's start is an operand (a slot), never structure.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum View {
    /// The same elements in row-major order, in another shape.
    Reshape(Shape),
    /// Dimension i of the result is dimension `perm[i]` of the operand.
    Permute(Ints),
    /// Broadcasts to a larger shape.
    Expand(Shape),
    /// `len` elements along `dim`, `step` apart, from a start given as operand.
    Slice { dim: usize, len: usize, step: usize },
}

impl View {
    /// True if the view takes a start operand.
    pub fn has_start(&self) -> bool {
        matches!(self, View::Slice { .. })
    }
}

/// Distributions of the random op. Every element is a function of (key, offset, its index) alone (C7).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Dist {
    /// Uniform in [0, 1).
    Uniform,
    /// Standard normal.
    Normal,
    /// Uniform integers in [low, high).
    Int { low: i64, high: i64 },
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum ReduceKind {
    Sum,
    Prod,
    Max,
    Min,
}

impl ReduceKind {
    /// The name in the text form.
    pub fn text(self) -> &'static str {
        match self {
            ReduceKind::Sum => "SUM",
            ReduceKind::Prod => "PROD",
            ReduceKind::Max => "AMAX",
            ReduceKind::Min => "AMIN",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum ArgKind {
    Max,
    Min,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum ScanKind {
    Sum,
    Prod,
}

/// What a scatter does with an element that is there already.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum ScatterMode {
    /// Overwrites; of several writers the last in row-major order of the source wins.
    Set,
    /// Adds, in row-major order of the source.
    Add,
    /// Keeps the larger.
    Max,
}

/// One instruction without its operands. The comment of each variant lists its operands; `n:` marks a number.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Op {
    /// (n: value). A tensor filled with one number.
    Full { shape: Shape, dtype: DType },
    /// (n: start, n: step). start + i * step.
    Arange { len: usize, dtype: DType },
    /// (n: key, n: offset), both slots. Random numbers.
    Random { dist: Dist, shape: Shape, dtype: DType },
    /// (n: bytes), a slot. Small data that travels inside the program.
    Data { shape: Shape, dtype: DType },

    /// (x).
    Unary(Unary),
    /// (a, b), either may be a number, not both.
    Binary(Binary),
    /// (cond, a, b), a and b may be numbers, not both unless `Full` would do.
    Where,
    /// (x). Converts elements; float to int truncates, to bool asks for non-zero.
    Cast(DType),

    /// (x, n: start if a slice).
    View(View),
    /// (x, n: fill). Adds `lo[d]` elements before and `hi[d]` after in every dimension.
    Pad { lo: Ints, hi: Ints },
    /// (x, ...). Joins along an existing dimension.
    Concat { dim: usize },
    /// (x). Reverses the order along `dims`.
    Flip { dims: Ints },
    /// (base, value or number, n: start of each slice of the path). `base` with the elements that `path` shows
    /// replaced by `value`, whose shape is that of the view.
    Put { path: Vec<View> },

    /// (x).
    Reduce { kind: ReduceKind, dims: Ints, keepdim: bool },
    /// (x). Index of the extreme along one dimension, the lowest of equals; NaN counts as extreme.
    ArgReduce { kind: ArgKind, dim: usize, keepdim: bool },
    /// (x). Running sum or product along one dimension.
    Scan { kind: ScanKind, dim: usize },

    /// (a, b) or (a, b, bias). Matrix product of the last two dimensions; leading ones broadcast. `ta`/`tb` say that
    /// the operand is stored transposed. Rounds once, bias included. `tf32` lets a device with TF32 take `f32` operands
    /// with 10 bits of mantissa, for speed; it says nothing for other types.
    Matmul { ta: bool, tb: bool, tf32: bool },

    /// (x, index). PyTorch's `gather`: ranks agree, the result has the index's shape.
    Gather { dim: usize },
    /// (base, index, src or number). PyTorch's `scatter` family: `index` and `src` have one shape.
    Scatter { dim: usize, mode: ScatterMode },
    /// (x, index). Whole slices along `dim`; the index's shape replaces that dimension. Negative indices count from the end.
    Take { dim: usize },
    /// (base, index, src). Writes what `Take` with the same index would read.
    TakePut { dim: usize, mode: ScatterMode },
    /// (x) -> (values, indices). Stable along one dimension; NaN counts as the largest.
    Sort { dim: usize, descending: bool },
    /// (x) -> (values, indices). The first `k` of what `Sort` gives, descending if `largest`.
    TopK { dim: usize, k: usize, largest: bool },

    /// (x). Composite; rounds once.
    Softmax { dim: usize },
    /// (x). Composite; rounds once.
    LogSoftmax { dim: usize },
    /// (x, n: eps) or (x, n: eps, weight). Composite over the last `dims` dimensions.
    RmsNorm { dims: usize },
    /// (x, n: eps), perhaps with a weight, perhaps with a bias after it. Composite over the last `dims` dimensions.
    LayerNorm { dims: usize },
    /// (logits of [.., classes], target of [..], n: ignored) -> (loss, log-sum-exp) of every row. Composite; a target
    /// that is no class and not `ignored` fails as an index does. The log-sum-exp is wide (`f32` for halves).
    CrossEntropy,
    /// (q of [.., heads, rows, d], k of [.., key heads, columns, d], v of [.., key heads, columns, e], n: scale), perhaps
    /// with a mask that broadcasts to [.., heads, rows, columns]: a bool that is true where a column is seen, or what is
    /// added to the scores (of q's type or wide) -> (out, log-sum-exp of the scores, wide). Composite. `causal`: row i sees columns up to i.
    Attention { causal: bool },
    /// (q, k, v, out, log-sum-exp, gradient of out, n: scale), perhaps with the mask -> (dq, dk, dv). Composite.
    AttentionGrad { causal: bool },
    /// (n: rate, n: momentum, n: 1 - dampening, n: decay), then per parameter (p, g) and its speed where it has
    /// `momentum` and is not the `first` step -> per parameter p and, with `momentum`, its speed. Composite.
    Sgd { momentum: bool, first: bool, dampened: bool, nesterov: bool, maximize: bool, decay: bool },
    /// (n: rate / first correction, n: decay (`decoupled`: 1 - rate * decay), n: eps, n: root of the second correction,
    /// n: 1 - beta1, n: beta2, n: 1 - beta2), then per parameter (p, g, mean, square) and the largest square where
    /// `amsgrad` -> per parameter p and its states. Composite.
    Adam { decoupled: bool, amsgrad: bool, maximize: bool, decay: bool },

    /// (x, ...) -> one result per operand. What the parts of a mesh axis do together; only the dispatcher writes these.
    Collective(Collective),
}

/// More tiles than this and their starts are slots.
const MAX_TILES: usize = 4;

/// How many numbers come before the tensors of an SGD step.
pub const SGD_NUMBERS: usize = 4;
/// How many numbers come before the tensors of an Adam step.
pub const ADAM_NUMBERS: usize = 7;

impl Op {
    /// The name in the text form.
    pub fn text(&self) -> &'static str {
        match self {
            Op::Full { .. } => "FULL",
            Op::Arange { .. } => "ARANGE",
            Op::Random { dist: Dist::Uniform, .. } => "RAND",
            Op::Random { dist: Dist::Normal, .. } => "RANDN",
            Op::Random { dist: Dist::Int { .. }, .. } => "RANDINT",
            Op::Data { .. } => "DATA",
            Op::Unary(op) => op.text(),
            Op::Binary(op) => op.text(),
            Op::Where => "WHERE",
            Op::Cast(_) => "CAST",
            Op::View(View::Reshape(_)) => "RESHAPE",
            Op::View(View::Permute(_)) => "PERMUTE",
            Op::View(View::Expand(_)) => "EXPAND",
            Op::View(View::Slice { .. }) => "SLICE",
            Op::Pad { .. } => "PAD",
            Op::Concat { .. } => "CONCAT",
            Op::Flip { .. } => "FLIP",
            Op::Put { .. } => "PUT",
            Op::Reduce { kind, .. } => kind.text(),
            Op::ArgReduce { kind: ArgKind::Max, .. } => "ARGMAX",
            Op::ArgReduce { kind: ArgKind::Min, .. } => "ARGMIN",
            Op::Scan { kind: ScanKind::Sum, .. } => "CUMSUM",
            Op::Scan { kind: ScanKind::Prod, .. } => "CUMPROD",
            Op::Matmul { .. } => "MATMUL",
            Op::Gather { .. } => "GATHER",
            Op::Scatter { .. } => "SCATTER",
            Op::Take { .. } => "TAKE",
            Op::TakePut { .. } => "TAKEPUT",
            Op::Sort { .. } => "SORT",
            Op::TopK { .. } => "TOPK",
            Op::Softmax { .. } => "SOFTMAX",
            Op::LogSoftmax { .. } => "LOGSOFTMAX",
            Op::RmsNorm { .. } => "RMSNORM",
            Op::LayerNorm { .. } => "LAYERNORM",
            Op::CrossEntropy => "CROSSENTROPY",
            Op::Attention { .. } => "ATTENTION",
            Op::AttentionGrad { .. } => "ATTENTIONGRAD",
            Op::Sgd { .. } => "SGD",
            Op::Adam { .. } => "ADAM",
            Op::Collective(c) => c.what.text(),
        }
    }

    /// How many results an instruction of this op with `args` operands has. Its values are numbered in a row.
    #[inline]
    pub fn results(&self, args: usize) -> usize {
        match self {
            Op::Sort { .. } | Op::TopK { .. } | Op::CrossEntropy | Op::Attention { .. } => 2,
            Op::AttentionGrad { .. } => 3,
            Op::Collective(_) => args,
            Op::Sgd { momentum, .. } => {
                args.saturating_sub(SGD_NUMBERS) / self.group() * (1 + *momentum as usize)
            }
            Op::Adam { amsgrad, .. } => {
                args.saturating_sub(ADAM_NUMBERS) / self.group() * (3 + *amsgrad as usize)
            }
            _ => 1,
        }
    }

    /// How many tensors an optimizer step takes per parameter; 1 for other ops.
    pub fn group(&self) -> usize {
        match self {
            Op::Sgd { momentum, first, .. } => 2 + (*momentum && !*first) as usize,
            Op::Adam { amsgrad, .. } => 4 + *amsgrad as usize,
            _ => 1,
        }
    }

    /// True if operand `i`, a number, is a slot from the start (C4): its value never enters the plan key.
    pub fn slot_arg(&self, i: usize) -> bool {
        matches!(self, Op::Random { .. } | Op::Data { .. }) || self.start_arg(i)
    }

    /// True if operand `i` is where a slice starts: a slot, or structure where `is_tile` says so.
    pub fn start_arg(&self, i: usize) -> bool {
        match self {
            Op::View(View::Slice { .. }) => i == 1,
            Op::Put { .. } => i >= 2,
            _ => false,
        }
    }

    /// True if a slice of an operand of `shape`, or a put into it, that starts at `start` is one of few tiles of the
    /// last dimension: the halves of rotary embeddings and gates, the parts of a fused projection. Such a start is
    /// structure, so that the compiler sees which elements it shows.
    pub fn is_tile(&self, shape: &Shape, start: i64) -> bool {
        let view = match self {
            Op::View(view) => view,
            Op::Put { path } if path.len() == 1 => &path[0],
            _ => return false,
        };
        let View::Slice { dim, len, step: 1 } = view else { return false };
        let (Some(&size), Ok(start)) = (shape.last(), usize::try_from(start)) else { return false };
        let tiles = *len > 1 && size % len == 0 && size / len <= MAX_TILES;
        dim + 1 == shape.len() && tiles && start % len == 0 && start < size
    }

    /// True if a number as operand `i` may become a slot when it comes back changed (C4). Exponents and fills
    /// stay structure.
    pub fn may_become_slot(&self, i: usize) -> bool {
        match self {
            Op::Binary(Binary::Pow) => i == 0,
            Op::Binary(_) | Op::Where => true,
            Op::Scatter { .. } | Op::Put { .. } => true,
            Op::View(View::Slice { .. }) => i == 1,
            Op::Attention { .. } | Op::AttentionGrad { .. } | Op::Sgd { .. } | Op::Adam { .. } => true,
            _ => false,
        }
    }

    /// True if the op only rearranges elements of its first operand.
    pub fn is_view(&self) -> bool {
        matches!(self, Op::View(_))
    }
}
