//! A product of matrices as cuBLASLt takes it: leading dimensions, strided batches, and what has to be packed first.
//!
//! The library counts columns first, so it is asked for the transposed product: its left side is the plan's b, its right
//! side the plan's a, and every matrix is seen as its transpose.

use crate::launch::{Launches, Word};
use crate::matmul_pack::{IntSide, collapsed, dense_but, int_product, pack, positions};
use gt_compiler::{
    ALIGN, Calc, Code, Kernel, Load, Map, Matmul, Place, Plan, Reg, Source, Store, Strides, Tensor,
};
use gt_ir::{Binary, DType, Shape, Slot, Unary};

/// Where a matrix starts.
#[derive(Clone, PartialEq, Debug)]
pub enum Origin {
    /// In a storage, at the first element of a map.
    Storage { storage: u32, start: Map },
    /// This many bytes into the workspace.
    Scratch(usize),
}

impl Origin {
    /// The address for one run.
    pub fn address(&self, size: usize, addresses: &[u64], slots: &[Slot], workspace: u64) -> u64 {
        match self {
            Origin::Storage { storage, start } => {
                addresses[*storage as usize].wrapping_add_signed((start.offset(slots) * size as isize) as i64)
            }
            Origin::Scratch(at) => workspace + *at as u64,
        }
    }

    /// What the address is a multiple of in every run, slice starts included.
    fn alignment(&self, size: usize, plan: &Plan) -> usize {
        match self {
            Origin::Storage { storage, start } => {
                let bytes = |n: isize| power(n * size as isize);
                let inside = start.slots.iter().map(|&(_, factor)| bytes(factor));
                let whole = match plan.storages[*storage as usize].place {
                    Place::Input(_) | Place::Out => ALIGN,
                    Place::Arena(offset) => power(offset as isize),
                };
                inside.fold(bytes(start.offset).min(whole), usize::min)
            }
            Origin::Scratch(at) => power(*at as isize),
        }
    }

    /// The slots that decide where the matrix lies.
    pub fn slots(&self) -> impl Iterator<Item = u32> + '_ {
        let slots = match self {
            Origin::Storage { start, .. } => &start.slots[..],
            Origin::Scratch(_) => &[],
        };
        slots.iter().map(|(slot, _)| *slot)
    }
}

/// The largest power of two, up to what whole storages have, that divides `bytes`.
fn power(bytes: isize) -> usize {
    1 << bytes.trailing_zeros().min(ALIGN.trailing_zeros())
}

/// A matrix as the library sees it: columns first, `ld` elements apart, perhaps to be transposed.
#[derive(Clone, PartialEq, Debug)]
pub struct Side {
    pub origin: Origin,
    pub transposed: bool,
    pub rows: usize,
    pub cols: usize,
    pub ld: usize,
    /// Elements from one batch to the next.
    pub batch: isize,
    /// What the address of every batch is a multiple of, in bytes.
    pub alignment: usize,
}

/// What is added to the product before it is rounded.
#[derive(Clone, PartialEq, Debug)]
pub enum Bias {
    None,
    /// One number for each column of the plan's result, which the library adds as its epilogue.
    Columns(Side),
    /// A matrix of the result's shape.
    Matrix(Side),
    /// What lies in the result already.
    InPlace,
}

/// A product of floats.
#[derive(Clone, PartialEq, Debug)]
pub struct Form {
    pub dtype: DType,
    pub tf32: bool,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    /// Products of one call.
    pub batches: usize,
    pub a: Side,
    pub b: Side,
    pub bias: Bias,
    /// The bias is added by another instruction.
    pub residual: bool,
    /// A relu comes last.
    pub relu: bool,
    pub out: Side,
    /// Where the matrices of each call lie, in elements from those of the first: a, b, bias, out.
    pub calls: Vec<[isize; 4]>,
}

impl Form {
    /// The product alone, without what other instructions do with it. Its algorithm is the one to take with them, too (C7).
    pub fn bare(&self) -> Form {
        let bias = if self.residual { Bias::None } else { self.bias.clone() };
        let mut calls = self.calls.clone();
        if self.residual {
            calls.iter_mut().for_each(|call| call[2] = 0);
        }
        Form { bias, residual: false, relu: false, calls, ..self.clone() }
    }
}

/// A matmul made ready: launches, whose scratch lies at the start of the workspace, then perhaps a product.
#[derive(Clone, Debug)]
pub struct Ready {
    pub before: Launches,
    pub form: Option<Form>,
}

