//! Waiting a moment without sleeping: waking a sleeping core costs more than most answers take.

use std::time::{Duration, Instant};

/// How long to stay awake for an answer that may be near.
pub const MOMENT: Duration = Duration::from_micros(50);

/// Looks until `done` or a moment has passed, leaving the core to others in between; the last word of `done`.
pub fn for_a_moment(mut done: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if done() {
            return true;
        }
        if start.elapsed() > MOMENT {
            return false;
        }
        for _ in 0..16 {
            std::hint::spin_loop();
        }
        std::thread::yield_now();
    }
}
