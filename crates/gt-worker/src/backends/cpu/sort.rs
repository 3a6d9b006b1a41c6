//! Sorting along one dimension of a packed tensor, row by row.
//!
//! An element and its place make one integer whose order is the wanted one: equals keep their order by themselves. Flags
//! need no order, only two passes over them.

use super::convert::{bf16_to_f32, f16_to_f32};
use super::isa::per_isa;
use super::kernel::{Bases, tasks};
use super::threads::{Ptr, Threads};
use gt_compiler::Tensor;
use gt_ir::DType;

/// An element that can be sorted.
trait Element: Copy + Send + Sync {
    /// A number in the wanted order.
    type Rank: Copy + Ord;
    /// Room for the element's rank and its place.
    type Word: Copy + Ord;
    fn rank(self, descending: bool) -> Self::Rank;
    fn word(rank: Self::Rank, place: usize) -> Self::Word;
    fn rank_of(word: Self::Word) -> Self::Rank;
    fn place(word: Self::Word) -> usize;
}

/// A number whose order is that of the floats: zeros are equal, NaN is the largest.
#[inline(always)]
fn rank32(x: f32) -> u32 {
    let bits = if x == 0.0 { 0 } else { x.to_bits() };
    let rank = bits ^ ((bits as i32 >> 31) as u32 | 1 << 31);
    if x.is_nan() { u32::MAX } else { rank }
}

#[inline(always)]
fn rank64(x: f64) -> u64 {
    let bits = if x == 0.0 { 0 } else { x.to_bits() };
    let rank = bits ^ ((bits as i64 >> 63) as u64 | 1 << 63);
    if x.is_nan() { u64::MAX } else { rank }
}

macro_rules! elements {
    ($($t:ty, $of:ty, $word:ty, $bits:literal, |$x:ident| $rank:expr;)*) => {
        $(impl Element for $t {
            type Rank = $of;
            type Word = $word;
            #[inline(always)]
            fn rank(self, descending: bool) -> $of {
                let $x = self;
                let rank: $of = $rank;
                if descending { !rank } else { rank }
            }
            #[inline(always)]
            fn word(rank: $of, place: usize) -> $word {
                (rank as $word) << $bits | place as $word
            }
            #[inline(always)]
            fn rank_of(word: $word) -> $of {
                (word >> $bits) as $of
            }
            #[inline(always)]
            fn place(word: $word) -> usize {
                (word & ((1 << $bits) - 1)) as usize
            }
        })*
    };
}

#[derive(Clone, Copy)]
struct F16(u16);
#[derive(Clone, Copy)]
struct Bf16(u16);

elements! {
    u8, u32, u64, 32, |x| x as u32;
    i8, u32, u64, 32, |x| x as i32 as u32 ^ 1 << 31;
    i16, u32, u64, 32, |x| x as i32 as u32 ^ 1 << 31;
    i32, u32, u64, 32, |x| x as u32 ^ 1 << 31;
    i64, u64, u128, 64, |x| x as u64 ^ 1 << 63;
    F16, u32, u64, 32, |x| rank32(f16_to_f32(x.0));
    Bf16, u32, u64, 32, |x| rank32(bf16_to_f32(x.0));
    f32, u32, u64, 32, |x| rank32(x);
    f64, u64, u128, 64, |x| rank64(x);
}

/// The first `k` elements along `dim` in order, and where they were.
pub fn sort(
    what: (usize, bool, usize),
    x: &Tensor,
    [values, indices]: [u32; 2],
    bases: Bases,
    threads: &Threads,
) {
    let offset = x.map.offset(bases.slots) * x.dtype.size() as isize;
    let from = Ptr::new(bases.ptrs[x.storage as usize].wrapping_offset(offset));
    let to = [values, indices].map(|s| Ptr::new(bases.ptrs[s as usize]));
    match x.dtype {
        DType::Bool if what.0 + 1 == x.shape.len() => flags(what, x, from, to, threads),
        DType::Bool | DType::U8 => sort_of::<u8>(what, x, from, to, threads),
        DType::I8 => sort_of::<i8>(what, x, from, to, threads),
        DType::I16 => sort_of::<i16>(what, x, from, to, threads),
        DType::I32 => sort_of::<i32>(what, x, from, to, threads),
        DType::I64 => sort_of::<i64>(what, x, from, to, threads),
        DType::F16 => sort_of::<F16>(what, x, from, to, threads),
        DType::BF16 => sort_of::<Bf16>(what, x, from, to, threads),
        DType::F32 => sort_of::<f32>(what, x, from, to, threads),
        DType::F64 => sort_of::<f64>(what, x, from, to, threads),
    }
}

