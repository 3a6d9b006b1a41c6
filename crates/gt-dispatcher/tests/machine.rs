//! The machine by itself: what it says to whom, and when.

#[path = "../../gt-worker/tests/common/mod.rs"]
mod common;
mod rig;

use common::{full, ints, mul_add, to_bytes};
use gt_dispatcher::{Action, Carry, Config, Event, Machine, Way};
use gt_ir::{Arg, Binary, Error, Instr, Op, Program, Scalar, TensorId};
use gt_net::bulk::Endpoint;
use gt_net::msg::{
    Batch, ClientMsg, Fetch, Prefix, Run, SessionId, SessionMsg, Value, WorkerCmd, WorkerId, WorkerInfo,
    WorkerMsg,
};
use rig::info;
use std::sync::Arc;

const S: SessionId = SessionId(1);

struct Rig {
    machine: Machine,
    now: u64,
    seq: u64,
}

fn rig(config: Config, workers: u32) -> Rig {
    let mut rig = Rig { machine: Machine::new(config), now: 0, seq: 0 };
    for i in 0..workers {
        rig.add_worker(i);
    }
    let vars = vec![("GT_PLACEMENT".to_string(), "spread".to_string())];
    rig.step(Event::ClientUp { session: S, name: "c".into(), vars });
    rig
}

impl Rig {
    fn step(&mut self, event: Event) -> Vec<Action> {
        let mut out = Vec::new();
        self.machine.step(self.now, event, &mut out);
        self.machine.check_invariants().unwrap();
        out
    }

    fn add_worker(&mut self, i: u32) -> Vec<Action> {
        self.add_worker_of("test", i)
    }

    fn add_worker_of(&mut self, backend: &str, i: u32) -> Vec<Action> {
        let info = WorkerInfo { backend: backend.into(), gangs: true, ..info(&format!("w{i}")) };
        self.step(Event::WorkerUp { worker: WorkerId(i), info })
    }

    fn client(&mut self, message: ClientMsg) -> Vec<Action> {
        self.step(Event::Client(S, message))
    }

    fn run(&mut self, program: Program, fetches: &[u64]) -> Vec<Action> {
        self.seq += 1;
        let runs = vec![Run { seq: self.seq, program, prefix: None }];
        let fetches = fetches.iter().map(|id| Fetch { req: *id, tensor: TensorId(*id) }).collect();
        self.client(ClientMsg::Batch(Batch { runs, fetches, frees: vec![] }))
    }

    fn done(&mut self, worker: u32, seq: u64) -> Vec<Action> {
        let (finished, values, failures) = (vec![seq], vec![], vec![]);
        let update = WorkerMsg::Update {
            session: S,
            finished,
            values,
            failures,
            spared: Vec::new(),
            compiled: Vec::new(),
            session_bytes: 0,
        };
        self.step(Event::Worker(WorkerId(worker), update))
    }

    fn tick(&mut self, by: u64) -> Vec<Action> {
        self.now += by;
        self.step(Event::Tick)
    }
}

/// The updates among some actions: (completed, values).
fn updates(actions: &[Action]) -> Vec<(u64, Vec<Value>)> {
    let pick = |a: &Action| match a {
        Action::ToClient(_, SessionMsg::Update { completed, values, .. }) => {
            Some((*completed, values.clone()))
        }
        _ => None,
    };
    actions.iter().filter_map(pick).collect()
}

#[test]
fn progress_is_told_at_half_the_credit_and_at_rest() {
    let mut rig = rig(Config { credit_programs: 8, ..Config::default() }, 1);
    for i in 1..=6 {
        rig.run(full(2, 1, i), &[]);
    }
    let told: Vec<_> = (1..=6).flat_map(|seq| updates(&rig.done(0, seq))).map(|(c, _)| c).collect();
    assert_eq!(told, vec![4]);
    assert!(rig.machine.wants_tick());
    assert_eq!(updates(&rig.tick(5)), vec![], "too early");
    assert_eq!(updates(&rig.tick(30)), vec![(6, vec![])]);
    rig.tick(30);
    assert!(!rig.machine.wants_tick(), "a machine at rest needs no clock");
}

