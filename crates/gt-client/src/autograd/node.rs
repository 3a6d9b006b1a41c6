//! Nodes of the autograd graph.

use super::anomaly;
use super::tape::{self, Number};
use crate::Tensor;
use crate::value::Value;
use gt_ir::{Op, Result, Scalar, Ty};
use gt_sync::Mutex;
use smallvec::SmallVec;
use std::any::Any;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Called with a gradient; may return another in its place.
pub type Hook = Arc<dyn Fn(&Tensor) -> Result<Option<Tensor>> + Send + Sync>;

/// Called after a gradient was added to a leaf's `.grad`.
pub type PostHook = Arc<dyn Fn() -> Result<()> + Send + Sync>;

/// What a callable holds that its owner must be able to see from outside (Python's garbage collector, C12).
pub type Held = Arc<dyn Any + Send + Sync>;

/// Where a gradient goes: result `nr` of a node.
#[derive(Clone)]
pub struct Edge {
    pub node: Arc<Node>,
    pub nr: u32,
}

/// A value kept for the backward pass, and the version it must still have then.
#[derive(Clone)]
pub struct SavedValue {
    pub value: Value,
    /// The counter of the storage it came from, and what it said.
    pub version: Option<(Arc<AtomicU32>, u32)>,
}

/// An operand as a node keeps it.
pub enum NodeArg {
    Val { ty: Ty, edge: Option<Edge>, saved: Option<SavedValue> },
    Num(Scalar),
}

/// Where a leaf's gradient is kept, and what must hear of it.
#[derive(Default)]
pub struct GradSlot {
    pub grad: Mutex<Option<Tensor>>,
    /// (id, hook, what it holds).
    pub post_hooks: Mutex<Vec<(u64, PostHook, Option<Held>)>>,
}

/// A backward pass written by the user (`gt.autograd.Function`).
pub trait CustomBackward: Send + Sync {
    /// Gradients of the inputs, given those of the outputs.
    fn backward(&self, grads: Vec<Option<Tensor>>) -> Result<Vec<Option<Tensor>>>;
    /// The name shown as `grad_fn`.
    fn name(&self) -> String;
    /// The backward pass is over: let go of what was saved. Whoever reads it in another pass is told so there.
    fn release(&self);
    /// What it holds, as `Held` says.
    fn held(&self) -> Option<&(dyn Any + Send + Sync)> {
        None
    }
}

/// A hook of a node's result.
#[derive(Clone)]
pub struct NodeHook {
    /// The result.
    pub nr: u32,
    id: u64,
    pub call: Hook,
    held: Option<Held>,
    /// It keeps the gradient that the other hooks have made (`retain_grad`).
    pub keeps: bool,
}

/// What a node does with the gradient that reaches it.
pub enum NodeKind {
    /// Applies the op's gradient rule.
    Op(Op),
    /// Adds it to a leaf's `.grad`.
    Leaf(Arc<GradSlot>),
    /// Calls the user's function; one type per output.
    Custom(Box<dyn CustomBackward>, Vec<Ty>),
}

/// One step of the graph.
pub struct Node {
    /// Later nodes have larger numbers: the order of the backward pass.
    pub seq: u64,
    pub kind: NodeKind,
    pub args: Mutex<SmallVec<[NodeArg; 2]>>,
    /// The results, if the gradient rule reads them.
    pub outs: Mutex<SmallVec<[SavedValue; 1]>>,
    /// The type of the (first) result.
    pub out_ty: Ty,
    pub hooks: OnceLock<Mutex<Vec<NodeHook>>>,
    /// Its number among the nodes of its program.
    pub(crate) number: Number,
    /// The signal its backward pass is marked with, as `signal::Scope` numbers them.
    pub signal: u32,
    /// The backward pass has let go of the saved values.
    pub freed: std::sync::atomic::AtomicBool,
    /// The line that made it, where that was wanted (`detect_anomaly`).
    pub made: Option<Box<str>>,
}

