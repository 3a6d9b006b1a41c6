//! Philox4x32-10: random numbers as a function of (key, offset, index) alone, the same on every device (C7).
//!
//! A block is four 32-bit words made from a 128-bit counter `(block, 0)` and a 64-bit key. Elements read:
//!
//! | element | block | of the block |
//! |---|---|---|
//! | uniform f16, bf16, f32 | offset + i / 4 | the top 11, 8, 24 bits of word i % 4 |
//! | uniform f64 | offset + i / 2 | the top 53 bits of half i % 2 |
//! | normal | offset + i / 2 | Box-Muller of the two words of half i % 2 |
//! | int | offset + i / 2 | low + the high word of half i % 2 times the range |
//!
//! Half h is words 2h (low) and 2h + 1 (high).

mod batch;

use crate::scalar::{to_bf16, to_f16};
use crate::{DType, Dist};
use batch::{BATCH, Words};
use half::{bf16, f16};

/// The four words of one block.
#[inline]
pub fn block(key: u64, counter: u64) -> [u32; 4] {
    philox4x32([counter as u32, (counter >> 32) as u32, 0, 0], [key as u32, (key >> 32) as u32])
}

/// The Philox4x32-10 function of a whole counter.
#[inline]
pub fn philox4x32(mut c: [u32; 4], mut k: [u32; 2]) -> [u32; 4] {
    const M: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];
    const W: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
    for round in 0..10 {
        if round > 0 {
            k = [k[0].wrapping_add(W[0]), k[1].wrapping_add(W[1])];
        }
        let (p0, p1) = (M[0] * c[0] as u64, M[1] * c[2] as u64);
        c = [(p1 >> 32) as u32 ^ c[1] ^ k[0], p1 as u32, (p0 >> 32) as u32 ^ c[3] ^ k[1], p0 as u32];
    }
    c
}

/// How many elements one block serves.
pub const fn per_block(dist: Dist, dtype: DType) -> u64 {
    match (dist, dtype) {
        (Dist::Uniform, DType::F64) => 2,
        (Dist::Uniform, _) => 4,
        (Dist::Normal | Dist::Int { .. }, _) => 2,
    }
}

/// How far the offset advances past a tensor of `n` elements.
pub const fn blocks(dist: Dist, dtype: DType, n: usize) -> u64 {
    (n as u64).div_ceil(per_block(dist, dtype))
}

/// The 64-bit word in one half of a block.
#[inline]
pub fn word64(words: [u32; 4], half: usize) -> u64 {
    words[2 * half] as u64 | (words[2 * half + 1] as u64) << 32
}

/// A standard normal from one half of a block, by Box-Muller in double precision.
#[inline]
pub fn normal(words: [u32; 4], half: usize) -> f64 {
    batch::normal(words[2 * half] as u64, words[2 * half + 1] as u64)
}

/// An integer in [low, high) from one half of a block.
#[inline]
pub fn int(words: [u32; 4], half: usize, low: i64, high: i64) -> i64 {
    let range = high.wrapping_sub(low) as u64;
    low.wrapping_add(((word64(words, half) as u128 * range as u128) >> 64) as i64)
}

/// Writes the elements `first..` of a random tensor; `out` is whole elements of `dtype`. Uniform and normal numbers
/// exist in floating-point types alone; for other types nothing is written.
pub fn fill(dist: Dist, dtype: DType, key: u64, offset: u64, first: u64, out: &mut [u8]) {
    fill_here(dist, dtype, key, offset, first, out)
}

