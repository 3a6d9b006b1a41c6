//! A worker as the dispatcher knows it: the same rules as the real one, at random speed.

use super::gang::{Gangs, Stand};
use super::rng::Rng;
use gt_ir::{Arg, Binary, Error, Op, Program, Scalar, Slot, TensorId};
use gt_net::bulk::{Dir, Endpoint, Ticket, TicketKey};
use gt_net::msg::{
    Batch, Failure, Fetch, Gang, Payload, Prefix, Run, SessionId, Value, WorkerCmd, WorkerId, WorkerInfo,
    WorkerMsg, WorkerStats,
};
use gt_net::observe::{Carried, Detail, WorkEvent};
use gt_net::process::Process;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// A program with this number in a slot fails.
pub const BOOM: i64 = 13;

pub type Numbers = Vec<i64>;

pub fn to_bytes(values: &[i64]) -> Arc<Vec<u8>> {
    Arc::new(values.iter().flat_map(|v| v.to_ne_bytes()).collect())
}

pub fn to_numbers(bytes: &[u8]) -> Numbers {
    bytes.chunks_exact(8).map(|c| i64::from_ne_bytes(c.try_into().unwrap())).collect()
}

/// Runs a program made of FULL, ADD, MUL and SUM. `None` if it is one that fails.
pub fn run(program: &Program, inputs: &[Numbers], n: usize) -> Option<Vec<Numbers>> {
    let number = |x: &Scalar| x.as_i64();
    let slots: Vec<i64> = program
        .slots
        .iter()
        .map(|s| match s {
            Slot::Num(x) => number(x),
            Slot::Data(_) => panic!("no data here"),
        })
        .collect();
    if slots.contains(&BOOM) {
        return None;
    }
    let mut values = inputs.to_vec();
    for instr in &program.structure.instrs {
        let arg = |i: usize| match &instr.args[i] {
            Arg::Value(v) => values[*v as usize].clone(),
            Arg::Const(x) => vec![number(x)],
            Arg::Slot(k) => vec![slots[*k as usize]],
        };
        let both = |f: fn(i64, i64) -> i64| {
            let (a, b) = (arg(0), arg(1));
            let size = if a.len() == 1 { b.len() } else { a.len() };
            (0..size).map(|i| f(a[i % a.len()], b[i % b.len()])).collect()
        };
        let out = match &instr.op {
            Op::Full { .. } => vec![arg(0)[0]; n],
            Op::Reduce { .. } => vec![arg(0).iter().fold(0, |a: i64, b| a.wrapping_add(*b))],
            Op::Binary(Binary::Add) => both(i64::wrapping_add),
            Op::Binary(Binary::Mul) => both(i64::wrapping_mul),
            other => panic!("{other:?} is not part of this world"),
        };
        values.push(out);
    }
    Some(program.structure.outs.iter().map(|o| values[*o as usize].clone()).collect())
}

enum Entry {
    Waiting,
    Here(Numbers),
    Poisoned(Failure),
}

enum Item {
    Run(Run),
    Gang(Gang, Run),
    Prefix(Prefix),
    Forget(u64),
    Close(Vec<Fetch>, Vec<TensorId>),
    Send(TensorId, Option<WorkerId>, Option<(Endpoint, Ticket)>),
}

#[derive(Default)]
struct Table {
    entries: BTreeMap<TensorId, Entry>,
    queue: VecDeque<Item>,
    finished: Vec<u64>,
    failures: Vec<(u64, Failure)>,
    /// Programs begun early, with what they kept, if that went well.
    begun: BTreeMap<u64, (Program, Option<Vec<Numbers>>)>,
    /// Values answered by ticket, which outlive their tensors.
    promised: BTreeMap<TensorId, Arc<Vec<u8>>>,
    /// Values that the server will ask for, in pieces.
    carried: Vec<(TensorId, Arc<Vec<u8>>)>,
}

/// Bytes on their way to a worker's bulk plane.
pub struct Transfer {
    pub from: Option<WorkerId>,
    pub goal: WorkerId,
    pub session: SessionId,
    pub tensor: TensorId,
    pub data: Arc<Vec<u8>>,
}

pub struct Worker {
    pub id: WorkerId,
    /// It has a bulk plane.
    pub plane: bool,
    sessions: BTreeMap<SessionId, Table>,
    early: BTreeMap<(SessionId, TensorId), Numbers>,
    ended: BTreeSet<SessionId>,
    n: usize,
    /// Its rank and the shape of each mesh, or why that is no more.
    meshes: BTreeMap<u64, Result<(usize, Vec<usize>), Error>>,
    /// Gangs that have come and are not done, in order.
    gangs: VecDeque<u64>,
    /// The gang it is in, and can do nothing else meanwhile.
    busy: Option<(SessionId, Gang, Run)>,
    /// Tensors whose arrival the dispatcher wants to hear of.
    tell: BTreeSet<(SessionId, TensorId)>,
}

