//! Cut connections: a proxy between peer and server breaks them, and nothing is lost.

mod common;
#[path = "common/proxy.rs"]
mod proxy;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use common::{Server, WAIT, connect, message};
use gt_net::handshake::Role;
use gt_net::link::Limits;
use gt_net::peer::{Event, HelloOptions, Peer};
use gt_net::server::ServerOptions;
use proxy::Proxy;

#[test]
fn a_cut_connection_resumes_with_nothing_lost() {
    let server = Server::tcp(ServerOptions::default());
    let proxy = Proxy::start(&server.addr());
    let (peer, events) = connect(&proxy.addr);
    let count = 5_000u32;
    let payload = |i: u32| i.to_le_bytes().repeat(1 + (i as usize * 7) % 500);
    let sending = thread::spawn(move || {
        for i in 0..count {
            peer.send(payload(i)).unwrap();
        }
        peer
    });
    for i in 0..count {
        assert!(message(&events) == payload(i), "message {i} lost, doubled or changed");
        if i % 500 == 250 {
            proxy.cut();
        }
    }
    let peer = sending.join().unwrap();
    proxy.cut();
    peer.send(b"sent while cut".to_vec()).unwrap();
    assert_eq!(message(&events), b"sent while cut");
    let seen: Vec<String> = server.seen.try_iter().collect();
    assert!(seen.iter().any(|s| s == "resumed"), "{seen:?}");
    assert!(!seen.iter().any(|s| s.starts_with("gone")), "{seen:?}");
}

#[test]
fn a_driver_survives_cuts() {
    let server = Server::tcp(ServerOptions::default());
    let proxy = Proxy::start(&server.addr());
    let count = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counting = count.clone();
    let on_event = Box::new(move |event| {
        if let Event::Message(_) = event {
            counting.fetch_add(1, Ordering::SeqCst);
        }
    });
    let (peer, _) = Peer::connect(&proxy.addr, HelloOptions::new(Role::Client), on_event).unwrap();
    for round in 1..=1000 {
        peer.send(vec![1; 10]).unwrap();
        if round % 100 == 50 {
            proxy.cut();
        }
        assert!(peer.drive(Instant::now() + WAIT, || count.load(Ordering::SeqCst) >= round), "round {round}");
    }
    assert_eq!(count.load(Ordering::SeqCst), 1000);
}

#[test]
fn a_cut_that_lasts_loses_the_link_on_both_sides() {
    let limits = Limits { resume_ms: 600, ..Limits::default() };
    let server = Server::tcp(ServerOptions { limits, ..Default::default() });
    let proxy = Proxy::start(&server.addr());
    let (peer, events) = connect(&proxy.addr);
    server.expect("connected");
    proxy.open.store(false, Ordering::SeqCst);
    proxy.cut();
    server.expect("cut");
    server.expect("gone: the connection was cut");
    proxy.open.store(true, Ordering::SeqCst);
    assert_eq!(events.recv_timeout(WAIT).unwrap(), Event::Cut);
    match events.recv_timeout(WAIT).unwrap() {
        Event::Lost(reason) => assert!(reason.contains("not known here"), "{reason}"),
        event => panic!("{event:?}"),
    }
    assert!(peer.send(vec![]).is_err());
}

#[test]
fn silence_is_noticed_and_mended() {
    let limits = Limits { heartbeat_ms: 100, silence_ms: 400, ..Limits::default() };
    let server = Server::tcp(ServerOptions { limits, ..Default::default() });
    // This peer beats each second only, which the server takes for silence.
    let (peer, events) = connect(&server.addr());
    server.expect("connected");
    server.expect("cut");
    server.expect("resumed");
    assert_eq!(events.recv_timeout(WAIT).unwrap(), Event::Cut);
    assert_eq!(events.recv_timeout(WAIT).unwrap(), Event::Resumed);
    peer.send(b"x".to_vec()).unwrap();
    assert_eq!(message(&events), b"x");
    thread::sleep(Duration::from_millis(10));
}
