//! Losses, with PyTorch's reductions.

use super::arith::{cast, select, unary};
use super::autocast::widened;
use super::moves::{expand_to, unsqueeze};
use super::pointwise::{clamp, xlogy};
use super::{activation, apply, bin, reduce};
use crate::Tensor;
use crate::autograd::{Var, grad_enabled, record_all};
use gt_ir::{Binary, DType, Error, Op, Operand, Operands, Result, Scalar, Shape, Unary, bail, norm_dim};
use smallvec::smallvec;

/// What becomes of the elements' losses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reduction {
    None,
    Mean,
    Sum,
}

impl Reduction {
    /// Finds a reduction by PyTorch's name for it.
    pub fn parse(name: &str) -> Result<Reduction> {
        Ok(match name {
            "none" => Reduction::None,
            "mean" => Reduction::Mean,
            "sum" => Reduction::Sum,
            other => bail!(Value, "{other} is not a valid value for reduction, expected none, mean or sum"),
        })
    }

    fn of(self, x: &Tensor) -> Result<Tensor> {
        match self {
            Reduction::None => Ok(x.clone()),
            Reduction::Mean => reduce::mean(x, &[], false, None),
            Reduction::Sum => reduce::sum(x, &[], false, None),
        }
    }
}

pub fn mse_loss(x: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    if let Some(xs) = widened(&[x, target])? {
        return mse_loss(&xs[0], &xs[1], reduction);
    }
    let gap = bin(Binary::Sub, x, target)?;
    reduction.of(&bin(Binary::Mul, &gap, &gap)?)
}

pub fn l1_loss(x: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    if let Some(xs) = widened(&[x, target])? {
        return l1_loss(&xs[0], &xs[1], reduction);
    }
    reduction.of(&unary(Unary::Abs, &bin(Binary::Sub, x, target)?)?)
}

/// Squares below `beta`, lines above, joined smoothly.
pub fn smooth_l1_loss(x: &Tensor, target: &Tensor, reduction: Reduction, beta: f64) -> Result<Tensor> {
    if let Some(xs) = widened(&[x, target])? {
        return smooth_l1_loss(&xs[0], &xs[1], reduction, beta);
    }
    if beta < 0.0 {
        bail!(Runtime, "smooth_l1_loss does not support negative values for beta, got {beta}");
    }
    if beta == 0.0 {
        return l1_loss(x, target, reduction);
    }
    reduction.of(&bin(Binary::Div, &huber(x, target, beta)?, beta)?)
}

/// `smooth_l1_loss` times `delta`.
pub fn huber_loss(x: &Tensor, target: &Tensor, reduction: Reduction, delta: f64) -> Result<Tensor> {
    if let Some(xs) = widened(&[x, target])? {
        return huber_loss(&xs[0], &xs[1], reduction, delta);
    }
    if delta <= 0.0 {
        bail!(Runtime, "huber_loss does not support non-positive values for delta, got {delta}");
    }
    reduction.of(&huber(x, target, delta)?)
}

fn huber(x: &Tensor, target: &Tensor, delta: f64) -> Result<Tensor> {
    let gap = bin(Binary::Sub, x, target)?;
    let size = unary(Unary::Abs, &gap)?;
    let near = bin(Binary::Lt, &size, delta)?;
    // The square must stay finite where it is not taken: its gradient is multiplied by zero.
    let short = select(&near, &(&gap).into(), &0.0.into())?;
    let square = bin(Binary::Mul, &bin(Binary::Mul, &short, &short)?, 0.5)?;
    let line = bin(Binary::Mul, &bin(Binary::Sub, &size, 0.5 * delta)?, delta)?;
    select(&near, &(&square).into(), &(&line).into())
}

fn same_size(op: &str, x: &Tensor, target: &Tensor) -> Result<()> {
    if x.shape() != target.shape() {
        bail!(
            Value,
            "{op}: target size ({}) must be the same as input size ({}): reshape one of them",
            target.shape(),
            x.shape()
        );
    }
    Ok(())
}

fn weighted(x: Tensor, weight: Option<&Tensor>) -> Result<Tensor> {
    match weight {
        Some(w) => bin(Binary::Mul, &x, w),
        None => Ok(x),
    }
}

