//! Programs over several workers on their way: what goes to each, what is put together for those that run on one, and
//! what is left of one that failed.

use super::Cx;
use super::course::Course;
use super::gang::ADDED;
use super::mesh::{Known, Mesh, Situation};
use super::message::Parts;
use super::session::{Pending, Rest, Session};
use super::tensor::{Joined, Made, Spread, Tensor};
use crate::shard::{self, Divided};
use gt_ir::program::Without;
use gt_ir::{Input, Program, Result, Structure, TensorId, Ty};
use gt_net::msg::{Gang, Ids, Run, Share, WorkerCmd, WorkerId};
use smallvec::SmallVec;
use std::sync::Arc;

/// Programs of more instructions are not worked out again without the one that failed.
const RESCUED: usize = 4096;
/// How often a program is sent again.
const AGAIN: u8 = 8;

impl Session {
    /// Sends a divided program to its workers.
    pub(super) fn send_gang(
        &mut self,
        run: Run,
        course: &Course,
        parts: &mut Parts,
        cx: &mut Cx,
    ) -> Result<()> {
        let Run { seq, program, prefix } = run;
        if let Some(id) = prefix {
            self.forget(id, None, cx);
        }
        let Course { mesh, divided, made } = course;
        self.add_made(made, &program)?;
        mesh.workers.iter().for_each(|w| cx.pool.hold(*w, made.all_bytes));
        let dying = program.inputs.iter().zip(&program.structure.inputs).filter(|(_, i)| i.dies);
        let mut frees = Vec::with_capacity(program.frees.len() + program.inputs.len());
        for id in program.frees.iter().chain(dying.map(|(id, _)| id)) {
            if let Some(tensor) = self.tensors.get_mut(*id).filter(|t| t.freed_by == 0) {
                tensor.freed_by = seq;
                frees.push(*id);
            }
        }
        let whole = Share::from(Run { seq, program, prefix: None });
        self.send_shares(&whole, mesh, divided, parts, cx)?;
        self.pending.insert(seq, Pending::divided(whole, mesh, divided, frees));
        Ok(())
    }

    /// Sends every worker of a mesh its share of a program. The ids are there once for all of them.
    fn send_shares(
        &mut self,
        whole: &Share,
        mesh: &Mesh,
        divided: &Divided,
        parts: &mut Parts,
        cx: &mut Cx,
    ) -> Result<()> {
        let gang = Gang { mesh: mesh.id, number: cx.meshes.number() };
        cx.out.reserve(mesh.workers.len());
        let everywhere = |id: &TensorId| self.tensors.get(*id).is_some_and(|t| t.holders.cover(mesh));
        let all = whole.ids.frees.iter().all(everywhere);
        for (&worker, local) in mesh.workers.iter().zip(&divided.parts) {
            // What the session sent there before comes first.
            if let Some(at) = parts.iter().position(|(w, _)| *w == worker) {
                let (_, batch) = parts.remove(at);
                self.send_part(worker, batch, cx);
            }
            cx.log.divided(local.key, &local.origins);
            let share = Share {
                seq: whole.seq,
                structure: local.structure.clone(),
                key: local.key,
                slots: local.bind(&whole.slots)?,
                ids: if all { whole.ids.clone() } else { self.ids_at(worker, &whole.ids) },
            };
            if let Some(state) = cx.pool.get_mut(worker) {
                state.queued += 1;
            }
            self.tell_worker(cx, worker, WorkerCmd::Gang { session: self.id, gang, share });
        }
        Ok(())
    }

    /// The ids of a program for a worker that does not hold all that is freed with it.
    fn ids_at(&self, worker: WorkerId, ids: &Ids) -> Arc<Ids> {
        let there = |id: &&TensorId| self.tensors.get(**id).is_some_and(|t| t.is_at(worker));
        let frees = ids.frees.iter().filter(there).copied().collect();
        Arc::new(Ids { inputs: ids.inputs.clone(), outs: ids.outs.clone(), frees })
    }

    /// Has every input that lies on several workers put together, for a program that runs on one.
    pub(super) fn gather_inputs(&mut self, program: &Program, parts: &mut Parts, cx: &mut Cx) {
        for id in &program.inputs {
            let lies = self.tensors.get(*id).filter(|t| t.is_usable()).and_then(|t| t.spread.clone());
            if let Some(spread) = lies {
                self.make_whole(*id, &spread, parts, cx);
            }
        }
    }

