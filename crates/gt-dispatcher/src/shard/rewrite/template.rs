//! What a worker runs of a program, and how others come by theirs from it.

use crate::shard::cost::Costs;
use crate::shard::judge::{Verdict, judge};
use gt_ir::layout::{Grains, Layouts, Part, range_at};
use gt_ir::{Result, Scalar, Slot, Structure, Ty, bail};
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What one worker runs of a program.
#[derive(Clone, Debug)]
pub struct Local {
    pub structure: Arc<Structure>,
    /// `structure.key()`.
    pub key: u64,
    /// The instruction of the whole program that each instruction belongs to.
    pub origins: Arc<Vec<u32>>,
    /// The type of each live-out's piece.
    pub types: Arc<Vec<Ty>>,
    pub slots: Vec<From>,
}

/// Where the value of a slot comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum From {
    /// A slot of the whole program, as it is.
    Given(u32),
    /// A slot of the whole program and a number added to it.
    Moved(u32, i64),
    /// This part's own.
    Own(i64),
}

impl Local {
    /// The slots of one run, from those of the whole program.
    pub fn bind(&self, slots: &[Slot]) -> Result<Vec<Slot>> {
        let number = |k: u32| match slots.get(k as usize) {
            Some(Slot::Num(x)) => Ok(x.as_i64()),
            _ => bail!(Value, "program: slot {k} holds no number"),
        };
        let fill = |from: &From| match *from {
            From::Given(k) => match slots.get(k as usize) {
                Some(slot) => Ok(slot.clone()),
                None => bail!(Value, "program: slot {k} is missing"),
            },
            From::Moved(k, by) => Ok(Slot::Num(Scalar::Int(number(k)?.wrapping_add(by)))),
            From::Own(x) => Ok(Slot::Num(Scalar::Int(x))),
        };
        self.slots.iter().map(fill).collect()
    }
}

/// What a worker runs, and how others come by theirs from it.
#[derive(Debug)]
pub struct Template {
    pub(super) local: Local,
    /// The types of all values of what it runs.
    pub values: Vec<Ty>,
    /// How each live-out lies.
    pub outs: Vec<Layouts>,
    /// Live-ins that lie in pieces, live on, and are put together to be read.
    pub joined: Vec<u32>,
    /// Parts of dimensions whose lengths went into the structure: (axis, size, length).
    pub(super) lengths: BTreeSet<(usize, usize, usize)>,
    /// Slots of the worker's own, and what they are worked out from.
    pub(super) own: Vec<(u32, Own)>,
    /// Dimensions that are split in grains.
    pub(super) grains: Grains,
}

/// A place on a mesh for a program with these grains.
pub(super) fn with_grains(place: &[Part], grains: Grains) -> SmallVec<[Part; 2]> {
    place.iter().map(|part| Part { grains, ..*part }).collect()
}

/// A number that depends on the worker.
#[derive(Clone, Debug)]
pub(super) enum Own {
    Begin(Begin),
    /// The block of the generator that its first random number is in, counted from a slot of the whole program.
    Block {
        offset: u32,
        drawn: Drawn,
    },
    /// How many numbers of that block are those of others.
    Skip(Drawn),
}

/// Where a worker's part of a dimension of so many grains begins, along an axis.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Begin {
    pub axis: usize,
    pub size: usize,
    pub grain: usize,
}

/// Rows of a random tensor.
#[derive(Clone, Debug)]
pub(super) struct Drawn {
    pub rows: usize,
    /// Numbers in a row, and in a block of the generator.
    pub each: usize,
    pub lanes: usize,
    pub lies: Layouts,
}

impl Own {
    pub fn at(&self, place: &[Part]) -> From {
        let first = |d: &Drawn| range_at(d.rows, 0, &d.lies, place).start * d.each;
        match self {
            Own::Begin(b) => From::Own((place[b.axis].range(b.size).start * b.grain) as i64),
            Own::Block { offset, drawn } => From::Moved(*offset, (first(drawn) / drawn.lanes) as i64),
            Own::Skip(drawn) => From::Own((first(drawn) % drawn.lanes) as i64),
        }
    }
}

impl Template {
    /// What the worker runs that it was written for.
    pub fn own(&self) -> Local {
        self.local.clone()
    }

    /// How long it is thought to take on a mesh of this shape, and what it needs.
    pub fn judge(&self, costs: &Costs, shape: &[usize]) -> Verdict {
        judge(&self.local.structure, &self.values, costs, shape)
    }

    /// What another worker runs, if its pieces have the same shapes.
    pub fn at(&self, place: &[Part]) -> Option<Local> {
        let place = &with_grains(place, self.grains);
        let same = |&(axis, size, len): &(usize, usize, usize)| place[axis].range(size).len() == len;
        if !self.lengths.iter().all(same) {
            return None;
        }
        let mut local = self.local.clone();
        for (slot, own) in &self.own {
            local.slots[*slot as usize] = own.at(place);
        }
        Some(local)
    }
}
