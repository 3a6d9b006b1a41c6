//! Elementwise kernels that read the same memory a few steps apart become one: of a gated product, the gradients of both
//! sides read its own gradient and the gate.

use crate::fuse::{Draft, MAX_MEMBERS, MAX_READS};
use crate::plan::{Kernel, Load, Reg, Source, Step, Storage, Work};

/// How many steps later a kernel may come: its results are kept from the first on.
const REACH: usize = 6;
/// What both read is at least so large. Less stays in a cache until the second comes.
const LEAST: usize = 256 << 10;
/// Results of one kernel at most.
const STORES: usize = 4;

/// Joins kernels to earlier ones with which they share what they read.
pub fn beside(draft: &mut Draft) {
    let mut at = 0;
    while at < draft.steps.len() {
        let end = draft.steps.len().min(at + 1 + REACH);
        if let Some(later) = (at + 1..end).find(|&later| may_join(draft, at, later)) {
            let Step { instr, fused, work } = draft.steps.remove(later);
            let step = &mut draft.steps[at];
            step.fused.push(instr);
            step.fused.extend(fused);
            if let (Work::Kernel(kernel), Work::Kernel(other)) = (&mut step.work, work) {
                append(kernel, other);
            }
        } else {
            at += 1;
        }
    }
}

fn may_join(draft: &Draft, at: usize, later: usize) -> bool {
    let (Work::Kernel(a), Work::Kernel(b)) = (&draft.steps[at].work, &draft.steps[later].work) else {
        return false;
    };
    let plain = |k: &Kernel| k.fold.is_none() && k.rows == k.shape.len();
    let small = a.loads.len() + b.loads.len() <= MAX_READS
        && a.code.len() + b.code.len() <= MAX_MEMBERS
        && a.stores.len() + b.stores.len() <= STORES;
    plain(a) && plain(b) && small && a.shape == b.shape && shares(draft, a, b) && is_free(draft, at, later)
}

/// True if the second kernel reads something large as the first does.
fn shares(draft: &Draft, a: &Kernel, b: &Kernel) -> bool {
    let large = |load: &&Load| match load.from {
        Source::Mem { storage, .. } => draft.storages[storage as usize].bytes >= LEAST,
        _ => false,
    };
    b.loads.iter().filter(large).any(|load| a.loads.contains(load))
}

/// True if nothing between hinders that step `later` does its work as early as step `at`: what it reads is there, nobody else
/// writes where it does, and no memory is overwritten that the program was given.
fn is_free(draft: &Draft, at: usize, later: usize) -> bool {
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    draft.steps[later].reads(|s| reads.push(s));
    draft.steps[later].writes(|s| writes.push(s));
    let fresh = |s: u32| matches!(&draft.storages[s as usize], Storage { reuse: None, .. });
    let mut free = writes.iter().all(|&s| fresh(s));
    draft.steps[at].writes(|s| free &= fresh(s));
    for step in &draft.steps[at..later] {
        step.writes(|s| free &= !reads.contains(&s) && !writes.contains(&s));
        step.reads(|s| free &= !writes.contains(&s));
    }
    free
}

/// Puts the work of one kernel behind that of another of the same shape.
fn append(kernel: &mut Kernel, other: Kernel) {
    let before = kernel.loads.len();
    let mut places: Vec<usize> = Vec::new();
    for load in other.loads {
        let place = kernel.loads.iter().position(|l| *l == load).unwrap_or_else(|| {
            kernel.loads.push(load);
            kernel.loads.len() - 1
        });
        places.push(place);
    }
    // Registers of code come behind those of loads, of which there are more now.
    let more = kernel.loads.len() - before;
    let moved = |reg: &mut Reg| *reg += if *reg as usize >= before { more as Reg } else { 0 };
    kernel.code.iter_mut().for_each(|code| code.args.iter_mut().for_each(moved));
    kernel.stores.iter_mut().for_each(|store| moved(&mut store.reg));
    let behind = kernel.loads.len() + kernel.code.len();
    let renumbered = |reg: &mut Reg| {
        *reg = match (*reg as usize).checked_sub(places.len()) {
            None => places[*reg as usize],
            Some(code) => behind + code,
        } as Reg;
    };
    for mut code in other.code {
        code.args.iter_mut().for_each(renumbered);
        kernel.code.push(code);
    }
    for mut store in other.stores {
        renumbered(&mut store.reg);
        kernel.stores.push(store);
    }
}

#[cfg(test)]
mod tests {
    use crate::{CompileOptions, Work, compile};
    use gt_ir::text;

    /// The steps for the gradients of a gated product of `rows` rows, each followed by a product of its own.
    fn kinds(rows: usize) -> String {
        let program = format!(
            "in TENSOR[0] f32[{rows}, 64]
             in TENSOR[1] f32[{rows}, 64]
             in TENSOR[2] f32[{rows}, 64]
             in TENSOR[3] f32[64, 32]
             TENSOR[4] := SILU TENSOR[0]
             TENSOR[5] := MUL TENSOR[2] TENSOR[4]
             TENSOR[6] := MATMUL{{ta=false,tb=false}} TENSOR[5] TENSOR[3]
             TENSOR[7] := MUL TENSOR[2] TENSOR[1]
             TENSOR[8] := SIGMOID TENSOR[0]
             TENSOR[9] := MUL TENSOR[7] TENSOR[8]
             TENSOR[10] := MATMUL{{ta=false,tb=false}} TENSOR[9] TENSOR[3]
             out TENSOR[6]
             out TENSOR[10]"
        );
        let structure = text::parse_structure(&program).unwrap();
        let plan = compile(&structure, &structure.check().unwrap(), CompileOptions::default()).unwrap();
        let kind = |step: &crate::Step| match &step.work {
            Work::Kernel(k) => format!("kernel of {} to {}", k.loads.len(), k.stores.len()),
            Work::Matmul(_) => "product".into(),
            other => panic!("{other}"),
        };
        plan.steps.iter().map(kind).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn both_gradients_of_a_gated_product_are_one_kernel() {
        assert_eq!(kinds(2048), "kernel of 3 to 2, product, product");
    }

    #[test]
    fn what_is_small_stays_where_it_is() {
        assert_eq!(kinds(16), "kernel of 2 to 1, product, kernel of 3 to 1, product");
    }
}