impl Worker {
    /// The value that the server asks for, to be relayed in pieces.
    pub fn carry(&mut self, session: SessionId, tensor: TensorId) -> Option<Arc<Vec<u8>>> {
        let carried = &mut self.sessions.get_mut(&session)?.carried;
        let at = carried.iter().position(|(id, _)| *id == tensor)?;
        Some(carried.remove(at).1)
    }
}

const KEY: TicketKey = TicketKey([7; 16]);

pub fn endpoint(id: WorkerId) -> Endpoint {
    Endpoint { tcp: Some(("sim".into(), id.0 as u16)), unix: None, host_id: String::new() }
}

pub fn worker_at(endpoint: &Endpoint) -> WorkerId {
    WorkerId(endpoint.tcp.as_ref().unwrap().1 as u32)
}

impl Worker {
    pub fn new(id: WorkerId, plane: bool, n: usize) -> Worker {
        let (sessions, early, ended) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        let (meshes, gangs, busy) = (BTreeMap::new(), VecDeque::new(), None);
        let tell = BTreeSet::new();
        Worker { id, plane, sessions, early, ended, n, meshes, gangs, busy, tell }
    }

    pub fn info(&self) -> WorkerInfo {
        WorkerInfo {
            name: format!("w{}", self.id.0),
            backend: "sim".into(),
            device: "sim".into(),
            threads: 1,
            memory: 1 << 30,
            endpoint: self.plane.then(|| endpoint(self.id)),
            ticket_key: KEY.0,
            process: Process { host: "sim".into(), pid: 1 },
            gangs: true,
            speed: Default::default(),
        }
    }

    /// The tensors of a session that are here in any state.
    pub fn tensors(&self, session: SessionId) -> Vec<TensorId> {
        self.sessions.get(&session).map_or(Vec::new(), |t| t.entries.keys().copied().collect())
    }

    /// The prefixes of a session that are here or on their way to be run.
    pub fn prefixes(&self, session: SessionId) -> Vec<u64> {
        self.sessions.get(&session).map_or(Vec::new(), |t| t.begun.keys().copied().collect())
    }

    pub fn sessions(&self) -> Vec<SessionId> {
        self.sessions.keys().copied().collect()
    }

