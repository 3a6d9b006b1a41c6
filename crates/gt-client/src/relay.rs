//! The client's end of what passes through the server in pieces, where it cannot reach a worker (C11).

use gt_ir::{Result, TensorId};
use gt_net::bulk::Dir;
use gt_net::msg::{Failure, Payload, Value};
use gt_net::relay::{Part, Sink, Source, What, stopped};
use gt_net::shm::Shm;
use std::collections::HashMap;
use std::sync::Arc;

/// Tensors on their way through the server.
#[derive(Default)]
pub(crate) struct Relays {
    /// Uploads that the server will ask for.
    up: HashMap<TensorId, Shm>,
    /// Requests whose values will come, each with the memory for its value.
    down: HashMap<u64, Vec<u8>>,
    /// By the server's number of the transfer.
    sources: HashMap<u64, (Shm, Source)>,
    sinks: HashMap<u64, (u64, Sink)>,
}

/// What follows from a part.
#[derive(Default)]
pub(crate) struct Heard {
    /// To be sent to the server.
    pub parts: Vec<Vec<u8>>,
    /// An upload of so many bytes is over, well or badly.
    pub sent: Option<usize>,
    /// A value has come, or will not.
    pub value: Option<Value>,
}

impl Relays {
    /// Keeps an upload until the server asks for it.
    pub fn wait_up(&mut self, tensor: TensorId, shm: Shm) {
        self.up.insert(tensor, shm);
    }

    /// Expects the value of a request, as many bytes as `room` has.
    pub fn wait_down(&mut self, req: u64, room: Vec<u8>) {
        self.down.insert(req, room);
    }

    /// These requests are answered another way.
    pub fn answered(&mut self, values: &[Value]) {
        if !self.down.is_empty() {
            values.iter().for_each(|value| drop(self.down.remove(&value.req)));
        }
    }

    /// Takes a part from the server; an error means that it does not speak the protocol.
    pub fn hear(&mut self, payload: &[u8]) -> Result<Heard> {
        let part = Part::decode(payload)?;
        Ok(match (part.what, part.dir) {
            (What::Taken, _) => self.feed(&part),
            (What::Bytes, _) => self.fill(&part),
            (What::Stop, Dir::Put) => self.stopped_up(&part),
            (What::Stop, Dir::Get) => self.stopped_down(&part, &part.reason()),
        })
    }

    fn feed(&mut self, part: &Part) -> Heard {
        let asked = if part.at == 0 { self.up.remove(&TensorId(part.name)) } else { None };
        if let Some(shm) = asked {
            self.sources.insert(part.transfer, (shm, Source::default()));
        }
        let Some((shm, source)) = self.sources.get_mut(&part.transfer) else { return Heard::default() };
        match source.feed(shm.as_slice(), part) {
            Ok(parts) => {
                let sent = source.is_done(shm.len()).then(|| shm.len());
                if sent.is_some() {
                    self.sources.remove(&part.transfer);
                }
                Heard { parts, sent, value: None }
            }
            Err(error) => {
                Heard { parts: vec![part.stop(&error.to_string()).encode()], ..self.stopped_up(part) }
            }
        }
    }

    fn stopped_up(&mut self, part: &Part) -> Heard {
        let open = self.sources.remove(&part.transfer).map(|(shm, _)| shm);
        let shm = open.or_else(|| self.up.remove(&TensorId(part.name)));
        Heard { sent: shm.map(|shm| shm.len()), ..Heard::default() }
    }

    fn fill(&mut self, part: &Part) -> Heard {
        if let Some(room) = self.down.remove(&part.name) {
            let total = room.len() as u64;
            self.sinks.insert(part.transfer, (part.name, Sink::new(room, total)));
        }
        let Some((req, sink)) = self.sinks.get_mut(&part.transfer) else { return Heard::default() };
        let req = *req;
        match sink.fill(part) {
            Ok(word) => {
                let full = if sink.is_full() { self.sinks.remove(&part.transfer) } else { None };
                let value = full.map(|(_, sink)| {
                    let result = Ok(Payload::Inline(Arc::new(sink.into_bytes())));
                    Value { req, result }
                });
                Heard { parts: word.iter().map(Part::encode).collect(), sent: None, value }
            }
            Err(error) => {
                let parts = vec![part.stop(&error.to_string()).encode()];
                Heard { parts, ..self.stopped_down(part, &error.to_string()) }
            }
        }
    }

    fn stopped_down(&mut self, part: &Part, reason: &str) -> Heard {
        let open = self.sinks.remove(&part.transfer).map(|(req, _)| req);
        let req = open.or_else(|| self.down.remove(&part.name).map(|_| part.name));
        let failure = || Failure { root: 0, instr: None, error: stopped("fetch", reason) };
        Heard { value: req.map(|req| Value { req, result: Err(failure()) }), ..Heard::default() }
    }
}
