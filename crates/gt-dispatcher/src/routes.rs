//! Tensors on their way through the server, in pieces: who sends, who takes, and how far each is. The bytes only pass;
//! at most a window of each transfer waits for its receiver.

use crate::machine::Way;
use gt_ir::{Error, Result, TensorId, bail};
use gt_net::bulk::Dir;
use gt_net::msg::SessionId;
use gt_net::relay::{Part, WINDOW, What, stopped};
use gt_net::server::{Outbox, PeerId};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Transfers of one client that are under way at a time, each way.
const OPEN: usize = 2;
/// Transfers of one client that may wait their turn.
const MAX_WAITING: usize = 1 << 16;

/// One transfer between a client and a worker.
pub struct Route {
    client: PeerId,
    session: SessionId,
    tensor: TensorId,
    way: Way,
    /// Bytes of the tensor; for a download known from its first piece on.
    total: Option<u64>,
    /// How many bytes the sender has sent, and the receiver taken.
    sent: u64,
    taken: u64,
}

impl Route {
    pub fn new(client: PeerId, session: SessionId, tensor: TensorId, way: Way) -> Route {
        let total = match way {
            Way::Up { bytes } => Some(bytes),
            Way::Down { .. } => None,
        };
        Route { client, session, tensor, way, total, sent: 0, taken: 0 }
    }

    /// Tells the client that nothing will pass.
    pub fn refuse(&self, why: &str, out: &mut Outbox) {
        out.send_piece(self.client, self.ask(0, true).stop(why).encode());
    }

    /// What becomes of the tensor when its bytes will not come.
    fn spoiled(&self, why: &str) -> Option<Spoiled> {
        let (session, tensor) = (self.session, self.tensor);
        (self.dir() == Dir::Put).then(|| Spoiled { session, tensor, error: stopped("upload", why) })
    }

    fn dir(&self) -> Dir {
        match self.way {
            Way::Up { .. } => Dir::Put,
            Way::Down { .. } => Dir::Get,
        }
    }

    /// The word that asks for the first bytes, under the name that the client or the worker knows.
    fn ask(&self, transfer: u64, to_client: bool) -> Part<'static> {
        let name = match self.way {
            Way::Down { req } if to_client => req,
            Way::Up { .. } | Way::Down { .. } => self.tensor.0,
        };
        let (total, session) = (self.total.unwrap_or(0), self.session.0);
        Part { what: What::Taken, dir: self.dir(), transfer, session, name, total, at: 0, data: &[] }
    }

    /// Notes bytes from the sender, if they are the next ones and within the window.
    fn pass(&mut self, part: &Part) -> Result<()> {
        let total = *self.total.get_or_insert(part.total);
        let Some(end) = part.end().filter(|_| part.total == total && part.at == self.sent) else {
            bail!(
                Connection,
                "got {} bytes at {} of {}, expected those at {} of {total}",
                part.data.len(),
                part.at,
                part.total,
                self.sent
            );
        };
        if end > self.taken + WINDOW {
            bail!(Connection, "got bytes up to {end}, at most {} may be on their way", self.taken + WINDOW);
        }
        self.sent = end;
        Ok(())
    }

    /// Notes how far the receiver is.
    fn take(&mut self, part: &Part) -> Result<()> {
        if part.at < self.taken || part.at > self.sent {
            bail!(Connection, "taken up to {}, expected {} to {}", part.at, self.taken, self.sent);
        }
        self.taken = part.at;
        Ok(())
    }
}

/// An upload that will never be whole.
pub struct Spoiled {
    pub session: SessionId,
    pub tensor: TensorId,
    pub error: Error,
}

/// All transfers through a server.
#[derive(Default)]
pub struct Routes {
    /// By their numbers, each with its worker.
    open: BTreeMap<u64, (Route, PeerId)>,
    /// Those that wait for their client's earlier ones.
    waiting: HashMap<PeerId, VecDeque<(Route, PeerId)>>,
    last: u64,
}

impl Routes {
    /// Starts a transfer with this worker, now or when its client's earlier ones have ended.
    pub fn add(&mut self, route: Route, worker: PeerId, out: &mut Outbox) -> Option<Spoiled> {
        let client = route.client;
        let waiting = self.waiting.entry(client).or_default();
        if waiting.len() >= MAX_WAITING {
            let why = "too many tensors wait to be relayed";
            route.refuse(why, out);
            return route.spoiled(why);
        }
        waiting.push_back((route, worker));
        self.open_next(client, out);
        None
    }

