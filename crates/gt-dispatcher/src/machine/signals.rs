//! The signals of a session: the table its marks refer to, and what is said about workers that are not there.

use super::session::Session;
use super::{Action, Cx};
use gt_ir::signal::{Present, SignalSpec};
use gt_ir::{Result, Structure, bail};
use gt_net::msg::{SessionMsg, WorkerId};
use std::collections::BTreeSet;

/// Signals of one session at most. A file edited while its program runs adds a few each time.
const MAX_SIGNALS: usize = 1 << 16;

/// A session's signals in the order they came.
#[derive(Debug, Default)]
pub struct Signals {
    specs: Vec<SignalSpec>,
    /// What the client was told of missing workers.
    told: BTreeSet<String>,
}

impl Signals {
    pub fn is_empty(&self) -> bool {
        self.specs.is_empty()
    }

    pub fn len(&self) -> usize {
        self.specs.len()
    }

    /// The signal of this number.
    pub fn get(&self, signal: u32) -> Option<&SignalSpec> {
        self.specs.get(signal as usize)
    }
}

impl Session {
    /// Takes more signals into the table. An error ends the session: no client of this build sends such.
    pub(super) fn add_signals(&mut self, specs: Vec<SignalSpec>) -> Result<()> {
        if self.signals.specs.len() + specs.len() > MAX_SIGNALS {
            bail!(Value, "signals: more than {MAX_SIGNALS} in one session");
        }
        specs.iter().try_for_each(SignalSpec::check)?;
        self.signals.specs.extend(specs);
        Ok(())
    }

    /// The mesh of a signal on the workers that are connected. What is missing is told to the client once.
    pub(super) fn mesh_of(&mut self, signal: u32, cx: &mut Cx) -> Result<Present> {
        let Some(spec) = self.signals.get(signal) else {
            bail!(Value, "program: it names signal {signal}, which was never sent");
        };
        let present = spec.on(&cx.pool.positions())?;
        // One signal may mean many layouts, and they are all short of the same workers.
        if let Some(warning) = &present.warning
            && !self.signals.told.contains(warning)
        {
            self.signals.told.insert(warning.clone());
            let line = format!("gt: warning: {warning}");
            cx.out.push(Action::ToClient(self.id, SessionMsg::Log { line, debug: true }));
        }
        Ok(present)
    }

    /// The worker a program is to run on, if its signals name a single one. All marks of a program are on one mesh.
    pub(super) fn marked_place(&mut self, structure: &Structure, cx: &mut Cx) -> Option<WorkerId> {
        let mesh = self.mesh_of(structure.marks.first()?.signal, cx).ok()?;
        match mesh.workers[..] {
            [position] => cx.pool.at(position),
            _ => None,
        }
    }

    /// Fails on marks whose signal is unknown, or has none of its workers. Where no worker is connected at all, that is what
    /// is wrong.
    pub(super) fn check_marks(&mut self, structure: &Structure, cx: &mut Cx) -> Result<()> {
        if cx.pool.is_empty() {
            return Ok(());
        }
        let mut last = None;
        for mark in &structure.marks {
            if last.replace(mark.signal) != Some(mark.signal) {
                self.mesh_of(mark.signal, cx)?;
            }
        }
        Ok(())
    }
}
