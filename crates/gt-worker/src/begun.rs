//! Programs begun early (C3): what a prefix has worked out, and the rest of the program that goes on from there.
//!
//! Whatever does not fit is dropped and the program runs from its start, so a prefix can neither fail a program nor
//! change its result.

use crate::backend::Buffer;
use gt_ir::{Arg, Input, Instr, Program, Slot, Structure, TensorId, Ty};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// The values of a program's first instructions; by default, of none.
#[derive(Default)]
pub struct Begun {
    structure: Arc<Structure>,
    inputs: Vec<TensorId>,
    slots: Vec<Slot>,
    /// Buffers by the instruction that wrote them.
    values: HashMap<u32, (Ty, Buffer)>,
    /// How long its plans took.
    pub planning: Duration,
}

/// What is left to do of a program, with the buffers it goes on from.
pub struct Rest {
    structure: Structure,
    /// What follows the program's own inputs.
    pub buffers: Vec<Buffer>,
    outs: Vec<Out>,
    /// How long the prefix's plans took.
    pub planning: Duration,
}

/// Where a live-out of the program comes from.
enum Out {
    Kept(Ty, Buffer),
    /// The next result of the rest.
    Made,
}

impl Begun {
    /// Notes what a prefix came to: one buffer per live-out, with their types.
    pub fn new(program: Program, types: Vec<Ty>, outs: Vec<Buffer>, planning: Duration) -> Begun {
        let Program { structure, inputs, slots, .. } = program;
        let n = structure.inputs.len() as u32;
        let wrote = structure.outs.iter().map(|v| v.wrapping_sub(n));
        let values = wrote.zip(types.into_iter().zip(outs)).collect();
        Begun { structure, inputs, slots, values, planning }
    }

    /// Bytes of the values that are kept.
    pub fn bytes(&self) -> u64 {
        self.values.values().map(|(ty, _)| ty.bytes() as u64).sum()
    }

    /// What is left of `whole`; nothing if it does not begin with this prefix.
    pub fn rest(mut self, whole: &Program) -> Option<Rest> {
        let (mine, theirs) = (&*self.structure, &*whole.structure);
        let (len, n) = (mine.instrs.len(), theirs.inputs.len() as u32);
        let same_inputs = mine.inputs.len() <= theirs.inputs.len()
            && whole.inputs.starts_with(&self.inputs)
            && mine.inputs.iter().zip(&theirs.inputs).all(|(a, b)| a.ty == b.ty);
        let same_instrs = len <= theirs.instrs.len()
            && mine.instrs.iter().zip(&theirs.instrs).all(|(a, b)| self.same_instr(a, b, whole));
        if !same_inputs || !same_instrs {
            return None;
        }
        // Values of the prefix that the rest reads become inputs behind the program's own, each once.
        let count: u32 = mine.instrs.iter().map(|i| i.results() as u32).sum();
        let wrote = |v: u32| v.checked_sub(n).filter(|i| *i < count);
        let left = &theirs.instrs[len..];
        let live: HashSet<u32> = theirs.outs.iter().copied().collect();
        let mut place: HashMap<u32, u32> = HashMap::new();
        let mut inputs = theirs.inputs.clone();
        let mut buffers = Vec::new();
        for arg in left.iter().flat_map(|i| &i.args) {
            if let Arg::Value(v) = arg
                && let Some(i) = wrote(*v)
                && !place.contains_key(&i)
            {
                // What nobody else needs leaves its only handle to the plan, which may then reuse it.
                let dies = !live.contains(v);
                let (ty, buffer) = match dies {
                    true => self.values.remove(&i)?,
                    false => self.values.get(&i)?.clone(),
                };
                place.insert(i, inputs.len() as u32);
                inputs.push(Input { ty, dies });
                buffers.push(buffer);
            }
        }
        let first = inputs.len() as u32;
        let number = |v: u32| match wrote(v) {
            _ if v < n => v,
            Some(i) => place[&i],
            None => first + v - n - count,
        };
        let renumber = |arg: &Arg| match *arg {
            Arg::Value(v) => Arg::Value(number(v)),
            other => other,
        };
        let instrs = left
            .iter()
            .map(|i| Instr { op: i.op.clone(), args: i.args.iter().map(renumber).collect() })
            .collect();
        let mut outs = Vec::with_capacity(theirs.outs.len());
        let mut made = Vec::new();
        for &v in &theirs.outs {
            outs.push(match wrote(v) {
                Some(i) => {
                    let (ty, buffer) = self.values.get(&i)?;
                    Out::Kept(ty.clone(), buffer.clone())
                }
                None => {
                    made.push(number(v));
                    Out::Made
                }
            });
        }
        let structure = Structure { inputs, instrs, outs: made, slots: theirs.slots, ..Default::default() };
        Some(Rest { structure, buffers, outs, planning: self.planning })
    }

    /// True if both instructions do the same. Numbers may have become slots since.
    fn same_instr(&self, a: &Instr, b: &Instr, whole: &Program) -> bool {
        let (k, n) = (self.structure.inputs.len() as u32, whole.structure.inputs.len() as u32);
        let same = |(a, b): (&Arg, &Arg)| match (*a, *b) {
            (Arg::Value(v), Arg::Value(w)) => w == if v < k { v } else { v - k + n },
            (Arg::Const(x), Arg::Const(y)) => x == y,
            (Arg::Const(x), Arg::Slot(j)) => whole.slots.get(j as usize) == Some(&Slot::Num(x)),
            (Arg::Slot(i), Arg::Slot(j)) => self.slots.get(i as usize) == whole.slots.get(j as usize),
            _ => false,
        };
        a.op == b.op && a.args.len() == b.args.len() && a.args.iter().zip(&b.args).all(same)
    }
}

impl Rest {
    /// What is left as a program of its own.
    pub fn take_structure(&mut self) -> Structure {
        std::mem::take(&mut self.structure)
    }

    /// The program's live-outs and their types, given what the plan has made.
    pub fn finish(self, types: &[Ty], made: Vec<Buffer>) -> (Vec<Ty>, Vec<Buffer>) {
        let mut made = types.iter().cloned().zip(made);
        let out = |out| match out {
            Out::Kept(ty, buffer) => Some((ty, buffer)),
            Out::Made => made.next(),
        };
        self.outs.into_iter().map_while(out).unzip()
    }
}
