//! What a program's binding has to fulfil, worked out once for its structure: a step that comes back is checked without
//! reading its instructions.

use crate::op::View;
use crate::{Arg, Op, Program, Result, Shape, Slot, Structure, Ty, bail};
use smallvec::SmallVec;

/// What fits a structure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Binding {
    inputs: usize,
    outs: usize,
    slots: usize,
    needs: Vec<Need>,
}

/// What an instruction needs of a slot.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Need {
    instr: u32,
    /// None where there is no slot though one is needed.
    slot: Option<u32>,
    what: What,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum What {
    /// So many bytes of data.
    Bytes(usize),
    /// Where a slice of a dimension begins.
    Start { size: usize, span: usize },
    /// Some number.
    Number,
}

impl Binding {
    /// What fits a structure whose value types are given.
    pub fn of(structure: &Structure, types: &[Ty]) -> Result<Binding> {
        let mut needs = Vec::new();
        let mut next = structure.inputs.len();
        for (i, instr) in structure.instrs.iter().enumerate() {
            let first_result = next;
            next += instr.results();
            let instr_number = i as u32;
            if let Op::Data { .. } = &instr.op {
                let (slot, what) = (slot(instr.args.first()), What::Bytes(types[first_result].bytes()));
                needs.push(Need { instr: instr_number, slot, what });
                continue;
            }
            let (first, starts) = starts(&instr.op, instr.args.first(), types)?;
            for (k, what) in starts.into_iter().enumerate() {
                let arg = instr.args.get(first + k);
                if !matches!(arg, Some(Arg::Const(_))) {
                    needs.push(Need { instr: instr_number, slot: slot(arg), what });
                }
            }
            for slot in instr.args.iter().filter_map(|arg| slot(Some(arg))) {
                needs.push(Need { instr: instr_number, slot: Some(slot), what: What::Number });
            }
        }
        let (inputs, outs) = (structure.inputs.len(), structure.outs.len());
        Ok(Binding { inputs, outs, slots: structure.slots as usize, needs })
    }

    /// Checks that a program of this structure is bound to what fits.
    pub fn check(&self, program: &Program) -> Result<()> {
        let counts = (program.inputs.len(), program.outs.len(), program.slots.len());
        if counts != (self.inputs, self.outs, self.slots) {
            bail!(Value, "program: the binding does not fit its structure");
        }
        self.needs.iter().try_for_each(|need| need.check(program))
    }
}

impl Need {
    fn check(&self, program: &Program) -> Result<()> {
        let i = self.instr;
        let given = self.slot.and_then(|slot| program.slots.get(slot as usize));
        match (&self.what, given) {
            (What::Bytes(need), Some(Slot::Data(data))) if data.len() == *need => Ok(()),
            (What::Bytes(need), _) => {
                bail!(Value, "program: instruction {i} needs {need} bytes of data in its slot")
            }
            (What::Start { size, span }, Some(Slot::Num(start))) => {
                let start = start.as_i64();
                if start < 0 || (start as u64).saturating_add(*span as u64) > *size as u64 {
                    let end = start.saturating_add(*span as i64);
                    bail!(Index, "program: instruction {i} slices {start}..{end} of {size}");
                }
                Ok(())
            }
            (What::Start { .. }, _) => {
                bail!(Value, "program: instruction {i} needs a number as slice start")
            }
            (What::Number, Some(Slot::Data(_))) => {
                let op = program.structure.instrs[i as usize].op.text();
                bail!(Value, "program: instruction {i} ({op}) has bytes where a number belongs")
            }
            (What::Number, _) => Ok(()),
        }
    }
}

/// The slices of an op that may begin where a slot says, and the first of the arguments that do.
fn starts(op: &Op, first: Option<&Arg>, types: &[Ty]) -> Result<(usize, SmallVec<[What; 2]>)> {
    let start = |dim: usize, len: usize, step: usize, shape: &Shape| {
        let span = len.saturating_sub(1) * step + (len > 0) as usize;
        What::Start { size: shape[dim], span }
    };
    let mut starts = SmallVec::new();
    match (op, first) {
        (Op::View(View::Slice { dim, len, step }), Some(Arg::Value(x))) => {
            starts.push(start(*dim, *len, *step, &types[*x as usize].shape));
            Ok((1, starts))
        }
        (Op::Put { path }, Some(Arg::Value(base))) => {
            let mut shape = types[*base as usize].shape.clone();
            for view in path {
                if let View::Slice { dim, len, step } = view {
                    starts.push(start(*dim, *len, *step, &shape));
                }
                shape = crate::infer::view_shape("PUT", view, &shape)?;
            }
            Ok((2, starts))
        }
        _ => Ok((1, starts)),
    }
}

fn slot(arg: Option<&Arg>) -> Option<u32> {
    match arg {
        Some(Arg::Slot(k)) => Some(*k),
        _ => None,
    }
}
