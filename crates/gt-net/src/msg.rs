//! The meaning layer: what client, dispatcher and worker say to one another. Data only, decoded within bounds.

use crate::bulk::{Endpoint, Ticket};
use crate::compiling::Compiling;
use crate::observe::{Detail, Gauge, Scope, Snapshot, WorkEvent};
use crate::process::Process;
pub use crate::share::{Ids, Share};
use gt_ir::signal::SignalSpec;
use gt_ir::{Error, Program, TensorId, Ty};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// One client's stream of programs, as the dispatcher knows it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct SessionId(pub u64);

/// One worker, numbered by the dispatcher in order of arrival.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct WorkerId(pub u32);

/// Values up to this many bytes ride inside messages; larger ones go through the bulk plane (C11).
pub const INLINE_BYTES: usize = 64 * 1024;

/// The largest tensor that is relayed between workers, inside a message; it leaves room in a frame.
pub const MAX_RELAY: usize = 48 << 20;

/// Tensor bytes on their way, dense and in the machine's byte order.
pub type Bytes = Arc<Vec<u8>>;

/// A program with its place in the session's order.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Run {
    /// 1, 2, 3, ... per session.
    pub seq: u64,
    pub program: Program,
    /// The prefix of this program that was sent ahead, if one was.
    pub prefix: Option<u64>,
}

/// The beginning of a program that is still being recorded, to be started while the workers are idle (C3). It is a
/// guess that costs nothing but time: no input dies, and the program goes on from it, or begins anew without it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Prefix {
    /// Chosen by the client. A longer prefix of the same program comes under the same number.
    pub id: u64,
    /// The first instructions, numbered as the program itself will be. Its live-outs are the values that the rest
    /// may still read; they are kept aside under `id`, and become tensors only with the program.
    pub program: Program,
}

/// A request for a tensor's bytes, answered when every program sent before it has run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Fetch {
    /// Chosen by the client, returned with the answer.
    pub req: u64,
    pub tensor: TensorId,
}

/// Work of one session that travels as one message: programs in order, then fetches, then frees.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Batch {
    pub runs: Vec<Run>,
    pub fetches: Vec<Fetch>,
    /// Tensors dropped after the last program of the batch was sealed.
    pub frees: Vec<TensorId>,
}

/// Workers that run programs together, in the order of their ranks: row-major over the mesh's axes (C8).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Mesh {
    /// Unique within its dispatcher.
    pub id: u64,
    /// The dispatcher, told apart from others whose workers share a process.
    pub cluster: u64,
    /// Sizes of the axes.
    pub shape: Vec<u32>,
    pub members: Vec<Member>,
    /// The rank of the worker that is told.
    pub rank: u32,
}

/// One worker of a mesh.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Member {
    pub worker: WorkerId,
    /// Members of one process meet in its memory.
    pub process: Process,
    /// Where others find it, if it has a bulk plane.
    pub endpoint: Option<Endpoint>,
    /// The key of its tickets: members write to each other without asking.
    pub key: [u8; 16],
}

/// A program's place among all that run on more than one worker (C9).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Gang {
    pub mesh: u64,
    /// One sequence for the whole dispatcher; workers start gangs in this order.
    pub number: u64,
}

