//! A dispatcher and worker in one: programs run at once, by the reference.
#![allow(dead_code)]

use gt_client::session::OnMsg;
use gt_client::{Link, Session, Settings, Tensor, current};
use gt_ir::signal::SignalSpec;
use gt_ir::{Arg, DType, Error, HostTensor, Operand, Program, Result, Scalar, Slot, TensorId, Ty, reference};
use gt_net::msg::{
    Batch, ClientMsg, Failure, Payload, Prefix, Run, SessionId, SessionMsg, SessionWelcome, Stats, Value,
};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Carries out what a session sends, keeping everything in one table.
pub struct TestLink {
    state: Mutex<State>,
    on_msg: Mutex<OnMsg>,
}

#[derive(Default)]
struct State {
    table: HashMap<TensorId, Result<HostTensor, Failure>>,
    programs: Vec<Program>,
    /// Every prefix, with the inputs it found.
    prefixes: Vec<(Prefix, Vec<HostTensor>)>,
    /// The prefix each program was sent with.
    begun: Vec<Option<u64>>,
    forgotten: Vec<u64>,
    signals: Vec<SignalSpec>,
    completed: u64,
}

impl State {
    /// A prefix is well formed, and begins with tensors that are there.
    fn begin(&mut self, prefix: Prefix) {
        let program = &prefix.program;
        let types = program.structure.check().expect("a well-formed structure");
        program.check_binding(&types).expect("a binding that fits");
        assert!(program.frees.is_empty() && program.structure.inputs.iter().all(|i| !i.dies));
        let input = |id| match self.table.get(id) {
            Some(Ok(x)) => x.clone(),
            _ => panic!("a prefix reads {id:?}, which has no value"),
        };
        let inputs = program.inputs.iter().map(input).collect();
        self.prefixes.push((prefix, inputs));
    }

    /// A program goes on from where its prefix ended: same inputs, same instructions, and nothing missing.
    fn go_on(&self, run: &Run) {
        for (prefix, inputs) in self.prefixes.iter().filter(|(p, _)| Some(p.id) == run.prefix) {
            let (begun, whole) = (&prefix.program, &run.program);
            assert!(whole.inputs.starts_with(&begun.inputs));
            for (id, x) in begun.inputs.iter().zip(inputs) {
                assert!(
                    matches!(self.table.get(id), Some(Ok(now)) if now.data == x.data),
                    "{id:?} has changed"
                );
            }
            let (k, n) = (begun.inputs.len() as u32, whole.inputs.len() as u32);
            let len = begun.structure.instrs.len() as u32;
            let same = |(a, b): (&Arg, &Arg)| match (*a, *b) {
                (Arg::Value(v), Arg::Value(w)) => w == if v < k { v } else { v - k + n },
                (Arg::Const(x), Arg::Slot(j)) => whole.slots[j as usize] == Slot::Num(x),
                (a, b) => a == b,
            };
            for (a, b) in begun.structure.instrs.iter().zip(&whole.structure.instrs) {
                assert!(a.op == b.op && a.args.iter().zip(&b.args).all(same), "{a:?} became {b:?}");
            }
            let rest = whole.structure.instrs[len as usize..].iter().flat_map(|i| &i.args);
            let read = rest.filter_map(|a| if let Arg::Value(v) = a { Some(*v) } else { None });
            for v in read.chain(whole.structure.outs.iter().copied()).filter(|v| (n..n + len).contains(v)) {
                assert!(begun.structure.outs.contains(&(v - n + k)), "value {v} was not kept");
            }
        }
    }

    fn run(&mut self, run: &Run) -> Option<(u64, Failure)> {
        self.go_on(run);
        self.begun.push(run.prefix);
        let Run { seq, program, .. } = run;
        let seq = *seq;
        self.programs.push(program.clone());
        self.completed = seq;
        let mut inputs = Vec::new();
        let mut poison = None;
        for id in &program.inputs {
            match self.table.get(id) {
                Some(Ok(x)) => inputs.push(x.clone()),
                Some(Err(failure)) => poison = Some(failure.clone()),
                None => panic!("program {seq} reads {id:?}, which was freed or never written"),
            }
        }
        let result =
            match poison {
                Some(failure) => Err(failure),
                None => {
                    assert_eq!(program.structure.key(), program.key, "the key belongs to another structure");
                    let types = program.structure.check().expect("a well-formed structure");
                    program.check_binding(&types).expect("a binding that fits");
                    reference::run(&program.structure, &inputs, &program.slots)
                        .map_err(|(i, error)| Failure { root: seq, instr: Some(i as u32), error })
                }
            };
        match result {
            Ok(outs) => {
                for (id, x) in program.outs.iter().zip(outs) {
                    assert!(self.table.insert(*id, Ok(x)).is_none(), "{id:?} is written twice");
                }
                self.free(&program.frees);
                None
            }
            // What a failed program would have freed is the client's to free again.
            Err(failure) => {
                for id in &program.outs {
                    self.table.insert(*id, Err(failure.clone()));
                }
                Some((seq, failure))
            }
        }
    }

