//! Steps that read and write at indices. The indices have been checked.

use super::convert::{narrow, widen};
use super::isa::per_isa;
use super::kernel::{Bases, tasks};
use super::threads::{Ptr, Threads};
use gt_compiler::{Num, Operand, Tensor};
use gt_ir::real::Real;
use gt_ir::{DType, Error, Kind, ScatterMode, Shape};
use std::borrow::Cow;

fn start(x: &Tensor, bases: Bases) -> *mut u8 {
    let offset = x.map.offset(bases.slots) * x.dtype.size() as isize;
    bases.ptrs[x.storage as usize].wrapping_offset(offset)
}

/// A packed integer tensor as i64.
fn indices<'a>(x: &Tensor, bases: Bases<'a>) -> Cow<'a, [i64]> {
    let n = x.shape.numel();
    let at = start(x, bases);
    if n == 0 {
        return Cow::Borrowed(&[]);
    }
    fn all<T: Copy>(at: *const u8, n: usize, f: impl Fn(T) -> i64) -> Cow<'static, [i64]> {
        // SAFETY: the storage holds `n` packed elements of this type.
        Cow::Owned(unsafe { std::slice::from_raw_parts(at as *const T, n) }.iter().map(|&x| f(x)).collect())
    }
    match x.dtype {
        // SAFETY: as above; nobody writes the storage while the step runs.
        DType::I64 => Cow::Borrowed(unsafe { std::slice::from_raw_parts(at as *const i64, n) }),
        DType::I32 => all(at, n, |x: i32| x as i64),
        DType::I16 => all(at, n, |x: i16| x as i64),
        DType::I8 => all(at, n, |x: i8| x as i64),
        _ => all(at, n, |x: u8| x as i64),
    }
}

/// The first index that is out of range, as a person should read it.
pub fn check_index(
    index: &Tensor,
    size: usize,
    wrap: bool,
    what: (&str, usize),
    bases: Bases,
) -> Result<(), Error> {
    let low = if wrap { -(size as i64) } else { 0 };
    match indices(index, bases).iter().find(|&&i| i < low || i >= size as i64) {
        None => Ok(()),
        Some(i) => Err(Error::out_of_bounds(*i, what.1, size).map_message(|m| format!("{}: {m}", what.0))),
    }
}

/// An error if an integer divisor is zero.
pub fn check_nonzero(divisor: &Operand, dtype: DType, name: &str, bases: Bases) -> Result<(), Error> {
    let zero = match divisor {
        Operand::Num(x) => x.get(bases.slots).to_dtype(dtype).as_i64() == 0,
        Operand::Tensor(t) => indices(t, bases).contains(&0),
    };
    match zero {
        false => Ok(()),
        true => Err(Error::Runtime(format!("{name}: ZeroDivisionError: integer division or modulo by zero"))),
    }
}

/// Calls `f(i, at)` for every element i of `shape` in `range`, `at` being its place in a dense tensor of shape
/// `base` with 0 as coordinate along `dim`.
fn each_place(
    shape: &Shape,
    base: &Shape,
    dim: usize,
    range: std::ops::Range<usize>,
    mut f: impl FnMut(usize, usize),
) {
    let strides = base.strides();
    let rank = shape.len();
    let stride = |d: usize| if d == dim { 0 } else { strides[d] as usize };
    let inner = shape[rank - 1];
    let mut i = range.start;
    while i < range.end {
        let (mut rest, mut at) = (i / inner, 0);
        for d in (0..rank - 1).rev() {
            at += rest % shape[d] * stride(d);
            rest /= shape[d];
        }
        let first = i % inner;
        let run = (inner - first).min(range.end - i);
        for j in 0..run {
            f(i + j, at + (first + j) * stride(rank - 1));
        }
        i += run;
    }
}

macro_rules! per_size {
    ($size:expr, $f:ident ( $($arg:expr),* )) => {
        match $size {
            1 => $f::<u8>($($arg),*),
            2 => $f::<u16>($($arg),*),
            4 => $f::<u32>($($arg),*),
            _ => $f::<u64>($($arg),*),
        }
    };
}

pub fn gather(dim: usize, x: &Tensor, index: &Tensor, out: u32, bases: Bases, threads: &Threads) {
    per_size!(x.dtype.size(), gather_of(dim, x, index, out, bases, threads))
}

