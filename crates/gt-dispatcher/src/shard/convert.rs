//! The way from one layout to another on a mesh of several axes: one axis at a time.
//!
//! Where two axes split one dimension, the first splits it first. A collective along an axis that changes such a
//! dimension would tear apart what later axes split, so those have to be whole in it meanwhile.

use gt_ir::layout::{Layout, Layouts};
use gt_ir::{Result, Ty, bail};
use smallvec::SmallVec;

/// One collective, or one slice, along an axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    pub axis: usize,
    pub from: Layout,
    pub to: Layout,
}

type Steps = SmallVec<[Step; 2]>;

/// The steps from one layout to another, each of them possible after those before it.
pub fn way(from: &Layouts, to: &Layouts) -> Result<Steps> {
    let mut now = from.clone();
    let mut steps = Steps::new();
    while now != *to {
        if steps.len() > 4 * to.len() {
            bail!(Runtime, "layouts: there is no way from {from:?} to {to:?}");
        }
        let step = next(&now, to)?;
        now[step.axis] = step.to;
        steps.push(step);
    }
    Ok(steps)
}

/// The next step: what makes the value smaller comes first.
fn next(now: &Layouts, to: &Layouts) -> Result<Step> {
    let open = |axis: &usize| now[*axis] != to[*axis];
    if let Some(axis) = (0..now.len()).find(|k| open(k) && matches!(to[*k], Layout::Partial(_))) {
        bail!(Runtime, "layouts: axis {axis} cannot go from {:?} to {:?}", now[axis], to[axis]);
    }
    let free = |axis: &usize| blocker(now, to, *axis).is_none() && !blocks(now, to, *axis);
    let best = (0..now.len()).filter(open).filter(free).min_by_key(|k| rank(now[*k], to[*k]));
    if let Some(axis) = best {
        return Ok(Step { axis, from: now[axis], to: to[axis] });
    }
    // All are in the way of each other: the last axis that is in the way of an open one gives its split up.
    let in_the_way = (0..now.len()).filter(open).filter_map(|k| blocker(now, to, k)).max();
    match in_the_way {
        Some(axis) => Ok(Step { axis, from: now[axis], to: Layout::Whole }),
        None => bail!(Runtime, "layouts: there is no way from {now:?} to {to:?}"),
    }
}

/// Steps that make the value smaller first, those that make it larger last.
fn rank(from: Layout, to: Layout) -> usize {
    match (from, to) {
        (Layout::Whole, _) => 0,
        (Layout::Partial(_), Layout::Split(_)) => 1,
        (Layout::Split(_), Layout::Split(_)) => 2,
        (Layout::Partial(_), _) => 3,
        (Layout::Split(_), _) => 4,
    }
}

/// True if a step of an axis changes this dimension.
fn changes(now: &Layouts, to: &Layouts, axis: usize, layout: Layout) -> bool {
    matches!(layout, Layout::Split(_)) && (now[axis] == layout || to[axis] == layout)
}

/// The last axis after this one that splits a dimension which a step of this one changes.
fn blocker(now: &Layouts, to: &Layouts, axis: usize) -> Option<usize> {
    (axis + 1..now.len()).rev().find(|k| changes(now, to, axis, now[*k]))
}

/// True if a step of this axis would be in the way of one before it that is still to come.
fn blocks(now: &Layouts, to: &Layouts, axis: usize) -> bool {
    (0..axis).any(|k| now[k] != to[k] && changes(now, to, k, to[axis]))
}

/// Bytes that the steps move, about, for a comparison that every worker makes alike.
pub fn bytes(ty: &Ty, from: &Layouts, steps: &[Step], shape: &[usize]) -> f64 {
    let mut now = from.clone();
    let mut moved = 0.0;
    for step in steps {
        let n = shape[step.axis] as f64;
        let splits = |(k, l): (usize, &Layout)| matches!(l, Layout::Split(_)).then_some(shape[k] as f64);
        let held: f64 = ty.bytes() as f64 / now.iter().enumerate().filter_map(splits).product::<f64>();
        moved += match (step.from, step.to) {
            (Layout::Whole, _) => 0.01 * held / n,
            (Layout::Partial(_), Layout::Split(_)) => held,
            (Layout::Partial(_), _) => 2.0 * held,
            (Layout::Split(_), Layout::Split(_)) => held,
            (Layout::Split(_), _) => held * (n - 1.0),
        };
        // Each is a step, and mostly a meeting, even if nothing moves.
        moved += if step.from == Layout::Whole { 1.0 } else { 1024.0 };
        now[step.axis] = step.to;
    }
    moved
}

#[cfg(test)]
mod tests {
    use super::*;
    use Layout::{Partial, Split, Whole};
    use gt_ir::ReduceKind::Sum;

    fn steps(from: &[Layout], to: &[Layout]) -> Vec<(usize, Layout, Layout)> {
        let way = way(&from.iter().copied().collect(), &to.iter().copied().collect()).unwrap();
        way.iter().map(|s| (s.axis, s.from, s.to)).collect()
    }

    #[test]
    fn axes_go_one_at_a_time_the_shrinking_ones_first() {
        let way = steps(&[Split(0), Partial(Sum), Whole], &[Whole, Whole, Split(1)]);
        assert_eq!(way, [(2, Whole, Split(1)), (1, Partial(Sum), Whole), (0, Split(0), Whole)]);
    }

    #[test]
    fn a_dimension_split_twice_comes_apart_from_the_inside() {
        assert_eq!(
            steps(&[Split(0), Split(0)], &[Whole, Whole]),
            [(1, Split(0), Whole), (0, Split(0), Whole)]
        );
        assert_eq!(
            steps(&[Whole, Whole], &[Split(0), Split(0)]),
            [(0, Whole, Split(0)), (1, Whole, Split(0))]
        );
        let inner_gives_way = [(1, Split(0), Whole), (0, Whole, Split(0)), (1, Whole, Split(0))];
        assert_eq!(steps(&[Whole, Split(0)], &[Split(0), Split(0)]), inner_gives_way);
    }

    #[test]
    fn every_pair_has_a_way_unless_it_ends_in_a_sum() {
        let all = [Whole, Split(0), Split(1), Partial(Sum)];
        let lays = |n: usize| -> Layouts { (0..3).map(|k| all[n >> (2 * k) & 3]).collect() };
        for (from, to) in (0..64).flat_map(|a| (0..64).map(move |b| (lays(a), lays(b)))) {
            let sums = from.iter().zip(&to).any(|(a, b)| a != b && *b == Partial(Sum));
            assert_eq!(way(&from, &to).is_err(), sums, "{from:?} {to:?}");
        }
    }
}
