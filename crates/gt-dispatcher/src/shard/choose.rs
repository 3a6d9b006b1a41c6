//! Picks a rule for every instruction and mesh axis, one axis after the other: forward, the least cost of every value in
//! every layout; backward, the layout that suits those who read it.

mod follow;
mod grain;
mod graph;
mod rules;

use super::Ask;
use graph::Graph;
use gt_ir::layout::{Grains, Layout, Layouts, Part, Rule, piece};
use gt_ir::{Arg, ArgTy, Structure, Ty};
use smallvec::{SmallVec, smallvec};
use std::borrow::Cow;

/// A rule per mesh axis.
pub type Rules = SmallVec<[Rule; 1]>;

/// Rules for every instruction that is live.
#[derive(Debug)]
pub struct Choice {
    pub inputs: Vec<Layouts>,
    /// `None` for instructions whose results nobody needs.
    pub rules: Vec<Option<Rules>>,
    /// The layouts of live-outs, where one was asked for.
    pub outs: Vec<super::Asked>,
    /// Something is split.
    pub splits: bool,
    /// Sums that have time travel together, so many bytes at once.
    pub bucket: u64,
    /// What is no larger waits for others to travel with, whatever has time or not.
    pub small: u64,
    /// By axis: sums are taken for all along it, as signals say.
    pub keeps: SmallVec<[bool; 2]>,
    /// Dimensions that are split in grains.
    pub grains: Grains,
}

/// Ways to run one instruction: a rule and what it costs, its operands included.
type Ways = SmallVec<[(Rule, f64); 6]>;

/// Chooses along one axis, what lies on the axes before it being known.
struct Chooser<'a> {
    graph: &'a Graph<'a>,
    ask: &'a Ask,
    axis: usize,
    parts: usize,
    /// The rules of the axes before this one.
    before: &'a [Option<Rules>],
    /// What those axes leave of every value, as it is made.
    types: Cow<'a, [Ty]>,
    ways: Vec<Ways>,
    fixed: Vec<Option<Layout>>,
    /// In which layouts values were read when this axis was chosen for before: another reader costs little.
    read: Vec<Reads>,
}

/// The layouts a value is read in.
type Reads = SmallVec<[Layout; 2]>;

/// How many times what it costs to move a piece that is to stay where it is.
const TORN: f64 = 400.0;
/// And one that was computed along an axis on which values are to be whole.
const STRAYED: f64 = 32.0;
/// How often an axis is gone through.
const PASSES: usize = 2;
/// The part of what a journey costs that one more reader is thought to pay.
const ONE_MORE: f64 = 0.3;

/// What was chosen along one axis.
struct Along {
    rules: Vec<Option<Rule>>,
    /// Something is split.
    splits: bool,
    read: Vec<Reads>,
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
    let graph = Graph::new(ask);
    let mut rules: Vec<Option<Rules>> = vec![None; structure.instrs.len()];
    let mut splits = false;
    for axis in 0..ask.shape.len() {
        let along = Chooser::new(&graph, axis, &rules).choose();
        for (all, rule) in rules.iter_mut().zip(along.rules) {
            match (all, rule) {
                (Some(all), Some(rule)) => all.push(rule),
                (all @ None, Some(rule)) => *all = Some(smallvec![rule]),
                (_, None) => {}
            }
        }
        splits |= along.splits;
    }
    let asked = |v: &u32| {
        let fixed = ask.fixed.iter().rev().find(|(w, _)| w == v);
        fixed.map_or_else(|| smallvec![None; ask.shape.len()], |(_, asked)| asked.clone())
    };
    let outs = structure.outs.iter().map(asked).collect();
    Choice {
        inputs: ask.inputs.clone(),
        rules,
        outs,
        splits,
        bucket: ask.costs.bucket(),
        small: ask.costs.small(),
        keeps: ask.keeps.clone(),
        grains: graph.grains,
    }
}

