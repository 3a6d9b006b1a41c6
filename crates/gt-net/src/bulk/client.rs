//! The asking end of the data plane: puts and gets, over a few kept connections per worker.

use std::collections::HashMap;
use std::io;
use std::net::Shutdown;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use gt_sync::Mutex;
use rustix::net::RecvFlags;

use super::wire::{How, Reply, read_exact, read_reply, refused, send_request};
use super::{BulkError, Dir, Endpoint, Pieces, Ticket, host_id};
use crate::addr::Addr;
use crate::shm::{Shm, ShmPool, inode};
use crate::stream::Stream;

/// Bytes read between two counts.
const COUNTED: usize = 4 << 20;
/// Unused connections kept per worker.
const KEPT: usize = 4;
/// How long a worker may be silent within a transfer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Unused segments kept warm.
const WARM_BYTES: usize = 512 << 20;
/// The worker's segments whose mappings are kept warm for each connection.
const WARM_SEGMENTS: usize = 4;
/// Smaller puts are streamed on the socket.
const MEMFD_FROM: usize = 32 << 10;

/// Makes bulk transfers; shared by all threads of a process.
pub struct BulkClient {
    idle: Mutex<HashMap<Endpoint, Vec<Connection>>>,
    pool: ShmPool,
}

struct Connection {
    stream: Stream,
    /// The worker's segments, mapped.
    known: Vec<Shm>,
}

impl Default for BulkClient {
    fn default() -> Self {
        BulkClient { idle: Mutex::default(), pool: ShmPool::new(WARM_BYTES) }
    }
}

impl BulkClient {
    /// A client without connections yet.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// A warm segment to fill and `put_shm`, which then costs no copy on the worker's host.
    pub fn segment(&self, len: usize) -> io::Result<Shm> {
        self.pool.take(len)
    }

    /// Brings bytes to a worker.
    pub fn put(&self, endpoint: &Endpoint, ticket: &Ticket, bytes: &[u8]) -> Result<(), BulkError> {
        check(ticket, Dir::Put, bytes.len())?;
        let connection = self.connect(endpoint)?;
        if !connection.passes(bytes.len()) {
            return self.stream_put(endpoint, connection, ticket, bytes);
        }
        let mut shm = self.pool.take(bytes.len())?;
        crate::copy::copy(shm.as_mut_slice(), bytes);
        let kept = self.pass(endpoint, connection, ticket, &shm)?;
        self.recycle(shm, kept);
        Ok(())
    }

    /// Brings a filled segment to a worker, by descriptor when it is on this host. On failure the segment comes
    /// back, so that its bytes can go another way.
    pub fn put_shm(&self, endpoint: &Endpoint, ticket: &Ticket, shm: Shm) -> Result<(), (BulkError, Shm)> {
        let sent = check(ticket, Dir::Put, shm.len()).and_then(|()| {
            let connection = self.connect(endpoint)?;
            if connection.passes(shm.len()) {
                return self.pass(endpoint, connection, ticket, &shm);
            }
            self.stream_put(endpoint, connection, ticket, shm.as_slice()).map(|()| false)
        });
        match sent {
            Ok(kept) => {
                self.recycle(shm, kept);
                Ok(())
            }
            Err(error) => Err((error, shm)),
        }
    }

    /// Lets a worker of this host have a segment that stays in use here: from now on both see it.
    pub fn lend(&self, endpoint: &Endpoint, ticket: &Ticket, shm: &Shm) -> Result<(), BulkError> {
        check(ticket, Dir::Put, shm.len())?;
        let connection = self.connect(endpoint)?;
        if !connection.passes(shm.len()) {
            return Err(BulkError::Unreachable("memory is shared on one host only".into()));
        }
        self.pass(endpoint, connection, ticket, shm).map(|_| ())
    }

    /// Brings a tensor from device to device: `give` shows where its pieces lie. A ticket that is refused here is good
    /// for another put.
    pub fn put_pieces(
        &self,
        endpoint: &Endpoint,
        ticket: &Ticket,
        give: impl FnOnce(&mut Pieces) -> Result<(), BulkError>,
    ) -> Result<(), BulkError> {
        let connection = self.connect(endpoint)?;
        if !matches!(connection.stream, Stream::Unix(_)) {
            return Err(BulkError::Unreachable("devices share memory on one host only".into()));
        }
        send_request(&connection.stream, How::Pieces, ticket, None::<&Shm>)?;
        match read_reply(&connection.stream)?.0 {
            Reply::Go => {}
            other => return Err(refused(other)),
        }
        let mut pieces = Pieces { stream: &connection.stream };
        give(&mut pieces)?;
        pieces.end()?;
        self.keep(endpoint, connection);
        Ok(())
    }

    /// Fetches a tensor's bytes into `into`, which has the ticket's size.
    pub fn get(&self, endpoint: &Endpoint, ticket: &Ticket, into: &mut [u8]) -> Result<(), BulkError> {
        self.get_counted(endpoint, ticket, into, &AtomicUsize::new(0))
    }

