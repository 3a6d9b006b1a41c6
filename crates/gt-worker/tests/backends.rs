//! Every backend against the reference: all samples, random programs, in-place updates and failures.

use gt_compiler::CompileOptions;
use gt_ir::host::{HostTensor, close, close_by_dtype, tolerance};
use gt_ir::program::{Arg, Input, Instr};
use gt_ir::sample::{self, RandomProgram, SampleArg};
use gt_ir::{Binary, DType, Op, ReduceKind, Scalar, ScatterMode, Slot, Structure, Ty, View};
use gt_worker::backend::{Backend, Buffer, Effort, HostBytes, PlanError};
use gt_worker::backends::cpu::CpuBackend;
use gt_worker::backends::open;
use std::sync::Arc;

fn upload(backend: &dyn Backend, t: &HostTensor) -> Buffer {
    backend.upload(&t.ty, HostBytes::Owned(Arc::new(t.data.clone()))).unwrap()
}

/// Runs a structure and downloads what comes out.
fn run(
    backend: &dyn Backend,
    structure: &Arc<Structure>,
    inputs: &[HostTensor],
    slots: &[Slot],
) -> Result<Vec<HostTensor>, PlanError> {
    let types = structure.check().unwrap();
    let plan = backend.compile(structure, &types, Effort::Quick).unwrap();
    let mut buffers: Vec<Buffer> = inputs.iter().map(|t| upload(backend, t)).collect();
    let result = plan.run(&mut buffers, slots);
    if result.is_err() {
        for (buffer, t) in buffers.iter().zip(inputs) {
            assert_eq!(*backend.download(buffer).unwrap(), t.data, "a failure changed an input");
        }
    }
    let outs = result?;
    Ok(outs
        .iter()
        .zip(&structure.outs)
        .map(|(buffer, &v)| HostTensor {
            ty: types[v as usize].clone(),
            data: backend.download(buffer).unwrap().to_vec(),
        })
        .collect())
}

/// A structure of one instruction from a sample; numbers that must be slots are.
fn one(op: &Op, args: &[SampleArg], dies: bool) -> (Arc<Structure>, Vec<HostTensor>, Vec<Slot>) {
    let mut s = Structure::default();
    let (mut inputs, mut slots) = (Vec::new(), Vec::new());
    let mut list = gt_ir::program::Args::new();
    for (i, arg) in args.iter().enumerate() {
        list.push(match arg {
            SampleArg::Val(v) => {
                s.inputs.push(Input { ty: v.ty.clone(), dies });
                inputs.push(v.clone());
                Arg::Value(inputs.len() as u32 - 1)
            }
            SampleArg::Num(x) if !op.slot_arg(i) => Arg::Const(*x),
            SampleArg::Num(x) => {
                slots.push(Slot::Num(*x));
                Arg::Slot(slots.len() as u32 - 1)
            }
            SampleArg::Data(bytes) => {
                slots.push(Slot::Data(Arc::new(bytes.clone())));
                Arg::Slot(slots.len() as u32 - 1)
            }
        });
    }
    s.slots = slots.len() as u32;
    s.instrs.push(Instr { op: op.clone(), args: list });
    let starts = s.starts();
    s.outs = (starts[0]..starts[1]).collect();
    (Arc::new(s), inputs, slots)
}

#[test]
fn every_sample_equals_the_reference() {
    let backend = CpuBackend::new(Some(3));
    let mut count = 0;
    for s in sample::samples(7) {
        let want = s.eval().unwrap();
        for dies in [false, true] {
            let (structure, inputs, slots) = one(&s.op, &s.args, dies);
            let got = run(&backend, &structure, &inputs, &slots).unwrap();
            for (k, (got, want)) in got.iter().zip(&want).enumerate() {
                if let Err(e) = close_by_dtype(got, want) {
                    panic!("{}, result {k}: {e}", s.describe());
                }
            }
        }
        count += 1;
    }
    assert!(count > 200, "{count} samples");
}

/// Random programs for as long as `GT_RANDOM_SECONDS` says (2 unless set); `GT_RANDOM_SEED` replays one alone.
fn programs(budget: usize, mut check: impl FnMut(u64, RandomProgram)) {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    if let Some(seed) = number("GT_RANDOM_SEED") {
        return check(seed, sample::random_program(seed, budget));
    }
    let limit = std::time::Duration::from_secs(number("GT_RANDOM_SECONDS").unwrap_or(2));
    let start = std::time::Instant::now();
    for seed in 0.. {
        check(seed, sample::random_program(seed, budget));
        if start.elapsed() > limit {
            break;
        }
    }
}

