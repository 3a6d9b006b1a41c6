//! A tensor's place in the autograd graph: its history, its gradient and its hooks.

use super::{Domain, Tensor};
use crate::autograd::{Edge, GradSlot, Held, Hook, Node, NodeKind};
use gt_ir::{Result, bail};
use gt_sync::Mutex;
use std::any::Any;
use std::sync::Arc;

impl Tensor {
    pub(super) fn set_edge(&self, edge: Option<Edge>) {
        match self.0.domain.get() {
            None => self.0.cell.set_edge(edge),
            Some((domain, _)) => *domain.edge.lock() = edge,
        }
    }

    /// Makes a tensor that is no view a leaf without gradient.
    pub fn forget_history(&self) {
        self.set_edge(None);
    }

    /// The history of the storage (or of the domain this tensor belongs to).
    pub(super) fn root_edge(&self) -> Option<Edge> {
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
    pub(super) fn history(&self) -> Result<Option<Edge>> {
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

    /// Forgets the accumulated gradient.
    pub fn clear_grad(&self) {
        let old = self.0.slot.get().and_then(|slot| slot.grad.lock().take());
        drop(old);
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
        edge.node.add_last_hook(edge.nr, hook);
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
}
