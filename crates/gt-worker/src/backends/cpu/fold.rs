//! Reductions. The tree depends on shapes alone (C7): blocks of `BLOCK`, in a block element i goes to lane i % `ROW_LANES`
//! if the reduced elements are neighbours and i % `LANES` if they are columns, lanes are joined in halves, and the
//! results of the blocks are reduced in the same way.

use super::chain;
use super::convert::{Lane, narrow, round};
use super::isa::{self, per_isa};
use super::kernel::{Bases, Bound, Tiles, tasks};
use super::lower::{FOLD_TILE, FoldOrder, Lowered};
use super::math::Fast;
use super::threads::Threads;
use gt_ir::{Binary, DType, ReduceKind};

/// Enough for several vector additions at once, since each waits for the one before.
const ROW_LANES: usize = 64;
/// Columns are side by side already.
const LANES: usize = 16;
pub const BLOCK: usize = 512;
/// Columns reduced side by side.
const WIDTH: usize = 512;
/// Up to this many columns a row of lanes is one run in memory.
const NARROW: usize = 64;

/// A type that folds.
pub trait Folds: Copy + Send + Sync + 'static {
    /// `join(kind, identity, x)` is `x`.
    fn identity(kind: ReduceKind) -> Self;
    /// The result of nothing at all.
    fn empty(kind: ReduceKind) -> Self;
    fn join(kind: ReduceKind, a: Self, b: Self) -> Self;
    /// Folds rows as `fold_rows` does, if there is a faster way; false if not.
    ///
    /// # Safety
    /// `x` holds `rows` rows of `len` elements, at most a block each, `out` an element for each.
    #[inline(always)]
    unsafe fn rows(_: ReduceKind, _x: *const Self, _len: usize, _rows: usize, _out: *mut Self) -> bool {
        false
    }
}

impl Folds for Fast {
    #[inline(always)]
    fn identity(kind: ReduceKind) -> Fast {
        Fast(match kind {
            ReduceKind::Sum => -0.0,
            ReduceKind::Prod => 1.0,
            ReduceKind::Max => f32::NEG_INFINITY,
            ReduceKind::Min => f32::INFINITY,
        })
    }
    fn empty(kind: ReduceKind) -> Fast {
        Fast(if kind == ReduceKind::Prod { 1.0 } else { 0.0 })
    }
    #[inline(always)]
    fn join(kind: ReduceKind, a: Fast, b: Fast) -> Fast {
        row(kind).real(a, b)
    }
    #[inline(always)]
    unsafe fn rows(kind: ReduceKind, x: *const Fast, len: usize, rows: usize, out: *mut Fast) -> bool {
        let wide = isa::level() >= 3;
        if wide {
            // SAFETY: passed on from the caller; the unit was detected.
            unsafe { chain::fold_rows(kind, x as *const f32, len, rows, out as *mut f32) };
        }
        wide
    }
}

impl Folds for f64 {
    #[inline(always)]
    fn identity(kind: ReduceKind) -> f64 {
        match kind {
            ReduceKind::Sum => -0.0,
            ReduceKind::Prod => 1.0,
            ReduceKind::Max => f64::NEG_INFINITY,
            ReduceKind::Min => f64::INFINITY,
        }
    }
    fn empty(kind: ReduceKind) -> f64 {
        if kind == ReduceKind::Prod { 1.0 } else { 0.0 }
    }
    #[inline(always)]
    fn join(kind: ReduceKind, a: f64, b: f64) -> f64 {
        row(kind).real(a, b)
    }
}

macro_rules! int_folds {
    ($($t:ty, $min:expr, $max:expr, $join:expr;)*) => {$(
        impl Folds for $t {
            #[inline(always)]
            fn identity(kind: ReduceKind) -> $t {
                match kind {
                    ReduceKind::Sum => 0,
                    ReduceKind::Prod => 1,
                    ReduceKind::Max => $min,
                    ReduceKind::Min => $max,
                }
            }
            fn empty(kind: ReduceKind) -> $t {
                (kind == ReduceKind::Prod) as $t
            }
            #[inline(always)]
            fn join(kind: ReduceKind, a: $t, b: $t) -> $t {
                let of: fn(i64) -> $t = $join;
                of(row(kind).int(a as i64, b as i64))
            }
        }
    )*};
}

int_folds! {
    i32, i32::MIN, i32::MAX, |x| x as i32;
    i64, i64::MIN, i64::MAX, |x| x;
    u8, 0, 1, |x| (x != 0) as u8;
}

#[inline(always)]
fn row(kind: ReduceKind) -> Binary {
    match kind {
        ReduceKind::Sum => Binary::Add,
        ReduceKind::Prod => Binary::Mul,
        ReduceKind::Max => Binary::Max,
        ReduceKind::Min => Binary::Min,
    }
}

