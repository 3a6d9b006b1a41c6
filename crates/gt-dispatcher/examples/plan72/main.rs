//! What a training step of Qwen3-0.6B on 72 workers costs the dispatcher: dividing it when it is new, and passing it on
//! when it comes again. The workers are simulated; the dispatcher is the real one, and so is the division.
//!
//! cargo run --release -p gt-dispatcher --example plan72 -- [workers] [steps]

mod qwen3;

use gt_dispatcher::shard::{Ask, divide_aside};
use gt_dispatcher::{Action, Config, Event, Machine, Vouched};
use gt_ir::signal::{Lay, Mark, MeshAxis, SignalSpec};
use gt_ir::{Input, Instr, Op, Program, Scalar, Structure, TensorId};
use gt_net::intern::{Interner, Shelf, Written, brings_much, decode_client, encode_client, encode_worker};
use gt_net::msg::{Batch, ClientMsg, Run, SessionId, WorkerCmd, WorkerId, WorkerInfo, WorkerMsg};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const TRAINER: SessionId = SessionId(1);
const OTHER: SessionId = SessionId(2);

/// How many turns are told of.
const LONGEST: usize = 4;

/// Qwen3-0.6B.
const SMALLEST: qwen3::Sizes = qwen3::Sizes {
    layers: 28,
    hidden: 1024,
    inner: 3072,
    heads: 16,
    key_heads: 8,
    head: 128,
    vocab: 151_936,
    batch: 72,
    length: 512,
};

/// The machine, its simulated workers, and the time that steps of the machine took.
struct Cluster {
    machine: Machine,
    spent: Duration,
    /// The time in which a server wrote what went to workers.
    wrote: Duration,
    /// The longest turns of the dispatcher since somebody looked, the longest first. No more are kept: a list of all of
    /// them grows by megabytes, which another session would wait for.
    turns: Vec<Turn>,
    /// Turns are timed by the processor's clock as well, which takes time itself.
    closely: bool,
    /// Programs that workers have and have not run.
    sent: Vec<(WorkerId, SessionId, u64)>,
    plans: Vec<(u64, Arc<Ask>)>,
    /// What each worker knows, and what was written for them: a server's part of a turn.
    known: HashMap<WorkerId, Interner>,
    shelf: Shelf,
}

/// One turn of the dispatcher.
#[derive(Clone, Copy)]
struct Turn {
    what: &'static str,
    took: Duration,
    /// The time in which the thread was running: the rest went to others on the same core.
    ran: Duration,
}

/// The time that this thread has been running.
fn running() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists on every Linux, and `time` is there to be written.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn name(event: &Event) -> &'static str {
    match event {
        Event::Client(TRAINER, _) => "a program comes",
        Event::Client(..) => "another session's program comes",
        Event::Worker(..) => "a worker has finished",
        Event::Planned { .. } => "a division comes",
        Event::Vouched(_) => "a structure was checked",
        _ => "something else",
    }
}

impl Cluster {
    fn new(workers: u32, shard: bool) -> Cluster {
        let machine = Machine::new(Config::default());
        let (sent, plans) = (Vec::new(), Vec::new());
        let (spent, wrote, turns, closely) = (Duration::ZERO, Duration::ZERO, Vec::new(), false);
        let (known, shelf) = (HashMap::new(), Shelf::default());
        let mut cluster = Cluster { machine, spent, wrote, turns, closely, sent, plans, known, shelf };
        for i in 0..workers {
            let info = WorkerInfo {
                name: format!("w{i}"),
                backend: "cuda".into(),
                device: "simulated".into(),
                threads: 1,
                memory: 80 << 30,
                endpoint: None,
                ticket_key: [0; 16],
                process: gt_net::process::Process::this(),
                gangs: true,
                speed: Default::default(),
            };
            cluster.step(Event::WorkerUp { worker: WorkerId(i), info });
        }
        let vars = vec![("GT_AUTO_SHARD".to_string(), "1".to_string())];
        let vars = if shard { vars } else { Vec::new() };
        cluster.step(Event::ClientUp { session: TRAINER, name: "trainer".into(), vars });
        cluster.step(Event::ClientUp { session: OTHER, name: "other".into(), vars: Vec::new() });
        cluster
    }

    fn step(&mut self, event: Event) {
        let mut out = Vec::new();
        let what = name(&event);
        let before = if self.closely { running() } else { Duration::ZERO };
        let start = Instant::now();
        self.machine.step(0, event, &mut out);
        let stepped = start.elapsed();
        self.writes(&out);
        (self.spent, self.wrote) = (self.spent + stepped, self.wrote + (start.elapsed() - stepped));
        if self.closely {
            let turn = Turn { what, took: start.elapsed(), ran: running() - before };
            let place = self.turns.partition_point(|t| t.took >= turn.took);
            self.turns.insert(place, turn);
            self.turns.truncate(LONGEST);
        }
        for action in out {
            match action {
                Action::ToWorker(worker, WorkerCmd::Gang { session, share, .. }) => {
                    self.sent.push((worker, session, share.seq));
                }
                Action::ToWorker(worker, WorkerCmd::Batch { session, batch }) => {
                    self.sent.extend(batch.runs.iter().map(|run| (worker, session, run.seq)));
                }
                Action::Plan { ask, program } => self.plans.push((ask, program)),
                _ => {}
            }
        }
    }

