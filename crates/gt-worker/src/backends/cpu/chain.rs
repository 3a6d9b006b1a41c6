//! Runs of ops on `f32` done together: a value stays in vector registers from op to op, and only what somebody else
//! reads is written to its tile. The bits are those of the ops one by one.

use super::convert::Lane;
use super::isa;
use super::lower::{Do, Lowered, Op};
use gt_ir::{Binary, DType, ReduceKind, Unary};
use smallvec::SmallVec;

/// Ops of a kernel in a row that are done together.
pub struct Chain {
    /// The ops `first..last`.
    pub first: usize,
    pub last: usize,
    pub code: Vec<Act>,
    /// What the acts read and write.
    pub places: Vec<Place>,
    /// The first place written past the caches.
    pub stream: Option<u8>,
    /// How the chain ends, if each row becomes a number: this op's result.
    pub fold: Option<(ReduceKind, usize)>,
}

/// How a kernel's ops are taken.
pub enum Unit {
    Op(usize),
    Chain(Chain),
}

/// One act on the value at hand. The numbers are those of places.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    /// The value is what lies at a place, one number for each element or one for all.
    Load(u8),
    LoadOne(u8),
    /// The op with the value on its left.
    With(Two, u8),
    WithOne(Two, u8),
    /// The op with the value on its right.
    After(Two, u8),
    AfterOne(Two, u8),
    Map(One),
    Save(u8),
    /// Writes past the caches.
    Stream(u8),
    Fold(ReduceKind),
    /// Asks for what lies a tile further.
    Ask(u8),
}

/// Binary ops of chains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Two {
    Add,
    Sub,
    Mul,
    Div,
    Max,
    Min,
}

/// Unary ops of chains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum One {
    Neg,
    Abs,
    Relu,
    Sqrt,
    Rsqrt,
    Recip,
    Square,
    Cube,
    Exp,
    Tanh,
    Sigmoid,
    Silu,
    Gelu,
    GeluGrad,
}

/// Where an act finds its operand or leaves the value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// The tile of a register.
    Reg(u16),
    /// The one number in the tile of a register.
    Splat(u16),
    /// The row's number in the tile of a register.
    Row(u16),
    /// The result of an op.
    Out(u16),
    /// Where a store goes.
    Store(u16),
    /// Where a load comes from.
    Far(u16),
}

fn two(op: Binary) -> Option<Two> {
    Some(match op {
        Binary::Add => Two::Add,
        Binary::Sub => Two::Sub,
        Binary::Mul => Two::Mul,
        Binary::Div => Two::Div,
        Binary::Max => Two::Max,
        Binary::Min => Two::Min,
        Binary::FloorDiv | Binary::Rem | Binary::Pow | Binary::And | Binary::Or | Binary::Xor => return None,
        Binary::Eq | Binary::Ne | Binary::Lt | Binary::Le | Binary::Gt | Binary::Ge => return None,
    })
}

fn one(op: Unary) -> Option<One> {
    Some(match op {
        Unary::Neg => One::Neg,
        Unary::Abs => One::Abs,
        Unary::Relu => One::Relu,
        Unary::Sqrt => One::Sqrt,
        Unary::Rsqrt => One::Rsqrt,
        Unary::Recip => One::Recip,
        Unary::Exp => One::Exp,
        Unary::Tanh => One::Tanh,
        Unary::Sigmoid => One::Sigmoid,
        Unary::Silu => One::Silu,
        Unary::Gelu => One::Gelu,
        Unary::GeluGrad => One::GeluGrad,
        Unary::Sign | Unary::Expm1 | Unary::Log | Unary::Log1p | Unary::Sin | Unary::Cos | Unary::Erf => {
            return None;
        }
        Unary::Floor | Unary::Ceil | Unary::Round | Unary::Trunc | Unary::Not => return None,
    })
}

/// Rows shorter than a block of registers are better taken together, op by op.
const SHORT: usize = 64;

