//! Which line of the user's program made which tensor, for those that live: kept so cheaply that it is always there.

use crate::stream::SourceLine;
use foldhash::fast::FixedState;
use gt_ir::TensorId;
use std::collections::{HashMap, VecDeque};

/// Tensors remembered program by program; older ones move to a table if they still live.
const MAX_RECENT: usize = 1 << 17;

/// The results of one program that outlive it.
struct Made {
    ids: Vec<TensorId>,
    lines: Vec<SourceLine>,
}

/// Lines of tensors.
#[derive(Default)]
pub(crate) struct Lived {
    recent: VecDeque<Made>,
    /// Tensors in `recent`.
    count: usize,
    old: HashMap<TensorId, SourceLine, FixedState>,
    freed: Freed,
}

/// A bit for every tensor from some number on: it was freed.
#[derive(Default)]
struct Freed {
    base: u64,
    words: VecDeque<u64>,
}

impl Freed {
    fn set(&mut self, id: u64) -> bool {
        let Some(at) = id.checked_sub(self.base) else { return false };
        let word = (at / 64) as usize;
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (at % 64);
        true
    }

    fn get(&self, id: u64) -> bool {
        let at = id.saturating_sub(self.base);
        self.words.get((at / 64) as usize).is_some_and(|word| word >> (at % 64) & 1 == 1)
    }

    /// Forgets all before `id`.
    fn forget(&mut self, id: u64) {
        while self.base + 64 <= id && self.words.pop_front().is_some() {
            self.base += 64;
        }
    }
}

impl Lived {
    /// A program made these.
    pub fn made(&mut self, ids: &[TensorId], lines: Vec<SourceLine>) {
        if ids.is_empty() {
            return;
        }
        self.count += ids.len();
        self.recent.push_back(Made { ids: ids.to_vec(), lines });
        while self.count > MAX_RECENT && self.recent.len() > 1 {
            self.move_oldest();
        }
    }

    fn move_oldest(&mut self) {
        let Some(Made { ids, lines }) = self.recent.pop_front() else { return };
        self.count -= ids.len();
        let living = ids.into_iter().zip(lines).filter(|(id, _)| !self.freed.get(id.0));
        self.old.extend(living);
        // Numbers only grow, but threads give theirs out of order: some slack.
        let oldest = self.recent.front().and_then(|made| made.ids.iter().min());
        if let Some(oldest) = oldest {
            self.freed.forget(oldest.0.saturating_sub(1 << 16));
        }
    }

    pub fn freed(&mut self, id: TensorId) {
        if !self.freed.set(id.0) || !self.old.is_empty() {
            self.old.remove(&id);
        }
    }

    /// True if a tensor was made and not freed.
    pub fn has(&self, id: TensorId) -> bool {
        let made = || self.old.contains_key(&id) || self.recent.iter().any(|made| made.ids.contains(&id));
        !self.freed.get(id.0) && made()
    }

    /// The lines of all tensors that may live.
    pub fn lines(&self) -> HashMap<TensorId, SourceLine, FixedState> {
        let mut lines = self.old.clone();
        for made in &self.recent {
            lines.extend(made.ids.iter().copied().zip(made.lines.iter().copied()));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lives_is_remembered_and_what_died_is_not() {
        let mut lived = Lived::default();
        let line = |n| SourceLine { file: 1, line: n };
        lived.made(&[TensorId(1), TensorId(2)], vec![line(10), line(11)]);
        lived.freed(TensorId(2));
        for i in 1..3000u64 {
            let ids: Vec<TensorId> = (0..100).map(|k| TensorId(i * 100 + k)).collect();
            lived.made(&ids, vec![line(i as u32); 100]);
            ids.iter().for_each(|id| lived.freed(*id));
        }
        let lines = lived.lines();
        assert_eq!(lines.get(&TensorId(1)), Some(&line(10)));
        assert!(!lines.contains_key(&TensorId(2)));
        assert!(lived.old.len() == 1 && lived.count <= MAX_RECENT);
        assert!(lived.freed.words.len() < 10_000, "{}", lived.freed.words.len());
        lived.freed(TensorId(1));
        assert!(!lived.lines().contains_key(&TensorId(1)));
    }
}
