//! Choosing from the first instruction to the last, by what is split already.

use super::{Along, Chooser, Reads, Ways};
use gt_ir::layout::{Layout, Rule};
use gt_ir::{Arg, Op};
use smallvec::smallvec;
use std::collections::HashMap;

impl Chooser<'_> {
    /// Picks, from the first instruction to the last, what costs least with values as they lie by then: what is split goes
    /// on being split as long as nothing has to move.
    pub(super) fn follow(mut self) -> Along {
        let ask = self.ask;
        let structure = &*ask.structure;
        let live = self.graph.live(structure);
        let mut held: Vec<Reads> = (0..ask.inputs.len()).map(|v| smallvec![self.input(v)]).collect();
        held.resize(self.graph.producer.len(), Reads::new());
        let mut along = Along { rules: vec![None; structure.instrs.len()], splits: false, read: Vec::new() };
        let mut open: HashMap<u32, (usize, Vec<Rule>)> = HashMap::new();
        let once = self.graph.made_of_nothing(structure, &ask.types, ask.costs.room);
        for i in 0..structure.instrs.len() {
            super::super::step_aside(i);
            let values = self.graph.starts[i]..self.graph.starts[i + 1];
            self.ways.push(Ways::new());
            if !live[i] {
                continue;
            }
            let cost = |rule: &Rule| {
                let args = structure.instrs[i].args.iter().zip(&rule.args);
                let bring = |(arg, to): (&Arg, &Option<Layout>)| match (arg, to) {
                    (Arg::Value(v), Some(to)) => self.bring(*v, *to, &held[*v as usize]),
                    _ => 0.0,
                };
                let compute = if once[i] { 0.0 } else { self.compute(i, rule, self.parts) };
                args.map(bring).sum::<f64>() + compute + self.settle(i, rule)
            };
            let rules = self.rules(i);
            let made = matches!(structure.instrs[i].op, Op::Full { .. } | Op::Random { .. });
            if made && self.fixed[values.start as usize].is_none() {
                // Whoever reads it first says how it lies: it is made so.
                let outs = rules.iter().map(|rule| rule.outs[0]).collect();
                open.insert(values.start, (i, rules));
                held[values.start as usize] = outs;
                continue;
            }
            let best = rules.into_iter().map(|rule| (cost(&rule), rule)).min_by(|a, b| a.0.total_cmp(&b.0));
            let Some((_, rule)) = best else { continue };
            for (arg, to) in structure.instrs[i].args.iter().zip(&rule.args) {
                let (Arg::Value(v), Some(to)) = (arg, to) else { continue };
                if let Some((i, rules)) = open.remove(v) {
                    // Made so where that is possible, else whole, of which the reader takes its part.
                    let at = rules.iter().position(|rule| rule.outs[0] == *to).unwrap_or(0);
                    held[*v as usize] = smallvec![rules[at].outs[0]];
                    along.rules[i] = rules.into_iter().nth(at);
                }
                if !held[*v as usize].contains(to) {
                    held[*v as usize].push(*to);
                }
            }
            values.zip(&rule.outs).for_each(|(v, layout)| held[v as usize].push(*layout));
            along.splits |= rule.outs.iter().chain(rule.args.iter().flatten()).any(|l| *l != Layout::Whole);
            self.ways[i].push((rule.clone(), 0.0));
            along.rules[i] = Some(rule);
        }
        for (i, rules) in open.into_values() {
            along.rules[i] = rules.into_iter().next();
        }
        along
    }

    /// What it costs to bring a value into a layout from those it is held in.
    fn bring(&self, v: u32, to: Layout, held: &[Layout]) -> f64 {
        let ways = held.iter().filter_map(|from| self.convert(v, *from, to));
        ways.fold(f64::INFINITY, f64::min)
    }

    /// What it costs at least to bring results to where they are asked to be.
    fn settle(&self, i: usize, rule: &Rule) -> f64 {
        let values = (self.graph.starts[i]..self.graph.starts[i + 1]).zip(&rule.outs);
        let asked =
            |(v, from): (u32, &Layout)| self.fixed[v as usize].map_or(0.0, |to| self.bring(v, to, &[*from]));
        values.map(asked).sum()
    }
}
