//! What a client says: programs are checked, placed, and sent on with what they need.

use super::checked::Rules;
use super::gang::Ready;
use super::holders::Holder;
use super::session::{Asked, Move, Moved, Pending, Session, Tensor, no_workers};
use super::{Action, Carry, Cx, Way};
use foldhash::fast::FixedState;
use gt_ir::{DType, Error, Program, Result, Slot, TensorId, Ty, bail};
use gt_net::msg::{
    Batch, Bytes, ClientMsg, Failure, Fetch, Prefix, Run, SessionMsg, Value, WorkerCmd, WorkerId,
};
use smallvec::SmallVec;
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashSet};

/// Programs of one session begun early at most: a stream has one.
const MAX_PREFIXES: usize = 64;

/// What one client message becomes: a batch per worker, in order of first use.
pub(super) type Parts = SmallVec<[(WorkerId, Batch); 1]>;

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

pub(super) fn part(parts: &mut Parts, worker: WorkerId) -> &mut Batch {
    let at = parts.iter().position(|(w, _)| *w == worker).unwrap_or_else(|| {
        parts.push((worker, Batch::default()));
        parts.len() - 1
    });
    &mut parts[at].1
}

impl Session {
    /// Takes a message, or keeps it until there is a worker. An error ends the session.
    pub(super) fn message(&mut self, message: ClientMsg, cx: &mut Cx) -> Result<()> {
        self.counters.messages += 1;
        if self.logs(cx) {
            self.note_client_msg(cx, &message);
        }
        if cx.pool.is_empty() || self.is_held() {
            self.hold(message, cx)
        } else {
            self.act_in_turn(message, cx)
        }
    }

    /// Takes a message, or keeps it behind a program that waits.
    fn act_in_turn(&mut self, message: ClientMsg, cx: &mut Cx) -> Result<()> {
        match self.waits.is_some() && waits_its_turn(&message) {
            true => self.defer(message, cx),
            false => self.act(message, cx),
        }
    }

    pub(super) fn is_held(&self) -> bool {
        !self.held.messages.is_empty()
    }

    fn hold(&mut self, message: ClientMsg, cx: &mut Cx) -> Result<()> {
        if let ClientMsg::Prefix(_) | ClientMsg::Forget { .. } = message {
            // What is to begin early is of no use later.
            return Ok(());
        }
        let held = &mut self.held;
        held.bytes += match &message {
            ClientMsg::Batch(batch) => {
                held.runs += batch.runs.len() as u64;
                if !batch.fetches.is_empty() {
                    held.looked.get_or_insert(cx.now);
                }
                batch.runs.iter().map(|r| program_bytes(&r.program)).sum::<u64>() + 64
            }
            ClientMsg::Upload { data, .. } => data.as_ref().map_or(0, |d| d.len() as u64) + 64,
            ClientMsg::Relay { data, .. } => data.len() as u64 + 64,
            ClientMsg::Sync { .. } => {
                held.synced.get_or_insert(cx.now);
                64
            }
            ClientMsg::Withdraw { .. }
            | ClientMsg::Prefix(_)
            | ClientMsg::Forget { .. }
            | ClientMsg::Carry { .. }
            | ClientMsg::FetchRelay { .. }
            | ClientMsg::Signals { .. }
            | ClientMsg::Stats { .. }
            | ClientMsg::Tidy { .. }
            | ClientMsg::Watch { .. }
            | ClientMsg::Recent
            | ClientMsg::Tensors { .. }
            | ClientMsg::Lines { .. }
            | ClientMsg::Bye => 64,
        };
        // A client out of credit waits for programs to finish, as one that asked does.
        if held.runs >= cx.config.credit_programs {
            held.synced.get_or_insert(cx.now);
        }
        if held.bytes > cx.config.max_held_bytes || held.runs > cx.config.max_unfinished as u64 {
            return Err(no_workers(&cx.config.address));
        }
        held.messages.push_back(message);
        *cx.wants_tick = true;
        Ok(())
    }

    /// Takes the messages that were kept. Without a worker their programs fail.
    pub(super) fn release(&mut self, cx: &mut Cx) -> Result<()> {
        let held = std::mem::take(&mut self.held);
        held.messages.into_iter().try_for_each(|message| self.act_in_turn(message, cx))
    }

