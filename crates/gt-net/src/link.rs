//! One reliable, numbered link over connections that may be cut: a state machine without I/O or clock.
//!
//! Invariants: (L1) every payload accepted by `send` is delivered once and in order, or the link is lost;
//! (L2) what is kept for resending is bounded in bytes; (L3) nothing is written twice on one connection.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::Bytes;
use thiserror::Error;

use crate::frame::{Frame, HEADER, Kind, MAX_PAYLOAD, MAX_PIECE, header};

/// Milliseconds on any clock that never goes back.
pub type Millis = u64;

/// The times and sizes a link keeps to.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Something is sent at least this often.
    pub heartbeat_ms: Millis,
    /// Silence for this long means the connection is dead.
    pub silence_ms: Millis,
    /// A cut connection may be resumed for this long.
    pub resume_ms: Millis,
    /// Bytes sent and not yet acknowledged that are kept at most.
    pub unacked_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { heartbeat_ms: 1_000, silence_ms: 10_000, resume_ms: 60_000, unacked_bytes: 256 << 20 }
    }
}

/// Acknowledge at once after this many bytes or frames, rather than with the next heartbeat.
const ACK_BYTES: usize = 1 << 20;
const ACK_FRAMES: u64 = 256;

/// Why a link cannot go on as asked.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum LinkError {
    /// Too much is waiting for the peer's acknowledgement.
    #[error("link: {waiting} bytes wait for the peer, at most {max} may: it reads too slowly")]
    Full {
        /// Bytes waiting now.
        waiting: usize,
        /// The bound.
        max: usize,
    },
    /// The payload does not fit a frame.
    #[error("link: message of {0} bytes, at most {MAX_PAYLOAD} fit a frame: send bulk data by ticket")]
    TooLong(usize),
    /// The peer skipped a number.
    #[error("link: frame {got} came, expected {expected}")]
    Gap {
        /// The number that came.
        got: u64,
        /// The number that should have come.
        expected: u64,
    },
    /// The peer acknowledges what was never sent, or asks again for what it acknowledged.
    #[error("link: the peer claims to have received up to {claimed}, possible are {from} to {to}")]
    Ack {
        /// What the peer claims.
        claimed: u64,
        /// Already acknowledged.
        from: u64,
        /// Last number sent.
        to: u64,
    },
    /// A handshake frame came on an open link.
    #[error("link: unexpected {0:?} frame")]
    Unexpected(Kind),
}

