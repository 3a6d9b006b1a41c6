//! A small device for tests: the reference evaluator over plain vectors, with a memory limit, and programs to run.
#![allow(dead_code)]

use gt_ir::{
    Arg, Binary, DType, Error, HostTensor, Input, Instr, Op, Program, Result, Scalar, Shape, Slot, Structure,
    TensorId, Ty,
};
use gt_worker::backend::{Backend, Buffer, Effort, HostBytes, Memory, Plan, PlanError};
use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Multiplying by this number makes a program panic.
pub const PANIC: i64 = 666;

pub struct TestBackend {
    limit: u64,
    used: Arc<AtomicU64>,
    peak: AtomicU64,
    /// Quick plans can be improved.
    pub improves: AtomicBool,
    /// Plans made: how, and of how many instructions.
    pub made: Mutex<Vec<(Effort, usize)>>,
    /// Held by a test, it keeps full plans from being made.
    pub gate: Mutex<()>,
}

impl TestBackend {
    pub fn new(limit: u64) -> Arc<TestBackend> {
        Arc::new(TestBackend {
            limit,
            used: Arc::default(),
            peak: AtomicU64::new(0),
            improves: AtomicBool::new(false),
            made: Mutex::default(),
            gate: Mutex::default(),
        })
    }

    pub fn used(&self) -> u64 {
        self.used.load(Ordering::SeqCst)
    }
}

struct TestMemory {
    bytes: Arc<Vec<u8>>,
    used: Arc<AtomicU64>,
}

impl TestMemory {
    fn make(used: &Arc<AtomicU64>, bytes: Arc<Vec<u8>>) -> Buffer {
        used.fetch_add(bytes.len() as u64, Ordering::SeqCst);
        Arc::new(TestMemory { bytes, used: used.clone() })
    }
}

impl Drop for TestMemory {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes.len() as u64, Ordering::SeqCst);
    }
}

