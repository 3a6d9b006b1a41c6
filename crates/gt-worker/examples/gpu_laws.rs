//! The laws of the op table on a GPU: every sample and random programs, against the reference; plain kernels and made
//! ones, step by step and as graphs, bit for bit.
//!
//! `cargo run --release -p gt-worker --example gpu_laws [SECONDS] [SEED]`. Failures, products, attention and long rows come
//! first, all of them. Then several threads check samples in an order that the seed decides, and random programs in what is left of the
//! seconds, of which samples take three quarters at most. One line for each law that breaks, then what was covered; the status
//! says whether any broke. `GT_RANDOM_SEED` replays one random program alone.

use gt_compiler::CompileOptions;
use gt_ir::host::{HostTensor, close, close_by_dtype, tolerance};
use gt_ir::program::{Arg, Args, Input, Instr};
use gt_ir::sample::{self, RandomProgram, SampleArg};
use gt_ir::{DType, Op, Slot, Structure};
use gt_worker::backend::{Backend, Buffer, Effort, HostBytes, Plan, PlanError};
use gt_worker::backends::cuda::CudaBackend;
use gt_worker::backends::cuda::cudnn::Wish;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Failures printed at most; the others are only counted.
const PRINTED: usize = 40;
/// Runs of one plan: its second with made kernels is captured, the others are replayed.
const RUNS: usize = 5;

/// Programs whose kernels are compiled together.
const TOGETHER: usize = 32;
/// Threads, each with a stream of its own.
const THREADS: usize = 8;

struct Laws {
    backend: CudaBackend,
    tally: Mutex<Tally>,
}

#[derive(Default)]
struct Tally {
    checked: usize,
    broken: usize,
    /// Broken laws by op or kind.
    by_kind: BTreeMap<String, usize>,
}

impl Tally {
    fn add(&mut self, other: Tally) {
        self.checked += other.checked;
        self.broken += other.broken;
        for (kind, count) in other.by_kind {
            *self.by_kind.entry(kind).or_default() += count;
        }
    }
}

/// Judges results.
type Judge<'a> = Box<dyn Fn(&[HostTensor]) -> Result<(), String> + Send + 'a>;

/// One program with its inputs, and how its results are judged.
struct Case<'a> {
    kind: String,
    name: String,
    structure: Arc<Structure>,
    inputs: Vec<HostTensor>,
    slots: Vec<Slot>,
    judge: Judge<'a>,
}

fn upload(backend: &dyn Backend, t: &HostTensor) -> Buffer {
    backend.upload(&t.ty, HostBytes::Owned(Arc::new(t.data.clone()))).expect("upload")
}

/// Runs a plan on fresh inputs and downloads what comes out.
fn run(
    backend: &dyn Backend,
    plan: &dyn Plan,
    structure: &Structure,
    inputs: &[HostTensor],
    slots: &[Slot],
) -> Result<Vec<HostTensor>, PlanError> {
    let types = structure.check().expect("a checked program");
    let mut buffers: Vec<Buffer> = inputs.iter().map(|t| upload(backend, t)).collect();
    let outs = plan.run(&mut buffers, slots)?;
    let down = |(buffer, v): (&Buffer, &u32)| {
        let data = backend.download(buffer).map_err(|error| PlanError { instr: None, error })?;
        Ok(HostTensor { ty: types[*v as usize].clone(), data: data.to_vec() })
    };
    outs.iter().zip(&structure.outs).map(down).collect()
}

