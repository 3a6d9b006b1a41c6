//! Kernels with rows: some threads, a warp or a block per row. A row that fits stays in registers, so that memory is read and
//! written once; a longer one is read again by every section.

use super::{Walk, Writer, launched, walk};
use crate::launch::Launches;
use crate::lower::{At, Base, Low, What, joins};
use crate::plain::{of_parts, reserve, row_parts};
use crate::sections::{Section, sections};
use crate::tree;

/// Elements of a chunk: a thread's neighbours, each in a lane of its own.
const CHUNK: usize = 4;
/// Chunks of a row that a thread keeps in registers.
const KEPT: usize = 8;

struct Rows {
    /// Threads of a row.
    width: usize,
    /// Chunks of a thread in a block of the tree, and how many such blocks.
    chunks: usize,
    blocks: usize,
    /// Parts of a row taken by blocks of their own.
    parts: Option<usize>,
    /// Values stay in registers from one section to the next.
    keeps: bool,
    /// Rows of a block of threads.
    together: usize,
}

impl Rows {
    fn new(low: &Low) -> Rows {
        let len = low.inner();
        let parts = row_parts(low);
        if parts.is_some() {
            return Rows {
                width: 512,
                chunks: tree::BLOCK / 2048,
                blocks: 1,
                parts,
                keeps: true,
                together: 1,
            };
        }
        let width = tree::fewest_threads(len);
        let blocks = len.div_ceil(tree::BLOCK);
        let chunks = len.min(tree::BLOCK).div_ceil(CHUNK * width);
        let keeps = chunks * blocks <= KEPT;
        Rows { width, chunks, blocks, parts, keeps, together: if width > 32 { 1 } else { 128 / width } }
    }

    fn threads(&self) -> usize {
        self.width * self.together
    }
}

pub fn launch(low: &Low, out: &mut Launches) {
    let rows = Rows::new(low);
    let count = low.outer() * rows.parts.unwrap_or(1);
    let mut w = Writer::new(low);
    w.guard();
    let scratch = rows.parts.map(|p| reserve(low.outer() * p * 8, out));
    head(&mut w, &rows, count);
    let list = sections(low);
    room(&mut w, &rows, &list);
    declare_kept(&mut w, &rows, &list);
    let mut done = vec![false; low.ins.len()];
    // What parts of a row come to is joined, and stored, by a launch of its own.
    for section in list.iter().filter(|section| rows.parts.is_none() || !section.row) {
        if !section.puts.is_empty() {
            w.leave();
        }
        if section.row {
            row_section(&mut w, section, &mut done);
        } else {
            element_section(&mut w, &rows, section, &mut done);
        }
    }
    if let (Some(_), Some(at)) = (rows.parts, scratch) {
        let fold = low.ins.len() - 1;
        let What::Fold(_, arg) = low.ins[fold].what else { return };
        let (to, ty) = (w.address(Base::Scratch(at)), w.type_of(arg));
        w.line(format!("if (t == 0) (({ty}*){to})[id] = v{fold};"));
    }
    let (function, args) = w.finish(rows.threads(), "");
    out.list.push(launched(function, count.div_ceil(rows.together), rows.threads(), args));
    if let (Some(parts), Some(from)) = (rows.parts, scratch) {
        launch(&of_parts(low, parts, from), out);
    }
}

/// The thread's place: its row, whether that exists, its number in the row, and the indices of the row.
fn head(w: &mut Writer, rows: &Rows, count: usize) {
    let (low, int) = (w.low, w.int());
    let width = rows.width;
    w.line(format!("const int t = threadIdx.x % {width};"));
    if rows.together == 1 {
        w.line("const u32 id = blockIdx.x;");
    } else {
        w.line(format!("const u32 id = blockIdx.x * {}u + threadIdx.x / {width};", rows.together));
    }
    if count.is_multiple_of(rows.together) {
        w.line("constexpr bool live = true;");
        w.line("const u32 row = id;");
    } else {
        w.line(format!("const bool live = id < {count}u;"));
        w.line("const u32 row = live ? id : 0;");
    }
    let mut q = "row".to_string();
    if let Some(parts) = rows.parts {
        w.line(format!("const {int} begin = ({int})(row % {parts}u) * {};", tree::BLOCK));
        w.line(format!("const u32 line = row / {parts}u;"));
        q = "line".into();
    }
    for d in (0..low.lead).rev() {
        let size = low.dims[d];
        let index = if d == 0 { q.clone() } else { format!("{q} % {size}u") };
        w.line(format!("const {int} c{d} = ({int})({index});"));
        if d > 0 {
            w.line(format!("const u32 q{d} = {q} / {size}u;"));
            q = format!("q{d}");
        }
    }
}

