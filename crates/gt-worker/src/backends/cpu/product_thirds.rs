//! Products of f32 by the tiles of AMX, which multiply bf16 and add in f32. The 24 bits of a number are three numbers of bf16
//! with eight each, its thirds; of the nine products of thirds the six that reach into the bits of an f32 are added up. The
//! other three are below 2^-23 of the product, and sums of 32 terms are rounded less often than a chain of multiply-adds
//! rounds, so that results are no less exact than those of `product`.
//!
//! Thirds of numbers that are very large are not finite and those of very small ones vanish: rows of the left side and columns of
//! the right one with such numbers are multiplied by `chains` instead. Which those are depends on each of them alone, and sums
//! are in order of their terms, so how a product is cut into rows and columns does not change a bit.

use super::{Mat, To, chains, turn_words};
use crate::backends::cpu::amx::{TERMS, TILE, Tiles};
use crate::backends::cpu::product_half::room;
use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;

/// Rows and columns that are multiplied at a time: two registers.
pub const WIDE: usize = 2 * TILE;
/// Elements of a register of thirds, and of all thirds of sixteen lines of 32 terms.
const THIRD: usize = TILE * TERMS;
const CHUNK: usize = 3 * THIRD;
/// Terms of a block, and rows: their thirds stay in the second-level cache.
const BLOCK_TERMS: usize = 256;
const BLOCK_ROWS: usize = 512;

/// The largest number of a line as bits: lines from `LARGE` on have numbers whose products or thirds may overflow, below `SMALL`
/// (and not zero) there are only such whose products' last thirds vanish.
const LARGE: u32 = (127 + 60) << 23;
const SMALL: u32 = (127 - 48) << 23;

fn is_odd(largest: u32) -> bool {
    largest >= LARGE || (largest != 0 && largest < SMALL)
}

/// The thirds of two vectors of numbers, those of the second in the upper halves of words.
#[inline(always)]
unsafe fn thirds(x: [__m512; 2]) -> [__m512i; 3] {
    // SAFETY: there is AVX-512.
    unsafe {
        let (half, upper) = (_mm512_set1_epi32(0x8000), _mm512_set1_epi32(0xffff_0000u32 as i32));
        // To the nearest of bf16; what is left is exact.
        let third = |x: __m512| {
            let bits = _mm512_add_epi32(_mm512_castps_si512(x), half);
            let third = _mm512_and_si512(bits, upper);
            (third, _mm512_sub_ps(x, _mm512_castsi512_ps(third)))
        };
        let both = |low: __m512i, high: __m512i| _mm512_or_si512(_mm512_srli_epi32::<16>(low), high);
        let ((a, x), (b, y)) = (third(x[0]), third(x[1]));
        let ((c, x), (d, y)) = (third(x), third(y));
        // These have eight bits, of which none is rounded off.
        let last = both(_mm512_castps_si512(x), _mm512_and_si512(_mm512_castps_si512(y), upper));
        [both(a, b), both(c, d), last]
    }
}

/// The larger bits of three, signs aside.
#[inline(always)]
unsafe fn larger(most: __m512i, x: [__m512; 2]) -> __m512i {
    // SAFETY: there is AVX-512.
    unsafe {
        let bits = |x: __m512| _mm512_castps_si512(_mm512_abs_ps(x));
        _mm512_max_epu32(most, _mm512_max_epu32(bits(x[0]), bits(x[1])))
    }
}

#[inline(always)]
unsafe fn put(thirds: [__m512i; 3], to: *mut u16) {
    for (i, third) in thirds.into_iter().enumerate() {
        // SAFETY: as the caller promises.
        unsafe { _mm512_store_si512(to.add(i * THIRD) as *mut __m512i, third) };
    }
}

/// Room for a chunk that does not lie as it is read.
#[repr(align(64))]
struct Turned([f32; THIRD]);

/// Sixteen lines of at most 32 terms, `terms` apart by `x.cs`, read a line at a time: where they lie, or from a copy.
#[inline(always)]
unsafe fn along(x: Mat<f32>, lines: usize, terms: usize, copy: &mut Turned) -> Mat<f32> {
    if x.cs == 1 {
        return x;
    }
    let to = copy.0.as_mut_ptr();
    // SAFETY: as the caller promises.
    unsafe {
        if x.rs == 1 {
            turn_words(x.at, x.cs, to, TERMS, terms, lines);
        } else {
            for i in 0..lines {
                for p in 0..terms {
                    *to.add(i * TERMS + p) = *x.from(i, p).at;
                }
            }
        }
    }
    Mat::new(to, TERMS as isize, 1)
}