/// The same as code of the caller, for callers that are compiled for wider vectors.
#[inline(always)]
pub fn fill_here(dist: Dist, dtype: DType, key: u64, offset: u64, first: u64, out: &mut [u8]) {
    match (dist, dtype) {
        (Dist::Uniform, DType::F32) => many::<4, 4>(
            (key, offset, first, out),
            |w, l| std::array::from_fn(|b| batch::uniform(w[l][b]).to_ne_bytes()),
            |w, l| batch::uniform(w[l] as u64).to_ne_bytes(),
        ),
        (Dist::Normal, DType::F32) => many::<4, 2>(
            (key, offset, first, out),
            |w, l| {
                std::array::from_fn(|b| (batch::normal(w[2 * l][b], w[2 * l + 1][b]) as f32).to_ne_bytes())
            },
            |w, l| (normal(w, l) as f32).to_ne_bytes(),
        ),
        (Dist::Uniform, DType::F16) => each::<2, 4>(key, offset, first, out, |w, l| {
            f16::from_f32((w[l] >> 21) as f32 / 2048.0).to_ne_bytes()
        }),
        (Dist::Uniform, DType::BF16) => each::<2, 4>(key, offset, first, out, |w, l| {
            bf16::from_f32((w[l] >> 24) as f32 / 256.0).to_ne_bytes()
        }),
        (Dist::Uniform, DType::F64) => each::<8, 2>(key, offset, first, out, |w, l| {
            ((word64(w, l) >> 11) as f64 * (1.0 / 9_007_199_254_740_992.0)).to_ne_bytes()
        }),
        (Dist::Normal, _) => numbers(dtype, key, offset, first, out, normal),
        (Dist::Int { low, high }, DType::I64) => {
            each::<8, 2>(key, offset, first, out, |w, l| int(w, l, low, high).to_ne_bytes())
        }
        (Dist::Int { low, high }, DType::I32) => {
            each::<4, 2>(key, offset, first, out, |w, l| (int(w, l, low, high) as i32).to_ne_bytes())
        }
        (Dist::Int { low, high }, DType::I16) => {
            each::<2, 2>(key, offset, first, out, |w, l| (int(w, l, low, high) as i16).to_ne_bytes())
        }
        (Dist::Int { low, high }, DType::U8 | DType::I8) => {
            each::<1, 2>(key, offset, first, out, |w, l| (int(w, l, low, high) as u8).to_ne_bytes())
        }
        (Dist::Int { low, high }, DType::Bool) => {
            each::<1, 2>(key, offset, first, out, |w, l| [(int(w, l, low, high) != 0) as u8])
        }
        (Dist::Int { low, high }, _) => {
            numbers(dtype, key, offset, first, out, |w, l| int(w, l, low, high) as f64)
        }
        (Dist::Uniform, _) => {}
    }
}

/// Two doubles per block, rounded to a floating-point type.
#[inline]
fn numbers(
    dtype: DType,
    key: u64,
    offset: u64,
    first: u64,
    out: &mut [u8],
    f: impl Fn([u32; 4], usize) -> f64,
) {
    match dtype {
        DType::F64 => each::<8, 2>(key, offset, first, out, |w, l| f(w, l).to_ne_bytes()),
        DType::F32 => each::<4, 2>(key, offset, first, out, |w, l| (f(w, l) as f32).to_ne_bytes()),
        DType::F16 => each::<2, 2>(key, offset, first, out, |w, l| to_f16(f(w, l)).to_ne_bytes()),
        DType::BF16 => each::<2, 2>(key, offset, first, out, |w, l| to_bf16(f(w, l)).to_ne_bytes()),
        DType::Bool | DType::U8 | DType::I8 | DType::I16 | DType::I32 | DType::I64 => {}
    }
}

/// The same as `each`, many blocks at a time where there are as many: `batch` gives lane `l` of each of them.
#[inline(always)]
fn many<const SIZE: usize, const LANES: usize>(
    (key, offset, first, out): (u64, u64, u64, &mut [u8]),
    batch: impl Fn(&Words, usize) -> [[u8; SIZE]; BATCH],
    one: impl Fn([u32; 4], usize) -> [u8; SIZE],
) {
    // Up to the first whole block.
    let head = ((LANES as u64 - first % LANES as u64) % LANES as u64) as usize;
    let (head, rest) = out.split_at_mut((head * SIZE).min(out.len()));
    each::<SIZE, LANES>(key, offset, first, head, &one);
    let mut at = first + (head.len() / SIZE) as u64;
    let mut groups = rest.chunks_exact_mut(SIZE * LANES * BATCH);
    for group in &mut groups {
        let words = batch::blocks(key, offset.wrapping_add(at / LANES as u64));
        for l in 0..LANES {
            let lane = batch(&words, l);
            for (b, bytes) in lane.iter().enumerate() {
                group[(b * LANES + l) * SIZE..][..SIZE].copy_from_slice(bytes);
            }
        }
        at += (LANES * BATCH) as u64;
    }
    each::<SIZE, LANES>(key, offset, at, groups.into_remainder(), &one);
}

