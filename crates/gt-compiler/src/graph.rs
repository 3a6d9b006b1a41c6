//! The graph: equal values shared, dead ones dropped, views resolved to index maps over the values they look at.

use crate::CompileOptions;
use crate::epilogue::Product;
use crate::map::Map;
use crate::plan::{Calc, Num};
use gt_ir::program::Arg;
use gt_ir::{Binary, DType, Ints, Kind, Op, ReduceKind, Result, Shape, Structure, Ty, View, bail};
use smallvec::SmallVec;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hash, Hasher};

/// A value as an operand sees it: a node through a map (`WHOLE` or an index into `Graph::maps`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ref {
    pub node: u32,
    pub map: u32,
}

/// The map of a value that is looked at as it is.
pub const WHOLE: u32 = u32::MAX;

/// An operand of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    Val(Ref),
    Num(Num),
}

impl Use {
    /// The node of a value.
    pub fn node(&self) -> Option<u32> {
        match self {
            Use::Val(r) => Some(r.node),
            Use::Num(_) => None,
        }
    }
}

pub type Uses = SmallVec<[Use; 3]>;

/// What a node computes.
#[derive(Clone, Debug)]
pub enum What {
    Input,
    /// A tensor of one number.
    Full,
    Iota,
    /// Elementwise; `None` copies.
    Elementwise(Option<Calc>),
    Reduce(ReduceKind, Ints),
    /// Writes operand 1 where the map shows in operand 0.
    Put(u32),
    /// Its operands one after the other along a dimension.
    Concat(usize),
    /// Fails on an operand that is no index; gives nothing. Whoever relies on it has it as its last operand.
    CheckIndex {
        size: usize,
        wrap: bool,
    },
    /// Fails on a zero; gives nothing.
    CheckNonzero,
    /// The instruction's op. Its results after the first are the `Part` nodes that follow.
    Other,
    /// A further result of the node that is its operand.
    Part,
    /// A matmul with what follows it.
    Product(Box<Product>),
}

/// A computed value.
#[derive(Clone, Debug)]
pub struct Node {
    pub what: What,
    pub instr: u32,
    pub ty: Ty,
    pub args: Uses,
    /// How many operands and live-outs refer to it.
    pub uses: u32,
    pub live: bool,
    /// A check needs it: it runs before anything is overwritten (C5).
    pub early: bool,
}

impl Node {
    pub fn is_check(&self) -> bool {
        matches!(self.what, What::CheckIndex { .. } | What::CheckNonzero)
    }
}

pub struct Graph {
    pub nodes: Vec<Node>,
    pub maps: Vec<(Map, Shape)>,
    /// The nodes of the live-outs, dense.
    pub outs: Vec<u32>,
}

impl Graph {
    pub fn new(structure: &Structure, types: &[Ty], options: CompileOptions) -> Result<Graph> {
        let mut b = Builder {
            graph: Graph {
                nodes: Vec::with_capacity(types.len() + 4),
                maps: Vec::new(),
                outs: Vec::with_capacity(structure.outs.len()),
            },
            structure,
            options,
            starts: structure.starts(),
            met: uses(structure, types.len()),
            last: last_uses(structure, types.len()),
            views: Vec::new(),
            whole: Vec::with_capacity(types.len() + 4),
            once: HashSet::default(),
            refs: Vec::with_capacity(types.len()),
            seen: HashMap::with_capacity_and_hasher(structure.instrs.len(), Default::default()),
        };
        for (i, input) in structure.inputs.iter().enumerate() {
            let node = b.node(What::Input, i as u32, input.ty.clone(), Uses::new());
            b.refer(Ref { node, map: WHOLE });
        }
        for i in 0..structure.instrs.len() {
            b.shared(i, &types[b.starts[i] as usize..b.starts[i + 1] as usize])?;
        }
        for &out in &structure.outs {
            let node = b.dense(b.refs[out as usize], structure.instrs.len().saturating_sub(1) as u32);
            b.graph.outs.push(node);
        }
        let mut graph = b.graph;
        graph.mark(structure);
        Ok(graph)
    }

    /// The map of a reference, in the shape it is looked at.
    pub fn map(&self, r: Ref) -> Map {
        match r.map {
            WHOLE => Map::dense(&self.nodes[r.node as usize].ty.shape),
            k => self.maps[k as usize].0.clone(),
        }
    }

    /// The shape of a value as its operand sees it.
    pub fn shape(&self, r: Ref) -> &Shape {
        match r.map {
            WHOLE => &self.nodes[r.node as usize].ty.shape,
            k => &self.maps[k as usize].1,
        }
    }

