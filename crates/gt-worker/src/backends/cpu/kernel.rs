//! Runs lowered kernels tile by tile.

use super::chain::{self, Addresses, Chain, Place, Unit};
use super::convert::{Lane, is_native, narrow, round, widen};
use super::fold::{BLOCK, Folds, fold_list, fold_rows};
use super::lower::{Do, From, LoadAt, Lowered, Op, StoreAt};
use super::math::Fast;
use super::runs::{self, Range};
use super::threads::Threads;
use super::{convert, tile};
use gt_compiler::Strides;
use gt_ir::{Binary, Kind, ReduceKind, Scalar, Slot};
use smallvec::SmallVec;
use std::cell::UnsafeCell;

/// Work below this many simple element operations is not worth waking a thread for.
pub const PARALLEL: usize = 96 << 10;

/// The memory of a run, one pointer per storage.
#[derive(Clone, Copy)]
pub struct Bases<'a> {
    pub ptrs: &'a [*mut u8],
    pub slots: &'a [Slot],
}

// SAFETY: steps write disjoint parts, as the plan says which storage a step writes and tiles do not overlap.
unsafe impl Sync for Bases<'_> {}

/// A kernel with its addresses, for one run.
pub struct Bound<'a> {
    pub kernel: &'a Lowered,
    pub loads: SmallVec<[*const u8; 12]>,
    pub stores: SmallVec<[*mut u8; 4]>,
    slots: &'a [Slot],
    /// Large results are written past the caches.
    pub past: bool,
}

// SAFETY: as for `Bases`.
unsafe impl Sync for Bound<'_> {}

impl<'a> Bound<'a> {
    pub fn new(kernel: &'a Lowered, bases: Bases<'a>, past: bool) -> Bound<'a> {
        let at = |storage: u32, map: &gt_compiler::Map, size: usize| {
            bases.ptrs[storage as usize].wrapping_offset(map.offset(bases.slots) * size as isize)
        };
        let loads = kernel
            .loads
            .iter()
            .map(|l| match &l.from {
                From::Mem(storage) => at(*storage, &l.map, l.dtype.size()) as *const u8,
                From::Num(_) | From::Iota(..) => std::ptr::null(),
            })
            .collect();
        let stores = kernel.stores.iter().map(|s| at(s.storage, &s.map, s.dtype.size())).collect();
        Bound { kernel, loads, stores, slots: bases.slots, past }
    }
}

/// Memory of a thread's registers.
struct Scratch {
    memory: Vec<u64>,
}

thread_local! {
    static SCRATCH: UnsafeCell<Scratch> = const { UnsafeCell::new(Scratch { memory: Vec::new() }) };
}

/// A thread's tiles while it works on one kernel.
pub struct Tiles<'b, 'a> {
    pub bound: &'b Bound<'a>,
    pub scratch: *mut u8,
    /// Where each register's tile is.
    pub regs: SmallVec<[*mut u8; 24]>,
    coords: SmallVec<[usize; 6]>,
}

impl<'b, 'a> Tiles<'b, 'a> {
    /// Prepares this thread; `most` is the longest range it will ask for. One at a time per thread.
    pub fn new(bound: &'b Bound<'a>, most: usize) -> Tiles<'b, 'a> {
        let kernel = bound.kernel;
        let scratch = SCRATCH.with(|cell| {
            // SAFETY: the cell is this thread's own, and the borrow ends here.
            let scratch = unsafe { &mut *cell.get() };
            let words = kernel.scratch / 8 + 16;
            if scratch.memory.len() < words {
                scratch.memory = vec![0; words];
            }
            let start = scratch.memory.as_mut_ptr() as *mut u8;
            start.wrapping_add(start.align_offset(64))
        });
        let mut regs: SmallVec<[*mut u8; 24]> = SmallVec::from_elem(std::ptr::null_mut(), kernel.regs);
        for (i, load) in kernel.loads.iter().enumerate() {
            regs[i] = scratch.wrapping_add(load.tile_at);
            if load.splat {
                // SAFETY: the tile holds `kernel.tile` elements; a splat load shows one element of its storage.
                unsafe { splat(load, bound.loads[i], regs[i], most.min(kernel.tile), bound.slots) };
            } else if load.cycle {
                regs[i] = bound.loads[i] as *mut u8;
            }
        }
        Tiles { bound, scratch, regs, coords: SmallVec::from_elem(0, kernel.dims.len()) }
    }

