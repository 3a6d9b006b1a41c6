//! Writes the kernel of a group: loads, code, and the registers that its results end in.

use crate::fuse::{At, Schedule};
use crate::graph::{Ref, Use, What};
use crate::plan::*;
use gt_ir::{DType, Shape};
use smallvec::SmallVec;

/// Shorter rows are not worth taking one by one.
const LEAST_ROW: usize = 64;

/// How an operand is to be loaded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Element,
    Row,
    /// Per row if it does not move within one.
    Any,
}

impl Schedule<'_> {
    /// The loads and code that compute `wanted` from what lies outside the group, and the registers they end in. With
    /// `across` something is to be reduced across rows, so that there may be none in the kernel.
    pub fn kernel(
        &self,
        g: u32,
        members: &[u32],
        wanted: &[u32],
        across: bool,
    ) -> (Kernel, SmallVec<[Reg; 8]>) {
        let graph = self.graph;
        let shape = self.groups[g as usize].shape.clone();
        let inside = |node: u32| self.at[node as usize] == At::Open(g);
        let place = |m: u32| members.binary_search(&m).unwrap_or(0);
        let mut needed = vec![false; members.len()];
        for &w in wanted {
            needed[place(w)] = true;
        }
        let mut folds = false;
        for k in (0..members.len()).rev() {
            if needed[k] {
                let node = &graph.nodes[members[k] as usize];
                folds |= matches!(node.what, What::Reduce(..));
                for read in node.args.iter().filter_map(Use::node) {
                    if inside(read) {
                        needed[place(read)] = true;
                    }
                }
            }
        }
        let rows = self.groups[g as usize].rows.filter(|_| folds);
        let shared = || if across { None } else { self.shared_rows(&shape, members) };
        let rows = rows.or_else(shared).unwrap_or(shape.len());
        // Code registers are numbered from `CODE` until the loads are counted.
        const CODE: Reg = 1 << 15;
        let mut loads: Vec<Load> = Vec::new();
        let mut keys: SmallVec<[(Use, DType, Level); 16]> = SmallVec::new();
        let mut code: Vec<Code> = Vec::new();
        let mut regs: SmallVec<[Reg; 16]> = SmallVec::from_elem(0, members.len());
        for (k, &m) in members.iter().enumerate() {
            if !needed[k] {
                continue;
            }
            let node = &graph.nodes[m as usize];
            let per_row = self.per_row[m as usize];
            let calc = match node.what {
                What::Reduce(kind, _) => Some(Calc::Fold(kind)),
                What::Elementwise(calc) => calc,
                _ => continue,
            };
            let level = match calc {
                None if !per_row => Level::Element,
                Some(Calc::Fold(_)) => Level::Element,
                _ if per_row => Level::Row,
                _ => Level::Any,
            };
            let mut args: SmallVec<[Reg; 3]> = SmallVec::new();
            for arg in &node.args {
                match arg {
                    Use::Val(r) if inside(r.node) => args.push(regs[place(r.node)]),
                    Use::Val(r) if graph.nodes[r.node as usize].is_check() => {}
                    _ => {
                        let dtype = self.operand_dtype(m, arg);
                        let key = (*arg, dtype, level);
                        let reg = match keys.iter().position(|k| *k == key) {
                            Some(reg) => reg,
                            None => {
                                let load = match level {
                                    Level::Row => self.load_by_row(arg, dtype, &node.ty.shape, &shape, rows),
                                    Level::Element => self.load(arg, dtype, &shape),
                                    Level::Any => self.load_in(arg, dtype, &shape, rows),
                                };
                                match loads.iter().position(|l| *l == load) {
                                    Some(reg) => reg,
                                    None => {
                                        keys.push(key);
                                        loads.push(load);
                                        loads.len() - 1
                                    }
                                }
                            }
                        };
                        args.push(reg as Reg);
                    }
                }
            }
            let spread = !per_row
                && node.args.iter().filter_map(Use::node).any(|a| inside(a) && self.per_row[a as usize]);
            let calc = if spread { calc.or(Some(Calc::Cast)) } else { calc };
            regs[k] = match calc {
                None => args[0],
                Some(calc) => {
                    let made = Code { calc, dtype: node.ty.dtype, args, row: per_row };
                    // Casts are repeated for readers that may turn out to share a kernel.
                    let same = code.iter().position(|c| *c == made);
                    CODE + same.unwrap_or_else(|| {
                        code.push(made);
                        code.len() - 1
                    }) as Reg
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
        (Kernel { shape, rows, loads, code, stores: Vec::new(), fold: None }, ends)
    }

    /// Rows along the last dimension, if members read values that do not change along it and none that change in
    /// another dimension faster.
    fn shared_rows(&self, shape: &Shape, members: &[u32]) -> Option<usize> {
        let last = shape.len().checked_sub(1)?;
        if !self.options.fuse || shape[last] < LEAST_ROW || shape[last] > self.options.longest_row {
            return None;
        }
        let mut shared = false;
        for m in members {
            for arg in &self.graph.nodes[*m as usize].args {
                if let Use::Val(r) = arg
                    && let At::Mem(_) = self.at[r.node as usize]
                {
                    let (seen, map) = (self.graph.shape(*r), self.graph.map(*r));
                    let step = if seen == shape {
                        map.strides[last]
                    } else {
                        map.expanded(seen, shape).strides[last]
                    };
                    match step {
                        0 => shared |= seen.numel() > 1,
                        1 => {}
                        _ => return None,
                    }
                }
            }
        }
        shared.then_some(last)
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
        self.load_in(arg, dtype, shape, shape.len())
    }

    /// A load in a kernel of `rows`; what does not move within a row is loaded once per row.
    fn load_in(&self, arg: &Use, dtype: DType, shape: &Shape, rows: usize) -> Load {
        let map = |r: Ref| {
            let seen = self.graph.shape(r);
            let map = self.graph.map(r);
            if seen == shape { map } else { map.expanded(seen, shape) }
        };
        let from = self.source(arg, map);
        let row = match &from {
            Source::Mem { map, .. } => {
                rows < shape.len() && (rows..shape.len()).all(|d| shape[d] == 1 || map.strides[d] == 0)
            }
            Source::Num(_) | Source::Iota { .. } => false,
        };
        Load { dtype, from, row }
    }

    /// A load of one value per row; `seen` is the shape in which the values are looked at.
    fn load_by_row(&self, arg: &Use, dtype: DType, seen: &Shape, shape: &Shape, rows: usize) -> Load {
        let map = |r: Ref| self.by_row(r, seen, shape, rows).expect("asked before the node joined");
        Load { dtype, from: self.source(arg, map), row: true }
    }

    fn source(&self, arg: &Use, map: impl Fn(Ref) -> crate::Map) -> Source {
        let r = match arg {
            Use::Num(x) => return Source::Num(*x),
            Use::Val(r) => r,
        };
        let node = &self.graph.nodes[r.node as usize];
        let num = |i: usize| match node.args[i] {
            Use::Num(x) => x,
            Use::Val(_) => Num::Const(0i64.into()),
        };
        match (&node.what, self.at[r.node as usize]) {
            (What::Full, _) => Source::Num(num(0)),
            (_, At::Mem(storage)) => Source::Mem { storage, map: map(*r) },
            (_, At::Again) => unreachable!("computed again before it is read"),
            _ => Source::Iota { start: num(0), step: num(1), map: map(*r) },
        }
    }
}
