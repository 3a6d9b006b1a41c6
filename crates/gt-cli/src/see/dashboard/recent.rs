//! What happened in the last seconds, kept as the page wants it. Every line is read once, when it comes, and most of
//! them are not for the page: asking for the timeline costs little however much happens.

use crate::see::log::{self, Entry, Whom};
use crate::see::perfetto::quoted;
use crate::see::timeline::{Kind, Span, natural};
use std::collections::{HashMap, VecDeque};
use std::fmt::Write;

/// Seconds that are kept, and programs at most.
const SECONDS: f64 = 6.0;
const MAX_SPANS: usize = 20_000;
/// Names at most, before all is forgotten.
const MAX_NAMES: usize = 10_000;

/// The last seconds.
#[derive(Default)]
pub struct Recent {
    /// Seconds of the server's clock.
    now: f64,
    workers: Names,
    clients: Names,
    /// Clients by session.
    sessions: HashMap<u64, usize>,
    spans: VecDeque<Ran>,
    /// The number of the first span that is kept: they are counted as they come, and a page asks for those it has not.
    first: u64,
    marks: VecDeque<(f64, String)>,
}

/// A program that ran.
struct Ran {
    end: f64,
    worker: usize,
    client: Option<usize>,
    /// The span as JSON.
    text: String,
}

/// Names in the order of their coming.
#[derive(Default)]
struct Names {
    names: Vec<String>,
    index: HashMap<String, usize>,
    /// Those who are connected.
    here: Vec<bool>,
}

impl Names {
    fn find(&mut self, name: &str) -> usize {
        if let Some(at) = self.index.get(name) {
            return *at;
        }
        self.names.push(name.to_string());
        self.here.push(false);
        self.index.insert(name.to_string(), self.names.len() - 1);
        self.names.len() - 1
    }

    fn connect(&mut self, name: &str, here: bool) -> usize {
        let at = self.find(name);
        self.here[at] = here;
        at
    }

    /// Number and name of those who are here or have `done` something, in order, as JSON.
    fn lanes(&self, done: &[bool]) -> String {
        let mut shown: Vec<usize> = (0..self.names.len()).filter(|i| self.here[*i] || done[*i]).collect();
        shown.sort_by_cached_key(|i| natural(&self.names[*i]));
        let lanes: Vec<String> = shown.iter().map(|i| format!("[{i},{}]", quoted(&self.names[*i]))).collect();
        lanes.join(",")
    }
}

impl Recent {
    /// Forgets all. The next span does not follow the last one, by which a page knows that what it has is of no use.
    pub fn clear(&mut self) {
        let first = self.first + self.spans.len() as u64 + 1;
        *self = Recent { first, ..Recent::default() };
    }

    /// Takes lines of the log in.
    pub fn lines(&mut self, lines: &[String]) {
        if self.workers.names.len() + self.clients.names.len() > MAX_NAMES {
            self.clear();
        }
        for line in lines.iter().filter(|line| is_shown(line)) {
            if let Some(entry) = log::parse(line) {
                self.now = self.now.max(entry.at);
                self.entry(&entry);
            }
        }
        let from = self.now - SECONDS;
        while self.spans.front().is_some_and(|s| s.end < from) || self.spans.len() > MAX_SPANS {
            self.spans.pop_front();
            self.first += 1;
        }
        while self.marks.front().is_some_and(|(at, _)| *at < from) || self.marks.len() > MAX_SPANS {
            self.marks.pop_front();
        }
    }

    fn entry(&mut self, entry: &Entry) {
        match (entry.event.as_str(), &entry.whom) {
            ("CONNECT" | "DISCONNECT", whom) => {
                let here = entry.event == "CONNECT";
                match whom {
                    Whom::Worker(name) => drop(self.workers.connect(name, here)),
                    Whom::Client(name) => {
                        let client = self.clients.connect(name, here);
                        entry.count("session").map(|session| self.sessions.insert(session, client));
                    }
                }
            }
            ("RAN", Whom::Worker(name)) => {
                let worker = self.workers.find(name);
                let client = entry.count("session").and_then(|s| self.sessions.get(&s).copied());
                let span = Span::new(entry, worker, client);
                let who = client.map_or(-1, |c| c as i64);
                let (start, took) = (span.start, span.took);
                let mut text = format!("[{worker},{who},{start:.6},{took:.6},{},{},[", span.seq, span.ops);
                for (i, (family, part)) in span.families.iter().enumerate() {
                    let comma = if i > 0 { "," } else { "" };
                    let _ = write!(text, "{comma}[{},{part:.2}]", *family as usize);
                }
                text.push_str("]]");
                self.spans.push_back(Ran { end: span.start + span.took, worker, client, text });
            }
            _ => {
                let kind = Kind::of(entry);
                if matches!(kind, Kind::Compile | Kind::Error | Kind::Move) {
                    let text = quoted(&format!("{} {}", entry.what, entry.details));
                    let mark = format!("[{:.6},{},{text}]", entry.at, quoted(kind.text()));
                    self.marks.push_back((entry.at, mark));
                }
            }
        }
    }

