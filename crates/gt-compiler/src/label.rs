//! Steps in a few words, for monitors and profiles.

use crate::plan::{Calc, Kernel, Step, Work};
use gt_ir::{Family, Structure};

/// Ops named in a kernel's label at most.
const NAMED: usize = 4;

impl Step {
    /// What the step does, in a few words: `matmul 64x32x16`.
    pub fn label(&self) -> String {
        match &self.work {
            Work::Kernel(kernel) => kernel_label(kernel),
            Work::Copy { .. } => "copy".into(),
            Work::CheckIndex { .. } => "check index".into(),
            Work::CheckNonzero { .. } => "check divisor".into(),
            Work::Matmul(mm) => {
                let batch = mm.batch.numel();
                let times = if batch > 1 { format!("{batch} x ") } else { String::new() };
                format!("matmul {times}{}x{}x{}", mm.m, mm.k, mm.n)
            }
            Work::Attention(x) => format!("attention {}", x.q.shape),
            Work::AttentionGrad(x) => format!("attention grad {}", x.q.shape),
            Work::Random { len, .. } => format!("random [{len}]"),
            Work::Data { .. } => "data".into(),
            Work::Gather { index, .. } => format!("gather {}", index.shape),
            Work::Scatter { index, .. } => format!("scatter {}", index.shape),
            Work::Take { index, .. } => format!("take {}", index.shape),
            Work::TakePut { index, .. } => format!("take put {}", index.shape),
            Work::ArgReduce { x, .. } => format!("argreduce {}", x.shape),
            Work::Scan { x, .. } => format!("scan {}", x.shape),
            Work::Sort { x, .. } => format!("sort {}", x.shape),
            Work::Softmax { x, .. } => format!("softmax {}", x.shape),
            Work::Collective(c) => format!("{} of {}", c.what.text().to_lowercase(), c.xs.len()),
        }
    }

    /// The family whose time this step's time is.
    pub fn family(&self, structure: &Structure) -> Family {
        let op = structure.instrs.get(self.instr as usize).map(|i| i.op.family());
        match (&self.work, op) {
            (_, Some(Family::Optimizer)) => Family::Optimizer,
            (Work::Kernel(k), _) if k.fold.is_some() || k.has_rows() => Family::Reduce,
            (Work::Kernel(k), _) if k.code.is_empty() => Family::Move,
            (Work::Kernel(_) | Work::CheckNonzero { .. }, _) => Family::Elementwise,
            (Work::Copy { .. } | Work::Data { .. }, _) => Family::Move,
            (Work::Matmul(_), _) => Family::Matmul,
            (Work::Attention(_) | Work::AttentionGrad(_), _) => Family::Attention,
            (Work::Random { .. }, _) => Family::Random,
            (Work::Collective(_), _) => Family::Collective,
            (Work::ArgReduce { .. } | Work::Scan { .. } | Work::Softmax { .. }, _) => Family::Reduce,
            (
                Work::CheckIndex { .. }
                | Work::Gather { .. }
                | Work::Scatter { .. }
                | Work::Take { .. }
                | Work::TakePut { .. }
                | Work::Sort { .. },
                _,
            ) => Family::Index,
        }
    }
}

/// A kernel by the ops it does: the rarer ones first in mind are the first in order.
fn kernel_label(kernel: &Kernel) -> String {
    let mut names: Vec<&str> = Vec::new();
    for code in &kernel.code {
        let name = match code.calc {
            Calc::Unary(op) => op.text(),
            Calc::Binary(op) => op.text(),
            Calc::Where => "WHERE",
            Calc::Cast => "CAST",
            Calc::Fold(kind) => kind.text(),
        };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    if let Some(fold) = &kernel.fold {
        names.push(fold.kind.text());
    }
    let more = if names.len() > NAMED { " ..." } else { "" };
    names.truncate(NAMED);
    match names.is_empty() {
        true => format!("copy {}", kernel.shape),
        false => format!("{}{more} {}", names.join(" ").to_lowercase(), kernel.shape),
    }
}
