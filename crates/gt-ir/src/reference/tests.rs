//! Answers worked out by hand or known from PyTorch, where the rest of the suite leans on this module.

use super::*;
use crate::elementwise::{Binary, Unary};
use crate::op::{ArgKind, ReduceKind, ScanKind, ScatterMode, View};
use crate::{DType, Shape};
use smallvec::smallvec;

const NAN: f64 = f64::NAN;
const INF: f64 = f64::INFINITY;

fn f(shape: impl Into<Shape>, x: &[f64]) -> HostTensor {
    HostTensor::from_f64s(DType::F32, shape, x)
}

fn i(shape: impl Into<Shape>, x: &[i64]) -> HostTensor {
    HostTensor::from_i64s(DType::I64, shape, x)
}

fn run_op(op: Op, args: &[RefArg]) -> HostTensor {
    eval(&op, args).unwrap()
}

/// The result of an op as doubles, with NaN written as a number that compares.
fn floats(op: Op, args: &[RefArg]) -> Vec<f64> {
    run_op(op, args).to_f64s().into_iter().map(|x| if x.is_nan() { 1e99 } else { x }).collect()
}

use RefArg::{Num, Val};

#[test]
fn integers_wrap_and_divide_as_in_python() {
    let a = HostTensor::from_i64s(DType::I8, [4], &[-7, 7, -7, 127]);
    let b = HostTensor::from_i64s(DType::I8, [4], &[2, -2, -2, 1]);
    let both = [Val(&a), Val(&b)];
    assert_eq!(run_op(Op::Binary(Binary::FloorDiv), &both).to_i64s(), [-4, -4, 3, 127]);
    assert_eq!(run_op(Op::Binary(Binary::Rem), &both).to_i64s(), [1, -1, -1, 0]);
    assert_eq!(run_op(Op::Binary(Binary::Add), &both).to_i64s(), [-5, 5, -9, -128]);
    let e = eval(&Op::Binary(Binary::Rem), &[Val(&a), Num(Scalar::Int(0))]).unwrap_err();
    assert!(matches!(&e, Error::Runtime(m) if m.contains("ZeroDivisionError")), "{e}");
    let squares = run_op(Op::Binary(Binary::Pow), &[Val(&a), Num(Scalar::Int(2))]);
    assert_eq!(squares.to_i64s(), [49, 49, 49, 1]);
    let u = HostTensor::from_i64s(DType::U8, [2], &[3, 250]);
    assert_eq!(run_op(Op::Unary(Unary::Neg), &[Val(&u)]).to_i64s(), [253, 6]);
    assert_eq!(run_op(Op::Unary(Unary::Not), &[Val(&u)]).to_i64s(), [252, 5]);
}

#[test]
fn floats_divide_as_in_python() {
    let a = HostTensor::from_f64s(DType::F64, [5], &[1.0, -7.5, 7.5, -5.0, 6.0]);
    let b = HostTensor::from_f64s(DType::F64, [5], &[0.1, 2.0, -2.0, INF, 0.0]);
    assert_eq!(floats(Op::Binary(Binary::FloorDiv), &[Val(&a), Val(&b)]), [9.0, -4.0, -4.0, -1.0, INF]);
    let rest = floats(Op::Binary(Binary::Rem), &[Val(&a), Val(&b)]);
    assert_eq!(rest[1..], [0.5, -0.5, INF, 1e99]);
    assert!((rest[0] - 0.1).abs() < 1e-12);
}

