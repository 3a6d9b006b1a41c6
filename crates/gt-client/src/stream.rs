//! One thread's stream of instructions: recording, cutting into programs and freeing (C2, C3).

mod open;
pub mod prefix;
mod seal;
mod show;

use crate::cell::Cell;
use crate::session::Session;
use crate::signal;
use crate::value::{SETTLED, Value, ValueInner};
use gt_ir::{Arg, Args, Instr, Op, Result, Scalar, Slot, Structure, TensorId, Ty, Types, bail};
use open::{Entry, Open, WINDOW};
use parking_lot::Mutex;
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
/// Bytes of dropped tensors that are told at once when nothing is recorded meanwhile.
const EAGER_FREE: u64 = 32 << 20;
/// Bytes of host data at which a program is cut, as it is at its cap: it has to fit a message.
const MAX_DATA: usize = 4 << 20;

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
