//! Clients, workers and the machine between them, one random step at a time.

use super::client::{Client, Deed, grids};
use super::gang::Gangs;
use super::rng::Rng;
use super::worker::{Transfer, Worker};
use gt_dispatcher::shard::{Ask, divide};
use gt_dispatcher::{Action, Carry, Config, Event, Machine, Vouched, Way};
use gt_ir::Error;
use gt_net::msg::{
    Bytes, ClientMsg, Failure, Payload, SessionId, SessionMsg, Value, WorkerCmd, WorkerId, WorkerMsg,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

const CREDIT: u64 = 8;

/// What may go wrong in a world.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub deaths: bool,
    pub late_workers: bool,
    pub spread: bool,
    pub vanishing: bool,
    pub malice: bool,
    /// Workers have bulk planes, so uploads come by grant.
    pub planes: bool,
    /// Programs of most sessions are divided over all workers.
    pub shard: bool,
}

struct ClientSide {
    client: Client,
    to: VecDeque<ClientMsg>,
    from: VecDeque<SessionMsg>,
}

struct WorkerSide {
    worker: Worker,
    to: VecDeque<WorkerCmd>,
    from: VecDeque<WorkerMsg>,
}

pub struct World {
    rng: Rng,
    kind: Kind,
    machine: Machine,
    now: u64,
    clients: BTreeMap<SessionId, ClientSide>,
    workers: BTreeMap<WorkerId, WorkerSide>,
    transfers: Vec<Transfer>,
    /// Values on their way to clients, in pieces.
    answers: Vec<(SessionId, WorkerId, u64, Bytes)>,
    /// Programs that are being divided.
    plans: Vec<(u64, Arc<Ask>)>,
    gangs: Gangs,
    next_session: u64,
    next_worker: u32,
    n: usize,
    pub events: u64,
    /// Prints every event and what follows from it.
    pub trace: bool,
}

impl World {
    pub fn new(seed: u64) -> World {
        let mut rng = Rng::new(seed);
        let kind = Kind {
            deaths: rng.chance(40),
            late_workers: rng.chance(30),
            spread: rng.chance(60),
            vanishing: rng.chance(40),
            malice: rng.chance(20),
            planes: rng.chance(60),
            shard: rng.chance(50),
        };
        let kind = Kind { spread: kind.spread && !kind.shard, ..kind };
        let config = Config { credit_programs: CREDIT, ..Config::default() };
        let n = 1 + rng.below(if kind.shard { 7 } else { 3 });
        let mut world = World {
            rng,
            kind,
            machine: Machine::new(config),
            now: 0,
            clients: BTreeMap::new(),
            workers: BTreeMap::new(),
            transfers: Vec::new(),
            answers: Vec::new(),
            plans: Vec::new(),
            gangs: Gangs::default(),
            next_session: 1,
            next_worker: 0,
            n,
            events: 0,
            trace: std::env::var_os("GT_SIM_TRACE").is_some(),
        };
        if !kind.late_workers {
            let most = if kind.shard { 6 } else { 3 };
            for _ in 0..1 + world.rng.below(most) {
                world.add_worker();
            }
        }
        world
    }

    fn step(&mut self, event: Event) {
        self.events += 1;
        let (what, mut out) = (format!("{event:?}"), Vec::new());
        self.machine.step(self.now, event, &mut out);
        if self.trace {
            println!("{:6} {what}", self.now);
            out.iter().for_each(|action| println!("           -> {action:?}"));
        }
        for action in out {
            match action {
                Action::ToClient(session, message) => {
                    if let Some(side) = self.clients.get_mut(&session) {
                        side.from.push_back(message);
                    }
                }
                Action::ToWorker(worker, command) => {
                    let side = self.workers.get_mut(&worker).expect("a command to a worker that is gone");
                    side.to.push_back(command);
                }
                Action::Carry(carry) => self.carry(carry),
                Action::Plan { ask, program } => self.plans.push((ask, program)),
                Action::Log(line) => panic!("nobody asked for {line}"),
            }
        }
        if let Err(broken) = self.machine.check_invariants() {
            panic!("{broken} after {what}");
        }
    }

    /// What the shell would do: the bytes pass by the machine.
    fn carry(&mut self, carry: Carry) {
        let Carry { session, tensor, worker, way } = carry;
        let Some(side) = self.clients.get_mut(&session) else { return };
        match way {
            Way::Up { .. } => {
                let data = side.client.carried.remove(&tensor).expect("nothing to carry");
                if let Some(goal) = worker {
                    self.transfers.push(Transfer { from: None, goal, session, tensor, data });
                }
            }
            Way::Down { req } => {
                let worker = worker.expect("a value comes from a worker");
                let source = self.workers.get_mut(&worker).expect("it has just spoken");
                let data = source.worker.carry(session, tensor).expect("nothing to carry");
                self.answers.push((session, worker, req, data));
            }
        }
    }

