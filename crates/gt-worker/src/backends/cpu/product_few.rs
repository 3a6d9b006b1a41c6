//! Products of a few rows, which are bound by memory: every way of lying has the same sums.

// Rows, columns and registers are named by their numbers here.
#![allow(clippy::needless_range_loop)]

use super::super::{Mat, To, panels};
use super::vector::Vector;

/// A few rows times a matrix that lies as it is read. The sums are those of `dots`: term `p` goes to partial sum
/// `p % LANES` of the widest unit, and rows of the matrix that share one are taken together.
#[inline(always)]
unsafe fn sweep<V: Vector>(m: usize, n: usize, k: usize, a: Mat<V::T>, b: Mat<V::T>, c: &To<V::T>) {
    /// Columns of a stretch; its partial sums stay in the first-level cache.
    const STRETCH: usize = 256;
    let parts = 64 / std::mem::size_of::<V::T>();
    // SAFETY: as the caller of `super::product` promises.
    unsafe {
        let sums = panels(64 * STRETCH) as *mut V::T;
        for col in (0..n).step_by(STRETCH) {
            let cols = STRETCH.min(n - col);
            let whole = cols / V::LANES * V::LANES;
            let mask = V::mask(cols - whole);
            for i in 0..m {
                for first in (0..k).step_by(4 * parts) {
                    for part in 0..parts.min(k - first) {
                        let p = first + part;
                        let sum = sums.add(part * STRETCH);
                        let from = b.from(p, col).at;
                        let step = parts as isize * b.rs;
                        let left = a.from(i, p);
                        macro_rules! go {
                            ($terms:literal) => {{
                                let mut x = [V::zero(); $terms];
                                for (q, x) in x.iter_mut().enumerate() {
                                    *x = V::splat(left.from(0, q * parts).at);
                                }
                                let mut j = 0;
                                while j < whole {
                                    let mut s = if first > 0 { V::load(sum.add(j)) } else { V::zero() };
                                    for (q, x) in x.iter().enumerate() {
                                        s = s.fma(*x, V::load(from.offset(q as isize * step).add(j)));
                                    }
                                    s.store(sum.add(j));
                                    j += V::LANES;
                                }
                                if whole < cols {
                                    let mut s = if first > 0 { V::load(sum.add(whole)) } else { V::zero() };
                                    for (q, x) in x.iter().enumerate() {
                                        let at = from.offset(q as isize * step).add(whole);
                                        s = s.fma(*x, V::load_some(at, mask));
                                    }
                                    s.store(sum.add(whole));
                                }
                            }};
                        }
                        match (k - p).div_ceil(parts) {
                            1 => go!(1),
                            2 => go!(2),
                            3 => go!(3),
                            _ => go!(4),
                        }
                    }
                }
                let used = parts.min(k);
                let to = c.at.add(i * c.rs + col);
                for j in (0..cols).step_by(V::LANES) {
                    let mut all = [V::zero(); 16];
                    for (part, x) in all.iter_mut().enumerate().take(used) {
                        *x = V::load(sums.add(part * STRETCH + j));
                    }
                    let mut half = parts / 2;
                    while half > 0 {
                        for q in 0..half {
                            all[q] = all[q].plus(all[q + half]);
                        }
                        half /= 2;
                    }
                    let mask = V::mask((cols - j).min(V::LANES));
                    let mut sum = all[0];
                    if c.add {
                        sum = V::load_some(to.add(j), mask).plus(sum);
                    }
                    if !c.bias.is_null() {
                        sum = sum.plus(V::load_some(c.bias.add(col + j), mask));
                    }
                    sum.store_some(to.add(j), mask);
                }
            }
        }
    }
}

