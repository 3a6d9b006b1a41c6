//! Cells: the storage behind tensors, with PyTorch's aliasing on top of values that are written once (C1).

use crate::autograd::Edge;
use crate::stream::{Rebind, Stream};
use crate::value::{SETTLED, Value};
use gt_sync::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Storage shared by a tensor and its views: the current value of the whole, and how often it was written.
pub struct Cell {
    state: Mutex<State>,
    /// The signal by which its values are laid out, as `signal::Scope` numbers them; 0 for none.
    signal: AtomicU32,
}

struct State {
    value: Value,
    /// Gradient history of the whole storage (tensors detached from it keep their own).
    edge: Option<Edge>,
    /// Changes with every write; views compare it to know whether they are stale.
    stamp: u64,
    version: Version,
}

/// A version counter that becomes shared when the autograd graph saves the tensor.
enum Version {
    Own(u32),
    Shared(Arc<AtomicU32>),
}

/// What a cell holds at one moment.
pub struct Snapshot {
    pub value: Value,
    pub edge: Option<Edge>,
    pub stamp: u64,
}

impl Cell {
    pub fn new(value: Value, edge: Option<Edge>) -> Arc<Cell> {
        let state = State { value, edge, stamp: 0, version: Version::Own(0) };
        Arc::new(Cell { state: Mutex::new(state), signal: AtomicU32::new(0) })
    }

    /// The signal by which its values are laid out.
    #[inline]
    pub(crate) fn signal(&self) -> u32 {
        self.signal.load(Ordering::Relaxed)
    }

    /// From now on its values are laid out by this signal.
    pub(crate) fn set_signal(&self, signal: u32) {
        self.signal.store(signal, Ordering::Relaxed);
    }

    #[inline]
    pub fn read(&self) -> Snapshot {
        let s = self.state.lock();
        Snapshot { value: s.value.clone(), edge: s.edge.clone(), stamp: s.stamp }
    }

    pub fn stamp(&self) -> u64 {
        self.state.lock().stamp
    }

    pub fn edge(&self) -> Option<Edge> {
        self.state.lock().edge.clone()
    }

    /// Shows the gradient history where it lies, unless it is in use just now.
    pub(crate) fn see_edge(&self, look: &mut dyn FnMut(&Option<Edge>)) {
        if let Some(s) = self.state.try_lock() {
            look(&s.edge);
        }
    }

    pub fn set_edge(&self, edge: Option<Edge>) {
        let old = std::mem::replace(&mut self.state.lock().edge, edge);
        drop(old);
    }

    /// Gives the storage a new value. `count` says whether autograd's version moves (`.data` writes do not).
    pub fn write(self: &Arc<Cell>, value: Value, count: bool) {
        let old = {
            let mut s = self.state.lock();
            s.stamp += 1;
            if count {
                crate::autograd::tape::wrote();
                match &mut s.version {
                    Version::Own(v) => *v += 1,
                    Version::Shared(v) => {
                        v.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            std::mem::replace(&mut s.value, value)
        };
        let stream = self.stream();
        stream.note_rebind(Rebind {
            cell: Arc::downgrade(self),
            old: Arc::downgrade(&old),
            old_id: old.id,
            old_ty: old.ty.clone(),
            old_pos: if Arc::ptr_eq(&old.stream, &stream) { old.pos } else { SETTLED },
        });
    }

    /// Goes back to an earlier value after the program that wrote the newer one failed.
    pub(crate) fn revert(&self, value: Value) {
        let old = {
            let mut s = self.state.lock();
            s.stamp += 1;
            std::mem::replace(&mut s.value, value)
        };
        drop(old);
    }

    /// The stream of the current value.
    pub(crate) fn stream(&self) -> Arc<Stream> {
        self.state.lock().value.stream.clone()
    }

    /// How often the storage was written, as autograd counts.
    pub fn version(&self) -> u32 {
        match &self.state.lock().version {
            Version::Own(v) => *v,
            Version::Shared(v) => v.load(Ordering::Relaxed),
        }
    }

    /// The version counter, to be compared again at the backward pass.
    pub fn version_handle(&self) -> Arc<AtomicU32> {
        let mut s = self.state.lock();
        if let Version::Own(v) = s.version {
            s.version = Version::Shared(Arc::new(AtomicU32::new(v)));
        }
        match &s.version {
            Version::Shared(v) => v.clone(),
            Version::Own(_) => Arc::new(AtomicU32::new(0)),
        }
    }
}