    fn open_next(&mut self, client: PeerId, out: &mut Outbox) {
        let Some(waiting) = self.waiting.get_mut(&client) else { return };
        for dir in [Dir::Put, Dir::Get] {
            let open = |(r, _): &&(Route, PeerId)| r.client == client && r.dir() == dir;
            let mut count = self.open.values().filter(open).count();
            while count < OPEN {
                let Some(at) = waiting.iter().position(|(route, _)| route.dir() == dir) else { break };
                let Some((route, worker)) = waiting.remove(at) else { break };
                self.last += 1;
                let (source, to_client) = match dir {
                    Dir::Put => (client, true),
                    Dir::Get => (worker, false),
                };
                out.send_piece(source, route.ask(self.last, to_client).encode());
                self.open.insert(self.last, (route, worker));
                count += 1;
            }
        }
        if waiting.is_empty() {
            self.waiting.remove(&client);
        }
    }

    /// Passes on what a peer says about a transfer. What is said of one that has ended, or is another's, is dropped.
    /// An error means that the peer does not speak the protocol.
    pub fn part(&mut self, from: PeerId, payload: &[u8], out: &mut Outbox) -> Result<Option<Spoiled>> {
        let part = Part::decode(payload)?;
        let Some((route, worker)) = self.open.get_mut(&part.transfer) else { return Ok(None) };
        let (client, worker) = (route.client, *worker);
        if from != client && from != worker {
            return Ok(None);
        }
        let (to, to_client) = if from == client { (worker, false) } else { (client, true) };
        let sends = (from == client) == (route.dir() == Dir::Put);
        let said = match part.what {
            What::Bytes if sends => route.pass(&part),
            What::Taken if !sends => route.take(&part),
            What::Stop => Err(Error::Connection(part.reason())),
            What::Bytes | What::Taken => {
                Err(Error::Connection("bytes and acknowledgements go opposite ways".into()))
            }
        };
        let name = route.ask(part.transfer, to_client).name;
        match said {
            Ok(()) => {
                let done = route.total == Some(route.taken);
                let session = route.session.0;
                out.send_piece(to, Part { name, session, dir: route.dir(), ..part }.encode());
                if done {
                    self.end(part.transfer, out);
                }
                Ok(None)
            }
            Err(error) => {
                let Some((route, _)) = self.end(part.transfer, out) else { return Ok(None) };
                let why = match &error {
                    Error::Connection(reason) => reason.clone(),
                    other => other.to_string(),
                };
                out.send_piece(to, route.ask(part.transfer, to_client).stop(&why).encode());
                if part.what != What::Stop {
                    out.send_piece(from, route.ask(part.transfer, !to_client).stop(&why).encode());
                }
                // A worker that takes no more has dealt with the tensor itself.
                Ok(if from == client { route.spoiled(&why) } else { None })
            }
        }
    }

    fn end(&mut self, transfer: u64, out: &mut Outbox) -> Option<(Route, PeerId)> {
        let ended = self.open.remove(&transfer)?;
        self.open_next(ended.0.client, out);
        Some(ended)
    }

    /// Ends the transfers of a peer that is gone; the other ends are told.
    pub fn gone(&mut self, peer: PeerId, reason: &str, out: &mut Outbox) {
        self.waiting.remove(&peer);
        for waiting in self.waiting.values_mut() {
            waiting.retain(|(route, worker)| {
                if *worker == peer {
                    route.refuse(&format!("the worker is gone ({reason})"), out);
                }
                *worker != peer
            });
        }
        let touched = |(_, (r, w)): &(&u64, &(Route, PeerId))| r.client == peer || *w == peer;
        let ended: Vec<u64> = self.open.iter().filter(touched).map(|(transfer, _)| *transfer).collect();
        for transfer in ended {
            let Some((route, worker)) = self.end(transfer, out) else { continue };
            let (to, to_client) = if route.client == peer { (worker, false) } else { (route.client, true) };
            let why = format!("the {} is gone ({reason})", if to_client { "worker" } else { "client" });
            out.send_piece(to, route.ask(transfer, to_client).stop(&why).encode());
        }
    }
}
