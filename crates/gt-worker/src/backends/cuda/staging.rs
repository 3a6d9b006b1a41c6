//! Pinned host memory through which all bytes come and go, kept and used again.

use super::device::Device;
use super::driver::{Event, check, log_drop};
use crate::backend::Pending;
use cudarc::driver::result;
use gt_ir::Result;
use gt_sync::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// The smallest buffer.
const LEAST: usize = 4 << 10;
/// Buffers of 4 KiB, 8 KiB, ... up to a piece.
const CLASSES: usize = 12;
/// Bytes kept at most; beyond this a transfer waits for an earlier one.
const MOST: usize = 256 << 20;

/// Transfers under way that are looked at for one that is done.
const LOOKED_AT: usize = 16;

/// The buffers of a device.
pub struct Pinned {
    device: Arc<Device>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    free: [Vec<Raw>; CLASSES],
    /// Buffers that are free once their events are passed, oldest first.
    busy: VecDeque<(Event, Buffer)>,
    /// Bytes of all buffers there are.
    bytes: usize,
}

struct Raw(*mut u8);

// SAFETY: a free buffer belongs to the pool alone.
unsafe impl Send for Raw {}

/// A pinned buffer.
pub struct Buffer {
    raw: Raw,
    class: usize,
}

/// The class of a size.
fn class(bytes: usize) -> usize {
    (bytes.max(LEAST).next_power_of_two() / LEAST).ilog2() as usize
}

impl Buffer {
    pub fn ptr(&self) -> *mut u8 {
        self.raw.0
    }

    fn size(&self) -> usize {
        LEAST << self.class
    }

    /// Fills its start.
    pub fn write(&mut self, bytes: &[u8]) {
        let n = bytes.len().min(self.size());
        // SAFETY: the buffer is ours alone and has that many bytes.
        let into = unsafe { std::slice::from_raw_parts_mut(self.raw.0, n) };
        gt_net::copy::copy(into, &bytes[..n]);
    }

    /// Its first bytes, once whoever writes them is done.
    fn read(&self, bytes: usize) -> &[u8] {
        // SAFETY: the buffer has that many bytes, and its event was waited for.
        unsafe { std::slice::from_raw_parts(self.raw.0, bytes.min(self.size())) }
    }
}

impl Pinned {
    /// Longer transfers go in pieces of this size.
    pub const PIECE: usize = LEAST << (CLASSES - 1);

    pub fn new(device: Arc<Device>) -> Pinned {
        Pinned { device, state: Mutex::default() }
    }

    /// A buffer of at least `bytes`, a piece at most.
    pub fn take(&self, bytes: usize) -> Result<Buffer> {
        let class = class(bytes.min(Pinned::PIECE));
        let size = LEAST << class;
        loop {
            let mut state = self.state.lock();
            state.reclaim()?;
            if let Some(raw) = state.free[class].pop() {
                return Ok(Buffer { raw, class });
            }
            if state.bytes + size <= MOST || state.busy.is_empty() {
                state.bytes += size;
                drop(state);
                // Not write-combined: downloads are read.
                // SAFETY: freed once, in `drop`.
                let got = check("pinned memory", unsafe { result::malloc_host(size, 0) });
                return match got {
                    Ok(ptr) => Ok(Buffer { raw: Raw(ptr as *mut u8), class }),
                    Err(error) => {
                        self.state.lock().bytes -= size;
                        Err(error)
                    }
                };
            }
            let oldest = state.busy.pop_front();
            drop(state);
            if let Some((event, buffer)) = oldest {
                event.wait()?;
                self.give(buffer);
            }
        }
    }

    /// The buffer is free again once the event is passed.
    pub fn keep_until(&self, event: Event, buffer: Buffer) {
        self.state.lock().busy.push_back((event, buffer));
    }

    fn give(&self, buffer: Buffer) {
        let mut state = self.state.lock();
        state.free[buffer.class].push(buffer.raw);
        // A size that is no longer asked for does not stay for good.
        let kept = state.free[buffer.class].len() * (LEAST << buffer.class);
        if kept > MOST / 4
            && let Some(raw) = state.free[buffer.class].pop()
        {
            state.bytes -= LEAST << buffer.class;
            drop(state);
            release(raw);
        }
    }
}

impl State {
    /// Takes back what has been transferred. Streams do not wait for each other, so the oldest need not be the first.
    fn reclaim(&mut self) -> Result<()> {
        let mut at = 0;
        while let Some((event, _)) = self.busy.get(at).filter(|_| at < LOOKED_AT) {
            if !event.passed()? {
                at += 1;
            } else if let Some((_, buffer)) = self.busy.remove(at) {
                self.free[buffer.class].push(buffer.raw);
            }
        }
        Ok(())
    }
}

fn release(raw: Raw) {
    // SAFETY: made by `take`, freed once.
    if let Err(error) = unsafe { result::free_host(raw.0.cast()) } {
        log_drop("free pinned memory", error);
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.device.enter().is_err() {
            return;
        }
        let state = self.state.get_mut();
        for (event, buffer) in state.busy.drain(..) {
            let _ = event.wait();
            release(buffer.raw);
        }
        state.free.iter_mut().flat_map(|list| list.drain(..)).for_each(release);
    }
}

/// Bytes on their way to the host.
pub struct Landed {
    /// Taken by whoever waits.
    coming: Option<(Event, Buffer)>,
    pinned: Arc<Pinned>,
}

impl Landed {
    pub fn new(event: Event, buffer: Buffer, pinned: Arc<Pinned>) -> Landed {
        Landed { coming: Some((event, buffer)), pinned }
    }

    /// True if the bytes are there.
    pub fn passed(&self) -> Result<bool> {
        self.pinned.device.enter()?;
        self.coming.as_ref().map_or(Ok(true), |(event, _)| event.passed())
    }

    /// Waits for the first `bytes` bytes and gives them to `f`.
    pub fn wait<T>(mut self, bytes: usize, f: impl FnOnce(&[u8]) -> T) -> Result<T> {
        self.pinned.device.enter()?;
        let Some((event, buffer)) = self.coming.take() else { return Ok(f(&[])) };
        event.wait()?;
        let out = f(buffer.read(bytes));
        self.pinned.give(buffer);
        Ok(out)
    }
}

/// A few bytes on their way to whoever waits for them.
pub struct Parcel {
    pub landed: Landed,
    pub bytes: usize,
}

impl Pending<Arc<Vec<u8>>> for Parcel {
    fn wait(self: Box<Self>) -> Result<Arc<Vec<u8>>> {
        self.landed.wait(self.bytes, |bytes| Arc::new(bytes.to_vec()))
    }

    fn passed(&self) -> Result<bool> {
        self.landed.passed()
    }
}

impl Drop for Landed {
    fn drop(&mut self) {
        if let Some((event, buffer)) = self.coming.take() {
            // Nobody wants the bytes, but they are still coming.
            self.pinned.keep_until(event, buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_hold_what_is_asked_for() {
        for bytes in [0, 1, 4096, 4097, 100_000, 1 << 20, Pinned::PIECE - 1, Pinned::PIECE] {
            let size = LEAST << class(bytes);
            assert!(size >= bytes && (size <= 2 * bytes || size == LEAST), "{bytes} {size}");
            assert!(class(bytes) < CLASSES);
        }
    }
}
