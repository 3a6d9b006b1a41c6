//! Following a program that came before.
//!
//! A loop records the same instructions again and again. While they are what a known program has at the same place,
//! nothing is inferred, built or hashed: an instruction is a comparison, a new id and a line. A program that was followed
//! to its end has the structure it had, so its plan key is known too (C4). What differs ends the following, and all that
//! was followed is written out as if it had been recorded in the usual way.

use super::open::{Entry, INPUT, Open};
use super::sizes::{Counts, Resized, Sizes};
use super::{RecordArg, Sealed, SourceLine, Stream, is_tile};
use crate::autograd::{Replay, tape};
use gt_ir::{Arg, ArgTy, Instr, Op, Scalar, Slot, Structure, TensorId, Ty, infer_all};
use gt_sync::Mutex;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Programs that a stream remembers.
const MAX_PASTS: usize = 16;
/// Ways in which the results and inputs of one program live and die.
const MAX_WAYS: usize = 4;

/// A value of a program that came before.
#[derive(PartialEq)]
struct Made {
    /// The instruction whose first result it is, with operands as in an open program.
    instr: Option<Instr>,
    ty: Ty,
}

/// A program that came before: twice, or in several sizes.
pub(crate) struct Past {
    made: Vec<Made>,
    inputs: Vec<Ty>,
    ways: Mutex<Vec<Arc<Way>>>,
    replays: Mutex<Vec<Arc<Replay>>>,
}

/// One way a program was sealed: what outlived it, what died in it, and which of its numbers are slots.
pub(crate) struct Way {
    pub structure: Arc<Structure>,
    pub key: u64,
    alive: Vec<bool>,
    /// Numbers that are slots: (the value that the instruction makes, the operand).
    varying: Vec<(u32, u32)>,
    /// Bytes of results that stay alive.
    bytes: u64,
    /// The same in other sizes.
    resized: Resized,
}

/// The programs that a stream remembers, the last used first.
#[derive(Default)]
pub(crate) struct Pasts {
    list: Mutex<VecDeque<Arc<Past>>>,
    any: AtomicBool,
}

static TRAILS: AtomicU64 = AtomicU64::new(1);

/// A value of the open program while it follows another.
struct Live {
    id: TensorId,
    line: SourceLine,
    alive: bool,
}

/// The open program while it follows another.
pub(super) struct Trail {
    /// Tells it from all others.
    number: u64,
    past: Arc<Past>,
    live: Vec<Live>,
    /// Numbers that are not what they were: (value, operand, number).
    changed: Vec<(u32, u32, Scalar)>,
    /// What is in another size.
    sizes: Sizes,
}

impl Past {
    /// What a program that was sealed as a whole looked like while it was open. The first `slots` of its slots were
    /// slots from the start, the others numbers.
    pub fn new(structure: &Structure, types: Vec<Ty>, values: &[Slot], slots: usize) -> Past {
        let inputs = structure.inputs.len() as u32;
        let open = |arg: &Arg| match *arg {
            Arg::Value(v) if v < inputs => Arg::Value(INPUT | v),
            Arg::Value(v) => Arg::Value(v - inputs),
            Arg::Slot(k) if k as usize >= slots => match &values[k as usize] {
                Slot::Num(x) => Arg::Const(*x),
                Slot::Data(_) => Arg::Slot(k),
            },
            other => other,
        };
        let mut types = types.into_iter();
        let mut made = Vec::with_capacity(types.len());
        for instr in &structure.instrs {
            let open = Instr { op: instr.op.clone(), args: instr.args.iter().map(open).collect() };
            let mut instr = Some(open);
            made.extend(
                types
                    .by_ref()
                    .take(instr.as_ref().map_or(1, Instr::results))
                    .map(|ty| Made { instr: instr.take(), ty }),
            );
        }
        let inputs = structure.inputs.iter().map(|input| input.ty.clone()).collect();
        Past { made, inputs, ways: Mutex::default(), replays: Mutex::default() }
    }

    /// Remembers how it was sealed.
    pub fn learn(&self, way: Way) {
        let mut ways = self.ways.lock();
        if ways.len() >= MAX_WAYS {
            ways.remove(0);
        }
        ways.push(Arc::new(way));
    }

    /// A backward pass that it had.
    pub fn replay(&self, fits: impl Fn(&Replay) -> bool) -> Option<Arc<Replay>> {
        self.replays.lock().iter().find(|replay| fits(replay)).cloned()
    }

