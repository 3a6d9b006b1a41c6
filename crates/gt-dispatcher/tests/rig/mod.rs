//! A machine with a few workers that are a test's to play.
#![allow(dead_code)]

use gt_dispatcher::{Action, Config, Event, Machine};
use gt_ir::Program;
use gt_net::msg::{
    Batch, ClientMsg, Failure, Run, SessionId, SessionMsg, Share, Value, WorkerCmd, WorkerId, WorkerInfo,
    WorkerMsg,
};

/// A worker that only says who it is.
pub fn info(name: &str) -> WorkerInfo {
    WorkerInfo {
        name: name.into(),
        backend: "test".into(),
        device: "test".into(),
        threads: 1,
        memory: 1 << 30,
        endpoint: None,
        ticket_key: [0; 16],
        process: gt_net::process::Process::this(),
        gangs: false,
        speed: Default::default(),
    }
}

pub const S: SessionId = SessionId(1);
pub const WORKERS: u32 = 3;

pub struct Rig {
    pub machine: Machine,
    pub seq: u64,
    memory: u64,
}

/// Workers that divide whatever can be divided.
pub fn rig() -> Rig {
    rig_of(1 << 30)
}

/// The same, each with so much memory.
pub fn rig_of(memory: u64) -> Rig {
    let mut rig = Rig { machine: Machine::new(Config::default()), seq: 0, memory };
    (0..WORKERS).for_each(|i| drop(rig.add_worker(i)));
    let vars = [("GT_AUTO_SHARD", "1"), ("GT_SHARD_MIN", "0")];
    let vars = vars.map(|(name, value)| (name.to_string(), value.to_string())).to_vec();
    rig.step(Event::ClientUp { session: S, name: "c".into(), vars });
    rig
}

impl Rig {
    pub fn step(&mut self, event: Event) -> Vec<Action> {
        let mut out = Vec::new();
        self.machine.step(0, event, &mut out);
        self.machine.check_invariants().unwrap();
        out
    }

    pub fn add_worker(&mut self, i: u32) -> Vec<Action> {
        let info = WorkerInfo { memory: self.memory, gangs: true, ..info(&format!("w{i}")) };
        self.step(Event::WorkerUp { worker: WorkerId(i), info })
    }

    /// Sends a program.
    pub fn send(&mut self, program: Program) -> Vec<Action> {
        self.seq += 1;
        let runs = vec![Run { seq: self.seq, program, prefix: None }];
        self.step(Event::Client(S, ClientMsg::Batch(Batch { runs, ..Batch::default() })))
    }

    /// Sends a program, and has all its workers finish it.
    pub fn run(&mut self, program: Program) -> Vec<Action> {
        let sent = self.send(program);
        let seq = self.seq;
        for (worker, _) in shares(&sent) {
            self.step(Event::Worker(worker, update(vec![seq], Vec::new(), Vec::new())));
        }
        sent
    }
}

/// What a worker says of programs and of what it was asked for.
pub fn update(finished: Vec<u64>, values: Vec<Value>, failures: Vec<(u64, Failure)>) -> WorkerMsg {
    WorkerMsg::Update {
        session: S,
        finished,
        values,
        failures,
        spared: Vec::new(),
        compiled: Vec::new(),
        session_bytes: 0,
    }
}

/// What goes to the workers of a gang.
pub fn shares(actions: &[Action]) -> Vec<(WorkerId, Share)> {
    let pick = |a: &Action| match a {
        Action::ToWorker(worker, WorkerCmd::Gang { share, .. }) => Some((*worker, share.clone())),
        _ => None,
    };
    actions.iter().filter_map(pick).collect()
}

/// The errors among some actions.
pub fn errors(actions: &[Action]) -> Vec<String> {
    let failures = |a: &Action| match a {
        Action::ToClient(_, SessionMsg::Update { failures, .. }) => failures.clone(),
        _ => Vec::new(),
    };
    actions.iter().flat_map(failures).map(|(_, failure)| failure.error.to_string()).collect()
}
