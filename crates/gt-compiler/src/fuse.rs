//! Orders the graph into steps. Elementwise nodes and reductions of rows gather in groups; a group becomes one kernel.
//!
//! Open groups read only what has been written by earlier steps. That makes any two of one shape safe to merge, and
//! a group is emitted at the latest when somebody reads one of its values in another way than element by element or
//! row by row.

use crate::CompileOptions;
use crate::graph::{Graph, Ref, Use, WHOLE, What};
use crate::map::Map;
use crate::plan::*;
use gt_ir::{Shape, Structure};
use smallvec::SmallVec;

/// Steps and storages before places are given.
pub struct Draft {
    pub steps: Vec<Step>,
    pub storages: Vec<Storage>,
    pub outs: Vec<u32>,
}

/// More members than this and a group is closed.
pub const MAX_MEMBERS: usize = 48;
/// More loads than this and a group is closed.
pub const MAX_READS: usize = 20;
/// Numbers that live on are computed at once where values of at least so many bytes follow (a value counts as 16 KiB at
/// least), in groups of at most this size, and only so many of them.
const MUCH: usize = 768 << 10;
const SMALL: usize = 256 << 10;
const FEW: usize = 8;

/// Where a node's value is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    /// Not computed, or a number.
    Nowhere,
    Open(u32),
    Mem(u32),
    /// Not kept: whoever reads it computes it again from what is in memory.
    Again,
}

pub struct Group {
    pub shape: Shape,
    /// Leading dimensions that number the rows, once a row is reduced.
    pub rows: Option<usize>,
    pub members: Vec<u32>,
    /// Nodes outside that members read.
    pub reads: SmallVec<[u32; 8]>,
}

/// A member of a group that is written into part of a storage.
pub struct Into {
    pub node: u32,
    pub storage: u32,
    pub map: Map,
}

pub struct Schedule<'a> {
    pub graph: &'a Graph,
    pub structure: &'a Structure,
    pub draft: Draft,
    pub at: Vec<At>,
    /// Members of groups with one value per row.
    pub per_row: Vec<bool>,
    /// References to each node not met yet.
    pub left: Vec<u32>,
    pub groups: Vec<Group>,
    pub open: Vec<u32>,
    /// No step from here on can fail.
    pub late: bool,
    pub options: CompileOptions,
    pub reused: Vec<bool>,
    /// Nodes that are done.
    pub done: Vec<bool>,
    /// The nodes that read each node; a live-out counts as one that there is not.
    pub readers: Vec<SmallVec<[u32; 2]>>,
    /// Values that have to be kept.
    pub kept: Vec<bool>,
    /// Values that are computed again and hold on to their operands until then.
    pub held: Vec<bool>,
    /// Bytes of the values that follow each node.
    pub follow: Vec<usize>,
    /// How many numbers were computed at once.
    pub parted: usize,
    /// The instruction whose turn it is.
    pub now: u32,
}

/// In place of the reader where a value lives on.
pub const OUT: u32 = u32::MAX;

/// Bytes of the live values behind each node.
fn follow(graph: &Graph) -> Vec<usize> {
    let mut out = vec![0; graph.nodes.len()];
    let mut sum = 0;
    for (i, node) in graph.nodes.iter().enumerate().rev() {
        out[i] = sum;
        sum += if node.live { node.ty.bytes().max(16 << 10) } else { 0 };
    }
    out
}

/// Who reads each live node.
fn readers(graph: &Graph) -> Vec<SmallVec<[u32; 2]>> {
    let mut readers = vec![SmallVec::new(); graph.nodes.len()];
    for (i, node) in graph.nodes.iter().enumerate().filter(|(_, n)| n.live) {
        for arg in &node.args {
            if let Use::Val(r) = arg {
                readers[r.node as usize].push(i as u32);
            }
        }
    }
    graph.outs.iter().for_each(|&out| readers[out as usize].push(OUT));
    readers
}

