//! The program being recorded: its values, its live-ins and slots, and where to cut it.

use super::follow::Trail;
use super::past::Pasts;
use super::prefix::Progress;
use super::{Rebind, SourceLine, Stream};
use crate::value::Value;
use foldhash::fast::FixedState;
use gt_ir::{Arg, Instr, Slot, TensorId, Ty};
use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::Arc;

/// One value of the open program.
#[derive(Clone)]
pub(super) struct Entry {
    /// The instruction whose first result it is; none for a further result of the instruction before.
    pub instr: Option<Instr>,
    pub id: TensorId,
    pub ty: Ty,
    pub alive: bool,
    pub line: SourceLine,
    /// How signals mark it, as `signal::mark_of` says.
    pub mark: u32,
}

impl Entry {
    /// The operands of the instruction that begins here.
    pub fn args(&self) -> &[Arg] {
        self.instr.as_ref().map_or(&[], |i| &i.args)
    }
}

/// The program being recorded. Operands name results by `INPUT`-less position and live-ins by `INPUT | index`;
/// `seal` renumbers them.
pub(super) struct Open {
    /// The number of its stream.
    pub stream: u64,
    /// Stream position of the first value.
    pub base: u64,
    pub entries: Vec<Entry>,
    pub inputs: Vec<(TensorId, Ty)>,
    pub input_index: HashMap<TensorId, u32, FixedState>,
    pub slots: Vec<Slot>,
    /// Bytes of host data among the slots.
    pub data: usize,
    pub frees: Vec<TensorId>,
    /// Bytes of the tensors in `frees`.
    pub free_bytes: u64,
    pub rebinds: Vec<(u64, Rebind)>,
    pub held: Vec<Value>,
    /// An optimizer step ended here: seal when the next instruction is recorded.
    pub step_ended: bool,
    /// It lies inside a boundary that is compiled at once.
    pub at_once: bool,
    /// The mesh its signals are on; 0 while there is none.
    pub mesh: u32,
    pub progress: Progress,
    /// The program it follows, in place of entries.
    pub trail: Option<Trail>,
    /// Programs it may follow.
    pub pasts: Arc<Pasts>,
}

pub(super) const INPUT: u32 = 1 << 31;
/// How many op signatures the rolling hash looks back over.
pub(super) const WINDOW: usize = 8;

/// Hashes an op and its result type, for what depends on content alone.
pub(super) const SIGNATURE: FixedState = FixedState::with_seed(0x6774);

impl Open {
    pub fn new(stream: u64, base: u64, positions: Arc<[usize]>, pasts: Arc<Pasts>) -> Open {
        Open {
            stream,
            base,
            entries: Vec::new(),
            inputs: Vec::new(),
            input_index: HashMap::with_hasher(FixedState::default()),
            slots: Vec::new(),
            data: 0,
            frees: Vec::new(),
            free_bytes: 0,
            rebinds: Vec::new(),
            held: Vec::new(),
            step_ended: false,
            at_once: false,
            mesh: 0,
            progress: Progress::new(positions),
            trail: None,
            pasts,
        }
    }

    pub fn operand(&mut self, stream: &Arc<Stream>, v: &Value) -> u32 {
        if Arc::ptr_eq(&v.stream, stream) && v.pos >= self.base {
            return (v.pos - self.base) as u32;
        }
        if let Some(&i) = self.input_index.get(&v.id) {
            return INPUT | i;
        }
        let i = self.inputs.len() as u32;
        self.inputs.push((v.id, v.ty.clone()));
        self.input_index.insert(v.id, i);
        if !Arc::ptr_eq(&v.stream, stream) {
            self.held.push(v.clone());
        }
        INPUT | i
    }

    pub fn slot(&mut self, slot: Slot) -> Arg {
        if let Slot::Data(bytes) = &slot {
            self.data += bytes.len();
        }
        self.slots.push(slot);
        Arg::Slot(self.slots.len() as u32 - 1)
    }

    /// Where to cut a program that reached the cap: after the last smallest rolling hash of op signatures, so that
    /// loops are cut at the same point of their body each time.
    pub fn best_cut(&self) -> usize {
        let n = self.entries.len();
        let signatures: Vec<u64> = self
            .entries
            .iter()
            .map(|e| SIGNATURE.hash_one((e.instr.as_ref().map(|i| &i.op), &e.ty)))
            .collect();
        let mut best = (u64::MAX, n);
        for end in (n / 4).max(WINDOW)..=n {
            // Results of one instruction stay together.
            if self.entries.get(end).is_some_and(|e| e.instr.is_none()) {
                continue;
            }
            let mut h = 0u64;
            for signature in &signatures[end - WINDOW..end] {
                h = (h.rotate_left(7) ^ signature).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            }
            if h <= best.0 {
                best = (h, end);
            }
        }
        best.1
    }
}
