//! Workers of different processes write to each other: what a rank shows goes straight to the others' bulk planes,
//! through shared memory on one host and sockets between hosts (C11).

use super::ties::Ties;
use super::{Communicator, Group, Take, Want};
use crate::backend::PlanError;
use gt_ir::Error;
use gt_net::bulk::{BulkBytes, BulkClient, Dir, TicketKey, now_ms};
use gt_net::msg::Mesh;
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Letters between ranks name no session: this bit is set where one would be, with the mesh.
pub const LETTER: u64 = 1 << 63;
/// How long a ticket for a letter is good.
const TICKET_MS: u64 = 120_000;
/// Letters that may lie here unread.
const MAX_LETTERS: usize = 1 << 16;
/// Gangs remembered after their end.
const REMEMBERED: usize = 1024;

/// What a letter begins with.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Head {
    gang: u64,
    /// The group it is for: an axis, or the number of axes for all ranks.
    axis: u8,
    /// Which exchange of that group.
    round: u64,
    /// The sender's rank in the whole mesh.
    from: u32,
    /// The sender has failed, and why.
    failed: Option<(Option<u32>, Error)>,
}

/// Letters that have come to this worker.
#[derive(Default)]
pub struct Letterbox {
    state: Mutex<State>,
    came: Condvar,
}

#[derive(Default)]
struct State {
    letters: HashMap<(u64, u8, u64, u32), (BulkBytes, usize)>,
    failed: HashMap<u64, PlanError>,
    /// The last gangs that are done here; what still comes for them is dropped.
    done: VecDeque<u64>,
}

impl Letterbox {
    /// Takes a letter from the bulk plane.
    pub fn take(&self, bytes: BulkBytes) -> Result<(), String> {
        let read: Result<(Head, &[u8]), _> = postcard::take_from_bytes(bytes.as_slice());
        let (head, rest) = read.map_err(|e| format!("letter: cannot be read: {e}"))?;
        let start = bytes.as_slice().len() - rest.len();
        let mut state = self.state.lock();
        if state.done.contains(&head.gang) {
            return Ok(());
        }
        if let Some((instr, error)) = head.failed {
            state.failed.entry(head.gang).or_insert(PlanError { instr, error });
        } else if state.letters.len() >= MAX_LETTERS {
            return Err("letter: too many lie here unread".into());
        } else {
            state.letters.insert((head.gang, head.axis, head.round, head.from), (bytes, start));
        }
        drop(state);
        self.came.notify_all();
        Ok(())
    }

    /// Fails a gang here.
    pub fn fail(&self, gang: u64, error: &PlanError) {
        self.state.lock().failed.entry(gang).or_insert_with(|| error.clone());
        self.came.notify_all();
    }

    /// Why a gang has failed here, if it has.
    fn failure(&self, gang: u64) -> Option<PlanError> {
        self.state.lock().failed.get(&gang).cloned()
    }

    /// Waits for a letter; fails if the gang does.
    fn wait(&self, name: (u64, u8, u64, u32)) -> Result<(BulkBytes, usize), PlanError> {
        let mut state = self.state.lock();
        loop {
            if let Some(letter) = state.letters.remove(&name) {
                return Ok(letter);
            }
            if let Some(error) = state.failed.get(&name.0) {
                return Err(error.clone());
            }
            self.came.wait(&mut state);
        }
    }

    fn finish(&self, gang: u64) {
        let mut state = self.state.lock();
        if state.done.len() == REMEMBERED {
            state.done.pop_front();
        }
        state.done.push_back(gang);
        state.letters.retain(|(of, ..), _| *of != gang);
        state.failed.remove(&gang);
    }
}

/// One rank's desk in a gang over several processes.
pub struct Desk {
    gang: u64,
    post: Arc<Post>,
    axes: Vec<Line>,
    all: Line,
}

/// What all gangs of a mesh share at one worker.
pub struct Post {
    mesh: Arc<Mesh>,
    inbox: Arc<Letterbox>,
    roads: Arc<BulkClient>,
    pub(super) ties: Ties,
}

/// A rank among those of one group.
struct Line {
    post: Arc<Post>,
    gang: u64,
    axis: u8,
    /// The ranks of the group in the whole mesh.
    ranks: Vec<u32>,
    rank: usize,
    round: AtomicU64,
}

impl Post {
    pub fn new(mesh: Arc<Mesh>, inbox: Arc<Letterbox>) -> Post {
        Post { mesh, inbox, roads: BulkClient::new(), ties: Ties::default() }
    }

    fn send(&self, to: u32, head: &Head, parts: &[&[u8]]) -> Result<(), Error> {
        let member = &self.mesh.members[to as usize];
        let Some(endpoint) = &member.endpoint else {
            return Err(Error::Connection(format!("worker {} cannot be reached by others", member.worker.0)));
        };
        let head = postcard::to_stdvec(head).unwrap_or_default();
        let mut letter = Vec::with_capacity(head.len() + parts.iter().map(|p| p.len()).sum::<usize>());
        letter.extend_from_slice(&head);
        parts.iter().for_each(|part| letter.extend_from_slice(part));
        let key = TicketKey(member.key);
        let session = LETTER | self.mesh.id;
        let ticket = key.sign(session, 0, letter.len() as u64, Dir::Put, now_ms() + TICKET_MS);
        self.roads.put(endpoint, &ticket, &letter).map_err(|e| {
            Error::Connection(format!("collective: worker {} cannot be reached: {e}", member.worker.0))
        })
    }
}

