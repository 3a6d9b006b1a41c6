//! Kernels of a plan as descriptions for the interpreter in `cuda/kernels.cu`: words, some of them filled in for a run.

use crate::launch::{Arg, Fill, Function, Launch, Launches, Word};
use crate::lower::{At, Base, Columns, Computing, Low, Put, What, compares, empty, joins};
use crate::sections::{Section, elements, sections};
use crate::{table, tree};
use gt_compiler::{Kernel, Map, Num, Plan};
use gt_ir::{DType, Scalar};

/// Words of a description that is passed with a launch.
const PASSED: usize = 500;
/// Registers of the interpreter where the description is passed, and where it lies in memory.
const FEW: usize = 24;
const MANY: usize = 128;

/// Words of which some are filled in.
#[derive(Clone, Default)]
pub struct Words {
    pub list: Vec<u64>,
    pub fills: Vec<(usize, Word)>,
}

impl Words {
    pub fn put(&mut self, x: u64) {
        self.list.push(x);
    }

    pub fn fill(&mut self, word: Word) {
        self.fills.push((self.list.len(), word));
        self.list.push(0);
    }

    /// The failure record's address where it matters.
    pub fn failed(&mut self, guarded: bool) {
        if guarded { self.fill(Word::Failed) } else { self.put(0) }
    }

    fn number(&mut self, x: Num, dtype: DType) {
        match x {
            Num::Const(x) => self.put(number_bits(x, dtype)),
            // A float comes as a double; `Form` writes the cast.
            Num::Slot(_) => self.fill(Word::Number(x, dtype)),
        }
    }

    fn at(&mut self, at: &At) {
        if at.start.slots.is_empty() {
            self.put(at.start.offset as u64);
        } else {
            self.fill(Word::Start(at.start.clone()));
        }
        at.strides.iter().for_each(|&s| self.put(s as u64));
    }

    fn append(&mut self, other: Words) {
        let start = self.list.len();
        self.list.extend(other.list);
        self.fills.extend(other.fills.into_iter().map(|(at, w)| (start + at, w)));
    }

    /// The words from `start` on as one argument of `words` words.
    pub fn arg(&self, start: usize, words: usize) -> Arg {
        let mut bytes: Vec<u8> = self.list[start..self.list.len().min(start + words)]
            .iter()
            .flat_map(|w| w.to_ne_bytes())
            .collect();
        bytes.resize(words * 8, 0);
        let within = self.fills.iter().filter(|(at, _)| (start..start + words).contains(at));
        let fills =
            within.map(|(at, word)| Fill { at: ((at - start) * 8) as u32, word: word.clone() }).collect();
        Arg { bytes, fills }
    }
}

/// The bits of a number of `dtype` as `Word::Number` gives them: a double, or an integer.
pub fn number_bits(x: Scalar, dtype: DType) -> u64 {
    let x = x.to_dtype(dtype);
    if dtype.is_float() { x.as_f64().to_bits() } else { x.as_i64() as u64 }
}

/// The launches of a kernel by the interpreter.
pub fn kernel(kernel: &Kernel, plan: &Plan) -> Launches {
    let low = Low::new(kernel, plan);
    let mut out = Launches::default();
    if low.numel() == 0 {
        if let Some(fill) = fill_empty(kernel, plan) {
            interpret(&fill, &mut out);
        }
        return out;
    }
    interpret(&low, &mut out);
    out
}

/// A reduction of nothing: its result is a constant.
pub fn fill_empty(kernel: &Kernel, plan: &Plan) -> Option<Low> {
    let fold = kernel.fold.as_ref()?;
    let n: usize =
        (0..kernel.shape.len()).filter(|d| !fold.dims.contains(d)).map(|d| kernel.shape[d]).product();
    let from = gt_compiler::Source::Num(Num::Const(empty(fold.kind)));
    let filling = Kernel {
        shape: [n].into(),
        rows: 1,
        loads: vec![gt_compiler::Load { dtype: fold.dtype, from, row: false }],
        code: vec![],
        stores: vec![gt_compiler::Store {
            reg: 0,
            dtype: fold.dtype,
            storage: fold.storage,
            map: Map::dense(&[n].into()),
            row: false,
        }],
        fold: None,
    };
    (n > 0).then(|| Low::new(&filling, plan))
}

