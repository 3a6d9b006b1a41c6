//! Workers of one dispatcher in one process: a tensor goes from device to device without passing through the host, where
//! their backend knows a way.

use crate::backend::Buffer;
use crate::table::Entry;
use crate::worker::{Core, Worker};
use gt_ir::{TensorId, Ty};
use gt_net::msg::{SessionId, WorkerId};
use gt_sync::Mutex;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// The workers of one dispatcher in this process. Clones share them.
#[derive(Clone, Default)]
pub struct Neighbours(Arc<Mutex<HashMap<WorkerId, Weak<Core>>>>);

impl Neighbours {
    /// Adds a worker under the id that the dispatcher gave it.
    pub fn add(&self, id: WorkerId, worker: &Worker) {
        let core = worker.core();
        self.0.lock().insert(id, Arc::downgrade(core));
        let _ = core.neighbours.set(self.clone());
    }

    /// Hands a tensor to another worker that waits for it. False if it has to go another way.
    pub(crate) fn hand(
        &self,
        goal: WorkerId,
        session: SessionId,
        tensor: TensorId,
        ty: &Ty,
        buffer: &Buffer,
    ) -> bool {
        let Some(core) = self.0.lock().get(&goal).and_then(Weak::upgrade) else { return false };
        let waits = core.state.lock().sessions.get(&session).and_then(|t| t.waits_for(tensor)) == Some(ty);
        if !waits || core.reserve(session, ty.bytes()).is_err() {
            return false;
        }
        let start = Instant::now();
        core.config.backend.turn(session.0);
        let adopt = || core.config.backend.adopt(buffer);
        // What went wrong here may go right by way of the host, or says there why not.
        let Ok(Some(Ok(buffer))) = catch_unwind(AssertUnwindSafe(adopt)) else { return false };
        let unwanted = core.fulfil(session, tensor, Entry::Here { ty: ty.clone(), buffer });
        core.carried(session, tensor, ty.bytes() as u64, true, start);
        core.wake.notify_one();
        drop(unwanted);
        true
    }
}
