//! One thread's stream of instructions: recording, cutting into programs and freeing (C2, C3).

pub mod prefix;

use crate::cell::Cell;
use crate::session::Session;
use crate::signal;
use crate::signal::{FIRM, FIRM_IF_KEPT};
use crate::value::{SETTLED, Value, ValueInner};
use foldhash::fast::FixedState;
use gt_ir::signal::Mark;
use gt_ir::{
    Arg, Args, Input, Instr, Op, Program, Result, Scalar, Slot, Structure, TensorId, Ty, Types, bail,
};
use parking_lot::Mutex;
use prefix::Progress;
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::sync::{Arc, Weak};

/// A cell that an open program has given a new value, and what it held before (C5: reverted if the program fails).
pub struct Rebind {
    pub cell: Weak<Cell>,
    pub old: Weak<ValueInner>,
    pub old_id: TensorId,
    pub old_ty: Ty,
}

/// A sealed program that waits for its sequence number.
pub struct Sealed {
    pub structure: Structure,
    pub inputs: Vec<TensorId>,
    pub outs: Vec<TensorId>,
    pub slots: Vec<Slot>,
    pub frees: Vec<TensorId>,
    pub rebinds: Vec<Rebind>,
    pub lines: Vec<SourceLine>,
    /// Where each result that outlives the program was written.
    pub out_lines: Vec<SourceLine>,
    /// Inputs that other streams own, kept until the program is on its way.
    pub held: Vec<Value>,
    /// Bytes of results that stay alive.
    pub bytes: u64,
    /// The prefix of it that was sent ahead.
    pub prefix: Option<u64>,
    /// What it looks like up to each position where a prefix may end.
    pub marks: Vec<u64>,
    /// It ends with an optimizer step.
    pub ends_step: bool,
}

/// Where in the user's program an instruction was written: an index into the session's table of files, and a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SourceLine {
    pub file: u32,
    pub line: u32,
}

/// An operand handed to `record`.
pub enum RecordArg<'a> {
    Val(&'a Value),
    Num(Scalar),
    Data(Arc<Vec<u8>>),
}

/// One value of the open program.
#[derive(Clone)]
struct Entry {
    /// The instruction whose first result it is; none for a further result of the instruction before.
    instr: Option<Instr>,
    id: TensorId,
    ty: Ty,
    alive: bool,
    line: SourceLine,
    /// How signals mark it, as `signal::mark_of` says.
    mark: u32,
}

impl Entry {
    /// The operands of the instruction that begins here.
    fn args(&self) -> &[Arg] {
        self.instr.as_ref().map_or(&[], |i| &i.args)
    }
}

/// The program being recorded. Operands name results by `INPUT`-less position and live-ins by `INPUT | index`;
/// `seal` renumbers them.
struct Open {
    /// Stream position of the first value.
    base: u64,
    entries: Vec<Entry>,
    inputs: Vec<(TensorId, Ty)>,
    input_index: HashMap<TensorId, u32, FixedState>,
    slots: Vec<Slot>,
    /// Bytes of host data among the slots.
    data: usize,
    frees: Vec<TensorId>,
    /// Bytes of the tensors in `frees`.
    free_bytes: u64,
    rebinds: Vec<(u64, Rebind)>,
    held: Vec<Value>,
    /// An optimizer step ended here: seal when the next instruction is recorded.
    step_ended: bool,
    /// It lies inside a boundary that is compiled at once.
    at_once: bool,
    /// The mesh its signals are on; 0 while there is none.
    mesh: u32,
    progress: Progress,
}

const INPUT: u32 = 1 << 31;
/// Bytes of dropped tensors that are told at once when nothing is recorded meanwhile.
const EAGER_FREE: u64 = 32 << 20;
/// Bytes of host data at which a program is cut, as it is at its cap: it has to fit a message.
const MAX_DATA: usize = 4 << 20;
/// How many op signatures the rolling hash looks back over.
const WINDOW: usize = 8;

/// One thread's recorder within a session.
pub struct Stream {
    pub session: Weak<Session>,
    pub session_id: u64,
    generation: u64,
    open: Mutex<Open>,
    cap: usize,
}

