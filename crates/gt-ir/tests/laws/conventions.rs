//! Where a gradient is a matter of convention (ties, kinks, zeros), it is PyTorch's.

use crate::tape::Tape;
use gt_ir::build::{Build, Operand, Operands};
use gt_ir::{Binary, DType, HostTensor, Op, ReduceKind, Scalar, Unary};

/// The gradients of all tensor operands under a cotangent of ones.
fn grads(op: Op, args: &[Operand<&[f64]>]) -> Vec<Vec<f64>> {
    let mut tape = Tape::default();
    let args: Operands<usize> = args
        .iter()
        .map(|a| match a {
            Operand::Val(x) => Operand::Val(tape.leaf(HostTensor::from_f64s(DType::F64, [x.len()], x))),
            Operand::Num(x) => Operand::Num(*x),
        })
        .collect();
    let out = tape.emit(op, args.clone()).unwrap();
    let ones = tape.full(&tape.ty(&out), 1.0).unwrap();
    let leaves: Vec<usize> = args.iter().filter_map(|a| a.val().copied()).collect();
    let found = tape.backward(&[(out, ones)], &leaves).unwrap();
    leaves
        .iter()
        .zip(found)
        .map(|(l, g)| g.map_or(vec![0.0; tape.values[*l].numel()], |g| tape.values[g].to_f64s()))
        .collect()
}

fn val(x: &[f64]) -> Operand<&[f64]> {
    Operand::Val(x)
}

#[test]
fn equal_operands_share_the_gradient_of_an_extreme() {
    for op in [Binary::Max, Binary::Min] {
        assert_eq!(grads(Op::Binary(op), &[val(&[2.0]), val(&[2.0])]), [[0.5], [0.5]]);
        // A number is a bound, at which the result stays.
        assert_eq!(grads(Op::Binary(op), &[val(&[2.0]), Operand::Num(Scalar::Float(2.0))]), [[0.0]]);
    }
    for kind in [ReduceKind::Max, ReduceKind::Min] {
        let op = Op::Reduce { kind, dims: [0].as_slice().into(), keepdim: false };
        assert_eq!(grads(op.clone(), &[val(&[1.0, 1.0, 1.0, 1.0])]), [[0.25; 4]]);
        let ends = if kind == ReduceKind::Max { [5.0, 1.0, 5.0] } else { [0.0, 1.0, 0.0] };
        assert_eq!(grads(op, &[val(&ends)]), [[0.5, 0.0, 0.5]]);
    }
}

#[test]
fn kinks_take_the_flat_side() {
    assert_eq!(grads(Op::Unary(Unary::Relu), &[val(&[0.0, -1.0, 1.0])]), [[0.0, 0.0, 1.0]]);
    assert_eq!(grads(Op::Unary(Unary::Abs), &[val(&[0.0, -1.0, 1.0])]), [[0.0, -1.0, 1.0]]);
}

#[test]
fn what_is_no_number_passes_its_gradient_on() {
    let nan = f64::NAN;
    assert_eq!(grads(Op::Unary(Unary::Relu), &[val(&[nan, -1.0])]), [[1.0, 0.0]]);
    for op in [Binary::Max, Binary::Min] {
        let both = grads(Op::Binary(op), &[val(&[nan, 1.0, nan]), val(&[2.0, nan, nan])]);
        assert_eq!(both, [[1.0; 3], [1.0; 3]]);
        assert_eq!(grads(Op::Binary(op), &[val(&[nan]), Operand::Num(Scalar::Float(2.0))]), [[0.0]]);
    }
    for kind in [ReduceKind::Max, ReduceKind::Min] {
        let op = Op::Reduce { kind, dims: [0].as_slice().into(), keepdim: false };
        assert_eq!(grads(op, &[val(&[nan, 3.0, nan, 1.0])]), [[0.5, 0.0, 0.5, 0.0]]);
    }
}

#[test]
fn an_angle_has_no_slope_at_the_origin() {
    let op = Op::Binary(Binary::Atan2);
    assert_eq!(grads(op, &[val(&[0.0, 3.0]), val(&[0.0, 4.0])]), [[0.0, 0.16], [0.0, -0.12]]);
}

#[test]
fn powers_of_zero_have_finite_gradients() {
    let zero_to = |e: f64| grads(Op::Binary(Binary::Pow), &[val(&[0.0]), Operand::Num(Scalar::Float(e))]);
    assert_eq!([zero_to(0.0), zero_to(1.0), zero_to(2.0)], [[[0.0]], [[1.0]], [[0.0]]]);
    assert_eq!(
        grads(Op::Binary(Binary::Pow), &[val(&[0.0, 0.0]), val(&[0.0, 2.0])]),
        [[0.0, 0.0], [0.0, 0.0]]
    );
    let base = |b: f64| grads(Op::Binary(Binary::Pow), &[Operand::Num(Scalar::Float(b)), val(&[2.0])]);
    assert_eq!(base(0.0), [[0.0]]);
    assert_eq!(grads(Op::Binary(Binary::Pow), &[val(&[-3.0]), Operand::Num(Scalar::Int(2))]), [[-6.0]]);
}
