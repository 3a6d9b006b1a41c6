//! Marks: what is recorded under a signal says so, in keys that come back.

use crate::common::*;
use gt_client::ops::optim::{self, Sgd};
use gt_client::signal::node::parse;
use gt_client::signal::{self, registry};
use gt_ir::signal::{Lay, Mark};
use std::slice::from_ref;

/// Registers signals, each under a name no other test uses.
fn register(text: &str) {
    let node = parse(text, "test".into()).unwrap();
    for (name, one) in node.entries("test").unwrap() {
        registry::register(name, one.clone()).unwrap();
    }
}

fn inside<T>(name: &str, f: impl FnOnce() -> T) -> T {
    signal::enter(name, None).unwrap();
    let out = f();
    signal::exit(Some(name)).unwrap();
    out
}

/// The marks of the last program, as (value, name, firm).
fn marks(link: &TestLink) -> Vec<(u32, String, bool)> {
    let programs = link.programs();
    let structure = &programs.last().expect("a program was run").structure;
    let told = link.signals();
    let mark = |m: &Mark| (m.value, told[m.signal as usize].name.clone(), m.firm);
    structure.marks.iter().map(mark).collect()
}

#[test]
fn repeated_steps_under_a_signal_have_one_key() {
    register("steps: {shard: {axis: 0, workers: [0]}, backward: steps_back}\nsteps_back: {shard: {axis: 0}}");
    run(|link| {
        let w = leaf(f64s(&[2, 1], &[0.5, -0.5]));
        let mut buffers = vec![None];
        let sgd = Sgd {
            lr: 0.1,
            momentum: 0.0,
            dampening: 0.0,
            weight_decay: 0.0,
            nesterov: false,
            maximize: false,
        };
        for step in 0..4 {
            let loss = inside("steps", || {
                let x = f64s(&[2, 2], &[1., 2., 3., step as f64]);
                let y = x.matmul(&w).unwrap();
                y.mul(&y).unwrap().sum().unwrap()
            });
            w.set_grad(None).unwrap();
            loss.backward().unwrap();
            let grads = [w.grad()];
            optim::sgd_step(from_ref(&w), &grads, &mut buffers, &sgd).unwrap();
            numbers(&loss);
        }
        // The signals name other workers, so a step is three programs: forward under one, backward under the other, and
        // the update, since a pass that changes workers ends in a cut.
        let keys = link.keys();
        assert_eq!(keys[3..6], keys[6..9], "{keys:x?}");
        let (programs, told) = (link.programs(), link.signals());
        for (program, expected) in programs.iter().rev().skip(1).zip(["steps_back", "steps"]) {
            let names: Vec<&str> =
                program.structure.marks.iter().map(|m| told[m.signal as usize].name.as_str()).collect();
            assert!(!names.is_empty() && names.iter().all(|n| *n == expected), "{names:?}");
        }
    });
}

#[test]
fn an_edited_signal_is_another_program_and_the_old_number_stays() {
    run(|link| {
        let mut seen = Vec::new();
        for axis in [0, 1, 0] {
            register(&format!("edited: {{shard: {{axis: {axis}, workers: [0]}}}}"));
            let x = inside("edited", || f64s(&[2, 2], &[1., 2., 3., 4.]));
            numbers(&x);
            let mark = link.programs().last().unwrap().structure.marks[0];
            assert_eq!(link.signals()[mark.signal as usize].lays, [Lay::Split(axis)]);
            seen.push((*link.keys().last().unwrap(), mark.signal));
        }
        assert!(seen[0] == seen[2] && seen[0].0 != seen[1].0 && seen[0].1 != seen[1].1);
    });
}

