//! Attention as one step: a block of query rows at a time against blocks of keys, so that memory grows with the length
//! of the sequence and not with its square. Numbers are computed in f32 (f64 for f64); half types are converted on the
//! way in and out.
//!
//! Blocks depend on shapes alone, and whoever computes them, partial results meet in the order of the keys (forward)
//! or of the queries (backward).

use super::convert::{Lane, narrow, widen};
use super::isa::per_isa;
use super::math;
use super::product::{Float, Mat, To, product};
use super::threads::{Ptr, Threads};
use gt_ir::DType;
use std::cell::UnsafeCell;
use std::ops::Range;

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

/// Query rows of a block, and keys.
const ROWS: usize = 64;
const KEYS: usize = 512;

/// The type scores are computed in.
trait Num: Float {
    const LOWEST: Self;
    /// Of a number that is not above zero.
    fn exp(self) -> Self;
    fn log(self) -> Self;
    fn of(x: f64) -> Self;
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

thread_local! {
    static SCRATCH: UnsafeCell<Vec<u64>> = const { UnsafeCell::new(Vec::new()) };
}

/// This thread's memory for one block, handed out from the front.
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

/// Rows of a tensor as a matrix of the computing type: in place, or widened into `room`.
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

const LANES: usize = 16;

/// Halves of the lanes meet until one is left.
#[inline(always)]
fn fold<T: Num>(mut lanes: [T; LANES], f: impl Fn(T, T) -> T) -> T {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = f(lanes[i], lanes[i + half]);
        }
        half /= 2;
    }
    lanes[0]
}

#[inline(always)]
fn larger<T: Num>(a: T, b: T) -> T {
    if b > a { b } else { a }
}

/// Which of `n` keys the rows of a block see: row i the first `first + i * step`.
#[derive(Clone, Copy)]
struct Visible {
    n: usize,
    first: isize,
    step: isize,
}

impl Visible {
    #[inline(always)]
    fn of(&self, i: usize) -> usize {
        (self.first + i as isize * self.step).clamp(0, self.n as isize) as usize
    }
}

/// A row of whole vectors.
#[inline(always)]
unsafe fn lanes<'a, T>(x: *mut T, n: usize) -> &'a mut [[T; LANES]] {
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts_mut(x as *mut [T; LANES], n.div_ceil(LANES)) }
}

per_isa! {
    /// Turns rows of scores into exponentials of their distances to the largest of the row; what is not seen, and the
    /// rest of the last vector, becomes zero.
    unsafe fn soften<T: Num>(x: *mut T, rows: usize, pitch: usize, seen: Visible, scale: T, tops: *mut T, sums: *mut T) {
        for i in 0..rows {
            let visible = seen.of(i);
            // SAFETY: passed on from the caller.
            let row = unsafe { lanes(x.add(i * pitch), seen.n) };
            let (row, hidden) = row.split_at_mut(visible.div_ceil(LANES));
            if let Some(last) = row.last_mut() {
                let used = visible - (visible - 1) / LANES * LANES;
                for (j, x) in last.iter_mut().enumerate() {
                    *x = if j < used { *x * scale } else { T::LOWEST };
                }
            }
            let mut top = *row.last().unwrap_or(&[T::LOWEST; LANES]);
            let whole = row.len().saturating_sub(1);
            for chunk in row[..whole].iter_mut() {
                for j in 0..LANES {
                    chunk[j] = chunk[j] * scale;
                    top[j] = larger(top[j], chunk[j]);
                }
            }
            let top = fold(top, larger);
            let from = if top == T::LOWEST { T::default() } else { top };
            let mut sum = [T::default(); LANES];
            for chunk in row.iter_mut() {
                for j in 0..LANES {
                    chunk[j] = (chunk[j] - from).exp();
                    sum[j] = sum[j] + chunk[j];
                }
            }
            for chunk in hidden.iter_mut() {
                *chunk = [T::default(); LANES];
            }
            // SAFETY: passed on from the caller.
            unsafe {
                *tops.add(i) = top;
                *sums.add(i) = fold(sum, |a, b| a + b);
            }
        }
    }
}

