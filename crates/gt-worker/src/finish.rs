//! The ends of batches: what a device has only queued is waited for on a thread per session, so that neither programs
//! nor other sessions wait for it.

use crate::backend::Pending;
use crate::early::PATIENCE;
use crate::gang::aloft::Doubt;
use crate::road::{Job, lost};
use crate::table::SessionTable;
use crate::watched::Record;
use crate::worker::Core;
use gt_ir::{Result, TensorId};
use gt_net::msg::{Bytes, Compiled, Failure, Payload, SessionId, Value, WorkerMsg};
use gt_net::spin::{self, Habit};
use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A value on its way to a client.
pub(crate) enum Answer {
    Here(Payload),
    Coming(Box<dyn Pending<Bytes>>),
}

/// The end of a batch, and what is to be told of it.
pub(crate) struct Closing {
    pub session: SessionId,
    pub finished: Vec<u64>,
    pub values: Vec<(u64, Result<Answer, Failure>)>,
    pub failures: Vec<(u64, Failure)>,
    pub spared: Vec<TensorId>,
    pub compiled: Vec<Compiled>,
    pub session_bytes: u64,
    /// Programs whose time is not known yet.
    pub ran: Vec<Record>,
    /// The device's work, where it is only queued.
    pub done: Option<Result<Box<dyn Pending<f64>>>>,
    /// All its values were given before.
    pub may_wait: bool,
    /// Gangs that its programs hang on, and those that values hang on, by request.
    pub doubts: Vec<(Arc<Doubt>, Vec<u64>)>,
    pub doubted: Vec<(u64, Arc<Doubt>)>,
}

impl Closing {
    /// Nothing to tell yet.
    pub fn new(session: SessionId) -> Closing {
        Closing {
            session,
            finished: Vec::new(),
            values: Vec::new(),
            failures: Vec::new(),
            spared: Vec::new(),
            compiled: Vec::new(),
            session_bytes: 0,
            ran: Vec::new(),
            done: None,
            may_wait: false,
            doubts: Vec::new(),
            doubted: Vec::new(),
        }
    }
}

impl SessionTable {
    /// What there is to tell of a session, taken from its table.
    pub fn closing(&mut self, session: SessionId) -> Closing {
        Closing {
            doubts: self.doubts_in(&self.finished),
            finished: std::mem::take(&mut self.finished),
            failures: std::mem::take(&mut self.failures),
            spared: std::mem::take(&mut self.spared),
            compiled: std::mem::take(&mut self.compiled),
            session_bytes: self.bytes,
            ..Closing::new(session)
        }
    }
}

/// How long a finisher looks for the end of the device's work without sleeping, and how long it sleeps at a time then.
const AWAKE: Duration = Duration::from_millis(2);
const NAP: Duration = Duration::from_micros(50);

/// A session's thread.
pub(crate) struct Finisher {
    todo: Sender<Closing>,
    thread: JoinHandle<()>,
}

impl Finisher {
    fn start(core: &Arc<Core>) -> std::io::Result<Finisher> {
        let (todo, work): (_, Receiver<Closing>) = channel();
        // The worker waits for its finishers when it ends, so this is no circle for good.
        let core = core.clone();
        let body = move || finish_all(&core, &work);
        let thread = std::thread::Builder::new().name("gt-finisher".into()).spawn(body)?;
        Ok(Finisher { todo, thread })
    }

    /// Lets it end once it has nothing left to do.
    pub fn close(self) -> JoinHandle<()> {
        self.thread
    }
}