    /// What a server does with a message that brings a large structure: a thread reads and checks it, while another session
    /// works.
    fn read(&mut self, message: &ClientMsg, other: &mut Other) -> ClientMsg {
        let bytes = encode_client(message, &mut Interner::new());
        assert!(brings_much(&bytes));
        let (done, answer) = channel();
        let thread = std::thread::spawn(move || {
            let message = decode_client(&bytes, &mut Interner::new()).expect("it was just written");
            let vouched = Vouched::all(&message);
            let _ = done.send((message, vouched));
        });
        let (message, vouched) = self.wait(&answer, other);
        let _ = thread.join();
        self.step(Event::Vouched(vouched));
        message
    }

    /// What a server does after a turn: it writes what goes to workers.
    fn writes(&mut self, out: &[Action]) {
        for action in out {
            if let Action::ToWorker(worker, command) = action {
                let interner = self.known.entry(*worker).or_default();
                encode_worker(command, interner, &mut self.shelf, drop);
            }
        }
    }

    /// All workers run what they have.
    fn work(&mut self) {
        while !self.sent.is_empty() {
            for (worker, session, seq) in std::mem::take(&mut self.sent) {
                let message = WorkerMsg::Update {
                    session,
                    finished: vec![seq],
                    values: Vec::new(),
                    failures: Vec::new(),
                    spared: Vec::new(),
                    compiled: Vec::new(),
                    session_bytes: 0,
                };
                self.step(Event::Worker(worker, message));
            }
        }
    }

    fn send(&mut self, session: SessionId, seq: u64, program: Program) {
        self.step(Event::Client(session, batch(seq, program)));
    }

    /// Divides what is asked for, on a thread of its own; gives the time that took. Meanwhile another session works.
    fn plan(&mut self, other: &mut Other) -> Duration {
        let mut took = Duration::ZERO;
        while let Some((ask, program)) = self.plans.pop() {
            let (done, answer) = channel();
            let start = Instant::now();
            let started = divide_aside(program, move |result| {
                let parts = result.iter().flatten().flat_map(|divided| divided.structures());
                let written: Vec<Written> = parts.map(Written::new).collect();
                let _ = done.send((result, written, start.elapsed()));
            });
            started.expect("a thread");
            let (result, written, time) = self.wait(&answer, other);
            written.into_iter().for_each(|written| self.shelf.add(written));
            took += time;
            self.step(Event::Planned { ask, result });
        }
        took
    }

    fn wait<T>(&mut self, answer: &Receiver<T>, other: &mut Other) -> T {
        loop {
            match answer.try_recv() {
                Ok(answer) => return answer,
                Err(_) => other.step(self),
            }
        }
    }
}

/// A session with small programs, each of which waits for the one before and frees what that one made.
#[derive(Default)]
struct Other {
    seq: u64,
    longest: Duration,
}

impl Other {
    fn step(&mut self, cluster: &mut Cluster) {
        let start = Instant::now();
        self.seq += 1;
        let mut program = fills(&[gt_ir::Ty::new(gt_ir::DType::F32, [16])], self.seq << 32);
        program.frees.extend((self.seq > 1).then_some(TensorId((self.seq - 1) << 32)));
        cluster.send(OTHER, self.seq, program);
        cluster.work();
        self.longest = self.longest.max(start.elapsed());
    }
}

fn batch(seq: u64, program: Program) -> ClientMsg {
    let runs = vec![Run { seq, program, prefix: None }];
    ClientMsg::Batch(Batch { runs, ..Batch::default() })
}

/// A program that fills tensors of these types, numbered from `first` on.
fn fills(types: &[gt_ir::Ty], first: u64) -> Program {
    let fill = |ty: &gt_ir::Ty| Instr {
        op: Op::Full { shape: ty.shape.clone(), dtype: ty.dtype },
        args: smallvec::smallvec![gt_ir::Arg::Const(Scalar::Int(0).to_dtype(ty.dtype))],
    };
    let structure = Structure {
        instrs: types.iter().map(fill).collect(),
        outs: (0..types.len() as u32).collect(),
        ..Structure::default()
    };
    let outs = (0..types.len() as u64).map(|k| TensorId(first + k)).collect();
    let (inputs, slots, frees) = (Vec::new(), Vec::new(), Vec::new());
    Program { key: structure.key(), structure: Arc::new(structure), inputs, outs, slots, frees }
}