/// Client to dispatcher.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum ClientMsg {
    Batch(Batch),
    Prefix(Prefix),
    /// The program that this prefix began will never come.
    Forget {
        prefix: u64,
    },
    /// A tensor made from host bytes. Without `data` the bytes follow on the bulk plane once a `Grant` came.
    Upload {
        tensor: TensorId,
        ty: Ty,
        #[serde(with = "gt_ir::whole::maybe")]
        data: Option<Bytes>,
    },
    /// The bytes of `tensor` could not be brought to the worker directly; they come here to be relayed, being few.
    Relay {
        tensor: TensorId,
        #[serde(with = "gt_ir::whole::bytes")]
        data: Bytes,
    },
    /// The same for more bytes than a piece has: they follow in pieces once the server asks (`relay`).
    Carry {
        tensor: TensorId,
    },
    /// The bytes of `tensor` cannot be brought to the worker, nor relayed: what waits for them fails.
    Withdraw {
        tensor: TensorId,
        error: Error,
    },
    /// Asks for the direct road's fallback: the value of request `req` inside a message or in pieces (`relay`).
    FetchRelay {
        req: u64,
        tensor: TensorId,
        /// Which piece, of a value that several workers hold.
        piece: Option<u32>,
    },
    /// Asks for an `Update` as soon as every program up to `seq` has finished.
    Sync {
        seq: u64,
    },
    /// More signals for the session's table, numbered on from those it has. Marks refer to them, so they come first.
    Signals {
        specs: Vec<SignalSpec>,
    },
    /// Asks for counters of the session and its workers.
    Stats {
        req: u64,
    },
    /// The client is done; its tensors may go.
    Bye,
    /// Asks all workers to tidy up their memory; nothing comes back.
    Tidy {
        what: Tidy,
    },
    /// Asks to be shown what the system does, from now on: a `Snapshot` every so many milliseconds (never if 0), and
    /// `Trace` lines as the detail says. One that only watches is not counted among the clients.
    Watch {
        scope: Scope,
        detail: Detail,
        every_ms: u32,
    },
    /// Asks for what is remembered of the session's last programs and moves, as `Trace` lines.
    Recent,
    /// Asks for the session's tensors.
    Tensors {
        req: u64,
    },
    /// The source lines of a program's instructions, as the server wished: `\ta.py:3*2\tb.py:7`.
    Lines {
        key: u64,
        text: String,
    },
}

/// A piece of a tensor that several workers hold: where it begins in every dimension, and its sizes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Piece {
    pub starts: Vec<u64>,
    pub sizes: Vec<u64>,
    pub payload: Payload,
}

/// A tensor's bytes as an answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Payload {
    Inline(#[serde(with = "gt_ir::whole::bytes")] Bytes),
    /// To be read from a worker's bulk plane.
    Bulk {
        at: Endpoint,
        ticket: Ticket,
    },
    /// To be put together by the client; pieces do not nest.
    Pieces(Vec<Piece>),
}

/// The answer to a `Fetch`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Value {
    pub req: u64,
    pub result: Result<Payload, Failure>,
}

/// Why a program failed: the root cause, also for programs that only depended on the failed one (C5).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Failure {
    /// The program that failed first; 0 when what was lost is no program's fault (a worker died, an upload failed).
    pub root: u64,
    /// Which of its instructions, where that is known.
    pub instr: Option<u32>,
    pub error: Error,
}

/// Dispatcher to client.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum SessionMsg {
    /// Progress. Sent when there is a value or failure to report, or when the client's credit needs it.
    Update {
        /// Every program up to this one has finished, well or badly.
        completed: u64,
        values: Vec<Value>,
        /// (program, why), for every program that did not succeed.
        failures: Vec<(u64, Failure)>,
    },
    /// Where to bring the bytes of an upload.
    Grant {
        tensor: TensorId,
        at: Endpoint,
        ticket: Ticket,
    },
    /// The bytes of an upload are not to be brought: no worker will hold it.
    Unwanted {
        tensor: TensorId,
        why: Failure,
    },
    Stats {
        req: u64,
        stats: Stats,
    },
    /// A line for the client's instruction log, or for its stderr (C13).
    Log {
        line: String,
        /// It was asked for by a debug switch.
        debug: bool,
    },
    /// The session cannot go on.
    Fatal {
        error: Error,
    },
    /// The system at one moment, for a client that watches.
    Snapshot(Box<Snapshot>),
    /// Lines in the instruction log's form, for a client that watches.
    Trace {
        lines: Vec<String>,
    },
    /// The session's tensors that have a value: (tensor, type, bytes on all workers together, names of those workers).
    Tensors {
        req: u64,
        tensors: Vec<(TensorId, Ty, u64, Vec<String>)>,
    },
    /// Somebody watches and wants to know source lines: a program's `Lines` are to come once, before it does. Or not any
    /// more.
    TellLines {
        on: bool,
    },
}

/// What the dispatcher tells a client in the handshake.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SessionWelcome {
    pub session: SessionId,
    /// Workers connected at this moment.
    pub workers: u32,
    /// Programs that may be unfinished before recording waits.
    pub credit_programs: u64,
}

