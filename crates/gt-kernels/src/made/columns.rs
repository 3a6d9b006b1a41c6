//! Reductions of columns: a block takes some columns of a block of rows, its lanes take rows in turn, so that neighbouring
//! threads read neighbouring elements.

use super::{Walk, Writer, launched, walk};
use crate::launch::Launches;
use crate::lower::{At, Base, Columns, Low, What, joins};
use crate::plain::reserve;
use crate::sections::elements;
use crate::tree::{COLUMN_BLOCK, COLUMN_LANES};

/// Threads side by side.
const WIDTH: usize = 32;

/// Columns of a thread: as many as all operands have side by side.
fn vector(low: &Low) -> usize {
    let Some(&last) = low.dims.last() else { return 1 };
    let walks = |v: usize| {
        super::streams(low)
            .iter()
            .all(|(at, size)| matches!(walk(at, v), Walk::Vector | Walk::Same) && size * v <= 16)
    };
    [4, 2].into_iter().find(|&v| last % v == 0 && low.lead < low.dims.len() && walks(v)).unwrap_or(1)
}

pub fn launch(low: &Low, to: &Columns, out: &mut Launches) {
    let (rows, columns) = (low.outer(), low.inner());
    let v = vector(low);
    let blocks = rows.div_ceil(COLUMN_BLOCK);
    let across = columns.div_ceil(WIDTH * v);
    let scratch = (blocks > 1).then(|| reserve(blocks * columns * 8, out));
    let (join, ty) = (joins(to.kind).1, low.computing(to.reg).text());
    let mut w = Writer::new(low);
    w.guard();
    if !low.puts.is_empty() {
        w.leave();
    }
    let int = w.int();
    w.line(format!("__shared__ {ty} room[{v}][{}];", COLUMN_LANES * WIDTH));
    w.line(format!("const int x = threadIdx.x % {WIDTH}, y = threadIdx.x / {WIDTH};"));
    w.line(format!("const u32 block = blockIdx.x / {across}u;"));
    w.line(format!("const {int} c = ((blockIdx.x % {across}u) * {WIDTH} + x) * {v};"));
    w.line(format!("{ty} acc[{v}];"));
    w.line("#pragma unroll");
    w.line(format!("for (int j = 0; j < {v}; j++) acc[j] = {join}::none<{ty}>();"));
    w.line(format!("if (c < {columns}) {{"));
    let mut names: Vec<String> = Vec::new();
    indices(&mut w, "c", low.lead..low.dims.len(), &mut names);
    let inner = names.clone();
    // Blocks that are whole ask nothing of their rows.
    let whole = rows.is_multiple_of(COLUMN_BLOCK);
    let exists = if whole { "true".to_string() } else { format!("r < {rows}") };
    w.line("#pragma unroll 4");
    w.line(format!(
        "for (int k = y; k < {COLUMN_BLOCK}; k += {COLUMN_LANES}) {{ const {int} r = ({int})block * {COLUMN_BLOCK} + k; if ({exists}) {{"
    ));
    let mut names = Vec::new();
    indices(&mut w, "r", 0..low.lead, &mut names);
    names.extend(inner);
    row(&mut w, to, v, &names, join);
    w.line("} } }");
    w.line("#pragma unroll");
    w.line(format!(
        "for (int j = 0; j < {v}; j++) acc[j] = gt_columns_join<{join}>(acc[j], room[j], x, y, {WIDTH});"
    ));
    w.leave();
    w.line(format!("if (y == 0 && c < {columns}) {{"));
    w.line("#pragma unroll");
    match scratch {
        Some(at) => {
            let place = w.address(Base::Scratch(at));
            w.line(format!(
                "    for (int j = 0; j < {v}; j++) (({ty}*){place})[(i64)block * {columns} + c + j] = acc[j];"
            ));
        }
        None => {
            let (place, dtype) = (w.address(to.base), to.dtype);
            w.line(format!(
                "    for (int j = 0; j < {v}; j++) gt_set<D_{dtype}>({place}, c + j, D_{dtype}::of(acc[j]));"
            ));
        }
    }
    w.line("}");
    let (function, args) = w.finish(WIDTH * COLUMN_LANES, "");
    out.list.push(launched(function, across * blocks, WIDTH * COLUMN_LANES, args));
    if let Some(from) = scratch {
        let rest = Low::of_column_parts(blocks, columns, from, low.computing(to.reg), to, low.guarded);
        if let Some(to) = &rest.columns {
            launch(&rest, to, out);
        }
    }
}

