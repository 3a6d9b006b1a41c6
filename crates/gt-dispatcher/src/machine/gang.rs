//! A session's programs over several workers: when they may go, what goes with them, and values that lie in pieces.

use super::checked::Rules;
use super::holders::Holders;
use super::kinds::can_meet;
use super::mesh::{Known, Mesh, Situation, family};
use super::message::{Parts, part};
use super::session::{Gather, Pending, Session, Spread, Tensor};
use super::{Action, Cx};
use crate::shard::{self, Asked, Costs, Divided};
use gt_ir::layout::{Layout, Layouts, Part, place, range_at};
use gt_ir::program::Without;
use gt_ir::signal::{Lay, Mark};
use gt_ir::{Error, Input, Program, Result, Structure, TensorId, Ty, bail};
use gt_net::msg::{ClientMsg, Fetch, Gang, Payload, Piece, Run, Value, WorkerCmd, WorkerId};
use smallvec::SmallVec;
use std::sync::Arc;

/// Programs that the dispatcher adds to a session are numbered from here on.
pub(super) const ADDED: u64 = 1 << 62;
/// Programs of more instructions, over all workers, are divided elsewhere.
const INLINE: usize = 512;
/// Programs of more instructions are not worked out again without the one that failed.
const RESCUED: usize = 4096;

/// How a session's programs are divided over workers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sharding {
    /// Tensors of fewer bytes are not split for their own sake (`GT_SHARD_MIN`); 0 splits whatever can be.
    least: Option<u64>,
}

/// How a program goes.
#[derive(Debug)]
pub(super) enum Ready {
    /// On one worker.
    Alone,
    /// Divided over a mesh, with its inputs there.
    Gang(Arc<Mesh>, Arc<Divided>),
    /// Not before this has come.
    Waits(Wait),
    /// Not at all.
    Fails(Error),
}

/// What a session's next program waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wait {
    /// The answer to this question.
    Plan(u64),
    /// Tensors on their way to workers: a gang starts only when nothing it needs is outside (C9).
    Arrivals,
}

impl Sharding {
    /// Reads a session's variables; none if its programs stay on one worker each.
    pub fn read<'a>(var: &impl Fn(&str) -> Option<&'a str>) -> Result<Option<Sharding>> {
        if var("GT_AUTO_SHARD").is_none_or(|v| v == "0") {
            return Ok(None);
        }
        let least = match var("GT_SHARD_MIN").map(str::parse::<u64>) {
            None => None,
            Some(Ok(bytes)) => Some(bytes),
            Some(Err(_)) => bail!(Value, "GT_SHARD_MIN: expected a number of bytes"),
        };
        Ok(Some(Sharding { least }))
    }
}

impl Session {
    pub(super) fn waits_for_plan(&self, ask: u64) -> bool {
        self.waits == Some(Wait::Plan(ask))
    }

    /// Keeps a message until what the session waits for has come.
    pub(super) fn defer(&mut self, message: ClientMsg, cx: &mut Cx) -> Result<()> {
        if self.deferred.len() >= cx.config.max_unfinished {
            bail!(Value, "session: {} messages wait, the client ignores its credit", self.deferred.len());
        }
        self.deferred.push_back(message);
        Ok(())
    }

    /// Goes on with what was deferred, if that has come which it waits for.
    pub(super) fn resume(&mut self, cx: &mut Cx) -> Result<()> {
        let still = match self.waits {
            None => false,
            Some(Wait::Plan(ask)) => cx.meshes.is_asked(ask),
            Some(Wait::Arrivals) => self.is_awaited(),
        };
        if still {
            return Ok(());
        }
        self.waits = None;
        while self.waits.is_none()
            && let Some(message) = self.deferred.pop_front()
        {
            self.act(message, cx)?;
        }
        Ok(())
    }

    /// True if bytes of this session are on their way to workers.
    pub(super) fn is_awaited(&self) -> bool {
        !self.moves.is_empty() || !self.arriving.is_empty()
    }