#[test]
fn bool_arithmetic_is_logic() {
    let a = HostTensor::from_i64s(DType::Bool, [4], &[0, 0, 1, 1]);
    let b = HostTensor::from_i64s(DType::Bool, [4], &[0, 1, 0, 1]);
    let both = [Val(&a), Val(&b)];
    assert_eq!(run_op(Op::Binary(Binary::Add), &both).to_i64s(), [0, 1, 1, 1]);
    assert_eq!(run_op(Op::Binary(Binary::Mul), &both).to_i64s(), [0, 0, 0, 1]);
    assert_eq!(run_op(Op::Binary(Binary::Xor), &both).to_i64s(), [0, 1, 1, 0]);
    assert_eq!(run_op(Op::Unary(Unary::Not), &[Val(&a)]).to_i64s(), [1, 1, 0, 0]);
    let all = |kind| Op::Reduce { kind, dims: smallvec![0], keepdim: false };
    assert_eq!(run_op(all(ReduceKind::Sum), &[Val(&a)]).get(0), Scalar::Bool(true));
    assert_eq!(run_op(all(ReduceKind::Prod), &[Val(&a)]).get(0), Scalar::Bool(false));
}

#[test]
fn numbers_meet_tensors_in_the_computing_type() {
    let x = f([1], &[0.1]);
    assert_eq!(run_op(Op::Binary(Binary::Eq), &[Val(&x), Num(Scalar::Float(0.1))]).to_i64s(), [1]);
    let h = HostTensor::from_f64s(DType::F16, [1], &[0.1]);
    assert_eq!(run_op(Op::Binary(Binary::Eq), &[Val(&h), Num(Scalar::Float(0.1))]).to_i64s(), [0]);
}

#[test]
fn nan_wins_maxima_and_ties_go_to_the_lowest_index() {
    let x = f([3, 3], &[1.0, NAN, 3.0, 5.0, 5.0, 2.0, -INF, -1.0, -1.0]);
    let ends = |kind| Op::Reduce { kind, dims: smallvec![1], keepdim: false };
    assert_eq!(floats(ends(ReduceKind::Max), &[Val(&x)]), [1e99, 5.0, -1.0]);
    assert_eq!(floats(ends(ReduceKind::Min), &[Val(&x)]), [1e99, 2.0, -INF]);
    let arg = |kind| Op::ArgReduce { kind, dim: 1, keepdim: false };
    assert_eq!(run_op(arg(ArgKind::Max), &[Val(&x)]).to_i64s(), [1, 0, 1]);
    assert_eq!(run_op(arg(ArgKind::Min), &[Val(&x)]).to_i64s(), [1, 2, 0]);
    let (a, b) = (f([3], &[NAN, 1.0, 2.0]), f([3], &[1.0, NAN, 1.0]));
    assert_eq!(floats(Op::Binary(Binary::Max), &[Val(&a), Val(&b)]), [1e99, 1e99, 2.0]);
}

#[test]
fn softmax_of_infinities() {
    let x = f([3, 2], &[-INF, -INF, -INF, 1.0, 0.0, 0.0]);
    assert_eq!(floats(Op::Softmax { dim: 1 }, &[Val(&x)]), [1e99, 1e99, 0.0, 1.0, 0.5, 0.5]);
    let log = floats(Op::LogSoftmax { dim: 1 }, &[Val(&x)]);
    assert_eq!(log[..4], [1e99, 1e99, -INF, 0.0]);
    assert!((log[4] + std::f64::consts::LN_2).abs() < 1e-7);
    let big = f([2], &[1000.0, 1000.0]);
    assert_eq!(floats(Op::Softmax { dim: 0 }, &[Val(&big)]), [0.5, 0.5]);
    assert_eq!(floats(Op::Softmax { dim: 0 }, &[Val(&f([], &[3.0]))]), [1.0]);
}

