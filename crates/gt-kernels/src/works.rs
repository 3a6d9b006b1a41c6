//! The steps that are no elementwise work: descriptions for the kernels in `cuda/index.cu` and `cuda/lines.cu`.

use crate::launch::{Function, Launch, Launches, Word};
use crate::plain::{Words, number_bits, reserve, tensor};
use gt_compiler::{Num, Operand, Plan, Tensor, Work};
use gt_ir::{ArgKind, DType, Dist, ScanKind, ScatterMode, Shape};

/// Words of a description.
const PASSED: usize = 64;
/// Up to this many entries along the dimension a scatter looks for equal ones entry by entry.
const FEW_ENTRIES: usize = 64;
/// Elements that a block sorts in shared memory.
const TILE: usize = 2048;
/// Lines that lie side by side in at least this number are taken side by side.
const SIDE_BY_SIDE: usize = 32;

/// The launches of a step that is neither elementwise work nor the runtime's own.
pub fn launches(step: usize, plan: &Plan) -> Launches {
    let mut out = Launches::default();
    let mut guarded = false;
    plan.steps[step].writes(|s| guarded |= plan.storages[s as usize].reuse.is_some());
    let w = Writer { step, guarded };
    match &plan.steps[step].work {
        Work::CheckIndex { index, size, wrap } => w.check_index(index, *size, *wrap, &mut out),
        Work::CheckNonzero { divisor, dtype } => w.check_nonzero(divisor, *dtype, &mut out),
        Work::Random { dist, dtype, len, key, offset, out: to } => {
            w.random(*dist, *dtype, *len, [*key, *offset], *to, &mut out)
        }
        Work::Gather { dim, x, index, out: to } => w.gather(*dim, x, index, *to, &mut out),
        Work::Take { dim, x, index, out: to } => w.take(*dim, x, index, *to, &mut out),
        Work::Scatter { dim, mode, base, index, src, dtype, out: to } => {
            w.scatter((*dim, *mode), base, index, src, *dtype, *to, &mut out)
        }
        Work::TakePut { dim, mode, base, index, src, out: to } => {
            w.take_put((*dim, *mode), base, index, src, *to, &mut out)
        }
        Work::ArgReduce { kind, dim, x, out: to } => {
            w.line("gt_arg_reduce", *dim, x, *to, (*kind == ArgKind::Max) as u64, &mut out)
        }
        Work::Scan { kind, dim, x, out: to } => {
            w.line("gt_scan", *dim, x, *to, (*kind == ScanKind::Prod) as u64, &mut out)
        }
        Work::Softmax { log, dim, x, out: to } => w.line("gt_softmax", *dim, x, *to, *log as u64, &mut out),
        Work::Sort { dim, descending, k, x, values, indices } => {
            w.sort((*dim, *descending, *k), x, [*values, *indices], &mut out)
        }
        // The runtime's own, or written elsewhere.
        Work::Kernel(_)
        | Work::Copy { .. }
        | Work::Data { .. }
        | Work::Matmul(_)
        | Work::Attention(_)
        | Work::AttentionGrad(_)
        | Work::Collective(_) => {}
    }
    out
}

/// A dense shape as [outer][n][inner] around a dimension.
fn around(shape: &Shape, dim: usize) -> (usize, usize, usize) {
    if shape.is_empty() {
        return (1, 1, 1);
    }
    (shape[..dim].iter().product(), shape[dim], shape[dim + 1..].iter().product())
}

fn add(name: &'static str, words: &Words, grid: usize, block: usize, shared: usize, out: &mut Launches) {
    assert!(words.list.len() <= PASSED, "{name}: a description of {} words", words.list.len());
    let grid = [u32::try_from(grid).unwrap_or(i32::MAX as u32), 1, 1];
    let args = vec![words.arg(0, PASSED)];
    let function = Function::Plain(name);
    out.list.push(Launch { function, grid, block: block as u32, shared: shared as u32, args });
}

