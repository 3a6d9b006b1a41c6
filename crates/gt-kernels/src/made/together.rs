//! Several steps of one text in one launch: the update of all parameters of an optimizer step.

use super::elements::{body, is_flat, vector};
use super::{Param, Writer, function};
use crate::launch::{Arg, Fill, Launch, Launches, Word};
use crate::lower::Low;
use gt_compiler::{Plan, Work};

const THREADS: usize = 256;
/// Bytes of the table: addresses, sizes and first blocks of all steps. With the other arguments it stays below 4 KiB.
const TABLE: usize = 3584;

/// The launches of independent steps as one, where their text is the same but for addresses and sizes.
pub fn together(steps: &[usize], plan: &Plan) -> Option<Launches> {
    let lows: Option<Vec<Low>> = steps
        .iter()
        .map(|&s| match &plan.steps[s].work {
            Work::Kernel(kernel) => Some(Low::new(kernel, plan)),
            _ => None,
        })
        .collect();
    let lows = lows?;
    if lows.len() < 2
        || !lows.iter().all(|l| l.numel() > 0 && !l.has_rows() && l.columns.is_none() && is_flat(l))
    {
        return None;
    }
    // One element has no dimensions left; it is a vector like any other.
    let guarded = lows.iter().any(|l| l.guarded);
    let lows: Vec<Low> = lows.into_iter().map(|l| flattened(l, guarded)).collect();
    let v = lows.iter().map(vector).min()?;
    let written: Vec<(String, Vec<Param>)> = lows
        .iter()
        .map(|low| {
            let mut w = Writer::new(low);
            w.small = false;
            body(&mut w, v, 1, true, 0);
            (w.body, w.params)
        })
        .collect();
    let is_address = |p: &Param| matches!(p, Param::Address(_));
    let (text, params) = &written[0];
    let same = |(t, ps): &(String, Vec<Param>)| {
        t == text
            && ps.len() == params.len()
            && ps.iter().zip(params).all(|(a, b)| a == b || (is_address(a) && is_address(b)))
    };
    if !written.iter().all(same) {
        return None;
    }
    let addresses: Vec<usize> = (0..params.len()).filter(|&i| is_address(&params[i])).collect();
    let most = TABLE / (8 * addresses.len() + 12) - 1;
    let mut out = Launches::default();
    for part in (0..lows.len()).collect::<Vec<_>>().chunks(most) {
        out.list.push(launch(part, &lows, &written, &addresses, v, most, guarded));
    }
    Some(out)
}

/// The same kernel with exactly one dimension.
fn flattened(mut low: Low, guarded: bool) -> Low {
    low.guarded = guarded;
    if low.dims.is_empty() {
        low.dims.push(1);
        low.lead = 1;
        low.ones();
    }
    low
}

fn launch(
    part: &[usize],
    lows: &[Low],
    written: &[(String, Vec<Param>)],
    addresses: &[usize],
    v: usize,
    most: usize,
    guarded: bool,
) -> Launch {
    let (text, params) = &written[0];
    let count = addresses.len();
    // Sizes, addresses, first blocks: as the structure in the text lies in memory.
    let mut bytes = vec![0u8; most * (8 + 8 * count) + (most + 1) * 4];
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    let mut fills = Vec::new();
    let mut blocks = 0u32;
    let firsts = most * (8 + 8 * count);
    for (k, &step) in part.iter().enumerate() {
        let n = lows[step].numel();
        bytes[k * 8..k * 8 + 8].copy_from_slice(&(n as u64).to_ne_bytes());
        for (a, &i) in addresses.iter().enumerate() {
            let Param::Address(base) = written[step].1[i] else { continue };
            fills.push(Fill { at: (most * 8 + (a * most + k) * 8) as u32, word: base.word() });
        }
        bytes[firsts + k * 4..firsts + k * 4 + 4].copy_from_slice(&blocks.to_ne_bytes());
        blocks += n.div_ceil(THREADS * v) as u32;
    }
    for k in part.len()..most + 1 {
        bytes[firsts + k * 4..firsts + k * 4 + 4].copy_from_slice(&blocks.to_ne_bytes());
    }
    let mut given = vec!["const __grid_constant__ gt_table t".to_string()];
    let mut args = vec![Arg { bytes, fills }];
    let mut lines = String::new();
    for (i, param) in params.iter().enumerate() {
        match param {
            Param::Address(_) => {
                let a = addresses.iter().position(|&x| x == i).unwrap_or(0);
                lines += &format!("    char* p{i} = (char*)t.p[{a}][k];\n");
                continue;
            }
            Param::Number(_, dtype) if dtype.is_float() => given.push(format!("double p{i}")),
            Param::Number(..) | Param::Start(_) | Param::Zero => given.push(format!("i64 p{i}")),
            Param::Failed => given.push(format!("char* p{i}")),
        }
        args.push(param.arg());
    }
    let mut guard = "";
    if guarded {
        given.push("char* flag".into());
        args.push(Arg::word(Word::Failed));
        guard = "    const u64 failed = *(const u64*)flag;\n";
    }
    // Every text has a table of its own, so its structure lies in a space of its own.
    let head = "extern \"C\" __global__ void __launch_bounds__(256) ";
    let given = given.join(", ").replace("gt_table", &format!("gt_table<{count}, {most}>"));
    let rest = format!(
        "({given}) {{\n{guard}    int k = 0;\n    for (int half = {}; half > 0; half >>= 1)\n        if (k + half < {most} && t.first[k + half] <= blockIdx.x) k += half;\n{lines}    const i64 n = (i64)t.n[k];\n    const i64 first = ((i64)(blockIdx.x - t.first[k]) * {THREADS} + threadIdx.x) * {v};\n{text}}}\n",
        (most + 1).next_power_of_two() / 2,
    );
    Launch { function: function(head, &rest), grid: [blocks, 1, 1], block: THREADS as u32, shared: 0, args }
}