/// Thirds of `lines` rows of `terms` terms as a left side has them, and the largest bits of each row; what is missing is zero.
#[inline(always)]
unsafe fn split_left(x: Mat<f32>, lines: usize, terms: usize, to: *mut u16, most: *mut __m512i) {
    let mut copy = std::mem::MaybeUninit::<Turned>::uninit();
    // SAFETY: as the caller promises; the copy is written where it is read.
    unsafe {
        let x = along(x, lines, terms, &mut *copy.as_mut_ptr());
        let all = ((1u64 << terms) - 1) as u32;
        for i in 0..TILE {
            let (mask, at) = (if i < lines { all } else { 0 }, x.from(i, 0).at);
            let line = [
                _mm512_maskz_loadu_ps(mask as u16, at),
                _mm512_maskz_loadu_ps((mask >> 16) as u16, at.wrapping_add(16)),
            ];
            *most.add(i) = larger(*most.add(i), line);
            put(thirds(line), to.add(i * TERMS));
        }
    }
}

/// Thirds of `lines` columns of `terms` terms as a right side has them, and the largest bits of each column.
#[inline(always)]
unsafe fn split_right(x: Mat<f32>, lines: usize, terms: usize, to: *mut u16, most: *mut __m512i) {
    let mut copy = std::mem::MaybeUninit::<Turned>::uninit();
    // SAFETY: as the caller promises; the copy is written where it is read.
    unsafe {
        let mut x = x;
        if x.cs != 1 {
            let to = (*copy.as_mut_ptr()).0.as_mut_ptr();
            if x.rs == 1 {
                turn_words(x.at, x.cs, to, TILE, lines, terms);
            } else {
                for p in 0..terms {
                    for j in 0..lines {
                        *to.add(p * TILE + j) = *x.from(p, j).at;
                    }
                }
            }
            x = Mat::new(to, TILE as isize, 1);
        }
        let all = ((1u32 << lines) - 1) as u16;
        let line = |p: usize| _mm512_maskz_loadu_ps(if p < terms { all } else { 0 }, x.from(p, 0).at);
        let mut largest = *most;
        for p in 0..TILE {
            let pair = [line(p), line(p + TILE)];
            largest = larger(largest, pair);
            put(thirds(pair), to.add(p * TERMS));
        }
        *most = largest;
    }
}

/// The sums of 32 rows by 32 columns.
///
/// # Safety
/// Of all: the memory is there, and there are such registers.
trait Sums {
    /// Begins at zero.
    unsafe fn zero(&mut self);
    /// Begins at the sums of 32 rows of memory.
    unsafe fn load(&mut self, at: *const f32, pitch: usize);
    /// Adds 32 terms: chunks of two times sixteen rows, and of columns. The smallest come first.
    unsafe fn step(&mut self, left: [*const u16; 2], right: [*const u16; 2]);
    /// Writes them to 32 rows of memory.
    unsafe fn store(&mut self, at: *mut f32, pitch: usize);
}

impl Sums for Tiles {
    #[inline(always)]
    unsafe fn step(&mut self, left: [*const u16; 2], right: [*const u16; 2]) {
        // SAFETY: as the caller promises.
        unsafe {
            asm!(
                // Last thirds of rows, first of columns.
                "tileloadd tmm4, [{a} + {line} + 2048]",
                "tileloadd tmm6, [{c} + {line}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{d} + {line}]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{b} + {line} + 2048]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                // Second, first.
                "tileloadd tmm4, [{a} + {line} + 1024]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{b} + {line} + 1024]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                // Second, second.
                "tileloadd tmm6, [{c} + {line} + 1024]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tileloadd tmm7, [{d} + {line} + 1024]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm3, tmm5, tmm7",
                // First, second.
                "tileloadd tmm4, [{a} + {line}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{b} + {line}]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                // First, last.
                "tileloadd tmm6, [{c} + {line} + 2048]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tileloadd tmm7, [{d} + {line} + 2048]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm3, tmm5, tmm7",
                // First, first.
                "tileloadd tmm6, [{c} + {line}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tileloadd tmm7, [{d} + {line}]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm3, tmm5, tmm7",
                a = in(reg) left[0],
                b = in(reg) left[1],
                c = in(reg) right[0],
                d = in(reg) right[1],
                line = in(reg) 64usize,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, readonly),
            );
        }
    }

    #[inline(always)]
    unsafe fn zero(&mut self) {
        // SAFETY: as the caller promises.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                options(nostack, nomem),
            );
        }
    }

    #[inline(always)]
    unsafe fn load(&mut self, at: *const f32, pitch: usize) {
        // SAFETY: as the caller promises.
        unsafe {
            asm!(
                "tileloadd tmm0, [{at} + {step}]",
                "tileloadd tmm1, [{at} + {step} + 64]",
                "tileloadd tmm2, [{lower} + {step}]",
                "tileloadd tmm3, [{lower} + {step} + 64]",
                at = in(reg) at,
                lower = in(reg) at.wrapping_add(TILE * pitch),
                step = in(reg) 4 * pitch,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                options(nostack, readonly),
            );
        }
    }

    #[inline(always)]
    unsafe fn store(&mut self, at: *mut f32, pitch: usize) {
        // SAFETY: as the caller promises.
        unsafe {
            asm!(
                "tilestored [{at} + {step}], tmm0",
                "tilestored [{at} + {step} + 64], tmm1",
                "tilestored [{lower} + {step}], tmm2",
                "tilestored [{lower} + {step} + 64], tmm3",
                at = in(reg) at,
                lower = in(reg) at.wrapping_add(TILE * pitch),
                step = in(reg) 4 * pitch,
                options(nostack),
            );
        }
    }
}

