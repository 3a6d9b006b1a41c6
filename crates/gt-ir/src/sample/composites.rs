//! Sample instances of the composites.

use super::SampleArg;
use super::draw::draw_index;
use super::ops::Samples;
use crate::op::Op;
use crate::{DType, Scalar, Shape};

/// Narrow enough that exponentials of products stay smooth at the step of finite differences.
const NARROW: (f64, f64) = (-1.5, 1.5);

fn number(x: f64) -> SampleArg {
    SampleArg::Num(Scalar::Float(x))
}

pub(super) fn norm(s: &mut Samples, op: impl Fn(usize) -> Op, most: usize) {
    let cases: [(Shape, usize); 5] = [
        ([5].into(), 1),
        ([3, 4].into(), 1),
        ([2, 3, 4].into(), 2),
        ([2, 1, 3].into(), 1),
        ([0, 3].into(), 1),
    ];
    for affine in 0..=most {
        s.each(DType::is_float, &cases, |s, dtype, (shape, dims)| {
            let trailing: Shape = shape[shape.len() - dims..].into();
            let mut args = vec![s.val(dtype, &shape, NARROW), number(0.1)];
            args.extend((0..affine).map(|_| s.val(dtype, &trailing, NARROW)));
            s.push(op(dims), args);
        });
    }
}

pub(super) fn cross_entropy(s: &mut Samples) {
    // Shape of the logits, and which target is ignored.
    let cases: [(Shape, i64); 5] = [
        ([4].into(), -100),
        ([3, 5].into(), 2),
        ([2, 3, 4].into(), -1),
        ([4, 1].into(), -100),
        ([0, 3].into(), 0),
    ];
    s.each(DType::is_float, &cases, |s, dtype, (shape, ignored)| {
        let last = shape.len() - 1;
        let rows: Shape = shape[..last].into();
        let at = s.rng.pick(&[DType::I64, DType::I32, DType::I16]);
        let mut target = draw_index(&mut s.rng, at, &rows, shape[last], None);
        if rows.numel() > 1 {
            target.set(1, Scalar::Int(ignored));
        }
        let x = s.val(dtype, &shape, NARROW);
        s.push(Op::CrossEntropy, vec![x, SampleArg::Val(target), SampleArg::Num(Scalar::Int(ignored))]);
    });
}

/// One attention: batch, heads, key heads, rows, columns, sizes of a key and of a value, mask and causality.
type Case = (&'static [usize], [usize; 2], [usize; 2], [usize; 2], Option<(Shape, bool)>, bool);

fn attentions() -> Vec<Case> {
    vec![
        (&[], [1, 1], [2, 3], [2, 2], None, false),
        (&[2], [2, 2], [3, 3], [2, 1], None, true),
        (&[1], [4, 2], [2, 3], [1, 2], Some(([2, 3].into(), false)), false),
        (&[2], [2, 1], [2, 2], [2, 2], Some(([2, 1, 2, 2].into(), true)), true),
        (&[0], [2, 2], [2, 2], [2, 3], None, false),
        (&[2], [1, 1], [3, 2], [1, 1], Some(([2].into(), false)), true),
    ]
}

/// (q, k, v), their output's type and that of the log-sum-exp.
fn projected(s: &mut Samples, dtype: DType, case: &Case) -> (Vec<SampleArg>, Shape, Shape) {
    let (batch, [heads, key_heads], [rows, columns], [d, e], ..) = case;
    let shape = |tail: [usize; 3]| -> Shape { batch.iter().copied().chain(tail).collect() };
    let args = [[*heads, *rows, *d], [*key_heads, *columns, *d], [*key_heads, *columns, *e]]
        .map(|tail| s.val(dtype, &shape(tail), NARROW))
        .to_vec();
    (args, shape([*heads, *rows, *e]), batch.iter().copied().chain([*heads, *rows]).collect())
}

/// Adds the scale and the mask; a bool mask shows every row its first column.
fn masked(s: &mut Samples, dtype: DType, case: &Case, args: &mut Vec<SampleArg>) {
    args.push(number(0.6));
    let Some((shape, truth)) = &case.4 else { return };
    args.push(s.val(if *truth { DType::Bool } else { dtype }, shape, NARROW));
    if let (true, Some(SampleArg::Val(mask))) = (*truth, args.last_mut()) {
        let columns = shape[shape.len() - 1];
        (0..mask.numel()).step_by(columns).for_each(|i| mask.set(i, Scalar::Bool(true)));
    }
}

pub(super) fn attention(s: &mut Samples) {
    s.each(DType::is_float, &attentions(), |s, dtype, case| {
        let (mut args, _, _) = projected(s, dtype, &case);
        masked(s, dtype, &case, &mut args);
        s.push(Op::Attention { causal: case.5 }, args);
    });
}

pub(super) fn attention_grad(s: &mut Samples) {
    s.each(DType::is_float, &attentions(), |s, dtype, case| {
        let (mut args, out, lse) = projected(s, dtype, &case);
        args.push(s.val(dtype, &out, NARROW));
        args.push(s.val(crate::composite::wide(dtype), &lse, (1.0, 3.0)));
        args.push(s.val(dtype, &out, NARROW));
        masked(s, dtype, &case, &mut args);
        s.push(Op::AttentionGrad { causal: case.5 }, args);
    });
}

fn parameters() -> Vec<Vec<Shape>> {
    vec![vec![[3].into()], vec![[2, 3].into(), [].into(), [4].into()], vec![[0, 2].into(), [5, 1].into()]]
}

pub(super) fn sgd(s: &mut Samples) {
    let flags = |bits: usize| {
        let on = |k: usize| bits >> k & 1 == 1;
        let momentum = on(0);
        Op::Sgd {
            momentum,
            first: momentum && on(1),
            dampened: momentum && on(2),
            nesterov: momentum && on(3),
            maximize: on(4),
            decay: on(5),
        }
    };
    for bits in [0, 1, 3, 5, 9, 16, 33, 61] {
        s.each(DType::is_float, &parameters(), |s, dtype, shapes| {
            let op = flags(bits);
            let mut args: Vec<SampleArg> = [0.1, 0.9, 0.7, 0.05].map(number).to_vec();
            for shape in &shapes {
                args.extend((0..op.group()).map(|_| s.val(dtype, shape, NARROW)));
            }
            s.push_flat(op, args);
        });
    }
}

pub(super) fn adam(s: &mut Samples) {
    for bits in [0, 1, 2, 4, 8, 9, 15] {
        let on = |k: usize| bits >> k & 1 == 1;
        let op = Op::Adam { decoupled: on(0), amsgrad: on(1), maximize: on(2), decay: on(3) };
        s.each(DType::is_float, &parameters(), |s, dtype, shapes| {
            let mut args: Vec<SampleArg> = [0.1, 0.95, 1e-2, 0.4, 0.1, 0.98, 0.02].map(number).to_vec();
            for shape in &shapes {
                args.extend((0..3).map(|_| s.val(dtype, shape, NARROW)));
                args.extend((3..op.group()).map(|_| s.val(dtype, shape, (0.2, 4.0))));
            }
            s.push_flat(op.clone(), args);
        });
    }
}
