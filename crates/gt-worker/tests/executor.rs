//! The executor with a small device: order, turns, failures, memory and values.

mod common;

use common::{TestBackend, full, ints, mul_add, scale, take, to_bytes, to_ints};
use gt_ir::{Error, Program, TensorId};
use gt_net::msg::{
    Batch, Failure, Fetch, Payload, Run, SessionId, WorkerCmd, WorkerId, WorkerMsg, WorkerStats,
};
use gt_worker::{Worker, WorkerConfig};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

struct Rig {
    worker: Worker,
    backend: Arc<TestBackend>,
    said: Receiver<WorkerMsg>,
}

const S: SessionId = SessionId(1);

fn rig(limit: u64) -> Rig {
    let backend = TestBackend::new(limit);
    let (send, said) = channel();
    let compiling = Default::default();
    let config = WorkerConfig { name: "w".into(), threads: 1, backend: backend.clone(), compiling };
    let worker = Worker::start(config, Box::new(move |m| drop(send.send(m))));
    Rig { worker, backend, said }
}

struct Update {
    session: SessionId,
    finished: Vec<u64>,
    values: Vec<Result<Vec<i64>, Failure>>,
    failures: Vec<(u64, Failure)>,
}

impl Rig {
    fn hear(&self) -> WorkerMsg {
        self.said.recv_timeout(Duration::from_secs(20)).expect("the worker says nothing")
    }

    fn update(&self) -> Update {
        let WorkerMsg::Update { session, finished, values, failures, .. } = self.hear() else {
            panic!("no update")
        };
        let read = |p| match p {
            Payload::Inline(bytes) => to_ints(&bytes),
            Payload::Bulk { .. } | Payload::Pieces(_) => panic!("no bulk plane here"),
        };
        Update {
            session,
            finished,
            failures,
            values: values.into_iter().map(|v| v.result.map(read)).collect(),
        }
    }

    fn batch(&self, session: SessionId, first: u64, programs: Vec<Program>, fetches: &[u64], frees: &[u64]) {
        let runs = programs
            .into_iter()
            .zip(first..)
            .map(|(program, seq)| Run { seq, program, prefix: None })
            .collect();
        let fetches = fetches.iter().map(|id| Fetch { req: *id, tensor: TensorId(*id) }).collect();
        let frees = frees.iter().map(|id| TensorId(*id)).collect();
        self.worker.handle(WorkerCmd::Batch { session, batch: Batch { runs, fetches, frees } });
    }

    fn upload(&self, session: SessionId, id: u64, values: &[i64]) {
        let (tensor, ty, data) = (TensorId(id), ints(values.len()), to_bytes(values));
        self.worker.handle(WorkerCmd::Upload { session, tensor, ty, data });
    }

    fn stats(&self) -> WorkerStats {
        self.worker.handle(WorkerCmd::Stats { req: 9 });
        match self.hear() {
            WorkerMsg::Stats { req: 9, stats } => stats,
            other => panic!("no stats: {other:?}"),
        }
    }
}

#[test]
fn programs_run_in_order_and_one_update_tells_all() {
    let rig = rig(1 << 20);
    rig.upload(S, 1, &[1, 2, 3]);
    let programs = vec![full(3, 10, 2), mul_add(3, 1, 2, 5, [true, false], 3), scale(3, 3, 2, false, 4)];
    rig.batch(S, 1, programs, &[4, 3], &[2]);
    let update = rig.update();
    assert_eq!((update.finished, update.failures), (vec![1, 2, 3], vec![]));
    assert_eq!(update.values, vec![Ok(vec![30, 40, 50]), Ok(vec![15, 20, 25])]);
    assert_eq!(rig.worker.tensors(), 2);
    rig.worker.handle(WorkerCmd::End { session: S });
    assert_eq!((rig.worker.tensors(), rig.backend.used()), (0, 0));
}

#[test]
fn a_failure_keeps_inputs_and_poisons_what_follows() {
    let rig = rig(1 << 20);
    rig.upload(S, 1, &[4, 5]);
    rig.upload(S, 2, &[0, 7]);
    let programs = vec![take(2, 1, 2, true, 3), scale(2, 3, 2, true, 4), full(2, 1, 5)];
    rig.batch(S, 1, programs, &[1, 4, 5], &[]);
    let update = rig.update();
    assert_eq!(update.finished, vec![1, 2, 3]);
    let roots: Vec<_> = update.failures.iter().map(|(seq, f)| (*seq, f.root, f.instr)).collect();
    assert_eq!(roots, vec![(1, 1, Some(0)), (2, 1, Some(0))]);
    assert!(matches!(update.failures[0].1.error, Error::Index(_)), "{:?}", update.failures);
    assert_eq!(update.values[0], Ok(vec![4, 5]), "the dying input is there again");
    assert_eq!(update.values[1].as_ref().unwrap_err().root, 1);
    assert_eq!(update.values[2], Ok(vec![1, 1]));
}

