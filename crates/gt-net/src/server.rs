//! The accepting end: one thread that reads frames, runs the handler, and writes its replies.

use std::any::Any;
use std::io;
use std::sync::Arc;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

pub use crate::listen::{BindError, Listener, bind, bind_unix};
pub use crate::outbox::{Outbox, PeerId};

use crate::addr::Addr;
use crate::handshake::{Hello, Refusal, VERSIONS, Versions};
use crate::link::Limits;
use crate::serving;

/// What a server is told by its network, all on one thread. Calls must be short: nothing else runs meanwhile.
pub trait Handler {
    /// A peer has introduced itself; gives the Welcome's body. It may already be sent messages.
    fn connected(&mut self, peer: PeerId, hello: &Hello, out: &mut Outbox) -> Result<Vec<u8>, Refusal>;

    /// A message came.
    fn message(&mut self, peer: PeerId, payload: &[u8], out: &mut Outbox);

    /// A piece of a relayed tensor came, or a word about one.
    fn piece(&mut self, _peer: PeerId, _payload: &[u8], _out: &mut Outbox) {}

    /// The connection was cut; the peer may come back, and messages to it are kept.
    fn cut(&mut self, _peer: PeerId, _out: &mut Outbox) {}

    /// The peer is back, and nothing was lost.
    fn resumed(&mut self, _peer: PeerId, _out: &mut Outbox) {}

    /// The peer is gone for good.
    fn gone(&mut self, peer: PeerId, reason: &str, out: &mut Outbox);

    /// About every 100 ms, with the milliseconds since the server started.
    fn tick(&mut self, _now_ms: u64, _out: &mut Outbox) {}

    /// Something came from another thread of this process.
    fn injected(&mut self, _payload: Box<dyn Any + Send>, _out: &mut Outbox) {}
}

/// What a server asks of its peers.
#[derive(Clone)]
pub struct ServerOptions {
    /// The token every peer must know.
    pub token: Option<String>,
    /// The protocol versions spoken.
    pub versions: Versions,
    /// The server's name, for logs.
    pub name: String,
    /// Times and sizes of each link; a peer that lets more than `unacked_bytes` wait is dropped.
    pub limits: Limits,
    /// Peers served at a time.
    pub max_peers: usize,
}

impl Default for ServerOptions {
    fn default() -> Self {
        let name = concat!("gt ", env!("CARGO_PKG_VERSION")).into();
        ServerOptions { token: None, versions: VERSIONS, name, limits: Limits::default(), max_peers: 4096 }
    }
}

/// Reaches a running server from any thread.
#[derive(Clone, Debug)]
pub struct ServerHandle {
    commands: UnboundedSender<Command>,
    addrs: Arc<[Addr]>,
}

pub(crate) enum Command {
    Shutdown,
    Inject(Box<dyn Any + Send>),
}

/// The server's side of its handle; given to `serve`.
pub struct Shutdown {
    pub(crate) commands: UnboundedReceiver<Command>,
    /// Keeps the channel open when every handle is dropped.
    _open: UnboundedSender<Command>,
}

impl ServerHandle {
    /// A handle for a server on these listeners, and what `serve` needs to obey it.
    pub fn new(listeners: &[Listener]) -> (ServerHandle, Shutdown) {
        let (sender, commands) = unbounded_channel();
        let addrs = listeners.iter().map(Listener::addr).collect();
        (ServerHandle { commands: sender.clone(), addrs }, Shutdown { commands, _open: sender })
    }

    /// Ends the server: peers are told, `serve` returns.
    pub fn shutdown(&self) {
        let _ = self.commands.send(Command::Shutdown);
    }

    /// Hands a value to the handler's `injected`; false when the server has ended.
    pub fn inject(&self, payload: Box<dyn Any + Send>) -> bool {
        self.commands.send(Command::Inject(payload)).is_ok()
    }

    /// Where the server listens, with the ports it was given.
    pub fn local_addrs(&self) -> &[Addr] {
        &self.addrs
    }
}

/// Serves until told to shut down; the handler runs on this thread.
pub fn serve(
    listeners: Vec<Listener>,
    options: ServerOptions,
    handler: impl Handler + 'static,
    shutdown: Shutdown,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let tasks = tokio::task::LocalSet::new();
    tasks.block_on(&runtime, serving::run(listeners, options, handler, shutdown))
}
