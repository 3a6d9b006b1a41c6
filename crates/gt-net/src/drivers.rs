//! Who works a peer's connection: its I/O thread, which steps aside while others drive.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use gt_sync::{Condvar, Mutex};

/// How long the I/O thread stays aside after a drive: the next one most often follows at once.
const LINGER: Duration = Duration::from_millis(2);

/// Counts the drivers and tells those who wait.
pub(crate) struct Drivers {
    count: AtomicUsize,
    /// True while the I/O thread does not hold the connection.
    aside: AtomicBool,
    last_us: AtomicU64,
    /// True when the connection ended and only the I/O thread can go on.
    mending: AtomicBool,
    started: Instant,
    lock: Mutex<()>,
    /// Told after every turn, to drivers that wait for another's.
    pub progress: Condvar,
    back: Condvar,
}

impl Drivers {
    pub fn new() -> Self {
        Drivers {
            count: AtomicUsize::new(0),
            aside: AtomicBool::new(false),
            last_us: AtomicU64::new(0),
            mending: AtomicBool::new(false),
            started: Instant::now(),
            lock: Mutex::new(()),
            progress: Condvar::new(),
            back: Condvar::new(),
        }
    }

    /// Announces a driver; `wake` is called when the I/O thread has to be told.
    pub fn enter(&self, wake: impl FnOnce()) {
        self.count.fetch_add(1, Ordering::SeqCst);
        if !self.aside.load(Ordering::SeqCst) {
            wake();
        }
    }

    /// A driver leaves; with `mend`, because the I/O thread has to mend the connection.
    pub fn leave(&self, mend: bool) {
        self.last_us.store(self.started.elapsed().as_micros() as u64, Ordering::SeqCst);
        self.count.fetch_sub(1, Ordering::SeqCst);
        if mend {
            self.mending.store(true, Ordering::SeqCst);
            self.back.notify_all();
        }
    }

    /// The I/O thread has mended what it was told to.
    pub fn mended(&self) {
        self.mending.store(false, Ordering::SeqCst);
    }

    /// Waits a moment for the turn of another thread.
    pub fn wait(&self) {
        self.progress.wait_for(&mut self.lock.lock(), Duration::from_millis(1));
    }

    /// Keeps the I/O thread away while anyone drives or did a moment ago, unless it must `hurry`.
    pub fn step_aside(&self, hurry: impl Fn() -> bool) {
        loop {
            let since = self.started.elapsed().as_micros() as u64;
            let last = self.last_us.load(Ordering::SeqCst);
            let recent = last > 0 && since.saturating_sub(last) < LINGER.as_micros() as u64;
            let busy = self.count.load(Ordering::SeqCst) > 0;
            if (busy || recent) && !self.mending.load(Ordering::SeqCst) && !hurry() {
                self.aside.store(true, Ordering::SeqCst);
                self.progress.notify_all();
                self.back.wait_for(&mut self.lock.lock(), LINGER);
            } else if self.aside.swap(false, Ordering::SeqCst) {
                // A driver that came before this store was not told to wake anyone: look again.
            } else {
                return;
            }
        }
    }
}