fn sort_of<E: Element>(
    (dim, descending, k): (usize, bool, usize),
    x: &Tensor,
    from: Ptr,
    [values, indices]: [Ptr; 2],
    threads: &Threads,
) {
    let shape = &x.shape;
    let (n, inner) = (shape[dim], shape[dim + 1..].iter().product::<usize>());
    let rows = shape[..dim].iter().product::<usize>() * inner;
    if rows * k == 0 {
        return;
    }
    let few = k * FEW <= n;
    let each = if few { 4 } else { 4 + n.ilog2() as usize * 4 };
    let tasks = tasks(threads, rows * n * each, rows);
    threads.run(tasks, &|t| {
        let mut words: Vec<E::Word> = Vec::new();
        let mut column: Vec<E> = Vec::new();
        for row in rows * t / tasks..rows * (t + 1) / tasks {
            let (outer, lane) = (row / inner, row % inner);
            // SAFETY: the tensor holds [outer][n][inner] elements.
            let x = unsafe { (from.get() as *const E).add(outer * n * inner + lane) };
            let x = if inner == 1 {
                // SAFETY: as above; nobody writes them while the step runs.
                unsafe { std::slice::from_raw_parts(x, n) }
            } else {
                column.clear();
                // SAFETY: as above.
                column.extend((0..n).map(|j| unsafe { *x.add(j * inner) }));
                &column
            };
            words.clear();
            if few {
                // SAFETY: the function asks for nothing.
                unsafe { first_few(x, k, descending, &mut words) };
            } else {
                words.extend(x.iter().enumerate().map(|(j, &x)| E::word(x.rank(descending), j)));
                keep(&mut words, k);
            }
            words.sort_unstable();
            for (i, &word) in words.iter().enumerate() {
                let (at, place) = ((outer * k + i) * inner + lane, E::place(word));
                // SAFETY: both results hold [outer][k][inner] elements; rows are disjoint.
                unsafe {
                    *(values.get() as *mut E).add(at) = x[place];
                    *(indices.get() as *mut i64).add(at) = place as i64;
                }
            }
        }
    });
}

/// Keeps the first `k` words in their order, in any order.
fn keep<W: Ord>(words: &mut Vec<W>, k: usize) {
    if k < words.len() {
        words.select_nth_unstable(k);
        words.truncate(k);
    }
}

/// One part in how many makes looking for the first ones cheaper than dividing all.
const FEW: usize = 8;

per_isa! {
    /// The words of the first `k` elements, in any order: whoever is not before the last of the best so far is passed
    /// over, many at a time.
    unsafe fn first_few<E: Element>(x: &[E], k: usize, descending: bool, words: &mut Vec<E::Word>) {
        const BLOCK: usize = 64;
        let some = (2 * k).next_multiple_of(BLOCK).min(x.len());
        words.extend(x[..some].iter().enumerate().map(|(j, x)| E::word(x.rank(descending), j)));
        let mut last = last_of::<E>(words, k);
        for (b, block) in x[some..].chunks(BLOCK).enumerate() {
            let mut ranks = [last; BLOCK];
            for (rank, x) in ranks.iter_mut().zip(block) {
                *rank = x.rank(descending);
            }
            // Equals come after those that were found earlier.
            let mut before = false;
            for &rank in &ranks {
                before |= rank < last;
            }
            if !before {
                continue;
            }
            for (j, &rank) in ranks.iter().enumerate() {
                if rank < last {
                    words.push(E::word(rank, some + b * BLOCK + j));
                }
            }
            if words.len() > 2 * k {
                last = last_of::<E>(words, k);
            }
        }
        keep(words, k);
    }
}

/// Keeps the first `k` words; the rank of the last of them.
fn last_of<E: Element>(words: &mut Vec<E::Word>, k: usize) -> E::Rank {
    words.select_nth_unstable(k - 1);
    words.truncate(k);
    E::rank_of(words[k - 1])
}