/// A mesh of machines of eight: batches over machines and over the workers of each, the products within them.
fn grid(workers: u32) -> SignalSpec {
    let axis = |name: &str, size: u32| MeshAxis { name: name.into(), size };
    SignalSpec {
        name: "grid".into(),
        axes: vec![axis("data", workers / 8), axis("model", 8)],
        lays: vec![Lay::Split(0), Lay::Whole],
        ..SignalSpec::default()
    }
}

fn measure(name: &str, workers: u32, steps: u64, signal: Option<SignalSpec>) {
    let mut structure = qwen3::step(&SMALLEST).expect("the step");
    let types: Vec<gt_ir::Ty> = structure.inputs.iter().map(|i: &Input| i.ty.clone()).collect();
    let mut cluster = Cluster::new(workers, signal.is_none());
    if let Some(spec) = signal {
        // The token ids lie as the signal says.
        let ids =
            structure.instrs.iter().position(|i| matches!(i.op, Op::Take { .. })).expect("the embedding");
        let value = structure.starts()[ids];
        structure.marks = vec![Mark { value, signal: 0, firm: true }];
        cluster.step(Event::Client(TRAINER, ClientMsg::Signals { specs: vec![spec] }));
    }
    let mut other = Other::default();
    let mut first = 1 << 20;
    let mut made = fills(&types, first);
    if let Some(mark) = structure.marks.first() {
        let mut whole = (*made.structure).clone();
        whole.marks = vec![Mark { value: 0, firm: false, ..*mark }];
        (made.key, made.structure) = (whole.key(), Arc::new(whole));
    }
    cluster.send(TRAINER, 1, made);
    cluster.plan(&mut other);
    cluster.work();
    let (instrs, outs) = (structure.instrs.len(), structure.outs.len() as u64);
    let key = structure.key();
    let structure = Arc::new(structure);
    let mut times = Vec::new();
    let mut planning = Duration::ZERO;
    let mut inputs: Vec<TensorId> = (0..types.len() as u64).map(|k| TensorId(first + k)).collect();
    for step in 0..steps {
        first += 1 << 20;
        let outs: Vec<TensorId> = (0..outs).map(|k| TensorId(first + k)).collect();
        let (slots, frees) = (Vec::new(), Vec::new());
        let program = Program {
            structure: structure.clone(),
            key,
            inputs: inputs.clone(),
            outs: outs.clone(),
            slots,
            frees,
        };
        if step == 0 {
            (cluster.closely, other.longest) = (true, Duration::ZERO);
        }
        (cluster.spent, cluster.wrote) = (Duration::ZERO, Duration::ZERO);
        let mut message = batch(step + 2, program);
        if step == 0 {
            message = cluster.read(&message, &mut other);
        }
        cluster.step(Event::Client(TRAINER, message));
        let planned = cluster.plan(&mut other);
        if step == 0 {
            planning = planned;
        }
        cluster.work();
        if step == 0 {
            let ms = |t: Duration| t.as_secs_f64() * 1e3;
            println!(
                "{name}: {instrs} instructions, {} tensors in, divided over {workers} workers in {:.0} ms on the side",
                inputs.len(),
                ms(planning)
            );
            cluster.closely = false;
            println!(
                "  meanwhile another session waited for {:.2} ms at most; the longest turns:",
                ms(other.longest)
            );
            for turn in std::mem::take(&mut cluster.turns) {
                println!("  {:7.2} ms, {:.2} of them running: {}", ms(turn.took), ms(turn.ran), turn.what);
            }
        } else {
            let each = |t: Duration| t.as_secs_f64() * 1e6 / workers as f64;
            times.push((each(cluster.spent), each(cluster.wrote)));
        }
        // Ids, targets and angles stay; parameters and their states are those of the last step.
        let states = inputs.len() - 4;
        let params = states / 3;
        for k in 0..params {
            inputs[4 + k] = outs[3 * k];
            inputs[4 + params + 2 * k] = outs[3 * k + 1];
            inputs[4 + params + 2 * k + 1] = outs[3 * k + 2];
        }
    }
    times.sort_by(|a, b| a.0.total_cmp(&b.0));
    if let Some((median, wrote)) = times.get(times.len() / 2) {
        println!(
            "  a repeated step: {median:.2} us of the dispatcher's time per worker (median of {}, least {:.2}), \
             and {wrote:.2} of a server's to write it",
            times.len(),
            times[0].0
        );
    }
}

fn main() {
    let mut args = std::env::args().skip(1).map_while(|a| a.parse().ok());
    let workers = args.next().unwrap_or(72) as u32;
    let steps = args.next().unwrap_or(100);
    measure("one axis", workers, steps, None);
    if workers.is_multiple_of(8) {
        measure("machines of eight", workers, steps, Some(grid(workers)));
    }
}
