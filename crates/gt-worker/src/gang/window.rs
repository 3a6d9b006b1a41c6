//! Workers of one host show each other what they have in windows: segments of shared memory, one per rank and mesh,
//! that all of them see. A rank copies what it shows into its window and says so by a tag; the others read it there.
//!
//! A window has slots for several rounds of each group, so that a rank fills one while others still read. Tags grow:
//! they are the gang's number and the round within it. A slot is filled again once all ranks have taken what was in it,
//! or have entered a later gang, which is how a gang that failed half-way leaves nothing behind.

use super::hands::{Copy, Hands, work};
use super::post::Post;
use super::{Communicator, Take, Want};
use crate::backend::PlanError;
use gt_ir::Error;
use gt_net::shm::Shm;
use gt_net::spin;
use smallvec::SmallVec;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Bytes of a slot: the slots of all ranks stay in a processor's cache.
const SLOT: usize = 512 << 10;
const SLOTS: usize = 3;
/// Where the words begin; the letter that brings a window lies before them.
const WORDS: usize = 1024;
/// Words that different processors write are this far apart.
const LINE: usize = 64;
/// Where the slots begin.
const DATA: usize = 64 << 10;
/// Words of a group: what was taken, and a tag per slot.
const GROUP_LINES: usize = 1 + SLOTS;
/// Groups of a window at most.
const GROUPS: usize = 64;
/// Bits of a tag that number rounds.
const ROUND_BITS: u32 = 24;
/// How long a rank stays awake for others, which are most often near.
const AWAKE: Duration = Duration::from_micros(200);
/// How long a rank sleeps before it looks whether its gang has failed.
const NAP: Duration = Duration::from_millis(20);

/// One rank's window, as this process sees it.
pub struct Window(Arc<Shm>);

impl Window {
    /// A window for ranks of a mesh with so many axes, with the letter that brings it to others. All ranks together are a group
    /// too: GPUs show each other there how they meet.
    pub fn create(axes: usize, letter: &[u8]) -> io::Result<Window> {
        if axes + 1 > GROUPS || letter.len() > WORDS {
            return Err(io::Error::other("the mesh has too many axes"));
        }
        let mut shm = Shm::create(DATA + (axes + 1) * SLOTS * SLOT)?;
        shm.as_mut_slice()[..letter.len()].copy_from_slice(letter);
        Ok(Window(Arc::new(shm)))
    }

    /// A window that came from another rank; nothing if it is too small for these axes.
    pub fn open(shm: Arc<Shm>, axes: usize) -> Option<Window> {
        (shm.len() >= DATA + (axes + 1) * SLOTS * SLOT && axes < GROUPS).then_some(Window(shm))
    }

    pub fn shm(&self) -> &Shm {
        &self.0
    }

    fn line(&self, line: usize) -> *mut u8 {
        self.0.as_ptr().wrapping_add(WORDS + line * LINE)
    }

    fn word(&self, line: usize) -> &AtomicU64 {
        // SAFETY: lines lie within the segment (checked when it was opened), are aligned, and all sides use them as
        // atomics only.
        unsafe { AtomicU64::from_ptr(self.line(line).cast()) }
    }

    fn small_word(&self, line: usize) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.line(line).cast()) }
    }

    /// Changed to wake the rank.
    fn bell(&self) -> &AtomicU32 {
        self.small_word(0)
    }

    /// How many threads of the rank sleep until the bell changes.
    fn asleep(&self) -> &AtomicU32 {
        self.small_word(1)
    }

    /// The last gang the rank has entered.
    fn entered(&self) -> &AtomicU64 {
        self.word(2)
    }

    /// The last tag of a group whose slots the rank has read on all other ranks.
    fn taken(&self, group: usize) -> &AtomicU64 {
        self.word(3 + group * GROUP_LINES)
    }

    /// What lies in a slot.
    fn tag(&self, group: usize, slot: usize) -> &AtomicU64 {
        self.word(4 + group * GROUP_LINES + slot)
    }

    fn slot(&self, group: usize, slot: usize) -> *mut u8 {
        self.0.as_ptr().wrapping_add(DATA + (group * SLOTS + slot) * SLOT)
    }

    /// Wakes the rank if it sleeps.
    fn ring(&self) {
        if self.asleep().load(Ordering::SeqCst) > 0 {
            self.bell().fetch_add(1, Ordering::SeqCst);
            futex(self.bell(), libc::FUTEX_WAKE, i32::MAX as u32, None);
        }
    }

    /// Sleeps until `done`, which others make true before they ring; gives up where `failed` says why.
    fn wait(&self, done: impl Fn() -> bool, failed: impl Fn() -> Option<PlanError>) -> Result<(), PlanError> {
        while !spin::within(AWAKE, &done) {
            if let Some(error) = failed() {
                return Err(error);
            }
            let heard = self.bell().load(Ordering::SeqCst);
            self.asleep().fetch_add(1, Ordering::SeqCst);
            if !done() {
                futex(self.bell(), libc::FUTEX_WAIT, heard, Some(NAP));
            }
            self.asleep().fetch_sub(1, Ordering::SeqCst);
        }
        Ok(())
    }
}

