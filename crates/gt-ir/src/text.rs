//! The text form of programs: one instruction per line, in every log, and it parses back.
//!
//! ```text
//! in TENSOR[0] f32[4, 3] as 17 dies        value 0 is the session's tensor 17, which dies here
//! slot $0 = 1                              a number outside the plan key; bytes are `data 00ff`
//! TENSOR[1] := SLICE{dim=0,len=2,step=1} TENSOR[0] $0
//! TENSOR[2] := MUL TENSOR[1] 0.5
//! out TENSOR[2] as 18                      value 2 outlives the program as the session's tensor 18
//! free 17
//! ```
//!
//! An instruction of several results reads `TENSOR[1], TENSOR[2] := SORT{dim=0,descending=false} TENSOR[0]`.
//! Values are numbered as in the structure: inputs first, then results. A structure alone has no `as`, no slot values
//! and no frees. Floats carry a point, an exponent, `inf` or `NaN`, so that the kind of a number survives.

use crate::collective::{Collective, Exchange};
use crate::op::{ArgKind, Dist, Op, ReduceKind, ScanKind, ScatterMode, View};
use crate::program::{Arg, Input, Instr, Program, Slot, Structure, TensorId};
use crate::{DType, Scalar};
use std::fmt::Write;

mod parse;
pub use parse::{parse, parse_structure};

/// The value of an attribute.
#[derive(Clone, PartialEq, Debug)]
enum Attr {
    Int(i64),
    Flag(bool),
    DType(DType),
    Ints(Vec<usize>),
    Mode(ScatterMode),
    Kind(ReduceKind),
    Path(Vec<View>),
}

/// The attributes of an op under their names, in the order they are written.
fn attrs(op: &Op) -> Vec<(&'static str, Attr)> {
    let int = |x: usize| Attr::Int(x as i64);
    let ints = |x: &[usize]| Attr::Ints(x.to_vec());
    match op {
        Op::Full { shape, dtype } | Op::Data { shape, dtype } => {
            vec![("shape", ints(shape)), ("dtype", Attr::DType(*dtype))]
        }
        Op::Arange { len, dtype } => vec![("len", int(*len)), ("dtype", Attr::DType(*dtype))],
        Op::Random { dist, shape, dtype } => {
            let mut out = vec![("shape", ints(shape)), ("dtype", Attr::DType(*dtype))];
            match dist {
                Dist::Uniform | Dist::Normal => {}
                Dist::Int { low, high } => {
                    out.extend([("low", Attr::Int(*low)), ("high", Attr::Int(*high))]);
                }
            }
            out
        }
        Op::Unary(_) | Op::Binary(_) | Op::Where => vec![],
        Op::Cast(dtype) => vec![("dtype", Attr::DType(*dtype))],
        Op::View(view) => view_attrs(view),
        Op::Pad { lo, hi } => vec![("lo", ints(lo)), ("hi", ints(hi))],
        Op::Concat { dim } | Op::Gather { dim } | Op::Take { dim } => vec![("dim", int(*dim))],
        Op::Softmax { dim } | Op::LogSoftmax { dim } => vec![("dim", int(*dim))],
        Op::RmsNorm { dims } | Op::LayerNorm { dims } => vec![("last", int(*dims))],
        Op::CrossEntropy => vec![],
        Op::Attention { causal } | Op::AttentionGrad { causal } => vec![("causal", Attr::Flag(*causal))],
        Op::Sgd { momentum, first, dampened, nesterov, maximize, decay } => [
            ("momentum", momentum),
            ("first", first),
            ("dampened", dampened),
            ("nesterov", nesterov),
            ("maximize", maximize),
            ("decay", decay),
        ]
        .map(|(name, on)| (name, Attr::Flag(*on)))
        .to_vec(),
        Op::Adam { decoupled, amsgrad, maximize, decay } => {
            [("decoupled", decoupled), ("amsgrad", amsgrad), ("maximize", maximize), ("decay", decay)]
                .map(|(name, on)| (name, Attr::Flag(*on)))
                .to_vec()
        }
        Op::Collective(c) => collective_attrs(c),
        Op::Flip { dims } => vec![("dims", ints(dims))],
        Op::Put { path } => vec![("path", Attr::Path(path.clone()))],
        Op::Reduce {
            kind: ReduceKind::Sum | ReduceKind::Prod | ReduceKind::Max | ReduceKind::Min,
            dims,
            keepdim,
        } => {
            vec![("dims", ints(dims)), ("keepdim", Attr::Flag(*keepdim))]
        }
        Op::ArgReduce { kind: ArgKind::Max | ArgKind::Min, dim, keepdim } => {
            vec![("dim", int(*dim)), ("keepdim", Attr::Flag(*keepdim))]
        }
        Op::Scan { kind: ScanKind::Sum | ScanKind::Prod, dim } => vec![("dim", int(*dim))],
        Op::Matmul { ta, tb, tf32 } => {
            let quick = tf32.then_some(("tf32", Attr::Flag(true)));
            [("ta", Attr::Flag(*ta)), ("tb", Attr::Flag(*tb))].into_iter().chain(quick).collect()
        }
        Op::Scatter { dim, mode } | Op::TakePut { dim, mode } => {
            vec![("dim", int(*dim)), ("mode", Attr::Mode(*mode))]
        }
        Op::Sort { dim, descending } => vec![("dim", int(*dim)), ("descending", Attr::Flag(*descending))],
        Op::TopK { dim, k, largest } => {
            vec![("dim", int(*dim)), ("k", int(*k)), ("largest", Attr::Flag(*largest))]
        }
    }
}

