//! Binding: loopback for everyone, other addresses only with a token.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use thiserror::Error;
use tokio::io::unix::AsyncFd;

use crate::addr::Addr;
use crate::stream::Stream;

/// A bound socket that waits for connections.
#[derive(Debug)]
pub enum Listener {
    /// On a TCP port.
    Tcp(TcpListener),
    /// On a unix socket, whose file is removed in the end.
    Unix(UnixListener, PathBuf),
}

/// Why a server cannot listen there.
#[derive(Debug, Error)]
pub enum BindError {
    /// Others could reach the address, and there is no token to keep them out.
    #[error(
        "bind: {host} can be reached from other hosts and the server has no token: pass --token-file FILE, or listen on localhost"
    )]
    NeedsToken {
        /// The host asked for.
        host: String,
    },
    /// Another server is there.
    #[error("bind: {addr} is in use: stop the other server or choose another port (-p 0 picks a free one)")]
    InUse {
        /// Where.
        addr: Addr,
    },
    /// The system cannot listen there.
    #[error("bind: cannot listen at {addr}: {error}")]
    Io {
        /// Where.
        addr: Addr,
        /// What the system says.
        error: io::Error,
    },
}

/// Listens on a TCP port; port 0 picks a free one. Other than loopback addresses need a token.
pub fn bind(host: &str, port: u16, token: Option<&str>) -> Result<Listener, BindError> {
    let addr = Addr::Tcp(host.to_string(), port);
    let fail = |error: io::Error| match error.kind() {
        io::ErrorKind::AddrInUse => BindError::InUse { addr: addr.clone() },
        _ => BindError::Io { addr: addr.clone(), error },
    };
    let mut found: Vec<SocketAddr> = (host, port).to_socket_addrs().map_err(fail)?.collect();
    if token.is_none_or(str::is_empty) && found.iter().any(|addr| !addr.ip().is_loopback()) {
        return Err(BindError::NeedsToken { host: host.to_string() });
    }
    // `localhost` means 127.0.0.1 to most tools; clients try both.
    found.sort_by_key(SocketAddr::is_ipv6);
    let listener = TcpListener::bind(&found[..]).map_err(fail)?;
    listener.set_nonblocking(true).map_err(fail)?;
    Ok(Listener::Tcp(listener))
}

/// Listens on a unix socket that only this user may open; takes over one that no server answers on.
pub fn bind_unix(path: &Path) -> Result<Listener, BindError> {
    let addr = Addr::Unix(path.to_path_buf());
    let fail = |error: io::Error| BindError::Io { addr: addr.clone(), error };
    if std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket()) {
        match UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path).map_err(fail)?;
            }
            _ => return Err(BindError::InUse { addr }),
        }
    }
    let listener = UnixListener::bind(path).map_err(fail)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(fail)?;
    listener.set_nonblocking(true).map_err(fail)?;
    Ok(Listener::Unix(listener, path.to_path_buf()))
}

impl Listener {
    /// Where it listens, with the port it was given.
    pub fn addr(&self) -> Addr {
        match self {
            Listener::Tcp(listener) => match listener.local_addr() {
                Ok(addr) => Addr::Tcp(addr.ip().to_string(), addr.port()),
                Err(_) => Addr::Tcp("unknown".into(), 0),
            },
            Listener::Unix(_, path) => Addr::Unix(path.clone()),
        }
    }

    /// Registers the socket with the running tokio.
    pub(crate) fn watch(self) -> io::Result<AsyncFd<Listener>> {
        // SAFETY: the listener owns its descriptor, always gives the same one, and closes it only when dropped.
        Ok(unsafe { AsyncFd::register(self) }?)
    }

    /// The next connection, without waiting.
    pub(crate) fn accept(&self) -> io::Result<Stream> {
        let stream = match self {
            Listener::Tcp(listener) => {
                let stream = listener.accept()?.0;
                stream.set_nodelay(true)?;
                Stream::Tcp(stream)
            }
            Listener::Unix(listener, _) => Stream::Unix(listener.accept()?.0),
        };
        stream.set_nonblocking(true)?;
        Ok(stream)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener, _) => listener.as_fd(),
        }
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Unix(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}
