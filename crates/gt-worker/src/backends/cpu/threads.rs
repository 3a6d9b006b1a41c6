//! A few threads of our own, asleep until there is enough to do.

use gt_sync::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Threads that share the tasks of one caller at a time.
pub struct Threads {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
    /// Held by the caller whose job runs; counts jobs.
    busy: Mutex<u64>,
}

struct Shared {
    /// Each thread's tasks of the job: neighbours, and in the next job of as many tasks the same ones, so that a thread
    /// finds in its caches what it wrote there. Whoever has none left takes some of the others'.
    shares: Box<[Tasks]>,
    /// The two words of a `*const dyn Fn(usize)`.
    work: [AtomicUsize; 2],
    /// Tasks of the job that are done.
    done: AtomicUsize,
    /// The caller sleeps until the last task is done.
    waiting: AtomicBool,
    sleepers: AtomicUsize,
    /// Callers that will soon have another job.
    awake: AtomicUsize,
    stop: AtomicBool,
    /// There will be no job for a while: helpers do not look for one.
    resting: AtomicBool,
    /// Until then, in nanoseconds since the start, the last helper leaves its core to others; 0 if it does not.
    away: AtomicU64,
    started: Instant,
    lock: Mutex<()>,
    wake: Condvar,
    /// Told when the last helper is to come back.
    back: Condvar,
    finished: Condvar,
}

/// Bits of a task's number.
const BITS: u32 = 20;
const MOST: usize = 1 << (BITS - 1);
const MASK: u64 = (1 << BITS) - 1;

/// What is left of a range of tasks as one word: the job's number, the end and the next. Whoever takes a task off either
/// side owns it, and the job cannot end before it is done; so what `work` holds belongs to it. On lines of its own,
/// since its thread changes it all the time.
#[repr(align(128))]
struct Tasks(AtomicU64);

impl Tasks {
    fn set(&self, epoch: u64, first: usize, end: usize) {
        self.0.store((epoch << (2 * BITS)) | ((end as u64) << BITS) | first as u64, Ordering::SeqCst);
    }

    #[inline]
    fn any(&self) -> bool {
        let word = self.0.load(Ordering::SeqCst);
        word & MASK < (word >> BITS) & MASK
    }

    /// The next task for the thread whose tasks these are, the last one for another.
    #[inline]
    fn take(&self, own: bool) -> Option<usize> {
        let mut word = self.0.load(Ordering::Acquire);
        loop {
            let (next, end) = (word & MASK, (word >> BITS) & MASK);
            if next >= end {
                return None;
            }
            let (task, left) = if own { (next, word + 1) } else { (end - 1, word - (1 << BITS)) };
            match self.0.compare_exchange_weak(word, left, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(task as usize),
                Err(now) => word = now,
            }
        }
    }
}

/// How long a thread looks for work before it goes to sleep, and how long while a caller holds an `Awake`.
const LOOK: Duration = Duration::from_micros(40);
const LOOK_LONGER: Duration = Duration::from_micros(400);

impl Shared {
    /// A task of the job that runs, now this thread's to do.
    #[inline]
    fn next(&self, thread: usize) -> Option<usize> {
        let others = || {
            let n = self.shares.len();
            (1..n).find_map(|k| self.shares[(thread + k) % n].take(false))
        };
        self.shares[thread].take(true).or_else(others)
    }

    #[inline]
    fn has_work(&self, thread: usize) -> bool {
        let n = self.shares.len();
        (0..n).any(|k| self.shares[(thread + k) % n].any())
    }

    /// How long the last helper is to stay away.
    fn away(&self) -> Option<Duration> {
        let until = self.away.load(Ordering::Relaxed);
        let left = until.checked_sub(1)?.checked_sub(self.started.elapsed().as_nanos() as u64)?;
        Some(Duration::from_nanos(left + 1))
    }

    fn rouse(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            let _lock = self.lock.lock();
            self.wake.notify_all();
        }
    }
}