impl<'a> Chooser<'a> {
    fn new(graph: &'a Graph<'a>, axis: usize, before: &'a [Option<Rules>]) -> Chooser<'a> {
        let ask = graph.ask;
        let mut fixed = vec![None; graph.producer.len()];
        for (v, asked) in &ask.fixed {
            if let Some(at) = fixed.get_mut(*v as usize) {
                *at = asked[axis];
            }
        }
        let types = match axis {
            0 => Cow::Borrowed(&*ask.types),
            _ => Cow::Owned(left_of(graph, axis, before)),
        };
        let parts = ask.shape[axis];
        Chooser { graph, ask, axis, parts, before, types, ways: Vec::new(), fixed, read: Vec::new() }
    }

    fn choose(mut self) -> Along {
        if self.ask.follows && !self.keeps() {
            return self.follow();
        }
        let mut along = Along { rules: Vec::new(), splits: false, read: Vec::new() };
        for _ in 0..PASSES {
            self.read = std::mem::take(&mut along.read);
            self.ways.clear();
            self.forward();
            along = self.backward();
        }
        along
    }

    fn input(&self, v: usize) -> Layout {
        self.ask.inputs[v][self.axis]
    }

    /// True if computed values are to be whole along the axis.
    fn keeps(&self) -> bool {
        self.ask.keeps.get(self.axis).is_some_and(|keeps| *keeps)
    }

    /// What it costs to bring a value from one layout to another. Where computed values are to be whole along the axis,
    /// what comes in pieces stays in them, sums are taken for all, and nothing is split to be put together again.
    fn convert(&self, v: u32, from: Layout, to: Layout) -> Option<f64> {
        let convert = |from, to| self.ask.costs.convert(&self.types[v as usize], from, to, self.parts);
        if !self.keeps() {
            return convert(from, to);
        }
        match (from, to) {
            (Layout::Partial(_), Layout::Split(_)) => {
                Some(convert(from, Layout::Whole)? + convert(Layout::Whole, to)?)
            }
            (Layout::Split(_), _) => {
                let given = self.graph.producer[v as usize].is_none();
                let times = if given { TORN } else { STRAYED };
                Some(convert(from, to)? * times / self.ask.costs.steady)
            }
            _ => convert(from, to),
        }
    }

    /// The least cost of a value in a layout.
    fn cost(&self, v: u32, to: Layout) -> f64 {
        let again = self.read.get(v as usize).is_some_and(|read| read.contains(&to));
        let factor = if again { ONE_MORE } else { 1.0 };
        let convert = |from| Some(self.convert(v, from, to)? * factor);
        match self.graph.producer[v as usize] {
            None => convert(self.input(v as usize)).unwrap_or(f64::INFINITY),
            Some(i) => {
                let k = (v - self.graph.starts[i as usize]) as usize;
                let shared = self.graph.uses[v as usize].max(1) as f64;
                let ways = self.ways[i as usize].iter();
                let costs = ways.filter_map(|(rule, cost)| Some(cost / shared + convert(rule.outs[k])?));
                costs.fold(f64::INFINITY, f64::min)
            }
        }
    }

    /// The time an instruction takes under a rule, on what the axes before leave of its operands.
    fn compute(&self, i: usize, rule: &Rule, parts: usize) -> f64 {
        let ask = self.ask;
        let op = &ask.structure.instrs[i].op;
        let outs = &self.types[self.graph.starts[i] as usize..self.graph.starts[i + 1] as usize];
        let args = arg_types(&ask.structure, &ask.types, i);
        let Some(before) = self.before[i].as_ref() else {
            return ask.costs.compute(op, rule, &args, outs, self.graph.first(parts));
        };
        let left = |(k, arg): (usize, &ArgTy)| match arg {
            ArgTy::Val(ty) => {
                let lies: Layouts = before.iter().filter_map(|r| r.args[k]).collect();
                Some(largest_piece(ty, &lies, self.graph))
            }
            ArgTy::Num => None,
        };
        let left: SmallVec<[Option<Ty>; 4]> = args.iter().enumerate().map(left).collect();
        let args: SmallVec<[ArgTy; 4]> =
            left.iter().map(|ty| ty.as_ref().map_or(ArgTy::Num, ArgTy::Val)).collect();
        ask.costs.compute(op, rule, &args, outs, self.graph.first(parts))
    }

    /// Works out the ways of every instruction.
    fn forward(&mut self) {
        let ask = self.ask;
        for i in 0..ask.structure.instrs.len() {
            super::step_aside(i);
            let mut ways = Ways::new();
            for rule in self.rules(i) {
                let mut cost = self.compute(i, &rule, self.parts);
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
    }

    /// How a value lies, as far as that is known before all is chosen.
    fn lies(&self, v: u32) -> Layout {
        let made = || match self.graph.producer[v as usize] {
            None => self.input(v as usize),
            Some(i) => {
                let k = (v - self.graph.starts[i as usize]) as usize;
                let least = self.ways[i as usize].iter().min_by(|a, b| a.1.total_cmp(&b.1));
                least.map_or(Layout::Whole, |(rule, _)| rule.outs[k])
            }
        };
        match self.fixed[v as usize].unwrap_or_else(made) {
            Layout::Partial(_) => Layout::Whole,
            layout => layout,
        }
    }

    fn is_fixed(&self, i: usize) -> bool {
        let values = self.graph.starts[i]..self.graph.starts[i + 1];
        values.into_iter().any(|v| self.fixed[v as usize].is_some())
    }

    /// Picks a way for every live instruction, from the last to the first.
    fn backward(&self) -> Along {
        let ask = self.ask;
        let structure = &*ask.structure;
        let count = self.graph.producer.len();
        let mut needs: Vec<Reads> = vec![Reads::new(); count];
        let mut live = vec![false; count];
        let mut is_out = vec![false; count];
        for &v in &structure.outs {
            (live[v as usize], is_out[v as usize]) = (true, true);
        }
        // What was asked for inside the program is asked for by nobody else.
        for (v, layout) in self.fixed.iter().enumerate().filter_map(|(v, l)| Some((v, (*l)?))) {
            needs[v].push(layout);
        }
        let mut rules: Vec<Option<Rule>> = vec![None; structure.instrs.len()];
        let mut splits = (0..ask.inputs.len()).any(|v| self.input(v) != Layout::Whole);
        for i in (0..structure.instrs.len()).rev() {
            super::step_aside(i);
            let values = self.graph.starts[i] as usize..self.graph.starts[i + 1] as usize;
            if !values.clone().any(|v| live[v]) {
                continue;
            }
            let after = |rule: &Rule| {
                let of = |(k, v): (usize, usize)| self.after(v, rule.outs[k], &needs[v], is_out[v]);
                values.clone().enumerate().map(of).sum::<f64>()
            };
            let mut best: Option<(&Rule, f64)> = None;
            for (rule, cost) in &self.ways[i] {
                // Of two ways that cost the same, the one that sums later: sums may then travel together.
                let early = if matches!(rule.outs[0], Layout::Partial(_)) { 1.0 } else { 1.0 + 1e-9 };
                let total = (cost - self.shared(i, rule, &needs) + after(rule)) * early;
                if best.is_none_or(|(_, least)| total < least) {
                    best = Some((rule, total));
                }
            }
            // The first rule, all whole, is always among the ways.
            let Some((rule, _)) = best else { continue };
            for (arg, layout) in structure.instrs[i].args.iter().zip(&rule.args) {
                if let (Arg::Value(v), Some(layout)) = (arg, layout) {
                    live[*v as usize] = true;
                    if !needs[*v as usize].contains(layout) {
                        needs[*v as usize].push(*layout);
                    }
                }
            }
            splits |= rule.outs.iter().chain(rule.args.iter().flatten()).any(|l| *l != Layout::Whole);
            rules[i] = Some(rule.clone());
        }
        Along { rules, splits, read: needs }
    }

    /// What it costs to bring a value to where it is needed: one by one, or by way of the whole, of which others are
    /// slices.
    fn after(&self, v: usize, from: Layout, needs: &[Layout], is_out: bool) -> f64 {
        let convert = |from: Layout, to: Layout| self.convert(v as u32, from, to).unwrap_or(f64::INFINITY);
        let partial = matches!(from, Layout::Partial(_));
        let sums = |to: &Layout| matches!(to, Layout::Partial(_));
        let ends = is_out && partial && needs.iter().all(sums);
        let one_by_one = needs.iter().map(|to| convert(from, *to)).sum::<f64>();
        if needs.len() + ends as usize > 1 {
            let of_whole = |to: &Layout| if *to == from { 0.0 } else { convert(Layout::Whole, *to) };
            let by_whole = convert(from, Layout::Whole) + needs.iter().map(of_whole).sum::<f64>();
            return by_whole.min(one_by_one + if ends { convert(from, Layout::Whole) } else { 0.0 });
        }
        one_by_one + if ends { convert(from, Layout::Whole) } else { 0.0 }
    }

    /// What an operand costs less because others need it in that layout, too.
    fn shared(&self, i: usize, rule: &Rule, needs: &[Reads]) -> f64 {
        let args = self.ask.structure.instrs[i].args.iter().zip(&rule.args);
        let saved = |(arg, layout): (&Arg, &Option<Layout>)| match (arg, layout) {
            (Arg::Value(v), Some(layout)) if needs[*v as usize].contains(layout) => {
                self.cost(*v, *layout) - self.least(*v)
            }
            _ => 0.0,
        };
        args.map(saved).sum()
    }

    /// The least cost of a value in any layout.
    fn least(&self, v: u32) -> f64 {
        let Some(i) = self.graph.producer[v as usize] else { return 0.0 };
        let shared = self.graph.uses[v as usize].max(1) as f64;
        self.ways[i as usize].iter().map(|(_, cost)| cost / shared).fold(f64::INFINITY, f64::min)
    }
}

/// What the axes before one leave of every value, as it is made.
fn left_of(graph: &Graph, axis: usize, before: &[Option<Rules>]) -> Vec<Ty> {
    let ask = graph.ask;
    let left = |(v, ty): (usize, &Ty)| {
        let lies: Layouts = match graph.producer[v] {
            None => ask.inputs[v][..axis].iter().copied().collect(),
            Some(i) => {
                let k = v - graph.starts[i as usize] as usize;
                before[i as usize].iter().flatten().map(|rule| rule.outs[k]).collect()
            }
        };
        largest_piece(ty, &lies, graph)
    };
    ask.types.iter().enumerate().map(left).collect()
}

/// The largest piece of a value that lies so on the first axes of a mesh.
fn largest_piece(ty: &Ty, lies: &[Layout], graph: &Graph) -> Ty {
    let first: SmallVec<[Part; 2]> = graph.ask.shape.iter().map(|&parts| graph.first(parts)).collect();
    Ty { dtype: ty.dtype, shape: piece(&ty.shape, lies, &first) }
}
