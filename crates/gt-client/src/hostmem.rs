//! Warm host memory: large vectors are kept for the next use, so that big transfers do not pay for page faults.

use gt_sync::Mutex;
use std::sync::Arc;

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

/// Uploads from this size to the other one are sent from memory that is used again: a loop that uploads a batch each step
/// has its pages warm.
const SENT: std::ops::RangeInclusive<usize> = (32 << 10)..=(8 << 20);
/// Uploads remembered, whose memory serves again once the worker has let go of it.
const MOST_SENT: usize = 8;

static UPLOADS: Mutex<Vec<Arc<Vec<u8>>>> = Mutex::new(Vec::new());

/// The bytes as something to be sent.
pub fn sent(data: &[u8]) -> Arc<Vec<u8>> {
    if !SENT.contains(&data.len()) {
        let mut bytes = take(data.len());
        gt_net::copy::copy(&mut bytes, data);
        return Arc::new(bytes);
    }
    let free = |b: &Arc<Vec<u8>>| b.len() == data.len() && Arc::strong_count(b) == 1;
    let mut sent = UPLOADS.lock();
    let mut bytes = match sent.iter().position(free) {
        Some(at) => sent.remove(at),
        None => Arc::new(vec![0; data.len()]),
    };
    drop(sent);
    match Arc::get_mut(&mut bytes) {
        Some(own) => gt_net::copy::copy(own, data),
        None => bytes = Arc::new(data.to_vec()),
    }
    let mut sent = UPLOADS.lock();
    if sent.len() == MOST_SENT {
        sent.remove(0);
    }
    sent.push(bytes.clone());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_used_again_only_when_it_has_arrived() {
        let data = |seed: u8| vec![seed; 100_000];
        let first = sent(&data(1));
        let (at, second) = (first.as_ptr(), sent(&data(2)));
        assert!(second.as_ptr() != at && *first == data(1), "the first is still on its way");
        drop(first);
        let third = sent(&data(3));
        assert!(third.as_ptr() == at && *third == data(3) && *second == data(2));
        let many: Vec<_> = (0..20).map(|i| sent(&data(i))).collect();
        assert!(many.iter().zip(0..).all(|(sent, i)| **sent == data(i)));
    }
}
