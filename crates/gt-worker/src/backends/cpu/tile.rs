//! The rows of the op table over tiles: loops that become vector code, one copy per vector unit.

use super::acts;
use super::chain;
use super::convert::{Lane, each};
use super::isa::{self, per_isa};
use super::math::{Fast, TRIG_LIMIT};
use gt_ir::elementwise::Gives;
use gt_ir::real::Real;
use gt_ir::{Binary, Unary};

/// Evaluates the body with `$OP` a constant of the table's row.
macro_rules! per_unary {
    ($op:expr, $OP:ident => $body:expr) => {
        per_unary!(@rows $op, $OP, $body; Neg Abs Sign Exp Expm1 Log Log1p Sqrt Rsqrt Recip Sin Cos Tanh Sigmoid Relu Gelu GeluGrad
            Silu Erf Floor Ceil Round Trunc Not Asin Acos Atan)
    };
    (@rows $op:expr, $OP:ident, $body:expr; $($Row:ident)*) => {
        match $op { $(Unary::$Row => { const $OP: Unary = Unary::$Row; $body })* }
    };
}

macro_rules! per_binary {
    ($op:expr, $OP:ident => $body:expr) => {
        per_binary!(@rows $op, $OP, $body; Add Sub Mul Div FloorDiv Rem Pow Max Min Eq Ne Lt Le Gt Ge And Or Xor Atan2)
    };
    (@rows $op:expr, $OP:ident, $body:expr; $($Row:ident)*) => {
        match $op { $(Binary::$Row => { const $OP: Binary = Binary::$Row; $body })* }
    };
}

/// Applies `f` to pairs of elements.
///
/// # Safety
/// All tiles hold `n` elements, and `dst` overlaps none of the others.
#[inline(always)]
unsafe fn pairs<A: Copy, B: Copy, D>(a: *const A, b: *const B, dst: *mut D, n: usize, f: impl Fn(A, B) -> D) {
    // SAFETY: as the caller promises.
    unsafe {
        let (a, b) = (std::slice::from_raw_parts(a, n), std::slice::from_raw_parts(b, n));
        let dst = std::slice::from_raw_parts_mut(dst, n);
        for i in 0..n {
            dst[i] = f(a[i], b[i]);
        }
    }
}

per_isa! {
    pub unsafe fn unary_real<T: Real>(op: Unary, x: *const T, out: *mut T, n: usize) {
        // SAFETY: passed on from the caller.
        let (x, out) = unsafe { (std::slice::from_raw_parts(x, n), std::slice::from_raw_parts_mut(out, n)) };
        // No closure: a long one might not be inlined, and would not be vector code then.
        per_unary!(op, OP => for i in 0..n {
            out[i] = OP.real(x[i]);
        })
    }
}

per_isa! {
    pub unsafe fn unary_i32(op: Unary, x: *const i32, out: *mut i32, n: usize) {
        // SAFETY: passed on from the caller.
        unsafe { per_unary!(op, OP => each(x, out, n, |x| OP.int(x as i64) as i32)) }
    }
}

per_isa! {
    pub unsafe fn unary_i64(op: Unary, x: *const i64, out: *mut i64, n: usize) {
        // SAFETY: passed on from the caller.
        unsafe { per_unary!(op, OP => each(x, out, n, |x| OP.int(x))) }
    }
}

per_isa! {
    pub unsafe fn binary_real<T: Real>(op: Binary, a: *const T, b: *const T, out: *mut u8, n: usize) {
        // SAFETY: passed on from the caller.
        unsafe {
            per_binary!(op, OP => match const { OP.gives() } {
                Gives::Same => pairs(a, b, out as *mut T, n, |a, b| OP.real(a, b)),
                Gives::Bool => pairs(a, b, out, n, |a, b| (OP.real(a, b) != T::of(0.0)) as u8),
            })
        }
    }
}

per_isa! {
    pub unsafe fn binary_i32(op: Binary, a: *const i32, b: *const i32, out: *mut u8, n: usize) {
        // SAFETY: passed on from the caller.
        unsafe {
            per_binary!(op, OP => match const { OP.gives() } {
                Gives::Same => pairs(a, b, out as *mut i32, n, |a, b| OP.int(a as i64, b as i64) as i32),
                Gives::Bool => pairs(a, b, out, n, |a, b| OP.int(a as i64, b as i64) as u8),
            })
        }
    }
}

per_isa! {
    pub unsafe fn binary_i64(op: Binary, a: *const i64, b: *const i64, out: *mut u8, n: usize) {
        // SAFETY: passed on from the caller.
        unsafe {
            per_binary!(op, OP => match const { OP.gives() } {
                Gives::Same => pairs(a, b, out as *mut i64, n, |a, b| OP.int(a, b)),
                Gives::Bool => pairs(a, b, out, n, |a, b| OP.int(a, b) as u8),
            })
        }
    }
}

