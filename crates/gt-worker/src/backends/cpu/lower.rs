//! Kernels of the plan made ready for tiles: dimensions collapsed, registers given places in scratch memory.

use super::chain::{self, Unit};
use super::convert::{Lane, is_native};
use super::forms::{self, Form};
use super::tile_size;
use super::ways::Ways;
use gt_compiler::{Calc, Kernel, Map, Num, Plan, Source, Strides};
use gt_ir::{Binary, DType, Ints, ReduceKind, Scalar, Unary};
use smallvec::SmallVec;

/// A kernel over a collapsed iteration space, whose elements are numbered row-major.
pub struct Lowered {
    pub dims: SmallVec<[usize; 6]>,
    pub numel: usize,
    /// Elements per tile.
    pub tile: usize,
    pub loads: Vec<LoadAt>,
    pub ops: Vec<Op>,
    /// The ops as they are taken: one by one, or several together.
    pub units: Vec<Unit>,
    /// What the ops are as a whole, where there are loops for that; there are no units then.
    pub form: Option<Form>,
    pub stores: Vec<StoreAt>,
    pub regs: usize,
    /// Bytes of scratch memory a thread needs.
    pub scratch: usize,
    /// Where operands per row are laid out for a whole tile, three places of `slot_bytes`.
    pub spread_at: usize,
    pub slot_bytes: usize,
    /// Roughly, work per element in simple loops over a tile.
    pub cost: usize,
    /// All loads and stores are packed and in order: positions need no coordinates.
    pub linear: bool,
    /// A dimension along which some map steps by one element, while its innermost dimension takes long steps.
    pub turned: Option<usize>,
    /// Rows come from far enough to be asked for while the ones before are computed.
    pub ahead: bool,
    /// How results that are written past the caches fare.
    pub ways: Ways,
    /// Elements of a row, where rows are folded; tiles are whole rows then. Otherwise 1: every element is a row.
    pub row_len: usize,
    /// Leading dimensions that number the rows.
    pub row_dims: usize,
}

pub enum From {
    Mem(u32),
    Num(Num),
    Iota(Num, Num),
}

pub struct LoadAt {
    pub from: From,
    pub dtype: DType,
    /// Kept as it lies in memory: no arithmetic reads it.
    pub raw: bool,
    pub map: Map,
    pub strides: Strides,
    pub linear: bool,
    /// One value for the whole space.
    pub splat: bool,
    /// One value per row.
    pub row: bool,
    /// The same packed row for all rows, read where it lies.
    pub cycle: bool,
    /// Where in scratch its tile is, and a tile of elements not yet widened.
    pub tile_at: usize,
    pub raw_at: usize,
}

pub enum Do {
    Unary(Unary),
    Binary(Binary),
    Where,
    Cast,
    /// x * x and x * x * x, for powers.
    Square,
    Cube,
    /// Each row to one value.
    Fold(ReduceKind),
}

pub struct Op {
    pub work: Do,
    /// Of the operands.
    pub lane: Lane,
    pub dtype: DType,
    pub args: [u16; 3],
    /// How many of them there are.
    pub arity: usize,
    /// Operands with one value per row, of an op with one per element.
    pub spread: [bool; 3],
    /// Operands of a binary op that are one value for a row, or for the whole tile if not `rowwise`.
    pub by: (bool, bool),
    pub rowwise: bool,
    /// One value per row.
    pub row: bool,
    pub out: u16,
    pub tile_at: usize,
    /// The result is to be rounded to `dtype` in its tile.
    pub round: bool,
    /// The store that takes the result straight from this op, if it is packed where a tile falls.
    pub direct: Option<u16>,
}

pub struct StoreAt {
    pub reg: u16,
    pub dtype: DType,
    pub raw: bool,
    pub storage: u32,
    pub map: Map,
    pub strides: Strides,
    pub linear: bool,
    pub direct: bool,
    pub row: bool,
    /// Written past the caches, which are too small for it, in runs that do so.
    pub stream: bool,
    /// Written by the chain that computes it.
    pub done: bool,
    /// Loads that may be the same memory, element for element.
    pub over: SmallVec<[u16; 2]>,
    /// No load is the same memory, unless it is so element for element.
    pub apart: bool,
    pub raw_at: usize,
}

impl LoadAt {
    /// Read in order, element by element.
    pub fn is_far(&self) -> bool {
        self.linear && !self.row && matches!(self.from, From::Mem(_))
    }
}

