//! The kernels of `product` for AVX2 and AVX-512.

// Rows, columns and registers are named by their numbers here.
#![allow(clippy::needless_range_loop)]

use super::{Mat, To, panels};
use std::arch::x86_64::*;

#[path = "product_few.rs"]
mod few;
#[path = "product_vector.rs"]
mod vector;

use few::few;
use vector::Vector;
pub use vector::turn_words;

/// What a tile fetches while it computes, a cache line for each term: lines of the next block of the left side.
#[derive(Clone, Copy)]
struct Ahead {
    at: *const i8,
    /// Bytes from a line to the next.
    step: isize,
}

impl Ahead {
    /// The lines for tile `t` of a block of `rows` rows, whose left side goes on at `next`.
    #[inline(always)]
    fn new<T>(next: Mat<T>, t: usize, rows: usize) -> Option<Ahead> {
        let size = std::mem::size_of::<T>();
        let first = t * (LINE / size);
        let step = match (next.rs, next.cs) {
            (1, step) if first < rows => step,
            (step, 1) if first < BLOCK_TERMS => step,
            _ => return None,
        };
        Some(Ahead { at: next.at.wrapping_add(first) as *const i8, step: step * size as isize })
    }
}

/// `R` rows by `N` vectors of a result, over `k` terms. The last vector of a row has the lanes of `mask`. If `fetch`, the
/// result is fetched while its sums are made.
#[inline(always)]
unsafe fn tile<V: Vector, const R: usize, const N: usize, const AHEAD: bool>(
    k: usize,
    a: Mat<V::T>,
    b: *const V::T,
    b_rs: isize,
    mask: V::Mask,
    c: &To<V::T>,
    fetch: bool,
    ahead: Option<Ahead>,
) {
    // SAFETY: as the caller of `product` promises.
    unsafe {
        let mut sums = [[V::zero(); N]; R];
        let at = |i: usize, j: usize| c.at.add(i * c.rs + j * V::LANES);
        if c.add {
            for (i, row) in sums.iter_mut().enumerate() {
                for (j, sum) in row.iter_mut().enumerate() {
                    *sum = if j == N - 1 { V::load_some(at(i, j), mask) } else { V::load(at(i, j)) };
                }
            }
        }
        if fetch && !c.add {
            // The lines of the result are there when they are written.
            for i in 0..R {
                for j in 0..N {
                    _mm_prefetch::<_MM_HINT_ET0>(at(i, j) as *const i8);
                }
            }
        }
        // Three rows to a pointer: few enough to stay in registers.
        let mut heads = [a.at; 4];
        for (g, head) in heads.iter_mut().enumerate() {
            *head = head.wrapping_offset(3 * g as isize * a.rs);
        }
        let mut b = b;
        let mut ahead = ahead.unwrap_or(Ahead { at: std::ptr::null(), step: 0 });
        for _ in 0..k {
            if AHEAD {
                _mm_prefetch::<_MM_HINT_T1>(ahead.at);
                ahead.at = ahead.at.wrapping_offset(ahead.step);
            }
            let mut line = [V::zero(); N];
            for (j, x) in line.iter_mut().enumerate() {
                let at = b.wrapping_add(j * V::LANES);
                *x = if j == N - 1 { V::load_some(at, mask) } else { V::load(at) };
            }
            for i in 0..R {
                let x = V::splat(heads[i / 3].wrapping_offset((i % 3) as isize * a.rs));
                for j in 0..N {
                    sums[i][j] = sums[i][j].fma(x, line[j]);
                }
            }
            for head in heads.iter_mut().take(R.div_ceil(3)) {
                *head = head.wrapping_offset(a.cs);
            }
            b = b.wrapping_offset(b_rs);
        }
        if !c.bias.is_null() {
            for j in 0..N {
                let at = c.bias.add(j * V::LANES);
                let x = if j == N - 1 { V::load_some(at, mask) } else { V::load(at) };
                for row in sums.iter_mut() {
                    row[j] = row[j].plus(x);
                }
            }
        }
        for (i, row) in sums.iter().enumerate() {
            for (j, sum) in row.iter().enumerate() {
                if j == N - 1 { sum.store_some(at(i, j), mask) } else { sum.store(at(i, j)) }
            }
        }
    }
}

