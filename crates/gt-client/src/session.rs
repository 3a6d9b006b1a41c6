//! A session: one client's connection to a dispatcher, with its streams, waits, credit and failures.

use crate::lived::Lived;
use crate::seen::{Recent, Sources};
use crate::stream::prefix::POSITIONS;
use crate::stream::{Rebind, Sealed, SourceLine, Stream};
use crate::value::{SETTLED, Value, ValueInner};
use crate::wait::Waiting;
use foldhash::fast::FixedState;
use gt_ir::{Arg, Error, Program, Result, Scalar, Slot, Structure, TensorId, Ty};
use gt_net::msg::{
    Batch, Bytes, ClientMsg, Failure, Fetch, INLINE_BYTES, Payload, Prefix, Run, SessionMsg, SessionWelcome,
    Stats, Tidy,
};
use gt_net::pieces::assemble;
use gt_net::shm::Shm;
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The road to a dispatcher. In-process, unix and TCP look alike from here.
pub trait Link: Send + Sync {
    /// Sends without waiting.
    fn send(&self, msg: ClientMsg) -> Result<()>;
    /// Memory from which an upload needs no further copy in this process, where the road has such.
    fn stage(&self, _bytes: usize) -> Option<Shm> {
        None
    }
    /// Sends a tensor's bytes from memory that `stage` gave.
    fn upload_staged(&self, _tensor: TensorId, _ty: Ty, _data: Shm) -> Result<()> {
        Err(Error::Runtime("upload: this link has no staging memory".into()))
    }
    /// Tensor bytes on their way: what has come, of how much, and in which direction in words.
    fn transfer(&self) -> Option<(u64, u64, &'static str)> {
        None
    }
    /// True while so many bytes wait to leave that no more should be made.
    fn is_behind(&self) -> bool {
        false
    }
    /// True if a waiting thread brings its own answers by `drive`.
    fn drives(&self) -> bool {
        false
    }
    /// Waits until `done` by working the connection on this thread, which is the quickest way to an answer; false
    /// when `until` passed first. `None` where other threads bring the answers.
    fn drive(&self, _until: Instant, _done: &mut dyn FnMut() -> bool) -> Option<bool> {
        None
    }
    /// Says goodbye; later sends are refused.
    fn close(&self);
    /// The peer in words: `in-process`, `localhost:12345`.
    fn peer(&self) -> String;
}

/// Called for each message that arrives.
pub type OnMsg = Box<dyn FnMut(SessionMsg) + Send>;

/// Makes the link, given what to do with arriving messages.
pub type Connect<'a> = dyn FnOnce(OnMsg) -> Result<(Arc<dyn Link>, SessionWelcome)> + 'a;

/// Settings of a session, read from `GT_*` at connect (C13).
#[derive(Clone, Debug)]
pub struct Settings {
    /// Instructions per program at most (`GT_CLIENT_BATCH_SIZE`).
    pub batch: usize,
    /// Lengths at which an open program may be started early (`GT_PREFIX`, `0` for never).
    pub prefix: Arc<[usize]>,
    /// Run op by op and wait for each (`GT_SYNC=1`).
    pub sync: bool,
    /// A data-loader worker's: tensors are made, joined and cut, and nothing else (C12).
    pub host: bool,
    /// Print what the client does (`GT_DEBUG_CLIENT=1`).
    pub debug: bool,
    /// Append the instruction log here (`GT_INSTRUCTION_LOG`).
    pub log: Option<std::path::PathBuf>,
}

impl Settings {
    /// Reads the process's environment.
    pub fn from_env() -> Settings {
        let batch = std::env::var("GT_CLIENT_BATCH_SIZE").ok().and_then(|v| v.parse().ok()).unwrap_or(4096);
        let prefix = match std::env::var("GT_PREFIX") {
            Ok(v) if !v.is_empty() => {
                let list = v.split(',').filter_map(|n| n.trim().parse().ok()).filter(|n| *n > 0);
                list.collect()
            }
            // A program that reaches the cap is cut behind its first quarter.
            _ => POSITIONS.into_iter().filter(|n| *n <= batch / 4).collect(),
        };
        Settings {
            batch,
            prefix,
            sync: gt_ir::env::on("GT_SYNC"),
            host: false,
            debug: gt_ir::env::on("GT_DEBUG_CLIENT"),
            log: std::env::var_os("GT_INSTRUCTION_LOG").filter(|v| !v.is_empty()).map(Into::into),
        }
    }
}

/// A program on its way.
struct Unfinished {
    seq: u64,
    bytes: u64,
    /// Bytes of host data that travel with it.
    data: u64,
    frees: Vec<TensorId>,
    rebinds: Vec<Rebind>,
    lines: Vec<SourceLine>,
    ends_step: bool,
    instrs: usize,
    /// No program of its structure was sent before.
    new: bool,
}