/// Finishes batches as they come. That programs have finished whose values were given before waits a little for the next
/// answer to ride with: a step that looks at its loss costs one message here.
fn finish_all(core: &Core, work: &Receiver<Closing>) {
    let mut untold: Option<Closing> = None;
    let mut later = VecDeque::new();
    let habit = Habit::default();
    loop {
        let next = match later.pop_front() {
            Some(next) => Ok(next),
            None => next(work, &habit, untold.is_some()),
        };
        let rides = next.as_ref().is_ok_and(|next| !next.values.is_empty());
        if !rides && let Some(before) = untold.take() {
            before.tell(core);
        }
        let mut close = match next {
            Ok(close) => close,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        close.attend(core, work, &mut later);
        close.settle(core);
        close.follow(untold.take());
        if close.may_wait && close.failures.is_empty() {
            untold = Some(close);
        } else if !(close.finished.is_empty() && close.values.is_empty()) {
            close.tell(core);
        }
    }
}

/// The next end of a batch; the wait for it has an end where there is something `untold`.
fn next(work: &Receiver<Closing>, habit: &Habit, untold: bool) -> Result<Closing, RecvTimeoutError> {
    let begin = Instant::now();
    let mut come = None;
    spin::within(habit.awake(), || {
        come = work.try_recv().ok();
        come.is_some()
    });
    let next = match (come, untold) {
        (Some(next), _) => Ok(next),
        (None, false) => work.recv().map_err(|_| RecvTimeoutError::Disconnected),
        (None, true) => work.recv_timeout(PATIENCE),
    };
    habit.took(begin.elapsed());
    next
}

/// Shares the time of a batch out among its programs, by their instructions; they are taken to have run one after the
/// other until now.
fn timed(mut ran: Vec<Record>, seconds: f64) -> Vec<Record> {
    let all: f64 = ran.iter().map(|r| r.instrs as f64 + 1.0).sum();
    let mut end = Instant::now();
    for record in ran.iter_mut().rev() {
        record.took = Duration::from_secs_f64(seconds * (record.instrs as f64 + 1.0) / all);
        record.start = end.checked_sub(record.took).unwrap_or(end);
        end = record.start;
    }
    ran
}

impl Closing {
    /// Waits for all that was queued and tells the dispatcher.
    pub fn finish(mut self, core: &Core) {
        self.settle(core);
        self.tell(core);
    }

    /// While the device is at its work, gives values that are there and keeps what else comes for later.
    fn attend(&self, core: &Core, work: &Receiver<Closing>, later: &mut VecDeque<Closing>) {
        let Some(Ok(mark)) = &self.done else { return };
        let begin = Instant::now();
        while let Ok(false) = mark.passed() {
            let nap = if begin.elapsed() < AWAKE { Duration::ZERO } else { NAP };
            match work.recv_timeout(nap) {
                Ok(next) if next.is_there() => next.tell(core),
                Ok(next) => later.push_back(next),
                Err(RecvTimeoutError::Timeout) => spin::pause(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// True if it is nothing but values that are there.
    fn is_there(&self) -> bool {
        let there = |(_, answer): &(u64, Result<Answer, Failure>)| match answer {
            Ok(Answer::Coming(bytes)) => bytes.passed().unwrap_or(true),
            Ok(Answer::Here(_)) | Err(_) => true,
        };
        let only = self.done.is_none() && self.finished.is_empty() && self.failures.is_empty();
        only && !self.values.is_empty() && self.values.iter().all(there)
    }

    /// Tells also what an earlier end has left to tell.
    fn follow(&mut self, before: Option<Closing>) {
        let Some(mut before) = before else { return };
        before.finished.append(&mut self.finished);
        before.compiled.append(&mut self.compiled);
        (self.finished, self.compiled) = (before.finished, before.compiled);
    }

    /// Waits for the device's work, where it is only queued.
    fn settle(&mut self, core: &Core) {
        let took = self.done.take().map(|mark| mark.and_then(Pending::wait));
        match took {
            Some(Ok(seconds)) => {
                let mut state = core.state.lock();
                state.counters.busy_seconds += seconds;
                if let Some(table) = state.sessions.get_mut(&self.session) {
                    table.busy += Duration::from_secs_f64(seconds.max(0.0));
                }
                let detail = state.detail(self.session);
                for record in timed(std::mem::take(&mut self.ran), seconds.max(0.0)) {
                    state.ran(core, record, detail);
                }
            }
            // Nothing is known of what the programs have come to.
            Some(Err(error)) => {
                let lost = std::mem::take(&mut self.finished);
                lost.iter().for_each(|&seq| {
                    self.fails(seq, Failure { root: seq, instr: None, error: error.clone() })
                });
                self.finished = lost;
            }
            None => {}
        }
        self.clear_up(core);
    }

    /// A program has failed, unless it had already.
    fn fails(&mut self, seq: u64, failure: Failure) {
        if !self.failures.iter().any(|(known, _)| *known == seq) {
            self.failures.push((seq, failure));
        }
    }

    /// Hears what the gangs have come to that its programs hang on; the device is done with them.
    fn clear_up(&mut self, core: &Core) {
        for (doubt, programs) in std::mem::take(&mut self.doubts) {
            let known = doubt.wait();
            let mut state = core.state.lock();
            let table = state.sessions.get_mut(&self.session);
            let dropped = table.map_or_else(Vec::new, |table| match &known {
                Ok(()) => {
                    table.settled(&doubt);
                    Vec::new()
                }
                Err(failure) => table.condemned(&doubt, failure),
            });
            drop(state);
            drop(dropped);
            if let Err(failure) = known {
                programs.into_iter().for_each(|seq| self.fails(seq, failure.clone()));
            }
        }
    }

    fn tell(self, core: &Core) {
        let doubted = self.doubted;
        let value = |(req, answer): (u64, Result<Answer, Failure>)| {
            let mut doubts = doubted.iter().filter(|(of, _)| *of == req);
            let right = doubts.try_for_each(|(_, doubt)| doubt.wait());
            let result = right.and(answer).and_then(|answer| match answer {
                Answer::Here(payload) => Ok(payload),
                Answer::Coming(bytes) => {
                    let bytes = bytes.wait().map_err(lost)?;
                    core.carriage.outward.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                    Ok(Payload::Inline(bytes))
                }
            });
            Value { req, result }
        };
        (core.say)(WorkerMsg::Update {
            session: self.session,
            finished: self.finished,
            values: self.values.into_iter().map(value).collect(),
            failures: self.failures,
            spared: self.spared,
            compiled: self.compiled,
            session_bytes: self.session_bytes,
        });
    }
}

impl Core {
    /// Finishes a batch on the session's own thread, in order.
    pub fn finish_later(self: &Arc<Core>, close: Closing) {
        let mut finishers = self.finishers.lock();
        if let Entry::Vacant(place) = finishers.entry(close.session) {
            match Finisher::start(self) {
                Ok(finisher) => {
                    place.insert(finisher);
                }
                Err(error) => {
                    gt_ir::say!(
                        "gt worker: no thread for the answers of session {}: {error}",
                        close.session.0
                    );
                }
            }
        }
        let todo = finishers.get(&close.session).map(|f| f.todo.clone());
        drop(finishers);
        let left = match todo {
            Some(todo) => todo.send(close).err().map(|back| back.0),
            None => Some(close),
        };
        if let Some(close) = left {
            // Whoever calls may hold the lock of those who hear of it.
            let _ = self.jobs.lock().send(Job::Finish(Box::new(close)));
        }
    }
}