/// Declares the indices of some dimensions, of which `of` is the row-major number.
fn indices(w: &mut Writer, of: &str, dims: std::ops::Range<usize>, names: &mut Vec<String>) {
    let (low, int) = (w.low, w.int());
    let mut step = 1;
    let mut list = Vec::new();
    for d in dims.clone().rev() {
        let mut text = if step == 1 { of.to_string() } else { format!("{of} / {step}") };
        if d > dims.start {
            text = format!("({text}) % {}", low.dims[d]);
        }
        list.push((d, text));
        step *= low.dims[d];
    }
    for (d, text) in list.into_iter().rev() {
        w.line(format!("const {int} i{d} = {text};"));
        names.push(format!("i{d}"));
    }
}

/// One row's elements: loads, code, stores, and the joins of the lanes.
fn row(w: &mut Writer, to: &Columns, v: usize, names: &[String], join: &str) {
    let low = w.low;
    let order = elements(low, low.puts.iter().map(|p| p.reg).chain([to.reg]));
    let is_mem = |i: usize| matches!(low.ins[i].what, What::Mem(..));
    let last = |at: &At| at.strides.last().copied().unwrap_or(0);
    for &i in order.iter().filter(|&&i| is_mem(i)) {
        let What::Mem(base, at) = &low.ins[i].what else { continue };
        let (dtype, place, from) = (low.ins[i].dtype, w.place(at, names), w.address(*base));
        w.line(format!("{} r{i}[{v}];", w.type_of(i)));
        match walk(at, v) {
            Walk::Vector => w.line(format!("gt_load<D_{dtype}, {v}>({from}, {place}, r{i});")),
            Walk::Same => w.line(format!("gt_load_same<D_{dtype}, {v}>({from}, {place}, r{i});")),
            _ => w.line(format!("gt_load_apart<D_{dtype}, {v}>({from}, {place}, {}, {v}, r{i});", last(at))),
        }
    }
    for (k, put) in low.puts.iter().enumerate() {
        w.line(format!("{} o{k}[{v}];", w.type_of(put.reg)));
    }
    w.line("#pragma unroll");
    w.line(format!("for (int j = 0; j < {v}; j++) {{"));
    let name = |a: usize| if is_mem(a) { format!("r{a}[j]") } else { format!("r{a}") };
    for &i in order.iter().filter(|&&i| !is_mem(i)) {
        let place = match &low.ins[i].what {
            What::Iota(_, _, at) => format!("{} + j * {}", w.place(at, names), last(at)),
            _ => String::new(),
        };
        let value = w.value(i, &name, &place);
        w.line(format!("    const {} r{i} = {value};", w.type_of(i)));
    }
    w.line(format!("    acc[j] = {join}::join(acc[j], {});", name(to.reg)));
    for (k, put) in low.puts.iter().enumerate() {
        w.line(format!("    o{k}[j] = {};", name(put.reg)));
    }
    w.line("}");
    for (k, put) in low.puts.iter().enumerate() {
        let (dtype, place, address) = (put.dtype, w.place(&put.at, names), w.address(put.base));
        match walk(&put.at, v) {
            Walk::Vector => w.line(format!("gt_store<D_{dtype}, {v}>({address}, {place}, o{k});")),
            _ => w.line(format!(
                "gt_store_apart<D_{dtype}, {v}>({address}, {place}, {}, {v}, o{k});",
                last(&put.at)
            )),
        }
    }
}
