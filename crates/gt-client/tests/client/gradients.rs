//! Gradients of composite functions against finite differences, first and second order.

use crate::common::*;
use gt_client::Tensor;
use gt_client::autograd::grad;
use gt_client::ops::index::{self, Index};
use gt_client::ops::loss::{self, Reduction};
use gt_client::ops::{activation, einsum, linalg, moves, pointwise, reduce, sort};
use gt_ir::{Operand, Result, Scalar};
use std::slice::from_ref;

type F<'a> = &'a dyn Fn(&[Tensor]) -> Result<Tensor>;

/// Inputs away from kinks and ties, different for every element.
fn points(shape: &[usize], k: usize) -> Vec<f64> {
    let n: usize = shape.iter().product();
    (0..n).map(|i| (((i * 7 + k * 3) % 11) as f64 - 5.0) * 0.31 + 0.17 + i as f64 * 0.013).collect()
}

/// A weighted sum of the outputs, so that every element's gradient differs.
fn weighed(f: F, xs: &[Tensor]) -> Result<Tensor> {
    let y = f(xs)?;
    let w: Vec<f64> = (0..y.numel()).map(|i| 0.5 + (i as f64 * 0.7).sin()).collect();
    y.mul(&f64s(y.shape(), &w))?.sum()
}

fn derivatives(f: F, xs: &[Tensor], create: bool) -> Result<Vec<Tensor>> {
    let y = weighed(f, xs)?;
    let found = grad(&[y], xs, vec![], false, create, true)?;
    Ok(found.into_iter().zip(xs).map(|(g, x)| g.unwrap_or_else(|| zeros(x))).collect())
}

fn zeros(x: &Tensor) -> Tensor {
    f64s(x.shape(), &vec![0.0; x.numel()])
}

/// Compares gradients with central differences of `f`, whose inputs are given.
fn check_once(name: &str, f: F, inputs: &[(Vec<usize>, Vec<f64>)]) {
    let leaves = |at: &[Vec<f64>]| -> Vec<Tensor> {
        inputs.iter().zip(at).map(|((shape, _), x)| leaf(f64s(shape, x))).collect()
    };
    let at: Vec<Vec<f64>> = inputs.iter().map(|(_, x)| x.clone()).collect();
    let got = derivatives(f, &leaves(&at), false).unwrap_or_else(|e| panic!("{name}: {e}"));
    for (k, g) in got.iter().enumerate() {
        for (i, &g) in numbers(g).iter().enumerate() {
            let value = |step: f64| {
                let mut moved = at.clone();
                moved[k][i] += step;
                weighed(f, &leaves(&moved)).unwrap().item().unwrap().as_f64()
            };
            let h = 1e-5;
            let expected = (value(h) - value(-h)) / (2.0 * h);
            assert!(
                (g - expected).abs() <= 1e-6 + 1e-5 * expected.abs(),
                "{name}: gradient {i} of input {k} is {g}, differences say {expected}"
            );
        }
    }
}

/// First and second derivatives.
fn check(name: &str, f: F, inputs: &[(Vec<usize>, Vec<f64>)]) {
    run(|_| {
        check_once(name, f, inputs);
        let second = |xs: &[Tensor]| -> Result<Tensor> {
            let first = derivatives(f, xs, true)?;
            let parts: Vec<Tensor> = first.iter().map(|g| moves::reshape(g, &[-1])).collect::<Result<_>>()?;
            moves::cat(&parts, 0)
        };
        // Functions whose gradient does not depend on the inputs have nothing more to differentiate.
        let leaves: Vec<Tensor> = inputs.iter().map(|(s, x)| leaf(f64s(s, x))).collect();
        if second(&leaves).unwrap().requires_grad() {
            check_once(&format!("{name}, second order"), &second, inputs);
        }
    });
}

fn one(shape: &[usize]) -> Vec<(Vec<usize>, Vec<f64>)> {
    vec![(shape.to_vec(), points(shape, 0))]
}

fn two(a: &[usize], b: &[usize]) -> Vec<(Vec<usize>, Vec<f64>)> {
    vec![(a.to_vec(), points(a, 0)), (b.to_vec(), points(b, 1))]
}

fn positive(mut inputs: Vec<(Vec<usize>, Vec<f64>)>) -> Vec<(Vec<usize>, Vec<f64>)> {
    inputs.iter_mut().flat_map(|(_, x)| x).for_each(|x| *x = x.abs() + 0.3);
    inputs
}

