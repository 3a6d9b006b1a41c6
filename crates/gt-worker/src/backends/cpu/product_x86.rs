//! The kernels of `product` for AVX2 and AVX-512.

// Rows, columns and registers are named by their numbers here.
#![allow(clippy::needless_range_loop)]

use super::{Mat, To, panels};
use std::arch::x86_64::*;

/// A vector register of the unit at hand.
pub trait Vector: Copy {
    type T: super::Float;
    type Mask: Copy;
    const LANES: usize;
    /// Rows of the largest tile, two vectors wide.
    const ROWS: usize;
    /// The first `n` lanes.
    unsafe fn mask(n: usize) -> Self::Mask;
    unsafe fn zero() -> Self;
    unsafe fn splat(at: *const Self::T) -> Self;
    unsafe fn load(at: *const Self::T) -> Self;
    unsafe fn load_some(at: *const Self::T, mask: Self::Mask) -> Self;
    unsafe fn store(self, at: *mut Self::T);
    unsafe fn store_some(self, at: *mut Self::T, mask: Self::Mask);
    /// `a * b + self`.
    unsafe fn fma(self, a: Self, b: Self) -> Self;
    unsafe fn plus(self, b: Self) -> Self;
    /// `to[p * step + j] = from[j * stride + p]` for `rows` of j and `cols` of p.
    unsafe fn turn(
        from: *const Self::T,
        stride: isize,
        to: *mut Self::T,
        step: usize,
        rows: usize,
        cols: usize,
    );
}

macro_rules! wide {
    ($v:ty, $t:ty, $mask:ty, $lanes:expr, $zero:ident $set:ident $load:ident $mload:ident $store:ident $mstore:ident $fma:ident $add:ident) => {
        impl Vector for $v {
            type T = $t;
            type Mask = $mask;
            const LANES: usize = $lanes;
            const ROWS: usize = 12;
            #[inline(always)]
            unsafe fn mask(n: usize) -> $mask {
                ((1u32 << n) - 1) as $mask
            }
            #[inline(always)]
            unsafe fn zero() -> $v {
                unsafe { $zero() }
            }
            #[inline(always)]
            unsafe fn splat(at: *const $t) -> $v {
                unsafe { $set(*at) }
            }
            #[inline(always)]
            unsafe fn load(at: *const $t) -> $v {
                unsafe { $load(at) }
            }
            #[inline(always)]
            unsafe fn load_some(at: *const $t, mask: $mask) -> $v {
                unsafe { $mload(mask, at) }
            }
            #[inline(always)]
            unsafe fn store(self, at: *mut $t) {
                unsafe { $store(at, self) }
            }
            #[inline(always)]
            unsafe fn store_some(self, at: *mut $t, mask: $mask) {
                unsafe { $mstore(at, mask, self) }
            }
            #[inline(always)]
            unsafe fn fma(self, a: $v, b: $v) -> $v {
                unsafe { $fma(a, b, self) }
            }
            #[inline(always)]
            unsafe fn plus(self, b: $v) -> $v {
                unsafe { $add(self, b) }
            }
            #[inline(always)]
            unsafe fn turn(
                from: *const $t,
                stride: isize,
                to: *mut $t,
                step: usize,
                rows: usize,
                cols: usize,
            ) {
                unsafe { Turn::turn(from, stride, to, step, rows, cols) }
            }
        }
    };
}

wide!(__m512, f32, __mmask16, 16, _mm512_setzero_ps _mm512_set1_ps _mm512_loadu_ps _mm512_maskz_loadu_ps
    _mm512_storeu_ps _mm512_mask_storeu_ps _mm512_fmadd_ps _mm512_add_ps);
wide!(__m512d, f64, __mmask8, 8, _mm512_setzero_pd _mm512_set1_pd _mm512_loadu_pd _mm512_maskz_loadu_pd
    _mm512_storeu_pd _mm512_mask_storeu_pd _mm512_fmadd_pd _mm512_add_pd);

macro_rules! narrow {
    ($v:ty, $t:ty, $lanes:expr, $table:ident, $zero:ident $set:ident $load:ident $mload:ident $store:ident $mstore:ident $fma:ident $add:ident) => {
        impl Vector for $v {
            type T = $t;
            type Mask = __m256i;
            const LANES: usize = $lanes;
            const ROWS: usize = 6;
            #[inline(always)]
            unsafe fn mask(n: usize) -> __m256i {
                unsafe { _mm256_loadu_si256($table.as_ptr().add($lanes - n) as *const __m256i) }
            }
            #[inline(always)]
            unsafe fn zero() -> $v {
                unsafe { $zero() }
            }
            #[inline(always)]
            unsafe fn splat(at: *const $t) -> $v {
                unsafe { $set(*at) }
            }
            #[inline(always)]
            unsafe fn load(at: *const $t) -> $v {
                unsafe { $load(at) }
            }
            #[inline(always)]
            unsafe fn load_some(at: *const $t, mask: __m256i) -> $v {
                unsafe { $mload(at, mask) }
            }
            #[inline(always)]
            unsafe fn store(self, at: *mut $t) {
                unsafe { $store(at, self) }
            }
            #[inline(always)]
            unsafe fn store_some(self, at: *mut $t, mask: __m256i) {
                unsafe { $mstore(at, mask, self) }
            }
            #[inline(always)]
            unsafe fn fma(self, a: $v, b: $v) -> $v {
                unsafe { $fma(a, b, self) }
            }
            #[inline(always)]
            unsafe fn plus(self, b: $v) -> $v {
                unsafe { $add(self, b) }
            }
            #[inline(always)]
            unsafe fn turn(
                from: *const $t,
                stride: isize,
                to: *mut $t,
                step: usize,
                rows: usize,
                cols: usize,
            ) {
                unsafe { Turn::turn(from, stride, to, step, rows, cols) }
            }
        }
    };
}

