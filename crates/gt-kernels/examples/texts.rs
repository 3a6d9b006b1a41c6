//! Writes the kernel texts of programs to files that NVRTC compiles: those of all samples of the op table, of random
//! programs, and of shapes that training steps have. `cargo run -p gt-kernels --example texts -- DIR [PROGRAMS]`; without a
//! DIR it prints the texts of a few large programs, and with `--plan FILE` the plan of a program in the text form (`gt replay
//! --text`), what is launched for each step, and the texts.

use gt_compiler::{CompileOptions, compile};
use gt_ir::program::{Arg, Args, Input, Instr};
use gt_ir::sample::{self, SampleArg};
use gt_ir::{Op, Structure, Ty, text};
use gt_kernels::{Function, Launches, PRELUDE};
use std::collections::BTreeMap;
use std::error::Error;

/// Kernels in a file: many in one cost little more than one.
const TOGETHER: usize = 40;

/// Fused and not.
const BOTH: [bool; 2] = [true, false];

type Texts = BTreeMap<String, String>;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let Some(folder) = args.next() else {
        let mut seen = Texts::new();
        for (name, program) in LARGE {
            let mut texts = Texts::new();
            add_structure(&text::parse_structure(program)?, &[true], &mut texts)?;
            println!("// {name}");
            texts.iter().filter(|(n, _)| !seen.contains_key(*n)).for_each(|(_, t)| println!("{t}"));
            seen.extend(texts);
        }
        return Ok(());
    };
    if folder == "--plan" {
        let program = std::fs::read_to_string(args.next().ok_or("--plan: expected a file")?)?;
        return print_plan(&program);
    }
    let programs: u64 = args.next().map_or(Ok(300), |n| n.parse())?;
    let mut texts = Texts::new();
    for (_, program) in LARGE {
        add_structure(&text::parse_structure(program)?, &BOTH, &mut texts)?;
    }
    for s in sample::samples(7) {
        add_structure(&of_sample(&s), &BOTH, &mut texts)?;
    }
    for seed in 0..programs {
        add_structure(&sample::random_program(seed, 24).structure, &BOTH, &mut texts)?;
    }
    std::fs::create_dir_all(&folder)?;
    for old in std::fs::read_dir(&folder)? {
        let path = old?.path();
        if path.extension().is_some_and(|e| e == "cu") {
            std::fs::remove_file(path)?;
        }
    }
    let all: Vec<&String> = texts.values().collect();
    for (k, part) in all.chunks(TOGETHER).enumerate() {
        let text: String = part.iter().map(|t| t.as_str()).collect();
        std::fs::write(format!("{folder}/texts{k:04}.cu"), format!("{PRELUDE}\n{text}"))?;
    }
    println!("{} kernels in {} files", all.len(), all.len().div_ceil(TOGETHER));
    Ok(())
}

/// As the cuda backend compiles.
fn options(fuse: bool) -> CompileOptions {
    let longest_row = 256 << 10;
    CompileOptions { fuse, longest_row, again: 8, free_math: true, one_hot: true, ..Default::default() }
}

/// A plan, its launches, and their texts.
fn print_plan(program: &str) -> Result<(), Box<dyn Error>> {
    let structure = text::parse(program)?.structure;
    let takes: fn(&Op, &Ty) -> bool = |op, _| matches!(op, Op::Attention { .. } | Op::AttentionGrad { .. });
    let plan = compile(&structure, &structure.check()?, CompileOptions { takes, ..options(true) })?;
    print!("/*\n{plan}");
    let mut texts = Texts::new();
    for step in 0..plan.steps.len() {
        let made = gt_kernels::made(step, &plan);
        let launches = made.unwrap_or_else(|| gt_kernels::plain(step, &plan));
        add(&launches, &mut texts);
        for launch in &launches.list {
            let name = match &launch.function {
                Function::Plain(name) => name,
                Function::Made { name, .. } => &**name,
            };
            println!("step {step}: {name} grid {} block {}", launch.grid[0], launch.block);
        }
    }
    println!("*/");
    texts.values().for_each(|t| println!("{t}"));
    Ok(())
}

/// The made kernels of a structure.
fn add_structure(structure: &Structure, fuse: &[bool], texts: &mut Texts) -> Result<(), Box<dyn Error>> {
    let types = structure.check()?;
    for &fuse in fuse {
        let plan = compile(structure, &types, options(fuse))?;
        for step in 0..plan.steps.len() {
            gt_kernels::made(step, &plan).iter().for_each(|l| add(l, texts));
        }
        let kernels: Vec<usize> =
            (0..plan.steps.len()).filter(|&s| gt_kernels::made(s, &plan).is_some()).collect();
        for pair in kernels.windows(2) {
            gt_kernels::together(pair, &plan).iter().for_each(|l| add(l, texts));
        }
    }
    Ok(())
}

fn add(launches: &Launches, texts: &mut Texts) {
    for launch in &launches.list {
        if let Function::Made { name, text } = &launch.function {
            texts.insert(name.to_string(), text.to_string());
        }
    }
}

