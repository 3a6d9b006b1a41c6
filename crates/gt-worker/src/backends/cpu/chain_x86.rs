//! Chains in the registers of AVX-512: blocks of up to eight registers, of which four are the lanes of a fold.

use super::super::acts::{Act, Code, fold_code};
use super::super::fold::{BLOCK, Folds, fold_short};
use super::super::lanes::Lanes;
use super::super::math::{self, Fast};
use super::{Addresses, Chain, Place};
use gt_ir::ReduceKind;
use smallvec::SmallVec;
use std::arch::x86_64::*;

const LANES: usize = 16;
/// Registers that hold the lanes of a fold.
const ACROSS: usize = 4;
/// Registers of a long block: the more, the less it costs to find the next act.
const LONG: usize = 8;

type Lines<const N: usize> = [__m512; N];

/// Element by element, `a` if it is above `b` or NaN.
#[inline(always)]
fn max(a: __m512, b: __m512) -> __m512 {
    // SAFETY: AVX-512 was detected. The instruction gives `b` if either is NaN, which is wrong where `a` is.
    <__m512 as Lanes>::pick(a.is_nan(), a, unsafe { _mm512_max_ps(a, b) })
}

/// Element by element, `a` if it is below `b` or NaN.
#[inline(always)]
fn min(a: __m512, b: __m512) -> __m512 {
    // SAFETY: as above.
    <__m512 as Lanes>::pick(a.is_nan(), a, unsafe { _mm512_min_ps(a, b) })
}

