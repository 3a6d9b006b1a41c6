//! Attention as one step: a block of query rows at a time against blocks of keys, so that memory grows with the length
//! of the sequence and not with its square. Numbers are computed in f32 (f64 for f64); half types are converted on the
//! way in and out.
//!
//! Blocks depend on shapes alone, and whoever computes them, partial results meet in the order of the keys (forward)
//! or of the queries (backward).

use super::convert::{narrow, widen};
use super::math;
use super::product::{Float, Mat};
use super::soon::Soon;
use gt_ir::DType;
use rows::{Visible, mask_row, times_row};
use std::cell::UnsafeCell;
use std::ops::Range;

#[path = "attention_backward.rs"]
mod backward;
#[path = "attention_forward.rs"]
mod forward;
#[path = "attention_rows.rs"]
mod rows;
#[cfg(target_arch = "x86_64")]
#[path = "attention_wide.rs"]
mod wide;

pub use backward::backward;
pub use forward::forward;

/// A tensor in memory, [batch, head, time, width], its strides in elements. Nothing need be contiguous.
#[derive(Clone, Copy, Debug)]
pub struct View {
    pub at: *mut u8,
    pub dtype: DType,
    pub strides: [isize; 4],
}

// SAFETY: tasks read inputs and write disjoint parts of results.
unsafe impl Sync for View {}
// SAFETY: as above.
unsafe impl Send for View {}

impl View {
    /// The first element of row `t` of a head.
    #[inline(always)]
    fn row(&self, b: usize, h: usize, t: usize) -> *mut u8 {
        let [sb, sh, st, _] = self.strides;
        let elements = b as isize * sb + h as isize * sh + t as isize * st;
        self.at.wrapping_offset(elements * self.dtype.size() as isize)
    }

    /// The rows of a head among what is needed soon.
    fn soon(&self, soon: Soon, (b, h): (usize, usize), rows: usize, width: usize) -> Soon {
        let size = self.dtype.size();
        match self.strides[3] == 1 {
            true => soon.with(self.row(b, h, 0), self.strides[2] * size as isize, rows, width * size),
            false => soon,
        }
    }

    /// `group` heads of one row each as the rows of one head.
    fn regrouped(self, group: usize) -> View {
        let [sb, sh, _, sw] = self.strides;
        View { strides: [sb, sh * group as isize, sh, sw], ..self }
    }
}

/// The sizes of an attention.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub batch: usize,
    pub heads: usize,
    /// Heads of keys and values; each serves `heads / kv_heads` heads of queries in a row.
    pub kv_heads: usize,
    pub queries: usize,
    pub keys: usize,
    /// Elements of a query and of a key.
    pub width: usize,
    /// Elements of a value.
    pub value_width: usize,
}

/// `softmax(scale * q k^T + mask) v`. Rows that see no key are zero.
#[derive(Clone, Copy)]
pub struct Attention {
    pub sizes: Sizes,
    pub scale: f64,
    /// Query i sees keys up to i.
    pub causal: bool,
    /// [batch, head, query, key], broadcast by strides of 0: true where a key is seen, or numbers added to the scores.
    pub mask: Option<View>,
    pub q: View,
    pub k: View,
    pub v: View,
}

/// What `backward` reads besides the operands, and what it writes. `lse` is what `forward` left.
#[derive(Clone, Copy)]
pub struct Gradient {
    pub out: View,
    pub lse: View,
    pub grad: View,
    pub dq: View,
    pub dk: View,
    pub dv: View,
}

/// Query rows of a block, and keys. What a causal attention computes in vain grows with the first, and the second is a
/// multiple of it.
const ROWS: usize = 32;
const KEYS: usize = 512;

/// The type scores are computed in.
trait Num: Float {
    const LOWEST: Self;
    /// Of a number that is not above zero.
    fn exp(self) -> Self;
    fn log(self) -> Self;
    fn of(x: f64) -> Self;
    /// The number, if the type is f32.
    fn single(self) -> Option<f32> {
        None
    }
    /// `to[c * pitch + r] = from[r][c]`.
    ///
    /// # Safety
    /// Both sides hold these elements.
    unsafe fn turn(from: Mat<Self>, to: *mut Self, pitch: usize, rows: usize, cols: usize) {
        for r in 0..rows {
            for c in 0..cols {
                // SAFETY: as the caller promises.
                unsafe { *to.add(c * pitch + r) = *from.from(r, c).at };
            }
        }
    }
}

