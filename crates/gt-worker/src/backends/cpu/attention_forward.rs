//! Attention forward: blocks of query rows against blocks of keys.

use super::super::convert::Lane;
use super::super::product::{Mat, To, product};
use super::super::soon::Soon;
use super::super::threads::{Ptr, Threads};
use super::rows::{blend_row, divide, larger, soften};
use super::{ALONE, Attention, KEYS, Num, ROWS, Scratch, TASKS, View};
use super::{close, matrix, same, turned, turned_pitch, write};
use std::ops::Range;

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
    let group = x.group();
    let (y, out, lse) = match x.sizes.queries == 1 && group > 1 {
        true => (x.regrouped(), out.regrouped(group), lse.map(|x| x.regrouped(group))),
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
                unsafe {
                    let (scratch, to) = (Scratch::new(need::<T>(x)), partial(u, p));
                    some_keys(x, head, rows, keys, None, scratch, &to, &Soon::none())
                };
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
    // A head is cut into tasks where there are few; those take turns at its blocks, for later ones see more.
    let heads = s.batch * s.heads;
    let cuts = if alone { 1 } else { (2 * count).div_ceil(heads).min(blocks) };
    let tasks = if alone { 1 } else { (heads * cuts).min(TASKS * count) };
    let straight = same::<T>(out.dtype) && out.strides[3] == 1 && out.strides[2] >= 0;
    threads.run(tasks, &|t| {
        let mut numbers = [T::default(); 4 * ROWS];
        let numbers = numbers.as_mut_ptr();
        let mut room = vec![T::default(); if straight && parts == 1 { 0 } else { 2 * ROWS * s.value_width }];
        let room = room.as_mut_ptr();
        let parts_of = |t: usize| heads * cuts * t / tasks..heads * cuts * (t + 1) / tasks;
        for part in parts_of(t) {
            let (u, cut) = (part / cuts, part % cuts);
            // The next head of this task, or what is likely to be this thread's next task.
            let next = if part + 1 < parts_of(t).end { part + 1 } else { parts_of(t + count).start };
            let soon = soon(x, &out, next / cuts).over(tiles(x) / cuts);
            let mut scratch = Scratch::new(need::<T>(x));
            // SAFETY: the keys exist; scratch is this thread's own.
            let ready =
                ready_once(x).then(|| unsafe { Keys::new(x, place(u * blocks).0, 0..s.keys, &mut scratch) });
            for block in (cut..blocks).step_by(cuts) {
                let (head, rows) = place(u * blocks + block);
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
                    some_keys(x, head, rows.clone(), 0..KEYS.min(seen), ready, scratch, &whole, &soon);
                    for first in (KEYS..seen).step_by(KEYS) {
                        let keys = first..(first + KEYS).min(seen);
                        some_keys(x, head, rows.clone(), keys, ready, scratch, &more, &soon);
                        merge(&whole, &more, rows.len(), s.value_width);
                    }
                    finish(&whole, head, rows, s.value_width, &out, lse.as_ref());
                }
            }
        }
    });
}

/// What head `u` reads and writes.
fn soon(x: &Attention, out: &View, u: usize) -> Soon {
    let s = &x.sizes;
    if u >= s.batch * s.heads {
        return Soon::none();
    }
    let head = (u / s.heads, u % s.heads);
    let kv = (head.0, head.1 / x.group());
    let soon = x.v.soon(x.k.soon(Soon::none(), kv, s.keys, s.width), kv, s.keys, s.value_width);
    let soon = x.q.soon(soon, head, s.queries, s.width);
    out.soon(soon, head, s.queries, s.value_width)
}

/// Tiles of the products of a head, roughly.
fn tiles(x: &Attention) -> usize {
    let s = &x.sizes;
    let all = s.queries.div_ceil(12) * (s.keys.div_ceil(32) + s.value_width.div_ceil(32));
    if x.causal { all.div_ceil(2) } else { all }
}

/// Keys and values of a head as the right sides of products.
#[derive(Clone, Copy)]
struct Keys<T> {
    /// The first of them.
    first: usize,
    /// [width, keys].
    k: Mat<T>,
    /// [keys, value width].
    v: Mat<T>,
}

/// True if keys are made ready once for all rows of a task, and not for each block again: many rows use them, and they stay
/// in a cache.
fn ready_once(x: &Attention) -> bool {
    let s = &x.sizes;
    s.queries >= 2 * ROWS && s.keys * (s.width + s.value_width) <= 1 << 20
}

/// Elements of scratch a task needs at most.
fn need<T: Num>(x: &Attention) -> usize {
    let s = &x.sizes;
    let keys = if ready_once(x) { s.keys } else { s.keys.min(KEYS) };
    let turned = if ready_once(x) { s.width * turned_pitch(keys) } else { 0 };
    keys * (s.width + s.value_width) + turned + ROWS * (s.keys.min(KEYS) + 16 + s.width)
}

impl<T: Num> Keys<T> {
    /// Makes keys ready, in `scratch` where they do not lie as they should.
    ///
    /// # Safety
    /// The keys exist, and the scratch has room for them.
    unsafe fn new(
        x: &Attention,
        (b, h): (usize, usize),
        keys: Range<usize>,
        scratch: &mut Scratch<T>,
    ) -> Keys<T> {
        let s = &x.sizes;
        let (kv, n) = ((b, h / x.group()), keys.len());
        let (room_k, room_v) = (scratch.take(n * s.width), scratch.take(n * s.value_width));
        // SAFETY: as the caller promises.
        unsafe {
            let k = matrix(&x.k, kv, keys.start, n, s.width, room_k);
            let v = matrix(&x.v, kv, keys.start, n, s.value_width, room_v);
            if !ready_once(x) {
                return Keys { first: keys.start, k: k.t(), v };
            }
            let k = turned(k, n, s.width, scratch.take(s.width * turned_pitch(n)));
            Keys { first: keys.start, k, v: close(v, n, s.value_width, room_v) }
        }
    }
}

/// What `keys` contribute to `rows`; they may be among those that are `ready`.
unsafe fn some_keys<T: Num>(
    x: &Attention,
    (b, h): (usize, usize),
    rows: Range<usize>,
    keys: Range<usize>,
    ready: Option<Keys<T>>,
    mut scratch: Scratch<T>,
    to: &Partial<T>,
    soon: &Soon,
) {
    let s = &x.sizes;
    let (m, n) = (rows.len(), keys.len());
    let pitch = n.next_multiple_of(16);
    let wide = if same::<T>(x.q.dtype) { 0 } else { 1 };
    let scores = scratch.take(m * pitch);
    // SAFETY: the rows and keys exist; scratch is this thread's own.
    unsafe {
        let q = matrix(&x.q, (b, h), rows.start, m, s.width, scratch.take(wide * m * s.width));
        let ready = match ready {
            Some(ready) => ready,
            None => Keys::new(x, (b, h), keys.clone(), &mut scratch),
        };
        let first = keys.start - ready.first;
        product(m, n, s.width, q, ready.k.from(0, first), &To { soon, ..To::new(scores, pitch) });
        let seen = x.visible(rows.start, keys.clone());
        let scale = x.put_mask((b, h), rows.clone(), keys.start, seen, scores, pitch);
        soften(scores, m, pitch, seen, scale, to.tops, to.sums);
        let p = Mat::new(scores as *const T, pitch as isize, 1);
        product(m, s.value_width, n, p, ready.v.from(first, 0), &To { soon, ..To::new(to.out, to.pitch) });
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
