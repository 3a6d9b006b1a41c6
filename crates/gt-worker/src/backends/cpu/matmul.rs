//! Matrix products. The split over threads cuts rows or columns of the result only, so it does not change a bit.
//! A bias is added to the finished sum of products (f32: `round(sum) + bias`).

use super::kernel::{Bases, tasks};
use super::product::{FEW, Float, Mat, To, product};
use super::product_half::{HalfTo, half_product};
use super::threads::{Ptr, Threads};
use gt_compiler::{Matmul, Tensor};
use gt_ir::{DType, Kind};

/// A matrix operand for one run: elements of the computing type.
#[derive(Clone, Copy)]
struct Matrix<'a> {
    base: *const u8,
    tensor: &'a Tensor,
    rs: isize,
    cs: isize,
}

// SAFETY: operands are only read while a step runs.
unsafe impl Sync for Matrix<'_> {}

impl<'a> Matrix<'a> {
    fn new(tensor: &'a Tensor, bases: Bases) -> Matrix<'a> {
        let rank = tensor.shape.len();
        let offset = tensor.map.offset(bases.slots) * tensor.dtype.size() as isize;
        Matrix {
            base: bases.ptrs[tensor.storage as usize].wrapping_offset(offset),
            tensor,
            rs: tensor.map.strides[rank - 2],
            cs: tensor.map.strides[rank - 1],
        }
    }

    /// The first element of batch `i`, elements being `size` bytes.
    fn batch(&self, i: usize, size: usize) -> *const u8 {
        let rank = self.tensor.shape.len();
        let (mut rest, mut elements) = (i, 0);
        for d in (0..rank - 2).rev() {
            let n = self.tensor.shape[d];
            elements += (rest % n) as isize * self.tensor.map.strides[d];
            rest /= n;
        }
        self.base.wrapping_offset(elements * size as isize)
    }
}

/// Multiplications that are worth a task of their own.
const WORTH: usize = 96 << 10;
/// And numbers read, where a product has few rows and is bound by memory.
const WORTH_READING: usize = 24 << 10;
/// Parts of a split product have at least this many rows and columns.
const LEAST: (usize, usize) = (24, 32);
/// Elements of a part below which reading its operands weighs more than a thread that is late: of any, and of long sums,
/// whose operands are copied.
const AREA: [usize; 2] = [8 << 10, 40 << 10];
/// Terms of a long sum.
const LONG: usize = 1024;

/// A part of a result.
struct Part {
    batch: usize,
    row: usize,
    col: usize,
    rows: usize,
    cols: usize,
}

/// The parts of `batches` results, as rows by columns of each: as many as pay, whatever the bits.
struct Grid {
    m: usize,
    n: usize,
    down: usize,
    across: usize,
}

impl Grid {
    fn new(m: usize, n: usize, k: usize, batches: usize, threads: usize) -> Grid {
        let (mut down, mut across) = (1, 1);
        let (work, worth) = if m <= FEW { (n * k, WORTH_READING) } else { (m * n * k, WORTH) };
        // Two tasks for each thread leave room for one that is late, unless that makes them small.
        let want = (batches * work / worth).min(2 * threads);
        let small = m > FEW && batches * m * n < AREA[(k >= LONG) as usize] * want;
        let want = if threads == 1 || small || want <= threads { want.min(threads) } else { want };
        while batches * down * across < want {
            let rows = m / (2 * down) >= LEAST.0;
            let cols = n / (2 * across) >= LEAST.1;
            match (rows, cols) {
                (true, true) if m / down > n / across => down *= 2,
                (true, false) => down *= 2,
                (_, true) => across *= 2,
                (false, false) => break,
            }
        }
        Grid { m, n, down, across }
    }

    fn len(&self) -> usize {
        self.down * self.across
    }