#[test]
fn a_panic_is_that_program_s_failure() {
    let rig = rig(1 << 20);
    rig.upload(S, 1, &[4, 5]);
    rig.batch(S, 1, vec![scale(2, 1, common::PANIC, true, 2), full(2, 1, 3)], &[3, 1], &[]);
    let update = rig.update();
    assert_eq!(update.failures.len(), 1);
    assert!(update.failures[0].1.error.to_string().contains("told to panic"));
    assert_eq!(update.values[0], Ok(vec![1, 1]));
    assert!(update.values[1].is_err(), "what the panicking program lost has no value");
}

#[test]
fn out_of_memory_fails_one_program_and_says_how_much() {
    let rig = rig(10_000);
    rig.batch(S, 1, vec![full(1000, 1, 1), full(1000, 2, 2)], &[], &[]);
    let update = rig.update();
    assert_eq!(update.failures.len(), 1);
    let (seq, failure) = &update.failures[0];
    assert_eq!(*seq, 2);
    let Error::Memory(text) = &failure.error else { panic!("{failure:?}") };
    assert!(text.contains("7.8 KB more needed, 7.8 KB of 9.8 KB in use (most by this session"), "{text}");
    rig.batch(S, 3, vec![full(1000, 3, 3)], &[], &[1]);
    assert_eq!(rig.update().failures.len(), 1);
    rig.batch(S, 4, vec![full(1000, 3, 4)], &[], &[]);
    assert_eq!(rig.update().failures, vec![]);
}

#[test]
fn a_session_that_waits_holds_up_nobody_else() {
    let rig = rig(1 << 20);
    let (a, b) = (SessionId(1), SessionId(2));
    rig.worker.handle(WorkerCmd::Expect { session: a, tensor: TensorId(1), ty: ints(2), tell: false });
    rig.batch(a, 1, vec![scale(2, 1, 3, false, 2)], &[2], &[]);
    rig.batch(b, 1, vec![full(2, 1, 1)], &[1], &[]);
    assert_eq!(rig.update().session, b);
    rig.worker.handle(WorkerCmd::Fulfil { session: a, tensor: TensorId(1), data: to_bytes(&[5, 6]) });
    let update = rig.update();
    assert_eq!((update.session, &update.values[0]), (a, &Ok(vec![15, 18])));
}

#[test]
fn a_tensor_that_can_no_longer_come_fails_who_waits_for_it() {
    let rig = rig(1 << 20);
    rig.worker.handle(WorkerCmd::Expect { session: S, tensor: TensorId(1), ty: ints(2), tell: false });
    rig.batch(S, 1, vec![scale(2, 1, 3, false, 2)], &[2], &[]);
    let failure = Failure { root: 0, instr: None, error: Error::Connection("gone".into()) };
    rig.worker.handle(WorkerCmd::Poison { session: S, tensor: TensorId(1), failure: failure.clone() });
    let update = rig.update();
    assert_eq!(update.failures, vec![(1, failure.clone())]);
    assert_eq!(update.values, vec![Err(failure)]);
}

#[test]
fn sessions_take_turns() {
    let rig = rig(1 << 30);
    // A long queue of one session, then a short one of another.
    let busy: Vec<_> = (1..=200).map(|i| full(100_000, i, i as u64)).collect();
    rig.batch(SessionId(1), 1, busy, &[], &[]);
    rig.batch(SessionId(2), 1, vec![full(2, 1, 1)], &[1], &[]);
    assert_eq!(rig.update().session, SessionId(2));
    assert_eq!(rig.update().finished.len(), 200);
}

#[test]
fn a_copy_goes_back_to_be_relayed() {
    let rig = rig(1 << 20);
    rig.batch(S, 1, vec![full(2, 8, 1)], &[], &[]);
    let goal = Some(WorkerId(3));
    rig.worker.handle(WorkerCmd::Send { session: S, tensor: TensorId(1), goal, to: None, now: false });
    assert_eq!(rig.update().finished, vec![1]);
    let WorkerMsg::Moved { tensor, goal: to, result, .. } = rig.hear() else { panic!("not moved") };
    assert_eq!((tensor, to), (TensorId(1), goal));
    assert_eq!(to_ints(&result.unwrap().unwrap()), vec![8, 8]);
}

#[test]
fn misses_are_counted_with_their_reasons() {
    let rig = rig(1 << 20);
    rig.upload(S, 1, &[1, 2]);
    rig.upload(S, 2, &[1, 2, 3]);
    let programs = vec![
        scale(2, 1, 3, false, 10),
        scale(2, 1, 3, false, 11),
        scale(2, 1, 4, false, 12),
        scale(3, 2, 3, false, 13),
        scale(2, 1, 3, true, 14),
        scale(2, 10, 3, false, 15),
    ];
    rig.batch(S, 1, programs, &[], &[]);
    assert_eq!(rig.update().finished.len(), 6);
    let stats = rig.stats();
    assert_eq!((stats.plan_hits, stats.plan_misses, stats.plans, stats.programs), (2, 4, 4, 6));
    let mut reasons = stats.miss_reasons;
    reasons.sort();
    let reason = |text: &str| (text.to_string(), 1);
    assert_eq!(
        reasons,
        vec![
            reason("first sight"),
            reason("same ops and shapes, other liveness"),
            reason("same ops, other shapes"),
            reason("same structure, other scalars"),
        ]
    );
    assert_eq!(stats.ops, vec![("MUL".to_string(), 6)]);
}
