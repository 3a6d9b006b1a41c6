//! The worker's end of the data plane: one thread accepts, and each connection has its own.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use gt_sync::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::letters::read_letter;
use super::pieces::read_card;
use super::ticket::{Dir, Spent, Ticket, TicketKey, now_ms};
use super::wire::{How, Reply, read_exact, read_request, send_reply};
use super::{BulkBytes, BulkStore, Endpoint, host_id};
use crate::handshake::random_bytes;
use crate::shm::{Shm, ShmPool};
use crate::stream::Stream;

/// Connections served at a time; further ones are closed at once.
const MAX_CONNECTIONS: usize = 256;
/// How long a new connection may wait with its first request, or any peer within a transfer.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a connection that has shown a good ticket may rest.
const REST: Duration = Duration::from_secs(600);
/// How long warm memory is kept for a connection that rests.
const COOLING: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };
/// Unused segments kept warm for each connection.
const WARM_BYTES: usize = 256 << 20;
/// Clients' segments whose mappings are kept warm for each connection.
const WARM_SEGMENTS: usize = 4;
/// Smaller gets are streamed on the socket.
const MEMFD_FROM: usize = 32 << 10;

/// How a bulk server listens.
#[derive(Clone, Debug)]
pub struct BulkServerOptions {
    /// The address to bind for other hosts, `None` for no TCP.
    pub host: Option<String>,
    /// The TCP port; 0 picks a free one.
    pub port: u16,
    /// The host name others should connect to, where it is not `host`.
    pub advertise: Option<String>,
    /// Listen on an abstract unix socket for the same host.
    pub unix: bool,
    /// The key this worker's tickets are signed with.
    pub key: TicketKey,
}

impl BulkServerOptions {
    /// Loopback TCP on a free port, and the same host's shared memory.
    pub fn new(key: TicketKey) -> Self {
        BulkServerOptions { host: Some("127.0.0.1".into()), port: 0, advertise: None, unix: true, key }
    }
}

/// Serves bulk transfers until dropped.
pub struct BulkServer {
    endpoint: Endpoint,
    shared: Arc<Shared>,
    wake: UnixStream,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    key: TicketKey,
    store: Arc<dyn BulkStore>,
    spent: Spent,
    stopped: AtomicBool,
    connections: Mutex<HashMap<u64, Arc<Stream>>>,
}

impl BulkServer {
    /// Listens and serves on threads of its own.
    pub fn start(options: BulkServerOptions, store: Arc<dyn BulkStore>) -> io::Result<BulkServer> {
        let mut endpoint = Endpoint { tcp: None, unix: None, host_id: host_id().to_string() };
        let mut listeners = Listeners { tcp: None, unix: None };
        if let Some(host) = &options.host {
            let listener = TcpListener::bind((host.as_str(), options.port))?;
            listener.set_nonblocking(true)?;
            let host = options.advertise.clone().unwrap_or_else(|| host.clone());
            endpoint.tcp = Some((host, listener.local_addr()?.port()));
            listeners.tcp = Some(listener);
        }
        if options.unix {
            let name = format!("gt-bulk-{:032x}", u128::from_le_bytes(random_bytes()));
            let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
            listener.set_nonblocking(true)?;
            endpoint.unix = Some(name);
            listeners.unix = Some(listener);
        }
        let shared = Arc::new(Shared {
            key: options.key,
            store,
            spent: Spent::default(),
            stopped: AtomicBool::new(false),
            connections: Mutex::default(),
        });
        let (wake, woken) = UnixStream::pair()?;
        let accepting = shared.clone();
        let thread = thread::Builder::new()
            .name("gt-bulk".into())
            .spawn(move || accepting.accept(&listeners, &woken))?;
        Ok(BulkServer { endpoint, shared, wake, thread: Some(thread) })
    }

    /// Where clients find it.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }
}

impl Drop for BulkServer {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        let _ = self.wake.write(&[1]);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        for stream in self.shared.connections.lock().values() {
            stream.shutdown(Shutdown::Both);
        }
    }
}

struct Listeners {
    tcp: Option<TcpListener>,
    unix: Option<UnixListener>,
}

impl Listeners {
    /// Waits for connections or for `woken`.
    fn wait(&self, woken: &UnixStream) {
        let mut fds = vec![PollFd::new(woken, PollFlags::IN)];
        fds.extend(self.tcp.iter().map(|listener| PollFd::new(listener, PollFlags::IN)));
        fds.extend(self.unix.iter().map(|listener| PollFd::new(listener, PollFlags::IN)));
        let _ = poll(&mut fds, None);
    }

    /// The connections that wait now.
    fn ready(&self) -> Vec<Stream> {
        let tcp = self.tcp.iter().filter_map(|listener| listener.accept().ok());
        let tcp = tcp.map(|(stream, _)| {
            let _ = stream.set_nodelay(true);
            Stream::Tcp(stream)
        });
        let unix = self.unix.iter().filter_map(|listener| listener.accept().ok());
        tcp.chain(unix.map(|(stream, _)| Stream::Unix(stream))).collect()
    }
}