/// The tolerance of every value: that of the coarsest type it was made from. A double made from a single is no more
/// exact than the single.
fn tolerances(structure: &Structure) -> Vec<(f64, f64)> {
    let types = structure.check().unwrap();
    let mut out: Vec<(f64, f64)> = types.iter().map(|ty| tolerance(ty.dtype)).collect();
    let starts = structure.starts();
    for (i, instr) in structure.instrs.iter().enumerate() {
        // Its random weights are not at most one, and their products cancel.
        let wide = if matches!(instr.op, gt_ir::Op::AttentionGrad { .. }) { 8.0 } else { 1.0 };
        for at in starts[i] as usize..starts[i + 1] as usize {
            out[at].1 *= wide;
            for arg in &instr.args {
                if let gt_ir::Arg::Value(v) = arg {
                    let from = out[*v as usize];
                    out[at] = (out[at].0.max(from.0), out[at].1.max(from.1));
                }
            }
        }
    }
    out
}

/// What differs from the reference, if anything.
fn wrong(backend: &CpuBackend, p: &RandomProgram) -> Option<String> {
    let structure = Arc::new(p.structure.clone());
    let tolerances = tolerances(&structure);
    let want = gt_ir::reference::run(&structure, &p.inputs, &p.slots).unwrap();
    let got = match run(backend, &structure, &p.inputs, &p.slots) {
        Ok(got) => got,
        Err(e) => return Some(format!("{e:?}")),
    };
    got.iter().zip(&want).enumerate().find_map(|(k, (g, w))| {
        let (rtol, atol) = tolerances[structure.outs[k] as usize];
        close(g, w, 2.0 * rtol, 2.0 * atol).err().map(|e| format!("live-out {k}: {e}"))
    })
}

#[test]
fn random_programs_equal_the_reference() {
    let backend = CpuBackend::new(Some(3));
    programs(24, |seed, p| {
        if let Some(e) = wrong(&backend, &p) {
            let small = p.shrunk(|p| wrong(&backend, p).is_some());
            let structure = Arc::new(small.structure.clone());
            let plan = backend.compile(&structure, &structure.check().unwrap(), Effort::Quick).unwrap();
            let still = wrong(&backend, &small).unwrap_or_default();
            panic!("program {seed}, {e}\nmade smaller, {still}\n{}\n{}", small.text(), plan.text());
        }
    });
}

/// Bit for bit, live-out by live-out.
fn same_bits(seed: u64, what: &str, a: &[HostTensor], b: &[HostTensor]) {
    for (k, (a, b)) in a.iter().zip(b).enumerate() {
        assert_eq!(a.data, b.data, "program {seed}, live-out {k}: {what}");
    }
}

#[test]
fn fusion_and_threads_never_change_a_bit() {
    let fused = CpuBackend::new(Some(1));
    let threads = CpuBackend::new(Some(3));
    let unfused = CpuBackend::with_options(Some(1), CompileOptions { fuse: false, ..Default::default() });
    // All that a device may ask the compiler for.
    let wild =
        CompileOptions { again: 8, free_math: true, one_hot: true, least_run: 1, ..Default::default() };
    let wild = CpuBackend::with_options(Some(1), wild);
    programs(40, |seed, p| {
        let differ = |p: &RandomProgram| {
            let structure = Arc::new(p.structure.clone());
            let [a, b, c] =
                [&fused, &unfused, &wild].map(|b| run(b, &structure, &p.inputs, &p.slots).unwrap());
            a != b || a != c
        };
        if differ(&p) {
            let small = p.shrunk(differ);
            let structure = Arc::new(small.structure.clone());
            let plan = wild.compile(&structure, &structure.check().unwrap(), Effort::Quick).unwrap();
            panic!(
                "program {seed} differs fused and unfused; made smaller\n{}\n{}",
                small.text(),
                plan.text()
            );
        }
        let structure = Arc::new(p.structure.clone());
        let a = run(&fused, &structure, &p.inputs, &p.slots).unwrap();
        // A plan that comes back runs steps side by side.
        let plan = threads.compile(&structure, &structure.check().unwrap(), Effort::Full).unwrap();
        for time in ["first", "second"] {
            let mut buffers: Vec<Buffer> = p.inputs.iter().map(|t| upload(&threads, t)).collect();
            let outs = plan.run(&mut buffers, &p.slots).unwrap();
            let c: Vec<HostTensor> = outs
                .iter()
                .zip(&a)
                .map(|(b, a)| HostTensor { ty: a.ty.clone(), data: threads.download(b).unwrap().to_vec() })
                .collect();
            same_bits(seed, &format!("1 thread and 3, the {time} time"), &a, &c);
        }
    });
}

/// A program with its instructions written as (op, operands).
fn structure(
    inputs: &[(Ty, bool)],
    instrs: Vec<(Op, Vec<Arg>)>,
    outs: Vec<u32>,
    slots: u32,
) -> Arc<Structure> {
    Arc::new(Structure {
        inputs: inputs.iter().map(|(ty, dies)| Input { ty: ty.clone(), dies: *dies }).collect(),
        instrs: instrs.into_iter().map(|(op, args)| Instr { op, args: args.into() }).collect(),
        outs,
        slots,
        ..Default::default()
    })
}

