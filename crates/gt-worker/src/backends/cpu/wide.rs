//! Registers of numbers that rows are read, folded and written in.

use super::lanes::Lanes;

/// A register of `LANES` numbers. To be used only where its unit was detected.
pub trait Wide: Lanes {
    const LANES: usize;
    /// # Safety
    /// As many numbers can be read; for a part, the first `n` of them.
    unsafe fn load(from: *const f32) -> Self;
    /// # Safety
    /// As above; what is not read is 0.
    unsafe fn load_part(from: *const f32, n: usize) -> Self;
    /// # Safety
    /// As many numbers can be written; for a part, the first `n` of them.
    unsafe fn save(self, to: *mut f32);
    /// # Safety
    /// As above.
    unsafe fn save_part(self, to: *mut f32, n: usize);
    /// Writes past the caches.
    ///
    /// # Safety
    /// As `save`, at a multiple of the register's size.
    unsafe fn stream(self, to: *mut f32);
    /// The first `n` numbers of this, the others of `rest`.
    fn first(self, n: usize, rest: Self) -> Self;
    /// The larger of each pair; `b` if one is NaN.
    fn max(self, b: Self) -> Self;
    /// The sum of the numbers, joined in halves: the first half with the second, and so on.
    fn total(self) -> f32;
    /// The largest of them, in the same way.
    fn top(self) -> f32;
}

/// Calls an intrinsic: the processor has it, as whoever uses these registers has found out.
macro_rules! of {
    ($e:expr) => {
        // SAFETY: the unit was detected before anything is computed in its registers; pointers are the caller's promise.
        unsafe { $e }
    };
}

/// Sixteen numbers of AVX-512.
mod long {
    use super::Wide;
    use std::arch::x86_64::*;

    #[inline(always)]
    fn mask(n: usize) -> __mmask16 {
        ((1u32 << n) - 1) as __mmask16
    }

    macro_rules! halves {
        ($x:expr, $f:ident) => {
            of!({
                let x = $x;
                let x = $f(x, _mm512_shuffle_f32x4::<0b01_00_11_10>(x, x));
                let x = $f(x, _mm512_shuffle_f32x4::<0b10_11_00_01>(x, x));
                let x = $f(x, _mm512_permute_ps::<0b01_00_11_10>(x));
                _mm512_cvtss_f32($f(x, _mm512_permute_ps::<0b10_11_00_01>(x)))
            })
        };
    }

    impl Wide for __m512 {
        const LANES: usize = 16;
        #[inline(always)]
        unsafe fn load(from: *const f32) -> __m512 {
            of!(_mm512_loadu_ps(from))
        }
        #[inline(always)]
        unsafe fn load_part(from: *const f32, n: usize) -> __m512 {
            of!(_mm512_maskz_loadu_ps(mask(n), from))
        }
        #[inline(always)]
        unsafe fn save(self, to: *mut f32) {
            of!(_mm512_storeu_ps(to, self))
        }
        #[inline(always)]
        unsafe fn save_part(self, to: *mut f32, n: usize) {
            of!(_mm512_mask_storeu_ps(to, mask(n), self))
        }
        #[inline(always)]
        unsafe fn stream(self, to: *mut f32) {
            of!(_mm512_stream_ps(to, self))
        }
        #[inline(always)]
        fn first(self, n: usize, rest: __m512) -> __m512 {
            of!(_mm512_mask_blend_ps(mask(n), rest, self))
        }
        #[inline(always)]
        fn max(self, b: __m512) -> __m512 {
            of!(_mm512_max_ps(self, b))
        }
        #[inline(always)]
        fn total(self) -> f32 {
            halves!(self, _mm512_add_ps)
        }
        #[inline(always)]
        fn top(self) -> f32 {
            halves!(self, _mm512_max_ps)
        }
    }
}

/// Eight numbers of AVX2.
mod short {
    use super::Wide;
    use std::arch::x86_64::*;

    /// All bits of the first `n` numbers.
    #[inline(always)]
    fn mask(n: usize) -> __m256i {
        const BITS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
        of!(_mm256_loadu_si256(BITS.as_ptr().add(8 - n) as *const __m256i))
    }

    macro_rules! halves {
        ($x:expr, $f:ident) => {
            of!({
                let x = $x;
                let x = $f(x, _mm256_permute2f128_ps::<1>(x, x));
                let x = $f(x, _mm256_permute_ps::<0b01_00_11_10>(x));
                _mm256_cvtss_f32($f(x, _mm256_permute_ps::<0b10_11_00_01>(x)))
            })
        };
    }

    impl Wide for __m256 {
        const LANES: usize = 8;
        #[inline(always)]
        unsafe fn load(from: *const f32) -> __m256 {
            of!(_mm256_loadu_ps(from))
        }
        #[inline(always)]
        unsafe fn load_part(from: *const f32, n: usize) -> __m256 {
            of!(_mm256_maskload_ps(from, mask(n)))
        }
        #[inline(always)]
        unsafe fn save(self, to: *mut f32) {
            of!(_mm256_storeu_ps(to, self))
        }
        #[inline(always)]
        unsafe fn save_part(self, to: *mut f32, n: usize) {
            of!(_mm256_maskstore_ps(to, mask(n), self))
        }
        #[inline(always)]
        unsafe fn stream(self, to: *mut f32) {
            of!(_mm256_stream_ps(to, self))
        }
        #[inline(always)]
        fn first(self, n: usize, rest: __m256) -> __m256 {
            of!(_mm256_blendv_ps(rest, self, _mm256_castsi256_ps(mask(n))))
        }
        #[inline(always)]
        fn max(self, b: __m256) -> __m256 {
            of!(_mm256_max_ps(self, b))
        }
        #[inline(always)]
        fn total(self) -> f32 {
            halves!(self, _mm256_add_ps)
        }
        #[inline(always)]
        fn top(self) -> f32 {
            halves!(self, _mm256_max_ps)
        }
    }
}
