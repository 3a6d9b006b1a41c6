//! The innermost loop of products of f32 with AVX-512: twelve rows by two vectors of sums, which stay in registers, and a
//! look at the memory that is needed next after every term. It is written out so that nothing but that is in it.

use super::Mat;
use std::arch::asm;
use std::arch::x86_64::*;

/// Terms after which a tile has asked for what it wants once.
pub const ROUND: usize = 16;
/// Lines of the left side and of the right side that it asks for in a round, beside two rows of the result.
pub const LEFTS: usize = 12;
pub const RIGHTS: usize = 6;

/// Memory that a tile asks for while it computes. All distances are in bytes; zero asks for nothing new.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Ahead {
    pub left: *const i8,
    /// From a line to the next, and from the last of a round to the first of the next round.
    pub left_step: isize,
    pub left_turn: isize,
    pub right: *const i8,
    pub right_step: isize,
    /// A row is two lines.
    pub result: *const i8,
    pub result_step: isize,
}

impl Ahead {
    /// Nothing but what lies at `at`, again and again.
    pub fn none(at: *const i8) -> Ahead {
        Ahead { left: at, left_step: 0, left_turn: 0, right: at, right_step: 0, result: at, result_step: 0 }
    }
}

/// Three rows of a term.
macro_rules! rows {
    ($head:literal $($sum:literal $other:literal)*) => {
        concat!(
            "vbroadcastss zmm2, dword ptr [{", $head, "}]\n",
            "vbroadcastss zmm3, dword ptr [{", $head, "} + {rs}]\n",
            "vbroadcastss zmm4, dword ptr [{", $head, "} + 2*{rs}]\n",
            rows!(@ "zmm2" $($sum $other)*),
        )
    };
    (@ $x:literal $a:literal $b:literal $c:literal $d:literal $e:literal $f:literal) => {
        concat!(
            "vfmadd231ps ", $a, ", zmm2, zmm0\n", "vfmadd231ps ", $b, ", zmm2, zmm1\n",
            "vfmadd231ps ", $c, ", zmm3, zmm0\n", "vfmadd231ps ", $d, ", zmm3, zmm1\n",
            "vfmadd231ps ", $e, ", zmm4, zmm0\n", "vfmadd231ps ", $f, ", zmm4, zmm1\n",
        )
    };
}

/// A term, and a look ahead in the middle of it.
macro_rules! term {
    ($look:expr) => {
        concat!(
            "vmovups zmm0, [{b}]\n",
            "vmovups zmm1, [{b} + 64]\n",
            rows!("h0" "zmm8" "zmm9" "zmm10" "zmm11" "zmm12" "zmm13"),
            rows!("h1" "zmm14" "zmm15" "zmm16" "zmm17" "zmm18" "zmm19"),
            $look,
            rows!("h2" "zmm20" "zmm21" "zmm22" "zmm23" "zmm24" "zmm25"),
            rows!("h3" "zmm26" "zmm27" "zmm28" "zmm29" "zmm30" "zmm31"),
            "add {h0}, {cs}\n", "add {h1}, {cs}\n", "add {h2}, {cs}\n", "add {h3}, {cs}\n",
            "add {b}, {b_rs}\n",
        )
    };
}

macro_rules! left {
    () => {
        "prefetcht0 [{left}]\nadd {left}, [{ahead} + 8]\n"
    };
}

macro_rules! right {
    () => {
        "mov {at}, [{ahead} + 24]\nprefetcht1 [{at}]\nadd {at}, [{ahead} + 32]\nmov [{ahead} + 24], {at}\n"
    };
}

macro_rules! result {
    () => {
        concat!(
            "mov {at}, [{ahead} + 40]\nprefetchw [{at}]\nprefetchw [{at} + 64]\n",
            "add {at}, [{ahead} + 48]\nmov [{ahead} + 40], {at}\n",
        )
    };
}

