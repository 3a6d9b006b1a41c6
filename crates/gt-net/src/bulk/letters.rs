//! Letters: what one worker writes to another on a connection that stays, one after the other and without answers.
//!
//! ```text
//! letter    u64 length | bytes
//! ```

use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::time::Duration;

use gt_sync::Mutex;

use super::wire::{How, Reply, read_exact, read_reply, refused, send_request};
use super::{BulkError, Endpoint, Ticket};
use crate::shm::Shm;
use crate::stream::Stream;

/// Bytes of a letter at most.
const LONGEST: u64 = 256 << 20;

/// The writing end.
pub struct LetterStream {
    stream: Stream,
    /// Held while a letter is written, so that none is torn.
    writing: Mutex<()>,
}

/// How long the other side may take to admit this one.
const PATIENCE: Duration = Duration::from_secs(30);

impl LetterStream {
    /// Connects to a worker; the ticket is for a put of no bytes, and good for all letters.
    pub fn open(endpoint: &Endpoint, ticket: &Ticket) -> Result<LetterStream, BulkError> {
        let stream = super::client::open(endpoint)?;
        stream.set_timeouts(Some(PATIENCE))?;
        send_request(&stream, How::Letters, ticket, None::<&Shm>)?;
        match read_reply(&stream)?.0 {
            Reply::Go => stream.set_timeouts(None)?,
            other => return Err(refused(other)),
        }
        Ok(LetterStream { stream, writing: Mutex::default() })
    }

    /// Writes a letter made of these parts. Waits while the other side has no room.
    pub fn send(&self, parts: &[&[u8]]) -> io::Result<()> {
        let len = parts.iter().map(|part| part.len() as u64).sum::<u64>().to_le_bytes();
        let mut slices: Vec<IoSlice> = Vec::with_capacity(parts.len() + 1);
        slices.push(IoSlice::new(&len));
        slices.extend(parts.iter().filter(|part| !part.is_empty()).map(|part| IoSlice::new(part)));
        let _writing = self.writing.lock();
        self.stream.write_slices(&mut slices)
    }

    /// Ends the connection; whoever is writing fails.
    pub fn close(&self) {
        self.stream.shutdown(Shutdown::Both);
    }
}

/// The next letter; `None` at the end of the connection.
pub(super) fn read_letter(stream: &Stream) -> io::Result<Option<Vec<u8>>> {
    let mut len = [0; 8];
    match stream.read(&mut len)? {
        0 => return Ok(None),
        got => read_exact(stream, &mut len[got..])?,
    }
    let len = u64::from_le_bytes(len);
    if len > LONGEST {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "bulk: a letter is too long"));
    }
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len as usize).map_err(|_| io::ErrorKind::OutOfMemory)?;
    bytes.resize(len as usize, 0);
    read_exact(stream, &mut bytes)?;
    Ok(Some(bytes))
}
