//! Programs that wait for bytes from elsewhere are overtaken by those that are independent of them, and by no others.

mod common;

use common::{TestBackend, full, ints, mul_add, scale, to_bytes, to_ints};
use gt_ir::{Program, TensorId};
use gt_net::msg::{
    Batch, Fetch, Gang, Member, Mesh, Payload, Run, SessionId, WorkerCmd, WorkerId, WorkerMsg,
};
use gt_net::process::Process;
use gt_worker::{Worker, WorkerConfig};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

const S: SessionId = SessionId(1);
/// The tensor that comes from elsewhere.
const LATE: TensorId = TensorId(1);

fn start(limit: u64) -> (Worker, Receiver<WorkerMsg>) {
    let (send, said) = channel();
    let (backend, compiling) = (TestBackend::new(limit), Default::default());
    let config = WorkerConfig { name: "w".into(), threads: 1, backend, compiling };
    let worker = Worker::start(config, Box::new(move |m| drop(send.send(m))));
    worker.handle(WorkerCmd::Expect { session: S, tensor: LATE, ty: ints(2), tell: false });
    (worker, said)
}

fn batch(worker: &Worker, seq: u64, program: Program, fetches: &[u64]) {
    let fetches = fetches.iter().map(|id| Fetch { req: *id, tensor: TensorId(*id) }).collect();
    let runs = vec![Run { seq, program, prefix: None }];
    worker.handle(WorkerCmd::Batch { session: S, batch: Batch { runs, fetches, frees: vec![] } });
}

fn send(worker: &Worker, id: u64) {
    let (tensor, goal) = (TensorId(id), Some(WorkerId(2)));
    worker.handle(WorkerCmd::Send { session: S, tensor, goal, to: None, now: false });
}

/// The next tensor that is sent, and what is in it.
fn moved(said: &Receiver<WorkerMsg>, within: Duration) -> Option<(u64, Vec<i64>)> {
    match said.recv_timeout(within).ok()? {
        WorkerMsg::Moved { tensor, result: Ok(Some(bytes)), .. } => Some((tensor.0, to_ints(&bytes))),
        other => panic!("nothing was sent: {other:?}"),
    }
}

/// What was asked for of the updates to come, until `seq` is told as finished.
fn values(said: &Receiver<WorkerMsg>, seq: u64) -> Vec<Vec<i64>> {
    let mut all = Vec::new();
    loop {
        match said.recv_timeout(Duration::from_secs(20)).expect("the worker says nothing") {
            WorkerMsg::Update { finished, values, failures, .. } => {
                assert!(failures.is_empty(), "{failures:?}");
                all.extend(values.into_iter().map(|value| match value.result {
                    Ok(Payload::Inline(bytes)) => to_ints(&bytes),
                    other => panic!("no value: {other:?}"),
                }));
                if finished.contains(&seq) {
                    return all;
                }
            }
            WorkerMsg::Moved { .. } => {}
            other => panic!("not an update: {other:?}"),
        }
    }
}

fn bring(worker: &Worker) {
    worker.handle(WorkerCmd::Fulfil { session: S, tensor: LATE, data: to_bytes(&[7, 8]) });
}

#[test]
fn the_next_micro_batch_goes_on_while_a_gradient_is_on_its_way() {
    let (worker, said) = start(1 << 20);
    batch(&worker, 1, scale(2, 1, 2, true, 2), &[2]);
    batch(&worker, 2, full(2, 3, 3), &[]);
    batch(&worker, 3, scale(2, 3, 5, true, 4), &[]);
    send(&worker, 4);
    assert_eq!(moved(&said, Duration::from_secs(20)), Some((4, vec![15, 15])));
    bring(&worker);
    assert_eq!(values(&said, 1), vec![vec![14, 16]]);
}

#[test]
fn nothing_is_taken_from_a_program_that_waits() {
    let (worker, said) = start(1 << 20);
    let (ty, data) = (ints(2), to_bytes(&[10, 20]));
    worker.handle(WorkerCmd::Upload { session: S, tensor: TensorId(5), ty, data });
    batch(&worker, 1, mul_add(2, 1, 5, 2, [true, false], 2), &[2]);
    batch(&worker, 2, scale(2, 5, 3, true, 6), &[]);
    send(&worker, 6);
    assert_eq!(moved(&said, Duration::from_millis(200)), None, "tensor 5 is gone before its reader came");
    bring(&worker);
    assert_eq!(values(&said, 2).len(), 1);
}

#[test]
fn what_depends_on_a_program_that_waits_waits_too() {
    let (worker, said) = start(1 << 20);
    batch(&worker, 1, scale(2, 1, 2, true, 2), &[]);
    batch(&worker, 2, scale(2, 2, 3, true, 3), &[3]);
    send(&worker, 3);
    assert_eq!(moved(&said, Duration::from_millis(200)), None);
    bring(&worker);
    assert_eq!(values(&said, 2), vec![vec![42, 48]]);
}

#[test]
fn a_full_device_takes_programs_in_their_order() {
    let (worker, said) = start(10_000);
    batch(&worker, 1, full(800, 1, 9), &[]);
    assert!(values(&said, 1).is_empty());
    batch(&worker, 2, scale(2, 1, 2, true, 2), &[2]);
    batch(&worker, 3, full(2, 3, 3), &[]);
    send(&worker, 3);
    assert_eq!(moved(&said, Duration::from_millis(200)), None);
    bring(&worker);
    assert_eq!(values(&said, 2), vec![vec![14, 16]]);
}

#[test]
fn a_tensor_that_is_about_to_be_put_together_is_not_sent_in_pieces() {
    let (worker, said) = start(1 << 20);
    let (ty, data) = (ints(2), to_bytes(&[10, 20]));
    worker.handle(WorkerCmd::Upload { session: S, tensor: TensorId(5), ty, data });
    let process = Process::this();
    let members = vec![Member { worker: WorkerId(1), process, endpoint: None, key: [0; 16] }];
    worker.handle(WorkerCmd::Mesh(Mesh { id: 9, cluster: 7, shape: vec![1], members, rank: 0 }));
    // The first of two gangs waits for bytes; the second writes tensor 5 anew, as one that puts its pieces together does.
    let gang = |number: u64, program: Program| {
        let run = Run { seq: number, program, prefix: None };
        let share = run.into();
        worker.handle(WorkerCmd::Gang { session: S, gang: Gang { mesh: 9, number }, share });
    };
    gang(1, scale(2, 1, 2, true, 2));
    gang(2, scale(2, 5, 3, true, 5));
    send(&worker, 5);
    assert_eq!(moved(&said, Duration::from_millis(200)), None, "tensor 5 was sent as it was before");
}
