//! Putting the parts together: the system inside the process, or a server elsewhere.

use gt_cli::local::Local;
use gt_client::session::{Session, Settings};
use gt_ir::Result;
use gt_sync::Mutex;
use pyo3::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The system inside this process, once started, and the fork generation it belongs to.
static LOCAL: Mutex<Option<(u64, Arc<Local>)>> = Mutex::new(None);
/// How many workers it has or will have, where `gpu_workers` said so.
static WORKERS: Mutex<Option<usize>> = Mutex::new(None);

/// The fork generation of a data-loader worker, which makes host tensors and starts nothing (C12).
static HOST_ONLY: AtomicU64 = AtomicU64::new(u64::MAX);

/// Makes this process a data-loader worker.
pub fn set_host_only() {
    HOST_ONLY.store(gt_client::current::generation(), Ordering::Relaxed);
}

/// True in a data-loader worker, ours or PyTorch's.
pub fn is_host_only() -> bool {
    HOST_ONLY.load(Ordering::Relaxed) == gt_client::current::generation() || is_torch_worker()
}

fn is_torch_worker() -> bool {
    Python::attach(|py| {
        let modules = py.import("sys")?.getattr("modules")?;
        let worker = modules.get_item("torch.utils.data._utils.worker")?;
        Ok::<bool, PyErr>(!worker.getattr("_worker_info")?.is_none())
    })
    .unwrap_or(false)
}

/// The session of a process that never connected: `GT_SERVER` if set, else dispatcher and workers in here.
pub fn start_default() -> Result<Arc<Session>> {
    if is_host_only() {
        return gt_cli::host::connect();
    }
    match std::env::var("GT_SERVER") {
        Ok(addr) if !addr.is_empty() => connect(&addr, None),
        _ => {
            let local = local()?;
            if gt_ir::env::on("GT_VERBOSE") {
                gt_ir::say!("gt: dispatcher and {} worker(s) run inside this process", local.workers());
            }
            local.connect(Settings::from_env()?)
        }
    }
}

fn local() -> Result<Arc<Local>> {
    let now = gt_client::current::generation();
    let mut local = LOCAL.lock();
    match &*local {
        Some((generation, local)) if *generation == now => return Ok(local.clone()),
        _ => {}
    }
    let asked = *WORKERS.lock();
    let count = match (asked, std::env::var("GT_WORKERS")) {
        (Some(n), _) => n,
        (None, Ok(text)) if !text.is_empty() => match text.parse() {
            Ok(n) if (1..=crate::session::MAX_WORKERS).contains(&n) => n,
            _ => gt_ir::bail!(Value, "GT_WORKERS: expected 1 to 1024 workers, got {text:?}"),
        },
        (None, _) => gt_cli::local::default_workers(),
    };
    let started = Local::start(count)?;
    // The parent's system is not ours to end: its threads are not in this process.
    std::mem::forget(local.replace((now, started.clone())));
    Ok(started)
}

/// A session with a server. Without a token, the one in the file that `GT_TOKEN_FILE` names.
pub fn connect(addr: &str, token: Option<String>) -> Result<Arc<Session>> {
    if is_host_only() {
        gt_ir::bail!(
            Runtime,
            "connect: a data-loader worker makes host tensors only: connect in the main process"
        );
    }
    let token = match token {
        Some(token) => Some(token),
        None => gt_cli::token::read(None)?,
    };
    let session = gt_client::remote::connect(addr, token, Settings::from_env()?)?;
    if gt_ir::env::on("GT_VERBOSE") {
        gt_ir::say!("gt: connected to {}, {} worker(s)", session.peer(), session.welcome.workers);
    }
    Ok(session)
}

/// True if the address names the peer.
pub fn is_peer(peer: &str, address: &str) -> bool {
    address.parse::<gt_net::addr::Addr>().is_ok_and(|addr| addr.to_string() == peer)
}

/// Sets how many workers the system inside this process has, now or once it starts.
pub fn set_workers(n: usize) -> Result<()> {
    *WORKERS.lock() = Some(n);
    match &*LOCAL.lock() {
        Some((generation, local)) if *generation == gt_client::current::generation() => local.set_workers(n),
        _ => Ok(()),
    }
}
