//! Runs of ops on `f32` done together: a value stays in vector registers from op to op, and only what somebody else
//! reads is written to its tile. The bits are those of the ops one by one.

use super::acts::{self, Act, Code, by_one, fold_code, map, pair};
use super::convert::Lane;
use super::isa;
use super::lower::{Do, From, Lowered, Op};
use gt_ir::{Binary, DType, ReduceKind};
use smallvec::SmallVec;

/// Ops of a kernel in a row that are done together.
pub struct Chain {
    /// The ops `first..last`.
    pub first: usize,
    pub last: usize,
    pub code: Vec<Act>,
    /// What the acts read and write.
    pub places: Vec<Place>,
    /// The first place written past the caches, and the same acts for a run that writes through them.
    pub stream: Option<u8>,
    through: Vec<Act>,
    /// How the chain ends, if each row becomes a number: this op's result.
    pub fold: Option<(ReduceKind, usize)>,
    /// Its elements are the rows of the tile.
    pub by_row: bool,
    /// It has acts that need many registers.
    pub heavy: bool,
}

/// How a kernel's ops are taken.
pub enum Unit {
    Op(usize),
    Chain(Chain),
}

/// Where an act finds its operand or leaves the value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// The tile of a register.
    Reg(u16),
    /// A load that is the same for all rows, as it lies in memory.
    Cycle(u16),
    /// The one number in the tile of a register.
    Splat(u16),
    /// The row's number in the tile of a register.
    Row(u16),
    /// The result of an op.
    Out(u16),
    /// Where a store goes.
    Store(u16),
    /// What a load reads for the next tile, from so many eighths of it on.
    Far(u16, u8),
}

/// Rows shorter than a block of registers are better taken together, op by op.
const SHORT: usize = 64;
/// Places of a chain; more are not worth it.
const MOST: usize = 24;

/// Cuts the ops of a kernel into units. `kept` is the register that a fold reads when the kernel is done, `narrow` says that
/// it does so in tiles too short for chains.
pub fn units(kernel: &mut Lowered, kept: Option<u16>, narrow: bool) {
    let long = kernel.row_len == 1 || kernel.row_len >= SHORT;
    let chains = isa::level() >= 3 && long && !narrow;
    let mut cut = Cut { kernel, remade: Vec::new() };
    let mut drafts = Vec::new();
    let mut at = 0;
    while at < cut.kernel.ops.len() {
        let draft = if chains { cut.chain(at) } else { None };
        at = draft.as_ref().map_or(at + 1, |d| d.chain.last);
        drafts.push(draft.ok_or(at - 1));
    }
    let remade = cut.remade;
    cycles(&mut drafts, kernel, kept);
    let read = Read::new(&drafts, kernel, kept);
    let mut out: Vec<Unit> = Vec::with_capacity(drafts.len());
    for draft in drafts {
        out.push(match draft {
            Ok(draft) => Unit::Chain(save(draft, kernel, &read, &remade)),
            Err(op) => Unit::Op(op),
        });
    }
    if kernel.ahead {
        ask_ahead(&mut out, kernel);
        // Without rows tiles are short, and only a chain asks at no cost.
        kernel.ahead &= kernel.row_len > 1;
    }
    for unit in &mut out {
        if let Unit::Chain(chain) = unit
            && chain.stream.is_some()
        {
            let near = |act: &Act| match act.code {
                Code::Stream => Act { code: Code::Save, ..*act },
                _ => *act,
            };
            chain.through = chain.code.iter().map(near).collect();
        }
    }
    kernel.units = out;
}

/// What is read from far away is asked for by the chains, a tile ahead: by each a part, as it takes its part of the time.
/// The light ones wait for memory anyway, so they leave it to heavy ones.
fn ask_ahead(units: &mut [Unit], kernel: &mut Lowered) {
    let mut chains: Vec<&mut Chain> = Vec::new();
    for unit in units {
        match unit {
            Unit::Chain(chain) if !chain.by_row => chains.push(chain),
            _ => {}
        }
    }
    if chains.iter().any(|c| c.heavy) {
        chains.retain(|c| c.heavy);
    }
    let total: usize = chains.iter().map(|c| c.cost()).sum();
    let far: Vec<usize> = (0..kernel.loads.len())
        .filter(|&i| kernel.loads[i].is_far() && kernel.loads[i].dtype == DType::F32)
        .collect();
    // Beside large results: the last cache has better use for its lines.
    let once = kernel.stores.iter().any(|s| s.stream) as u8;
    let (mut sum, mut asked) = (0, 0);
    for chain in chains {
        sum += chain.cost();
        let until = sum * 8 / total.max(1);
        for &i in far.iter().filter(|_| until > asked) {
            chain.places.push(Place::Far(i as u16, asked as u8));
            let at = chain.places.len() as u8 - 1;
            chain.code.insert(0, Act { code: Code::Ask, at, by: (until - asked) as u8, to: once });
            kernel.ahead = false;
        }
        asked = until;
    }
}

