//! The loops of the forms, for rows in registers of AVX-512 and AVX2. A sum is the tree that `fold` says: blocks, each by
//! 64 lanes, which are `A` registers. What is done to each register is written by macros: a closure might not be inlined,
//! and would not be code for the unit then.

use super::super::fold::{BLOCK, fold_short};
use super::super::math::{self, Fast};
use super::super::wide::Wide;
use super::{Ask, Dest, NormGradRows, NormRows, SoftmaxRows};
use gt_ir::ReduceKind;
use gt_ir::real::Real;
use std::arch::x86_64::{__m256, __m512, _MM_HINT_NTA, _MM_HINT_T0, _mm_prefetch};

/// Rows are asked for at least this many elements ahead, or half as many where several are read side by side: what is on its
/// way is to find room in the first cache.
const AHEAD: usize = 2048;

fn ahead(len: usize, side_by_side: usize) -> usize {
    (AHEAD / side_by_side.min(2)).next_multiple_of(len)
}

/// Asks for the line at `from`, as an `Ask` says.
#[inline(always)]
fn ask<const ASK: u8>(from: *const f32) {
    let from = from as *const i8;
    // SAFETY: a prefetch of any address is harmless.
    unsafe {
        if ASK == Ask::Near as u8 {
            _mm_prefetch::<_MM_HINT_T0>(from);
        } else if ASK == Ask::Once as u8 {
            _mm_prefetch::<_MM_HINT_NTA>(from);
        }
    }
}

/// Calls the function made for what a job asks.
macro_rules! asking {
    ($ask:expr, |$ASK:ident| $call:expr) => {
        match $ask {
            Ask::No => {
                const $ASK: u8 = Ask::No as u8;
                $call
            }
            Ask::Near => {
                const $ASK: u8 = Ask::Near as u8;
                $call
            }
            Ask::Once => {
                const $ASK: u8 = Ask::Once as u8;
                $call
            }
        }
    };
}

/// `n` numbers, which are all of a register or the first.
#[inline(always)]
unsafe fn load<V: Wide>(from: *const f32, n: usize) -> V {
    // SAFETY: as the caller promises.
    unsafe { if n == V::LANES { V::load(from) } else { V::load_part(from, n) } }
}

#[inline(always)]
unsafe fn save<V: Wide>(x: V, to: *mut f32, n: usize) {
    // SAFETY: as the caller promises.
    unsafe { if n == V::LANES { x.save(to) } else { x.save_part(to, n) } }
}

/// Joins the lanes of a block in halves.
#[inline(always)]
fn halves<V: Wide, const A: usize>(kind: ReduceKind, mut lanes: [V; A]) -> f32 {
    let mut half = A / 2;
    while half > 0 {
        for k in 0..half {
            lanes[k] = join(kind, lanes[k], lanes[k + half]);
        }
        half /= 2;
    }
    match kind {
        ReduceKind::Max => lanes[0].top(),
        _ => lanes[0].total(),
    }
}

/// Forms have sums and maxima.
#[inline(always)]
fn join<V: Wide>(kind: ReduceKind, a: V, b: V) -> V {
    match kind {
        ReduceKind::Max => a.max(b),
        _ => a.add(b),
    }
}

/// Folds the values of the elements `$i..$i + $n` of a row of `$len`, a register or a part of one.
macro_rules! fold {
    ($V:ident, $A:ident, $kind:expr, $nothing:expr, $len:expr, |$i:ident, $n:ident| $value:expr) => {{
        let mut parts = [Fast($nothing); 64];
        let mut blocks = 0;
        let mut first = 0;
        while first < $len {
            let end = (first + BLOCK).min($len);
            let mut lanes = [$V::all($nothing); $A];
            let mut i = first;
            while i + $A * $V::LANES <= end {
                for (k, lane) in lanes.iter_mut().enumerate() {
                    let ($i, $n) = (i + k * $V::LANES, $V::LANES);
                    *lane = join($kind, *lane, $value);
                }
                i += $A * $V::LANES;
            }
            if i < end {
                for lane in &mut lanes {
                    let ($i, $n) = (i, (end - i).min($V::LANES));
                    if $n > 0 {
                        let value: $V = $value;
                        *lane = join($kind, *lane, value.first($n, $V::all($nothing)));
                        i += $n;
                    }
                }
            }
            parts[blocks] = Fast(halves($kind, lanes));
            blocks += 1;
            first = end;
        }
        match blocks {
            1 => parts[0].0,
            _ => fold_short($kind, &mut parts[..blocks]).0,
        }
    }};
}

