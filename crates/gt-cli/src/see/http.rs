//! A small HTTP server, for the dashboard alone: GET, one answer per connection, bounded in every way.

use gt_ir::{Error, Result};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Bytes of a request's head at most.
const MAX_HEAD: u64 = 16 << 10;
/// Requests answered at the same time at most.
const MAX_OPEN: usize = 64;
const PATIENCE: Duration = Duration::from_secs(5);

/// What is asked for.
pub struct Request {
    pub path: String,
    /// The value of `token`, from the query or the Authorization header.
    pub token: Option<String>,
    /// What the page has already, as the query's `since` says.
    pub since: u64,
    /// The Host header.
    pub host: String,
}

impl Request {
    /// True if the server was asked for by address or as localhost. Under any other name it may be a page of another
    /// site that asks, whose name was made to lead here.
    pub fn is_by_address(&self) -> bool {
        let host = match self.host.rsplit_once(':') {
            Some((host, port)) if port.chars().all(|c| c.is_ascii_digit()) => host,
            _ => &self.host,
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        host.is_empty() || host == "localhost" || host.parse::<IpAddr>().is_ok()
    }
}

/// What is answered.
pub struct Response {
    pub status: u16,
    pub kind: &'static str,
    pub body: Vec<u8>,
}

impl Response {
    pub fn ok(kind: &'static str, body: impl Into<Vec<u8>>) -> Response {
        Response { status: 200, kind, body: body.into() }
    }

    pub fn error(status: u16, text: &str) -> Response {
        Response { status, kind: "text/plain; charset=utf-8", body: format!("{text}\n").into_bytes() }
    }
}

/// Answers requests.
pub type Answer = Arc<dyn Fn(&Request) -> Response + Send + Sync>;

/// Listens, and answers on threads of its own until the process ends. Gives the port.
pub fn serve(host: &str, port: u16, answer: Answer) -> Result<u16> {
    let failed = |e: std::io::Error| Error::Connection(format!("http: cannot listen on {host}:{port}: {e}"));
    let listener = TcpListener::bind((host, port)).map_err(failed)?;
    let port = listener.local_addr().map_err(failed)?.port();
    let open = Arc::new(AtomicUsize::new(0));
    let accept = move || {
        super::give_way();
        for stream in listener.incoming().flatten() {
            if open.fetch_add(1, Ordering::Relaxed) >= MAX_OPEN {
                open.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let (answer, open) = (answer.clone(), open.clone());
            let handle = move || {
                let _ = converse(&stream, &answer);
                open.fetch_sub(1, Ordering::Relaxed);
            };
            let _ = std::thread::Builder::new().name("gt-http".into()).spawn(handle);
        }
    };
    std::thread::Builder::new().name("gt-http".into()).spawn(accept).map_err(failed)?;
    Ok(port)
}

/// True if an address is this host's own.
pub fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn converse(stream: &TcpStream, answer: &Answer) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::new(stream.take(MAX_HEAD));
    let response = match read_request(&mut reader)? {
        Ok(request) => answer(&request),
        Err(response) => response,
    };
    let reason = match response.status {
        200 => "OK",
        401 => "Unauthorized",
        404 => "Not Found",
        405 => "Method Not Allowed",
        503 => "Service Unavailable",
        _ => "Bad Request",
    };
    let head = format!(
        "HTTP/1.1 {} {reason}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\nCache-Control: no-store\r\n\
         X-Content-Type-Options: nosniff\r\nContent-Security-Policy: default-src 'self' 'unsafe-inline' data:\r\n\r\n",
        response.status,
        response.kind,
        response.body.len()
    );
    let mut out = stream;
    out.write_all(head.as_bytes())?;
    out.write_all(&response.body)
}

type Asked = std::result::Result<Request, Response>;

fn read_request(reader: &mut impl BufRead) -> std::io::Result<Asked> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    if method != "GET" {
        return Ok(Err(Response::error(405, "only GET is answered")));
    }
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let asked = |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    let since = asked("since").and_then(|n| n.parse().ok()).unwrap_or(0);
    let token = asked("token").map(unescape);
    let mut request = Request { path: path.to_string(), token, since, host: String::new() };
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header)? == 0 || header.trim().is_empty() {
            return Ok(Ok(request));
        }
        let (name, value) = header.split_once(':').unwrap_or((header.as_str(), ""));
        let value = value.trim();
        if name.eq_ignore_ascii_case("host") {
            request.host = value.to_string();
        }
        if name.eq_ignore_ascii_case("authorization")
            && let Some(token) = value.strip_prefix("Bearer ")
        {
            request.token = Some(token.trim().to_string());
        }
    }
}

/// `%41` is `A`.
fn unescape(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let hex = (bytes[i] == b'%').then(|| text.get(i + 1..i + 3)).flatten();
        match hex.and_then(|h| u8::from_str_radix(h, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                i += 3;
            }
            None => {
                out.push(bytes[i]);
                i += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(text: &str) -> Asked {
        read_request(&mut text.as_bytes()).unwrap()
    }

    #[test]
    fn requests_are_read_and_nonsense_is_refused() {
        let request = ask("GET /api/state?token=a%20b HTTP/1.1\r\nHost: localhost:1\r\n\r\n").ok().unwrap();
        assert_eq!((request.path.as_str(), request.token.as_deref()), ("/api/state", Some("a b")));
        assert_eq!(request.since, 0);
        let request = ask("GET /api/state?a=b&since=12 HTTP/1.1\r\n\r\n").ok().unwrap();
        assert_eq!((request.since, request.token), (12, None));
        let request = ask("GET / HTTP/1.1\r\nAuthorization: Bearer x\r\n\r\n").ok().unwrap();
        assert_eq!(request.token.as_deref(), Some("x"));
        assert_eq!(ask("POST / HTTP/1.1\r\n\r\n").err().unwrap().status, 405);
        assert_eq!(ask("\0\0\r\n\r\n").err().unwrap().status, 405);
        for (host, fine) in
            [("localhost:80", true), ("[::1]:80", true), ("127.0.0.1", true), ("evil.example", false)]
        {
            let request = ask(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")).ok().unwrap();
            assert_eq!(request.is_by_address(), fine, "{host}");
        }
    }
}
