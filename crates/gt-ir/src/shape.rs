//! Shapes, broadcasting and strides.

use crate::{DType, Error, Result, bail};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::fmt;
use std::ops::{Deref, DerefMut};

/// A list of small integers kept inline: dimensions, axes, strides.
pub type Ints = SmallVec<[usize; 5]>;

/// The sizes of a tensor, outermost dimension first.
#[derive(PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Shape(pub Ints);

impl Clone for Shape {
    #[inline]
    fn clone(&self) -> Shape {
        // A plain copy of the elements; the derived clone goes through an iterator, and every op clones a shape.
        Shape(Ints::from_slice(&self.0))
    }
}

/// No tensor is larger than this many bytes; keeps all index arithmetic inside 63 bits.
pub const MAX_BYTES: u64 = 1 << 50;
/// No tensor has more dimensions than this.
pub const MAX_RANK: usize = 64;

impl Shape {
    /// The shape of a 0-d tensor.
    pub fn scalar() -> Shape {
        Shape(Ints::new())
    }

    /// How many elements a tensor of this shape has.
    pub fn numel(&self) -> usize {
        self.0.iter().product()
    }

    /// Strides, in elements, of a dense row-major tensor.
    pub fn strides(&self) -> SmallVec<[isize; 5]> {
        let mut strides: SmallVec<[isize; 5]> = SmallVec::from_elem(0, self.len());
        let mut step = 1isize;
        for d in (0..self.len()).rev() {
            strides[d] = step;
            step *= self[d].max(1) as isize;
        }
        strides
    }

    /// The shape with the dimensions of `dims` removed, or kept as 1.
    pub fn reduced(&self, dims: &[usize], keepdim: bool) -> Shape {
        let mut out = Ints::new();
        for (d, &n) in self.iter().enumerate() {
            if !dims.contains(&d) {
                out.push(n);
            } else if keepdim {
                out.push(1);
            }
        }
        Shape(out)
    }

    /// The common shape of two operands under PyTorch's broadcasting.
    #[inline]
    pub fn broadcast(op: &str, a: &Shape, b: &Shape) -> Result<Shape> {
        if a == b {
            return Ok(a.clone());
        }
        let rank = a.len().max(b.len());
        let mut out: Ints = SmallVec::from_elem(1, rank);
        for i in 0..rank {
            let x = if i < a.len() { a[a.len() - 1 - i] } else { 1 };
            let y = if i < b.len() { b[b.len() - 1 - i] } else { 1 };
            out[rank - 1 - i] = match (x, y) {
                (x, y) if x == y => x,
                (1, y) => y,
                (x, 1) => x,
                (x, y) => bail!(
                    Runtime,
                    "{op}: the size of tensor a ({x}) must match the size of tensor b ({y}) at non-singleton dimension {}, got shapes {a} and {b}",
                    rank - 1 - i
                ),
            };
        }
        Ok(Shape(out))
    }

    /// True if a tensor of this shape may be expanded to `to`.
    pub fn expands_to(&self, to: &Shape) -> bool {
        self.len() <= to.len()
            && self.iter().rev().zip(to.iter().rev()).all(|(&from, &to)| from == to || from == 1)
    }

    /// Checks that a tensor of this shape is not absurdly large.
    pub fn check(&self, op: &str, dtype: DType) -> Result<()> {
        if self.len() > MAX_RANK {
            bail!(Runtime, "{op}: {} dimensions, at most {MAX_RANK} are possible", self.len());
        }
        // An empty dimension counts as 1: strides are taken over the others too.
        let mut bytes = dtype.size() as u64;
        for &n in self.iter() {
            let n = n.max(1) as u64;
            bytes = bytes.checked_mul(n).filter(|&b| b <= MAX_BYTES).ok_or_else(|| too_big(op, self))?;
        }
        Ok(())
    }
}

fn too_big(op: &str, shape: &Shape) -> Error {
    Error::Runtime(format!("{op}: a tensor of shape {shape} is too large"))
}

/// Resolves a possibly negative dimension against a rank, as PyTorch does (rank 0 counts as 1).
pub fn norm_dim(op: &str, dim: i64, rank: usize) -> Result<usize> {
    let n = rank.max(1) as i64;
    if dim < -n || dim >= n {
        bail!(
            Index,
            "{op}: dimension out of range (expected to be in range of [{}, {}], but got {dim})",
            -n,
            n - 1
        );
    }
    Ok(if dim < 0 { dim + n } else { dim } as usize)
}

impl Deref for Shape {
    type Target = Ints;
    fn deref(&self) -> &Ints {
        &self.0
    }
}

impl DerefMut for Shape {
    fn deref_mut(&mut self) -> &mut Ints {
        &mut self.0
    }
}

impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Shape {
        Shape(dims.into())
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Shape {
        Shape(dims.as_slice().into())
    }
}

impl From<Vec<usize>> for Shape {
    fn from(dims: Vec<usize>) -> Shape {
        Shape(dims.into())
    }
}

impl FromIterator<usize> for Shape {
    fn from_iter<I: IntoIterator<Item = usize>>(iter: I) -> Shape {
        Shape(iter.into_iter().collect())
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("[")?;
        for (i, n) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{n}")?;
        }
        f.write_str("]")
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Element type and shape: all that is known of a tensor without its values.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ty {
    pub dtype: DType,
    pub shape: Shape,
}

impl Ty {
    /// A type from its two parts.
    pub fn new(dtype: DType, shape: impl Into<Shape>) -> Ty {
        Ty { dtype, shape: shape.into() }
    }

    /// Bytes of a dense tensor of this type.
    pub fn bytes(&self) -> usize {
        self.shape.numel() * self.dtype.size()
    }
}

impl fmt::Display for Ty {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}

impl fmt::Debug for Ty {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
