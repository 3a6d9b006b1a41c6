//! Conversions between what lies in memory and what tiles compute in.
//!
//! A tile holds `f32` for f16, bf16 and f32, `i32` for u8, i8, i16 and i32, and f64, i64 and bool as they are.

use super::halves;
use super::isa::per_isa;
use gt_ir::DType;

/// The type a tile computes in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lane {
    F32,
    F64,
    I32,
    I64,
    Bool,
}

impl Lane {
    pub fn of(dtype: DType) -> Lane {
        match dtype {
            DType::F16 | DType::BF16 | DType::F32 => Lane::F32,
            DType::F64 => Lane::F64,
            DType::U8 | DType::I8 | DType::I16 | DType::I32 => Lane::I32,
            DType::I64 => Lane::I64,
            DType::Bool => Lane::Bool,
        }
    }

    pub fn size(self) -> usize {
        match self {
            Lane::Bool => 1,
            Lane::F32 | Lane::I32 => 4,
            Lane::F64 | Lane::I64 => 8,
        }
    }
}

/// True if memory and tile hold the type alike.
pub fn is_native(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F64 | DType::I32 | DType::I64 | DType::Bool)
}

#[inline(always)]
pub fn f16_to_f32(h: u16) -> f32 {
    let sign = ((h & 0x8000) as u32) << 16;
    let rest = (h & 0x7fff) as u32;
    // Moves the exponent by a product, which also puts subnormals right.
    let scaled = f32::from_bits(rest << 13) * f32::from_bits(0x7780_0000);
    let bits = if rest >= 0x7c00 { (rest << 13) | 0x7f80_0000 } else { scaled.to_bits() };
    f32::from_bits(bits | sign)
}

/// Rounds to nearest, ties to even.
#[inline(always)]
pub fn f32_to_f16(x: f32) -> u16 {
    let bits = x.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let u = bits & 0x7fff_ffff;
    const TINY: u32 = ((127 - 15) + (23 - 10) + 1) << 23;
    let small = (f32::from_bits(u) + f32::from_bits(TINY)).to_bits().wrapping_sub(TINY);
    let normal =
        u.wrapping_add((15u32.wrapping_sub(127) << 23).wrapping_add(0xfff)).wrapping_add((u >> 13) & 1) >> 13;
    let big = if u > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
    let h = if u < 113 << 23 { small } else { normal };
    let h = if u >= (127 + 16) << 23 { big } else { h };
    (h | sign) as u16
}

#[inline(always)]
pub fn bf16_to_f32(h: u16) -> f32 {
    f32::from_bits((h as u32) << 16)
}

/// Rounds to nearest, ties to even.
#[inline(always)]
pub fn f32_to_bf16(x: f32) -> u16 {
    let u = x.to_bits();
    let rounded = u.wrapping_add(0x7fff + ((u >> 16) & 1)) >> 16;
    (if x.is_nan() { (u >> 16) | 0x40 } else { rounded }) as u16
}

/// Rounds so that a second rounding to a half type is the only one that counts: inexact results get an odd last bit.
#[inline(always)]
fn f64_to_f32_odd(x: f64) -> f32 {
    let near = x as f32;
    let back = near as f64;
    let bits = near.to_bits();
    let step = if back.abs() > x.abs() { bits.wrapping_sub(1) } else { bits.wrapping_add(1) };
    let inexact = back != x && !x.is_nan() && bits & 1 == 0;
    f32::from_bits(if inexact { step } else { bits })
}

/// Applies `f` to every element of `src`.
///
/// # Safety
/// Both tiles hold `n` elements and do not overlap.
#[inline(always)]
pub unsafe fn each<S: Copy, D>(src: *const S, dst: *mut D, n: usize, f: impl Fn(S) -> D) {
    // SAFETY: as the caller promises.
    let (src, dst) = unsafe { (std::slice::from_raw_parts(src, n), std::slice::from_raw_parts_mut(dst, n)) };
    for (d, &s) in dst.iter_mut().zip(src) {
        *d = f(s);
    }
}

per_isa! {
    /// Memory to tile, for types that differ there. Unaligned memory is not allowed.
    pub unsafe fn widen(dtype: DType, src: *const u8, dst: *mut u8, n: usize) {
        // SAFETY: passed on from the caller.
        unsafe {
            match dtype {
                DType::F16 => halves::widen(src as *const u16, dst as *mut f32, n),
                DType::BF16 => each(src as *const u16, dst as *mut f32, n, bf16_to_f32),
                DType::U8 => each(src, dst as *mut i32, n, |x| x as i32),
                DType::I8 => each(src as *const i8, dst as *mut i32, n, |x| x as i32),
                DType::I16 => each(src as *const i16, dst as *mut i32, n, |x| x as i32),
                DType::Bool | DType::F32 | DType::F64 | DType::I32 | DType::I64 => {
                    std::ptr::copy_nonoverlapping(src, dst, n * dtype.size())
                }
            }
        }
    }
}

per_isa! {
    /// Tile to memory, rounding to the type.
    pub unsafe fn narrow(dtype: DType, src: *const u8, dst: *mut u8, n: usize) {
        // SAFETY: passed on from the caller.
        unsafe {
            match dtype {
                DType::F16 => halves::narrow(src as *const f32, dst as *mut u16, n),
                DType::BF16 => each(src as *const f32, dst as *mut u16, n, f32_to_bf16),
                DType::U8 | DType::I8 => each(src as *const i32, dst, n, |x| x as u8),
                DType::I16 => each(src as *const i32, dst as *mut i16, n, |x| x as i16),
                DType::Bool | DType::F32 | DType::F64 | DType::I32 | DType::I64 => {
                    std::ptr::copy_nonoverlapping(src, dst, n * dtype.size())
                }
            }
        }
    }
}

