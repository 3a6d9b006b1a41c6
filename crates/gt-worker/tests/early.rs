//! Values that reach their client while their program still runs.

mod common;

use common::to_bytes;
use gt_ir::{DType, Error, Program, TensorId, Ty, text};
use gt_net::msg::{Batch, Failure, Fetch, Payload, Run, SessionId, WorkerCmd, WorkerMsg};
use gt_worker::backend::{Backend, Early};
use gt_worker::backends::cpu::CpuBackend;
use gt_worker::{Worker, WorkerConfig};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

const S: SessionId = SessionId(1);

/// Two numbers first, then `tail` products of 256 x 256 that have nothing to do with them.
fn step(tail: usize) -> String {
    let mut out = "in TENSOR[0] f32[256, 256]\nin TENSOR[1] i64[4]\n".to_string();
    out += "TENSOR[2] := TAKE{dim=0} TENSOR[0] TENSOR[1]\n";
    out += "TENSOR[3] := SUM{dims=[0,1],keepdim=false} TENSOR[2]\n";
    out += "TENSOR[4] := AMAX{dims=[0,1],keepdim=false} TENSOR[2]\n";
    let mut last = 0;
    for i in 0..tail {
        out += &format!("TENSOR[{}] := MATMUL{{ta=false,tb=false}} TENSOR[{last}] TENSOR[0]\n", 5 + i);
        last = 5 + i;
    }
    out + &format!("out TENSOR[3]\nout TENSOR[{last}]\nout TENSOR[4]\n")
}

fn program(tail: usize, inputs: [u64; 2], outs: [u64; 2]) -> Program {
    let structure = Arc::new(text::parse_structure(&step(tail)).unwrap());
    let (inputs, key) = (inputs.map(TensorId).to_vec(), structure.key());
    let outs = [outs[0], outs[1], outs[0] + 1000].map(TensorId).to_vec();
    Program { structure, key, inputs, outs, slots: vec![], frees: vec![] }
}

struct Rig {
    worker: Worker,
    said: Receiver<WorkerMsg>,
}

type Values = Vec<(u64, Result<f32, Failure>)>;

impl Rig {
    fn start() -> Rig {
        let (tell, said) = channel();
        let config = WorkerConfig {
            name: "test".into(),
            threads: 1,
            backend: Arc::new(CpuBackend::on_cores(&[0])),
            compiling: Default::default(),
        };
        let rig = Rig { worker: Worker::start(config, Box::new(move |msg| drop(tell.send(msg)))), said };
        let ones: Vec<u8> = (0..256 * 256).flat_map(|_| 0.01f32.to_ne_bytes()).collect();
        let ty = Ty::new(DType::F32, [256, 256]);
        rig.worker.handle(WorkerCmd::Upload { session: S, tensor: TensorId(1), ty, data: Arc::new(ones) });
        rig.index(2, [0, 1, 2, 3]);
        rig.index(3, [0, 1, 2, 999]);
        rig
    }

    fn index(&self, id: u64, values: [i64; 4]) {
        let (tensor, ty, data) = (TensorId(id), Ty::new(DType::I64, [4]), to_bytes(&values));
        self.worker.handle(WorkerCmd::Upload { session: S, tensor, ty, data });
    }

    fn batch(&self, seq: u64, program: Program, fetches: &[u64]) {
        let fetches = fetches.iter().map(|id| Fetch { req: *id, tensor: TensorId(*id) }).collect();
        let runs = vec![Run { seq, program, prefix: None }];
        let batch = Batch { runs, fetches, frees: Vec::new() };
        self.worker.handle(WorkerCmd::Batch { session: S, batch });
    }

    /// The next update: what has finished, values, and what has failed.
    fn hear(&self) -> (Vec<u64>, Values, Vec<(u64, Failure)>) {
        let said = self.said.recv_timeout(Duration::from_secs(60)).expect("the worker said nothing");
        let WorkerMsg::Update { finished, values, failures, .. } = said else { panic!("{said:?}") };
        let read = |payload| match payload {
            Payload::Inline(bytes) => f32::from_ne_bytes(bytes[..4].try_into().unwrap()),
            other => panic!("{other:?}"),
        };
        (finished, values.into_iter().map(|v| (v.req, v.result.map(read))).collect(), failures)
    }
}

#[test]
fn a_value_comes_before_its_program_is_over() {
    let rig = Rig::start();
    for seq in 1..=3 {
        rig.batch(seq, program(40, [1, 2], [10 * seq, 10 * seq + 1]), &[10 * seq]);
        let (finished, values, failures) = rig.hear();
        assert_eq!((finished, failures), (vec![], vec![]));
        let (req, value) = &values[0];
        assert!(*req == 10 * seq && (value.as_ref().unwrap() - 10.24).abs() < 1e-3, "{values:?}");
        // Nothing follows, so the end is told by itself.
        assert_eq!(rig.hear(), (vec![seq], vec![], vec![]));
    }
}

