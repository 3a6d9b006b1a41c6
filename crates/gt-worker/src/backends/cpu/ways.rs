//! Large results go past the caches or through them. Past them saves reading each line before it is written; through them is
//! faster where a good part of the result's memory is in the last cache still, which depends on the machine and on whom it
//! is shared with. So both are tried while a kernel comes back, and the faster one is kept. No bit depends on it.

use gt_sync::Mutex;
use std::time::Instant;

/// Runs after which a kernel comes back; they go past the caches.
const FIRST: u32 = 2;
/// Runs through the caches in a trial, then past them, and how many of each count: the last. The first of a way find the last
/// cache as the other left it, and it takes a while until that keeps what is written again.
const THROUGH: u32 = 20;
const PAST: u32 = 6;
const COUNT: u32 = 4;
/// Runs after which both are tried again.
const AGAIN: u32 = 600;

/// What is known of a kernel's two ways.
#[derive(Default)]
pub struct Ways(Mutex<State>);

#[derive(Default)]
struct State {
    runs: u32,
    /// Seconds at best in the last trial.
    through: Option<f64>,
    past: Option<f64>,
}

/// A run begun one way.
pub struct Begun {
    pub past: bool,
    counts: bool,
    start: Instant,
}

impl State {
    /// Begins a run: whether it goes past the caches, and whether its time counts.
    fn begin(&mut self) -> (bool, bool) {
        let run = self.runs;
        self.runs = run.wrapping_add(1);
        if run < FIRST {
            return (true, false);
        }
        match (run - FIRST) % AGAIN {
            0 => {
                (self.through, self.past) = (None, None);
                (false, false)
            }
            at if at < THROUGH => (false, at >= THROUGH - COUNT),
            at if at < THROUGH + PAST => (true, at >= THROUGH + PAST - COUNT),
            _ => (self.past < self.through || self.through.is_none(), false),
        }
    }

    fn end(&mut self, past: bool, seconds: f64) {
        let best = if past { &mut self.past } else { &mut self.through };
        *best = Some(best.map_or(seconds, |best| best.min(seconds)));
    }
}

impl Ways {
    pub fn begin(&self) -> Begun {
        let (past, counts) = self.0.lock().begin();
        Begun { past, counts, start: Instant::now() }
    }

    pub fn end(&self, begun: Begun) {
        if begun.counts {
            self.0.lock().end(begun.past, begun.start.elapsed().as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs on a machine where the two ways take so long; how many of the last hundred went past the caches.
    fn settle(state: &mut State, past: f64, through: f64) -> usize {
        let mut ways = Vec::new();
        for _ in 0..AGAIN {
            let (way, counts) = state.begin();
            ways.push(way);
            if counts {
                state.end(way, if way { past } else { through });
            }
        }
        ways[ways.len() - 100..].iter().filter(|past| **past).count()
    }

    #[test]
    fn the_faster_way_is_kept_until_the_other_is_faster() {
        let mut state = State::default();
        for (past, through, kept) in
            [(1.0, 0.8, 0), (1.0, 0.9, 0), (1.0, 1.2, 100), (1.0, 1.2, 100), (1.0, 0.5, 0)]
        {
            assert_eq!(
                settle(&mut state, past, through),
                kept,
                "{past} past the caches, {through} through them"
            );
        }
    }

    #[test]
    fn what_does_not_come_back_goes_past_the_caches() {
        let mut state = State::default();
        assert_eq!([state.begin(), state.begin()], [(true, false); 2]);
        assert_eq!(state.begin(), (false, false));
    }
}