    pub fn handle(
        &mut self,
        command: WorkerCmd,
        rng: &mut Rng,
        said: &mut VecDeque<WorkerMsg>,
        moving: &mut Vec<Transfer>,
        gangs: &mut Gangs,
    ) {
        match command {
            WorkerCmd::Gang { session, gang, share } => {
                assert!(self.gangs.back().is_none_or(|last| *last < gang.number), "gangs come in order");
                self.gangs.push_back(gang.number);
                let table = self.sessions.entry(session).or_default();
                table.queue.push_back(Item::Gang(gang, share.run()));
                table.queue.push_back(Item::Close(Vec::new(), Vec::new()));
            }
            WorkerCmd::Mesh(mesh) => {
                let shape: Vec<usize> = mesh.shape.iter().map(|n| *n as usize).collect();
                assert_eq!(shape.iter().product::<usize>(), mesh.members.len());
                let place = (mesh.rank as usize, shape);
                assert!(self.meshes.insert(mesh.id, Ok(place)).is_none());
            }
            WorkerCmd::Disband { mesh, error } => {
                if let Some((_, gang, _)) = self.busy.as_ref().filter(|(_, gang, _)| gang.mesh == mesh) {
                    gangs.fail(gang.number, Failure { root: 0, instr: None, error: error.clone() });
                }
                self.meshes.insert(mesh, Err(error));
            }
            WorkerCmd::Batch { session, batch: Batch { runs, fetches, frees } } => {
                let table = self.sessions.entry(session).or_default();
                table.queue.extend(runs.into_iter().map(Item::Run));
                table.queue.push_back(Item::Close(fetches, frees));
            }
            WorkerCmd::Prefix { session, prefix } => {
                self.sessions.entry(session).or_default().queue.push_back(Item::Prefix(prefix));
            }
            WorkerCmd::Forget { session, prefix } => {
                self.sessions.entry(session).or_default().queue.push_back(Item::Forget(prefix));
            }
            WorkerCmd::Upload { session, tensor, data, .. } => {
                let table = self.sessions.entry(session).or_default();
                let old = table.entries.insert(tensor, Entry::Here(to_numbers(&data)));
                assert!(old.is_none(), "{tensor:?} of {session:?} is uploaded and there");
            }
            WorkerCmd::Fulfil { session, tensor, data } => {
                let entry = self.sessions.get_mut(&session).and_then(|t| t.entries.get_mut(&tensor));
                if let Some(entry @ Entry::Waiting) = entry {
                    *entry = Entry::Here(to_numbers(&data));
                    if self.tell.remove(&(session, tensor)) {
                        said.push_back(WorkerMsg::Arrived { session, tensor });
                    }
                }
            }
            WorkerCmd::Expect { session, tensor, tell, .. } => {
                let early = self.early.remove(&(session, tensor)).map_or(Entry::Waiting, Entry::Here);
                if tell && matches!(early, Entry::Here(_)) {
                    said.push_back(WorkerMsg::Arrived { session, tensor });
                } else if tell {
                    self.tell.insert((session, tensor));
                }
                let old = self.sessions.entry(session).or_default().entries.insert(tensor, early);
                assert!(old.is_none(), "{tensor:?} of {session:?} is expected and there");
            }
            WorkerCmd::Send { session, tensor, goal, to, now: true } => {
                let table = self.sessions.entry(session).or_default();
                table.send(session, tensor, goal, to, rng, self.id, said, moving);
            }
            WorkerCmd::Send { session, tensor, goal, to, now: false } => {
                self.sessions.entry(session).or_default().queue.push_back(Item::Send(tensor, goal, to));
            }
            WorkerCmd::Poison { session, tensor, failure } => {
                if let Some(entry @ Entry::Waiting) =
                    self.sessions.entry(session).or_default().entries.get_mut(&tensor)
                {
                    *entry = Entry::Poisoned(failure);
                }
            }
            WorkerCmd::Watch { .. } | WorkerCmd::Compile { .. } => {}
            WorkerCmd::Observe { session, detail } => {
                let session = session.unwrap_or(SessionId(rng.below(8) as u64));
                if detail >= Detail::Runs {
                    let events = vec![carried(session, rng.below(100) as u64)];
                    said.push_back(WorkerMsg::Events { now_us: rng.below(1000) as u64, events });
                }
            }
            WorkerCmd::Recent { session } => {
                said.push_back(WorkerMsg::Recent { session, now_us: 1, events: Vec::new() });
            }
            WorkerCmd::Gauge => said.push_back(WorkerMsg::Gauge(Box::default())),
            WorkerCmd::End { session } => {
                let ended = || Failure { root: 0, instr: None, error: Error::Runtime("ended".into()) };
                for item in self.sessions.remove(&session).into_iter().flat_map(|t| t.queue) {
                    if let Item::Gang(gang, _) = item {
                        self.gangs.retain(|g| *g != gang.number);
                        gangs.fail(gang.number, ended());
                    }
                }
                if let Some((_, gang, _)) = self.busy.as_ref().filter(|(s, ..)| *s == session) {
                    gangs.fail(gang.number, ended());
                }
                self.early.retain(|(s, _), _| *s != session);
                self.ended.insert(session);
            }
            WorkerCmd::Tidy { .. } => {}
            WorkerCmd::Stats { req } => {
                said.push_back(WorkerMsg::Stats { req, stats: WorkerStats::default() });
            }
        }
    }

    /// Bulk bytes arrive; false if nobody wants them.
    pub fn put(
        &mut self,
        session: SessionId,
        tensor: TensorId,
        data: &[u8],
        said: &mut VecDeque<WorkerMsg>,
    ) -> bool {
        if self.ended.contains(&session) {
            return false;
        }
        match self.sessions.get_mut(&session).and_then(|t| t.entries.get_mut(&tensor)) {
            Some(entry @ Entry::Waiting) => {
                *entry = Entry::Here(to_numbers(data));
                if self.tell.remove(&(session, tensor)) {
                    said.push_back(WorkerMsg::Arrived { session, tensor });
                }
            }
            Some(_) => return false,
            None => {
                self.early.insert((session, tensor), to_numbers(data));
            }
        }
        true
    }

