//! Functions against answers worked out by hand, with PyTorch's promotion and errors.

use crate::common::*;
use gt_client::ops::{activation, create, moves, pointwise, reduce};
use gt_ir::{DType, Error, Scalar};

const INF: f64 = f64::INFINITY;

#[test]
fn promotion_follows_torch() {
    run(|_| {
        let ints = i64s(&[2], &[7, -7]);
        let small = made(DType::I8, &[2], &[1., 2.]);
        let half = made(DType::F16, &[2], &[1., 2.]);
        assert_eq!(ints.add(&small).unwrap().dtype(), DType::I64);
        assert_eq!(small.add(Scalar::Int(1)).unwrap().dtype(), DType::I8);
        assert_eq!(ints.add(1.5).unwrap().dtype(), DType::F32);
        assert_eq!(half.add(&ints).unwrap().dtype(), DType::F16);
        assert_eq!(half.mul(2.0).unwrap().dtype(), DType::F16);
        let scalar64 = f64s(&[], &[1.0]);
        assert_eq!(half.add(&scalar64).unwrap().dtype(), DType::F16);
        assert_eq!(ints.add(&scalar64).unwrap().dtype(), DType::F64);
        let quotient = ints.div(Scalar::Int(2)).unwrap();
        assert_eq!(quotient.dtype(), DType::F32);
        same(&quotient, &[3.5, -3.5]);
        assert_eq!(ints.sqrt().unwrap().dtype(), DType::F32);
        assert_eq!(ints.eq(&half).unwrap().dtype(), DType::Bool);
        let flags = bools(&[2], &[true, false]);
        assert_eq!(flags.add(&flags).unwrap().dtype(), DType::Bool);
        fails(flags.sub(&flags), "Subtraction");
        fails(flags.neg(), "Negation");
        fails(range(&[2]).add(&range(&[3])), "the size of tensor a (2) must match the size of tensor b (3)");
    });
}

#[test]
fn division_rounds_as_asked() {
    run(|_| {
        let (a, b) = (i64s(&[4], &[7, -7, 7, -7]), i64s(&[4], &[2, 2, -2, -2]));
        same(&pointwise::div(&val(&a), &val(&b), Some("floor")).unwrap(), &[3., -4., -4., 3.]);
        same(&pointwise::div(&val(&a), &val(&b), Some("trunc")).unwrap(), &[3., -3., -3., 3.]);
        assert_eq!(pointwise::div(&val(&a), &val(&b), Some("trunc")).unwrap().dtype(), DType::I64);
        same(&pointwise::remainder(&val(&a), &val(&b)).unwrap(), &[1., 1., -1., -1.]);
        same(&pointwise::fmod(&val(&a), &val(&b)).unwrap(), &[1., -1., 1., -1.]);
        let f = f64s(&[2], &[7.5, -7.5]);
        same(&pointwise::div(&val(&f), &int(2), Some("trunc")).unwrap(), &[3., -3.]);
        same(&pointwise::fmod(&val(&f), &num(2.0)).unwrap(), &[1.5, -1.5]);
        same(&pointwise::remainder(&val(&f), &num(2.0)).unwrap(), &[1.5, 0.5]);
        fails(pointwise::div(&val(&f), &num(2.0), Some("up")), "rounding_mode");
        let error = fails(i64s(&[1], &[1]).floor_div(Scalar::Int(0)).unwrap().item(), "ZeroDivisionError");
        assert!(matches!(error, Error::Runtime(_)));
    });
}

