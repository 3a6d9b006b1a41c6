//! A collective as work for the device: copies that pack and unpack, NCCL's calls, and joins of what was received.
//!
//! What NCCL reduces as the language has it (`nccl::native`) it reduces. All else is sent to the rank that joins it, in
//! the order of ranks, and from there to all: the same bytes on the road, the same bits as on other devices.

use super::memory::GRAIN;
use super::nccl::{Call, native};
use gt_ir::layout::part_range;
use gt_ir::{DType, Exchange, ReduceKind, Ty};
use std::ops::Range;

/// Where bytes lie: in an operand, in a result, in scratch memory; with how many bytes before.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum At {
    X(usize, usize),
    Out(usize, usize),
    Scratch(usize),
}

impl At {
    fn plus(self, bytes: usize) -> At {
        match self {
            At::X(k, at) => At::X(k, at + bytes),
            At::Out(k, at) => At::Out(k, at + bytes),
            At::Scratch(at) => At::Scratch(at + bytes),
        }
    }
}

/// One piece of work, in order with the others.
#[derive(Clone, PartialEq, Debug)]
pub enum Act {
    /// `rows` runs of `bytes` bytes, which start so many bytes after each other.
    Copy { from: At, to: At, bytes: usize, rows: usize, from_step: usize, to_step: usize },
    /// All at once.
    Calls(Vec<Call<At>>),
    /// Joins runs of elements that lie one after the other.
    Join { from: At, to: At, runs: usize, count: usize, kind: ReduceKind, dtype: DType },
}

/// A collective for one rank.
#[derive(Default)]
pub struct Moves {
    pub acts: Vec<Act>,
    /// Bytes of scratch memory.
    pub scratch: usize,
}

/// Results of at most this many bytes are joined by every rank for itself: one exchange instead of two.
const FEW: usize = 64 << 10;

/// Bytes of scratch memory that a collective may take, whatever the rank.
pub fn most_scratch(what: &Exchange, types: &[Ty]) -> usize {
    let bytes = |i: usize, ty: &Ty| ty.bytes() + what.result(i, ty).map_or(0, |out| out.bytes());
    let takes = |ty: &Ty| match what {
        Exchange::Broadcast { .. } => false,
        Exchange::AllReduce { kind } => native(*kind, ty.dtype).is_none(),
        Exchange::AllGather { dim, .. } => ty.shape[..*dim].iter().product::<usize>() > 1,
        Exchange::ReduceScatter { .. } | Exchange::AllToAll { .. } => true,
    };
    types.iter().enumerate().filter(|(_, ty)| takes(ty)).map(|(i, ty)| 2 * bytes(i, ty) + (FEW << 4)).sum()
}

/// What a rank of `size` does for a collective of operands of these types.
pub fn moves(what: &Exchange, types: &[Ty], rank: usize, size: usize) -> Moves {
    let mut maker = Maker { n: size, me: rank, ..Maker::default() };
    match what {
        Exchange::AllReduce { kind } => maker.all_reduce(*kind, types),
        Exchange::ReduceScatter { kind, dim, .. } => {
            types.iter().enumerate().for_each(|(k, ty)| maker.reduce_scatter(*kind, *dim, k, ty));
        }
        Exchange::AllGather { dim, sizes } => {
            types.iter().enumerate().for_each(|(k, ty)| maker.all_gather(*dim, sizes[k], k, ty));
        }
        Exchange::AllToAll { from, to, sizes, .. } => {
            types.iter().enumerate().for_each(|(k, ty)| maker.all_to_all(*from, *to, sizes[k], k, ty));
        }
        Exchange::Broadcast { root } => {
            for (k, ty) in types.iter().enumerate().filter(|(_, ty)| ty.bytes() > 0) {
                let (from, to) = (At::X(k, 0), At::Out(k, 0));
                maker.first.push(Call::Broadcast { from, to, bytes: ty.bytes(), root: *root });
            }
        }
    }
    maker.finish()
}

/// A tensor around one of its dimensions: how many times what is outside, its size, and the bytes of what is inside.
struct Around {
    outer: usize,
    size: usize,
    inner: usize,
}

impl Around {
    fn new(ty: &Ty, dim: usize) -> Around {
        Around {
            outer: ty.shape[..dim].iter().product(),
            size: ty.shape[dim],
            inner: ty.shape[dim + 1..].iter().product::<usize>() * ty.dtype.size(),
        }
    }

    /// The bytes of a range of the dimension where each part lies dense behind the one before.
    fn bytes(&self, range: &Range<usize>) -> Range<usize> {
        let each = self.outer * self.inner;
        range.start * each..range.end * each
    }
}