    /// Computes elements `start..start + len` of the iteration space, at most a tile, and stores what is to be stored.
    ///
    /// # Safety
    /// The range lies in the iteration space, and no other thread computes any of it.
    #[inline]
    pub unsafe fn eval(&mut self, start: usize, len: usize) {
        let kernel = self.bound.kernel;
        if let Some(form) = &kernel.form {
            // SAFETY: passed on from the caller.
            return unsafe { self.form(form, start, len) };
        }
        let inner = kernel.dims[kernel.dims.len() - 1];
        let within = if kernel.linear { true } else { self.locate(start, len, inner) };
        // SAFETY: addresses stay inside the storages, since maps of a checked program show only elements that exist;
        // tiles lie in scratch and are long enough.
        unsafe {
            for (i, load) in kernel.loads.iter().enumerate() {
                if !load.splat && !load.cycle {
                    self.load(i, load, start, len, within);
                }
            }
            for (k, unit) in kernel.units.iter().enumerate() {
                if kernel.ahead {
                    self.ask_ahead(k, start + len, len);
                }
                match unit {
                    Unit::Op(i) => self.op(&kernel.ops[*i], start, len, within),
                    Unit::Chain(chain) => self.chain(chain, start, len, within),
                }
            }
            for (i, store) in kernel.stores.iter().enumerate() {
                if !store.done {
                    self.store(store, self.bound.stores[i], start, len, within);
                }
            }
        }
    }

    /// Where the result of an op goes: its tile, or memory where that is packed.
    #[inline]
    fn result(&self, op: &Op, start: usize, within: bool) -> *mut u8 {
        let straight = op.direct.and_then(|s| {
            let s = s as usize;
            self.straight(&self.bound.kernel.stores[s], self.bound.stores[s], start, within)
        });
        straight.unwrap_or_else(|| self.scratch.wrapping_add(op.tile_at))
    }

    /// Does one op for the tile.
    #[inline]
    unsafe fn op(&mut self, op: &Op, start: usize, len: usize, within: bool) {
        let kernel = self.bound.kernel;
        let rows = len / kernel.row_len;
        let out = self.result(op, start, within);
        let len = if op.row { rows } else { len };
        let arg = |k: usize| {
            let at = self.regs[op.args[k] as usize] as *const u8;
            // SAFETY: passed on from `eval`.
            if op.spread[k] { unsafe { self.spread(k, op, at, rows) } } else { at }
        };
        // SAFETY: passed on from `eval`.
        unsafe {
            match &op.work {
                Do::Fold(kind) => {
                    let at = self.regs[op.args[0] as usize] as *const u8;
                    fold_lane(*kind, op.lane, at, kernel.row_len, rows, out);
                }
                Do::Binary(row) if op.lane == Lane::F32 && op.by != (false, false) && self.long_rows(op) => {
                    let at = |k: usize| self.regs[op.args[k] as usize] as *const u8;
                    let (len, rows) = if op.rowwise { (kernel.row_len, rows) } else { (len, 1) };
                    tile::binary_by_row(*row, op.by, at(0), at(1), out, len, rows);
                }
                Do::Unary(row) => tile::unary(*row, op.lane, arg(0), out, len),
                Do::Binary(row) => tile::binary(*row, op.lane, arg(0), arg(1), out, len),
                Do::Where => tile::select(op.lane.size(), arg(0), arg(1), arg(2), out, len),
                Do::Cast => convert::cast(op.lane, op.dtype, arg(0), out, len),
                Do::Square => tile::binary(Binary::Mul, op.lane, arg(0), arg(0), out, len),
                Do::Cube => tile::cube(op.lane, arg(0), out, len),
            }
            if op.round {
                round(op.dtype, out, len);
            }
        }
        self.regs[op.out as usize] = out;
    }

