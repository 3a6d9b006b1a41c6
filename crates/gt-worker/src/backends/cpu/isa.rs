//! Picks, at run time, among copies of a function compiled for different vector units. All copies give the same bits.

use std::sync::atomic::{AtomicU8, Ordering};

/// What the processor can do: 0 not asked yet, 1 plain, 2 AVX2 and FMA, 3 AVX-512.
static LEVEL: AtomicU8 = AtomicU8::new(0);

/// The level of this processor.
#[inline(always)]
pub fn level() -> u8 {
    match LEVEL.load(Ordering::Relaxed) {
        0 => detect(),
        level => level,
    }
}

#[cold]
fn detect() -> u8 {
    #[cfg(target_arch = "x86_64")]
    let level = {
        let v3 = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("bmi2");
        let v4 = v3
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        1 + v3 as u8 + v4 as u8
    };
    #[cfg(not(target_arch = "x86_64"))]
    let level = 1;
    LEVEL.store(level, Ordering::Relaxed);
    level
}

/// True on processors where too much memory asked for in an inner loop makes its other loads wait: Intel's have few places for
/// lines on their way, and hold one for each line asked for until it is there.
#[inline(always)]
pub fn asks_sparingly() -> bool {
    match SPARING.load(Ordering::Relaxed) {
        0 => find_maker(),
        known => known == 2,
    }
}

/// 0 not asked yet, 1 no, 2 yes.
static SPARING: AtomicU8 = AtomicU8::new(0);

#[cold]
fn find_maker() -> bool {
    #[cfg(target_arch = "x86_64")]
    let sparing = {
        let id = std::arch::x86_64::__cpuid(0);
        [id.ebx, id.edx, id.ecx].map(u32::to_le_bytes).concat() == b"GenuineIntel"
    };
    #[cfg(not(target_arch = "x86_64"))]
    let sparing = false;
    SPARING.store(1 + sparing as u8, Ordering::Relaxed);
    sparing
}

/// Words for the processor's level.
pub fn name() -> &'static str {
    match level() {
        3 => "AVX-512",
        2 => "AVX2",
        _ => "scalar",
    }
}

/// Defines `fn name(args)` with a body compiled once per level; the call picks one. Everything the body calls in its
/// loops must be `#[inline(always)]`.
macro_rules! per_isa {
    ($(#[$doc:meta])* $vis:vis unsafe fn $name:ident $(<$($g:ident : $b:path),*>)? ($($arg:ident : $t:ty),* $(,)?) $body:block) => {
        $(#[$doc])*
        #[inline]
        $vis unsafe fn $name $(<$($g: $b),*>)? ($($arg: $t),*) {
            #[inline(always)]
            unsafe fn body $(<$($g: $b),*>)? ($($arg: $t),*) $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,avx512f,avx512bw,avx512dq,avx512vl")]
            unsafe fn v4 $(<$($g: $b),*>)? ($($arg: $t),*) {
                // SAFETY: passed on from the caller.
                unsafe { body$(::<$($g),*>)?($($arg),*) }
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2")]
            unsafe fn v3 $(<$($g: $b),*>)? ($($arg: $t),*) {
                // SAFETY: passed on from the caller.
                unsafe { body$(::<$($g),*>)?($($arg),*) }
            }

            // SAFETY: the level was detected; the rest is passed on from the caller.
            unsafe {
                match $crate::backends::cpu::isa::level() {
                    #[cfg(target_arch = "x86_64")]
                    3 => v4$(::<$($g),*>)?($($arg),*),
                    #[cfg(target_arch = "x86_64")]
                    2 => v3$(::<$($g),*>)?($($arg),*),
                    _ => body$(::<$($g),*>)?($($arg),*),
                }
            }
        }
    };
}

pub(crate) use per_isa;
