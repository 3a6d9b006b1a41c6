//! Scaled dot product attention.

use super::arith::{cast, select};
use super::autocast::narrowed;
use super::moves::{expand_to, reshape_to, squeeze, transpose, unsqueeze};
use super::{activation, bin, create, linalg, reduce};
use crate::Tensor;
use crate::autograd::{Var, record_all};
use crate::tensor::need_float;
use gt_ir::{Binary, DType, Op, Operand, Operands, Result, Shape, bail};

const OP: &str = "scaled_dot_product_attention";

/// How queries attend.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attending {
    /// Row i sees columns up to i.
    pub causal: bool,
    /// What scores are multiplied by; one over the root of a query's size unless given.
    pub scale: Option<f64>,
    /// Several heads of the query may share one of key and value.
    pub gqa: bool,
    /// The probability with which a weight is dropped.
    pub dropout: f64,
}

/// `softmax(q @ k.T * scale + mask) @ v`. A row whose columns are all masked gives zeros.
pub fn attention(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: Option<&Tensor>,
    how: Attending,
) -> Result<Tensor> {
    if let Some(xs) = narrowed(&[q, k, v, mask.unwrap_or(v)])? {
        return attention(&xs[0], &xs[1], &xs[2], mask.map(|_| &xs[3]), how);
    }
    let ranks = [q, k, v].map(|t| t.ndim());
    let (least, rank) = (ranks.iter().min().copied().unwrap_or(0), ranks.iter().max().copied().unwrap_or(0));
    if least >= 2 && least < rank {
        let all = [q, k, v].map(|t| (t.ndim()..rank).try_fold(t.clone(), |t, _| unsqueeze(&t, 0)));
        let [q, k, v] = all;
        return attention(&q?, &k?, &v?, mask, how);
    }
    check(q, k, v, mask, how)?;
    let scale = how.scale.unwrap_or(1.0 / (q.shape()[rank - 1] as f64).sqrt());
    if rank == 2 {
        let [q, k, v] = [unsqueeze(q, 0)?, unsqueeze(k, 0)?, unsqueeze(v, 0)?];
        let out = attention(&q, &k, &v, mask, Attending { scale: Some(scale), ..how })?;
        return squeeze(&out, Some(&[0]));
    }
    // Batches broadcast; so do heads unless they are grouped.
    let kept = if how.gqa { 3 } else { 2 };
    let batch = |t: &Tensor| -> Shape { t.shape()[..rank - kept].into() };
    let joint = Shape::broadcast(OP, &Shape::broadcast(OP, &batch(q), &batch(k))?, &batch(v))?;
    let whole = |t: &Tensor| -> Result<Tensor> {
        if joint[..] == t.shape()[..rank - kept] {
            return Ok(t.clone());
        }
        expand_to(t, &joint.iter().chain(&t.shape()[rank - kept..]).copied().collect())
    };
    let (q, k, v) = (whole(q)?, whole(k)?, whole(v)?);
    if how.dropout > 0.0 {
        return dropped(&q, &k, &v, mask, scale, how);
    }
    let mut args: Operands<Var> = Operands::new();
    for t in [&q, &k, &v] {
        args.push(Operand::Val(t.var()?));
    }
    args.push(scale.into());
    if let Some(mask) = mask {
        args.push(Operand::Val(mask.var()?));
    }
    let mut outs = record_all(Op::Attention { causal: how.causal }, args)?;
    Ok(Tensor::from_var(outs.swap_remove(0)))
}

