//! The pool of buffers: memory given back is kept and handed out again without page faults or zeroing.

use crate::backend::Memory;
use gt_ir::{Error, Result};
use gt_sync::Mutex;
use std::alloc::Layout;
use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Buffers start at multiples of this.
const ALIGN: usize = 64;
/// From this size on memory comes from the system directly.
const MAPPED: usize = 1 << 20;
/// From this size on the system is asked for huge pages.
const HUGE: usize = 4 << 20;
/// Four size classes per doubling, up to 2^48 bytes.
const CLASSES: usize = 4 * 48;

/// Hands out blocks and takes them back. All counts are in bytes.
pub struct Pool {
    free: Vec<Mutex<Vec<Raw>>>,
    in_use: AtomicU64,
    peak: AtomicU64,
    kept: AtomicU64,
    limit: AtomicU64,
}

struct Raw(NonNull<u8>);

// SAFETY: a free block belongs to the pool alone.
unsafe impl Send for Raw {}

/// The class of a size and the size its blocks have.
fn class(bytes: usize) -> (usize, usize) {
    let bytes = bytes.max(ALIGN);
    let top = (bytes - 1).ilog2() as usize;
    let quarter = (1usize << top) / 4;
    let steps = (bytes - (1 << top)).div_ceil(quarter.max(1));
    let size = ((1 << top) + steps * quarter).max(bytes);
    // Small blocks stay multiples of a cache line, big ones of a page.
    let size = size.next_multiple_of(if size >= MAPPED { 4096 } else { ALIGN });
    (4 * top + steps, size)
}

impl Pool {
    /// A pool that uses at most `limit` bytes at a time.
    pub fn new(limit: u64) -> Arc<Pool> {
        Arc::new(Pool {
            free: (0..CLASSES + 8).map(|_| Mutex::new(Vec::new())).collect(),
            in_use: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            kept: AtomicU64::new(0),
            limit: AtomicU64::new(limit),
        })
    }

    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// From now on at most so many bytes are handed out; what is in use stays.
    pub fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Bytes in use, and at most so far.
    pub fn usage(&self) -> (u64, u64) {
        (self.in_use.load(Ordering::Relaxed), self.peak.load(Ordering::Relaxed))
    }

    /// From now on the most is counted anew.
    pub fn reset_peak(&self) {
        self.peak.store(self.in_use.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// A block of at least `bytes` bytes, holding anything.
    pub fn take(self: &Arc<Pool>, bytes: usize) -> Result<Block> {
        let (class, size) = class(bytes);
        self.take_sized(bytes, class, size)
    }

    /// A block for a short while. Plans come in many sizes: one that is kept and up to twice as large will do, and a new
    /// one takes the place of one kept that it can serve for.
    pub fn take_arena(self: &Arc<Pool>, bytes: usize) -> Result<Block> {
        let (least, size) = class(bytes);
        if size < MAPPED {
            return self.take_sized(bytes, least, size);
        }
        let kept = |i: &usize| !self.free[*i].lock().is_empty();
        if let Some(class) = (least..least + 4).find(kept) {
            return self.take_sized(bytes, class, size_of_class(class));
        }
        if let Some(class) = (least.saturating_sub(4)..least).rev().find(kept)
            && let Some(Raw(ptr)) = self.free[class].lock().pop()
        {
            let smaller = size_of_class(class);
            self.kept.fetch_sub(smaller as u64, Ordering::Relaxed);
            system_free(ptr, smaller);
        }
        self.take_sized(bytes, least, size)
    }

    fn take_sized(self: &Arc<Pool>, bytes: usize, class: usize, size: usize) -> Result<Block> {
        let now = self.in_use.fetch_add(size as u64, Ordering::Relaxed) + size as u64;
        if now > self.limit() {
            self.in_use.fetch_sub(size as u64, Ordering::Relaxed);
            return Err(out_of_memory(bytes, now - size as u64, self.limit()));
        }
        self.peak.fetch_max(now, Ordering::Relaxed);
        let kept = self.free[class].lock().pop();
        let ptr = match kept {
            Some(Raw(ptr)) => {
                self.kept.fetch_sub(size as u64, Ordering::Relaxed);
                ptr
            }
            None => match self.alloc(now, size) {
                Some(ptr) => ptr,
                None => {
                    self.release_kept(0);
                    match system_alloc(size) {
                        Some(ptr) => ptr,
                        None => {
                            self.in_use.fetch_sub(size as u64, Ordering::Relaxed);
                            return Err(out_of_memory(bytes, now - size as u64, self.limit()));
                        }
                    }
                }
            },
        };
        Ok(Block { ptr, bytes, class, size, pool: self.clone() })
    }

    /// A new block. With it `used` bytes are in use; where much memory is, what other sizes have kept makes room.
    fn alloc(&self, used: u64, size: usize) -> Option<NonNull<u8>> {
        let room = self.limit() / 2;
        if used + self.kept.load(Ordering::Relaxed) > room {
            self.release_kept(room.saturating_sub(used));
        }
        system_alloc(size)
    }

    /// Gives what is kept back to the system, the largest blocks first, until at most `left` bytes are.
    pub fn release_kept(&self, left: u64) {
        for (i, list) in self.free.iter().enumerate().rev() {
            while self.kept.load(Ordering::Relaxed) > left {
                let Some(Raw(ptr)) = list.lock().pop() else { break };
                let size = size_of_class(i);
                self.kept.fetch_sub(size as u64, Ordering::Relaxed);
                system_free(ptr, size);
            }
        }
    }
}

fn size_of_class(i: usize) -> usize {
    let (top, steps) = (i / 4, i % 4);
    // `class` counts 1..=4 steps above a power of two, so a full four lands in the next row's zero.
    let (top, steps) = if steps == 0 { (top - 1, 4) } else { (top, steps) };
    let size = (1usize << top) + steps * ((1usize << top) / 4);
    size.next_multiple_of(if size >= MAPPED { 4096 } else { ALIGN }).max(ALIGN)
}

fn out_of_memory(bytes: usize, used: u64, limit: u64) -> Error {
    Error::Memory(format!(
        "cpu: out of memory, asked for {bytes} bytes with {used} of {limit} in use; free tensors or use smaller ones"
    ))
}

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, ALIGN).unwrap_or(Layout::new::<[u64; 8]>())
}

