//! Better plans, made on a thread of their own while what exists goes on running (C6).

use crate::backend::{Backend, Effort};
use crate::plans::{Compiled, compile};
use gt_ir::{Result, Structure};
use gt_sync::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Plans asked for and not made yet, at most.
const MAX_ASKED: usize = 64;

/// The nice value of the thread that makes them.
const NICE: i32 = 10;

/// What is asked for.
type Job = (Arc<dyn Backend>, u64, Arc<Structure>);

/// A plan that was asked for.
pub struct Better {
    pub key: u64,
    pub structure: Arc<Structure>,
    pub plan: Result<Compiled>,
    pub took: Duration,
}

/// Where better plans are made. The thread starts with the first one.
#[derive(Default)]
pub struct Planner {
    asked: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    made: Mutex<Vec<Better>>,
    /// Something has been made.
    news: AtomicBool,
    /// Asked for and not made.
    open: AtomicUsize,
}

impl Planner {
    /// Asks for the best plan of a structure; false if there is too much to do already.
    pub fn ask(&mut self, backend: &Arc<dyn Backend>, key: u64, structure: &Arc<Structure>) -> bool {
        if self.shared.open.load(Ordering::Acquire) >= MAX_ASKED {
            return false;
        }
        if self.asked.is_none() {
            let (send, todo) = channel::<Job>();
            let shared = self.shared.clone();
            let work = move || {
                gt_net::process::give_way(NICE);
                while let Ok((backend, key, structure)) = todo.recv() {
                    let start = Instant::now();
                    let plan = compile(&*backend, &structure, Effort::Full);
                    let took = start.elapsed();
                    shared.made.lock().push(Better { key, structure, plan, took });
                    shared.open.fetch_sub(1, Ordering::AcqRel);
                    shared.news.store(true, Ordering::Release);
                }
            };
            match std::thread::Builder::new().name("gt-planner".into()).spawn(work) {
                Ok(thread) => (self.asked, self.thread) = (Some(send), Some(thread)),
                // What exists goes on running.
                Err(error) => {
                    gt_ir::say!("gt worker: no thread for better plans: {error}");
                    return false;
                }
            }
        }
        self.shared.open.fetch_add(1, Ordering::AcqRel);
        let job = (backend.clone(), key, structure.clone());
        self.asked.as_ref().is_some_and(|asked| asked.send(job).is_ok())
    }

    /// What has been made since the last time; costs nothing where there is nothing.
    #[inline]
    pub fn made(&self) -> Vec<Better> {
        if !self.shared.news.load(Ordering::Acquire) {
            return Vec::new();
        }
        self.shared.news.store(false, Ordering::Release);
        std::mem::take(&mut *self.shared.made.lock())
    }
}

impl Drop for Planner {
    fn drop(&mut self) {
        self.asked = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
