//! Views of tensors: what a view is, made without recording, and read.

use super::{Derived, Shown, Step, Strides, Tensor};
use crate::autograd::{Edge, GradMode, Node, NodeArg, NodeKind, Var, grad_enabled, record};
use crate::value::Value;
use gt_ir::infer::view_shape;
use gt_ir::{Op, Operand, Operands, Result, Scalar, Shape, Ty, View, bail};
use smallvec::{SmallVec, smallvec};
use std::sync::Weak;

impl Tensor {
    /// Records the path from the whole storage; the history `edge` joins after `depth` steps.
    pub(super) fn walk(&self, value: Value, edge: Option<Edge>, depth: usize) -> Result<Var> {
        Tensor::steps(&self.0.path, value, edge, depth)
    }

    pub(super) fn steps(path: &[Step], value: Value, edge: Option<Edge>, depth: usize) -> Result<Var> {
        let mut var = Var::plain(value);
        for (i, step) in path.iter().enumerate() {
            if i == depth {
                var.edge = edge.clone();
            }
            // A view made before `no_grad` keeps its history inside it.
            let _mode = edge.is_some().then(|| GradMode::set(true));
            var = step.of(var)?;
        }
        Ok(var)
    }

    /// A view of this tensor.
    pub fn view_step(&self, view: View, start: Option<i64>) -> Result<Tensor> {
        let shape = view_shape(view_name(&view), &view, self.shape())?;
        let (strides, offset) = (self.strides(), self.storage_offset());
        let (new_strides, new_offset) = match &view {
            View::Reshape(to) => match restride(self.shape(), &strides, to) {
                Some(s) => (s, offset),
                None => bail!(
                    Runtime,
                    "view size is not compatible with input tensor's size and stride (at least one dimension spans \
                     across two contiguous subspaces). Use .reshape(...) instead."
                ),
            },
            View::Permute(perm) => (perm.iter().map(|&d| strides[d]).collect(), offset),
            View::Expand(to) => {
                let lead = to.len() - self.ndim();
                let new = (0..to.len())
                    .map(|d| if d < lead || self.shape()[d - lead] != to[d] { 0 } else { strides[d - lead] })
                    .collect();
                (new, offset)
            }
            View::Slice { dim, step, .. } => {
                let mut new = strides.clone();
                let at = offset + start.unwrap_or(0) as isize * strides[*dim];
                new[*dim] *= *step as isize;
                (new, at)
            }
        };
        self.view_at(view, start, shape, (new_strides, new_offset))
    }

    /// A view whose place in the storage is known beforehand, so that its strides need not follow from this tensor's.
    #[inline(always)]
    pub(crate) fn view_at(
        &self,
        view: View,
        start: Option<i64>,
        shape: Shape,
        geometry: (Strides, isize),
    ) -> Result<Tensor> {
        let mut path = self.0.path.clone();
        let own_history = self.0.domain.get().is_some_and(|(_, depth)| *depth == path.len());
        push_step(&mut path, view.clone(), start, !own_history);
        let out = self.beyond(path, shape, geometry);
        // The history of a view belongs to the moment it is made, and goes through the tensor it was made from.
        let tracked = self.requires_grad() && grad_enabled();
        let edge = if tracked { self.view_edge(view, start, out.ty())? } else { None };
        let stamp = self.0.cell.stamp();
        *out.0.derived.lock() = Some(Derived { stamp, value: Shown::Handle(Weak::new()), edge });
        Ok(out)
    }

    /// A view of what lies along `dim` where a 0-d tensor of integers says. It is read at once: the place may be wrong.
    pub(crate) fn pick(&self, dim: usize, place: &Tensor) -> Result<Tensor> {
        let place = Tensor::detach(place).var()?.value;
        let stamp = self.0.cell.stamp();
        let read = picked(self.var()?, dim, &place)?;
        let mut strides = self.strides();
        strides.remove(dim);
        let mut path = self.0.path.clone();
        path.push(Step::Pick { dim, place });
        let out = self.beyond(path, read.value.ty.shape.clone(), (strides, self.storage_offset()));
        *out.0.derived.lock() = Some(Derived { stamp, value: Shown::Kept(read.value), edge: read.edge });
        Ok(out)
    }

    /// A tensor of the same storage and history, with another path.
    #[inline(always)]
    fn beyond(&self, path: Vec<Step>, shape: Shape, geometry: (Strides, isize)) -> Tensor {
        let ty = Ty { dtype: self.dtype(), shape };
        let out = Tensor::make(self.0.cell.clone(), path, ty, Some(Box::new(geometry)), self.0.silent);
        if let Some(domain) = self.0.domain.get() {
            let _ = out.0.domain.set(domain.clone());
        }
        out
    }

    /// The step of the graph that a view of this tensor is. No instruction is recorded before the view is read.
    fn view_edge(&self, view: View, start: Option<i64>, ty: &Ty) -> Result<Option<Edge>> {
        let Some(edge) = self.history()? else { return Ok(None) };
        let mut args = smallvec![NodeArg::Val { ty: self.0.ty.clone(), edge: Some(edge), saved: None }];
        args.extend(start.map(|s| NodeArg::Num(Scalar::Int(s))));
        Ok(Some(Edge { node: Node::new(NodeKind::Op(Op::View(view)), args, ty.clone()), nr: 0 }))
    }