/// Cuts the ops of a kernel into units. `kept` is the register that a fold reads when the kernel is done, `narrow` says that
/// it does so in tiles too short for chains.
pub fn units(kernel: &mut Lowered, kept: Option<u16>, narrow: bool) {
    let mut out = Vec::new();
    let long = kernel.row_len == 1 || kernel.row_len >= SHORT;
    let chains = isa::level() >= 3 && long && !narrow;
    let mut at = 0;
    while at < kernel.ops.len() {
        let chain = if chains { chain(kernel, at, kept) } else { None };
        match chain {
            Some(chain) => {
                at = chain.last;
                out.push(Unit::Chain(chain));
            }
            None => {
                out.push(Unit::Op(at));
                at += 1;
            }
        }
    }
    if kernel.ahead {
        ask_ahead(&mut out, kernel);
        // Without rows tiles are short, and only a chain asks at no cost.
        kernel.ahead &= kernel.row_len > 1;
    }
    kernel.units = out;
}

/// What is read from far away is asked for by the longest chain, a tile ahead.
fn ask_ahead(units: &mut [Unit], kernel: &mut Lowered) {
    let longest = units.iter_mut().filter_map(|u| match u {
        Unit::Chain(chain) => Some(chain),
        Unit::Op(_) => None,
    });
    let Some(chain) = longest.max_by_key(|c| c.code.iter().map(cost).sum::<usize>()) else { return };
    for (i, load) in kernel.loads.iter().enumerate() {
        if load.is_far() && load.dtype == DType::F32 {
            chain.places.push(Place::Far(i as u16));
            chain.code.insert(1, Act::Ask(chain.places.len() as u8 - 1));
            kernel.ahead = false;
        }
    }
}

fn cost(act: &Act) -> usize {
    match act {
        Act::Map(One::Neg | One::Abs | One::Relu | One::Square | One::Cube) => 1,
        Act::Map(_) => 10,
        _ => 1,
    }
}

/// Places of a chain; more are not worth it.
const MOST: usize = 24;

/// The chain that begins with op `first`, if there is one that pays.
fn chain(kernel: &mut Lowered, first: usize, kept: Option<u16>) -> Option<Chain> {
    let mut chain =
        Chain { first, last: first, code: Vec::new(), places: Vec::new(), stream: None, fold: None };
    let mut value = None;
    while chain.last < kernel.ops.len() && chain.places.len() < MOST && chain.fold.is_none() {
        let op = &kernel.ops[chain.last];
        if !extend(&mut chain, op, kernel, value) {
            break;
        }
        value = Some(op.out);
        chain.last += 1;
    }
    let streams = |op: &Op| kernel.stores.iter().any(|s| s.reg == op.out && s.stream);
    let pays = match chain.last - chain.first {
        0 => false,
        1 => chain.fold.is_none() && streams(&kernel.ops[first]),
        _ => true,
    };
    if !pays {
        return None;
    }
    save(&mut chain, kernel, kept);
    Some(chain)
}

/// Adds what an op does; false if it cannot be part of the chain. `value` is the register at hand.
fn extend(chain: &mut Chain, op: &Op, kernel: &Lowered, value: Option<u16>) -> bool {
    if op.lane != Lane::F32 || op.dtype != DType::F32 || op.round {
        return false;
    }
    let (begin, loads) = (chain.first, kernel.loads.len());
    let place = |k: usize| {
        let reg = op.args[k];
        match kernel.loads.get(reg as usize) {
            Some(load) if load.splat => Place::Splat(reg),
            _ if op.spread[k] => Place::Row(reg),
            None if reg as usize - loads >= begin => Place::Out(reg - loads as u16),
            _ => Place::Reg(reg),
        }
    };
    let at_hand = |k: usize| value == Some(op.args[k]) && !op.spread[k];
    let load = |chain: &mut Chain, k: usize| {
        let (at, many) = chain.place(place(k));
        chain.code.push(if many { Act::Load(at) } else { Act::LoadOne(at) });
    };
    if let Do::Fold(kind) = op.work {
        if !at_hand(0) {
            return false;
        }
        chain.code.push(Act::Fold(kind));
        chain.fold = Some((kind, chain.last));
        return true;
    }
    if op.row {
        return false;
    }
    let map = match op.work {
        Do::Unary(row) => one(row),
        Do::Square => Some(One::Square),
        Do::Cube => Some(One::Cube),
        _ => None,
    };
    if let Some(map) = map {
        if !at_hand(0) {
            load(chain, 0);
        }
        chain.code.push(Act::Map(map));
        return true;
    }
    let Do::Binary(row) = op.work else { return false };
    let Some(two) = two(row) else { return false };
    match (at_hand(0), at_hand(1)) {
        (true, true) if two == Two::Mul => chain.code.push(Act::Map(One::Square)),
        (true, true) => return false,
        (false, true) => {
            let (at, many) = chain.place(place(0));
            chain.code.push(if many { Act::After(two, at) } else { Act::AfterOne(two, at) });
        }
        (left, false) => {
            if !left {
                load(chain, 0);
            }
            let (at, many) = chain.place(place(1));
            chain.code.push(if many { Act::With(two, at) } else { Act::WithOne(two, at) });
        }
    }
    true
}

