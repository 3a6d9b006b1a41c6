//! Workers of one process meet in its memory: each shows where its bytes lie, and the others read them there.

use super::table::{Shown, Table};
use super::ties::Ties;
use super::{Communicator, Group, Take, Want};
use crate::backend::PlanError;
use gt_ir::Error;
use gt_sync::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

/// A gang, as all its ranks name it: the dispatcher and the number of the gang.
pub type Name = (u64, u64);

/// The gangs of one process.
struct Gangs {
    pid: u32,
    meetings: Mutex<HashMap<Name, Arc<Meeting>>>,
}

/// The gangs that run in this process now, and those that some of their ranks have not come to yet. A fork may have
/// copied them while they were locked, so that a child starts with its own and leaves its parent's alone.
fn meetings() -> MutexGuard<'static, HashMap<Name, Arc<Meeting>>> {
    static HERE: AtomicPtr<Gangs> = AtomicPtr::new(std::ptr::null_mut());
    let pid = std::process::id();
    loop {
        let known = HERE.load(Ordering::Acquire);
        // SAFETY: what was stored is never freed.
        if let Some(gangs) = unsafe { known.as_ref() }.filter(|gangs| gangs.pid == pid) {
            return gangs.meetings.lock();
        }
        let new = Box::into_raw(Box::new(Gangs { pid, meetings: Mutex::default() }));
        if HERE.compare_exchange(known, new, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: nobody else has seen it.
            drop(unsafe { Box::from_raw(new) });
        }
    }
}

/// Where the ranks of one gang meet.
struct Meeting {
    mesh: u64,
    /// Groups of ranks along each axis, then all of them.
    tables: Vec<Vec<Table>>,
    state: Mutex<Shared>,
    /// True once `Shared::broken` says why.
    failed: AtomicBool,
}

#[derive(Default)]
struct Shared {
    /// Why the gang failed: said by the first rank that did.
    broken: Option<PlanError>,
    /// Ranks that have left.
    left: usize,
}

/// One rank's seat in a gang. Leaving it tells the others if the rank failed.
pub struct Seat {
    name: Name,
    meeting: Arc<Meeting>,
    rank: usize,
    axes: Vec<Ranked>,
    all: Ranked,
    ties: Option<Arc<Ties>>,
}

/// A rank among those of one group.
struct Ranked {
    meeting: Arc<Meeting>,
    /// Which table: the axis (the number of axes for all ranks) and the group along it.
    axis: usize,
    group: usize,
    rank: usize,
    size: usize,
    round: AtomicU64,
}

/// Along each axis: the group a rank belongs to, its place in it, and how many are in it.
fn places(shape: &[usize], rank: usize) -> Vec<(usize, usize, usize)> {
    let mut inner: usize = shape.iter().product();
    shape
        .iter()
        .map(|&size| {
            let outer_stride = inner;
            inner /= size.max(1);
            let (outer, place, rest) = (rank / outer_stride, rank / inner % size, rank % inner);
            (outer * inner + rest, place, size)
        })
        .collect()
}

impl Seat {
    /// Takes a seat in a gang over a mesh of this shape.
    pub fn take(name: Name, mesh: u64, shape: &[usize], rank: usize) -> Seat {
        let n: usize = shape.iter().product();
        let mut meetings = meetings();
        let meeting = meetings.entry(name).or_insert_with(|| Meeting::new(mesh, shape)).clone();
        let ranked = |axis, group, rank, size| {
            let (meeting, round) = (meeting.clone(), AtomicU64::new(0));
            Ranked { meeting, axis, group, rank, size, round }
        };
        let axes = places(shape, rank).into_iter().enumerate();
        let axes = axes.map(|(axis, (group, place, size))| ranked(axis, group, place, size)).collect();
        let all = ranked(shape.len(), 0, rank, n);
        Seat { name, meeting, rank, axes, all, ties: None }
    }

    /// With what this worker keeps for the mesh.
    pub fn tied(mut self, ties: Arc<Ties>) -> Seat {
        self.ties = Some(ties);
        self
    }

    /// Tells the others that this rank has failed.
    pub fn fail(&self, error: &PlanError) {
        if let Some(ties) = &self.ties {
            ties.clear();
        }
        self.meeting.fail(error);
    }

    pub fn rank(&self) -> usize {
        self.rank
    }
}

