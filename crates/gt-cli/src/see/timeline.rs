//! What happened when and where, out of the entries of logs.

use super::log::{self, Entry, Plans, Whom};
use gt_net::observe::Family;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Where something happens.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Lane {
    Client(usize),
    Dispatcher,
    Worker(usize),
}

/// The shape of a mark.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Kind {
    Program,
    Prefix,
    Upload,
    Fetch,
    Update,
    Free,
    Sync,
    Compile,
    Move,
    Connect,
    Disconnect,
    Error,
    Other,
}

impl Kind {
    pub const ALL: [Kind; 13] = [
        Kind::Program,
        Kind::Prefix,
        Kind::Upload,
        Kind::Fetch,
        Kind::Update,
        Kind::Free,
        Kind::Sync,
        Kind::Compile,
        Kind::Move,
        Kind::Connect,
        Kind::Disconnect,
        Kind::Error,
        Kind::Other,
    ];

    pub fn text(self) -> &'static str {
        match self {
            Kind::Program => "program",
            Kind::Prefix => "prefix",
            Kind::Upload => "upload",
            Kind::Fetch => "fetch",
            Kind::Update => "update",
            Kind::Free => "free",
            Kind::Sync => "sync",
            Kind::Compile => "compile",
            Kind::Move => "move",
            Kind::Connect => "connect",
            Kind::Disconnect => "disconnect",
            Kind::Error => "error",
            Kind::Other => "other",
        }
    }

    pub fn of(entry: &Entry) -> Kind {
        match (entry.event.as_str(), entry.what.as_str()) {
            ("ERROR", _) => Kind::Error,
            ("COMPILE", _) => Kind::Compile,
            ("MOVE", _) | (_, "Moved") => Kind::Move,
            ("CONNECT", _) => Kind::Connect,
            ("DISCONNECT", _) => Kind::Disconnect,
            (_, "Program") => Kind::Program,
            (_, "Prefix" | "Forget") => Kind::Prefix,
            (_, "Upload" | "Expect" | "Fulfil" | "Relay" | "Carry" | "Grant") => Kind::Upload,
            (_, "Fetch") => Kind::Fetch,
            (_, "Update") => Kind::Update,
            (_, "Free") => Kind::Free,
            (_, "Sync") => Kind::Sync,
            _ => Kind::Other,
        }
    }
}

/// Something without a length: a message, or news.
#[derive(Clone, Debug)]
pub struct Mark {
    pub at: f64,
    pub from: Lane,
    /// The same as `from` for what is no message.
    pub to: Lane,
    pub kind: Kind,
    pub bytes: f64,
    pub text: String,
}

/// A program on a worker.
#[derive(Clone, Debug)]
pub struct Span {
    pub worker: usize,
    pub client: Option<usize>,
    pub start: f64,
    pub took: f64,
    pub waited: f64,
    pub planning: f64,
    pub seq: u64,
    pub key: String,
    pub ops: u64,
    pub families: Vec<(Family, f64)>,
    pub failed: bool,
    pub why: Option<String>,
}

impl Span {
    /// What a `RAN` entry tells.
    pub fn new(entry: &Entry, worker: usize, client: Option<usize>) -> Span {
        let ms = |name| entry.number(name).unwrap_or(0.0) / 1e3;
        Span {
            worker,
            client,
            start: entry.number("start").unwrap_or(entry.at),
            took: ms("took"),
            waited: ms("waited"),
            planning: ms("plan"),
            seq: entry.count("seq").unwrap_or(0),
            key: entry.field("key").unwrap_or_default().to_string(),
            ops: entry.count("ops").unwrap_or(0),
            families: log::families(entry.field("families").unwrap_or_default()),
            failed: entry.details.split(" why=").next().is_some_and(|d| d.ends_with(" failed")),
            why: entry.rest("why").map(str::to_string),
        }
    }

    /// The family that took most of it.
    pub fn main(&self) -> Family {
        let most = self.families.iter().max_by(|a, b| a.1.total_cmp(&b.1));
        most.map_or(Family::Other, |(family, _)| *family)
    }
}

/// A step of a program on a worker.
#[derive(Clone, Debug)]
pub struct Kernel {
    pub worker: usize,
    pub start: f64,
    pub took: f64,
    pub family: Family,
    pub name: std::rc::Rc<str>,
}

/// A tensor on its way.
#[derive(Clone, Debug)]
pub struct Transfer {
    pub worker: usize,
    /// The other end, where the log tells it.
    pub other: Option<Lane>,
    pub inward: bool,
    pub start: f64,
    pub took: f64,
    pub bytes: f64,
    pub tensor: u64,
}

/// All that a picture shows.
#[derive(Default)]
pub struct Timeline {
    pub clients: Vec<String>,
    pub workers: Vec<String>,
    pub marks: Vec<Mark>,
    pub spans: Vec<Span>,
    pub kernels: Vec<Kernel>,
    pub transfers: Vec<Transfer>,
    /// Times during which a client had unfinished programs.
    pub unfinished: Vec<(usize, f64, f64)>,
    pub start: f64,
    pub end: f64,
    pub events: usize,
}