/// Where the acts of a block find things.
struct Spot<'a> {
    at: &'a [*mut f32],
    /// The element the block begins with, and of `mask` those that exist.
    first: usize,
    mask: __mmask16,
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
    unsafe fn one(&self, place: u8) -> __m512 {
        // SAFETY: as the caller of `run` promises.
        unsafe { _mm512_set1_ps(**self.at.get_unchecked(place as usize)) }
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

/// What a fold has so far.
struct Folded<const M: usize> {
    lanes: Lines<M>,
    /// Where a NaN was met on the way to the largest or the least, which then is NaN itself.
    nan: __mmask16,
}

/// `$x[i] = $f` for every register of a block, written out: a loop might stay one, and hold its block in memory.
macro_rules! each {
    ($N:ident, $x:ident, $i:ident, $v:ident => $f:expr) => {
        each!(@ $N, $x, $i, $v, $f; 0 1 2 3 4 5 6 7)
    };
    (@ $N:ident, $x:ident, $i:ident, $v:ident, $f:expr; $($k:literal)*) => {
        {$(if $k < $N {
            let $i: usize = $k;
            let $v = $x[$i];
            $x[$i] = $f;
        })*}
    };
}

/// Does the acts for one block of `N` registers; a fold has `M` registers of lanes. Without the `HEAVY` acts all of them stay
/// in registers.
#[inline(always)]
unsafe fn block<const N: usize, const M: usize, const HEAVY: bool>(
    code: &[Act],
    spot: &Spot,
    folded: &mut Folded<M>,
) {
    // SAFETY: as the caller of `run` promises.
    unsafe {
        let mut x = [_mm512_setzero_ps(); N];
        let unit = <__m512 as Lanes>::all(1.0);
        /// The value with what lies at the act's place, for each element and for all.
        macro_rules! with {
            ($p:expr, $v:ident, $b:ident => $f:expr) => {{
                let b: Lines<N> = spot.load($p);
                each!(N, x, i, $v => {
                    let $b = b[i];
                    $f
                })
            }};
        }
        macro_rules! with_one {
            ($p:expr, $v:ident, $b:ident => $f:expr) => {{
                let $b = spot.one($p);
                each!(N, x, i, $v => $f)
            }};
        }
        macro_rules! join {
            ($v:ident, $l:ident => $f:expr) => {
                each!(N, x, i, $v => {
                    let $l = folded.lanes[i % M];
                    let all = $f;
                    folded.lanes[i % M] = match N {
                        1 => <__m512 as Lanes>::pick(spot.mask, all, $l),
                        _ => all,
                    };
                    $v
                })
            };
        }
        macro_rules! heavy {
            ($v:ident => $f:expr) => {
                if HEAVY {
                    each!(N, x, i, $v => $f)
                }
            };
        }
        for act in code {
            let p = act.at;
            match act.code {
                Code::Load => x = spot.load(p),
                Code::LoadOne => x = [spot.one(p); N],
                Code::Add => with!(p, v, b => v.add(b)),
                Code::AddOne => with_one!(p, v, b => v.add(b)),
                Code::Sub => with!(p, v, b => v.sub(b)),
                Code::SubOne => with_one!(p, v, b => v.sub(b)),
                Code::Mul => with!(p, v, b => v.mul(b)),
                Code::MulOne => with_one!(p, v, b => v.mul(b)),
                Code::Div => with!(p, v, b => v.div(b)),
                Code::DivOne => with_one!(p, v, b => v.div(b)),
                Code::Max => with!(p, v, b => max(v, b)),
                Code::MaxOne => with_one!(p, v, b => max(v, b)),
                Code::Min => with!(p, v, b => min(v, b)),
                Code::MinOne => with_one!(p, v, b => min(v, b)),
                Code::SubFrom => with!(p, v, b => b.sub(v)),
                Code::SubFromOne => with_one!(p, v, b => b.sub(v)),
                Code::DivInto => with!(p, v, b => b.div(v)),
                Code::DivIntoOne => with_one!(p, v, b => b.div(v)),
                Code::MaxAfter => with!(p, v, b => max(b, v)),
                Code::MaxAfterOne => with_one!(p, v, b => max(b, v)),
                Code::MinAfter => with!(p, v, b => min(b, v)),
                Code::MinAfterOne => with_one!(p, v, b => min(b, v)),
                Code::Neg => each!(N, x, i, v => v.neg()),
                Code::Abs => each!(N, x, i, v => v.abs()),
                Code::Relu => each!(N, x, i, v => v.at_least(0.0)),
                Code::Sqrt => each!(N, x, i, v => _mm512_sqrt_ps(v)),
                Code::Rsqrt => each!(N, x, i, v => unit.div(_mm512_sqrt_ps(v))),
                Code::Recip => each!(N, x, i, v => unit.div(v)),
                Code::Square => each!(N, x, i, v => v.mul(v)),
                Code::Cube => each!(N, x, i, v => v.mul(v).mul(v)),
                Code::Exp => heavy!(v => math::exp(v)),
                Code::Tanh => heavy!(v => math::tanh(v)),
                Code::Sigmoid => heavy!(v => math::sigmoid(v)),
                Code::Silu => heavy!(v => math::silu(v)),
                Code::Gelu => heavy!(v => math::gelu(v)),
                Code::GeluGrad => heavy!(v => math::gelu_grad(v)),
                Code::Save => spot.save(p, x, false),
                Code::Stream => spot.save(p, x, true),
                Code::FoldSum => join!(v, l => l.add(v)),
                Code::FoldProd => join!(v, l => l.mul(v)),
                Code::FoldMax => {
                    folded.nan |= nans(&x, spot.mask);
                    join!(v, l => _mm512_max_ps(l, v));
                }
                Code::FoldMin => {
                    folded.nan |= nans(&x, spot.mask);
                    join!(v, l => _mm512_min_ps(l, v));
                }
                Code::LoadSubOne => {
                    x = spot.load(p);
                    with_one!(act.by, v, b => v.sub(b))
                }
                Code::LoadMulOne => {
                    x = spot.load(p);
                    with_one!(act.by, v, b => v.mul(b))
                }
                Code::LoadMul => {
                    x = spot.load(p);
                    with!(act.by, v, b => v.mul(b))
                }
                Code::LoadFoldSum => {
                    x = spot.load(p);
                    join!(v, l => l.add(v))
                }
                Code::LoadFoldMax => {
                    x = spot.load(p);
                    folded.nan |= nans(&x, spot.mask);
                    join!(v, l => _mm512_max_ps(l, v));
                }
                Code::SquareFoldSum => {
                    each!(N, x, i, v => v.mul(v));
                    join!(v, l => l.add(v))
                }
                Code::MulAdd => {
                    with!(p, v, b => v.mul(b));
                    with!(act.by, v, b => v.add(b))
                }
                Code::ExpFold => {
                    x = spot.load(p);
                    with_one!(act.by, v, b => v.sub(b));
                    heavy!(v => math::exp(v));
                    join!(v, l => l.add(v))
                }
                Code::ExpSaveFold => {
                    x = spot.load(p);
                    with_one!(act.by, v, b => v.sub(b));
                    heavy!(v => math::exp(v));
                    spot.save(act.to, x, false);
                    join!(v, l => l.add(v))
                }
                Code::Ask => {
                    let eighths = act.by as usize;
                    let from = spot.at.get_unchecked(p as usize).wrapping_add(spot.first * eighths / 8);
                    // A long block is eight lines.
                    for i in 0..(eighths * N).div_ceil(8) {
                        let line = from.wrapping_add(i * LANES) as *const i8;
                        match act.to {
                            0 => _mm_prefetch::<_MM_HINT_T0>(line),
                            _ => _mm_prefetch::<_MM_HINT_NTA>(line),
                        }
                    }
                }
            }
        }
    }
}

/// Where a block has NaN; one comparison looks at two registers.
#[inline(always)]
fn nans<const N: usize>(x: &Lines<N>, mask: __mmask16) -> __mmask16 {
    let mut found = 0;
    for i in (0..N).step_by(2) {
        // SAFETY: AVX-512 was detected.
        found |= unsafe { _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x[i], x[(i + 1).min(N - 1)]) };
    }
    found & mask
}