    /// Does several ops for the tile.
    unsafe fn chain(&mut self, chain: &Chain, start: usize, len: usize, within: bool) {
        let kernel = self.bound.kernel;
        let mut at = Addresses::new();
        for place in &chain.places {
            at.push(match *place {
                Place::Reg(r) | Place::Cycle(r) | Place::Splat(r) | Place::Row(r) => self.regs[r as usize],
                Place::Out(i) => {
                    let op = &kernel.ops[i as usize];
                    let out = self.result(op, start, within);
                    self.regs[op.out as usize] = out;
                    out
                }
                Place::Store(s) => self.bound.stores[s as usize].wrapping_add(start * size_of::<f32>()),
                Place::Far(i, eighths) => {
                    let from = start + len + len * eighths as usize / 8;
                    self.bound.loads[i as usize].wrapping_add(from * size_of::<f32>()) as *mut u8
                }
            } as *mut f32);
        }
        let mut total = std::ptr::null_mut();
        if let Some((_, i)) = chain.fold {
            let op = &kernel.ops[i];
            total = self.result(op, start, within);
            self.regs[op.out as usize] = total;
        }
        // Rows matter only to a fold and to what there is one of for each.
        let (len, rows) = match kernel.row_len {
            1 => (len, 1),
            row if chain.by_row => (len / row, 1),
            row => (row, len / row),
        };
        // SAFETY: passed on from `eval`; chains are made only where AVX-512 was detected.
        unsafe { chain::run(chain, &mut at, len, rows, total as *mut f32, self.bound.past) };
    }

    /// Asks for the `k`th part of what the next tile reads, which begins at `start`.
    #[inline]
    fn ask_ahead(&self, k: usize, start: usize, len: usize) {
        let kernel = self.bound.kernel;
        let parts = kernel.units.len();
        for (load, base) in kernel.loads.iter().zip(&self.bound.loads) {
            if load.is_far() {
                let bytes = len * load.dtype.size();
                let (first, last) = (bytes * k / parts, bytes * (k + 1) / parts);
                prefetch(base.wrapping_add(start * load.dtype.size() + first), last - first);
            }
        }
    }

    /// Rows long enough to be taken one by one, or one for the whole tile.
    #[inline]
    fn long_rows(&self, op: &Op) -> bool {
        !op.rowwise || self.bound.kernel.row_len >= 64
    }

    /// Lays operand `k`, one value per row, out for all elements of the rows.
    unsafe fn spread(&self, k: usize, op: &Op, from: *const u8, rows: usize) -> *const u8 {
        let kernel = self.bound.kernel;
        let to = self.scratch.wrapping_add(kernel.spread_at + k * kernel.slot_bytes);
        let size = match op.work {
            Do::Where if k == 0 => 1,
            _ => op.lane.size(),
        };
        // SAFETY: the place holds a tile of the widest elements, and a tile is `rows` rows.
        unsafe {
            for r in 0..rows {
                runs::fill(size, from.add(r * size), to.add(r * kernel.row_len * size), kernel.row_len);
            }
        }
        to
    }

    /// The tile of a register after `eval`.
    pub fn reg(&self, reg: usize) -> *const u8 {
        self.regs[reg]
    }

    /// Finds the coordinates of `start`; true if the range ends in the same row.
    fn locate(&mut self, start: usize, len: usize, inner: usize) -> bool {
        let mut rest = start;
        for d in (0..self.coords.len()).rev() {
            let n = self.bound.kernel.dims[d];
            self.coords[d] = rest % n;
            rest /= n;
        }
        self.coords[self.coords.len() - 1] + len <= inner
    }

    /// How far the element at the coordinates is from the first, in elements.
    fn position(&self, strides: &Strides) -> isize {
        self.coords.iter().zip(strides).map(|(&c, &s)| c as isize * s).sum()
    }

