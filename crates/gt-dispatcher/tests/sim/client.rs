//! A client that records random programs, works out by itself what every tensor must be, and checks all answers.

use super::rng::Rng;
use super::worker::{BOOM, Numbers, run, to_bytes, to_numbers, worker_at};
use gt_ir::signal::{Lay, Mark, MeshAxis, SignalSpec};
use gt_ir::{
    Arg, Binary, DType, Error, Input, Instr, Op, Program, ReduceKind, Scalar, Shape, Slot, Structure,
    TensorId, Ty,
};
use gt_net::msg::{
    Batch, ClientMsg, Failure, Fetch, Payload, Prefix, Run, SessionId, SessionMsg, Value, WorkerId,
};
use gt_net::observe::{Detail, Scope};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Instructions of a program that the dispatcher does not divide by itself, whatever the number of workers.
const LONG: usize = 260;

/// What a tensor must be.
#[derive(Clone, Debug)]
enum Expected {
    Value(Numbers),
    /// One of these programs is the root cause.
    Failed(BTreeSet<u64>),
}

pub struct Client {
    pub id: SessionId,
    n: usize,
    next_id: u64,
    seq: u64,
    completed: u64,
    credit: u64,
    expected: BTreeMap<TensorId, Expected>,
    /// Tensors the client has not dropped.
    pub live: Vec<TensorId>,
    /// What each unfinished program frees.
    frees: BTreeMap<u64, Vec<TensorId>>,
    failed: BTreeSet<u64>,
    /// Programs that must fail, each with its possible root causes.
    doomed: BTreeMap<u64, BTreeSet<u64>>,
    fetches: BTreeMap<u64, TensorId>,
    next_req: u64,
    stats: BTreeSet<u64>,
    uploads: BTreeMap<TensorId, Arc<Vec<u8>>>,
    /// Connection errors may come: a worker died, or there was none.
    /// Uploads that the server will ask for, in pieces.
    pub carried: BTreeMap<TensorId, Arc<Vec<u8>>>,
    pub losses: bool,
    pub fatal: Option<Error>,
    /// It has sent something that must end its session.
    pub malicious: bool,
    /// Programs that no worker may ever see.
    rejected: BTreeSet<u64>,
    /// A program whose beginning is sent: it comes first in the next batch.
    begun: Option<Run>,
    /// It has signals for meshes of two axes, so many of them.
    pub grids: u32,
    /// Prefixes whose programs will never come.
    pub strays: BTreeSet<u64>,
    next_prefix: u64,
}

/// What a client does besides sending messages.
pub enum Deed {
    Put { goal: WorkerId, tensor: TensorId, data: Arc<Vec<u8>> },
}

impl Client {
    pub fn new(id: SessionId, n: usize, credit: u64) -> Client {
        Client {
            id,
            n,
            next_id: 1,
            seq: 0,
            completed: 0,
            credit,
            expected: BTreeMap::new(),
            live: Vec::new(),
            frees: BTreeMap::new(),
            failed: BTreeSet::new(),
            doomed: BTreeMap::new(),
            fetches: BTreeMap::new(),
            next_req: 1,
            stats: BTreeSet::new(),
            uploads: BTreeMap::new(),
            carried: BTreeMap::new(),
            losses: false,
            fatal: None,
            malicious: false,
            rejected: BTreeSet::new(),
            begun: None,
            grids: 0,
            strays: BTreeSet::new(),
            next_prefix: 1,
        }
    }

    fn ty(&self) -> Ty {
        Ty::new(DType::I64, [self.n])
    }

    fn new_tensor(&mut self, expected: Expected) -> TensorId {
        let id = TensorId(self.next_id);
        self.next_id += 1;
        self.expected.insert(id, expected);
        self.live.push(id);
        id
    }

    /// Does something at random.
    pub fn act(&mut self, rng: &mut Rng, to: &mut VecDeque<ClientMsg>, inline_only: bool) {
        match rng.below(13) {
            12 if rng.chance(20) => to.push_back(ClientMsg::Recent),
            12 if rng.chance(20) => to.push_back(ClientMsg::Tensors { req: 0 }),
            12 => to.push_back(watch(rng)),
            10 => self.begin(rng, to),
            11 => self.stray(rng, to),
            0 | 1 => self.upload(rng, to, inline_only),
            2 => {
                self.stats.insert(self.next_req);
                to.push_back(ClientMsg::Stats { req: self.next_req });
                self.next_req += 1;
            }
            3 => self.sync(to),
            _ => self.batch(rng, to),
        }
    }

