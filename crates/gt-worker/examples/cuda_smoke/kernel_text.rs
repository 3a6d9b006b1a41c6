//! CUDA C for the elementwise kernels of a plan. Shapes are constants of the text; addresses, numbers in slots and
//! slice starts are parameters, eight bytes each, so that one compiled kernel serves every run.

use crate::Res;
use gt_compiler::{Calc, Kernel, Map, Num, Source};
use gt_ir::{DType, Kind, Scalar, Shape, Slot, Unary};
use std::fmt::Write;

/// What the text of every kernel builds on.
pub const PRELUDE: &str = include_str!("prelude.cu");

/// A run-time parameter of a kernel.
#[derive(Clone, PartialEq, Debug)]
pub enum Param {
    /// The address of a storage.
    Address(u32),
    /// The number in a slot, rounded to an element type.
    Number(u32, DType),
    /// The first element of a map that slots move.
    Start(Map),
}

impl Param {
    /// The eight bytes to pass for one run.
    pub fn word(&self, addresses: &[u64], slots: &[Slot]) -> u64 {
        match self {
            Param::Address(storage) => addresses[*storage as usize],
            Param::Number(slot, dtype) => {
                let x = Num::Slot(*slot).get(slots).to_dtype(*dtype);
                if dtype.is_float() { x.as_f64().to_bits() } else { x.as_i64() as u64 }
            }
            Param::Start(map) => map.offset(slots) as u64,
        }
    }

    fn declared(&self, i: usize) -> String {
        match self {
            Param::Address(_) => format!("char* p{i}"),
            Param::Number(_, dtype) if dtype.is_float() => format!("double p{i}"),
            Param::Number(..) | Param::Start(_) => format!("i64 p{i}"),
        }
    }
}

/// A kernel as text, and what to pass to it.
pub struct KernelText {
    pub text: String,
    /// In the order of the kernel's arguments.
    pub params: Vec<Param>,
    /// One thread per element of the iteration space.
    pub threads: usize,
}

/// The CUDA C of one kernel, a function named `name`.
pub fn kernel_text(name: &str, kernel: &Kernel) -> Res<KernelText> {
    if kernel.fold.is_some() {
        return Err("kernel text: a reduction is no part of the smoke test".into());
    }
    let mut w = Writer { shape: &kernel.shape, params: Vec::new(), body: String::new(), regs: Vec::new() };
    w.indices();
    for load in &kernel.loads {
        w.load(load.dtype, &load.from);
    }
    for code in &kernel.code {
        w.code(code.calc, code.dtype, &code.args)?;
    }
    for store in &kernel.stores {
        let (at, to) = (w.position(&store.map), w.param(Param::Address(store.storage)));
        let value = w.converted(store.reg as usize, store.dtype);
        let _ = writeln!(w.body, "    store_{}(p{to}, {at}, {value});", store.dtype);
    }
    let args: Vec<String> = w.params.iter().enumerate().map(|(i, p)| p.declared(i)).collect();
    let text = format!("extern \"C\" __global__ void {name}({}) {{\n{}}}\n", args.join(", "), w.body);
    Ok(KernelText { text, params: w.params, threads: kernel.shape.numel() })
}

/// The type in which elements of `dtype` are computed.
fn computing(dtype: DType) -> &'static str {
    match dtype {
        DType::F16 | DType::BF16 | DType::F32 => "float",
        DType::F64 => "double",
        DType::Bool | DType::U8 | DType::I8 | DType::I16 | DType::I32 | DType::I64 => "i64",
    }
}

/// A number as text that keeps every bit.
fn literal(x: Scalar, dtype: DType) -> String {
    let x = x.to_dtype(dtype);
    if dtype.is_float() {
        format!("__longlong_as_double(0x{:x}ll)", x.as_f64().to_bits())
    } else {
        format!("((i64)0x{:x}ull)", x.as_i64())
    }
}

struct Writer<'a> {
    shape: &'a Shape,
    params: Vec<Param>,
    body: String,
    /// The type of every register so far.
    regs: Vec<DType>,
}