/// A part of the product: `rows` rows from `top` on, `terms` terms from `first` on, and where its thirds lie.
struct Block<'a> {
    a: Mat<f32>,
    b: Mat<f32>,
    c: &'a To<f32>,
    n: usize,
    top: usize,
    rows: usize,
    terms: usize,
    /// The sums of this block are the first, and the last.
    begins: bool,
    ends: bool,
    left: *mut u16,
    /// Two panels of 32 columns, one after the other.
    right: *mut u16,
    sums: *mut f32,
    /// The largest bits of each lane of 32 rows.
    most: *mut __m512i,
    /// And of each row and column.
    rows_most: *mut u32,
    cols_most: *mut __m512i,
}

impl Block<'_> {
    #[inline(always)]
    fn steps(&self) -> usize {
        self.terms.div_ceil(TERMS)
    }

    /// Chunk `i` of the left sides of 32 rows from `row` on.
    #[inline(always)]
    unsafe fn left(&self, row: usize, i: usize) {
        let (s, half) = (i / 2, i % 2);
        let (line, first) = (row + half * TILE, s * TERMS);
        let lines = TILE.min(self.rows.saturating_sub(line));
        let from = self.a.from(line.min(self.rows), first);
        let to = self.left.wrapping_add((line / TILE * self.steps() + s) * CHUNK);
        // SAFETY: as the caller of `product` promises.
        unsafe {
            split_left(from, lines, TERMS.min(self.terms - first), to, self.most.add(half * TILE));
            if s + 1 == self.steps() {
                for i in 0..TILE {
                    let most = self.most.add(half * TILE + i);
                    let to = self.rows_most.add(self.top + line + i);
                    *to = (*to).max(_mm512_reduce_max_epu32(*most));
                    *most = _mm512_setzero_si512();
                }
            }
        }
    }

    /// Chunk `i` of the panel of 32 columns from `col` on.
    #[inline(always)]
    unsafe fn right(&self, col: usize, i: usize) {
        let (s, half) = (i / 2, i % 2);
        let (line, first) = (col + half * TILE, s * TERMS);
        let lines = TILE.min(self.n.saturating_sub(line));
        let from = self.b.from(first, line.min(self.n));
        let to = self.panel(col, half).wrapping_add(s * CHUNK);
        // SAFETY: as the caller of `product` promises.
        unsafe {
            split_right(from, lines, TERMS.min(self.terms - first), to, self.cols_most.add(line / TILE))
        }
    }

    /// Where sixteen columns of a panel lie.
    #[inline(always)]
    fn panel(&self, col: usize, half: usize) -> *mut u16 {
        self.right.wrapping_add((col / WIDE % 2 * 2 + half) * self.steps() * CHUNK)
    }

    /// All columns. Thirds of the next rows and columns are made while the tiles multiply.
    #[inline(always)]
    unsafe fn run(&self, sums: &mut impl Sums) {
        let steps = self.steps();
        let tall = self.rows.div_ceil(WIDE);
        // SAFETY: as the caller of `product` promises.
        unsafe {
            for i in 0..2 * steps {
                self.left(0, i);
                self.right(0, i);
            }
            for col in (0..self.n).step_by(WIDE) {
                let (mut asked, all) = (0, if col + WIDE < self.n { 2 * steps } else { 0 });
                for t in 0..tall {
                    let row = t * WIDE;
                    self.begin(sums, row, col);
                    for s in 0..steps {
                        let left = [0, 1].map(|half| {
                            self.left.wrapping_add(((2 * t + half) * steps + s) * CHUNK) as *const u16
                        });
                        let right =
                            [0, 1].map(|half| self.panel(col, half).wrapping_add(s * CHUNK) as *const u16);
                        sums.step(left, right);
                        if col == 0 && t + 1 < tall {
                            self.left(row + WIDE, 2 * s);
                            self.left(row + WIDE, 2 * s + 1);
                        }
                        while asked < all * (t * steps + s + 1) / (tall * steps) {
                            self.right(col + WIDE, asked);
                            asked += 1;
                        }
                    }
                    self.end(sums, row, col);
                }
            }
        }
    }

    /// Rows and columns there are of a tile, and where its result goes.
    #[inline(always)]
    fn tile(&self, row: usize, col: usize) -> (usize, usize, *mut f32) {
        let at = self.c.at.wrapping_add((self.top + row) * self.c.rs + col);
        (WIDE.min(self.rows - row), WIDE.min(self.n - col), at)
    }

    #[inline(always)]
    unsafe fn begin(&self, sums: &mut impl Sums, row: usize, col: usize) {
        let (rows, cols, at) = self.tile(row, col);
        // SAFETY: as the caller of `product` promises.
        unsafe {
            for i in 0..rows {
                _mm_prefetch::<_MM_HINT_ET0>(at.add(i * self.c.rs) as *const i8);
                _mm_prefetch::<_MM_HINT_ET0>(at.add(i * self.c.rs + cols - 1) as *const i8);
            }
            if self.begins {
                sums.zero();
            } else if rows == WIDE && cols == WIDE {
                sums.load(at, self.c.rs);
            } else {
                for i in 0..rows {
                    std::ptr::copy_nonoverlapping(at.add(i * self.c.rs), self.sums.add(i * WIDE), cols);
                }
                sums.load(self.sums, WIDE);
            }
        }
    }

    #[inline(always)]
    unsafe fn end(&self, sums: &mut impl Sums, row: usize, col: usize) {
        let (rows, cols, at) = self.tile(row, col);
        let bias = if self.ends { self.c.bias } else { std::ptr::null() };
        // SAFETY: as the caller of `product` promises.
        unsafe {
            if bias.is_null() && rows == WIDE && cols == WIDE {
                return sums.store(at, self.c.rs);
            }
            sums.store(self.sums, WIDE);
            let masks = [cols.min(16), cols.saturating_sub(16)].map(|n| ((1u32 << n) - 1) as u16);
            let add = match bias.is_null() {
                true => None,
                false => {
                    Some([0, 1].map(|h| _mm512_maskz_loadu_ps(masks[h], bias.wrapping_add(col + 16 * h))))
                }
            };
            for i in 0..rows {
                for h in 0..2 {
                    let mut sum = _mm512_loadu_ps(self.sums.add(i * WIDE + 16 * h));
                    if let Some(add) = add {
                        sum = _mm512_add_ps(sum, add[h]);
                    }
                    _mm512_mask_storeu_ps(at.wrapping_add(i * self.c.rs + 16 * h), masks[h], sum);
                }
            }
        }
    }
}