    /// Asks to be told when everything so far has finished.
    pub fn sync(&mut self, to: &mut VecDeque<ClientMsg>) {
        to.push_back(ClientMsg::Sync { seq: self.begun.as_ref().map_or(self.seq, |run| run.seq - 1) });
    }

    /// Sends the beginning of a program, or a longer one of the same program.
    fn begin(&mut self, rng: &mut Rng, to: &mut VecDeque<ClientMsg>) {
        if self.begun.is_none() && self.seq - self.completed < self.credit {
            let prefix = Some(self.next_prefix);
            self.next_prefix += 1;
            self.begun = Some(Run { prefix, ..self.program(rng) });
        }
        if let Some(Run { program, prefix: Some(id), .. }) = &self.begun {
            let len = 1 + rng.below(program.structure.instrs.len());
            to.push_back(ClientMsg::Prefix(Prefix { id: *id, program: first(program, len) }));
        }
    }

    /// Begins a program that will never come, or gives one up, or sends what is no beginning of anything.
    fn stray(&mut self, rng: &mut Rng, to: &mut VecDeque<ClientMsg>) {
        let strays: Vec<u64> = self.strays.iter().copied().collect();
        if let Some(prefix) = rng.pick(&strays).filter(|_| rng.chance(50)) {
            self.strays.remove(&prefix);
            to.push_back(ClientMsg::Forget { prefix });
            return;
        }
        let inputs: Vec<TensorId> = rng.pick(&self.live).into_iter().collect();
        let mut program = first(&self.bind(rng, &inputs, &vec![false; inputs.len()], 2), 2);
        match rng.below(8) {
            0 => program.inputs.iter_mut().for_each(|id| id.0 += 1 << 40),
            1 => program.slots.push(Slot::Num(Scalar::Int(1))),
            2 => program.outs.clear(),
            3 => program.frees.extend(&program.inputs),
            _ => {}
        }
        let id = self.next_prefix;
        self.next_prefix += 1;
        self.strays.insert(id);
        to.push_back(ClientMsg::Prefix(Prefix { id, program }));
    }

    /// Sends the program that was begun.
    pub fn finish(&mut self, to: &mut VecDeque<ClientMsg>) {
        if let Some(run) = self.begun.take() {
            to.push_back(ClientMsg::Batch(Batch { runs: vec![run], ..Batch::default() }));
        }
    }

    fn upload(&mut self, rng: &mut Rng, to: &mut VecDeque<ClientMsg>, inline_only: bool) {
        let values: Numbers = (0..self.n).map(|_| rng.below(1000) as i64).collect();
        let (ty, bytes) = (self.ty(), to_bytes(&values));
        let tensor = self.new_tensor(Expected::Value(values));
        let data = match inline_only || rng.chance(50) {
            true => Some(bytes),
            false => {
                self.uploads.insert(tensor, bytes);
                None
            }
        };
        to.push_back(ClientMsg::Upload { tensor, ty, data });
    }

    fn batch(&mut self, rng: &mut Rng, to: &mut VecDeque<ClientMsg>) {
        let mut batch = Batch::default();
        batch.runs.extend(self.begun.take());
        for _ in 0..rng.below(4) {
            if self.seq - self.completed < self.credit {
                batch.runs.push(self.program(rng));
            }
        }
        for _ in 0..rng.below(3) {
            if let Some(tensor) = rng.pick(&self.live) {
                let req = self.next_req;
                self.next_req += 1;
                self.fetches.insert(req, tensor);
                batch.fetches.push(Fetch { req, tensor });
            }
        }
        for _ in 0..rng.below(3) {
            batch.frees.extend(self.drop_one(rng));
        }
        to.push_back(ClientMsg::Batch(batch));
    }

    fn drop_one(&mut self, rng: &mut Rng) -> Option<TensorId> {
        let id = rng.pick(&self.live)?;
        self.live.retain(|t| *t != id);
        Some(id)
    }