/// A tensor, its type, and the workers that hold it.
pub(crate) type Held = (TensorId, Ty, u64, Vec<String>);

/// What arrives from the dispatcher, and who waits for it.
#[derive(Default)]
struct Inbox {
    completed: u64,
    values: HashMap<u64, Result<Bytes, Failure>, FixedState>,
    stats: HashMap<u64, Stats, FixedState>,
    /// Requests whose waiter was interrupted.
    abandoned: Vec<u64>,
    failures: Vec<(u64, Failure)>,
    tensors: HashMap<u64, Vec<Held>, FixedState>,
    /// Lines that came since this session watches itself.
    traced: Vec<String>,
    fatal: Option<Error>,
    /// The end of the session was raised: it is no news at the end of the process.
    told: bool,
}

/// What leaves for the dispatcher, in order.
struct Outbox {
    seq: u64,
    bytes: u64,
    /// A program sealed at the end of an optimizer step: it travels with what is sent next.
    queue: Vec<Run>,
    unfinished: VecDeque<Unfinished>,
    /// Source lines of programs that failed, for tensors that are looked at later.
    failed: VecDeque<(u64, Vec<SourceLine>)>,
    scalars: ScalarTable,
    structures: HashMap<u64, Arc<Structure>, FixedState>,
    /// How many signals the dispatcher has been told of.
    signals: usize,
    /// What the programs sent so far look like up to where a prefix may end.
    marks: HashSet<u64, FixedState>,
    /// What came of the last programs' source lines.
    recent: Recent,
    lived: Lived,
    /// Plan keys whose source lines the log has.
    logged: HashSet<u64>,
    /// Those told to the server, since which of its wishes.
    told: (u64, HashSet<u64>),
}

/// One client's connection to a dispatcher.
pub struct Session {
    /// Unique in this process.
    pub number: u64,
    /// The fork generation it was made in: a child process must not touch it.
    pub(crate) generation: u64,
    pub welcome: SessionWelcome,
    pub settings: Settings,
    link: Arc<dyn Link>,
    ids: AtomicU64,
    reqs: AtomicU64,
    outbox: Mutex<Outbox>,
    shared: Arc<Shared>,
    streams: Mutex<Vec<Weak<Stream>>>,
    generator: Mutex<Generator>,
    /// Tensors dropped after the thread that made them had ended.
    orphans: Mutex<Vec<TensorId>>,
    closed: AtomicBool,
    pub(crate) files: Mutex<crate::source::Files>,
    /// The session's instruction log.
    log: Option<Arc<Mutex<std::fs::File>>>,
}

/// The part of a session that the link's thread touches.
#[derive(Default)]
struct Shared {
    inbox: Mutex<Inbox>,
    arrived: Condvar,
    /// Counts arrivals, so that a waiting thread notices one without taking the lock.
    arrivals: AtomicU64,
    /// Something failed and has not been raised yet.
    failed: AtomicBool,
    /// The server wants to know source lines: counts how often it asked, 0 if it does not.
    lines_asked: AtomicU64,
}

/// The state of the session's random numbers (C7): everything random is a function of these two.
#[derive(Clone, Copy, Debug)]
pub struct Generator {
    pub key: u64,
    pub offset: u64,
}

static SESSIONS: AtomicU64 = AtomicU64::new(1);

/// At most this many bytes of results may be unfinished before recording waits.
const CREDIT_BYTES: u64 = 4 << 30;
/// At most this many bytes of host data may be under way inside programs: the server keeps them for its workers.
const CREDIT_DATA: u64 = 32 << 20;

/// Lines kept of a session that watches itself.
const MAX_TRACED: usize = 4_000_000;