/// A structure of one instruction from a sample; numbers that must be slots are.
fn one(op: &Op, args: &[SampleArg], dies: bool) -> (Arc<Structure>, Vec<HostTensor>, Vec<Slot>) {
    let mut s = Structure::default();
    let (mut inputs, mut slots) = (Vec::new(), Vec::new());
    let mut list = Args::new();
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

/// The tolerance of every value: that of the coarsest type it was made from.
fn tolerances(structure: &Structure) -> Vec<(f64, f64)> {
    let types = structure.check().expect("a checked program");
    let mut out: Vec<(f64, f64)> = types.iter().map(|ty| tolerance(ty.dtype)).collect();
    let starts = structure.starts();
    for (i, instr) in structure.instrs.iter().enumerate() {
        for at in starts[i] as usize..starts[i + 1] as usize {
            // Operands in TF32 have as few digits as a half has; terms that cancel show it.
            if matches!(instr.op, Op::Matmul { tf32: true, .. }) {
                let coarse = tolerance(DType::BF16);
                out[at] = (out[at].0.max(coarse.0), out[at].1.max(coarse.1));
            }
            for arg in &instr.args {
                if let Arg::Value(v) = arg {
                    let from = out[*v as usize];
                    out[at] = (out[at].0.max(from.0), out[at].1.max(from.1));
                }
            }
        }
    }
    out
}

/// The first live-out whose bits differ.
fn differs(a: &[HostTensor], b: &[HostTensor]) -> Option<usize> {
    (0..a.len().max(b.len())).find(|&k| a.get(k).map(|t| &t.data) != b.get(k).map(|t| &t.data))
}

/// The first element whose bits differ, worded.
fn place(a: &HostTensor, b: &HostTensor) -> String {
    let (size, n) = (a.ty.dtype.size(), a.data.len().min(b.data.len()));
    let Some(at) = (0..n).find(|&i| a.data[i] != b.data[i]) else { return String::new() };
    let element = at / size * size..(at / size + 1) * size;
    format!(" at {}: {:02x?} and {:02x?}", at / size, &a.data[element.clone()], &b.data[element])
}

/// The same for each of some items, on a thread of its own: the reference takes seconds for attention.
fn on_each<T: Send, R: Send>(items: Vec<T>, f: impl Fn(T) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let f = &f;
        let threads: Vec<_> = items.into_iter().map(|item| scope.spawn(move || f(item))).collect();
        threads.into_iter().map(|thread| thread.join().expect("the reference runs it")).collect()
    })
}

impl Laws {
    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn note(&self, kind: &str, what: impl FnOnce() -> String) {
        let mut tally = self.tally();
        tally.broken += 1;
        *tally.by_kind.entry(kind.into()).or_default() += 1;
        if tally.broken <= PRINTED {
            let text: String = what().chars().take(3000).collect();
            println!("BROKEN {kind}: {text}");
        }
    }

    /// Runs something that may panic, and counts it.
    fn guarded(&self, kind: &str, name: &str, f: impl FnOnce()) {
        self.tally().checked += 1;
        if catch_unwind(AssertUnwindSafe(f)).is_err() {
            self.note(kind, || format!("{name}: panicked"));
        }
    }

    /// Programs by every way they can run.
    fn check(&self, cases: &[Case]) {
        let programs: Vec<Arc<Structure>> = cases.iter().map(|case| case.structure.clone()).collect();
        let made = catch_unwind(AssertUnwindSafe(|| self.backend.compile_all(&programs)));
        let Ok(made) = made else {
            let names: Vec<&str> = cases.iter().map(|case| &*case.name).collect();
            return self.note("compiling", || format!("one of these panicked: {}", names.join("; ")));
        };
        for (case, made) in cases.iter().zip(made) {
            self.guarded(&case.kind, &case.name, || match made {
                Ok(made) => self.every_way(case, &*made),
                Err(e) => self.note(&case.kind, || format!("{}: compile: {e}", case.name)),
            });
        }
    }

    /// One program by plain kernels, against the reference, then by made ones again and again.
    fn every_way(&self, case: &Case, made: &dyn Plan) {
        let Case { kind, name, structure, inputs, slots, judge } = case;
        let types = structure.check().expect("a checked program");
        let plain = match self.backend.compile(structure, &types, Effort::Quick) {
            Ok(plain) => plain,
            Err(e) => return self.note(kind, || format!("{name}: compile: {e}")),
        };
        let first = match run(&self.backend, &*plain, structure, inputs, slots) {
            Ok(outs) => outs,
            Err(e) => return self.note(kind, || format!("{name}: plain: {e:?}")),
        };
        if let Err(e) = judge(&first) {
            return self.note(kind, || format!("{name}: plain: {e}"));
        }
        let kind = format!("{kind}, made");
        for time in 0..RUNS {
            match run(&self.backend, made, structure, inputs, slots) {
                Ok(outs) => {
                    let Some(k) = differs(&first, &outs) else { continue };
                    let wrong = judge(&outs).err().unwrap_or_else(|| "within tolerance".into());
                    return self.note(&kind, || {
                        format!(
                            "{name}: run {time}: live-out {k} differs from plain{} ({wrong})\n{}",
                            place(&first[k], &outs[k]),
                            made.text()
                        )
                    });
                }
                Err(e) => return self.note(&kind, || format!("{name}: run {time}: {e:?}")),
            }
        }
    }

