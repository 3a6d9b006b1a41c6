//! The type rules of ops with several results.

use super::{ArgTy, Reads, Types, dim_in, float, index_dtype, same_dtype};
use crate::composite::wide;
use crate::op::{ADAM_NUMBERS, Op, SGD_NUMBERS};
use crate::{DType, Result, Shape, Ty, bail};
use smallvec::smallvec;

/// The types of the results of an op that has several.
pub(super) fn infer(op: &Op, args: &[ArgTy]) -> Result<Types> {
    let name = op.text();
    let reads = Reads { name, args };
    Ok(match op {
        Op::Sort { dim, .. } => {
            reads.count(1)?;
            let x = reads.val(0)?;
            dim_in(name, *dim, &x.shape)?;
            smallvec![x.clone(), Ty { dtype: DType::I64, shape: x.shape.clone() }]
        }
        Op::TopK { dim, k, .. } => {
            reads.count(1)?;
            let x = reads.val(0)?;
            dim_in(name, *dim, &x.shape)?;
            if *k > x.shape[*dim] {
                bail!(
                    Runtime,
                    "{name}: selected index k out of range, got k={k} for dimension {dim} of shape {}",
                    x.shape
                );
            }
            let mut shape = x.shape.clone();
            shape[*dim] = *k;
            smallvec![Ty { dtype: x.dtype, shape: shape.clone() }, Ty { dtype: DType::I64, shape }]
        }
        Op::CrossEntropy => {
            reads.count(3)?;
            reads.num(2)?;
            let (x, target) = (reads.val(0)?, reads.val(1)?);
            float(name, x)?;
            index_dtype(name, target)?;
            let Some((&classes, rows)) = x.shape.split_last() else {
                bail!(Runtime, "{name}: expected logits of at least one dimension, got shape {}", x.shape);
            };
            if target.shape[..] != *rows {
                bail!(
                    Runtime,
                    "{name}: expected a target of shape {} for logits of {}, got {}",
                    Shape::from(rows),
                    x.shape,
                    target.shape
                );
            }
            if classes == 0 && target.shape.numel() > 0 {
                bail!(Runtime, "{name}: expected at least one class, got shape {}", x.shape);
            }
            smallvec![
                Ty { dtype: x.dtype, shape: target.shape.clone() },
                Ty { dtype: wide(x.dtype), shape: target.shape.clone() }
            ]
        }
        Op::Attention { .. } => {
            if args.len() != 5 {
                reads.count(4)?;
            }
            reads.num(3)?;
            let (out, lse) = attention(&reads, 4)?;
            smallvec![out, lse]
        }
        Op::AttentionGrad { .. } => {
            if args.len() != 8 {
                reads.count(7)?;
            }
            reads.num(6)?;
            let (out, lse) = attention(&reads, 7)?;
            for (i, want) in [(3, &out), (4, &lse), (5, &out)] {
                let got = reads.val(i)?;
                if got != want {
                    bail!(Runtime, "{name}: expected operand {i} to be {want}, got {got}");
                }
            }
            (0..3).map(|i| reads.val(i).cloned()).collect::<Result<_>>()?
        }
        Op::Sgd { momentum, .. } => step(op, &reads, SGD_NUMBERS, 1 + *momentum as usize)?,
        Op::Adam { amsgrad, .. } => step(op, &reads, ADAM_NUMBERS, 3 + *amsgrad as usize)?,
        Op::Collective(c) => crate::collective::infer(&c.what, args)?,
        _ => bail!(Value, "{name}: has one result"),
    })
}

/// The types of the output and of the log-sum-exp; `mask` is where the mask would be.
fn attention(reads: &Reads, mask: usize) -> Result<(Ty, Ty)> {
    let name = reads.name;
    let (q, k, v) = (reads.val(0)?, reads.val(1)?, reads.val(2)?);
    float(name, q)?;
    same_dtype(name, q.dtype, k.dtype)?;
    same_dtype(name, q.dtype, v.dtype)?;
    let rank = q.shape.len();
    let wrong = || -> Result<(Ty, Ty)> {
        bail!(
            Runtime,
            "{name}: expected query [.., heads, rows, d], key [.., key heads, columns, d] and value \
             [.., key heads, columns, e], got {}, {} and {}",
            q.shape,
            k.shape,
            v.shape
        )
    };
    if rank < 3 || k.shape.len() != rank || v.shape.len() != rank {
        return wrong();
    }
    let [heads, rows, d] = [3, 2, 1].map(|i| q.shape[rank - i]);
    let [key_heads, columns, kd] = [3, 2, 1].map(|i| k.shape[rank - i]);
    let batch = &q.shape[..rank - 3];
    if k.shape[..rank - 3] != *batch
        || v.shape[..rank - 3] != *batch
        || kd != d
        || v.shape[rank - 3..rank - 1] != [key_heads, columns]
    {
        return wrong();
    }
    let divides = if key_heads == 0 { heads == 0 } else { heads % key_heads == 0 };
    if !divides {
        bail!(
            Runtime,
            "{name}: expected the key heads to divide the query heads, got {key_heads} and {heads}"
        );
    }
    if reads.args.len() > mask {
        let mask = reads.val(mask)?;
        if mask.dtype != DType::Bool && mask.dtype != wide(q.dtype) {
            same_dtype(name, q.dtype, mask.dtype)?;
        }
        let scores: Shape = batch.iter().copied().chain([heads, rows, columns]).collect();
        scores.check(name, q.dtype)?;
        if !mask.shape.expands_to(&scores) {
            bail!(Runtime, "{name}: a mask of shape {} does not fit scores of {scores}", mask.shape);
        }
    }
    let lse: Shape = q.shape[..rank - 1].into();
    let mut out = lse.clone();
    out.push(v.shape[rank - 1]);
    out.check(name, q.dtype)?;
    Ok((Ty { dtype: q.dtype, shape: out }, Ty { dtype: wide(q.dtype), shape: lse }))
}

/// An optimizer step: numbers, then tensors of one type per parameter; `kept` results for each.
fn step(op: &Op, reads: &Reads, numbers: usize, kept: usize) -> Result<Types> {
    let (name, group, count) = (reads.name, op.group(), reads.args.len());
    (0..numbers).try_for_each(|i| reads.num(i))?;
    if count == numbers || !(count - numbers).is_multiple_of(group) {
        bail!(
            Type,
            "{name}: takes {numbers} numbers and {group} tensors per parameter, got {count} operands"
        );
    }
    let mut types = Types::new();
    for at in (numbers..count).step_by(group) {
        let p = reads.val(at)?;
        float(name, p)?;
        for i in 1..group {
            let other = reads.val(at + i)?;
            if other != p {
                bail!(Runtime, "{name}: expected {p} for a parameter of that type, got {other}");
            }
        }
        types.extend(std::iter::repeat_n(p.clone(), kept));
    }
    Ok(types)
}