impl Stream {
    pub(crate) fn new(session: &Arc<Session>, cap: usize, positions: Arc<[usize]>) -> Arc<Stream> {
        Arc::new(Stream {
            session: Arc::downgrade(session),
            session_id: session.number,
            generation: session.generation,
            open: Mutex::new(Open::new(SETTLED + 1, positions)),
            cap: cap.max(2 * WINDOW),
        })
    }

    /// Records one instruction whose result type is known to be `ty`.
    pub fn record(
        self: &Arc<Stream>,
        session: &Session,
        op: Op,
        args: &[RecordArg],
        ty: Ty,
    ) -> Result<Value> {
        let id = session.next_id();
        let scope = signal::now();
        let mark = signal::mark_of(scope, &op, &ty);
        let pos = self.push(session, op, args, scope.mesh, |instr, line, entries| {
            entries.push(Entry { instr: Some(instr), id, ty: ty.clone(), alive: true, line, mark });
        })?;
        Ok(Arc::new(ValueInner { id, ty, stream: self.clone(), pos }))
    }

    /// Records one instruction of several results, whose types are known.
    pub fn record_all(
        self: &Arc<Stream>,
        session: &Session,
        op: Op,
        args: &[RecordArg],
        types: Types,
    ) -> Result<Vec<Value>> {
        let ids: Vec<TensorId> = types.iter().map(|_| session.next_id()).collect();
        let scope = signal::now();
        let first = self.push(session, op, args, scope.mesh, |instr, line, entries| {
            let marks: Vec<u32> = types.iter().map(|ty| signal::mark_of(scope, &instr.op, ty)).collect();
            let mut instr = Some(instr);
            for ((&id, ty), mark) in ids.iter().zip(&types).zip(marks) {
                entries.push(Entry { instr: instr.take(), id, ty: ty.clone(), alive: true, line, mark });
            }
        })?;
        let value = |(i, (id, ty))| -> Value {
            Arc::new(ValueInner { id, ty, stream: self.clone(), pos: first + i as u64 })
        };
        Ok(ids.into_iter().zip(types).enumerate().map(value).collect())
    }

    /// Appends what `write` makes of an instruction; gives the position of its first result.
    #[inline]
    fn push(
        self: &Arc<Stream>,
        session: &Session,
        op: Op,
        args: &[RecordArg],
        mesh: u32,
        write: impl FnOnce(Instr, SourceLine, &mut Vec<Entry>),
    ) -> Result<u64> {
        for arg in args {
            if let RecordArg::Val(v) = arg
                && !Arc::ptr_eq(&v.stream, self)
            {
                v.stream.settle(v.pos)?;
            }
        }
        if session.settings.host {
            host_may(&op)?;
        }
        let line = crate::source::current(session);
        let mut open = self.open.lock();
        let mut sent = None;
        let elsewhere = mesh != 0 && open.mesh != 0 && mesh != open.mesh;
        if elsewhere || open.step_ended || open.entries.len() >= self.cap || open.data >= MAX_DATA {
            let all = open.entries.len();
            sent = Some(if elsewhere {
                // Other workers go on with it meanwhile.
                session.send_sealed(open.seal_prefix(all))
            } else if open.step_ended {
                session.queue_sealed(open.seal_prefix(all))
            } else {
                let cut = open.best_cut();
                session.send_sealed(open.seal_prefix(cut))
            });
        }
        // Looked at here, not when its last instruction is recorded: what that has read for good is dropped by now.
        if open.entries.len() >= open.progress.next {
            begin(session, &mut open);
        }
        let mut list = Args::new();
        for (i, arg) in args.iter().enumerate() {
            list.push(match arg {
                RecordArg::Val(v) => Arg::Value(open.operand(self, v)),
                RecordArg::Num(x) if op.start_arg(i) && is_tile(&op, args, *x) => Arg::Const(*x),
                RecordArg::Num(x) if op.slot_arg(i) => open.slot(Slot::Num(*x)),
                RecordArg::Num(x) => Arg::Const(*x),
                RecordArg::Data(d) => open.slot(Slot::Data(d.clone())),
            });
        }
        let pos = open.base + open.entries.len() as u64;
        write(Instr { op, args: list }, line, &mut open.entries);
        if mesh != 0 {
            open.mesh = mesh;
        }
        drop(open);
        // Values of other streams are let go outside the lock: their drop takes their own stream's lock.
        if let Some(held) = sent {
            drop(held?);
            session.wait_for_credit()?;
        }
        Ok(pos)
    }

