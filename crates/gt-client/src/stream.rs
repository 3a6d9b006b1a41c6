//! One thread's stream of instructions: recording, cutting into programs and freeing (C2, C3).

mod follow;
mod open;
mod past;
pub mod prefix;
mod repeat;
mod seal;
mod show;
mod sizes;

use crate::cell::Cell;
use crate::session::Session;
use crate::signal;
use crate::value::{SETTLED, Value, ValueInner};
use crate::wait::Unbroken;
use gt_ir::{Arg, Args, Instr, Op, Result, Scalar, ScatterMode, Slot, Structure, TensorId, Ty, Types, bail};
use gt_sync::Mutex;
use open::{Entry, Open, WINDOW};
pub(crate) use past::{Past, Pasts, Way};
pub(crate) use repeat::{Spot, Stretch};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// A cell that an open program has given a new value, and what it held before (C5: reverted if the program fails).
pub struct Rebind {
    pub cell: Weak<Cell>,
    pub old: Weak<ValueInner>,
    pub old_id: TensorId,
    pub old_ty: Ty,
    /// Its position in the stream of the new value, or `SETTLED` if it came from elsewhere.
    pub old_pos: u64,
}

/// A sealed program that waits for its sequence number.
pub(crate) struct Sealed {
    pub structure: Work,
    /// Stream position of its first result.
    pub base: u64,
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
    /// The number of the stream that recorded it; 0 for none.
    pub stream: u64,
}

/// What a sealed program does.
pub(crate) enum Work {
    /// Something that has to be looked up; as a whole it may be followed later.
    New(Structure, Option<Whole>),
    /// What a program before it did.
    Known(Arc<Way>),
}

/// What a program that was not cut leaves to be followed.
pub(crate) struct Whole {
    /// The types of its results.
    types: Vec<Ty>,
    pasts: Arc<Pasts>,
    /// The program that it is but for what lives and dies, and its numbers.
    past: Option<Arc<Past>>,
}

impl Whole {
    /// Remembers a program that came before. Its slots from `slots` on were numbers when it was recorded.
    pub(crate) fn learn(
        self,
        structure: &Arc<Structure>,
        key: u64,
        values: &[Slot],
        slots: usize,
        bytes: u64,
    ) {
        let results = self.types.len();
        let past = self.past.unwrap_or_else(|| {
            let past = Past::new(structure, self.types, values, slots);
            self.pasts.add(past)
        });
        past.learn(Way::new(structure, key, results, slots, bytes));
    }
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
/// Bytes of dropped tensors that are told at once when nothing is recorded meanwhile.
const EAGER_FREE: u64 = 8 << 20;
/// Bytes of host data at which a program is cut, as it is at its cap: it has to fit a message.
const MAX_DATA: usize = 4 << 20;

/// Some stream of this process went on with other workers.
static ANY_MOVED: AtomicBool = AtomicBool::new(false);

pub(crate) fn any_moved() -> bool {
    ANY_MOVED.load(Ordering::Relaxed)
}

/// One thread's recorder within a session.
pub struct Stream {
    pub session: Weak<Session>,
    pub session_id: u64,
    /// Unique in this process.
    pub(crate) number: u64,
    /// Its thread has ended.
    over: AtomicBool,
    generation: u64,
    open: Mutex<Open>,
    /// Programs that may be followed.
    pasts: Arc<Pasts>,
    /// The open program follows none; a hint, to be read without the lock.
    apart: AtomicBool,
    /// How often it went on with other workers.
    moves: AtomicU64,
    cap: usize,
}

impl Stream {
    pub(crate) fn new(session: &Arc<Session>, cap: usize, positions: Arc<[usize]>) -> Arc<Stream> {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let pasts: Arc<Pasts> = Arc::default();
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        Arc::new(Stream {
            number,
            over: AtomicBool::new(false),
            session: Arc::downgrade(session),
            session_id: session.number,
            generation: session.generation,
            open: Mutex::new(Open::new(number, SETTLED + 1, positions, pasts.clone())),
            pasts,
            apart: AtomicBool::new(false),
            moves: AtomicU64::new(0),
            cap: cap.max(2 * WINDOW),
        })
    }

