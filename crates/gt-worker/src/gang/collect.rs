//! Collectives over host memory. Sums are taken in the order of ranks, so that every rank gets the same bits (C7).
//!
//! Every collective is made of rounds in which ranks show each other parts of their buffers. A road that has little room
//! (`Communicator::most`) gets what is long in several rounds, which changes no bit.

use super::combine::combine;
use super::hands::{Alone, Hands, Task, work};
use super::pack::{Packed, Place, around, bytes_of};
use super::{Communicator, Want};
use crate::backend::PlanError;
use gt_ir::layout::part_range;
use gt_ir::{DType, Error, Exchange, ReduceKind, Ty};
use smallvec::SmallVec;
use std::ops::Range;

/// One operand of a collective, and where its result goes.
pub struct Item<'a> {
    /// The type of this rank's piece.
    pub ty: Ty,
    pub x: &'a [u8],
    pub out: &'a mut [u8],
}

impl<'a> Item<'a> {
    /// The first bytes, and the rest; both as rows of elements.
    fn cut(self, bytes: usize) -> (Item<'a>, Item<'a>) {
        let (x, x_rest) = self.x.split_at(bytes);
        let (out, out_rest) = self.out.split_at_mut(bytes);
        let row = |bytes: &[u8]| Ty::new(self.ty.dtype, [bytes.len() / self.ty.dtype.size()]);
        (Item { ty: row(x), x, out }, Item { ty: row(x_rest), x: x_rest, out: out_rest })
    }
}

/// Results of at most this many bytes are summed by every rank for itself, which takes one meeting instead of two.
const FEW: usize = 64 << 10;
/// An operand of fewer bytes is summed by one rank.
const SMALL: usize = 4 << 10;
/// Bytes of a rank that are reduced and passed on before the next.
const STRETCH: usize = 4 << 20;
/// Where long operands are cut: elements of all types end there.
const CUT: usize = 64;

/// Carries out a collective on the calling thread.
pub fn run(what: &Exchange, comm: &dyn Communicator, items: &mut [Item]) -> Result<(), PlanError> {
    run_with(what, comm, &Alone, items)
}

/// Carries out a collective with the help of other threads.
pub fn run_with(
    what: &Exchange,
    comm: &dyn Communicator,
    hands: &dyn Hands,
    items: &mut [Item],
) -> Result<(), PlanError> {
    for (i, item) in items.iter().enumerate() {
        let ty = what.result(i, &item.ty).map_err(wrong)?;
        if item.x.len() != item.ty.bytes() || item.out.len() != ty.bytes() {
            return Err(wrong(Error::Runtime(format!("{}: buffers do not fit {}", what.text(), item.ty))));
        }
    }
    let group = On { comm, hands };
    match what {
        Exchange::AllReduce { kind } => group.all_reduce(*kind, items),
        Exchange::AllGather { dim, sizes } => group.all_gather(*dim, sizes, items),
        Exchange::ReduceScatter { kind, dim, .. } => group.reduce_scatter(*kind, *dim, items),
        Exchange::AllToAll { from, to, sizes, .. } => group.all_to_all(*from, *to, sizes, items),
        Exchange::Broadcast { root } => group.broadcast(*root, items),
    }
}

fn wrong(error: Error) -> PlanError {
    PlanError { instr: None, error }
}

/// A part of what is shown in one round: the buffer, and where in what is wanted of it.
#[derive(Clone, Copy)]
struct Cut {
    k: usize,
    at: usize,
    len: usize,
}

/// Takes the cuts of a round, and what each rank shows of them.
type TakeCuts<'a> = &'a mut dyn FnMut(&[Cut], &[Vec<&[u8]>]);

/// The result of an operand, of which tasks write disjoint parts.
#[derive(Clone, Copy)]
struct Out(*mut u8, usize);

// SAFETY: tasks write disjoint parts, and nobody reads what another task writes.
unsafe impl Send for Out {}

impl Out {
    fn of(item: &mut Item) -> Out {
        Out(item.out.as_mut_ptr(), item.out.len())
    }

    /// # Safety
    /// The result outlives what is given, and nobody else has these bytes meanwhile.
    unsafe fn part<'a>(self, range: Range<usize>) -> &'a mut [u8] {
        assert!(range.start <= range.end && range.end <= self.1, "a part outside of its result");
        // SAFETY: within the result; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(range.start), range.len()) }
    }
}

/// A group and the threads that work for it.
struct On<'a> {
    comm: &'a dyn Communicator,
    hands: &'a dyn Hands,
}

