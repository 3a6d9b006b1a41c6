//! The table of `gt.profiler.profile()`, and what it is made of.

use super::account::{Account, Sources, most};
use super::log::Reader;
use super::perfetto;
use super::text::{bytes, seconds};
use super::timeline::Timeline;
use gt_client::seen::ProgramLines;
use std::fmt::Write;

/// One row: a kernel with all its calls.
#[derive(Clone, Debug)]
pub struct Row {
    pub name: String,
    pub family: &'static str,
    pub calls: u64,
    pub seconds: f64,
    /// The source line that most of its time is for.
    pub line: String,
}

/// A trace of a session that was profiled.
pub struct Profile {
    lines: Vec<String>,
    programs: Vec<ProgramLines>,
}

/// Sums over a profile.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    pub programs: u64,
    pub busy: f64,
    pub waited: f64,
    pub planning: f64,
    pub bytes_in: f64,
    pub bytes_out: f64,
    /// From the first event to the last.
    pub length: f64,
}

impl Profile {
    pub fn new(lines: Vec<String>, programs: Vec<ProgramLines>) -> Profile {
        Profile { lines, programs }
    }

    fn reader(&self) -> Reader {
        let mut reader = Reader::default();
        self.lines.iter().for_each(|line| reader.line(line));
        reader
    }

    /// Rows from the most time down, and the sums.
    pub fn rows(&self) -> (Vec<Row>, Totals) {
        let entries = self.reader().entries;
        let sources = Sources::new(&self.programs, &entries);
        let account = Account::new(&entries, &sources, |_| true);
        let rows = Account::sorted(&account.kernels).into_iter().map(|(name, cost)| Row {
            name: name.clone(),
            family: cost.family.map_or("other", |f| f.text()),
            calls: cost.calls,
            seconds: cost.seconds,
            line: most(&cost.lines).unwrap_or_default().to_string(),
        });
        let carried = |way: &str| {
            let own = entries.iter().filter(|e| e.event == "CARRY" && e.what == way);
            own.filter_map(|e| e.number("bytes")).fold(0.0, |sum, n| sum + n)
        };
        let (bytes_in, bytes_out) = (carried("In"), carried("Out"));
        let sum = |of: fn(&super::account::Program) -> f64| account.programs.iter().map(of).sum::<f64>();
        let totals = Totals {
            programs: account.programs.len() as u64,
            busy: account.seconds(),
            waited: sum(|p| p.waited),
            planning: sum(|p| p.planning),
            bytes_in,
            bytes_out,
            length: Timeline::new(entries.clone()).length(),
        };
        (rows.collect(), totals)
    }

    /// A trace that Perfetto and Chrome open.
    pub fn json(&self) -> String {
        perfetto::json(&Timeline::new(self.reader().entries))
    }

    /// The trace in the instruction log's form.
    pub fn log(&self) -> String {
        self.lines.join("\n") + "\n"
    }
}

/// The rows as a table of at most `limit` rows.
pub fn table(rows: &[Row], totals: &Totals, limit: usize) -> String {
    let shown = &rows[..rows.len().min(limit)];
    let name = shown.iter().map(|r| r.name.chars().count()).max().unwrap_or(4).clamp(4, 48);
    let line = shown.iter().map(|r| r.line.chars().count()).max().unwrap_or(6).clamp(6, 48);
    let all: f64 = rows.iter().map(|r| r.seconds).sum::<f64>().max(1e-12);
    let rule = format!(
        "{}  {}  ------  ----------  ----------  ----------  {}\n",
        "-".repeat(name),
        "-".repeat(11),
        "-".repeat(line)
    );
    let mut out = rule.clone();
    let _ = writeln!(
        out,
        "{:<name$}  {:<11}  {:>6}  {:>10}  {:>10}  {:>10}  {:<line$}",
        "Name", "Family", "Self %", "Self time", "Time avg", "# of Calls", "Source"
    );
    out += &rule;
    for r in shown {
        let _ = writeln!(
            out,
            "{:<name$}  {:<11}  {:>5.1}%  {:>10}  {:>10}  {:>10}  {:<line$}",
            cut(&r.name, name),
            r.family,
            r.seconds / all * 100.0,
            seconds(r.seconds),
            seconds(r.seconds / r.calls.max(1) as f64),
            r.calls,
            tail(&r.line, line)
        );
    }
    out += &rule;
    if rows.len() > shown.len() {
        let _ = writeln!(out, "and {} more", rows.len() - shown.len());
    }
    let t = totals;
    let percent = t.busy / t.length.max(1e-12) * 100.0;
    let _ = writeln!(
        out,
        "device time {} of {} ({percent:.0}%), {} programs",
        seconds(t.busy),
        seconds(t.length),
        t.programs
    );
    let _ = writeln!(
        out,
        "in queues {}, making plans {}, {} to workers, {} from workers",
        seconds(t.waited),
        seconds(t.planning),
        bytes(t.bytes_in),
        bytes(t.bytes_out)
    );
    out
}

fn cut(text: &str, room: usize) -> String {
    match text.chars().count() <= room {
        true => text.to_string(),
        false => text.chars().take(room - 1).chain(['…']).collect(),
    }
}

/// The end of a text: of a path, that is what tells.
fn tail(text: &str, room: usize) -> String {
    let n = text.chars().count();
    match n <= room {
        true => text.to_string(),
        false => std::iter::once('…').chain(text.chars().skip(n - room + 1)).collect(),
    }
}
