//! Kernels of a plan in the form that text and descriptions are written from: few dimensions, loads and code as one list of
//! instructions, and reductions turned so that what is reduced lies at one end of the iteration space.

use crate::launch::Word;
use crate::table;
use gt_compiler::{Calc, Kernel, Map, Num, Plan, Source};
use gt_ir::{Binary, DType, ReduceKind, Scalar, Unary, elementwise::Gives};

/// The type in which elements are computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Computing {
    F32,
    F64,
    I64,
}

impl Computing {
    pub fn of(dtype: DType) -> Computing {
        match dtype {
            DType::F16 | DType::BF16 | DType::F32 => Computing::F32,
            DType::F64 => Computing::F64,
            DType::Bool | DType::U8 | DType::I8 | DType::I16 | DType::I32 | DType::I64 => Computing::I64,
        }
    }

    /// Its name in CUDA.
    pub fn text(self) -> &'static str {
        match self {
            Computing::F32 => "float",
            Computing::F64 => "double",
            Computing::I64 => "i64",
        }
    }

    /// The element type of the same values.
    pub fn dtype(self) -> DType {
        match self {
            Computing::F32 => DType::F32,
            Computing::F64 => DType::F64,
            Computing::I64 => DType::I64,
        }
    }
}

/// Memory that an instruction reads or writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Base {
    Storage(u32),
    /// This many bytes into the step's scratch memory.
    Scratch(usize),
}

impl Base {
    pub fn word(self) -> Word {
        match self {
            Base::Storage(s) => Word::Address(s),
            Base::Scratch(at) => Word::Scratch(at),
        }
    }
}

/// Positions over the dimensions of a `Low`: a start, perhaps moved by slots, and strides.
#[derive(Clone, PartialEq, Debug)]
pub struct At {
    /// Only its offset and slots count.
    pub start: Map,
    pub strides: Vec<isize>,
}

#[derive(Clone, PartialEq, Debug)]
pub enum What {
    Mem(Base, At),
    Num(Num),
    Iota(Num, Num, At),
    /// A unary row or an extra one: its number and its CUDA name.
    Unary(u8, String, usize),
    Binary(Binary, usize, usize),
    Where(usize, usize, usize),
    Cast(usize),
    Fold(ReduceKind, usize),
}

/// An instruction; its result is the register of the same number.
#[derive(Clone, Debug)]
pub struct Ins {
    pub what: What,
    pub dtype: DType,
    /// One value per row.
    pub row: bool,
}

#[derive(Clone, Debug)]
pub struct Put {
    pub reg: usize,
    pub dtype: DType,
    pub base: Base,
    pub at: At,
    pub row: bool,
}

/// The reduction of columns that ends a kernel.
#[derive(Clone, Debug)]
pub struct Columns {
    pub kind: ReduceKind,
    pub reg: usize,
    pub dtype: DType,
    pub base: Base,
}

#[derive(Clone, Debug)]
pub struct Low {
    pub dims: Vec<usize>,
    /// Leading dimensions: those of the rows, or those reduced where columns are. All where neither is so.
    pub lead: usize,
    pub ins: Vec<Ins>,
    pub puts: Vec<Put>,
    pub columns: Option<Columns>,
    /// Writes memory that was given to the program, and so must not run after a failure (C5).
    pub guarded: bool,
}

impl What {
    /// The registers it reads.
    pub fn args(&self) -> impl Iterator<Item = usize> {
        let args: [Option<usize>; 3] = match *self {
            What::Mem(..) | What::Num(_) | What::Iota(..) => [None; 3],
            What::Unary(_, _, a) | What::Cast(a) | What::Fold(_, a) => [Some(a), None, None],
            What::Binary(_, a, b) => [Some(a), Some(b), None],
            What::Where(a, b, c) => [Some(a), Some(b), Some(c)],
        };
        args.into_iter().flatten()
    }
}