/// How much is packed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pack {
    /// What no leading dimension says.
    Least,
    /// And the bias, which is written into the result first.
    Bias,
    /// And all operands.
    All,
}

/// More calls than this for one product cost more than packing its operands.
const CALLS: usize = 16;

/// Operands of up to so many bytes whose start is a slot are packed: a captured graph cannot be told where the library reads,
/// and a copy costs less than calls one by one.
const MOVING: usize = 4 << 20;

/// Brings a matmul into the library's form.
pub fn ready(mm: &Matmul, plan: &Plan, how: Pack) -> Ready {
    let (dtype, batches) = (mm.a.dtype, mm.batch.numel());
    let mut before = Launches::default();
    if batches * mm.m * mm.n == 0 {
        return Ready { before, form: None };
    }
    if mm.k == 0 {
        fill_out(mm, &mut before);
        return Ready { before, form: None };
    }
    if !dtype.is_float() {
        return Ready { before: integers(mm), form: None };
    }
    let all = [(true, true)];
    let choices = [(false, false), (mm.m <= mm.n, mm.m > mm.n), (mm.m > mm.n, mm.m <= mm.n), (true, true)];
    let choices = if how == Pack::All { &all[..] } else { &choices[..] };
    let mut best: Option<Ready> = None;
    for &(pack_a, pack_b) in choices {
        let next = arranged(mm, plan, how, pack_a, pack_b);
        let calls = |r: &Ready| r.form.as_ref().map_or(0, |f| f.calls.len());
        if best.as_ref().is_none_or(|b| calls(&next) < calls(b)) {
            best = Some(next);
        }
        if best.as_ref().is_some_and(|b| calls(b) <= CALLS) {
            break;
        }
    }
    best.unwrap_or(Ready { before, form: None })
}

/// The operands as they are or packed, and the batches of one call chosen.
fn arranged(mm: &Matmul, plan: &Plan, how: Pack, pack_a: bool, pack_b: bool) -> Ready {
    let mut before = Launches::default();
    let dtype = mm.a.dtype;
    let a = Operand::new(&mm.a, &mut before, pack_a, how == Pack::All);
    let b = Operand::new(&mm.b, &mut before, pack_b, how == Pack::All);
    let bias = bias_of(mm, &mut before, how);
    let added = bias.operand();
    let mut out_shape = mm.batch.clone();
    out_shape.extend([mm.m, mm.n]);
    let out = Operand {
        origin: Origin::Storage { storage: mm.out, start: start_of(&Map::dense(&out_shape)) },
        strides: Map::dense(&out_shape).strides,
    };

    // The batch dimensions, those that advance evenly in every operand taken together.
    let rank = mm.batch.len();
    let nothing = Strides::from_elem(0, rank);
    let of = [&a.strides, &b.strides, added.map_or(&nothing, |x| &x.strides), &out.strides];
    let mut dims: Vec<(usize, [isize; 4])> = Vec::new();
    for d in (0..rank).filter(|&d| mm.batch[d] != 1) {
        let (n, steps) = (mm.batch[d], of.map(|s| s[d]));
        match dims.last_mut() {
            Some((size, wide)) if (0..4).all(|i| wide[i] == steps[i] * n as isize) => {
                (*size, *wide) = (*size * n, steps)
            }
            _ => dims.push((n, steps)),
        }
    }
    let strided = (0..dims.len()).filter(|&d| dims[d].1.iter().all(|&s| s >= 0)).max_by_key(|&d| dims[d].0);
    let (batches, steps) = strided.map_or((1, [0; 4]), |d| dims.remove(d));
    let sizes: Vec<usize> = dims.iter().map(|d| d.0).collect();
    let each: [Vec<isize>; 4] =
        [0, 1, 2, 3].map(|i| positions(&sizes, &dims.iter().map(|d| d.1[i]).collect::<Vec<_>>()));
    let calls: Vec<[isize; 4]> = (0..each[0].len()).map(|c| [0, 1, 2, 3].map(|i| each[i][c])).collect();

    let side = |x: &Operand, rows: usize, cols: usize, i: usize| {
        let fit = x.fit(rows, cols).unwrap_or((false, cols));
        let moves = each[i].iter().chain([&steps[i]]).map(|&s| power(s * dtype.size() as isize));
        let alignment = moves.fold(x.origin.alignment(dtype.size(), plan), usize::min);
        let (transposed, ld) = fit;
        let (rows, cols) = if transposed { (rows, cols) } else { (cols, rows) };
        Side { origin: x.origin.clone(), transposed, rows, cols, ld, batch: steps[i], alignment }
    };
    let bias = match &bias {
        Added::None => Bias::None,
        Added::InPlace => Bias::InPlace,
        Added::Columns(x) => Bias::Columns(side(x, 1, mm.n, 2)),
        Added::Matrix(x) => Bias::Matrix(side(x, mm.m, mm.n, 2)),
    };
    let form = Form {
        dtype,
        tf32: mm.tf32 && dtype == DType::F32,
        m: mm.m,
        n: mm.n,
        k: mm.k,
        batches,
        a: side(&a, mm.m, mm.k, 0),
        b: side(&b, mm.k, mm.n, 1),
        bias,
        residual: mm.residual.is_some(),
        relu: mm.relu,
        out: side(&out, mm.m, mm.n, 3),
        calls,
    };
    Ready { before, form: Some(form) }
}

