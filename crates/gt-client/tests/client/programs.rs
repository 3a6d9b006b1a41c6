//! What recording sends: keys that come back, cuts, frees, threads, failures (C2 to C5, C12).

use crate::common::*;
use gt_client::autograd::GradMode;
use gt_client::ops::optim::{self, Sgd};
use gt_client::ops::{create, linalg, moves};
use gt_client::{Settings, Tensor, current};
use gt_ir::{DType, Error, Slot};
use std::slice::from_ref;

fn small(batch: usize) -> Settings {
    Settings { batch, ..settings() }
}

#[test]
fn nothing_is_sent_before_someone_looks() {
    run(|link| {
        let x = range(&[3]);
        let y = x.add(1.0).unwrap().mul(&x).unwrap();
        let unused = x.exp().unwrap();
        drop(unused);
        assert!(link.programs().is_empty());
        same(&y, &[0., 2., 6.]);
        assert_eq!(link.programs().len(), 1);
        assert_eq!(link.programs()[0].outs.len(), 2, "only what is alive outlives the program");
    });
}

#[test]
fn a_number_that_changes_becomes_a_slot() {
    run(|link| {
        let x = f64s(&[2], &[1., 2.]);
        same(&x, &[1., 2.]);
        let start = link.programs().len();
        for step in 0..5 {
            let y = x.mul(0.1 * step as f64).unwrap().add(3.0).unwrap();
            let k = 0.1 * step as f64;
            same(&y, &[k + 3.0, 2.0 * k + 3.0]);
        }
        let programs = link.programs()[start..].to_vec();
        let keys: Vec<u64> = programs.iter().map(|p| p.key).collect();
        assert_ne!(keys[0], keys[1], "the first program has the number in its structure");
        assert!(keys[1..].iter().all(|k| *k == keys[1]), "{keys:x?}");
        assert_eq!(programs[3].slots, [Slot::Num((0.1 * 3.0).into())], "the number that stays is no slot");
        // Exponents stay structure.
        let a = [2.0, 3.0, 2.0].map(|e| {
            same(&x.pow(e).unwrap(), &[1., 2f64.powf(e)]);
            *link.keys().last().unwrap()
        });
        assert!(a[0] == a[2] && a[0] != a[1]);
    });
}

/// A hand-written training loop; gives the losses.
fn train(steps: usize, look: bool) -> Vec<f64> {
    let x = f64s(&[4, 2], &[0.1, 0.9, -0.5, 0.4, 0.7, -0.3, 0.2, 0.8]);
    let t = f64s(&[4, 1], &[1., 0., 1., 0.]);
    let (w1, w2) =
        (leaf(f64s(&[3, 2], &[0.3, -0.2, 0.5, 0.1, -0.4, 0.6])), leaf(f64s(&[1, 3], &[0.2, -0.3, 0.4])));
    let mut losses = Vec::new();
    let mut last = None;
    for _ in 0..steps {
        let hidden = linalg::linear(&x, &w1, None).unwrap().tanh().unwrap();
        let y = linalg::linear(&hidden, &w2, None).unwrap();
        let loss = y.sub(&t).unwrap().pow(2.0).unwrap().mean().unwrap();
        loss.backward().unwrap();
        let _off = GradMode::set(false);
        for w in [&w1, &w2] {
            let g = w.grad().unwrap();
            w.sub_(&g.mul(0.2).unwrap()).unwrap();
            w.set_grad(None).unwrap();
        }
        if look {
            losses.push(loss.item().unwrap().as_f64());
        }
        last = Some(loss);
    }
    losses.push(last.unwrap().item().unwrap().as_f64());
    losses
}

#[test]
fn small_programs_give_the_same_numbers() {
    let mut answers = Vec::new();
    for batch in [16, 23, 64, 4096] {
        with(small(batch), |_, _| answers.push(train(20, true)));
    }
    assert!(answers.windows(2).all(|w| w[0] == w[1]));
    assert!(answers[0][20] < 0.5 * answers[0][0], "it does not learn: {:?}", answers[0]);
}

#[test]
fn a_loop_nobody_looks_at_is_cut_alike_each_time() {
    for batch in [64, 100, 150] {
        with(small(batch), |_, link| {
            train(90, false);
            let keys = link.keys();
            let (head, tail) = keys.split_at(keys.len() / 2);
            let fresh = tail[..tail.len() - 1].iter().filter(|k| !head.contains(k)).count();
            assert!(keys.len() > 10 && fresh == 0, "batch {batch}: {fresh} new keys in {keys:x?}");
        });
    }
}

#[test]
fn an_optimizer_step_is_a_program() {
    run(|link| {
        let x = f64s(&[4, 2], &[0.1, 0.9, -0.5, 0.4, 0.7, -0.3, 0.2, 0.8]);
        let w = leaf(f64s(&[1, 2], &[0.3, -0.2]));
        let mut o = Sgd {
            lr: 0.1,
            momentum: 0.9,
            dampening: 0.0,
            weight_decay: 0.0,
            nesterov: false,
            maximize: false,
        };
        let mut buffers = vec![None];
        for _ in 0..6 {
            let loss =
                linalg::linear(&x, &w, None).unwrap().sub(1.0).unwrap().pow(2.0).unwrap().mean().unwrap();
            loss.backward().unwrap();
            let grads = [w.grad()];
            optim::sgd_step(from_ref(&w), &grads, &mut buffers, &o).unwrap();
            w.set_grad(None).unwrap();
            o.lr *= 0.9;
        }
        assert!(numbers(&w)[0] > 0.3);
        let keys = link.keys();
        // The first step fills the momentum, the second sees another rate for the first time.
        assert_eq!(keys.len(), 6, "{keys:x?}");
        assert!(keys[3] == keys[4] && keys[2] == keys[3], "{keys:x?}");
    });
}

