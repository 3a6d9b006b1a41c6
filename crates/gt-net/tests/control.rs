//! Control connections end to end: echo, refusals, bad peers, slow peers, and the end of things.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{Server, WAIT, connect, message};
use gt_net::addr::Addr;
use gt_net::handshake::{Reason, Role, Versions};
use gt_net::link::Limits;
use gt_net::peer::{ConnectError, Event, HelloOptions, Peer};
use gt_net::port::SendError;
use gt_net::server::{PeerId, ServerOptions, bind, bind_unix};

fn socket_path(name: &str) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("gt-net-test-{}-{name}", std::process::id()))
}

fn try_connect(addr: &Addr, options: HelloOptions) -> Result<Peer, ConnectError> {
    Peer::connect(addr, options, Box::new(|_| {})).map(|(peer, _)| peer)
}

fn echoes(server: &Server) {
    let (peer, events) = connect(&server.addr());
    server.expect("connected Client");
    for size in [0, 1, 100, 70_000, 5 << 20] {
        let sent: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
        peer.send(sent.clone()).unwrap();
        assert!(message(&events) == sent, "{size} bytes came back changed");
    }
    peer.close();
    server.expect("gone: closed");
    assert!(matches!(peer.send(vec![]), Err(SendError::Lost(_) | SendError::Closed)));
    assert!(events.try_recv().is_err(), "a closed peer hears nothing more");
}

#[test]
fn tcp_echoes() {
    echoes(&Server::tcp(ServerOptions::default()));
}

#[test]
fn unix_echoes_and_takes_over_a_dead_socket() {
    let path = socket_path("echo");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let server = Server::start(bind_unix(&path).unwrap(), ServerOptions::default());
    echoes(&server);
    assert!(bind_unix(&path).unwrap_err().to_string().contains("in use"));
    drop(server);
    assert!(!path.exists());
}

#[test]
fn threads_that_wait_drive_the_connection() {
    let server = Server::tcp(ServerOptions::default());
    let counts: Arc<[std::sync::atomic::AtomicUsize]> = (0..4).map(|_| Default::default()).collect();
    let counting = counts.clone();
    let on_event = Box::new(move |event| {
        if let Event::Message(bytes) = event {
            counting[bytes[0] as usize].fetch_add(1, Ordering::SeqCst);
        }
    });
    // It sleeps in the first rounds and stays awake in the later ones, where answers have come quickly.
    let options = HelloOptions::new(Role::Client);
    let (peer, _) = Peer::connect(&server.addr(), options, on_event).unwrap();
    thread::scope(|scope| {
        for thread in 0..4u8 {
            let (peer, count) = (&peer, &counts[thread as usize]);
            scope.spawn(move || {
                for round in 1..=500 {
                    peer.send(vec![thread]).unwrap();
                    let done = || count.load(Ordering::SeqCst) == round;
                    assert!(peer.drive(Instant::now() + WAIT, done), "round {round} of thread {thread}");
                }
            });
        }
    });
    let start = Instant::now();
    assert!(!peer.drive(start + Duration::from_millis(30), || false));
    assert!(start.elapsed() >= Duration::from_millis(30));
    peer.close();
    assert!(!peer.drive(Instant::now() + WAIT, || false), "a closed peer is not waited for");
}

#[test]
fn hello_and_welcome_carry_bodies() {
    let server = Server::tcp(ServerOptions { name: "here".into(), ..Default::default() });
    let options = HelloOptions { body: vec![1, 2, 3], ..HelloOptions::new(Role::Worker) };
    let (_peer, welcome) = Peer::connect(&server.addr(), options, Box::new(|_| {})).unwrap();
    assert_eq!((welcome.body, welcome.server), (vec![3, 2, 1], "here".into()));
    server.expect("connected Worker");
}

#[test]
fn tokens_and_versions_are_asked_for() {
    let versions = Versions { min: 3, max: 4 };
    let server = Server::tcp(ServerOptions { token: Some("secret".into()), versions, ..Default::default() });
    let ask = |versions, token: Option<&str>| {
        let token = token.map(str::to_string);
        try_connect(&server.addr(), HelloOptions { versions, token, ..HelloOptions::new(Role::Client) })
    };
    for (asked, token, reason) in [
        (versions, None, Reason::Token),
        (versions, Some("secreT"), Reason::Token),
        (Versions { min: 1, max: 2 }, Some("secret"), Reason::Version),
        (Versions { min: 5, max: 5 }, Some("secret"), Reason::Version),
    ] {
        match ask(asked, token) {
            Err(ConnectError::Rejected { refusal, .. }) => assert_eq!(refusal.reason, reason),
            other => panic!("{:?}", other.err()),
        }
    }
    ask(versions, Some("secret")).unwrap();
}

#[test]
fn a_server_on_the_network_needs_a_token() {
    let error = bind("0.0.0.0", 0, None).unwrap_err().to_string();
    assert!(error.contains("--token-file"), "{error}");
    bind("0.0.0.0", 0, Some("secret")).unwrap();
}

