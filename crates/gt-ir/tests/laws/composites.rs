//! Composites: decompositions against meanings of their own, and what laws over finite samples do not reach.

use crate::tape::Tape;
use gt_ir::build::{Operand, Operands};
use gt_ir::composite::decompose;
use gt_ir::host::close_by_dtype;
use gt_ir::reference::{RefArg, eval_all};
use gt_ir::sample::{SampleArg, samples};
use gt_ir::{DType, Error, HostTensor, Op, Scalar};

#[test]
fn the_decomposition_of_softmax_is_softmax() {
    let mut count = 0;
    for sample in samples(11) {
        if !matches!(sample.op, Op::Softmax { .. } | Op::LogSoftmax { .. }) {
            continue;
        }
        let SampleArg::Val(x) = &sample.args[0] else { panic!("softmax takes a tensor") };
        let mut tape = Tape::default();
        let leaf = tape.leaf(x.clone());
        let outs = decompose(&mut tape, &sample.op, &[Operand::Val(leaf)]).unwrap();
        close_by_dtype(&tape.values[outs[0]], &sample.eval().unwrap()[0])
            .unwrap_or_else(|e| panic!("{}: {e}", sample.describe()));
        count += 1;
    }
    assert!(count > 10);
}

#[test]
fn a_row_that_sees_nothing_gives_zeros_and_zero_gradients() {
    let ramp = |shape: [usize; 3]| {
        let x: Vec<f64> = (0..shape.iter().product()).map(|i| (i * 7 % 5) as f64 - 2.0).collect();
        HostTensor::from_f64s(DType::F64, shape, &x)
    };
    let (q, k, v) = (ramp([1, 2, 3]), ramp([1, 4, 3]), ramp([1, 4, 2]));
    let seen = [false, false, false, false, true, false, true, true];
    let mask = HostTensor::from_i64s(DType::Bool, [2, 4], &seen.map(i64::from));
    let mut tape = Tape::default();
    let leaves = [&q, &k, &v, &mask].map(|x| tape.leaf(x.clone()));
    let mut args: Operands<usize> = leaves.iter().map(|l| Operand::Val(*l)).collect();
    args.insert(3, Operand::Num(Scalar::Float(0.5)));
    use gt_ir::Build;
    let outs = tape.emit_all(Op::Attention { causal: false }, args).unwrap();
    let (out, lse) = (tape.values[outs[0]].to_f64s(), tape.values[outs[1]].to_f64s());
    assert_eq!(out[..2], [0.0, 0.0]);
    assert!(out[2..].iter().all(|x| x.is_finite()));
    assert_eq!(lse[0], f64::NEG_INFINITY);
    assert!(lse[1].is_finite());
    let ones = tape.full(&tape.ty(&outs[0]), 1.0).unwrap();
    let grads = tape.backward(&[(outs[0], ones)], &leaves[..3]).unwrap();
    let of = |i: usize| tape.values[grads[i].unwrap()].to_f64s();
    assert_eq!(of(0)[..3], [0.0; 3]);
    assert!((0..3).all(|i| of(i).iter().all(|x| x.is_finite())));
    // A column no row sees has no gradient.
    assert_eq!((of(1)[3..6].to_vec(), of(2)[2..4].to_vec()), (vec![0.0; 3], vec![0.0; 2]));
}

#[test]
fn a_bad_class_is_an_index_error_that_names_the_op() {
    let x = HostTensor::from_f64s(DType::F32, [2, 3], &[1.0, 2.0, 3.0, 0.0, 0.0, 0.0]);
    let run = |targets: [i64; 2]| {
        let target = HostTensor::from_i64s(DType::I64, [2], &targets);
        eval_all(&Op::CrossEntropy, &[RefArg::Val(&x), RefArg::Val(&target), RefArg::Num(Scalar::Int(-7))])
    };
    let loss = run([2, -7]).unwrap()[0].to_f64s();
    let right = (1f64.exp() + 2f64.exp() + 3f64.exp()).ln() - 3.0;
    assert!((loss[0] - right).abs() < 1e-6 && loss[1] == 0.0, "{loss:?}");
    for bad in [3, -1] {
        let e = run([0, bad]).unwrap_err();
        let text = format!("CROSSENTROPY: index {bad} is out of bounds for dimension 1 with size 3");
        assert!(matches!(&e, Error::Index(m) if *m == text), "{e}");
    }
}
