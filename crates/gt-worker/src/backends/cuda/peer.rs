//! Tensors from one GPU of this process to another, or from one worker of a GPU to another of the same.

use super::account::Owner;
use super::cuda_memory;
use super::device::Device;
use super::driver::{Event, check};
use super::lane::Lane;
use super::memory::{Block, CudaMemory};
use crate::backend::{Buffer, Memory};
use cudarc::driver::sys;
use gt_ir::Result;
use gt_sync::Mutex;
use std::sync::Arc;

/// A copy of another worker's memory, on its way when this returns.
pub fn adopt(lane: &Arc<Lane>, buffer: &Buffer) -> Result<Buffer> {
    let memory = cuda_memory(buffer)?;
    let source = memory.lane().clone();
    let (from, to) = (&source.device, &lane.device);
    from.enter()?;
    memory.join(&source)?;
    let ready = Event::record(&source.stream)?;
    open_pool(from, to)?;
    to.enter()?;
    let block = Block::new(lane, &lane.up, Owner::Tensors, memory.bytes())?;
    lane.up.after(&ready)?;
    // SAFETY: both sides have that many bytes; the source's stream waits for the copy before the memory goes back or is
    // written again.
    let copied = unsafe {
        sys::cuMemcpyPeerAsync(
            block.address(),
            to.context(),
            memory.address(),
            from.context(),
            memory.bytes(),
            lane.up.raw(),
        )
    };
    check("copy between devices", copied.result())?;
    let done = Event::record(&lane.up)?;
    from.enter()?;
    source.stream.after(&done)?;
    Ok(Arc::new(CudaMemory::arriving(block, memory.bytes(), done, memory.range())))
}

/// Lets a device read another's memory pool, where they can reach each other; else the driver goes its own ways.
fn open_pool(from: &Device, to: &Device) -> Result<()> {
    static OPEN: Mutex<Vec<(u32, u32)>> = Mutex::new(Vec::new());
    let pair = (from.number, to.number);
    let mut open = OPEN.lock();
    if from.number == to.number || open.contains(&pair) {
        return Ok(());
    }
    if to.reaches(from)? {
        from.show_pool(to)?;
    }
    open.push(pair);
    Ok(())
}
