//! Matrix products in all their ranks, and what they record.

use crate::common::*;
use gt_client::Tensor;
use gt_client::ops::einsum::{einsum, tensordot};
use gt_client::ops::{linalg, moves};
use gt_ir::{DType, Scalar};
use std::slice::from_ref;

/// The product of the last two dimensions by three loops, leading dimensions broadcast by hand.
fn slow(a: &[f64], b: &[f64], n: usize, k: usize, m: usize) -> Vec<f64> {
    let mut out = vec![0.0; n * m];
    for i in 0..n {
        for j in 0..m {
            out[i * m + j] = (0..k).map(|l| a[i * k + l] * b[l * m + j]).sum();
        }
    }
    out
}

#[test]
fn every_rank_of_matmul() {
    run(|_| {
        let (a, b) = (range(&[2, 3]), range(&[3, 4]));
        is(&a.matmul(&b).unwrap(), &[2, 4], &slow(&numbers(&a), &numbers(&b), 2, 3, 4));
        let v = range(&[3]);
        is(&v.matmul(&v).unwrap(), &[], &[5.]);
        is(&a.matmul(&v).unwrap(), &[2], &[5., 14.]);
        is(&v.matmul(&b).unwrap(), &[4], &[20., 23., 26., 29.]);
        let stack = range(&[2, 2, 3]);
        let whole = numbers(&stack);
        let expected =
            [slow(&whole[..6], &numbers(&b), 2, 3, 4), slow(&whole[6..], &numbers(&b), 2, 3, 4)].concat();
        is(&stack.matmul(&b).unwrap(), &[2, 2, 4], &expected);
        is(&stack.matmul(&v).unwrap(), &[2, 2], &[5., 14., 23., 32.]);
        is(&v.matmul(&stack.transpose(1, 2).unwrap()).unwrap(), &[2, 2], &[5., 14., 23., 32.]);
        let wide = range(&[2, 1, 2, 3]).matmul(&range(&[5, 3, 1])).unwrap();
        assert_eq!(dims(&wide), [2, 5, 2, 1]);
        is(&f64s(&[2, 0], &[]).matmul(&f64s(&[0, 2], &[])).unwrap(), &[2, 2], &[0.; 4]);
        is(&linalg::outer(&range(&[2]), &range(&[2])).unwrap(), &[2, 2], &[0., 0., 0., 1.]);
        let sum = linalg::addmm(&range(&[4]), &a, &b, Scalar::Float(2.0), Scalar::Int(1)).unwrap();
        is(&sum, &[2, 4], &[20., 25., 30., 35., 56., 70., 84., 98.]);
    });
}

#[test]
fn errors_of_products() {
    run(|_| {
        let a = range(&[2, 3]);
        fails(a.matmul(&range(&[2, 3])), "mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)");
        fails(
            a.matmul(&a.to(DType::F32).unwrap()),
            "expected m1 and m2 to have the same dtype, but got: double != float",
        );
        fails(range(&[2]).matmul(&range(&[3])), "inconsistent tensor size");
        fails(f64s(&[], &[1.]).matmul(&a), "at least 1D");
        fails(linalg::mm(&range(&[2]), &a), "mm: self must be a 2-D tensor");
        fails(linalg::linear(&range(&[5, 4]), &range(&[2, 3]), None), "(5x4 and 3x2)");
        fails(linalg::bmm(&range(&[2, 1, 2]), &range(&[3, 2, 1])), "Expected size for first two dimensions");
    });
}

#[test]
fn transposes_become_flags() {
    run(|link| {
        let (x, w, bias) = (range(&[2, 3]), range(&[4, 3]), range(&[4]));
        let y = linalg::linear(&x, &w, Some(&bias)).unwrap();
        let z = x.t().unwrap().matmul(&x).unwrap();
        let heads = range(&[1, 2, 2, 3]);
        let scores = heads.matmul(&heads.transpose(-1, -2).unwrap()).unwrap();
        is(&y, &[2, 4], &[5., 15., 25., 35., 14., 51., 88., 125.]);
        is(&z, &[3, 3], &[9., 12., 15., 12., 17., 22., 15., 22., 29.]);
        is(&scores, &[1, 2, 2, 2], &[5., 14., 14., 50., 149., 212., 212., 302.]);
        let ops = link.programs().iter().flat_map(|p| p.structure.instrs.clone()).collect::<Vec<_>>();
        assert!(!ops.iter().any(|i| i.op.text() == "PERMUTE"), "a transpose was recorded");
        assert_eq!(ops.iter().filter(|i| i.op.text() == "MATMUL").count(), 3);
        is(&linalg::linear(&range(&[3]), &w, None).unwrap(), &[4], &[5., 14., 23., 32.]);
        // A permuted view that is more than a transpose of the last two goes by value.
        let odd = moves::permute(&range(&[3, 2, 2]), &[2, 1, 0]).unwrap();
        is(&odd.matmul(&range(&[3, 1])).unwrap(), &[2, 2, 1], &[20., 26., 23., 29.]);
    });
}