macro_rules! sum {
    ($V:ident, $A:ident, $len:expr, |$i:ident, $n:ident| $value:expr) => {
        fold!($V, $A, ReduceKind::Sum, -0.0, $len, |$i, $n| $value)
    };
}

/// Does `$whole` for groups of `A` registers of a row of `$len`, and `$part` for a register or a part of one. Groups begin
/// where lines do if those are written past the caches.
macro_rules! groups {
    ($V:ident, $A:ident, $len:expr, $to:expr, |$at:ident| $whole:expr, |$i:ident, $n:ident| $part:expr) => {{
        let (mut i, mut until) = (0, 0);
        if $to.stream {
            until = ($to.to.align_offset(64) % 16).min($len);
        }
        loop {
            while i < until {
                let ($i, $n) = (i, (until - i).min($V::LANES));
                $part;
                i += $n;
            }
            if i == $len {
                break;
            }
            while i + $A * $V::LANES <= $len {
                let $at = i;
                $whole;
                i += $A * $V::LANES;
            }
            until = $len;
        }
    }};
}

impl Dest {
    #[inline(always)]
    fn at(self, i: usize) -> *mut f32 {
        self.to.wrapping_add(i)
    }

    #[inline(always)]
    fn row(self, at: usize) -> Dest {
        Dest { to: self.at(at), ..self }
    }

    #[inline(always)]
    unsafe fn put<V: Wide, const N: usize>(self, i: usize, x: &[V; N]) {
        let to = self.at(i);
        let past = self.stream && (to as usize).is_multiple_of(4 * V::LANES);
        for (k, x) in x.iter().enumerate() {
            let to = to.wrapping_add(k * V::LANES);
            // SAFETY: as the caller promises.
            unsafe { if past { x.stream(to) } else { x.save(to) } };
        }
    }
}

/// Adds two rows and keeps the sum, in one place or two.
struct Both {
    x: *const f32,
    plus: *const f32,
    kept: *mut f32,
    copy: Option<Dest>,
    far: usize,
}

impl Both {
    #[inline(always)]
    unsafe fn value<V: Wide, const ASK: u8>(&self, i: usize, n: usize) -> V {
        // SAFETY: as the caller promises.
        unsafe {
            let v = load::<V>(self.x.add(i), n).add(load(self.plus.add(i), n));
            save(v, self.kept.add(i), n);
            match self.copy {
                Some(to) if n == V::LANES => to.put(i, &[v]),
                Some(to) => save(v, to.at(i), n),
                None => {}
            }
            ask::<ASK>(self.x.wrapping_add(i + self.far));
            ask::<ASK>(self.plus.wrapping_add(i + self.far));
            v
        }
    }
}

/// Normalises the rows of a tile.
#[inline(always)]
unsafe fn norm<V: Wide, const A: usize, const ASK: u8>(job: &NormRows) {
    let len = job.len;
    let far = ahead(len, 1 + job.plus.is_some() as usize);
    for r in 0..job.rows {
        let at = r * len;
        let x = job.x.wrapping_add(at);
        let both = job.plus.map(|plus| Both {
            x,
            plus: plus.wrapping_add(at),
            kept: job.kept.wrapping_add(if job.kept_moves { at } else { 0 }),
            copy: job.sum.map(|sum| sum.row(at)),
            far,
        });
        let from = both.as_ref().map_or(x, |both| both.kept as *const f32);
        // SAFETY: the caller's rows hold `len` elements each; whatever is written lies in them.
        unsafe {
            let mut mean = V::all(0.0);
            let total = if let Some(count) = job.centred {
                let total = match &both {
                    Some(both) => sum!(V, A, len, |i, n| both.value::<V, ASK>(i, n)),
                    None => sum!(V, A, len, |i, n| load::<V>(x.add(i), n)),
                };
                mean = V::all(total / count);
                sum!(V, A, len, |i, n| {
                    ask::<ASK>(x.wrapping_add(i + far));
                    let v = load::<V>(from.add(i), n).sub(mean);
                    v.mul(v)
                })
            } else if let Some(both) = &both {
                sum!(V, A, len, |i, n| {
                    let v = both.value::<V, ASK>(i, n);
                    v.mul(v)
                })
            } else {
                sum!(V, A, len, |i, n| {
                    ask::<ASK>(x.wrapping_add(i + far));
                    let v = load::<V>(x.add(i), n);
                    v.mul(v)
                })
            };
            let rstd = 1.0 / (total / job.count + job.eps).sqrt();
            if let Some(to) = job.rstd {
                *to.add(r) = rstd;
            }
            match job.centred {
                Some(_) => finish::<V, A, true, ASK>(job, (at, far), from, mean, V::all(rstd)),
                None => finish::<V, A, false, ASK>(job, (at, far), from, mean, V::all(rstd)),
            }
        }
    }
}