#[test]
fn elementwise_compositions() {
    run(|_| {
        let x = f64s(&[4], &[-2.0, 0.5, f64::NAN, INF]);
        same(&x.clamp(Some(-1.0), Some(1.0)).unwrap(), &[-1.0, 0.5, f64::NAN, 1.0]);
        same(&pointwise::isnan(&x).unwrap(), &[0., 0., 1., 0.]);
        same(&pointwise::isinf(&x).unwrap(), &[0., 0., 0., 1.]);
        same(&pointwise::isfinite(&x).unwrap(), &[1., 1., 0., 0.]);
        same(&pointwise::nan_to_num(&x, 9.0, Some(8.0), None).unwrap(), &[-2.0, 0.5, 9.0, 8.0]);
        let (a, b) = (f64s(&[4], &[0., 0., 2., 2.]), bools(&[4], &[false, true, false, true]));
        same(&pointwise::logical_and(&val(&a), &val(&b)).unwrap(), &[0., 0., 0., 1.]);
        same(&pointwise::logical_or(&val(&a), &val(&b)).unwrap(), &[0., 1., 1., 1.]);
        same(&pointwise::logical_xor(&val(&a), &val(&b)).unwrap(), &[0., 1., 1., 0.]);
        same(&pointwise::logical_not(&a).unwrap(), &[1., 1., 0., 0.]);
        assert_eq!(pointwise::logical_not(&a).unwrap().dtype(), DType::Bool);
        let c = pointwise::clamp(&i64s(&[2], &[1, 9]), Some(&num(2.5)), None).unwrap();
        assert_eq!(c.dtype(), DType::F32);
        same(&c, &[2.5, 9.0]);
        fails(pointwise::clamp(&a, None, None), "at least one of");
        same(&pointwise::lerp(&a, &f64s(&[4], &[4.; 4]), &num(0.75)).unwrap(), &[3., 3., 3.5, 3.5]);
        same(&activation::softplus(&f64s(&[2], &[0.0, 800.0]), 1.0, 20.0).unwrap(), &[2f64.ln(), 800.0]);
        same(&activation::logsigmoid(&f64s(&[2], &[-800.0, 0.0])).unwrap(), &[-800.0, -(2f64.ln())]);
        assert!(pointwise::equal(&a, &a).unwrap() && !pointwise::equal(&a, &x).unwrap());
        same(&pointwise::isclose(&a, &a.add(1e-9).unwrap(), 1e-5, 1e-8, false).unwrap(), &[1.; 4]);
    });
}

#[test]
fn reductions_by_hand() {
    run(|_| {
        let x = f64s(&[2, 3], &[1., 5., 3., 4., 2., 6.]);
        is(&reduce::sum(&x, &[-1], true, None).unwrap(), &[2, 1], &[9., 12.]);
        is(&reduce::sum(&x, &[], false, None).unwrap(), &[], &[21.]);
        let flags = bools(&[3], &[true, true, false]);
        assert_eq!(reduce::sum(&flags, &[], false, None).unwrap().dtype(), DType::I64);
        same(&reduce::sum(&flags, &[], false, None).unwrap(), &[2.]);
        is(&reduce::prod(&x, &[0], false, None).unwrap(), &[3], &[4., 10., 18.]);
        let (v, i) = reduce::max_dim(&x, 1, false).unwrap();
        is(&v, &[2], &[5., 6.]);
        is(&i, &[2], &[1., 2.]);
        assert_eq!(i.dtype(), DType::I64);
        let (v, i) = reduce::min_dim(&x, 0, true).unwrap();
        is(&v, &[1, 3], &[1., 2., 3.]);
        is(&i, &[1, 3], &[0., 1., 0.]);
        is(&reduce::argmax(&x, None, false).unwrap(), &[], &[5.]);
        is(&reduce::argmin(&x, None, true).unwrap(), &[1, 1], &[0.]);
        is(&reduce::var(&x, &[1], 1.0, false).unwrap(), &[2], &[4., 4.]);
        is(&reduce::std(&x, &[1], 0.0, true).unwrap(), &[2, 1], &[(8f64 / 3.0).sqrt(); 2]);
        is(&reduce::cumsum(&x, 1, None).unwrap(), &[2, 3], &[1., 6., 9., 4., 6., 12.]);
        is(&reduce::norm(&x, INF, &[], false).unwrap(), &[], &[6.]);
        is(&reduce::norm(&x, 0.0, &[1], true).unwrap(), &[2, 1], &[3., 3.]);
        is(&reduce::norm(&x, 1.0, &[0], false).unwrap(), &[3], &[5., 7., 9.]);
        same(&reduce::count_nonzero(&x.sub(1.0).unwrap(), &[]).unwrap(), &[5.]);
        same(&reduce::all(&x, &[1], false).unwrap(), &[1., 1.]);
        same(&reduce::any(&x.gt(5.5).unwrap(), &[1], false).unwrap(), &[0., 1.]);
        let none = f64s(&[0, 2], &[]);
        same(&reduce::all(&none, &[0], false).unwrap(), &[1., 1.]);
        same(&reduce::any(&none, &[0], false).unwrap(), &[0., 0.]);
        same(&reduce::sum(&none, &[0], false, None).unwrap(), &[0., 0.]);
        same(&reduce::mean(&none, &[], false, None).unwrap(), &[f64::NAN]);
        let rows = f64s(&[3, 2], &[-INF, -INF, 1000., 1000., INF, 0.]);
        same(&reduce::logsumexp(&rows, &[1], false).unwrap(), &[-INF, 1000. + 2f64.ln(), INF]);
        let halves = made(DType::F16, &[70], &[1000.; 70]);
        same(&reduce::mean(&halves, &[], false, None).unwrap(), &[1000.]);
        is(&reduce::softmax(&f64s(&[1, 2], &[0., 0.]), 1, None).unwrap(), &[1, 2], &[0.5, 0.5]);
        // 0-d tensors take dim 0 and -1.
        let point = f64s(&[], &[3.0]);
        is(&reduce::sum(&point, &[0], false, None).unwrap(), &[], &[3.]);
        is(&reduce::max_dim(&point, -1, false).unwrap().1, &[], &[0.]);
        is(&reduce::argmax(&point, Some(0), false).unwrap(), &[], &[0.]);
    });
}