impl Session {
    /// Opens a session over a link.
    pub fn open(connect: Box<Connect>, settings: Settings) -> Result<Arc<Session>> {
        // They travel in the handshake; one that cannot be meant is told here, where it was set.
        gt_net::compiling::Compiling::from_env()?;
        crate::signal::registry::check()?;
        let shared = Arc::new(Shared::default());
        let inbox = shared.clone();
        let log = match &settings.log {
            Some(path) => Some(Arc::new(Mutex::new(open_log(path)?))),
            None => None,
        };
        let file = log.clone();
        let on_msg: OnMsg = Box::new(move |msg| match msg {
            SessionMsg::Log { line, debug: true } => eprintln!("{line}"),
            SessionMsg::Log { line, debug: false } => {
                use std::io::Write;
                if let Some(file) = &file {
                    let _ = writeln!(file.lock(), "{line}");
                }
            }
            other => inbox.arrive(other),
        });
        let (link, welcome) = connect(on_msg)?;
        Ok(Arc::new(Session {
            number: SESSIONS.fetch_add(1, Ordering::Relaxed),
            generation: crate::current::generation(),
            welcome,
            settings,
            link,
            ids: AtomicU64::new(1),
            reqs: AtomicU64::new(1),
            outbox: Mutex::new(Outbox {
                seq: 0,
                bytes: 0,
                queue: Vec::new(),
                unfinished: VecDeque::new(),
                failed: VecDeque::new(),
                scalars: ScalarTable::default(),
                structures: HashMap::default(),
                signals: 0,
                marks: HashSet::default(),
                recent: Recent::default(),
                lived: Lived::default(),
                logged: HashSet::default(),
                told: Default::default(),
            }),
            shared,
            streams: Mutex::new(Vec::new()),
            generator: Mutex::new(Generator { key: 0x6774, offset: 0 }),
            orphans: Mutex::default(),
            closed: AtomicBool::new(false),
            files: Mutex::default(),
            log,
        }))
    }

    /// The peer in words.
    pub fn peer(&self) -> String {
        self.link.peer()
    }

    pub(crate) fn next_id(&self) -> TensorId {
        TensorId(self.ids.fetch_add(1, Ordering::Relaxed))
    }

    /// A new stream of this session, for one thread.
    pub(crate) fn new_stream(self: &Arc<Session>) -> Arc<Stream> {
        let stream = Stream::new(self, self.settings.batch, self.settings.prefix.clone());
        let mut streams = self.streams.lock();
        streams.retain(|s| s.strong_count() > 0);
        streams.push(Arc::downgrade(&stream));
        stream
    }

    /// Takes `blocks` counters from the generator: (key, offset).
    pub fn random(&self, blocks: u64) -> Generator {
        let mut g = self.generator.lock();
        let now = *g;
        g.offset = g.offset.wrapping_add(blocks);
        now
    }

    /// Restarts the random numbers.
    pub fn seed(&self, key: u64) {
        *self.generator.lock() = Generator { key, offset: 0 };
    }

    /// The generator's state.
    pub fn generator(&self) -> Generator {
        *self.generator.lock()
    }

    /// Puts back a state taken by `generator`.
    pub fn set_generator(&self, g: Generator) {
        *self.generator.lock() = g;
    }

    /// Gives a sealed program its number and sends it. Returns what must be dropped outside the stream's lock.
    pub(crate) fn send_sealed(&self, sealed: Sealed) -> Result<Vec<Value>> {
        self.send_batch(Some(sealed), Vec::new())
    }

    /// Gives a program that ends an optimizer step its number. It waits for the next message, so that a step costs
    /// one message wherever the loop looks at its loss.
    pub(crate) fn queue_sealed(&self, sealed: Sealed) -> Result<Vec<Value>> {
        let mut outbox = self.outbox.lock();
        if !outbox.queue.is_empty() {
            let runs = std::mem::take(&mut outbox.queue);
            self.send(ClientMsg::Batch(Batch { runs, ..Batch::default() }))?;
        }
        let (held, frees) = self.number(&mut outbox, sealed);
        if !frees.is_empty() {
            self.send(ClientMsg::Batch(Batch { frees, ..Batch::default() }))?;
        }
        Ok(held)
    }

    fn send_batch(&self, sealed: Option<Sealed>, fetches: Vec<Fetch>) -> Result<Vec<Value>> {
        let mut outbox = self.outbox.lock();
        let (held, mut frees) = match sealed {
            Some(sealed) => self.number(&mut outbox, sealed),
            None => Default::default(),
        };
        frees.append(&mut self.orphans.lock());
        frees.iter().for_each(|id| outbox.lived.freed(*id));
        let batch = Batch { runs: std::mem::take(&mut outbox.queue), fetches, frees };
        if batch.runs.is_empty() && batch.fetches.is_empty() && batch.frees.is_empty() {
            return Ok(held);
        }
        if self.closed.load(Ordering::Relaxed) {
            return Err(closed());
        }
        self.send(ClientMsg::Batch(batch))?;
        Ok(held)
    }

    /// Tells the dispatcher the signals it does not know. If the link is lost, so is what refers to them.
    fn send_signals(&self, outbox: &mut Outbox) {
        let specs = crate::signal::registry::news(outbox.signals);
        if !specs.is_empty() {
            outbox.signals += specs.len();
            let _ = self.link.send(ClientMsg::Signals { specs });
        }
    }