/// Calls `f` until it is true or the time is over.
#[inline]
fn look(limit: impl Fn() -> Duration, f: impl Fn() -> bool) -> bool {
    for _ in 0..200 {
        if f() {
            return true;
        }
        std::hint::spin_loop();
    }
    let start = Instant::now();
    loop {
        for _ in 0..50 {
            if f() {
                return true;
            }
            std::hint::spin_loop();
        }
        if start.elapsed() > limit() {
            return false;
        }
        // Whoever has something to do gets the core, such as a client that records its next step.
        std::thread::yield_now();
    }
}

/// The cores this process may use.
pub fn cores() -> Vec<usize> {
    // SAFETY: an empty set is valid, and the call fills in at most its size.
    let (got, set) = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        (libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set), set)
    };
    // SAFETY: every index is within the set.
    let usable = |core: &usize| got == 0 && unsafe { libc::CPU_ISSET(*core, &set) };
    (0..libc::CPU_SETSIZE as usize).filter(usable).collect()
}

/// Keeps the calling thread on a core. A system that refuses loses nothing but speed.
pub fn pin(core: usize) {
    confine(&[core]);
}

/// Keeps the calling thread, and those it starts from now on, on some cores.
pub fn confine(cores: &[usize]) {
    // SAFETY: the set is on the stack, and every index is within it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        for &core in cores {
            libc::CPU_SET(core.min(libc::CPU_SETSIZE as usize - 1), &mut set);
        }
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

/// Keeps helpers from falling asleep between the jobs of a caller.
pub struct Awake<'a>(&'a Shared);

impl Drop for Awake<'_> {
    fn drop(&mut self) {
        self.0.awake.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Threads {
    /// `count` threads, the calling one included.
    pub fn new(count: usize) -> Threads {
        Threads::start(count, None)
    }

    /// A thread for each of these cores; the first is the calling one's, which pins itself.
    pub fn pinned(cores: &[usize]) -> Threads {
        Threads::start(cores.len(), Some(cores))
    }

    fn start(count: usize, cores: Option<&[usize]>) -> Threads {
        let shared = Arc::new(Shared {
            shares: (0..count.max(1)).map(|_| Tasks(AtomicU64::new(0))).collect(),
            work: [AtomicUsize::new(0), AtomicUsize::new(0)],
            done: AtomicUsize::new(0),
            waiting: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            awake: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            resting: AtomicBool::new(false),
            away: AtomicU64::new(0),
            started: Instant::now(),
            lock: Mutex::new(()),
            wake: Condvar::new(),
            back: Condvar::new(),
            finished: Condvar::new(),
        });
        let helpers = (1..count.max(1))
            .filter_map(|i| {
                let shared = shared.clone();
                let core = cores.map(|cores| cores[i]);
                let work = move || {
                    core.into_iter().for_each(pin);
                    help(&shared, i, i + 1 == count);
                };
                std::thread::Builder::new().name(format!("gt-cpu-{i}")).spawn(work).ok()
            })
            .collect();
        Threads { shared, helpers, busy: Mutex::new(0) }
    }

    /// The threads of this process for backends of `count` threads: several workers in one process share them, so that
    /// they do not crowd each other out.
    pub fn shared(count: usize) -> Arc<Threads> {
        static POOLS: Mutex<Vec<(u32, Weak<Threads>)>> = Mutex::new(Vec::new());
        let mut pools = POOLS.lock();
        // After a fork the parent's threads are not here.
        let own = std::process::id();
        pools.retain(|(process, pool)| *process == own && pool.strong_count() > 0);
        let mut there = pools.iter().filter_map(|(_, pool)| pool.upgrade());
        if let Some(pool) = there.find(|pool| pool.count() == count.max(1)) {
            return pool;
        }
        let pool = Arc::new(Threads::new(count));
        pools.push((own, Arc::downgrade(&pool)));
        pool
    }

    pub fn count(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Wakes the helpers, and keeps them looking for work until this is dropped (within bounds).
    pub fn stay_awake(&self) -> Awake<'_> {
        self.shared.awake.fetch_add(1, Ordering::Relaxed);
        self.shared.rouse();
        Awake(&self.shared)
    }

    /// Lets helpers sleep until there is a job.
    pub fn rest(&self) {
        self.shared.resting.store(true, Ordering::Relaxed);
    }

    /// Leaves one core to others for a while, or takes it back (`None`).
    pub fn leave_one(&self, time: Option<Duration>) {
        let now = self.shared.started.elapsed();
        let until = time.map_or(0, |time| (now + time).as_nanos() as u64);
        let before = self.shared.away.swap(until, Ordering::Relaxed);
        if until == 0 && before != 0 {
            let _lock = self.shared.lock.lock();
            self.shared.back.notify_all();
        }
    }

    /// Runs `work(0..tasks)`, each once, on whatever threads are free. Which thread runs a task is left open. Tasks may
    /// differ in kind (`|i| match i { 0 => one(), _ => other() }`); a `run` inside a task stays on its thread.
    pub fn run(&self, tasks: usize, work: &(dyn Fn(usize) + Sync)) {
        let owner = if tasks > 1 && !self.helpers.is_empty() { self.busy.try_lock() } else { None };
        let Some(mut epoch) = owner else {
            (0..tasks).for_each(work);
            return;
        };
        if tasks > MOST {
            drop(epoch);
            return self.run(MOST, &|g| (tasks * g / MOST..tasks * (g + 1) / MOST).for_each(work));
        }
        let shared = &*self.shared;
        *epoch += 1;
        // SAFETY: a fat pointer is two words; only its form changes.
        let words = unsafe { std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), [usize; 2]>(work) };
        shared.work[0].store(words[0], Ordering::Relaxed);
        shared.work[1].store(words[1], Ordering::Relaxed);
        shared.done.store(0, Ordering::Relaxed);
        shared.resting.store(false, Ordering::Relaxed);
        let n = shared.shares.len();
        // Of fewer tasks than threads the caller has the first.
        let first = |thread: usize| (tasks * thread).div_ceil(n);
        // The helpers' go out first: they have a way to go.
        for (thread, share) in shared.shares.iter().enumerate().rev() {
            share.set(*epoch, first(thread), first(thread + 1));
        }
        shared.rouse();
        let mut finish = Finish { shared, tasks, mine: 0 };
        while let Some(i) = shared.next(0) {
            finish.mine += 1;
            work(i);
        }
    }
}

