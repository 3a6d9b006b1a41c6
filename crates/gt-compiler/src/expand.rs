//! Writes composites that a backend does not take whole as their decompositions.

use gt_ir::build::{Build, Operand, Operands, Values};
use gt_ir::composite::decompose;
use gt_ir::{Arg, ArgTy, Instr, Op, Result, Structure, Ty, bail, infer_all};
use smallvec::SmallVec;

/// A structure without the composites that were refused.
pub struct Expanded {
    pub structure: Structure,
    /// The type of every value.
    pub types: Vec<Ty>,
    /// The instruction of the original structure that each instruction belongs to.
    pub origins: Vec<u32>,
}

/// Expands every composite that `takes` refuses. Nothing comes back if there is none.
pub fn expand(structure: &Structure, types: &[Ty], takes: fn(&Op, &Ty) -> bool) -> Result<Option<Expanded>> {
    let whole = |instr: &Instr| {
        let first = instr
            .args
            .iter()
            .find_map(|a| if let Arg::Value(v) = a { Some(&types[*v as usize]) } else { None });
        !instr.op.is_composite() || (has_step(&instr.op) && first.is_some_and(|ty| takes(&instr.op, ty)))
    };
    if structure.instrs.iter().all(whole) {
        return Ok(None);
    }
    let inputs = structure.inputs.len();
    let mut writer = Writer {
        structure: Structure {
            inputs: structure.inputs.clone(),
            instrs: Vec::with_capacity(structure.instrs.len() * 2),
            outs: Vec::new(),
            slots: structure.slots,
            ..Default::default()
        },
        types: types[..inputs].to_vec(),
        origins: Vec::with_capacity(structure.instrs.len() * 2),
        at: 0,
    };
    // What each value of the original has become.
    let mut now: Vec<Arg> = (0..inputs as u32).map(Arg::Value).collect();
    for (i, instr) in structure.instrs.iter().enumerate() {
        writer.at = i as u32;
        let given = |arg: &Arg| match arg {
            Arg::Value(v) => now[*v as usize],
            number => *number,
        };
        if whole(instr) {
            let first = now.len();
            let args = instr.args.iter().map(given).collect();
            let results = &types[first..first + instr.results()];
            now.extend(writer.push(Instr { op: instr.op.clone(), args }, results.iter().cloned()));
        } else {
            let args: Operands<Arg> = instr.args.iter().map(|arg| Operand::Val(given(arg))).collect();
            now.extend(decompose(&mut writer, &instr.op, &args)?);
        }
    }
    for &out in &structure.outs {
        match now[out as usize] {
            Arg::Value(v) => writer.structure.outs.push(v),
            _ => bail!(Value, "program: live-out {out} is a number"),
        }
    }
    let Writer { structure, types, origins, .. } = writer;
    Ok(Some(Expanded { structure, types, origins }))
}

/// True if a composite can be a step of a plan.
fn has_step(op: &Op) -> bool {
    matches!(op, Op::Softmax { .. } | Op::LogSoftmax { .. } | Op::Attention { .. } | Op::AttentionGrad { .. })
}

/// Collects instructions. Its values are operands: decompositions pass numbers on, slots as well as constants.
struct Writer {
    structure: Structure,
    types: Vec<Ty>,
    origins: Vec<u32>,
    /// The instruction being expanded.
    at: u32,
}

impl Writer {
    fn push(&mut self, instr: Instr, types: impl Iterator<Item = Ty>) -> Values<Arg> {
        let first = self.types.len();
        self.types.extend(types);
        self.structure.instrs.push(instr);
        self.origins.push(self.at);
        (first..self.types.len()).map(|v| Arg::Value(v as u32)).collect()
    }
}

impl Build for Writer {
    type V = Arg;

    fn ty(&self, v: &Arg) -> Ty {
        match v {
            Arg::Value(v) => self.types[*v as usize].clone(),
            Arg::Const(_) | Arg::Slot(_) => unreachable!("decompositions never ask for the type of a number"),
        }
    }

    fn emit(&mut self, op: Op, args: Operands<Arg>) -> Result<Arg> {
        self.emit_all(op, args).map(|outs| outs[0])
    }

    fn emit_all(&mut self, op: Op, args: Operands<Arg>) -> Result<Values<Arg>> {
        let args: SmallVec<[Arg; 3]> = args
            .into_iter()
            .map(|arg| match arg {
                Operand::Val(arg) => arg,
                Operand::Num(x) => Arg::Const(x),
            })
            .collect();
        let types = {
            let seen: SmallVec<[ArgTy; 4]> = args
                .iter()
                .map(|arg| match arg {
                    Arg::Value(v) => ArgTy::Val(&self.types[*v as usize]),
                    Arg::Const(_) | Arg::Slot(_) => ArgTy::Num,
                })
                .collect();
            infer_all(&op, &seen)?
        };
        Ok(self.push(Instr { op, args }, types.into_iter()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gt_ir::program::Input;
    use gt_ir::{DType, Scalar, Slot, reference};
    use smallvec::smallvec;

    #[test]
    fn slots_pass_through_and_instructions_remember_where_they_came_from() {
        let op = Op::Adam { decoupled: true, amsgrad: false, maximize: false, decay: true };
        let ty = Ty::new(DType::F32, [2]);
        let mut args: SmallVec<[Arg; 3]> = (0..7).map(Arg::Slot).collect();
        args.extend((0..4).map(Arg::Value));
        let neg = Instr { op: Op::Unary(gt_ir::Unary::Neg), args: smallvec![Arg::Value(5)] };
        let structure = Structure {
            inputs: vec![Input { ty: ty.clone(), dies: true }; 4],
            instrs: vec![Instr { op, args }, neg],
            outs: vec![4, 5, 6, 7],
            slots: 7,
            ..Default::default()
        };
        let types = structure.check().unwrap();
        let expanded = expand(&structure, &types, |_, _| false).unwrap().unwrap();
        assert_eq!(expanded.structure.check().unwrap(), expanded.types);
        assert_eq!(expanded.origins.first(), Some(&0));
        assert_eq!(expanded.origins.last(), Some(&1));
        let inputs: Vec<_> = [[1.0, 2.0], [0.5, -0.5], [0.1, 0.2], [0.3, 0.4]]
            .iter()
            .map(|x| gt_ir::HostTensor::from_f64s(DType::F32, [2], x))
            .collect();
        let slots: Vec<Slot> =
            [0.1, 0.95, 1e-2, 0.4, 0.1, 0.98, 0.02].map(|x| Slot::Num(Scalar::Float(x))).to_vec();
        let whole = reference::run(&structure, &inputs, &slots).unwrap();
        assert_eq!(reference::run(&expanded.structure, &inputs, &slots).unwrap(), whole);
        assert!(expand(&expanded.structure, &expanded.types, |_, _| false).unwrap().is_none());
    }
}
