//! The instruction log (C13): one line per message, and each program's instructions when it is first seen.
//! Nothing is formatted unless a session or the server asked for it.

use super::message::program_bytes;
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
    /// Somebody watches.
    tracing: bool,
    full: bool,
    lines: u64,
    seen: HashSet<u64>,
    /// Lines for those who watch, and how closely one has to watch to see each.
    traced: Vec<(Detail, String)>,
    /// How closely one has to watch to see the last line.
    last: Detail,
    /// The time in microseconds, where it is known better than in milliseconds.
    fine: Option<u64>,
    troubles: VecDeque<Trouble>,
    /// The instructions of whole programs that those of a worker's part belong to, by the part's plan key.
    origins: HashMap<u64, Arc<Vec<u32>>>,
}

impl Log {
    pub fn new(kept: bool, full: bool) -> Log {
        Log { kept, full, ..Log::default() }
    }

    /// True if lines are wanted.
    pub fn is_on(&self) -> bool {
        self.kept || self.tracing
    }

    /// How closely workers are watched for the log itself.
    pub fn own_detail(&self) -> Detail {
        if self.kept { Detail::Programs } else { Detail::Nothing }
    }

    /// Somebody begins to watch, or nobody does any more.
    pub fn trace(&mut self, on: bool) {
        if on && !self.tracing {
            // Whoever comes has seen no program.
            self.seen.clear();
        }
        self.tracing = on;
        if !on {
            self.traced.clear();
        }
    }

    pub fn take_traced(&mut self) -> Vec<(Detail, String)> {
        std::mem::take(&mut self.traced)
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

    /// One line: time, number, event, whom it concerns, what, size, details.
    pub fn format(
        &mut self,
        now: u64,
        event: &str,
        whom: &str,
        what: &str,
        bytes: u64,
        details: &str,
    ) -> String {
        self.lines += 1;
        let now = self.micros(now);
        let (seconds, micros) = (now / 1_000_000, now % 1_000_000);
        let number = self.lines;
        let size = size_text(bytes);
        format!("{seconds}.{micros:06}s | #{number:04} | {event} | {whom} | {what} | {size} | {details}")
    }

    fn put(&mut self, line: String, out: &mut Vec<Action>) {
        if self.tracing {
            self.traced.push((self.last, line.clone()));
        }
        if self.kept {
            out.push(Action::Log(line));
        }
    }

    /// Lines that belong to the one before.
    pub fn lines(&mut self, lines: &[String], out: &mut Vec<Action>) {
        if self.is_on() {
            lines.iter().for_each(|line| self.put(line.clone(), out));
        }
    }

    /// Writes a line to the server's log, if it is kept.
    pub fn line(
        &mut self,
        now: u64,
        out: &mut Vec<Action>,
        event: &str,
        whom: &str,
        what: &str,
        bytes: u64,
        details: impl FnOnce() -> String,
    ) {
        if self.is_on() {
            let line = self.format(now, event, whom, what, bytes, &details());
            self.last = if matches!(event, "KERNELS" | "STEPS") { Detail::Kernels } else { Detail::Programs };
            self.put(line, out);
        }
    }

    fn first_sight(&mut self, key: u64) -> bool {
        if self.seen.len() >= MAX_SEEN {
            self.seen.clear();
        }
        self.seen.insert(key) || self.full
    }
}

impl Session {
    pub(super) fn logs(&self, cx: &Cx) -> bool {
        self.log.is_some() || cx.log.is_on()
    }

    /// Writes a line to the session's log and to the server's. `worker` is whom it concerns, else the client.
    pub(super) fn note(
        &mut self,
        cx: &mut Cx,
        event: &str,
        worker: Option<WorkerId>,
        what: &str,
        bytes: u64,
        details: impl FnOnce() -> String,
    ) {
        if !self.logs(cx) {
            return;
        }
        let whom = match worker {
            None => format!("CLIENT {}", self.name),
            Some(id) => format!("WORKER {}", cx.pool.get(id).map_or("?", |w| w.info.name.as_str())),
        };
        let details = details();
        self.note_own(cx, event, &whom, what, bytes, &details);
        cx.log.line(cx.now, cx.out, event, &whom, what, bytes, || details);
    }

