//! Hot paths: op by op, better plans, plans that serve all, other sizes, and what the counters say of it.

mod common;

use common::{TestBackend, full, ints, mul_add, scale, take, to_bytes, to_ints};
use gt_ir::sample::{RandomProgram, random_program};
use gt_ir::{
    Arg, Binary, DType, Error, Input, Instr, Op, Program, Scalar, Slot, Structure, TensorId, Ty, View,
};
use gt_net::compiling::Compiling;
use gt_net::msg::{Batch, Failure, Fetch, Payload, Run, SessionId, WorkerCmd, WorkerMsg, WorkerStats};
use gt_worker::backend::{Backend, Effort};
use gt_worker::backends::cpu::CpuBackend;
use gt_worker::{Worker, WorkerConfig};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const S: SessionId = SessionId(1);

struct Rig {
    worker: Worker,
    said: Receiver<WorkerMsg>,
    seq: u64,
}

type Came = Result<Vec<Arc<Vec<u8>>>, Failure>;

impl Rig {
    fn new(backend: Arc<dyn Backend>) -> Rig {
        let (send, said) = channel();
        let config = WorkerConfig { name: "w".into(), threads: 1, backend, compiling: Compiling::default() };
        let worker = Worker::start(config, Box::new(move |m| drop(send.send(m))));
        Rig { worker, said, seq: 0 }
    }

    fn hear(&self) -> WorkerMsg {
        self.said.recv_timeout(Duration::from_secs(20)).expect("the worker says nothing")
    }

    fn how(&self, session: SessionId, how: Compiling) {
        self.worker.handle(WorkerCmd::Compile { session, how });
    }

    fn upload(&self, session: SessionId, id: u64, values: &[i64]) {
        let (tensor, ty, data) = (TensorId(id), ints(values.len()), to_bytes(values));
        self.worker.handle(WorkerCmd::Upload { session, tensor, ty, data });
    }

    /// Runs a program and looks at all that comes out.
    fn run(&mut self, session: SessionId, program: Program) -> Came {
        self.seq += 1;
        let fetches = program.outs.iter().map(|id| Fetch { req: id.0, tensor: *id }).collect();
        let runs = vec![Run { seq: self.seq, program, prefix: None }];
        self.worker.handle(WorkerCmd::Batch { session, batch: Batch { runs, fetches, frees: vec![] } });
        let WorkerMsg::Update { values, failures, .. } = self.hear() else { panic!("no update") };
        if let Some((_, failure)) = failures.into_iter().next() {
            return Err(failure);
        }
        let read = |p| match p {
            Payload::Inline(bytes) => bytes,
            Payload::Bulk { .. } | Payload::Pieces(_) => panic!("no bulk plane here"),
        };
        values.into_iter().map(|v| v.result.map(read)).collect()
    }

    fn ints(&mut self, session: SessionId, program: Program) -> Vec<i64> {
        to_ints(&self.run(session, program).expect("it runs")[0])
    }

    fn stats(&self) -> WorkerStats {
        self.worker.handle(WorkerCmd::Stats { req: 9 });
        match self.hear() {
            WorkerMsg::Stats { req: 9, stats } => stats,
            other => panic!("no stats: {other:?}"),
        }
    }
}

fn op_by_op(batch: u32) -> Compiling {
    Compiling { auto: Some(false), batch: Some(batch), ..Compiling::default() }
}

#[test]
fn op_by_op_every_instruction_has_its_own_plan() {
    let backend = TestBackend::new(1 << 20);
    let mut rig = Rig::new(backend.clone());
    rig.how(S, op_by_op(1));
    rig.upload(S, 1, &[1, 2]);
    rig.upload(S, 2, &[10, 20]);
    assert_eq!(rig.ints(S, mul_add(2, 1, 2, 3, [false, false], 3)), [13, 26]);
    assert_eq!(rig.ints(S, mul_add(2, 1, 2, 4, [false, true], 4)), [14, 28]);
    assert_eq!(backend.made.lock().unwrap()[..], [(Effort::Quick, 1); 3], "the dying one is another plan");
    let stats = rig.stats();
    assert_eq!((stats.plan_hits, stats.plan_misses, stats.programs, stats.instructions), (1, 3, 2, 4));
    assert_eq!(stats.miss_reasons, [("first sight of an op on its own".to_string(), 3)]);
    rig.how(S, op_by_op(2));
    rig.ints(S, mul_add(2, 1, 3, 3, [false, false], 5));
    assert_eq!(backend.made.lock().unwrap()[3..], [(Effort::Apart, 2)]);
    assert_eq!(rig.worker.tensors(), 4);
}