#[test]
fn reductions_that_torch_refuses() {
    run(|_| {
        let x = range(&[2, 3]);
        let e = fails(
            reduce::sum(&x, &[2], false, None),
            "dimension out of range (expected to be in range of [-2, 1]",
        );
        assert!(matches!(e, Error::Index(_)));
        fails(reduce::sum(&x, &[0, -2], false, None), "appears multiple times");
        fails(reduce::mean(&i64s(&[1], &[1]), &[], false, None), "Got: Long");
        fails(reduce::var(&i64s(&[1], &[1]), &[], 1.0, false), "only support floating point");
        fails(reduce::max_all(&f64s(&[0], &[])), "input.numel() == 0");
        fails(reduce::max_dim(&f64s(&[2, 0], &[]), 1, false), "non-zero size");
        fails(reduce::argmax(&f64s(&[0], &[]), None, false), "non-zero size");
        fails(activation::softmax(&i64s(&[1], &[1]), 0, None), "floating-point");
    });
}

#[test]
fn moves_by_hand() {
    run(|_| {
        let x = range(&[2, 3]);
        is(&moves::reshape(&x, &[3, -1]).unwrap(), &[3, 2], &[0., 1., 2., 3., 4., 5.]);
        is(&moves::transpose(&x, -1, 0).unwrap(), &[3, 2], &[0., 3., 1., 4., 2., 5.]);
        is(&moves::movedim(&range(&[2, 1, 3]), &[0], &[-1]).unwrap(), &[1, 3, 2], &[0., 3., 1., 4., 2., 5.]);
        is(&moves::squeeze(&range(&[1, 2, 1]), Some(&[0])).unwrap(), &[2, 1], &[0., 1.]);
        is(&moves::squeeze(&range(&[1, 2, 1]), None).unwrap(), &[2], &[0., 1.]);
        is(&moves::unsqueeze(&x, -1).unwrap(), &[2, 3, 1], &[0., 1., 2., 3., 4., 5.]);
        is(
            &moves::expand(&range(&[2, 1]), &[2, -1, 2]).unwrap(),
            &[2, 2, 2],
            &[0., 0., 1., 1., 0., 0., 1., 1.],
        );
        is(&moves::flatten(&range(&[2, 1, 2]), 1, -1).unwrap(), &[2, 2], &[0., 1., 2., 3.]);
        is(&moves::unflatten(&range(&[6]), 0, &[2, -1]).unwrap(), &[2, 3], &[0., 1., 2., 3., 4., 5.]);
        is(&moves::roll(&x, &[1], &[1]).unwrap(), &[2, 3], &[2., 0., 1., 5., 3., 4.]);
        is(&moves::roll(&x, &[1], &[]).unwrap(), &[2, 3], &[5., 0., 1., 2., 3., 4.]);
        is(&moves::tril(&x.add(1.0).unwrap(), 0).unwrap(), &[2, 3], &[1., 0., 0., 4., 5., 0.]);
        is(&moves::triu(&x.add(1.0).unwrap(), 1).unwrap(), &[2, 3], &[0., 2., 3., 0., 0., 6.]);
        is(&moves::diagonal(&range(&[3, 4]), 1, 0, 1).unwrap(), &[3], &[1., 6., 11.]);
        is(&moves::diagonal(&range(&[3, 4]), -2, 0, 1).unwrap(), &[1], &[8.]);
        is(&moves::diagonal(&range(&[3, 4]), 9, 0, 1).unwrap(), &[0], &[]);
        let tall = range(&[2, 3, 2]);
        is(&moves::diagonal(&tall, 0, 0, 2).unwrap(), &[3, 2], &[0., 7., 2., 9., 4., 11.]);
        is(&moves::repeat(&range(&[2]), &[2, 2]).unwrap(), &[2, 4], &[0., 1., 0., 1., 0., 1., 0., 1.]);
        is(&moves::tile(&x, &[2]).unwrap(), &[2, 6], &[0., 1., 2., 0., 1., 2., 3., 4., 5., 3., 4., 5.]);
        is(&moves::repeat_interleave(&range(&[2]), 2, None).unwrap(), &[4], &[0., 0., 1., 1.]);
        is(&moves::pad(&range(&[2]), &[1, 2], Scalar::Int(9)).unwrap(), &[5], &[9., 0., 1., 9., 9.]);
        is(&moves::flip(&x, &[0, 1]).unwrap(), &[2, 3], &[5., 4., 3., 2., 1., 0.]);
    });
}

