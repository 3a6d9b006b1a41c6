//! The signals of this process, and the numbers of all they ever meant.

use super::config::{self, Signal};
use super::node::{self, Kind, Node};
use foldhash::fast::FixedState;
use gt_ir::signal::SignalSpec;
use gt_ir::{Error, Result};
use gt_sync::{Mutex, MutexGuard};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::SystemTime;

static STATE: Mutex<Option<State>> = Mutex::new(None);
static TABLE: Mutex<Table> =
    Mutex::new(Table { specs: Vec::new(), numbers: HashMap::with_hasher(HASHER), meshes: Vec::new() });
/// How many specs there are, to be looked at without the lock.
static KNOWN: AtomicUsize = AtomicUsize::new(0);
/// Changes whenever a signal may have a new meaning.
static VERSION: AtomicU64 = AtomicU64::new(1);
/// A file is being watched.
static WATCHING: AtomicBool = AtomicBool::new(false);

const HASHER: FixedState = FixedState::with_seed(0x7369);

/// What the process was told.
#[derive(Default)]
struct State {
    signals: Vec<Signal>,
    file: Option<File>,
    /// `GT_CONFIG` named something that cannot be used; said at every use.
    broken: Option<Error>,
    /// Names used without a meaning, each told once.
    strange: HashSet<String>,
}

/// A configuration file, as it was when it was read.
#[derive(Clone)]
struct File {
    path: PathBuf,
    seen: Option<Seen>,
    /// The signals it gave.
    names: Vec<String>,
}

type Seen = (SystemTime, u64);

/// Every spec that has a number. It only grows.
struct Table {
    specs: Vec<SignalSpec>,
    numbers: HashMap<SignalSpec, u32, FixedState>,
    /// For each spec the number of the first one on the same mesh.
    meshes: Vec<u32>,
}

/// The number of a spec, counted from 1.
pub fn number(spec: SignalSpec) -> u32 {
    let mut table = TABLE.lock();
    if let Some(&known) = table.numbers.get(&spec) {
        return known;
    }
    let same = |s: &SignalSpec| {
        s.axes == spec.axes && s.workers == spec.workers && s.part == spec.part && s.others == spec.others
    };
    let mesh = table.specs.iter().position(same).unwrap_or(table.specs.len());
    table.meshes.push(mesh as u32 + 1);
    table.specs.push(spec.clone());
    let number = table.specs.len() as u32;
    table.numbers.insert(spec, number);
    KNOWN.store(table.specs.len(), Ordering::Release);
    number
}

/// The specs numbered after the first `sent`.
pub(crate) fn news(sent: usize) -> Vec<SignalSpec> {
    if KNOWN.load(Ordering::Acquire) <= sent {
        return Vec::new();
    }
    TABLE.lock().specs[sent..].to_vec()
}

/// The spec of a number.
pub fn spec(number: u32) -> Option<SignalSpec> {
    TABLE.lock().specs.get((number as usize).checked_sub(1)?).cloned()
}

/// The number of the mesh of a spec, counted from 1; 0 for none.
pub(super) fn mesh(number: u32) -> u32 {
    let at = (number as usize).checked_sub(1);
    at.and_then(|i| TABLE.lock().meshes.get(i).copied()).unwrap_or(0)
}

/// Counts changes of meaning.
pub fn version() -> u64 {
    VERSION.load(Ordering::Acquire)
}

fn changed() {
    VERSION.fetch_add(1, Ordering::AcqRel);
}

/// The state; on first use `GT_CONFIG` is read.
fn state() -> MutexGuard<'static, Option<State>> {
    let mut guard = STATE.lock();
    if guard.is_none() {
        let mut state = State::default();
        if let Some(path) = std::env::var_os("GT_CONFIG").filter(|v| !v.is_empty()) {
            let path = PathBuf::from(path);
            match state.load(&path) {
                Ok(()) => {}
                Err(error) => state.broken = Some(error.map_message(|m| format!("GT_CONFIG: {m}"))),
            }
        }
        *guard = Some(state);
    }
    guard
}

fn with_state<T>(f: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
    let mut guard = state();
    let state = guard.get_or_insert_default();
    match &state.broken {
        Some(error) => Err(error.clone()),
        None => f(state),
    }
}

/// Fails if `GT_CONFIG` cannot be used: asked when a session begins, so that nobody runs on without it.
pub fn check() -> Result<()> {
    if std::env::var_os("GT_CONFIG").is_none() {
        return Ok(());
    }
    with_state(|_| Ok(()))
}

/// Reads a file; its signals are added, and replace those of the same name.
pub fn load(path: &Path) -> Result<Vec<String>> {
    let mut guard = state();
    let state = guard.get_or_insert_default();
    state.load(path)?;
    state.broken = None;
    changed();
    Ok(state.file.as_ref().map(|f| f.names.clone()).unwrap_or_default())
}