/// The last pass of a norm over the row that begins with element `at`; later rows are asked for `far` ahead.
#[inline(always)]
unsafe fn finish<V: Wide, const A: usize, const CENTRED: bool, const ASK: u8>(
    job: &NormRows,
    (at, far): (usize, usize),
    from: *const f32,
    mean: V,
    rstd: V,
) {
    let Some(to) = job.out.or(job.hat).map(|to| to.row(at)) else { return };
    let next = job.x.wrapping_add(at + far);
    // SAFETY: as the caller promises.
    unsafe {
        macro_rules! hat {
            ($i:expr, $n:expr) => {{
                let v: V = load(from.add($i), $n);
                let v = if CENTRED { v.sub(mean) } else { v };
                v.mul(rstd)
            }};
        }
        groups!(
            V,
            A,
            job.len,
            to,
            |i| {
                let mut v = [mean; A];
                for (k, v) in v.iter_mut().enumerate() {
                    ask::<ASK>(next.wrapping_add(i + k * V::LANES));
                    *v = hat!(i + k * V::LANES, V::LANES);
                }
                if let Some(to) = job.hat {
                    to.put(at + i, &v);
                }
                if let Some(weight) = job.weight {
                    for (k, v) in v.iter_mut().enumerate() {
                        *v = v.mul(V::load(weight.add(i + k * V::LANES)));
                    }
                }
                if let Some(bias) = job.bias {
                    for (k, v) in v.iter_mut().enumerate() {
                        *v = v.add(V::load(bias.add(i + k * V::LANES)));
                    }
                }
                if let Some(to) = job.out {
                    to.put(at + i, &v);
                }
            },
            |i, n| {
                let mut v = hat!(i, n);
                if let Some(to) = job.hat {
                    save(v, to.at(at + i), n);
                }
                if let Some(weight) = job.weight {
                    v = v.mul(load(weight.add(i), n));
                }
                if let Some(bias) = job.bias {
                    v = v.add(load(bias.add(i), n));
                }
                if let Some(to) = job.out {
                    save(v, to.at(at + i), n);
                }
            }
        );
    }
}

