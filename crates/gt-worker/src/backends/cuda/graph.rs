//! Plans that come back, captured as CUDA graphs: one launch for all of a plan, changed in place where addresses or
//! slots have changed.
//!
//! Kernels of ours can be given other arguments. What cannot is fixed: operands of cuBLASLt and cuDNN, and copies. Live-outs that the
//! client holds while the next are computed come in turns, so a plan has a few captures, one for each set of fixed
//! addresses. A plan with a value that somebody waits for is captured in two pieces, and the value leaves between them.
//! Where there are more sets than that, the graph gets memory of its own for what keeps changing, and the bytes
//! are copied before or after. A plan of a gang is captured with NCCL's calls, whose operands are fixed too; its ranks
//! decide together which capture they launch (`gang_pact`).

use super::account::Owner;
use super::gang_pact::CAPTURES;
use super::gang_tie::Comms;
use super::graph_exec::Exec;
use super::lane::Lane;
use super::memory::{Block, GRAIN};
use super::steps::{Bound, Ready, Steps};
use gt_compiler::{Place, Plan, Work};
use gt_ir::{Error, Result, Slot};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Weak};

/// Fixed operands up to this size are copied rather than captured anew.
const STAGED: usize = 32 << 20;
/// Captures of one plan at most.
const TURNS: usize = CAPTURES;
/// Graphs of one lane at most.
const MOST: usize = 64;

/// The graphs of a lane, by plan.
#[derive(Default)]
pub struct Graphs {
    list: HashMap<u64, Graph>,
    /// Arenas that graphs share, since only one of them runs at a time.
    arenas: Vec<Arc<Block>>,
    clock: u64,
}

/// A captured plan.
pub struct Graph {
    /// Of the plan; gone when that is.
    alive: Weak<()>,
    used: u64,
    steps: Arc<Steps>,
    arena: Option<Arc<Block>>,
    /// Memory of its own: small data, and operands that are copied.
    own: Own,
    /// The steps of the first of two pieces, if it is captured in two.
    split: Option<usize>,
    turns: Vec<Turn>,
    captures: u32,
    launches: u32,
}

/// One capture, with what it was given last.
struct Turn {
    /// One after the other.
    pieces: SmallVec<[Piece; 2]>,
    used: u32,
    addresses: Vec<u64>,
    slots: Vec<Slot>,
    scratch: u64,
    workspace: u64,
    /// For a gang: its number among all ranks, and the groups whose calls are in it.
    together: Option<(u32, Comms)>,
}

/// Some steps of a plan.
struct Piece {
    steps: Range<usize>,
    exec: Exec,
}

/// What a run has that the capture's last one had not; nothing by default.
#[derive(Default)]
struct Changed {
    /// Per storage.
    moved: Vec<bool>,
    slots: bool,
}

/// The graph's own memory.
struct Own {
    block: Option<Block>,
    /// Storage and place of small data, which lies first, and its bytes.
    data: Vec<(u32, usize)>,
    data_bytes: usize,
    /// Storage and place of each operand that is copied.
    staged: Vec<(u32, usize)>,
}

/// Which storages cannot be changed in a captured graph; and which slots cannot, since they say where such operands lie.
fn fixed(plan: &Plan, steps: &Steps) -> (Vec<bool>, Vec<u32>) {
    let mut out = vec![false; plan.storages.len()];
    let mut slots = Vec::new();
    for (i, ready) in steps.list.iter().enumerate() {
        match ready {
            Ready::Product { prepared, .. } => {
                plan.steps[i].reads(|s| out[s as usize] = true);
                plan.steps[i].writes(|s| out[s as usize] = true);
                slots.extend(prepared.slots());
            }
            Ready::Attend(attend) => {
                plan.steps[i].reads(|s| out[s as usize] = true);
                plan.steps[i].writes(|s| out[s as usize] = true);
                slots.extend(attend.slots());
            }
            Ready::Copy { from, to, .. } => {
                out[*from as usize] = true;
                out[*to as usize] = true;
            }
            Ready::Nothing | Ready::Kernels { .. } | Ready::Data { .. } | Ready::Check { .. } => {}
        }
        if let Work::Collective(c) = &plan.steps[i].work {
            plan.steps[i].reads(|s| out[s as usize] = true);
            plan.steps[i].writes(|s| out[s as usize] = true);
            slots.extend(c.xs.iter().flat_map(|x| &x.map.slots).map(|(slot, _)| *slot));
        }
    }
    slots.sort_unstable();
    slots.dedup();
    (out, slots)
}

/// Seconds of a launch on average from which on a graph gains nothing.
const LONG: f64 = 25e-6;

