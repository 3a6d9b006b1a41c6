//! Writing tensors in place (C1).

use super::{Step, Tensor};
use crate::autograd::{Edge, GradMode, Node, NodeKind, Var, grad_enabled, record};
use crate::cell::Cell;
use crate::value::Value;
use crate::wait::Unbroken;
use gt_ir::infer::view_shape;
use gt_ir::{Binary, Op, Operand, Operands, Result, Scalar, ScatterMode, Ty, bail};
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
                var.edge = Some(crate::ops::put_edge(&[], Some(root), &inner.ty, new)?);
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
        self.in_one_step(|| self.write_part(new, tracking))
    }

    /// Reads, computes and writes: no other thread of the process runs in between. What has failed before is raised first.
    pub(crate) fn in_one_step(&self, step: impl FnOnce() -> Result<()>) -> Result<()> {
        self.session()?.before_op()?;
        let unbroken = Unbroken::begin();
        step()?;
        unbroken.end(|| self.session())
    }

    /// Writes what a view shows into its storage.
    fn write_part(&self, new: Operand<Var>, tracking: bool) -> Result<()> {
        let inner = &*self.0;
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
        let result = {
            let _mode = (depth > 0 || !tracking).then(|| GradMode::set(false));
            put(&inner.path, whole, new.clone())?
        };
        let mut edge = result.edge.clone();
        let tracked = root_edge.is_some() || new.val().is_some_and(|v| v.edge.is_some());
        if depth > 0 && tracking && tracked {
            edge = new.val().and_then(|v| v.edge.clone()).filter(|_| depth == inner.path.len());
            if edge.is_none() {
                edge = self.domain_put(&base.value, depth, root_edge, new.clone())?;
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

    /// The history of a put into what the path shows after `depth` steps, whose history is `root`.
    fn domain_put(
        &self,
        base: &Value,
        depth: usize,
        root: Option<Edge>,
        new: Operand<Var>,
    ) -> Result<Option<Edge>> {
        let (before, after) = self.0.path.split_at(depth);
        if after.iter().any(|step| matches!(step, Step::Pick { .. })) {
            let shown = Tensor::steps(before, base.clone(), None, 0)?;
            return Ok(put(after, Var { edge: root, ..shown }, new)?.edge);
        }
        // The value was recorded at the storage: here only the graph grows.
        let shape = before.iter().try_fold(base.ty.shape.clone(), |mut shape, step| match step {
            Step::View(view, _) => view_shape("PUT", view, &shape),
            Step::Pick { dim, .. } => {
                shape.remove(*dim);
                Ok(shape)
            }
        })?;
        let ty = Ty { dtype: self.0.ty.dtype, shape };
        crate::ops::put_edge(after, root, &ty, new).map(Some)
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

/// `root` with what `steps` show of it replaced by `new`.
fn put(steps: &[Step], root: Var, new: Operand<Var>) -> Result<Var> {
    let is_pick = |step: &Step| matches!(step, Step::Pick { .. });
    let Some(at) = steps.iter().position(is_pick) else {
        let mut args: Operands<Var> = smallvec![Operand::Val(root), new];
        args.extend(steps.iter().filter_map(Step::start).map(|s| Operand::Num(Scalar::Int(s))));
        return record(Op::Put { path: steps.iter().filter_map(Step::view).cloned().collect() }, args);
    };
    let (before, Step::Pick { dim, place }, after) = (&steps[..at], &steps[at], &steps[at + 1..]) else {
        bail!(Runtime, "in-place write: expected a picked place");
    };
    let shown = before.iter().try_fold(root.clone(), |var, step| step.of(var))?;
    let new = match after {
        [] => match new {
            Operand::Val(new) => new,
            Operand::Num(x) => {
                let mut shape = shown.value.ty.shape.clone();
                shape.remove(*dim);
                let ty = Ty { dtype: shown.value.ty.dtype, shape };
                crate::ops::create::full_var(&shown.session()?, &ty, x)?
            }
        },
        after => put(after, steps[at].of(shown.clone())?, new)?,
    };
    let op = Op::TakePut { dim: *dim, mode: ScatterMode::Set };
    let place = Operand::Val(Var::plain(place.clone()));
    let shown = record(op, smallvec![Operand::Val(shown), place, Operand::Val(new)])?;
    if before.is_empty() { Ok(shown) } else { put(before, root, Operand::Val(shown)) }
}

/// From now on a result that `node` saved must not be written through the storage that holds it.
pub(super) fn watch(cell: &Cell, node: &Node, value: &Value) {
    for saved in node.outs.lock().iter_mut().filter(|saved| Arc::ptr_eq(&saved.value, value)) {
        saved.version = Some((cell.version_handle(), cell.version()));
    }
}