fn ramp(dtype: DType, shape: &[usize]) -> HostTensor {
    let n: usize = shape.iter().product();
    let values: Vec<f64> = (0..n).map(|i| ((i * 37 % 101) as f64 - 50.0) / 8.0).collect();
    HostTensor::from_f64s(dtype, shape, &values)
}

/// What rows are put through: composites and their gradients, folds of what other folds led to, and weights that are the
/// same for all rows. Inputs are two tensors of rows and two single rows.
fn row_programs() -> Vec<Vec<(Op, Vec<Arg>)>> {
    let v = Arg::Value;
    let num = |op, a, x: f64| (Op::Binary(op), vec![Arg::Value(a), Arg::Const(Scalar::Float(x))]);
    let f = |x: f64| Arg::Const(Scalar::Float(x));
    let fold = |kind| Op::Reduce { kind, dims: [1].as_slice().into(), keepdim: true };
    let bin = |op, a, b| (Op::Binary(op), vec![v(a), v(b)]);
    vec![
        vec![(Op::Softmax { dim: 1 }, vec![v(0)])],
        vec![(Op::LogSoftmax { dim: 1 }, vec![v(0)])],
        vec![(Op::LayerNorm { dims: 1 }, vec![v(0), f(1e-5), v(2), v(3)])],
        vec![(Op::LayerNorm { dims: 1 }, vec![v(0), f(1e-5)])],
        vec![(Op::RmsNorm { dims: 1 }, vec![v(0), f(1e-6), v(2)])],
        // The gradient of softmax.
        vec![
            bin(Binary::Mul, 0, 1),
            (fold(ReduceKind::Sum), vec![v(4)]),
            bin(Binary::Sub, 0, 5),
            bin(Binary::Mul, 1, 6),
        ],
        // Centred by the middle of the extremes, and what is left of a product.
        vec![
            (fold(ReduceKind::Max), vec![v(0)]),
            (fold(ReduceKind::Min), vec![v(0)]),
            bin(Binary::Add, 4, 5),
            (Op::Binary(Binary::Mul), vec![v(6), f(0.5)]),
            bin(Binary::Sub, 0, 7),
            (Op::Unary(gt_ir::Unary::Gelu), vec![v(8)]),
            bin(Binary::Mul, 9, 2),
            bin(Binary::Add, 10, 3),
            (fold(ReduceKind::Prod), vec![v(11)]),
            bin(Binary::Div, 11, 12),
            bin(Binary::Max, 13, 8),
        ],
        // Norms of a sum, each with all that its gradient would ask for.
        vec![
            bin(Binary::Add, 0, 1),
            (fold(ReduceKind::Sum), vec![v(4)]),
            num(Binary::Div, 5, 96.0),
            bin(Binary::Sub, 4, 6),
            bin(Binary::Mul, 7, 7),
            (fold(ReduceKind::Sum), vec![v(8)]),
            num(Binary::Div, 9, 96.0),
            num(Binary::Add, 10, 1e-5),
            (Op::Unary(gt_ir::Unary::Rsqrt), vec![v(11)]),
            bin(Binary::Mul, 7, 12),
            bin(Binary::Mul, 13, 2),
            bin(Binary::Add, 14, 3),
        ],
        vec![
            bin(Binary::Add, 0, 1),
            bin(Binary::Mul, 4, 4),
            (fold(ReduceKind::Sum), vec![v(5)]),
            num(Binary::Div, 6, 96.0),
            num(Binary::Add, 7, 1e-6),
            (Op::Unary(gt_ir::Unary::Rsqrt), vec![v(8)]),
            bin(Binary::Mul, 4, 9),
            bin(Binary::Mul, 10, 2),
        ],
    ]
}

