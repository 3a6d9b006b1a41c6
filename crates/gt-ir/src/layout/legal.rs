//! Which layouts every op may run in.

use super::{Layout, Rule};
use crate::elementwise::{Binary, Gives, Unary};
use crate::infer::{ArgTy, view_shape};
use crate::op::{Op, ReduceKind, ScatterMode, View};
use crate::{DType, Shape, Ty};
use Layout::{Partial, Split, Whole};

const SUM: Layout = Partial(ReduceKind::Sum);

/// Collects the rules of one op.
struct Rules<'a> {
    args: &'a [ArgTy<'a>],
    results: usize,
    list: Vec<Rule>,
}

impl Rules<'_> {
    /// Adds a rule from the layouts of the tensor operands, called by position.
    fn add(&mut self, out: Layout, layout: impl Fn(usize, &Ty) -> Layout) {
        self.add_all(vec![out; self.results], layout);
    }

    /// Like `add`, with a layout for every result.
    fn add_all(&mut self, outs: Vec<Layout>, layout: impl Fn(usize, &Ty) -> Layout) {
        let args = self.args.iter().enumerate().map(|(i, arg)| match arg {
            ArgTy::Val(ty) => Some(layout(i, ty)),
            ArgTy::Num => None,
        });
        self.list.push(Rule { args: args.collect(), outs });
    }

    fn is_num(&self, i: usize) -> bool {
        matches!(self.args.get(i), Some(ArgTy::Num))
    }

    /// Every dimension of the result may be split, operands that broadcast along it being whole.
    fn broadcast(&mut self, out: &Shape) {
        for d in 0..out.len() {
            self.add(Split(d), |_, ty| aligned(&ty.shape, out, d));
        }
    }

    /// The first operand and the result in the same partial layout, of every kind; others whole.
    fn moves_partials(&mut self, all: bool) {
        for kind in [ReduceKind::Sum, ReduceKind::Prod, ReduceKind::Max, ReduceKind::Min] {
            self.add(Partial(kind), |i, _| if i == 0 || all { Partial(kind) } else { Whole });
        }
    }
}

/// The layout of an operand that broadcasts to `out`, of which dimension `d` is split.
fn aligned(x: &Shape, out: &Shape, d: usize) -> Layout {
    let lead = out.len() - x.len();
    if d < lead || x[d - lead] != out[d] { Whole } else { Split(d - lead) }
}