/// Cross entropy of probabilities and 0/1 targets; logarithms are kept above -100.
pub fn binary_cross_entropy(
    p: &Tensor,
    target: &Tensor,
    weight: Option<&Tensor>,
    reduction: Reduction,
) -> Result<Tensor> {
    if let Some(xs) = widened(&[p, target, weight.unwrap_or(p)])? {
        return binary_cross_entropy(&xs[0], &xs[1], weight.map(|_| &xs[2]), reduction);
    }
    same_size("binary_cross_entropy", p, target)?;
    if !(grad_enabled() && p.requires_grad()) {
        return reduction.of(&weighted(plain_binary_cross_entropy(p, target)?, weight)?);
    }
    // The gradient is (p - target) / (p * (1 - p)), the denominator at least 1e-12. Where it is smaller, the loss is that of
    // a constant, and a line that is zero here has the gradient.
    let spread = bin(Binary::Mul, p, &bin(Binary::Sub, 1.0, p)?)?;
    let flat = bin(Binary::Lt, &spread, BCE_EPSILON)?;
    let here = p.detach();
    let loss = plain_binary_cross_entropy(&select(&flat, &(&here).into(), &p.into())?, target)?;
    let slope = bin(Binary::Mul, &bin(Binary::Sub, &here, &target.detach())?, 1.0 / BCE_EPSILON)?;
    let slope = select(&flat, &(&slope).into(), &0.0.into())?;
    let line = bin(Binary::Mul, &bin(Binary::Sub, p, &here)?, &slope)?;
    reduction.of(&weighted(bin(Binary::Add, &loss, &line)?, weight)?)
}

/// What the denominator of the gradient of binary cross entropy is at least.
const BCE_EPSILON: f64 = 1e-12;

fn plain_binary_cross_entropy(p: &Tensor, target: &Tensor) -> Result<Tensor> {
    let log = |x: &Tensor| clamp(&unary(Unary::Log, x)?, Some(&(-100.0).into()), None);
    let hit = bin(Binary::Mul, target, &log(p)?)?;
    let miss = bin(Binary::Mul, &bin(Binary::Sub, 1.0, target)?, &log(&bin(Binary::Sub, 1.0, p)?)?)?;
    unary(Unary::Neg, &bin(Binary::Add, &hit, &miss)?)
}

/// Cross entropy of logits and 0/1 targets, without overflow.
pub fn bce_with_logits(
    x: &Tensor,
    target: &Tensor,
    weight: Option<&Tensor>,
    pos_weight: Option<&Tensor>,
    reduction: Reduction,
) -> Result<Tensor> {
    if let Some(xs) = widened(&[x, target, weight.unwrap_or(x), pos_weight.unwrap_or(x)])? {
        return bce_with_logits(
            &xs[0],
            &xs[1],
            weight.map(|_| &xs[2]),
            pos_weight.map(|_| &xs[3]),
            reduction,
        );
    }
    same_size("binary_cross_entropy_with_logits", x, target)?;
    let soft = activation::softplus_plain(&unary(Unary::Neg, x)?)?;
    let soft = match pos_weight {
        None => soft,
        Some(w) => {
            let extra = bin(Binary::Mul, &bin(Binary::Sub, w, 1.0)?, target)?;
            bin(Binary::Mul, &soft, &bin(Binary::Add, &extra, 1.0)?)?
        }
    };
    let miss = bin(Binary::Mul, &bin(Binary::Sub, 1.0, target)?, x)?;
    reduction.of(&weighted(bin(Binary::Add, &miss, &soft)?, weight)?)
}

/// What the targets select: their losses, the weight of each, and how much each counts in the mean.
struct Chosen {
    safe: Tensor,
    kept: Tensor,
    /// Weight of each target, zero where ignored, in the type of the losses.
    share: Tensor,
}

/// Checks that class indices go with logits or log probabilities; gives the dimension of the classes.
fn classes_of(log_p: &Tensor, target: &Tensor) -> Result<usize> {
    let classes = if log_p.ndim() == 1 { 0 } else { 1 };
    let batch: gt_ir::Shape =
        log_p.shape().iter().enumerate().filter(|(d, _)| *d != classes).map(|(_, &n)| n).collect();
    if log_p.ndim() == 0 || *target.shape() != batch {
        let text = format!(
            "nll_loss: expected input {} to go with a target of {batch}, got {}",
            log_p.shape(),
            target.shape()
        );
        if target.shape() == log_p.shape() {
            bail!(Runtime, "{text}; a target of class probabilities must be of a floating-point type");
        }
        // PyTorch's type where the sizes of the batches differ.
        let batches = [log_p, target].map(|t| t.shape().first().copied());
        return Err(if batches[0] == batches[1] { Error::Runtime(text) } else { Error::Value(text) });
    }
    if !matches!(target.dtype(), DType::I64 | DType::I32 | DType::U8) {
        bail!(
            Runtime,
            "nll_loss: expected a target of dtype int64 (class indices), got {}",
            target.dtype().name()
        );
    }
    Ok(classes)
}

