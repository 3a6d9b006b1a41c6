//! Tensors that pass through the server in pieces, where client and worker cannot reach each other (C11).
//!
//! Pieces ride in frames of their own kind, numbered like messages and overtaken by them. The receiving end says how
//! far it has taken a transfer, and the sending end goes at most `WINDOW` bytes beyond: that is all the server ever
//! holds of one. A part on the wire:
//!
//! ```text
//! u8 (direction << 4 | what) | u64 transfer | u64 session | u64 name | u64 total | u64 at | data     (little endian)
//! ```

use gt_ir::{Error, Result, bail};

use crate::bulk::Dir;
use crate::frame::MAX_PIECE;

/// Bytes of a tensor in one piece.
pub const PIECE: usize = 512 << 10;
/// Bytes that may be on their way beyond what the receiving end has taken.
pub const WINDOW: u64 = 8 << 20;
/// The receiving end says how far it is at least this often.
const TELL: u64 = WINDOW / 4;
/// The longest reason of a stop.
const MAX_REASON: usize = 4096;
const HEAD: usize = 1 + 5 * 8;
const _: () = assert!(HEAD + PIECE <= MAX_PIECE && TELL >= PIECE as u64);

/// What a part says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The bytes from `at` on.
    Bytes,
    /// Everything before `at` was taken; with 0 the server asks for the first bytes.
    Taken,
    /// The transfer is over before its end, and why.
    Stop,
}

/// One step of a transfer, to or from the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'a> {
    pub what: What,
    /// To the worker (`Put`) or from it (`Get`).
    pub dir: Dir,
    /// The server's number for the transfer, never used again.
    pub transfer: u64,
    pub session: u64,
    /// The tensor; between server and client the request instead, when it is a `Get`.
    pub name: u64,
    /// Bytes of the whole tensor; the server's first word may not know them and says 0.
    pub total: u64,
    pub at: u64,
    /// The bytes, or the reason of a stop.
    pub data: &'a [u8],
}

impl<'a> Part<'a> {
    /// The payload of a piece frame.
    pub fn encode(&self) -> Vec<u8> {
        let what = match self.what {
            What::Bytes => 0,
            What::Taken => 1,
            What::Stop => 2,
        };
        let mut bytes = Vec::with_capacity(HEAD + self.data.len());
        bytes.push(((self.dir == Dir::Get) as u8) << 4 | what);
        for number in [self.transfer, self.session, self.name, self.total, self.at] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(self.data);
        bytes
    }

    /// Reads what `encode` wrote; what it refuses was not written by a GT peer.
    pub fn decode(bytes: &'a [u8]) -> Result<Part<'a>> {
        let Some((head, data)) = bytes.split_first_chunk::<HEAD>() else {
            bail!(Connection, "relay: a part of {} bytes, at least {HEAD} are needed", bytes.len());
        };
        let (what, longest) = match head[0] & 0xf {
            0 => (What::Bytes, PIECE),
            1 => (What::Taken, 0),
            2 => (What::Stop, MAX_REASON),
            other => bail!(Connection, "relay: unknown part {other}"),
        };
        let dir = match head[0] >> 4 {
            0 => Dir::Put,
            1 => Dir::Get,
            other => bail!(Connection, "relay: unknown direction {other}"),
        };
        if data.len() > longest || (what == What::Bytes && data.is_empty()) {
            bail!(Connection, "relay: {what:?} with {} bytes, at most {longest} are allowed", data.len());
        }
        let mut numbers = [0; 5];
        for (number, place) in numbers.iter_mut().zip(head[1..].chunks_exact(8)) {
            let mut word = [0; 8];
            word.copy_from_slice(place);
            *number = u64::from_le_bytes(word);
        }
        let [transfer, session, name, total, at] = numbers;
        let part = Part { what, dir, transfer, session, name, total, at, data };
        if part.end().is_none_or(|end| what == What::Bytes && end > total) {
            bail!(Connection, "relay: bytes {at} to {} of {total}", at.saturating_add(data.len() as u64));
        }
        Ok(part)
    }

    /// Where the part's bytes end; `None` when no tensor is so large.
    pub fn end(&self) -> Option<u64> {
        self.at.checked_add(self.data.len() as u64)
    }

    /// The same transfer's word that everything before `at` was taken.
    pub fn taken(&self, at: u64) -> Part<'static> {
        Part { what: What::Taken, at, data: &[], ..*self }
    }

    /// The same transfer's end, and why.
    pub fn stop<'b>(&self, reason: &'b str) -> Part<'b> {
        let end = (0..=reason.len().min(MAX_REASON)).rev().find(|&end| reason.is_char_boundary(end));
        let data = &reason.as_bytes()[..end.unwrap_or(0)];
        Part { what: What::Stop, at: 0, data, ..*self }
    }

    /// The reason of a stop.
    pub fn reason(&self) -> String {
        String::from_utf8_lossy(self.data).into_owned()
    }
}

/// The sending end of a transfer.
#[derive(Debug, Default)]
pub struct Source {
    sent: u64,
    taken: u64,
}

impl Source {
    /// Hears a `Taken` about `bytes`, and gives the pieces that may go now.
    pub fn feed(&mut self, bytes: &[u8], taken: &Part) -> Result<Vec<Vec<u8>>> {
        let total = bytes.len() as u64;
        if taken.at < self.taken || taken.at > self.sent {
            bail!(Connection, "relay: taken up to {}, expected {} to {}", taken.at, self.taken, self.sent);
        }
        self.taken = taken.at;
        let mut pieces = Vec::new();
        while self.sent < total.min(self.taken + WINDOW) {
            let end = total.min(self.sent + PIECE as u64).min(self.taken + WINDOW);
            let data = &bytes[self.sent as usize..end as usize];
            pieces.push(Part { what: What::Bytes, total, at: self.sent, data, ..*taken }.encode());
            self.sent = end;
        }
        Ok(pieces)
    }