/// A sample as a program of one instruction.
fn of_sample(s: &sample::Sample) -> Structure {
    let mut out = Structure::default();
    let mut args = Args::new();
    for (i, arg) in s.args.iter().enumerate() {
        args.push(match arg {
            SampleArg::Val(v) => {
                out.inputs.push(Input { ty: v.ty.clone(), dies: false });
                Arg::Value(out.inputs.len() as u32 - 1)
            }
            SampleArg::Num(x) if !s.op.slot_arg(i) => Arg::Const(*x),
            SampleArg::Num(_) | SampleArg::Data(_) => {
                out.slots += 1;
                Arg::Slot(out.slots - 1)
            }
        });
    }
    out.instrs.push(Instr { op: s.op.clone(), args });
    let starts = out.starts();
    out.outs = (starts[0]..starts[1]).collect();
    out
}

/// What benchmarks and training steps are made of.
const LARGE: [(&str, &str); 9] = [
    (
        "a chain of elementwise work",
        "in TENSOR[0] f32[8192, 8192]
         TENSOR[1] := MUL TENSOR[0] 2.0
         TENSOR[2] := ADD TENSOR[1] 1.0
         TENSOR[3] := RELU TENSOR[2]
         TENSOR[4] := MUL TENSOR[3] TENSOR[0]
         TENSOR[5] := ADD TENSOR[4] 0.5
         TENSOR[6] := TANH TENSOR[5]
         TENSOR[7] := SUB TENSOR[6] TENSOR[0]
         out TENSOR[7]",
    ),
    (
        "softmax",
        "in TENSOR[0] f32[8192, 8192]
         TENSOR[1] := SOFTMAX{dim=1} TENSOR[0]
         out TENSOR[1]",
    ),
    (
        "softmax of long rows in bf16",
        "in TENSOR[0] bf16[64, 16000]
         TENSOR[1] := LOGSOFTMAX{dim=1} TENSOR[0]
         out TENSOR[1]",
    ),
    (
        "RMS norm in bf16",
        "in TENSOR[0] bf16[8, 512, 512]
         in TENSOR[1] bf16[512]
         TENSOR[2] := RMSNORM{last=1} TENSOR[0] 0.000001 TENSOR[1]
         out TENSOR[2]",
    ),
    (
        "layer norm",
        "in TENSOR[0] f32[4096, 1024]
         in TENSOR[1] f32[1024]
         in TENSOR[2] f32[1024]
         TENSOR[3] := LAYERNORM{last=1} TENSOR[0] 0.00001 TENSOR[1] TENSOR[2]
         out TENSOR[3]",
    ),
    (
        "the gradient of a bias, and a loss",
        "in TENSOR[0] f32[4096, 4096]
         TENSOR[1] := SUM{dims=[0],keepdim=false} TENSOR[0]
         TENSOR[2] := MUL TENSOR[0] TENSOR[0]
         TENSOR[3] := SUM{dims=[0,1],keepdim=false} TENSOR[2]
         out TENSOR[1]
         out TENSOR[3]",
    ),
    (
        "a permuted copy",
        "in TENSOR[0] bf16[8, 512, 8, 64]
         TENSOR[1] := PERMUTE{perm=[0,2,1,3]} TENSOR[0]
         TENSOR[2] := NEG TENSOR[1]
         out TENSOR[2]",
    ),
    (
        "two updates in place",
        "in TENSOR[0] f32[1024, 512] dies
         in TENSOR[1] f32[1024, 512]
         in TENSOR[2] f32[77] dies
         in TENSOR[3] f32[77]
         slot $0
         TENSOR[4] := MUL TENSOR[1] $0
         TENSOR[5] := SUB TENSOR[0] TENSOR[4]
         TENSOR[6] := MUL TENSOR[3] $0
         TENSOR[7] := SUB TENSOR[2] TENSOR[6]
         out TENSOR[5]
         out TENSOR[7]",
    ),
    (
        "more elements than 32 bits can number",
        "in TENSOR[0] bf16[70000, 65536]
         in TENSOR[1] bf16[65536]
         slot $0
         TENSOR[2] := ADD TENSOR[0] TENSOR[1]
         TENSOR[3] := SOFTMAX{dim=1} TENSOR[2]
         TENSOR[4] := SUM{dims=[0],keepdim=false} TENSOR[2]
         TENSOR[5] := AMAX{dims=[0,1],keepdim=false} TENSOR[0]
         TENSOR[6] := PERMUTE{perm=[1,0]} TENSOR[0]
         TENSOR[7] := NEG TENSOR[6]
         TENSOR[8] := SLICE{dim=1,len=1000,step=1} TENSOR[0] $0
         TENSOR[9] := EXP TENSOR[8]
         out TENSOR[2]
         out TENSOR[3]
         out TENSOR[4]
         out TENSOR[5]
         out TENSOR[7]
         out TENSOR[9]",
    ),
];
