//! Tensors: a cell and a view of it, with PyTorch's aliasing and autograd.

use crate::autograd::{
    Edge, GradMode, GradSlot, Held, Hook, Node, NodeArg, NodeKind, Var, grad_enabled, record,
};
use crate::cell::Cell;
use crate::session::Session;
use crate::value::{Value, ValueInner};
use gt_ir::infer::view_shape;
use gt_ir::{Binary, DType, Error, Op, Operand, Operands, Result, Scalar, Shape, Ty, View, bail};
use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};
use std::any::Any;
use std::sync::{Arc, OnceLock, Weak};

/// Strides in elements.
pub type Strides = SmallVec<[isize; 5]>;

/// One step from a storage towards a view of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub view: View,
    /// Where the slice starts, if it is one.
    pub start: Option<i64>,
}

/// A tensor. Cloning it gives another name for the same tensor.
#[derive(Clone)]
pub struct Tensor(Arc<Inner>);

/// A tensor that may be gone.
#[derive(Clone)]
pub struct WeakTensor(Weak<Inner>);

impl WeakTensor {
    pub fn upgrade(&self) -> Option<Tensor> {
        self.0.upgrade().map(Tensor)
    }
}

struct Inner {
    cell: Arc<Cell>,
    /// From the whole storage to what this tensor shows; empty for the whole.
    path: Vec<Step>,
    ty: Ty,
    /// Strides and offset within the storage, for views.
    geometry: Option<Box<(Strides, isize)>>,
    /// Gradient history of its own, apart from the storage's: (history, how many steps of the path lie before it).
    domain: OnceLock<(Arc<Domain>, usize)>,
    slot: OnceLock<Arc<GradSlot>>,
    retains: std::sync::atomic::AtomicBool,
    /// Writes through it are not counted by autograd (`.data`).
    silent: bool,
    derived: Mutex<Option<Derived>>,
}

/// Gradient history of a tensor detached from its storage's.
struct Domain {
    edge: Mutex<Option<Edge>>,
}

/// What a view was worked out to be at some stamp of its cell. The value is not kept alive by it.
struct Derived {
    stamp: u64,
    value: Weak<ValueInner>,
    edge: Option<Edge>,
}

impl Tensor {
    fn make(
        cell: Arc<Cell>,
        path: Vec<Step>,
        ty: Ty,
        geometry: Option<Box<(Strides, isize)>>,
        silent: bool,
    ) -> Tensor {
        Tensor(Arc::new(Inner {
            cell,
            path,
            ty,
            geometry,
            domain: OnceLock::new(),
            slot: OnceLock::new(),
            retains: false.into(),
            silent,
            derived: Mutex::new(None),
        }))
    }

    /// A tensor with storage of its own.
    #[inline]
    pub fn from_var(var: Var) -> Tensor {
        let ty = var.value.ty.clone();
        let out = var.edge.as_ref().map(|e| (e.node.clone(), var.value.clone()));
        let cell = Cell::new(var.value, var.edge);
        if let Some((node, value)) = out
            && node.outs.lock().iter().any(|saved| saved.version.is_none())
        {
            watch(&cell, &node, &value);
        }
        Tensor::make(cell, Vec::new(), ty, None, false)
    }

    /// A tensor with storage of its own and no gradient history.
    pub fn from_value(value: Value) -> Tensor {
        Tensor::from_var(Var::plain(value))
    }

    pub fn ty(&self) -> &Ty {
        &self.0.ty
    }

    pub fn shape(&self) -> &Shape {
        &self.0.ty.shape
    }

    pub fn dtype(&self) -> DType {
        self.0.ty.dtype
    }

    pub fn ndim(&self) -> usize {
        self.0.ty.shape.len()
    }

    pub fn numel(&self) -> usize {
        self.0.ty.shape.numel()
    }

    /// True if both are names of one tensor.
    pub fn same(&self, other: &Tensor) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// True if both look at one storage.
    pub fn shares_storage(&self, other: &Tensor) -> bool {
        Arc::ptr_eq(&self.0.cell, &other.0.cell)
    }

    /// A number that is the same for all names of one tensor, and differs between tensors.
    pub fn address(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }

    /// The storage it looks at.
    pub(crate) fn cell(&self) -> &Arc<Cell> {
        &self.0.cell
    }