fn gather_of<T: Copy>(dim: usize, x: &Tensor, index: &Tensor, out: u32, bases: Bases, threads: &Threads) {
    let at = indices(index, bases);
    let stride = x.shape.strides()[dim] as usize;
    let (from, to) = (Ptr::new(start(x, bases)), Ptr::new(bases.ptrs[out as usize]));
    let tasks = tasks(threads, at.len() * 4, at.len());
    threads.run(tasks, &|t| {
        let range = at.len() * t / tasks..at.len() * (t + 1) / tasks;
        each_place(&index.shape, &x.shape, dim, range, |i, place| {
            // SAFETY: indices are in range, so the place exists; every element is written by one task.
            unsafe {
                *(to.get() as *mut T).add(i) = *(from.get() as *const T).add(place + at[i] as usize * stride)
            };
        });
    });
}

/// A dense shape as [outer][n][inner] around a dimension.
fn around(shape: &Shape, dim: usize) -> (usize, usize, usize) {
    (shape[..dim].iter().product(), shape[dim], shape[dim + 1..].iter().product())
}

fn wrapped(i: i64, n: usize) -> usize {
    (if i < 0 { i + n as i64 } else { i }) as usize
}

pub fn take(dim: usize, x: &Tensor, index: &Tensor, out: u32, bases: Bases, threads: &Threads) {
    let (outer, n, inner) = around(&x.shape, dim);
    let at = indices(index, bases);
    let bytes = inner * x.dtype.size();
    let rows = outer * at.len();
    if rows * bytes == 0 {
        return;
    }
    let (from, to) = (Ptr::new(start(x, bases)), Ptr::new(bases.ptrs[out as usize]));
    let tasks = tasks(threads, rows * (inner + 4), rows);
    threads.run(tasks, &|t| {
        let (mut r, end) = (rows * t / tasks, rows * (t + 1) / tasks);
        while r < end {
            let (o, first) = (r / at.len(), r % at.len());
            let run = (at.len() - first).min(end - r);
            let from = from.get().wrapping_add(o * n * bytes);
            for (i, &k) in at[first..first + run].iter().enumerate() {
                // SAFETY: the index is in range, so the row exists; rows of the result are disjoint.
                unsafe { copy_row(from.add(wrapped(k, n) * bytes), to.get().add((r + i) * bytes), bytes) };
            }
            r += run;
        }
    });
}

/// Copies a row: short ones, such as single elements, without a call.
///
/// # Safety
/// Both sides hold `bytes` bytes and do not overlap.
#[inline(always)]
unsafe fn copy_row(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: as the caller promises.
    unsafe {
        match bytes {
            1 => *to = *from,
            2 => (to as *mut u16).write_unaligned((from as *const u16).read_unaligned()),
            4 => (to as *mut u32).write_unaligned((from as *const u32).read_unaligned()),
            8 => (to as *mut u64).write_unaligned((from as *const u64).read_unaligned()),
            _ => std::ptr::copy_nonoverlapping(from, to, bytes),
        }
    }
}

/// How elements of a type meet in a scatter.
trait Meets: Copy + Sync {
    fn sum(a: Self, b: Self) -> Self;
    fn larger(a: Self, b: Self) -> Self;

    #[inline(always)]
    fn meet(mode: ScatterMode, a: Self, b: Self) -> Self {
        match mode {
            ScatterMode::Set => b,
            ScatterMode::Add => Self::sum(a, b),
            ScatterMode::Max => Self::larger(a, b),
        }
    }
}

macro_rules! meets {
    ($($t:ty, $sum:expr, $larger:expr;)*) => {$(
        impl Meets for $t {
            #[inline(always)]
            fn sum(a: $t, b: $t) -> $t {
                let f: fn($t, $t) -> $t = $sum;
                f(a, b)
            }
            #[inline(always)]
            fn larger(a: $t, b: $t) -> $t {
                let f: fn($t, $t) -> $t = $larger;
                f(a, b)
            }
        }
    )*};
}

#[derive(Clone, Copy)]
#[repr(transparent)]
struct Flag(u8);

meets! {
    f32, |a, b| a + b, Real::maximum;
    f64, |a, b| a + b, Real::maximum;
    u8, u8::wrapping_add, Ord::max;
    i8, i8::wrapping_add, Ord::max;
    i16, i16::wrapping_add, Ord::max;
    i32, i32::wrapping_add, Ord::max;
    i64, i64::wrapping_add, Ord::max;
    Flag, |a, b| Flag(a.0 | b.0), |a, b| Flag(a.0 | b.0);
}

/// Where a scatter writes and what it reads, as packed memory of one type.
#[derive(Clone, Copy)]
struct Sides {
    base: Ptr,
    /// Elements in row-major order, or one for all (`step` 0).
    src: Ptr,
    step: usize,
}

