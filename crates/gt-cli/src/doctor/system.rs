//! A running system: whether it answers, its versions, and how fast the ways in it are.

use super::Finding;
use crate::see::observer::{Observer, Seen};
use crate::see::text::{bytes, seconds};
use gt_client::ops::create;
use gt_client::{Session, Settings, Tensor, current, remote};
use gt_ir::{DType, Result, Ty};
use gt_net::addr::Addr;
use gt_net::observe::{Detail, Snapshot};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes sent to see how fast a way is.
const SAMPLE: usize = 32 << 20;
const PINGS: u32 = 20;

pub fn look(addr: &Addr, token: Option<String>) -> Vec<Finding> {
    let mut out = Vec::new();
    let observer = match Observer::connect(addr, token.clone(), Detail::Counters, 200) {
        Ok(observer) => observer,
        Err(error) => {
            let advice = "see the message; `gt server` starts a server, --token-file shows a token";
            out.push(Finding::bad("server", error.to_string(), advice));
            return out;
        }
    };
    let Some(snapshot) = snapshot(&observer) else {
        let advice = "the server is overloaded or stopped: see its log";
        out.push(Finding::bad("server", "it connects but says nothing", advice));
        return out;
    };
    out.push(versions(&snapshot));
    out.extend(workers(&snapshot));
    drop(observer);
    if snapshot.workers.is_empty() {
        return out;
    }
    match ways(addr, token, snapshot.workers.len()) {
        Ok(findings) => out.extend(findings),
        Err(error) => {
            out.push(Finding::bad(
                "bandwidth",
                error.to_string(),
                "a client cannot work with this system: see the message",
            ));
        }
    }
    out
}

/// The second snapshot: by then workers have answered.
fn snapshot(observer: &Observer) -> Option<Snapshot> {
    let until = Instant::now() + Duration::from_secs(5);
    let mut last = None;
    while Instant::now() < until {
        match observer.next(Duration::from_millis(100)) {
            Some(Seen::Snapshot(s)) => {
                let complete = s.workers.iter().all(|w| w.gauge.is_some());
                let second = last.replace(*s).is_some();
                if second && complete {
                    break;
                }
            }
            Some(Seen::Lost(_)) => return None,
            Some(Seen::Lines(_)) | None => {}
        }
    }
    last
}

fn versions(s: &Snapshot) -> Finding {
    let own = env!("CARGO_PKG_VERSION");
    let up = seconds(s.at_ms as f64 / 1e3);
    let text = format!("gt {} at {}, up {up}, {} clients", s.version, s.address, s.clients.len());
    let mut others: Vec<String> = Vec::new();
    if s.version != own {
        others.push(format!("server {}", s.version));
    }
    for w in &s.workers {
        if let Some(g) = w.gauge.as_ref().filter(|g| g.version != own) {
            others.push(format!("worker {} {}", w.name, g.version));
        }
    }
    match others.is_empty() {
        true => Finding::good("server", text),
        false => Finding::weak(
            "server",
            format!("{text}; this is {own}, others are: {}", others.join(", ")),
            "install the same version everywhere: older ones may lack what newer ones ask for",
        ),
    }
}

fn workers(s: &Snapshot) -> Vec<Finding> {
    if s.workers.is_empty() {
        let advice =
            format!("start one per GPU: `gt worker --host HOST -p PORT` (the server is at {})", s.address);
        return vec![Finding::bad("workers", "none is connected", advice)];
    }
    let one = |w: &gt_net::observe::WorkerView| {
        let Some(g) = &w.gauge else {
            let advice = "it may be busy with a long program or stuck: see its log";
            return Finding::bad("worker", format!("{} does not answer", w.name), advice);
        };
        let text = format!(
            "{}: {} on {}, {} of {} in use, queue {}",
            w.name,
            w.backend,
            w.device,
            bytes(g.memory as f64),
            bytes(g.memory_limit as f64),
            g.queued
        );
        let full = g.memory as f64 > 0.9 * g.memory_limit as f64;
        match full {
            true => Finding::weak(
                "worker",
                text,
                "its memory is nearly full: gt.debug.memory() says whose lines hold it",
            ),
            false => Finding::good("worker", text),
        }
    };
    s.workers.iter().map(one).collect()
}

/// Latency to the dispatcher and workers, bandwidth to each worker and between them.
fn ways(addr: &Addr, token: Option<String>, workers: usize) -> Result<Vec<Finding>> {
    // SAFETY: this process does nothing else that reads or writes variables meanwhile.
    unsafe { std::env::set_var("GT_PLACEMENT", "spread") };
    let session = remote::connect(&addr.to_string(), token, Settings::from_env()?)?;
    let before = current::set_default(Some(session.clone()));
    let found = measure(&session, workers);
    current::set_default(before);
    session.close();
    found
}

fn measure(session: &Arc<Session>, workers: usize) -> Result<Vec<Finding>> {
    let mut out = Vec::new();
    let (dispatcher, worker) = (ping(|| session.living().map(drop))?, ping(look_at_one)?);
    let text = format!(
        "{} to the dispatcher and back, {} for a value from a worker",
        seconds(dispatcher),
        seconds(worker)
    );
    out.push(match worker > 0.02 {
        true => Finding::weak(
            "latency",
            text,
            "look at results rarely: recording goes on meanwhile, each look waits this long",
        ),
        false => Finding::good("latency", text),
    });
    let data = vec![0u8; SAMPLE];
    let ty = Ty::new(DType::F32, [SAMPLE / 4]);
    let mut up: BTreeMap<String, f64> = BTreeMap::new();
    let mut kept: Vec<Tensor> = Vec::new();
    for _ in 0..workers.min(16) {
        let start = Instant::now();
        let tensor = create::from_slice(ty.clone(), &data)?;
        // There and back: a value is there once it can be looked at.
        tensor.bytes()?;
        let took = start.elapsed().as_secs_f64();
        kept.push(tensor);
        let at = session.living()?.into_iter().rev().find(|t| t.ty == ty);
        let name = at.and_then(|t| t.workers.into_iter().next()).unwrap_or_default();
        up.entry(name).and_modify(|best| *best = best.min(took)).or_insert(took);
    }
    for (name, took) in up {
        let text = format!("{}/s to {name} and back", bytes(2.0 * SAMPLE as f64 / took));
        out.push(match 2.0 * SAMPLE as f64 / took < 20e6 {
            true => Finding::weak(
                "bandwidth",
                text,
                "slow: see whether the worker is reached directly (`gt worker --advertise HOST`)",
            ),
            false => Finding::good("bandwidth", text),
        });
    }
    if let [a, b, ..] = kept.as_slice() {
        let start = Instant::now();
        look_at(&a.add(b)?)?;
        let took = start.elapsed().as_secs_f64();
        out.push(Finding::good(
            "between workers",
            format!("{} with a sum of two tensors, one moved first", seconds(took)),
        ));
    }
    Ok(out)
}

fn look_at_one() -> Result<()> {
    look_at(&create::ones([1], DType::F32)?)
}

fn look_at(tensor: &Tensor) -> Result<()> {
    tensor.narrow(0, 0, 1)?.bytes().map(drop)
}

/// The shortest of several times.
fn ping(mut once: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..PINGS {
        let start = Instant::now();
        once()?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(best)
}
