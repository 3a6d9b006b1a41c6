//! Reductions: of rows that a kernel may hold, in the group that feeds them; of others, at the end of a kernel.

use crate::fuse::{At, MAX_MEMBERS, Schedule};
use crate::graph::{Use, WHOLE, What};
use crate::moves::is_light;
use crate::plan::*;
use gt_ir::{Ints, ReduceKind, Shape};
use smallvec::SmallVec;

/// Values of at most this much work are computed again in a reduction rather than written and read.
const CHEAP: usize = 8;

impl Schedule<'_> {
    /// The rows of a reduction of `shape` over `dims`, if it reduces rows that a kernel may hold.
    fn as_rows(&self, shape: &Shape, dims: &Ints) -> Option<usize> {
        let rows = dims.iter().copied().filter(|&d| shape[d] > 1).min()?;
        let len: usize = shape[rows..].iter().product();
        let trailing = (rows..shape.len()).all(|d| shape[d] == 1 || dims.contains(&d));
        let fits = shape.numel() > 0 && len <= self.options.longest_row;
        (self.options.fuse && trailing && fits).then_some(rows)
    }

    pub fn reduce(&mut self, n: u32, kind: ReduceKind, dims: &Ints) {
        let graph = self.graph;
        let node = &graph.nodes[n as usize];
        let Use::Val(r) = node.args[0] else { return };
        self.revive(&node.args);
        let kept = std::mem::replace(&mut self.kept[r.node as usize], true);
        let shape = graph.shape(r);
        let dtype = node.ty.dtype;
        let fold = |storage| Fold { kind, dims: dims.clone(), reg: 0, dtype, storage };
        if let At::Open(g) = self.at[r.node as usize]
            && (r.map != WHOLE || self.per_row[r.node as usize] || self.groups[g as usize].shape != *shape)
        {
            self.emit(g);
        }
        if let Some(rows) = self.as_rows(shape, dims) {
            let home = match self.at[r.node as usize] {
                At::Open(g) => Some(g),
                _ => self.neighbour(shape, &[r.node]),
            };
            let fits = |g: &u32| {
                let group = &self.groups[*g as usize];
                group.rows.is_none_or(|have| have == rows) && group.members.len() < MAX_MEMBERS
            };
            let home = home.filter(fits);
            if home.is_none()
                && let At::Open(g) = self.at[r.node as usize]
            {
                self.emit(g);
            }
            let home = match home {
                Some(g) => g,
                None => self.open(shape.clone()),
            };
            if self.at[r.node as usize] == At::Open(home) {
                self.kept[r.node as usize] = kept;
            }
            self.groups[home as usize].rows = Some(rows);
            self.join(home, n, true);
            self.met(&node.args);
            return;
        }
        if let At::Open(g) = self.at[r.node as usize] {
            self.kept[r.node as usize] = kept;
            if self.is_cheap(g, r.node) {
                self.met(&node.args);
                let storage = self.made(n);
                let mut members = self.groups[g as usize].members.clone();
                members.sort_unstable();
                let (mut kernel, regs) = self.kernel(g, &members, &[r.node], true);
                kernel.fold = Some(Fold { reg: regs[0], ..fold(storage) });
                return self.step(node.instr, Work::Kernel(kernel));
            }
            if self.groups[g as usize].rows.is_none() {
                self.met(&node.args);
                let storage = self.made(n);
                return self.close(g, Some((r.node, fold(storage))), &[]);
            }
        }
        if !matches!(graph.nodes[r.node as usize].what, What::Full | What::Iota) {
            self.mem(r.node);
        }
        self.met(&node.args);
        let storage = self.made(n);
        let loads = vec![self.load(&node.args[0], dtype, shape)];
        let fold = Some(fold(storage));
        let (code, stores) = (Vec::new(), Vec::new());
        let kernel = Kernel { shape: shape.clone(), rows: shape.len(), loads, code, stores, fold };
        self.step(node.instr, Work::Kernel(kernel));
    }

    /// True if a value of an open group is computed as fast as it is read.
    fn is_cheap(&self, g: u32, root: u32) -> bool {
        let mut todo: SmallVec<[u32; 16]> = SmallVec::from_slice(&[root]);
        let mut done = 0;
        while done < todo.len() {
            let node = &self.graph.nodes[todo[done] as usize];
            done += 1;
            let What::Elementwise(calc) = node.what else { return false };
            if !calc.is_none_or(is_light) {
                return false;
            }
            for read in node.args.iter().filter_map(Use::node) {
                if self.at[read as usize] == At::Open(g) && !todo.contains(&read) {
                    todo.push(read);
                }
            }
            if todo.len() > CHEAP {
                return false;
            }
        }
        true
    }
}