#[test]
fn what_is_dropped_is_freed() {
    run(|link| {
        let x = range(&[4]);
        let y = x.add(1.0).unwrap();
        same(&y, &[1., 2., 3., 4.]);
        assert_eq!(link.alive(), 2);
        drop(y);
        let z = x.mul(2.0).unwrap();
        drop(x);
        same(&z, &[0., 2., 4., 6.]);
        assert_eq!(link.alive(), 1);
        let view = z.narrow(0, 0, 1).unwrap();
        drop(z);
        same(&view, &[0.]);
        // A big upload is a tensor like any other.
        let big = create::from_bytes(gt_ir::Ty::new(DType::U8, [100_000]), vec![3; 100_000]).unwrap();
        same(&big.to(DType::I64).unwrap().sum().unwrap(), &[300_000.]);
    });
}

#[test]
fn threads_share_values() {
    with(small(16), |session, _| {
        let x = range(&[4]);
        let y = x.mul(2.0).unwrap();
        let totals: Vec<f64> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..4)
                .map(|k| {
                    let (y, session) = (&y, session.clone());
                    scope.spawn(move || {
                        current::enter(session);
                        let mut sum = y.add(k as f64).unwrap();
                        for _ in 0..50 {
                            sum = sum.add(y).unwrap();
                        }
                        let total = sum.sum().unwrap().item().unwrap().as_f64();
                        current::leave();
                        total
                    })
                })
                .collect();
            workers.into_iter().map(|w| w.join().unwrap()).collect()
        });
        assert_eq!(totals, [612., 616., 620., 624.]);
        // A tensor made and dropped on another thread, read here in between.
        let made = std::thread::scope(|scope| {
            let session = session.clone();
            scope
                .spawn(move || {
                    current::enter(session);
                    let t = range(&[2]).add(5.0).unwrap();
                    current::leave();
                    t
                })
                .join()
                .unwrap()
        });
        same(&made.add(&made).unwrap(), &[10., 12.]);
    });
}

#[test]
fn a_failed_program_changes_nothing() {
    run(|_| {
        let x = range(&[3]);
        let view = x.narrow(0, 0, 2).unwrap();
        same(&x, &[0., 1., 2.]);
        x.add_(10.0).unwrap();
        let bad = gt_client::ops::index::take(&x, &i64s(&[1], &[9])).unwrap();
        let after = bad.add(1.0).unwrap();
        x.mul_(2.0).unwrap();
        let e = fails(after.to_f64s(), "index 9 is out of bounds");
        assert!(matches!(e, Error::Index(_)));
        // The cell went back to what it held before the program.
        same(&x, &[0., 1., 2.]);
        same(&view, &[0., 1.]);
        fails(bad.to_f64s(), "index 9 is out of bounds");
        x.add_(1.0).unwrap();
        same(&x, &[1., 2., 3.]);
    });
}

#[test]
fn sync_mode_gives_the_same_answers() {
    let mut answers = Vec::new();
    for sync in [false, true] {
        with(Settings { sync, ..settings() }, |_, _| answers.push(train(3, true)));
    }
    assert_eq!(answers[0], answers[1]);
}

#[test]
fn two_sessions_do_not_mix() {
    run(|_| {
        let x = range(&[2]);
        let mut foreign: Option<Tensor> = None;
        let (other, _link) = open(settings());
        current::enter(other.clone());
        foreign.replace(range(&[2]));
        current::leave();
        fails(x.add(foreign.as_ref().unwrap()), "two different sessions");
        fails(x.copy_(foreign.as_ref().unwrap()), "two different sessions");
        // Helpers of an op go to the session of its operand.
        let y = moves::tril(&foreign.as_ref().unwrap().reshape(&[1, 2]).unwrap(), 0).unwrap();
        same(&y, &[0., 0.]);
    });
}

#[test]
fn the_same_seed_gives_the_same_numbers() {
    with(settings(), |session, _| {
        let draw = || numbers(&create::randn([5], DType::F32).unwrap());
        session.seed(7);
        let (a, b) = (draw(), draw());
        session.seed(7);
        assert_eq!(a, draw());
        let state = session.generator();
        assert_eq!(b, draw());
        session.set_generator(state);
        assert_eq!(b, draw());
        assert_ne!(a, b);
    });
}

#[test]
fn the_example_learns() {
    with(settings(), |session, link| {
        session.seed(1);
        let right = crate::mlp::train(30).unwrap();
        assert!(right > 0.75, "{right}");
        let keys = link.keys();
        let steps = &keys[3..keys.len() - 1];
        assert!(steps.iter().all(|k| *k == steps[0]), "{keys:x?}");
    });
}
