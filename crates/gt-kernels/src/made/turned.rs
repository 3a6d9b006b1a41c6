//! Elementwise kernels with a transposed operand: a block takes a tile of two dimensions and turns what is packed along the
//! other one in shared memory, so that neighbouring threads always read and write neighbouring elements.

use super::{Writer, launched};
use crate::launch::Launches;
use crate::lower::{At, Low, What};
use crate::sections::elements;

const TILE: usize = 32;
/// Threads of a column of the tile.
const HIGH: usize = 8;
/// Smaller dimensions leave too much of a tile empty.
const LEAST: usize = 16;
/// Fewer elements stay in the caches whatever their order.
const WORTH: usize = 1 << 14;

fn is_turned(at: &At) -> bool {
    at.strides.last().is_some_and(|s| s.unsigned_abs() > 1)
}

/// The dimension along which transposed operands are packed, if that is one for all and everything else is packed, or does
/// not move, along the last.
pub fn dimension(low: &Low) -> Option<usize> {
    let last = low.dims.len().checked_sub(1)?;
    if low.numel() < WORTH || low.dims[last] < LEAST || low.puts.iter().any(|p| is_turned(&p.at)) {
        return None;
    }
    let mut found = None;
    for ins in &low.ins {
        if let What::Mem(_, at) = &ins.what
            && is_turned(at)
        {
            let d = at.strides[..last].iter().position(|s| s.unsigned_abs() == 1)?;
            if low.dims[d] < LEAST || found.is_some_and(|f| f != d) {
                return None;
            }
            found = Some(d);
        }
    }
    found
}

pub fn launch(low: &Low, d: usize, out: &mut Launches) {
    let last = low.dims.len() - 1;
    let tiles = |n: usize| low.dims[n].div_ceil(TILE);
    let others: usize = (0..last).filter(|&n| n != d).map(|n| low.dims[n]).product();
    let mut w = Writer::new(low);
    w.guard();
    let int = w.int();
    w.line(format!("const int x = threadIdx.x % {TILE}, y = threadIdx.x / {TILE};"));
    w.line(format!("u32 q = blockIdx.x / {}u;", tiles(last)));
    w.line(format!("const {int} across = ({int})(blockIdx.x % {}u) * {TILE};", tiles(last)));
    w.line(format!("const {int} down = ({int})(q % {}u) * {TILE};", tiles(d)));
    w.line(format!("q /= {}u;", tiles(d)));
    for n in (0..last).rev().filter(|&n| n != d) {
        w.line(format!("const {int} c{n} = ({int})(q % {0}u); q /= {0}u;", low.dims[n]));
    }
    let order = elements(low, low.puts.iter().map(|p| p.reg));
    let is_mem = |i: usize| matches!(low.ins[i].what, What::Mem(..));
    let turned: Vec<usize> = order
        .iter()
        .copied()
        .filter(|&i| matches!(&low.ins[i].what, What::Mem(_, at) if is_turned(at)))
        .collect();
    let names: Vec<String> = (0..=last).map(|n| format!("c{n}")).collect();
    for &i in &turned {
        w.line(format!("__shared__ D_{}::E tile{i}[{TILE}][{}];", low.ins[i].dtype, TILE + 1));
    }
    // Along the dimension in which they are packed.
    begin(&mut w, d, ["down + x", "across + y + k"]);
    for &i in &turned {
        let What::Mem(base, at) = &low.ins[i].what else { continue };
        let (dtype, place, from) = (low.ins[i].dtype, w.place(at, &names), w.address(*base));
        w.line(format!("    tile{i}[y + k][x] = ((const D_{dtype}::E*){from})[{place}];"));
    }
    w.line("}");
    w.line("__syncthreads();");
    w.leave();
    // Along the last dimension.
    begin(&mut w, d, ["down + y + k", "across + x"]);
    for &i in &order {
        let dtype = low.ins[i].dtype;
        let value = match &low.ins[i].what {
            What::Mem(..) if turned.contains(&i) => format!("D_{dtype}::get(tile{i}[x][y + k])"),
            What::Mem(base, at) => {
                let (place, from) = (w.place(at, &names), w.address(*base));
                format!("gt_get<D_{dtype}>({from}, {place})")
            }
            What::Iota(_, _, at) => {
                let place = w.place(at, &names);
                w.value(i, &|a| format!("r{a}"), &place)
            }
            _ => w.value(i, &|a| format!("r{a}"), ""),
        };
        w.line(format!("    const {} r{i} = {value};", w.type_of(i)));
    }
    debug_assert!(order.iter().any(|&i| is_mem(i)), "a transposed operand is a load");
    for put in &low.puts {
        let (place, to) = (w.place(&put.at, &names), w.address(put.base));
        w.line(format!("    gt_set<D_{}>({to}, {place}, r{});", put.dtype, put.reg));
    }
    w.line("}");
    let (function, args) = w.finish(TILE * HIGH, "");
    out.list.push(launched(function, others * tiles(d) * tiles(last), TILE * HIGH, args));
}

/// Begins a loop over a thread's elements of the tile, whose indices along `d` and the last dimension are given.
fn begin(w: &mut Writer, d: usize, [along, last]: [&str; 2]) {
    let (dims, int) = (w.low.dims.clone(), w.int());
    let end = dims.len() - 1;
    w.line("#pragma unroll");
    w.line(format!("for (int k = 0; k < {TILE}; k += {HIGH}) {{"));
    w.line(format!("    const {int} c{d} = {along}, c{end} = {last};"));
    w.line(format!("    if (c{d} >= {} || c{end} >= {}) continue;", dims[d], dims[end]));
}