/// What a worker tells of itself when it registers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct WorkerInfo {
    pub name: String,
    /// `cpu`, `reference`, `cuda`.
    pub backend: String,
    /// The device in words.
    pub device: String,
    pub threads: u32,
    /// Bytes it may use for tensors.
    pub memory: u64,
    /// Its bulk plane, if it has one (in-process workers have none).
    pub endpoint: Option<Endpoint>,
    /// The key under which this worker's tickets are signed.
    pub ticket_key: [u8; 16],
    pub process: Process,
    /// It can run programs together with others.
    pub gangs: bool,
    pub speed: Speed,
}

/// What a worker measured of its device before it registered, for the planner. Zeros where it measured nothing.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Speed {
    /// Operations a second in products of matrices, on all its threads.
    pub flops: f64,
    /// Bytes a second that elementwise work reads and writes.
    pub memory: f64,
    /// Seconds from waking a thread to its running.
    pub wake: f64,
    /// Cores that it may use.
    pub cores: u32,
    /// Stands for which cores these are: workers of a host that have the same number share them.
    pub place: u64,
}

/// Dispatcher to worker. Everything of one session is carried out in the order of arrival.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum WorkerCmd {
    Batch {
        session: SessionId,
        batch: Batch,
    },
    /// The worker's part of a program that several run together; carried out in the order of its session, and
    /// in the order of gangs.
    Gang {
        session: SessionId,
        gang: Gang,
        share: Share,
    },
    /// The worker is part of this mesh from now on.
    Mesh(Mesh),
    /// A member of the mesh is gone: programs that wait for it fail, and the mesh is used no more.
    Disband {
        mesh: u64,
        error: Error,
    },
    /// The beginning of a program that will come later.
    Prefix {
        session: SessionId,
        prefix: Prefix,
    },
    /// Drops what was kept of a prefix.
    Forget {
        session: SessionId,
        prefix: u64,
    },
    /// A tensor's bytes.
    Upload {
        session: SessionId,
        tensor: TensorId,
        ty: Ty,
        #[serde(with = "gt_ir::whole::bytes")]
        data: Bytes,
    },
    /// A tensor whose bytes will arrive on the bulk plane or by `Fulfil`; programs that read it wait for it.
    Expect {
        session: SessionId,
        tensor: TensorId,
        ty: Ty,
        /// The dispatcher wants to hear when they have come.
        tell: bool,
    },
    /// The relayed bytes of a tensor that was announced by `Expect`; ignored if it was freed since.
    Fulfil {
        session: SessionId,
        tensor: TensorId,
        #[serde(with = "gt_ir::whole::bytes")]
        data: Bytes,
    },
    /// Sends a tensor to another worker's bulk plane. Without an endpoint, or when it cannot be reached, the bytes
    /// go back in `WorkerMsg::Moved`.
    Send {
        session: SessionId,
        tensor: TensorId,
        /// Returned in `Moved`; none means that the dispatcher itself asks.
        goal: Option<WorkerId>,
        to: Option<(Endpoint, Ticket)>,
        /// Sent at once or not at all, ahead of queued work that may itself wait for this copy.
        now: bool,
    },
    /// A tensor that can no longer come (its source died): poisons it.
    Poison {
        session: SessionId,
        tensor: TensorId,
        failure: Failure,
    },
    /// The session's client wants to see what the worker does for it (`GT_DEBUG_WORKER`) and the plans it makes
    /// (`GT_DEBUG_COMPILE`).
    Watch {
        session: SessionId,
        work: bool,
        plans: bool,
    },
    /// How the session's programs are to be compiled, where its client says so.
    Compile {
        session: SessionId,
        how: Compiling,
    },
    /// The session is over: drop all it has.
    End {
        session: SessionId,
    },
    /// Asks for counters.
    Stats {
        req: u64,
    },
    /// How closely a session is watched, or all of them.
    Observe {
        session: Option<SessionId>,
        detail: Detail,
    },
    /// Asks for the counters that cost nothing.
    Gauge,
    /// Asks for what is remembered of a session's last programs.
    Recent {
        session: SessionId,
    },
    /// Asks to tidy up memory.
    Tidy {
        what: Tidy,
    },
}

