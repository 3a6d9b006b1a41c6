//! The vector registers that the kernels of `product` are written for, and transposition into panels.

use super::Mat;
use super::twelve::{self, Ahead};
use std::arch::x86_64::*;

/// A vector register of the unit at hand.
pub trait Vector: Copy {
    type T: super::super::Float;
    type Mask: Copy;
    const LANES: usize;
    /// Rows of the largest tile, two vectors wide.
    const ROWS: usize;
    /// The first `n` lanes.
    unsafe fn mask(n: usize) -> Self::Mask;
    unsafe fn zero() -> Self;
    unsafe fn splat(at: *const Self::T) -> Self;
    unsafe fn load(at: *const Self::T) -> Self;
    unsafe fn load_some(at: *const Self::T, mask: Self::Mask) -> Self;
    unsafe fn store(self, at: *mut Self::T);
    unsafe fn store_some(self, at: *mut Self::T, mask: Self::Mask);
    /// `a * b + self`.
    unsafe fn fma(self, a: Self, b: Self) -> Self;
    unsafe fn plus(self, b: Self) -> Self;
    /// True if a tile of twelve rows of two vectors has a loop of its own.
    const TWELVE: bool = false;
    /// Adds `k` terms to such a tile's sums.
    unsafe fn twelve(_: *mut Self, _: usize, _: Mat<Self::T>, _: *const Self::T, _: isize, _: Ahead) {}
    /// Copies twelve numbers for each term, `step` apart, beside each other; as many terms as it says.
    unsafe fn copy_twelve(_: *const Self::T, _step: isize, _to: *mut Self::T, _terms: usize) -> usize {
        0
    }
    /// `to[p * step + j] = from[j * stride + p]` for `rows` of j and `cols` of p.
    unsafe fn turn(
        from: *const Self::T,
        stride: isize,
        to: *mut Self::T,
        step: usize,
        rows: usize,
        cols: usize,
    );
}

macro_rules! wide {
    ($v:ty, $t:ty, $mask:ty, $lanes:expr, $zero:ident $set:ident $load:ident $mload:ident $store:ident $mstore:ident $fma:ident $add:ident $($more:tt)*) => {
        impl Vector for $v {
            $($more)*
            type T = $t;
            type Mask = $mask;
            const LANES: usize = $lanes;
            const ROWS: usize = 12;
            #[inline(always)]
            unsafe fn mask(n: usize) -> $mask {
                ((1u32 << n) - 1) as $mask
            }
            #[inline(always)]
            unsafe fn zero() -> $v {
                unsafe { $zero() }
            }
            #[inline(always)]
            unsafe fn splat(at: *const $t) -> $v {
                unsafe { $set(*at) }
            }
            #[inline(always)]
            unsafe fn load(at: *const $t) -> $v {
                unsafe { $load(at) }
            }
            #[inline(always)]
            unsafe fn load_some(at: *const $t, mask: $mask) -> $v {
                unsafe { $mload(mask, at) }
            }
            #[inline(always)]
            unsafe fn store(self, at: *mut $t) {
                unsafe { $store(at, self) }
            }
            #[inline(always)]
            unsafe fn store_some(self, at: *mut $t, mask: $mask) {
                unsafe { $mstore(at, mask, self) }
            }
            #[inline(always)]
            unsafe fn fma(self, a: $v, b: $v) -> $v {
                unsafe { $fma(a, b, self) }
            }
            #[inline(always)]
            unsafe fn plus(self, b: $v) -> $v {
                unsafe { $add(self, b) }
            }
            #[inline(always)]
            unsafe fn turn(
                from: *const $t,
                stride: isize,
                to: *mut $t,
                step: usize,
                rows: usize,
                cols: usize,
            ) {
                unsafe { Turn::turn(from, stride, to, step, rows, cols) }
            }
        }
    };
}

wide!(__m512, f32, __mmask16, 16, _mm512_setzero_ps _mm512_set1_ps _mm512_loadu_ps _mm512_maskz_loadu_ps
_mm512_storeu_ps _mm512_mask_storeu_ps _mm512_fmadd_ps _mm512_add_ps
const TWELVE: bool = true;
#[inline(always)]
unsafe fn twelve(sums: *mut __m512, k: usize, a: Mat<f32>, b: *const f32, b_rs: isize, ahead: Ahead) {
    unsafe { twelve::twelve(&mut *(sums as *mut [[__m512; 2]; 12]), k, a, b, b_rs, ahead) }
}
#[inline(always)]
unsafe fn copy_twelve(from: *const f32, step: isize, to: *mut f32, terms: usize) -> usize {
    unsafe { twelve::copy(from, step, to, terms) }
});
wide!(__m512d, f64, __mmask8, 8, _mm512_setzero_pd _mm512_set1_pd _mm512_loadu_pd _mm512_maskz_loadu_pd
    _mm512_storeu_pd _mm512_mask_storeu_pd _mm512_fmadd_pd _mm512_add_pd);

