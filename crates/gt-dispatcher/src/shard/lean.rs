//! Ways to look for layouts. `choose` decides value by value and cannot foresee which collectives will travel together,
//! so it is asked several times, leaning one way or another, and what comes of it is judged as a whole.

use super::judge::{Verdict, updates};
use super::{Ask, Asked, Costs};
use gt_ir::layout::Layout;

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
    /// What optimizers leave parameters in.
    parameters: Option<Layout>,
    /// What is split goes on being split.
    follows: bool,
}

/// The ways in which a question is worth asking, those first that are most often best.
pub fn leans(ask: &Ask) -> Vec<Lean> {
    let least = ask.costs.least;
    let free = Lean { name: "free", least, latency: 1.0, steady: 1.0, parameters: None, follows: false };
    if ask.costs.always || ask.structure.instrs.is_empty() {
        return vec![free];
    }
    let together = Lean { name: "together", latency: 0.1, least: 0, ..free };
    let steady = Lean { name: "steady", steady: 8.0, ..together };
    let follows = Lean { name: "follows", follows: true, ..steady };
    if ask.must || !ask.fixed.is_empty() {
        return vec![follows, steady, together];
    }
    // Where nothing is updated there are no parameters to leave in any layout.
    if updates(&ask.structure, &ask.structure.starts()).next().is_none() {
        return vec![follows, steady, together, free];
    }
    let (whole, split) = (Some(Layout::Whole), Some(Layout::Split(0)));
    vec![
        Lean { name: "follows, whole parameters", parameters: whole, ..follows },
        Lean { name: "steady, whole parameters", parameters: whole, ..steady },
        steady,
        together,
        Lean { name: "follows, split parameters", parameters: split, ..follows },
    ]
}

/// What came of an earlier question that was much like this one.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Hint {
    pub lean: &'static str,
    pub seconds: f64,
}

impl Hint {
    /// True if leaning as before gave about what it gave before: no other way has to be tried.
    pub fn holds(&self, lean: &str, verdict: &Verdict, room: u64) -> bool {
        self.lean == lean && verdict.seconds <= 1.1 * self.seconds && verdict.peak <= room
    }
}

impl Lean {
    /// The question, leaning so.
    pub fn ask(&self, ask: &Ask) -> Ask {
        let mut fixed = ask.fixed.clone();
        if let Some(layout) = self.parameters {
            fixed.extend(parameters(ask, layout));
        }
        let latency = ask.costs.latency * self.latency;
        let costs = Costs { least: self.least, latency, steady: self.steady, ..ask.costs };
        Ask { fixed, costs, follows: self.follows, ..ask.clone() }
    }
}

/// Has optimizers leave parameters in a layout, as far as they have such a dimension.
fn parameters(ask: &Ask, layout: Layout) -> Vec<(u32, Asked)> {
    let starts = ask.structure.starts();
    let shape = |v: u32| &ask.types[v as usize].shape;
    let fits = |v: &u32| match layout {
        Layout::Split(dim) => shape(*v).get(dim).is_some_and(|n| *n >= ask.shape[0]),
        Layout::Whole | Layout::Partial(_) => true,
    };
    let all = || ask.shape.iter().map(|_| Some(layout)).collect();
    updates(&ask.structure, &starts).map(|(.., v)| v).filter(fits).map(|v| (v, all())).collect()
}