impl Num for f32 {
    const LOWEST: f32 = f32::NEG_INFINITY;
    #[inline(always)]
    fn exp(self) -> f32 {
        math::exp_below(self)
    }
    #[inline(always)]
    fn log(self) -> f32 {
        math::log(self)
    }
    #[inline(always)]
    fn of(x: f64) -> f32 {
        x as f32
    }
    #[inline(always)]
    fn single(self) -> Option<f32> {
        Some(self)
    }
    unsafe fn turn(from: Mat<f32>, to: *mut f32, pitch: usize, rows: usize, cols: usize) {
        // SAFETY: as the caller promises.
        unsafe { super::product::turn(from, to, pitch, rows, cols) }
    }
}

impl Num for f64 {
    const LOWEST: f64 = f64::NEG_INFINITY;
    #[inline(always)]
    fn exp(self) -> f64 {
        f64::exp(self)
    }
    #[inline(always)]
    fn log(self) -> f64 {
        f64::ln(self)
    }
    #[inline(always)]
    fn of(x: f64) -> f64 {
        x
    }
}

/// Numbers that rows of scores are worked on together.
const LANES: usize = 16;

thread_local! {
    static SCRATCH: UnsafeCell<Vec<u64>> = const { UnsafeCell::new(Vec::new()) };
}

/// This thread's memory for one task, handed out from the front. A copy hands out the same memory again.
#[derive(Clone, Copy)]
struct Scratch<T> {
    next: *mut T,
}

impl<T: Num> Scratch<T> {
    /// Room for `elements` in all, in at most 16 pieces. One at a time per thread.
    fn new(elements: usize) -> Scratch<T> {
        let words = (elements + 16 * 16) * std::mem::size_of::<T>() / 8 + 16;
        SCRATCH.with(|cell| {
            // SAFETY: the cell is this thread's own, and the borrow ends here.
            let memory = unsafe { &mut *cell.get() };
            if memory.len() < words {
                *memory = vec![0; words];
            }
            let start = memory.as_mut_ptr() as *mut u8;
            Scratch { next: start.wrapping_add(start.align_offset(64)) as *mut T }
        })
    }

    fn take(&mut self, n: usize) -> *mut T {
        let piece = self.next;
        self.next = piece.wrapping_add(n.next_multiple_of(16));
        piece
    }
}

/// True if memory holds what is computed with.
fn same<T>(dtype: DType) -> bool {
    dtype.size() == std::mem::size_of::<T>()
}

/// Rows of a tensor as a matrix of the computing type: in place, or copied into `room`.
///
/// # Safety
/// The rows exist; `room` holds `rows * width` elements.
unsafe fn matrix<T: Num>(
    x: &View,
    (b, h): (usize, usize),
    first: usize,
    rows: usize,
    width: usize,
    room: *mut T,
) -> Mat<T> {
    let [_, _, st, sw] = x.strides;
    if same::<T>(x.dtype) {
        return Mat::new(x.row(b, h, first) as *const T, st, sw);
    }
    let mut line = [0u16; 256];
    for t in 0..rows {
        let from = x.row(b, h, first + t) as *const u16;
        let to = room.wrapping_add(t * width);
        // SAFETY: as the caller promises.
        unsafe {
            if sw == 1 {
                widen(x.dtype, from as *const u8, to as *mut u8, width);
                continue;
            }
            for c in (0..width).step_by(line.len()) {
                let n = line.len().min(width - c);
                for (j, e) in line[..n].iter_mut().enumerate() {
                    *e = *from.offset((c + j) as isize * sw);
                }
                widen(x.dtype, line.as_ptr() as *const u8, to.add(c) as *mut u8, n);
            }
        }
    }
    Mat::new(room as *const T, width as isize, 1)
}

/// The same matrix with rows that lie close together, copied into `room` if they do not.
///
/// # Safety
/// The rows exist; `room` holds `rows * width` elements. They may lie there already, one after the other.
unsafe fn close<T: Num>(x: Mat<T>, rows: usize, width: usize, room: *mut T) -> Mat<T> {
    // Products copy a right side whose rows are further apart, each time.
    const FAR: isize = 1024;
    let near = (0..FAR).contains(&(x.rs * std::mem::size_of::<T>() as isize));
    if x.cs == 1 && (near || x.rs == width as isize) {
        return x;
    }
    for t in 0..rows {
        let (from, to) = (x.from(t, 0), room.wrapping_add(t * width));
        // SAFETY: as the caller promises.
        unsafe {
            match x.cs {
                1 => std::ptr::copy_nonoverlapping(from.at, to, width),
                _ => (0..width).for_each(|c| *to.add(c) = *from.from(0, c).at),
            }
        }
    }
    Mat::new(room, width as isize, 1)
}

/// Elements from a row to the next of a turned matrix of `n` columns: an odd number of cache lines, so that rows begin in
/// different sets of the first-level cache.
fn turned_pitch(n: usize) -> usize {
    (n.div_ceil(LANES) | 1) * LANES
}