per_isa! {
    pub unsafe fn binary_bool(op: Binary, a: *const u8, b: *const u8, out: *mut u8, n: usize) {
        // SAFETY: passed on from the caller.
        unsafe { per_binary!(op, OP => pairs(a, b, out, n, |a, b| (OP.int(a as i64, b as i64) != 0) as u8)) }
    }
}

/// A unary row over a tile of `lane`.
///
/// # Safety
/// Both tiles hold `n` elements of `lane` and do not overlap.
pub unsafe fn unary(op: Unary, lane: Lane, x: *const u8, out: *mut u8, n: usize) {
    // SAFETY: passed on from the caller.
    unsafe {
        match lane {
            Lane::F32 => {
                match (isa::level(), acts::unary(op)) {
                    (3.., Some(code)) => chain::map_tile(code, x as *const f32, out as *mut f32, n),
                    #[cfg(target_arch = "x86_64")]
                    (2, _) if matches!(op, Unary::Gelu | Unary::GeluGrad) => {
                        by_eight(op == Unary::GeluGrad, x as *const f32, out as *mut f32, n)
                    }
                    _ => unary_real(op, x as *const Fast, out as *mut Fast, n),
                }
                if matches!(op, Unary::Sin | Unary::Cos) {
                    far_angles(op, x as *const f32, out as *mut f32, n);
                }
            }
            Lane::F64 => unary_real(op, x as *const f64, out as *mut f64, n),
            Lane::I32 => unary_i32(op, x as *const i32, out as *mut i32, n),
            Lane::I64 => unary_i64(op, x as *const i64, out as *mut i64, n),
            Lane::Bool => each(x, out, n, |x| op.bool(x != 0) as u8),
        }
    }
}

/// `gelu`, or its gradient, in registers of AVX2: tables are looked up there, which compilers do not find out.
///
/// # Safety
/// AVX2 and FMA were detected. Both tiles hold `n` elements and do not overlap.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2")]
unsafe fn by_eight(grad: bool, x: *const f32, out: *mut f32, n: usize) {
    use super::math::{gelu, gelu_grad};
    use std::arch::x86_64::{_mm256_loadu_ps, _mm256_storeu_ps};
    let whole = n / 8 * 8;
    // SAFETY: passed on from the caller.
    unsafe {
        for i in (0..whole).step_by(8) {
            let x = _mm256_loadu_ps(x.add(i));
            _mm256_storeu_ps(out.add(i), if grad { gelu_grad(x) } else { gelu(x) });
        }
        for i in whole..n {
            let x = *x.add(i);
            *out.add(i) = if grad { gelu_grad(x) } else { gelu(x) };
        }
    }
}

/// Recomputes the few angles that the fast path leaves out.
///
/// # Safety
/// Both tiles hold `n` elements and do not overlap.
unsafe fn far_angles(op: Unary, x: *const f32, out: *mut f32, n: usize) {
    for i in 0..n {
        // SAFETY: as the caller promises.
        unsafe {
            let angle = *x.add(i);
            if angle.abs() >= TRIG_LIMIT {
                *out.add(i) = if op == Unary::Sin { angle.sin() } else { angle.cos() };
            }
        }
    }
}

/// A binary row over tiles of `lane`; comparisons give a tile of bool.
///
/// # Safety
/// All tiles hold `n` elements, and `out` overlaps none of the others.
pub unsafe fn binary(op: Binary, lane: Lane, a: *const u8, b: *const u8, out: *mut u8, n: usize) {
    // SAFETY: passed on from the caller.
    unsafe {
        match lane {
            Lane::F32 => binary_real(op, a as *const Fast, b as *const Fast, out, n),
            Lane::F64 => binary_real(op, a as *const f64, b as *const f64, out, n),
            Lane::I32 => binary_i32(op, a as *const i32, b as *const i32, out, n),
            Lane::I64 => binary_i64(op, a as *const i64, b as *const i64, out, n),
            Lane::Bool => binary_bool(op, a, b, out, n),
        }
    }
}

