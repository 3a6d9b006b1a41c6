//! Losses and optimizer steps against formulas.

use crate::common::*;
use gt_client::Tensor;
use gt_client::ops::loss::{self, Reduction};
use gt_client::ops::optim::{self, Adam, AdamState, Sgd};
use gt_ir::{DType, Error};
use std::slice::from_ref;

#[test]
fn plain_losses() {
    run(|_| {
        let (x, t) = (f64s(&[2, 2], &[1., 2., 3., 5.]), f64s(&[2, 2], &[1., 1., 1., 1.]));
        is(&loss::mse_loss(&x, &t, Reduction::Mean).unwrap(), &[], &[21. / 4.]);
        is(&loss::mse_loss(&x, &t, Reduction::None).unwrap(), &[2, 2], &[0., 1., 4., 16.]);
        is(&loss::l1_loss(&x, &t, Reduction::Sum).unwrap(), &[], &[7.]);
        is(&loss::smooth_l1_loss(&x, &t, Reduction::Sum, 2.0).unwrap(), &[], &[0.25 + 1.0 + 3.0]);
        is(&loss::huber_loss(&x, &t, Reduction::Sum, 2.0).unwrap(), &[], &[0.5 + 2.0 + 6.0]);
        assert!(matches!(Reduction::parse("avg"), Err(Error::Value(_))));
        let p = leaf(f64s(&[3], &[0.0, 1.0, 0.25]));
        let hit = loss::binary_cross_entropy(&p, &f64s(&[3], &[1., 1., 0.]), None, Reduction::None).unwrap();
        same(&hit, &[100.0, 0.0, -(0.75f64.ln())]);
        hit.sum().unwrap().backward().unwrap();
        assert!(numbers(&p.grad().unwrap()).iter().all(|g| g.is_finite()));
        let logits = f64s(&[2], &[1000.0, -1000.0]);
        let l = loss::bce_with_logits(&logits, &f64s(&[2], &[0., 0.]), None, None, Reduction::None).unwrap();
        same(&l, &[1000., 0.]);
        let (q, r) = (f64s(&[2], &[0.5, 0.0]), f64s(&[2], &[0.25f64.ln(), -3.0]));
        is(&loss::kl_div(&r, &q, false, false, Reduction::Sum).unwrap(), &[], &[0.5 * 2f64.ln()]);
    });
}

/// Cross entropy by its definition: (losses, weights) per row.
fn by_hand(logits: &[[f64; 3]], target: &[i64], w: &[f64; 3], eps: f64) -> (Vec<f64>, Vec<f64>) {
    let mut out = (Vec::new(), Vec::new());
    for (row, &t) in logits.iter().zip(target) {
        let total: f64 = row.iter().map(|x| x.exp()).sum();
        let log_p: Vec<f64> = row.iter().map(|x| x - total.ln()).collect();
        if t == -100 {
            out.0.push(0.0);
            out.1.push(0.0);
            continue;
        }
        let smooth: f64 = (0..3).map(|c| -log_p[c] * w[c]).sum::<f64>() / 3.0;
        out.0.push((1.0 - eps) * -log_p[t as usize] * w[t as usize] + eps * smooth);
        out.1.push(w[t as usize]);
    }
    out
}

#[test]
fn cross_entropy_by_its_definition() {
    run(|_| {
        let rows = [[1.0, 2.0, 0.5], [0.0, -1.0, 3.0], [2.0, 2.0, 2.0]];
        let logits = f64s(&[3, 3], rows.as_flattened());
        let target = i64s(&[3], &[1, -100, 2]);
        let w = [0.2, 0.5, 1.5];
        let weight = f64s(&[3], &w);
        for eps in [0.0, 0.1] {
            for weighted in [false, true] {
                let (w, weight) = if weighted { (w, Some(&weight)) } else { ([1.0; 3], None) };
                let (losses, shares) = by_hand(&rows, &[1, -100, 2], &w, eps);
                let of = |r| loss::cross_entropy(&logits, &target, weight, -100, r, eps).unwrap();
                same(&of(Reduction::None), &losses);
                same(&of(Reduction::Sum), &[losses.iter().sum()]);
                same(&of(Reduction::Mean), &[losses.iter().sum::<f64>() / shares.iter().sum::<f64>()]);
            }
        }
        // One row without a batch; classes in dimension 1 before others.
        let one =
            loss::cross_entropy(&f64s(&[3], &rows[0]), &i64s(&[], &[1]), None, -100, Reduction::Mean, 0.0);
        same(&one.unwrap(), &[by_hand(&rows[..1], &[1], &[1.0; 3], 0.0).0[0]]);
        let images = logits.t().unwrap().reshape(&[1, 3, 3]).unwrap();
        let l =
            loss::cross_entropy(&images, &target.reshape(&[1, 3]).unwrap(), None, -100, Reduction::Sum, 0.0);
        same(&l.unwrap(), &[by_hand(&rows, &[1, -100, 2], &[1.0; 3], 0.0).0.iter().sum()]);
        // Probabilities that are certain say the same as indices.
        let sure = f64s(&[3, 3], &[0., 1., 0., 1., 0., 0., 0., 0., 1.]);
        let a = loss::cross_entropy(&logits, &sure, None, -100, Reduction::Mean, 0.1).unwrap();
        let b = logits_loss(&logits, &i64s(&[3], &[1, 0, 2]), 0.1);
        same(&a, &numbers(&b));
        fails(
            loss::cross_entropy(&logits, &i64s(&[2], &[0, 1]), None, -100, Reduction::Mean, 0.0),
            "nll_loss",
        );
        let e = fails(logits_loss(&logits, &i64s(&[3], &[0, 3, 1]), 0.0).item(), "out of bounds");
        assert!(matches!(e, Error::Index(_)));
        // An ignored row may hold anything.
        let wild = f64s(&[2, 2], &[1., 1., f64::INFINITY, 0.]);
        let nll = loss::nll_loss(&wild, &i64s(&[2], &[0, -100]), None, -100, Reduction::Mean).unwrap();
        same(&nll, &[-1.]);
    });
}

