//! Gangs that a device is still at: nobody waits for them, nothing of them leaves the worker before their end, and when one
//! fails all that hangs on it gets the root cause. The device is one that notes what it is told and lands when a test says.

mod common;

use common::{TestBackend, full, scale, to_ints};
use gt_ir::{Error, Program, Result, Slot, Structure, TensorId, Ty};
use gt_net::msg::{Batch, Failure, Fetch, Gang, Member, Mesh, Payload, Run, SessionId, WorkerCmd};
use gt_net::msg::{WorkerId, WorkerMsg};
use gt_net::process::Process;
use gt_worker::backend::{Backend, Buffer, Effort, HostBytes, Pending, Plan, PlanError, StepClock};
use gt_worker::gang::{Flight, Group};
use gt_worker::{Worker, WorkerConfig};
use std::collections::HashMap;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

const S: SessionId = SessionId(1);
const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(100);

/// What the device is at, and what it was told.
#[derive(Default)]
struct Sky {
    state: Mutex<Flights>,
    changed: Condvar,
}

#[derive(Default)]
struct Flights {
    departed: usize,
    landed: usize,
    /// Why it was cut off.
    cut: Option<Error>,
    trouble: Option<Error>,
}

impl Flights {
    /// All flights up to this one are over, well or badly.
    fn over(&self, number: usize) -> bool {
        self.landed >= number || self.cut.is_some()
    }
}

impl Sky {
    fn land_all(&self) {
        let mut state = self.state.lock().unwrap();
        state.landed = usize::MAX;
        self.changed.notify_all();
    }

    /// Waits until so many gangs have been queued.
    fn departed(&self, count: usize) {
        let state = self.state.lock().unwrap();
        let (state, late) =
            self.changed.wait_timeout_while(state, LONG, |state| state.departed < count).unwrap();
        assert!(!late.timed_out(), "{} gangs were queued", state.departed);
    }
}

struct Queued {
    inner: Arc<TestBackend>,
    sky: Arc<Sky>,
}

struct QueuedPlan {
    inner: Arc<dyn Plan>,
    sky: Arc<Sky>,
}

struct Aloft(Arc<Sky>, usize);

impl Flight for Aloft {
    fn landed(&self) -> Result<bool> {
        Ok(self.0.state.lock().unwrap().over(self.1))
    }
    fn broken(&self) -> Option<Error> {
        self.0.state.lock().unwrap().cut.clone()
    }
    fn trouble(&self) -> Option<Error> {
        self.0.state.lock().unwrap().trouble.clone()
    }
    fn cut(&self, why: &PlanError) {
        self.0.state.lock().unwrap().cut.get_or_insert(why.error.clone());
        self.0.changed.notify_all();
    }
}

impl Plan for QueuedPlan {
    fn run(&self, inputs: &mut Vec<Buffer>, slots: &[Slot]) -> Result<Vec<Buffer>, PlanError> {
        self.inner.run(inputs, slots)
    }
    fn run_gang(
        &self,
        inputs: &mut Vec<Buffer>,
        slots: &[Slot],
        group: &dyn Group,
        _: Option<&StepClock>,
    ) -> Result<Vec<Buffer>, PlanError> {
        let outs = self.inner.run(inputs, slots)?;
        let mut state = self.sky.state.lock().unwrap();
        state.departed += 1;
        let flight = Aloft(self.sky.clone(), state.departed);
        drop(state);
        group.depart(Box::new(flight))?;
        self.sky.changed.notify_all();
        Ok(outs)
    }
    fn reserve(&self) -> usize {
        self.inner.reserve()
    }
    fn text(&self) -> String {
        String::new()
    }
}

/// All flights that have departed so far, to be waited for.
struct Mark(Arc<Sky>, usize);

impl Pending<f64> for Mark {
    fn wait(self: Box<Self>) -> Result<f64> {
        let state = self.0.state.lock().unwrap();
        drop(self.0.changed.wait_while(state, |state| !state.over(self.1)).unwrap());
        Ok(0.0)
    }
    fn passed(&self) -> Result<bool> {
        Ok(self.0.state.lock().unwrap().over(self.1))
    }
}

