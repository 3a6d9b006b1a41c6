//! Cores where they are few: the thread that reads commands keeps off the one on which the executor is at work. Every
//! program waits for the executor, and another core is left to clients and servers of this machine anyway.

use crate::backend::Backend;
use crate::backends::cpu::threads::{confine, cores};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Who is where.
pub(crate) struct Aside {
    /// The cores of this process.
    cores: Vec<usize>,
    /// The executor's core, counted from one; 0 while it is not known.
    executor: AtomicUsize,
}

impl Aside {
    /// Nothing where there are cores enough, or only one.
    pub fn new(backend: &dyn Backend) -> Option<Aside> {
        let cores = cores();
        let all = backend.name() == "cpu" && backend.threads() as usize >= cores.len();
        (all && cores.len() > 1).then(|| Aside { cores, executor: AtomicUsize::new(0) })
    }

    /// Notes where the calling thread, the executor, is.
    pub fn note(&self) {
        // SAFETY: a plain query.
        let core = unsafe { libc::sched_getcpu() };
        self.executor.store((core + 1) as usize, Ordering::Relaxed);
    }

    /// Keeps the calling thread off the executor's core; `before` is what it was kept off so far.
    pub fn keep_off(&self, before: &mut usize) {
        let at = self.executor.load(Ordering::Relaxed);
        if std::mem::replace(before, at) != at {
            let others: Vec<usize> = self.cores.iter().copied().filter(|core| core + 1 != at).collect();
            confine(&others);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends;

    #[test]
    fn the_reader_leaves_the_core_of_the_executor() {
        let backend = backends::open("cpu", None).unwrap();
        let Some(aside) = Aside::new(&*backend) else { return };
        assert!(backends::open("cpu", Some(1)).is_ok_and(|few| Aside::new(&*few).is_none()));
        let reader = std::thread::spawn(move || {
            let mut before = 0;
            for core in aside.cores.clone() {
                aside.executor.store(core + 1, Ordering::Relaxed);
                aside.keep_off(&mut before);
                assert!(!cores().contains(&core) && cores().len() == aside.cores.len() - 1);
            }
            aside.note();
            assert!(aside.executor.load(Ordering::Relaxed) > 0);
        });
        reader.join().unwrap();
    }
}