    /// Where the tile of a store lies if it is packed in memory.
    #[inline]
    fn straight(&self, store: &StoreAt, base: *mut u8, start: usize, within: bool) -> Option<*mut u8> {
        let size = store.dtype.size();
        if store.linear {
            let start = if store.row { start / self.bound.kernel.row_len } else { start };
            Some(base.wrapping_add(start * size))
        } else if !store.row && within && store.strides[store.strides.len() - 1] == 1 {
            Some(base.wrapping_offset(self.position(&store.strides) * size as isize))
        } else {
            None
        }
    }

    #[inline]
    unsafe fn load(&mut self, i: usize, load: &LoadAt, start: usize, len: usize, within: bool) {
        let tile = self.scratch.wrapping_add(load.tile_at);
        let base = self.bound.loads[i];
        let size = load.dtype.size();
        let native = load.raw || is_native(load.dtype);
        let dims = self.dims(load.row);
        let (start, len, within) = if load.row {
            (start / self.row_len(), len / self.row_len(), false)
        } else {
            (start, len, within)
        };
        // SAFETY: passed on from `eval`.
        unsafe {
            if let From::Iota(first, step) = &load.from {
                let (first, step) = (first.get(self.bound.slots), step.get(self.bound.slots));
                self.iota(load, first, step, tile, start, len);
                self.regs[i] = tile;
                return;
            }
            let inner = if dims == 0 { 0 } else { load.strides[dims - 1] };
            let packed = if load.linear {
                base.wrapping_add(start * size)
            } else if within && inner == 1 {
                base.wrapping_offset(self.position(&load.strides) * size as isize)
            } else {
                let to = if native { tile } else { self.scratch.wrapping_add(load.raw_at) };
                let at = base.wrapping_offset(self.position(&load.strides) * size as isize);
                runs::gather(&self.range(dims, &load.strides, len), size, at, to);
                to as *const u8
            };
            self.regs[i] = if native {
                packed as *mut u8
            } else {
                prefetch(packed.wrapping_add(len * size), len * size);
                widen(load.dtype, packed, tile, len);
                tile
            };
        }
    }

    #[inline]
    unsafe fn store(&self, store: &StoreAt, base: *mut u8, start: usize, len: usize, within: bool) {
        let from = self.regs[store.reg as usize] as *const u8;
        let size = store.dtype.size();
        let same = store.raw || is_native(store.dtype);
        let dims = self.dims(store.row);
        let len = if store.row { len / self.row_len() } else { len };
        // SAFETY: passed on from `eval`.
        unsafe {
            match self.straight(store, base, start, within) {
                Some(to) if store.direct && std::ptr::eq(to, from) => {}
                Some(to) if store.stream && self.bound.past => runs::stream(from, to, len * size),
                Some(to) if same => std::ptr::copy(from, to, len * size),
                Some(to) => narrow(store.dtype, from, to, len),
                None => {
                    let mut from = from;
                    if !same {
                        let raw = self.scratch.wrapping_add(store.raw_at);
                        narrow(store.dtype, from, raw, len);
                        from = raw;
                    }
                    let at = base.wrapping_offset(self.position(&store.strides) * size as isize);
                    runs::scatter(&self.range(dims, &store.strides, len), size, from, at);
                }
            }
        }
    }

    #[inline]
    fn row_len(&self) -> usize {
        self.bound.kernel.row_len
    }

    /// How many of the dimensions something per row, or per element, moves along.
    #[inline]
    fn dims(&self, row: bool) -> usize {
        if row { self.bound.kernel.row_dims } else { self.bound.kernel.dims.len() }
    }

    /// The range of the tile, over the first `rank` dimensions.
    #[inline]
    fn range<'r>(&'r self, rank: usize, strides: &'r Strides, len: usize) -> Range<'r> {
        Range { dims: &self.bound.kernel.dims[..rank], strides, coords: &self.coords[..rank], len }
    }