/// Does the acts for `first..first + len`, at most a block of the fold where there is one; gives the fold's result.
#[inline(always)]
unsafe fn span<const HEAVY: bool>(
    code: &[Act],
    at: &[*mut f32],
    (first, len): (usize, usize),
    kind: Option<ReduceKind>,
) -> f32 {
    // SAFETY: as the caller of `run` promises.
    unsafe {
        let nothing = _mm512_set1_ps(kind.map_or(0.0, |kind| Fast::identity(kind).0));
        let mut folded = Folded { lanes: [nothing; ACROSS], nan: 0 };
        let mut i = 0;
        while i + LONG * LANES <= len {
            block::<LONG, ACROSS, HEAVY>(code, &Spot { at, first: first + i, mask: !0 }, &mut folded);
            i += LONG * LANES;
        }
        if i + ACROSS * LANES <= len {
            block::<ACROSS, ACROSS, HEAVY>(code, &Spot { at, first: first + i, mask: !0 }, &mut folded);
            i += ACROSS * LANES;
        }
        if i < len {
            rest::<HEAVY>(code, at, (first, i, len), &mut folded);
        }
        match kind {
            Some(_) if folded.nan != 0 => f32::NAN,
            Some(kind) => halves(kind, folded.lanes),
            None => 0.0,
        }
    }
}

/// What is left of a span that is done up to `from`, less than a block: register by register, the last of them in part.
#[inline(always)]
unsafe fn rest<const HEAVY: bool>(
    code: &[Act],
    at: &[*mut f32],
    (first, from, len): (usize, usize, usize),
    folded: &mut Folded<ACROSS>,
) {
    // A copy, so that the lanes themselves need not be in memory.
    let mut all = folded.lanes;
    let mut i = from;
    // SAFETY: as the caller of `run` promises.
    unsafe {
        for lanes in &mut all {
            if i >= len {
                break;
            }
            let mask = ((1u32 << (len - i).min(LANES)) - 1) as __mmask16;
            let mut one = Folded { lanes: [*lanes], nan: 0 };
            block::<1, 1, HEAVY>(code, &Spot { at, first: first + i, mask }, &mut one);
            *lanes = one.lanes[0];
            folded.nan |= one.nan;
            i += LANES;
        }
    }
    folded.lanes = all;
}

