//! The kernels of attention, run on the host thread by thread, against attention written out in doubles.

mod host;
mod problem;

use gt_ir::DType;
use problem::{Case, Kernels, Mask, check};

/// One size of everything, to vary from.
fn base(dtype: DType) -> Case {
    Case {
        dtype,
        batch: vec![2],
        heads: 2,
        key_heads: 1,
        rows: 40,
        cols: 40,
        d: 16,
        e: 16,
        causal: false,
        mask: Mask::None,
        strided: false,
        turned: false,
        shifted: 0,
        scale: 0.3,
    }
}

fn both(cases: &[Case], kernels: Kernels) {
    for case in cases {
        check(case, kernels, false);
        check(case, kernels, true);
    }
}

#[test]
fn plain_kernels_are_right() {
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        let b = base(dtype);
        let cases = [
            Case { rows: 9, cols: 37, ..b.clone() },
            Case { rows: 37, cols: 9, causal: true, d: 5, e: 3, ..b.clone() },
            Case { rows: 3, cols: 5, mask: Mask::Bool, d: 33, batch: vec![], ..b.clone() },
            Case {
                rows: 3,
                cols: 5,
                mask: Mask::Added,
                e: 40,
                batch: vec![2, 3],
                strided: true,
                ..b.clone()
            },
            Case { rows: 4, cols: 34, mask: Mask::Wide, causal: true, heads: 3, key_heads: 3, ..b.clone() },
        ];
        both(&cases, Kernels::Plain);
    }
}

#[test]
fn wide_heads_are_right_in_parts() {
    let b = base(DType::F32);
    both(&[Case { rows: 2, cols: 3, d: 520, e: 1030, batch: vec![], ..b }], Kernels::Plain);
}

#[test]
fn halves_are_right_at_every_size_of_a_head() {
    for (i, d) in [16, 24, 32, 48, 64, 80, 128].into_iter().enumerate() {
        let dtype = if i.is_multiple_of(2) { DType::BF16 } else { DType::F16 };
        let b = Case { d, e: d, rows: 70, cols: 70, batch: vec![], ..base(dtype) };
        both(&[Case { causal: i % 3 == 0, ..b }], Kernels::Made);
    }
}

#[test]
fn halves_are_right_in_odd_cases() {
    let b = Case { batch: vec![], ..base(DType::BF16) };
    let cases = [
        Case { rows: 5, cols: 131, d: 16, e: 32, ..b.clone() },
        Case { rows: 131, cols: 5, d: 32, e: 16, causal: true, ..b.clone() },
        Case { rows: 20, cols: 90, causal: true, ..b.clone() },
        Case { rows: 33, cols: 66, d: 20, e: 12, ..b.clone() },
        Case { rows: 33, cols: 66, d: 7, e: 9, causal: true, ..b.clone() },
        Case { rows: 33, cols: 66, shifted: 1, ..b.clone() },
        Case { rows: 33, cols: 66, strided: true, batch: vec![2, 2], ..b.clone() },
        Case { rows: 50, cols: 66, mask: Mask::Bool, ..b.clone() },
        Case { rows: 50, cols: 66, mask: Mask::Added, causal: true, ..b.clone() },
        Case { rows: 50, cols: 66, mask: Mask::Wide, dtype: DType::F16, ..b.clone() },
        Case { rows: 10, cols: 0, ..b.clone() },
        Case { rows: 40, cols: 72, causal: true, scale: -0.4, ..b.clone() },
        Case { rows: 40, cols: 72, causal: true, scale: 0.0, ..b.clone() },
        Case { heads: 6, key_heads: 2, rows: 40, cols: 72, causal: true, ..b.clone() },
    ];
    both(&cases, Kernels::Made);
}

#[test]
fn wide_halves_are_right() {
    let b = Case { batch: vec![], rows: 40, cols: 40, heads: 1, ..base(DType::F16) };
    both(&[Case { d: 256, e: 256, causal: true, ..b.clone() }, Case { d: 192, e: 128, ..b }], Kernels::Made);
}

#[test]
fn large_tiles_are_right() {
    for dtype in [DType::BF16, DType::F32] {
        let b = Case { batch: vec![], heads: 2, key_heads: 2, rows: 200, cols: 140, ..base(dtype) };
        both(&[Case { causal: true, d: 32, e: 16, ..b }], Kernels::Large);
    }
}

#[test]
fn singles_and_doubles_are_right() {
    for dtype in [DType::F32, DType::F64] {
        let b = Case { batch: vec![], ..base(dtype) };
        let cases = [
            Case { causal: true, heads: 4, key_heads: 2, ..b.clone() },
            Case { rows: 5, cols: 131, d: 16, e: 32, ..b.clone() },
            Case { rows: 70, cols: 20, d: 20, e: 7, causal: true, ..b.clone() },
            Case { rows: 20, cols: 90, causal: true, shifted: 1, ..b.clone() },
            Case { rows: 20, cols: 30, mask: Mask::Bool, ..b.clone() },
            Case { rows: 20, cols: 30, mask: Mask::Added, strided: true, batch: vec![2, 2], ..b.clone() },
            Case { rows: 20, cols: 30, d: 128, e: 128, heads: 1, ..b.clone() },
            Case { rows: 20, cols: 30, d: 256, e: 256, heads: 1, ..b.clone() },
        ];
        both(&cases, Kernels::Made);
    }
}

#[test]
fn results_may_be_written_with_heads_inside_of_rows() {
    for dtype in [DType::BF16, DType::F32] {
        let b =
            Case { turned: true, causal: true, heads: 4, key_heads: 2, rows: 40, cols: 50, ..base(dtype) };
        both(&[b.clone(), Case { batch: vec![], d: 32, e: 16, ..b.clone() }], Kernels::Made);
        both(&[Case { batch: vec![1], rows: 5, cols: 7, ..b }], Kernels::Plain);
    }
    let b = Case { turned: true, rows: 70, cols: 70, d: 64, e: 64, ..base(DType::BF16) };
    both(&[b], Kernels::Hopper);
}

#[test]
fn groups_of_warps_are_right() {
    let b = Case { batch: vec![], heads: 2, key_heads: 1, rows: 70, cols: 70, ..base(DType::BF16) };
    let cases = [
        Case { rows: 200, cols: 130, d: 64, e: 64, causal: true, ..b.clone() },
        Case { d: 128, e: 64, dtype: DType::F16, rows: 150, ..b.clone() },
        Case { d: 60, e: 120, shifted: 1, mask: Mask::Added, causal: true, ..b },
    ];
    both(&cases, Kernels::Hopper);
}