/// A gradient of a norm's input as plans have it: inputs are two terms, a weight, what the norm gave, the factor of each row
/// and what the gradient is added to.
#[test]
fn gradients_of_norms_have_the_bits_of_single_steps() {
    let v = Arg::Value;
    let num = |op, a, x: f64| (Op::Binary(op), vec![Arg::Value(a), Arg::Const(Scalar::Float(x))]);
    let sum =
        |a| (Op::Reduce { kind: ReduceKind::Sum, dims: [1].as_slice().into(), keepdim: true }, vec![v(a)]);
    let bin = |op, a, b| (Op::Binary(op), vec![v(a), v(b)]);
    let rms = vec![
        bin(Binary::Add, 0, 1),
        bin(Binary::Mul, 6, 2),
        bin(Binary::Mul, 7, 3),
        sum(8),
        num(Binary::Div, 9, 96.0),
        bin(Binary::Mul, 3, 10),
        bin(Binary::Sub, 7, 11),
        bin(Binary::Mul, 12, 4),
        bin(Binary::Add, 5, 13),
    ];
    let layer = vec![
        bin(Binary::Mul, 0, 2),
        bin(Binary::Mul, 6, 3),
        sum(7),
        num(Binary::Div, 8, 96.0),
        bin(Binary::Mul, 3, 9),
        sum(6),
        num(Binary::Div, 11, 96.0),
        bin(Binary::Sub, 6, 12),
        bin(Binary::Sub, 13, 10),
        bin(Binary::Mul, 14, 4),
    ];
    let fused = CpuBackend::new(Some(2));
    let unfused = CpuBackend::with_options(Some(1), CompileOptions { fuse: false, ..Default::default() });
    let reference = open("reference", None).unwrap();
    for (rows, width) in [(70, 32), (9, 128), (6, 100), (7, 777), (3, 2048), (4099, 1025)] {
        for (program, dies) in [(&rms, false), (&rms, true), (&layer, false), (&layer, true)] {
            let shapes =
                [&[rows, width][..], &[rows, width], &[width], &[rows, width], &[rows, 1], &[rows, width]];
            let inputs: Vec<HostTensor> = shapes.iter().map(|shape| ramp(DType::F32, shape)).collect();
            let types: Vec<(Ty, bool)> = inputs.iter().map(|t| (t.ty.clone(), dies)).collect();
            let s = structure(&types, program.clone(), vec![5 + program.len() as u32], 0);
            let (a, b) = (run(&fused, &s, &inputs, &[]).unwrap(), run(&unfused, &s, &inputs, &[]).unwrap());
            same_bits(rows as u64, "fused and unfused", &a, &b);
            if rows * width < 10_000 {
                let c = run(reference.as_ref(), &s, &inputs, &[]).unwrap();
                close(&a[0], &c[0], 1e-4, 1e-4).unwrap();
            }
        }
    }
}

/// What is looked at of a program of `row_programs`.
fn row_outs(k: usize, len: usize) -> Vec<u32> {
    match k {
        7 => vec![4, 12, 13, 15],
        8 => vec![4, 9, 11],
        _ => vec![3 + len as u32],
    }
}

#[test]
fn rows_of_any_length_have_the_bits_of_single_steps() {
    let fused = CpuBackend::new(Some(2));
    let unfused = CpuBackend::with_options(Some(1), CompileOptions { fuse: false, ..Default::default() });
    let reference = open("reference", None).unwrap();
    let wild = |shape: &[usize], seed: usize| {
        let n: usize = shape.iter().product();
        let element = |i: usize| match (i * 7919 + seed) % 9973 {
            7 => f64::NAN,
            11 => f64::INFINITY,
            k => (k as f64 - 5000.0) / 1700.0,
        };
        HostTensor::from_f64s(DType::F32, shape, &(0..n).map(element).collect::<Vec<_>>())
    };
    // The last two are written past the caches.
    let shapes = [(3, 63), (5, 64), (70, 65), (9, 128), (4, 200), (7, 512), (3, 777), (6, 1024), (2, 5000)];
    let more = [(50, 32), (6, 47), (5, 33_000), (4801, 901), (4099, 1024)];
    for (rows, width) in shapes.into_iter().chain(more) {
        for (k, program) in row_programs().into_iter().enumerate() {
            for dies in [false, true] {
                let inputs = [
                    wild(&[rows, width], 1),
                    wild(&[rows, width], 2),
                    ramp(DType::F32, &[width]),
                    ramp(DType::F32, &[width]),
                ];
                let types: Vec<(Ty, bool)> = inputs.iter().map(|t| (t.ty.clone(), dies)).collect();
                let s = structure(&types, program.clone(), row_outs(k, program.len()), 0);
                let (a, b) =
                    (run(&fused, &s, &inputs, &[]).unwrap(), run(&unfused, &s, &inputs, &[]).unwrap());
                // Equal to the bit, but any NaN is a NaN.
                for (o, (a, b)) in a.iter().zip(&b).enumerate() {
                    if let Err(e) = close(a, b, 0.0, 0.0) {
                        panic!("program {k} on {rows} x {width}, result {o}, fused and unfused: {e}");
                    }
                }
                if rows * width < 10_000 && k != 6 {
                    let c = run(reference.as_ref(), &s, &inputs, &[]).unwrap();
                    for (o, (a, c)) in a.iter().zip(&c).enumerate() {
                        if let Err(e) = close(a, c, 1e-4, 1e-5) {
                            panic!("program {k} on {rows} x {width}, result {o}, cpu and reference: {e}");
                        }
                    }
                }
            }
        }
    }
}

