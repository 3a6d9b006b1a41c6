//! Copies of many bytes, spread over threads: one core alone does not reach the memory's bandwidth.

use std::sync::OnceLock;

/// Below this many bytes a copy stays on the calling thread.
const SPREAD_FROM: usize = 8 << 20;
/// More threads than this gain nothing.
const MAX_THREADS: usize = 4;

/// Copies `from` over `to`, which has the same length.
///
/// # Panics
/// If the lengths differ, as `copy_from_slice` does.
pub fn copy(to: &mut [u8], from: &[u8]) {
    if from.len() < SPREAD_FROM || threads() == 1 {
        return to.copy_from_slice(from);
    }
    assert_eq!(to.len(), from.len(), "copy: lengths differ");
    let part = from.len().div_ceil(threads()).next_multiple_of(4096);
    std::thread::scope(|scope| {
        let mut pairs = to.chunks_mut(part).zip(from.chunks(part));
        let own = pairs.next();
        for (to, from) in pairs {
            scope.spawn(move || to.copy_from_slice(from));
        }
        if let Some((to, from)) = own {
            to.copy_from_slice(from);
        }
    });
}

/// How many threads copy. Asked for once: the system takes longer to tell than a small copy.
fn threads() -> usize {
    static THREADS: OnceLock<usize> = OnceLock::new();
    *THREADS.get_or_init(|| std::thread::available_parallelism().map_or(1, |n| n.get()).min(MAX_THREADS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_and_small_copies_are_exact() {
        for n in [0, 1, 1000, SPREAD_FROM + 12_345] {
            let from: Vec<u8> = (0..n).map(|i| (i * 31 % 251) as u8).collect();
            let mut to = vec![0; n];
            copy(&mut to, &from);
            assert!(to == from);
        }
    }
}
