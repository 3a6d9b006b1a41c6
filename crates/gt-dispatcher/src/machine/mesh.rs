//! Workers that run programs together, and the programs that were divided among them, for all sessions.

use super::log::Log;
use super::pool::Pool;
use super::{Action, Config, speeds};
use crate::shard::{Answer, Ask, Asked, Costs, Hint, Thought};
use foldhash::fast::FixedState;
use gt_ir::layout::{Layout, Layouts};
use gt_ir::{Error, Structure};
use gt_net::msg::{Member, SessionId, WorkerCmd, WorkerId, WorkerInfo};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;

/// The workers of a mesh, by rank.
#[derive(Debug)]
pub struct Mesh {
    pub id: u64,
    /// The size of each axis; the last runs fastest over the workers.
    pub shape: Vec<usize>,
    pub workers: Vec<WorkerId>,
    /// What computing and moving cost on it, from what its workers told of themselves.
    pub costs: Costs,
    /// Bytes that each worker may hold of a session's tensors that could lie in pieces and are kept whole.
    pub spare: u64,
}

impl PartialEq for Mesh {
    fn eq(&self, other: &Mesh) -> bool {
        self.id == other.id
    }
}

impl Mesh {
    /// The layouts of what every worker has all of.
    pub fn whole(&self) -> Layouts {
        self.shape.iter().map(|_| Layout::Whole).collect()
    }
}

/// Divided programs kept at most.
const MAX_PLANS: usize = 1024;

/// What a division depends on besides the structure.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Situation {
    /// How each live-in lies, and whether only one worker has it.
    pub inputs: Vec<(Layouts, bool)>,
    /// Layouts that signals ask for, by value.
    pub fixed: Vec<(u32, Asked)>,
    /// By axis: signals ask for computed values that are whole along it.
    pub keeps: SmallVec<[bool; 2]>,
    /// Signals ask for these workers.
    pub must: bool,
    pub shape: Vec<usize>,
    pub costs: Costs,
}

/// What is known of a division.
#[derive(Clone, Debug)]
pub(super) enum Known {
    /// It is being worked out under this number.
    Asked(u64),
    /// One worker is better if there is none.
    Done(Answer),
}

struct Entry {
    structure: Arc<Structure>,
    situation: Situation,
    known: Known,
    used: u64,
}

#[derive(Default)]
pub(super) struct Meshes {
    meshes: Vec<Arc<Mesh>>,
    last: u64,
    gangs: u64,
    plans: HashMap<u64, Vec<Entry>>,
    count: usize,
    clock: u64,
    asks: u64,
    /// The families of open questions, and what came of the last question of each.
    families: HashMap<u64, u64>,
    hints: HashMap<u64, Hint>,
}

/// Programs of a session on a mesh that have the same ops are a family: in the first steps of a training what lives on
/// differs, and numbers become slots.
pub(super) fn family(session: SessionId, mesh: u64, structure: &Structure) -> u64 {
    let mut hasher = FixedState::default().build_hasher();
    (session.0, mesh).hash(&mut hasher);
    structure.instrs.iter().for_each(|instr| instr.op.hash(&mut hasher));
    hasher.finish()
}

impl Meshes {
    /// The mesh of these workers, in this order and of this shape; they are told of a new one.
    pub fn get(
        &mut self,
        workers: &[WorkerId],
        shape: &[usize],
        pool: &Pool,
        config: &Config,
        out: &mut Vec<Action>,
    ) -> Arc<Mesh> {
        if let Some(mesh) = self.meshes.iter().find(|m| m.workers == workers && m.shape == shape) {
            return mesh.clone();
        }
        self.last += 1;
        let infos: Vec<&WorkerInfo> = workers.iter().filter_map(|w| Some(&pool.get(*w)?.info)).collect();
        let (costs, spare) = (speeds::costs(&infos), speeds::spare(&infos));
        let (own_shape, own) = (shape.to_vec(), workers.to_vec());
        let mesh = Arc::new(Mesh { id: self.last, shape: own_shape, workers: own, costs, spare });
        let member = |worker: &WorkerId| {
            let info = &pool.get(*worker)?.info;
            let (process, endpoint) = (info.process.clone(), info.endpoint.clone());
            Some(Member { worker: *worker, process, endpoint, key: info.ticket_key })
        };
        let members: Vec<Member> = workers.iter().filter_map(member).collect();
        for (rank, worker) in workers.iter().enumerate() {
            let told = gt_net::msg::Mesh {
                id: mesh.id,
                cluster: config.cluster,
                shape: shape.iter().map(|n| *n as u32).collect(),
                members: members.clone(),
                rank: rank as u32,
            };
            out.push(Action::ToWorker(*worker, WorkerCmd::Mesh(told)));
        }
        self.meshes.push(mesh.clone());
        mesh
    }

    /// The next number in the order of gangs (C9).
    pub fn number(&mut self) -> u64 {
        self.gangs += 1;
        self.gangs
    }