/// A chain being made, with the length its code had after each op.
struct Draft {
    chain: Chain,
    ends: Vec<usize>,
}

/// Finds chains in a kernel.
struct Cut<'k> {
    kernel: &'k Lowered,
    /// Ops that compute the result of an earlier one again, and which: cheaper than to write and read it.
    remade: Vec<(usize, usize)>,
}

impl Cut<'_> {
    /// The chain that begins with op `first`, if there is one that pays.
    fn chain(&mut self, first: usize) -> Option<Draft> {
        let by_row = self.kernel.ops[first].row && !matches!(self.kernel.ops[first].work, Do::Fold(_));
        let (code, places) = (Vec::new(), Vec::new());
        let chain = Chain {
            first,
            last: first,
            code,
            places,
            stream: None,
            through: Vec::new(),
            fold: None,
            by_row,
            heavy: false,
        };
        let mut draft = Draft { chain, ends: Vec::new() };
        let (ops, remade) = (&self.kernel.ops, self.remade.len());
        let mut value = None;
        while draft.chain.last < ops.len() && draft.chain.places.len() < MOST && draft.chain.fold.is_none() {
            let op = &ops[draft.chain.last];
            if !self.extend(&mut draft.chain, op, value) {
                break;
            }
            draft.ends.push(draft.chain.code.len());
            value = Some(op.out);
            draft.chain.last += 1;
        }
        let chain = &draft.chain;
        let streams = |op: &Op| self.kernel.stores.iter().any(|s| s.reg == op.out && s.stream);
        let pays = match chain.last - chain.first {
            0 => false,
            1 => self.kernel.row_len > 1 || streams(&ops[first]),
            _ => true,
        };
        if !pays {
            self.remade.truncate(remade);
        }
        pays.then_some(draft)
    }

    /// Adds what an op does; false if it cannot be part of the chain. `value` is the register at hand.
    fn extend(&mut self, chain: &mut Chain, op: &Op, value: Option<u16>) -> bool {
        if op.lane != Lane::F32 || op.dtype != DType::F32 || op.round {
            return false;
        }
        let at_hand = |k: usize| value == Some(op.args[k]) && !op.spread[k];
        if let Do::Fold(kind) = op.work {
            if chain.by_row {
                return false;
            }
            if !at_hand(0) {
                self.load(chain, op, 0);
            }
            chain.code.push(Act::new(fold_code(kind), 0));
            chain.fold = Some((kind, chain.last));
            return true;
        }
        if op.row != chain.by_row {
            return false;
        }
        if let Some(code) = map(&op.work) {
            if !at_hand(0) {
                self.load(chain, op, 0);
            }
            chain.code.push(Act::new(code, 0));
            return true;
        }
        let Do::Binary(row) = op.work else { return false };
        let Some((left, right)) = pair(row) else { return false };
        match (at_hand(0), at_hand(1)) {
            (true, true) if row == Binary::Mul => chain.code.push(Act::new(Code::Square, 0)),
            (true, true) => return false,
            (true, false) => self.with(chain, op, left, 1),
            (false, true) => self.with(chain, op, right, 0),
            // The operand with more numbers is the one to begin with, if the order does not matter.
            (false, false) if left == right && self.one(op, 0) => {
                self.load(chain, op, 1);
                self.with(chain, op, right, 0);
            }
            (false, false) => {
                self.load(chain, op, 0);
                self.with(chain, op, left, 1);
            }
        }
        true
    }

    /// True if operand `k` is one number for a row or for all.
    fn one(&self, op: &Op, k: usize) -> bool {
        op.spread[k] || self.kernel.loads.get(op.args[k] as usize).is_some_and(|l| l.splat)
    }

    fn place(&self, chain: &Chain, op: &Op, k: usize) -> Place {
        let (reg, loads) = (op.args[k], self.kernel.loads.len() as u16);
        match self.kernel.loads.get(reg as usize) {
            Some(load) if load.splat => Place::Splat(reg),
            _ if op.spread[k] => Place::Row(reg),
            None if (reg - loads) as usize >= chain.first => Place::Out(reg - loads),
            _ => Place::Reg(reg),
        }
    }

    /// An act with operand `k`.
    fn with(&self, chain: &mut Chain, op: &Op, code: Code, k: usize) {
        let place = self.place(chain, op, k);
        let code = if matches!(place, Place::Splat(_) | Place::Row(_)) { by_one(code) } else { code };
        let at = chain.place(place);
        chain.code.push(Act::new(code, at));
    }

    /// Makes operand `k` the value at hand.
    fn load(&mut self, chain: &mut Chain, op: &Op, k: usize) {
        let source = (op.args[k] as usize).checked_sub(self.kernel.loads.len()).filter(|_| !op.spread[k]);
        let cheap = source.and_then(|m| Some((m, self.cheap(&self.kernel.ops[m])?)));
        let Some((source, code)) = cheap else { return self.with(chain, op, Code::Load, k) };
        self.remade.push((chain.last, source));
        let from = &self.kernel.ops[source];
        self.with(chain, from, Code::Load, 0);
        self.with(chain, from, code, 1);
    }

    /// The act of an op that costs no more to do again than to read its result, if what it reads stays where it is.
    fn cheap(&self, op: &Op) -> Option<Code> {
        let stays = |k: usize| match self.kernel.loads.get(op.args[k] as usize) {
            Some(load) => load.splat || load.row || (load.linear && matches!(load.from, From::Mem(_))),
            None => op.spread[k],
        };
        let plain = op.lane == Lane::F32 && op.dtype == DType::F32 && !op.round && !op.row;
        let f32s =
            |k: usize| self.kernel.loads.get(op.args[k] as usize).is_none_or(|l| l.dtype == DType::F32);
        match op.work {
            Do::Binary(row @ (Binary::Add | Binary::Sub | Binary::Mul))
                if plain && (0..2).all(|k| stays(k) && f32s(k)) =>
            {
                pair(row).map(|(left, _)| left)
            }
            _ => None,
        }
    }
}