/// Large results go past the caches or through them, whatever is faster: a plan that comes back tries both.
#[test]
fn large_results_have_the_same_bits_whichever_way_they_go() {
    let backend = CpuBackend::new(Some(2));
    let (rows, width) = (4801, 901);
    let inputs = [
        ramp(DType::F32, &[rows, width]),
        ramp(DType::F32, &[rows, width]),
        ramp(DType::F32, &[width]),
        ramp(DType::F32, &[width]),
    ];
    let types: Vec<(Ty, bool)> = inputs.iter().map(|t| (t.ty.clone(), false)).collect();
    let v = Arg::Value;
    let light = vec![(Op::Binary(Binary::Add), vec![v(0), v(1)]), (Op::Unary(gt_ir::Unary::Neg), vec![v(4)])];
    let heavy =
        vec![(Op::Unary(gt_ir::Unary::Gelu), vec![v(0)]), (Op::Binary(Binary::Mul), vec![v(4), v(2)])];
    let programs = row_programs().into_iter().enumerate().map(|(k, p)| (row_outs(k, p.len()), p));
    let pointwise = [light, heavy].map(|program| (vec![4, 5], program));
    for (k, (outs, program)) in programs.chain(pointwise).enumerate() {
        let s = structure(&types, program, outs, 0);
        let plan = backend.compile(&s, &s.check().unwrap(), Effort::Quick).unwrap();
        let mut first: Option<Vec<Vec<u8>>> = None;
        for time in 0..18 {
            let mut buffers: Vec<Buffer> = inputs.iter().map(|t| upload(&backend, t)).collect();
            let outs = plan.run(&mut buffers, &[]).unwrap();
            let outs = outs.iter().map(|out| backend.download(out).unwrap().to_vec()).collect::<Vec<_>>();
            let first = first.get_or_insert_with(|| outs.clone());
            assert!(*first == outs, "program {k}, run {time}");
        }
    }
}

#[test]
fn large_tensors_give_the_same_bits_on_any_number_of_threads() {
    let f32s = |shape: &[usize]| Ty::new(DType::F32, shape);
    let v = Arg::Value;
    for (rows, cols) in [(700, 900), (3, 200_000), (200_000, 3), (1, 600_001), (4000, 130)] {
        let x = ramp(DType::F32, &[rows, cols]);
        let sum = |dims: &[usize]| Op::Reduce { kind: ReduceKind::Sum, dims: dims.into(), keepdim: false };
        let s = structure(
            &[(f32s(&[rows, cols]), false)],
            vec![
                (Op::Unary(gt_ir::Unary::Exp), vec![v(0)]),
                (Op::Binary(Binary::Mul), vec![v(1), v(0)]),
                (sum(&[0]), vec![v(2)]),
                (sum(&[1]), vec![v(2)]),
                (sum(&[0, 1]), vec![v(2)]),
                (Op::Softmax { dim: 0 }, vec![v(0)]),
                (Op::Softmax { dim: 1 }, vec![v(0)]),
                (Op::View(View::Permute([1, 0].as_slice().into())), vec![v(2)]),
            ],
            vec![2, 3, 4, 5, 6, 7, 8],
            0,
        );
        let one = run(&CpuBackend::new(Some(1)), &s, std::slice::from_ref(&x), &[]).unwrap();
        let many = run(&CpuBackend::new(Some(3)), &s, std::slice::from_ref(&x), &[]).unwrap();
        same_bits(rows as u64, "1 thread and 3", &one, &many);
        let unfused = CpuBackend::with_options(Some(2), CompileOptions { fuse: false, ..Default::default() });
        let apart = run(&unfused, &s, std::slice::from_ref(&x), &[]).unwrap();
        same_bits(rows as u64, "fused and unfused", &one, &apart);
        let exact: f64 = x.to_f64s().iter().map(|x| x.exp() * x).sum();
        let got = one[3].to_f64s()[0];
        assert!((got - exact).abs() <= 1e-5 * exact.abs(), "{got} and {exact}");
        let flipped = &one[6];
        assert_eq!(flipped.get(rows), one[0].get(1));
    }
    for (m, k, n, batch) in
        [(512, 512, 512, 1), (1, 3000, 700, 1), (700, 3000, 1, 1), (37, 41, 1000, 3), (300, 2, 300, 1)]
    {
        let (a, b) = (ramp(DType::F32, &[batch, m, k]), ramp(DType::F32, &[batch, n, k]));
        let s = structure(
            &[(a.ty.clone(), false), (b.ty.clone(), false)],
            vec![(Op::Matmul { ta: false, tb: true, tf32: false }, vec![v(0), v(1)])],
            vec![2],
            0,
        );
        let inputs = [a, b];
        let one = run(&CpuBackend::new(Some(1)), &s, &inputs, &[]).unwrap();
        for threads in [2, 3, 5] {
            let many = run(&CpuBackend::new(Some(threads)), &s, &inputs, &[]).unwrap();
            same_bits(m as u64, "matmul on threads", &one, &many);
        }
    }
}