#[test]
fn joining_and_splitting() {
    run(|_| {
        let x = range(&[2, 2]);
        let joined = moves::cat(&[x.clone(), i64s(&[1, 2], &[8, 9])], 0).unwrap();
        assert_eq!(joined.dtype(), DType::F64);
        is(&joined, &[3, 2], &[0., 1., 2., 3., 8., 9.]);
        is(&moves::cat(&[f64s(&[0], &[]), x.clone()], 1).unwrap(), &[2, 2], &[0., 1., 2., 3.]);
        is(&moves::stack(&[range(&[2]), range(&[2])], -1).unwrap(), &[2, 2], &[0., 0., 1., 1.]);
        is(&moves::stack(&[f64s(&[0], &[])], 0).unwrap(), &[1, 0], &[]);
        fails(moves::cat(&[], 0), "non-empty");
        fails(
            moves::cat(&[x.clone(), range(&[1, 3])], 0),
            "Expected size 2 but got size 3 for tensor number 1",
        );
        fails(moves::cat(&[f64s(&[], &[1.])], 0), "zero-dimensional");
        let sizes = |parts: Vec<gt_client::Tensor>| parts.iter().map(|p| p.numel()).collect::<Vec<_>>();
        assert_eq!(sizes(moves::split_size(&range(&[5]), 2, 0).unwrap()), [2, 2, 1]);
        assert_eq!(sizes(moves::chunk(&range(&[7]), 3, 0).unwrap()), [3, 3, 1]);
        assert_eq!(sizes(moves::split(&range(&[5]), &[1, 4], 0).unwrap()), [1, 4]);
        fails(moves::split(&range(&[5]), &[1, 3], 0), "sum exactly to 5");
        let rows = moves::unbind(&x, 0).unwrap();
        rows[1].zero_().unwrap();
        same(&x, &[0., 1., 0., 0.]);
    });
}