    fn free(&mut self, ids: &[TensorId]) {
        for id in ids {
            assert!(self.table.remove(id).is_some(), "{id:?} is freed twice or was never written");
        }
    }
}

impl TestLink {
    /// Ids of tensors that have not been freed.
    pub fn alive(&self) -> usize {
        self.state.lock().unwrap().table.len()
    }

    /// Every program that was run.
    pub fn programs(&self) -> Vec<Program> {
        self.state.lock().unwrap().programs.clone()
    }

    /// Every prefix that was sent.
    pub fn prefixes(&self) -> Vec<Prefix> {
        self.state.lock().unwrap().prefixes.iter().map(|(prefix, _)| prefix.clone()).collect()
    }

    /// The prefix each program was sent with.
    pub fn begun(&self) -> Vec<Option<u64>> {
        self.state.lock().unwrap().begun.clone()
    }

    /// The prefixes that were given up.
    pub fn forgotten(&self) -> Vec<u64> {
        self.state.lock().unwrap().forgotten.clone()
    }

    /// The signals told so far.
    pub fn signals(&self) -> Vec<SignalSpec> {
        self.state.lock().unwrap().signals.clone()
    }

    /// The plan keys of the programs, in order.
    pub fn keys(&self) -> Vec<u64> {
        self.programs().iter().map(|p| p.key).collect()
    }

    /// Op names of the last program.
    pub fn last_ops(&self) -> Vec<&'static str> {
        let programs = self.programs();
        let last = programs.last().expect("a program was run");
        last.structure.instrs.iter().map(|i| i.op.text()).collect()
    }

    fn answer(&self, msg: SessionMsg) {
        (self.on_msg.lock().unwrap())(msg);
    }
}

impl Link for TestLink {
    fn send(&self, msg: ClientMsg) -> Result<()> {
        let mut state = self.state.lock().unwrap();
        let reply = match msg {
            ClientMsg::Batch(Batch { runs, fetches, frees }) => {
                let failures = runs.iter().filter_map(|r| state.run(r)).collect();
                let values = fetches
                    .into_iter()
                    .map(|f| Value {
                        req: f.req,
                        result: match state.table.get(&f.tensor) {
                            Some(Ok(x)) => Ok(Payload::Inline(Arc::new(x.data.clone()))),
                            Some(Err(failure)) => Err(failure.clone()),
                            None => panic!("fetch of {:?}, which was freed or never written", f.tensor),
                        },
                    })
                    .collect();
                state.free(&frees);
                Some(SessionMsg::Update { completed: state.completed, values, failures })
            }
            ClientMsg::Upload { tensor, ty, data } => {
                let data = data.expect("an upload with its bytes").to_vec();
                state.table.insert(tensor, Ok(HostTensor { ty, data }));
                None
            }
            ClientMsg::Sync { .. } => Some(SessionMsg::Update {
                completed: state.completed,
                values: Vec::new(),
                failures: Vec::new(),
            }),
            ClientMsg::Stats { req } => Some(SessionMsg::Stats { req, stats: Stats::default() }),
            ClientMsg::Watch { .. }
            | ClientMsg::Recent
            | ClientMsg::Tidy { .. }
            | ClientMsg::Lines { .. } => None,
            ClientMsg::Tensors { req } => Some(SessionMsg::Tensors { req, tensors: Vec::new() }),
            ClientMsg::Prefix(prefix) => {
                state.begin(prefix);
                None
            }
            ClientMsg::Signals { specs } => {
                state.signals.extend(specs);
                None
            }
            ClientMsg::Forget { prefix } => {
                state.forgotten.push(prefix);
                None
            }
            ClientMsg::Relay { .. }
            | ClientMsg::Carry { .. }
            | ClientMsg::Withdraw { .. }
            | ClientMsg::FetchRelay { .. }
            | ClientMsg::Bye => None,
        };
        drop(state);
        if let Some(reply) = reply {
            self.answer(reply);
        }
        Ok(())
    }