    /// Puts a sealed program into the queue under its number. Returns values to be dropped later, and the frees of
    /// a program without instructions.
    fn number(&self, outbox: &mut Outbox, mut s: Sealed) -> (Vec<Value>, Vec<TensorId>) {
        if s.structure.instrs.is_empty() {
            return (s.held, s.frees);
        }
        let completed = self.shared.inbox.lock().completed;
        outbox.retire(completed, self.shared.failed.load(Ordering::Relaxed));
        outbox.seq += 1;
        let seq = outbox.seq;
        outbox.scalars.promote(&mut s.structure, &mut s.slots);
        let known = outbox.structures.len();
        let (key, structure) = outbox.share(s.structure);
        let new = outbox.structures.len() != known;
        if !structure.marks.is_empty() {
            self.send_signals(outbox);
        }
        self.log_lines(outbox, key, &s.lines);
        self.tell_lines(outbox, key, &s.lines);
        let frees = s.frees.clone();
        let data = s.slots.iter().map(|slot| if let Slot::Data(d) = slot { d.len() as u64 } else { 0 }).sum();
        let program =
            Program { structure, key, inputs: s.inputs, outs: s.outs, slots: s.slots, frees: s.frees };
        outbox.remember(&s.marks);
        outbox.bytes += s.bytes;
        outbox.unfinished.push_back(Unfinished {
            seq,
            bytes: s.bytes,
            data,
            frees,
            rebinds: s.rebinds,
            lines: s.lines,
            ends_step: s.ends_step,
            instrs: program.structure.instrs.len(),
            new,
        });
        outbox.lived.made(&program.outs, s.out_lines);
        let dying = program.inputs.iter().zip(&program.structure.inputs).filter(|(_, input)| input.dies);
        for id in program.frees.iter().chain(dying.map(|(id, _)| id)) {
            outbox.lived.freed(*id);
        }
        if self.settings.debug {
            eprintln!(
                "gt client: program {seq} key={key:016x} ops={} inputs={} outs={}",
                program.structure.instrs.len(),
                program.inputs.len(),
                program.outs.len()
            );
        }
        outbox.queue.push(Run { seq, program, prefix: s.prefix });
        (s.held, Vec::new())
    }

    /// Writes the source lines of a program's instructions to the log, the first time that it comes.
    fn log_lines(&self, outbox: &mut Outbox, key: u64, lines: &[SourceLine]) {
        use std::io::Write;
        let Some(log) = &self.log else { return };
        if outbox.logged.len() >= 1 << 16 {
            outbox.logged.clear();
        }
        if outbox.logged.insert(key) {
            let text = self.files.lock().runs(lines);
            let _ = writeln!(log.lock(), "    LINES key={key:016x}{text}");
        }
    }

    /// Tells the server the source lines of a program that it has not seen since it asked.
    fn tell_lines(&self, outbox: &mut Outbox, key: u64, lines: &[SourceLine]) {
        let asked = self.shared.lines_asked.load(Ordering::Relaxed);
        if asked == 0 {
            return;
        }
        if outbox.told.0 != asked || outbox.told.1.len() >= 1 << 16 {
            outbox.told = (asked, HashSet::default());
        }
        if outbox.told.1.insert(key) {
            let text = self.files.lock().runs(lines);
            // If the link is lost, so is who wanted to know.
            let _ = self.link.send(ClientMsg::Lines { key, text });
        }
    }

    /// True if everything sent has finished, and no program sent so far begins as one with this mark does.
    pub(crate) fn is_idle_and_new(&self, mark: u64) -> bool {
        let outbox = self.outbox.lock();
        outbox.queue.is_empty()
            && !outbox.marks.contains(&mark)
            && self.shared.inbox.lock().completed == outbox.seq
            && !self.shared.failed.load(Ordering::Relaxed)
            && !self.link.is_behind()
    }

    /// Sends the beginning of an open program. One that does not arrive is no loss.
    pub(crate) fn send_prefix(&self, id: u64, program: Program) {
        if self.settings.debug {
            let (ops, kept) = (program.structure.instrs.len(), program.outs.len());
            eprintln!("gt client: prefix {id} of the open program, ops={ops} kept={kept}");
        }
        let _order = self.outbox.lock();
        let _ = self.link.send(ClientMsg::Prefix(Prefix { id, program }));
    }

    pub(crate) fn next_req(&self) -> u64 {
        self.reqs.fetch_add(1, Ordering::Relaxed)
    }

