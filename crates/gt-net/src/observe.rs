//! What can be seen of a running system: counters that are always kept, and events that are made only while somebody
//! watches. Monitors, traces, the dashboard and `gt.debug.explain` all read these.

use crate::msg::SessionId;
pub use gt_ir::Family;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::sync::Arc;

/// Seconds, bytes or shares per family, in the order of `Family::ALL`.
pub type PerFamily = [f32; Family::ALL.len()];

/// How closely somebody watches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub enum Detail {
    /// Not at all.
    #[default]
    Nothing,
    /// Counters from time to time.
    Counters,
    /// Counters, and a line for every program that ran and for what is rare: who comes and goes, plans that are made,
    /// moves and failures.
    Runs,
    /// The same, and a line for every message.
    Programs,
    /// The same, and how long every kernel took.
    Kernels,
}

/// Whose work is watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Scope {
    /// That of the session which asks.
    Own,
    /// Everybody's.
    All,
}

/// One step of a plan, as monitors know it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StepInfo {
    /// In words: `matmul 64x64x64`.
    pub name: Cow<'static, str>,
    pub family: Family,
    /// Instructions of the program that it does, the last one first.
    pub instrs: Vec<u32>,
}

/// When a step of a plan ran, in nanoseconds since its program started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StepTime {
    pub step: u32,
    pub start: u32,
    pub took: u32,
}

/// How long the steps of a plan took when they were last timed.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Timing {
    pub steps: Arc<Vec<StepInfo>>,
    pub times: Vec<StepTime>,
    /// The part of each family.
    pub shares: PerFamily,
}

/// A program that ran.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Ran {
    pub session: SessionId,
    pub seq: u64,
    /// The plan key.
    pub key: u64,
    pub instrs: u32,
    /// Microseconds on the worker's clock.
    pub start_us: u64,
    pub took_us: u64,
    /// How long it lay in the worker's queue.
    pub waited_us: u64,
    /// How long making its plan took, and why there was none.
    pub plan_us: u64,
    pub why: Option<String>,
    pub failed: bool,
    /// Went on from a prefix that had run already.
    pub begun_early: bool,
    /// The part of each family.
    pub shares: PerFamily,
    /// When each step ran, if that was asked for.
    pub kernels: Vec<StepTime>,
}

/// Tensor bytes that came or went.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Carried {
    pub session: SessionId,
    pub tensor: u64,
    pub bytes: u64,
    /// Onto the worker, or away from it.
    pub inward: bool,
    /// Microseconds on the worker's clock.
    pub start_us: u64,
    pub took_us: u64,
}

/// What a worker tells while it is watched.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum WorkEvent {
    Ran(Box<Ran>),
    Carried(Carried),
    /// A program of some time ago, remembered for its own client.
    Recent(Box<Ran>),
    /// The steps of a plan, before the first time that their times are told.
    Steps {
        key: u64,
        steps: Vec<StepInfo>,
    },
}

/// What one session has had of a worker.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SessionUse {
    pub session: u64,
    pub busy_us: u64,
    /// Time its programs have lain in the queue.
    pub waited_us: u64,
    pub programs: u64,
    pub bytes: u64,
    pub queued: u32,
}

/// A worker's counters, cheap to give many times a second.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Gauge {
    /// Microseconds on the worker's clock.
    pub now_us: u64,
    /// Time spent running programs, the one that runs now included.
    pub busy_us: u64,
    /// The same, by family, of programs that have finished.
    pub families_us: [u64; Family::ALL.len()],
    /// Whose program runs now, and for how long it has.
    pub running: Option<(u64, u64)>,
    pub programs: u64,
    pub instructions: u64,
    pub plan_hits: u64,
    pub plan_misses: u64,
    pub resized: u64,
    pub plans: u64,
    pub plan_us: u64,
    /// Why plans were missed: (reason, times).
    pub miss_reasons: Vec<(String, u64)>,
    /// Programs in the queue.
    pub queued: u32,
    pub failures: u64,
    /// Tensor bytes that came, and went.
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub memory: u64,
    pub memory_peak: u64,
    pub memory_limit: u64,
    /// The version of the worker's program.
    pub version: String,
    pub sessions: Vec<SessionUse>,
}

/// A worker as a monitor sees it.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct WorkerView {
    pub id: u32,
    pub name: String,
    pub backend: String,
    pub device: String,
    pub threads: u32,
    /// Programs sent there and not reported as finished.
    pub queued: u64,
    /// Its last counters; none before it has answered.
    pub gauge: Option<Gauge>,
}

/// A client as a monitor sees it.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ClientView {
    pub id: u64,
    pub name: String,
    /// The worker that is its home.
    pub home: Option<u32>,
    pub programs: u64,
    pub instructions: u64,
    pub unfinished: u64,
    /// How long nothing of its unfinished work has finished.
    pub waiting_ms: u64,
    pub tensors: u64,
    pub bytes: u64,
    pub moves: u64,
    pub moved_bytes: u64,
    pub messages: u64,
    /// Summed over the workers.
    pub busy_us: u64,
    pub waited_us: u64,
}

/// Something that went wrong.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Trouble {
    pub at_ms: u64,
    pub whom: String,
    pub text: String,
}

/// The whole system at one moment. Counters only grow; rates are differences between two of these.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Snapshot {
    /// Milliseconds since the server started.
    pub at_ms: u64,
    pub version: String,
    pub address: String,
    pub workers: Vec<WorkerView>,
    pub clients: Vec<ClientView>,
    /// The last failures, oldest first.
    pub troubles: Vec<Trouble>,
}
