//! The threads that do the copies and sums of a collective.

use crate::backends::cpu::threads::Threads;

/// Threads that share the work of a collective.
pub trait Hands: Sync {
    fn count(&self) -> usize;

    /// Runs `work(0..tasks)`, each once.
    fn run(&self, tasks: usize, work: &(dyn Fn(usize) + Sync));
}

/// The calling thread alone.
pub struct Alone;

impl Hands for Alone {
    fn count(&self) -> usize {
        1
    }

    fn run(&self, tasks: usize, work: &(dyn Fn(usize) + Sync)) {
        (0..tasks).for_each(work);
    }
}

impl Hands for Threads {
    fn count(&self) -> usize {
        Threads::count(self)
    }

    fn run(&self, tasks: usize, work: &(dyn Fn(usize) + Sync)) {
        Threads::run(self, tasks, work);
    }
}

/// Bytes that one thread takes at a time.
const GRAIN: usize = 64 << 10;

/// A copy or sum that can be cut in two.
pub trait Task: Send + Sized {
    /// How many bytes it is about.
    fn bytes(&self) -> usize;

    /// Cuts off about this many bytes, or gives all back if that cannot be done.
    fn cut(self, bytes: usize) -> (Self, Option<Self>);

    fn go(&mut self);
}

/// Does all tasks; large ones are cut for all hands.
pub fn work<T: Task>(hands: &dyn Hands, tasks: impl Iterator<Item = T>) {
    if hands.count() == 1 {
        return tasks.for_each(|mut task| task.go());
    }
    let mut cut = Vec::new();
    for task in tasks {
        let mut left = Some(task);
        while let Some(task) = left.take() {
            let (first, rest) = if task.bytes() > GRAIN { task.cut(GRAIN) } else { (task, None) };
            cut.push(first);
            left = rest;
        }
    }
    let bytes: usize = cut.iter().map(Task::bytes).sum();
    if bytes <= GRAIN {
        return cut.iter_mut().for_each(Task::go);
    }
    let shared = Each(cut.as_mut_ptr());
    // SAFETY: every task is run by one thread, once, and `cut` outlives them all.
    hands.run(cut.len(), &|i| unsafe { (*shared.at(i)).go() });
}

/// The first of several things, each of which one thread uses.
struct Each<T>(*mut T);

// SAFETY: whoever makes one hands every element to one thread only.
unsafe impl<T: Send> Sync for Each<T> {}

impl<T> Each<T> {
    fn at(&self, i: usize) -> *mut T {
        self.0.wrapping_add(i)
    }
}

/// Copies bytes.
pub struct Copy<'a> {
    pub from: &'a [u8],
    pub to: &'a mut [u8],
}

impl Task for Copy<'_> {
    fn bytes(&self) -> usize {
        self.from.len()
    }

    fn cut(self, bytes: usize) -> (Self, Option<Self>) {
        let (from, from_rest) = self.from.split_at(bytes);
        let (to, to_rest) = self.to.split_at_mut(bytes);
        (Copy { from, to }, Some(Copy { from: from_rest, to: to_rest }))
    }

    fn go(&mut self) {
        self.to.copy_from_slice(self.from);
    }
}

/// Copies bytes with all hands.
pub fn copy(hands: &dyn Hands, from: &[u8], to: &mut [u8]) {
    work(hands, std::iter::once(Copy { from, to }));
}