/// Roughly, the seconds a device takes for the steps of a plan from `first` on: bytes read and written once, products at the rate of tensor cores.
pub fn seconds(plan: &Plan, first: usize) -> f64 {
    let (mut bytes, mut flops) = (0usize, 0usize);
    for step in &plan.steps[first..] {
        let mut touch = |s: u32| bytes += plan.storages[s as usize].bytes;
        step.reads(&mut touch);
        step.writes(&mut touch);
        if let Work::Matmul(mm) = &step.work {
            flops += 2 * mm.batch.numel() * mm.m * mm.n * mm.k;
        }
    }
    bytes as f64 / 3e12 + flops as f64 / 500e12
}

/// What is to be done once some steps are queued, given the addresses as those see them.
pub struct Midway<'a> {
    /// How many steps.
    pub after: usize,
    pub act: &'a dyn Fn(&[u64]),
}

/// What became of a launch.
pub enum Launched {
    All,
    /// Graphs do not suit this plan.
    Nothing,
    /// The device took the first piece and refused the second.
    Torn(Error),
}

/// A plan that is to run as a graph, and where.
pub struct What<'a> {
    pub id: u64,
    pub alive: &'a Arc<()>,
    pub plan: &'a Plan,
    pub shape: &'a Shape,
    pub steps: &'a Arc<Steps>,
    pub lane: &'a Arc<Lane>,
}

fn gone() -> Error {
    Error::Runtime("cuda: a capture is gone that was to be launched".into())
}

/// What decides how a storage may be treated.
pub struct Shape {
    fixed: Vec<bool>,
    /// Slots that say where fixed operands lie.
    slots: Vec<u32>,
    /// False if small data is written over an input.
    graphable: bool,
}

impl Shape {
    pub fn new(plan: &Plan, steps: &Steps) -> Shape {
        let (fixed, slots) = fixed(plan, steps);
        let over_input = |ready: &Ready| match ready {
            Ready::Data { out, .. } => {
                let storage = &plan.storages[*out as usize];
                storage.reuse.is_some() || matches!(storage.place, Place::Input(_))
            }
            _ => false,
        };
        // Where launches do long work the host is ahead of the device anyway, and a capture gains nothing.
        let calls = plan.steps.iter().filter(|step| matches!(step.work, Work::Collective(_))).count();
        let launches = steps.launches + calls;
        let long = seconds(plan, 0) > LONG * launches as f64;
        let graphable = !steps.list.iter().any(over_input) && launches >= 3 && !long;
        Shape { fixed, slots, graphable }
    }

    pub fn graphable(&self) -> bool {
        self.graphable
    }
}

impl Graphs {
    /// The arena of a plan's graph, if the plan has one.
    pub fn arena(&self, plan: u64) -> Option<Arc<Block>> {
        self.list.get(&plan).and_then(|g| g.arena.clone())
    }

    /// An arena for a new graph: one that is there and not much too large, or a new one.
    pub fn new_arena(&mut self, lane: &Arc<Lane>, bytes: usize) -> Result<Option<Arc<Block>>> {
        if bytes == 0 {
            return Ok(None);
        }
        let fits = |b: &&Arc<Block>| b.bytes() >= bytes && (b.bytes() <= 4 * bytes || b.bytes() < 64 << 20);
        if let Some(block) = self.arenas.iter().filter(fits).min_by_key(|b| b.bytes()) {
            return Ok(Some(block.clone()));
        }
        // Those that nobody else has make room.
        self.arenas.retain(|block| Arc::strong_count(block) > 1);
        let block = Arc::new(lane.take(Owner::GraphArena, bytes)?);
        self.arenas.push(block.clone());
        Ok(Some(block))
    }

    /// Launches a plan's graph, made or changed as needed. On an error nothing has been launched.
    pub fn launch(
        &mut self,
        what: &What,
        arena: Option<Arc<Block>>,
        run: &Bound,
        midway: Option<&Midway>,
    ) -> Result<Launched> {
        self.of(what, arena)?.launch(what, run, midway)
    }

    /// For a rank of a gang: the numbers of captures that fit a run, made to fit it; none if graphs do not suit the plan.
    pub fn offer(
        &mut self,
        what: &What,
        arena: Option<Arc<Block>>,
        run: &Bound,
        comms: &Comms,
    ) -> Result<Option<[u32; CAPTURES]>> {
        self.of(what, arena)?.offer(what, run, comms)
    }

    /// Captures a gang's plan under a number that all ranks know; nothing is launched.
    pub fn capture(&mut self, what: &What, run: &Bound, number: u32, comms: &Comms) -> Result<()> {
        let Some(graph) = self.list.get_mut(&what.id) else { return Err(gone()) };
        graph.capture(what, run, Some((number, comms.clone()))).map(drop)
    }