    /// True if this tensor is a view of another.
    pub fn is_view(&self) -> bool {
        !self.0.path.is_empty()
    }

    /// Strides in elements within the storage.
    pub fn strides(&self) -> Strides {
        match &self.0.geometry {
            Some(g) => g.0.clone(),
            None => self.0.ty.shape.strides(),
        }
    }

    /// The first element's place within the storage.
    pub fn storage_offset(&self) -> isize {
        self.0.geometry.as_ref().map_or(0, |g| g.1)
    }

    /// True if the elements lie in row-major order without gaps.
    pub fn is_contiguous(&self) -> bool {
        match &self.0.geometry {
            None => true,
            Some(g) => {
                let mut expected = 1;
                for (&n, &s) in self.shape().iter().zip(&g.0).rev() {
                    if n != 1 && s != expected {
                        return self.numel() == 0;
                    }
                    expected *= n as isize;
                }
                true
            }
        }
    }

    /// The session the tensor belongs to.
    pub fn session(&self) -> Result<Arc<Session>> {
        Var::plain(self.0.cell.read().value).session()
    }

    /// How often the storage was written, as autograd counts.
    pub fn version(&self) -> u32 {
        self.0.cell.version()
    }

    /// The current value and its gradient history; stale views are worked out anew.
    #[inline]
    pub fn var(&self) -> Result<Var> {
        let inner = &*self.0;
        let now = inner.cell.read();
        if inner.path.is_empty() {
            let edge = match inner.domain.get() {
                None => now.edge,
                Some((domain, _)) => domain.edge.lock().clone(),
            };
            return Ok(Var { value: now.value, edge, owner: Some(inner.cell.clone()) });
        }
        let mut derived = inner.derived.lock();
        let fresh = derived.as_ref().filter(|d| d.stamp == now.stamp);
        let own_edge = match inner.domain.get() {
            Some((domain, depth)) if *depth == inner.path.len() => Some(domain.edge.lock().clone()),
            _ => None,
        };
        if let Some(d) = fresh
            && let Some(value) = d.value.upgrade()
        {
            let edge = own_edge.unwrap_or_else(|| d.edge.clone());
            return Ok(Var { value, edge, owner: Some(inner.cell.clone()) });
        }
        // The value is gone or stale: record the path again. The history is kept if it is still that of the cell.
        let known_edge = fresh.map(|d| d.edge.clone());
        let var = match (own_edge, known_edge) {
            (Some(edge), _) => Var { value: self.walk(now.value, None, 0)?.value, edge, owner: None },
            (None, Some(edge)) => Var { value: self.walk(now.value, None, 0)?.value, edge, owner: None },
            (None, None) => match inner.domain.get() {
                None => self.walk(now.value, now.edge, 0)?,
                Some((domain, depth)) => {
                    let edge = domain.edge.lock().clone();
                    self.walk(now.value, edge, *depth)?
                }
            },
        };
        *derived =
            Some(Derived { stamp: now.stamp, value: Arc::downgrade(&var.value), edge: var.edge.clone() });
        Ok(Var { owner: Some(inner.cell.clone()), ..var })
    }

    /// Records the path from the whole storage; the history `edge` joins after `depth` steps.
    fn walk(&self, value: Value, edge: Option<Edge>, depth: usize) -> Result<Var> {
        Tensor::steps(&self.0.path, value, edge, depth)
    }

