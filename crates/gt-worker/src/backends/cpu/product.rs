//! Products of matrices on one thread, straight from where they lie: no packing of the left side, panels of the right
//! side copied only where they must be turned.
//!
//! Every element of a result is one chain of fused multiply-adds over `k` in order, so how a product is cut into tiles,
//! blocks and threads does not change a bit, nor does the vector unit or how the operands lie. Products of at most `FEW`
//! rows and long sums add up otherwise, for they are bound by memory: 64 bytes of partial sums, then their halves added.
//! Where there is AMX, so do products of `f32` that have tiles (`product_thirds.rs`), which cutting does not change either.

use super::isa;
use super::soon::Soon;
#[cfg(target_arch = "x86_64")]
use std::cell::UnsafeCell;

#[cfg(target_arch = "x86_64")]
#[path = "product_x86.rs"]
mod x86;

#[cfg(target_arch = "x86_64")]
pub use x86::turn_words;

/// A matrix in memory: element (i, j) lies at `at + i * rs + j * cs`.
#[derive(Clone, Copy)]
pub struct Mat<T> {
    pub at: *const T,
    pub rs: isize,
    pub cs: isize,
}

// SAFETY: operands are only read while a step runs.
unsafe impl<T> Sync for Mat<T> {}
// SAFETY: as above.
unsafe impl<T> Send for Mat<T> {}

impl<T> Mat<T> {
    pub fn new(at: *const T, rs: isize, cs: isize) -> Mat<T> {
        Mat { at, rs, cs }
    }

    /// The part that starts at row `i` and column `j`.
    #[inline(always)]
    pub fn from(self, i: usize, j: usize) -> Mat<T> {
        let at = self.at.wrapping_offset(i as isize * self.rs + j as isize * self.cs);
        Mat { at, ..self }
    }

    /// The transpose.
    #[inline(always)]
    pub fn t(self) -> Mat<T> {
        Mat { at: self.at, rs: self.cs, cs: self.rs }
    }
}

/// Products of so few rows and so many terms have an order of summation of their own; cut no product into parts this
/// small.
pub const FEW: usize = 4;
#[cfg(target_arch = "x86_64")]
const LONG: usize = 128;

/// Where a product goes: rows of contiguous elements.
pub struct To<T> {
    pub at: *mut T,
    /// Elements from a row to the next.
    pub rs: usize,
    /// Adds to what is there instead of replacing it.
    pub add: bool,
    /// A row added to the finished sums, or null.
    pub bias: *const T,
    /// What the caller needs after this, or null: asked for on the way.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub soon: *const Soon,
}

impl<T> To<T> {
    pub fn new(at: *mut T, rs: usize) -> To<T> {
        To { at, rs, add: false, bias: std::ptr::null(), soon: std::ptr::null() }
    }
}

/// Types products are computed in.
pub trait Float:
    Copy
    + Default
    + PartialOrd
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
    + Sync
    + Send
    + 'static
{
    const ONE: Self;
    fn product(m: usize, n: usize, k: usize, a: Mat<Self>, b: Mat<Self>, c: &To<Self>) -> bool;
    /// True if products of these sizes are computed by tiles, where there are any: `rows` are those of an instruction's
    /// product, of which a caller may multiply more at once, or less.
    fn has_tiles(_rows: usize, _n: usize, _k: usize) -> bool {
        false
    }
    /// As `product`, by tiles, where nothing is to be added to.
    ///
    /// # Safety
    /// As for `product`; `has_tiles` said so.
    unsafe fn by_tiles(m: usize, n: usize, k: usize, a: Mat<Self>, b: Mat<Self>, c: &To<Self>) {
        // SAFETY: passed on from the caller.
        unsafe { product(m, n, k, a, b, c) }
    }
}

macro_rules! float {
    ($t:ty, $v4:ident, $v3:ident $($tiles:tt)*) => {
        impl Float for $t {
            $($tiles)*
            const ONE: $t = 1.0;
            #[inline]
            fn product(m: usize, n: usize, k: usize, a: Mat<$t>, b: Mat<$t>, c: &To<$t>) -> bool {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: the level was detected; the rest is what the caller of `product` promises.
                unsafe {
                    match isa::level() {
                        3 => x86::$v4(m, n, k, a, b, c),
                        2 => x86::$v3(m, n, k, a, b, c),
                        _ => return false,
                    }
                    return true;
                }
                #[cfg(not(target_arch = "x86_64"))]
                {
                    let _ = (m, n, k, a, b, c, isa::level());
                    false
                }
            }
        }
    };
}

