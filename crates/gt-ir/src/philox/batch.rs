//! Many Philox blocks at once, and what is made of their words, in loops without branches that compilers turn into vector
//! code. No multiply is fused with an add, so every processor gives the same bits.

/// Blocks made at once.
pub const BATCH: usize = 16;
/// Words 0 to 3 of `BATCH` blocks, each 32 bits.
pub type Words = [[u64; BATCH]; 4];

const LOW: u64 = 0xFFFF_FFFF;

/// The blocks at `counter` and after it.
#[inline(always)]
pub fn blocks(key: u64, counter: u64) -> Words {
    let at = |b: usize| counter.wrapping_add(b as u64);
    let (mut c0, mut c1) = (std::array::from_fn(|b| at(b) & LOW), std::array::from_fn(|b| at(b) >> 32));
    let (mut c2, mut c3) = ([0; BATCH], [0; BATCH]);
    let (mut k0, mut k1) = (key & LOW, key >> 32);
    for _ in 0..10 {
        let words = c0.iter_mut().zip(&mut c1).zip(c2.iter_mut().zip(&mut c3));
        for ((c0, c1), (c2, c3)) in words {
            let (p0, p1) = (0xD251_1F53 * *c0, 0xCD9E_8D57 * *c2);
            (*c0, *c1) = ((p1 >> 32) ^ *c1 ^ k0, p1 & LOW);
            (*c2, *c3) = ((p0 >> 32) ^ *c3 ^ k1, p0 & LOW);
        }
        k0 = (k0 + 0x9E37_79B9) & LOW;
        k1 = (k1 + 0xBB67_AE85) & LOW;
    }
    [c0, c1, c2, c3]
}

/// In [0, 1) from a word, for f32.
#[inline(always)]
pub fn uniform(word: u64) -> f32 {
    (word as u32 >> 8) as i32 as f32 * (1.0 / 16_777_216.0)
}

/// An integer below 2^52 as a float.
#[inline(always)]
fn float(x: u64) -> f64 {
    const TWO_52: u64 = 0x4330_0000_0000_0000;
    f64::from_bits(TWO_52 | x) - 4_503_599_627_370_496.0
}

/// Box-Muller: the logarithm of the first word, which gives the distance, and the cosine of the second as an angle.
#[inline(always)]
pub fn normal(first: u64, second: u64) -> f64 {
    (-2.0 * ln_of_part(first)).sqrt() * cos_of_turn(second)
}

/// `ln((word + 1) / 2^32)`, by `2 artanh((m - 1) / (m + 1))` of a mantissa near 1.
#[inline(always)]
fn ln_of_part(word: u64) -> f64 {
    // 1 / sqrt(2) as bits: subtracting it puts the mantissa between that and its double.
    const HALF_ROOT: u64 = 0x3FE6_A09E_667F_3BCD;
    let bits = float(word + 1).to_bits().wrapping_sub(HALF_ROOT);
    let m = f64::from_bits((bits & 0x000F_FFFF_FFFF_FFFF) + HALF_ROOT);
    let exponent = float(bits >> 52) - 32.0;
    let s = (m - 1.0) / (m + 1.0);
    let t = s * s;
    let mut sum = 1.0 / 19.0;
    for odd in [17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0] {
        sum = sum * t + 1.0 / odd;
    }
    exponent * std::f64::consts::LN_2 + 2.0 * (s + s * t * sum)
}

/// `cos(2 pi word / 2^32)`: the nearest quarter turn, and a series for what is left.
#[inline(always)]
fn cos_of_turn(word: u64) -> f64 {
    let quarter = (word + (1 << 29)) >> 30;
    let left = (float(word) - float(quarter << 30)) * (1.0 / 1_073_741_824.0);
    let x = left * std::f64::consts::FRAC_PI_2;
    let t = x * x;
    let (mut cos, mut sin) = (1.0, 1.0);
    for n in [16.0, 14.0, 12.0, 10.0, 8.0, 6.0, 4.0, 2.0] {
        cos = 1.0 - cos * t * (1.0 / (n * (n - 1.0)));
        sin = 1.0 - sin * t * (1.0 / (n * (n + 1.0)));
    }
    let value = if quarter & 1 == 0 { cos } else { x * sin };
    // Of the quarters 0 to 4 the cosine is positive around 0 and 4, and falls through 1.
    let negative = (quarter == 1) | (quarter == 2);
    f64::from_bits(value.to_bits() ^ ((negative as u64) << 63))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::philox::block;

    #[test]
    fn blocks_are_those_of_one_at_a_time() {
        for (key, counter) in [(7, 0), (u64::MAX - 5, u64::MAX - 3), (1 << 40, (1 << 32) - 5)] {
            let [w0, w1, w2, w3] = blocks(key, counter);
            let ones = (0..BATCH as u64).map(|b| block(key, counter.wrapping_add(b)).map(u64::from));
            for (b, one) in ones.enumerate() {
                assert_eq!(one, [w0[b], w1[b], w2[b], w3[b]]);
            }
        }
    }

    #[test]
    fn functions_are_those_of_the_library() {
        let mut words = vec![0, 1, 2, LOW, LOW - 1, 1 << 29, (1 << 29) - 1, 1 << 30, 3 << 30, 5 << 29];
        words.extend((0..50_000).map(|i: u64| i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32));
        for word in words {
            let (part, turn) = ((word as f64 + 1.0) / 4_294_967_296.0, word as f64 / 4_294_967_296.0);
            let (ln, want) = (ln_of_part(word), part.ln());
            assert!((ln - want).abs() <= 2e-15 * want.abs(), "ln of {word}: {ln} for {want}");
            let (cos, want) = (cos_of_turn(word), (2.0 * std::f64::consts::PI * turn).cos());
            assert!((cos - want).abs() <= 1e-15, "cos of {word}: {cos} for {want}");
        }
    }
}