macro_rules! narrow {
    ($v:ty, $t:ty, $lanes:expr, $table:ident, $zero:ident $set:ident $load:ident $mload:ident $store:ident $mstore:ident $fma:ident $add:ident) => {
        impl Vector for $v {
            type T = $t;
            type Mask = __m256i;
            const LANES: usize = $lanes;
            const ROWS: usize = 6;
            #[inline(always)]
            unsafe fn mask(n: usize) -> __m256i {
                unsafe { _mm256_loadu_si256($table.as_ptr().add($lanes - n) as *const __m256i) }
            }
            #[inline(always)]
            unsafe fn zero() -> $v {
                unsafe { $zero() }
            }
            #[inline(always)]
            unsafe fn splat(at: *const $t) -> $v {
                unsafe { $set(*at) }
            }
            #[inline(always)]
            unsafe fn load(at: *const $t) -> $v {
                unsafe { $load(at) }
            }
            #[inline(always)]
            unsafe fn load_some(at: *const $t, mask: __m256i) -> $v {
                unsafe { $mload(at, mask) }
            }
            #[inline(always)]
            unsafe fn store(self, at: *mut $t) {
                unsafe { $store(at, self) }
            }
            #[inline(always)]
            unsafe fn store_some(self, at: *mut $t, mask: __m256i) {
                unsafe { $mstore(at, mask, self) }
            }
            #[inline(always)]
            unsafe fn fma(self, a: $v, b: $v) -> $v {
                unsafe { $fma(a, b, self) }
            }
            #[inline(always)]
            unsafe fn plus(self, b: $v) -> $v {
                unsafe { $add(self, b) }
            }
            #[inline(always)]
            unsafe fn turn(
                from: *const $t,
                stride: isize,
                to: *mut $t,
                step: usize,
                rows: usize,
                cols: usize,
            ) {
                unsafe { Turn::turn(from, stride, to, step, rows, cols) }
            }
        }
    };
}

static ON32: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
static ON64: [i64; 8] = [-1, -1, -1, -1, 0, 0, 0, 0];

narrow!(__m256, f32, 8, ON32, _mm256_setzero_ps _mm256_set1_ps _mm256_loadu_ps _mm256_maskload_ps
    _mm256_storeu_ps _mm256_maskstore_ps _mm256_fmadd_ps _mm256_add_ps);
narrow!(__m256d, f64, 4, ON64, _mm256_setzero_pd _mm256_set1_pd _mm256_loadu_pd _mm256_maskload_pd
    _mm256_storeu_pd _mm256_maskstore_pd _mm256_fmadd_pd _mm256_add_pd);

/// Transposition into a panel.
trait Turn: Copy {
    unsafe fn turn(from: *const Self, stride: isize, to: *mut Self, step: usize, rows: usize, cols: usize);
}

#[inline(always)]
unsafe fn turn_plainly<T: Copy>(
    from: *const T,
    stride: isize,
    to: *mut T,
    step: usize,
    rows: std::ops::Range<usize>,
    cols: std::ops::Range<usize>,
) {
    for j in rows {
        for p in cols.clone() {
            // SAFETY: as the caller promises.
            unsafe { *to.add(p * step + j) = from.offset(j as isize * stride + p as isize).read_unaligned() };
        }
    }
}

impl Turn for f64 {
    #[inline(always)]
    unsafe fn turn(from: *const f64, stride: isize, to: *mut f64, step: usize, rows: usize, cols: usize) {
        unsafe { turn_plainly(from, stride, to, step, 0..rows, 0..cols) }
    }
}

impl Turn for f32 {
    #[inline(always)]
    unsafe fn turn(from: *const f32, stride: isize, to: *mut f32, step: usize, rows: usize, cols: usize) {
        let (whole_rows, whole_cols) = (rows / 8 * 8, cols / 8 * 8);
        // SAFETY: as the caller promises; squares of eight lie within both sides.
        unsafe {
            for p in (0..whole_cols).step_by(8) {
                for j in (0..whole_rows).step_by(8) {
                    let at = from.offset(j as isize * stride + p as isize);
                    turn_eight(at, stride, to.add(p * step + j), step);
                }
            }
            turn_plainly(from, stride, to, step, 0..whole_rows, whole_cols..cols);
            let mut done = whole_rows;
            if rows - whole_rows >= 4 {
                for p in (0..whole_cols).step_by(4) {
                    let at = from.offset(done as isize * stride + p as isize);
                    turn_four(at, stride, to.add(p * step + done), step);
                }
                turn_plainly(from, stride, to, step, done..done + 4, whole_cols..cols);
                done += 4;
            }
            turn_plainly(from, stride, to, step, done..rows, 0..cols);
        }
    }
}

