//! Tensors from one process to another of the same host, from device memory to device memory.
//!
//! The driver shares whole allocations that do not come from a pool, so each worker keeps a small ring of such memory: a
//! tensor is copied into it piece by piece, and a card says where the piece lies. The other process opens the ring once
//! and copies from it. Between GPUs that reach each other the copy goes over their link; where a ring cannot be opened
//! the error sends the tensor by way of the host.

use super::cuda_memory;
use super::device::Device;
use super::driver::{Event, Stream, check, log_drop};
use super::lane::Lane;
use super::memory::{Block, CudaMemory};
use crate::backend::{Borrowed, Borrower, Buffer, Memory};
use cudarc::driver::{result, sys};
use gt_ir::{Error, Result, bail};
use gt_sync::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a piece, and how many of them a ring holds: one is copied in while another is copied out.
const PIECE: usize = 32 << 20;
const PIECES: usize = 2;

/// Rings of other processes kept open at most.
const MOST: usize = 64;

/// Tensors lent to, and borrowed from, other processes.
static MOVED: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// How many tensors this process has lent to others of its host, and borrowed from them.
pub fn tensors_moved() -> (u64, u64) {
    (MOVED[0].load(Ordering::Relaxed), MOVED[1].load(Ordering::Relaxed))
}

/// Where a piece lies: a ring, as the driver names it, and a range of it.
struct Card {
    handle: [u8; Card::HANDLE],
    at: u64,
    bytes: u64,
}

impl Card {
    const HANDLE: usize = 64;
    const BYTES: usize = Card::HANDLE + 16;

    fn write(&self) -> [u8; Card::BYTES] {
        let mut out = [0; Card::BYTES];
        out[..Card::HANDLE].copy_from_slice(&self.handle);
        out[Card::HANDLE..][..8].copy_from_slice(&self.at.to_le_bytes());
        out[Card::HANDLE + 8..].copy_from_slice(&self.bytes.to_le_bytes());
        out
    }

