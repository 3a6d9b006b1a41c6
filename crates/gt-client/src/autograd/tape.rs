//! What the graph grown by an open program looks like, summed up in a number.
//!
//! While a thread's program follows one that came before, every node of the graph is numbered and mixed into a hash: its
//! op, its numbers, and the nodes its gradients go to. Equal hashes at the same place of the same program mean equal
//! graphs, so that a backward pass can be taken from the last time (`replay`).

use super::node::{NodeArg, NodeKind};
use foldhash::fast::FixedState;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

/// A node's number on the tape it was grown on; `trail` is 0 for none.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Number {
    pub trail: u64,
    pub index: u32,
}

/// The nodes of one open program.
#[derive(Default)]
pub(crate) struct Tape {
    /// The following that it belongs to.
    pub trail: u64,
    pub hash: u64,
    /// Nodes so far.
    pub count: u32,
    /// Nodes from before that gradients go to, by age, in order of first use.
    pub outside: HashMap<u64, u32, FixedState>,
    /// How often storage had been written when it began.
    writes: u64,
    /// Something is in the graph that is not summed up.
    unsound: bool,
}

thread_local! {
    static ON: Cell<bool> = const { Cell::new(false) };
    static TAPE: RefCell<Tape> = RefCell::default();
}

/// Counts writes that autograd counts, of all storage.
static WRITES: AtomicU64 = AtomicU64::new(0);
const HASH: FixedState = FixedState::with_seed(0x7461_7065);

/// Storage was written in place.
#[inline]
pub(crate) fn wrote() {
    WRITES.fetch_add(1, Ordering::Relaxed);
}

/// This thread's program begins to follow another.
pub(crate) fn begin(trail: u64) {
    ON.set(true);
    TAPE.with_borrow_mut(|tape| {
        tape.trail = trail;
        tape.hash = 0;
        tape.count = 0;
        tape.outside.clear();
        tape.writes = WRITES.load(Ordering::Relaxed);
        tape.unsound = false;
    });
}

/// This thread's program follows no other any more.
#[inline]
pub(crate) fn end() {
    ON.set(false);
}

/// Numbers a new node.
#[inline]
pub(crate) fn number(kind: &NodeKind, args: &[NodeArg]) -> Number {
    if !ON.get() {
        return Number::default();
    }
    TAPE.with_borrow_mut(|tape| tape.add(kind, args))
}

/// Looks at this thread's tape if it is that of `trail`, sums all of the graph up, and no storage was written since.
pub(crate) fn with<T>(trail: u64, look: impl FnOnce(&Tape) -> Option<T>) -> Option<T> {
    TAPE.with_borrow(|tape| {
        let sound = ON.get() && tape.trail == trail && !tape.unsound;
        if sound && tape.writes == WRITES.load(Ordering::Relaxed) { look(tape) } else { None }
    })
}

impl Tape {
    fn add(&mut self, kind: &NodeKind, args: &[NodeArg]) -> Number {
        let NodeKind::Op(op) = kind else {
            self.unsound = true;
            return Number::default();
        };
        let mut hasher = HASH.build_hasher();
        hasher.write_u64(self.hash);
        op.hash(&mut hasher);
        for arg in args {
            match arg {
                NodeArg::Num(x) => x.hash(&mut hasher),
                NodeArg::Val { ty, edge: Some(edge), .. } => {
                    let number = edge.node.number;
                    let index = match number.trail == self.trail {
                        true => number.index,
                        false => self.outside_index(edge.node.seq) | 1 << 31,
                    };
                    hasher.write_u64((edge.nr as u64) << 32 | index as u64);
                    ty.hash(&mut hasher);
                }
                NodeArg::Val { ty, edge: None, .. } => ty.hash(&mut hasher),
            }
        }
        self.hash = hasher.finish();
        self.count += 1;
        Number { trail: self.trail, index: self.count - 1 }
    }

    fn outside_index(&mut self, age: u64) -> u32 {
        let next = self.outside.len() as u32;
        *self.outside.entry(age).or_insert(next)
    }
}