    /// The bytes of an upload have come to their worker.
    pub(super) fn arrived(&mut self, tensor: TensorId, cx: &mut Cx) -> Result<()> {
        self.arriving.remove(&tensor);
        self.resume(cx)
    }

    /// The workers a program runs on if it is divided: those of its first mark's signal, else those that hold its
    /// largest input in pieces, else all if the session's programs are divided by themselves.
    fn mesh(&self, program: &Program, cx: &mut Cx) -> Option<Arc<Mesh>> {
        if let Some(mark) = program.structure.marks.first() {
            let present = self.signals.get(mark.signal)?.on(cx.pool.len()).ok()?;
            let ids: Vec<WorkerId> = cx.pool.iter().map(|(id, _)| id).collect();
            let workers: Vec<WorkerId> =
                present.workers.iter().filter_map(|at| ids.get(*at as usize).copied()).collect();
            if let [_] = workers[..] {
                return None;
            }
            let infos = workers.iter().filter_map(|w| cx.pool.get(*w)).map(|w| &w.info);
            if !can_meet(infos) {
                self.cannot_meet(&workers, cx);
            } else {
                return Some(cx.meshes.get(&workers, &present.shape, cx.pool, cx.config, cx.out));
            }
        }
        let spread = |id: &TensorId| self.tensors.get(id).filter(|t| t.spread.is_some());
        let largest = program.inputs.iter().filter_map(spread).max_by_key(|t| t.ty.bytes());
        if let (Some(tensor), None) = (largest, self.sharding) {
            return tensor.spread.as_ref().map(|s| s.mesh.clone());
        }
        self.sharding?;
        let workers = self.all_alike(cx);
        let shape = [workers.len()];
        (workers.len() > 1).then(|| cx.meshes.get(&workers, &shape, cx.pool, cx.config, cx.out))
    }

    /// The layouts that a program's marks ask for on a mesh. All marks of a program are on one mesh.
    fn fixed(&self, program: &Program, types: &[Ty], mesh: &Mesh) -> Vec<(u32, Asked)> {
        let asked = |mark: &Mark| {
            let ty = types.get(mark.value as usize)?;
            let asked: Asked = self.signals.get(mark.signal)?.layouts(&ty.shape).ok()?.into();
            let says = mark.firm && asked.len() == mesh.shape.len() && asked.iter().any(Option::is_some);
            says.then_some((mark.value, asked))
        };
        program.structure.marks.iter().filter_map(asked).collect()
    }

    /// By axis: the signals of most computed values say that they are whole along it. What is computed of a parameter's
    /// gradient carries the parameter's own.
    fn keeps(&self, program: &Program, mesh: &Mesh) -> SmallVec<[bool; 2]> {
        let mut ahead: SmallVec<[i64; 2]> = mesh.shape.iter().map(|_| 0).collect();
        for mark in program.structure.marks.iter().filter(|mark| !mark.firm) {
            let lays = self.signals.get(mark.signal).map_or(&[][..], |spec| &spec.lays);
            let whole = |lay: &Lay| if *lay == Lay::Whole { 1 } else { -1 };
            ahead.iter_mut().zip(lays).for_each(|(ahead, lay)| *ahead += whole(lay));
        }
        ahead.into_iter().map(|n| n > 0).collect()
    }

    /// What computing and moving cost on a mesh, for this session.
    fn costs(&self, mesh: &Mesh) -> Costs {
        match self.sharding {
            Some(Sharding { least: Some(least) }) => Costs { least, always: least == 0, ..mesh.costs },
            Some(Sharding { least: None }) => mesh.costs,
            None => mesh.costs.signalled(),
        }
    }