/// Shared memory for the reductions.
fn room(w: &mut Writer, rows: &Rows, list: &[Section]) {
    let mut types: Vec<&str> = list
        .iter()
        .filter_map(|s| match s.fold.map(|f| &w.low.ins[f].what) {
            Some(What::Fold(_, arg)) => Some(w.type_of(*arg)),
            _ => None,
        })
        .collect();
    types.sort_unstable();
    types.dedup();
    w.line("int turn = 0;");
    for ty in types {
        w.line(format!("__shared__ gt_room<{ty}> room_{ty};"));
        if rows.blocks > 1 {
            w.line(format!("__shared__ {ty} parts_{ty}[{}];", rows.blocks));
        }
    }
}

/// True if a value per element is needed by a section after the one that computes it first.
fn kept(list: &[Section], i: usize) -> bool {
    list.iter().filter(|s| !s.row && s.ins.contains(&i)).count() > 1
}

/// Registers that live across sections, and those of all loads.
fn declare_kept(w: &mut Writer, rows: &Rows, list: &[Section]) {
    let low = w.low;
    let all = rows.chunks * rows.blocks;
    for (i, ins) in low.ins.iter().enumerate() {
        let load = matches!(ins.what, What::Mem(..));
        let used = list.iter().any(|s| !s.row && s.ins.contains(&i));
        if ins.row || !used || matches!(ins.what, What::Num(_)) {
            continue;
        }
        if rows.keeps && (load || kept(list, i)) {
            w.line(format!("{} r{i}[{all}][{CHUNK}];", w.type_of(i)));
        }
    }
}

fn row_name(i: usize) -> String {
    format!("v{i}")
}

fn row_section(w: &mut Writer, section: &Section, done: &mut [bool]) {
    let low = w.low;
    let mut names: Vec<String> = (0..low.lead).map(|d| format!("c{d}")).collect();
    names.resize(low.dims.len(), "0".into());
    for &i in &section.ins {
        if std::mem::replace(&mut done[i], true) {
            continue;
        }
        let ty = w.type_of(i);
        let value = match &low.ins[i].what {
            What::Mem(base, at) => {
                let (place, from) = (w.place(at, &names), w.address(*base));
                format!("gt_get<D_{}>({from}, {place})", low.ins[i].dtype)
            }
            What::Iota(_, _, at) => {
                let place = w.place(at, &names);
                w.value(i, &row_name, &place)
            }
            _ => w.value(i, &row_name, ""),
        };
        w.line(format!("const {ty} v{i} = {value};"));
    }
    for &p in &section.puts {
        let put = &low.puts[p];
        let (place, to) = (w.place(&put.at, &names), w.address(put.base));
        w.line(format!("if (live && t == 0) gt_set<D_{}>({to}, {place}, v{});", put.dtype, put.reg));
    }
}

/// Whether chunks may end in the middle.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// Every chunk of every thread is there.
    Full,
    /// A chunk is there or not.
    Whole,
    Ragged,
}

fn ends(low: &Low, rows: &Rows) -> Ends {
    let len = low.inner();
    let parts = rows.parts.unwrap_or(1);
    if len == parts * rows.blocks * rows.chunks * rows.width * CHUNK {
        Ends::Full
    } else if len.is_multiple_of(CHUNK) {
        Ends::Whole
    } else {
        Ends::Ragged
    }
}

/// How an operand walks along the elements of a row in chunks.
fn chunk_walk(low: &Low, at: &At) -> Walk {
    if at.strides[low.lead..].iter().all(|&s| s == 0) {
        return Walk::Same;
    }
    let last = low.dims[low.dims.len() - 1];
    match walk(at, CHUNK) {
        Walk::Vector if last.is_multiple_of(CHUNK) => Walk::Vector,
        _ => Walk::Apart,
    }
}

