//! An echo server and a recording peer, for the tests.
#![allow(dead_code)]

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use gt_net::addr::Addr;
use gt_net::handshake::{Hello, Refusal, Role};
use gt_net::peer::{Event, HelloOptions, Peer};
use gt_net::server::{Handler, Listener, Outbox, PeerId, ServerHandle, ServerOptions, serve};

/// Every wait of a test ends after this.
pub const WAIT: Duration = Duration::from_secs(20);

/// Echoes messages, and tells the test what it sees.
pub struct Echo {
    pub seen: Sender<String>,
}

impl Handler for Echo {
    fn connected(&mut self, _: PeerId, hello: &Hello, _: &mut Outbox) -> Result<Vec<u8>, Refusal> {
        let _ = self.seen.send(format!("connected {:?}", hello.role));
        Ok(hello.body.iter().rev().copied().collect())
    }

    fn message(&mut self, peer: PeerId, payload: &[u8], out: &mut Outbox) {
        match payload {
            b"panic" => panic!("asked to"),
            b"disconnect" => out.disconnect(peer, "as asked"),
            b"flood" => (0..100).for_each(|_| out.send(peer, vec![0; 1 << 20])),
            _ => out.send(peer, payload.to_vec()),
        }
    }

    fn cut(&mut self, _: PeerId, _: &mut Outbox) {
        let _ = self.seen.send("cut".into());
    }

    fn resumed(&mut self, _: PeerId, _: &mut Outbox) {
        let _ = self.seen.send("resumed".into());
    }

    fn gone(&mut self, _: PeerId, reason: &str, _: &mut Outbox) {
        let _ = self.seen.send(format!("gone: {reason}"));
    }

    fn injected(&mut self, payload: Box<dyn std::any::Any + Send>, out: &mut Outbox) {
        if let Ok(sent) = payload.downcast::<(PeerId, Vec<u8>)>() {
            out.send(sent.0, sent.1);
        }
    }
}

pub struct Server {
    pub handle: ServerHandle,
    pub seen: Receiver<String>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub fn start(listener: Listener, options: ServerOptions) -> Server {
        let listeners = vec![listener];
        let (handle, shutdown) = ServerHandle::new(&listeners);
        let (sender, seen) = channel();
        let thread =
            thread::spawn(move || serve(listeners, options, Echo { seen: sender }, shutdown).unwrap());
        Server { handle, seen, thread: Some(thread) }
    }

    pub fn tcp(options: ServerOptions) -> Server {
        Server::start(gt_net::server::bind("localhost", 0, None).unwrap(), options)
    }

    pub fn addr(&self) -> Addr {
        self.handle.local_addrs()[0].clone()
    }

    /// Waits until the server says `what`.
    pub fn expect(&self, what: &str) {
        let seen = self.seen.recv_timeout(WAIT).unwrap_or_else(|_| panic!("waited for {what:?}"));
        assert!(seen.starts_with(what), "got {seen:?}, expected {what:?}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.handle.shutdown();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub fn connect(addr: &Addr) -> (Peer, Receiver<Event>) {
    let (sender, events) = channel();
    let on_event = Box::new(move |event| drop(sender.send(event)));
    let (peer, _) = Peer::connect(addr, HelloOptions::new(Role::Client), on_event).unwrap();
    (peer, events)
}

/// The next message; cuts and resumptions on the way are fine.
pub fn message(events: &Receiver<Event>) -> Vec<u8> {
    loop {
        match events.recv_timeout(WAIT).expect("no message in time") {
            Event::Message(bytes) | Event::Piece(bytes) => return bytes,
            Event::Cut | Event::Resumed => {}
            Event::Lost(reason) => panic!("lost: {reason}"),
        }
    }
}
