//! A few threads of our own, asleep until there is enough to do.

use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

/// Threads that share the tasks of one caller at a time.
pub struct Threads {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
    /// Held by the caller whose job runs.
    busy: Mutex<()>,
}

struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    done: Condvar,
    /// Counts jobs, so that a thread that just finished one can look for the next without the lock.
    epoch: AtomicUsize,
    /// The next task of the job.
    next: AtomicUsize,
    running: AtomicUsize,
}

struct State {
    job: Option<Job>,
    stop: bool,
}

#[derive(Clone, Copy)]
struct Job {
    work: *const (dyn Fn(usize) + Sync),
    tasks: usize,
    epoch: usize,
}

// SAFETY: the pointer is used only while the caller that owns the closure waits in `run`.
unsafe impl Send for Job {}

/// Looks this many times before going to sleep.
const SPINS: usize = 2000;

impl Threads {
    /// `count` threads, the calling one included.
    pub fn new(count: usize) -> Threads {
        let shared = Arc::new(Shared {
            state: Mutex::new(State { job: None, stop: false }),
            wake: Condvar::new(),
            done: Condvar::new(),
            epoch: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
        });
        let helpers = (1..count.max(1))
            .filter_map(|i| {
                let shared = shared.clone();
                std::thread::Builder::new().name(format!("gt-cpu-{i}")).spawn(move || help(&shared)).ok()
            })
            .collect();
        Threads { shared, helpers, busy: Mutex::new(()) }
    }

    pub fn count(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Runs `work(0..tasks)`, each once, on whatever threads are free. Which thread runs a task is left open.
    pub fn run(&self, tasks: usize, work: &(dyn Fn(usize) + Sync)) {
        let owner = if tasks > 1 && !self.helpers.is_empty() { self.busy.try_lock() } else { None };
        if owner.is_none() {
            (0..tasks).for_each(work);
            return;
        }
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes; `run` does not return before every helper is done with it.
        let work_ptr = unsafe {
            std::mem::transmute::<*const (dyn Fn(usize) + Sync), *const (dyn Fn(usize) + Sync + 'static)>(
                work,
            )
        };
        {
            let mut state = shared.state.lock();
            let epoch = shared.epoch.load(Ordering::Relaxed) + 1;
            shared.next.store(0, Ordering::Relaxed);
            state.job = Some(Job { work: work_ptr, tasks, epoch });
            shared.epoch.store(epoch, Ordering::Release);
        }
        if tasks == 2 {
            shared.wake.notify_one();
        } else {
            shared.wake.notify_all();
        }
        let mut finish = Finish { shared };
        finish.claim(tasks, work);
    }
}

/// Takes the job back when the caller leaves, panicking or not.
struct Finish<'a> {
    shared: &'a Shared,
}

impl Finish<'_> {
    fn claim(&mut self, tasks: usize, work: &(dyn Fn(usize) + Sync)) {
        loop {
            let i = self.shared.next.fetch_add(1, Ordering::Relaxed);
            if i >= tasks {
                return;
            }
            work(i);
        }
    }
}

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        let shared = self.shared;
        shared.state.lock().job = None;
        for _ in 0..SPINS {
            if shared.running.load(Ordering::Acquire) == 0 {
                return;
            }
            std::hint::spin_loop();
        }
        let mut state = shared.state.lock();
        while shared.running.load(Ordering::Acquire) != 0 {
            shared.done.wait(&mut state);
        }
    }
}

fn help(shared: &Shared) {
    let mut seen = 0;
    loop {
        for _ in 0..SPINS {
            if shared.epoch.load(Ordering::Acquire) != seen {
                break;
            }
            std::hint::spin_loop();
        }
        let job = {
            let mut state = shared.state.lock();
            loop {
                if state.stop {
                    return;
                }
                match state.job {
                    Some(job) if job.epoch != seen => {
                        seen = job.epoch;
                        shared.running.fetch_add(1, Ordering::AcqRel);
                        break job;
                    }
                    _ => {
                        seen = shared.epoch.load(Ordering::Acquire);
                        shared.wake.wait(&mut state);
                    }
                }
            }
        };
        loop {
            let i = shared.next.fetch_add(1, Ordering::Relaxed);
            if i >= job.tasks {
                break;
            }
            // SAFETY: `running` counts us, so the caller still waits in `run` and the closure lives.
            let work = unsafe { &*job.work };
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(i))).is_err() {
                // A panic here is a bug of ours; half a result must not be taken for a whole one.
                std::process::abort();
            }
        }
        if shared.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            let _state = shared.state.lock();
            shared.done.notify_all();
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.state.lock().stop = true;
        self.shared.epoch.fetch_add(1, Ordering::Release);
        self.shared.wake.notify_all();
        for helper in self.helpers.drain(..) {
            let _ = helper.join();
        }
    }
}

/// A pointer that tasks share; each of them writes its own part.
#[derive(Clone, Copy)]
pub struct Ptr(*mut u8);

// SAFETY: whoever makes one promises that tasks write disjoint parts and read nothing that another writes.
unsafe impl Sync for Ptr {}

impl Ptr {
    pub fn new(at: *mut u8) -> Ptr {
        Ptr(at)
    }

    #[inline(always)]
    pub fn get(&self) -> *mut u8 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn every_task_runs_once() {
        let threads = Threads::new(3);
        for round in 0..2000 {
            let n = round % 17;
            let sum = AtomicU64::new(0);
            threads.run(n, &|i| {
                sum.fetch_add(1 << (3 * i), Ordering::Relaxed);
            });
            let want: u64 = (0..n).map(|i| 1 << (3 * i)).sum();
            assert_eq!(sum.into_inner(), want);
        }
    }

    #[test]
    fn callers_do_not_wait_for_each_other() {
        let threads = Threads::new(2);
        let total = AtomicU64::new(0);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..500 {
                        threads.run(4, &|_| {
                            total.fetch_add(1, Ordering::Relaxed);
                        });
                    }
                });
            }
        });
        assert_eq!(total.into_inner(), 4 * 500 * 4);
    }
}
