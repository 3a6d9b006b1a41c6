//! Chains in the registers of AVX-512: blocks of four registers, which are the lanes of a fold.

use super::super::fold::{BLOCK, fold_list};
use super::super::lanes::Lanes;
use super::super::math::{self, Fast};
use super::{Act, Addresses, Chain, One, Place, Two};
use gt_ir::ReduceKind;
use smallvec::SmallVec;
use std::arch::x86_64::*;

const LANES: usize = 16;
/// Elements of a block of `N` registers.
const WHOLE: usize = 4 * LANES;

type Lines<const N: usize> = [__m512; N];

#[inline(always)]
fn pair(op: Two, a: __m512, b: __m512) -> __m512 {
    match op {
        Two::Add => a.add(b),
        Two::Sub => a.sub(b),
        Two::Mul => a.mul(b),
        Two::Div => a.div(b),
        // SAFETY: AVX-512 was detected. The instruction gives `b` if either is NaN, which is wrong where `a` is.
        Two::Max => <__m512 as Lanes>::pick(a.is_nan(), a, unsafe { _mm512_max_ps(a, b) }),
        // SAFETY: as above.
        Two::Min => <__m512 as Lanes>::pick(a.is_nan(), a, unsafe { _mm512_min_ps(a, b) }),
    }
}

#[inline(always)]
fn joined(kind: ReduceKind) -> Two {
    match kind {
        ReduceKind::Sum => Two::Add,
        ReduceKind::Prod => Two::Mul,
        ReduceKind::Max => Two::Max,
        ReduceKind::Min => Two::Min,
    }
}

#[inline(always)]
fn pairs<const N: usize>(op: Two, a: Lines<N>, b: Lines<N>) -> Lines<N> {
    /// One copy of the loop for each op, so that there is no choice inside.
    macro_rules! per {
        ($($row:ident)*) => {
            match op {
                $(Two::$row => {
                    let mut out = a;
                    for i in 0..N {
                        out[i] = pair(Two::$row, a[i], b[i]);
                    }
                    out
                })*
            }
        };
    }
    per!(Add Sub Mul Div Max Min)
}

#[inline(always)]
fn map<const N: usize>(op: One, x: Lines<N>) -> Lines<N> {
    // No closures: one might not be inlined, and would not be vector code then.
    macro_rules! per {
        ($($row:ident $v:ident => $f:expr;)*) => {
            match op {
                $(One::$row => {
                    let mut out = x;
                    for o in &mut out {
                        let $v = *o;
                        *o = $f;
                    }
                    out
                })*
            }
        };
    }
    let one = <__m512 as Lanes>::all(1.0);
    per! {
        Neg x => x.neg();
        Abs x => x.abs();
        Relu x => x.at_least(0.0);
        // SAFETY: AVX-512 was detected.
        Sqrt x => unsafe { _mm512_sqrt_ps(x) };
        // SAFETY: as above.
        Rsqrt x => one.div(unsafe { _mm512_sqrt_ps(x) });
        Recip x => one.div(x);
        Square x => x.mul(x);
        Cube x => x.mul(x).mul(x);
        Exp x => math::exp(x);
        Tanh x => math::tanh(x);
        Sigmoid x => math::sigmoid(x);
        Silu x => math::silu(x);
        Gelu x => math::gelu(x);
        GeluGrad x => math::gelu_grad(x);
    }
}

/// Where the acts of a block find things.
struct Spot<'a> {
    at: &'a [*mut f32],
    /// The element the block begins with, and of `mask` those that exist.
    first: usize,
    mask: __mmask16,
    tile: usize,
}

