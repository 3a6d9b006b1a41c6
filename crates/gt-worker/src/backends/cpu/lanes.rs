//! What the elementary functions are written in: one number, or a vector of them. Both give the same bits.

/// Adding it to a number rounds that to an integer, which then stands in the low bits: 1.5 * 2^23.
pub const MAGIC: f32 = 12_582_912.0;

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
    fn same(self, b: Self) -> Self::Mask;
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
    fn same(self, b: f32) -> bool {
        self == b
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
}

/// Sixteen numbers in a register of AVX-512. To be used only where that was detected.
#[cfg(target_arch = "x86_64")]
mod wide {
    use super::{Lanes, MAGIC};
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
        fn same(self, b: __m512) -> __mmask16 {
            of!(_mm512_cmp_ps_mask::<_CMP_EQ_OQ>(self, b))
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
    }
}