    /// The last piece of a value comes to its client, or the word that its worker is gone.
    fn finish_answer(&mut self) {
        let at = self.rng.below(self.answers.len());
        let (session, worker, req, data) = self.answers.swap_remove(at);
        let Some(side) = self.clients.get_mut(&session) else { return };
        let gone = Failure { root: 0, instr: None, error: Error::Connection("the worker is gone".into()) };
        let here = self.workers.contains_key(&worker);
        let result = if here { Ok(Payload::Inline(data)) } else { Err(gone) };
        side.client.answer(Value { req, result }, &mut side.to);
    }

    fn add_worker(&mut self) {
        let id = WorkerId(self.next_worker);
        self.next_worker += 1;
        let worker = Worker::new(id, self.kind.planes, self.n);
        let info = worker.info();
        self.workers.insert(id, WorkerSide { worker, to: VecDeque::new(), from: VecDeque::new() });
        self.step(Event::WorkerUp { worker: id, info });
    }

    fn add_client(&mut self) {
        let session = SessionId(self.next_session);
        self.next_session += 1;
        let mut client = Client::new(session, self.n, CREDIT);
        client.losses = self.workers.is_empty();
        self.clients.insert(session, ClientSide { client, to: VecDeque::new(), from: VecDeque::new() });
        let mut vars = Vec::new();
        if self.kind.spread {
            vars.push(("GT_PLACEMENT".to_string(), "spread".to_string()));
        }
        if self.kind.shard && self.rng.chance(75) {
            vars.push(("GT_AUTO_SHARD".to_string(), "1".to_string()));
            vars.push(("GT_SHARD_MIN".to_string(), "0".to_string()));
        }
        self.step(Event::ClientUp { session, name: "sim".into(), vars });
        if self.kind.shard && self.rng.chance(50) {
            let specs = grids();
            let side = self.clients.get_mut(&session).expect("it has just come");
            side.client.grids = specs.len() as u32;
            side.to.push_back(ClientMsg::Signals { specs });
        }
    }

    fn kill_worker(&mut self) {
        let ids: Vec<WorkerId> = self.workers.keys().copied().collect();
        let Some(worker) = self.rng.pick(&ids) else { return };
        // Some of what it said last still arrives.
        let heard = self.rng.below(self.workers[&worker].from.len() + 1);
        for _ in 0..heard {
            self.hear_worker(worker);
        }
        self.workers.remove(&worker);
        for side in self.clients.values_mut() {
            side.client.losses = true;
        }
        self.step(Event::WorkerGone { worker, reason: "killed".into() });
    }

    fn remove_client(&mut self, session: SessionId) {
        let Some(mut side) = self.clients.remove(&session) else { return };
        if self.rng.chance(50) {
            for message in side.to.drain(..).chain([ClientMsg::Bye]) {
                self.step(Event::Client(session, message));
            }
        }
        self.step(Event::ClientGone(session));
    }

    fn hear_worker(&mut self, worker: WorkerId) {
        let message = self.workers.get_mut(&worker).and_then(|side| side.from.pop_front());
        if let Some(message) = message {
            self.step(Event::Worker(worker, message));
        }
    }

    fn hear_client(&mut self, session: SessionId) {
        let message = self.clients.get_mut(&session).and_then(|side| side.to.pop_front());
        if let Some(message) = message {
            if let (ClientMsg::Batch(batch), true) = (&message, self.rng.chance(30)) {
                let vouched = batch.runs.iter().filter_map(|run| Vouched::new(&run.program.structure).ok());
                self.step(Event::Vouched(vouched.collect()));
            }
            self.step(Event::Client(session, message));
        }
    }

    fn tell_client(&mut self, session: SessionId) {
        let Some(side) = self.clients.get_mut(&session) else { return };
        let Some(message) = side.from.pop_front() else { return };
        if let Some(Deed::Put { goal, tensor, data }) = side.client.hear(message, &mut self.rng, &mut side.to)
        {
            self.transfers.push(Transfer { from: None, goal, session, tensor, data });
        }
    }

    fn tell_worker(&mut self, worker: WorkerId) {
        let Some(side) = self.workers.get_mut(&worker) else { return };
        if let Some(command) = side.to.pop_front() {
            side.worker.handle(command, &mut self.rng, &mut side.from, &mut self.transfers, &mut self.gangs);
        }
    }

    fn run_worker(&mut self, worker: WorkerId) -> bool {
        let Some(side) = self.workers.get_mut(&worker) else { return false };
        side.worker.step(&mut self.rng, &mut side.from, &mut self.transfers, &mut self.gangs)
    }

    fn finish_transfer(&mut self) {
        let at = self.rng.below(self.transfers.len());
        let Transfer { from, goal, session, tensor, data } = self.transfers.swap_remove(at);
        let side = self.workers.get_mut(&goal);
        let arrived = side.is_some_and(|side| side.worker.put(session, tensor, &data, &mut side.from));
        if let Some(source) = from.and_then(|id| self.workers.get_mut(&id)) {
            let result = Ok((!arrived).then_some(data));
            source.from.push_back(WorkerMsg::Moved { session, tensor, goal: Some(goal), result });
        }
    }

