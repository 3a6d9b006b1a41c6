//! Drawing values.

use crate::host::HostTensor;
use crate::{DType, Kind, Scalar, Shape, Ty};

/// A small generator of its own (splitmix64), so that samples stay the same everywhere.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// A number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// One of the items, of which there is at least one.
    pub fn pick<T: Clone>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())].clone()
    }

    /// The numbers below `n` in random order.
    pub fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut out: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            out.swap(i, self.below(i + 1));
        }
        out
    }
}

/// True if `x` is away from the multiples of 1/2, where rounding ops jump and others have kinks.
fn off_kinks(x: f64) -> bool {
    (x * 2.0 - (x * 2.0).round()).abs() > 0.02
}

/// Values of a type from an interval: distinct floats, any integers, any bools.
pub fn draw(rng: &mut Rng, ty: &Ty, domain: (f64, f64)) -> HostTensor {
    draw_apart(rng, ty, domain, &[])
}

/// Like `draw`; floats also keep away from each of `others` and from its multiples.
pub fn draw_apart(rng: &mut Rng, ty: &Ty, (lo, hi): (f64, f64), others: &[f64]) -> HostTensor {
    let n = ty.shape.numel();
    let cells = rng.permutation(n);
    let mut element = |i: usize| match ty.dtype.kind() {
        Kind::Bool => Scalar::Bool(rng.one_in(2)),
        Kind::Int => {
            let lo = if ty.dtype == DType::U8 { lo.max(0.0) } else { lo }.ceil() as i64;
            Scalar::Int(lo + rng.below((hi.floor() as i64 - lo + 1).max(1) as usize) as i64)
        }
        Kind::Float => {
            let mut x = lo;
            for attempt in 0..200 {
                let at = if attempt < 50 {
                    (cells[i] as f64 + 0.2 + 0.6 * rng.unit()) / n as f64
                } else {
                    rng.unit()
                };
                x = Scalar::Float(lo + at * (hi - lo)).to_dtype(ty.dtype).as_f64();
                let apart = |&o: &f64| (x - o).abs() > 0.02 && off_kinks(x / o / 2.0);
                if off_kinks(x) && others.iter().all(apart) {
                    break;
                }
            }
            Scalar::Float(x)
        }
    };
    let elements: Vec<Scalar> = (0..n).map(&mut element).collect();
    HostTensor::from_scalars(ty, elements)
}

/// Indices below `n`. `unique_along`: those on one line along that dimension differ, as far as there are enough.
pub fn draw_index(
    rng: &mut Rng,
    dtype: DType,
    shape: &Shape,
    n: usize,
    unique_along: Option<usize>,
) -> HostTensor {
    let ty = Ty { dtype, shape: shape.clone() };
    let mut out = HostTensor::zeros(&ty);
    match unique_along {
        None => {
            for i in 0..out.numel() {
                out.set(i, Scalar::Int(rng.below(n) as i64));
            }
        }
        Some(dim) => {
            let inner: usize = shape[dim + 1..].iter().product();
            let outer: usize = shape[..dim].iter().product();
            for line in 0..outer * inner {
                let order = rng.permutation(n);
                for k in 0..shape[dim] {
                    let i = (line / inner * shape[dim] + k) * inner + line % inner;
                    out.set(i, Scalar::Int(order[k % n] as i64));
                }
            }
        }
    }
    out
}
