//! What the workers of a gang are sent: each its own share of the program, and the ids that are the same for all of them.

use crate::msg::Run;
use gt_ir::{Program, Slot, Structure, TensorId};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The tensors of a program that several workers run together: the same for all of them, and there once.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ids {
    /// One id per input.
    pub inputs: Vec<TensorId>,
    /// One fresh id per live-out.
    pub outs: Vec<TensorId>,
    /// Ids the client has dropped.
    pub frees: Vec<TensorId>,
}

/// One worker's share of a program that several run together.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Share {
    /// The program's place in the session's order.
    pub seq: u64,
    pub structure: Arc<Structure>,
    /// `structure.key()`.
    pub key: u64,
    pub slots: Vec<Slot>,
    pub ids: Arc<Ids>,
}

impl Share {
    /// The share as a program of the worker's own.
    pub fn run(self) -> Run {
        let Share { seq, structure, key, slots, ids } = self;
        let Ids { inputs, outs, frees } = Arc::unwrap_or_clone(ids);
        Run { seq, program: Program { structure, key, inputs, outs, slots, frees }, prefix: None }
    }
}

impl From<Run> for Share {
    fn from(run: Run) -> Share {
        let Program { structure, key, inputs, outs, slots, frees } = run.program;
        Share { seq: run.seq, structure, key, slots, ids: Arc::new(Ids { inputs, outs, frees }) }
    }
}