/// A number rounded to a type: a double for floats, else an integer.
fn number(x: Num, dtype: DType, words: &mut Words) {
    match x {
        Num::Const(x) => words.put(number_bits(x, dtype)),
        Num::Slot(_) => words.fill(Word::Number(x, dtype)),
    }
}

/// Sizes and strides of a tensor whose indices another one names, without dimensions that walk on as one.
fn collapsed(shape: &Shape, strides: &[isize], dim: usize) -> (Vec<usize>, Vec<isize>) {
    let mut dims: Vec<(usize, isize)> = Vec::new();
    for d in 0..shape.len() {
        let stride = if d == dim { 0 } else { strides[d] };
        match dims.last_mut() {
            Some(last) if last.1 == stride * shape[d] as isize && (stride != 0 || last.1 == 0) => {
                *last = (last.0 * shape[d], stride);
            }
            _ => dims.push((shape[d], stride)),
        }
    }
    dims.into_iter().unzip()
}

struct Writer {
    step: usize,
    guarded: bool,
}

impl Writer {
    fn words(&self) -> Words {
        let mut words = Words::default();
        words.failed(self.guarded);
        words
    }

    /// The failure record and what a failed check writes there.
    fn check(&self) -> Words {
        let mut words = Words::default();
        words.fill(Word::Failed);
        words.put(self.step as u64 + 1);
        words
    }

    fn check_index(&self, index: &Tensor, size: usize, wrap: bool, out: &mut Launches) {
        let n = index.shape.numel();
        let mut words = self.check();
        words.put(index.dtype as u64);
        tensor(&mut words, index);
        words.put(n as u64);
        words.put(if wrap { -(size as i64) } else { 0 } as u64);
        words.put(size as u64);
        if n > 0 {
            add("gt_check_index", &words, n.div_ceil(256).min(1024), 256, 0, out);
        }
    }

    fn check_nonzero(&self, divisor: &Operand, dtype: DType, out: &mut Launches) {
        let mut words = self.check();
        let n = match divisor {
            Operand::Tensor(t) => {
                words.put(t.dtype as u64);
                tensor(&mut words, t);
                t.shape.numel()
            }
            Operand::Num(x) => {
                words.put(dtype as u64);
                words.put(0);
                number(*x, dtype, &mut words);
                1
            }
        };
        words.put(n as u64);
        if n > 0 {
            add("gt_check_nonzero", &words, n.div_ceil(256).min(1024), 256, 0, out);
        }
    }

    fn random(
        &self,
        dist: Dist,
        dtype: DType,
        len: usize,
        [key, offset]: [Num; 2],
        to: u32,
        out: &mut Launches,
    ) {
        if len == 0 {
            return;
        }
        let (kind, low, high) = match dist {
            Dist::Uniform => (0, 0, 0),
            Dist::Normal => (1, 0, 0),
            Dist::Int { low, high } => (2, low, high),
        };
        let mut words = self.words();
        words.fill(Word::Address(to));
        words.put(len as u64);
        for x in [key, offset] {
            number(x, DType::I64, &mut words);
        }
        for x in [kind, low as u64, high as u64, dtype as u64] {
            words.put(x);
        }
        let blocks = gt_ir::philox::blocks(dist, dtype, len) as usize;
        add("gt_random", &words, blocks.div_ceil(256), 256, 0, out);
    }

    fn gather(&self, dim: usize, x: &Tensor, index: &Tensor, to: u32, out: &mut Launches) {
        let n = index.shape.numel();
        if n == 0 {
            return;
        }
        let strides = x.shape.strides();
        let (dims, steps) = collapsed(&index.shape, &strides, dim);
        let mut words = self.words();
        words.fill(Word::Address(to));
        words.put(n as u64);
        tensor(&mut words, x);
        tensor(&mut words, index);
        for x in [index.dtype as usize, x.dtype.size(), x.shape[dim], strides[dim] as usize, dims.len()] {
            words.put(x as u64);
        }
        dims.iter().for_each(|&n| words.put(n as u64));
        steps.iter().for_each(|&s| words.put(s as u64));
        add("gt_gather", &words, n.div_ceil(256), 256, 0, out);
    }

