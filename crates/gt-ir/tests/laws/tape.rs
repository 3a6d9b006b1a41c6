//! A `Build` that evaluates with the reference and remembers what it did, so that gradients can be taken of gradients.

use gt_ir::build::{Build, Kept, Operand, Operands, Saved, Values};
use gt_ir::grad::vjp;
use gt_ir::reference::{RefArg, eval_all};
use gt_ir::{Error, HostTensor, Op, Result, Ty};

#[derive(Default)]
pub struct Tape {
    pub values: Vec<HostTensor>,
    /// What made each value: op, operands, and which of its results it is.
    ops: Vec<Option<(Op, Operands<usize>, usize)>>,
}

impl Tape {
    pub fn leaf(&mut self, x: HostTensor) -> usize {
        self.values.push(x);
        self.ops.push(None);
        self.values.len() - 1
    }

    /// How many results the instruction has whose first one is `v`.
    fn results(&self, v: usize) -> usize {
        self.ops[v].as_ref().map_or(1, |(op, args, _)| op.results(args.len()))
    }

    /// Gradients of one instruction's operands, given those of its results from `v` on; the rule sees only what it
    /// declared.
    pub fn vjp_of(&mut self, v: usize, g: &[Option<usize>], wanted: &[bool]) -> Result<Vec<Option<usize>>> {
        let Some((op, args, _)) = self.ops[v].clone() else { return Ok(vec![]) };
        let needs = op.needs_for(wanted);
        let kept: Vec<Kept<usize>> = args
            .iter()
            .enumerate()
            .map(|(i, arg)| match arg {
                Operand::Val(x) => {
                    Kept::Val(self.ty(x), if needs.args >> i & 1 == 1 { Some(*x) } else { None })
                }
                Operand::Num(x) => Kept::Num(*x),
            })
            .collect();
        let outs: Vec<usize> = if needs.outs { (v..v + self.results(v)).collect() } else { vec![] };
        let grads = vjp(self, &op, &Saved { args: &kept, outs: &outs }, g, wanted)?;
        for (i, grad) in grads.iter().enumerate() {
            let (Some(grad), Some(Operand::Val(x))) = (grad, args.get(i)) else { continue };
            if wanted.get(i) == Some(&true) && self.ty(grad) != self.ty(x) {
                let message = format!("gradient {i} is {}, the operand {}", self.ty(grad), self.ty(x));
                return Err(Error::Type(message));
            }
        }
        Ok(grads.into_vec())
    }

    /// Gradients of `seeds` (values with their cotangents) for the leaves.
    pub fn backward(&mut self, seeds: &[(usize, usize)], leaves: &[usize]) -> Result<Vec<Option<usize>>> {
        let last = seeds.iter().map(|s| s.0).max().unwrap_or(0);
        let mut grads: Vec<Option<usize>> = vec![None; self.values.len()];
        for &(v, g) in seeds {
            self.accumulate(&mut grads[v], g)?;
        }
        for v in (0..=last).rev() {
            let Some((op, args, 0)) = self.ops[v].clone() else { continue };
            let arrived: Vec<Option<usize>> = (v..v + self.results(v))
                .map(|r| grads[r].filter(|_| self.values[r].ty.dtype.is_float()))
                .collect();
            if !op.differentiable() || arrived.iter().all(Option::is_none) {
                continue;
            }
            let wanted: Vec<bool> =
                args.iter().map(|a| a.val().is_some_and(|x| self.ty(x).dtype.is_float())).collect();
            let found = self.vjp_of(v, &arrived, &wanted)?;
            for (i, arg) in args.iter().enumerate() {
                if let (Operand::Val(x), Some(Some(d)), true) = (arg, found.get(i), wanted[i]) {
                    let mut total = grads[*x];
                    self.accumulate(&mut total, *d)?;
                    grads[*x] = total;
                }
            }
        }
        Ok(leaves.iter().map(|&l| grads.get(l).copied().flatten()).collect())
    }

    fn accumulate(&mut self, total: &mut Option<usize>, g: usize) -> Result<()> {
        *total = Some(match *total {
            None => g,
            Some(sum) => self.add(&sum, &g)?,
        });
        Ok(())
    }
}

impl Build for Tape {
    type V = usize;

    fn ty(&self, v: &usize) -> Ty {
        self.values[*v].ty.clone()
    }

    fn emit(&mut self, op: Op, args: Operands<usize>) -> Result<usize> {
        self.emit_all(op, args).map(|outs| outs[0])
    }

    fn emit_all(&mut self, op: Op, args: Operands<usize>) -> Result<Values<usize>> {
        let given: Vec<RefArg> = args
            .iter()
            .map(|arg| match arg {
                Operand::Val(v) => RefArg::Val(&self.values[*v]),
                Operand::Num(x) => RefArg::Num(*x),
            })
            .collect();
        let outs = eval_all(&op, &given)?;
        let first = self.values.len();
        for (k, out) in outs.into_iter().enumerate() {
            self.values.push(out);
            self.ops.push(Some((op.clone(), args.clone(), k)));
        }
        Ok((first..self.values.len()).collect())
    }
}
