//! The kernels of `product` for AVX2 and AVX-512.

// Rows, columns and registers are named by their numbers here.
#![allow(clippy::needless_range_loop)]

use super::{Mat, To, isa, panels};
use std::arch::x86_64::*;

#[path = "product_few.rs"]
mod few;
#[path = "product_thirds.rs"]
pub mod thirds;
#[path = "product_twelve.rs"]
mod twelve;
#[path = "product_vector.rs"]
mod vector;

use few::few;
use twelve::{Ahead, LEFTS, RIGHTS, ROUND};
use vector::Vector;
pub use vector::turn_words;

/// What a tile of a result is made of, over `k` terms.
struct Tile<V: Vector> {
    k: usize,
    a: Mat<V::T>,
    b: *const V::T,
    b_rs: isize,
    /// The lanes of the last vector of a row, and whether those are all.
    mask: V::Mask,
    whole: bool,
}

impl<V: Vector> Tile<V> {
    /// Adds the terms to `R` rows by `N` vectors of sums.
    #[inline(always)]
    unsafe fn add<const R: usize, const N: usize>(&self, sums: &mut [[V; N]; R]) {
        let (a, mut b) = (self.a, self.b);
        // Three rows to a pointer: few enough to stay in registers.
        let mut heads = [a.at; 4];
        for (g, head) in heads.iter_mut().enumerate() {
            *head = head.wrapping_offset(3 * g as isize * a.rs);
        }
        for _ in 0..self.k {
            // SAFETY: as the caller of `product` promises.
            unsafe {
                let mut line = [V::zero(); N];
                for (j, x) in line.iter_mut().enumerate() {
                    let at = b.wrapping_add(j * V::LANES);
                    *x = if j == N - 1 { V::load_some(at, self.mask) } else { V::load(at) };
                }
                for i in 0..R {
                    let x = V::splat(heads[i / 3].wrapping_offset((i % 3) as isize * a.rs));
                    for j in 0..N {
                        sums[i][j] = sums[i][j].fma(x, line[j]);
                    }
                }
            }
            for head in heads.iter_mut().take(R.div_ceil(3)) {
                *head = head.wrapping_offset(a.cs);
            }
            b = b.wrapping_offset(self.b_rs);
        }
    }

    /// `R` rows by `N` vectors of a result.
    #[inline(always)]
    unsafe fn make<const R: usize, const N: usize>(&self, c: &To<V::T>, ahead: &Ahead) {
        // SAFETY: as the caller of `product` promises.
        unsafe {
            let mut sums = [[V::zero(); N]; R];
            let mask = self.mask;
            let at = |i: usize, j: usize| c.at.add(i * c.rs + j * V::LANES);
            if c.add {
                for (i, row) in sums.iter_mut().enumerate() {
                    for (j, sum) in row.iter_mut().enumerate() {
                        *sum = if j == N - 1 { V::load_some(at(i, j), mask) } else { V::load(at(i, j)) };
                    }
                }
            }
            if V::TWELVE && R == 12 && N == 2 && self.whole {
                V::twelve(&raw mut sums as *mut V, self.k, self.a, self.b, self.b_rs, *ahead);
            } else {
                if ahead.result_step != 0 {
                    for i in 0..R as isize {
                        _mm_prefetch::<_MM_HINT_T0>(ahead.result.wrapping_offset(i * ahead.result_step));
                    }
                }
                self.add(&mut sums);
            }
            if !c.bias.is_null() {
                for j in 0..N {
                    let at = c.bias.add(j * V::LANES);
                    let x = if j == N - 1 { V::load_some(at, mask) } else { V::load(at) };
                    for row in sums.iter_mut() {
                        row[j] = row[j].plus(x);
                    }
                }
            }
            for (i, row) in sums.iter().enumerate() {
                for (j, sum) in row.iter().enumerate() {
                    if j == N - 1 { sum.store_some(at(i, j), mask) } else { sum.store(at(i, j)) }
                }
            }
        }
    }

