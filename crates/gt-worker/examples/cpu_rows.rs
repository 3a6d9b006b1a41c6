//! Speed of programs over rows on the cpu backend: softmax, norms, losses and their gradients, each with several inputs in
//! turn so that none of them is in a cache.
//!
//! `cargo run --release -p gt-worker --example cpu_rows [filter]`, `ROWS` and `WIDTH` for another shape, `THREADS` for how
//! many.

use gt_ir::program::{Arg, Input, Instr};
use gt_ir::{Binary, DType, Dist, Op, ReduceKind, Scalar, Slot, Structure, Ty, Unary};
use gt_worker::backend::{Backend, Buffer, Effort, Plan};
use gt_worker::backends::cpu::CpuBackend;
use std::sync::Arc;
use std::time::Duration;

fn from_env(name: &str) -> Option<usize> {
    std::env::var(name).ok().and_then(|t| t.parse().ok())
}

/// Seconds of this thread alone if it is the only one, so that others do not disturb; otherwise of all time.
fn now(alone: bool) -> Duration {
    let clock = if alone { libc::CLOCK_THREAD_CPUTIME_ID } else { libc::CLOCK_MONOTONIC };
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to `t` alone.
    unsafe { libc::clock_gettime(clock, &mut t) };
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

fn compile(backend: &CpuBackend, s: &Arc<Structure>) -> Arc<dyn Plan> {
    backend.compile(s, &s.check().expect("well formed"), Effort::Quick).expect("compiles")
}

fn random(backend: &CpuBackend, ty: &Ty, key: i64) -> Buffer {
    let dist = if ty.dtype.is_float() { Dist::Normal } else { Dist::Int { low: 0, high: 100 } };
    let op = Op::Random { dist, shape: ty.shape.clone(), dtype: ty.dtype };
    let instrs = vec![Instr { op, args: vec![Arg::Slot(0), Arg::Slot(1)].into() }];
    let s = Arc::new(Structure { instrs, outs: vec![0], slots: 2, ..Default::default() });
    let slots = [Slot::Num(Scalar::Int(key)), Slot::Num(Scalar::Int(0))];
    compile(backend, &s).run(&mut vec![], &slots).expect("runs").remove(0)
}

fn main() {
    let filter = std::env::args().nth(1).unwrap_or_default();
    let threads = from_env("THREADS").map(|n| n as u32);
    let alone = threads == Some(1);
    let backend = CpuBackend::new(threads);
    let (rows, width) = (from_env("ROWS").unwrap_or(8192), from_env("WIDTH").unwrap_or(1024));
    println!("{}, {rows} x {width}", backend.device());
    let (wide, one) = (Ty::new(DType::F32, [rows, width]), Ty::new(DType::F32, [width]));
    let v = Arg::Value;
    let f = |x: f64| Arg::Const(Scalar::Float(x));
    let sum = |keepdim| Op::Reduce { kind: ReduceKind::Sum, dims: [1].as_slice().into(), keepdim };
    let max = Op::Reduce { kind: ReduceKind::Max, dims: [1].as_slice().into(), keepdim: false };
    let (mul, sub, add) = (Op::Binary(Binary::Mul), Op::Binary(Binary::Sub), Op::Binary(Binary::Add));
    type Program = Vec<(Op, Vec<Arg>)>;
    // The inputs of the wide shape, then those of one row.
    let programs: Vec<(&str, usize, usize, Program)> = vec![
        ("x + 1", 1, 0, vec![(add.clone(), vec![v(0), f(1.0)])]),
        ("exp", 1, 0, vec![(Op::Unary(Unary::Exp), vec![v(0)])]),
        ("gelu", 1, 0, vec![(Op::Unary(Unary::Gelu), vec![v(0)])]),
        ("gelu_grad", 2, 0, vec![(Op::Unary(Unary::GeluGrad), vec![v(0)]), (mul.clone(), vec![v(2), v(1)])]),
        ("silu", 1, 0, vec![(Op::Unary(Unary::Silu), vec![v(0)])]),
        ("tanh", 1, 0, vec![(Op::Unary(Unary::Tanh), vec![v(0)])]),
        (
            "elementwise",
            1,
            0,
            vec![
                (mul.clone(), vec![v(0), f(2.0)]),
                (add.clone(), vec![v(1), f(1.0)]),
                (Op::Unary(Unary::Relu), vec![v(2)]),
                (mul.clone(), vec![v(3), v(0)]),
                (add.clone(), vec![v(4), f(0.5)]),
                (Op::Unary(Unary::Tanh), vec![v(5)]),
                (sub.clone(), vec![v(6), v(0)]),
            ],
        ),
        ("sum", 1, 0, vec![(sum(false), vec![v(0)])]),
        ("max", 1, 0, vec![(max, vec![v(0)])]),
        ("softmax", 1, 0, vec![(Op::Softmax { dim: 1 }, vec![v(0)])]),
        ("log_softmax", 1, 0, vec![(Op::LogSoftmax { dim: 1 }, vec![v(0)])]),
        ("layer_norm", 1, 2, vec![(Op::LayerNorm { dims: 1 }, vec![v(0), f(1e-5), v(1), v(2)])]),
        ("layer_norm plain", 1, 0, vec![(Op::LayerNorm { dims: 1 }, vec![v(0), f(1e-5)])]),
        ("rms_norm", 1, 1, vec![(Op::RmsNorm { dims: 1 }, vec![v(0), f(1e-6), v(1)])]),
        (
            "softmax_grad",
            2,
            0,
            vec![
                (mul.clone(), vec![v(0), v(1)]),
                (sum(true), vec![v(2)]),
                (sub, vec![v(0), v(3)]),
                (mul, vec![v(1), v(4)]),
            ],
        ),
    ];
    for (name, big, small, program) in programs {
        if !name.contains(&filter) {
            continue;
        }
        let types = std::iter::repeat_n(&wide, big).chain(std::iter::repeat_n(&one, small));
        let inputs: Vec<Input> = types.map(|ty| Input { ty: ty.clone(), dies: false }).collect();
        let out = (inputs.len() + program.len() - 1) as u32;
        let instrs = program.into_iter().map(|(op, args)| Instr { op, args: args.into() }).collect();
        let s = Arc::new(Structure { inputs, instrs, outs: vec![out], ..Default::default() });
        let plan = compile(&backend, &s);
        if from_env("TEXT").is_some() {
            println!("{}", plan.text());
        }
        let sets: Vec<Vec<Buffer>> =
            (0..3).map(|k| s.inputs.iter().map(|i| random(&backend, &i.ty, k)).collect()).collect();
        let mut times: Vec<f64> = Vec::new();
        let begin = now(false);
        while times.len() < 10 || (now(false) - begin < Duration::from_millis(500) && times.len() < 500) {
            let mut inputs = sets[times.len() % 3].clone();
            let start = now(alone);
            let outs = plan.run(&mut inputs, &[]).expect("runs");
            times.push((now(alone) - start).as_secs_f64());
            drop(outs);
        }
        times.sort_by(f64::total_cmp);
        let (middle, least) = (times[times.len() / 2], times[0]);
        let cycles = least * 3.5e9 * backend.threads() as f64 / (rows * width / 16) as f64;
        println!(
            "{name:18} {:8.3} ms, least {:8.3}, {cycles:5.1} ticks of 3.5 GHz for 16 elements",
            middle * 1e3,
            least * 1e3
        );
    }
}