/// Waits for the tasks that helpers took when the caller leaves, panicking or not.
struct Finish<'a> {
    shared: &'a Shared,
    tasks: usize,
    /// Tasks the caller took, the one that panicked included.
    mine: usize,
}

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        let shared = self.shared;
        // After a panic the tasks that are left are nobody's to do.
        while shared.next(0).is_some() {
            self.mine += 1;
        }
        let theirs = self.tasks - self.mine;
        let over = || shared.done.load(Ordering::SeqCst) == theirs;
        if look(|| LOOK, over) {
            return;
        }
        let mut lock = shared.lock.lock();
        shared.waiting.store(true, Ordering::SeqCst);
        while !over() {
            shared.finished.wait(&mut lock);
        }
        shared.waiting.store(false, Ordering::SeqCst);
    }
}

/// The life of a helper. The last of them is the one that leaves its core to others.
fn help(shared: &Shared, thread: usize, last: bool) {
    let away = || if last { shared.away() } else { None };
    loop {
        if away().is_some() {
            let mut lock = shared.lock.lock();
            while let Some(time) = away().filter(|_| !shared.stop.load(Ordering::SeqCst)) {
                shared.back.wait_for(&mut lock, time);
            }
        }
        while let Some(i) = away().is_none().then(|| shared.next(thread)).flatten() {
            let words = [shared.work[0].load(Ordering::Relaxed), shared.work[1].load(Ordering::Relaxed)];
            // SAFETY: the task is ours, so the caller still waits in `run`, and the closure it stored there lives.
            let work = unsafe { &*std::mem::transmute::<[usize; 2], *const (dyn Fn(usize) + Sync)>(words) };
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(i))).is_err() {
                // A panic here is a bug of ours; half a result must not be taken for a whole one.
                std::process::abort();
            }
            shared.done.fetch_add(1, Ordering::SeqCst);
            if shared.waiting.load(Ordering::SeqCst) {
                let _lock = shared.lock.lock();
                shared.finished.notify_all();
            }
        }
        let limit = || match shared.awake.load(Ordering::Relaxed) {
            0 if shared.resting.load(Ordering::Relaxed) => Duration::ZERO,
            0 => LOOK,
            _ => LOOK_LONGER,
        };
        if look(limit, || shared.has_work(thread) || shared.stop.load(Ordering::Relaxed) || away().is_some())
        {
            if shared.stop.load(Ordering::SeqCst) {
                return;
            }
            continue;
        }
        let mut lock = shared.lock.lock();
        shared.sleepers.fetch_add(1, Ordering::SeqCst);
        while !shared.has_work(thread) && !shared.stop.load(Ordering::SeqCst) {
            shared.wake.wait(&mut lock);
            if shared.awake.load(Ordering::Relaxed) > 0 {
                break;
            }
        }
        shared.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        {
            let _lock = self.shared.lock.lock();
            self.shared.stop.store(true, Ordering::SeqCst);
            self.shared.wake.notify_all();
            self.shared.back.notify_all();
        }
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
    fn sleeping_helpers_wake_and_callers_wait() {
        let threads = Threads::new(2);
        for pause in [0, 100, 1000] {
            for _ in 0..20 {
                let sum = AtomicU64::new(0);
                threads.run(2, &|i| {
                    std::thread::sleep(Duration::from_micros(pause * (1 + i as u64)));
                    sum.fetch_add(1 + i as u64, Ordering::Relaxed);
                });
                assert_eq!(sum.into_inner(), 3);
                std::thread::sleep(Duration::from_micros(pause));
            }
        }
        let _awake = threads.stay_awake();
        // A job inside a job stays on its thread.
        let sum = AtomicU64::new(0);
        threads.run(3, &|_| {
            threads.run(5, &|i| {
                sum.fetch_add(i as u64, Ordering::Relaxed);
            })
        });
        assert_eq!(sum.into_inner(), 30);
        let many = AtomicU64::new(0);
        threads.run(MOST + 3, &|_| {
            many.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(many.into_inner(), MOST as u64 + 3);
    }

    #[test]
    fn a_helper_that_is_away_comes_back() {
        let threads = Threads::new(2);
        let sum = AtomicU64::new(0);
        let mine = std::thread::current().id();
        for round in 0..50 {
            let others = AtomicU64::new(0);
            threads.leave_one(Some(Duration::from_secs(600)));
            std::thread::sleep(Duration::from_millis(if round == 0 { 20 } else { 0 }));
            threads.run(9, &|i| {
                others.fetch_add((std::thread::current().id() != mine) as u64, Ordering::Relaxed);
                sum.fetch_add(i as u64, Ordering::Relaxed);
            });
            // One that had begun to look for work may still have found some.
            assert!(round > 0 || others.into_inner() == 0);
            threads.leave_one(None);
            threads.run(9, &|i| {
                sum.fetch_add(i as u64, Ordering::Relaxed);
            });
        }
        assert_eq!(sum.into_inner(), 50 * 2 * 36);
        threads.leave_one(Some(Duration::from_millis(5)));
        let start = Instant::now();
        let both = AtomicU64::new(0);
        while both.load(Ordering::Relaxed) == 0 {
            assert!(start.elapsed() < Duration::from_secs(60), "the helper did not come back");
            threads.run(2, &|_| {
                both.fetch_add((std::thread::current().id() != mine) as u64, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            });
        }
    }

    #[test]
    fn workers_of_one_process_share_threads() {
        let (a, b, c) = (Threads::shared(3), Threads::shared(3), Threads::shared(2));
        assert!(Arc::ptr_eq(&a, &b) && !Arc::ptr_eq(&a, &c));
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