    /// A tile of `rows` rows.
    #[inline(always)]
    unsafe fn of_rows<const N: usize>(&self, rows: usize, c: &To<V::T>, ahead: &Ahead) {
        macro_rules! rows {
            ($($r:literal)*) => {
                // SAFETY: passed on from the caller.
                unsafe {
                    match rows {
                        $($r if $r <= V::ROWS => self.make::<$r, N>(c, ahead),)*
                        _ => {}
                    }
                }
            };
        }
        rows!(1 2 3 4 5 6 7 8 9 10 11 12)
    }
}

/// Terms of a block: a panel of the right side and a tile of the left side stay in the first-level cache.
const BLOCK_TERMS: usize = 256;
/// Rows of a block: its left side stays in the second-level cache.
const BLOCK_ROWS: usize = 528;
/// Bytes of an operand or a result that is hardly in the second-level cache when it is needed.
const LARGE: usize = 128 << 10;
/// Bytes from a term to the next from which on a left side that lies across is copied.
const ACROSS: usize = 512;
/// Terms of it that are copied at a time.
const SOME: usize = 32;
/// Bytes of a cache line.
const LINE: usize = 64;

/// How many of the rows that are left a tile takes: no tile is left with a row or two if it can be helped.
#[inline(always)]
fn share(left: usize, most: usize) -> usize {
    if left >= 2 * most || left <= most { left.min(most) } else { left.div_ceil(2) }
}

/// How tiles read the left side of a block.
#[derive(Clone, Copy, PartialEq)]
enum Lefts {
    /// Where it lies.
    There,
    /// From a copy whose rows begin in different sets of the first-level cache: there, rows that lie multiples of a page apart
    /// fall on one another.
    Lines,
    /// From a copy that has the rows of a tile beside each other for each term.
    Tiles,
}

impl Lefts {
    #[inline(always)]
    fn of<T>(a: &Mat<T>, n: usize, k: usize, width: usize) -> Lefts {
        let step = |s: isize| s.unsigned_abs() * std::mem::size_of::<T>();
        let aliased = a.cs == 1 && step(a.rs).is_multiple_of(4096);
        let across = a.rs == 1 && step(a.cs) >= ACROSS;
        match n >= 2 * width && k >= 64 {
            true if isa::asks_sparingly() && (aliased || across) => Lefts::Tiles,
            true if aliased => Lefts::Lines,
            _ => Lefts::There,
        }
    }

    /// Elements that a copy takes.
    #[inline(always)]
    fn room<V: Vector>(self) -> usize {
        match self {
            Lefts::There => 0,
            Lefts::Lines => BLOCK_ROWS * row_pitch::<V>(),
            Lefts::Tiles => BLOCK_ROWS * BLOCK_TERMS,
        }
    }
}

/// One product, and how it is cut into blocks.
struct Job<'a, V: Vector> {
    n: usize,
    k: usize,
    a: Mat<V::T>,
    b: Mat<V::T>,
    c: &'a To<V::T>,
    lefts: Lefts,
    /// Room for a copy of a block of the left side.
    left_room: *mut V::T,
    /// Room for a panel of the right side, where it is copied.
    panel: Option<*mut V::T>,
    /// Operands and result are so large that they are asked for before they are needed.
    large: bool,
}

/// A part of the sums: `rows` rows from `top` on, `terms` terms from `first` on.
#[derive(Clone, Copy)]
struct Block<T> {
    top: usize,
    rows: usize,
    first: usize,
    terms: usize,
    /// Where its left side is read.
    left: Mat<T>,
}

#[inline(always)]
unsafe fn product<V: Vector>(m: usize, n: usize, k: usize, a: Mat<V::T>, b: Mat<V::T>, c: &To<V::T>) {
    // SAFETY: as the caller of `super::product` promises.
    unsafe {
        match m <= super::FEW && k >= super::LONG {
            true => few::<V>(m, n, k, a, b, c),
            false => in_order::<V>(m, n, k, a, b, c),
        }
    }
}

