//! Repairs: cells that go back to what a failed program had made itself, before it went wrong, need that made once more
//! (C5).

use super::Session;
use super::outbox::Outbox;
use crate::cell::Cell;
use crate::stream::{Rebind, Sealed, SourceLine, Work};
use crate::value::{SETTLED, Value, ValueInner};
use gt_ir::{Arg, Input, Instr, Program, Slot, Structure, TensorId, Ty};
use std::sync::Arc;

/// A program, kept to make some of its values again.
pub(super) struct Again {
    structure: Arc<Structure>,
    inputs: Vec<TensorId>,
    slots: Vec<Slot>,
    /// Stream position of its first result.
    base: u64,
}

/// What a cell goes back to: result number `result` of the program that failed.
pub(super) struct Wanted {
    pub cell: Arc<Cell>,
    pub result: usize,
    pub ty: Ty,
}

/// A program that failed, of which something is to be made again.
pub(super) struct Repair {
    again: Box<Again>,
    lines: Vec<SourceLine>,
    starts: Vec<u32>,
    /// Which values depend on the instruction that failed.
    lost: Vec<bool>,
    pub wanted: Vec<Wanted>,
}

impl Repair {
    pub fn new(again: Box<Again>, failed: u32, lines: Vec<SourceLine>) -> Repair {
        let starts = again.structure.starts();
        let mut lost = vec![false; starts[starts.len() - 1] as usize];
        for (i, instr) in again.structure.instrs.iter().enumerate() {
            let reads_lost = |arg: &Arg| matches!(arg, Arg::Value(v) if lost[*v as usize]);
            if i == failed as usize || instr.args.iter().any(reads_lost) {
                lost[starts[i] as usize..starts[i + 1] as usize].fill(true);
            }
        }
        Repair { again, lines, starts, lost, wanted: Vec::new() }
    }

    /// Which result of the program has this position in the stream.
    pub fn result(&self, pos: u64) -> Option<usize> {
        pos.checked_sub(self.again.base).map(|at| at as usize)
    }

    /// True of a result that depends on the instruction that failed.
    pub fn is_lost(&self, result: usize) -> bool {
        self.lost.get(self.again.structure.inputs.len() + result) != Some(&false)
    }

    /// True of a value that the program has made all the same.
    pub fn is_left(&self, value: &Value) -> bool {
        self.result(value.pos).is_some_and(|result| !self.is_lost(result))
    }
}

impl Again {
    /// A program whose cells would go back to its own results if it failed.
    pub fn of(program: &Program, base: u64, rebinds: &[Rebind]) -> Option<Box<Again>> {
        let own = |r: &Rebind| r.old_pos >= base && r.cell.strong_count() > 0;
        rebinds.iter().any(own).then(|| {
            let Program { structure, inputs, slots, .. } = program;
            Box::new(Again {
                structure: structure.clone(),
                inputs: inputs.clone(),
                slots: slots.clone(),
                base,
            })
        })
    }

    /// The structure that makes `outs` and nothing else, which of the inputs it reads, and which instructions it has.
    fn only(&self, starts: &[u32], outs: &[u32]) -> (Structure, Vec<usize>, Vec<usize>) {
        let inputs = self.structure.inputs.len();
        let mut needed = vec![false; starts[starts.len() - 1] as usize];
        outs.iter().for_each(|&v| needed[v as usize] = true);
        let results = |i: usize| starts[i] as usize..starts[i + 1] as usize;
        for (i, instr) in self.structure.instrs.iter().enumerate().rev() {
            if needed[results(i)].contains(&true) {
                needed[results(i)].fill(true);
                for arg in &instr.args {
                    if let Arg::Value(v) = arg {
                        needed[*v as usize] = true;
                    }
                }
            }
        }
        let before = |next: &mut u32, needed: &bool| Some(std::mem::replace(next, *next + *needed as u32));
        let number: Vec<u32> = needed.iter().scan(0, before).collect();
        let read: Vec<usize> = (0..inputs).filter(|&k| needed[k]).collect();
        let kept: Vec<usize> =
            (0..self.structure.instrs.len()).filter(|&i| needed[starts[i] as usize]).collect();
        let instr = |&i: &usize| {
            let Instr { op, args } = &self.structure.instrs[i];
            let args = args.iter().map(|arg| match *arg {
                Arg::Value(v) => Arg::Value(number[v as usize]),
                other => other,
            });
            Instr { op: op.clone(), args: args.collect() }
        };
        let input = |&k: &usize| Input { ty: self.structure.inputs[k].ty.clone(), dies: false };
        let structure = Structure {
            inputs: read.iter().map(input).collect(),
            instrs: kept.iter().map(instr).collect(),
            outs: outs.iter().map(|&v| number[v as usize]).collect(),
            slots: self.structure.slots,
            ..Structure::default()
        };
        (structure, read, kept)
    }
}

impl Session {
    /// Queues a program that makes again what is wanted, as far as its inputs still exist. Gives the cells with what they
    /// are to hold.
    pub(super) fn repair(
        &self,
        outbox: &mut Outbox,
        repair: Repair,
        exists: impl Fn(&Outbox, TensorId) -> bool,
    ) -> Vec<(Arc<Cell>, Value)> {
        let Repair { again, lines, starts, wanted, .. } = repair;
        let first = again.structure.inputs.len();
        let outs: Vec<u32> = wanted.iter().map(|w| (first + w.result) as u32).collect();
        let (structure, read, kept) = again.only(&starts, &outs);
        let inputs: Vec<TensorId> = read.iter().map(|&k| again.inputs[k]).collect();
        if wanted.is_empty() || !inputs.iter().all(|id| exists(outbox, *id)) {
            return Vec::new();
        }
        let line = |i: usize| lines.get(i).copied().unwrap_or_default();
        let made_by = |v: &u32| line(starts.partition_point(|start| start <= v) - 1);
        let values: Vec<Value> = wanted
            .iter()
            .map(|w| {
                let (id, stream) = (self.next_id(), w.cell.stream());
                Arc::new(ValueInner { id, ty: w.ty.clone(), stream, pos: SETTLED })
            })
            .collect();
        let sealed = Sealed {
            structure: Work::New(structure, None),
            base: SETTLED,
            inputs,
            outs: values.iter().map(|v| v.id).collect(),
            slots: again.slots,
            frees: Vec::new(),
            rebinds: Vec::new(),
            lines: kept.into_iter().map(line).collect(),
            out_lines: outs.iter().map(made_by).collect(),
            held: Vec::new(),
            bytes: values.iter().map(|v| v.ty.bytes() as u64).sum(),
            prefix: None,
            marks: Vec::new(),
            ends_step: false,
            stream: 0,
        };
        self.number(outbox, sealed);
        wanted.into_iter().map(|w| w.cell).zip(values).collect()
    }
}
