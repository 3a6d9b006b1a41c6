//! A timeline as a trace that Perfetto and Chrome open.

use super::timeline::{Lane, Timeline, Transfer};
use std::fmt::Write;

/// Numbers of the processes under which lanes are shown.
const CLIENTS: usize = 1;
const DISPATCHER: usize = 2;
const WORKERS: usize = 10;

/// The trace as JSON.
pub fn json(line: &Timeline) -> String {
    let mut out = Out { text: String::from("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"), first: true };
    out.name("process_name", CLIENTS, 0, "clients");
    out.name("process_name", DISPATCHER, 0, "dispatcher");
    for (i, name) in line.clients.iter().enumerate() {
        out.name("thread_name", CLIENTS, i + 1, name);
    }
    for (i, name) in line.workers.iter().enumerate() {
        out.name("process_name", WORKERS + i, 0, &format!("worker {name}"));
        for (thread, name) in [(1, "programs"), (2, "kernels"), (3, "transfers")] {
            out.name("thread_name", WORKERS + i, thread, name);
        }
    }
    out.programs(line);
    out.kernels(line);
    out.transfers(line);
    out.marks(line);
    out.text + "\n]}\n"
}

/// Process and thread of a lane.
fn place(lane: Lane) -> (usize, usize) {
    match lane {
        Lane::Client(i) => (CLIENTS, i + 1),
        Lane::Dispatcher => (DISPATCHER, 1),
        Lane::Worker(i) => (WORKERS + i, 1),
    }
}

struct Out {
    text: String,
    first: bool,
}

impl Out {
    /// One event; `rest` is more of its JSON.
    fn event(&mut self, phase: &str, name: &str, at: f64, (pid, tid): (usize, usize), rest: &str) {
        let comma = if std::mem::replace(&mut self.first, false) { "" } else { ",\n" };
        let (name, ts) = (quoted(name), at * 1e6);
        let _ = write!(
            self.text,
            "{comma}{{\"ph\":\"{phase}\",\"name\":{name},\"ts\":{ts:.3},\"pid\":{pid},\"tid\":{tid}{rest}}}"
        );
    }

    fn name(&mut self, what: &str, pid: usize, tid: usize, name: &str) {
        let rest = format!(",\"args\":{{\"name\":{}}}", quoted(name));
        self.event("M", what, 0.0, (pid, tid), &rest);
    }

    fn programs(&mut self, line: &Timeline) {
        for s in &line.spans {
            let shares: Vec<String> =
                s.families.iter().map(|(f, part)| format!("{}:{part:.2}", quoted(f.text()))).collect();
            let client = s.client.map_or("?", |c| line.clients[c].as_str());
            let rest = format!(
                ",\"dur\":{:.3},\"cat\":\"program\",\"args\":{{\"client\":{},\"ops\":{},\"key\":{},\"waited_ms\":{:.3},\
                 \"plan_ms\":{:.3},\"failed\":{},\"why\":{},\"families\":{{{}}}}}",
                s.took * 1e6,
                quoted(client),
                s.ops,
                quoted(&s.key),
                s.waited * 1e3,
                s.planning * 1e3,
                s.failed,
                quoted(s.why.as_deref().unwrap_or("")),
                shares.join(",")
            );
            let name = format!("program {} ({})", s.seq, s.main().text());
            self.event("X", &name, s.start, (WORKERS + s.worker, 1), &rest);
        }
    }

    fn kernels(&mut self, line: &Timeline) {
        for k in &line.kernels {
            let rest = format!(",\"dur\":{:.3},\"cat\":\"{}\"", k.took * 1e6, k.family.text());
            self.event("X", &k.name, k.start, (WORKERS + k.worker, 2), &rest);
        }
    }

    fn transfers(&mut self, line: &Timeline) {
        for (i, t) in line.transfers.iter().enumerate() {
            let Transfer { worker, inward, start, took, bytes, tensor, .. } = t;
            let name = format!("TENSOR[{tensor}] {}", if *inward { "in" } else { "out" });
            let rest =
                format!(",\"dur\":{:.3},\"cat\":\"transfer\",\"args\":{{\"bytes\":{bytes:.0}}}", took * 1e6);
            let own = (WORKERS + worker, 3);
            self.event("X", &name, *start, own, &rest);
            if let Some(other) = t.other {
                let (from, to) = if *inward { (place(other), own) } else { (own, place(other)) };
                let rest = format!(",\"cat\":\"transfer\",\"id\":{i}");
                self.event("s", &name, *start, from, &rest);
                self.event("f", &name, start + took, to, &format!("{rest},\"bp\":\"e\""));
            }
        }
    }

    fn marks(&mut self, line: &Timeline) {
        for m in &line.marks {
            let lane = if m.from == Lane::Dispatcher { m.to } else { m.from };
            let args = format!("{{\"bytes\":{:.0},\"text\":{}}}", m.bytes, quoted(&m.text));
            let rest = format!(",\"s\":\"t\",\"cat\":\"message\",\"args\":{args}");
            self.event("i", m.kind.text(), m.at, place(lane), &rest);
            if m.from != m.to {
                self.event("i", m.kind.text(), m.at, place(Lane::Dispatcher), &rest);
            }
        }
    }
}

/// A JSON string.
pub fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c if (c as u32) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
