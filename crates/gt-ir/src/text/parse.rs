//! Reads the text form. Every error names its line; no input makes it panic.

use super::{Attr, KINDS, MODES};
use crate::collective::{Collective, Exchange};
use crate::elementwise::{Binary, Unary};
use crate::op::{ArgKind, Dist, Op, ReduceKind, ScanKind, View};
use crate::program::{Arg, Args, Input, Instr, MAX_INSTRS, Program, Slot, Structure, TensorId};
use crate::{DType, Ints, Result, Scalar, Shape, Ty, bail};
use std::sync::Arc;

/// Reads a bound program. What comes back is well formed: its structure and its binding have been checked.
pub fn parse(text: &str) -> Result<Program> {
    let read = read(text)?;
    let unbound =
        |what: &str| crate::Error::Value(format!("text: expected {what} for every line of its kind"));
    let inputs = read.inputs.into_iter().collect::<Option<Vec<_>>>().ok_or_else(|| unbound("`as ID`"))?;
    let outs = read.outs.into_iter().collect::<Option<Vec<_>>>().ok_or_else(|| unbound("`as ID`"))?;
    let slots = read.slots.into_iter().collect::<Option<Vec<_>>>().ok_or_else(|| unbound("`= VALUE`"))?;
    let structure = Arc::new(read.structure);
    let key = structure.key();
    let program = Program { structure, key, inputs, outs, slots, frees: read.frees };
    program.check_binding(&read.types)?;
    Ok(program)
}

/// Reads a structure; bindings that the text may hold are passed over.
pub fn parse_structure(text: &str) -> Result<Structure> {
    read(text).map(|read| read.structure)
}

#[derive(Default)]
struct Read {
    structure: Structure,
    types: Vec<Ty>,
    inputs: Vec<Option<TensorId>>,
    outs: Vec<Option<TensorId>>,
    slots: Vec<Option<Slot>>,
    frees: Vec<TensorId>,
}

fn read(text: &str) -> Result<Read> {
    let mut read = Read::default();
    for (i, line) in text.lines().enumerate() {
        let mut cursor = Cursor { rest: line.trim() };
        if cursor.rest.is_empty() || cursor.rest.starts_with('#') {
            continue;
        }
        read.line(&mut cursor).map_err(|e| e.map_message(|m| format!("line {}: {m}", i + 1)))?;
    }
    Ok(read)
}

impl Read {
    fn line(&mut self, c: &mut Cursor) -> Result<()> {
        if c.eat("in ") {
            self.input(c)?;
        } else if c.eat("slot ") {
            self.slot(c)?;
        } else if c.eat("out ") {
            let v = c.value()?;
            if v as usize >= self.types.len() {
                bail!(Value, "live-out {v} of {} values", self.types.len());
            }
            self.structure.outs.push(v);
            self.outs.push(c.bound_id()?);
        } else if c.eat("free ") {
            self.frees.push(TensorId(c.number("an id")?));
        } else {
            self.instr(c)?;
        }
        c.end()
    }

    fn input(&mut self, c: &mut Cursor) -> Result<()> {
        let v = c.value()?;
        if v as usize != self.structure.inputs.len() || !self.structure.instrs.is_empty() {
            bail!(Value, "expected TENSOR[{}], inputs first and in order", self.structure.inputs.len());
        }
        let dtype = c.dtype()?;
        let ty = Ty { dtype, shape: Shape(c.ints()?) };
        ty.shape.check("input", ty.dtype)?;
        let id = c.bound_id()?;
        c.space();
        let dies = c.eat("dies");
        self.structure.inputs.push(Input { ty: ty.clone(), dies });
        self.types.push(ty);
        self.inputs.push(id);
        self.room()
    }

    fn slot(&mut self, c: &mut Cursor) -> Result<()> {
        c.expect("$")?;
        let k: u32 = c.number("a slot number")?;
        if k != self.structure.slots {
            bail!(Value, "expected slot ${}, slots are in order", self.structure.slots);
        }
        c.space();
        let slot = if !c.eat("=") {
            None
        } else {
            c.space();
            Some(if c.eat("data") {
                c.space();
                Slot::Data(Arc::new(c.hex()?))
            } else {
                Slot::Num(c.scalar()?)
            })
        };
        self.structure.slots += 1;
        self.slots.push(slot);
        Ok(())
    }