impl Op {
    pub fn reads(&self, reg: u16) -> bool {
        self.args[..self.arity].contains(&reg)
    }
}

/// Operands of more bytes than this are not in a near cache.
const FAR: usize = 2 << 20;
/// Several streams of elements this long in all are asked for by hand: the processor stops at the end of every page.
const FAR_STREAMS: usize = 512 << 10;
/// Results from this many bytes on are written past the caches.
const STREAM: usize = 16 << 20;

/// Dimensions put in `order`, neighbours merged where every map steps evenly across them; no dimension crosses the
/// ends of `parts` (lengths that sum to the rank). Also gives how many dimensions the first part has left.
fn collapse(
    shape: &[usize],
    order: &[usize],
    parts: &[usize],
    maps: &[&Strides],
) -> (SmallVec<[usize; 6]>, SmallVec<[Strides; 8]>, usize) {
    let mut dims: SmallVec<[usize; 6]> = SmallVec::new();
    let mut strides: SmallVec<[Strides; 8]> = maps.iter().map(|_| Strides::new()).collect();
    let (mut at, mut first_part) = (0, 0);
    for (p, &part) in parts.iter().enumerate() {
        let first = dims.len();
        for &d in &order[at..at + part] {
            let n = shape[d];
            if n == 1 {
                continue;
            }
            let merges = dims.len() > first
                && maps.iter().zip(&strides).all(|(m, s)| s[s.len() - 1] == m[d] * n as isize);
            if merges {
                let last = dims.len() - 1;
                dims[last] *= n;
                strides.iter_mut().zip(maps).for_each(|(s, m)| s[last] = m[d]);
            } else {
                dims.push(n);
                strides.iter_mut().zip(maps).for_each(|(s, m)| s.push(m[d]));
            }
        }
        at += part;
        if p == 0 {
            first_part = dims.len();
        }
    }
    if dims.is_empty() {
        dims.push(1);
        strides.iter_mut().for_each(|s| s.push(0));
    }
    (dims, strides, first_part)
}

fn is_linear(dims: &[usize], strides: &[isize]) -> bool {
    let mut step = 1isize;
    for d in (0..dims.len()).rev() {
        if dims[d] != 1 && strides[d] != step {
            return false;
        }
        step *= dims[d] as isize;
    }
    true
}

/// The dimensions of a fold in the order it walks them: kept, reduced, kept and innermost.
pub struct FoldOrder {
    pub order: Ints,
    pub parts: [usize; 3],
    pub kept: usize,
    pub reduced: usize,
    pub inner: usize,
}

impl FoldOrder {
    pub fn new(shape: &[usize], dims: &[usize]) -> FoldOrder {
        let last = dims.iter().copied().filter(|&d| shape[d] != 1).max().unwrap_or(0);
        let is_reduced = |d: &usize| dims.contains(d);
        let outer = (0..shape.len()).filter(|d| !is_reduced(d) && *d < last);
        let inner = (0..shape.len()).filter(|d| !is_reduced(d) && *d >= last);
        let mut order: Ints = outer.collect();
        let first = order.len();
        order.extend((0..shape.len()).filter(is_reduced));
        let second = order.len() - first;
        order.extend(inner);
        let third = order.len() - first - second;
        let count = |range: std::ops::Range<usize>| range.map(|i| shape[order[i]]).product();
        FoldOrder {
            parts: [first, second, third],
            kept: count(0..first),
            reduced: count(first..first + second),
            inner: count(first + second..order.len()),
            order,
        }
    }
}

/// A fold reads tiles in multiples of this.
pub const FOLD_TILE: usize = 1024;

