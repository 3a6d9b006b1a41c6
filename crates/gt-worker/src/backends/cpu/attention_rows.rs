//! What attention does to rows of scores: softmax and its gradient, masks, sums.

use super::super::convert::widen;
use super::super::isa::per_isa;
#[cfg(target_arch = "x86_64")]
use super::{super::isa, wide};
use super::{LANES, Num, View};
use gt_ir::DType;
use std::ops::Range;

/// Halves of the lanes meet until one is left.
#[inline(always)]
pub fn fold<T: Num>(lanes: [T; LANES], f: impl Fn(T, T) -> T) -> T {
    let lanes: [T; 8] = std::array::from_fn(|i| f(lanes[i], lanes[i + 8]));
    let lanes: [T; 4] = std::array::from_fn(|i| f(lanes[i], lanes[i + 4]));
    let lanes: [T; 2] = std::array::from_fn(|i| f(lanes[i], lanes[i + 2]));
    f(lanes[0], lanes[1])
}

#[inline(always)]
pub fn larger<T: Num>(a: T, b: T) -> T {
    if b > a { b } else { a }
}

/// Which of `n` keys the rows of a block see: row i the first `first + i * step`.
#[derive(Clone, Copy)]
pub struct Visible {
    pub n: usize,
    pub first: isize,
    pub step: isize,
}

impl Visible {
    #[inline(always)]
    pub fn of(&self, i: usize) -> usize {
        (self.first + i as isize * self.step).clamp(0, self.n as isize) as usize
    }
}

/// A row of whole vectors.
#[inline(always)]
unsafe fn lanes<'a, T>(x: *mut T, n: usize) -> &'a mut [[T; LANES]] {
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts_mut(x as *mut [T; LANES], n.div_ceil(LANES)) }
}

/// Turns rows of scores into exponentials of their distances to the largest of the row; what is not seen, and the rest of
/// the last vector, becomes zero.
///
/// # Safety
/// The rows hold whole vectors, which nobody else touches.
pub unsafe fn soften<T: Num>(
    x: *mut T,
    rows: usize,
    pitch: usize,
    seen: Visible,
    scale: T,
    tops: *mut T,
    sums: *mut T,
) {
    #[cfg(target_arch = "x86_64")]
    if let (Some(scale), 3) = (scale.single(), isa::level()) {
        // SAFETY: numbers are singles, the level was detected, and the rest is passed on from the caller.
        return unsafe {
            wide::soften(x as *mut f32, rows, pitch, seen, scale, tops as *mut f32, sums as *mut f32)
        };
    }
    // SAFETY: passed on from the caller.
    unsafe { soften_plain(x, rows, pitch, seen, scale, tops, sums) }
}

per_isa! {
    /// The same anywhere.
    unsafe fn soften_plain<T: Num>(x: *mut T, rows: usize, pitch: usize, seen: Visible, scale: T, tops: *mut T, sums: *mut T) {
        for i in 0..rows {
            let visible = seen.of(i);
            // SAFETY: passed on from the caller.
            let row = unsafe { lanes(x.add(i * pitch), seen.n) };
            // All rows of a block take the same steps, which the processor foresees.
            let mut top = [T::LOWEST; LANES];
            for (c, chunk) in row.iter_mut().enumerate() {
                let left = visible as i32 - (c * LANES) as i32;
                for (j, x) in chunk.iter_mut().enumerate() {
                    let score = *x * scale;
                    *x = if (j as i32) < left { score } else { T::LOWEST };
                }
                for j in 0..LANES {
                    top[j] = larger(top[j], chunk[j]);
                }
            }
            let top = fold(top, larger);
            let from = if top == T::LOWEST { T::default() } else { top };
            let mut sum = [T::default(); LANES];
            for chunk in row.iter_mut() {
                for j in 0..LANES {
                    chunk[j] = (chunk[j] - from).exp();
                    sum[j] = sum[j] + chunk[j];
                }
            }
            // SAFETY: passed on from the caller.
            unsafe {
                *tops.add(i) = top;
                *sums.add(i) = fold(sum, |a, b| a + b);
            }
        }
    }
}