fn logits_loss(logits: &Tensor, target: &Tensor, eps: f64) -> Tensor {
    loss::cross_entropy(logits, target, None, -100, Reduction::Mean, eps).unwrap()
}

#[test]
fn sgd_follows_its_recurrence() {
    run(|_| {
        let o = Sgd {
            lr: 0.1,
            momentum: 0.9,
            dampening: 0.2,
            weight_decay: 0.01,
            nesterov: false,
            maximize: false,
        };
        for nesterov in [false, true] {
            let o = Sgd { nesterov, dampening: if nesterov { 0.0 } else { 0.2 }, ..o.clone() };
            let p = leaf(f64s(&[1], &[2.0]));
            let mut buffers = vec![None];
            let (mut x, mut speed) = (2.0, None);
            for k in 1..=4 {
                let g = k as f64;
                let grads = [Some(f64s(&[1], &[g]))];
                optim::sgd_step(from_ref(&p), &grads, &mut buffers, &o).unwrap();
                let d = g + 0.01 * x;
                let v = speed.map_or(d, |v: f64| 0.9 * v + (1.0 - o.dampening) * d);
                speed = Some(v);
                x -= 0.1 * if nesterov { d + 0.9 * v } else { v };
                same(&p, &[x]);
            }
            assert!(p.is_leaf() && p.requires_grad());
        }
    });
}

#[test]
fn adam_follows_its_recurrence() {
    run(|_| {
        for (decoupled, amsgrad) in [(false, false), (true, false), (false, true)] {
            let o = Adam {
                lr: 0.1,
                betas: (0.9, 0.99),
                eps: 1e-8,
                weight_decay: 0.1,
                decoupled,
                amsgrad,
                maximize: false,
            };
            let p = leaf(f64s(&[1], &[2.0]));
            let mut states: Vec<Option<AdamState>> = vec![None];
            let (mut x, mut m, mut v, mut top) = (2.0f64, 0.0, 0.0, 0.0f64);
            for k in 1..=4 {
                let mut g = 3.0 / k as f64;
                let grads = [Some(f64s(&[1], &[g]))];
                optim::adam_step(from_ref(&p), &grads, &mut states, &o).unwrap();
                if decoupled {
                    x -= 0.1 * 0.1 * x;
                } else {
                    g += 0.1 * x;
                }
                m = 0.9 * m + 0.1 * g;
                v = 0.99 * v + 0.01 * g * g;
                top = top.max(v);
                let second = if amsgrad { top } else { v };
                let (c1, c2) = (1.0 - 0.9f64.powi(k), 1.0 - 0.99f64.powi(k));
                x -= 0.1 * (m / c1) / ((second / c2).sqrt() + 1e-8);
                same(&p, &[x]);
            }
        }
        let params = [3.0, 4.0].map(|g| {
            let p = leaf(f64s(&[1], &[0.0]));
            p.set_grad(Some(f64s(&[1], &[g]))).unwrap();
            p
        });
        same(&optim::clip_grad_norm(&params, 1.0, 2.0).unwrap().unwrap(), &[5.0]);
        same(&params[0].grad().unwrap(), &[3.0 / 5.000001]);
        let p = f32s(&[1], &[0.0]);
        let mut none = vec![];
        let o = Sgd {
            lr: 0.1,
            momentum: 0.0,
            dampening: 0.0,
            weight_decay: 0.0,
            nesterov: false,
            maximize: false,
        };
        fails(
            optim::sgd_step(from_ref(&p), &[Some(range(&[1]))], &mut none, &o),
            "does not fit its parameter",
        );
        assert_eq!(p.dtype(), DType::F32);
    });
}
