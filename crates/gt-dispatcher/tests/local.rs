//! The whole way inside one process: client, hub, real workers with a small device, and back.

#[path = "../../gt-worker/tests/common/mod.rs"]
mod common;

use common::{TestBackend, full, ints, mul_add, scale, take, to_bytes, to_ints};
use gt_dispatcher::{LocalClient, LocalHub};
use gt_ir::{Error, Program, TensorId};
use gt_net::msg::{Batch, ClientMsg, Failure, Fetch, Payload, Run, SessionMsg, Stats, WorkerId};
use gt_worker::{Worker, WorkerConfig};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

fn add_worker(hub: &LocalHub, name: &str) -> (WorkerId, Arc<TestBackend>) {
    let backend = TestBackend::new(1 << 30);
    let config = WorkerConfig {
        name: name.into(),
        threads: 1,
        backend: backend.clone(),
        compiling: Default::default(),
    };
    let probe = Worker::start(config.clone(), Box::new(|_| ()));
    let id = hub.attach(probe.info(), |back| {
        let worker = Worker::start(config, Box::new(move |message| back.send(message)));
        Box::new(move |command| worker.handle(command))
    });
    (id, backend)
}

struct Client {
    link: LocalClient,
    said: Receiver<SessionMsg>,
    seq: u64,
    req: u64,
}

impl Client {
    fn connect(hub: &LocalHub, vars: &[(&str, &str)]) -> Client {
        let (send, said) = channel();
        let vars = vars.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
        Client { link: hub.connect(vars, Box::new(move |m| drop(send.send(m)))), said, seq: 0, req: 0 }
    }

    fn hear(&self) -> SessionMsg {
        self.said.recv_timeout(Duration::from_secs(20)).expect("the hub says nothing")
    }

    fn upload(&self, id: u64, values: &[i64]) {
        let data = Some(to_bytes(values));
        self.link.send(ClientMsg::Upload { tensor: TensorId(id), ty: ints(values.len()), data }).unwrap();
    }

    fn run(&mut self, programs: Vec<Program>, fetches: &[u64]) {
        let mut batch = Batch::default();
        for program in programs {
            self.seq += 1;
            batch.runs.push(Run { seq: self.seq, program, prefix: None });
        }
        for id in fetches {
            self.req += 1;
            batch.fetches.push(Fetch { req: self.req, tensor: TensorId(*id) });
        }
        self.link.send(ClientMsg::Batch(batch)).unwrap();
    }

    /// Runs programs and waits for one value.
    fn look(&mut self, programs: Vec<Program>, id: u64) -> Result<Vec<i64>, Failure> {
        self.run(programs, &[id]);
        loop {
            let SessionMsg::Update { values, .. } = self.hear() else { continue };
            if let Some(value) = values.into_iter().find(|v| v.req == self.req) {
                return value.result.map(|p| match p {
                    Payload::Inline(bytes) => to_ints(&bytes),
                    Payload::Bulk { .. } | Payload::Pieces(_) => panic!("no bulk plane here, and one worker"),
                });
            }
        }
    }

    fn stats(&self) -> Stats {
        self.link.send(ClientMsg::Stats { req: 1 }).unwrap();
        loop {
            if let SessionMsg::Stats { stats, .. } = self.hear() {
                return stats;
            }
        }
    }
}

#[test]
fn a_value_comes_back() {
    let hub = LocalHub::new();
    add_worker(&hub, "w");
    let mut client = Client::connect(&hub, &[]);
    client.upload(1, &[1, 2]);
    let programs = vec![full(2, 7, 2), mul_add(2, 1, 2, 3, [true, true], 3)];
    assert_eq!(client.look(programs, 3), Ok(vec![10, 13]));
    let stats = client.stats();
    assert_eq!((stats.programs, stats.instructions, stats.workers.len()), (2, 3, 1));
}

#[test]
fn a_step_with_a_look_is_four_messages() {
    let hub = LocalHub::new();
    add_worker(&hub, "w");
    let mut client = Client::connect(&hub, &[]);
    client.upload(1, &[1, 2]);
    client.upload(2, &[1, 1]);
    client.look(vec![], 1).unwrap();
    let before = client.stats();
    for step in 0..10 {
        let (old, new) = (2 + step, 3 + step);
        client.look(vec![mul_add(2, 1, old, step as i64, [false, true], new)], new).unwrap();
    }
    let after = client.stats();
    assert_eq!(after.messages - before.messages, 40);
    assert_eq!(after.workers[0].plan_misses - before.workers[0].plan_misses, 1);
    assert_eq!(after.workers[0].plan_hits - before.workers[0].plan_hits, 9);
}

#[test]
fn nobody_is_told_of_each_program_but_a_sync_is_answered() {
    let hub = LocalHub::new();
    add_worker(&hub, "w");
    let mut client = Client::connect(&hub, &[]);
    for i in 1..=8 {
        client.run(vec![full(2, 1, i)], &[]);
    }
    client.link.send(ClientMsg::Sync { seq: 8 }).unwrap();
    let mut updates = 0;
    loop {
        let SessionMsg::Update { completed, .. } = client.hear() else { panic!("no update") };
        updates += 1;
        if completed == 8 {
            break;
        }
    }
    assert!(updates <= 2, "{updates} updates for 8 programs");
}