per_isa! {
    /// Turns scores into probabilities by what `lse` says of their rows, and gradients of probabilities into those of
    /// scores before the scale; both are zero where nothing is seen.
    pub unsafe fn harden<T: Num>(
        p: *mut T, d: *mut T, rows: usize, pitch: usize, seen: Visible, scales: (T, T), lse: *const T, delta: *const T,
    ) {
        for i in 0..rows {
            let visible = seen.of(i);
            // SAFETY: passed on from the caller.
            let (p, d, lse, delta) = unsafe {
                let at = i * pitch;
                (lanes(p.add(at), seen.n), lanes(d.add(at), seen.n), *lse.add(i), *delta.add(i))
            };
            let whole = visible / LANES;
            for (p, d) in p[..whole].iter_mut().zip(&mut d[..whole]) {
                for j in 0..LANES {
                    p[j] = (p[j] * scales.0 - lse).exp();
                    d[j] = p[j] * (d[j] - delta) * scales.1;
                }
            }
            for (p, d) in p[whole..].iter_mut().zip(&mut d[whole..]).take(1) {
                for j in 0..LANES {
                    let on = j < visible % LANES;
                    let e = (p[j] * scales.0 - lse).exp();
                    let f = e * (d[j] - delta) * scales.1;
                    p[j] = if on { e } else { T::default() };
                    d[j] = if on { f } else { T::default() };
                }
            }
            for (p, d) in p[whole..].iter_mut().zip(&mut d[whole..]).skip(1) {
                *p = [T::default(); LANES];
                *d = [T::default(); LANES];
            }
        }
    }
}

per_isa! {
    /// Multiplies a row.
    pub unsafe fn times_row<T: Num>(x: *mut T, n: usize, by: T) {
        // SAFETY: passed on from the caller.
        for x in unsafe { std::slice::from_raw_parts_mut(x, n) } {
            *x = *x * by;
        }
    }
}

per_isa! {
    /// `y[i] = y[i] * f + x[i] * g`.
    pub unsafe fn blend_row<T: Num>(y: *mut T, x: *const T, n: usize, f: T, g: T) {
        // SAFETY: passed on from the caller.
        let (x, y) = unsafe { (std::slice::from_raw_parts(x, n), std::slice::from_raw_parts_mut(y, n)) };
        for (y, &x) in y.iter_mut().zip(x) {
            *y = *y * f + x * g;
        }
    }
}

per_isa! {
    /// Divides rows by their sums, and turns the sums into `lse`.
    pub unsafe fn divide<T: Num>(x: *mut T, rows: usize, pitch: usize, width: usize, tops: *const T, sums: *mut T) {
        // SAFETY: passed on from the caller.
        unsafe {
            for i in 0..rows {
                let (top, sum) = (*tops.add(i), *sums.add(i));
                let by = if top == T::LOWEST { T::default() } else { T::ONE / sum };
                for x in std::slice::from_raw_parts_mut(x.add(i * pitch), width) {
                    *x = *x * by;
                }
            }
            for i in 0..rows {
                let (top, sum) = (*tops.add(i), *sums.add(i));
                let lse = top + sum.log();
                *sums.add(i) = if top == T::LOWEST { T::LOWEST } else { lse };
            }
        }
    }
}

/// Scalar products of rows.
///
/// # Safety
/// The rows hold these elements.
pub unsafe fn deltas<T: Num>(
    a: *const T,
    b: *const T,
    pitches: (usize, usize),
    rows: usize,
    width: usize,
    out: *mut T,
) {
    #[cfg(target_arch = "x86_64")]
    if T::ONE.single().is_some() && width.is_multiple_of(LANES) && isa::level() == 3 {
        // SAFETY: numbers are singles, the level was detected, and the rest is passed on from the caller.
        return unsafe {
            wide::deltas(a as *const f32, b as *const f32, pitches, rows, width, out as *mut f32)
        };
    }
    // SAFETY: passed on from the caller.
    unsafe { deltas_plain(a, b, pitches, rows, width, out) }
}

per_isa! {
    /// The same anywhere.
    unsafe fn deltas_plain<T: Num>(a: *const T, b: *const T, pitches: (usize, usize), rows: usize, width: usize, out: *mut T) {
        // SAFETY: passed on from the caller.
        unsafe {
            for i in 0..rows {
                let a = std::slice::from_raw_parts(a.add(i * pitches.0), width);
                let b = std::slice::from_raw_parts(b.add(i * pitches.1), width);
                let mut sums = [T::default(); LANES];
                let (mut ca, mut cb) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
                for (a, b) in (&mut ca).zip(&mut cb) {
                    for j in 0..LANES {
                        sums[j] = sums[j] + a[j] * b[j];
                    }
                }
                for (j, (&a, &b)) in ca.remainder().iter().zip(cb.remainder()).enumerate() {
                    sums[j] = sums[j] + a * b;
                }
                *out.add(i) = fold(sums, |a, b| a + b);
            }
        }
    }
}

