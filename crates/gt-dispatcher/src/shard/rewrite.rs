//! What one part of a mesh axis runs: every instruction on its pieces, with collectives where layouts meet.

use super::choose::{Choice, arg_types};
use gt_ir::collective::{Collective, Exchange};
use gt_ir::layout::{Layout, LocalArg, Part, localize};
use gt_ir::{
    Arg, ArgTy, Args, DType, Dist, Error, Input, Instr, Op, Result, Scalar, Shape, Slot, Structure, Ty, View,
    bail, infer_all, philox,
};
use smallvec::{SmallVec, smallvec};
use std::collections::HashMap;
use std::sync::Arc;

/// What one worker runs of a program.
#[derive(Clone, Debug)]
pub struct Local {
    pub structure: Arc<Structure>,
    /// `structure.key()`; 0 until it is worked out.
    pub key: u64,
    /// The instruction of the whole program that each instruction belongs to.
    pub origins: Arc<Vec<u32>>,
    /// The type of each live-out's piece.
    pub types: Arc<Vec<Ty>>,
    pub slots: Vec<From>,
}

/// Where the value of a slot comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum From {
    /// A slot of the whole program, as it is.
    Given(u32),
    /// A slot of the whole program and a number added to it.
    Moved(u32, i64),
    /// This part's own.
    Own(i64),
}

impl Local {
    /// The slots of one run, from those of the whole program.
    pub fn bind(&self, slots: &[Slot]) -> Result<Vec<Slot>> {
        let number = |k: u32| match slots.get(k as usize) {
            Some(Slot::Num(x)) => Ok(x.as_i64()),
            _ => bail!(Value, "program: slot {k} holds no number"),
        };
        let fill = |from: &From| match *from {
            From::Given(k) => match slots.get(k as usize) {
                Some(slot) => Ok(slot.clone()),
                None => bail!(Value, "program: slot {k} is missing"),
            },
            From::Moved(k, by) => Ok(Slot::Num(Scalar::Int(number(k)?.wrapping_add(by)))),
            From::Own(x) => Ok(Slot::Num(Scalar::Int(x))),
        };
        self.slots.iter().map(fill).collect()
    }
}

/// What travels together: values, the layouts they get, and where they are held now.
type Going = (Exchange, DType, Vec<(u32, Layout, u32)>);

struct Writer<'a> {
    whole: &'a [Ty],
    part: Part,
    axis: u8,
    structure: Structure,
    /// The type of every value so far.
    types: Vec<Ty>,
    origins: Vec<u32>,
    slots: Vec<From>,
    /// Slots that hold where this part begins in a dimension of some size.
    begins: HashMap<usize, u32>,
    /// The values of the whole program that are here, by layout.
    held: Vec<SmallVec<[(Layout, u32); 2]>>,
    collectives: u32,
    /// The instruction being written.
    at: u32,
}

