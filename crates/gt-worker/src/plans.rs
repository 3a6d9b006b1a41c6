//! The plans of a worker, found again by key and whole structure, with the reasons why one was not (C4).

use crate::backend::{Backend, Plan};
use gt_ir::{Arg, Error, Program, Result, Structure, Ty};
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Plans kept at most.
const MAX_PLANS: usize = 512;
/// Instructions of all plans kept at most.
const MAX_INSTRS: usize = 1 << 20;
/// Hashes remembered at most, to tell why a plan was missed.
const MAX_SEEN: usize = 1 << 16;
/// Plans owed at most.
const MAX_OWED: usize = 16;

/// A plan that was made, with what it is known by.
pub struct Made {
    pub plan: Arc<dyn Plan>,
    /// How often each op occurs.
    pub ops: Arc<[(&'static str, u64)]>,
    /// The type of each live-out.
    pub outs: Arc<[Ty]>,
    structure: Arc<Structure>,
    used: u64,
}

/// Why a program had no plan.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Miss {
    FirstSight,
    OtherShapes,
    OtherLiveness,
    OtherScalars,
    Evicted,
    BegunEarly,
}

impl Miss {
    pub const ALL: [Miss; 6] = [
        Miss::FirstSight,
        Miss::OtherShapes,
        Miss::OtherLiveness,
        Miss::OtherScalars,
        Miss::Evicted,
        Miss::BegunEarly,
    ];

    /// The reason in words.
    pub fn text(self) -> &'static str {
        match self {
            Miss::FirstSight => "first sight",
            Miss::OtherShapes => "same ops, other shapes",
            Miss::OtherLiveness => "same ops and shapes, other liveness",
            Miss::OtherScalars => "same structure, other scalars",
            Miss::Evicted => "evicted",
            Miss::BegunEarly => "begun early last time, and its plan is not made yet",
        }
    }
}

/// What looking up a plan came to.
pub enum Found {
    Hit,
    /// `kept` plans are there now.
    Missed {
        why: Miss,
        took: Duration,
        kept: u64,
    },
}

/// The plan cache.
#[derive(Default)]
pub struct Plans {
    made: HashMap<u64, Made>,
    instrs: usize,
    clock: u64,
    evicted: HashSet<u64>,
    seen: HashSet<(u8, u64)>,
    /// Programs that ran without a plan of their own, since they were begun early: it is made in a quiet moment.
    owed: VecDeque<Arc<Structure>>,
}

impl Plans {
    /// The plan of a program, made if there is none.
    pub fn get(&mut self, backend: &dyn Backend, program: &Program) -> (Found, Result<&Made>) {
        self.clock += 1;
        let (key, structure) = (program.key, &program.structure);
        let known = self
            .made
            .get_mut(&key)
            .filter(|m| Arc::ptr_eq(&m.structure, structure) || m.structure == *structure);
        if let Some(made) = known {
            made.used = self.clock;
            // The next comparison with the same object is by pointer.
            made.structure = structure.clone();
            return (Found::Hit, self.made.get(&key).ok_or_else(gone));
        }
        let owed = self.owed.iter().position(|s| s == structure);
        let why = match owed.and_then(|i| self.owed.remove(i)) {
            Some(_) => Miss::BegunEarly,
            None => self.why_missed(key, structure),
        };
        let (took, made) = self.make(backend, key, structure, why);
        let found = Found::Missed { why, took, kept: self.made.len() as u64 };
        (found, made.and_then(|()| self.made.get(&key).ok_or_else(gone)))
    }

    /// True if there is a plan for this very structure.
    pub fn has(&self, program: &Program) -> bool {
        self.made.get(&program.key).is_some_and(|m| m.structure == program.structure)
    }

    /// The plan of a program in a form a person can read, if there is one.
    pub fn text(&self, program: &Program) -> Option<String> {
        self.made.get(&program.key).map(|made| made.plan.text())
    }

    /// Notes that a program without a plan ran all the same, having been begun early. Plans were made in `took`.
    pub fn owe(&mut self, program: &Program, took: Duration) -> Found {
        let known = self.owed.contains(&program.structure);
        let why = if known { Miss::BegunEarly } else { self.why_missed(program.key, &program.structure) };
        if !known {
            self.owed.push_back(program.structure.clone());
        }
        if self.owed.len() > MAX_OWED {
            self.owed.pop_front();
        }
        Found::Missed { why, took, kept: self.made.len() as u64 }
    }

    /// True if a plan is to be made in a quiet moment.
    pub fn owes(&self) -> bool {
        !self.owed.is_empty()
    }