    /// Marks what is live and what checks need, and counts uses.
    fn mark(&mut self, structure: &Structure) {
        // All parts of a gang meet in every collective, in the order of the program, before anything is overwritten.
        for node in self.nodes.iter_mut().filter(|n| matches!(n.what, What::Other)) {
            if let Op::Collective(_) = structure.instrs[node.instr as usize].op {
                (node.live, node.early) = (true, true);
            }
        }
        for &out in &self.outs {
            let node = &mut self.nodes[out as usize];
            node.live = true;
            node.uses += 1;
        }
        for i in (0..self.nodes.len()).rev() {
            let (before, rest) = self.nodes.split_at_mut(i);
            let node = &mut rest[0];
            if !node.live {
                continue;
            }
            node.early |= node.is_check();
            for arg in &node.args {
                if let Use::Val(r) = arg {
                    let operand = &mut before[r.node as usize];
                    operand.live = true;
                    operand.uses += 1;
                    operand.early |= node.early;
                    if operand.is_check() {
                        operand.instr = node.instr;
                    }
                }
            }
        }
    }
}

/// How often each value is an operand or a live-out.
fn uses(structure: &Structure, values: usize) -> Vec<u32> {
    let mut met = vec![0; values];
    let args = structure.instrs.iter().flat_map(|i| &i.args);
    let read = args.filter_map(|a| if let Arg::Value(v) = a { Some(*v) } else { None });
    for v in read.chain(structure.outs.iter().copied()) {
        met[v as usize] += 1;
    }
    met
}

/// The last instruction that reads each value; after all of them for live-outs.
fn last_uses(structure: &Structure, values: usize) -> Vec<u32> {
    let mut last = vec![0; values];
    for (i, instr) in structure.instrs.iter().enumerate() {
        for arg in &instr.args {
            if let Arg::Value(v) = arg {
                last[*v as usize] = i as u32;
            }
        }
    }
    structure.outs.iter().for_each(|&v| last[v as usize] = u32::MAX);
    last
}

/// The hashes are good already.
#[derive(Default)]
struct Passed(u64);

impl Hasher for Passed {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {}
    fn write_u64(&mut self, x: u64) {
        self.0 = x;
    }
}

pub(crate) struct Builder<'a> {
    pub graph: Graph,
    structure: &'a Structure,
    pub options: CompileOptions,
    /// The first result of every instruction.
    starts: Vec<u32>,
    /// How often each value of the structure is used.
    met: Vec<u32>,
    /// Where each value of the structure is read last.
    last: Vec<u32>,
    /// Values that show a part of a node: the node, the value.
    views: Vec<(u32, u32)>,
    /// Where each node is read last as a whole, as far as known.
    whole: Vec<u32>,
    /// Joined values that are used once.
    pub once: HashSet<u32, foldhash::fast::FixedState>,
    /// What each value of the structure has become.
    refs: Vec<Ref>,
    /// Instructions by the hash of op and operands.
    seen: HashMap<u64, u32, std::hash::BuildHasherDefault<Passed>>,
}