/// Writes what one part runs; also gives the layout of every live-out. Parts of one axis get instructions that differ in
/// sizes alone, and meet in the same collectives in the same order.
pub fn rewrite(
    structure: &Structure,
    types: &[Ty],
    choice: &Choice,
    part: Part,
    axis: u8,
) -> Result<(Local, Vec<Layout>)> {
    let starts = structure.starts();
    let mut w = Writer {
        whole: types,
        part,
        axis,
        structure: Structure::default(),
        types: Vec::with_capacity(types.len()),
        origins: Vec::with_capacity(structure.instrs.len()),
        slots: (0..structure.slots).map(From::Given).collect(),
        begins: HashMap::new(),
        held: vec![SmallVec::new(); types.len()],
        collectives: 0,
        at: 0,
    };
    for (v, input) in structure.inputs.iter().enumerate() {
        let layout = choice.inputs[v];
        let ty = Ty { dtype: input.ty.dtype, shape: super::piece(&input.ty.shape, layout, part) };
        w.structure.inputs.push(Input { ty: ty.clone(), dies: input.dies });
        w.types.push(ty);
        w.held[v].push((layout, v as u32));
    }
    for (i, rule) in choice.rules.iter().enumerate() {
        let Some(rule) = rule else { continue };
        let instr = &structure.instrs[i];
        w.at = i as u32;
        let mut wanted: SmallVec<[(u32, Layout); 4]> = SmallVec::new();
        for (arg, layout) in instr.args.iter().zip(&rule.args) {
            if let (Arg::Value(v), Some(layout)) = (arg, layout) {
                wanted.push((*v, *layout));
            }
        }
        w.bring(&wanted)?;
        let results = match (&instr.op, rule.outs.first()) {
            (Op::Random { dist, shape, dtype }, Some(Layout::Split(0))) => {
                let ty = Ty { dtype: *dtype, shape: shape.clone() };
                w.random(*dist, &ty, &instr.args)?
            }
            _ => {
                let arg_types = arg_types(structure, types, i);
                let local = localize(&instr.op, rule, &arg_types, part)?;
                let mut args = Args::new();
                for arg in &local.args {
                    args.push(match *arg {
                        LocalArg::Num(x) => Arg::Const(x),
                        LocalArg::Own(k) => match (instr.args[k], rule.args[k]) {
                            (Arg::Value(v), Some(layout)) => Arg::Value(w.find(v, layout)?),
                            (number, _) => number,
                        },
                    });
                }
                w.emit(local.op, args)?
            }
        };
        for (k, v) in (starts[i]..starts[i + 1]).enumerate() {
            w.held[v as usize].push((rule.outs[k], results + k as u32));
        }
    }
    let outs = w.finish(structure, &choice.outs)?;
    let out_types = w.structure.outs.iter().map(|v| w.types[*v as usize].clone()).collect();
    w.structure.slots = w.slots.len() as u32;
    let local = Local {
        structure: Arc::new(w.structure),
        key: 0,
        origins: Arc::new(w.origins),
        types: Arc::new(out_types),
        slots: w.slots,
    };
    Ok((local, outs))
}

