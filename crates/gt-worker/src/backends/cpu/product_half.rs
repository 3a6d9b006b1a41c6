//! Products of half types on one thread: f32 sums, rounded once. Where the processor multiplies pairs of bf16 itself it
//! does, by tiles of them where it can; otherwise blocks of the operands are widened as they are met.

use super::convert::{narrow, widen};
#[cfg(target_arch = "x86_64")]
use super::product::FEW;
use super::product::{Mat, To, product};
use gt_ir::DType;
use std::cell::UnsafeCell;

#[cfg(target_arch = "x86_64")]
#[path = "product_amx.rs"]
mod pieces;

thread_local! {
    static SCRATCH: UnsafeCell<Vec<u64>> = const { UnsafeCell::new(Vec::new()) };
}

/// This thread's memory, of at least `bytes` bytes. The last one asked for counts.
pub fn room(bytes: usize) -> *mut u8 {
    SCRATCH.with(|cell| {
        // SAFETY: the cell is this thread's own, and the borrow ends here.
        let memory = unsafe { &mut *cell.get() };
        if memory.len() * 8 < bytes + 64 {
            *memory = vec![0; bytes / 8 + 16];
        }
        let start = memory.as_mut_ptr() as *mut u8;
        start.wrapping_add(start.align_offset(64))
    })
}

/// Where a product of half types goes.
#[derive(Clone, Copy)]
pub struct HalfTo {
    pub dtype: DType,
    pub at: *mut u16,
    /// Elements from a row to the next.
    pub rs: usize,
    /// Added to the sums before they are rounded.
    pub bias: Option<Mat<u16>>,
}

/// Multiplies `a` [m, k] by `b` [k, n] into `c`, on this thread.
///
/// # Safety
/// The operands hold these elements, and nobody else touches those of the result.
pub unsafe fn half_product(m: usize, n: usize, k: usize, a: Mat<u16>, b: Mat<u16>, c: &HalfTo) {
    #[cfg(target_arch = "x86_64")]
    if c.dtype == DType::BF16 && m > FEW && x86::usable() {
        // SAFETY: the unit was detected; the rest is passed on from the caller.
        return unsafe {
            match k > 0 && super::amx::usable() {
                true => pieces::product(m, n, k, a, b, c),
                false => x86::pairs(m, n, k, a, b, c),
            }
        };
    }
    // SAFETY: passed on from the caller.
    unsafe { widened(m, n, k, a, b, c) }
}

/// Rounds `rows` rows of sums into the result from (row, col) on, with the bias.
unsafe fn round_into(
    sums: *mut f32,
    pitch: usize,
    (row, rows): (usize, usize),
    (col, cols): (usize, usize),
    c: &HalfTo,
) {
    let (mut raw, mut wide) = ([0u16; 64], [0f32; 64]);
    for i in 0..rows {
        // SAFETY: as the caller promises.
        unsafe {
            let line = sums.add(i * pitch);
            if let Some(bias) = c.bias {
                for j in (0..cols).step_by(64) {
                    let count = 64.min(cols - j);
                    let from = bias.from(row + i, col + j);
                    for (q, raw) in raw[..count].iter_mut().enumerate() {
                        *raw = *from.from(0, q).at;
                    }
                    widen(c.dtype, raw.as_ptr() as *const u8, wide.as_mut_ptr() as *mut u8, count);
                    for (q, x) in wide[..count].iter().enumerate() {
                        *line.add(j + q) += x;
                    }
                }
            }
            let to = c.at.add((row + i) * c.rs + col);
            narrow(c.dtype, line as *const u8, to as *mut u8, cols);
        }
    }
}

/// `rows` lines of `cols` elements in f32, dense, lying as they do: along whichever side is contiguous.
unsafe fn wide_copy(dtype: DType, x: Mat<u16>, rows: usize, cols: usize, to: *mut f32) -> Mat<f32> {
    if x.cs != 1 && x.rs == 1 {
        // SAFETY: passed on from the caller.
        return unsafe { wide_copy(dtype, x.t(), cols, rows, to) }.t();
    }
    let mut line = [0u16; 256];
    for i in 0..rows {
        let (from, to) = (x.from(i, 0), to.wrapping_add(i * cols));
        // SAFETY: as the caller promises.
        unsafe {
            if x.cs == 1 {
                widen(dtype, from.at as *const u8, to as *mut u8, cols);
                continue;
            }
            for j in (0..cols).step_by(line.len()) {
                let count = line.len().min(cols - j);
                for (q, e) in line[..count].iter_mut().enumerate() {
                    *e = *from.from(0, j + q).at;
                }
                widen(dtype, line.as_ptr() as *const u8, to.add(j) as *mut u8, count);
            }
        }
    }
    Mat::new(to as *const f32, cols as isize, 1)
}

