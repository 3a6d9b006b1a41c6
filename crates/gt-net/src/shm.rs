//! Shared memory that cannot fault: sealed memfds, mapped behind a safe newtype, reused while warm.
//!
//! Three levels: `mmap` itself; `Mapping`, made only of descriptors whose size is checked and sealed; and
//! `Shm`, which is safe to use.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use gt_sync::Mutex;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// What keeps a segment's size as it is, for everyone and for good.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A shared, writable mapping of a whole segment.
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone within the process, and is plain bytes.
unsafe impl Send for Mapping {}
// SAFETY: shared access only reads.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of a segment whose size is sealed at `len` or more.
    fn new(fd: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing of this process; the
        // seals, checked by the caller, keep the file at least `len` long, so no access can fault.
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, protection, flags, fd, 0)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { start, len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `start` and `len` are those of a mapping made in `new`, and no slice of it outlives `self`.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// A segment of shared memory. Whoever passes it to another process stops writing to it until it is given
/// back; a peer that breaks this only garbles bytes of its own session.
pub struct Shm {
    mapping: Mapping,
    fd: OwnedFd,
    len: usize,
    inode: u64,
}

impl Shm {
    /// A new zeroed segment of `len` bytes.
    pub fn create(len: usize) -> io::Result<Shm> {
        Shm::with_capacity(len, len)
    }

    fn with_capacity(len: usize, capacity: usize) -> io::Result<Shm> {
        let capacity = capacity.max(1);
        let fd = rustix::fs::memfd_create("gt-bulk", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, capacity as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SEALS)?;
        Shm::map(fd, len, capacity)
    }

    /// Maps a segment that came from another process; refuses one that could shrink or is shorter than `len`.
    pub fn from_fd(fd: OwnedFd, len: usize) -> io::Result<Shm> {
        let refuse = |why| Err(io::Error::new(io::ErrorKind::InvalidData, why));
        let seals = match rustix::fs::fcntl_get_seals(&fd) {
            Ok(seals) => seals,
            Err(_) => return refuse("shared memory: the descriptor is no memfd"),
        };
        if !seals.contains(SEALS) {
            return refuse("shared memory: the segment is not sealed");
        }
        if seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
            return refuse("shared memory: the segment cannot be written");
        }
        let size = rustix::fs::fstat(&fd)?.st_size as usize;
        if size < len || size == 0 {
            return refuse("shared memory: the segment is too short");
        }
        Shm::map(fd, len, size)
    }

    fn map(fd: OwnedFd, len: usize, capacity: usize) -> io::Result<Shm> {
        let inode = inode(&fd)?;
        let mapping = Mapping::new(fd.as_fd(), capacity)?;
        Ok(Shm { mapping, fd, len, inode })
    }

    /// Bytes in use.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when no byte is in use.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of the whole segment.
    pub fn capacity(&self) -> usize {
        self.mapping.len
    }

    /// Uses `len` bytes of the segment from now on, at most its capacity.
    pub fn set_len(&mut self, len: usize) {
        self.len = len.min(self.capacity());
    }

    /// The segment's identity while anyone holds it.
    pub(crate) fn inode(&self) -> u64 {
        self.inode
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `len` is within the mapping, which lives as long as `self` and cannot fault.
        unsafe { std::slice::from_raw_parts(self.mapping.start.as_ptr(), self.len) }
    }

    /// Where the segment begins: for words that both sides change, which must be atomic.
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping.start.as_ptr()
    }

    /// The bytes, to write.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes this the only slice of the process.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.start.as_ptr(), self.len) }
    }
}

impl AsFd for Shm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl std::fmt::Debug for Shm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Shm({} of {} bytes)", self.len, self.capacity())
    }
}

/// The identity of the file behind a descriptor.
pub(crate) fn inode(fd: impl AsFd) -> io::Result<u64> {
    Ok(rustix::fs::fstat(fd)?.st_ino)
}

