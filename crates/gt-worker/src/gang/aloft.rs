//! Gangs that a device is still at. Their results are in doubt until it is done: a rank may die, and then what was queued
//! comes to an end with values that mean nothing. One thread watches them, so that programs go on meanwhile.

use super::Flight;
use super::seats::Seated;
use crate::backend::PlanError;
use crate::worker::Core;
use gt_ir::Error;
use gt_net::msg::{Failure, Gang};
use gt_sync::{Condvar, Mutex};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often gangs are looked at while there are any.
const LOOK: Duration = Duration::from_micros(500);
/// How long a rank whose road is bad waits to hear who has failed: that tells more than the road does.
const HEARING: Duration = Duration::from_secs(2);
/// How long a worker that ends leaves its gangs to come to an end by themselves.
const LEAVING: Duration = Duration::from_secs(1);

/// One program of a gang, until it is known what it has come to.
pub(crate) struct Doubt {
    /// Its number in its session.
    pub seq: u64,
    gang: Gang,
    state: Mutex<State>,
    changed: Condvar,
}

enum State {
    Aloft {
        flight: Box<dyn Flight>,
        seat: Seated,
        /// Since when the road between the ranks is bad.
        bad: Option<Instant>,
    },
    Known(Result<(), Failure>),
}

impl Doubt {
    pub fn new(seq: u64, gang: Gang, flight: Box<dyn Flight>, seat: Seated) -> Arc<Doubt> {
        let state = State::Aloft { flight, seat, bad: None };
        Arc::new(Doubt { seq, gang, state: Mutex::new(state), changed: Condvar::new() })
    }

    /// What it has come to, as far as that is known now. A gang that has failed is cut off, and the other ranks are told.
    pub fn look(&self) -> Option<Result<(), Failure>> {
        let mut state = self.state.lock();
        let found = match &mut *state {
            State::Known(known) => return Some(known.clone()),
            State::Aloft { flight, seat, bad } => {
                let found = find(&**flight, seat, bad)?;
                if let Err(failed) = &found {
                    flight.cut(failed);
                    seat.fail(failed);
                }
                found
            }
        };
        let known = found.map_err(|PlanError { instr, error }| Failure { root: self.seq, instr, error });
        let before = std::mem::replace(&mut *state, State::Known(known.clone()));
        self.changed.notify_all();
        drop(state);
        drop(before);
        Some(known)
    }

    /// Waits until it is known what it has come to.
    pub fn wait(&self) -> Result<(), Failure> {
        loop {
            if let Some(known) = self.look() {
                return known;
            }
            let mut state = self.state.lock();
            if matches!(*state, State::Aloft { .. }) {
                let _ = self.changed.wait_for(&mut state, LOOK);
            }
        }
    }

    /// Gives it up: the worker ends.
    fn give_up(&self) {
        if let State::Aloft { flight, .. } = &*self.state.lock() {
            let error = Error::Runtime("the worker has ended".into());
            flight.cut(&PlanError { instr: None, error });
        }
    }
}

/// What there is to be found of a gang; `bad` says since when its road is.
fn find(flight: &dyn Flight, seat: &Seated, bad: &mut Option<Instant>) -> Option<Result<(), PlanError>> {
    let wrong = |error| Some(Err(PlanError { instr: None, error }));
    let landed = flight.landed();
    // A rank is cut off before its device ends for that: looked at in this order, an end is a good one.
    match (flight.broken(), landed) {
        (Some(error), _) | (None, Err(error)) => return wrong(error),
        (None, Ok(true)) => return Some(Ok(())),
        (None, Ok(false)) => {}
    }
    if let Some(failed) = seat.group().map_or_else(Some, |group| group.failed()) {
        return Some(Err(failed));
    }
    let error = flight.trouble()?;
    match bad.get_or_insert_with(Instant::now).elapsed() > HEARING {
        true => wrong(error),
        false => None,
    }
}

/// The gangs of a worker that its device is at, and the thread that watches them.
#[derive(Default)]
pub(crate) struct Aloft {
    gangs: Mutex<Watched>,
    more: Condvar,
}

#[derive(Default)]
struct Watched {
    list: Vec<Arc<Doubt>>,
    thread: Option<JoinHandle<()>>,
    stop: bool,
}

impl Core {
    /// Has a gang watched.
    pub fn watch(self: &Arc<Core>, doubt: &Arc<Doubt>) {
        let mut gangs = self.aloft.gangs.lock();
        gangs.list.push(doubt.clone());
        if gangs.thread.is_none() {
            let core = self.clone();
            match std::thread::Builder::new().name("gt-aloft".into()).spawn(move || core.watch_all()) {
                Ok(thread) => gangs.thread = Some(thread),
                // Whoever asks for its values looks, too.
                Err(error) => gt_ir::say!("gt worker: no thread to watch gangs: {error}"),
            }
        }
        drop(gangs);
        self.aloft.more.notify_one();
    }

    fn watch_all(&self) {
        let mut gangs = self.aloft.gangs.lock();
        loop {
            let list = gangs.list.clone();
            let stop = gangs.stop;
            drop(gangs);
            // In the order in which they were queued: those that are done are so before another is cut off.
            let done: Vec<&Arc<Doubt>> = list.iter().filter(|doubt| doubt.look().is_some()).collect();
            done.iter().for_each(|doubt| self.rise(doubt.gang));
            gangs = self.aloft.gangs.lock();
            gangs.list.retain(|doubt| !done.iter().any(|known| Arc::ptr_eq(known, doubt)));
            if gangs.stop && stop {
                return;
            }
            if gangs.list.is_empty() {
                self.aloft.more.wait(&mut gangs);
            } else {
                let _ = self.aloft.more.wait_for(&mut gangs, LOOK);
            }
        }
    }

    /// Ends the watching; gangs that do not come to an end are given up.
    pub fn stop_watching(&self) {
        let start = Instant::now();
        loop {
            let mut gangs = self.aloft.gangs.lock();
            if gangs.list.is_empty() || start.elapsed() > LEAVING {
                gangs.list.iter().for_each(|doubt| doubt.give_up());
                gangs.stop = true;
                let thread = gangs.thread.take();
                drop(gangs);
                self.aloft.more.notify_all();
                if let Some(thread) = thread.filter(|t| t.thread().id() != std::thread::current().id()) {
                    let _ = thread.join();
                }
                return;
            }
            drop(gangs);
            std::thread::sleep(LOOK);
        }
    }
}
