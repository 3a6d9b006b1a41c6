//! What the elementary functions are written in: one number, or a vector of them. Both give the same bits.

/// Adding it to a number rounds that to an integer, which then stands in the low bits: 1.5 * 2^23.
pub const MAGIC: f32 = 12_582_912.0;

/// Entries of a table to look up in.
pub const PIECES: usize = 16;

/// Numbers side by side, each an `f32`.
pub trait Lanes: Copy {
    type Mask: Copy;
    fn all(x: f32) -> Self;
    fn add(self, b: Self) -> Self;
    fn sub(self, b: Self) -> Self;
    fn mul(self, b: Self) -> Self;
    fn div(self, b: Self) -> Self;
    /// `self * b + c`, rounded once.
    fn fma(self, b: Self, c: Self) -> Self;
    fn abs(self) -> Self;
    fn neg(self) -> Self;
    /// The size of this with the sign of `x`.
    fn signed_as(self, x: Self) -> Self;
    /// Turns the sign where `on`.
    fn neg_where(self, on: Self::Mask) -> Self;
    fn less(self, b: Self) -> Self::Mask;
    fn is_nan(self) -> Self::Mask;
    /// `a` where `on`, `b` elsewhere.
    fn pick(on: Self::Mask, a: Self, b: Self) -> Self;
    /// `c` where this is above it; NaN stays.
    fn at_most(self, c: f32) -> Self;
    /// `c` where this is below it; NaN stays.
    fn at_least(self, c: f32) -> Self;
    /// Times 2^n, rounded once, where `t` is `MAGIC + n` and this is near 1.
    fn scaled(self, t: Self) -> Self;
    /// Adds `n` to the exponent, where `t` is `MAGIC + n`: `scaled` where neither overflows.
    fn raised(self, t: Self) -> Self;
    /// Entry `n` modulo `PIECES`, where this is `MAGIC + n`.
    fn look_up(self, table: &[f32; PIECES]) -> Self;
}

#[inline(always)]
fn power_of_two(k: i32) -> f32 {
    f32::from_bits(((k + 127) as u32) << 23)
}

impl Lanes for f32 {
    type Mask = bool;
    #[inline(always)]
    fn all(x: f32) -> f32 {
        x
    }
    #[inline(always)]
    fn add(self, b: f32) -> f32 {
        self + b
    }
    #[inline(always)]
    fn sub(self, b: f32) -> f32 {
        self - b
    }
    #[inline(always)]
    fn mul(self, b: f32) -> f32 {
        self * b
    }
    #[inline(always)]
    fn div(self, b: f32) -> f32 {
        self / b
    }
    #[inline(always)]
    fn fma(self, b: f32, c: f32) -> f32 {
        self.mul_add(b, c)
    }
    #[inline(always)]
    fn abs(self) -> f32 {
        f32::abs(self)
    }
    #[inline(always)]
    fn neg(self) -> f32 {
        -self
    }
    #[inline(always)]
    fn signed_as(self, x: f32) -> f32 {
        self.copysign(x)
    }
    #[inline(always)]
    fn neg_where(self, on: bool) -> f32 {
        f32::from_bits(self.to_bits() ^ ((on as u32) << 31))
    }
    #[inline(always)]
    fn less(self, b: f32) -> bool {
        self < b
    }
    #[inline(always)]
    fn is_nan(self) -> bool {
        f32::is_nan(self)
    }
    #[inline(always)]
    fn pick(on: bool, a: f32, b: f32) -> f32 {
        if on { a } else { b }
    }
    #[inline(always)]
    fn at_most(self, c: f32) -> f32 {
        if self > c { c } else { self }
    }
    #[inline(always)]
    fn at_least(self, c: f32) -> f32 {
        if self < c { c } else { self }
    }
    #[inline(always)]
    fn scaled(self, t: f32) -> f32 {
        // Two factors, so that results may be subnormal or overflow; the first product is exact.
        let n = (t.to_bits() as i32).wrapping_sub(MAGIC.to_bits() as i32);
        let half = n >> 1;
        self * power_of_two(half) * power_of_two(n.wrapping_sub(half))
    }
    #[inline(always)]
    fn raised(self, t: f32) -> f32 {
        // What stands above the integer in `t` is shifted out.
        f32::from_bits(self.to_bits().wrapping_add(t.to_bits() << 23))
    }
    #[inline(always)]
    fn look_up(self, table: &[f32; PIECES]) -> f32 {
        table[self.to_bits() as usize % PIECES]
    }
}

