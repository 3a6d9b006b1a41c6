//! Frames: length-prefixed, bounded, numbered. This layer knows nothing of what a payload means.
//!
//! ```text
//! u32 payload length | u8 (frame version << 4 | kind) | u64 seq | u64 ack | payload      (little endian)
//! ```

use thiserror::Error;

/// Bytes of a frame before its payload.
pub const HEADER: usize = 4 + 1 + 8 + 8;
/// The largest payload of a control frame; a bigger one is refused from its header alone.
pub const MAX_PAYLOAD: usize = 64 << 20;
/// The largest payload of a piece frame; small, because a message that comes meanwhile waits for one of them.
pub const MAX_PIECE: usize = (512 << 10) + 64;
/// The version of the frame layout itself, in the high half of the kind byte.
pub const FRAME_VERSION: u8 = 1;

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Opens a connection; first frame from the side that connects.
    Hello = 1,
    /// Accepts a Hello.
    Welcome = 2,
    /// Refuses a Hello; the connection ends.
    Refuse = 3,
    /// A numbered message of the meaning layer.
    Data = 4,
    /// Says "alive" and carries an acknowledgement.
    Heartbeat = 5,
    /// Ends the link for good; the payload is a reason in UTF-8.
    Close = 6,
    /// A numbered piece of a tensor that is relayed, or a word about one; messages overtake it before it is numbered.
    Piece = 7,
}

impl Kind {
    fn from_byte(byte: u8) -> Result<Kind, FrameError> {
        if byte >> 4 != FRAME_VERSION {
            return Err(FrameError::Version(byte >> 4));
        }
        Ok(match byte & 0xf {
            1 => Kind::Hello,
            2 => Kind::Welcome,
            3 => Kind::Refuse,
            4 => Kind::Data,
            5 => Kind::Heartbeat,
            6 => Kind::Close,
            7 => Kind::Piece,
            other => return Err(FrameError::Kind(other)),
        })
    }
}

/// Why bytes are not a frame. The connection they came from cannot be trusted any further.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum FrameError {
    /// The header announces more than the reader accepts.
    #[error("frame: payload too long, got {got} bytes, at most {max} are accepted")]
    TooLong {
        /// The announced length.
        got: usize,
        /// The longest accepted.
        max: usize,
    },
    /// The frame layout is of another version, or this is no GT peer at all.
    #[error(
        "frame: unknown frame version {0}, expected {FRAME_VERSION}: the other side does not speak GT's protocol"
    )]
    Version(u8),
    /// The kind is unknown.
    #[error("frame: unknown kind {0}")]
    Kind(u8),
}

/// One frame, borrowed from the decoder that found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// What it is for.
    pub kind: Kind,
    /// Its number; Data frames count from 1 in each direction, others carry 0.
    pub seq: u64,
    /// The highest Data number the sender has received in order.
    pub ack: u64,
    /// The bytes of the meaning layer.
    pub payload: &'a [u8],
}

impl Frame<'_> {
    /// The whole frame as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER + self.payload.len());
        bytes.extend_from_slice(&header(self.kind, self.seq, self.ack, self.payload.len()));
        bytes.extend_from_slice(self.payload);
        bytes
    }
}

/// The header of a frame whose payload has `len` bytes, at most `MAX_PAYLOAD`.
pub fn header(kind: Kind, seq: u64, ack: u64, len: usize) -> [u8; HEADER] {
    debug_assert!(len <= MAX_PAYLOAD);
    let mut bytes = [0; HEADER];
    bytes[..4].copy_from_slice(&(len as u32).to_le_bytes());
    bytes[4] = FRAME_VERSION << 4 | kind as u8;
    bytes[5..13].copy_from_slice(&seq.to_le_bytes());
    bytes[13..].copy_from_slice(&ack.to_le_bytes());
    bytes
}

/// Finds frames in bytes that arrive in any pieces. Holds what arrived and nothing more.
#[derive(Debug)]
pub struct Decoder {
    buffer: Vec<u8>,
    start: usize,
    max: usize,
}

impl Decoder {
    /// A decoder that accepts payloads of up to `max` bytes.
    pub fn new(max: usize) -> Self {
        Decoder { buffer: Vec::new(), start: 0, max: max.min(MAX_PAYLOAD) }
    }