    /// Launches a capture of a gang's plan by its number.
    pub fn replay(&mut self, what: &What, run: &Bound, number: u32) -> Result<Launched> {
        let Some(graph) = self.list.get_mut(&what.id) else { return Err(gone()) };
        match graph.turns.iter().position(|turn| turn.number() == number) {
            Some(at) => graph.go(at, &Changed::default(), what, run, None),
            None => Err(gone()),
        }
    }

    /// Drops a capture that not all ranks could make.
    pub fn drop_capture(&mut self, id: u64, number: u32) {
        if let Some(graph) = self.list.get_mut(&id) {
            graph.turns.retain(|turn| turn.number() != number);
        }
    }

    /// Drops captures with calls of groups that were cut off: NCCL keeps such a group until no graph has a call of it.
    pub fn forget(&mut self, comms: &Comms) {
        for graph in self.list.values_mut() {
            graph.turns.retain(|turn| turn.together.as_ref().is_none_or(|(_, of)| !of.are(comms)));
        }
    }

    /// The graph of a plan, perhaps without captures yet.
    fn of(&mut self, what: &What, arena: Option<Arc<Block>>) -> Result<&mut Graph> {
        self.clock += 1;
        if !self.list.contains_key(&what.id) {
            self.make_room();
            let graph = Graph::new(what, arena)?;
            self.list.insert(what.id, graph);
        }
        let graph = self.list.get_mut(&what.id).ok_or_else(gone)?;
        graph.used = self.clock;
        Ok(graph)
    }

    /// Forgets graphs whose plans are gone, and those unused longest.
    fn make_room(&mut self) {
        self.list.retain(|_, graph| graph.alive.strong_count() > 0);
        while self.list.len() >= MOST {
            let oldest = self.list.iter().min_by_key(|(_, g)| g.used).map(|(id, _)| *id);
            oldest.and_then(|id| self.list.remove(&id));
        }
    }
}

impl Own {
    /// Places for small data that lies in the arena otherwise.
    fn new(plan: &Plan, steps: &Steps) -> Own {
        let mut own = Own { block: None, data: Vec::new(), data_bytes: 0, staged: Vec::new() };
        for ready in &steps.list {
            if let Ready::Data { out, bytes, .. } = ready
                && matches!(plan.storages[*out as usize].place, Place::Arena(_))
            {
                own.data.push((*out, own.data_bytes));
                own.data_bytes += bytes.next_multiple_of(GRAIN);
            }
        }
        own
    }

    /// Memory for all of it.
    fn allocate(&mut self, lane: &Arc<Lane>, plan: &Plan) -> Result<()> {
        let mut bytes = self.data_bytes;
        for (storage, at) in &mut self.staged {
            *at = bytes;
            bytes += plan.storages[*storage as usize].bytes.next_multiple_of(GRAIN);
        }
        if bytes > 0 && self.block.as_ref().is_none_or(|b| b.bytes() < bytes) {
            self.block = Some(lane.take(Owner::GraphCopies, bytes)?);
        }
        Ok(())
    }

    fn base(&self) -> u64 {
        self.block.as_ref().map_or(0, Block::address)
    }
}

impl Graph {
    fn new(what: &What, arena: Option<Arc<Block>>) -> Result<Graph> {
        let mut own = Own::new(what.plan, what.steps);
        own.allocate(what.lane, what.plan)?;
        Ok(Graph {
            alive: Arc::downgrade(what.alive),
            used: 0,
            steps: what.steps.clone(),
            arena,
            own,
            split: None,
            turns: Vec::new(),
            captures: 0,
            launches: 0,
        })
    }

    /// True if it is captured again and again, which costs more than it saves.
    fn tires(&self) -> bool {
        self.captures > 16 + self.launches / 8
    }

    fn launch(&mut self, what: &What, run: &Bound, midway: Option<&Midway>) -> Result<Launched> {
        if self.tires() {
            return Ok(Launched::Nothing);
        }
        if let (Some(midway), None) = (midway, self.split) {
            // The first that asks decides where; what is ready later waits for the end.
            self.split = Some(midway.after);
            self.turns.clear();
        }
        let addresses = self.inside(run.addresses);
        match self.turns.iter().position(|turn| turn.fits(what.shape, &addresses, run)) {
            Some(at) => {
                let changed = self.turns[at].adopt(&addresses, run);
                self.go(at, &changed, what, run, midway)
            }
            None => {
                let at = self.capture(what, run, None)?;
                self.go(at, &Changed::default(), what, run, midway)
            }
        }
    }