#[test]
fn the_end_of_a_step_is_told_with_the_value_of_the_next() {
    let rig = Rig::start();
    rig.batch(1, program(40, [1, 2], [10, 11]), &[10]);
    assert_eq!(rig.hear().0, Vec::<u64>::new());
    for seq in 2..=5 {
        // The one before still runs.
        rig.batch(seq, program(40, [1, 2], [10 * seq, 10 * seq + 1]), &[10 * seq]);
        let (finished, values, _) = rig.hear();
        assert_eq!((finished, values.len()), (vec![seq - 1], 1));
    }
    assert_eq!(rig.hear(), (vec![5], vec![], vec![]));
}

#[test]
fn what_is_asked_for_beside_comes_in_the_end() {
    let rig = Rig::start();
    rig.batch(1, program(40, [1, 2], [10, 11]), &[10, 1, 10]);
    let mut early = rig.hear().1;
    early.extend(rig.hear().1);
    assert_eq!(early.iter().map(|(req, _)| *req).collect::<Vec<_>>(), [10, 10]);
    let (finished, values, _) = rig.hear();
    assert_eq!((finished, values.len(), values[0].0), (vec![1], 1, 1));
}

#[test]
fn a_short_program_answers_once() {
    let rig = Rig::start();
    for seq in 1..=3 {
        rig.batch(seq, program(0, [1, 2], [10 * seq, 10 * seq + 1]), &[10 * seq]);
        let (finished, values, _) = rig.hear();
        assert_eq!((finished, values.len()), (vec![seq], 1));
    }
}

#[test]
fn a_program_that_fails_gives_nothing() {
    let rig = Rig::start();
    rig.batch(1, program(40, [1, 3], [10, 11]), &[10]);
    let (finished, values, failures) = rig.hear();
    assert_eq!(finished, [1]);
    assert!(matches!(values[0].1.as_ref().unwrap_err().error, Error::Index(_)));
    assert_eq!(failures[0].0, 1);
    rig.batch(2, program(40, [1, 2], [20, 21]), &[20]);
    assert_eq!(rig.hear().0, Vec::<u64>::new());
}

#[test]
fn what_is_given_early_is_what_the_run_gives() {
    let backend = CpuBackend::on_cores(&[0]);
    let structure = Arc::new(text::parse_structure(&step(40)).unwrap());
    let types = structure.check().unwrap();
    let plan = backend.compile(&structure, &types, gt_worker::backend::Effort::Quick).unwrap();
    let upload = |ty: Ty, data: Vec<u8>| {
        backend.upload(&ty, gt_worker::backend::HostBytes::Owned(Arc::new(data))).unwrap()
    };
    for round in 0..3 {
        let data = (0..256 * 256).flat_map(|i| ((i % 97 + round) as f32 * 0.001).to_ne_bytes()).collect();
        let x = upload(Ty::new(DType::F32, [256, 256]), data);
        let index = upload(Ty::new(DType::I64, [4]), to_bytes(&[5, 6, 200, -1]).to_vec());
        let given = RefCell::new(Vec::new());
        let give = |k, bytes: Box<dyn gt_worker::backend::Pending<Arc<Vec<u8>>>>| {
            given.borrow_mut().push((k, bytes.wait().unwrap()));
        };
        // The second is too large.
        let early = Early { outs: &[0, 1], asked: 2, give: &give };
        let outs = plan.run_early(&mut vec![x, index], &[], None, &early).unwrap();
        assert_eq!(given.into_inner(), [(0, backend.download(&outs[0]).unwrap())]);
    }
}

#[test]
fn a_number_that_is_asked_for_later_need_not_wait_either() {
    let rig = Rig::start();
    rig.batch(1, program(60, [1, 2], [10, 11]), &[10]);
    assert_eq!(rig.hear().1[0].0, 10);
    let fetches = vec![Fetch { req: 77, tensor: TensorId(1010) }];
    let batch = Batch { fetches, ..Batch::default() };
    rig.worker.handle(WorkerCmd::Batch { session: S, batch });
    let (finished, values, _) = rig.hear();
    assert_eq!((finished, values[0].0), (vec![], 77), "before its program has finished");
    assert!((values[0].1.as_ref().unwrap() - 0.01).abs() < 1e-6);
    assert_eq!(rig.hear().0, [1]);
}
