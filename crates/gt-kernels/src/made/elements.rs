//! Elementwise kernels: a thread takes a vector of elements of the innermost dimension.

use super::{Walk, Writer, launched, streams, walk};
use crate::launch::{Arg, Launches};
use crate::lower::{Low, What};
use crate::sections::elements;

const THREADS: usize = 256;
/// From this many elements on a thread takes two vectors, so that more loads are under way.
const LARGE: usize = 1 << 22;

/// True if every element is where its number says, or all are one: the size is then an argument, and the text serves
/// tensors of any size.
pub fn is_flat(low: &Low) -> bool {
    low.dims.len() <= 1 && streams(low).iter().all(|(at, _)| at.strides.iter().all(|s| matches!(s, 0 | 1)))
}

/// Elements of a vector: 16 bytes of the widest type, and no more than divide a row.
pub fn vector(low: &Low) -> usize {
    let Some(&last) = low.dims.last() else { return 1 };
    let wide = |v: usize| {
        streams(low)
            .into_iter()
            .filter(move |(at, _)| matches!(walk(at, v), Walk::Vector | Walk::Perhaps))
            .map(|(_, size)| size)
            .max()
    };
    let mut v = 8;
    loop {
        let fits = wide(v).is_some_and(|size| size * v <= 16);
        if v == 1 || (fits && (is_flat(low) || last % v == 0)) {
            return v;
        }
        v /= 2;
    }
}

pub fn launch(low: &Low, out: &mut Launches) {
    let n = low.numel();
    let flat = is_flat(low);
    let v = vector(low);
    let unroll = if n >= LARGE && streams(low).len() <= 6 { 2 } else { 1 };
    let mut w = Writer::new(low);
    w.guard();
    let vectors = n.div_ceil(v);
    if flat {
        w.small = false;
        w.line(format!("const i64 first = ((i64)blockIdx.x * {} + threadIdx.x) * {v};", THREADS * unroll));
    } else {
        w.line(format!(
            "const {} first = ({})blockIdx.x * {} + threadIdx.x;",
            id(n),
            id(n),
            THREADS * unroll
        ));
    }
    body(&mut w, v, unroll, flat, vectors);
    let (function, mut args) = w.finish(THREADS, if flat { "i64 n" } else { "" });
    if flat {
        args.push(Arg::int(n as i64));
    }
    out.list.push(launched(function, vectors.div_ceil(THREADS * unroll), THREADS, args));
}

/// The type that numbers vectors.
fn id(n: usize) -> &'static str {
    if n < 1 << 31 { "u32" } else { "u64" }
}

/// Loads, code and stores of `unroll` vectors. `first` is where the thread begins: an element where `flat`, else a vector.
pub fn body(w: &mut Writer, v: usize, unroll: usize, flat: bool, vectors: usize) {
    let low = w.low;
    let order = elements(low, low.puts.iter().map(|p| p.reg));
    // How many elements of a vector there are.
    let left = if flat { "n - i".to_string() } else { v.to_string() };
    let names: Vec<String> =
        (0..low.dims.len()).map(|d| if flat { "i".into() } else { format!("c{d}") }).collect();
    let loads: Vec<usize> =
        order.iter().copied().filter(|&i| matches!(low.ins[i].what, What::Mem(..))).collect();
    for &i in &loads {
        w.line(format!("{} r{i}[{unroll}][{v}];", w.type_of(i)));
    }
    for (k, put) in low.puts.iter().enumerate() {
        w.line(format!("{} o{k}[{unroll}][{v}];", w.type_of(put.reg)));
    }
    begin(w, unroll, v, flat, vectors);
    for &i in &loads {
        let What::Mem(base, at) = &low.ins[i].what else { continue };
        let (dtype, place, from) = (low.ins[i].dtype, w.place(at, &names), w.address(*base));
        let last = at.strides.last().copied().unwrap_or(0);
        let given = format!("D_{dtype}, {v}>({from}, {place}");
        let text = match walk(at, v) {
            Walk::Same => format!("gt_load_same<{given}, r{i}[u]);"),
            Walk::Vector if flat => format!("gt_load_some<{given}, n - i, r{i}[u]);"),
            Walk::Vector => format!("gt_load<{given}, r{i}[u]);"),
            Walk::Perhaps => format!("gt_load_perhaps<{given}, {left}, r{i}[u]);"),
            Walk::Apart => format!("gt_load_apart<{given}, {last}, {left}, r{i}[u]);"),
        };
        w.line(format!("    {text}"));
    }
    w.line("}");
    begin(w, unroll, v, flat, vectors);
    w.line("#pragma unroll");
    w.line(format!("    for (int j = 0; j < {v}; j++) {{"));
    let is_load = |i: usize| matches!(low.ins[i].what, What::Mem(..));
    let name = |a: usize| if is_load(a) { format!("r{a}[u][j]") } else { format!("r{a}") };
    for &i in &order {
        if !is_load(i) {
            let place = match &low.ins[i].what {
                What::Iota(_, _, at) => {
                    let last = at.strides.last().copied().unwrap_or(0);
                    format!("{} + j * {last}", w.place(at, &names))
                }
                _ => String::new(),
            };
            let value = w.value(i, &name, &place);
            w.line(format!("        const {} r{i} = {value};", w.type_of(i)));
        }
    }
    for (k, put) in low.puts.iter().enumerate() {
        w.line(format!("        o{k}[u][j] = {};", name(put.reg)));
    }
    w.line("    }");
    w.line("}");
    w.leave();
    begin(w, unroll, v, flat, vectors);
    for (k, put) in low.puts.iter().enumerate() {
        let (dtype, place, to) = (put.dtype, w.place(&put.at, &names), w.address(put.base));
        let last = put.at.strides.last().copied().unwrap_or(0);
        let given = format!("D_{dtype}, {v}>({to}, {place}");
        let text = match walk(&put.at, v) {
            Walk::Vector if flat => format!("gt_store_some<{given}, n - i, o{k}[u]);"),
            Walk::Vector => format!("gt_store<{given}, o{k}[u]);"),
            Walk::Perhaps => format!("gt_store_perhaps<{given}, {left}, o{k}[u]);"),
            Walk::Same | Walk::Apart => format!("gt_store_apart<{given}, {last}, {left}, o{k}[u]);"),
        };
        w.line(format!("    {text}"));
    }
    w.line("}");
}

/// Begins a loop over the vectors of a thread, with the indices of each.
fn begin(w: &mut Writer, unroll: usize, v: usize, flat: bool, vectors: usize) {
    let dims = w.low.dims.clone();
    w.line("#pragma unroll");
    w.line(format!("for (int u = 0; u < {unroll}; u++) {{"));
    if flat {
        w.line(format!("    const i64 i = first + u * {};", THREADS * v));
        w.line("    if (i >= n) break;");
        return;
    }
    let int = w.int();
    w.line(format!("    auto q = first + u * {THREADS};"));
    w.line(format!("    if (q >= {vectors}u) break;"));
    for d in (0..dims.len()).rev() {
        let (size, by) = if d + 1 == dims.len() { (dims[d] / v, v) } else { (dims[d], 1) };
        let index = if d == 0 { "q".to_string() } else { format!("q % {size}u") };
        w.line(format!("    const {int} c{d} = ({int})({index}) * {by};"));
        if d > 0 {
            w.line(format!("    q /= {size}u;"));
        }
    }
}
