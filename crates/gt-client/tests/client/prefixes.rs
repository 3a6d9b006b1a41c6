//! Programs begun early (C3): what is sent ahead, when, and that the program itself stays as it was.

use crate::common::*;
use gt_client::ops::inplace;
use gt_client::{Settings, Tensor, current};

fn at(positions: &[usize]) -> Settings {
    Settings { prefix: positions.into(), ..settings() }
}

/// `x`, after some steps of a chain that no other call makes alike.
fn chain(x: &Tensor, steps: usize, kind: usize) -> Tensor {
    let mut y = x.clone();
    for i in 0..steps {
        y = match (i * 7 + kind) % 5 {
            0 => y.add(x).unwrap(),
            1 => y.mul(0.5).unwrap(),
            2 => y.sub(x).unwrap(),
            3 => y.neg().unwrap(),
            _ => y.abs().unwrap(),
        };
    }
    y
}

#[test]
fn a_new_program_is_begun_and_a_known_one_is_not() {
    let mut plain = Vec::new();
    with(settings(), |_, link| {
        let x = f64s(&[3], &[1., 2., 3.]);
        same(&x, &[1., 2., 3.]);
        for kind in [0, 1, 0] {
            plain.push(numbers(&chain(&x, 20, kind)));
        }
        plain.push(link.keys().iter().map(|k| *k as f64).collect());
    });
    with(at(&[4, 11]), |_, link| {
        let x = f64s(&[3], &[1., 2., 3.]);
        same(&x, &[1., 2., 3.]);
        let mut early = Vec::new();
        for kind in [0, 1, 0] {
            early.push(numbers(&chain(&x, 20, kind)));
        }
        early.push(link.keys().iter().map(|k| *k as f64).collect());
        assert_eq!(early, plain, "values and keys are as without prefixes");
        let sent: Vec<(u64, usize)> =
            link.prefixes().iter().map(|p| (p.id, p.program.structure.instrs.len())).collect();
        let [(a, 4), (b, 11), (c, 4), (d, 11)] = sent[..] else { panic!("{sent:?}") };
        assert!(a == b && c == d && a != c, "{sent:?}");
        assert_eq!(link.begun(), vec![None, Some(a), Some(c), None], "the last is the first again");
        // Of a chain, only its end can still be read.
        assert!(link.prefixes().iter().all(|p| p.program.outs.len() == 1));
    });
}

#[test]
fn what_can_still_be_read_is_kept() {
    with(at(&[6]), |_, link| {
        let x = leaf(f64s(&[3], &[1., 2., 3.]));
        let kept = x.mul(2.0).unwrap();
        let y = chain(&x, 9, 2);
        // Read after the prefix was sent: in-place writes, gradients, and values the user has in hand.
        let z = y.mul(&kept).unwrap().sum().unwrap();
        z.backward().unwrap();
        assert_eq!(link.prefixes().len(), 1);
        assert!(link.prefixes()[0].program.outs.len() > 1);
        same(&kept, &[2., 4., 6.]);
        assert!(link.begun()[0].is_some());
        numbers(&x.grad().unwrap());
    });
}

#[test]
fn random_programs_with_prefixes_anywhere_give_the_same_bits() {
    let script = |seed: usize| {
        let x = f64s(&[4], &[0.5, -1.25, 3.0, 1e-3]);
        let mut values = vec![x.clone(), x.add(1.0).unwrap()];
        let mut state = seed as u64;
        let mut next = |n: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % n
        };
        for _ in 0..60 {
            let (a, b) = (values[next(values.len())].clone(), values[next(values.len())].clone());
            let made = match next(6) {
                0 => a.add(&b).unwrap(),
                1 => a.mul(&b).unwrap(),
                2 => a.sin().unwrap(),
                3 => a.tanh().unwrap(),
                4 => {
                    let c = a.add(0.0).unwrap();
                    inplace::add_(&c, &val(&b), 1.0.into(), false).unwrap();
                    c
                }
                _ => a.sub(&b).unwrap(),
            };
            match next(3) {
                0 if values.len() > 3 => drop(values.remove(next(values.len()))),
                _ => values.push(made),
            }
            if next(25) == 0 {
                numbers(&values[next(values.len())]);
            }
        }
        values.iter().flat_map(numbers).map(f64::to_bits).collect::<Vec<_>>()
    };
    let mut begun = 0;
    for seed in 0..60 {
        let mut plain = Vec::new();
        with(settings(), |_, _| plain = script(seed));
        with(at(&[1 + seed % 7, 9 + seed % 11, 31]), |_, link| {
            assert_eq!(script(seed), plain, "seed {seed}");
            begun += link.begun().iter().flatten().count();
        });
    }
    assert!(begun > 60, "{begun} programs begun early");
}

#[test]
fn what_a_thread_leaves_unfinished_is_given_up() {
    with(at(&[3]), |session, link| {
        let entered = session.clone();
        let made = std::thread::spawn(move || {
            current::enter(entered);
            let x = f64s(&[3], &[1., 2., 3.]);
            drop(chain(&x, 8, 3));
            current::leave();
        });
        made.join().unwrap();
        let sent: Vec<u64> = link.prefixes().iter().map(|p| p.id).collect();
        assert_eq!((sent.len(), link.forgotten()), (1, sent));
    });
}
