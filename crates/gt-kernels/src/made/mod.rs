//! Kernels whose text is made for a step. Shapes, strides and types are constants of the text; addresses, numbers in slots and
//! slice starts are arguments, eight bytes each, so that one compiled kernel serves every run.

mod columns;
mod elements;
mod rows;
mod together;
mod turned;

pub use together::together;

use crate::launch::{Arg, Function, Launch, Launches, Word};
use crate::lower::{At, Base, Computing, Low, Put, What};
use crate::table;
use gt_compiler::{Kernel, Num, Plan};
use gt_ir::{Binary, DType, Scalar};
use std::fmt::Write;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

/// The launches of a kernel whose text is made; none where it has no elements.
pub fn kernel(kernel: &Kernel, plan: &Plan) -> Option<Launches> {
    let low = Low::new(kernel, plan);
    if low.numel() == 0 {
        return None;
    }
    let mut out = Launches::default();
    match (&low.columns, low.has_rows()) {
        (Some(to), _) => columns::launch(&low, to, &mut out),
        (None, true) => rows::launch(&low, &mut out),
        (None, false) => match turned::dimension(&low) {
            Some(d) => turned::launch(&low, d, &mut out),
            None => elements::launch(&low, &mut out),
        },
    }
    Some(out)
}

/// What a kernel takes beside its elements.
#[derive(Clone, PartialEq, Debug)]
enum Param {
    Address(Base),
    /// A number in a slot.
    Number(Num, DType),
    Start(At),
    /// Zero, of which the compiler knows nothing.
    Zero,
    Failed,
}

/// A kernel as it is written.
pub(crate) struct Writer<'a> {
    low: &'a Low,
    params: Vec<Param>,
    body: String,
    /// Positions fit in 32 bits.
    small: bool,
    /// Registers whose numbers the compiler may know.
    known: Vec<bool>,
}

impl<'a> Writer<'a> {
    pub fn new(low: &'a Low) -> Writer<'a> {
        let extent = |at: &At| -> i128 {
            let reach = at.strides.iter().zip(&low.dims).map(|(&s, &n)| s.unsigned_abs() as i128 * n as i128);
            at.start.offset.unsigned_abs() as i128 + reach.sum::<i128>()
        };
        let loads = low.ins.iter().filter_map(|i| match &i.what {
            What::Mem(_, at) | What::Iota(_, _, at) => Some(at),
            _ => None,
        });
        let all = loads.chain(low.puts.iter().map(|p| &p.at)).map(extent);
        let small = all.chain([low.numel() as i128]).max().unwrap_or(0) < 1 << 30;
        Writer { low, params: Vec::new(), body: String::new(), small, known: low.known() }
    }

    /// The integer type of positions.
    pub fn int(&self) -> &'static str {
        if self.small { "int" } else { "i64" }
    }

    pub fn line(&mut self, text: impl AsRef<str>) {
        self.body.push_str("    ");
        self.body.push_str(text.as_ref());
        self.body.push('\n');
    }

    /// The parameter's name; equal ones are passed once.
    fn param(&mut self, param: Param) -> String {
        let at = self.params.iter().position(|p| *p == param).unwrap_or_else(|| {
            self.params.push(param);
            self.params.len() - 1
        });
        format!("p{at}")
    }

    pub fn address(&mut self, base: Base) -> String {
        self.param(Param::Address(base))
    }

    /// Where a map starts.
    pub fn start(&mut self, at: &At) -> String {
        if at.start.slots.is_empty() {
            at.start.offset.to_string()
        } else {
            let mut only = at.clone();
            only.strides.clear();
            only.start.strides.clear();
            // Of 64 bits, as only the run knows how far into a storage it is.
            self.param(Param::Start(only))
        }
    }

    /// A position: the start and the indices named, each times its stride.
    pub fn place(&mut self, at: &At, names: &[String]) -> String {
        let mut text = self.start(at);
        for (name, &stride) in names.iter().zip(&at.strides) {
            match stride {
                0 => {}
                1 => {
                    let _ = write!(text, " + {name}");
                }
                _ => {
                    let _ = write!(text, " + {name} * {stride}");
                }
            }
        }
        text
    }

    fn number(&mut self, x: Num, dtype: DType) -> String {
        match x {
            Num::Const(x) => literal(x, dtype),
            Num::Slot(_) => {
                let name = self.param(Param::Number(x, dtype));
                format!("({}){name}", Computing::of(dtype).text())
            }
        }
    }

