//! Proves that plans fit CUDA: a plan with a cuBLASLt matmul and generated kernels, its intermediates in one arena,
//! is captured as a graph, replayed with other slots and inputs, and gives the reference's answer.
//!
//! `cargo run -p gt-worker --example cuda_smoke`; with `--text` it only prints plans and kernels, and needs no GPU.

mod device;
mod graph;
mod kernel_text;
mod matmul;
mod prepare;

use device::{Device, Memory};
use graph::Graph;
use gt_compiler::{CompileOptions, Place, Plan, compile};
use gt_ir::host::close_by_dtype;
use gt_ir::{HostTensor, Scalar, Slot, Structure, Ty, reference, text};
use matmul::Library;
use prepare::{GUARD, Prepared, plan_text};
use std::process::ExitCode;
use std::time::Instant;

pub type Res<T> = Result<T, Box<dyn std::error::Error>>;

struct Case {
    name: &'static str,
    program: &'static str,
    /// The slots of each round.
    slots: [&'static [Scalar]; 5],
}

const fn f(x: f64) -> Scalar {
    Scalar::Float(x)
}

const fn i(x: i64) -> Scalar {
    Scalar::Int(x)
}

const CASES: [Case; 4] = [
    Case {
        name: "linear layer, f32",
        program: "
            in TENSOR[0] f32[96, 80]
            in TENSOR[1] f32[48, 80]
            in TENSOR[2] f32[48]
            slot $0
            TENSOR[3] := MATMUL{ta=false,tb=true} TENSOR[0] TENSOR[1] TENSOR[2]
            TENSOR[4] := GELU TENSOR[3]
            TENSOR[5] := MUL TENSOR[4] $0
            TENSOR[6] := ADD TENSOR[5] TENSOR[2]
            out TENSOR[6]",
        slots: [&[f(0.5)], &[f(1.5)], &[f(-2.0)], &[f(0.1)], &[f(3.0)]],
    },
    Case {
        name: "linear layer, bf16",
        program: "
            in TENSOR[0] bf16[96, 80]
            in TENSOR[1] bf16[48, 80]
            in TENSOR[2] bf16[48]
            slot $0
            TENSOR[3] := MATMUL{ta=false,tb=true} TENSOR[0] TENSOR[1] TENSOR[2]
            TENSOR[4] := GELU TENSOR[3]
            TENSOR[5] := MUL TENSOR[4] $0
            TENSOR[6] := ADD TENSOR[5] TENSOR[2]
            out TENSOR[6]",
        slots: [&[f(0.5)], &[f(1.5)], &[f(-2.0)], &[f(0.1)], &[f(3.0)]],
    },
    Case {
        name: "three intermediates in two places, a slice start in a slot",
        program: "
            in TENSOR[0] f32[70, 33]
            in TENSOR[1] f32[33, 50]
            slot $0
            slot $1
            TENSOR[2] := GT TENSOR[0] $0
            TENSOR[3] := EXP TENSOR[0]
            TENSOR[4] := WHERE TENSOR[2] TENSOR[3] TENSOR[0]
            TENSOR[5] := MATMUL{ta=false,tb=false} TENSOR[4] TENSOR[1]
            TENSOR[6] := MATMUL{ta=false,tb=true} TENSOR[5] TENSOR[1]
            TENSOR[7] := SLICE{dim=0,len=40,step=1} TENSOR[6] $1
            TENSOR[8] := TANH TENSOR[7]
            TENSOR[9] := SUB TENSOR[8] $0
            out TENSOR[9]",
        slots: [&[f(0.2), i(3)], &[f(0.0), i(30)], &[f(-0.3), i(0)], &[f(0.4), i(17)], &[f(0.1), i(29)]],
    },
    Case {
        name: "update in place",
        program: "
            in TENSOR[0] f32[33, 50] dies
            in TENSOR[1] f32[70, 33]
            in TENSOR[2] f32[70, 50]
            slot $0
            TENSOR[3] := MATMUL{ta=true,tb=false} TENSOR[1] TENSOR[2]
            TENSOR[4] := MUL TENSOR[3] $0
            TENSOR[5] := SUB TENSOR[0] TENSOR[4]
            out TENSOR[5]",
        slots: [&[f(0.1)], &[f(0.2)], &[f(-0.3)], &[f(0.05)], &[f(0.15)]],
    },
];

/// How each round reaches the device.
const ROUNDS: [&str; 5] = [
    "step by step",
    "captured as a graph",
    "replayed with other slots and inputs",
    "re-captured at other addresses, same graph updated",
    "replayed there with other slots and inputs",
];

fn main() -> ExitCode {
    match run(std::env::args().any(|arg| arg == "--text")) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cuda_smoke: {error}");
            ExitCode::FAILURE
        }
    }
}

