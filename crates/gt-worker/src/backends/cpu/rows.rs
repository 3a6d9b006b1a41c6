//! Steps along one dimension of a packed tensor: softmax, scans, and the index of the extreme.

use super::convert::{Lane, bf16_to_f32, each, f16_to_f32, is_native, narrow, widen};
use super::fold::fold_list;
use super::isa::per_isa;
use super::kernel::{Bases, tasks};
use super::math::Fast;
use super::threads::{Ptr, Threads};
use gt_compiler::Tensor;
use gt_ir::real::Real;
use gt_ir::{ArgKind, DType, ReduceKind, ScanKind, Shape};

/// A shape as [outer][n][inner] around one dimension.
fn around(shape: &Shape, dim: usize) -> (usize, usize, usize) {
    if shape.is_empty() {
        return (1, 1, 1);
    }
    (shape[..dim].iter().product(), shape[dim], shape[dim + 1..].iter().product())
}

fn start(x: &Tensor, bases: Bases) -> Ptr {
    let offset = x.map.offset(bases.slots) * x.dtype.size() as isize;
    Ptr::new(bases.ptrs[x.storage as usize].wrapping_offset(offset))
}

/// What softmax computes in.
trait Soft: Real + super::fold::Folds + Default {}
impl Soft for f64 {}
impl Soft for Fast {}

impl Default for Fast {
    fn default() -> Fast {
        Fast(0.0)
    }
}

per_isa! {
    /// `y[i] = exp(x[i] - top)`.
    unsafe fn exp_less<T: Soft>(x: *const T, top: T, y: *mut T, n: usize) {
        // SAFETY: passed on from the caller.
        unsafe { each(x, y, n, |x: T| (x - top).exp()) }
    }
}

per_isa! {
    unsafe fn scale<T: Soft>(y: *mut T, by: T, n: usize) {
        // SAFETY: passed on from the caller.
        for y in unsafe { std::slice::from_raw_parts_mut(y, n) } {
            *y = *y * by;
        }
    }
}

per_isa! {
    /// `y[i] = x[i] - a - b`.
    unsafe fn less_two<T: Soft>(x: *const T, a: T, b: T, y: *mut T, n: usize) {
        // SAFETY: passed on from the caller.
        unsafe { each(x, y, n, |x: T| (x - a) - b) }
    }
}

/// Softmax of one row of `n` elements, or its logarithm, before rounding.
///
/// # Safety
/// Both sides hold `n` elements and do not overlap.
unsafe fn softmax_row<T: Soft>(log: bool, x: *const T, y: *mut T, n: usize) {
    // SAFETY: as the caller promises.
    unsafe {
        let top = fold_list(ReduceKind::Max, std::slice::from_raw_parts(x, n));
        exp_less(x, top, y, n);
        let total = fold_list(ReduceKind::Sum, std::slice::from_raw_parts(y, n));
        if log {
            less_two(x, top, total.log(), y, n);
        } else {
            scale(y, T::of(1.0) / total, n);
        }
    }
}

/// Softmax along `dim`, or its logarithm.
pub fn softmax(log: bool, dim: usize, x: &Tensor, out: u32, bases: Bases, threads: &Threads) {
    match Lane::of(x.dtype) {
        Lane::F64 => softmax_of::<f64>(log, dim, x, out, bases, threads),
        _ => softmax_of::<Fast>(log, dim, x, out, bases, threads),
    }
}

fn softmax_of<T: Soft>(log: bool, dim: usize, x: &Tensor, out: u32, bases: Bases, threads: &Threads) {
    /// Columns taken together where the dimension is not the last.
    const TOGETHER: usize = 16;
    let (outer, n, inner) = around(&x.shape, dim);
    if outer * n * inner == 0 {
        return;
    }
    let (dtype, size) = (x.dtype, x.dtype.size());
    let (from, to) = (start(x, bases), Ptr::new(bases.ptrs[out as usize]));
    let work = outer * n * inner * 12;
    if inner == 1 && is_native(dtype) {
        let tasks = tasks(threads, work, outer);
        threads.run(tasks, &|t| {
            for o in outer * t / tasks..outer * (t + 1) / tasks {
                // SAFETY: both tensors hold [outer][n] elements; rows are disjoint.
                unsafe {
                    let (x, y) = ((from.get() as *const T).add(o * n), (to.get() as *mut T).add(o * n));
                    softmax_row(log, x, y, n);
                }
            }
        });
        return;
    }
    let together = inner.min(TOGETHER);
    let groups = inner.div_ceil(together);
    let units = outer * groups;
    let tasks = tasks(threads, work, units);
    threads.run(tasks, &|t| {
        let (mut x, mut y) = (vec![T::default(); n * together], vec![T::default(); n * together]);
        let mut raw = vec![0u8; n * together * size];
        for u in units * t / tasks..units * (t + 1) / tasks {
            let (o, c) = (u / groups, u % groups * together);
            let count = together.min(inner - c);
            let at = (o * n * inner + c) * size;
            // SAFETY: the tensors hold [outer][n][inner] elements; units are disjoint; rows hold `n` elements each.
            unsafe {
                let (src, dst) = (from.get().add(at) as *const u8, to.get().add(at));
                for j in 0..n {
                    for k in 0..count {
                        let e = src.add((j * inner + k) * size);
                        std::ptr::copy_nonoverlapping(e, raw.as_mut_ptr().add((k * n + j) * size), size);
                    }
                }
                widen(dtype, raw.as_ptr(), x.as_mut_ptr() as *mut u8, n * count);
                for k in 0..count {
                    softmax_row(log, x.as_ptr().add(k * n), y.as_mut_ptr().add(k * n), n);
                }
                narrow(dtype, y.as_ptr() as *const u8, raw.as_mut_ptr(), n * count);
                for j in 0..n {
                    for k in 0..count {
                        let e = raw.as_ptr().add((k * n + j) * size);
                        std::ptr::copy_nonoverlapping(e, dst.add((j * inner + k) * size), size);
                    }
                }
            }
        }
    });
}

