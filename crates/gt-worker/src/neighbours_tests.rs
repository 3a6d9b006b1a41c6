//! Two workers with a bulk plane each, on a driver without a GPU: a tensor goes from one's device to the other's.

#[path = "../tests/fake_cuda/load.rs"]
mod load;

use super::*;
use crate::backends::cuda::{CudaBackend, tensors_moved};
use crate::road::Store;
use crate::worker::WorkerConfig;
use gt_ir::DType;
use gt_net::bulk::{BulkServer, BulkServerOptions, Dir, TicketKey, now_ms};
use gt_net::msg::{Batch, Fetch, Payload, WorkerCmd, WorkerMsg};
use std::sync::mpsc::{Receiver, channel};

const S: SessionId = SessionId(1);

struct Rig {
    worker: Worker,
    said: Receiver<WorkerMsg>,
    plane: BulkServer,
    key: TicketKey,
}

impl Rig {
    fn new(name: &str) -> Rig {
        load::fake();
        let (send, said) = channel();
        let backend = Arc::new(CudaBackend::open(0).unwrap());
        let config = WorkerConfig { name: name.into(), threads: 1, backend, compiling: Default::default() };
        let worker = Worker::start(config, Box::new(move |m| drop(send.send(m))));
        let (key, store) = (TicketKey::random(), Arc::new(Store(worker.core().clone())));
        let plane = BulkServer::start(BulkServerOptions::new(key.clone()), store).unwrap();
        let _ = worker.core().plane.set((plane.endpoint().clone(), key.clone()));
        Rig { worker, said, plane, key }
    }

    fn hear(&self) -> WorkerMsg {
        self.said.recv_timeout(Duration::from_secs(20)).expect("the worker says nothing")
    }

    /// Sends a tensor to another worker; it went directly.
    fn send(&self, tensor: u64, bytes: usize, to: &Rig) {
        let ticket = to.key.sign(S.0, tensor, bytes as u64, Dir::Put, now_ms() + 60_000);
        let to = Some((to.plane.endpoint().clone(), ticket));
        let (goal, tensor) = (Some(WorkerId(2)), TensorId(tensor));
        self.worker.handle(WorkerCmd::Send { session: S, tensor, goal, to, now: false });
        let WorkerMsg::Moved { result, .. } = self.hear() else { panic!("not moved") };
        assert!(matches!(result, Ok(None)), "{result:?}");
    }

    /// The bytes of a tensor as a client gets them.
    fn fetch(&self, tensor: u64) -> Vec<u8> {
        let fetches = vec![Fetch { req: 1, tensor: TensorId(tensor) }];
        let batch = Batch { runs: Vec::new(), fetches, frees: Vec::new() };
        self.worker.handle(WorkerCmd::Batch { session: S, batch });
        let WorkerMsg::Update { values, .. } = self.hear() else { panic!("no update") };
        match values.into_iter().next().unwrap().result.unwrap() {
            Payload::Inline(bytes) => bytes.to_vec(),
            Payload::Bulk { at, ticket } => BulkClient::new().get_vec(&at, &ticket).unwrap(),
            Payload::Pieces(_) => panic!("it lies in one place"),
        }
    }
}

fn expect(worker: &Worker, tensor: u64, ty: &Ty) {
    let (tensor, ty) = (TensorId(tensor), ty.clone());
    worker.handle(WorkerCmd::Expect { session: S, tensor, ty, tell: false });
}

#[test]
fn tensors_are_lent_when_they_are_awaited_and_go_by_the_host_otherwise() {
    let (a, b) = (Rig::new("a"), Rig::new("b"));
    let bytes = |seed: usize| -> Vec<u8> { (0..1 << 20).map(|i| (i * 7 + i / 255 + seed) as u8).collect() };
    let ty = Ty::new(DType::U8, [1 << 20]);
    for tensor in 1..=3 {
        let data = Arc::new(bytes(tensor as usize));
        a.worker.handle(WorkerCmd::Upload { session: S, tensor: TensorId(tensor), ty: ty.clone(), data });
    }
    expect(&b.worker, 1, &ty);
    a.send(1, 1 << 20, &b);
    assert_eq!(tensors_moved(), (1, 1));
    // The word that it comes is on its way.
    std::thread::scope(|s| {
        let (worker, ty) = (&b.worker, &ty);
        s.spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            expect(worker, 2, ty);
        });
        a.send(2, 1 << 20, &b);
    });
    assert_eq!(tensors_moved(), (2, 2));
    // It comes much later.
    a.send(3, 1 << 20, &b);
    expect(&b.worker, 3, &ty);
    assert_eq!(tensors_moved(), (2, 2));
    for tensor in 1..=3 {
        assert!(b.fetch(tensor) == bytes(tensor as usize), "tensor {tensor}");
    }
}