#[test]
fn completed_waits_for_the_slowest_worker() {
    let mut rig = rig(Config { credit_programs: 2, ..Config::default() }, 2);
    for i in 1..=3 {
        rig.run(full(2, 1, i), &[]);
    }
    assert_eq!(updates(&rig.done(1, 2)), vec![], "program 1 is not done");
    assert_eq!(updates(&rig.done(0, 3)), vec![]);
    assert_eq!(updates(&rig.done(0, 1)), vec![(3, vec![])]);
}

#[test]
fn a_look_without_workers_fails_with_a_hint_and_the_programs_stay() {
    let mut rig = rig(Config { address: "host:123".into(), ..Config::default() }, 0);
    assert!(rig.run(full(2, 1, 1), &[1]).is_empty());
    assert_eq!(updates(&rig.tick(9_000)), vec![]);
    let told = updates(&rig.tick(1_000));
    let failure = told[0].1[0].result.as_ref().unwrap_err();
    let Error::Connection(text) = &failure.error else { panic!("{failure:?}") };
    assert!(text.contains("start one with `gt worker --host host -p 123`"), "{text}");
    let sent = rig.add_worker(0);
    let Action::ToWorker(_, WorkerCmd::Batch { batch, .. }) = &sent[0] else { panic!("{sent:?}") };
    assert_eq!((batch.runs.len(), batch.fetches.len()), (1, 0));
}

#[test]
fn a_sync_without_workers_fails_the_programs() {
    let mut rig = rig(Config::default(), 0);
    rig.run(full(2, 1, 1), &[]);
    rig.client(ClientMsg::Sync { seq: 1 });
    let actions = rig.tick(10_000);
    let Action::ToClient(_, SessionMsg::Update { completed: 1, failures, .. }) = &actions[0] else {
        panic!("{actions:?}")
    };
    assert_eq!(failures[0].0, 1);
}

#[test]
fn frees_ride_with_the_next_message_or_go_with_the_clock() {
    let mut rig = rig(Config::default(), 1);
    rig.run(full(2, 1, 1), &[]);
    rig.run(full(2, 1, 2), &[]);
    let free = |id| ClientMsg::Batch(Batch { frees: vec![TensorId(id)], ..Batch::default() });
    assert!(rig.client(free(1)).is_empty());
    let sent = rig.run(full(2, 1, 3), &[]);
    let Action::ToWorker(_, WorkerCmd::Batch { batch, .. }) = &sent[0] else { panic!("{sent:?}") };
    assert_eq!((sent.len(), &batch.frees), (1, &vec![TensorId(1)]));
    assert!(rig.client(free(2)).is_empty());
    let sent = rig.tick(20);
    let Action::ToWorker(_, WorkerCmd::Batch { batch, .. }) = &sent[0] else { panic!("{sent:?}") };
    assert_eq!((batch.runs.len(), &batch.frees), (0, &vec![TensorId(2)]));
}

#[test]
fn much_freed_memory_does_not_wait_for_a_message_to_ride_with() {
    let mut rig = rig(Config::default(), 1);
    rig.run(full(3 << 20, 1, 1), &[]);
    let sent = rig.client(ClientMsg::Batch(Batch { frees: vec![TensorId(1)], ..Batch::default() }));
    let Action::ToWorker(_, WorkerCmd::Batch { batch, .. }) = &sent[0] else { panic!("{sent:?}") };
    assert_eq!((sent.len(), batch.runs.len(), &batch.frees), (1, 0, &vec![TensorId(1)]));
}

#[test]
fn a_program_s_frees_reach_other_holders_only_when_it_succeeded() {
    let mut rig = rig(Config::default(), 2);
    let upload = |id| ClientMsg::Upload { tensor: TensorId(id), ty: ints(2), data: Some(to_bytes(&[1, 2])) };
    rig.client(upload(1));
    rig.client(upload(2));
    let sent = rig.run(mul_add(2, 1, 2, 3, [true, true], 3), &[]);
    assert_eq!(sent.len(), 3, "send, expect, run: {sent:?}");
    assert!(rig.tick(20).is_empty(), "nothing is freed yet");
    rig.done(0, 1);
    let sent = rig.tick(20);
    let freed = |a: &Action| matches!(a, Action::ToWorker(WorkerId(1), WorkerCmd::Batch { batch, .. }) if batch.frees == [TensorId(2)]);
    assert!(sent.iter().any(freed), "{sent:?}");
}

