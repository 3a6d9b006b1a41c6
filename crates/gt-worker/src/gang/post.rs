//! Workers of different processes write letters to each other, straight to the others' bulk planes (C11): that one has
//! failed, its window for those of one host, and what it shows to those of other hosts.
//!
//! Between hosts every rank writes to each other what that one works on: as many bytes as a ring would carry, and sums
//! are taken in the order of ranks wherever these are.

use super::hands::{Alone, Hands};
use super::ties::Ties;
use super::window::{Near, Window, Windows};
use super::{Communicator, Group, Take, Want};
use crate::backend::PlanError;
use gt_ir::Error;
use gt_net::bulk::{BulkBytes, BulkClient, Dir, LetterStream, Ticket, TicketKey, host_id, now_ms};
use gt_net::msg::{Member, Mesh};
use gt_net::shm::Shm;
use gt_net::spin;
use gt_sync::{Condvar, Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Letters between ranks name no session: this bit is set where one would be, with the mesh.
pub const LETTER: u64 = 1 << 63;
/// How long a ticket for a letter is good.
const TICKET_MS: u64 = 120_000;
/// Letters that may lie here unread.
const MAX_LETTERS: usize = 1 << 16;
/// Gangs remembered after their end.
const REMEMBERED: usize = 1024;
/// Windows that may wait here for their gang.
const MAX_WINDOWS: usize = 4096;

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
    what: What,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
enum What {
    /// What the sender shows follows.
    Shown,
    /// The sender has failed, and why.
    Failed(Option<u32>, Error),
    /// The letter is the sender's window for this mesh.
    Window(u64),
}

/// Letters that have come to this worker.
#[derive(Default)]
pub struct Letterbox {
    state: Mutex<State>,
    came: Condvar,
    /// Counts letters, for whoever looks without the lock.
    count: AtomicU64,
    /// How many gangs have failed and are not done, for whoever looks without the lock.
    failures: AtomicUsize,
}

#[derive(Default)]
struct State {
    letters: HashMap<(u64, u8, u64, u32), (BulkBytes, usize)>,
    failed: HashMap<u64, PlanError>,
    /// Windows of other ranks, by mesh and rank.
    windows: HashMap<(u64, u32), Arc<Shm>>,
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
        match head.what {
            What::Failed(instr, error) => {
                state.failed.entry(head.gang).or_insert(PlanError { instr, error });
                self.failures.store(state.failed.len(), Ordering::Release);
            }
            What::Window(mesh) => match bytes {
                BulkBytes::Shm { shm, .. } if state.windows.len() < MAX_WINDOWS => {
                    state.windows.insert((mesh, head.from), shm);
                }
                _ => return Err("letter: a window is shared memory".into()),
            },
            What::Shown if state.letters.len() >= MAX_LETTERS => {
                return Err("letter: too many lie here unread".into());
            }
            What::Shown => {
                state.letters.insert((head.gang, head.axis, head.round, head.from), (bytes, start));
            }
        }
        self.count.fetch_add(1, Ordering::Release);
        drop(state);
        self.came.notify_all();
        Ok(())
    }

    /// Fails a gang here.
    pub fn fail(&self, gang: u64, error: &PlanError) {
        let mut state = self.state.lock();
        state.failed.entry(gang).or_insert_with(|| error.clone());
        self.failures.store(state.failed.len(), Ordering::Release);
        drop(state);
        self.came.notify_all();
    }

    /// Why a gang has failed, if it has.
    pub fn failure(&self, gang: u64) -> Option<PlanError> {
        match self.failures.load(Ordering::Acquire) {
            0 => None,
            _ => self.state.lock().failed.get(&gang).cloned(),
        }
    }

    /// Waits for the window of another rank; fails if the gang does.
    fn window(&self, gang: u64, mesh: u64, rank: u32) -> Result<Arc<Shm>, PlanError> {
        let mut state = self.state.lock();
        loop {
            if let Some(shm) = state.windows.remove(&(mesh, rank)) {
                return Ok(shm);
            }
            if let Some(error) = state.failed.get(&gang) {
                return Err(error.clone());
            }
            self.came.wait(&mut state);
        }
    }

    /// Waits for a letter; fails if the gang does.
    fn wait(&self, name: (u64, u8, u64, u32)) -> Result<(BulkBytes, usize), PlanError> {
        let mut state = self.state.lock();
        let mut rested = false;
        loop {
            if let Some(letter) = state.letters.remove(&name) {
                return Ok(letter);
            }
            if let Some(error) = state.failed.get(&name.0) {
                return Err(error.clone());
            }
            if rested {
                self.came.wait(&mut state);
            } else {
                let seen = self.count.load(Ordering::Acquire);
                let more = || self.count.load(Ordering::Acquire) != seen;
                MutexGuard::unlocked(&mut state, || spin::for_a_moment(more));
            }
            rested = !rested;
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
        self.failures.store(state.failed.len(), Ordering::Release);
    }
}

/// One rank's desk in a gang over several processes.
pub struct Desk {
    gang: u64,
    post: Arc<Post>,
    axes: Vec<Road>,
    all: Road,
    /// Somebody else tells the others that the gang has failed.
    told: AtomicBool,
}

/// How the ranks of a group reach each other.
enum Road {
    Near(Near),
    Far(Line),
}

impl Road {
    fn communicator(&self) -> &dyn Communicator {
        match self {
            Road::Near(near) => near,
            Road::Far(line) => line,
        }
    }
}

/// What all gangs of a mesh share at one worker.
pub struct Post {
    mesh: Arc<Mesh>,
    inbox: Arc<Letterbox>,
    roads: Arc<BulkClient>,
    pub(super) ties: Ties,
    /// Connections to ranks that were written to, which stay.
    streams: Mutex<HashMap<u32, Arc<LetterStream>>>,
    windows: Mutex<Opening>,
}

/// The windows of a mesh, which are opened when its first gang runs.
#[derive(Default)]
struct Opening {
    done: Option<Arc<Windows>>,
    /// What there is of them before they are done: a gang that fails meanwhile leaves them to the next.
    windows: Windows,
    /// Whether this rank's window has gone to another.
    lent: Vec<bool>,
}

/// A rank among those of one group.
struct Line {
    post: Arc<Post>,
    gang: u64,
    axis: u8,
    /// The ranks of the group in the whole mesh.
    ranks: Vec<u32>,
    rank: usize,
    /// Rounds shown and looked at.
    shown: AtomicU64,
    seen: AtomicU64,
}

impl Post {
    pub fn new(mesh: Arc<Mesh>, inbox: Arc<Letterbox>) -> Post {
        let streams = Mutex::default();
        Post {
            mesh,
            inbox,
            roads: BulkClient::new(),
            ties: Ties::default(),
            streams,
            windows: Mutex::default(),
        }
    }

    pub fn inbox(&self) -> &Letterbox {
        &self.inbox
    }

    /// The windows of the ranks of this host; a first call opens them, which all of them do in the same gang.
    pub fn windows(&self, gang: u64) -> Result<Arc<Windows>, PlanError> {
        let mut opening = self.windows.lock();
        if let Some(done) = &opening.done {
            return Ok(done.clone());
        }
        let (mesh, me) = (&self.mesh, self.mesh.rank as usize);
        let (n, axes) = (mesh.members.len(), mesh.shape.len());
        opening.windows.resize_with(n, || None);
        opening.lent.resize(n, false);
        let wrong = |error| PlanError { instr: None, error };
        if opening.windows[me].is_none() {
            let head = Head { gang: 0, axis: 0, round: 0, from: mesh.rank, what: What::Window(mesh.id) };
            let made = Window::create(axes, &postcard::to_stdvec(&head).unwrap_or_default());
            let failed = |e| Error::Memory(format!("collective: no shared memory for a window: {e}"));
            opening.windows[me] = Some(made.map_err(|e| wrong(failed(e)))?);
        }
        for rank in (0..n).filter(|rank| *rank != me && is_near(&mesh.members[*rank])) {
            if let (false, Some(own)) = (opening.lent[rank], &opening.windows[me]) {
                let (member, shm) = (&mesh.members[rank], own.shm());
                let endpoint = member.endpoint.clone().unwrap_or_default();
                let lent = self.roads.lend(&endpoint, &self.ticket(member, shm.len()), shm);
                lent.map_err(|e| wrong(unreachable(member, &e)))?;
                opening.lent[rank] = true;
            }
        }
        for rank in (0..n).filter(|rank| is_near(&mesh.members[*rank])) {
            if opening.windows[rank].is_none() {
                let shm = self.inbox.window(gang, mesh.id, rank as u32)?;
                let small = || Error::Runtime("collective: a window is too small".into());
                opening.windows[rank] = Some(Window::open(shm, axes).ok_or_else(|| wrong(small()))?);
            }
        }
        let done = Arc::new(std::mem::take(&mut opening.windows));
        opening.done = Some(done.clone());
        Ok(done)
    }

    fn ticket(&self, member: &Member, bytes: usize) -> Ticket {
        let session = LETTER | self.mesh.id;
        TicketKey(member.key).sign(session, 0, bytes as u64, Dir::Put, now_ms() + TICKET_MS)
    }

    /// The connection to a rank.
    fn stream(&self, to: u32) -> Result<Arc<LetterStream>, Error> {
        if let Some(stream) = self.streams.lock().get(&to) {
            return Ok(stream.clone());
        }
        let member = &self.mesh.members[to as usize];
        let Some(endpoint) = &member.endpoint else {
            return Err(Error::Connection(format!("worker {} cannot be reached by others", member.worker.0)));
        };
        let opened = LetterStream::open(endpoint, &self.ticket(member, 0));
        let stream = Arc::new(opened.map_err(|e| unreachable(member, &e))?);
        // Another thread may have been quicker, and letters of both stay in their order.
        Ok(self.streams.lock().entry(to).or_insert(stream).clone())
    }

    fn send(&self, to: u32, head: &Head, parts: &[&[u8]]) -> Result<(), Error> {
        let head = postcard::to_stdvec(head).unwrap_or_default();
        let mut letter: Vec<&[u8]> = Vec::with_capacity(1 + parts.len());
        letter.push(&head);
        letter.extend_from_slice(parts);
        let stream = self.stream(to)?;
        stream.send(&letter).map_err(|e| {
            stream.close();
            self.streams.lock().remove(&to);
            unreachable(&self.mesh.members[to as usize], &e)
        })
    }

    /// Ends all connections, so that nobody goes on writing to a rank that is gone.
    fn hang_up(&self) {
        std::mem::take(&mut *self.streams.lock()).into_values().for_each(|stream| stream.close());
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        self.hang_up();
    }
}

fn unreachable(member: &Member, why: &dyn std::fmt::Display) -> Error {
    Error::Connection(format!("collective: worker {} cannot be reached: {why}", member.worker.0))
}

/// True if a member is on this host, where memory can be shared.
fn is_near(member: &Member) -> bool {
    member.endpoint.as_ref().is_some_and(|at| at.unix.is_some() && at.host_id == host_id())
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
            let post = post.clone();
            match ranks.iter().all(|r| is_near(&post.mesh.members[*r as usize])) {
                true => Road::Near(Near::new(post, gang, axis, ranks, rank)),
                false => {
                    let (axis, shown, seen) = (axis as u8, AtomicU64::new(0), AtomicU64::new(0));
                    Road::Far(Line { post, gang, axis, ranks, rank, shown, seen })
                }
            }
        };
        let axes = (0..shape.len())
            .map(|axis| {
                let (ranks, place) = along(&shape, me, axis);
                line(axis, ranks, place)
            })
            .collect();
        let all = line(shape.len(), (0..post.mesh.members.len() as u32).collect(), me);
        Desk { gang, axes, all, post, told: AtomicBool::new(false) }
    }

    /// Tells the others that this rank has failed. Aside: one that does not answer holds up nobody.
    pub fn fail(&self, error: &PlanError) {
        self.post.ties.clear();
        self.post.inbox.fail(self.gang, error);
        if self.told.swap(true, Ordering::Relaxed) {
            return;
        }
        let what = What::Failed(error.instr, error.error.clone());
        let (me, post) = (self.post.mesh.rank, self.post.clone());
        let head = Head { gang: self.gang, axis: 0, round: 0, from: me, what };
        let tell = move || {
            for to in (0..post.mesh.members.len() as u32).filter(|to| *to != me) {
                // One that cannot be reached hears it from the dispatcher.
                let _ = post.send(to, &head, &[]);
            }
        };
        if let Err(error) = std::thread::Builder::new().name("gt-tell".into()).spawn(tell) {
            gt_ir::say!("gt worker: no thread to tell other workers of a failure: {error}");
        }
    }

    /// Fails this rank alone; the others were told.
    pub fn abandon(&self, error: &PlanError) {
        self.told.store(true, Ordering::Relaxed);
        self.post.inbox.fail(self.gang, error);
        self.post.hang_up();
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
        let found = self.axes.get(axis as usize).map(Road::communicator);
        found.ok_or_else(|| PlanError { instr: None, error: missing() })
    }

    fn agree(&self) -> Result<(), PlanError> {
        self.all.communicator().share(&[], &|_, _, _| 0..0, &mut |_| {})
    }

    fn all(&self) -> Option<&dyn Communicator> {
        Some(self.all.communicator())
    }

    fn failed(&self) -> Option<PlanError> {
        self.post.inbox.failure(self.gang)
    }

    fn ties(&self) -> Option<&Ties> {
        Some(&self.post.ties)
    }
}