    fn take(&self, dim: usize, x: &Tensor, index: &Tensor, to: u32, out: &mut Launches) {
        let (outer, n, inner) = around(&x.shape, dim);
        let (entries, size) = (index.shape.numel(), x.dtype.size());
        let all = outer * entries * inner * size;
        if all == 0 {
            return;
        }
        let mut words = self.words();
        words.fill(Word::Address(to));
        words.put(outer as u64);
        words.put(entries as u64);
        tensor(&mut words, index);
        for x in [index.dtype as usize, n, inner * size] {
            words.put(x as u64);
        }
        tensor(&mut words, x);
        words.put(size as u64);
        // Most rows go by 16 bytes; others make several rounds.
        add("gt_take", &words, all.div_ceil(16).div_ceil(256).min(1 << 20), 256, 0, out);
    }

    /// The words of a scatter up to the sizes, with the place of the pairs if entries are to be sorted.
    fn put(
        &self,
        mode: ScatterMode,
        dtype: DType,
        to: u32,
        index: &Tensor,
        size: usize,
        stride: usize,
    ) -> Words {
        let mut words = self.words();
        words.fill(Word::Address(to));
        words.put(match mode {
            ScatterMode::Set => 0,
            ScatterMode::Add => 1,
            ScatterMode::Max => 2,
        });
        words.put(dtype as u64);
        words.put(index.shape.numel() as u64);
        tensor(&mut words, index);
        for x in [index.dtype as usize, size, stride] {
            words.put(x as u64);
        }
        words
    }

    fn scatter(
        &self,
        (dim, mode): (usize, ScatterMode),
        base: &Shape,
        index: &Tensor,
        src: &Operand,
        dtype: DType,
        to: u32,
        out: &mut Launches,
    ) {
        let entries = index.shape.numel();
        if entries == 0 {
            return;
        }
        let strides = base.strides();
        let mut words = self.put(mode, dtype, to, index, base[dim], strides[dim] as usize);
        match src {
            Operand::Tensor(t) => tensor(&mut words, t),
            Operand::Num(x) => {
                words.put(0);
                number(*x, dtype, &mut words);
            }
        }
        let (line, step) = (index.shape[dim], index.shape.strides()[dim] as usize);
        for x in [0, 1, 1, line, step] {
            words.put(x as u64);
        }
        let (dims, steps) = collapsed(&index.shape, &strides, dim);
        let tail: Vec<u64> = [dims.len() as u64]
            .into_iter()
            .chain(dims.iter().map(|&n| n as u64))
            .chain(steps.iter().map(|&s| s as u64))
            .collect();
        self.put_all(words, tail, (entries, line, 1, 1), out);
    }

    fn take_put(
        &self,
        (dim, mode): (usize, ScatterMode),
        base: &Shape,
        index: &Tensor,
        src: &Tensor,
        to: u32,
        out: &mut Launches,
    ) {
        let (outer, n, inner) = around(base, dim);
        let entries = index.shape.numel();
        if outer * entries * inner == 0 {
            return;
        }
        let mut words = self.put(mode, src.dtype, to, index, n, 0);
        tensor(&mut words, src);
        for x in [1, outer, inner, entries, 1] {
            words.put(x as u64);
        }
        self.put_all(words, vec![0], (entries, entries, outer, inner), out);
    }

