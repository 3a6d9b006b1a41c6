//! The in-process mode: the same machine, under a lock, driven by whoever has something to say.

use crate::machine::{Action, Config, Event, Machine, Vouched};
use crate::shard::divide_aside;
use gt_ir::{Error, Result};
use gt_net::msg::{
    ClientMsg, SessionId, SessionMsg, SessionWelcome, WorkerCmd, WorkerId, WorkerInfo, WorkerMsg,
};
use gt_sync::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Takes a worker's commands. Called under the hub's lock: it must not wait, nor call the hub.
pub type ToWorker = Box<dyn Fn(WorkerCmd) + Send + Sync>;
/// Takes a client's messages. Called under the hub's lock: it must not wait, nor call the hub.
pub type ToClient = Box<dyn FnMut(SessionMsg) + Send>;
/// Takes the lines of the hub's own instruction log.
pub type ToLog = Box<dyn FnMut(&str) + Send>;

/// How often the machine is told that time passes, while it wants to know.
const TICK: Duration = Duration::from_millis(20);

/// A dispatcher inside this process. Clones share it.
#[derive(Clone)]
pub struct LocalHub {
    hub: Arc<Hub>,
}

struct Hub {
    state: Mutex<State>,
    clock: Arc<Clock>,
}

struct State {
    machine: Machine,
    started: Instant,
    workers: HashMap<WorkerId, ToWorker>,
    clients: HashMap<SessionId, ToClient>,
    log: Option<ToLog>,
    next_worker: u32,
    next_session: u64,
    actions: Vec<Action>,
    ticking: bool,
}

/// Wakes the thread that ticks. Without a wish for ticks it sleeps for good.
#[derive(Default)]
struct Clock {
    wanted: Mutex<Wanted>,
    changed: Condvar,
}

#[derive(Default, PartialEq)]
enum Wanted {
    #[default]
    Nothing,
    Ticks,
    End,
}

impl LocalHub {
    /// A dispatcher without workers.
    pub fn new() -> LocalHub {
        let debug = gt_ir::env::on("GT_DEBUG_DISPATCHER");
        let say: ToLog = Box::new(|line| gt_ir::say!("gt dispatcher: {line}"));
        static HUBS: AtomicU64 = AtomicU64::new(1);
        let cluster = HUBS.fetch_add(1, Ordering::Relaxed);
        let config = Config { address: "this process".into(), log: debug, cluster, ..Config::default() };
        LocalHub::with(config, debug.then_some(say))
    }

    /// A dispatcher with other limits, and with a place for its own log when `config.log` is set.
    pub fn with(config: Config, log: Option<ToLog>) -> LocalHub {
        let state = State {
            machine: Machine::new(config),
            started: Instant::now(),
            workers: HashMap::new(),
            clients: HashMap::new(),
            log,
            next_worker: 0,
            next_session: 1,
            actions: Vec::new(),
            ticking: false,
        };
        LocalHub { hub: Arc::new(Hub { state: Mutex::new(state), clock: Arc::default() }) }
    }

    /// Registers a worker whose commands go to `handle`; its messages come back through `worker_msg`.
    pub fn add_worker(&self, info: WorkerInfo, handle: ToWorker) -> WorkerId {
        let mut state = self.hub.state.lock();
        let worker = WorkerId(state.next_worker);
        state.next_worker += 1;
        state.workers.insert(worker, handle);
        self.hub.step(&mut state, Event::WorkerUp { worker, info });
        worker
    }

    /// Registers a worker that is made from its way back to the hub; `make` gives what takes its commands.
    pub fn attach(&self, info: WorkerInfo, make: impl FnOnce(LocalWorker) -> ToWorker) -> WorkerId {
        let id = {
            let mut state = self.hub.state.lock();
            state.next_worker += 1;
            WorkerId(state.next_worker - 1)
        };
        let handle = make(LocalWorker { hub: Arc::downgrade(&self.hub), id });
        let mut state = self.hub.state.lock();
        state.workers.insert(id, handle);
        self.hub.step(&mut state, Event::WorkerUp { worker: id, info });
        id
    }

    /// Takes what a worker says.
    pub fn worker_msg(&self, worker: WorkerId, message: WorkerMsg) {
        let mut state = self.hub.state.lock();
        if state.workers.contains_key(&worker) {
            self.hub.step(&mut state, Event::Worker(worker, message));
        }
    }

    /// Forgets a worker; its tensors are lost.
    pub fn remove_worker(&self, worker: WorkerId, reason: &str) {
        let mut state = self.hub.state.lock();
        let handle = state.workers.remove(&worker);
        if handle.is_some() {
            self.hub.step(&mut state, Event::WorkerGone { worker, reason: reason.into() });
        }
        drop(state);
    }

    /// Opens a session.
    pub fn connect(&self, vars: Vec<(String, String)>, on_msg: ToClient) -> LocalClient {
        let mut state = self.hub.state.lock();
        let session = SessionId(state.next_session);
        state.next_session += 1;
        let welcome = state.machine.welcome(session);
        state.clients.insert(session, on_msg);
        let name = format!("in-process {}", session.0);
        self.hub.step(&mut state, Event::ClientUp { session, name, vars });
        LocalClient { hub: self.hub.clone(), welcome }
    }

