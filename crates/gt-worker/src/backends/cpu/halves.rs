//! f16 in bulk: the processor's own conversions where it has them. NaN stays NaN; its payload may differ.

use super::convert::{f16_to_f32, f32_to_f16};
use super::isa;

/// f16 to f32.
///
/// # Safety
/// Both sides hold `n` elements and do not overlap.
pub unsafe fn widen(src: *const u16, dst: *mut f32, n: usize) {
    // SAFETY: passed on from the caller; the level was detected.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        let done = match isa::level() {
            2.. => x86::widen(src, dst, n),
            _ => 0,
        };
        #[cfg(not(target_arch = "x86_64"))]
        let done = 0 * isa::level() as usize;
        for i in done..n {
            *dst.add(i) = f16_to_f32(*src.add(i));
        }
    }
}

/// f32 to f16, to nearest, ties to even.
///
/// # Safety
/// Both sides hold `n` elements and do not overlap.
pub unsafe fn narrow(src: *const f32, dst: *mut u16, n: usize) {
    // SAFETY: passed on from the caller; the level was detected.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        let done = match isa::level() {
            2.. => x86::narrow(src, dst, n),
            _ => 0,
        };
        #[cfg(not(target_arch = "x86_64"))]
        let done = 0 * isa::level() as usize;
        for i in done..n {
            *dst.add(i) = f32_to_f16(*src.add(i));
        }
    }
}

/// f32 rounded to what f16 can hold, in place.
///
/// # Safety
/// The tile holds `n` elements.
pub unsafe fn round(tile: *mut f32, n: usize) {
    let mut part = [0u16; 256];
    let mut at = 0;
    while at < n {
        let len = part.len().min(n - at);
        // SAFETY: as the caller promises.
        unsafe {
            narrow(tile.add(at), part.as_mut_ptr(), len);
            widen(part.as_ptr(), tile.add(at), len);
        }
        at += len;
    }
}

/// Whole vectors only; each returns how many elements it did.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    #[target_feature(enable = "f16c")]
    pub unsafe fn widen(src: *const u16, dst: *mut f32, n: usize) -> usize {
        for i in (0..n / 8 * 8).step_by(8) {
            // SAFETY: as the caller promises.
            unsafe {
                _mm256_storeu_ps(dst.add(i), _mm256_cvtph_ps(_mm_loadu_si128(src.add(i) as *const __m128i)))
            };
        }
        n / 8 * 8
    }

    #[target_feature(enable = "f16c")]
    pub unsafe fn narrow(src: *const f32, dst: *mut u16, n: usize) -> usize {
        for i in (0..n / 8 * 8).step_by(8) {
            // SAFETY: as the caller promises.
            unsafe {
                let half = _mm256_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT }>(_mm256_loadu_ps(src.add(i)));
                _mm_storeu_si128(dst.add(i) as *mut __m128i, half);
            }
        }
        n / 8 * 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bulk_equals_one_by_one() {
        let halves: Vec<u16> = (0..=u16::MAX).collect();
        let mut wide = vec![0f32; halves.len()];
        // SAFETY: both hold as many elements.
        unsafe { widen(halves.as_ptr(), wide.as_mut_ptr(), halves.len()) };
        for (&h, &x) in halves.iter().zip(&wide) {
            let want = f16_to_f32(h);
            assert!(x.to_bits() == want.to_bits() || (x.is_nan() && want.is_nan()), "{h:#x}");
        }
        let floats: Vec<f32> =
            (0..300_007u32).map(|i| f32::from_bits(i.wrapping_mul(2_654_435_761))).collect();
        let mut back = vec![0u16; floats.len()];
        // SAFETY: both hold as many elements.
        unsafe { narrow(floats.as_ptr(), back.as_mut_ptr(), floats.len()) };
        for (&x, &h) in floats.iter().zip(&back) {
            assert!(x.is_nan() || h == f32_to_f16(x), "{x}");
        }
    }
}
