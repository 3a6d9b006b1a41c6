//! Large results go past the caches or through them. Past them saves reading each line before it is written; through them is
//! faster where a good part of the result's memory is in the last cache still, which depends on the machine and on whom it
//! is shared with. So both are tried while a kernel comes back, and the faster one is kept. No bit depends on it.

use gt_sync::Mutex;
use std::time::Instant;

/// Runs of one way in a trial, and how many of them count: the last. The first find the last cache as the other way left it.
const TRIAL: u32 = 8;
const COUNT: u32 = 3;
/// Runs after which both are tried again.
const AGAIN: u32 = 400;

/// What is known of a kernel's two ways.
#[derive(Default)]
pub struct Ways(Mutex<State>);

#[derive(Default)]
struct State {
    /// Since both were tried last.
    runs: u32,
    /// The way tried first is through the caches.
    through: bool,
    /// Seconds at best of the way tried first and of the other, as found in this trial.
    best: [Option<f64>; 2],
}

/// A run begun one way.
pub struct Begun {
    pub past: bool,
    /// Which of the two is measured by it.
    counts: Option<usize>,
    start: Instant,
}

impl State {
    /// Begins a run: true if it goes past the caches, and whose time it is.
    fn begin(&mut self) -> (bool, Option<usize>) {
        let run = self.runs;
        self.runs += 1;
        if run < 2 * TRIAL {
            let which = (run >= TRIAL) as usize;
            return (self.through == (which == 1), (run % TRIAL >= TRIAL - COUNT).then_some(which));
        }
        if run == 2 * TRIAL {
            let other_is_better = match self.best {
                [Some(first), Some(other)] => other < first,
                _ => false,
            };
            self.through ^= other_is_better;
        }
        if run >= AGAIN {
            *self = State { through: self.through, ..State::default() };
        }
        (!self.through, None)
    }

    fn end(&mut self, which: usize, seconds: f64) {
        let best = &mut self.best[which];
        *best = Some(best.map_or(seconds, |best| best.min(seconds)));
    }
}

impl Ways {
    pub fn begin(&self) -> Begun {
        let (past, counts) = self.0.lock().begin();
        Begun { past, counts, start: Instant::now() }
    }

    pub fn end(&self, begun: Begun) {
        if let Some(which) = begun.counts {
            self.0.lock().end(which, begun.start.elapsed().as_secs_f64());
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
            if let Some(which) = counts {
                state.end(which, if way { past } else { through });
            }
        }
        ways[ways.len() - 100..].iter().filter(|past| **past).count()
    }

    #[test]
    fn the_faster_way_is_kept_until_the_other_is_faster() {
        let mut state = State::default();
        assert!(state.begin().0, "the first run goes past the caches");
        let mut state = State::default();
        assert_eq!(settle(&mut state, 1.0, 0.8), 0);
        assert_eq!(settle(&mut state, 1.0, 0.9), 0);
        assert_eq!(settle(&mut state, 1.0, 1.2), 100);
        assert_eq!(settle(&mut state, 1.0, 1.2), 100);
        assert_eq!(settle(&mut state, 1.0, 0.5), 0);
    }

    #[test]
    fn a_trial_is_a_small_part_of_all_runs() {
        let mut state = State::default();
        let ways: Vec<bool> = (0..10 * AGAIN)
            .map(|_| {
                let (way, counts) = state.begin();
                counts.into_iter().for_each(|which| state.end(which, if way { 1.0 } else { 2.0 }));
                way
            })
            .collect();
        let through = ways.iter().filter(|past| !**past).count();
        assert!((TRIAL as usize..=11 * TRIAL as usize).contains(&through), "{through}");
    }
}
