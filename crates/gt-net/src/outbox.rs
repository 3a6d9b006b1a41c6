//! The server's peers: their links, their connections, and what waits to be written to them.

use std::cell::Cell;
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Instant;

use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

use crate::frame::Frame;
use crate::handshake::{Resume, Welcome, random_bytes, same_bytes};
use crate::link::{Alive, Limits, Link, LinkError, Millis, Received};
use crate::process::Process;
use crate::stream::Stream;

/// Bytes that are written before others have a turn.
const AT_ONCE: usize = 1 << 20;

/// A peer's number at the server, the same across cuts and never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u64);

impl std::fmt::Display for PeerId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "peer {}", self.0)
    }
}

/// One accepted connection; its task ends when `over` is set.
pub(crate) struct Connection {
    pub fd: AsyncFd<Stream>,
    /// Tells the task that bytes are left to write or that it is over.
    pub notify: Notify,
    pub over: Cell<bool>,
}

impl Connection {
    pub fn new(fd: AsyncFd<Stream>) -> Rc<Self> {
        Rc::new(Connection { fd, notify: Notify::new(), over: Cell::new(false) })
    }

    fn end(&self) {
        self.over.set(true);
        self.notify.notify_one();
    }
}

struct Entry {
    link: Link,
    secret: [u8; 16],
    remote_ip: Option<IpAddr>,
    process: Process,
    connection: Option<Rc<Connection>>,
}

/// Where a handler puts what it has to say. Messages leave when the handler returns, or at `flush`.
pub struct Outbox {
    peers: HashMap<PeerId, Entry>,
    next: u64,
    limits: Limits,
    started: Instant,
    /// Peers with messages not yet tried on the socket.
    dirty: Vec<PeerId>,
    /// Peers dropped meanwhile, whose `gone` is still to be told.
    pub(crate) fallen: Vec<(PeerId, String)>,
}

impl Outbox {
    pub(crate) fn new(limits: Limits) -> Self {
        let (peers, dirty, fallen) = Default::default();
        Outbox { peers, next: 1, limits, started: Instant::now(), dirty, fallen }
    }

    /// Milliseconds since the server started.
    pub fn now_ms(&self) -> Millis {
        self.started.elapsed().as_millis() as Millis
    }

    /// Microseconds since the server started.
    pub fn now_us(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }

    /// Sends a message. To a peer that is cut it goes when the peer is back; to one that is gone, nowhere.
    pub fn send(&mut self, peer: PeerId, payload: impl Into<bytes::Bytes>) {
        let now = self.now_ms();
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        match entry.link.send(now, payload) {
            Ok(()) => {
                if self.dirty.last() != Some(&peer) {
                    self.dirty.push(peer);
                }
            }
            Err(error) => self.fall(peer, error.to_string()),
        }
    }

    /// Sends a piece of a relayed tensor; messages to the same peer overtake it.
    pub fn send_piece(&mut self, peer: PeerId, payload: impl Into<bytes::Bytes>) {
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        match entry.link.send_piece(payload) {
            Ok(()) => {
                if self.dirty.last() != Some(&peer) {
                    self.dirty.push(peer);
                }
            }
            Err(error) => self.fall(peer, error.to_string()),
        }
    }

    /// Ends a peer's link, telling it why. Its `gone` is not called.
    pub fn disconnect(&mut self, peer: PeerId, reason: &str) {
        let now = self.now_ms();
        if let Some(mut entry) = self.peers.remove(&peer) {
            entry.link.close(now, reason);
            if let Some(connection) = entry.connection {
                let _ = connection.fd.get_ref().write_link(&mut entry.link);
                connection.end();
            }
        }
    }

    /// The address a peer first connected from; `None` for unix sockets and peers that are gone.
    pub fn remote_ip(&self, peer: PeerId) -> Option<IpAddr> {
        self.peers.get(&peer).and_then(|entry| entry.remote_ip)
    }

    /// How many milliseconds a peer that is cut has to come back.
    pub fn resume_ms(&self) -> Millis {
        self.limits.resume_ms
    }

    /// Milliseconds since anything was heard of a peer.
    pub fn silence_ms(&self, peer: PeerId) -> Millis {
        self.peers.get(&peer).map_or(0, |entry| entry.link.silence(self.now_ms()))
    }

    /// Bytes sent to a peer and not yet acknowledged by it.
    pub fn unacked_bytes(&self, peer: PeerId) -> usize {
        self.peers.get(&peer).map_or(0, |entry| entry.link.unacked_bytes())
    }

    /// Writes at once what the sockets take; a handler that goes on working may call it in between. Where many peers are
    /// sent much, the rest is left to the tasks of their connections, so that others have a turn in between.
    pub fn flush(&mut self) {
        let mut written = 0;
        for peer in std::mem::take(&mut self.dirty) {
            if written < AT_ONCE {
                written += self.write_peer(peer);
            } else if let Some(Entry { connection: Some(connection), .. }) = self.peers.get(&peer) {
                connection.notify.notify_one();
            }
        }
    }

    /// Writes what the peer's socket takes, and has its connection's task see to the rest; gives how much it took.
    fn write_peer(&mut self, peer: PeerId) -> usize {
        let Some(Entry { link, connection: Some(connection), .. }) = self.peers.get_mut(&peer) else {
            return 0;
        };
        // A broken socket shows when the connection's task reads it.
        let written = connection.fd.get_ref().write_link(link).unwrap_or(0);
        if link.wants_write() {
            connection.notify.notify_one();
        }
        written
    }