/// `R` rows times `C` columns, both contiguous: scalar products, each of 64 bytes of partial sums.
#[inline(always)]
unsafe fn dot<V: Vector, const R: usize, const C: usize>(
    k: usize,
    a: Mat<V::T>,
    b: Mat<V::T>,
    out: &mut [[V::T; 4]; 4],
) {
    // Two registers stand for one of the widest unit, so that the bits are the same.
    let halves = 64 / (V::LANES * std::mem::size_of::<V::T>());
    // SAFETY: as the caller of `super::product` promises.
    unsafe {
        let mut sums = [[[V::zero(); 2]; C]; R];
        let lanes = V::LANES * halves;
        let whole = k / lanes * lanes;
        let mut p = 0;
        while p < whole {
            for h in 0..halves {
                let at = p + h * V::LANES;
                let mut left = [V::zero(); R];
                for (i, x) in left.iter_mut().enumerate() {
                    *x = V::load(a.at.offset(i as isize * a.rs).add(at));
                }
                for j in 0..C {
                    let y = V::load(b.at.offset(j as isize * b.cs).add(at));
                    for i in 0..R {
                        sums[i][j][h] = sums[i][j][h].fma(left[i], y);
                    }
                }
            }
            p += lanes;
        }
        for h in 0..halves {
            let at = whole + h * V::LANES;
            if at >= k {
                break;
            }
            let mask = V::mask((k - at).min(V::LANES));
            for j in 0..C {
                let y = V::load_some(b.at.offset(j as isize * b.cs).add(at), mask);
                for i in 0..R {
                    let x = V::load_some(a.at.offset(i as isize * a.rs).add(at), mask);
                    sums[i][j][h] = sums[i][j][h].fma(x, y);
                }
            }
        }
        for i in 0..R {
            for j in 0..C {
                let mut all = [V::T::default(); 16];
                for h in 0..halves {
                    sums[i][j][h].store(all.as_mut_ptr().add(h * V::LANES));
                }
                let mut half = lanes / 2;
                while half > 0 {
                    for q in 0..half {
                        all[q] = all[q] + all[q + half];
                    }
                    half /= 2;
                }
                out[i][j] = all[0];
            }
        }
    }
}

/// At most `FEW` rows: the sums of `dots`, however the operands lie.
#[inline(always)]
pub unsafe fn few<V: Vector>(m: usize, n: usize, k: usize, a: Mat<V::T>, b: Mat<V::T>, c: &To<V::T>) {
    // SAFETY: as the caller of `super::product` promises.
    unsafe {
        if b.cs == 1 && (n > 1 || b.rs != 1) {
            return sweep::<V>(m, n, k, a, b, c);
        }
        if b.rs == 1 && a.cs == 1 {
            return dots::<V>(m, n, k, a, b, c);
        }
        // One row of the left side, and a column at a time of the right, made contiguous.
        let mut left = vec![V::T::default(); k];
        let mut right = vec![V::T::default(); if b.rs == 1 { 0 } else { k }];
        for i in 0..m {
            for (p, x) in left.iter_mut().enumerate() {
                *x = *a.from(i, p).at;
            }
            let (rows, to) = (Mat::new(left.as_ptr(), 0, 1), c.at.add(i * c.rs));
            if b.rs == 1 {
                dots::<V>(1, n, k, rows, b, &To { at: to, ..*c });
                continue;
            }
            for j in 0..n {
                for (p, y) in right.iter_mut().enumerate() {
                    *y = *b.from(p, j).at;
                }
                let bias = if c.bias.is_null() { c.bias } else { c.bias.add(j) };
                let column = Mat::new(right.as_ptr(), 1, 0);
                dots::<V>(1, 1, k, rows, column, &To { at: to.add(j), bias, ..*c });
            }
        }
    }
}

/// A few rows times a turned matrix.
#[inline(always)]
unsafe fn dots<V: Vector>(m: usize, n: usize, k: usize, a: Mat<V::T>, b: Mat<V::T>, c: &To<V::T>) {
    let mut out = [[V::T::default(); 4]; 4];
    // SAFETY: as the caller of `super::product` promises.
    unsafe {
        for i in (0..m).step_by(2) {
            for j in (0..n).step_by(4) {
                let (rows, cols) = (2.min(m - i), 4.min(n - j));
                let (left, right) = (a.from(i, 0), b.from(0, j));
                match (rows, cols) {
                    (1, 4) => dot::<V, 1, 4>(k, left, right, &mut out),
                    (_, 4) => dot::<V, 2, 4>(k, left, right, &mut out),
                    _ => {
                        for r in 0..rows {
                            for q in 0..cols {
                                let mut one = [[V::T::default(); 4]; 4];
                                dot::<V, 1, 1>(k, left.from(r, 0), right.from(0, q), &mut one);
                                out[r][q] = one[0][0];
                            }
                        }
                    }
                }
                for (r, row) in out.iter().enumerate().take(rows) {
                    for (q, &sum) in row.iter().enumerate().take(cols) {
                        let to = c.at.add((i + r) * c.rs + j + q);
                        let sum = if c.add { *to + sum } else { sum };
                        *to = if c.bias.is_null() { sum } else { sum + *c.bias.add(j + q) };
                    }
                }
            }
        }
    }
}