/// Collects the work of a collective, of all operands side by side.
#[derive(Default)]
struct Maker {
    n: usize,
    me: usize,
    before: Vec<Act>,
    first: Vec<Call<At>>,
    between: Vec<Act>,
    second: Vec<Call<At>>,
    after: Vec<Act>,
    scratch: usize,
}

fn copy(from: At, to: At, bytes: usize) -> Act {
    Act::Copy { from, to, bytes, rows: 1, from_step: bytes, to_step: bytes }
}

impl Maker {
    fn finish(mut self) -> Moves {
        // Pieces that are empty are neither sent nor received, so that ranks make the others' calls in other places.
        self.first.sort_by_key(|call| matches!(call, Call::Send { .. } | Call::Recv { .. }));
        let some = |act: &Act| match act {
            Act::Copy { bytes, rows, .. } => *bytes > 0 && *rows > 0,
            Act::Calls(calls) => !calls.is_empty(),
            Act::Join { count, .. } => *count > 0,
        };
        let mut acts = self.before;
        acts.push(Act::Calls(self.first));
        acts.extend(self.between);
        acts.push(Act::Calls(self.second));
        acts.extend(self.after);
        acts.retain(some);
        Moves { acts, scratch: self.scratch }
    }

    /// Scratch memory of its own.
    fn room(&mut self, bytes: usize) -> At {
        let at = self.scratch;
        self.scratch += bytes.next_multiple_of(GRAIN);
        At::Scratch(at)
    }

    fn part(&self, size: usize, rank: usize) -> Range<usize> {
        part_range(size, self.n, rank)
    }

