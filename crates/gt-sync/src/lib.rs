//! Locks that a fork leaves usable.
//!
//! They have the interface of `parking_lot`, whose own locks keep all sleeping threads of a process in one table. A fork copies that table, but not the threads: where threads slept, new
//! locks of the child that fall into the same places of the table lose their wake-ups. The locks of the standard
//! library keep everything within themselves, so that a child that leaves its parent's locks alone is well (C12).
//!
//! A panic while a lock is held does not poison it: what a panicking thread leaves behind is the concern of whoever
//! catches the panic.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// A lock for one thread at a time.
#[derive(Default)]
pub struct Mutex<T: ?Sized>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub const fn new(value: T) -> Mutex<T> {
        Mutex(std::sync::Mutex::new(value))
    }

    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Mutex<T> {
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        MutexGuard { mutex: self, held: Some(held) }
    }

    /// The lock if nobody holds it.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let held = match self.0.try_lock() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(MutexGuard { mutex: self, held: Some(held) })
    }

    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.try_lock() {
            Some(held) => f.debug_tuple("Mutex").field(&&*held).finish(),
            None => f.write_str("Mutex(<locked>)"),
        }
    }
}

/// A `Mutex` that is held.
pub struct MutexGuard<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
    /// Taken out only while the lock is open in `unlocked` or `Condvar::wait`.
    held: Option<std::sync::MutexGuard<'a, T>>,
}

impl<T: ?Sized> MutexGuard<'_, T> {
    /// Opens the lock while `f` runs.
    pub fn unlocked<R>(guard: &mut Self, f: impl FnOnce() -> R) -> R {
        guard.held = None;
        // Also where `f` panics, the guard holds the lock again.
        let again = Relock(guard);
        let out = f();
        drop(again);
        out
    }
}

struct Relock<'g, 'a, T: ?Sized>(&'g mut MutexGuard<'a, T>);

impl<T: ?Sized> Drop for Relock<'_, '_, T> {
    fn drop(&mut self) {
        self.0.held = Some(self.0.mutex.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        match &self.held {
            Some(held) => held,
            None => unreachable!("a guard is used while its lock is open"),
        }
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        match &mut self.held {
            Some(held) => held,
            None => unreachable!("a guard is used while its lock is open"),
        }
    }
}

/// Where threads wait for a change of what a `Mutex` holds.
#[derive(Default, Debug)]
pub struct Condvar(std::sync::Condvar);

/// Whether a wait ended because its time was over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    pub fn timed_out(self) -> bool {
        self.0
    }
}

impl Condvar {
    pub const fn new() -> Condvar {
        Condvar(std::sync::Condvar::new())
    }

    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }

    /// Opens the lock until somebody notifies; may also return without.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        if let Some(held) = guard.held.take() {
            guard.held = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// The same, for at most this long.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, limit: Duration) -> WaitTimeoutResult {
        let Some(held) = guard.held.take() else { return WaitTimeoutResult(false) };
        let (held, over) = self.0.wait_timeout(held, limit).unwrap_or_else(PoisonError::into_inner);
        guard.held = Some(held);
        WaitTimeoutResult(over.timed_out())
    }

    /// The same, until this time at most.
    pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, until: Instant) -> WaitTimeoutResult {
        self.wait_for(guard, until.saturating_duration_since(Instant::now()))
    }
}

/// A lock for many readers or one writer.
#[derive(Default, Debug)]
pub struct RwLock<T: ?Sized>(std::sync::RwLock<T>);

impl<T> RwLock<T> {
    pub const fn new(value: T) -> RwLock<T> {
        RwLock(std::sync::RwLock::new(value))
    }
}

impl<T: ?Sized> RwLock<T> {
    #[inline]
    pub fn read(&self) -> std::sync::RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub fn write(&self) -> std::sync::RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn waits_end_by_a_word_or_by_time() {
        let pair = Arc::new((Mutex::new(0), Condvar::new()));
        let theirs = pair.clone();
        let mut seen = pair.0.lock();
        let thread = std::thread::spawn(move || {
            *theirs.0.lock() = 7;
            theirs.1.notify_all();
        });
        while *seen == 0 {
            pair.1.wait(&mut seen);
        }
        assert_eq!(*seen, 7);
        assert!(pair.1.wait_for(&mut seen, Duration::from_millis(1)).timed_out());
        assert!(pair.0.try_lock().is_none());
        let other = MutexGuard::unlocked(&mut seen, || pair.0.try_lock().is_some());
        assert!(other && pair.0.try_lock().is_none());
        drop(seen);
        thread.join().unwrap();
    }

    #[test]
    fn a_panic_leaves_locks_usable() {
        let lock = Arc::new(Mutex::new(1));
        let theirs = lock.clone();
        let ended = std::thread::spawn(move || {
            let mut held = theirs.lock();
            *held = 2;
            panic!("while it is held");
        });
        assert!(ended.join().is_err());
        assert_eq!(*lock.lock(), 2);
        assert_eq!(lock.try_lock().map(|held| *held), Some(2));
        let lost = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut held = lock.lock();
            MutexGuard::unlocked(&mut held, || panic!("while it is open"));
        }));
        assert!(lost.is_err() && lock.try_lock().is_some());
    }
}
