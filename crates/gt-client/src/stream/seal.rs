//! Sealing: the open program, or its beginning, becomes a structure and its binding (C4).

use super::open::{Entry, INPUT, Open};
use super::{Sealed, Whole, Work};
use crate::signal::{FIRM, FIRM_IF_KEPT};
use foldhash::fast::FixedState;
use gt_ir::signal::Mark;
use gt_ir::{Arg, Input, Instr, Structure, TensorId, Ty};
use std::collections::HashSet;

impl Open {
    /// Takes the instructions of the first `cut` values out as a program; the rest stays open.
    pub fn seal_prefix(&mut self, cut: usize) -> Sealed {
        let past = match cut == self.len() {
            true => match self.seal_followed() {
                Ok(sealed) => return sealed,
                Err(past) => past,
            },
            false => {
                self.write_out();
                None
            }
        };
        let ends_step = std::mem::take(&mut self.step_ended);
        self.free_bytes = 0;
        let rest: Vec<Entry> = self.entries.split_off(cut);
        if rest.is_empty() {
            self.mesh = 0;
        }
        let room = self.entries.capacity();
        let entries = std::mem::replace(&mut self.entries, Vec::with_capacity(room));
        let old_inputs = std::mem::take(&mut self.inputs);
        let old_slots = std::mem::take(&mut self.slots);
        self.data = 0;
        let mut frees = std::mem::take(&mut self.frees);
        let held = std::mem::take(&mut self.held);
        if !rest.is_empty() {
            self.held = held.clone();
        }
        self.input_index.clear();

        // Results that the rest reads stay alive past the cut; if already dropped they die in the next program.
        let mut needed = vec![false; cut];
        let mut rest_inputs = vec![false; old_inputs.len()];
        for e in &rest {
            for arg in e.args() {
                if let Arg::Value(v) = arg {
                    if v & INPUT != 0 {
                        rest_inputs[(v & !INPUT) as usize] = true;
                    } else if (*v as usize) < cut {
                        needed[*v as usize] = true;
                    }
                }
            }
        }
        // Frees of inputs that the rest still reads wait for the next program.
        if !rest.is_empty() {
            let still: Vec<TensorId> =
                old_inputs.iter().zip(&rest_inputs).filter(|(_, r)| **r).map(|((id, _), _)| *id).collect();
            frees.retain(|id| {
                let later = still.contains(id);
                if later {
                    self.frees.push(*id);
                }
                !later
            });
        }

        // Number inputs by first use and renumber operands.
        let mut sealed = Numbering::new(old_inputs.len(), old_slots.len());
        let mut instrs: Vec<Instr> = Vec::with_capacity(cut);
        for e in &entries {
            for arg in e.args() {
                sealed.see(arg);
            }
        }
        let n_inputs = sealed.inputs.len() as u32;
        let mut outs = Vec::new();
        let mut out_ids = Vec::new();
        let mut bytes = 0;
        let mut lines = Vec::with_capacity(cut);
        let mut out_lines = Vec::new();
        let mut meta = Vec::with_capacity(rest.len().min(cut));
        let mut marks = Vec::new();
        let mut types = Vec::with_capacity(if rest.is_empty() { cut } else { 0 });
        for (i, e) in entries.into_iter().enumerate() {
            if e.alive || needed[i] {
                outs.push(n_inputs + i as u32);
                out_ids.push(e.id);
                out_lines.push(e.line);
                bytes += e.ty.bytes() as u64;
                if !e.alive {
                    self.frees.push(e.id);
                }
            }
            if !rest.is_empty() {
                meta.push((e.id, e.ty.clone()));
            }
            if e.mark != 0 {
                let kept = e.alive || needed[i];
                let firm = e.mark & FIRM != 0 || (kept && e.mark & FIRM_IF_KEPT != 0);
                marks.push(Mark { value: n_inputs + i as u32, signal: (e.mark >> 2) - 1, firm });
            }
            if rest.is_empty() {
                types.push(e.ty);
            }
            if let Some(Instr { op, args }) = e.instr {
                lines.push(e.line);
                let args = args.iter().map(|a| sealed.map(a, n_inputs)).collect();
                instrs.push(Instr { op, args });
            }
        }
        let inputs: Vec<TensorId> = sealed.inputs.iter().map(|&i| old_inputs[i as usize].0).collect();
        let dying: HashSet<TensorId, FixedState> = frees.iter().copied().collect();
        let input_types = sealed.inputs.iter().map(|&i| Input {
            ty: old_inputs[i as usize].1.clone(),
            dies: dying.contains(&old_inputs[i as usize].0),
        });
        let structure = Structure {
            inputs: input_types.collect(),
            instrs,
            outs,
            slots: sealed.slots.len() as u32,
            marks,
            at_once: self.at_once,
        };
        let slots = sealed.slots.iter().map(|&k| old_slots[k as usize].clone()).collect();

        let whole = rest.is_empty() && structure.marks.is_empty();
        let whole = whole.then(|| Whole { types, pasts: self.pasts.clone(), past });
        let structure = Work::New(structure, whole);

        // What stays open: operands from before the cut become inputs.
        let cut_pos = self.base + cut as u64;
        self.base = cut_pos;
        for mut e in rest {
            for arg in e.instr.iter_mut().flat_map(|i| &mut i.args) {
                *arg = match *arg {
                    Arg::Value(v) if v & INPUT != 0 => {
                        let (id, ty) = &old_inputs[(v & !INPUT) as usize];
                        Arg::Value(self.reopen(*id, ty))
                    }
                    Arg::Value(v) if (v as usize) < cut => {
                        let (id, ty) = &meta[v as usize];
                        Arg::Value(self.reopen(*id, ty))
                    }
                    Arg::Value(v) => Arg::Value(v - cut as u32),
                    Arg::Slot(k) => self.slot(old_slots[k as usize].clone()),
                    Arg::Const(x) => Arg::Const(x),
                };
            }
            self.entries.push(e);
        }
        let (rebinds, later) =
            std::mem::take(&mut self.rebinds).into_iter().partition(|(pos, _)| *pos <= cut_pos);
        self.rebinds = later;
        let rebinds = rebinds.into_iter().map(|(_, r)| r).collect();
        let (prefix, marks) = self.progress.take();
        let outs = out_ids;
        Sealed {
            structure,
            base: cut_pos - cut as u64,
            inputs,
            outs,
            slots,
            frees,
            rebinds,
            lines,
            out_lines,
            held,
            bytes,
            prefix,
            marks,
            ends_step,
            stream: self.stream,
        }
    }