/// What a worker may do about its memory when asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Tidy {
    /// Counts the most memory in use anew.
    ResetPeak,
    /// Gives back what is kept for speed alone.
    Shrink,
}

/// A plan that a worker has made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Compiled {
    /// The plan key.
    pub key: u64,
    /// Instructions of the program.
    pub instrs: u32,
    /// How long it took.
    pub micros: u64,
    /// Why there was no plan yet.
    pub why: String,
}

/// Worker to dispatcher.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum WorkerMsg {
    Update {
        session: SessionId,
        /// Programs finished since the last update, in order, the failed ones among them.
        finished: Vec<u64>,
        values: Vec<Value>,
        failures: Vec<(u64, Failure)>,
        /// Results of failed programs that have a value nonetheless, since they did not depend on the mistake.
        spared: Vec<TensorId>,
        /// Plans made since the last update.
        compiled: Vec<Compiled>,
        /// Bytes of this session held on the worker.
        session_bytes: u64,
    },
    /// A `Send` was carried out: the bytes are at their goal, or here to be relayed, or could not be sent. Without a
    /// goal and without bytes they follow in pieces once the server asks (`relay`).
    Moved {
        session: SessionId,
        tensor: TensorId,
        goal: Option<WorkerId>,
        #[serde(with = "gt_ir::whole::outcome")]
        result: Result<Option<Bytes>, Failure>,
    },
    /// The bytes of a tensor have come, as the dispatcher wanted to hear.
    Arrived {
        session: SessionId,
        tensor: TensorId,
    },
    /// What a session that is watched has made the worker do, line by line.
    Lines {
        session: SessionId,
        lines: Vec<String>,
    },
    Stats {
        req: u64,
        stats: WorkerStats,
    },
    Gauge(Box<Gauge>),
    /// What happened since the last of these, on a worker whose clock stands at `now_us`.
    Events {
        now_us: u64,
        events: Vec<WorkEvent>,
    },
    /// What is remembered of a session's last programs, for its own client.
    Recent {
        session: SessionId,
        now_us: u64,
        events: Vec<WorkEvent>,
    },
}

/// Counters of one worker.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct WorkerStats {
    pub name: String,
    pub backend: String,
    pub device: String,
    pub threads: u32,
    /// Bytes it may use for tensors.
    pub memory: u64,
    /// Programs that wait there or run; known to the dispatcher alone.
    pub queued: u64,
    pub programs: u64,
    pub instructions: u64,
    pub plan_hits: u64,
    pub plan_misses: u64,
    /// Programs that were known with other sizes.
    pub resized: u64,
    /// Better plans that took the place of earlier ones.
    pub improved: u64,
    /// Why plans were missed: (reason, times).
    pub miss_reasons: Vec<(String, u64)>,
    pub plans: u64,
    /// Instructions of the plans made so far, and how many those were.
    pub planned: (u64, u64),
    /// Programs that went on from a prefix.
    pub begun_early: u64,
    /// Runs of plans as one captured graph of the device, and runs that waited for it to check indices.
    pub graphs: u64,
    pub checks: u64,
    pub plan_seconds: f64,
    /// The part of `plan_seconds` spent on programs known with other sizes.
    pub resize_seconds: f64,
    pub busy_seconds: f64,
    pub bytes_in_use: u64,
    pub bytes_peak: u64,
    /// Results of one instruction: (op, times).
    pub ops: Vec<(String, u64)>,
    /// Repeated sequences of instructions.
    pub sequences: SequenceStats,
}

/// What a worker has found of repeated sequences in the streams of its sessions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SequenceStats {
    /// Different sequences.
    pub unique: u64,
    /// Those that came often.
    pub hot: u64,
    /// Instructions run in sequences that came often.
    pub hot_instructions: u64,
}

/// Counters of a session and of the workers.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Stats {
    /// Control messages over the session's link and the links to its workers, both ways, since it began.
    pub messages: u64,
    pub programs: u64,
    pub instructions: u64,
    pub moves: u64,
    pub moved_bytes: u64,
    pub sessions: u64,
    pub workers: Vec<WorkerStats>,
}
