//! The dispatcher as a server: feeds the machine what the network brings, and sends what it says (C10).

use crate::machine::{Action, Carry, Config, Event, Machine};
use crate::reading::{Read, Reader};
use crate::routes::{Route, Routes, Spoiled};
use crate::shard::{Answer, divide_aside};
use gt_ir::{Error, Result};
use gt_net::addr::Addr;
use gt_net::bulk::now_ms;
use gt_net::handshake::{Hello, Reason, Refusal, Role, random_bytes};
use gt_net::intern::{Interner, Shelf, Written, decode, encode, encode_worker};
use gt_net::msg::{ClientMsg, SessionId, WorkerId, WorkerInfo, WorkerMsg};
use gt_net::server::{self, Handler, Outbox, PeerId, ServerHandle, ServerOptions};
use std::any::Any;
use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

/// How a server listens. Its instruction log is set by its own environment (`GT_INSTRUCTION_LOG`).
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The address to listen on; anything but loopback needs a token.
    pub host: String,
    /// The TCP port; 0 picks a free one.
    pub port: u16,
    /// What clients and workers must show.
    pub token: Option<String>,
    /// A unix socket to listen on too.
    pub unix: Option<PathBuf>,
}

/// A running server, on a thread of its own. Dropping it stops it.
pub struct Server {
    handle: server::ServerHandle,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens and serves.
    pub fn start(config: ServerConfig) -> Result<Server> {
        let failed = |e: &dyn std::fmt::Display| Error::Connection(format!("server: {e}"));
        let mut listeners =
            vec![server::bind(&config.host, config.port, config.token.as_deref()).map_err(|e| failed(&e))?];
        if let Some(path) = &config.unix {
            listeners.push(server::bind_unix(path).map_err(|e| failed(&e))?);
        }
        let (handle, shutdown) = server::ServerHandle::new(&listeners);
        let log = match std::env::var_os("GT_INSTRUCTION_LOG").filter(|path| !path.is_empty()) {
            Some(path) => Some(open_log(Path::new(&path))?),
            None => None,
        };
        let debug = gt_ir::env::on("GT_DEBUG_DISPATCHER");
        let machine = Config {
            epoch_ms: now_ms(),
            cluster: u64::from_ne_bytes(random_bytes()),
            address: handle.local_addrs().first().map(Addr::to_string).unwrap_or_default(),
            log: log.is_some() || debug,
            log_full: gt_ir::env::on("GT_INSTRUCTION_LOG_FULL"),
            ..Config::default()
        };
        let shell = Shell::new(Machine::new(machine), log, debug, handle.clone());
        let options = ServerOptions { token: config.token, ..ServerOptions::default() };
        let thread = std::thread::Builder::new().name("gt-dispatcher".into()).spawn(move || {
            if let Err(error) = server::serve(listeners, options, shell, shutdown) {
                gt_ir::say!("gt server: {error}");
            }
        });
        let thread = Some(thread.map_err(|e| failed(&e))?);
        Ok(Server { handle, thread })
    }

    /// Where it listens, with the ports it was given.
    pub fn addrs(&self) -> &[Addr] {
        self.handle.local_addrs()
    }

    /// Ends the server: clients and workers are told.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.handle.shutdown();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

fn open_log(path: &Path) -> Result<File> {
    let file = File::options().create(true).append(true).open(path);
    file.map_err(|e| Error::Value(format!("GT_INSTRUCTION_LOG: cannot write {}: {e}", path.display())))
}

/// A peer, with the structures it knows or has sent.
enum Who {
    Client(Reader),
    Worker(WorkerId, Interner),
}

/// How long a worker may be away before those who may wait for it are told.
const SOON_MS: u64 = 2_000;

/// The handler of the network's events.
struct Shell {
    machine: Machine,
    /// The way back from threads that plan.
    handle: ServerHandle,
    peers: HashMap<PeerId, Who>,
    workers: HashMap<WorkerId, PeerId>,
    next_worker: u32,
    /// Workers whose connections are cut: since when, and whether clients were told.
    away: HashMap<WorkerId, (u64, bool)>,
    actions: Vec<Action>,
    /// What many workers are sent.
    shelf: Shelf,
    /// Tensors that pass through this server in pieces.
    routes: Routes,
    log: Option<File>,
    /// Says on stderr what the log would (`GT_DEBUG_DISPATCHER=1`).
    debug: bool,
}

/// A division, and its structures as they will go to workers.
struct Planned {
    ask: u64,
    result: Answer,
    written: Vec<Written>,
}

/// What the workers of a division will be sent, each structure once.
fn written(result: &Answer) -> Vec<Written> {
    let Ok(Some(divided)) = result else { return Vec::new() };
    divided.structures().into_iter().map(Written::new).collect()
}

/// A client's session has the number of its peer: both are never used again.
fn session_of(peer: PeerId) -> SessionId {
    SessionId(peer.0)
}

impl Shell {
    fn new(machine: Machine, log: Option<File>, debug: bool, handle: ServerHandle) -> Shell {
        Shell {
            machine,
            handle,
            peers: HashMap::new(),
            workers: HashMap::new(),
            next_worker: 0,
            away: HashMap::new(),
            actions: Vec::new(),
            shelf: Shelf::default(),
            routes: Routes::default(),
            log,
            debug,
        }
    }