    /// An operand of a function that the device is to work out: if the compiler may know the number, bits that are zero only
    /// when the kernel runs are joined to it.
    fn unseen(&mut self, reg: usize, name: String) -> String {
        if !self.known[reg] {
            return name;
        }
        let zero = self.param(Param::Zero);
        format!("gt_joined({name}, {zero})")
    }

    /// Asks whether an earlier check has failed, where the kernel writes memory that was given to the program. The answer is
    /// looked at only before the first store (`leave`), since it takes as long as a load.
    pub fn guard(&mut self) {
        if self.low.guarded {
            let name = self.param(Param::Failed);
            self.line(format!("const u64 failed = *(const u64*){name};"));
        }
    }

    pub fn leave(&mut self) {
        if self.low.guarded {
            self.line("if (failed) return;");
        }
    }

    /// The value of an instruction that is no load from memory, its operands named by `name`, a position of an iota given.
    pub fn value(&mut self, i: usize, name: &dyn Fn(usize) -> String, place: &str) -> String {
        let low = self.low;
        let dtype = low.ins[i].dtype;
        match &low.ins[i].what {
            What::Num(x) => self.number(*x, dtype),
            What::Iota(start, step, _) => {
                let wide = if dtype.is_float() { DType::F64 } else { DType::I64 };
                let (start, step) = (self.number(*start, wide), self.number(*step, wide));
                if dtype.is_float() {
                    format!("D_{dtype}::of({start} + (double)({place}) * {step})")
                } else {
                    format!("D_{dtype}::of((i64)((u64){start} + (u64)(i64)({place}) * (u64){step}))")
                }
            }
            What::Unary(_, function, a) if table::is_rounded_by_device(function) => {
                format!("D_{dtype}::of({function}({}))", self.unseen(*a, name(*a)))
            }
            What::Unary(_, function, a) => format!("D_{dtype}::of({function}({}))", name(*a)),
            What::Binary(Binary::Pow, a, b) if dtype.is_float() => {
                let power = table::binary_name(Binary::Pow);
                format!("D_{dtype}::of({power}({}, {}))", self.unseen(*a, name(*a)), name(*b))
            }
            What::Binary(op, a, b) => {
                format!("D_{dtype}::of({}({}, {}))", table::binary_name(*op), name(*a), name(*b))
            }
            What::Where(c, a, b) => format!("({} != 0 ? {} : {})", name(*c), name(*a), name(*b)),
            What::Cast(a) => format!("D_{dtype}::of({})", name(*a)),
            What::Mem(..) | What::Fold(..) => unreachable!("written elsewhere"),
        }
    }

    pub fn type_of(&self, reg: usize) -> &'static str {
        self.low.computing(reg).text()
    }

    /// The text around the body, named by its own hash.
    pub fn finish(self, threads: usize, more: &str) -> (Function, Vec<Arg>) {
        let decl = |(i, p): (usize, &Param)| match p {
            Param::Address(_) | Param::Failed => format!("char* p{i}"),
            Param::Number(_, dtype) if dtype.is_float() => format!("double p{i}"),
            Param::Number(..) | Param::Start(_) | Param::Zero => format!("i64 p{i}"),
        };
        let mut given: Vec<String> = self.params.iter().enumerate().map(decl).collect();
        if !more.is_empty() {
            given.push(more.to_string());
        }
        let head = format!("extern \"C\" __global__ void __launch_bounds__({threads}) ");
        let args = self.params.iter().map(Param::arg).collect();
        (function(&head, &format!("({}) {{\n{}}}\n", given.join(", "), self.body)), args)
    }
}

/// A made function of this text, with its name between the two parts.
pub(crate) fn function(head: &str, rest: &str) -> Function {
    let mut hasher = foldhash::quality::FixedState::default().build_hasher();
    hasher.write(head.as_bytes());
    hasher.write(rest.as_bytes());
    let name = format!("k{:016x}", hasher.finish());
    let text: Arc<str> = format!("{head}{name}{rest}").into();
    Function::Made { name: name.into(), text }
}

impl Param {
    fn arg(&self) -> Arg {
        Arg::word(match self {
            Param::Address(base) => base.word(),
            Param::Number(x, dtype) => Word::Number(*x, *dtype),
            Param::Start(at) => Word::Start(at.start.clone()),
            Param::Zero => Word::Number(Num::Const(Scalar::Int(0)), DType::I64),
            Param::Failed => Word::Failed,
        })
    }
}

