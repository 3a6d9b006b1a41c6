//! Makes a program that fails smaller while it still fails, for a report that a person can read.

use super::RandomProgram;
use crate::program::{Arg, Input, Instr, Program, Structure, TensorId};
use crate::{HostTensor, reference, text};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

impl RandomProgram {
    /// The program in the text form.
    pub fn text(&self) -> String {
        let ids = |n: usize, from: u64| (0..n as u64).map(|i| TensorId(from + i)).collect::<Vec<_>>();
        text::to_text(&Program {
            key: self.structure.key(),
            structure: Arc::new(self.structure.clone()),
            inputs: ids(self.inputs.len(), 0),
            outs: ids(self.structure.outs.len(), 10_000),
            slots: self.slots.clone(),
            frees: Vec::new(),
        })
    }

    /// The smallest program found that `fails` as this one does: fewer live-outs, and inputs in the place of what
    /// instructions would compute.
    pub fn shrunk(self, mut fails: impl FnMut(&RandomProgram) -> bool) -> RandomProgram {
        let mut best = self;
        if let Some(smaller) = best.structure.outs.iter().find_map(|&out| {
            let candidate = best.cut(&HashMap::new(), &[out]);
            fails(&candidate).then_some(candidate)
        }) {
            best = smaller;
        }
        loop {
            let Some(values) = best.all_values() else { return best };
            let starts = best.structure.starts();
            let smaller = (0..best.structure.instrs.len()).rev().find_map(|i| {
                let made: HashMap<u32, HostTensor> = (starts[i]..starts[i + 1])
                    .filter(|v| !best.structure.outs.contains(v))
                    .map(|v| (v, values[v as usize].clone()))
                    .collect();
                if made.is_empty() {
                    return None;
                }
                let candidate = best.cut(&made, &best.structure.outs);
                let less = candidate.structure.instrs.len() < best.structure.instrs.len();
                (less && fails(&candidate)).then_some(candidate)
            });
            match smaller {
                Some(smaller) => best = smaller,
                None => return best,
            }
        }
    }

    /// What every value is, by the reference.
    fn all_values(&self) -> Option<Vec<HostTensor>> {
        let count = *self.structure.starts().last()?;
        let all = Structure { outs: (0..count).collect(), ..self.structure.clone() };
        reference::run(&all, &self.inputs, &self.slots).ok()
    }

    /// The instructions that `outs` need, with some values given as inputs.
    fn cut(&self, given: &HashMap<u32, HostTensor>, outs: &[u32]) -> RandomProgram {
        let s = &self.structure;
        let (starts, n) = (s.starts(), s.inputs.len() as u32);
        let mut needed: HashSet<u32> = outs.iter().copied().collect();
        let mut keep = vec![false; s.instrs.len()];
        for i in (0..s.instrs.len()).rev() {
            keep[i] = (starts[i]..starts[i + 1]).any(|v| needed.contains(&v) && !given.contains_key(&v));
            if keep[i] {
                needed.extend(s.instrs[i].args.iter().filter_map(value));
            }
        }
        let mut now: HashMap<u32, u32> = HashMap::new();
        let (mut inputs, mut data) = (Vec::new(), Vec::new());
        let mut order: Vec<u32> =
            needed.iter().copied().filter(|v| *v < n || given.contains_key(v)).collect();
        order.sort_unstable();
        for v in order {
            let (input, host) = match given.get(&v) {
                Some(host) => (Input { ty: host.ty.clone(), dies: false }, host.clone()),
                None => (s.inputs[v as usize].clone(), self.inputs[v as usize].clone()),
            };
            now.insert(v, inputs.len() as u32);
            inputs.push(input);
            data.push(host);
        }
        let mut next = inputs.len() as u32;
        let mut instrs = Vec::new();
        for (i, instr) in s.instrs.iter().enumerate().filter(|(i, _)| keep[*i]) {
            let args =
                instr.args.iter().map(|arg| value(arg).map_or(*arg, |v| Arg::Value(now[&v]))).collect();
            instrs.push(Instr { op: instr.op.clone(), args });
            for v in starts[i]..starts[i + 1] {
                now.entry(v).or_insert(next);
                next += 1;
            }
        }
        let outs = outs.iter().map(|v| now[v]).collect();
        RandomProgram {
            structure: Structure { inputs, instrs, outs, slots: s.slots, ..Default::default() },
            inputs: data,
            slots: self.slots.clone(),
        }
    }
}

fn value(arg: &Arg) -> Option<u32> {
    match arg {
        Arg::Value(v) => Some(*v),
        Arg::Const(_) | Arg::Slot(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::op::Op;
    use crate::sample::random_program;
    use std::collections::HashMap;

    /// A made-up failure, "there is a matmul", shrinks to the matmul alone and still runs.
    #[test]
    fn what_does_not_matter_goes() {
        let is_bad = |op: &Op| matches!(op, Op::Matmul { .. });
        let mut tried = 0;
        for seed in 0..200 {
            let p = random_program(seed, 40);
            let p = p.cut(&HashMap::new(), &p.structure.outs);
            if !p.structure.instrs.iter().any(|i| is_bad(&i.op)) {
                continue;
            }
            let small = p.shrunk(|p| {
                assert!(p.structure.check().is_ok());
                p.structure.instrs.iter().any(|i| is_bad(&i.op))
            });
            let leads = small.structure.instrs.iter().position(|i| is_bad(&i.op));
            assert_eq!(leads, Some(0), "seed {seed}: {}", small.text());
            assert!(small.text().contains("MATMUL"));
            tried += 1;
        }
        assert!(tried > 5, "{tried} programs with a matmul");
    }
}