    /// Remembers a backward pass that it had.
    pub fn learn_replay(&self, replay: Replay) {
        let mut replays = self.replays.lock();
        if replays.len() >= MAX_WAYS {
            replays.remove(0);
        }
        replays.push(Arc::new(replay));
    }

    /// True if its first values and inputs are those of another. An input's type is not always told by the
    /// instructions that take it: a reshape gives the same from many.
    fn begins_like(&self, other: &Past, values: usize, inputs: usize) -> bool {
        let (own, others) = (self.inputs.get(..inputs), other.inputs.get(..inputs));
        self.made.get(..values) == other.made.get(..values) && own.is_some() && own == others
    }

    /// The type of value `i`.
    pub fn ty(&self, i: usize) -> &Ty {
        &self.made[i].ty
    }

    /// The instruction that makes value `i`.
    pub fn instr(&self, i: usize) -> Option<&Instr> {
        self.made.get(i)?.instr.as_ref()
    }
}

impl Way {
    /// How a program of `results` values was sealed; see `Past::new`.
    pub fn new(structure: &Arc<Structure>, key: u64, results: usize, slots: usize, bytes: u64) -> Way {
        let inputs = structure.inputs.len();
        let mut alive = vec![false; results];
        for out in &structure.outs {
            if let Some(alive) = (*out as usize).checked_sub(inputs).and_then(|i| alive.get_mut(i)) {
                *alive = true;
            }
        }
        let mut varying = Vec::new();
        let mut value = 0;
        for instr in &structure.instrs {
            for (j, arg) in instr.args.iter().enumerate() {
                if matches!(arg, Arg::Slot(k) if *k as usize >= slots) {
                    varying.push((value, j as u32));
                }
            }
            value += instr.results() as u32;
        }
        Way { structure: structure.clone(), key, alive, varying, bytes, resized: Resized::default() }
    }

    /// The same with a structure that differs in sizes alone.
    pub(super) fn in_other_sizes(&self, structure: Structure, bytes: u64) -> Way {
        let key = structure.key();
        let (alive, varying) = (self.alive.clone(), self.varying.clone());
        Way { structure: Arc::new(structure), key, alive, varying, bytes, resized: Resized::default() }
    }

    /// Bytes of results that stay alive in other sizes.
    fn bytes_in(&self, past: &Past, sizes: &Sizes) -> u64 {
        let kept = self.alive.iter().enumerate().filter(|(_, alive)| **alive);
        kept.map(|(i, _)| sizes.ty(i).unwrap_or_else(|| past.ty(i)).bytes() as u64).sum()
    }

    /// True if the open program lives and dies like this, and its numbers are the same but for slots.
    fn fits(&self, trail: &Trail, dies: &[bool], at_once: bool) -> bool {
        self.structure.at_once == at_once
            && self.alive.len() == trail.live.len()
            && self.alive.iter().zip(&trail.live).all(|(a, l)| *a == l.alive)
            && self.structure.inputs.iter().zip(dies).all(|(input, dies)| input.dies == *dies)
            && trail.changed.iter().all(|(value, arg, _)| self.varying.binary_search(&(*value, *arg)).is_ok())
    }
}

impl Pasts {
    /// Remembers a program, unless it is there already.
    pub fn add(&self, past: Past) -> Arc<Past> {
        if let Some(same) = self.find(|p| p.made == past.made && p.inputs == past.inputs) {
            return same;
        }
        let past = Arc::new(past);
        let mut pasts = self.list.lock();
        pasts.truncate(MAX_PASTS - 1);
        pasts.push_front(past.clone());
        self.any.store(true, Ordering::Relaxed);
        past
    }

    /// True if there is one at all.
    #[inline]
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// The last used program that fits.
    fn find(&self, fits: impl Fn(&Past) -> bool) -> Option<Arc<Past>> {
        self.list.lock().iter().find(|past| fits(past)).cloned()
    }

    /// Notes that a program was used.
    fn used(&self, past: &Arc<Past>) {
        let mut pasts = self.list.lock();
        if let Some(i) = pasts.iter().position(|p| Arc::ptr_eq(p, past))
            && i > 0
            && let Some(past) = pasts.remove(i)
        {
            pasts.push_front(past);
        }
    }
}

impl Trail {
    pub fn number(&self) -> u64 {
        self.number
    }

    pub fn past(&self) -> &Arc<Past> {
        &self.past
    }

    pub fn len(&self) -> usize {
        self.live.len()
    }

    /// How many numbers are not what they were.
    pub fn changes(&self) -> usize {
        self.changed.len()
    }