/// The transpose of a matrix of `rows` rows, laid out in rows in `room`.
///
/// # Safety
/// The rows exist; `room` holds `width * turned_pitch(rows)` elements.
unsafe fn turned<T: Num>(x: Mat<T>, rows: usize, width: usize, room: *mut T) -> Mat<T> {
    let pitch = turned_pitch(rows);
    // SAFETY: as the caller promises.
    unsafe { T::turn(x, room, pitch, rows, width) };
    Mat::new(room, pitch as isize, 1)
}

/// Writes rows of the computing type to a tensor, rounding them to its type.
///
/// # Safety
/// The rows exist on both sides, and nobody else touches those of the tensor.
unsafe fn write<T: Num>(
    from: *const T,
    pitch: usize,
    to: &View,
    (b, h): (usize, usize),
    first: usize,
    rows: usize,
    width: usize,
) {
    let sw = to.strides[3];
    let size = to.dtype.size();
    let mut line = [0u64; 256];
    for t in 0..rows {
        let row = to.row(b, h, first + t);
        // SAFETY: as the caller promises.
        unsafe {
            let from = from.add(t * pitch);
            if sw == 1 {
                narrow(to.dtype, from as *const u8, row, width);
                continue;
            }
            for c in (0..width).step_by(line.len()) {
                let n = line.len().min(width - c);
                narrow(to.dtype, from.add(c) as *const u8, line.as_mut_ptr() as *mut u8, n);
                for j in 0..n {
                    let source = (line.as_ptr() as *const u8).add(j * size);
                    let place = row.wrapping_offset((c + j) as isize * sw * size as isize);
                    std::ptr::copy_nonoverlapping(source, place, size);
                }
            }
        }
    }
}

/// A number of `lse`, which is f32 or f64.
unsafe fn number<T: Num>(x: &View, b: usize, h: usize, t: usize) -> T {
    let at = x.row(b, h, t);
    // SAFETY: as the caller promises.
    unsafe { T::of(if x.dtype == DType::F64 { *(at as *const f64) } else { *(at as *const f32) as f64 }) }
}

impl Attention {
    /// Keys that some of the queries below `end` see.
    fn seen(&self, end: usize) -> usize {
        if self.causal { end.min(self.sizes.keys) } else { self.sizes.keys }
    }

    /// One query per head: the heads that share keys become the rows of one head.
    fn regrouped(mut self) -> Attention {
        let s = self.sizes;
        let group = self.group();
        self.q = self.q.regrouped(group);
        self.mask = self.mask.map(|x| x.regrouped(group));
        if self.causal {
            self.sizes.keys = s.keys.min(1);
            self.causal = false;
        }
        self.sizes.heads = s.kv_heads;
        self.sizes.queries = group;
        self
    }

    /// What rows from `first` on see of some keys.
    fn visible(&self, first: usize, keys: Range<usize>) -> Visible {
        match self.causal {
            true => Visible { n: keys.len(), first: first as isize + 1 - keys.start as isize, step: 1 },
            false => Visible { n: keys.len(), first: keys.len() as isize, step: 0 },
        }
    }

    /// Scales scores and puts the mask on them, if there is one; the scale that is left to do.
    ///
    /// # Safety
    /// The scores hold these rows.
    unsafe fn put_mask<T: Num>(
        &self,
        head: (usize, usize),
        rows: Range<usize>,
        first: usize,
        seen: Visible,
        scores: *mut T,
        pitch: usize,
    ) -> T {
        let Some(mask) = &self.mask else { return T::of(self.scale) };
        for (i, t) in rows.enumerate() {
            let (row, visible) = (scores.wrapping_add(i * pitch), seen.of(i));
            // SAFETY: as the caller promises.
            unsafe {
                times_row(row, visible, T::of(self.scale));
                mask_row(mask, head, t, first..first + visible, row);
            }
        }
        T::ONE
    }

    fn group(&self) -> usize {
        self.sizes.heads / self.sizes.kv_heads.max(1)
    }

    /// Multiplications of the two products.
    fn work(&self) -> usize {
        let s = &self.sizes;
        let all = s.batch * s.heads * s.queries * s.keys.max(1) * (s.width + s.value_width + 16);
        if self.causal { all / 2 } else { all }
    }
}

/// Tasks for each thread: enough for one that is late, and few enough that the heads of a task follow one another.
const TASKS: usize = 8;

/// Multiplications below which another thread is not worth its call.
const ALONE: usize = 96 << 10;

#[cfg(test)]
#[path = "attention_tests.rs"]
mod tests;
