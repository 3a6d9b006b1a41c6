//! Making a connection: who one is, one handshake, and trying again.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::addr::Addr;
use crate::frame::{Decoder, Frame, FrameError, Kind, MAX_PAYLOAD};
use crate::handshake::{Hello, MAX_HELLO, MAX_WELCOME, Refusal, Resume, Role, VERSIONS, Versions, Welcome};
use crate::link::Limits;
use crate::process::Process;
use crate::stream::Stream;

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
            process: Process::this(),
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

/// The first connection of a link, tried until it stands where the options say so.
pub(crate) fn first_connection(
    addr: &Addr,
    options: &HelloOptions,
) -> Result<(Stream, Decoder, Welcome), ConnectError> {
    let mut pause = Duration::from_millis(50);
    loop {
        let stopped = || options.connect_retry.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed));
        let error = match shake_hands(addr, options, None, stopped) {
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

/// How often a wait for the server's answer looks whether it was stopped.
const LOOK: Duration = Duration::from_millis(100);

/// One attempt, until `stopped`: connect, Hello, then Welcome or Refusal. The stream comes back nonblocking.
pub(crate) fn shake_hands(
    addr: &Addr,
    options: &HelloOptions,
    resume: Option<Resume>,
    stopped: impl Fn() -> bool,
) -> Result<(Stream, Decoder, Welcome), ConnectError> {
    let io_error = |error: io::Error| match error.kind() {
        // A server that ends while we connect resets the connection.
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset => {
            ConnectError::Refused { addr: addr.clone() }
        }
        io::ErrorKind::NotFound if matches!(addr, Addr::Unix(_)) => {
            ConnectError::Refused { addr: addr.clone() }
        }
        io::ErrorKind::WouldBlock => {
            let text = "no answer to the handshake in time: see whether the server is stopped or overloaded, then try again";
            let error = io::Error::new(io::ErrorKind::TimedOut, text);
            ConnectError::Io { addr: addr.clone(), error }
        }
        _ => ConnectError::Io { addr: addr.clone(), error },
    };
    let rejected = |refusal| ConnectError::Rejected { addr: addr.clone(), refusal };
    let not_gt = |error| ConnectError::NotGt { addr: addr.clone(), error };
    let hung_up = || {
        let text = "it hung up on the handshake: see whether it is a GT server, and try again";
        io_error(io::Error::new(io::ErrorKind::UnexpectedEof, text))
    };
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
    stream.set_timeouts(Some(LOOK)).map_err(io_error)?;
    let until = Instant::now() + options.connect_timeout;
    let mut decoder = Decoder::new(MAX_WELCOME);
    let mut buffer = [0; 4096];
    loop {
        if stopped() {
            return Err(ConnectError::Stopped { addr: addr.clone() });
        }
        let answer = match decoder.next().map_err(not_gt)? {
            None => {
                match stream.read(&mut buffer) {
                    Ok(0) => return Err(hung_up()),
                    Ok(count) => decoder.push(&buffer[..count]),
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock && Instant::now() < until => {}
                    Err(error) => return Err(io_error(error)),
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
