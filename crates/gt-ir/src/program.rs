//! Programs: the instructions between two cuts, split into structure (the plan key) and binding (ids, slots).

use crate::binding::Binding;
use crate::infer::{ArgTy, Types, infer_all};
use crate::op::Op;
use crate::signal::Mark;
use crate::{Result, Scalar, Ty, bail};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;

/// A tensor's name within its session, written once (C1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct TensorId(pub u64);

/// An operand inside a structure.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Arg {
    /// A value: inputs come first, then the results of every instruction in order.
    Value(u32),
    /// A number that is part of the plan key.
    Const(Scalar),
    /// A number or bytes outside the plan key: an index into the binding's slots.
    Slot(u32),
}

/// Operands of one instruction.
pub type Args = SmallVec<[Arg; 3]>;

/// One instruction. Its results are numbered in a row after all values before it (`Structure::starts`).
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Instr {
    pub op: Op,
    pub args: Args,
}

impl Instr {
    /// How many results it has.
    #[inline]
    pub fn results(&self) -> usize {
        self.op.results(self.args.len())
    }
}

/// A live-in of a program.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Input {
    pub ty: Ty,
    /// The client dropped it during this program: its buffer may be reused once the program succeeded.
    pub dies: bool,
}

/// All of a program that its plan depends on (C4). Ids are numbered by first use, so equal work has equal structure.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Structure {
    pub inputs: Vec<Input>,
    pub instrs: Vec<Instr>,
    /// The values that outlive the program.
    pub outs: Vec<u32>,
    /// How many slots the binding must bring.
    pub slots: u32,
    /// What signals say about its values, in order of value. They are all on one mesh: a client cuts its stream where
    /// the mesh changes. Workers ignore them.
    pub marks: Vec<Mark>,
    /// A boundary to be compiled at once (`compile: true`): its best plan is made before its first run.
    pub at_once: bool,
}

/// What fills a slot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Slot {
    Num(Scalar),
    /// Dense elements in the machine's byte order.
    Data(#[serde(with = "crate::whole::bytes")] Arc<Vec<u8>>),
}

/// A structure bound to the tensors of a session.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Program {
    pub structure: Arc<Structure>,
    /// `structure.key()`, kept so that it is computed once. A receiver recomputes it.
    pub key: u64,
    /// One id per input.
    pub inputs: Vec<TensorId>,
    /// One fresh id per live-out.
    pub outs: Vec<TensorId>,
    pub slots: Vec<Slot>,
    /// Ids the client has dropped. Those that are inputs here are also marked `dies`.
    pub frees: Vec<TensorId>,
}

/// No program holds more instructions than this.
pub const MAX_INSTRS: usize = 1 << 20;

impl Structure {
    /// The plan key: a hash of the whole structure. Equal keys are compared in full before they count as equal.
    pub fn key(&self) -> u64 {
        foldhash::quality::FixedState::default().hash_one(self)
    }

    /// A hash of the structure without its sizes and numbers: equal for programs that may differ in those alone.
    pub fn kin(&self) -> u64 {
        let mut h = foldhash::fast::FixedState::default().build_hasher();
        for input in &self.inputs {
            (input.ty.dtype, input.ty.shape.len(), input.dies).hash(&mut h);
        }
        for instr in &self.instrs {
            // Names are static, so an address stands for one.
            instr.op.text().as_ptr().hash(&mut h);
            for arg in &instr.args {
                match arg {
                    Arg::Value(v) => h.write_u32(*v),
                    Arg::Const(_) => h.write_u8(1),
                    Arg::Slot(k) => h.write_u32(!k),
                }
            }
        }
        self.outs.hash(&mut h);
        h.finish()
    }

    /// The type of every value, inputs first. Fails if anything in the structure is not well formed, so that
    /// whoever runs it may index without fear.
    pub fn check(&self) -> Result<Vec<Ty>> {
        if self.instrs.len() > MAX_INSTRS || self.inputs.len() > MAX_INSTRS {
            bail!(Value, "program: {} instructions, at most {MAX_INSTRS} are possible", self.instrs.len());
        }
        let mut types: Vec<Ty> = Vec::with_capacity(self.inputs.len() + self.instrs.len());
        for input in &self.inputs {
            input.ty.shape.check("input", input.ty.dtype)?;
            types.push(input.ty.clone());
        }
        for (i, instr) in self.instrs.iter().enumerate() {
            types.extend(self.check_instr(i, instr, &types)?);
        }
        for &out in &self.outs {
            if out as usize >= types.len() {
                bail!(Value, "program: live-out {out} of {} values", types.len());
            }
        }
        if let Some(mark) = self.marks.iter().find(|m| m.value as usize >= types.len()) {
            bail!(Value, "program: a mark on value {} of {}", mark.value, types.len());
        }
        Ok(types)
    }

