//! When the steps of one run are done, by the device's own clock.

use super::device::Device;
use super::driver::Event;
use super::lane::Lane;
use crate::backend::StepClock;
use gt_ir::Result;
use gt_net::observe::StepTime;
use gt_sync::Mutex;
use std::sync::Arc;

/// The points before and after the steps of a run that is queued one step after the other.
pub struct Ticks {
    device: Arc<Device>,
    start: Event,
    /// The step that is being queued begins here.
    begun: Mutex<Option<Event>>,
    /// Steps with their points, in order.
    steps: Mutex<Vec<(u32, Event, Event)>>,
}

impl Ticks {
    /// A run on this lane begins now.
    pub fn start(lane: &Lane) -> Result<Ticks> {
        let (device, start) = (lane.device.clone(), Event::timed(&lane.stream)?);
        Ok(Ticks { device, start, begun: Mutex::default(), steps: Mutex::default() })
    }

    /// A step is about to be queued.
    pub fn begin(&self, lane: &Lane) -> Result<()> {
        *self.begun.lock() = Some(Event::timed(&lane.stream)?);
        Ok(())
    }

    /// All work of a step is queued. Nothing is noted for one that has none: it leaves its work to another.
    pub fn done(&self, step: usize, works: bool, lane: &Lane) -> Result<()> {
        let begun = self.begun.lock().take();
        if let Some(begun) = begun.filter(|_| works) {
            self.steps.lock().push((step as u32, begun, Event::timed(&lane.stream)?));
        }
        Ok(())
    }

    /// True if the device has done all of it.
    pub fn passed(&self) -> Result<bool> {
        self.device.enter()?;
        self.steps.lock().last().map_or(Ok(true), |(_, _, end)| end.passed())
    }

    /// Waits until it has.
    pub fn wait(&self) -> Result<()> {
        self.device.enter()?;
        self.steps.lock().last().map_or(Ok(()), |(_, _, end)| end.wait())
    }

    /// Each step that did something: when it began, in seconds since the run did, and how long it took. The device must be
    /// done with all of it.
    pub fn times(&self) -> Vec<(u32, f64, f64)> {
        let steps = self.steps.lock();
        let times = steps.iter().map(|(step, begun, end)| {
            (*step, begun.seconds_since(&self.start).max(0.0), end.seconds_since(begun).max(0.0))
        });
        times.collect()
    }

    /// Tells the clock.
    pub fn note(&self, clock: &StepClock) {
        let nanos = |seconds: f64| (seconds * 1e9) as u32;
        for (step, start, took) in self.times() {
            clock.add(StepTime { step, start: nanos(start), took: nanos(took) });
        }
    }
}