/// Joins the lanes in halves; none of them is NaN where that would matter.
#[inline(always)]
fn halves(kind: ReduceKind, x: Lines<ACROSS>) -> f32 {
    macro_rules! all {
        ($a:ident, $b:ident => $join:expr) => {{
            macro_rules! join {
                ($x:expr, $y:expr) => {{
                    let ($a, $b) = ($x, $y);
                    $join
                }};
            }
            let x = join!(join!(x[0], x[2]), join!(x[1], x[3]));
            let x = join!(x, _mm512_shuffle_f32x4::<0b01_00_11_10>(x, x));
            let x = join!(x, _mm512_shuffle_f32x4::<0b10_11_00_01>(x, x));
            let x = join!(x, _mm512_permute_ps::<0b01_00_11_10>(x));
            let x = join!(x, _mm512_permute_ps::<0b10_11_00_01>(x));
            _mm512_cvtss_f32(x)
        }};
    }
    // SAFETY: AVX-512 was detected.
    unsafe {
        match kind {
            ReduceKind::Sum => all!(a, b => a.add(b)),
            ReduceKind::Prod => all!(a, b => a.mul(b)),
            ReduceKind::Max => all!(a, b => _mm512_max_ps(a, b)),
            ReduceKind::Min => all!(a, b => _mm512_min_ps(a, b)),
        }
    }
}

/// What to do to every row.
struct Job<'a> {
    code: &'a [Act],
    places: &'a [Place],
    stream: Option<u8>,
    fold: Option<ReduceKind>,
}

impl Job<'_> {
    /// How much of a row of `len` elements from `first` on comes before the first whole line: lines are written past the
    /// caches whole, so they are to begin where blocks do.
    #[inline(always)]
    fn head(&self, at: &[*mut f32], first: usize, len: usize) -> usize {
        match self.stream {
            Some(p) if len > LONG * LANES => at[p as usize].wrapping_add(first).align_offset(64) % LANES,
            _ => 0,
        }
    }

    /// Moves on to the next row of `len` elements, as far as that is not a matter of counting elements.
    #[inline(always)]
    fn next(&self, at: &mut [*mut f32], len: usize) {
        for (at, place) in at.iter_mut().zip(self.places) {
            match place {
                Place::Row(_) => *at = at.wrapping_add(1),
                Place::Cycle(_) => *at = at.wrapping_sub(len),
                _ => {}
            }
        }
    }
}

/// Does a job for `rows` rows of `len` elements; `out` has an element for each row's fold.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn each_row<const HEAVY: bool>(
    job: &Job,
    at: &mut [*mut f32],
    len: usize,
    rows: usize,
    out: *mut f32,
) {
    let mut parts: SmallVec<[Fast; 32]> = SmallVec::new();
    for r in 0..rows {
        let first = r * len;
        let head = job.head(at, first, len);
        let mut done = 0;
        while done < len {
            let left = len - done;
            let n = match job.fold {
                Some(_) => left.min(BLOCK),
                None if done == 0 && head > 0 => head,
                None => left,
            };
            // SAFETY: passed on from the caller.
            let total = unsafe { span::<HEAVY>(job.code, at, (first + done, n), job.fold) };
            parts.push(Fast(total));
            done += n;
        }
        if let Some(kind) = job.fold {
            // SAFETY: passed on from the caller.
            unsafe { *out.add(r) = fold_short(kind, &mut parts).0 };
        }
        parts.clear();
        job.next(at, len);
    }
}

