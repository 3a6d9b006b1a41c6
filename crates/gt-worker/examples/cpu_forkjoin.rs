//! Nanoseconds of handing work to the threads of the cpu backend and waiting for it, hot and after a pause, and what
//! two halves of some work gain. `cargo run --release -p gt-worker --example cpu_forkjoin`

use gt_worker::backends::cpu::threads::Threads;
use std::time::{Duration, Instant};

fn main() {
    let threads = Threads::new(2);
    for pause in [0u64, 5, 20, 200, 2000] {
        let mut times: Vec<f64> = (0..if pause > 100 { 300 } else { 20_000 })
            .map(|_| {
                let start = Instant::now();
                while start.elapsed() < Duration::from_micros(pause) {
                    std::hint::spin_loop();
                }
                let start = Instant::now();
                threads.run(2, &|i| {
                    std::hint::black_box(i);
                });
                start.elapsed().as_secs_f64() * 1e9
            })
            .collect();
        times.sort_by(f64::total_cmp);
        let at = |q: f64| times[(times.len() as f64 * q) as usize];
        println!(
            "empty job {pause:5} us after the last: best {:.0} ns, median {:.0}, 95% {:.0}",
            at(0.0),
            at(0.5),
            at(0.95)
        );
    }
    let work = |rounds: usize| {
        let mut x = 1u64;
        for i in 0..rounds {
            x = std::hint::black_box(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(i as u64));
        }
        std::hint::black_box(x);
    };
    for rounds in [500, 1000, 2000, 5000, 20_000] {
        let (mut alone, mut both) = (f64::MAX, f64::MAX);
        for _ in 0..2000 {
            let start = Instant::now();
            (0..2).for_each(|_| work(rounds));
            alone = alone.min(start.elapsed().as_secs_f64());
            let start = Instant::now();
            threads.run(2, &|_| work(rounds));
            both = both.min(start.elapsed().as_secs_f64());
        }
        println!("work of {:7.2} us: on two threads {:7.2} us", alone * 1e6, both * 1e6);
    }
}