/// A tile of `rows` rows.
#[inline(always)]
unsafe fn tile_of<V: Vector, const N: usize>(
    rows: usize,
    k: usize,
    a: Mat<V::T>,
    b: *const V::T,
    b_rs: isize,
    mask: V::Mask,
    c: &To<V::T>,
    fetch: bool,
    ahead: Option<Ahead>,
) {
    macro_rules! rows {
        ($($r:literal)*) => {
            // SAFETY: passed on from the caller.
            unsafe {
                match rows {
                    // Most tiles are whole; the others need not fetch.
                    12 if V::ROWS == 12 && ahead.is_some() => tile::<V, 12, N, true>(k, a, b, b_rs, mask, c, fetch, ahead),
                    6 if V::ROWS == 6 && ahead.is_some() => tile::<V, 6, N, true>(k, a, b, b_rs, mask, c, fetch, ahead),
                    $($r if $r <= V::ROWS => tile::<V, $r, N, false>(k, a, b, b_rs, mask, c, fetch, None),)*
                    _ => {}
                }
            }
        };
    }
    rows!(1 2 3 4 5 6 7 8 9 10 11 12)
}

/// Rows and terms of a block: the left side of one stays in the second-level cache.
const BLOCK_ROWS: usize = 528;
const BLOCK_TERMS: usize = 256;
/// Bytes of a result that is not in the second-level cache when it is written.
const LARGE: usize = 128 << 10;
/// Bytes of a cache line.
const LINE: usize = 64;

/// How many of the rows that are left a tile takes: no tile is left with a row or two if it can be helped.
#[inline(always)]
fn share(left: usize, most: usize) -> usize {
    if left >= 2 * most || left <= most { left.min(most) } else { left.div_ceil(2) }
}

/// True if rows of the left side are to be copied before tiles read them: rows that lie multiples of a page apart fall on
/// one another in the first-level cache.
#[inline(always)]
fn aliased<T>(a: &Mat<T>, n: usize, k: usize, width: usize) -> bool {
    let step = a.rs.unsigned_abs() * std::mem::size_of::<T>();
    a.cs == 1 && step.is_multiple_of(4096) && n >= 2 * width && k >= 64
}