    /// Has the inputs that a program puts together stay so, if that is not the first time and there is room. True if there
    /// are such: then it has to be divided anew. What decides is the session's stream alone, so that it is the same in
    /// every run (C7).
    pub(super) fn stay_whole(
        &mut self,
        program: &Program,
        course: &Course,
        parts: &mut Parts,
        cx: &mut Cx,
    ) -> bool {
        let (mesh, joined) = (&course.mesh, &course.divided.joined);
        // What lies as a signal says stays as it lies.
        if joined.is_empty() || self.sharding.is_none() || !self.signals.is_empty() {
            return false;
        }
        let ids = || joined.iter().filter_map(|k| program.inputs.get(*k as usize));
        let is_once = |id: &&TensorId| self.tensors.get(**id).is_some_and(|t| t.joined == Joined::Once);
        let again: Vec<TensorId> = ids().filter(is_once).copied().collect();
        if again.is_empty() {
            for id in ids() {
                if let Some(tensor) = self.tensors.get_mut(*id).filter(|t| t.joined == Joined::Never) {
                    tensor.joined = Joined::Once;
                }
            }
            return false;
        }
        let kept = |t: &&Tensor| t.joined == Joined::Stays && t.freed_by == 0;
        let mut held: u64 =
            self.tensors.iter().map(|(_, t)| t).filter(kept).map(|t| t.ty.bytes() as u64).sum();
        let before = held;
        for id in again {
            let Some(tensor) = self.tensors.get_mut(id) else { continue };
            let more = held + tensor.ty.bytes() as u64;
            match tensor.spread.clone() {
                Some(spread) if more <= mesh.spare => {
                    tensor.joined = Joined::Stays;
                    held = more;
                    self.make_whole(id, &spread, parts, cx);
                }
                _ => tensor.joined = Joined::Cannot,
            }
        }
        held > before
    }

    /// Has the workers of a mesh put a tensor together, so that each has all of it. Each tensor is a program of its own: if
    /// it has no value, that is nothing to the others.
    pub(super) fn make_whole(&mut self, id: TensorId, spread: &Arc<Spread>, parts: &mut Parts, cx: &mut Cx) {
        let Some(ty) = self.tensors.get(id).map(|t| t.ty.clone()) else { return };
        self.lies_now(id, None, cx);
        let mesh = &spread.mesh;
        let structure = Arc::new(Structure {
            inputs: vec![Input { ty: ty.clone(), dies: true }],
            outs: vec![0],
            ..Structure::default()
        });
        let situation = Situation {
            inputs: vec![(spread.layouts.clone(), false)],
            fixed: vec![(0, mesh.whole().into_iter().map(Some).collect())],
            keeps: SmallVec::new(),
            must: true,
            shape: mesh.shape.clone(),
            costs: self.costs(mesh),
        };
        let key = structure.key();
        let answer = match cx.meshes.find(key, &structure, &situation) {
            Some(Known::Done(answer)) => answer,
            _ => {
                let ask = situation.question(&structure, &Arc::from([ty]));
                let answer = shard::divide(&ask).map(|divided| divided.map(Arc::new));
                cx.meshes.keep(key, &structure, situation, Known::Done(answer.clone()));
                answer
            }
        };
        self.last_added += 1;
        let seq = self.last_added;
        let sent = answer.and_then(|divided| {
            let Some(divided) = divided else { return Ok(()) };
            self.added.insert(seq, Pending::joining(id, spread));
            let ids = Arc::new(Ids { inputs: vec![id], outs: vec![id], frees: Vec::new() });
            let whole = Share { seq, key, structure, slots: Vec::new(), ids };
            self.send_shares(&whole, mesh, &divided, parts, cx)
        });
        if let (Err(error), Some(tensor)) = (sent, self.tensors.get_mut(id)) {
            let failure = gt_net::msg::Failure { root: 0, instr: None, error };
            tensor.poison = Some(Box::new(failure));
        }
    }

    /// Notes that the holders of a tensor have all of it, or pieces that lie so.
    pub(super) fn lies_now(&mut self, id: TensorId, spread: Option<Arc<Spread>>, cx: &mut Cx) {
        let Some(tensor) = self.tensors.get_mut(id) else { return };
        cx.pool.release_all(&tensor.holders, tensor.bytes());
        tensor.facts().spread = spread;
        let bytes = tensor.bytes();
        tensor.holders.iter().for_each(|holder| cx.pool.hold(holder.worker, bytes));
    }

