//! A session: one client's connection to a dispatcher, with its streams, waits, credit and failures.

mod failure;
mod inbox;
mod link;
mod outbox;
mod repair;
mod scalars;
mod send;
mod settings;
mod waits;

pub(crate) use inbox::Held;
pub use link::{Connect, Link, OnMsg};
pub use settings::Settings;

use crate::stream::{SourceLine, Stream};
use crate::value::{SETTLED, Value, ValueInner};
use crate::wait::Unbroken;
use foldhash::fast::FixedState;
use gt_ir::{Error, Program, Result, TensorId, Ty};
use gt_net::msg::{Bytes, ClientMsg, Fetch, INLINE_BYTES, SessionMsg, SessionWelcome, Stats, Tidy};
use gt_net::spin::Habit;
use gt_sync::Mutex;
use inbox::Shared;
use outbox::Outbox;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

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
    /// Failures are kept for threads to hear.
    keeps: AtomicBool,
    pub(crate) files: Mutex<crate::source::Files>,
    /// The session's instruction log.
    log: Option<Arc<Mutex<std::fs::File>>>,
}

/// The state of the session's random numbers (C7): everything random is a function of these two.
#[derive(Clone, Copy, Debug)]
pub struct Generator {
    pub key: u64,
    pub offset: u64,
}

impl Generator {
    fn take(&mut self, blocks: u64) -> Generator {
        let now = *self;
        self.offset = self.offset.wrapping_add(blocks);
        now
    }
}

thread_local! {
    /// What this thread draws from just now instead of the session's numbers.
    static DRAWN_FROM: RefCell<Option<Generator>> = const { RefCell::new(None) };
}

/// Runs something that draws from a generator of the caller's, which moves on.
pub fn drawing_from<T>(generator: &mut Generator, draw: impl FnOnce() -> T) -> T {
    let before = DRAWN_FROM.replace(Some(*generator));
    let out = draw();
    if let Some(after) = DRAWN_FROM.replace(before) {
        *generator = after;
    }
    out
}

/// Answers that take no longer are waited for awake.
const ANSWER: Duration = Duration::from_micros(400);

static SESSIONS: AtomicU64 = AtomicU64::new(1);

impl Session {
    /// Opens a session over a link.
    pub fn open(connect: Box<Connect>, settings: Settings) -> Result<Arc<Session>> {
        // They travel in the handshake; one that cannot be meant is told here, where it was set.
        gt_net::compiling::Compiling::from_env()?;
        crate::signal::registry::check()?;
        let shared = Arc::new(Shared { habit: Habit::in_turn(ANSWER), ..Shared::default() });
        let inbox = shared.clone();
        let log = match &settings.log {
            Some(path) => Some(Arc::new(Mutex::new(open_log(path)?))),
            None => None,
        };
        let file = log.clone();
        let on_msg: OnMsg = Box::new(move |msg| match msg {
            SessionMsg::Log { line, debug: true } => gt_ir::say!("{line}"),
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
            outbox: Mutex::default(),
            shared,
            streams: Mutex::new(Vec::new()),
            generator: Mutex::new(Generator { key: 0x6774, offset: 0 }),
            orphans: Mutex::default(),
            closed: AtomicBool::new(false),
            keeps: AtomicBool::new(false),
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

    /// The first of `n` ids in a row.
    pub(crate) fn next_ids(&self, n: u64) -> TensorId {
        TensorId(self.ids.fetch_add(n, Ordering::Relaxed))
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
        let given = DRAWN_FROM.with_borrow_mut(|g| g.as_mut().map(|g| g.take(blocks)));
        given.unwrap_or_else(|| self.generator.lock().take(blocks))
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

    pub(crate) fn next_req(&self) -> u64 {
        self.reqs.fetch_add(1, Ordering::Relaxed)
    }

    /// Sends host bytes as a new tensor. They have been taken when this returns.
    pub fn upload(self: &Arc<Session>, stream: &Arc<Stream>, ty: Ty, data: &[u8]) -> Result<Value> {
        if self.link.is_behind() {
            // Asked for, so that a server without workers answers in time.
            let sent = self.outbox.lock().seq;
            self.ask_for(sent)?;
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
                let data = Some(crate::hostmem::sent(data));
                let _order = self.outbox.lock();
                self.send(ClientMsg::Upload { tensor: id, ty: ty.clone(), data })?;
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
        // What is lost with a worker fails one program after the other: it is one thing to a person, and told once.
        if result.as_ref().is_err_and(|failure| matches!(failure.error, Error::Connection(_))) {
            self.settle()?;
        }
        self.raise_failures()?;
        result.map_err(|failure| {
            self.told(&failure);
            self.describe(&failure)
        })
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
        self.settle()?;
        self.raise_all()
    }

    /// The same for one thread that goes on: it hears of its own failures.
    pub(crate) fn catch_up_all(&self) -> Result<()> {
        self.flush_all()?;
        self.settle()?;
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
        let failed = self.shared.failed.load(Ordering::Relaxed) || self.keeps.load(Ordering::Relaxed);
        if failed && !Unbroken::puts_off() {
            self.raise_failures()?;
        }
        Ok(())
    }

    /// Sends a message; on a link that is lost, the error is the session's own.
    pub(crate) fn send(&self, msg: ClientMsg) -> Result<()> {
        self.link.send(msg).map_err(|error| {
            let mut inbox = self.shared.inbox.lock();
            inbox.told = inbox.fatal.is_some();
            inbox.fatal.clone().unwrap_or(error)
        })
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

    /// True once the connection is lost for good: nothing can be recorded any more.
    pub fn is_lost(&self) -> bool {
        self.shared.inbox.lock().fatal.is_some()
    }

    /// True if the connection was lost and no work with it: all that was recorded had been done.
    fn lost_nothing(&self) -> bool {
        let sent = self.outbox.lock().seq;
        let done = {
            let inbox = self.shared.inbox.lock();
            inbox.fatal.is_some() && inbox.failures.is_empty() && inbox.completed >= sent
        };
        done && self.streams.lock().iter().filter_map(Weak::upgrade).all(|stream| stream.is_empty())
    }

    /// Runs what is recorded and reports a failure nobody has looked at yet (for the end of the process).
    pub fn finish(&self) -> Result<()> {
        let over =
            self.is_closed() || self.is_inherited() || self.shared.inbox.lock().told || self.lost_nothing();
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