    /// Records one instruction if a program that is being followed has it here; its results are given to `each`.
    /// Nothing is recorded, and it has to be done in the usual way, if this says false.
    #[inline]
    pub(crate) fn follow(
        self: &Arc<Stream>,
        session: &Session,
        op: &Op,
        args: &[RecordArg],
        mut each: impl FnMut(Value),
    ) -> Result<bool> {
        if self.apart.load(Ordering::Relaxed) || !self.pasts.any() {
            return Ok(false);
        }
        if signal::now().forward != 0 || session.settings.host {
            return Ok(false);
        }
        settle_others(self, args)?;
        let line = crate::source::current(session);
        let mut open = self.open.lock();
        let sent = self.cut(session, &mut open, 0);
        let followed = open.follow(self, op, args, line, |ty, pos| {
            let id = session.next_id();
            each(Arc::new(ValueInner { id, ty: ty.clone(), stream: self.clone(), pos }));
            id
        });
        drop(open);
        self.after_cut(session, sent)?;
        Ok(followed)
    }

    /// Records one instruction whose result type is known to be `ty`.
    pub fn record(
        self: &Arc<Stream>,
        session: &Session,
        op: Op,
        args: &[RecordArg],
        ty: Ty,
    ) -> Result<Value> {
        let mut known = None;
        self.follow(session, &op, args, |value| known = Some(value))?;
        match known {
            Some(value) => Ok(value),
            None => self.append(session, op, args, ty),
        }
    }

    /// Records one instruction that no program has here which is followed.
    pub(crate) fn append(
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

    /// Records one instruction of several results, whose types are known, that no program has here which is followed.
    pub(crate) fn append_all(
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
        settle_others(self, args)?;
        if session.settings.host {
            host_may(&op)?;
        }
        let line = crate::source::current(session);
        let mut open = self.open.lock();
        let sent = self.cut(session, &mut open, mesh);
        open.write_out();
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
        self.apart.store(true, Ordering::Relaxed);
        crate::autograd::tape::end();
        drop(open);
        self.after_cut(session, sent)?;
        Ok(pos)
    }

    /// Seals and sends what has to leave before another instruction, on workers of `mesh`, is recorded.
    #[inline]
    fn cut(&self, session: &Session, open: &mut Open, mesh: u32) -> Option<Result<Vec<Value>>> {
        let elsewhere = mesh != 0 && open.mesh != 0 && mesh != open.mesh;
        if !elsewhere && !open.step_ended && open.len() < self.cap && open.data < MAX_DATA {
            return None;
        }
        let all = open.len();
        let sent = if elsewhere {
            // Other workers go on with it meanwhile.
            self.moves.fetch_add(1, Ordering::Relaxed);
            ANY_MOVED.store(true, Ordering::Relaxed);
            session.send_sealed(open.seal_prefix(all))
        } else if open.step_ended {
            session.queue_sealed(open.seal_prefix(all))
        } else {
            open.write_out();
            let cut = open.best_cut();
            session.send_sealed(open.seal_prefix(cut))
        };
        self.apart.store(!open.entries.is_empty(), Ordering::Relaxed);
        Some(sent)
    }

    /// What is left to do after a cut, with no lock held: values of other streams are let go, whose drop takes their own
    /// stream's lock, and credit is waited for.
    #[inline]
    fn after_cut(&self, session: &Session, sent: Option<Result<Vec<Value>>>) -> Result<()> {
        if let Some(held) = sent {
            drop(held?);
            if !Unbroken::puts_off() {
                session.wait_for_credit()?;
            }
        }
        Ok(())
    }

    /// Its thread has ended: nothing more is recorded.
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// True if nothing is recorded that was not sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.open.lock().len() == 0
    }

