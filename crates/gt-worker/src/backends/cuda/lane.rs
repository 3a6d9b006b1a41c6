//! Lanes: a session's streams. Work of one session is ordered by its lane, and knows nothing of the others'.

use super::account::{Account, Owner};
use super::device::Device;
use super::driver::{Event, Stream, broken, check, log_drop};
use super::graph::Graphs;
use super::memory::Block;
use super::staging::{Landed, Pinned};
use cudarc::driver::result;
use gt_ir::{Error, Result};
use gt_sync::Mutex;
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

thread_local! {
    /// The session for which this thread works.
    static TURN: Cell<u64> = const { Cell::new(0) };
}

/// What this thread does from now on is for a session.
pub fn turn(session: u64) {
    TURN.set(session);
}

/// One session on the device.
pub struct Lane {
    pub device: Arc<Device>,
    pub account: Arc<Account>,
    pub pinned: Arc<Pinned>,
    /// Programs run here.
    pub stream: Stream,
    /// Bytes come and go beside them.
    pub up: Stream,
    pub down: Stream,
    /// Address of the failure word: zero but for the moment between a failed check and its report.
    pub failed: u64,
    /// Memory that is kept between programs.
    pub kept: Mutex<Kept>,
}

/// What a lane keeps between programs.
#[derive(Default)]
pub struct Kept {
    pub scratch: Option<Block>,
    pub workspace: Option<Block>,
    pub graphs: Graphs,
    /// When the work that nobody has asked about yet began.
    pub began: Option<Event>,
}

impl Lane {
    fn new(device: &Arc<Device>, account: &Arc<Account>, pinned: &Arc<Pinned>) -> Result<Lane> {
        device.enter()?;
        let (stream, up, down) = (Stream::new()?, Stream::new()?, Stream::new()?);
        // SAFETY: freed once, in `drop`.
        let failed = check("failure word", unsafe { result::malloc_async(stream.raw(), 256) })?;
        // SAFETY: the word is ours.
        unsafe { stream.zero(failed, 256)? };
        Ok(Lane {
            device: device.clone(),
            account: account.clone(),
            pinned: pinned.clone(),
            stream,
            up,
            down,
            failed,
            kept: Mutex::default(),
        })
    }

    /// Memory for the programs of this lane.
    pub fn take(self: &Arc<Lane>, owner: Owner, bytes: usize) -> Result<Block> {
        Block::new(self, &self.stream, owner, bytes)
    }

    /// The address of memory for one step at a time, at least so large.
    pub fn scratch(self: &Arc<Lane>, bytes: usize) -> Result<u64> {
        let mut kept = self.kept.lock();
        room(self, &mut kept.scratch, Owner::Scratch, bytes)
    }

    /// The same for cuBLASLt.
    pub fn workspace(self: &Arc<Lane>, bytes: usize) -> Result<u64> {
        let mut kept = self.kept.lock();
        room(self, &mut kept.workspace, Owner::Workspace, bytes)
    }

    /// Notes that work begins, if it is the first since somebody asked.
    pub fn begin(&self) -> Result<()> {
        let mut kept = self.kept.lock();
        if kept.began.is_none() {
            kept.began = Some(Event::timed(&self.stream)?);
        }
        Ok(())
    }

    /// Gives back what is kept for speed alone, unless it is being used this very moment.
    pub fn shrink(&self) {
        let Some(mut kept) = self.kept.try_lock() else { return };
        let dropped = (kept.scratch.take(), kept.workspace.take(), std::mem::take(&mut kept.graphs));
        drop(kept);
        drop(dropped);
    }

    /// Bytes from the host on their way to the device, the caller's to keep no longer.
    ///
    /// # Safety
    /// The range is memory of this lane.
    pub unsafe fn send(&self, stream: &Stream, to: u64, bytes: &[u8]) -> Result<()> {
        for (i, piece) in bytes.chunks(Pinned::PIECE).enumerate() {
            let mut buffer = self.pinned.take(piece.len())?;
            buffer.write(piece);
            // SAFETY: the buffer is kept until the event is passed.
            unsafe { stream.upload(to + (i * Pinned::PIECE) as u64, buffer.ptr(), piece.len())? };
            self.pinned.keep_until(Event::record(stream)?, buffer);
        }
        Ok(())
    }

    /// Bytes on their way to the host, after all work on `stream`.
    ///
    /// # Safety
    /// The range is memory of this lane and stays until the bytes have landed; it is no longer than a piece.
    pub unsafe fn receive(&self, stream: &Stream, from: u64, bytes: usize) -> Result<Landed> {
        let buffer = self.pinned.take(bytes)?;
        // SAFETY: nobody reads the buffer before the event is passed.
        unsafe { stream.download(buffer.ptr(), from, bytes)? };
        Ok(Landed::new(Event::record(stream)?, buffer, self.pinned.clone()))
    }
}

/// Makes sure that memory is large enough; what was there before goes back once the stream is done with it.
fn room(lane: &Arc<Lane>, memory: &mut Option<Block>, owner: Owner, bytes: usize) -> Result<u64> {
    if let Some(block) = memory.as_ref().filter(|b| b.bytes() >= bytes) {
        return Ok(block.address());
    }
    *memory = None;
    let block = lane.take(owner, bytes.next_power_of_two())?;
    let address = block.address();
    *memory = Some(block);
    Ok(address)
}

impl Drop for Lane {
    fn drop(&mut self) {
        let _ = self.device.enter();
        // SAFETY: the word is freed once, behind all work on the stream.
        if let Err(error) = unsafe { result::free_async(self.failed, self.stream.raw()) } {
            log_drop("free", error);
        }
    }
}

/// The lanes of a device, one for each session that has come by.
pub struct Lanes {
    device: Arc<Device>,
    account: Arc<Account>,
    pinned: Arc<Pinned>,
    open: Mutex<HashMap<u64, Arc<Lane>>>,
    /// Lanes whose sessions are over and whose memory is still held somewhere.
    closed: Mutex<Vec<Weak<Lane>>>,
}

impl Lanes {
    pub fn new(device: Arc<Device>, account: Arc<Account>) -> Lanes {
        let pinned = Arc::new(Pinned::new(device.clone()));
        Lanes { device, account, pinned, open: Mutex::default(), closed: Mutex::default() }
    }

    /// The lane of the session for which this thread works.
    pub fn mine(&self) -> Result<Arc<Lane>> {
        if let Some(why) = broken() {
            return Err(Error::Runtime(why.into()));
        }
        self.device.enter()?;
        let mut open = self.open.lock();
        if let Some(lane) = open.get(&TURN.get()) {
            return Ok(lane.clone());
        }
        let lane = Arc::new(Lane::new(&self.device, &self.account, &self.pinned)?);
        open.insert(TURN.get(), lane.clone());
        Ok(lane)
    }

    /// A session is over.
    pub fn end(&self, session: u64) {
        let lane = self.open.lock().remove(&session);
        if let Some(lane) = lane {
            let _ = self.device.enter();
            lane.shrink();
            let mut closed = self.closed.lock();
            closed.retain(|lane| lane.strong_count() > 0);
            closed.push(Arc::downgrade(&lane));
        }
    }

    /// Gives back all memory that is kept for speed alone.
    pub fn shrink(&self) {
        let open: Vec<Arc<Lane>> = self.open.lock().values().cloned().collect();
        open.iter().for_each(|lane| lane.shrink());
    }
}
