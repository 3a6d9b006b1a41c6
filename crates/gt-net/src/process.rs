//! Which process a peer is, so that a server on the same host notices its end without waiting; and threads of this one
//! that are in less of a hurry than others.

use serde::{Deserialize, Serialize};

/// A process, named so that only its own host can look it up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// The `host_id` of its host, with the pid namespace.
    pub host: String,
    /// Its pid.
    pub pid: u32,
}

impl Process {
    /// This process.
    pub fn this() -> Process {
        Process { host: host(), pid: std::process::id() }
    }

    /// True if the process is known to have ended. One on another host is never known to.
    pub fn has_ended(&self) -> bool {
        if self.host != host() {
            return false;
        }
        match std::fs::read_to_string(format!("/proc/{}/stat", self.pid)) {
            // The state follows the name, which is in parentheses and may hold anything.
            Ok(stat) => stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(['Z', 'X'])),
            Err(error) => error.kind() == std::io::ErrorKind::NotFound,
        }
    }
}

/// Has the calling thread, and those it starts from now on, give way to others; 19 is to all.
pub fn give_way(nice: i32) {
    // Of no process, which is the calling thread. A system that refuses loses nothing but speed.
    let _ = rustix::process::setpriority_process(None, nice);
}

fn host() -> String {
    let pids = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    format!("{}/{}", crate::bulk::host_id(), pids.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_processes_are_told_from_living_ones() {
        assert!(!Process::this().has_ended());
        let mut child = std::process::Command::new("true").spawn().expect("a process");
        let process = Process { pid: child.id(), ..Process::this() };
        child.wait().expect("its end");
        assert!(process.has_ended());
        assert!(!Process { host: "elsewhere".into(), ..process }.has_ended());
    }
}