/// The gradient of a norm's input, for the rows of a tile.
#[inline(always)]
unsafe fn norm_grad<V: Wide, const A: usize, const ASK: u8>(job: &NormGradRows) {
    let len = job.len;
    let far = ahead(len, job.terms.len() + 1);
    let (first, others) = (job.terms[0], &job.terms[1..]);
    for r in 0..job.rows {
        let at = r * len;
        let (first, hat, kept) = (first.wrapping_add(at), job.hat.wrapping_add(at), job.kept);
        let to = job.to.row(at);
        // SAFETY: the caller's rows hold `len` elements each; whatever is written lies in them.
        unsafe {
            let total = sum!(V, A, len, |i, n| {
                let mut v = load::<V>(first.add(i), n);
                ask::<ASK>(first.wrapping_add(i + far));
                ask::<ASK>(hat.wrapping_add(i + far));
                for other in others {
                    let other = other.wrapping_add(at + i);
                    v = v.add(load(other, n));
                    ask::<ASK>(other.wrapping_add(far));
                }
                let v = v.mul(load(job.weight.add(i), n));
                save(v, kept.add(i), n);
                v.mul(load(hat.add(i), n))
            });
            let along = V::all(total / job.count);
            let mean = match job.centred {
                Some(count) => sum!(V, A, len, |i, n| load::<V>(kept.add(i), n)) / count,
                None => 0.0,
            };
            let (mean, rstd) = (V::all(mean), V::all(*job.rstd.add(r)));
            macro_rules! last {
                ($i:expr, $n:expr) => {{
                    let mut v: V = load(kept.add($i), $n);
                    if job.centred.is_some() {
                        v = v.sub(mean);
                    }
                    v = v.sub(load::<V>(hat.add($i), $n).mul(along)).mul(rstd);
                    if let Some(plus) = job.plus {
                        let plus = plus.wrapping_add(at + $i);
                        ask::<ASK>(plus.wrapping_add(far));
                        v = load::<V>(plus, $n).add(v);
                    }
                    v
                }};
            }
            groups!(
                V,
                A,
                len,
                to,
                |i| {
                    let mut v = [mean; A];
                    for (k, v) in v.iter_mut().enumerate() {
                        *v = last!(i + k * V::LANES, V::LANES);
                    }
                    to.put(i, &v);
                },
                |i, n| save(last!(i, n), to.at(i), n)
            );
        }
    }
}

/// Softmax of the rows of a tile, or its logarithm.
#[inline(always)]
unsafe fn softmax<V: Wide, const A: usize, const LOG: bool, const ASK: u8>(job: &SoftmaxRows) {
    let len = job.len;
    let far = ahead(len, 1);
    for r in 0..job.rows {
        let x = job.x.wrapping_add(r * len);
        let to = job.to.row(r * len);
        // What is written past the caches should be written once.
        let kept = if to.stream { job.kept } else { to.to };
        // SAFETY: the caller's rows hold `len` elements each; whatever is written lies in them.
        unsafe {
            // A NaN that gets lost here is met again by the sum.
            let nothing = f32::NEG_INFINITY;
            let top = fold!(V, A, ReduceKind::Max, nothing, len, |i, n| load::<V>(x.add(i), n));
            let top = V::all(top);
            let total = sum!(V, A, len, |i, n| {
                ask::<ASK>(x.wrapping_add(i + far));
                let v = math::exp(load::<V>(x.add(i), n).sub(top));
                if !LOG {
                    save(v, kept.add(i), n);
                }
                v
            });
            let by = V::all(if LOG { Fast(total).log().0 } else { 1.0 / total });
            macro_rules! last {
                ($i:expr, $n:expr) => {
                    match LOG {
                        true => load::<V>(x.add($i), $n).sub(top).sub(by),
                        false => load::<V>(kept.add($i), $n).mul(by),
                    }
                };
            }
            groups!(
                V,
                A,
                len,
                to,
                |i| {
                    let mut v = [top; A];
                    for (k, v) in v.iter_mut().enumerate() {
                        ask::<ASK>(x.wrapping_add(i + k * V::LANES + far));
                        *v = last!(i + k * V::LANES, V::LANES);
                    }
                    to.put(i, &v);
                },
                |i, n| save(last!(i, n), to.at(i), n)
            );
        }
    }
}

/// The functions for one vector unit.
macro_rules! unit {
    ($name:ident, $V:ty, $A:literal, $features:literal) => {
        pub mod $name {
            use super::*;
            #[target_feature(enable = $features)]
            pub unsafe fn norm(job: &NormRows) {
                // SAFETY: passed on from the caller.
                unsafe { asking!(job.ask, |ASK| super::norm::<$V, $A, ASK>(job)) }
            }
            #[target_feature(enable = $features)]
            pub unsafe fn norm_grad(job: &NormGradRows) {
                // SAFETY: passed on from the caller.
                unsafe { asking!(job.ask, |ASK| super::norm_grad::<$V, $A, ASK>(job)) }
            }
            #[target_feature(enable = $features)]
            pub unsafe fn softmax(job: &SoftmaxRows) {
                // SAFETY: passed on from the caller.
                unsafe {
                    match job.log {
                        true => asking!(job.ask, |ASK| super::softmax::<$V, $A, true, ASK>(job)),
                        false => asking!(job.ask, |ASK| super::softmax::<$V, $A, false, ASK>(job)),
                    }
                }
            }
        }
    };
}