/// Runs `body` on memory that sums are exact enough in: f32 copies for half types, the memory itself otherwise.
fn with_sides(
    dtype: DType,
    mode: ScatterMode,
    base: (*mut u8, usize),
    src: (*mut u8, usize, usize),
    body: impl Fn(DType, Sides),
) {
    if dtype.kind() != Kind::Float || dtype.size() != 2 || mode == ScatterMode::Set {
        return body(dtype, Sides { base: Ptr::new(base.0), src: Ptr::new(src.0), step: src.2 });
    }
    let (mut b, mut s) = (vec![0f32; base.1], vec![0f32; src.1]);
    // SAFETY: the memory holds that many elements of the type.
    unsafe {
        widen(dtype, base.0, b.as_mut_ptr() as *mut u8, base.1);
        widen(dtype, src.0, s.as_mut_ptr() as *mut u8, src.1);
        let sides = Sides {
            base: Ptr::new(b.as_mut_ptr() as *mut u8),
            src: Ptr::new(s.as_mut_ptr() as *mut u8),
            step: src.2,
        };
        body(DType::F32, sides);
        narrow(dtype, b.as_ptr() as *const u8, base.0, base.1);
    }
}

macro_rules! per_dtype {
    ($dtype:expr, $f:ident ( $($arg:expr),* )) => {
        match $dtype {
            DType::Bool => $f::<Flag>($($arg),*),
            DType::U8 => $f::<u8>($($arg),*),
            DType::I8 => $f::<i8>($($arg),*),
            // Halves come here only to be set, which any type of two bytes can do.
            DType::I16 | DType::F16 | DType::BF16 => $f::<i16>($($arg),*),
            DType::I32 => $f::<i32>($($arg),*),
            DType::I64 => $f::<i64>($($arg),*),
            DType::F32 => $f::<f32>($($arg),*),
            DType::F64 => $f::<f64>($($arg),*),
        }
    };
}

pub fn scatter(
    (dim, mode): (usize, ScatterMode),
    base: &Shape,
    index: &Tensor,
    src: &Operand,
    dtype: DType,
    out: u32,
    bases: Bases,
    threads: &Threads,
) {
    let at = indices(index, bases);
    let mut one = Vec::new();
    let (from, count, step) = match src {
        Operand::Tensor(t) => (start(t, bases), at.len(), 1),
        Operand::Num(x) => {
            let x: Num = *x;
            x.get(bases.slots).write(dtype, &mut one);
            one.resize(8, 0);
            (one.as_mut_ptr(), 1, 0)
        }
    };
    with_sides(dtype, mode, (bases.ptrs[out as usize], base.numel()), (from, count, step), |dtype, sides| {
        per_dtype!(dtype, scatter_of(dim, mode, base, &index.shape, &at, sides, threads))
    });
}

fn scatter_of<T: Meets>(
    dim: usize,
    mode: ScatterMode,
    base: &Shape,
    shape: &Shape,
    at: &[i64],
    sides: Sides,
    threads: &Threads,
) {
    let stride = base.strides()[dim] as usize;
    let n = base[dim];
    let put = |i: usize, place: usize| {
        // SAFETY: indices are in range, so the place exists, and it is this task's own.
        unsafe {
            let to = (sides.base.get() as *mut T).add(place + at[i] as usize * stride);
            let x = (sides.src.get() as *const T).add(i * sides.step).read_unaligned();
            *to = T::meet(mode, *to, x);
        }
    };
    // Tasks own whole slices of the base where dimensions before `dim` tell them apart, ranges of `dim` otherwise, so
    // that every element sees its writers in order.
    let outer: usize = shape[..dim].iter().product();
    let slices = tasks(threads, at.len() * 8, outer);
    if slices > 1 {
        let each = at.len() / outer;
        threads.run(slices, &|t| {
            let range = outer * t / slices * each..outer * (t + 1) / slices * each;
            each_place(shape, base, dim, range, put);
        });
        return;
    }
    // Every task looks at every index, so ranges pay only for a few.
    let ranges = tasks(threads, at.len() * 2, n).min(4).min(threads.count());
    threads.run(ranges, &|t| {
        let own = (n * t / ranges) as i64..(n * (t + 1) / ranges) as i64;
        each_place(shape, base, dim, 0..at.len(), |i, place| {
            if own.contains(&at[i]) {
                put(i, place);
            }
        });
    });
}