/// Blocks of both sides in f32; few enough columns at a time that they stay in the cache.
unsafe fn widened(m: usize, n: usize, k: usize, a: Mat<u16>, b: Mat<u16>, c: &HalfTo) {
    let rows = 96.min(m);
    let cols = ((64 << 10) / k.max(1)).clamp(32, 256).next_multiple_of(32).min(n);
    let bytes = 4 * (rows * k + k * cols + rows * cols);
    let left = room(bytes) as *mut f32;
    let right = left.wrapping_add(rows * k);
    let sums = right.wrapping_add(k * cols);
    for row in (0..m).step_by(rows) {
        let height = rows.min(m - row);
        // SAFETY: as the caller promises; the pieces lie in this thread's memory.
        unsafe {
            let lhs = wide_copy(c.dtype, a.from(row, 0), height, k, left);
            for col in (0..n).step_by(cols) {
                let width = cols.min(n - col);
                let rhs = wide_copy(c.dtype, b.from(0, col), k, width, right);
                product(height, width, k, lhs, rhs, &To::new(sums, width));
                round_into(sums, width, (row, height), (col, width), c);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::super::product::turn_words;
    use super::{HalfTo, Mat, room, round_into};
    use std::arch::x86_64::*;
    use std::sync::OnceLock;

    pub fn usable() -> bool {
        static USABLE: OnceLock<bool> = OnceLock::new();
        *USABLE.get_or_init(|| {
            is_x86_feature_detected!("avx512bf16")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx2")
        })
    }

    /// Rows and columns of a tile.
    const ROWS: usize = 12;
    pub const COLS: usize = 32;
    /// Rows of the left side that are packed together.
    const BLOCK: usize = 96;

    /// Pairs of terms: `to[p * step + j]` holds elements 2p and 2p + 1 of line j, the last with a zero if need be.
    #[target_feature(enable = "avx2")]
    pub unsafe fn pack(x: Mat<u16>, lines: usize, k: usize, to: *mut u32, step: usize) {
        let whole = k / 2;
        // SAFETY: as the caller promises.
        unsafe {
            if x.cs == 1 && x.rs % 2 == 0 {
                turn_words(x.at as *const f32, x.rs / 2, to as *mut f32, step, lines, whole);
            } else if x.rs == 1 {
                for p in 0..whole {
                    let (low, high) = (x.from(0, 2 * p).at, x.from(0, 2 * p + 1).at);
                    for j in 0..lines {
                        *to.add(p * step + j) = *low.add(j) as u32 | (*high.add(j) as u32) << 16;
                    }
                }
            } else {
                for j in 0..lines {
                    for p in 0..whole {
                        let at = x.from(j, 2 * p);
                        *to.add(p * step + j) = *at.at as u32 | (*at.from(0, 1).at as u32) << 16;
                    }
                }
            }
            if k % 2 == 1 {
                for j in 0..lines {
                    *to.add(whole * step + j) = *x.from(j, k - 1).at as u32;
                }
            }
        }
    }

    /// `R` rows by 32 columns of f32 sums.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    unsafe fn tile<const R: usize>(pairs: usize, a: *const u32, b: *const u32, sums: *mut f32) {
        // SAFETY: the panels hold `pairs` pairs of R rows and of 32 columns, the sums R rows.
        unsafe {
            let mut acc = [[_mm512_setzero_ps(); 2]; R];
            for p in 0..pairs {
                let at = b.add(p * COLS) as *const i32;
                let right = [_mm512_loadu_si512(at as *const _), _mm512_loadu_si512(at.add(16) as *const _)];
                for (i, row) in acc.iter_mut().enumerate() {
                    let left = _mm512_set1_epi32(*a.add(p * R + i) as i32);
                    for (sum, right) in row.iter_mut().zip(right) {
                        *sum = _mm512_dpbf16_ps(
                            *sum,
                            std::mem::transmute::<__m512i, __m512bh>(left),
                            std::mem::transmute::<__m512i, __m512bh>(right),
                        );
                    }
                }
            }
            for (i, row) in acc.iter().enumerate() {
                _mm512_storeu_ps(sums.add(i * COLS), row[0]);
                _mm512_storeu_ps(sums.add(i * COLS + 16), row[1]);
            }
        }
    }

    #[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl,avx512bf16")]
    pub unsafe fn pairs(m: usize, n: usize, k: usize, a: Mat<u16>, b: Mat<u16>, c: &HalfTo) {
        let pairs = k.div_ceil(2);
        let block = BLOCK.min(m.next_multiple_of(ROWS));
        let left = room(4 * (pairs * (block + COLS) + ROWS * COLS)) as *mut u32;
        let right = left.wrapping_add(pairs * block);
        let sums = right.wrapping_add(pairs * COLS) as *mut f32;
        // SAFETY: as the caller promises; the panels lie in this thread's memory.
        unsafe {
            for top in (0..m).step_by(block) {
                let rows = block.min(m - top);
                for i in (0..rows).step_by(ROWS) {
                    let r = ROWS.min(rows - i);
                    pack(a.from(top + i, 0), r, k, left.add(i * pairs), r);
                }
                for col in (0..n).step_by(COLS) {
                    let cols = COLS.min(n - col);
                    // Columns beyond the last hold what they will; their sums are not written.
                    pack(b.from(0, col).t(), cols, k, right, COLS);
                    for i in (0..rows).step_by(ROWS) {
                        let r = ROWS.min(rows - i);
                        let lhs = left.add(i * pairs);
                        macro_rules! rows {
                            ($($r:literal)*) => {
                                match r {
                                    $($r => tile::<$r>(pairs, lhs, right, sums),)*
                                    _ => {}
                                }
                            };
                        }
                        rows!(1 2 3 4 5 6 7 8 9 10 11 12);
                        round_into(sums, COLS, (top + i, r), (col, cols), c);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    #[test]
    fn agrees_with_a_plain_loop() {
        for dtype in [DType::BF16, DType::F16] {
            let to = |x: f32| match dtype {
                DType::BF16 => bf16::from_f32(x).to_bits(),
                _ => f16::from_f32(x).to_bits(),
            };
            let back = |h: u16| match dtype {
                DType::BF16 => bf16::from_bits(h).to_f64(),
                _ => f16::from_bits(h).to_f64(),
            };
            let mut u = 3u32;
            let mut numbers = |n: usize| -> Vec<u16> {
                (0..n)
                    .map(|_| {
                        u = u.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        to((u >> 8) as f32 / (1 << 23) as f32 - 1.0)
                    })
                    .collect()
            };
            for (m, n, k) in [
                (1, 40, 33),
                (5, 7, 9),
                (13, 33, 64),
                (100, 65, 301),
                (12, 32, 2),
                (30, 20, 1),
                (6, 6, 0),
                (40, 33, 17000),
            ] {
                let (a, b, bias) = (numbers(m * k), numbers(k * n), numbers(n));
                for layout in 0..4 {
                    let lhs = match layout & 1 {
                        0 => Mat::new(a.as_ptr(), k as isize, 1),
                        _ => Mat::new(a.as_ptr(), 1, m as isize),
                    };
                    let rhs = match layout & 2 {
                        0 => Mat::new(b.as_ptr(), n as isize, 1),
                        _ => Mat::new(b.as_ptr(), 1, k as isize),
                    };
                    let mut c = vec![0u16; m * n];
                    let row = (layout == 3).then(|| Mat::new(bias.as_ptr(), 0, 1));
                    // SAFETY: the sizes are those of the vectors.
                    unsafe {
                        half_product(
                            m,
                            n,
                            k,
                            lhs,
                            rhs,
                            &HalfTo { dtype, at: c.as_mut_ptr(), rs: n, bias: row },
                        )
                    };
                    for i in 0..m {
                        for j in 0..n {
                            // SAFETY: the elements exist.
                            let at = |x: &Mat<u16>, i, j| back(unsafe { *x.from(i, j).at });
                            let sum: f64 = (0..k).map(|p| at(&lhs, i, p) * at(&rhs, p, j)).sum();
                            let want = sum + row.map_or(0.0, |x| at(&x, i, j));
                            let got = back(c[i * n + j]);
                            let bound = if dtype == DType::BF16 { 5e-3 } else { 1e-3 };
                            assert!(
                                (got - want).abs() <= bound * (want.abs() + 0.1),
                                "{dtype} {m}x{n}x{k} layout {layout}: {got} and {want}"
                            );
                        }
                    }
                }
            }
        }
    }

    /// A part of a product has the bits of the whole.
    #[test]
    fn parts_have_the_bits_of_the_whole() {
        let (m, n, k) = (77, 130, 701);
        let numbers = |n: usize, step: usize| -> Vec<u16> {
            (0..n).map(|i| bf16::from_f32((i * step % 251) as f32 / 125.0 - 1.0).to_bits()).collect()
        };
        let (a, b) = (numbers(m * k, 7), numbers(k * n, 11));
        for across in [false, true] {
            let lhs = if across {
                Mat::new(a.as_ptr(), 1, m as isize)
            } else {
                Mat::new(a.as_ptr(), k as isize, 1)
            };
            let rhs = Mat::new(b.as_ptr(), n as isize, 1);
            let (mut whole, mut parts) = (vec![0u16; m * n], vec![0u16; m * n]);
            let to = |at: *mut u16| HalfTo { dtype: DType::BF16, at, rs: n, bias: None };
            // SAFETY: the sizes are those of the vectors.
            unsafe {
                half_product(m, n, k, lhs, rhs, &to(whole.as_mut_ptr()));
                for (r, rows) in [(0, 5), (5, 33), (38, 39)] {
                    for (c, cols) in [(0, 37), (37, 93)] {
                        let at = to(parts.as_mut_ptr().add(r * n + c));
                        half_product(rows, cols, k, lhs.from(r, 0), rhs.from(0, c), &at);
                    }
                }
            }
            assert!(whole == parts);
        }
    }
}