/// What a received frame means for the owner of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received<'a> {
    /// The next message, in order.
    Message(&'a [u8]),
    /// The next piece of a relayed tensor, in order among pieces and after every message sent before it.
    Piece(&'a [u8]),
    /// Nothing to deliver: a duplicate or a heartbeat.
    Nothing,
    /// The peer ended the link, with its reason.
    Close(&'a [u8]),
}

/// What the passing of time means for the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alive {
    /// All is well, or a cut may still be resumed.
    Yes,
    /// The peer was silent for too long: drop the connection and call `cut`.
    Silent,
    /// The time to resume is over: the link is lost.
    Lost,
}

#[derive(Debug)]
struct Queued {
    header: [u8; HEADER],
    payload: Bytes,
}

/// The state of one link: what to write, what to keep for resending, what came.
#[derive(Debug)]
pub struct Link {
    limits: Limits,
    sent: u64,
    unacked: VecDeque<(Kind, Bytes)>,
    unacked_bytes: usize,
    received: u64,
    acked: u64,
    unacked_received: usize,
    out: VecDeque<Queued>,
    written: usize,
    /// Pieces that wait until nothing else is to be written; they get their numbers then.
    pieces: VecDeque<Bytes>,
    heard_at: Millis,
    sent_at: Millis,
    cut_at: Option<Millis>,
    ticked_at: Millis,
}

impl Link {
    /// A link whose connection is open.
    pub fn new(now: Millis, limits: Limits) -> Self {
        Link {
            limits,
            sent: 0,
            unacked: VecDeque::new(),
            unacked_bytes: 0,
            received: 0,
            acked: 0,
            unacked_received: 0,
            out: VecDeque::new(),
            written: 0,
            pieces: VecDeque::new(),
            heard_at: now,
            sent_at: now,
            cut_at: None,
            ticked_at: now,
        }
    }

    /// Accepts a payload. It is delivered once and in order, across cuts, unless the link is lost.
    pub fn send(&mut self, now: Millis, payload: impl Into<Bytes>) -> Result<(), LinkError> {
        let payload: Bytes = payload.into();
        if payload.len() > MAX_PAYLOAD {
            return Err(LinkError::TooLong(payload.len()));
        }
        let (waiting, max) = (self.unacked_bytes, self.limits.unacked_bytes);
        // One message always fits an empty link, so a small bound slows and never blocks.
        if waiting > 0 && waiting + payload.len() + HEADER > max {
            return Err(LinkError::Full { waiting, max });
        }
        self.sent += 1;
        self.unacked_bytes += payload.len() + HEADER;
        self.unacked.push_back((Kind::Data, payload.clone()));
        if self.cut_at.is_none() {
            self.queue(now, Kind::Data, self.sent, payload);
        }
        Ok(())
    }

    /// Accepts a piece. It is delivered once and in order among pieces, and every message goes before it: at most
    /// one piece is ahead of a message. How many may wait is for the sender to bound.
    pub fn send_piece(&mut self, payload: impl Into<Bytes>) -> Result<(), LinkError> {
        let payload: Bytes = payload.into();
        if payload.len() > MAX_PIECE {
            return Err(LinkError::TooLong(payload.len()));
        }
        self.pieces.push_back(payload);
        self.pull();
        Ok(())
    }

    /// Numbers the next piece and queues it, if nothing else is to be written. Pieces leave half of what may be
    /// unacknowledged to messages.
    fn pull(&mut self) {
        if self.cut_at.is_some() || !self.out.is_empty() {
            return;
        }
        let Some(piece) = self.pieces.front() else { return };
        let weight = piece.len() + HEADER;
        if self.unacked_bytes > 0 && self.unacked_bytes + weight > self.limits.unacked_bytes / 2 {
            return;
        }
        let Some(piece) = self.pieces.pop_front() else { return };
        self.sent += 1;
        self.unacked_bytes += weight;
        self.unacked.push_back((Kind::Piece, piece.clone()));
        self.queue(self.sent_at, Kind::Piece, self.sent, piece);
    }

    /// Queues the frame that ends the link.
    pub fn close(&mut self, now: Millis, reason: &str) {
        self.pieces.clear();
        if self.cut_at.is_none() {
            self.queue(now, Kind::Close, 0, Bytes::copy_from_slice(reason.as_bytes()));
        }
    }

    /// Takes a frame that came on the open connection.
    pub fn receive<'a>(&mut self, now: Millis, frame: Frame<'a>) -> Result<Received<'a>, LinkError> {
        self.heard_at = now;
        self.acknowledged(frame.ack)?;
        self.pull();
        match frame.kind {
            Kind::Data | Kind::Piece if frame.seq <= self.received => Ok(Received::Nothing),
            Kind::Data | Kind::Piece if frame.seq > self.received + 1 => {
                Err(LinkError::Gap { got: frame.seq, expected: self.received + 1 })
            }
            Kind::Data | Kind::Piece => {
                self.received = frame.seq;
                self.unacked_received += frame.payload.len() + HEADER;
                if self.unacked_received >= ACK_BYTES || self.received - self.acked >= ACK_FRAMES {
                    self.queue(now, Kind::Heartbeat, 0, Bytes::new());
                }
                let piece = frame.kind == Kind::Piece;
                Ok(if piece { Received::Piece(frame.payload) } else { Received::Message(frame.payload) })
            }
            Kind::Heartbeat => Ok(Received::Nothing),
            Kind::Close => Ok(Received::Close(frame.payload)),
            Kind::Hello | Kind::Welcome | Kind::Refuse => Err(LinkError::Unexpected(frame.kind)),
        }
    }

    /// Lets time pass: queues a heartbeat when one is due, and tells silence and loss. Called about every
    /// second or more often; a long gap means that this side slept, which is no silence of the peer's.
    pub fn tick(&mut self, now: Millis) -> Alive {
        let asleep = now.saturating_sub(self.ticked_at);
        self.ticked_at = now;
        if asleep >= self.limits.silence_ms / 2 {
            self.heard_at = (self.heard_at + asleep).min(now);
        }
        if let Some(cut_at) = self.cut_at {
            return if now.saturating_sub(cut_at) >= self.limits.resume_ms {
                Alive::Lost
            } else {
                Alive::Yes
            };
        }
        if now.saturating_sub(self.heard_at) >= self.limits.silence_ms {
            return Alive::Silent;
        }
        if self.out.is_empty() && now.saturating_sub(self.sent_at) >= self.limits.heartbeat_ms {
            self.queue(now, Kind::Heartbeat, 0, Bytes::new());
        }
        Alive::Yes
    }

    /// The connection is gone; what was not acknowledged is kept for `resume`.
    pub fn cut(&mut self, now: Millis) {
        self.cut_at.get_or_insert(now);
        self.out.clear();
        self.written = 0;
    }

    /// A new connection is open, and the peer has everything up to `last_received`; the rest is queued again.
    pub fn resume(&mut self, now: Millis, last_received: u64) -> Result<(), LinkError> {
        self.open(now, last_received, None)
    }

    /// Like `resume`, on the side that accepts: the Welcome goes first.
    pub fn welcome(&mut self, now: Millis, last_received: u64, welcome: Vec<u8>) -> Result<(), LinkError> {
        self.open(now, last_received, Some(welcome.into()))
    }

    fn open(&mut self, now: Millis, last_received: u64, welcome: Option<Bytes>) -> Result<(), LinkError> {
        self.acknowledged_exactly(last_received)?;
        self.out.clear();
        self.written = 0;
        self.cut_at = None;
        self.heard_at = now;
        if let Some(welcome) = welcome {
            self.queue(now, Kind::Welcome, 0, welcome);
        }
        let first = self.sent - self.unacked.len() as u64 + 1;
        for (seq, (kind, payload)) in (first..).zip(self.unacked.clone()) {
            self.queue(now, kind, seq, payload);
        }
        self.pull();
        Ok(())
    }

    /// The highest number received in order, for the handshake that resumes.
    pub fn last_received(&self) -> u64 {
        self.received
    }

    /// How long nothing has come from the peer.
    pub fn silence(&self, now: Millis) -> Millis {
        now.saturating_sub(self.heard_at)
    }

    /// True while no connection is open.
    pub fn is_cut(&self) -> bool {
        self.cut_at.is_some()
    }

    /// True when bytes wait to be written.
    pub fn wants_write(&self) -> bool {
        !self.out.is_empty()
    }

    /// Bytes sent and not acknowledged yet.
    pub fn unacked_bytes(&self) -> usize {
        self.unacked_bytes
    }

    /// The next bytes to write, as slices for one vectored write; returns how many slices were filled.
    pub fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let (mut filled, mut skip) = (0, self.written);
        for piece in &self.out {
            for part in [&piece.header[..], &piece.payload[..]] {
                if filled == slices.len() {
                    return filled;
                }
                let part = &part[skip.min(part.len())..];
                skip -= skip.min(HEADER);
                if !part.is_empty() {
                    slices[filled] = IoSlice::new(part);
                    filled += 1;
                }
            }
            skip = 0;
        }
        filled
    }

    /// Says that `count` of the bytes given by `slices` were written.
    pub fn wrote(&mut self, count: usize) {
        self.written += count;
        while let Some(piece) = self.out.front() {
            let whole = HEADER + piece.payload.len();
            if self.written < whole {
                break;
            }
            self.written -= whole;
            self.out.pop_front();
        }
        self.pull();
    }

    fn queue(&mut self, now: Millis, kind: Kind, seq: u64, payload: Bytes) {
        self.sent_at = now;
        self.acked = self.received;
        self.unacked_received = 0;
        self.out.push_back(Queued { header: header(kind, seq, self.received, payload.len()), payload });
    }

    fn acknowledged(&mut self, ack: u64) -> Result<(), LinkError> {
        let known = self.sent - self.unacked.len() as u64;
        if ack <= known { Ok(()) } else { self.acknowledged_exactly(ack) }
    }

    fn acknowledged_exactly(&mut self, ack: u64) -> Result<(), LinkError> {
        let known = self.sent - self.unacked.len() as u64;
        if ack < known || ack > self.sent {
            return Err(LinkError::Ack { claimed: ack, from: known, to: self.sent });
        }
        for (_, payload) in self.unacked.drain(..(ack - known) as usize) {
            self.unacked_bytes -= payload.len() + HEADER;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