/// Sixteen numbers in a register of AVX-512. To be used only where that was detected.
#[cfg(target_arch = "x86_64")]
mod wide {
    use super::{Lanes, MAGIC, PIECES};
    use std::arch::x86_64::*;

    /// Calls an intrinsic: the processor has it, as whoever uses these lanes has found out.
    macro_rules! of {
        ($e:expr) => {
            // SAFETY: AVX-512 was detected before anything is computed in these lanes.
            unsafe { $e }
        };
    }

    impl Lanes for __m512 {
        type Mask = __mmask16;
        #[inline(always)]
        fn all(x: f32) -> __m512 {
            of!(_mm512_set1_ps(x))
        }
        #[inline(always)]
        fn add(self, b: __m512) -> __m512 {
            of!(_mm512_add_ps(self, b))
        }
        #[inline(always)]
        fn sub(self, b: __m512) -> __m512 {
            of!(_mm512_sub_ps(self, b))
        }
        #[inline(always)]
        fn mul(self, b: __m512) -> __m512 {
            of!(_mm512_mul_ps(self, b))
        }
        #[inline(always)]
        fn div(self, b: __m512) -> __m512 {
            of!(_mm512_div_ps(self, b))
        }
        #[inline(always)]
        fn fma(self, b: __m512, c: __m512) -> __m512 {
            of!(_mm512_fmadd_ps(self, b, c))
        }
        #[inline(always)]
        fn abs(self) -> __m512 {
            of!(_mm512_abs_ps(self))
        }
        #[inline(always)]
        fn neg(self) -> __m512 {
            of!(_mm512_xor_ps(self, _mm512_set1_ps(-0.0)))
        }
        #[inline(always)]
        fn signed_as(self, x: __m512) -> __m512 {
            // Bit by bit: of `x` where the mask has a one, of this elsewhere.
            of!({
                let (a, b) = (_mm512_castps_si512(self), _mm512_castps_si512(x));
                let sign = _mm512_set1_epi32(i32::MIN);
                _mm512_castsi512_ps(_mm512_ternarylogic_epi32::<0xca>(sign, b, a))
            })
        }
        #[inline(always)]
        fn neg_where(self, on: __mmask16) -> __m512 {
            of!(_mm512_mask_xor_ps(self, on, self, _mm512_set1_ps(-0.0)))
        }
        #[inline(always)]
        fn less(self, b: __m512) -> __mmask16 {
            of!(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(self, b))
        }
        #[inline(always)]
        fn is_nan(self) -> __mmask16 {
            of!(_mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self, self))
        }
        #[inline(always)]
        fn pick(on: __mmask16, a: __m512, b: __m512) -> __m512 {
            of!(_mm512_mask_blend_ps(on, b, a))
        }
        // Of a NaN and a number these give their second operand.
        #[inline(always)]
        fn at_most(self, c: f32) -> __m512 {
            of!(_mm512_min_ps(_mm512_set1_ps(c), self))
        }
        #[inline(always)]
        fn at_least(self, c: f32) -> __m512 {
            of!(_mm512_max_ps(_mm512_set1_ps(c), self))
        }
        #[inline(always)]
        fn scaled(self, t: __m512) -> __m512 {
            of!(_mm512_scalef_ps(self, _mm512_sub_ps(t, _mm512_set1_ps(MAGIC))))
        }
        #[inline(always)]
        fn raised(self, t: __m512) -> __m512 {
            of!({
                let up = _mm512_slli_epi32::<23>(_mm512_castps_si512(t));
                _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(self), up))
            })
        }
        #[inline(always)]
        fn look_up(self, table: &[f32; PIECES]) -> __m512 {
            // Only the low bits of an index count.
            of!(_mm512_permutexvar_ps(_mm512_castps_si512(self), _mm512_loadu_ps(table.as_ptr())))
        }
    }
}

