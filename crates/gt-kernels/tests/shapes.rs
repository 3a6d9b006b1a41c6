//! Shapes that random programs do not reach: long rows, reductions in several passes, many entries of a scatter, several
//! updates in one launch, and failures.

mod common;

use common::{Kernels, compiler, run};
use gt_compiler::{CompileOptions, Plan, compile};
use gt_ir::host::{HostTensor, close};
use gt_ir::{DType, Kind, Scalar, Slot, Structure, Ty, text};
use gt_kernels::Launches;

/// Numbers that look random, each type in a range that suits it; integers are indices below `below`.
fn tensor(ty: &Ty, seed: u64, below: i64) -> HostTensor {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as i64
    };
    let one = |x: i64| match ty.dtype.kind() {
        Kind::Float => Scalar::Float((x % 4001) as f64 / 1000.0 - 2.0),
        Kind::Int => Scalar::Int(x % below),
        Kind::Bool => Scalar::Bool(x % 2 == 0),
    };
    HostTensor::from_scalars(ty, (0..ty.shape.numel()).map(|_| one(next())))
}

fn made(step: usize, plan: &Plan) -> Launches {
    gt_kernels::made(step, plan).unwrap_or_else(|| gt_kernels::plain(step, plan))
}

struct Case {
    program: &'static str,
    /// Integers among the inputs lie below this.
    below: i64,
    /// Absolute error allowed, on top of a relative one of the type.
    error: f64,
}