per_isa! {
    /// Turns scores into probabilities by what `lse` says of their rows, and gradients of probabilities into those of
    /// scores before the scale; both are zero where nothing is seen.
    unsafe fn harden<T: Num>(
        p: *mut T, d: *mut T, rows: usize, pitch: usize, seen: Visible, scales: (T, T), lse: *const T, delta: *const T,
    ) {
        for i in 0..rows {
            let visible = seen.of(i);
            // SAFETY: passed on from the caller.
            let (p, d, lse, delta) = unsafe {
                let at = i * pitch;
                (lanes(p.add(at), seen.n), lanes(d.add(at), seen.n), *lse.add(i), *delta.add(i))
            };
            let whole = visible / LANES;
            for (p, d) in p[..whole].iter_mut().zip(&mut d[..whole]) {
                for j in 0..LANES {
                    p[j] = (p[j] * scales.0 - lse).exp();
                    d[j] = p[j] * (d[j] - delta) * scales.1;
                }
            }
            for (p, d) in p[whole..].iter_mut().zip(&mut d[whole..]).take(1) {
                for j in 0..LANES {
                    let on = j < visible % LANES;
                    let e = (p[j] * scales.0 - lse).exp();
                    let f = e * (d[j] - delta) * scales.1;
                    p[j] = if on { e } else { T::default() };
                    d[j] = if on { f } else { T::default() };
                }
            }
            for (p, d) in p[whole..].iter_mut().zip(&mut d[whole..]).skip(1) {
                *p = [T::default(); LANES];
                *d = [T::default(); LANES];
            }
        }
    }
}

per_isa! {
    /// Multiplies a row.
    unsafe fn times_row<T: Num>(x: *mut T, n: usize, by: T) {
        // SAFETY: passed on from the caller.
        for x in unsafe { std::slice::from_raw_parts_mut(x, n) } {
            *x = *x * by;
        }
    }
}

per_isa! {
    /// `y[i] = y[i] * f + x[i] * g`.
    unsafe fn blend_row<T: Num>(y: *mut T, x: *const T, n: usize, f: T, g: T) {
        // SAFETY: passed on from the caller.
        let (x, y) = unsafe { (std::slice::from_raw_parts(x, n), std::slice::from_raw_parts_mut(y, n)) };
        for (y, &x) in y.iter_mut().zip(x) {
            *y = *y * f + x * g;
        }
    }
}

per_isa! {
    /// Divides rows by their sums, and turns the sums into `lse`.
    unsafe fn divide<T: Num>(x: *mut T, rows: usize, pitch: usize, width: usize, tops: *const T, sums: *mut T) {
        // SAFETY: passed on from the caller.
        unsafe {
            for i in 0..rows {
                let (top, sum) = (*tops.add(i), *sums.add(i));
                let by = if top == T::LOWEST { T::default() } else { T::ONE / sum };
                for x in std::slice::from_raw_parts_mut(x.add(i * pitch), width) {
                    *x = *x * by;
                }
            }
            for i in 0..rows {
                let (top, sum) = (*tops.add(i), *sums.add(i));
                let lse = top + sum.log();
                *sums.add(i) = if top == T::LOWEST { T::LOWEST } else { lse };
            }
        }
    }
}

per_isa! {
    /// Scalar products of rows.
    unsafe fn deltas<T: Num>(a: *const T, b: *const T, pitches: (usize, usize), rows: usize, width: usize, out: *mut T) {
        // SAFETY: passed on from the caller.
        unsafe {
            for i in 0..rows {
                let a = std::slice::from_raw_parts(a.add(i * pitches.0), width);
                let b = std::slice::from_raw_parts(b.add(i * pitches.1), width);
                let mut sums = [T::default(); LANES];
                let (mut ca, mut cb) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
                for (a, b) in (&mut ca).zip(&mut cb) {
                    for j in 0..LANES {
                        sums[j] = sums[j] + a[j] * b[j];
                    }
                }
                for (j, (&a, &b)) in ca.remainder().iter().zip(cb.remainder()).enumerate() {
                    sums[j] = sums[j] + a * b;
                }
                *out.add(i) = fold(sums, |a, b| a + b);
            }
        }
    }
}