pub fn lower(kernel: &Kernel, fold: Option<&FoldOrder>, plan: &Plan) -> Lowered {
    let nloads = kernel.loads.len();
    let regs = nloads + kernel.code.len();
    let rank = kernel.shape.len();
    let none = Map::constant(rank);
    let mut maps: SmallVec<[&Map; 16]> = SmallVec::new();
    for load in &kernel.loads {
        maps.push(match &load.from {
            Source::Mem { map, .. } | Source::Iota { map, .. } => map,
            Source::Num(_) => &none,
        });
    }
    maps.extend(kernel.stores.iter().map(|s| &s.map));
    // Maps of numbers merge with anything.
    let all: SmallVec<[&Strides; 16]> = maps.iter().map(|m| &m.strides).collect();
    let by_rows = kernel.has_rows();
    let (dims, strides, row_dims) = match fold {
        Some(f) => collapse(&kernel.shape, &f.order, &f.parts, &all),
        None => {
            let order: Ints = (0..rank).collect();
            let rows = if by_rows { kernel.rows } else { rank };
            collapse(&kernel.shape, &order, &[rows, rank - rows], &all)
        }
    };
    let row_len = if by_rows { kernel.row_len() } else { 1 };
    // Values per row are packed if they are so over the dimensions that number rows.
    let packed = |strides: &Strides, row: bool| {
        let n = if row { row_dims } else { dims.len() };
        is_linear(&dims[..n], &strides[..n])
    };

    // When each register is last read by an op.
    let mut last: SmallVec<[usize; 32]> = SmallVec::from_elem(0, regs);
    let mut computed: SmallVec<[bool; 32]> = SmallVec::from_elem(false, regs);
    for (i, code) in kernel.code.iter().enumerate() {
        for &arg in &code.args {
            last[arg as usize] = i;
            computed[arg as usize] = true;
        }
    }
    let forever = usize::MAX;
    if let Some(f) = &kernel.fold {
        last[f.reg as usize] = forever;
        computed[f.reg as usize] = true;
    }
    for store in &kernel.stores {
        last[store.reg as usize] = forever;
    }

    let dtype_of = |reg: usize| {
        if reg < nloads { kernel.loads[reg].dtype } else { kernel.code[reg - nloads].dtype }
    };
    // A store may be written as its value is computed if no load can be the same memory.
    let aliased = |storage: u32| match plan.storages[storage as usize].reuse {
        Some(input) => {
            kernel.loads.iter().any(|l| matches!(&l.from, Source::Mem { storage: s, .. } if *s == input))
        }
        None => false,
    };
    let mut direct: SmallVec<[Option<u16>; 32]> = SmallVec::from_elem(None, regs);
    let mut stores: Vec<StoreAt> = Vec::with_capacity(kernel.stores.len());
    for (i, store) in kernel.stores.iter().enumerate() {
        let reg = store.reg as usize;
        let strides = strides[nloads + i].clone();
        let linear = packed(&strides, store.row);
        let stream = linear
            && !store.row
            && fold.is_none()
            && is_native(store.dtype)
            && plan.storages[store.storage as usize].bytes >= STREAM
            && plan.storages[store.storage as usize].reuse.is_none();
        let may = reg >= nloads
            && direct[reg].is_none()
            && is_native(store.dtype)
            && !aliased(store.storage)
            && !stream;
        if may {
            direct[reg] = Some(i as u16);
        }
        let over = match plan.storages[store.storage as usize].reuse {
            Some(input) if linear && !store.row && store.dtype == DType::F32 => {
                over(kernel, &store.map, input)
            }
            _ => SmallVec::new(),
        };
        stores.push(StoreAt {
            reg: store.reg,
            dtype: store.dtype,
            raw: reg < nloads && !computed[reg] && matches!(kernel.loads[reg].from, Source::Mem { .. }),
            storage: store.storage,
            linear,
            map: store.map.clone(),
            strides,
            direct: may,
            stream,
            done: false,
            apart: !over.is_empty() || !aliased(store.storage),
            over,
            row: store.row,
            raw_at: 0,
        });
    }

    let mut loads: Vec<LoadAt> = Vec::with_capacity(nloads);
    for (i, load) in kernel.loads.iter().enumerate() {
        let strides = strides[i].clone();
        let from = match &load.from {
            Source::Mem { storage, .. } => From::Mem(*storage),
            Source::Num(x) => From::Num(*x),
            Source::Iota { start, step, .. } => From::Iota(*start, *step),
        };
        let linear = !matches!(from, From::Num(_)) && packed(&strides, load.row);
        let cycle = by_rows
            && !load.row
            && !linear
            && load.dtype == DType::F32
            && matches!(from, From::Mem(_))
            && strides[..row_dims].iter().all(|&s| s == 0)
            && row_dims < dims.len()
            && is_linear(&dims[row_dims..], &strides[row_dims..]);
        loads.push(LoadAt {
            dtype: load.dtype,
            raw: !computed[i] && matches!(from, From::Mem(_)),
            linear,
            cycle,
            splat: !linear && !matches!(from, From::Iota(..)) && strides.iter().all(|&s| s == 0),
            row: load.row,
            from,
            map: maps[i].clone(),
            strides,
            tile_at: 0,
            raw_at: 0,
        });
    }

    // Places: slots of 8 bytes per element are shared by registers that do not live at once.
    let mut slots = 0usize;
    let mut free: SmallVec<[usize; 16]> = SmallVec::new();
    let mut place: SmallVec<[usize; 32]> = SmallVec::from_elem(usize::MAX, regs);
    let mut widest = 1;
    let mut take = |free: &mut SmallVec<[usize; 16]>| match free.pop() {
        Some(slot) => slot,
        None => {
            slots += 1;
            slots - 1
        }
    };
    for (i, load) in loads.iter_mut().enumerate() {
        widest = widest.max(if load.raw { load.dtype.size() } else { Lane::of(load.dtype).size() });
        if load.needs_tile() {
            place[i] = take(&mut free);
            load.tile_at = place[i];
        }
        if !load.raw && !is_native(load.dtype) && !load.linear {
            load.raw_at = take(&mut free);
        }
    }
    let mut cost =
        loads.iter().map(|l| if l.linear || l.splat { 1 } else { 3 }).sum::<usize>() + stores.len();
    let mut ops: Vec<Op> = Vec::with_capacity(kernel.code.len());
    for (i, code) in kernel.code.iter().enumerate() {
        let out = nloads + i;
        let operand = match code.calc {
            Calc::Where => code.dtype,
            _ => dtype_of(code.args[0] as usize),
        };
        let lane = Lane::of(operand);
        widest = widest.max(Lane::of(code.dtype).size());
        let mut args = [0u16; 3];
        args[..code.args.len()].copy_from_slice(&code.args);
        // A value that is only stored is rounded as it is stored.
        let round = computed[out] && !is_native(code.dtype) && !matches!(code.calc, Calc::Where | Calc::Cast);
        let work = match code.calc {
            Calc::Unary(op) => Do::Unary(op),
            Calc::Binary(Binary::Pow) => power(lane, &loads, args[1]),
            Calc::Binary(op) => Do::Binary(op),
            Calc::Where => Do::Where,
            Calc::Cast => Do::Cast,
            Calc::Fold(kind) => Do::Fold(kind),
        };
        let splat =
            |k: usize| code.args.get(k).is_some_and(|&a| (a as usize) < nloads && loads[a as usize].splat);
        let mut spread = [false; 3];
        if !code.row {
            for (k, &arg) in code.args.iter().enumerate() {
                let arg = arg as usize;
                spread[k] = if arg < nloads {
                    loads[arg].row && !loads[arg].splat
                } else {
                    kernel.code[arg - nloads].row
                };
            }
        }
        cost += work_cost(&work);
        place[out] = take(&mut free);
        // Operands that are not read again give their place to later results.
        for (k, &arg) in code.args.iter().enumerate() {
            let arg = arg as usize;
            // A chain writes its results block by block while later rows are still to be read.
            let per_row = if arg < nloads { loads[arg].row } else { kernel.code[arg - nloads].row };
            let keeps = per_row || (arg < nloads && loads[arg].splat);
            if last[arg] == i && place[arg] != usize::MAX && !code.args[..k].contains(&(arg as u16)) && !keeps
            {
                free.push(place[arg]);
            }
        }
        ops.push(Op {
            work,
            lane,
            dtype: code.dtype,
            args,
            arity: code.args.len(),
            rowwise: spread != [false; 3],
            by: if spread == [false; 3] { (splat(0), splat(1)) } else { (spread[0], spread[1]) },
            spread,
            row: code.row,
            out: out as u16,
            tile_at: place[out],
            round,
            direct: direct[out],
        });
    }
    let mut raw_store = None;
    for store in &mut stores {
        widest = widest.max(store.dtype.size());
        if !store.raw && !is_native(store.dtype) && !store.linear {
            store.raw_at = *raw_store.get_or_insert_with(|| take(&mut free));
        }
    }
    // Where operands per row are laid out for a whole tile.
    let spread_at = if ops.iter().any(|o| o.spread != [false; 3]) { slots } else { 0 };
    slots += 3 * (spread_at > 0) as usize;
    let numel: usize = kernel.shape.numel();
    let turned = loads.iter().map(|l| &l.strides).chain(stores.iter().map(|s| &s.strides)).find_map(|s| {
        let long = s[s.len() - 1].unsigned_abs() > 1;
        if long { s[..s.len() - 1].iter().position(|&step| step.unsigned_abs() == 1) } else { None }
    });
    let far: usize = loads.iter().filter(|l| l.linear && !l.row).map(|l| numel * l.dtype.size()).sum();
    let mut lowered = Lowered {
        ways: Ways::default(),
        ahead: fold.is_none() && far > if by_rows { FAR } else { FAR_STREAMS },
        turned: turned.filter(|_| !by_rows),
        dims,
        numel,
        tile: 0,
        loads,
        ops,
        units: Vec::new(),
        form: None,
        stores,
        regs,
        scratch: slots,
        spread_at,
        slot_bytes: widest,
        cost,
        linear: false,
        row_len,
        row_dims,
    };
    let narrow = fold.is_some_and(|f| f.inner > 1);
    if fold.is_none() {
        lowered.form = forms::find(&lowered);
    }
    if lowered.form.is_none() {
        chain::units(&mut lowered, kernel.fold.as_ref().map(|f| f.reg), narrow);
    }
    lowered.tile = if fold.is_some() { FOLD_TILE } else { tile_size::of(&lowered) };
    lowered.linear = lowered.loads.iter().all(|l| l.linear || l.splat || l.cycle)
        && lowered.stores.iter().all(|s| s.linear);
    lowered.settle();
    lowered
}

