//! Following a program in other sizes: a decoded token is the last one but for the length of its cache.
//!
//! Where the program followed has an instruction of the same kind on the same operands, but another length or an operand
//! of another type, the instruction is noted here and its type worked out; everything else is followed as usual. A
//! program followed to its end this way has the structure of the other with these instructions changed.

use super::past::Way;
use foldhash::fast::FixedState;
use gt_ir::{Op, Structure, Ty};
use gt_sync::Mutex;
use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::Arc;

/// What is other than in the program followed, each list in order.
#[derive(Default)]
pub(super) struct Sizes {
    /// Types of inputs.
    inputs: Vec<(u32, Ty)>,
    /// Instructions, by their first values.
    ops: Vec<(u32, Op)>,
    /// Types of values.
    values: Vec<(u32, Ty)>,
}

/// Lengths of the three lists.
pub(super) type Counts = [usize; 3];

/// So much may differ, and of many values this part: more is better recorded and followed for itself.
const FEW: usize = 8;
const PART: usize = 8;

impl Sizes {
    pub fn is_empty(&self) -> bool {
        self.inputs.is_empty() && self.ops.is_empty() && self.values.is_empty()
    }

    /// True if following a program that has come to `values` values still pays.
    pub fn pays(&self, values: usize) -> bool {
        self.ops.len().max(self.values.len()) + self.inputs.len() <= FEW + values / PART
    }

    pub fn add_input(&mut self, i: usize, ty: &Ty) {
        self.inputs.push((i as u32, ty.clone()));
    }

    pub fn add_op(&mut self, value: usize, op: &Op) {
        self.ops.push((value as u32, op.clone()));
    }

    pub fn add_value(&mut self, value: usize, ty: Ty) {
        self.values.push((value as u32, ty));
    }

    /// The type of a value, if it is another than in the program followed.
    #[inline]
    pub fn ty(&self, value: usize) -> Option<&Ty> {
        find(&self.values, value)
    }

    /// The type of an input, if it is another.
    #[inline]
    pub fn input(&self, i: usize) -> Option<&Ty> {
        find(&self.inputs, i)
    }

    /// The op of the instruction that makes a value, if it is another.
    pub fn op(&self, value: usize) -> Option<&Op> {
        find(&self.ops, value)
    }

    pub fn counts(&self) -> Counts {
        [self.inputs.len(), self.ops.len(), self.values.len()]
    }

    pub fn go_back(&mut self, to: Counts) {
        self.inputs.truncate(to[0]);
        self.ops.truncate(to[1]);
        self.values.truncate(to[2]);
    }

    /// Types of values follow from the rest.
    fn key(&self) -> u64 {
        FixedState::with_seed(11).hash_one((&self.inputs, &self.ops))
    }
}

#[inline]
fn find<T>(list: &[(u32, T)], at: usize) -> Option<&T> {
    let found = list.binary_search_by_key(&(at as u32), |(i, _)| *i).ok()?;
    Some(&list[found].1)
}

/// The sizes in which one program came.
#[derive(Default)]
pub(super) struct Resized {
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    ways: HashMap<u64, (Sizes, Arc<Way>), FixedState>,
    /// Instructions of all of them.
    instrs: usize,
}

/// Instructions kept at most for one program in all its sizes.
const MAX_INSTRS: usize = 1 << 16;

impl Resized {
    /// The way `way` in other sizes.
    pub fn find(&self, way: &Way, sizes: Sizes, bytes: impl FnOnce(&Sizes) -> u64) -> Arc<Way> {
        let key = sizes.key();
        let mut known = self.known.lock();
        if let Some((same, way)) = known.ways.get(&key)
            && (&same.inputs, &same.ops) == (&sizes.inputs, &sizes.ops)
        {
            return way.clone();
        }
        let structure = resize(&way.structure, &sizes);
        let made = Arc::new(way.in_other_sizes(structure, bytes(&sizes)));
        known.instrs += made.structure.instrs.len();
        if known.instrs > MAX_INSTRS {
            known.ways.clear();
            known.instrs = made.structure.instrs.len();
        }
        known.ways.insert(key, (sizes, made.clone()));
        made
    }
}

/// A structure in other sizes.
fn resize(structure: &Structure, sizes: &Sizes) -> Structure {
    let mut out = structure.clone();
    for (i, ty) in &sizes.inputs {
        out.inputs[*i as usize].ty = ty.clone();
    }
    let mut ops = sizes.ops.iter().peekable();
    let mut value = 0;
    for instr in &mut out.instrs {
        let results = instr.results() as u32;
        if let Some((_, op)) = ops.next_if(|(at, _)| *at == value) {
            instr.op = op.clone();
        }
        value += results;
    }
    out
}