macro_rules! per_kind {
    ($kind:expr, $K:ident => $body:expr) => {
        match $kind {
            ReduceKind::Sum => {
                const $K: ReduceKind = ReduceKind::Sum;
                $body
            }
            ReduceKind::Prod => {
                const $K: ReduceKind = ReduceKind::Prod;
                $body
            }
            ReduceKind::Max => {
                const $K: ReduceKind = ReduceKind::Max;
                $body
            }
            ReduceKind::Min => {
                const $K: ReduceKind = ReduceKind::Min;
                $body
            }
        }
    };
}

per_isa! {
    /// `acc[i] = join(acc[i], x[i])`.
    pub unsafe fn join_all<T: Folds>(kind: ReduceKind, acc: *mut T, x: *const T, n: usize) {
        // SAFETY: passed on from the caller.
        let (acc, x) = unsafe { (std::slice::from_raw_parts_mut(acc, n), std::slice::from_raw_parts(x, n)) };
        per_kind!(kind, K => for i in 0..n { acc[i] = T::join(K, acc[i], x[i]); })
    }
}

/// One row by `$N` lanes. Lanes beyond the row's length would hold the identity, so any `$N` that covers the row, up to
/// `ROW_LANES`, gives the same bits.
macro_rules! row_by_lanes {
    ($N:literal, $K:ident, $T:ident, $x:expr) => {{
        let mut acc = [$T::identity($K); $N];
        let mut chunks = $x.chunks_exact($N);
        for chunk in &mut chunks {
            for l in 0..$N {
                acc[l] = $T::join($K, acc[l], chunk[l]);
            }
        }
        for (l, &x) in chunks.remainder().iter().enumerate() {
            acc[l] = $T::join($K, acc[l], x);
        }
        let mut half = $N / 2;
        while half > 0 {
            for l in 0..half {
                acc[l] = $T::join($K, acc[l], acc[l + half]);
            }
            half /= 2;
        }
        acc[0]
    }};
}

/// Reduces rows of `len` elements, at most a block each, that lie one after the other.
///
/// # Safety
/// `x` holds the rows, `out` an element for each.
pub unsafe fn fold_rows<T: Folds>(kind: ReduceKind, x: *const T, len: usize, rows: usize, out: *mut T) {
    // SAFETY: passed on from the caller.
    unsafe {
        if !T::rows(kind, x, len, rows, out) {
            rows_by_lanes(kind, x, len, rows, out);
        }
    }
}

per_isa! {
    unsafe fn rows_by_lanes<T: Folds>(kind: ReduceKind, x: *const T, len: usize, rows: usize, out: *mut T) {
        const { assert!(ROW_LANES == 64) };
        per_kind!(kind, K => for r in 0..rows {
            // SAFETY: passed on from the caller.
            let x = unsafe { std::slice::from_raw_parts(x.add(r * len), len) };
            let total = match len {
                0..=16 => row_by_lanes!(16, K, T, x),
                17..=32 => row_by_lanes!(32, K, T, x),
                _ => row_by_lanes!(64, K, T, x),
            };
            // SAFETY: passed on from the caller.
            unsafe { *out.add(r) = total };
        })
    }
}

/// Reduces up to `ROW_LANES` elements: each is a lane of its own, so all there is to do is to join them in halves.
#[inline(always)]
pub fn fold_short<T: Folds>(kind: ReduceKind, x: &mut [T]) -> T {
    let mut left = x.len();
    let mut half = left.next_power_of_two() / 2;
    while half > 0 {
        for l in 0..left - half {
            x[l] = T::join(kind, x[l], x[l + half]);
        }
        left = half;
        half /= 2;
    }
    x[0]
}

/// Reduces one row of any length.
pub fn fold_list<T: Folds>(kind: ReduceKind, x: &[T]) -> T {
    if x.is_empty() {
        return T::empty(kind);
    }
    let mut out = T::identity(kind);
    if x.len() <= BLOCK {
        // SAFETY: the row is `x` itself.
        unsafe { fold_rows(kind, x.as_ptr(), x.len(), 1, &mut out) };
        return out;
    }
    let mut parts: smallvec::SmallVec<[T; 64]> = smallvec::SmallVec::new();
    for block in x.chunks(BLOCK) {
        // SAFETY: the row is the block.
        unsafe { fold_rows(kind, block.as_ptr(), block.len(), 1, &mut out) };
        parts.push(out);
    }
    if parts.len() <= ROW_LANES {
        return fold_short(kind, &mut parts);
    }
    fold_list(kind, &parts)
}

