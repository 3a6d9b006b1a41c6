//! The slow and obviously right meaning of every op: floats in f64, integers in i64, rounded once per instruction.
//!
//! A number among the operands of elementwise arithmetic is first rounded to the computing type: f64 for f64 tensors,
//! f32 for the other floating-point types, the element type itself for integers and bool.

mod composite;
mod elementwise;
mod index;
mod moves;
mod reduce;
mod types;

use crate::collective::Collective;
use crate::host::HostTensor;
use crate::infer::{ArgTy, infer_all};
use crate::op::Op;
use crate::philox;
use crate::program::{Arg, Slot, Structure};
use crate::{Error, Kind, Result, Scalar, Ty, bail};
pub use moves::sources;

/// An operand with its value.
#[derive(Clone, Copy, Debug)]
pub enum RefArg<'a> {
    Val(&'a HostTensor),
    Num(Scalar),
    Data(&'a [u8]),
}

/// The operands of one instruction, read by position. `infer` has accepted their kinds.
struct Reads<'a> {
    op: &'a Op,
    args: &'a [RefArg<'a>],
}

impl<'a> Reads<'a> {
    fn val(&self, i: usize) -> Result<&'a HostTensor> {
        match self.args.get(i) {
            Some(RefArg::Val(v)) => Ok(v),
            _ => bail!(Type, "{}: operand {i} must be a tensor", self.op.text()),
        }
    }

    fn num(&self, i: usize) -> Result<Scalar> {
        match self.args.get(i) {
            Some(RefArg::Num(x)) => Ok(*x),
            _ => bail!(Type, "{}: operand {i} must be a number", self.op.text()),
        }
    }

    fn get(&self, i: usize) -> Option<RefArg<'a>> {
        self.args.get(i).copied()
    }
}

/// The (first) result of one instruction.
pub fn eval(op: &Op, args: &[RefArg]) -> Result<HostTensor> {
    eval_all(op, args).map(|mut outs| outs.swap_remove(0))
}

/// The results of one instruction.
pub fn eval_all(op: &Op, args: &[RefArg]) -> Result<Vec<HostTensor>> {
    let arg_types: Vec<ArgTy> = args
        .iter()
        .map(|arg| match arg {
            RefArg::Val(v) => ArgTy::Val(&v.ty),
            RefArg::Num(_) | RefArg::Data(_) => ArgTy::Num,
        })
        .collect();
    infer_all(op, &arg_types)?;
    match op {
        Op::Sort { dim, descending } => {
            let x = Reads { op, args }.val(0)?;
            Ok(index::sort(x, *dim, *descending, x.ty.shape[*dim]))
        }
        Op::TopK { dim, k, largest } => Ok(index::sort(Reads { op, args }.val(0)?, *dim, *largest, *k)),
        // Softmax has a meaning of its own here, against which its decomposition is held.
        Op::Softmax { .. } | Op::LogSoftmax { .. } => eval_one(op, args).map(|out| vec![out]),
        op if op.is_composite() => composite::eval(op, args),
        op => eval_one(op, args).map(|out| vec![out]),
    }
}