const CASES: &[Case] = &[
    // Rows of one block, of two that stay in registers, and of several that are read again.
    Case {
        program: "in TENSOR[0] f32[3, 5000]\nTENSOR[1] := SOFTMAX{dim=1} TENSOR[0]\nout TENSOR[1]",
        below: 1,
        error: 1e-6,
    },
    Case {
        program: "in TENSOR[0] f32[2, 9001]\nTENSOR[1] := LOGSOFTMAX{dim=1} TENSOR[0]\nout TENSOR[1]",
        below: 1,
        error: 1e-4,
    },
    Case {
        program: "in TENSOR[0] bf16[2, 16000]\nTENSOR[1] := SOFTMAX{dim=1} TENSOR[0]\nout TENSOR[1]",
        below: 1,
        error: 1e-3,
    },
    Case {
        program: "in TENSOR[0] f32[2, 16384]\nin TENSOR[1] f32[16384]\nTENSOR[2] := RMSNORM{last=1} TENSOR[0] 0.001 TENSOR[1]\nout TENSOR[2]",
        below: 1,
        error: 1e-4,
    },
    Case {
        program: "in TENSOR[0] f64[5, 130]\nTENSOR[1] := LAYERNORM{last=1} TENSOR[0] 0.001\nout TENSOR[1]",
        below: 1,
        error: 1e-9,
    },
    // Whole tensors, in one pass and several.
    Case {
        program: "in TENSOR[0] f32[50, 3000]\nTENSOR[1] := MUL TENSOR[0] TENSOR[0]\nTENSOR[2] := SUM{dims=[0,1],keepdim=false} TENSOR[1]\nTENSOR[3] := AMAX{dims=[0,1],keepdim=false} TENSOR[0]\nout TENSOR[2]\nout TENSOR[3]",
        below: 1,
        error: 5.0,
    },
    Case {
        program: "in TENSOR[0] i32[20000]\nTENSOR[1] := SUM{dims=[0],keepdim=false} TENSOR[0]\nout TENSOR[1]",
        below: 1000,
        error: 0.0,
    },
    // Columns, side by side and not.
    Case {
        program: "in TENSOR[0] f32[700, 132]\nTENSOR[1] := EXP TENSOR[0]\nTENSOR[2] := SUM{dims=[0],keepdim=false} TENSOR[1]\nout TENSOR[1]\nout TENSOR[2]",
        below: 1,
        error: 0.02,
    },
    Case {
        program: "in TENSOR[0] f32[256, 40]\nTENSOR[1] := SUM{dims=[0],keepdim=false} TENSOR[0]\nout TENSOR[1]",
        below: 1,
        error: 1e-4,
    },
    Case {
        program: "in TENSOR[0] f16[300, 7]\nTENSOR[1] := AMIN{dims=[0],keepdim=false} TENSOR[0]\nout TENSOR[1]",
        below: 1,
        error: 0.0,
    },
    Case {
        program: "in TENSOR[0] f32[20, 30, 40]\nTENSOR[1] := SUM{dims=[0,2],keepdim=true} TENSOR[0]\nout TENSOR[1]",
        below: 1,
        error: 0.01,
    },
    Case {
        program: "in TENSOR[0] f32[20, 30, 40]\nTENSOR[1] := SUM{dims=[1],keepdim=true} TENSOR[0]\nout TENSOR[1]",
        below: 1,
        error: 0.01,
    },
    // Transposed operands: turned in tiles.
    Case {
        program: "in TENSOR[0] f32[3, 70, 90]\nin TENSOR[1] f32[3, 90, 70]\nTENSOR[2] := PERMUTE{perm=[0,2,1]} TENSOR[0]\nTENSOR[3] := SUB TENSOR[1] TENSOR[2]\nTENSOR[4] := MUL TENSOR[3] TENSOR[2]\nout TENSOR[3]\nout TENSOR[4]",
        below: 1,
        error: 0.0,
    },
    Case {
        program: "in TENSOR[0] bf16[33, 5, 129]\nTENSOR[1] := PERMUTE{perm=[2,1,0]} TENSOR[0]\nTENSOR[2] := FLIP{dims=[2]} TENSOR[1]\nTENSOR[3] := NEG TENSOR[2]\nout TENSOR[3]",
        below: 1,
        error: 0.0,
    },
    // Softmax across.
    Case {
        program: "in TENSOR[0] f32[3, 70, 40]\nTENSOR[1] := SOFTMAX{dim=1} TENSOR[0]\nout TENSOR[1]",
        below: 1,
        error: 1e-6,
    },
    // A slice whose start is known only when it runs, at a multiple of the vector and not.
    Case {
        program: "in TENSOR[0] bf16[9, 64]\nslot $0\nTENSOR[1] := SLICE{dim=1,len=32,step=1} TENSOR[0] $0\nTENSOR[2] := NEG TENSOR[1]\nout TENSOR[2]",
        below: 1,
        error: 0.0,
    },
    Case {
        program: "in TENSOR[0] bf16[9, 64]\nslot $0\nTENSOR[1] := SLICE{dim=1,len=32,step=1} TENSOR[0] $0\nTENSOR[2] := NEG TENSOR[1]\nout TENSOR[2]",
        below: 1,
        error: 0.0,
    },
    // Lines.
    Case {
        program: "in TENSOR[0] f32[2, 3000]\nTENSOR[1] := CUMSUM{dim=1} TENSOR[0]\nout TENSOR[1]",
        below: 1,
        error: 1e-3,
    },
    Case {
        program: "in TENSOR[0] i64[3, 1100, 2]\nTENSOR[1] := CUMSUM{dim=1} TENSOR[0]\nout TENSOR[1]",
        below: 1000,
        error: 0.0,
    },
    Case {
        program: "in TENSOR[0] f32[3, 3000]\nTENSOR[1] := ARGMAX{dim=1,keepdim=false} TENSOR[0]\nout TENSOR[1]",
        below: 1,
        error: 0.0,
    },
    Case {
        program: "in TENSOR[0] f32[2, 5000]\nTENSOR[1], TENSOR[2] := TOPK{dim=1,k=60,largest=false} TENSOR[0]\nout TENSOR[1]\nout TENSOR[2]",
        below: 1,
        error: 0.0,
    },
    Case {
        program: "in TENSOR[0] i16[9000]\nTENSOR[1], TENSOR[2] := TOPK{dim=0,k=100,largest=true} TENSOR[0]\nout TENSOR[1]\nout TENSOR[2]",
        below: 500,
        error: 0.0,
    },
    // Rows by index, and their gradients: many entries that meet.
    Case {
        program: "in TENSOR[0] bf16[50, 64]\nin TENSOR[1] i64[300]\nTENSOR[2] := TAKE{dim=0} TENSOR[0] TENSOR[1]\nout TENSOR[2]",
        below: 50,
        error: 0.0,
    },
    Case {
        program: "in TENSOR[0] f32[50, 64] dies\nin TENSOR[1] i32[300]\nin TENSOR[2] f32[300, 64]\nTENSOR[3] := TAKEPUT{dim=0,mode=add} TENSOR[0] TENSOR[1] TENSOR[2]\nout TENSOR[3]",
        below: 50,
        error: 1e-4,
    },
    Case {
        program: "in TENSOR[0] bf16[2, 7, 3]\nin TENSOR[1] i64[3000]\nin TENSOR[2] bf16[2, 3000, 3]\nTENSOR[3] := TAKEPUT{dim=1,mode=set} TENSOR[0] TENSOR[1] TENSOR[2]\nout TENSOR[3]",
        below: 7,
        error: 0.0,
    },
    Case {
        program: "in TENSOR[0] f16[200]\nin TENSOR[1] i64[2500]\nin TENSOR[2] f16[2500]\nTENSOR[3] := SCATTER{dim=0,mode=add} TENSOR[0] TENSOR[1] TENSOR[2]\nout TENSOR[3]",
        below: 200,
        error: 0.05,
    },
    Case {
        program: "in TENSOR[0] f32[4, 9, 90]\nin TENSOR[1] i64[3, 100, 80]\nin TENSOR[2] f32[3, 100, 80]\nTENSOR[3] := SCATTER{dim=1,mode=max} TENSOR[0] TENSOR[1] TENSOR[2]\nout TENSOR[3]",
        below: 9,
        error: 0.0,
    },
];