    /// Attention whose results go to products with the heads of a row beside each other, as large as kernels of its own
    /// need.
    fn attention(&self) {
        let cases = on_each(vec![DType::F32, DType::F16, DType::BF16], |dtype| {
            let program = format!(
                "in TENSOR[0] {dtype}[2, 4, 128, 64]
                 in TENSOR[1] {dtype}[2, 2, 128, 64]
                 in TENSOR[2] {dtype}[256, 24]
                 in TENSOR[3] {dtype}[2, 4, 128, 64]
                 in TENSOR[4] {dtype}[128, 8]
                 TENSOR[5], TENSOR[6] := ATTENTION{{causal=true}} TENSOR[0] TENSOR[1] TENSOR[1] 0.125
                 TENSOR[7] := PERMUTE{{perm=[0,2,1,3]}} TENSOR[5]
                 TENSOR[8] := RESHAPE{{shape=[256,256]}} TENSOR[7]
                 TENSOR[9] := MATMUL{{ta=false,tb=false}} TENSOR[8] TENSOR[2]
                 TENSOR[10], TENSOR[11], TENSOR[12] := ATTENTIONGRAD{{causal=true}} TENSOR[0] TENSOR[1] TENSOR[1] TENSOR[5] TENSOR[6] TENSOR[3] 0.125
                 TENSOR[13] := PERMUTE{{perm=[0,2,1,3]}} TENSOR[12]
                 TENSOR[14] := RESHAPE{{shape=[256,128]}} TENSOR[13]
                 TENSOR[15] := MATMUL{{ta=false,tb=false}} TENSOR[14] TENSOR[4]
                 out TENSOR[9]
                 out TENSOR[10]
                 out TENSOR[11]
                 out TENSOR[15]"
            );
            let structure = Arc::new(gt_ir::text::parse_structure(&program).expect("a program"));
            let wave = |shape: &[usize]| {
                let n: usize = shape.iter().product();
                let values: Vec<f64> = (0..n).map(|i| (i as f64 * 0.37).sin()).collect();
                HostTensor::from_f64s(dtype, shape, &values)
            };
            let inputs: Vec<HostTensor> = structure.inputs.iter().map(|i| wave(&i.ty.shape)).collect();
            let want = gt_ir::reference::run(&structure, &inputs, &[]).expect("the reference runs it");
            let (rtol, atol) = tolerance(dtype);
            // Sums of many terms, of results that were rounded.
            let judge = move |got: &[HostTensor]| {
                got.iter().zip(&want).try_for_each(|(g, w)| close(g, w, 4.0 * rtol, 40.0 * atol))
            };
            let (kind, name) = ("attention".into(), format!("attention between products, {dtype}"));
            let judge: Judge = Box::new(judge);
            Case { kind, name, structure, inputs, slots: Vec::new(), judge }
        });
        self.check(&cases);
    }

