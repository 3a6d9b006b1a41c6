//! The dashboard: a page in the browser, `/metrics` for Prometheus and `/healthz`. It watches the server as any other
//! client does: counters all the time, programs only while somebody looks at the page. A page is told what it does not have.

mod json;
mod metrics;
mod recent;

use super::http::{self, Request, Response};
use super::observer::{Observer, Seen};
use gt_ir::{Result, bail};
use gt_net::addr::Addr;
use gt_net::observe::{Detail, Snapshot};
use gt_sync::Mutex;
use recent::Recent;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Milliseconds between snapshots.
const EVERY_MS: u32 = 500;
/// The course of things is kept for five minutes, and whole snapshots for as long as rates are taken over.
const KEPT: usize = 600;
const WHOLE: usize = 5;
/// How long the page must have been silent before nobody is taken to look.
const LOOKED: Duration = Duration::from_secs(3);

/// What the page shows.
#[derive(Default)]
struct Board {
    history: VecDeque<Snapshot>,
    /// What happened between snapshots, as the page wants it.
    points: VecDeque<json::Point>,
    recent: Recent,
    /// When the page last asked.
    looked: Option<Instant>,
    lost: Option<String>,
}

impl Board {
    fn snapshot(&mut self, now: Snapshot) {
        if let Some(before) = self.history.back() {
            self.points.push_back(json::point(before, &now));
        }
        self.history.push_back(now);
        if self.history.len() > WHOLE {
            self.history.pop_front();
        }
        if self.points.len() > KEPT {
            self.points.pop_front();
        }
    }
}

/// Who may look.
struct Door {
    token: Option<String>,
}

/// Starts the dashboard of the server at `addr`; gives its port.
pub fn start(host: &str, port: u16, addr: &Addr, token: Option<String>) -> Result<u16> {
    if token.is_none() && !http::is_loopback(host) {
        bail!(Value, "http: {host} is not loopback, which needs a token: give --token-file");
    }
    let board = Arc::new(Mutex::new(Board::default()));
    let (watched, at, shown) = (board.clone(), addr.clone(), token.clone());
    let watch = move || watch(&watched, &at, shown);
    let _ = std::thread::Builder::new().name("gt-board".into()).spawn(watch);
    let door = Door { token };
    http::serve(host, port, Arc::new(move |request| answer(request, &board, &door)))
}

/// Watches the server for as long as the process lives.
fn watch(board: &Mutex<Board>, addr: &Addr, token: Option<String>) {
    super::give_way();
    loop {
        match Observer::connect(addr, token.clone(), Detail::Counters, EVERY_MS) {
            Ok(observer) => {
                board.lock().lost = None;
                follow(board, &observer);
            }
            Err(error) => board.lock().lost = Some(error.to_string()),
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn follow(board: &Mutex<Board>, observer: &Observer) {
    let mut detail = Detail::Counters;
    loop {
        let seen = observer.next(Duration::from_millis(250));
        let mut board = board.lock();
        match seen {
            Some(Seen::Snapshot(snapshot)) => board.snapshot(*snapshot),
            Some(Seen::Lines(lines)) => board.recent.lines(&lines),
            Some(Seen::Lost(why)) => {
                board.lost = Some(why);
                return;
            }
            None => {}
        }
        let wanted = match board.looked.is_some_and(|at| at.elapsed() < LOOKED) {
            true => Detail::Runs,
            false => Detail::Counters,
        };
        if wanted != detail {
            detail = wanted;
            board.recent.clear();
            drop(board);
            if observer.watch(detail, EVERY_MS).is_err() {
                return;
            }
        }
    }
}

fn answer(request: &Request, board: &Mutex<Board>, door: &Door) -> Response {
    if request.path == "/healthz" {
        let board = board.lock();
        let healthy = board.lost.is_none() && !board.history.is_empty();
        return match healthy {
            true => Response::ok("text/plain; charset=utf-8", "ok\n"),
            false => Response::error(503, "the dispatcher does not answer"),
        };
    }
    let open = match &door.token {
        None => true,
        Some(token) => request.token.as_ref().is_some_and(|given| same(given.as_bytes(), token.as_bytes())),
    };
    if door.token.is_none() && !request.is_by_address() {
        return Response::error(400, "without a token the dashboard is reached by address or as localhost");
    }
    if !open {
        return Response::error(401, "show the server's token: /?token=... or Authorization: Bearer ...");
    }
    match request.path.as_str() {
        "/" => Response::ok("text/html; charset=utf-8", include_str!("dashboard/page.html")),
        "/api/state" => {
            let mut board = board.lock();
            board.looked = Some(Instant::now());
            Response::ok(
                "application/json",
                json::state(&board.history, &board.points, request.since, board.lost.as_deref()),
            )
        }
        "/api/timeline" => {
            let mut board = board.lock();
            board.looked = Some(Instant::now());
            Response::ok("application/json", board.recent.json(request.since))
        }
        "/metrics" => {
            let board = board.lock();
            let text = board.history.back().map(metrics::text).unwrap_or_default();
            Response::ok("text/plain; version=0.0.4; charset=utf-8", text)
        }
        _ => Response::error(404, "there are /, /metrics, /healthz, /api/state and /api/timeline"),
    }
}

/// Compares without telling by the time it takes where the difference is.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |diff, (x, y)| diff | (x ^ y)) == 0
}