impl Writer<'_> {
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

    fn find(&self, v: u32, layout: Layout) -> Result<u32> {
        let held = self.held[v as usize].iter().find(|(l, _)| *l == layout);
        held.map(|(_, local)| *local)
            .ok_or_else(|| Error::Runtime(format!("layouts: value {v} is not here as {layout:?}")))
    }

    fn slot(&mut self, from: From) -> u32 {
        self.slots.push(from);
        self.slots.len() as u32 - 1
    }

    /// The part's slice of something whole.
    fn slice(&mut self, x: u32, dim: usize) -> Result<u32> {
        let size = self.types[x as usize].shape[dim];
        let range = self.part.range(size);
        let slot = match self.begins.get(&size) {
            Some(slot) => *slot,
            None => {
                let slot = self.slot(From::Own(range.start as i64));
                self.begins.insert(size, slot);
                slot
            }
        };
        let view = View::Slice { dim, len: range.len(), step: 1 };
        self.emit(Op::View(view), smallvec![Arg::Value(x), Arg::Slot(slot)])
    }

    /// Makes sure that values are held in layouts; what travels in the same way travels together.
    fn bring(&mut self, wanted: &[(u32, Layout)]) -> Result<()> {
        let mut going: Vec<Going> = Vec::new();
        for &(v, to) in wanted {
            let held = &self.held[v as usize];
            let under_way = going.iter().any(|(.., of)| of.iter().any(|(w, l, _)| *w == v && *l == to));
            if held.iter().any(|(l, _)| *l == to) || under_way {
                continue;
            }
            let whole = held.iter().find(|(l, _)| *l == Layout::Whole).map(|(_, x)| *x);
            if let (Some(x), Layout::Split(dim)) = (whole, to) {
                let local = self.slice(x, dim)?;
                self.held[v as usize].push((to, local));
                continue;
            }
            let Some(&(from, x)) = held.first() else {
                bail!(Runtime, "layouts: value {v} is read before it is written");
            };
            let what = self.exchange(v, from, to)?;
            let dtype = self.whole[v as usize].dtype;
            match going.iter_mut().find(|(other, d, _)| *d == dtype && other.joins(&what)) {
                Some((other, _, of)) => {
                    other.extend(&what);
                    of.push((v, to, x));
                }
                None => going.push((what, dtype, vec![(v, to, x)])),
            }
        }
        for (what, _, of) in going {
            let number = self.collectives;
            self.collectives += 1;
            let op = Op::Collective(Collective { number, axis: self.axis, what });
            let first = self.emit(op, of.iter().map(|(.., x)| Arg::Value(*x)).collect())?;
            for (k, (v, to, _)) in of.into_iter().enumerate() {
                self.held[v as usize].push((to, first + k as u32));
            }
        }
        Ok(())
    }

    fn exchange(&self, v: u32, from: Layout, to: Layout) -> Result<Exchange> {
        let shape = &self.whole[v as usize].shape;
        let len = |dim: usize| self.part.range(shape[dim]).len();
        Ok(match (from, to) {
            (Layout::Partial(kind), Layout::Whole) => Exchange::AllReduce { kind },
            (Layout::Partial(kind), Layout::Split(dim)) => {
                Exchange::ReduceScatter { kind, dim, lens: smallvec![len(dim)] }
            }
            (Layout::Split(dim), Layout::Whole) => Exchange::AllGather { dim, sizes: smallvec![shape[dim]] },
            (Layout::Split(from), Layout::Split(to)) => {
                Exchange::AllToAll { from, to, sizes: smallvec![shape[from]], lens: smallvec![len(to)] }
            }
            (from, to) => bail!(Runtime, "layouts: value {v} cannot go from {from:?} to {to:?}"),
        })
    }

    /// The rows of a random tensor that this part holds. Blocks of the generator serve several elements, so that a few
    /// too many are drawn, and those before the first are left out (C7).
    fn random(&mut self, dist: Dist, ty: &Ty, args: &Args) -> Result<u32> {
        let shape = super::piece(&ty.shape, Layout::Split(0), self.part);
        let each: usize = ty.shape[1..].iter().product();
        let first = self.part.range(ty.shape[0]).start * each;
        let lanes = philox::per_block(dist, ty.dtype) as usize;
        let (Arg::Slot(key), Arg::Slot(offset)) = (args[0], args[1]) else {
            bail!(Value, "{}: key and offset are slots", "RANDOM");
        };
        let drawn: Shape = [shape.numel() + lanes - 1].into();
        let moved = self.slot(From::Moved(offset, (first / lanes) as i64));
        let skip = self.slot(From::Own((first % lanes) as i64));
        let op = Op::Random { dist, shape: drawn, dtype: ty.dtype };
        let x = self.emit(op, smallvec![Arg::Slot(key), Arg::Slot(moved)])?;
        let view = View::Slice { dim: 0, len: shape.numel(), step: 1 };
        let x = self.emit(Op::View(view), smallvec![Arg::Value(x), Arg::Slot(skip)])?;
        self.emit(Op::View(View::Reshape(shape)), smallvec![Arg::Value(x)])
    }

    /// Brings live-outs into a layout they can be kept in: the one asked for, else one that is there, else whole.
    fn finish(&mut self, structure: &Structure, asked: &[Option<Layout>]) -> Result<Vec<Layout>> {
        self.at = structure.instrs.len().saturating_sub(1) as u32;
        let mut layouts = Vec::with_capacity(structure.outs.len());
        for (&v, asked) in structure.outs.iter().zip(asked) {
            let keeps = |l: &Layout| !matches!(l, Layout::Partial(_));
            let there = self.held[v as usize].iter().map(|(l, _)| *l).find(keeps);
            layouts.push(asked.filter(keeps).or(there).unwrap_or(Layout::Whole));
        }
        let wanted: Vec<(u32, Layout)> =
            structure.outs.iter().copied().zip(layouts.iter().copied()).collect();
        self.bring(&wanted)?;
        for (v, layout) in wanted {
            let local = self.find(v, layout)?;
            self.structure.outs.push(local);
        }
        Ok(layouts)
    }
}
