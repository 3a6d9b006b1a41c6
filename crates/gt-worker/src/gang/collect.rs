//! Collectives over host memory. Sums are taken in the order of ranks, so that every rank gets the same bits; halves
//! are summed in f32 and rounded once (C8).

use super::Communicator;
use crate::backend::PlanError;
use gt_ir::layout::part_range;
use gt_ir::{DType, Error, Exchange, ReduceKind, Ty};
use half::{bf16, f16};
use std::ops::Range;

/// One operand of a collective, and where its result goes.
pub struct Item<'a> {
    /// The type of this rank's piece.
    pub ty: Ty,
    pub x: &'a [u8],
    pub out: &'a mut [u8],
}

/// Results of at most this many bytes are summed by every rank for itself, which takes one meeting instead of two.
const FEW: usize = 64 << 10;

/// Carries out a collective.
pub fn run(what: &Exchange, comm: &dyn Communicator, items: &mut [Item]) -> Result<(), PlanError> {
    for (i, item) in items.iter().enumerate() {
        let ty = what.result(i, &item.ty).map_err(wrong)?;
        if item.x.len() != item.ty.bytes() || item.out.len() != ty.bytes() {
            return Err(wrong(Error::Runtime(format!("{}: buffers do not fit {}", what.text(), item.ty))));
        }
    }
    match what {
        Exchange::AllReduce { kind } => all_reduce(*kind, comm, items),
        Exchange::AllGather { dim, sizes } => all_gather(*dim, sizes, comm, items),
        Exchange::ReduceScatter { kind, dim, .. } => reduce_scatter(*kind, *dim, comm, items),
        Exchange::AllToAll { from, to, sizes, .. } => all_to_all(*from, *to, sizes, comm, items),
        Exchange::Broadcast { root } => broadcast(*root, comm, items),
    }
}

fn wrong(error: Error) -> PlanError {
    PlanError { instr: None, error }
}

/// Products of the sizes before and after a dimension; the latter in bytes.
fn around(ty: &Ty, dim: usize) -> (usize, usize) {
    (ty.shape[..dim].iter().product(), ty.shape[dim + 1..].iter().product::<usize>() * ty.dtype.size())
}

fn bytes_of(range: Range<usize>, each: usize) -> Range<usize> {
    range.start * each..range.end * each
}

fn all_reduce(kind: ReduceKind, comm: &dyn Communicator, items: &mut [Item]) -> Result<(), PlanError> {
    let (n, me) = (comm.size(), comm.rank());
    let sizes: Vec<(usize, usize)> =
        items.iter().map(|item| (item.ty.shape.numel(), item.ty.dtype.size())).collect();
    let few = items.iter().map(|item| item.x.len()).sum::<usize>() <= FEW;
    // The elements of operand k that rank j works out.
    let part = |k: usize, j: usize| match few {
        true => 0..sizes[k].0 * sizes[k].1,
        false => bytes_of(part_range(sizes[k].0, n, j), sizes[k].1),
    };
    let xs: Vec<&[u8]> = items.iter().map(|item| item.x).collect();
    let mut outs: Vec<(DType, &mut [u8])> =
        items.iter_mut().map(|item| (item.ty.dtype, &mut *item.out)).collect();
    comm.share(&xs, &|k, _, j| part(k, j), &mut |shown| {
        for (k, (dtype, out)) in outs.iter_mut().enumerate() {
            let pieces: Vec<&[u8]> = shown.iter().map(|rank| rank[k]).collect();
            combine(kind, *dtype, &pieces, &mut out[part(k, me)]);
        }
    })?;
    if few {
        return Ok(());
    }
    let mine: Vec<Vec<u8>> = outs.iter().enumerate().map(|(k, (_, out))| out[part(k, me)].to_vec()).collect();
    let mine: Vec<&[u8]> = mine.iter().map(Vec::as_slice).collect();
    comm.share(&mine, &|k, i, _| 0..part(k, i).len(), &mut |shown| {
        for (k, (_, out)) in outs.iter_mut().enumerate() {
            for (i, rank) in shown.iter().enumerate().filter(|(i, _)| *i != me) {
                out[part(k, i)].copy_from_slice(rank[k]);
            }
        }
    })
}