impl LoadAt {
    /// Read where it lies, as it lies.
    pub fn is_kept(&self) -> bool {
        matches!(self.from, From::Mem(_)) && (self.raw || is_native(self.dtype))
    }

    fn needs_tile(&self) -> bool {
        !(self.linear && self.is_kept())
    }
}

impl Lowered {
    /// Turns places, so far counted in elements and slots, into bytes of scratch memory.
    fn settle(&mut self) {
        // A slot more than a tile apart would fall on the same cache sets as its neighbours.
        let bytes = (self.tile * self.slot_bytes).next_multiple_of(64) + 64;
        self.loads.iter_mut().for_each(|l| {
            l.tile_at *= bytes;
            l.raw_at *= bytes;
        });
        self.ops.iter_mut().for_each(|o| o.tile_at *= bytes);
        self.stores.iter_mut().for_each(|s| s.raw_at *= bytes);
        self.scratch *= bytes;
        self.spread_at *= bytes;
        self.slot_bytes = bytes;
    }
}

/// The loads from `input`, if each of them lies there as `map` says.
fn over(kernel: &Kernel, map: &Map, input: u32) -> SmallVec<[u16; 2]> {
    let mut out = SmallVec::new();
    for (i, load) in kernel.loads.iter().enumerate() {
        match &load.from {
            Source::Mem { storage, map: from } if *storage == input => {
                if from != map || load.row {
                    return SmallVec::new();
                }
                out.push(i as u16);
            }
            _ => {}
        }
    }
    out
}