    /// Notes that a cell has a new value from the open program.
    pub fn note_rebind(&self, rebind: Rebind) {
        let mut open = self.open.lock();
        let pos = open.base + open.entries.len() as u64;
        open.rebinds.push((pos, rebind));
    }

    /// Seals and sends the open program if it holds the instruction at `pos`.
    pub fn settle(&self, pos: u64) -> Result<()> {
        let mut open = self.open.lock();
        if pos < open.base {
            return Ok(());
        }
        let held = self.send(&mut open);
        drop(open);
        held.map(drop)
    }

    /// Seals what is recorded so far and hands it to `send`, which sends it together with something else.
    pub(crate) fn flush_with<T>(&self, send: impl FnOnce(Option<Sealed>) -> Result<T>) -> Result<T> {
        let mut open = self.open.lock();
        let n = open.entries.len();
        let sealed = open.seal_prefix(n);
        send(Some(sealed))
    }

    /// Seals and sends what is recorded so far.
    pub fn flush(&self) -> Result<()> {
        let held = self.send(&mut self.open.lock());
        held.map(drop)
    }

    fn send(&self, open: &mut Open) -> Result<Vec<Value>> {
        let Some(session) = self.session.upgrade() else { return Ok(Vec::new()) };
        let n = open.entries.len();
        let sealed = open.seal_prefix(n);
        session.send_sealed(sealed)
    }

    /// Cuts the stream. What follows, up to the next boundary, is compiled at once, or as usual.
    pub(crate) fn boundary(&self, at_once: bool) -> Result<()> {
        let mut open = self.open.lock();
        let held = self.send(&mut open);
        open.at_once = at_once;
        drop(open);
        held.map(drop)
    }

    /// Marks a value of the open program; false if it is in none.
    pub(crate) fn mark(&self, value: &ValueInner, mark: u32) -> bool {
        let mut open = self.open.lock();
        let at = value.pos.checked_sub(open.base).filter(|_| value.pos != SETTLED);
        match at.and_then(|i| open.entries.get_mut(i as usize)) {
            Some(entry) => {
                entry.mark = mark;
                true
            }
            None => false,
        }
    }

    /// Marks the end of an optimizer step: the program is sealed when the next instruction is recorded.
    pub fn end_step(&self) {
        let mut open = self.open.lock();
        open.step_ended = !open.entries.is_empty();
    }

    /// Records that a tensor was dropped. Safe at any time, also at interpreter shutdown.
    pub(crate) fn free(&self, id: TensorId, pos: u64, bytes: usize) {
        if self.generation != crate::current::generation() {
            return;
        }
        let mut open = self.open.lock();
        if pos >= open.base {
            let i = (pos - open.base) as usize;
            open.entries[i].alive = false;
        } else {
            open.frees.push(id);
            open.free_bytes += bytes as u64;
            // Much memory is not kept waiting for an instruction that may never come.
            if open.free_bytes >= EAGER_FREE && open.entries.is_empty() {
                let held = self.send(&mut open);
                drop(open);
                drop(held);
            }
        }
    }

    /// The open program as it would be sent now. It stays open.
    pub fn snapshot(&self) -> Option<Program> {
        let open = self.open.lock();
        let mut copy = Open {
            entries: open.entries.clone(),
            inputs: open.inputs.clone(),
            slots: open.slots.clone(),
            data: open.data,
            frees: open.frees.clone(),
            at_once: open.at_once,
            ..Open::new(open.base, Arc::default())
        };
        drop(open);
        let n = copy.entries.len();
        let s = copy.seal_prefix(n);
        let key = s.structure.key();
        let structure = Arc::new(s.structure);
        let program =
            Program { structure, key, inputs: s.inputs, outs: s.outs, slots: s.slots, frees: s.frees };
        (n > 0).then_some(program)
    }

