//! The rules by which an instruction may run along an axis: the table's, and those that depend on the program.

use super::{Chooser, arg_types};
use gt_ir::layout::{Layout, Part, Rule, by_blocks, by_key_heads, legal};
use gt_ir::op::{ADAM_NUMBERS, SGD_NUMBERS};
use gt_ir::{Arg, ArgTy, Binary, Instr, Op, ReduceKind, Scalar, Ty, View};
use smallvec::SmallVec;

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
        let plain = args.iter().all(|a| match (a, rule.outs[0]) {
            (ArgTy::Val(ty), Layout::Split(d)) => {
                ty.shape.get(d).is_none_or(|n| self.graph.grains.of(*n) == 1)
            }
            _ => true,
        });
        (heads % self.parts == 0 && plain && !split_before).then_some(rule)
    }

    /// For a reshape that joins a batch and its rows, or takes them apart: the batch is split where every part holds the
    /// same of both sides.
    fn by_blocks(&self, i: usize, args: &[ArgTy]) -> Vec<Rule> {
        let (Op::View(View::Reshape(to)), [ArgTy::Val(x)]) = (&self.ask.structure.instrs[i].op, args) else {
            return Vec::new();
        };
        let rule =
            |d: usize, e: usize| Rule { args: vec![Some(Layout::Split(d))], outs: vec![Layout::Split(e)] };
        let legal = |&(d, e): &(usize, usize)| {
            let (mut axes, mut alike): (SmallVec<[usize; 2]>, bool) = (SmallVec::new(), true);
            for (before, n) in self.before[i].iter().flatten().zip(&self.ask.shape) {
                let splits = before.args[0] == Some(Layout::Split(d)) || before.outs[0] == Layout::Split(e);
                axes.extend(splits.then_some(*n));
                alike &= !splits || *before == rule(d, e);
            }
            axes.push(self.parts);
            alike && self.are_held_alike(x.shape[d], to[e], &axes)
        };
        by_blocks(to, &x.shape).into_iter().filter(legal).map(|(d, e)| rule(d, e)).collect()
    }

    /// True if every part of these axes holds the same of two dimensions that stand for the same elements.
    fn are_held_alike(&self, n: usize, m: usize, axes: &[usize]) -> bool {
        let grain = |size: usize| self.graph.grains.of(size);
        alike((n / grain(n), grain(n)), (m / grain(m), grain(m)), axes)
    }
}

/// The same of two dimensions, given as numbers of grains and their sizes.
fn alike((x, x_grain): (usize, usize), (y, y_grain): (usize, usize), axes: &[usize]) -> bool {
    let Some((&parts, inner)) = axes.split_first() else { return true };
    let (n, m) = (x * x_grain, y * y_grain);
    let mut last = None;
    (0..parts).all(|index| {
        let part = Part::new(index, parts);
        let (a, b) = (part.range(x), part.range(y));
        let lens = Some((a.len(), b.len()));
        // Parts of one size are held alike or not together.
        let known = std::mem::replace(&mut last, lens) == lens;
        let same = |a: usize, b: usize| a * x_grain * m == b * y_grain * n;
        same(a.start, b.start)
            && same(a.end, b.end)
            && (known || a.is_empty() || alike((a.len(), x_grain), (b.len(), y_grain), inner))
    })
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
