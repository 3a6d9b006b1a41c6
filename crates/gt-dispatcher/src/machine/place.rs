//! Programs on their way: each is checked, placed, and sent to its worker with what it needs from others.

use super::Cx;
use super::checked::Rules;
use super::gang::Ready;
use super::holders::Holder;
use super::message::{Parts, part};
use super::session::{Move, Moved, Pending, Session, no_workers};
use super::tensor::{Made, Tensor};
use foldhash::fast::FixedState;
use gt_ir::{DType, Error, Program, Result, TensorId, Ty, bail};
use gt_net::msg::{Failure, Prefix, Run, WorkerCmd, WorkerId};
use smallvec::SmallVec;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

/// Programs of one session begun early at most: a stream has one.
const MAX_PREFIXES: usize = 64;

/// What is known of a program's inputs.
enum Inputs {
    /// One of them has no value, for this reason.
    Poisoned(Box<Failure>),
    /// All of them are at this worker, or on their way there.
    At(Option<WorkerId>),
}

impl Inputs {
    fn are_at(&self, worker: WorkerId) -> bool {
        matches!(self, Inputs::At(Some(at)) if *at == worker)
    }
}

impl Session {
    pub(super) fn run(&mut self, run: Run, ready: Ready, parts: &mut Parts, cx: &mut Cx) -> Result<()> {
        let Run { seq, mut program, prefix } = run;
        if seq != self.last_seq + 1 {
            bail!(Value, "program: it has number {seq}, expected {}", self.last_seq + 1);
        }
        if self.pending.len() >= cx.config.max_unfinished {
            bail!(
                Value,
                "program: {} programs are unfinished, the client ignores its credit",
                self.pending.len()
            );
        }
        self.last_seq = seq;
        self.counters.programs += 1;
        self.counters.instructions += program.structure.instrs.len() as u64;
        let checked = cx.checked.check(&mut program).and_then(|Rules { types, binding }| {
            binding.check(&program)?;
            if let Ready::Again(_) = ready {
                self.check_outs(seq, &program.outs)?;
                return Ok((Inputs::At(None), types));
            }
            self.check_marks(&program.structure, cx)?;
            Ok((self.check_tensors(seq, &program)?, types))
        });
        let fails = |error: Error| Failure { root: seq, instr: None, error };
        let (failure, types) = match (checked, ready) {
            (Ok((Inputs::Poisoned(failure), types)), _) => (*failure, Some(types)),
            (Ok(_), Ready::Gang(course, lay)) => {
                self.keep_course(&program, lay, &course, cx);
                return self.send_gang(Run { seq, program, prefix }, &course, parts, cx);
            }
            (Ok(_), Ready::Again(course)) => {
                return self.send_gang(Run { seq, program, prefix }, &course, parts, cx);
            }
            (Ok((_, types)), Ready::Fails(error)) => (fails(error), Some(types)),
            (Ok((inputs, types)), Ready::Alone | Ready::Waits(_)) => {
                match self.place(&program, &inputs, cx) {
                    Some(worker) => {
                        let prefix = prefix.filter(|id| self.forget(*id, Some(worker), cx));
                        let run = Run { seq, program, prefix };
                        if !inputs.are_at(worker) {
                            run.program.inputs.iter().for_each(|id| self.bring(*id, worker, parts, cx));
                        }
                        return self.send(run, &types, worker, parts, cx);
                    }
                    None => (fails(no_workers(&cx.config.address)), Some(types)),
                }
            }
            // What is wrong with the program is its own failure, and costs the session nothing else.
            (Err(error), _) => (fails(error), None),
        };
        if let Some(prefix) = prefix {
            self.forget(prefix, None, cx);
        }
        self.fail_here(seq, &program, types.as_deref(), failure);
        Ok(())
    }

    /// Has the beginning of a program run at home, if all it needs is there. Else the program will do without, and
    /// whatever is wrong with it will be told then.
    pub(super) fn prefix(&mut self, prefix: Prefix, cx: &mut Cx) {
        let Prefix { id, program } = &prefix;
        let known = self.prefixes.get(id).copied();
        if self.spread || self.sharding.is_some() || (known.is_none() && self.prefixes.len() >= MAX_PREFIXES)
        {
            return;
        }
        // A session gets its home with the first work that goes there.
        let at = known.or(self.home);
        let mut seen = BTreeSet::new();
        let here = program.inputs.iter().zip(&program.structure.inputs).all(|(id, input)| {
            // Of a tensor that is spread over a mesh a worker may have a piece only.
            let usable = |t: &Tensor| t.ty == input.ty && t.is_usable() && t.spread.is_none();
            let there = |t: &Tensor| usable(t) && at.is_some_and(|worker| t.is_at(worker));
            !input.dies && seen.insert(*id) && self.tensors.get(*id).is_some_and(there)
        });
        let fits = || program.structure.check().and_then(|types| program.check_binding(&types)).is_ok();
        if !here || !program.frees.is_empty() || !fits() {
            return;
        }
        if let Some(worker) = at.or_else(|| self.home(cx)) {
            self.prefixes.insert(*id, worker);
            self.tell_worker(cx, worker, WorkerCmd::Prefix { session: self.id, prefix });
        }
    }

