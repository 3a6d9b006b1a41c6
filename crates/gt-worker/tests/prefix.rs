//! Programs begun early (C3): the same bits as without, the same failures, and nothing left behind.

mod common;

use common::{TestBackend, ints, mul_add, take, to_bytes, to_ints};
use gt_ir::sample::{RandomProgram, random_program};
use gt_ir::{Arg, Error, Input, Program, Structure, TensorId};
use gt_net::msg::{
    Batch, Failure, Fetch, Payload, Prefix, Run, SessionId, WorkerCmd, WorkerMsg, WorkerStats,
};
use gt_worker::backend::Backend;
use gt_worker::backends::cpu::CpuBackend;
use gt_worker::{Worker, WorkerConfig};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const S: SessionId = SessionId(1);

struct Rig {
    worker: Worker,
    said: Receiver<WorkerMsg>,
    seq: u64,
}

/// What a program came to: the bytes of its live-outs, or why it failed.
type Came = Result<Vec<Arc<Vec<u8>>>, Failure>;

impl Rig {
    fn new(backend: Arc<dyn Backend>) -> Rig {
        let (send, said) = channel();
        let config = WorkerConfig { name: "w".into(), threads: 1, backend, compiling: Default::default() };
        let worker = Worker::start(config, Box::new(move |m| drop(send.send(m))));
        Rig { worker, said, seq: 0 }
    }

    fn hear(&self) -> WorkerMsg {
        self.said.recv_timeout(Duration::from_secs(20)).expect("the worker says nothing")
    }

    fn prefix(&self, id: u64, program: Program) {
        self.worker.handle(WorkerCmd::Prefix { session: S, prefix: Prefix { id, program } });
    }

    /// Runs a program and looks at all that comes out.
    fn run(&mut self, program: Program, prefix: Option<u64>) -> Came {
        self.seq += 1;
        let fetches = program.outs.iter().map(|id| Fetch { req: id.0, tensor: *id }).collect();
        let runs = vec![Run { seq: self.seq, program, prefix }];
        self.worker.handle(WorkerCmd::Batch { session: S, batch: Batch { runs, fetches, frees: vec![] } });
        let WorkerMsg::Update { finished, values, failures, .. } = self.hear() else { panic!("no update") };
        assert_eq!(finished, vec![self.seq]);
        if let Some((seq, failure)) = failures.into_iter().next() {
            assert_eq!(seq, self.seq);
            return Err(failure);
        }
        let read = |p| match p {
            Payload::Inline(bytes) => bytes,
            Payload::Bulk { .. } | Payload::Pieces(_) => panic!("no bulk plane here"),
        };
        values.into_iter().map(|v| v.result.map(read)).collect()
    }

    fn stats(&self) -> WorkerStats {
        self.worker.handle(WorkerCmd::Stats { req: 9 });
        match self.hear() {
            WorkerMsg::Stats { req: 9, stats } => stats,
            other => panic!("no stats: {other:?}"),
        }
    }

