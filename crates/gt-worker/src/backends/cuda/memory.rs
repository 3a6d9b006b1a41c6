//! Memory of the device: ordered by the stream that uses it, counted, and never handed out twice.

use super::account::Owner;
use super::driver::{Event, Stream, check, log_drop};
use super::lane::Lane;
use super::ranges::Range;
use crate::backend::Memory;
use cudarc::driver::result;
use gt_ir::{Error, Result};
use gt_sync::Mutex;
use std::any::Any;
use std::sync::Arc;

/// Sizes are rounded up to this, so that every address suits every kind of access.
pub const GRAIN: usize = 256;

/// Behind a lane's failure word, so many bytes on, lies that of all ranks of a gang.
pub const JOINT: u64 = 64;

/// Memory that belongs to a lane. It goes back in the order of the lane's stream, after all work that is queued there.
pub struct Block {
    address: u64,
    size: usize,
    owner: Owner,
    lane: Arc<Lane>,
}

impl Block {
    /// Memory for work on `stream`, one of the lane's.
    pub fn new(lane: &Arc<Lane>, stream: &Stream, owner: Owner, bytes: usize) -> Result<Block> {
        let size = bytes.max(1).next_multiple_of(GRAIN);
        lane.device.enter()?;
        let account = &lane.account;
        if let Err(error) = account.add(owner, size) {
            account.relieve();
            account.add(owner, size).map_err(|_| error)?;
        }
        // SAFETY: freed once, in `drop`.
        let mut got = unsafe { result::malloc_async(stream.raw(), size) };
        if got.as_ref().is_err_and(|e| e.0 as u32 == 2) {
            // What is kept goes back, by us and by the driver.
            account.relieve();
            let _ = lane.device.trim();
            // SAFETY: as above.
            got = unsafe { result::malloc_async(stream.raw(), size) };
        }
        match got {
            Ok(address) => Ok(Block { address, size, owner, lane: lane.clone() }),
            Err(error) => {
                account.sub(owner, size);
                let free = lane.device.free_memory().ok().map(|(free, _)| free);
                Err(match check::<()>("allocate", Err(error)) {
                    Err(Error::Memory(_)) => account.out_of_memory(bytes as u64, free),
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

impl Drop for Block {
    fn drop(&mut self) {
        self.lane.account.sub(self.owner, self.size);
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
    range: Option<Range>,
}

impl CudaMemory {
    pub fn new(block: Block, bytes: usize) -> CudaMemory {
        CudaMemory { block, bytes, known: Mutex::default() }
    }

    /// Memory written on another stream than its lane's, up to an event.
    pub fn arriving(block: Block, bytes: usize, after: Event, range: Option<Range>) -> CudaMemory {
        CudaMemory { block, bytes, known: Mutex::new(Known { after: Some(after), range }) }
    }

    pub fn address(&self) -> u64 {
        self.block.address
    }

    pub fn lane(&self) -> &Arc<Lane> {
        &self.block.lane
    }

    pub fn range(&self) -> Option<Range> {
        self.known.lock().range
    }

    pub fn set_range(&self, range: Option<Range>) {
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
