//! The instruction log (C13): one line per message, and each program's instructions when it is first seen.
//! Nothing is formatted unless a session or the server asked for it.

use super::message::program_bytes;
use super::note::{Details, Note};
use super::{Action, Cx, Session};
use gt_ir::{Program, Result, TensorId};
use gt_net::msg::{
    Batch, Bytes, ClientMsg, Compiled, Failure, Payload, Prefix, Run, SessionMsg, Value, WorkerCmd, WorkerId,
};
use gt_net::observe::{Detail, Trouble};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

/// Programs remembered as seen.
const MAX_SEEN: usize = 1 << 16;
/// Failures remembered.
const MAX_TROUBLES: usize = 32;
/// Plan keys of parts remembered.
const MAX_ORIGINS: usize = 4096;
/// Lines that wait for those who watch, until the next tick at most.
const MAX_TRACED: usize = 4096;

/// One log: a session's or the server's.
#[derive(Default)]
pub(super) struct Log {
    /// It is kept in a file or printed.
    kept: bool,
    /// How closely somebody watches.
    tracing: Detail,
    full: bool,
    lines: u64,
    seen: HashSet<u64>,
    /// What those who watch will be told, and how closely one has to watch to see it.
    traced: Vec<(Detail, Traced)>,
    /// How closely one has to watch to see the last line.
    last: Detail,
    /// The time in microseconds, where it is known better than in milliseconds.
    fine: Option<u64>,
    troubles: VecDeque<Trouble>,
    /// The instructions of whole programs that those of a worker's part belong to, by the part's plan key.
    origins: HashMap<u64, Arc<Vec<u32>>>,
}

/// What somebody who watches will be told.
enum Traced {
    Note(Note),
    /// Belongs to the note before.
    Line(String),
}

impl Log {
    pub fn new(kept: bool, full: bool) -> Log {
        Log { kept, full, ..Log::default() }
    }

    /// True if lines are wanted.
    pub fn is_on(&self) -> bool {
        self.wants(Detail::Runs)
    }

    /// True if lines are wanted that one sees who watches this closely.
    pub fn wants(&self, detail: Detail) -> bool {
        self.kept || self.tracing >= detail
    }

    /// How closely workers are watched for the log itself.
    pub fn own_detail(&self) -> Detail {
        if self.kept { Detail::Programs } else { Detail::Nothing }
    }

    /// Somebody begins to watch so closely, or nobody does any more.
    pub fn trace(&mut self, detail: Detail) {
        if detail >= Detail::Programs && self.tracing < Detail::Programs {
            // Whoever comes has seen no program.
            self.seen.clear();
        }
        self.tracing = detail;
        if detail < Detail::Runs {
            self.traced.clear();
        }
    }

    /// Lines for those who watch, and how closely one has to watch to see each.
    pub fn take_traced(&mut self) -> Vec<(Detail, String)> {
        let lines = std::mem::take(&mut self.traced).into_iter().map(|(detail, what)| match what {
            Traced::Line(line) => (detail, line),
            Traced::Note(note) => {
                self.lines += 1;
                (detail, note.line(self.lines))
            }
        });
        lines.collect()
    }

    /// True if those who watch should get their lines now.
    pub fn is_full(&self) -> bool {
        self.traced.len() >= MAX_TRACED
    }

    /// The time in microseconds.
    pub fn clock(&mut self, now_us: u64) {
        self.fine = Some(now_us);
    }

    pub fn micros(&self, now: u64) -> u64 {
        self.fine.unwrap_or(now * 1000)
    }

    /// Remembers which instructions of the whole a worker's part has.
    pub fn divided(&mut self, key: u64, origins: &Arc<Vec<u32>>) {
        if self.origins.len() >= MAX_ORIGINS {
            self.origins.clear();
        }
        self.origins.entry(key).or_insert_with(|| origins.clone());
    }

    /// The instruction of the client's program that an instruction of a plan belongs to.
    pub fn origin(&self, key: u64, instr: u32) -> u32 {
        let whole = self.origins.get(&key).and_then(|origins| origins.get(instr as usize));
        whole.copied().unwrap_or(instr)
    }