#[inline(always)]
unsafe fn product<V: Vector>(m: usize, n: usize, k: usize, a: Mat<V::T>, b: Mat<V::T>, c: &To<V::T>) {
    let size = std::mem::size_of::<V::T>();
    // SAFETY: as the caller of `super::product` promises.
    unsafe {
        if m <= super::FEW && k >= super::LONG {
            return few::<V>(m, n, k, a, b, c);
        }
        let width = 2 * V::LANES;
        let copy = b.cs != 1 || (m >= 24 && b.rs as usize * size >= 1024);
        let panel = BLOCK_TERMS * width;
        // A cache line more than the terms, so that the rows of the copy begin in different sets.
        let pitch = BLOCK_TERMS + LINE / size;
        let pack = aliased(&a, n, k, width);
        let block = if pack { BLOCK_ROWS * pitch } else { 0 };
        let room = if copy || pack { panels((panel + block) * size) as *mut V::T } else { c.at };
        let lefts = room.wrapping_add(panel);
        let fetch = m * n * size >= LARGE;
        let most = m.div_ceil(m.div_ceil(BLOCK_ROWS)).next_multiple_of(V::ROWS);
        for top in (0..m).step_by(most) {
            let rows = most.min(m - top);
            for first in (0..k).step_by(BLOCK_TERMS) {
                let terms = BLOCK_TERMS.min(k - first);
                let last = first + terms == k;
                let mut left = a.from(top, first);
                if pack {
                    copy_lines::<V>(left, lefts, pitch, rows, terms);
                    left = Mat::new(lefts, pitch as isize, 1);
                }
                let next = (!last).then(|| a.from(top, first + terms));
                let mut done = 0;
                for col in (0..n).step_by(width) {
                    let cols = width.min(n - col);
                    let from = b.from(first, col);
                    let (right, right_rs) =
                        if copy { (room as *const V::T, width as isize) } else { (from.at, b.rs) };
                    if copy {
                        fill::<V>(from, room, width, terms, cols);
                    }
                    let wide = cols > V::LANES;
                    let mask = V::mask(if wide { cols - V::LANES } else { cols });
                    let mut i = 0;
                    while i < rows {
                        let r = share(rows - i, V::ROWS);
                        let to = To {
                            at: c.at.add((top + i) * c.rs + col),
                            rs: c.rs,
                            add: c.add || first > 0,
                            bias: if last && !c.bias.is_null() { c.bias.add(col) } else { std::ptr::null() },
                        };
                        let ahead = next.and_then(|next| Ahead::new(next, done, rows));
                        if wide {
                            tile_of::<V, 2>(
                                r,
                                terms,
                                left.from(i, 0),
                                right,
                                right_rs,
                                mask,
                                &to,
                                fetch,
                                ahead,
                            );
                        } else {
                            tile_of::<V, 1>(
                                r,
                                terms,
                                left.from(i, 0),
                                right,
                                right_rs,
                                mask,
                                &to,
                                fetch,
                                ahead,
                            );
                        }
                        i += r;
                        done += 1;
                    }
                }
            }
        }
    }
}

/// Copies rows of `n` elements.
#[inline(always)]
unsafe fn copy_lines<V: Vector>(from: Mat<V::T>, to: *mut V::T, pitch: usize, rows: usize, n: usize) {
    let whole = n / V::LANES * V::LANES;
    // SAFETY: as the caller promises; the pitch has room for whole vectors.
    unsafe {
        let mask = V::mask(n - whole);
        for i in 0..rows {
            let (from, to) = (from.from(i, 0).at, to.add(i * pitch));
            for j in (0..whole).step_by(V::LANES) {
                V::load(from.add(j)).store(to.add(j));
            }
            if whole < n {
                V::load_some(from.add(whole), mask).store(to.add(whole));
            }
        }
    }
}

/// Copies `terms` rows of `cols` columns into a panel `width` wide.
#[inline(always)]
unsafe fn fill<V: Vector>(from: Mat<V::T>, to: *mut V::T, width: usize, terms: usize, cols: usize) {
    // SAFETY: as the caller promises.
    unsafe {
        if from.rs == 1 {
            V::turn(from.at, from.cs, to, width, cols, terms);
        } else if from.cs == 1 {
            let wide = cols > V::LANES;
            let mask = V::mask(if wide { cols - V::LANES } else { cols });
            for p in 0..terms {
                let (row, to) = (from.at.offset(p as isize * from.rs), to.add(p * width));
                if wide {
                    V::load(row).store(to);
                    V::load_some(row.add(V::LANES), mask).store(to.add(V::LANES));
                } else {
                    V::load_some(row, mask).store(to);
                }
            }
        } else {
            for p in 0..terms {
                for j in 0..cols {
                    *to.add(p * width + j) = *from.from(p, j).at;
                }
            }
        }
    }
}

macro_rules! entry {
    ($($name:ident $v:ty, $t:ty, $features:literal;)*) => {$(
        #[target_feature(enable = $features)]
        pub unsafe fn $name(m: usize, n: usize, k: usize, a: Mat<$t>, b: Mat<$t>, c: &To<$t>) {
            // SAFETY: passed on from the caller.
            unsafe { product::<$v>(m, n, k, a, b, c) }
        }
    )*};
}

entry! {
    f32_v4 __m512, f32, "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl";
    f64_v4 __m512d, f64, "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl";
    f32_v3 __m256, f32, "avx2,fma";
    f64_v3 __m256d, f64, "avx2,fma";
}
