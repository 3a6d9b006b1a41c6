//! The worker's bytes on their way: values for clients, copies for other workers, uploads from both (C11).

use crate::backend::{Buffer, HostBytes, PlanError};
use crate::finish::{Answer, Closing};
use crate::gang::aloft::Doubt;
use crate::gang::post::LETTER;
use crate::gang::seats::Seated;
use crate::neighbours::{Lender, take_pieces};
use crate::plans::panic_text;
use crate::table::Entry;
use crate::worker::{Arrived, Core, Promised, State, Upload};
use gt_ir::{Error, Result, TensorId, Ty};
use gt_net::bulk::{BulkBytes, BulkClient, BulkStore, Dir, Endpoint, TakesPieces, Ticket, now_ms};
use gt_net::msg::{Bytes, Failure, INLINE_BYTES, MAX_RELAY, Payload, SessionId, WorkerId, WorkerMsg};
use gt_net::relay::PIECE;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::Instant;

/// How long a promised value is kept for its client, and early bytes for the dispatcher's word.
const KEPT_MS: u64 = 120_000;
/// Early transfers kept at most.
const MAX_EARLY: usize = 256;

/// Work for the moving thread.
pub(crate) enum Job {
    Send(Box<Parcel>),
    /// The server asks for the first pieces of a tensor; its word, as it came.
    Carry(Vec<u8>),
    Stats {
        req: u64,
    },
    /// Tells the ranks of a gang that this one will not come: its session has ended.
    Excuse(Seated),
    /// The end of a batch whose session has no thread for it.
    Finish(Box<Closing>),
    Gauge,
    /// Bytes for the device.
    Upload(Box<Upload>),
    Recent {
        session: SessionId,
    },
    Stop,
}

/// A tensor to be sent, or why it cannot be.
pub(crate) struct Parcel {
    pub session: SessionId,
    pub tensor: TensorId,
    pub goal: Option<WorkerId>,
    pub to: Option<(Endpoint, Ticket)>,
    pub what: Result<(Ty, Buffer), Failure>,
    /// Gangs that it hangs on.
    pub doubts: Vec<Arc<Doubt>>,
}

/// The moving thread.
pub(crate) fn run(core: &Core, jobs: &Receiver<Job>) {
    let (roads, mut lender) = (BulkClient::new(), Lender::default());
    while let Ok(job) = jobs.recv() {
        match job {
            Job::Stop => return,
            Job::Carry(word) => core.carry(&word),
            Job::Upload(upload) => {
                core.take_in(*upload);
                core.told.fetch_add(1, Ordering::Release);
                core.wake.notify_one();
            }
            Job::Excuse(seat) => {
                let error = Error::Runtime("the session has ended".into());
                seat.fail(&PlanError { instr: None, error });
            }
            Job::Finish(close) => close.finish(core),
            Job::Gauge => (core.say)(WorkerMsg::Gauge(Box::new(core.gauge()))),
            Job::Recent { session } => (core.say)(core.recent(session)),
            Job::Stats { req } => {
                // Whoever asks may wait for what has happened so far.
                core.tell_events();
                (core.say)(WorkerMsg::Stats { req, stats: core.stats() });
            }
            Job::Send(parcel) => {
                let Parcel { session, tensor, goal, to, what, doubts } = *parcel;
                let what = doubts.iter().try_for_each(|doubt| doubt.wait()).and(what);
                let (start, bytes) = (Instant::now(), what.as_ref().map_or(0, |(_, b)| b.bytes() as u64));
                let result = what.and_then(|(ty, buffer)| match (core.relays.get(), goal) {
                    (_, Some(goal)) if core.hands(goal, session, tensor, &ty, &buffer) => Ok(None),
                    // The server asks for the pieces when the way is free.
                    (Some(relays), None) if buffer.bytes() > PIECE => {
                        relays.wait(session, tensor, buffer);
                        core.drop_ended(relays, session);
                        Ok(None)
                    }
                    _ if lender.lend(core, &roads, to.as_ref(), &buffer) => Ok(None),
                    _ => send(core, &roads, to, buffer),
                });
                if result.is_ok() {
                    core.carried(session, tensor, bytes, false, start);
                }
                (core.say)(WorkerMsg::Moved { session, tensor, goal, result });
                core.tell_if_due();
            }
        }
    }
}

/// Brings a tensor to its goal; what cannot go directly goes back to the dispatcher.
fn send(
    core: &Core,
    roads: &BulkClient,
    to: Option<(Endpoint, Ticket)>,
    buffer: Buffer,
) -> Result<Option<Bytes>, Failure> {
    let bytes = core.to_host(&buffer).map_err(lost)?;
    let Some((endpoint, ticket)) = to else {
        return Ok(Some(bytes));
    };
    match roads.put(&endpoint, &ticket, &bytes) {
        Ok(()) => Ok(None),
        Err(_) if bytes.len() <= MAX_RELAY => Ok(Some(bytes)),
        Err(e) => Err(lost(Error::Connection(format!(
            "move: {} bytes could not be sent to the other worker ({e}), and are too many to be relayed: \
             check that workers reach each other (`gt worker --advertise HOST`)",
            bytes.len()
        )))),
    }
}