/// Waits while a word has a value, or wakes those who do.
fn futex(word: &AtomicU32, what: i32, value: u32, limit: Option<Duration>) {
    let limit = limit.map(|t| libc::timespec { tv_sec: 0, tv_nsec: t.subsec_nanos().into() });
    let limit = limit.as_ref().map_or(std::ptr::null(), |t| t as *const libc::timespec);
    // SAFETY: the word and the time live through the call; whatever comes back, the caller looks again.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), what, value, limit) };
}

/// The windows of all ranks of a mesh, by rank; none for ranks of other hosts.
pub type Windows = Vec<Option<Window>>;

/// A rank among those of one group, all on this host.
pub struct Near {
    post: Arc<Post>,
    gang: u64,
    /// The axis, or the number of axes for all ranks.
    group: usize,
    /// The ranks of the group in the whole mesh.
    ranks: Vec<u32>,
    rank: usize,
    /// Rounds shown and looked at.
    shown: AtomicU64,
    seen: AtomicU64,
}

impl Near {
    pub fn new(post: Arc<Post>, gang: u64, group: usize, ranks: Vec<u32>, rank: usize) -> Near {
        Near { post, gang, group, ranks, rank, shown: AtomicU64::new(0), seen: AtomicU64::new(0) }
    }

    /// The slot of a round, and the tag that says it is filled.
    fn tag(&self, round: u64) -> (usize, u64) {
        (round as usize % SLOTS, (self.gang << ROUND_BITS) | (round + 1))
    }

    fn failure(&self) -> Option<PlanError> {
        self.post.inbox().failure(self.gang)
    }

    fn others<'a>(&self, windows: &'a [&'a Window]) -> impl Iterator<Item = &'a Window> {
        let me = self.rank;
        windows.iter().enumerate().filter(move |(i, _)| *i != me).map(|(_, window)| *window)
    }

    /// The windows of the group, in its order.
    fn windows<'a>(&self, all: &'a Windows) -> Result<Vec<&'a Window>, PlanError> {
        let found = self.ranks.iter().map(|rank| all.get(*rank as usize)?.as_ref());
        found.collect::<Option<_>>().ok_or_else(|| wrong("collective: a rank of this host shows no window"))
    }
}

fn wrong(text: &str) -> PlanError {
    PlanError { instr: None, error: Error::Runtime(text.into()) }
}

fn sizes() -> PlanError {
    wrong("collective: the ranks disagree on sizes")
}

/// What a rank's slot holds of one buffer.
struct Shown {
    /// Where it begins in the slot.
    at: usize,
    /// The parts of the buffer that follow each other there: one if all want the same, else one for every rank, of
    /// which its own is empty.
    parts: SmallVec<[Range<usize>; 8]>,
}

impl Shown {
    /// All that rank `i` shows, and how many bytes that is.
    fn of(i: usize, n: usize, count: usize, want: Want) -> (Vec<Shown>, usize) {
        let mut end = 0;
        let shown = (0..count).map(|k| {
            let mut parts: SmallVec<[Range<usize>; 8]> = (0..n).map(|j| want(k, i, j)).collect();
            match parts.iter().all(|part| *part == parts[0]) {
                true => parts.truncate(1),
                // A rank needs no copy of what it shows to itself.
                false => parts[i].end = parts[i].start,
            }
            let at = end;
            end += parts.iter().map(Range::len).sum::<usize>();
            Shown { at, parts }
        });
        (shown.collect(), end)
    }