/// Fewer rows, columns or terms are not worth their thirds.
#[cfg(target_arch = "x86_64")]
const WORTH_THIRDS: usize = 32;

float!(f32, f32_v4, f32_v3
#[cfg(target_arch = "x86_64")]
fn has_tiles(rows: usize, n: usize, k: usize) -> bool {
    rows.min(n).min(k) >= WORTH_THIRDS && isa::level() == 3 && super::amx::usable()
}
#[cfg(target_arch = "x86_64")]
unsafe fn by_tiles(m: usize, n: usize, k: usize, a: Mat<f32>, b: Mat<f32>, c: &To<f32>) {
    // SAFETY: passed on from the caller; the level was detected.
    unsafe { x86::thirds::product(m, n, k, a, b, c) }
});
float!(f64, f64_v4, f64_v3);

/// Multiplies `a` [m, k] by `b` [k, n] into `c`, on this thread.
///
/// # Safety
/// The operands hold these elements, and nobody else touches those of the result.
pub unsafe fn product<T: Float>(m: usize, n: usize, k: usize, a: Mat<T>, b: Mat<T>, c: &To<T>) {
    if m * n == 0 {
        return;
    }
    if k == 0 {
        if !c.add {
            for i in 0..m {
                // SAFETY: as the caller promises.
                unsafe { std::slice::from_raw_parts_mut(c.at.add(i * c.rs), n) }.fill(T::default());
            }
        }
    } else if T::product(m, n, k, a, b, c) {
        return;
    } else {
        // SAFETY: as the caller promises.
        unsafe {
            gemm::gemm(
                m,
                n,
                k,
                c.at,
                1,
                c.rs as isize,
                c.add,
                a.at,
                a.cs,
                a.rs,
                b.at,
                b.cs,
                b.rs,
                T::ONE,
                T::ONE,
                false,
                false,
                false,
                gemm::Parallelism::None,
            );
        }
    }
    if !c.bias.is_null() {
        for i in 0..m {
            for j in 0..n {
                // SAFETY: as the caller promises.
                unsafe { *c.at.add(i * c.rs + j) = *c.at.add(i * c.rs + j) + *c.bias.add(j) };
            }
        }
    }
}

/// `to[c * pitch + r] = from[r][c]`.
///
/// # Safety
/// Both sides hold these elements.
pub unsafe fn turn(from: Mat<f32>, to: *mut f32, pitch: usize, rows: usize, cols: usize) {
    #[cfg(target_arch = "x86_64")]
    if from.cs == 1 && isa::level() >= 2 {
        // SAFETY: the level was detected; the rest is as the caller promises.
        return unsafe { turn_words(from.at, from.rs, to, pitch, rows, cols) };
    }
    for r in 0..rows {
        for c in 0..cols {
            // SAFETY: as the caller promises.
            unsafe { *to.add(c * pitch + r) = *from.from(r, c).at };
        }
    }
}

#[cfg(target_arch = "x86_64")]
thread_local! {
    static SCRATCH: UnsafeCell<Vec<u64>> = const { UnsafeCell::new(Vec::new()) };
}

