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

/// Rows of matrices, lines of which are asked for in order.
pub struct Soon {
    /// The first row, bytes from a row to the next, rows, and lines of each.
    matrices: [(*const u8, isize, usize, usize); MATRICES],
    count: usize,
    lines: usize,
    /// Lines each call asks for.
    each: usize,
    /// Where the next call goes on: matrix, row, line.
    next: Cell<(usize, usize, usize)>,
}

impl Soon {
    /// Nothing.
    pub fn none() -> Soon {
        let matrices = [(std::ptr::null(), 0, 0, 0); MATRICES];
        Soon { matrices, count: 0, lines: 0, each: 0, next: Cell::new((0, 0, 0)) }
    }

    /// Some rows more: the first of them, and bytes from each to the next and of each.
    pub fn with(mut self, at: *const u8, step: isize, rows: usize, bytes: usize) -> Soon {
        let each = bytes.div_ceil(LINE);
        if rows * each > 0 && self.count < MATRICES {
            self.matrices[self.count] = (at, step, rows, each);
            self.count += 1;
            self.lines += rows * each;
        }
        self
    }

    /// All of it in so many calls, unless it is too much.
    pub fn over(mut self, calls: usize) -> Soon {
        if self.lines * LINE > MOST {
            return Soon::none();
        }
        self.each = self.lines.div_ceil(calls.max(1));
        self
    }

    /// Asks for the next lines.
    #[inline]
    pub fn ask(&self) {
        let (mut matrix, mut row, mut line) = self.next.get();
        for _ in 0..self.each {
            if matrix == self.count {
                break;
            }
            let (at, step, rows, lines) = self.matrices[matrix];
            prefetch(at.wrapping_offset(row as isize * step).wrapping_add(line * LINE));
            line += 1;
            if line == lines {
                (line, row) = (0, row + 1);
            }
            if row == rows {
                (row, matrix) = (0, matrix + 1);
            }
        }
        self.next.set((matrix, row, line));
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
