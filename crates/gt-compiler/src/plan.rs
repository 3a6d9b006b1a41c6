//! The plan: steps over storages, with nothing in it that only one kind of device understands.

use crate::map::Map;
use gt_ir::{
    ArgKind, Binary, DType, Dist, Exchange, Ints, ReduceKind, Scalar, ScanKind, ScatterMode, Shape, Slot,
    Unary,
};
use smallvec::SmallVec;

/// A program made ready: run the steps in order.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Inputs first, in order.
    pub storages: Vec<Storage>,
    pub steps: Vec<Step>,
    /// Where each live-out is found; several may name one storage.
    pub outs: Vec<u32>,
    /// Bytes of the arena.
    pub arena: usize,
}

/// Memory that steps read and write.
#[derive(Clone, Debug)]
pub struct Storage {
    pub bytes: usize,
    pub place: Place,
    /// A dying input whose buffer serves as this storage if nobody else holds it (C5). No step that can fail
    /// comes after the first write.
    pub reuse: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// The buffer of a live-in.
    Input(u32),
    /// A buffer of its own, for a live-out.
    Out,
    /// This many bytes into the arena.
    Arena(usize),
}

/// Places in the arena start at multiples of this: what cuBLASLt likes best, and a cache line several times over.
pub const ALIGN: usize = 256;

/// A tensor in a storage.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tensor {
    pub storage: u32,
    pub dtype: DType,
    pub shape: Shape,
    pub map: Map,
}

/// A number known when the plan is made or when it runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Num {
    Const(Scalar),
    Slot(u32),
}

impl Num {
    /// The number for one run.
    #[inline]
    pub fn get(self, slots: &[Slot]) -> Scalar {
        match self {
            Num::Const(x) => x,
            Num::Slot(k) => match &slots[k as usize] {
                Slot::Num(x) => *x,
                Slot::Data(_) => Scalar::Int(0),
            },
        }
    }
}

/// One piece of work.
#[derive(Clone, Debug)]
pub struct Step {
    /// The (last) instruction it does.
    pub instr: u32,
    /// The other instructions whose work is fused into it, for whoever asks where time went.
    pub fused: Vec<u32>,
    pub work: Work,
}

/// What a step does. Unless said otherwise operands are packed and the result `out` is dense.
#[derive(Clone, Debug)]
pub enum Work {
    /// Elementwise work, perhaps ending in a reduction.
    Kernel(Kernel),
    /// Copies a whole storage; nothing where both are one memory (`Storage::reuse`).
    Copy {
        from: u32,
        to: u32,
    },
    /// Fails unless every index lies in `-size..size` (`-size` only where `wrap`, otherwise from 0).
    CheckIndex {
        index: Tensor,
        size: usize,
        wrap: bool,
    },
    /// Fails if an integer divisor is zero.
    CheckNonzero {
        divisor: Operand,
        dtype: DType,
    },
    /// Only where `CompileOptions::takes` says so.
    Attention(Box<Attention>),
    /// Only where `CompileOptions::takes` says so.
    AttentionGrad(Box<AttentionGrad>),
    /// `a` and `b` have the maps of matrices: `batch` dimensions, then rows, then columns; so has `bias`.
    Matmul(Box<Matmul>),
    Random {
        dist: Dist,
        dtype: DType,
        len: usize,
        key: Num,
        offset: Num,
        out: u32,
    },
    Data {
        slot: u32,
        out: u32,
    },
    Gather {
        dim: usize,
        x: Tensor,
        index: Tensor,
        out: u32,
    },
    /// Writes into `out`, which holds the base.
    Scatter {
        dim: usize,
        mode: ScatterMode,
        base: Shape,
        index: Tensor,
        src: Operand,
        dtype: DType,
        out: u32,
    },
    Take {
        dim: usize,
        x: Tensor,
        index: Tensor,
        out: u32,
    },
    /// Writes into `out`, which holds the base.
    TakePut {
        dim: usize,
        mode: ScatterMode,
        base: Shape,
        index: Tensor,
        src: Tensor,
        out: u32,
    },
    ArgReduce {
        kind: ArgKind,
        dim: usize,
        x: Tensor,
        out: u32,
    },
    Scan {
        kind: ScanKind,
        dim: usize,
        x: Tensor,
        out: u32,
    },
    /// The first `k` elements along `dim` in order, equals in theirs, and where they were.
    Sort {
        dim: usize,
        descending: bool,
        k: usize,
        x: Tensor,
        values: u32,
        indices: u32,
    },
    Softmax {
        log: bool,
        dim: usize,
        x: Tensor,
        out: u32,
    },
    /// What this part does with the others of its gang. All parts have the same ones in the same order.
    Collective(Box<Together>),
}

