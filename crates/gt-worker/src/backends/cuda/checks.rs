//! What to say of a check that failed on the device: the same words as on any other device.

use super::lane::Lane;
use gt_compiler::{Operand, Step, Tensor, Work};
use gt_ir::{DType, Error, Op, Result, Slot, Structure};

/// The error of a failed check. The values are looked at here, where there is time.
pub fn explain(step: &Step, structure: &Structure, addresses: &[u64], slots: &[Slot], lane: &Lane) -> Error {
    let op = &structure.instrs[step.instr as usize].op;
    match &step.work {
        Work::CheckIndex { index, size, wrap } => match values(index, addresses, slots, lane) {
            Ok(values) => bad_index(op, &values, *size, *wrap),
            Err(error) => error,
        },
        Work::CheckNonzero { divisor: Operand::Tensor(_) | Operand::Num(_), .. } => {
            Error::Runtime(format!("{}: ZeroDivisionError: integer division or modulo by zero", op.text()))
        }
        _ => Error::Runtime(format!("{}: a check failed on the device", op.text())),
    }
}

/// The first index that is out of range, as a person should read it.
fn bad_index(op: &Op, values: &[i64], size: usize, wrap: bool) -> Error {
    let dim = match op {
        Op::Gather { dim } | Op::Take { dim } | Op::Scatter { dim, .. } | Op::TakePut { dim, .. } => *dim,
        // The reference names the dimension of the decomposition's own index.
        _ => 0,
    };
    let low = if wrap { -(size as i64) } else { 0 };
    let bad = values.iter().find(|&&i| i < low || i >= size as i64);
    let error = Error::out_of_bounds(bad.copied().unwrap_or_default(), dim, size);
    error.map_message(|m| format!("{}: {m}", op.text()))
}

/// The values of a packed integer tensor.
fn values(t: &Tensor, addresses: &[u64], slots: &[Slot], lane: &Lane) -> Result<Vec<i64>> {
    let size = t.dtype.size();
    let at = addresses[t.storage as usize].wrapping_add_signed((t.map.offset(slots) * size as isize) as i64);
    let bytes = t.shape.numel() * size;
    let mut out = Vec::with_capacity(t.shape.numel());
    let piece = super::staging::Pinned::PIECE;
    for first in (0..bytes).step_by(piece) {
        let n = piece.min(bytes - first);
        // SAFETY: the range lies in the tensor, which the run keeps.
        let landed = unsafe { lane.receive(&lane.stream, at + first as u64, n)? };
        landed.wait(n, |bytes| out.extend(bytes.chunks_exact(size).map(|v| integer(t.dtype, v))))?;
    }
    Ok(out)
}

fn integer(dtype: DType, bytes: &[u8]) -> i64 {
    let mut wide = [0u8; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    let x = i64::from_le_bytes(wide);
    match dtype {
        DType::I8 => x as i8 as i64,
        DType::I16 => x as i16 as i64,
        DType::I32 => x as i32 as i64,
        _ => x,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bad_index_is_named_as_on_the_cpu() {
        let error = bad_index(&Op::Take { dim: 1 }, &[3, -11, 10], 10, true);
        assert_eq!(error.to_string(), "TAKE: index -11 is out of bounds for dimension 1 with size 10");
        assert_eq!(integer(DType::I16, &(-5i16).to_le_bytes()), -5);
        assert_eq!(integer(DType::U8, &[200]), 200);
    }
}
