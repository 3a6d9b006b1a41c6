//! Products of bf16 by the tiles of AMX: sixteen rows by sixteen columns of sums in a register, to which 32 terms are added at
//! a time, from the first term on. So how a product is cut into rows and columns does not change a bit.

use super::super::amx::{TERMS, TILE, Tiles};
use super::super::product::Mat;
use super::x86::{COLS, pack};
use super::{HalfTo, room, round_into};
use std::arch::asm;
use std::arch::x86_64::*;

/// Rows that are multiplied at a time: two registers.
const ROWS: usize = 2 * TILE;
/// Elements of the left side that are copied together: they stay in the second-level cache.
const BLOCK: usize = 512 << 10;

/// Copies sixteen lines of `k` terms as registers hold them, 32 terms of all lines at a time; what is missing is zero.
///
/// # Safety
/// `x` holds `lines` lines of `k` terms, `to` has room for whole registers.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn copy(x: Mat<u16>, lines: usize, k: usize, to: *mut u16) {
    // SAFETY: as the caller promises.
    unsafe {
        for first in (0..k).step_by(TERMS) {
            let (terms, to) = (TERMS.min(k - first), to.add(first * TILE));
            let x = x.from(0, first);
            if x.rs == 1 && lines == TILE && terms == TERMS {
                for q in (0..TERMS).step_by(8) {
                    turn(x.from(0, q), to.add(q));
                    turn(x.from(8, q), to.add(8 * TERMS + q));
                }
                continue;
            }
            let mask = (1u64 << terms).wrapping_sub(1) as u32;
            for i in 0..TILE {
                let to = to.add(i * TERMS);
                if i >= lines {
                    _mm512_storeu_si512(to as *mut _, _mm512_setzero_si512());
                } else if x.cs == 1 {
                    let line = _mm512_maskz_loadu_epi16(mask, x.from(i, 0).at as *const i16);
                    _mm512_storeu_si512(to as *mut _, line);
                } else {
                    for q in 0..TERMS {
                        *to.add(q) = if q < terms { *x.from(i, q).at } else { 0 };
                    }
                }
            }
        }
    }
}

/// Eight lines of eight terms that lie across, each line to a line of a register.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn turn(x: Mat<u16>, to: *mut u16) {
    // SAFETY: as the caller promises.
    unsafe {
        let row = |p: usize| _mm_loadu_si128(x.from(0, p).at as *const __m128i);
        let pair = |p: usize| {
            let (a, b) = (row(p), row(p + 1));
            (_mm_unpacklo_epi16(a, b), _mm_unpackhi_epi16(a, b))
        };
        let ((a0, a4), (b0, b4), (c0, c4), (d0, d4)) = (pair(0), pair(2), pair(4), pair(6));
        let four = |a, b, c, d, to: *mut u16| {
            let (ab0, ab2) = (_mm_unpacklo_epi32(a, b), _mm_unpackhi_epi32(a, b));
            let (cd0, cd2) = (_mm_unpacklo_epi32(c, d), _mm_unpackhi_epi32(c, d));
            let put = |i: usize, x| _mm_storeu_si128(to.add(i * TERMS) as *mut __m128i, x);
            put(0, _mm_unpacklo_epi64(ab0, cd0));
            put(1, _mm_unpackhi_epi64(ab0, cd0));
            put(2, _mm_unpacklo_epi64(ab2, cd2));
            put(3, _mm_unpackhi_epi64(ab2, cd2));
        };
        four(a0, b0, c0, d0, to);
        four(a4, b4, c4, d4, to.add(4 * TERMS));
    }
}

/// 32 rows by 32 columns of sums over `steps` times 32 terms; `low` is the first half of the rows, `high` the second.
///
/// # Safety
/// The shape of the registers is set; the operands hold these terms, the sums have room.
unsafe fn tiles(steps: usize, low: *const u16, high: *const u16, right: *const u32, sums: *mut f32) {
    // SAFETY: as the caller promises.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm4, [{low} + {line}]",
            "tileloadd tmm6, [{right} + 2*{line}]",
            "tileloadd tmm7, [{right} + 2*{line} + 64]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm5, [{high} + {line}]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {low}, 1024",
            "add {high}, 1024",
            "add {right}, 2048",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{sums} + 2*{line}], tmm0",
            "tilestored [{sums} + 2*{line} + 64], tmm1",
            "tilestored [{sums} + 2*{line} + 2048], tmm2",
            "tilestored [{sums} + 2*{line} + 2112], tmm3",
            low = inout(reg) low => _,
            high = inout(reg) high => _,
            right = inout(reg) right => _,
            steps = inout(reg) steps => _,
            sums = in(reg) sums,
            line = in(reg) 64usize,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// Multiplies `a` [m, k] by `b` [k, n] into `c`.
///
/// # Safety
/// As for `half_product`; this processor has AMX, AVX-512 and AVX2.
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl")]
pub unsafe fn product(m: usize, n: usize, k: usize, a: Mat<u16>, b: Mat<u16>, c: &HalfTo) {
    let steps = k.div_ceil(TERMS);
    let terms = steps * TERMS;
    let block = (BLOCK / terms.max(1) / ROWS * ROWS).clamp(ROWS, m.next_multiple_of(ROWS));
    let room = room(2 * (block * terms + COLS * terms) + 4 * ROWS * COLS);
    let left = room as *mut u16;
    let right = left.wrapping_add(block * terms) as *mut u32;
    let sums = right.wrapping_add(COLS * terms / 2) as *mut f32;
    // SAFETY: as the caller promises; the copies lie in this thread's memory.
    unsafe {
        let _tiles = Tiles::begin();
        for top in (0..m).step_by(block) {
            let rows = block.min(m - top);
            for i in (0..rows.next_multiple_of(ROWS)).step_by(TILE) {
                let lines = TILE.min(rows.saturating_sub(i));
                copy(a.from(top + i.min(rows), 0), lines, k, left.add(i * terms));
            }
            for col in (0..n).step_by(COLS) {
                let cols = COLS.min(n - col);
                // Columns beyond the last hold what they will; their sums are not written. Terms beyond the last are zero.
                pack(b.from(0, col).t(), cols, k, right, COLS);
                let last = k.div_ceil(2) * COLS;
                right.add(last).write_bytes(0, terms / 2 * COLS - last);
                for i in (0..rows).step_by(ROWS) {
                    let low = left.add(i * terms);
                    tiles(steps, low, low.add(TILE * terms), right, sums);
                    round_into(sums, COLS, (top + i, ROWS.min(rows - i)), (col, cols), c);
                }
            }
        }
    }
}