/// An element type of memory with a wider one to compare and add in.
trait Wide: Copy + Sync {
    type To: Copy + PartialOrd + Send;
    fn wide(self) -> Self::To;
    fn add(a: Self::To, b: Self::To) -> Self::To;
    fn mul(a: Self::To, b: Self::To) -> Self::To;
    fn back(x: Self::To) -> Self;
    fn is_nan(x: Self::To) -> bool;
}

macro_rules! wide {
    ($($t:ty => $w:ty, $wide:expr, $back:expr, $add:expr, $mul:expr, $nan:expr;)*) => {$(
        impl Wide for $t {
            type To = $w;
            #[inline(always)]
            fn wide(self) -> $w {
                let f: fn($t) -> $w = $wide;
                f(self)
            }
            #[inline(always)]
            fn add(a: $w, b: $w) -> $w {
                let f: fn($w, $w) -> $w = $add;
                f(a, b)
            }
            #[inline(always)]
            fn mul(a: $w, b: $w) -> $w {
                let f: fn($w, $w) -> $w = $mul;
                f(a, b)
            }
            #[inline(always)]
            fn back(x: $w) -> $t {
                let f: fn($w) -> $t = $back;
                f(x)
            }
            #[inline(always)]
            fn is_nan(x: $w) -> bool {
                let f: fn($w) -> bool = $nan;
                f(x)
            }
        }
    )*};
}

#[derive(Clone, Copy)]
#[repr(transparent)]
struct F16(u16);
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Bf16(u16);
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Flag(u8);

wide! {
    F16 => f32, |x| f16_to_f32(x.0), |x| F16(super::convert::f32_to_f16(x)), |a, b| a + b, |a, b| a * b, |x| x.is_nan();
    Bf16 => f32, |x| bf16_to_f32(x.0), |x| Bf16(super::convert::f32_to_bf16(x)), |a, b| a + b, |a, b| a * b, |x| x.is_nan();
    f32 => f64, |x| x as f64, |x| x as f32, |a, b| a + b, |a, b| a * b, |x| x.is_nan();
    f64 => f64, |x| x, |x| x, |a, b| a + b, |a, b| a * b, |x| x.is_nan();
    u8 => i64, |x| x as i64, |x| x as u8, i64::wrapping_add, i64::wrapping_mul, |_| false;
    i8 => i64, |x| x as i64, |x| x as i8, i64::wrapping_add, i64::wrapping_mul, |_| false;
    i16 => i64, |x| x as i64, |x| x as i16, i64::wrapping_add, i64::wrapping_mul, |_| false;
    i32 => i64, |x| x as i64, |x| x as i32, i64::wrapping_add, i64::wrapping_mul, |_| false;
    i64 => i64, |x| x, |x| x, i64::wrapping_add, i64::wrapping_mul, |_| false;
    Flag => i64, |x| x.0 as i64, |x| Flag((x != 0) as u8), i64::wrapping_add, i64::wrapping_mul, |_| false;
}

macro_rules! per_dtype {
    ($dtype:expr, $f:ident ( $($arg:expr),* )) => {
        match $dtype {
            DType::Bool => $f::<Flag>($($arg),*),
            DType::U8 => $f::<u8>($($arg),*),
            DType::I8 => $f::<i8>($($arg),*),
            DType::I16 => $f::<i16>($($arg),*),
            DType::I32 => $f::<i32>($($arg),*),
            DType::I64 => $f::<i64>($($arg),*),
            DType::F16 => $f::<F16>($($arg),*),
            DType::BF16 => $f::<Bf16>($($arg),*),
            DType::F32 => $f::<f32>($($arg),*),
            DType::F64 => $f::<f64>($($arg),*),
        }
    };
}

/// Index of the extreme along `dim`.
pub fn arg_reduce(kind: ArgKind, dim: usize, x: &Tensor, out: u32, bases: Bases, threads: &Threads) {
    per_dtype!(x.dtype, arg_reduce_of(kind, dim, x, out, bases, threads))
}