/// As `super::run`.
pub unsafe fn run(chain: &Chain, at: &mut Addresses, len: usize, rows: usize, fold: *mut f32, past: bool) {
    let kind = chain.fold.map(|(kind, _)| kind);
    let (code, stream) = match chain.stream {
        Some(_) if !past => (&chain.through, None),
        stream => (&chain.code, stream),
    };
    let job = Job { code, places: &chain.places, stream, fold: kind };
    // SAFETY: passed on from the caller.
    unsafe {
        match chain.heavy {
            true => each_row::<true>(&job, at, len, rows, fold),
            false => each_row::<false>(&job, at, len, rows, fold),
        }
    }
}

/// As `super::map_tile`.
pub unsafe fn map_tile(code: Code, x: *const f32, out: *mut f32, n: usize) {
    let code = [Act::new(Code::Load, 0), Act::new(code, 0), Act::new(Code::Save, 1)];
    let job = Job { code: &code, places: &[], stream: None, fold: None };
    // SAFETY: passed on from the caller.
    unsafe { each_row::<true>(&job, &mut [x as *mut f32, out], n, 1, std::ptr::null_mut()) };
}

/// As `super::fold_rows`.
pub unsafe fn fold_rows(kind: ReduceKind, x: *const f32, len: usize, rows: usize, out: *mut f32) {
    let acts = [Act::new(Code::Load, 0), Act::new(fold_code(kind), 0)];
    let code: &[Act] = match kind {
        ReduceKind::Sum => &[Act::new(Code::LoadFoldSum, 0)],
        ReduceKind::Max => &[Act::new(Code::LoadFoldMax, 0)],
        ReduceKind::Prod | ReduceKind::Min => &acts,
    };
    let job = Job { code, places: &[], stream: None, fold: Some(kind) };
    // SAFETY: passed on from the caller.
    unsafe { each_row::<false>(&job, &mut [x as *mut f32], len, rows, out) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use gt_ir::real::Real;

    /// Numbers in a register have the bits of numbers alone, NaN, infinities and subnormals included.
    #[test]
    fn a_register_has_the_bits_of_single_numbers() {
        if crate::backends::cpu::isa::level() < 3 {
            return;
        }
        let one = |op: Code, x: Fast| match op {
            Code::Neg => -x,
            Code::Abs => x.abs(),
            Code::Relu => x.relu(),
            Code::Sqrt => x.sqrt(),
            Code::Rsqrt => Fast(1.0) / x.sqrt(),
            Code::Recip => Fast(1.0) / x,
            Code::Square => x * x,
            Code::Cube => x * x * x,
            Code::Exp => x.exp(),
            Code::Tanh => x.tanh(),
            Code::Sigmoid => x.sigmoid(),
            Code::Silu => x.silu(),
            Code::Gelu => x.gelu(),
            Code::GeluGrad => x.gelu_grad(),
            other => unreachable!("{other:?}"),
        };
        use Code::{
            Abs, Cube, Exp, Gelu, GeluGrad, Neg, Recip, Relu, Rsqrt, Sigmoid, Silu, Sqrt, Square, Tanh,
        };
        let all =
            [Neg, Abs, Relu, Sqrt, Rsqrt, Recip, Square, Cube, Exp, Tanh, Sigmoid, Silu, Gelu, GeluGrad];
        for op in all {
            // Long and short blocks, and a part of a register.
            const N: usize = 128 + 64 + 16 + 5;
            for start in (0..u32::MAX - N as u32 * 7919).step_by(N * 7919) {
                let x: [f32; N] = std::array::from_fn(|i| f32::from_bits(start + i as u32 * 7919));
                let mut got = [0.0; N];
                // SAFETY: the unit was detected, and both sides hold as much.
                unsafe { map_tile(op, x.as_ptr(), got.as_mut_ptr(), N) };
                for i in 0..N {
                    let want = one(op, Fast(x[i])).0;
                    let same = got[i].to_bits() == want.to_bits() || (got[i].is_nan() && want.is_nan());
                    assert!(same, "{op:?} of {:e}: {:e} and {want:e}", x[i], got[i]);
                }
            }
        }
    }
}