fn eval_one(op: &Op, args: &[RefArg]) -> Result<HostTensor> {
    let ty = types::result(op, args);
    let a = Reads { op, args };
    match op {
        Op::Full { .. } => {
            let x = a.num(0)?;
            Ok(HostTensor::from_scalars(&ty, (0..ty.shape.numel()).map(|_| x)))
        }
        Op::Arange { len, .. } => Ok(arange(&ty, *len, a.num(0)?, a.num(1)?)),
        Op::Random { dist, .. } => {
            let (key, offset) = (a.num(0)?.as_i64() as u64, a.num(1)?.as_i64() as u64);
            let mut out = HostTensor::zeros(&ty);
            philox::fill(*dist, ty.dtype, key, offset, 0, &mut out.data);
            Ok(out)
        }
        Op::Data { .. } => match a.get(0) {
            Some(RefArg::Data(bytes)) if bytes.len() == ty.bytes() => {
                Ok(HostTensor { ty, data: bytes.to_vec() })
            }
            _ => bail!(Value, "DATA: expected {} bytes for {ty}", ty.bytes()),
        },
        Op::Unary(op) => Ok(elementwise::unary(*op, a.val(0)?)),
        Op::Binary(op) => elementwise::binary(*op, args[0], args[1], &ty),
        Op::Where => elementwise::select(a.val(0)?, args[1], args[2], &ty),
        Op::Cast(_) => Ok(HostTensor::from_scalars(&ty, a.val(0)?.scalars())),
        Op::View(view) => {
            let x = a.val(0)?;
            let start = if view.has_start() { a.num(1)?.as_i64() } else { 0 };
            let from = sources(view, start, &x.ty.shape)?;
            Ok(HostTensor::from_scalars(&ty, from.into_iter().map(|i| x.get(i))))
        }
        Op::Pad { lo, .. } => Ok(moves::pad(a.val(0)?, lo, a.num(1)?, &ty)),
        Op::Concat { dim } => {
            let parts: Vec<&HostTensor> = (0..args.len()).map(|i| a.val(i)).collect::<Result<_>>()?;
            Ok(moves::concat(&parts, *dim, &ty))
        }
        Op::Flip { dims } => Ok(moves::flip(a.val(0)?, dims)),
        Op::Put { path } => {
            let starts: Vec<i64> =
                (2..args.len()).map(|i| a.num(i).map(Scalar::as_i64)).collect::<Result<_>>()?;
            moves::put(a.val(0)?, args[1], path, &starts)
        }
        Op::Reduce { kind, dims, .. } => Ok(reduce::reduce(*kind, a.val(0)?, dims, &ty)),
        Op::ArgReduce { kind, dim, .. } => Ok(reduce::arg_reduce(*kind, a.val(0)?, *dim, &ty)),
        Op::Scan { kind, dim } => Ok(reduce::scan(*kind, a.val(0)?, *dim)),
        Op::Matmul { ta, tb, .. } => {
            let bias = if args.len() > 2 { Some(a.val(2)?) } else { None };
            Ok(reduce::matmul(a.val(0)?, a.val(1)?, bias, *ta, *tb, &ty))
        }
        Op::Gather { dim } => index::gather(op.text(), a.val(0)?, a.val(1)?, *dim, &ty),
        Op::Scatter { dim, mode } => index::scatter(op.text(), a.val(0)?, a.val(1)?, args[2], *dim, *mode),
        Op::Take { dim } => index::take(op.text(), a.val(0)?, a.val(1)?, *dim, &ty),
        Op::TakePut { dim, mode } => index::take_put(op.text(), a.val(0)?, a.val(1)?, a.val(2)?, *dim, *mode),
        Op::Sort { .. }
        | Op::TopK { .. }
        | Op::RmsNorm { .. }
        | Op::LayerNorm { .. }
        | Op::CrossEntropy
        | Op::Attention { .. }
        | Op::AttentionGrad { .. }
        | Op::Sgd { .. }
        | Op::Adam { .. }
        | Op::Collective(_) => bail!(Value, "{}: is evaluated elsewhere", op.text()),
        Op::Softmax { dim } => Ok(reduce::softmax(a.val(0)?, *dim, false)),
        Op::LogSoftmax { dim } => Ok(reduce::softmax(a.val(0)?, *dim, true)),
    }
}

fn arange(ty: &Ty, len: usize, start: Scalar, step: Scalar) -> HostTensor {
    let element = |i: usize| match ty.dtype.kind() {
        Kind::Float => Scalar::Float(start.as_f64() + i as f64 * step.as_f64()),
        Kind::Int | Kind::Bool => {
            Scalar::Int(start.as_i64().wrapping_add(step.as_i64().wrapping_mul(i as i64)))
        }
    };
    HostTensor::from_scalars(ty, (0..len).map(element))
}

/// Runs a whole structure and gives its live-outs. An error comes with the position of the instruction that failed,
/// or the number of instructions if the structure or its binding is not well formed.
pub fn run(
    structure: &Structure,
    inputs: &[HostTensor],
    slots: &[Slot],
) -> Result<Vec<HostTensor>, (usize, Error)> {
    run_part(structure, inputs, slots, &mut |c, _| bail!(Value, "{}: there is one part", c.what.text()))
}

/// Gives this part's results of a collective for its operands.
pub type Together<'a> = &'a mut dyn FnMut(&Collective, &[&HostTensor]) -> Result<Vec<HostTensor>>;

/// Runs one part of a program that several parts run together.
pub fn run_part(
    structure: &Structure,
    inputs: &[HostTensor],
    slots: &[Slot],
    together: Together,
) -> Result<Vec<HostTensor>, (usize, Error)> {
    let malformed = |e: Error| (structure.instrs.len(), e);
    structure.check().map_err(malformed)?;
    let fits = inputs.len() == structure.inputs.len()
        && slots.len() == structure.slots as usize
        && inputs.iter().zip(&structure.inputs).all(|(x, input)| x.ty == input.ty);
    if !fits {
        return Err(malformed(Error::Value("program: the binding does not fit its structure".into())));
    }
    let mut values: Vec<HostTensor> = inputs.to_vec();
    for (i, instr) in structure.instrs.iter().enumerate() {
        let args: Vec<RefArg<'_>> = instr
            .args
            .iter()
            .map(|arg| match arg {
                Arg::Value(v) => RefArg::Val(&values[*v as usize]),
                Arg::Const(x) => RefArg::Num(*x),
                Arg::Slot(k) => match &slots[*k as usize] {
                    Slot::Num(x) => RefArg::Num(*x),
                    Slot::Data(bytes) => RefArg::Data(bytes),
                },
            })
            .collect();
        let outs = match &instr.op {
            Op::Collective(c) => {
                let xs = args.iter().filter_map(|a| if let RefArg::Val(x) = a { Some(*x) } else { None });
                together(c, &xs.collect::<Vec<_>>())
            }
            op => eval_all(op, &args),
        };
        let outs = outs.map_err(|e| (i, e))?;
        values.extend(outs);
    }
    Ok(structure.outs.iter().map(|&v| values[v as usize].clone()).collect())
}

#[cfg(test)]
mod tests;
