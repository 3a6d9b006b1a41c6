//! The list of attention kernels that ship compiled is the one that usual problems ask for. `GT_BLESS=1` writes it anew.

use gt_compiler::{Attention, AttentionGrad, Map, Num, Place, Plan, Step, Storage, Tensor, Work};
use gt_ir::{DType, Scalar, Shape};
use gt_kernels::Function;
use gt_kernels::attention::{Target, special};
use std::collections::BTreeMap;

const HEAD: &str = "\
// Kernels of attention that ship compiled. Made by `GT_BLESS=1 cargo test -p gt-kernels --test shipped`.
";

/// One head size, type and length: forward and backward as steps of a plan.
fn plan(dtype: DType, batch: usize, rows: usize, d: usize, causal: bool) -> Plan {
    let shape: Shape = [batch, 8, rows, d].into();
    let tensor = |storage| Tensor { storage, dtype, map: Map::dense(&shape), shape: shape.clone() };
    let lines: Shape = shape[..3].into();
    let lse = Tensor { storage: 4, dtype: DType::F32, map: Map::dense(&lines), shape: lines };
    let [q, k, v, out, dout, dq, dk, dv] = [0, 1, 2, 3, 5, 6, 7, 8].map(tensor);
    let scale = Num::Const(Scalar::Float(0.125));
    let (a, b, c, to) = (q.clone(), k.clone(), v.clone(), out.clone());
    let forward = Attention { causal, q: a, k: b, v: c, scale, mask: None, out: to, lse: 4 };
    let backward = AttentionGrad { causal, q, k, v, out, lse, dout, scale, mask: None, dq, dk, dv };
    let works = [Work::Attention(Box::new(forward)), Work::AttentionGrad(Box::new(backward))];
    let storage = Storage { bytes: 0, place: Place::Input(0), reuse: None };
    Plan {
        storages: vec![storage; 9],
        steps: works.into_iter().map(|work| Step { instr: 0, fused: Default::default(), work }).collect(),
        outs: vec![],
        arena: 0,
    }
}

/// The last function of a text, which calls what stands before it.
fn entry(text: &str) -> &str {
    &text[text.rfind("extern \"C\"").expect("a kernel")..]
}

fn list() -> String {
    // By group and name: what it is compiled for, and the kernel.
    let mut found: BTreeMap<(String, String), (Vec<&str>, String)> = BTreeMap::new();
    let targets: [(bool, &[&str]); 2] = [(false, &["sm_80", "sm_100"]), (true, &["sm_90a"])];
    for dtype in [DType::BF16, DType::F16, DType::F32] {
        for d in [64, 128] {
            for causal in [false, true] {
                // From too few tiles for a device to many.
                for (batch, rows) in [(1, 256), (1, 512), (1, 1024), (2, 1024), (8, 1024)] {
                    let plan = plan(dtype, batch, rows, d, causal);
                    for (hopper, archs) in targets {
                        let target = Target { hopper, ..Target::default() };
                        for step in &plan.steps {
                            for launch in special(&step.work, &plan, target).expect("kernels").list {
                                let Function::Made { name, text } = launch.function else {
                                    panic!("a plain kernel")
                                };
                                let key = (format!("{dtype}_{d}"), name.to_string());
                                let new = || (Vec::new(), entry(&text).to_string());
                                let (known, _) = found.entry(key).or_insert_with(new);
                                archs.iter().for_each(|a| known.push(a));
                            }
                        }
                    }
                }
            }
        }
    }
    let mut out = HEAD.to_string();
    for ((group, _), (mut archs, text)) in found {
        archs.sort();
        archs.dedup();
        out += &format!("\n//# {group} {}\n{text}", archs.join(" "));
    }
    out
}

#[test]
fn the_list_is_what_usual_problems_ask_for() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/attention_shipped.cu");
    let now = list();
    if std::env::var("GT_BLESS").is_ok() {
        std::fs::write(path, &now).unwrap();
    }
    let kept = std::fs::read_to_string(path).unwrap();
    assert!(
        kept == now,
        "attention_shipped.cu is of other sources: run with GT_BLESS=1, then tools/kernels.py"
    );
}
