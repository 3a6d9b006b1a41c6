//! Programs: random ones run, every one survives its text form and the wire, and no text makes the parser panic.

use gt_ir::program::{Arg, Input, Instr, Program, Slot, Structure, TensorId};
use gt_ir::sample::{RandomProgram, Rng, Sample, SampleArg, kinds, random_program, samples};
use gt_ir::{Scalar, reference, text};
use proptest::prelude::*;
use std::mem::discriminant;
use std::sync::Arc;

fn bind(rng: &mut Rng, structure: Structure, slots: Vec<Slot>) -> Program {
    let mut ids = |n: usize| -> Vec<TensorId> { (0..n).map(|_| TensorId(rng.bits())).collect() };
    let (inputs, outs, frees) = (ids(structure.inputs.len()), ids(structure.outs.len()), ids(2));
    Program { key: structure.key(), structure: Arc::new(structure), inputs, outs, slots, frees }
}

/// A program of one instruction.
fn alone(sample: &Sample) -> (Structure, Vec<Slot>) {
    let (mut s, mut slots) = (Structure::default(), Vec::new());
    let mut instr = Instr { op: sample.op.clone(), args: Default::default() };
    for (i, arg) in sample.args.iter().enumerate() {
        let slot = match arg {
            SampleArg::Val(v) => {
                instr.args.push(Arg::Value(s.inputs.len() as u32));
                s.inputs.push(Input { ty: v.ty.clone(), dies: i % 2 == 0 });
                continue;
            }
            SampleArg::Num(x) if !sample.op.slot_arg(i) => {
                instr.args.push(Arg::Const(*x));
                continue;
            }
            SampleArg::Num(x) => Slot::Num(*x),
            SampleArg::Data(bytes) => Slot::Data(Arc::new(bytes.clone())),
        };
        instr.args.push(Arg::Slot(slots.len() as u32));
        slots.push(slot);
    }
    let first = s.inputs.len() as u32;
    s.outs = (first..first + instr.results() as u32).collect();
    s.slots = slots.len() as u32;
    s.instrs.push(instr);
    (s, slots)
}

fn survives(program: &Program) {
    let types = program.structure.check().unwrap();
    program.check_binding(&types).unwrap();
    let written = text::to_text(program);
    let read = text::parse(&written).unwrap_or_else(|e| panic!("{e}\n{written}"));
    assert_eq!(&read, program, "{written}");
    assert_eq!(text::to_text(&read), written);
    let written = text::structure_to_text(&program.structure);
    let read = text::parse_structure(&written).unwrap_or_else(|e| panic!("{e}\n{written}"));
    assert_eq!(read, *program.structure, "{written}");
    let bytes = postcard::to_stdvec(program).unwrap();
    assert_eq!(&postcard::from_bytes::<Program>(&bytes).unwrap(), program);
}

#[test]
fn every_sample_survives_text_and_wire() {
    let mut rng = Rng::new(9);
    for sample in samples(5) {
        let (structure, slots) = alone(&sample);
        let inputs: Vec<_> = sample
            .args
            .iter()
            .filter_map(|a| if let SampleArg::Val(v) = a { Some(v.clone()) } else { None })
            .collect();
        let outs = reference::run(&structure, &inputs, &slots).unwrap();
        assert_eq!(outs, sample.eval().unwrap(), "{}", sample.describe());
        survives(&bind(&mut rng, structure, slots));
    }
}

#[test]
fn random_programs_run_and_survive_text_and_wire() {
    let mut rng = Rng::new(10);
    let mut missing = kinds();
    let mut instrs = 0;
    for seed in 0..60 {
        let RandomProgram { structure, inputs, slots } = random_program(seed, 30);
        let outs = reference::run(&structure, &inputs, &slots).unwrap();
        assert_eq!(outs.len(), structure.outs.len());
        for out in &outs {
            assert!(out.to_f64s().iter().all(|x| x.is_finite()));
        }
        instrs += structure.instrs.len();
        missing.retain(|k| !structure.instrs.iter().any(|i| discriminant(&i.op) == discriminant(k)));
        survives(&bind(&mut rng, structure, slots));
    }
    assert!(missing.is_empty(), "never drawn: {missing:?}");
    assert!(instrs > 1200, "{instrs}");
}

#[test]
fn numbers_keep_their_kind_and_bits() {
    let odd_nan = f64::from_bits(0xfff8_0000_0000_0001);
    let floats = [2.0, -0.0, 1e300, 5e-324, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, odd_nan, 1e16];
    let mut numbers: Vec<Scalar> = floats.map(Scalar::Float).to_vec();
    numbers.extend([i64::MIN, -7, 0, i64::MAX].map(Scalar::Int));
    numbers.extend([true, false].map(Scalar::Bool));
    let structure = Structure { slots: numbers.len() as u32, ..Default::default() };
    let program = bind(&mut Rng::new(1), structure, numbers.into_iter().map(Slot::Num).collect());
    survives(&program);
}

#[test]
fn errors_name_their_line() {
    let message = |text: &str| text::parse(text).unwrap_err().to_string();
    assert!(message("in TENSOR[0] f32[2] as 1\nTENSOR[1] := NEGG TENSOR[0]\n").contains("line 2"));
    assert!(message("in TENSOR[0] f32[2] as 1\n\nTENSOR[1] := ADD TENSOR[0] TENSOR[7]").contains("line 3"));
    assert!(message("TENSOR[0] := FULL{shape=[2],dtype=f32,dim=3} 1.0").contains("dim"));
    assert!(message("in TENSOR[0] f32[99999999999999, 99999999999999] as 1").contains("too large"));
    assert!(message("in TENSOR[0] f32[2] as 1\nout TENSOR[1] as 2").contains("line 2"));
    assert!(message("in TENSOR[0] f32[2]").contains("as ID"));
}

#[test]
fn a_program_reads_as_the_design_shows_it() {
    let text = "in TENSOR[0] f32[10, 10] as 4 dies\nin TENSOR[1] f32[10] as 9\nslot $0 = 17\n\
                TENSOR[2] := ADD TENSOR[0] TENSOR[1]\n\
                TENSOR[3] := SLICE{dim=0,len=4,step=1} TENSOR[2] $0\n\
                TENSOR[4] := MUL TENSOR[3] 2.0\nout TENSOR[4] as 1234\nfree 4\n";
    assert!(text::parse(text).is_err(), "a slice from 17 does not fit");
    let text = text.replace("= 17", "= 6");
    let program = text::parse(&text).unwrap();
    assert_eq!(text::to_text(&program), text);
    assert_eq!(program.log_lines().next().unwrap(), "TENSOR[2] := ADD TENSOR[0] TENSOR[1]");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_text_makes_the_parser_panic(text in "\\PC*") {
        let _ = text::parse(&text);
    }

    #[test]
    fn no_damaged_program_makes_the_parser_panic(seed in 0u64..40, at in any::<prop::sample::Index>(), new in "[\\[\\]{}=,$ \\n0-9A-Zé-]{0,3}", cut in 0usize..4) {
        let RandomProgram { structure, slots, .. } = random_program(seed, 12);
        let text = text::to_text(&bind(&mut Rng::new(seed), structure, slots));
        let i = at.index(text.len());
        let end = (i + cut).min(text.len());
        let damaged = format!("{}{new}{}", &text[..i], &text[end..]);
        if let Ok(program) = text::parse(&damaged) {
            let types = program.structure.check().unwrap();
            program.check_binding(&types).unwrap();
        }
    }
}
