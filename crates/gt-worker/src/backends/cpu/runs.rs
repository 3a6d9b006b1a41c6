//! Strided ranges of memory copied to and from packed tiles.

use gt_compiler::Strides;

/// A range of a strided tensor: it starts at `coords` and goes on in row-major order over `dims`.
pub struct Range<'a> {
    pub dims: &'a [usize],
    pub strides: &'a Strides,
    pub coords: &'a [usize],
    pub len: usize,
}

impl Range<'_> {
    /// Calls `f(moved, rows, step, run)` for blocks of the range, in order: `rows` stretches of `run` elements along the
    /// innermost dimension, `step` apart, the first of them `moved` elements from the start of the range.
    #[inline(always)]
    pub fn blocks(&self, mut f: impl FnMut(isize, usize, isize, usize)) {
        let rank = self.dims.len();
        if rank == 0 {
            return f(0, 1, 0, self.len);
        }
        let last = rank - 1;
        let (dims, strides) = (self.dims, self.strides);
        let run = (dims[last] - self.coords[last]).min(self.len);
        if run == self.len {
            return f(0, 1, 0, run);
        }
        let mut at: smallvec::SmallVec<[usize; 6]> = self.coords.into();
        let (mut moved, mut left) = (0isize, self.len);
        if at[last] != 0 {
            f(0, 1, 0, run);
            left -= run;
            moved -= at[last] as isize * strides[last];
            at[last] = 0;
            moved += step(dims, strides, &mut at[..last]);
        }
        let inner = dims[last];
        while left >= inner {
            let (rows, next) = match last {
                0 => (1, 0),
                _ => ((dims[last - 1] - at[last - 1]).min(left / inner), strides[last - 1]),
            };
            f(moved, rows, next, inner);
            left -= rows * inner;
            if last > 0 {
                at[last - 1] += rows;
                moved += rows as isize * next;
                if at[last - 1] == dims[last - 1] {
                    moved -= dims[last - 1] as isize * next;
                    at[last - 1] = 0;
                    moved += step(dims, strides, &mut at[..last - 1]);
                }
            }
        }
        if left > 0 {
            f(moved, 1, 0, left);
        }
    }
}

/// The next index of leading dimensions; gives how far that moves.
fn step(dims: &[usize], strides: &Strides, at: &mut [usize]) -> isize {
    let mut moved = 0;
    for d in (0..at.len()).rev() {
        at[d] += 1;
        moved += strides[d];
        if at[d] < dims[d] {
            break;
        }
        moved -= dims[d] as isize * strides[d];
        at[d] = 0;
    }
    moved
}

/// Evaluates the body with `$T` an unsigned type of `size` bytes.
macro_rules! by_size {
    ($size:expr, $T:ident => $body:expr) => {
        match $size {
            1 => {
                type $T = u8;
                $body
            }
            2 => {
                type $T = u16;
                $body
            }
            4 => {
                type $T = u32;
                $body
            }
            _ => {
                type $T = u64;
                $body
            }
        }
    };
}

/// `rows` copies of `run` neighbouring elements, whose starts lie `from_step` and `to_step` apart.
#[inline(always)]
unsafe fn copy_rows<T: Copy>(
    from: *const T,
    from_step: isize,
    to: *mut T,
    to_step: isize,
    rows: usize,
    run: usize,
) {
    #[inline(always)]
    unsafe fn fixed<T: Copy, const N: usize>(
        from: *const T,
        from_step: isize,
        to: *mut T,
        to_step: isize,
        rows: usize,
    ) {
        for r in 0..rows as isize {
            // SAFETY: passed on from the caller.
            unsafe {
                let row = *(from.offset(r * from_step) as *const [T; N]);
                *(to.offset(r * to_step) as *mut [T; N]) = row;
            }
        }
    }
    // SAFETY: passed on from the caller.
    unsafe {
        match run {
            4 => fixed::<T, 4>(from, from_step, to, to_step, rows),
            8 => fixed::<T, 8>(from, from_step, to, to_step, rows),
            16 => fixed::<T, 16>(from, from_step, to, to_step, rows),
            32 => fixed::<T, 32>(from, from_step, to, to_step, rows),
            _ => {
                for r in 0..rows as isize {
                    std::ptr::copy_nonoverlapping(from.offset(r * from_step), to.offset(r * to_step), run);
                }
            }
        }
    }
}

/// Copies the elements of a range, `size` bytes each, into a packed run.
///
/// # Safety
/// `from` is where the range starts, all of it can be read, and `to` has room for it and does not overlap it.
pub unsafe fn gather(range: &Range, size: usize, from: *const u8, to: *mut u8) {
    let inner = if range.dims.is_empty() { 0 } else { range.strides[range.dims.len() - 1] };
    by_size!(size, T => {
        let (from, mut to) = (from as *const T, to as *mut T);
        range.blocks(|moved, rows, step, run| {
            let from = from.wrapping_offset(moved);
            // SAFETY: blocks lie in the range, and cover it in order.
            unsafe {
                match inner {
                    1 => copy_rows(from, step, to, run as isize, rows, run),
                    _ => {
                        for r in 0..rows {
                            gather_run(from.offset(r as isize * step), inner, to.add(r * run), run);
                        }
                    }
                }
                to = to.add(rows * run);
            }
        });
    })
}

