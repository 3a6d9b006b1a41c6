//! Tensors that stay in this process: what a data-loader worker makes (C12). No dispatcher, no worker, no thread.

use gt_client::session::{Connect, OnMsg};
use gt_client::{Link, Session, Settings};
use gt_ir::{Error, Program, Result, Structure, TensorId, Ty};
use gt_net::msg::{
    Batch, ClientMsg, Failure, Payload, Run, SessionId, SessionMsg, SessionWelcome, Stats, Value,
};
use gt_sync::Mutex;
use gt_worker::backend::{Backend, Buffer, Effort, HostBytes, Plan};
use gt_worker::backends::cpu::CpuBackend;
use std::collections::HashMap;
use std::sync::Arc;

/// Plans kept at most: a loader does the same for every item.
const MAX_PLANS: usize = 256;

/// Opens a session whose programs run at once, on the calling thread.
pub fn connect() -> Result<Arc<Session>> {
    let settings = Settings { host: true, prefix: Arc::default(), log: None, ..Settings::from_env()? };
    let connect: Box<Connect> = Box::new(|on_msg: OnMsg| -> Result<(Arc<dyn Link>, SessionWelcome)> {
        let table =
            Table { backend: CpuBackend::new(Some(1)), tensors: HashMap::new(), plans: HashMap::new() };
        let link = HostLink { table: Mutex::new(table), on_msg: Mutex::new(on_msg) };
        let welcome = SessionWelcome { session: SessionId(0), workers: 0, credit_programs: 64 };
        Ok((Arc::new(link) as Arc<dyn Link>, welcome))
    });
    Session::open(connect, settings)
}

struct HostLink {
    table: Mutex<Table>,
    on_msg: Mutex<OnMsg>,
}

/// A plan with the structure it was made for and the types of its live-outs.
type Made = (Arc<Structure>, Arc<dyn Plan>, Vec<Ty>);

struct Table {
    backend: CpuBackend,
    tensors: HashMap<TensorId, Result<(Ty, Buffer), Failure>>,
    plans: HashMap<u64, Made>,
}

impl Table {
    fn find(&self, id: TensorId) -> Result<(Ty, Buffer), Failure> {
        self.tensors.get(&id).cloned().unwrap_or_else(|| {
            let error = Error::Value(format!("tensor {} does not exist", id.0));
            Err(Failure { root: 0, instr: None, error })
        })
    }

    fn plan(&mut self, program: &Program) -> Result<&Made> {
        let known = self.plans.get(&program.key).is_some_and(|(s, ..)| *s == program.structure);
        if !known {
            if self.plans.len() >= MAX_PLANS {
                self.plans.clear();
            }
            let structure = program.structure.clone();
            let types = structure.check()?;
            let plan = self.backend.compile(&structure, &types, Effort::Quick)?;
            let outs = structure.outs.iter().map(|v| types[*v as usize].clone()).collect();
            self.plans.insert(program.key, (structure, plan, outs));
        }
        self.plans.get(&program.key).ok_or_else(|| Error::Runtime("the plan is gone".into()))
    }

    /// Runs a program: its results, or why there are none.
    fn work(&mut self, seq: u64, program: &Program) -> Result<Vec<(Ty, Buffer)>, Failure> {
        let failure = |instr, error| Failure { root: seq, instr, error };
        let mut inputs = Vec::with_capacity(program.inputs.len());
        for id in &program.inputs {
            inputs.push(self.find(*id)?.1);
        }
        let (_, plan, types) = self.plan(program).map_err(|e| failure(None, e))?;
        let outs = plan.run(&mut inputs, &program.slots).map_err(|e| failure(e.instr, e.error))?;
        Ok(types.iter().cloned().zip(outs).collect())
    }

    fn run(&mut self, run: Run) -> Option<(u64, Failure)> {
        let Run { seq, program, .. } = run;
        match self.work(seq, &program) {
            Ok(outs) => {
                self.tensors.extend(program.outs.iter().copied().zip(outs.into_iter().map(Ok)));
                self.free(&program.frees);
                None
            }
            Err(failure) => {
                self.tensors.extend(program.outs.iter().map(|id| (*id, Err(failure.clone()))));
                Some((seq, failure))
            }
        }
    }

    fn value(&self, id: TensorId) -> Result<Payload, Failure> {
        let (_, buffer) = self.find(id)?;
        let bytes = self.backend.download(&buffer);
        bytes.map(Payload::Inline).map_err(|error| Failure { root: 0, instr: None, error })
    }

    fn free(&mut self, ids: &[TensorId]) {
        for id in ids {
            self.tensors.remove(id);
        }
    }
}

impl Link for HostLink {
    fn send(&self, msg: ClientMsg) -> Result<()> {
        let mut table = self.table.lock();
        let answer = match msg {
            ClientMsg::Batch(Batch { runs, fetches, frees }) => {
                let completed = runs.last().map_or(0, |run| run.seq);
                let failures = runs.into_iter().filter_map(|run| table.run(run)).collect();
                let values =
                    fetches.iter().map(|f| Value { req: f.req, result: table.value(f.tensor) }).collect();
                table.free(&frees);
                SessionMsg::Update { completed, values, failures }
            }
            ClientMsg::Upload { tensor, ty, data: Some(data) } => {
                let buffer = table.backend.upload(&ty, HostBytes::Owned(data))?;
                table.tensors.insert(tensor, Ok((ty, buffer)));
                return Ok(());
            }
            ClientMsg::Stats { req } => SessionMsg::Stats { req, stats: Stats::default() },
            // Everything has finished when `send` returns, and nothing is sent ahead.
            _ => return Ok(()),
        };
        drop(table);
        (self.on_msg.lock())(answer);
        Ok(())
    }

    fn close(&self) {
        self.table.lock().tensors.clear();
    }

    fn peer(&self) -> String {
        "this data-loader worker".into()
    }
}