fn all_gather(
    dim: usize,
    sizes: &[usize],
    comm: &dyn Communicator,
    items: &mut [Item],
) -> Result<(), PlanError> {
    let n = comm.size();
    let dims: Vec<(usize, usize)> = items.iter().map(|item| around(&item.ty, dim)).collect();
    let xs: Vec<&[u8]> = items.iter().map(|item| item.x).collect();
    let mut outs: Vec<&mut [u8]> = items.iter_mut().map(|item| &mut *item.out).collect();
    let whole = |k: usize, i: usize| dims[k].0 * part_range(sizes[k], n, i).len() * dims[k].1;
    comm.share(&xs, &|k, i, _| 0..whole(k, i), &mut |shown| {
        for (k, out) in outs.iter_mut().enumerate() {
            let (outer, inner) = dims[k];
            for (i, rank) in shown.iter().enumerate() {
                place(rank[k], out, outer, inner, part_range(sizes[k], n, i), sizes[k]);
            }
        }
    })
}

fn reduce_scatter(
    kind: ReduceKind,
    dim: usize,
    comm: &dyn Communicator,
    items: &mut [Item],
) -> Result<(), PlanError> {
    let n = comm.size();
    let packed: Vec<Packed> = items.iter().map(|item| Packed::new(item, dim, n)).collect();
    let xs: Vec<&[u8]> = items.iter().zip(&packed).map(|(item, p)| p.bytes(item.x)).collect();
    let mut outs: Vec<(DType, &mut [u8])> =
        items.iter_mut().map(|item| (item.ty.dtype, &mut *item.out)).collect();
    comm.share(&xs, &|k, _, j| packed[k].range(j, n), &mut |shown| {
        for (k, (dtype, out)) in outs.iter_mut().enumerate() {
            let pieces: Vec<&[u8]> = shown.iter().map(|rank| rank[k]).collect();
            combine(kind, *dtype, &pieces, out);
        }
    })
}

fn all_to_all(
    from: usize,
    to: usize,
    sizes: &[usize],
    comm: &dyn Communicator,
    items: &mut [Item],
) -> Result<(), PlanError> {
    let (n, me) = (comm.size(), comm.rank());
    let packed: Vec<Packed> = items.iter().map(|item| Packed::new(item, to, n)).collect();
    let xs: Vec<&[u8]> = items.iter().zip(&packed).map(|(item, p)| p.bytes(item.x)).collect();
    // Around `from` in the result, which has this rank's part of `to`.
    let around_from = |item: &Item| {
        let mut ty = item.ty.clone();
        ty.shape[to] = part_range(ty.shape[to], n, me).len();
        around(&ty, from)
    };
    let dims: Vec<(usize, usize)> = items.iter().map(around_from).collect();
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
    let mut outs: Vec<&mut [u8]> = items.iter_mut().map(|item| &mut *item.out).collect();
    comm.share(&xs, &want, &mut |shown| {
        for (k, out) in outs.iter_mut().enumerate() {
            let (outer, inner) = dims[k];
            for (i, rank) in shown.iter().enumerate() {
                place(rank[k], out, outer, inner, part_range(sizes[k], n, i), sizes[k]);
            }
        }
    })
}

fn broadcast(root: usize, comm: &dyn Communicator, items: &mut [Item]) -> Result<(), PlanError> {
    let sizes: Vec<usize> = items.iter().map(|item| item.x.len()).collect();
    let xs: Vec<&[u8]> = items.iter().map(|item| item.x).collect();
    let mut outs: Vec<&mut [u8]> = items.iter_mut().map(|item| &mut *item.out).collect();
    comm.share(&xs, &|k, i, _| 0..if i == root { sizes[k] } else { 0 }, &mut |shown| {
        for (k, out) in outs.iter_mut().enumerate() {
            out.copy_from_slice(shown[root][k]);
        }
    })
}

/// Writes a piece, dense in `[outer][range][inner bytes]`, where it belongs in `[outer][size][inner bytes]`.
fn place(piece: &[u8], out: &mut [u8], outer: usize, inner: usize, range: Range<usize>, size: usize) {
    let run = range.len() * inner;
    if run == 0 {
        return;
    }
    for (o, piece) in piece.chunks_exact(run).enumerate().take(outer) {
        let at = (o * size + range.start) * inner;
        out[at..at + run].copy_from_slice(piece);
    }
}

/// An operand whose parts along one dimension lie one after the other, each dense.
struct Packed {
    outer: usize,
    size: usize,
    inner: usize,
    copied: Option<Vec<u8>>,
}

impl Packed {
    fn new(item: &Item, dim: usize, n: usize) -> Packed {
        let (outer, inner) = around(&item.ty, dim);
        let size = item.ty.shape[dim];
        // Where nothing is outside the dimension, its parts follow each other as they are.
        let copied = (outer > 1 && n > 1).then(|| {
            let mut out = Vec::with_capacity(item.x.len());
            for j in 0..n {
                let range = part_range(size, n, j);
                for o in 0..outer {
                    let at = (o * size + range.start) * inner;
                    out.extend_from_slice(&item.x[at..at + range.len() * inner]);
                }
            }
            out
        });
        Packed { outer, size, inner, copied }
    }

