//! Stretches of a program that is followed, taken over at once.

use super::Stream;
use super::follow::Trail;
use super::open::Open;
use super::past::Past;
use crate::session::Session;
use crate::value::{Value, ValueInner};
use gt_ir::{Op, Slot};
use std::sync::Arc;

/// A place in an open program that follows another.
pub(crate) struct Spot {
    /// The following.
    pub trail: u64,
    pub past: Arc<Past>,
    base: u64,
    len: usize,
    inputs: usize,
    slots: usize,
    changed: usize,
}

/// What was recorded between two places, with nothing from outside that was not there before.
pub(crate) struct Stretch {
    start: usize,
    end: usize,
    inputs: usize,
    /// How many slots there were, and those that came.
    slots: usize,
    added: Vec<Slot>,
    /// The values that are still in use at its end, each once.
    kept: Vec<usize>,
    /// For each value that was asked for, which of `kept` it is.
    order: Vec<usize>,
}

impl Stretch {
    /// True if it began at the same place.
    pub fn starts_at(&self, spot: &Spot) -> bool {
        (self.start, self.inputs, self.slots) == (spot.len, spot.inputs, spot.slots)
    }
}

impl Stream {
    /// Where the open program is, if it follows another.
    pub(crate) fn spot(&self) -> Option<Spot> {
        let open = self.open.lock();
        if open.step_ended {
            return None;
        }
        open.trail.as_ref().filter(|trail| trail.is_same_size()).map(|trail| spot(&open, trail))
    }

    /// What was recorded since; nothing if it cannot be taken over, or if other values than `kept` are in use.
    pub(crate) fn since(&self, start: &Spot, kept: &[Value]) -> Option<Stretch> {
        let open = self.open.lock();
        let trail = open.trail.as_ref().filter(|trail| trail.is_same_size())?;
        let now = spot(&open, trail);
        let same = now.trail == start.trail && Arc::ptr_eq(&now.past, &start.past) && now.base == start.base;
        if !same || now.inputs != start.inputs || now.changed != start.changed {
            return None;
        }
        let mut places: Vec<usize> = Vec::with_capacity(kept.len());
        let mut order = Vec::with_capacity(kept.len());
        for value in kept {
            let i = value.pos.checked_sub(now.base)? as usize;
            if !(start.len..now.len).contains(&i) {
                return None;
            }
            // Two leaves may have one gradient.
            let at = places.iter().position(|place| *place == i).unwrap_or(places.len());
            if at == places.len() {
                places.push(i);
            }
            order.push(at);
        }
        if (start.len..now.len).filter(|i| trail.is_alive(*i)).count() != places.len() {
            return None;
        }
        // What comes from elsewhere each time is no part of what is repeated.
        let fresh = |op: &Op| matches!(op, Op::Random { .. } | Op::Data { .. });
        if (start.len..now.len).any(|i| start.past.instr(i).is_some_and(|instr| fresh(&instr.op))) {
            return None;
        }
        let added = open.slots[start.slots..].to_vec();
        Some(Stretch {
            start: start.len,
            end: now.len,
            inputs: now.inputs,
            slots: start.slots,
            added,
            kept: places,
            order,
        })
    }

    /// Takes a stretch over at `start`, where the open program must be; gives the values that are in use at its end.
    pub(crate) fn repeat(
        self: &Arc<Stream>,
        session: &Session,
        start: &Spot,
        stretch: &Stretch,
    ) -> Option<Vec<Value>> {
        let line = crate::source::current(session);
        let mut open = self.open.lock();
        let open = &mut *open;
        let trail = open.trail.as_mut()?;
        let there = trail.number() == start.trail && trail.len() == start.len && open.base == start.base;
        if !there || stretch.end > self.cap {
            return None;
        }
        open.slots.extend(stretch.added.iter().cloned());
        let first = session.next_ids((stretch.end - stretch.start) as u64);
        trail.extend(first, stretch.end, line);
        let mut value = |&i: &usize| -> Value {
            trail.revive(i);
            let id = trail.id(i);
            let ty = start.past.ty(i).clone();
            Arc::new(ValueInner { id, ty, stream: self.clone(), pos: open.base + i as u64 })
        };
        let values: Vec<Value> = stretch.kept.iter().map(&mut value).collect();
        Some(stretch.order.iter().map(|at| values[*at].clone()).collect())
    }
}

fn spot(open: &Open, trail: &Trail) -> Spot {
    Spot {
        trail: trail.number(),
        past: trail.past().clone(),
        base: open.base,
        len: trail.len(),
        inputs: open.inputs.len(),
        slots: open.slots.len(),
        changed: trail.changes(),
    }
}