impl Writer<'_> {
    /// Turns the thread's number `i` into an index `i0`, `i1` and so on.
    fn indices(&mut self) {
        let n = self.shape.numel();
        let _ = writeln!(self.body, "    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;");
        let _ = writeln!(self.body, "    if (i >= {n}) return;");
        let mut inner = 1;
        for (d, &size) in self.shape.iter().enumerate().rev() {
            let _ = writeln!(self.body, "    const i64 i{d} = i / {inner} % {size};");
            inner *= size;
        }
    }

    /// The parameter's position; equal ones are passed once.
    fn param(&mut self, param: Param) -> usize {
        self.params.iter().position(|p| *p == param).unwrap_or_else(|| {
            self.params.push(param);
            self.params.len() - 1
        })
    }

    /// The element of a storage that the thread's index shows.
    fn position(&mut self, map: &Map) -> String {
        let mut text = if map.slots.is_empty() {
            map.offset.to_string()
        } else {
            format!("p{}", self.param(Param::Start(map.clone())))
        };
        if map.is_packed(self.shape) {
            return text + " + i";
        }
        for (d, &stride) in map.strides.iter().enumerate() {
            if stride != 0 {
                let _ = write!(text, " + i{d} * {stride}");
            }
        }
        text
    }

    fn number(&mut self, x: Num, dtype: DType) -> String {
        match x {
            Num::Const(x) => literal(x, dtype),
            Num::Slot(k) => format!("p{}", self.param(Param::Number(k, dtype))),
        }
    }

    /// Declares the next register.
    fn assign(&mut self, dtype: DType, value: &str) {
        let _ = writeln!(self.body, "    const {} r{} = {value};", computing(dtype), self.regs.len());
        self.regs.push(dtype);
    }

    fn load(&mut self, dtype: DType, from: &Source) {
        let value = match from {
            Source::Mem { storage, map } => {
                let (at, from) = (self.position(map), self.param(Param::Address(*storage)));
                format!("load_{dtype}(p{from}, {at})")
            }
            Source::Num(x) => format!("({}){}", computing(dtype), self.number(*x, dtype)),
            Source::Iota { start, step, map } => {
                let wide = if dtype.is_float() { DType::F64 } else { DType::I64 };
                let (start, step) = (self.number(*start, wide), self.number(*step, wide));
                format!("round_{dtype}({start} + ({}) * {step})", self.position(map))
            }
        };
        self.assign(dtype, &value);
    }

    /// A register as a value to be kept as `dtype`.
    fn converted(&self, reg: usize, dtype: DType) -> String {
        match dtype.kind() {
            Kind::Bool => format!("r{reg} != 0"),
            Kind::Int | Kind::Float => format!("({})r{reg}", computing(dtype)),
        }
    }

    fn code(&mut self, calc: Calc, dtype: DType, args: &[u16]) -> Res<()> {
        let reg = |i: usize| args[i] as usize;
        let value = match calc {
            Calc::Cast => self.converted(reg(0), dtype),
            Calc::Where => format!(
                "r{} != 0 ? {} : {}",
                reg(0),
                self.converted(reg(1), dtype),
                self.converted(reg(2), dtype)
            ),
            Calc::Unary(op) => {
                // The row's text is for integers; on bool the table's meaning is the logical one.
                let logical = op == Unary::Not && self.regs[reg(0)] == DType::Bool;
                self.row(if logical { "!x" } else { op.cuda() }, &["x"], args)?
            }
            Calc::Binary(op) => self.row(op.cuda(), &["a", "b"], args)?,
            Calc::Fold(kind) => {
                return Err(format!("kernel text: a row's {} is not written here", kind.text()).into());
            }
        };
        self.assign(dtype, &format!("round_{dtype}({value})"));
        Ok(())
    }

    /// A row of the op table applied to registers, which must share one computing type.
    fn row(&self, text: &str, names: &[&str], args: &[u16]) -> Res<String> {
        let t = computing(self.regs[args[0] as usize]);
        if args.iter().any(|&a| computing(self.regs[a as usize]) != t) {
            return Err(format!("kernel text: `{text}` on registers of different types").into());
        }
        let takes: Vec<String> = names.iter().map(|name| format!("{t} {name}")).collect();
        let given: Vec<String> = args.iter().map(|a| format!("r{a}")).collect();
        Ok(format!("[]({}) {{ typedef {t} T; return {text}; }}({})", takes.join(", "), given.join(", ")))
    }
}