    pub fn is_alive(&self, i: usize) -> bool {
        self.live[i].alive
    }

    pub fn id(&self, i: usize) -> TensorId {
        self.live[i].id
    }

    /// True if it is all as it was, sizes included.
    pub fn is_same_size(&self) -> bool {
        self.sizes.is_empty()
    }

    /// The type of value `i`.
    #[inline]
    fn ty(&self, i: usize) -> &Ty {
        self.sizes.ty(i).unwrap_or_else(|| self.past.ty(i))
    }

    /// A value is in use after all.
    pub fn revive(&mut self, i: usize) {
        self.live[i].alive = true;
    }

    /// Goes on up to `end` with values that nobody uses.
    pub fn extend(&mut self, first: TensorId, end: usize, line: SourceLine) {
        let ids = (first.0..).take(end - self.live.len());
        self.live.extend(ids.map(|id| Live { id: TensorId(id), line, alive: false }));
    }
}

/// Lengths to which an open program goes back when an instruction turns out not to fit.
struct Before {
    inputs: usize,
    slots: usize,
    data: usize,
    held: usize,
    changed: usize,
    sizes: Counts,
}

/// How closely an instruction has to be what the program followed has.
#[derive(Clone, Copy, PartialEq)]
enum Fit {
    Same,
    /// But for sizes.
    Sizes,
}

impl Open {
    /// How many values it has.
    pub fn len(&self) -> usize {
        match &self.trail {
            Some(trail) => trail.live.len(),
            None => self.entries.len(),
        }
    }

    /// Notes that a value was dropped.
    pub fn drop_value(&mut self, i: usize) {
        match &mut self.trail {
            Some(trail) => trail.live[i].alive = false,
            None => self.entries[i].alive = false,
        }
    }

    /// Takes an instruction in that a known program has here; its results are given to `each` with their types and
    /// positions. False, and nothing is changed, if there is none.
    pub fn follow(
        &mut self,
        stream: &Arc<Stream>,
        op: &Op,
        args: &[RecordArg],
        line: SourceLine,
        mut each: impl FnMut(&Ty, u64) -> TensorId,
    ) -> bool {
        let Some(mut trail) = self.next_trail(op) else { return false };
        let i = trail.live.len();
        if !self.take(stream, &mut trail, op, args, Fit::Same) {
            let followed = self.turn(stream, &mut trail, op, args)
                || self.take(stream, &mut trail, op, args, Fit::Sizes);
            if !followed {
                self.trail = (i > 0).then_some(trail);
                return false;
            }
        }
        let results = trail.past.instr(i).map_or(1, Instr::results);
        for k in i..i + results {
            let id = each(trail.ty(k), self.base + k as u64);
            trail.live.push(Live { id, line, alive: true });
        }
        self.trail = Some(trail);
        true
    }

    /// Takes an instruction in by following another program, which has begun like this one.
    fn turn(&mut self, stream: &Arc<Stream>, trail: &mut Trail, op: &Op, args: &[RecordArg]) -> bool {
        let (i, inputs) = (trail.live.len(), self.inputs.len());
        if !trail.is_same_size() {
            return false;
        }
        let other = self.pasts.find(|p| {
            p.instr(i).is_some_and(|instr| instr.op == *op)
                && !std::ptr::eq(p, &*trail.past)
                && p.begins_like(&trail.past, i, inputs)
        });
        let Some(other) = other else { return false };
        let before = std::mem::replace(&mut trail.past, other);
        let followed = self.take(stream, trail, op, args, Fit::Same);
        if !followed {
            trail.past = before;
        }
        followed
    }

    /// The trail to go on with, taken out; a new one at the start of a program.
    #[inline]
    fn next_trail(&mut self, op: &Op) -> Option<Trail> {
        if let Some(trail) = self.trail.take() {
            return Some(trail);
        }
        if !self.entries.is_empty() {
            return None;
        }
        let past = self.pasts.find(|past| past.instr(0).is_some_and(|instr| instr.op == *op))?;
        let live = Vec::with_capacity(past.made.len());
        let number = TRAILS.fetch_add(1, Ordering::Relaxed);
        tape::begin(number);
        Some(Trail { number, past, live, changed: Vec::new(), sizes: Sizes::default() })
    }

