//! A session's programs over several workers: which workers, how they are divided, and when they may go.

use super::checked::Rules;
use super::course::Course;
use super::kinds::can_meet;
use super::mesh::{Known, Mesh, Situation, family};
use super::message::Parts;
use super::session::Session;
use super::tensor::Tensor;
use super::{Action, Cx};
use crate::shard::{self, Asked, Costs};
use gt_ir::layout::Layouts;
use gt_ir::signal::{Lay, Mark};
use gt_ir::{Error, Program, Result, TensorId, Ty, bail};
use gt_net::msg::{ClientMsg, WorkerId};
use smallvec::SmallVec;
use std::sync::Arc;

/// Programs that the dispatcher adds to a session are numbered from here on.
pub(super) const ADDED: u64 = 1 << 62;
/// Programs of more instructions, over all workers, are divided elsewhere.
const INLINE: usize = 512;

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
    /// Divided over a mesh, with its inputs there; they lie so.
    Gang(Course, Vec<Layouts>),
    /// As it went before: its inputs are there, and were checked.
    Again(Course),
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
        match var("GT_AUTO_SHARD") {
            None | Some("" | "0") => return Ok(None),
            Some("1") => {}
            Some(other) => bail!(Value, "GT_AUTO_SHARD: expected 0 or 1, got {other:?}"),
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
    pub(super) fn mesh(&self, program: &Program, cx: &mut Cx) -> Option<Arc<Mesh>> {
        if let Some(mark) = program.structure.marks.first() {
            let present = self.signals.get(mark.signal)?.on(&cx.pool.positions()).ok()?;
            let workers: Vec<WorkerId> = present.workers.iter().filter_map(|at| cx.pool.at(*at)).collect();
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
        let spread = |id: &TensorId| self.tensors.get(*id).filter(|t| t.spread.is_some());
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
    pub(super) fn costs(&self, mesh: &Mesh) -> Costs {
        match self.sharding {
            Some(Sharding { least: Some(least) }) => Costs { least, always: least == 0, ..mesh.costs },
            Some(Sharding { least: None }) => mesh.costs,
            None => mesh.costs.signalled(),
        }
    }

    /// How the inputs of a program lie on a mesh; nothing if one of them cannot be used. Those on another mesh are noted.
    pub(super) fn lies(
        &self,
        program: &Program,
        mesh: &Mesh,
        usable: impl Fn(&Tensor) -> bool,
        elsewhere: &mut Vec<TensorId>,
    ) -> Option<Vec<(Layouts, bool)>> {
        let whole = mesh.whole();
        let lies = |id: &TensorId| {
            let tensor = self.tensors.get(*id).filter(|t| usable(t))?;
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
    pub(super) fn situation(
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
        let rules = cx.checked.check(program).and_then(|rules| {
            rules.binding.check(program)?;
            Ok(rules)
        });
        if let (Ok(_), Some(ready)) = (&rules, self.again(program, parts, cx)) {
            return ready;
        }
        let Some(mesh) = self.mesh(program, cx) else {
            self.gather_inputs(program, parts, cx);
            return Ready::Alone;
        };
        let Ok(Rules { types, .. }) = rules else { return Ready::Alone };
        let mut elsewhere = Vec::new();
        let mut inputs = self.lies(program, &mesh, Tensor::is_usable, &mut elsewhere);
        if inputs.is_none() {
            return Ready::Alone;
        }
        if !elsewhere.is_empty() {
            for id in elsewhere {
                if let Some(spread) = self.tensors.get(id).and_then(|t| t.spread.clone()) {
                    self.make_whole(id, &spread, parts, cx);
                }
            }
            inputs = self.lies(program, &mesh, |_| true, &mut Vec::new());
        }
        let Some(inputs) = inputs else { return Ready::Alone };
        let situation = self.situation(program, &types, &mesh, inputs);
        let away = situation.inputs.iter().any(|(_, at_home)| *at_home);
        let lay = situation.inputs.iter().map(|(layouts, _)| layouts.clone()).collect();
        let divided = match self.division(program, &types, mesh.id, situation, cx) {
            Known::Asked(ask) => return Ready::Waits(Wait::Plan(ask)),
            Known::Done(Ok(Some(divided))) => divided,
            Known::Done(Ok(None)) => return Ready::Alone,
            Known::Done(Err(error)) => return Ready::Fails(error),
        };
        if away {
            for id in &program.inputs {
                if self.tensors[*id].spread.is_none() {
                    mesh.workers.iter().for_each(|worker| self.bring(*id, *worker, parts, cx));
                }
            }
        }
        if self.is_awaited() {
            return Ready::Waits(Wait::Arrivals);
        }
        let made = self.made(program, &types, &mesh, &divided);
        let course = Course { mesh, divided, made };
        if self.stay_whole(program, &course, parts, cx) {
            return self.prepare(program, parts, cx);
        }
        Ready::Gang(course, lay)
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
}