    /// Does one step of one session; false if there is nothing to do.
    pub fn step(
        &mut self,
        rng: &mut Rng,
        said: &mut VecDeque<WorkerMsg>,
        moving: &mut Vec<Transfer>,
        gangs: &mut Gangs,
    ) -> bool {
        if self.busy.is_some() {
            return self.go_on(gangs);
        }
        let gang = self.gangs.front().copied();
        let ready: Vec<SessionId> =
            self.sessions.iter().filter(|(_, t)| t.is_ready(gang)).map(|(id, _)| *id).collect();
        let Some(session) = rng.pick(&ready) else { return false };
        let table = self.sessions.get_mut(&session).unwrap();
        match table.queue.pop_front().unwrap() {
            Item::Run(run) => {
                let outs = run.program.outs.clone();
                table.run(run, self.n);
                if rng.chance(40) {
                    said.extend(table.give(session, &outs));
                }
            }
            Item::Gang(gang, run) => self.busy = Some((session, gang, run)),
            Item::Prefix(Prefix { id, program }) => {
                assert!(program.structure.inputs.iter().all(|i| !i.dies) && program.frees.is_empty());
                let kept = table.inputs(&program).ok().and_then(|inputs| run(&program, &inputs, self.n));
                table.begun.insert(id, (program, kept));
            }
            Item::Forget(id) => {
                table.begun.remove(&id).expect("a prefix to forget");
            }
            Item::Close(fetches, frees) => {
                let mut values = Vec::new();
                for Fetch { req, tensor } in fetches {
                    let found = table.find(tensor);
                    let payload =
                        |data: Arc<Vec<u8>>| match self.plane && self.meshes.is_empty() && rng.chance(20) {
                            true => {
                                let ticket = KEY.sign(session.0, tensor.0, data.len() as u64, Dir::Get, 1);
                                table.promised.insert(tensor, data);
                                Payload::Bulk { at: endpoint(self.id), ticket }
                            }
                            false => Payload::Inline(data),
                        };
                    values.push(Value { req, result: found.map(payload) });
                }
                for id in frees {
                    table.entries.remove(&id);
                }
                let answers = |item: &Item| matches!(item, Item::Close(fetches, _) if !fetches.is_empty());
                if values.is_empty()
                    && table.failures.is_empty()
                    && table.queue.iter().any(answers)
                    && rng.chance(40)
                {
                    // The next answer tells it too.
                    return true;
                }
                let (finished, failures) =
                    (std::mem::take(&mut table.finished), std::mem::take(&mut table.failures));
                if !finished.is_empty() || !values.is_empty() {
                    said.push_back(WorkerMsg::Update {
                        session,
                        finished,
                        values,
                        failures,
                        spared: Vec::new(),
                        compiled: Vec::new(),
                        session_bytes: 0,
                    });
                }
            }
            Item::Send(tensor, goal, to) => table.send(session, tensor, goal, to, rng, self.id, said, moving),
        }
        true
    }
}

impl Worker {
    /// Goes on with the gang it is in; false if it can do nothing before others do.
    fn go_on(&mut self, gangs: &mut Gangs) -> bool {
        let Some((session, gang, run)) = self.busy.take() else { return false };
        let place = self.meshes[&gang.mesh].clone();
        let inputs = match self.sessions.get(&session) {
            Some(table) => table.inputs(&run.program),
            None => Ok(Vec::new()),
        };
        let lost = |error| Failure { root: 0, instr: None, error };
        let outcome = match (place, inputs) {
            (Err(error), _) => Err(lost(error)),
            (_, Err(failure)) => Err(failure),
            (Ok(_), Ok(_)) if !self.sessions.contains_key(&session) => {
                Err(lost(Error::Runtime("ended".into())))
            }
            (Ok((rank, shape)), Ok(inputs)) => match gangs.go(gang.number, rank, &shape, &run, &inputs) {
                Stand::Waits { moved } => {
                    self.busy = Some((session, gang, run));
                    return moved;
                }
                Stand::Done(outcome) => outcome,
            },
        };
        if let Err(failure) = &outcome {
            gangs.fail(gang.number, failure.clone());
        }
        self.gangs.retain(|g| *g != gang.number);
        if let Some(table) = self.sessions.get_mut(&session) {
            table.done(run.seq, &run.program, outcome);
        }
        true
    }
}

impl Table {
    /// Gives values that the batch asks for before it is told that their program has finished.
    fn give(&mut self, session: SessionId, outs: &[TensorId]) -> Option<WorkerMsg> {
        let close = self.queue.iter_mut().find_map(|item| match item {
            Item::Close(fetches, _) => Some(fetches),
            _ => None,
        });
        let mut values = Vec::new();
        close?.retain(|Fetch { req, tensor }| match self.entries.get(tensor) {
            Some(Entry::Here(data)) if outs.contains(tensor) => {
                values.push(Value { req: *req, result: Ok(Payload::Inline(to_bytes(data))) });
                false
            }
            _ => true,
        });
        (!values.is_empty()).then(|| WorkerMsg::Update {
            session,
            finished: Vec::new(),
            values,
            failures: Vec::new(),
            spared: Vec::new(),
            compiled: Vec::new(),
            session_bytes: 0,
        })
    }