impl Spot<'_> {
    #[inline(always)]
    unsafe fn load<const N: usize>(&self, place: u8) -> Lines<N> {
        // SAFETY: as the caller of `run` promises.
        unsafe {
            let from = self.at.get_unchecked(place as usize).add(self.first);
            let mut out = [_mm512_setzero_ps(); N];
            for (i, x) in out.iter_mut().enumerate() {
                *x = match N {
                    1 => _mm512_maskz_loadu_ps(self.mask, from),
                    _ => _mm512_loadu_ps(from.add(i * LANES)),
                };
            }
            out
        }
    }

    #[inline(always)]
    unsafe fn one<const N: usize>(&self, place: u8) -> Lines<N> {
        // SAFETY: as the caller of `run` promises.
        unsafe { [_mm512_set1_ps(**self.at.get_unchecked(place as usize)); N] }
    }

    #[inline(always)]
    unsafe fn save<const N: usize>(&self, place: u8, x: Lines<N>, past: bool) {
        // SAFETY: as the caller of `run` promises.
        unsafe {
            let to = self.at.get_unchecked(place as usize).add(self.first);
            if N == 1 {
                _mm512_mask_storeu_ps(to, self.mask, x[0]);
            } else if past && (to as usize).is_multiple_of(64) {
                for (i, x) in x.iter().enumerate() {
                    _mm512_stream_ps(to.add(i * LANES), *x);
                }
            } else {
                for (i, x) in x.iter().enumerate() {
                    _mm512_storeu_ps(to.add(i * LANES), *x);
                }
            }
        }
    }
}

/// Does the acts for one block; `lanes` are those of the fold.
#[inline(always)]
unsafe fn block<const N: usize>(code: &[Act], spot: &Spot, lanes: &mut Lines<N>) {
    // SAFETY: as the caller of `run` promises.
    unsafe {
        let mut x = [_mm512_setzero_ps(); N];
        for act in code {
            match *act {
                Act::Load(p) => x = spot.load(p),
                Act::LoadOne(p) => x = spot.one(p),
                Act::With(op, p) => x = pairs(op, x, spot.load(p)),
                Act::WithOne(op, p) => x = pairs(op, x, spot.one(p)),
                Act::After(op, p) => x = pairs(op, spot.load(p), x),
                Act::AfterOne(op, p) => x = pairs(op, spot.one(p), x),
                Act::Map(op) => x = map(op, x),
                Act::Save(p) => spot.save(p, x, false),
                Act::Stream(p) => spot.save(p, x, true),
                Act::Fold(kind) => {
                    let all = pairs(joined(kind), *lanes, x);
                    for i in 0..N {
                        lanes[i] = match N {
                            1 => <__m512 as Lanes>::pick(spot.mask, all[i], lanes[i]),
                            _ => all[i],
                        };
                    }
                }
                Act::Ask(p) => {
                    let from = spot.at.get_unchecked(p as usize).wrapping_add(spot.first + spot.tile);
                    for i in 0..N {
                        _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(i * LANES) as *const i8);
                    }
                }
            }
        }
    }
}

/// Does the acts for `first..first + len`, at most a block of the fold where there is one; gives the fold's result.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn span(
    code: &[Act],
    at: &[*mut f32],
    tile: usize,
    (first, len): (usize, usize),
    kind: Option<ReduceKind>,
) -> f32 {
    // SAFETY: as the caller of `run` promises.
    unsafe {
        let nothing = _mm512_set1_ps(kind.map_or(0.0, identity));
        let mut lanes = [nothing; 4];
        let whole = len / WHOLE * WHOLE;
        for i in (0..whole).step_by(WHOLE) {
            block::<4>(code, &Spot { at, first: first + i, mask: !0, tile }, &mut lanes);
        }
        let mut rest = lanes;
        for (i, lanes) in (whole..len).step_by(LANES).zip(&mut rest) {
            let mask = ((1u32 << (len - i).min(LANES)) - 1) as __mmask16;
            let mut one = [*lanes];
            block::<1>(code, &Spot { at, first: first + i, mask, tile }, &mut one);
            *lanes = one[0];
        }
        match kind {
            Some(kind) => halves(kind, rest),
            None => 0.0,
        }
    }
}

/// Joining it changes nothing.
fn identity(kind: ReduceKind) -> f32 {
    use super::super::fold::Folds;
    Fast::identity(kind).0
}