fn collective_attrs(c: &Collective) -> Vec<(&'static str, Attr)> {
    let int = |x: usize| Attr::Int(x as i64);
    let ints = |x: &[usize]| Attr::Ints(x.to_vec());
    let mut out = vec![("number", int(c.number as usize)), ("axis", int(c.axis as usize))];
    match &c.what {
        Exchange::AllReduce { kind } => out.push(("kind", Attr::Kind(*kind))),
        Exchange::AllGather { dim, sizes } => out.extend([("dim", int(*dim)), ("sizes", ints(sizes))]),
        Exchange::ReduceScatter { kind, dim, lens } => {
            out.extend([("kind", Attr::Kind(*kind)), ("dim", int(*dim)), ("lens", ints(lens))]);
        }
        Exchange::AllToAll { from, to, sizes, lens } => {
            out.extend([
                ("from", int(*from)),
                ("to", int(*to)),
                ("sizes", ints(sizes)),
                ("lens", ints(lens)),
            ]);
        }
        Exchange::Broadcast { root } => out.push(("root", int(*root))),
    }
    out
}

fn view_attrs(view: &View) -> Vec<(&'static str, Attr)> {
    match view {
        View::Reshape(shape) | View::Expand(shape) => vec![("shape", Attr::Ints(shape.to_vec()))],
        View::Permute(perm) => vec![("perm", Attr::Ints(perm.to_vec()))],
        View::Slice { dim, len, step } => vec![
            ("dim", Attr::Int(*dim as i64)),
            ("len", Attr::Int(*len as i64)),
            ("step", Attr::Int(*step as i64)),
        ],
    }
}

const KINDS: [ReduceKind; 4] = [ReduceKind::Sum, ReduceKind::Prod, ReduceKind::Max, ReduceKind::Min];

const MODES: [(&str, ScatterMode); 3] =
    [("set", ScatterMode::Set), ("add", ScatterMode::Add), ("max", ScatterMode::Max)];

fn write_op(out: &mut String, op: &Op) {
    out.push_str(op.text());
    let attrs = attrs(op);
    if attrs.is_empty() {
        return;
    }
    out.push('{');
    for (i, (name, value)) in attrs.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        out.push_str(name);
        out.push('=');
        write_attr(out, value);
    }
    out.push('}');
}

