//! Numbers for the device and back.

use gt_ir::DType;
use half::{bf16, f16};

/// A small generator of numbers in -1..1.
pub struct Rng(pub u64);

impl Rng {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n
    }

    pub fn number(&mut self) -> f64 {
        self.below(1 << 20) as f64 / (1 << 19) as f64 - 1.0
    }
}

/// An array as it lies on the device, and the numbers it holds after rounding.
pub struct Array {
    pub dtype: DType,
    pub bytes: Vec<u8>,
}

impl Array {
    pub fn new(dtype: DType, len: usize, mut next: impl FnMut(usize) -> f64) -> Array {
        let mut bytes = Vec::with_capacity(len * dtype.size());
        for i in 0..len {
            let x = next(i);
            match dtype {
                DType::F16 => bytes.extend(f16::from_f64(x).to_ne_bytes()),
                DType::BF16 => bytes.extend(bf16::from_f64(x).to_ne_bytes()),
                DType::F32 => bytes.extend((x as f32).to_ne_bytes()),
                DType::F64 => bytes.extend(x.to_ne_bytes()),
                DType::I64 => bytes.extend((x as i64).to_ne_bytes()),
                DType::I32 => bytes.extend((x as i32).to_ne_bytes()),
                DType::I16 => bytes.extend((x as i16).to_ne_bytes()),
                DType::I8 => bytes.extend((x as i8).to_ne_bytes()),
                DType::U8 | DType::Bool => bytes.push(x as i64 as u8),
            }
        }
        Array { dtype, bytes }
    }

    pub fn get(&self, i: usize) -> f64 {
        let size = self.dtype.size();
        get(self.dtype, &self.bytes[i * size..(i + 1) * size])
    }
}

fn get(dtype: DType, from: &[u8]) -> f64 {
    let four = || [from[0], from[1], from[2], from[3]];
    let eight = || <[u8; 8]>::try_from(from).unwrap_or_default();
    match dtype {
        DType::F16 => f16::from_ne_bytes([from[0], from[1]]).to_f64(),
        DType::BF16 => bf16::from_ne_bytes([from[0], from[1]]).to_f64(),
        DType::F32 => f32::from_ne_bytes(four()) as f64,
        DType::F64 => f64::from_ne_bytes(eight()),
        DType::I64 => i64::from_ne_bytes(eight()) as f64,
        DType::I32 => i32::from_ne_bytes(four()) as f64,
        DType::I16 => i16::from_ne_bytes([from[0], from[1]]) as f64,
        DType::I8 => from[0] as i8 as f64,
        DType::U8 | DType::Bool => from[0] as f64,
    }
}

/// The largest distance between numbers, by the size of the largest expected.
pub fn distance(pairs: impl Iterator<Item = (f64, f64)>) -> f64 {
    let (mut worst, mut most) = (0f64, 1e-30f64);
    for (got, want) in pairs {
        if got == want {
            continue;
        }
        if !got.is_finite() || !want.is_finite() {
            return f64::INFINITY;
        }
        worst = worst.max((got - want).abs());
        most = most.max(want.abs());
    }
    worst / most
}