    fn reopen(&mut self, id: TensorId, ty: &Ty) -> u32 {
        let next = self.inputs.len() as u32;
        let i = *self.input_index.entry(id).or_insert(next);
        if i == next {
            self.inputs.push((id, ty.clone()));
        }
        INPUT | i
    }
}

/// Renumbers inputs and slots by first use.
pub(super) struct Numbering {
    pub inputs: Vec<u32>,
    pub slots: Vec<u32>,
    input_map: Vec<u32>,
    slot_map: Vec<u32>,
}

const UNSEEN: u32 = u32::MAX;

impl Numbering {
    pub fn new(inputs: usize, slots: usize) -> Numbering {
        Numbering {
            inputs: Vec::new(),
            slots: Vec::new(),
            input_map: vec![UNSEEN; inputs],
            slot_map: vec![UNSEEN; slots],
        }
    }

    pub fn see(&mut self, arg: &Arg) {
        match *arg {
            Arg::Value(v) if v & INPUT != 0 => {
                let i = v & !INPUT;
                if self.input_map[i as usize] == UNSEEN {
                    self.input_map[i as usize] = self.inputs.len() as u32;
                    self.inputs.push(i);
                }
            }
            Arg::Slot(k) if self.slot_map[k as usize] == UNSEEN => {
                self.slot_map[k as usize] = self.slots.len() as u32;
                self.slots.push(k);
            }
            _ => {}
        }
    }

    pub fn map(&self, arg: &Arg, n_inputs: u32) -> Arg {
        match *arg {
            Arg::Value(v) if v & INPUT != 0 => Arg::Value(self.input_map[(v & !INPUT) as usize]),
            Arg::Value(v) => Arg::Value(n_inputs + v),
            Arg::Slot(k) => Arg::Slot(self.slot_map[k as usize]),
            Arg::Const(x) => Arg::Const(x),
        }
    }
}
