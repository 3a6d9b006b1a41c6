//! Kernels over rows that are known as a whole: norms and softmax, with what is fused to them. They are done by loops of
//! their own, which give the bits of the ops one by one.

// Elsewhere no form is found, and nothing of it is read.
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]

use super::convert::Lane;
use super::isa;
use super::kernel::Tiles;
use super::lower::{Do, From, Lowered, Op};
use gt_ir::{Binary, DType, ReduceKind, Unary};
use smallvec::{SmallVec, smallvec};

/// What a kernel is, as a whole.
pub enum Form {
    Norm(Norm),
    NormGrad(NormGrad),
    Softmax(Softmax),
}

/// `(x - mean) * rstd * weight + bias`, of `x` or of a sum.
#[derive(Default)]
pub struct Norm {
    /// The load that is normalised, and one that is added to it first.
    pub x: u16,
    pub plus: Option<u16>,
    /// The op whose tile takes the sum of the two.
    pub sum: Option<u16>,
    /// The mean is taken away; the load that it is divided by.
    pub centred: Option<u16>,
    /// What the sum of squares is divided by, and what is added then.
    pub count: u16,
    pub eps: u16,
    pub weight: Option<u16>,
    pub bias: Option<u16>,
    /// Where the sum, the factor of each row, what it gives and the result go.
    pub to_sum: Option<u16>,
    pub to_rstd: Option<u16>,
    pub to_hat: Option<u16>,
    pub to_out: Option<u16>,
}

/// The gradient of a norm's input: with `g` for a sum times the weight, `(g - mean(g) - hat * mean(g * hat)) * rstd`, perhaps
/// added to something.
pub struct NormGrad {
    /// The loads that are summed.
    pub terms: SmallVec<[u16; 4]>,
    pub weight: u16,
    /// The op whose tile takes `g`.
    pub product: u16,
    /// What the norm gave before its weight, and the load its mean product is divided by.
    pub hat: u16,
    pub count: u16,
    /// The mean is taken away; the load that it is divided by.
    pub centred: Option<u16>,
    pub rstd: u16,
    pub plus: Option<u16>,
    pub to: u16,
}

/// `exp(x - max) / sum`, or its logarithm.
pub struct Softmax {
    pub x: u16,
    pub log: bool,
    /// The op whose tile takes the exponentials.
    pub exp: u16,
    pub to: u16,
}

/// Rows of more blocks than one tree of sums takes, and those too short to gain, are left to others.
const LONGEST: usize = super::fold::BLOCK * 64;
const SHORTEST: usize = 32;
/// Rows up to this long may be asked for past all caches but the first, which has to hold them until they are read.
const ONCE: usize = 4096;
/// Terms of a sum before the gradient of a norm.
const MOST_TERMS: usize = 4;

/// The form of a kernel, if it has one.
pub fn find(kernel: &Lowered) -> Option<Form> {
    if isa::level() < 2 || !(SHORTEST..=LONGEST).contains(&kernel.row_len) {
        return None;
    }
    let plain = |op: &Op| op.lane == Lane::F32 && op.dtype == DType::F32 && !op.round;
    let stores = kernel.stores.iter().all(|s| s.linear && s.dtype == DType::F32 && s.apart);
    if !stores || !kernel.ops.iter().all(plain) {
        return None;
    }
    let norms = || norm(kernel).map(Form::Norm);
    let grads = || norm_grad(kernel).map(Form::NormGrad);
    let softmaxes = || softmax(kernel).map(Form::Softmax);
    norms().or_else(grads).or_else(softmaxes)
}

/// Reads the ops of a kernel in order.
struct Reader<'k> {
    kernel: &'k Lowered,
    at: usize,
}