/// An operand in place or packed: strides of all batch dimensions, rows and columns.
struct Operand {
    origin: Origin,
    strides: Strides,
}

impl Operand {
    /// An operand where it lies, if the library can take it there and nobody wants it packed.
    fn new(t: &Tensor, before: &mut Launches, packed: bool, whole: bool) -> Operand {
        let rank = t.shape.len();
        let there = Operand {
            origin: Origin::Storage { storage: t.storage, start: start_of(&t.map) },
            strides: t.map.strides.clone(),
        };
        let keep = if whole || packed { 0 } else { rank - 2 };
        let fits = there.fit(t.shape[rank - 2], t.shape[rank - 1]);
        let moving = !t.map.slots.is_empty() && t.shape.numel() * t.dtype.size() <= MOVING;
        match fits {
            Some(_) if !packed && !moving => there,
            // In the order of its memory, so that rows are read as they lie.
            Some((true, _)) if !packed => Operand::packed(&turned(t), before, keep).turned(),
            _ => Operand::packed(t, before, keep),
        }
    }

    /// A copy in the workspace, in which the first `keep` dimensions stay broadcast if they are.
    fn packed(t: &Tensor, before: &mut Launches, keep: usize) -> Operand {
        let (sizes, strides) = dense_but(&t.shape, &t.map, keep);
        let at = before.scratch;
        let bytes = sizes.iter().product::<usize>() * t.dtype.size();
        before.scratch = (at + bytes).next_multiple_of(ALIGN);
        pack(&mut before.list, Some((t.storage, &t.map)), &sizes, t.dtype, |more| {
            (Word::Scratch(at + more), 0)
        });
        Operand { origin: Origin::Scratch(at), strides }
    }

    /// The same matrices with rows for columns.
    fn turned(mut self) -> Operand {
        let rank = self.strides.len();
        self.strides.swap(rank - 2, rank - 1);
        self
    }

    /// (transposed, leading dimension) of a matrix of this many rows and columns, if there is one.
    fn fit(&self, rows: usize, cols: usize) -> Option<(bool, usize)> {
        let last = self.strides.len() - 1;
        let (row, col) = (self.strides[last - 1], self.strides[last]);
        if (col == 1 || cols == 1) && (rows == 1 || row >= cols as isize) {
            Some((false, if rows == 1 { cols } else { row as usize }))
        } else if (row == 1 || rows == 1) && (cols == 1 || col >= rows as isize) {
            Some((true, if cols == 1 { rows } else { col as usize }))
        } else {
            None
        }
    }
}

/// The same matrices with rows for columns.
fn turned(t: &Tensor) -> Tensor {
    let (mut out, rank) = (t.clone(), t.shape.len());
    out.shape.swap(rank - 2, rank - 1);
    out.map.strides.swap(rank - 2, rank - 1);
    out
}

/// The map without its strides: where it starts.
fn start_of(map: &Map) -> Map {
    Map { strides: Strides::new(), offset: map.offset, slots: map.slots.clone() }
}

enum Added {
    None,
    Columns(Operand),
    Matrix(Operand),
    InPlace,
}

impl Added {
    fn operand(&self) -> Option<&Operand> {
        match self {
            Added::Columns(x) | Added::Matrix(x) => Some(x),
            Added::None | Added::InPlace => None,
        }
    }
}

