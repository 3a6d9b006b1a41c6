//! The worker's end of what passes through the server in pieces, where no client can reach it (C11).

use crate::backend::{Buffer, HostBytes};
use crate::road::{Job, lost};
use crate::table::Entry;
use crate::worker::{Core, Upload, Worker};
use gt_ir::{Error, Result, TensorId, Ty};
use gt_net::bulk::Dir;
use gt_net::msg::{Bytes, SessionId};
use gt_net::relay::{Part, Sink, Source, What};
use gt_sync::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Tensors on their way through the server.
pub(crate) struct Relays {
    state: Mutex<State>,
    /// Held while pieces are sent: the moving thread begins a transfer and the link's thread goes on with it.
    order: Mutex<()>,
    /// Sends a part to the server, without waiting.
    send: Box<dyn Fn(Vec<u8>) + Send + Sync>,
}

#[derive(Default)]
struct State {
    /// Values that the server will ask for.
    waiting: Vec<(SessionId, TensorId, Buffer)>,
    /// By the server's number of the transfer.
    sources: HashMap<u64, (SessionId, Bytes, Source)>,
    sinks: HashMap<u64, (SessionId, Sink)>,
}

impl Relays {
    pub fn new(send: Box<dyn Fn(Vec<u8>) + Send + Sync>) -> Relays {
        Relays { state: Mutex::default(), order: Mutex::default(), send }
    }

    /// Keeps a value until the server asks for it.
    pub fn wait(&self, session: SessionId, tensor: TensorId, buffer: Buffer) {
        self.state.lock().waiting.push((session, tensor, buffer));
    }

    /// Drops all that a session has on its way.
    pub fn end(&self, session: SessionId) {
        let mut state = self.state.lock();
        state.waiting.retain(|(s, ..)| *s != session);
        state.sources.retain(|_, (s, ..)| *s != session);
        state.sinks.retain(|_, (s, _)| *s != session);
    }

    /// Drops one transfer, here and at the other end.
    fn stop(&self, part: &Part, error: &Error) {
        self.forget(part);
        (self.send)(part.stop(&error.to_string()).encode());
    }

    fn forget(&self, part: &Part) {
        let mut state = self.state.lock();
        let gone = (state.sources.remove(&part.transfer), state.sinks.remove(&part.transfer));
        drop(state);
        drop(gone);
    }

    /// Sends what the other end has room for.
    fn feed(&self, part: &Part) {
        let _order = self.order.lock();
        let mut state = self.state.lock();
        let Some((_, bytes, source)) = state.sources.get_mut(&part.transfer) else { return };
        let fed = source.feed(bytes, part);
        if source.is_done(bytes.len()) {
            state.sources.remove(&part.transfer);
        }
        drop(state);
        match fed {
            Ok(pieces) => pieces.into_iter().for_each(|piece| (self.send)(piece)),
            Err(error) => self.stop(part, &error),
        }
    }
}

impl Worker {
    /// Takes a part of a transfer through the server. Never waits for work.
    pub(crate) fn piece(&self, payload: Vec<u8>) -> Result<()> {
        let part = Part::decode(&payload)?;
        let core = self.core();
        let Some(relays) = core.relays.get() else { return Ok(()) };
        match part.what {
            What::Stop => relays.forget(&part),
            // The value is copied to the host first, which may take a while.
            What::Taken if part.at == 0 => {
                let _ = core.jobs.lock().send(Job::Carry(payload));
            }
            What::Taken => relays.feed(&part),
            What::Bytes => {
                if let Err(error) = core.fill(relays, &part) {
                    relays.stop(&part, &error);
                }
            }
        }
        Ok(())
    }
}

impl Core {
    /// Begins to send a value that the server asks for.
    pub(crate) fn carry(&self, word: &[u8]) {
        let (Some(relays), Ok(part)) = (self.relays.get(), Part::decode(word)) else { return };
        let (session, tensor) = (SessionId(part.session), TensorId(part.name));
        let mut state = relays.state.lock();
        let at = state.waiting.iter().position(|(s, t, _)| (*s, *t) == (session, tensor));
        let buffer = at.map(|at| state.waiting.remove(at).2);
        drop(state);
        let gone = || Error::Connection(format!("tensor {} is gone from its worker", tensor.0));
        match buffer.ok_or_else(gone).and_then(|buffer| self.to_host(&buffer)) {
            Ok(bytes) => {
                let source = (session, bytes, Source::default());
                relays.state.lock().sources.insert(part.transfer, source);
                self.drop_ended(relays, session);
                relays.feed(&part);
            }
            Err(error) => relays.stop(&part, &error),
        }
    }

    /// Drops what was kept for a session that ended meanwhile on another thread.
    pub(crate) fn drop_ended(&self, relays: &Relays, session: SessionId) {
        let ended = self.state.lock().ended.contains(&session);
        if ended {
            relays.end(session);
        }
    }

    /// Takes a piece of an upload; with the last one the tensor goes to the device.
    fn fill(&self, relays: &Relays, part: &Part) -> Result<()> {
        let (session, tensor) = (SessionId(part.session), TensorId(part.name));
        let Some(ty) = self.expected(session, tensor).filter(|_| part.dir == Dir::Put) else {
            return Err(Error::Connection(format!("nobody waits for tensor {} any more", tensor.0)));
        };
        if part.at == 0 {
            self.open_sink(relays, part, session, tensor, &ty)?;
        }
        let mut state = relays.state.lock();
        let Some((_, sink)) = state.sinks.get_mut(&part.transfer) else {
            return Err(Error::Connection(format!("bytes at {} come first, expected 0", part.at)));
        };
        let word = sink.fill(part)?;
        let full = if sink.is_full() { state.sinks.remove(&part.transfer) } else { None };
        drop(state);
        if let Some((_, sink)) = full {
            let data = HostBytes::Owned(Arc::new(sink.into_bytes()));
            self.state.lock().uploads.push_back(Upload { session, tensor, ty, data });
            self.told.fetch_add(1, Ordering::Release);
            self.wake.notify_one();
        }
        if let Some(word) = word {
            (relays.send)(word.encode());
        }
        Ok(())
    }

    fn expected(&self, session: SessionId, tensor: TensorId) -> Option<Ty> {
        self.state.lock().sessions.get(&session)?.waits_for(tensor).cloned()
    }

    /// Makes room for an upload. Without room the tensor has no value, and why.
    fn open_sink(
        &self,
        relays: &Relays,
        part: &Part,
        session: SessionId,
        tensor: TensorId,
        ty: &Ty,
    ) -> Result<()> {
        let expected = ty.bytes();
        let mut bytes = Vec::new();
        let room = if part.total != expected as u64 {
            Err(Error::Value(format!("upload: got {} bytes for {ty}, expected {expected}", part.total)))
        } else {
            let full =
                |_| Error::Memory(format!("upload: no host memory for {expected} bytes on the worker"));
            self.reserve(session, expected).and_then(|()| bytes.try_reserve_exact(expected).map_err(full))
        };
        if let Err(error) = room {
            let unwanted = self.fulfil(session, tensor, Entry::Poisoned(lost(error.clone())));
            drop(unwanted);
            self.told.fetch_add(1, Ordering::Release);
            self.wake.notify_one();
            return Err(error);
        }
        relays.state.lock().sinks.insert(part.transfer, (session, Sink::new(bytes, part.total)));
        Ok(())
    }
}
