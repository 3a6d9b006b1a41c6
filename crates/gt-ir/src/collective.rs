//! What the parts of a mesh axis do together. Only the dispatcher writes these; a client's program holds none.
//!
//! A part sees its own pieces alone, so an instruction carries the sizes that the pieces of others decide: the same
//! instruction serves all parts whose pieces have one shape. Several operands travel together.

use crate::host::HostTensor;
use crate::infer::{ArgTy, Types};
use crate::layout::{Layout, identity, part_range};
use crate::op::{Op, ReduceKind, View};
use crate::reference::{RefArg, eval};
use crate::{Ints, Result, Scalar, Ty, bail};
use serde::{Deserialize, Serialize};

/// One collective without its operands.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Collective {
    /// Its place among the collectives of its program. No two are equal, so none are ever taken for one.
    pub number: u32,
    /// The mesh axis whose parts take part.
    pub axis: u8,
    pub what: Exchange,
}

/// From which layout to which. Sizes are per operand.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Exchange {
    /// Partial to whole.
    AllReduce { kind: ReduceKind },
    /// Split along `dim` to whole, which has `sizes` there.
    AllGather { dim: usize, sizes: Ints },
    /// Partial to split along `dim`, of which this part gets `lens`.
    ReduceScatter { kind: ReduceKind, dim: usize, lens: Ints },
    /// Split along `from`, where the whole has `sizes`, to split along `to`, of which this part gets `lens`.
    AllToAll { from: usize, to: usize, sizes: Ints, lens: Ints },
    /// What part `root` holds, for all.
    Broadcast { root: usize },
}

impl Exchange {
    /// The name in the text form.
    pub fn text(&self) -> &'static str {
        match self {
            Exchange::AllReduce { .. } => "ALLREDUCE",
            Exchange::AllGather { .. } => "ALLGATHER",
            Exchange::ReduceScatter { .. } => "REDUCESCATTER",
            Exchange::AllToAll { .. } => "ALLTOALL",
            Exchange::Broadcast { .. } => "BROADCAST",
        }
    }

    /// The exchange of one more operand may travel with this one.
    pub fn joins(&self, other: &Exchange) -> bool {
        match (self, other) {
            (Exchange::AllReduce { kind: a }, Exchange::AllReduce { kind: b }) => a == b,
            (Exchange::AllGather { dim: a, .. }, Exchange::AllGather { dim: b, .. }) => a == b,
            (
                Exchange::ReduceScatter { kind: a, dim: x, .. },
                Exchange::ReduceScatter { kind: b, dim: y, .. },
            ) => a == b && x == y,
            (Exchange::AllToAll { from: a, to: x, .. }, Exchange::AllToAll { from: b, to: y, .. }) => {
                a == b && x == y
            }
            (Exchange::Broadcast { root: a }, Exchange::Broadcast { root: b }) => a == b,
            _ => false,
        }
    }

    /// Adds the sizes of another exchange that `joins` this one.
    pub fn extend(&mut self, other: &Exchange) {
        match (self, other) {
            (Exchange::AllGather { sizes, .. }, Exchange::AllGather { sizes: more, .. })
            | (Exchange::ReduceScatter { lens: sizes, .. }, Exchange::ReduceScatter { lens: more, .. }) => {
                sizes.extend_from_slice(more);
            }
            (
                Exchange::AllToAll { sizes, lens, .. },
                Exchange::AllToAll { sizes: more_sizes, lens: more_lens, .. },
            ) => {
                sizes.extend_from_slice(more_sizes);
                lens.extend_from_slice(more_lens);
            }
            _ => {}
        }
    }

    /// The type of the result for operand `i`.
    pub fn result(&self, i: usize, x: &Ty) -> Result<Ty> {
        let name = self.text();
        let mut ty = x.clone();
        let mut resize = |dim: usize, sizes: &Ints, grows: bool| {
            let (Some(now), Some(&to)) = (ty.shape.get_mut(dim), sizes.get(i)) else {
                bail!(Value, "{name}: no size for dimension {dim} of operand {i}, {x}");
            };
            if (grows && to < *now) || (!grows && to > *now) {
                bail!(Value, "{name}: dimension {dim} of {x} cannot become {to}");
            }
            *now = to;
            Ok(())
        };
        match self {
            Exchange::AllReduce { .. } | Exchange::Broadcast { .. } => {}
            Exchange::AllGather { dim, sizes } => resize(*dim, sizes, true)?,
            Exchange::ReduceScatter { dim, lens, .. } => resize(*dim, lens, false)?,
            Exchange::AllToAll { from, to, sizes, lens } => {
                if from == to {
                    bail!(Value, "{name}: dimension {from} is already split");
                }
                resize(*from, sizes, true)?;
                resize(*to, lens, false)?;
            }
        }
        ty.shape.check(name, ty.dtype)?;
        Ok(ty)
    }

    /// The layouts on both sides.
    pub fn layouts(&self) -> (Layout, Layout) {
        match self {
            Exchange::AllReduce { kind } => (Layout::Partial(*kind), Layout::Whole),
            Exchange::AllGather { dim, .. } => (Layout::Split(*dim), Layout::Whole),
            Exchange::ReduceScatter { kind, dim, .. } => (Layout::Partial(*kind), Layout::Split(*dim)),
            Exchange::AllToAll { from, to, .. } => (Layout::Split(*from), Layout::Split(*to)),
            Exchange::Broadcast { .. } => (Layout::Whole, Layout::Whole),
        }
    }
}