/// Adds `k` terms to the sums: element (i, j) of the left side times row j of the right side, which is whole.
///
/// # Safety
/// The operands hold these elements.
#[inline]
#[target_feature(enable = "avx512f")]
pub unsafe fn twelve(
    sums: &mut [[__m512; 2]; 12],
    k: usize,
    a: Mat<f32>,
    b: *const f32,
    b_rs: isize,
    mut ahead: Ahead,
) {
    let head = |i: isize| a.at.wrapping_offset(i * a.rs);
    let [r0, r1, r2, r3, r4, r5, r6, r7, r8, r9, r10, r11] = sums;
    // SAFETY: reads the operands and the look-ahead, which it moves on; asks for memory anywhere.
    unsafe {
        asm!(
            "mov {left}, [{ahead}]",
            "sub {k}, 16",
            "jl 3f",
            ".p2align 5",
            "2:",
            term!(left!()),
            term!(left!()),
            term!(concat!(left!(), right!())),
            term!(left!()),
            term!(concat!(left!(), right!())),
            term!(concat!(left!(), result!())),
            term!(concat!(left!(), right!())),
            term!(left!()),
            term!(left!()),
            term!(concat!(left!(), right!())),
            term!(left!()),
            term!(left!()),
            term!(right!()),
            term!(result!()),
            term!(right!()),
            term!("add {left}, [{ahead} + 16]\n"),
            "sub {k}, 16",
            "jge 2b",
            "3:",
            "add {k}, 16",
            "jz 5f",
            "4:",
            term!(""),
            "dec {k}",
            "jnz 4b",
            "5:",
            h0 = inout(reg) head(0) => _,
            h1 = inout(reg) head(3) => _,
            h2 = inout(reg) head(6) => _,
            h3 = inout(reg) head(9) => _,
            rs = in(reg) 4 * a.rs,
            cs = in(reg) 4 * a.cs,
            b = inout(reg) b => _,
            b_rs = in(reg) 4 * b_rs,
            k = inout(reg) k => _,
            ahead = in(reg) &raw mut ahead,
            left = out(reg) _,
            at = out(reg) _,
            out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _, out("zmm4") _,
            inout("zmm8") r0[0], inout("zmm9") r0[1],
            inout("zmm10") r1[0], inout("zmm11") r1[1],
            inout("zmm12") r2[0], inout("zmm13") r2[1],
            inout("zmm14") r3[0], inout("zmm15") r3[1],
            inout("zmm16") r4[0], inout("zmm17") r4[1],
            inout("zmm18") r5[0], inout("zmm19") r5[1],
            inout("zmm20") r6[0], inout("zmm21") r6[1],
            inout("zmm22") r7[0], inout("zmm23") r7[1],
            inout("zmm24") r8[0], inout("zmm25") r8[1],
            inout("zmm26") r9[0], inout("zmm27") r9[1],
            inout("zmm28") r10[0], inout("zmm29") r10[1],
            inout("zmm30") r11[0], inout("zmm31") r11[1],
            options(nostack),
        );
    }
}

/// Copies twelve numbers for each term, `step` apart, beside each other: three whole vectors for four terms. Gives how many
/// terms, the last few of which are left.
///
/// # Safety
/// Both sides hold these elements.
#[inline]
#[target_feature(enable = "avx512f")]
pub unsafe fn copy(from: *const f32, step: isize, to: *mut f32, terms: usize) -> usize {
    for p in (0..terms / 4 * 4).step_by(4) {
        let at = |k: usize| from.wrapping_offset((p + k) as isize * step);
        // SAFETY: as the caller promises; lanes outside of the masks are not read.
        unsafe {
            let to = to.add(12 * p);
            let [a, b, c] = [(0x0fff, 0), (0x00ff, 4), (0x000f, 8)].map(|(mask, skipped)| {
                let (one, next) = (at(skipped / 4), at(skipped / 4 + 1));
                let first = _mm512_maskz_loadu_ps(mask, one.wrapping_add(skipped));
                _mm512_mask_loadu_ps(first, !mask, next.wrapping_sub(12 - skipped))
            });
            _mm512_storeu_ps(to, a);
            _mm512_storeu_ps(to.add(16), b);
            _mm512_storeu_ps(to.add(32), c);
        }
    }
    terms / 4 * 4
}
