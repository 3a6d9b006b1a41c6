//! Seeing what a system does: finding it, watching it, and the tools that show it.

pub mod account;
pub mod dashboard;
pub mod draw;
pub mod explain;
pub mod find;
pub mod http;
pub mod log;
pub mod observer;
pub mod perfetto;
pub mod profile;
pub mod rates;
pub mod text;
pub mod timeline;
pub mod top;
pub mod trace;
pub mod visualize;

/// The nice value of who only watches.
const NICE: i32 = 19;

/// Has the calling thread, and those it starts from now on, give way to all others: whoever watches is in no hurry, and
/// what is watched should not feel it.
pub fn give_way() {
    gt_net::process::give_way(NICE);
}