    /// Launches a scatter of `entries`, of which `line` may meet.
    fn put_all(
        &self,
        mut words: Words,
        tail: Vec<u64>,
        (entries, line, outer, inner): (usize, usize, usize, usize),
        out: &mut Launches,
    ) {
        if line <= FEW_ENTRIES {
            words.put(0);
            tail.into_iter().for_each(|x| words.put(x));
            let all = entries * outer * inner;
            return add("gt_put_few", &words, all.div_ceil(256), 256, 0, out);
        }
        let pairs = [0; 2].map(|_| reserve(entries * 16, out));
        let with = |at: usize| {
            let mut words = words.clone();
            words.fill(Word::Scratch(at));
            tail.iter().for_each(|&x| words.put(x));
            words
        };
        add("gt_put_keys", &with(pairs[0]), entries.div_ceil(256), 256, 0, out);
        let mut sort = Words::default();
        sort.failed(false);
        for x in [1, entries, 1, 0, 0, 0, 0, 0, 0, 0] {
            sort.put(x as u64);
        }
        sort.fill(Word::Scratch(pairs[0]));
        let tile = TILE.min(entries.next_power_of_two());
        sort.put(tile as u64);
        sort.put(1);
        add("gt_sort_tiles", &sort, entries.div_ceil(tile), (tile / 2).clamp(32, 512), tile * 16, out);
        let sorted = merges(1, entries, tile, pairs, out);
        let grid = if inner == 1 { entries.div_ceil(256) } else { entries * inner.div_ceil(256) };
        add("gt_put_sorted", &with(sorted), grid, 256, 0, out);
    }

    fn sort(&self, (dim, descending, k): (usize, bool, usize), x: &Tensor, to: [u32; 2], out: &mut Launches) {
        let (outer, n, inner) = around(&x.shape, dim);
        let rows = outer * inner;
        if rows * k == 0 {
            return;
        }
        let mut words = self.words();
        for x in [rows, n, inner, k] {
            words.put(x as u64);
        }
        tensor(&mut words, x);
        words.put(x.dtype as u64);
        words.put(descending as u64);
        to.iter().for_each(|&s| words.fill(Word::Address(s)));
        let tile = TILE.min(n.next_power_of_two().max(2));
        let threads = (tile / 2).clamp(32, 512);
        let with = |pairs: Option<usize>| {
            let mut words = words.clone();
            match pairs {
                Some(at) => words.fill(Word::Scratch(at)),
                None => words.put(0),
            }
            words.put(tile as u64);
            words.put(0);
            words
        };
        if n <= tile {
            return add("gt_sort_tiles", &with(None), rows, threads, tile * 16, out);
        }
        let pairs = [0; 2].map(|_| reserve(rows * n * 16, out));
        add("gt_sort_tiles", &with(Some(pairs[0])), rows * n.div_ceil(tile), threads, tile * 16, out);
        let sorted = merges(rows, n, tile, pairs, out);
        add("gt_sort_write", &with(Some(sorted)), (rows * k).div_ceil(256), 256, 0, out);
    }

    fn line(&self, name: &'static str, dim: usize, x: &Tensor, to: u32, what: u64, out: &mut Launches) {
        let (outer, n, inner) = around(&x.shape, dim);
        if outer * inner == 0 {
            return;
        }
        let side = inner >= SIDE_BY_SIDE;
        let mut words = self.words();
        words.fill(Word::Address(to));
        tensor(&mut words, x);
        for x in [x.dtype as usize, outer, n, inner] {
            words.put(x as u64);
        }
        words.put(what);
        words.put(side as u64);
        let lines = outer * inner;
        let grid = match (side, name) {
            (false, _) => lines,
            (true, "gt_softmax") => outer * inner.div_ceil(32),
            (true, _) => lines.div_ceil(256),
        };
        add(name, &words, grid, 256, 0, out);
    }
}

/// Merges sorted runs until every row is one; gives where it ends up.
fn merges(rows: usize, n: usize, tile: usize, pairs: [usize; 2], out: &mut Launches) -> usize {
    let [mut from, mut to] = pairs;
    let mut run = tile;
    while run < n {
        let mut words = Words::default();
        words.failed(false);
        for x in [rows, n, run] {
            words.put(x as u64);
        }
        words.fill(Word::Scratch(from));
        words.fill(Word::Scratch(to));
        add("gt_merge", &words, (rows * n).div_ceil(256), 256, 0, out);
        std::mem::swap(&mut from, &mut to);
        run *= 2;
    }
    from
}