/// A collective: one result for every operand.
#[derive(Clone, Debug)]
pub struct Together {
    pub axis: u8,
    pub what: Exchange,
    pub xs: Vec<Tensor>,
    pub outs: Vec<u32>,
}

/// Attention taken whole. Tensors may have any map whose last dimension is packed (see `Attention::mask`).
#[derive(Clone, Debug)]
pub struct Attention {
    /// Row i sees columns up to i.
    pub causal: bool,
    /// `[.., heads, rows, d]`.
    pub q: Tensor,
    /// `[.., key heads, columns, d]`; query head h goes with key head `h * key heads / heads`.
    pub k: Tensor,
    /// `[.., key heads, columns, e]`.
    pub v: Tensor,
    pub scale: Num,
    /// In the shape of the scores, `[.., heads, rows, columns]`; stride 0 where it is broadcast, also along a row.
    /// A bool is true where a column is seen, a number (of q's type, or `f32` for halves) is added to the score.
    pub mask: Option<Tensor>,
    /// `[.., heads, rows, e]` of q's type, dense or, with one leading dimension at most, in another order of dimensions but
    /// the last; zeros where a row sees nothing.
    pub out: Tensor,
    /// Dense `[.., heads, rows]`, `f32` (`f64` for doubles): log-sum-exp of the masked scores, -inf where a row sees
    /// nothing.
    pub lse: u32,
}

/// The gradient of attention taken whole; maps as in `Attention`.
#[derive(Clone, Debug)]
pub struct AttentionGrad {
    pub causal: bool,
    pub q: Tensor,
    pub k: Tensor,
    pub v: Tensor,
    /// What `Attention` gave.
    pub out: Tensor,
    pub lse: Tensor,
    /// The gradient of `out`.
    pub dout: Tensor,
    pub scale: Num,
    pub mask: Option<Tensor>,
    /// In the shape and type of q, k and v, with maps as that of `Attention::out`.
    pub dq: Tensor,
    pub dk: Tensor,
    pub dv: Tensor,
}

#[derive(Clone, Debug)]
pub enum Operand {
    Tensor(Tensor),
    Num(Num),
}

#[derive(Clone, Debug)]
pub struct Matmul {
    pub batch: Shape,
    pub m: usize,
    /// Rows of one product of the instruction, of which `m` may hold several: how sums are ordered may depend on this
    /// and never on `m` (C7).
    pub rows: usize,
    pub n: usize,
    pub k: usize,
    pub a: Tensor,
    pub b: Tensor,
    /// Added before the sum is rounded.
    pub bias: Option<Tensor>,
    /// Added to the rounded product, then a relu: what other instructions do with it (`CompileOptions::epilogues`).
    pub residual: Option<Tensor>,
    pub relu: bool,
    /// `f32` operands may be rounded to TF32 where that is quicker.
    pub tf32: bool,
    pub out: u32,
}

/// A register of a kernel: loads come first, then the results of the code in order.
pub type Reg = u16;

/// Elementwise work over an iteration space: loads, a small program of rows of the op table, stores.
///
/// The leading `rows` dimensions number rows, the others are the elements of a row. `Calc::Fold` turns a row into one
/// value; what is computed from such values alone has one value per row too (`row`). A value per row meets
/// values per element by being the same for all of its row. Maps of what is per row do not move within a row.
#[derive(Clone, Debug)]
pub struct Kernel {
    pub shape: Shape,
    /// The rank of `shape` where all values are per element.
    pub rows: usize,
    pub loads: Vec<Load>,
    pub code: Vec<Code>,
    pub stores: Vec<Store>,
    /// At most one reduction of a register, on top of the stores.
    pub fold: Option<Fold>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Load {
    pub dtype: DType,
    pub from: Source,
    /// One value per row.
    pub row: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    Mem {
        storage: u32,
        map: Map,
    },
    Num(Num),
    /// `start + position * step`, the position given by the map.
    Iota {
        start: Num,
        step: Num,
        map: Map,
    },
}

/// One instruction of a kernel. Its result is rounded to `dtype`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Code {
    pub calc: Calc,
    pub dtype: DType,
    pub args: SmallVec<[Reg; 3]>,
    /// One value per row.
    pub row: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Calc {
    Unary(Unary),
    Binary(Binary),
    Where,
    Cast,
    /// Reduces each row.
    Fold(ReduceKind),
}

#[derive(Clone, Debug)]
pub struct Store {
    pub reg: Reg,
    pub dtype: DType,
    pub storage: u32,
    pub map: Map,
    /// One value per row.
    pub row: bool,
}

/// Reduces a register over `dims` of the iteration space into the dense `storage`.
#[derive(Clone, Debug)]
pub struct Fold {
    pub kind: ReduceKind,
    pub dims: Ints,
    pub reg: Reg,
    pub dtype: DType,
    pub storage: u32,
}

impl Plan {
    /// How many steps have to be done until a live-out has its value.
    pub fn made_after(&self, out: usize) -> usize {
        let writes = |step: &Step| {
            let mut found = false;
            step.writes(|s| found |= s == self.outs[out]);
            found
        };
        self.steps.iter().rposition(writes).map_or(0, |i| i + 1)
    }

