//! Which workers hold a tensor. What a program over a mesh made is held by the mesh as a whole, so that a step of many
//! tensors on many workers costs no entry for each pair of them.

use super::mesh::Mesh;
use gt_net::msg::WorkerId;
use smallvec::SmallVec;
use std::sync::Arc;

/// A worker that holds a tensor, or will.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    pub worker: WorkerId,
    /// The worker a copy is still on its way from.
    pub moving: Option<WorkerId>,
}

/// The workers of a mesh, and others.
#[derive(Clone, Debug, Default)]
pub struct Holders {
    mesh: Option<Arc<Mesh>>,
    /// None of them is in the mesh.
    others: SmallVec<[Holder; 1]>,
}

impl Holders {
    /// All workers of a mesh.
    pub fn all(mesh: &Arc<Mesh>) -> Holders {
        Holders { mesh: Some(mesh.clone()), others: SmallVec::new() }
    }

    /// Those of the mesh first.
    pub fn iter(&self) -> impl Iterator<Item = Holder> {
        let of_mesh = self.mesh.iter().flat_map(|mesh| &mesh.workers);
        let holds = |worker: &WorkerId| Holder { worker: *worker, moving: None };
        of_mesh.map(holds).chain(self.others.iter().copied())
    }

    pub fn count(&self) -> usize {
        self.mesh.as_ref().map_or(0, |mesh| mesh.workers.len()) + self.others.len()
    }

    pub fn contains(&self, worker: WorkerId) -> bool {
        let of_mesh = self.mesh.as_ref().is_some_and(|mesh| mesh.workers.contains(&worker));
        of_mesh || self.others.iter().any(|h| h.worker == worker)
    }

    /// The mesh, if its workers and no others hold the tensor.
    pub fn mesh(&self) -> Option<&Arc<Mesh>> {
        self.mesh.as_ref().filter(|_| self.others.is_empty())
    }

    /// The worker, if it and no other holds the tensor.
    pub fn only(&self) -> Option<WorkerId> {
        match (&self.mesh, &self.others[..]) {
            (None, [holder]) => Some(holder.worker),
            _ => None,
        }
    }

    /// True if every worker of a mesh is among them.
    pub fn cover(&self, mesh: &Mesh) -> bool {
        let same = self.mesh.as_ref().is_some_and(|own| own.id == mesh.id);
        same || (self.count() >= mesh.workers.len() && mesh.workers.iter().all(|w| self.contains(*w)))
    }

    /// A holder whose copy does not depend on another worker.
    pub fn source(&self) -> Option<WorkerId> {
        self.iter().find(|h| h.moving.is_none()).map(|h| h.worker)
    }

    pub fn push(&mut self, holder: Holder) {
        self.others.push(holder);
    }

    pub fn remove(&mut self, worker: WorkerId) {
        if let Some(mesh) = self.mesh.take_if(|mesh| mesh.workers.contains(&worker)) {
            let left = mesh.workers.iter().filter(|w| **w != worker);
            let mut others: SmallVec<[Holder; 1]> =
                left.map(|w| Holder { worker: *w, moving: None }).collect();
            others.append(&mut self.others);
            self.others = others;
        }
        self.others.retain(|h| h.worker != worker);
    }

    /// A copy comes from elsewhere, or has come. What a mesh made is not on its way.
    pub fn set_moving(&mut self, worker: WorkerId, moving: Option<WorkerId>) {
        self.others.iter_mut().filter(|h| h.worker == worker).for_each(|h| h.moving = moving);
    }
}