#[test]
fn carried_bytes_never_come_to_the_machine() {
    let mut rig = rig(Config::default(), 0);
    let info = WorkerInfo { endpoint: Some(Endpoint::default()), ..info("w") };
    let worker = WorkerId(3);
    rig.step(Event::WorkerUp { worker, info });
    let tensor = TensorId(1);
    let carried = |actions: Vec<Action>| match &actions[..] {
        [Action::Carry(carry)] => carry.clone(),
        other => panic!("{other:?}"),
    };
    let unknown = carried(rig.client(ClientMsg::Carry { tensor }));
    assert_eq!(unknown, Carry { session: S, tensor, worker: None, way: Way::Up { bytes: 0 } });
    rig.client(ClientMsg::Upload { tensor, ty: ints(1 << 20), data: None });
    let up = carried(rig.client(ClientMsg::Carry { tensor }));
    assert_eq!(up, Carry { session: S, tensor, worker: Some(worker), way: Way::Up { bytes: 8 << 20 } });
    let asked = rig.client(ClientMsg::FetchRelay { req: 9, tensor, piece: None });
    assert!(matches!(asked[..], [Action::ToWorker(_, WorkerCmd::Send { goal: None, .. })]), "{asked:?}");
    let moved = WorkerMsg::Moved { session: S, tensor, goal: None, result: Ok(None) };
    let down = carried(rig.step(Event::Worker(worker, moved.clone())));
    assert_eq!(down, Carry { session: S, tensor, worker: Some(worker), way: Way::Down { req: 9 } });
    assert!(rig.step(Event::Worker(worker, moved)).is_empty(), "nobody asked twice");
    // What cannot come after all poisons the tensor.
    let error = Error::Connection("stopped".into());
    let told = rig.client(ClientMsg::Withdraw { tensor, error });
    assert!(matches!(told[..], [Action::ToWorker(_, WorkerCmd::Poison { .. })]), "{told:?}");
}

#[test]
fn strays_are_ignored() {
    let mut rig = rig(Config::default(), 1);
    rig.run(full(2, 1, 1), &[]);
    assert!(updates(&rig.done(0, 7)).is_empty());
    assert!(updates(&rig.done(9, 1)).is_empty());
    let moved =
        WorkerMsg::Moved { session: S, tensor: TensorId(1), goal: Some(WorkerId(0)), result: Ok(None) };
    assert!(rig.step(Event::Worker(WorkerId(0), moved)).is_empty());
    assert!(rig.step(Event::Client(SessionId(5), ClientMsg::Bye)).is_empty());
    assert!(rig.step(Event::WorkerGone { worker: WorkerId(5), reason: String::new() }).is_empty());
    let ended = rig.client(ClientMsg::Bye);
    assert!(matches!(ended[..], [Action::ToWorker(WorkerId(0), WorkerCmd::End { session: S })]), "{ended:?}");
    assert!(rig.done(0, 1).is_empty());
    assert_eq!(rig.machine.count(), (0, 1));
}

#[test]
fn a_program_that_is_refused_fails_alone() {
    let mut rig = rig(Config::default(), 1);
    let told = rig.run(mul_add(2, 7, 8, 3, [false, false], 1), &[1]);
    let [Action::ToClient(_, SessionMsg::Update { completed: 1, values, failures })] = &told[..] else {
        panic!("{told:?}")
    };
    assert!(failures[0].1.error.to_string().contains("tensor 7, which does not exist"), "{failures:?}");
    assert_eq!(values[0].result, Err(failures[0].1.clone()), "its results have the root cause");
    // What reads its results fails with the same cause; all else goes on.
    rig.run(full(2, 1, 2), &[]);
    let told = rig.run(mul_add(2, 1, 2, 3, [false, false], 3), &[]);
    let [Action::ToClient(_, SessionMsg::Update { failures: more, .. })] = &told[..] else {
        panic!("{told:?}")
    };
    assert_eq!((more[0].0, &more[0].1), (3, &failures[0].1));
    assert_eq!(updates(&rig.done(0, 2)).len(), 0);
    let told = rig.run(full(2, 1, 2), &[]);
    let [Action::ToClient(_, SessionMsg::Update { failures, .. })] = &told[..] else { panic!("{told:?}") };
    assert!(failures[0].1.error.to_string().contains("written twice"), "{failures:?}");
    assert_eq!(rig.machine.count(), (1, 1), "the session is still there");
}

