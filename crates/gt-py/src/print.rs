//! Text of tensors, as PyTorch prints them.

use gt_ir::{HostTensor, Scalar, Shape};
use gt_sync::Mutex;

/// How tensors are printed (`gt.set_printoptions`).
#[derive(Clone, Copy)]
pub struct Options {
    pub precision: usize,
    pub threshold: usize,
    pub edgeitems: usize,
    pub linewidth: usize,
    pub sci_mode: Option<bool>,
}

impl Options {
    pub const DEFAULT: Options =
        Options { precision: 4, threshold: 1000, edgeitems: 3, linewidth: 80, sci_mode: None };
}

/// The process's options.
pub static OPTIONS: Mutex<Options> = Mutex::new(Options::DEFAULT);

/// `tensor(...)` of elements already fetched. Of a tensor that is summarised only the edges need be given: `shape` is
/// that of the whole, and in each dimension longer than twice the edge `edges` holds only its two ends.
pub fn text(prefix: &str, shape: &Shape, edges: &HostTensor, suffixes: &[String], o: &Options) -> String {
    let indent = prefix.len();
    let body = if shape.numel() == 0 {
        "[]".to_string()
    } else {
        let format = Format::new(edges, o);
        let mut out = String::new();
        let summarize = shape.numel() > o.threshold;
        Writer { edges, shape, format: &format, o, summarize }.write(&mut out, 0, 0, indent);
        out
    };
    let mut out = format!("{prefix}{body}");
    let mut width = match out.rfind('\n') {
        Some(at) => out.len() - at + 1,
        None => out.len() + 2,
    };
    for suffix in suffixes {
        if width + suffix.len() + 2 > o.linewidth {
            out += &format!(",\n{:indent$}{suffix}", "");
            width = indent + suffix.len();
        } else {
            out += &format!(", {suffix}");
            width += suffix.len() + 2;
        }
    }
    out + ")"
}

/// True if a dimension of this size is shown by its ends only.
pub fn shortened(n: usize, o: &Options) -> bool {
    n > 2 * o.edgeitems
}

struct Writer<'a> {
    edges: &'a HostTensor,
    shape: &'a Shape,
    format: &'a Format,
    o: &'a Options,
    summarize: bool,
}

impl Writer<'_> {
    /// Writes the part of dimensions `dim` and up that starts at element `at` of the edges.
    fn write(&self, out: &mut String, dim: usize, at: usize, indent: usize) {
        let rank = self.shape.len();
        if dim == rank {
            out.push_str(&self.format.element(self.edges.get(at), self.o));
            return;
        }
        let short = self.summarize && shortened(self.shape[dim], self.o);
        let n = self.edges.ty.shape[dim];
        let step: usize = self.edges.ty.shape[dim + 1..].iter().product();
        let items = n + short as usize;
        let per_line = ((self.o.linewidth.saturating_sub(indent)) / (self.format.width + 2)).max(1);
        let last = dim + 1 == rank;
        out.push('[');
        for i in 0..items {
            if i > 0 {
                out.push(',');
                if !last {
                    out.push_str(&"\n".repeat(rank - dim - 1));
                    out.push_str(&" ".repeat(indent + 1));
                } else if i % per_line == 0 {
                    out.push('\n');
                    out.push_str(&" ".repeat(indent + 1));
                } else {
                    out.push(' ');
                }
            }
            if short && i == self.o.edgeitems {
                out.push_str(if last { " ..." } else { "..." });
            } else {
                let k = if short && i > self.o.edgeitems { i - 1 } else { i };
                self.write(out, dim + 1, at + k * step, indent + 1);
            }
        }
        out.push(']');
    }
}

/// How the elements of one tensor are written, all alike.
struct Format {
    float: bool,
    int_mode: bool,
    sci: bool,
    width: usize,
}

impl Format {
    fn new(t: &HostTensor, o: &Options) -> Format {
        let mut f = Format { float: t.ty.dtype.is_float(), int_mode: true, sci: false, width: 1 };
        if !f.float {
            f.width = t.scalars().map(|x| element_text(x).len()).max().unwrap_or(1);
            return f;
        }
        let values: Vec<f64> =
            t.scalars().map(Scalar::as_f64).filter(|x| x.is_finite() && *x != 0.0).collect();
        if values.is_empty() {
            return f;
        }
        let (mut least, mut most) = (f64::INFINITY, 0.0f64);
        for x in &values {
            least = least.min(x.abs());
            most = most.max(x.abs());
        }
        f.int_mode = values.iter().all(|x| *x == x.ceil());
        f.sci = o.sci_mode.unwrap_or(most / least > 1000.0 || most > 1.0e8 || least < 1.0e-4);
        let length = |x: &f64| match (f.sci, f.int_mode) {
            (true, _) => scientific(*x, o.precision).len(),
            (false, true) => fixed(*x, 0).len() + 1,
            (false, false) => fixed(*x, o.precision).len(),
        };
        f.width = values.iter().map(length).max().unwrap_or(1).max(1);
        f
    }

    fn element(&self, x: Scalar, o: &Options) -> String {
        let text = match x {
            Scalar::Float(x) if self.sci => scientific(x, o.precision),
            Scalar::Float(x) if self.int_mode => {
                let dot = if x.is_finite() { "." } else { "" };
                format!("{}{dot}", fixed(x, 0))
            }
            Scalar::Float(x) => fixed(x, o.precision),
            other => element_text(other),
        };
        format!("{text:>width$}", width = self.width)
    }
}

fn element_text(x: Scalar) -> String {
    match x {
        Scalar::Bool(true) => "True".into(),
        Scalar::Bool(false) => "False".into(),
        Scalar::Int(i) => i.to_string(),
        Scalar::Float(x) => fixed(x, 4),
    }
}

/// Python's `{:.Nf}`.
fn fixed(x: f64, precision: usize) -> String {
    if x.is_nan() { "nan".into() } else { format!("{x:.precision$}") }
}

/// Python's `{:.Ne}`: at least two digits of exponent, with its sign.
fn scientific(x: f64, precision: usize) -> String {
    if !x.is_finite() {
        return fixed(x, precision);
    }
    let text = format!("{x:.precision$e}");
    match text.split_once('e') {
        None => text,
        Some((digits, exponent)) => {
            let (sign, size) = match exponent.strip_prefix('-') {
                Some(size) => ('-', size),
                None => ('+', exponent),
            };
            format!("{digits}e{sign}{size:0>2}")
        }
    }
}
