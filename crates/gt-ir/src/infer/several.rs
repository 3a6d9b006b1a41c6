//! The type rules of ops with several results.

use super::{ArgTy, Reads, Types, dim_in};
use crate::op::Op;
use crate::{DType, Result, Ty, bail};
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
        _ => bail!(Value, "{name}: has one result"),
    })
}
