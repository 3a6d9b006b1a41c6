//! Connected sockets, TCP or unix, and the one way to write a link's bytes to them.

use std::io::{self, IoSlice};
use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};

use tokio::io::unix::AsyncFd;

use crate::addr::Addr;
use crate::link::Link;

/// A connected socket.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Connects within `timeout` for each address the host name stands for.
    pub fn connect(addr: &Addr, timeout: Duration) -> io::Result<Stream> {
        match addr {
            Addr::Unix(path) => Ok(Stream::Unix(UnixStream::connect(path)?)),
            Addr::Tcp(host, port) => {
                let mut error = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
                for addr in (host.as_str(), *port).to_socket_addrs()? {
                    match TcpStream::connect_timeout(&addr, timeout) {
                        Ok(stream) => {
                            stream.set_nodelay(true)?;
                            return Ok(Stream::Tcp(stream));
                        }
                        Err(e) => error = e,
                    }
                }
                Err(error)
            }
        }
    }

    /// Registers the socket with the running tokio.
    pub fn watch(self) -> io::Result<AsyncFd<Stream>> {
        // SAFETY: the stream owns its descriptor, always gives the same one, and closes it only when dropped.
        Ok(unsafe { AsyncFd::register(self) }?)
    }

    pub fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_nonblocking(on),
            Stream::Unix(stream) => stream.set_nonblocking(on),
        }
    }

    /// The address of the other end, for TCP.
    pub fn remote_ip(&self) -> Option<IpAddr> {
        match self {
            Stream::Tcp(stream) => Some(stream.peer_addr().ok()?.ip().to_canonical()),
            Stream::Unix(_) => None,
        }
    }

    /// Bounds every blocking read and write.
    pub fn set_timeouts(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Tcp(s) => s.set_read_timeout(timeout).and(s.set_write_timeout(timeout)),
            Stream::Unix(s) => s.set_read_timeout(timeout).and(s.set_write_timeout(timeout)),
        }
    }

    /// Ends one or both directions; a connection that is already gone is fine.
    pub fn shutdown(&self, how: std::net::Shutdown) {
        let _ = match self {
            Stream::Tcp(stream) => stream.shutdown(how),
            Stream::Unix(stream) => stream.shutdown(how),
        };
    }

    /// Reads what is there; 0 is the end of the stream.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match rustix::net::recv(self, &mut *buffer, RecvFlags::empty()) {
                Ok((count, _)) => return Ok(count),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Writes what fits without waiting, and raises no SIGPIPE.
    pub fn write_some(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            match rustix::net::sendmsg(self, slices, &mut SendAncillaryBuffer::default(), flags) {
                Ok(count) => return Ok(count),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Writes everything, waiting as long as the socket's timeouts allow.
    pub fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match rustix::net::send(self, bytes, SendFlags::NOSIGNAL) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => bytes = &bytes[count..],
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Writes all slices, waiting as long as the socket's timeouts allow.
    pub fn write_slices(&self, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
        // As many as one call takes.
        const MOST: usize = 1024;
        while !slices.is_empty() {
            let now = &slices[..slices.len().min(MOST)];
            match rustix::net::sendmsg(self, now, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => IoSlice::advance_slices(&mut slices, count),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Writes the link's bytes until none are left or the socket is full, `wants_write` tells which; gives how many.
    pub fn write_link(&self, link: &mut Link) -> io::Result<usize> {
        let mut written = 0;
        while link.wants_write() {
            let mut slices = [IoSlice::new(&[]); 64];
            let filled = link.slices(&mut slices);
            match self.write_some(&slices[..filled]) {
                Ok(count) => {
                    link.wrote(count);
                    written += count;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(written)
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}

impl AsRawFd for Stream {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
