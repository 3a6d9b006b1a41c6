//! Programs over several workers: which layout every value gets (`choose`, by what `cost` says), and what each worker
//! then runs (`rewrite`). Pure functions: the machine asks for them and keeps what comes back (C10).

mod choose;
mod cost;
mod rewrite;

pub use choose::{Choice, choose};
pub use cost::Costs;
pub use rewrite::{From, Local, rewrite};

use gt_ir::layout::{Layout, Part};
use gt_ir::{Result, Shape, Structure, Ty, bail};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A program to be divided along one mesh axis.
#[derive(Clone, Debug)]
pub struct Ask {
    pub structure: Arc<Structure>,
    /// The types of all its values.
    pub types: Arc<[Ty]>,
    /// How each live-in lies on the axis.
    pub inputs: Vec<Layout>,
    /// Live-ins that only one worker holds so far; bringing them to all costs something.
    pub at_home: Vec<bool>,
    /// Layouts that values must have, by value.
    pub fixed: Vec<(u32, Layout)>,
    /// It runs on these workers, whatever another would cost: a signal says so.
    pub must: bool,
    /// Workers along the axis.
    pub parts: usize,
    pub costs: Costs,
}

/// A program divided.
#[derive(Debug)]
pub struct Divided {
    /// What each worker runs, by rank; workers of equal shape share a structure.
    pub parts: Vec<Local>,
    /// How each live-out lies.
    pub outs: Vec<Layout>,
    /// Seconds it is thought to take on all workers, and on one.
    pub seconds: (f64, f64),
}

/// The answer to a question: none if one worker is better.
pub type Answer = Result<Option<Arc<Divided>>>;

/// Divides a program. Nothing comes back if one worker is better.
pub fn divide(ask: &Ask) -> Result<Option<Divided>> {
    let choice = choose(ask);
    if !choice.pays {
        return Ok(None);
    }
    let mut parts: Vec<Local> = Vec::with_capacity(ask.parts);
    let mut outs = Vec::new();
    for index in 0..ask.parts {
        let part = Part { index, parts: ask.parts };
        let (mut local, layouts) = rewrite(&ask.structure, &ask.types, &choice, part, 0)?;
        if let Some(same) = parts.iter().rev().find(|p| p.structure == local.structure) {
            local.structure = same.structure.clone();
            local.origins = same.origins.clone();
            local.types = same.types.clone();
            local.key = same.key;
        } else {
            local.key = local.structure.key();
        }
        parts.push(local);
        outs = layouts;
    }
    Ok(Some(Divided { parts, outs, seconds: choice.seconds }))
}

/// Divides a program on a thread of its own and tells the answer. A panic is an error like others.
pub fn divide_aside(ask: Arc<Ask>, tell: impl FnOnce(Answer) + Send + 'static) {
    let work = move || {
        let done = catch_unwind(AssertUnwindSafe(|| divide(&ask).map(|d| d.map(Arc::new))));
        tell(done.unwrap_or_else(|_| bail!(Runtime, "planning failed: see the server's log")));
    };
    // Without a thread the question stays open, and with it the session: say so at once instead.
    if let Err(error) = std::thread::Builder::new().name("gt-planner".into()).spawn(work) {
        eprintln!("gt dispatcher: cannot start a thread to plan on: {error}");
    }
}

/// The piece of a shape that a part holds.
pub fn piece(shape: &Shape, layout: Layout, part: Part) -> Shape {
    let mut shape = shape.clone();
    if let Layout::Split(d) = layout {
        shape[d] = part.range(shape[d]).len();
    }
    shape
}
