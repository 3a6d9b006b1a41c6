//! Waiting a moment without sleeping: waking a sleeping core costs more than most answers take.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long to stay awake for an answer that may be near, where cores are plenty.
pub const MOMENT: Duration = Duration::from_micros(50);
/// How long at most where answers of the kind have come quickly of late.
const LONG: Duration = Duration::from_millis(1);
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
        pause();
    }
}

/// Leaves the core to others, and for a moment its units to the thread that shares them.
pub fn pause() {
    for _ in 0..16 {
        std::hint::spin_loop();
    }
    std::thread::yield_now();
}

/// How waits of one kind have gone of late: whether it pays to stay awake for the next.
pub struct Habit {
    /// How many of the last waits were short, the newest counting most: from none to `ALL`.
    short: AtomicU32,
    /// How long to stay awake at most.
    most: Duration,
}

const ALL: u32 = 256;

fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, |n| n.get()))
}

impl Default for Habit {
    /// One for which to stay awake only where cores are plenty.
    fn default() -> Habit {
        Habit::new(if cores() >= PLENTY { LONG } else { Duration::ZERO })
    }
}

impl Habit {
    fn new(most: Duration) -> Habit {
        Habit { short: AtomicU32::new(0), most }
    }

    /// One of two that take turns, such as a client and the thread that runs its programs: where cores are few, it stays
    /// awake for this long.
    pub fn in_turn(most: Duration) -> Habit {
        Habit::new(match cores() {
            PLENTY.. => LONG,
            FEW..PLENTY => most,
            _ => Duration::ZERO,
        })
    }

    /// One for an answer from another process: where cores are few, whoever brings it needs them, so that it stays awake
    /// only for answers that come at once.
    pub fn across() -> Habit {
        Habit::in_turn(2 * MOMENT)
    }

    /// False if it never pays to stay awake.
    pub fn ever_awake(&self) -> bool {
        !self.most.is_zero()
    }

    /// Notes how long a wait has been.
    pub fn took(&self, wait: Duration) {
        let old = self.short.load(Ordering::Relaxed);
        let now = if wait < self.most { ALL / 4 } else { 0 };
        self.short.store(old - old / 4 + now, Ordering::Relaxed);
    }

    /// How long to stay awake for the next; not at all where that would not pay.
    pub fn awake(&self) -> Duration {
        if self.is_short() { self.most } else { Duration::ZERO }
    }

    /// The same, and a moment in any case where cores are plenty.
    pub fn awake_a_moment(&self) -> Duration {
        if cores() >= PLENTY { self.awake().max(MOMENT) } else { self.awake() }
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
        let habit = Habit::new(LONG);
        let waits = |times: usize, wait: Duration| (0..times).for_each(|_| habit.took(wait));
        assert!(habit.awake().is_zero());
        waits(5, MOMENT);
        assert_eq!(habit.awake(), LONG);
        waits(1000, MOMENT);
        waits(1, LONG * 2);
        waits(2, MOMENT);
        assert!(habit.is_short(), "one long wait among many");
        waits(3, LONG * 2);
        assert!(!habit.is_short());
    }
}
