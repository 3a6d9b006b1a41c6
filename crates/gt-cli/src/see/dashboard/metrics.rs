//! The counters in Prometheus' text form.

use gt_net::observe::{Family, Gauge, Snapshot};
use std::fmt::Write;

/// A metric of workers: name, kind, help, value.
type OfWorker = (&'static str, &'static str, &'static str, fn(&Gauge) -> f64);

const WORKER: [OfWorker; 14] = [
    ("gt_worker_busy_seconds_total", "counter", "Time spent running programs.", |g| g.busy_us as f64 / 1e6),
    ("gt_worker_programs_total", "counter", "Programs run.", |g| g.programs as f64),
    ("gt_worker_instructions_total", "counter", "Instructions run.", |g| g.instructions as f64),
    ("gt_worker_failures_total", "counter", "Programs that failed.", |g| g.failures as f64),
    ("gt_worker_queued_programs", "gauge", "Programs in the queue.", |g| g.queued as f64),
    ("gt_worker_plan_hits_total", "counter", "Plans that were there.", |g| g.plan_hits as f64),
    ("gt_worker_plan_misses_total", "counter", "Plans that were not there.", |g| g.plan_misses as f64),
    ("gt_worker_plan_resized_total", "counter", "Programs known with other sizes.", |g| g.resized as f64),
    ("gt_worker_plan_seconds_total", "counter", "Time spent making plans.", |g| g.plan_us as f64 / 1e6),
    ("gt_worker_plans", "gauge", "Plans kept.", |g| g.plans as f64),
    ("gt_worker_received_bytes_total", "counter", "Tensor bytes that came.", |g| g.bytes_in as f64),
    ("gt_worker_sent_bytes_total", "counter", "Tensor bytes that went.", |g| g.bytes_out as f64),
    ("gt_worker_memory_bytes", "gauge", "Bytes in use for tensors.", |g| g.memory as f64),
    ("gt_worker_memory_limit_bytes", "gauge", "Bytes that may be used for tensors.", |g| {
        g.memory_limit as f64
    }),
];

pub fn text(s: &Snapshot) -> String {
    let mut out = String::new();
    single(&mut out, "gt_uptime_seconds", "counter", "Time since the server started.", s.at_ms as f64 / 1e3);
    single(&mut out, "gt_workers", "gauge", "Workers connected.", s.workers.len() as f64);
    single(&mut out, "gt_clients", "gauge", "Clients connected.", s.clients.len() as f64);
    for (name, kind, help, value) in WORKER {
        head(&mut out, name, kind, help);
        for w in &s.workers {
            if let Some(g) = &w.gauge {
                let _ = writeln!(out, "{name}{{worker={}}} {}", label(&w.name), value(g));
            }
        }
    }
    let name = "gt_worker_family_seconds_total";
    head(&mut out, name, "counter", "Time spent running programs, by family of ops.");
    for w in &s.workers {
        let Some(g) = &w.gauge else { continue };
        for family in Family::ALL {
            let (worker, seconds) = (label(&w.name), g.families_us[family as usize] as f64 / 1e6);
            let _ = writeln!(out, "{name}{{worker={worker},family=\"{}\"}} {seconds}", family.text());
        }
    }
    clients(&mut out, s);
    out
}

fn clients(out: &mut String, s: &Snapshot) {
    type OfClient = (&'static str, &'static str, &'static str, fn(&gt_net::observe::ClientView) -> f64);
    let metrics: [OfClient; 6] = [
        ("gt_client_device_seconds_total", "counter", "Device time a client had.", |c| {
            c.busy_us as f64 / 1e6
        }),
        ("gt_client_queue_seconds_total", "counter", "Time its programs lay in queues.", |c| {
            c.waited_us as f64 / 1e6
        }),
        ("gt_client_programs_total", "counter", "Programs it sent.", |c| c.programs as f64),
        ("gt_client_unfinished_programs", "gauge", "Its programs that have not finished.", |c| {
            c.unfinished as f64
        }),
        ("gt_client_memory_bytes", "gauge", "Bytes of its tensors.", |c| c.bytes as f64),
        ("gt_client_moved_bytes_total", "counter", "Bytes moved between workers for it.", |c| {
            c.moved_bytes as f64
        }),
    ];
    for (name, kind, help, value) in metrics {
        head(out, name, kind, help);
        for c in &s.clients {
            let _ = writeln!(out, "{name}{{client={}}} {}", label(&c.name), value(c));
        }
    }
}

fn single(out: &mut String, name: &str, kind: &str, help: &str, value: f64) {
    head(out, name, kind, help);
    let _ = writeln!(out, "{name} {value}");
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// A label's value with quotes.
fn label(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}
