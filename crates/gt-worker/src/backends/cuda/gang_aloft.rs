//! Gangs that the device is still at: how their end is known, and how those of one device follow each other.

use super::driver::Event;
use super::gang_tie::Comms;
use super::lane::Lane;
use crate::backend::PlanError;
use crate::gang::Flight;
use gt_ir::{Error, Result};
use gt_sync::Mutex;
use std::sync::{Arc, Weak};

/// A rank's part of a gang, queued as a whole.
pub struct Aloft {
    lane: Arc<Lane>,
    comms: Comms,
    end: Arc<Event>,
}

impl Aloft {
    /// All that has been queued on a lane up to now.
    pub fn new(lane: &Arc<Lane>, comms: &Comms) -> Result<Aloft> {
        let end = Arc::new(Event::record(&lane.stream)?);
        Ok(Aloft { lane: lane.clone(), comms: comms.clone(), end })
    }

    pub fn end(&self) -> &Arc<Event> {
        &self.end
    }
}

impl Flight for Aloft {
    fn landed(&self) -> Result<bool> {
        self.lane.device.enter()?;
        self.end.passed()
    }

    fn broken(&self) -> Option<Error> {
        self.comms.each().find_map(|comm| comm.broken())
    }

    fn trouble(&self) -> Option<Error> {
        self.comms.each().find_map(|comm| comm.error())
    }

    fn cut(&self, why: &PlanError) {
        self.comms.cut_for(&why.error);
        // Where programs are being queued meanwhile, their next offer does it.
        if let Some(mut kept) = self.lane.kept.try_lock() {
            kept.graphs.forget(&self.comms);
        }
    }
}

/// The order of a device's gangs (C9). Calls of NCCL that wait for each other on two devices in two orders would wait for
/// good, so a gang on one stream follows the last that was queued on another.
#[derive(Default)]
pub struct Order {
    last: Mutex<Option<(Weak<Lane>, Arc<Event>)>>,
}

impl Order {
    /// What is queued on a lane from now on comes after all gangs so far.
    pub fn follow(&self, lane: &Arc<Lane>) -> Result<()> {
        match &*self.last.lock() {
            Some((of, end)) if of.as_ptr() != Arc::as_ptr(lane) => lane.stream.after(end),
            _ => Ok(()),
        }
    }

    /// A gang has been queued on a lane, up to its end.
    pub fn queued(&self, lane: &Arc<Lane>, end: &Arc<Event>) {
        *self.last.lock() = Some((Arc::downgrade(lane), end.clone()));
    }
}