    fn close(&self) {}

    fn peer(&self) -> String {
        "test".into()
    }
}

pub fn settings() -> Settings {
    Settings { batch: 4096, prefix: Arc::default(), sync: false, host: false, debug: false, log: None }
}

/// A session over a test link.
pub fn open(settings: Settings) -> (Arc<Session>, Arc<TestLink>) {
    let mut link = None;
    let session = Session::open(
        Box::new(|on_msg| {
            let made = Arc::new(TestLink { state: Mutex::default(), on_msg: Mutex::new(on_msg) });
            link = Some(made.clone());
            let welcome = SessionWelcome { session: SessionId(1), workers: 1, credit_programs: 64 };
            Ok((made as Arc<dyn Link>, welcome))
        }),
        settings,
    )
    .expect("a session");
    (session, link.expect("a link"))
}

/// Leaves the session when dropped.
struct Entered;

impl Drop for Entered {
    fn drop(&mut self) {
        current::leave();
    }
}

/// Runs `f` inside a session of its own and checks that it freed all it made.
pub fn with(settings: Settings, f: impl FnOnce(&Arc<Session>, &TestLink)) {
    let (session, link) = open(settings);
    current::enter(session.clone());
    let entered = Entered;
    f(&session, &link);
    session.synchronize().expect("nothing failed unseen");
    assert_eq!(link.alive(), 0, "tensors left behind");
    drop(entered);
}

/// Runs `f` inside a session with the usual settings.
pub fn run(f: impl FnOnce(&TestLink)) {
    with(settings(), |_, link| f(link));
}

pub fn f64s(shape: &[usize], elements: &[f64]) -> Tensor {
    Tensor::from_f64s(shape, elements).unwrap()
}

pub fn f32s(shape: &[usize], elements: &[f64]) -> Tensor {
    made(DType::F32, shape, elements)
}

pub fn i64s(shape: &[usize], elements: &[i64]) -> Tensor {
    Tensor::from_i64s(shape, elements).unwrap()
}

pub fn bools(shape: &[usize], elements: &[bool]) -> Tensor {
    made(DType::Bool, shape, &elements.iter().map(|&b| b as u8 as f64).collect::<Vec<_>>())
}

/// A tensor of any type from doubles.
pub fn made(dtype: DType, shape: &[usize], elements: &[f64]) -> Tensor {
    let host = HostTensor::from_f64s(dtype, shape, elements);
    gt_client::ops::create::from_bytes(Ty::new(dtype, shape), host.data).unwrap()
}

pub fn range(shape: &[usize]) -> Tensor {
    let n: usize = shape.iter().product();
    f64s(shape, &(0..n).map(|i| i as f64).collect::<Vec<_>>())
}

pub fn leaf(t: Tensor) -> Tensor {
    t.requiring_grad().unwrap()
}

pub fn num(x: f64) -> Operand<Tensor> {
    Operand::Num(Scalar::Float(x))
}

pub fn int(x: i64) -> Operand<Tensor> {
    Operand::Num(Scalar::Int(x))
}

pub fn val(t: &Tensor) -> Operand<Tensor> {
    t.into()
}

pub fn numbers(t: &Tensor) -> Vec<f64> {
    t.to_f64s().unwrap()
}

pub fn dims(t: &Tensor) -> Vec<usize> {
    t.shape().to_vec()
}

/// Compares elements with an answer; NaN equals NaN.
#[track_caller]
pub fn same(t: &Tensor, expected: &[f64]) {
    let got = numbers(t);
    let ok = got.len() == expected.len()
        && got.iter().zip(expected).all(|(&a, &b)| gt_ir::host::close_f64(a, b, 1e-6, 1e-7));
    assert!(ok, "got {got:?}, expected {expected:?}");
}

/// Compares shape and elements with an answer.
#[track_caller]
pub fn is(t: &Tensor, shape: &[usize], expected: &[f64]) {
    assert_eq!(dims(t), shape);
    same(t, expected);
}

#[track_caller]
pub fn fails<T>(result: Result<T>, words: &str) -> Error {
    match result {
        Ok(_) => panic!("expected an error with {words:?}"),
        Err(e) => {
            assert!(e.to_string().contains(words), "got {e:?}, expected {words:?}");
            e
        }
    }
}