fn arg_reduce_of<E: Wide>(kind: ArgKind, dim: usize, x: &Tensor, out: u32, bases: Bases, threads: &Threads) {
    let (outer, n, inner) = around(&x.shape, dim);
    if outer * inner == 0 {
        return;
    }
    let (from, to) = (start(x, bases), Ptr::new(bases.ptrs[out as usize]));
    let better = |a: E::To, b: E::To| {
        !E::is_nan(b) && (E::is_nan(a) || if kind == ArgKind::Max { a > b } else { a < b })
    };
    let tasks = tasks(threads, outer * n * inner * 2, outer);
    threads.run(tasks, &|t| {
        let mut best: Vec<E::To> = Vec::with_capacity(inner);
        for o in outer * t / tasks..outer * (t + 1) / tasks {
            // SAFETY: the tensor holds [outer][n][inner] elements, the result [outer][inner].
            let (x, out) = unsafe {
                (
                    std::slice::from_raw_parts((from.get() as *const E).add(o * n * inner), n * inner),
                    std::slice::from_raw_parts_mut((to.get() as *mut i64).add(o * inner), inner),
                )
            };
            best.clear();
            best.extend(x[..inner].iter().map(|e| e.wide()));
            out.fill(0);
            for j in 1..n {
                for k in 0..inner {
                    let e = x[j * inner + k].wide();
                    if better(e, best[k]) {
                        best[k] = e;
                        out[k] = j as i64;
                    }
                }
            }
        }
    });
}

/// Running sum or product along `dim`.
pub fn scan(kind: ScanKind, dim: usize, x: &Tensor, out: u32, bases: Bases, threads: &Threads) {
    per_dtype!(x.dtype, scan_of(kind, dim, x, out, bases, threads))
}

fn scan_of<E: Wide>(kind: ScanKind, dim: usize, x: &Tensor, out: u32, bases: Bases, threads: &Threads) {
    let (outer, n, inner) = around(&x.shape, dim);
    if outer * n * inner == 0 {
        return;
    }
    let (from, to) = (start(x, bases), Ptr::new(bases.ptrs[out as usize]));
    match kind {
        ScanKind::Sum => scan_by::<E>(E::add, (outer, n, inner), from, to, threads),
        ScanKind::Prod => scan_by::<E>(E::mul, (outer, n, inner), from, to, threads),
    }
}

/// Rows that are scanned side by side: the next element of a row has to wait for the one before.
const ABREAST: usize = 8;

fn scan_by<E: Wide>(
    join: impl Fn(E::To, E::To) -> E::To + Sync + Copy,
    (outer, n, inner): (usize, usize, usize),
    from: Ptr,
    to: Ptr,
    threads: &Threads,
) {
    let tasks = tasks(threads, outer * n * inner * 4, outer);
    if inner == 1 {
        threads.run(tasks, &|t| {
            let (mut o, end) = (outer * t / tasks, outer * (t + 1) / tasks);
            while o < end {
                let rows = if end - o >= ABREAST { ABREAST } else { 1 };
                // SAFETY: both tensors hold [outer][n] elements; tasks write disjoint rows.
                let (x, out) = unsafe {
                    (
                        std::slice::from_raw_parts((from.get() as *const E).add(o * n), rows * n),
                        std::slice::from_raw_parts_mut((to.get() as *mut E).add(o * n), rows * n),
                    )
                };
                match rows {
                    1 => scan_rows::<E, 1>(&join, x, out),
                    _ => scan_rows::<E, ABREAST>(&join, x, out),
                }
                o += rows;
            }
        });
        return;
    }
    threads.run(tasks, &|t| {
        let mut totals: Vec<E::To> = Vec::with_capacity(inner);
        for o in outer * t / tasks..outer * (t + 1) / tasks {
            // SAFETY: both tensors hold [outer][n][inner] elements; tasks write disjoint ones.
            let (x, out) = unsafe {
                (
                    std::slice::from_raw_parts((from.get() as *const E).add(o * n * inner), n * inner),
                    std::slice::from_raw_parts_mut((to.get() as *mut E).add(o * n * inner), n * inner),
                )
            };
            totals.clear();
            totals.extend(x[..inner].iter().map(|e| e.wide()));
            out[..inner].copy_from_slice(&x[..inner]);
            for j in 1..n {
                for k in 0..inner {
                    totals[k] = join(totals[k], x[j * inner + k].wide());
                    out[j * inner + k] = E::back(totals[k]);
                }
            }
        }
    });
}

/// Scans `R` rows that lie one after the other.
#[inline(always)]
fn scan_rows<E: Wide, const R: usize>(join: &impl Fn(E::To, E::To) -> E::To, x: &[E], out: &mut [E]) {
    let n = x.len() / R;
    let rows: [&[E]; R] = std::array::from_fn(|r| &x[r * n..][..n]);
    let mut left = out;
    let outs: [&mut [E]; R] = std::array::from_fn(|_| left.split_off_mut(..n).unwrap_or_default());
    let mut totals: [E::To; R] = std::array::from_fn(|r| rows[r][0].wide());
    for r in 0..R {
        outs[r][0] = rows[r][0];
    }
    for j in 1..n {
        for r in 0..R {
            totals[r] = join(totals[r], rows[r][j].wide());
            outs[r][j] = E::back(totals[r]);
        }
    }
}
