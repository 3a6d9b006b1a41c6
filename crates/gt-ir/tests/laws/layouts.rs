//! Layouts: every legal way to split an op gives the unsplit result, on even, uneven and empty parts.

use gt_ir::host::{close, tolerance};
use gt_ir::layout::{
    Layout, LocalArg, Part, Rule, by_blocks, by_key_heads, identity, legal, localize, part_range,
};
use gt_ir::op::{Op, View};
use gt_ir::reference::{RefArg, eval, eval_all};
use gt_ir::sample::{Rng, Sample, SampleArg, samples};
use gt_ir::{ArgTy, Binary, DType, HostTensor, Kind, ReduceKind, Scalar, Ty};

const PARTS: [usize; 4] = [1, 2, 3, 8];

fn fold(kind: ReduceKind) -> Binary {
    match kind {
        ReduceKind::Sum => Binary::Add,
        ReduceKind::Prod => Binary::Mul,
        ReduceKind::Max => Binary::Max,
        ReduceKind::Min => Binary::Min,
    }
}

/// What each part holds of a tensor in a layout.
fn deal(rng: &mut Rng, x: &HostTensor, layout: Layout, parts: usize) -> Vec<HostTensor> {
    match layout {
        Layout::Whole => vec![x.clone(); parts],
        Layout::Split(dim) => (0..parts)
            .map(|i| {
                let range = part_range(x.ty.shape[dim], parts, i);
                let slice = Op::View(View::Slice { dim, len: range.len(), step: 1 });
                eval(&slice, &[RefArg::Val(x), RefArg::Num(Scalar::Int(range.start as i64))]).unwrap()
            })
            .collect(),
        Layout::Partial(kind) => {
            let neutral = identity(kind, x.ty.dtype);
            let mut held: Vec<HostTensor> = (0..parts)
                .map(|_| HostTensor::from_scalars(&x.ty, (0..x.numel()).map(|_| neutral)))
                .collect();
            for i in 0..x.numel() {
                let (one, other) = (rng.below(parts), rng.below(parts));
                held[one].set(i, x.get(i));
                if one != other && x.ty.dtype.kind() != Kind::Bool {
                    // Halves are exact in every type, so the parts still make up the whole.
                    let (a, b) = match (kind, x.get(i)) {
                        (ReduceKind::Sum, Scalar::Float(v)) => {
                            (Scalar::Float(v / 2.0), Scalar::Float(v / 2.0))
                        }
                        (ReduceKind::Sum, v) => (Scalar::Int(v.as_i64().wrapping_sub(3)), Scalar::Int(3)),
                        (ReduceKind::Prod, v) => (v, neutral),
                        (ReduceKind::Max | ReduceKind::Min, v) => (v, v),
                    };
                    held[one].set(i, a);
                    held[other].set(i, b);
                }
            }
            held
        }
    }
}

/// The whole tensor from what the parts hold.
fn gather(held: &[HostTensor], layout: Layout) -> Result<HostTensor, String> {
    match layout {
        Layout::Whole => match held.iter().find(|x| **x != held[0]) {
            None => Ok(held[0].clone()),
            Some(_) => Err("parts differ though the result is whole".into()),
        },
        Layout::Split(dim) => {
            let args: Vec<RefArg> = held.iter().map(RefArg::Val).collect();
            eval(&Op::Concat { dim }, &args).map_err(|e| e.to_string())
        }
        Layout::Partial(kind) => {
            let mut total = held[0].clone();
            for x in &held[1..] {
                let args = [RefArg::Val(&total), RefArg::Val(x)];
                total = eval(&Op::Binary(fold(kind)), &args).map_err(|e| e.to_string())?;
            }
            Ok(total)
        }
    }
}

fn run_split(rng: &mut Rng, sample: &Sample, rule: &Rule, parts: usize) -> Result<Vec<HostTensor>, String> {
    let dealt: Vec<Option<Vec<HostTensor>>> = sample
        .args
        .iter()
        .zip(&rule.args)
        .map(|(arg, layout)| match (arg, layout) {
            (SampleArg::Val(x), Some(layout)) => Some(deal(rng, x, *layout, parts)),
            _ => None,
        })
        .collect();
    let mut held = Vec::new();
    for index in 0..parts {
        let local = localize(&sample.op, &[rule], &sample.arg_types(), &[Part::new(index, parts)])
            .map_err(|e| e.to_string())?;
        let whole = sample.ref_args();
        let args: Vec<RefArg> = local
            .args
            .iter()
            .map(|arg| match arg {
                LocalArg::Num(x) => RefArg::Num(*x),
                LocalArg::Own(i) => match &dealt[*i] {
                    Some(pieces) => RefArg::Val(&pieces[index]),
                    None => whole[*i],
                },
            })
            .collect();
        held.push(eval_all(&local.op, &args).map_err(|e| format!("part {index}: {e}"))?);
    }
    (0..rule.outs.len())
        .map(|k| gather(&held.iter().map(|outs| outs[k].clone()).collect::<Vec<_>>(), rule.outs[k]))
        .collect()
}

