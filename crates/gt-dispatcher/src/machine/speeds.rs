//! What computing and moving cost on workers, from what they told of themselves when they registered.

use crate::shard::Costs;
use gt_net::msg::WorkerInfo;
use std::collections::{BTreeMap, BTreeSet};

/// Threads that wait for one another look that long before they sleep.
const LOOK: f64 = 5e-5;
/// The part of a worker's memory that one program may take.
const ROOM: f64 = 0.8;
/// The part of a worker's memory that a session's tensors may take which could lie in pieces and are kept whole: beside it
/// there is room for a program.
const SPARE: f64 = 0.1;

/// All workers together are thought to be so many times as fast as one at least. Where every one of them would use all
/// cores of a host nothing is won, but whoever starts several wants to see them used.
const WON: f64 = 1.5;

/// Where workers meet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Road {
    /// In the memory of their process.
    Process,
    /// In windows of memory that the processes of a host share.
    Host,
    /// On sockets.
    Net,
}

/// The costs of a mesh of these workers: those of its slowest worker and its slowest road.
pub fn costs(infos: &[&WorkerInfo]) -> Costs {
    let Some(first) = infos.first() else { return Costs::cpu(1) };
    let room = infos.iter().map(|info| info.memory).min().unwrap_or(u64::MAX);
    let room = if room == 0 { u64::MAX } else { (room as f64 * ROOM) as u64 };
    let road = road(infos);
    let costs = match first.backend.as_str() {
        "cuda" => gpu(road),
        _ => cpu(infos, road),
    };
    Costs { room, ..costs }
}

/// Bytes that each of these workers may hold of a session's tensors that could lie in pieces and are kept whole. The processes
/// of a host share its memory, of which workers of one process have told their parts; workers on one device share that.
pub fn spare(infos: &[&WorkerInfo]) -> u64 {
    let of = |info: &&WorkerInfo| {
        let beside = || infos.iter().filter(|i| i.process.host == info.process.host);
        let sharers = match info.backend.as_str() {
            "cuda" => beside().filter(|i| i.device == info.device).count(),
            _ => beside().map(|i| i.process.pid).collect::<BTreeSet<u32>>().len(),
        };
        if info.memory == 0 { u64::MAX } else { (info.memory as f64 * SPARE / sharers as f64) as u64 }
    };
    infos.iter().map(of).min().unwrap_or(0)
}

fn road(infos: &[&WorkerInfo]) -> Road {
    let Some(first) = infos.first() else { return Road::Process };
    let of =
        |info: &&WorkerInfo| match (info.process == first.process, info.process.host == first.process.host) {
            (true, _) => Road::Process,
            (false, true) => Road::Host,
            (false, false) => Road::Net,
        };
    infos.iter().map(of).max().unwrap_or(Road::Process)
}

fn gpu(road: Road) -> Costs {
    match road {
        Road::Process | Road::Host => Costs::gpu(),
        Road::Net => Costs { road: 2e10, latency: 3e-5, start: 1e-4, ..Costs::gpu() },
    }
}

fn cpu(infos: &[&WorkerInfo], road: Road) -> Costs {
    // Workers that measured nothing are thought to be like those that did, thread by thread.
    let known = infos.iter().find(|info| info.speed.flops > 0.0);
    let least = |of: fn(&WorkerInfo) -> f64, else_by: f64| {
        let like = known.map_or(else_by, |info| of(info) / info.threads.max(1) as f64);
        let own =
            |info: &&WorkerInfo| if of(info) > 0.0 { of(info) } else { like * info.threads.max(1) as f64 };
        infos.iter().map(own).fold(f64::INFINITY, f64::min)
    };
    let plain = Costs::cpu(1);
    let crowd = crowd(infos);
    let flops = least(|info| info.speed.flops, plain.flops) / crowd;
    let memory = least(|info| info.speed.memory, plain.memory) / crowd;
    let wake = known.map_or(2e-5, |info| info.speed.wake);
    // Those that have cores of their own mostly find the others there; those that share them have to be woken.
    let meeting = if crowd > 1.0 { crowd * (wake + LOOK) } else { 0.0 };
    let (road, latency) = match road {
        Road::Process => (memory / 3.0, 1.5e-5 + meeting),
        Road::Host => (memory / 5.0, 2.5e-5 + meeting),
        Road::Net => (memory.min(1e9), 1.5e-4 + meeting),
    };
    let alone = crowd.min(infos.len() as f64 / WON).max(1.0);
    Costs { flops, memory, alone, road, latency, start: 1e-4 + 2.0 * wake, ..plain }
}

