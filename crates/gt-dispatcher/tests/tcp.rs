//! A server and worker processes' code over real sockets, in this process: control messages, bulk bytes, moves.

#[path = "../../gt-worker/tests/common/mod.rs"]
mod common;

use common::{TestBackend, full, ints, mul_add, to_bytes, to_ints};
use gt_dispatcher::{Server, ServerConfig};
use gt_ir::{Program, TensorId};
use gt_net::addr::Addr;
use gt_net::bulk::BulkClient;
use gt_net::handshake::Role;
use gt_net::intern::{Interner, decode, encode_client};
use gt_net::msg::{Batch, ClientMsg, Fetch, Payload, Run, SessionMsg, SessionWelcome, Stats};
use gt_net::peer::{Event, HelloOptions, Peer};
use gt_worker::{WorkerConfig, remote};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

fn server() -> (Server, Addr) {
    let config = ServerConfig { host: "127.0.0.1".into(), port: 0, token: Some("t".into()), unix: None };
    let server = Server::start(config).unwrap();
    let addr = server.addrs()[0].clone();
    (server, addr)
}

struct Remote {
    backend: Arc<TestBackend>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Remote {
    fn start(addr: &Addr, name: &str) -> Remote {
        let (backend, stop) = (TestBackend::new(1 << 30), Arc::new(AtomicBool::new(false)));
        let config = WorkerConfig {
            name: name.into(),
            threads: 1,
            backend: backend.clone(),
            compiling: Default::default(),
        };
        let (addr, flag) = (addr.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            remote::run(&addr, Some("t".into()), config, &Default::default(), &flag, &|_| ()).unwrap();
        });
        Remote { backend, stop, thread: Some(thread) }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Client {
    peer: Peer,
    interner: Interner,
    said: Receiver<Event>,
    bulk: Arc<BulkClient>,
    seq: u64,
    req: u64,
}

impl Client {
    fn connect(addr: &Addr, vars: &[(&str, &str)]) -> Client {
        let (send, said) = channel();
        let vars = vars.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
        let options = HelloOptions { token: Some("t".into()), vars, ..HelloOptions::new(Role::Client) };
        let (peer, welcome) = Peer::connect(addr, options, Box::new(move |e| drop(send.send(e)))).unwrap();
        let welcome: SessionWelcome = decode(&welcome.body).unwrap();
        assert!(welcome.credit_programs > 0);
        Client { peer, interner: Interner::new(), said, bulk: BulkClient::new(), seq: 0, req: 0 }
    }

    /// Gives the bytes it took.
    fn send(&mut self, message: ClientMsg) -> usize {
        let bytes = encode_client(&message, &mut self.interner);
        let size = bytes.len();
        self.peer.send(bytes).unwrap();
        size
    }

    fn hear(&self) -> SessionMsg {
        match self.said.recv_timeout(Duration::from_secs(20)).expect("the server says nothing") {
            Event::Message(bytes) => decode(&bytes).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    fn run(&mut self, programs: Vec<Program>, fetches: &[u64]) -> usize {
        let mut batch = Batch::default();
        for program in programs {
            self.seq += 1;
            batch.runs.push(Run { seq: self.seq, program, prefix: None });
        }
        for id in fetches {
            self.req += 1;
            batch.fetches.push(Fetch { req: self.req, tensor: TensorId(*id) });
        }
        self.send(ClientMsg::Batch(batch))
    }

    fn value(&mut self) -> Vec<i64> {
        loop {
            let SessionMsg::Update { values, .. } = self.hear() else { continue };
            if let Some(value) = values.into_iter().find(|v| v.req == self.req) {
                return match value.result.unwrap() {
                    Payload::Inline(bytes) => to_ints(&bytes),
                    Payload::Bulk { at, ticket } => to_ints(&self.bulk.get_vec(&at, &ticket).unwrap()),
                    Payload::Pieces(_) => panic!("nothing is divided here"),
                };
            }
        }
    }

    fn stats(&mut self) -> Stats {
        self.send(ClientMsg::Stats { req: 1 });
        loop {
            if let SessionMsg::Stats { stats, .. } = self.hear() {
                return stats;
            }
        }
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < deadline, "{what} takes too long");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn small_and_large_values_go_both_ways() {
    let (_server, addr) = server();
    let worker = Remote::start(&addr, "w");
    let mut client = Client::connect(&addr, &[]);
    let large: Vec<i64> = (0..100_000).collect();
    client.send(ClientMsg::Upload { tensor: TensorId(1), ty: ints(large.len()), data: None });
    let SessionMsg::Grant { tensor, at, ticket } = client.hear() else { panic!("no grant") };
    assert_eq!(tensor, TensorId(1));
    let programs = vec![full(100_000, 1, 2), mul_add(100_000, 1, 2, 3, [true, true], 3)];
    client.run(programs, &[3]);
    // The program waits for these.
    client.bulk.put(&at, &ticket, &to_bytes(&large)).unwrap();
    assert_eq!(client.value(), large.iter().map(|x| x * 3 + 1).collect::<Vec<_>>());
    client.run(vec![full(3, 9, 4)], &[4]);
    assert_eq!(client.value(), vec![9, 9, 9]);
    drop(client);
    until("forgetting the client", || worker.backend.used() == 0);
}

#[test]
fn what_the_bulk_plane_cannot_carry_is_relayed() {
    let (_server, addr) = server();
    let _worker = Remote::start(&addr, "w");
    let mut client = Client::connect(&addr, &[]);
    let large: Vec<i64> = (0..20_000).collect();
    client.send(ClientMsg::Upload { tensor: TensorId(1), ty: ints(large.len()), data: None });
    client.send(ClientMsg::Relay { tensor: TensorId(1), data: to_bytes(&large) });
    client.run(vec![], &[1]);
    let SessionMsg::Grant { .. } = client.hear() else { panic!("no grant") };
    let SessionMsg::Update { values, .. } = client.hear() else { panic!("no update") };
    assert!(matches!(values[0].result, Ok(Payload::Bulk { .. })));
    client.send(ClientMsg::FetchRelay { req: client.req, tensor: TensorId(1), piece: None });
    assert_eq!(client.value(), large);
}

#[test]
fn workers_send_to_each_other_directly() {
    let (_server, addr) = server();
    let workers = [Remote::start(&addr, "a"), Remote::start(&addr, "b")];
    until("two workers", || Client::connect(&addr, &[]).stats().workers.len() == 2);
    let mut client = Client::connect(&addr, &[("GT_PLACEMENT", "spread")]);
    let n = 20_000;
    client.run(vec![full(n, 1, 1), full(n, 2, 2), mul_add(n, 1, 2, 3, [true, true], 3)], &[3]);
    assert_eq!(client.value(), vec![5; n]);
    let stats = client.stats();
    assert_eq!(stats.moves, 1);
    drop(client);
    until("forgetting the client", || workers.iter().all(|w| w.backend.used() == 0));
}

#[test]
fn a_repeated_step_sends_no_structure() {
    let (_server, addr) = server();
    let _worker = Remote::start(&addr, "w");
    let mut client = Client::connect(&addr, &[]);
    client.run(vec![full(2, 1, 1), full(2, 1, 2)], &[]);
    let mut sizes = Vec::new();
    for i in 2..6 {
        sizes.push(client.run(vec![mul_add(2, 1, i, 1, [false, true], i + 1)], &[i + 1]));
        assert_eq!(client.value(), vec![i as i64, i as i64]);
    }
    assert!(sizes[0] > 40 && sizes[1..].iter().all(|s| *s < 35), "{sizes:?}");
}

#[test]
fn a_worker_finds_a_server_that_comes_back() {
    let (server, addr) = server();
    let worker = Remote::start(&addr, "w");
    let mut client = Client::connect(&addr, &[]);
    client.run(vec![full(2, 1, 1)], &[1]);
    assert_eq!(client.value(), vec![1, 1]);
    let Addr::Tcp(host, port) = addr.clone() else { panic!("not tcp") };
    server.stop();
    let config = ServerConfig { host, port, token: Some("t".into()), unix: None };
    let _again = Server::start(config).unwrap();
    let mut client = Client::connect(&addr, &[]);
    client.run(vec![full(2, 4, 1)], &[1]);
    assert_eq!(client.value(), vec![4, 4]);
    drop(client);
    until("forgetting the client", || worker.backend.used() == 0);
}
