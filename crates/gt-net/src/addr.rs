//! Where a server listens: a TCP host and port, or a unix socket.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

/// The address of a control connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Addr {
    /// A host name or address, and a port.
    Tcp(String, u16),
    /// The path of a unix socket.
    Unix(PathBuf),
}

/// A text that is no address, and why.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("address: {why}, got {text:?}, expected HOST:PORT, [IPV6]:PORT, tcp://HOST:PORT or unix:/PATH")]
pub struct AddrError {
    /// The text as given.
    pub text: String,
    /// What is wrong with it.
    pub why: &'static str,
}

impl FromStr for Addr {
    type Err = AddrError;

    fn from_str(text: &str) -> Result<Addr, AddrError> {
        let fail = |why| AddrError { text: text.to_string(), why };
        let trimmed = text.trim();
        if let Some(path) = trimmed.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return match path {
                "" => Err(fail("empty socket path")),
                // A longer path does not fit the kernel's `sun_path`.
                _ if path.len() > 107 => Err(fail("socket path longer than 107 bytes")),
                _ if path.contains('\0') => Err(fail("socket path holds a zero byte")),
                _ => Ok(Addr::Unix(PathBuf::from(path))),
            };
        }
        let rest = trimmed.strip_prefix("tcp://").unwrap_or(trimmed);
        if rest.contains("://") {
            return Err(fail("unknown scheme"));
        }
        let (host, port) = rest.rsplit_once(':').ok_or_else(|| fail("no port"))?;
        let host = match host.strip_prefix('[') {
            Some(inner) => inner.strip_suffix(']').ok_or_else(|| fail("unclosed bracket"))?,
            None if host.contains(':') => return Err(fail("IPv6 address without brackets")),
            None => host,
        };
        if host.is_empty() {
            return Err(fail("no host"));
        }
        if host.contains(|c: char| c.is_whitespace() || c == '/' || c == '[' || c == ']') {
            return Err(fail("bad character in the host"));
        }
        let port = port.parse().map_err(|_| fail("port is not a number from 0 to 65535"))?;
        Ok(Addr::Tcp(host.to_string(), port))
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Addr::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Addr::Tcp(host, port) => write!(f, "{host}:{port}"),
            Addr::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_parse_and_print() {
        for (text, addr, printed) in [
            ("localhost:12345", Addr::Tcp("localhost".into(), 12345), "localhost:12345"),
            ("tcp://10.0.0.1:80", Addr::Tcp("10.0.0.1".into(), 80), "10.0.0.1:80"),
            ("[::1]:7", Addr::Tcp("::1".into(), 7), "[::1]:7"),
            ("unix:/tmp/gt.sock", Addr::Unix("/tmp/gt.sock".into()), "unix:/tmp/gt.sock"),
            ("unix:///tmp/gt.sock", Addr::Unix("/tmp/gt.sock".into()), "unix:/tmp/gt.sock"),
        ] {
            let parsed: Addr = text.parse().unwrap();
            assert_eq!(parsed, addr);
            assert_eq!(parsed.to_string(), printed);
            assert_eq!(printed.parse::<Addr>().unwrap(), addr);
        }
    }

    #[test]
    fn wrong_addresses_say_why() {
        for (text, why) in [
            ("localhost", "no port"),
            ("localhost:", "port is not a number"),
            ("h:70000", "port is not a number"),
            (":12", "no host"),
            ("::1:12", "without brackets"),
            ("[::1:12", "unclosed bracket"),
            ("http://h:1", "unknown scheme"),
            ("unix:", "empty socket path"),
            ("a b:1", "bad character"),
        ] {
            let error = text.parse::<Addr>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
