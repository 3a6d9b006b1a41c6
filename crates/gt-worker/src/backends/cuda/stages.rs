//! Where the time until the first result goes, told with `GT_VERBOSE=1`.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Shorter stages are not told.
const SHORTEST: Duration = Duration::from_millis(10);

/// Does something, and tells how long it took where somebody wants to know.
pub fn stage<T>(what: &str, work: impl FnOnce() -> T) -> T {
    static TOLD: OnceLock<bool> = OnceLock::new();
    if !*TOLD.get_or_init(|| gt_ir::env::on("GT_VERBOSE")) {
        return work();
    }
    let start = Instant::now();
    let out = work();
    let took = start.elapsed();
    if took >= SHORTEST {
        let at = age().map_or(String::new(), |at| format!(", {at:.2} s after the process began"));
        gt_ir::say!("gt worker: cuda: {what}: {:.0} ms{at}", took.as_secs_f64() * 1e3);
    }
    out
}

/// Seconds since this process began, as the system counts them.
fn age() -> Option<f64> {
    let up = std::fs::read_to_string("/proc/uptime").ok()?;
    let up: f64 = up.split(' ').next()?.parse().ok()?;
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name, in brackets, may hold anything; the start is the 20th field after it.
    let began: f64 = stat.rsplit(')').next()?.split_whitespace().nth(19)?.parse().ok()?;
    // SAFETY: plain query.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    Some(up - began / ticks.max(1) as f64)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_process_has_an_age() {
        let age = super::age().unwrap();
        assert!((0.0..3600.0).contains(&age), "{age}");
    }
}