/// The values to reduce: element i of a space [kept][reduced][inner], given in ranges of at most `FOLD_TILE`.
trait Values<T>: Sync {
    type Reader<'r>
    where
        Self: 'r;
    fn reader(&self) -> Self::Reader<'_>;
    /// # Safety
    /// The range lies in the space, and every range is read once.
    unsafe fn read(reader: &mut Self::Reader<'_>, start: usize, len: usize) -> *const T;
}

/// Values that a kernel computes.
struct Computed<'a> {
    bound: Bound<'a>,
    reg: usize,
}

impl<'a, T> Values<T> for Computed<'a> {
    type Reader<'r>
        = (Tiles<'r, 'a>, usize)
    where
        Self: 'r;
    fn reader(&self) -> Self::Reader<'_> {
        (Tiles::new(&self.bound, FOLD_TILE), self.reg)
    }
    #[inline]
    unsafe fn read(reader: &mut Self::Reader<'_>, start: usize, len: usize) -> *const T {
        // SAFETY: passed on from the caller.
        unsafe { reader.0.eval(start, len) };
        reader.0.reg(reader.1) as *const T
    }
}

/// Values in memory.
struct Listed<T>(*const T);

// SAFETY: only read while a fold runs.
unsafe impl<T> Sync for Listed<T> {}

impl<T> Values<T> for Listed<T> {
    type Reader<'r>
        = *const T
    where
        Self: 'r;
    fn reader(&self) -> *const T {
        self.0
    }
    #[inline]
    unsafe fn read(reader: &mut *const T, start: usize, _: usize) -> *const T {
        reader.wrapping_add(start)
    }
}

struct Out<T>(*mut T);

// SAFETY: tasks write disjoint elements.
unsafe impl<T> Sync for Out<T> {}

impl<T> Out<T> {
    fn at(&self, i: usize) -> *mut T {
        self.0.wrapping_add(i)
    }
}

/// Reduces a [kept][reduced][inner] space to [kept][inner].
fn fold<T: Folds>(
    kind: ReduceKind,
    values: &impl Values<T>,
    (kept, reduced, inner): (usize, usize, usize),
    cost: usize,
    threads: &Threads,
    out: *mut T,
) {
    let blocks = reduced.div_ceil(BLOCK);
    let mut parts: Vec<T> = Vec::new();
    let to = if blocks == 1 {
        Out(out)
    } else {
        parts.resize(kept * blocks * inner, T::identity(kind));
        Out(parts.as_mut_ptr())
    };
    let work = kept * reduced * inner * cost;
    if inner == 1 {
        rows(kind, values, kept, reduced, work, threads, &to);
    } else {
        columns(kind, values, (kept, reduced, inner), work, threads, &to);
    }
    if blocks > 1 {
        fold(kind, &Listed(parts.as_ptr()), (kept, blocks, inner), 1, threads, out);
    }
}

/// Every block of every row to one element of `to`.
fn rows<T: Folds, V: Values<T>>(
    kind: ReduceKind,
    values: &V,
    kept: usize,
    reduced: usize,
    work: usize,
    threads: &Threads,
    to: &Out<T>,
) {
    let blocks = reduced.div_ceil(BLOCK);
    if blocks == 1 {
        // Several short rows fit in a tile.
        let batch = FOLD_TILE / reduced;
        let batches = kept.div_ceil(batch);
        let tasks = tasks(threads, work, batches);
        threads.run(tasks, &|t| {
            let mut reader = values.reader();
            for b in batches * t / tasks..batches * (t + 1) / tasks {
                let first = b * batch;
                let n = batch.min(kept - first);
                // SAFETY: batches are disjoint; `to` has an element per row.
                unsafe {
                    let x = V::read(&mut reader, first * reduced, n * reduced);
                    fold_rows(kind, x, reduced, n, to.at(first));
                }
            }
        });
        return;
    }
    const PER_TILE: usize = FOLD_TILE / BLOCK;
    let per_row = blocks.div_ceil(PER_TILE);
    let units = kept * per_row;
    let tasks = tasks(threads, work, units);
    threads.run(tasks, &|t| {
        let mut reader = values.reader();
        for u in units * t / tasks..units * (t + 1) / tasks {
            let (k, first) = (u / per_row, u % per_row * PER_TILE);
            let at = first * BLOCK;
            let len = FOLD_TILE.min(reduced - at);
            // SAFETY: units are disjoint; `to` has an element per block.
            unsafe {
                let x = V::read(&mut reader, k * reduced + at, len);
                let whole = len / BLOCK;
                fold_rows(kind, x, BLOCK, whole, to.at(k * blocks + first));
                if whole * BLOCK < len {
                    fold_rows(
                        kind,
                        x.add(whole * BLOCK),
                        len - whole * BLOCK,
                        1,
                        to.at(k * blocks + first + whole),
                    );
                }
            }
        }
    });
}

