//! What the executor does next.

use crate::early::PATIENCE;
use crate::road;
use crate::table::{Item, SessionTable};
use crate::worker::{Core, Upload};
use gt_net::msg::SessionId;
use gt_net::spin;
use gt_sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// What to do next.
pub(super) enum Next {
    Upload(Upload),
    Item(SessionId, Item),
    /// Nothing that would tell of this session's finished programs.
    Tell(SessionId),
    /// Nothing: a plan that is owed may be made.
    Spare,
    Stop,
}

/// How often promises and early bytes are looked through while any are left.
const SWEEP: Duration = Duration::from_secs(10);

/// Waits for something to do: bytes first, then the next ready session after the one served last.
pub(super) fn next(core: &Core, owes: bool) -> Next {
    let mut state = core.state.lock();
    let (mut rested, mut idle) = (false, None);
    // Learns how long it takes until there is something to do again.
    let found = |idle: Option<Instant>| idle.into_iter().for_each(|since| core.habit().took(since.elapsed()));
    loop {
        if state.stop {
            return Next::Stop;
        }
        if let Some(upload) = state.uploads.pop_front() {
            found(idle);
            return Next::Upload(upload);
        }
        let turn = SessionId(state.turn);
        let after = state.sessions.range((std::ops::Bound::Excluded(turn), std::ops::Bound::Unbounded));
        let gang = state.gangs.front().copied();
        let room = || has_room(core);
        let ready = after
            .chain(state.sessions.range(..=turn))
            .find_map(|(id, t)| t.ready(gang, room).map(|at| (*id, at)));
        if let Some((id, at)) = ready {
            // What waits to be told goes with the session's next answer, or now.
            if let Some(untold) = state.untold.take()
                && (untold != id || !state.sessions.get(&id).is_some_and(SessionTable::will_answer))
            {
                return Next::Tell(untold);
            }
            state.turn = id.0;
            if let Some(item) = state.sessions.get_mut(&id).and_then(|t| t.take(at)) {
                found(idle);
                return Next::Item(id, item);
            }
        }
        idle.get_or_insert_with(Instant::now);
        if !rested {
            // The next command is often near: stay awake for a moment, with the lock open, and look again.
            rested = true;
            core.config.backend.rest();
            let told = core.told.load(Ordering::Acquire);
            let more = || core.told.load(Ordering::Acquire) != told;
            let most = if state.untold.is_some() { PATIENCE } else { Duration::MAX };
            let awake = core.habit().awake_a_moment().min(most);
            MutexGuard::unlocked(&mut state, || spin::within(awake, more));
            continue;
        }
        if let Some(untold) = state.untold {
            let late = core.wake.wait_for(&mut state, PATIENCE).timed_out();
            if late && state.untold == Some(untold) {
                state.untold = None;
                return Next::Tell(untold);
            }
            continue;
        }
        let due = state.watched.due_in();
        if due.is_some_and(|left| left.is_zero()) {
            MutexGuard::unlocked(&mut state, || core.tell_events());
            continue;
        }
        if owes {
            return Next::Spare;
        }
        rested = false;
        let sweeps = !state.early.is_empty() || !state.promised.is_empty();
        match due.or(sweeps.then_some(SWEEP)) {
            Some(time) => drop(core.wake.wait_for(&mut state, time)),
            None => core.wake.wait(&mut state),
        }
        if sweeps {
            road::sweep(&mut state);
        }
    }
}

/// True if programs may run ahead of their turn: what they hold for longer leaves half of the memory free.
fn has_room(core: &Core) -> bool {
    let backend = &core.config.backend;
    backend.memory_in_use().0 < backend.memory() / 2
}
