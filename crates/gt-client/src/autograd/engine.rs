//! The backward pass: one queue ordered by age, no recursion.

use super::anomaly;
use super::mode::GradMode;
use super::node::{Edge, Node, NodeArg, NodeKind, SavedValue};
use super::record::{Recorder, Var};
use super::replay::replay;
use crate::Tensor;
use crate::ops::put_edge;
use crate::signal::{self, Hold, Scope};
use crate::stream::Stream;
use crate::wait::Unbroken;
use foldhash::fast::FixedState;
use gt_ir::build::{Kept, Saved};
use gt_ir::grad::vjp;
use gt_ir::{Binary, Build, Error, Needs, Op, Operand, ReduceKind, Result, Unary, View, bail};
use smallvec::{SmallVec, smallvec};
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Where the gradients go.
pub enum Targets<'a> {
    /// Into `.grad` of every leaf.
    Leaves,
    /// Returned, for these tensors only.
    Inputs(&'a [Tensor]),
}

/// A node that a gradient has reached, with its age, by which they are ordered.
struct Ready(u64, Arc<Node>);

impl PartialEq for Ready {
    fn eq(&self, other: &Ready) -> bool {
        self.0 == other.0
    }
}

impl Eq for Ready {}

impl PartialOrd for Ready {
    fn partial_cmp(&self, other: &Ready) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ready {
    fn cmp(&self, other: &Ready) -> std::cmp::Ordering {
        self.0.cmp(&other.0)
    }
}

/// Gradients that have reached a node, one per result.
type Incoming = SmallVec<[Option<Var>; 1]>;

/// Gradients made of slices alone, by node and result: the dimension they were cut along, and where each begins and ends.
/// Elsewhere such a gradient is zero.
type Slices = HashMap<(u64, u32), (usize, SmallVec<[(i64, i64); 4]>), FixedState>;

/// Runs the backward pass from `roots` with the given gradients into `.grad` of the leaves.
pub fn backward(roots: &[Tensor], grads: Vec<Option<Tensor>>, retain: bool, create: bool) -> Result<()> {
    run(roots, grads, retain, create, Targets::Leaves, false).map(drop)
}

/// The gradients of `roots` for each of `inputs`.
pub fn grad(
    roots: &[Tensor],
    inputs: &[Tensor],
    grads: Vec<Option<Tensor>>,
    retain: bool,
    create: bool,
    allow_unused: bool,
) -> Result<Vec<Option<Tensor>>> {
    run(roots, grads, retain, create, Targets::Inputs(inputs), allow_unused)
}

fn run(
    roots: &[Tensor],
    grads: Vec<Option<Tensor>>,
    retain: bool,
    create: bool,
    targets: Targets,
    allow_unused: bool,
) -> Result<Vec<Option<Tensor>>> {
    let _mode = GradMode::set(create);
    let stages = Stages::begin()?;
    let _line = match roots.first() {
        Some(root) => Some(crate::source::Hold::line(&*root.session()?)),
        None => None,
    };
    let mut watch = None;
    if let [root] = roots
        && matches!(targets, Targets::Leaves)
        && !retain
        && !create
        && !anomaly::is_on()
        && root.numel() == 1
        && grads.iter().all(Option::is_none)
        && let Var { value, edge: Some(edge), .. } = root.var()?
    {
        match replay(&value, &edge)? {
            Some(None) => return stages.end().map(|()| Vec::new()),
            Some(watched) => watch = watched,
            None => {}
        }
    }
    let mut queue: BinaryHeap<Ready> = BinaryHeap::new();
    let mut incoming: HashMap<u64, Incoming, FixedState> = HashMap::default();
    let (mut places, mut slices) = (Places::default(), Slices::default());
    for (i, root) in roots.iter().enumerate() {
        let var = root.var()?;
        let Some(edge) = var.edge else {
            bail!(Runtime, "element {i} of tensors does not require grad and does not have a grad_fn");
        };
        let seed = match grads.get(i).cloned().flatten() {
            Some(g) => {
                if g.shape() != root.shape() {
                    bail!(
                        Runtime,
                        "backward: mismatch in shape: grad_output[{i}] has a shape of {} and output[{i}] has a shape of {}",
                        g.shape(),
                        root.shape()
                    );
                }
                let g = Recorder.cast(&g.var()?, root.dtype())?;
                if create { g } else { Var::plain(g.value) }
            }
            None if root.numel() == 1 => Recorder.full(root.ty(), 1.0)?,
            None => bail!(
                Runtime,
                "grad can be implicitly created only for scalar outputs, got shape {}",
                root.shape()
            ),
        };
        deliver(&mut queue, &mut incoming, &mut places, &edge, seed)?;
    }
    let mut wanted: HashMap<(u64, u32), Vec<usize>, FixedState> = HashMap::default();
    let mut found: Vec<Option<Tensor>> = Vec::new();
    let mut needed = None;
    if let Targets::Inputs(inputs) = &targets {
        found = vec![None; inputs.len()];
        for (i, input) in inputs.iter().enumerate() {
            let Some(edge) = input.var()?.edge else {
                bail!(Runtime, "grad: one of the differentiated tensors does not require grad");
            };
            wanted.entry((edge.node.seq, edge.nr)).or_default().push(i);
        }
        let targets = wanted.keys().map(|(seq, _)| *seq).collect();
        needed = Some(leading_to(targets, queue.iter().map(|Ready(_, node)| node.clone()).collect()));
    }

    while let Some(Ready(_, node)) = queue.pop() {
        let Some(mut arrived) = incoming.remove(&node.seq) else { continue };
        let leads = |edge: &Edge| needed.as_ref().is_none_or(|set| set.contains(&edge.node.seq));
        if needed.as_ref().is_some_and(|set| !set.contains(&node.seq)) {
            continue;
        }
        // What the pass records for an op runs where the op's signal says; gradients add up where they are made.
        let signal = places.remove(&node.seq).unwrap_or(node.signal);
        let _scope = (signal != 0).then(|| Hold::scope(Scope::of_backward(signal)));
        let capture = |found: &mut [Option<Tensor>], arrived: &Incoming| {
            for (nr, g) in arrived.iter().enumerate().filter(|_| !wanted.is_empty()) {
                if let (Some(g), Some(list)) = (g, wanted.get(&(node.seq, nr as u32))) {
                    for &i in list {
                        found[i] = Some(Tensor::from_var(g.clone()));
                    }
                }
            }
        };
        // A gradient that is asked for is what hooks made of it, but where it goes on from it is taken before, as in PyTorch.
        let goes_on = needed.is_some() && flows_on(&node, leads);
        if goes_on {
            capture(&mut found, &arrived);
        }
        run_hooks(&node, &mut arrived)?;
        if !goes_on {
            capture(&mut found, &arrived);
        }
        match &node.kind {
            NodeKind::Leaf(slot) => {
                if matches!(targets, Targets::Leaves)
                    && let Some(Some(g)) = arrived.pop()
                {
                    if let Some(watch) = &mut watch {
                        watch.leaf(&node, &g.value);
                    }
                    accumulate(slot, g, create)?;
                }
            }
            NodeKind::Op(op) => {
                if !(goes_on || needed.is_none() && flows_on(&node, leads)) {
                    continue;
                }
                let (kept, outs, mut edges) = unpack(&node)?;
                edges.iter_mut().for_each(|e| *e = e.take().filter(leads));
                if let (Op::View(view @ View::Slice { .. }), Some(edge)) = (op, &edges[0])
                    && add_slice(&mut incoming, &mut slices, edge, view, &kept, &arrived)?
                {
                    continue;
                }
                let saved = Saved { args: &kept, outs: &outs };
                let want: SmallVec<[bool; 4]> = edges.iter().map(Option::is_some).collect();
                let grads = vjp(&mut Recorder, op, &saved, &arrived, &want)?;
                anomaly::look(&node, grads.iter().map(Option::as_ref))?;
                if op.needs() != Needs::default() {
                    release(&node, retain || create);
                }
                for ((edge, g), arg) in edges.into_iter().zip(grads).zip(&kept) {
                    let (Some(edge), Kept::Val(ty, _)) = (edge, arg) else { continue };
                    // `None` claims zero, which a person who asks for the gradient is given.
                    let mut g = match g {
                        Some(g) => g,
                        None => Recorder.full(ty, 0.0)?,
                    };
                    if create && g.edge.is_none() && in_pieces(op) {
                        g.edge = Some(put_edge(&[], Some(edge.clone()), ty, Operand::Val(g.clone()))?);
                    }
                    let fresh = deliver(&mut queue, &mut incoming, &mut places, &edge, g)?;
                    slices.remove(&(edge.node.seq, edge.nr));
                    if let (true, Op::View(view), Some(Kept::Num(start))) = (fresh, op, kept.get(1))
                        && let Some((dim, cut)) = extent(view, start.as_i64())
                    {
                        slices.insert((edge.node.seq, edge.nr), (dim, smallvec![cut]));
                    }
                }
            }
            NodeKind::Custom(function, _) => {
                let mut edges: Vec<Option<Edge>> = edges_of(&node);
                edges.iter_mut().for_each(|e| *e = e.take().filter(leads));
                if needed.is_some() && edges.iter().all(Option::is_none) {
                    continue;
                }
                let given = arrived.into_iter().map(|g| g.map(Tensor::from_var)).collect();
                let grads = function.backward(given)?;
                if anomaly::is_on() {
                    let vars = grads.iter().map(|g| g.as_ref().map(Tensor::var).transpose());
                    let vars: Vec<Option<Var>> = vars.collect::<Result<_>>()?;
                    anomaly::look(&node, vars.iter().map(Option::as_ref))?;
                }
                if !(retain || create) {
                    function.release();
                }
                for (edge, g) in edges.into_iter().zip(grads) {
                    if let (Some(edge), Some(g)) = (edge, g) {
                        deliver(&mut queue, &mut incoming, &mut places, &edge, g.var()?)?;
                        slices.remove(&(edge.node.seq, edge.nr));
                    }
                }
            }
        }
    }
    if let Some(watch) = watch {
        watch.finish();
    }
    stages.end()?;
    if let Targets::Inputs(_) = targets
        && !allow_unused
        && found.iter().any(Option::is_none)
    {
        bail!(
            Runtime,
            "one of the differentiated tensors appears to not have been used in the graph: set allow_unused=True if this is the desired behavior"
        );
    }
    Ok(found)
}

/// A pass that goes through several stages of a pipeline ends in a cut: the first stage has to wait for its gradient, and
/// must be free to begin with the next micro-batch meanwhile.
struct Stages {
    stream: Arc<Stream>,
    moves: u64,
}

impl Stages {
    fn begin() -> Result<Stages> {
        let (_, stream) = crate::current::current()?;
        Ok(Stages { moves: stream.moves(), stream })
    }

