//! Steps that may run at the same time, for plans of many steps too small to share.

use gt_compiler::{Place, Plan};
use smallvec::SmallVec;

/// Steps of one wave touch no memory that another of them writes.
pub type Wave = SmallVec<[u32; 4]>;

/// How many steps ahead to look for company.
const AHEAD: usize = 16;
/// Steps of a wave at most.
const MOST: usize = 12;

/// What a step touches: a space of memory, a range in it, and whether it is written.
pub type Touched = SmallVec<[(u32, usize, usize, bool); 6]>;

pub fn touched(plan: &Plan, step: usize) -> Touched {
    let mut out = Touched::new();
    let range = |s: u32| {
        let storage = &plan.storages[s as usize];
        match (storage.place, storage.reuse) {
            (Place::Arena(at), None) => (0, at, at + storage.bytes),
            (Place::Input(i), _) | (_, Some(i)) => (1 + i, 0, usize::MAX),
            (Place::Out, None) => (1 + s, 0, usize::MAX),
        }
    };
    plan.steps[step].reads(|s| {
        let (space, from, to) = range(s);
        out.push((space, from, to, false));
    });
    plan.steps[step].writes(|s| {
        let (space, from, to) = range(s);
        out.push((space, from, to, true));
    });
    out
}

/// True if one writes what the other touches.
pub fn meet(a: &Touched, b: &Touched) -> bool {
    a.iter().any(|x| b.iter().any(|y| (x.3 || y.3) && x.0 == y.0 && x.1 < y.2 && y.1 < x.2))
}

/// The steps of a plan in waves. Those that are not `small` run alone, with all threads, and so do those that can fail,
/// which nothing passes (C5).
pub fn waves(plan: &Plan, small: impl Fn(usize) -> bool) -> Vec<Wave> {
    let n = plan.steps.len();
    let touches: Vec<Touched> = (0..n).map(|i| touched(plan, i)).collect();
    let mut done = vec![false; n];
    let mut out = Vec::with_capacity(n);
    for first in 0..n {
        if done[first] {
            continue;
        }
        let mut wave: Wave = SmallVec::from_slice(&[first as u32]);
        if small(first) && !plan.steps[first].can_fail() {
            let mut passed: SmallVec<[usize; AHEAD]> = SmallVec::new();
            for j in (first + 1..n).take(AHEAD) {
                if plan.steps[j].can_fail() || wave.len() == MOST {
                    break;
                }
                if done[j] {
                    continue;
                }
                let free = wave.iter().all(|&i| !meet(&touches[i as usize], &touches[j]))
                    && passed.iter().all(|&i| !meet(&touches[i], &touches[j]));
                if free && small(j) {
                    done[j] = true;
                    wave.push(j as u32);
                } else {
                    passed.push(j);
                }
            }
        }
        done[first] = true;
        out.push(wave);
    }
    out
}
