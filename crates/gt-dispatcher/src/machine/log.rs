//! The instruction log (C13): one line per message, and each program's instructions when it is first seen.
//! Nothing is formatted unless a session or the server asked for it.

use super::message::program_bytes;
use super::{Action, Cx, Session};
use gt_ir::{Program, Result, TensorId};
use gt_net::msg::{
    Batch, Bytes, ClientMsg, Compiled, Failure, Payload, Prefix, Run, SessionMsg, Value, WorkerCmd, WorkerId,
};
use std::collections::HashSet;

/// Programs remembered as seen.
const MAX_SEEN: usize = 1 << 16;

/// One log: a session's or the server's.
pub(super) struct Log {
    on: bool,
    full: bool,
    lines: u64,
    seen: HashSet<u64>,
}

impl Log {
    pub fn new(on: bool, full: bool) -> Log {
        Log { on, full, lines: 0, seen: HashSet::new() }
    }

    /// One line: time, number, event, whom it concerns, what, size, details.
    fn format(&mut self, now: u64, event: &str, whom: &str, what: &str, bytes: u64, details: &str) -> String {
        self.lines += 1;
        let (seconds, millis) = (now / 1000, now % 1000);
        let number = self.lines;
        let size = size_text(bytes);
        format!("{seconds}.{millis:03}s | #{number:04} | {event} | {whom} | {what} | {size} | {details}")
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
        if self.on {
            let line = self.format(now, event, whom, what, bytes, &details());
            out.push(Action::Log(line));
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
        self.log.is_some() || cx.log.on
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
        if let Some(log) = &mut self.log {
            let line = log.format(cx.now, event, &whom, what, bytes, &details);
            self.log_line(cx, line);
        }
        cx.log.line(cx.now, cx.out, event, &whom, what, bytes, || details);
    }

    /// Sends a line of the session's log to where its client reads it.
    fn log_line(&self, cx: &mut Cx, line: String) {
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
        for Run { seq, program, .. } in &batch.runs {
            let (key, ops) = (program.key, program.structure.instrs.len());
            self.note(cx, event, worker, "Program", program_bytes(program), || {
                let (ins, outs, frees) = (program.inputs.len(), program.outs.len(), program.frees.len());
                format!("seq={seq} key={key:016x} ops={ops} in={ins} out={outs} frees={frees}")
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
        let server = cx.log.on && cx.log.first_sight(program.key);
        if !here && !server {
            return;
        }
        for text in program.log_lines() {
            if let (true, Some(_)) = (here, &self.log) {
                self.log_line(cx, format!("    {text}"));
            }
            if server {
                cx.out.push(Action::Log(format!("    {text}")));
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
                let bytes = data.as_ref().map_or(0, |d| d.len() as u64);
                self.note(cx, "RECV", None, "Upload", bytes, || format!("{} {ty}", tensor_text(*tensor)))
            }
            ClientMsg::Relay { tensor, data } => {
                self.note(cx, "RECV", None, "Relay", data.len() as u64, || tensor_text(*tensor))
            }
            ClientMsg::Carry { tensor } => self.note(cx, "RECV", None, "Carry", 8, || tensor_text(*tensor)),
            ClientMsg::Withdraw { tensor, error } => {
                self.note(cx, "RECV", None, "Withdraw", 0, || format!("{} {error}", tensor_text(*tensor)))
            }
            ClientMsg::FetchRelay { req, tensor } => self
                .note(cx, "RECV", None, "Fetch", 16, || format!("{} req={req} relay", tensor_text(*tensor))),
            ClientMsg::Sync { seq } => self.note(cx, "RECV", None, "Sync", 8, || format!("seq={seq}")),
            ClientMsg::Stats { .. } | ClientMsg::Bye => {}
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
            SessionMsg::Stats { .. } | SessionMsg::Log { .. } => {}
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
            | WorkerCmd::Compile { .. }
            | WorkerCmd::End { .. }
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

fn size_text(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes}B"),
        1024..1_048_576 => format!("{:.1}KB", bytes as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1}MB", bytes as f64 / 1048576.0),
        _ => format!("{:.1}GB", bytes as f64 / 1073741824.0),
    }
}