impl On<'_> {
    /// Shows `mine` in as many rounds as the road needs; `take` gets the cuts of a round and what each rank shows of
    /// them.
    fn rounds(&self, mine: &[&[u8]], want: Want, take: TakeCuts) -> Result<(), PlanError> {
        let (n, most) = (self.comm.size(), self.comm.most());
        if most == usize::MAX {
            let all: Vec<Cut> = (0..mine.len()).map(|k| Cut { k, at: 0, len: usize::MAX }).collect();
            return self.comm.share_with(self.hands, mine, want, &mut |shown| take(&all, shown));
        }
        let rounds = cut_rounds(n, most, mine.len(), want);
        let bytes = |r: usize| -> Vec<&[u8]> { rounds[r].iter().map(|cut| mine[cut.k]).collect() };
        let part = |r: usize, q: usize, i: usize, j: usize| {
            let Cut { k, at, len } = rounds[r][q];
            let Range { start, end } = want(k, i, j);
            let start = end.min(start + at);
            start..end.min(start + len)
        };
        let show = |r: usize| self.comm.show(self.hands, &bytes(r), &|q, i, j| part(r, q, i, j));
        let ahead = self.comm.ahead();
        (0..ahead.min(rounds.len())).try_for_each(show)?;
        for r in 0..rounds.len() {
            // The next round is on its way while this one is worked on.
            if ahead > 0 && r + ahead < rounds.len() {
                show(r + ahead)?;
            }
            let want = |q: usize, i: usize, j: usize| part(r, q, i, j);
            self.comm.look(self.hands, &bytes(r), &want, &mut |shown| take(&rounds[r], shown))?;
        }
        Ok(())
    }

    /// Sums what all show of each operand; `start(k)` is where this rank's part begins in the result.
    fn sum(
        &self,
        kind: ReduceKind,
        (mine, want): (&[&[u8]], Want),
        outs: &[(DType, Out)],
        start: &dyn Fn(usize) -> usize,
    ) -> Result<(), PlanError> {
        self.rounds(mine, want, &mut |cuts, shown| {
            let tasks = cuts.iter().enumerate().filter_map(|(q, cut)| {
                let (dtype, out) = outs[cut.k];
                let pieces: SmallVec<[&[u8]; 8]> = shown.iter().map(|rank| rank[q]).collect();
                // Parts are not all of one length: nothing may be left of this rank's.
                let len = pieces.first().map_or(0, |piece| piece.len());
                let at = start(cut.k) + cut.at;
                // SAFETY: the cuts of a round are of different operands or follow each other.
                (len > 0).then(|| Sum { kind, dtype, pieces, out: unsafe { out.part(at..at + len) } })
            });
            work(self.hands, tasks);
        })
    }

    /// Puts what all show where it belongs; `place(k, i)` says where rank i's piece of operand k goes.
    fn put(
        &self,
        (mine, want): (&[&[u8]], Want),
        outs: &[Out],
        place: &dyn Fn(usize, usize) -> Option<Place>,
    ) -> Result<(), PlanError> {
        self.rounds(mine, want, &mut |cuts, shown| {
            let tasks = cuts.iter().enumerate().flat_map(|(q, cut)| {
                let from = shown.iter().enumerate();
                from.filter_map(move |(i, rank)| {
                    let to = place(cut.k, i)?;
                    Some(Put { piece: rank[q], at: cut.at, to, out: outs[cut.k] })
                })
            });
            work(self.hands, tasks.filter(|put| !put.piece.is_empty()));
        })
    }

    /// Long operands go in stretches: what a rank has summed is still in its cache when the others take it.
    fn all_reduce(&self, kind: ReduceKind, items: &mut [Item]) -> Result<(), PlanError> {
        let mut left: Vec<Item> = Vec::with_capacity(items.len());
        for Item { ty, x, out } in items {
            left.push(Item { ty: ty.clone(), x, out });
        }
        let (mut stretch, mut room) = (Vec::new(), STRETCH);
        for mut item in left.into_iter().filter(|item| !item.x.is_empty()) {
            while item.x.len() > room {
                // Elements of all types end at the cut.
                let (first, rest) = item.cut(room / CUT * CUT);
                stretch.push(first);
                self.reduce_stretch(kind, &mut std::mem::take(&mut stretch))?;
                (item, room) = (rest, STRETCH);
            }
            room -= item.x.len();
            stretch.push(item);
        }
        self.reduce_stretch(kind, &mut stretch)
    }

    fn reduce_stretch(&self, kind: ReduceKind, items: &mut [Item]) -> Result<(), PlanError> {
        let (n, me) = (self.comm.size(), self.comm.rank());
        let sizes: Vec<(usize, usize)> =
            items.iter().map(|item| (item.ty.shape.numel(), item.ty.dtype.size())).collect();
        let few = n == 1 || items.iter().map(|item| item.x.len()).sum::<usize>() <= FEW;
        // The bytes of operand k that rank j works out.
        let part = |k: usize, j: usize| {
            let (len, each) = sizes[k];
            match (few, len * each < SMALL) {
                (true, _) => 0..len * each,
                (false, true) => 0..if k % n == j { len * each } else { 0 },
                (false, false) => bytes_of(part_range(len, n, j), each),
            }
        };
        let xs: Vec<&[u8]> = items.iter().map(|item| item.x).collect();
        let outs: Vec<(DType, Out)> = items.iter_mut().map(|item| (item.ty.dtype, Out::of(item))).collect();
        self.sum(kind, (&xs, &|k, _, j| part(k, j)), &outs, &|k| part(k, me).start)?;
        if few {
            return Ok(());
        }
        // SAFETY: this rank's part is done, and from here on only the others' parts are written.
        let mine = outs.iter().enumerate().map(|(k, (_, out))| unsafe { &*out.part(part(k, me)) });
        let mine: Vec<&[u8]> = mine.collect();
        let outs: Vec<Out> = outs.into_iter().map(|(_, out)| out).collect();
        let place = |k: usize, i: usize| (i != me).then(|| Place::dense(part(k, i)));
        self.put((&mine, &|k, i, _| 0..part(k, i).len()), &outs, &place)
    }

    fn all_gather(&self, dim: usize, sizes: &[usize], items: &mut [Item]) -> Result<(), PlanError> {
        let n = self.comm.size();
        let dims: Vec<(usize, usize)> = items.iter().map(|item| around(&item.ty, dim)).collect();
        let xs: Vec<&[u8]> = items.iter().map(|item| item.x).collect();
        let outs: Vec<Out> = items.iter_mut().map(Out::of).collect();
        let whole = |k: usize, i: usize| dims[k].0 * part_range(sizes[k], n, i).len() * dims[k].1;
        let place = |k: usize, i: usize| Some(Place::new(part_range(sizes[k], n, i), sizes[k], dims[k].1));
        self.put((&xs, &|k, i, _| 0..whole(k, i)), &outs, &place)
    }

    fn reduce_scatter(&self, kind: ReduceKind, dim: usize, items: &mut [Item]) -> Result<(), PlanError> {
        let n = self.comm.size();
        let packed: Vec<Packed> =
            items.iter().map(|item| Packed::new(self.hands, &item.ty, item.x, dim, n)).collect();
        let xs: Vec<&[u8]> = items.iter().zip(&packed).map(|(item, p)| p.bytes(item.x)).collect();
        let outs: Vec<(DType, Out)> = items.iter_mut().map(|item| (item.ty.dtype, Out::of(item))).collect();
        self.sum(kind, (&xs, &|k, _, j| packed[k].range(j, n)), &outs, &|_| 0)
    }

    fn all_to_all(
        &self,
        from: usize,
        to: usize,
        sizes: &[usize],
        items: &mut [Item],
    ) -> Result<(), PlanError> {
        let (n, me) = (self.comm.size(), self.comm.rank());
        let packed: Vec<Packed> =
            items.iter().map(|item| Packed::new(self.hands, &item.ty, item.x, to, n)).collect();
        let xs: Vec<&[u8]> = items.iter().zip(&packed).map(|(item, p)| p.bytes(item.x)).collect();
        // What lies within `from` in the result, which has this rank's part of `to`.
        let inner_of = |item: &Item| {
            let mut ty = item.ty.clone();
            ty.shape[to] = part_range(ty.shape[to], n, me).len();
            around(&ty, from).1
        };
        let inner: Vec<usize> = items.iter().map(inner_of).collect();
        // Bytes for one index of `from` and of `to`: all that ranks have in common.
        let unit = |item: &Item| {
            let others = item.ty.shape.iter().enumerate().filter(|(d, _)| *d != from && *d != to);
            others.map(|(_, len)| len).product::<usize>() * item.ty.dtype.size()
        };
        let units: Vec<usize> = items.iter().map(unit).collect();
        let want = |k: usize, i: usize, j: usize| {
            let held = part_range(sizes[k], n, i).len();
            bytes_of(part_range(packed[k].size, n, j), held * units[k])
        };
        let outs: Vec<Out> = items.iter_mut().map(Out::of).collect();
        let place = |k: usize, i: usize| Some(Place::new(part_range(sizes[k], n, i), sizes[k], inner[k]));
        self.put((&xs, &want), &outs, &place)
    }

    fn broadcast(&self, root: usize, items: &mut [Item]) -> Result<(), PlanError> {
        let sizes: Vec<usize> = items.iter().map(|item| item.x.len()).collect();
        let xs: Vec<&[u8]> = items.iter().map(|item| item.x).collect();
        let outs: Vec<Out> = items.iter_mut().map(Out::of).collect();
        let want = |k: usize, i: usize, _| 0..if i == root { sizes[k] } else { 0 };
        let place = |k: usize, i: usize| (i == root).then(|| Place::dense(0..sizes[k]));
        self.put((&xs, &want), &outs, &place)
    }
}