#[test]
fn marks_follow_their_values_through_cuts() {
    register("cut: {shard: {axis: 0, workers: [0]}}");
    let settings = gt_client::Settings { batch: 16, ..settings() };
    with(settings, |session, link| {
        let mut x = f64s(&[4], &[1., 2., 3., 4.]);
        let mut want = vec![1., 2., 3., 4.];
        for i in 0..60 {
            x = match i % 3 {
                0 => inside("cut", || x.add(1.0).unwrap()),
                _ => x.mul(0.5).unwrap(),
            };
            want.iter_mut().for_each(|w| *w = if i % 3 == 0 { *w + 1.0 } else { *w * 0.5 });
        }
        same(&x, &want);
        session.synchronize().unwrap();
        let mut marked = 0;
        for program in link.programs() {
            let (structure, starts) = (&program.structure, program.structure.starts());
            for mark in &structure.marks {
                let at = starts.iter().position(|s| *s == mark.value).expect("a result");
                assert_eq!(structure.instrs[at].op.text(), "ADD");
                marked += 1;
            }
            let adds = structure.instrs.iter().filter(|i| i.op.text() == "ADD").count();
            assert_eq!(adds, structure.marks.len());
        }
        assert_eq!(marked, 20);
    });
}

#[test]
fn what_is_laid_out_stays_so() {
    register("kept: {workers: [0], parameters: {'*': 0}}");
    run(|link| {
        let p = f64s(&[2, 2], &[1., 2., 3., 4.]);
        numbers(&p);
        assert!(signal::apply(&p, "kept", Some("weight")).unwrap());
        p.binary_(gt_ir::Binary::Mul, &num(2.0), true).unwrap();
        same(&p, &[2., 4., 6., 8.]);
        assert_eq!(marks(link).iter().map(|m| m.2).collect::<Vec<_>>(), [true, true]);
        // A value that is no news is laid out by an instruction of its own.
        let q = f64s(&[2, 2], &[5., 6., 7., 8.]);
        numbers(&q);
        p.copy_(&q).unwrap();
        same(&p, &[5., 6., 7., 8.]);
        assert_eq!(link.last_ops(), ["RESHAPE"]);
        assert_eq!(marks(link).len(), 1);
    });
}

#[test]
fn a_boundary_is_a_program_of_its_own() {
    register("hot: {compile: true}");
    run(|link| {
        let x = f64s(&[2], &[1., 2.]);
        let y = inside("hot", || x.exp().unwrap().add(1.0).unwrap());
        let z = y.mul(2.0).unwrap();
        same(&z, &[2.0 * (1f64.exp() + 1.0), 2.0 * (2f64.exp() + 1.0)]);
        let kinds: Vec<bool> = link.programs().iter().map(|p| p.structure.at_once).collect();
        assert_eq!(kinds, [false, true, false]);
    });
}

#[test]
fn a_marked_program_is_not_begun_early() {
    register("early: {shard: {workers: [0]}}");
    let settings = gt_client::Settings { prefix: [4, 8].into(), ..settings() };
    with(settings, |_, link| {
        let x = inside("early", || {
            let mut x = f64s(&[2], &[1., 2.]);
            for _ in 0..20 {
                x = x.add(1.0).unwrap();
            }
            x
        });
        same(&x, &[21., 22.]);
        assert!(link.prefixes().is_empty());
    });
}

#[test]
fn a_program_is_on_one_mesh() {
    register("one: {workers: [0]}\ntwo: {workers: [1]}");
    run(|link| {
        let w = leaf(f64s(&[2], &[1., 2.]));
        let x = inside("one", || w.mul(2.0).unwrap());
        let y = inside("two", || x.exp().unwrap());
        let z = inside("one", || y.add(1.0).unwrap());
        z.sum().unwrap().backward().unwrap();
        let want = [1f64, 2.].map(|w| 2.0 * (2.0 * w).exp());
        same(&w.grad().unwrap(), &want);
        let told = link.signals();
        let mut order = Vec::new();
        for program in link.programs() {
            let mut names: Vec<&str> =
                program.structure.marks.iter().map(|m| told[m.signal as usize].name.as_str()).collect();
            names.dedup();
            assert!(names.len() <= 1, "{names:?}");
            order.extend(names.first().map(|n| n.to_string()));
        }
        // There and back again; the sum and what follows it belong to the last.
        assert_eq!(order, ["one", "two", "one", "two", "one"]);
    });
}
