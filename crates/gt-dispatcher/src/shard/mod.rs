//! Programs over several workers: which layout every value gets on every axis of a mesh (`choose`, by what `cost` says),
//! how values get from one layout to another (`convert`), and what each worker then runs (`rewrite`). Pure functions:
//! the machine asks for them and keeps what comes back (C10).

mod choose;
mod convert;
mod cost;
mod rewrite;

pub use choose::{Choice, Rules, choose};
pub use cost::Costs;
pub use rewrite::{From, Local, Template, rewrite};

use gt_ir::layout::{Layout, Layouts, place};
use gt_ir::{Result, Structure, Ty, bail};
use smallvec::SmallVec;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// What is asked of one value: a layout per mesh axis, or none where the planner chooses.
pub type Asked = SmallVec<[Option<Layout>; 2]>;

/// A program to be divided over a mesh.
#[derive(Clone, Debug)]
pub struct Ask {
    pub structure: Arc<Structure>,
    /// The types of all its values.
    pub types: Arc<[Ty]>,
    /// How each live-in lies on the mesh.
    pub inputs: Vec<Layouts>,
    /// Live-ins that only one worker holds so far; bringing them to all costs something.
    pub at_home: Vec<bool>,
    /// Layouts that values must have, by value.
    pub fixed: Vec<(u32, Asked)>,
    /// It runs on these workers, whatever another would cost: a signal says so.
    pub must: bool,
    /// The size of each mesh axis; the last runs fastest over the workers.
    pub shape: Vec<usize>,
    pub costs: Costs,
}

impl Ask {
    pub fn workers(&self) -> usize {
        self.shape.iter().product()
    }
}

/// A program divided.
#[derive(Debug)]
pub struct Divided {
    /// What each worker runs, by rank; workers whose pieces have equal shapes share a structure.
    pub parts: Vec<Local>,
    /// How each live-out lies.
    pub outs: Vec<Layouts>,
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
    let mut written: Vec<Template> = Vec::new();
    let mut parts: Vec<Local> = Vec::with_capacity(ask.workers());
    for rank in 0..ask.workers() {
        let place = place(&ask.shape, rank);
        let local = written.iter().find_map(|template| template.at(&place));
        parts.push(match local {
            Some(local) => local,
            None => {
                let template = rewrite(&ask.structure, &ask.types, &choice, &place)?;
                let local = template.own();
                written.push(template);
                local
            }
        });
    }
    let outs = written.pop().map_or_else(Vec::new, |template| template.outs);
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