    fn instr(&mut self, c: &mut Cursor) -> Result<()> {
        let mut results = 0;
        loop {
            let result = c.value()?;
            if result as usize != self.types.len() + results {
                bail!(Value, "expected TENSOR[{}], results are in order", self.types.len() + results);
            }
            results += 1;
            c.space();
            if !c.eat(",") {
                break;
            }
            c.space();
        }
        c.expect(":=")?;
        c.space();
        let op = c.op(false)?;
        let mut args = Args::new();
        while c.space() && !c.rest.is_empty() {
            args.push(c.arg()?);
        }
        let instr = Instr { op, args };
        let types = self.structure.check_instr(self.structure.instrs.len(), &instr, &self.types)?;
        if types.len() != results {
            bail!(Value, "{} has {} results, got {results}", instr.op.text(), types.len());
        }
        self.structure.instrs.push(instr);
        self.types.extend(types);
        self.room()
    }

    fn room(&self) -> Result<()> {
        if self.types.len() > MAX_INSTRS {
            bail!(Value, "at most {MAX_INSTRS} values are possible");
        }
        Ok(())
    }
}

/// What is left of a line.
struct Cursor<'a> {
    rest: &'a str,
}

impl<'a> Cursor<'a> {
    /// Passes over spaces; true if there were any.
    fn space(&mut self) -> bool {
        let trimmed = self.rest.trim_start();
        let moved = trimmed.len() < self.rest.len();
        self.rest = trimmed;
        moved
    }

    fn eat(&mut self, word: &str) -> bool {
        match self.rest.strip_prefix(word) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, word: &str) -> Result<()> {
        if !self.eat(word) {
            bail!(Value, "expected `{word}`, got {}", self.here());
        }
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        self.space();
        if !self.rest.is_empty() {
            bail!(Value, "expected the end of the line, got {}", self.here());
        }
        Ok(())
    }

    /// The next few characters, for messages.
    fn here(&self) -> String {
        match self.rest.char_indices().nth(20) {
            _ if self.rest.is_empty() => "the end of the line".into(),
            Some((i, _)) => format!("{:?}...", &self.rest[..i]),
            None => format!("{:?}", self.rest),
        }
    }