    fn step(&mut self, event: Event, out: &mut Outbox) {
        let mut actions = std::mem::take(&mut self.actions);
        self.machine.clock(out.now_us());
        self.machine.step(out.now_ms(), event, &mut actions);
        for action in actions.drain(..) {
            match action {
                Action::ToClient(session, message) => out.send(PeerId(session.0), encode(&message)),
                Action::ToWorker(worker, command) => {
                    let Some(peer) = self.workers.get(&worker) else { continue };
                    if let Some(Who::Worker(_, interner)) = self.peers.get_mut(peer) {
                        encode_worker(&command, interner, &mut self.shelf, |bytes| out.send(*peer, bytes));
                    }
                }
                Action::Carry(carry) => self.carry(carry, out),
                Action::Plan { ask, program } => {
                    let handle = self.handle.clone();
                    let started = divide_aside(program, move |result| {
                        let written = written(&result);
                        handle.inject(Box::new(Planned { ask, result, written }));
                    });
                    if let Err(error) = started {
                        self.step(Event::Planned { ask, result: Err(error) }, out);
                    }
                }
                Action::Log(line) => {
                    if self.debug {
                        gt_ir::say!("gt dispatcher: {line}");
                    }
                    if let Some(file) = &mut self.log {
                        // A full disk costs the log, not the server.
                        let _ = writeln!(file, "{line}");
                    }
                }
            }
        }
        self.actions = actions;
    }

    /// Opens a way for a tensor's bytes.
    fn carry(&mut self, carry: Carry, out: &mut Outbox) {
        let worker = carry.worker.and_then(|worker| self.workers.get(&worker)).copied();
        let route = Route::new(PeerId(carry.session.0), carry.session, carry.tensor, carry.way);
        match worker {
            Some(worker) => {
                if let Some(spoiled) = self.routes.add(route, worker, out) {
                    self.spoil(spoiled, out);
                }
            }
            None => route.refuse("the worker is gone, or nobody waits for the bytes any more", out),
        }
    }

    /// A tensor will never be whole: what waits for it fails.
    fn spoil(&mut self, spoiled: Spoiled, out: &mut Outbox) {
        let Spoiled { session, tensor, error } = spoiled;
        self.step(Event::Client(session, ClientMsg::Withdraw { tensor, error }), out);
    }

    /// A message has been read on another thread, and what waited behind it has its turn.
    fn read(&mut self, read: Read, out: &mut Outbox) {
        let Read { peer, interner, message, vouched, written } = read;
        match self.peers.get_mut(&peer) {
            Some(Who::Client(reader)) => reader.done(interner),
            Some(Who::Worker(..)) | None => return,
        }
        written.into_iter().for_each(|written| self.shelf.add(written));
        self.step(Event::Vouched(vouched), out);
        match message {
            Ok(message) => self.step(Event::Client(session_of(peer), message), out),
            Err(error) => return self.refuse(peer, &error, out),
        }
        while let Some(Who::Client(reader)) = self.peers.get_mut(&peer)
            && let Some(payload) = reader.next()
        {
            self.message(peer, &payload, out);
        }
    }

    /// Workers that have been away for a while, of which clients were not told: how long nothing has been heard of each, and
    /// how long it may still come back.
    fn silent(&mut self, now_ms: u64, out: &Outbox) -> Vec<(WorkerId, u64, u64)> {
        let mut silent = Vec::new();
        for (worker, (since, told)) in &mut self.away {
            let away = now_ms.saturating_sub(*since);
            if *told || away < SOON_MS {
                continue;
            }
            *told = true;
            if let Some(peer) = self.workers.get(worker) {
                silent.push((*worker, out.silence_ms(*peer), out.resume_ms().saturating_sub(away)));
            }
        }
        silent
    }