/// How the bias is added. The library has no epilogue for doubles.
fn bias_of(mm: &Matmul, before: &mut Launches, how: Pack) -> Added {
    let Some(t) = mm.bias.as_ref().or(mm.residual.as_ref()) else { return Added::None };
    let rank = t.shape.len();
    let (row, col) = (t.map.strides[rank - 2], t.map.strides[rank - 1]);
    let there = Operand {
        origin: Origin::Storage { storage: t.storage, start: start_of(&t.map) },
        strides: t.map.strides.clone(),
    };
    let same_rows = row == 0 || mm.m == 1;
    if how == Pack::Least && same_rows && t.dtype != DType::F64 {
        if (col == 1 || mm.n == 1) && aligned(&there, t) {
            return Added::Columns(there);
        }
        // A row of its own, once for all rows.
        let mut one = t.clone();
        one.shape[rank - 2] = 1;
        return Added::Columns(Operand::packed(&one, before, rank - 2));
    }
    let fits = there.fit(mm.m, mm.n) == Some((false, row.max(mm.n as isize) as usize));
    if how == Pack::Least && fits && !same_rows {
        return Added::Matrix(there);
    }
    fill_out(mm, before);
    Added::InPlace
}

/// True if the library may read a bias in whole vectors: 16 bytes.
fn aligned(x: &Operand, t: &Tensor) -> bool {
    let Origin::Storage { start, .. } = &x.origin else { return true };
    let batch = &x.strides[..x.strides.len() - 2];
    let moves = start.slots.iter().map(|&(_, factor)| factor).chain([start.offset]);
    moves.chain(batch.iter().copied()).all(|n| power(n * t.dtype.size() as isize) >= 16)
}

/// What follows a product in launches of its own, where the library does not do it.
pub fn after(mm: &Matmul, plan: &Plan) -> Launches {
    let (dtype, mut shape) = (mm.a.dtype, mm.batch.clone());
    shape.extend([mm.m, mm.n]);
    let load = |storage: u32, map: Map| Load { dtype, from: Source::Mem { storage, map }, row: false };
    let mut loads = vec![load(mm.out, Map::dense(&shape))];
    loads.extend(mm.residual.iter().map(|t| load(t.storage, t.map.clone())));
    let (mut code, mut reg) = (Vec::new(), 0);
    let sum = mm.residual.is_some().then_some((Calc::Binary(Binary::Add), 1));
    for (calc, more) in sum.into_iter().chain(mm.relu.then_some((Calc::Unary(Unary::Relu), 0))) {
        code.push(Code { calc, dtype, args: (reg..=reg + more).collect(), row: false });
        reg = (loads.len() + code.len() - 1) as Reg;
    }
    let store = Store { reg, dtype, storage: mm.out, map: Map::dense(&shape), row: false };
    let rows = shape.len();
    crate::plain::kernel(&Kernel { shape, rows, loads, code, stores: vec![store], fold: None }, plan)
}

/// Writes the bias into the result, or zeros.
fn fill_out(mm: &Matmul, before: &mut Launches) {
    let mut shape = mm.batch.clone();
    shape.extend([mm.m, mm.n]);
    let from = mm.bias.as_ref().map(|t| (t.storage, &t.map));
    pack(&mut before.list, from, &shape, mm.a.dtype, |more| (Word::Address(mm.out), more));
}

/// A product of integers by a kernel of our own, batches at even distances.
fn integers(mm: &Matmul) -> Launches {
    let mut before = Launches::default();
    let mut even = |t: &Tensor| {
        let rank = t.shape.len();
        let (sizes, steps) = collapsed(&t.shape[..rank - 2], &t.map.strides[..rank - 2]);
        let [row, col] = [t.map.strides[rank - 2], t.map.strides[rank - 1]];
        if sizes.len() <= 1 {
            let batch = steps.first().copied().unwrap_or(0);
            let at = Word::Address(t.storage);
            return IntSide { at, start: Some(start_of(&t.map)), strides: [batch, row, col] };
        }
        let packed = Operand::packed(t, &mut before, 0);
        let Origin::Scratch(at) = packed.origin else { unreachable!("packed into the workspace") };
        let matrix: Shape = t.shape[rank - 2..].into();
        let strides = [matrix.numel() as isize, packed.strides[rank - 2], packed.strides[rank - 1]];
        IntSide { at: Word::Scratch(at), start: None, strides }
    };
    let sides = [Some(even(&mm.a)), Some(even(&mm.b)), mm.bias.as_ref().map(even)];
    let more = int_product([mm.batch.numel(), mm.m, mm.n, mm.k], mm.a.dtype, sides, mm.out);
    before.list.extend(more.list);
    before
}

#[cfg(test)]
#[path = "matmul_tests.rs"]
mod tests;