/// Each element of the result is one chain of multiply-adds in the order of its terms.
#[inline(always)]
unsafe fn in_order<V: Vector>(m: usize, n: usize, k: usize, a: Mat<V::T>, b: Mat<V::T>, c: &To<V::T>) {
    let size = std::mem::size_of::<V::T>();
    // SAFETY: as the caller of `super::product` promises.
    unsafe {
        let copy = b.cs != 1 || (m >= 24 && b.rs as usize * size >= 1024);
        let panel = BLOCK_TERMS * 2 * V::LANES;
        let lefts = Lefts::of(&a, n, k, 2 * V::LANES);
        let room = match copy || lefts != Lefts::There {
            true => panels((panel + lefts.room::<V>()) * size) as *mut V::T,
            false => c.at,
        };
        let left_room = room.wrapping_add(panel);
        let large = (m * n).max(m * k).max(n * k) * size >= LARGE;
        let job = Job::<V> { n, k, a, b, c, lefts, left_room, panel: copy.then_some(room), large };
        let most = m.div_ceil(m.div_ceil(BLOCK_ROWS)).next_multiple_of(V::ROWS);
        for top in (0..m).step_by(most) {
            for first in (0..k).step_by(BLOCK_TERMS) {
                job.block(top, most.min(m - top), first, BLOCK_TERMS.min(k - first));
            }
        }
    }
}

/// Elements from a row of a copied left side to the next: a cache line more than the terms, so that rows begin in different
/// sets.
#[inline(always)]
fn row_pitch<V: Vector>() -> usize {
    BLOCK_TERMS + LINE / std::mem::size_of::<V::T>()
}

