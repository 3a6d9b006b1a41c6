//! Which workers run programs together: those of one kind of device that can reach each other. What is left out is said
//! once per session.

use super::pool::Worker;
use super::session::Session;
use super::{Action, Cx};
use gt_net::msg::{SessionMsg, WorkerId, WorkerInfo};

/// True if these workers can run a program together: they have the same kind of device, and memory or roads in common.
pub(super) fn can_meet<'a>(mut infos: impl Iterator<Item = &'a WorkerInfo> + Clone) -> bool {
    let Some(first) = infos.clone().next() else { return false };
    let mut others = infos.clone();
    infos.all(|i| i.gangs && i.backend == first.backend)
        && (others.clone().all(|i| i.process == first.process) || others.all(|i| i.endpoint.is_some()))
}

/// GPUs before all else, then the kind of which there are most.
fn kind<'a>(able: impl Iterator<Item = &'a Worker>) -> Option<&'a str> {
    let mut kinds: Vec<(&str, usize)> = Vec::new();
    for worker in able {
        let name = worker.info.backend.as_str();
        match kinds.iter_mut().find(|(known, _)| *known == name) {
            Some((_, count)) => *count += 1,
            None => kinds.push((name, 1)),
        }
    }
    // Of equals the first to come.
    kinds.reverse();
    kinds.into_iter().max_by_key(|(name, count)| (*name == "cuda", *count)).map(|(name, _)| name)
}

impl Session {
    /// All workers that divide programs among themselves.
    pub(super) fn all_alike(&self, cx: &mut Cx) -> Vec<WorkerId> {
        // One that is silent is left out by who has nothing there.
        let there = |(id, w): &(WorkerId, &Worker)| !w.silent || self.touched.contains(id);
        let able = || cx.pool.iter().filter(there).filter(|(_, w)| w.info.gangs);
        let Some(kind) = kind(able().map(|(_, w)| w)) else { return Vec::new() };
        let alike = || able().filter(|(_, w)| w.info.backend == kind);
        let Some((_, first)) = alike().next() else { return Vec::new() };
        // Workers of one process meet in its memory, others by their bulk planes.
        let reached = alike().all(|(_, w)| w.info.endpoint.is_some());
        let meets = |w: &Worker| reached || w.info.process == first.info.process;
        let workers: Vec<WorkerId> = alike().filter(|(_, w)| meets(w)).map(|(id, _)| id).collect();
        if workers.len() < cx.pool.iter().filter(there).count() && !self.told_apart.get() {
            let left_out = cx.pool.iter().filter(there).filter(|(id, _)| !workers.contains(id));
            let others: Vec<&str> = left_out.map(|(_, w)| &*w.info.name).collect();
            let line = format!(
                "GT_AUTO_SHARD: programs are divided over {} {kind} {} and not over {}: \
                 workers divide programs only with others of their kind that they can reach",
                workers.len(),
                if workers.len() == 1 { "worker" } else { "workers" },
                others.join(", ")
            );
            self.tell_apart(line, cx);
        }
        workers
    }

    /// Says that the workers a signal names cannot run a program together.
    pub(super) fn cannot_meet(&self, workers: &[WorkerId], cx: &mut Cx) {
        if self.told_apart.get() {
            return;
        }
        let kind = |id: &WorkerId| {
            let info = &cx.pool.get(*id)?.info;
            Some(format!("{} ({})", info.name, info.backend))
        };
        let named: Vec<String> = workers.iter().filter_map(kind).collect();
        let line = format!(
            "signal: {} cannot run programs together: they are of several kinds, or cannot reach each other",
            named.join(", ")
        );
        self.tell_apart(line, cx);
    }

    fn tell_apart(&self, line: String, cx: &mut Cx) {
        self.told_apart.set(true);
        let line = format!("gt: warning: {line}");
        cx.out.push(Action::ToClient(self.id, SessionMsg::Log { line, debug: true }));
    }
}