    /// Sessions and workers connected now.
    pub fn count(&self) -> (usize, usize) {
        self.hub.state.lock().machine.count()
    }
}

impl Default for LocalHub {
    fn default() -> Self {
        LocalHub::new()
    }
}

impl Hub {
    fn step(self: &Arc<Hub>, state: &mut State, event: Event) {
        let elapsed = state.started.elapsed();
        let now = elapsed.as_millis() as u64;
        state.machine.clock(elapsed.as_micros() as u64);
        let mut actions = std::mem::take(&mut state.actions);
        state.machine.step(now, event, &mut actions);
        for action in actions.drain(..) {
            match action {
                Action::ToClient(session, message) => {
                    if let Some(client) = state.clients.get_mut(&session) {
                        client(message);
                    }
                }
                Action::ToWorker(worker, command) => {
                    if let Some(handle) = state.workers.get(&worker) {
                        handle(command);
                    }
                }
                // Workers of this process have no bulk plane: their values ride in messages.
                Action::Carry(_) => {}
                Action::Plan { ask, program } => {
                    let hub = Arc::downgrade(self);
                    let started = divide_aside(program, move |result| {
                        if let Some(hub) = hub.upgrade() {
                            hub.step(&mut hub.state.lock(), Event::Planned { ask, result });
                        }
                    });
                    if let Err(error) = started {
                        self.step(state, Event::Planned { ask, result: Err(error) });
                    }
                }
                Action::Log(line) => {
                    if let Some(log) = &mut state.log {
                        log(&line);
                    }
                }
            }
        }
        state.actions = actions;
        if state.machine.wants_tick() {
            self.want_ticks(state);
        }
    }

    fn want_ticks(self: &Arc<Hub>, state: &mut State) {
        if !state.ticking {
            let (hub, clock) = (Arc::downgrade(self), self.clock.clone());
            let thread = std::thread::Builder::new().name("gt-clock".into());
            state.ticking = thread.spawn(move || tick(&hub, &clock)).is_ok();
        }
        let mut wanted = self.clock.wanted.lock();
        if *wanted == Wanted::Nothing {
            *wanted = Wanted::Ticks;
            self.clock.changed.notify_one();
        }
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        *self.clock.wanted.lock() = Wanted::End;
        self.clock.changed.notify_one();
    }
}

fn tick(hub: &Weak<Hub>, clock: &Clock) {
    loop {
        let mut wanted = clock.wanted.lock();
        while *wanted == Wanted::Nothing {
            clock.changed.wait(&mut wanted);
        }
        if *wanted == Wanted::Ticks {
            clock.changed.wait_for(&mut wanted, TICK);
        }
        if *wanted == Wanted::End {
            return;
        }
        *wanted = Wanted::Nothing;
        drop(wanted);
        let Some(hub) = hub.upgrade() else { return };
        hub.step(&mut hub.state.lock(), Event::Tick);
    }
}

/// A worker's way back to its hub. It does not keep the hub alive.
pub struct LocalWorker {
    hub: Weak<Hub>,
    pub id: WorkerId,
}

impl LocalWorker {
    /// Tells the hub something; once the hub is gone, nobody.
    pub fn send(&self, message: WorkerMsg) {
        if let Some(hub) = self.hub.upgrade() {
            LocalHub { hub }.worker_msg(self.id, message);
        }
    }
}

/// One client of a `LocalHub`. Dropping it ends the session.
pub struct LocalClient {
    hub: Arc<Hub>,
    welcome: SessionWelcome,
}

impl LocalClient {
    /// What the dispatcher said at the start.
    pub fn welcome(&self) -> &SessionWelcome {
        &self.welcome
    }

    /// Sends a message; it has been dealt with when this returns.
    pub fn send(&self, message: ClientMsg) -> Result<()> {
        let mut state = self.hub.state.lock();
        let mut vouched = Vec::new();
        if !state.machine.is_quick(&message) {
            // Others have their turn while this thread looks at what is new.
            drop(state);
            vouched = Vouched::all(&message);
            state = self.hub.state.lock();
        }
        if !state.clients.contains_key(&self.welcome.session) {
            return Err(Error::Connection("this session is closed".into()));
        }
        if !vouched.is_empty() {
            self.hub.step(&mut state, Event::Vouched(vouched));
        }
        self.hub.step(&mut state, Event::Client(self.welcome.session, message));
        Ok(())
    }

    /// Ends the session; later sends are refused.
    pub fn close(&self) {
        let mut state = self.hub.state.lock();
        let client = state.clients.remove(&self.welcome.session);
        if client.is_some() {
            self.hub.step(&mut state, Event::ClientGone(self.welcome.session));
        }
        drop(state);
        // What the callback holds is dropped with no lock held.
        drop(client);
    }
}

impl Drop for LocalClient {
    fn drop(&mut self) {
        self.close();
    }
}
