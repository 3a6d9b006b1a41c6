//! What computing and moving are thought to cost: from what workers measured of themselves when they registered, and from
//! the roads between them.

use gt_ir::collective::Exchange;
use gt_ir::layout::{Layout, Part, Rule};
use gt_ir::{ArgTy, Op, Ty};

/// The speeds of one worker of a mesh and of the roads between workers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Costs {
    /// Operations a second in matrix products, while all workers of the mesh are at work.
    pub flops: f64,
    /// Bytes a second from and to a worker's own memory, while all are at work.
    pub memory: f64,
    /// How many times as fast a worker is while the others have nothing to do: those that share cores take turns.
    pub alone: f64,
    /// Bytes a second between workers, per worker.
    pub road: f64,
    /// Seconds a collective takes at least.
    pub latency: f64,
    /// Seconds it takes to start a program on all workers rather than on one.
    pub start: f64,
    /// Seconds an instruction takes at least.
    pub each: f64,
    /// Bytes a worker may use for a program, its inputs included.
    pub room: u64,
    /// Tensors of fewer bytes are not split for their own sake.
    pub least: u64,
    /// Splits whatever can be split, whatever it costs (`GT_SHARD_MIN=0`).
    pub always: bool,
    /// How many times as much it is thought to cost when a piece goes elsewhere.
    pub steady: f64,
}

/// Below this many bytes a tensor stays whole unless `GT_SHARD_MIN` says otherwise.
pub const LEAST: u64 = 256 << 10;

impl Costs {
    /// For workers on the processors of one host, of so many threads each, that measured nothing.
    pub fn cpu(threads: u32) -> Costs {
        let threads = threads.max(1) as f64;
        Costs {
            flops: 5e10 * threads,
            memory: 1e10 * threads.min(4.0),
            alone: 1.0,
            road: 4e9,
            latency: 2e-5,
            start: 1e-4,
            each: 2e-6,
            room: u64::MAX,
            least: LEAST,
            always: false,
            steady: 1.0,
        }
    }

    /// For GPUs joined by NVLink or a like road.
    pub fn gpu() -> Costs {
        Costs {
            flops: 3e14,
            memory: 2.5e12,
            alone: 1.0,
            road: 2e11,
            latency: 1.5e-5,
            start: 2e-5,
            each: 2e-6,
            room: u64::MAX,
            least: LEAST,
            always: false,
            steady: 1.0,
        }
    }

    /// Where only signals divide programs: what they say is done for small tensors too.
    pub fn signalled(self) -> Costs {
        Costs { least: 0, ..self }
    }

    /// How many bytes a collective should move at least, so that its latency does not matter.
    pub fn bucket(&self) -> u64 {
        ((1e-4 * self.road) as u64).max(1 << 20)
    }

    /// Bytes that take as long to move as a meeting takes: fewer had better travel with others.
    pub fn small(&self) -> u64 {
        ((self.latency * self.road) as u64).clamp(16 << 10, 1 << 20)
    }

    /// What it costs to bring a value from one layout to another along an axis; `None` if there is no way. `ty` is what
    /// the other axes leave of it.
    pub fn convert(&self, ty: &Ty, from: Layout, to: Layout, parts: usize) -> Option<f64> {
        use Layout::{Partial, Split, Whole};
        let bytes = ty.bytes() as f64;
        let n = parts as f64;
        let most = (n - 1.0) / n;
        let moved = match (from, to) {
            (Whole, Whole) => return Some(0.0),
            (a, b) if a == b => return Some(0.0),
            // A slice of what is there.
            (Whole, Split(_)) => return Some(bytes / n / self.memory * 0.1),
            (Split(_), Whole) => bytes * most,
            (Split(_), Split(_)) => bytes / n * most,
            (Partial(_), Split(_)) => bytes * most,
            (Partial(_), Whole) => 2.0 * bytes * most,
            (_, Partial(_)) => return None,
        };
        let steady = if matches!(from, Split(_)) { self.steady } else { 1.0 };
        let seconds = (self.latency + moved / self.road) * steady;
        // Still a little, so that of two ways the shorter one is taken.
        Some(if self.always { seconds * 1e-6 } else { seconds })
    }