/// Makes a timeline while entries pass.
#[derive(Default)]
struct Maker {
    line: Timeline,
    client: HashMap<String, usize>,
    worker: HashMap<String, usize>,
    /// Clients by session.
    sessions: HashMap<u64, usize>,
    /// Who brings or fetches a tensor: (client) and where moves go.
    uploads: HashMap<(usize, u64), f64>,
    goals: HashMap<u64, Lane>,
    /// Since when a client has unfinished programs, and the last one it sent.
    open: BTreeMap<usize, (f64, u64)>,
    plans: Plans,
}

impl Timeline {
    /// The timeline of entries of one or several logs.
    pub fn new(mut entries: Vec<Entry>) -> Timeline {
        entries.sort_by(|a, b| a.at.total_cmp(&b.at));
        let mut maker = Maker::default();
        maker.lanes(&entries);
        for entry in &entries {
            maker.entry(entry);
        }
        maker.finish(entries.len())
    }

    pub fn length(&self) -> f64 {
        (self.end - self.start).max(1e-6)
    }
}

impl Maker {
    /// Gives everyone a lane, in the order of names, numbers in them by their value.
    fn lanes(&mut self, entries: &[Entry]) {
        let mut seen: HashSet<&Whom> = HashSet::new();
        let mut all: Vec<&Whom> = entries.iter().map(|e| &e.whom).filter(|w| seen.insert(w)).collect();
        all.sort_by_key(|whom| match whom {
            Whom::Client(name) | Whom::Worker(name) => natural(name),
        });
        for whom in all {
            self.lane(whom);
        }
    }

    fn lane(&mut self, whom: &Whom) -> Lane {
        let (names, index, name) = match whom {
            Whom::Client(name) => (&mut self.line.clients, &mut self.client, name),
            Whom::Worker(name) => (&mut self.line.workers, &mut self.worker, name),
        };
        let at = *index.entry(name.clone()).or_insert_with(|| {
            names.push(name.clone());
            names.len() - 1
        });
        if matches!(whom, Whom::Client(_)) { Lane::Client(at) } else { Lane::Worker(at) }
    }

    fn entry(&mut self, entry: &Entry) {
        let lane = self.lane(&entry.whom);
        if let (Lane::Client(c), Some(session)) = (lane, entry.count("session")) {
            self.sessions.insert(session, c);
        }
        match (entry.event.as_str(), lane) {
            ("RAN", Lane::Worker(worker)) => self.ran(entry, worker),
            ("KERNELS", Lane::Worker(worker)) => self.kernels(entry, worker),
            ("CARRY", Lane::Worker(worker)) => self.carried(entry, worker),
            ("STEPS", _) => self.plans.take(entry),
            ("LINES", _) => {}
            (event, lane) => {
                let (from, to) = match event {
                    "RECV" => (lane, Lane::Dispatcher),
                    "SEND" => (Lane::Dispatcher, lane),
                    "WORKER_SEND" => (Lane::Dispatcher, lane),
                    "WORKER_RECV" => (lane, Lane::Dispatcher),
                    _ => (lane, lane),
                };
                self.follow(entry, lane);
                let text = format!("{} {}", entry.what, entry.details);
                let (at, kind, bytes) = (entry.at, Kind::of(entry), entry.bytes);
                self.line.marks.push(Mark { at, from, to, kind, bytes, text });
            }
        }
    }

    /// Remembers what later entries refer to.
    fn follow(&mut self, entry: &Entry, lane: Lane) {
        match (entry.event.as_str(), entry.what.as_str(), lane) {
            ("RECV", "Upload", Lane::Client(c)) => {
                if let Some(tensor) = entry.tensor() {
                    self.uploads.insert((c, tensor), entry.at);
                }
            }
            ("MOVE", _, Lane::Worker(_)) => {
                let goal = entry.details.split(" to ").nth(1).and_then(|rest| rest.rsplit_once(" directly"));
                let goal = goal.and_then(|(name, _)| self.worker.get(name));
                if let (Some(tensor), Some(goal)) = (entry.tensor(), goal) {
                    self.goals.insert(tensor, Lane::Worker(*goal));
                }
            }
            ("RECV", "Program", Lane::Client(c)) => {
                let seq = entry.count("seq").unwrap_or(0);
                self.open.entry(c).or_insert((entry.at, seq)).1 = seq;
            }
            ("SEND", "Update", Lane::Client(c)) => {
                let done = entry.count("completed").unwrap_or(0);
                if let Some((since, last)) = self.open.get(&c).copied().filter(|(_, last)| done >= *last) {
                    debug_assert!(done >= last);
                    self.open.remove(&c);
                    self.line.unfinished.push((c, since, entry.at));
                }
            }
            _ => {}
        }
    }

    fn ran(&mut self, entry: &Entry, worker: usize) {
        let client = entry.count("session").and_then(|s| self.sessions.get(&s).copied());
        self.line.spans.push(Span::new(entry, worker, client));
    }