/// Flags that one task looks at at once.
const FLAGS: usize = 16 << 10;

/// The first `k` of each row of flags, the last dimension, in order: those that are set and then the others if
/// `descending`.
fn flags(
    (dim, descending, k): (usize, bool, usize),
    x: &Tensor,
    from: Ptr,
    [values, indices]: [Ptr; 2],
    threads: &Threads,
) {
    let (n, rows) = (x.shape[dim], x.shape[..dim].iter().product::<usize>());
    if rows * k == 0 {
        return;
    }
    let parts = n.div_ceil(FLAGS);
    let units = rows * parts;
    let tasks = tasks(threads, rows * n, units);
    let part = |u: usize| {
        let (row, first) = (u / parts, u % parts * FLAGS);
        // SAFETY: the tensor holds [rows][n] flags, and nobody writes them while the step runs.
        let all = unsafe { std::slice::from_raw_parts(from.get().add(row * n), n) };
        (row, first, &all[first..n.min(first + FLAGS)])
    };
    let mut counts = vec![0; units];
    let to = Ptr::new(counts.as_mut_ptr() as *mut u8);
    threads.run(tasks, &|t| {
        for u in units * t / tasks..units * (t + 1) / tasks {
            // SAFETY: there is a count for each unit, and units are disjoint.
            unsafe { *(to.get() as *mut usize).add(u) = count(part(u).2) };
        }
    });
    // How many of the row are set before each part, and in all of it.
    let mut totals = vec![0; rows];
    for (u, count) in counts.iter_mut().enumerate() {
        let before = totals[u / parts];
        totals[u / parts] += *count;
        *count = before;
    }
    threads.run(tasks, &|t| {
        for u in units * t / tasks..units * (t + 1) / tasks {
            let (row, first, x) = part(u);
            let all = totals[row];
            let before = counts[u];
            let set = if (u + 1) % parts == 0 { all } else { counts[u + 1] } - before;
            let write = |flag: bool, start: usize, count: usize| {
                let count = count.min(k.saturating_sub(start));
                if count == 0 {
                    return;
                }
                let to = row * k + start;
                // SAFETY: both results hold [rows][k] elements; no two parts write to the same place.
                let (values, indices) = unsafe {
                    let indices = (indices.get() as *mut i64).add(to);
                    (
                        std::slice::from_raw_parts_mut(values.get().add(to), count),
                        std::slice::from_raw_parts_mut(indices, count),
                    )
                };
                values.fill(flag as u8);
                places(x, flag, first, indices);
            };
            write(true, before + if descending { 0 } else { n - all }, set);
            write(false, first - before + if descending { all } else { 0 }, x.len() - set);
        }
    });
}

fn count(x: &[u8]) -> usize {
    x.chunks(128).map(|x| x.iter().map(|&x| (x != 0) as u8).sum::<u8>() as usize).sum()
}

/// Writes the first places of `flag`, counted from `first` on, until `to` is full; there are as many.
fn places(x: &[u8], flag: bool, first: usize, to: &mut [i64]) {
    const TOPS: u64 = 0x8080_8080_8080_8080;
    let other = if flag { 0 } else { TOPS };
    let mut found = 0;
    let (words, rest) = x.as_chunks::<8>();
    for (w, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        // The top bit of every byte that is not zero.
        let mut set = ((((word & !TOPS) + !TOPS) | word) & TOPS) ^ other;
        if set == 0 {
            continue;
        }
        let at = (first + w * 8) as i64;
        if let Some(to) = to.get_mut(found..found + 8) {
            // What is written too much is written over next.
            let mut here = 0;
            for j in 0..8 {
                to[here & 7] = at + j;
                here += (set >> (8 * j + 7) & 1) as usize;
            }
            found += here;
            continue;
        }
        while set != 0 {
            let Some(to) = to.get_mut(found) else { return };
            *to = at + set.trailing_zeros() as i64 / 8;
            found += 1;
            set &= set - 1;
        }
    }
    let last = first + words.len() * 8;
    let rest = rest.iter().enumerate().filter(|(_, x)| (**x != 0) == flag);
    for ((j, _), to) in rest.zip(&mut to[found..]) {
        *to = (last + j) as i64;
    }
}