    /// True when the other end has all of so many bytes.
    pub fn is_done(&self, bytes: usize) -> bool {
        self.taken == bytes as u64
    }
}

/// The receiving end of a transfer.
#[derive(Debug)]
pub struct Sink {
    bytes: Vec<u8>,
    total: u64,
    told: u64,
}

impl Sink {
    /// Takes `total` bytes into the memory of `room`, which is enlarged where it is too small.
    pub fn new(mut room: Vec<u8>, total: u64) -> Sink {
        room.clear();
        Sink { bytes: room, total, told: 0 }
    }

    /// Takes a piece; gives the word to send back, when one is due.
    pub fn fill(&mut self, part: &Part) -> Result<Option<Part<'static>>> {
        let (total, at) = (self.total, self.bytes.len() as u64);
        if part.total != total || part.at != at || part.end().is_none_or(|end| end > total) {
            bail!(
                Connection,
                "relay: got {} bytes at {} of {}, expected those at {at} of {total}",
                part.data.len(),
                part.at,
                part.total
            );
        }
        self.bytes.extend_from_slice(part.data);
        let end = self.bytes.len() as u64;
        let due = self.is_full() || end - self.told >= TELL;
        if due {
            self.told = end;
        }
        Ok(due.then(|| part.taken(end)))
    }

    /// True when every byte has come.
    pub fn is_full(&self) -> bool {
        self.bytes.len() as u64 == self.total
    }

    /// The bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// The error of a transfer that was stopped.
pub fn stopped(what: &str, reason: &str) -> Error {
    Error::Connection(format!("{what}: the relay through the server was stopped: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ASK: Part = Part {
        what: What::Taken,
        dir: Dir::Put,
        transfer: 7,
        session: 2,
        name: 3,
        total: 0,
        at: 0,
        data: &[],
    };

    #[test]
    fn any_size_passes_within_the_window() {
        for total in [1, PIECE - 1, PIECE, PIECE + 1, WINDOW as usize, 3 * WINDOW as usize + 17] {
            let bytes: Vec<u8> = (0..total).map(|i| (i % 251) as u8).collect();
            let (mut source, mut sink) = (Source::default(), Sink::new(Vec::new(), total as u64));
            let mut way: std::collections::VecDeque<_> = source.feed(&bytes, &ASK).unwrap().into();
            while let Some(piece) = way.pop_front() {
                let on_way: usize = way.iter().map(|p| p.len() - HEAD).sum();
                assert!(on_way as u64 <= WINDOW);
                if let Some(word) = sink.fill(&Part::decode(&piece).unwrap()).unwrap() {
                    let word = word.encode();
                    way.extend(source.feed(&bytes, &Part::decode(&word).unwrap()).unwrap());
                }
            }
            assert!(source.is_done(total) && sink.is_full());
            assert!(sink.into_bytes() == bytes, "{total} bytes changed");
        }
    }

    #[test]
    fn wrong_sizes_and_offsets_are_refused() {
        let data = [0; 10];
        let piece = Part { what: What::Bytes, total: 20, data: &data, ..ASK };
        let mut sink = Sink::new(Vec::new(), 20);
        for wrong in [Part { at: 1, ..piece }, Part { total: 21, ..piece }] {
            assert!(sink.fill(&wrong).unwrap_err().to_string().contains("expected those at 0 of 20"));
        }
        sink.fill(&piece).unwrap();
        assert!(sink.fill(&piece).is_err(), "twice");
        assert_eq!(sink.fill(&Part { at: 10, ..piece }).unwrap().map(|p| p.at), Some(20));
        let mut source = Source::default();
        assert!(source.feed(&data, &Part { at: 1, ..ASK }).is_err(), "taken before it was sent");
        source.feed(&data, &ASK).unwrap();
        assert!(source.feed(&data, &Part { at: 11, ..ASK }).is_err());
        for wrong in [Part { at: 11, ..piece }, Part { at: u64::MAX, ..piece }, Part { data: &[], ..piece }] {
            assert!(Part::decode(&wrong.encode()).is_err(), "{wrong:?}");
        }
        let long = vec![0; PIECE + 1];
        assert!(Part::decode(&Part { total: 1 << 40, data: &long, ..piece }.encode()).is_err());
    }

    #[test]
    fn a_long_reason_is_cut_at_a_character() {
        let reason = "é".repeat(MAX_REASON);
        let stop = ASK.stop(&reason).encode();
        let part = Part::decode(&stop).unwrap();
        assert!(reason.starts_with(&part.reason()) && part.data.len() == MAX_REASON);
    }

    proptest! {
        #[test]
        fn garbage_is_refused_without_panic(
            junk in prop::collection::vec(any::<u8>(), 0..100),
            numbers in any::<[u64; 5]>(),
            head in 0u8..40,
        ) {
            let mut near = vec![head];
            numbers.iter().for_each(|n| near.extend(n.to_le_bytes()));
            near.extend(&junk);
            for bytes in [&junk, &near] {
                if let Ok(part) = Part::decode(bytes) {
                    prop_assert_eq!(&part.encode(), bytes);
                    let _ = Sink::new(Vec::new(), 50).fill(&part);
                    let _ = Source::default().feed(&junk, &part);
                }
            }
        }
    }
}