    /// Takes a prefix off the books. True if it is on worker `at`, where its program goes on from it; elsewhere it
    /// is dropped.
    pub(super) fn forget(&mut self, prefix: u64, at: Option<WorkerId>, cx: &mut Cx) -> bool {
        let Some(worker) = self.prefixes.remove(&prefix) else { return false };
        if at != Some(worker) {
            self.tell_worker(cx, worker, WorkerCmd::Forget { session: self.id, prefix });
        }
        at == Some(worker)
    }

    /// Checks that every input is there, of the right type, once, and that no result is.
    fn check_tensors(&mut self, seq: u64, program: &Program) -> Result<Inputs> {
        let mut poison = None;
        let mut at = self.home;
        self.reads += 1;
        for (id, input) in program.inputs.iter().zip(&program.structure.inputs) {
            let Some(tensor) = self.tensors.get_mut(*id) else {
                bail!(Value, "program {seq}: it reads tensor {}, which does not exist", id.0)
            };
            if tensor.freed_by != 0 {
                bail!(Value, "program {seq}: tensor {} was freed by program {}", id.0, tensor.freed_by);
            }
            if tensor.read_at == self.reads {
                bail!(Value, "program {seq}: tensor {} is an input twice", id.0);
            }
            tensor.read_at = self.reads;
            at = at.filter(|home| tensor.is_at(*home));
            match &tensor.poison {
                Some(why) => {
                    poison.get_or_insert_with(|| why.clone());
                }
                None if tensor.ty != input.ty => {
                    bail!(Value, "program {seq}: tensor {} is {}, not {}", id.0, tensor.ty, input.ty)
                }
                None => {}
            }
        }
        self.check_outs(seq, &program.outs)?;
        Ok(poison.map_or(Inputs::At(at), Inputs::Poisoned))
    }

    /// Checks that no result of a program is there, and none is written twice.
    fn check_outs(&self, seq: u64, outs: &[TensorId]) -> Result<()> {
        // Most results are numbered one after the other, behind all that came before.
        let newest = self.newest;
        if outs.first().is_none_or(|first| *first > newest) && outs.is_sorted_by(|a, b| a < b) {
            return Ok(());
        }
        let mut written: HashSet<TensorId, FixedState> = HashSet::default();
        for id in outs {
            if self.tensors.contains(*id) || !written.insert(*id) {
                bail!(Value, "program {seq}: tensor {} is written twice", id.0);
            }
        }
        Ok(())
    }

    pub(super) fn add(&mut self, id: TensorId, tensor: Tensor, cx: &mut Cx) -> Result<()> {
        if self.tensors.contains(id) {
            bail!(Value, "tensor {} is written twice", id.0);
        }
        for holder in tensor.holders.iter() {
            cx.pool.hold(holder.worker, tensor.bytes());
        }
        self.tensors.add(id, tensor);
        self.newest = self.newest.max(id);
        Ok(())
    }

    /// Adds the results of a program.
    pub(super) fn add_made(&mut self, made: &Arc<Made>, program: &Program) -> Result<()> {
        for (id, tensor) in made.tensors(program) {
            if !self.tensors.add(id, tensor) {
                bail!(Value, "tensor {} is written twice", id.0);
            }
            self.newest = self.newest.max(id);
        }
        Ok(())
    }

    /// A program that cannot run anywhere: its results get the root cause, and its frees are not carried out (C5).
    /// Without `types` the program is malformed, and so may be what it says of its results.
    fn fail_here(&mut self, seq: u64, program: &Program, types: Option<&[Ty]>, failure: Failure) {
        for (k, &id) in program.outs.iter().enumerate() {
            let out = program.structure.outs.get(k).zip(types).map(|(v, types)| types[*v as usize].clone());
            // Nobody looks at the type of what has no value.
            let mut tensor = Tensor::new(out.unwrap_or_else(|| Ty::new(DType::Bool, [0])));
            tensor.poison = Some(Box::new(failure.clone()));
            // What is there already is not this program's to spoil.
            self.tensors.add(id, tensor);
            self.newest = self.newest.max(id);
        }
        self.news.failures.push((seq, failure));
    }

