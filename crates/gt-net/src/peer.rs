//! The connecting end of a link, for clients and workers: blocking, on plain threads.
//!
//! `send` writes on the caller's thread; what the socket does not take at once is left to the I/O thread,
//! which reads, resends after a cut, and keeps the link alive.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use thiserror::Error;

use crate::addr::Addr;
use crate::frame::{Decoder, Frame, FrameError, Kind, MAX_PAYLOAD};
use crate::handshake::{Hello, MAX_HELLO, MAX_WELCOME, Refusal, Resume, Role, VERSIONS, Versions, Welcome};
use crate::link::{Limits, Link, LinkError, Millis};
use crate::peer_io;
use crate::port::{Payload, Port, SendError};
use crate::stream::Stream;

/// What the I/O thread tells the owner of a peer, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A message from the server.
    Message(Vec<u8>),
    /// The connection was cut; it is being resumed.
    Cut,
    /// The connection is back, and nothing was lost.
    Resumed,
    /// The link is over, and why. Nothing follows.
    Lost(String),
}

/// How to introduce oneself, and how patient to be.
#[derive(Clone)]
pub struct HelloOptions {
    /// Client or worker.
    pub role: Role,
    /// The server's token, where it asks for one.
    pub token: Option<String>,
    /// The `GT_*` variables of this process.
    pub vars: Vec<(String, String)>,
    /// Name and version of this program, for logs.
    pub agent: String,
    /// For the meaning layer.
    pub body: Vec<u8>,
    /// The protocol versions spoken.
    pub versions: Versions,
    /// Times and sizes of the link.
    pub limits: Limits,
    /// The longest a connection attempt and its handshake may take.
    pub connect_timeout: Duration,
    /// The longest `send` waits for room when the server reads too slowly.
    pub send_timeout: Duration,
    /// When set, `connect` tries until a server appears or the flag becomes true.
    pub connect_retry: Option<Arc<AtomicBool>>,
}

impl HelloOptions {
    /// The usual options for a role, with the `GT_*` variables of a client's environment.
    pub fn new(role: Role) -> Self {
        // The token is sent as such; it is no setting to repeat in logs.
        let travels = |name: &str| name.starts_with("GT_") && !name.starts_with("GT_TOKEN");
        let vars = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .filter(|(name, _)| role == Role::Client && travels(name))
            .collect();
        HelloOptions {
            role,
            token: None,
            vars,
            agent: concat!("gt ", env!("CARGO_PKG_VERSION")).into(),
            body: Vec::new(),
            versions: VERSIONS,
            limits: Limits::default(),
            connect_timeout: Duration::from_secs(10),
            send_timeout: Duration::from_secs(60),
            connect_retry: None,
        }
    }

    fn hello(&self, resume: Option<Resume>) -> Hello {
        Hello {
            versions: self.versions,
            role: self.role,
            token: self.token.clone(),
            resume,
            vars: self.vars.clone(),
            agent: self.agent.clone(),
            body: self.body.clone(),
        }
    }
}

/// Why there is no connection.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// Nothing listens there.
    #[error("no GT server answers at {addr}: {}", start_hint(addr))]
    Refused {
        /// Where.
        addr: Addr,
    },
    /// The server refuses, and says why.
    #[error("the GT server at {addr} refuses: {refusal}")]
    Rejected {
        /// Where.
        addr: Addr,
        /// Its reason.
        refusal: Refusal,
    },
    /// Something answers that is no GT server.
    #[error("what answers at {addr} is no GT server: {error}")]
    NotGt {
        /// Where.
        addr: Addr,
        /// What is wrong with its answer.
        error: FrameError,
    },
    /// The system cannot connect.
    #[error("cannot connect to {addr}: {error}")]
    Io {
        /// Where.
        addr: Addr,
        /// What the system says.
        error: io::Error,
    },
    /// `connect_retry` was stopped.
    #[error("connecting to {addr} was stopped")]
    Stopped {
        /// Where.
        addr: Addr,
    },
}

fn start_hint(addr: &Addr) -> String {
    match addr {
        Addr::Tcp(_, port) => {
            format!("start one with `gt server -p {port}` (or python -m gt.server -p {port})")
        }
        Addr::Unix(path) => format!("start one with `gt server --unix {}`", path.display()),
    }
}

/// The connecting end of a link. Clones share it; the last one dropped closes it.
#[derive(Clone)]
pub struct Peer {
    guard: Arc<Guard>,
}

