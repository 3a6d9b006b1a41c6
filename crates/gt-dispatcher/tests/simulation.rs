//! The dispatcher under deterministic simulation (C10): random clients, workers, delays, deaths.
//!
//! `GT_SIM_SECONDS=600 cargo test -p gt-dispatcher --test simulation` runs longer;
//! `GT_SIM_SEED=123 cargo test -p gt-dispatcher --test simulation` runs one world again.

mod sim;

use sim::world::World;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs the world of a seed; gives the events it took.
fn run(seed: u64) -> u64 {
    let mut world = World::new(seed);
    let turns = 200 + seed % 1800;
    for _ in 0..turns {
        world.turn();
    }
    world.settle();
    world.events
}

#[test]
fn every_world_comes_to_a_right_end() {
    if let Some(seed) = number("GT_SIM_SEED") {
        println!("seed {seed}: {:?}", World::new(seed).kind());
        println!("{} events", run(seed));
        return;
    }
    let budget = Duration::from_secs(number("GT_SIM_SECONDS").unwrap_or(20));
    let (start, mut seed, mut events) = (Instant::now(), 0, 0);
    while start.elapsed() < budget {
        events += catch_unwind(AssertUnwindSafe(|| run(seed))).unwrap_or_else(|_| {
            panic!("seed {seed} fails: GT_SIM_SEED={seed} cargo test -p gt-dispatcher --test simulation")
        });
        seed += 1;
    }
    println!("{seed} worlds, {events} events");
    assert!(seed > 20, "only {seed} worlds in {budget:?}");
}

#[test]
fn a_seed_decides_everything() {
    assert_eq!(run(7), run(7));
}