    fn take_while(&mut self, keep: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|ch| !keep(ch)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    fn number<T: std::str::FromStr>(&mut self, what: &str) -> Result<T> {
        let here = self.here();
        match self.take_while(|ch| ch.is_ascii_digit() || ch == '-').parse() {
            Ok(x) => Ok(x),
            Err(_) => bail!(Value, "expected {what}, got {here}"),
        }
    }

    /// `TENSOR[3]`.
    fn value(&mut self) -> Result<u32> {
        self.expect("TENSOR[")?;
        let v = self.number("a value number")?;
        self.expect("]")?;
        self.space();
        Ok(v)
    }

    /// ` as 17`, which may be missing.
    fn bound_id(&mut self) -> Result<Option<TensorId>> {
        self.space();
        if !self.eat("as ") {
            return Ok(None);
        }
        Ok(Some(TensorId(self.number("an id")?)))
    }

    fn dtype(&mut self) -> Result<DType> {
        let here = self.here();
        let name = self.take_while(|ch| ch.is_ascii_alphanumeric());
        match DType::ALL.into_iter().find(|d| d.short() == name) {
            Some(dtype) => Ok(dtype),
            None => bail!(Value, "expected a dtype, got {here}"),
        }
    }

    /// `[1, 2]`, each element read by `each`.
    fn list<T>(&mut self, mut each: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        self.expect("[")?;
        let mut out = Vec::new();
        self.space();
        if self.eat("]") {
            return Ok(out);
        }
        loop {
            self.space();
            out.push(each(self)?);
            self.space();
            if self.eat("]") {
                return Ok(out);
            }
            self.expect(",")?;
        }
    }

    fn ints(&mut self) -> Result<Ints> {
        Ok(self.list(|c| c.number("a size"))?.into())
    }

    fn hex(&mut self) -> Result<Vec<u8>> {
        let digits = self.take_while(|ch| ch.is_ascii_hexdigit());
        if !digits.len().is_multiple_of(2) {
            bail!(Value, "expected pairs of hex digits, got {} digits", digits.len());
        }
        let value = |d: u8| (d as char).to_digit(16).unwrap_or(0) as u8;
        Ok(digits.as_bytes().chunks_exact(2).map(|d| value(d[0]) << 4 | value(d[1])).collect())
    }

    fn scalar(&mut self) -> Result<Scalar> {
        let here = self.here();
        let word = self.take_while(|ch| !ch.is_whitespace());
        let odd_nan = word.strip_prefix("NaN(").and_then(|w| w.strip_suffix(')'));
        if let Some(bits) = odd_nan.and_then(|bits| u64::from_str_radix(bits, 16).ok()) {
            return Ok(Scalar::Float(f64::from_bits(bits)));
        }
        match word {
            "true" => Ok(Scalar::Bool(true)),
            "false" => Ok(Scalar::Bool(false)),
            _ => match (word.parse::<i64>(), word.parse::<f64>()) {
                (Ok(i), _) => Ok(Scalar::Int(i)),
                (_, Ok(_)) if word.bytes().all(|b| b.is_ascii_digit() || b == b'-' || b == b'+') => {
                    bail!(Value, "the integer {word} does not fit 64 bits")
                }
                (_, Ok(f)) => Ok(Scalar::Float(f)),
                _ => bail!(Value, "expected a number, got {here}"),
            },
        }
    }

    fn arg(&mut self) -> Result<Arg> {
        if self.rest.starts_with("TENSOR[") {
            self.expect("TENSOR[")?;
            let v = self.number("a value number")?;
            self.expect("]")?;
            Ok(Arg::Value(v))
        } else if self.eat("$") {
            Ok(Arg::Slot(self.number("a slot number")?))
        } else {
            self.scalar().map(Arg::Const)
        }
    }

    /// An op with its attributes. `nested`: a view inside a path, which holds no path itself.
    fn op(&mut self, nested: bool) -> Result<Op> {
        let name = self.take_while(|ch| ch.is_ascii_uppercase() || ch.is_ascii_digit() || ch == '_');
        let mut attrs = Attrs { name, list: Vec::new() };
        if self.eat("{") {
            loop {
                let key = self.take_while(|ch| ch.is_ascii_lowercase() || ch.is_ascii_digit());
                self.expect("=")?;
                let value = self.attr(key, nested)?;
                attrs.list.push((key, value));
                if self.eat("}") {
                    break;
                }
                self.expect(",")?;
            }
        }
        let op = attrs.op()?;
        match attrs.list.first() {
            Some((key, _)) => bail!(Value, "{name}: no attribute is called {key:?}"),
            None => Ok(op),
        }
    }

    fn attr(&mut self, key: &str, nested: bool) -> Result<Attr> {
        Ok(match key {
            "shape" | "perm" | "lo" | "hi" | "dims" | "sizes" | "lens" => {
                Attr::Ints(self.list(|c| c.number("a size"))?)
            }
            "dtype" => Attr::DType(self.dtype()?),
            "keepdim" | "ta" | "tb" | "tf32" | "descending" | "largest" | "causal" | "momentum" | "first"
            | "dampened" | "nesterov" | "maximize" | "decay" | "decoupled" | "amsgrad" => {
                let on = self.eat("true");
                if !on {
                    self.expect("false")?;
                }
                Attr::Flag(on)
            }
            "mode" => match MODES.iter().find(|m| self.eat(m.0)) {
                Some(mode) => Attr::Mode(mode.1),
                None => bail!(Value, "expected a scatter mode, got {}", self.here()),
            },
            "path" if !nested => Attr::Path(self.list(|c| match c.op(true)? {
                Op::View(view) => Ok(view),
                op => bail!(Value, "expected a view in a path, got {}", op.text()),
            })?),
            "kind" => match KINDS.iter().find(|k| self.eat(k.text())) {
                Some(kind) => Attr::Kind(*kind),
                None => bail!(Value, "expected a kind of reduction, got {}", self.here()),
            },
            "dim" | "len" | "step" | "low" | "high" | "k" | "last" | "number" | "axis" | "from" | "to"
            | "root" => Attr::Int(self.number("an integer")?),
            _ => bail!(Value, "no attribute is called {key:?}"),
        })
    }
}

/// The attributes of an op being read; what is taken is removed.
struct Attrs<'a> {
    name: &'a str,
    list: Vec<(&'a str, Attr)>,
}

macro_rules! take {
    ($fn:ident, $variant:ident, $t:ty) => {
        fn $fn(&mut self, key: &str) -> Result<$t> {
            match self.take(key)? {
                Attr::$variant(x) => Ok(x),
                other => bail!(Value, "{}: {key} cannot be {other:?}", self.name),
            }
        }
    };
}

impl Attrs<'_> {
    fn take(&mut self, key: &str) -> Result<Attr> {
        match self.list.iter().position(|(k, _)| *k == key) {
            Some(i) => Ok(self.list.remove(i).1),
            None => bail!(Value, "{}: the attribute {key} is missing", self.name),
        }
    }