    fn program(&mut self, rng: &mut Rng) -> Run {
        self.seq += 1;
        let mut inputs: Vec<TensorId> = (0..rng.below(4)).filter_map(|_| rng.pick(&self.live)).collect();
        inputs.sort_unstable();
        inputs.dedup();
        let dies: Vec<bool> = inputs.iter().map(|_| rng.chance(40)).collect();
        let factor = if rng.chance(8) { BOOM } else { rng.below(10) as i64 };
        let program = self.bind(rng, &inputs, &dies, factor);
        let known: Vec<&Expected> = program.inputs.iter().map(|id| &self.expected[id]).collect();
        let roots: BTreeSet<u64> = known
            .iter()
            .filter_map(|e| if let Expected::Failed(roots) = e { Some(roots.iter().copied()) } else { None })
            .flatten()
            .collect();
        let values: Vec<Numbers> = known
            .iter()
            .filter_map(|e| if let Expected::Value(v) = e { Some(v.clone()) } else { None })
            .collect();
        let outs: Vec<Expected> =
            match (roots.is_empty(), run_if(roots.is_empty(), &program, &values, self.n)) {
                (true, Some(outs)) => outs.into_iter().map(Expected::Value).collect(),
                (true, None) => program.outs.iter().map(|_| Expected::Failed([self.seq].into())).collect(),
                (false, _) => program.outs.iter().map(|_| Expected::Failed(roots.clone())).collect(),
            };
        if let Some(Expected::Failed(roots)) = outs.first() {
            self.doomed.insert(self.seq, roots.clone());
        }
        for (id, out) in program.outs.iter().zip(outs) {
            self.expected.insert(*id, out);
            self.live.push(*id);
        }
        self.live.retain(|id| !program.frees.contains(id));
        self.frees.insert(self.seq, program.frees.clone());
        Run { seq: self.seq, program, prefix: None }
    }

    /// Sums its inputs, times a number in a slot, plus a constant; one or two results.
    fn bind(&mut self, rng: &mut Rng, inputs: &[TensorId], dies: &[bool], factor: i64) -> Program {
        let ty = self.ty();
        let op = |op, a, b| Instr { op: Op::Binary(op), args: [a, b].into_iter().collect() };
        let fill = Arg::Const(Scalar::Int(rng.below(5) as i64));
        let full = Op::Full { shape: Shape::from([self.n]), dtype: DType::I64 };
        let mut instrs = vec![Instr { op: full, args: [fill].into_iter().collect() }];
        let k = inputs.len() as u32;
        let mut last = k;
        for i in 0..k {
            instrs.push(op(Binary::Add, Arg::Value(last), Arg::Value(i)));
            last = k + instrs.len() as u32 - 1;
        }
        if rng.chance(30) {
            // The sum of all elements, added to each.
            let sum = Op::Reduce { kind: ReduceKind::Sum, dims: [0].into_iter().collect(), keepdim: true };
            instrs.push(Instr { op: sum, args: [Arg::Value(last)].into_iter().collect() });
            let total = k + instrs.len() as u32 - 1;
            instrs.push(op(Binary::Add, Arg::Value(last), Arg::Value(total)));
            last = k + instrs.len() as u32 - 1;
        }
        if rng.chance(3) {
            // Long enough to be divided elsewhere, while other things happen.
            for _ in 0..LONG {
                instrs.push(op(Binary::Add, Arg::Value(last), Arg::Const(Scalar::Int(1))));
                last = k + instrs.len() as u32 - 1;
            }
        }
        instrs.push(op(Binary::Mul, Arg::Value(last), Arg::Slot(0)));
        let mut outs = vec![k + instrs.len() as u32 - 1];
        if rng.chance(30) {
            outs.push(last);
        }
        let mut marks = Vec::new();
        if self.grids > 0 && rng.chance(60) {
            let signal = rng.below(self.grids as usize) as u32;
            marks.push(Mark { value: k, signal, firm: false });
            marks.extend(outs.first().map(|value| Mark { value: *value, signal, firm: rng.chance(50) }));
        }
        let structure = Structure {
            inputs: dies.iter().map(|dies| Input { ty: ty.clone(), dies: *dies }).collect(),
            instrs,
            outs: outs.clone(),
            slots: 1,
            marks,
            ..Default::default()
        };
        let mut frees: Vec<TensorId> =
            inputs.iter().zip(dies).filter(|(_, d)| **d).map(|(id, _)| *id).collect();
        // Older ids ride along.
        let others: Vec<TensorId> = self.live.iter().filter(|id| !inputs.contains(id)).copied().collect();
        if rng.chance(30) {
            frees.extend(rng.pick(&others));
        }
        let outs = outs
            .iter()
            .map(|_| {
                self.next_id += 1;
                TensorId(self.next_id - 1)
            })
            .collect();
        let (key, structure) = (structure.key(), Arc::new(structure));
        let slots = vec![Slot::Num(Scalar::Int(factor))];
        Program { structure, key, inputs: inputs.to_vec(), outs, slots, frees }
    }

