//! Where in the user's program an instruction was written, for errors that name the line.

use crate::session::Session;
use crate::stream::SourceLine;
use foldhash::fast::FixedState;
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::OnceLock;

/// Gives the file (as a key and a way to name it) and line being executed.
pub type Locator = fn() -> Option<(usize, u32)>;
/// Names the file behind a key.
pub type FileName = fn(usize) -> String;

static LOCATOR: OnceLock<(Locator, FileName)> = OnceLock::new();

/// Installs the process's way to find the user's line. Only the first call counts.
pub fn install(locator: Locator, name: FileName) {
    let _ = LOCATOR.set((locator, name));
}

/// Names of the files seen by a session.
#[derive(Default)]
pub struct Files {
    names: Vec<String>,
    by_key: HashMap<usize, u32, FixedState>,
}

impl Files {
    /// `file.py:12`, if the line is known.
    pub fn describe(&self, at: SourceLine) -> Option<String> {
        let name = self.names.get((at.file as usize).checked_sub(1)?)?;
        Some(format!("{name}:{}", at.line))
    }
}

impl Files {
    /// Lines in order, each after a tab and with how often it comes in a row: `\ta.py:3*2\tb.py:7`.
    pub fn runs(&self, lines: &[SourceLine]) -> String {
        use std::fmt::Write;
        let mut out = String::new();
        for run in lines.chunk_by(|a, b| a == b) {
            let name = self.describe(run[0]).unwrap_or_else(|| "?".into());
            let _ = match run.len() {
                1 => write!(out, "\t{name}"),
                n => write!(out, "\t{name}*{n}"),
            };
        }
        out
    }
}

thread_local! {
    static HELD: Cell<Option<SourceLine>> = const { Cell::new(None) };
}

/// Attributes all that is recorded on this thread to the line being executed now, until dropped: one call of the
/// user, such as `backward()`, that records much.
pub(crate) struct Hold(Option<SourceLine>);

impl Hold {
    pub fn line(session: &Session) -> Hold {
        let line = current(session);
        Hold(HELD.replace(Some(line)))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        HELD.set(self.0);
    }
}

#[inline]
pub(crate) fn current(session: &Session) -> SourceLine {
    if let Some(line) = HELD.get() {
        return line;
    }
    let Some((locate, name)) = LOCATOR.get() else { return SourceLine::default() };
    let Some((key, line)) = locate() else { return SourceLine::default() };
    let mut files = session.files.lock();
    let file = match files.by_key.get(&key) {
        Some(&file) => file,
        None => {
            files.names.push(name(key));
            let file = files.names.len() as u32;
            files.by_key.insert(key, file);
            file
        }
    };
    SourceLine { file, line }
}
