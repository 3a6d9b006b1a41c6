//! Recording one op: type rule, instruction, and a node of the graph where gradients flow.

use super::mode::grad_enabled;
use super::node::{Edge, Node, NodeArg, NodeKind, SavedValue};
use crate::cell::Cell;
use crate::current::Place;
use crate::session::Session;
use crate::stream::{RecordArg, Stream};
use crate::value::Value;
use crate::wait::Unbroken;
use gt_ir::build::Values;
use gt_ir::{ArgTy, Build, Error, Op, Operand, Operands, Result, Ty, infer, infer_all};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// A value with its place in the autograd graph.
#[derive(Clone)]
pub struct Var {
    pub value: Value,
    pub edge: Option<Edge>,
    /// The storage it was read from, whose version the graph watches.
    pub owner: Option<Arc<Cell>>,
}

impl Var {
    /// A value without gradient history.
    pub fn plain(value: Value) -> Var {
        Var { value, edge: None, owner: None }
    }

    /// The session it belongs to.
    pub fn session(&self) -> Result<Arc<Session>> {
        self.value.session()
    }
}

/// Records one op of one result.
pub fn record(op: Op, args: Operands<Var>) -> Result<Var> {
    let Some(first) = args.iter().find_map(Operand::val) else {
        let (session, stream) = crate::current::current()?;
        return record_in(&session, &stream, op, args);
    };
    let place = Place::of(&first.value)?;
    let out = record_in(&place.session, &place.stream, op, args);
    place.put_back();
    out
}

/// Records one op and gives all its results.
pub fn record_all(op: Op, args: Operands<Var>) -> Result<Values<Var>> {
    if op.results(args.len()) == 1 {
        return record(op, args).map(|var| smallvec![var]);
    }
    let Some(first) = args.iter().find_map(Operand::val) else {
        return Err(Error::Type(format!("{}: expected a tensor, got numbers alone", op.text())));
    };
    let place = Place::of(&first.value)?;
    let out = record_all_in(&place.session, &place.stream, op, args);
    place.put_back();
    out
}

fn record_all_in(
    session: &Session,
    stream: &Arc<Stream>,
    op: Op,
    args: Operands<Var>,
) -> Result<Values<Var>> {
    let Read { types: operands, list, tracked } = read(session, &op, &args)?;
    let mut values = Vec::new();
    if !stream.follow(session, &op, &list, |value| values.push(value))? {
        let types = infer_all(&op, &operands)?;
        values = stream.append_all(session, op.clone(), &list, types)?;
    }
    drop((operands, list));
    let tracked = tracked && op.differentiable();
    let node = tracked.then(|| op_node(op, args, &values));
    after_op(session)?;
    let var = |(nr, value): (usize, Value)| {
        let flows = value.ty.dtype.is_float();
        let node = node.as_ref().filter(|_| flows);
        Var { edge: node.map(|node| Edge { node: node.clone(), nr: nr as u32 }), value, owner: None }
    };
    Ok(values.into_iter().enumerate().map(var).collect())
}

/// Operands as the type rule and the stream take them.
struct Read<'a> {
    types: SmallVec<[ArgTy<'a>; 4]>,
    list: SmallVec<[RecordArg<'a>; 4]>,
    /// A gradient flows to one of them.
    tracked: bool,
}

#[inline(always)]
fn read<'a>(session: &Session, op: &Op, args: &'a Operands<Var>) -> Result<Read<'a>> {
    session.before_op()?;
    let enabled = grad_enabled();
    let mut tracked = false;
    let mut types: SmallVec<[ArgTy; 4]> = SmallVec::new();
    let mut list: SmallVec<[RecordArg; 4]> = SmallVec::new();
    for arg in args {
        match arg {
            Operand::Val(v) => {
                if v.value.stream.session_id != session.number {
                    return Err(Error::Runtime(format!(
                        "{}: operands belong to two different sessions: bring one over with gt.tensor(x.numpy())",
                        op.text()
                    )));
                }
                tracked |= enabled && v.edge.is_some();
                types.push(ArgTy::Val(&v.value.ty));
                list.push(RecordArg::Val(&v.value));
            }
            Operand::Num(x) => {
                types.push(ArgTy::Num);
                list.push(RecordArg::Num(*x));
            }
        }
    }
    Ok(Read { types, list, tracked })
}

/// Records one op in a given stream.
pub fn record_in(session: &Arc<Session>, stream: &Arc<Stream>, op: Op, args: Operands<Var>) -> Result<Var> {
    let Read { types, list, tracked } = read(session, &op, &args)?;
    let mut known = None;
    if stream.follow(session, &op, &list, |value| known = Some(value))?
        && let Some(value) = known
    {
        drop((types, list));
        let tracked = tracked && value.ty.dtype.is_float() && op.differentiable();
        let node = tracked.then(|| op_node(op, args, std::slice::from_ref(&value)));
        after_op(session)?;
        return Ok(Var { value, edge: node.map(|node| Edge { node, nr: 0 }), owner: None });
    }
    let ty = infer(&op, &types)?;
    drop(types);
    let tracked = tracked && ty.dtype.is_float() && op.differentiable();
    if !tracked {
        let value = stream.append(session, op, &list, ty)?;
        drop(list);
        after_op(session)?;
        return Ok(Var::plain(value));
    }
    let value = stream.append(session, op.clone(), &list, ty)?;
    drop(list);
    let edge = Some(Edge { node: op_node(op, args, std::slice::from_ref(&value)), nr: 0 });
    after_op(session)?;
    Ok(Var { value, edge, owner: None })
}

/// The node for an op whose results are `values`.
pub(crate) fn op_node(op: Op, args: Operands<Var>, values: &[Value]) -> Arc<Node> {
    let wanted: SmallVec<[bool; 4]> =
        args.iter().map(|arg| arg.val().is_some_and(|v| v.edge.is_some())).collect();
    let needs = op.needs_for(&wanted);
    let kept = args
        .into_iter()
        .enumerate()
        .map(|(i, arg)| match arg {
            Operand::Num(x) => NodeArg::Num(x),
            Operand::Val(v) => {
                let saved = (needs.args >> i & 1 == 1).then(|| SavedValue {
                    value: v.value.clone(),
                    version: v.owner.map(|cell| {
                        let counter = cell.version_handle();
                        let at = counter.load(std::sync::atomic::Ordering::Relaxed);
                        (counter, at)
                    }),
                });
                NodeArg::Val { ty: v.value.ty.clone(), edge: v.edge, saved }
            }
        })
        .collect();
    let node = Node::new(NodeKind::Op(op), kept, values[0].ty.clone());
    if needs.outs {
        node.outs.lock().extend(values.iter().map(|v| SavedValue { value: v.clone(), version: None }));
    }
    node
}

/// `GT_SYNC=1`: run each op as it is recorded.
fn after_op(session: &Session) -> Result<()> {
    if session.settings.sync && !Unbroken::puts_off() {
        session.catch_up_all()?;
    }
    Ok(())
}

/// Writes gradient rules and decompositions into the current stream.
pub struct Recorder;

impl Build for Recorder {
    type V = Var;

    fn ty(&self, v: &Var) -> Ty {
        v.value.ty.clone()
    }

    fn emit(&mut self, op: Op, args: Operands<Var>) -> Result<Var> {
        record(op, args)
    }

    fn emit_all(&mut self, op: Op, args: Operands<Var>) -> Result<Values<Var>> {
        record_all(op, args)
    }
}