    /// Where the part for rank `j` lies.
    fn part(&self, j: usize) -> Range<usize> {
        let j = if self.parts.len() == 1 { 0 } else { j };
        let start = self.at + self.parts[..j].iter().map(Range::len).sum::<usize>();
        start..start + self.parts[j].len()
    }
}

/// Copies what a rank shows into its slot; nothing if a buffer has less than is wanted of it.
fn fill(hands: &dyn Hands, mut slot: &mut [u8], mine: &[&[u8]], shown: &[Shown]) -> Option<()> {
    let mut copies = Vec::with_capacity(shown.len());
    for (bytes, shown) in mine.iter().zip(shown) {
        for part in &shown.parts {
            let (to, rest) = slot.split_at_mut_checked(part.len())?;
            copies.push(Copy { from: bytes.get(part.clone())?, to });
            slot = rest;
        }
    }
    work(hands, copies.into_iter());
    Some(())
}

impl Communicator for Near {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.ranks.len()
    }

    fn most(&self) -> usize {
        SLOT
    }

    fn ahead(&self) -> usize {
        1
    }

    fn share(&self, mine: &[&[u8]], want: Want, take: Take) -> Result<(), PlanError> {
        self.share_with(&super::hands::Alone, mine, want, take)
    }

    fn share_with(&self, hands: &dyn Hands, mine: &[&[u8]], want: Want, take: Take) -> Result<(), PlanError> {
        self.show(hands, mine, want)?;
        self.look(hands, mine, want, take)
    }

    fn show(&self, hands: &dyn Hands, mine: &[&[u8]], want: Want) -> Result<(), PlanError> {
        let (me, group) = (self.rank, self.group);
        let all = self.post.windows(self.gang)?;
        let windows = self.windows(&all)?;
        let (own, (slot, tag)) = (windows[me], self.tag(self.shown.fetch_add(1, Ordering::Relaxed)));
        own.entered().fetch_max(self.gang, Ordering::SeqCst);
        let before = own.tag(group, slot).load(Ordering::SeqCst);
        let is_free = |window: &&Window| {
            window.taken(group).load(Ordering::SeqCst) >= before
                || window.entered().load(Ordering::SeqCst) > before >> ROUND_BITS
        };
        own.wait(|| self.others(&windows).all(|window| is_free(&window)), || self.failure())?;
        let (shown, bytes) = Shown::of(me, windows.len(), mine.len(), want);
        if bytes > SLOT {
            return Err(wrong("collective: more is shown at once than a window holds"));
        }
        // SAFETY: the slot is this rank's, lies in its window, and nobody reads it before the tag says so.
        let room = unsafe { std::slice::from_raw_parts_mut(own.slot(group, slot), bytes) };
        fill(hands, room, mine, &shown).ok_or_else(sizes)?;
        own.tag(group, slot).store(tag, Ordering::SeqCst);
        self.others(&windows).for_each(Window::ring);
        Ok(())
    }

    fn look(&self, _: &dyn Hands, mine: &[&[u8]], want: Want, take: Take) -> Result<(), PlanError> {
        let (n, me, group) = (self.ranks.len(), self.rank, self.group);
        let all = self.post.windows(self.gang)?;
        let windows = self.windows(&all)?;
        let (own, (slot, tag)) = (windows[me], self.tag(self.seen.fetch_add(1, Ordering::Relaxed)));
        let is_there = |window: &Window| window.tag(group, slot).load(Ordering::SeqCst) == tag;
        own.wait(|| self.others(&windows).all(is_there), || self.failure())?;
        let mut views: Vec<Vec<&[u8]>> = Vec::with_capacity(n);
        for (i, window) in windows.iter().enumerate() {
            let theirs = if i == me { Vec::new() } else { Shown::of(i, n, mine.len(), want).0 };
            let see = |k: usize| match theirs.get(k) {
                None => mine[k].get(want(k, me, me)),
                Some(shown) => {
                    let part = shown.part(me);
                    let from = window.slot(group, slot).wrapping_add(part.start);
                    // SAFETY: within the slot, which its rank fills again only when this one has taken it.
                    (part.end <= SLOT).then(|| unsafe { std::slice::from_raw_parts(from, part.len()) })
                }
            };
            let seen: Option<Vec<&[u8]>> = (0..mine.len()).map(see).collect();
            views.push(seen.ok_or_else(sizes)?);
        }
        take(&views);
        own.taken(group).store(tag, Ordering::SeqCst);
        self.others(&windows).for_each(Window::ring);
        Ok(())
    }
}
