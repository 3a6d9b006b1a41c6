//! How long the steps of plans take, by family: each plan is timed when it is new and from time to time after, so that
//! the time of every run can be told apart without timing it.

use crate::backend::{Plan, StepClock};
use gt_ir::{Family, Structure};
use gt_net::observe::{PerFamily, StepInfo, StepTime, Timing};
use gt_sync::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// After its first two runs a plan is timed once in so many.
const EVERY: u32 = 128;

/// The timing of one plan.
#[derive(Default)]
pub struct Timed {
    runs: AtomicU32,
    last: Mutex<Option<Arc<Timing>>>,
}

/// Where the time of one run went.
#[derive(Clone, Default)]
pub struct Spent {
    /// Of this plan, now or the last time it was timed.
    pub timing: Option<Arc<Timing>>,
    /// Of this run, if it was timed.
    pub kernels: Vec<StepTime>,
    pub shares: PerFamily,
}

/// The steps of a plan, for whoever asks where time went.
pub fn steps_of(plan: &gt_compiler::Plan, structure: &Structure) -> Vec<StepInfo> {
    let info = |step: &gt_compiler::Step| {
        let mut instrs = vec![step.instr];
        instrs.extend(&step.fused);
        StepInfo { name: step.label().into(), family: step.family(structure), instrs }
    };
    plan.steps.iter().map(info).collect()
}

impl Timed {
    /// True if this run is one to be timed.
    pub fn is_due(&self) -> bool {
        let runs = self.runs.fetch_add(1, Ordering::Relaxed);
        runs < 2 || runs.is_multiple_of(EVERY)
    }

    /// What is known from earlier runs.
    pub fn known(&self, structure: &Structure) -> Spent {
        let timing = self.last.lock().clone();
        let shares = timing.as_ref().map_or_else(|| estimate(structure), |t| t.shares);
        Spent { timing, kernels: Vec::new(), shares }
    }

    /// Takes in a run that was timed.
    pub fn note(&self, plan: &dyn Plan, structure: &Structure, clock: StepClock) -> Spent {
        let times = clock.times();
        if times.is_empty() {
            return self.known(structure);
        }
        let mut last = self.last.lock();
        let steps = match &*last {
            Some(timing) => timing.steps.clone(),
            None => Arc::new(plan.steps()),
        };
        let timing = Arc::new(Timing { shares: shares(&steps, &times), steps, times: times.clone() });
        *last = Some(timing.clone());
        Spent { shares: timing.shares, timing: Some(timing), kernels: times }
    }
}

/// The part of each family in what was timed.
pub fn shares(steps: &[StepInfo], times: &[StepTime]) -> PerFamily {
    let mut out = PerFamily::default();
    for time in times {
        let family = steps.get(time.step as usize).map_or(Family::Other, |s| s.family);
        out[family as usize] += time.took as f32;
    }
    whole(out)
}

/// The part of each family by the number of its ops, for devices that cannot time steps.
pub fn estimate(structure: &Structure) -> PerFamily {
    let mut out = PerFamily::default();
    for instr in &structure.instrs {
        let family = instr.op.family();
        out[family as usize] += match family {
            Family::Matmul | Family::Attention | Family::Optimizer => 16.0,
            _ if instr.op.is_view() => 0.0,
            _ => 1.0,
        };
    }
    whole(out)
}

fn whole(mut shares: PerFamily) -> PerFamily {
    let sum: f32 = shares.iter().sum();
    if sum > 0.0 {
        shares.iter_mut().for_each(|s| *s /= sum);
    } else {
        shares[Family::Other as usize] = 1.0;
    }
    shares
}
