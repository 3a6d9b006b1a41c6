//! What hangs on gangs that a device is still at: results, and what programs have made of them since. Nothing of it leaves
//! the worker before it is known that the gang went well. If it did not, all of it gets the root cause, and so does what
//! was given up to those programs: it may have been overwritten (C5).

use crate::gang::aloft::Doubt;
use crate::table::{Entry, SessionTable};
use foldhash::fast::FixedState;
use gt_ir::{Program, TensorId};
use gt_net::msg::Failure;
use std::collections::HashSet;
use std::sync::Arc;

/// What hangs on one gang.
pub struct Hanging {
    doubt: Arc<Doubt>,
    /// Results of its program and of those that have read them.
    values: HashSet<TensorId, FixedState>,
    /// What was given up to these programs, or freed with them.
    given: Vec<TensorId>,
    programs: Vec<u64>,
}

impl Hanging {
    /// A program hangs on it too.
    fn add(&mut self, seq: u64, program: &Program) {
        let declared = program.inputs.iter().zip(&program.structure.inputs);
        self.values.extend(&program.outs);
        self.given.extend(declared.filter(|(_, input)| input.dies).map(|(id, _)| *id));
        self.given.extend(&program.frees);
        self.programs.push(seq);
    }
}

impl SessionTable {
    /// A program of a gang has been queued, and is in doubt.
    pub fn in_doubt(&mut self, doubt: Arc<Doubt>, program: &Program) {
        let seq = doubt.seq;
        let (values, given, programs) = (HashSet::default(), Vec::new(), Vec::new());
        self.hanging.push(Hanging { doubt, values, given, programs });
        self.hangs(seq, program);
        if let Some(own) = self.hanging.last_mut() {
            own.add(seq, program);
        }
    }

    /// A program has run: what it made of values in doubt is in doubt as they are.
    pub fn hangs(&mut self, seq: u64, program: &Program) {
        for on in &mut self.hanging {
            if program.inputs.iter().any(|id| on.values.contains(id)) {
                on.add(seq, program);
            }
        }
    }

    /// The gangs that a tensor hangs on.
    pub fn doubts(&self, id: TensorId) -> Vec<Arc<Doubt>> {
        let on = self.hanging.iter().filter(|on| on.values.contains(&id));
        on.map(|on| on.doubt.clone()).collect()
    }

    /// The gangs that some programs hang on, with these programs.
    pub fn doubts_in(&self, programs: &[u64]) -> Vec<(Arc<Doubt>, Vec<u64>)> {
        let of = |on: &Hanging| {
            let mut seqs = programs.iter().filter(|seq| on.programs.contains(seq)).copied().peekable();
            seqs.peek().is_some().then(|| (on.doubt.clone(), seqs.collect()))
        };
        self.hanging.iter().filter_map(of).collect()
    }

    /// A gang went well: nothing hangs on it any more.
    pub fn settled(&mut self, doubt: &Arc<Doubt>) {
        self.hanging.retain(|on| !Arc::ptr_eq(&on.doubt, doubt));
    }

    /// A gang failed: what hangs on it has no value, and so has what was given up for it. Gives what is dropped by that.
    /// What is still being made of it will find it here.
    pub fn condemned(&mut self, doubt: &Arc<Doubt>, failure: &Failure) -> Vec<Entry> {
        let mut dropped = Vec::new();
        let Some(at) = self.hanging.iter().position(|on| Arc::ptr_eq(&on.doubt, doubt)) else {
            return dropped;
        };
        let given = std::mem::take(&mut self.hanging[at].given);
        let here = |id: &TensorId| matches!(self.get(*id), Some(Entry::Here { .. }));
        let values: Vec<TensorId> = self.hanging[at].values.iter().filter(|id| here(id)).copied().collect();
        for id in values.into_iter().chain(given) {
            dropped.extend(self.remove(id));
            self.insert(id, Entry::Poisoned(failure.clone()));
        }
        dropped
    }
}
