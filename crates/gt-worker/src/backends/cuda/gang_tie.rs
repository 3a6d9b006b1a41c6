//! How the GPUs of a mesh find each other: NCCL groups made from an id that the first rank makes and the gang carries, kept
//! for the mesh. Where NCCL cannot be had, all ranks decide alike to go by way of the host, and one says why.

use super::nccl::{self, Comm, UniqueId};
use super::shared::Shared;
use crate::backend::PlanError;
use crate::gang::ties::{ALL, Ties};
use crate::gang::{Communicator, Group};
use cudarc::driver::{result, sys};
use gt_ir::{Error, Result};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How long ranks may take to find each other.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often a rank that waits for NCCL looks whether the gang has failed.
const LOOK: Duration = Duration::from_millis(5);

/// What the ranks of a group have decided.
enum Tied {
    Nccl(Arc<Comm>),
    Host,
}

/// The groups a plan needs.
#[derive(Clone)]
pub struct Comms {
    /// All ranks.
    pub all: Arc<Comm>,
    axes: Vec<(u8, Arc<Comm>)>,
}

impl Comms {
    pub fn axis(&self, axis: u8) -> &Comm {
        self.axes.iter().find(|(known, _)| *known == axis).map_or(&self.all, |(_, comm)| comm)
    }

    pub fn each(&self) -> impl Iterator<Item = &Arc<Comm>> {
        std::iter::once(&self.all).chain(self.axes.iter().map(|(_, comm)| comm))
    }

    /// True if they are the very same groups.
    pub fn are(&self, others: &Comms) -> bool {
        let same = |(a, b): (&Arc<Comm>, &Arc<Comm>)| Arc::ptr_eq(a, b);
        self.axes.len() == others.axes.len() && self.each().zip(others.each()).all(same)
    }

    /// Cuts this rank off from all others because of an error.
    pub fn cut_for(&self, error: &Error) {
        self.each().for_each(|comm| comm.cut_for(error));
    }
}

fn wrong(error: Error) -> PlanError {
    PlanError { instr: None, error }
}

/// NCCL between the ranks of a gang, along all these axes; nothing if they go by way of the host.
pub fn comms(shared: &Arc<Shared>, group: &dyn Group, axes: &[u8]) -> Result<Option<Comms>, PlanError> {
    let (Some(ties), Some(everyone)) = (group.ties(), group.all()) else { return Ok(None) };
    let all = match tied(shared, group, ties, ALL, everyone)? {
        Some(comm) => comm,
        None => return Ok(None),
    };
    let mut found = Vec::new();
    for &axis in axes {
        let along = group.axis(axis)?;
        if along.size() == everyone.size() {
            continue;
        }
        match tied(shared, group, ties, axis, along)? {
            Some(comm) => found.push((axis, comm)),
            None => return Ok(None),
        }
    }
    Ok(Some(Comms { all, axes: found }))
}

/// The group of an axis as it is kept, or made now.
fn tied(
    shared: &Arc<Shared>,
    group: &dyn Group,
    ties: &Ties,
    axis: u8,
    ranks: &dyn Communicator,
) -> Result<Option<Arc<Comm>>, PlanError> {
    if let Some(tie) = ties.get(axis) {
        return Ok(match tie.downcast_ref::<Tied>() {
            Some(Tied::Nccl(comm)) => Some(comm.clone()),
            Some(Tied::Host) | None => None,
        });
    }
    let made = match meet(shared, ranks)? {
        Ok(id) => init(shared, group, ranks, id),
        Err(why) => Err(why),
    };
    // All ranks of the mesh, whatever their groups: one that goes by way of the host goes alone nowhere.
    let agreed = match group.all() {
        Some(all) => agree(all, &made)?,
        None => None,
    };
    let tie = match (made, agreed) {
        (Ok(comm), None) => Tied::Nccl(Arc::new(comm)),
        (Err(why), _) | (Ok(_), Some(why)) => {
            say(shared, &why);
            Tied::Host
        }
    };
    let (found, lasts) = match &tie {
        Tied::Nccl(comm) => (Some(comm.clone()), false),
        Tied::Host => (None, true),
    };
    ties.keep(axis, Arc::new(tie), lasts);
    Ok(found)
}

/// Says once how collectives go.
fn say(shared: &Shared, why: &str) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        gt_ir::say!("gt worker: cuda:{}: collectives go by way of the host: {why}", shared.device.number);
    }
}

/// What is asked of NCCL by `GT_NCCL`: `0` does without, `check` compares it with the host.
fn asked() -> &'static str {
    static ASKED: OnceLock<String> = OnceLock::new();
    ASKED.get_or_init(|| std::env::var("GT_NCCL").unwrap_or_default())
}

/// True if what every collective gives is compared with what the host works out, and where they differ is told.
pub fn compares() -> bool {
    asked() == "check"
}

/// What ranks tell each other before they meet in NCCL.
const CARD: usize = 4 + 8 + 16 + UniqueId::BYTES;

/// NCCL's version (0: there is none), the host, the GPU and the id, which is the first rank's to make.
fn card(shared: &Shared, first: bool) -> Result<[u8; CARD]> {
    let mut card = [0; CARD];
    if asked() == "0" {
        return Err(Error::Runtime("GT_NCCL=0".into()));
    }
    let version = nccl::version()?;
    card[4..12].copy_from_slice(&host().to_ne_bytes());
    card[12..28].copy_from_slice(&gpu(shared)?);
    if first {
        card[28..].copy_from_slice(&nccl::unique_id()?.0);
    }
    card[..4].copy_from_slice(&version.to_ne_bytes());
    Ok(card)
}