/// Forgets the gangs of a mesh that is no more.
pub fn forget(cluster: u64, mesh: u64) {
    meetings().retain(|(of, _), meeting| *of != cluster || meeting.mesh != mesh);
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut meetings = meetings();
        let mut state = self.meeting.state.lock();
        state.left += 1;
        if state.left >= self.all.size {
            meetings.remove(&self.name);
        }
    }
}

impl Group for Seat {
    fn axis(&self, axis: u8) -> Result<&dyn Communicator, PlanError> {
        let missing = || Error::Runtime(format!("collective: the mesh has no axis {axis}"));
        let found = self.axes.get(axis as usize).map(|ranked| ranked as &dyn Communicator);
        found.ok_or_else(|| PlanError { instr: None, error: missing() })
    }

    fn agree(&self) -> Result<(), PlanError> {
        self.all.share(&[], &|_, _, _| 0..0, &mut |_| {})
    }

    fn all(&self) -> Option<&dyn Communicator> {
        Some(&self.all)
    }

    fn failed(&self) -> Option<PlanError> {
        self.meeting.broken()
    }

    fn ties(&self) -> Option<&Ties> {
        self.ties.as_deref()
    }
}

impl Meeting {
    fn new(mesh: u64, shape: &[usize]) -> Arc<Meeting> {
        let n: usize = shape.iter().product();
        let along = |size: usize| (0..n / size.max(1)).map(|_| Table::new(size)).collect();
        let tables = shape.iter().copied().chain([n]).map(along).collect();
        Arc::new(Meeting { mesh, tables, state: Mutex::default(), failed: AtomicBool::new(false) })
    }

    fn fail(&self, error: &PlanError) {
        self.state.lock().broken.get_or_insert_with(|| error.clone());
        self.failed.store(true, Ordering::SeqCst);
        self.tables.iter().flatten().for_each(Table::wake);
    }

    fn broken(&self) -> Option<PlanError> {
        if self.failed.load(Ordering::SeqCst) { self.state.lock().broken.clone() } else { None }
    }
}

impl Communicator for Ranked {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn share(&self, mine: &[&[u8]], want: Want, take: Take) -> Result<(), PlanError> {
        if let Some(error) = self.meeting.broken() {
            return Err(error);
        }
        let table = &self.meeting.tables[self.axis][self.group];
        let round = self.round.fetch_add(1, Ordering::Relaxed);
        let shown = mine.iter().map(|b| Shown(b.as_ptr(), b.len())).collect();
        if !table.come(round, self.rank, shown, || self.meeting.failed.load(Ordering::SeqCst)) {
            let left = || PlanError { instr: None, error: Error::Runtime("the gang has failed".into()) };
            return Err(self.meeting.broken().unwrap_or_else(left));
        }
        // SAFETY: all have come, and this rank leaves only below.
        let looked = catch_unwind(AssertUnwindSafe(|| unsafe { self.look(table, mine.len(), want, take) }));
        // All ranks are here, so all will look and be done, also in a gang that has failed.
        table.leave(round);
        looked.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

impl Ranked {
    /// Calls `take` with what the others show.
    ///
    /// # Safety
    /// All ranks have come to the table, and this one has not left.
    unsafe fn look(&self, table: &Table, count: usize, want: Want, take: Take) -> Result<(), PlanError> {
        let mut views: Vec<Vec<&[u8]>> = Vec::with_capacity(self.size);
        // SAFETY: as the caller promises.
        for (i, buffers) in unsafe { table.shown() }.enumerate() {
            let mut seen: Vec<&[u8]> = Vec::with_capacity(count);
            for (k, Shown(at, len)) in buffers.iter().enumerate() {
                // SAFETY: rank i waits in `share` until all ranks have looked, and does not write meanwhile.
                let buffer = unsafe { std::slice::from_raw_parts(*at, *len) };
                let Some(part) = buffer.get(want(k, i, self.rank)) else {
                    let error = Error::Runtime("collective: the ranks disagree on sizes".into());
                    return Err(PlanError { instr: None, error });
                };
                seen.push(part);
            }
            if seen.len() != count {
                let error = Error::Runtime("collective: the ranks run different programs".into());
                return Err(PlanError { instr: None, error });
            }
            views.push(seen);
        }
        take(&views);
        Ok(())
    }
}
