//! Programs that several workers run together: how their parts meet, and what collectives do with host memory (C9).
//!
//! A [`Communicator`] does one thing: it shows the group what a rank has. `collect` makes every collective of it, so
//! that a new road between workers (`meeting` in one process, `window` on one host, `post` between hosts) is one file.

pub(crate) mod aloft;
pub mod collect;
mod combine;
pub mod hands;
pub mod meeting;
mod pack;
pub mod post;
pub(crate) mod seats;
mod table;
pub mod ties;
mod window;

use crate::backend::PlanError;
use gt_ir::{Error, Result as Done};
use hands::Hands;
use std::ops::Range;
use std::time::Duration;
use ties::Ties;

/// One rank's end of a group of workers, for one program.
pub trait Communicator: Send + Sync {
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn size(&self) -> usize;

    /// Shows the buffers `mine` to the others and calls `take` with what they show: `want(k, i, j)` are the bytes of
    /// rank i's buffer k that rank j gets to see. All ranks call it, in the same order and with the same `want`.
    /// Returns when nobody looks at `mine` any more; fails on all ranks if one of them failed.
    fn share(&self, mine: &[&[u8]], want: Want, take: Take) -> Result<(), PlanError>;

    /// The same, with threads to copy with.
    fn share_with(&self, _: &dyn Hands, mine: &[&[u8]], want: Want, take: Take) -> Result<(), PlanError> {
        self.share(mine, want, take)
    }

    /// How many rounds may be shown before they are looked at; none where showing and looking are one.
    fn ahead(&self) -> usize {
        0
    }

    /// Shows buffers without waiting for the others to show theirs. `look` with the same arguments follows, in the same
    /// order.
    fn show(&self, _: &dyn Hands, _mine: &[&[u8]], _want: Want) -> Result<(), PlanError> {
        Ok(())
    }

    /// Calls `take` with what all show in the oldest round not looked at yet.
    fn look(&self, hands: &dyn Hands, mine: &[&[u8]], want: Want, take: Take) -> Result<(), PlanError> {
        self.share_with(hands, mine, want, take)
    }

    /// True if most of a collective's time passes waiting for bytes on their way, in which other work can be done.
    fn is_far(&self) -> bool {
        false
    }

    /// How many bytes a rank can show at once; `collect` cuts what is longer.
    fn most(&self) -> usize {
        usize::MAX
    }
}

/// Which bytes of buffer k of rank i rank j gets to see.
pub type Want<'a> = &'a dyn Fn(usize, usize, usize) -> Range<usize>;
/// Takes what others show: by rank and buffer, cut as wanted.
pub type Take<'a> = &'a mut dyn FnMut(&[Vec<&[u8]>]);

/// All that a plan needs of the others: a communicator per axis of the mesh, and one for all ranks.
pub trait Group: Send + Sync {
    /// The ranks along one axis of the mesh.
    fn axis(&self, axis: u8) -> Result<&dyn Communicator, PlanError>;

    /// Returns once every rank has come this far; fails if one failed.
    fn agree(&self) -> Result<(), PlanError>;

    /// All ranks, where a group knows them.
    fn all(&self) -> Option<&dyn Communicator> {
        None
    }

    /// Why the gang has failed, if it has: for a rank that waits for something else than the others' bytes.
    fn failed(&self) -> Option<PlanError> {
        None
    }

    /// What this worker keeps for the mesh between gangs; nothing for a group that lasts no longer than one.
    fn ties(&self) -> Option<&Ties> {
        None
    }

    /// The rank's part is queued as a whole, and the device is at it. A worker's group has it watched and goes on; others
    /// wait here for its end. Either way what was given up may be overwritten by now.
    fn depart(&self, flight: Box<dyn Flight>) -> Result<(), PlanError> {
        let wrong = |error| PlanError { instr: None, error };
        while !flight.landed().map_err(wrong)? {
            let trouble = || flight.broken().or_else(|| flight.trouble()).map(wrong);
            if let Some(failed) = self.failed().or_else(trouble) {
                flight.cut(&failed);
                return Err(failed);
            }
            std::thread::sleep(Duration::from_micros(20));
        }
        flight.broken().map_or(Ok(()), |error| Err(wrong(error)))
    }
}

/// A rank's part of a gang that a device is still at.
pub trait Flight: Send + Sync {
    /// True if the device is done with it.
    fn landed(&self) -> Done<bool>;

    /// Why this rank was cut off from the others, if it was: what the device has done since has no meaning.
    fn broken(&self) -> Option<Error>;

    /// What the device says of the road between the ranks, if that is bad.
    fn trouble(&self) -> Option<Error>;

    /// Cuts this rank off: what waits for others on the device comes to an end, with whatever values.
    fn cut(&self, why: &PlanError);
}