impl Low {
    pub fn new(kernel: &Kernel, plan: &Plan) -> Low {
        let rank = kernel.shape.len();
        let mut low = Low {
            dims: kernel.shape.to_vec(),
            lead: kernel.rows,
            ins: Vec::with_capacity(kernel.loads.len() + kernel.code.len() + 1),
            puts: Vec::with_capacity(kernel.stores.len() + 1),
            columns: None,
            guarded: false,
        };
        let at = |map: &Map| At { start: map.clone(), strides: map.strides.to_vec() };
        for load in &kernel.loads {
            let what = match &load.from {
                Source::Mem { storage, map } => What::Mem(Base::Storage(*storage), at(map)),
                Source::Num(x) => What::Num(*x),
                Source::Iota { start, step, map } => What::Iota(*start, *step, at(map)),
            };
            // Numbers are written down wherever they are used, so they are of no row.
            let row = load.row && !matches!(what, What::Num(_));
            low.ins.push(Ins { what, dtype: load.dtype, row });
        }
        for code in &kernel.code {
            let what = low.calc(code.calc, &code.args);
            low.ins.push(Ins { what, dtype: code.dtype, row: code.row });
        }
        for store in &kernel.stores {
            let reg = low.as_dtype(store.reg as usize, store.dtype, store.row);
            let base = Base::Storage(store.storage);
            low.puts.push(Put { reg, dtype: store.dtype, base, at: at(&store.map), row: store.row });
        }
        let folds = low.ins.iter().any(|i| i.row && !matches!(i.what, What::Mem(..)))
            || low.puts.iter().any(|p| p.row);
        if !folds {
            low.ins.iter_mut().for_each(|i| i.row = false);
            low.lead = rank;
        }
        if let Some(fold) = &kernel.fold {
            let inside = |d: usize| fold.dims.contains(&d);
            let last = (0..rank).rev().find(|&d| kernel.shape[d] != 1);
            let by_row = last.is_none_or(inside);
            let reg = low.as_dtype(fold.reg as usize, fold.dtype, false);
            let (kept, reduced): (Vec<usize>, Vec<usize>) = (0..rank).partition(|&d| !inside(d));
            let base = Base::Storage(fold.storage);
            low.lead = if by_row { kept.len() } else { reduced.len() };
            let order: Vec<usize> = if by_row {
                kept.iter().chain(&reduced).copied().collect()
            } else {
                reduced.iter().chain(&kept).copied().collect()
            };
            low.permute(&order);
            if by_row {
                low.ins.push(Ins { what: What::Fold(fold.kind, reg), dtype: fold.dtype, row: true });
                let mut strides = vec![0; rank];
                let mut step = 1;
                for d in (0..low.lead).rev() {
                    strides[d] = step;
                    step *= low.dims[d] as isize;
                }
                let at = At { start: Map::constant(0), strides };
                low.puts.push(Put { reg: low.ins.len() - 1, dtype: fold.dtype, base, at, row: true });
            } else {
                low.columns = Some(Columns { kind: fold.kind, reg, dtype: fold.dtype, base });
            }
        }
        low.guarded = low
            .puts
            .iter()
            .map(|p| p.base)
            .chain(low.columns.iter().map(|c| c.base))
            .any(|base| matches!(base, Base::Storage(s) if plan.storages[s as usize].reuse.is_some()));
        low.collapse();
        low
    }

    /// Reduces rows of packed values of a computing type in scratch memory, the results going where `put` says.
    pub fn of_parts(
        rows: usize,
        len: usize,
        from: usize,
        kind: ReduceKind,
        computing: Computing,
        put: &Put,
        guarded: bool,
    ) -> Low {
        let at = At { start: Map::constant(0), strides: vec![len as isize, 1] };
        let dtype = computing.dtype();
        let ins = vec![
            Ins { what: What::Mem(Base::Scratch(from), at), dtype, row: false },
            Ins { what: What::Fold(kind, 0), dtype: put.dtype, row: true },
        ];
        let at = At { start: put.at.start.clone(), strides: vec![1, 0] };
        let puts = vec![Put { reg: 1, dtype: put.dtype, base: put.base, at, row: true }];
        Low { dims: vec![rows, len], lead: 1, ins, puts, columns: None, guarded }
    }

    /// Reduces columns of packed values of a computing type in scratch memory.
    pub fn of_column_parts(
        rows: usize,
        columns: usize,
        from: usize,
        computing: Computing,
        to: &Columns,
        guarded: bool,
    ) -> Low {
        let at = At { start: Map::constant(0), strides: vec![columns as isize, 1] };
        let ins =
            vec![Ins { what: What::Mem(Base::Scratch(from), at), dtype: computing.dtype(), row: false }];
        let columns_of = Columns { reg: 0, ..to.clone() };
        Low { dims: vec![rows, columns], lead: 1, ins, puts: vec![], columns: Some(columns_of), guarded }
    }

    pub fn numel(&self) -> usize {
        self.dims.iter().product()
    }

    /// The product of the leading dimensions.
    pub fn outer(&self) -> usize {
        self.dims[..self.lead].iter().product()
    }

    /// The product of the others.
    pub fn inner(&self) -> usize {
        self.dims[self.lead..].iter().product()
    }

    /// True if rows are reduced, or anything else is once per row.
    pub fn has_rows(&self) -> bool {
        self.columns.is_none() && (self.ins.iter().any(|i| i.row) || self.puts.iter().any(|p| p.row))
    }

    pub fn computing(&self, reg: usize) -> Computing {
        Computing::of(self.ins[reg].dtype)
    }