    /// Accepts payloads of up to `max` bytes from the next frame on.
    pub fn set_max(&mut self, max: usize) {
        self.max = max.min(MAX_PAYLOAD);
    }

    /// Adds bytes that arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.start = 0;
            // A rare huge frame does not pin its memory for the rest of the connection.
            if self.buffer.capacity() > 1 << 20 {
                self.buffer = Vec::new();
            }
        } else if self.start > self.buffer.len() / 2 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame, `None` until more bytes arrive. After an error the decoder stays in error.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Frame<'_>>, FrameError> {
        let waiting = &self.buffer[self.start..];
        let Some((head, rest)) = waiting.split_first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let len = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let kind = Kind::from_byte(head[4])?;
        let max = if kind == Kind::Piece { self.max.min(MAX_PIECE) } else { self.max };
        if len > max {
            return Err(FrameError::TooLong { got: len, max });
        }
        if rest.len() < len {
            return Ok(None);
        }
        let number = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&head[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        let (seq, ack) = (number(5), number(13));
        let from = self.start + HEADER;
        self.start = from + len;
        Ok(Some(Frame { kind, seq, ack, payload: &self.buffer[from..from + len] }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kind() -> impl Strategy<Value = Kind> {
        (1u8..=7).prop_map(|byte| Kind::from_byte(FRAME_VERSION << 4 | byte).unwrap())
    }

    fn frames() -> impl Strategy<Value = Vec<(Kind, u64, u64, Vec<u8>)>> {
        let payload = prop::collection::vec(any::<u8>(), 0..200);
        prop::collection::vec((kind(), any::<u64>(), any::<u64>(), payload), 0..20)
    }

    proptest! {
        #[test]
        fn frames_survive_any_splitting(frames in frames(), cuts in prop::collection::vec(1usize..97, 1..50)) {
            let bytes: Vec<u8> = frames
                .iter()
                .flat_map(|(kind, seq, ack, payload)| Frame { kind: *kind, seq: *seq, ack: *ack, payload }.to_bytes())
                .collect();
            let (mut decoder, mut found, mut rest) = (Decoder::new(MAX_PAYLOAD), Vec::new(), &bytes[..]);
            for cut in cuts.iter().cycle() {
                let (now, later) = rest.split_at((*cut).min(rest.len()));
                decoder.push(now);
                while let Some(f) = decoder.next().unwrap() {
                    found.push((f.kind, f.seq, f.ack, f.payload.to_vec()));
                }
                rest = later;
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(found, frames);
        }

        #[test]
        fn garbage_never_panics_nor_allocates(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..30)) {
            let mut decoder = Decoder::new(1 << 16);
            let mut arrived = 0;
            'all: for piece in &pieces {
                decoder.push(piece);
                arrived += piece.len();
                loop {
                    match decoder.next() {
                        Ok(Some(frame)) => prop_assert!(frame.payload.len() <= arrived),
                        Ok(None) => break,
                        Err(_) => break 'all,
                    }
                }
            }
            prop_assert!(decoder.buffer.capacity() <= 2 * arrived + 64);
        }
    }

    #[test]
    fn a_huge_length_is_refused_from_the_header() {
        let mut decoder = Decoder::new(100);
        let mut head = header(Kind::Data, 1, 0, 0);
        head[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        decoder.push(&head);
        assert_eq!(decoder.next(), Err(FrameError::TooLong { got: u32::MAX as usize, max: 100 }));
        assert!(decoder.buffer.capacity() < 100);
    }

    #[test]
    fn a_long_piece_is_refused_from_the_header() {
        let mut decoder = Decoder::new(MAX_PAYLOAD);
        decoder.push(&header(Kind::Piece, 1, 0, MAX_PIECE + 1));
        assert_eq!(decoder.next(), Err(FrameError::TooLong { got: MAX_PIECE + 1, max: MAX_PIECE }));
    }

    #[test]
    fn another_protocol_is_named_as_such() {
        let mut decoder = Decoder::new(MAX_PAYLOAD);
        decoder.push(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        assert!(decoder.next().unwrap_err().to_string().contains("does not speak GT"));
    }
}
