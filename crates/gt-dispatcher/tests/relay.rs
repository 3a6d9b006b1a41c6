//! Tensors that pass through the server in pieces, over real sockets: any size, bounded, across cuts, and refused where
//! they are wrong.

#[path = "../../gt-worker/tests/common/mod.rs"]
mod common;
#[path = "../../gt-net/tests/common/proxy.rs"]
mod proxy;

use common::{TestBackend, ints, to_bytes};
use gt_dispatcher::{Server, ServerConfig};
use gt_ir::{TensorId, Ty};
use gt_net::addr::Addr;
use gt_net::bulk::{Endpoint, TicketKey};
use gt_net::handshake::Role;
use gt_net::intern::{Interner, decode, decode_worker, encode, encode_client};
use gt_net::msg::{
    Batch, ClientMsg, Fetch, Payload, SessionId, SessionMsg, WorkerCmd, WorkerInfo, WorkerMsg,
};
use gt_net::peer::{Event, HelloOptions, Peer};
use gt_net::relay::{PIECE, Part, Sink, Source, WINDOW, What};
use gt_worker::{WorkerConfig, remote};
use proxy::Proxy;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const WAIT: Duration = Duration::from_secs(30);

fn server() -> (Server, Addr) {
    let config = ServerConfig { host: "127.0.0.1".into(), port: 0, token: Some("t".into()), unix: None };
    let server = Server::start(config).unwrap();
    let addr = server.addrs()[0].clone();
    (server, addr)
}

/// A peer of the server, by hand.
struct Hand {
    peer: Peer,
    events: Receiver<Event>,
    interner: Interner,
}

impl Hand {
    fn connect(addr: &Addr, role: Role, body: Vec<u8>) -> Hand {
        let (send, events) = channel();
        let options = HelloOptions { token: Some("t".into()), body, ..HelloOptions::new(role) };
        let (peer, _) = Peer::connect(addr, options, Box::new(move |e| drop(send.send(e)))).unwrap();
        Hand { peer, events, interner: Interner::new() }
    }

    fn client(addr: &Addr) -> Hand {
        Hand::connect(addr, Role::Client, Vec::new())
    }

    /// A worker that nobody can reach.
    fn worker(addr: &Addr) -> Hand {
        let info = WorkerInfo {
            name: "slow".into(),
            backend: "test".into(),
            device: "none".into(),
            threads: 1,
            memory: 1 << 40,
            endpoint: Some(Endpoint { tcp: Some(("127.0.0.1".into(), 1)), ..Endpoint::default() }),
            ticket_key: TicketKey::random().0,
            process: gt_net::process::Process::this(),
            gangs: false,
            speed: Default::default(),
        };
        Hand::connect(addr, Role::Worker, encode(&info))
    }

    fn say(&mut self, message: ClientMsg) {
        self.peer.send(encode_client(&message, &mut self.interner)).unwrap();
    }

    fn send(&self, part: &Part) {
        self.peer.send_piece(part.encode()).unwrap();
    }

    fn event(&self) -> Event {
        loop {
            match self.events.recv_timeout(WAIT).expect("the server says nothing") {
                Event::Cut | Event::Resumed => {}
                event => return event,
            }
        }
    }

