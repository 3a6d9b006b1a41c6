//! Picks a rule for every instruction: forward, the least cost of every value in every layout; backward, the layout
//! that suits those who read it.

use super::Ask;
use gt_ir::layout::{Layout, Rule, legal};
use gt_ir::{Arg, ArgTy, Op, Structure, Ty};
use smallvec::SmallVec;

/// A rule for every instruction that is live.
#[derive(Debug)]
pub struct Choice {
    pub inputs: Vec<Layout>,
    /// `None` for instructions whose results nobody needs.
    pub rules: Vec<Option<Rule>>,
    /// The layouts of live-outs, where one was asked for.
    pub outs: Vec<Option<Layout>>,
    /// All workers are better than one.
    pub pays: bool,
    /// Seconds it is thought to take on all workers, and on one.
    pub seconds: (f64, f64),
}

/// Ways to run one instruction: a rule and what it costs, its operands included.
type Ways = SmallVec<[(Rule, f64); 6]>;

struct Chooser<'a> {
    ask: &'a Ask,
    starts: Vec<u32>,
    /// The instruction of every value; none for inputs.
    producer: Vec<Option<u32>>,
    /// How many read each value.
    uses: Vec<u32>,
    ways: Vec<Ways>,
    fixed: Vec<Option<Layout>>,
}

/// The types of an instruction's operands.
pub fn arg_types<'a>(structure: &Structure, types: &'a [Ty], i: usize) -> SmallVec<[ArgTy<'a>; 4]> {
    let ty = |arg: &Arg| match arg {
        Arg::Value(v) => ArgTy::Val(&types[*v as usize]),
        Arg::Const(_) | Arg::Slot(_) => ArgTy::Num,
    };
    structure.instrs[i].args.iter().map(ty).collect()
}

/// Chooses layouts for a whole program. The same question has the same answer.
pub fn choose(ask: &Ask) -> Choice {
    let structure = &*ask.structure;
    let starts = structure.starts();
    let values = starts[structure.instrs.len()] as usize;
    let mut producer = vec![None; values];
    let mut uses = vec![0; values];
    for (i, instr) in structure.instrs.iter().enumerate() {
        producer[starts[i] as usize..starts[i + 1] as usize].fill(Some(i as u32));
        for arg in &instr.args {
            if let Arg::Value(v) = arg {
                uses[*v as usize] += 1;
            }
        }
    }
    structure.outs.iter().for_each(|v| uses[*v as usize] += 1);
    let mut fixed = vec![None; values];
    for (v, layout) in &ask.fixed {
        if let Some(at) = fixed.get_mut(*v as usize) {
            *at = Some(*layout);
        }
    }
    let mut chooser = Chooser { ask, starts, producer, uses, ways: Vec::new(), fixed };
    let alone = chooser.forward();
    chooser.backward(alone)
}