    /// How the inputs of a program lie on a mesh; nothing if one of them cannot be used. Those on another mesh are noted.
    fn lies(
        &self,
        program: &Program,
        mesh: &Mesh,
        usable: impl Fn(&Tensor) -> bool,
        elsewhere: &mut Vec<TensorId>,
    ) -> Option<Vec<(Layouts, bool)>> {
        let whole = mesh.whole();
        let lies = |id: &TensorId| {
            let tensor = self.tensors.get(id).filter(|t| usable(t))?;
            match &tensor.spread {
                Some(spread) => {
                    elsewhere.extend((spread.mesh.id != mesh.id).then_some(*id));
                    Some((spread.layouts.clone(), false))
                }
                None => Some((whole.clone(), !tensor.holders.cover(mesh))),
            }
        };
        program.inputs.iter().map(lies).collect()
    }

    /// What the division of a program on a mesh depends on, its inputs lying so.
    fn situation(
        &self,
        program: &Program,
        types: &[Ty],
        mesh: &Mesh,
        inputs: Vec<(Layouts, bool)>,
    ) -> Situation {
        let (fixed, costs) = (self.fixed(program, types, mesh), self.costs(mesh));
        let must = !program.structure.marks.is_empty();
        let keeps = self.keeps(program, mesh);
        Situation { inputs, fixed, keeps, must, shape: mesh.shape.clone(), costs }
    }

    /// Gets a program ready to go: it is divided, and its inputs are on the workers. Whatever else is wrong with it
    /// shows when it goes.
    pub(super) fn prepare(&mut self, program: &mut Program, parts: &mut Parts, cx: &mut Cx) -> Ready {
        // Where nothing divides programs, no tensor lies in pieces.
        if self.sharding.is_none() && self.signals.is_empty() {
            return Ready::Alone;
        }
        let Some(mesh) = self.mesh(program, cx) else {
            self.gather_inputs(program, parts, cx);
            return Ready::Alone;
        };
        let Ok(Rules { types, binding }) = cx.checked.check(program) else { return Ready::Alone };
        let usable = |t: &Tensor| t.poison.is_none() && t.freed_by == 0;
        let mut elsewhere = Vec::new();
        let mut inputs = self.lies(program, &mesh, usable, &mut elsewhere);
        if binding.check(program).is_err() || inputs.is_none() {
            return Ready::Alone;
        }
        if !elsewhere.is_empty() {
            for id in elsewhere {
                if let Some(spread) = self.tensors.get(&id).and_then(|t| t.spread.clone()) {
                    self.make_whole(id, &spread, parts, cx);
                }
            }
            inputs = self.lies(program, &mesh, |_| true, &mut Vec::new());
        }
        let Some(inputs) = inputs else { return Ready::Alone };
        let situation = self.situation(program, &types, &mesh, inputs);
        let away = situation.inputs.iter().any(|(_, at_home)| *at_home);
        let divided = match self.division(program, &types, mesh.id, situation, cx) {
            Known::Asked(ask) => return Ready::Waits(Wait::Plan(ask)),
            Known::Done(Ok(Some(divided))) => divided,
            Known::Done(Ok(None)) => return Ready::Alone,
            Known::Done(Err(error)) => return Ready::Fails(error),
        };
        if away {
            for id in &program.inputs {
                if self.tensors[id].spread.is_none() {
                    mesh.workers.iter().for_each(|worker| self.bring(*id, *worker, parts, cx));
                }
            }
        }
        if self.is_awaited() { Ready::Waits(Wait::Arrivals) } else { Ready::Gang(mesh, divided) }
    }

    /// A program's division: known, worked out here if that takes no time to speak of, or asked for.
    fn division(
        &self,
        program: &Program,
        types: &Arc<[Ty]>,
        mesh: u64,
        situation: Situation,
        cx: &mut Cx,
    ) -> Known {
        let structure = &program.structure;
        if let Some(known) = cx.meshes.find(program.key, structure, &situation) {
            return known;
        }
        let mut ask = situation.question(structure, types);
        if structure.instrs.len() * ask.workers() > INLINE {
            let family = family(self.id, mesh, structure);
            ask.hint = cx.meshes.hint(family);
            let number = cx.meshes.ask(program.key, structure, situation, family);
            cx.out.push(Action::Plan { ask: number, program: Arc::new(ask) });
            return Known::Asked(number);
        }
        let known = Known::Done(shard::divide(&ask).map(|d| d.map(Arc::new)));
        cx.log.planned(cx.now, cx.out, &known);
        cx.meshes.keep(program.key, structure, situation, known.clone());
        known
    }

