//! A link to a server: messages over a socket, tensor bytes straight to and from the workers (C11).

use crate::relay::{Heard, Relays};
use crate::session::{Link, OnMsg, Session, Settings};
use gt_ir::{Error, Result, TensorId, Ty};
use gt_net::addr::Addr;
use gt_net::bulk::BulkClient;
use gt_net::handshake::Role;
use gt_net::intern::{Interner, decode, encode_client};
use gt_net::link::Limits;
use gt_net::msg::{ClientMsg, Failure, Payload, Piece, SessionMsg, SessionWelcome, Value};
use gt_net::peer::{Event, HelloOptions, Peer};
use gt_net::relay::PIECE;
use gt_net::shm::Shm;
use gt_sync::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Connects to a server and opens a session there.
pub fn connect(addr: &str, token: Option<String>, settings: Settings) -> Result<Arc<Session>> {
    let addr: Addr = addr.parse().map_err(|e| Error::Value(format!("connect: {e}")))?;
    Session::open(Box::new(move |on_msg| open(addr, token, on_msg)), settings)
}

/// Bytes of messages the server has not acknowledged before uploads wait: well below where the link itself stops.
const MAX_UNACKED: usize = 128 << 20;
/// Bytes on their way to workers before further uploads wait.
const MAX_STAGED: usize = 1 << 30;

/// A connection that is back by then is not worth a word.
const SOON: Duration = Duration::from_secs(2);

/// What the socket's thread and the bulk threads share.
struct Road {
    peer: OnceLock<Peer>,
    interner: Mutex<Interner>,
    bulk: Arc<BulkClient>,
    /// Bytes that wait for a grant.
    uploads: Mutex<HashMap<TensorId, Shm>>,
    /// What passes through the server in pieces.
    relays: Mutex<Relays>,
    /// Values of which pieces come through the server one after the other: the pieces, and which comes next.
    halves: Mutex<HashMap<u64, (Vec<Piece>, usize)>>,
    /// Bytes of uploads that have not reached their worker yet.
    staged: AtomicUsize,
    /// Bytes of the download that is under way: come so far, and in all.
    come: AtomicUsize,
    /// The most bytes that were staged since none were.
    most: AtomicUsize,
    coming: AtomicUsize,
    /// Since when the connection is cut, and whether that was said.
    cut: Mutex<Option<(Instant, bool)>>,
    on_msg: Mutex<OnMsg>,
    addr: Addr,
}

struct RemoteLink {
    road: Arc<Road>,
}

fn open(addr: Addr, token: Option<String>, on_msg: OnMsg) -> Result<(Arc<dyn Link>, SessionWelcome)> {
    let road = Arc::new(Road {
        peer: OnceLock::new(),
        interner: Mutex::new(Interner::new()),
        bulk: BulkClient::new(),
        uploads: Mutex::default(),
        relays: Mutex::default(),
        halves: Mutex::default(),
        staged: AtomicUsize::new(0),
        come: AtomicUsize::new(0),
        most: AtomicUsize::new(0),
        coming: AtomicUsize::new(0),
        cut: Mutex::default(),
        on_msg: Mutex::new(on_msg),
        addr: addr.clone(),
    });
    let uploads = bulk_thread("gt-upload", &road)?;
    let downloads = bulk_thread("gt-download", &road)?;
    let receiver = road.clone();
    let on_event = Box::new(move |event| receiver.receive(event, &uploads, &downloads));
    let options = HelloOptions { token, ..HelloOptions::new(Role::Client) };
    let (peer, welcome) =
        Peer::connect(&addr, options, on_event).map_err(|e| Error::Connection(e.to_string()))?;
    let session: SessionWelcome = decode(&welcome.body)?;
    let _ = road.peer.set(peer);
    Ok((Arc::new(RemoteLink { road }), session))
}

/// A transfer to be made aside, so that control messages never wait for bytes.
type Job = Box<dyn FnOnce(&Road) + Send>;