fn chosen(log_p: &Tensor, target: &Tensor, weight: Option<&Tensor>, ignore: i64) -> Result<Chosen> {
    let classes = classes_of(log_p, target)?;
    let target = cast(target, DType::I64)?;
    let kept = bin(Binary::Ne, &target, Scalar::Int(ignore))?;
    let safe = select(&kept, &(&target).into(), &Scalar::Int(0).into())?;
    let share = match weight {
        None => cast(&kept, log_p.dtype())?,
        Some(w) => {
            let n = log_p.shape()[classes];
            if w.ndim() != 1 || w.numel() != n {
                bail!(
                    Runtime,
                    "weight tensor should be defined either for all {n} classes or no classes but got weight tensor \
                     of shape: {}",
                    w.shape()
                );
            }
            let each = apply(Op::Take { dim: 0 }, &[w, &safe])?;
            select(&kept, &(&each).into(), &0.0.into())?
        }
    };
    Ok(Chosen { safe, kept, share })
}

/// Negative log likelihood of class indices; targets equal to `ignore` do not count.
pub fn nll_loss(
    log_p: &Tensor,
    target: &Tensor,
    weight: Option<&Tensor>,
    ignore: i64,
    reduction: Reduction,
) -> Result<Tensor> {
    if let Some(xs) = widened(&[log_p, weight.unwrap_or(log_p)])? {
        return nll_loss(&xs[0], target, weight.map(|_| &xs[1]), ignore, reduction);
    }
    let c = chosen(log_p, target, weight, ignore)?;
    let losses = picked(log_p, &c)?;
    finish(&losses, &c, reduction)
}

fn picked(log_p: &Tensor, c: &Chosen) -> Result<Tensor> {
    let dim = if log_p.ndim() == 1 { 0 } else { 1 };
    let at = unsqueeze(&c.safe, dim as i64)?;
    let hit = super::moves::squeeze(&apply(Op::Gather { dim }, &[log_p, &at])?, Some(&[dim as i64]))?;
    let loss = unary(Unary::Neg, &bin(Binary::Mul, &hit, &c.share)?)?;
    // An ignored place may hold an infinity, which zero times would make NaN.
    select(&c.kept, &(&loss).into(), &0.0.into())
}

fn finish(losses: &Tensor, c: &Chosen, reduction: Reduction) -> Result<Tensor> {
    match reduction {
        Reduction::None => Ok(losses.clone()),
        Reduction::Sum => reduce::sum(losses, &[], false, None),
        Reduction::Mean => mean_of(losses, &c.share),
    }
}

/// The sum of losses over the sum of what each counts; halves are summed in `f32`.
fn mean_of(losses: &Tensor, share: &Tensor) -> Result<Tensor> {
    let wide = |x: &Tensor| match x.dtype() {
        DType::F16 | DType::BF16 => cast(x, DType::F32),
        _ => Ok(x.clone()),
    };
    let total = reduce::sum(&wide(losses)?, &[], false, None)?;
    let count = reduce::sum(&wide(share)?, &[], false, None)?;
    cast(&bin(Binary::Div, &total, &count)?, losses.dtype())
}

/// Cross entropy of logits. The target holds class indices, or probabilities in the shape of the logits.
pub fn cross_entropy(
    logits: &Tensor,
    target: &Tensor,
    weight: Option<&Tensor>,
    ignore: i64,
    reduction: Reduction,
    label_smoothing: f64,
) -> Result<Tensor> {
    if let Some(xs) = widened(&[logits, target, weight.unwrap_or(logits)])? {
        return cross_entropy(&xs[0], &xs[1], weight.map(|_| &xs[2]), ignore, reduction, label_smoothing);
    }
    if !(0.0..=1.0).contains(&label_smoothing) {
        bail!(Runtime, "label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}");
    }
    if logits.ndim() == 0 {
        bail!(Value, "cross_entropy: expected logits with a dimension of classes, got a 0-d tensor");
    }
    let dim = if logits.ndim() == 1 { 0 } else { 1 };
    let probabilities = target.dtype().is_float() && target.shape() == logits.shape();
    if !probabilities && label_smoothing == 0.0 && weight.is_none() && logits.dtype().is_float() {
        return plain_cross_entropy(logits, target, ignore, reduction);
    }
    let log_p = activation::log_softmax(logits, dim, None)?;
    let n = logits.shape()[dim as usize] as f64;
    // Weights in the shape that goes with the classes' dimension.
    let along = |w: &Tensor| -> Result<Tensor> {
        let mut sizes = vec![-1];
        sizes.resize(logits.ndim() - dim as usize, 1);
        super::moves::reshape(w, &sizes)
    };
    if probabilities {
        let mut t = target.clone();
        if label_smoothing > 0.0 {
            t = bin(Binary::Add, &bin(Binary::Mul, &t, 1.0 - label_smoothing)?, label_smoothing / n)?;
        }
        let mut terms = bin(Binary::Mul, &log_p, &t)?;
        if let Some(w) = weight {
            terms = bin(Binary::Mul, &terms, &along(w)?)?;
        }
        let losses = unary(Unary::Neg, &reduce::sum(&terms, &[dim], false, None)?)?;
        return reduction.of(&losses);
    }
    let c = chosen(&log_p, target, weight, ignore)?;
    let losses = picked(&log_p, &c)?;
    if label_smoothing == 0.0 {
        return finish(&losses, &c, reduction);
    }
    let spread = match weight {
        Some(w) => bin(Binary::Mul, &log_p, &along(w)?)?,
        None => log_p.clone(),
    };
    let smooth = unary(Unary::Neg, &reduce::sum(&spread, &[dim], false, None)?)?;
    let smooth = select(&c.kept, &(&smooth).into(), &0.0.into())?;
    let (hard, soft) =
        (bin(Binary::Mul, &losses, 1.0 - label_smoothing)?, bin(Binary::Mul, &smooth, label_smoothing / n)?);
    finish(&bin(Binary::Add, &hard, &soft)?, &c, reduction)
}

