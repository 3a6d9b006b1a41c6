//! Memory of the device: ordered by the stream that uses it, counted, and never handed out twice.

use super::driver::{Event, Stream, check, log_drop};
use super::lane::Lane;
use crate::backend::Memory;
use cudarc::driver::result;
use gt_ir::{Error, Result};
use gt_sync::Mutex;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Sizes are rounded up to this, so that every address suits every kind of access.
pub const GRAIN: usize = 256;

/// Behind a lane's failure word, so many bytes on, lies that of all ranks of a gang.
pub const JOINT: u64 = 64;

/// What a worker uses of its device. All counts are in bytes.
pub struct Account {
    in_use: AtomicU64,
    peak: AtomicU64,
    pub limit: u64,
    /// Frees what is kept for speed alone.
    relief: Mutex<Option<Box<dyn Fn() + Send>>>,
}

impl Account {
    pub fn new(limit: u64) -> Account {
        Account { in_use: 0.into(), peak: 0.into(), limit, relief: Mutex::new(None) }
    }

    /// Says how memory that is kept for speed alone is given back.
    pub fn on_pressure(&self, relief: Box<dyn Fn() + Send>) {
        *self.relief.lock() = Some(relief);
    }

    /// Bytes in use, and at most so far.
    pub fn usage(&self) -> (u64, u64) {
        (self.in_use.load(Ordering::Relaxed), self.peak.load(Ordering::Relaxed))
    }

    /// From now on the most is counted anew.
    pub fn reset_peak(&self) {
        self.peak.store(self.in_use.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    fn add(&self, bytes: usize) -> Result<()> {
        let now = self.in_use.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        if now > self.limit {
            self.in_use.fetch_sub(bytes as u64, Ordering::Relaxed);
            return Err(out_of_memory(bytes, now - bytes as u64, self.limit, None));
        }
        self.peak.fetch_max(now, Ordering::Relaxed);
        Ok(())
    }

    fn sub(&self, bytes: usize) {
        self.in_use.fetch_sub(bytes as u64, Ordering::Relaxed);
    }
}

fn out_of_memory(bytes: usize, used: u64, limit: u64, free: Option<u64>) -> Error {
    let free = free.map_or(String::new(), |free| format!(", {free} bytes of the device are free"));
    Error::Memory(format!(
        "cuda: out of memory, asked for {bytes} bytes with {used} of {limit} in use{free}; \
         drop tensors or use smaller ones"
    ))
}

/// Memory that belongs to a lane. It goes back in the order of the lane's stream, after all work that is queued there.
pub struct Block {
    address: u64,
    size: usize,
    lane: Arc<Lane>,
}

impl Block {
    /// Memory for work on `stream`, one of the lane's.
    pub fn new(lane: &Arc<Lane>, stream: &Stream, bytes: usize) -> Result<Block> {
        let size = bytes.max(1).next_multiple_of(GRAIN);
        lane.device.enter()?;
        let account = &lane.account;
        if let Err(error) = account.add(size) {
            relieve(account);
            account.add(size).map_err(|_| error)?;
        }
        // SAFETY: freed once, in `drop`.
        let mut got = unsafe { result::malloc_async(stream.raw(), size) };
        if got.as_ref().is_err_and(|e| e.0 as u32 == 2) {
            // What is kept goes back, by us and by the driver.
            relieve(account);
            let _ = lane.device.trim();
            // SAFETY: as above.
            got = unsafe { result::malloc_async(stream.raw(), size) };
        }
        match got {
            Ok(address) => Ok(Block { address, size, lane: lane.clone() }),
            Err(error) => {
                account.sub(size);
                let free = lane.device.free_memory().ok().map(|(free, _)| free);
                Err(match check::<()>("allocate", Err(error)) {
                    Err(Error::Memory(_)) => out_of_memory(bytes, account.usage().0, account.limit, free),
                    Err(other) => other,
                    Ok(()) => Error::Runtime("cuda: allocate".into()),
                })
            }
        }
    }

    pub fn address(&self) -> u64 {
        self.address
    }

    /// At least as many as were asked for.
    pub fn bytes(&self) -> usize {
        self.size
    }
}

fn relieve(account: &Account) {
    if let Some(relief) = &*account.relief.lock() {
        relief();
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.lane.account.sub(self.size);
        if self.lane.device.enter().is_err() {
            return;
        }
        // SAFETY: made in `new`, freed once, after all work queued on the lane's stream.
        if let Err(error) = unsafe { result::free_async(self.address, self.lane.stream.raw()) } {
            log_drop("free", error);
        }
    }
}

/// A tensor's memory on the device.
pub struct CudaMemory {
    block: Block,
    bytes: usize,
    known: Mutex<Known>,
}

/// What is known of a tensor beyond its bytes.
#[derive(Default)]
struct Known {
    /// The lane's stream waits for this before it uses the memory.
    after: Option<Event>,
    /// The least and the greatest value of an integer tensor, or wider bounds.
    range: Option<(i64, i64)>,
}

impl CudaMemory {
    pub fn new(block: Block, bytes: usize) -> CudaMemory {
        CudaMemory { block, bytes, known: Mutex::default() }
    }

    /// Memory written on another stream than its lane's, up to an event.
    pub fn arriving(block: Block, bytes: usize, after: Event, range: Option<(i64, i64)>) -> CudaMemory {
        CudaMemory { block, bytes, known: Mutex::new(Known { after: Some(after), range }) }
    }

    pub fn address(&self) -> u64 {
        self.block.address
    }

    pub fn lane(&self) -> &Arc<Lane> {
        &self.block.lane
    }

    pub fn range(&self) -> Option<(i64, i64)> {
        self.known.lock().range
    }

    pub fn set_range(&self, range: Option<(i64, i64)>) {
        self.known.lock().range = range;
    }

    /// Work put on the lane's stream from now on may use the memory; `lane` is the one that wants to.
    pub fn join(&self, lane: &Arc<Lane>) -> Result<()> {
        let own = &self.block.lane;
        if let Some(event) = self.known.lock().after.take() {
            own.stream.after(&event)?;
        }
        if !Arc::ptr_eq(own, lane) {
            lane.stream.after(&Event::record(&own.stream)?)?;
        }
        Ok(())
    }
}

impl Drop for CudaMemory {
    fn drop(&mut self) {
        // Bytes may still be arriving: they come before the memory goes.
        if let Some(event) = self.known.get_mut().after.take()
            && self.block.lane.device.enter().is_ok()
        {
            let _ = self.block.lane.stream.after(&event);
        }
    }
}

impl Memory for CudaMemory {
    fn bytes(&self) -> usize {
        self.bytes
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}