pub fn schedule(
    graph: &Graph,
    structure: &Structure,
    origins: Option<&[u32]>,
    options: CompileOptions,
) -> Draft {
    let mut s = Schedule {
        graph,
        structure,
        draft: Draft {
            steps: Vec::with_capacity(structure.instrs.len()),
            storages: Vec::with_capacity(graph.nodes.len()),
            outs: Vec::with_capacity(graph.outs.len()),
        },
        at: vec![At::Nowhere; graph.nodes.len()],
        per_row: vec![false; graph.nodes.len()],
        left: graph.nodes.iter().map(|n| n.uses).collect(),
        groups: Vec::new(),
        open: Vec::new(),
        late: false,
        options,
        reused: vec![false; structure.inputs.len()],
        done: vec![false; graph.nodes.len()],
        readers: readers(graph),
        kept: vec![false; graph.nodes.len()],
        held: vec![false; graph.nodes.len()],
        follow: follow(graph),
        parted: 0,
        now: 0,
    };
    for (i, input) in structure.inputs.iter().enumerate() {
        let storage = Storage { bytes: input.ty.bytes(), place: Place::Input(i as u32), reuse: None };
        s.draft.storages.push(storage);
        s.at[i] = At::Mem(i as u32);
    }
    let origin = |i: usize| {
        let instr = graph.nodes[i].instr;
        origins.map_or(instr, |o| o.get(instr as usize).copied().unwrap_or(instr))
    };
    let mut at = 0;
    let checks = graph.nodes.iter().any(|n| n.live && n.early);
    if checks {
        for (i, node) in graph.nodes.iter().enumerate() {
            if node.live && node.early {
                s.turn_to(origin(i), &mut at);
                s.node(i as u32);
            }
        }
    }
    s.late = true;
    for (i, node) in graph.nodes.iter().enumerate() {
        if node.live && !node.early && !s.done[i] {
            s.turn_to(origin(i), &mut at);
            s.node(i as u32);
            s.part_with(i as u32);
        }
    }
    while let Some(&g) = s.open.first() {
        s.emit(g);
    }
    for &out in &graph.outs {
        let storage = s.mem(out);
        s.draft.outs.push(storage);
    }
    s.draft
}