fn bulk_thread(name: &str, road: &Arc<Road>) -> Result<Sender<Job>> {
    let (send, jobs) = channel::<Job>();
    let road = Arc::downgrade(road);
    std::thread::Builder::new()
        .name(name.into())
        .spawn(move || {
            for job in jobs {
                let Some(road) = road.upgrade() else { return };
                job(&road);
            }
        })
        .map_err(|e| Error::Runtime(format!("connect: cannot start a thread: {e}")))?;
    Ok(send)
}

impl Road {
    fn receive(&self, event: Event, uploads: &Sender<Job>, downloads: &Sender<Job>) {
        match event {
            Event::Message(bytes) => match decode::<SessionMsg>(&bytes) {
                Ok(msg) => self.take(msg, uploads, downloads),
                Err(e) => {
                    self.fatal(format!("the server at {} sent what this client cannot read: {e}", self.addr))
                }
            },
            Event::Piece(bytes) => self.piece(&bytes),
            Event::Cut => *self.cut.lock() = Some((Instant::now(), false)),
            Event::Resumed => {
                if let Some((_, true)) = self.cut.lock().take() {
                    gt_ir::say!("gt: the server at {} is back", self.addr);
                }
            }
            Event::Lost(reason) => {
                self.fatal(format!("the connection to the server at {} is lost: {reason}", self.addr))
            }
        }
    }

    fn take(&self, msg: SessionMsg, uploads: &Sender<Job>, downloads: &Sender<Job>) {
        match msg {
            SessionMsg::Grant { tensor, at, ticket } => {
                let _ = uploads.send(Box::new(move |road| {
                    let Some(shm) = road.uploads.lock().remove(&tensor) else { return };
                    let bytes = shm.len();
                    match road.bulk.put_shm(&at, &ticket, shm) {
                        Err((_, shm)) if bytes > PIECE => return road.carry(tensor, shm),
                        Err((_, shm)) => {
                            let data = Arc::new(shm.as_slice().to_vec());
                            // A link that does not take it is lost, and says so itself.
                            let _ = road.send(&ClientMsg::Relay { tensor, data });
                        }
                        Ok(()) => {}
                    }
                    road.unstage(bytes, Vec::new());
                }));
            }
            SessionMsg::Unwanted { tensor, why } => {
                let shm = self.uploads.lock().remove(&tensor);
                self.unstage(shm.map_or(0, |shm| shm.len()), vec![(0, why)]);
            }
            SessionMsg::Update { completed, values, failures } => {
                // A value that was to be relayed comes in a message after all, or not at all.
                self.relays.lock().answered(&values);
                let (pieces, values): (Vec<Value>, Vec<Value>) = {
                    let halves = self.halves.lock();
                    values.into_iter().partition(|value| halves.contains_key(&value.req))
                };
                let (bulk, ready): (Vec<Value>, Vec<Value>) = values.into_iter().partition(is_bulk);
                (self.on_msg.lock())(SessionMsg::Update { completed, values: ready, failures });
                pieces.into_iter().for_each(|value| self.come_by_relay(value));
                for value in bulk {
                    let _ = downloads.send(Box::new(move |road| road.download(value)));
                }
            }
            other => (self.on_msg.lock())(other),
        }
    }

    /// Asks the server to take an upload in pieces; its bytes stay staged until the worker has them.
    fn carry(&self, tensor: TensorId, shm: Shm) {
        self.relays.lock().wait_up(tensor, shm);
        // A link that does not take it is lost, and says so itself.
        let _ = self.send(&ClientMsg::Carry { tensor });
    }

    fn piece(&self, payload: &[u8]) {
        let heard = self.relays.lock().hear(payload);
        let Heard { parts, sent, value } = match heard {
            Ok(heard) => heard,
            Err(e) => {
                let addr = &self.addr;
                return self.fatal(format!("the server at {addr} sent what this client cannot read: {e}"));
            }
        };
        if let Some(peer) = self.peer.get() {
            for part in parts {
                // A link that does not take it is lost, and says so itself.
                let _ = peer.send_piece(part);
            }
        }
        if let Some(bytes) = sent {
            self.unstage(bytes, Vec::new());
        }
        if let Some(value) = value {
            self.come_by_relay(value);
        }
    }

