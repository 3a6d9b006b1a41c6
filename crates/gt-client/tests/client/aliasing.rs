//! PyTorch's aliasing on values that are written once (C1).

use crate::common::*;
use gt_client::autograd::GradMode;
use gt_client::ops::index::Index;
use gt_client::ops::{inplace, moves};
use gt_ir::{Binary, Scalar, Unary};

#[test]
fn views_of_views_write_through() {
    run(|_| {
        let x = range(&[3, 4]);
        let row = x.select(0, 1).unwrap();
        let part = row.narrow(0, 1, 2).unwrap();
        part.mul_(10.0).unwrap();
        same(&x, &[0., 1., 2., 3., 4., 50., 60., 7., 8., 9., 10., 11.]);
        same(&row, &[4., 50., 60., 7.]);
        let t = x.t().unwrap();
        t.select(0, 0).unwrap().fill_(-1.0).unwrap();
        same(&x, &[-1., 1., 2., 3., -1., 50., 60., 7., -1., 9., 10., 11.]);
        t.reshape(&[-1]).unwrap().zero_().unwrap();
        assert_eq!(numbers(&x)[1], 1.0, "reshape of a transpose is a copy");
        x.view(&[-1]).unwrap().zero_().unwrap();
        same(&part, &[0., 0.]);
    });
}

#[test]
fn stale_views_are_derived_again() {
    run(|_| {
        let x = range(&[4]);
        let head = x.narrow(0, 0, 2).unwrap();
        let tail = x.narrow(0, 1, 3).unwrap();
        same(&head, &[0., 1.]);
        x.add_(1.0).unwrap();
        same(&head, &[1., 2.]);
        tail.copy_(&f64s(&[1], &[9.0])).unwrap();
        same(&head, &[1., 9.]);
        let strided = x.get(&[Index::Slice { start: None, stop: None, step: Some(2) }]).unwrap();
        strided.add_(&f64s(&[2], &[10., 20.])).unwrap();
        same(&x, &[11., 9., 29., 9.]);
        same(&head, &[11., 9.]);
    });
}

#[test]
fn copies_do_not_share() {
    run(|_| {
        let x = range(&[2, 2]);
        let copy = x.copy().unwrap();
        let flat = x.t().unwrap().reshape(&[4]).unwrap();
        x.zero_().unwrap();
        same(&copy, &[0., 1., 2., 3.]);
        same(&flat, &[0., 2., 1., 3.]);
        assert!(!copy.shares_storage(&x) && x.view(&[4]).unwrap().shares_storage(&x));
        let y = range(&[2]);
        x.select(0, 0).unwrap().copy_(&y).unwrap();
        y.fill_(7.0).unwrap();
        same(&x, &[0., 1., 0., 0.]);
        assert!(moves::contiguous(&x).unwrap().same(&x));
        assert!(!moves::contiguous(&x.t().unwrap()).unwrap().shares_storage(&x));
    });
}

#[test]
fn detach_shares_and_counts_data_does_not_count() {
    run(|_| {
        let x = leaf(f64s(&[2], &[2.0, 3.0]));
        let y = x.mul(1.0).unwrap();
        let z = y.mul(&y).unwrap().sum().unwrap();
        y.detach().zero_().unwrap();
        same(&y, &[0., 0.]);
        fails(z.backward(), "modified by an inplace operation");

        let y = x.mul(1.0).unwrap();
        let z = y.mul(&y).unwrap().sum().unwrap();
        let version = y.version();
        y.data().fill_(100.0).unwrap();
        assert_eq!(y.version(), version);
        z.backward().unwrap();
        same(&x.grad().unwrap(), &[4., 6.]);
        assert!(!y.detach().requires_grad() && y.requires_grad());
        x.data().copy_(&f64s(&[2], &[5.0, 6.0])).unwrap();
        same(&x, &[5., 6.]);
        assert!(x.requires_grad() && x.is_leaf());
    });
}

#[test]
fn writes_that_torch_refuses() {
    run(|_| {
        let x = leaf(range(&[2, 2]));
        fails(x.add_(1.0), "a leaf Variable that requires grad");
        fails(x.select(0, 0).unwrap().zero_(), "a view of a leaf Variable");
        fails(x.set(&[Index::Int(0)], 1.0), "leaf Variable");
        {
            let _off = GradMode::set(false);
            x.add_(1.0).unwrap();
            x.set(&[Index::Int(0)], 5.0).unwrap();
        }
        same(&x, &[5., 5., 3., 4.]);
        assert!(x.is_leaf() && x.requires_grad());
        let wide = f64s(&[1], &[1.0]).expand(&[3]).unwrap();
        fails(wide.add_(1.0), "more than one element of the written-to tensor");
        let ints = i64s(&[2], &[1, 2]);
        fails(ints.add_(0.5), "result type float32 can't be cast to the desired output type int64");
        fails(ints.div_(2.0), "can't be cast");
        fails(
            range(&[2]).add_(&range(&[3, 2])),
            "output with shape [2] doesn't match the broadcast shape [3, 2]",
        );
        fails(x.t().unwrap().view(&[4]), "view size is not compatible");
        ints.mul_(Scalar::Int(3)).unwrap();
        same(&ints, &[3., 6.]);
    });
}

