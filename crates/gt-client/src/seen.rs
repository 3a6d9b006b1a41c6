//! What a session can see of itself: its own trace, its last programs with their source lines, its live tensors.

use crate::session::Session;
use crate::stream::SourceLine;
use gt_ir::{Result, Ty};
use gt_net::msg::ClientMsg;
use gt_net::observe::{Detail, Scope};

/// Programs whose source lines are remembered after they finished, and their lines together.
const MAX_PROGRAMS: usize = 512;
const MAX_LINES: usize = 1 << 18;

/// The source lines of a program that has finished.
pub(crate) struct Sources {
    pub seq: u64,
    pub lines: Vec<SourceLine>,
    /// It ended an optimizer step.
    pub ends_step: bool,
}

/// The last programs.
#[derive(Default)]
pub(crate) struct Recent {
    programs: std::collections::VecDeque<Sources>,
    lines: usize,
}

impl Recent {
    pub fn push(&mut self, sources: Sources) {
        self.lines += sources.lines.len();
        self.programs.push_back(sources);
        while self.programs.len() > MAX_PROGRAMS || (self.lines > MAX_LINES && self.programs.len() > 1) {
            let old = self.programs.pop_front();
            self.lines -= old.map_or(0, |old| old.lines.len());
        }
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Sources> {
        self.programs.iter()
    }
}

/// A program with the source line of each of its instructions, where that is known.
#[derive(Clone, Debug)]
pub struct ProgramLines {
    pub seq: u64,
    pub lines: Vec<Option<String>>,
    /// It ended an optimizer step.
    pub ends_step: bool,
}

/// What there is to say about the last programs.
pub struct Account {
    /// In the instruction log's form.
    pub log: Vec<String>,
    pub programs: Vec<ProgramLines>,
}

/// A tensor that lives on a worker.
#[derive(Clone, Debug)]
pub struct Living {
    pub id: u64,
    pub ty: Ty,
    /// Bytes on all workers together.
    pub bytes: u64,
    pub workers: Vec<String>,
    /// The source line that made it, where that is known.
    pub line: Option<String>,
}

impl Session {
    /// Begins or ends to trace this session's own work.
    pub fn trace(&self, detail: Detail) -> Result<()> {
        self.send(ClientMsg::Watch { scope: Scope::Own, detail, every_ms: 0 })
    }

    /// The lines traced so far. All work that was recorded has been done and is among them.
    pub fn take_trace(&self) -> Result<Vec<String>> {
        self.synchronize()?;
        // Workers tell what they have before they answer.
        self.stats()?;
        Ok(self.take_lines())
    }

    /// The last programs, with what workers and dispatcher remember of them.
    pub fn account(&self) -> Result<Account> {
        self.synchronize()?;
        drop(self.take_lines());
        self.send(ClientMsg::Recent)?;
        self.stats()?;
        Ok(Account { log: self.take_lines(), programs: self.program_lines() })
    }

    /// The source lines of the last programs, oldest first.
    pub fn program_lines(&self) -> Vec<ProgramLines> {
        let mut out = Vec::new();
        self.with_sources(|seq, lines, ends_step| out.push((seq, lines.to_vec(), ends_step)));
        let files = self.files.lock();
        let named = |lines: Vec<SourceLine>| lines.into_iter().map(|at| files.describe(at)).collect();
        out.into_iter()
            .map(|(seq, lines, ends_step)| ProgramLines { seq, lines: named(lines), ends_step })
            .collect()
    }

    /// The tensors of this session that live on workers.
    pub fn living(&self) -> Result<Vec<Living>> {
        self.synchronize()?;
        let tensors = self.ask_tensors()?;
        let lines = self.made_by();
        let files = self.files.lock();
        let living = tensors.into_iter().map(|(id, ty, bytes, workers)| {
            let line = lines.get(&id).and_then(|at| files.describe(*at));
            Living { id: id.0, ty, bytes, workers, line }
        });
        Ok(living.collect())
    }
}
