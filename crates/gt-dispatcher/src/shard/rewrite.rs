//! What one worker of a mesh runs: every instruction on its pieces, with collectives where layouts meet.

mod template;
mod travel;

pub use template::{From, Local, Template};

use super::choose::{Choice, arg_types};
use super::convert::way;
use gt_ir::collective::Exchange;
use gt_ir::layout::{Grains, Layout, Layouts, LocalArg, Part, localize};
use gt_ir::{
    Arg, ArgTy, Args, DType, Dist, Error, Input, Instr, Op, Result, Shape, Structure, Ty, View, bail,
    infer_all, philox,
};
use smallvec::{SmallVec, smallvec};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use template::{Begin, Drawn, Own, with_grains};

/// What travels together: values, the layouts they get, and where they are held now.
type Going = (usize, Exchange, DType, Vec<(u32, Layouts, u32)>);

struct Writer<'a> {
    whole: &'a [Ty],
    place: &'a [Part],
    structure: Structure,
    /// The type of every value so far.
    types: Vec<Ty>,
    origins: Vec<u32>,
    slots: Vec<From>,
    own: Vec<(u32, Own)>,
    lengths: BTreeSet<(usize, usize, usize)>,
    /// Slots that hold where this worker's part of a dimension begins.
    begins: HashMap<Begin, u32>,
    /// The values of the whole program that are here, by layout.
    held: Vec<SmallVec<[(Layouts, u32); 2]>>,
    collectives: u32,
    /// The instruction being written.
    at: u32,
    /// Sums that are needed later on, and what they are needed as.
    waiting: Vec<(u32, Layouts)>,
    waiting_bytes: u64,
    bucket: u64,
    /// What is no larger takes the time of a meeting to travel.
    small: u64,
    /// By axis: sums are taken for all.
    keeps: &'a [bool],
    grains: Grains,
}

/// Instructions that wait for something small are put off until so many of them wait.
const WINDOW: usize = 256;

/// Values that are read at most this many instructions after they are made do not wait for others to travel with.
const SOON: usize = 8;

/// The values that are sums over workers when they are made and are read as something else, not soon: what as.
fn later(structure: &Structure, starts: &[u32], choice: &Choice) -> HashMap<u32, Layouts> {
    let mut sums: HashMap<u32, usize> = HashMap::new();
    let mut later = HashMap::new();
    for (i, rules) in choice.rules.iter().enumerate() {
        let Some(rules) = rules else { continue };
        for (k, arg) in structure.instrs[i].args.iter().enumerate() {
            let Arg::Value(v) = arg else { continue };
            let wanted = || rules.iter().filter_map(|rule| rule.args[k]);
            if sums.contains_key(v) && !wanted().any(|l| matches!(l, Layout::Partial(_))) {
                // The first that reads it decides.
                if sums.remove(v).is_some_and(|at| i - at > SOON) {
                    later.insert(*v, wanted().collect());
                }
            }
        }
        for v in starts[i]..starts[i + 1] {
            let k = (v - starts[i]) as usize;
            if rules.iter().any(|rule| matches!(rule.outs[k], Layout::Partial(_))) {
                sums.insert(v, i);
            }
        }
    }
    later
}