    /// Waits until the worker has done all it was told.
    fn wait(&self, done: impl Fn(&Rig) -> bool) {
        let start = Instant::now();
        while !done(self) {
            assert!(start.elapsed() < Duration::from_secs(20), "it never comes");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The first `len` instructions of a program, keeping what `keeps` says and all that the rest needs.
fn first(program: &Program, len: usize, keeps: impl Fn(u32) -> bool) -> Program {
    let whole = &program.structure;
    let n = whole.inputs.len() as u32;
    let rest = whole.instrs[len..].iter().flat_map(|i| &i.args);
    let read: Vec<u32> = rest.filter_map(|a| if let Arg::Value(v) = a { Some(*v) } else { None }).collect();
    let needed = |v: &u32| read.contains(v) || whole.outs.contains(v) || keeps(*v);
    let outs: Vec<u32> = (n..whole.starts()[len]).filter(needed).collect();
    let structure = Structure {
        inputs: whole.inputs.iter().map(|i| Input { dies: false, ..i.clone() }).collect(),
        instrs: whole.instrs[..len].to_vec(),
        outs: outs.clone(),
        slots: whole.slots,
        ..Default::default()
    };
    Program {
        key: structure.key(),
        structure: Arc::new(structure),
        outs: outs.iter().map(|v| TensorId(1 << 40 | *v as u64)).collect(),
        frees: vec![],
        ..program.clone()
    }
}

/// Uploads the inputs of a random program under ids from `base`, and binds it to them.
fn bind(rig: &Rig, p: &RandomProgram, base: u64) -> Program {
    let inputs: Vec<TensorId> = (0..p.inputs.len() as u64).map(|i| TensorId(base + i)).collect();
    for (&tensor, host) in inputs.iter().zip(&p.inputs) {
        let (ty, data) = (host.ty.clone(), Arc::new(host.data.clone()));
        rig.worker.handle(WorkerCmd::Upload { session: S, tensor, ty, data });
    }
    let dying = inputs.iter().zip(&p.structure.inputs).filter(|(_, i)| i.dies);
    let frees = dying.map(|(id, _)| *id).collect();
    let outs = (0..p.structure.outs.len() as u64).map(|i| TensorId(base + 1000 + i)).collect();
    let (key, structure) = (p.structure.key(), Arc::new(p.structure.clone()));
    Program { structure, key, inputs, outs, slots: p.slots.clone(), frees }
}

#[test]
fn a_prefix_never_changes_a_bit() {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let limit = Duration::from_secs(number("GT_RANDOM_SECONDS").unwrap_or(2));
    let start = Instant::now();
    let mut rig = Rig::new(Arc::new(CpuBackend::new(Some(2))));
    let mut begun = 0;
    for seed in number("GT_RANDOM_SEED").unwrap_or(0).. {
        let p = random_program(seed, 40);
        let (len, base) = (p.structure.instrs.len(), seed * 10_000);
        let mut places: Vec<usize> =
            (0..1 + seed % 3).map(|i| (seed * 7 + i * 13) as usize % (len + 1)).collect();
        places.sort_unstable();
        let program = bind(&rig, &p, base);
        for &at in &places {
            // What is kept beyond need changes with the seed.
            rig.prefix(seed, first(&program, at, |v| (v as u64 * 31 + seed).is_multiple_of(3)));
        }
        let early = rig.run(program, Some(seed));
        begun += 1;
        let program = bind(&rig, &p, base + 5000);
        let plain = rig.run(program, None);
        assert_eq!(early.unwrap(), plain.unwrap(), "program {seed} with prefixes of {places:?}");
        if start.elapsed() > limit || number("GT_RANDOM_SEED").is_some() {
            break;
        }
    }
    assert_eq!(rig.stats().begun_early, begun, "every prefix was gone on from");
    rig.worker.handle(WorkerCmd::End { session: S });
    assert_eq!((rig.worker.tensors(), rig.stats().bytes_in_use), (0, 0));
}

fn upload(rig: &Rig, id: u64, values: &[i64]) {
    let (tensor, ty, data) = (TensorId(id), ints(values.len()), to_bytes(values));
    rig.worker.handle(WorkerCmd::Upload { session: S, tensor, ty, data });
}

/// `mul_add` of tensors 1 and 2, with its first instruction sent as prefix 1.
fn begin(rig: &Rig, out: u64) -> Program {
    let program = mul_add(3, 1, 2, 5, [false, false], out);
    rig.prefix(1, first(&program, 1, |_| true));
    program
}

#[test]
fn the_program_s_plan_and_counters_are_as_without() {
    let mut rig = Rig::new(TestBackend::new(1 << 20));
    upload(&rig, 1, &[1, 2, 3]);
    upload(&rig, 2, &[10, 10, 10]);
    let program = begin(&rig, 3);
    let outs = rig.run(program, Some(1)).unwrap();
    assert_eq!(to_ints(&outs[0]), vec![15, 20, 25]);
    // Beside those of its two parts the whole program's plan is made in a quiet moment, and found when it comes again.
    rig.wait(|rig| rig.stats().plans == 3);
    rig.run(mul_add(3, 1, 2, 6, [false, false], 4), None).unwrap();
    let stats = rig.stats();
    assert_eq!((stats.programs, stats.instructions, stats.plan_hits, stats.plan_misses), (2, 4, 1, 1));
    assert_eq!(stats.miss_reasons, vec![("first sight".to_string(), 1)]);
    assert_eq!(stats.ops, vec![("ADD".to_string(), 2), ("MUL".to_string(), 2)]);
    assert_eq!((stats.begun_early, rig.worker.tensors()), (1, 4));
    // With a plan at hand, a prefix is no longer of use.
    let program = begin(&rig, 5);
    assert_eq!(to_ints(&rig.run(program, Some(1)).unwrap()[0]), vec![15, 20, 25]);
    assert_eq!((rig.stats().begun_early, rig.worker.tensors()), (1, 5));
}

#[test]
fn a_failure_in_the_prefix_is_the_program_s() {
    let mut rig = Rig::new(TestBackend::new(1 << 20));
    upload(&rig, 1, &[4, 5]);
    upload(&rig, 2, &[0, 7]);
    let program = take(2, 1, 2, true, 3);
    rig.prefix(1, first(&program, 1, |_| true));
    let failure = rig.run(program, Some(1)).unwrap_err();
    assert_eq!((failure.root, failure.instr), (1, Some(0)));
    assert!(matches!(failure.error, Error::Index(_)), "{failure:?}");
    // The dying input is there again.
    let program = mul_add(2, 1, 2, 2, [false, false], 4);
    assert_eq!(to_ints(&rig.run(program, None).unwrap()[0]), vec![8, 17]);
}

#[test]
fn a_program_that_began_otherwise_runs_from_its_start() {
    let mut rig = Rig::new(TestBackend::new(1 << 20));
    upload(&rig, 1, &[1, 2, 3]);
    upload(&rig, 2, &[10, 10, 10]);
    begin(&rig, 3);
    // Another factor in the slot: what was kept is not this program's.
    let outs = rig.run(mul_add(3, 1, 2, 7, [false, false], 3), Some(1)).unwrap();
    assert_eq!(to_ints(&outs[0]), vec![17, 24, 31]);
    assert_eq!((rig.stats().begun_early, rig.worker.tensors()), (0, 3));
}

#[test]
fn a_prefix_without_room_is_no_loss() {
    let mut rig = Rig::new(TestBackend::new(100));
    upload(&rig, 1, &[1, 2, 3]);
    upload(&rig, 2, &[10, 10, 10]);
    // Two prefixes of 24 bytes each do not fit beside the program and its inputs.
    for id in 1..=3 {
        rig.prefix(id, first(&mul_add(3, 1, 2, 5, [false, false], 3), 1, |_| true));
    }
    let program = mul_add(3, 1, 2, 5, [false, false], 3);
    assert!(matches!(rig.run(program, Some(3)).unwrap_err().error, Error::Memory(_)));
    for prefix in 1..=3 {
        rig.worker.handle(WorkerCmd::Forget { session: S, prefix });
    }
    rig.run(mul_add(3, 1, 2, 5, [false, false], 4), None).unwrap();
}

#[test]
fn what_is_given_up_is_freed() {
    let backend = TestBackend::new(1 << 20);
    let rig = Rig::new(backend.clone());
    upload(&rig, 1, &[1, 2, 3]);
    upload(&rig, 2, &[10, 10, 10]);
    begin(&rig, 3);
    rig.wait(|rig| rig.worker.tensors() == 3);
    rig.worker.handle(WorkerCmd::Forget { session: S, prefix: 1 });
    rig.wait(|rig| rig.worker.tensors() == 2);
    begin(&rig, 3);
    rig.wait(|rig| rig.worker.tensors() == 3);
    rig.worker.handle(WorkerCmd::End { session: S });
    assert_eq!((rig.worker.tensors(), backend.used()), (0, 0));
}