/// The position of element `e` of the row.
fn place_in_row(w: &mut Writer, at: &At, e: &str) -> String {
    let low = w.low;
    let mut names: Vec<String> = (0..low.lead).map(|d| format!("c{d}")).collect();
    let mut step = 1usize;
    let mut own: Vec<String> = Vec::new();
    for d in (low.lead..low.dims.len()).rev() {
        let mut text = if step == 1 { format!("({e})") } else { format!("({e}) / {step}") };
        if d > low.lead {
            text = format!("({text}) % {}", low.dims[d]);
        }
        own.push(format!("({text})"));
        step *= low.dims[d];
    }
    names.extend(own.into_iter().rev());
    w.place(at, &names)
}

fn element_section(w: &mut Writer, rows: &Rows, section: &Section, done: &mut [bool]) {
    let low = w.low;
    let (ends, len, int) = (ends(low, rows), low.inner(), w.int());
    let fold = section.fold.and_then(|f| match &low.ins[f].what {
        What::Fold(kind, arg) => Some((f, joins(*kind).1, *arg)),
        _ => None,
    });
    // Numbers are the same for all elements.
    for &i in &section.ins {
        if let What::Num(_) = low.ins[i].what
            && !std::mem::replace(&mut done[i], true)
        {
            let value = w.value(i, &row_name, "");
            w.line(format!("const {} v{i} = {value};", w.type_of(i)));
        }
    }
    if let Some((f, _, arg)) = fold {
        w.line(format!("{} v{f}_;", w.type_of(arg)));
    }
    w.line(if rows.keeps { "#pragma unroll" } else { "#pragma unroll 1" });
    w.line(format!("for (int b = 0; b < {}; b++) {{", rows.blocks));
    if let Some((_, join, arg)) = fold {
        let ty = w.type_of(arg);
        w.line(format!("    {ty} acc[{CHUNK}];"));
        w.line("#pragma unroll");
        w.line(format!("    for (int j = 0; j < {CHUNK}; j++) acc[j] = {join}::none<{ty}>();"));
    }
    let fresh: Vec<usize> =
        section.ins.iter().copied().filter(|&i| !is_num(low, i) && (!rows.keeps || !done[i])).collect();
    let loads: Vec<usize> = fresh.iter().copied().filter(|&i| is_mem(low, i)).collect();
    if !rows.keeps {
        for &i in &loads {
            w.line(format!("    {} r{i}[{}][{CHUNK}];", w.type_of(i), rows.chunks));
        }
    }
    let begin = if rows.parts.is_some() { "begin + " } else { "" };
    let chunk = |w: &mut Writer| {
        w.line("#pragma unroll");
        w.line(format!("    for (int c = 0; c < {}; c++) {{", rows.chunks));
        let g = if rows.keeps { format!("b * {} + c", rows.chunks) } else { "c".into() };
        w.line(format!("        const int g = {g};"));
        w.line(format!(
            "        const {int} e = {begin}((b * {} + c) * {} + t) * {CHUNK};",
            rows.chunks, rows.width
        ));
    };
    let inside = if ends == Ends::Full { "true".to_string() } else { format!("e < {len}") };
    let exists = if ends == Ends::Ragged { format!("e + j < {len}") } else { "true".to_string() };
    if !loads.is_empty() {
        chunk(w);
        w.line(format!("        if ({inside}) {{"));
        for &i in &loads {
            let What::Mem(base, at) = &low.ins[i].what else { continue };
            let (dtype, from) = (low.ins[i].dtype, w.address(*base));
            let text = if chunk_walk(low, at) == Walk::Vector {
                let place = place_in_row(w, at, "e");
                format!("gt_load<D_{dtype}, {CHUNK}>({from}, {place}, r{i}[g]);")
            } else {
                let place = place_in_row(w, at, "e + j");
                format!(
                    "for (int j = 0; j < {CHUNK}; j++) if ({exists}) r{i}[g][j] = gt_get<D_{dtype}>({from}, {place});"
                )
            };
            if text.starts_with("for") {
                w.line("#pragma unroll");
            }
            w.line(format!("            {text}"));
        }
        w.line("        }");
        w.line("    }");
    }
    compute(w, rows, section, &fresh, &chunk, [&inside, &exists], fold.map(|f| (f.1, f.2)), done);
    if let Some((f, join, arg)) = fold {
        let ty = w.type_of(arg);
        w.line(format!(
            "    v{f}_ = gt_row_join<{join}>({join}::join({join}::join(acc[0], acc[1]), {join}::join(acc[2], acc[3])), {}, room_{ty}, turn);",
            rows.width
        ));
        if rows.blocks > 1 {
            w.line(format!("    if (t == 0) parts_{ty}[b] = v{f}_;"));
        }
    }
    w.line("}");
    if let Some((f, join, arg)) = fold {
        let ty = w.type_of(arg);
        if rows.blocks > 1 {
            w.line("__syncthreads();");
            w.line(format!("v{f}_ = gt_parts_join<{join}>(parts_{ty}, {});", rows.blocks));
        }
        let dtype = low.ins[f].dtype;
        if rows.parts.is_some() {
            w.line(format!("const {ty} v{f} = v{f}_;"));
        } else {
            w.line(format!("const {} v{f} = D_{dtype}::of(v{f}_);", w.type_of(f)));
        }
        done[f] = true;
    }
}