#[test]
fn a_matrix_shared_by_a_stack_gets_one_product_as_gradient() {
    run(|link| {
        let (x, w) = (range(&[5, 2, 3]), leaf(range(&[4, 3])));
        let y = linalg::linear(&x, &w, None).unwrap();
        y.sum().unwrap().backward().unwrap();
        let columns: Vec<f64> = (0..3).map(|k| (0..10).map(|r| (r * 3 + k) as f64).sum()).collect();
        is(&w.grad().unwrap(), &[4, 3], &columns.repeat(4));
        for p in link.programs() {
            let types = p.structure.check().unwrap();
            assert!(types.iter().all(|t| t.shape.numel() <= 40), "a product per member of the stack");
        }
    });
}

fn pair(a: &Tensor, b: &Tensor) -> Vec<Tensor> {
    vec![a.clone(), b.clone()]
}

#[test]
fn einsum_by_hand() {
    run(|_| {
        let (a, b) = (range(&[2, 3]), range(&[3, 2]));
        is(&einsum("ij,jk->ki", &pair(&a, &b)).unwrap(), &[2, 2], &[10., 28., 13., 40.]);
        is(&einsum("ij,jk", &pair(&a, &b)).unwrap(), &[2, 2], &[10., 13., 28., 40.]);
        is(&einsum("ij->j", from_ref(&a)).unwrap(), &[3], &[3., 5., 7.]);
        is(&einsum("ii", &[range(&[3, 3])]).unwrap(), &[], &[12.]);
        is(&einsum("ii->i", &[range(&[3, 3])]).unwrap(), &[3], &[0., 4., 8.]);
        is(&einsum("i,j->ij", &pair(&range(&[2]), &range(&[2]))).unwrap(), &[2, 2], &[0., 0., 0., 1.]);
        is(&einsum("ij,ij->i", &pair(&a, &a)).unwrap(), &[2], &[5., 50.]);
        is(
            &einsum("...ij,...jk->...ik", &pair(&range(&[2, 1, 3]), &b)).unwrap(),
            &[2, 1, 2],
            &[10., 13., 28., 40.],
        );
        is(&einsum("b...,b...->...", &pair(&a, &a)).unwrap(), &[3], &[9., 17., 29.]);
        is(&einsum("ij,jk,k->i", &[a.clone(), b.clone(), range(&[2])]).unwrap(), &[2], &[13., 40.]);
        is(&einsum("ij,kj->", &pair(&a, &a)).unwrap(), &[], &[83.]);
        is(
            &einsum("ij,j->ij", &pair(&range(&[2, 1]), &range(&[3]))).unwrap(),
            &[2, 3],
            &[0., 0., 0., 0., 1., 2.],
        );
        is(&einsum("ij->ji", &[range(&[1, 2])]).unwrap(), &[2, 1], &[0., 1.]);
        fails(einsum("ij,jk->ix", &pair(&a, &b)), "output subscript does not appear");
        fails(einsum("ij,jk->ik", &pair(&a, &a)), "does not broadcast");
        fails(einsum("ijk->i", from_ref(&a)), "does not match the number of dimensions");
        fails(einsum("ij", &pair(&a, &a)), "operands were provided");
        fails(einsum("i1->i", from_ref(&a)), "invalid subscript");
        is(&tensordot(&range(&[2, 3]), &range(&[3, 2]), &[1], &[0]).unwrap(), &[2, 2], &[10., 13., 28., 40.]);
        is(&tensordot(&a, &a, &[0, 1], &[0, 1]).unwrap(), &[], &[55.]);
    });
}