/// Multiplies `a` [m, k] by `b` [k, n] into `c`, of which nothing is there yet.
///
/// # Safety
/// As for `product`; there are tiles and AVX-512.
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
pub unsafe fn product(m: usize, n: usize, k: usize, a: Mat<f32>, b: Mat<f32>, c: &To<f32>) {
    // SAFETY: passed on from the caller.
    unsafe { with(|| Tiles::begin(), m, n, k, a, b, c) }
}

/// As `product`, by the sums that `begin` gives.
#[inline(always)]
unsafe fn with<S: Sums>(
    begin: impl FnOnce() -> S,
    m: usize,
    n: usize,
    k: usize,
    a: Mat<f32>,
    b: Mat<f32>,
    c: &To<f32>,
) {
    let terms = BLOCK_TERMS.min(k.next_multiple_of(TERMS));
    let most = m.div_ceil(m.div_ceil(BLOCK_ROWS)).next_multiple_of(WIDE);
    let (tall, wide) = (m.next_multiple_of(WIDE), n.next_multiple_of(WIDE));
    // In bytes: thirds of both sides, sums, largest bits of lanes, of rows and of columns.
    let parts = [6 * most * terms, 6 * 2 * WIDE * terms, 4 * WIDE * WIDE, 64 * WIDE, 4 * tall, 4 * wide];
    let parts = parts.map(|bytes| bytes.next_multiple_of(64));
    let start = room(parts.iter().sum());
    let at = |i: usize| start.wrapping_add(parts[..i].iter().sum());
    let (rows_most, cols_most) = (at(4) as *mut u32, at(5) as *mut u32);
    // SAFETY: as the caller promises; the room is this thread's.
    unsafe {
        at(3).write_bytes(0, parts[3] + parts[4] + parts[5]);
        let mut sums = begin();
        for top in (0..m).step_by(most) {
            for first in (0..k).step_by(BLOCK_TERMS) {
                let terms = BLOCK_TERMS.min(k - first);
                let block = Block {
                    a: a.from(top, first),
                    b: b.from(first, 0),
                    c,
                    n,
                    top,
                    rows: most.min(m - top),
                    terms,
                    begins: first == 0,
                    ends: first + terms == k,
                    left: at(0) as *mut u16,
                    right: at(1) as *mut u16,
                    sums: at(2) as *mut f32,
                    most: at(3) as *mut __m512i,
                    rows_most,
                    cols_most: cols_most as *mut __m512i,
                };
                block.run(&mut sums);
            }
        }
        drop(sums);
        let odd = |most: *const u32, n: usize| odd(std::slice::from_raw_parts(most, n));
        let (rows, cols) = (odd(rows_most, m), odd(cols_most, n));
        for r in cols {
            let bias = if c.bias.is_null() { c.bias } else { c.bias.add(r.start) };
            let to = To { at: c.at.add(r.start), bias, ..*c };
            chains(m, r.len(), k, a, b.from(0, r.start), &to);
        }
        for r in rows {
            chains(r.len(), n, k, a.from(r.start, 0), b, &To { at: c.at.add(r.start * c.rs), ..*c });
        }
    }
}

