//! Pieces: bytes that never come to the host. One worker says by cards where a device's memory holds them, and the other
//! takes them there; what a card means is theirs.
//!
//! ```text
//! put       request | Go | card, answered by Done when it is taken | ... | an empty card, answered by Done
//! card      u16 length | bytes
//! ```

use std::io;

use super::BulkError;
use super::wire::{Reply, read_exact, read_reply, refused};
use crate::stream::Stream;

/// Bytes of a card at most.
const LONGEST: usize = 4096;

/// The end that shows cards.
pub struct Pieces<'a> {
    pub(super) stream: &'a Stream,
}

impl Pieces<'_> {
    /// Shows where a piece lies, without waiting until it is taken.
    pub fn show(&mut self, card: &[u8]) -> Result<(), BulkError> {
        if card.is_empty() || card.len() > LONGEST {
            let expected = format!("a card of 1 to {LONGEST} bytes");
            return Err(BulkError::Mismatch { expected, got: format!("{} bytes", card.len()) });
        }
        self.write(card)
    }

    /// Waits until the oldest piece that has not been waited for is taken.
    pub fn taken(&mut self) -> Result<(), BulkError> {
        match read_reply(self.stream)?.0 {
            Reply::Done { .. } => Ok(()),
            other => Err(refused(other)),
        }
    }

    /// Says that all has been shown, and waits until the tensor is there.
    pub(super) fn end(&mut self) -> Result<(), BulkError> {
        self.write(&[])?;
        self.taken()
    }

    fn write(&self, card: &[u8]) -> Result<(), BulkError> {
        let mut bytes = (card.len() as u16).to_le_bytes().to_vec();
        bytes.extend_from_slice(card);
        Ok(self.stream.write_all(&bytes)?)
    }
}

/// The end that takes the pieces of one tensor.
pub trait TakesPieces {
    /// Takes a piece; returns when its memory is not looked at any more.
    fn take(&mut self, card: &[u8]) -> Result<(), String>;
    /// All pieces were taken.
    fn end(self: Box<Self>) -> Result<(), String>;
}

/// The next card; `None` for the empty one.
pub(super) fn read_card(stream: &Stream) -> io::Result<Option<Vec<u8>>> {
    let mut len = [0; 2];
    read_exact(stream, &mut len)?;
    let len = u16::from_le_bytes(len) as usize;
    if len > LONGEST {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "bulk: a card is too long"));
    }
    let mut card = vec![0; len];
    read_exact(stream, &mut card)?;
    Ok(Some(card).filter(|card| !card.is_empty()))
}
