//! Families of ops, for bars, legends and tables of where time went.

use crate::Op;
use serde::{Deserialize, Serialize};

/// What kind of work a step of a plan does, for bars and legends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Family {
    Matmul,
    Attention,
    Elementwise,
    Reduce,
    Move,
    Index,
    Random,
    Optimizer,
    Collective,
    Other,
}

impl Family {
    pub const ALL: [Family; 10] = [
        Family::Matmul,
        Family::Attention,
        Family::Elementwise,
        Family::Reduce,
        Family::Move,
        Family::Index,
        Family::Random,
        Family::Optimizer,
        Family::Collective,
        Family::Other,
    ];

    /// Its name in bars, legends and logs.
    pub fn text(self) -> &'static str {
        match self {
            Family::Matmul => "matmul",
            Family::Attention => "attention",
            Family::Elementwise => "elementwise",
            Family::Reduce => "reduce",
            Family::Move => "move",
            Family::Index => "index",
            Family::Random => "random",
            Family::Optimizer => "optimizer",
            Family::Collective => "collective",
            Family::Other => "other",
        }
    }

    /// The family of that name.
    pub fn parse(text: &str) -> Option<Family> {
        Family::ALL.into_iter().find(|f| f.text() == text)
    }
}

impl Op {
    /// The family whose time this op's time is.
    pub fn family(&self) -> Family {
        match self {
            Op::Matmul { .. } => Family::Matmul,
            Op::Attention { .. } | Op::AttentionGrad { .. } => Family::Attention,
            Op::Full { .. } | Op::Arange { .. } | Op::Unary(_) | Op::Binary(_) | Op::Where | Op::Cast(_) => {
                Family::Elementwise
            }
            Op::Reduce { .. }
            | Op::ArgReduce { .. }
            | Op::Scan { .. }
            | Op::Softmax { .. }
            | Op::LogSoftmax { .. }
            | Op::RmsNorm { .. }
            | Op::LayerNorm { .. }
            | Op::CrossEntropy => Family::Reduce,
            Op::Data { .. }
            | Op::View(_)
            | Op::Pad { .. }
            | Op::Concat { .. }
            | Op::Flip { .. }
            | Op::Put { .. } => Family::Move,
            Op::Gather { .. }
            | Op::Scatter { .. }
            | Op::Take { .. }
            | Op::TakePut { .. }
            | Op::Sort { .. }
            | Op::TopK { .. } => Family::Index,
            Op::Random { .. } => Family::Random,
            Op::Sgd { .. } | Op::Adam { .. } => Family::Optimizer,
            Op::Collective(_) => Family::Collective,
        }
    }
}
