//! Automatic differentiation: the graph, the recorder that grows it, and the backward pass. All iterative.

mod anomaly;
mod engine;
mod mode;
mod node;
mod record;
mod replay;
pub(crate) mod tape;

pub use anomaly::set_anomaly;
pub use engine::{Targets, backward, grad};
pub use mode::{GradMode, grad_enabled, inference_mode, set_grad_enabled};
pub use node::{CustomBackward, Edge, GradSlot, Held, Hook, Node, NodeArg, NodeKind, PostHook};
pub use record::{Recorder, Var, record, record_all};
pub(crate) use replay::Replay;