impl Chain {
    fn cost(&self) -> usize {
        self.code.iter().map(acts::cost).sum()
    }

    /// The number of a place.
    fn place(&mut self, place: Place) -> u8 {
        let at = self.places.iter().position(|p| *p == place).unwrap_or_else(|| {
            self.places.push(place);
            self.places.len() - 1
        });
        at as u8
    }
}

/// Settles which loads stay one row for all: those that only chains read.
fn cycles(drafts: &mut [Result<Draft, usize>], kernel: &mut Lowered, kept: Option<u16>) {
    for i in 0..kernel.loads.len() {
        let reg = i as u16;
        let elsewhere = |d: &Result<Draft, usize>| match d {
            Ok(_) => false,
            Err(op) => kernel.ops[*op].reads(reg),
        };
        let other =
            drafts.iter().any(elsewhere) || kernel.stores.iter().any(|s| s.reg == reg) || kept == Some(reg);
        kernel.loads[i].cycle &= !other;
        if !kernel.loads[i].cycle {
            continue;
        }
        for draft in drafts.iter_mut().flatten() {
            for place in draft.chain.places.iter_mut().filter(|p| **p == Place::Reg(reg)) {
                *place = Place::Cycle(reg);
            }
        }
    }
}

/// The registers that somebody reads from their tiles.
struct Read {
    regs: Vec<bool>,
    /// The one that a fold reads when the kernel is done.
    kept: Option<u16>,
}

impl Read {
    fn new(drafts: &[Result<Draft, usize>], kernel: &Lowered, kept: Option<u16>) -> Read {
        let mut read = vec![false; kernel.regs];
        let loads = kernel.loads.len();
        let mut mark = |reg: usize| read[reg] = true;
        for draft in drafts {
            match draft {
                Ok(draft) => draft.chain.places.iter().for_each(|place| match *place {
                    Place::Reg(reg) | Place::Row(reg) => mark(reg as usize),
                    Place::Out(i) => mark(loads + i as usize),
                    Place::Cycle(_) | Place::Splat(_) | Place::Store(_) | Place::Far(..) => {}
                }),
                Err(op) => {
                    let op = &kernel.ops[*op];
                    op.args[..op.arity].iter().for_each(|&reg| mark(reg as usize));
                }
            }
        }
        kept.iter().for_each(|&reg| mark(reg as usize));
        Read { regs: read, kept }
    }
}