    /// Tells those who wait for room that an upload is gone, and why if it failed.
    fn unstage(&self, bytes: usize, failures: Vec<(u64, Failure)>) {
        self.staged.fetch_sub(bytes, Ordering::Relaxed);
        (self.on_msg.lock())(SessionMsg::Update { completed: 0, values: Vec::new(), failures });
    }

    /// Brings the pieces of a tensor from the workers that hold them.
    fn download_pieces(&self, req: u64, pieces: Vec<Piece>) {
        let bring = |piece: &mut Piece| {
            if let Payload::Bulk { at, ticket } = &piece.payload {
                let mut bytes = crate::hostmem::take(ticket.bytes as usize);
                self.bulk.get(at, ticket, &mut bytes)?;
                piece.payload = Payload::Inline(Arc::new(bytes));
            }
            Ok::<(), gt_net::bulk::BulkError>(())
        };
        let mut pieces = pieces;
        for piece in &mut pieces {
            // Where one has no direct road, the others hardly have: what is left comes through the server.
            if bring(piece).is_err() {
                break;
            }
        }
        self.relay_pieces(req, pieces);
    }

    /// Gives a value whose pieces are all here, or asks the server for the first that is not.
    fn relay_pieces(&self, req: u64, pieces: Vec<Piece>) {
        let missing = pieces.iter().enumerate().find_map(|(at, piece)| match &piece.payload {
            Payload::Bulk { ticket, .. } => Some((at, ticket)),
            Payload::Inline(_) | Payload::Pieces(_) => None,
        });
        let Some((at, ticket)) = missing else {
            return self.give(Value { req, result: Ok(Payload::Pieces(pieces)) });
        };
        let (tensor, room) = (TensorId(ticket.tensor), crate::hostmem::take(ticket.bytes as usize));
        self.relays.lock().wait_down(req, room);
        self.halves.lock().insert(req, (pieces, at));
        let asked = self.send(&ClientMsg::FetchRelay { req, tensor, piece: Some(at as u32) });
        if let Err(error) = asked {
            self.halves.lock().remove(&req);
            self.give(Value { req, result: Err(Failure { root: 0, instr: None, error }) });
        }
    }

    /// A value has come through the server: all of it, or one of its pieces.
    fn come_by_relay(&self, value: Value) {
        let half = self.halves.lock().remove(&value.req);
        match (half, value.result) {
            (Some((mut pieces, at)), Ok(payload)) => {
                pieces[at].payload = payload;
                self.relay_pieces(value.req, pieces);
            }
            (_, result) => self.give(Value { req: value.req, result }),
        }
    }

    fn download(&self, value: Value) {
        if let Ok(Payload::Pieces(pieces)) = value.result {
            return self.download_pieces(value.req, pieces);
        }
        let Ok(Payload::Bulk { at, ticket }) = value.result else { return };
        let mut bytes = crate::hostmem::take(ticket.bytes as usize);
        self.come.store(0, Ordering::Relaxed);
        self.coming.store(bytes.len(), Ordering::Relaxed);
        let got = self.bulk.get_counted(&at, &ticket, &mut bytes, &self.come);
        self.coming.store(0, Ordering::Relaxed);
        match got {
            Ok(()) => {
                self.give(Value { req: value.req, result: Ok(Payload::Inline(Arc::new(bytes))) });
            }
            Err(error) => {
                self.relays.lock().wait_down(value.req, bytes);
                let asked = self.send(&ClientMsg::FetchRelay {
                    req: value.req,
                    tensor: TensorId(ticket.tensor),
                    piece: None,
                });
                if asked.is_err() {
                    let error = Error::Connection(error.to_string());
                    let result = Err(Failure { root: 0, instr: None, error });
                    self.give(Value { req: value.req, result });
                }
            }
        }
    }

