//! A worker process: finds its server, registers, serves; when the link is lost for good it starts over.

use crate::aside::Aside;
use crate::relay::Relays;
use crate::road::Store;
use crate::worker::{Worker, WorkerConfig};
use gt_ir::{Error, Result};
use gt_net::addr::Addr;
use gt_net::bulk::{BulkServer, BulkServerOptions, TicketKey};
use gt_net::handshake::Role;
use gt_net::intern::{Interner, decode_worker, encode};
use gt_net::msg::WorkerMsg;
use gt_net::peer::{ConnectError, Event, HelloOptions, Peer};
use gt_net::port::SendError;
use gt_net::spin::Habit;
use gt_sync::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a worker with a broken device goes on telling what has become of programs.
const GRACE: Duration = Duration::from_millis(500);

/// How a worker process is reached by clients and other workers.
#[derive(Clone, Debug, Default)]
pub struct DataPlane {
    /// The host name under which others find it (`--advertise`); unless given, the address the server sees.
    pub advertise: Option<String>,
    /// The port for tensor bytes (`--data-port`); 0 picks a free one.
    pub port: u16,
}

/// Runs a worker until `stop` is set: connects to the server at `addr`, waiting until there is one, and does
/// what it says. `said` hears of comings and goings, for the console. A device that breaks is an error: only another
/// process can use it again.
pub fn run(
    addr: &Addr,
    token: Option<String>,
    config: WorkerConfig,
    plane: &DataPlane,
    stop: &Arc<AtomicBool>,
    said: &dyn Fn(&str),
) -> Result<()> {
    while !stop.load(Ordering::Relaxed) {
        let why = serve(addr, token.as_deref(), &config, plane, stop, said)?;
        if let Some(why) = config.backend.broken() {
            return Err(Error::Runtime(why));
        }
        if !stop.load(Ordering::Relaxed) {
            said(&format!("lost the server at {addr} ({why}): connecting again"));
        }
    }
    Ok(())
}

/// One registration, from connecting to the loss of the link; gives the reason it ended. Each has a worker of its
/// own, so nothing of an old server's sessions reaches a new one.
fn serve(
    addr: &Addr,
    token: Option<&str>,
    config: &WorkerConfig,
    plane: &DataPlane,
    stop: &Arc<AtomicBool>,
    said: &dyn Fn(&str),
) -> Result<String> {
    let line = Arc::new(Line::default());
    let say = line.clone();
    let worker = Arc::new(Worker::start(config.clone(), Box::new(move |message| say.say(&message))));
    let _ = worker.core().habit.set(Habit::across());
    let _ = worker.core().aside.set(Aside::new(&*config.backend));
    let carry = line.clone();
    let _ = worker.core().relays.set(Relays::new(Box::new(move |part| carry.carry(part))));
    let bulk = open_plane(&worker, addr, token, plane)?;
    let options = HelloOptions {
        token: token.map(str::to_string),
        body: encode(&worker.measured_info()),
        connect_retry: Some(stop.clone()),
        ..HelloOptions::new(Role::Worker)
    };
    let (ears, hands) = (line.clone(), worker.clone());
    let (mut interner, mut off) = (Interner::new(), 0);
    let on_event = move |event| match event {
        Event::Message(bytes) => match decode_worker(&bytes, &mut interner) {
            Ok(Some(command)) => {
                hands.handle(command);
                hands.core().aside.get().into_iter().flatten().for_each(|aside| aside.keep_off(&mut off));
            }
            Ok(None) => {}
            Err(error) => ears.end(error.to_string()),
        },
        Event::Piece(bytes) => {
            if let Err(error) = hands.piece(bytes) {
                ears.end(error.to_string());
            }
        }
        Event::Lost(reason) => ears.end(reason),
        Event::Cut | Event::Resumed => {}
    };
    let peer = match Peer::connect(addr, options, Box::new(on_event)) {
        Ok((peer, _)) => peer,
        Err(ConnectError::Stopped { .. }) => return Ok("stopped".into()),
        Err(error) => return Err(Error::Connection(error.to_string())),
    };
    said(&format!("registered with the server at {addr}"));
    line.open(peer.clone());
    let why = line.wait(stop, &|| config.backend.broken());
    // No message of this registration leaves from here on, and the circle of worker and link is cut.
    line.end(why.clone());
    peer.close();
    drop((peer, bulk, worker));
    Ok(why)
}

fn open_plane(worker: &Worker, addr: &Addr, token: Option<&str>, plane: &DataPlane) -> Result<BulkServer> {
    let key = TicketKey::random();
    // Without a token the worker listens on loopback only, as its server does (C14).
    let local = matches!(addr, Addr::Unix(_)) || (token.is_none() && plane.advertise.is_none());
    let host = if local { "127.0.0.1" } else { "0.0.0.0" };
    let options = BulkServerOptions {
        host: Some(host.into()),
        port: plane.port,
        advertise: plane.advertise.clone(),
        unix: true,
        key: key.clone(),
    };
    let store = Arc::new(Store(worker.core().clone()));
    let bulk = BulkServer::start(options, store).map_err(|e| {
        Error::Connection(format!("worker: cannot listen for tensor bytes on {host}:{}: {e}", plane.port))
    })?;
    let _ = worker.core().plane.set((bulk.endpoint().clone(), key));
    Ok(bulk)
}

/// The way back to the server: messages wait until it is open, and go nowhere once it has ended.
#[derive(Default)]
struct Line {
    state: Mutex<LineState>,
    changed: Condvar,
}

#[derive(Default)]
struct LineState {
    peer: Option<Peer>,
    ended: Option<String>,
}

impl Line {
    fn open(&self, peer: Peer) {
        self.state.lock().peer = Some(peer);
        self.changed.notify_all();
    }

    fn end(&self, why: String) {
        let mut state = self.state.lock();
        let peer = state.peer.take();
        state.ended.get_or_insert(why);
        drop(state);
        self.changed.notify_all();
        drop(peer);
    }

    fn say(&self, message: &WorkerMsg) {
        self.with_peer(|peer| peer.send(encode(message)));
    }

    fn carry(&self, part: Vec<u8>) {
        self.with_peer(|peer| peer.send_piece(part));
    }

    fn with_peer(&self, send: impl FnOnce(&Peer) -> Result<(), SendError>) {
        let mut state = self.state.lock();
        while state.peer.is_none() && state.ended.is_none() {
            self.changed.wait(&mut state);
        }
        let Some(peer) = state.peer.clone() else { return };
        drop(state);
        if let Err(error) = send(&peer) {
            self.end(error.to_string());
        }
    }

    /// Waits for the end of the link, for `stop`, or until the device is broken.
    fn wait(&self, stop: &AtomicBool, broken: &dyn Fn() -> Option<String>) -> String {
        let mut state = self.state.lock();
        loop {
            if let Some(why) = &state.ended {
                return why.clone();
            }
            if stop.load(Ordering::Relaxed) {
                return "stopped".into();
            }
            if let Some(why) = broken() {
                // Whoever waits for a program hears of it first.
                drop(state);
                std::thread::sleep(GRACE);
                return why;
            }
            self.changed.wait_for(&mut state, Duration::from_millis(100));
        }
    }
}
