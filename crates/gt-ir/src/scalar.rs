//! Scalars that stand in instructions, and their conversion to element types.

use crate::{DType, Kind};
use half::{bf16, f16};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::hash::{Hash, Hasher};

/// The nearest single such that rounding it once more, to a half type, is as good as rounding the double at once:
/// what does not fit exactly is made odd in its last bit (round to odd).
fn single_for_half(x: f64) -> f32 {
    let y = x as f32;
    if y as f64 == x || !y.is_finite() {
        return y;
    }
    let bits = if (y as f64).abs() > x.abs() { y.to_bits() - 1 } else { y.to_bits() };
    f32::from_bits(bits | 1)
}

/// Rounds to the nearest half, ties to even.
pub fn to_f16(x: f64) -> f16 {
    f16::from_f32(single_for_half(x))
}

/// Rounds to the nearest bfloat16, ties to even.
pub fn to_bf16(x: f64) -> bf16 {
    bf16::from_f32(single_for_half(x))
}

/// A number in an instruction. Equality and hashing are by bits, so NaN equals itself and 0.0 differs from -0.0.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Scalar {
    Bool(bool),
    Int(i64),
    Float(f64),
}

impl Scalar {
    /// Bool, integer or floating point.
    pub fn kind(self) -> Kind {
        match self {
            Scalar::Bool(_) => Kind::Bool,
            Scalar::Int(_) => Kind::Int,
            Scalar::Float(_) => Kind::Float,
        }
    }

    /// The value as a double.
    pub fn as_f64(self) -> f64 {
        match self {
            Scalar::Bool(b) => b as u8 as f64,
            Scalar::Int(i) => i as f64,
            Scalar::Float(f) => f,
        }
    }

    /// The value as an integer; floats are truncated.
    pub fn as_i64(self) -> i64 {
        match self {
            Scalar::Bool(b) => b as i64,
            Scalar::Int(i) => i,
            Scalar::Float(f) => f as i64,
        }
    }

    /// The value as a truth value.
    pub fn as_bool(self) -> bool {
        match self {
            Scalar::Bool(b) => b,
            Scalar::Int(i) => i != 0,
            Scalar::Float(f) => f != 0.0,
        }
    }

    /// The value after rounding to an element type.
    pub fn to_dtype(self, dtype: DType) -> Scalar {
        match dtype {
            DType::Bool => Scalar::Bool(self.as_bool()),
            DType::U8 => Scalar::Int(self.as_i64() as u8 as i64),
            DType::I8 => Scalar::Int(self.as_i64() as i8 as i64),
            DType::I16 => Scalar::Int(self.as_i64() as i16 as i64),
            DType::I32 => Scalar::Int(self.as_i64() as i32 as i64),
            DType::I64 => Scalar::Int(self.as_i64()),
            DType::F16 => Scalar::Float(to_f16(self.as_f64()).to_f64()),
            DType::BF16 => Scalar::Float(to_bf16(self.as_f64()).to_f64()),
            DType::F32 => Scalar::Float(self.as_f64() as f32 as f64),
            DType::F64 => Scalar::Float(self.as_f64()),
        }
    }

    /// Appends the element's bytes, after rounding to `dtype`.
    pub fn write(self, dtype: DType, out: &mut Vec<u8>) {
        match dtype {
            DType::Bool => out.push(self.as_bool() as u8),
            DType::U8 => out.push(self.as_i64() as u8),
            DType::I8 => out.push(self.as_i64() as u8),
            DType::I16 => out.extend((self.as_i64() as i16).to_ne_bytes()),
            DType::I32 => out.extend((self.as_i64() as i32).to_ne_bytes()),
            DType::I64 => out.extend(self.as_i64().to_ne_bytes()),
            DType::F16 => out.extend(to_f16(self.as_f64()).to_ne_bytes()),
            DType::BF16 => out.extend(to_bf16(self.as_f64()).to_ne_bytes()),
            DType::F32 => out.extend((self.as_f64() as f32).to_ne_bytes()),
            DType::F64 => out.extend(self.as_f64().to_ne_bytes()),
        }
    }

    /// Reads one element from the first `dtype.size()` bytes.
    pub fn read(dtype: DType, b: &[u8]) -> Scalar {
        fn take<const N: usize>(b: &[u8]) -> [u8; N] {
            let mut out = [0; N];
            out.copy_from_slice(&b[..N]);
            out
        }
        match dtype {
            DType::Bool => Scalar::Bool(b[0] != 0),
            DType::U8 => Scalar::Int(b[0] as i64),
            DType::I8 => Scalar::Int(b[0] as i8 as i64),
            DType::I16 => Scalar::Int(i16::from_ne_bytes(take(b)) as i64),
            DType::I32 => Scalar::Int(i32::from_ne_bytes(take(b)) as i64),
            DType::I64 => Scalar::Int(i64::from_ne_bytes(take(b))),
            DType::F16 => Scalar::Float(f16::from_ne_bytes(take(b)).to_f64()),
            DType::BF16 => Scalar::Float(bf16::from_ne_bytes(take(b)).to_f64()),
            DType::F32 => Scalar::Float(f32::from_ne_bytes(take(b)) as f64),
            DType::F64 => Scalar::Float(f64::from_ne_bytes(take(b))),
        }
    }

    fn bits(self) -> (u8, u64) {
        match self {
            Scalar::Bool(b) => (0, b as u64),
            Scalar::Int(i) => (1, i as u64),
            Scalar::Float(f) => (2, f.to_bits()),
        }
    }
}

impl PartialEq for Scalar {
    fn eq(&self, other: &Scalar) -> bool {
        self.bits() == other.bits()
    }
}

impl Eq for Scalar {}

impl Hash for Scalar {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.bits().hash(state)
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Scalar::Bool(b) => write!(f, "{b}"),
            Scalar::Int(i) => write!(f, "{i}"),
            Scalar::Float(x) => write!(f, "{x:?}"),
        }
    }
}

impl From<f64> for Scalar {
    fn from(x: f64) -> Scalar {
        Scalar::Float(x)
    }
}

impl From<i64> for Scalar {
    fn from(x: i64) -> Scalar {
        Scalar::Int(x)
    }
}

impl From<bool> for Scalar {
    fn from(x: bool) -> Scalar {
        Scalar::Bool(x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_round_once() {
        assert_eq!(to_bf16(1684.0).to_f64(), 1680.0);
        assert_eq!(to_bf16(1684.0 + 1e-9).to_f64(), 1688.0);
        assert_eq!(to_bf16(-1684.0 - 1e-9).to_f64(), -1688.0);
        assert_eq!(to_f16(1.0 + 2f64.powi(-11)).to_f64(), 1.0);
        assert_eq!(to_f16(1.0 + 2f64.powi(-11) + 1e-15).to_f64(), 1.0 + 2f64.powi(-10));
        assert!(to_f16(f64::NAN).is_nan());
        assert_eq!(to_f16(1e30), f16::INFINITY);
        assert_eq!(to_f16(65519.999).to_f64(), 65504.0);
        assert_eq!(to_bf16(f64::MAX), bf16::INFINITY);
    }
}