/// Puts the mask on a row of scaled scores, keys `keys` of query `t`.
unsafe fn mask_row<T: Num>(mask: &View, (b, h): (usize, usize), t: usize, keys: Range<usize>, x: *mut T) {
    let step = mask.strides[3];
    let n = keys.len();
    let first = mask.row(b, h, t).wrapping_offset(keys.start as isize * step * mask.dtype.size() as isize);
    // SAFETY: the mask shows these keys, the row holds them.
    unsafe {
        let x = std::slice::from_raw_parts_mut(x, n);
        match mask.dtype {
            DType::Bool => {
                for (j, x) in x.iter_mut().enumerate() {
                    *x = if *first.offset(j as isize * step) != 0 { *x } else { T::LOWEST };
                }
            }
            DType::F64 => {
                for (j, x) in x.iter_mut().enumerate() {
                    *x = *x + T::of(*(first as *const f64).offset(j as isize * step));
                }
            }
            DType::F32 => {
                for (j, x) in x.iter_mut().enumerate() {
                    *x = *x + T::of(*(first as *const f32).offset(j as isize * step) as f64);
                }
            }
            _ => {
                let (mut raw, mut wide) = ([0u16; 64], [0f32; 64]);
                for (c, x) in x.chunks_mut(64).enumerate() {
                    for j in 0..x.len() {
                        raw[j] = *(first as *const u16).offset((c * 64 + j) as isize * step);
                    }
                    widen(mask.dtype, raw.as_ptr() as *const u8, wide.as_mut_ptr() as *mut u8, x.len());
                    x.iter_mut().zip(&wide).for_each(|(x, &m)| *x = *x + T::of(m as f64));
                }
            }
        }
    }
}

impl Attention {
    /// Keys that some of the queries below `end` see.
    fn seen(&self, end: usize) -> usize {
        if self.causal { end.min(self.sizes.keys) } else { self.sizes.keys }
    }