/// `to[p * step + j] = from[j * stride + p]` for `rows` of j and `cols` of p, of words whatever they mean.
///
/// # Safety
/// Both sides hold these elements.
#[target_feature(enable = "avx2")]
pub unsafe fn turn_words(
    from: *const f32,
    stride: isize,
    to: *mut f32,
    step: usize,
    rows: usize,
    cols: usize,
) {
    // SAFETY: passed on from the caller.
    unsafe { Turn::turn(from, stride, to, step, rows, cols) }
}

/// Transposes a square of four.
#[inline(always)]
unsafe fn turn_four(from: *const f32, stride: isize, to: *mut f32, step: usize) {
    // SAFETY: as the caller promises.
    unsafe {
        let row = |i: isize| _mm_loadu_ps(from.offset(i * stride));
        let (r0, r1, r2, r3) = (row(0), row(1), row(2), row(3));
        let (a0, a1) = (_mm_unpacklo_ps(r0, r1), _mm_unpacklo_ps(r2, r3));
        let (a2, a3) = (_mm_unpackhi_ps(r0, r1), _mm_unpackhi_ps(r2, r3));
        _mm_storeu_ps(to, _mm_movelh_ps(a0, a1));
        _mm_storeu_ps(to.add(step), _mm_movehl_ps(a1, a0));
        _mm_storeu_ps(to.add(2 * step), _mm_movelh_ps(a2, a3));
        _mm_storeu_ps(to.add(3 * step), _mm_movehl_ps(a3, a2));
    }
}

/// Transposes a square of eight.
#[inline(always)]
unsafe fn turn_eight(from: *const f32, stride: isize, to: *mut f32, step: usize) {
    // SAFETY: as the caller promises.
    unsafe {
        let row = |i: isize| _mm256_loadu_ps(from.offset(i * stride));
        let (r0, r1, r2, r3) = (row(0), row(1), row(2), row(3));
        let (r4, r5, r6, r7) = (row(4), row(5), row(6), row(7));
        let (a0, a1) = (_mm256_unpacklo_ps(r0, r1), _mm256_unpackhi_ps(r0, r1));
        let (a2, a3) = (_mm256_unpacklo_ps(r2, r3), _mm256_unpackhi_ps(r2, r3));
        let (a4, a5) = (_mm256_unpacklo_ps(r4, r5), _mm256_unpackhi_ps(r4, r5));
        let (a6, a7) = (_mm256_unpacklo_ps(r6, r7), _mm256_unpackhi_ps(r6, r7));
        let (b0, b1) = (_mm256_shuffle_ps::<0x44>(a0, a2), _mm256_shuffle_ps::<0xee>(a0, a2));
        let (b2, b3) = (_mm256_shuffle_ps::<0x44>(a1, a3), _mm256_shuffle_ps::<0xee>(a1, a3));
        let (b4, b5) = (_mm256_shuffle_ps::<0x44>(a4, a6), _mm256_shuffle_ps::<0xee>(a4, a6));
        let (b6, b7) = (_mm256_shuffle_ps::<0x44>(a5, a7), _mm256_shuffle_ps::<0xee>(a5, a7));
        _mm256_storeu_ps(to, _mm256_permute2f128_ps::<0x20>(b0, b4));
        _mm256_storeu_ps(to.add(step), _mm256_permute2f128_ps::<0x20>(b1, b5));
        _mm256_storeu_ps(to.add(2 * step), _mm256_permute2f128_ps::<0x20>(b2, b6));
        _mm256_storeu_ps(to.add(3 * step), _mm256_permute2f128_ps::<0x20>(b3, b7));
        _mm256_storeu_ps(to.add(4 * step), _mm256_permute2f128_ps::<0x31>(b0, b4));
        _mm256_storeu_ps(to.add(5 * step), _mm256_permute2f128_ps::<0x31>(b1, b5));
        _mm256_storeu_ps(to.add(6 * step), _mm256_permute2f128_ps::<0x31>(b2, b6));
        _mm256_storeu_ps(to.add(7 * step), _mm256_permute2f128_ps::<0x31>(b3, b7));
    }
}