#[test]
fn moves_that_torch_refuses() {
    run(|_| {
        let x = range(&[2, 3]);
        fails(moves::reshape(&x, &[4, -1]), "shape '[4, -1]' is invalid for input of size 6");
        fails(moves::reshape(&x, &[-1, -1]), "only one dimension can be inferred");
        fails(moves::permute(&x, &[0, 0]), "duplicate dims");
        fails(moves::permute(&x, &[0]), "input.dim() = 2 is not equal to len(dims) = 1");
        fails(
            moves::expand(&x, &[2, 4]),
            "The expanded size of the tensor (4) must match the existing size (3)",
        );
        fails(moves::expand(&x, &[3]), "number of sizes provided (1)");
        fails(moves::t(&range(&[1, 1, 1])), "self is 3D");
        fails(moves::narrow(&x, 1, 2, 2), "start (2) + length (2) exceeds dimension size (3)");
        let e =
            fails(moves::select(&x, 0, 2), "index 2 out of range for tensor of size [2, 3] at dimension 0");
        assert!(matches!(e, Error::Index(_)));
        let e = fails(moves::unsqueeze(&x, 4), "[-3, 2], but got 4");
        assert!(matches!(e, Error::Index(_)));
    });
}

#[test]
fn creation() {
    run(|_| {
        let (a, b, c) = (Scalar::Int(1), Scalar::Int(8), Scalar::Int(3));
        let r = create::range(a, b, c, None).unwrap();
        assert_eq!(r.dtype(), DType::I64);
        is(&r, &[3], &[1., 4., 7.]);
        is(&create::range(b, a, Scalar::Int(-3), None).unwrap(), &[3], &[8., 5., 2.]);
        let r = create::range(Scalar::Float(0.0), a, Scalar::Float(0.25), None).unwrap();
        assert_eq!(r.dtype(), DType::F32);
        is(&r, &[4], &[0., 0.25, 0.5, 0.75]);
        fails(create::range(a, b, Scalar::Int(0), None), "step must be nonzero");
        fails(create::range(b, a, c, None), "inconsistent with step sign");
        is(&create::linspace(0.0, 1.0, 5, DType::F64).unwrap(), &[5], &[0., 0.25, 0.5, 0.75, 1.0]);
        let ends = numbers(&create::linspace(0.1, 0.7, 7, DType::F64).unwrap());
        assert_eq!((ends[0], ends[6]), (0.1, 0.7));
        is(&create::eye(2, Some(3), DType::F32).unwrap(), &[2, 3], &[1., 0., 0., 0., 1., 0.]);
        let mut order = numbers(&create::randperm(100, DType::I64).unwrap());
        assert_ne!(order, (0..100).map(f64::from).collect::<Vec<_>>());
        order.sort_by(f64::total_cmp);
        assert_eq!(order, (0..100).map(f64::from).collect::<Vec<_>>());
        let drawn = numbers(&create::randint(-2, 3, [200], DType::I64).unwrap());
        assert!(
            drawn.iter().all(|x| (-2.0..3.0).contains(x)) && drawn.contains(&-2.0) && drawn.contains(&2.0)
        );
        let weights = f64s(&[2, 3], &[0., 1., 0., 1., 0., 3.]);
        let picks = numbers(&create::multinomial(&weights, 60, true).unwrap());
        assert!(picks[..60].iter().all(|&x| x == 1.0));
        let twos = picks[60..].iter().filter(|&&x| x == 2.0).count();
        assert!((30..60).contains(&twos) && !picks[60..].contains(&1.0), "{twos}");
        let mut both = numbers(&create::multinomial(&f64s(&[2], &[0.1, 0.9]), 2, false).unwrap());
        both.sort_by(f64::total_cmp);
        assert_eq!(both, [0., 1.]);
        fails(create::multinomial(&weights, 4, false), "without replacement");
    });
}

#[test]
fn dropout_keeps_the_mean() {
    run(|_| {
        let x = create::ones([4000], DType::F32).unwrap();
        let y = numbers(&activation::dropout(&x, 0.25, true).unwrap());
        assert!(y.iter().all(|&v| v == 0.0 || (v - 4.0 / 3.0).abs() < 1e-6));
        let kept = y.iter().filter(|&&v| v > 0.0).count();
        assert!((2880..3120).contains(&kept), "{kept}");
        assert!(activation::dropout(&x, 0.25, false).unwrap().same(&x));
        same(&activation::dropout(&x, 1.0, true).unwrap().sum().unwrap(), &[0.]);
        fails(activation::dropout(&x, 1.5, true), "between 0 and 1");
    });
}
