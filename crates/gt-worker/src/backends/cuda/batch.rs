//! Which kernels of a plan may be launched together: neighbours that touch nothing of each other's.

use gt_compiler::{Place, Plan, Step, Work};

/// Steps of one batch at most.
const MOST: usize = 512;

/// Memory that a step touches, as bytes of the arena or of a storage of its own.
struct Touched {
    reads: Vec<(u32, usize, usize)>,
    writes: Vec<(u32, usize, usize)>,
}

/// Stands for the arena among memories; others are named by the storage they belong to.
const ARENA: u32 = u32::MAX;

/// The memory of a storage. A reused input is the memory of that input.
fn memory(plan: &Plan, storage: u32) -> (u32, usize, usize) {
    let s = &plan.storages[storage as usize];
    match (s.reuse, s.place) {
        (Some(i), _) | (None, Place::Input(i)) => (i, 0, s.bytes),
        (None, Place::Out) => (storage, 0, s.bytes),
        (None, Place::Arena(at)) => (ARENA, at, at + s.bytes),
    }
}

fn touched(plan: &Plan, step: &Step) -> Touched {
    let mut out = Touched { reads: Vec::new(), writes: Vec::new() };
    step.reads(|s| out.reads.push(memory(plan, s)));
    step.writes(|s| out.writes.push(memory(plan, s)));
    out
}

fn overlap(a: &[(u32, usize, usize)], b: &[(u32, usize, usize)]) -> bool {
    a.iter().any(|x| b.iter().any(|y| x.0 == y.0 && x.1 < y.2 && y.1 < x.2))
}

/// Groups of kernel steps, in order, of which none reads or writes what another writes. The steps of a group are
/// neighbours, so that running them all in the place of the last changes nothing for others.
pub fn batches(plan: &Plan) -> Vec<Vec<usize>> {
    let mut out: Vec<Vec<usize>> = Vec::new();
    let mut group: Vec<usize> = Vec::new();
    let mut all = Touched { reads: Vec::new(), writes: Vec::new() };
    let close = |group: &mut Vec<usize>, all: &mut Touched, out: &mut Vec<Vec<usize>>| {
        let group = std::mem::take(group);
        if group.len() > 1 {
            out.push(group);
        }
        (all.reads, all.writes) = (Vec::new(), Vec::new());
    };
    for (i, step) in plan.steps.iter().enumerate() {
        if !matches!(step.work, Work::Kernel(_)) {
            close(&mut group, &mut all, &mut out);
            continue;
        }
        let own = touched(plan, step);
        let meets = overlap(&own.reads, &all.writes)
            || overlap(&own.writes, &all.writes)
            || overlap(&own.writes, &all.reads);
        if meets || group.len() == MOST {
            close(&mut group, &mut all, &mut out);
        }
        group.push(i);
        all.reads.extend(own.reads);
        all.writes.extend(own.writes);
    }
    close(&mut group, &mut all, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use gt_compiler::{CompileOptions, compile};
    use gt_ir::text;

    fn plan(program: &str) -> Plan {
        let structure = text::parse_structure(program).unwrap();
        compile(&structure, &structure.check().unwrap(), CompileOptions::default()).unwrap()
    }

    #[test]
    fn updates_of_parameters_go_together_and_dependent_kernels_do_not() {
        let plan = plan(
            "in TENSOR[0] f32[8] dies
             in TENSOR[1] f32[8]
             in TENSOR[2] f32[4] dies
             in TENSOR[3] f32[4]
             TENSOR[4] := SUB TENSOR[0] TENSOR[1]
             TENSOR[5] := SUB TENSOR[2] TENSOR[3]
             out TENSOR[4]
             out TENSOR[5]",
        );
        assert_eq!(batches(&plan), [vec![0, 1]]);
    }

    #[test]
    fn a_kernel_that_reads_the_result_of_another_waits_for_it() {
        let plan = plan(
            "in TENSOR[0] f32[300, 200]
             in TENSOR[1] f32[200]
             TENSOR[2] := SUM{dims=[0],keepdim=false} TENSOR[0]
             TENSOR[3] := EXP TENSOR[2]
             TENSOR[4] := EXP TENSOR[1]
             out TENSOR[3]
             out TENSOR[4]",
        );
        for group in batches(&plan) {
            for (k, &i) in group.iter().enumerate() {
                for &j in &group[..k] {
                    let (a, b) = (touched(&plan, &plan.steps[i]), touched(&plan, &plan.steps[j]));
                    assert!(!overlap(&a.reads, &b.writes) && !overlap(&a.writes, &b.reads));
                }
            }
        }
    }
}