/// Rules that are legal where a number of things is divided evenly, and that number: heads of keys, blocks of a reshape.
fn where_even(sample: &Sample, types: &[Ty]) -> Vec<(Rule, usize)> {
    let args = sample.arg_types();
    let mut rules: Vec<(Rule, usize)> = by_key_heads(&sample.op, &args, types).into_iter().collect();
    if let (Op::View(View::Reshape(to)), [ArgTy::Val(x)]) = (&sample.op, &args[..]) {
        rules.extend(by_blocks(to, &x.shape).into_iter().map(|(d, e)| {
            let rule = Rule { args: vec![Some(Layout::Split(d))], outs: vec![Layout::Split(e)] };
            (rule, common(x.shape[d], to[e]))
        }));
    }
    rules
}

/// The greatest common divisor.
fn common(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common(b, a % b) }
}

/// Runs a sample under a rule in parts and compares what comes of it.
fn compare(rng: &mut Rng, sample: &Sample, whole: &[HostTensor], rule: &Rule, parts: usize) {
    let what = || format!("{} under {rule:?} in {parts} parts", sample.describe());
    let split = run_split(rng, sample, rule, parts).unwrap_or_else(|e| panic!("{}: {e}", what()));
    for (split, whole) in split.iter().zip(whole) {
        let (rtol, atol) = tolerance(whole.ty.dtype);
        let loose = if whole.ty.dtype.is_float() { 16.0 } else { 0.0 };
        close(split, whole, rtol * loose, atol * loose).unwrap_or_else(|e| panic!("{}: {e}", what()));
    }
}

#[test]
fn every_legal_layout_gives_the_unsplit_result() {
    let mut rng = Rng::new(8);
    let mut tried = 0;
    for sample in samples(4) {
        let whole = sample.eval().unwrap();
        let types: Vec<Ty> = whole.iter().map(|y| y.ty.clone()).collect();
        let rules = legal(&sample.op, &sample.arg_types(), &types);
        assert!(rules[0].outs == vec![Layout::Whole; whole.len()]);
        for rule in &rules {
            PARTS.into_iter().for_each(|parts| compare(&mut rng, &sample, &whole, rule, parts));
            tried += PARTS.len();
        }
        for (rule, count) in where_even(&sample, &types).into_iter().filter(|(rule, _)| !rules.contains(rule))
        {
            for parts in PARTS.into_iter().filter(|parts| count.is_multiple_of(*parts)) {
                compare(&mut rng, &sample, &whole, &rule, parts);
                tried += 1;
            }
        }
    }
    assert!(tried > 10_000, "{tried}");
}

/// A batch and its rows become one dimension, or come apart: a split goes along where both are divided evenly.
#[test]
fn a_split_passes_a_reshape_by_blocks() {
    let shapes: [(&[usize], &[usize]); 6] = [
        (&[8, 3, 4], &[24, 4]),
        (&[24, 4], &[8, 3, 4]),
        (&[2, 8, 3], &[2, 24]),
        (&[2, 24, 5], &[2, 8, 3, 5]),
        (&[6, 4, 2], &[3, 16]),
        (&[48], &[16, 3]),
    ];
    let mut rng = Rng::new(9);
    let mut tried = 0;
    for (from, to) in shapes {
        let ty = Ty::new(DType::F32, from);
        let x = HostTensor::from_scalars(&ty, (0..ty.shape.numel()).map(|k| Scalar::Float(k as f64)));
        let op = Op::View(View::Reshape(to.into()));
        let sample = Sample { op, args: vec![SampleArg::Val(x)], orders: 2 };
        let whole = sample.eval().unwrap();
        for (rule, count) in where_even(&sample, &[whole[0].ty.clone()]) {
            for parts in [2, 3, 8].into_iter().filter(|parts| count.is_multiple_of(*parts)) {
                compare(&mut rng, &sample, &whole, &rule, parts);
                tried += 1;
            }
        }
    }
    assert!(tried >= shapes.len(), "{tried}");
}

#[test]
fn parts_cover_a_dimension_in_order() {
    for n in 0..20 {
        for parts in 1..9 {
            let ranges: Vec<_> = (0..parts).map(|i| part_range(n, parts, i)).collect();
            assert_eq!(ranges.iter().flat_map(|r| r.clone()).collect::<Vec<_>>(), (0..n).collect::<Vec<_>>());
            let sizes: Vec<usize> = ranges.iter().map(|r| r.len()).collect();
            assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1);
        }
    }
}