#[test]
fn op_by_op_a_failure_reverts_the_whole_program() {
    let mut rig = Rig::new(TestBackend::new(1 << 20));
    rig.how(S, op_by_op(1));
    rig.upload(S, 1, &[1, 2]);
    rig.upload(S, 2, &[0, 7]);
    // The first instruction would overwrite what dies, the second fails.
    let double = Instr {
        op: Op::Binary(Binary::Mul),
        args: [Arg::Value(0), Arg::Const(Scalar::Int(2))].into_iter().collect(),
    };
    let taken = Instr { op: Op::Take { dim: 0 }, args: [Arg::Value(2), Arg::Value(1)].into_iter().collect() };
    let input = |dies| Input { ty: ints(2), dies };
    let structure = Structure {
        inputs: vec![input(true), input(false)],
        instrs: vec![double, taken],
        outs: vec![3],
        slots: 0,
        ..Default::default()
    };
    let program = Program {
        key: structure.key(),
        structure: Arc::new(structure),
        inputs: vec![TensorId(1), TensorId(2)],
        outs: vec![TensorId(3)],
        slots: vec![],
        frees: vec![TensorId(1)],
    };
    let failure = rig.run(S, program).unwrap_err();
    assert!(matches!(failure.error, Error::Index(_)), "{failure:?}");
    assert_eq!(failure.instr, Some(1));
    assert_eq!(rig.ints(S, scale(2, 1, 5, false, 4)), [5, 10]);
    assert!(rig.run(S, take(2, 1, 2, false, 5)).is_err());
}

#[test]
fn random_programs_give_the_same_bits_op_by_op() {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let limit = Duration::from_secs(number("GT_RANDOM_SECONDS").unwrap_or(2));
    let mut rigs: Vec<Rig> = (0..3).map(|_| Rig::new(Arc::new(CpuBackend::new(Some(1))))).collect();
    rigs[1].how(S, op_by_op(1));
    rigs[2].how(S, op_by_op(5));
    let start = Instant::now();
    for seed in number("GT_RANDOM_SEED").unwrap_or(0).. {
        let RandomProgram { structure, inputs, slots } = random_program(seed, 30);
        let ids = |first: u64, n: usize| (first..first + n as u64).map(TensorId).collect::<Vec<_>>();
        let came: Vec<Came> = rigs
            .iter_mut()
            .map(|rig| {
                let first = seed * 1000 + 1;
                for (id, host) in ids(first, inputs.len()).into_iter().zip(&inputs) {
                    let (ty, data) = (host.ty.clone(), Arc::new(host.data.clone()));
                    rig.worker.handle(WorkerCmd::Upload { session: S, tensor: id, ty, data });
                }
                rig.run(
                    S,
                    Program {
                        key: structure.key(),
                        structure: Arc::new(structure.clone()),
                        inputs: ids(first, inputs.len()),
                        outs: ids(first + 500, structure.outs.len()),
                        slots: slots.clone(),
                        frees: vec![],
                    },
                )
            })
            .collect();
        for other in &came[1..] {
            match (&came[0], other) {
                (Ok(a), Ok(b)) => assert!(a == b, "seed {seed}: other bits"),
                (Err(a), Err(b)) => assert_eq!(
                    std::mem::discriminant(&a.error),
                    std::mem::discriminant(&b.error),
                    "seed {seed}: {a:?} and {b:?}"
                ),
                (a, b) => panic!("seed {seed}: {:?} and {:?}", a.as_ref().err(), b.as_ref().err()),
            }
        }
        if start.elapsed() > limit || number("GT_RANDOM_SEED").is_some() {
            break;
        }
    }
}

#[test]
fn a_hot_plan_is_improved_on_the_side_while_the_old_one_runs() {
    let backend = TestBackend::new(1 << 20);
    backend.improves.store(true, Ordering::SeqCst);
    let mut rig = Rig::new(backend.clone());
    rig.how(S, Compiling { threshold: Some(2), ..Compiling::default() });
    rig.upload(S, 1, &[1, 2]);
    let held = backend.gate.lock().unwrap();
    for k in 0..6 {
        assert_eq!(rig.ints(S, mul_add(2, 1, 1, k, [false, false], 10 + k as u64)), [k + 1, 2 * k + 2]);
    }
    // The better plan waits at the gate; nothing waits for it.
    assert_eq!(rig.stats().improved, 0);
    drop(held);
    let start = Instant::now();
    let mut id = 100;
    while rig.stats().improved == 0 {
        assert!(start.elapsed() < Duration::from_secs(10), "no better plan came");
        id += 1;
        assert_eq!(rig.ints(S, mul_add(2, 1, 1, 7, [false, false], id)), [8, 16]);
    }
    assert_eq!(backend.made.lock().unwrap()[..], [(Effort::Quick, 2), (Effort::Full, 2)]);
    assert_eq!((rig.stats().plan_misses, rig.stats().plans), (1, 1));
}