fn write_attr(out: &mut String, value: &Attr) {
    fn list<T>(out: &mut String, items: &[T], mut each: impl FnMut(&mut String, &T)) {
        out.push('[');
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                out.push(',');
            }
            each(out, item);
        }
        out.push(']');
    }
    match value {
        Attr::Int(x) => out.push_str(&x.to_string()),
        Attr::Flag(x) => out.push_str(&x.to_string()),
        Attr::DType(x) => out.push_str(x.short()),
        Attr::Mode(mode) => out.extend(MODES.iter().filter(|m| m.1 == *mode).map(|m| m.0)),
        Attr::Kind(kind) => out.push_str(kind.text()),
        Attr::Ints(x) => list(out, x, |out, x| out.push_str(&x.to_string())),
        Attr::Path(path) => list(out, path, |out, view| write_op(out, &Op::View(view.clone()))),
    }
}

/// A number such that its kind and bits survive.
fn write_scalar(out: &mut String, x: Scalar) {
    match x {
        Scalar::Float(f) if f.is_nan() && f.to_bits() != f64::NAN.to_bits() => {
            let _ = write!(out, "NaN({:x})", f.to_bits());
        }
        x => {
            let _ = write!(out, "{x}");
        }
    }
}

fn write_instr(out: &mut String, first: u32, instr: &Instr) {
    for k in 0..instr.results() as u32 {
        let _ = write!(out, "{}TENSOR[{}]", if k > 0 { ", " } else { "" }, first + k);
    }
    out.push_str(" := ");
    write_op(out, &instr.op);
    for arg in &instr.args {
        out.push(' ');
        match arg {
            Arg::Value(v) => {
                let _ = write!(out, "TENSOR[{v}]");
            }
            Arg::Const(x) => write_scalar(out, *x),
            Arg::Slot(k) => {
                let _ = write!(out, "${k}");
            }
        }
    }
}

impl Structure {
    /// The line of every instruction, in order: `TENSOR[3] := ADD TENSOR[0] TENSOR[2]`.
    pub fn lines(&self) -> impl Iterator<Item = String> + '_ {
        let mut next = self.inputs.len() as u32;
        self.instrs.iter().map(move |instr| {
            let mut line = String::new();
            write_instr(&mut line, next, instr);
            next += instr.results() as u32;
            line
        })
    }
}

impl Program {
    /// The line of every instruction, in order, for logs. Values carry the structure's numbers; `to_text` maps them
    /// to the session's ids.
    pub fn log_lines(&self) -> impl Iterator<Item = String> + '_ {
        self.structure.lines()
    }
}

/// The text of a bound program.
pub fn to_text(program: &Program) -> String {
    write_all(&program.structure, Some(program))
}

/// The text of a structure alone.
pub fn structure_to_text(structure: &Structure) -> String {
    write_all(structure, None)
}

fn write_all(structure: &Structure, bound: Option<&Program>) -> String {
    let mut out = String::new();
    let id = |out: &mut String, ids: Option<&Vec<TensorId>>, i: usize| {
        if let Some(TensorId(id)) = ids.and_then(|ids| ids.get(i)) {
            let _ = write!(out, " as {id}");
        }
    };
    for (i, Input { ty, dies }) in structure.inputs.iter().enumerate() {
        let _ = write!(out, "in TENSOR[{i}] {ty}");
        id(&mut out, bound.map(|p| &p.inputs), i);
        out.push_str(if *dies { " dies\n" } else { "\n" });
    }
    for k in 0..structure.slots {
        let _ = write!(out, "slot ${k}");
        match bound.and_then(|p| p.slots.get(k as usize)) {
            None => {}
            Some(Slot::Num(x)) => {
                out.push_str(" = ");
                write_scalar(&mut out, *x);
            }
            Some(Slot::Data(bytes)) => {
                out.push_str(" = data ");
                for b in bytes.iter() {
                    let _ = write!(out, "{b:02x}");
                }
            }
        }
        out.push('\n');
    }
    for line in structure.lines() {
        out.push_str(&line);
        out.push('\n');
    }
    for (i, v) in structure.outs.iter().enumerate() {
        let _ = write!(out, "out TENSOR[{v}]");
        id(&mut out, bound.map(|p| &p.outs), i);
        out.push('\n');
    }
    for TensorId(id) in bound.map_or(&[][..], |p| &p.frees) {
        let _ = writeln!(out, "free {id}");
    }
    out
}