    fn is_ready(&self, gang: Option<u64>) -> bool {
        let there = |id: &TensorId| !matches!(self.entries.get(id), Some(Entry::Waiting));
        match self.queue.front() {
            None => false,
            Some(Item::Run(run)) => run.program.inputs.iter().all(there),
            Some(Item::Gang(of, run)) => {
                // What a gang needs is there before it has a number (C9).
                assert!(run.program.inputs.iter().all(there), "gang {} waits for bytes", of.number);
                gang == Some(of.number)
            }
            Some(Item::Prefix(prefix)) => prefix.program.inputs.iter().all(there),
            Some(Item::Forget(_)) => true,
            Some(Item::Close(fetches, _)) => fetches.iter().all(|f| there(&f.tensor)),
            Some(Item::Send(tensor, ..)) => there(tensor),
        }
    }

    fn find(&self, id: TensorId) -> Result<Arc<Vec<u8>>, Failure> {
        match self.entries.get(&id) {
            Some(Entry::Here(values)) => Ok(to_bytes(values)),
            Some(Entry::Poisoned(failure)) => Err(failure.clone()),
            Some(Entry::Waiting) | None => self.promised.get(&id).cloned().ok_or_else(|| {
                let error = Error::Connection(format!("{id:?} is gone from its worker"));
                Failure { root: 0, instr: None, error }
            }),
        }
    }

    fn send(
        &mut self,
        session: SessionId,
        tensor: TensorId,
        goal: Option<WorkerId>,
        to: Option<(Endpoint, Ticket)>,
        rng: &mut Rng,
        from: WorkerId,
        said: &mut VecDeque<WorkerMsg>,
        moving: &mut Vec<Transfer>,
    ) {
        match (self.find(tensor), to) {
            // Some roads are closed.
            (Ok(data), Some((at, _))) if rng.chance(80) => {
                moving.push(Transfer { from: Some(from), goal: worker_at(&at), session, tensor, data });
            }
            (Ok(data), None) if goal.is_none() && rng.chance(50) => {
                self.carried.push((tensor, data));
                said.push_back(WorkerMsg::Moved { session, tensor, goal, result: Ok(None) });
            }
            (result, _) => {
                said.push_back(WorkerMsg::Moved { session, tensor, goal, result: result.map(Some) })
            }
        }
    }

    fn inputs(&self, program: &Program) -> Result<Vec<Numbers>, Failure> {
        program.inputs.iter().map(|id| self.find(*id).map(|bytes| to_numbers(&bytes))).collect()
    }

    fn run(&mut self, run: Run, n: usize) {
        let Run { seq, program, prefix } = run;
        let inputs = self.inputs(&program);
        if let Some(id) = prefix {
            let (prefix, kept) = self.begun.remove(&id).expect("the program was begun here");
            assert!(program.inputs.starts_with(&prefix.inputs), "program {seq} began as another");
            // What was kept is what the program would work out now.
            if let (Some(kept), Ok(inputs)) = (kept, &inputs) {
                let now = self::run(&prefix, &inputs[..prefix.inputs.len()], n);
                assert_eq!(now, Some(kept), "program {seq} was begun with other values");
            }
        }
        let boom = || Failure { root: seq, instr: Some(0), error: Error::Index(format!("boom {seq}")) };
        let outs = inputs.and_then(|inputs| self::run(&program, &inputs, n).ok_or_else(boom));
        self.done(seq, &program, outs);
    }

    fn done(&mut self, seq: u64, program: &Program, outs: Result<Vec<Numbers>, Failure>) {
        self.finished.push(seq);
        match outs {
            Ok(outs) => {
                let dying = program.inputs.iter().zip(&program.structure.inputs).filter(|(_, i)| i.dies);
                for id in program.frees.iter().chain(dying.map(|(id, _)| id)) {
                    self.entries.remove(id);
                }
                for (id, out) in program.outs.iter().zip(outs) {
                    let old = self.entries.insert(*id, Entry::Here(out));
                    assert!(old.is_none(), "{id:?} is written twice");
                }
            }
            Err(failure) => {
                for id in &program.outs {
                    self.entries.insert(*id, Entry::Poisoned(failure.clone()));
                }
                self.failures.push((seq, failure));
            }
        }
    }
}

/// Something to tell those who watch.
fn carried(session: SessionId, bytes: u64) -> WorkEvent {
    WorkEvent::Carried(Carried { session, tensor: 1, bytes, inward: true, start_us: 1, took_us: 2 })
}