    /// Sends a divided program to its workers.
    #[expect(clippy::too_many_arguments, reason = "the program, how it is divided, and what goes with it")]
    pub(super) fn send_gang(
        &mut self,
        seq: u64,
        program: Program,
        types: &Arc<[Ty]>,
        mesh: Arc<Mesh>,
        divided: &Divided,
        parts: &mut Parts,
        cx: &mut Cx,
    ) -> Result<()> {
        let mut bytes = 0;
        for ((&id, &out), layouts) in program.outs.iter().zip(&program.structure.outs).zip(&divided.outs) {
            let mut tensor = Tensor::new(types[out as usize].clone());
            tensor.spread = spread(&mesh, layouts);
            tensor.holders = Holders::all(&mesh);
            bytes += tensor.bytes();
            if self.tensors.insert(id, tensor).is_some() {
                bail!(Value, "tensor {} is written twice", id.0);
            }
            self.newest = self.newest.max(id);
        }
        mesh.workers.iter().for_each(|w| cx.pool.hold(*w, bytes));
        let dying = program.inputs.iter().zip(&program.structure.inputs).filter(|(_, i)| i.dies);
        let mut frees = Vec::new();
        for id in program.frees.iter().chain(dying.map(|(id, _)| id)) {
            if let Some(tensor) = self.tensors.get_mut(id).filter(|t| t.freed_by == 0) {
                tensor.freed_by = seq;
                frees.push(*id);
            }
        }
        let mut pending = Pending::new(&mesh.workers, program.outs.clone(), frees);
        pending.origins = divided.parts.first().map(|p| p.origins.clone());
        self.send_parts_of(seq, &program, &mesh, divided, parts, cx)?;
        pending.program = Some(Box::new(program));
        pending.mesh = Some(mesh);
        self.pending.insert(seq, pending);
        Ok(())
    }

    fn send_parts_of(
        &mut self,
        seq: u64,
        program: &Program,
        mesh: &Mesh,
        divided: &Divided,
        parts: &mut Parts,
        cx: &mut Cx,
    ) -> Result<()> {
        let gang = Gang { mesh: mesh.id, number: cx.meshes.number() };
        cx.out.reserve(mesh.workers.len());
        let everywhere = |id: &TensorId| self.tensors.get(id).is_some_and(|t| t.holders.cover(mesh));
        let all = program.frees.iter().all(everywhere);
        for (&worker, local) in mesh.workers.iter().zip(&divided.parts) {
            // What the session sent there before comes first.
            if let Some(at) = parts.iter().position(|(w, _)| *w == worker) {
                let (_, batch) = parts.remove(at);
                self.send_part(worker, batch, cx);
            }
            cx.log.divided(local.key, &local.origins);
            let there = |id: &&TensorId| self.tensors.get(id).is_some_and(|t| t.is_at(worker));
            let frees = || program.frees.iter().filter(there).copied().collect();
            let program = Program {
                structure: local.structure.clone(),
                key: local.key,
                inputs: program.inputs.clone(),
                outs: program.outs.clone(),
                slots: local.bind(&program.slots)?,
                frees: if all { program.frees.clone() } else { frees() },
            };
            if let Some(state) = cx.pool.get_mut(worker) {
                state.queued += 1;
            }
            let run = Run { seq, program, prefix: None };
            self.tell_worker(cx, worker, WorkerCmd::Gang { session: self.id, gang, run });
        }
        Ok(())
    }

    /// Has every input that lies on several workers put together, for a program that runs on one.
    fn gather_inputs(&mut self, program: &Program, parts: &mut Parts, cx: &mut Cx) {
        for id in &program.inputs {
            let usable = |t: &&Tensor| t.poison.is_none() && t.freed_by == 0;
            let lies = self.tensors.get(id).filter(usable).and_then(|t| t.spread.clone());
            if let Some(spread) = lies {
                self.make_whole(*id, &spread, parts, cx);
            }
        }
    }