    /// For a view that only swaps the last two dimensions: what lies beneath the swap, so that a matrix product can
    /// read it as it is. The gradient still goes to this tensor.
    pub(crate) fn untransposed(&self) -> Result<Option<Var>> {
        let inner = &*self.0;
        let Some(Step::View(View::Permute(perm), _)) = inner.path.last() else { return Ok(None) };
        let (n, depth) = (perm.len(), inner.path.len() - 1);
        if n < 2 || perm[n - 1] != n - 2 || perm[n - 2] != n - 1 || !(0..n - 2).all(|d| perm[d] == d) {
            return Ok(None);
        }
        let mut shape = inner.ty.shape.clone();
        shape.swap(n - 1, n - 2);
        let ty = Ty { dtype: inner.ty.dtype, shape };
        let edge = match self.history()? {
            Some(edge) if grad_enabled() => {
                let args = smallvec![NodeArg::Val { ty: inner.ty.clone(), edge: Some(edge), saved: None }];
                let op = Op::View(View::Permute(perm.clone()));
                Some(Edge { node: Node::new(NodeKind::Op(op), args, ty), nr: 0 })
            }
            _ => None,
        };
        let value = Tensor::steps(&inner.path[..depth], inner.cell.read().value, None, 0)?.value;
        Ok(Some(Var { value, edge, owner: Some(inner.cell.clone()) }))
    }
}

fn view_name(view: &View) -> &'static str {
    match view {
        View::Reshape(_) => "view",
        View::Permute(_) => "permute",
        View::Expand(_) => "expand",
        View::Slice { .. } => "slice",
    }
}

impl Step {
    /// The view, unless a tensor tells the place.
    pub(crate) fn view(&self) -> Option<&View> {
        match self {
            Step::View(view, _) => Some(view),
            Step::Pick { .. } => None,
        }
    }

    /// Where it starts, if it is a slice.
    pub(crate) fn start(&self) -> Option<i64> {
        match self {
            Step::View(_, start) => *start,
            Step::Pick { .. } => None,
        }
    }

    /// Records the step from what it starts from.
    pub(super) fn of(&self, from: Var) -> Result<Var> {
        match self {
            Step::View(view, start) => {
                let mut args: Operands<Var> = smallvec![Operand::Val(from)];
                args.extend(start.map(|s| Operand::Num(Scalar::Int(s))));
                record(Op::View(view.clone()), args)
            }
            Step::Pick { dim, place } => picked(from, *dim, place),
        }
    }
}

fn picked(from: Var, dim: usize, place: &Value) -> Result<Var> {
    let place = Operand::Val(Var::plain(place.clone()));
    record(Op::Take { dim }, smallvec![Operand::Val(from), place])
}

/// Appends a view, joining it with the last where two are one: slices of one dimension, reshapes of reshapes.
fn push_step(path: &mut Vec<Step>, view: View, start: Option<i64>, join: bool) {
    if let Some(Step::View(last, begin)) = path.last_mut().filter(|_| join) {
        match (&*last, &view) {
            (View::Reshape(_), View::Reshape(_)) => {
                *last = view;
                return;
            }
            (View::Slice { dim: a, step: sa, .. }, View::Slice { dim: b, len, step: sb }) if a == b => {
                // An empty slice may lie behind the last element, and scaled outside of the base.
                let from = match len {
                    0 => 0,
                    _ => begin.unwrap_or(0) + start.unwrap_or(0) * *sa as i64,
                };
                *last = View::Slice { dim: *a, len: *len, step: sa * sb };
                *begin = Some(from);
                return;
            }
            _ => {}
        }
    }
    path.push(Step::View(view, start));
}

/// Strides of a reshaped view, if the elements can be shown that way without copying.
pub fn restride(shape: &Shape, strides: &Strides, to: &Shape) -> Option<Strides> {
    if shape.numel() == 0 {
        return Some(to.strides());
    }
    let mut out: Strides = SmallVec::from_elem(1, to.len());
    let mut next = to.len();
    let dims: SmallVec<[(usize, isize); 5]> =
        shape.iter().zip(strides).filter(|(n, _)| **n != 1).map(|(&n, &s)| (n, s)).collect();
    let mut d = dims.len();
    while d > 0 {
        // A run of dimensions that together step evenly through memory.
        d -= 1;
        let step = dims[d].1;
        let mut run = dims[d].0;
        while d > 0 && dims[d - 1].1 == run as isize * step {
            d -= 1;
            run *= dims[d].0;
        }
        let mut filled = 1;
        while next > 0 && (filled < run || to[next - 1] == 1) {
            next -= 1;
            out[next] = filled as isize * step;
            filled *= to[next];
        }
        if filled != run {
            return None;
        }
    }
    to[..next].iter().all(|&n| n == 1).then_some(out)
}