    /// Writes what the peer's socket takes; true when some is left.
    pub(crate) fn flush_peer(&mut self, peer: PeerId) -> bool {
        self.write_peer(peer);
        self.wants_write(peer)
    }

    /// True when bytes wait for the socket.
    pub(crate) fn wants_write(&self, peer: PeerId) -> bool {
        self.peers.get(&peer).is_some_and(|entry| entry.link.wants_write())
    }

    /// Drops a peer on this side's account; `gone` follows.
    fn fall(&mut self, peer: PeerId, reason: String) {
        self.disconnect(peer, &reason);
        self.fallen.push((peer, reason));
    }

    pub(crate) fn count(&self) -> usize {
        self.peers.len()
    }

    /// A new peer whose connection opens with `welcome`; until then its messages are kept.
    pub(crate) fn add(&mut self, remote_ip: Option<IpAddr>, process: Process) -> PeerId {
        let now = self.now_ms();
        let mut link = Link::new(now, self.limits);
        link.cut(now);
        let peer = PeerId(self.next);
        self.next += 1;
        self.peers.insert(peer, Entry { link, secret: random_bytes(), remote_ip, process, connection: None });
        peer
    }

    /// The peer that `resume` proves to be, with what it should have received by now.
    pub(crate) fn find(&self, resume: &Resume) -> Option<PeerId> {
        let entry = self.peers.get(&PeerId(resume.link_id))?;
        same_bytes(&entry.secret, &resume.secret).then_some(PeerId(resume.link_id))
    }

    /// Opens a connection for a peer: the Welcome goes first, then what it has not received.
    pub(crate) fn welcome(
        &mut self,
        peer: PeerId,
        connection: Rc<Connection>,
        last_received: u64,
        mut welcome: Welcome,
    ) -> Result<(), LinkError> {
        let now = self.now_ms();
        let Some(entry) = self.peers.get_mut(&peer) else {
            connection.end();
            return Ok(());
        };
        welcome.link_id = peer.0;
        welcome.link_secret = entry.secret;
        welcome.last_received = entry.link.last_received();
        entry.link.welcome(now, last_received, welcome.encode())?;
        entry.connection = Some(connection);
        self.flush_peer(peer);
        Ok(())
    }

    /// Notes that a connection ended; true when it was the peer's current one and the peer is now cut.
    pub(crate) fn cut(&mut self, peer: PeerId, connection: &Rc<Connection>) -> bool {
        let now = self.now_ms();
        let Some(entry) = self.peers.get_mut(&peer) else { return false };
        let current = entry.connection.as_ref().is_some_and(|c| Rc::ptr_eq(c, connection));
        if current {
            entry.link.cut(now);
            entry.connection = None;
        }
        current
    }

    /// Drops the peer's connection, which another is about to replace; true when there was one.
    pub(crate) fn drop_connection(&mut self, peer: PeerId) -> bool {
        let now = self.now_ms();
        let Some(entry) = self.peers.get_mut(&peer) else { return false };
        entry.link.cut(now);
        entry.connection.take().inspect(|connection| connection.end()).is_some()
    }

    /// Takes a frame for a peer's link.
    pub(crate) fn receive<'a>(&mut self, peer: PeerId, frame: Frame<'a>) -> Result<Received<'a>, LinkError> {
        let now = self.now_ms();
        match self.peers.get_mut(&peer) {
            Some(entry) => entry.link.receive(now, frame),
            None => Ok(Received::Nothing),
        }
    }

    /// Forgets a peer that ended its link.
    pub(crate) fn remove(&mut self, peer: PeerId) -> bool {
        let entry = self.peers.remove(&peer);
        if let Some(connection) = entry.as_ref().and_then(|entry| entry.connection.as_ref()) {
            connection.end();
        }
        entry.is_some()
    }

    /// Heartbeats and timeouts of all links; gives the peers whose connections have fallen silent.
    pub(crate) fn tick(&mut self) -> Vec<PeerId> {
        let now = self.now_ms();
        let (mut silent, mut lost) = (Vec::new(), Vec::new());
        let mut ended = Vec::new();
        for (&peer, entry) in &mut self.peers {
            // A cut peer may come back, but not once its process is no more.
            if entry.connection.is_none() && entry.process.has_ended() {
                ended.push(peer);
                continue;
            }
            match entry.link.tick(now) {
                Alive::Yes if entry.link.wants_write() => self.dirty.push(peer),
                Alive::Yes => {}
                Alive::Silent => {
                    silent.push(peer);
                }
                Alive::Lost => lost.push(peer),
            }
        }
        for &peer in &silent {
            self.drop_connection(peer);
        }
        for peer in lost {
            self.fall(peer, "the connection was cut and not resumed in time".into());
        }
        for peer in ended {
            self.fall(peer, "its process ended".into());
        }
        self.flush();
        silent
    }

    /// Ends every link, telling the peers why.
    pub(crate) fn close(&mut self, reason: &str) {
        for peer in self.peers.keys().copied().collect::<Vec<_>>() {
            self.disconnect(peer, reason);
        }
    }
}