#[test]
fn a_prefix_goes_home_and_its_program_after_it() {
    let mut rig = rig(Config::default(), 0);
    rig.step(Event::ClientUp { session: SessionId(2), name: "c".into(), vars: vec![] });
    rig.add_worker(0);
    let client = |rig: &mut Rig, message| rig.step(Event::Client(SessionId(2), message));
    let prefix = |id, program| ClientMsg::Prefix(Prefix { id, program });
    let sent = client(&mut rig, prefix(5, full(2, 1, 1)));
    assert!(matches!(&sent[..], [Action::ToWorker(_, WorkerCmd::Prefix { .. })]), "{sent:?}");
    let run = |seq, prefix| {
        let runs = vec![Run { seq, program: full(2, 1, seq), prefix }];
        ClientMsg::Batch(Batch { runs, ..Batch::default() })
    };
    let sent = client(&mut rig, run(1, Some(5)));
    let [Action::ToWorker(_, WorkerCmd::Batch { batch, .. })] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!(batch.runs[0].prefix, Some(5));
    // One that was never begun, or is not in a state to be, is no prefix at all.
    assert!(client(&mut rig, prefix(6, mul_add(2, 8, 9, 3, [false, false], 4))).is_empty());
    let sent = client(&mut rig, run(2, Some(6)));
    let [Action::ToWorker(_, WorkerCmd::Batch { batch, .. })] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!(batch.runs[0].prefix, None);
    client(&mut rig, prefix(7, full(2, 1, 9)));
    let sent = client(&mut rig, ClientMsg::Forget { prefix: 7 });
    assert!(matches!(&sent[..], [Action::ToWorker(_, WorkerCmd::Forget { prefix: 7, .. })]), "{sent:?}");
    // The worker dies: the program runs elsewhere, from its start.
    client(&mut rig, prefix(8, full(2, 1, 9)));
    rig.add_worker(1);
    rig.step(Event::WorkerGone { worker: WorkerId(0), reason: "gone".into() });
    let sent = client(&mut rig, run(3, Some(8)));
    let [Action::ToWorker(WorkerId(1), WorkerCmd::Batch { batch, .. })] = &sent[..] else {
        panic!("{sent:?}")
    };
    assert_eq!(batch.runs[0].prefix, None);
}

/// A program that is too long to be divided between two messages.
fn long(out: u64) -> Program {
    let mut program = full(2, 1, out);
    let structure = Arc::make_mut(&mut program.structure);
    for last in 0..600 {
        let args = [Arg::Value(last), Arg::Const(Scalar::Int(1))].into_iter().collect();
        structure.instrs.push(Instr { op: Op::Binary(Binary::Add), args });
    }
    structure.outs = vec![600];
    program.key = structure.key();
    program
}

#[test]
fn what_comes_while_workers_are_gone_waits_behind_a_plan() {
    let mut rig = rig(Config::default(), 2);
    let session = SessionId(2);
    let vars = vec![("GT_AUTO_SHARD".to_string(), "1".to_string())];
    rig.step(Event::ClientUp { session, name: "c".into(), vars });
    let run = |seq, program| {
        let runs = vec![Run { seq, program, prefix: None }];
        Event::Client(session, ClientMsg::Batch(Batch { runs, ..Batch::default() }))
    };
    let asked = rig.step(run(1, long(1)));
    let Some(Action::Plan { ask, .. }) = asked.last() else { panic!("{asked:?}") };
    for i in 0..2 {
        rig.step(Event::WorkerGone { worker: WorkerId(i), reason: "gone".into() });
    }
    assert!(rig.step(run(2, full(2, 1, 2))).is_empty());
    assert!(rig.add_worker(2).is_empty(), "the first program is still being divided");
    let sent = rig.step(Event::Planned { ask: *ask, result: Ok(None) });
    let runs = |a: &Action| match a {
        Action::ToWorker(WorkerId(2), WorkerCmd::Batch { batch, .. }) => batch.runs.clone(),
        other => panic!("{other:?}"),
    };
    let order: Vec<u64> = sent.iter().flat_map(runs).map(|run| run.seq).collect();
    assert_eq!(order, vec![1, 2]);
}

