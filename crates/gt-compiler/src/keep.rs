//! What a group leaves in memory: values that are cheaper to compute again are not kept, and work that uses up a value of
//! the group is done with it.

use crate::fuse::{At, OUT, Schedule};
use crate::graph::{Use, WHOLE, What};
use crate::moves::is_light;
use smallvec::SmallVec;

/// How much more than a value itself the operands of which it is computed again may be, in percent.
const MOST_BYTES: usize = 110;
/// At most this many instructions join a group early.
const MOST_PULLED: usize = 12;

impl Schedule<'_> {
    /// Members of a group that is being closed which their later readers compute again.
    pub fn again(&mut self, g: u32, members: &[u32]) -> SmallVec<[u32; 8]> {
        let mut again: SmallVec<[u32; 8]> = SmallVec::new();
        if self.options.again == 0 || !self.options.fuse || self.options.apart || !self.late {
            return again;
        }
        // The later of two is asked first: what it needs is then kept for it, or computed again too.
        let graph = self.graph;
        for &m in members.iter().rev() {
            if self.left[m as usize] == 0 || !self.may_go(m) || !self.is_worth(g, m) {
                continue;
            }
            again.push(m);
            if !std::mem::replace(&mut self.held[m as usize], true) {
                let reads = graph.nodes[m as usize].args.iter().filter_map(Use::node);
                reads.for_each(|a| self.left[a as usize] += 1);
            }
        }
        again
    }

    /// True if all who are still to read a member are elementwise work or reductions that look at it as it is.
    fn may_go(&self, m: u32) -> bool {
        if self.kept[m as usize] || self.per_row[m as usize] {
            return false;
        }
        self.readers[m as usize].iter().all(|&reader| {
            if reader == OUT {
                return false;
            }
            let reads = &self.graph.nodes[reader as usize];
            let plain = matches!(reads.what, What::Elementwise(_) | What::Reduce(..));
            self.done[reader as usize]
                || plain
                    && reads.args.iter().all(|a| !matches!(a, Use::Val(r) if r.node == m && r.map != WHOLE))
        })
    }

    /// True if computing a member again costs little and reads no more than the member itself.
    fn is_worth(&self, g: u32, m: u32) -> bool {
        let mut todo: SmallVec<[u32; 8]> = SmallVec::from_slice(&[m]);
        let mut leaves: SmallVec<[u32; 8]> = SmallVec::new();
        let (mut done, mut bytes) = (0, 0);
        while done < todo.len() {
            let node = &self.graph.nodes[todo[done] as usize];
            done += 1;
            let What::Elementwise(Some(calc)) = node.what else { return false };
            if todo.len() > self.options.again || !(is_light(calc) || self.options.free_math) {
                return false;
            }
            for arg in &node.args {
                let Use::Val(r) = arg else { continue };
                let operand = &self.graph.nodes[r.node as usize];
                if operand.is_check() {
                    return false;
                }
                let numbers = matches!(operand.what, What::Full | What::Iota);
                if numbers || todo.contains(&r.node) || leaves.contains(&r.node) {
                    continue;
                }
                let inside = self.at[r.node as usize] == At::Open(g);
                // A value of the group that others read too is there anyway.
                let there = !inside || self.per_row[r.node as usize] || self.stays(r.node);
                if there {
                    leaves.push(r.node);
                    bytes += operand.ty.bytes();
                } else {
                    todo.push(r.node);
                }
            }
        }
        bytes * 100 <= self.graph.nodes[m as usize].ty.bytes() * MOST_BYTES
    }

    /// True if a member of an open group will be in memory for the sake of somebody who cannot compute it.
    fn stays(&self, m: u32) -> bool {
        self.left[m as usize] > 0 && !self.may_go(m)
    }

    /// Takes into a group what is to be done later with a value that nobody else reads, so that the value need not be
    /// kept: all it takes beside is in memory or is computed from that alone.
    pub fn pull(&mut self, g: u32) {
        if !self.options.fuse || self.options.apart || !self.late {
            return;
        }
        let mut at = 0;
        while let Some(&m) = self.groups[g as usize].members.get(at) {
            at += 1;
            if self.left[m as usize] != 1 || self.per_row[m as usize] || self.held[m as usize] {
                continue;
            }
            let reader =
                self.readers[m as usize].iter().copied().find(|&r| r == OUT || !self.done[r as usize]);
            let Some(reader) = reader.filter(|&r| r != OUT) else { continue };
            let (from, to) = (&self.graph.nodes[m as usize].ty, &self.graph.nodes[reader as usize].ty);
            if from.shape != to.shape || to.bytes() > from.bytes() {
                continue;
            }
            let mut cone: SmallVec<[u32; 16]> = SmallVec::new();
            if !self.cone(g, reader, &mut cone) || !self.closed(&cone, reader) {
                continue;
            }
            cone.sort_unstable();
            for n in cone {
                self.done[n as usize] = true;
                self.pulled(g, n);
            }
        }
    }

    /// The instructions that computing `n` in a group takes. False if it cannot be there.
    fn cone(&self, g: u32, n: u32, cone: &mut SmallVec<[u32; 16]>) -> bool {
        if cone.contains(&n) {
            return true;
        }
        let graph = self.graph;
        let (node, shape) = (&graph.nodes[n as usize], &self.groups[g as usize].shape);
        let room = self.groups[g as usize].members.len() + cone.len() < 40 && cone.len() < MOST_PULLED;
        if !matches!(node.what, What::Elementwise(Some(_))) || node.early || node.ty.shape != *shape || !room
        {
            return false;
        }
        cone.push(n);
        node.args.iter().all(|arg| {
            let Use::Val(r) = arg else { return true };
            let operand = &graph.nodes[r.node as usize];
            if matches!(operand.what, What::Full | What::Iota) {
                return true;
            }
            match self.at[r.node as usize] {
                At::Mem(_) => true,
                At::Open(h) => h == g && r.map == WHOLE && !self.per_row[r.node as usize],
                At::Nowhere => {
                    !operand.is_check()
                        && !self.done[r.node as usize]
                        && r.map == WHOLE
                        && self.cone(g, r.node, cone)
                }
                At::Again => false,
            }
        })
    }

    /// True if nobody outside reads what is computed on the way to the last of a cone.
    fn closed(&self, cone: &[u32], last: u32) -> bool {
        let inside = |r: &u32| cone.contains(r);
        let reads: usize = cone.iter().map(|&n| self.graph.nodes[n as usize].args.len()).sum();
        reads <= 16 && cone.iter().all(|&n| n == last || self.readers[n as usize].iter().all(inside))
    }

    fn pulled(&mut self, g: u32, n: u32) {
        self.join(g, n, false);
        let graph = self.graph;
        self.met(&graph.nodes[n as usize].args);
    }
}