#[test]
fn pointwise_functions() {
    let b = [0.5.into(), (-0.4).into()];
    check("clamp", &|x| pointwise::clamp(&x[0], Some(&b[1]), Some(&b[0])), &one(&[6]));
    check("clamp by tensors", &|x| pointwise::clamp(&x[0], Some(&val(&x[1])), None), &two(&[2, 3], &[3]));
    check("pow", &|x| pointwise::pow(&val(&x[0]), &val(&x[1])), &positive(two(&[4], &[4])));
    check("square root of square", &|x| pointwise::square(&x[0])?.add(0.1)?.sqrt(), &one(&[4]));
    check("log2", &|x| pointwise::log2(&x[0]), &positive(one(&[4])));
    check("exp2", &|x| pointwise::exp2(&x[0]), &one(&[4]));
    check("tan", &|x| pointwise::tan(&x[0]), &one(&[4]));
    check("sinh cosh", &|x| pointwise::sinh(&x[0])?.mul(&pointwise::cosh(&x[0])?), &one(&[4]));
    check("lerp", &|x| pointwise::lerp(&x[0], &x[1], &0.3.into()), &two(&[3], &[3]));
    check("lerp by tensor", &|x| pointwise::lerp(&x[0], &x[1], &val(&x[1])), &two(&[3], &[3]));
    check(
        "addcdiv",
        &|x| pointwise::addcdiv(&x[0], &val(&x[1]), &val(&x[0]), Scalar::Float(0.7)),
        &positive(two(&[3], &[3])),
    );
    check("fmod", &|x| pointwise::fmod(&val(&x[0]), &0.7.into()), &one(&[5]));
    check("broadcast division", &|x| x[0].div(&x[1]), &positive(two(&[2, 3], &[3])));
    check("where", &|x| pointwise::where_(&x[0].gt(0.0)?, &val(&x[1]), &val(&x[0])), &two(&[2, 3], &[3]));
}

#[test]
fn activations() {
    check("gelu", &|x| activation::gelu(&x[0], false), &one(&[5]));
    check("gelu by tanh", &|x| activation::gelu(&x[0], true), &one(&[5]));
    check("softplus", &|x| activation::softplus(&x[0], 1.5, 20.0), &one(&[5]));
    check("logsigmoid", &|x| activation::logsigmoid(&x[0]), &one(&[5]));
    check("leaky relu", &|x| activation::leaky_relu(&x[0], 0.1), &one(&[5]));
    check("elu", &|x| activation::elu(&x[0], 1.3), &one(&[5]));
    check("mish", &|x| activation::mish(&x[0]), &one(&[5]));
    check("hardswish", &|x| activation::hardswish(&x[0]), &one(&[5]));
    check("hardtanh", &|x| activation::hardtanh(&x[0], -0.5, 0.6), &one(&[5]));
    check("silu", &|x| activation::silu(&x[0]), &one(&[5]));
    check("softmax", &|x| activation::softmax(&x[0], -1, None), &one(&[2, 3]));
    check("log softmax", &|x| activation::log_softmax(&x[0], 0, None), &one(&[2, 3]));
}

#[test]
fn reductions() {
    check("mean", &|x| reduce::mean(&x[0], &[1], false, None), &one(&[2, 3]));
    check("prod", &|x| reduce::prod(&x[0], &[1], false, None), &one(&[2, 3]));
    check("amax", &|x| reduce::amax(&x[0], &[0], true), &one(&[3, 2]));
    check("max along", &|x| Ok(reduce::max_dim(&x[0], 1, false)?.0), &one(&[2, 4]));
    check("var", &|x| reduce::var(&x[0], &[1], 1.0, false), &one(&[2, 3]));
    check("std", &|x| reduce::std(&x[0], &[], 0.0, false), &one(&[2, 3]));
    check("norm 2", &|x| reduce::norm(&x[0], 2.0, &[1], false), &one(&[2, 3]));
    check("norm 3", &|x| reduce::norm(&x[0], 3.0, &[], false), &one(&[4]));
    check("logsumexp", &|x| reduce::logsumexp(&x[0], &[0], false), &one(&[3, 2]));
    check("cumsum", &|x| reduce::cumsum(&x[0].mul(&x[0])?, 1, None), &one(&[2, 3]));
    check("cumprod", &|x| reduce::cumprod(&x[0], 0, None), &positive(one(&[4])));
}