    /// The open program's instructions, for `gt.debug.print_tape`.
    pub fn tape(&self) -> Vec<String> {
        let open = self.open.lock();
        let name = |v: u32| match v & INPUT {
            0 => format!("TENSOR[{}]", open.entries[v as usize].id.0),
            _ => format!("TENSOR[{}]", open.inputs[(v & !INPUT) as usize].0.0),
        };
        let mut lines = Vec::with_capacity(open.entries.len());
        for (i, e) in open.entries.iter().enumerate() {
            let Some(instr) = &e.instr else { continue };
            let more = open.entries[i + 1..].iter().take_while(|more| more.instr.is_none());
            let results: Vec<String> =
                std::iter::once(e).chain(more).map(|e| format!("TENSOR[{}]", e.id.0)).collect();
            let mut text = format!("{} := {}", results.join(", "), instr.op.text());
            for arg in &instr.args {
                text.push(' ');
                text.push_str(&match arg {
                    Arg::Value(v) => name(*v),
                    Arg::Const(x) => x.to_string(),
                    Arg::Slot(k) => match &open.slots[*k as usize] {
                        Slot::Num(x) => x.to_string(),
                        Slot::Data(d) => format!("<{} bytes>", d.len()),
                    },
                });
            }
            let mark = signal::registry::spec(e.mark >> 2).map_or(String::new(), |spec| {
                let firm = if e.mark & FIRM != 0 { "!" } else { "" };
                format!(" @{}{firm}", spec.name)
            });
            lines.push(format!("{text} : {}{mark}", e.ty));
        }
        lines
    }
}

/// True if a start is structure: a tile of the operand it slices.
fn is_tile(op: &Op, args: &[RecordArg], start: Scalar) -> bool {
    matches!(args.first(), Some(RecordArg::Val(x)) if op.is_tile(&x.ty.shape, start.as_i64()))
}

/// What a data-loader worker does: it makes tensors, joins them and takes parts of them (C12).
fn host_may(op: &Op) -> Result<()> {
    match op {
        Op::Full { .. } | Op::Arange { .. } | Op::Random { .. } | Op::Data { .. } | Op::Cast(_) => Ok(()),
        Op::View(_) | Op::Concat { .. } | Op::Take { .. } => Ok(()),
        other => bail!(
            Runtime,
            "{}: a data-loader worker makes host tensors only: create, stack, slice, index and pickle them there, and \
             compute in the main process, or with num_workers=0",
            other.text().to_lowercase()
        ),
    }
}

/// Sends the beginning of the open program ahead if the workers have nothing to do and it is new to them (C3).
#[cold]
fn begin(session: &Session, open: &mut Open) {
    let (len, mark) = open.pass();
    if session.is_idle_and_new(mark)
        && let Some(program) = open.prefix(len)
    {
        let id = open.progress.number(|| session.next_req());
        session.send_prefix(id, program);
    }
}

/// The thread has ended and nothing it made is alive: what was dropped since its last program is freed by others.
impl Drop for Stream {
    fn drop(&mut self) {
        let open = self.open.get_mut();
        let (frees, (prefix, _)) = (std::mem::take(&mut open.frees), open.progress.take());
        if (frees.is_empty() && prefix.is_none()) || self.generation != crate::current::generation() {
            return;
        }
        if let Some(session) = self.session.upgrade() {
            session.adopt(frees, prefix);
        }
    }
}

/// Hashes an op and its result type, for what depends on content alone.
const SIGNATURE: FixedState = FixedState::with_seed(0x6774);

impl Open {
    fn new(base: u64, positions: Arc<[usize]>) -> Open {
        Open {
            base,
            entries: Vec::new(),
            inputs: Vec::new(),
            input_index: HashMap::with_hasher(FixedState::default()),
            slots: Vec::new(),
            data: 0,
            frees: Vec::new(),
            free_bytes: 0,
            rebinds: Vec::new(),
            held: Vec::new(),
            step_ended: false,
            at_once: false,
            mesh: 0,
            progress: Progress::new(positions),
        }
    }

    fn operand(&mut self, stream: &Arc<Stream>, v: &Value) -> u32 {
        if Arc::ptr_eq(&v.stream, stream) && v.pos >= self.base {
            return (v.pos - self.base) as u32;
        }
        if let Some(&i) = self.input_index.get(&v.id) {
            return INPUT | i;
        }
        let i = self.inputs.len() as u32;
        self.inputs.push((v.id, v.ty.clone()));
        self.input_index.insert(v.id, i);
        if !Arc::ptr_eq(&v.stream, stream) {
            self.held.push(v.clone());
        }
        INPUT | i
    }

