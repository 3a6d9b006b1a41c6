//! Structures that were found well formed, with the types of their values, for all sessions (C4).

use gt_ir::{Binding, Instr, Op, Program, Result, Structure, Ty, bail};
use std::collections::HashMap;
use std::sync::Arc;

/// Structures kept at most.
const MAX_STRUCTURES: usize = 2048;
/// Values of all structures kept at most.
const MAX_VALUES: usize = 1 << 21;

#[derive(Default)]
pub(super) struct Checked {
    known: HashMap<u64, Entry>,
    values: usize,
    clock: u64,
}

struct Entry {
    structure: Arc<Structure>,
    rules: Rules,
    used: u64,
}

/// What is known of a structure.
#[derive(Clone)]
pub(super) struct Rules {
    /// The types of its values, inputs first.
    pub types: Arc<[Ty]>,
    /// What a program of it may be bound to.
    pub binding: Arc<Binding>,
}

impl Checked {
    /// What is known of a program's structure. Lets the program share the structure that is known already.
    pub fn check(&mut self, program: &mut Program) -> Result<Rules> {
        self.clock += 1;
        if let Some(entry) = self.known.get_mut(&program.key) {
            let same = Arc::ptr_eq(&entry.structure, &program.structure);
            if same || entry.structure == program.structure {
                entry.used = self.clock;
                program.structure = entry.structure.clone();
                return Ok(entry.rules.clone());
            }
        }
        if program.key != program.structure.key() {
            bail!(Value, "program: its key does not belong to its structure");
        }
        let collective = |i: &&Instr| matches!(i.op, Op::Collective(_));
        if let Some(instr) = program.structure.instrs.iter().find(collective) {
            bail!(Value, "program: {} is for the dispatcher alone to write", instr.op.text());
        }
        let types: Arc<[Ty]> = program.structure.check()?.into();
        let binding = Arc::new(Binding::of(&program.structure, &types)?);
        let rules = Rules { types, binding };
        self.keep(program, rules.clone());
        Ok(rules)
    }

    fn keep(&mut self, program: &Program, rules: Rules) {
        self.values += rules.types.len();
        let entry = Entry { structure: program.structure.clone(), rules, used: self.clock };
        if let Some(old) = self.known.insert(program.key, entry) {
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