unit!(wide, __m512, 4, "avx2,fma,f16c,bmi1,bmi2,avx512f,avx512bw,avx512dq,avx512vl");
unit!(narrow, __m256, 8, "avx2,fma,f16c,bmi1,bmi2");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::cpu::isa;

    fn bits(x: &[f32]) -> Vec<u32> {
        x.iter().map(|x| x.to_bits()).collect()
    }

    /// Both units give the same bits, whatever the length of rows and wherever they begin.
    #[test]
    fn units_agree() {
        if isa::level() < 3 {
            return;
        }
        for (len, off) in [(32, 0), (47, 3), (64, 16), (100, 0), (513, 5), (1024, 0), (1999, 8), (5000, 1)] {
            let rows = 3;
            let n = rows * len;
            let some = |seed: usize| -> Vec<f32> {
                (0..n + off).map(|i| ((i * 7919 + seed) % 9973) as f32 / 1700.0 - 3.0).collect()
            };
            let (x, plus, weight, bias) = (some(1), some(2), some(3), some(4));
            let mut results: Vec<Vec<Vec<f32>>> = Vec::new();
            for wide in [true, false] {
                let mut outs = vec![vec![0.0f32; n + off + 64]; 7];
                let all: Vec<*mut f32> = outs.iter_mut().map(|o| o[off..].as_mut_ptr()).collect();
                let dest = |k: usize, stream| Dest { to: all[k], stream };
                let norm = NormRows {
                    len,
                    rows,
                    ask: [Ask::Near, Ask::No, Ask::Once][off % 3],
                    x: x[off..].as_ptr(),
                    plus: (off != 3).then(|| plus[off..].as_ptr()),
                    kept: all[0],
                    kept_moves: true,
                    sum: (off != 3).then(|| dest(5, true)),
                    centred: (off != 8).then_some(len as f32),
                    count: len as f32,
                    eps: 1e-5,
                    weight: Some(weight.as_ptr()),
                    bias: (off != 8).then_some(bias.as_ptr()),
                    rstd: Some(all[1]),
                    hat: Some(dest(2, off != 0)),
                    out: Some(dest(3, true)),
                };
                let mut kept = vec![0.0; len];
                let soft = SoftmaxRows {
                    len,
                    rows,
                    ask: [Ask::No, Ask::Near][(off != 0) as usize],
                    log: off == 5,
                    x: x[off..].as_ptr(),
                    kept: kept.as_mut_ptr(),
                    to: dest(4, len > 1000),
                };
                let mut product = vec![0.0; len];
                let grad = NormGradRows {
                    len,
                    rows,
                    ask: [Ask::Near, Ask::No, Ask::Once][off % 3],
                    terms: &[x[off..].as_ptr(), plus[off..].as_ptr()][..1 + off % 2],
                    weight: weight.as_ptr(),
                    kept: product.as_mut_ptr(),
                    hat: bias[off..].as_ptr(),
                    count: len as f32,
                    centred: (off != 8).then_some(len as f32),
                    rstd: plus.as_ptr(),
                    plus: (off != 0).then_some(plus[off..].as_ptr()),
                    to: dest(6, off < 9),
                };
                // SAFETY: the unit was detected; every address holds its rows.
                unsafe {
                    if wide {
                        wide::norm(&norm);
                        wide::norm_grad(&grad);
                        wide::softmax(&soft);
                    } else {
                        narrow::norm(&norm);
                        narrow::norm_grad(&grad);
                        narrow::softmax(&soft);
                    }
                }
                results.push(outs);
            }
            for (k, (a, b)) in results[0].iter().zip(&results[1]).enumerate() {
                assert_eq!(bits(a), bits(b), "{len} from {off}, result {k}");
            }
            let total: f32 = results[0][4][off..off + len].iter().sum();
            assert!(off == 5 || (total - 1.0).abs() < 1e-4, "{len} from {off}: {total}");
        }
    }
}
