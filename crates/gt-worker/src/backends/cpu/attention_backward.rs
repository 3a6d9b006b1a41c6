//! The gradient of attention: stretches of query rows, whose probabilities are made again, against blocks of keys.

use super::super::convert::Lane;
use super::super::product::{Mat, To, product};
use super::super::soon::Soon;
use super::super::threads::{Ptr, Threads};
use super::rows::{blend_row, deltas, fold, harden};
use super::{ALONE, Attention, Gradient, KEYS, LANES, Num, ROWS, Scratch, Sizes, TASKS, View};
use super::{close, matrix, number, same, turned, turned_pitch, write};
use std::ops::Range;

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

impl<T: Num> Sums<T> {
    /// Makes the sums of keys from `first` on zero.
    ///
    /// # Safety
    /// They are nobody else's.
    unsafe fn clear(&self, s: &Sizes, first: usize) {
        for j in first..s.keys {
            // SAFETY: as the caller promises.
            unsafe {
                std::slice::from_raw_parts_mut(self.dk.add(j * self.dk_rs), s.width).fill(T::default());
                std::slice::from_raw_parts_mut(self.dv.add(j * self.dv_rs), s.value_width).fill(T::default());
            }
        }
    }
}

fn backward_of<T: Num>(x: &Attention, g: &Gradient, threads: &Threads) {
    let s = x.sizes;
    let units = s.batch * s.kv_heads;
    if units == 0 {
        return;
    }
    // The stretches of rows of all heads that share keys, in order, cut into chunks with sums of their own.
    let stretch = stretch(x);
    let stretches = s.queries.div_ceil(stretch);
    let list = x.group() * stretches;
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
    let count = threads.count();
    let tasks = if alone { 1 } else { (units * chunks).min(TASKS * count) };
    threads.run(tasks, &|t| {
        let parts = |t: usize| units * chunks * t / tasks..units * chunks * (t + 1) / tasks;
        for task in parts(t) {
            let (u, c) = (task / chunks, task % chunks);
            // The next part of this task, or what is likely to be this thread's next task.
            let next = if task + 1 < parts(t).end { task + 1 } else { parts(t + count).start };
            let soon = if list == 1 { soon(x, g, next).over(tiles(x)) } else { Soon::none() };
            let (b, kv) = (u / s.kv_heads, u % s.kv_heads);
            let to = sums(u, c);
            // SAFETY: the sums and the rows of `dq` are this task's own.
            unsafe {
                let mut fresh = true;
                for item in list * c / chunks..list * (c + 1) / chunks {
                    let h = kv * x.group() + item / stretches;
                    let first = item % stretches * stretch;
                    let rows = first..(first + stretch).min(s.queries);
                    rows_backward(x, g, (b, h), rows, &to, fresh, &soon);
                    fresh = false;
                }
                if fresh {
                    to.clear(&s, 0);
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

/// Rows whose probabilities are kept together: as many as stay in the second-level cache, in whole blocks.
fn stretch(x: &Attention) -> usize {
    let keys = x.sizes.keys.clamp(1, KEYS);
    ((32 << 10) / keys / ROWS * ROWS).clamp(ROWS, 8 * ROWS)
}

/// What the blocks of a stretch of rows share.
struct Stretch<'a, T> {
    x: &'a Attention,
    head: (usize, usize),
    rows: Range<usize>,
    /// Rows of the queries, and of the gradient of the result.
    q: Mat<T>,
    grad: Mat<T>,
    lse: *const T,
    /// Scalar products of the result and its gradient.
    delta: *const T,
    dq: *mut T,
    dq_rs: usize,
    soon: &'a Soon,
}

/// What head `u` reads and writes, whose rows are one stretch.
fn soon(x: &Attention, g: &Gradient, u: usize) -> Soon {
    let s = &x.sizes;
    if u >= s.batch * s.kv_heads {
        return Soon::none();
    }
    let head = (u / s.kv_heads, u % s.kv_heads);
    let rows = [(&g.out, s.value_width), (&g.grad, s.value_width), (&x.q, s.width), (&g.dq, s.width)];
    let keys = [(&x.k, s.width), (&x.v, s.value_width), (&g.dk, s.width), (&g.dv, s.value_width)];
    let soon = rows.iter().fold(Soon::none(), |soon, (x, width)| x.soon(soon, head, s.queries, *width));
    keys.iter().fold(soon, |soon, (x, width)| x.soon(soon, head, s.keys, *width))
}

/// Tiles of the products of a head, roughly.
fn tiles(x: &Attention) -> usize {
    let s = &x.sizes;
    let (rows, keys) = (s.queries.div_ceil(12), s.keys.div_ceil(32));
    let scores = 2 * rows * keys;
    let rest = (rows + s.keys.div_ceil(12)) * s.width.div_ceil(32)
        + s.keys.div_ceil(12) * s.value_width.div_ceil(32);
    if x.causal { scores.div_ceil(2) + rest } else { scores + rest }
}

/// A stretch of rows: writes their part of `dq`, adds to the sums of keys and values, or begins them if they are `fresh`.
unsafe fn rows_backward<T: Num>(
    x: &Attention,
    g: &Gradient,
    (b, h): (usize, usize),
    rows: Range<usize>,
    to: &Sums<T>,
    fresh: bool,
    soon: &Soon,
) {
    let s = &x.sizes;
    let (m, d, dv) = (rows.len(), s.width, s.value_width);
    let seen = x.seen(rows.end);
    let most = KEYS.min(seen);
    let need = 2 * m * (most + 16) + 2 * m * (d + dv) + 2 * m + (most + turned_pitch(most)) * (d + dv);
    let mut scratch = Scratch::<T>::new(need);
    let (delta, lses, room_dq) = (scratch.take(m), scratch.take(m), scratch.take(m * d));
    let (room_q, room_grad, room_out) = (scratch.take(m * d), scratch.take(m * dv), scratch.take(m * dv));
    // SAFETY: the rows and keys exist; scratch is this thread's own.
    unsafe {
        let q = matrix(&x.q, (b, h), rows.start, m, d, room_q);
        let grad = matrix(&g.grad, (b, h), rows.start, m, dv, room_grad);
        let out = matrix(&g.out, (b, h), rows.start, m, dv, room_out);
        products_of_rows(grad, out, m, dv, delta);
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
        let (q, grad) = (close(q, m, d, room_q), close(grad, m, dv, room_grad));
        let (head, rows) = ((b, h), rows.clone());
        let stretch = Stretch { x, head, rows, q, grad, lse: lses, delta, dq, dq_rs, soon };
        for first in (0..seen).step_by(KEYS) {
            stretch.keys(first..(first + KEYS).min(seen), scratch, to, fresh);
        }
        if fresh {
            to.clear(s, seen);
        }
        if !straight {
            write(room_dq, d, &g.dq, (b, h), stretch.rows.start, m, d);
        }
    }
}

/// Scalar products of the rows of two matrices.
unsafe fn products_of_rows<T: Num>(a: Mat<T>, b: Mat<T>, rows: usize, width: usize, out: *mut T) {
    // SAFETY: as the caller promises.
    unsafe {
        if a.cs == 1 && b.cs == 1 && a.rs >= 0 && b.rs >= 0 {
            return deltas(a.at, b.at, (a.rs as usize, b.rs as usize), rows, width, out);
        }
        for i in 0..rows {
            let mut lanes = [T::default(); LANES];
            for j in 0..width {
                lanes[j % LANES] = lanes[j % LANES] + *a.from(i, j).at * *b.from(i, j).at;
            }
            *out.add(i) = fold(lanes, |a, b| a + b);
        }
    }
}

impl<T: Num> Stretch<'_, T> {
    /// What some keys have to do with these rows.
    unsafe fn keys(&self, keys: Range<usize>, mut scratch: Scratch<T>, to: &Sums<T>, fresh: bool) {
        let x = self.x;
        let (m, n, d, dv) = (self.rows.len(), keys.len(), x.sizes.width, x.sizes.value_width);
        let kv = (self.head.0, self.head.1 / x.group());
        let pitch = n.next_multiple_of(16);
        let (probabilities, gradients) = (scratch.take(m * pitch), scratch.take(m * pitch));
        let (room_k, room_v) = (scratch.take(n * d), scratch.take(n * dv));
        // SAFETY: the rows and keys exist; scratch is this thread's own, and so are the sums.
        unsafe {
            let k = matrix(&x.k, kv, keys.start, n, d, room_k);
            let v = matrix(&x.v, kv, keys.start, n, dv, room_v);
            let (mut kt, mut vt) = (k.t(), v.t());
            if m >= ROWS {
                kt = turned(k, n, d, scratch.take(d * turned_pitch(n)));
                vt = turned(v, n, dv, scratch.take(dv * turned_pitch(n)));
            }
            let k = close(k, n, d, room_k);
            let soon: *const Soon = self.soon;
            let p = Mat::new(probabilities as *const T, pitch as isize, 1);
            let ds = Mat::new(gradients as *const T, pitch as isize, 1);
            for i in (0..m).step_by(ROWS) {
                let (rows, n) = (ROWS.min(m - i), self.seen(i, &keys));
                let (p, at) = (probabilities.add(i * pitch), gradients.add(i * pitch));
                product(rows, n, d, self.q.from(i, 0), kt, &To { soon, ..To::new(p, pitch) });
                product(rows, n, dv, self.grad.from(i, 0), vt, &To { soon, ..To::new(at, pitch) });
                let first = self.rows.start + i;
                let seen = x.visible(first, keys.start..keys.start + n);
                let scale = x.put_mask(self.head, first..first + rows, keys.start, seen, p, pitch);
                let scales = (scale, T::of(x.scale));
                harden(p, at, rows, pitch, seen, scales, self.lse.add(i), self.delta.add(i));
                let dq = To { add: keys.start > 0, soon, ..To::new(self.dq.add(i * self.dq_rs), self.dq_rs) };
                product(rows, d, n, ds.from(i, 0), k, &dq);
            }
            // Keys sum over the rows that see them; blocks of rows before the first of those are left out.
            let mut i = 0;
            for j in (0..n).step_by(ROWS) {
                while self.seen(i, &keys) <= j {
                    i += ROWS;
                }
                let (count, row) = (ROWS.min(n - j), keys.start + j);
                let (p, ds) = (p.from(i, j).t(), ds.from(i, j).t());
                let dv_to = To { add: !fresh, soon, ..To::new(to.dv.add(row * to.dv_rs), to.dv_rs) };
                product(count, dv, m - i, p, self.grad.from(i, 0), &dv_to);
                let dk_to = To { add: !fresh, soon, ..To::new(to.dk.add(row * to.dk_rs), to.dk_rs) };
                product(count, d, m - i, ds, self.q.from(i, 0), &dk_to);
            }
        }
    }

    /// How many of some keys the block of rows that starts at `i` sees: a multiple of `ROWS`, or all of them.
    fn seen(&self, i: usize, keys: &Range<usize>) -> usize {
        let end = (self.rows.start + i + ROWS).min(self.rows.end);
        self.x.seen(end).saturating_sub(keys.start).min(keys.len())
    }
}
