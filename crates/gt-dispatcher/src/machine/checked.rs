//! Structures that were found well formed, with the types of their values, for all sessions (C4).

use super::tensor::Made;
use gt_ir::{Binding, Instr, Op, Program, Result, Structure, Ty, bail};
use gt_net::msg::{ClientMsg, WorkerId};
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// Structures kept at most.
const MAX_STRUCTURES: usize = 2048;
/// Values of all structures kept at most.
const MAX_VALUES: usize = 1 << 21;
/// Structures remembered as equal to one that is kept.
const MAX_EQUAL: usize = 8;
/// Workers for which is kept what a structure's programs make there.
const MAX_MADE: usize = 4;

#[derive(Default)]
pub(super) struct Checked {
    known: HashMap<u64, Entry>,
    values: usize,
    clock: u64,
}

struct Entry {
    structure: Arc<Structure>,
    /// Others that were found equal, so that those who send them again are not compared again.
    equal: Vec<Weak<Structure>>,
    rules: Rules,
    /// What its programs make on the workers that ran them last.
    made: Vec<(WorkerId, Arc<Made>)>,
    used: u64,
}

impl Entry {
    /// True if this is about that structure.
    fn is_of(&mut self, structure: &Arc<Structure>) -> bool {
        let known = |equal: &Weak<Structure>| std::ptr::eq(equal.as_ptr(), Arc::as_ptr(structure));
        if Arc::ptr_eq(&self.structure, structure) || self.equal.iter().any(known) {
            return true;
        }
        let same = self.structure == *structure;
        if same {
            if self.equal.len() >= MAX_EQUAL {
                self.equal.remove(0);
            }
            self.equal.push(Arc::downgrade(structure));
        }
        same
    }
}

/// What is known of a structure.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    /// The types of its values, inputs first.
    pub types: Arc<[Ty]>,
    /// What a program of it may be bound to.
    pub binding: Arc<Binding>,
}

/// A structure that was found well formed. Finding that takes a while for a large one, which may pass on any thread.
#[derive(Clone, Debug)]
pub struct Vouched {
    key: u64,
    structure: Arc<Structure>,
    rules: Rules,
}

/// Structures of more instructions are looked at elsewhere than on the dispatcher's thread.
const LARGE: usize = 256;

impl Vouched {
    pub fn new(structure: &Arc<Structure>) -> Result<Vouched> {
        let collective = |i: &&Instr| matches!(i.op, Op::Collective(_));
        if let Some(instr) = structure.instrs.iter().find(collective) {
            bail!(Value, "program: {} is for the dispatcher alone to write", instr.op.text());
        }
        let types: Arc<[Ty]> = structure.check()?.into();
        let binding = Arc::new(Binding::of(structure, &types)?);
        let rules = Rules { types, binding };
        Ok(Vouched { key: structure.key(), structure: structure.clone(), rules })
    }

    /// What can be vouched for in a client's message. What is wrong shows in the dispatcher's own checks.
    pub fn all(message: &ClientMsg) -> Vec<Vouched> {
        large(message).filter_map(|program| Vouched::new(&program.structure).ok()).collect()
    }

    pub fn structure(&self) -> &Arc<Structure> {
        &self.structure
    }
}

/// The large programs of a message.
pub(super) fn large(message: &ClientMsg) -> impl Iterator<Item = &Program> {
    let runs = match message {
        ClientMsg::Batch(batch) => &batch.runs[..],
        _ => &[],
    };
    runs.iter().map(|run| &run.program).filter(|program| program.structure.instrs.len() > LARGE)
}

impl Checked {
    /// What is known of a program's structure. Lets the program share the structure that is known already.
    pub fn check(&mut self, program: &mut Program) -> Result<Rules> {
        self.clock += 1;
        if let Some(entry) = self.known.get_mut(&program.key)
            && entry.is_of(&program.structure)
        {
            entry.used = self.clock;
            program.structure = entry.structure.clone();
            return Ok(entry.rules.clone());
        }
        let Vouched { key, structure, rules } = Vouched::new(&program.structure)?;
        if program.key != key {
            bail!(Value, "program: its key does not belong to its structure");
        }
        self.keep(key, structure, rules.clone());
        Ok(rules)
    }

    /// True if a program's structure is known.
    pub fn knows(&mut self, program: &Program) -> bool {
        self.known.get_mut(&program.key).is_some_and(|entry| entry.is_of(&program.structure))
    }

    /// Takes the word of whoever has checked a structure.
    pub fn learn(&mut self, vouched: Vouched) {
        let Vouched { key, structure, rules } = vouched;
        if !self.known.get_mut(&key).is_some_and(|entry| entry.is_of(&structure)) {
            self.clock += 1;
            self.keep(key, structure, rules);
        }
    }

    /// What a program that was checked makes on a worker.
    pub fn made(&mut self, program: &Program, types: &[Ty], worker: WorkerId) -> Arc<Made> {
        let make = || Arc::new(Made::alone(&program.structure, types, worker));
        let Some(entry) = self.known.get_mut(&program.key) else { return make() };
        if let Some((_, made)) = entry.made.iter().find(|(at, _)| *at == worker) {
            return made.clone();
        }
        if entry.made.len() >= MAX_MADE {
            entry.made.remove(0);
        }
        let made = make();
        entry.made.push((worker, made.clone()));
        made
    }

    fn keep(&mut self, key: u64, structure: Arc<Structure>, rules: Rules) {
        self.values += rules.types.len();
        let entry = Entry { structure, equal: Vec::new(), rules, made: Vec::new(), used: self.clock };
        if let Some(old) = self.known.insert(key, entry) {
            self.values -= old.rules.types.len();
        }
        while self.known.len() > MAX_STRUCTURES || self.values > MAX_VALUES {
            let Some(oldest) = self.known.iter().min_by_key(|(_, e)| e.used).map(|(&key, _)| key) else {
                break;
            };
            if let Some(old) = self.known.remove(&oldest) {
                self.values -= old.rules.types.len();
            }
        }
    }
}