    /// What a collective costs between so many parts, given the bytes of its operands and results on one of them.
    pub fn collective(&self, what: &Exchange, given: f64, got: f64, parts: usize) -> f64 {
        let most = (parts as f64 - 1.0) / parts as f64;
        let moved = match what {
            Exchange::AllReduce { .. } => 2.0 * given,
            Exchange::AllGather { .. } | Exchange::Broadcast { .. } => got,
            Exchange::ReduceScatter { .. } | Exchange::AllToAll { .. } => given,
        };
        self.latency + moved * most / self.road
    }

    /// The time one worker takes for an op on what it has.
    pub fn local(&self, op: &Op, args: &[ArgTy], outs: &[Ty]) -> f64 {
        if let Op::View(_) = op {
            return 0.0;
        }
        let written: f64 = outs.iter().map(|ty| ty.bytes() as f64).sum();
        let read = |arg: &ArgTy| if let ArgTy::Val(ty) = arg { ty.bytes() as f64 } else { 0.0 };
        let bytes = written + args.iter().map(|arg| read(arg).min(reads(op, written))).sum::<f64>();
        (work(op, args, outs) / self.flops).max(bytes * kept(op) / self.memory) + self.each
    }

    /// The time that the first part of an axis takes for an op under a rule.
    pub fn compute(&self, op: &Op, rule: &Rule, args: &[ArgTy], outs: &[Ty], first: Part) -> f64 {
        let mut share = 1.0f64;
        let mut bytes = 0.0;
        let mut count = |ty: &Ty, layout: Layout, most: f64| {
            let part = match layout {
                Layout::Split(d) => share_of(first, ty.shape[d]),
                Layout::Whole | Layout::Partial(_) => 1.0,
            };
            share = share.min(part);
            bytes += (ty.bytes() as f64 * part).min(most);
        };
        outs.iter().zip(&rule.outs).for_each(|(ty, layout)| count(ty, *layout, f64::INFINITY));
        let written: f64 = outs.iter().map(|ty| ty.bytes() as f64).sum();
        for (arg, layout) in args.iter().zip(&rule.args) {
            if let (ArgTy::Val(ty), Some(layout)) = (arg, layout) {
                count(ty, *layout, reads(op, written));
            }
        }
        if let Op::View(_) = op {
            return bytes / self.memory * 0.05;
        }
        let flops = work(op, args, outs) * share;
        (flops / self.flops).max(bytes * kept(op) / self.memory) + 1e-7
    }
}

/// The most bytes of an operand that an op reads for so many bytes of results.
fn reads(op: &Op, written: f64) -> f64 {
    match op {
        Op::Take { .. } | Op::Gather { .. } => written,
        _ => f64::INFINITY,
    }
}

/// Which share of an op's operands and results passes through memory: elementwise work is done together with what comes
/// before and after it.
fn kept(op: &Op) -> f64 {
    match op {
        Op::Full { .. }
        | Op::Arange { .. }
        | Op::Unary(_)
        | Op::Binary(_)
        | Op::Where
        | Op::Cast(_)
        | Op::Reduce { .. }
        | Op::Softmax { .. }
        | Op::LogSoftmax { .. } => 0.3,
        _ => 1.0,
    }
}

/// What a part holds of a dimension, as a share of it.
fn share_of(part: Part, size: usize) -> f64 {
    let grains = size / part.grains.of(size);
    if size == 0 { 1.0 } else { part.range(grains).len() as f64 / grains as f64 }
}

/// Operations beyond passing over the operands.
fn work(op: &Op, args: &[ArgTy], outs: &[Ty]) -> f64 {
    let size = |i: usize, d: usize| match args.get(i) {
        Some(ArgTy::Val(ty)) => ty.shape.len().checked_sub(d).map_or(1.0, |at| ty.shape[at] as f64),
        _ => 1.0,
    };
    let out = outs.first().map_or(0.0, |ty| ty.shape.numel() as f64);
    match op {
        Op::Matmul { ta, .. } => 2.0 * out * size(0, if *ta { 2 } else { 1 }),
        Op::Attention { .. } => 4.0 * out * size(1, 2),
        Op::AttentionGrad { .. } => 10.0 * out * size(1, 2),
        Op::Sort { .. } | Op::TopK { .. } => out * 40.0,
        // Twenty multiplications of 32 bits by hand, then a logarithm, a root and a sine for a normal.
        Op::Random { .. } => out * 2000.0,
        Op::Unary(_) | Op::Softmax { .. } | Op::LogSoftmax { .. } => out * 8.0,
        _ => out,
    }
}
