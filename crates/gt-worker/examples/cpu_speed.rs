//! Speed of the cpu backend: GB/s of elementwise work and reductions, GFLOP/s of matmul, ns of tiny plans and of compiling.
//!
//! `cargo run --release -p gt-worker --example cpu_speed [filter]`

use gt_ir::program::{Arg, Input, Instr};
use gt_ir::{Binary, DType, Dist, Op, ReduceKind, Scalar, Slot, Structure, Ty, Unary, View};
use gt_worker::backend::{Backend, Buffer, Effort, Plan};
use gt_worker::backends::cpu::CpuBackend;
use std::sync::Arc;
use std::time::Duration;

/// A clock that counts this thread's own time when there is but one (`THREADS=1`), so that others do not disturb it.
#[derive(Clone, Copy)]
struct Instant(Duration);

static ALONE: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

impl Instant {
    fn now() -> Instant {
        let alone = ALONE.load(std::sync::atomic::Ordering::Relaxed);
        let clock = if alone { libc::CLOCK_THREAD_CPUTIME_ID } else { libc::CLOCK_MONOTONIC };
        let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: writes to `t` alone.
        unsafe { libc::clock_gettime(clock, &mut t) };
        Instant(Duration::new(t.tv_sec as u64, t.tv_nsec as u32))
    }

    fn elapsed(self) -> Duration {
        Instant::now().0 - self.0
    }
}

struct Bench {
    backend: CpuBackend,
    filter: String,
}

fn structure(inputs: &[Ty], instrs: Vec<(Op, Vec<Arg>)>, outs: Vec<u32>, slots: u32) -> Arc<Structure> {
    Arc::new(Structure {
        inputs: inputs.iter().map(|ty| Input { ty: ty.clone(), dies: false }).collect(),
        instrs: instrs.into_iter().map(|(op, args)| Instr { op, args: args.into() }).collect(),
        outs,
        slots,
        ..Default::default()
    })
}

impl Bench {
    fn compile(&self, s: &Arc<Structure>) -> Arc<dyn Plan> {
        self.backend.compile(s, &s.check().expect("well formed"), Effort::Quick).expect("compiles")
    }

    /// A tensor of normal (or small integer) numbers.
    fn random(&self, ty: &Ty) -> Buffer {
        let dist = if ty.dtype.is_float() { Dist::Normal } else { Dist::Int { low: 0, high: 100 } };
        let op = Op::Random { dist, shape: ty.shape.clone(), dtype: ty.dtype };
        let s = structure(&[], vec![(op, vec![Arg::Slot(0), Arg::Slot(1)])], vec![0], 2);
        let slots = [Slot::Num(Scalar::Int(1)), Slot::Num(Scalar::Int(0))];
        self.compile(&s).run(&mut vec![], &slots).expect("runs").remove(0)
    }

    /// The least seconds of a run.
    fn time(&self, s: &Arc<Structure>, slots: &[Slot]) -> f64 {
        let plan = self.compile(s);
        let inputs: Vec<Buffer> = s.inputs.iter().map(|i| self.random(&i.ty)).collect();
        let (mut best, mut spent, mut runs) = (f64::MAX, 0.0, 0);
        while runs < 5 || (spent < 0.6 && runs < 2000) {
            let mut inputs = inputs.clone();
            let start = Instant::now();
            let outs = plan.run(&mut inputs, slots).expect("runs");
            let t = start.elapsed().as_secs_f64();
            drop(outs);
            best = best.min(t);
            spent += t;
            runs += 1;
        }
        best
    }

    fn wants(&self, name: &str) -> bool {
        name.contains(&self.filter)
    }

    fn bytes(&self, name: &str, s: &Arc<Structure>, bytes: usize) {
        if self.wants(name) {
            let t = self.time(s, &[]);
            println!("{name:28} {:8.3} ms {:8.1} GB/s", t * 1e3, bytes as f64 / t / 1e9);
        }
    }

    fn flops(&self, name: &str, s: &Arc<Structure>, flops: f64) {
        if self.wants(name) {
            let t = self.time(s, &[]);
            println!("{name:28} {:8.3} ms {:8.1} GFLOP/s", t * 1e3, flops / t / 1e9);
        }
    }