per_isa! {
    pub unsafe fn rows_real<T: Real>(op: Binary, by: (bool, bool), a: *const T, b: *const T, out: *mut u8, len: usize, rows: usize) {
        // SAFETY: passed on from the caller.
        unsafe {
            per_binary!(op, OP => for r in 0..rows {
                let at = r * len;
                match (const { OP.gives() }, by) {
                    (Gives::Same, (false, _)) => {
                        let b = *b.add(r);
                        each(a.add(at), (out as *mut T).add(at), len, |a| OP.real(a, b))
                    }
                    (Gives::Same, (true, false)) => {
                        let a = *a.add(r);
                        each(b.add(at), (out as *mut T).add(at), len, |b| OP.real(a, b))
                    }
                    (Gives::Same, (true, true)) => {
                        let x = OP.real(*a.add(r), *b.add(r));
                        for i in 0..len {
                            *(out as *mut T).add(at + i) = x;
                        }
                    }
                    (Gives::Bool, (false, _)) => {
                        let b = *b.add(r);
                        each(a.add(at), out.add(at), len, |a| (OP.real(a, b) != T::of(0.0)) as u8)
                    }
                    (Gives::Bool, (true, false)) => {
                        let a = *a.add(r);
                        each(b.add(at), out.add(at), len, |b| (OP.real(a, b) != T::of(0.0)) as u8)
                    }
                    (Gives::Bool, (true, true)) => {
                        let x = (OP.real(*a.add(r), *b.add(r)) != T::of(0.0)) as u8;
                        for i in 0..len {
                            *out.add(at + i) = x;
                        }
                    }
                }
            })
        }
    }
}

/// A binary row over tiles of f32 that are `rows` rows of `len` elements; the operands that `by` names have one value
/// per row.
///
/// # Safety
/// All tiles hold what that says, and `out` overlaps none of the others.
pub unsafe fn binary_by_row(
    op: Binary,
    by: (bool, bool),
    a: *const u8,
    b: *const u8,
    out: *mut u8,
    len: usize,
    rows: usize,
) {
    // SAFETY: passed on from the caller.
    unsafe { rows_real(op, by, a as *const Fast, b as *const Fast, out, len, rows) }
}

per_isa! {
    pub unsafe fn cube_of<T: Real>(x: *const T, out: *mut T, n: usize) {
        // SAFETY: passed on from the caller.
        unsafe { each(x, out, n, |x: T| x * x * x) }
    }
}

/// `x * x * x` over a tile of a floating-point lane.
///
/// # Safety
/// Both tiles hold `n` elements of `lane` and do not overlap.
pub unsafe fn cube(lane: Lane, x: *const u8, out: *mut u8, n: usize) {
    // SAFETY: passed on from the caller.
    unsafe {
        match lane {
            Lane::F64 => cube_of(x as *const f64, out as *mut f64, n),
            _ => cube_of(x as *const Fast, out as *mut Fast, n),
        }
    }
}

per_isa! {
    pub unsafe fn select_of<T: Copy>(cond: *const u8, a: *const T, b: *const T, out: *mut T, n: usize) {
        // SAFETY: passed on from the caller.
        unsafe {
            let (a, b) = (std::slice::from_raw_parts(a, n), std::slice::from_raw_parts(b, n));
            let cond = std::slice::from_raw_parts(cond, n);
            let out = std::slice::from_raw_parts_mut(out, n);
            for i in 0..n {
                let (x, y) = (a[i], b[i]);
                out[i] = if cond[i] != 0 { x } else { y };
            }
        }
    }
}

/// `cond ? a : b` over tiles of elements of `size` bytes.
///
/// # Safety
/// All tiles hold `n` elements, and `out` overlaps none of the others.
pub unsafe fn select(size: usize, cond: *const u8, a: *const u8, b: *const u8, out: *mut u8, n: usize) {
    // SAFETY: passed on from the caller.
    unsafe {
        match size {
            1 => select_of(cond, a, b, out, n),
            4 => select_of(cond, a as *const u32, b as *const u32, out as *mut u32, n),
            _ => select_of(cond, a as *const u64, b as *const u64, out as *mut u64, n),
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::backends::cpu::math::{gelu, gelu_grad};

    /// Eight numbers in a register have the bits of numbers alone.
    #[test]
    fn eight_have_the_bits_of_one() {
        if isa::level() < 2 {
            return;
        }
        for start in (0..u32::MAX - 11 * 5011).step_by(11 * 5011) {
            let x: [f32; 11] = std::array::from_fn(|i| f32::from_bits(start + i as u32 * 5011));
            for grad in [false, true] {
                let mut got = [0.0; 11];
                // SAFETY: the unit was detected, and both sides hold as much.
                unsafe { by_eight(grad, x.as_ptr(), got.as_mut_ptr(), 11) };
                for i in 0..11 {
                    let want = if grad { gelu_grad(x[i]) } else { gelu(x[i]) };
                    let same = got[i].to_bits() == want.to_bits() || (got[i].is_nan() && want.is_nan());
                    assert!(same, "{:e}: {:e} and {want:e}", x[i], got[i]);
                }
            }
        }
    }
}