impl Builder<'_> {
    pub fn node(&mut self, what: What, instr: u32, ty: Ty, args: Uses) -> u32 {
        self.graph.nodes.push(Node { what, instr, ty, args, uses: 0, live: false, early: false });
        self.graph.nodes.len() as u32 - 1
    }

    pub fn whole(&mut self, what: What, instr: u32, ty: &Ty, args: Uses) -> Ref {
        Ref { node: self.node(what, instr, ty.clone(), args), map: WHOLE }
    }

    pub fn mapped(&mut self, node: u32, map: Map, shape: Shape) -> Ref {
        if shape == self.graph.nodes[node as usize].ty.shape && map.is_whole(&shape) {
            return Ref { node, map: WHOLE };
        }
        self.graph.maps.push((map, shape));
        Ref { node, map: self.graph.maps.len() as u32 - 1 }
    }

    /// The node itself if the reference shows all of it in row-major order, otherwise a copy that does.
    fn dense(&mut self, r: Ref, instr: u32) -> u32 {
        if r.map == WHOLE {
            return r.node;
        }
        let node = &self.graph.nodes[r.node as usize];
        let (map, shape) = &self.graph.maps[r.map as usize];
        if map.is_whole(shape) && shape.numel() == node.ty.shape.numel() {
            return r.node;
        }
        let ty = Ty { dtype: node.ty.dtype, shape: shape.clone() };
        self.node(What::Elementwise(None), instr, ty, [Use::Val(r)].into_iter().collect())
    }

    /// The next value of the structure is this.
    fn refer(&mut self, r: Ref) {
        let value = self.refs.len() as u32;
        self.refs.push(r);
        if r.map != WHOLE {
            return self.views.push((r.node, value));
        }
        let node = r.node as usize;
        if self.whole.len() <= node {
            self.whole.resize(node + 1, 0);
        }
        self.whole[node] = self.whole[node].max(self.last[value as usize]);
    }

    /// Instruction `i` is about to write over a node that nobody reads as a whole any more: takes out what is still wanted of
    /// parts of it. Otherwise all of it would be copied for them.
    fn take_out(&mut self, i: u32, base: Ref) {
        let node = &self.graph.nodes[base.node as usize];
        let lent = matches!(node.what, What::Input) && !self.structure.inputs[node.instr as usize].dies;
        if lent || self.whole.get(base.node as usize).is_some_and(|&last| last > i) {
            return;
        }
        let size = node.ty.shape.numel();
        let of = |view: &(u32, u32)| view.0 == base.node;
        let (views, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.views).into_iter().partition(of);
        self.views = others;
        for (_, value) in views {
            let r = self.refs[value as usize];
            if self.last[value as usize] > i && self.graph.shape(r).numel() <= size {
                let node = self.dense(r, i);
                self.refs[value as usize] = match node == r.node {
                    true => r,
                    false => self.mapped(node, Map::dense(self.graph.shape(r)), self.graph.shape(r).clone()),
                };
            }
        }
    }

    fn arg(&self, arg: &Arg) -> Use {
        match arg {
            Arg::Value(v) => Use::Val(self.refs[*v as usize]),
            Arg::Const(x) => Use::Num(Num::Const(*x)),
            Arg::Slot(k) => Use::Num(Num::Slot(*k)),
        }
    }

    /// An instruction, or the equal one that came before. Slots are equal only to themselves (C4).
    fn shared(&mut self, i: usize, types: &[Ty]) -> Result<()> {
        let structure = self.structure;
        let instr = &structure.instrs[i];
        let args: Uses = instr.args.iter().map(|a| self.arg(a)).collect();
        let mut hasher = foldhash::fast::FixedState::default().build_hasher();
        instr.op.hash(&mut hasher);
        for arg in &args {
            match arg {
                Use::Val(r) => r.hash(&mut hasher),
                Use::Num(Num::Const(x)) => x.hash(&mut hasher),
                Use::Num(Num::Slot(k)) => hasher.write_u64(!(*k as u64)),
            }
        }
        match self.seen.entry(hasher.finish()) {
            std::collections::hash_map::Entry::Occupied(e) => {
                let j = *e.get() as usize;
                let other = &structure.instrs[j];
                let equal = other.op == instr.op
                    && other.args.len() == args.len()
                    && other.args.iter().zip(&args).all(|(a, b)| self.arg(a) == *b);
                if equal {
                    for v in self.starts[j]..self.starts[j + 1] {
                        self.refer(self.refs[v as usize]);
                    }
                    return Ok(());
                }
            }
            std::collections::hash_map::Entry::Vacant(e) => {
                e.insert(i as u32);
            }
        }
        let made = self.instr(i as u32, &instr.op, args, &types[0])?;
        self.refer(made);
        for ty in &types[1..] {
            let part = self.whole(What::Part, i as u32, ty, [Use::Val(made)].into_iter().collect());
            self.refer(part);
        }
        Ok(())
    }

    fn instr(&mut self, i: u32, op: &Op, mut args: Uses, ty: &Ty) -> Result<Ref> {
        let structure = self.structure;
        let made = match op {
            Op::Full { .. } => self.whole(What::Full, i, ty, args),
            Op::Arange { .. } => self.whole(What::Iota, i, ty, args),
            Op::Unary(op) => self.elementwise(Calc::Unary(*op), i, ty, args),
            Op::Binary(op) => {
                let divides = matches!(op, Binary::FloorDiv | Binary::Rem) && ty.dtype.kind() != Kind::Float;
                let alone = || !structure.instrs.iter().any(|i| matches!(i.op, Op::Collective(_)));
                // Parts of a gang check alike, empty ones too, so that they meet others in one order.
                if divides && (ty.shape.numel() > 0 || !alone()) {
                    self.guard_divisor(i, ty.dtype, &mut args);
                }
                self.elementwise(Calc::Binary(*op), i, ty, args)
            }
            Op::Where => self.elementwise(Calc::Where, i, ty, args),
            Op::Cast(to) => match args[0] {
                Use::Val(r) if self.graph.nodes[r.node as usize].ty.dtype == *to => r,
                _ => self.elementwise(Calc::Cast, i, ty, args),
            },
            Op::View(view) => {
                let r = val(&args, 0)?;
                match (view, args.get(1)) {
                    (View::Slice { dim, len, .. }, Some(Use::Num(Num::Const(start)))) => {
                        self.slice(i, r, *dim, start.as_i64() as usize, *len)
                    }
                    (_, Some(Use::Num(Num::Slot(k)))) => self.view(i, r, view, Some(*k), ty),
                    _ => self.view(i, r, view, None, ty),
                }
            }
            Op::Flip { dims } => {
                let r = val(&args, 0)?;
                if matches!(self.graph.nodes[r.node as usize].what, What::Full) {
                    return Ok(r);
                }
                let map = self.graph.map(r).flipped(&ty.shape, dims);
                self.mapped(r.node, map, ty.shape.clone())
            }
            Op::Reduce { dims, .. } if dims.is_empty() => val(&args, 0)?,
            Op::Reduce { kind, dims, .. } => {
                let shape = self.graph.shape(val(&args, 0)?).clone();
                self.narrow_reads(i, &shape, &mut args);
                self.whole(What::Reduce(*kind, dims.clone()), i, ty, args)
            }
            Op::Concat { dim } => {
                let parts = (0..args.len()).map(|k| val(&args, k)).collect::<Result<_>>()?;
                self.joined(i, *dim, parts)
            }
            Op::Put { path } => {
                if let Some(put) = self.put_tile(i, path, &args) {
                    return Ok(put);
                }
                self.take_out(i, val(&args, 0)?);
                let base = self.dense(val(&args, 0)?, i);
                let starts: SmallVec<[Num; 4]> = args[2..]
                    .iter()
                    .map(|a| match a {
                        Use::Num(x) => *x,
                        Use::Val(_) => Num::Const(0i64.into()),
                    })
                    .collect();
                let node = self.put(i, base, &ty.shape, path, &starts, args[1]);
                Ref { node, map: WHOLE }
            }
            Op::Gather { dim } | Op::Take { dim } => {
                self.guard_index(i, &mut args, *dim, matches!(op, Op::Take { .. }))?;
                // Numbers are fetched as they lie and made wider afterwards.
                let Some(narrow) = self.before_cast(val(&args, 0)?) else {
                    return Ok(self.whole(What::Other, i, ty, args));
                };
                args[0] = Use::Val(narrow);
                let dtype = self.graph.nodes[narrow.node as usize].ty.dtype;
                let found = self.whole(What::Other, i, &Ty { dtype, shape: ty.shape.clone() }, args);
                let cast = What::Elementwise(Some(Calc::Cast));
                self.whole(cast, i, ty, [Use::Val(found)].into_iter().collect())
            }
            Op::Scatter { dim, mode } if self.is_one_hot(*dim, *mode, &args) => {
                self.guard_index(i, &mut args, *dim, false)?;
                self.one_hot(i, *dim, *mode, ty, &args)
            }
            Op::Scatter { dim, .. } | Op::TakePut { dim, .. } => {
                self.take_out(i, val(&args, 0)?);
                let base = self.dense(val(&args, 0)?, i);
                // The base may have got here as a reshape of something dense.
                let wrap = matches!(op, Op::TakePut { .. });
                self.guard_index(i, &mut args, *dim, wrap)?;
                args[0] = Use::Val(Ref { node: base, map: WHOLE });
                self.whole(What::Other, i, ty, args)
            }
            Op::Random { .. }
            | Op::Data { .. }
            | Op::Pad { .. }
            | Op::ArgReduce { .. }
            | Op::Scan { .. }
            | Op::Matmul { .. }
            | Op::Sort { .. }
            | Op::TopK { .. }
            | Op::Softmax { .. }
            | Op::LogSoftmax { .. }
            | Op::Attention { .. }
            | Op::AttentionGrad { .. }
            | Op::Collective(_) => self.whole(What::Other, i, ty, args),
            Op::RmsNorm { .. }
            | Op::LayerNorm { .. }
            | Op::CrossEntropy
            | Op::Sgd { .. }
            | Op::Adam { .. } => {
                bail!(Value, "{}: a composite that is no step was not expanded", op.text())
            }
        };
        Ok(made)
    }

    /// The map `next`, made of `map` by a slice, moved to where the slice starts if that is structure.
    fn started(&self, map: Map, mut next: Map, view: &View, start: Option<Num>) -> Map {
        if let (View::Slice { dim, .. }, Some(Num::Const(x))) = (view, start) {
            next.offset += map.strides[*dim] * x.as_i64() as isize;
        }
        next
    }

    /// True if instruction `i` has one result that is used once.
    pub fn used_once(&self, i: u32) -> bool {
        self.met[self.starts[i as usize] as usize] == 1
    }

    fn view(&mut self, i: u32, r: Ref, view: &View, start: Option<u32>, ty: &Ty) -> Ref {
        let node = &self.graph.nodes[r.node as usize];
        if matches!(node.what, What::Full) {
            let args = node.args.clone();
            return self.whole(What::Full, i, ty, args);
        }
        let mut shape = self.graph.shape(r).clone();
        if let Some(map) = self.graph.map(r).viewed(view, &mut shape, start) {
            return self.mapped(r.node, map, shape);
        }
        let copy = self.dense(r, i);
        self.mapped(copy, Map::dense(&ty.shape), ty.shape.clone())
    }

    /// Writes `value` where `path` shows in `base`, looked at in `shape`.
    fn put(&mut self, i: u32, base: u32, shape: &Shape, path: &[View], starts: &[Num], value: Use) -> u32 {
        let dtype = self.graph.nodes[base as usize].ty.dtype;
        let ty = Ty { dtype, shape: shape.clone() };
        let (mut map, mut seen, mut value) = (Map::dense(shape), shape.clone(), value);
        let mut used = 0;
        for (j, view) in path.iter().enumerate() {
            let start = view.has_start().then(|| starts[used]);
            used += start.is_some() as usize;
            let slot = if let Some(Num::Slot(k)) = start { Some(k) } else { None };
            match map.viewed(view, &mut seen, slot) {
                Some(next) => map = self.started(map, next, view, start),
                None => {
                    // Strides cannot say the rest: change a copy of what is seen so far, and put that.
                    let r = self.mapped(base, map.clone(), seen.clone());
                    let copy = self.dense(r, i);
                    let View::Reshape(to) = view else { unreachable!("only a reshape can fail") };
                    let changed = self.put(i, copy, to, &path[j + 1..], &starts[used..], value);
                    self.graph.maps.push((Map::dense(&seen), seen.clone()));
                    value = Use::Val(Ref { node: changed, map: self.graph.maps.len() as u32 - 1 });
                    break;
                }
            }
        }
        // Where several indices show one element the last one wins.
        for d in 0..seen.len() {
            if map.strides[d] == 0 && seen[d] > 1 {
                if let Use::Val(r) = value {
                    let last = self.graph.map(r).moved(d, seen[d] - 1);
                    let mut shape = seen.clone();
                    shape[d] = 1;
                    self.graph.maps.push((last, shape));
                    value = Use::Val(Ref { node: r.node, map: self.graph.maps.len() as u32 - 1 });
                }
                seen[d] = 1;
            }
        }
        self.graph.maps.push((map, seen));
        let map = self.graph.maps.len() as u32 - 1;
        let base = Use::Val(Ref { node: base, map: WHOLE });
        self.node(What::Put(map), i, ty, [base, value].into_iter().collect())
    }

    /// Adds a check of the index, operand 1, to the operands.
    fn guard_index(&mut self, i: u32, args: &mut Uses, dim: usize, wrap: bool) -> Result<()> {
        let (x, index) = (val(args, 0)?, val(args, 1)?);
        let size = self.graph.shape(x)[dim];
        let ty = Ty { dtype: DType::Bool, shape: Shape::scalar() };
        let what = What::CheckIndex { size, wrap };
        let check = self.whole(what, i, &ty, [Use::Val(index)].into_iter().collect());
        args.push(Use::Val(check));
        Ok(())
    }

    /// Adds a check of the divisor, operand 1, to the operands, unless it is a number that is not zero.
    fn guard_divisor(&mut self, i: u32, dtype: DType, args: &mut Uses) {
        if let Use::Num(Num::Const(x)) = args[1]
            && x.to_dtype(dtype).as_i64() != 0
        {
            return;
        }
        let ty = Ty { dtype, shape: Shape::scalar() };
        let check = self.whole(What::CheckNonzero, i, &ty, [args[1]].into_iter().collect());
        args.push(Use::Val(check));
    }
}

pub(crate) fn val(args: &Uses, i: usize) -> Result<Ref> {
    match args.get(i) {
        Some(Use::Val(r)) => Ok(*r),
        _ => bail!(Value, "program: operand {i} must be a tensor"),
    }
}
