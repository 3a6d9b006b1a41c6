//! The laws of the op table on a GPU: every sample and random programs, against the reference; plain kernels and made
//! ones, step by step and as graphs, bit for bit.
//!
//! `cargo run --release -p gt-worker --example gpu_laws [SECONDS]`. One line for each law that breaks, then the counts; the
//! status says whether any did. `GT_RANDOM_SEED` replays one random program alone.

use gt_ir::host::{HostTensor, close, close_by_dtype, tolerance};
use gt_ir::program::{Arg, Args, Input, Instr};
use gt_ir::sample::{self, RandomProgram, SampleArg};
use gt_ir::{DType, Op, Slot, Structure};
use gt_worker::backend::{Backend, Buffer, Effort, HostBytes, Plan, PlanError};
use gt_worker::backends::cuda::CudaBackend;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Failures printed at most; the others are only counted.
const PRINTED: usize = 40;
/// Runs of one plan: its second with made kernels is captured, the others are replayed.
const RUNS: usize = 5;

struct Laws {
    backend: CudaBackend,
    checked: usize,
    broken: usize,
    /// Broken laws by op or kind.
    by_kind: BTreeMap<String, usize>,
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

impl Laws {
    fn note(&mut self, kind: &str, what: impl FnOnce() -> String) {
        self.broken += 1;
        *self.by_kind.entry(kind.into()).or_default() += 1;
        if self.broken <= PRINTED {
            let text = what();
            let text: String = text.chars().take(3000).collect();
            println!("BROKEN {kind}: {text}");
        }
    }

    /// Runs something that may panic, and counts it.
    fn guarded(&mut self, kind: &str, name: &str, f: impl FnOnce(&mut Laws)) {
        self.checked += 1;
        if catch_unwind(AssertUnwindSafe(|| f(self))).is_err() {
            self.note(kind, || format!("{name}: panicked"));
        }
    }

    /// One program by every way it can run, compared with `close_enough`.
    fn every_way(
        &mut self,
        kind: &str,
        name: &str,
        structure: &Arc<Structure>,
        (inputs, slots): (&[HostTensor], &[Slot]),
        close_enough: impl Fn(&[HostTensor]) -> Result<(), String>,
    ) {
        let types = structure.check().expect("a checked program");
        let plans = [Effort::Quick, Effort::Full].map(|e| self.backend.compile(structure, &types, e));
        let [plain, made] = match plans {
            [Ok(plain), Ok(made)] => [plain, made],
            [Err(e), _] | [_, Err(e)] => return self.note(kind, || format!("{name}: compile: {e}")),
        };
        let first = match run(&self.backend, &*plain, structure, inputs, slots) {
            Ok(outs) => outs,
            Err(e) => return self.note(kind, || format!("{name}: plain: {e:?}")),
        };
        if let Err(e) = close_enough(&first) {
            return self.note(kind, || format!("{name}: plain: {e}"));
        }
        for time in 0..RUNS {
            match run(&self.backend, &*made, structure, inputs, slots) {
                Ok(outs) => {
                    let Some(k) = differs(&first, &outs) else { continue };
                    let wrong = close_enough(&outs).err().unwrap_or_else(|| "within tolerance".into());
                    return self.note(&format!("{kind}, made"), || {
                        format!(
                            "{name}: run {time}: live-out {k} differs from plain ({wrong})\n{}",
                            made.text()
                        )
                    });
                }
                Err(e) => {
                    return self.note(&format!("{kind}, made"), || format!("{name}: run {time}: {e:?}"));
                }
            }
        }
    }

    fn samples(&mut self) {
        for s in sample::samples(7) {
            let name = s.describe();
            let kind = format!("sample {}", s.op.text());
            let Ok(want) = s.eval() else { continue };
            for dies in [false, true] {
                self.guarded(&kind, &name, |laws| {
                    let (structure, inputs, slots) = one(&s.op, &s.args, dies);
                    laws.every_way(&kind, &name, &structure, (&inputs, &slots), |got| {
                        got.iter().zip(&want).try_for_each(|(g, w)| close_by_dtype(g, w))
                    });
                });
            }
        }
    }

    fn random(&mut self, limit: Duration) {
        let seed = std::env::var("GT_RANDOM_SEED").ok().and_then(|v| v.parse::<u64>().ok());
        let start = Instant::now();
        for at in seed.unwrap_or(0).. {
            let p = sample::random_program(at, 24);
            self.guarded("random", &format!("program {at}"), |laws| laws.program(at, &p));
            if start.elapsed() > limit || seed.is_some() {
                return;
            }
        }
    }

    fn program(&mut self, seed: u64, p: &RandomProgram) {
        let structure = Arc::new(p.structure.clone());
        let tolerances = tolerances(&structure);
        let Ok(want) = gt_ir::reference::run(&structure, &p.inputs, &p.slots) else { return };
        let name = format!("program {seed}");
        self.every_way("random", &name, &structure, (&p.inputs, &p.slots), |got| {
            for (k, (g, w)) in got.iter().zip(&want).enumerate() {
                let (rtol, atol) = tolerances[structure.outs[k] as usize];
                close(g, w, 2.0 * rtol, 2.0 * atol)
                    .map_err(|e| format!("live-out {k}: {e}\n{}", p.text()))?;
            }
            Ok(())
        });
    }

    /// A bad index fails its program alone, with the reference's words, and harms no input.
    fn failures(&mut self) {
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
        self.guarded("failure", "bad index", |laws| {
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

fn main() -> ExitCode {
    let seconds = std::env::args().nth(1).and_then(|s| s.parse().ok()).unwrap_or(20);
    let backend = match CudaBackend::open(0) {
        Ok(backend) => backend,
        Err(error) => {
            println!("{error}");
            return ExitCode::from(2);
        }
    };
    println!("{}", backend.device());
    let mut laws = Laws { backend, checked: 0, broken: 0, by_kind: BTreeMap::new() };
    let start = Instant::now();
    for (name, law) in [("failures", Laws::failures as fn(&mut Laws)), ("samples", Laws::samples)] {
        law(&mut laws);
        println!("{name}: {} checked, {} broken, {:?}", laws.checked, laws.broken, start.elapsed());
    }
    laws.random(Duration::from_secs(seconds));
    println!("random: {} checked, {} broken, {:?}", laws.checked, laws.broken, start.elapsed());
    for (kind, count) in &laws.by_kind {
        println!("  {count} x {kind}");
    }
    if laws.broken == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