    fn part(&self, u: usize) -> Part {
        let (batch, i, j) = (u / self.len(), u % self.len() / self.across, u % self.across);
        let cut = |j: usize| match j == self.across {
            true => self.n,
            false => (self.n * j / self.across).next_multiple_of(LEAST.1).min(self.n),
        };
        let (row, col) = (self.m * i / self.down, cut(j));
        Part { batch, row, col, rows: self.m * (i + 1) / self.down - row, cols: cut(j + 1) - col }
    }
}

pub fn run(mm: &Matmul, bases: Bases, threads: &Threads) {
    if mm.batch.numel() * mm.m * mm.n == 0 {
        return;
    }
    let (a, b) = (Matrix::new(&mm.a, bases), Matrix::new(&mm.b, bases));
    let bias = mm.bias.as_ref().map(|t| Matrix::new(t, bases));
    let out = Ptr::new(bases.ptrs[mm.out as usize]);
    match mm.a.dtype {
        DType::F32 => floats::<f32>(mm, a, b, bias, out, threads),
        DType::F64 => floats::<f64>(mm, a, b, bias, out, threads),
        DType::F16 | DType::BF16 => halves(mm, a, b, bias, out, threads),
        DType::U8 => ints::<u8>(mm, a, b, bias, out, threads),
        DType::I8 => ints::<i8>(mm, a, b, bias, out, threads),
        DType::I16 => ints::<i16>(mm, a, b, bias, out, threads),
        DType::I32 => ints::<i32>(mm, a, b, bias, out, threads),
        DType::I64 => ints::<i64>(mm, a, b, bias, out, threads),
        DType::Bool => debug_assert_eq!(mm.a.dtype.kind(), Kind::Int, "the type rule refuses bool"),
    }
}

fn floats<T: Float>(mm: &Matmul, a: Matrix, b: Matrix, bias: Option<Matrix>, out: Ptr, threads: &Threads) {
    let (m, n, k) = (mm.m, mm.n, mm.k);
    let size = std::mem::size_of::<T>();
    let batches = mm.batch.numel();
    let lies = |x: &Matrix, i: usize| Mat::new(x.batch(i, size) as *const T, x.rs, x.cs);
    // A single column is a single row of the transposed product.
    let turned = n == 1 && m > 1;
    let grid = match turned {
        true => Grid::new(1, m, k, batches, threads.count()),
        false => Grid::new(m, n, k, batches, threads.count()),
    };
    let units = batches * grid.len();
    let tasks = if grid.len() > 1 { units } else { tasks(threads, batches * m * n * k.max(1) / 8, units) };
    let tiles = T::has_tiles(mm.rows, n, k);
    threads.run(tasks, &|t| {
        for u in units * t / tasks..units * (t + 1) / tasks {
            let part = grid.part(u);
            let (lhs, rhs) = (lies(&a, part.batch), lies(&b, part.batch));
            let (lhs, rhs) = if turned { (rhs.t(), lhs.t()) } else { (lhs, rhs) };
            let wide = if turned { m } else { n };
            let at = (out.get() as *mut T).wrapping_add(part.batch * m * n + part.row * wide + part.col);
            let add = bias.as_ref().map(|x| lies(x, part.batch));
            let add = if turned { add.map(Mat::t) } else { add }.map(|x| x.from(part.row, part.col));
            let row = add.filter(|x| x.rs == 0 && x.cs == 1).map_or(std::ptr::null(), |x| x.at);
            let to = To { bias: row, ..To::new(at, wide) };
            // SAFETY: the operands hold these rows and columns by their maps; the part of the result is ours alone.
            unsafe {
                let few = mm.rows <= FEW && !turned;
                let (step, rhs) = (if few { FEW } else { part.rows }, rhs.from(0, part.col));
                for r in (0..part.rows).step_by(step) {
                    let (rows, to) = (step.min(part.rows - r), To { at: at.add(r * wide), ..to });
                    let lhs = lhs.from(part.row + r, 0);
                    match tiles {
                        true => T::by_tiles(rows, part.cols, k, lhs, rhs, &to),
                        false => product(rows, part.cols, k, lhs, rhs, &to),
                    }
                }
                if let Some(x) = add.filter(|_| row.is_null()) {
                    for r in 0..part.rows {
                        let dst = std::slice::from_raw_parts_mut(at.add(r * wide), part.cols);
                        for (c, d) in dst.iter_mut().enumerate() {
                            *d = *d + *x.from(r, c).at;
                        }
                    }
                }
            }
        }
    });
}

fn halves(mm: &Matmul, a: Matrix, b: Matrix, bias: Option<Matrix>, out: Ptr, threads: &Threads) {
    let (m, n, k) = (mm.m, mm.n, mm.k);
    let batches = mm.batch.numel();
    let lies = |x: &Matrix, i: usize| Mat::new(x.batch(i, 2) as *const u16, x.rs, x.cs);
    let grid = Grid::new(m, n, k, batches, threads.count());
    let units = batches * grid.len();
    let tasks = if grid.len() > 1 { units } else { tasks(threads, batches * m * n * k.max(1) / 8, units) };
    threads.run(tasks, &|t| {
        for u in units * t / tasks..units * (t + 1) / tasks {
            let part = grid.part(u);
            let rhs = lies(&b, part.batch).from(0, part.col);
            let at = (out.get() as *mut u16).wrapping_add(part.batch * m * n + part.row * n + part.col);
            let step = if mm.rows <= FEW { FEW } else { part.rows };
            for r in (0..part.rows).step_by(step) {
                let lhs = lies(&a, part.batch).from(part.row + r, 0);
                let bias = bias.as_ref().map(|x| lies(x, part.batch).from(part.row + r, part.col));
                let to = HalfTo { dtype: mm.a.dtype, at: at.wrapping_add(r * n), rs: n, bias };
                // SAFETY: the operands hold these rows and columns by their maps; the part of the result is ours alone.
                unsafe { half_product(step.min(part.rows - r), part.cols, k, lhs, rhs, &to) };
            }
        }
    });
}

trait Int: Copy + Sync + Send + 'static {
    fn wide(self) -> i64;
    fn wrap(x: i64) -> Self;
}