    fn slot(&mut self, slot: Slot) -> Arg {
        if let Slot::Data(bytes) = &slot {
            self.data += bytes.len();
        }
        self.slots.push(slot);
        Arg::Slot(self.slots.len() as u32 - 1)
    }

    /// Where to cut a program that reached the cap: after the last smallest rolling hash of op signatures, so that
    /// loops are cut at the same point of their body each time.
    fn best_cut(&self) -> usize {
        let n = self.entries.len();
        let signatures: Vec<u64> = self
            .entries
            .iter()
            .map(|e| SIGNATURE.hash_one((e.instr.as_ref().map(|i| &i.op), &e.ty)))
            .collect();
        let mut best = (u64::MAX, n);
        for end in (n / 4).max(WINDOW)..=n {
            // Results of one instruction stay together.
            if self.entries.get(end).is_some_and(|e| e.instr.is_none()) {
                continue;
            }
            let mut h = 0u64;
            for signature in &signatures[end - WINDOW..end] {
                h = (h.rotate_left(7) ^ signature).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            }
            if h <= best.0 {
                best = (h, end);
            }
        }
        best.1
    }

    /// Takes the instructions of the first `cut` values out as a program; the rest stays open.
    fn seal_prefix(&mut self, cut: usize) -> Sealed {
        let ends_step = std::mem::take(&mut self.step_ended);
        self.free_bytes = 0;
        let rest: Vec<Entry> = self.entries.split_off(cut);
        if rest.is_empty() {
            self.mesh = 0;
        }
        let room = self.entries.capacity();
        let entries = std::mem::replace(&mut self.entries, Vec::with_capacity(room));
        let old_inputs = std::mem::take(&mut self.inputs);
        let old_slots = std::mem::take(&mut self.slots);
        self.data = 0;
        let mut frees = std::mem::take(&mut self.frees);
        let held = std::mem::take(&mut self.held);
        if !rest.is_empty() {
            self.held = held.clone();
        }
        self.input_index.clear();

        // Results that the rest reads stay alive past the cut; if already dropped they die in the next program.
        let mut needed = vec![false; cut];
        let mut rest_inputs = vec![false; old_inputs.len()];
        for e in &rest {
            for arg in e.args() {
                if let Arg::Value(v) = arg {
                    if v & INPUT != 0 {
                        rest_inputs[(v & !INPUT) as usize] = true;
                    } else if (*v as usize) < cut {
                        needed[*v as usize] = true;
                    }
                }
            }
        }
        // Frees of inputs that the rest still reads wait for the next program.
        if !rest.is_empty() {
            let still: Vec<TensorId> =
                old_inputs.iter().zip(&rest_inputs).filter(|(_, r)| **r).map(|((id, _), _)| *id).collect();
            frees.retain(|id| {
                let later = still.contains(id);
                if later {
                    self.frees.push(*id);
                }
                !later
            });
        }

        // Number inputs by first use and renumber operands.
        let mut sealed = Numbering::new(old_inputs.len(), old_slots.len());
        let mut instrs: Vec<Instr> = Vec::with_capacity(cut);
        for e in &entries {
            for arg in e.args() {
                sealed.see(arg);
            }
        }
        let n_inputs = sealed.inputs.len() as u32;
        let mut outs = Vec::new();
        let mut out_ids = Vec::new();
        let mut bytes = 0;
        let mut lines = Vec::with_capacity(cut);
        let mut out_lines = Vec::new();
        let mut meta = Vec::with_capacity(rest.len().min(cut));
        let mut marks = Vec::new();
        for (i, e) in entries.into_iter().enumerate() {
            if e.alive || needed[i] {
                outs.push(n_inputs + i as u32);
                out_ids.push(e.id);
                out_lines.push(e.line);
                bytes += e.ty.bytes() as u64;
                if !e.alive {
                    self.frees.push(e.id);
                }
            }
            if !rest.is_empty() {
                meta.push((e.id, e.ty.clone()));
            }
            if e.mark != 0 {
                let kept = e.alive || needed[i];
                let firm = e.mark & FIRM != 0 || (kept && e.mark & FIRM_IF_KEPT != 0);
                marks.push(Mark { value: n_inputs + i as u32, signal: (e.mark >> 2) - 1, firm });
            }
            if let Some(Instr { op, args }) = e.instr {
                lines.push(e.line);
                let args = args.iter().map(|a| sealed.map(a, n_inputs)).collect();
                instrs.push(Instr { op, args });
            }
        }
        let inputs: Vec<TensorId> = sealed.inputs.iter().map(|&i| old_inputs[i as usize].0).collect();
        let dying: HashSet<TensorId, FixedState> = frees.iter().copied().collect();
        let input_types = sealed.inputs.iter().map(|&i| Input {
            ty: old_inputs[i as usize].1.clone(),
            dies: dying.contains(&old_inputs[i as usize].0),
        });
        let structure = Structure {
            inputs: input_types.collect(),
            instrs,
            outs,
            slots: sealed.slots.len() as u32,
            marks,
            at_once: self.at_once,
        };
        let slots = sealed.slots.iter().map(|&k| old_slots[k as usize].clone()).collect();

        // What stays open: operands from before the cut become inputs.
        let cut_pos = self.base + cut as u64;
        self.base = cut_pos;
        for mut e in rest {
            for arg in e.instr.iter_mut().flat_map(|i| &mut i.args) {
                *arg = match *arg {
                    Arg::Value(v) if v & INPUT != 0 => {
                        let (id, ty) = &old_inputs[(v & !INPUT) as usize];
                        Arg::Value(self.reopen(*id, ty))
                    }
                    Arg::Value(v) if (v as usize) < cut => {
                        let (id, ty) = &meta[v as usize];
                        Arg::Value(self.reopen(*id, ty))
                    }
                    Arg::Value(v) => Arg::Value(v - cut as u32),
                    Arg::Slot(k) => self.slot(old_slots[k as usize].clone()),
                    Arg::Const(x) => Arg::Const(x),
                };
            }
            self.entries.push(e);
        }
        let (rebinds, later) =
            std::mem::take(&mut self.rebinds).into_iter().partition(|(pos, _)| *pos <= cut_pos);
        self.rebinds = later;
        let rebinds = rebinds.into_iter().map(|(_, r)| r).collect();
        let (prefix, marks) = self.progress.take();
        let outs = out_ids;
        Sealed {
            structure,
            inputs,
            outs,
            slots,
            frees,
            rebinds,
            lines,
            out_lines,
            held,
            bytes,
            prefix,
            marks,
            ends_step,
        }
    }

