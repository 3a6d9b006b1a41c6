//! Parts of tensors: where they lie, and copies in which those along one dimension follow each other.

use super::hands::{Hands, Task, work};
use gt_ir::Ty;
use gt_ir::layout::part_range;
use std::cell::RefCell;
use std::ops::Range;

/// Products of the sizes before and after a dimension; the latter in bytes.
pub fn around(ty: &Ty, dim: usize) -> (usize, usize) {
    (ty.shape[..dim].iter().product(), ty.shape[dim + 1..].iter().product::<usize>() * ty.dtype.size())
}

pub fn bytes_of(range: Range<usize>, each: usize) -> Range<usize> {
    range.start * each..range.end * each
}

/// Where a dense piece goes: `run` bytes to `first`, then on after `step` bytes.
#[derive(Clone, Copy)]
pub struct Place {
    first: usize,
    run: usize,
    step: usize,
}

impl Place {
    /// A piece of `[outer][range][inner bytes]` in a result of `[outer][size][inner bytes]`.
    pub fn new(range: Range<usize>, size: usize, inner: usize) -> Place {
        Place { first: range.start * inner, run: range.len() * inner, step: size * inner }
    }

    pub fn dense(range: Range<usize>) -> Place {
        Place { first: range.start, run: range.len(), step: range.len() }
    }

    /// Where a byte of the piece goes, and how many go there in a row.
    pub fn of(&self, at: usize) -> (usize, usize) {
        let (row, into) = (at / self.run, at % self.run);
        (row * self.step + self.first + into, self.run - into)
    }
}

/// An operand whose parts along one dimension lie one after the other, each dense.
pub struct Packed {
    outer: usize,
    /// The length of the dimension.
    pub size: usize,
    inner: usize,
    copied: Option<Scratch>,
}

impl Packed {
    pub fn new(hands: &dyn Hands, ty: &Ty, x: &[u8], dim: usize, n: usize) -> Packed {
        let (outer, inner) = around(ty, dim);
        let size = ty.shape[dim];
        // Where nothing is outside the dimension, its parts follow each other as they are.
        let copied = (outer > 1 && n > 1).then(|| {
            let mut out = Scratch::take(x.len());
            let mut rest = &mut out.0[..];
            let packs = (0..n).map(|j| {
                let range = part_range(size, n, j);
                let (to, after) = std::mem::take(&mut rest).split_at_mut(outer * range.len() * inner);
                rest = after;
                let from = Place::new(range, size, inner);
                Pack { x, from, at: 0, to }
            });
            work(hands, packs.filter(|pack| !pack.to.is_empty()));
            out
        });
        Packed { outer, size, inner, copied }
    }

    pub fn bytes<'a>(&'a self, x: &'a [u8]) -> &'a [u8] {
        self.copied.as_ref().map_or(x, |copied| &copied.0)
    }

    /// The bytes for rank j.
    pub fn range(&self, j: usize, n: usize) -> Range<usize> {
        bytes_of(part_range(self.size, n, j), self.outer * self.inner)
    }
}

/// Copies a part of an operand, or what comes `at` some place in it, to where it is dense.
struct Pack<'a> {
    x: &'a [u8],
    from: Place,
    at: usize,
    to: &'a mut [u8],
}

impl Task for Pack<'_> {
    fn bytes(&self) -> usize {
        self.to.len()
    }

    fn cut(self, bytes: usize) -> (Self, Option<Self>) {
        let (to, rest) = self.to.split_at_mut(bytes);
        let later = Pack { at: self.at + bytes, to: rest, ..self };
        (Pack { to, ..self }, Some(later))
    }

    fn go(&mut self) {
        let (mut rest, mut at) = (&mut *self.to, self.at);
        while !rest.is_empty() {
            let (start, left) = self.from.of(at);
            let len = rest.len().min(left);
            let (to, after) = rest.split_at_mut(len);
            to.copy_from_slice(&self.x[start..start + len]);
            (rest, at) = (after, at + len);
        }
    }
}

/// Memory for a short while. It goes back to its thread, which finds it warm.
struct Scratch(Vec<u8>);

/// Bytes that a thread keeps at most.
const KEPT: usize = 64 << 20;

thread_local! {
    static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

impl Scratch {
    fn take(bytes: usize) -> Scratch {
        let kept = SPARE.with_borrow_mut(|spare| {
            let fits = spare.iter().position(|kept| kept.capacity() >= bytes);
            fits.map(|at| spare.swap_remove(at))
        });
        let mut memory = kept.unwrap_or_default();
        memory.resize(bytes, 0);
        Scratch(memory)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.0);
        // A thread that ends has nothing to keep.
        let _ = SPARE.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if spare.iter().map(Vec::capacity).sum::<usize>() + memory.capacity() <= KEPT {
                spare.push(memory);
            }
        });
    }
}
