//! Gradients through a decomposition: the primitives are written on a small tape and reversed.

use super::decompose;
use crate::build::{Build, Kept, Operand, Operands, Saved, Values};
use crate::grad::{Grads, vjp};
use crate::op::Op;
use crate::{Result, Ty};
use smallvec::SmallVec;

/// Writes into another builder and remembers what it wrote. Values are positions in `values`.
struct Tape<'a, B: Build> {
    b: &'a mut B,
    values: Vec<B::V>,
    /// A gradient is wanted of something the value depends on.
    tracked: Vec<bool>,
    steps: Vec<Step>,
}

struct Step {
    op: Op,
    args: Operands<usize>,
    first: usize,
    results: usize,
}

impl<B: Build> Tape<'_, B> {
    fn push(&mut self, v: B::V, tracked: bool) -> usize {
        self.tracked.push(tracked && self.b.ty(&v).dtype.is_float());
        self.values.push(v);
        self.values.len() - 1
    }
}

impl<B: Build> Build for Tape<'_, B> {
    type V = usize;

    fn ty(&self, v: &usize) -> Ty {
        self.b.ty(&self.values[*v])
    }

    fn emit(&mut self, op: Op, args: Operands<usize>) -> Result<usize> {
        self.emit_all(op, args).map(|outs| outs[0])
    }

    fn emit_all(&mut self, op: Op, args: Operands<usize>) -> Result<Values<usize>> {
        let given = args
            .iter()
            .map(|arg| match arg {
                Operand::Val(v) => Operand::Val(self.values[*v].clone()),
                Operand::Num(x) => Operand::Num(*x),
            })
            .collect();
        let outs = self.b.emit_all(op.clone(), given)?;
        let tracked = op.differentiable() && args.iter().any(|a| a.val().is_some_and(|v| self.tracked[*v]));
        let (first, results) = (self.values.len(), outs.len());
        let outs = outs.into_iter().map(|v| self.push(v, tracked)).collect();
        if tracked {
            self.steps.push(Step { op, args, first, results });
        }
        Ok(outs)
    }
}

/// Gradients of the operands that `wanted` marks, through the op's decomposition. All operands must have been kept.
pub fn vjp_through<B: Build>(
    b: &mut B,
    op: &Op,
    s: &Saved<B::V>,
    grads: &[Option<B::V>],
    wanted: &[bool],
) -> Result<Grads<B::V>> {
    let mut tape = Tape { b, values: Vec::new(), tracked: Vec::new(), steps: Vec::new() };
    let mut leaves: SmallVec<[Option<usize>; 8]> = SmallVec::new();
    let mut args: Operands<usize> = Operands::new();
    for i in 0..s.args.len() {
        match s.operand(i)? {
            Operand::Num(x) => {
                leaves.push(None);
                args.push(Operand::Num(x));
            }
            Operand::Val(v) => {
                let leaf = tape.push(v, wanted.get(i) == Some(&true));
                leaves.push(Some(leaf));
                args.push(Operand::Val(leaf));
            }
        }
    }
    let outs = decompose(&mut tape, op, &args)?;
    let Tape { b, values, tracked, steps } = tape;
    let mut totals: Vec<Option<B::V>> = vec![None; values.len()];
    let add = |b: &mut B, total: &mut Option<B::V>, g: &B::V| -> Result<()> {
        *total = Some(match total.take() {
            None => g.clone(),
            Some(sum) => b.add(&sum, g)?,
        });
        Ok(())
    };
    for (out, g) in outs.iter().zip(grads) {
        if let Some(g) = g {
            add(b, &mut totals[*out], g)?;
        }
    }
    for step in steps.iter().rev() {
        let results = step.first..step.first + step.results;
        let arrived: Values<Option<B::V>> = totals[results.clone()].iter().cloned().collect();
        if arrived.iter().all(Option::is_none) {
            continue;
        }
        let kept: SmallVec<[Kept<B::V>; 3]> = step
            .args
            .iter()
            .map(|arg| match arg {
                Operand::Val(v) => Kept::Val(b.ty(&values[*v]), Some(values[*v].clone())),
                Operand::Num(x) => Kept::Num(*x),
            })
            .collect();
        let want: SmallVec<[bool; 4]> =
            step.args.iter().map(|a| a.val().is_some_and(|v| tracked[*v])).collect();
        let found = vjp(b, &step.op, &Saved { args: &kept, outs: &values[results] }, &arrived, &want)?;
        for ((arg, g), want) in step.args.iter().zip(found).zip(want) {
            if let (Operand::Val(v), Some(g), true) = (arg, g, want) {
                add(b, &mut totals[*v], &g)?;
            }
        }
    }
    Ok(leaves.into_iter().map(|leaf| leaf.and_then(|v| totals[v].take())).collect())
}