    /// The worker a program is to run on: home if its inputs are there, else where most of their bytes are.
    fn place(&mut self, program: &Program, inputs: &Inputs, cx: &mut Cx) -> Option<WorkerId> {
        if self.spread {
            return cx.pool.least_loaded();
        }
        if let Some(worker) = self.marked_place(&program.structure, cx) {
            return Some(worker);
        }
        let home = self.home(cx)?;
        if inputs.are_at(home) || program.inputs.is_empty() {
            return Some(home);
        }
        let mut bytes: SmallVec<[(WorkerId, u64); 4]> = SmallVec::new();
        for id in &program.inputs {
            let Some(tensor) = self.tensors.get(*id) else { continue };
            for holder in tensor.holders.iter() {
                match bytes.iter_mut().find(|(w, _)| *w == holder.worker) {
                    Some((_, n)) => *n += tensor.bytes(),
                    None => bytes.push((holder.worker, tensor.bytes())),
                }
            }
        }
        let best = bytes.into_iter().max_by_key(|(w, n)| (*n, *w == home, std::cmp::Reverse(*w)));
        Some(best.map_or(home, |(w, _)| w))
    }

    pub(super) fn home(&mut self, cx: &mut Cx) -> Option<WorkerId> {
        if self.home.is_none() {
            self.home = cx.pool.least_loaded();
            if let Some(worker) = self.home.and_then(|id| cx.pool.get_mut(id)) {
                worker.homes += 1;
            }
        }
        self.home
    }

    /// Sends a program to a worker that has its inputs, or will have them.
    fn send(
        &mut self,
        run: Run,
        types: &[Ty],
        worker: WorkerId,
        parts: &mut Parts,
        cx: &mut Cx,
    ) -> Result<()> {
        let Run { seq, mut program, prefix } = run;
        let made = cx.checked.made(&program, types, worker);
        self.add_made(&made, &program)?;
        cx.pool.hold(worker, made.all_bytes);
        let dying =
            program.inputs.iter().zip(&program.structure.inputs).filter(|(_, i)| i.dies).map(|(id, _)| id);
        let mut frees = Vec::with_capacity(program.frees.len());
        let mut here = true;
        for &id in program.frees.iter().chain(dying) {
            let Some(tensor) = self.tensors.get_mut(id) else {
                here = false;
                continue;
            };
            if tensor.freed_by == 0 {
                tensor.freed_by = seq;
                frees.push(id);
            }
            here &= tensor.is_at(worker);
        }
        if !here {
            program.frees.retain(|id| self.tensors.get(*id).is_some_and(|t| t.is_at(worker)));
        }
        let outs = program.outs.clone();
        self.pending.insert(seq, Pending::new(&[worker], outs, frees));
        if let Some(state) = cx.pool.get_mut(worker) {
            state.queued += 1;
        }
        part(parts, worker).runs.push(Run { seq, program, prefix });
        Ok(())
    }

    /// Has a copy of a tensor brought to a worker that has none.
    pub(super) fn bring(&mut self, id: TensorId, goal: WorkerId, parts: &mut Parts, cx: &mut Cx) {
        let Some(tensor) = self.tensors.get_mut(id) else { return };
        if tensor.is_at(goal) {
            return;
        }
        let Some(source) = tensor.source() else { return };
        tensor.facts().holders.push(Holder { worker: goal, moving: Some(source) });
        let (ty, bytes) = (tensor.ty.clone(), tensor.bytes());
        cx.pool.hold(goal, bytes);
        // What writes the tensor goes out before it is sent.
        if let Some(at) = parts.iter().position(|(w, _)| *w == source) {
            let (_, batch) = parts.remove(at);
            self.send_part(source, batch, cx);
        }
        self.counters.moves += 1;
        self.counters.moved_bytes += bytes;
        self.remember_move(Moved {
            at: cx.now,
            seq: self.last_seq,
            tensor: id,
            bytes,
            from: source,
            to: goal,
        });
        self.send_copy(id, ty.clone(), source, goal, false, cx);
        self.tell_worker(cx, goal, WorkerCmd::Expect { session: self.id, tensor: id, ty, tell: false });
    }

    /// Starts a copy; `now` when it replaces one that was lost, which queued work may wait for.
    pub(super) fn send_copy(
        &mut self,
        id: TensorId,
        ty: Ty,
        from: WorkerId,
        goal: WorkerId,
        now: bool,
        cx: &mut Cx,
    ) {
        let expires = cx.config.epoch_ms + cx.now + cx.config.ticket_ms;
        let to = cx.pool.grant(goal, self.id, id, ty.bytes() as u64, expires);
        self.moves.insert((id, goal), Move { from, ty });
        let command = WorkerCmd::Send { session: self.id, tensor: id, goal: Some(goal), to, now };
        self.tell_worker(cx, from, command);
    }
}
