//! Types: what is inferred is what the reference gives, for every op in every element type it takes.

use gt_ir::elementwise::{Binary, Unary};
use gt_ir::sample::{kinds, samples};
use gt_ir::{ArgTy, DType, Op, infer, infer_all};
use std::collections::HashSet;
use std::mem::discriminant;

#[test]
fn the_inferred_type_is_the_references() {
    for sample in samples(1) {
        let types = infer_all(&sample.op, &sample.arg_types())
            .unwrap_or_else(|e| panic!("{}: {e}", sample.describe()));
        assert_eq!(types[0], infer(&sample.op, &sample.arg_types()).unwrap());
        assert_eq!(types.len(), sample.op.results(sample.args.len()));
        let outs = sample.eval().unwrap_or_else(|e| panic!("{}: {e}", sample.describe()));
        assert_eq!(outs.len(), types.len(), "{}", sample.describe());
        for (out, ty) in outs.iter().zip(types) {
            assert_eq!(out.ty, ty, "{}", sample.describe());
            assert_eq!(out.data.len(), ty.bytes(), "{}", sample.describe());
        }
    }
}

#[test]
fn samples_are_finite_and_the_same_each_time() {
    let again = samples(1);
    for (a, b) in samples(1).iter().zip(&again) {
        let outs = a.eval().unwrap();
        assert_eq!(outs, b.eval().unwrap(), "{}", a.describe());
        for out in outs {
            let all = out.to_f64s();
            assert!(all.iter().all(|x| x.is_finite()), "{} gives {all:?}", a.describe());
        }
    }
}

#[test]
fn every_op_has_samples_in_every_type_it_takes() {
    let all = samples(1);
    for kind in kinds() {
        assert!(all.iter().any(|s| discriminant(&s.op) == discriminant(&kind)), "{kind:?}");
    }
    let sampled: HashSet<(Op, DType)> = all
        .iter()
        .flat_map(|s| {
            let args = s.arg_types();
            let dtypes: Vec<DType> = args
                .iter()
                .filter_map(|a| if let ArgTy::Val(t) = a { Some(t.dtype) } else { None })
                .collect();
            dtypes.into_iter().map(|d| (s.op.clone(), d))
        })
        .collect();
    for dtype in DType::ALL {
        for op in Unary::ALL.iter().filter(|op| op.takes().accepts(dtype)) {
            assert!(sampled.contains(&(Op::Unary(*op), dtype)), "{op:?} {dtype}");
        }
        for op in Binary::ALL.iter().filter(|op| op.takes().accepts(dtype)) {
            assert!(sampled.contains(&(Op::Binary(*op), dtype)), "{op:?} {dtype}");
        }
    }
}

#[test]
fn operands_too_many_or_too_few_are_refused() {
    for sample in samples(1) {
        let mut args = sample.arg_types();
        if !matches!(sample.op, Op::Concat { .. } | Op::Matmul { .. }) {
            let mut more = args.clone();
            more.push(ArgTy::Num);
            assert!(infer(&sample.op, &more).is_err(), "{}", sample.describe());
        }
        args.truncate(1);
        if args.len() < sample.args.len() && !matches!(sample.op, Op::Concat { .. }) {
            assert!(infer(&sample.op, &args).is_err(), "{}", sample.describe());
        }
        assert!(infer(&sample.op, &[]).is_err(), "{}", sample.describe());
    }
}