/// This thread's memory for panels, of at least `bytes` bytes, aligned to a cache line. The last one asked for counts.
#[cfg(target_arch = "x86_64")]
fn panels(bytes: usize) -> *mut u8 {
    SCRATCH.with(|cell| {
        // SAFETY: the cell is this thread's own, and the borrow ends here.
        let memory = unsafe { &mut *cell.get() };
        if memory.len() * 8 < bytes + 64 {
            *memory = vec![0; bytes / 8 + 16];
        }
        let start = memory.as_mut_ptr() as *mut u8;
        start.wrapping_add(start.align_offset(64))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(n: usize, seed: u32) -> Vec<f32> {
        let mut u = seed;
        (0..n)
            .map(|_| {
                u = u.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (u >> 8) as f32 / (1 << 23) as f32 - 1.0
            })
            .collect()
    }

    /// Every layout and many odd sizes against a plain loop in the next wider type.
    #[test]
    fn agrees_with_a_plain_loop() {
        let sizes = [
            (1, 1, 1),
            (1, 70, 33),
            (3, 17, 5),
            (4, 100, 64),
            (12, 32, 16),
            (13, 33, 7),
            (25, 16, 300),
            (64, 10, 128),
            (5, 1, 600),
            (100, 65, 513),
            (500, 40, 20),
            (30, 300, 1024),
            (140, 70, 300),
            (155, 64, 1024),
        ];
        for (m, n, k) in sizes {
            for layout in 0..4 {
                let (ta, tb) = (layout & 1 == 1, layout & 2 == 2);
                let (a, b) = (numbers(m * k, 1), numbers(k * n, 2));
                let bias = numbers(n, 3);
                let (ma, mb) = (
                    if ta {
                        Mat::new(a.as_ptr(), 1, m as isize)
                    } else {
                        Mat::new(a.as_ptr(), k as isize, 1)
                    },
                    if tb {
                        Mat::new(b.as_ptr(), 1, k as isize)
                    } else {
                        Mat::new(b.as_ptr(), n as isize, 1)
                    },
                );
                let pitch = n + 3;
                let mut c = numbers(m * pitch, 4);
                let before = c.clone();
                let to = To { add: layout == 1, bias: bias.as_ptr(), ..To::new(c.as_mut_ptr(), pitch) };
                // SAFETY: the sizes are those of the vectors.
                unsafe { product(m, n, k, ma, mb, &to) };
                let a64: Vec<f64> = a.iter().map(|&x| x as f64).collect();
                let b64: Vec<f64> = b.iter().map(|&x| x as f64).collect();
                let mut c64 = vec![0f64; m * n];
                let ma64 = Mat::new(a64.as_ptr(), ma.rs, ma.cs);
                let mb64 = Mat::new(b64.as_ptr(), mb.rs, mb.cs);
                // SAFETY: as above.
                unsafe { product(m, n, k, ma64, mb64, &To::new(c64.as_mut_ptr(), n)) };
                for i in 0..m {
                    for j in 0..n {
                        let at = |x: &Mat<f32>, i: usize, j: usize| {
                            // SAFETY: the element exists.
                            unsafe { *x.from(i, j).at as f64 }
                        };
                        let sum: f64 = (0..k).map(|p| at(&ma, i, p) * at(&mb, p, j)).sum();
                        assert!((c64[i * n + j] - sum).abs() < 1e-12 * (k as f64 + 1.0), "f64 {m}x{n}x{k}");
                        let old = if layout == 1 { before[i * pitch + j] as f64 } else { 0.0 };
                        let want = sum + old + bias[j] as f64;
                        let got = c[i * pitch + j] as f64;
                        assert!(
                            (got - want).abs() < 1e-5 * (k as f64).sqrt() + 1e-6,
                            "{m}x{n}x{k} layout {layout} at {i},{j}: {got} and {want}"
                        );
                    }
                    // What lies between the rows is left alone.
                    assert_eq!(c[i * pitch + n..(i + 1) * pitch], before[i * pitch + n..(i + 1) * pitch]);
                }
            }
        }
    }

    /// A part of a product has the bits of the whole, whether its left side is copied or not.
    #[test]
    fn parts_have_the_bits_of_the_whole() {
        for (m, n, k, across) in [(61, 130, 700, false), (61, 130, 1024, false), (161, 130, 700, true)] {
            let (a, b) = (numbers(m * k, 5), numbers(k * n, 6));
            let (rs, cs) = if across { (1, m) } else { (k, 1) };
            let (ma, mb) =
                (Mat::new(a.as_ptr(), rs as isize, cs as isize), Mat::new(b.as_ptr(), n as isize, 1));
            let (mut whole, mut parts) = (vec![0f32; m * n], vec![0f32; m * n]);
            // SAFETY: the sizes are those of the vectors.
            unsafe {
                product(m, n, k, ma, mb, &To::new(whole.as_mut_ptr(), n));
                for (r, rows) in [(0, 5), (5, 13), (18, m - 18)] {
                    for (c, cols) in [(0, 37), (37, 93)] {
                        let to = To::new(parts.as_mut_ptr().add(r * n + c), n);
                        product(rows, cols, k, ma.from(r, 0), mb.from(0, c), &to);
                    }
                }
            }
            assert!(whole == parts, "{m}x{n}x{k}");
        }
    }

    /// How `m` rows by `k` or `k` by `n` numbers may lie: along, across, and with others between them.
    #[cfg(target_arch = "x86_64")]
    fn lying(x: &[f32], rows: usize, cols: usize) -> Vec<(Vec<f32>, isize, isize)> {
        let across = (0..rows * cols).map(|i| x[i % rows * cols + i / rows]).collect();
        let spread = x.iter().flat_map(|&x| [x, 0.0]).collect();
        let (r, c) = (rows as isize, cols as isize);
        vec![(x.to_vec(), c, 1), (across, 1, r), (spread, 2 * c, 2)]
    }

    /// Products by tiles: of their model in memory, and of the processor's own, if it has any.
    #[cfg(target_arch = "x86_64")]
    fn by_tiles() -> Vec<Product> {
        match (isa::level() == 3, f32::has_tiles(32, 32, 32)) {
            (false, _) => vec![],
            (true, false) => vec![x86::thirds::model::product],
            (true, true) => vec![x86::thirds::model::product, x86::thirds::product],
        }
    }

    #[cfg(target_arch = "x86_64")]
    type Product = unsafe fn(usize, usize, usize, Mat<f32>, Mat<f32>, &To<f32>);

    /// Sums of tiles are as near to the true ones as chains of multiply-adds are.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn tiles_are_as_exact_as_chains() {
        for (m, n, k) in
            [(32, 32, 32), (45, 67, 33), (70, 50, 300), (33, 40, 1024), (530, 34, 70), (64, 96, 513)]
        {
            // Sizes of either side over twelve powers of two.
            let sized = |x: Vec<f32>| -> Vec<f32> {
                x.iter().enumerate().map(|(i, x)| x * 2f32.powi((i * 7 % 12) as i32 - 6)).collect()
            };
            let (a, b, bias) = (sized(numbers(m * k, 1)), sized(numbers(k * n, 2)), numbers(n, 3));
            let pitch = n + 3;
            let before = numbers(m * pitch, 4);
            // The result, and the farthest of it from the true one.
            let of = |way: Product, a: Mat<f32>, b: Mat<f32>| {
                let mut c = before.clone();
                // SAFETY: the sizes are those of the vectors; the units were detected.
                unsafe { way(m, n, k, a, b, &To { bias: bias.as_ptr(), ..To::new(c.as_mut_ptr(), pitch) }) };
                c
            };
            let sums: Vec<(f64, f64)> = (0..m * n)
                .map(|at| {
                    let (i, j) = (at / n, at % n);
                    let terms = (0..k).map(|p| a[i * k + p] as f64 * b[p * n + j] as f64);
                    let begin = (bias[j] as f64, bias[j].abs() as f64);
                    terms.fold(begin, |(sum, size), term| (sum + term, size + term.abs()))
                })
                .collect();
            let far = |c: &[f32]| {
                let off = |(at, (sum, size)): (usize, &(f64, f64))| {
                    (c[at / n * pitch + at % n] as f64 - sum).abs() / size
                };
                sums.iter().enumerate().map(off).fold(0.0, f64::max)
            };
            for (left, ars, acs) in lying(&a, m, k) {
                for (right, brs, bcs) in lying(&b, k, n) {
                    let (ma, mb) = (Mat::new(left.as_ptr(), ars, acs), Mat::new(right.as_ptr(), brs, bcs));
                    let chains = far(&of(product, ma, mb));
                    for way in by_tiles() {
                        let tiles = of(way, ma, mb);
                        assert!(
                            far(&tiles) <= chains.max(1.5e-7),
                            "{m}x{n}x{k}: {:e}, chains {chains:e}",
                            far(&tiles)
                        );
                        (0..m).for_each(|i| {
                            assert_eq!(tiles[i * pitch + n..][..3], before[i * pitch + n..][..3])
                        });
                    }
                }
            }
        }
    }

    /// Numbers whose thirds are not finite or vanish are multiplied all the same, and nobody else is touched by them; a part of
    /// a product has the bits of the whole.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn tiles_leave_odd_numbers_to_chains() {
        let (m, n, k) = (150, 140, 300);
        let (plain_a, plain_b) = (numbers(m * k, 5), numbers(k * n, 6));
        let (mut a, mut b) = (plain_a.clone(), plain_b.clone());
        for (i, x) in [f32::INFINITY, f32::NAN, f32::MAX, -1e30].into_iter().enumerate() {
            a[(3 * i + 1) * k + 7 * i] = x;
            b[20 * i * n + 5 * i + 2] = x;
        }
        a[40 * k..41 * k].iter_mut().for_each(|x| *x *= 1e-36);
        a[41 * k..42 * k].fill(0.0);
        (0..k).for_each(|p| b[p * n + 60] *= 1e-30);
        let odd_row = |i: usize| [1, 4, 7, 10, 40].contains(&i);
        let odd_col = |j: usize| [2, 7, 12, 17, 60].contains(&j);
        let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let of = |way: Product, a: &[f32], b: &[f32]| {
            let (mut whole, mut parts) = (vec![0f32; m * n], vec![0f32; m * n]);
            let (ma, mb) = (Mat::new(a.as_ptr(), k as isize, 1), Mat::new(b.as_ptr(), n as isize, 1));
            // SAFETY: the sizes are those of the vectors; the units were detected.
            unsafe {
                way(m, n, k, ma, mb, &To::new(whole.as_mut_ptr(), n));
                for (r, rows) in [(0, 5), (5, 33), (38, m - 38)] {
                    for (c, cols) in [(0, 37), (37, n - 37)] {
                        let to = To::new(parts.as_mut_ptr().add(r * n + c), n);
                        way(rows, cols, k, ma.from(r, 0), mb.from(0, c), &to);
                    }
                }
            }
            assert!(bits(&whole) == bits(&parts));
            bits(&whole)
        };
        for way in by_tiles() {
            let (with, chains, without) =
                (of(way, &a, &b), of(x86::chains, &a, &b), of(way, &plain_a, &plain_b));
            for at in (0..m * n).filter(|at| at / n != 41) {
                let want = if odd_row(at / n) || odd_col(at % n) { chains[at] } else { without[at] };
                assert_eq!(with[at], want, "{}, {}", at / n, at % n);
            }
        }
    }

    /// How operands lie changes no bit, for few rows and many.
    #[test]
    fn layouts_have_the_same_bits() {
        for (m, n, k) in [(1, 300, 130), (3, 40, 170), (1, 1, 50), (2, 17, 200), (9, 33, 65), (2, 70, 60)] {
            let (a, b) = (numbers(m * k, 7), numbers(k * n, 8));
            let turned = |x: &[f32], rows: usize, cols: usize| -> Vec<f32> {
                (0..rows * cols).map(|i| x[i % rows * cols + i / rows]).collect()
            };
            let spread: Vec<f32> = b.iter().flat_map(|&x| [x, 0.0]).collect();
            let (at, bt) = (turned(&a, m, k), turned(&b, k, n));
            let lefts = [Mat::new(a.as_ptr(), k as isize, 1), Mat::new(at.as_ptr(), 1, m as isize)];
            let rights = [
                Mat::new(b.as_ptr(), n as isize, 1),
                Mat::new(bt.as_ptr(), 1, k as isize),
                Mat::new(spread.as_ptr(), 2 * n as isize, 2),
            ];
            let mut first: Option<Vec<f32>> = None;
            for left in lefts {
                for right in rights {
                    let mut c = vec![0f32; m * n];
                    // SAFETY: the sizes are those of the vectors.
                    unsafe { product(m, n, k, left, right, &To::new(c.as_mut_ptr(), n)) };
                    assert_eq!(*first.get_or_insert_with(|| c.clone()), c, "{m}x{n}x{k}");
                }
            }
        }
    }
}