/// The layouts in which an op may run on one mesh axis, the all-whole one first. `outs` are the types of its results.
pub fn legal(op: &Op, args: &[ArgTy], outs: &[Ty]) -> Vec<Rule> {
    let mut r = Rules { args, results: outs.len(), list: Vec::new() };
    let Some(out) = outs.first() else { return r.list };
    r.add(Whole, |_, _| Whole);
    let linear = out.dtype != DType::Bool;
    let first = || match args.first() {
        Some(ArgTy::Val(ty)) => Some(*ty),
        _ => None,
    };
    let shape_of = |i: usize| match args.get(i) {
        Some(ArgTy::Val(ty)) => Some(&ty.shape),
        _ => None,
    };
    match op {
        Op::Full { shape, .. } => (0..shape.len()).for_each(|d| r.add(Split(d), |_, _| Whole)),
        // A part of a range, of data or of random numbers is a slice of the whole, which costs no communication.
        Op::Arange { .. } | Op::Random { .. } | Op::Data { .. } => {}
        Op::Unary(unary) => {
            r.broadcast(&out.shape);
            if *unary == Unary::Neg {
                r.add(SUM, |_, _| SUM);
            }
        }
        Op::Binary(binary) => {
            r.broadcast(&out.shape);
            if linear && binary.gives() == Gives::Same {
                binary_partials(&mut r, *binary);
            }
        }
        Op::Where => {
            r.broadcast(&out.shape);
            if linear && !r.is_num(1) && !r.is_num(2) {
                r.add(SUM, |i, _| if i == 0 { Whole } else { SUM });
            }
        }
        Op::Cast(to) => {
            r.broadcast(&out.shape);
            if first().is_some_and(|x| x.dtype.is_float() && x.dtype.promote(*to) == *to) {
                r.add(SUM, |_, _| SUM);
            }
        }
        Op::View(view) => {
            let Some(x) = first() else { return r.list };
            for d in 0..x.shape.len() {
                if let Some(to) = follow(view, d, &x.shape) {
                    r.add(Split(to), |_, _| Split(d));
                }
            }
            r.moves_partials(true);
        }
        Op::Pad { lo, hi } => {
            for d in (0..lo.len()).filter(|&d| lo[d] == 0 && hi[d] == 0) {
                r.add(Split(d), |_, _| Split(d));
            }
        }
        Op::Concat { dim } => {
            for d in (0..out.shape.len()).filter(|d| d != dim) {
                r.add(Split(d), |_, _| Split(d));
            }
            r.moves_partials(true);
        }
        Op::Flip { dims } => {
            for d in (0..out.shape.len()).filter(|d| !dims.contains(d)) {
                r.add(Split(d), |_, _| Split(d));
            }
            r.moves_partials(true);
        }
        Op::Put { path } => {
            let Some(base) = first() else { return r.list };
            for d in 0..base.shape.len() {
                if let Some(to) = follow_path(path, d, &base.shape) {
                    r.add(Split(d), |i, _| Split(if i == 0 { d } else { to }));
                }
            }
            if !r.is_num(1) {
                r.moves_partials(true);
            }
        }
        Op::Reduce { kind, dims, keepdim } => {
            let Some(x) = first() else { return r.list };
            let partial = linear || matches!(kind, ReduceKind::Max | ReduceKind::Min);
            for d in 0..x.shape.len() {
                if !dims.contains(&d) {
                    r.add(Split(kept_dim(d, dims, *keepdim)), |_, _| Split(d));
                } else if partial {
                    r.add(Partial(*kind), |_, _| Split(d));
                }
            }
            if partial {
                r.add(Partial(*kind), |_, _| Partial(*kind));
            }
        }
        Op::ArgReduce { dim, keepdim, .. } => {
            let Some(x) = first() else { return r.list };
            for d in (0..x.shape.len()).filter(|d| d != dim) {
                r.add(Split(kept_dim(d, &[*dim], *keepdim)), |_, _| Split(d));
            }
        }
        Op::Scan { kind, dim } => {
            for d in (0..out.shape.len()).filter(|d| d != dim) {
                r.add(Split(d), |_, _| Split(d));
            }
            if linear && *kind == crate::ScanKind::Sum {
                r.add(SUM, |_, _| SUM);
            }
        }
        Op::Matmul { ta, tb, .. } => matmul_rules(&mut r, *ta, *tb, &out.shape),
        Op::Gather { dim } => {
            let (Some(x), Some(index)) = (shape_of(0), shape_of(1)) else { return r.list };
            for d in 0..x.len() {
                if d == *dim {
                    r.add(Split(d), |i, _| if i == 1 { Split(d) } else { Whole });
                } else if x[d] == index[d] {
                    r.add(Split(d), |_, _| Split(d));
                }
            }
            r.moves_partials(false);
        }
        Op::Scatter { dim, mode } => {
            let (Some(base), Some(index)) = (shape_of(0), shape_of(1)) else { return r.list };
            for d in (0..base.len()).filter(|&d| d != *dim && base[d] == index[d]) {
                r.add(Split(d), |_, _| Split(d));
            }
            if linear && !r.is_num(2) && *mode != ScatterMode::Max {
                r.add(SUM, |i, _| if i == 1 { Whole } else { SUM });
            }
            if linear && !r.is_num(2) && *mode == ScatterMode::Add {
                r.add(SUM, |i, _| if i == 0 { SUM } else { Split(*dim) });
            }
        }
        Op::Take { dim } => {
            let (Some(x), Some(index)) = (shape_of(0), shape_of(1)) else { return r.list };
            for d in (0..x.len()).filter(|d| d != dim) {
                let to = if d < *dim { d } else { d + index.len() - 1 };
                r.add(Split(to), |i, _| if i == 0 { Split(d) } else { Whole });
            }
            for j in 0..index.len() {
                r.add(Split(dim + j), |i, _| if i == 1 { Split(j) } else { Whole });
            }
            r.moves_partials(false);
        }
        Op::TakePut { dim, mode } => {
            let (Some(base), Some(index)) = (shape_of(0), shape_of(1)) else { return r.list };
            for d in (0..base.len()).filter(|d| d != dim) {
                let to = if d < *dim { d } else { d + index.len() - 1 };
                r.add(Split(d), |i, _| [Split(d), Whole, Split(to)][i]);
            }
            if linear && *mode != ScatterMode::Max {
                r.add(SUM, |i, _| [SUM, Whole, SUM][i]);
            }
            if linear && *mode == ScatterMode::Add {
                for j in 0..index.len() {
                    r.add(SUM, |i, _| [SUM, Split(j), Split(dim + j)][i]);
                }
            }
        }
        Op::RmsNorm { dims } | Op::LayerNorm { dims } => {
            for d in 0..out.shape.len().saturating_sub(*dims) {
                r.add(Split(d), |i, _| if i == 0 { Split(d) } else { Whole });
            }
        }
        Op::CrossEntropy => (0..out.shape.len()).for_each(|d| r.add(Split(d), |_, _| Split(d))),
        Op::Attention { causal } => {
            attention_rules(&mut r, 4);
            if let (false, Some(q)) = (*causal, shape_of(0)) {
                // Rows of the query on their own.
                let row = q.len() - 2;
                let scores = scores_shape(args);
                r.add(Split(row), |i, ty| match i {
                    0 => Split(row),
                    4 => aligned(&ty.shape, &scores, row),
                    _ => Whole,
                });
            }
        }
        Op::AttentionGrad { .. } => attention_rules(&mut r, 7),
        // Along another axis, a dimension that does not change size may be split.
        Op::Collective(c) => {
            let rank = args.iter().map(|a| if let ArgTy::Val(x) = a { x.shape.len() } else { 0 }).min();
            let changes = |d: usize| match c.what.layouts() {
                (Split(from), Split(to)) => d == from || d == to,
                (Split(dim), _) | (_, Split(dim)) => d == dim,
                _ => false,
            };
            for d in (0..rank.unwrap_or(0)).filter(|d| !changes(*d)) {
                r.add(Split(d), |_, _| Split(d));
            }
            if linear && !matches!(c.what.layouts().0, Partial(kind) if kind != ReduceKind::Sum) {
                r.add(SUM, |_, _| SUM);
            }
        }
        // Parameters are updated element by element: all of them split along their first dimension.
        Op::Sgd { .. } | Op::Adam { .. } => {
            let first = |ty: &Ty| if ty.shape.is_empty() { Whole } else { Split(0) };
            r.add_all(outs.iter().map(first).collect(), |_, ty| first(ty));
        }
        Op::Sort { dim, .. } | Op::TopK { dim, .. } | Op::Softmax { dim } | Op::LogSoftmax { dim } => {
            for d in (0..out.shape.len()).filter(|d| d != dim) {
                r.add(Split(d), |_, _| Split(d));
            }
        }
    }
    r.list
}