/// How many threads of these workers share a core, where they are most.
fn crowd(infos: &[&WorkerInfo]) -> f64 {
    let mut places: BTreeMap<(&str, u64), (f64, f64)> = BTreeMap::new();
    for info in infos {
        let (threads, cores) = places.entry((&info.process.host, info.speed.place)).or_default();
        *threads += info.threads.max(1) as f64;
        *cores = cores.max(info.speed.cores as f64);
    }
    let share = |(threads, cores): (f64, f64)| if cores > 0.0 { threads / cores } else { 1.0 };
    places.into_values().map(share).fold(1.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gt_net::msg::Speed;
    use gt_net::process::Process;

    fn worker(host: &str, pid: u32, threads: u32, cores: u32) -> WorkerInfo {
        WorkerInfo {
            name: "w".into(),
            backend: "cpu".into(),
            device: "measured".into(),
            threads,
            memory: 1 << 30,
            endpoint: None,
            ticket_key: [0; 16],
            process: Process { host: host.into(), pid },
            gangs: true,
            speed: Speed { flops: 1e11 * threads as f64, memory: 2e10, wake: 1e-5, cores, place: 0 },
        }
    }

    #[test]
    fn workers_that_share_cores_are_slower_together_than_alone() {
        let all: Vec<WorkerInfo> = (0..4).map(|_| worker("a", 1, 1, 2)).collect();
        let costs = costs(&all.iter().collect::<Vec<_>>());
        assert_eq!((costs.flops, costs.alone), (5e10, 2.0));
        let two = super::costs(&all[..2].iter().collect::<Vec<_>>());
        assert_eq!((two.flops, two.alone), (1e11, 1.0));
        assert!(costs.latency > 5.0 * two.latency, "{costs:?}");
        assert_eq!(costs.room, ((1u64 << 30) as f64 * ROOM) as u64);
    }

    #[test]
    fn processes_of_a_host_share_what_is_to_spare() {
        let spare = |all: &[WorkerInfo]| spare(&all.iter().collect::<Vec<_>>());
        let all = ((1u64 << 30) as f64 * SPARE) as u64;
        let inside: Vec<WorkerInfo> = (0..4).map(|_| worker("a", 1, 1, 2)).collect();
        assert_eq!(spare(&inside), all);
        let mut apart: Vec<WorkerInfo> = (0..4).map(|pid| worker("a", pid, 1, 2)).collect();
        assert_eq!(spare(&apart), all / 4);
        apart.iter_mut().for_each(|info| info.backend = "cuda".into());
        assert_eq!(spare(&apart), all / 4, "they are on one device");
        apart.iter_mut().for_each(|info| info.device = format!("cuda:{}", info.process.pid));
        assert_eq!(spare(&apart), all);
    }

    #[test]
    fn workers_that_have_all_cores_each_are_used_all_the_same() {
        let all: Vec<WorkerInfo> = (1..=4).map(|pid| worker("a", pid, 2, 2)).collect();
        let costs = costs(&all.iter().collect::<Vec<_>>());
        assert_eq!((costs.flops, costs.alone), (5e10, 4.0 / WON));
    }

    #[test]
    fn workers_with_cores_of_their_own_are_no_crowd() {
        let pinned = |place| {
            let mut info = worker("a", place, 2, 2);
            info.speed.place = place as u64;
            info
        };
        let all: Vec<WorkerInfo> = (1..=8).map(pinned).collect();
        let costs = costs(&all.iter().collect::<Vec<_>>());
        assert_eq!((costs.flops, costs.alone), (2e11, 1.0));
    }

    #[test]
    fn the_farthest_road_counts() {
        let (a, b, c) = (worker("a", 1, 1, 8), worker("a", 2, 1, 8), worker("b", 1, 1, 8));
        let latency = |infos: &[&WorkerInfo]| costs(infos).latency;
        assert!(latency(&[&a, &a]) < latency(&[&a, &b]) && latency(&[&a, &b]) < latency(&[&a, &b, &c]));
    }

    #[test]
    fn what_one_did_not_measure_is_taken_from_another() {
        let (known, mut open) = (worker("a", 1, 1, 8), worker("a", 1, 2, 8));
        open.speed = Speed::default();
        assert_eq!(costs(&[&open]).flops, 2.0 * Costs::cpu(1).flops);
        assert_eq!(costs(&[&open, &known]).flops, 1e11);
    }
}