    /// Products with sums and relus behind them, with infinities, NaN and zeros of both signs among their terms.
    fn products(&self) {
        let sizes = [
            (7, 13, 5),
            (1, 64, 64),
            (64, 10, 500),
            (33, 65, 64),
            (128, 512, 784),
            (600, 1024, 1024),
            (1024, 2048, 2048),
        ];
        let (plain, turned) =
            ("ta=false,tb=false} TENSOR[0] TENSOR[1]", "ta=false,tb=true} TENSOR[0] TENSOR[4]");
        let behind = [
            (plain, "RELU TENSOR[5]", ""),
            ("ta=false,tb=false} TENSOR[0] TENSOR[1] TENSOR[3]", "RELU TENSOR[5]", ""),
            (plain, "ADD TENSOR[2] TENSOR[5]", ""),
            (plain, "ADD TENSOR[5] TENSOR[3]", "RELU TENSOR[6]"),
            (turned, "ADD TENSOR[5] TENSOR[2]", "RELU TENSOR[6]"),
            ("ta=false,tb=true,tf32=true} TENSOR[0] TENSOR[4]", "ADD TENSOR[5] TENSOR[2]", "RELU TENSOR[6]"),
        ];
        let all = [DType::F32, DType::F16, DType::BF16, DType::F64].into_iter().flat_map(|dtype| {
            sizes.into_iter().flat_map(move |size| behind.map(|lines| (dtype, size, lines)))
        });
        let cases = all.map(|(dtype, (m, n, k), (product, first, second))| {
            let last = if second.is_empty() { String::new() } else { format!("TENSOR[7] := {second}") };
            let program = format!(
                "in TENSOR[0] {dtype}[2, {m}, {k}]
                 in TENSOR[1] {dtype}[{k}, {n}]
                 in TENSOR[2] {dtype}[2, {m}, {n}]
                 in TENSOR[3] {dtype}[{n}]
                 in TENSOR[4] {dtype}[{n}, {k}]
                 TENSOR[5] := MATMUL{{{product}
                 TENSOR[6] := {first}
                 {last}
                 out TENSOR[{}]",
                if last.is_empty() { 6 } else { 7 }
            );
            let structure = Arc::new(gt_ir::text::parse_structure(&program).expect("a program"));
            let odd = |(i, input): (usize, &Input)| {
                let shape = &input.ty.shape;
                let value = |at: usize| match (i, at) {
                    (0, 3) => f64::INFINITY,
                    (0, at) if at / k == 1 => -0.0,
                    (0, at) if at / k == 2 => -1e-38,
                    (1 | 4, at) if at % 3 == 0 => 1e-20,
                    (1 | 4, 4) => f64::NAN,
                    (2 | 3, at) if at % 5 == 1 => -0.0,
                    (_, at) => ((at * 7 + i * 3) as f64 * 0.37).sin() / 8.0,
                };
                HostTensor::from_f64s(
                    dtype,
                    shape.clone(),
                    &(0..shape.numel()).map(value).collect::<Vec<_>>(),
                )
            };
            let inputs: Vec<HostTensor> = structure.inputs.iter().enumerate().map(odd).collect();
            // The reference would take minutes for the large ones, which are compared with themselves.
            let want = (m * n * k < 1 << 20).then(|| gt_ir::reference::run(&structure, &inputs, &[]));
            let want = want.map_or_else(Vec::new, |want| want.expect("the reference runs it"));
            let coarse = product.contains("tf32") && dtype == DType::F32;
            let (rtol, atol) = tolerance(if coarse { DType::F16 } else { dtype });
            let judge = move |got: &[HostTensor]| {
                got.iter().zip(&want).try_for_each(|(g, w)| close(g, w, 4.0 * rtol, 8.0 * atol))
            };
            let (kind, name) =
                ("product".into(), format!("{dtype} {m}x{n}x{k} {product}, {first}, {second}"));
            Case { kind, name, structure, inputs, slots: Vec::new(), judge: Box::new(judge) as Judge }
        });
        self.check(&cases.collect::<Vec<_>>());
    }

    /// Rows and columns that several blocks reduce, of values that are stored by the same kernel.
    fn long(&self) {
        let mut cases = Vec::new();
        for n in [3000, 9000, 32_000, 70_000] {
            for (shape, dims) in
                [(vec![n], "0"), (vec![3, n], "1"), (vec![n / 8, 8], "0,1"), (vec![n, 3], "0")]
            {
                for (reduce, dies) in [("SUM", ""), ("AMAX", ""), ("SUM", " dies")] {
                    let program = format!(
                        "in TENSOR[0] f32{shape:?}{dies}
                         in TENSOR[1] f32{shape:?}
                         TENSOR[2] := ADD TENSOR[0] TENSOR[1]
                         TENSOR[3] := MUL TENSOR[2] TENSOR[2]
                         TENSOR[4] := {reduce}{{dims=[{dims}],keepdim=true}} TENSOR[3]
                         TENSOR[5] := SUB TENSOR[3] TENSOR[4]
                         out TENSOR[2]
                         out TENSOR[4]
                         {}",
                        if n == 9000 { "out TENSOR[5]" } else { "" }
                    );
                    let structure = Arc::new(gt_ir::text::parse_structure(&program).expect("a program"));
                    let wave = |at: usize| {
                        let values: Vec<f64> =
                            (0..shape.iter().product()).map(|i| ((i * 3 + at) as f64 * 0.37).sin()).collect();
                        HostTensor::from_f64s(DType::F32, shape.clone(), &values)
                    };
                    let inputs = vec![wave(0), wave(1)];
                    let want =
                        gt_ir::reference::run(&structure, &inputs, &[]).expect("the reference runs it");
                    let judge = move |got: &[HostTensor]| {
                        got.iter().zip(&want).try_for_each(|(g, w)| close(g, w, 1e-4, 1e-2))
                    };
                    let name = format!("{reduce} of {shape:?} along {dims}{dies}");
                    let (kind, judge): (_, Judge) = ("long rows".into(), Box::new(judge));
                    cases.push(Case { kind, name, structure, inputs, slots: Vec::new(), judge });
                }
            }
        }
        self.check(&cases);
    }

    /// All samples in an order of `seed`'s, until time is up.
    fn samples(&self, seed: u64, end: Instant) {
        let mut all = sample::samples(7);
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        for i in (1..all.len()).rev() {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            all.swap(i, (state >> 33) as usize % (i + 1));
        }
        let (next, done) = (AtomicUsize::new(0), Mutex::new(BTreeSet::new()));
        self.on_threads(|| {
            while Instant::now() < end {
                let at = next.fetch_add(TOGETHER / 2, Ordering::Relaxed);
                let Some(rest) = all.get(at..).filter(|rest| !rest.is_empty()) else { return };
                let some = &rest[..rest.len().min(TOGETHER / 2)];
                self.check(&some.iter().flat_map(sample_cases).collect::<Vec<_>>());
                done.lock().expect("no panic under the lock").extend(some.iter().map(|s| s.op.text()));
            }
        });
        let checked = next.into_inner().min(all.len());
        let done = done.into_inner().expect("no panic under the lock");
        let ops: BTreeSet<_> = all.iter().map(|s| s.op.text()).collect();
        println!("samples: {checked} of {}, of {} of {} ops", all.len(), done.len(), ops.len());
        let left: Vec<String> = ops.difference(&done).map(|op| op.to_string()).collect();
        if !left.is_empty() {
            println!("  not reached: {}", left.join(", "));
        }
    }

    /// Random programs until time is up.
    fn random(&self, end: Instant) {
        let seed = std::env::var("GT_RANDOM_SEED").ok().and_then(|v| v.parse::<u64>().ok());
        if let Some(seed) = seed {
            return self.check(&random_case(seed).into_iter().collect::<Vec<_>>());
        }
        let next = AtomicU64::new(0);
        self.on_threads(|| {
            while Instant::now() < end {
                let at = next.fetch_add(TOGETHER as u64 / 4, Ordering::Relaxed);
                let cases = (at..at + TOGETHER as u64 / 4).filter_map(random_case);
                self.check(&cases.collect::<Vec<_>>());
            }
        });
        println!("random: {} programs", next.into_inner());
    }

    /// The same work on several threads, each a session of its own.
    fn on_threads(&self, work: impl Fn() + Sync) {
        std::thread::scope(|scope| {
            for session in 1..=THREADS as u64 {
                let (backend, work) = (&self.backend, &work);
                scope.spawn(move || {
                    backend.turn(session);
                    work();
                });
            }
        });
    }

    /// A bad index fails its program alone, with the reference's words, and harms no input.
    fn failures(&self) {
        let program = "
            in TENSOR[0] f32[6, 4] dies
            in TENSOR[1] i64[3]
            TENSOR[2] := TAKE{dim=0} TENSOR[0] TENSOR[1]
            TENSOR[3] := ADD TENSOR[0] 1.0
            out TENSOR[2]
            out TENSOR[3]";
        let structure = Arc::new(gt_ir::text::parse_structure(program).expect("a program"));
        let types = structure.check().expect("a checked program");
        let x = HostTensor::from_f64s(DType::F32, [6, 4], &(0..24).map(f64::from).collect::<Vec<_>>());
        let at = HostTensor::from_f64s(DType::I64, [3], &[1.0, 9.0, 2.0]);
        self.guarded("failure", "bad index", || {
            let laws = self;
            let plan = laws.backend.compile(&structure, &types, Effort::Quick).expect("a plan");
            let mut inputs = vec![upload(&laws.backend, &x), upload(&laws.backend, &at)];
            let error = plan.run(&mut inputs, &[]).err();
            let said = error.as_ref().map_or(String::new(), |e| e.error.to_string());
            let instr = error.and_then(|e| e.instr);
            let wanted = "TAKE: index 9 is out of bounds for dimension 0 with size 6";
            if said != wanted || instr != Some(0) {
                laws.note("failure", || format!("instr {instr:?}, {said:?}, expected {wanted:?}"));
            }
            if laws.backend.download(&inputs[0]).map_or(true, |b| *b != x.data) {
                laws.note("failure", || "an input was harmed".into());
            }
        });
    }
}

/// Attention of queries, keys and values that lie beside each other, as does its gradient, for the product behind it.
fn attention_joined() -> Vec<Case<'static>> {
    let all =
        [DType::F32, DType::F16, DType::BF16].into_iter().flat_map(|dtype| [4, 16, 64].map(|d| (dtype, d)));
    on_each(all.collect(), |(dtype, d)| joined_of(dtype, d))
}

fn joined_of(dtype: DType, d: usize) -> Case<'static> {
    let (wide, row) = (2 * d, 6 * d);
    let part = |at: usize, out: usize| {
        format!(
            "TENSOR[{out}] := SLICE{{dim=2,len={wide},step=1}} TENSOR[0] {}
             TENSOR[{}] := RESHAPE{{shape=[2,70,2,{d}]}} TENSOR[{out}]
             TENSOR[{}] := PERMUTE{{perm=[0,2,1,3]}} TENSOR[{}]",
            at * wide,
            out + 1,
            out + 2,
            out + 1
        )
    };
    let back = |from: usize, out: usize| {
        format!(
            "TENSOR[{out}] := PERMUTE{{perm=[0,2,1,3]}} TENSOR[{from}]
             TENSOR[{}] := RESHAPE{{shape=[140,{wide}]}} TENSOR[{out}]",
            out + 1
        )
    };
    let program = format!(
        "in TENSOR[0] {dtype}[2, 70, {row}]
         in TENSOR[1] {dtype}[2, 2, 70, {d}]
         in TENSOR[2] {dtype}[{row}, 9]
         {}
         {}
         {}
         TENSOR[12], TENSOR[13] := ATTENTION{{causal=true}} TENSOR[5] TENSOR[8] TENSOR[11] 0.25
         TENSOR[14], TENSOR[15], TENSOR[16] := ATTENTIONGRAD{{causal=true}} TENSOR[5] TENSOR[8] TENSOR[11] TENSOR[12] TENSOR[13] TENSOR[1] 0.25
         {}
         {}
         {}
         TENSOR[23] := CONCAT{{dim=1}} TENSOR[18] TENSOR[20] TENSOR[22]
         TENSOR[24] := MATMUL{{ta=false,tb=false}} TENSOR[23] TENSOR[2]
         out TENSOR[24]",
        part(0, 3),
        part(1, 6),
        part(2, 9),
        back(14, 17),
        back(15, 19),
        back(16, 21)
    );
    let structure = Arc::new(gt_ir::text::parse_structure(&program).expect("a program"));
    let wave = |shape: &[usize]| {
        let n: usize = shape.iter().product();
        HostTensor::from_f64s(dtype, shape, &(0..n).map(|i| (i as f64 * 0.37).sin()).collect::<Vec<_>>())
    };
    let inputs: Vec<HostTensor> = structure.inputs.iter().map(|i| wave(&i.ty.shape)).collect();
    let want = gt_ir::reference::run(&structure, &inputs, &[]).expect("the reference runs it");
    let (rtol, atol) = tolerance(dtype);
    let judge = move |got: &[HostTensor]| {
        got.iter().zip(&want).try_for_each(|(g, w)| close(g, w, 4.0 * rtol, 40.0 * atol))
    };
    let name = format!("attention beside each other, {dtype} heads of {d}");
    Case { kind: "attention".into(), name, structure, inputs, slots: Vec::new(), judge: Box::new(judge) }
}