/// Joins the lanes in halves.
#[inline(always)]
fn halves(kind: ReduceKind, x: Lines<4>) -> f32 {
    macro_rules! join {
        ($a:expr, $b:expr) => {
            pairs(joined(kind), [$a], [$b])[0]
        };
    }
    let x = join!(join!(x[0], x[2]), join!(x[1], x[3]));
    // SAFETY: AVX-512 was detected.
    unsafe {
        let x = join!(x, _mm512_shuffle_f32x4::<0b01_00_11_10>(x, x));
        let x = join!(x, _mm512_shuffle_f32x4::<0b10_11_00_01>(x, x));
        let x = join!(x, _mm512_permute_ps::<0b01_00_11_10>(x));
        let x = join!(x, _mm512_permute_ps::<0b10_11_00_01>(x));
        _mm512_cvtss_f32(x)
    }
}

#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,avx512f,avx512bw,avx512dq,avx512vl")]
pub unsafe fn run(chain: &Chain, at: &Addresses, len: usize, rows: usize, tile: usize, fold: *mut f32) {
    let kind = chain.fold.map(|(kind, _)| kind);
    let mut here: Addresses = at.clone();
    // SAFETY: passed on from the caller.
    unsafe {
        for r in 0..rows {
            for (i, place) in chain.places.iter().enumerate() {
                if let Place::Row(_) = place {
                    here[i] = at[i].add(r);
                }
            }
            let first = r * len;
            let Some(kind) = kind else {
                // Lines are written past the caches whole, so they are to begin where blocks do.
                let head = chain.stream.map_or(0, |p| {
                    let to = here[p as usize].wrapping_add(first);
                    if len > WHOLE { to.align_offset(64) } else { 0 }
                });
                let head = if head < WHOLE { head } else { 0 };
                span(&chain.code, &here, tile, (first, head), None);
                span(&chain.code, &here, tile, (first + head, len - head), None);
                continue;
            };
            if len <= BLOCK {
                *fold.add(r) = span(&chain.code, &here, tile, (first, len), Some(kind));
                continue;
            }
            let mut parts: SmallVec<[Fast; 32]> = SmallVec::new();
            for i in (0..len).step_by(BLOCK) {
                let range = (first + i, BLOCK.min(len - i));
                parts.push(Fast(span(&chain.code, &here, tile, range, Some(kind))));
            }
            *fold.add(r) = fold_list(kind, &parts).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gt_ir::real::Real;

    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn mapped(op: One, x: &[f32; 16]) -> [f32; 16] {
        let mut out = [0.0; 16];
        // SAFETY: both sides hold a register.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), map(op, [_mm512_loadu_ps(x.as_ptr())])[0]) };
        out
    }

    /// Numbers in a register have the bits of numbers alone, NaN, infinities and subnormals included.
    #[test]
    fn a_register_has_the_bits_of_single_numbers() {
        if crate::backends::cpu::isa::level() < 3 {
            return;
        }
        let one = |op: One, x: Fast| match op {
            One::Neg => -x,
            One::Abs => x.abs(),
            One::Relu => x.relu(),
            One::Sqrt => x.sqrt(),
            One::Rsqrt => Fast(1.0) / x.sqrt(),
            One::Recip => Fast(1.0) / x,
            One::Square => x * x,
            One::Cube => x * x * x,
            One::Exp => x.exp(),
            One::Tanh => x.tanh(),
            One::Sigmoid => x.sigmoid(),
            One::Silu => x.silu(),
            One::Gelu => x.gelu(),
            One::GeluGrad => x.gelu_grad(),
        };
        use One::*;
        let all =
            [Neg, Abs, Relu, Sqrt, Rsqrt, Recip, Square, Cube, Exp, Tanh, Sigmoid, Silu, Gelu, GeluGrad];
        for op in all {
            for start in (0..u32::MAX - 16 * 7919).step_by(16 * 7919) {
                let x: [f32; 16] = std::array::from_fn(|i| f32::from_bits(start + i as u32 * 7919));
                // SAFETY: the unit was detected.
                let got = unsafe { mapped(op, &x) };
                for i in 0..16 {
                    let want = one(op, Fast(x[i])).0;
                    let same = got[i].to_bits() == want.to_bits() || (got[i].is_nan() && want.is_nan());
                    assert!(same, "{op:?} of {:e}: {:e} and {want:e}", x[i], got[i]);
                }
            }
        }
    }
}
