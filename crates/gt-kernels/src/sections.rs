//! A kernel with rows as a series of sections: what is done once per row, and what for every element of it.

use crate::lower::{Low, What};

/// Part of a kernel.
#[derive(Clone, Debug)]
pub struct Section {
    /// Once per row.
    pub row: bool,
    /// What is computed, in order. For elements it is all that the section's end needs, so that sections do not depend on
    /// one another but through rows.
    pub ins: Vec<usize>,
    /// The reduction that ends it.
    pub fold: Option<usize>,
    pub puts: Vec<usize>,
}

/// The sections of a kernel with rows, in order.
pub fn sections(low: &Low) -> Vec<Section> {
    let mut out: Vec<Section> = Vec::new();
    for (i, ins) in low.ins.iter().enumerate() {
        match ins.what {
            What::Fold(_, arg) => {
                let ins = elements(low, [arg]);
                out.push(Section { row: false, ins, fold: Some(i), puts: vec![] });
            }
            _ if ins.row => add_row(low, &mut out, i),
            _ => {}
        }
    }
    let puts =
        |row: bool| -> Vec<usize> { (0..low.puts.len()).filter(|&p| low.puts[p].row == row).collect() };
    let stored = puts(false);
    if !stored.is_empty() {
        let ins = elements(low, stored.iter().map(|&p| low.puts[p].reg));
        out.push(Section { row: false, ins, fold: None, puts: stored });
    }
    let stored = puts(true);
    if !stored.is_empty() {
        let is_number = |&i: &usize| matches!(low.ins[i].what, What::Num(_));
        let mut ins: Vec<usize> = stored.iter().map(|&p| low.puts[p].reg).filter(is_number).collect();
        ins.dedup();
        out.push(Section { row: true, ins, fold: None, puts: stored });
    }
    out
}

/// Numbers are written down wherever they are used.
fn add_row(low: &Low, out: &mut Vec<Section>, i: usize) {
    if !out.last().is_some_and(|s| s.row) {
        out.push(Section { row: true, ins: vec![], fold: None, puts: vec![] });
    }
    let section = out.last_mut().expect("pushed above");
    for arg in low.ins[i].what.args() {
        if matches!(low.ins[arg].what, What::Num(_)) && !low.ins[arg].row && !section.ins.contains(&arg) {
            section.ins.push(arg);
        }
    }
    section.ins.push(i);
}

/// All that has one value per element and is needed for `wanted`; loads stand right before their first use.
pub fn elements(low: &Low, wanted: impl IntoIterator<Item = usize>) -> Vec<usize> {
    let mut needed = vec![false; low.ins.len()];
    let wanted: Vec<usize> = wanted.into_iter().collect();
    for &w in &wanted {
        needed[w] = !low.ins[w].row;
    }
    for i in (0..low.ins.len()).rev() {
        if needed[i] {
            for arg in low.ins[i].what.args() {
                needed[arg] |= !low.ins[arg].row;
            }
        }
    }
    let mut out = Vec::new();
    let is_load = |i: usize| matches!(low.ins[i].what, What::Mem(..) | What::Num(_) | What::Iota(..));
    let mut placed = vec![false; low.ins.len()];
    for i in (0..low.ins.len()).filter(|&i| needed[i] && !is_load(i)) {
        for arg in low.ins[i].what.args() {
            if needed[arg] && is_load(arg) && !std::mem::replace(&mut placed[arg], true) {
                out.push(arg);
            }
        }
        out.push(i);
    }
    for w in wanted {
        if needed[w] && is_load(w) && !std::mem::replace(&mut placed[w], true) {
            out.push(w);
        }
    }
    out
}