impl<'k> Reader<'k> {
    /// The next op, if it is what `f` looks for.
    fn next<T>(&mut self, f: impl Fn(&'k Op) -> Option<T>) -> Option<T> {
        let found = self.kernel.ops.get(self.at).and_then(f);
        self.at += found.is_some() as usize;
        found
    }

    /// A fold of `x`; gives its result.
    fn fold(&mut self, kind: ReduceKind, x: u16) -> Option<u16> {
        self.next(|op| match op.work {
            Do::Fold(found) if found == kind && op.args[0] == x => Some(op.out),
            _ => None,
        })
    }

    fn unary(&mut self, row: Unary, x: u16) -> Option<u16> {
        self.next(|op| match op.work {
            Do::Unary(found) if found == row && op.args[0] == x => Some(op.out),
            _ => None,
        })
    }

    /// A binary op with `x` on its left; gives the other operand and the result.
    fn binary(&mut self, row: Binary, x: u16) -> Option<(u16, u16)> {
        self.next(|op| match op.work {
            Do::Binary(found) if found == row && op.args[0] == x => Some((op.args[1], op.out)),
            _ => None,
        })
    }

    /// As `binary`, on either side, with an operand that `wanted` says yes to.
    fn either(&mut self, row: Binary, x: u16, wanted: impl Fn(u16) -> bool) -> Option<(u16, u16)> {
        self.next(|op| {
            let other = match op.work {
                Do::Binary(found) if found == row && op.args[0] == x => op.args[1],
                Do::Binary(found) if found == row && op.args[1] == x => op.args[0],
                _ => return None,
            };
            wanted(other).then_some((other, op.out))
        })
    }

    fn done(&self) -> bool {
        self.at == self.kernel.ops.len()
    }
}

/// A load read element by element, in order.
fn far(kernel: &Lowered, reg: u16) -> bool {
    kernel.loads.get(reg as usize).is_some_and(|l| l.is_far() && l.dtype == DType::F32 && !l.splat)
}

/// A load with one number for all.
fn number(kernel: &Lowered, reg: u16) -> bool {
    kernel.loads.get(reg as usize).is_some_and(|l| l.splat && l.dtype == DType::F32)
}

/// A load that is the same row for all.
fn cycle(kernel: &Lowered, reg: u16) -> bool {
    kernel.loads.get(reg as usize).is_some_and(|l| l.cycle && matches!(l.from, From::Mem(_)))
}

fn norm(kernel: &Lowered) -> Option<Norm> {
    let mut ops = Reader { kernel, at: 0 };
    let mut form = Norm::default();
    let first = kernel.ops.first()?;
    let mut x = first.args[0];
    form.x = x;
    if !far(kernel, x) {
        return None;
    }
    if let Some((plus, sum)) = ops.binary(Binary::Add, x) {
        if !far(kernel, plus) {
            return None;
        }
        (form.plus, form.sum, x) = (Some(plus), Some(ops.at as u16 - 1), sum);
    }
    let sum = x;
    if let Some(total) = ops.fold(ReduceKind::Sum, x) {
        let (count, mean) = ops.binary(Binary::Div, total)?;
        let (by, less) = ops.binary(Binary::Sub, x)?;
        if by != mean || !number(kernel, count) {
            return None;
        }
        (form.centred, x) = (Some(count), less);
    }
    let squares = ops.next(|op| match op.work {
        Do::Binary(Binary::Mul) if op.args[0] == x && op.args[1] == x => Some(op.out),
        Do::Square if op.args[0] == x => Some(op.out),
        _ => None,
    })?;
    let total = ops.fold(ReduceKind::Sum, squares)?;
    let (count, mean) = ops.binary(Binary::Div, total)?;
    let (eps, sum_eps) = ops.either(Binary::Add, mean, |reg| number(kernel, reg))?;
    let rstd = ops.unary(Unary::Rsqrt, sum_eps)?;
    if !number(kernel, count) {
        return None;
    }
    (form.count, form.eps) = (count, eps);
    let (_, hat) = ops.either(Binary::Mul, x, |reg| reg == rstd)?;
    let mut out = hat;
    if let Some((weight, scaled)) = ops.either(Binary::Mul, out, |reg| cycle(kernel, reg)) {
        (form.weight, out) = (Some(weight), scaled);
    }
    if let Some((bias, moved)) = ops.either(Binary::Add, out, |reg| cycle(kernel, reg)) {
        (form.bias, out) = (Some(bias), moved);
    }
    for (i, store) in kernel.stores.iter().enumerate() {
        let place = match store.reg {
            reg if reg == out => &mut form.to_out,
            reg if reg == hat => &mut form.to_hat,
            reg if reg == rstd => &mut form.to_rstd,
            reg if reg == sum && form.plus.is_some() => &mut form.to_sum,
            _ => return None,
        };
        if place.replace(i as u16).is_some() {
            return None;
        }
    }
    ops.done().then_some(form)
}

fn norm_grad(kernel: &Lowered) -> Option<NormGrad> {
    let mut ops = Reader { kernel, at: 0 };
    let mut x = kernel.ops.first()?.args[0];
    let mut terms: SmallVec<[u16; 4]> = smallvec![x];
    while let Some((term, sum)) = ops.binary(Binary::Add, x) {
        terms.push(term);
        x = sum;
    }
    if terms.len() > MOST_TERMS || !terms.iter().all(|&reg| far(kernel, reg)) {
        return None;
    }
    let (weight, g) = ops.either(Binary::Mul, x, |reg| cycle(kernel, reg))?;
    let product = ops.at as u16 - 1;
    let (hat, products) = ops.either(Binary::Mul, g, |reg| far(kernel, reg))?;
    let total = ops.fold(ReduceKind::Sum, products)?;
    let (count, mean) = ops.binary(Binary::Div, total)?;
    let (_, along) = ops.either(Binary::Mul, hat, |reg| reg == mean)?;
    let (mut centred, mut left) = (None, g);
    if let Some(total) = ops.fold(ReduceKind::Sum, g) {
        let (by, mean) = ops.binary(Binary::Div, total)?;
        left = ops.binary(Binary::Sub, g).filter(|(less, _)| *less == mean)?.1;
        centred = Some(by);
    }
    let (_, across) = ops.binary(Binary::Sub, left).filter(|(less, _)| *less == along)?;
    let per_row = |reg: u16| {
        let load = kernel.loads.get(reg as usize);
        load.is_some_and(|l| {
            l.row && l.linear && !l.splat && l.dtype == DType::F32 && matches!(l.from, From::Mem(_))
        })
    };
    let (rstd, mut out) = ops.either(Binary::Mul, across, per_row)?;
    let mut plus = None;
    if let Some((other, sum)) = ops.either(Binary::Add, out, |reg| far(kernel, reg)) {
        (plus, out) = (Some(other), sum);
    }
    let [store] = &kernel.stores[..] else { return None };
    let numbers = number(kernel, count) && centred.is_none_or(|reg| number(kernel, reg));
    let found = numbers && ops.done() && store.reg == out && !store.row;
    found.then_some(NormGrad { terms, weight, product, hat, count, centred, rstd, plus, to: 0 })
}

fn softmax(kernel: &Lowered) -> Option<Softmax> {
    let mut ops = Reader { kernel, at: 0 };
    let x = kernel.ops.first()?.args[0];
    if !far(kernel, x) {
        return None;
    }
    let top = ops.fold(ReduceKind::Max, x)?;
    let (by, less) = ops.binary(Binary::Sub, x)?;
    let exp = ops.unary(Unary::Exp, less)?;
    let at = ops.at as u16 - 1;
    let total = ops.fold(ReduceKind::Sum, exp)?;
    let log = ops.unary(Unary::Log, total);
    let out = match log {
        Some(log) => ops.binary(Binary::Sub, less).filter(|(by, _)| *by == log)?.1,
        None => {
            let share = ops.unary(Unary::Recip, total)?;
            ops.either(Binary::Mul, exp, |reg| reg == share)?.1
        }
    };
    let [store] = &kernel.stores[..] else { return None };
    let found = by == top && ops.done() && store.reg == out && !store.row;
    found.then_some(Softmax { x, log: log.is_some(), exp: at, to: 0 })
}

impl Tiles<'_, '_> {
    /// Does a form for whole rows.
    ///
    /// # Safety
    /// As for `eval`.
    pub unsafe fn form(&self, form: &Form, start: usize, len: usize) {
        let kernel = self.bound.kernel;
        let (row, rows) = (kernel.row_len, len / kernel.row_len);
        let load = |reg: u16| self.bound.loads[reg as usize].wrapping_add(start * 4) as *const f32;
        let cycle = |reg: u16| self.regs[reg as usize] as *const f32;
        // SAFETY: the tile of a number holds one.
        let number = |reg: u16| unsafe { *(self.regs[reg as usize] as *const f32) };
        let tile = |op: u16| self.scratch.wrapping_add(kernel.ops[op as usize].tile_at) as *mut f32;
        let store = |i: u16| Dest {
            to: self.bound.stores[i as usize].wrapping_add(start * 4) as *mut f32,
            stream: kernel.stores[i as usize].stream && self.bound.past,
        };
        let once = row <= ONCE && kernel.stores.iter().any(|s| s.stream);
        let ask = match (kernel.ahead, once) {
            (false, _) => Ask::No,
            (true, false) => Ask::Near,
            (true, true) => Ask::Once,
        };
        match form {
            Form::Norm(norm) => {
                let sum = norm.to_sum.map(store);
                let in_place = sum.filter(|sum| !sum.stream);
                let kept = norm.sum.map_or(std::ptr::null_mut(), tile);
                let rstd = |i: u16| self.bound.stores[i as usize].wrapping_add(start / row * 4) as *mut f32;
                let job = NormRows {
                    len: row,
                    rows,
                    ask,
                    x: load(norm.x),
                    plus: norm.plus.map(load),
                    kept: in_place.map_or(kept, |sum| sum.to),
                    kept_moves: in_place.is_some(),
                    sum: sum.filter(|sum| sum.stream),
                    centred: norm.centred.map(number),
                    count: number(norm.count),
                    eps: number(norm.eps),
                    weight: norm.weight.map(cycle),
                    bias: norm.bias.map(cycle),
                    rstd: norm.to_rstd.map(rstd),
                    hat: norm.to_hat.map(store),
                    out: norm.to_out.map(store),
                };
                // SAFETY: passed on from the caller; the form says what the addresses hold.
                unsafe { job.run() }
            }
            Form::NormGrad(grad) => {
                let terms: SmallVec<[*const f32; MOST_TERMS]> = grad.terms.iter().map(|&x| load(x)).collect();
                let rstd = self.bound.loads[grad.rstd as usize].wrapping_add(start / row * 4);
                let job = NormGradRows {
                    len: row,
                    rows,
                    ask,
                    terms: &terms,
                    weight: cycle(grad.weight),
                    kept: tile(grad.product),
                    hat: load(grad.hat),
                    count: number(grad.count),
                    centred: grad.centred.map(number),
                    rstd: rstd as *const f32,
                    plus: grad.plus.map(load),
                    to: store(grad.to),
                };
                // SAFETY: as above.
                unsafe { job.run() }
            }
            Form::Softmax(softmax) => {
                let (x, kept, to) = (load(softmax.x), tile(softmax.exp), store(softmax.to));
                let job = SoftmaxRows { len: row, rows, ask, log: softmax.log, x, kept, to };
                // SAFETY: as above.
                unsafe { job.run() }
            }
        }
    }
}

/// Whether later rows are asked for, which is worth it where they are far away.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    No,
    Near,
    /// They are read this once: the last cache has better use for its lines.
    Once,
}

