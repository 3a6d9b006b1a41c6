//! Orders the graph into steps. Elementwise nodes gather in groups; a group becomes one kernel.
//!
//! Open groups read only what has been written by earlier steps. That makes any two of one shape safe to merge, and
//! a group is emitted at the latest when somebody reads one of its values in another way than element by element.

use crate::CompileOptions;
use crate::graph::{Graph, Ref, Use, WHOLE, What};
use crate::map::Map;
use crate::plan::*;
use gt_ir::{DType, Ints, ReduceKind, Shape, Structure, Unary};
use smallvec::SmallVec;

/// Steps and storages before places are given.
pub struct Draft {
    pub steps: Vec<Step>,
    pub storages: Vec<Storage>,
    pub outs: Vec<u32>,
}

/// More members than this and a group is closed.
const MAX_MEMBERS: usize = 40;
/// More loads than this and a group is closed.
const MAX_READS: usize = 20;
/// Values of at most this much work are computed again in a reduction rather than written and read.
const CHEAP: usize = 8;

/// Where a node's value is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    /// Not computed, or a number.
    Nowhere,
    Open(u32),
    Mem(u32),
}

pub struct Group {
    pub shape: Shape,
    pub members: Vec<u32>,
    /// Nodes outside that members read.
    pub reads: SmallVec<[u32; 8]>,
}

pub struct Schedule<'a> {
    pub graph: &'a Graph,
    pub structure: &'a Structure,
    pub draft: Draft,
    pub at: Vec<At>,
    /// References to each node not met yet.
    pub left: Vec<u32>,
    pub groups: Vec<Group>,
    pub open: Vec<u32>,
    /// No step from here on can fail.
    pub late: bool,
    pub fuse: bool,
    pub reused: Vec<bool>,
}

pub fn schedule(graph: &Graph, structure: &Structure, options: CompileOptions) -> Draft {
    let mut s = Schedule {
        graph,
        structure,
        draft: Draft {
            steps: Vec::with_capacity(structure.instrs.len()),
            storages: Vec::with_capacity(graph.nodes.len()),
            outs: Vec::with_capacity(graph.outs.len()),
        },
        at: vec![At::Nowhere; graph.nodes.len()],
        left: graph.nodes.iter().map(|n| n.uses).collect(),
        groups: Vec::new(),
        open: Vec::new(),
        late: false,
        fuse: options.fuse,
        reused: vec![false; structure.inputs.len()],
    };
    for (i, input) in structure.inputs.iter().enumerate() {
        let storage = Storage { bytes: input.ty.bytes(), place: Place::Input(i as u32), reuse: None };
        s.draft.storages.push(storage);
        s.at[i] = At::Mem(i as u32);
    }
    let checks = graph.nodes.iter().any(|n| n.live && n.early);
    if checks {
        for (i, node) in graph.nodes.iter().enumerate() {
            if node.live && node.early {
                s.node(i as u32);
            }
        }
    }
    s.late = true;
    for (i, node) in graph.nodes.iter().enumerate() {
        if node.live && !node.early {
            s.node(i as u32);
        }
    }
    while let Some(&g) = s.open.first() {
        s.emit(g, None);
    }
    for &out in &graph.outs {
        let storage = s.mem(out);
        s.draft.outs.push(storage);
    }
    s.draft
}

