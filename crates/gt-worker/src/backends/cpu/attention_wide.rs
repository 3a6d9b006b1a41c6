//! Rows of scores in registers of AVX-512, with the bits of the plain loops.

use super::super::lanes::Lanes;
use super::super::math::exp_below;
use super::super::wide::Wide;
use super::rows::Visible;
use std::arch::x86_64::__m512 as V;

/// The rows of `soften`.
///
/// # Safety
/// As `soften`, where AVX-512 was detected.
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
pub unsafe fn soften(
    x: *mut f32,
    rows: usize,
    pitch: usize,
    seen: Visible,
    scale: f32,
    tops: *mut f32,
    sums: *mut f32,
) {
    let lowest = V::all(f32::NEG_INFINITY);
    let scale = V::all(scale);
    for i in 0..rows {
        let visible = seen.of(i);
        let (whole, rest) = (visible / V::LANES * V::LANES, visible % V::LANES);
        // SAFETY: passed on from the caller; rows hold whole registers.
        unsafe {
            let row = x.add(i * pitch);
            let mut top = lowest;
            for c in (0..whole).step_by(V::LANES) {
                top = V::load(row.add(c)).mul(scale).max(top);
            }
            if rest > 0 {
                top = V::load(row.add(whole)).mul(scale).first(rest, lowest).max(top);
            }
            let top = top.top();
            let from = V::all(if top == f32::NEG_INFINITY { 0.0 } else { top });
            let mut sum = V::all(0.0);
            for c in (0..whole).step_by(V::LANES) {
                let e = exp_below(V::load(row.add(c)).mul(scale).sub(from));
                e.save(row.add(c));
                sum = sum.add(e);
            }
            let mut c = whole;
            if rest > 0 {
                let e = exp_below(V::load(row.add(c)).mul(scale).sub(from)).first(rest, V::all(0.0));
                e.save(row.add(c));
                sum = sum.add(e);
                c += V::LANES;
            }
            while c < seen.n {
                V::all(0.0).save(row.add(c));
                c += V::LANES;
            }
            *tops.add(i) = top;
            *sums.add(i) = sum.total();
        }
    }
}

/// The rows of `deltas`, whose width is a multiple of a register's.
///
/// # Safety
/// As `deltas`, where AVX-512 was detected.
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
pub unsafe fn deltas(
    a: *const f32,
    b: *const f32,
    pitches: (usize, usize),
    rows: usize,
    width: usize,
    out: *mut f32,
) {
    for i in 0..rows {
        // SAFETY: passed on from the caller.
        unsafe {
            let (a, b) = (a.add(i * pitches.0), b.add(i * pitches.1));
            let mut sum = V::all(0.0);
            for c in (0..width).step_by(V::LANES) {
                sum = sum.add(V::load(a.add(c)).mul(V::load(b.add(c))));
            }
            *out.add(i) = sum.total();
        }
    }
}
