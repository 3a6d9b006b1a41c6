//! Exact algebra on moves: slices and joins pass through elementwise work, so that what is cut in pieces and put together
//! again is computed piece by piece and written once.

use crate::graph::{Builder, Ref, Use, Uses, WHOLE, What, val};
use crate::map::Map;
use crate::plan::{Calc, Num};
use gt_ir::{Binary, DType, Scalar, ScatterMode, Shape, Ty, Unary, View};
use smallvec::SmallVec;

/// Elementwise work is done again for a slice of it through at most this many instructions.
const DEPTH: usize = 4;
/// Joins of more parts are left as they are.
const MAX_PARTS: usize = 4;

type Parts = SmallVec<[Ref; 4]>;

/// True for work that costs no more than the memory traffic it stands for.
pub fn is_light(calc: Calc) -> bool {
    match calc {
        Calc::Where | Calc::Cast => true,
        Calc::Fold(_) => false,
        Calc::Unary(op) => {
            matches!(op, Unary::Neg | Unary::Abs | Unary::Sign | Unary::Sqrt | Unary::Relu | Unary::Not)
        }
        Calc::Binary(op) => !matches!(op, Binary::Pow | Binary::Rem | Binary::FloorDiv),
    }
}

impl Builder<'_> {
    /// An elementwise instruction. Over a join that nobody else reads it is the join of its work on the parts.
    pub fn elementwise(&mut self, calc: Calc, i: u32, ty: &Ty, mut args: Uses) -> Ref {
        self.narrow_reads(i, &ty.shape, &mut args);
        let Some((dim, lens)) = self.joint(&ty.shape, &args) else {
            return self.whole(What::Elementwise(Some(calc)), i, ty, args);
        };
        let mut parts = Parts::new();
        let mut start = 0;
        for len in lens {
            parts.push(self.on_slice(calc, i, ty, &args, dim, start, len, 0));
            start += len;
        }
        self.joined(i, dim, parts)
    }

    /// The dimension and the parts of a join among the operands through which the work may pass.
    fn joint(&self, shape: &Shape, args: &Uses) -> Option<(usize, SmallVec<[usize; 4]>)> {
        if !self.options.fuse || self.options.apart || self.has_check(args) {
            return None;
        }
        args.iter().find_map(|arg| {
            let Use::Val(Ref { node, map: WHOLE }) = arg else { return None };
            let join = &self.graph.nodes[*node as usize];
            let What::Concat(dim) = join.what else { return None };
            if join.ty.shape != *shape || !self.once.contains(node) {
                return None;
            }
            let run: usize = shape[dim + 1..].iter().product();
            let lens: SmallVec<[usize; 4]> = join
                .args
                .iter()
                .map(|a| if let Use::Val(r) = a { self.graph.shape(*r)[dim] } else { 0 })
                .collect();
            (lens.len() <= MAX_PARTS && lens.iter().all(|len| len * run >= self.options.least_run))
                .then_some((dim, lens))
        })
    }

    fn has_check(&self, args: &Uses) -> bool {
        args.iter().filter_map(Use::node).any(|n| self.graph.nodes[n as usize].is_check())
    }

    /// Values one after the other along `dim`.
    pub fn joined(&mut self, i: u32, dim: usize, mut parts: Parts) -> Ref {
        let first = parts[0];
        parts.retain(|r| self.graph.shape(*r)[dim] > 0);
        let first = parts.first().copied().unwrap_or(first);
        if parts.len() < 2 {
            return first;
        }
        let mut shape = self.graph.shape(first).clone();
        shape[dim] = parts.iter().map(|r| self.graph.shape(*r)[dim]).sum();
        let ty = Ty { dtype: self.graph.nodes[first.node as usize].ty.dtype, shape };
        let made = self.whole(What::Concat(dim), i, &ty, parts.into_iter().map(Use::Val).collect());
        if self.used_once(i) {
            self.once.insert(made.node);
        }
        made
    }

    /// `len` elements along `dim` from `start`.
    pub fn slice(&mut self, i: u32, r: Ref, dim: usize, start: usize, len: usize) -> Ref {
        self.slice_at(i, r, dim, start, len, 0)
    }

    fn slice_at(&mut self, i: u32, r: Ref, dim: usize, start: usize, len: usize, depth: usize) -> Ref {
        let mut shape = self.graph.shape(r).clone();
        if shape[dim] == len {
            return r;
        }
        let node = &self.graph.nodes[r.node as usize];
        if let What::Full = node.what {
            shape[dim] = len;
            let (ty, args) = (Ty { dtype: node.ty.dtype, shape }, node.args.clone());
            return self.whole(What::Full, i, &ty, args);
        }
        if r.map == WHOLE {
            match node.what {
                What::Concat(d) if d == dim => {
                    let mut at = 0;
                    for arg in node.args.clone() {
                        let Use::Val(part) = arg else { continue };
                        let size = self.graph.shape(part)[dim];
                        if at <= start && start + len <= at + size {
                            return self.slice_at(i, part, dim, start - at, len, depth);
                        }
                        at += size;
                    }
                }
                What::Elementwise(Some(calc)) if depth < DEPTH && self.passes(r.node) => {
                    let (ty, args) = (node.ty.clone(), node.args.clone());
                    return self.on_slice(calc, i, &ty, &args, dim, start, len, depth + 1);
                }
                _ => {}
            }
        }
        let mut map = self.graph.map(r);
        map.offset += map.strides[dim] * start as isize;
        shape[dim] = len;
        self.mapped(r.node, map, shape)
    }

    /// True if a node may be computed again for a slice of it.
    fn passes(&self, n: u32) -> bool {
        let node = &self.graph.nodes[n as usize];
        let light = matches!(node.what, What::Elementwise(Some(calc)) if is_light(calc));
        light && self.options.fuse && !self.options.apart && !self.has_check(&node.args)
    }

    /// Elementwise work on a slice of what it works on.
    fn on_slice(
        &mut self,
        calc: Calc,
        i: u32,
        ty: &Ty,
        args: &Uses,
        dim: usize,
        start: usize,
        len: usize,
        depth: usize,
    ) -> Ref {
        let rank = ty.shape.len();
        let mut cut = Uses::new();
        for arg in args {
            let Use::Val(r) = arg else {
                cut.push(*arg);
                continue;
            };
            // Operands of lower rank are broadcast along what they lack.
            let seen = self.graph.shape(*r);
            let own = (dim + seen.len()).checked_sub(rank).filter(|&d| seen[d] != 1 || ty.shape[dim] == 1);
            cut.push(Use::Val(match own {
                Some(d) => self.slice_at(i, *r, d, start, len, depth),
                None => *r,
            }));
        }
        let mut shape = ty.shape.clone();
        shape[dim] = len;
        self.whole(What::Elementwise(Some(calc)), i, &Ty { dtype: ty.dtype, shape }, cut)
    }

    /// A put of a tile into something that is computed anyway, as the join of what stays and what is put. Nothing if the
    /// base is better written in place.
    pub fn put_tile(&mut self, i: u32, path: &[View], args: &Uses) -> Option<Ref> {
        let ([View::Slice { dim, len, .. }], Some(Use::Num(Num::Const(start)))) = (path, args.get(2)) else {
            return None;
        };
        let (dim, len, start) = (*dim, *len, start.as_i64() as usize);
        let base = val(args, 0).ok()?;
        let node = &self.graph.nodes[base.node as usize];
        let fresh = match node.what {
            What::Full => true,
            What::Concat(d) => d == dim && base.map == WHOLE,
            What::Elementwise(Some(_)) => base.map == WHOLE && self.passes(base.node),
            _ => false,
        };
        let size = self.graph.shape(base)[dim];
        let run: usize = self.graph.shape(base)[dim + 1..].iter().product();
        if !fresh || !self.options.fuse || self.options.apart || len * run < self.options.least_run {
            return None;
        }
        let mut parts = self.pieces(i, base, dim, 0, start);
        parts.push(match args[1] {
            Use::Val(r) => r,
            Use::Num(x) => {
                let mut shape = self.graph.shape(base).clone();
                shape[dim] = len;
                let ty = Ty { dtype: self.graph.nodes[base.node as usize].ty.dtype, shape };
                self.whole(What::Full, i, &ty, [Use::Num(x)].into_iter().collect())
            }
        });
        parts.extend(self.pieces(i, base, dim, start + len, size));
        Some(self.joined(i, dim, parts))
    }

    /// The elements `from..to` along `dim`, in the parts of which they were joined.
    fn pieces(&mut self, i: u32, r: Ref, dim: usize, from: usize, to: usize) -> Parts {
        if from == to {
            return Parts::new();
        }
        let node = &self.graph.nodes[r.node as usize];
        if r.map != WHOLE || !matches!(node.what, What::Concat(d) if d == dim) {
            return [self.slice(i, r, dim, from, to - from)].into_iter().collect();
        }
        let mut parts = Parts::new();
        let mut at = 0;
        for arg in node.args.clone() {
            let Use::Val(part) = arg else { continue };
            let size = self.graph.shape(part)[dim];
            let (first, last) = (from.max(at), to.min(at + size));
            if first < last {
                parts.push(self.slice(i, part, dim, first - at, last - first));
            }
            at += size;
        }
        parts
    }

    /// Reads what a cast made wider as it lies, and makes it wider at the reader. Only where the cast is seen through a map:
    /// as it is, it fuses with its readers or is computed again by `Schedule`.
    pub fn narrow_reads(&mut self, i: u32, shape: &Shape, args: &mut Uses) {
        if !self.options.fuse || self.options.apart {
            return;
        }
        for k in 0..args.len() {
            let Use::Val(r) = args[k] else { continue };
            if r.map == WHOLE && self.graph.nodes[r.node as usize].ty.shape == *shape {
                continue;
            }
            let Some(narrow) = self.before_cast(r) else { continue };
            let map = self.graph.map(narrow).expanded(self.graph.shape(narrow), shape);
            let narrow = self.mapped(narrow.node, map, shape.clone());
            let ty = Ty { dtype: self.graph.nodes[r.node as usize].ty.dtype, shape: shape.clone() };
            let cast = What::Elementwise(Some(Calc::Cast));
            args[k] = Use::Val(self.whole(cast, i, &ty, [Use::Val(narrow)].into_iter().collect()));
        }
    }

    /// What a cast to a wider type was made of, seen as the cast is.
    pub fn before_cast(&mut self, r: Ref) -> Option<Ref> {
        let node = &self.graph.nodes[r.node as usize];
        let What::Elementwise(Some(Calc::Cast)) = node.what else { return None };
        let Use::Val(x) = node.args[0] else { return None };
        let from = &self.graph.nodes[x.node as usize];
        let wider = from.ty.dtype.size() < node.ty.dtype.size() && from.ty.dtype != DType::Bool;
        // Numbers and what is computed element by element are better made wide at once.
        let lies =
            matches!(from.what, What::Input | What::Other | What::Part | What::Concat(_) | What::Put(_));
        if !self.options.fuse || self.options.apart || !wider || !lies || x.map != WHOLE {
            return None;
        }
        if r.map == WHOLE {
            return Some(x);
        }
        (from.ty.shape == node.ty.shape).then_some(Ref { node: x.node, map: r.map })
    }

    /// True if a scatter changes at most one element of every row, and the backend would rather compare than scatter.
    pub fn is_one_hot(&self, dim: usize, mode: ScatterMode, args: &Uses) -> bool {
        let (Ok(base), Ok(index)) = (val(args, 0), val(args, 1)) else { return false };
        let (base, index) = (self.graph.shape(base), self.graph.shape(index));
        let fits = base
            .iter()
            .zip(index.iter())
            .enumerate()
            .all(|(d, (b, i))| if d == dim { *i == 1 } else { b == i });
        let plain = self.options.fuse && !self.options.apart && self.options.one_hot;
        plain && fits && base.numel() > 0 && mode != ScatterMode::Max
    }

    /// A scatter of one element per row as a comparison of every place with the index. The last operand is the check.
    pub fn one_hot(&mut self, i: u32, dim: usize, mode: ScatterMode, ty: &Ty, args: &Uses) -> Ref {
        let shape = &ty.shape;
        let spread = |b: &mut Self, r: Ref| {
            let map = b.graph.map(r).expanded(b.graph.shape(r), shape);
            Use::Val(b.mapped(r.node, map, shape.clone()))
        };
        let count = Ty { dtype: DType::I64, shape: [shape[dim]].into() };
        let numbers: Uses = [0i64, 1].iter().map(|&x| Use::Num(Num::Const(Scalar::Int(x)))).collect();
        let places = self.whole(What::Iota, i, &count, numbers);
        let mut map = Map::constant(shape.len());
        map.strides[dim] = 1;
        let places = Use::Val(self.mapped(places.node, map, shape.clone()));
        let Use::Val(index) = args[1] else { unreachable!("an index is a tensor") };
        let (mut index, check) = (spread(self, index), args[args.len() - 1]);
        if index.node().is_some_and(|n| self.graph.nodes[n as usize].ty.dtype != DType::I64) {
            let wide = Ty { dtype: DType::I64, shape: shape.clone() };
            let cast = What::Elementwise(Some(Calc::Cast));
            index = Use::Val(self.whole(cast, i, &wide, [index].into_iter().collect()));
        }
        let bool_ty = Ty { dtype: DType::Bool, shape: shape.clone() };
        let equal = What::Elementwise(Some(Calc::Binary(Binary::Eq)));
        let here = Use::Val(self.whole(equal, i, &bool_ty, [places, index].into_iter().collect()));
        let source = match args[2] {
            Use::Val(r) => spread(self, r),
            number => number,
        };
        let changed = match mode {
            ScatterMode::Add => {
                let add = What::Elementwise(Some(Calc::Binary(Binary::Add)));
                Use::Val(self.whole(add, i, ty, [args[0], source].into_iter().collect()))
            }
            _ => source,
        };
        let choose = What::Elementwise(Some(Calc::Where));
        self.whole(choose, i, ty, [here, changed, args[0], check].into_iter().collect())
    }
}