/// True if every check passed.
fn run(only_text: bool) -> Res<bool> {
    let mut plans = Vec::new();
    for case in &CASES {
        let structure = text::parse_structure(case.program)?;
        let plan = compile(&structure, &structure.check()?, CompileOptions::default())?;
        plans.push((case, structure, plan));
    }
    if only_text {
        for (case, _, plan) in &plans {
            println!("// {}", case.name);
            plan.to_string().lines().for_each(|line| println!("// {line}"));
            plan_text(plan)?.iter().for_each(|(_, kernel)| println!("{}", kernel.text));
        }
        return Ok(true);
    }
    let Some(device) = Device::find()? else {
        println!("no NVIDIA driver found: nothing to test");
        return Ok(true);
    };
    println!("device: {}, {}", device.name()?, device.arch);
    let library = Library::load(&device)?;
    let mut passed = true;
    for (case, structure, plan) in &plans {
        println!("{}: plan of {} steps, arena of {} bytes", case.name, plan.steps.len(), plan.arena);
        passed &= Trial { device: &device, library: &library, structure, plan }.rounds(case)?;
    }
    println!("{}", if passed { "all checks passed" } else { "FAILED" });
    Ok(passed)
}

/// One plan on the device beside its reference.
struct Trial<'a> {
    device: &'a Device,
    library: &'a Library,
    structure: &'a Structure,
    plan: &'a Plan,
}