    fn give(&self, value: Value) {
        let values = vec![value];
        (self.on_msg.lock())(SessionMsg::Update { completed: 0, values, failures: Vec::new() });
    }

    fn send(&self, msg: &ClientMsg) -> Result<()> {
        let Some(peer) = self.peer.get() else { return Err(Error::Connection("not connected".into())) };
        // Encoding and sending under one lock: the receiver's interner must see the same order.
        let mut interner = self.interner.lock();
        let bytes = encode_client(msg, &mut interner);
        peer.send(bytes).map_err(|e| Error::Connection(format!("server at {}: {e}", self.addr)))
    }

    fn fatal(&self, message: String) {
        (self.on_msg.lock())(SessionMsg::Fatal { error: Error::Connection(message) });
    }
}

impl Link for RemoteLink {
    fn send(&self, msg: ClientMsg) -> Result<()> {
        self.road.send(&msg)
    }

    fn stage(&self, bytes: usize) -> Option<Shm> {
        self.road.bulk.segment(bytes).ok()
    }

    fn upload_staged(&self, tensor: TensorId, ty: Ty, data: Shm) -> Result<()> {
        let staged = self.road.staged.fetch_add(data.len(), Ordering::Relaxed);
        let total = data.len() + if staged == 0 { 0 } else { self.road.most.load(Ordering::Relaxed) };
        self.road.most.store(total, Ordering::Relaxed);
        self.road.uploads.lock().insert(tensor, data);
        self.road.send(&ClientMsg::Upload { tensor, ty, data: None })?;
        // The word where to bring the bytes comes while nobody looks.
        if let Some(peer) = self.road.peer.get() {
            peer.attend();
        }
        Ok(())
    }

    fn transfer(&self) -> Option<(u64, u64, &'static str)> {
        let coming = self.road.coming.load(Ordering::Relaxed) as u64;
        if coming > 0 {
            return Some((self.road.come.load(Ordering::Relaxed) as u64, coming, "fetching"));
        }
        let staged = self.road.staged.load(Ordering::Relaxed) as u64;
        let most = self.road.most.load(Ordering::Relaxed) as u64;
        (staged > 0).then_some((most.saturating_sub(staged), most, "sending"))
    }

    fn is_behind(&self) -> bool {
        let unacked = self.road.peer.get().map_or(0, Peer::unacked_bytes);
        unacked > MAX_UNACKED || self.road.staged.load(Ordering::Relaxed) > MAX_STAGED
    }

    fn is_cut_off(&self) -> bool {
        let mut cut = self.road.cut.lock();
        let Some((_, said)) = cut.as_mut().filter(|(since, _)| since.elapsed() > SOON) else { return false };
        if !std::mem::replace(said, true) {
            let (addr, within) = (&self.road.addr, Limits::default().resume_ms / 1000);
            gt_ir::say!(
                "gt: waiting for the server at {addr}, which does not answer: it is given up after {within} s"
            );
        }
        true
    }

    fn drives(&self) -> bool {
        true
    }

    fn drive(&self, until: Instant, done: &mut dyn FnMut() -> bool) -> Option<bool> {
        self.road.peer.get().map(|peer| peer.drive(until, done))
    }

    fn close(&self) {
        if let Some(peer) = self.road.peer.get() {
            peer.close();
        }
    }

    fn peer(&self) -> String {
        self.road.addr.to_string()
    }
}

/// True for values whose bytes are still at workers.
fn is_bulk(value: &Value) -> bool {
    let bulk = |payload: &Payload| matches!(payload, Payload::Bulk { .. });
    match &value.result {
        Ok(Payload::Pieces(pieces)) => pieces.iter().any(|p| bulk(&p.payload)),
        Ok(payload) => bulk(payload),
        Err(_) => false,
    }
}
