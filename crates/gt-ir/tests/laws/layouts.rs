//! Layouts: every legal way to split an op gives the unsplit result, on even, uneven and empty parts.

use gt_ir::host::{close, tolerance};
use gt_ir::layout::{Layout, LocalArg, Part, Rule, by_key_heads, identity, legal, localize, part_range};
use gt_ir::op::{Op, View};
use gt_ir::reference::{RefArg, eval, eval_all};
use gt_ir::sample::{Rng, Sample, SampleArg, samples};
use gt_ir::{Binary, HostTensor, Kind, ReduceKind, Scalar, Ty};

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
        let local = localize(&sample.op, &[rule], &sample.arg_types(), &[Part { index, parts }])
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

#[test]
fn every_legal_layout_gives_the_unsplit_result() {
    let mut rng = Rng::new(8);
    let mut tried = 0;
    for sample in samples(4) {
        let whole = sample.eval().unwrap();
        let types: Vec<Ty> = whole.iter().map(|y| y.ty.clone()).collect();
        let rules = legal(&sample.op, &sample.arg_types(), &types);
        assert!(rules[0].outs == vec![Layout::Whole; whole.len()]);
        let by_heads = by_key_heads(&sample.op, &sample.arg_types(), &types);
        let even = |rule: &Rule, parts: usize| {
            by_heads.as_ref().is_none_or(|(other, heads)| rule != other || heads % parts == 0)
        };
        for rule in rules.iter().chain(by_heads.iter().map(|(rule, _)| rule)) {
            for parts in PARTS.into_iter().filter(|parts| even(rule, *parts) || rules.contains(rule)) {
                let what = || format!("{} under {rule:?} in {parts} parts", sample.describe());
                let split =
                    run_split(&mut rng, &sample, rule, parts).unwrap_or_else(|e| panic!("{}: {e}", what()));
                for (split, whole) in split.iter().zip(&whole) {
                    let (rtol, atol) = tolerance(whole.ty.dtype);
                    let loose = if whole.ty.dtype.is_float() { 16.0 } else { 0.0 };
                    close(split, whole, rtol * loose, atol * loose)
                        .unwrap_or_else(|e| panic!("{}: {e}", what()));
                }
                tried += 1;
            }
        }
    }
    assert!(tried > 10_000, "{tried}");
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
