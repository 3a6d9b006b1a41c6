//! Programs leave: they get their numbers, and travel together with what else is to be told.

use super::outbox::{Outbox, Unfinished};
use super::repair::Again;
use super::{Session, closed};
use crate::stream::{Sealed, SourceLine, Work};
use crate::value::Value;
use gt_ir::{Program, Result, Slot, TensorId};
use gt_net::msg::{Batch, ClientMsg, Fetch, Prefix, Run};
use std::sync::atomic::Ordering;

impl Session {
    /// Gives a sealed program its number and sends it. Returns what must be dropped outside the stream's lock.
    pub(crate) fn send_sealed(&self, sealed: Sealed) -> Result<Vec<Value>> {
        self.send_batch(Some(sealed), Vec::new())
    }

    /// Gives a program that ends an optimizer step its number. It waits for the next message, so that a step costs
    /// one message wherever the loop looks at its loss.
    pub(crate) fn queue_sealed(&self, sealed: Sealed) -> Result<Vec<Value>> {
        let mut outbox = self.outbox.lock();
        self.send_queue(&mut outbox)?;
        let (held, frees) = self.number(&mut outbox, sealed);
        if !frees.is_empty() {
            self.send(ClientMsg::Batch(Batch { frees, ..Batch::default() }))?;
        }
        Ok(held)
    }

    /// Sends what waits for the next message.
    pub(super) fn send_queue(&self, outbox: &mut Outbox) -> Result<()> {
        if outbox.queue.is_empty() {
            return Ok(());
        }
        let runs = std::mem::take(&mut outbox.queue);
        self.send(ClientMsg::Batch(Batch { runs, ..Batch::default() }))
    }

    /// Asks to be told when program `seq` has ended, after it has left.
    pub(super) fn ask_for(&self, seq: u64) -> Result<()> {
        let mut outbox = self.outbox.lock();
        self.send_queue(&mut outbox)?;
        self.send(ClientMsg::Sync { seq })
    }

    pub(super) fn send_batch(&self, sealed: Option<Sealed>, fetches: Vec<Fetch>) -> Result<Vec<Value>> {
        let mut outbox = self.outbox.lock();
        let (held, mut frees) = match sealed {
            Some(sealed) => self.number(&mut outbox, sealed),
            None => Default::default(),
        };
        frees.append(&mut self.orphans.lock());
        frees.iter().for_each(|id| outbox.lived.freed(*id));
        let batch = Batch { runs: std::mem::take(&mut outbox.queue), fetches, frees };
        if batch.runs.is_empty() && batch.fetches.is_empty() && batch.frees.is_empty() {
            return Ok(held);
        }
        if self.closed.load(Ordering::Relaxed) {
            return Err(closed());
        }
        self.send(ClientMsg::Batch(batch))?;
        Ok(held)
    }

    /// Tells the dispatcher the signals it does not know. If the link is lost, so is what refers to them.
    fn send_signals(&self, outbox: &mut Outbox) {
        let specs = crate::signal::registry::news(outbox.signals);
        if !specs.is_empty() {
            outbox.signals += specs.len();
            let _ = self.link.send(ClientMsg::Signals { specs });
        }
    }