    /// Writes a line to the session's own log, if it has one.
    pub(super) fn note_own(
        &mut self,
        cx: &mut Cx,
        event: &str,
        whom: &str,
        what: &str,
        bytes: u64,
        details: &str,
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

    fn note_batch(&mut self, cx: &mut Cx, event: &str, worker: Option<WorkerId>, batch: &Batch) {
        let self_id = self.id.0;
        for Run { seq, program, .. } in &batch.runs {
            let (key, ops) = (program.key, program.structure.instrs.len());
            self.note(cx, event, worker, "Program", program_bytes(program), || {
                let (ins, outs, frees) = (program.inputs.len(), program.outs.len(), program.frees.len());
                let session = self_id;
                format!(
                    "session={session} seq={seq} key={key:016x} ops={ops} in={ins} out={outs} frees={frees}"
                )
            });
            if worker.is_none() {
                self.note_instructions(cx, program);
            }
        }
        if !batch.fetches.is_empty() || !batch.frees.is_empty() {
            let what = if batch.fetches.is_empty() { "Free" } else { "Fetch" };
            self.note(cx, event, worker, what, 8 * (batch.fetches.len() + batch.frees.len()) as u64, || {
                let fetched: Vec<String> = batch.fetches.iter().map(|f| tensor_text(f.tensor)).collect();
                format!("fetches=[{}] frees={}", fetched.join(" "), batch.frees.len())
            });
        }
    }

    fn note_prefix(&mut self, cx: &mut Cx, event: &str, worker: Option<WorkerId>, prefix: &Prefix) {
        let Prefix { id, program } = prefix;
        self.note(cx, event, worker, "Prefix", program_bytes(program), || {
            let (ops, kept) = (program.structure.instrs.len(), program.outs.len());
            format!("prefix={id} ops={ops} in={} kept={kept}", program.inputs.len())
        });
    }

    fn note_instructions(&mut self, cx: &mut Cx, program: &Program) {
        let here = self.log.as_mut().is_some_and(|log| log.first_sight(program.key));
        let server = cx.log.is_on() && cx.log.first_sight(program.key);
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
                self.note(cx, "SEND", None, "Update", bytes, || {
                    format!("completed={completed} values={} failures={}", values.len(), failures.len())
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
            WorkerCmd::Gang { gang, run, .. } => self.note(cx, "WORKER_SEND", to, "Gang", 16, || {
                let (number, seq) = (gang.number, run.seq);
                let ops = run.program.structure.instrs.len();
                format!("gang={number} program={seq} ops={ops} key={:04x}", run.program.key >> 48)
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
            format!(
                "finished={} last={last} values={} failures={}",
                finished.len(),
                values.len(),
                failures.len()
            )
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

/// In whole numbers: fractions take longer to write than all the rest of a line.
fn size_text(bytes: u64) -> String {
    // Rounded to a tenth or a hundredth of a unit.
    let part = |unit: u64, of: u64| {
        let parts = (bytes as u128 * of as u128 + unit as u128 / 2) / unit as u128;
        (parts / of as u128, parts % of as u128)
    };
    match bytes {
        0..1024 => format!("{bytes}B"),
        1024..1_048_576 => {
            let (whole, tenths) = part(1024, 10);
            format!("{whole}.{tenths}KB")
        }
        1_048_576..1_073_741_824 => {
            let (whole, hundredths) = part(1_048_576, 100);
            format!("{whole}.{hundredths:02}MB")
        }
        _ => {
            let (whole, hundredths) = part(1_073_741_824, 100);
            format!("{whole}.{hundredths:02}GB")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::size_text;

    #[test]
    fn sizes_are_rounded() {
        let sizes = [(1023, "1023B"), (1024, "1.0KB"), (1536, "1.5KB"), (1075, "1.0KB"), (1076, "1.1KB")];
        let large =
            [(4_000_000, "3.81MB"), (1 << 20, "1.00MB"), (5 << 30, "5.00GB"), (u64::MAX, "17179869184.00GB")];
        for (bytes, text) in sizes.into_iter().chain(large) {
            assert_eq!(size_text(bytes), text);
        }
    }
}
