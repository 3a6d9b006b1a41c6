//! Plans that come back, captured as CUDA graphs: one launch for all of a plan, changed in place where addresses or
//! slots have changed.
//!
//! Kernels of ours can be given other arguments. What cannot is fixed: operands of cuBLASLt, and copies. When the memory
//! of a fixed operand keeps changing, the graph gets memory of its own for it, and the bytes are copied before or after;
//! otherwise the graph is captured again.

use super::driver::{Stream, check, log_drop};
use super::lane::Lane;
use super::memory::{Block, GRAIN};
use super::steps::{Bound, Launch, Ready, Steps};
use cudarc::driver::{result, sys};
use gt_compiler::{Place, Plan};
use gt_ir::{Error, Result, Slot};
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// Fixed operands up to this size are copied rather than captured anew.
const STAGED: usize = 32 << 20;
/// How often the memory of a fixed operand changes before it is copied.
const PATIENCE: u8 = 2;
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
    exec: Option<Exec>,
    arena: Option<Arc<Block>>,
    /// Memory of its own: small data, and operands that are copied.
    own: Own,
    /// As of the last launch.
    addresses: Vec<u64>,
    slots: Vec<Slot>,
    scratch: u64,
    workspace: u64,
    /// Per storage: how often a fixed operand's memory has changed.
    changes: Vec<u8>,
    captures: u32,
    launches: u32,
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

/// What the driver runs.
struct Exec {
    graph: sys::CUgraph,
    exec: sys::CUgraphExec,
    nodes: Vec<Node>,
}

// SAFETY: the handles may be used from any thread whose context is current, one at a time.
unsafe impl Send for Exec {}

/// A launch of ours in a graph.
struct Node {
    node: sys::CUgraphNode,
    step: u32,
    /// Which of the step's launches.
    at: u32,
    /// What it calls scratch memory is the workspace.
    packs: bool,
}

/// Which storages cannot be changed in a captured graph, with how many bytes; and whether slots can.
fn fixed(plan: &Plan, steps: &Steps) -> (Vec<bool>, bool) {
    let mut out = vec![false; plan.storages.len()];
    let mut slotted = false;
    for (i, ready) in steps.list.iter().enumerate() {
        match ready {
            Ready::Product { prepared, .. } => {
                plan.steps[i].reads(|s| out[s as usize] = true);
                plan.steps[i].writes(|s| out[s as usize] = true);
                slotted |= prepared.moves();
            }
            Ready::Copy { from, to, .. } => {
                out[*from as usize] = true;
                out[*to as usize] = true;
            }
            Ready::Nothing | Ready::Kernels { .. } | Ready::Data { .. } | Ready::Check { .. } => {}
        }
    }
    (out, slotted)
}

/// What decides how a storage may be treated.
pub struct Shape {
    fixed: Vec<bool>,
    /// Slots move operands of cuBLASLt.
    slotted: bool,
    /// False if small data is written over an input.
    graphable: bool,
}

impl Shape {
    pub fn new(plan: &Plan, steps: &Steps) -> Shape {
        let (fixed, slotted) = fixed(plan, steps);
        let over_input = |ready: &Ready| match ready {
            Ready::Data { out, .. } => {
                let storage = &plan.storages[*out as usize];
                storage.reuse.is_some() || matches!(storage.place, Place::Input(_))
            }
            _ => false,
        };
        let graphable = !steps.list.iter().any(over_input) && steps.launches >= 3;
        Shape { fixed, slotted, graphable }
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
        let block = Arc::new(lane.take(bytes)?);
        self.arenas.push(block.clone());
        Ok(Some(block))
    }

    /// Launches a plan's graph, made or changed as needed. False if graphs do not suit this plan.
    #[allow(clippy::too_many_arguments)]
    pub fn launch(
        &mut self,
        id: u64,
        alive: &Arc<()>,
        plan: &Plan,
        shape: &Shape,
        steps: &Arc<Steps>,
        arena: Option<Arc<Block>>,
        run: &Bound,
        lane: &Arc<Lane>,
    ) -> Result<bool> {
        self.clock += 1;
        if !self.list.contains_key(&id) {
            self.make_room();
            let graph = Graph::new(alive, plan, steps, arena, lane)?;
            self.list.insert(id, graph);
        }
        let Some(graph) = self.list.get_mut(&id) else { return Ok(false) };
        graph.used = self.clock;
        graph.launch(plan, shape, run, lane)
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
            self.block = Some(lane.take(bytes)?);
        }
        Ok(())
    }

    fn base(&self) -> u64 {
        self.block.as_ref().map_or(0, Block::address)
    }
}

impl Graph {
    fn new(
        alive: &Arc<()>,
        plan: &Plan,
        steps: &Arc<Steps>,
        arena: Option<Arc<Block>>,
        lane: &Arc<Lane>,
    ) -> Result<Graph> {
        let mut own = Own::new(plan, steps);
        own.allocate(lane, plan)?;
        Ok(Graph {
            alive: Arc::downgrade(alive),
            used: 0,
            steps: steps.clone(),
            exec: None,
            arena,
            own,
            addresses: Vec::new(),
            slots: Vec::new(),
            scratch: 0,
            workspace: 0,
            changes: vec![0; plan.storages.len()],
            captures: 0,
            launches: 0,
        })
    }

