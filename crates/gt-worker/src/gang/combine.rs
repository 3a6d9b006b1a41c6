//! Joins the pieces of all ranks, element by element and in the order of ranks, so that every rank gets the same bits;
//! halves are joined in f32 and rounded once (C8).

use crate::backends::cpu::convert::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use crate::backends::cpu::isa::per_isa;
use gt_ir::{DType, ReduceKind};

/// A type that elements are joined in.
trait Wide: Copy + Default {
    fn sum(self, b: Self) -> Self;
    fn prod(self, b: Self) -> Self;
    fn most(self, b: Self) -> Self;
    fn least(self, b: Self) -> Self;
}

macro_rules! wide_float {
    ($t:ty) => {
        impl Wide for $t {
            #[inline(always)]
            fn sum(self, b: $t) -> $t {
                self + b
            }
            #[inline(always)]
            fn prod(self, b: $t) -> $t {
                self * b
            }
            // NaN wins.
            #[inline(always)]
            fn most(self, b: $t) -> $t {
                if self > b || self.is_nan() { self } else { b }
            }
            #[inline(always)]
            fn least(self, b: $t) -> $t {
                if self < b || self.is_nan() { self } else { b }
            }
        }
    };
}

wide_float!(f32);
wide_float!(f64);

impl Wide for i64 {
    #[inline(always)]
    fn sum(self, b: i64) -> i64 {
        self.wrapping_add(b)
    }
    #[inline(always)]
    fn prod(self, b: i64) -> i64 {
        self.wrapping_mul(b)
    }
    #[inline(always)]
    fn most(self, b: i64) -> i64 {
        self.max(b)
    }
    #[inline(always)]
    fn least(self, b: i64) -> i64 {
        self.min(b)
    }
}

/// Elements joined at a time.
const BLOCK: usize = 512;

/// Joins the pieces in order, in the type `W`.
#[inline(always)]
fn join<W: Wide, const SIZE: usize>(
    pieces: &[&[u8]],
    out: &mut [u8],
    op: impl Fn(W, W) -> W,
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
                *sum = op(*sum, read(*x));
            }
        }
        for (to, sum) in out.as_chunks_mut::<SIZE>().0.iter_mut().zip(&sums) {
            *to = write(*sum);
        }
    }
}

/// Picks the loop of a kind, so that no element asks which it is.
#[inline(always)]
fn by_kind<W: Wide, const SIZE: usize>(
    kind: ReduceKind,
    pieces: &[&[u8]],
    out: &mut [u8],
    read: impl Fn([u8; SIZE]) -> W,
    write: impl Fn(W) -> [u8; SIZE],
) {
    match kind {
        ReduceKind::Sum => join(pieces, out, W::sum, read, write),
        ReduceKind::Prod => join(pieces, out, W::prod, read, write),
        ReduceKind::Max => join(pieces, out, W::most, read, write),
        ReduceKind::Min => join(pieces, out, W::least, read, write),
    }
}

per_isa! {
    /// Safe to call: it touches nothing but its arguments.
    unsafe fn combine_slices(kind: ReduceKind, dtype: DType, pieces: &[&[u8]], out: &mut [u8]) {
        match dtype {
            DType::F32 => by_kind(kind, pieces, out, f32::from_ne_bytes, f32::to_ne_bytes),
            DType::F64 => by_kind(kind, pieces, out, f64::from_ne_bytes, f64::to_ne_bytes),
            DType::F16 => {
                let read = |b| f16_to_f32(u16::from_ne_bytes(b));
                by_kind(kind, pieces, out, read, |x| f32_to_f16(x).to_ne_bytes())
            }
            DType::BF16 => {
                let read = |b| bf16_to_f32(u16::from_ne_bytes(b));
                by_kind(kind, pieces, out, read, |x| f32_to_bf16(x).to_ne_bytes())
            }
            DType::I64 => by_kind(kind, pieces, out, i64::from_ne_bytes, i64::to_ne_bytes),
            DType::I32 => {
                let read = |b| i64::from(i32::from_ne_bytes(b));
                by_kind(kind, pieces, out, read, |x: i64| (x as i32).to_ne_bytes())
            }
            DType::I16 => {
                let read = |b| i64::from(i16::from_ne_bytes(b));
                by_kind(kind, pieces, out, read, |x: i64| (x as i16).to_ne_bytes())
            }
            DType::I8 => by_kind(kind, pieces, out, |[b]: [u8; 1]| i64::from(b as i8), |x: i64| [x as u8]),
            DType::U8 => by_kind(kind, pieces, out, |[b]: [u8; 1]| i64::from(b), |x: i64| [x as u8]),
            DType::Bool => {
                by_kind(kind, pieces, out, |[b]: [u8; 1]| i64::from(b), |x: i64| [(x != 0) as u8])
            }
        }
    }
}

/// Joins the pieces, which are all as long as `out`, in their order.
pub fn combine(kind: ReduceKind, dtype: DType, pieces: &[&[u8]], out: &mut [u8]) {
    // SAFETY: the copies differ only in the instructions of the processor's own level.
    unsafe { combine_slices(kind, dtype, pieces, out) }
}
