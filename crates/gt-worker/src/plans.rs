//! The plans of a worker, found again by key and whole structure, with the reasons why one was not (C4).

mod found;
mod pieces;

pub use found::{Found, Miss};

use crate::backend::{Backend, Effort, Plan};
use crate::better::{Better, Planner};
use crate::family::Family;
use crate::parts::InParts;
use crate::sequences::Sequences;
use crate::timing::Timed;
use foldhash::fast::FixedState;
use gt_ir::{Arg, Error, Program, Result, Structure, Ty};
use gt_net::compiling::Compiling;
use gt_sync::Mutex;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Plans kept at most.
const MAX_PLANS: usize = 512;
/// Instructions of all plans kept at most.
const MAX_INSTRS: usize = 1 << 20;
/// Hashes remembered at most, to tell why a plan was missed.
const MAX_SEEN: usize = 1 << 16;
/// Plans owed at most.
const MAX_OWED: usize = 16;
/// Families remembered at most.
const MAX_FAMILIES: usize = 256;
/// After so many programs that were new, all of them in a row, the next new one runs op by op.
const PATIENCE: u32 = 16;
/// No better plan is wanted.
const NEVER: u32 = u32::MAX;

/// A plan that was made, with what it is known by.
pub struct Made {
    pub plan: Arc<dyn Plan>,
    /// How often each op occurs.
    pub ops: Arc<[(&'static str, u64)]>,
    /// The type of each live-out.
    pub outs: Arc<[Ty]>,
    pub structure: Arc<Structure>,
    /// How long its steps take.
    pub timed: Timed,
    effort: Effort,
    used: u64,
    /// How often it was used, for whoever counts sequences.
    runs: Arc<AtomicU64>,
    /// Runs until a better plan is asked for; `NEVER` if there is none to be had.
    left: u32,
}

/// A plan as it comes from the backend, with the types of its structure's values.
pub struct Compiled {
    pub plan: Arc<dyn Plan>,
    pub types: Vec<Ty>,
}

/// How a program is to run.
pub enum Way<'a> {
    Whole(&'a Made),
    Parts(InParts),
}

/// The plan cache.
#[derive(Default)]
pub struct Plans {
    made: HashMap<u64, Made, FixedState>,
    instrs: usize,
    clock: u64,
    evicted: HashSet<u64, FixedState>,
    seen: HashSet<(u8, u64), FixedState>,
    /// Programs that ran without a plan of their own, since they were begun early: it is made in a quiet moment.
    owed: VecDeque<Arc<Structure>>,
    families: HashMap<u64, Family, FixedState>,
    /// How often programs ran in parts, by key; one that keeps coming back gets a plan of its own.
    in_parts: HashMap<u64, u32, FixedState>,
    /// Structures, sizes left open, that ran op by op once; the second time they are compiled.
    once: HashSet<u64, FixedState>,
    planner: Planner,
    /// Better plans swapped in and not told of yet.
    improved: u64,
    sequences: Arc<Mutex<Sequences>>,
}

impl Plans {
    /// An empty cache that tells `sequences` what runs.
    pub fn new(sequences: Arc<Mutex<Sequences>>) -> Plans {
        Plans { sequences, ..Plans::default() }
    }

    /// The way to run a program, with plans made as needed. `novel` counts the session's programs that were new, all of
    /// them in a row.
    pub fn get(
        &mut self,
        backend: &Arc<dyn Backend>,
        key: u64,
        structure: &Arc<Structure>,
        how: Compiling,
        novel: &mut u32,
    ) -> (Found, Result<Way<'_>>) {
        let mut found = self.begin();
        let way = self.way(backend, key, structure, how, novel, &mut found);
        found.kept = self.made.len() as u64;
        // Borrowed anew, since a plan that was just made lies in the cache.
        let way = way.and_then(|parts| match parts {
            Some(parts) => Ok(Way::Parts(parts)),
            None => self.made.get(&key).map(Way::Whole).ok_or_else(gone),
        });
        (found, way)
    }

    /// The plan of a whole program, made if it is not there, whatever else is known of it.
    pub fn compiled(
        &mut self,
        backend: &Arc<dyn Backend>,
        key: u64,
        structure: &Arc<Structure>,
        how: Compiling,
    ) -> (Found, Result<&Made>) {
        let mut found = self.begin();
        let effort = match how.auto() {
            false => Effort::Apart,
            true if how.at_once() => Effort::Full,
            true => Effort::Quick,
        };
        let done = if self.hit(backend, key, structure, effort) {
            found.hits += 1;
            Ok(())
        } else {
            found.misses += 1;
            found.why = Some(self.why_missed(key, structure));
            self.make(backend, key, structure, effort, how, &mut found).map(|_| ())
        };
        found.kept = self.made.len() as u64;
        (found, done.and_then(|()| self.made.get(&key).ok_or_else(gone)))
    }

    /// The parts of a program that is not compiled whole.
    pub fn op_by_op(
        &mut self,
        backend: &Arc<dyn Backend>,
        structure: &Structure,
        how: Compiling,
    ) -> (Found, Result<InParts>) {
        let mut found = self.begin();
        found.by_op = true;
        let parts = self.apart(backend, structure, how, &mut found);
        found.kept = self.made.len() as u64;
        (found, parts)
    }

    /// A lookup begins: what was made on the side is taken in.
    fn begin(&mut self) -> Found {
        self.clock += 1;
        for better in self.planner.made() {
            self.swap(better);
        }
        Found { improved: std::mem::take(&mut self.improved), ..Found::default() }
    }

    /// Makes sure of the program's own plan, or gives the parts in which it is to run.
    fn way(
        &mut self,
        backend: &Arc<dyn Backend>,
        key: u64,
        structure: &Arc<Structure>,
        how: Compiling,
        novel: &mut u32,
        found: &mut Found,
    ) -> Result<Option<InParts>> {
        if self.hit(backend, key, structure, Effort::Quick) {
            found.hits += 1;
            *novel = 0;
            return Ok(None);
        }
        let effort = if how.at_once() || structure.at_once { Effort::Full } else { Effort::Quick };
        let owed = self.owed.iter().position(|s| s == structure);
        if owed.and_then(|i| self.owed.remove(i)).is_some() {
            found.misses += 1;
            found.why = Some(Miss::BegunEarly);
            return self.make(backend, key, structure, effort, how, found).map(|_| None);
        }
        if self.evicted.contains(&key) || effort == Effort::Full {
            found.misses += 1;
            found.why = Some(self.why_missed(key, structure));
            return self.make(backend, key, structure, effort, how, found).map(|_| None);
        }
        let start = Instant::now();
        let kin = structure.kin();
        if let Some(mut family) = self.families.remove(&kin) {
            // It is out of the table while its parts are looked up there.
            let parts = self.resize(backend, &mut family, key, structure, how, found);
            let first = self.in_parts.get(&key).is_none_or(|times| *times < 2);
            let restless = parts.is_none() && found.resized && first && family.is_restless();
            self.families.insert(kin, family);
            *novel = 0;
            if let Some(parts) = parts {
                found.took = start.elapsed();
                return Ok(Some(parts));
            }
            if restless && let Some(parts) = self.apart_if_room(backend, structure, how, found)? {
                found.took = start.elapsed();
                return Ok(Some(parts));
            }
            if found.resized {
                self.make(backend, key, structure, effort, how, found)?;
                self.note_member(kin, key);
                return Ok(None);
            }
        }
        found.misses += 1;
        *novel += 1;
        if *novel > PATIENCE && self.once.len() < MAX_SEEN && self.once.insert(kin) {
            found.why = Some(Miss::Novel);
            if let Some(parts) = self.apart_if_room(backend, structure, how, found)? {
                found.took = start.elapsed();
                return Ok(Some(parts));
            }
        }
        if self.once.len() >= MAX_SEEN {
            self.once.clear();
        }
        if self.once.remove(&kin) {
            *novel = 0;
        }
        found.why = Some(self.why_missed(key, structure));
        let types = self.make(backend, key, structure, effort, how, found)?;
        self.found_family(kin, structure, types);
        self.note_member(kin, key);
        Ok(None)
    }

    /// The parts of a program that runs op by op, unless it needs too much memory that way: its values lie side by side, and
    /// a plan of its own may need less.
    fn apart_if_room(
        &mut self,
        backend: &Arc<dyn Backend>,
        structure: &Arc<Structure>,
        how: Compiling,
        found: &mut Found,
    ) -> Result<Option<InParts>> {
        let parts = self.apart(backend, structure, how, found)?;
        let (in_use, limit) = (backend.memory_in_use().0, backend.memory());
        Ok((in_use.saturating_add(parts.reserve as u64) <= limit).then_some(parts))
    }

    /// A member of a family has a plan of its own.
    fn note_member(&mut self, kin: u64, key: u64) {
        if let (Some(family), Some(made)) = (self.families.get_mut(&kin), self.made.get(&key)) {
            family.compiled(made.runs.clone());
        }
    }

    /// Begins a family with its first member, unless there is one.
    fn found_family(&mut self, kin: u64, structure: &Arc<Structure>, types: Vec<Ty>) {
        if self.families.contains_key(&kin) {
            return;
        }
        if self.families.len() >= MAX_FAMILIES {
            let oldest = self.families.iter().min_by_key(|(_, f)| f.used).map(|(&kin, _)| kin);
            oldest.and_then(|kin| self.families.remove(&kin));
        }
        self.families.insert(kin, Family::new(structure, types, count_ops(structure), self.clock));
    }

    /// True if there is a plan, which is used now.
    fn hit(
        &mut self,
        backend: &Arc<dyn Backend>,
        key: u64,
        structure: &Arc<Structure>,
        effort: Effort,
    ) -> bool {
        let Some(made) = self.made.get_mut(&key) else { return false };
        let apart = |effort| effort == Effort::Apart;
        let same = Arc::ptr_eq(&made.structure, structure) || made.structure == *structure;
        if !same || apart(effort) != apart(made.effort) {
            return false;
        }
        made.used = self.clock;
        made.runs.fetch_add(1, Ordering::Relaxed);
        // The next comparison with the same object is by pointer.
        made.structure = structure.clone();
        if made.left != NEVER {
            made.left -= 1;
            if made.left == 0 {
                // If there is too much to do already, it is asked for again.
                let asked = self.planner.ask(backend, key, structure);
                made.left = if asked { NEVER } else { 1 };
            }
        }
        true
    }

    /// Takes in a plan that was made on the side.
    fn swap(&mut self, better: Better) {
        let Better { key, structure, plan, took } = better;
        let Compiled { plan, types } = match plan {
            Ok(compiled) => compiled,
            Err(error) => return say(|| format!("plan {key:016x} stays as it is: {error}")),
        };
        match self.made.get_mut(&key) {
            Some(made) if made.structure != structure => {}
            Some(made) if made.plan.numerics() != plan.numerics() => {
                say(|| format!("plan {key:016x} stays as it is: the better one rounds otherwise"));
            }
            Some(made) => {
                say(|| format!("better plan {key:016x} made on the side in {took:?}\n{}", plan.text()));
                made.plan = plan;
                made.timed = Timed::default();
                made.effort = Effort::Full;
                self.improved += 1;
            }
            None => {
                say(|| format!("plan {key:016x} made on the side in {took:?}\n{}", plan.text()));
                self.in_parts.remove(&key);
                self.keep(key, &structure, Effort::Full, plan, &types, Compiling::default());
                self.improved += 1;
            }
        }
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
    pub fn owe(
        &mut self,
        backend: &Arc<dyn Backend>,
        program: &Program,
        how: Compiling,
        took: Duration,
    ) -> Found {
        let mut found = self.begin();
        (found.took, found.kept) = (took, self.made.len() as u64);
        let structure = &program.structure;
        let kin = structure.kin();
        if let Some(family) = self.families.get_mut(&kin) {
            family.used = self.clock;
            if family.compare(structure).is_some() {
                if family.sizes >= how.max_expand() {
                    found.resized = true;
                    self.came(backend, program.key, structure, how.threshold());
                    return found;
                }
                family.sizes += 1;
            }
        } else if let Ok(types) = structure.check() {
            self.found_family(kin, structure, types);
        }
        let known = self.owed.contains(structure);
        let why = if known { Miss::BegunEarly } else { self.why_missed(program.key, structure) };
        if !known {
            self.owed.push_back(structure.clone());
        }
        if self.owed.len() > MAX_OWED {
            self.owed.pop_front();
        }
        found.misses = 1;
        found.why = Some(why);
        found
    }

    /// What a program without plans of its own has come to.
    pub fn nothing(&self) -> Found {
        Found { kept: self.made.len() as u64, ..Found::default() }
    }

    /// True if a plan is to be made in a quiet moment.
    pub fn owes(&self) -> bool {
        !self.owed.is_empty()
    }

    /// Makes a plan that is owed.
    pub fn make_owed(&mut self, backend: &Arc<dyn Backend>) -> Option<Found> {
        let structure = self.owed.pop_front()?;
        let mut found = self.begin();
        found.why = Some(Miss::BegunEarly);
        let (key, how) = (structure.key(), Compiling::default());
        let _ = self.make(backend, key, &structure, Effort::Quick, how, &mut found);
        found.kept = self.made.len() as u64;
        Some(found)
    }

    /// Makes a plan and keeps it; gives the types of its structure's values.
    fn make(
        &mut self,
        backend: &Arc<dyn Backend>,
        key: u64,
        structure: &Arc<Structure>,
        effort: Effort,
        how: Compiling,
        found: &mut Found,
    ) -> Result<Vec<Ty>> {
        let start = Instant::now();
        let compiled = compile(&**backend, structure, effort);
        let took = start.elapsed();
        found.took += took;
        let Compiled { plan, types } = compiled?;
        found.made.0 += 1;
        found.made.1 += structure.instrs.len() as u64;
        say(|| {
            let (ops, why) = (structure.instrs.len(), found.why().unwrap_or("a part"));
            format!("plan {key:016x}, {ops} ops, made in {took:?} ({why})\n{}", plan.text())
        });
        self.keep(key, structure, effort, plan, &types, how);
        Ok(types)
    }

    fn keep(
        &mut self,
        key: u64,
        structure: &Arc<Structure>,
        effort: Effort,
        plan: Arc<dyn Plan>,
        types: &[Ty],
        how: Compiling,
    ) {
        self.instrs += structure.instrs.len();
        let outs = structure.outs.iter().map(|out| types[*out as usize].clone()).collect();
        let improves =
            effort == Effort::Quick && structure.instrs.len() >= how.min_seq() && plan.can_improve();
        let runs = Arc::new(AtomicU64::new(1));
        self.sequences.lock().follow(structure, &runs, how);
        let made = Made {
            plan,
            ops: count_ops(structure),
            outs,
            structure: structure.clone(),
            timed: Timed::default(),
            effort,
            used: self.clock,
            runs,
            left: if improves { how.threshold() } else { NEVER },
        };
        if let Some(old) = self.made.insert(key, made) {
            self.instrs -= old.structure.instrs.len();
        }
        // The newest stays even when it alone is over the bound.
        let over = |plans: &Plans| plans.made.len() > MAX_PLANS || plans.instrs > MAX_INSTRS;
        if self.made.len() < 2 || !over(self) {
            return;
        }
        // Some room is made at once, so that the next plan finds it.
        let mut oldest: Vec<(u64, u64)> = self.made.iter().map(|(key, m)| (m.used, *key)).collect();
        oldest.sort_unstable();
        for (_, old) in oldest.into_iter().filter(|(_, old)| *old != key) {
            if self.made.len() <= MAX_PLANS - MAX_PLANS / 16 && self.instrs <= MAX_INSTRS {
                break;
            }
            if let Some(made) = self.made.remove(&old) {
                self.instrs -= made.structure.instrs.len();
            }
            if self.evicted.len() >= MAX_SEEN {
                self.evicted.clear();
            }
            self.evicted.insert(old);
        }
        self.sequences.lock().forget_gone();
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

/// Makes a plan. A panic is an error like others.
pub fn compile(backend: &dyn Backend, structure: &Arc<Structure>, effort: Effort) -> Result<Compiled> {
    catch_unwind(AssertUnwindSafe(|| {
        let types = structure.check()?;
        Ok(Compiled { plan: backend.compile(structure, &types, effort)?, types })
    }))
    .unwrap_or_else(|panic| Err(Error::Runtime(format!("compiling failed: {}", panic_text(&*panic)))))
}

/// Says what was compiled (`GT_DEBUG_COMPILE=1`).
fn say(text: impl FnOnce() -> String) {
    if gt_ir::env::on("GT_DEBUG_COMPILE") {
        gt_ir::say!("gt compile: {}", text());
    }
}

fn gone() -> Error {
    Error::Runtime("the plan is gone".into())
}

/// Hashes a structure without its scalars, and without shapes or liveness where told.
fn hash(s: &Structure, shapes: bool, liveness: bool) -> u64 {
    let mut h = FixedState::default().build_hasher();
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