fn is_num(low: &Low, i: usize) -> bool {
    matches!(low.ins[i].what, What::Num(_))
}

fn is_mem(low: &Low, i: usize) -> bool {
    matches!(low.ins[i].what, What::Mem(..))
}

/// The code of a section for every element, its reduction's first joins, and its stores.
fn compute(
    w: &mut Writer,
    rows: &Rows,
    section: &Section,
    fresh: &[usize],
    chunk: &dyn Fn(&mut Writer),
    [inside, exists]: [&str; 2],
    fold: Option<(&str, usize)>,
    done: &mut [bool],
) {
    let low = w.low;
    let list = sections(low);
    let array = |i: usize| is_mem(low, i) || (rows.keeps && kept(&list, i));
    let name = |i: usize| {
        if low.ins[i].row || is_num(low, i) {
            row_name(i)
        } else if array(i) {
            format!("r{i}[g][j]")
        } else {
            format!("r{i}")
        }
    };
    chunk(w);
    w.line(format!("        if ({inside}) {{"));
    for &p in &section.puts {
        w.line(format!("            {} o{p}[{CHUNK}];", w.type_of(low.puts[p].reg)));
    }
    w.line("#pragma unroll");
    w.line(format!("            for (int j = 0; j < {CHUNK}; j++) if ({exists}) {{"));
    for &i in fresh {
        if is_mem(low, i) {
            continue;
        }
        let place = match &low.ins[i].what {
            What::Iota(_, _, at) => place_in_row(w, at, "e + j"),
            _ => String::new(),
        };
        let value = w.value(i, &name, &place);
        if array(i) {
            w.line(format!("                {} = {value};", name(i)));
        } else {
            w.line(format!("                const {} r{i} = {value};", w.type_of(i)));
        }
    }
    if let Some((join, arg)) = fold {
        w.line(format!("                acc[j] = {join}::join(acc[j], {});", name(arg)));
    }
    for &p in &section.puts {
        w.line(format!("                o{p}[j] = {};", name(low.puts[p].reg)));
    }
    w.line("            }");
    for &p in &section.puts {
        let put = &low.puts[p];
        let (dtype, to) = (put.dtype, w.address(put.base));
        if chunk_walk(low, &put.at) == Walk::Vector {
            let place = place_in_row(w, &put.at, "e");
            w.line(format!("            if (live) gt_store<D_{dtype}, {CHUNK}>({to}, {place}, o{p});"));
        } else {
            let place = place_in_row(w, &put.at, "e + j");
            w.line("#pragma unroll");
            w.line(format!(
                "            for (int j = 0; j < {CHUNK}; j++) if (live && {exists}) gt_set<D_{dtype}>({to}, {place}, o{p}[j]);"
            ));
        }
    }
    w.line("        }");
    w.line("    }");
    if rows.keeps {
        fresh.iter().filter(|&&i| array(i)).for_each(|&i| done[i] = true);
    }
}