/// The shape of an attention's scores.
fn scores_shape(args: &[ArgTy]) -> Shape {
    match args {
        [ArgTy::Val(q), ArgTy::Val(k), ..] => {
            let rank = q.shape.len();
            q.shape[..rank - 1].iter().copied().chain([k.shape[rank - 2]]).collect()
        }
        _ => Shape::scalar(),
    }
}

/// Batches on their own, and heads where every query head has a key head of its own. `mask` is where the mask is.
fn attention_rules(r: &mut Rules, mask: usize) {
    let [ArgTy::Val(q), ArgTy::Val(k), ..] = r.args else { return };
    let (rank, scores) = (q.shape.len(), scores_shape(r.args));
    let same_heads = q.shape[rank - 3] == k.shape[rank - 3];
    for d in 0..rank - 3 + same_heads as usize {
        r.add(Split(d), |i, ty| if i == mask { aligned(&ty.shape, &scores, d) } else { Split(d) });
    }
}

/// The way to split an attention along its heads where several query heads share a key head, and the number of key
/// heads: it is legal where that is divided evenly.
pub fn by_key_heads(op: &Op, args: &[ArgTy], outs: &[Ty]) -> Option<(Rule, usize)> {
    let mask = match op {
        Op::Attention { .. } => 4,
        Op::AttentionGrad { .. } => 7,
        _ => return None,
    };
    let [ArgTy::Val(q), ArgTy::Val(k), ..] = args else { return None };
    let d = q.shape.len() - 3;
    let scores = scores_shape(args);
    let mut r = Rules { args, results: outs.len(), list: Vec::new() };
    r.add(Split(d), |i, ty| if i == mask { aligned(&ty.shape, &scores, d) } else { Split(d) });
    r.list.pop().map(|rule| (rule, k.shape[d]))
}