/// Copies a packed run to the elements of a range, `size` bytes each.
///
/// # Safety
/// `to` is where the range starts, all of it can be written, and `from` holds as many elements and does not overlap it.
pub unsafe fn scatter(range: &Range, size: usize, from: *const u8, to: *mut u8) {
    let inner = if range.dims.is_empty() { 0 } else { range.strides[range.dims.len() - 1] };
    by_size!(size, T => {
        let (mut from, to) = (from as *const T, to as *mut T);
        range.blocks(|moved, rows, step, run| {
            let to = to.wrapping_offset(moved);
            // SAFETY: blocks lie in the range, and cover it in order.
            unsafe {
                match inner {
                    1 => copy_rows(from, run as isize, to, step, rows, run),
                    _ => {
                        for r in 0..rows {
                            let (from, to) = (from.add(r * run), to.offset(r as isize * step));
                            for k in 0..run {
                                *to.offset(k as isize * inner) = *from.add(k);
                            }
                        }
                    }
                }
                from = from.add(rows * run);
            }
        });
    })
}

#[inline(always)]
unsafe fn gather_run<T: Copy>(from: *const T, stride: isize, to: *mut T, n: usize) {
    // SAFETY: passed on from the caller.
    unsafe {
        if stride == 0 {
            let x = *from;
            for k in 0..n {
                *to.add(k) = x;
            }
        } else {
            for k in 0..n {
                *to.add(k) = *from.offset(k as isize * stride);
            }
        }
    }
}

/// Copies bytes to memory that is not read soon: they go past the caches, where the processor can do that.
///
/// # Safety
/// Both sides hold `bytes` bytes and do not overlap.
pub unsafe fn stream(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: passed on from the caller; the middle of the destination is aligned for whole lines.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
            let head = to.align_offset(64).min(bytes);
            std::ptr::copy_nonoverlapping(from, to, head);
            let lines = (bytes - head) / 64;
            for i in 0..lines {
                let (from, to) =
                    (from.add(head + i * 64) as *const __m128i, to.add(head + i * 64) as *mut __m128i);
                for k in 0..4 {
                    _mm_stream_si128(to.add(k), _mm_loadu_si128(from.add(k)));
                }
            }
            let done = head + lines * 64;
            std::ptr::copy_nonoverlapping(from.add(done), to.add(done), bytes - done);
        }
        #[cfg(not(target_arch = "x86_64"))]
        std::ptr::copy_nonoverlapping(from, to, bytes);
    }
}

/// Makes what was written past the caches visible to other threads.
pub fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a fence touches no memory.
    unsafe {
        std::arch::x86_64::_mm_sfence()
    };
}

/// Fills a packed run with the one element at `from`, `size` bytes.
///
/// # Safety
/// The element can be read and `to` has room for `n`.
pub unsafe fn fill(size: usize, from: *const u8, to: *mut u8, n: usize) {
    // SAFETY: passed on from the caller.
    by_size!(size, T => unsafe { gather_run(from as *const T, 0, to as *mut T, n) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_start_and_end_anywhere() {
        let dims = [3, 4, 5];
        for strides in [[20isize, 5, 1], [1, 3, 12], [0, 5, 1], [40, 10, 2], [4, 0, 1]] {
            let strides: Strides = strides.as_slice().into();
            let memory: Vec<u32> = (0..200).collect();
            let all: Vec<u32> = (0..60)
                .map(|i| {
                    let at = (i / 20) * strides[0] + (i / 5 % 4) * strides[1] + (i % 5) * strides[2];
                    memory[at as usize]
                })
                .collect();
            for start in 0..60usize {
                for len in 1..=60 - start {
                    let coords = [start / 20, start / 5 % 4, start % 5];
                    let range = Range { dims: &dims, strides: &strides, coords: &coords, len };
                    let first = all[start] as usize;
                    let mut tile = vec![0u32; len];
                    // SAFETY: the strides stay inside the memory, the tile has the length of the range.
                    unsafe {
                        gather(
                            &range,
                            4,
                            memory.as_ptr().add(first) as *const u8,
                            tile.as_mut_ptr() as *mut u8,
                        )
                    };
                    assert_eq!(tile, all[start..start + len], "{strides:?} {start} {len}");
                    let mut back = vec![u32::MAX; 200];
                    // SAFETY: as above.
                    unsafe {
                        scatter(
                            &range,
                            4,
                            tile.as_ptr() as *const u8,
                            back.as_mut_ptr().add(first) as *mut u8,
                        )
                    };
                    assert!(all[start..start + len].iter().all(|&at| back[at as usize] == at));
                }
            }
        }
    }
}
