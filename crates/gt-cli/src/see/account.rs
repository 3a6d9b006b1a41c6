//! Where time went, out of a log: by kernel and by source line.

use super::log::{self, Entry, Plans};
use gt_client::seen::ProgramLines;
use gt_net::observe::Family;
use std::collections::{BTreeMap, HashMap};

/// The source lines of programs, found by their number or by their plan key.
#[derive(Default)]
pub struct Sources {
    by_seq: HashMap<u64, Vec<Option<String>>>,
    by_key: HashMap<String, Vec<Option<String>>>,
    /// The key that a client's program had when it came: workers may run parts of it under other keys.
    keys: HashMap<u64, String>,
}

impl Sources {
    /// Lines as a session remembers them, and those that a client has written into its log.
    pub fn new(programs: &[ProgramLines], entries: &[Entry]) -> Sources {
        let mut out = Sources::default();
        for program in programs {
            out.by_seq.insert(program.seq, program.lines.clone());
        }
        for entry in entries {
            if let ("RECV", Some(seq), Some(key)) =
                (entry.event.as_str(), entry.count("seq"), entry.field("key"))
            {
                out.keys.insert(seq, key.to_string());
            }
            if let (Some(seq), Some(key)) = (entry.count("seq"), entry.field("key"))
                && let Some(lines) = out.by_seq.get(&seq)
            {
                out.by_key.entry(key.to_string()).or_insert_with(|| lines.clone());
            }
            for text in &entry.more {
                if let Some((key, lines)) = written(text) {
                    out.by_key.insert(key, lines);
                }
            }
        }
        out
    }

    fn line(&self, seq: u64, key: &str, instr: u32) -> Option<&str> {
        let whole = || self.keys.get(&seq).and_then(|key| self.by_key.get(key));
        let lines = self.by_seq.get(&seq).or_else(whole).or_else(|| self.by_key.get(key))?;
        lines.get(instr as usize)?.as_deref()
    }

    /// True if no line is known at all.
    pub fn is_empty(&self) -> bool {
        self.by_seq.is_empty() && self.by_key.is_empty()
    }
}

/// `LINES key=00ff a.py:3*2 b.py:7`: lines of instructions in order, each with how often it comes in a row.
fn written(text: &str) -> Option<(String, Vec<Option<String>>)> {
    let mut words = text.strip_prefix("LINES key=")?.split('\t');
    let key = words.next()?.to_string();
    let mut lines = Vec::new();
    for word in words {
        let (line, times) = word.rsplit_once('*').unwrap_or((word, "1"));
        let line = (line != "?").then(|| line.to_string());
        lines.extend(std::iter::repeat_n(line, times.parse().unwrap_or(1)));
    }
    Some((key, lines))
}

/// Time of one kind.
#[derive(Clone, Debug, Default)]
pub struct Cost {
    pub seconds: f64,
    pub calls: u64,
    /// What it was spent on, by name.
    pub what: BTreeMap<String, f64>,
    pub lines: BTreeMap<String, f64>,
    pub family: Option<Family>,
}

/// Costs of a stretch of a log.
#[derive(Default)]
pub struct Account {
    pub kernels: BTreeMap<String, Cost>,
    pub lines: BTreeMap<String, Cost>,
    pub programs: Vec<Program>,
    /// Kernels were not timed: times by line are shares of their programs' times.
    pub estimated: bool,
}

/// One program that ran.
#[derive(Clone, Debug)]
pub struct Program {
    pub seq: u64,
    pub worker: String,
    pub ops: u64,
    pub took: f64,
    pub waited: f64,
    pub planning: f64,
    pub why: Option<String>,
    pub failed: bool,
    pub families: Vec<(Family, f64)>,
}