    /// What this rank of a gang could launch. A capture that is offered has its arguments, so that nothing is left that
    /// could be refused.
    fn offer(&mut self, what: &What, run: &Bound, comms: &Comms) -> Result<Option<[u32; CAPTURES]>> {
        // Groups that were made anew know nothing of earlier captures.
        self.turns.retain(|turn| turn.together.as_ref().is_some_and(|(_, of)| of.are(comms)));
        if self.tires() {
            return Ok(None);
        }
        let addresses = self.inside(run.addresses);
        let mut fits = [0; CAPTURES];
        let mut free = fits.iter_mut();
        for at in (0..self.turns.len()).rev() {
            let turn = &mut self.turns[at];
            if !turn.fits(what.shape, &addresses, run) {
                continue;
            }
            let changed = turn.adopt(&addresses, run);
            let set = |piece: &Piece| turn.update(&piece.exec, &changed, &self.steps, run);
            match turn.pieces.iter().try_for_each(set) {
                Ok(()) => free.next().into_iter().for_each(|place| *place = turn.number()),
                // Some launches may have other arguments than it says.
                Err(_) => drop(self.turns.remove(at)),
            }
        }
        Ok(Some(fits))
    }

    /// Captures the plan as a run has it; gives the place of the capture.
    fn capture(&mut self, what: &What, run: &Bound, together: Option<(u32, Comms)>) -> Result<usize> {
        let mut addresses = self.inside(run.addresses);
        // Where one rank's operands have moved all ranks capture anew, so a gang settles sooner.
        let many = if together.is_some() { TURNS / 2 } else { TURNS };
        if self.turns.len() >= many && self.settle(what.plan, what.shape, &addresses) {
            // The old memory goes back in order, behind what still uses it.
            self.own.allocate(what.lane, what.plan)?;
            addresses = self.inside(run.addresses);
            self.turns.clear();
        }
        if self.turns.len() == TURNS {
            self.turns.sort_by_key(|turn| std::cmp::Reverse(turn.used));
            self.turns.pop();
        }
        self.captures += 1;
        let bound = Bound { addresses: &addresses, ..*run };
        let (split, count) = (self.split.unwrap_or(0), self.steps.list.len());
        let capture = |steps: Range<usize>| {
            let exec = Exec::capture(&self.steps, steps.clone(), &bound, what.lane)?;
            Ok(Piece { steps, exec })
        };
        let pieces = [0..split, split..count].into_iter().filter(|piece| !piece.is_empty());
        let pieces = pieces.map(capture).collect::<Result<_>>()?;
        let (scratch, workspace) = (run.scratch, run.workspace);
        let (slots, used) = (run.slots.to_vec(), self.launches);
        self.turns.push(Turn { pieces, used, addresses, slots, scratch, workspace, together });
        Ok(self.turns.len() - 1)
    }

    /// Launches a capture that fits but for what has `changed`.
    fn go(
        &mut self,
        at: usize,
        changed: &Changed,
        what: &What,
        run: &Bound,
        mut midway: Option<&Midway>,
    ) -> Result<Launched> {
        let (plan, lane) = (what.plan, what.lane);
        self.launches += 1;
        self.bring(plan, run, lane)?;
        self.turns[at].used = self.launches;
        for piece in 0..self.turns[at].pieces.len() {
            let turn = &self.turns[at];
            let Piece { steps, exec } = &turn.pieces[piece];
            // The second piece is made ready while the device is at the first.
            let set = turn.update(exec, changed, &self.steps, run);
            if let Err(error) = set.and_then(|()| exec.launch(&lane.stream)) {
                // Some launches may have other arguments than it says.
                self.turns.remove(at);
                return if piece > 0 { Ok(Launched::Torn(error)) } else { Err(error) };
            }
            if let Some(midway) = midway.take_if(|midway| midway.after <= steps.end) {
                (midway.act)(&turn.addresses);
            }
        }
        Ok(self.take_away(plan, run, lane).map_or_else(Launched::Torn, |()| Launched::All))
    }

    /// Addresses as the graph sees them.
    fn inside(&self, addresses: &[u64]) -> Vec<u64> {
        let mut out = addresses.to_vec();
        for &(storage, at) in self.own.data.iter().chain(&self.own.staged) {
            out[storage as usize] = self.own.base() + at as u64;
        }
        out
    }