    /// Ranks to send to and to receive from, each rank beginning with another.
    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (n, me) = (self.n, self.me);
        (1..n).map(move |step| (me + step) % n)
    }

    /// Exchanges pieces: what rank j gets, and where what rank i sends belongs. Returns the calls; the own piece is
    /// copied before.
    fn swap(
        &mut self,
        give: impl Fn(&Maker, usize) -> (At, usize),
        take: impl Fn(&Maker, usize) -> (At, usize),
    ) -> Vec<Call<At>> {
        let mut calls = Vec::new();
        for j in self.others() {
            let (from, bytes) = give(self, j);
            calls.push(Call::Send { from, bytes, to: j });
            let (to, bytes) = take(self, j);
            calls.push(Call::Recv { to, bytes, from: j });
        }
        let some = |call: &Call<At>| match call {
            Call::Send { bytes, .. } | Call::Recv { bytes, .. } => *bytes > 0,
            _ => true,
        };
        calls.retain(some);
        let ((from, bytes), (to, _)) = (give(self, self.me), take(self, self.me));
        self.before.push(copy(from, to, bytes));
        calls
    }

    fn all_reduce(&mut self, kind: ReduceKind, types: &[Ty]) {
        let mut rest: Vec<(DType, Vec<(usize, usize)>)> = Vec::new();
        for (k, ty) in types.iter().enumerate().filter(|(_, ty)| ty.shape.numel() > 0) {
            let (dtype, count) = (ty.dtype, ty.shape.numel());
            if native(kind, dtype).is_some() {
                let (from, to) = (At::X(k, 0), At::Out(k, 0));
                self.first.push(Call::AllReduce { from, to, count, kind, dtype });
                continue;
            }
            match rest.iter_mut().find(|(known, _)| *known == dtype) {
                Some((_, list)) => list.push((k, count)),
                None => rest.push((dtype, vec![(k, count)])),
            }
        }
        for (dtype, list) in rest {
            self.joined_all_reduce(kind, dtype, &list);
        }
    }

    /// Operands of one type that NCCL does not reduce, taken as one run of elements.
    fn joined_all_reduce(&mut self, kind: ReduceKind, dtype: DType, list: &[(usize, usize)]) {
        let each = dtype.size();
        let total: usize = list.iter().map(|(_, count)| count).sum();
        let (flat, all) = match list {
            [(k, _)] => (At::X(*k, 0), At::Out(*k, 0)),
            _ => (self.room(total * each), self.room(total * each)),
        };
        if list.len() > 1 {
            let mut at = 0;
            for &(k, count) in list {
                self.before.push(copy(At::X(k, 0), flat.plus(at), count * each));
                self.after.push(copy(all.plus(at), At::Out(k, 0), count * each));
                at += count * each;
            }
        }
        let (n, me, few) = (self.n, self.me, total * each <= FEW);
        let part = |rank: usize| if few { 0..total } else { part_range(total, n, rank) };
        let own = part(me).len() * each;
        let runs = self.room(n * own);
        let give = |_: &Maker, j: usize| (flat.plus(part(j).start * each), part(j).len() * each);
        let calls = self.swap(give, |_, i| (runs.plus(i * own), own));
        self.first.extend(calls);
        let to = all.plus(part(me).start * each);
        self.between.push(Act::Join { from: runs, to, runs: n, count: part(me).len(), kind, dtype });
        if !few {
            for j in self.others() {
                let at = all.plus(part(j).start * each);
                self.second.push(Call::Send { from: to, bytes: own, to: j });
                self.second.push(Call::Recv { to: at, bytes: part(j).len() * each, from: j });
            }
            self.second
                .retain(|call| !matches!(call, Call::Send { bytes: 0, .. } | Call::Recv { bytes: 0, .. }));
        }
    }

    /// An operand whose parts along a dimension lie one after the other, each dense.
    fn packed(&mut self, k: usize, x: &Around) -> At {
        // Where nothing is outside the dimension, its parts follow each other as they are.
        if x.outer <= 1 || self.n == 1 {
            return At::X(k, 0);
        }
        let to = self.room(x.outer * x.size * x.inner);
        for j in 0..self.n {
            let range = self.part(x.size, j);
            let bytes = range.len() * x.inner;
            self.before.push(Act::Copy {
                from: At::X(k, range.start * x.inner),
                to: to.plus(x.bytes(&range).start),
                bytes,
                rows: x.outer,
                from_step: x.size * x.inner,
                to_step: bytes,
            });
        }
        to
    }

    /// Takes the parts of a result along a dimension, which lie one after the other, to where they belong.
    fn unpack(&mut self, from: At, k: usize, out: &Around) {
        for i in 0..self.n {
            let range = self.part(out.size, i);
            let bytes = range.len() * out.inner;
            self.after.push(Act::Copy {
                from: from.plus(out.bytes(&range).start),
                to: At::Out(k, range.start * out.inner),
                bytes,
                rows: out.outer,
                from_step: bytes,
                to_step: out.size * out.inner,
            });
        }
    }

    fn reduce_scatter(&mut self, kind: ReduceKind, dim: usize, k: usize, ty: &Ty) {
        let x = Around::new(ty, dim);
        let from = self.packed(k, &x);
        let (dtype, to) = (ty.dtype, At::Out(k, 0));
        if x.size.is_multiple_of(self.n) && native(kind, dtype).is_some() {
            let count = ty.shape.numel() / self.n;
            if count > 0 {
                self.first.push(Call::ReduceScatter { from, to, count, kind, dtype });
            }
            return;
        }
        let own = x.bytes(&self.part(x.size, self.me)).len();
        let runs = self.room(self.n * own);
        let give = |m: &Maker, j: usize| {
            let range = x.bytes(&m.part(x.size, j));
            (from.plus(range.start), range.len())
        };
        let calls = self.swap(give, |_, i| (runs.plus(i * own), own));
        self.first.extend(calls);
        let (runs_of, count) = (self.n, own / dtype.size());
        self.between.push(Act::Join { from: runs, to, runs: runs_of, count, kind, dtype });
    }

    fn all_gather(&mut self, dim: usize, size: usize, k: usize, ty: &Ty) {
        let out = Around { size, ..Around::new(ty, dim) };
        let to = match out.outer {
            0 | 1 => At::Out(k, 0),
            _ => self.room(out.outer * size * out.inner),
        };
        if size.is_multiple_of(self.n) {
            if ty.bytes() > 0 {
                self.first.push(Call::AllGather { from: At::X(k, 0), to, bytes: ty.bytes() });
            }
        } else {
            let take = |m: &Maker, i: usize| {
                let range = out.bytes(&m.part(size, i));
                (to.plus(range.start), range.len())
            };
            let calls = self.swap(|_, _| (At::X(k, 0), ty.bytes()), take);
            self.first.extend(calls);
        }
        if out.outer > 1 {
            self.unpack(to, k, &out);
        }
    }

    fn all_to_all(&mut self, from: usize, to: usize, size: usize, k: usize, ty: &Ty) {
        let x = Around::new(ty, to);
        let packed = self.packed(k, &x);
        // The result has this rank's part of `to` and all of `from`.
        let mut result = ty.clone();
        (result.shape[to], result.shape[from]) = (self.part(ty.shape[to], self.me).len(), size);
        let out = Around::new(&result, from);
        let goal = match out.outer {
            0 | 1 => At::Out(k, 0),
            _ => self.room(out.outer * size * out.inner),
        };
        let give = |m: &Maker, j: usize| {
            let range = x.bytes(&m.part(x.size, j));
            (packed.plus(range.start), range.len())
        };
        let take = |m: &Maker, i: usize| {
            let range = out.bytes(&m.part(size, i));
            (goal.plus(range.start), range.len())
        };
        let calls = self.swap(give, take);
        self.first.extend(calls);
        if out.outer > 1 {
            self.unpack(goal, k, &out);
        }
    }
}

#[cfg(test)]
#[path = "gang_moves_tests.rs"]
mod tests;