#[test]
fn operands_apart_are_brought_together() {
    let hub = LocalHub::new();
    let backends = [add_worker(&hub, "a").1, add_worker(&hub, "b").1, add_worker(&hub, "c").1];
    let mut client = Client::connect(&hub, &[("GT_PLACEMENT", "spread")]);
    let mut expected = vec![0, 0];
    client.upload(1000, &expected);
    for i in 0..30u64 {
        client.upload(i + 1, &[i as i64, 1]);
        expected = vec![expected[0] * 2 + i as i64, expected[1] * 2 + 1];
        client.run(vec![mul_add(2, 1000 + i, i + 1, 2, [true, true], 1001 + i)], &[]);
    }
    assert_eq!(client.look(vec![], 1030), Ok(expected));
    let stats = client.stats();
    assert!(stats.moves > 10, "{stats:?}");
    assert_eq!(stats.moved_bytes, stats.moves * 16);
    assert_eq!(stats.workers.iter().map(|w| w.programs).sum::<u64>(), 30);
    // All but the last result was freed, copies included.
    let deadline = Instant::now() + Duration::from_secs(10);
    let used = || backends.iter().map(|b| b.used()).sum::<u64>();
    while used() > 16 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(used(), 16);
    drop(client);
    assert_eq!((used(), hub.count()), (0, (0, 3)));
}

#[test]
fn a_failure_is_told_once_with_its_root_and_others_go_on() {
    let hub = LocalHub::new();
    add_worker(&hub, "w");
    let (mut bad, mut good) = (Client::connect(&hub, &[]), Client::connect(&hub, &[]));
    bad.upload(1, &[4, 5]);
    bad.upload(2, &[0, 9]);
    good.upload(1, &[1, 1]);
    let failure = bad.look(vec![take(2, 1, 2, true, 3), scale(2, 3, 2, false, 4)], 4).unwrap_err();
    assert_eq!((failure.root, failure.instr), (1, Some(0)));
    assert!(matches!(failure.error, Error::Index(_)));
    assert_eq!(bad.look(vec![], 1), Ok(vec![4, 5]), "what the failed program would have freed is there");
    assert_eq!(good.look(vec![scale(2, 1, 2, true, 2)], 2), Ok(vec![2, 2]));
}

#[test]
fn a_malformed_program_fails_alone() {
    let hub = LocalHub::new();
    add_worker(&hub, "w");
    let mut good = Client::connect(&hub, &[]);
    for wrong in [
        scale(2, 77, 2, false, 3),
        full(2, 1, 1),
        scale(3, 1, 2, false, 3),
        Program { slots: vec![], ..mul_add(2, 1, 2, 1, [false, false], 3) },
        Program { key: 5, ..scale(2, 1, 12345, false, 3) },
    ] {
        let mut bad = Client::connect(&hub, &[]);
        bad.upload(1, &[1, 2]);
        bad.run(vec![wrong], &[]);
        let SessionMsg::Update { failures, .. } = bad.hear() else { panic!("no failure") };
        assert!(matches!(failures[0].1.error, Error::Value(_)), "{failures:?}");
        assert_eq!(bad.look(vec![scale(2, 1, 3, false, 9)], 9), Ok(vec![3, 6]), "the session goes on");
    }
    assert_eq!(good.look(vec![full(2, 3, 1)], 1), Ok(vec![3, 3]));
}

#[test]
fn a_lost_worker_takes_its_tensors_along_and_the_session_goes_on() {
    let hub = LocalHub::new();
    let (first, _) = add_worker(&hub, "first");
    let mut client = Client::connect(&hub, &[]);
    client.look(vec![full(2, 1, 1)], 1).unwrap();
    add_worker(&hub, "second");
    hub.remove_worker(first, "it was killed");
    let failure = client.look(vec![scale(2, 1, 2, false, 2)], 2).unwrap_err();
    let Error::Connection(text) = &failure.error else { panic!("{failure:?}") };
    assert!(text.contains("worker first was lost (it was killed)"), "{text}");
    assert_eq!(client.look(vec![full(2, 5, 3)], 3), Ok(vec![5, 5]));
}

#[test]
fn programs_wait_for_a_first_worker() {
    let hub = LocalHub::new();
    let mut client = Client::connect(&hub, &[]);
    client.run(vec![full(2, 6, 1)], &[1]);
    add_worker(&hub, "late");
    let SessionMsg::Update { values, .. } = client.hear() else { panic!("no update") };
    assert!(matches!(&values[0].result, Ok(Payload::Inline(bytes)) if to_ints(bytes) == [6, 6]));
}

#[test]
fn a_session_s_log_goes_to_its_client() {
    let hub = LocalHub::new();
    add_worker(&hub, "w");
    let mut client = Client::connect(&hub, &[("GT_INSTRUCTION_LOG", "/tmp/x")]);
    client.run(vec![full(2, 6, 1)], &[1]);
    let mut lines = Vec::new();
    loop {
        match client.hear() {
            SessionMsg::Log { line, .. } => lines.push(line),
            SessionMsg::Update { .. } => break,
            _ => {}
        }
    }
    let text = lines.join("\n");
    for part in [
        "| CONNECT | CLIENT in-process 1 |",
        "| RECV | CLIENT in-process 1 | Program |",
        "TENSOR[0] := FULL",
        "| WORKER_SEND | WORKER w | Program |",
        "| WORKER_RECV | WORKER w | Update |",
        "| SEND | CLIENT in-process 1 | Update |",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    println!("{text}");
}
