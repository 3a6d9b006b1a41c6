//! Memory that is needed soon, asked for a few lines at a time while something else is computed. Rows that lie far apart
//! would otherwise be waited for one by one.

// Elsewhere nobody asks.
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]

use std::cell::Cell;

/// Bytes of a line of memory.
const LINE: usize = 64;
/// Bytes that may be asked for: they have to stay in the second-level cache beside the rest.
const MOST: usize = 320 << 10;
/// Matrices at most.
const MATRICES: usize = 8;

/// Rows of a matrix: the first, bytes from a row to the next, how many, and lines of each.
#[derive(Clone, Copy)]
struct Rows {
    at: *const u8,
    step: isize,
    count: usize,
    lines: usize,
}

/// Rows of matrices that are asked for in order.
pub struct Soon {
    matrices: [Rows; MATRICES],
    count: usize,
    /// Rows each call asks for.
    each: usize,
    /// Where the next call goes on: matrix and row.
    next: Cell<(usize, usize)>,
}

impl Soon {
    /// Nothing.
    pub fn none() -> Soon {
        let rows = Rows { at: std::ptr::null(), step: 0, count: 0, lines: 0 };
        Soon { matrices: [rows; MATRICES], count: 0, each: 0, next: Cell::new((0, 0)) }
    }

    /// Some rows more: the first of them, and bytes from each to the next and of each.
    pub fn with(mut self, at: *const u8, step: isize, rows: usize, bytes: usize) -> Soon {
        let lines = bytes.div_ceil(LINE);
        if rows * lines > 0 && self.count < MATRICES {
            self.matrices[self.count] = Rows { at, step, count: rows, lines };
            self.count += 1;
        }
        self
    }

    /// All of it in so many calls, unless it is too much.
    pub fn over(mut self, calls: usize) -> Soon {
        let all = &self.matrices[..self.count];
        if all.iter().map(|m| m.count * m.lines * LINE).sum::<usize>() > MOST {
            return Soon::none();
        }
        self.each = all.iter().map(|m| m.count).sum::<usize>().div_ceil(calls.max(1));
        self
    }

    /// Asks for the next rows.
    #[inline]
    pub fn ask(&self) {
        let (mut matrix, mut row) = self.next.get();
        let mut left = self.each;
        while left > 0 && matrix < self.count {
            let m = &self.matrices[matrix];
            let n = left.min(m.count - row);
            let mut at = m.at.wrapping_offset(row as isize * m.step);
            for _ in 0..n {
                (0..m.lines).for_each(|line| prefetch(at.wrapping_add(line * LINE)));
                at = at.wrapping_offset(m.step);
            }
            (row, left) = (row + n, left - n);
            if row == m.count {
                (matrix, row) = (matrix + 1, 0);
            }
        }
        self.next.set((matrix, row));
    }
}

#[inline(always)]
fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address is harmless.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(at as *const i8);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
