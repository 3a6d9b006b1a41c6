//! Plans as a person reads them (`GT_DEBUG_COMPILE=1`).

use crate::map::Map;
use crate::plan::*;
use std::fmt;

impl fmt::Display for Map {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{:?}", self.strides.as_slice())?;
        if self.offset != 0 {
            write!(f, "+{}", self.offset)?;
        }
        for (slot, factor) in &self.slots {
            write!(f, "+{factor}*slot{slot}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Num {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Num::Const(x) => write!(f, "{x}"),
            Num::Slot(k) => write!(f, "slot{k}"),
        }
    }
}

impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "s{} {}{} {}", self.storage, self.dtype, self.shape, self.map)
    }
}

/// A result: its storage, and its order of dimensions where that is not the usual one.
struct Written<'a>(&'a Tensor);

impl fmt::Display for Written<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.0.map.is_whole(&self.0.shape) {
            true => write!(f, "s{}", self.0.storage),
            false => write!(f, "{}", self.0),
        }
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Operand::Tensor(t) => write!(f, "{t}"),
            Operand::Num(x) => write!(f, "{x}"),
        }
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "kernel {}", self.shape)?;
        if self.has_rows() {
            write!(f, " by rows of {}", self.row_len())?;
        }
        for (i, load) in self.loads.iter().enumerate() {
            write!(f, "\n      r{i} = {}{} ", load.dtype, if load.row { " per row" } else { "" })?;
            match &load.from {
                Source::Mem { storage, map } => write!(f, "load s{storage} {map}")?,
                Source::Num(x) => write!(f, "{x}")?,
                Source::Iota { start, step, map } => write!(f, "iota {start} by {step} {map}")?,
            }
        }
        for (i, code) in self.code.iter().enumerate() {
            let name = match code.calc {
                Calc::Unary(op) => op.text(),
                Calc::Binary(op) => op.text(),
                Calc::Where => "WHERE",
                Calc::Cast => "CAST",
                Calc::Fold(kind) => kind.text(),
            };
            let row = if code.row { " per row" } else { "" };
            write!(f, "\n      r{} = {}{row} {name}", self.loads.len() + i, code.dtype)?;
            for arg in &code.args {
                write!(f, " r{arg}")?;
            }
        }
        for store in &self.stores {
            write!(f, "\n      store s{} {} = r{}", store.storage, store.map, store.reg)?;
        }
        if let Some(fold) = &self.fold {
            write!(
                f,
                "\n      store s{} = {:?} of r{} over {:?}",
                fold.storage,
                fold.kind,
                fold.reg,
                fold.dims.as_slice()
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Work::Kernel(kernel) => write!(f, "{kernel}"),
            Work::Copy { from, to } => write!(f, "s{to} = copy s{from} unless one memory"),
            Work::CheckIndex { index, size, wrap } => {
                write!(f, "check {index} within {}..{size}", if *wrap { -(*size as i64) } else { 0 })
            }
            Work::CheckNonzero { divisor, dtype } => write!(f, "check {dtype} {divisor} is not zero"),
            Work::Matmul(mm) => {
                let tf32 = if mm.tf32 { " tf32" } else { "" };
                write!(f, "s{} = matmul {}x{}x{}{tf32} {} @ {}", mm.out, mm.m, mm.k, mm.n, mm.a, mm.b)?;
                mm.bias.iter().chain(&mm.residual).try_for_each(|t| write!(f, " + {t}"))?;
                f.write_str(if mm.relu { ", relu" } else { "" })
            }
            Work::Attention(a) => {
                let causal = if a.causal { "causal " } else { "" };
                write!(f, "{}, s{} = {causal}attention {} {} {}", Written(&a.out), a.lse, a.q, a.k, a.v)?;
                a.mask.iter().try_for_each(|t| write!(f, " mask {t}"))?;
                write!(f, " scale {}", a.scale)
            }
            Work::AttentionGrad(a) => {
                let causal = if a.causal { "causal " } else { "" };
                let [dq, dk, dv] = [&a.dq, &a.dk, &a.dv].map(Written);
                write!(f, "{dq}, {dk}, {dv} = {causal}attention gradient")?;
                [&a.q, &a.k, &a.v, &a.out, &a.lse, &a.dout].iter().try_for_each(|t| write!(f, " {t}"))?;
                a.mask.iter().try_for_each(|t| write!(f, " mask {t}"))?;
                write!(f, " scale {}", a.scale)
            }
            Work::Random { dist, dtype, len, key, offset, out } => {
                write!(f, "s{out} = random {dist:?} {dtype}[{len}] key {key} offset {offset}")
            }
            Work::Data { slot, out } => write!(f, "s{out} = data slot{slot}"),
            Work::Gather { dim, x, index, out } => write!(f, "s{out} = gather dim {dim} {x} at {index}"),
            Work::Scatter { dim, mode, index, src, out, .. } => {
                write!(f, "s{out} {mode:?} scatter dim {dim} {src} at {index}")
            }
            Work::Take { dim, x, index, out } => write!(f, "s{out} = take dim {dim} {x} at {index}"),
            Work::TakePut { dim, mode, index, src, out, .. } => {
                write!(f, "s{out} {mode:?} takeput dim {dim} {src} at {index}")
            }
            Work::ArgReduce { kind, dim, x, out } => write!(f, "s{out} = arg{kind:?} dim {dim} {x}"),
            Work::Scan { kind, dim, x, out } => write!(f, "s{out} = scan {kind:?} dim {dim} {x}"),
            Work::Sort { dim, descending, k, x, values, indices } => {
                let order = if *descending { "descending" } else { "ascending" };
                write!(f, "s{values}, s{indices} = first {k} {order} dim {dim} {x}")
            }
            Work::Collective(c) => {
                write!(f, "{} along axis {}", c.what.text().to_lowercase(), c.axis)?;
                c.xs.iter().zip(&c.outs).try_for_each(|(x, out)| write!(f, " s{} -> s{out}", x.storage))
            }
            Work::Softmax { log, dim, x, out } => {
                write!(f, "s{out} = {}softmax dim {dim} {x}", if *log { "log" } else { "" })
            }
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        writeln!(f, "plan of {} steps, arena {} bytes", self.steps.len(), self.arena)?;
        for (i, storage) in self.storages.iter().enumerate() {
            write!(f, "  s{i}: {} bytes, ", storage.bytes)?;
            match storage.place {
                Place::Input(k) => write!(f, "input {k}")?,
                Place::Out => write!(f, "out")?,
                Place::Arena(offset) => write!(f, "arena at {offset}")?,
            }
            match storage.reuse {
                Some(k) => writeln!(f, ", in input {k} if unshared")?,
                None => writeln!(f)?,
            }
        }
        for (i, step) in self.steps.iter().enumerate() {
            writeln!(f, "  {i}: (instr {}) {}", step.instr, step.work)?;
        }
        writeln!(f, "  outs {:?}", self.outs)
    }
}
