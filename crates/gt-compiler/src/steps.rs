//! Steps that are no kernels of their own: values brought to memory, updates in place, products and indices.

use crate::epilogue::Product;
use crate::fuse::{At, Into, Schedule};
use crate::graph::{Ref, Use, WHOLE, What};
use crate::map::Map;
use crate::plan::*;
use gt_ir::{Op, Shape};
use smallvec::SmallVec;

impl Schedule<'_> {
    /// The storage of a node's value, computed now if it is not there yet.
    pub fn mem(&mut self, n: u32) -> u32 {
        match self.at[n as usize] {
            At::Mem(storage) => return storage,
            At::Open(g) => {
                self.kept[n as usize] = true;
                self.emit(g);
            }
            At::Again => {
                // Read in a way that needs memory after all.
                self.kept[n as usize] = true;
                self.gather_in(n);
                if let At::Open(g) = self.at[n as usize] {
                    self.emit(g);
                }
            }
            At::Nowhere => {}
        }
        if let At::Mem(storage) = self.at[n as usize] {
            return storage;
        }
        let graph = self.graph;
        let node = &graph.nodes[n as usize];
        let load = self.load(&Use::Val(Ref { node: n, map: WHOLE }), node.ty.dtype, &node.ty.shape);
        let storage = self.made(n);
        self.store(node.instr, load, &node.ty.shape, storage, Map::dense(&node.ty.shape));
        storage
    }

    /// A kernel of one load and one store.
    fn store(&mut self, instr: u32, load: Load, shape: &Shape, storage: u32, map: Map) {
        let dtype = load.dtype;
        let kernel = Kernel {
            shape: shape.clone(),
            rows: shape.len(),
            loads: vec![load],
            code: Vec::new(),
            stores: vec![Store { reg: 0, dtype, storage, map, row: false }],
            fold: None,
        };
        self.step(instr, Work::Kernel(kernel));
    }

    pub fn tensor(&mut self, r: Ref) -> Tensor {
        let storage = self.mem(r.node);
        let graph = self.graph;
        Tensor {
            storage,
            dtype: graph.nodes[r.node as usize].ty.dtype,
            shape: graph.shape(r).clone(),
            map: graph.map(r),
        }
    }

    /// A tensor whose elements lie next to each other, copied if they did not.
    pub fn packed(&mut self, r: Ref) -> Tensor {
        let t = self.tensor(r);
        if t.map.is_packed(&t.shape) { t } else { self.copied(t) }
    }

    /// A tensor whose elements lie next to each other along the last dimension, copied if they did not.
    pub fn packed_rows(&mut self, r: Ref) -> Tensor {
        let t = self.tensor(r);
        let last = t.shape.len() - 1;
        if t.map.strides[last] == 1 || t.shape[last] <= 1 { t } else { self.copied(t) }
    }

    /// The mask of an attention in the shape of its scores: elements next to each other or all one along a row.
    fn mask(&mut self, arg: Option<&Use>, q: &Shape, columns: usize) -> Option<Tensor> {
        let Some(Use::Val(r)) = arg else { return None };
        let mut t = self.tensor(*r);
        let last = t.shape.len().checked_sub(1);
        if last.is_some_and(|d| t.shape[d] > 1 && t.map.strides[d] != 1) {
            t = self.copied(t);
        }
        let mut to: Shape = q[..q.len() - 1].into();
        to.push(columns);
        t.map = t.map.expanded(&t.shape, &to);
        t.shape = to;
        Some(t)
    }

    /// A copy for the instruction whose turn it is.
    fn copied(&mut self, t: Tensor) -> Tensor {
        let storage = self.storage(t.shape.numel() * t.dtype.size());
        let map = Map::dense(&t.shape);
        let load = Load { dtype: t.dtype, from: Source::Mem { storage: t.storage, map: t.map }, row: false };
        self.store(self.now, load, &t.shape, storage, map.clone());
        Tensor { storage, dtype: t.dtype, shape: t.shape, map }
    }

    /// A storage that holds the base of an update and may be written: the base's own if nobody reads it again (C5).
    /// The base is in memory, all operands of the update have been met, `others` are those beside the base.
    fn writable(&mut self, instr: u32, base: u32, others: &[Use]) -> u32 {
        let from = self.mem(base);
        let read_too = others.iter().any(|o| matches!(o, Use::Val(r) if r.node == base));
        let last = self.left[base as usize] == 0 && !read_too;
        let bytes = self.draft.storages[from as usize].bytes;
        let mut reuse = None;
        if last {
            let readers: SmallVec<[u32; 4]> = self
                .open
                .iter()
                .copied()
                .filter(|&g| self.groups[g as usize].reads.contains(&base))
                .collect();
            for g in readers {
                // What they compute from the base cannot be computed again.
                let members = self.groups[g as usize].members.clone();
                members.iter().for_each(|&m| self.kept[m as usize] = true);
                self.emit(g);
            }
            match self.draft.storages[from as usize].place {
                Place::Input(i) => {
                    if self.late && self.structure.inputs[i as usize].dies && !self.reused[i as usize] {
                        self.reused[i as usize] = true;
                        reuse = Some(i);
                    }
                }
                Place::Out | Place::Arena(_) => return from,
            }
        }
        let to = self.storage(bytes);
        self.draft.storages[to as usize].reuse = reuse;
        self.step(instr, Work::Copy { from, to });
        to
    }

    pub fn put(&mut self, n: u32, map: u32) {
        let graph = self.graph;
        let node = &graph.nodes[n as usize];
        let (Use::Val(base), value) = (node.args[0], node.args[1]) else { return };
        let dtype = node.ty.dtype;
        let (to, shape) = &graph.maps[map as usize];
        self.keep_open(&node.args);
        if let Use::Val(r) = value
            && let Some(g) = self.open_member(r)
            && graph.shape(r) == shape
            && !self.groups[g as usize].reads.contains(&base.node)
            && self.at[base.node as usize] != At::Open(g)
        {
            // The value is written where it belongs as it is computed.
            self.mem(base.node);
            self.met(&node.args);
            let storage = self.writable(node.instr, base.node, &[]);
            self.at[n as usize] = At::Mem(storage);
            return match self.open_member(r) {
                Some(g) => self.emit_into(g, &[Into { node: r.node, storage, map: to.clone() }]),
                None => {
                    let load = self.load(&value, dtype, shape);
                    self.store(node.instr, load, shape, storage, to.clone());
                }
            };
        }
        let mut load = match value {
            Use::Val(r) => {
                if !matches!(graph.nodes[r.node as usize].what, What::Full | What::Iota) {
                    self.mem(r.node);
                }
                self.load(&value, dtype, graph.shape(r))
            }
            Use::Num(_) => self.load(&value, dtype, &Shape::scalar()),
        };
        self.mem(base.node);
        if let (Use::Val(r), Source::Mem { .. }) = (value, &load.from)
            && r.node == base.node
        {
            // The base shows through in the value: take that out before the base changes.
            let t = self.tensor(r);
            let t = self.copied(t);
            load.from = Source::Mem { storage: t.storage, map: t.map };
        }
        self.met(&node.args);
        let storage = self.writable(node.instr, base.node, &[]);
        self.at[n as usize] = At::Mem(storage);
        self.store(node.instr, load, shape, storage, to.clone());
    }

    /// Sees to it that operands which are being computed are there to be read, whichever group has to be closed meanwhile.
    fn keep_open(&mut self, args: &[Use]) {
        for read in args.iter().filter_map(Use::node) {
            if let At::Open(_) = self.at[read as usize] {
                self.kept[read as usize] = true;
            }
        }
    }

    /// Joins operands; those that are being computed are written where they belong at once.
    pub fn concat(&mut self, n: u32, dim: usize) {
        let graph = self.graph;
        let node = &graph.nodes[n as usize];
        let dtype = node.ty.dtype;
        let whole = Map::dense(&node.ty.shape);
        let parts: SmallVec<[Ref; 4]> =
            node.args.iter().filter_map(|a| if let Use::Val(r) = a { Some(*r) } else { None }).collect();
        self.keep_open(&node.args);
        for r in &parts {
            let number = matches!(graph.nodes[r.node as usize].what, What::Full | What::Iota);
            if self.open_member(*r).is_none() && !number {
                self.mem(r.node);
            }
        }
        self.met(&node.args);
        let out = self.made(n);
        let mut start = 0;
        let mut late: SmallVec<[(u32, Into); 4]> = SmallVec::new();
        for r in parts {
            let shape = graph.shape(r);
            let map = whole.clone().moved(dim, start);
            start += shape[dim];
            match self.open_member(r) {
                Some(g) => late.push((g, Into { node: r.node, storage: out, map })),
                None => {
                    let load = self.load(&Use::Val(r), dtype, shape);
                    self.store(node.instr, load, shape, out, map);
                }
            }
        }
        while let Some(&(g, _)) = late.first() {
            let (here, rest): (SmallVec<[_; 4]>, SmallVec<[_; 4]>) =
                late.into_iter().partition(|(h, _)| *h == g);
            let here: SmallVec<[Into; 4]> = here.into_iter().map(|(_, into): (u32, Into)| into).collect();
            self.emit_into(g, &here);
            late = rest;
        }
    }

    pub fn other(&mut self, n: u32) {
        let (graph, structure) = (self.graph, self.structure);
        let node = &graph.nodes[n as usize];
        let args = &node.args;
        let val = |i: usize| match args[i] {
            Use::Val(r) => r,
            Use::Num(_) => Ref { node: 0, map: WHOLE },
        };
        let num = |i: usize| match args[i] {
            Use::Num(x) => x,
            Use::Val(_) => Num::Const(0i64.into()),
        };
        let dtype = node.ty.dtype;
        let work = match &structure.instrs[node.instr as usize].op {
            Op::Random { dist, .. } => {
                let (dist, len) = (*dist, node.ty.shape.numel());
                Work::Random { dist, dtype, len, key: num(0), offset: num(1), out: self.made(n) }
            }
            Op::Data { .. } => {
                let Num::Slot(slot) = num(0) else { return };
                Work::Data { slot, out: self.made(n) }
            }
            Op::Pad { lo, .. } => {
                let x = self.tensor(val(0));
                self.met(args);
                let out = self.made(n);
                let fill = Load { dtype, from: Source::Num(num(1)), row: false };
                let whole = Map::dense(&node.ty.shape);
                self.store(node.instr, fill, &node.ty.shape, out, whole.clone());
                let inside = lo.iter().enumerate().fold(whole, |map, (d, &n)| map.moved(d, n));
                let load = Load { dtype, from: Source::Mem { storage: x.storage, map: x.map }, row: false };
                return self.store(node.instr, load, &x.shape, out, inside);
            }
            Op::ArgReduce { kind, dim, .. } => {
                let x = self.packed(val(0));
                Work::ArgReduce { kind: *kind, dim: *dim, x, out: self.made(n) }
            }
            Op::Scan { kind, dim } => {
                let x = self.packed(val(0));
                Work::Scan { kind: *kind, dim: *dim, x, out: self.made(n) }
            }
            Op::Sort { dim, descending } => {
                let (x, k) = (self.packed(val(0)), node.ty.shape[*dim]);
                let (values, indices) = (self.made(n), self.made(n + 1));
                Work::Sort { dim: *dim, descending: *descending, k, x, values, indices }
            }
            Op::TopK { dim, k, largest } => {
                let x = self.packed(val(0));
                let (values, indices) = (self.made(n), self.made(n + 1));
                Work::Sort { dim: *dim, descending: *largest, k: *k, x, values, indices }
            }
            Op::Softmax { dim } | Op::LogSoftmax { dim } => {
                let log = matches!(structure.instrs[node.instr as usize].op, Op::LogSoftmax { .. });
                let x = self.packed(val(0));
                Work::Softmax { log, dim: *dim, x, out: self.made(n) }
            }
            Op::Attention { causal } => {
                let [q, k, v] = [0, 1, 2].map(|i| self.packed_rows(val(i)));
                let mask = self.mask(args.get(4), &q.shape, k.shape[k.shape.len() - 2]);
                let (out, lse) = (self.made_tensor(n), self.made(n + 1));
                let scale = num(3);
                Work::Attention(Box::new(Attention { causal: *causal, q, k, v, scale, mask, out, lse }))
            }
            Op::AttentionGrad { causal } => {
                let [q, k, v, out, lse, dout] = [0, 1, 2, 3, 4, 5].map(|i| self.packed_rows(val(i)));
                let mask = self.mask(args.get(7), &q.shape, k.shape[k.shape.len() - 2]);
                let [dq, dk, dv] = [0, 1, 2].map(|i| self.made_tensor(n + i));
                let (causal, scale) = (*causal, num(6));
                let work = AttentionGrad { causal, q, k, v, out, lse, dout, scale, mask, dq, dk, dv };
                Work::AttentionGrad(Box::new(work))
            }
            Op::Collective(c) => {
                let xs = (0..args.len()).map(|i| self.packed(val(i))).collect();
                let outs = (0..args.len()).map(|i| self.made(n + i as u32)).collect();
                let work = Together { axis: c.axis, what: c.what.clone(), xs, outs };
                Work::Collective(Box::new(work))
            }
            Op::Matmul { ta, tb, tf32 } => self.matmul(n, [*ta, *tb, *tf32], &Product::default()),
            Op::Gather { dim } => {
                let (x, index) = (self.packed(val(0)), self.packed(val(1)));
                Work::Gather { dim: *dim, x, index, out: self.made(n) }
            }
            Op::Take { dim } => {
                let (x, index) = (self.packed(val(0)), self.packed(val(1)));
                Work::Take { dim: *dim, x, index, out: self.made(n) }
            }
            Op::Scatter { dim, mode } => {
                let index = self.packed(val(1));
                let src = match args[2] {
                    Use::Val(r) => Operand::Tensor(self.packed(r)),
                    Use::Num(x) => Operand::Num(x),
                };
                self.mem(val(0).node);
                self.met(args);
                let out = self.writable(node.instr, val(0).node, &args[1..]);
                self.at[n as usize] = At::Mem(out);
                let base = node.ty.shape.clone();
                let work = Work::Scatter { dim: *dim, mode: *mode, base, index, src, dtype, out };
                return self.step(node.instr, work);
            }
            Op::TakePut { dim, mode } => {
                let (index, src) = (self.packed(val(1)), self.packed(val(2)));
                self.mem(val(0).node);
                self.met(args);
                let out = self.writable(node.instr, val(0).node, &args[1..]);
                self.at[n as usize] = At::Mem(out);
                let base = node.ty.shape.clone();
                return self
                    .step(node.instr, Work::TakePut { dim: *dim, mode: *mode, base, index, src, out });
            }
            Op::Full { .. }
            | Op::Arange { .. }
            | Op::Unary(_)
            | Op::Binary(_)
            | Op::Where
            | Op::Cast(_)
            | Op::View(_)
            | Op::Flip { .. }
            | Op::Put { .. }
            | Op::Concat { .. }
            | Op::Reduce { .. } => unreachable!("has a node kind of its own"),
            Op::RmsNorm { .. }
            | Op::LayerNorm { .. }
            | Op::CrossEntropy
            | Op::Sgd { .. }
            | Op::Adam { .. } => {
                unreachable!("refused by the graph")
            }
        };
        self.met(args);
        self.step(node.instr, work);
    }

    /// A matmul with what follows it.
    pub fn product(&mut self, n: u32, product: &Product) {
        let Op::Matmul { ta, tb, tf32 } = self.structure.instrs[product.instr as usize].op else { return };
        let work = self.matmul(n, [ta, tb, tf32], product);
        self.met(&self.graph.nodes[n as usize].args);
        let fused = product.fused.to_vec();
        self.draft.steps.push(Step { instr: product.instr, fused, work });
    }

    fn matmul(&mut self, n: u32, [ta, tb, tf32]: [bool; 3], product: &Product) -> Work {
        let graph = self.graph;
        let node = &graph.nodes[n as usize];
        let shape = &node.ty.shape;
        let rank = shape.len();
        let mut batch: Shape = shape[..rank - 2].into();
        let (mut m, rows, cols) = (shape[rank - 2], shape[rank - 2], shape[rank - 1]);
        let mut k = 0;
        let mut side = |s: &mut Self, arg: Use, transposed: bool, left: bool| {
            let Use::Val(r) = arg else { unreachable!("checked by the type rule") };
            let mut t = s.tensor(r);
            if transposed {
                let last = t.shape.len() - 1;
                t.shape.swap(last - 1, last);
                t.map.strides.swap(last - 1, last);
            }
            let mut to: Shape = shape[..rank - 2].into();
            to.extend_from_slice(&t.shape[t.shape.len() - 2..]);
            if left {
                k = to[rank - 1];
            }
            t.map = t.map.expanded(&t.shape, &to);
            t.shape = to;
            t
        };
        let mut a = side(self, node.args[0], ta, true);
        let mut b = side(self, node.args[1], tb, false);
        let mut added = node.args.get(2).map(|&arg| {
            let Use::Val(r) = arg else { unreachable!("checked by the type rule") };
            let t = self.tensor(r);
            let map = t.map.expanded(&t.shape, shape);
            Tensor { shape: shape.clone(), map, ..t }
        });
        // Batches that share their right side are more rows of the left one.
        while let Some(&count) = batch.last() {
            let at = batch.len() - 1;
            let taller = |t: &Tensor| {
                let mut to = t.shape.clone();
                to.remove(at);
                to[at] *= count;
                let map = t.map.reshaped(&t.shape, &to)?;
                Some(Tensor { map, shape: to, ..t.clone() })
            };
            if m == 0 || count == 0 || (count > 1 && b.map.strides[at] != 0) {
                break;
            }
            let (Some(tall), Some(higher)) =
                (taller(&a), added.as_ref().map(taller).map_or(Some(None), |b| b.map(Some)))
            else {
                break;
            };
            (a, added) = (tall, higher);
            b.shape.remove(at);
            b.map.strides.remove(at);
            batch.pop();
            m *= count;
        }
        let out = self.made(n);
        let (bias, residual) = if product.residual { (None, added) } else { (added, None) };
        let relu = product.relu;
        Work::Matmul(Box::new(Matmul { batch, m, rows, n: cols, k, a, b, bias, residual, relu, tf32, out }))
    }
}

#[cfg(test)]
mod tests {
    use crate::plan::of_text as plan;

    #[test]
    fn a_copy_belongs_to_the_instruction_that_needs_it() {
        let plan = plan(
            "
            in TENSOR[0] f32[1]
            in TENSOR[1] f32[1]
            in TENSOR[2] f32[4, 3]
            TENSOR[3] := PERMUTE{perm=[1,0]} TENSOR[2]
            TENSOR[4] := CUMSUM{dim=0} TENSOR[3]
            out TENSOR[4]",
        );
        let instrs: Vec<u32> = plan.steps.iter().map(|step| step.instr).collect();
        assert_eq!(instrs, [1, 1], "{plan}");
    }
}
