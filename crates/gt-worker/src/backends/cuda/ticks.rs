//! When the steps of one run are done, by the device's own clock.

use super::device::Device;
use super::driver::Event;
use super::lane::Lane;
use super::steps::{Ready, Steps};
use crate::backend::StepClock;
use gt_ir::Result;
use gt_net::observe::StepTime;
use parking_lot::Mutex;
use std::sync::Arc;

/// The points between the steps of a run that is queued one step after the other.
pub struct Ticks {
    device: Arc<Device>,
    start: Event,
    /// The step that ends at each point, in order.
    ends: Mutex<Vec<(u32, Event)>>,
}

impl Ticks {
    /// A run on this lane begins now.
    pub fn start(lane: &Lane) -> Result<Ticks> {
        Ok(Ticks { device: lane.device.clone(), start: Event::timed(&lane.stream)?, ends: Mutex::default() })
    }

    /// All work of a step is queued. Nothing is noted for one that leaves its work to another.
    pub fn done(&self, step: usize, steps: &Steps, lane: &Lane) -> Result<()> {
        if !matches!(steps.list[step], Ready::Nothing) {
            self.ends.lock().push((step as u32, Event::timed(&lane.stream)?));
        }
        Ok(())
    }

    /// True if the device has done all of it.
    pub fn passed(&self) -> Result<bool> {
        self.device.enter()?;
        self.ends.lock().last().map_or(Ok(true), |(_, end)| end.passed())
    }

    /// Waits until it has.
    pub fn wait(&self) -> Result<()> {
        self.device.enter()?;
        self.ends.lock().last().map_or(Ok(()), |(_, end)| end.wait())
    }

    /// Each step that did something: when it began, in seconds since the run did, and how long it took. The device must be
    /// done with all of it.
    pub fn times(&self) -> Vec<(u32, f64, f64)> {
        let mut at = 0.0;
        let ends = self.ends.lock();
        let since = |end: &Event| end.seconds_since(&self.start).max(0.0);
        ends.iter()
            .map(|(step, end)| {
                let began = at;
                at = since(end).max(at);
                (*step, began, at - began)
            })
            .collect()
    }

    /// Tells the clock.
    pub fn note(&self, clock: &StepClock) {
        let nanos = |seconds: f64| (seconds * 1e9) as u32;
        for (step, start, took) in self.times() {
            clock.add(StepTime { step, start: nanos(start), took: nanos(took) });
        }
    }
}