    /// Who is there, spans from number `since` on, and marks of what is rare, in seconds of the server's clock, as JSON.
    pub fn json(&self, since: u64) -> String {
        let ran = |lane: fn(&Ran) -> Option<usize>, count: usize| {
            let mut ran = vec![false; count];
            self.spans.iter().filter_map(lane).for_each(|i| ran[i] = true);
            ran
        };
        let worked = ran(|s| Some(s.worker), self.workers.names.len());
        let asked = ran(|s| s.client, self.clients.names.len());
        let next = self.first + self.spans.len() as u64;
        // A number that is not here is one of another server, or of a page that slept.
        let first = if (self.first..=next).contains(&since) { since } else { self.first };
        let spans = self.spans.range((first - self.first) as usize..);
        let mut out = String::with_capacity(spans.len() * 96 + 1024);
        let (from, to) = (self.now - SECONDS, self.now);
        let _ = write!(
            out,
            "{{\"from\":{from:.6},\"to\":{to:.6},\"workers\":[{}],\"clients\":[{}],\"first\":{first},\"next\":{next},\
             \"spans\":[",
            self.workers.lanes(&worked),
            self.clients.lanes(&asked)
        );
        for (i, span) in spans.enumerate() {
            out.push_str(if i > 0 { "," } else { "" });
            out.push_str(&span.text);
        }
        let marks: Vec<&str> = self.marks.iter().map(|(_, text)| text.as_str()).collect();
        let _ = write!(out, "],\"marks\":[{}]}}", marks.join(","));
        out
    }
}

/// True if the page shows something of a line. Most lines are told by a look at their event.
fn is_shown(line: &str) -> bool {
    let mut fields = line.splitn(6, " | ").skip(2);
    match fields.next() {
        Some("RAN" | "CONNECT" | "DISCONNECT" | "COMPILE" | "ERROR" | "MOVE") => true,
        Some("WORKER_RECV") => fields.nth(1) == Some("Moved"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(at: f64, seq: u64) -> String {
        let start = at - 0.002;
        format!(
            "{at:.6}s | #7 | RAN | WORKER w2 | Program | 0B | session=5 seq={seq} key=ab ops=3 start={start:.6}s \
             took=1.500ms waited=0.000ms plan=0.000ms families=matmul:60,reduce:40"
        )
    }

    #[test]
    fn the_last_seconds_are_kept_as_the_page_wants_them() {
        let mut recent = Recent::default();
        let mut lines: Vec<String> = [
            "0.100000s | #1 | CONNECT | WORKER w10 | Worker | 0B | cpu",
            "0.100000s | #2 | CONNECT | WORKER w2 | Worker | 0B | cpu",
            "0.100000s | #3 | CONNECT | CLIENT a | Session | 0B | session=5",
            "0.200000s | #4 | RECV | CLIENT a | Program | 226B | session=5 seq=1 key=ab ops=3 in=1 out=1 frees=0",
            "    TENSOR[3] := ADD TENSOR[0] TENSOR[2]",
            "0.200000s | #5 | COMPILE | WORKER w2 | Plan | 0B | key=ab ops=3 in 0.100 ms: first \"sight\"",
        ]
        .map(String::from)
        .to_vec();
        lines.push(ran(0.3, 1));
        recent.lines(&lines);
        assert_eq!(
            recent.json(0),
            "{\"from\":-5.700000,\"to\":0.300000,\"workers\":[[1,\"w2\"],[0,\"w10\"]],\"clients\":[[0,\"a\"]],\
             \"first\":0,\"next\":1,\"spans\":[[1,0,0.298000,0.001500,1,3,[[0,0.60],[1,0.40]]]],\
             \"marks\":[[0.200000,\"compile\",\"Plan key=ab ops=3 in 0.100 ms: first \\\"sight\\\"\"]]}"
                .replace("[0,0.60]", &format!("[{},0.60]", gt_net::observe::Family::Matmul as usize))
                .replace("[1,0.40]", &format!("[{},0.40]", gt_net::observe::Family::Reduce as usize))
        );
        // What is older than the page shows goes, and so does who is gone.
        let gone = "7.0s | #9 | DISCONNECT | CLIENT a | Session | 0B | session=5 gone".to_string();
        recent.lines(&[ran(7.0, 2), gone]);
        assert_eq!((recent.spans.len(), recent.marks.len()), (1, 0));
        recent.lines(&["14.0s | #9 | CONNECT | CLIENT b | Session | 0B | session=6".to_string()]);
        let json = recent.json(0);
        assert!(json.contains("\"clients\":[[1,\"b\"]],\"first\":2,\"next\":2,\"spans\":[]"), "{json}");
    }

    #[test]
    fn a_page_is_told_what_it_has_not() {
        let mut recent = Recent::default();
        let numbers = |recent: &Recent, since: u64| {
            let json = recent.json(since);
            let number = |name: &str| json.split(name).nth(1)?.split(',').next()?.parse::<u64>().ok();
            let spans = json.matches(",[[").count();
            (number("\"first\":").unwrap(), number("\"next\":").unwrap(), spans)
        };
        recent.lines(&[ran(1.0, 1), ran(1.1, 2), ran(1.2, 3)]);
        assert_eq!((numbers(&recent, 0), numbers(&recent, 2)), ((0, 3, 3), (2, 3, 1)));
        assert_eq!((numbers(&recent, 3), numbers(&recent, 99)), ((3, 3, 0), (0, 3, 3)));
        recent.clear();
        recent.lines(&[ran(1.3, 4)]);
        assert_eq!((numbers(&recent, 3), numbers(&recent, 5)), ((4, 5, 1), (5, 5, 0)));
    }
}