impl Account {
    /// Adds up the entries of programs that `wanted` picks by their number.
    pub fn new(entries: &[Entry], sources: &Sources, wanted: impl Fn(u64) -> bool) -> Account {
        let mut plans = Plans::default();
        let mut out = Account::default();
        let mut timed: HashMap<(u64, u64), bool> = HashMap::new();
        let of = |e: &Entry| (e.count("session").unwrap_or(0), e.count("seq").unwrap_or(0));
        for entry in entries {
            match entry.event.as_str() {
                "STEPS" => plans.take(entry),
                "KERNELS" if wanted(of(entry).1) => {
                    timed.insert(of(entry), true);
                    out.add_kernels(entry, of(entry).1, &plans, sources);
                }
                _ => {}
            }
        }
        for entry in entries.iter().filter(|e| e.event == "RAN" && wanted(of(e).1)) {
            let program = program(entry);
            if !timed.contains_key(&of(entry)) {
                out.add_untimed(entry, &program, sources);
            }
            out.programs.push(program);
        }
        out
    }

    fn add_kernels(&mut self, entry: &Entry, seq: u64, plans: &Plans, sources: &Sources) {
        let key = entry.field("key").unwrap_or_default();
        let steps = plans.of(entry);
        for (step, _, took) in log::times(entry.field("times").unwrap_or_default()) {
            let Some(info) = steps.and_then(|s| s.get(step as usize)) else { continue };
            let mut at: Vec<&str> = info.instrs.iter().filter_map(|i| sources.line(seq, key, *i)).collect();
            at.sort_unstable();
            at.dedup();
            let kernel = self.kernels.entry(info.name.to_string()).or_default();
            kernel.seconds += took;
            kernel.calls += 1;
            kernel.family = Some(info.family);
            // A kernel that does the work of several lines is shared among them.
            let part = took / at.len().max(1) as f64;
            if at.is_empty() {
                at.push("(line unknown)");
            }
            for line in at {
                *kernel.lines.entry(line.to_string()).or_default() += part;
                let cost = self.lines.entry(line.to_string()).or_default();
                cost.seconds += part;
                cost.calls += 1;
                *cost.what.entry(info.name.to_string()).or_default() += part;
            }
        }
    }

    /// Shares a program's time among the lines of its instructions.
    fn add_untimed(&mut self, entry: &Entry, program: &Program, sources: &Sources) {
        self.estimated = true;
        let key = entry.field("key").unwrap_or_default();
        let part = program.took / program.ops.max(1) as f64;
        for instr in 0..program.ops as u32 {
            let line = sources.line(program.seq, key, instr).unwrap_or("(line unknown)");
            let cost = self.lines.entry(line.to_string()).or_default();
            cost.seconds += part;
            cost.calls += 1;
        }
        for (family, share) in &program.families {
            let kernel = self.kernels.entry(family.text().to_string()).or_default();
            kernel.seconds += program.took * share;
            kernel.calls += 1;
            kernel.family = Some(*family);
        }
    }

    pub fn seconds(&self) -> f64 {
        self.programs.iter().map(|p| p.took).sum()
    }

    /// Costs from the largest down.
    pub fn sorted(costs: &BTreeMap<String, Cost>) -> Vec<(&String, &Cost)> {
        let mut all: Vec<_> = costs.iter().collect();
        all.sort_by(|a, b| b.1.seconds.total_cmp(&a.1.seconds));
        all
    }
}

fn program(entry: &Entry) -> Program {
    let ms = |name| entry.number(name).unwrap_or(0.0) / 1e3;
    let worker = match &entry.whom {
        log::Whom::Worker(name) | log::Whom::Client(name) => name.clone(),
    };
    Program {
        seq: entry.count("seq").unwrap_or(0),
        worker,
        ops: entry.count("ops").unwrap_or(0),
        took: ms("took"),
        waited: ms("waited"),
        planning: ms("plan"),
        why: entry.rest("why").map(str::to_string),
        failed: entry.details.split(" why=").next().is_some_and(|d| d.ends_with(" failed")),
        families: log::families(entry.field("families").unwrap_or_default()),
    }
}

/// The entry of a map that has most.
pub fn most(of: &BTreeMap<String, f64>) -> Option<&str> {
    of.iter().max_by(|a, b| a.1.total_cmp(b.1)).map(|(name, _)| name.as_str())
}