    fn steps(path: &[Step], value: Value, edge: Option<Edge>, depth: usize) -> Result<Var> {
        let mut var = Var::plain(value);
        for (i, step) in path.iter().enumerate() {
            if i == depth {
                var.edge = edge.clone();
            }
            let mut args: Operands<Var> = smallvec![Operand::Val(var)];
            args.extend(step.start.map(|s| Operand::Num(Scalar::Int(s))));
            // A view made before `no_grad` keeps its history inside it.
            let _mode = edge.is_some().then(|| GradMode::set(true));
            var = record(Op::View(step.view.clone()), args)?;
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
        let mut path = self.0.path.clone();
        let own_history = self.0.domain.get().is_some_and(|(_, depth)| *depth == path.len());
        push_step(&mut path, Step { view: view.clone(), start }, !own_history);
        let ty = Ty { dtype: self.dtype(), shape };
        let geometry = Some(Box::new((new_strides, new_offset)));
        let out = Tensor::make(self.0.cell.clone(), path, ty, geometry, self.0.silent);
        if let Some(domain) = self.0.domain.get() {
            let _ = out.0.domain.set(domain.clone());
        }
        // The history of a view belongs to the moment it is made, and goes through the tensor it was made from.
        let tracked = self.requires_grad() && grad_enabled();
        let edge = if tracked { self.view_edge(view, start, out.ty())? } else { None };
        *out.0.derived.lock() = Some(Derived { stamp: self.0.cell.stamp(), value: Weak::new(), edge });
        Ok(out)
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
        let Some(Step { view: View::Permute(perm), .. }) = inner.path.last() else { return Ok(None) };
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

    /// Gives the whole of what this tensor shows a new value of the same type, in place.
    pub fn write(&self, new: Operand<Var>) -> Result<()> {
        let inner = &*self.0;
        if let Operand::Val(v) = &new {
            if v.value.ty != inner.ty {
                bail!(Runtime, "in-place write: expected {}, got {}", inner.ty, v.value.ty);
            }
            if v.value.stream.session_id != inner.cell.stream().session_id {
                bail!(
                    Runtime,
                    "in-place write: the tensors belong to two different sessions: bring one over with                      gt.tensor(x.numpy())"
                );
            }
        }
        if self.overlaps() {
            bail!(
                Runtime,
                "unsupported operation: more than one element of the written-to tensor refers to a single memory \
                 location. Please clone() the tensor before performing the operation."
            );
        }
        let tracking = grad_enabled() && !inner.silent;
        if inner.path.is_empty() {
            let mut var = match &new {
                Operand::Val(v) => v.clone(),
                Operand::Num(x) => crate::ops::create::full_var(&self.session()?, &inner.ty, *x)?,
            };
            // A tracked tensor stays one when something untracked takes its place.
            if tracking
                && var.edge.is_none()
                && let Some(root) = self.root_edge()
            {
                var.edge = Some(crate::ops::grad_only_put(&[], Some(root), &inner.ty, new)?);
            }
            // Values are written once, so storage may share one with other storage.
            inner.cell.write(crate::signal::keep(&inner.cell, var.value.clone())?, !inner.silent);
            if tracking {
                if let Some(edge) = &var.edge {
                    watch(&inner.cell, &edge.node, &var.value);
                }
                self.set_edge(var.edge);
            }
            return Ok(());
        }
        let base = inner.cell.read();
        let (domain, depth) = match inner.domain.get() {
            None => (None, 0),
            Some((d, depth)) => (Some(d.clone()), *depth),
        };
        let root_edge = match &domain {
            None => base.edge.clone(),
            Some(d) => d.edge.lock().clone(),
        };
        let whole = Var {
            value: base.value.clone(),
            edge: if depth == 0 { root_edge.clone() } else { None },
            owner: None,
        };
        let put = |steps: &[Step], root: Var, new: Operand<Var>| -> (Op, Operands<Var>) {
            let mut args: Operands<Var> = smallvec![Operand::Val(root), new];
            args.extend(steps.iter().filter_map(|s| s.start).map(|s| Operand::Num(Scalar::Int(s))));
            (Op::Put { path: steps.iter().map(|s| s.view.clone()).collect() }, args)
        };
        let (op, args) = put(&inner.path, whole, new.clone());
        let result = if depth == 0 && tracking {
            record(op, args)?
        } else {
            let _mode = GradMode::set(false);
            record(op, args)?
        };
        let mut edge = result.edge.clone();
        let tracked = root_edge.is_some() || new.val().is_some_and(|v| v.edge.is_some());
        if depth > 0 && tracking && tracked {
            edge = new.val().and_then(|v| v.edge.clone()).filter(|_| depth == inner.path.len());
            if edge.is_none() {
                let shape = inner.path[..depth]
                    .iter()
                    .try_fold(base.value.ty.shape.clone(), |s, step| view_shape("PUT", &step.view, &s))?;
                let root_ty = Ty { dtype: inner.ty.dtype, shape };
                edge =
                    Some(crate::ops::grad_only_put(&inner.path[depth..], root_edge, &root_ty, new.clone())?);
            }
        }
        inner.cell.write(crate::signal::keep(&inner.cell, result.value)?, !inner.silent);
        if tracking {
            if let Some(Var { value, edge: Some(edge), .. }) = new.val() {
                watch(&inner.cell, &edge.node, value);
            }
            match domain {
                None => inner.cell.set_edge(edge),
                Some(d) => *d.edge.lock() = edge,
            }
        }
        Ok(())
    }

    fn set_edge(&self, edge: Option<Edge>) {
        match self.0.domain.get() {
            None => self.0.cell.set_edge(edge),
            Some((domain, _)) => *domain.edge.lock() = edge,
        }
    }

    /// Makes a tensor that is no view a leaf without gradient.
    pub fn forget_history(&self) {
        self.set_edge(None);
    }

    /// Replaces the value without touching history or version (gradient accumulation, `.data = ...`).
    pub fn assign(&self, value: Value) -> Result<()> {
        let _mode = GradMode::set(false);
        self.write(Operand::Val(Var::plain(value)))
    }

    fn overlaps(&self) -> bool {
        let Some(g) = &self.0.geometry else { return false };
        self.shape().iter().zip(&g.0).any(|(&n, &s)| n > 1 && s == 0)
    }

    /// Refuses an in-place change of a leaf that requires grad. `lenient` lets `p -= x` pass when `x` has no graph.
    pub fn check_inplace(&self, lenient: bool) -> Result<()> {
        if !grad_enabled() || self.0.silent || lenient {
            return Ok(());
        }
        match self.root_edge() {
            Some(edge) if matches!(edge.node.kind, NodeKind::Leaf(_)) => {
                let what = if self.is_view() { "a view of a leaf Variable" } else { "a leaf Variable" };
                bail!(
                    Runtime,
                    "{what} that requires grad is being used in an in-place operation. Use `with gt.no_grad():` to \
                     update it without recording."
                )
            }
            _ => Ok(()),
        }
    }

    /// The history of the storage (or of the domain this tensor belongs to).
    fn root_edge(&self) -> Option<Edge> {
        match self.0.domain.get() {
            None => self.0.cell.edge(),
            Some((domain, _)) => domain.edge.lock().clone(),
        }
    }

    /// True if gradients flow to or through this tensor.
    pub fn requires_grad(&self) -> bool {
        if self.0.path.is_empty() {
            return self.root_edge().is_some();
        }
        match &*self.0.derived.lock() {
            Some(d) if d.stamp == self.0.cell.stamp() => match self.0.domain.get() {
                Some((domain, depth)) if *depth == self.0.path.len() => domain.edge.lock().is_some(),
                _ => d.edge.is_some(),
            },
            _ => self.root_edge().is_some(),
        }
    }

    /// True if no operation made it, as far as autograd knows.
    pub fn is_leaf(&self) -> bool {
        match self.edge() {
            Some(edge) => matches!(edge.node.kind, NodeKind::Leaf(_)),
            None => true,
        }
    }

    /// Where this tensor's gradient goes.
    pub fn edge(&self) -> Option<Edge> {
        self.history().ok().flatten()
    }

    /// Where this tensor's gradient goes. Only for a view that was written since it was made is something recorded.
    fn history(&self) -> Result<Option<Edge>> {
        let inner = &*self.0;
        if inner.path.is_empty() || inner.domain.get().is_some_and(|(_, depth)| *depth == inner.path.len()) {
            return Ok(self.root_edge());
        }
        let stamp = inner.cell.stamp();
        if let Some(d) = inner.derived.lock().as_ref().filter(|d| d.stamp == stamp) {
            return Ok(d.edge.clone());
        }
        if self.root_edge().is_none() {
            return Ok(None);
        }
        Ok(self.var()?.edge)
    }

    /// Starts or stops asking for gradients of a leaf.
    pub fn set_requires_grad(&self, on: bool) -> Result<()> {
        let edge = self.history()?;
        match (&edge, on) {
            (None, false) => return Ok(()),
            (Some(_), true) => return Ok(()),
            (Some(e), false) if !matches!(e.node.kind, NodeKind::Leaf(_)) => bail!(
                Runtime,
                "you can only change requires_grad flags of leaf variables. If you want to use a computed variable in \
                 a subgraph that doesn't require differentiation use var_no_grad = var.detach()."
            ),
            _ => {}
        }
        if on && !self.dtype().is_float() {
            bail!(
                Runtime,
                "only Tensors of floating point dtype can require gradients, got {}",
                self.dtype().name()
            );
        }
        let edge = on.then(|| {
            let slot = self.0.slot.get_or_init(Arc::default).clone();
            Edge { node: Node::leaf(slot, self.0.ty.clone()), nr: 0 }
        });
        if self.0.path.is_empty() || self.0.domain.get().is_some_and(|(_, d)| *d == self.0.path.len()) {
            self.set_edge(edge);
        } else {
            let domain = Arc::new(Domain { edge: Mutex::new(edge) });
            if self.0.domain.set((domain, self.0.path.len())).is_err() {
                bail!(
                    Runtime,
                    "requires_grad: a view of a detached tensor cannot become a leaf, detach it first"
                );
            }
        }
        Ok(())
    }

    /// The accumulated gradient.
    pub fn grad(&self) -> Option<Tensor> {
        self.0.slot.get().and_then(|s| s.grad.lock().clone())
    }

    /// Replaces the accumulated gradient.
    pub fn set_grad(&self, grad: Option<Tensor>) -> Result<()> {
        if let Some(g) = &grad {
            if g.shape() != self.shape() {
                bail!(
                    Runtime,
                    "assigned grad has data of a different size: expected {}, got {}",
                    self.shape(),
                    g.shape()
                );
            }
            if g.dtype() != self.dtype() {
                bail!(
                    Runtime,
                    "assigned grad has data of a different type: expected {}, got {}",
                    self.dtype().name(),
                    g.dtype().name()
                );
            }
        }
        let old = std::mem::replace(&mut *self.0.slot.get_or_init(Arc::default).grad.lock(), grad);
        drop(old);
        Ok(())
    }

    /// Where the gradient accumulates.
    pub fn grad_slot(&self) -> Arc<GradSlot> {
        self.0.slot.get_or_init(Arc::default).clone()
    }

    /// Keeps the gradient of a tensor that is not a leaf.
    pub fn retain_grad(&self) -> Result<()> {
        let Some(edge) = self.history()? else {
            bail!(Runtime, "can't retain_grad on Tensor that has requires_grad=False");
        };
        if matches!(edge.node.kind, NodeKind::Leaf(_))
            || self.0.retains.swap(true, std::sync::atomic::Ordering::Relaxed)
        {
            return Ok(());
        }
        let slot = self.grad_slot();
        let hook: Hook = Arc::new(move |g| {
            *slot.grad.lock() = Some(g.clone());
            Ok(None)
        });
        edge.node.add_hook(edge.nr, hook, None);
        Ok(())
    }

    /// True if `retain_grad` was called on a tensor that is not a leaf.
    pub fn retains_grad(&self) -> bool {
        self.0.retains.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Calls `hook` with the gradient of this tensor in each backward pass; returns the node and the hook's id.
    pub fn register_hook(&self, hook: Hook) -> Result<(Arc<Node>, u64)> {
        self.register_holding_hook(hook, None)
    }

    /// `register_hook`, for a hook that holds something which `see_held` is to show.
    pub fn register_holding_hook(&self, hook: Hook, held: Option<Held>) -> Result<(Arc<Node>, u64)> {
        let Some(edge) = self.history()? else {
            bail!(Runtime, "cannot register a hook on a tensor that doesn't require gradient");
        };
        let id = edge.node.add_hook(edge.nr, hook, held);
        Ok((edge.node, id))
    }

    /// Shows what callables hold that nobody but this tensor keeps alive, each once. Waits for no lock.
    pub fn see_held(&self, see: &mut dyn FnMut(&(dyn Any + Send + Sync))) {
        let inner = &*self.0;
        if Arc::strong_count(&self.0) > 1 {
            return;
        }
        let mut leaf = false;
        let mut look = |edge: &Option<Edge>| {
            if let Some(Edge { node, .. }) = edge
                && Arc::strong_count(node) == 1
            {
                leaf = matches!(node.kind, NodeKind::Leaf(_));
                node.see_held(see);
            }
        };
        match inner.domain.get() {
            Some((domain, depth)) if *depth == inner.path.len() => {
                if Arc::strong_count(domain) == 1
                    && let Some(edge) = domain.edge.try_lock()
                {
                    look(&edge);
                }
            }
            _ if !inner.path.is_empty() => {
                if let Some(Some(derived)) = inner.derived.try_lock().as_deref() {
                    look(&derived.edge);
                }
            }
            _ => {
                if Arc::strong_count(&inner.cell) == 1 {
                    inner.cell.see_edge(&mut look);
                }
            }
        }
        // A leaf's slot is also its node's.
        if let Some(slot) = inner.slot.get()
            && Arc::strong_count(slot) == 1 + leaf as usize
            && let Some(hooks) = slot.post_hooks.try_lock()
        {
            hooks.iter().filter_map(|(.., held)| held.as_deref()).for_each(see);
        }
    }

    /// A handle that does not keep the tensor alive.
    pub fn downgrade(&self) -> WeakTensor {
        WeakTensor(Arc::downgrade(&self.0))
    }

    /// The same storage without gradient history.
    pub fn detach(&self) -> Tensor {
        self.alias(false)
    }

    /// `.data`: like `detach`, but autograd does not count writes through it.
    pub fn data(&self) -> Tensor {
        self.alias(true)
    }

    fn alias(&self, silent: bool) -> Tensor {
        let inner = &*self.0;
        let domain = OnceLock::new();
        let _ = domain.set((Arc::new(Domain { edge: Mutex::new(None) }), inner.path.len()));
        Tensor(Arc::new(Inner {
            cell: inner.cell.clone(),
            path: inner.path.clone(),
            ty: inner.ty.clone(),
            geometry: inner.geometry.clone(),
            domain,
            slot: OnceLock::new(),
            retains: false.into(),
            silent: silent || inner.silent,
            derived: Mutex::new(None),
        }))
    }

    /// The dense bytes of the tensor; waits for them.
    pub fn bytes(&self) -> Result<Arc<Vec<u8>>> {
        crate::signal::poll()?;
        if self.numel() == 0 {
            self.session()?.before_op()?;
            return Ok(Arc::new(Vec::new()));
        }
        let value = {
            let _mode = GradMode::set(false);
            self.var()?.value
        };
        self.session()?.fetch(&value)
    }

    /// The only element as a number; waits for it.
    pub fn item(&self) -> Result<Scalar> {
        if self.numel() != 1 {
            bail!(
                Runtime,
                "a Tensor with {} elements cannot be converted to Scalar: index it first, or use .tolist()",
                self.numel()
            );
        }
        Ok(Scalar::read(self.dtype(), &self.bytes()?))
    }

    /// In-place `self = self op other`, for ops whose result has this tensor's shape.
    pub fn binary_(&self, op: Binary, other: &Operand<Tensor>, lenient: bool) -> Result<()> {
        crate::ops::arith::binary_inplace(self, op, other, lenient)
    }
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "Tensor({})", self.0.ty)
    }
}

/// From now on a result that `node` saved must not be written through the storage that holds it.
fn watch(cell: &Cell, node: &Node, value: &Value) {
    for saved in node.outs.lock().iter_mut().filter(|saved| Arc::ptr_eq(&saved.value, value)) {
        saved.version = Some((cell.version_handle(), cell.version()));
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

/// Appends a step, joining it with the last where two are one: slices of one dimension, reshapes of reshapes.
fn push_step(path: &mut Vec<Step>, step: Step, join: bool) {
    if let Some(last) = path.last_mut().filter(|_| join) {
        match (&last.view, &step.view) {
            (View::Reshape(_), View::Reshape(_)) => {
                last.view = step.view;
                return;
            }
            (View::Slice { dim: a, step: sa, .. }, View::Slice { dim: b, len, step: sb }) if a == b => {
                // An empty slice may lie behind the last element, and scaled outside of the base.
                let start = match len {
                    0 => 0,
                    _ => last.start.unwrap_or(0) + step.start.unwrap_or(0) * *sa as i64,
                };
                last.view = View::Slice { dim: *a, len: *len, step: sa * sb };
                last.start = Some(start);
                return;
            }
            _ => {}
        }
    }
    path.push(step);
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

/// Refuses tensors that are not floating point.
pub(crate) fn need_float(op: &str, t: &Tensor) -> Result<()> {
    if !t.dtype().is_float() {
        return Err(Error::Runtime(format!(
            "{op}: expected a floating-point tensor, got {}",
            t.dtype().name()
        )));
    }
    Ok(())
}