/// Adds the launches of a kernel in its low form.
pub fn interpret(low: &Low, out: &mut Launches) {
    match (&low.columns, low.has_rows()) {
        (Some(to), _) => columns(low, to, out),
        (None, true) => rows(low, out),
        (None, false) => map(low, out),
    }
}

fn launch(name: [&'static str; 2], words: Words, regs: usize, grid: usize, block: usize, out: &mut Launches) {
    assert!(regs <= MANY, "a kernel of {regs} registers");
    let grid = [grid as u32, 1, 1];
    if words.list.len() <= PASSED && regs <= FEW {
        let args = vec![words.arg(0, PASSED)];
        out.list.push(Launch {
            function: Function::Plain(name[0]),
            grid,
            block: block as u32,
            shared: 0,
            args,
        });
        return;
    }
    let start = out.scratch.next_multiple_of(256);
    out.scratch = start + words.list.len() * 8;
    for at in (0..words.list.len()).step_by(PASSED) {
        let n = PASSED.min(words.list.len() - at);
        let args = vec![words.arg(at, PASSED), Arg::word(Word::Scratch(start + at * 8)), Arg::int(n as i64)];
        out.list.push(Launch {
            function: Function::Plain("gt_words"),
            grid: [1; 3],
            block: 128,
            shared: 0,
            args,
        });
    }
    let args = vec![Arg::word(Word::Scratch(start))];
    out.list.push(Launch { function: Function::Plain(name[1]), grid, block: block as u32, shared: 0, args });
}

fn map(low: &Low, out: &mut Launches) {
    let mut regs = Regs::new(low);
    let all = Section {
        row: false,
        ins: elements(low, low.puts.iter().map(|p| p.reg)),
        fold: None,
        puts: (0..low.puts.len()).collect(),
    };
    let code = regs.code(low, &all);
    let mut words = Words::default();
    words.failed(low.guarded);
    words.put(low.numel() as u64);
    words.put(low.dims.len() as u64);
    words.put(code.list.len() as u64);
    low.dims.iter().for_each(|&n| words.put(n as u64));
    words.append(code);
    launch(["gt_map", "gt_map_long"], words, regs.most, low.numel().div_ceil(128), 128, out);
}

/// The parts into which the reduction of a row is cut, where it ends a kernel and is long.
pub fn row_parts(low: &Low) -> Option<usize> {
    let folds = low.ins.iter().filter(|i| matches!(i.what, What::Fold(..))).count();
    let ends = matches!(low.ins.last(), Some(i) if matches!(i.what, What::Fold(..)));
    let only = low.puts.iter().filter(|p| p.row).count() == 1
        && low.ins.iter().all(|i| !i.row || matches!(i.what, What::Fold(..)));
    let parts = low.inner().div_ceil(tree::BLOCK);
    (folds == 1 && ends && only && parts > 1).then_some(parts)
}

/// Splits off the reduction of the parts' results, which `from` holds: what remains to be launched.
pub fn of_parts(low: &Low, parts: usize, from: usize) -> Low {
    let (kind, arg) = match low.ins.last().map(|i| &i.what) {
        Some(What::Fold(kind, arg)) => (*kind, *arg),
        _ => unreachable!("asked by `row_parts`"),
    };
    let put: &Put = low.puts.iter().find(|p| p.row).expect("asked by `row_parts`");
    Low::of_parts(low.outer(), parts, from, kind, low.computing(arg), put, low.guarded)
}

fn rows(low: &Low, out: &mut Launches) {
    let parts = row_parts(low);
    let len = low.inner();
    let width = if parts.is_some() { 512 } else { tree::threads(len) };
    let mut regs = Regs::new(low);
    let list = sections(low);
    let mut body = Words::default();
    let mut count = 0;
    for section in &list {
        if parts.is_some() && section.row {
            continue;
        }
        let code = regs.code(low, section);
        body.put(regs.head(low, section));
        body.put(code.list.len() as u64);
        body.append(code);
        count += 1;
    }
    let rows = low.outer();
    let many = parts.unwrap_or(1);
    let mut words = Words::default();
    words.failed(low.guarded);
    for x in [rows, len, low.dims.len(), width, many] {
        words.put(x as u64);
    }
    let scratch = parts.map(|_| reserve(rows * many * 8, out));
    match scratch {
        Some(at) => words.fill(Word::Scratch(at)),
        None => words.put(0),
    }
    words.put(count);
    low.dims.iter().for_each(|&n| words.put(n as u64));
    words.append(body);
    let block = if width > 32 { width } else { 128 };
    let grid = (rows * many).div_ceil(block / width);
    launch(["gt_rows", "gt_rows_long"], words, regs.most, grid, block, out);
    if let (Some(parts), Some(from)) = (parts, scratch) {
        interpret(&of_parts(low, parts, from), out);
    }
}

/// Room for `bytes` more of scratch memory.
pub fn reserve(bytes: usize, out: &mut Launches) -> usize {
    let at = out.scratch.next_multiple_of(256);
    out.scratch = at + bytes;
    at
}

fn columns(low: &Low, to: &Columns, out: &mut Launches) {
    let (rows, columns) = (low.outer(), low.inner());
    let blocks = rows.div_ceil(tree::COLUMN_BLOCK);
    let mut regs = Regs::new(low);
    let puts: Vec<usize> = (0..low.puts.len()).collect();
    let wanted = low.puts.iter().map(|p| p.reg).chain([to.reg]);
    let all = Section { row: false, ins: elements(low, wanted), fold: None, puts };
    let code = regs.kept(low, &all, Some(to.reg));
    let kind = low.computing(to.reg);
    let mut words = Words::default();
    words.failed(low.guarded);
    for x in [columns, rows, low.dims.len(), blocks] {
        words.put(x as u64);
    }
    let reg = regs.of[to.reg] as u64;
    words.put(joins(to.kind).0 | (kind as u64) << 8 | reg << 16 | (to.dtype as u64) << 24);
    let scratch = (blocks > 1).then(|| reserve(blocks * columns * 8, out));
    words.fill(scratch.map_or(to.base.word(), Word::Scratch));
    words.put(code.list.len() as u64);
    low.dims.iter().for_each(|&n| words.put(n as u64));
    words.append(code);
    let grid = columns.div_ceil(32) * blocks;
    launch(["gt_columns", "gt_columns_long"], words, regs.most, grid, 256, out);
    if let Some(from) = scratch {
        interpret(&Low::of_column_parts(blocks, columns, from, kind, to, low.guarded), out);
    }
}

/// Gives registers of the interpreter to values: those per row keep theirs, others only while they are needed.
struct Regs {
    of: Vec<usize>,
    rows: usize,
    most: usize,
}

impl Regs {
    fn new(low: &Low) -> Regs {
        let mut of = vec![0; low.ins.len()];
        let mut rows = 0;
        for (i, ins) in low.ins.iter().enumerate() {
            if ins.row {
                of[i] = rows;
                rows += 1;
            }
        }
        Regs { of, rows, most: rows + 1 }
    }

    fn code(&mut self, low: &Low, section: &Section) -> Words {
        let end = match section.fold.map(|f| &low.ins[f].what) {
            Some(What::Fold(_, arg)) => Some(*arg),
            _ => None,
        };
        self.kept(low, section, end)
    }

    /// The instructions of a section; `end` is needed behind it.
    fn kept(&mut self, low: &Low, section: &Section, end: Option<usize>) -> Words {
        let ins = &section.ins;
        let mut last = vec![0usize; low.ins.len()];
        for (k, &i) in ins.iter().enumerate() {
            low.ins[i].what.args().for_each(|a| last[a] = k);
        }
        section.puts.iter().for_each(|&p| last[low.puts[p].reg] = ins.len());
        end.iter().for_each(|&e| last[e] = ins.len());
        let mut free: Vec<usize> = Vec::new();
        let mut next = self.rows;
        let mut words = Words::default();
        for (k, &i) in ins.iter().enumerate() {
            let what = &low.ins[i].what;
            if !low.ins[i].row {
                self.of[i] = free.pop().unwrap_or_else(|| {
                    next += 1;
                    next - 1
                });
            }
            self.instruction(low, i, &mut words);
            let mut done: Vec<usize> = what.args().filter(|&a| !low.ins[a].row && last[a] == k).collect();
            done.dedup();
            done.sort_unstable();
            done.dedup();
            free.extend(done.iter().map(|&a| self.of[a]));
        }
        self.most = self.most.max(next + 1);
        for &p in &section.puts {
            self.store(low, &low.puts[p], &mut words);
        }
        words
    }

    /// Registers of the operands and the result, in the places where the interpreter looks.
    fn word(&self, op: u64, kind: Computing, dtype: DType, out: usize, args: [usize; 3], sub: u8) -> u64 {
        op | (kind as u64) << 8
            | (dtype as u64) << 16
            | (out as u64) << 24
            | (args[0] as u64) << 32
            | (args[1] as u64) << 40
            | (args[2] as u64) << 48
            | (sub as u64) << 56
    }

    fn instruction(&self, low: &Low, i: usize, words: &mut Words) {
        let (dtype, out) = (low.ins[i].dtype, self.of[i]);
        let kind = |a: usize| low.computing(a);
        let r = |a: usize| self.of[a];
        match &low.ins[i].what {
            What::Mem(base, at) => {
                words.put(self.word(0, Computing::I64, dtype, out, [0; 3], 0));
                words.fill(base.word());
                words.at(at);
            }
            What::Num(x) => {
                words.put(self.word(1, Computing::I64, dtype, out, [0; 3], 0));
                words.number(*x, dtype);
                if Computing::of(dtype) == Computing::F32 {
                    words.put(self.word(7, Computing::F64, dtype, out, [out, 0, 0], 0));
                }
            }
            What::Iota(start, step, at) => {
                let wide = if dtype.is_float() { DType::F64 } else { DType::I64 };
                words.put(self.word(2, Computing::I64, dtype, out, [0; 3], 0));
                words.number(*start, wide);
                words.number(*step, wide);
                words.at(at);
            }
            What::Unary(number, _, a) => {
                words.put(self.word(3, kind(*a), dtype, out, [r(*a), 0, 0], *number))
            }
            What::Binary(op, a, b) => {
                let which = if compares(*op) { 5 } else { 4 };
                let number = table::binary_number(*op);
                words.put(self.word(which, kind(*a), dtype, out, [r(*a), r(*b), 0], number));
            }
            What::Where(c, a, b) => words.put(self.word(6, kind(*c), dtype, out, [r(*c), r(*a), r(*b)], 0)),
            What::Cast(a) => words.put(self.word(7, kind(*a), dtype, out, [r(*a), 0, 0], 0)),
            What::Fold(..) => unreachable!("ends a section"),
        }
    }

    fn store(&self, low: &Low, put: &Put, words: &mut Words) {
        let kind = low.computing(put.reg);
        words.put(self.word(8, kind, put.dtype, 0, [self.of[put.reg], 0, 0], 0));
        words.fill(put.base.word());
        words.at(&put.at);
    }

    /// The word that describes a section of a kernel with rows.
    fn head(&self, low: &Low, section: &Section) -> u64 {
        let Some(fold) = section.fold else { return !section.row as u64 };
        let What::Fold(kind, arg) = &low.ins[fold].what else { unreachable!("a reduction") };
        let (arg_reg, out) = (self.of[*arg] as u64, self.of[fold] as u64);
        1 | 1 << 8
            | joins(*kind).0 << 16
            | (low.computing(*arg) as u64) << 24
            | arg_reg << 32
            | out << 40
            | (low.ins[fold].dtype as u64) << 48
    }
}

/// The address of a storage plus where a packed tensor begins in it, as two words.
pub fn tensor(words: &mut Words, t: &gt_compiler::Tensor) {
    words.fill(Base::Storage(t.storage).word());
    if t.map.slots.is_empty() {
        words.put(t.map.offset as u64);
    } else {
        words.fill(Word::Start(t.map.clone()));
    }
}