    /// Notes that something went wrong.
    pub fn trouble(&mut self, now: u64, whom: &str, text: String) {
        if self.troubles.len() == MAX_TROUBLES {
            self.troubles.pop_front();
        }
        self.troubles.push_back(Trouble { at_ms: now, whom: whom.into(), text });
    }

    pub fn troubles(&self) -> Vec<Trouble> {
        self.troubles.iter().cloned().collect()
    }

    /// One line of the log, written now.
    pub fn format(
        &mut self,
        now: u64,
        event: &'static str,
        whom: &Arc<str>,
        what: &'static str,
        bytes: u64,
        details: impl Into<Details>,
    ) -> String {
        self.lines += 1;
        let (at, whom, details) = (self.micros(now), whom.clone(), details.into());
        Note { at, event, whom, what, bytes, details }.line(self.lines)
    }

    /// Lines that belong to the one before.
    pub fn lines(&mut self, lines: &[String], out: &mut Vec<Action>) {
        for line in lines {
            if self.kept {
                out.push(Action::Log(line.clone()));
            }
            if self.tracing >= self.last {
                self.traced.push((self.last, Traced::Line(line.clone())));
            }
        }
    }

    /// Notes an event in the server's log if it is kept, and for those who watch.
    pub fn line<D: Into<Details>>(
        &mut self,
        now: u64,
        out: &mut Vec<Action>,
        event: &'static str,
        whom: &Arc<str>,
        what: &'static str,
        bytes: u64,
        details: impl FnOnce() -> D,
    ) {
        self.last = seen_by(event, what);
        if self.kept {
            let line = self.format(now, event, whom, what, bytes, details());
            if self.tracing >= self.last {
                self.traced.push((self.last, Traced::Line(line.clone())));
            }
            out.push(Action::Log(line));
        } else if self.tracing >= self.last {
            let (at, whom, details) = (self.micros(now), whom.clone(), details().into());
            let note = Note { at, event, whom, what, bytes, details };
            self.traced.push((self.last, Traced::Note(note)));
        }
    }

    fn first_sight(&mut self, key: u64) -> bool {
        if self.seen.len() >= MAX_SEEN {
            self.seen.clear();
        }
        self.seen.insert(key) || self.full
    }
}

/// How closely one has to watch to see an event.
fn seen_by(event: &str, what: &str) -> Detail {
    match event {
        "KERNELS" | "STEPS" => Detail::Kernels,
        "RAN" | "CONNECT" | "DISCONNECT" | "COMPILE" | "ERROR" | "MOVE" => Detail::Runs,
        "WORKER_RECV" if what == "Moved" => Detail::Runs,
        _ => Detail::Programs,
    }
}

impl Session {
    pub(super) fn logs(&self, cx: &Cx) -> bool {
        self.log.is_some() || cx.log.is_on()
    }

    /// Notes an event in the session's log and in the server's. `worker` is whom it concerns, else the client.
    pub(super) fn note<D: Into<Details>>(
        &mut self,
        cx: &mut Cx,
        event: &'static str,
        worker: Option<WorkerId>,
        what: &'static str,
        bytes: u64,
        details: impl FnOnce() -> D,
    ) {
        let seen = cx.log.wants(seen_by(event, what));
        if self.log.is_none() && !seen {
            return;
        }
        let whom = match worker {
            None => self.whom.clone(),
            Some(id) => cx.pool.whom(id),
        };
        match seen {
            true if self.log.is_none() => cx.log.line(cx.now, cx.out, event, &whom, what, bytes, details),
            true => {
                let text = details().into().text();
                self.note_own(cx, event, &whom, what, bytes, text.clone());
                cx.log.line(cx.now, cx.out, event, &whom, what, bytes, || text);
            }
            false => self.note_own(cx, event, &whom, what, bytes, details()),
        }
    }

    /// Writes a line to the session's own log, if it has one.
    pub(super) fn note_own(
        &mut self,
        cx: &mut Cx,
        event: &'static str,
        whom: &Arc<str>,
        what: &'static str,
        bytes: u64,
        details: impl Into<Details>,
    ) {
        let Some(log) = &mut self.log else { return };
        log.fine = cx.log.fine;
        let line = log.format(cx.now, event, whom, what, bytes, details);
        self.log_line(cx, line);
    }