impl Backend for Queued {
    fn name(&self) -> &'static str {
        "queued"
    }
    fn device(&self) -> String {
        "a sky".into()
    }
    fn threads(&self) -> u32 {
        1
    }
    fn memory(&self) -> u64 {
        self.inner.memory()
    }
    fn memory_in_use(&self) -> (u64, u64) {
        self.inner.memory_in_use()
    }
    fn compile(&self, structure: &Arc<Structure>, types: &[Ty], effort: Effort) -> Result<Arc<dyn Plan>> {
        let inner = self.inner.compile(structure, types, effort)?;
        Ok(Arc::new(QueuedPlan { inner, sky: self.sky.clone() }))
    }
    fn gangs(&self) -> bool {
        true
    }
    fn upload(&self, ty: &Ty, data: HostBytes) -> Result<Buffer> {
        self.inner.upload(ty, data)
    }
    fn download(&self, buffer: &Buffer) -> Result<Arc<Vec<u8>>> {
        self.inner.download(buffer)
    }
    fn queues(&self) -> bool {
        true
    }
    fn mark(&self) -> Result<Box<dyn Pending<f64>>> {
        let departed = self.sky.state.lock().unwrap().departed;
        Ok(Box::new(Mark(self.sky.clone(), departed)))
    }
}

/// A worker in a mesh of its own, with what it says.
struct Here {
    worker: Worker,
    said: Receiver<WorkerMsg>,
    sky: Arc<Sky>,
    backend: Arc<TestBackend>,
    values: HashMap<u64, Result<Vec<i64>, Failure>>,
    failures: HashMap<u64, Failure>,
    finished: Vec<u64>,
}

impl Here {
    fn start(cluster: u64) -> Here {
        let (send, said) = channel();
        let (sky, inner) = (Arc::<Sky>::default(), TestBackend::new(1 << 20));
        let backend = Arc::new(Queued { inner: inner.clone(), sky: sky.clone() });
        let config = WorkerConfig { name: "w".into(), threads: 1, backend, compiling: Default::default() };
        let worker = Worker::start(config, Box::new(move |m| drop(send.send(m))));
        let member =
            Member { worker: WorkerId(1), process: Process::this(), endpoint: None, key: Default::default() };
        worker.handle(WorkerCmd::Mesh(Mesh {
            id: 1,
            cluster,
            shape: vec![1],
            members: vec![member],
            rank: 0,
        }));
        let (values, failures, finished) = Default::default();
        Here { worker, said, sky, backend: inner, values, failures, finished }
    }

    fn gang(&self, seq: u64, program: Program) {
        let (gang, run) = (Gang { mesh: 1, number: seq }, Run { seq, program, prefix: None });
        self.worker.handle(WorkerCmd::Gang { session: S, gang, share: run.into() });
    }

    fn alone(&self, seq: u64, program: Program) {
        let runs = vec![Run { seq, program, prefix: None }];
        self.worker.handle(WorkerCmd::Batch { session: S, batch: Batch { runs, ..Batch::default() } });
    }

    fn ask(&self, ids: &[u64]) {
        let fetches = ids.iter().map(|id| Fetch { req: *id, tensor: TensorId(*id) }).collect();
        self.worker.handle(WorkerCmd::Batch { session: S, batch: Batch { fetches, ..Batch::default() } });
    }

    /// Takes what the worker says for a while; false if it is silent.
    fn hear(&mut self, within: Duration) -> bool {
        match self.said.recv_timeout(within) {
            Ok(WorkerMsg::Update { finished, values, failures, .. }) => {
                self.finished.extend(finished);
                self.failures.extend(failures);
                for value in values {
                    let result = value.result.map(|payload| match payload {
                        Payload::Inline(bytes) => to_ints(&bytes),
                        other => panic!("not inline: {other:?}"),
                    });
                    self.values.insert(value.req, result);
                }
                true
            }
            Ok(_) => true,
            Err(_) => false,
        }
    }

    /// Waits for the answers to requests.
    fn answers(&mut self, reqs: &[u64]) {
        while !reqs.iter().all(|req| self.values.contains_key(req)) {
            assert!(self.hear(LONG), "no answer");
        }
    }
}

fn lost() -> Error {
    Error::Connection("worker b was lost".into())
}

#[test]
fn nobody_waits_for_a_gang_and_nothing_of_it_is_told_before_its_end() {
    let mut here = Here::start(501);
    here.gang(1, full(2, 3, 10));
    here.gang(2, scale(2, 10, 5, true, 11));
    here.alone(3, scale(2, 11, 2, false, 12));
    here.ask(&[11, 12]);
    // All of it is queued while the first is still aloft.
    here.sky.departed(2);
    assert!(!here.hear(SHORT), "something was told: {:?} {:?}", here.finished, here.values);
    here.sky.land_all();
    here.answers(&[11, 12]);
    assert_eq!(here.values[&11].as_ref().unwrap(), &[15, 15]);
    assert_eq!(here.values[&12].as_ref().unwrap(), &[30, 30]);
    assert_eq!((here.finished.len(), here.failures.len()), (3, 0));
    assert!(here.sky.state.lock().unwrap().cut.is_none());
}

