//! Sample instances of every op and random programs: what law tests and every backend's tests run over.
//!
//! Values are drawn from each op's domain, where a wrong answer shows: distinct, away from kinks, jumps and saturation.
//! The same seed gives the same samples.

mod composites;
mod draw;
mod ops;
mod programs;
mod shrink;

use crate::elementwise::{Binary, Unary};
use crate::host::HostTensor;
use crate::op::{ArgKind, Dist, Op, ReduceKind, ScanKind, ScatterMode, View};
use crate::reference::{self, RefArg};
use crate::{ArgTy, DType, Result, Scalar, Shape};
pub use draw::{Rng, draw, draw_apart, draw_index};
pub use ops::samples;
pub use programs::{RandomProgram, random_program};

/// An operand of a sample.
#[derive(Clone, Debug)]
pub enum SampleArg {
    Val(HostTensor),
    Num(Scalar),
    Data(Vec<u8>),
}

/// One instance of an op with its operands.
#[derive(Clone, Debug)]
pub struct Sample {
    pub op: Op,
    pub args: Vec<SampleArg>,
    /// How many times the op can be differentiated at these operands: 0 where several writers meet in one element or
    /// the op has no gradient, else 2.
    pub orders: u8,
}

impl Sample {
    /// The operands as the reference takes them.
    pub fn ref_args(&self) -> Vec<RefArg<'_>> {
        self.args
            .iter()
            .map(|arg| match arg {
                SampleArg::Val(v) => RefArg::Val(v),
                SampleArg::Num(x) => RefArg::Num(*x),
                SampleArg::Data(bytes) => RefArg::Data(bytes),
            })
            .collect()
    }

    /// The operands as the type rule sees them.
    pub fn arg_types(&self) -> Vec<ArgTy<'_>> {
        self.args
            .iter()
            .map(|arg| match arg {
                SampleArg::Val(v) => ArgTy::Val(&v.ty),
                SampleArg::Num(_) | SampleArg::Data(_) => ArgTy::Num,
            })
            .collect()
    }

    /// The right answer: one tensor per result.
    pub fn eval(&self) -> Result<Vec<HostTensor>> {
        reference::eval_all(&self.op, &self.ref_args())
    }

    /// The op and the types of its operands, for messages.
    pub fn describe(&self) -> String {
        let args: Vec<String> = self
            .args
            .iter()
            .map(|arg| match arg {
                SampleArg::Val(v) => v.ty.to_string(),
                SampleArg::Num(x) => x.to_string(),
                SampleArg::Data(bytes) => format!("{} bytes", bytes.len()),
            })
            .collect();
        format!("{:?} of {}", self.op, args.join(" "))
    }
}

/// One op of every variant of `Op`, in order.
pub fn kinds() -> Vec<Op> {
    std::iter::successors(Some(first()), next).collect()
}

fn first() -> Op {
    Op::Full { shape: Shape::scalar(), dtype: DType::F32 }
}

/// The variant after this one; a new variant does not compile until it has its place here, in `ops` and `programs`.
fn next(op: &Op) -> Option<Op> {
    let (shape, dtype, dims) = (Shape::scalar, DType::F32, crate::Ints::new);
    Some(match op {
        Op::Full { .. } => Op::Arange { len: 0, dtype },
        Op::Arange { .. } => Op::Random { dist: Dist::Uniform, shape: shape(), dtype },
        Op::Random { .. } => Op::Data { shape: shape(), dtype },
        Op::Data { .. } => Op::Unary(Unary::Neg),
        Op::Unary(_) => Op::Binary(Binary::Add),
        Op::Binary(_) => Op::Where,
        Op::Where => Op::Cast(dtype),
        Op::Cast(_) => Op::View(View::Reshape(shape())),
        Op::View(_) => Op::Pad { lo: dims(), hi: dims() },
        Op::Pad { .. } => Op::Concat { dim: 0 },
        Op::Concat { .. } => Op::Flip { dims: dims() },
        Op::Flip { .. } => Op::Put { path: vec![] },
        Op::Put { .. } => Op::Reduce { kind: ReduceKind::Sum, dims: dims(), keepdim: false },
        Op::Reduce { .. } => Op::ArgReduce { kind: ArgKind::Max, dim: 0, keepdim: false },
        Op::ArgReduce { .. } => Op::Scan { kind: ScanKind::Sum, dim: 0 },
        Op::Scan { .. } => Op::Matmul { ta: false, tb: false, tf32: false },
        Op::Matmul { .. } => Op::Gather { dim: 0 },
        Op::Gather { .. } => Op::Scatter { dim: 0, mode: ScatterMode::Set },
        Op::Scatter { .. } => Op::Take { dim: 0 },
        Op::Take { .. } => Op::TakePut { dim: 0, mode: ScatterMode::Set },
        Op::TakePut { .. } => Op::Sort { dim: 0, descending: false },
        Op::Sort { .. } => Op::TopK { dim: 0, k: 0, largest: false },
        Op::TopK { .. } => Op::Softmax { dim: 0 },
        Op::Softmax { .. } => Op::LogSoftmax { dim: 0 },
        Op::LogSoftmax { .. } => Op::RmsNorm { dims: 1 },
        Op::RmsNorm { .. } => Op::LayerNorm { dims: 1 },
        Op::LayerNorm { .. } => Op::CrossEntropy,
        Op::CrossEntropy => Op::Attention { causal: false },
        Op::Attention { .. } => Op::AttentionGrad { causal: false },
        Op::AttentionGrad { .. } => Op::Sgd {
            momentum: false,
            first: false,
            dampened: false,
            nesterov: false,
            maximize: false,
            decay: false,
        },
        Op::Sgd { .. } => Op::Adam { decoupled: false, amsgrad: false, maximize: false, decay: false },
        // Collectives take several parts, and have laws of their own.
        Op::Adam { .. } | Op::Collective(_) => return None,
    })
}

const REDUCES: [ReduceKind; 4] = [ReduceKind::Sum, ReduceKind::Prod, ReduceKind::Max, ReduceKind::Min];
const MODES: [ScatterMode; 3] = [ScatterMode::Set, ScatterMode::Add, ScatterMode::Max];