    /// Takes the operands of the next instruction in if it is what the program followed has here.
    fn take(
        &mut self,
        stream: &Arc<Stream>,
        trail: &mut Trail,
        op: &Op,
        args: &[RecordArg],
        fit: Fit,
    ) -> bool {
        let i = trail.live.len();
        let past = trail.past.clone();
        let Some(instr) = past.instr(i) else { return false };
        let same = instr.op == *op;
        let kin = || fit == Fit::Sizes && instr.op.text() == op.text();
        if !(same || kin()) || instr.args.len() != args.len() {
            return false;
        }
        let before = Before {
            inputs: self.inputs.len(),
            slots: self.slots.len(),
            data: self.data,
            held: self.held.len(),
            changed: trail.changed.len(),
            sizes: trail.sizes.counts(),
        };
        // In other sizes what is a tile may be another.
        let mut resized = !same;
        for (j, (arg, want)) in args.iter().zip(&instr.args).enumerate() {
            let tile = |x: &Scalar| op.start_arg(j) && is_tile(op, args, *x);
            let fits = match (arg, want) {
                (RecordArg::Val(v), Arg::Value(want)) => {
                    match self.take_value(stream, trail, v, *want, fit) {
                        Some(size) => {
                            resized |= size;
                            true
                        }
                        None => false,
                    }
                }
                (RecordArg::Num(x), Arg::Const(want)) if x == want => !resized || !op.start_arg(j) || tile(x),
                (RecordArg::Num(x), Arg::Const(want)) => {
                    let may = op.may_become_slot(j) && !op.start_arg(j) && x.kind() == want.kind();
                    if may {
                        trail.changed.push((i as u32, j as u32, *x));
                    }
                    may
                }
                (RecordArg::Num(x), Arg::Slot(k)) => {
                    let fits = *k as usize == self.slots.len() && op.slot_arg(j) && !tile(x);
                    if fits {
                        self.slot(Slot::Num(*x));
                    }
                    fits
                }
                (RecordArg::Data(d), Arg::Slot(k)) => {
                    let next = *k as usize == self.slots.len();
                    if next {
                        self.slot(Slot::Data(d.clone()));
                    }
                    next
                }
                _ => false,
            };
            if !fits {
                self.go_back(trail, before);
                return false;
            }
        }
        if resized && !resize(trail, instr, op, args) {
            self.go_back(trail, before);
            return false;
        }
        true
    }

    /// Takes a value in if it is the operand that is wanted; tells whether it has another type.
    fn take_value(
        &mut self,
        stream: &Arc<Stream>,
        trail: &mut Trail,
        v: &crate::value::Value,
        want: u32,
        fit: Fit,
    ) -> Option<bool> {
        let own = Arc::ptr_eq(&v.stream, stream);
        if own && v.pos >= self.base {
            let i = (v.pos - self.base) as u32;
            return (i == want).then(|| trail.sizes.ty(i as usize).is_some());
        }
        let i = (want & !INPUT) as usize;
        if want & INPUT == 0 || i > self.inputs.len() {
            return None;
        }
        if let Some((id, _)) = self.inputs.get(i) {
            return (*id == v.id).then(|| trail.sizes.input(i).is_some());
        }
        let then = trail.past.inputs.get(i)?;
        if self.input_index.contains_key(&v.id) {
            return None;
        }
        let same = *then == v.ty;
        if !same {
            let kin = fit == Fit::Sizes && then.dtype == v.ty.dtype && then.shape.len() == v.ty.shape.len();
            if !kin {
                return None;
            }
            trail.sizes.add_input(i, &v.ty);
        }
        self.operand(stream, v);
        Some(!same)
    }

    fn go_back(&mut self, trail: &mut Trail, to: Before) {
        for (id, _) in self.inputs.drain(to.inputs..) {
            self.input_index.remove(&id);
        }
        self.slots.truncate(to.slots);
        self.data = to.data;
        self.held.truncate(to.held);
        trail.changed.truncate(to.changed);
        trail.sizes.go_back(to.sizes);
    }

    /// Ends the following: what was followed is written out.
    pub fn write_out(&mut self) {
        let Some(Trail { past, live, changed, sizes, .. }) = self.trail.take() else { return };
        let mut changed = changed.into_iter().peekable();
        for (i, (Live { id, line, alive }, made)) in live.into_iter().zip(&past.made).enumerate() {
            let mut instr = made.instr.clone();
            if let (Some(instr), Some(op)) = (&mut instr, sizes.op(i)) {
                instr.op = op.clone();
            }
            while let Some((_, j, x)) = changed.next_if(|(value, ..)| *value as usize == i) {
                if let Some(arg) = instr.as_mut().and_then(|instr| instr.args.get_mut(j as usize)) {
                    *arg = Arg::Const(x);
                }
            }
            let ty = sizes.ty(i).unwrap_or(&made.ty).clone();
            self.entries.push(Entry { instr, id, ty, alive, line, mark: 0 });
        }
    }