/// Sizes of attention: batches, heads, heads of keys, rows, columns, the size of a head, and whether it is causal.
type Sizes = (usize, usize, usize, usize, usize, usize, bool);

/// Attention and its gradient alone, in the sizes that a library may take: heads that share keys, lengths that are no
/// multiples of a tile, rows of heads that lie apart.
fn attention_sizes() -> Vec<Case<'static>> {
    let sizes: [Sizes; 8] = [
        (2, 4, 2, 128, 128, 64, true),
        (2, 4, 4, 128, 128, 64, false),
        (1, 4, 1, 192, 256, 128, true),
        (2, 2, 2, 200, 200, 128, true),
        (1, 2, 1, 99, 333, 72, false),
        (3, 2, 1, 128, 128, 256, true),
        (1, 2, 2, 70, 384, 256, false),
        (1, 2, 1, 256, 128, 96, true),
    ];
    let all = [DType::BF16, DType::F16].into_iter().flat_map(|dtype| sizes.map(|size| (dtype, size)));
    on_each(all.collect(), |(dtype, size)| attention_of(dtype, size))
}

fn attention_of(dtype: DType, sizes: Sizes) -> Case<'static> {
    let (batch, heads, key_heads, rows, cols, d, causal) = sizes;
    let program = format!(
        "in TENSOR[0] {dtype}[{batch}, {rows}, {heads}, {d}]
         in TENSOR[1] {dtype}[{batch}, {cols}, {key_heads}, {d}]
         in TENSOR[2] {dtype}[{batch}, {key_heads}, {cols}, {d}]
         in TENSOR[3] {dtype}[{batch}, {heads}, {rows}, {d}]
         TENSOR[4] := PERMUTE{{perm=[0,2,1,3]}} TENSOR[0]
         TENSOR[5] := PERMUTE{{perm=[0,2,1,3]}} TENSOR[1]
         TENSOR[6], TENSOR[7] := ATTENTION{{causal={causal}}} TENSOR[4] TENSOR[5] TENSOR[2] 0.125
         TENSOR[8], TENSOR[9], TENSOR[10] := ATTENTIONGRAD{{causal={causal}}} TENSOR[4] TENSOR[5] TENSOR[2] TENSOR[6] TENSOR[7] TENSOR[3] 0.125
         out TENSOR[6]
         out TENSOR[7]
         out TENSOR[8]
         out TENSOR[9]
         out TENSOR[10]"
    );
    let structure = Arc::new(gt_ir::text::parse_structure(&program).expect("a program"));
    let wave = |(k, shape): (usize, &[usize])| {
        let value = |i: usize| ((i * 7 + k * 3) as f64 * 0.37).sin() + 0.3 * (i as f64 * 0.011).cos();
        let values: Vec<f64> = (0..shape.iter().product()).map(value).collect();
        HostTensor::from_f64s(dtype, shape, &values)
    };
    let shapes = structure.inputs.iter().map(|input| &input.ty.shape[..]);
    let inputs: Vec<HostTensor> = shapes.enumerate().map(wave).collect();
    let want = gt_ir::reference::run(&structure, &inputs, &[]).expect("the reference runs it");
    let (rtol, atol) = tolerance(dtype);
    // Gradients of keys and values are sums over the rows of all heads that share them.
    let wide = 4.0 * (rows * heads / key_heads) as f64 / 64.0;
    let judge = move |got: &[HostTensor]| {
        got.iter().zip(&want).try_for_each(|(g, w)| close(g, w, 4.0 * rtol, wide.max(4.0) * atol))
    };
    let name = format!("attention {dtype} {batch}x{heads}/{key_heads}x{rows}x{cols}x{d} causal {causal}");
    Case { kind: "attention".into(), name, structure, inputs, slots: Vec::new(), judge: Box::new(judge) }
}