/// A number as text that keeps every bit.
fn literal(x: Scalar, dtype: DType) -> String {
    let x = x.to_dtype(dtype);
    match Computing::of(dtype) {
        Computing::F32 => format!("__uint_as_float(0x{:x}u)", (x.as_f64() as f32).to_bits()),
        Computing::F64 => format!("__longlong_as_double(0x{:x}ll)", x.as_f64().to_bits()),
        Computing::I64 => format!("((i64)0x{:x}ull)", x.as_i64()),
    }
}

/// How a map walks along the innermost dimension of vectors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Walk {
    /// Elements next to each other, at multiples of the vector.
    Vector,
    /// Elements next to each other; whether at multiples of the vector is known when it runs.
    Perhaps,
    /// The same element.
    Same,
    /// Anything else.
    Apart,
}

/// How `at` walks along its last dimension in vectors of `v`.
pub(crate) fn walk(at: &At, v: usize) -> Walk {
    let whole = |x: isize| x % v as isize == 0;
    let Some((&last, others)) = at.strides.split_last() else { return Walk::Same };
    let aligned = others.iter().all(|&s| whole(s));
    match last {
        0 => Walk::Same,
        1 if aligned && at.start.slots.iter().any(|s| !whole(s.1)) => Walk::Perhaps,
        1 if aligned && whole(at.start.offset) => Walk::Vector,
        _ => Walk::Apart,
    }
}

pub(crate) fn launched(function: Function, grid: usize, block: usize, args: Vec<Arg>) -> Launch {
    Launch { function, grid: [grid as u32, 1, 1], block: block as u32, shared: 0, args }
}

/// All places of memory that elements are read from or written to, with the size of an element.
pub(crate) fn streams(low: &Low) -> Vec<(&At, usize)> {
    let loads = low.ins.iter().filter_map(|i| match &i.what {
        What::Mem(_, at) => Some((at, i.dtype.size())),
        _ => None,
    });
    loads.chain(low.puts.iter().map(|p: &Put| (&p.at, p.dtype.size()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gt_compiler::{CompileOptions, Work, compile};
    use gt_ir::text;

    /// The text made for the last kernel of a program.
    fn made(program: &str) -> String {
        let structure = text::parse_structure(program).unwrap();
        let options = CompileOptions { longest_row: 256 << 10, ..CompileOptions::default() };
        let plan = compile(&structure, &structure.check().unwrap(), options).unwrap();
        let Some(Work::Kernel(last)) = plan.steps.last().map(|s| &s.work) else { panic!("{plan}") };
        let launches = kernel(last, &plan).unwrap();
        match &launches.list[0].function {
            Function::Made { text, .. } => text.to_string(),
            Function::Plain(name) => panic!("plain {name}"),
        }
    }

    #[test]
    fn a_long_row_that_is_reduced_in_parts_is_stored_too() {
        let text = made(
            "in TENSOR[0] f32[500, 64]
             in TENSOR[1] f32[500, 64]
             TENSOR[2] := ADD TENSOR[0] TENSOR[1]
             TENSOR[3] := MUL TENSOR[2] TENSOR[2]
             TENSOR[4] := SUM{dims=[0,1],keepdim=false} TENSOR[3]
             out TENSOR[2]
             out TENSOR[4]",
        );
        assert!(text.contains("begin + ") && text.contains("gt_store<D_f32, 4>"), "{text}");
    }

    #[test]
    fn a_function_of_what_is_known_is_left_to_the_device() {
        let of = |what: &str| {
            made(&format!(
                "in TENSOR[0] f32[300]
                 TENSOR[1] := FULL{{shape=[300],dtype=f32}} 0.73
                 TENSOR[2] := {what}
                 TENSOR[3] := MUL TENSOR[0] TENSOR[2]
                 out TENSOR[3]"
            ))
        };
        let hidden = of("TANH TENSOR[1]");
        assert!(hidden.contains("gt_joined(") && hidden.contains("i64 p"), "{hidden}");
        // A compiler may know it on one path of a branch.
        let one = made(
            "in TENSOR[0] f32[300]
             TENSOR[1] := POW TENSOR[0] 0.0
             TENSOR[2] := TANH TENSOR[1]
             out TENSOR[2]",
        );
        assert!(one.contains("gt_u_tanh(gt_joined("), "{one}");
        // What rounds alike everywhere may be worked out before.
        let seen = of("SQRT TENSOR[1]");
        assert!(!seen.contains("gt_joined("), "{seen}");
    }
}
