//! What arrives from the dispatcher, and who waits for it.

use foldhash::fast::FixedState;
use gt_ir::{Error, Result, TensorId, Ty};
use gt_net::msg::{Bytes, Failure, Payload, SessionMsg, Stats};
use gt_net::pieces::assemble;
use gt_net::spin::Habit;
use gt_sync::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A tensor, its type, and the workers that hold it.
pub(crate) type Held = (TensorId, Ty, u64, Vec<String>);

/// What arrives from the dispatcher, and who waits for it.
#[derive(Default)]
pub(super) struct Inbox {
    pub(super) completed: u64,
    pub(super) values: HashMap<u64, Result<Bytes, Failure>, FixedState>,
    pub(super) stats: HashMap<u64, Stats, FixedState>,
    /// Requests whose waiter was interrupted.
    pub(super) abandoned: Vec<u64>,
    pub(super) failures: Vec<(u64, Failure)>,
    pub(super) tensors: HashMap<u64, Vec<Held>, FixedState>,
    /// Lines that came since this session watches itself.
    pub(super) traced: Vec<String>,
    pub(super) fatal: Option<Error>,
    /// The end of the session was raised: it is no news at the end of the process.
    pub(super) told: bool,
}

/// The part of a session that the link's thread touches.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) inbox: Mutex<Inbox>,
    pub(super) arrived: Condvar,
    /// Counts arrivals, so that a waiting thread notices one without taking the lock.
    pub(super) arrivals: AtomicU64,
    /// Something failed and has not been raised yet.
    pub(super) failed: AtomicBool,
    /// The server wants to know source lines: counts how often it asked, 0 if it does not.
    pub(super) lines_asked: AtomicU64,
    /// How soon answers have come of late.
    pub(super) habit: Habit,
}

/// Lines kept of a session that watches itself.
const MAX_TRACED: usize = 4_000_000;

impl Shared {
    pub(super) fn arrive(&self, msg: SessionMsg) {
        let mut inbox = self.inbox.lock();
        match msg {
            SessionMsg::Update { completed, values, failures } => {
                inbox.completed = inbox.completed.max(completed);
                if !failures.is_empty() {
                    inbox.failures.extend(failures);
                    self.failed.store(true, Ordering::Release);
                }
                for value in values {
                    let bytes = match value.result {
                        Ok(Payload::Inline(bytes)) => Ok(bytes),
                        Ok(Payload::Pieces(pieces)) => {
                            assemble(&pieces).map_err(|error| Failure { root: 0, instr: None, error })
                        }
                        Ok(Payload::Bulk { .. }) => Err(Failure {
                            root: 0,
                            instr: None,
                            error: Error::Connection("fetch: the link left a bulk value unresolved".into()),
                        }),
                        Err(failure) => Err(failure),
                    };
                    match inbox.abandoned.iter().position(|req| *req == value.req) {
                        Some(i) => drop(inbox.abandoned.swap_remove(i)),
                        None => drop(inbox.values.insert(value.req, bytes)),
                    }
                }
            }
            SessionMsg::Stats { req, stats } => {
                inbox.stats.insert(req, stats);
            }
            SessionMsg::Fatal { error } => {
                inbox.fatal = Some(error);
                self.failed.store(true, Ordering::Release);
            }
            SessionMsg::Trace { lines } => {
                // Beyond that the trace has its beginning only.
                let room = MAX_TRACED.saturating_sub(inbox.traced.len());
                inbox.traced.extend(lines.into_iter().take(room));
            }
            SessionMsg::Grant { .. }
            | SessionMsg::Unwanted { .. }
            | SessionMsg::Log { .. }
            | SessionMsg::Snapshot(_) => {}
            SessionMsg::TellLines { on: true } => drop(self.lines_asked.fetch_add(1, Ordering::Relaxed)),
            SessionMsg::TellLines { on: false } => self.lines_asked.store(0, Ordering::Relaxed),
            SessionMsg::Tensors { req, tensors } => {
                inbox.tensors.insert(req, tensors);
            }
        }
        drop(inbox);
        self.arrivals.fetch_add(1, Ordering::Release);
        self.arrived.notify_all();
    }
}