pub(crate) fn lost(error: Error) -> Failure {
    Failure { root: 0, instr: None, error }
}

impl Core {
    /// Copies a buffer to the host.
    pub fn to_host(&self, buffer: &Buffer) -> Result<Bytes> {
        catch_unwind(AssertUnwindSafe(|| self.config.backend.download(buffer)))
            .unwrap_or_else(|panic| Err(Error::Runtime(format!("download failed: {}", panic_text(&*panic)))))
    }

    /// Hands a tensor to another worker of this process. False if it has to go another way.
    fn hands(&self, goal: WorkerId, session: SessionId, tensor: TensorId, ty: &Ty, buffer: &Buffer) -> bool {
        self.neighbours.get().is_some_and(|n| n.hand(goal, session, tensor, ty, buffer))
    }

    /// Copies bytes to the device, if there is room.
    pub fn to_device(&self, session: SessionId, ty: &Ty, data: HostBytes) -> Result<Buffer> {
        let (got, expected) = (data.as_slice().len(), ty.bytes());
        if got != expected {
            return Err(Error::Value(format!("upload: got {got} bytes for {ty}, expected {expected}")));
        }
        self.reserve(session, expected)?;
        self.config.backend.turn(session.0);
        catch_unwind(AssertUnwindSafe(|| self.config.backend.upload(ty, data)))
            .unwrap_or_else(|panic| Err(Error::Runtime(format!("upload failed: {}", panic_text(&*panic)))))
    }

    /// Brings a tensor to the device whose bytes have come, unless nobody waits for it any more.
    pub fn take_in(&self, upload: Upload) {
        let Upload { session, tensor, ty, data } = upload;
        if self.state.lock().sessions.get(&session).is_none_or(|t| t.waits_for(tensor).is_none()) {
            return;
        }
        let (start, bytes) = (Instant::now(), ty.bytes() as u64);
        let entry = match self.to_device(session, &ty, data) {
            Ok(buffer) => Entry::Here { ty, buffer },
            Err(error) => Entry::Poisoned(Failure { root: 0, instr: None, error }),
        };
        let unwanted = self.fulfil(session, tensor, entry);
        drop(unwanted);
        self.carried(session, tensor, bytes, true, start);
    }

    /// Checks that `bytes` more fit the device.
    pub fn reserve(&self, session: SessionId, bytes: usize) -> Result<()> {
        let backend = &self.config.backend;
        let (mut in_use, limit) = (backend.memory_in_use().0, backend.memory());
        if in_use.saturating_add(bytes as u64) > limit {
            backend.shrink();
            in_use = backend.memory_in_use().0;
        }
        if in_use.saturating_add(bytes as u64) <= limit {
            return Ok(());
        }
        let state = self.state.lock();
        let mut held: Vec<(u64, SessionId)> = state.sessions.iter().map(|(id, t)| (t.bytes, *id)).collect();
        drop(state);
        held.sort_unstable_by(|a, b| b.cmp(a));
        let who =
            |id: SessionId| if id == session { "this session".into() } else { format!("session {}", id.0) };
        let biggest: Vec<String> =
            held.iter().take(3).map(|(bytes, id)| format!("{} {}", who(*id), size(*bytes))).collect();
        Err(Error::Memory(format!(
            "out of memory on worker {}: {} more needed, {} of {} in use (most by {}): \
             drop tensors, use smaller batches, or add a worker",
            self.config.name,
            size(bytes as u64),
            size(in_use),
            size(limit),
            biggest.join(", ")
        )))
    }

    /// A value for a client: inside the message if it is small or there is no bulk plane, else by ticket.
    pub fn answer(
        &self,
        session: SessionId,
        tensor: TensorId,
        ty: &Ty,
        buffer: Buffer,
    ) -> Result<Answer, Failure> {
        let Some((endpoint, key)) = self.plane.get().filter(|_| ty.bytes() > INLINE_BYTES) else {
            if !self.config.backend.queues() {
                let bytes = self.to_host(&buffer).map_err(lost)?;
                self.carriage.outward.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                return Ok(Answer::Here(Payload::Inline(bytes)));
            }
            let fetch = || self.config.backend.fetch(&buffer);
            let coming = catch_unwind(AssertUnwindSafe(fetch)).unwrap_or_else(|panic| {
                Err(Error::Runtime(format!("download failed: {}", panic_text(&*panic))))
            });
            return coming.map(Answer::Coming).map_err(lost);
        };
        let expires_ms = now_ms() + KEPT_MS;
        let ticket = key.sign(session.0, tensor.0, ty.bytes() as u64, Dir::Get, expires_ms);
        let promised = Promised { session, tensor, buffer, expires_ms };
        self.state.lock().promised.insert(ticket.nonce, promised);
        Ok(Answer::Here(Payload::Bulk { at: endpoint.clone(), ticket }))
    }
}