    /// Lines that belong to the one before.
    pub(super) fn own_lines(&mut self, cx: &mut Cx, lines: &[String]) {
        if self.log.is_some() {
            lines.iter().for_each(|line| self.log_line(cx, line.clone()));
        }
    }

    /// How closely the session's client wants to see its own work.
    pub(super) fn own_detail(&self) -> Detail {
        self.own.max(self.file_detail)
    }

    /// The client wants to see its own work, or not any more.
    pub(super) fn watch_own(&mut self, detail: Detail, out: &mut Vec<Action>) {
        if self.own == detail {
            return;
        }
        self.own = detail;
        self.log_to.trace = detail >= Detail::Programs;
        if self.log_to.trace && self.log.is_none() {
            self.log = Some(Box::new(Log::new(true, false)));
        } else if !self.log_to.trace && !self.log_to.file && !self.log_to.debug {
            self.log = None;
        }
        let (session, detail) = (Some(self.id), self.own_detail());
        for worker in &self.touched {
            out.push(Action::ToWorker(*worker, WorkerCmd::Observe { session, detail }));
        }
    }

    /// Sends a line of the session's log to where its client reads it.
    fn log_line(&self, cx: &mut Cx, line: String) {
        if self.log_to.trace {
            let lines = vec![line.clone()];
            cx.out.push(Action::ToClient(self.id, SessionMsg::Trace { lines }));
        }
        if self.log_to.debug {
            let line = format!("gt dispatcher: {line}");
            cx.out.push(Action::ToClient(self.id, SessionMsg::Log { line, debug: true }));
        }
        if self.log_to.file {
            cx.out.push(Action::ToClient(self.id, SessionMsg::Log { line, debug: false }));
        }
    }

    /// What a worker did for this session, for a client that asked to see it.
    pub(super) fn worker_lines(&self, cx: &mut Cx, lines: Vec<String>) {
        let message = |line| Action::ToClient(self.id, SessionMsg::Log { line, debug: true });
        cx.out.extend(lines.into_iter().map(message));
    }

    fn note_batch(&mut self, cx: &mut Cx, event: &'static str, worker: Option<WorkerId>, batch: &Batch) {
        let session = self.id.0;
        for Run { seq, program, .. } in &batch.runs {
            let (key, ops) = (program.key, program.structure.instrs.len());
            self.note(cx, event, worker, "Program", program_bytes(program), || {
                let (inputs, outs, frees) = (program.inputs.len(), program.outs.len(), program.frees.len());
                Details::Program { session, seq: *seq, key, ops, inputs, outs, frees }
            });
            if worker.is_none() {
                self.note_instructions(cx, program);
            }
        }
        if !batch.fetches.is_empty() || !batch.frees.is_empty() {
            let what = if batch.fetches.is_empty() { "Free" } else { "Fetch" };
            self.note(cx, event, worker, what, 8 * (batch.fetches.len() + batch.frees.len()) as u64, || {
                let fetched = batch.fetches.iter().map(|f| f.tensor).collect();
                Details::Asked { fetched, frees: batch.frees.len() }
            });
        }
    }

    fn note_prefix(&mut self, cx: &mut Cx, event: &'static str, worker: Option<WorkerId>, prefix: &Prefix) {
        let Prefix { id, program } = prefix;
        self.note(cx, event, worker, "Prefix", program_bytes(program), || {
            let (ops, kept) = (program.structure.instrs.len(), program.outs.len());
            format!("prefix={id} ops={ops} in={} kept={kept}", program.inputs.len())
        });
    }

    fn note_instructions(&mut self, cx: &mut Cx, program: &Program) {
        let here = self.log.as_mut().is_some_and(|log| log.first_sight(program.key));
        let server = cx.log.wants(Detail::Programs) && cx.log.first_sight(program.key);
        if !here && !server {
            return;
        }
        for text in program.log_lines() {
            if let (true, Some(_)) = (here, &self.log) {
                self.log_line(cx, format!("    {text}"));
            }
            if server {
                cx.log.lines(&[format!("    {text}")], cx.out);
            }
        }
    }