    fn bytes<'a>(&'a self, x: &'a [u8]) -> &'a [u8] {
        self.copied.as_deref().unwrap_or(x)
    }

    /// The bytes for rank j.
    fn range(&self, j: usize, n: usize) -> Range<usize> {
        bytes_of(part_range(self.size, n, j), self.outer * self.inner)
    }
}

/// A type that elements are joined in.
trait Wide: Copy + Default {
    fn join(kind: ReduceKind, a: Self, b: Self) -> Self;
}

macro_rules! wide_float {
    ($t:ty) => {
        impl Wide for $t {
            #[inline(always)]
            fn join(kind: ReduceKind, a: $t, b: $t) -> $t {
                match kind {
                    ReduceKind::Sum => a + b,
                    ReduceKind::Prod => a * b,
                    // NaN wins.
                    ReduceKind::Max => {
                        if a > b || a.is_nan() {
                            a
                        } else {
                            b
                        }
                    }
                    ReduceKind::Min => {
                        if a < b || a.is_nan() {
                            a
                        } else {
                            b
                        }
                    }
                }
            }
        }
    };
}

wide_float!(f32);
wide_float!(f64);

impl Wide for i64 {
    #[inline(always)]
    fn join(kind: ReduceKind, a: i64, b: i64) -> i64 {
        match kind {
            ReduceKind::Sum => a.wrapping_add(b),
            ReduceKind::Prod => a.wrapping_mul(b),
            ReduceKind::Max => a.max(b),
            ReduceKind::Min => a.min(b),
        }
    }
}

/// Elements joined at a time.
const BLOCK: usize = 512;

/// Joins the pieces in order, element by element, in the type `W`.
fn join<W: Wide, const SIZE: usize>(
    kind: ReduceKind,
    pieces: &[&[u8]],
    out: &mut [u8],
    read: impl Fn([u8; SIZE]) -> W,
    write: impl Fn(W) -> [u8; SIZE],
) {
    let Some((first, rest)) = pieces.split_first() else { return };
    let mut sums = [W::default(); BLOCK];
    for (b, out) in out.chunks_mut(BLOCK * SIZE).enumerate() {
        let at = b * BLOCK * SIZE;
        let range = at..at + out.len();
        for (sum, x) in sums.iter_mut().zip(first[range.clone()].as_chunks::<SIZE>().0) {
            *sum = read(*x);
        }
        for piece in rest {
            for (sum, x) in sums.iter_mut().zip(piece[range.clone()].as_chunks::<SIZE>().0) {
                *sum = W::join(kind, *sum, read(*x));
            }
        }
        for (to, sum) in out.as_chunks_mut::<SIZE>().0.iter_mut().zip(&sums) {
            *to = write(*sum);
        }
    }
}

/// Joins the pieces in order, each element in the wide type of its kind.
fn combine(kind: ReduceKind, dtype: DType, pieces: &[&[u8]], out: &mut [u8]) {
    match dtype {
        DType::F32 => join(kind, pieces, out, f32::from_ne_bytes, f32::to_ne_bytes),
        DType::F64 => join(kind, pieces, out, f64::from_ne_bytes, f64::to_ne_bytes),
        DType::F16 => {
            let (read, write) = (|b| f16::from_ne_bytes(b).to_f32(), |x| f16::from_f32(x).to_ne_bytes());
            join(kind, pieces, out, read, write)
        }
        DType::BF16 => {
            let (read, write) = (|b| bf16::from_ne_bytes(b).to_f32(), |x| bf16::from_f32(x).to_ne_bytes());
            join(kind, pieces, out, read, write)
        }
        DType::I64 => join(kind, pieces, out, i64::from_ne_bytes, i64::to_ne_bytes),
        DType::I32 => {
            join(kind, pieces, out, |b| i64::from(i32::from_ne_bytes(b)), |x| (x as i32).to_ne_bytes())
        }
        DType::I16 => {
            join(kind, pieces, out, |b| i64::from(i16::from_ne_bytes(b)), |x| (x as i16).to_ne_bytes())
        }
        DType::I8 => join(kind, pieces, out, |[b]: [u8; 1]| i64::from(b as i8), |x| [x as u8]),
        DType::U8 => join(kind, pieces, out, |[b]: [u8; 1]| i64::from(b), |x| [x as u8]),
        DType::Bool => join(kind, pieces, out, |[b]: [u8; 1]| i64::from(b), |x| [(x != 0) as u8]),
    }
}