    fn end(self) -> Result<()> {
        if self.stream.moves() == self.moves { Ok(()) } else { self.stream.flush() }
    }
}

/// The nodes from which a gradient can reach one of `targets`. Operands are always older than their node.
fn leading_to(targets: HashSet<u64, FixedState>, roots: Vec<Arc<Node>>) -> HashSet<u64, FixedState> {
    let oldest = targets.iter().min().copied().unwrap_or(0);
    let mut seen: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let mut pending = roots;
    while let Some(node) = pending.pop() {
        if node.seq < oldest || seen.contains_key(&node.seq) {
            continue;
        }
        let operands: Vec<Edge> = edges_of(&node).into_iter().flatten().collect();
        seen.insert(node.seq, operands.iter().map(|e| e.node.seq).collect());
        pending.extend(operands.into_iter().map(|e| e.node));
    }
    let mut leading = targets;
    for (seq, operands) in seen {
        if operands.iter().any(|s| leading.contains(s)) {
            leading.insert(seq);
        }
    }
    leading
}

/// The signals in which the gradients of leaves were made, by the leaves' numbers.
type Places = HashMap<u64, u32, FixedState>;

/// What hooks make of the gradients that have arrived. Those that only keep a gradient come last.
fn run_hooks(node: &Node, arrived: &mut Incoming) -> Result<()> {
    let Some(hooks) = node.hooks.get() else { return Ok(()) };
    let hooks: Vec<_> = hooks.lock().clone();
    for keeps in [false, true] {
        for hook in hooks.iter().filter(|hook| hook.keeps == keeps) {
            if let Some(Some(g)) = arrived.get_mut(hook.nr as usize) {
                let given = Tensor::from_var(g.clone());
                if let Some(changed) = (hook.call)(&given)? {
                    *g = changed.var()?;
                }
            }
        }
    }
    Ok(())
}

/// True for ops whose gradient depends on where the operand lies and not on how much it is: one of constants is constant.
/// Its own gradient is zero, but there is one.
fn in_pieces(op: &Op) -> bool {
    matches!(
        op,
        Op::Where
            | Op::Unary(Unary::Relu)
            | Op::Binary(Binary::Max | Binary::Min)
            | Op::Reduce { kind: ReduceKind::Max | ReduceKind::Min, .. }
    )
}

/// Adds a gradient to what a node has already; true if it is the first.
fn deliver(
    queue: &mut BinaryHeap<Ready>,
    incoming: &mut HashMap<u64, Incoming, FixedState>,
    places: &mut Places,
    edge: &Edge,
    g: Var,
) -> Result<bool> {
    let nr = edge.nr as usize;
    let signal = signal::now().forward;
    if signal != 0 && matches!(edge.node.kind, NodeKind::Leaf(_)) {
        places.insert(edge.node.seq, signal);
    }
    let slots = match incoming.entry(edge.node.seq) {
        std::collections::hash_map::Entry::Occupied(e) => e.into_mut(),
        std::collections::hash_map::Entry::Vacant(e) => {
            queue.push(Ready(edge.node.seq, edge.node.clone()));
            let outputs = match &edge.node.kind {
                NodeKind::Custom(_, types) => types.len(),
                NodeKind::Op(op) => op.results(edge.node.args.lock().len()),
                NodeKind::Leaf(_) => 1,
            };
            e.insert(SmallVec::from_elem(None, outputs))
        }
    };
    let fresh = slots[nr].is_none();
    slots[nr] = Some(match slots[nr].take() {
        None => g,
        Some(before) => {
            Recorder.emit(Op::Binary(Binary::Add), smallvec![Operand::Val(before), Operand::Val(g)])?
        }
    });
    Ok(fresh)
}

/// The dimension along which a slice without gaps is cut, and where it begins and ends.
fn extent(view: &View, start: i64) -> Option<(usize, (i64, i64))> {
    match view {
        View::Slice { dim, len, step: 1 } => Some((*dim, (start, start + *len as i64))),
        _ => None,
    }
}

/// Adds the gradient of a slice to one that its base has already, at the cost of the slice. False if there is none yet.
/// Where that has been zero so far, the gradient takes its place as it is.
fn add_slice(
    incoming: &mut HashMap<u64, Incoming, FixedState>,
    slices: &mut Slices,
    edge: &Edge,
    view: &View,
    kept: &[Kept<Var>],
    arrived: &Incoming,
) -> Result<bool> {
    let slot = incoming.get_mut(&edge.node.seq).and_then(|slots| slots.get_mut(edge.nr as usize));
    let (Some(Some(before)), Some(Some(g))) = (slot, arrived.first()) else {
        return Ok(false);
    };
    let Some(Kept::Num(start)) = kept.get(1) else { return Ok(false) };
    let part = match slices.get_mut(&(edge.node.seq, edge.nr)).zip(extent(view, start.as_i64())) {
        Some(((dim, cuts), (along, cut)))
            if *dim == along && cuts.iter().all(|x| cut.1 <= x.0 || x.1 <= cut.0) =>
        {
            cuts.push(cut);
            g.clone()
        }
        _ => {
            slices.remove(&(edge.node.seq, edge.nr));
            let part = Recorder.view(before, view.clone(), Some(start.as_i64()))?;
            Recorder.add(&part, g)?
        }
    };
    let args = smallvec![Operand::Val(before.clone()), Operand::Val(part), Operand::Num(*start)];
    *before = Recorder.emit(Op::Put { path: vec![view.clone()] }, args)?;
    Ok(true)
}

fn accumulate(slot: &super::GradSlot, g: Var, create: bool) -> Result<()> {
    let unbroken = Unbroken::begin();
    let mut grad = slot.grad.lock();
    let next = match &*grad {
        None => Tensor::from_var(if create { g } else { Var::plain(g.value) }),
        Some(old) if create => Tensor::from_var(Recorder.add(&old.var()?, &g)?),
        Some(old) => {
            let sum = Recorder.add(&old.var()?, &g)?;
            old.assign(sum.value)?;
            old.clone()
        }
    };
    let before = grad.replace(next.clone());
    drop(grad);
    drop(before);
    unbroken.end(|| next.session())?;
    let hooks: Vec<_> = slot.post_hooks.lock().iter().map(|(_, h, _)| h.clone()).collect();
    for hook in hooks {
        hook()?;
    }
    Ok(())
}

type Unpacked = (SmallVec<[Kept<Var>; 3]>, SmallVec<[Var; 1]>, SmallVec<[Option<Edge>; 3]>);

/// What the gradient rule may look at, with versions checked.
fn unpack(node: &Arc<Node>) -> Result<Unpacked> {
    if node.freed.load(Ordering::Relaxed) {
        return Err(second_time());
    }
    let args = node.args.lock();
    let mut kept = SmallVec::new();
    let mut edges = SmallVec::new();
    for arg in args.iter() {
        match arg {
            NodeArg::Num(x) => {
                kept.push(Kept::Num(*x));
                edges.push(None);
            }
            NodeArg::Val { ty, edge, saved } => {
                let value = match saved {
                    Some(s) => Some(Var { value: check(s)?, edge: edge.clone(), owner: None }),
                    None => None,
                };
                kept.push(Kept::Val(ty.clone(), value));
                edges.push(edge.clone());
            }
        }
    }
    let mut outs = SmallVec::new();
    for (nr, s) in node.outs.lock().iter().enumerate() {
        let value = check(s)?;
        let edge = value.ty.dtype.is_float().then(|| Edge { node: node.clone(), nr: nr as u32 });
        outs.push(Var { value, edge, owner: None });
    }
    Ok((kept, outs, edges))
}

/// True if a gradient goes on from a node.
fn flows_on(node: &Node, leads: impl Fn(&Edge) -> bool) -> bool {
    node.args.lock().iter().any(|arg| matches!(arg, NodeArg::Val { edge: Some(edge), .. } if leads(edge)))
}

fn edges_of(node: &Node) -> Vec<Option<Edge>> {
    node.args
        .lock()
        .iter()
        .map(|a| match a {
            NodeArg::Val { edge, .. } => edge.clone(),
            NodeArg::Num(_) => None,
        })
        .collect()
}

fn check(saved: &SavedValue) -> Result<crate::value::Value> {
    if let Some((counter, at)) = &saved.version {
        let now = counter.load(Ordering::Relaxed);
        if now != *at {
            bail!(
                Runtime,
                "one of the variables needed for gradient computation has been modified by an inplace operation: \
                 [gt.{} {}] is at version {now}; expected version {at} instead. Hint: clone the tensor before \
                 changing it in place, or use the out-of-place form of the operation.",
                saved.value.ty.dtype.name(),
                saved.value.ty.shape
            );
        }
    }
    Ok(saved.value.clone())
}

/// Lets go of saved values; a later backward pass through here fails if there were any.
pub(super) fn release(node: &Node, keep: bool) {
    if keep {
        return;
    }
    let mut dropped: SmallVec<[SavedValue; 3]> = SmallVec::new();
    for arg in node.args.lock().iter_mut() {
        if let NodeArg::Val { saved, .. } = arg {
            dropped.extend(saved.take());
        }
    }
    dropped.extend(node.outs.lock().drain(..));
    if !dropped.is_empty() {
        node.freed.store(true, Ordering::Relaxed);
    }
}

fn second_time() -> Error {
    Error::Runtime(
        "Trying to backward through the graph a second time (or directly access saved tensors after they have already \
         been freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). \
         Specify retain_graph=True if you need to backward through the graph a second time or if you need to access \
         saved tensors after calling backward."
            .into(),
    )
}