    /// True if an attribute is there that need not be.
    fn has(&self, key: &str) -> bool {
        self.list.iter().any(|(k, _)| *k == key)
    }

    take!(int, Int, i64);
    take!(flag, Flag, bool);
    take!(dtype, DType, DType);
    take!(list, Ints, Vec<usize>);
    take!(mode, Mode, crate::ScatterMode);
    take!(path, Path, Vec<View>);
    take!(kind, Kind, ReduceKind);

    fn size(&mut self, key: &str) -> Result<usize> {
        let x = self.int(key)?;
        usize::try_from(x).or_else(|_| bail!(Value, "{}: expected {key} >= 0, got {x}", self.name))
    }

    fn ints(&mut self, key: &str) -> Result<Ints> {
        self.list(key).map(Into::into)
    }

    fn shape(&mut self) -> Result<Shape> {
        self.list("shape").map(Into::into)
    }

    fn random(&mut self, dist: Dist) -> Result<Op> {
        Ok(Op::Random { dist, shape: self.shape()?, dtype: self.dtype("dtype")? })
    }

    fn reduce(&mut self, kind: ReduceKind) -> Result<Op> {
        Ok(Op::Reduce { kind, dims: self.ints("dims")?, keepdim: self.flag("keepdim")? })
    }

    fn arg_reduce(&mut self, kind: ArgKind) -> Result<Op> {
        Ok(Op::ArgReduce { kind, dim: self.size("dim")?, keepdim: self.flag("keepdim")? })
    }

    fn exchange(&mut self) -> Result<Exchange> {
        Ok(match self.name {
            "ALLREDUCE" => Exchange::AllReduce { kind: self.kind("kind")? },
            "ALLGATHER" => Exchange::AllGather { dim: self.size("dim")?, sizes: self.ints("sizes")? },
            "REDUCESCATTER" => Exchange::ReduceScatter {
                kind: self.kind("kind")?,
                dim: self.size("dim")?,
                lens: self.ints("lens")?,
            },
            "ALLTOALL" => Exchange::AllToAll {
                from: self.size("from")?,
                to: self.size("to")?,
                sizes: self.ints("sizes")?,
                lens: self.ints("lens")?,
            },
            _ => Exchange::Broadcast { root: self.size("root")? },
        })
    }