#[test]
fn large_shapes_equal_the_reference() {
    let Some(compiler) = compiler() else { return };
    let mut kernels = Kernels::plain(compiler);
    let only = std::env::var("GT_CASE").ok().and_then(|k| k.parse::<usize>().ok());
    let mut all = Vec::new();
    for (k, case) in CASES.iter().enumerate() {
        if only.is_some_and(|o| o != k) {
            continue;
        }
        let structure = text::parse_structure(case.program).unwrap_or_else(|e| panic!("case {k}: {e}"));
        let types = structure.check().unwrap_or_else(|e| panic!("case {k}: {e}"));
        for fuse in [true, false] {
            let options = CompileOptions {
                fuse,
                takes: |op, x| matches!(op, gt_ir::Op::Softmax { dim } if dim + 1 < x.shape.len()),
                ..Default::default()
            };
            all.push((k, case, structure.clone(), compile(&structure, &types, options).unwrap()));
        }
    }
    let launches: Vec<Launches> =
        all.iter().flat_map(|(_, _, _, plan)| (0..plan.steps.len()).map(|s| made(s, plan))).collect();
    kernels.add_made(compiler, &launches);
    let mut first: Option<(usize, Vec<HostTensor>)> = None;
    for (k, case, structure, plan) in &all {
        let inputs: Vec<HostTensor> = structure
            .inputs
            .iter()
            .enumerate()
            .map(|(i, x)| tensor(&x.ty, 7 + i as u64, case.below))
            .collect();
        // At a multiple of the vector, and not.
        let slots = vec![Slot::Num(Scalar::Int(if k % 2 == 0 { 8 } else { 9 })); structure.slots as usize];
        let want = gt_ir::reference::run(structure, &inputs, &slots).unwrap();
        for way in [&gt_kernels::plain as common::Way, &made] {
            let got = run(&kernels, plan, structure, &inputs, &slots, way).unwrap();
            for (g, w) in got.iter().zip(&want) {
                let (rtol, _) = gt_ir::host::tolerance(g.ty.dtype);
                if let Err(e) = close(g, w, rtol, case.error) {
                    panic!("case {k}: {e}\n{plan}");
                }
            }
            match &first {
                Some((of, bits)) if of == k => {
                    assert!(
                        got.iter().zip(bits).all(|(a, b)| a.data == b.data),
                        "case {k}: other bits\n{plan}"
                    )
                }
                _ => first = Some((*k, got)),
            }
        }
    }
}