    fn launch(&mut self, plan: &Plan, shape: &Shape, run: &Bound, lane: &Arc<Lane>) -> Result<bool> {
        // Captured again and again, it costs more than it saves.
        if self.captures > 8 + self.launches / 8 {
            return Ok(false);
        }
        self.launches += 1;
        let mut addresses = self.inside(run.addresses);
        if self.exec.is_some() {
            let moved = self.moved(shape, &addresses, run);
            if moved.hold {
                let changed = self.update(&moved, &addresses, run);
                changed.inspect_err(|_| self.exec = None)?;
            } else {
                self.exec = None;
                if self.note(plan, &moved.fixed) {
                    // The old memory goes back in order, behind what still uses it.
                    self.own.allocate(lane, plan)?;
                    addresses = self.inside(run.addresses);
                }
            }
        }
        if self.exec.is_none() {
            self.captures += 1;
            let inside = Bound { addresses: &addresses, ..*run };
            self.exec = Some(Exec::capture(&self.steps, &inside, lane)?);
        }
        (self.addresses, self.scratch, self.workspace) = (addresses, run.scratch, run.workspace);
        self.slots.clear();
        self.slots.extend_from_slice(run.slots);
        self.bring(plan, run, lane)?;
        if let Some(exec) = &self.exec {
            exec.launch(&lane.stream)?;
        }
        self.take_away(plan, run, lane)?;
        Ok(true)
    }

    /// Addresses as the graph sees them.
    fn inside(&self, addresses: &[u64]) -> Vec<u64> {
        let mut out = addresses.to_vec();
        for &(storage, at) in self.own.data.iter().chain(&self.own.staged) {
            out[storage as usize] = self.own.base() + at as u64;
        }
        out
    }

    /// What has changed since the last launch.
    fn moved(&self, shape: &Shape, addresses: &[u64], run: &Bound) -> Moved {
        let storages: Vec<bool> = addresses.iter().zip(&self.addresses).map(|(a, b)| a != b).collect();
        let fixed: Vec<u32> = (0..storages.len() as u32)
            .filter(|s| storages[*s as usize] && shape.fixed[*s as usize])
            .collect();
        let slots = self.slots != run.slots;
        let rooms = self.scratch != run.scratch || self.workspace != run.workspace;
        let hold = fixed.is_empty() && !rooms && !(slots && shape.slotted);
        Moved { any: storages.contains(&true) || slots, storages, fixed, slots, hold }
    }

    /// Counts changes of fixed operands; true if some are copied from now on.
    fn note(&mut self, plan: &Plan, fixed: &[u32]) -> bool {
        let before = self.own.staged.len();
        for &s in fixed {
            let storage = &plan.storages[s as usize];
            self.changes[s as usize] = self.changes[s as usize].saturating_add(1);
            // What is updated in place stays where it is, as a rule.
            let copied = storage.reuse.is_none() && !matches!(storage.place, Place::Arena(_));
            let known = self.own.staged.iter().any(|(t, _)| *t == s);
            if copied && !known && storage.bytes <= STAGED && self.changes[s as usize] >= PATIENCE {
                self.own.staged.push((s, 0));
            }
        }
        self.own.staged.len() > before
    }

    /// Gives launches their new arguments.
    fn update(&self, moved: &Moved, addresses: &[u64], run: &Bound) -> Result<()> {
        let Some(exec) = self.exec.as_ref().filter(|_| moved.any) else { return Ok(()) };
        for node in &exec.nodes {
            let launch = node.launch(&self.steps);
            let touched = launch.storages.iter().any(|s| moved.storages[*s as usize]);
            if touched || (moved.slots && launch.slotted) {
                let scratch = if node.packs { run.workspace } else { run.scratch };
                exec.set(node, launch, &Bound { addresses, scratch, ..*run })?;
            }
        }
        Ok(())
    }

