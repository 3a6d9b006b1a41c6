//! The road to a dispatcher.

use gt_ir::{Error, Result, TensorId, Ty};
use gt_net::msg::{ClientMsg, SessionMsg, SessionWelcome};
use gt_net::shm::Shm;
use std::sync::Arc;
use std::time::Instant;

/// The road to a dispatcher. In-process, unix and TCP look alike from here.
pub trait Link: Send + Sync {
    /// Sends without waiting.
    fn send(&self, msg: ClientMsg) -> Result<()>;
    /// Memory from which an upload needs no further copy in this process, where the road has such.
    fn stage(&self, _bytes: usize) -> Option<Shm> {
        None
    }
    /// Sends a tensor's bytes from memory that `stage` gave.
    fn upload_staged(&self, _tensor: TensorId, _ty: Ty, _data: Shm) -> Result<()> {
        Err(Error::Runtime("upload: this link has no staging memory".into()))
    }
    /// Tensor bytes on their way: what has come, of how much, and in which direction in words.
    fn transfer(&self) -> Option<(u64, u64, &'static str)> {
        None
    }
    /// True while so many bytes wait to leave that no more should be made.
    fn is_behind(&self) -> bool {
        false
    }
    /// True while the connection is cut and not soon back, which is said on stderr, once. Asked by those who wait.
    fn is_cut_off(&self) -> bool {
        false
    }
    /// True if a waiting thread brings its own answers by `drive`.
    fn drives(&self) -> bool {
        false
    }
    /// Waits until `done` by working the connection on this thread, which is the quickest way to an answer; false
    /// when `until` passed first. `None` where other threads bring the answers.
    fn drive(&self, _until: Instant, _done: &mut dyn FnMut() -> bool) -> Option<bool> {
        None
    }
    /// Says goodbye; later sends are refused.
    fn close(&self);
    /// The peer in words: `in-process`, `localhost:12345`.
    fn peer(&self) -> String;
}

/// Called for each message that arrives.
pub type OnMsg = Box<dyn FnMut(SessionMsg) + Send>;

/// Makes the link, given what to do with arriving messages.
pub type Connect<'a> = dyn FnOnce(OnMsg) -> Result<(Arc<dyn Link>, SessionWelcome)> + 'a;