impl Shared {
    fn accept(self: Arc<Self>, listeners: &Listeners, woken: &UnixStream) {
        let mut next = 0u64;
        while !self.stopped.load(Ordering::SeqCst) {
            listeners.wait(woken);
            let ready = listeners.ready();
            if ready.is_empty() {
                // Out of descriptors, most often; or woken to stop.
                thread::sleep(Duration::from_millis(5));
            }
            for stream in ready {
                let stream = Arc::new(stream);
                let mut connections = self.connections.lock();
                if connections.len() >= MAX_CONNECTIONS || stream.set_nonblocking(false).is_err() {
                    continue;
                }
                next += 1;
                connections.insert(next, stream.clone());
                drop(connections);
                let (shared, id) = (self.clone(), next);
                let serve = move || {
                    let _ = Connection::new(&shared, &stream).serve();
                    shared.connections.lock().remove(&id);
                };
                if thread::Builder::new().name("gt-bulk-io".into()).spawn(serve).is_err() {
                    self.connections.lock().remove(&next);
                }
            }
        }
    }
}

struct Connection<'a> {
    shared: &'a Shared,
    stream: &'a Stream,
    /// Segments this client has seen; they never go to another.
    pool: ShmPool,
    /// The client's segments, mapped.
    known: Vec<Arc<Shm>>,
}

impl<'a> Connection<'a> {
    fn new(shared: &'a Shared, stream: &'a Stream) -> Self {
        Connection { shared, stream, pool: ShmPool::new(WARM_BYTES), known: Vec::new() }
    }

    fn serve(&mut self) -> io::Result<()> {
        self.stream.set_timeouts(Some(PATIENCE))?;
        loop {
            self.rest();
            let Some((how, ticket, fd)) = read_request(self.stream)? else { return Ok(()) };
            if let Err(text) = self.admit(&ticket) {
                // Without a good ticket there is nothing more to say.
                return self.reply(Reply::Refused(text));
            }
            self.stream.set_timeouts(Some(PATIENCE))?;
            match ticket.dir {
                Dir::Put if how == How::Letters => return self.letters(&ticket),
                Dir::Put if how == How::Pieces => self.pieces(&ticket)?,
                Dir::Put => self.put(how, &ticket, fd)?,
                // What did not arrive may be asked for again.
                Dir::Get => self.get(how, &ticket).inspect_err(|_| self.shared.spent.refund(&ticket))?,
            }
            self.stream.set_timeouts(Some(REST))?;
        }
    }

    /// Frees the warm memory when no request comes for a while.
    fn rest(&mut self) {
        let mut fds = [PollFd::new(self.stream, PollFlags::IN)];
        if matches!(poll(&mut fds, Some(&COOLING)), Ok(0)) {
            self.pool = ShmPool::new(WARM_BYTES);
            self.known.clear();
        }
    }

    fn admit(&self, ticket: &Ticket) -> Result<(), String> {
        let now = now_ms();
        let verified = self.shared.key.verify(ticket, now);
        verified.and_then(|()| self.shared.spent.spend(ticket, now)).map_err(|error| error.to_string())
    }

    fn reply(&self, reply: Reply) -> io::Result<()> {
        send_reply(self.stream, &reply, None::<&Shm>)
    }

    fn put(&mut self, how: How, ticket: &Ticket, fd: Option<std::os::fd::OwnedFd>) -> io::Result<()> {
        let len = ticket.bytes as usize;
        let (bytes, segment) = match (how, fd) {
            (How::Memfd, Some(fd)) => match self.map(fd, len) {
                Ok(shm) => (BulkBytes::Shm { shm: shm.clone(), offset: 0, len }, Some(shm)),
                Err(error) => return self.reply(Reply::Refused(error.to_string())),
            },
            (How::Memfd, None) => return self.reply(Reply::Refused("bulk: no descriptor came".into())),
            (How::Stream | How::Letters | How::Pieces, _) => {
                let mut bytes = Vec::new();
                if bytes.try_reserve_exact(len).is_err() {
                    return self.reply(Reply::Refused(format!("bulk: no memory for {len} bytes")));
                }
                self.reply(Reply::Go)?;
                let read = Reader(self.stream).take(len as u64).read_to_end(&mut bytes);
                if read.as_ref().is_ok_and(|&count| count < len) || read.is_err() {
                    self.shared.spent.refund(ticket);
                    return read.and(Err(io::ErrorKind::UnexpectedEof.into()));
                }
                (BulkBytes::Vec(bytes), None)
            }
        };
        match self.guarded(|store| store.put(ticket, bytes)) {
            Ok(()) => {
                let kept = segment.as_ref().is_some_and(|shm| Arc::strong_count(shm) > 1);
                if let Some(shm) = segment.filter(|_| !kept) {
                    self.remember(shm);
                }
                self.reply(Reply::Done { kept })
            }
            Err(text) => self.reply(Reply::Refused(text)),
        }
    }