    /// Fills a tile with `first + position * step`.
    unsafe fn iota(
        &self,
        load: &LoadAt,
        first: Scalar,
        step: Scalar,
        tile: *mut u8,
        start: usize,
        len: usize,
    ) {
        let offset = load.map.offset(self.bound.slots);
        let dtype = load.dtype;
        let element = |position: isize| match dtype.kind() {
            Kind::Float => Scalar::Float(first.as_f64() + position as f64 * step.as_f64()),
            Kind::Int | Kind::Bool => {
                Scalar::Int(first.as_i64().wrapping_add(step.as_i64().wrapping_mul(position as i64)))
            }
        };
        // SAFETY: the tile holds `len` elements of the type's lane.
        unsafe {
            if load.linear {
                for k in 0..len {
                    put(dtype, element(offset + (start + k) as isize), tile, k);
                }
            } else {
                let at = offset + self.position(&load.strides);
                let dims = self.dims(load.row);
                let inner = if dims == 0 { 0 } else { load.strides[dims - 1] };
                let mut done = 0;
                self.range(dims, &load.strides, len).blocks(|moved, rows, step, run| {
                    for r in 0..rows as isize {
                        for k in 0..run {
                            put(dtype, element(at + moved + r * step + k as isize * inner), tile, done + k);
                        }
                        done += run;
                    }
                });
            }
        }
    }
}

/// Folds rows of a tile of `lane`, `len` elements each.
///
/// # Safety
/// `x` holds `rows` rows, `out` an element for each.
unsafe fn fold_lane(kind: ReduceKind, lane: Lane, x: *const u8, len: usize, rows: usize, out: *mut u8) {
    #[inline]
    unsafe fn typed<T: Folds>(kind: ReduceKind, x: *const u8, len: usize, rows: usize, out: *mut u8) {
        let (x, out) = (x as *const T, out as *mut T);
        // SAFETY: passed on from the caller.
        unsafe {
            if len <= BLOCK {
                return fold_rows(kind, x, len, rows, out);
            }
            for r in 0..rows {
                *out.add(r) = fold_list(kind, std::slice::from_raw_parts(x.add(r * len), len));
            }
        }
    }
    // SAFETY: passed on from the caller.
    unsafe {
        match lane {
            Lane::F32 => typed::<Fast>(kind, x, len, rows, out),
            Lane::F64 => typed::<f64>(kind, x, len, rows, out),
            Lane::I32 => typed::<i32>(kind, x, len, rows, out),
            Lane::I64 => typed::<i64>(kind, x, len, rows, out),
            Lane::Bool => typed::<u8>(kind, x, len, rows, out),
        }
    }
}

/// Asks for what the next tile will read.
#[inline(always)]
fn prefetch(from: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for at in (0..bytes).step_by(64) {
        // SAFETY: a prefetch of any address is harmless.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(
                from.wrapping_add(at) as *const i8
            )
        };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (from, bytes);
}

/// Writes element `k` of a tile, rounded to the type it stands for.
#[inline(always)]
unsafe fn put(dtype: gt_ir::DType, x: Scalar, tile: *mut u8, k: usize) {
    let x = x.to_dtype(dtype);
    // SAFETY: the caller's tile holds element `k`.
    unsafe {
        match Lane::of(dtype) {
            Lane::F32 => *(tile as *mut f32).add(k) = x.as_f64() as f32,
            Lane::F64 => *(tile as *mut f64).add(k) = x.as_f64(),
            Lane::I32 => *(tile as *mut i32).add(k) = x.as_i64() as i32,
            Lane::I64 => *(tile as *mut i64).add(k) = x.as_i64(),
            Lane::Bool => *tile.add(k) = x.as_bool() as u8,
        }
    }
}

