//! The connecting end of a link, for clients and workers: blocking, on plain threads.
//!
//! `send` writes on the caller's thread; what the socket does not take at once is left to the I/O thread,
//! which reads, resends after a cut, and keeps the link alive.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::{self, JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use gt_sync::{Condvar, Mutex};
use rustix::event::Timespec;

pub use crate::connect::{ConnectError, HelloOptions};

use crate::addr::Addr;
use crate::connect::first_connection;
use crate::drivers::Drivers;
use crate::handshake::{Role, Welcome};
use crate::link::{Link, LinkError, Millis};
use crate::peer_io::{self, Io};
use crate::port::{Payload, Port, SendError};
use crate::spin::Habit;
use crate::stream::Stream;

/// What the I/O thread tells the owner of a peer, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A message from the server.
    Message(Vec<u8>),
    /// A piece of a relayed tensor, or a word about one.
    Piece(Vec<u8>),
    /// The connection was cut; it is being resumed.
    Cut,
    /// The connection is back, and nothing was lost.
    Resumed,
    /// The link is over, and why. Nothing follows.
    Lost(String),
}

/// The connecting end of a link. Clones share it; the last one dropped closes it.
#[derive(Clone)]
pub struct Peer {
    guard: Arc<Guard>,
}

struct Guard {
    shared: Arc<Shared>,
    io: Arc<Mutex<Io>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

pub(crate) struct Shared {
    pub addr: Addr,
    pub options: HelloOptions,
    pub state: Mutex<State>,
    /// Told when acknowledgements make room or the link ends.
    pub room: Condvar,
    /// Wakes whoever works the connection from its poll.
    pub wake: UnixStream,
    pub drivers: Drivers,
    /// How soon answers have come of late.
    pub habit: Habit,
    started: Instant,
    process: u32,
}

pub(crate) struct State {
    pub link: Link,
    pub stream: Option<Arc<Stream>>,
    pub closing: bool,
    pub lost: Option<String>,
    /// The thread that runs `on_event` now.
    pub reader: Option<ThreadId>,
}

impl State {
    fn is_over(&self) -> bool {
        self.closing || self.lost.is_some()
    }
}

impl Shared {
    pub fn now(&self) -> Millis {
        self.started.elapsed().as_millis() as Millis
    }

    pub fn wake(&self) {
        // A full pipe wakes just as well.
        let _ = io::Write::write(&mut &self.wake, &[1]);
    }

    /// Writes what the socket takes; a broken one is noticed by the I/O thread.
    pub fn flush(&self, state: &mut State) {
        if let Some(stream) = state.stream.clone() {
            let _ = stream.write_link(&mut state.link);
        }
    }

    fn forked(&self) -> bool {
        self.process != std::process::id()
    }
}

impl Peer {
    /// Connects and introduces itself. `on_event` is called on the I/O thread: it may send, and must be short.
    pub fn connect(
        addr: &Addr,
        options: HelloOptions,
        on_event: Box<dyn FnMut(Event) + Send>,
    ) -> Result<(Peer, Welcome), ConnectError> {
        let (stream, decoder, welcome) = first_connection(addr, &options)?;
        let io_error = |error| ConnectError::Io { addr: addr.clone(), error };
        let (wake, woken) = UnixStream::pair().map_err(io_error)?;
        wake.set_nonblocking(true).and(woken.set_nonblocking(true)).map_err(io_error)?;
        let stream = Arc::new(stream);
        let client = options.role == Role::Client;
        let shared = Arc::new(Shared {
            addr: addr.clone(),
            state: Mutex::new(State {
                link: Link::new(0, options.limits),
                stream: Some(stream.clone()),
                closing: false,
                lost: None,
                reader: None,
            }),
            options,
            room: Condvar::new(),
            wake,
            drivers: Drivers::new(),
            habit: if client { Habit::across() } else { Habit::default() },
            started: Instant::now(),
            process: std::process::id(),
        });
        let io = Io::new(shared.clone(), stream, woken, decoder, &welcome, on_event);
        let io = Arc::new(Mutex::new(io));
        let thread = {
            let (io, shared) = (io.clone(), shared.clone());
            let builder = thread::Builder::new().name("gt-net".into());
            builder.spawn(move || peer_io::run(&io, &shared)).map_err(io_error)?
        };
        Ok((Peer { guard: Arc::new(Guard { shared, io, thread: Mutex::new(Some(thread)) }) }, welcome))
    }

    /// Waits until `done`, working the connection on this thread: the quickest way to wait for an answer.
    /// `on_event` is called here meanwhile, so nothing it locks may be held. False when `until` passed or
    /// the link ended first.
    pub fn drive(&self, until: Instant, mut done: impl FnMut() -> bool) -> bool {
        let shared = &*self.guard.shared;
        if shared.forked() {
            return done();
        }
        loop {
            shared.drivers.enter(|| shared.wake());
            let ended = self.drive_connection(until, &mut done);
            shared.drivers.leave(ended.is_none());
            if let Some(done) = ended {
                return done;
            }
            // The I/O thread mends the connection.
            shared.drivers.wait();
        }
    }