    /// Ends a peer that says what cannot be understood.
    fn refuse(&mut self, peer: PeerId, error: &Error, out: &mut Outbox) {
        let reason = error.to_string();
        out.disconnect(peer, &reason);
        self.gone(peer, &reason, out);
    }
}

/// Puts the address the server sees in place of a worker's "any address".
fn reachable(mut info: WorkerInfo, seen: Option<IpAddr>) -> WorkerInfo {
    let host = info.endpoint.as_mut().and_then(|e| e.tcp.as_mut()).map(|(host, _)| host);
    if let (Some(host), Some(ip)) = (host.filter(|h| *h == "0.0.0.0" || *h == "::"), seen) {
        *host = ip.to_string();
    }
    info
}

impl Handler for Shell {
    fn connected(&mut self, peer: PeerId, hello: &Hello, out: &mut Outbox) -> Result<Vec<u8>, Refusal> {
        match hello.role {
            Role::Client => {
                let session = session_of(peer);
                let body = encode(&self.machine.welcome(session));
                let from = out.remote_ip(peer).map_or("unix".into(), |ip| ip.to_string());
                let name = format!("{from} #{}", peer.0);
                self.peers.insert(peer, Who::Client(Reader::new()));
                self.step(Event::ClientUp { session, name, vars: hello.vars.clone() }, out);
                Ok(body)
            }
            Role::Worker => {
                let info: WorkerInfo = decode(&hello.body)
                    .map_err(|e| Refusal::new(Reason::Malformed, format!("worker's introduction: {e}")))?;
                let worker = WorkerId(self.next_worker);
                self.next_worker += 1;
                self.peers.insert(peer, Who::Worker(worker, Interner::new()));
                self.workers.insert(worker, peer);
                let info = reachable(info, out.remote_ip(peer));
                self.step(Event::WorkerUp { worker, info }, out);
                Ok(encode(&worker))
            }
        }
    }

    fn message(&mut self, peer: PeerId, payload: &[u8], out: &mut Outbox) {
        let event = match self.peers.get_mut(&peer) {
            Some(Who::Client(reader)) => {
                let handle = self.handle.clone();
                let tell = move |read: Read| {
                    handle.inject(Box::new(read));
                };
                let Some(message) = reader.read(peer, payload, tell) else { return };
                message.map(|message| Event::Client(session_of(peer), message))
            }
            Some(Who::Worker(worker, _)) => {
                decode::<WorkerMsg>(payload).map(|message| Event::Worker(*worker, message))
            }
            None => return,
        };
        match event {
            Ok(event) => self.step(event, out),
            Err(error) => self.refuse(peer, &error, out),
        }
    }

    fn piece(&mut self, peer: PeerId, payload: &[u8], out: &mut Outbox) {
        match self.routes.part(peer, payload, out) {
            Ok(None) => {}
            Ok(Some(spoiled)) => self.spoil(spoiled, out),
            Err(error) => self.refuse(peer, &error, out),
        }
    }

    fn cut(&mut self, peer: PeerId, out: &mut Outbox) {
        if let Some(Who::Worker(worker, _)) = self.peers.get(&peer) {
            self.away.insert(*worker, (out.now_ms(), false));
        }
    }

    fn resumed(&mut self, peer: PeerId, out: &mut Outbox) {
        let Some(Who::Worker(worker, _)) = self.peers.get(&peer) else { return };
        let worker = *worker;
        if let Some((_, true)) = self.away.remove(&worker) {
            self.step(Event::WorkerBack(worker), out);
        }
    }

    fn gone(&mut self, peer: PeerId, reason: &str, out: &mut Outbox) {
        self.routes.gone(peer, reason, out);
        match self.peers.remove(&peer) {
            Some(Who::Client(_)) => self.step(Event::ClientGone(session_of(peer)), out),
            Some(Who::Worker(worker, _)) => {
                self.workers.remove(&worker);
                self.away.remove(&worker);
                self.step(Event::WorkerGone { worker, reason: reason.to_string() }, out);
            }
            None => {}
        }
    }

    fn injected(&mut self, payload: Box<dyn Any + Send>, out: &mut Outbox) {
        let payload = match payload.downcast::<Read>() {
            Ok(read) => return self.read(*read, out),
            Err(payload) => payload,
        };
        if let Ok(planned) = payload.downcast::<Planned>() {
            let Planned { ask, result, written } = *planned;
            written.into_iter().for_each(|written| self.shelf.add(written));
            self.step(Event::Planned { ask, result }, out);
        }
    }

    fn tick(&mut self, now_ms: u64, out: &mut Outbox) {
        for (worker, silent_ms, left_ms) in self.silent(now_ms, out) {
            self.step(Event::WorkerSilent { worker, silent_ms, left_ms }, out);
        }
        if self.machine.wants_tick() {
            self.step(Event::Tick, out);
        }
    }
}