/// Writes what the worker at a place runs. Workers of one mesh get instructions that differ in sizes alone, and meet in
/// the same collectives in the same order.
pub fn rewrite(structure: &Structure, types: &[Ty], choice: &Choice, place: &[Part]) -> Result<Template> {
    let starts = structure.starts();
    let place = with_grains(place, choice.grains);
    let mut w = Writer {
        whole: types,
        place: &place,
        structure: Structure::default(),
        types: Vec::with_capacity(types.len()),
        origins: Vec::with_capacity(structure.instrs.len()),
        slots: (0..structure.slots).map(From::Given).collect(),
        own: Vec::new(),
        lengths: BTreeSet::new(),
        begins: HashMap::new(),
        held: vec![SmallVec::new(); types.len()],
        collectives: 0,
        at: 0,
        waiting: Vec::new(),
        waiting_bytes: 0,
        bucket: choice.bucket,
        small: choice.small,
        keeps: &choice.keeps,
        grains: choice.grains,
    };
    let later = later(structure, &starts, choice);
    for (v, input) in structure.inputs.iter().enumerate() {
        let layouts = &choice.inputs[v];
        let ty = Ty { dtype: input.ty.dtype, shape: w.piece(&input.ty.shape, layouts) };
        w.structure.inputs.push(Input { ty: ty.clone(), dies: input.dies });
        w.types.push(ty);
        w.held[v].push((layouts.clone(), v as u32));
    }
    let source = Source { structure, starts: &starts, choice, later: &later };
    let mut put_off: Vec<usize> = Vec::new();
    for i in (0..structure.instrs.len()).filter(|i| choice.rules[*i].is_some()) {
        super::step_aside(i);
        if !w.try_write(&source, i)? {
            put_off.push(i);
        }
        if put_off.len() > WINDOW {
            w.catch_up(&source, &mut put_off)?;
        }
    }
    while !put_off.is_empty() {
        w.catch_up(&source, &mut put_off)?;
    }
    let joined = w.joined(structure);
    let outs = w.finish(structure, &choice.outs)?;
    let out_types = w.structure.outs.iter().map(|v| w.types[*v as usize].clone()).collect();
    w.structure.slots = w.slots.len() as u32;
    let key = w.structure.key();
    let local = Local {
        structure: Arc::new(w.structure),
        key,
        origins: Arc::new(w.origins),
        types: Arc::new(out_types),
        slots: w.slots,
    };
    Ok(Template {
        local,
        values: w.types,
        outs,
        joined,
        lengths: w.lengths,
        own: w.own,
        grains: choice.grains,
    })
}

/// What is rewritten.
struct Source<'a> {
    structure: &'a Structure,
    starts: &'a [u32],
    choice: &'a Choice,
    later: &'a HashMap<u32, Layouts>,
}

impl Source<'_> {
    /// The values that an instruction reads, and the layouts it reads them in.
    fn wanted(&self, i: usize) -> SmallVec<[(u32, Layouts); 4]> {
        let rules = self.choice.rules[i].iter().flatten();
        let args = self.structure.instrs[i].args.iter().enumerate();
        let wanted = |(k, arg): (usize, &Arg)| match arg {
            Arg::Value(v) => Some((*v, rules.clone().filter_map(|rule| rule.args[k]).collect())),
            Arg::Const(_) | Arg::Slot(_) => None,
        };
        args.filter_map(wanted).collect()
    }
}

