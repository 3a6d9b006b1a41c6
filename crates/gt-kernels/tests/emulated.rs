//! Kernels against the reference without a GPU: all samples and random programs, by plain kernels and by made ones, which
//! must agree bit for bit.

mod common;

use common::{Kernels, compiler, run};
use gt_compiler::{CompileOptions, Plan, compile};
use gt_ir::host::{HostTensor, close, tolerance};
use gt_ir::program::{Arg, Input, Instr};
use gt_ir::sample::{self, RandomProgram, SampleArg};
use gt_ir::{Op, Slot, Structure, Ty};
use gt_kernels::Launches;
use std::time::{Duration, Instant};

/// As the cuda backend compiles, but for attention, which has tests of its own.
fn options(fuse: bool) -> CompileOptions {
    let takes: fn(&Op, &Ty) -> bool = |op, x| match op {
        Op::Softmax { dim } | Op::LogSoftmax { dim } => dim + 1 < x.shape.len() || x.shape.len() > 2,
        _ => false,
    };
    CompileOptions {
        fuse,
        takes,
        again: 8,
        free_math: true,
        one_hot: true,
        epilogues: true,
        ..Default::default()
    }
}

/// Made kernels, where there are any.
fn made(step: usize, plan: &Plan) -> Launches {
    gt_kernels::made(step, plan).unwrap_or_else(|| gt_kernels::plain(step, plan))
}

/// A structure of one instruction from a sample; numbers that must be slots are.
fn one(op: &Op, args: &[SampleArg], dies: bool) -> RandomProgram {
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
                slots.push(Slot::Data(std::sync::Arc::new(bytes.clone())));
                Arg::Slot(slots.len() as u32 - 1)
            }
        });
    }
    s.slots = slots.len() as u32;
    s.instrs.push(Instr { op: op.clone(), args: list });
    let starts = s.starts();
    s.outs = (starts[0]..starts[1]).collect();
    RandomProgram { structure: s, inputs, slots }
}

/// The tolerance of every value: that of the coarsest type it was made from.
fn tolerances(structure: &Structure) -> Vec<(f64, f64)> {
    let types = structure.check().unwrap();
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

fn planned(p: &RandomProgram, fuse: bool) -> Plan {
    compile(&p.structure, &p.structure.check().unwrap(), options(fuse)).unwrap()
}

/// What is wrong with a program, if anything.
fn wrong(
    kernels: &Kernels,
    p: &RandomProgram,
    fuses: &[bool],
    with_made: bool,
    want: &[HostTensor],
) -> Option<String> {
    let tolerances = tolerances(&p.structure);
    let mut first: Option<Vec<HostTensor>> = None;
    for &fuse in fuses {
        let plan = planned(p, fuse);
        let ways = [("plain", &gt_kernels::plain as common::Way), ("made", &made)];
        for (name, way) in ways.into_iter().take(1 + with_made as usize) {
            let what = format!("{name}{}", if fuse { "" } else { " unfused" });
            let got = match run(kernels, &plan, &p.structure, &p.inputs, &p.slots, way) {
                Ok(got) => got,
                Err(step) => return Some(format!("{what}: step {step} failed\n{plan}")),
            };
            for (k, (g, w)) in got.iter().zip(want).enumerate() {
                let (rtol, atol) = tolerances[p.structure.outs[k] as usize];
                if let Err(e) = close(g, w, 2.0 * rtol, 2.0 * atol) {
                    return Some(format!("{what}, live-out {k}: {e}\n{plan}"));
                }
            }
            match &first {
                None => first = Some(got),
                Some(first) => {
                    for (k, (a, b)) in first.iter().zip(&got).enumerate() {
                        if a.data != b.data {
                            let e = close(a, b, 0.0, 0.0).err();
                            return Some(format!("{what} and plain differ, live-out {k}: {e:?}\n{plan}"));
                        }
                    }
                }
            }
        }
    }
    None
}

/// Compiles the made kernels of all programs together.
fn prepare(kernels: &mut Kernels, compiler: &str, fuses: &[bool], programs: &[RandomProgram]) {
    let mut all = Vec::new();
    for p in programs {
        for &fuse in fuses {
            let plan = planned(p, fuse);
            all.extend((0..plan.steps.len()).filter_map(|s| gt_kernels::made(s, &plan)));
        }
    }
    kernels.add_made(compiler, &all);
}

#[test]
fn every_sample_equals_the_reference() {
    let Some(compiler) = compiler() else { return };
    let mut kernels = Kernels::plain(compiler);
    let samples = sample::samples(7);
    let only = std::env::var("GT_SAMPLE").ok();
    let mut programs = Vec::new();
    let mut wants = Vec::new();
    for (k, s) in samples.iter().enumerate() {
        if only.as_ref().is_some_and(|o| !s.describe().contains(o.as_str())) {
            continue;
        }
        programs.push(one(&s.op, &s.args, k % 2 == 0));
        wants.push((s.eval().unwrap(), s.describe()));
    }
    assert!(only.is_some() || programs.len() > 200);
    // Plain kernels run all samples; made ones as many as time allows, a few of every op first.
    let seconds = std::env::var("GT_RANDOM_SECONDS").ok().and_then(|v| v.parse().ok()).unwrap_or(2);
    let (start, limit) = (Instant::now(), Duration::from_secs(30 + 4 * seconds));
    let mut order: Vec<usize> = (0..programs.len()).collect();
    order.sort_by_key(|k| (k % 7, *k));
    let mut tried = 0;
    for part in order.chunks(48) {
        let in_time = start.elapsed() < limit;
        if in_time {
            let some: Vec<RandomProgram> = part.iter().map(|&k| programs[k].clone()).collect();
            prepare(&mut kernels, compiler, &[true], &some);
            tried += part.len();
        }
        for &k in part {
            let (want, name) = &wants[k];
            if let Some(e) = wrong(&kernels, &programs[k], &[true], in_time, want) {
                panic!("{name}: {e}");
            }
        }
    }
    eprintln!("{} samples, {tried} of them by made kernels too", programs.len());
}

/// Random programs for as long as `GT_RANDOM_SECONDS` says (2 unless set); `GT_RANDOM_SEED` replays one alone.
#[test]
fn random_programs_equal_the_reference() {
    let Some(compiler) = compiler() else { return };
    let mut kernels = Kernels::plain(compiler);
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let (first, alone) = (number("GT_RANDOM_SEED").unwrap_or(0), number("GT_RANDOM_SEED").is_some());
    let limit = Duration::from_secs(number("GT_RANDOM_SECONDS").unwrap_or(2));
    let batch = if alone { 1 } else { 8 };
    let (start, mut seed, mut done) = (Instant::now(), first, 0);
    while done == 0 || (start.elapsed() < limit && !alone) {
        let programs: Vec<RandomProgram> =
            (seed..seed + batch).map(|s| sample::random_program(s, 24)).collect();
        prepare(&mut kernels, compiler, &[true, false], &programs);
        for (k, p) in programs.iter().enumerate() {
            let want = gt_ir::reference::run(&p.structure, &p.inputs, &p.slots).unwrap();
            if let Some(e) = wrong(&kernels, p, &[true, false], true, &want) {
                panic!("program {}: {e}\n{}", seed + k as u64, p.text());
            }
            done += 1;
        }
        seed += batch;
    }
    eprintln!("{done} random programs");
}