static SEQ: AtomicU64 = AtomicU64::new(1);

impl Node {
    pub fn new(kind: NodeKind, args: SmallVec<[NodeArg; 2]>, out_ty: Ty) -> Arc<Node> {
        Arc::new(Node {
            seq: SEQ.fetch_add(1, Ordering::Relaxed),
            number: tape::number(&kind, &args),
            kind,
            args: Mutex::new(args),
            outs: Mutex::new(SmallVec::new()),
            out_ty,
            hooks: OnceLock::new(),
            signal: crate::signal::now().backward,
            freed: false.into(),
            made: anomaly::line(),
        })
    }

    /// A leaf that accumulates into `slot`.
    pub fn leaf(slot: Arc<GradSlot>, ty: Ty) -> Arc<Node> {
        Node::new(NodeKind::Leaf(slot), SmallVec::new(), ty)
    }

    /// The name PyTorch would show, such as `MulBackward0`.
    pub fn name(&self) -> String {
        match &self.kind {
            NodeKind::Op(op) => {
                let text = op.text();
                let mut name: String = text.chars().take(1).collect();
                name.push_str(&text[1..].to_lowercase());
                format!("{name}Backward0")
            }
            NodeKind::Leaf(_) => "AccumulateGrad".into(),
            NodeKind::Custom(f, _) => f.name(),
        }
    }

    /// Adds a hook on result `nr`; returns its id.
    pub fn add_hook(&self, nr: u32, call: Hook, held: Option<Held>) -> u64 {
        self.hook(nr, call, held, false)
    }

    /// Adds a hook on result `nr` that is called with what all others have made of the gradient.
    pub(crate) fn add_last_hook(&self, nr: u32, call: Hook) {
        self.hook(nr, call, None, true);
    }

    fn hook(&self, nr: u32, call: Hook, held: Option<Held>, keeps: bool) -> u64 {
        let id = SEQ.fetch_add(1, Ordering::Relaxed);
        self.hooks.get_or_init(Mutex::default).lock().push(NodeHook { nr, id, call, held, keeps });
        id
    }

    pub fn remove_hook(&self, id: u64) {
        let Some(hooks) = self.hooks.get() else { return };
        let mut hooks = hooks.lock();
        let removed = hooks.iter().position(|hook| hook.id == id).map(|i| hooks.remove(i));
        // Whatever it holds goes with no lock held.
        drop(hooks);
        drop(removed);
    }

    /// Shows what the callables of this node hold. Waits for no lock: what is in use just now is not shown.
    pub(crate) fn see_held(&self, see: &mut dyn FnMut(&(dyn Any + Send + Sync))) {
        if let NodeKind::Custom(backward, _) = &self.kind
            && let Some(held) = backward.held()
        {
            see(held);
        }
        if let Some(hooks) = self.hooks.get().and_then(Mutex::try_lock) {
            hooks.iter().filter_map(|hook| hook.held.as_deref()).for_each(see);
        }
    }
}

/// Dropping a long chain must not recurse: operands' nodes are taken out and dropped one by one.
impl Drop for Node {
    fn drop(&mut self) {
        let mut pending: Pending = SmallVec::new();
        take_edges(self.args.get_mut(), &mut pending);
        while let Some(node) = pending.pop() {
            if let Some(mut node) = Arc::into_inner(node) {
                take_edges(node.args.get_mut(), &mut pending);
            }
        }
    }
}

/// Nodes that may have to be dropped; inline, since most nodes have one or two operands.
type Pending = SmallVec<[Arc<Node>; 8]>;

fn take_edges(args: &mut SmallVec<[NodeArg; 2]>, pending: &mut Pending) {
    for arg in args {
        if let NodeArg::Val { edge, .. } = arg
            && let Some(edge) = edge.take()
        {
            pending.push(edge.node);
        }
    }
}
