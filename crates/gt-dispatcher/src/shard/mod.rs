//! Programs over several workers: which layout every value gets on every axis of a mesh (`choose`, by what `cost` says),
//! how values get from one layout to another (`convert`), and what each worker then runs (`rewrite`). A program is written
//! in a few ways (`lean`), and the one that is thought to be the fastest (`judge`) is taken. Pure functions: the machine
//! asks for them and keeps what comes back (C10).

mod choose;
mod convert;
mod cost;
mod judge;
mod lean;
mod rewrite;

pub use choose::{Choice, Rules, choose};
pub use cost::Costs;
pub use judge::{Verdict, judge, next_step};
pub use lean::{Hint, Lean, leans};
pub use rewrite::{From, Local, Template, rewrite};

use gt_ir::layout::{Layout, Layouts, place};
use gt_ir::{Result, Structure, Ty, bail};
use gt_net::process::give_way;
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
    /// By axis: computed values are to be whole along it, as its signal says, so that parameters that lie in pieces are
    /// used as they lie.
    pub keeps: SmallVec<[bool; 2]>,
    /// It runs on these workers, whatever another would cost: a signal says so.
    pub must: bool,
    /// The size of each mesh axis; the last runs fastest over the workers.
    pub shape: Vec<usize>,
    pub costs: Costs,
    /// Layouts are followed from the first instruction to the last, rather than weighed over the program.
    pub follows: bool,
    pub hint: Option<Hint>,
}

impl Ask {
    pub fn workers(&self) -> usize {
        self.shape.iter().product()
    }

    /// It runs on these workers in any case: a signal says so, or what it reads lies there in pieces.
    pub fn is_given(&self) -> bool {
        let split = |layout: &Layout| *layout != Layout::Whole;
        self.must || !self.fixed.is_empty() || self.inputs.iter().flatten().any(split)
    }
}

/// A program divided.
#[derive(Debug)]
pub struct Divided {
    /// What each worker runs, by rank; workers whose pieces have equal shapes share a structure.
    pub parts: Vec<Local>,
    /// How each live-out lies.
    pub outs: Vec<Layouts>,
    /// Live-ins that lie in pieces, live on, and are put together to be read.
    pub joined: Vec<u32>,
    pub thought: Thought,
}

impl Divided {
    /// What its workers run, each structure once.
    pub fn structures(&self) -> Vec<&Arc<Structure>> {
        let mut known: Vec<&Arc<Structure>> = Vec::new();
        for part in &self.parts {
            if !known.iter().any(|structure| Arc::ptr_eq(structure, &part.structure)) {
                known.push(&part.structure);
            }
        }
        known
    }
}

/// Why a program was divided as it was.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Thought {
    /// The way of asking that gave the best answer.
    pub lean: &'static str,
    pub verdict: Verdict,
    /// What is thought of one worker's running it.
    pub alone: Verdict,
}

/// The answer to a question: none if one worker is better.
pub type Answer = Result<Option<Arc<Divided>>>;

/// What is thought of one worker's running the program.
pub fn alone(ask: &Ask) -> Verdict {
    let costs = Costs {
        flops: ask.costs.flops * ask.costs.alone,
        memory: ask.costs.memory * ask.costs.alone,
        ..ask.costs
    };
    judge(&ask.structure, &ask.types, &costs, &[1])
}

/// Seconds to bring to all workers what only one of them has. It stays there for others that come.
fn bringing(ask: &Ask) -> f64 {
    let away = ask.types.iter().zip(&ask.at_home).filter(|(_, away)| **away);
    let bytes: f64 = away.map(|(ty, _)| ty.bytes() as f64).sum();
    0.25 * bytes * (ask.workers() - 1) as f64 / ask.costs.road
}

/// The way to divide a program that is thought to be best, written for the first worker.
fn best(ask: &Ask) -> Result<Option<(Choice, Template, Thought)>> {
    let mut best: Option<(Choice, Template, Verdict, &'static str)> = None;
    let first = place(&ask.shape, 0);
    let mut ways = leans(ask);
    if let Some(hint) = &ask.hint {
        ways.sort_by_key(|lean| lean.name != hint.lean);
    }
    for lean in ways {
        let choice = choose(&lean.ask(ask));
        if !choice.splits && !ask.is_given() {
            continue;
        }
        let template = rewrite(&ask.structure, &ask.types, &choice, &first)?;
        let mut verdict = template.judge(&ask.costs, &ask.shape);
        verdict.seconds += next_step(ask, &choice);
        let holds = ask.hint.is_some_and(|hint| hint.holds(lean.name, &verdict, ask.costs.room));
        if best.as_ref().is_none_or(|(.., least, _)| verdict.is_better(least, ask.costs.room)) {
            best = Some((choice, template, verdict, lean.name));
        }
        if holds {
            break;
        }
    }
    let Some((choice, template, verdict, lean)) = best else { return Ok(None) };
    let (all, one) = (verdict.seconds + ask.costs.start + bringing(ask), alone(ask));
    let fits = one.peak <= ask.costs.room || one.peak <= verdict.peak;
    if !ask.is_given() && !ask.costs.always && fits && all > one.seconds {
        return Ok(None);
    }
    Ok(Some((choice, template, Thought { lean, verdict, alone: one })))
}

/// Divides a program. Nothing comes back if one worker is better.
pub fn divide(ask: &Ask) -> Result<Option<Divided>> {
    let Some((choice, template, thought)) = best(ask)? else { return Ok(None) };
    let mut written: Vec<Template> = vec![template];
    let mut parts: Vec<Local> = Vec::with_capacity(ask.workers());
    for rank in 0..ask.workers() {
        std::thread::yield_now();
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
    let (outs, joined) = written.pop().map_or_else(Default::default, |t| (t.outs, t.joined));
    Ok(Some(Divided { parts, outs, joined, thought }))
}

/// The nice value of the thread that plans: other sessions are served meanwhile.
const NICE: i32 = 5;

/// Lets others have the processor after every so many instructions: a thread that wakes may have to wait for a whole slice of
/// time otherwise, whatever the priorities.
fn step_aside(instr: usize) {
    if instr.is_multiple_of(32) {
        std::thread::yield_now();
    }
}

/// Divides a program on a thread of its own and tells the answer. A panic is an error like others. Fails where there is no
/// thread to be had: then nobody will tell.
pub fn divide_aside(ask: Arc<Ask>, tell: impl FnOnce(Answer) + Send + 'static) -> Result<()> {
    let work = move || {
        give_way(NICE);
        let done = catch_unwind(AssertUnwindSafe(|| divide(&ask).map(|d| d.map(Arc::new))));
        tell(done.unwrap_or_else(|_| bail!(Runtime, "planning failed: see the server's log")));
    };
    match std::thread::Builder::new().name("gt-planner".into()).spawn(work) {
        Ok(_) => Ok(()),
        Err(error) => bail!(Runtime, "there is no thread to plan this program on: {error}"),
    }
}