struct Guard {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

pub(crate) struct Shared {
    pub addr: Addr,
    pub options: HelloOptions,
    pub state: Mutex<State>,
    /// Told when acknowledgements make room or the link ends.
    pub room: Condvar,
    /// Wakes the I/O thread from its poll.
    pub wake: UnixStream,
    started: Instant,
    process: u32,
}

pub(crate) struct State {
    pub link: Link,
    pub stream: Option<Arc<Stream>>,
    pub closing: bool,
    pub lost: Option<String>,
    pub io_thread: Option<ThreadId>,
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
        let shared = Arc::new(Shared {
            addr: addr.clone(),
            state: Mutex::new(State {
                link: Link::new(0, options.limits),
                stream: Some(stream.clone()),
                closing: false,
                lost: None,
                io_thread: None,
            }),
            options,
            room: Condvar::new(),
            wake,
            started: Instant::now(),
            process: std::process::id(),
        });
        let io = peer_io::Io::new(shared.clone(), stream, woken, decoder, &welcome, on_event);
        let thread =
            thread::Builder::new().name("gt-net".into()).spawn(move || io.run()).map_err(io_error)?;
        shared.state.lock().io_thread = Some(thread.thread().id());
        Ok((Peer { guard: Arc::new(Guard { shared, thread: Mutex::new(Some(thread)) }) }, welcome))
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
                // The I/O thread makes the room, so it cannot wait for it.
                Err(error @ LinkError::Full { .. }) if state.io_thread != Some(thread::current().id()) => {
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
        let thread = self.thread.lock().take();
        if let Some(thread) = thread.filter(|t| t.thread().id() != thread::current().id()) {
            let _ = thread.join();
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.close();
    }
}

fn first_connection(addr: &Addr, options: &HelloOptions) -> Result<(Stream, Decoder, Welcome), ConnectError> {
    let mut pause = Duration::from_millis(50);
    loop {
        let error = match shake_hands(addr, options, None) {
            Err(error @ (ConnectError::Refused { .. } | ConnectError::Io { .. })) => error,
            done => return done,
        };
        let Some(stop) = &options.connect_retry else { return Err(error) };
        let until = Instant::now() + pause;
        while Instant::now() < until {
            if stop.load(Ordering::Relaxed) {
                return Err(ConnectError::Stopped { addr: addr.clone() });
            }
            thread::sleep(Duration::from_millis(20));
        }
        pause = (pause * 2).min(Duration::from_secs(2));
    }
}

/// One attempt: connect, Hello, then Welcome or Refusal. The stream comes back nonblocking.
pub(crate) fn shake_hands(
    addr: &Addr,
    options: &HelloOptions,
    resume: Option<Resume>,
) -> Result<(Stream, Decoder, Welcome), ConnectError> {
    let io_error = |error: io::Error| match error.kind() {
        io::ErrorKind::ConnectionRefused => ConnectError::Refused { addr: addr.clone() },
        io::ErrorKind::NotFound if matches!(addr, Addr::Unix(_)) => {
            ConnectError::Refused { addr: addr.clone() }
        }
        io::ErrorKind::WouldBlock => {
            let error = io::Error::new(io::ErrorKind::TimedOut, "no answer to the handshake in time");
            ConnectError::Io { addr: addr.clone(), error }
        }
        _ => ConnectError::Io { addr: addr.clone(), error },
    };
    let rejected = |refusal| ConnectError::Rejected { addr: addr.clone(), refusal };
    let not_gt = |error| ConnectError::NotGt { addr: addr.clone(), error };
    let hello = options.hello(resume).encode();
    if hello.len() > MAX_HELLO {
        let text = format!("hello: {} bytes, at most {MAX_HELLO}: unset large GT_* variables", hello.len());
        return Err(io_error(io::Error::new(io::ErrorKind::InvalidInput, text)));
    }
    let stream = Stream::connect(addr, options.connect_timeout).map_err(io_error)?;
    stream.set_timeouts(Some(options.connect_timeout)).map_err(io_error)?;
    stream
        .write_all(&Frame { kind: Kind::Hello, seq: 0, ack: 0, payload: &hello }.to_bytes())
        .map_err(io_error)?;
    let mut decoder = Decoder::new(MAX_WELCOME);
    let mut buffer = [0; 4096];
    loop {
        let answer = match decoder.next().map_err(not_gt)? {
            None => {
                match stream.read(&mut buffer).map_err(io_error)? {
                    0 => return Err(io_error(io::ErrorKind::UnexpectedEof.into())),
                    count => decoder.push(&buffer[..count]),
                }
                continue;
            }
            Some(frame) => match frame.kind {
                Kind::Welcome => Welcome::judge(frame.payload, options.versions),
                Kind::Refuse => Err(Refusal::decode(frame.payload)),
                other => return Err(not_gt(FrameError::Kind(other as u8))),
            },
        };
        let welcome = answer.map_err(rejected)?;
        decoder.set_max(MAX_PAYLOAD);
        stream.set_nonblocking(true).map_err(io_error)?;
        return Ok((stream, decoder, welcome));
    }
}