/// Cross entropy of class indices, as one instruction before the reduction.
fn plain_cross_entropy(
    logits: &Tensor,
    target: &Tensor,
    ignore: i64,
    reduction: Reduction,
) -> Result<Tensor> {
    let classes = classes_of(logits, target)?;
    let rows = match classes + 1 == logits.ndim() {
        true => logits.clone(),
        false => super::moves::movedim(logits, &[classes as i64], &[-1])?,
    };
    // The logits may be written afterwards: the value that the gradient reads stays.
    let rows = Var { owner: None, ..rows.var()? };
    let mut args: Operands<Var> = smallvec![Operand::Val(rows), Operand::Val(target.var()?)];
    args.push(Scalar::Int(ignore).into());
    let losses = Tensor::from_var(record_all(Op::CrossEntropy, args)?.swap_remove(0));
    match reduction {
        Reduction::None => Ok(losses),
        Reduction::Sum => reduce::sum(&losses, &[], false, None),
        Reduction::Mean => {
            let kept = bin(Binary::Ne, &cast(target, DType::I64)?, Scalar::Int(ignore))?;
            mean_of(&losses, &cast(&kept, logits.dtype())?)
        }
    }
}

/// Kullback-Leibler divergence of a target (or its logarithm) from log probabilities.
pub fn kl_div(
    x: &Tensor,
    target: &Tensor,
    log_target: bool,
    batch_mean: bool,
    reduction: Reduction,
) -> Result<Tensor> {
    if let Some(xs) = widened(&[x, target])? {
        return kl_div(&xs[0], &xs[1], log_target, batch_mean, reduction);
    }
    let terms = if log_target {
        bin(Binary::Mul, &unary(Unary::Exp, target)?, &bin(Binary::Sub, target, x)?)?
    } else {
        bin(Binary::Sub, &xlogy(target, target)?, &bin(Binary::Mul, target, x)?)?
    };
    if batch_mean {
        let total = reduce::sum(&terms, &[], false, None)?;
        let rows = x.shape().first().copied().unwrap_or(1);
        return bin(Binary::Div, &total, rows as f64);
    }
    reduction.of(&terms)
}

/// Cosine of the angle between vectors along `dim`.
pub fn cosine_similarity(a: &Tensor, b: &Tensor, dim: i64, eps: f64) -> Result<Tensor> {
    let product = reduce::sum(&bin(Binary::Mul, a, b)?, &[dim], false, None)?;
    let shape = Shape::broadcast("cosine_similarity", a.shape(), b.shape())?;
    let d = norm_dim("cosine_similarity", dim, shape.len())?;
    // Lengths are of what is multiplied: a vector of one element may stand for more.
    let along = |x: &Tensor| -> Result<Tensor> {
        if x.ndim() == shape.len() && x.shape().get(d) == shape.get(d) {
            return Ok(x.clone());
        }
        let mut own: Vec<usize> = vec![1; shape.len() - x.ndim()];
        own.extend(x.shape().iter());
        own[d] = shape[d];
        expand_to(x, &Shape::from(own))
    };
    let (a, b) = (&along(a)?, &along(b)?);
    let size = |x: &Tensor| -> Result<Tensor> {
        clamp(&reduce::norm(x, 2.0, &[dim], false)?, Some(&Operand::from(eps)), None)
    };
    bin(Binary::Div, &product, &bin(Binary::Mul, &size(a)?, &size(b)?)?)
}