/// A sample as programs of one instruction: its inputs live on, or die.
fn sample_cases(s: &sample::Sample) -> Vec<Case<'_>> {
    let Ok(want) = s.eval() else { return Vec::new() };
    let want = Arc::new(want);
    let case = |dies: bool| {
        let (structure, inputs, slots) = one(&s.op, &s.args, dies);
        let want = want.clone();
        let judge =
            move |got: &[HostTensor]| got.iter().zip(want.iter()).try_for_each(|(g, w)| close_by_dtype(g, w));
        let (kind, name) = (format!("sample {}", s.op.text()), s.describe());
        Case { kind, name, structure, inputs, slots, judge: Box::new(judge) }
    };
    [false, true].map(case).into()
}

/// A random program, judged by the coarsest type that each result was made from.
fn random_case(seed: u64) -> Option<Case<'static>> {
    let p: RandomProgram = sample::random_program(seed, 24);
    let want = gt_ir::reference::run(&p.structure, &p.inputs, &p.slots).ok()?;
    let structure = Arc::new(p.structure.clone());
    let (inputs, slots) = (p.inputs.clone(), p.slots.clone());
    let (tolerances, outs) = (tolerances(&structure), structure.outs.clone());
    let judge = move |got: &[HostTensor]| {
        for (k, (g, w)) in got.iter().zip(&want).enumerate() {
            let (rtol, atol) = tolerances[outs[k] as usize];
            close(g, w, 2.0 * rtol, 2.0 * atol).map_err(|e| format!("live-out {k}: {e}\n{}", p.text()))?;
        }
        Ok(())
    };
    let name = format!("program {seed}");
    Some(Case { kind: "random".into(), name, structure, inputs, slots, judge: Box::new(judge) })
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<u64>());
    let mut number = |otherwise: u64| match args.next() {
        None => Some(otherwise),
        Some(n) => n.ok(),
    };
    let (Some(seconds), Some(seed)) = (number(180), number(0)) else {
        println!("gpu_laws: expected a number of seconds and a seed");
        return ExitCode::from(2);
    };
    let backend = match CudaBackend::open(0) {
        Ok(backend) => backend,
        Err(error) => {
            println!("{error}");
            return ExitCode::from(2);
        }
    };
    println!("{}", backend.device());
    let laws = Laws { backend, tally: Mutex::default() };
    let begin = Instant::now();
    laws.failures();
    laws.products();
    println!("  products: {:.1} s", begin.elapsed().as_secs_f64());
    laws.attention();
    let mut sizes = attention_sizes();
    sizes.extend(attention_joined());
    for wish in [Wish::Own, Wish::Cudnn] {
        match CudaBackend::attending(0, CompileOptions::default(), wish) {
            Ok(backend) => {
                let theirs = Laws { backend, tally: Mutex::default() };
                theirs.check(&sizes);
                let theirs = std::mem::take(&mut *theirs.tally());
                println!("  attention {wish:?}: {} checked, {} broken", theirs.checked, theirs.broken);
                laws.tally().add(theirs);
            }
            Err(error) => laws.note("attention", || error.to_string()),
        }
    }
    laws.long();
    println!("  {:.1} s", begin.elapsed().as_secs_f64());
    // Their time begins here: how long attention takes depends on the processors that compute what it should give.
    let (start, budget) = (Instant::now(), Duration::from_secs(seconds));
    if std::env::var("GT_RANDOM_SEED").is_err() {
        laws.samples(seed, start + budget * 3 / 4);
        println!("  {:.1} s", start.elapsed().as_secs_f64());
    }
    laws.random(start + budget);
    let tally = laws.tally();
    println!("{} checked, {} broken, {:.1} s", tally.checked, tally.broken, begin.elapsed().as_secs_f64());
    for (kind, count) in &tally.by_kind {
        println!("  {count} x {kind}");
    }
    if tally.broken == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