    /// A card as it came, if it makes sense.
    fn read(card: &[u8]) -> Result<Card> {
        let Ok(card) = <&[u8; Card::BYTES]>::try_from(card) else {
            bail!(Value, "move: a card of {} bytes, expected {}", card.len(), Card::BYTES)
        };
        let number = |at: usize| card[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
        let mut handle = [0; Card::HANDLE];
        handle.copy_from_slice(&card[..Card::HANDLE]);
        let card = Card { handle, at: number(Card::HANDLE), bytes: number(Card::HANDLE + 8) };
        match card.at.checked_add(card.bytes) {
            Some(end) if end <= (PIECE * PIECES) as u64 => Ok(card),
            _ => bail!(Value, "move: a card for {} bytes at {} of a ring", card.bytes, card.at),
        }
    }
}

/// This process's memory that others see.
struct Ring {
    device: Arc<Device>,
    base: u64,
    handle: [u8; Card::HANDLE],
    stream: Stream,
}

impl Ring {
    fn new(device: &Arc<Device>) -> Result<Ring> {
        device.enter()?;
        let stream = Stream::new()?;
        // SAFETY: freed once, in `drop`.
        let base = check("memory for other processes", unsafe { result::malloc_sync(PIECE * PIECES) })?;
        let mut handle = sys::CUipcMemHandle { reserved: [0; Card::HANDLE] };
        // SAFETY: the memory was just made, by a call whose memory can be shared.
        let got = unsafe { sys::cuIpcGetMemHandle(&mut handle, base) };
        let ring = Ring { device: device.clone(), base, handle: handle.reserved.map(|b| b as u8), stream };
        check("share memory", got.result())?;
        Ok(ring)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.device.enter().is_err() {
            return;
        }
        // SAFETY: made in `new`, freed once; the driver waits for what is under way.
        if let Err(error) = unsafe { result::free_sync(self.base) } {
            log_drop("free", error);
        }
    }
}

/// A device's dealings with other processes.
#[derive(Default)]
pub struct Neighbourhood {
    /// Made when the first tensor is lent; held while one is.
    ring: Mutex<Option<Ring>>,
    /// Other processes' rings by handle, with where they lie here; the one opened first comes first.
    open: Mutex<Vec<([u8; Card::HANDLE], u64)>>,
}

impl Neighbourhood {
    /// Shows a tensor to another process; returns when that has taken all of it.
    pub fn lend(&self, buffer: &Buffer, to: &mut dyn Borrower) -> Result<()> {
        let memory = cuda_memory(buffer)?;
        let lane = memory.lane().clone();
        let mut ring = self.ring.lock();
        if ring.is_none() {
            *ring = Some(Ring::new(&lane.device)?);
        }
        let Some(ring) = &*ring else { bail!(Runtime, "move: no memory for other processes") };
        lane.device.enter()?;
        memory.join(&lane)?;
        ring.stream.after(&Event::record(&lane.stream)?)?;
        let starts = (0..memory.bytes()).step_by(PIECE);
        let count = starts.len();
        for (k, start) in starts.enumerate() {
            if k >= PIECES {
                to.taken()?;
            }
            let (at, bytes) = (k % PIECES * PIECE, PIECE.min(memory.bytes() - start));
            // SAFETY: both sides have that many bytes, and the buffer is held until the copy is waited for.
            unsafe { ring.stream.copy(ring.base + at as u64, memory.address() + start as u64, bytes)? };
            Event::record(&ring.stream)?.wait()?;
            let card = Card { handle: ring.handle, at: at as u64, bytes: bytes as u64 };
            to.show(&card.write())?;
        }
        (0..count.min(PIECES)).try_for_each(|_| to.taken())?;
        MOVED[0].fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Where another process's ring lies here.
    fn opened(&self, handle: &[u8; Card::HANDLE]) -> Result<u64> {
        let mut open = self.open.lock();
        if let Some((_, base)) = open.iter().find(|(known, _)| known == handle) {
            return Ok(*base);
        }
        // The process of the oldest is most likely gone. What is copied from a ring is waited for, so nobody looks at it.
        while open.len() >= MOST {
            let (_, base) = open.remove(0);
            // SAFETY: opened below, closed once.
            check("close memory", unsafe { sys::cuIpcCloseMemHandle(base) }.result())?;
        }
        let mut base = 0;
        let named = sys::CUipcMemHandle { reserved: handle.map(|b| b as std::ffi::c_char) };
        let peers = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        // SAFETY: the driver refuses what is no handle of another process's memory.
        let opened = unsafe { sys::cuIpcOpenMemHandle_v2(&mut base, named, peers) };
        check("open memory of another process", opened.result())?;
        open.push((*handle, base));
        Ok(base)
    }
}

/// A tensor on its way from another process.
pub struct Coming {
    pub around: Arc<Neighbourhood>,
    pub lane: Arc<Lane>,
    pub block: Block,
    pub bytes: usize,
    /// Bytes that have come.
    pub come: usize,
}

impl Borrowed for Coming {
    fn take(&mut self, card: &[u8]) -> Result<()> {
        let card = Card::read(card)?;
        let bytes = card.bytes as usize;
        if bytes > self.bytes - self.come {
            bail!(Value, "move: {bytes} bytes after {} of {}", self.come, self.bytes);
        }
        self.lane.device.enter()?;
        let from = self.around.opened(&card.handle)? + card.at;
        let to = self.block.address() + self.come as u64;
        // SAFETY: both sides have that many bytes, and the other process keeps the piece until it is told.
        unsafe { self.lane.up.copy(to, from, bytes)? };
        Event::record(&self.lane.up)?.wait()?;
        self.come += bytes;
        Ok(())
    }

    fn end(self: Box<Self>) -> Result<Buffer> {
        let Coming { lane, block, bytes, come, .. } = *self;
        if come != bytes {
            return Err(Error::Value(format!("move: {come} bytes came, expected {bytes}")));
        }
        MOVED[1].fetch_add(1, Ordering::Relaxed);
        lane.device.enter()?;
        let after = Event::record(&lane.up)?;
        Ok(Arc::new(CudaMemory::arriving(block, bytes, after, None)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_beyond_a_ring_are_refused() {
        let card = |at, bytes| Card { handle: [7; Card::HANDLE], at, bytes };
        let read = Card::read(&card(PIECE as u64, 5).write()).unwrap();
        assert_eq!((read.handle, read.at, read.bytes), ([7; Card::HANDLE], PIECE as u64, 5));
        for (at, bytes) in [((PIECE * PIECES) as u64, 1), (u64::MAX, 2), (0, u64::MAX)] {
            assert!(Card::read(&card(at, bytes).write()).is_err());
        }
        assert!(Card::read(&[0; 12]).is_err());
    }
}