    /// Has the workers of a mesh put a tensor together, so that each has all of it.
    fn make_whole(&mut self, id: TensorId, spread: &Spread, parts: &mut Parts, cx: &mut Cx) {
        let Some(tensor) = self.tensors.get_mut(&id) else { return };
        let ty = tensor.ty.clone();
        cx.pool.release_all(&tensor.holders, tensor.bytes());
        tensor.spread = None;
        for holder in tensor.holders.iter() {
            cx.pool.hold(holder.worker, ty.bytes() as u64);
        }
        let structure = Arc::new(Structure {
            inputs: vec![Input { ty: ty.clone(), dies: true }],
            outs: vec![0],
            ..Structure::default()
        });
        let program = Program {
            key: structure.key(),
            structure: structure.clone(),
            inputs: vec![id],
            outs: vec![id],
            slots: Vec::new(),
            frees: Vec::new(),
        };
        let ask = Situation {
            inputs: vec![(spread.layouts.clone(), false)],
            fixed: vec![(0, spread.mesh.whole().into_iter().map(Some).collect())],
            keeps: SmallVec::new(),
            must: true,
            shape: spread.mesh.shape.clone(),
            costs: self.costs(&spread.mesh),
        }
        .question(&structure, &Arc::from([ty]));
        self.last_added += 1;
        let seq = self.last_added;
        let sent = match shard::divide(&ask) {
            Ok(Some(divided)) => {
                self.added.insert(seq, Pending::new(&spread.mesh.workers, vec![id], Vec::new()));
                self.send_parts_of(seq, &program, &spread.mesh, &divided, parts, cx)
            }
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        if let (Err(error), Some(tensor)) = (sent, self.tensors.get_mut(&id)) {
            let failure = gt_net::msg::Failure { root: 0, instr: None, error };
            tensor.poison = Some(Box::new(failure));
        }
    }

    /// Has what did not depend on a failed instruction worked out again: a tensor that was merely recorded beside a
    /// mistake is not lost with it. Gives the live-outs that will have a value after all.
    pub(super) fn rescue(&mut self, program: &Program, failed: usize, cx: &mut Cx) -> Vec<TensorId> {
        self.try_rescue(program, failed, cx).unwrap_or_default()
    }

    fn try_rescue(&mut self, program: &Program, failed: usize, cx: &mut Cx) -> Option<Vec<TensorId>> {
        if program.structure.instrs.len() > RESCUED {
            return None;
        }
        let mesh = self.mesh(program, cx)?;
        let here = |id: &TensorId| {
            let tensor = self.tensors.get(id)?;
            let fits = match &tensor.spread {
                Some(spread) => spread.mesh == mesh,
                None => tensor.holders.cover(&mesh),
            };
            (tensor.poison.is_none() && fits).then_some(())
        };
        program.inputs.iter().map(here).collect::<Option<Vec<()>>>()?;
        let starts = program.structure.starts();
        let mut lost = vec![false; *starts.last()? as usize];
        let Without { structure, outs, .. } = program.structure.without(&starts, &mut lost, failed)?;
        let structure = Arc::new(structure);
        let types: Arc<[Ty]> = structure.check().ok()?.into();
        let left = Program {
            key: structure.key(),
            structure,
            inputs: program.inputs.clone(),
            outs: outs.iter().map(|k| program.outs[*k]).collect(),
            slots: program.slots.clone(),
            frees: Vec::new(),
        };
        let inputs = self.lies(&left, &mesh, |_| true, &mut Vec::new())?;
        let mut ask = self.situation(&left, &types, &mesh, inputs).question(&left.structure, &types);
        // It runs where its inputs are, in any case.
        ask.must = true;
        let divided = shard::divide(&ask).ok()??;
        for ((id, out), layouts) in left.outs.iter().zip(&left.structure.outs).zip(&divided.outs) {
            let tensor = self.tensors.get_mut(id)?;
            cx.pool.release_all(&tensor.holders, tensor.bytes());
            tensor.ty = types[*out as usize].clone();
            tensor.spread = spread(&mesh, layouts);
            tensor.holders = Holders::all(&mesh);
            let bytes = tensor.bytes();
            mesh.workers.iter().for_each(|w| cx.pool.hold(*w, bytes));
        }
        self.last_added += 1;
        let seq = self.last_added;
        let mut pending = Pending::new(&mesh.workers, left.outs.clone(), Vec::new());
        pending.origins = divided.parts.first().map(|p| p.origins.clone());
        self.send_parts_of(seq, &left, &mesh, &divided, &mut Parts::new(), cx).ok()?;
        let outs = left.outs.clone();
        pending.program = Some(Box::new(left));
        self.added.insert(seq, pending);
        Some(outs)
    }

    /// Asks every worker for its piece of a tensor.
    pub(super) fn fetch_pieces(&mut self, fetch: Fetch, spread: &Spread, parts: &mut Parts) -> Result<()> {
        let Some(tensor) = self.tensors.get(&fetch.tensor) else { return Ok(()) };
        let shape = tensor.ty.shape.clone();
        let mut gather = Gather { waiting: Vec::new(), got: Vec::new(), from: Vec::new() };
        for (rank, &worker) in spread.mesh.workers.iter().enumerate() {
            let place = place(&spread.mesh.shape, rank);
            // Where an axis holds the same again, its first part is asked.
            let again = |(l, part): (&Layout, &Part)| *l == Layout::Whole && part.index > 0;
            if spread.layouts.iter().zip(&place).any(again) {
                continue;
            }
            let range = |dim: usize| range_at(shape[dim], dim, &spread.layouts, &place);
            let ranges = || (0..shape.len()).map(range);
            let starts = ranges().map(|r| r.start as u64).collect();
            let sizes = ranges().map(|r| r.len() as u64).collect();
            gather.waiting.push((worker, starts, sizes));
            self.looked.insert(worker);
            part(parts, worker).fetches.push(Fetch { req: fetch.req, tensor: fetch.tensor });
        }
        if self.fetches.contains_key(&fetch.req) || self.gathers.insert(fetch.req, gather).is_some() {
            bail!(Value, "fetch: request {} was made twice", fetch.req);
        }
        Ok(())
    }

    /// A worker's piece of a tensor has come, or the reason why there is none.
    pub(super) fn got_piece(&mut self, worker: WorkerId, value: Value) {
        let Some(gather) = self.gathers.get_mut(&value.req) else { return };
        let Some(at) = gather.waiting.iter().position(|(w, ..)| *w == worker) else { return };
        let (_, starts, sizes) = gather.waiting.remove(at);
        match value.result {
            Ok(payload) => {
                gather.got.push(Piece { starts, sizes, payload });
                gather.from.push(worker);
            }
            Err(failure) => {
                self.gathers.remove(&value.req);
                return self.tell_value(Value { req: value.req, result: Err(failure) });
            }
        }
        if gather.waiting.is_empty() {
            let (pieces, from) = (std::mem::take(&mut gather.got), std::mem::take(&mut gather.from));
            self.gathers.remove(&value.req);
            // A client that cannot reach them asks for the pieces by their places.
            from.into_iter().for_each(|worker| self.granted(value.req, worker));
            self.news.values.push(Value { req: value.req, result: Ok(Payload::Pieces(pieces)) });
        }
    }
}

/// How a result lies; nothing if every worker has all of it.
fn spread(mesh: &Arc<Mesh>, layouts: &Layouts) -> Option<Box<Spread>> {
    let splits = layouts.iter().zip(&mesh.shape).any(|(l, n)| *l != Layout::Whole && *n > 1);
    splits.then(|| Box::new(Spread { mesh: mesh.clone(), layouts: layouts.clone() }))
}