    /// The next part; messages before it are dropped.
    fn part(&self) -> Vec<u8> {
        loop {
            match self.event() {
                Event::Piece(bytes) => return bytes,
                Event::Message(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn stop(&self) -> String {
        loop {
            let bytes = self.part();
            let part = Part::decode(&bytes).unwrap();
            if part.what == What::Stop {
                return part.reason();
            }
        }
    }

    fn hear(&self) -> SessionMsg {
        match self.event() {
            Event::Message(bytes) => decode(&bytes).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    fn command(&mut self) -> WorkerCmd {
        loop {
            match self.event() {
                Event::Message(bytes) => {
                    if let Some(command) = decode_worker(&bytes, &mut self.interner).unwrap() {
                        return command;
                    }
                }
                Event::Piece(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Announces an upload that must be relayed, and gives the server's request for its first bytes.
    fn announce(&mut self, tensor: u64, ty: Ty) -> Vec<u8> {
        self.say(ClientMsg::Upload { tensor: TensorId(tensor), ty, data: None });
        self.say(ClientMsg::Carry { tensor: TensorId(tensor) });
        self.part()
    }

    fn upload(&mut self, tensor: u64, values: &[i64]) {
        let bytes = to_bytes(values);
        let mut source = Source::default();
        let mut word = self.announce(tensor, ints(values.len()));
        loop {
            let part = Part::decode(&word).unwrap();
            assert_eq!((part.what, part.name), (What::Taken, tensor), "{}", part.reason());
            source.feed(&bytes, &part).unwrap().into_iter().for_each(|p| self.peer.send_piece(p).unwrap());
            if source.is_done(bytes.len()) {
                return;
            }
            word = self.part();
        }
    }

    fn download(&mut self, tensor: u64, req: u64) -> Vec<u8> {
        let fetches = vec![Fetch { req, tensor: TensorId(tensor) }];
        self.say(ClientMsg::Batch(Batch { fetches, ..Batch::default() }));
        let total = loop {
            let SessionMsg::Update { values, .. } = self.hear() else { continue };
            let Some(value) = values.into_iter().find(|v| v.req == req) else { continue };
            let Payload::Bulk { ticket, .. } = value.result.unwrap() else { panic!("not by ticket") };
            break ticket.bytes;
        };
        self.say(ClientMsg::FetchRelay { req, tensor: TensorId(tensor), piece: None });
        let mut sink = Sink::new(Vec::new(), total);
        while !sink.is_full() {
            let piece = self.part();
            let part = Part::decode(&piece).unwrap();
            assert_eq!((part.what, part.name), (What::Bytes, req), "{}", part.reason());
            if let Some(word) = sink.fill(&part).unwrap() {
                self.send(&word);
            }
        }
        sink.into_bytes()
    }
}

/// A worker's real code.
struct Remote {
    backend: Arc<TestBackend>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Remote {
    fn start(addr: &Addr) -> Remote {
        let (backend, stop) = (TestBackend::new(1 << 30), Arc::new(AtomicBool::new(false)));
        let config = WorkerConfig {
            name: "w".into(),
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

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + WAIT;
    while !done() {
        assert!(Instant::now() < deadline, "{what} takes too long");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn large_tensors_of_two_clients_pass_both_ways_across_cuts() {
    let (_server, addr) = server();
    let (to_worker, to_client) = (Proxy::start(&addr), Proxy::start(&addr));
    let worker = Remote::start(&to_worker.addr);
    let client_addr = to_client.addr.clone();
    let over = Arc::new(AtomicBool::new(false));
    let cutting = {
        let over = over.clone();
        std::thread::spawn(move || {
            while !over.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(60));
                to_worker.cut();
                std::thread::sleep(Duration::from_millis(60));
                to_client.cut();
            }
        })
    };
    let clients: Vec<_> = [3, 4]
        .map(|factor| {
            let addr = client_addr.clone();
            std::thread::spawn(move || {
                let mut client = Hand::client(&addr);
                let values: Vec<i64> = (0..(3 * WINDOW as i64 / 8 + 5)).map(|i| i * factor).collect();
                client.upload(1, &values);
                assert!(client.download(1, 1) == *to_bytes(&values), "bytes were changed");
                (client, values)
            })
        })
        .into_iter()
        .collect();
    let clients: Vec<_> = clients.into_iter().map(|client| client.join().unwrap()).collect();
    over.store(true, Ordering::SeqCst);
    cutting.join().unwrap();
    // A client that says goodbye while it is cut would be waited for.
    for (mut client, values) in clients {
        assert!(client.download(1, 2) == *to_bytes(&values), "bytes were changed");
    }
    until("forgetting the clients", || worker.backend.used() == 0);
}

#[test]
fn a_slow_worker_holds_back_its_client_and_nobody_else() {
    let (_server, addr) = server();
    let mut worker = Hand::worker(&addr);
    let (mut large, mut other) = (Hand::client(&addr), Hand::client(&addr));
    let values = vec![7; 4 * WINDOW as usize / 8];
    let uploading = std::thread::spawn(move || {
        large.upload(1, &values);
        large
    });
    let WorkerCmd::Expect { .. } = worker.command() else { panic!("nothing expected") };
    let mut sink = Sink::new(Vec::new(), 4 * WINDOW);
    let mut word = None;
    for _ in 0..WINDOW / PIECE as u64 {
        word = sink.fill(&Part::decode(&worker.part()).unwrap()).unwrap().or(word);
    }
    // Nothing more comes until something was taken, but other sessions' messages do.
    assert_eq!(worker.events.recv_timeout(Duration::from_millis(300)), Err(RecvTimeoutError::Timeout));
    other.say(ClientMsg::Upload { tensor: TensorId(1), ty: ints(2), data: Some(to_bytes(&[1, 2])) });
    let WorkerCmd::Upload { .. } = worker.command() else { panic!("not the other's upload") };
    let mut bytes = 0;
    worker.send(&word.unwrap());
    while !sink.is_full() {
        let piece = worker.part();
        let part = Part::decode(&piece).unwrap();
        bytes += part.data.len();
        if let Some(word) = sink.fill(&part).unwrap() {
            worker.send(&word);
        }
    }
    assert_eq!(bytes as u64, 3 * WINDOW);
    assert!(sink.into_bytes() == *to_bytes(&vec![7; 4 * WINDOW as usize / 8]));
    uploading.join().unwrap();
}

#[test]
fn wrong_pieces_are_refused_and_cost_only_their_tensor() {
    let (_server, addr) = server();
    let mut worker = Hand::worker(&addr);
    let mut client = Hand::client(&addr);
    let data = vec![0; PIECE];
    let total = 4 * WINDOW;
    type Spoil = fn(Part) -> Part;
    let wrong: [(Spoil, &str); 3] = [
        (|p| Part { at: 5, ..p }, "expected those at 0"),
        (|p| Part { total: p.total + 8, ..p }, "expected those at 0"),
        (|p| Part { what: What::Taken, data: &[], ..p }, "opposite ways"),
    ];
    for (tensor, (spoil, text)) in (1..).zip(wrong) {
        let word = client.announce(tensor, ints(total as usize / 8));
        let ask = Part::decode(&word).unwrap();
        client.send(&spoil(Part { what: What::Bytes, total, data: &data, ..ask }));
        let reason = client.stop();
        assert!(reason.contains(text), "{reason}");
        let WorkerCmd::Expect { .. } = worker.command() else { panic!("nothing expected") };
        let WorkerCmd::Poison { failure, .. } = worker.command() else { panic!("not poisoned") };
        assert!(failure.error.to_string().contains(text), "{failure:?}");
    }
    // A client that ignores the window is stopped before the server holds more.
    let word = client.announce(9, ints(total as usize / 8));
    let ask = Part::decode(&word).unwrap();
    for at in (0..=WINDOW).step_by(PIECE) {
        client.send(&Part { what: What::Bytes, total, at, data: &data, ..ask });
    }
    assert!(client.stop().contains("may be on their way"));
    // Another's transfer is out of reach, and an upload that nobody knows is answered.
    let thief = Hand::client(&addr);
    let word = client.announce(10, ints(total as usize / 8));
    let ask = Part::decode(&word).unwrap();
    thief.send(&ask.stop("stolen"));
    client.say(ClientMsg::Carry { tensor: TensorId(77) });
    assert!(client.stop().contains("nobody waits"));
}

#[test]
fn those_who_vanish_leave_nothing_behind() {
    let (_server, addr) = server();
    let mut worker = Hand::worker(&addr);
    let (mut first, mut second) = (Hand::client(&addr), Hand::client(&addr));
    let data = vec![0; PIECE];
    let total = 4 * WINDOW;
    let begin = |client: &mut Hand| {
        let word = client.announce(1, ints(total as usize / 8));
        let ask = Part::decode(&word).unwrap();
        client.send(&Part { what: What::Bytes, total, data: &data, ..ask });
    };
    begin(&mut first);
    assert_eq!(Part::decode(&worker.part()).unwrap().data.len(), PIECE);
    drop(first);
    let (mut stopped, mut ended) = (false, false);
    while !(stopped && ended) {
        match worker.event() {
            Event::Piece(bytes) => stopped |= Part::decode(&bytes).unwrap().what == What::Stop,
            Event::Message(bytes) => {
                let command = decode_worker(&bytes, &mut worker.interner).unwrap();
                ended |= matches!(command, Some(WorkerCmd::End { .. }));
            }
            other => panic!("{other:?}"),
        }
    }
    begin(&mut second);
    worker.part();
    drop(worker);
    assert!(second.stop().contains("the worker is gone"));
}

#[test]
fn a_download_is_stopped_when_its_worker_cannot_go_on() {
    let (_server, addr) = server();
    let mut worker = Hand::worker(&addr);
    let mut client = Hand::client(&addr);
    client.say(ClientMsg::Upload { tensor: TensorId(1), ty: ints(2), data: Some(to_bytes(&[1, 2])) });
    client.say(ClientMsg::FetchRelay { req: 5, tensor: TensorId(1), piece: None });
    let session = loop {
        match worker.command() {
            WorkerCmd::Send { session, goal: None, .. } => break session,
            WorkerCmd::Upload { .. } => {}
            other => panic!("{other:?}"),
        }
    };
    let moved = WorkerMsg::Moved { session, tensor: TensorId(1), goal: None, result: Ok(None) };
    worker.peer.send(encode(&moved)).unwrap();
    let word = worker.part();
    let ask = Part::decode(&word).unwrap();
    assert_eq!((SessionId(ask.session), ask.name), (session, 1));
    worker.send(&ask.stop("no memory"));
    let stop = client.part();
    let stop = Part::decode(&stop).unwrap();
    assert_eq!((stop.what, stop.name, stop.reason()), (What::Stop, 5, "no memory".into()));
}