    /// How many steps have to be done until none is left that can fail.
    pub fn sure_after(&self) -> usize {
        self.steps.iter().rposition(Step::can_fail).map_or(0, |i| i + 1)
    }
}

impl Kernel {
    /// Elements of a row.
    pub fn row_len(&self) -> usize {
        self.shape[self.rows..].iter().product()
    }

    /// True if something has one value per row.
    pub fn has_rows(&self) -> bool {
        self.rows < self.shape.len()
    }
}

impl Step {
    /// True if the step can fail at run time.
    pub fn can_fail(&self) -> bool {
        matches!(self.work, Work::CheckIndex { .. } | Work::CheckNonzero { .. } | Work::Collective(_))
    }

    /// Calls `f` with every storage the step reads.
    pub fn reads(&self, mut f: impl FnMut(u32)) {
        match &self.work {
            Work::Kernel(k) => {
                for load in &k.loads {
                    if let Source::Mem { storage, .. } = &load.from {
                        f(*storage);
                    }
                }
            }
            Work::Copy { from, .. } => f(*from),
            Work::CheckIndex { index, .. } => f(index.storage),
            Work::CheckNonzero { divisor, .. } => divisor.storage().into_iter().for_each(f),
            Work::Matmul(mm) => {
                f(mm.a.storage);
                f(mm.b.storage);
                mm.bias.iter().chain(&mm.residual).for_each(|t| f(t.storage));
            }
            Work::Attention(a) => {
                [&a.q, &a.k, &a.v].iter().for_each(|t| f(t.storage));
                a.mask.iter().for_each(|t| f(t.storage));
            }
            Work::AttentionGrad(a) => {
                [&a.q, &a.k, &a.v, &a.out, &a.lse, &a.dout].iter().for_each(|t| f(t.storage));
                a.mask.iter().for_each(|t| f(t.storage));
            }
            Work::Random { .. } | Work::Data { .. } => {}
            Work::Gather { x, index, .. } | Work::Take { x, index, .. } => {
                f(x.storage);
                f(index.storage);
            }
            Work::Scatter { index, src, .. } => {
                f(index.storage);
                src.storage().into_iter().for_each(f);
            }
            Work::TakePut { index, src, .. } => {
                f(index.storage);
                f(src.storage);
            }
            Work::Collective(c) => c.xs.iter().for_each(|t| f(t.storage)),
            Work::ArgReduce { x, .. }
            | Work::Scan { x, .. }
            | Work::Sort { x, .. }
            | Work::Softmax { x, .. } => f(x.storage),
        }
    }

    /// Calls `f` with every storage the step writes, wholly or in part.
    pub fn writes(&self, mut f: impl FnMut(u32)) {
        match &self.work {
            Work::Kernel(k) => {
                k.stores.iter().for_each(|s| f(s.storage));
                k.fold.iter().for_each(|r| f(r.storage));
            }
            Work::Copy { to, .. } => f(*to),
            Work::CheckIndex { .. } | Work::CheckNonzero { .. } => {}
            Work::Matmul(mm) => f(mm.out),
            Work::Attention(a) => [a.out.storage, a.lse].into_iter().for_each(f),
            Work::AttentionGrad(a) => [&a.dq, &a.dk, &a.dv].into_iter().for_each(|t| f(t.storage)),
            Work::Random { out, .. }
            | Work::Data { out, .. }
            | Work::Gather { out, .. }
            | Work::Scatter { out, .. }
            | Work::Take { out, .. }
            | Work::TakePut { out, .. }
            | Work::ArgReduce { out, .. }
            | Work::Scan { out, .. }
            | Work::Softmax { out, .. } => f(*out),
            Work::Collective(c) => c.outs.iter().for_each(|s| f(*s)),
            Work::Sort { values, indices, .. } => {
                f(*values);
                f(*indices);
            }
        }
    }
}

impl Operand {
    fn storage(&self) -> Option<u32> {
        match self {
            Operand::Tensor(t) => Some(t.storage),
            Operand::Num(_) => None,
        }
    }
}

/// The plan of a program in its text form, for a backend that takes every composite whole.
#[cfg(test)]
pub(crate) fn of_text(program: &str) -> Plan {
    let structure = gt_ir::text::parse_structure(program).unwrap();
    let options = crate::CompileOptions { takes: |_, _| true, ..crate::CompileOptions::default() };
    crate::compile(&structure, &structure.check().unwrap(), options).unwrap()
}