    /// Sends something that no honest client would. What is wrong with a program fails that program alone.
    pub fn misbehave(&mut self, rng: &mut Rng, to: &mut VecDeque<ClientMsg>) {
        self.finish(to);
        let mut run = self.program(rng);
        match rng.below(5) {
            0 => {
                self.malicious = true;
                run.seq += 7;
            }
            1 => run.program.slots.clear(),
            2 => run.program.key ^= 1,
            3 => {
                run.program.structure =
                    Arc::new(Structure { instrs: vec![], ..(*run.program.structure).clone() })
            }
            _ => run.program.inputs.push(TensorId(1 << 40)),
        }
        self.rejected.insert(run.seq);
        self.doomed.insert(run.seq, [run.seq].into());
        for id in &run.program.outs {
            self.expected.insert(*id, Expected::Failed([run.seq].into()));
        }
        to.push_back(ClientMsg::Batch(Batch { runs: vec![run], ..Batch::default() }));
    }

    pub fn hear(&mut self, message: SessionMsg, rng: &mut Rng, to: &mut VecDeque<ClientMsg>) -> Option<Deed> {
        match message {
            SessionMsg::Update { completed, values, failures } => {
                assert!(
                    completed >= self.completed && completed <= self.seq,
                    "completed goes from {} to {completed}",
                    self.completed
                );
                for (seq, failure) in failures {
                    self.check_failure(&failure, &self.doomed.get(&seq).cloned().unwrap_or_default());
                    assert!(self.failed.insert(seq), "program {seq} failed twice");
                    self.revert(seq, rng, to);
                }
                self.completed = completed;
                self.frees.retain(|seq, _| *seq > completed);
                values.into_iter().for_each(|value| self.answer(value, to));
            }
            SessionMsg::Grant { tensor, at, .. } => {
                let data = self.uploads.remove(&tensor).expect("a grant for nothing");
                if rng.chance(70) {
                    return Some(Deed::Put { goal: worker_at(&at), tensor, data });
                }
                if rng.chance(50) {
                    to.push_back(ClientMsg::Relay { tensor, data });
                } else {
                    self.carried.insert(tensor, data);
                    to.push_back(ClientMsg::Carry { tensor });
                }
            }
            SessionMsg::Unwanted { tensor, .. } => {
                self.uploads.remove(&tensor).expect("an upload that nobody made");
            }
            SessionMsg::Stats { req, .. } => assert!(self.stats.remove(&req)),
            SessionMsg::Log { .. }
            | SessionMsg::Snapshot(_)
            | SessionMsg::Trace { .. }
            | SessionMsg::TellLines { .. }
            | SessionMsg::Tensors { .. } => {}
            SessionMsg::Fatal { error } => {
                assert!(self.malicious, "{:?} ended: {error}", self.id);
                self.fatal = Some(error);
            }
        }
        None
    }

    /// Takes the answer to a fetch, from a message or in pieces.
    pub fn answer(&mut self, value: Value, to: &mut VecDeque<ClientMsg>) {
        let id = *self.fetches.get(&value.req).expect("an answer to a question nobody asked");
        match value.result {
            Ok(Payload::Bulk { .. }) => {
                to.push_back(ClientMsg::FetchRelay { req: value.req, tensor: id, piece: None });
                return;
            }
            Ok(Payload::Inline(bytes)) => self.check_value(id, &bytes),
            Ok(Payload::Pieces(pieces)) => {
                let bytes = gt_net::pieces::assemble(&pieces).expect("pieces of a tensor");
                self.check_value(id, &bytes);
            }
            Err(failure) => match self.expected[&id].clone() {
                Expected::Value(_) => self.check_failure(&failure, &BTreeSet::new()),
                Expected::Failed(roots) => self.check_failure(&failure, &roots),
            },
        }
        self.fetches.remove(&value.req);
    }

    fn check_value(&self, id: TensorId, bytes: &[u8]) {
        match &self.expected[&id] {
            Expected::Value(right) => assert_eq!(&to_numbers(bytes), right, "{id:?} of {:?}", self.id),
            Expected::Failed(_) => panic!("{id:?} of {:?} has a value and must not", self.id),
        }
    }