/// Dimensions of `x` and of what it is reshaped to that begin at the same stride and differ in size, as when a batch and
/// its rows become one: a split passes from one to the other where both are divided evenly.
pub fn by_blocks(to: &Shape, x: &Shape) -> Vec<(usize, usize)> {
    let before = |shape: &Shape, d: usize| shape[..d].iter().product::<usize>();
    let pairs = (0..x.len()).flat_map(|d| (0..to.len()).map(move |e| (d, e)));
    let meets = |&(d, e): &(usize, usize)| {
        x[d] > 1 && to[e] > 1 && x[d] != to[e] && before(x, d) == before(to, e) && x.numel() > 0
    };
    pairs.filter(meets).collect()
}

/// Which elementwise ops of two operands are linear in one of them or both.
fn binary_partials(r: &mut Rules, op: Binary) {
    let (left_num, right_num) = (r.is_num(0), r.is_num(1));
    match op {
        Binary::Add | Binary::Sub => {
            if !left_num && !right_num {
                r.add(SUM, |_, _| SUM);
            }
        }
        Binary::Mul => {
            if !left_num {
                r.add(SUM, |i, _| if i == 0 { SUM } else { Whole });
            }
            if !right_num {
                r.add(SUM, |i, _| if i == 1 { SUM } else { Whole });
            }
        }
        Binary::Div => {
            if !left_num {
                r.add(SUM, |i, _| if i == 0 { SUM } else { Whole });
            }
        }
        Binary::Max | Binary::Min => {
            let kind = if op == Binary::Max { ReduceKind::Max } else { ReduceKind::Min };
            r.add(Partial(kind), |_, _| Partial(kind));
        }
        Binary::FloorDiv
        | Binary::Rem
        | Binary::Pow
        | Binary::And
        | Binary::Or
        | Binary::Xor
        | Binary::Atan2 => {}
        Binary::Eq | Binary::Ne | Binary::Lt | Binary::Le | Binary::Gt | Binary::Ge => {}
    }
}

fn matmul_rules(r: &mut Rules, ta: bool, tb: bool, out: &Shape) {
    let rank = out.len();
    let batch = rank - 2;
    for d in 0..batch {
        r.add(Split(d), |_, ty| aligned(&ty.shape, out, d));
    }
    let of_matrix = |ty: &Ty, row: bool| Split(ty.shape.len() - if row { 2 } else { 1 });
    r.add(Split(batch), |i, ty| match i {
        0 => of_matrix(ty, !ta),
        1 => Whole,
        _ => aligned(&ty.shape, out, batch),
    });
    r.add(Split(batch + 1), |i, ty| match i {
        0 => Whole,
        1 => of_matrix(ty, tb),
        _ => aligned(&ty.shape, out, batch + 1),
    });
    r.add(SUM, |i, ty| match i {
        0 => of_matrix(ty, ta),
        1 => of_matrix(ty, !tb),
        _ => SUM,
    });
    r.add(SUM, |i, _| if i == 1 { Whole } else { SUM });
    r.add(SUM, |i, _| if i == 0 { Whole } else { SUM });
}

/// Where a dimension that is not reduced stands in the result.
fn kept_dim(d: usize, dims: &[usize], keepdim: bool) -> usize {
    if keepdim { d } else { d - dims.iter().filter(|&&e| e < d).count() }
}

/// The dimension of the view that shows dimension `d` of `x` element for element, so that a split passes through.
pub(super) fn follow(view: &View, d: usize, x: &Shape) -> Option<usize> {
    match view {
        View::Reshape(to) => {
            if x.numel() == 0 {
                let same = d < to.len() && x[..=d] == to[..=d] && tail(x, d) == tail(to, d);
                return same.then_some(d);
            }
            let before: usize = x[..d].iter().product();
            (0..to.len()).find(|&e| to[e] == x[d] && to[..e].iter().product::<usize>() == before)
        }
        View::Permute(perm) => perm.iter().position(|&p| p == d),
        View::Expand(to) => {
            let e = d + to.len() - x.len();
            (to[e] == x[d]).then_some(e)
        }
        View::Slice { dim, .. } => (d != *dim).then_some(d),
    }
}

fn tail(shape: &Shape, d: usize) -> usize {
    shape[d + 1..].iter().product()
}

fn follow_path(path: &[View], d: usize, x: &Shape) -> Option<usize> {
    let (mut d, mut shape) = (d, x.clone());
    for view in path {
        d = follow(view, d, &shape)?;
        shape = view_shape("PUT", view, &shape).ok()?;
    }
    Some(d)
}