/// Bytes that a rank writes to another at a time; the next are on their way while these are worked on.
const LETTER_BYTES: usize = 512 << 10;

impl Line {
    fn sizes() -> PlanError {
        PlanError { instr: None, error: Error::Runtime("collective: the ranks disagree on sizes".into()) }
    }
}

impl Communicator for Line {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.ranks.len()
    }

    fn most(&self) -> usize {
        LETTER_BYTES * self.ranks.len()
    }

    fn ahead(&self) -> usize {
        2
    }

    fn is_far(&self) -> bool {
        true
    }

    fn share(&self, mine: &[&[u8]], want: Want, take: Take) -> Result<(), PlanError> {
        self.show(&Alone, mine, want)?;
        self.look(&Alone, mine, want, take)
    }

    fn show(&self, _: &dyn Hands, mine: &[&[u8]], want: Want) -> Result<(), PlanError> {
        let (me, n, post) = (self.rank, self.ranks.len(), &self.post);
        let round = self.shown.fetch_add(1, Ordering::Relaxed);
        let head = Head { gang: self.gang, axis: self.axis, round, from: post.mesh.rank, what: What::Shown };
        // Each begins with its right neighbour, so that nobody is written to by all at once.
        for j in (1..n).map(|step| (me + step) % n) {
            let parts = (0..mine.len()).map(|k| mine[k].get(want(k, me, j)));
            let parts: Vec<&[u8]> = parts.collect::<Option<_>>().ok_or_else(Line::sizes)?;
            let sent = post.send(self.ranks[j], &head, &parts);
            // A rank that is gone is best described by whoever noticed first.
            sent.map_err(|error| post.inbox.failure(self.gang).unwrap_or(PlanError { instr: None, error }))?;
        }
        Ok(())
    }

    fn look(&self, _: &dyn Hands, mine: &[&[u8]], want: Want, take: Take) -> Result<(), PlanError> {
        let me = self.rank;
        let round = self.seen.fetch_add(1, Ordering::Relaxed);
        let mut letters = Vec::with_capacity(self.ranks.len());
        for (i, &from) in self.ranks.iter().enumerate() {
            letters.push(match i == me {
                true => None,
                false => Some(self.post.inbox.wait((self.gang, self.axis, round, from))?),
            });
        }
        let mut views: Vec<Vec<&[u8]>> = Vec::with_capacity(letters.len());
        for (i, letter) in letters.iter().enumerate() {
            let seen: Option<Vec<&[u8]>> = match letter {
                None => (0..mine.len()).map(|k| mine[k].get(want(k, me, me))).collect(),
                Some((bytes, start)) => {
                    let mut rest = &bytes.as_slice()[*start..];
                    let next = |k: usize| {
                        let (part, after) = rest.split_at_checked(want(k, i, me).len())?;
                        rest = after;
                        Some(part)
                    };
                    (0..mine.len()).map(next).collect()
                }
            };
            views.push(seen.ok_or_else(Line::sizes)?);
        }
        take(&views);
        Ok(())
    }
}