#[test]
fn moves_and_indexing() {
    check("cat", &|x| moves::cat(&[x[0].mul(&x[0])?, x[1].clone()], 1), &two(&[2, 2], &[2, 1]));
    check("roll", &|x| moves::roll(&x[0].exp()?, &[1, -1], &[0, 1]), &one(&[2, 3]));
    check("tril", &|x| moves::tril(&x[0].exp()?, 0), &one(&[3, 3]));
    check("diagonal", &|x| moves::diagonal(&x[0].exp()?, 1, 0, 1), &one(&[3, 4]));
    check("repeat", &|x| moves::repeat(&x[0].exp()?, &[2, 1, 2]), &one(&[2, 2]));
    check("interleave", &|x| moves::repeat_interleave(&x[0].exp()?, 3, Some(0)), &one(&[2, 2]));
    check("pad", &|x| moves::pad(&x[0].exp()?, &[1, -1, 0, 2], Scalar::Float(3.0)), &one(&[2, 3]));
    check("flip", &|x| moves::flip(&x[0].exp()?, &[0]), &one(&[2, 2]));
    check(
        "two index tensors",
        &|x| {
            let (i, j) = (i64s(&[2, 1], &[0, -1]), i64s(&[3], &[1, 1, 0]));
            index::get(&x[0].exp()?, &[Index::Tensor(i), Index::Ellipsis, Index::Tensor(j)])
        },
        &one(&[2, 2, 2]),
    );
    check("mask read", &|x| index::masked_select(&x[0].exp()?, &x[0].gt(0.0)?), &one(&[5]));
    check(
        "mask write",
        &|x| {
            let y = x[0].sin()?;
            let mask = bools(&[4], &[true, false, true, false]);
            y.set(&[Index::Tensor(mask)], &x[1].mul(&x[1])?)?;
            Ok(y)
        },
        &two(&[4], &[2]),
    );
    check(
        "index write",
        &|x| {
            let y = x[0].sin()?;
            y.set(&[Index::Tensor(i64s(&[2], &[2, 0])), Index::Tensor(i64s(&[1], &[1]))], &x[1].sin()?)?;
            Ok(y)
        },
        &two(&[3, 2], &[2]),
    );
    check(
        "slice write",
        &|x| {
            let y = x[0].sin()?;
            y.select(1, 1)?.mul_(&x[1])?;
            y.narrow(0, 0, 1)?.copy_(&x[1].sum()?.expand(&[1, 2])?)?;
            Ok(y)
        },
        &two(&[2, 2], &[2]),
    );
    check(
        "gather and scatter",
        &|x| {
            let index = i64s(&[2, 2], &[1, 0, 2, 2]);
            let read = index::gather(&x[0].exp()?, 1, &index)?;
            index::scatter_add(&x[0], 1, &index, &read.mul(&x[1])?)
        },
        &two(&[2, 3], &[2, 2]),
    );
    check(
        "index add",
        &|x| index::index_add(&x[0].exp()?, 0, &i64s(&[2], &[1, 1]), &x[1].sin()?, Scalar::Float(2.0)),
        &two(&[3, 2], &[2, 2]),
    );
    check("embedding", &|x| index::embedding(&x[0].exp()?, &i64s(&[2, 2], &[0, 2, 2, 2])), &one(&[3, 2]));
}

#[test]
fn products() {
    check("matmul", &|x| linalg::matmul(&x[0], &x[1]), &two(&[2, 3], &[3, 2]));
    check("matmul of transposes", &|x| linalg::matmul(&x[0].t()?, &x[1].t()?), &two(&[3, 2], &[2, 3]));
    check("stack times matrix", &|x| linalg::matmul(&x[0], &x[1]), &two(&[2, 2, 3], &[3, 2]));
    check(
        "stack times stack",
        &|x| linalg::matmul(&x[0], &x[1].transpose(1, 2)?),
        &two(&[2, 1, 2], &[1, 3, 2]),
    );
    check("vector times stack", &|x| linalg::matmul(&x[0], &x[1]), &two(&[2], &[2, 2, 3]));
    check("stack times vector", &|x| linalg::matmul(&x[0], &x[1]), &two(&[2, 2, 3], &[3]));
    check("dot", &|x| linalg::dot(&x[0], &x[1]), &two(&[3], &[3]));
    check("outer", &|x| linalg::outer(&x[0], &x[1]), &two(&[3], &[2]));
    let mut three = two(&[2, 2, 3], &[2, 3]);
    three.push((vec![2], points(&[2], 2)));
    check("linear", &|x| linalg::linear(&x[0], &x[1], Some(&x[2])), &three);
    check(
        "bilinear",
        &|x| einsum::einsum("bi,bij,bj->b", &[x[0].clone(), x[1].clone(), x[0].clone()]),
        &two(&[2, 2], &[2, 2, 2]),
    );
    check(
        "trace of product",
        &|x| einsum::einsum("ij,ji", &[x[0].clone(), x[1].clone()]),
        &two(&[2, 3], &[3, 2]),
    );
}