/// Mapped segments kept for reuse by size class: a warm one costs no page fault. Segments keep their old
/// bytes, so a pool must serve one side of one trust only.
pub struct ShmPool {
    free: Mutex<Free>,
    max_bytes: usize,
}

#[derive(Default)]
struct Free {
    classes: BTreeMap<usize, Vec<Shm>>,
    bytes: usize,
}

impl ShmPool {
    /// A pool that keeps at most `max_bytes` of unused segments.
    pub fn new(max_bytes: usize) -> Self {
        ShmPool { free: Mutex::default(), max_bytes }
    }

    /// A segment with `len` bytes in use, warm when one of its class is free. Its bytes are unspecified.
    pub fn take(&self, len: usize) -> io::Result<Shm> {
        let class = size_class(len);
        {
            let mut free = self.free.lock();
            if let Some(mut shm) = free.classes.get_mut(&class).and_then(Vec::pop) {
                free.bytes -= class;
                shm.set_len(len);
                return Ok(shm);
            }
        }
        Shm::with_capacity(len, class)
    }

    /// Gives a segment back; one that is not of the pool's classes or over its bound is freed.
    pub fn give(&self, shm: Shm) {
        let class = shm.capacity();
        let mut free = self.free.lock();
        if size_class(class) == class && free.bytes + class <= self.max_bytes {
            free.bytes += class;
            free.classes.entry(class).or_default().push(shm);
        }
    }

    /// Bytes of unused segments.
    pub fn free_bytes(&self) -> usize {
        self.free.lock().bytes
    }
}

/// The capacity for `len` bytes: four classes to each doubling, so at most a fifth is wasted.
fn size_class(len: usize) -> usize {
    const SMALLEST: usize = 64 << 10;
    if len <= SMALLEST {
        return SMALLEST;
    }
    let step = (len - 1).checked_ilog2().map_or(1, |log| 1 << (log - 2));
    len.div_ceil(step) * step
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_hold_and_are_fixed_points() {
        for len in [0, 1, 65_536, 65_537, 100_000, 131_072, 131_073, 1 << 20, (1 << 20) + 1, 999_999_999] {
            let class = size_class(len);
            assert!(class >= len && size_class(class) == class, "{len} -> {class}");
            assert!(len <= 65_536 || class <= len + len / 4, "{len} -> {class}");
        }
    }

    #[test]
    fn the_pool_reuses_the_same_segment() {
        let pool = ShmPool::new(1 << 20);
        let mut first = pool.take(100_000).unwrap();
        first.as_mut_slice().fill(7);
        let inode = first.inode();
        pool.give(first);
        assert!(pool.free_bytes() >= 100_000);
        let again = pool.take(99_000).unwrap();
        assert_eq!((again.inode(), again.len(), pool.free_bytes()), (inode, 99_000, 0));
        assert!(again.as_slice().iter().all(|&byte| byte == 7));
        pool.give(pool.take(10 << 20).unwrap());
        assert_eq!(pool.free_bytes(), 0, "over the bound");
    }

    #[test]
    fn both_sides_see_the_same_bytes() {
        let mut ours = Shm::create(10_000).unwrap();
        ours.as_mut_slice()[9_999] = 42;
        let theirs = Shm::from_fd(ours.as_fd().try_clone_to_owned().unwrap(), 10_000).unwrap();
        assert_eq!(theirs.as_slice()[9_999], 42);
        assert_eq!(theirs.inode(), ours.inode());
    }

    #[test]
    fn what_could_fault_is_refused() {
        let refused = |fd: OwnedFd, len| Shm::from_fd(fd, len).unwrap_err().to_string();
        let short = Shm::create(100).unwrap();
        assert!(refused(short.as_fd().try_clone_to_owned().unwrap(), 101).contains("too short"));
        let open = rustix::fs::memfd_create("t", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&open, 100).unwrap();
        assert!(refused(open, 100).contains("not sealed"));
        let file: OwnedFd = std::fs::File::open("/proc/self/exe").unwrap().into();
        assert!(refused(file, 1).contains("no memfd"));
    }
}