/// Runs over the blocks under elements `first..`, `LANES` of them `SIZE` bytes each per block.
#[inline]
fn each<const SIZE: usize, const LANES: usize>(
    key: u64,
    offset: u64,
    first: u64,
    out: &mut [u8],
    f: impl Fn([u32; 4], usize) -> [u8; SIZE],
) {
    let mut counter = offset.wrapping_add(first / LANES as u64);
    let mut lane = (first % LANES as u64) as usize;
    let mut rest = out.chunks_exact_mut(SIZE);
    loop {
        let words = block(key, counter);
        for l in lane..LANES {
            let Some(element) = rest.next() else { return };
            element.copy_from_slice(&f(words, l));
        }
        lane = 0;
        counter = counter.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers() {
        assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
        assert_eq!(philox4x32([!0; 4], [!0; 2]), [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]);
        let pi = philox4x32([0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344], [0xa4093822, 0x299f31d0]);
        assert_eq!(pi, [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1]);
    }

    #[test]
    fn an_element_depends_on_its_index_alone() {
        for dtype in DType::ALL {
            for dist in [Dist::Uniform, Dist::Normal, Dist::Int { low: -5, high: 90 }] {
                let size = dtype.size();
                let mut whole = vec![0; 37 * size];
                fill(dist, dtype, 7, u64::MAX - 3, 0, &mut whole);
                for first in 0..9 {
                    let mut part = vec![0; 11 * size];
                    fill(dist, dtype, 7, u64::MAX - 3, first as u64, &mut part);
                    assert_eq!(part, whole[first * size..(first + 11) * size], "{dist:?} {dtype}");
                }
                let advanced = blocks(dist, dtype, 8);
                let mut next = vec![0; 4 * size];
                fill(dist, dtype, 7, (u64::MAX - 3).wrapping_add(advanced), 0, &mut next);
                assert_eq!(next, whole[8 * size..12 * size]);
            }
        }
    }

    #[test]
    fn distributions_have_their_range_and_moments() {
        let n = 40_000;
        for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
            let sample = |dist| {
                let mut t = crate::host::HostTensor::zeros(&crate::Ty::new(dtype, [n]));
                fill(dist, dtype, 3, 0, 0, &mut t.data);
                t.to_f64s()
            };
            let moments = |x: &[f64]| {
                let mean = x.iter().sum::<f64>() / n as f64;
                (mean, x.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n as f64)
            };
            let u = sample(Dist::Uniform);
            assert!(u.iter().all(|&x| (0.0..1.0).contains(&x)));
            let (mean, var) = moments(&u);
            assert!((mean - 0.5).abs() < 0.01 && (var - 1.0 / 12.0).abs() < 0.01, "{dtype} {mean} {var}");
            let (mean, var) = moments(&sample(Dist::Normal));
            assert!(mean.abs() < 0.02 && (var - 1.0).abs() < 0.03, "{dtype} {mean} {var}");
            let i = sample(Dist::Int { low: -2, high: 3 });
            assert!((-2..3).all(|k| i.iter().filter(|&&x| x == k as f64).count() > n / 6));
        }
        let whole = Dist::Int { low: i64::MIN, high: i64::MAX };
        let mut out = [0; 64];
        fill(whole, DType::I64, 1, 2, 0, &mut out);
    }
}