#[test]
fn puts_give_the_same_bits_on_any_number_of_threads() {
    let v = Arg::Value;
    for (outer, n, count, inner) in
        [(1, 5000, 9000, 130), (1, 3000, 100_000, 3), (40, 20, 60, 40), (1, 7, 200_000, 1)]
    {
        let base = ramp(DType::F32, &[outer, n, inner]);
        let src = ramp(DType::F32, &[outer, count, inner]);
        let at: Vec<f64> = (0..count).map(|i| (i * 7919 % 10_007 % n) as f64).collect();
        let wide: Vec<f64> = (0..outer * count * inner).map(|i| at[i / inner % count]).collect();
        let index = HostTensor::from_f64s(DType::I64, [count], &at);
        let every = HostTensor::from_f64s(DType::I64, [outer, count, inner], &wide);
        for mode in [ScatterMode::Add, ScatterMode::Max] {
            let s = structure(
                &[
                    (base.ty.clone(), false),
                    (index.ty.clone(), false),
                    (src.ty.clone(), false),
                    (every.ty.clone(), false),
                ],
                vec![
                    (Op::TakePut { dim: 1, mode }, vec![v(0), v(1), v(2)]),
                    (Op::Scatter { dim: 1, mode }, vec![v(0), v(3), v(2)]),
                ],
                vec![4, 5],
                0,
            );
            let inputs = [base.clone(), index.clone(), src.clone(), every.clone()];
            let one = run(&CpuBackend::new(Some(1)), &s, &inputs, &[]).unwrap();
            assert_eq!(one[0].data, one[1].data, "the two say the same");
            let many = run(&CpuBackend::new(Some(3)), &s, &inputs, &[]).unwrap();
            same_bits(n as u64, "puts on threads", &one, &many);
        }
    }
}

#[test]
fn a_dying_buffer_is_written_in_place_and_a_shared_one_is_not() {
    let backend = CpuBackend::new(Some(1));
    let base = ramp(DType::F32, &[1000, 64]);
    let row = HostTensor::from_f64s(DType::F32, [1, 64], &[9.5; 64]);
    let path = vec![View::Slice { dim: 0, len: 1, step: 1 }];
    let s = structure(
        &[(base.ty.clone(), true), (row.ty.clone(), false)],
        vec![(Op::Put { path }, vec![Arg::Value(0), Arg::Value(1), Arg::Slot(0)])],
        vec![2],
        1,
    );
    let plan = backend.compile(&s, &s.check().unwrap(), Effort::Quick).unwrap();
    let slots = [Slot::Num(Scalar::Int(7))];
    let (before, row) = (upload(&backend, &base), upload(&backend, &row));
    let used = backend.memory_in_use().0;
    let at = Arc::as_ptr(&before) as *const u8 as usize;
    let mut inputs = vec![before, row];
    let out = plan.run(&mut inputs, &slots).unwrap().remove(0);
    assert_eq!(Arc::as_ptr(&out) as *const u8 as usize, at, "written in place");
    drop(inputs.remove(0));
    assert_eq!(backend.memory_in_use().0, used, "no second buffer");
    let after = HostTensor { ty: base.ty.clone(), data: backend.download(&out).unwrap().to_vec() };
    assert_eq!(after.get(7 * 64 + 3), Scalar::Float(9.5));
    assert_eq!(after.get(8 * 64), base.get(8 * 64));
    // Someone else holds it: they must not see the write.
    let kept = out.clone();
    inputs.insert(0, out);
    let second = plan.run(&mut inputs, &[Slot::Num(Scalar::Int(8))]).unwrap().remove(0);
    assert_eq!(*backend.download(&kept).unwrap(), after.data);
    assert_ne!(*backend.download(&second).unwrap(), after.data);
}