static ON32: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
static ON64: [i64; 8] = [-1, -1, -1, -1, 0, 0, 0, 0];

narrow!(__m256, f32, 8, ON32, _mm256_setzero_ps _mm256_set1_ps _mm256_loadu_ps _mm256_maskload_ps
    _mm256_storeu_ps _mm256_maskstore_ps _mm256_fmadd_ps _mm256_add_ps);
narrow!(__m256d, f64, 4, ON64, _mm256_setzero_pd _mm256_set1_pd _mm256_loadu_pd _mm256_maskload_pd
    _mm256_storeu_pd _mm256_maskstore_pd _mm256_fmadd_pd _mm256_add_pd);

/// Transposition into a panel.
trait Turn: Copy {
    unsafe fn turn(from: *const Self, stride: isize, to: *mut Self, step: usize, rows: usize, cols: usize);
}

#[inline(always)]
unsafe fn turn_plainly<T: Copy>(
    from: *const T,
    stride: isize,
    to: *mut T,
    step: usize,
    rows: std::ops::Range<usize>,
    cols: std::ops::Range<usize>,
) {
    for j in rows {
        for p in cols.clone() {
            // SAFETY: as the caller promises.
            unsafe { *to.add(p * step + j) = from.offset(j as isize * stride + p as isize).read_unaligned() };
        }
    }
}

impl Turn for f64 {
    #[inline(always)]
    unsafe fn turn(from: *const f64, stride: isize, to: *mut f64, step: usize, rows: usize, cols: usize) {
        unsafe { turn_plainly(from, stride, to, step, 0..rows, 0..cols) }
    }
}

impl Turn for f32 {
    #[inline(always)]
    unsafe fn turn(from: *const f32, stride: isize, to: *mut f32, step: usize, rows: usize, cols: usize) {
        let (whole_rows, whole_cols) = (rows / 8 * 8, cols / 8 * 8);
        // SAFETY: as the caller promises; squares of eight lie within both sides.
        unsafe {
            for p in (0..whole_cols).step_by(8) {
                for j in (0..whole_rows).step_by(8) {
                    let at = from.offset(j as isize * stride + p as isize);
                    turn_eight(at, stride, to.add(p * step + j), step);
                }
            }
            turn_plainly(from, stride, to, step, 0..whole_rows, whole_cols..cols);
            turn_plainly(from, stride, to, step, whole_rows..rows, 0..cols);
        }
    }
}

/// `to[p * step + j] = from[j * stride + p]` for `rows` of j and `cols` of p, of words whatever they mean.
///
/// # Safety
/// Both sides hold these elements.
#[target_feature(enable = "avx2")]
pub unsafe fn turn_words(
    from: *const f32,
    stride: isize,
    to: *mut f32,
    step: usize,
    rows: usize,
    cols: usize,
) {
    // SAFETY: passed on from the caller.
    unsafe { Turn::turn(from, stride, to, step, rows, cols) }
}

