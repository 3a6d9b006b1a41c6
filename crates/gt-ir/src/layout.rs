//! How a tensor lies on the axes of a mesh of workers, and which layouts every op may run in (C8).
//!
//! A rule says: with its operands in these layouts, the op run by every part of one axis on what it holds gives the
//! result in that layout, with nothing moved. What the parts of one axis run is an op again, which may be divided along
//! the next axis by any rule that is legal for the whole; `localize` says what exactly one worker runs.

mod legal;

pub use legal::{by_blocks, by_key_heads, legal};

use crate::infer::{ArgTy, view_shape};
use crate::op::{Op, ReduceKind, View};
use crate::{DType, Result, Scalar, Shape, bail};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::ops::Range;

/// How a tensor lies on one mesh axis.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Layout {
    /// Every part holds all of it.
    Whole,
    /// Part i holds the `part_range` of this dimension; parts may be uneven or empty.
    Split(usize),
    /// The tensor is the elementwise sum, product, maximum or minimum of what the parts hold.
    Partial(ReduceKind),
}

/// How a tensor lies on a mesh, axis by axis. Where several axes split one dimension, the first of them does so first,
/// and the next splits what each of its parts holds.
pub type Layouts = SmallVec<[Layout; 2]>;

/// One legal way to run an op.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// One layout per operand; `None` for numbers, which every part has.
    pub args: Vec<Option<Layout>>,
    /// One layout per result.
    pub outs: Vec<Layout>,
}

/// One part of a mesh axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    pub index: usize,
    pub parts: usize,
    pub grains: Grains,
}

impl Part {
    pub fn new(index: usize, parts: usize) -> Part {
        Part { index, parts, grains: Grains::default() }
    }

    /// What this part holds of `n` elements, or grains.
    pub fn range(self, n: usize) -> Range<usize> {
        part_range(n, self.parts, self.index)
    }
}

/// Sizes of dimensions that one program splits in grains of several elements, so that no grain is torn: where a batch of
/// 7 and its 23 rows became one dimension of 161, grains of 23 lie as the batch does. Live-ins and live-outs have none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Grains([(u32, u32); 6]);

impl Grains {
    /// How many elements of a dimension of size `n` stay together.
    pub fn of(self, n: usize) -> usize {
        let known = self.0.iter().find(|(size, _)| *size as usize == n && *size > 0);
        known.map_or(1, |(_, grain)| *grain as usize)
    }

    /// Has dimensions of size `n` split in grains that are a multiple of those they had. False if that cannot be.
    pub fn set(&mut self, n: usize, grain: usize) -> bool {
        let (Ok(size), Ok(unit)) = (u32::try_from(n), u32::try_from(grain)) else { return false };
        let fits = n > 0 && grain > 0 && n.is_multiple_of(grain) && grain.is_multiple_of(self.of(n));
        let at =
            self.0.iter().position(|(s, _)| *s == size).or_else(|| self.0.iter().position(|(s, _)| *s == 0));
        match at.filter(|_| fits) {
            Some(at) => self.0[at] = (size, unit),
            None => return false,
        }
        true
    }
}

/// What part `i` of `parts` holds of a dimension of size `n`. Sizes differ by at most one, larger ones first; with fewer
/// elements than parts the last parts are empty.
pub fn part_range(n: usize, parts: usize, i: usize) -> Range<usize> {
    let (size, extra) = (n / parts, n % parts);
    let start = |i: usize| i * size + i.min(extra);
    start(i)..start(i + 1)
}

/// The place of a worker in a mesh of this shape, of which the last axis runs fastest.
pub fn place(shape: &[usize], rank: usize) -> Vec<Part> {
    let mut rest = rank;
    let mut place: Vec<Part> = shape
        .iter()
        .rev()
        .map(|&parts| {
            let index = rest % parts;
            rest /= parts;
            Part::new(index, parts)
        })
        .collect();
    place.reverse();
    place
}

/// What the worker at this place holds of dimension `dim`, of size `n`.
pub fn range_at(n: usize, dim: usize, layouts: &[Layout], place: &[Part]) -> Range<usize> {
    let splits = || layouts.iter().zip(place).filter(|(layout, _)| **layout == Split(dim));
    let grain = splits().next().map_or(1, |(_, part)| part.grains.of(n));
    let held = splits().fold(0..n / grain, |held, (_, part)| {
        let inner = part.range(held.len());
        held.start + inner.start..held.start + inner.end
    });
    held.start * grain..held.end * grain
}

/// The shape of what the worker at this place holds.
pub fn piece(shape: &Shape, layouts: &[Layout], place: &[Part]) -> Shape {
    (0..shape.len()).map(|dim| range_at(shape[dim], dim, layouts, place).len()).collect()
}

/// What a part runs in place of the whole op.
#[derive(Clone, PartialEq, Debug)]
pub struct Local {
    pub op: Op,
    pub args: Vec<LocalArg>,
}

