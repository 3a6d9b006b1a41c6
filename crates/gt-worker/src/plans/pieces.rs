//! The plans of programs that run in parts.

use super::{Found, Miss, Plans, count_ops, gone};
use crate::backend::{Backend, Effort, Plan};
use crate::family::Family;
use crate::parts::{InParts, Part, divide};
use gt_ir::{Result, Structure, Ty};
use gt_net::compiling::Compiling;
use std::sync::Arc;

/// Programs that run in parts and are counted, at most.
const MAX_COUNTED: usize = 1 << 12;
/// The key of a plan whose instructions stay apart is its structure's with these bits changed.
const APART: u64 = 0x6170_6172_7400_0000;

/// Parts that do not change have plans as good as any, so a plan of the whole saves little of a run and costs as much as
/// hundreds of them: it is made when sizes have come back so many times as often as `GT_HOTPATH_THRESHOLD` says.
const LITTLE_GAIN: u32 = 64;

/// The plan of a part, and the types of its results.
struct Piece {
    plan: Arc<dyn Plan>,
    outs: Arc<[Ty]>,
}

impl Plans {
    /// The parts of a program that is known with other sizes, if that pays. Notes in `found` that it is known.
    pub(super) fn resize(
        &mut self,
        backend: &Arc<dyn Backend>,
        family: &mut Family,
        key: u64,
        structure: &Arc<Structure>,
        how: Compiling,
        found: &mut Found,
    ) -> Option<InParts> {
        family.used = self.clock;
        let fresh = family.compare(structure)?;
        // Other numbers alone are no other size, unless they never come back.
        if fresh.is_empty() && (!family.is_restless() || self.in_parts.contains_key(&key)) {
            return None;
        }
        if family.sizes < how.max_expand() {
            family.sizes += 1;
            return None;
        }
        found.resized = true;
        let resized = !fresh.is_empty() && family.parts.is_some();
        let gain = if resized { LITTLE_GAIN } else { 1 };
        self.came(backend, key, structure, how.threshold().saturating_mul(gain));
        let mut parts = family.parts.take()?;
        let mut ready = Vec::with_capacity(parts.len());
        let mut size = Size::new(structure.inputs.len());
        for own in &mut parts {
            let (key, s) = match &own.known {
                Some(known) => known.clone(),
                None => {
                    let s = own.part.structure(structure, &family.starts, |v| family.ty(&fresh, v));
                    (s.key(), Arc::new(s))
                }
            };
            // Whatever is wrong is told by the plan of the whole.
            let Ok(Piece { plan, outs }) = self.piece(backend, key, &s, Effort::Quick, how, found) else {
                break;
            };
            if !own.changes && own.known.is_none() {
                own.known = Some((key, s));
            }
            size.run(&own.part, &*plan, &outs, |v| family.ty(&fresh, v).bytes());
            ready.push((own.part.clone(), plan));
        }
        let whole = ready.len() == parts.len();
        family.parts = Some(parts);
        let outs = structure.outs.iter().map(|v| family.ty(&fresh, *v).clone()).collect();
        let (ops, values) = (family.ops.clone(), family.values());
        whole.then_some(InParts { parts: ready, outs, ops, reserve: size.peak, values })
    }

    /// Counts a run without a plan of its own; sizes that come back `often` get one.
    pub(super) fn came(
        &mut self,
        backend: &Arc<dyn Backend>,
        key: u64,
        structure: &Arc<Structure>,
        often: u32,
    ) {
        if self.in_parts.len() >= MAX_COUNTED {
            self.in_parts.clear();
        }
        let times = self.in_parts.entry(key).or_default();
        *times += 1;
        if *times == often {
            self.planner.ask(backend, key, structure);
        }
    }

    /// The parts of a program in which every instruction, or every batch of them, is for itself.
    pub(super) fn apart(
        &mut self,
        backend: &Arc<dyn Backend>,
        s: &Structure,
        how: Compiling,
        found: &mut Found,
    ) -> Result<InParts> {
        let starts = s.starts();
        let batch = how.batch();
        // Alone, an instruction has nothing to be kept apart from, and its plan serves everybody.
        let effort = if batch == 1 { Effort::Quick } else { Effort::Apart };
        let numbers: Vec<u32> = (0..s.instrs.len()).map(|i| (i / batch) as u32).collect();
        let mut types: Vec<Option<Ty>> = s.inputs.iter().map(|i| Some(i.ty.clone())).collect();
        types.resize(starts[s.instrs.len()] as usize, None);
        let none = Ty::new(gt_ir::DType::Bool, []);
        let mut size = Size::new(s.inputs.len());
        let mut ready = Vec::new();
        for part in divide(s, &starts, &numbers) {
            let own = part.structure(s, &starts, |v| types[v as usize].as_ref().unwrap_or(&none));
            let key = own.key() ^ if effort == Effort::Apart { APART } else { 0 };
            let Piece { plan, outs } = self.piece(backend, key, &Arc::new(own), effort, how, found)?;
            part.outs().iter().zip(outs.iter()).for_each(|(v, ty)| types[*v as usize] = Some(ty.clone()));
            size.run(&part, &*plan, &outs, |v| types[v as usize].as_ref().map_or(0, Ty::bytes));
            ready.push((Arc::new(part), plan));
        }
        let outs = s.outs.iter().map(|v| types[*v as usize].clone().unwrap_or_else(|| none.clone()));
        let (outs, values) = (outs.collect(), types.len());
        Ok(InParts { parts: ready, outs, ops: count_ops(s), reserve: size.peak, values })
    }

    /// The plan of a part and the types of its results.
    fn piece(
        &mut self,
        backend: &Arc<dyn Backend>,
        key: u64,
        s: &Arc<Structure>,
        effort: Effort,
        how: Compiling,
        found: &mut Found,
    ) -> Result<Piece> {
        let known = self.hit(backend, key, s, effort);
        if found.by_op {
            found.hits += known as u64;
            found.misses += !known as u64;
            found.why = if known { found.why } else { Some(Miss::OpByOp) };
        }
        if !known {
            self.make(backend, key, s, effort, how, found)?;
        }
        let made = self.made.get(&key).ok_or_else(gone)?;
        Ok(Piece { plan: made.plan.clone(), outs: made.outs.clone() })
    }
}

/// The bytes a program in parts needs at most beyond its inputs.
struct Size {
    /// How many inputs the program has; they were there before.
    inputs: usize,
    now: usize,
    peak: usize,
}

impl Size {
    fn new(inputs: usize) -> Size {
        Size { inputs, now: 0, peak: 0 }
    }

    /// The next part runs; `bytes` gives those of a value.
    fn run(&mut self, part: &Part, plan: &dyn Plan, outs: &[Ty], bytes: impl Fn(u32) -> usize) {
        self.peak = self.peak.max(self.now + plan.reserve());
        self.now += outs.iter().map(Ty::bytes).sum::<usize>();
        self.now = self.now.saturating_sub(part.ends(self.inputs).map(bytes).sum());
    }
}
