//! How a program of a session went over a mesh the last time. When it comes again with its inputs lying as they lay, it
//! takes the same course: one look at each input tells, and no layouts are gathered and compared.

use super::Cx;
use super::gang::{Ready, Wait};
use super::mesh::Mesh;
use super::message::Parts;
use super::session::Session;
use super::tensor::{Made, Origin, Tensor};
use crate::shard::Divided;
use gt_ir::layout::{Layout, Layouts};
use gt_ir::{Program, Structure, TensorId};
use std::sync::Arc;

/// Courses that a session remembers at most.
const MAX_COURSES: usize = 256;

/// How a program goes over a mesh.
#[derive(Clone, Debug)]
pub(super) struct Course {
    pub mesh: Arc<Mesh>,
    pub divided: Arc<Divided>,
    /// What it makes there.
    pub made: Arc<Made>,
}

/// A course, and what must be as it was for a program to take it again.
#[derive(Debug)]
pub(super) struct Taken {
    structure: Arc<Structure>,
    /// The state of the pool, and the number of signals: they say which mesh a program is for.
    pool: u64,
    signals: usize,
    /// How each input lay.
    lay: Vec<Layouts>,
    /// Which result each input was the last time, if it was just that.
    was: Vec<Option<Origin>>,
    course: Course,
}

/// How an input fits.
enum Fit {
    Well,
    /// It is whole, but not on all workers.
    Away,
    Not,
}

impl Taken {
    /// True if this program would be sent on the same course, its inputs aside.
    fn is_for(&self, program: &Program, pool: u64, signals: usize) -> bool {
        Arc::ptr_eq(&self.structure, &program.structure) && self.pool == pool && self.signals == signals
    }

    /// How a tensor fits as an input. What it was is noted, so that the next of its kind is known at once.
    fn fits(&mut self, k: usize, tensor: &Tensor) -> Fit {
        let origin = tensor.origin();
        if origin.is_some() && origin == self.was[k].as_ref() {
            return Fit::Well;
        }
        let mesh = &self.course.mesh;
        if tensor.ty != self.structure.inputs[k].ty {
            return Fit::Not;
        }
        match &tensor.spread {
            Some(spread) if spread.mesh.id == mesh.id && spread.layouts == self.lay[k] => {}
            Some(_) => return Fit::Not,
            None if self.lay[k].iter().any(|layout| *layout != Layout::Whole) => return Fit::Not,
            None if !tensor.holders.cover(mesh) => return Fit::Away,
            None => {}
        }
        self.was[k] = origin.cloned();
        Fit::Well
    }
}

impl Session {
    /// Remembers the course of a program whose inputs lie so.
    pub(super) fn keep_course(&mut self, program: &Program, lay: Vec<Layouts>, course: &Course, cx: &Cx) {
        if self.courses.len() >= MAX_COURSES {
            self.courses.clear();
        }
        let (pool, signals) = (cx.pool.state(), self.signals.len());
        let was = vec![None; lay.len()];
        let structure = program.structure.clone();
        let taken = Taken { structure, pool, signals, lay, was, course: course.clone() };
        self.courses.insert(program.key, taken);
    }

    /// What a program makes on a mesh that it was divided over.
    pub(super) fn made(
        &self,
        program: &Program,
        types: &[gt_ir::Ty],
        mesh: &Arc<Mesh>,
        divided: &Arc<Divided>,
    ) -> Arc<Made> {
        let same = |t: &&Taken| t.course.mesh.id == mesh.id && Arc::ptr_eq(&t.course.divided, divided);
        match self.courses.get(&program.key).filter(same) {
            Some(taken) => taken.course.made.clone(),
            None => Arc::new(Made::divided(&program.structure, types, mesh, divided)),
        }
    }

    /// Gets a program ready that comes again and can go as it went; nothing if it may have to take another course, or not at
    /// all. Its inputs have been checked then.
    pub(super) fn again(&mut self, program: &Program, parts: &mut Parts, cx: &mut Cx) -> Option<Ready> {
        let taken = self.courses.get_mut(&program.key)?;
        if !taken.is_for(program, cx.pool.state(), self.signals.len())
            || program.inputs.len() != taken.lay.len()
        {
            return None;
        }
        self.reads += 1;
        let mut away: Vec<TensorId> = Vec::new();
        for (k, id) in program.inputs.iter().enumerate() {
            let tensor = self.tensors.get_mut(*id).filter(|t| t.is_usable() && t.read_at != self.reads)?;
            tensor.read_at = self.reads;
            match taken.fits(k, tensor) {
                Fit::Well => {}
                Fit::Away => away.push(*id),
                Fit::Not => return None,
            }
        }
        let course = taken.course.clone();
        for id in away {
            course.mesh.workers.iter().for_each(|worker| self.bring(id, *worker, parts, cx));
        }
        if self.is_awaited() {
            return Some(Ready::Waits(Wait::Arrivals));
        }
        (!self.stay_whole(program, &course, parts, cx)).then_some(Ready::Again(course))
    }
}