#[test]
fn short_programs_do_not_count_and_told_so_the_best_plan_is_made_at_once() {
    let backend = TestBackend::new(1 << 20);
    backend.improves.store(true, Ordering::SeqCst);
    let mut rig = Rig::new(backend.clone());
    rig.how(S, Compiling { threshold: Some(1), ..Compiling::default() });
    for k in 0..5 {
        rig.ints(S, full(3, 7, 10 + k));
    }
    assert_eq!(rig.stats().sequences.unique, 0);
    rig.how(S, Compiling { at_once: Some(true), ..Compiling::default() });
    rig.ints(S, full(4, 7, 20));
    assert_eq!(backend.made.lock().unwrap()[..], [(Effort::Quick, 1), (Effort::Full, 1)]);
}

#[test]
fn a_plan_learnt_from_one_user_serves_all() {
    let mut rig = Rig::new(TestBackend::new(1 << 20));
    let other = SessionId(2);
    rig.upload(S, 1, &[1, 2]);
    rig.upload(other, 1, &[5, 6]);
    for k in 0..3 {
        rig.ints(S, mul_add(2, 1, 1, 2, [false, false], 10 + k));
    }
    assert_eq!(rig.ints(other, mul_add(2, 1, 1, 2, [false, false], 10)), [15, 18]);
    let stats = rig.stats();
    assert_eq!((stats.plan_hits, stats.plan_misses, stats.planned), (3, 1, (1, 2)));
    let s = stats.sequences;
    assert_eq!((s.unique, s.hot, s.hot_instructions), (1, 1, 8));
}

/// A long chain over a fixed size, with a sum over the first `n` elements of `x` in the middle of it; `bad` indexes
/// out of range in the end.
fn grows(n: usize, seq: u64, index: u64) -> Program {
    let value = |v| Arg::Value(v);
    let instr = |op, args: &[Arg]| Instr { op, args: args.iter().copied().collect() };
    let mut instrs = Vec::new();
    let mut at = 0;
    let mut next = 3;
    let mut push = |instrs: &mut Vec<Instr>, instr| {
        instrs.push(instr);
        next += 1;
        next - 1
    };
    for k in 0..12 {
        at = push(&mut instrs, instr(Op::Binary(Binary::Add), &[value(at), Arg::Const(Scalar::Int(k))]));
    }
    let slice = Op::View(View::Slice { dim: 0, len: n, step: 1 });
    let part = push(&mut instrs, instr(slice, &[value(1), Arg::Slot(0)]));
    let sum = Op::Reduce { kind: gt_ir::ReduceKind::Sum, dims: [0].into_iter().collect(), keepdim: true };
    let sum = push(&mut instrs, instr(sum, &[value(part)]));
    at = push(&mut instrs, instr(Op::Binary(Binary::Add), &[value(at), value(sum)]));
    for k in 0..12 {
        at = push(
            &mut instrs,
            instr(Op::Binary(Binary::Mul), &[value(at), Arg::Const(Scalar::Int(k % 3 - 1))]),
        );
        at = push(&mut instrs, instr(Op::Binary(Binary::Add), &[value(at), value(0)]));
    }
    let taken = push(&mut instrs, instr(Op::Take { dim: 0 }, &[value(at), value(2)]));
    let input = |n, dies| Input { ty: Ty::new(DType::I64, [n]), dies };
    let inputs = vec![input(4, true), input(64, false), input(2, false)];
    let structure = Structure { inputs, instrs, outs: vec![taken, at], slots: 1, ..Default::default() };
    Program {
        key: structure.key(),
        structure: Arc::new(structure),
        inputs: vec![TensorId(1000 + seq), TensorId(1), TensorId(index)],
        outs: vec![TensorId(3000 + seq), TensorId(1001 + seq)],
        slots: vec![Slot::Num(Scalar::Int(0))],
        frees: vec![TensorId(1000 + seq)],
    }
}

fn growing(rig: &Rig) {
    rig.upload(S, 1, &(0..64).collect::<Vec<_>>());
    rig.upload(S, 2, &[0, 3]);
    rig.upload(S, 3, &[0, 9]);
    rig.upload(S, 1000, &[1, 2, 3, 4]);
}

