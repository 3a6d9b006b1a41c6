//! The steps of a plan as one rank of a gang. Where bytes have a long way, collectives run on a thread of their own, and
//! the steps that do not touch what they carry go on meanwhile.

use super::super::collective;
use super::super::kernel::Bases;
use super::super::waves::{Touched, Wave, meet, touched};
use super::CpuPlan;
use crate::backend::{PlanError, StepClock};
use crate::gang::Group;
use crate::gang::hands::{Alone, Hands};
use crate::plans::panic_text;
use gt_compiler::Work;
use gt_ir::Error;
use gt_sync::{Condvar, Mutex};
use std::borrow::Cow;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

impl CpuPlan {
    /// Runs all steps together with the others of the gang. A rank that is past the last step that can fail overwrites
    /// its dying inputs, so by then it knows that no other has failed (C5).
    pub(super) fn steps_together(
        &self,
        bases: Bases,
        group: &dyn Group,
        clock: Option<&StepClock>,
    ) -> Result<(), PlanError> {
        let steps = &self.plan.steps;
        let last = steps.iter().rposition(|s| s.can_fail());
        let met = last.is_some_and(|i| matches!(steps[i].work, Work::Collective(_)));
        let donates = self.structure.inputs.iter().any(|i| i.dies);
        let agrees_at = (donates && !met).then_some(last.map_or(0, |i| i + 1));
        let is_far = |axis: u8| group.axis(axis).is_ok_and(|road| road.is_far());
        let far = steps.iter().any(|step| matches!(&step.work, Work::Collective(c) if is_far(c.axis)));
        if far {
            return self.overlapped(bases, group, clock, agrees_at);
        }
        // Nothing passes a step that can fail, so that all steps before the agreement are done by then.
        let mut agrees_at = agrees_at;
        for wave in self.waves_together().iter() {
            if agrees_at.is_some_and(|at| wave[0] as usize >= at) {
                group.agree()?;
                agrees_at = None;
            }
            match &steps[wave[0] as usize].work {
                Work::Collective(_) => {
                    self.exchange(wave[0] as usize, bases, group, &*self.threads, clock)?;
                }
                _ => self.side_by_side(wave, bases, clock)?,
            }
        }
        if agrees_at.is_some() { group.agree() } else { Ok(()) }
    }

    /// The steps in order the first time, as waves when the plan has come back.
    fn waves_together(&self) -> Cow<'_, [Wave]> {
        let first = self.runs.fetch_add(1, Ordering::Relaxed) == 0;
        match first || self.threads.count() == 1 {
            true => (0..self.plan.steps.len() as u32).map(|i| Wave::from_slice(&[i])).collect(),
            false => Cow::Borrowed(self.waves.get_or_init(|| self.waves())),
        }
    }

    fn side_by_side(&self, wave: &Wave, bases: Bases, clock: Option<&StepClock>) -> Result<(), PlanError> {
        if let [one] = wave.as_slice() {
            return self.alone(*one as usize, bases, clock);
        }
        let failed = Mutex::new(None);
        self.threads.run(wave.len(), &|k| {
            if let Err(error) = self.alone(wave[k] as usize, bases, clock) {
                *failed.lock() = Some(error);
            }
        });
        failed.into_inner().map_or(Ok(()), Err)
    }

    /// Runs a step that is a collective.
    fn exchange(
        &self,
        i: usize,
        bases: Bases,
        group: &dyn Group,
        hands: &dyn Hands,
        clock: Option<&StepClock>,
    ) -> Result<(), PlanError> {
        let step = &self.plan.steps[i];
        let Work::Collective(what) = &step.work else { return Ok(()) };
        let start = clock.map(StepClock::now);
        collective::run(what, &self.plan, bases, group, hands)
            .map_err(|e| PlanError { instr: e.instr.or(Some(step.instr)), ..e })?;
        if let (Some(clock), Some(start)) = (clock, start) {
            clock.end(i as u32, start);
        }
        Ok(())
    }

    /// Runs collectives on the side. All ranks start them in the same order, and each waits only for those whose
    /// memory its next step touches.
    fn overlapped(
        &self,
        bases: Bases,
        group: &dyn Group,
        clock: Option<&StepClock>,
        agrees_at: Option<usize>,
    ) -> Result<(), PlanError> {
        let side = Side::default();
        let exchange = |i: usize| self.exchange(i, bases, group, &Alone, clock);
        std::thread::scope(|scope| {
            scope.spawn(|| side.run(&exchange));
            // Ends the thread after the collective it is in, also when a step panics here: the other ranks come to that
            // one too, or have failed.
            let _stop = StopAtEnd(&side);
            self.beside(bases, group, clock, agrees_at, &side)
        })
    }

    fn beside(
        &self,
        bases: Bases,
        group: &dyn Group,
        clock: Option<&StepClock>,
        agrees_at: Option<usize>,
        side: &Side,
    ) -> Result<(), PlanError> {
        let steps = &self.plan.steps;
        // The collectives that were started, with what they touch.
        let mut started: Vec<Touched> = Vec::new();
        for (i, step) in steps.iter().enumerate() {
            if agrees_at == Some(i) {
                side.wait(started.len())?;
                group.agree()?;
            }
            let touches = touched(&self.plan, i);
            if matches!(step.work, Work::Collective(_)) {
                // They run one after the other, so that one may read what another has brought.
                started.push(touches);
                side.start(i);
                continue;
            }
            let mut overwrites = false;
            step.writes(|s| overwrites |= self.plan.storages[s as usize].reuse.is_some());
            let needed = match overwrites {
                // What the program was given is overwritten only when nothing can fail any more.
                true => started.len(),
                false => started.iter().rposition(|one| meet(one, &touches)).map_or(0, |at| at + 1),
            };
            side.wait(needed)?;
            self.alone(i, bases, clock)?;
        }
        side.wait(started.len())?;
        if agrees_at == Some(steps.len()) { group.agree() } else { Ok(()) }
    }
}

/// Collectives that run on a thread of their own, in order.
#[derive(Default)]
struct Side {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<usize>,
    /// How many are done.
    done: usize,
    failed: Option<PlanError>,
    stop: bool,
}

impl Side {
    fn start(&self, step: usize) {
        self.state.lock().waiting.push_back(step);
        self.changed.notify_all();
    }

    /// Waits until so many are done; fails if one has failed.
    fn wait(&self, count: usize) -> Result<(), PlanError> {
        if count == 0 {
            return Ok(());
        }
        let mut state = self.state.lock();
        while state.done < count {
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            self.changed.wait(&mut state);
        }
        Ok(())
    }

    fn run(&self, exchange: &dyn Fn(usize) -> Result<(), PlanError>) {
        let mut state = self.state.lock();
        while !state.stop && state.failed.is_none() {
            let Some(step) = state.waiting.pop_front() else {
                self.changed.wait(&mut state);
                continue;
            };
            drop(state);
            let done = catch_unwind(AssertUnwindSafe(|| exchange(step))).unwrap_or_else(|panic| {
                let error = Error::Runtime(format!("the program panicked: {}", panic_text(&*panic)));
                Err(PlanError { instr: None, error })
            });
            state = self.state.lock();
            match done {
                Ok(()) => state.done += 1,
                Err(error) => state.failed = Some(error),
            }
            self.changed.notify_all();
        }
    }
}

struct StopAtEnd<'a>(&'a Side);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.state.lock().stop = true;
        self.0.changed.notify_all();
    }
}