    /// Nanoseconds per run of something small.
    fn tiny(&self, name: &str, s: &Arc<Structure>, slots: &[Slot]) {
        if !self.wants(name) {
            return;
        }
        let plan = self.compile(s);
        let inputs: Vec<Buffer> = s.inputs.iter().map(|i| self.random(&i.ty)).collect();
        let mut best = f64::MAX;
        for _ in 0..20 {
            let start = Instant::now();
            for _ in 0..1000 {
                let mut inputs = inputs.clone();
                plan.run(&mut inputs, slots).expect("runs");
            }
            best = best.min(start.elapsed().as_secs_f64() / 1000.0);
        }
        let types = s.check().expect("well formed");
        let mut compile = f64::MAX;
        for _ in 0..200 {
            let start = Instant::now();
            let plan = self.backend.compile(s, &types, Effort::Quick).expect("compiles");
            compile = compile.min(start.elapsed().as_secs_f64());
            drop(plan);
        }
        let n = s.instrs.len();
        println!(
            "{name:28} {:8.0} ns a run, compiles in {:.2} us, {:.2} us an instruction",
            best * 1e9,
            compile * 1e6,
            compile * 1e6 / n as f64
        );
    }
}

fn main() {
    let filter = std::env::args().nth(1).unwrap_or_default();
    let threads = std::env::var("THREADS").ok().and_then(|t| t.parse().ok());
    ALONE.store(threads == Some(1), std::sync::atomic::Ordering::Relaxed);
    let b = Bench { backend: CpuBackend::new(threads), filter };
    println!("{}", b.backend.device());
    let v = Arg::Value;
    let f = |x: f64| Arg::Const(Scalar::Float(x));
    let n = 10_000_000usize;
    let big = Ty::new(DType::F32, [n]);
    let un = |op| structure(std::slice::from_ref(&big), vec![(Op::Unary(op), vec![v(0)])], vec![1], 0);
    let add =
        structure(&[big.clone(), big.clone()], vec![(Op::Binary(Binary::Add), vec![v(0), v(1)])], vec![2], 0);
    b.bytes("add f32 10M", &add, 12 * n);
    for op in [
        Unary::Relu,
        Unary::Exp,
        Unary::Tanh,
        Unary::Sigmoid,
        Unary::Log,
        Unary::Erf,
        Unary::Gelu,
        Unary::Silu,
        Unary::Sin,
        Unary::Sqrt,
    ] {
        b.bytes(&format!("{} f32 10M", op.text().to_lowercase()), &un(op), 8 * n);
    }
    for dtype in [DType::F16, DType::BF16, DType::I64, DType::U8] {
        let ty = Ty::new(dtype, [n]);
        let s = structure(&[ty.clone(), ty], vec![(Op::Binary(Binary::Add), vec![v(0), v(1)])], vec![2], 0);
        b.bytes(&format!("add {dtype} 10M"), &s, 3 * n * dtype.size());
    }
    let chain = structure(
        &[big.clone(), big.clone()],
        vec![
            (Op::Binary(Binary::Mul), vec![v(0), f(0.9)]),
            (Op::Binary(Binary::Mul), vec![v(1), f(0.1)]),
            (Op::Binary(Binary::Add), vec![v(2), v(3)]),
            (Op::Unary(Unary::Relu), vec![v(4)]),
            (Op::Binary(Binary::Sub), vec![v(5), v(0)]),
        ],
        vec![6],
        0,
    );
    b.bytes("chain of 5 f32 10M", &chain, 12 * n);
    let wide = Ty::new(DType::F32, [4000, 2500]);
    let bias = structure(
        &[wide.clone(), Ty::new(DType::F32, [2500])],
        vec![(Op::Binary(Binary::Add), vec![v(0), v(1)])],
        vec![2],
        0,
    );
    b.bytes("bias add [4000,2500]", &bias, 8 * n);
    let transpose = structure(
        std::slice::from_ref(&wide),
        vec![(Op::View(View::Permute([1, 0].as_slice().into())), vec![v(0)])],
        vec![1],
        0,
    );
    b.bytes("transpose [4000,2500]", &transpose, 8 * n);
    for dims in [vec![0usize], vec![1], vec![0, 1]] {
        let op = Op::Reduce { kind: ReduceKind::Sum, dims: dims.as_slice().into(), keepdim: false };
        let s = structure(std::slice::from_ref(&wide), vec![(op, vec![v(0)])], vec![1], 0);
        b.bytes(&format!("sum {dims:?} [4000,2500]"), &s, 4 * n);
    }
    let soft = structure(std::slice::from_ref(&wide), vec![(Op::Softmax { dim: 1 }, vec![v(0)])], vec![1], 0);
    b.bytes("softmax [4000,2500]", &soft, 8 * n);
    for k in [64usize, 128, 256, 512, 1024, 2048, 4096] {
        let ty = Ty::new(DType::F32, [k, k]);
        let s = structure(
            &[ty.clone(), ty],
            vec![(Op::Matmul { ta: false, tb: false, tf32: false }, vec![v(0), v(1)])],
            vec![2],
            0,
        );
        b.flops(&format!("matmul f32 {k}"), &s, 2.0 * (k as f64).powi(3));
    }
    let (x, w) = (Ty::new(DType::F32, [256, 784]), Ty::new(DType::F32, [512, 784]));
    let linear = structure(
        &[x, w, Ty::new(DType::F32, [512])],
        vec![(Op::Matmul { ta: false, tb: true, tf32: false }, vec![v(0), v(1), v(2)])],
        vec![3],
        0,
    );
    b.flops("matmul linear 256x784x512", &linear, 2.0 * 256.0 * 784.0 * 512.0);
    let ty = Ty::new(DType::BF16, [1024, 1024]);
    let s = structure(
        &[ty.clone(), ty],
        vec![(Op::Matmul { ta: false, tb: false, tf32: false }, vec![v(0), v(1)])],
        vec![2],
        0,
    );
    b.flops("matmul bf16 1024", &s, 2.0 * 1024f64.powi(3));

    let small = Ty::new(DType::F32, [10, 10]);
    let add = structure(
        &[small.clone(), small.clone()],
        vec![(Op::Binary(Binary::Add), vec![v(0), v(1)])],
        vec![2],
        0,
    );
    b.tiny("tiny add 10x10", &add, &[]);
    let mm = structure(
        &[small.clone(), small.clone()],
        vec![(Op::Matmul { ta: false, tb: false, tf32: false }, vec![v(0), v(1)])],
        vec![2],
        0,
    );
    b.tiny("tiny matmul 10x10", &mm, &[]);
    let sum = Op::Reduce { kind: ReduceKind::Sum, dims: [0, 1].as_slice().into(), keepdim: false };
    b.tiny(
        "tiny sum 10x10",
        &structure(std::slice::from_ref(&small), vec![(sum, vec![v(0)])], vec![1], 0),
        &[],
    );
    let mut long = Vec::new();
    for i in 0..200u32 {
        let op = if i % 3 == 0 { Op::Binary(Binary::Mul) } else { Op::Binary(Binary::Add) };
        long.push((op, vec![v(i + 1), v(i)]));
    }
    b.tiny("tiny chain of 200 10x10", &structure(&[small.clone(), small.clone()], long, vec![201], 0), &[]);
    let mut steps = Vec::new();
    for i in 0..100u32 {
        let last = if i == 0 { 0 } else { 1 + 2 * i };
        steps.push((Op::Matmul { ta: false, tb: false, tf32: false }, vec![v(last), v(1)]));
        steps.push((Op::Unary(Unary::Relu), vec![v(2 + 2 * i)]));
    }
    b.tiny("tiny 100 x (matmul, relu)", &structure(&[small.clone(), small], steps, vec![201], 0), &[]);
    let buffer = Ty::new(DType::F32, [25_000, 1000]);
    let path = vec![View::Slice { dim: 0, len: 1, step: 1 }];
    let put = Structure {
        inputs: vec![
            Input { ty: buffer.clone(), dies: true },
            Input { ty: Ty::new(DType::F32, [1, 1000]), dies: false },
        ],
        instrs: vec![Instr { op: Op::Put { path }, args: vec![v(0), v(1), Arg::Slot(0)].into() }],
        outs: vec![2],
        slots: 1,
        ..Default::default()
    };
    if b.wants("put") {
        let put = Arc::new(put);
        let plan = b.compile(&put);
        let row = b.random(&Ty::new(DType::F32, [1, 1000]));
        let mut at = b.random(&buffer);
        let start = Instant::now();
        for i in 0..1000 {
            let mut inputs = vec![at, row.clone()];
            let outs = plan.run(&mut inputs, &[Slot::Num(Scalar::Int(i))]).expect("runs");
            at = outs.into_iter().next().expect("one");
            drop(inputs);
        }
        println!("put a row into 100 MB         {:8.0} ns", start.elapsed().as_secs_f64() * 1e6);
    }
}
