//! Where ranks of one process lay out what they show. Coming and leaving are single steps on counters, so that a small
//! collective costs little more than the way of a cache line from one processor to another.

use gt_net::spin;
use gt_sync::{Condvar, Mutex};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A buffer of another thread.
#[derive(Clone, Copy)]
pub struct Shown(pub *const u8, pub usize);

// SAFETY: whoever shows a buffer keeps it as it is until all have looked.
unsafe impl Send for Shown {}
// SAFETY: as above, and nobody writes through it.
unsafe impl Sync for Shown {}

/// The table of one group, round after round.
pub struct Table {
    /// What each rank shows: its own to write until it has come, all others' to read until all are done.
    shown: Vec<UnsafeCell<Vec<Shown>>>,
    /// How often ranks have come and have been done, in all rounds.
    here: AtomicU64,
    done: AtomicU64,
    /// Ranks that sleep until one of them changes.
    asleep: AtomicUsize,
    lock: Mutex<()>,
    changed: Condvar,
}

// SAFETY: the counters say who may write and who may read `shown`, as its comment tells.
unsafe impl Sync for Table {}

impl Table {
    pub fn new(size: usize) -> Table {
        Table {
            shown: (0..size).map(|_| UnsafeCell::default()).collect(),
            here: AtomicU64::new(0),
            done: AtomicU64::new(0),
            asleep: AtomicUsize::new(0),
            lock: Mutex::new(()),
            changed: Condvar::new(),
        }
    }

    /// All ranks count to this in a round.
    fn goal(&self, round: u64) -> u64 {
        (round + 1) * self.shown.len() as u64
    }

    /// Shows buffers and waits for the other ranks. False if the gang `failed` before all had come: then nobody looks.
    pub fn come(&self, round: u64, rank: usize, mine: Vec<Shown>, failed: impl Fn() -> bool) -> bool {
        // SAFETY: this rank's own, and everyone was done with the round before.
        unsafe { *self.shown[rank].get() = mine };
        let goal = self.goal(round);
        if self.here.fetch_add(1, Ordering::SeqCst) + 1 == goal {
            self.wake();
            return true;
        }
        let full = || self.here.load(Ordering::SeqCst) >= goal;
        loop {
            self.wait(|| full() || failed());
            let here = self.here.load(Ordering::SeqCst);
            // Leaving and the last one's coming are steps on one counter: either all look or nobody does.
            if here >= goal {
                return true;
            }
            if self.here.compare_exchange(here, here - 1, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                return false;
            }
        }
    }

    /// What all ranks show.
    ///
    /// # Safety
    /// Between `come`, which was true, and `leave`.
    pub unsafe fn shown(&self) -> impl Iterator<Item = &[Shown]> {
        // SAFETY: all have come, and nobody writes before all are done, this rank included.
        self.shown.iter().map(|shown| unsafe { (*shown.get()).as_slice() })
    }

    /// This rank is done with what is shown; waits for the others, who have all come.
    pub fn leave(&self, round: u64) {
        let goal = self.goal(round);
        match self.done.fetch_add(1, Ordering::SeqCst) + 1 == goal {
            true => self.wake(),
            false => self.wait(|| self.done.load(Ordering::SeqCst) >= goal),
        }
    }

    /// Wakes those who sleep, to look again.
    pub fn wake(&self) {
        if self.asleep.load(Ordering::SeqCst) > 0 {
            let _lock = self.lock.lock();
            self.changed.notify_all();
        }
    }

    fn wait(&self, ready: impl Fn() -> bool) {
        // Most often the others are near: looking costs less than sleeping.
        if spin::for_a_moment(&ready) {
            return;
        }
        let mut lock = self.lock.lock();
        self.asleep.fetch_add(1, Ordering::SeqCst);
        while !ready() {
            self.changed.wait(&mut lock);
        }
        self.asleep.fetch_sub(1, Ordering::SeqCst);
    }
}