    /// Drives one connection; `None` when it ended and has to be mended.
    fn drive_connection(&self, until: Instant, done: &mut impl FnMut() -> bool) -> Option<bool> {
        let shared = &*self.guard.shared;
        let (start, spin) = (Instant::now(), shared.habit.awake_a_moment());
        loop {
            if done() {
                shared.habit.took(start.elapsed());
                return Some(true);
            }
            let now = Instant::now();
            if now >= until || shared.state.lock().is_over() {
                return Some(done());
            }
            let Some(mut io) = self.guard.io.try_lock() else {
                shared.drivers.wait();
                continue;
            };
            if io.ended.is_some() {
                return None;
            }
            // What this thread waits for may have come on another while it took over.
            if done() {
                return Some(true);
            }
            let left = (until - now).min(Duration::from_millis(500));
            let nap = Timespec { tv_sec: 0, tv_nsec: left.as_nanos() as _ };
            io.ended = io.turn(nap, spin);
            drop(io);
            shared.drivers.progress.notify_all();
        }
    }

    /// Sends a message: delivered once and in order, across cuts. Waits only while too much is unacknowledged.
    pub fn send(&self, payload: impl Into<bytes::Bytes>) -> Result<(), SendError> {
        let shared = &*self.guard.shared;
        if shared.forked() {
            return Err(SendError::Forked);
        }
        let payload: bytes::Bytes = payload.into();
        let mut deadline = None;
        let mut state = shared.state.lock();
        loop {
            if let Some(reason) = &state.lost {
                return Err(SendError::Lost(reason.clone()));
            }
            if state.closing {
                return Err(SendError::Closed);
            }
            let behind = state.link.wants_write();
            match state.link.send(shared.now(), payload.clone()) {
                Ok(()) if behind => return Ok(()),
                Ok(()) => {
                    shared.flush(&mut state);
                    if state.link.wants_write() {
                        shared.wake();
                    }
                    return Ok(());
                }
                // The thread that reads makes the room, so it cannot wait for it.
                Err(error @ LinkError::Full { .. }) if state.reader != Some(thread::current().id()) => {
                    let until = *deadline.get_or_insert_with(|| Instant::now() + shared.options.send_timeout);
                    if Instant::now() >= until {
                        return Err(error.into());
                    }
                    shared.room.wait_until(&mut state, until);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends a piece of a relayed tensor: delivered once, and overtaken by messages. Never waits; its sender keeps to
    /// the receiver's credit.
    pub fn send_piece(&self, payload: impl Into<bytes::Bytes>) -> Result<(), SendError> {
        let shared = &*self.guard.shared;
        if shared.forked() {
            return Err(SendError::Forked);
        }
        let mut state = shared.state.lock();
        if let Some(reason) = &state.lost {
            return Err(SendError::Lost(reason.clone()));
        }
        if state.closing {
            return Err(SendError::Closed);
        }
        let behind = state.link.wants_write();
        state.link.send_piece(payload)?;
        if !behind {
            shared.flush(&mut state);
            if state.link.wants_write() {
                shared.wake();
            }
        }
        Ok(())
    }

    /// Says that something is to come that nobody waits for: it is read as soon as it is there, not with the next answer
    /// that somebody drives for.
    pub fn attend(&self) {
        self.guard.shared.drivers.want();
    }

    /// Bytes sent and not yet acknowledged by the server.
    pub fn unacked_bytes(&self) -> usize {
        self.guard.shared.state.lock().link.unacked_bytes()
    }

    /// Writes what was sent, says goodbye, and ends the I/O thread; waits two seconds at most.
    pub fn close(&self) {
        self.guard.close();
    }
}

impl Port for Peer {
    fn send(&self, payload: Payload) -> Result<(), SendError> {
        match payload {
            Payload::Bytes(bytes) => Peer::send(self, bytes),
            Payload::Local(_) => Err(SendError::NotBytes),
        }
    }

    fn close(&self) {
        Peer::close(self);
    }
}

impl Guard {
    fn close(&self) {
        if self.shared.forked() {
            return;
        }
        let mut state = self.shared.state.lock();
        if !state.closing {
            state.closing = true;
            let now = self.shared.now();
            state.link.close(now, "closed by the peer");
            self.shared.flush(&mut state);
        }
        drop(state);
        self.shared.room.notify_all();
        self.shared.wake();
        self.shared.drivers.call_back();
        let thread = self.thread.lock().take();
        // Called by `on_event`, the I/O thread cannot end before it returns.
        let inside = self.shared.state.lock().reader == Some(thread::current().id());
        if let Some(thread) =
            thread.filter(|thread| !inside && thread.thread().id() != thread::current().id())
        {
            let _ = thread.join();
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.close();
    }
}