macro_rules! int {
    ($($t:ty)*) => {$(
        impl Int for $t {
            #[inline(always)]
            fn wide(self) -> i64 {
                self as i64
            }
            #[inline(always)]
            fn wrap(x: i64) -> $t {
                x as $t
            }
        }
    )*};
}

int!(u8 i8 i16 i32 i64);

fn ints<T: Int>(mm: &Matmul, a: Matrix, b: Matrix, bias: Option<Matrix>, out: Ptr, threads: &Threads) {
    let (m, n, k) = (mm.m, mm.n, mm.k);
    let size = std::mem::size_of::<T>();
    let total = mm.batch.numel() * m;
    let tasks = tasks(threads, total * n * k.max(1), total);
    threads.run(tasks, &|t| {
        let mut sums = vec![0i64; n];
        for r in total * t / tasks..total * (t + 1) / tasks {
            let (i, row) = (r / m, (r % m) as isize);
            let lhs = (a.batch(i, size) as *const T).wrapping_offset(row * a.rs);
            let rhs = b.batch(i, size) as *const T;
            sums.fill(0);
            // SAFETY: the maps show these rows and columns; rows of the result are disjoint.
            unsafe {
                for p in 0..k as isize {
                    let x = (*lhs.wrapping_offset(p * a.cs)).wide();
                    let line = rhs.wrapping_offset(p * b.rs);
                    for (c, sum) in sums.iter_mut().enumerate() {
                        let y = (*line.wrapping_offset(c as isize * b.cs)).wide();
                        *sum = sum.wrapping_add(x.wrapping_mul(y));
                    }
                }
                for (c, &sum) in sums.iter().enumerate() {
                    let add = bias.as_ref().map_or(0, |bias| {
                        let at = bias.batch(i, size) as *const T;
                        (*at.wrapping_offset(row * bias.rs + c as isize * bias.cs)).wide()
                    });
                    *(out.get() as *mut T).add(r * n + c) = T::wrap(sum.wrapping_add(add));
                }
            }
        }
    });
}