/// Transposes a square of eight.
#[inline(always)]
unsafe fn turn_eight(from: *const f32, stride: isize, to: *mut f32, step: usize) {
    // SAFETY: as the caller promises.
    unsafe {
        let row = |i: isize| _mm256_loadu_ps(from.offset(i * stride));
        let (r0, r1, r2, r3) = (row(0), row(1), row(2), row(3));
        let (r4, r5, r6, r7) = (row(4), row(5), row(6), row(7));
        let (a0, a1) = (_mm256_unpacklo_ps(r0, r1), _mm256_unpackhi_ps(r0, r1));
        let (a2, a3) = (_mm256_unpacklo_ps(r2, r3), _mm256_unpackhi_ps(r2, r3));
        let (a4, a5) = (_mm256_unpacklo_ps(r4, r5), _mm256_unpackhi_ps(r4, r5));
        let (a6, a7) = (_mm256_unpacklo_ps(r6, r7), _mm256_unpackhi_ps(r6, r7));
        let (b0, b1) = (_mm256_shuffle_ps::<0x44>(a0, a2), _mm256_shuffle_ps::<0xee>(a0, a2));
        let (b2, b3) = (_mm256_shuffle_ps::<0x44>(a1, a3), _mm256_shuffle_ps::<0xee>(a1, a3));
        let (b4, b5) = (_mm256_shuffle_ps::<0x44>(a4, a6), _mm256_shuffle_ps::<0xee>(a4, a6));
        let (b6, b7) = (_mm256_shuffle_ps::<0x44>(a5, a7), _mm256_shuffle_ps::<0xee>(a5, a7));
        _mm256_storeu_ps(to, _mm256_permute2f128_ps::<0x20>(b0, b4));
        _mm256_storeu_ps(to.add(step), _mm256_permute2f128_ps::<0x20>(b1, b5));
        _mm256_storeu_ps(to.add(2 * step), _mm256_permute2f128_ps::<0x20>(b2, b6));
        _mm256_storeu_ps(to.add(3 * step), _mm256_permute2f128_ps::<0x20>(b3, b7));
        _mm256_storeu_ps(to.add(4 * step), _mm256_permute2f128_ps::<0x31>(b0, b4));
        _mm256_storeu_ps(to.add(5 * step), _mm256_permute2f128_ps::<0x31>(b1, b5));
        _mm256_storeu_ps(to.add(6 * step), _mm256_permute2f128_ps::<0x31>(b2, b6));
        _mm256_storeu_ps(to.add(7 * step), _mm256_permute2f128_ps::<0x31>(b3, b7));
    }
}

/// `R` rows by `N` vectors of a result, over `k` terms. The last vector of a row has the lanes of `mask`.
#[inline(always)]
unsafe fn tile<V: Vector, const R: usize, const N: usize>(
    k: usize,
    a: Mat<V::T>,
    b: *const V::T,
    b_rs: isize,
    mask: V::Mask,
    c: &To<V::T>,
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
        // Three rows to a pointer: few enough to stay in registers.
        let mut heads = [a.at; 4];
        for (g, head) in heads.iter_mut().enumerate() {
            *head = head.wrapping_offset(3 * g as isize * a.rs);
        }
        let mut b = b;
        for _ in 0..k {
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
) {
    macro_rules! rows {
        ($($r:literal)*) => {
            // SAFETY: passed on from the caller.
            unsafe {
                match rows {
                    $($r if $r <= V::ROWS => tile::<V, $r, N>(k, a, b, b_rs, mask, c),)*
                    _ => {}
                }
            }
        };
    }
    rows!(1 2 3 4 5 6 7 8 9 10 11 12)
}

/// Rows and terms of a block: the left side of one stays in the second-level cache.
const BLOCK_ROWS: usize = 480;
const BLOCK_TERMS: usize = 256;

/// How many of the rows that are left a tile takes: no tile is left with a row or two if it can be helped.
#[inline(always)]
fn share(left: usize, most: usize) -> usize {
    if left >= 2 * most || left <= most { left.min(most) } else { left.div_ceil(2) }
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
        // Rows that lie multiples of a page apart fall on one another in the first-level cache.
        let gather = a.cs == 1 && n > 4 * width && (a.rs as usize * size).is_multiple_of(2048) && k >= 64;
        let copy = b.cs != 1 || (m >= 24 && b.rs as usize * size >= 1024);
        let panel = BLOCK_TERMS * width;
        let block = if gather { BLOCK_ROWS * BLOCK_TERMS } else { 0 };
        let room = if copy || gather { panels((panel + block) * size) as *mut V::T } else { c.at };
        let lefts = room.wrapping_add(panel);
        for top in (0..m).step_by(BLOCK_ROWS) {
            let rows = BLOCK_ROWS.min(m - top);
            for first in (0..k).step_by(BLOCK_TERMS) {
                let terms = BLOCK_TERMS.min(k - first);
                let last = first + terms == k;
                let part = a.from(top, first);
                if gather {
                    let mut i = 0;
                    while i < rows {
                        let r = share(rows - i, V::ROWS);
                        let to = lefts.add(i * BLOCK_TERMS);
                        V::turn(part.from(i, 0).at, a.rs, to, r, r, terms);
                        i += r;
                    }
                }
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
                        let left = match gather {
                            true => Mat::new(lefts.add(i * BLOCK_TERMS) as *const V::T, 1, r as isize),
                            false => part.from(i, 0),
                        };
                        let to = To {
                            at: c.at.add((top + i) * c.rs + col),
                            rs: c.rs,
                            add: c.add || first > 0,
                            bias: if last && !c.bias.is_null() { c.bias.add(col) } else { std::ptr::null() },
                        };
                        if wide {
                            tile_of::<V, 2>(r, terms, left, right, right_rs, mask, &to);
                        } else {
                            tile_of::<V, 1>(r, terms, left, right, right_rs, mask, &to);
                        }
                        i += r;
                    }
                }
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
unsafe fn few<V: Vector>(m: usize, n: usize, k: usize, a: Mat<V::T>, b: Mat<V::T>, c: &To<V::T>) {
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