#[test]
fn views_and_puts() {
    let x = i([2, 3], &[0, 1, 2, 3, 4, 5]);
    let view = |view, args: &[RefArg]| run_op(Op::View(view), args).to_i64s();
    assert_eq!(view(View::Permute(smallvec![1, 0]), &[Val(&x)]), [0, 3, 1, 4, 2, 5]);
    let step = View::Slice { dim: 1, len: 2, step: 2 };
    assert_eq!(view(step.clone(), &[Val(&x), Num(Scalar::Int(0))]), [0, 2, 3, 5]);
    assert!(eval(&Op::View(step), &[Val(&x), Num(Scalar::Int(1))]).is_err());
    assert_eq!(view(View::Expand([2, 1, 2].into()), &[Val(&i([1, 2], &[8, 9]))]), [8, 9, 8, 9]);
    let path = vec![View::Permute(smallvec![1, 0]), View::Slice { dim: 0, len: 1, step: 1 }];
    let put = Op::Put { path };
    let value = i([1, 2], &[70, 80]);
    assert_eq!(run_op(put, &[Val(&x), Val(&value), Num(Scalar::Int(2))]).to_i64s(), [0, 1, 70, 3, 4, 80]);
    let flipped = run_op(Op::Flip { dims: smallvec![1] }, &[Val(&x)]).to_i64s();
    assert_eq!(flipped, [2, 1, 0, 5, 4, 3]);
    let padded =
        run_op(Op::Pad { lo: smallvec![0, 1], hi: smallvec![1, 0] }, &[Val(&x), Num(Scalar::Int(9))]);
    assert_eq!(padded.to_i64s(), [9, 0, 1, 2, 9, 3, 4, 5, 9, 9, 9, 9]);
    let joined = run_op(Op::Concat { dim: 1 }, &[Val(&x), Val(&i([2, 1], &[6, 7]))]);
    assert_eq!(joined.to_i64s(), [0, 1, 2, 6, 3, 4, 5, 7]);
}

#[test]
fn sums_scans_and_products() {
    let x = i([2, 3], &[1, 2, 3, 4, 5, 6]);
    let sum = |dims: &[usize]| {
        let op = Op::Reduce { kind: ReduceKind::Sum, dims: dims.into(), keepdim: false };
        run_op(op, &[Val(&x)]).to_i64s()
    };
    assert_eq!(sum(&[0]), [5, 7, 9]);
    assert_eq!(sum(&[1]), [6, 15]);
    assert_eq!(sum(&[0, 1]), [21]);
    assert_eq!(sum(&[]), [1, 2, 3, 4, 5, 6]);
    let scan = |kind, dim| run_op(Op::Scan { kind, dim }, &[Val(&x)]).to_i64s();
    assert_eq!(scan(ScanKind::Sum, 1), [1, 3, 6, 4, 9, 15]);
    assert_eq!(scan(ScanKind::Prod, 0), [1, 2, 3, 4, 10, 18]);
    let b = i([3, 2], &[1, 0, 2, 1, 0, 3]);
    let product = Op::Matmul { ta: false, tb: false, tf32: false };
    assert_eq!(run_op(product, &[Val(&x), Val(&b)]).to_i64s(), [5, 11, 14, 23]);
    let gram = Op::Matmul { ta: true, tb: false, tf32: false };
    assert_eq!(run_op(gram, &[Val(&x), Val(&x)]).to_i64s(), [17, 22, 27, 22, 29, 36, 27, 36, 45]);
    let outer = Op::Matmul { ta: false, tb: true, tf32: false };
    let bias = i([2], &[100, 200]);
    assert_eq!(run_op(outer, &[Val(&x), Val(&x), Val(&bias)]).to_i64s(), [114, 232, 132, 277]);
}