/// Cuts what `count` buffers show, as wanted, into rounds of at most `most` bytes of a rank.
fn cut_rounds(n: usize, most: usize, count: usize, want: Want) -> Vec<Vec<Cut>> {
    let (mut rounds, mut round, mut room) = (Vec::new(), Vec::new(), most);
    for k in 0..count {
        let alike = (0..n).all(|i| (1..n).all(|j| want(k, i, j) == want(k, i, 0)));
        // What is wanted by all alike is shown once, else once for each.
        let times = if alike { 1 } else { n };
        let pairs = (0..n).flat_map(|i| (0..if alike { 1 } else { n }).map(move |j| (i, j)));
        let longest = pairs.map(|(i, j)| want(k, i, j).len()).max().unwrap_or(0);
        let mut at = 0;
        loop {
            let len = (room / times / CUT * CUT).min(longest - at);
            if len > 0 || longest == 0 {
                round.push(Cut { k, at, len });
            }
            (at, room) = (at + len, room - (len * times).next_multiple_of(CUT).min(room));
            if at == longest {
                break;
            }
            rounds.push(std::mem::take(&mut round));
            room = most;
        }
    }
    rounds.push(round);
    rounds
}

/// Sums pieces of one length.
struct Sum<'a> {
    kind: ReduceKind,
    dtype: DType,
    pieces: SmallVec<[&'a [u8]; 8]>,
    out: &'a mut [u8],
}