    /// The same; `come` counts the bytes as they come.
    pub fn get_counted(
        &self,
        endpoint: &Endpoint,
        ticket: &Ticket,
        into: &mut [u8],
        come: &AtomicUsize,
    ) -> Result<(), BulkError> {
        check(ticket, Dir::Get, into.len())?;
        let mut connection = self.connect(endpoint)?;
        let how = if connection.passes(into.len()) { How::Memfd } else { How::Stream };
        send_request(&connection.stream, how, ticket, None::<&Shm>)?;
        match read_reply(&connection.stream)? {
            (Reply::Bytes(len), _) if len == into.len() as u64 => {
                for part in into.chunks_mut(COUNTED) {
                    read_exact(&connection.stream, part)?;
                    come.fetch_add(part.len(), Ordering::Relaxed);
                }
            }
            (Reply::Segment(len), Some(fd)) if len == into.len() as u64 => {
                let shm = connection.map(fd, into.len())?;
                crate::copy::copy(into, &shm.as_slice()[..into.len()]);
                connection.stream.write_all(&[1])?;
            }
            (other, _) => return Err(refused(other)),
        }
        self.keep(endpoint, connection);
        Ok(())
    }

    /// Fetches a tensor's bytes.
    pub fn get_vec(&self, endpoint: &Endpoint, ticket: &Ticket) -> Result<Vec<u8>, BulkError> {
        let mut bytes = vec![0; ticket.bytes as usize];
        self.get(endpoint, ticket, &mut bytes)?;
        Ok(bytes)
    }

    fn stream_put(
        &self,
        endpoint: &Endpoint,
        connection: Connection,
        ticket: &Ticket,
        bytes: &[u8],
    ) -> Result<(), BulkError> {
        send_request(&connection.stream, How::Stream, ticket, None::<&Shm>)?;
        match read_reply(&connection.stream)?.0 {
            Reply::Go => connection.stream.write_all(bytes)?,
            other => return Err(refused(other)),
        }
        match read_reply(&connection.stream)?.0 {
            Reply::Done { .. } => self.keep(endpoint, connection),
            other => return Err(refused(other)),
        }
        Ok(())
    }

    /// Passes a segment; true if the worker keeps it.
    fn pass(
        &self,
        endpoint: &Endpoint,
        connection: Connection,
        ticket: &Ticket,
        shm: &Shm,
    ) -> Result<bool, BulkError> {
        send_request(&connection.stream, How::Memfd, ticket, Some(shm))?;
        match read_reply(&connection.stream)?.0 {
            Reply::Done { kept } => {
                self.keep(endpoint, connection);
                Ok(kept)
            }
            other => Err(refused(other)),
        }
    }

    /// A kept segment is the worker's now: writing to it again would change the tensor.
    fn recycle(&self, shm: Shm, kept: bool) {
        if !kept {
            self.pool.give(shm);
        }
    }

    fn connect(&self, endpoint: &Endpoint) -> Result<Connection, BulkError> {
        while let Some(connection) = self.idle.lock().get_mut(endpoint).and_then(Vec::pop) {
            if connection.is_fresh() {
                return Ok(connection);
            }
        }
        let stream = open(endpoint)?;
        stream.set_timeouts(Some(PATIENCE))?;
        Ok(Connection { stream, known: Vec::new() })
    }

    /// Keeps a connection whose last transfer is complete; any other is dropped where it fails.
    fn keep(&self, endpoint: &Endpoint, connection: Connection) {
        let mut idle = self.idle.lock();
        match idle.get_mut(endpoint) {
            Some(kept) if kept.len() < KEPT => kept.push(connection),
            Some(_) => connection.stream.shutdown(Shutdown::Both),
            None => drop(idle.insert(endpoint.clone(), vec![connection])),
        }
    }
}

impl Connection {
    /// True when the other side neither closed nor said anything unasked.
    fn is_fresh(&self) -> bool {
        let peeked = rustix::net::recv(&self.stream, &mut [0u8], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        peeked == Err(rustix::io::Errno::AGAIN)
    }

    /// True when that many bytes go by descriptor.
    fn passes(&self, len: usize) -> bool {
        len >= MEMFD_FROM && matches!(self.stream, Stream::Unix(_))
    }

    /// Maps a worker's segment, or finds the mapping made when it came before.
    fn map(&mut self, fd: std::os::fd::OwnedFd, len: usize) -> io::Result<&Shm> {
        let inode = inode(&fd)?;
        let known = self.known.iter().position(|shm| shm.inode() == inode && shm.capacity() >= len);
        let mut shm = match known {
            Some(at) => self.known.remove(at),
            None => Shm::from_fd(fd, len)?,
        };
        shm.set_len(len);
        if self.known.len() >= WARM_SEGMENTS {
            self.known.remove(0);
        }
        self.known.push(shm);
        self.known.last().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// Shared memory on the same host, TCP elsewhere and where the former fails.
pub(super) fn open(endpoint: &Endpoint) -> Result<Stream, BulkError> {
    let mut trouble = String::from("it gave no address");
    if let Some(name) = endpoint.unix.as_ref().filter(|_| endpoint.host_id == host_id()) {
        match SocketAddr::from_abstract_name(name).and_then(|addr| UnixStream::connect_addr(&addr)) {
            Ok(stream) => return Ok(Stream::Unix(stream)),
            Err(error) => trouble = format!("unix socket {name}: {error}"),
        }
    }
    if let Some((host, port)) = &endpoint.tcp {
        let addr = Addr::Tcp(host.clone(), *port);
        match Stream::connect(&addr, Duration::from_secs(10)) {
            Ok(stream) => return Ok(stream),
            Err(error) => trouble = format!("{addr}: {error}"),
        }
    }
    Err(BulkError::Unreachable(trouble))
}

fn check(ticket: &Ticket, dir: Dir, len: usize) -> Result<(), BulkError> {
    if ticket.dir == dir && ticket.bytes == len as u64 {
        return Ok(());
    }
    let expected = format!("a {:?} of {} bytes", ticket.dir, ticket.bytes);
    Err(BulkError::Mismatch { expected, got: format!("a {dir:?} of {len} bytes") })
}