/// Where elements are written.
#[derive(Clone, Copy)]
pub struct Dest {
    pub to: *mut f32,
    /// Past the caches.
    pub stream: bool,
}

/// Rows to normalise, with the addresses of the first of them.
pub struct NormRows {
    pub len: usize,
    pub rows: usize,
    pub ask: Ask,
    pub x: *const f32,
    pub plus: Option<*const f32>,
    /// Where the sum of the two is kept for the row: in place for all rows, or in the same place again and again.
    pub kept: *mut f32,
    pub kept_moves: bool,
    pub sum: Option<Dest>,
    pub centred: Option<f32>,
    pub count: f32,
    pub eps: f32,
    pub weight: Option<*const f32>,
    pub bias: Option<*const f32>,
    pub rstd: Option<*mut f32>,
    pub hat: Option<Dest>,
    pub out: Option<Dest>,
}

/// Rows of the gradient of a norm, with the addresses of the first of them.
pub struct NormGradRows<'a> {
    pub len: usize,
    pub rows: usize,
    pub ask: Ask,
    pub terms: &'a [*const f32],
    pub weight: *const f32,
    /// A row of the sum times the weight.
    pub kept: *mut f32,
    pub hat: *const f32,
    pub count: f32,
    pub centred: Option<f32>,
    /// One for each row.
    pub rstd: *const f32,
    pub plus: Option<*const f32>,
    pub to: Dest,
}