#[test]
fn nobody_there_says_how_to_start_a_server() {
    let Addr::Tcp(_, port) = bind("localhost", 0, None).unwrap().addr() else { panic!() };
    let addr = Addr::Tcp("localhost".into(), port);
    let error = try_connect(&addr, HelloOptions::new(Role::Client)).err().unwrap();
    assert!(matches!(error, ConnectError::Refused { .. }));
    let expected = format!(
        "no GT server answers at localhost:{port}: start one with `gt server -p {port}` (or python -m gt.server -p {port})"
    );
    assert_eq!(error.to_string(), expected);
}

#[test]
fn a_worker_waits_for_its_server_or_for_the_stop() {
    let path = socket_path("retry");
    let addr = Addr::Unix(path.clone());
    let stop = Arc::new(AtomicBool::new(false));
    let options = HelloOptions { connect_retry: Some(stop.clone()), ..HelloOptions::new(Role::Worker) };
    let waiting = {
        let (addr, options) = (addr.clone(), options.clone());
        thread::spawn(move || try_connect(&addr, options))
    };
    thread::sleep(Duration::from_millis(150));
    let server = Server::start(bind_unix(&path).unwrap(), ServerOptions::default());
    waiting.join().unwrap().unwrap();
    drop(server);
    let waiting = thread::spawn(move || try_connect(&addr, options));
    stop.store(true, Ordering::Relaxed);
    assert!(matches!(waiting.join().unwrap(), Err(ConnectError::Stopped { .. })));
}

#[test]
fn garbage_harms_nobody() {
    let server = Server::tcp(ServerOptions::default());
    let Addr::Tcp(host, port) = server.addr() else { panic!() };
    let (peer, events) = connect(&server.addr());
    let mut state = 0x2545_f491_4f6c_dd1du64;
    for round in 0..200 {
        let mut bytes: Vec<u8> = (0..round * 7)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            })
            .collect();
        if round % 2 == 0 && bytes.len() > 30 {
            // A well-formed header around a broken hello goes deeper.
            bytes[..5].copy_from_slice(&[9, 0, 0, 0, 0x11]);
            bytes[21..25].copy_from_slice(b"GTnp");
        }
        let mut stream = TcpStream::connect((host.as_str(), port)).unwrap();
        let _ = stream.write_all(&bytes);
    }
    let mut stream = TcpStream::connect((host.as_str(), port)).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    stream.set_read_timeout(Some(WAIT)).unwrap();
    assert_eq!(stream.read(&mut [0; 100]).unwrap_or(0), 0, "the server answers no HTTP");
    peer.send(b"still here".to_vec()).unwrap();
    assert_eq!(message(&events), b"still here");
}

#[test]
fn what_is_no_gt_server_is_named() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr: Addr = listener.local_addr().unwrap().to_string().parse().unwrap();
    let answering = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"SSH-2.0-OpenSSH_9.6 some more text\r\n").unwrap();
    });
    let error = try_connect(&addr, HelloOptions::new(Role::Client)).err().unwrap();
    assert!(matches!(error, ConnectError::NotGt { .. }), "{error}");
    answering.join().unwrap();
}

#[test]
fn a_slow_reader_is_dropped_and_others_go_on() {
    let limits = Limits { unacked_bytes: 20 << 20, ..Limits::default() };
    let server = Server::tcp(ServerOptions { limits, ..Default::default() });
    let (slow, slow_events) = {
        let (sender, events) = std::sync::mpsc::channel();
        let on_event = Box::new(move |event: Event| {
            let _ = sender.send(event);
            thread::sleep(Duration::from_millis(500));
        });
        (Peer::connect(&server.addr(), HelloOptions::new(Role::Client), on_event).unwrap().0, events)
    };
    let (quick, events) = connect(&server.addr());
    (0..2).for_each(|_| server.expect("connected"));
    slow.send(b"flood".to_vec()).unwrap();
    server.expect("gone: link: ");
    let start = Instant::now();
    quick.send(b"hello".to_vec()).unwrap();
    assert_eq!(message(&events), b"hello");
    assert!(start.elapsed() < Duration::from_secs(2));
    drop(slow_events);
}

#[test]
fn a_panic_or_a_disconnect_ends_one_peer_only() {
    let server = Server::tcp(ServerOptions::default());
    let (other, others) = connect(&server.addr());
    server.expect("connected");
    for (say, reason) in [("panic", "the server failed"), ("disconnect", "as asked")] {
        let (peer, events) = connect(&server.addr());
        server.expect("connected");
        peer.send(say.as_bytes().to_vec()).unwrap();
        match events.recv_timeout(WAIT).unwrap() {
            Event::Lost(told) => assert!(told.contains(reason), "{told}"),
            event => panic!("{event:?}"),
        }
        if say == "panic" {
            server.expect("gone: the server failed");
        }
    }
    other.send(b"x".to_vec()).unwrap();
    assert_eq!(message(&others), b"x");
}

#[test]
fn a_shutdown_and_an_injection_reach_the_peers() {
    let server = Server::tcp(ServerOptions::default());
    let (_peer, events) = connect(&server.addr());
    server.expect("connected");
    assert!(server.handle.inject(Box::new((PeerId(1), b"from outside".to_vec()))));
    assert_eq!(message(&events), b"from outside");
    drop(server);
    match events.recv_timeout(WAIT).unwrap() {
        Event::Lost(reason) => assert!(reason.contains("shuts down"), "{reason}"),
        event => panic!("{event:?}"),
    }
}
