//! Dense tensors in host memory, as tests and the reference see them.

use crate::{DType, Scalar, Shape, Ty};

/// A dense row-major tensor in host memory, in the machine's byte order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostTensor {
    pub ty: Ty,
    pub data: Vec<u8>,
}

impl HostTensor {
    /// A tensor of zeros.
    pub fn zeros(ty: &Ty) -> HostTensor {
        HostTensor { ty: ty.clone(), data: vec![0; ty.bytes()] }
    }

    /// A tensor from its elements in row-major order, each rounded to the type.
    pub fn from_scalars(ty: &Ty, elements: impl IntoIterator<Item = Scalar>) -> HostTensor {
        let mut data = Vec::with_capacity(ty.bytes());
        for x in elements {
            x.write(ty.dtype, &mut data);
        }
        assert_eq!(data.len(), ty.bytes(), "a tensor of type {ty} from the wrong number of elements");
        HostTensor { ty: ty.clone(), data }
    }

    /// A tensor from doubles in row-major order, each rounded to the type.
    pub fn from_f64s(dtype: DType, shape: impl Into<Shape>, elements: &[f64]) -> HostTensor {
        let ty = Ty { dtype, shape: shape.into() };
        HostTensor::from_scalars(&ty, elements.iter().map(|&x| Scalar::Float(x)))
    }

    /// A tensor from integers in row-major order, each wrapped to the type.
    pub fn from_i64s(dtype: DType, shape: impl Into<Shape>, elements: &[i64]) -> HostTensor {
        let ty = Ty { dtype, shape: shape.into() };
        HostTensor::from_scalars(&ty, elements.iter().map(|&x| Scalar::Int(x)))
    }

    /// How many elements there are.
    pub fn numel(&self) -> usize {
        self.ty.shape.numel()
    }

    /// The element at a row-major position.
    pub fn get(&self, i: usize) -> Scalar {
        let size = self.ty.dtype.size();
        Scalar::read(self.ty.dtype, &self.data[i * size..(i + 1) * size])
    }

    /// Writes the element at a row-major position, rounded to the type.
    pub fn set(&mut self, i: usize, x: Scalar) {
        let size = self.ty.dtype.size();
        let mut bytes = Vec::with_capacity(size);
        x.write(self.ty.dtype, &mut bytes);
        self.data[i * size..(i + 1) * size].copy_from_slice(&bytes);
    }

    /// Every element in row-major order.
    pub fn scalars(&self) -> impl Iterator<Item = Scalar> + '_ {
        (0..self.numel()).map(|i| self.get(i))
    }

    /// Every element as a double, in row-major order.
    pub fn to_f64s(&self) -> Vec<f64> {
        self.scalars().map(Scalar::as_f64).collect()
    }

    /// Every element as an integer, in row-major order; floats are truncated.
    pub fn to_i64s(&self) -> Vec<i64> {
        self.scalars().map(Scalar::as_i64).collect()
    }
}

/// The (relative, absolute) tolerance within which two ways to compute one instruction in `dtype` agree.
pub fn tolerance(dtype: DType) -> (f64, f64) {
    match dtype {
        DType::Bool | DType::U8 | DType::I8 | DType::I16 | DType::I32 | DType::I64 => (0.0, 0.0),
        DType::F16 => (4e-3, 1e-3),
        DType::BF16 => (3e-2, 8e-3),
        DType::F32 => (2e-5, 1e-5),
        DType::F64 => (1e-10, 1e-10),
    }
}

/// Compares two tensors element by element; NaN equals NaN and an infinity itself. The message names the first
/// element that differs, with both values.
pub fn close(a: &HostTensor, b: &HostTensor, rtol: f64, atol: f64) -> Result<(), String> {
    if a.ty != b.ty {
        return Err(format!("types differ: {} and {}", a.ty, b.ty));
    }
    let mut first = None;
    let mut wrong = 0;
    for i in 0..a.numel() {
        let (x, y) = (a.get(i), b.get(i));
        let same = match (x, y) {
            (Scalar::Int(x), Scalar::Int(y)) if rtol == 0.0 => (x as i128 - y as i128).abs() as f64 <= atol,
            _ => close_f64(x.as_f64(), y.as_f64(), rtol, atol),
        };
        if !same {
            wrong += 1;
            first.get_or_insert((i, x, y));
        }
    }
    match first {
        None => Ok(()),
        Some((i, x, y)) => Err(format!(
            "{wrong} of {} elements of {} differ, first at {:?}: {x} and {y}",
            a.numel(),
            a.ty,
            unravel(i, &a.ty.shape)
        )),
    }
}

/// Compares with the tolerance of the tensors' own dtype.
pub fn close_by_dtype(a: &HostTensor, b: &HostTensor) -> Result<(), String> {
    let (rtol, atol) = tolerance(a.ty.dtype);
    close(a, b, rtol, atol)
}

/// True if two doubles agree within tolerances, NaN with NaN and an infinity with itself.
pub fn close_f64(x: f64, y: f64, rtol: f64, atol: f64) -> bool {
    if x.is_nan() || y.is_nan() {
        return x.is_nan() && y.is_nan();
    }
    x == y || (x.is_finite() && y.is_finite() && (x - y).abs() <= atol + rtol * x.abs().max(y.abs()))
}

/// The coordinates of a row-major position.
pub fn unravel(mut i: usize, shape: &Shape) -> Vec<usize> {
    let mut at = vec![0; shape.len()];
    for d in (0..shape.len()).rev() {
        at[d] = i % shape[d];
        i /= shape[d];
    }
    at
}

/// The row-major position of coordinates.
pub fn ravel(at: &[usize], shape: &Shape) -> usize {
    at.iter().zip(shape.iter()).fold(0, |i, (&x, &n)| i * n + x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_survive_in_every_dtype() {
        for dtype in DType::ALL {
            let mut t = HostTensor::zeros(&Ty::new(dtype, [2, 2]));
            t.set(2, Scalar::Int(1));
            assert_eq!(t.to_f64s(), [0.0, 0.0, 1.0, 0.0]);
            assert_eq!(t, HostTensor::from_i64s(dtype, [2, 2], &[0, 0, 1, 0]));
        }
    }

    #[test]
    fn close_names_the_first_difference() {
        let a = HostTensor::from_f64s(DType::F32, [2, 2], &[1.0, f64::NAN, f64::INFINITY, 2.0]);
        assert!(close(&a, &a, 0.0, 0.0).is_ok());
        let mut b = a.clone();
        b.set(3, Scalar::Float(2.5));
        let message = close(&a, &b, 0.1, 0.0).unwrap_err();
        assert!(message.contains("[1, 1]") && message.contains("2.0 and 2.5"), "{message}");
        b.set(2, Scalar::Float(f64::NEG_INFINITY));
        assert!(close(&a, &b, 1.0, 1.0).unwrap_err().contains("[1, 0]"));
        let big = HostTensor::from_i64s(DType::I64, [1], &[i64::MAX]);
        let less = HostTensor::from_i64s(DType::I64, [1], &[i64::MAX - 1]);
        assert!(close_by_dtype(&big, &less).is_err());
    }
}