    /// For each register, whether a compiler may know its number, be it on one path of a branch. It would work out functions
    /// such as exp of it, and rounds otherwise than the device (C7).
    pub fn known(&self) -> Vec<bool> {
        let mut known = vec![false; self.ins.len()];
        for (i, ins) in self.ins.iter().enumerate() {
            known[i] = match &ins.what {
                What::Mem(..) => false,
                What::Num(x) => matches!(x, Num::Const(_)),
                What::Iota(start, step, _) => matches!((start, step), (Num::Const(_), Num::Const(_))),
                What::Cast(a) => known[*a] || self.ins[*a].dtype == DType::Bool,
                What::Unary(_, _, a) | What::Fold(_, a) => known[*a],
                // One path of a power gives one, as soon as its exponent is zero.
                What::Binary(Binary::Pow, ..) => true,
                What::Binary(_, a, b) => known[*a] && known[*b],
                What::Where(_, a, b) => known[*a] || known[*b],
            };
        }
        known
    }

    fn calc(&mut self, calc: Calc, args: &[u16]) -> What {
        let a = |i: usize| args[i] as usize;
        match calc {
            Calc::Unary(Unary::Not) if self.ins[a(0)].dtype == DType::Bool => {
                What::Unary(table::extra("lnot"), "gt_u_lnot".into(), a(0))
            }
            Calc::Unary(op) => What::Unary(table::unary_number(op), table::unary_name(op), a(0)),
            Calc::Binary(Binary::Pow) => self.power(a(0), a(1)),
            Calc::Binary(op) => What::Binary(op, a(0), a(1)),
            Calc::Where => What::Where(a(0), a(1), a(2)),
            Calc::Cast => What::Cast(a(0)),
            Calc::Fold(kind) => What::Fold(kind, a(0)),
        }
    }

    /// Powers with a common constant exponent are simpler rows.
    fn power(&self, x: usize, exponent: usize) -> What {
        let number = match self.ins[exponent] {
            Ins { what: What::Num(Num::Const(x)), dtype, .. } if dtype.is_float() => x.as_f64(),
            _ => f64::NAN,
        };
        let extra = |name: &str| What::Unary(table::extra(name), format!("gt_u_{name}"), x);
        let row = |op: Unary| What::Unary(table::unary_number(op), table::unary_name(op), x);
        match number {
            2.0 => extra("square"),
            3.0 => extra("cube"),
            0.5 => row(Unary::Sqrt),
            -0.5 => row(Unary::Rsqrt),
            -1.0 => row(Unary::Recip),
            _ => What::Binary(Binary::Pow, x, exponent),
        }
    }

    /// A register whose values are those of `reg` in `dtype`.
    fn as_dtype(&mut self, reg: usize, dtype: DType, row: bool) -> usize {
        if self.ins[reg].dtype == dtype {
            return reg;
        }
        self.ins.push(Ins { what: What::Cast(reg), dtype, row });
        self.ins.len() - 1
    }

    fn places(&mut self) -> impl Iterator<Item = &mut At> {
        let loads = self.ins.iter_mut().filter_map(|i| match &mut i.what {
            What::Mem(_, at) | What::Iota(_, _, at) => Some(at),
            _ => None,
        });
        loads.chain(self.puts.iter_mut().map(|p| &mut p.at))
    }

    /// Gives the only dimension, of one index, the strides of any other.
    pub fn ones(&mut self) {
        self.places().for_each(|at| at.strides = vec![1]);
    }

    fn permute(&mut self, order: &[usize]) {
        self.dims = order.iter().map(|&d| self.dims[d]).collect();
        self.places().for_each(|at| at.strides = order.iter().map(|&d| at.strides[d]).collect());
    }

    /// Drops dimensions of one index and joins neighbours that all maps walk through as one.
    fn collapse(&mut self) {
        let mut dims = std::mem::take(&mut self.dims);
        let mut d = dims.len();
        while d > 0 {
            d -= 1;
            if dims[d] == 1 {
                dims.remove(d);
                self.lead -= (d < self.lead) as usize;
                self.places().for_each(|at| {
                    at.strides.remove(d);
                });
            }
        }
        let mut d = dims.len().saturating_sub(1);
        while d > 0 {
            d -= 1;
            let size = dims[d + 1] as isize;
            let apart = d + 1 == self.lead;
            if !apart && self.places().all(|at| at.strides[d] == at.strides[d + 1] * size) {
                dims[d] *= dims.remove(d + 1);
                self.lead -= (d + 1 < self.lead) as usize;
                self.places().for_each(|at| {
                    at.strides.remove(d);
                });
            }
        }
        self.dims = dims;
    }
}

/// True if the row compares.
pub fn compares(op: Binary) -> bool {
    op.gives() == Gives::Bool
}

/// The value of a reduction of nothing.
pub fn empty(kind: ReduceKind) -> Scalar {
    Scalar::Int((kind == ReduceKind::Prod) as i64)
}

/// The name of the CUDA type that joins values.
pub fn joins(kind: ReduceKind) -> (u64, &'static str) {
    match kind {
        ReduceKind::Sum => (0, "J_sum"),
        ReduceKind::Prod => (1, "J_prod"),
        ReduceKind::Max => (2, "J_max"),
        ReduceKind::Min => (3, "J_min"),
    }
}