/// Rows that are kept, or put elsewhere, from a buffer that is written over: a row is copied, not the buffer.
#[test]
fn parts_of_what_is_written_over_are_taken_out_first() {
    let (fused, reference) = (CpuBackend::new(Some(1)), open("reference", None).unwrap());
    let unfused = CpuBackend::with_options(Some(1), CompileOptions { fuse: false, ..Default::default() });
    let base = ramp(DType::F32, &[1000, 64]);
    let row = View::Slice { dim: 0, len: 1, step: 1 };
    let slice = |of, k| (Op::View(row.clone()), vec![Arg::Value(of), Arg::Slot(k)]);
    let put = |of, value, k| (Op::Put { path: vec![row.clone()] }, vec![Arg::Value(of), value, Arg::Slot(k)]);
    let one = Arg::Const(Scalar::Float(1.0));
    // Three rows kept and overwritten; two rows that change places; rows kept of a buffer that stays as well.
    let kept = vec![slice(0, 0), put(0, one, 0), slice(2, 1), put(2, one, 1), slice(4, 2), put(4, one, 2)];
    let swapped = vec![slice(0, 0), slice(0, 1), put(0, Arg::Value(2), 0), put(3, Arg::Value(1), 1)];
    let stays = vec![slice(0, 0), put(0, one, 1), slice(2, 0)];
    let cases = [(kept, vec![1, 3, 5, 6], 1), (swapped, vec![4], 1), (stays, vec![0, 1, 2, 3], 2)];
    let slots = [3, 7, 3].map(|k| Slot::Num(Scalar::Int(k)));
    for (program, outs, copies) in cases {
        let s = structure(&[(base.ty.clone(), true)], program, outs, 3);
        let plan = fused.compile(&s, &s.check().unwrap(), Effort::Quick).unwrap();
        assert!(plan.text().matches("= copy").count() <= copies, "{}", plan.text());
        let inputs = std::slice::from_ref(&base);
        let want = run(reference.as_ref(), &s, inputs, &slots).unwrap();
        same_bits(0, "cpu and reference", &run(&fused, &s, inputs, &slots).unwrap(), &want);
        same_bits(0, "unfused and reference", &run(&unfused, &s, inputs, &slots).unwrap(), &want);
    }
}

#[test]
fn elementwise_results_take_over_dying_inputs() {
    let backend = CpuBackend::new(Some(1));
    let (p, g) = (ramp(DType::F32, &[3000]), ramp(DType::F32, &[3000]));
    let s = structure(
        &[(p.ty.clone(), true), (g.ty.clone(), true)],
        vec![
            (Op::Binary(Binary::Mul), vec![Arg::Value(1), Arg::Slot(0)]),
            (Op::Binary(Binary::Sub), vec![Arg::Value(0), Arg::Value(2)]),
        ],
        vec![3],
        1,
    );
    let slots = [Slot::Num(Scalar::Float(0.5))];
    let want = gt_ir::reference::run(&s, &[p.clone(), g.clone()], &slots).unwrap();
    let plan = backend.compile(&s, &s.check().unwrap(), Effort::Quick).unwrap();
    let mut inputs = vec![upload(&backend, &p), upload(&backend, &g)];
    let used = backend.memory_in_use().1;
    let out = plan.run(&mut inputs, &slots).unwrap();
    assert_eq!(backend.memory_in_use().1, used, "no memory beyond the inputs");
    assert_eq!(*backend.download(&out[0]).unwrap(), want[0].data);
}

#[test]
fn a_failure_names_the_instruction_and_leaves_the_inputs() {
    for name in ["cpu", "reference"] {
        let backend = open(name, Some(2)).unwrap();
        let (base, src) = (ramp(DType::F32, &[5, 4]), ramp(DType::F32, &[2, 4]));
        let index = HostTensor::from_i64s(DType::I64, [2], &[1, 9]);
        let path = vec![View::Slice { dim: 0, len: 1, step: 1 }];
        let s = structure(
            &[(base.ty.clone(), true), (index.ty.clone(), false), (src.ty.clone(), true)],
            vec![
                (Op::Put { path }, vec![Arg::Value(0), Arg::Const(Scalar::Float(1.0)), Arg::Slot(0)]),
                (
                    Op::TakePut { dim: 0, mode: ScatterMode::Add },
                    vec![Arg::Value(3), Arg::Value(1), Arg::Value(2)],
                ),
            ],
            vec![4],
            1,
        );
        let slots = [Slot::Num(Scalar::Int(0))];
        let inputs = [base.clone(), index, src];
        let error = run(&*backend, &s, &inputs, &slots).unwrap_err();
        assert_eq!(error.instr, Some(1), "{name}");
        assert_eq!(error.error.to_string(), "TAKEPUT: index 9 is out of bounds for dimension 0 with size 5");
        let good = [base, HostTensor::from_i64s(DType::I64, [2], &[1, -5]), inputs[2].clone()];
        run(&*backend, &s, &good, &slots).unwrap();

        let (a, b) = (
            HostTensor::from_i64s(DType::I32, [3], &[7, 8, 9]),
            HostTensor::from_i64s(DType::I32, [3], &[2, 0, 1]),
        );
        let s = structure(
            &[(a.ty.clone(), true), (b.ty.clone(), true)],
            vec![
                (Op::Binary(Binary::Add), vec![Arg::Value(0), Arg::Value(0)]),
                (Op::Binary(Binary::Rem), vec![Arg::Value(2), Arg::Value(1)]),
            ],
            vec![3],
            0,
        );
        let error = run(&*backend, &s, &[a, b], &[]).unwrap_err();
        assert_eq!(error.instr, Some(1), "{name}");
        assert!(error.error.to_string().contains("ZeroDivisionError"), "{}", error.error);
    }
}