/// An operand of what a part runs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum LocalArg {
    /// The part's own piece of the op's operand.
    Own(usize),
    Num(Scalar),
}

use Layout::{Split, Whole};
use legal::follow;

/// The number with which a reduction over nothing leaves others as they are.
pub fn identity(kind: ReduceKind, dtype: DType) -> Scalar {
    let int = |wide: i64, narrow: [i64; 4]| match dtype {
        DType::Bool => Scalar::Bool(wide > 0),
        DType::U8 => Scalar::Int(narrow[0]),
        DType::I8 => Scalar::Int(narrow[1]),
        DType::I16 => Scalar::Int(narrow[2]),
        DType::I32 => Scalar::Int(narrow[3]),
        DType::I64 => Scalar::Int(wide),
        DType::F16 | DType::BF16 | DType::F32 | DType::F64 => {
            Scalar::Float(if wide > 0 { f64::INFINITY } else { f64::NEG_INFINITY })
        }
    };
    match kind {
        ReduceKind::Sum => Scalar::Int(0).to_dtype(dtype),
        ReduceKind::Prod => Scalar::Int(1).to_dtype(dtype),
        ReduceKind::Max => int(i64::MIN, [0, i8::MIN.into(), i16::MIN.into(), i32::MIN.into()]),
        ReduceKind::Min => int(i64::MAX, [u8::MAX.into(), i8::MAX.into(), i16::MAX.into(), i32::MAX.into()]),
    }
}

/// What one worker runs under a rule per axis. `args` are the types of the whole operands.
pub fn localize(op: &Op, rules: &[&Rule], args: &[ArgTy], place: &[Part]) -> Result<Local> {
    // Ops whose attributes depend on the split have one result.
    let outs: Layouts = rules.iter().map(|r| r.outs.first().copied().unwrap_or(Whole)).collect();
    let local = match op {
        Op::Full { shape, dtype } => Op::Full { shape: piece(shape, &outs, place), dtype: *dtype },
        Op::View(view) => Op::View(local_view(view, &outs, place)),
        Op::Put { path } => match args.first() {
            Some(ArgTy::Val(base)) => Op::Put { path: local_path(path, &base.shape, &outs, place)? },
            _ => op.clone(),
        },
        Op::Reduce { kind, dims, keepdim } => {
            if let Some(ArgTy::Val(x)) = args.first() {
                let lies: Layouts = rules.iter().filter_map(|r| r.args.first().copied().flatten()).collect();
                let held = piece(&x.shape, &lies, place);
                let split = |d: &usize| lies.contains(&Split(*d)) && held[*d] == 0;
                if dims.iter().any(split) {
                    // A maximum over nothing is no op; the part holds the identity.
                    let op = Op::Full { shape: held.reduced(dims, *keepdim), dtype: x.dtype };
                    return Ok(Local { op, args: vec![LocalArg::Num(identity(*kind, x.dtype))] });
                }
            }
            op.clone()
        }
        Op::Arange { .. }
        | Op::Random { .. }
        | Op::Data { .. }
        | Op::Unary(_)
        | Op::Binary(_)
        | Op::Where
        | Op::Cast(_)
        | Op::Pad { .. }
        | Op::Concat { .. }
        | Op::Flip { .. }
        | Op::ArgReduce { .. }
        | Op::Scan { .. }
        | Op::Matmul { .. }
        | Op::Gather { .. }
        | Op::Scatter { .. }
        | Op::Take { .. }
        | Op::TakePut { .. }
        | Op::Sort { .. }
        | Op::TopK { .. }
        | Op::Softmax { .. }
        | Op::LogSoftmax { .. }
        | Op::RmsNorm { .. }
        | Op::LayerNorm { .. }
        | Op::CrossEntropy
        | Op::Attention { .. }
        | Op::AttentionGrad { .. }
        | Op::Sgd { .. }
        | Op::Adam { .. }
        | Op::Collective(_) => op.clone(),
    };
    Ok(Local { op: local, args: (0..args.len()).map(LocalArg::Own).collect() })
}

fn local_view(view: &View, outs: &[Layout], place: &[Part]) -> View {
    match view {
        View::Reshape(to) => View::Reshape(piece(to, outs, place)),
        View::Expand(to) => View::Expand(piece(to, outs, place)),
        View::Permute(_) | View::Slice { .. } => view.clone(),
    }
}

/// The path of a put into a base that lies so.
fn local_path(path: &[View], base: &Shape, lies: &[Layout], place: &[Part]) -> Result<Vec<View>> {
    let (mut lies, mut shape, mut local) = (Layouts::from_slice(lies), base.clone(), Vec::new());
    for view in path {
        for layout in &mut lies {
            let Split(d) = *layout else { continue };
            let Some(to) = follow(view, d, &shape) else {
                bail!(Value, "PUT: dimension {d} of {shape} cannot be split under its path");
            };
            *layout = Split(to);
        }
        local.push(local_view(view, &lies, place));
        shape = view_shape("PUT", view, &shape)?;
    }
    Ok(local)
}