impl Schedule<'_> {
    /// Where instructions stay apart, ends the groups of the last one.
    fn turn_to(&mut self, instr: u32, at: &mut u32) {
        if self.options.apart && std::mem::replace(at, instr) != instr {
            while let Some(&g) = self.open.first() {
                self.emit(g);
            }
        }
    }

    pub fn step(&mut self, instr: u32, work: Work) {
        self.draft.steps.push(Step { instr, fused: Vec::new(), work });
    }

    /// A step that does the work of several nodes.
    fn step_of(&mut self, instr: u32, nodes: &[u32], work: Work) {
        let mut fused: Vec<u32> = nodes.iter().map(|n| self.graph.nodes[*n as usize].instr).collect();
        fused.dedup();
        fused.retain(|i| *i != instr);
        self.draft.steps.push(Step { instr, fused, work });
    }

    pub fn storage(&mut self, bytes: usize) -> u32 {
        self.draft.storages.push(Storage { bytes, place: Place::Arena(0), reuse: None });
        self.draft.storages.len() as u32 - 1
    }

    /// A storage for a node's value, which is there from now on.
    pub fn made(&mut self, node: u32) -> u32 {
        let storage = self.storage(self.graph.nodes[node as usize].ty.bytes());
        self.at[node as usize] = At::Mem(storage);
        storage
    }

    /// Memory of its own for a node, as a dense tensor.
    pub fn made_tensor(&mut self, node: u32) -> Tensor {
        let ty = &self.graph.nodes[node as usize].ty;
        let (dtype, shape) = (ty.dtype, ty.shape.clone());
        Tensor { storage: self.made(node), dtype, map: Map::dense(&shape), shape }
    }

    pub fn met(&mut self, args: &[Use]) {
        for arg in args {
            if let Use::Val(r) = arg {
                self.meet(r.node);
            }
        }
    }

    /// One reference less to a node. A value that is computed again lets go of its operands with its last reader.
    fn meet(&mut self, n: u32) {
        self.left[n as usize] -= 1;
        if self.left[n as usize] == 0 && self.held[n as usize] {
            self.held[n as usize] = false;
            let graph = self.graph;
            graph.nodes[n as usize].args.iter().filter_map(Use::node).for_each(|a| self.meet(a));
        }
    }

    /// Computes a number at once that only lives on: whoever looks at it, as at a loss, need not wait for what comes
    /// after. Where little comes after it nothing is gained, and many such numbers are better computed together.
    fn part_with(&mut self, n: u32) {
        let graph = self.graph;
        let At::Open(g) = self.at[n as usize] else { return };
        let number = graph.nodes[n as usize].ty.shape.numel() <= 16 && self.left[n as usize] == 1;
        let space = self.groups[g as usize].shape.numel();
        let more = self.follow[n as usize] >= MUCH;
        if number && space <= SMALL && self.parted < FEW && more && graph.outs.contains(&n) {
            self.parted += 1;
            self.emit(g);
        }
    }

    fn node(&mut self, n: u32) {
        let graph = self.graph;
        let node = &graph.nodes[n as usize];
        self.done[n as usize] = true;
        self.now = node.instr;
        match &node.what {
            What::Input | What::Full | What::Iota => {}
            What::Elementwise(_) => self.elementwise(n),
            What::Reduce(kind, dims) => self.reduce(n, *kind, dims),
            What::Put(map) => self.put(n, *map),
            What::Concat(dim) => self.concat(n, *dim),
            What::CheckIndex { size, wrap } => {
                let Use::Val(r) = node.args[0] else { return };
                let index = self.packed(r);
                self.met(&node.args);
                self.step(node.instr, Work::CheckIndex { index, size: *size, wrap: *wrap });
            }
            What::CheckNonzero => {
                let divisor = match node.args[0] {
                    Use::Val(r) => Operand::Tensor(self.packed(r)),
                    Use::Num(x) => Operand::Num(x),
                };
                self.met(&node.args);
                self.step(node.instr, Work::CheckNonzero { divisor, dtype: node.ty.dtype });
            }
            What::Other => self.other(n),
            What::Product(product) => self.product(n, product),
            // The step of its node has made it.
            What::Part => self.met(&node.args),
        }
    }

    // Groups.

    /// How a member of an open group would be read by a node of `shape`: its group, and whether that node has one value
    /// per row of it. `None` if it has to be in memory first.
    fn inside(&self, r: Ref, shape: &Shape) -> Option<(u32, bool)> {
        let At::Open(g) = self.at[r.node as usize] else { return None };
        let group = &self.groups[g as usize];
        if !self.per_row[r.node as usize] {
            let same = r.map == WHOLE && self.graph.nodes[r.node as usize].ty.shape == *shape;
            return (same && group.shape == *shape).then_some((g, false));
        }
        let rows = group.rows?;
        let seen = self.graph.shape(r);
        let map = self.graph.map(r);
        if *shape == group.shape {
            let map = map.expanded(seen, shape);
            return (map == row_map(shape, rows, &map)).then_some((g, false));
        }
        let count: usize = group.shape[..rows].iter().product();
        (shape.numel() == count && seen.numel() == count && map.is_whole(seen)).then_some((g, true))
    }

    fn elementwise(&mut self, n: u32) {
        self.gather_in(n);
        self.met(&self.graph.nodes[n as usize].args);
    }

    /// Makes an elementwise node a member of a group.
    pub fn gather_in(&mut self, n: u32) {
        let graph = self.graph;
        let node = &graph.nodes[n as usize];
        self.revive(&node.args);
        if let Some(g) = self.follows(n) {
            return self.join(g, n, false);
        }
        // From here on what is not in the same group has to be in memory.
        let reads: SmallVec<[u32; 3]> = node.args.iter().filter_map(Use::node).collect();
        for &read in &reads {
            if let At::Open(_) = self.at[read as usize] {
                self.kept[read as usize] = true;
            }
        }
        let shape = &node.ty.shape;
        let mut homes: SmallVec<[u32; 3]> = SmallVec::new();
        let mut per_row = false;
        for arg in &node.args {
            let Use::Val(r) = arg else { continue };
            if let At::Open(g) = self.at[r.node as usize] {
                match self.inside(*r, shape) {
                    Some((_, row)) if homes.is_empty() => {
                        per_row = row;
                        homes.push(g);
                    }
                    Some((_, row)) if row == per_row => {
                        if !homes.contains(&g) {
                            homes.push(g);
                        }
                    }
                    // Values per row stay where their rows are.
                    Some((_, true)) => {
                        std::mem::take(&mut homes).into_iter().for_each(|h| self.emit(h));
                        per_row = true;
                        homes.push(g);
                    }
                    _ => {
                        self.emit(g);
                        homes.retain(|h| *h != g);
                    }
                }
            }
        }
        self.unite(&mut homes, per_row);
        if per_row && !homes.is_empty() && !self.reads_by_row(n, homes[0]) {
            homes.drain(..).for_each(|g| self.emit(g));
        }
        let size: (usize, usize) = homes.iter().fold((1, node.args.len()), |(members, reads), &g| {
            let group = &self.groups[g as usize];
            (members + group.members.len(), reads + group.reads.len())
        });
        if size.0 > MAX_MEMBERS || size.1 > MAX_READS {
            homes.drain(..).for_each(|g| self.emit(g));
        }
        if homes.is_empty() {
            per_row = false;
            if self.options.fuse {
                homes.extend(self.neighbour(shape, &reads));
            }
        }
        let home = match homes.first() {
            Some(&g) => g,
            None => self.open(shape.clone()),
        };
        for &other in homes.iter().skip(1) {
            self.merge(home, other);
        }
        for &read in &reads {
            if self.at[read as usize] == At::Open(home) {
                self.kept[read as usize] = false;
            }
        }
        self.join(home, n, per_row);
        if !self.options.fuse {
            self.emit(home);
        }
    }

    /// The group whose members alone a node reads, element by element in their order, though in another shape.
    fn follows(&self, n: u32) -> Option<u32> {
        if !self.options.fuse {
            return None;
        }
        let node = &self.graph.nodes[n as usize];
        let mut home = None;
        for arg in &node.args {
            let Use::Val(r) = arg else { continue };
            if let What::Full = self.graph.nodes[r.node as usize].what {
                continue;
            }
            let At::Open(g) = self.at[r.node as usize] else { return None };
            let seen = self.graph.shape(*r);
            let plain = !self.per_row[r.node as usize] && seen.numel() == node.ty.shape.numel();
            let whole = r.map == WHOLE || self.graph.maps[r.map as usize].0.is_whole(seen);
            let dense = seen.numel() == self.graph.nodes[r.node as usize].ty.shape.numel();
            if !plain || !whole || !dense || home.is_some_and(|h| h != g) {
                return None;
            }
            home = Some(g);
        }
        home.filter(|&g| {
            let group = &self.groups[g as usize];
            let fits = group.shape.numel() == node.ty.shape.numel() && group.members.len() < MAX_MEMBERS;
            fits && group.shape != node.ty.shape
        })
    }

    /// Computes operands again that were not kept.
    pub fn revive(&mut self, args: &[Use]) {
        let reads: SmallVec<[u32; 3]> = args.iter().filter_map(Use::node).collect();
        for &read in &reads {
            if self.at[read as usize] == At::Again {
                self.gather_in(read);
            }
        }
        // One may have had to make way for another.
        while let Some(read) = reads.iter().copied().find(|&r| self.at[r as usize] == At::Again) {
            self.mem(read);
        }
    }

    /// Emits all groups that cannot be one with the first.
    fn unite(&mut self, homes: &mut SmallVec<[u32; 3]>, per_row: bool) {
        let Some(&first) = homes.first() else { return };
        let shape = self.groups[first as usize].shape.clone();
        let mut rows = self.groups[first as usize].rows;
        let mut apart: SmallVec<[u32; 3]> = SmallVec::new();
        homes.retain(|g| {
            let group = &self.groups[*g as usize];
            let fits = group.shape == shape && (rows.is_none() || group.rows.is_none() || rows == group.rows);
            debug_assert!(!per_row || group.rows.is_some(), "values per row are members of groups with rows");
            if fits {
                rows = rows.or(group.rows);
            } else {
                apart.push(*g);
            }
            fits
        });
        apart.into_iter().for_each(|g| self.emit(g));
    }

    /// True if all that a node with one value per row reads from memory can be read row by row.
    fn reads_by_row(&self, n: u32, g: u32) -> bool {
        let node = &self.graph.nodes[n as usize];
        let group = &self.groups[g as usize];
        let Some(rows) = group.rows else { return false };
        node.args.iter().all(|arg| match arg {
            Use::Val(r) if self.at[r.node as usize] != At::Open(g) => {
                self.by_row(*r, &node.ty.shape, &group.shape, rows).is_some()
            }
            _ => true,
        })
    }

    /// The map of a value seen in `shape`, which has an element per row, over the whole iteration space.
    pub fn by_row(&self, r: Ref, shape: &Shape, space: &Shape, rows: usize) -> Option<Map> {
        let seen = self.graph.shape(r);
        let map = self.graph.map(r).expanded(seen, shape);
        let to: Shape = space[..rows].into();
        let mut map = map.reshaped(shape, &to)?;
        map.strides.resize(space.len(), 0);
        Some(map)
    }

    pub fn open(&mut self, shape: Shape) -> u32 {
        self.groups.push(Group { shape, rows: None, members: Vec::new(), reads: SmallVec::new() });
        let g = self.groups.len() as u32 - 1;
        self.open.push(g);
        g
    }

    pub fn join(&mut self, g: u32, n: u32, per_row: bool) {
        let node = &self.graph.nodes[n as usize];
        let group = &mut self.groups[g as usize];
        group.members.push(n);
        for read in node.args.iter().filter_map(Use::node) {
            if self.at[read as usize] != At::Open(g) && !group.reads.contains(&read) {
                group.reads.push(read);
            }
        }
        self.at[n as usize] = At::Open(g);
        self.per_row[n as usize] = per_row;
    }

    /// An open group of the same shape that reads one of the same values.
    pub fn neighbour(&self, shape: &Shape, reads: &[u32]) -> Option<u32> {
        self.open.iter().rev().take(4).copied().find(|&g| {
            let group = &self.groups[g as usize];
            group.shape == *shape
                && group.members.len() < MAX_MEMBERS
                && group.reads.len() + reads.len() <= MAX_READS
                && reads.iter().any(|r| group.reads.contains(r))
        })
    }

    fn merge(&mut self, home: u32, other: u32) {
        let members = std::mem::take(&mut self.groups[other as usize].members);
        let reads = std::mem::take(&mut self.groups[other as usize].reads);
        let rows = self.groups[other as usize].rows;
        for &m in &members {
            self.at[m as usize] = At::Open(home);
        }
        let group = &mut self.groups[home as usize];
        group.rows = group.rows.or(rows);
        group.members.extend(members);
        for read in reads {
            if !group.reads.contains(&read) {
                group.reads.push(read);
            }
        }
        self.open.retain(|&g| g != other);
    }

    /// Closes a group: its kernel becomes a step, if anyone needs what it computes.
    pub fn emit(&mut self, g: u32) {
        self.close(g, None, &[]);
    }

    /// The open group of which a reference shows a whole member as it is.
    pub fn open_member(&self, r: Ref) -> Option<u32> {
        match self.at[r.node as usize] {
            At::Open(g) if r.map == WHOLE && !self.per_row[r.node as usize] => {
                let same = self.groups[g as usize].shape == self.graph.nodes[r.node as usize].ty.shape;
                same.then_some(g)
            }
            _ => None,
        }
    }

    /// Closes a group and also writes some of its members into other storages.
    pub fn emit_into(&mut self, g: u32, into: &[Into]) {
        self.close(g, None, into);
    }

    pub fn close(&mut self, g: u32, fold: Option<(u32, Fold)>, into: &[Into]) {
        // What is written elsewhere counts as there already, but cannot be read by the kernel that writes it.
        if fold.is_none() && into.is_empty() {
            self.pull(g);
        }
        self.open.retain(|&o| o != g);
        let mut members = std::mem::take(&mut self.groups[g as usize].members);
        members.sort_unstable();
        let again = self.again(g, &members);
        let stored: SmallVec<[u32; 8]> =
            members.iter().copied().filter(|m| self.left[*m as usize] > 0 && !again.contains(m)).collect();
        let (root, fold) = match fold {
            Some((root, fold)) => (Some(root), Some(fold)),
            None => (None, None),
        };
        let elsewhere = into.iter().map(|i| i.node);
        let wanted: SmallVec<[u32; 8]> = stored.iter().copied().chain(elsewhere).chain(root).collect();
        if !wanted.is_empty() {
            let instr = self.graph.nodes[wanted[wanted.len() - 1] as usize].instr;
            let (mut kernel, regs) = self.kernel(g, &members, &wanted, fold.is_some());
            for (k, &m) in stored.iter().enumerate() {
                let dtype = self.graph.nodes[m as usize].ty.dtype;
                let storage = self.made(m);
                let row = self.per_row[m as usize];
                let mut map = Map::dense(&kernel.shape);
                if row {
                    map = row_map(&kernel.shape, kernel.rows, &map);
                }
                kernel.stores.push(Store { reg: regs[k], dtype, storage, map, row });
            }
            for (k, to) in into.iter().enumerate() {
                let dtype = self.graph.nodes[to.node as usize].ty.dtype;
                let (reg, map) = (regs[stored.len() + k], to.map.clone());
                kernel.stores.push(Store { reg, dtype, storage: to.storage, map, row: false });
            }
            if let Some(mut fold) = fold {
                fold.reg = regs[regs.len() - 1];
                kernel.fold = Some(fold);
            }
            self.step_of(instr, &members, Work::Kernel(kernel));
        }
        for m in members {
            if self.at[m as usize] == At::Open(g) {
                self.at[m as usize] = if again.contains(&m) { At::Again } else { At::Nowhere };
            }
        }
    }
}

/// The map of dense values per row: it moves along the rows and not within them. Of `other` it takes the strides of
/// dimensions that have but one index, which say nothing.
pub fn row_map(shape: &Shape, rows: usize, other: &Map) -> Map {
    let lead: Shape = shape[..rows].into();
    let mut map = Map::dense(&lead);
    map.strides.resize(shape.len(), 0);
    for d in 0..shape.len() {
        if shape[d] == 1 {
            map.strides[d] = other.strides[d];
        }
    }
    map
}
