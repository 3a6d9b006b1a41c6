//! Repeated sequences in the streams of all sessions, found in linear time.
//!
//! A program is cut where a rolling hash of its instructions is smallest among its neighbours, so that equal stretches
//! are cut alike wherever they stand. A run only adds to its plan's counter: cutting and counting wait until somebody
//! looks, or until the plan goes.

use foldhash::fast::FixedState;
use gt_ir::{Arg, Structure};
use gt_net::compiling::Compiling;
use gt_net::msg::SequenceStats;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Sequences remembered at most.
const MAX_SEQUENCES: usize = 1 << 16;
/// How many instructions on either side a cut is compared with.
const REACH: usize = 4;

/// What is known of the programs that ran.
#[derive(Default)]
pub struct Sequences {
    programs: Vec<Entry>,
    known: HashMap<u64, Sequence, FixedState>,
}

struct Entry {
    structure: Arc<Structure>,
    /// How often it ran, and how many of those are counted.
    runs: Arc<AtomicU64>,
    counted: u64,
    how: Compiling,
    /// Hash and length of its sequences, itself last; made when first needed.
    parts: Option<Box<[(u64, u32)]>>,
}

struct Sequence {
    /// Instructions; 0 for whole programs of several sequences, whose instructions are counted with those.
    len: u32,
    times: u64,
    threshold: u32,
}

impl Sequences {
    /// Follows a program whose runs are counted in `runs`.
    pub fn follow(&mut self, structure: &Arc<Structure>, runs: &Arc<AtomicU64>, how: Compiling) {
        let (structure, runs) = (structure.clone(), runs.clone());
        self.programs.push(Entry { structure, runs, counted: 0, how, parts: None });
    }

    /// Counts what programs that nobody runs any more have left to count, and lets them go.
    pub fn forget_gone(&mut self) {
        let (gone, here) =
            std::mem::take(&mut self.programs).into_iter().partition(|e| Arc::strong_count(&e.runs) == 1);
        self.programs = here;
        let mut gone: Vec<Entry> = gone;
        gone.iter_mut().for_each(|entry| count(entry, &mut self.known));
    }

    /// Counts all runs so far.
    pub fn stats(&mut self) -> SequenceStats {
        for entry in &mut self.programs {
            count(entry, &mut self.known);
        }
        let mut stats = SequenceStats { unique: self.known.len() as u64, ..Default::default() };
        for sequence in self.known.values().filter(|s| s.times >= s.threshold as u64) {
            stats.hot += 1;
            stats.hot_instructions += sequence.times * sequence.len as u64;
        }
        stats
    }
}

fn count(entry: &mut Entry, known: &mut HashMap<u64, Sequence, FixedState>) {
    let runs = entry.runs.load(Ordering::Relaxed);
    let new = runs - std::mem::replace(&mut entry.counted, runs);
    if new == 0 {
        return;
    }
    let parts = entry.parts.get_or_insert_with(|| cut(&entry.structure, entry.how.min_seq()));
    for &(hash, len) in parts.iter() {
        if known.len() >= MAX_SEQUENCES && !known.contains_key(&hash) {
            known.retain(|_, s| s.times >= s.threshold as u64);
            if known.len() >= MAX_SEQUENCES {
                known.clear();
            }
        }
        let threshold = entry.how.threshold();
        let sequence = known.entry(hash).or_insert(Sequence { len, times: 0, threshold });
        sequence.times += new;
        sequence.threshold = sequence.threshold.min(threshold);
    }
}