    /// Brings small data and copied operands before the graph runs.
    fn bring(&self, plan: &Plan, run: &Bound, lane: &Lane) -> Result<()> {
        let mut packed = vec![0u8; self.own.data_bytes];
        for ready in &self.steps.list {
            let Ready::Data { slot, out, bytes } = ready else { continue };
            let Slot::Data(data) = &run.slots[*slot as usize] else { continue };
            let data = &data[..data.len().min(*bytes)];
            match self.own.data.iter().find(|(storage, _)| storage == out) {
                Some((_, at)) => packed[*at..*at + data.len()].copy_from_slice(data),
                // SAFETY: the storage has that many bytes, and the run keeps it.
                None => unsafe { lane.send(&lane.stream, run.addresses[*out as usize], data)? },
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

/// What has changed between two launches.
struct Moved {
    storages: Vec<bool>,
    /// Operands that cannot be changed.
    fixed: Vec<u32>,
    slots: bool,
    any: bool,
    /// The graph as it is can be made to fit.
    hold: bool,
}

impl Node {
    fn launch<'a>(&self, steps: &'a Steps) -> &'a Launch {
        match &steps.list[self.step as usize] {
            Ready::Kernels { list, .. } | Ready::Check { list, .. } => &list[self.at as usize],
            Ready::Product { before, .. } => &before[self.at as usize],
            Ready::Nothing | Ready::Copy { .. } | Ready::Data { .. } => {
                unreachable!("only launches of ours are nodes")
            }
        }
    }
}

impl Exec {
    /// Captures all steps; nothing runs.
    fn capture(steps: &Steps, run: &Bound, lane: &Lane) -> Result<Exec> {
        let stream = &lane.stream;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is no default one and captures nothing yet; the capture ends below in any case.
        check("capture", unsafe { result::stream::begin_capture(stream.raw(), mode) })?;
        let mut nodes = Vec::with_capacity(steps.launches);
        let put = put_all(steps, run, lane, &mut nodes);
        // SAFETY: the capture was begun above.
        let graph = check("end of capture", unsafe { result::stream::end_capture(stream.raw()) });
        put?;
        let graph = graph?;
        // SAFETY: the graph is whole; it is destroyed with the exec.
        unsafe {
            let flags: sys::CUgraphInstantiate_flags = std::mem::zeroed();
            match check("instantiate", result::graph::instantiate(graph, flags)) {
                Ok(exec) => Ok(Exec { graph, exec, nodes }),
                Err(error) => {
                    let _ = result::graph::destroy(graph);
                    Err(error)
                }
            }
        }
    }

    fn launch(&self, stream: &Stream) -> Result<()> {
        // SAFETY: the lane keeps the memory, and the steps the kernels, that the nodes name.
        check("launch a graph", unsafe { result::graph::launch(self.exec, stream.raw()) })
    }

    /// Gives a launch other arguments, from the next time on.
    fn set(&self, node: &Node, launch: &Launch, run: &Bound) -> Result<()> {
        let mut filled = launch.fill(run);
        let mut args = filled.pointers();
        let params = sys::CUDA_KERNEL_NODE_PARAMS {
            func: launch.kernel.function.0,
            gridDimX: launch.grid[0],
            gridDimY: launch.grid[1],
            gridDimZ: launch.grid[2],
            blockDimX: launch.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: launch.shared,
            kernelParams: args.as_mut_ptr(),
            extra: std::ptr::null_mut(),
            kern: std::ptr::null_mut(),
            ctx: std::ptr::null_mut(),
        };
        // SAFETY: the node is this launch's, and the driver copies the arguments.
        let done = unsafe { sys::cuGraphExecKernelNodeSetParams_v2(self.exec, node.node, &params) };
        check("change a graph", done.result())
    }
}

/// Puts all steps into the graph being captured, and notes the nodes of our launches.
fn put_all(steps: &Steps, run: &Bound, lane: &Lane, nodes: &mut Vec<Node>) -> Result<()> {
    let stream = &lane.stream;
    for (i, ready) in steps.list.iter().enumerate() {
        let mut launches = |list: &[Launch], scratch: u64, packs: bool| {
            let run = Bound { scratch, ..*run };
            for (at, launch) in list.iter().enumerate() {
                launch.enqueue(&run, stream)?;
                nodes.push(Node { node: last_node(stream)?, step: i as u32, at: at as u32, packs });
            }
            Ok::<(), Error>(())
        };
        match ready {
            Ready::Kernels { list, zeroed } => {
                if *zeroed > 0 {
                    // SAFETY: the lane's scratch memory is at least so large.
                    unsafe { stream.zero(run.scratch, *zeroed)? };
                }
                launches(list, run.scratch, false)?;
            }
            Ready::Product { before, prepared } => {
                launches(before, run.workspace, true)?;
                prepared.enqueue(stream.raw(), run.addresses, run.slots, run.workspace)?;
            }
            Ready::Copy { .. } => steps.enqueue(i, run, lane)?,
            // Brought before; known to be right.
            Ready::Nothing | Ready::Data { .. } | Ready::Check { .. } => {}
        }
    }
    Ok(())
}

/// The node on which the next work on a capturing stream would wait.
fn last_node(stream: &Stream) -> Result<sys::CUgraphNode> {
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let (mut nodes, mut edges, mut count) = (std::ptr::null(), std::ptr::null(), 0);
    let (id, graph) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the driver's array is read before the stream is used again; what is not asked for is null.
    unsafe {
        let found = sys::cuStreamGetCaptureInfo_v3(
            stream.raw(),
            &mut status,
            id,
            graph,
            &mut nodes,
            &mut edges,
            &mut count,
        );
        check("capture", found.result())?;
        if count != 1 {
            return Err(Error::Runtime(format!("cuda: a captured step ends in {count} nodes, expected 1")));
        }
        Ok(*nodes)
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        // SAFETY: both were made in `capture` and are destroyed once; the driver lets a running graph end.
        let done = unsafe {
            result::graph::exec_destroy(self.exec).and_then(|()| result::graph::destroy(self.graph))
        };
        if let Err(error) = done {
            log_drop("destroy a graph", error);
        }
    }
}