impl State {
    /// A tensor that is here, or why it has no value.
    pub fn find(&self, session: SessionId, tensor: TensorId) -> Result<(Ty, Buffer), Failure> {
        match self.sessions.get(&session).and_then(|table| table.get(tensor)) {
            Some(Entry::Here { ty, buffer }) => Ok((ty.clone(), buffer.clone())),
            Some(Entry::Poisoned(failure)) => Err(failure.clone()),
            Some(Entry::Waiting { .. }) | None => self.promised(session, tensor).ok_or_else(|| {
                lost(Error::Connection(format!("tensor {} is gone from its worker", tensor.0)))
            }),
        }
    }

    /// A value as it was last promised to a client, whatever has become of its tensor.
    pub fn promised(&self, session: SessionId, tensor: TensorId) -> Option<(Ty, Buffer)> {
        let of = |p: &&Promised| p.session == session && p.tensor == tensor;
        let promised = self.promised.values().filter(of).max_by_key(|p| p.expires_ms)?;
        // The type is only asked of tensors in the table.
        Some((Ty::new(gt_ir::DType::U8, [promised.buffer.bytes()]), promised.buffer.clone()))
    }
}

/// Drops promises and early bytes that nobody came for.
pub(crate) fn sweep(state: &mut State) {
    let now = now_ms();
    state.promised.retain(|_, p| p.expires_ms >= now);
    state.early.retain(|_, (_, expires_ms)| *expires_ms >= now);
}

/// The worker's side of the bulk plane.
pub(crate) struct Store(pub Arc<Core>);

impl BulkStore for Store {
    fn put(&self, ticket: &Ticket, bytes: BulkBytes) -> Result<(), String> {
        if ticket.session & LETTER != 0 {
            return self.0.letters.take(bytes);
        }
        let (session, tensor) = (SessionId(ticket.session), TensorId(ticket.tensor));
        let core = &self.0;
        let mut state = core.state.lock();
        if state.ended.contains(&session) {
            return Err(format!("session {} is over", session.0));
        }
        let table = state.sessions.get(&session);
        let Some(ty) = table.and_then(|t| t.waits_for(tensor)).cloned() else {
            if table.is_some_and(|t| t.get(tensor).is_some()) {
                return Err(format!("tensor {} is here already", tensor.0));
            }
            // The dispatcher's word comes on another road, and may come later.
            if state.early.len() >= MAX_EARLY {
                return Err("too many transfers came before they were announced".into());
            }
            state.early.insert((session, tensor), (bytes, now_ms() + KEPT_MS));
            drop(state);
            core.wake.notify_one();
            return Ok(());
        };
        drop(state);
        let start = Instant::now();
        let bytes_in = ty.bytes() as u64;
        let entry = match core.to_device(session, &ty, HostBytes::Shared(Box::new(Arrived(bytes)))) {
            Ok(buffer) => Entry::Here { ty, buffer },
            Err(error) => Entry::Poisoned(lost(error)),
        };
        let unwanted = core.fulfil(session, tensor, entry);
        core.carried(session, tensor, bytes_in, true, start);
        core.wake.notify_one();
        drop(unwanted);
        Ok(())
    }

    fn take_pieces(&self, ticket: &Ticket) -> Result<Box<dyn TakesPieces + '_>, String> {
        take_pieces(&self.0, ticket)
    }

    fn get(&self, ticket: &Ticket) -> Result<BulkBytes, String> {
        let promised = self.0.state.lock().promised.remove(&ticket.nonce);
        let promised = promised.ok_or_else(|| format!("tensor {} was not promised", ticket.tensor))?;
        let bytes = promised.buffer.bytes() as u64;
        self.0.carried(promised.session, promised.tensor, bytes, false, Instant::now());
        if self.0.config.backend.host_bytes(&promised.buffer).is_some() {
            let lying = Lying { core: self.0.clone(), buffer: promised.buffer };
            return Ok(BulkBytes::Held(Arc::new(lying)));
        }
        let bytes = self.0.to_host(&promised.buffer).map_err(|e| e.to_string())?;
        Ok(BulkBytes::Vec(Arc::try_unwrap(bytes).unwrap_or_else(|shared| (*shared).clone())))
    }
}

/// A buffer whose bytes are read where they lie.
struct Lying {
    core: Arc<Core>,
    buffer: Buffer,
}

impl AsRef<[u8]> for Lying {
    fn as_ref(&self) -> &[u8] {
        self.core.config.backend.host_bytes(&self.buffer).unwrap_or(&[])
    }
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1_048_576 => format!("{:.1} KB", bytes as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MB", bytes as f64 / 1048576.0),
        _ => format!("{:.1} GB", bytes as f64 / 1073741824.0),
    }
}