/// Adds one signal, or replaces it.
pub fn register(name: &str, node: Node) -> Result<()> {
    let root = node::called("register_config", Kind::Map(vec![(name.to_string(), node)]));
    with_state(|state| {
        let others: Vec<String> = state.signals.iter().map(|s| s.name.clone()).collect();
        state.add(config::read(&root, &others)?);
        Ok(())
    })?;
    changed();
    Ok(())
}

/// Forgets all signals. Layouts given stay as they are.
pub fn clear() {
    *STATE.lock() = Some(State::default());
    WATCHING.store(false, Ordering::Release);
    changed();
}

/// Every signal as it was written.
pub fn all() -> Result<Vec<(String, Node)>> {
    with_state(|state| Ok(state.signals.iter().map(|s| (s.name.clone(), s.node.clone())).collect()))
}

/// A signal by name.
pub fn find(name: &str) -> Result<Option<Signal>> {
    with_state(|state| Ok(state.signals.iter().find(|s| s.name == name).cloned()))
}

/// A signal by name. One without a meaning is told of once, where there are others it may be a slip of.
pub(super) fn find_or_tell(name: &str) -> Result<Option<Signal>> {
    with_state(|state| {
        let found = state.signals.iter().find(|s| s.name == name).cloned();
        // A stage is named by its pipeline, which may have become something else.
        let stage = || name.rsplit_once('.').filter(|(_, n)| n.parse::<u32>().is_ok());
        let known = || stage().is_some_and(|(of, _)| state.signals.iter().any(|s| s.name == of));
        if found.is_none() && !state.signals.is_empty() && !known() && state.strange.insert(name.to_string())
        {
            let known: Vec<&str> = state.signals.iter().map(|s| s.name.as_str()).collect();
            gt_ir::say!(
                "gt: warning: signal {name:?} is not in the configuration and does nothing; there is {}",
                known.join(", ")
            );
        }
        Ok(found)
    })
}

/// The signals before a file was read again.
pub(super) struct Before {
    signals: Vec<Signal>,
    names: Vec<String>,
}

/// Reads the watched file again if it was edited since; gives what was before. A file that is wrong is told of, and changes
/// nothing.
pub(super) fn reload() -> Option<Before> {
    if !WATCHING.load(Ordering::Relaxed) {
        return None;
    }
    let mut guard = STATE.lock();
    let state = guard.as_mut()?;
    let file = state.file.clone()?;
    let seen = look(&file.path);
    if seen.is_none() || seen == file.seen {
        return None;
    }
    // Whatever comes of it, this content is not tried again.
    if let Some(file) = &mut state.file {
        file.seen = seen;
    }
    let before = Before { signals: state.signals.clone(), names: file.names };
    match state.load(&file.path) {
        Ok(()) => {
            changed();
            Some(before)
        }
        Err(error) => {
            tell_wrong(&error);
            None
        }
    }
}

fn tell_wrong(error: &Error) {
    gt_ir::say!("gt: warning: {error}\ngt: warning: the signals stay as they were until the file is right");
}

/// Takes the file back that was read last: what it says does not fit what it is about.
pub(super) fn take_back(before: Before, error: &Error) {
    if let Some(state) = STATE.lock().as_mut() {
        state.signals = before.signals;
        if let Some(file) = &mut state.file {
            file.names = before.names;
        }
    }
    changed();
    tell_wrong(error);
}

fn look(path: &Path) -> Option<Seen> {
    let found = std::fs::metadata(path).ok()?;
    Some((found.modified().ok()?, found.len()))
}

impl State {
    fn load(&mut self, path: &Path) -> Result<()> {
        // It is watched, and the process may change its folder.
        let path = &std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        let seen = look(path);
        let others: Vec<String> = self.signals.iter().map(|s| s.name.clone()).collect();
        let signals = config::read(&node::read(path)?, &others)?;
        // What the same file gave before and gives no more is gone.
        if let Some(old) = self.file.take_if(|f| f.path == *path) {
            self.signals.retain(|s| !old.names.contains(&s.name));
        }
        let names = signals.iter().map(|s| s.name.clone()).collect();
        self.add(signals);
        self.file = Some(File { path: path.to_path_buf(), seen, names });
        WATCHING.store(true, Ordering::Release);
        Ok(())
    }

    fn add(&mut self, signals: Vec<Signal>) {
        for signal in signals {
            self.strange.remove(&signal.name);
            match self.signals.iter_mut().find(|s| s.name == signal.name) {
                Some(old) => *old = signal,
                None => self.signals.push(signal),
            }
        }
    }
}