/// Puts the mask on a row of scaled scores, keys `keys` of query `t`.
pub unsafe fn mask_row<T: Num>(mask: &View, (b, h): (usize, usize), t: usize, keys: Range<usize>, x: *mut T) {
    let step = mask.strides[3];
    let n = keys.len();
    let first = mask.row(b, h, t).wrapping_offset(keys.start as isize * step * mask.dtype.size() as isize);
    // SAFETY: the mask shows these keys, the row holds them.
    unsafe {
        let x = std::slice::from_raw_parts_mut(x, n);
        match mask.dtype {
            DType::Bool => {
                for (j, x) in x.iter_mut().enumerate() {
                    *x = if *first.offset(j as isize * step) != 0 { *x } else { T::LOWEST };
                }
            }
            DType::F64 => {
                for (j, x) in x.iter_mut().enumerate() {
                    *x = *x + T::of(*(first as *const f64).offset(j as isize * step));
                }
            }
            DType::F32 => {
                for (j, x) in x.iter_mut().enumerate() {
                    *x = *x + T::of(*(first as *const f32).offset(j as isize * step) as f64);
                }
            }
            _ => {
                let (mut raw, mut wide) = ([0u16; 64], [0f32; 64]);
                for (c, x) in x.chunks_mut(64).enumerate() {
                    for (j, raw) in raw.iter_mut().enumerate().take(x.len()) {
                        *raw = *(first as *const u16).offset((c * 64 + j) as isize * step);
                    }
                    widen(mask.dtype, raw.as_ptr() as *const u8, wide.as_mut_ptr() as *mut u8, x.len());
                    x.iter_mut().zip(&wide).for_each(|(x, &m)| *x = *x + T::of(m as f64));
                }
            }
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    /// Scores with numbers of all sizes, and some that are none.
    fn scores(n: usize) -> Vec<f32> {
        let mut u = 7u32;
        let mut next = || {
            u = u.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (u >> 8) as f32 / (1 << 21) as f32 - 4.0
        };
        let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 1e-40, -300.0];
        (0..n).map(|i| if i % 97 == 96 { odd[i / 97 % odd.len()] } else { next() }).collect()
    }

    #[test]
    fn registers_give_the_bits_of_the_plain_loops() {
        if isa::level() < 3 {
            return;
        }
        let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        for (n, first, step) in
            [(64usize, 1, 1), (48, 48, 0), (37, 5, 1), (16, -3, 1), (100, 90, 1), (7, 7, 0)]
        {
            let (rows, pitch) = (32, n.next_multiple_of(LANES));
            let seen = Visible { n, first, step };
            let mut made = [0, 1].map(|_| (scores(rows * pitch), vec![0f32; rows], vec![0f32; rows]));
            for (i, (x, tops, sums)) in made.iter_mut().enumerate() {
                let (x, tops, sums) = (x.as_mut_ptr(), tops.as_mut_ptr(), sums.as_mut_ptr());
                // SAFETY: rows are `pitch` long, and there is one number of each kind for every row.
                unsafe {
                    match i {
                        0 => soften(x, rows, pitch, seen, 0.3, tops, sums),
                        _ => soften_plain(x, rows, pitch, seen, 0.3, tops, sums),
                    }
                }
            }
            let [a, b] = made.map(|(x, tops, sums)| [bits(&x), bits(&tops), bits(&sums)]);
            assert!(a == b, "{n} columns, {first} seen first");
        }
        let (a, b) = (scores(32 * 64), scores(33 * 64));
        let mut made = [vec![0f32; 32], vec![0f32; 32]];
        // SAFETY: rows of both are 64 long.
        unsafe {
            deltas(a.as_ptr(), b.as_ptr().add(5), (64, 64), 32, 48, made[0].as_mut_ptr());
            deltas_plain(a.as_ptr(), b.as_ptr().add(5), (64, 64), 32, 48, made[1].as_mut_ptr());
        }
        assert_eq!(bits(&made[0]), bits(&made[1]));
    }
}
