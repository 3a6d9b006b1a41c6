//! Who works a peer's connection: its I/O thread, which steps aside while others drive.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use gt_sync::{Condvar, Mutex};

/// How long the I/O thread stays aside after a drive: the next one most often follows at once. Where drives keep coming
/// it stays longer and longer, because looking whether they do costs a waking each time.
const LINGER: Duration = Duration::from_millis(2);
const LONG: Duration = Duration::from_millis(50);

/// Counts the drivers and tells those who wait.
pub(crate) struct Drivers {
    count: AtomicUsize,
    /// True while the I/O thread does not hold the connection.
    aside: AtomicBool,
    last_us: AtomicU64,
    /// True when the connection ended and only the I/O thread can go on.
    mending: AtomicBool,
    /// True when something is to come that no drive waits for.
    wanted: AtomicBool,
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
            wanted: AtomicBool::new(false),
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
            self.call_back();
        }
    }

    /// Has the I/O thread go to work as soon as nobody drives, however lately somebody did.
    pub fn want(&self) {
        self.wanted.store(true, Ordering::SeqCst);
        if self.aside.load(Ordering::SeqCst) {
            self.call_back();
        }
    }

    /// Wakes the I/O thread from where it stays aside.
    pub fn call_back(&self) {
        // Under the lock, so that it is not between looking and sleeping.
        let _lock = self.lock.lock();
        self.back.notify_all();
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
        let mut lock = self.lock.lock();
        let mut linger = LINGER;
        loop {
            let since = self.started.elapsed().as_micros() as u64;
            let last = self.last_us.load(Ordering::SeqCst);
            let recent = last > 0 && since.saturating_sub(last) < linger.as_micros() as u64;
            let wanted = self.wanted.load(Ordering::SeqCst);
            let busy = self.count.load(Ordering::SeqCst) > 0;
            if (busy || (recent && !wanted)) && !self.mending.load(Ordering::SeqCst) && !hurry() {
                self.aside.store(true, Ordering::SeqCst);
                self.progress.notify_all();
                self.back.wait_for(&mut lock, linger);
                linger = (linger * 2).min(LONG);
            } else if self.aside.swap(false, Ordering::SeqCst) {
                // A driver that came before this store was not told to wake anyone: look again.
            } else {
                self.wanted.store(false, Ordering::SeqCst);
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long the I/O thread stays aside while something else happens.
    fn aside_while(drivers: &Drivers, other: impl FnOnce()) -> Duration {
        std::thread::scope(|scope| {
            let start = Instant::now();
            let io = scope.spawn(move || {
                drivers.step_aside(|| false);
                start.elapsed()
            });
            other();
            io.join().unwrap()
        })
    }

    #[test]
    fn the_io_thread_comes_back_when_drives_end_or_it_is_wanted() {
        let drivers = Drivers::new();
        assert!(aside_while(&drivers, || {}) < LONG, "nobody drove");
        let pause = || std::thread::sleep(Duration::from_millis(1));
        let drive = || {
            drivers.enter(|| {});
            pause();
            drivers.leave(false);
        };
        // Long enough for the longest stay.
        let took = aside_while(&drivers, || (0..150).for_each(|_| drive()));
        assert!(took >= Duration::from_millis(100), "aside for {took:?} while drives came");
        drivers.enter(|| {});
        drivers.leave(false);
        let took = aside_while(&drivers, || drivers.want());
        assert!(took < LONG, "wanted, and aside for {took:?}");
    }
}