    /// A program that was to be divided has been.
    fn finish_plan(&mut self) {
        let at = self.rng.below(self.plans.len());
        let (ask, program) = self.plans.swap_remove(at);
        let result = divide(&program).map(|d| d.map(Arc::new));
        self.step(Event::Planned { ask, result });
    }

    fn tick(&mut self, by: u64) {
        self.now += by;
        self.step(Event::Tick);
    }

    /// Lets something that is under way go on, chosen at random; false if there is nothing.
    fn advance(&mut self) -> bool {
        let clients: Vec<SessionId> = self.clients.keys().copied().collect();
        let workers: Vec<WorkerId> = self.workers.keys().copied().collect();
        let mut ways: Vec<(u8, u64)> = Vec::new();
        for id in &clients {
            let side = &self.clients[id];
            ways.extend((!side.to.is_empty()).then_some((0, id.0)));
            ways.extend((!side.from.is_empty()).then_some((1, id.0)));
        }
        for id in &workers {
            let side = &self.workers[id];
            ways.extend((!side.to.is_empty()).then_some((2, id.0 as u64)));
            ways.extend((!side.from.is_empty()).then_some((3, id.0 as u64)));
            ways.push((4, id.0 as u64));
        }
        ways.extend((!self.transfers.is_empty()).then_some((5, 0)));
        ways.extend((!self.answers.is_empty()).then_some((6, 0)));
        ways.extend((!self.plans.is_empty()).then_some((7, 0)));
        while !ways.is_empty() {
            let (way, id) = ways.swap_remove(self.rng.below(ways.len()));
            match way {
                0 => self.hear_client(SessionId(id)),
                1 => self.tell_client(SessionId(id)),
                2 => self.tell_worker(WorkerId(id as u32)),
                3 => self.hear_worker(WorkerId(id as u32)),
                4 if !self.run_worker(WorkerId(id as u32)) => continue,
                4 => {}
                5 => self.finish_transfer(),
                6 => self.finish_answer(),
                _ => self.finish_plan(),
            }
            return true;
        }
        false
    }

    /// One random thing happens.
    pub fn turn(&mut self) {
        let sessions: Vec<SessionId> = self.clients.keys().copied().collect();
        match self.rng.below(1000) {
            0..4 if self.kind.deaths => self.kill_worker(),
            4..12 if self.workers.len() < 4 && (self.kind.deaths || self.kind.late_workers) => {
                self.add_worker()
            }
            12..16 if self.kind.vanishing => {
                if let Some(session) = self.rng.pick(&sessions) {
                    self.remove_client(session);
                }
            }
            16..36 if self.clients.len() < 4 => self.add_client(),
            36..38 if self.kind.malice => {
                if let Some(side) = self.rng.pick(&sessions).and_then(|id| self.clients.get_mut(&id)) {
                    side.client.misbehave(&mut self.rng, &mut side.to);
                }
            }
            38..60 => {
                let by = self.rng.below(120) as u64;
                self.tick(by);
            }
            60..160 => {
                let inline_only = !self.kind.planes;
                let side = self.rng.pick(&sessions).and_then(|id| self.clients.get_mut(&id));
                if let Some(side) = side.filter(|side| !side.client.malicious) {
                    side.client.losses |= self.workers.is_empty();
                    side.client.act(&mut self.rng, &mut side.to, inline_only);
                }
            }
            _ => {
                self.advance();
            }
        }
    }

    /// Lets everything come to rest, then checks that nothing was forgotten and nothing is left behind.
    pub fn settle(&mut self) {
        for side in self.clients.values_mut() {
            side.client.finish(&mut side.to);
        }
        for side in self.clients.values_mut().filter(|_| self.workers.is_empty()) {
            side.client.losses = true;
            side.client.sync(&mut side.to);
        }
        for _ in 0..8 {
            while self.advance() {}
            self.tick(6_000);
        }
        while self.advance() {}
        for side in self.clients.values() {
            if side.client.malicious {
                assert!(side.client.fatal.is_some(), "{:?} went unpunished", side.client.id);
                continue;
            }
            side.client.check_quiet();
            for other in self.workers.values() {
                for tensor in other.worker.tensors(side.client.id) {
                    let dropped = !side.client.live.contains(&tensor);
                    assert!(!dropped, "{tensor:?} of {:?} is still on {:?}", side.client.id, other.worker.id);
                }
                for prefix in other.worker.prefixes(side.client.id) {
                    let stray = side.client.strays.contains(&prefix);
                    assert!(
                        stray,
                        "prefix {prefix} of {:?} is still on {:?}",
                        side.client.id, other.worker.id
                    );
                }
            }
        }
        let sessions: Vec<SessionId> = self.clients.keys().copied().collect();
        for session in sessions {
            self.remove_client(session);
        }
        while self.advance() {}
        assert_eq!(self.machine.count().0, 0);
        for side in self.workers.values() {
            assert_eq!(side.worker.sessions(), vec![], "sessions left on {:?}", side.worker.id);
        }
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }
}