pub fn take_put(
    (dim, mode): (usize, ScatterMode),
    base: &Shape,
    index: &Tensor,
    src: &Tensor,
    out: u32,
    bases: Bases,
    threads: &Threads,
) {
    let at = indices(index, bases);
    let (outer, n, inner) = around(base, dim);
    let from = (start(src, bases), src.shape.numel(), 1);
    with_sides(src.dtype, mode, (bases.ptrs[out as usize], base.numel()), from, |dtype, sides| {
        per_dtype!(dtype, take_put_of(mode, (outer, n, inner), &at, sides, threads))
    });
}

fn take_put_of<T: Meets>(
    mode: ScatterMode,
    (outer, n, inner): (usize, usize, usize),
    at: &[i64],
    sides: Sides,
    threads: &Threads,
) {
    // Tasks own slices, columns or ranges of rows, so that every element sees its writers in order.
    let work = outer * at.len() * inner * 2;
    let count = |most: usize| tasks(threads, work, most);
    let (slices, columns) = (count(outer), count(inner / 64));
    if slices >= columns && slices > 1 {
        threads.run(slices, &|t| {
            let own = outer * t / slices..outer * (t + 1) / slices;
            // SAFETY: the slices are this task's own.
            unsafe { put_rows::<T>(mode, (own, n, inner), 0..inner, 0..n, at, sides) };
        });
    } else if columns > 1 || inner >= 64 {
        threads.run(columns.max(1), &|t| {
            let own = inner * t / columns.max(1)..inner * (t + 1) / columns.max(1);
            // SAFETY: the columns are this task's own.
            unsafe { put_rows::<T>(mode, (0..outer, n, inner), own, 0..n, at, sides) };
        });
    } else {
        let ranges = count(n).min(4).min(threads.count());
        threads.run(ranges.max(1), &|t| {
            let own = n * t / ranges.max(1)..n * (t + 1) / ranges.max(1);
            // SAFETY: the rows are this task's own.
            unsafe { put_rows::<T>(mode, (0..outer, n, inner), 0..inner, own, at, sides) };
        });
    }
}

per_isa! {
    /// Puts the columns `own` of those rows whose place lies in `places`.
    unsafe fn put_rows<T: Meets>(
        mode: ScatterMode,
        base: (std::ops::Range<usize>, usize, usize),
        own: std::ops::Range<usize>,
        places: std::ops::Range<usize>,
        at: &[i64],
        sides: Sides,
    ) {
        let (outer, n, inner) = base;
        for o in outer {
            if inner == 1 {
                // SAFETY: as below.
                unsafe { put_elements::<T>(mode, (o, n), places.clone(), at, sides) };
                continue;
            }
            for (i, &k) in at.iter().enumerate() {
                let place = wrapped(k, n);
                if !places.contains(&place) {
                    continue;
                }
                // SAFETY: the index is in range, so the row exists; the part is this task's own.
                unsafe {
                    let to = (sides.base.get() as *mut T).add((o * n + place) * inner + own.start);
                    let from = (sides.src.get() as *const T).add((o * at.len() + i) * inner + own.start);
                    let to = std::slice::from_raw_parts_mut(to, own.len());
                    let from = std::slice::from_raw_parts(from, own.len());
                    match mode {
                        ScatterMode::Set => to.copy_from_slice(from),
                        ScatterMode::Add => to.iter_mut().zip(from).for_each(|(a, &b)| *a = T::sum(*a, b)),
                        ScatterMode::Max => to.iter_mut().zip(from).for_each(|(a, &b)| *a = T::larger(*a, b)),
                    }
                }
            }
        }
    }
}

/// Puts the elements of one slice whose place lies in `places`.
///
/// # Safety
/// Indices are in range, and the places are this task's own.
#[inline(always)]
unsafe fn put_elements<T: Meets>(
    mode: ScatterMode,
    (o, n): (usize, usize),
    places: std::ops::Range<usize>,
    at: &[i64],
    sides: Sides,
) {
    // SAFETY: both sides hold all slices.
    let (to, from) = unsafe {
        let from = (sides.src.get() as *const T).add(o * at.len());
        ((sides.base.get() as *mut T).add(o * n), std::slice::from_raw_parts(from, at.len()))
    };
    let put = |meet: fn(T, T) -> T| {
        for (&k, &x) in at.iter().zip(from) {
            let place = wrapped(k, n);
            if places.contains(&place) {
                // SAFETY: as the caller promises.
                unsafe { *to.add(place) = meet(*to.add(place), x) };
            }
        }
    };
    match mode {
        ScatterMode::Set => put(|_, x| x),
        ScatterMode::Add => put(T::sum),
        ScatterMode::Max => put(T::larger),
    }
}