/// Rows to take the softmax of, with the addresses of the first of them.
pub struct SoftmaxRows {
    pub len: usize,
    pub rows: usize,
    pub ask: Ask,
    pub log: bool,
    pub x: *const f32,
    /// A row's exponentials.
    pub kept: *mut f32,
    pub to: Dest,
}

impl NormRows {
    /// # Safety
    /// The level that `find` asks for was detected. Every address holds rows of `len` elements, or one where it says so, and
    /// what is written overlaps nothing that is read, unless it is the same element.
    pub unsafe fn run(&self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: passed on from the caller.
        unsafe {
            match isa::level() {
                3 => x86::wide::norm(self),
                _ => x86::narrow::norm(self),
            }
        }
    }
}

impl NormGradRows<'_> {
    /// # Safety
    /// As for `NormRows`.
    pub unsafe fn run(&self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: passed on from the caller.
        unsafe {
            match isa::level() {
                3 => x86::wide::norm_grad(self),
                _ => x86::narrow::norm_grad(self),
            }
        }
    }
}

impl SoftmaxRows {
    /// # Safety
    /// As for `NormRows`.
    pub unsafe fn run(&self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: passed on from the caller.
        unsafe {
            match isa::level() {
                3 => x86::wide::softmax(self),
                _ => x86::narrow::softmax(self),
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[path = "forms_x86.rs"]
mod x86;