    pub(super) fn act(&mut self, message: ClientMsg, cx: &mut Cx) -> Result<()> {
        match message {
            ClientMsg::Batch(batch) => self.batch(batch, cx),
            ClientMsg::Prefix(prefix) => {
                self.prefix(prefix, cx);
                Ok(())
            }
            ClientMsg::Forget { prefix } => {
                self.forget(prefix, None, cx);
                Ok(())
            }
            ClientMsg::Upload { tensor, ty, data } => self.upload(tensor, ty, data, cx),
            ClientMsg::Relay { tensor, data } => self.relay(tensor, data, cx),
            ClientMsg::Carry { tensor } => {
                self.carry(tensor, cx);
                Ok(())
            }
            ClientMsg::Withdraw { tensor, error } => {
                self.withdraw(tensor, error, cx);
                self.resume(cx)
            }
            ClientMsg::FetchRelay { req, tensor, piece } => self.fetch_relay(req, tensor, piece, cx),
            ClientMsg::Sync { seq } if seq > self.last_seq => {
                bail!(Value, "sync: program {seq} was never sent, the last one is {}", self.last_seq)
            }
            ClientMsg::Sync { seq } => {
                self.sync = self.sync.max(Some(seq));
                self.hurry(seq, cx);
                Ok(())
            }
            // These are the machine's.
            ClientMsg::Stats { .. }
            | ClientMsg::Watch { .. }
            | ClientMsg::Recent
            | ClientMsg::Tensors { .. }
            | ClientMsg::Tidy { .. }
            | ClientMsg::Lines { .. }
            | ClientMsg::Bye => Ok(()),
            ClientMsg::Signals { specs } => self.add_signals(specs),
        }
    }

    /// Someone waits for programs: their workers are not to keep the word that they have finished for the next answer.
    fn hurry(&mut self, seq: u64, cx: &mut Cx) {
        let workers: BTreeSet<WorkerId> =
            self.pending.range(..=seq).flat_map(|(_, p)| p.workers.iter().copied()).collect();
        for worker in workers {
            self.send_part(worker, Batch::default(), cx);
        }
    }

    fn batch(&mut self, batch: Batch, cx: &mut Cx) -> Result<()> {
        let mut parts = Parts::new();
        let mut runs = batch.runs.into_iter();
        while let Some(mut run) = runs.next() {
            let ready = self.prepare(&mut run.program, &mut parts, cx);
            if let Ready::Waits(wait) = ready {
                // The rest comes when what it waits for has come.
                let runs = std::iter::once(run).chain(runs).collect();
                let rest = Batch { runs, fetches: batch.fetches, frees: batch.frees };
                self.waits = Some(wait);
                self.deferred.push_front(ClientMsg::Batch(rest));
                return self.send_parts(parts, cx);
            }
            self.run(run, ready, &mut parts, cx)?;
        }
        for fetch in batch.fetches {
            self.fetch(fetch, &mut parts, cx)?;
        }
        for id in batch.frees {
            if self.tensors.get(&id).is_some_and(|t| t.freed_by == 0) {
                self.drop_tensor(cx, id, &[]);
            }
        }
        self.send_parts(parts, cx)
    }

    fn send_parts(&mut self, parts: Parts, cx: &mut Cx) -> Result<()> {
        for (worker, batch) in parts {
            self.send_part(worker, batch, cx);
        }
        *cx.wants_tick |= !self.frees.is_empty();
        Ok(())
    }

    pub(super) fn send_part(&mut self, worker: WorkerId, mut batch: Batch, cx: &mut Cx) {
        if let Some(frees) = self.frees.remove(&worker) {
            batch.frees.extend(frees);
        }
        self.tell_worker(cx, worker, WorkerCmd::Batch { session: self.id, batch });
    }