    /// Makes a plan that is owed; gives how long it took and how many there are now.
    pub fn make_owed(&mut self, backend: &dyn Backend) -> Option<(Duration, u64)> {
        let structure = self.owed.pop_front()?;
        self.clock += 1;
        let (took, _) = self.make(backend, structure.key(), &structure, Miss::BegunEarly);
        Some((took, self.made.len() as u64))
    }

    fn make(
        &mut self,
        backend: &dyn Backend,
        key: u64,
        structure: &Arc<Structure>,
        why: Miss,
    ) -> (Duration, Result<()>) {
        let start = Instant::now();
        let plan = catch_unwind(AssertUnwindSafe(|| compile(backend, structure))).unwrap_or_else(|panic| {
            Err(Error::Runtime(format!("compiling failed: {}", panic_text(&*panic))))
        });
        let took = start.elapsed();
        if let (true, Ok((plan, _))) = (gt_ir::env::on("GT_DEBUG_COMPILE"), &plan) {
            eprintln!(
                "gt compile: plan {key:016x}, {} ops, made in {took:?} ({})",
                structure.instrs.len(),
                why.text()
            );
            eprintln!("{}", plan.text());
        }
        (took, plan.map(|(plan, outs)| self.keep(key, structure, plan, outs)))
    }

    fn keep(&mut self, key: u64, structure: &Arc<Structure>, plan: Arc<dyn Plan>, outs: Vec<Ty>) {
        self.instrs += structure.instrs.len();
        let (ops, outs) = (count_ops(structure), outs.into());
        let made = Made { plan, ops, outs, structure: structure.clone(), used: self.clock };
        if let Some(old) = self.made.insert(key, made) {
            self.instrs -= old.structure.instrs.len();
        }
        // The newest stays even when it alone is over the bound.
        while self.made.len() > 1 && (self.made.len() > MAX_PLANS || self.instrs > MAX_INSTRS) {
            let Some(oldest) = self.made.iter().min_by_key(|(_, m)| m.used).map(|(&key, _)| key) else {
                break;
            };
            if let Some(old) = self.made.remove(&oldest) {
                self.instrs -= old.structure.instrs.len();
            }
            if self.evicted.len() >= MAX_SEEN {
                self.evicted.clear();
            }
            self.evicted.insert(oldest);
        }
    }

    /// Compares with everything seen so far, each time with less of the structure.
    fn why_missed(&mut self, key: u64, s: &Structure) -> Miss {
        let but_scalars = hash(s, true, true);
        let but_liveness = hash(s, true, false);
        let only_ops = hash(s, false, false);
        if self.seen.len() >= MAX_SEEN {
            self.seen.clear();
        }
        let ops_new = self.seen.insert((0, only_ops));
        let liveness_new = self.seen.insert((1, but_liveness));
        let scalars_new = self.seen.insert((2, but_scalars));
        if self.evicted.remove(&key) {
            Miss::Evicted
        } else if !scalars_new {
            Miss::OtherScalars
        } else if !liveness_new {
            Miss::OtherLiveness
        } else if !ops_new {
            Miss::OtherShapes
        } else {
            Miss::FirstSight
        }
    }
}

/// How often each op occurs in a structure.
pub fn count_ops(structure: &Structure) -> Arc<[(&'static str, u64)]> {
    let mut ops: BTreeMap<&'static str, u64> = BTreeMap::new();
    for instr in &structure.instrs {
        *ops.entry(instr.op.text()).or_default() += 1;
    }
    ops.into_iter().collect()
}

fn compile(backend: &dyn Backend, structure: &Arc<Structure>) -> Result<(Arc<dyn Plan>, Vec<Ty>)> {
    let types = structure.check()?;
    let plan = backend.compile(structure, &types)?;
    Ok((plan, structure.outs.iter().map(|out| types[*out as usize].clone()).collect()))
}

fn gone() -> Error {
    Error::Runtime("the plan is gone".into())
}

/// Hashes a structure without its scalars, and without shapes or liveness where told.
fn hash(s: &Structure, shapes: bool, liveness: bool) -> u64 {
    let mut h = DefaultHasher::new();
    s.inputs.len().hash(&mut h);
    for input in &s.inputs {
        input.ty.dtype.hash(&mut h);
        shapes.then(|| input.ty.shape.hash(&mut h));
        liveness.then(|| input.dies.hash(&mut h));
    }
    for instr in &s.instrs {
        match shapes {
            true => instr.op.hash(&mut h),
            false => instr.op.text().hash(&mut h),
        }
        for arg in &instr.args {
            match arg {
                Arg::Value(v) => v.hash(&mut h),
                Arg::Const(x) => (x.kind() as u8).hash(&mut h),
                Arg::Slot(k) => (k, "slot").hash(&mut h),
            }
        }
    }
    liveness.then(|| s.outs.hash(&mut h));
    h.finish()
}

/// The message of a panic that was caught.
pub fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| s.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it panicked".into())
}
