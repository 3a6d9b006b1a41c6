//! What the page is told, as JSON.

use crate::see::perfetto::quoted;
use gt_net::observe::{ClientView, Family, Snapshot, WorkerView};
use std::collections::VecDeque;
use std::fmt::Write;

/// A point of what is drawn over time: its milliseconds, and the point as JSON.
pub type Point = (u64, String);

/// The newest of some snapshots in full, the oldest to compare with, and the course of what is drawn over time, where it
/// is later than `since`.
pub fn state(
    history: &VecDeque<Snapshot>,
    points: &VecDeque<Point>,
    since: u64,
    lost: Option<&str>,
) -> String {
    let families: Vec<String> = Family::ALL.iter().map(|f| quoted(f.text())).collect();
    let mut out = format!("{{\"families\":[{}],\"lost\":{}", families.join(","), text_or_null(lost));
    if let (Some(before), Some(now)) = (history.front(), history.back()) {
        let _ = write!(out, ",\"now\":{},\"before\":{},\"history\":[", snapshot(now), snapshot(before));
        // A page that has seen more has seen another server.
        let since = if since > now.at_ms { 0 } else { since };
        let known = points.partition_point(|(at, _)| *at <= since);
        for (i, (_, point)) in points.range(known..).enumerate() {
            if i > 0 {
                out.push(',');
            }
            out.push_str(point);
        }
        out.push(']');
    }
    out + "}"
}

fn text_or_null(text: Option<&str>) -> String {
    text.map_or("null".into(), quoted)
}

/// What happened between two snapshots: memory, the part of time that was busy, bytes and ops per second.
pub fn point(old: &Snapshot, new: &Snapshot) -> Point {
    let seconds = (new.at_ms.saturating_sub(old.at_ms) as f64 / 1e3).max(1e-3);
    let sum = |s: &Snapshot, of: fn(&gt_net::observe::Gauge) -> u64| -> u64 {
        s.workers.iter().filter_map(|w| w.gauge.as_ref()).map(of).sum()
    };
    let rate = |of| sum(new, of).saturating_sub(sum(old, of)) as f64 / seconds;
    let busy = rate(|g| g.busy_us) / 1e6 / new.workers.len().max(1) as f64;
    let text = format!(
        "{{\"t\":{},\"memory\":{},\"busy\":{:.4},\"ops\":{:.1},\"moved\":{:.0},\"queued\":{}}}",
        new.at_ms,
        sum(new, |g| g.memory),
        busy.min(1.0),
        rate(|g| g.instructions),
        rate(|g| g.bytes_in + g.bytes_out),
        sum(new, |g| g.queued as u64)
    );
    (new.at_ms, text)
}

fn snapshot(s: &Snapshot) -> String {
    let list = |items: Vec<String>| items.join(",");
    let troubles =
        s.troubles.iter().rev().map(|t| {
            format!("{{\"t\":{},\"whom\":{},\"text\":{}}}", t.at_ms, quoted(&t.whom), quoted(&t.text))
        });
    format!(
        "{{\"t\":{},\"version\":{},\"address\":{},\"workers\":[{}],\"clients\":[{}],\"troubles\":[{}]}}",
        s.at_ms,
        quoted(&s.version),
        quoted(&s.address),
        list(s.workers.iter().map(worker).collect()),
        list(s.clients.iter().map(client).collect()),
        list(troubles.collect())
    )
}

fn worker(w: &WorkerView) -> String {
    let mut out = format!(
        "{{\"id\":{},\"name\":{},\"backend\":{},\"device\":{},\"threads\":{},\"sent\":{}",
        w.id,
        quoted(&w.name),
        quoted(&w.backend),
        quoted(&w.device),
        w.threads,
        w.queued
    );
    if let Some(g) = &w.gauge {
        let families: Vec<String> = g.families_us.iter().map(u64::to_string).collect();
        let reasons: Vec<String> =
            g.miss_reasons.iter().map(|(why, n)| format!("[{},{n}]", quoted(why))).collect();
        let _ = write!(
            out,
            ",\"gauge\":{{\"now\":{},\"busy\":{},\"families\":[{}],\"programs\":{},\"ops\":{},\"hits\":{},\"misses\":{},\
             \"resized\":{},\"plans\":{},\"plan_us\":{},\"reasons\":[{}],\"queued\":{},\"failures\":{},\"in\":{},\"out\":{},\
             \"memory\":{},\"peak\":{},\"limit\":{}}}",
            g.now_us,
            g.busy_us,
            families.join(","),
            g.programs,
            g.instructions,
            g.plan_hits,
            g.plan_misses,
            g.resized,
            g.plans,
            g.plan_us,
            reasons.join(","),
            g.queued,
            g.failures,
            g.bytes_in,
            g.bytes_out,
            g.memory,
            g.memory_peak,
            // JavaScript's numbers are exact up to here.
            g.memory_limit.min(1 << 53)
        );
    }
    out + "}"
}

fn client(c: &ClientView) -> String {
    format!(
        "{{\"id\":{},\"name\":{},\"home\":{},\"programs\":{},\"ops\":{},\"unfinished\":{},\"waiting\":{},\"tensors\":{},\
         \"bytes\":{},\"moves\":{},\"moved\":{},\"busy\":{},\"waited\":{}}}",
        c.id,
        quoted(&c.name),
        c.home.map_or("null".into(), |id| id.to_string()),
        c.programs,
        c.instructions,
        c.unfinished,
        c.waiting_ms,
        c.tensors,
        c.bytes,
        c.moves,
        c.moved_bytes,
        c.busy_us,
        c.waited_us
    )
}