    /// The meshes of a lost worker are no more, and their members are told.
    pub fn worker_lost(&mut self, worker: WorkerId, name: &str, reason: &str, out: &mut Vec<Action>) {
        let error = Error::Connection(format!(
            "worker {name} was lost ({reason}) while others waited for it: make lost tensors again, or load a checkpoint"
        ));
        self.meshes.retain(|mesh| {
            let lost = mesh.workers.contains(&worker);
            for other in mesh.workers.iter().filter(|w| lost && **w != worker) {
                let command = WorkerCmd::Disband { mesh: mesh.id, error: error.clone() };
                out.push(Action::ToWorker(*other, command));
            }
            !lost
        });
    }

    /// What is known of a division.
    pub fn find(&mut self, key: u64, structure: &Arc<Structure>, situation: &Situation) -> Option<Known> {
        self.clock += 1;
        let same = |e: &&mut Entry| {
            (Arc::ptr_eq(&e.structure, structure) || e.structure == *structure)
                && e.situation.like(situation, matches!(e.known, Known::Done(Ok(Some(_)))))
        };
        let entry = self.plans.get_mut(&key)?.iter_mut().find(same)?;
        entry.used = self.clock;
        Some(entry.known.clone())
    }

    /// Notes that a division is being worked out; gives the number of the question.
    pub fn ask(&mut self, key: u64, structure: &Arc<Structure>, situation: Situation, family: u64) -> u64 {
        self.asks += 1;
        self.keep(key, structure, situation, Known::Asked(self.asks));
        self.families.insert(self.asks, family);
        self.asks
    }

    /// What came of the last question of a family.
    pub fn hint(&self, family: u64) -> Option<Hint> {
        self.hints.get(&family).copied()
    }

    /// Keeps a division.
    pub fn keep(&mut self, key: u64, structure: &Arc<Structure>, situation: Situation, known: Known) {
        let entry = Entry { structure: structure.clone(), situation, known, used: self.clock };
        self.plans.entry(key).or_default().push(entry);
        self.count += 1;
        if self.count > MAX_PLANS {
            let done = |e: &&Entry| matches!(e.known, Known::Done(_));
            let oldest = self.plans.values().flatten().filter(done).map(|e| e.used).min();
            self.plans.retain(|_, entries| {
                entries.retain(|e| Some(e.used) != oldest || !done(&e));
                !entries.is_empty()
            });
            self.count = self.plans.values().map(Vec::len).sum();
        }
    }

    /// True if this question is open.
    pub fn is_asked(&self, ask: u64) -> bool {
        let open = |e: &Entry| matches!(e.known, Known::Asked(number) if number == ask);
        self.plans.values().flatten().any(open)
    }

    /// A division has been worked out.
    pub fn planned(&mut self, ask: u64, result: Answer) {
        if let (Some(family), Ok(Some(divided))) = (self.families.remove(&ask), &result) {
            if self.hints.len() >= MAX_PLANS {
                self.hints.clear();
            }
            let Thought { lean, verdict, .. } = divided.thought;
            self.hints.insert(family, Hint { lean, seconds: verdict.seconds });
        }
        let asked = |e: &&mut Entry| matches!(e.known, Known::Asked(number) if number == ask);
        if let Some(entry) = self.plans.values_mut().flatten().find(asked) {
            entry.known = Known::Done(result);
        }
    }
}

impl Log {
    /// Says how a program was divided, and what is thought of it.
    pub(super) fn planned(&mut self, now: u64, out: &mut Vec<Action>, known: &Known) {
        let Known::Done(Ok(answer)) = known else { return };
        self.line(now, out, "PLAN", &"PLANNER".into(), "Program", 0, || match answer {
            None => "on one worker".into(),
            Some(divided) => {
                let Thought { lean, verdict, alone } = &divided.thought;
                format!(
                    "on {} workers ({lean}): {:.2} ms, {:.2} of them in {} collectives, {} MB; {:.2} ms on one, {} MB",
                    divided.parts.len(),
                    verdict.seconds * 1e3,
                    verdict.moving * 1e3,
                    verdict.collectives,
                    verdict.peak >> 20,
                    alone.seconds * 1e3,
                    alone.peak >> 20,
                )
            }
        });
    }
}

impl Situation {
    /// True if an answer for this situation serves for the other: what was divided once is divided wherever its inputs
    /// have been brought since.
    fn like(&self, other: &Situation, divided: bool) -> bool {
        let same = |(a, b): (&(Layouts, bool), &(Layouts, bool))| a.0 == b.0 && (divided || a.1 == b.1);
        self.shape == other.shape
            && self.fixed == other.fixed
            && self.must == other.must
            && self.keeps == other.keeps
            && self.costs == other.costs
            && self.inputs.len() == other.inputs.len()
            && self.inputs.iter().zip(&other.inputs).all(same)
    }

    /// The question whose answer this situation needs.
    pub fn question(&self, structure: &Arc<Structure>, types: &Arc<[gt_ir::Ty]>) -> Ask {
        Ask {
            structure: structure.clone(),
            types: types.clone(),
            inputs: self.inputs.iter().map(|(layouts, _)| layouts.clone()).collect(),
            at_home: self.inputs.iter().map(|(_, home)| *home).collect(),
            fixed: self.fixed.clone(),
            keeps: self.keeps.clone(),
            must: self.must,
            shape: self.shape.clone(),
            costs: self.costs,
            follows: false,
            hint: None,
        }
    }
}
