//! Sorting along one dimension of a packed tensor, row by row.
//!
//! An element and its place make one integer whose order is the wanted one: equals keep their order by themselves.

use super::convert::{bf16_to_f32, f16_to_f32};
use super::kernel::{Bases, tasks};
use super::threads::{Ptr, Threads};
use gt_compiler::Tensor;
use gt_ir::DType;

/// An element that can be sorted.
trait Element: Copy + Send + Sync {
    /// Room for the element's rank and its place.
    type Word: Copy + Ord;
    fn word(self, descending: bool, place: usize) -> Self::Word;
    fn place(word: Self::Word) -> usize;
}

/// A number whose order is that of the floats: zeros are equal, NaN is the largest.
fn rank32(x: f32) -> u32 {
    let bits = if x == 0.0 { 0 } else { x.to_bits() };
    match (x.is_nan(), bits >> 31) {
        (true, _) => u32::MAX,
        (false, 0) => bits | 1 << 31,
        (false, _) => !bits,
    }
}

fn rank64(x: f64) -> u64 {
    let bits = if x == 0.0 { 0 } else { x.to_bits() };
    match (x.is_nan(), bits >> 63) {
        (true, _) => u64::MAX,
        (false, 0) => bits | 1 << 63,
        (false, _) => !bits,
    }
}

macro_rules! elements {
    ($($t:ty, $word:ty, $bits:literal, |$x:ident| $rank:expr;)*) => {
        $(impl Element for $t {
            type Word = $word;
            #[inline]
            fn word(self, descending: bool, place: usize) -> $word {
                let $x = self;
                let rank = $rank;
                let rank = if descending { !rank } else { rank };
                (rank as $word) << $bits | place as $word
            }
            #[inline]
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
    u8, u64, 32, |x| x as u32;
    i8, u64, 32, |x| x as i32 as u32 ^ 1 << 31;
    i16, u64, 32, |x| x as i32 as u32 ^ 1 << 31;
    i32, u64, 32, |x| x as u32 ^ 1 << 31;
    i64, u128, 64, |x| x as u64 ^ 1 << 63;
    F16, u64, 32, |x| rank32(f16_to_f32(x.0));
    Bf16, u64, 32, |x| rank32(bf16_to_f32(x.0));
    f32, u64, 32, |x| rank32(x);
    f64, u128, 64, |x| rank64(x);
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
    let tasks = tasks(threads, rows * n * (4 + n.ilog2() as usize * 4), rows);
    threads.run(tasks, &|t| {
        let mut words: Vec<E::Word> = Vec::with_capacity(n);
        for row in rows * t / tasks..rows * (t + 1) / tasks {
            let (outer, lane) = (row / inner, row % inner);
            // SAFETY: the tensor holds [outer][n][inner] elements.
            let element = |j: usize| unsafe { *(from.get() as *const E).add((outer * n + j) * inner + lane) };
            words.clear();
            words.extend((0..n).map(|j| element(j).word(descending, j)));
            if k < n {
                words.select_nth_unstable(k);
                words.truncate(k);
            }
            words.sort_unstable();
            for (i, &word) in words.iter().enumerate() {
                let (at, place) = ((outer * k + i) * inner + lane, E::place(word));
                // SAFETY: both results hold [outer][k][inner] elements; rows are disjoint.
                unsafe {
                    *(values.get() as *mut E).add(at) = element(place);
                    *(indices.get() as *mut i64).add(at) = place as i64;
                }
            }
        }
    });
}