    fn op(&mut self) -> Result<Op> {
        if let Some(op) = Unary::ALL.iter().find(|op| op.text() == self.name) {
            return Ok(Op::Unary(*op));
        }
        if let Some(op) = Binary::ALL.iter().find(|op| op.text() == self.name) {
            return Ok(Op::Binary(*op));
        }
        Ok(match self.name {
            "FULL" => Op::Full { shape: self.shape()?, dtype: self.dtype("dtype")? },
            "ARANGE" => Op::Arange { len: self.size("len")?, dtype: self.dtype("dtype")? },
            "RAND" => self.random(Dist::Uniform)?,
            "RANDN" => self.random(Dist::Normal)?,
            "RANDINT" => {
                let (low, high) = (self.int("low")?, self.int("high")?);
                self.random(Dist::Int { low, high })?
            }
            "DATA" => Op::Data { shape: self.shape()?, dtype: self.dtype("dtype")? },
            "WHERE" => Op::Where,
            "CAST" => Op::Cast(self.dtype("dtype")?),
            "RESHAPE" => Op::View(View::Reshape(self.shape()?)),
            "PERMUTE" => Op::View(View::Permute(self.ints("perm")?)),
            "EXPAND" => Op::View(View::Expand(self.shape()?)),
            "SLICE" => Op::View(View::Slice {
                dim: self.size("dim")?,
                len: self.size("len")?,
                step: self.size("step")?,
            }),
            "PAD" => Op::Pad { lo: self.ints("lo")?, hi: self.ints("hi")? },
            "CONCAT" => Op::Concat { dim: self.size("dim")? },
            "FLIP" => Op::Flip { dims: self.ints("dims")? },
            "PUT" => Op::Put { path: self.path("path")? },
            "SUM" => self.reduce(ReduceKind::Sum)?,
            "PROD" => self.reduce(ReduceKind::Prod)?,
            "AMAX" => self.reduce(ReduceKind::Max)?,
            "AMIN" => self.reduce(ReduceKind::Min)?,
            "ARGMAX" => self.arg_reduce(ArgKind::Max)?,
            "ARGMIN" => self.arg_reduce(ArgKind::Min)?,
            "CUMSUM" => Op::Scan { kind: ScanKind::Sum, dim: self.size("dim")? },
            "CUMPROD" => Op::Scan { kind: ScanKind::Prod, dim: self.size("dim")? },
            "MATMUL" => Op::Matmul {
                ta: self.flag("ta")?,
                tb: self.flag("tb")?,
                tf32: self.has("tf32") && self.flag("tf32")?,
            },
            "GATHER" => Op::Gather { dim: self.size("dim")? },
            "SCATTER" => Op::Scatter { dim: self.size("dim")?, mode: self.mode("mode")? },
            "TAKE" => Op::Take { dim: self.size("dim")? },
            "TAKEPUT" => Op::TakePut { dim: self.size("dim")?, mode: self.mode("mode")? },
            "SORT" => Op::Sort { dim: self.size("dim")?, descending: self.flag("descending")? },
            "TOPK" => Op::TopK { dim: self.size("dim")?, k: self.size("k")?, largest: self.flag("largest")? },
            "SOFTMAX" => Op::Softmax { dim: self.size("dim")? },
            "LOGSOFTMAX" => Op::LogSoftmax { dim: self.size("dim")? },
            "RMSNORM" => Op::RmsNorm { dims: self.size("last")? },
            "LAYERNORM" => Op::LayerNorm { dims: self.size("last")? },
            "CROSSENTROPY" => Op::CrossEntropy,
            "ATTENTION" => Op::Attention { causal: self.flag("causal")? },
            "ATTENTIONGRAD" => Op::AttentionGrad { causal: self.flag("causal")? },
            "SGD" => Op::Sgd {
                momentum: self.flag("momentum")?,
                first: self.flag("first")?,
                dampened: self.flag("dampened")?,
                nesterov: self.flag("nesterov")?,
                maximize: self.flag("maximize")?,
                decay: self.flag("decay")?,
            },
            "ADAM" => Op::Adam {
                decoupled: self.flag("decoupled")?,
                amsgrad: self.flag("amsgrad")?,
                maximize: self.flag("maximize")?,
                decay: self.flag("decay")?,
            },
            "ALLREDUCE" | "ALLGATHER" | "REDUCESCATTER" | "ALLTOALL" | "BROADCAST" => {
                let (number, axis) = (self.size("number")? as u32, self.size("axis")? as u8);
                Op::Collective(Collective { number, axis, what: self.exchange()? })
            }
            other => bail!(Value, "no op is called {other:?}"),
        })
    }
}