#[test]
fn indices_are_checked() {
    let x = i([5], &[10, 11, 12, 13, 14]);
    let message = |op: Op, args: &[RefArg]| match eval(&op, args) {
        Err(Error::Index(m)) => m,
        other => panic!("{other:?}"),
    };
    let bad = i([1], &[7]);
    let expected = "index 7 is out of bounds for dimension 0 with size 5";
    assert!(message(Op::Take { dim: 0 }, &[Val(&x), Val(&bad)]).contains(expected));
    assert!(message(Op::Gather { dim: 0 }, &[Val(&x), Val(&bad)]).contains(expected));
    let last = i([2], &[-1, -5]);
    assert_eq!(run_op(Op::Take { dim: 0 }, &[Val(&x), Val(&last)]).to_i64s(), [14, 10]);
    assert!(message(Op::Take { dim: 0 }, &[Val(&x), Val(&i([1], &[-6]))]).contains("index -6"));
    assert!(message(Op::Gather { dim: 0 }, &[Val(&x), Val(&last)]).contains("index -1"));
    let add = Op::Scatter { dim: 0, mode: ScatterMode::Add };
    assert!(message(add, &[Val(&x), Val(&last), Num(Scalar::Int(1))]).contains("index -1"));
    let empty = i([0, 4], &[]);
    let put = Op::TakePut { dim: 1, mode: ScatterMode::Set };
    assert!(message(put, &[Val(&empty), Val(&bad), Val(&i([0, 1], &[]))]).contains("size 4"));
}

#[test]
fn gathers_and_scatters() {
    let x = i([2, 3], &[0, 1, 2, 3, 4, 5]);
    let index = i([2, 2], &[2, 2, 0, 1]);
    assert_eq!(run_op(Op::Gather { dim: 1 }, &[Val(&x), Val(&index)]).to_i64s(), [2, 2, 3, 4]);
    let src = i([2, 2], &[10, 20, 30, 40]);
    let scatter = |mode| run_op(Op::Scatter { dim: 1, mode }, &[Val(&x), Val(&index), Val(&src)]).to_i64s();
    assert_eq!(scatter(ScatterMode::Set), [0, 1, 20, 30, 40, 5]);
    assert_eq!(scatter(ScatterMode::Add), [0, 1, 32, 33, 44, 5]);
    assert_eq!(scatter(ScatterMode::Max), [0, 1, 20, 30, 40, 5]);
    let rows = run_op(Op::Take { dim: 0 }, &[Val(&x), Val(&i([3], &[1, 0, 1]))]);
    assert_eq!(rows.to_i64s(), [3, 4, 5, 0, 1, 2, 3, 4, 5]);
    let grid = run_op(Op::Take { dim: 1 }, &[Val(&x), Val(&i([1, 2], &[2, 0]))]);
    assert_eq!((grid.ty.shape.to_vec(), grid.to_i64s()), (vec![2, 1, 2], vec![2, 0, 5, 3]));
    let put = Op::TakePut { dim: 0, mode: ScatterMode::Add };
    let twice = run_op(put, &[Val(&x), Val(&i([2], &[1, 1])), Val(&i([2, 3], &[1, 1, 1, 10, 10, 10]))]);
    assert_eq!(twice.to_i64s(), [0, 1, 2, 14, 15, 16]);
}

#[test]
fn casts_truncate() {
    let x = f([5], &[-2.7, 2.7, 0.0, 0.3, 300.0]);
    let cast = |to| run_op(Op::Cast(to), &[Val(&x)]).to_i64s();
    assert_eq!(cast(DType::I64), [-2, 2, 0, 0, 300]);
    assert_eq!(cast(DType::U8), [254, 2, 0, 0, 44]);
    assert_eq!(cast(DType::Bool), [1, 1, 0, 1, 1]);
}

#[test]
fn a_failure_names_its_instruction() {
    let text = "in TENSOR[0] i64[2] as 1\nTENSOR[1] := NEG TENSOR[0]\n\
                TENSOR[2] := TAKE{dim=0} TENSOR[0] TENSOR[1]\nout TENSOR[2] as 2\n";
    let program = crate::text::parse(text).unwrap();
    assert_eq!(run(&program.structure, &[i([2], &[1, 0])], &[]).unwrap()[0].to_i64s(), [0, 1]);
    let (at, e) = run(&program.structure, &[i([2], &[-5, 0])], &[]).unwrap_err();
    assert_eq!(at, 1);
    assert!(matches!(e, Error::Index(_)));
    assert_eq!(run(&program.structure, &[], &[]).unwrap_err().0, 2);
}