#[test]
fn a_saved_result_written_in_place_is_noticed() {
    run(|_| {
        let x = leaf(f64s(&[2], &[0.5, 1.0]));
        let y = x.exp().unwrap();
        y.add_(1.0).unwrap();
        fails(y.sum().unwrap().backward(), "modified by an inplace operation");
        // The same for a result that was itself written in place.
        let y = x.mul(1.0).unwrap();
        inplace::unary_(&y, Unary::Exp).unwrap();
        let z = y.sum().unwrap();
        y.mul_(2.0).unwrap();
        fails(z.backward(), "modified by an inplace operation");
        // What an in-place op itself saves is no obstacle.
        let w = leaf(f64s(&[2], &[3.0, 4.0]));
        let y = x.mul(1.0).unwrap();
        y.mul_(&w).unwrap();
        y.sum().unwrap().backward().unwrap();
        same(&w.grad().unwrap(), &[0.5, 1.0]);
        same(&x.grad().unwrap(), &[3., 4.]);
    });
}

#[test]
fn gradients_flow_through_in_place_writes_of_views() {
    run(|_| {
        let x = leaf(f64s(&[4], &[1., 2., 3., 4.]));
        let v = leaf(f64s(&[2], &[5., 6.]));
        let y = x.mul(2.0).unwrap();
        let before = y.narrow(0, 1, 2).unwrap();
        y.narrow(0, 1, 2).unwrap().copy_(&v).unwrap();
        same(&before, &[5., 6.]);
        y.mul(&y).unwrap().sum().unwrap().backward().unwrap();
        same(&x.grad().unwrap(), &[8., 0., 0., 32.]);
        same(&v.grad().unwrap(), &[10., 12.]);
        // A view made before the write carries the new history.
        let y = x.mul(1.0).unwrap();
        let head = y.narrow(0, 0, 2).unwrap();
        y.mul_(3.0).unwrap();
        x.set_grad(None).unwrap();
        head.sum().unwrap().backward().unwrap();
        same(&x.grad().unwrap(), &[3., 3., 0., 0.]);
        // Writing through the view changes the base's history too.
        let y = x.mul(1.0).unwrap();
        let head = y.narrow(0, 0, 2).unwrap();
        head.mul_(5.0).unwrap();
        x.set_grad(None).unwrap();
        y.sum().unwrap().backward().unwrap();
        same(&x.grad().unwrap(), &[5., 5., 1., 1.]);
    });
}

#[test]
fn fills_cut_the_gradient_but_keep_the_graph() {
    run(|_| {
        let x = leaf(range(&[3]));
        let y = x.mul(2.0).unwrap();
        y.fill_(4.0).unwrap();
        assert!(y.requires_grad());
        y.sum().unwrap().backward().unwrap();
        same(&x.grad().unwrap(), &[0., 0., 0.]);
        // Copying a leaf into a buffer does not make the buffer that leaf.
        let buffer = range(&[3]);
        buffer.copy_(&x).unwrap();
        assert!(!buffer.is_leaf() && buffer.requires_grad());
        buffer.add_(1.0).unwrap();
        buffer.sum().unwrap().backward().unwrap();
        same(&x.grad().unwrap(), &[1., 1., 1.]);
    });
}

#[test]
fn detached_views_keep_their_own_history() {
    run(|_| {
        let x = leaf(range(&[4]));
        let y = x.mul(1.0).unwrap();
        let part = y.detach().narrow(0, 0, 2).unwrap();
        let w = leaf(f64s(&[2], &[3., 3.]));
        part.mul_(&w).unwrap();
        same(&y, &[0., 3., 2., 3.]);
        part.sum().unwrap().backward().unwrap();
        same(&w.grad().unwrap(), &[0., 1.]);
        assert!(x.grad().is_none());
        let out = y.sum().unwrap();
        out.backward().unwrap();
        same(&x.grad().unwrap(), &[1., 1., 1., 1.]);
    });
}

#[test]
fn random_writes_agree_with_plain_memory() {
    // Views of a 4x6 storage as lists of positions; every write goes to both.
    run(|_| {
        let mut seed = 7u64;
        let mut draw = |n: usize| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) as usize % n
        };
        let base = range(&[4, 6]);
        let mut memory: Vec<f64> = (0..24).map(|i| i as f64).collect();
        let mut views = vec![(base.clone(), (0..24).collect::<Vec<usize>>())];
        for round in 0..200 {
            let (t, at) = views[draw(views.len())].clone();
            let shape = dims(&t);
            let next = match draw(4) {
                0 if !shape.is_empty() && t.numel() > 1 => {
                    let d = draw(shape.len());
                    let start = draw(shape[d]);
                    let len = 1 + draw(shape[d] - start);
                    let inner: usize = shape[d + 1..].iter().product();
                    let keep = |i: &usize| (start..start + len).contains(&(i / inner % shape[d]));
                    let kept = (0..at.len()).filter(keep).map(|i| at[i]).collect();
                    Some((t.narrow(d as i64, start as i64, len as i64).unwrap(), kept))
                }
                1 if shape.len() == 2 => {
                    let (n, m) = (shape[0], shape[1]);
                    let turned = (0..n * m).map(|i| at[i % n * m + i / n]).collect();
                    Some((t.t().unwrap(), turned))
                }
                2 if t.is_contiguous() => Some((t.view(&[-1]).unwrap(), at.clone())),
                _ => {
                    t.binary_(Binary::Add, &num(round as f64), false).unwrap();
                    at.iter().for_each(|&i| memory[i] += round as f64);
                    None
                }
            };
            views.extend(next);
            let (t, at) = &views[draw(views.len())];
            same(t, &at.iter().map(|&i| memory[i]).collect::<Vec<_>>());
        }
        same(&base, &memory);
    });
}