/// Eight numbers in a register of AVX2. To be used only where that was detected.
#[cfg(target_arch = "x86_64")]
mod narrow {
    use super::{Lanes, MAGIC, PIECES};
    use std::arch::x86_64::*;

    /// Calls an intrinsic: the processor has it, as whoever uses these lanes has found out.
    macro_rules! of {
        ($e:expr) => {
            // SAFETY: AVX2 and FMA were detected before anything is computed in these lanes.
            unsafe { $e }
        };
    }

    #[inline(always)]
    fn power_of_two(k: __m256i) -> __m256 {
        of!(_mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(k, _mm256_set1_epi32(127)))))
    }

    impl Lanes for __m256 {
        /// All bits of a number or none.
        type Mask = __m256;
        #[inline(always)]
        fn all(x: f32) -> __m256 {
            of!(_mm256_set1_ps(x))
        }
        #[inline(always)]
        fn add(self, b: __m256) -> __m256 {
            of!(_mm256_add_ps(self, b))
        }
        #[inline(always)]
        fn sub(self, b: __m256) -> __m256 {
            of!(_mm256_sub_ps(self, b))
        }
        #[inline(always)]
        fn mul(self, b: __m256) -> __m256 {
            of!(_mm256_mul_ps(self, b))
        }
        #[inline(always)]
        fn div(self, b: __m256) -> __m256 {
            of!(_mm256_div_ps(self, b))
        }
        #[inline(always)]
        fn fma(self, b: __m256, c: __m256) -> __m256 {
            of!(_mm256_fmadd_ps(self, b, c))
        }
        #[inline(always)]
        fn abs(self) -> __m256 {
            of!(_mm256_andnot_ps(_mm256_set1_ps(-0.0), self))
        }
        #[inline(always)]
        fn neg(self) -> __m256 {
            of!(_mm256_xor_ps(self, _mm256_set1_ps(-0.0)))
        }
        #[inline(always)]
        fn signed_as(self, x: __m256) -> __m256 {
            of!(_mm256_or_ps(self.abs(), _mm256_and_ps(x, _mm256_set1_ps(-0.0))))
        }
        #[inline(always)]
        fn neg_where(self, on: __m256) -> __m256 {
            of!(_mm256_xor_ps(self, _mm256_and_ps(on, _mm256_set1_ps(-0.0))))
        }
        #[inline(always)]
        fn less(self, b: __m256) -> __m256 {
            of!(_mm256_cmp_ps::<_CMP_LT_OQ>(self, b))
        }
        #[inline(always)]
        fn is_nan(self) -> __m256 {
            of!(_mm256_cmp_ps::<_CMP_UNORD_Q>(self, self))
        }
        #[inline(always)]
        fn pick(on: __m256, a: __m256, b: __m256) -> __m256 {
            of!(_mm256_blendv_ps(b, a, on))
        }
        // Of a NaN and a number these give their second operand.
        #[inline(always)]
        fn at_most(self, c: f32) -> __m256 {
            of!(_mm256_min_ps(_mm256_set1_ps(c), self))
        }
        #[inline(always)]
        fn at_least(self, c: f32) -> __m256 {
            of!(_mm256_max_ps(_mm256_set1_ps(c), self))
        }
        #[inline(always)]
        fn scaled(self, t: __m256) -> __m256 {
            of!({
                let magic = _mm256_set1_epi32(MAGIC.to_bits() as i32);
                let n = _mm256_sub_epi32(_mm256_castps_si256(t), magic);
                let half = _mm256_srai_epi32::<1>(n);
                let rest = _mm256_sub_epi32(n, half);
                self.mul(power_of_two(half)).mul(power_of_two(rest))
            })
        }
        #[inline(always)]
        fn raised(self, t: __m256) -> __m256 {
            of!({
                let up = _mm256_slli_epi32::<23>(_mm256_castps_si256(t));
                _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(self), up))
            })
        }
        #[inline(always)]
        fn look_up(self, table: &[f32; PIECES]) -> __m256 {
            // Three bits of an index count for each half; the next one says which.
            of!({
                let at = _mm256_castps_si256(self);
                let low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table.as_ptr()), at);
                let high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table.as_ptr().add(8)), at);
                _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32::<28>(at)))
            })
        }
    }
}
