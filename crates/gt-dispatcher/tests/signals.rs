//! Signals at the dispatcher: a table that grows, workers that are missing, marks that name nothing.

#[path = "../../gt-worker/tests/common/mod.rs"]
mod common;
mod rig;

use common::full;
use gt_dispatcher::{Action, Config, Event, Machine};
use gt_ir::Program;
use gt_ir::signal::{Lay, Mark, MeshAxis, SignalSpec};
use gt_net::msg::{Batch, ClientMsg, Run, SessionId, SessionMsg, WorkerCmd, WorkerId};
use rig::info;
use std::sync::Arc;

const S: SessionId = SessionId(1);

fn machine(workers: u32) -> Machine {
    let mut machine = Machine::new(Config::default());
    let mut out = Vec::new();
    (0..workers).for_each(|i| arrive(&mut machine, i, &format!("w{i}")));
    machine.step(0, Event::ClientUp { session: S, name: "c".into(), vars: Vec::new() }, &mut out);
    machine
}

fn arrive(machine: &mut Machine, id: u32, name: &str) {
    machine.step(0, Event::WorkerUp { worker: WorkerId(id), info: info(name) }, &mut Vec::new());
}

fn send(machine: &mut Machine, message: ClientMsg) -> Vec<Action> {
    let mut out = Vec::new();
    machine.step(1, Event::Client(S, message), &mut out);
    machine.check_invariants().unwrap();
    out
}

fn spec(name: &str, workers: &[u32]) -> SignalSpec {
    SignalSpec {
        name: name.into(),
        axes: vec![MeshAxis { name: "workers".into(), size: 0 }],
        workers: workers.to_vec(),
        lays: vec![Lay::Split(0)],
        ..SignalSpec::default()
    }
}

fn marked(seq: u64, signal: u32) -> ClientMsg {
    let program = full(4, 1, seq);
    let mut structure = (*program.structure).clone();
    structure.marks = vec![Mark { value: 0, signal, firm: true }];
    let program = Program { key: structure.key(), structure: Arc::new(structure), ..program };
    ClientMsg::Batch(Batch { runs: vec![Run { seq, program, prefix: None }], ..Batch::default() })
}

/// What the client was told: warnings, and errors of programs.
fn told(actions: &[Action]) -> Vec<String> {
    let mut all = Vec::new();
    for action in actions {
        match action {
            Action::ToClient(_, SessionMsg::Log { line, .. }) => all.push(line.clone()),
            Action::ToClient(_, SessionMsg::Update { failures, .. }) => {
                all.extend(failures.iter().map(|(_, f)| f.error.to_string()));
            }
            Action::ToClient(_, SessionMsg::Fatal { error }) => all.push(format!("fatal: {error}")),
            _ => {}
        }
    }
    all
}

#[test]
fn missing_workers_are_told_once() {
    let mut machine = machine(2);
    send(&mut machine, ClientMsg::Signals { specs: vec![spec("wide", &[0, 1, 2, 3])] });
    let first = told(&send(&mut machine, marked(1, 0)));
    assert_eq!(
        first,
        [
            "gt: warning: signal: w0 (test), w1 (test) cannot run programs together: \
             they are of several kinds, or cannot reach each other",
            "gt: warning: signal \"wide\": workers [2, 3] are not there; it goes on with workers [0, 1]"
        ]
    );
    assert_eq!(told(&send(&mut machine, marked(2, 0))), [""; 0]);
}

#[test]
fn a_signal_without_workers_fails_its_programs_alone() {
    let mut machine = machine(1);
    let specs = vec![spec("gone", &[7]), spec("here", &[0])];
    send(&mut machine, ClientMsg::Signals { specs });
    let failed = told(&send(&mut machine, marked(1, 0)));
    assert!(failed[0].contains("signal \"gone\": none of its workers [7] is there"), "{failed:?}");
    assert_eq!(told(&send(&mut machine, marked(2, 1))), [""; 0]);
}

#[test]
fn a_mark_of_no_signal_fails_its_program() {
    let mut machine = machine(1);
    let failed = told(&send(&mut machine, marked(1, 5)));
    assert!(failed[0].contains("it names signal 5, which was never sent"), "{failed:?}");
}

#[test]
fn a_spec_that_is_none_ends_the_session() {
    let mut machine = machine(1);
    let bad = SignalSpec { lays: Vec::new(), ..spec("bad", &[0]) };
    let told = told(&send(&mut machine, ClientMsg::Signals { specs: vec![bad] }));
    assert!(told[0].starts_with("fatal: signal: its mesh and its layout"), "{told:?}");
}

/// The worker that a program under a signal goes to.
fn place(machine: &mut Machine, seq: u64, signal: u32) -> Option<WorkerId> {
    send(machine, marked(seq, signal)).iter().find_map(|a| match a {
        Action::ToWorker(worker, WorkerCmd::Batch { .. }) => Some(*worker),
        _ => None,
    })
}

#[test]
fn a_program_of_one_worker_runs_there() {
    let mut machine = machine(3);
    send(&mut machine, ClientMsg::Signals { specs: vec![spec("last", &[2]), spec("first", &[0])] });
    for (seq, signal, worker) in [(1, 0, 2), (2, 1, 0), (3, 0, 2)] {
        assert_eq!(place(&mut machine, seq, signal), Some(WorkerId(worker)));
    }
}

#[test]
fn workers_keep_their_numbers_when_others_go_and_come() {
    let mut machine = machine(4);
    let specs = (0..4).map(|i| spec(&format!("only {i}"), &[i])).collect();
    send(&mut machine, ClientMsg::Signals { specs });
    for worker in [0, 2] {
        let gone = Event::WorkerGone { worker: WorkerId(worker), reason: "killed".into() };
        machine.step(1, gone, &mut Vec::new());
    }
    assert_eq!(place(&mut machine, 1, 1), Some(WorkerId(1)));
    assert_eq!(place(&mut machine, 2, 3), Some(WorkerId(3)));
    let failed = told(&send(&mut machine, marked(3, 2)));
    assert!(failed[0].contains("only workers [1, 3] are connected"), "{failed:?}");
    // One that comes back takes its number, another the lowest that is free, and then a new one.
    for (id, name) in [(4, "w2"), (5, "other"), (6, "w0")] {
        arrive(&mut machine, id, name);
    }
    assert_eq!(place(&mut machine, 4, 2), Some(WorkerId(4)));
    assert_eq!(place(&mut machine, 5, 0), Some(WorkerId(5)));
    assert_eq!(place(&mut machine, 6, 3), Some(WorkerId(3)));
    send(&mut machine, ClientMsg::Signals { specs: vec![spec("new", &[4])] });
    assert_eq!(place(&mut machine, 7, 4), Some(WorkerId(6)));
}