impl Writer<'_> {
    /// Writes an instruction on this worker's pieces, unless it waits for one that was put off, or for something small that
    /// would better travel with others.
    fn try_write(&mut self, source: &Source, i: usize) -> Result<bool> {
        let wanted = source.wanted(i);
        for (v, layouts) in &wanted {
            let written = !self.held[*v as usize].is_empty();
            if !written || self.waiting.iter().any(|(w, _)| w == v) || self.is_small_journey(*v, layouts)? {
                return Ok(false);
            }
        }
        self.write(source, i, &wanted)?;
        Ok(true)
    }

    /// Has everything travel that instructions which were put off wait for, then writes those that can be.
    fn catch_up(&mut self, source: &Source, put_off: &mut Vec<usize>) -> Result<()> {
        let mut wanted: Vec<(u32, Layouts)> = Vec::new();
        for (k, &i) in put_off.iter().enumerate() {
            for (v, layouts) in source.wanted(i) {
                let written = !self.held[v as usize].is_empty();
                // The first of them waits for nothing else.
                if written && (k == 0 || self.is_small_journey(v, &layouts)?) {
                    wanted.push((v, layouts));
                }
            }
        }
        self.at = put_off.first().map_or(self.at, |i| *i as u32);
        self.bring_with_others(&wanted.iter().map(|(v, to)| (*v, to)).collect::<Vec<_>>())?;
        let mut left = Vec::with_capacity(put_off.len());
        for &i in &*put_off {
            if !self.try_write(source, i)? {
                left.push(i);
            }
        }
        if left.len() == put_off.len() {
            bail!(Runtime, "layouts: instruction {} reads what nobody writes", left[0]);
        }
        *put_off = left;
        Ok(())
    }

    /// True if a value has to travel to be in a layout, and is so small that this takes the time of a meeting.
    fn is_small_journey(&self, v: u32, to: &Layouts) -> Result<bool> {
        let held = &self.held[v as usize];
        if self.whole[v as usize].bytes() as u64 > self.small || held.iter().any(|(l, _)| l == to) {
            return Ok(false);
        }
        let slices = |(from, _): &(Layouts, u32)| {
            way(from, to).is_ok_and(|s| s.iter().all(|s| s.from == Layout::Whole))
        };
        Ok(!held.iter().any(slices))
    }

    /// Writes an instruction, bringing what it reads.
    fn write(&mut self, source: &Source, i: usize, wanted: &[(u32, Layouts)]) -> Result<()> {
        let Source { structure, starts, choice, later } = *source;
        let Some(rules) = &choice.rules[i] else { return Ok(()) };
        let instr = &structure.instrs[i];
        self.at = i as u32;
        self.bring_with_others(&wanted.iter().map(|(v, to)| (*v, to)).collect::<SmallVec<[_; 4]>>())?;
        let lies: Layouts = rules.iter().map(|rule| rule.outs[0]).collect();
        let results = match &instr.op {
            Op::Random { dist, shape, dtype } if lies.contains(&Layout::Split(0)) => {
                let ty = Ty { dtype: *dtype, shape: shape.clone() };
                self.random(*dist, &ty, &instr.args, lies)?
            }
            op => {
                let arg_types = arg_types(structure, self.whole, i);
                self.note_lengths(&self.whole[starts[i] as usize..starts[i + 1] as usize], |k, axis| {
                    rules[axis].outs[k]
                });
                let on: SmallVec<[_; 2]> = rules.iter().collect();
                let local = localize(op, &on, &arg_types, self.place)?;
                let mut args = Args::new();
                for arg in &local.args {
                    args.push(match *arg {
                        LocalArg::Num(x) => Arg::Const(x),
                        LocalArg::Own(k) => match instr.args[k] {
                            Arg::Value(v) => {
                                let layouts = rules.iter().filter_map(|rule| rule.args[k]).collect();
                                Arg::Value(self.find(v, &layouts)?)
                            }
                            number => number,
                        },
                    });
                }
                self.emit(local.op, args)?
            }
        };
        for (k, v) in (starts[i]..starts[i + 1]).enumerate() {
            let layouts = rules.iter().map(|rule| rule.outs[k]).collect();
            self.held[v as usize].push((layouts, results + k as u32));
            if let Some(to) = later.get(&v) {
                self.wait(v, to)?;
            }
        }
        Ok(())
    }

    /// Writes an instruction; gives the number of its first result.
    fn emit(&mut self, op: Op, args: Args) -> Result<u32> {
        let types = {
            let ty = |arg: &Arg| match arg {
                Arg::Value(v) => ArgTy::Val(&self.types[*v as usize]),
                Arg::Const(_) | Arg::Slot(_) => ArgTy::Num,
            };
            let seen: SmallVec<[ArgTy; 4]> = args.iter().map(ty).collect();
            infer_all(&op, &seen)?
        };
        let first = self.types.len() as u32;
        self.types.extend(types);
        self.structure.instrs.push(Instr { op, args });
        self.origins.push(self.at);
        Ok(first)
    }

    fn find(&self, v: u32, layouts: &Layouts) -> Result<u32> {
        let held = self.held[v as usize].iter().find(|(l, _)| l == layouts);
        held.map(|(_, local)| *local)
            .ok_or_else(|| Error::Runtime(format!("layouts: value {v} is not here as {layouts:?}")))
    }

    /// The length of this worker's part of a dimension, or of its grains, along an axis.
    fn length(&mut self, axis: usize, size: usize) -> usize {
        let len = self.place[axis].range(size).len();
        self.lengths.insert((axis, size, len));
        len
    }

    /// The part of a dimension that lies here.
    fn held_of(&mut self, size: usize, dim: usize, layouts: &[Layout]) -> usize {
        let splits = |axis: &usize| layouts[*axis] == Layout::Split(dim);
        let grain = self.grains.of(size);
        grain * (0..layouts.len()).filter(splits).fold(size / grain, |size, axis| self.length(axis, size))
    }

    fn piece(&mut self, shape: &Shape, layouts: &[Layout]) -> Shape {
        (0..shape.len()).map(|dim| self.held_of(shape[dim], dim, layouts)).collect()
    }

    /// Notes the lengths on which the pieces of some results depend. Those of operands were noted when they were made.
    fn note_lengths(&mut self, types: &[Ty], layout: impl Fn(usize, usize) -> Layout) {
        for (k, ty) in types.iter().enumerate() {
            let layouts: Layouts = (0..self.place.len()).map(|axis| layout(k, axis)).collect();
            if layouts.iter().any(|l| matches!(l, Layout::Split(_))) {
                self.piece(&ty.shape, &layouts);
            }
        }
    }

    fn slot(&mut self, own: Own) -> u32 {
        self.slots.push(own.at(self.place));
        let slot = self.slots.len() as u32 - 1;
        self.own.push((slot, own));
        slot
    }

    /// The worker's slice, along an axis, of a value that is whole on it and held as `x`.
    fn slice(&mut self, v: u32, x: u32, axis: usize, dim: usize) -> Result<u32> {
        let grain = self.grains.of(self.whole[v as usize].shape[dim]);
        let size = self.types[x as usize].shape[dim] / grain;
        let len = self.length(axis, size) * grain;
        let begin = Begin { axis, size, grain };
        let slot = match self.begins.get(&begin) {
            Some(slot) => *slot,
            None => {
                let slot = self.slot(Own::Begin(begin));
                self.begins.insert(begin, slot);
                slot
            }
        };
        let view = View::Slice { dim, len, step: 1 };
        self.emit(Op::View(view), smallvec![Arg::Value(x), Arg::Slot(slot)])
    }

    /// The rows of a random tensor that this worker holds. Blocks of the generator serve several elements, so that a few
    /// too many are drawn, and those before the first are left out (C7).
    fn random(&mut self, dist: Dist, ty: &Ty, args: &Args, lies: Layouts) -> Result<u32> {
        let shape = self.piece(&ty.shape, &lies);
        let lanes = philox::per_block(dist, ty.dtype) as usize;
        let each: usize = ty.shape[1..].iter().product();
        let drawn = Drawn { rows: ty.shape[0], each, lanes, lies };
        let (Arg::Slot(key), Arg::Slot(offset)) = (args[0], args[1]) else {
            bail!(Value, "{}: key and offset are slots", "RANDOM");
        };
        let count: Shape = [shape.numel() + lanes - 1].into();
        let moved = self.slot(Own::Block { offset, drawn: drawn.clone() });
        let skip = self.slot(Own::Skip(drawn));
        let op = Op::Random { dist, shape: count, dtype: ty.dtype };
        let x = self.emit(op, smallvec![Arg::Slot(key), Arg::Slot(moved)])?;
        let view = View::Slice { dim: 0, len: shape.numel(), step: 1 };
        let x = self.emit(Op::View(view), smallvec![Arg::Value(x), Arg::Slot(skip)])?;
        self.emit(Op::View(View::Reshape(shape)), smallvec![Arg::Value(x)])
    }

    /// The live-ins that lie in pieces, live on, and were put together.
    fn joined(&self, structure: &Structure) -> Vec<u32> {
        let whole = |(layouts, _): &(Layouts, u32)| layouts.iter().all(|l| *l == Layout::Whole);
        let joined = |v: &u32| {
            let (input, held) = (&structure.inputs[*v as usize], &self.held[*v as usize]);
            !input.dies && !whole(&held[0]) && held.iter().any(whole)
        };
        (0..structure.inputs.len() as u32).filter(joined).collect()
    }

    /// Brings live-outs into a layout they can be kept in: the one asked for, else one that is there, else whole.
    fn finish(&mut self, structure: &Structure, asked: &[super::Asked]) -> Result<Vec<Layouts>> {
        self.at = structure.instrs.len().saturating_sub(1) as u32;
        let keeps = |l: &Layout| !matches!(l, Layout::Partial(_));
        let mut layouts = Vec::with_capacity(structure.outs.len());
        for (&v, asked) in structure.outs.iter().zip(asked) {
            let held = &self.held[v as usize];
            let fits = |l: &&Layouts| {
                l.iter().all(keeps) && l.iter().zip(asked).all(|(l, a)| a.is_none_or(|a| a == *l))
            };
            let there = held.iter().map(|(l, _)| l).find(fits);
            let first = || held.iter().map(|(l, _)| l.clone()).next().unwrap_or_default();
            let kept = |(l, asked): (Layout, &Option<Layout>)| {
                asked.filter(keeps).unwrap_or(if keeps(&l) { l } else { Layout::Whole })
            };
            layouts
                .push(there.cloned().unwrap_or_else(|| first().into_iter().zip(asked).map(kept).collect()));
        }
        let wanted: Vec<(u32, &Layouts)> = structure.outs.iter().copied().zip(&layouts).collect();
        self.bring(&wanted)?;
        for (v, layouts) in wanted {
            let local = self.find(v, layouts)?;
            self.structure.outs.push(local);
        }
        Ok(layouts)
    }
}