    /// Takes letters until the connection ends. One that is refused ends it: nothing may be missing between others.
    fn letters(&mut self, ticket: &Ticket) -> io::Result<()> {
        self.reply(Reply::Go)?;
        // A worker may have nothing to write for a long time; when it is lost, this one is told and closes.
        self.stream.set_timeouts(None)?;
        while let Some(letter) = read_letter(self.stream)? {
            self.guarded(|store| store.put(ticket, BulkBytes::Vec(letter))).map_err(io::Error::other)?;
        }
        Ok(())
    }

    /// Takes a tensor piece by piece. What is refused may come another way, on another connection.
    fn pieces(&mut self, ticket: &Ticket) -> io::Result<()> {
        let refuse = |text: String| {
            self.shared.spent.refund(ticket);
            self.reply(Reply::Refused(text.clone()))?;
            Err(io::Error::other(text))
        };
        let mut taker = match self.guarded(|store| store.take_pieces(ticket)) {
            Ok(taker) => taker,
            Err(text) => return refuse(text),
        };
        self.reply(Reply::Go)?;
        while let Some(card) = read_card(self.stream)? {
            if let Err(text) = self.guarded(|_| taker.take(&card)) {
                drop(taker);
                return refuse(text);
            }
            self.reply(Reply::Done { kept: false })?;
        }
        match self.guarded(|_| taker.end()) {
            Ok(()) => self.reply(Reply::Done { kept: false }),
            Err(text) => refuse(text),
        }
    }

    fn get(&mut self, how: How, ticket: &Ticket) -> io::Result<()> {
        let bytes = match self.guarded(|store| store.get(ticket)) {
            Ok(bytes) => bytes,
            Err(text) => return self.reply(Reply::Refused(text)),
        };
        let slice = bytes.as_slice();
        if slice.len() as u64 != ticket.bytes {
            let text = format!("bulk: the tensor has {} bytes, the ticket {}", slice.len(), ticket.bytes);
            return self.reply(Reply::Refused(text));
        }
        if how == How::Stream || slice.len() < MEMFD_FROM || matches!(self.stream, Stream::Tcp(_)) {
            self.reply(Reply::Bytes(ticket.bytes))?;
            return self.stream.write_all(slice);
        }
        match &bytes {
            BulkBytes::Shm { shm, .. } if slice.len() == shm.capacity() => self.pass(shm, slice.len()),
            _ => {
                let mut shm = match self.pool.take(slice.len()) {
                    Ok(shm) => shm,
                    Err(error) => return self.reply(Reply::Refused(format!("bulk: {error}"))),
                };
                crate::copy::copy(shm.as_mut_slice(), slice);
                self.pass(&shm, slice.len())?;
                self.pool.give(shm);
                Ok(())
            }
        }
    }

    /// Passes a segment and waits until the client has taken its bytes.
    fn pass(&self, shm: &Shm, len: usize) -> io::Result<()> {
        send_reply(self.stream, &Reply::Segment(len as u64), Some(shm))?;
        read_exact(self.stream, &mut [0])
    }

    /// Calls the store; its panic is the transfer's error and nobody else's.
    fn guarded<R>(&self, f: impl FnOnce(&'a dyn BulkStore) -> Result<R, String>) -> Result<R, String> {
        let call = std::panic::AssertUnwindSafe(|| f(&*self.shared.store));
        std::panic::catch_unwind(call).unwrap_or_else(|_| Err("bulk: the worker failed: see its log".into()))
    }

    /// Maps a client's segment, or finds the mapping made when it came before.
    fn map(&mut self, fd: std::os::fd::OwnedFd, len: usize) -> io::Result<Arc<Shm>> {
        let inode = crate::shm::inode(&fd)?;
        let known = self.known.iter().position(|shm| shm.inode() == inode && shm.capacity() >= len);
        let mut shm = match known {
            Some(at) => self.known.swap_remove(at),
            None => return Ok(Arc::new(Shm::from_fd(fd, len)?)),
        };
        match Arc::get_mut(&mut shm) {
            Some(shm) => shm.set_len(len),
            None => return Ok(Arc::new(Shm::from_fd(fd, len)?)),
        }
        Ok(shm)
    }

    fn remember(&mut self, shm: Arc<Shm>) {
        if self.known.len() >= WARM_SEGMENTS {
            self.known.remove(0);
        }
        if shm.capacity() <= WARM_BYTES {
            self.known.push(shm);
        }
    }
}

struct Reader<'a>(&'a Stream);

impl Read for Reader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}