/// Hash and length of the sequences of a program, none shorter than `least`, and the program itself if there are several.
fn cut(s: &Structure, least: usize) -> Box<[(u64, u32)]> {
    let signs: Vec<u64> = signatures(s);
    if signs.len() < least {
        return Box::default();
    }
    let hash = |signs: &[u64]| FixedState::default().hash_one(signs);
    let rolling: Vec<u64> = (0..signs.len()).map(|i| hash(&signs[i.saturating_sub(REACH - 1)..=i])).collect();
    let mut parts = Vec::new();
    let mut first = 0;
    for i in 0..signs.len() {
        let near = &rolling[i.saturating_sub(REACH)..(i + REACH + 1).min(rolling.len())];
        let smallest = near.iter().all(|h| rolling[i] <= *h);
        if smallest && i + 1 - first >= least && signs.len() - i > least {
            parts.push((hash(&signs[first..=i]), (i + 1 - first) as u32));
            first = i + 1;
        }
    }
    parts.push((hash(&signs[first..]), (signs.len() - first) as u32));
    if parts.len() > 1 {
        parts.push((!hash(&signs), 0));
    }
    parts.into()
}

/// A hash of every instruction that does not depend on where it stands.
fn signatures(s: &Structure) -> Vec<u64> {
    let inputs = s.inputs.len() as u32;
    let mut next = inputs;
    s.instrs
        .iter()
        .map(|instr| {
            let mut h = FixedState::default().build_hasher();
            instr.op.hash(&mut h);
            for arg in &instr.args {
                match arg {
                    Arg::Value(v) if *v < inputs => s.inputs[*v as usize].ty.hash(&mut h),
                    // What lies far back counts as coming from outside.
                    Arg::Value(v) => (next - v).min(32).hash(&mut h),
                    Arg::Const(x) => x.hash(&mut h),
                    Arg::Slot(_) => h.write_u8(1),
                }
            }
            next += instr.results() as u32;
            h.finish()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gt_ir::{Binary, DType, Input, Instr, Op, Scalar, Ty};

    /// A chain of additions of these numbers.
    fn chain(numbers: impl IntoIterator<Item = i64>) -> Arc<Structure> {
        let input = Input { ty: Ty::new(DType::I64, [4]), dies: false };
        let instr = |(i, x): (usize, i64)| Instr {
            op: Op::Binary(Binary::Add),
            args: [Arg::Value(i as u32), Arg::Const(Scalar::Int(x))].into_iter().collect(),
        };
        let instrs: Vec<Instr> = numbers.into_iter().enumerate().map(instr).collect();
        let outs = vec![instrs.len() as u32];
        Arc::new(Structure { inputs: vec![input], instrs, outs, slots: 0, ..Default::default() })
    }

    #[test]
    fn equal_stretches_are_cut_alike_wherever_they_stand() {
        let body: Vec<i64> = (0..200).map(|i| i * 7919 % 101).collect();
        let one = cut(&chain([1000, 1001, 1002].into_iter().chain(body.clone())), 2);
        let two = cut(&chain((2000..2040).chain(body)), 2);
        let (in_one, in_two): (Vec<u64>, Vec<u64>) =
            (one.iter().map(|p| p.0).collect(), two.iter().map(|p| p.0).collect());
        let shared = in_one.iter().filter(|h| in_two.contains(h)).count();
        assert!(one.len() > 10 && shared + 4 >= one.len(), "{shared} of {} and {}", one.len(), two.len());
        assert_eq!(one.iter().map(|p| p.1).sum::<u32>(), 203);
        assert!(one[..one.len() - 1].iter().all(|p| p.1 >= 2));
    }

    #[test]
    fn what_came_often_is_hot() {
        let mut sequences = Sequences::default();
        let (often, once) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        sequences.follow(&chain(0..5), &often, Compiling::default());
        sequences.follow(&chain(100..104), &once, Compiling::default());
        assert_eq!(sequences.stats(), SequenceStats::default());
        often.store(4, Ordering::Relaxed);
        once.store(1, Ordering::Relaxed);
        let stats = sequences.stats();
        assert!(stats.unique >= 2 && stats.hot >= 1 && stats.hot < stats.unique, "{stats:?}");
        assert_eq!(stats.hot_instructions, 20);
        assert_eq!(sequences.stats(), stats);
        drop(often);
        sequences.forget_gone();
        assert_eq!((sequences.stats(), sequences.programs.len()), (stats, 1));
    }
}