    /// A failure must be told with a root cause that is really one, or be a loss that really happened.
    fn check_failure(&self, failure: &Failure, roots: &BTreeSet<u64>) {
        if matches!(failure.error, Error::Connection(_)) {
            assert!(self.losses, "{:?}: {failure:?}, but nothing was lost", self.id);
            return;
        }
        match &failure.error {
            Error::Value(_) => assert!(self.rejected.contains(&failure.root), "{:?}: {failure:?}", self.id),
            Error::Index(text) => assert_eq!(*text, format!("boom {}", failure.root)),
            _ => panic!("{:?}: {failure:?}", self.id),
        }
        assert!(roots.contains(&failure.root), "{:?}: {failure:?}, expected one of {roots:?}", self.id);
    }

    /// After a failure, what the program would have freed is still there: goes back to it, or drops it again.
    fn revert(&mut self, seq: u64, rng: &mut Rng, to: &mut VecDeque<ClientMsg>) {
        let mut frees = self.frees.remove(&seq).expect("an unfinished program");
        if rng.chance(50) {
            self.live.append(&mut frees);
        } else if !frees.is_empty() {
            to.push_back(ClientMsg::Batch(Batch { frees, ..Batch::default() }));
        }
    }

    /// What is still missing once nothing moves any more.
    pub fn check_quiet(&self) {
        assert!(self.fetches.is_empty(), "{:?} waits for {:?}", self.id, self.fetches);
        assert!(self.stats.is_empty(), "{:?} waits for counters", self.id);
        assert_eq!(self.completed, self.seq, "{:?} waits for programs", self.id);
    }
}

/// The first `len` instructions of a program, keeping every value.
fn first(program: &Program, len: usize) -> Program {
    let whole = &program.structure;
    let n = whole.inputs.len() as u32;
    let instrs = &whole.instrs[..len];
    let args = || instrs.iter().flat_map(|i| &i.args);
    // Inputs are read in order, so the ones read so far come first.
    let k = args().filter(|a| matches!(a, Arg::Value(v) if *v < n)).count() as u32;
    let slots = args().filter(|a| matches!(a, Arg::Slot(_))).count();
    let renumber = |arg: &Arg| match *arg {
        Arg::Value(v) if v >= n => Arg::Value(v - n + k),
        other => other,
    };
    let instr = |i: &Instr| Instr { op: i.op.clone(), args: i.args.iter().map(renumber).collect() };
    let structure = Structure {
        inputs: whole.inputs[..k as usize].iter().map(|i| Input { dies: false, ..i.clone() }).collect(),
        instrs: instrs.iter().map(instr).collect(),
        outs: (k..k + len as u32).collect(),
        slots: slots as u32,
        ..Default::default()
    };
    Program {
        key: structure.key(),
        structure: Arc::new(structure),
        inputs: program.inputs[..k as usize].to_vec(),
        outs: (0..len as u64).map(|i| TensorId((1 << 50) + i)).collect(),
        slots: program.slots[..slots].to_vec(),
        frees: Vec::new(),
    }
}

fn run_if(may: bool, program: &Program, values: &[Numbers], n: usize) -> Option<Vec<Numbers>> {
    if may { run(program, values, n) } else { None }
}

/// Signals for meshes of two axes, on whatever workers there are.
pub fn grids() -> Vec<SignalSpec> {
    let grid = |sizes: [u32; 2], lays: [Lay; 2]| SignalSpec {
        name: format!("{sizes:?}"),
        axes: ["a", "b"]
            .iter()
            .zip(sizes)
            .map(|(name, size)| MeshAxis { name: name.to_string(), size })
            .collect(),
        lays: lays.to_vec(),
        ..SignalSpec::default()
    };
    vec![
        grid([2, 0], [Lay::Split(0), Lay::Split(0)]),
        grid([0, 2], [Lay::Split(0), Lay::Whole]),
        grid([2, 2], [Lay::Whole, Lay::Free]),
    ]
}

/// Begins to watch, or watches otherwise, or ends it.
fn watch(rng: &mut Rng) -> ClientMsg {
    let scope = if rng.chance(50) { Scope::Own } else { Scope::All };
    let details = [Detail::Nothing, Detail::Counters, Detail::Runs, Detail::Programs, Detail::Kernels];
    let detail = rng.pick(&details).unwrap_or_default();
    ClientMsg::Watch { scope, detail, every_ms: rng.below(300) as u32 }
}