#[test]
fn updates_together_equal_updates_alone() {
    let Some(compiler) = compiler() else { return };
    let mut kernels = Kernels::plain(compiler);
    let sizes: Vec<usize> = (0..150).map(|i| [1, 3, 77, 1024, 1500, 4096][i % 6]).collect();
    let mut program = String::new();
    for (i, n) in sizes.iter().enumerate() {
        program += &format!("in TENSOR[{}] f32[{n}] dies\nin TENSOR[{}] f32[{n}]\n", 2 * i, 2 * i + 1);
    }
    program += "slot $0\n";
    let mut next = 2 * sizes.len();
    let mut outs = String::new();
    for i in 0..sizes.len() {
        program += &format!("TENSOR[{next}] := MUL TENSOR[{}] $0\n", 2 * i + 1);
        program += &format!("TENSOR[{}] := SUB TENSOR[{}] TENSOR[{next}]\n", next + 1, 2 * i);
        outs += &format!("out TENSOR[{}]\n", next + 1);
        next += 2;
    }
    let structure = text::parse_structure(&(program + &outs)).unwrap();
    let plan = compile(&structure, &structure.check().unwrap(), CompileOptions::default()).unwrap();
    let steps: Vec<usize> = (0..plan.steps.len()).collect();
    let all = gt_kernels::together(&steps, &plan).expect("all steps are alike");
    assert!(all.list.len() <= 3, "{} launches", all.list.len());
    let alone: Vec<Launches> = steps.iter().map(|&s| made(s, &plan)).collect();
    kernels.add_made(compiler, &alone);
    kernels.add_made(compiler, std::slice::from_ref(&all));
    let inputs: Vec<HostTensor> =
        structure.inputs.iter().enumerate().map(|(i, x)| tensor(&x.ty, i as u64, 1)).collect();
    let slots = [Slot::Num(Scalar::Float(0.1))];
    let want = run(&kernels, &plan, &structure, &inputs, &slots, &made).unwrap();
    let first = |s: usize, _: &Plan| if s == 0 { all.clone() } else { Launches::default() };
    let got = run(&kernels, &plan, &structure, &inputs, &slots, &first).unwrap();
    assert!(got.iter().zip(&want).all(|(a, b)| a.data == b.data));
}

/// A failed check stops what would write over the program's own inputs.
#[test]
fn a_failure_leaves_inputs_alone() {
    let Some(compiler) = compiler() else { return };
    let mut kernels = Kernels::plain(compiler);
    let programs = [
        "in TENSOR[0] f32[6, 4] dies\nin TENSOR[1] i64[3]\nin TENSOR[2] f32[3, 4]\nTENSOR[3] := TAKEPUT{dim=0,mode=add} TENSOR[0] TENSOR[1] TENSOR[2]\nout TENSOR[3]",
        "in TENSOR[0] i32[3] dies\nin TENSOR[1] i32[3]\nTENSOR[2] := FLOORDIV TENSOR[0] TENSOR[1]\nout TENSOR[2]",
    ];
    for program in programs {
        let structure: Structure = text::parse_structure(program).unwrap();
        let plan = compile(&structure, &structure.check().unwrap(), CompileOptions::default()).unwrap();
        assert!(plan.storages.iter().any(|s| s.reuse.is_some()), "nothing is given away:\n{plan}");
        let launches: Vec<Launches> = (0..plan.steps.len()).map(|s| made(s, &plan)).collect();
        kernels.add_made(compiler, &launches);
        let mut inputs: Vec<HostTensor> = structure.inputs.iter().map(|x| tensor(&x.ty, 3, 3)).collect();
        let bad = if inputs[1].ty.dtype == DType::I64 { 6 } else { 0 };
        (0..3).for_each(|i| inputs[1].set(i, Scalar::Int(1)));
        for way in [&gt_kernels::plain as common::Way, &made] {
            assert!(run(&kernels, &plan, &structure, &inputs, &[], way).is_ok());
        }
        inputs[1].set(1, Scalar::Int(bad));
        let check = plan.steps.iter().position(|s| s.can_fail()).unwrap();
        for way in [&gt_kernels::plain as common::Way, &made] {
            assert_eq!(run(&kernels, &plan, &structure, &inputs, &[], way).err(), Some(check));
        }
    }
}

