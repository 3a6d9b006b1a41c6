//! Optimizer steps: all parameters in one call and, where they are alike, one instruction, after which the program may be sealed (C3).

use crate::Tensor;
use crate::autograd::{GradMode, Var, record_all};
use crate::current::current_stream;
use crate::signal;
use gt_ir::{Binary, Op, Operand, Operands, Result, bail};
use std::collections::BTreeMap;

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

/// A parameter and its gradient as operands; their types are one.
fn pair(args: &mut Operands<Var>, p: &Tensor, g: &Tensor) -> Result<()> {
    let (p, g) = (p.var()?, g.var()?);
    if g.value.ty != p.value.ty {
        bail!(
            Runtime,
            "optimizer step: a gradient of {} does not fit its parameter {}",
            g.value.ty,
            p.value.ty
        );
    }
    args.extend([Operand::Val(p), Operand::Val(g)]);
    Ok(())
}

fn write(t: &Tensor, v: Option<Var>) -> Result<()> {
    match v {
        Some(v) => t.write(Operand::Val(Var::plain(v.value))),
        None => bail!(Runtime, "optimizer step: a result is missing"),
    }
}

/// Marks the end of a step in the stream the parameters' session has on this thread.
pub fn end_step(params: &[Tensor]) -> Result<()> {
    if let Some(p) = params.first() {
        crate::signal::poll()?;
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
    let momentum = o.momentum != 0.0;
    // What lies alike goes together: parameters that have a speed already, then those that get one.
    let mut groups: BTreeMap<(u32, bool), Vec<usize>> = BTreeMap::new();
    for i in (0..params.len()).filter(|&i| grads[i].is_some()) {
        let first = momentum && buffers[i].is_none();
        groups.entry((signal::of(&params[i]), first)).or_default().push(i);
    }
    for ((lies, first), group) in groups {
        let op = Op::Sgd {
            momentum,
            first,
            dampened: momentum && o.dampening != 0.0,
            nesterov: momentum && o.nesterov,
            maximize: o.maximize,
            decay: o.weight_decay != 0.0,
        };
        let numbers = [o.lr, o.momentum, 1.0 - o.dampening, o.weight_decay];
        let mut args: Operands<Var> = numbers.into_iter().map(Operand::from).collect();
        for &i in &group {
            let Some(g) = &grads[i] else { continue };
            pair(&mut args, &params[i], g)?;
            if let (true, false, Some(Some(speed))) = (momentum, first, buffers.get(i)) {
                args.push(Operand::Val(speed.var()?));
            }
        }
        let mut outs = signal::like(lies, true, || record_all(op, args))?.into_iter();
        for &i in &group {
            write(&params[i], outs.next())?;
            if momentum {
                match &buffers[i] {
                    Some(speed) => write(speed, outs.next())?,
                    None => buffers[i] = outs.next().map(Tensor::from_var),
                }
            }
        }
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
    // Parameters that lie alike and have taken equally many steps go together.
    let mut groups: BTreeMap<(u32, u64), Vec<usize>> = BTreeMap::new();
    for i in (0..params.len()).filter(|&i| grads[i].is_some()) {
        let lies = signal::of(&params[i]);
        let state = match &mut states[i] {
            Some(state) => state,
            empty => {
                let zeros = || super::create::zeros_like(&params[i], None);
                let zero = || signal::like(lies, true, zeros);
                let largest = if o.amsgrad { Some(zero()?) } else { None };
                empty.insert(AdamState { step: 0, mean: zero()?, square: zero()?, largest })
            }
        };
        state.step += 1;
        groups.entry((lies, state.step)).or_default().push(i);
    }
    let (b1, b2) = o.betas;
    for ((lies, step), group) in groups {
        let t = step as f64;
        let shrink = if o.decoupled { 1.0 - o.lr * o.weight_decay } else { o.weight_decay };
        let numbers = [
            o.lr / (1.0 - b1.powf(t)),
            shrink,
            o.eps,
            1.0 / (1.0 - b2.powf(t)).sqrt(),
            1.0 - b1,
            b2,
            1.0 - b2,
        ];
        for amsgrad in [false, true] {
            let keeps = |i: &usize| states[*i].as_ref().is_some_and(|s| s.largest.is_some() == amsgrad);
            let group: Vec<usize> = group.iter().copied().filter(keeps).collect();
            if group.is_empty() {
                continue;
            }
            let decay = o.weight_decay != 0.0;
            let op = Op::Adam { decoupled: o.decoupled, amsgrad, maximize: o.maximize, decay };
            let mut args: Operands<Var> = numbers.into_iter().map(Operand::from).collect();
            for &i in &group {
                let (Some(g), Some(state)) = (&grads[i], &states[i]) else { continue };
                pair(&mut args, &params[i], g)?;
                for t in [&state.mean, &state.square].into_iter().chain(&state.largest) {
                    args.push(Operand::Val(t.var()?));
                }
            }
            let mut outs = signal::like(lies, true, || record_all(op, args))?.into_iter();
            for &i in &group {
                let Some(state) = &states[i] else { continue };
                for t in [&params[i], &state.mean, &state.square].into_iter().chain(&state.largest) {
                    write(t, outs.next())?;
                }
            }
        }
    }
    end_step(params)
}

/// Scales the gradients of parameters so that their common norm is at most `max_norm`; gives the norm they had.
pub fn clip_grad_norm(params: &[Tensor], max_norm: f64, p: f64) -> Result<Option<Tensor>> {
    let _mode = GradMode::set(false);
    // Each gradient is worked on where its parameter lies.
    let grads: Vec<(Tensor, u32)> = params.iter().filter_map(|p| Some((p.grad()?, signal::of(p)))).collect();
    let mut norms = Vec::new();
    for (g, lies) in &grads {
        norms.push(signal::like(*lies, false, || super::reduce::norm(g, p, &[], false))?);
    }
    if norms.is_empty() {
        return Ok(None);
    }
    let total = super::reduce::norm(&super::join::stack(&norms, 0)?, p, &[], false)?;
    let scale = super::bin(Binary::Div, max_norm, &super::bin(Binary::Add, &total, 1e-6)?)?;
    let scale = super::pointwise::clamp(&scale, None, Some(&1.0.into()))?;
    for (g, lies) in &grads {
        let scaled = signal::like(*lies, false, || {
            super::bin(Binary::Mul, g, &super::arith::cast(&scale, g.dtype())?)
        })?;
        write(g, Some(scaled.var()?))?;
    }
    Ok(Some(total))
}