/// Powers with a common constant exponent are simpler ops.
fn power(lane: Lane, loads: &[LoadAt], exponent: u16) -> Do {
    let plain = Do::Binary(Binary::Pow);
    if !matches!(lane, Lane::F32 | Lane::F64) {
        return plain;
    }
    let Some(LoadAt { from: From::Num(Num::Const(x)), .. }) = loads.get(exponent as usize) else {
        return plain;
    };
    let x: Scalar = *x;
    match x.as_f64() {
        2.0 => Do::Square,
        3.0 => Do::Cube,
        0.5 => Do::Unary(Unary::Sqrt),
        -0.5 => Do::Unary(Unary::Rsqrt),
        -1.0 => Do::Unary(Unary::Recip),
        _ => plain,
    }
}

fn work_cost(work: &Do) -> usize {
    match work {
        Do::Unary(op) => match op {
            Unary::Neg | Unary::Abs | Unary::Sign | Unary::Relu | Unary::Not => 1,
            Unary::Floor | Unary::Ceil | Unary::Round | Unary::Trunc => 1,
            Unary::Sqrt | Unary::Rsqrt | Unary::Recip => 3,
            _ => 6,
        },
        Do::Binary(op) => match op {
            Binary::Pow => 40,
            Binary::Rem | Binary::FloorDiv => 20,
            Binary::Div => 2,
            _ => 1,
        },
        Do::Where | Do::Cast | Do::Square | Do::Cube | Do::Fold(_) => 1,
    }
}
