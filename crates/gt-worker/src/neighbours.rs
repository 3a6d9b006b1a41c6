//! Workers that are near each other: a tensor goes from device to device without passing through the host, between those
//! of one process and between processes of one host, where their backend knows a way.

use crate::backend::{Borrowed, Borrower, Buffer};
use crate::gang::post::LETTER;
use crate::table::Entry;
use crate::worker::{Core, Worker};
use gt_ir::{Error, Result, TensorId, Ty};
use gt_net::bulk::{BulkClient, BulkError, Endpoint, Pieces, TakesPieces, Ticket, host_id};
use gt_net::msg::{SessionId, WorkerId};
use gt_sync::Mutex;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The workers of one dispatcher in this process. Clones share them.
#[derive(Clone, Default)]
pub struct Neighbours(Arc<Mutex<HashMap<WorkerId, Weak<Core>>>>);

impl Neighbours {
    /// Adds a worker under the id that the dispatcher gave it.
    pub fn add(&self, id: WorkerId, worker: &Worker) {
        let core = worker.core();
        self.0.lock().insert(id, Arc::downgrade(core));
        let _ = core.neighbours.set(self.clone());
    }

    /// Hands a tensor to another worker that waits for it. False if it has to go another way.
    pub(crate) fn hand(
        &self,
        goal: WorkerId,
        session: SessionId,
        tensor: TensorId,
        ty: &Ty,
        buffer: &Buffer,
    ) -> bool {
        let Some(core) = self.0.lock().get(&goal).and_then(Weak::upgrade) else { return false };
        let waits = core.state.lock().sessions.get(&session).and_then(|t| t.waits_for(tensor)) == Some(ty);
        if !waits || core.reserve(session, ty.bytes()).is_err() {
            return false;
        }
        let start = Instant::now();
        core.config.backend.turn(session.0);
        let adopt = || core.config.backend.adopt(buffer);
        // What went wrong here may go right by way of the host, or says there why not.
        let Ok(Some(Ok(buffer))) = catch_unwind(AssertUnwindSafe(adopt)) else { return false };
        let unwanted = core.fulfil(session, tensor, Entry::Here { ty: ty.clone(), buffer });
        core.carried(session, tensor, ty.bytes() as u64, true, start);
        core.wake.notify_one();
        drop(unwanted);
        true
    }
}

/// Smaller tensors go by way of the host, which takes fewer words and turns of the device.
const LEAST: usize = 256 << 10;
/// A worker that could not borrow so often in a row is not asked again.
const TRIES: u32 = 3;
/// How long a tensor that comes may be ahead of the dispatcher's word of it.
const AHEAD: Duration = Duration::from_millis(100);

/// Lends tensors to workers of other processes of this host.
#[derive(Default)]
pub(crate) struct Lender {
    /// How often in a row workers could not borrow.
    failed: HashMap<Endpoint, u32>,
}

/// Shows a worker of another process where pieces lie.
struct Showing<'a, 'b>(&'a mut Pieces<'b>);

impl Borrower for Showing<'_, '_> {
    fn show(&mut self, card: &[u8]) -> Result<()> {
        self.0.show(card).map_err(|e| Error::Connection(e.to_string()))
    }

    fn taken(&mut self) -> Result<()> {
        self.0.taken().map_err(|e| Error::Connection(e.to_string()))
    }
}

impl Lender {
    /// Lends a tensor to the worker that waits for it. False if it has to go another way.
    pub fn lend(
        &mut self,
        core: &Core,
        roads: &BulkClient,
        to: Option<&(Endpoint, Ticket)>,
        buffer: &Buffer,
    ) -> bool {
        let backend = &core.config.backend;
        let near = to.filter(|(endpoint, _)| endpoint.unix.is_some() && endpoint.host_id == host_id());
        let Some((endpoint, ticket)) = near.filter(|_| backend.lends() && buffer.bytes() >= LEAST) else {
            return false;
        };
        let failed = self.failed.entry(endpoint.clone()).or_default();
        if *failed >= TRIES {
            return false;
        }
        let give = |pieces: &mut Pieces| {
            let lend = || backend.lend(buffer, &mut Showing(pieces));
            match catch_unwind(AssertUnwindSafe(lend)) {
                Ok(lent) => lent.map_err(|e| BulkError::Io(std::io::Error::other(e.to_string()))),
                Err(_) => Err(BulkError::Io(std::io::Error::other("lending failed"))),
            }
        };
        match roads.put_pieces(endpoint, ticket, give) {
            Ok(()) => *failed = 0,
            Err(error) => {
                *failed += 1;
                if *failed == TRIES {
                    let name = &core.config.name;
                    gt_ir::say!(
                        "gt worker {name}: tensors for a worker of this host go by way of its memory: {error}"
                    );
                }
            }
        }
        *failed == 0
    }
}

/// A tensor that a worker of another process lends.
struct Taking<'a> {
    core: &'a Core,
    session: SessionId,
    tensor: TensorId,
    ty: Ty,
    borrowed: Box<dyn Borrowed>,
    start: Instant,
}

/// Begins to take a tensor that is announced, or soon will be.
pub(crate) fn take_pieces<'a>(core: &'a Core, ticket: &Ticket) -> Result<Box<dyn TakesPieces + 'a>, String> {
    let (session, tensor, start) = (SessionId(ticket.session), TensorId(ticket.tensor), Instant::now());
    let backend = &core.config.backend;
    if !backend.lends() || ticket.session & LETTER != 0 {
        return Err("no device takes it here".into());
    }
    let ty = loop {
        let state = core.state.lock();
        let waits = state.sessions.get(&session).and_then(|table| table.waits_for(tensor)).cloned();
        drop(state);
        match waits {
            Some(ty) => break ty,
            None if start.elapsed() > AHEAD => return Err(format!("nobody waits for tensor {}", tensor.0)),
            None => std::thread::sleep(Duration::from_micros(200)),
        }
    };
    if ty.bytes() as u64 != ticket.bytes {
        return Err(format!("tensor {} has {} bytes, the ticket {}", tensor.0, ty.bytes(), ticket.bytes));
    }
    core.reserve(session, ty.bytes()).map_err(|e| e.to_string())?;
    backend.turn(session.0);
    let borrowed = backend.borrow(ty.bytes()).map_err(|e| e.to_string())?;
    Ok(Box::new(Taking { core, session, tensor, ty, borrowed, start }))
}

impl TakesPieces for Taking<'_> {
    fn take(&mut self, card: &[u8]) -> Result<(), String> {
        self.borrowed.take(card).map_err(|e| e.to_string())
    }

    fn end(self: Box<Self>) -> Result<(), String> {
        let Taking { core, session, tensor, ty, borrowed, start } = *self;
        let buffer = borrowed.end().map_err(|e| e.to_string())?;
        let bytes = ty.bytes() as u64;
        let unwanted = core.fulfil(session, tensor, Entry::Here { ty, buffer });
        core.carried(session, tensor, bytes, true, start);
        core.wake.notify_one();
        drop(unwanted);
        Ok(())
    }
}

#[cfg(test)]
#[path = "neighbours_tests.rs"]
mod tests;