    /// How often it went on with other workers.
    pub(crate) fn moves(&self) -> u64 {
        self.moves.load(Ordering::Relaxed)
    }

    /// Notes that a cell has a new value from the open program.
    pub fn note_rebind(&self, rebind: Rebind) {
        let mut open = self.open.lock();
        let pos = open.base + open.len() as u64;
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
        let sealed = self.seal(&mut open);
        send(Some(sealed))
    }

    /// Seals and sends what is recorded so far.
    pub fn flush(&self) -> Result<()> {
        let held = self.send(&mut self.open.lock());
        held.map(drop)
    }

    fn send(&self, open: &mut Open) -> Result<Vec<Value>> {
        let Some(session) = self.session.upgrade() else { return Ok(Vec::new()) };
        session.send_sealed(self.seal(open))
    }

    /// Seals all that is recorded.
    fn seal(&self, open: &mut Open) -> Sealed {
        self.apart.store(false, Ordering::Relaxed);
        let n = open.len();
        open.seal_prefix(n)
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
        self.write_out(&mut open);
        let at = value.pos.checked_sub(open.base).filter(|_| value.pos != SETTLED);
        match at.and_then(|i| open.entries.get_mut(i as usize)) {
            Some(entry) => {
                entry.mark = mark;
                true
            }
            None => false,
        }
    }

    /// The open program follows no other from here on.
    fn write_out(&self, open: &mut Open) {
        open.write_out();
        self.apart.store(!open.entries.is_empty(), Ordering::Relaxed);
    }

    /// Marks the end of an optimizer step: the program is sealed when the next instruction is recorded.
    pub fn end_step(&self) {
        let mut open = self.open.lock();
        open.step_ended = open.len() > 0;
    }

    /// Records that a tensor was dropped. Safe at any time, also at interpreter shutdown.
    pub(crate) fn free(&self, id: TensorId, pos: u64, bytes: usize) {
        if self.generation != crate::current::generation() {
            return;
        }
        let mut open = self.open.lock();
        if pos >= open.base {
            let i = (pos - open.base) as usize;
            open.drop_value(i);
        } else {
            open.frees.push(id);
            open.free_bytes += bytes as u64;
            // Much memory is not kept waiting for an instruction that may never come.
            if open.free_bytes >= EAGER_FREE && open.len() == 0 {
                let held = self.send(&mut open);
                drop(open);
                drop(held);
            }
        }
    }
}

/// Values that other threads have recorded and not sent are sent there.
#[inline]
fn settle_others(stream: &Arc<Stream>, args: &[RecordArg]) -> Result<()> {
    for arg in args {
        if let RecordArg::Val(v) = arg
            && !Arc::ptr_eq(&v.stream, stream)
        {
            v.stream.settle(v.pos)?;
        }
    }
    Ok(())
}

/// True if a start is structure: a tile of the operand it slices.
fn is_tile(op: &Op, args: &[RecordArg], start: Scalar) -> bool {
    matches!(args.first(), Some(RecordArg::Val(x)) if op.is_tile(&x.ty.shape, start.as_i64()))
}

/// What a data-loader worker does: it makes tensors, joins and fills them, and takes and writes parts of them (C12).
fn host_may(op: &Op) -> Result<()> {
    match op {
        Op::Full { .. } | Op::Arange { .. } | Op::Random { .. } | Op::Data { .. } | Op::Cast(_) => Ok(()),
        Op::View(_) | Op::Concat { .. } | Op::Take { .. } | Op::Flip { .. } | Op::Pad { .. } | Op::Where => {
            Ok(())
        }
        Op::Put { .. } | Op::TakePut { mode: ScatterMode::Set, .. } => Ok(()),
        other => bail!(
            Runtime,
            "{}: a data-loader worker makes host tensors only: create, stack, slice, pad, index, write and pickle them \
             there, and compute in the main process, or with num_workers=0",
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
