//! The bytes of a bulk connection: a fixed request, a fixed reply, descriptors beside them, data after them.
//!
//! ```text
//! request   "GTbk" | u8 version | u8 how (0 stream, 1 memfd, 2 letters, 3 pieces) | ticket
//! reply     u8 status | u8 kept | u64 length | text of a refusal
//! ```

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

use super::BulkError;
use super::ticket::{TICKET, Ticket};
use crate::stream::Stream;

const MAGIC: [u8; 4] = *b"GTbk";
const VERSION: u8 = 1;
const REQUEST: usize = 6 + TICKET;
const REPLY: usize = 10;
/// The longest text of a refusal.
const MAX_TEXT: usize = 4096;

/// How the bytes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// On the socket itself.
    Stream,
    /// In a memfd whose descriptor is passed; for a get: if the worker likes.
    Memfd,
    /// As letters, from now on and until the connection ends.
    Letters,
    /// From device to device; cards say where they lie.
    Pieces,
}

/// What the worker answers.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply {
    /// The put is done, and whether the worker kept the segment.
    Done { kept: bool },
    /// The client may stream its bytes.
    Go,
    /// So many bytes follow on the socket.
    Bytes(u64),
    /// So many bytes lie in the segment whose descriptor came along; one byte back says they were taken.
    Segment(u64),
    /// The transfer did not happen.
    Refused(String),
}

/// Sends a request, with the descriptor of a filled segment for a put by memfd.
pub fn send_request(stream: &Stream, how: How, ticket: &Ticket, fd: Option<impl AsFd>) -> io::Result<()> {
    let mut bytes = [0; REQUEST];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4] = VERSION;
    bytes[5] = how as u8;
    bytes[6..].copy_from_slice(&ticket.to_bytes());
    send(stream, &bytes, fd)
}

/// The next request and the descriptor that came with it; `None` at the end of the connection.
pub fn read_request(stream: &Stream) -> io::Result<Option<(How, Ticket, Option<OwnedFd>)>> {
    let mut bytes = [0; REQUEST];
    let (full, fd) = receive(stream, &mut bytes)?;
    if !full {
        return Ok(None);
    }
    if bytes[..4] != MAGIC || bytes[4] != VERSION {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "bulk: no request of this version"));
    }
    let how = match bytes[5] {
        0 => How::Stream,
        1 => How::Memfd,
        2 => How::Letters,
        3 => How::Pieces,
        _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "bulk: no request of this version")),
    };
    let mut ticket = [0; TICKET];
    ticket.copy_from_slice(&bytes[6..]);
    Ok(Some((how, Ticket::from_bytes(&ticket), fd)))
}

/// Sends a reply, with the descriptor that a `Segment` speaks of.
pub fn send_reply(stream: &Stream, reply: &Reply, fd: Option<impl AsFd>) -> io::Result<()> {
    let (status, kept, len, text) = match reply {
        Reply::Done { kept } => (0, *kept, 0, ""),
        Reply::Go => (1, false, 0, ""),
        Reply::Bytes(len) => (2, false, *len, ""),
        Reply::Segment(len) => (3, false, *len, ""),
        Reply::Refused(text) => {
            let end = (0..=text.len().min(MAX_TEXT)).rev().find(|&end| text.is_char_boundary(end));
            let text = &text[..end.unwrap_or(0)];
            (4, false, text.len() as u64, text)
        }
    };
    let mut bytes = vec![status, kept as u8];
    bytes.extend_from_slice(&len.to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
    send(stream, &bytes, fd)
}

/// Reads a reply and the descriptor that came with it.
pub fn read_reply(stream: &Stream) -> io::Result<(Reply, Option<OwnedFd>)> {
    let mut bytes = [0; REPLY];
    let (full, fd) = receive(stream, &mut bytes)?;
    if !full {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut len = [0; 8];
    len.copy_from_slice(&bytes[2..]);
    let len = u64::from_le_bytes(len);
    let reply = match bytes[0] {
        0 => Reply::Done { kept: bytes[1] != 0 },
        1 => Reply::Go,
        2 => Reply::Bytes(len),
        3 => Reply::Segment(len),
        4 if len <= MAX_TEXT as u64 => {
            let mut text = vec![0; len as usize];
            read_exact(stream, &mut text)?;
            Reply::Refused(String::from_utf8_lossy(&text).into_owned())
        }
        _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "bulk: a reply of another version")),
    };
    Ok((reply, fd))
}

/// Fills the buffer from the socket.
pub fn read_exact(stream: &Stream, mut buffer: &mut [u8]) -> io::Result<()> {
    while !buffer.is_empty() {
        match stream.read(buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => buffer = &mut buffer[count..],
        }
    }
    Ok(())
}

fn send(stream: &Stream, bytes: &[u8], fd: Option<impl AsFd>) -> io::Result<()> {
    let Some(fd) = fd else { return stream.write_all(bytes) };
    let fds = [fd.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    let sent = loop {
        match rustix::net::sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
            Err(rustix::io::Errno::INTR) => {}
            result => break result?,
        }
    };
    stream.write_all(&bytes[sent..])
}

/// Fills the buffer, collecting a descriptor on the way; false when the stream ended before the first byte.
fn receive(stream: &Stream, bytes: &mut [u8]) -> io::Result<(bool, Option<OwnedFd>)> {
    let (mut filled, mut found) = (0, None);
    while filled < bytes.len() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut slices = [IoSliceMut::new(&mut bytes[filled..])];
        let count = match rustix::net::recvmsg(stream, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(message) => message.bytes,
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                // Descriptors beyond the one expected are closed by being dropped.
                for fd in fds {
                    found.get_or_insert(fd);
                }
            }
        }
        match count {
            0 if filled == 0 => return Ok((false, None)),
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => filled += count,
        }
    }
    Ok((true, found))
}

/// The error that an unwelcome reply stands for.
pub fn refused(reply: Reply) -> BulkError {
    match reply {
        Reply::Refused(text) => BulkError::Refused(text),
        other => BulkError::Refused(format!("unexpected reply {other:?}")),
    }
}