/// The host as NCCL tells hosts apart.
fn host() -> u64 {
    let named = std::env::var("NCCL_HOSTID").ok();
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let name = named.or_else(|| read("/proc/sys/kernel/random/boot_id")).unwrap_or_default();
    foldhash::quality::FixedState::default().hash_one(name.trim())
}

/// What tells GPUs apart.
fn gpu(shared: &Shared) -> Result<[u8; 16]> {
    let handle = super::driver::check("device", result::device::get(shared.device.number as i32))?;
    let mut uuid = sys::CUuuid { bytes: [0; 16] };
    // SAFETY: plain query of a device that is there.
    let asked = unsafe { sys::cuDeviceGetUuid_v2(&mut uuid, handle) };
    super::driver::check("device", asked.result())?;
    Ok(uuid.bytes.map(|b| b as u8))
}

/// Ranks show their cards. All of them come to the same result: the id of a new group, or why there cannot be one.
fn meet(shared: &Arc<Shared>, ranks: &dyn Communicator) -> Result<Result<UniqueId, String>, PlanError> {
    let own = card(shared, ranks.rank() == 0);
    let why = own.as_ref().err().map(ToString::to_string);
    let own = own.unwrap_or([0; CARD]);
    let mut cards: Vec<[u8; CARD]> = Vec::new();
    ranks.share(&[&own], &|_, _, _| 0..CARD, &mut |shown| {
        cards = shown.iter().filter_map(|rank| rank[0].try_into().ok()).collect();
    })?;
    let version = |card: &[u8; CARD]| u32::from_ne_bytes([card[0], card[1], card[2], card[3]]);
    let place = |card: &[u8; CARD]| card[4..28].to_vec();
    let problem = if let Some(rank) = cards.iter().position(|card| version(card) == 0) {
        Some(why.unwrap_or_else(|| format!("rank {rank} has no NCCL")))
    } else if let Some(rank) = cards.iter().position(|card| version(card) != version(&cards[0])) {
        Some(format!("ranks have NCCL {} and {}", version(&cards[0]), version(&cards[rank])))
    } else {
        let twice = |rank: &usize| cards[..*rank].iter().position(|card| place(card) == place(&cards[*rank]));
        let rank = (0..cards.len()).find(|rank| twice(rank).is_some());
        rank.map(|rank| format!("ranks {} and {rank} share a GPU", twice(&rank).unwrap_or(0)))
    };
    Ok(match (problem, cards.first()) {
        (None, Some(first)) => {
            let mut id = [0; UniqueId::BYTES];
            id.copy_from_slice(&first[28..]);
            Ok(UniqueId(id))
        }
        (problem, _) => Err(problem.unwrap_or_else(|| "no ranks".into())),
    })
}

/// Joins a group on a thread of its own, which is given up if ranks do not come.
fn init(
    shared: &Arc<Shared>,
    group: &dyn Group,
    ranks: &dyn Communicator,
    id: UniqueId,
) -> Result<Comm, String> {
    let (done, came) = channel();
    let (device, rank, size) = (shared.device.clone(), ranks.rank(), ranks.size());
    let join = move || drop(done.send(Comm::join(&device, id, rank, size)));
    if let Err(error) = std::thread::Builder::new().name("gt-nccl".into()).spawn(join) {
        return Err(format!("no thread for NCCL: {error}"));
    }
    let start = Instant::now();
    loop {
        match came.recv_timeout(LOOK) {
            Ok(comm) => return comm.map_err(|error| error.to_string()),
            Err(RecvTimeoutError::Disconnected) => return Err("NCCL panicked".into()),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if let Some(failed) = group.failed() {
            return Err(failed.error.to_string());
        }
        if start.elapsed() > PATIENCE {
            return Err(format!("the ranks did not find each other within {} s", PATIENCE.as_secs()));
        }
    }
}

/// True groups are made by all: gives why somebody else's was not.
fn agree(all: &dyn Communicator, made: &Result<Comm, String>) -> Result<Option<String>, PlanError> {
    const TEXT: usize = 256;
    let mut own = [0u8; TEXT];
    if let Err(why) = made {
        let bytes = &why.as_bytes()[..why.len().min(TEXT - 1)];
        own[0] = 1;
        own[1..=bytes.len()].copy_from_slice(bytes);
    }
    let mut failed = None;
    all.share(&[&own], &|_, _, _| 0..TEXT, &mut |shown| {
        let text = |rank: usize, said: &[u8]| {
            let said = String::from_utf8_lossy(&said[1..]);
            format!("rank {rank}: {}", said.trim_end_matches('\0'))
        };
        let bad = shown.iter().enumerate().find(|(_, said)| said[0][0] != 0);
        failed = bad.map(|(rank, said)| text(rank, said[0]));
    })?;
    Ok(failed)
}

/// Waits for something on the device that needs the other ranks. If the gang fails they are cut off, and what waits ends.
pub fn wait(
    comms: &Comms,
    group: &dyn Group,
    mut done: impl FnMut() -> Result<bool>,
) -> Result<(), PlanError> {
    /// Turns that are made without a rest.
    const AWAKE: u32 = 2000;
    let mut turns = 0u32;
    loop {
        if done().map_err(wrong)? {
            return Ok(());
        }
        turns += 1;
        if turns > AWAKE {
            std::thread::sleep(Duration::from_micros(20));
        } else {
            std::hint::spin_loop();
        }
        if !turns.is_multiple_of(64) {
            continue;
        }
        let error = |comm: &Arc<Comm>| comm.broken().or_else(|| comm.error());
        let failed = group.failed().or_else(|| comms.each().find_map(error).map(wrong));
        if let Some(failed) = failed {
            comms.cut_for(&failed.error);
            return Err(failed);
        }
    }
}