    /// Puts a sealed program into the queue under its number. Returns values to be dropped later, and the frees of
    /// a program without instructions.
    pub(super) fn number(&self, outbox: &mut Outbox, mut s: Sealed) -> (Vec<Value>, Vec<TensorId>) {
        if matches!(&s.structure, Work::New(structure, _) if structure.instrs.is_empty()) {
            return (s.held, s.frees);
        }
        let completed = self.shared.inbox.lock().completed;
        outbox.retire(completed, self.shared.failed.load(Ordering::Relaxed));
        outbox.seq += 1;
        let seq = outbox.seq;
        let (structure, key, known) = match s.structure {
            Work::Known(way) => (way.structure.clone(), way.key, true),
            Work::New(mut structure, whole) => {
                let slots = s.slots.len();
                outbox.scalars.promote(&mut structure, &mut s.slots);
                let (structure, key, known) = outbox.share(structure);
                if let Some(whole) = whole.filter(|_| known || outbox.has_kin(&structure)) {
                    whole.learn(&structure, key, &s.slots, slots, s.bytes);
                }
                (structure, key, known)
            }
        };
        if !structure.marks.is_empty() {
            self.send_signals(outbox);
        }
        self.log_lines(outbox, key, &s.lines);
        self.tell_lines(outbox, key, &s.lines);
        let frees = s.frees.clone();
        let data = s.slots.iter().map(|slot| if let Slot::Data(d) = slot { d.len() as u64 } else { 0 }).sum();
        let program =
            Program { structure, key, inputs: s.inputs, outs: s.outs, slots: s.slots, frees: s.frees };
        outbox.remember(&s.marks);
        outbox.bytes += s.bytes;
        outbox.unfinished.push_back(Unfinished {
            seq,
            bytes: s.bytes,
            data,
            frees,
            again: Again::of(&program, s.base, &s.rebinds),
            rebinds: s.rebinds,
            lines: s.lines,
            ends_step: s.ends_step,
            stream: s.stream,
            instrs: program.structure.instrs.len(),
            new: !known,
        });
        outbox.lived.made(&program.outs, s.out_lines);
        let dying = program.inputs.iter().zip(&program.structure.inputs).filter(|(_, input)| input.dies);
        for id in program.frees.iter().chain(dying.map(|(id, _)| id)) {
            outbox.lived.freed(*id);
        }
        if self.settings.debug {
            gt_ir::say!(
                "gt client: program {seq} key={key:016x} ops={} inputs={} outs={}",
                program.structure.instrs.len(),
                program.inputs.len(),
                program.outs.len()
            );
        }
        outbox.queue.push(Run { seq, program, prefix: s.prefix });
        (s.held, Vec::new())
    }

    /// Writes the source lines of a program's instructions to the log, the first time that it comes.
    fn log_lines(&self, outbox: &mut Outbox, key: u64, lines: &[SourceLine]) {
        use std::io::Write;
        let Some(log) = &self.log else { return };
        if outbox.logged.len() >= 1 << 16 {
            outbox.logged.clear();
        }
        if outbox.logged.insert(key) {
            let text = self.files.lock().runs(lines);
            let _ = writeln!(log.lock(), "    LINES key={key:016x}{text}");
        }
    }

    /// Tells the server the source lines of a program that it has not seen since it asked.
    fn tell_lines(&self, outbox: &mut Outbox, key: u64, lines: &[SourceLine]) {
        let asked = self.shared.lines_asked.load(Ordering::Relaxed);
        if asked == 0 {
            return;
        }
        if outbox.told.0 != asked || outbox.told.1.len() >= 1 << 16 {
            outbox.told = (asked, Default::default());
        }
        if outbox.told.1.insert(key) {
            let text = self.files.lock().runs(lines);
            // If the link is lost, so is who wanted to know.
            let _ = self.link.send(ClientMsg::Lines { key, text });
        }
    }

    /// True if everything sent has finished, and no program sent so far begins as one with this mark does.
    pub(crate) fn is_idle_and_new(&self, mark: u64) -> bool {
        let outbox = self.outbox.lock();
        outbox.queue.is_empty()
            && !outbox.marks.contains(&mark)
            && self.shared.inbox.lock().completed == outbox.seq
            && !self.shared.failed.load(Ordering::Relaxed)
            && !self.link.is_behind()
    }

    /// Sends the beginning of an open program. One that does not arrive is no loss.
    pub(crate) fn send_prefix(&self, id: u64, program: Program) {
        if self.settings.debug {
            let (ops, kept) = (program.structure.instrs.len(), program.outs.len());
            gt_ir::say!("gt client: prefix {id} of the open program, ops={ops} kept={kept}");
        }
        let _order = self.outbox.lock();
        let _ = self.link.send(ClientMsg::Prefix(Prefix { id, program }));
    }
}