    fn run(&mut self, run: Run, ready: Ready, parts: &mut Parts, cx: &mut Cx) -> Result<()> {
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
            self.check_marks(&program.structure, cx)?;
            Ok((self.check_tensors(seq, &program)?, types))
        });
        let fails = |error: Error| Failure { root: seq, instr: None, error };
        let (failure, types) = match (checked, ready) {
            (Ok((Inputs::Poisoned(failure), types)), _) => (*failure, Some(types)),
            (Ok((_, types)), Ready::Gang(mesh, divided)) => {
                if let Some(id) = prefix {
                    self.forget(id, None, cx);
                }
                return self.send_gang(seq, program, &types, mesh, &divided, parts, cx);
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
    fn prefix(&mut self, prefix: Prefix, cx: &mut Cx) {
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
            let usable = |t: &Tensor| t.ty == input.ty && t.poison.is_none() && t.freed_by == 0;
            let there = |t: &Tensor| usable(t) && at.is_some_and(|worker| t.is_at(worker));
            !input.dies && seen.insert(*id) && self.tensors.get(id).is_some_and(there)
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
    fn forget(&mut self, prefix: u64, at: Option<WorkerId>, cx: &mut Cx) -> bool {
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
        for (id, input) in program.inputs.iter().zip(&program.structure.inputs) {
            let Some(tensor) = self.tensors.get_mut(id) else {
                bail!(Value, "program {seq}: it reads tensor {}, which does not exist", id.0)
            };
            if tensor.freed_by != 0 {
                bail!(Value, "program {seq}: tensor {} was freed by program {}", id.0, tensor.freed_by);
            }
            if tensor.read_by == seq {
                bail!(Value, "program {seq}: tensor {} is an input twice", id.0);
            }
            tensor.read_by = seq;
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
            if self.tensors.contains_key(id) || !written.insert(*id) {
                bail!(Value, "program {seq}: tensor {} is written twice", id.0);
            }
        }
        Ok(())
    }

    pub(super) fn add(&mut self, id: TensorId, tensor: Tensor, cx: &mut Cx) -> Result<()> {
        let Entry::Vacant(place) = self.tensors.entry(id) else {
            bail!(Value, "tensor {} is written twice", id.0);
        };
        for holder in tensor.holders.iter() {
            cx.pool.hold(holder.worker, tensor.bytes());
        }
        place.insert(tensor);
        self.newest = self.newest.max(id);
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
            self.tensors.entry(id).or_insert(tensor);
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
            let Some(tensor) = self.tensors.get(id) else { continue };
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

    fn home(&mut self, cx: &mut Cx) -> Option<WorkerId> {
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
        for (&id, &out) in program.outs.iter().zip(&program.structure.outs) {
            let mut tensor = Tensor::new(types[out as usize].clone());
            tensor.holders.push(Holder { worker, moving: None });
            self.add(id, tensor, cx)?;
        }
        let dying =
            program.inputs.iter().zip(&program.structure.inputs).filter(|(_, i)| i.dies).map(|(id, _)| id);
        let mut frees = Vec::with_capacity(program.frees.len());
        let mut here = true;
        for &id in program.frees.iter().chain(dying) {
            let Some(tensor) = self.tensors.get_mut(&id) else {
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
            program.frees.retain(|id| self.tensors.get(id).is_some_and(|t| t.is_at(worker)));
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
        let Some(tensor) = self.tensors.get_mut(&id) else { return };
        if tensor.is_at(goal) {
            return;
        }
        let Some(source) = tensor.source() else { return };
        tensor.holders.push(Holder { worker: goal, moving: Some(source) });
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

    fn fetch(&mut self, fetch: Fetch, parts: &mut Parts, cx: &mut Cx) -> Result<()> {
        let Some(tensor) = self.tensors.get(&fetch.tensor) else {
            bail!(Value, "fetch: tensor {} does not exist", fetch.tensor.0)
        };
        if tensor.freed_by != 0 {
            bail!(Value, "fetch: tensor {} was freed by program {}", fetch.tensor.0, tensor.freed_by);
        }
        if let Some(why) = &tensor.poison {
            let result = Err((**why).clone());
            self.news.values.push(Value { req: fetch.req, result });
            return Ok(());
        }
        if let Some(spread) = tensor.spread.clone() {
            return self.fetch_pieces(fetch, &spread, parts);
        }
        let at_hand = tensor.holders.iter().find(|h| parts.iter().any(|(w, _)| *w == h.worker));
        let Some(worker) = at_hand.map(|h| h.worker).or(tensor.source()) else {
            // Kept by I5; answered all the same.
            let error = no_workers(&cx.config.address);
            let result = Err(Failure { root: 0, instr: None, error });
            self.news.values.push(Value { req: fetch.req, result });
            return Ok(());
        };
        let asked = Asked { worker, tensor: fetch.tensor };
        if self.fetches.insert(fetch.req, asked).is_some() {
            bail!(Value, "fetch: request {} was made twice", fetch.req);
        }
        part(parts, worker).fetches.push(fetch);
        Ok(())
    }

    fn upload(&mut self, id: TensorId, ty: Ty, data: Option<Bytes>, cx: &mut Cx) -> Result<()> {
        ty.shape.check("upload", ty.dtype)?;
        let bytes = ty.bytes() as u64;
        if let Some(data) = data.as_ref().filter(|d| d.len() as u64 != bytes) {
            bail!(Value, "upload: got {} bytes for a tensor of {ty}, expected {bytes}", data.len());
        }
        let mut tensor = Tensor::new(ty.clone());
        let worker = if self.spread { cx.pool.least_loaded() } else { self.home(cx) };
        let Some(worker) = worker else {
            let error = no_workers(&cx.config.address);
            let why = Failure { root: 0, instr: None, error };
            tensor.poison = Some(Box::new(why.clone()));
            if data.is_none() {
                self.tell_client(cx, SessionMsg::Unwanted { tensor: id, why });
            }
            return self.add(id, tensor, cx);
        };
        tensor.holders.push(Holder { worker, moving: None });
        self.add(id, tensor, cx)?;
        let session = self.id;
        match data {
            Some(data) => self.tell_worker(cx, worker, WorkerCmd::Upload { session, tensor: id, ty, data }),
            None => {
                let expires = cx.config.epoch_ms + cx.now + cx.config.ticket_ms;
                let Some((at, ticket)) = cx.pool.grant(worker, session, id, bytes, expires) else {
                    bail!(
                        Connection,
                        "upload: the worker has no bulk plane, the bytes must come with the message"
                    );
                };
                self.expect_upload(id, worker, ty.clone());
                let tell = self.sharding.is_some() || !self.signals.is_empty();
                if tell {
                    self.arriving.insert(id, worker);
                }
                self.tell_worker(cx, worker, WorkerCmd::Expect { session, tensor: id, ty, tell });
                self.tell_client(cx, SessionMsg::Grant { tensor: id, at, ticket });
            }
        }
        Ok(())
    }

    /// Bytes that could not be brought to the worker directly. Programs may wait for them even if the client has
    /// dropped the tensor since.
    fn relay(&mut self, id: TensorId, data: Bytes, cx: &mut Cx) -> Result<()> {
        let Some((worker, ty)) = self.take_upload(id) else { return Ok(()) };
        if data.len() != ty.bytes() {
            bail!(Value, "relay: {} bytes for tensor {}, which is {ty}", data.len(), id.0);
        }
        self.tell_worker(cx, worker, WorkerCmd::Fulfil { session: self.id, tensor: id, data });
        Ok(())
    }

    /// The same for many bytes: they pass through the shell. The upload stays known, to be withdrawn if they do not.
    fn carry(&mut self, id: TensorId, cx: &mut Cx) {
        let known = self.uploads.iter().find(|(tensor, ..)| *tensor == id);
        let (worker, bytes) = known.map_or((None, 0), |(_, w, ty)| (Some(*w), ty.bytes() as u64));
        let way = Way::Up { bytes };
        cx.out.push(Action::Carry(Carry { session: self.id, tensor: id, worker, way }));
    }

    /// Bytes that will never come: the tensor has no value, and programs that wait for it fail.
    fn withdraw(&mut self, id: TensorId, error: Error, cx: &mut Cx) {
        let Some((worker, _)) = self.take_upload(id) else { return };
        self.arriving.remove(&id);
        let failure = Failure { root: 0, instr: None, error };
        if let Some(tensor) = self.tensors.get_mut(&id) {
            tensor.poison.get_or_insert_with(|| Box::new(failure.clone()));
        }
        self.tell_worker(cx, worker, WorkerCmd::Poison { session: self.id, tensor: id, failure });
    }

    fn fetch_relay(&mut self, req: u64, id: TensorId, piece: Option<u32>, cx: &mut Cx) -> Result<()> {
        // Whoever has a piece of a value has no other, so only the one that promised it can send it.
        let at = piece.unwrap_or(0) as usize;
        let granted = self.granted.iter().filter(|(r, _)| *r == req).nth(at).map(|(_, w)| *w);
        let holder = || self.tensors.get(&id).filter(|_| piece.is_none()).and_then(Tensor::source);
        match granted.or_else(holder).filter(|w| cx.pool.get(*w).is_some()) {
            Some(worker) => {
                self.relays.push((worker, id, req));
                let command =
                    WorkerCmd::Send { session: self.id, tensor: id, goal: None, to: None, now: false };
                self.tell_worker(cx, worker, command);
            }
            None => {
                let error = Error::Connection("fetch: the worker that had the value is gone".into());
                self.news.values.push(Value { req, result: Err(Failure { root: 0, instr: None, error }) });
            }
        }
        Ok(())
    }
}

/// False for what earlier messages may still need.
fn waits_its_turn(message: &ClientMsg) -> bool {
    match message {
        ClientMsg::Batch(_)
        | ClientMsg::Upload { .. }
        | ClientMsg::Signals { .. }
        | ClientMsg::Sync { .. }
        | ClientMsg::Prefix(_)
        | ClientMsg::Forget { .. } => true,
        ClientMsg::Relay { .. }
        | ClientMsg::Carry { .. }
        | ClientMsg::Withdraw { .. }
        | ClientMsg::FetchRelay { .. }
        | ClientMsg::Watch { .. }
        | ClientMsg::Recent
        | ClientMsg::Tensors { .. }
        | ClientMsg::Tidy { .. }
        | ClientMsg::Stats { .. }
        | ClientMsg::Lines { .. }
        | ClientMsg::Bye => false,
    }
}

/// About how many bytes a program takes.
pub(super) fn program_bytes(program: &Program) -> u64 {
    let data = |slot: &Slot| match slot {
        Slot::Num(_) => 9,
        Slot::Data(bytes) => bytes.len() as u64,
    };
    let ids = program.inputs.len() + program.outs.len() + program.frees.len();
    ids as u64 * 4 + program.slots.iter().map(data).sum::<u64>() + 16
}