/// Runs of lines that tiles cannot multiply.
fn odd(most: &[u32]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (i, _) in most.iter().enumerate().filter(|(_, most)| is_odd(**most)) {
        match runs.last_mut() {
            Some(run) if run.end == i => run.end += 1,
            _ => runs.push(i..i + 1),
        }
    }
    runs
}

/// The tiles in memory, for tests on processors that have none.
#[cfg(test)]
pub mod model {
    use super::*;

    struct Model([[f32; WIDE]; WIDE]);

    impl Sums for Model {
        unsafe fn zero(&mut self) {
            self.0 = [[0.0; WIDE]; WIDE];
        }

        unsafe fn load(&mut self, at: *const f32, pitch: usize) {
            for (i, row) in self.0.iter_mut().enumerate() {
                // SAFETY: as the caller promises.
                unsafe { std::ptr::copy_nonoverlapping(at.add(i * pitch), row.as_mut_ptr(), WIDE) }
            }
        }

        unsafe fn step(&mut self, left: [*const u16; 2], right: [*const u16; 2]) {
            // SAFETY: as the caller promises.
            let of = |x: *const u16, third: usize, i: usize| unsafe {
                f32::from_bits((*x.add(third * THIRD + i) as u32) << 16)
            };
            for (l, r) in [(2, 0), (1, 0), (1, 1), (0, 1), (0, 2), (0, 0)] {
                for (i, row) in self.0.iter_mut().enumerate() {
                    for (j, sum) in row.iter_mut().enumerate() {
                        // Pairs of terms lie together on both sides. As the processor: first of pairs and second are summed up apart.
                        let mut pair = [0f32; 2];
                        for p in 0..TERMS {
                            let x = of(left[i / TILE], l, i % TILE * TERMS + p);
                            let y = of(right[j / TILE], r, p / 2 * TERMS + j % TILE * 2 + p % 2);
                            pair[p % 2] = x.mul_add(y, pair[p % 2]);
                        }
                        *sum += pair[0] + pair[1];
                    }
                }
            }
        }

        unsafe fn store(&mut self, at: *mut f32, pitch: usize) {
            for (i, row) in self.0.iter().enumerate() {
                // SAFETY: as the caller promises.
                unsafe { std::ptr::copy_nonoverlapping(row.as_ptr(), at.add(i * pitch), WIDE) }
            }
        }
    }

    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
    pub unsafe fn product(m: usize, n: usize, k: usize, a: Mat<f32>, b: Mat<f32>, c: &To<f32>) {
        // SAFETY: passed on from the caller.
        unsafe { with(|| Model([[0.0; WIDE]; WIDE]), m, n, k, a, b, c) }
    }
}