    fn kernels(&mut self, entry: &Entry, worker: usize) {
        let start = entry.number("start").unwrap_or(entry.at);
        let steps = self.plans.of(entry);
        for (step, offset, took) in log::times(entry.field("times").unwrap_or_default()) {
            let info = steps.and_then(|s| s.get(step as usize));
            let family = info.map_or(Family::Other, |s| s.family);
            let name = info.map_or_else(|| format!("step {step}").into(), |s| s.name.clone());
            let start = start + offset;
            self.line.kernels.push(Kernel { worker, start, took, family, name });
        }
    }

    fn carried(&mut self, entry: &Entry, worker: usize) {
        let tensor = entry.tensor().unwrap_or(0);
        let inward = entry.what == "In";
        let client = entry.count("session").and_then(|s| self.sessions.get(&s).copied());
        let upload = client.filter(|c| inward && self.uploads.remove(&(*c, tensor)).is_some());
        let goal = if inward { None } else { self.goals.remove(&tensor) };
        let other = match (upload, goal, inward) {
            (Some(c), _, _) => Some(Lane::Client(c)),
            (None, Some(goal), _) => Some(goal),
            // What leaves a worker without a goal is a value that its client looks at.
            (None, None, false) => client.map(Lane::Client),
            (None, None, true) => None,
        };
        self.line.transfers.push(Transfer {
            worker,
            other,
            inward,
            start: entry.number("start").unwrap_or(entry.at),
            took: entry.number("took").unwrap_or(0.0) / 1e3,
            bytes: entry.count("bytes").map_or(entry.bytes, |n| n as f64),
            tensor,
        });
    }

    fn finish(mut self, events: usize) -> Timeline {
        let line = &mut self.line;
        let ends = line.marks.iter().map(|m| (m.at, m.at));
        let ends = ends.chain(line.spans.iter().map(|s| (s.start, s.start + s.took)));
        let ends = ends.chain(line.transfers.iter().map(|t| (t.start, t.start + t.took)));
        let (start, end) =
            ends.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), (x, y)| (a.min(x), b.max(y)));
        (line.start, line.end) = if start <= end { (start, end) } else { (0.0, 0.0) };
        for (client, (since, _)) in self.open {
            line.unfinished.push((client, since, line.end));
        }
        line.events = events;
        self.line
    }
}

/// A name in parts that sort as people expect: `w2` before `w10`.
pub fn natural(name: &str) -> Vec<(String, u64)> {
    let mut parts = vec![(String::new(), 0u64)];
    let mut digits = false;
    for c in name.chars() {
        match c.to_digit(10) {
            Some(d) => {
                digits = true;
                if let Some(last) = parts.last_mut() {
                    last.1 = last.1.saturating_mul(10).saturating_add(d as u64);
                }
            }
            None => {
                if std::mem::replace(&mut digits, false) {
                    parts.push((String::new(), 0));
                }
                if let Some(last) = parts.last_mut() {
                    last.0.push(c);
                }
            }
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::see::log::Reader;

    #[test]
    fn lanes_are_in_order_and_transfers_know_both_ends() {
        let mut reader = Reader::default();
        for line in [
            "0.100000s | #1 | CONNECT | WORKER w10 | Worker | 0B | cpu",
            "0.100000s | #2 | CONNECT | WORKER w2 | Worker | 0B | cpu",
            "0.100000s | #3 | CONNECT | CLIENT a | Session | 0B | session=5",
            "0.200000s | #4 | RECV | CLIENT a | Upload | 1.00MB | TENSOR[7] f32[512,512] straight to the worker",
            "0.210000s | #5 | RECV | CLIENT a | Program | 226B | session=5 seq=1 key=ab ops=3 in=1 out=1 frees=0",
            "0.300000s | #6 | CARRY | WORKER w2 | In | 1.00MB | session=5 TENSOR[7] bytes=1048576 start=0.220000s took=1.000ms",
            "0.300000s | #7 | RAN | WORKER w2 | Program | 0B | session=5 seq=1 key=ab ops=3 start=0.230000s took=50.000ms \
             waited=1.000ms plan=2.000ms families=matmul:100 why=first sight",
            "0.310000s | #8 | SEND | CLIENT a | Update | 20B | completed=1 values=0 failures=0",
        ] {
            reader.line(line);
        }
        let line = Timeline::new(reader.entries);
        assert_eq!(line.workers, ["w2", "w10"]);
        assert_eq!(line.transfers[0].other, Some(Lane::Client(0)));
        let span = &line.spans[0];
        assert_eq!((span.client, span.worker, span.main()), (Some(0), 0, Family::Matmul));
        assert_eq!(span.why.as_deref(), Some("first sight"));
        assert!((line.unfinished[0].1 - 0.21).abs() < 1e-9 && (line.unfinished[0].2 - 0.31).abs() < 1e-9);
        assert!((line.length() - 0.21).abs() < 1e-9);
    }
}