impl<V: Vector> Job<'_, V> {
    const WIDTH: usize = 2 * V::LANES;

    /// Adds the products of a block to the result, or begins it.
    #[inline(always)]
    unsafe fn block(&self, top: usize, rows: usize, first: usize, terms: usize) {
        let mut block = Block { top, rows, first, terms, left: self.a.from(top, first) };
        // SAFETY: as the caller promises.
        unsafe {
            match self.lefts {
                Lefts::There => {}
                Lefts::Lines => {
                    copy_lines::<V>(block.left, self.left_room, row_pitch::<V>(), rows, terms);
                    block.left = Mat::new(self.left_room, row_pitch::<V>() as isize, 1);
                }
                Lefts::Tiles => copy_tiles::<V>(block.left, self.left_room, rows, terms),
            }
            for col in (0..self.n).step_by(Self::WIDTH) {
                self.columns(&block, col);
            }
        }
    }

    /// A panel of columns from `col` on, over all rows of a block.
    #[inline(always)]
    unsafe fn columns(&self, block: &Block<V::T>, col: usize) {
        let (c, terms) = (self.c, block.terms);
        let (cols, last) = (Self::WIDTH.min(self.n - col), block.first + terms == self.k);
        let from = self.b.from(block.first, col);
        let wide = cols > V::LANES;
        // SAFETY: as the caller promises.
        unsafe {
            let (right, right_rs) = match self.panel {
                Some(room) => {
                    fill::<V>(from, room, Self::WIDTH, terms, cols);
                    (room as *const V::T, Self::WIDTH as isize)
                }
                None => (from.at, self.b.rs),
            };
            let mask = V::mask(if wide { cols - V::LANES } else { cols });
            let (mut i, mut t) = (0, 0);
            while i < block.rows {
                let r = share(block.rows - i, V::ROWS);
                let to = To {
                    at: c.at.add((block.top + i) * c.rs + col),
                    rs: c.rs,
                    soon: c.soon,
                    add: c.add || block.first > 0,
                    bias: if last && !c.bias.is_null() { c.bias.add(col) } else { std::ptr::null() },
                };
                let whole = cols == Self::WIDTH;
                let a = match self.lefts {
                    Lefts::Tiles => Mat::new(self.left_room.add(i * terms), 1, r as isize),
                    _ => block.left.from(i, 0),
                };
                let tile = Tile::<V> { k: terms, a, b: right, b_rs: right_rs, mask, whole };
                let ahead = self.ahead(block, col, i, t);
                if wide {
                    tile.of_rows::<2>(r, &to, &ahead);
                } else {
                    tile.of_rows::<1>(r, &to, &ahead);
                }
                if !c.soon.is_null() {
                    (*c.soon).ask();
                }
                i += r;
                t += 1;
            }
        }
    }

    /// What tile `t` of a panel, which begins at row `i`, is to ask for: the left side of the next tile where it is read for
    /// the first time, or some of the next block's where that lies across; some of the next panel; the next tile's result.
    /// Processors that have little room for lines on their way are asked only for what they do not find themselves.
    #[inline(always)]
    fn ahead(&self, block: &Block<V::T>, col: usize, i: usize, t: usize) -> Ahead {
        let size = std::mem::size_of::<V::T>();
        let each = LINE / size;
        let bytes = |elements: isize| elements * size as isize;
        let (b, c, terms) = (self.b, self.c, block.terms);
        let at = |x: Mat<V::T>| x.at as *const i8;
        let mut ahead = Ahead::none(at(self.a));
        if !self.large {
            return ahead;
        }
        let sparing = isa::asks_sparingly();
        if !sparing {
            self.ask_left(block, col, i, t, &mut ahead);
        } else if self.lefts == Lefts::Tiles && self.a.rs == 1 && b.cs == 1 {
            self.ask_block(block, col, t, &mut ahead);
        }
        if (block.first == 0 || sparing) && i + V::ROWS < block.rows {
            ahead.result = c.at.wrapping_add((block.top + i + V::ROWS) * c.rs + col) as *const i8;
            ahead.result_step = bytes(c.rs as isize);
        }
        let next = match col + Self::WIDTH < self.n {
            true => b.from(block.first, col + Self::WIDTH),
            false if block.first + terms < self.k => b.from(block.first + terms, 0),
            false => return ahead,
        };
        if b.cs == 1 && !sparing {
            ahead.right = at(next.from(t / 2 * (terms / ROUND * RIGHTS), t % 2 * each));
            ahead.right_step = bytes(b.rs);
        } else if b.cs != 1 && b.rs == 1 {
            ahead.right = at(next.from(t * each % terms.max(1), 0));
            ahead.right_step = bytes(b.cs);
        }
        ahead
    }

    /// Some of both sides of the next block, a line of each term: few enough that others find room beside them.
    #[inline(always)]
    fn ask_block(&self, block: &Block<V::T>, col: usize, t: usize, ahead: &mut Ahead) {
        let next = block.first + block.terms;
        if next >= self.k {
            return;
        }
        let size = std::mem::size_of::<V::T>();
        let each = LINE / size;
        // Terms of a tile, and how often as many make a block.
        let asked = (block.terms / ROUND * RIGHTS).max(1);
        let times = block.terms.div_ceil(asked);
        let at = t + col / Self::WIDTH * block.rows.div_ceil(V::ROWS);
        let (rights, lefts) = (self.n.div_ceil(each), block.rows.div_ceil(each));
        let (from, step) = match at.checked_sub(rights * times) {
            None => (self.b.from(next + at / rights * asked, at % rights * each), self.b.rs),
            Some(at) if at < lefts * times => {
                (self.a.from(block.top + at % lefts * each, next + at / lefts * asked), self.a.cs)
            }
            Some(_) => return,
        };
        (ahead.right, ahead.right_step) = (from.at as *const i8, step * size as isize);
    }

    /// The left side of the next tile, or some of the next block's.
    #[inline(always)]
    fn ask_left(&self, block: &Block<V::T>, col: usize, i: usize, t: usize, ahead: &mut Ahead) {
        let size = std::mem::size_of::<V::T>();
        let each = LINE / size;
        let bytes = |elements: isize| elements * size as isize;
        let (a, terms) = (self.a, block.terms);
        if self.lefts == Lefts::There && a.cs == 1 {
            if col == 0 && i + V::ROWS < block.rows {
                ahead.left = block.left.from(i + V::ROWS, 0).at as *const i8;
                (ahead.left_step, ahead.left_turn) =
                    (bytes(a.rs), LINE as isize - bytes(LEFTS as isize * a.rs));
            }
        } else if block.first + terms < self.k {
            // Along the lines: the first line of each row or term of the next block, then the second.
            let (rs, lines) = if a.cs == 1 { (a.rs, terms / each) } else { (a.cs, block.rows / each) };
            let t = t + col / Self::WIDTH * block.rows.div_ceil(V::ROWS);
            let (line, start) = (t % lines.max(1), t / lines.max(1) * (terms / ROUND * LEFTS));
            let from = a.from(block.top, block.first + terms).at;
            ahead.left = from.wrapping_offset((line * each) as isize + start as isize * rs) as *const i8;
            ahead.left_step = bytes(rs);
        }
    }
}