/// The types of a collective's results, one per operand.
pub(crate) fn infer(what: &Exchange, args: &[ArgTy]) -> Result<Types> {
    let name = what.text();
    if args.is_empty() {
        bail!(Type, "{name}: operand 0 is missing, got 0 operands");
    }
    let mut types = Types::new();
    for (i, arg) in args.iter().enumerate() {
        let ArgTy::Val(x) = arg else { bail!(Type, "{name}: operand {i} must be a tensor, got a number") };
        types.push(what.result(i, x)?);
    }
    Ok(types)
}

/// The meaning of a collective: what every part gets from what every part holds, `parts[rank][operand]`.
pub fn eval_parts(what: &Exchange, parts: &[Vec<HostTensor>]) -> Result<Vec<Vec<HostTensor>>> {
    let n = parts.len();
    let mut out: Vec<Vec<HostTensor>> = vec![Vec::new(); n];
    for k in 0..parts.first().map_or(0, Vec::len) {
        let held: Vec<&HostTensor> = parts.iter().map(|p| &p[k]).collect();
        let (from, to) = what.layouts();
        let whole = match (what, from) {
            (Exchange::Broadcast { root }, _) => held[*root].clone(),
            (_, Layout::Whole) => held[0].clone(),
            (_, Layout::Split(dim)) => {
                eval(&Op::Concat { dim }, &held.iter().map(|x| RefArg::Val(x)).collect::<Vec<_>>())?
            }
            (_, Layout::Partial(kind)) => combine(kind, &held),
        };
        for (rank, out) in out.iter_mut().enumerate() {
            out.push(match to {
                Layout::Split(dim) => {
                    let range = part_range(whole.ty.shape[dim], n, rank);
                    let slice = Op::View(View::Slice { dim, len: range.len(), step: 1 });
                    eval(&slice, &[RefArg::Val(&whole), RefArg::Num(Scalar::Int(range.start as i64))])?
                }
                Layout::Whole | Layout::Partial(_) => whole.clone(),
            });
        }
    }
    Ok(out)
}

/// Sums (or multiplies, ...) what the parts hold in the order of their ranks, rounding once.
fn combine(kind: ReduceKind, held: &[&HostTensor]) -> HostTensor {
    let ty = &held[0].ty;
    let each = |i: usize| {
        let first = identity(kind, ty.dtype);
        held.iter().fold(first, |all, x| fold(kind, all, x.get(i), ty.dtype.is_float()))
    };
    HostTensor::from_scalars(ty, (0..held[0].numel()).map(each))
}

fn fold(kind: ReduceKind, a: Scalar, b: Scalar, float: bool) -> Scalar {
    if float {
        let (x, y) = (a.as_f64(), b.as_f64());
        let nan = x.is_nan() || y.is_nan();
        return Scalar::Float(match kind {
            ReduceKind::Sum => x + y,
            ReduceKind::Prod => x * y,
            ReduceKind::Max | ReduceKind::Min if nan => f64::NAN,
            ReduceKind::Max => x.max(y),
            ReduceKind::Min => x.min(y),
        });
    }
    let (x, y) = (a.as_i64(), b.as_i64());
    Scalar::Int(match kind {
        ReduceKind::Sum => x.wrapping_add(y),
        ReduceKind::Prod => x.wrapping_mul(y),
        ReduceKind::Max => x.max(y),
        ReduceKind::Min => x.min(y),
    })
}