    fn reopen(&mut self, id: TensorId, ty: &Ty) -> u32 {
        let next = self.inputs.len() as u32;
        let i = *self.input_index.entry(id).or_insert(next);
        if i == next {
            self.inputs.push((id, ty.clone()));
        }
        INPUT | i
    }
}

/// Renumbers inputs and slots by first use.
struct Numbering {
    inputs: Vec<u32>,
    slots: Vec<u32>,
    input_map: Vec<u32>,
    slot_map: Vec<u32>,
}

const UNSEEN: u32 = u32::MAX;

impl Numbering {
    fn new(inputs: usize, slots: usize) -> Numbering {
        Numbering {
            inputs: Vec::new(),
            slots: Vec::new(),
            input_map: vec![UNSEEN; inputs],
            slot_map: vec![UNSEEN; slots],
        }
    }

    fn see(&mut self, arg: &Arg) {
        match *arg {
            Arg::Value(v) if v & INPUT != 0 => {
                let i = v & !INPUT;
                if self.input_map[i as usize] == UNSEEN {
                    self.input_map[i as usize] = self.inputs.len() as u32;
                    self.inputs.push(i);
                }
            }
            Arg::Slot(k) if self.slot_map[k as usize] == UNSEEN => {
                self.slot_map[k as usize] = self.slots.len() as u32;
                self.slots.push(k);
            }
            _ => {}
        }
    }

    fn map(&self, arg: &Arg, n_inputs: u32) -> Arg {
        match *arg {
            Arg::Value(v) if v & INPUT != 0 => Arg::Value(self.input_map[(v & !INPUT) as usize]),
            Arg::Value(v) => Arg::Value(n_inputs + v),
            Arg::Slot(k) => Arg::Slot(self.slot_map[k as usize]),
            Arg::Const(x) => Arg::Const(x),
        }
    }
}