impl Memory for TestMemory {
    fn bytes(&self) -> usize {
        self.bytes.len()
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

struct TestPlan {
    structure: Arc<Structure>,
    reserve: usize,
    improves: bool,
    used: Arc<AtomicU64>,
}

fn bytes_of(buffer: &Buffer) -> &Arc<Vec<u8>> {
    &buffer.as_any().downcast_ref::<TestMemory>().expect("a buffer of this backend").bytes
}

impl Plan for TestPlan {
    fn run(&self, inputs: &mut Vec<Buffer>, slots: &[Slot]) -> Result<Vec<Buffer>, PlanError> {
        let host: Vec<HostTensor> = inputs
            .iter()
            .zip(&self.structure.inputs)
            .map(|(buffer, input)| HostTensor { ty: input.ty.clone(), data: bytes_of(buffer).to_vec() })
            .collect();
        for (buffer, input) in inputs.iter().zip(&self.structure.inputs) {
            assert!(!input.dies || Arc::strong_count(buffer) == 1, "a dying input is shared");
        }
        if self.structure.instrs.iter().any(|i| i.args.contains(&Arg::Const(Scalar::Int(PANIC)))) {
            inputs.clear();
            panic!("told to panic");
        }
        let outs = gt_ir::reference::run(&self.structure, &host, slots)
            .map_err(|(i, error)| PlanError { instr: Some(i as u32), error })?;
        Ok(outs.into_iter().map(|out| TestMemory::make(&self.used, Arc::new(out.data))).collect())
    }

    fn reserve(&self) -> usize {
        self.reserve
    }

    fn can_improve(&self) -> bool {
        self.improves
    }

    fn text(&self) -> String {
        String::new()
    }
}

impl Backend for TestBackend {
    fn name(&self) -> &'static str {
        "test"
    }
    fn device(&self) -> String {
        "a vector".into()
    }
    fn threads(&self) -> u32 {
        1
    }
    fn memory(&self) -> u64 {
        self.limit
    }
    fn memory_in_use(&self) -> (u64, u64) {
        let used = self.used();
        (used, self.peak.fetch_max(used, Ordering::SeqCst).max(used))
    }
    fn compile(&self, structure: &Arc<Structure>, types: &[Ty], effort: Effort) -> Result<Arc<dyn Plan>> {
        if effort == Effort::Full {
            drop(self.gate.lock().unwrap());
        }
        self.made.lock().unwrap().push((effort, structure.instrs.len()));
        let reserve = structure.outs.iter().map(|o| types[*o as usize].bytes()).sum();
        let improves = effort == Effort::Quick && self.improves.load(Ordering::SeqCst);
        Ok(Arc::new(TestPlan { structure: structure.clone(), reserve, improves, used: self.used.clone() }))
    }
    fn upload(&self, ty: &Ty, data: HostBytes) -> Result<Buffer> {
        if data.as_slice().len() != ty.bytes() {
            return Err(Error::Value("wrong size".into()));
        }
        Ok(TestMemory::make(&self.used, Arc::new(data.as_slice().to_vec())))
    }
    fn download(&self, buffer: &Buffer) -> Result<Arc<Vec<u8>>> {
        Ok(bytes_of(buffer).clone())
    }
}

/// Vectors of `n` integers, the type of all tensors here.
pub fn ints(n: usize) -> Ty {
    Ty::new(DType::I64, [n])
}

pub fn to_bytes(values: &[i64]) -> Arc<Vec<u8>> {
    Arc::new(values.iter().flat_map(|v| v.to_ne_bytes()).collect())
}

pub fn to_ints(bytes: &[u8]) -> Vec<i64> {
    bytes.chunks_exact(8).map(|c| i64::from_ne_bytes(c.try_into().expect("eight bytes"))).collect()
}

fn program(structure: Structure, inputs: &[u64], outs: &[u64], slots: Vec<Slot>) -> Program {
    let ids = |ids: &[u64]| ids.iter().map(|id| TensorId(*id)).collect::<Vec<_>>();
    let frees =
        inputs.iter().zip(&structure.inputs).filter(|(_, i)| i.dies).map(|(id, _)| TensorId(*id)).collect();
    let (key, structure) = (structure.key(), Arc::new(structure));
    Program { structure, key, inputs: ids(inputs), outs: ids(outs), slots, frees }
}

/// `out := fill`.
pub fn full(n: usize, fill: i64, out: u64) -> Program {
    let op = Op::Full { shape: Shape::from([n]), dtype: DType::I64 };
    let instr = Instr { op, args: [Arg::Const(Scalar::Int(fill))].into_iter().collect() };
    program(
        Structure { inputs: vec![], instrs: vec![instr], outs: vec![0], slots: 0, ..Default::default() },
        &[],
        &[out],
        vec![],
    )
}

/// `out := a * by + b`, with `by` in a slot; `dies` says which of the two are dropped.
pub fn mul_add(n: usize, a: u64, b: u64, by: i64, dies: [bool; 2], out: u64) -> Program {
    let input = |dies| Input { ty: ints(n), dies };
    let instr = |op, args: [Arg; 2]| Instr { op: Op::Binary(op), args: args.into_iter().collect() };
    let structure = Structure {
        inputs: dies.map(input).to_vec(),
        instrs: vec![
            instr(Binary::Mul, [Arg::Value(0), Arg::Slot(0)]),
            instr(Binary::Add, [Arg::Value(2), Arg::Value(1)]),
        ],
        outs: vec![3],
        slots: 1,
        ..Default::default()
    };
    program(structure, &[a, b], &[out], vec![Slot::Num(Scalar::Int(by))])
}

/// `out := a * by`, with `by` in the structure.
pub fn scale(n: usize, a: u64, by: i64, dies: bool, out: u64) -> Program {
    let args = [Arg::Value(0), Arg::Const(Scalar::Int(by))].into_iter().collect();
    let structure = Structure {
        inputs: vec![Input { ty: ints(n), dies }],
        instrs: vec![Instr { op: Op::Binary(Binary::Mul), args }],
        outs: vec![1],
        slots: 0,
        ..Default::default()
    };
    program(structure, &[a], &[out], vec![])
}

/// `out := take(a, index)`, which fails on an index out of range.
pub fn take(n: usize, a: u64, index: u64, dies: bool, out: u64) -> Program {
    let args = [Arg::Value(0), Arg::Value(1)].into_iter().collect();
    let structure = Structure {
        inputs: vec![Input { ty: ints(n), dies }, Input { ty: ints(n), dies: false }],
        instrs: vec![Instr { op: Op::Take { dim: 0 }, args }],
        outs: vec![2],
        slots: 0,
        ..Default::default()
    };
    program(structure, &[a, index], &[out], vec![])
}