    /// Seals the open program as one that came before, if it is one from its start to its end. Otherwise it is written
    /// out; the program that it is but for what lives and dies is given.
    pub fn seal_followed(&mut self) -> Result<Sealed, Option<Arc<Past>>> {
        let Some(trail) = self.trail.take() else { return Err(None) };
        let n = trail.live.len();
        let past = if trail.past.made.len() == n {
            Some(trail.past.clone())
        } else {
            let inputs = self.inputs.len();
            let same = |p: &Past| {
                p.made.len() == n && p.inputs.len() == inputs && p.begins_like(&trail.past, n, inputs)
            };
            trail.is_same_size().then(|| self.pasts.find(same)).flatten()
        };
        let mut dies = vec![false; self.inputs.len()];
        for id in &self.frees {
            if let Some(i) = self.input_index.get(id) {
                dies[*i as usize] = true;
            }
        }
        let way = past.as_ref().and_then(|past| {
            past.ways.lock().iter().rev().find(|way| way.fits(&trail, &dies, self.at_once)).cloned()
        });
        match (past, way) {
            (Some(past), Some(way)) => {
                self.pasts.used(&past);
                Ok(self.seal_as(trail, &past, way))
            }
            (past, _) => {
                let past = past.filter(|_| trail.is_same_size());
                self.trail = Some(trail);
                self.write_out();
                Err(past)
            }
        }
    }

    fn seal_as(&mut self, trail: Trail, past: &Past, way: Arc<Way>) -> Sealed {
        let Trail { live, changed, sizes, .. } = trail;
        let way = match sizes.is_empty() {
            true => way,
            false => way.resized.find(&way, sizes, |sizes| way.bytes_in(past, sizes)),
        };
        let mut slots = std::mem::take(&mut self.slots);
        for &(value, j) in &way.varying {
            let now = changed.iter().find(|(v, a, _)| (*v, *a) == (value, j)).map(|(.., x)| *x);
            let then = || match past.instr(value as usize).and_then(|instr| instr.args.get(j as usize)) {
                Some(Arg::Const(x)) => *x,
                _ => Scalar::Int(0),
            };
            slots.push(Slot::Num(now.unwrap_or_else(then)));
        }
        self.input_index.clear();
        self.mesh = 0;
        self.data = 0;
        self.free_bytes = 0;
        self.base += live.len() as u64;
        let (prefix, marks) = self.progress.take();
        let kept = || live.iter().filter(|l| l.alive);
        Sealed {
            outs: kept().map(|l| l.id).collect(),
            out_lines: kept().map(|l| l.line).collect(),
            lines: live
                .iter()
                .zip(&past.made)
                .filter(|(_, m)| m.instr.is_some())
                .map(|(l, _)| l.line)
                .collect(),
            inputs: self.inputs.drain(..).map(|(id, _)| id).collect(),
            slots,
            frees: std::mem::take(&mut self.frees),
            rebinds: std::mem::take(&mut self.rebinds).into_iter().map(|(_, r)| r).collect(),
            held: std::mem::take(&mut self.held),
            bytes: way.bytes,
            structure: super::Work::Known(way),
            prefix,
            marks,
            ends_step: std::mem::take(&mut self.step_ended),
        }
    }
}

/// Notes an instruction in another size, or of operands in another size, with the types of its results. False if it is
/// no instruction of the same kind, or so much has changed that following does not pay.
fn resize(trail: &mut Trail, instr: &Instr, op: &Op, args: &[RecordArg]) -> bool {
    let i = trail.live.len();
    let types: SmallVec<[ArgTy; 4]> = args
        .iter()
        .map(|arg| match arg {
            RecordArg::Val(v) => ArgTy::Val(&v.ty),
            RecordArg::Num(_) | RecordArg::Data(_) => ArgTy::Num,
        })
        .collect();
    // Whatever is wrong is told when it is recorded in the usual way.
    let Ok(types) = infer_all(op, &types) else { return false };
    if types.len() != instr.results() {
        return false;
    }
    if instr.op != *op {
        trail.sizes.add_op(i, op);
    }
    for (k, ty) in (i..).zip(types) {
        if ty != *trail.past.ty(k) {
            trail.sizes.add_value(k, ty);
        }
    }
    // A graph in other sizes is not the one that was summed up.
    tape::end();
    trail.sizes.pays(i)
}