impl Schedule<'_> {
    pub fn step(&mut self, instr: u32, work: Work) {
        self.draft.steps.push(Step { instr, work });
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

    pub fn met(&mut self, args: &[Use]) {
        for arg in args {
            if let Use::Val(r) = arg {
                self.left[r.node as usize] -= 1;
            }
        }
    }

    fn node(&mut self, n: u32) {
        let graph = self.graph;
        let node = &graph.nodes[n as usize];
        match &node.what {
            What::Input | What::Full | What::Iota => {}
            What::Elementwise(_) => self.elementwise(n),
            What::Reduce(kind, dims) => self.reduce(n, *kind, dims),
            What::Put(map) => self.put(n, *map),
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
            // The step of its node has made it.
            What::Part => self.met(&node.args),
        }
    }

    // Elementwise groups.

    fn internal(&self, r: Ref, shape: &Shape) -> Option<u32> {
        match self.at[r.node as usize] {
            At::Open(g) if r.map == WHOLE && self.graph.nodes[r.node as usize].ty.shape == *shape => Some(g),
            _ => None,
        }
    }

    fn elementwise(&mut self, n: u32) {
        let graph = self.graph;
        let node = &graph.nodes[n as usize];
        let shape = &node.ty.shape;
        for arg in &node.args {
            if let Use::Val(r) = arg
                && let At::Open(g) = self.at[r.node as usize]
                && self.internal(*r, shape).is_none()
            {
                self.emit(g, None);
            }
        }
        let mut homes: SmallVec<[u32; 3]> = SmallVec::new();
        let (mut members, mut reads) = (1, 0);
        for arg in &node.args {
            let Use::Val(r) = arg else { continue };
            match self.internal(*r, shape) {
                Some(g) if !homes.contains(&g) => {
                    homes.push(g);
                    members += self.groups[g as usize].members.len();
                    reads += self.groups[g as usize].reads.len();
                }
                Some(_) => {}
                None => reads += 1,
            }
        }
        if members > MAX_MEMBERS || reads > MAX_READS {
            for &g in &homes {
                self.emit(g, None);
            }
            homes.clear();
        }
        if homes.is_empty() && self.fuse {
            homes.extend(self.neighbour(n));
        }
        let home = match homes.first() {
            Some(&g) => g,
            None => {
                self.groups.push(Group { shape: shape.clone(), members: Vec::new(), reads: SmallVec::new() });
                let g = self.groups.len() as u32 - 1;
                self.open.push(g);
                g
            }
        };
        for &other in homes.iter().skip(1) {
            self.merge(home, other);
        }
        let group = &mut self.groups[home as usize];
        group.members.push(n);
        for arg in &node.args {
            if let Use::Val(r) = arg
                && self.at[r.node as usize] != At::Open(home)
                && !group.reads.contains(&r.node)
            {
                group.reads.push(r.node);
            }
        }
        self.at[n as usize] = At::Open(home);
        self.met(&node.args);
        if !self.fuse {
            self.emit(home, None);
        }
    }

    /// An open group of the same shape that reads one of the same values.
    fn neighbour(&self, n: u32) -> Option<u32> {
        let node = &self.graph.nodes[n as usize];
        self.open.iter().rev().take(4).copied().find(|&g| {
            let group = &self.groups[g as usize];
            group.shape == node.ty.shape
                && group.members.len() < MAX_MEMBERS
                && group.reads.len() + node.args.len() <= MAX_READS
                && node.args.iter().any(|a| matches!(a, Use::Val(r) if group.reads.contains(&r.node)))
        })
    }

    fn merge(&mut self, home: u32, other: u32) {
        let members = std::mem::take(&mut self.groups[other as usize].members);
        let reads = std::mem::take(&mut self.groups[other as usize].reads);
        for &m in &members {
            self.at[m as usize] = At::Open(home);
        }
        let group = &mut self.groups[home as usize];
        group.members.extend(members);
        for read in reads {
            if !group.reads.contains(&read) {
                group.reads.push(read);
            }
        }
        self.open.retain(|&g| g != other);
    }

    /// Closes a group: its kernel becomes a step, if anyone needs what it computes.
    pub fn emit(&mut self, g: u32, fold: Option<(u32, Fold)>) {
        self.open.retain(|&o| o != g);
        let mut members = std::mem::take(&mut self.groups[g as usize].members);
        let shape = std::mem::take(&mut self.groups[g as usize].shape);
        members.sort_unstable();
        let stored: SmallVec<[u32; 8]> =
            members.iter().copied().filter(|&m| self.left[m as usize] > 0).collect();
        let (root, fold) = match fold {
            Some((root, fold)) => (Some(root), Some(fold)),
            None => (None, None),
        };
        let wanted: SmallVec<[u32; 8]> = stored.iter().copied().chain(root).collect();
        if !wanted.is_empty() {
            let instr = self.graph.nodes[wanted[wanted.len() - 1] as usize].instr;
            let (mut kernel, regs) = self.kernel(g, &shape, &members, &wanted);
            for (k, &m) in stored.iter().enumerate() {
                let dtype = self.graph.nodes[m as usize].ty.dtype;
                let storage = self.made(m);
                kernel.stores.push(Store { reg: regs[k], dtype, storage, map: Map::dense(&shape) });
            }
            if let Some(mut fold) = fold {
                fold.reg = regs[regs.len() - 1];
                kernel.fold = Some(fold);
            }
            self.step(instr, Work::Kernel(kernel));
        }
        for m in members {
            if self.at[m as usize] == At::Open(g) {
                self.at[m as usize] = At::Nowhere;
            }
        }
    }

    /// The loads and code that compute `wanted` from what lies outside the group, and the registers they end in.
    fn kernel(&self, g: u32, shape: &Shape, members: &[u32], wanted: &[u32]) -> (Kernel, SmallVec<[Reg; 8]>) {
        let graph = self.graph;
        let inside = |r: &Ref| self.at[r.node as usize] == At::Open(g);
        let place = |m: u32| members.binary_search(&m).unwrap_or(0);
        let mut needed = vec![false; members.len()];
        for &w in wanted {
            needed[place(w)] = true;
        }
        for k in (0..members.len()).rev() {
            if needed[k] {
                for arg in &graph.nodes[members[k] as usize].args {
                    if let Use::Val(r) = arg
                        && inside(r)
                    {
                        needed[place(r.node)] = true;
                    }
                }
            }
        }
        // Code registers are numbered from `CODE` until the loads are counted.
        const CODE: Reg = 1 << 15;
        let mut loads: Vec<Load> = Vec::new();
        let mut keys: SmallVec<[(Use, DType); 16]> = SmallVec::new();
        let mut code: Vec<Code> = Vec::new();
        let mut regs: SmallVec<[Reg; 16]> = SmallVec::from_elem(0, members.len());
        for (k, &m) in members.iter().enumerate() {
            if !needed[k] {
                continue;
            }
            let node = &graph.nodes[m as usize];
            let What::Elementwise(calc) = node.what else { continue };
            let mut args: SmallVec<[Reg; 3]> = SmallVec::new();
            for arg in &node.args {
                match arg {
                    Use::Val(r) if inside(r) => args.push(regs[place(r.node)]),
                    Use::Val(r) if graph.nodes[r.node as usize].is_check() => {}
                    _ => {
                        let dtype = self.operand_dtype(m, arg);
                        let key = (*arg, dtype);
                        let reg = match keys.iter().position(|k| *k == key) {
                            Some(reg) => reg,
                            None => {
                                keys.push(key);
                                loads.push(self.load(arg, dtype, shape));
                                loads.len() - 1
                            }
                        };
                        args.push(reg as Reg);
                    }
                }
            }
            regs[k] = match calc {
                None => args[0],
                Some(calc) => {
                    code.push(Code { calc, dtype: node.ty.dtype, args });
                    CODE + code.len() as Reg - 1
                }
            };
        }
        let settle = |r: &mut Reg| {
            if *r >= CODE {
                *r = *r - CODE + loads.len() as Reg;
            }
        };
        code.iter_mut().for_each(|c| c.args.iter_mut().for_each(settle));
        regs.iter_mut().for_each(settle);
        let ends = wanted.iter().map(|&w| regs[place(w)]).collect();
        (Kernel { shape: shape.clone(), loads, code, stores: Vec::new(), fold: None }, ends)
    }

    /// The type an operand of member `m` is loaded as. Numbers have the computing type of what they meet.
    fn operand_dtype(&self, m: u32, arg: &Use) -> DType {
        let node = &self.graph.nodes[m as usize];
        match arg {
            Use::Val(r) => self.graph.nodes[r.node as usize].ty.dtype,
            Use::Num(_) => match node.what {
                What::Elementwise(Some(Calc::Binary(_))) => {
                    let met = node.args.iter().find_map(|a| match a {
                        Use::Val(r) => Some(self.graph.nodes[r.node as usize].ty.dtype),
                        Use::Num(_) => None,
                    });
                    match met.unwrap_or(node.ty.dtype) {
                        DType::F16 | DType::BF16 => DType::F32,
                        dtype => dtype,
                    }
                }
                _ => node.ty.dtype,
            },
        }
    }

    /// A load of an operand that is in memory or a number.
    pub fn load(&self, arg: &Use, dtype: DType, shape: &Shape) -> Load {
        let from = match arg {
            Use::Num(x) => Source::Num(*x),
            Use::Val(r) => {
                let node = &self.graph.nodes[r.node as usize];
                let num = |i: usize| match node.args[i] {
                    Use::Num(x) => x,
                    Use::Val(_) => Num::Const(0i64.into()),
                };
                let map = || {
                    let seen = self.graph.shape(*r);
                    let map = self.graph.map(*r);
                    if seen == shape { map } else { map.expanded(seen, shape) }
                };
                match (&node.what, self.at[r.node as usize]) {
                    (What::Full, _) => Source::Num(num(0)),
                    (_, At::Mem(storage)) => Source::Mem { storage, map: map() },
                    _ => Source::Iota { start: num(0), step: num(1), map: map() },
                }
            }
        };
        Load { dtype, from }
    }

    fn reduce(&mut self, n: u32, kind: ReduceKind, dims: &Ints) {
        let graph = self.graph;
        let node = &graph.nodes[n as usize];
        let Use::Val(r) = node.args[0] else { return };
        let dtype = node.ty.dtype;
        let fold = |storage| Fold { kind, dims: dims.clone(), reg: 0, dtype, storage };
        match self.at[r.node as usize] {
            At::Open(g) if r.map == WHOLE => {
                self.met(&node.args);
                let storage = self.made(n);
                if self.is_cheap(g, r.node) {
                    let mut members = self.groups[g as usize].members.clone();
                    members.sort_unstable();
                    let shape = &graph.nodes[r.node as usize].ty.shape;
                    let (mut kernel, regs) = self.kernel(g, shape, &members, &[r.node]);
                    kernel.fold = Some(Fold { reg: regs[0], ..fold(storage) });
                    self.step(node.instr, Work::Kernel(kernel));
                } else {
                    self.emit(g, Some((r.node, fold(storage))));
                }
            }
            _ => {
                if !matches!(graph.nodes[r.node as usize].what, What::Full | What::Iota) {
                    self.mem(r.node);
                }
                self.met(&node.args);
                let shape = graph.shape(r).clone();
                let storage = self.made(n);
                let loads = vec![self.load(&node.args[0], dtype, &shape)];
                let fold = Some(fold(storage));
                let kernel = Kernel { shape, loads, code: Vec::new(), stores: Vec::new(), fold };
                self.step(node.instr, Work::Kernel(kernel));
            }
        }
    }

    /// True if a value of an open group is computed as fast as it is read.
    fn is_cheap(&self, g: u32, root: u32) -> bool {
        let mut todo: SmallVec<[u32; 16]> = SmallVec::from_slice(&[root]);
        let mut done = 0;
        while done < todo.len() {
            let node = &self.graph.nodes[todo[done] as usize];
            done += 1;
            let What::Elementwise(calc) = node.what else { return false };
            let simple = match calc {
                None | Some(Calc::Where | Calc::Cast) => true,
                Some(Calc::Unary(op)) => {
                    matches!(
                        op,
                        Unary::Neg | Unary::Abs | Unary::Sign | Unary::Sqrt | Unary::Relu | Unary::Not
                    )
                }
                Some(Calc::Binary(op)) => {
                    !matches!(op, gt_ir::Binary::Pow | gt_ir::Binary::Rem | gt_ir::Binary::FloorDiv)
                }
            };
            if !simple {
                return false;
            }
            for arg in &node.args {
                if let Use::Val(r) = arg
                    && self.at[r.node as usize] == At::Open(g)
                    && !todo.contains(&r.node)
                {
                    todo.push(r.node);
                }
            }
            if todo.len() > CHEAP {
                return false;
            }
        }
        true
    }
}
