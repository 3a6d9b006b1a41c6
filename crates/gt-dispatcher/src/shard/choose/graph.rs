//! The program as far as no axis matters: who makes and who reads each value.

use super::grain::grains;
use crate::shard::Ask;
use gt_ir::layout::{Grains, Part};
use gt_ir::{Arg, Op, Structure, Ty};

/// The program as far as no axis matters.
pub(super) struct Graph<'a> {
    pub ask: &'a Ask,
    pub starts: Vec<u32>,
    /// The instruction of every value; none for inputs.
    pub producer: Vec<Option<u32>>,
    /// How many read each value.
    pub uses: Vec<u32>,
    pub grains: Grains,
}

impl<'a> Graph<'a> {
    pub fn new(ask: &'a Ask) -> Graph<'a> {
        let structure = &*ask.structure;
        let starts = structure.starts();
        let values = starts[structure.instrs.len()] as usize;
        let mut producer = vec![None; values];
        let mut uses = vec![0; values];
        for (i, instr) in structure.instrs.iter().enumerate() {
            producer[starts[i] as usize..starts[i + 1] as usize].fill(Some(i as u32));
            for arg in &instr.args {
                if let Arg::Value(v) = arg {
                    uses[*v as usize] += 1;
                }
            }
        }
        structure.outs.iter().for_each(|v| uses[*v as usize] += 1);
        Graph { ask, starts, producer, uses, grains: grains(ask) }
    }

    /// The first part of an axis, which holds the most.
    pub fn first(&self, parts: usize) -> Part {
        Part { grains: self.grains, ..Part::new(0, parts) }
    }

    /// Instructions that start from nothing, such as what parameters are filled with at first: their time does not come
    /// again, so that their results may be whole, if there is room for that.
    pub fn made_of_nothing(&self, structure: &Structure, types: &[Ty], room: u64) -> Vec<bool> {
        let mut made = vec![false; structure.instrs.len()];
        let mut bytes = 0;
        for (i, instr) in structure.instrs.iter().enumerate() {
            let known = |arg: &Arg| match arg {
                Arg::Value(v) => self.producer[*v as usize].is_some_and(|i| made[i as usize]),
                Arg::Const(_) | Arg::Slot(_) => true,
            };
            made[i] = !matches!(instr.op, Op::Data { .. }) && instr.args.iter().all(known);
            let values = &types[self.starts[i] as usize..self.starts[i + 1] as usize];
            bytes += if made[i] { values.iter().map(|ty| ty.bytes() as u64).sum() } else { 0 };
        }
        if bytes.saturating_mul(4) > room {
            made.fill(false);
        }
        made
    }

    /// The instructions whose results somebody needs.
    pub fn live(&self, structure: &Structure) -> Vec<bool> {
        let mut live = vec![false; structure.instrs.len()];
        let made = |v: u32| self.producer[v as usize].map(|i| i as usize);
        structure.outs.iter().filter_map(|v| made(*v)).for_each(|i| live[i] = true);
        for i in (0..live.len()).rev() {
            if live[i] {
                for arg in &structure.instrs[i].args {
                    if let Arg::Value(v) = arg
                        && let Some(i) = made(*v)
                    {
                        live[i] = true;
                    }
                }
            }
        }
        live
    }
}
