//! What a worker keeps for a mesh between gangs: the communicators of a device's library cost much to make.

use gt_sync::Mutex;
use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

/// Something that all ranks of a group made or decided together.
pub type Tie = Arc<dyn Any + Send + Sync>;

/// The number under which the tie of all ranks is kept.
pub const ALL: u8 = u8::MAX;

/// The ties of one worker to the others of a mesh, by axis. All ranks have the same: what one drops because a gang
/// failed, the others drop too, since they fail with it.
#[derive(Default)]
pub struct Ties {
    kept: Mutex<HashMap<u8, (Tie, bool)>>,
}

impl Ties {
    pub fn get(&self, axis: u8) -> Option<Tie> {
        self.kept.lock().get(&axis).map(|(tie, _)| tie.clone())
    }

    /// Keeps a tie; one that lasts is not dropped when a gang fails.
    pub fn keep(&self, axis: u8, tie: Tie, lasts: bool) {
        self.kept.lock().insert(axis, (tie, lasts));
    }

    /// A gang has failed. What may wait for a device is dropped on a thread of its own.
    pub fn clear(&self) {
        let dropped: Vec<Tie> =
            self.kept.lock().extract_if(|_, (_, lasts)| !*lasts).map(|(_, (tie, _))| tie).collect();
        if !dropped.is_empty() {
            drop_aside(dropped);
        }
    }
}

/// Drops something that may take its time.
pub fn drop_aside<T: Send + 'static>(what: T) {
    // Where there is no thread to be had it is dropped here.
    let _ = std::thread::Builder::new().name("gt-untie".into()).spawn(move || drop(what));
}