fn check(q: &Tensor, k: &Tensor, v: &Tensor, mask: Option<&Tensor>, how: Attending) -> Result<()> {
    need_float(OP, q)?;
    let [tq, tk, tv] = [q, k, v].map(|t| t.dtype());
    if tq != tk || tq != tv {
        bail!(
            Runtime,
            "{OP}: Expected query, key, and value to have the same dtype, but got query.dtype: {} key.dtype: {} and \
             value.dtype: {} instead.",
            tq.name(),
            tk.name(),
            tv.name()
        );
    }
    let [dq, dk, dv] = [q, k, v].map(|t| t.ndim());
    if dq < 2 || dk < 2 || dv < 2 || dq != dk || dq != dv {
        bail!(
            Runtime,
            "{OP}: Expected query, key, and value to all be at least 2 dimensional and of one number of dimensions, \
             but got query.dim: {dq} key.dim: {dk} and value.dim: {dv} instead."
        );
    }
    if q.shape()[dq - 1] != k.shape()[dq - 1] || k.shape()[dq - 2] != v.shape()[dq - 2] {
        bail!(
            Runtime,
            "{OP}: expected query [.., L, E], key [.., S, E] and value [.., S, Ev], got {}, {} and {}",
            q.shape(),
            k.shape(),
            v.shape()
        );
    }
    if let Some(mask) = mask {
        if how.causal {
            bail!(Runtime, "{OP}: Explicit attn_mask should not be set when is_causal=True");
        }
        if mask.dtype() != DType::Bool && mask.dtype() != DType::F32 && mask.dtype() != tq {
            bail!(
                Runtime,
                "{OP}: Expected attn_mask dtype to be bool or float or to match query dtype, but got \
                 attn_mask.dtype: {} and query.dtype: {} instead.",
                mask.dtype().name(),
                tq.name()
            );
        }
    }
    if how.gqa && dq >= 3 {
        let [heads, shared, of_v] = [q, k, v].map(|t| t.shape()[dq - 3]);
        if shared != of_v || shared == 0 || !heads.is_multiple_of(shared) {
            bail!(
                Runtime,
                "{OP}: expected the heads of key and value to divide those of the query for enable_gqa, got {shared}, \
                 {of_v} and {heads}"
            );
        }
    } else if dq >= 3
        && q.shape()[dq - 3] != k.shape()[dq - 3]
        && k.shape()[dq - 3] != 1
        && q.shape()[dq - 3] != 1
    {
        bail!(
            Runtime,
            "{OP}: expected as many heads in key as in query, got {} and {}: pass enable_gqa=True to share them",
            k.shape()[dq - 3],
            q.shape()[dq - 3]
        );
    }
    if !(0.0..=1.0).contains(&how.dropout) {
        bail!(Runtime, "{OP}: dropout probability has to be between 0 and 1, but got {}", how.dropout);
    }
    Ok(())
}

/// Attention op by op, since each weight may be dropped.
fn dropped(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: Option<&Tensor>,
    scale: f64,
    how: Attending,
) -> Result<Tensor> {
    let rank = q.ndim();
    let [heads, rows] = [q.shape()[rank - 3], q.shape()[rank - 2]];
    let columns = k.shape()[rank - 2];
    // Every query head with its own copy of what it shares.
    let spread = |t: &Tensor| -> Result<Tensor> {
        let shape = t.shape();
        let shared = shape[rank - 3];
        if shared == heads {
            return Ok(t.clone());
        }
        let (lead, tail) = (&shape[..rank - 2], &shape[rank - 2..]);
        let to: Shape = lead.iter().copied().chain([heads / shared]).chain(tail.iter().copied()).collect();
        let t = expand_to(&unsqueeze(t, rank as i64 - 2)?, &to)?;
        let joined: Shape =
            shape[..rank - 3].iter().copied().chain([heads]).chain(tail.iter().copied()).collect();
        reshape_to(&t, joined)
    };
    let (k, v) = (spread(k)?, spread(v)?);
    let mut s = bin(Binary::Mul, &linalg::matmul(q, &transpose(&k, -2, -1)?)?, scale)?;
    let least = Operand::from(f64::NEG_INFINITY);
    match mask {
        Some(mask) if mask.dtype() == DType::Bool => s = select(mask, &(&s).into(), &least)?,
        Some(mask) => s = bin(Binary::Add, &s, &cast(mask, s.dtype())?)?,
        None => {}
    }
    if how.causal {
        let square = create::ones([rows, columns], DType::Bool)?;
        s = select(&super::moves::tril(&square, 0)?, &(&s).into(), &least)?;
    }
    let p = activation::softmax(&s, -1, None)?;
    let nothing = bin(Binary::Eq, &reduce::amax(&s.detach(), &[-1], true)?, f64::NEG_INFINITY)?;
    let p = select(&nothing, &0.0.into(), &(&p).into())?;
    let p = activation::dropout(&p, how.dropout, true)?;
    linalg::matmul(&p, &v)
}