    pub(super) fn note_client_msg(&mut self, cx: &mut Cx, message: &ClientMsg) {
        match message {
            ClientMsg::Batch(batch) => self.note_batch(cx, "RECV", None, batch),
            ClientMsg::Prefix(prefix) => self.note_prefix(cx, "RECV", None, prefix),
            ClientMsg::Forget { prefix } => {
                self.note(cx, "RECV", None, "Forget", 8, || format!("prefix={prefix}"))
            }
            ClientMsg::Upload { tensor, ty, data } => {
                let inline = data.is_some();
                let bytes = ty.bytes() as u64;
                self.note(cx, "RECV", None, "Upload", bytes, || {
                    let road = if inline { "inside the message" } else { "straight to the worker" };
                    format!("{} {ty} {road}", tensor_text(*tensor))
                })
            }
            ClientMsg::Relay { tensor, data } => {
                self.note(cx, "RECV", None, "Relay", data.len() as u64, || tensor_text(*tensor))
            }
            ClientMsg::Carry { tensor } => self.note(cx, "RECV", None, "Carry", 8, || tensor_text(*tensor)),
            ClientMsg::Withdraw { tensor, error } => {
                self.note(cx, "RECV", None, "Withdraw", 0, || format!("{} {error}", tensor_text(*tensor)))
            }
            ClientMsg::FetchRelay { req, tensor, .. } => self
                .note(cx, "RECV", None, "Fetch", 16, || format!("{} req={req} relay", tensor_text(*tensor))),
            ClientMsg::Sync { seq } => self.note(cx, "RECV", None, "Sync", 8, || format!("seq={seq}")),
            ClientMsg::Signals { specs } => {
                let names = || specs.iter().map(|s| s.name.as_str()).collect::<Vec<_>>().join(" ");
                self.note(cx, "RECV", None, "Signals", 0, names)
            }
            ClientMsg::Stats { .. }
            | ClientMsg::Watch { .. }
            | ClientMsg::Recent
            | ClientMsg::Tensors { .. }
            | ClientMsg::Tidy { .. }
            | ClientMsg::Lines { .. }
            | ClientMsg::Bye => {}
        }
    }

    pub(super) fn note_session_msg(&mut self, cx: &mut Cx, message: &SessionMsg) {
        match message {
            SessionMsg::Update { completed, values, failures } => {
                let bytes = 16 + values_bytes(values);
                let (completed, values) = (*completed, values.len());
                self.note(cx, "SEND", None, "Update", bytes, || Details::Progress {
                    completed,
                    values,
                    failures: failures.len(),
                });
                for (seq, failure) in failures {
                    self.note(cx, "ERROR", None, "Program", 0, || {
                        format!("seq={seq} {}", failure_text(failure))
                    });
                }
            }
            SessionMsg::Grant { tensor, .. } => {
                self.note(cx, "SEND", None, "Grant", 64, || tensor_text(*tensor))
            }
            SessionMsg::Unwanted { tensor, .. } => {
                self.note(cx, "SEND", None, "Unwanted", 0, || tensor_text(*tensor))
            }
            SessionMsg::Fatal { error } => self.note(cx, "ERROR", None, "Fatal", 0, || error.to_string()),
            SessionMsg::Stats { .. }
            | SessionMsg::Log { .. }
            | SessionMsg::Snapshot(_)
            | SessionMsg::Tensors { .. }
            | SessionMsg::TellLines { .. }
            | SessionMsg::Trace { .. } => {}
        }
    }