#[test]
fn what_hangs_on_a_gang_that_fails_gets_the_root_cause_and_the_rest_goes_on() {
    let mut here = Here::start(502);
    here.alone(1, full(2, 3, 10));
    here.alone(2, full(2, 4, 20));
    here.gang(3, scale(2, 10, 5, true, 11));
    here.gang(4, scale(2, 11, 7, false, 12));
    here.alone(5, scale(2, 12, 2, false, 13));
    here.alone(6, scale(2, 20, 2, false, 21));
    here.ask(&[11, 13, 21]);
    here.sky.departed(2);
    here.worker.handle(WorkerCmd::Disband { mesh: 1, error: lost() });
    here.answers(&[11, 13, 21]);
    // The rank was cut off because of that, and with it ended what was queued.
    assert_eq!(here.sky.state.lock().unwrap().cut, Some(lost()));
    for (seq, of) in [(3, 3), (4, 3), (5, 3)] {
        let failure = &here.failures[&seq];
        assert_eq!((failure.root, &failure.error), (of, &lost()), "program {seq}");
    }
    assert_eq!(here.failures.len(), 3);
    for req in [11, 13] {
        assert_eq!(here.values[&req].as_ref().unwrap_err().error, lost(), "{req}");
    }
    assert_eq!(here.values[&21].as_ref().unwrap(), &[8, 8]);
    // What was given up to it may have been overwritten.
    here.values.clear();
    here.ask(&[10, 20]);
    here.answers(&[10, 20]);
    assert_eq!(here.values[&10].as_ref().unwrap_err().error, lost());
    assert_eq!(here.values[&20].as_ref().unwrap(), &[4, 4]);
    // Whoever reads it later hears the same, and others are served.
    here.alone(7, scale(2, 12, 2, false, 30));
    here.alone(8, scale(2, 21, 2, false, 31));
    here.ask(&[30, 31]);
    here.answers(&[30, 31]);
    assert_eq!(here.values[&30].as_ref().unwrap_err().root, 3);
    assert_eq!(here.values[&31].as_ref().unwrap(), &[16, 16]);
}

#[test]
fn a_tensor_in_doubt_is_sent_to_nobody_before_it_is_right() {
    let mut here = Here::start(503);
    here.gang(1, full(2, 3, 10));
    let send = |here: &Here, id: u64| {
        let (tensor, goal) = (TensorId(id), Some(WorkerId(2)));
        here.worker.handle(WorkerCmd::Send { session: S, tensor, goal, to: None, now: false });
    };
    send(&here, 10);
    here.sky.departed(1);
    assert!(!here.hear(SHORT), "something was sent");
    here.sky.land_all();
    loop {
        match here.said.recv_timeout(LONG).expect("nothing is sent") {
            WorkerMsg::Moved { tensor, result: Ok(Some(bytes)), .. } => {
                assert_eq!((tensor, to_ints(&bytes)), (TensorId(10), vec![3, 3]));
                break;
            }
            WorkerMsg::Moved { result, .. } => panic!("{result:?}"),
            _ => {}
        }
    }
    let other = Here::start(504);
    other.gang(1, full(2, 3, 10));
    send(&other, 10);
    other.sky.departed(1);
    other.worker.handle(WorkerCmd::Disband { mesh: 1, error: lost() });
    let result = loop {
        if let WorkerMsg::Moved { result, .. } = other.said.recv_timeout(LONG).expect("nothing is sent") {
            break result;
        }
    };
    assert_eq!(result.unwrap_err().error, lost());
}

#[test]
fn a_bad_road_fails_a_gang_also_when_nobody_says_why() {
    let mut here = Here::start(505);
    here.sky.state.lock().unwrap().trouble = Some(Error::Runtime("nccl: the road is closed".into()));
    here.gang(1, full(2, 3, 10));
    here.ask(&[10]);
    here.answers(&[10]);
    assert!(here.values[&10].as_ref().unwrap_err().error.to_string().contains("the road is closed"));
    // The session's end gives back what was kept.
    here.worker.handle(WorkerCmd::End { session: S });
    let start = std::time::Instant::now();
    while here.backend.used() > 0 && start.elapsed() < LONG {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(here.backend.used(), 0);
}