fn system_alloc(size: usize) -> Option<NonNull<u8>> {
    if size < MAPPED {
        // SAFETY: the size is not zero.
        return NonNull::new(unsafe { std::alloc::alloc(layout(size)) });
    }
    // SAFETY: an anonymous mapping touches no memory of ours; the result is checked.
    unsafe {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let ptr = libc::mmap(std::ptr::null_mut(), size, prot, flags, -1, 0);
        if ptr == libc::MAP_FAILED {
            return None;
        }
        #[cfg(target_os = "linux")]
        if size >= HUGE {
            libc::madvise(ptr, size, libc::MADV_HUGEPAGE);
        }
        NonNull::new(ptr as *mut u8)
    }
}

fn system_free(ptr: NonNull<u8>, size: usize) {
    // SAFETY: `ptr` came from `system_alloc` with this size.
    unsafe {
        if size < MAPPED {
            std::alloc::dealloc(ptr.as_ptr(), layout(size));
        } else {
            libc::munmap(ptr.as_ptr() as *mut libc::c_void, size);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.release_kept(0);
    }
}

/// Memory from a pool, given back when dropped.
pub struct Block {
    ptr: NonNull<u8>,
    bytes: usize,
    class: usize,
    size: usize,
    pool: Arc<Pool>,
}

// SAFETY: a block owns its memory; shared access goes through the rules of `CpuMemory`.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    pub fn ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let pool = &self.pool;
        pool.in_use.fetch_sub(self.size as u64, Ordering::Relaxed);
        let kept = pool.kept.fetch_add(self.size as u64, Ordering::Relaxed) + self.size as u64;
        if kept > pool.limit() / 2 {
            pool.kept.fetch_sub(self.size as u64, Ordering::Relaxed);
            system_free(self.ptr, self.size);
        } else {
            pool.free[self.class].lock().push(Raw(self.ptr));
        }
    }
}

/// A tensor's memory on the cpu backend, to be written only by whoever holds the one handle to it.
pub struct CpuMemory(pub Block);

impl CpuMemory {
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the block holds `bytes` bytes, and whoever could write them would hold the only handle.
        unsafe { std::slice::from_raw_parts(self.0.ptr(), self.0.bytes) }
    }
}

impl Memory for CpuMemory {
    fn bytes(&self) -> usize {
        self.0.bytes
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arenas_of_like_sizes_share_memory() {
        let pool = Pool::new(1 << 30);
        drop(pool.take_arena(62 << 20).unwrap());
        let first = pool.take_arena(40 << 20).unwrap();
        assert_eq!(pool.kept.load(Ordering::Relaxed), 0, "the larger one serves");
        drop(first);
        let larger = pool.take_arena(82 << 20).unwrap();
        assert_eq!(pool.kept.load(Ordering::Relaxed), 0, "the smaller one went");
        drop(larger);
        drop(pool.take_arena(65 << 20).unwrap());
        assert_eq!((pool.kept.load(Ordering::Relaxed), pool.usage().0), (class(82 << 20).1 as u64, 0));
    }

    #[test]
    fn what_other_sizes_keep_makes_room() {
        let pool = Pool::new(200 << 20);
        let total = || pool.usage().0 + pool.kept.load(Ordering::Relaxed);
        for megabytes in [30, 40, 50, 60, 70, 80] {
            drop(pool.take(megabytes << 20).unwrap());
            assert!(total() <= 100 << 20, "{megabytes}: {}", total());
        }
        let large = pool.take(150 << 20).unwrap();
        assert_eq!(pool.kept.load(Ordering::Relaxed), 0);
        drop(large);
        pool.release_kept(0);
        assert_eq!(total(), 0);
    }

    #[test]
    fn classes_are_consistent() {
        for bytes in (1..5000).chain([1 << 20, (1 << 20) + 1, 123_456_789, 1 << 33]) {
            let (i, size) = class(bytes);
            assert!(size >= bytes && size <= (bytes + bytes / 4).max(128) + 4096, "{bytes} {size}");
            assert_eq!(size_of_class(i), size, "{bytes} {i}");
        }
    }

    #[test]
    fn blocks_are_counted_and_come_back() {
        let pool = Pool::new(1 << 30);
        let a = pool.take(1000).unwrap();
        let at = a.ptr();
        assert_eq!(at as usize % ALIGN, 0);
        let used = pool.usage().0;
        assert!(used >= 1000);
        drop(a);
        assert_eq!(pool.usage(), (0, used));
        assert_eq!(pool.take(1000).unwrap().ptr(), at);
        let big = pool.take(50 << 20).unwrap();
        // SAFETY: the block is ours and large enough.
        unsafe { *big.ptr().add((50 << 20) - 1) = 1 };
        assert!(matches!(pool.take(2 << 30), Err(Error::Memory(_))));
        pool.set_limit(60 << 20);
        assert!(matches!(pool.take(20 << 20), Err(Error::Memory(_))));
    }
}
