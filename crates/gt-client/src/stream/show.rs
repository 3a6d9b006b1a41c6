//! The open program as a person or a file wants it.

use super::open::{INPUT, Open};
use super::{Stream, Work};
use crate::signal;
use crate::signal::FIRM;
use gt_ir::{Arg, Program, Slot};
use std::sync::Arc;

impl Stream {
    /// The open program as it would be sent now. It stays open.
    pub fn snapshot(&self) -> Option<Program> {
        let mut open = self.open.lock();
        self.write_out(&mut open);
        let mut copy = Open {
            entries: open.entries.clone(),
            inputs: open.inputs.clone(),
            slots: open.slots.clone(),
            data: open.data,
            frees: open.frees.clone(),
            at_once: open.at_once,
            ..Open::new(open.stream, open.base, Arc::default(), Arc::default())
        };
        drop(open);
        let n = copy.entries.len();
        let s = copy.seal_prefix(n);
        let (structure, key) = match s.structure {
            Work::New(structure, _) => {
                let key = structure.key();
                (Arc::new(structure), key)
            }
            Work::Known(way) => (way.structure.clone(), way.key),
        };
        let program =
            Program { structure, key, inputs: s.inputs, outs: s.outs, slots: s.slots, frees: s.frees };
        (n > 0).then_some(program)
    }

    /// The open program's instructions, for `gt.debug.print_tape`.
    pub fn tape(&self) -> Vec<String> {
        let mut open = self.open.lock();
        self.write_out(&mut open);
        let name = |v: u32| match v & INPUT {
            0 => format!("TENSOR[{}]", open.entries[v as usize].id.0),
            _ => format!("TENSOR[{}]", open.inputs[(v & !INPUT) as usize].0.0),
        };
        let mut lines = Vec::with_capacity(open.entries.len());
        for (i, e) in open.entries.iter().enumerate() {
            let Some(instr) = &e.instr else { continue };
            let more = open.entries[i + 1..].iter().take_while(|more| more.instr.is_none());
            let results: Vec<String> =
                std::iter::once(e).chain(more).map(|e| format!("TENSOR[{}]", e.id.0)).collect();
            let mut text = format!("{} := {}", results.join(", "), instr.op.text());
            for arg in &instr.args {
                text.push(' ');
                text.push_str(&match arg {
                    Arg::Value(v) => name(*v),
                    Arg::Const(x) => x.to_string(),
                    Arg::Slot(k) => match &open.slots[*k as usize] {
                        Slot::Num(x) => x.to_string(),
                        Slot::Data(d) => format!("<{} bytes>", d.len()),
                    },
                });
            }
            let mark = signal::registry::spec(e.mark >> 2).map_or(String::new(), |spec| {
                let firm = if e.mark & FIRM != 0 { "!" } else { "" };
                format!(" @{}{firm}", spec.name)
            });
            lines.push(format!("{text} : {}{mark}", e.ty));
        }
        lines
    }
}