#[test]
fn programs_are_divided_over_one_kind_of_worker_and_the_client_is_told_once() {
    let mut rig = rig(Config::default(), 0);
    for (i, backend) in ["cpu", "cpu", "cpu", "cuda", "cuda"].into_iter().enumerate() {
        rig.add_worker_of(backend, i as u32);
    }
    let session = SessionId(2);
    let vars = ["GT_AUTO_SHARD", "GT_SHARD_MIN"].iter().zip(["1", "0"]);
    let vars = vars.map(|(name, value)| (name.to_string(), value.to_string())).collect();
    rig.step(Event::ClientUp { session, name: "c".into(), vars });
    let mut lines = Vec::new();
    for seq in 1..4 {
        let runs = vec![Run { seq, program: full(8, 1, seq), prefix: None }];
        let sent = rig.step(Event::Client(session, ClientMsg::Batch(Batch { runs, ..Batch::default() })));
        let gang = |a: &Action| match a {
            Action::ToWorker(worker, WorkerCmd::Gang { .. }) => Some(worker.0),
            _ => None,
        };
        assert_eq!(sent.iter().filter_map(gang).collect::<Vec<_>>(), [3, 4], "{sent:?}");
        lines.extend(sent.into_iter().filter_map(|a| match a {
            Action::ToClient(_, SessionMsg::Log { line, .. }) => Some(line),
            _ => None,
        }));
    }
    let [line] = &lines[..] else { panic!("{lines:?}") };
    assert!(line.contains("divided over 2 cuda workers and not over w0, w1, w2"), "{line}");
}

#[test]
fn a_silent_worker_gets_nothing_new_and_who_waits_for_it_is_told() {
    let mut rig = rig(Config::default(), 2);
    let placed = |sent: &[Action]| match sent {
        [Action::ToWorker(worker, WorkerCmd::Batch { .. })] => worker.0,
        other => panic!("{other:?}"),
    };
    assert_eq!(placed(&rig.run(full(2, 1, 1), &[])), 0);
    let told = |sent: Vec<Action>| match &sent[..] {
        [Action::ToClient(S, SessionMsg::Log { line, .. })] => line.clone(),
        other => panic!("{other:?}"),
    };
    let silent = Event::WorkerSilent { worker: WorkerId(0), silent_ms: 12_040, left_ms: 57_960 };
    assert_eq!(told(rig.step(silent)), "gt: waiting for worker w0, silent for 12 s: it is given up in 57 s");
    for out in 2..6 {
        assert_eq!(placed(&rig.run(full(2, 1, out), &[])), 1);
    }
    // Another session divides its programs over those that answer.
    let session = SessionId(2);
    let vars = [("GT_AUTO_SHARD".into(), "1".into()), ("GT_SHARD_MIN".into(), "0".into())].to_vec();
    rig.step(Event::ClientUp { session, name: "c".into(), vars });
    let runs = vec![Run { seq: 1, program: full(8, 1, 1), prefix: None }];
    let sent = rig.step(Event::Client(session, ClientMsg::Batch(Batch { runs, ..Batch::default() })));
    assert_eq!(placed(&sent), 1);
    assert_eq!(told(rig.step(Event::WorkerBack(WorkerId(0)))), "gt: worker w0 is back");
    assert_eq!(placed(&rig.run(full(2, 1, 6), &[])), 0);
    // One of which nobody has anything is nobody's concern.
    rig.add_worker(2);
    let silent = Event::WorkerSilent { worker: WorkerId(2), silent_ms: 12_000, left_ms: 58_000 };
    assert!(rig.step(silent).is_empty());
}