/// Fills a tile with one value: a number, or the one element that a load shows.
unsafe fn splat(load: &LoadAt, from: *const u8, tile: *mut u8, n: usize, slots: &[Slot]) {
    let size = load.dtype.size();
    // SAFETY: passed on from the caller.
    unsafe {
        let x = match &load.from {
            From::Num(x) => x.get(slots),
            From::Mem(_) => {
                if load.raw {
                    runs::fill(size, from, tile, n);
                    return;
                }
                Scalar::read(load.dtype, std::slice::from_raw_parts(from, size))
            }
            From::Iota(..) => return,
        };
        put(load.dtype, x, tile, 0);
        let lane = Lane::of(load.dtype).size();
        runs::fill(lane, tile, tile, n);
    }
}

/// Into how many tasks to cut work of this size: 1 means it is not worth sharing.
pub fn tasks(threads: &Threads, work: usize, most: usize) -> usize {
    if threads.count() == 1 || work < PARALLEL {
        return 1;
    }
    (threads.count() * 8).min(work / (PARALLEL / 4)).min(most).max(1)
}

/// Runs an elementwise kernel.
pub fn run(kernel: &Lowered, bases: Bases, threads: &Threads) {
    if kernel.numel == 0 {
        return;
    }
    let begun = kernel.stores.iter().any(|s| s.stream).then(|| kernel.ways.begin());
    let past = begun.as_ref().is_some_and(|begun| begun.past);
    run_bound(&Bound::new(kernel, bases, past), threads);
    if let Some(begun) = begun {
        kernel.ways.end(begun);
    }
}

fn run_bound(bound: &Bound, threads: &Threads) {
    let kernel = bound.kernel;
    let inner = kernel.dims[kernel.dims.len() - 1];
    if let Some(dim) = kernel.turned
        && inner >= 16
        && kernel.numel > kernel.tile
    {
        return run_turned(bound, dim, threads);
    }
    // Rows long enough for a tile are walked one by one, others are walked across.
    let by_row = !kernel.linear && kernel.dims.len() > 1 && inner >= 128 && kernel.row_len == 1;
    let (units, unit) = if by_row {
        (kernel.numel / inner, inner)
    } else {
        (kernel.numel.div_ceil(kernel.tile), kernel.tile)
    };
    let tasks = tasks(threads, kernel.numel * kernel.cost, units);
    threads.run(tasks, &|t| {
        let (first, last) = (units * t / tasks, units * (t + 1) / tasks);
        let mut tiles = Tiles::new(bound, kernel.numel);
        for u in first..last {
            let end = ((u + 1) * unit).min(kernel.numel);
            let mut start = u * unit;
            while start < end {
                let len = (end - start).min(kernel.tile);
                // SAFETY: tasks cover disjoint ranges of the space.
                unsafe { tiles.eval(start, len) };
                start += len;
            }
        }
        if bound.past {
            runs::fence();
        }
    });
}

/// Runs a kernel with a transposed operand: short tiles, taken along the dimension in which that operand is packed, so
/// that a line of memory is used up while it is near.
fn run_turned(bound: &Bound, dim: usize, threads: &Threads) {
    const LINES: usize = 128;
    let kernel = bound.kernel;
    let inner = kernel.dims[kernel.dims.len() - 1];
    let along = kernel.dims[dim];
    let step: usize = kernel.dims[dim + 1..].iter().product();
    let width = LINES.min(kernel.tile).min(inner);
    let (across, between) = (inner.div_ceil(width), step / inner);
    let outer = kernel.numel / (along * step);
    // Long ways are cut, so that there are enough units for all threads.
    const WAY: usize = 256;
    let ways = along.div_ceil(WAY);
    let units = outer * between * ways * across;
    let tasks = tasks(threads, kernel.numel * kernel.cost, units);
    threads.run(tasks, &|t| {
        let mut tiles = Tiles::new(bound, width);
        for u in units * t / tasks..units * (t + 1) / tasks {
            let (rest, c) = (u / across, u % across * width);
            let (rest, w) = (rest / ways, rest % ways * WAY);
            let (o, b) = (rest / between, rest % between);
            let len = width.min(inner - c);
            for i in w..(w + WAY).min(along) {
                // SAFETY: units cover disjoint ranges of the space.
                unsafe { tiles.eval(o * along * step + i * step + b * inner + c, len) };
            }
        }
    });
}
