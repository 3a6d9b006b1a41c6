//! Which session and stream an operation goes to: the innermost `with session:` of the thread, else the default.

use crate::session::Session;
use crate::stream::Stream;
use crate::value::Value;
use gt_ir::{Error, Result};
use gt_sync::Mutex;
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Starts the session that is used when nobody connected: dispatcher and worker inside this process.
pub type StartDefault = fn() -> Result<Arc<Session>>;

static START: OnceLock<StartDefault> = OnceLock::new();
static DEFAULT: Mutex<Option<Arc<Session>>> = Mutex::new(None);
/// Counts forks: state of an older generation belongs to the parent process.
static GENERATION: AtomicU64 = AtomicU64::new(0);
/// Changes when the default session does, so that threads notice.
static DEFAULT_STAMP: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static THREAD: RefCell<ThreadState> = RefCell::new(ThreadState::default());
}

thread_local! {
    /// The session and stream this thread recorded to last. Taken out while in use, so that a signal handler that
    /// records in between finds nothing and goes the long way.
    static LAST: Cell<Option<Place>> = const { Cell::new(None) };
}

#[derive(Default)]
struct ThreadState {
    generation: u64,
    stack: Vec<Arc<Session>>,
    streams: Vec<Arc<Stream>>,
    /// The default session as this thread last saw it.
    default: Option<(u64, Arc<Session>)>,
}

/// The thread has ended.
impl Drop for ThreadState {
    fn drop(&mut self) {
        self.streams.iter().for_each(|stream| stream.end());
    }
}

/// Installs how a session is started on first use, and what a fork does.
pub fn install(start: StartDefault) {
    if START.set(start).is_ok() {
        unsafe extern "C" fn child() {
            GENERATION.fetch_add(1, Ordering::SeqCst);
        }
        // SAFETY: `child` only touches an atomic, which is async-signal-safe.
        unsafe { libc::pthread_atfork(None, None, Some(child)) };
    }
}

/// How many forks lie between this process and the first.
#[inline]
pub fn generation() -> u64 {
    GENERATION.load(Ordering::Relaxed)
}

/// Makes a session the default of the process; returns the former one.
pub fn set_default(session: Option<Arc<Session>>) -> Option<Arc<Session>> {
    let old = std::mem::replace(&mut *DEFAULT.lock(), session);
    DEFAULT_STAMP.fetch_add(1, Ordering::SeqCst);
    old.filter(|s| s.generation == generation())
}

/// The default session, if one was started or connected in this process.
pub fn get_default() -> Option<Arc<Session>> {
    DEFAULT.lock().clone().filter(|s| s.generation == generation() && !s.is_closed())
}

/// Enters a session on this thread (`with session:`).
pub fn enter(session: Arc<Session>) {
    with_thread(|t| t.stack.push(session));
}

/// Leaves the innermost session of this thread.
pub fn leave() -> Option<Arc<Session>> {
    with_thread(|t| t.stack.pop())
}

fn with_thread<T>(f: impl FnOnce(&mut ThreadState) -> T) -> T {
    THREAD.with_borrow_mut(|t| {
        if t.generation != generation() {
            // Inherited through a fork: never touch the parent's locks, not even to drop.
            let old = std::mem::take(t);
            std::mem::forget(old);
            t.generation = generation();
        }
        f(t)
    })
}

/// The session operations go to now, started if need be, and this thread's stream in it.
pub fn current() -> Result<(Arc<Session>, Arc<Stream>)> {
    let session = current_session()?;
    let stream = current_stream(&session);
    Ok((session, stream))
}

/// The session operations go to now, started if need be.
pub fn current_session() -> Result<Arc<Session>> {
    let stamp = DEFAULT_STAMP.load(Ordering::Relaxed);
    let known = with_thread(|t| {
        t.stack.last().cloned().or_else(|| match &t.default {
            Some((seen, s)) if *seen == stamp && !s.is_closed() => Some(s.clone()),
            _ => None,
        })
    });
    if let Some(session) = known {
        return Ok(session);
    }
    let session = start_default()?;
    let stamp = DEFAULT_STAMP.load(Ordering::Relaxed);
    with_thread(|t| t.default = Some((stamp, session.clone())));
    Ok(session)
}

fn start_default() -> Result<Arc<Session>> {
    let mut default = DEFAULT.lock();
    if let Some(session) = default.as_ref()
        && session.generation == generation()
        && !session.is_closed()
    {
        return Ok(session.clone());
    }
    let start = START.get().ok_or_else(|| {
        Error::Connection("no session: connect to a server first (gt.connect(\"host:port\"))".into())
    })?;
    let session = start()?;
    if let Some(old) = default.replace(session.clone())
        && old.generation != generation()
    {
        std::mem::forget(old);
    }
    DEFAULT_STAMP.fetch_add(1, Ordering::SeqCst);
    Ok(session)
}

/// This thread's stream in a session.
pub fn current_stream(session: &Arc<Session>) -> Arc<Stream> {
    with_thread(|t| {
        if let Some(stream) = t.streams.iter().find(|s| s.session_id == session.number) {
            return stream.clone();
        }
        t.streams.retain(|s| s.session.strong_count() > 0);
        let stream = session.new_stream();
        t.streams.push(stream.clone());
        stream
    })
}

/// The number of this thread's stream in a session; 0 if it has recorded nothing there.
pub(crate) fn number_in(session: u64) -> u64 {
    with_thread(|t| t.streams.iter().find(|s| s.session_id == session).map_or(0, |s| s.number))
}

/// Where an operation on a value is recorded: the session it belongs to, and this thread's stream in it.
pub(crate) struct Place {
    pub session: Arc<Session>,
    pub stream: Arc<Stream>,
}

impl Place {
    #[inline]
    pub fn of(value: &Value) -> Result<Place> {
        match LAST.take() {
            Some(place)
                if place.session.number == value.stream.session_id
                    && place.session.generation == generation() =>
            {
                Ok(place)
            }
            other => Place::find(value, other),
        }
    }

    #[cold]
    fn find(value: &Value, last: Option<Place>) -> Result<Place> {
        match last {
            // Inherited through a fork: never touch the parent's locks, not even to drop.
            Some(place) if place.session.generation != generation() => std::mem::forget(place),
            last => drop(last),
        }
        let session = value.session()?;
        let stream = current_stream(&session);
        Ok(Place { session, stream })
    }

    /// Keeps it for the next operation, which most often goes there too.
    #[inline]
    pub fn put_back(self) {
        LAST.set(Some(self));
    }
}