impl Chain {
    /// The number of a place, and whether it has a number for each element.
    fn place(&mut self, place: Place) -> (u8, bool) {
        let many = !matches!(place, Place::Splat(_) | Place::Row(_));
        let at = match self.places.iter().position(|p| *p == place) {
            Some(at) => at,
            None => {
                self.places.push(place);
                self.places.len() - 1
            }
        };
        (at as u8, many)
    }
}

/// Adds the acts that write what others read, and takes over the stores that are to go past the caches.
fn save(chain: &mut Chain, kernel: &mut Lowered, kept: Option<u16>) {
    let mut code = Vec::with_capacity(chain.code.len() + 4);
    let acts = std::mem::take(&mut chain.code);
    let mut acts = acts.into_iter().peekable();
    for i in chain.first..chain.last {
        // The acts of an op end with the one that is not a load.
        for act in acts.by_ref() {
            code.push(act);
            if !matches!(act, Act::Load(_) | Act::LoadOne(_)) {
                break;
            }
        }
        if matches!(kernel.ops[i].work, Do::Fold(_)) {
            break;
        }
        let out = kernel.ops[i].out;
        for s in 0..kernel.stores.len() {
            if kernel.stores[s].reg == out && kernel.stores[s].stream {
                let (at, _) = chain.place(Place::Store(s as u16));
                code.push(Act::Stream(at));
                chain.stream = chain.stream.or(Some(at));
                kernel.stores[s].done = true;
            }
        }
        if let Some(s) = onto(kernel, i, kept) {
            kernel.ops[i].direct = Some(s as u16);
            kernel.stores[s].direct = true;
        }
        // The next op of the chain has it at hand; all other readers find it in its tile.
        let next = (i + 1 < chain.last).then_some(i + 1);
        let read = |(k, op): (usize, &Op)| k > i && Some(k) != next && op.reads(out);
        let again = next.is_some_and(|n| kernel.ops[n].spread_reads(out));
        let stored = kernel.stores.iter().any(|s| s.reg == out && !s.done);
        if kernel.ops.iter().enumerate().any(read) || again || stored || kept == Some(out) {
            let (at, _) = chain.place(Place::Out(i as u16));
            code.push(Act::Save(at));
        }
    }
    chain.code = code;
}

/// The store that op `i` of a chain may write at once although its memory may be that of a load: block by block, what lies
/// there has been read for the last time.
fn onto(kernel: &Lowered, i: usize, kept: Option<u16>) -> Option<usize> {
    let over = |load: &u16| {
        kernel.ops[i + 1..].iter().all(|op| !op.reads(*load))
            && kernel.stores.iter().all(|s| s.reg != *load)
            && kept != Some(*load)
    };
    let op = &kernel.ops[i];
    let mut stores = kernel.stores.iter();
    let found = stores.position(|s| {
        s.reg == op.out && !s.direct && !s.done && !s.over.is_empty() && s.over.iter().all(over)
    });
    found.filter(|_| op.direct.is_none())
}

/// Does a chain over `rows` rows of `len` elements; `at` has an address for each place.
///
/// # Safety
/// AVX-512 was detected. The addresses are those of the places for this tile, and hold what the acts read and write;
/// what is asked for lies `tile` elements further.
pub unsafe fn run(chain: &Chain, at: &Addresses, len: usize, rows: usize, tile: usize, fold: *mut f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: passed on from the caller.
    unsafe {
        x86::run(chain, at, len, rows, tile, fold)
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (chain, at, len, rows, tile, fold);
}

pub type Addresses = SmallVec<[*mut f32; MOST + 8]>;

#[cfg(target_arch = "x86_64")]
#[path = "chain_x86.rs"]
mod x86;