    /// Sends host bytes as a new tensor. They have been taken when this returns.
    pub fn upload(self: &Arc<Session>, stream: &Arc<Stream>, ty: Ty, data: &[u8]) -> Result<Value> {
        if self.link.is_behind() {
            // Asked for, so that a server without workers answers in time.
            let seq = self.outbox.lock().seq;
            self.send(ClientMsg::Sync { seq })?;
            self.wait(|inbox| (!self.link.is_behind() || !inbox.failures.is_empty()).then_some(()))?;
            self.before_op()?;
        }
        let id = self.next_id();
        let line = crate::source::current(self);
        self.outbox.lock().lived.made(&[id], vec![line]);
        match self.link.stage(data.len()) {
            Some(mut shm) => {
                gt_net::copy::copy(shm.as_mut_slice(), data);
                let _order = self.outbox.lock();
                self.link.upload_staged(id, ty.clone(), shm)?;
            }
            None => {
                let mut bytes = crate::hostmem::take(data.len());
                gt_net::copy::copy(&mut bytes, data);
                let _order = self.outbox.lock();
                self.send(ClientMsg::Upload { tensor: id, ty: ty.clone(), data: Some(Arc::new(bytes)) })?;
            }
        }
        Ok(Arc::new(ValueInner { id, ty, stream: stream.clone(), pos: SETTLED }))
    }

    /// Asks for a value's bytes and waits for them.
    pub fn fetch(&self, value: &Value) -> Result<Bytes> {
        self.before_op()?;
        let req = self.reqs.fetch_add(1, Ordering::Relaxed);
        let fetch = Fetch { req, tensor: value.id };
        // The program and the request travel together.
        let held = value.stream.flush_with(|sealed| self.send_batch(sealed, vec![fetch]))?;
        drop(held);
        self.answer(req, value.ty.bytes() <= INLINE_BYTES)
    }

    fn answer(&self, req: u64, inline: bool) -> Result<Bytes> {
        let result = self.wait_how(|inbox| inbox.values.remove(&req), inline).inspect_err(|_| {
            self.shared.inbox.lock().abandoned.push(req);
        })?;
        self.raise_failures()?;
        result.map_err(|failure| self.describe(&failure))
    }

    /// The open program of a stream with the bytes of its inputs: all that is needed to run it again elsewhere.
    pub fn snapshot(&self, stream: &Stream) -> Result<(Program, Vec<Bytes>)> {
        let Some(program) = stream.snapshot() else {
            return Err(Error::Runtime(
                "save_program: nothing is recorded right now: call it after the operations in question and before \
                 looking at their results"
                    .into(),
            ));
        };
        let mut inputs = Vec::with_capacity(program.inputs.len());
        for (id, input) in program.inputs.iter().zip(&program.structure.inputs) {
            let req = self.reqs.fetch_add(1, Ordering::Relaxed);
            drop(self.send_batch(None, vec![Fetch { req, tensor: *id }])?);
            inputs.push(self.answer(req, input.ty.bytes() <= INLINE_BYTES)?);
        }
        Ok((program, inputs))
    }

    /// Runs everything recorded on every thread and waits until it is done.
    pub fn synchronize(&self) -> Result<()> {
        if self.is_inherited() {
            return Err(forked());
        }
        self.flush_all()?;
        let sent = self.outbox.lock().seq;
        if sent > self.shared.inbox.lock().completed {
            self.send(ClientMsg::Sync { seq: sent })?;
            self.wait(|inbox| (inbox.completed >= sent).then_some(()))?;
        }
        self.raise_failures()
    }

    /// Seals and sends what every thread has recorded.
    pub fn flush_all(&self) -> Result<()> {
        let streams: Vec<_> = self.streams.lock().iter().filter_map(Weak::upgrade).collect();
        for stream in streams {
            stream.flush()?;
        }
        self.send_batch(None, Vec::new()).map(drop)
    }

    /// Takes over the frees of a stream that ends; they ride on the next message. What was begun of its program is
    /// given up.
    pub(crate) fn adopt(&self, frees: Vec<TensorId>, prefix: Option<u64>) {
        self.orphans.lock().extend(frees);
        if let Some(prefix) = prefix.filter(|_| !self.is_closed()) {
            let _ = self.link.send(ClientMsg::Forget { prefix });
        }
    }

    /// Has all workers tidy up their memory, after what was recorded so far is on its way.
    pub fn tidy(&self, what: Tidy) -> Result<()> {
        self.flush_all()?;
        self.send(ClientMsg::Tidy { what })
    }

    /// Counters of the session and its workers.
    pub fn stats(&self) -> Result<Stats> {
        self.flush_all()?;
        let req = self.reqs.fetch_add(1, Ordering::Relaxed);
        self.send(ClientMsg::Stats { req })?;
        self.wait(|inbox| inbox.stats.remove(&req))
    }