/// The prelude's own tanh stays within three units in the last place (where `exp2` is exact to one).
#[test]
fn tanh_is_as_exact_as_it_says() {
    let Some(compiler) = compiler() else { return };
    let kernels = Kernels::plain(compiler);
    let n = 20_001;
    let structure =
        text::parse_structure(&format!("in TENSOR[0] f32[{n}]\nTENSOR[1] := TANH TENSOR[0]\nout TENSOR[1]"))
            .unwrap();
    let plan = compile(&structure, &structure.check().unwrap(), CompileOptions::default()).unwrap();
    let xs: Vec<f64> = (0..n).map(|i| (i as f64 / 1000.0 - 10.0).powi(3) / 100.0).collect();
    let x = HostTensor::from_f64s(DType::F32, [n], &xs);
    let got = run(&kernels, &plan, &structure, std::slice::from_ref(&x), &[], &gt_kernels::plain).unwrap();
    for i in 0..n {
        let (x, y) = (x.get(i).as_f64(), got[0].get(i).as_f64());
        let want = x.tanh();
        let unit = (want as f32).abs().next_up() as f64 - (want as f32).abs() as f64;
        assert!((y - want).abs() <= 3.0 * unit, "tanh({x}) = {y}, expected {want}");
    }
}

/// More values at once than a short description holds, with rows and without.
#[test]
fn many_values_at_once() {
    let Some(compiler) = compiler() else { return };
    let mut kernels = Kernels::plain(compiler);
    const COUNT: usize = 18;
    for rows in [false, true] {
        let mut program: String = (0..COUNT).map(|i| format!("in TENSOR[{i}] f32[70, 6, 5]\n")).collect();
        let mut outs = String::new();
        let mut next = COUNT;
        let mut emit = |op: String, out: bool| {
            program += &format!("TENSOR[{next}] := {op}\n");
            if out {
                outs += &format!("out TENSOR[{next}]\n");
            }
            next += 1;
            next - 1
        };
        let mut last = 0;
        if rows {
            last = emit("SUM{dims=[2],keepdim=true} TENSOR[0]".into(), true);
        }
        for i in 1..COUNT {
            let turned = emit(format!("PERMUTE{{perm=[0,2,1]}} TENSOR[{i}]"), false);
            let back = emit(format!("RESHAPE{{shape=[70,6,5]}} TENSOR[{turned}]"), false);
            let mixed = if i % 2 == 0 { back } else { i };
            let sum = emit(format!("ADD TENSOR[{mixed}] TENSOR[{last}]"), true);
            last = emit(format!("MUL TENSOR[{sum}] 0.5"), true);
        }
        let structure = text::parse_structure(&(program + &outs)).unwrap();
        let plan = compile(&structure, &structure.check().unwrap(), CompileOptions::default()).unwrap();
        let plain: Vec<Launches> = (0..plan.steps.len()).map(|s| gt_kernels::plain(s, &plan)).collect();
        let is_long = |l: &gt_kernels::Launch| matches!(l.function, gt_kernels::Function::Plain(n) if n.ends_with("_long"));
        assert!(plain.iter().flat_map(|l| &l.list).any(is_long), "no long description:\n{plan}");
        let launches: Vec<Launches> = (0..plan.steps.len()).map(|s| made(s, &plan)).collect();
        kernels.add_made(compiler, &launches);
        let inputs: Vec<HostTensor> =
            structure.inputs.iter().enumerate().map(|(i, x)| tensor(&x.ty, i as u64, 1)).collect();
        let want = gt_ir::reference::run(&structure, &inputs, &[]).unwrap();
        let ways = [&gt_kernels::plain as common::Way, &made];
        let [a, b] = ways.map(|way| run(&kernels, &plan, &structure, &inputs, &[], way).unwrap());
        for ((a, b), w) in a.iter().zip(&b).zip(&want) {
            close(a, w, 1e-5, 1e-5).unwrap();
            assert_eq!(a.data, b.data, "plain and made");
        }
    }
}