#[test]
fn unknown_backends_are_refused_by_name() {
    let error = open("tpu", None).err().unwrap().to_string();
    assert!(error.contains("tpu") && error.contains("reference"), "{error}");
    assert_eq!(open("numpy", None).unwrap().name(), "reference");
    assert_eq!(open("pytorch", Some(1)).unwrap().threads(), 1);
}

/// Batches that share their right side are one product to the backend. That must not show: few rows have an order of
/// summation of their own.
#[test]
fn shared_right_sides_change_no_bit() {
    for (dtype, rows) in
        [(DType::F32, 1), (DType::F32, 3), (DType::F32, 6), (DType::BF16, 1), (DType::BF16, 6)]
    {
        let (batch, k, n) = (7usize, 200usize, 24usize);
        let values =
            |count: usize, by: f64| -> Vec<f64> { (0..count).map(|i| (i as f64 * by).sin()).collect() };
        let a = HostTensor::from_f64s(dtype, [batch, rows, k], &values(batch * rows * k, 0.37));
        let one = HostTensor::from_f64s(dtype, [1, k, n], &values(k * n, 0.53));
        let all: Vec<f64> = values(k * n, 0.53).repeat(batch);
        let all = HostTensor::from_f64s(dtype, [batch, k, n], &all);
        let backend = CpuBackend::new(Some(2));
        let product = |b: &HostTensor| {
            let inputs = vec![a.clone(), b.clone()];
            let s = Structure {
                inputs: inputs.iter().map(|t| Input { ty: t.ty.clone(), dies: false }).collect(),
                instrs: vec![Instr {
                    op: Op::Matmul { ta: false, tb: false, tf32: false },
                    args: [Arg::Value(0), Arg::Value(1)].into_iter().collect(),
                }],
                outs: vec![2],
                slots: 0,
                ..Default::default()
            };
            run(&backend, &Arc::new(s), &inputs, &[]).unwrap()
        };
        same_bits(rows as u64, "shared and separate right sides", &product(&one), &product(&all));
    }
}

/// Attention between products writes its results with the heads of a row beside each other. That must not show.
#[test]
fn the_order_in_which_attention_writes_changes_no_bit() {
    for (dtype, name) in [(DType::F32, "f32"), (DType::BF16, "bf16")] {
        let program = format!(
            "in TENSOR[0] {name}[2, 4, 20, 16]
             in TENSOR[1] {name}[2, 2, 20, 16]
             in TENSOR[2] {name}[64, 24]
             in TENSOR[3] {name}[2, 4, 20, 16]
             in TENSOR[4] {name}[32, 8]
             TENSOR[5], TENSOR[6] := ATTENTION{{causal=true}} TENSOR[0] TENSOR[1] TENSOR[1] 0.25
             TENSOR[7] := PERMUTE{{perm=[0,2,1,3]}} TENSOR[5]
             TENSOR[8] := RESHAPE{{shape=[40,64]}} TENSOR[7]
             TENSOR[9] := MATMUL{{ta=false,tb=false}} TENSOR[8] TENSOR[2]
             TENSOR[10], TENSOR[11], TENSOR[12] := ATTENTIONGRAD{{causal=true}} TENSOR[0] TENSOR[1] TENSOR[1] TENSOR[5] TENSOR[6] TENSOR[3] 0.25
             TENSOR[13] := PERMUTE{{perm=[0,2,1,3]}} TENSOR[12]
             TENSOR[14] := RESHAPE{{shape=[40,32]}} TENSOR[13]
             TENSOR[15] := MATMUL{{ta=false,tb=false}} TENSOR[14] TENSOR[4]
             out TENSOR[9]
             out TENSOR[10]
             out TENSOR[11]
             out TENSOR[15]"
        );
        let s = Arc::new(gt_ir::text::parse_structure(&program).unwrap());
        let inputs: Vec<HostTensor> =
            s.inputs.iter().map(|input| ramp(dtype, &input.ty.shape.to_vec())).collect();
        let turned = CpuBackend::new(Some(2));
        let plan = turned.compile(&s, &s.check().unwrap(), Effort::Quick).unwrap();
        assert!(!plan.text().contains("kernel"), "no copy is left:\n{}", plan.text());
        let apart = CpuBackend::with_options(Some(1), CompileOptions { apart: true, ..Default::default() });
        let (a, b) = (run(&turned, &s, &inputs, &[]).unwrap(), run(&apart, &s, &inputs, &[]).unwrap());
        same_bits(0, name, &a, &b);
        let want = gt_ir::reference::run(&s, &inputs, &[]).unwrap();
        for (k, (got, want)) in a.iter().zip(&want).enumerate() {
            let (rtol, atol) = tolerance(dtype);
            close(got, want, 4.0 * rtol, 40.0 * atol).unwrap_or_else(|e| panic!("{name}, live-out {k}: {e}"));
        }
    }
}
