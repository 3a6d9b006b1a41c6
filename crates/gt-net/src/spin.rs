//! Waiting a moment without sleeping: waking a sleeping core costs more than most answers take.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long to stay awake for an answer that may be near.
pub const MOMENT: Duration = Duration::from_micros(50);
/// How long at most where answers of the kind have come quickly of late and cores are plenty, or few.
const LONG: Duration = Duration::from_millis(1);
const SHORT: Duration = Duration::from_micros(400);
/// So many cores are plenty: one that waits awake is missed by nobody. Of a few, one is free where two take turns; a
/// single one is needed by whoever is waited for.
const PLENTY: usize = 8;
const FEW: usize = 2;

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

/// How long it may pay to stay awake on this machine.
fn longest() -> Duration {
    static LONGEST: OnceLock<Duration> = OnceLock::new();
    *LONGEST.get_or_init(|| match std::thread::available_parallelism().map_or(1, |n| n.get()) {
        PLENTY.. => LONG,
        FEW..PLENTY => SHORT,
        _ => Duration::ZERO,
    })
}

impl Habit {
    /// Notes how long a wait has been.
    pub fn took(&self, wait: Duration) {
        self.note(wait < longest());
    }

    /// Notes whether a wait was short.
    fn note(&self, short: bool) {
        let old = self.short.load(Ordering::Relaxed);
        let now = if short { ALL / 4 } else { 0 };
        self.short.store(old - old / 4 + now, Ordering::Relaxed);
    }

    /// How long to stay awake for the next; not at all where that would not pay.
    pub fn awake(&self) -> Duration {
        if longest() == LONG { self.awake_in_turn() } else { Duration::ZERO }
    }

    /// The same for one of two that take turns, such as a client and the thread that runs its programs.
    pub fn awake_in_turn(&self) -> Duration {
        if self.is_short() { longest() } else { Duration::ZERO }
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
        let waits = |times: usize, short: bool| (0..times).for_each(|_| habit.note(short));
        assert!(!habit.is_short());
        waits(5, true);
        assert!(habit.is_short());
        waits(1000, true);
        waits(1, false);
        waits(2, true);
        assert!(habit.is_short(), "one long wait among many");
        waits(3, false);
        assert!(!habit.is_short());
    }
}