/// Applies `f` to every element in place.
///
/// # Safety
/// The tile holds `n` elements.
#[inline(always)]
unsafe fn in_place<T: Copy>(tile: *mut T, n: usize, f: impl Fn(T) -> T) {
    // SAFETY: as the caller promises.
    for x in unsafe { std::slice::from_raw_parts_mut(tile, n) } {
        *x = f(*x);
    }
}

per_isa! {
    /// Rounds a tile to the element type it stands for.
    pub unsafe fn round(dtype: DType, tile: *mut u8, n: usize) {
        // SAFETY: passed on from the caller.
        unsafe {
            match dtype {
                DType::F16 => halves::round(tile as *mut f32, n),
                DType::BF16 => in_place(tile as *mut f32, n, |x| bf16_to_f32(f32_to_bf16(x))),
                DType::U8 => in_place(tile as *mut i32, n, |x| x as u8 as i32),
                DType::I8 => in_place(tile as *mut i32, n, |x| x as i8 as i32),
                DType::I16 => in_place(tile as *mut i32, n, |x| x as i16 as i32),
                DType::Bool | DType::F32 | DType::F64 | DType::I32 | DType::I64 => {}
            }
        }
    }
}

/// What a cast asks of an element.
pub trait Elem: Copy {
    fn f64(self) -> f64;
    fn i64(self) -> i64;
    fn on(self) -> bool;
}

macro_rules! elem {
    ($($t:ty)*) => {$(
        impl Elem for $t {
            #[inline(always)]
            fn f64(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn i64(self) -> i64 {
                self as i64
            }
            #[inline(always)]
            fn on(self) -> bool {
                self != 0 as $t
            }
        }
    )*};
}

elem!(f32 f64 i32 i64 u8);

per_isa! {
    /// Casts a tile to another element type, by way of f64 or i64 as the language says.
    pub unsafe fn cast_from<S: Elem>(to: DType, exact: bool, src: *const S, dst: *mut u8, n: usize) {
        // SAFETY: passed on from the caller.
        unsafe {
            match to {
                DType::F32 => each(src, dst as *mut f32, n, |x: S| x.f64() as f32),
                DType::F16 | DType::BF16 if exact => {
                    each(src, dst as *mut f32, n, |x: S| x.f64() as f32);
                    super::convert::round(to, dst, n);
                }
                DType::F16 | DType::BF16 => {
                    each(src, dst as *mut f32, n, |x: S| f64_to_f32_odd(x.f64()));
                    super::convert::round(to, dst, n);
                }
                DType::F64 => each(src, dst as *mut f64, n, |x: S| x.f64()),
                DType::U8 => each(src, dst as *mut i32, n, |x: S| x.i64() as u8 as i32),
                DType::I8 => each(src, dst as *mut i32, n, |x: S| x.i64() as i8 as i32),
                DType::I16 => each(src, dst as *mut i32, n, |x: S| x.i64() as i16 as i32),
                DType::I32 => each(src, dst as *mut i32, n, |x: S| x.i64() as i32),
                DType::I64 => each(src, dst as *mut i64, n, |x: S| x.i64()),
                DType::Bool => each(src, dst, n, |x: S| x.on() as u8),
            }
        }
    }
}

/// Casts a tile of `from` to one of `to`.
///
/// # Safety
/// Both tiles hold `n` elements of the lanes of these types and do not overlap.
pub unsafe fn cast(from: Lane, to: DType, src: *const u8, dst: *mut u8, n: usize) {
    // SAFETY: passed on from the caller.
    unsafe {
        match from {
            Lane::F32 => cast_from(to, true, src as *const f32, dst, n),
            Lane::F64 => cast_from(to, false, src as *const f64, dst, n),
            Lane::I32 => cast_from(to, false, src as *const i32, dst, n),
            Lane::I64 => cast_from(to, false, src as *const i64, dst, n),
            Lane::Bool => cast_from(to, true, src, dst, n),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    #[test]
    fn halves_agree_with_the_half_crate() {
        for h in 0..=u16::MAX {
            let (a, b) = (f16_to_f32(h), f16::from_bits(h).to_f32());
            assert!(a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()), "{h:#x}");
            let (a, b) = (bf16_to_f32(h), bf16::from_bits(h).to_f32());
            assert!(a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()), "{h:#x}");
        }
        let mut u = 1u32;
        for _ in 0..2_000_000 {
            u = u.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let x = f32::from_bits(u);
            if !x.is_nan() {
                assert_eq!(f32_to_f16(x), f16::from_f32(x).to_bits(), "{x}");
                assert_eq!(f32_to_bf16(x), bf16::from_f32(x).to_bits(), "{x}");
            }
            // The half crate looks at the upper half of a double alone.
            let y = f64::from_bits((u as u64) << 32);
            if !y.is_nan() {
                assert_eq!(f32_to_f16(f64_to_f32_odd(y)), f16::from_f64(y).to_bits(), "{y}");
                assert_eq!(f32_to_bf16(f64_to_f32_odd(y)), bf16::from_f64(y).to_bits(), "{y}");
            }
        }
        // A hair above the middle between two bf16.
        assert_eq!(bf16_to_f32(f32_to_bf16(f64_to_f32_odd(1684.0 + 1e-9))), 1688.0);
        assert_eq!(bf16_to_f32(f32_to_bf16(f64_to_f32_odd(1684.0 - 1e-9))), 1680.0);
    }
}