impl Task for Sum<'_> {
    fn bytes(&self) -> usize {
        self.out.len()
    }

    fn cut(mut self, bytes: usize) -> (Self, Option<Self>) {
        let (out, rest) = self.out.split_at_mut(bytes);
        let mut later = SmallVec::with_capacity(self.pieces.len());
        for piece in &mut self.pieces {
            let (first, second) = piece.split_at(bytes);
            later.push(second);
            *piece = first;
        }
        (Sum { out, ..self }, Some(Sum { pieces: later, out: rest, ..self }))
    }

    fn go(&mut self) {
        combine(self.kind, self.dtype, &self.pieces, self.out);
    }
}

/// Copies a piece, or what comes `at` some place in it, to where it belongs.
struct Put<'a> {
    piece: &'a [u8],
    at: usize,
    to: Place,
    out: Out,
}

impl Task for Put<'_> {
    fn bytes(&self) -> usize {
        self.piece.len()
    }

    fn cut(self, bytes: usize) -> (Self, Option<Self>) {
        let (piece, rest) = self.piece.split_at(bytes);
        let later = Put { piece: rest, at: self.at + bytes, ..self };
        (Put { piece, ..self }, Some(later))
    }

    fn go(&mut self) {
        let (mut rest, mut at) = (self.piece, self.at);
        while !rest.is_empty() {
            let (start, left) = self.to.of(at);
            let (piece, after) = rest.split_at(rest.len().min(left));
            // SAFETY: pieces of different ranks, and parts of one, go to different places.
            unsafe { self.out.part(start..start + piece.len()) }.copy_from_slice(piece);
            (rest, at) = (after, at + piece.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_hold_everything_once_and_fit() {
        let (n, most) = (3, 1 << 10);
        let lens = [5usize, 0, 4000, 64, 1023, 8];
        // Odd buffers are wanted in parts, even ones whole.
        let want = |k: usize, _: usize, j: usize| match k % 2 {
            0 => 0..lens[k],
            _ => part_range(lens[k], n, j),
        };
        let rounds = cut_rounds(n, most, lens.len(), &want);
        for (k, len) in lens.iter().enumerate() {
            let longest = if k % 2 == 0 { *len } else { part_range(*len, n, 0).len() };
            let cuts: Vec<&Cut> = rounds.iter().flatten().filter(|cut| cut.k == k).collect();
            assert_eq!(cuts.iter().map(|cut| cut.len).sum::<usize>(), longest);
            assert!(cuts.iter().all(|cut| cut.at % CUT == 0) && !cuts.is_empty());
        }
        for round in &rounds {
            let bytes = |cut: &Cut| cut.len * if cut.k.is_multiple_of(2) { 1 } else { n };
            assert!(round.iter().map(bytes).sum::<usize>() <= most);
        }
    }
}
