//! Backward passes that came before.
//!
//! When a program follows another and has grown the same graph, the backward pass records what it recorded the last
//! time. Its instructions are taken over at once then: no gradient rule is asked, and the gradients in between are never
//! handles. Anything out of the ordinary (hooks, gradients to add to, storage written in place, a graph from before) is
//! left to the engine.

use super::engine::release;
use super::node::{Edge, GradSlot, Node, NodeArg, NodeKind};
use super::tape;
use crate::Tensor;
use crate::current::Place;
use crate::stream::{Spot, Stretch};
use crate::value::Value;
use gt_ir::{Needs, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A backward pass, as a program that is followed had it.
pub(crate) struct Replay {
    /// The graph it went through.
    hash: u64,
    count: u32,
    root: (u32, u32),
    /// What it recorded.
    stretch: Stretch,
    /// Leaves, as the tape numbers them, in the order in which the stretch gives their gradients.
    leaves: Vec<u32>,
}

/// The part of a graph that a gradient from its root reaches.
struct Reach {
    nodes: Vec<Arc<Node>>,
    /// By the tape's numbers.
    leaves: Vec<Option<Arc<GradSlot>>>,
}

/// A backward pass that is being watched, to be taken over the next time.
pub(crate) struct Watch {
    start: Spot,
    hash: u64,
    count: u32,
    root: (u32, u32),
    found: Vec<(u32, Value)>,
}

/// Takes a backward pass over from the last time. If it is a new one that may be taken over later, it is to be watched;
/// nothing, if it is none of these.
pub(crate) fn replay(root: &Value, edge: &Edge) -> Result<Option<Option<Watch>>> {
    let place = Place::of(root)?;
    let out = place.session.before_op().map(|()| replay_in(&place, edge));
    place.put_back();
    out
}

fn replay_in(place: &Place, edge: &Edge) -> Option<Option<Watch>> {
    let start = place.stream.spot()?;
    let root = (edge.node.number.index, edge.nr);
    let (reach, hash, count) = tape::with(start.trail, |tape| {
        let reach = reach(&edge.node, tape)?;
        Some((reach, tape.hash, tape.count))
    })?;
    let same =
        |r: &Replay| r.hash == hash && r.count == count && r.root == root && r.stretch.starts_at(&start);
    let Some(known) = start.past.replay(same) else {
        return Some(Some(Watch { start, hash, count, root, found: Vec::new() }));
    };
    let slots: Vec<&Arc<GradSlot>> =
        known.leaves.iter().map(|leaf| reach.leaves.get(*leaf as usize)?.as_ref()).collect::<Option<_>>()?;
    let grads = place.stream.repeat(&place.session, &start, &known.stretch)?;
    for node in reach.nodes {
        if matches!(&node.kind, NodeKind::Op(op) if op.needs() != Needs::default()) {
            release(&node, false);
        }
    }
    for (slot, value) in slots.into_iter().zip(grads) {
        *slot.grad.lock() = Some(Tensor::from_value(value));
    }
    Some(None)
}

/// Walks the graph; nothing if there is something in it that only the engine knows how to treat.
fn reach(root: &Arc<Node>, tape: &tape::Tape) -> Option<Reach> {
    let mut seen = vec![false; tape.count as usize];
    let mut leaves: Vec<Option<Arc<GradSlot>>> = vec![None; tape.outside.len()];
    let mut nodes = Vec::with_capacity(seen.len());
    let mut pending = vec![root.clone()];
    while let Some(node) = pending.pop() {
        if node.number.trail != tape.trail {
            let slot = plain_leaf(&node)?;
            let leaf = leaves.get_mut(*tape.outside.get(&node.seq)? as usize)?;
            *leaf = Some(slot);
            continue;
        }
        let seen = seen.get_mut(node.number.index as usize)?;
        if std::mem::replace(seen, true) {
            continue;
        }
        if node.hooks.get().is_some() || node.signal != 0 || node.freed.load(Ordering::Relaxed) {
            return None;
        }
        for arg in node.args.lock().iter() {
            if let NodeArg::Val { edge: Some(edge), .. } = arg {
                pending.push(edge.node.clone());
            }
        }
        nodes.push(node);
    }
    Some(Reach { nodes, leaves })
}

/// Where a leaf's gradient goes, if nothing else happens there.
fn plain_leaf(node: &Node) -> Option<Arc<GradSlot>> {
    let NodeKind::Leaf(slot) = &node.kind else { return None };
    let plain = node.hooks.get().is_none() && slot.grad.lock().is_none() && slot.post_hooks.lock().is_empty();
    plain.then(|| slot.clone())
}

impl Watch {
    /// A gradient has come to a leaf.
    pub fn leaf(&mut self, node: &Node, value: &Value) {
        let leaf = tape::with(self.start.trail, |tape| tape.outside.get(&node.seq).copied());
        self.found.push((leaf.unwrap_or(u32::MAX), value.clone()));
    }

    /// The pass is over: it is remembered if it can be taken over.
    pub fn finish(self) {
        let Watch { start, hash, count, root, found } = self;
        if found.iter().any(|(leaf, _)| *leaf == u32::MAX) {
            return;
        }
        let (leaves, values): (Vec<u32>, Vec<Value>) = found.into_iter().unzip();
        let stream = values.first().map(|value| value.stream.clone());
        if let Some(stretch) = stream.and_then(|stream| stream.since(&start, &values)) {
            start.past.learn_replay(Replay { hash, count, root, stretch, leaves });
        }
    }
}
