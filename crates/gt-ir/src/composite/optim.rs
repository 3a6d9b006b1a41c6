//! Optimizer steps: all parameters of a group in one instruction. The numbers come first, then the tensors of one
//! parameter after those of another.

use super::{Reads, widened};
use crate::build::{Build, Operand, Values};
use crate::elementwise::{Binary, Unary};
use crate::op::{ADAM_NUMBERS, Op, SGD_NUMBERS};
use crate::{Result, bail};

/// The gradient as the step sees it: negated when maximizing, with weight decay added.
fn prepared<B: Build>(
    b: &mut B,
    p: &B::V,
    g: &B::V,
    maximize: bool,
    decay: Option<Operand<B::V>>,
) -> Result<B::V> {
    let mut g = widened(b, g)?;
    if maximize {
        g = b.un(Unary::Neg, &g)?;
    }
    if let Some(decay) = decay {
        let shrink = b.bin(Binary::Mul, p, decay)?;
        g = b.add(&g, &shrink)?;
    }
    Ok(g)
}

pub(super) fn sgd<B: Build>(b: &mut B, op: &Op, args: &[Operand<B::V>]) -> Result<Values<B::V>> {
    let Op::Sgd { momentum, first, dampened, nesterov, maximize, decay } = *op else {
        bail!(Value, "{}: is no SGD step", op.text());
    };
    let a = Reads { op, args };
    let (lr, kept, push, shrink) = (a.get(0)?, a.get(1)?, a.get(2)?, a.get(3)?);
    let mut out = Values::new();
    for at in (SGD_NUMBERS..args.len()).step_by(op.group()) {
        let dtype = b.ty(a.val(at)?).dtype;
        let p = widened(b, a.val(at)?)?;
        let mut d = prepared(b, &p, a.val(at + 1)?, maximize, decay.then(|| shrink.clone()))?;
        let mut speed = None;
        if momentum {
            let new = if first {
                d.clone()
            } else {
                let old = widened(b, a.val(at + 2)?)?;
                let old = b.bin(Binary::Mul, &old, kept.clone())?;
                let more = if dampened { b.bin(Binary::Mul, &d, push.clone())? } else { d.clone() };
                b.add(&old, &more)?
            };
            d = if nesterov {
                let ahead = b.bin(Binary::Mul, &new, kept.clone())?;
                b.add(&d, &ahead)?
            } else {
                new.clone()
            };
            speed = Some(new);
        }
        let change = b.bin(Binary::Mul, &d, lr.clone())?;
        let p = b.bin(Binary::Sub, &p, &change)?;
        out.push(b.cast(&p, dtype)?);
        if let Some(speed) = speed {
            out.push(b.cast(&speed, dtype)?);
        }
    }
    Ok(out)
}

pub(super) fn adam<B: Build>(b: &mut B, op: &Op, args: &[Operand<B::V>]) -> Result<Values<B::V>> {
    let Op::Adam { decoupled, amsgrad, maximize, decay } = *op else {
        bail!(Value, "{}: is no Adam step", op.text());
    };
    let a = Reads { op, args };
    let (rate, shrink, eps, correction) = (a.get(0)?, a.get(1)?, a.get(2)?, a.get(3)?);
    let (mean_push, square_keep, square_push) = (a.get(4)?, a.get(5)?, a.get(6)?);
    let mut out = Values::new();
    for at in (ADAM_NUMBERS..args.len()).step_by(op.group()) {
        let dtype = b.ty(a.val(at)?).dtype;
        let mut p = widened(b, a.val(at)?)?;
        let added = (decay && !decoupled).then(|| shrink.clone());
        let g = prepared(b, &p, a.val(at + 1)?, maximize, added)?;
        if decay && decoupled {
            p = b.bin(Binary::Mul, &p, shrink.clone())?;
        }
        let mean = widened(b, a.val(at + 2)?)?;
        let gap = b.bin(Binary::Sub, &g, &mean)?;
        let gap = b.bin(Binary::Mul, &gap, mean_push.clone())?;
        let mean = b.add(&mean, &gap)?;
        let square = widened(b, a.val(at + 3)?)?;
        let square = b.bin(Binary::Mul, &square, square_keep.clone())?;
        let g2 = b.mul(&g, &g)?;
        let g2 = b.bin(Binary::Mul, &g2, square_push.clone())?;
        let square = b.add(&square, &g2)?;
        let mut second = square.clone();
        if amsgrad {
            let largest = widened(b, a.val(at + 4)?)?;
            second = b.bin(Binary::Max, &largest, &second)?;
        }
        let root = b.un(Unary::Sqrt, &second)?;
        let root = b.bin(Binary::Mul, &root, correction.clone())?;
        let under = b.bin(Binary::Add, &root, eps.clone())?;
        let ratio = b.bin(Binary::Div, &mean, &under)?;
        let change = b.bin(Binary::Mul, &ratio, rate.clone())?;
        let p = b.bin(Binary::Sub, &p, &change)?;
        out.push(b.cast(&p, dtype)?);
        out.push(b.cast(&mean, dtype)?);
        out.push(b.cast(&square, dtype)?);
        if amsgrad {
            out.push(b.cast(&second, dtype)?);
        }
    }
    Ok(out)
}
