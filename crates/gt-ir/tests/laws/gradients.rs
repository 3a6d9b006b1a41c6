//! Gradients: every rule against finite differences, and so is the gradient of every rule.

use crate::tape::Tape;
use gt_ir::build::{Build, Operand, Operands};
use gt_ir::host::close_f64;
use gt_ir::sample::{Rng, Sample, SampleArg, draw, samples};
use gt_ir::{DType, HostTensor, Scalar};

const STEP: f64 = 1e-4;

/// Samples through which doubles flow and that can be differentiated so often.
fn smooth(orders: u8) -> Vec<Sample> {
    let flows = move |s: &Sample| {
        let of_f64 = |a: &SampleArg| matches!(a, SampleArg::Val(v) if v.ty.dtype == DType::F64);
        s.orders >= orders && s.args.iter().any(of_f64) && s.eval().is_ok_and(|y| y[0].ty.dtype == DType::F64)
    };
    samples(2).into_iter().filter(flows).collect()
}

/// Puts a sample on a tape; gives its operands' values (for numbers: none) and its first result.
fn record(tape: &mut Tape, sample: &Sample) -> (Vec<Option<usize>>, usize) {
    let mut args: Operands<usize> = Operands::new();
    let mut leaves = Vec::new();
    for arg in &sample.args {
        match arg {
            SampleArg::Val(v) => {
                let leaf = tape.leaf(v.clone());
                leaves.push(Some(leaf));
                args.push(Operand::Val(leaf));
            }
            SampleArg::Num(x) => {
                leaves.push(None);
                args.push(Operand::Num(*x));
            }
            SampleArg::Data(_) => unreachable!("an op of bytes has no tensor operand"),
        }
    }
    let outs = tape.emit_all(sample.op.clone(), args).unwrap();
    (leaves, outs[0])
}

/// A random cotangent for every floating-point result.
fn cotangents(rng: &mut Rng, sample: &Sample) -> Vec<Option<HostTensor>> {
    let outs = sample.eval().unwrap();
    outs.iter().map(|y| y.ty.dtype.is_float().then(|| draw(rng, &y.ty, (-1.0, 1.0)))).collect()
}

/// The results' product with their cotangents.
fn total(cotangents: &[Option<HostTensor>], outs: &[HostTensor]) -> f64 {
    cotangents.iter().zip(outs).filter_map(|(c, y)| Some(dot(c.as_ref()?, y))).sum()
}

fn is_float(arg: &SampleArg) -> bool {
    matches!(arg, SampleArg::Val(v) if v.ty.dtype.is_float())
}

fn dot(a: &HostTensor, b: &HostTensor) -> f64 {
    a.to_f64s().iter().zip(b.to_f64s()).map(|(x, y)| x * y).sum()
}

fn bump(x: &HostTensor, i: usize, by: f64) -> HostTensor {
    let mut x = x.clone();
    x.set(i, Scalar::Float(x.get(i).as_f64() + by));
    x
}

/// Checks a claimed gradient (`None` claims zero) of `f` at `x` against central differences.
fn check(what: &str, x: &HostTensor, claimed: Option<&HostTensor>, f: impl Fn(HostTensor) -> f64) {
    for i in 0..x.numel() {
        let slope = (f(bump(x, i, STEP)) - f(bump(x, i, -STEP))) / (2.0 * STEP);
        let claim = claimed.map_or(0.0, |g| g.get(i).as_f64());
        assert!(close_f64(slope, claim, 1e-5, 1e-5), "{what}, element {i}: claims {claim}, is {slope}");
    }
}

/// The sample with one operand replaced.
fn with(sample: &Sample, i: usize, x: HostTensor) -> Sample {
    let mut sample = sample.clone();
    sample.args[i] = SampleArg::Val(x);
    sample
}

/// Values on a tape; none for what is no tensor, or zero.
type Places = Vec<Option<usize>>;

/// The gradients of a sample's float operands, under cotangents.
fn gradients(sample: &Sample, cotangents: &[Option<HostTensor>]) -> (Tape, Places, Places, Places) {
    let mut tape = Tape::default();
    let (leaves, out) = record(&mut tape, sample);
    let g: Vec<Option<usize>> = cotangents.iter().map(|c| c.as_ref().map(|c| tape.leaf(c.clone()))).collect();
    let grads = if sample.op.differentiable() {
        let wanted: Vec<bool> = sample.args.iter().map(is_float).collect();
        let mut grads =
            tape.vjp_of(out, &g, &wanted).unwrap_or_else(|e| panic!("{}: {e}", sample.describe()));
        grads.resize(leaves.len(), None);
        grads
    } else {
        vec![None; leaves.len()]
    };
    (tape, leaves, g, grads)
}