/// Every block of rows of columns to one row of `to`.
fn columns<T: Folds, V: Values<T>>(
    kind: ReduceKind,
    values: &V,
    (kept, reduced, inner): (usize, usize, usize),
    work: usize,
    threads: &Threads,
    to: &Out<T>,
) {
    let blocks = reduced.div_ceil(BLOCK);
    let width = inner.min(WIDTH);
    let across = inner.div_ceil(width);
    let units = kept * blocks * across;
    let tasks = tasks(threads, work, units);
    threads.run(tasks, &|t| {
        let mut reader = values.reader();
        let mut acc = vec![T::identity(kind); LANES * width];
        for u in units * t / tasks..units * (t + 1) / tasks {
            let (kb, c) = (u / across, u % across * width);
            let (k, b) = (kb / blocks, kb % blocks);
            let (first, end) = (b * BLOCK, ((b + 1) * BLOCK).min(reduced));
            let n = width.min(inner - c);
            acc.fill(T::identity(kind));
            // SAFETY: units are disjoint; lanes and rows of `to` hold `n` elements.
            unsafe {
                if inner <= NARROW {
                    let step = FOLD_TILE / inner / LANES * LANES;
                    let mut r = first;
                    while r < end {
                        let rows = step.min(end - r);
                        let x = V::read(&mut reader, (k * reduced + r) * inner, rows * inner);
                        let mut done = 0;
                        while done < rows {
                            let some = LANES.min(rows - done);
                            join_all(kind, acc.as_mut_ptr(), x.add(done * inner), some * inner);
                            done += some;
                        }
                        r += rows;
                    }
                } else {
                    for r in first..end {
                        let x = V::read(&mut reader, (k * reduced + r) * inner + c, n);
                        join_all(kind, acc.as_mut_ptr().add((r - first) % LANES * n), x, n);
                    }
                }
                let mut half = LANES / 2;
                while half > 0 {
                    let (low, high) = acc.split_at_mut(half * n);
                    join_all(kind, low.as_mut_ptr(), high.as_ptr(), half * n);
                    half /= 2;
                }
                std::ptr::copy_nonoverlapping(acc.as_ptr(), to.at(kb * inner + c), n);
            }
        }
    });
}

/// A reduction made ready.
pub struct FoldStep {
    pub kernel: Lowered,
    pub order: FoldOrder,
    pub kind: ReduceKind,
    pub reg: usize,
    pub dtype: DType,
    pub storage: u32,
}

impl FoldStep {
    /// Bytes that the results of blocks take on the way to the whole.
    pub fn scratch(&self) -> usize {
        let (kept, reduced, inner) = (self.order.kept, self.order.reduced, self.order.inner);
        let blocks = reduced.div_ceil(BLOCK);
        let parts = if blocks > 1 { blocks } else { 0 };
        let wide = usize::from(!super::convert::is_native(self.dtype));
        kept.saturating_mul(inner).saturating_mul(parts + wide).saturating_mul(8)
    }

    pub fn run(&self, bases: Bases, threads: &Threads) {
        match Lane::of(self.dtype) {
            Lane::F32 => self.typed::<Fast>(bases, threads),
            Lane::F64 => self.typed::<f64>(bases, threads),
            Lane::I32 => self.typed::<i32>(bases, threads),
            Lane::I64 => self.typed::<i64>(bases, threads),
            Lane::Bool => self.typed::<u8>(bases, threads),
        }
    }

    fn typed<T: Folds>(&self, bases: Bases, threads: &Threads) {
        let size = (self.order.kept, self.order.reduced, self.order.inner);
        let n = size.0 * size.2;
        if n == 0 {
            return;
        }
        let out = bases.ptrs[self.storage as usize];
        let native = super::convert::is_native(self.dtype);
        let mut wide: Vec<T> = Vec::new();
        let to = if native {
            out as *mut T
        } else {
            wide.resize(n, T::identity(self.kind));
            wide.as_mut_ptr()
        };
        if size.1 == 0 {
            // SAFETY: `to` holds `n` elements.
            unsafe { std::slice::from_raw_parts_mut(to, n) }.fill(T::empty(self.kind));
        } else {
            let values = Computed { bound: Bound::new(&self.kernel, bases, false), reg: self.reg };
            fold(self.kind, &values, size, self.kernel.cost + 1, threads, to);
        }
        if !native {
            // SAFETY: `wide` holds `n` elements of the lane, `out` as many of the type.
            unsafe {
                round(self.dtype, to as *mut u8, n);
                narrow(self.dtype, to as *const u8, out, n);
            }
        }
    }
}
