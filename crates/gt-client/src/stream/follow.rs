//! Following a program that came before.
//!
//! A loop records the same instructions again and again. While they are what a known program has at the same place,
//! nothing is inferred, built or hashed: an instruction is a comparison, a new id and a line. A program that was followed
//! to its end has the structure it had, so its plan key is known too (C4). What differs ends the following, and all that
//! was followed is written out as if it had been recorded in the usual way.

use super::open::{Entry, INPUT, Open};
use super::past::{Past, Way};
use super::sizes::{Counts, Sizes};
use super::{RecordArg, Sealed, SourceLine, Stream, is_tile};
use crate::autograd::tape;
use gt_ir::{Arg, ArgTy, Instr, Op, Scalar, Slot, TensorId, Ty, infer_all};
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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

    /// True if the open program lives and dies in this way, and its numbers are the same but for slots.
    fn goes(&self, way: &Way, dies: &[bool], at_once: bool) -> bool {
        way.structure.at_once == at_once
            && way.alive.len() == self.live.len()
            && way.alive.iter().zip(&self.live).all(|(a, l)| *a == l.alive)
            && way.structure.inputs.iter().zip(dies).all(|(input, dies)| input.dies == *dies)
            && self.changed.iter().all(|(value, arg, _)| way.varying.binary_search(&(*value, *arg)).is_ok())
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
            past.ways.lock().iter().rev().find(|way| trail.goes(way, &dies, self.at_once)).cloned()
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
        let base = self.base;
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
            base,
            prefix,
            marks,
            ends_step: std::mem::take(&mut self.step_ended),
            stream: self.stream,
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