    pub(super) fn note_worker_cmd(&mut self, cx: &mut Cx, worker: WorkerId, command: &WorkerCmd) {
        let to = Some(worker);
        match command {
            WorkerCmd::Batch { batch, .. } => self.note_batch(cx, "WORKER_SEND", to, batch),
            WorkerCmd::Prefix { prefix, .. } => self.note_prefix(cx, "WORKER_SEND", to, prefix),
            WorkerCmd::Forget { prefix, .. } => {
                self.note(cx, "WORKER_SEND", to, "Forget", 8, || format!("prefix={prefix}"))
            }
            WorkerCmd::Upload { tensor, ty, data, .. } => {
                let bytes = data.len() as u64;
                self.note(cx, "WORKER_SEND", to, "Upload", bytes, || format!("{} {ty}", tensor_text(*tensor)))
            }
            WorkerCmd::Expect { tensor, ty, .. } => {
                self.note(cx, "WORKER_SEND", to, "Expect", 16, || format!("{} {ty}", tensor_text(*tensor)))
            }
            WorkerCmd::Fulfil { tensor, data, .. } => {
                self.note(cx, "WORKER_SEND", to, "Fulfil", data.len() as u64, || tensor_text(*tensor))
            }
            WorkerCmd::Send { tensor, goal, to: road, .. } => {
                let goal = goal
                    .and_then(|g| cx.pool.get(g))
                    .map_or("the dispatcher".into(), |w| w.info.name.clone());
                let road = if road.is_some() { "directly" } else { "by relay" };
                self.note(cx, "MOVE", to, "Send", 16, || format!("{} to {goal} {road}", tensor_text(*tensor)))
            }
            WorkerCmd::Poison { tensor, failure, .. } => self.note(cx, "ERROR", to, "Poison", 0, || {
                format!("{} {}", tensor_text(*tensor), failure_text(failure))
            }),
            WorkerCmd::Gang { gang, share, .. } => self.note(cx, "WORKER_SEND", to, "Gang", 16, || {
                let (number, seq) = (gang.number, share.seq);
                let ops = share.structure.instrs.len();
                format!("gang={number} program={seq} ops={ops} key={:04x}", share.key >> 48)
            }),
            WorkerCmd::Mesh(_)
            | WorkerCmd::Disband { .. }
            | WorkerCmd::Watch { .. }
            | WorkerCmd::Observe { .. }
            | WorkerCmd::Gauge
            | WorkerCmd::Recent { .. }
            | WorkerCmd::Compile { .. }
            | WorkerCmd::End { .. }
            | WorkerCmd::Tidy { .. }
            | WorkerCmd::Stats { .. } => {}
        }
    }

    pub(super) fn note_update(
        &mut self,
        cx: &mut Cx,
        worker: WorkerId,
        finished: &[u64],
        values: &[Value],
        failures: &[(u64, Failure)],
    ) {
        self.note(cx, "WORKER_RECV", Some(worker), "Update", 16 + values_bytes(values), || {
            let last = finished.last().copied().unwrap_or(0);
            let (finished, values, failures) = (finished.len(), values.len(), failures.len());
            Details::Finished { finished, last, values, failures }
        });
    }

    pub(super) fn note_compiled(&mut self, cx: &mut Cx, worker: WorkerId, compiled: &[Compiled]) {
        for c in compiled {
            self.note(cx, "COMPILE", Some(worker), "Plan", 0, || {
                format!(
                    "key={:04x} ops={} in {:.3} ms: {}",
                    c.key >> 48,
                    c.instrs,
                    c.micros as f64 / 1e3,
                    c.why
                )
            });
        }
    }

    pub(super) fn note_moved(
        &mut self,
        cx: &mut Cx,
        worker: WorkerId,
        tensor: TensorId,
        goal: Option<WorkerId>,
        result: &Result<Option<Bytes>, Failure>,
    ) {
        let bytes = result.as_ref().map_or(0, |data| data.as_ref().map_or(0, |d| d.len() as u64));
        self.note(cx, "WORKER_RECV", Some(worker), "Moved", bytes, || match (result, goal) {
            (Ok(_), Some(goal)) => format!("{} to worker {}", tensor_text(tensor), goal.0),
            (Ok(_), None) => tensor_text(tensor),
            (Err(failure), _) => format!("{} {}", tensor_text(tensor), failure_text(failure)),
        });
    }
}

fn values_bytes(values: &[Value]) -> u64 {
    let bytes = |v: &Value| match &v.result {
        Ok(Payload::Inline(data)) => data.len() as u64,
        Ok(Payload::Bulk { .. } | Payload::Pieces(_)) | Err(_) => 64,
    };
    values.iter().map(bytes).sum()
}

fn failure_text(failure: &Failure) -> String {
    format!("root={} {}", failure.root, failure.error)
}

fn tensor_text(id: TensorId) -> String {
    format!("TENSOR[{}]", id.0)
}