    /// The number of the first result of every instruction, and in the end the number of all values.
    pub fn starts(&self) -> Vec<u32> {
        let mut next = self.inputs.len() as u32;
        let mut starts = Vec::with_capacity(self.instrs.len() + 1);
        for instr in &self.instrs {
            starts.push(next);
            next += instr.results() as u32;
        }
        starts.push(next);
        starts
    }

    /// The types of instruction `i`'s results, given the types of the values before it.
    pub(crate) fn check_instr(&self, i: usize, instr: &Instr, types: &[Ty]) -> Result<Types> {
        let mut args: SmallVec<[ArgTy; 4]> = SmallVec::new();
        for (j, arg) in instr.args.iter().enumerate() {
            args.push(match arg {
                Arg::Value(v) => match types.get(*v as usize) {
                    Some(ty) => ArgTy::Val(ty),
                    None => bail!(Value, "program: instruction {i} reads value {v} before it is written"),
                },
                Arg::Const(start) if instr.op.start_arg(j) => {
                    self.check_start(i, instr, start.as_i64(), types)?;
                    ArgTy::Num
                }
                Arg::Const(_) if instr.op.slot_arg(j) => {
                    bail!(Value, "program: instruction {i} ({}) needs a slot as operand {j}", instr.op.text())
                }
                Arg::Const(_) => ArgTy::Num,
                Arg::Slot(k) if *k < self.slots => ArgTy::Num,
                Arg::Slot(k) => bail!(Value, "program: instruction {i} reads slot {k} of {}", self.slots),
            });
        }
        infer_all(&instr.op, &args)
    }

    /// Fails unless a start that is structure is one that may be, and shows what is there.
    fn check_start(&self, i: usize, instr: &Instr, start: i64, types: &[Ty]) -> Result<()> {
        let shape = match instr.args.first() {
            Some(Arg::Value(v)) => types.get(*v as usize).map(|ty| &ty.shape),
            _ => None,
        };
        match shape {
            Some(shape) if instr.op.is_tile(shape, start) => Ok(()),
            _ => bail!(Value, "program: instruction {i} ({}) needs a slot as its start", instr.op.text()),
        }
    }
}

/// What is left of a structure when an instruction has failed.
pub struct Without {
    /// Its inputs all stay, and none dies.
    pub structure: Structure,
    /// Which instructions are left.
    pub kept: Vec<u32>,
    /// Which live-outs are left, by their position.
    pub outs: Vec<usize>,
}

impl Structure {
    /// The structure without an instruction and all that depends on it; nothing if no live-out is left. `lost` marks
    /// values that are gone already, and then those that go now.
    pub fn without(&self, starts: &[u32], lost: &mut [bool], failed: usize) -> Option<Without> {
        let mut next = self.inputs.len() as u32;
        *lost.get_mut(*starts.get(failed)? as usize)? = true;
        let mut number: Vec<u32> = (0..next).collect();
        let mut kept = Vec::new();
        let mut instrs = Vec::new();
        for (i, instr) in self.instrs.iter().enumerate() {
            let reads_lost = |arg: &Arg| matches!(arg, Arg::Value(v) if lost[*v as usize]);
            let results = starts[i] as usize..starts[i + 1] as usize;
            if lost[starts[i] as usize] || instr.args.iter().any(reads_lost) {
                lost[results.clone()].fill(true);
                number.extend(results.map(|_| u32::MAX));
                continue;
            }
            let args = instr.args.iter().map(|arg| match *arg {
                Arg::Value(v) => Arg::Value(number[v as usize]),
                other => other,
            });
            let args = args.collect();
            for _ in results {
                number.push(next);
                next += 1;
            }
            kept.push(i as u32);
            instrs.push(Instr { op: instr.op.clone(), args });
        }
        let outs: Vec<usize> = (0..self.outs.len()).filter(|&k| !lost[self.outs[k] as usize]).collect();
        if outs.is_empty() {
            return None;
        }
        let inputs = self.inputs.iter().map(|i| Input { ty: i.ty.clone(), dies: false }).collect();
        let live = outs.iter().map(|&k| number[self.outs[k] as usize]).collect();
        Some(Without {
            structure: Structure { inputs, instrs, outs: live, slots: self.slots, ..Default::default() },
            kept,
            outs,
        })
    }
}

impl Program {
    /// Checks that the binding fits the structure, whose value types are given.
    pub fn check_binding(&self, types: &[Ty]) -> Result<()> {
        Binding::of(&self.structure, types)?.check(self)
    }
}