/// The ranks that differ from this one along one axis only.
fn along(shape: &[usize], rank: usize, axis: usize) -> (Vec<u32>, usize) {
    let stride: usize = shape[axis + 1..].iter().product();
    let place = rank / stride % shape[axis];
    let first = rank - place * stride;
    ((0..shape[axis]).map(|i| (first + i * stride) as u32).collect(), place)
}

impl Desk {
    pub fn new(post: Arc<Post>, gang: u64) -> Desk {
        let shape: Vec<usize> = post.mesh.shape.iter().map(|n| *n as usize).collect();
        let me = post.mesh.rank as usize;
        let line = |axis: usize, ranks: Vec<u32>, rank: usize| {
            let (post, round) = (post.clone(), AtomicU64::new(0));
            Line { post, gang, axis: axis as u8, ranks, rank, round }
        };
        let axes = (0..shape.len())
            .map(|axis| {
                let (ranks, place) = along(&shape, me, axis);
                line(axis, ranks, place)
            })
            .collect();
        let all = line(shape.len(), (0..post.mesh.members.len() as u32).collect(), me);
        Desk { gang, axes, all, post }
    }

    /// Tells the others that this rank has failed.
    pub fn fail(&self, error: &PlanError) {
        self.post.ties.clear();
        self.post.inbox.fail(self.gang, error);
        let failed = Some((error.instr, error.error.clone()));
        let me = self.post.mesh.rank;
        let head = Head { gang: self.gang, axis: 0, round: 0, from: me, failed };
        for to in (0..self.post.mesh.members.len() as u32).filter(|to| *to != me) {
            // One that cannot be reached hears it from the dispatcher.
            let _ = self.post.send(to, &head, &[]);
        }
    }

    /// Fails this rank alone; the others were told.
    pub fn abandon(&self, error: &PlanError) {
        self.post.inbox.fail(self.gang, error);
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.post.inbox.finish(self.gang);
    }
}

impl Group for Desk {
    fn axis(&self, axis: u8) -> Result<&dyn Communicator, PlanError> {
        let missing = || Error::Runtime(format!("collective: the mesh has no axis {axis}"));
        let found = self.axes.get(axis as usize).map(|line| line as &dyn Communicator);
        found.ok_or_else(|| PlanError { instr: None, error: missing() })
    }

    fn agree(&self) -> Result<(), PlanError> {
        self.all.share(&[], &|_, _, _| 0..0, &mut |_| {})
    }

    fn all(&self) -> Option<&dyn Communicator> {
        Some(&self.all)
    }

    fn failed(&self) -> Option<PlanError> {
        self.post.inbox.failure(self.gang)
    }

    fn ties(&self) -> Option<&Ties> {
        Some(&self.post.ties)
    }
}

impl Communicator for Line {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.ranks.len()
    }

    fn share(&self, mine: &[&[u8]], want: Want, take: Take) -> Result<(), PlanError> {
        let round = self.round.fetch_add(1, Ordering::Relaxed);
        let wrong = |error| PlanError { instr: None, error };
        let sizes = || wrong(Error::Runtime("collective: the ranks disagree on sizes".into()));
        let me = self.rank;
        let cut = |i: usize, j: usize| -> Option<Vec<&[u8]>> {
            (0..mine.len()).map(|k| mine[k].get(want(k, i, j))).collect()
        };
        let post = &self.post;
        let head = Head { gang: self.gang, axis: self.axis, round, from: post.mesh.rank, failed: None };
        // Each begins with its right neighbour, so that nobody is written to by all at once.
        for step in 1..self.ranks.len() {
            let j = (me + step) % self.ranks.len();
            let parts = cut(me, j).ok_or_else(sizes)?;
            post.send(self.ranks[j], &head, &parts).map_err(wrong)?;
        }
        let mut letters = Vec::with_capacity(self.ranks.len());
        for (i, &from) in self.ranks.iter().enumerate() {
            letters.push(match i == me {
                true => None,
                false => Some(post.inbox.wait((self.gang, self.axis, round, from))?),
            });
        }
        let mut views: Vec<Vec<&[u8]>> = Vec::with_capacity(letters.len());
        for (i, letter) in letters.iter().enumerate() {
            let Some((bytes, start)) = letter else {
                views.push(cut(me, me).ok_or_else(sizes)?);
                continue;
            };
            let mut rest = &bytes.as_slice()[*start..];
            let mut seen = Vec::with_capacity(mine.len());
            for k in 0..mine.len() {
                let (part, after) = rest.split_at_checked(want(k, i, me).len()).ok_or_else(sizes)?;
                seen.push(part);
                rest = after;
            }
            views.push(seen);
        }
        take(&views);
        Ok(())
    }
}