    /// One query per head: the heads that share keys become the rows of one head.
    fn regrouped(mut self) -> Attention {
        let s = self.sizes;
        let group = s.heads / s.kv_heads.max(1);
        if s.queries != 1 || group == 0 {
            return self;
        }
        let regroup = |x: View| {
            let [sb, sh, _, sw] = x.strides;
            View { strides: [sb, sh * group as isize, sh, sw], ..x }
        };
        self.q = regroup(self.q);
        self.mask = self.mask.map(regroup);
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

/// Multiplications below which another thread is not worth its call.
const ALONE: usize = 96 << 10;

/// A result of some keys for a block of rows, before the division by `sums`.
struct Partial<T> {
    out: *mut T,
    /// Elements from a row to the next.
    pitch: usize,
    tops: *mut T,
    sums: *mut T,
}

/// Computes `out`, and `lse` (f32 or f64, [batch, head, query, 1]) if it is wanted.
pub fn forward(x: &Attention, out: View, lse: Option<View>, threads: &Threads) {
    let one = x.sizes.queries == 1 && x.sizes.kv_heads > 0;
    let group = x.group() as isize;
    let regroup = |v: View| {
        let [sb, sh, _, sw] = v.strides;
        View { strides: [sb, sh * group, sh, sw], ..v }
    };
    let (y, out, lse) = match one {
        true => (x.regrouped(), regroup(out), lse.map(regroup)),
        false => (*x, out, lse),
    };
    match Lane::of(x.q.dtype) {
        Lane::F64 => forward_of::<f64>(&y, out, lse, threads),
        _ => forward_of::<f32>(&y, out, lse, threads),
    }
}

fn forward_of<T: Num>(x: &Attention, out: View, lse: Option<View>, threads: &Threads) {
    let s = x.sizes;
    let blocks = s.queries.div_ceil(ROWS);
    let units = s.batch * s.heads * blocks;
    if units == 0 || s.kv_heads == 0 {
        return;
    }
    let parts = s.keys.div_ceil(KEYS).max(1);
    // A unit's rows; its partial results are made in any order and meet in order.
    let place = |u: usize| {
        let (head, block) = (u / blocks, u % blocks);
        // The longest rows of a causal attention go first.
        let block = blocks - 1 - block;
        ((head / s.heads, head % s.heads), block * ROWS..(block * ROWS + ROWS).min(s.queries))
    };
    let count = threads.count();
    let alone = count == 1 || x.work() < 2 * ALONE;
    if !alone && units < 2 * count && parts > 1 {
        // Few rows and many keys: blocks of keys are spread over the threads.
        let each = ROWS * (s.value_width + 2);
        let mut memory = vec![T::default(); units * parts * each];
        let room = Ptr::new(memory.as_mut_ptr() as *mut u8);
        let partial = |u: usize, p: usize| {
            let at = (room.get() as *mut T).wrapping_add((u * parts + p) * each);
            let tops = at.wrapping_add(ROWS * s.value_width);
            Partial { out: at, pitch: s.value_width, tops, sums: tops.wrapping_add(ROWS) }
        };
        threads.run(units * parts, &|task| {
            let (u, p) = (task / parts, task % parts);
            let (head, rows) = place(u);
            let keys = p * KEYS..((p + 1) * KEYS).min(x.seen(rows.end));
            if p == 0 || !keys.is_empty() {
                // SAFETY: the partial result is this task's own.
                unsafe { some_keys(x, head, rows, keys, &partial(u, p)) };
            }
        });
        threads.run(units, &|u| {
            let (head, rows) = place(u);
            let whole = partial(u, 0);
            // SAFETY: the partial results are finished, and the rows this task's own.
            unsafe {
                for p in 1..x.seen(rows.end).div_ceil(KEYS) {
                    merge(&whole, &partial(u, p), rows.len(), s.value_width);
                }
                finish(&whole, head, rows, s.value_width, &out, lse.as_ref());
            }
        });
        return;
    }
    let tasks = if alone { 1 } else { units };
    let straight = same::<T>(out.dtype) && out.strides[3] == 1 && out.strides[2] >= 0;
    threads.run(tasks, &|t| {
        let mut numbers = [T::default(); 4 * ROWS];
        let numbers = numbers.as_mut_ptr();
        let mut room = vec![T::default(); if straight && parts == 1 { 0 } else { 2 * ROWS * s.value_width }];
        let room = room.as_mut_ptr();
        for u in units * t / tasks..units * (t + 1) / tasks {
            let (head, rows) = place(u);
            let seen = x.seen(rows.end);
            let [mut whole, more] = [0, 1].map(|i| {
                let tops = numbers.wrapping_add(2 * i * ROWS);
                let at = room.wrapping_add(i * ROWS * s.value_width);
                Partial { out: at, pitch: s.value_width, tops, sums: tops.wrapping_add(ROWS) }
            });
            if straight {
                whole.out = out.row(head.0, head.1, rows.start) as *mut T;
                whole.pitch = out.strides[2] as usize;
            }
            // SAFETY: the rows are this task's own.
            unsafe {
                some_keys(x, head, rows.clone(), 0..KEYS.min(seen), &whole);
                for first in (KEYS..seen).step_by(KEYS) {
                    some_keys(x, head, rows.clone(), first..(first + KEYS).min(seen), &more);
                    merge(&whole, &more, rows.len(), s.value_width);
                }
                finish(&whole, head, rows, s.value_width, &out, lse.as_ref());
            }
        }
    });
}

/// What `keys` contribute to `rows`.
unsafe fn some_keys<T: Num>(
    x: &Attention,
    (b, h): (usize, usize),
    rows: Range<usize>,
    keys: Range<usize>,
    to: &Partial<T>,
) {
    let s = &x.sizes;
    let (m, n) = (rows.len(), keys.len());
    let kv = (b, h / x.group());
    let pitch = n.next_multiple_of(16);
    let half = !same::<T>(x.q.dtype);
    let wide = if half { 1 } else { 0 };
    let mut scratch = Scratch::<T>::new(m * pitch + wide * (m * s.width + n * (s.width + s.value_width)));
    let scores = scratch.take(m * pitch);
    // SAFETY: the rows and keys exist; scratch is this thread's own.
    unsafe {
        let q = matrix(&x.q, (b, h), rows.start, m, s.width, scratch.take(wide * m * s.width));
        let k = matrix(&x.k, kv, keys.start, n, s.width, scratch.take(wide * n * s.width));
        let v = matrix(&x.v, kv, keys.start, n, s.value_width, scratch.take(wide * n * s.value_width));
        product(m, n, s.width, q, k.t(), &To::new(scores, pitch));
        let seen = x.visible(rows.start, keys.clone());
        let scale = x.put_mask((b, h), rows.clone(), keys.start, seen, scores, pitch);
        soften(scores, m, pitch, seen, scale, to.tops, to.sums);
        let p = Mat::new(scores as *const T, pitch as isize, 1);
        product(m, s.value_width, n, p, v, &To::new(to.out, to.pitch));
    }
}

/// Adds a partial result of later keys.
unsafe fn merge<T: Num>(whole: &Partial<T>, more: &Partial<T>, rows: usize, width: usize) {
    for i in 0..rows {
        // SAFETY: both hold these rows.
        unsafe {
            let (a, b) = (*whole.tops.add(i), *more.tops.add(i));
            let top = larger(a, b);
            let factor = |x: T| if x == T::LOWEST { T::default() } else { (x - top).exp() };
            let (f, g) = (factor(a), factor(b));
            blend_row(whole.out.add(i * whole.pitch), more.out.add(i * more.pitch), width, f, g);
            *whole.sums.add(i) = *whole.sums.add(i) * f + *more.sums.add(i) * g;
            *whole.tops.add(i) = top;
        }
    }
}

/// Divides by the sums and writes the rows.
unsafe fn finish<T: Num>(
    x: &Partial<T>,
    (b, h): (usize, usize),
    rows: Range<usize>,
    width: usize,
    out: &View,
    lse: Option<&View>,
) {
    // SAFETY: as the caller promises.
    unsafe {
        divide(x.out, rows.len(), x.pitch, width, x.tops, x.sums);
        if let Some(lse) = lse {
            write(x.sums, 1, lse, (b, h), rows.start, rows.len(), 1);
        }
        if x.out as *mut u8 != out.row(b, h, rows.start) {
            write(x.out, x.pitch, out, (b, h), rows.start, rows.len(), width);
        }
    }
}

/// Computes the gradients of the operands.
pub fn backward(x: &Attention, g: &Gradient, threads: &Threads) {
    match Lane::of(x.q.dtype) {
        Lane::F64 => backward_of::<f64>(x, g, threads),
        _ => backward_of::<f32>(x, g, threads),
    }
}

/// Where the gradients of a head's keys and values add up: rows of the computing type.
#[derive(Clone, Copy)]
struct Sums<T> {
    dk: *mut T,
    dk_rs: usize,
    dv: *mut T,
    dv_rs: usize,
}

fn backward_of<T: Num>(x: &Attention, g: &Gradient, threads: &Threads) {
    let s = x.sizes;
    let units = s.batch * s.kv_heads;
    if units == 0 {
        return;
    }
    // The blocks of rows of all heads that share keys, in order, cut into chunks with sums of their own.
    let blocks = s.queries.div_ceil(ROWS);
    let list = x.group() * blocks;
    let chunks = (8 / units).clamp(1, (list / 4).max(1));
    let rows_of = |x: &View| x.strides[3] == 1 && x.strides[2] >= 0 && same::<T>(x.dtype);
    let direct = chunks == 1 && rows_of(&g.dk) && rows_of(&g.dv);
    let each = s.keys * (s.width + s.value_width);
    let mut memory = vec![T::default(); if direct { 0 } else { units * chunks * each }];
    let room = Ptr::new(memory.as_mut_ptr() as *mut u8);
    let sums = |u: usize, c: usize| {
        let (b, h) = (u / s.kv_heads, u % s.kv_heads);
        if direct {
            return Sums {
                dk: g.dk.row(b, h, 0) as *mut T,
                dk_rs: g.dk.strides[2] as usize,
                dv: g.dv.row(b, h, 0) as *mut T,
                dv_rs: g.dv.strides[2] as usize,
            };
        }
        let dk = (room.get() as *mut T).wrapping_add((u * chunks + c) * each);
        Sums { dk, dk_rs: s.width, dv: dk.wrapping_add(s.keys * s.width), dv_rs: s.value_width }
    };
    let alone = threads.count() == 1 || x.work() < ALONE;
    let tasks = if alone { 1 } else { units * chunks };
    threads.run(tasks, &|t| {
        for task in units * chunks * t / tasks..units * chunks * (t + 1) / tasks {
            let (u, c) = (task / chunks, task % chunks);
            let (b, kv) = (u / s.kv_heads, u % s.kv_heads);
            let to = sums(u, c);
            // SAFETY: the sums and the rows of `dq` are this task's own.
            unsafe {
                if direct {
                    for j in 0..s.keys {
                        std::slice::from_raw_parts_mut(to.dk.add(j * to.dk_rs), s.width).fill(T::default());
                        std::slice::from_raw_parts_mut(to.dv.add(j * to.dv_rs), s.value_width)
                            .fill(T::default());
                    }
                }
                for item in list * c / chunks..list * (c + 1) / chunks {
                    let h = kv * x.group() + item / blocks;
                    let first = item % blocks * ROWS;
                    rows_backward(x, g, (b, h), first..(first + ROWS).min(s.queries), &to);
                }
            }
        }
    });
    if direct {
        return;
    }
    let tasks = if alone { 1 } else { units };
    threads.run(tasks, &|t| {
        for u in units * t / tasks..units * (t + 1) / tasks {
            let whole = sums(u, 0);
            let at = (u / s.kv_heads, u % s.kv_heads);
            // SAFETY: the sums are finished, and this head's results the task's own.
            unsafe {
                for c in 1..chunks {
                    let more = sums(u, c);
                    blend_row(whole.dk, more.dk, each, T::ONE, T::ONE);
                }
                write(whole.dk, s.width, &g.dk, at, 0, s.keys, s.width);
                write(whole.dv, s.value_width, &g.dv, at, 0, s.keys, s.value_width);
            }
        }
    });
}

/// A block of rows: writes their part of `dq`, adds to the sums of keys and values.
unsafe fn rows_backward<T: Num>(
    x: &Attention,
    g: &Gradient,
    (b, h): (usize, usize),
    rows: Range<usize>,
    to: &Sums<T>,
) {
    let s = &x.sizes;
    let (m, d, dv) = (rows.len(), s.width, s.value_width);
    let kv = (b, h / x.group());
    let seen = x.seen(rows.end);
    let most = KEYS.min(seen.max(1)).next_multiple_of(16);
    let wide = if same::<T>(x.q.dtype) { 0 } else { 1 };
    let need = 2 * m * most + 2 * m * (d + dv) + most * (d + dv) + 2 * m;
    let mut scratch = Scratch::<T>::new(need);
    let (probabilities, gradients) = (scratch.take(m * most), scratch.take(m * most));
    let (sums, lses, room_dq) = (scratch.take(m), scratch.take(m), scratch.take(m * d));
    let (room_q, room_grad) = (scratch.take(wide * m * d), scratch.take(wide * m * dv));
    let room_out = scratch.take(wide * m * dv);
    let (room_k, room_v) = (scratch.take(wide * most * d), scratch.take(wide * most * dv));
    // SAFETY: the rows and keys exist; scratch is this thread's own.
    unsafe {
        let q = matrix(&x.q, (b, h), rows.start, m, d, room_q);
        let grad = matrix(&g.grad, (b, h), rows.start, m, dv, room_grad);
        let out = matrix(&g.out, (b, h), rows.start, m, dv, room_out);
        if grad.cs == 1 && out.cs == 1 && grad.rs >= 0 && out.rs >= 0 {
            deltas(grad.at, out.at, (grad.rs as usize, out.rs as usize), m, dv, sums);
        } else {
            for i in 0..m {
                let terms = (0..dv).map(|j| *grad.from(i, j).at * *out.from(i, j).at);
                let mut lanes = [T::default(); LANES];
                terms.enumerate().for_each(|(j, x)| lanes[j % LANES] = lanes[j % LANES] + x);
                *sums.add(i) = fold(lanes, |a, b| a + b);
            }
        }
        for (i, t) in rows.clone().enumerate() {
            // A row that sees no key has no gradient: exp(x - inf) is zero.
            let lse: T = number(&g.lse, b, h, t);
            *lses.add(i) = if lse == T::LOWEST { T::default() - T::LOWEST } else { lse };
        }
        // Rows of `dq` are made in place where they can be.
        let straight = same::<T>(g.dq.dtype) && g.dq.strides[3] == 1 && g.dq.strides[2] >= 0;
        let (dq, dq_rs) = match straight {
            true => (g.dq.row(b, h, rows.start) as *mut T, g.dq.strides[2] as usize),
            false => (room_dq, d),
        };
        if seen == 0 {
            product(m, d, 0, q, q, &To::new(dq, dq_rs));
        }
        for first in (0..seen).step_by(KEYS) {
            let n = KEYS.min(seen - first);
            let pitch = n.next_multiple_of(16);
            let k = matrix(&x.k, kv, first, n, d, room_k);
            let v = matrix(&x.v, kv, first, n, dv, room_v);
            product(m, n, d, q, k.t(), &To::new(probabilities, pitch));
            product(m, n, dv, grad, v.t(), &To::new(gradients, pitch));
            let seen = x.visible(rows.start, first..first + n);
            let scale = x.put_mask((b, h), rows.clone(), first, seen, probabilities, pitch);
            let scales = (scale, T::of(x.scale));
            harden(probabilities, gradients, m, pitch, seen, scales, lses, sums);
            let p = Mat::new(probabilities as *const T, pitch as isize, 1);
            let ds = Mat::new(gradients as *const T, pitch as isize, 1);
            product(n, dv, m, p.t(), grad, &To::adding(to.dv.add(first * to.dv_rs), to.dv_rs));
            product(n, d, m, ds.t(), q, &To::adding(to.dk.add(first * to.dk_rs), to.dk_rs));
            product(m, d, n, ds, k, &To { at: dq, rs: dq_rs, add: first > 0, bias: std::ptr::null() });
        }
        if !straight {
            write(room_dq, d, &g.dq, (b, h), rows.start, m, d);
        }
    }
}

#[cfg(test)]
#[path = "attention_tests.rs"]
mod tests;
