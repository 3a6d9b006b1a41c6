//! The rules by which an instruction may run along an axis: the table's, and those that depend on the program.

use super::{Chooser, arg_types};
use gt_ir::layout::{Layout, Rule, by_blocks, by_key_heads, legal};
use gt_ir::op::{ADAM_NUMBERS, SGD_NUMBERS};
use gt_ir::{Arg, ArgTy, Binary, Instr, Op, ReduceKind, Scalar, Ty, View};

impl Chooser<'_> {
    /// The rules by which an instruction may run along this axis, the all-whole one first.
    pub(super) fn rules(&self, i: usize) -> Vec<Rule> {
        let (ask, starts) = (self.ask, &self.graph.starts);
        let instr = &ask.structure.instrs[i];
        let args = arg_types(&ask.structure, &ask.types, i);
        let outs = &ask.types[starts[i] as usize..starts[i + 1] as usize];
        let mut rules = legal(&instr.op, &args, outs);
        more_rules(instr, &args, outs, ask.costs.least, &mut rules);
        let own = [self.as_they_lie(i), self.by_key_heads(i, &args, outs)];
        for rule in own.into_iter().flatten().chain(self.by_blocks(i, &args)) {
            if !rules.contains(&rule) {
                rules.push(rule);
            }
        }
        let fixed = self.is_fixed(i);
        rules.retain(|rule| fixed || worth(rule, &args, outs, ask.costs.least));
        if self.keeps() && !matches!(instr.op, Op::Binary(Binary::Add | Binary::Sub) | Op::View(_)) {
            // Sums are taken once, where they are made, however many read them.
            let sums = |layout: &Layout| matches!(layout, Layout::Partial(_));
            rules.retain(|rule| fixed || !rule.args.iter().flatten().any(sums));
        }
        rules
    }

    /// For an optimizer's step: every parameter is updated as it lies, and its gradient and states lie like it.
    fn as_they_lie(&self, i: usize) -> Option<Rule> {
        let instr = &self.ask.structure.instrs[i];
        let numbers = match instr.op {
            Op::Sgd { .. } => SGD_NUMBERS,
            Op::Adam { .. } => ADAM_NUMBERS,
            _ => return None,
        };
        let params = instr.args.get(numbers..)?.chunks(instr.op.group());
        let results = (self.graph.starts[i + 1] - self.graph.starts[i]) as usize / params.len().max(1);
        let mut rule = Rule { args: vec![None; numbers], outs: Vec::new() };
        for tensors in params {
            let Some(Arg::Value(p)) = tensors.first() else { return None };
            let layout = self.lies(*p);
            rule.args.extend(tensors.iter().map(|_| Some(layout)));
            rule.outs.extend((0..results).map(|_| layout));
        }
        Some(rule)
    }

    /// For attention with fewer key heads than query heads: the heads are split where the key heads divide evenly.
    fn by_key_heads(&self, i: usize, args: &[ArgTy], outs: &[Ty]) -> Option<Rule> {
        let (rule, heads) = by_key_heads(&self.ask.structure.instrs[i].op, args, outs)?;
        let split_before = self.before[i].iter().flatten().any(|before| before.outs[0] == rule.outs[0]);
        (heads % self.parts == 0 && !split_before).then_some(rule)
    }

    /// For a reshape that joins a batch and its rows, or takes them apart: the batch is split where it divides evenly.
    fn by_blocks(&self, i: usize, args: &[ArgTy]) -> Vec<Rule> {
        let (Op::View(View::Reshape(to)), [ArgTy::Val(x)]) = (&self.ask.structure.instrs[i].op, args) else {
            return Vec::new();
        };
        let rule =
            |d: usize, e: usize| Rule { args: vec![Some(Layout::Split(d))], outs: vec![Layout::Split(e)] };
        let legal = |&(d, e): &(usize, usize)| {
            let (mut parts, mut alike) = (self.parts, true);
            for (before, n) in self.before[i].iter().flatten().zip(&self.ask.shape) {
                let splits = before.args[0] == Some(Layout::Split(d)) || before.outs[0] == Layout::Split(e);
                parts *= if splits { *n } else { 1 };
                alike &= !splits || *before == rule(d, e);
            }
            alike && x.shape[d].is_multiple_of(parts) && to[e].is_multiple_of(parts)
        };
        by_blocks(to, &x.shape).into_iter().filter(legal).map(|(d, e)| rule(d, e)).collect()
    }
}

/// A rule that splits is worth a thought where something large is split.
fn worth(rule: &Rule, args: &[ArgTy], outs: &[Ty], least: u64) -> bool {
    let whole = |l: &Layout| *l == Layout::Whole;
    if rule.outs.iter().all(whole) && rule.args.iter().flatten().all(whole) {
        return true;
    }
    let large = |ty: &Ty| ty.bytes() as u64 >= least && ty.shape.numel() > 1;
    outs.iter().any(large) || args.iter().any(|a| matches!(a, ArgTy::Val(ty) if large(ty)))
}

/// Ways beyond the table's: part of a random tensor, zeros to which parts add, and an optimizer's step with small
/// parameters whole.
fn more_rules(instr: &Instr, args: &[ArgTy], outs: &[Ty], least: u64, rules: &mut Vec<Rule>) {
    match &instr.op {
        Op::Full { .. } => {
            let zero = |x: &Scalar| x.as_f64() == 0.0 && !matches!(x, Scalar::Bool(_));
            if matches!(instr.args.first(), Some(Arg::Const(x)) if zero(x)) {
                rules.push(Rule { args: vec![None], outs: vec![Layout::Partial(ReduceKind::Sum)] });
            }
        }
        Op::Random { shape, .. } if !shape.is_empty() => {
            rules.push(Rule { args: vec![None; args.len()], outs: vec![Layout::Split(0)] });
        }
        Op::Sgd { .. } | Op::Adam { .. } => {
            // By the shape alone, which a parameter and its states have in common.
            let of = |ty: &Ty| match !ty.shape.is_empty() && 4 * ty.shape.numel() as u64 >= least {
                true => Layout::Split(0),
                false => Layout::Whole,
            };
            let arg = |a: &ArgTy| if let ArgTy::Val(ty) = a { Some(of(ty)) } else { None };
            let mixed = Rule { args: args.iter().map(arg).collect(), outs: outs.iter().map(of).collect() };
            rules.truncate(1);
            if !rules.contains(&mixed) {
                rules.push(mixed);
            }
        }
        _ => {}
    }
}