/// Adds the acts that write what others read, and takes over the stores that are to go past the caches.
fn save(draft: Draft, kernel: &mut Lowered, read: &Read, remade: &[(usize, usize)]) -> Chain {
    let Draft { mut chain, ends } = draft;
    let acts = std::mem::take(&mut chain.code);
    let mut code = Vec::with_capacity(acts.len() + 4);
    let mut done = 0;
    for (i, end) in (chain.first..chain.last).zip(ends) {
        code.extend_from_slice(&acts[done..end]);
        done = end;
        if matches!(kernel.ops[i].work, Do::Fold(_)) {
            break;
        }
        let out = kernel.ops[i].out;
        for s in 0..kernel.stores.len() {
            if kernel.stores[s].reg == out && kernel.stores[s].stream {
                let at = chain.place(Place::Store(s as u16));
                code.push(Act::new(Code::Stream, at));
                chain.stream = chain.stream.or(Some(at));
                kernel.stores[s].done = true;
            }
        }
        if let Some(s) = onto(kernel, i, read, remade) {
            kernel.ops[i].direct = Some(s as u16);
            kernel.stores[s].direct = true;
        }
        if read.regs[out as usize] || kernel.stores.iter().any(|s| s.reg == out && !s.done) {
            let at = chain.place(Place::Out(i as u16));
            code.push(Act::new(Code::Save, at));
        }
    }
    acts::join(&mut code);
    chain.heavy = code.iter().any(|act| acts::is_heavy(act.code));
    chain.code = code;
    chain
}

/// The store that op `i` of a chain may write at once although its memory may be that of a load: block by block, what lies
/// there has been read for the last time.
fn onto(kernel: &Lowered, i: usize, read: &Read, remade: &[(usize, usize)]) -> Option<usize> {
    let later = |load: u16| {
        kernel.ops[i + 1..].iter().any(|op| op.reads(load))
            || remade.iter().any(|&(reader, source)| reader > i && kernel.ops[source].reads(load))
    };
    let over = |load: &u16| {
        !later(*load) && read.kept != Some(*load) && kernel.stores.iter().all(|s| s.reg != *load)
    };
    let op = &kernel.ops[i];
    let mut stores = kernel.stores.iter();
    let found = stores.position(|s| {
        s.reg == op.out && !s.direct && !s.done && !s.over.is_empty() && s.over.iter().all(over)
    });
    found.filter(|_| op.direct.is_none())
}

/// Does a chain over `rows` rows of `len` elements, large results past the caches or through them; `at` has an address for
/// each place.
///
/// # Safety
/// AVX-512 was detected. The addresses are those of the places for this tile, and hold what the acts read and write.
pub unsafe fn run(chain: &Chain, at: &mut Addresses, len: usize, rows: usize, fold: *mut f32, past: bool) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: passed on from the caller.
    unsafe {
        x86::run(chain, at, len, rows, fold, past)
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (chain, at, len, rows, fold, past);
}

/// Does one act without a place on `n` elements.
///
/// # Safety
/// AVX-512 was detected. Both sides hold `n` elements and do not overlap.
pub unsafe fn map_tile(code: Code, x: *const f32, out: *mut f32, n: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: passed on from the caller.
    unsafe {
        x86::map_tile(code, x, out, n)
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (code, x, out, n);
}

/// Folds `rows` rows of `len` elements, at most a block each, that lie one after the other.
///
/// # Safety
/// AVX-512 was detected. `x` holds the rows, `out` an element for each.
pub unsafe fn fold_rows(kind: ReduceKind, x: *const f32, len: usize, rows: usize, out: *mut f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: passed on from the caller.
    unsafe {
        x86::fold_rows(kind, x, len, rows, out)
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (kind, x, len, rows, out);
}

pub type Addresses = SmallVec<[*mut f32; MOST + 8]>;

#[cfg(target_arch = "x86_64")]
#[path = "chain_x86.rs"]
mod x86;