impl Trial<'_> {
    fn rounds(&self, case: &Case) -> Res<bool> {
        let prepared = Prepared::new(self.device, self.library, self.plan)?;
        let mut random = Random(case.name.len() as u64);
        let mut graph: Option<Graph> = None;
        let (mut inputs, mut outs) = self.allocate()?;
        let mut last: Option<HostTensor> = None;
        let mut passed = true;
        for (round, slots) in case.slots.iter().enumerate() {
            let slots: Vec<Slot> = slots.iter().map(|&x| Slot::Num(x)).collect();
            let moved = round == 3;
            // Kept until this round is over, so that the new memory lies elsewhere.
            let mut _old = None;
            if moved {
                _old = Some((inputs, outs));
                (inputs, outs) = self.allocate()?;
            }
            let mut host: Vec<HostTensor> =
                self.structure.inputs.iter().map(|input| random.tensor(&input.ty)).collect();
            for (i, memory) in inputs.iter().enumerate() {
                match (&last, self.donated(i)) {
                    // The last round left its result here.
                    (Some(result), true) => {
                        host[i] = result.clone();
                        if moved {
                            memory.write(&result.data)?;
                        }
                    }
                    _ => memory.write(&host[i].data)?,
                }
            }
            let addresses = prepared.addresses(&inputs, &outs);
            prepared.arena.fill(POISON)?;
            outs.iter().try_for_each(|m| m.fill(POISON))?;
            match (&graph, round) {
                (_, 0) => prepared.run(&addresses, &slots)?,
                (None, _) => graph = Some(Graph::new(prepared.capture(&addresses, &slots)?)?),
                (Some(graph), 3) => graph.update(&prepared.capture(&addresses, &slots)?)?,
                (Some(graph), _) => prepared.set_slots(graph, &addresses, &slots)?,
            }
            if let Some(graph) = &graph {
                graph.launch(&self.device.stream)?;
            }
            self.device.stream.synchronize()?;
            let wanted = reference::run(self.structure, &host, &slots).map_err(|(_, error)| error)?.remove(0);
            let out = self.plan.outs[0] as usize;
            let memory = match self.plan.storages[out].reuse {
                Some(i) => &inputs[i as usize],
                None => &outs[0],
            };
            let got = HostTensor { ty: wanted.ty.clone(), data: memory.read()? };
            let guard = prepared.arena.read()?.split_off(self.plan.arena);
            passed &= report(ROUNDS[round], &got, &wanted, last.as_ref(), guard == [POISON; GUARD]);
            last = Some(got);
        }
        if let Some(graph) = &graph {
            let addresses = prepared.addresses(&inputs, &outs);
            let slots: Vec<Slot> = case.slots[0].iter().map(|&x| Slot::Num(x)).collect();
            self.times(&prepared, graph, &addresses, &slots)?;
        }
        Ok(passed)
    }

    /// True if the result is written over this input.
    fn donated(&self, input: usize) -> bool {
        self.plan.storages.iter().any(|s| s.reuse == Some(input as u32))
    }

    /// Memory for inputs, and for live-outs that have their own.
    fn allocate(&self) -> Res<(Vec<Memory>, Vec<Memory>)> {
        let of = |place: fn(&Place) -> bool| {
            let own = self.plan.storages.iter().filter(move |s| place(&s.place) && s.reuse.is_none());
            own.map(|s| self.device.alloc(s.bytes)).collect::<Res<Vec<Memory>>>()
        };
        Ok((of(|p| matches!(p, Place::Input(_)))?, of(|p| matches!(p, Place::Out))?))
    }

    /// Prints what replaying and changing the graph cost.
    fn times(&self, prepared: &Prepared, graph: &Graph, addresses: &[u64], slots: &[Slot]) -> Res<()> {
        let stream = &self.device.stream;
        let replay = median(|| {
            graph.launch(stream)?;
            Ok(stream.synchronize()?)
        })?;
        let plain = median(|| {
            prepared.run(addresses, slots)?;
            Ok(stream.synchronize()?)
        })?;
        let set = median(|| prepared.set_slots(graph, addresses, slots))?;
        let again = median(|| graph.update(&prepared.capture(addresses, slots)?))?;
        let nodes = prepared.capture(addresses, slots)?.len()?;
        println!(
            "  time  replay and wait {replay:.1} us ({nodes} nodes), step by step {plain:.1} us, \
             set slots {set:.1} us, capture and update {again:.1} us"
        );
        Ok(())
    }
}

/// Fills what a run must write; as a float of any type it is NaN.
const POISON: u8 = 0xff;

/// Prints one check. The answer must be the reference's, and not that of the round before.
fn report(
    what: &str,
    got: &HostTensor,
    wanted: &HostTensor,
    last: Option<&HostTensor>,
    guarded: bool,
) -> bool {
    let same = close_by_dtype(got, wanted);
    let stale = last.is_some_and(|last| close_by_dtype(last, wanted).is_ok());
    let gap = |(x, y): (f64, f64)| if x.is_nan() { f64::INFINITY } else { (x - y).abs() };
    let difference = got.to_f64s().into_iter().zip(wanted.to_f64s()).map(gap).fold(0.0, f64::max);
    let passed = same.is_ok() && !stale && guarded;
    println!("  {} {what}: max difference {difference:.2e}", if passed { "ok   " } else { "WRONG" });
    if let Err(message) = same {
        println!("        {message}");
    }
    if stale {
        println!("        the reference's answer is that of the round before: the check could not fail");
    }
    if !guarded {
        println!("        bytes behind the arena were overwritten");
    }
    passed
}

/// The median time of a hundred runs, in microseconds.
fn median(mut run: impl FnMut() -> Res<()>) -> Res<f64> {
    let mut times = Vec::with_capacity(100);
    for _ in 0..100 {
        let start = Instant::now();
        run()?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Splitmix64.
struct Random(u64);

impl Random {
    /// Uniform in [-0.5, 0.5).
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64 - 0.5
    }

    fn tensor(&mut self, ty: &Ty) -> HostTensor {
        HostTensor::from_scalars(ty, (0..ty.shape.numel()).map(|_| Scalar::Float(self.next())))
    }
}