impl Chooser<'_> {
    /// The least cost of a value in a layout.
    fn cost(&self, v: u32, to: Layout) -> f64 {
        let ask = self.ask;
        let ty = &ask.types[v as usize];
        let convert = |from| ask.costs.convert(ty, from, to, ask.parts);
        match self.producer[v as usize] {
            None => convert(ask.inputs[v as usize]).unwrap_or(f64::INFINITY),
            Some(i) => {
                let k = (v - self.starts[i as usize]) as usize;
                let shared = self.uses[v as usize].max(1) as f64;
                let ways = self.ways[i as usize].iter();
                let costs = ways.filter_map(|(rule, cost)| Some(cost / shared + convert(rule.outs[k])?));
                costs.fold(f64::INFINITY, f64::min)
            }
        }
    }

    /// Works out the ways of every instruction; gives the time one worker would take.
    fn forward(&mut self) -> f64 {
        let ask = self.ask;
        let mut alone = 0.0;
        for i in 0..ask.structure.instrs.len() {
            let op = &ask.structure.instrs[i].op;
            let args = arg_types(&ask.structure, &ask.types, i);
            let outs = &ask.types[self.starts[i] as usize..self.starts[i + 1] as usize];
            let mut rules = legal(op, &args, outs);
            more_rules(op, &args, outs, ask.costs.least, &mut rules);
            alone += ask.costs.compute(op, &rules[0], &args, outs, 1);
            let mut ways = Ways::new();
            for rule in rules {
                if !worth(&rule, &args, outs, ask.costs.least) && !self.is_fixed(i) {
                    continue;
                }
                let mut cost = ask.costs.compute(op, &rule, &args, outs, ask.parts);
                for (arg, layout) in ask.structure.instrs[i].args.iter().zip(&rule.args) {
                    if let (Arg::Value(v), Some(layout)) = (arg, layout) {
                        cost += self.cost(*v, *layout);
                    }
                }
                if !cost.is_finite() {
                    continue;
                }
                match ways.iter_mut().find(|(other, _)| other.outs == rule.outs) {
                    Some(other) if other.1 <= cost => {}
                    Some(other) => *other = (rule, cost),
                    None => ways.push((rule, cost)),
                }
            }
            self.ways.push(ways);
        }
        alone
    }

    fn is_fixed(&self, i: usize) -> bool {
        (self.starts[i]..self.starts[i + 1]).any(|v| self.fixed[v as usize].is_some())
    }

    /// Picks a way for every live instruction, from the last to the first.
    fn backward(self, alone: f64) -> Choice {
        let ask = self.ask;
        let structure = &*ask.structure;
        let mut needs: Vec<SmallVec<[Layout; 2]>> = vec![SmallVec::new(); self.producer.len()];
        let mut live = vec![false; self.producer.len()];
        let mut is_out = vec![false; self.producer.len()];
        for &v in &structure.outs {
            (live[v as usize], is_out[v as usize]) = (true, true);
            if let Some(layout) = self.fixed[v as usize] {
                needs[v as usize].push(layout);
            }
        }
        // What was asked for inside the program is asked for by nobody else.
        for (v, layout) in self.fixed.iter().enumerate().filter_map(|(v, l)| Some((v, (*l)?))) {
            if !needs[v].contains(&layout) {
                needs[v].push(layout);
            }
        }
        let mut rules: Vec<Option<Rule>> = vec![None; structure.instrs.len()];
        let mut seconds = ask.costs.start;
        let mut split = ask.inputs.iter().any(|l| *l != Layout::Whole);
        for i in (0..structure.instrs.len()).rev() {
            let values = self.starts[i] as usize..self.starts[i + 1] as usize;
            if !values.clone().any(|v| live[v]) {
                continue;
            }
            let after = |rule: &Rule| {
                let of = |(k, v): (usize, usize)| self.after(v, rule.outs[k], &needs[v], is_out[v]);
                values.clone().enumerate().map(of).sum::<f64>()
            };
            let mut best: Option<(&Rule, f64)> = None;
            for (rule, cost) in &self.ways[i] {
                let total = cost + after(rule);
                if best.is_none_or(|(_, least)| total < least) {
                    best = Some((rule, total));
                }
            }
            // The first rule, all whole, is always among the ways.
            let Some((rule, _)) = best else { continue };
            seconds += after(rule);
            for (arg, layout) in structure.instrs[i].args.iter().zip(&rule.args) {
                if let (Arg::Value(v), Some(layout)) = (arg, layout) {
                    live[*v as usize] = true;
                    if !needs[*v as usize].contains(layout) {
                        needs[*v as usize].push(*layout);
                    }
                }
            }
            let args = arg_types(structure, &ask.types, i);
            seconds += ask.costs.compute(
                &structure.instrs[i].op,
                rule,
                &args,
                &ask.types[values.clone()],
                ask.parts,
            );
            split |= rule.outs.iter().chain(rule.args.iter().flatten()).any(|l| *l != Layout::Whole);
            rules[i] = Some(rule.clone());
        }
        for (v, &layout) in ask.inputs.iter().enumerate() {
            let ty = &ask.types[v];
            let convert = |to: &Layout| ask.costs.convert(ty, layout, *to, ask.parts).unwrap_or(0.0);
            seconds += needs[v].iter().map(convert).sum::<f64>();
            if ask.at_home[v] && live[v] {
                // It stays there for others that come.
                seconds += 0.25 * ty.bytes() as f64 * (ask.parts - 1) as f64 / ask.costs.road;
            }
        }
        let split_inputs = ask.inputs.iter().any(|l| *l != Layout::Whole);
        let given = ask.must || split_inputs || !ask.fixed.is_empty();
        let pays = given || (split && (ask.costs.always || seconds < 0.9 * alone));
        let outs = structure.outs.iter().map(|v| self.fixed[*v as usize]).collect();
        Choice { inputs: ask.inputs.clone(), rules, outs, pays, seconds: (seconds, alone) }
    }

    /// What it costs to bring a value to where it is needed.
    fn after(&self, v: usize, from: Layout, needs: &[Layout], is_out: bool) -> f64 {
        let ask = self.ask;
        let ty = &ask.types[v];
        let convert = |to: Layout| ask.costs.convert(ty, from, to, ask.parts).unwrap_or(f64::INFINITY);
        let mut cost: f64 = needs.iter().map(|to| convert(*to)).sum();
        let partial = matches!(from, Layout::Partial(_));
        if is_out && partial && needs.iter().all(|to| matches!(to, Layout::Partial(_))) {
            cost += convert(Layout::Whole);
        }
        cost
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

/// Ways beyond the table's: part of a random tensor, and an optimizer's step with small parameters whole.
fn more_rules(op: &Op, args: &[ArgTy], outs: &[Ty], least: u64, rules: &mut Vec<Rule>) {
    match op {
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