    /// Has what did not depend on a failed instruction worked out again: a tensor that was merely recorded beside a
    /// mistake is not lost with it. Gives the live-outs that will have a value after all.
    pub(super) fn rescue(
        &mut self,
        whole: &Share,
        rest: Option<&Rest>,
        failed: usize,
        cx: &mut Cx,
    ) -> Vec<TensorId> {
        let program = whole.clone().run().program;
        let left = || {
            if program.structure.instrs.len() > RESCUED {
                return None;
            }
            let starts = program.structure.starts();
            let mut lost = vec![false; *starts.last()? as usize];
            let Without { mut structure, outs, kept } =
                program.structure.without(&starts, &mut lost, failed)?;
            let ids = outs.iter().map(|k| program.outs[*k]);
            let (outs, ids) = structure.outs.iter().zip(ids).filter(|(_, id)| self.may_lie_anew(*id)).unzip();
            structure.outs = outs;
            let left = Program {
                key: structure.key(),
                structure: Arc::new(structure),
                inputs: program.inputs.clone(),
                outs: ids,
                slots: program.slots.clone(),
                frees: Vec::new(),
            };
            Some((left, kept))
        };
        let Some((left, mut kept)) = left() else { return Vec::new() };
        let mut root = whole.seq;
        if let Some(rest) = rest {
            root = rest.root;
            kept.iter_mut().for_each(|i| *i = rest.kept[*i as usize]);
        }
        let seq = self.last_added + 1;
        let Some(pending) = self.divide_again(seq, &left, Vec::new(), cx) else { return Vec::new() };
        self.last_added = seq;
        let rest = Some(Rest { root, kept });
        self.added.insert(seq, pending.after(rest, 0));
        left.outs
    }

    /// Sends a divided program again that failed only because it came before its inputs were computed again. Gives it
    /// back if that is not so.
    pub(super) fn send_again(&mut self, seq: u64, done: Pending, cx: &mut Cx) -> Option<Pending> {
        let Some(whole) = done.whole.as_ref().filter(|_| done.again < AGAIN) else { return Some(done) };
        let program = whole.clone().run().program;
        let Some(pending) = self.divide_again(seq, &program, done.frees.clone(), cx) else {
            return Some(done);
        };
        let pending = pending.after(done.rest, done.again + 1);
        let map = if seq > ADDED { &mut self.added } else { &mut self.pending };
        map.insert(seq, pending);
        None
    }

    /// Divides a program as its inputs lie now and sends it; nothing if one of them has no value. Its results, which
    /// are known, lie as this says from now on.
    fn divide_again(
        &mut self,
        seq: u64,
        program: &Program,
        frees: Vec<TensorId>,
        cx: &mut Cx,
    ) -> Option<Pending> {
        let mesh = self.mesh(program, cx)?;
        let here = |id: &TensorId| {
            let tensor = self.tensors.get(*id)?;
            let fits = match &tensor.spread {
                Some(spread) => spread.mesh == mesh,
                None => tensor.holders.cover(&mesh),
            };
            (tensor.poison.is_none() && fits).then_some(())
        };
        program.inputs.iter().map(here).collect::<Option<Vec<()>>>()?;
        if program.outs.is_empty() || !program.outs.iter().all(|id| self.may_lie_anew(*id)) {
            return None;
        }
        let types: Arc<[Ty]> = program.structure.check().ok()?.into();
        let inputs = self.lies(program, &mesh, |_| true, &mut Vec::new())?;
        let mut ask = self.situation(program, &types, &mesh, inputs).question(&program.structure, &types);
        // It runs where its inputs are, in any case.
        ask.must = true;
        let divided = shard::divide(&ask).ok()??;
        let made = Arc::new(Made::divided(&program.structure, &types, &mesh, &divided));
        let whole = Share::from(Run { seq, program: program.clone(), prefix: None });
        self.send_shares(&whole, &mesh, &divided, &mut Parts::new(), cx).ok()?;
        for (at, id) in program.outs.iter().enumerate() {
            let Some(tensor) = self.tensors.get_mut(*id) else { continue };
            cx.pool.release_all(&tensor.holders, tensor.bytes());
            tensor.remake(&made, at as u32);
            let bytes = tensor.bytes();
            mesh.workers.iter().for_each(|w| cx.pool.hold(*w, bytes));
        }
        self.remade(&program.outs);
        Some(Pending::divided(whole, &mesh, &divided, frees))
    }

    /// True for a tensor of which no copy is under way.
    fn may_lie_anew(&self, id: TensorId) -> bool {
        self.tensors.get(id).is_some() && !self.moves.keys().any(|(moving, _)| *moving == id)
    }

    /// What is under way of these tensors is of before they were computed again.
    fn remade(&mut self, ids: &[TensorId]) {
        for gather in self.gathers.values_mut().filter(|g| ids.contains(&g.tensor)) {
            gather.remade = true;
        }
        for asked in self.fetches.values_mut().filter(|a| ids.contains(&a.tensor)) {
            asked.remade = true;
        }
        for joins in self.added.values_mut().filter(|p| p.joins.is_some()) {
            if joins.outs().iter().any(|id| ids.contains(id)) {
                joins.put_off();
            }
        }
    }
}
