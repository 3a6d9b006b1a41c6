//! Waiting a moment without sleeping: waking a sleeping core costs more than most answers take.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long to stay awake for an answer that may be near.
pub const MOMENT: Duration = Duration::from_micros(50);
/// How long at most where answers of the kind have come quickly of late and cores are plenty.
const LONG: Duration = Duration::from_millis(1);
/// So many cores are plenty: one that waits awake is missed by nobody.
const PLENTY: usize = 8;

/// Looks until `done` or a moment has passed, leaving the core to others in between; the last word of `done`.
pub fn for_a_moment(done: impl FnMut() -> bool) -> bool {
    within(MOMENT, done)
}

/// Looks until `done` or the time is over, leaving the core to others in between; the last word of `done`.
pub fn within(time: Duration, mut done: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if done() {
            return true;
        }
        if start.elapsed() > time {
            return false;
        }
        for _ in 0..16 {
            std::hint::spin_loop();
        }
        std::thread::yield_now();
    }
}

/// How waits of one kind have gone of late: whether it pays to stay awake for the next.
#[derive(Default)]
pub struct Habit {
    /// How many of the last waits were short, the newest counting most: from none to `ALL`.
    short: AtomicU32,
}

const ALL: u32 = 256;

impl Habit {
    /// Notes how long a wait has been.
    pub fn took(&self, wait: Duration) {
        let old = self.short.load(Ordering::Relaxed);
        let now = if wait < LONG { ALL / 4 } else { 0 };
        self.short.store(old - old / 4 + now, Ordering::Relaxed);
    }

    /// How long to stay awake for the next; not at all where that would not pay.
    pub fn awake(&self) -> Duration {
        static MANY: OnceLock<bool> = OnceLock::new();
        let many = || std::thread::available_parallelism().is_ok_and(|n| n.get() >= PLENTY);
        match self.is_short() && *MANY.get_or_init(many) {
            true => LONG,
            false => Duration::ZERO,
        }
    }

    /// True if most of the last waits were short.
    fn is_short(&self) -> bool {
        self.short.load(Ordering::Relaxed) * 3 > ALL * 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_habit_is_learnt_and_lost_within_a_few_waits() {
        let habit = Habit::default();
        assert!(!habit.is_short());
        (0..5).for_each(|_| habit.took(MOMENT));
        assert!(habit.is_short());
        (0..1000).for_each(|_| habit.took(MOMENT));
        habit.took(LONG * 2);
        (0..2).for_each(|_| habit.took(MOMENT));
        assert!(habit.is_short(), "one long wait among many");
        (0..3).for_each(|_| habit.took(LONG * 2));
        assert!(!habit.is_short());
    }
}