#[test]
fn other_sizes_keep_the_plans_of_what_did_not_change() {
    let backend: Arc<dyn Backend> = Arc::new(CpuBackend::new(Some(1)));
    let (mut rig, mut plain) = (Rig::new(backend.clone()), Rig::new(backend));
    plain.how(S, Compiling { max_expand: Some(1000), ..Compiling::default() });
    growing(&rig);
    growing(&plain);
    for k in 0..40 {
        let n = 1 + k as usize;
        let (a, b) = (rig.run(S, grows(n, k, 2)).unwrap(), plain.run(S, grows(n, k, 2)).unwrap());
        assert_eq!(a, b, "length {n}");
    }
    let (stats, whole) = (rig.stats(), plain.stats());
    assert_eq!((whole.plan_misses, whole.resized), (40, 0));
    assert_eq!((stats.plan_misses, stats.resized, stats.plan_hits), (4, 36, 0));
    // Of every further size only the small part that changed was compiled.
    assert!(stats.planned.1 < 4 * 40 + 40 + 36 * 3, "{:?}", stats.planned);
    assert_eq!(whole.planned, (40, 40 * 40));
    // A failure leaves everything as it was.
    let failure = rig.run(S, grows(50, 40, 3)).unwrap_err();
    assert!(matches!(failure.error, Error::Index(_)) && failure.instr == Some(39), "{failure:?}");
    let (a, b) = (rig.run(S, grows(51, 40, 2)).unwrap(), plain.run(S, grows(51, 40, 2)).unwrap());
    assert_eq!(a, b);
}

#[test]
fn sizes_that_keep_coming_back_get_a_plan_of_their_own() {
    let mut rig = Rig::new(Arc::new(CpuBackend::new(Some(1))));
    rig.how(S, Compiling { max_expand: Some(1), threshold: Some(2), ..Compiling::default() });
    growing(&rig);
    rig.run(S, grows(5, 0, 2)).unwrap();
    let start = Instant::now();
    let mut seq = 1;
    while rig.stats().plan_hits == 0 {
        assert!(start.elapsed() < Duration::from_secs(10), "no plan came");
        rig.run(S, grows(6, seq, 2)).unwrap();
        seq += 1;
    }
    assert_eq!(rig.stats().plan_misses, 1);
}

#[test]
fn programs_that_never_come_back_run_op_by_op_until_one_does() {
    let backend = TestBackend::new(1 << 20);
    let mut rig = Rig::new(backend.clone());
    rig.upload(S, 1, &[1, 2]);
    /// `k` additions.
    fn chain(k: usize, out: u64) -> Program {
        let mut program = scale(2, 1, 1, false, out);
        let instr = |i| Instr {
            op: Op::Binary(Binary::Add),
            args: [Arg::Value(i as u32), Arg::Const(Scalar::Int(1))].into_iter().collect(),
        };
        let structure = Structure {
            inputs: program.structure.inputs.clone(),
            instrs: (0..k).map(instr).collect(),
            outs: vec![k as u32],
            slots: 0,
            ..Default::default()
        };
        program.key = structure.key();
        program.structure = Arc::new(structure);
        program
    }
    for k in 1..=40 {
        assert_eq!(rig.ints(S, chain(k, 100 + k as u64)), [1 + k as i64, 2 + k as i64]);
    }
    let reasons = rig.stats().miss_reasons;
    let novel = "one of many that did not come back, run op by op".to_string();
    assert_eq!(reasons, [("first sight".to_string(), 16), (novel, 24)]);
    // The addition on its own was the first program; it only lacks the one whose operand dies.
    let made: Vec<usize> = backend.made.lock().unwrap().iter().map(|(_, n)| *n).collect();
    assert_eq!(made, (1..=16).chain([1]).collect::<Vec<_>>());
    // One that does come back is compiled, and so is what is new after it.
    for out in 200..203 {
        assert_eq!(rig.ints(S, chain(40, out)), [41, 42]);
    }
    rig.ints(S, chain(50, 300));
    let made: Vec<usize> = backend.made.lock().unwrap()[17..].iter().map(|(_, n)| *n).collect();
    assert_eq!(made, [40, 50]);
}

#[test]
fn the_cache_is_bounded() {
    let mut rig = Rig::new(TestBackend::new(1 << 30));
    for k in 1000..1700 {
        rig.ints(S, full(1, k, k as u64));
    }
    let stats = rig.stats();
    assert!(stats.plans <= 512 && stats.plans > 400, "{}", stats.plans);
    rig.ints(S, full(1, 1000, 5000));
    assert!(rig.stats().miss_reasons.contains(&("evicted".to_string(), 1)));
}