    /// Chooses fixed operands to be copied from now on: those that lie elsewhere than in most captures. True if there are
    /// any.
    fn settle(&mut self, plan: &Plan, shape: &Shape, addresses: &[u64]) -> bool {
        let before = self.own.staged.len();
        for (s, storage) in plan.storages.iter().enumerate().filter(|(s, _)| shape.fixed[*s]) {
            let elsewhere = self.turns.iter().filter(|turn| turn.addresses[s] != addresses[s]).count();
            // What is updated in place stays where it is, as a rule.
            let copied = storage.reuse.is_none() && !matches!(storage.place, Place::Arena(_));
            let known = self.own.staged.iter().any(|(t, _)| *t == s as u32);
            if copied && !known && storage.bytes <= STAGED && elsewhere * 2 > self.turns.len() {
                self.own.staged.push((s as u32, 0));
            }
        }
        self.own.staged.len() > before
    }

    /// Brings small data and copied operands before the graph runs.
    fn bring(&self, plan: &Plan, run: &Bound, lane: &Lane) -> Result<()> {
        let mut packed = vec![0u8; self.own.data_bytes];
        let inside = self.inside(run.addresses);
        for ready in &self.steps.list {
            let Ready::Data { slot, out, bytes } = ready else { continue };
            let Slot::Data(data) = &run.slots[*slot as usize] else { continue };
            let data = &data[..data.len().min(*bytes)];
            match self.own.data.iter().find(|(storage, _)| storage == out) {
                Some((_, at)) => packed[*at..*at + data.len()].copy_from_slice(data),
                // A result that is copied is data where the graph has it, and is taken away with the others.
                // SAFETY: the storage has that many bytes, and the run or the graph keeps it.
                None => unsafe { lane.send(&lane.stream, inside[*out as usize], data)? },
            }
        }
        if !packed.is_empty() {
            // SAFETY: the graph's own memory begins with room for all small data.
            unsafe { lane.send(&lane.stream, self.own.base(), &packed)? };
        }
        for &(s, at) in &self.own.staged {
            let storage = &plan.storages[s as usize];
            if matches!(storage.place, Place::Input(_)) {
                let to = self.own.base() + at as u64;
                // SAFETY: both sides have that many bytes, and the run keeps them.
                unsafe { lane.stream.copy(to, run.addresses[s as usize], storage.bytes)? };
            }
        }
        Ok(())
    }

    /// Takes copied results to where they belong.
    fn take_away(&self, plan: &Plan, run: &Bound, lane: &Lane) -> Result<()> {
        for &(s, at) in &self.own.staged {
            let storage = &plan.storages[s as usize];
            if storage.place == Place::Out {
                let from = self.own.base() + at as u64;
                // SAFETY: both sides have that many bytes, and the run keeps them.
                unsafe { lane.stream.copy(run.addresses[s as usize], from, storage.bytes)? };
            }
        }
        Ok(())
    }
}

impl Turn {
    /// True if the capture can be made to fit a run.
    fn fits(&self, shape: &Shape, addresses: &[u64], run: &Bound) -> bool {
        let fixed = shape.fixed.iter().zip(addresses.iter().zip(&self.addresses));
        self.scratch == run.scratch
            && self.workspace == run.workspace
            && fixed.into_iter().all(|(fixed, (a, b))| !fixed || a == b)
            && shape.slots.iter().all(|&slot| self.slots.get(slot as usize) == run.slots.get(slot as usize))
    }

    /// Takes over the addresses and slots of a run; says what is other than before.
    fn adopt(&mut self, addresses: &[u64], run: &Bound) -> Changed {
        let moved: Vec<bool> = addresses.iter().zip(&self.addresses).map(|(a, b)| a != b).collect();
        let slots = self.slots != run.slots;
        if !slots && !moved.contains(&true) {
            return Changed::default();
        }
        self.addresses.copy_from_slice(addresses);
        self.slots.clear();
        self.slots.extend_from_slice(run.slots);
        Changed { moved, slots }
    }

    /// The number by which all ranks of a gang know it; 0 outside gangs.
    fn number(&self) -> u32 {
        self.together.as_ref().map_or(0, |(number, _)| *number)
    }

    /// Gives the launches of a piece their new arguments.
    fn update(&self, exec: &Exec, changed: &Changed, steps: &Steps, run: &Bound) -> Result<()> {
        if changed.moved.is_empty() {
            return Ok(());
        }
        for node in &exec.nodes {
            let launch = node.launch(steps);
            let moved = || launch.storages.iter().any(|s| changed.moved[*s as usize]);
            if (changed.slots && launch.slotted) || moved() {
                let scratch = if node.packs { run.workspace } else { run.scratch };
                exec.set(node, launch, &Bound { addresses: &self.addresses, scratch, ..*run })?;
            }
        }
        Ok(())
    }
}
