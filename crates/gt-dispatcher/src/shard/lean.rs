//! Ways to look for layouts. `choose` decides value by value and cannot foresee which collectives will travel together,
//! so it is asked several times, leaning one way or another, and what comes of it is judged as a whole.

use super::{Ask, Asked, Costs};
use gt_ir::Op;
use gt_ir::layout::Layout;
use smallvec::smallvec;

/// How a question leans.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Lean {
    /// For messages.
    pub name: &'static str,
    /// Tensors of fewer bytes are not split for their own sake.
    least: u64,
    /// The part of a collective's latency that is thought to count: several may travel together.
    latency: f64,
    /// How many times what it costs a piece to go elsewhere is thought to cost, so that what is split once stays so.
    steady: f64,
    /// Parameters and their states are split along their first dimension.
    parameters: bool,
    /// What is split goes on being split.
    follows: bool,
}

/// The ways in which a question is worth asking.
pub fn leans(ask: &Ask) -> Vec<Lean> {
    let least = ask.costs.least;
    let free = Lean { name: "free", least, latency: 1.0, steady: 1.0, parameters: false, follows: false };
    if ask.costs.always || ask.structure.instrs.is_empty() {
        return vec![free];
    }
    let together = Lean { name: "together", latency: 0.1, ..free };
    let steady = Lean { name: "steady", steady: 8.0, least: 0, ..together };
    let follows = Lean { name: "follows", follows: true, ..steady };
    if ask.must || !ask.fixed.is_empty() {
        return vec![free, together, steady, follows];
    }
    let small = Lean { name: "small", least: 0, ..free };
    let mut leans = vec![free, small, Lean { least: 0, ..together }, steady, follows];
    if ask.shape.len() == 1 {
        leans.push(Lean { name: "follows, parameters", parameters: true, ..follows });
        leans.push(Lean { name: "parameters", parameters: true, least: 0, ..together });
    }
    leans
}

impl Lean {
    /// The question, leaning so.
    pub fn ask(&self, ask: &Ask) -> Ask {
        let mut fixed = ask.fixed.clone();
        if self.parameters {
            fixed.extend(parameters(ask));
        }
        let latency = ask.costs.latency * self.latency;
        let costs = Costs { least: self.least, latency, steady: self.steady, ..ask.costs };
        Ask { fixed, costs, follows: self.follows, ..ask.clone() }
    }
}

/// Keeps what optimizers write, parameters and their states, split along the first dimension, as far as it has one.
fn parameters(ask: &Ask) -> Vec<(u32, Asked)> {
    let starts = ask.structure.starts();
    let updates = ask.structure.instrs.iter().enumerate();
    let updates = updates.filter(|(_, instr)| matches!(instr.op, Op::Sgd { .. } | Op::Adam { .. }));
    let splits = |v: &u32| ask.types[*v as usize].shape.first().is_some_and(|n| *n >= ask.shape[0]);
    let written = updates.flat_map(|(i, _)| starts[i]..starts[i + 1]).filter(splits);
    written.map(|v| (v, smallvec![Some(Layout::Split(0))])).collect()
}
