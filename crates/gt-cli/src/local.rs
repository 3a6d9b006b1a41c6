//! The whole system inside one process: dispatcher, workers and a session, with nothing to configure.

use gt_client::session::{Connect, OnMsg};
use gt_client::{Link, Session, Settings};
use gt_dispatcher::{LocalClient, LocalHub, LocalWorker};
use gt_ir::Result;
use gt_net::msg::{ClientMsg, SessionWelcome, WorkerId};
use gt_sync::Mutex;
use gt_worker::{Neighbours, Worker, WorkerConfig, backends};
use std::sync::{Arc, OnceLock};

/// To be called when the process is about to end: CUDA's libraries must not take themselves down under running threads.
pub use gt_worker::backends::cuda::leaving;

/// Dispatcher and workers of this process.
pub struct Local {
    hub: LocalHub,
    workers: Mutex<Vec<(WorkerId, Arc<Worker>)>>,
    neighbours: Neighbours,
}

/// How many workers a process starts unless told: one, or one per GPU where work is spread by itself (`GT_AUTO_SHARD`).
pub fn default_workers() -> usize {
    let name = std::env::var("GT_BACKEND").unwrap_or_else(|_| "auto".into());
    match gt_ir::env::on("GT_AUTO_SHARD") {
        true => backends::gpus(&name).max(1) as usize,
        false => 1,
    }
}

impl Local {
    /// Starts `n` workers on the backend that `GT_BACKEND` names.
    pub fn start(n: usize) -> Result<Arc<Local>> {
        let local = Arc::new(Local {
            hub: LocalHub::new(),
            workers: Mutex::default(),
            neighbours: Neighbours::default(),
        });
        local.set_workers(n)?;
        Ok(local)
    }

    /// How many workers there are.
    pub fn workers(&self) -> usize {
        self.workers.lock().len()
    }

    /// Adds workers, or lets the newest go; tensors on a worker that goes are lost, and using one says so.
    pub fn set_workers(&self, n: usize) -> Result<()> {
        if n == 0 {
            gt_ir::bail!(Value, "gpu_workers: at least one worker is needed, got 0");
        }
        let mut workers = self.workers.lock();
        while workers.len() > n {
            if let Some((id, worker)) = workers.pop() {
                self.hub.remove_worker(id, "gpu_workers() reduced the number of workers");
                drop(worker);
            }
        }
        while workers.len() < n {
            let worker = self.add_worker(workers.len(), n)?;
            workers.push(worker);
        }
        workers.iter().for_each(|(_, worker)| worker.share_memory(n));
        Ok(())
    }

    fn add_worker(&self, at: usize, n: usize) -> Result<(WorkerId, Arc<Worker>)> {
        let name = std::env::var("GT_BACKEND").unwrap_or_else(|_| "auto".into());
        let number = self.workers_started();
        let (backend, why) = backends::choose_share(&name, at, n)?;
        // Said before the worker tells the dispatcher how much it has.
        backend.share_memory(n);
        if gt_ir::env::on("GT_VERBOSE") || gt_ir::env::on("GT_DEBUG_WORKER") {
            gt_ir::say!("gt: worker {number} is {} on {}", backend.name(), backend.device());
            why.iter().for_each(|why| gt_ir::say!("gt: no GPU is used: {why}"));
        }
        let config = WorkerConfig {
            name: format!("local-{number}"),
            threads: backend.threads(),
            backend,
            // Every session in here brings this process's variables itself.
            compiling: Default::default(),
        };
        // The worker is made before its way back is known: it says nothing until it was told something.
        let line: Arc<OnceLock<LocalWorker>> = Arc::default();
        let back = line.clone();
        let say = Box::new(move |msg| {
            if let Some(hub) = back.get() {
                hub.send(msg);
            }
        });
        let worker = Arc::new(Worker::start(config, say));
        let hands = worker.clone();
        // A worker on its own shares programs with nobody.
        let info = if n > 1 { worker.measured_info() } else { worker.info() };
        let id = self.hub.attach(info, move |back| {
            let _ = line.set(back);
            Box::new(move |cmd| hands.handle(cmd))
        });
        self.neighbours.add(id, &worker);
        Ok((id, worker))
    }

    fn workers_started(&self) -> u64 {
        static STARTED: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        STARTED.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
    }

    /// Opens a session.
    pub fn connect(self: &Arc<Local>, settings: Settings) -> Result<Arc<Session>> {
        let local = self.clone();
        let connect: Box<Connect> =
            Box::new(move |on_msg: OnMsg| -> Result<(Arc<dyn Link>, SessionWelcome)> {
                // Dispatcher and workers in here read the debug switches themselves.
                let ours = |name: &str| name.starts_with("GT_") && !name.starts_with("GT_DEBUG_");
                let vars = std::env::vars().filter(|(name, _)| ours(name)).collect();
                let client = local.hub.connect(vars, on_msg);
                let welcome = client.welcome().clone();
                Ok((Arc::new(LocalLink { client: Mutex::new(Some(client)), _local: local }), welcome))
            });
        Session::open(connect, settings)
    }
}

struct LocalLink {
    client: Mutex<Option<LocalClient>>,
    /// Keeps the workers while the session lives.
    _local: Arc<Local>,
}

impl Link for LocalLink {
    fn send(&self, msg: ClientMsg) -> Result<()> {
        match &*self.client.lock() {
            Some(client) => client.send(msg),
            None => Err(gt_ir::Error::Connection("this session is closed".into())),
        }
    }

    fn close(&self) {
        let client = self.client.lock().take();
        drop(client);
    }

    fn peer(&self) -> String {
        "in-process".into()
    }
}
