//! How values come to be held in other layouts: step by step, and what goes the same way goes together.

use super::{Going, Writer};
use crate::shard::convert::{Step, bytes, way};
use gt_ir::collective::{Collective, Exchange};
use gt_ir::layout::{Layout, Layouts};
use gt_ir::{Arg, Ints, Op, Result, Shape, View, bail};
use smallvec::{SmallVec, smallvec};

impl Writer<'_> {
    /// The first step from what is held of a value to a layout, what it starts from, and where that is held. The same
    /// for every worker: it depends on layouts alone.
    pub(super) fn first_step(&self, v: u32, to: &Layouts) -> Result<(Step, Layouts, u32)> {
        let shape: SmallVec<[usize; 2]> = self.place.iter().map(|part| part.parts).collect();
        let mut best: Option<(f64, Step, &Layouts, u32)> = None;
        let mut failed = None;
        for (from, x) in &self.held[v as usize] {
            match way(from, to) {
                Ok(steps) => {
                    let cost = bytes(&self.whole[v as usize], from, &steps, &shape);
                    if let Some(&step) = steps.first()
                        && best.as_ref().is_none_or(|(least, ..)| cost < *least)
                    {
                        best = Some((cost, step, from, *x));
                    }
                }
                Err(error) => failed = Some(error),
            }
        }
        match (best, failed) {
            (Some((_, mut step, from, x)), _) => {
                let keeps = self.keeps.get(step.axis).is_some_and(|keeps| *keeps);
                if keeps && matches!((step.from, step.to), (Layout::Partial(_), Layout::Split(_))) {
                    step.to = Layout::Whole;
                }
                Ok((step, from.clone(), x))
            }
            (None, Some(error)) => Err(error),
            (None, None) => bail!(Runtime, "layouts: value {v} is read before it is written"),
        }
    }

    /// Has a sum wait for others to travel with; they go as soon as they are many.
    pub(super) fn wait(&mut self, v: u32, to: &Layouts) -> Result<()> {
        self.waiting.push((v, to.clone()));
        self.waiting_bytes += self.whole[v as usize].bytes() as u64;
        if self.waiting_bytes >= self.bucket { self.send_waiting() } else { Ok(()) }
    }

    fn send_waiting(&mut self) -> Result<()> {
        let waiting = std::mem::take(&mut self.waiting);
        self.waiting_bytes = 0;
        self.bring(&waiting.iter().map(|(v, to)| (*v, to)).collect::<Vec<_>>())
    }

    /// Like `bring`; if something that waits is wanted, all of that goes.
    pub(super) fn bring_with_others(&mut self, wanted: &[(u32, &Layouts)]) -> Result<()> {
        if self.waiting.iter().any(|(w, _)| wanted.iter().any(|(v, _)| v == w)) {
            self.send_waiting()?;
        }
        self.bring(wanted)
    }

    /// Makes sure that values are held in layouts; what travels in the same way travels together.
    pub(super) fn bring(&mut self, wanted: &[(u32, &Layouts)]) -> Result<()> {
        loop {
            let mut going: Vec<Going> = Vec::new();
            let mut open = false;
            for &(v, to) in wanted {
                while !self.held[v as usize].iter().any(|(l, _)| l == to) {
                    let (step, from, x) = self.first_step(v, to)?;
                    let mut then = from.clone();
                    then[step.axis] = step.to;
                    if let (Layout::Whole, Layout::Split(dim)) = (step.from, step.to) {
                        let local = self.slice(v, x, step.axis, dim)?;
                        self.held[v as usize].push((then, local));
                        continue;
                    }
                    open = true;
                    self.join(&mut going, v, step, from, x)?;
                    break;
                }
            }
            for going in going {
                self.exchange(going)?;
            }
            if !open {
                return Ok(());
            }
        }
    }

    /// Adds a step of a value to those that travel together.
    fn join(&mut self, going: &mut Vec<Going>, v: u32, step: Step, from: Layouts, x: u32) -> Result<()> {
        let mut then = from.clone();
        then[step.axis] = step.to;
        let dtype = self.whole[v as usize].dtype;
        if going.iter().any(|(.., of)| of.iter().any(|(w, l, _)| *w == v && *l == then)) {
            return Ok(());
        }
        let what = self.what(v, step, &from)?;
        let (what, x) = self.in_grains(what, v, x)?;
        let fits = |(axis, other, d, _): &&mut Going| *axis == step.axis && *d == dtype && other.joins(&what);
        match going.iter_mut().find(fits) {
            Some((_, other, _, of)) => {
                other.extend(&what);
                of.push((v, then, x));
            }
            None => going.push((step.axis, what, dtype, vec![(v, then, x)])),
        }
        Ok(())
    }

    fn exchange(&mut self, (axis, what, _, of): Going) -> Result<()> {
        let number = self.collectives;
        self.collectives += 1;
        let op = Op::Collective(Collective { number, axis: axis as u8, what });
        let first = self.emit(op, of.iter().map(|(.., x)| Arg::Value(*x)).collect())?;
        for (k, (v, then, _)) in of.into_iter().enumerate() {
            let mut local = first + k as u32;
            let whole = self.whole;
            let shape = self.piece(&whole[v as usize].shape, &then);
            if self.types[local as usize].shape != shape {
                local = self.emit(Op::View(View::Reshape(shape)), smallvec![Arg::Value(local)])?;
            }
            self.held[v as usize].push((then, local));
        }
        Ok(())
    }

    /// The length of this worker's part along an axis of what the others leave of a dimension.
    fn part_of(&mut self, v: u32, dim: usize, axis: usize, size: usize) -> usize {
        let grain = self.grains.of(self.whole[v as usize].shape[dim]);
        self.length(axis, size / grain) * grain
    }

    /// A collective for an operand that has dimensions split in grains: those become two, of which the first is split as
    /// everywhere and the second is a grain.
    fn in_grains(&mut self, what: Exchange, v: u32, x: u32) -> Result<(Exchange, u32)> {
        let concerned: SmallVec<[usize; 2]> = match &what {
            Exchange::AllReduce { .. } | Exchange::Broadcast { .. } => SmallVec::new(),
            Exchange::AllGather { dim, .. } | Exchange::ReduceScatter { dim, .. } => smallvec![*dim],
            Exchange::AllToAll { from, to, .. } => smallvec![*from, *to],
        };
        let (whole, grains) = (&self.whole[v as usize].shape, self.grains);
        let grain = |dim: usize| if concerned.contains(&dim) { grains.of(whole[dim]) } else { 1 };
        if concerned.iter().all(|dim| grain(*dim) == 1) {
            return Ok((what, x));
        }
        let shape = &self.types[x as usize].shape;
        let mut apart = Shape::default();
        let mut at: SmallVec<[usize; 6]> = SmallVec::new();
        for (dim, &n) in shape.iter().enumerate() {
            at.push(apart.len());
            apart.push(n / grain(dim));
            apart.extend((grain(dim) > 1).then_some(grain(dim)));
        }
        let less = |n: usize, dim: usize| -> Ints { smallvec![n / grain(dim)] };
        let what = match what {
            Exchange::AllGather { dim, sizes } => {
                Exchange::AllGather { dim: at[dim], sizes: less(sizes[0], dim) }
            }
            Exchange::ReduceScatter { kind, dim, lens } => {
                Exchange::ReduceScatter { kind, dim: at[dim], lens: less(lens[0], dim) }
            }
            Exchange::AllToAll { from, to, sizes, lens } => Exchange::AllToAll {
                from: at[from],
                to: at[to],
                sizes: less(sizes[0], from),
                lens: less(lens[0], to),
            },
            other => other,
        };
        Ok((what, self.emit(Op::View(View::Reshape(apart)), smallvec![Arg::Value(x)])?))
    }

    /// The collective that a step of a value is.
    fn what(&mut self, v: u32, step: Step, from: &Layouts) -> Result<Exchange> {
        let whole = self.whole;
        let shape = &whole[v as usize].shape;
        // A dimension as it is on this axis's parts together: no later axis splits it.
        let mut open = from.clone();
        open[step.axis] = Layout::Whole;
        let mut size = |dim: usize| self.held_of(shape[dim], dim, &open);
        Ok(match (step.from, step.to) {
            (Layout::Partial(kind), Layout::Whole) => Exchange::AllReduce { kind },
            (Layout::Partial(kind), Layout::Split(dim)) => {
                let size = size(dim);
                Exchange::ReduceScatter { kind, dim, lens: smallvec![self.part_of(v, dim, step.axis, size)] }
            }
            (Layout::Split(dim), Layout::Whole) => Exchange::AllGather { dim, sizes: smallvec![size(dim)] },
            (Layout::Split(from), Layout::Split(to)) => {
                let (sizes, size) = (smallvec![size(from)], size(to));
                Exchange::AllToAll { from, to, sizes, lens: smallvec![self.part_of(v, to, step.axis, size)] }
            }
            (from, to) => bail!(Runtime, "layouts: value {v} cannot go from {from:?} to {to:?}"),
        })
    }
}
