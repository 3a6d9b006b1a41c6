//! Optimizer steps: all parameters in one call, after which the program may be sealed (C3).

use crate::Tensor;
use crate::autograd::{GradMode, Recorder, Var};
use crate::current::current_stream;
use gt_ir::{Binary, Build, Operand, Result, Unary, bail};

/// Settings of stochastic gradient descent.
#[derive(Clone, Debug)]
pub struct Sgd {
    pub lr: f64,
    pub momentum: f64,
    pub dampening: f64,
    pub weight_decay: f64,
    pub nesterov: bool,
    pub maximize: bool,
}

/// Settings of Adam and AdamW.
#[derive(Clone, Debug)]
pub struct Adam {
    pub lr: f64,
    pub betas: (f64, f64),
    pub eps: f64,
    pub weight_decay: f64,
    /// AdamW: the decay shrinks the parameter and stays out of the gradient.
    pub decoupled: bool,
    pub amsgrad: bool,
    pub maximize: bool,
}

/// What Adam keeps per parameter.
#[derive(Clone)]
pub struct AdamState {
    pub step: u64,
    pub mean: Tensor,
    pub square: Tensor,
    pub largest: Option<Tensor>,
}

fn num(x: &Var, op: Binary, n: f64) -> Result<Var> {
    Recorder.bin(op, x, n)
}

/// The gradient as the step sees it: negated when maximizing, with weight decay added.
fn prepared(p: &Var, g: &Tensor, maximize: bool, decay: f64) -> Result<Var> {
    let mut g = g.var()?;
    if g.value.ty != p.value.ty {
        bail!(
            Runtime,
            "optimizer step: a gradient of {} does not fit its parameter {}",
            g.value.ty,
            p.value.ty
        );
    }
    if maximize {
        g = Recorder.un(Unary::Neg, &g)?;
    }
    if decay != 0.0 {
        let shrink = num(p, Binary::Mul, decay)?;
        g = Recorder.add(&g, &shrink)?;
    }
    Ok(g)
}

fn write(t: &Tensor, v: Var) -> Result<()> {
    t.write(Operand::Val(Var::plain(v.value)))
}

/// Marks the end of a step in the stream the parameters' session has on this thread.
pub fn end_step(params: &[Tensor]) -> Result<()> {
    if let Some(p) = params.first() {
        current_stream(&p.session()?).end_step();
    }
    Ok(())
}

/// One step of SGD. `buffers` holds the momentum of each parameter and is filled on the first step. Parameters
/// without gradient are left alone.
pub fn sgd_step(
    params: &[Tensor],
    grads: &[Option<Tensor>],
    buffers: &mut [Option<Tensor>],
    o: &Sgd,
) -> Result<()> {
    if grads.len() != params.len() || (o.momentum != 0.0 && buffers.len() != params.len()) {
        bail!(Value, "sgd: {} parameters, got {} gradients", params.len(), grads.len());
    }
    let _mode = GradMode::set(false);
    for (i, p) in params.iter().enumerate() {
        let Some(g) = &grads[i] else { continue };
        let old = p.var()?;
        let mut d = prepared(&old, g, o.maximize, o.weight_decay)?;
        if o.momentum != 0.0 {
            let speed = match &buffers[i] {
                None => {
                    buffers[i] = Some(Tensor::from_value(d.value.clone()));
                    d.clone()
                }
                Some(buffer) => {
                    let kept = num(&buffer.var()?, Binary::Mul, o.momentum)?;
                    let push =
                        if o.dampening == 0.0 { d.clone() } else { num(&d, Binary::Mul, 1.0 - o.dampening)? };
                    let speed = Recorder.add(&kept, &push)?;
                    write(buffer, speed.clone())?;
                    speed
                }
            };
            d = if o.nesterov {
                let ahead = num(&speed, Binary::Mul, o.momentum)?;
                Recorder.add(&d, &ahead)?
            } else {
                speed
            };
        }
        let change = num(&d, Binary::Mul, o.lr)?;
        write(p, Recorder.bin(Binary::Sub, &old, &change)?)?;
    }
    end_step(params)
}

/// One step of Adam or AdamW. `states` is filled on the first step. Parameters without gradient are left alone.
pub fn adam_step(
    params: &[Tensor],
    grads: &[Option<Tensor>],
    states: &mut [Option<AdamState>],
    o: &Adam,
) -> Result<()> {
    if grads.len() != params.len() || states.len() != params.len() {
        bail!(
            Value,
            "adam: {} parameters, got {} gradients and {} states",
            params.len(),
            grads.len(),
            states.len()
        );
    }
    let _mode = GradMode::set(false);
    let (b1, b2) = o.betas;
    for (i, p) in params.iter().enumerate() {
        let Some(g) = &grads[i] else { continue };
        let mut old = p.var()?;
        let g = prepared(&old, g, o.maximize, if o.decoupled { 0.0 } else { o.weight_decay })?;
        if o.decoupled && o.weight_decay != 0.0 {
            old = num(&old, Binary::Mul, 1.0 - o.lr * o.weight_decay)?;
        }
        let state = match &mut states[i] {
            Some(state) => state,
            empty => {
                let zero = || super::create::zeros_like(p, None);
                let largest = if o.amsgrad { Some(zero()?) } else { None };
                empty.insert(AdamState { step: 0, mean: zero()?, square: zero()?, largest })
            }
        };
        state.step += 1;
        let t = state.step as f64;
        let m = state.mean.var()?;
        let gap = Recorder.bin(Binary::Sub, &g, &m)?;
        let mean = Recorder.add(&m, &num(&gap, Binary::Mul, 1.0 - b1)?)?;
        let kept = num(&state.square.var()?, Binary::Mul, b2)?;
        let g2 = Recorder.mul(&g, &g)?;
        let square = Recorder.add(&kept, &num(&g2, Binary::Mul, 1.0 - b2)?)?;
        write(&state.mean, mean.clone())?;
        write(&state.square, square.clone())?;
        let mut second = square;
        if let Some(largest) = &state.largest {
            second = Recorder.bin(Binary::Max, &largest.var()?, &second)?;
            write(largest, second.clone())?;
        }
        let root = Recorder.un(Unary::Sqrt, &second)?;
        let root = num(&root, Binary::Div, (1.0 - b2.powf(t)).sqrt())?;
        let denominator = num(&root, Binary::Add, o.eps)?;
        let ratio = Recorder.bin(Binary::Div, &mean, &denominator)?;
        let change = num(&ratio, Binary::Mul, o.lr / (1.0 - b1.powf(t)))?;
        write(p, Recorder.bin(Binary::Sub, &old, &change)?)?;
    }
    end_step(params)
}

/// Scales gradients so that their common norm is at most `max_norm`; gives the norm they had.
pub fn clip_grad_norm(grads: &[Tensor], max_norm: f64, p: f64) -> Result<Option<Tensor>> {
    let _mode = GradMode::set(false);
    let mut norms = Vec::new();
    for g in grads {
        norms.push(super::reduce::norm(g, p, &[], false)?);
    }
    if norms.is_empty() {
        return Ok(None);
    }
    let total = super::reduce::norm(&super::join::stack(&norms, 0)?, p, &[], false)?;
    let scale = super::bin(Binary::Div, max_norm, &super::bin(Binary::Add, &total, 1e-6)?)?;
    let scale = super::pointwise::clamp(&scale, None, Some(&1.0.into()))?;
    for g in grads {
        let scaled = super::bin(Binary::Mul, g, &super::arith::cast(&scale, g.dtype())?)?;
        write(g, scaled.var()?)?;
    }
    Ok(Some(total))
}