    pub(crate) fn ask_tensors(&self) -> Result<Vec<Held>> {
        let req = self.reqs.fetch_add(1, Ordering::Relaxed);
        self.send(ClientMsg::Tensors { req })?;
        self.wait(|inbox| inbox.tensors.remove(&req))
    }

    pub(crate) fn take_lines(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.inbox.lock().traced)
    }

    /// What a wait is for.
    fn waiting(&self) -> Waiting {
        if let Some((come, total, what)) = self.link.transfer() {
            let part = Some(come as f64 / total.max(1) as f64);
            return Waiting { what: format!("{what} {:.1} MB", total as f64 / 1048576.0), part };
        }
        let completed = self.shared.inbox.lock().completed;
        let Some(outbox) = self.outbox.try_lock() else {
            return Waiting { what: "working".into(), part: None };
        };
        let open: Vec<&Unfinished> = outbox.unfinished.iter().filter(|u| u.seq > completed).collect();
        let what = match open.first() {
            Some(_) if completed == 0 && self.welcome.workers == 0 => {
                "waiting for a worker to connect".into()
            }
            Some(first) if first.new => format!("first run of {} instructions (compiling)", first.instrs),
            Some(_) => format!("{} programs to go", open.len()),
            None => "waiting for the server".into(),
        };
        Waiting { what, part: None }
    }

    /// Goes through the source lines of the last programs.
    pub(crate) fn with_sources(&self, mut each: impl FnMut(u64, &[SourceLine], bool)) {
        let outbox = self.outbox.lock();
        outbox.recent.iter().for_each(|s| each(s.seq, &s.lines, s.ends_step));
        outbox.unfinished.iter().for_each(|u| each(u.seq, &u.lines, u.ends_step));
    }

    /// The source lines of tensors that live, or have not been told to be freed.
    pub(crate) fn made_by(&self) -> HashMap<TensorId, SourceLine, FixedState> {
        self.outbox.lock().lived.lines()
    }

    /// Before each recorded op: raises what failed, and waits while too much is unfinished (C2).
    #[inline]
    pub(crate) fn before_op(&self) -> Result<()> {
        if self.generation != crate::current::generation() {
            return Err(forked());
        }
        if self.shared.failed.load(Ordering::Relaxed) {
            self.raise_failures()?;
        }
        Ok(())
    }

    /// Waits while too many programs or bytes are unfinished. Called after a program was sent, with no lock held.
    pub(crate) fn wait_for_credit(&self) -> Result<()> {
        let limit = self.welcome.credit_programs.max(1);
        let (sent, bytes, behind) = {
            let mut outbox = self.outbox.lock();
            let completed = self.shared.inbox.lock().completed;
            outbox.retire(completed, self.shared.failed.load(Ordering::Relaxed));
            (outbox.seq, outbox.bytes, outbox.behind().filter(|seq| *seq > completed))
        };
        if bytes > CREDIT_BYTES {
            return self.synchronize();
        }
        if let Some(seq) = behind {
            self.send(ClientMsg::Sync { seq })?;
        }
        let least = behind.unwrap_or(0).max((sent + 1).saturating_sub(limit));
        self.wait(|inbox| {
            let credit = inbox.completed >= least && !self.link.is_behind();
            (credit || !inbox.failures.is_empty()).then_some(())
        })
    }

    fn wait<T: Send>(&self, ready: impl FnMut(&mut Inbox) -> Option<T> + Send) -> Result<T> {
        self.wait_how(ready, true)
    }

    /// Waits for something to arrive. `control` says that it comes inside a message, so that this thread may read it
    /// from the connection itself.
    fn wait_how<T: Send>(
        &self,
        mut ready: impl FnMut(&mut Inbox) -> Option<T> + Send,
        control: bool,
    ) -> Result<T> {
        let mut out = None;
        let mut fatal = None;
        let mut look = |inbox: &mut Inbox| {
            out = ready(inbox);
            if out.is_none() {
                fatal.clone_from(&inbox.fatal);
            }
            out.is_some() || fatal.is_some()
        };
        let mut found = look(&mut self.shared.inbox.lock());
        if !found && !self.link.drives() {
            let mut seen = self.shared.arrivals.load(Ordering::Acquire);
            found = gt_net::spin::for_a_moment(|| {
                let now = self.shared.arrivals.load(Ordering::Acquire);
                now != std::mem::replace(&mut seen, now) && look(&mut self.shared.inbox.lock())
            });
        }
        if !found {
            let mut attempt = |patience: Duration| {
                let deadline = Instant::now() + patience;
                if control {
                    let mut done = || look(&mut self.shared.inbox.lock());
                    if let Some(done) = self.link.drive(deadline, &mut done) {
                        return done;
                    }
                }
                let mut inbox = self.shared.inbox.lock();
                loop {
                    if look(&mut inbox) {
                        return true;
                    }
                    if self.shared.arrived.wait_until(&mut inbox, deadline).timed_out() {
                        return false;
                    }
                }
            };
            crate::wait::block_on(&mut attempt, &|| self.waiting())?;
        }
        match (out, fatal) {
            (Some(out), _) => Ok(out),
            (None, Some(error)) => {
                self.shared.inbox.lock().told = true;
                Err(error)
            }
            (None, None) => Err(closed()),
        }
    }

    /// Sends a message; on a link that is lost, the error is the session's own.
    pub(crate) fn send(&self, msg: ClientMsg) -> Result<()> {
        self.link.send(msg).map_err(|error| {
            let mut inbox = self.shared.inbox.lock();
            inbox.told = inbox.fatal.is_some();
            inbox.fatal.clone().unwrap_or(error)
        })
    }

    /// Raises the root cause of a failure once, after its cells have gone back to what they held (C5).
    pub fn raise_failures(&self) -> Result<()> {
        if !self.shared.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        let sent = self.outbox.lock().seq;
        if self.shared.inbox.lock().fatal.is_none() && self.shared.inbox.lock().completed < sent {
            self.send(ClientMsg::Sync { seq: sent })?;
            self.wait(|inbox| (inbox.completed >= sent).then_some(()))?;
        }
        let (mut failures, fatal) = {
            let mut inbox = self.shared.inbox.lock();
            self.shared.failed.store(inbox.fatal.is_some(), Ordering::Release);
            inbox.told |= inbox.fatal.is_some();
            (std::mem::take(&mut inbox.failures), inbox.fatal.clone())
        };
        failures.sort_by_key(|(seq, _)| *seq);
        let first = failures.first().map(|(_, f)| self.describe(f));
        self.revert(&failures);
        match first.or(fatal) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Puts back what the failed programs had rebound, newest first, and frees what nobody went back to.
    fn revert(&self, failures: &[(u64, Failure)]) {
        let mut frees: Vec<TensorId> = Vec::new();
        let mut revived: Vec<(Arc<crate::cell::Cell>, Value)> = Vec::new();
        {
            let mut outbox = self.outbox.lock();
            for (seq, _) in failures.iter().rev() {
                let Some(i) = outbox.unfinished.iter().position(|u| u.seq == *seq) else { continue };
                let Some(failed) = outbox.unfinished.remove(i) else { continue };
                outbox.bytes -= failed.bytes;
                outbox.failed.push_back((failed.seq, failed.lines));
                if outbox.failed.len() > 32 {
                    outbox.failed.pop_front();
                }
                let mut lost = failed.frees;
                for rebind in failed.rebinds.into_iter().rev() {
                    let Some(cell) = rebind.cell.upgrade() else { continue };
                    let value = match rebind.old.upgrade() {
                        Some(value) => value,
                        None => {
                            if !lost.contains(&rebind.old_id) {
                                continue;
                            }
                            lost.retain(|id| *id != rebind.old_id);
                            let stream = cell.stream();
                            Arc::new(ValueInner {
                                id: rebind.old_id,
                                ty: rebind.old_ty,
                                stream,
                                pos: SETTLED,
                            })
                        }
                    };
                    revived.push((cell, value));
                }
                frees.extend(lost);
            }
            if !frees.is_empty() {
                let batch = Batch { runs: Vec::new(), fetches: Vec::new(), frees };
                let _ = self.send(ClientMsg::Batch(batch));
            }
        }
        for (cell, value) in revived {
            cell.revert(value);
        }
    }

    /// The failure in words, with the user's source line.
    fn describe(&self, failure: &Failure) -> Error {
        let line = failure.instr.and_then(|i| {
            let outbox = self.outbox.lock();
            let open = outbox.unfinished.iter().map(|u| (u.seq, &u.lines));
            let failed = outbox.failed.iter().map(|(seq, lines)| (*seq, lines));
            let (_, lines) = open.chain(failed).find(|(seq, _)| *seq == failure.root)?;
            let at = *lines.get(i as usize)?;
            self.files.lock().describe(at)
        });
        match line {
            Some(line) => failure.error.clone().map_message(|m| format!("{m}\n  recorded at {line}")),
            None => failure.error.clone(),
        }
    }

    /// Ends the session: nothing is sent any more, drops are no-ops.
    pub fn close(&self) {
        // A child's copy says nothing: the session is its parent's, and so are its locks.
        if !self.closed.swap(true, Ordering::SeqCst) && !self.is_inherited() {
            let _ = self.link.send(ClientMsg::Bye);
            self.link.close();
        }
    }

    /// True in a child of the process that opened the session.
    fn is_inherited(&self) -> bool {
        self.generation != crate::current::generation()
    }

    /// True once `close` was called.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Runs what is recorded and reports a failure nobody has looked at yet (for the end of the process).
    pub fn finish(&self) -> Result<()> {
        let over = self.is_closed() || self.is_inherited() || self.shared.inbox.lock().told;
        let result = if over { Ok(()) } else { self.synchronize() };
        if self.log.is_some() && !over && result.is_ok() {
            // Workers tell what they have for the log before they answer.
            let _ = self.stats();
        }
        self.close();
        result
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn arrive(&self, msg: SessionMsg) {
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

impl Outbox {
    /// Forgets programs that have finished. Failed ones are kept until their cells were reverted.
    fn retire(&mut self, completed: u64, failed: bool) {
        while !failed && self.unfinished.front().is_some_and(|u| u.seq <= completed) {
            if let Some(done) = self.unfinished.pop_front() {
                self.bytes -= done.bytes;
                let Unfinished { seq, lines, ends_step, .. } = done;
                self.recent.push(Sources { seq, lines, ends_step });
            }
        }
    }

    /// The program that has to finish before more host data may leave.
    fn behind(&self) -> Option<u64> {
        let mut data = 0;
        let over = |u: &&Unfinished| {
            data += u.data;
            data > CREDIT_DATA
        };
        self.unfinished.iter().rev().find(over).map(|u| u.seq)
    }

    /// Remembers what a program looks like, so that the next of its kind is not begun early.
    fn remember(&mut self, marks: &[u64]) {
        if self.marks.len() >= 4096 {
            self.marks.clear();
        }
        self.marks.extend(marks);
    }

    /// The shared copy of a structure, so that a repeated step is recognised by its address.
    fn share(&mut self, structure: Structure) -> (u64, Arc<Structure>) {
        let key = structure.key();
        match self.structures.get(&key) {
            Some(known) if **known == structure => (key, known.clone()),
            _ => {
                if self.structures.len() >= 256 {
                    self.structures.clear();
                }
                let shared = Arc::new(structure);
                self.structures.insert(key, shared.clone());
                (key, shared)
            }
        }
    }
}

/// Remembers the numbers of programs that differ in nothing else, and makes a slot of each that changes (C4).
#[derive(Default)]
struct ScalarTable {
    seen: HashMap<u64, (Vec<Scalar>, Vec<bool>), FixedState>,
}

impl ScalarTable {
    fn promote(&mut self, structure: &mut Structure, slots: &mut Vec<Slot>) {
        let mut hasher = FixedState::with_seed(7).build_hasher();
        let mut now: Vec<Scalar> = Vec::new();
        structure.inputs.hash(&mut hasher);
        structure.outs.hash(&mut hasher);
        for instr in &structure.instrs {
            instr.op.hash(&mut hasher);
            for (i, arg) in instr.args.iter().enumerate() {
                match arg {
                    Arg::Const(x) if instr.op.may_become_slot(i) => {
                        hasher.write_u8(x.kind() as u8);
                        now.push(*x);
                    }
                    other => other.hash(&mut hasher),
                }
            }
        }
        if now.is_empty() {
            return;
        }
        if self.seen.len() >= 1024 {
            self.seen.clear();
        }
        let (last, varies) =
            self.seen.entry(hasher.finish()).or_insert_with(|| (now.clone(), vec![false; now.len()]));
        if last.len() != now.len() {
            return;
        }
        for i in 0..now.len() {
            varies[i] |= last[i] != now[i];
        }
        if !varies.contains(&true) {
            return;
        }
        let mut k = 0;
        for instr in &mut structure.instrs {
            for i in 0..instr.args.len() {
                if let Arg::Const(x) = instr.args[i]
                    && instr.op.may_become_slot(i)
                {
                    if varies[k] {
                        instr.args[i] = Arg::Slot(slots.len() as u32);
                        slots.push(Slot::Num(x));
                    }
                    k += 1;
                }
            }
        }
        structure.slots = slots.len() as u32;
    }
}

fn forked() -> Error {
    Error::Runtime(
        "this tensor was made before fork() and lives in the parent process: create tensors in the child, or use \
         multiprocessing with the 'spawn' start method"
            .into(),
    )
}

fn closed() -> Error {
    Error::Connection(
        "this session is closed: call gt.connect(...) again, or drop tensors made with it".into(),
    )
}

fn open_log(path: &std::path::Path) -> Result<std::fs::File> {
    std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .map_err(|e| Error::Value(format!("GT_INSTRUCTION_LOG: cannot write {}: {e}", path.display())))
}