#[test]
fn losses() {
    let target = || f64s(&[4], &[1.0, 0.0, 1.0, 0.3]);
    check("mse", &|x| loss::mse_loss(&x[0], &target(), Reduction::Mean), &one(&[4]));
    check("huber", &|x| loss::huber_loss(&x[0], &target(), Reduction::Sum, 0.5), &one(&[4]));
    check(
        "bce",
        &|x| loss::binary_cross_entropy(&x[0].sigmoid()?, &target(), None, Reduction::Mean),
        &one(&[4]),
    );
    let weight = || f64s(&[4], &[2.0, 1.0, 0.5, 3.0]);
    check(
        "bce with logits",
        &|x| loss::bce_with_logits(&x[0], &target(), None, Some(&weight()), Reduction::Mean),
        &one(&[4]),
    );
    let classes = || i64s(&[3], &[1, -100, 0]);
    let share = || f64s(&[2], &[0.3, 0.9]);
    check(
        "cross entropy",
        &|x| loss::cross_entropy(&x[0], &classes(), Some(&share()), -100, Reduction::Mean, 0.1),
        &one(&[3, 2]),
    );
    check(
        "cross entropy of probabilities",
        &|x| {
            loss::cross_entropy(&x[0], &activation::softmax(&x[1], 1, None)?, None, -100, Reduction::Sum, 0.2)
        },
        &two(&[3, 2], &[3, 2]),
    );
    check("cosine", &|x| loss::cosine_similarity(&x[0], &x[1], 1, 1e-8), &two(&[2, 3], &[2, 3]));
}

#[test]
fn slopes_at_special_points() {
    run(|_| {
        let slope = |f: F, at: &[f64]| {
            let x = leaf(f64s(&[at.len()], at));
            f(from_ref(&x)).unwrap().sum().unwrap().backward().unwrap();
            numbers(&x.grad().unwrap())
        };
        // At a bound that is a number nothing flows, at that of a tensor half.
        assert_eq!(slope(&|x| x[0].clamp(Some(0.0), Some(1.0)), &[0.0, 0.5, 1.0, 2.0]), [0., 1., 0., 0.]);
        let bound = Operand::Val(f64s(&[3], &[0., 0., 0.]));
        assert_eq!(slope(&|x| pointwise::clamp(&x[0], Some(&bound), None), &[0.0, 1.0, -1.0]), [0.5, 1., 0.]);
        assert_eq!(slope(&|x| x[0].relu(), &[0.0, 1.0]), [0., 1.]);
        assert_eq!(
            slope(&|x| loss::bce_with_logits(&x[0], &f64s(&[1], &[1.0]), None, None, Reduction::Sum), &[0.0]),
            [-0.5]
        );
        assert_eq!(slope(&|x| reduce::norm(&x[0], 2.0, &[], false), &[0.0, 0.0]), [0., 0.]);
        assert_eq!(slope(&|x| reduce::std(&x[0], &[], 0.0, false), &[2.0, 2.0]), [0., 0.]);
        // Ties: shared by `max()`, given to the first by `max(dim)`.
        assert_eq!(slope(&|x| reduce::max_all(&x[0]), &[1.0, 3.0, 3.0]), [0., 0.5, 0.5]);
        assert_eq!(slope(&|x| Ok(reduce::max_dim(&x[0], 0, false)?.0), &[1.0, 3.0, 3.0]), [0., 1., 0.]);
        let g = slope(&|x| activation::elu(&x[0], 1.0), &[1000.0, -1000.0]);
        assert_eq!(g, [1., 0.]);
        assert_eq!(slope(&|x| sort::median_all(&x[0]), &[1.0, 2.0, 2.0, 4.0]), [0., 0.5, 0.5, 0.]);
        assert_eq!(slope(&|x| pointwise::fmod(&(&x[0]).into(), &1.5.into()), &[0.0, -2.0, 2.0]), [1.; 3]);
        assert_eq!(slope(&|x| activation::hardswish(&x[0]), &[-3.0, 3.0]), [0., 1.]);
    });
}