/// Copies rows of a left side tile by tile, the rows of a tile beside each other for each term.
#[inline(always)]
unsafe fn copy_tiles<V: Vector>(from: Mat<V::T>, to: *mut V::T, rows: usize, terms: usize) {
    // What lies across is read some terms at a time, so that all of a line is read while it is in the cache.
    let some = if from.rs == 1 { SOME } else { terms };
    for first in (0..terms).step_by(some) {
        let count = some.min(terms - first);
        let mut i = 0;
        while i < rows {
            let r = share(rows - i, V::ROWS);
            // SAFETY: as the caller promises; the copy has room for all rows of all terms.
            unsafe {
                let (from, to) = (from.from(i, first), to.add(i * terms + first * r));
                if from.rs == 1 {
                    let whole = (r - 1) / V::LANES * V::LANES;
                    let mask = V::mask(r - whole);
                    let done = if r == 12 { V::copy_twelve(from.at, from.cs, to, count) } else { 0 };
                    for p in done..count {
                        let (from, to) = (from.from(0, p).at, to.add(p * r));
                        for j in (0..whole).step_by(V::LANES) {
                            V::load(from.add(j)).store(to.add(j));
                        }
                        V::load_some(from.add(whole), mask).store_some(to.add(whole), mask);
                    }
                } else {
                    V::turn(from.at, from.rs, to, r, r, count);
                }
            }
            i += r;
        }
    }
}

/// Copies rows of `n` elements.
#[inline(always)]
unsafe fn copy_lines<V: Vector>(from: Mat<V::T>, to: *mut V::T, pitch: usize, rows: usize, n: usize) {
    let whole = n / V::LANES * V::LANES;
    // SAFETY: as the caller promises; the pitch has room for whole vectors.
    unsafe {
        let mask = V::mask(n - whole);
        for i in 0..rows {
            let (from, to) = (from.from(i, 0).at, to.add(i * pitch));
            for j in (0..whole).step_by(V::LANES) {
                V::load(from.add(j)).store(to.add(j));
            }
            if whole < n {
                V::load_some(from.add(whole), mask).store(to.add(whole));
            }
        }
    }
}

/// Copies `terms` rows of `cols` columns into a panel `width` wide.
#[inline(always)]
unsafe fn fill<V: Vector>(from: Mat<V::T>, to: *mut V::T, width: usize, terms: usize, cols: usize) {
    // SAFETY: as the caller promises.
    unsafe {
        if from.rs == 1 {
            V::turn(from.at, from.cs, to, width, cols, terms);
        } else if from.cs == 1 {
            let wide = cols > V::LANES;
            let mask = V::mask(if wide { cols - V::LANES } else { cols });
            for p in 0..terms {
                let (row, to) = (from.at.offset(p as isize * from.rs), to.add(p * width));
                if wide {
                    V::load(row).store(to);
                    V::load_some(row.add(V::LANES), mask).store(to.add(V::LANES));
                } else {
                    V::load_some(row, mask).store(to);
                }
            }
        } else {
            for p in 0..terms {
                for j in 0..cols {
                    *to.add(p * width + j) = *from.from(p, j).at;
                }
            }
        }
    }
}

macro_rules! entry {
    ($($name:ident $body:ident $v:ty, $t:ty, $features:literal;)*) => {$(
        #[target_feature(enable = $features)]
        pub unsafe fn $name(m: usize, n: usize, k: usize, a: Mat<$t>, b: Mat<$t>, c: &To<$t>) {
            // SAFETY: passed on from the caller.
            unsafe { $body::<$v>(m, n, k, a, b, c) }
        }
    )*};
}

entry! {
    f32_v4 product __m512, f32, "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl";
    chains in_order __m512, f32, "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl";
    f64_v4 product __m512d, f64, "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl";
    f32_v3 product __m256, f32, "avx2,fma";
    f64_v3 product __m256d, f64, "avx2,fma";
}
