//! Writing tensors in place (C1).

use super::{Step, Tensor};
use crate::autograd::{GradMode, Node, NodeKind, Var, grad_enabled, record};
use crate::cell::Cell;
use crate::value::Value;
use gt_ir::infer::view_shape;
use gt_ir::{Binary, Op, Operand, Operands, Result, Scalar, Ty, bail};
use smallvec::smallvec;
use std::sync::Arc;

impl Tensor {
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

    /// In-place `self = self op other`, for ops whose result has this tensor's shape.
    pub fn binary_(&self, op: Binary, other: &Operand<Tensor>, lenient: bool) -> Result<()> {
        crate::ops::arith::binary_inplace(self, op, other, lenient)
    }
}

/// From now on a result that `node` saved must not be written through the storage that holds it.
pub(super) fn watch(cell: &Cell, node: &Node, value: &Value) {
    for saved in node.outs.lock().iter_mut().filter(|saved| Arc::ptr_eq(&saved.value, value)) {
        saved.version = Some((cell.version_handle(), cell.version()));
    }
}