#[test]
fn gradients_are_finite_differences() {
    let mut rng = Rng::new(5);
    for sample in smooth(1) {
        let cotangents = cotangents(&mut rng, &sample);
        let (tape, _, _, grads) = gradients(&sample, &cotangents);
        for (i, arg) in sample.args.iter().enumerate() {
            let SampleArg::Val(x) = arg else { continue };
            if x.ty.dtype != DType::F64 {
                continue;
            }
            let claimed = grads[i].map(|g| &tape.values[g]);
            let what = format!("{} gradient {i}", sample.describe());
            check(&what, x, claimed, |x| total(&cotangents, &with(&sample, i, x).eval().unwrap()));
        }
    }
}

#[test]
fn gradients_of_gradients_are_finite_differences() {
    let mut rng = Rng::new(6);
    for sample in smooth(2) {
        let cotangents = cotangents(&mut rng, &sample);
        let (mut tape, leaves, g, grads) = gradients(&sample, &cotangents);
        // The scalar <u, gradients>, as a function of the operands and of the cotangent.
        let weights: Vec<Option<HostTensor>> =
            grads.iter().map(|d| d.map(|d| draw(&mut rng, &tape.ty(&d), (-1.0, 1.0)))).collect();
        let value = |sample: &Sample, cotangents: &[Option<HostTensor>]| -> f64 {
            let (tape, _, _, grads) = gradients(sample, cotangents);
            grads.iter().zip(&weights).filter_map(|(d, u)| Some(dot(&tape.values[(*d)?], u.as_ref()?))).sum()
        };
        let seeds: Vec<(usize, usize)> = grads
            .iter()
            .zip(&weights)
            .filter_map(|(d, u)| Some((*d)?).zip(u.clone()))
            .map(|(d, u)| (d, tape.leaf(u)))
            .collect();
        let mut all: Vec<usize> = leaves.iter().flatten().copied().collect();
        all.extend(g.iter().flatten());
        let second =
            tape.backward(&seeds, &all).unwrap_or_else(|e| panic!("second {}: {e}", sample.describe()));
        let claim = |leaf: usize| {
            let at = all.iter().position(|&l| l == leaf)?;
            second[at].map(|d| &tape.values[d])
        };
        for (i, arg) in sample.args.iter().enumerate() {
            let (SampleArg::Val(x), Some(leaf)) = (arg, leaves[i]) else { continue };
            if x.ty.dtype == DType::F64 {
                let what = format!("{} second gradient {i}", sample.describe());
                check(&what, x, claim(leaf), |x| value(&with(&sample, i, x), &cotangents));
            }
        }
        for (k, cotangent) in cotangents.iter().enumerate() {
            let (Some(x), Some(leaf)) = (cotangent, g[k]) else { continue };
            let what = format!("{} second gradient of cotangent {k}", sample.describe());
            check(&what, x, claim(leaf), |c| {
                let mut moved = cotangents.clone();
                moved[k] = Some(c);
                value(&sample, &moved)
            });
        }
    }
}

#[test]
fn a_gradient_wanted_alone_is_the_same_and_has_the_operands_type() {
    let mut rng = Rng::new(7);
    for sample in samples(3).into_iter().filter(|s| s.op.differentiable() && s.args.iter().any(is_float)) {
        let cotangents = cotangents(&mut rng, &sample);
        if cotangents[0].is_none() {
            continue;
        }
        let (tape, _, _, grads) = gradients(&sample, &cotangents);
        for i in (0..sample.args.len()).filter(|&i| is_float(&sample.args[i])) {
            let mut alone = Tape::default();
            let (_, out) = record(&mut alone, &sample);
            let g: Vec<Option<usize>> =
                cotangents.iter().map(|c| c.as_ref().map(|c| alone.leaf(c.clone()))).collect();
            let wanted: Vec<bool> = (0..sample.args.len()).map(|j| j == i).collect();
            let found = alone.vjp_of(out, &g, &wanted).unwrap();
            let (a, b) = (found[i].map(|v| &alone.values[v]), grads[i].map(|v| &tape.values[v]));
            assert_eq!(a, b, "{} gradient {i}", sample.describe());
        }
    }
}
