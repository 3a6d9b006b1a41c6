//! Warm host memory: large vectors are kept for the next use, so that big transfers do not pay for page faults.

use parking_lot::Mutex;

/// Vectors smaller than this are left to the allocator.
const WORTH: usize = 1 << 20;
/// Bytes kept at most.
const KEEP: usize = 1 << 30;

static POOL: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// A vector of `len` bytes of unspecified (but initialised) content.
pub fn take(len: usize) -> Vec<u8> {
    if len >= WORTH {
        let mut pool = POOL.lock();
        let fits = |v: &Vec<u8>| v.len() >= len && v.len() / 2 <= len;
        if let Some(i) = pool.iter().position(fits) {
            let mut bytes = pool.swap_remove(i);
            bytes.truncate(len);
            return bytes;
        }
    }
    vec![0; len]
}

/// Gives a vector back.
pub fn give(bytes: Vec<u8>) {
    if bytes.len() < WORTH {
        return;
    }
    let mut pool = POOL.lock();
    let held: usize = pool.iter().map(Vec::len).sum();
    if held + bytes.len() <= KEEP {
        pool.push(bytes);
    }
}
