//! How long a written program is thought to take and how much memory it needs: what choices are compared by.

use super::Ask;
use super::choose::{Choice, arg_types};
use super::cost::Costs;
use gt_ir::collective::Exchange;
use gt_ir::layout::Layout;
use gt_ir::op::{ADAM_NUMBERS, SGD_NUMBERS};
use gt_ir::{Arg, Op, Structure, Ty};

/// What is thought of a program on one worker.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Verdict {
    pub seconds: f64,
    /// The part of them that passes in collectives.
    pub moving: f64,
    /// The most bytes held at any time, inputs included.
    pub peak: u64,
    pub collectives: usize,
}

impl Verdict {
    /// The faster of two that fit, else the smaller.
    pub fn is_better(&self, other: &Verdict, room: u64) -> bool {
        match (self.peak <= room, other.peak <= room) {
            (true, true) => self.seconds < other.seconds,
            (false, false) => self.peak < other.peak,
            (fits, _) => fits,
        }
    }
}

/// Judges what one worker of a mesh of this shape runs; `types` are those of its values.
pub fn judge(structure: &Structure, types: &[Ty], costs: &Costs, shape: &[usize]) -> Verdict {
    let mut verdict = Verdict { peak: peak(structure, types), ..Verdict::default() };
    let starts = structure.starts();
    let bytes = |types: &[Ty]| types.iter().map(|ty| ty.bytes() as f64).sum::<f64>();
    for (i, instr) in structure.instrs.iter().enumerate() {
        super::step_aside(i);
        let outs = &types[starts[i] as usize..starts[i + 1] as usize];
        let args = arg_types(structure, types, i);
        verdict.seconds += match &instr.op {
            Op::Collective(c) => {
                let given = |arg: &Arg| match arg {
                    Arg::Value(v) => types[*v as usize].bytes() as f64,
                    Arg::Const(_) | Arg::Slot(_) => 0.0,
                };
                let parts = shape.get(c.axis as usize).copied().unwrap_or(1);
                let seconds =
                    costs.collective(&c.what, instr.args.iter().map(given).sum(), bytes(outs), parts);
                verdict.moving += seconds;
                verdict.collectives += 1;
                seconds
            }
            op => costs.local(op, &args, outs),
        };
    }
    verdict
}

/// How many times as long it takes to put parameters together one by one, where they are read, as all at once.
const APART: f64 = 4.0;

/// Seconds by which the next step takes longer than this one because optimizers left parameters in pieces that were
/// whole; fewer than none where they put together what lay in pieces.
pub fn next_step(ask: &Ask, choice: &Choice) -> f64 {
    let structure = &*ask.structure;
    let starts = structure.starts();
    let mut producer = vec![None; ask.types.len()];
    for i in 0..structure.instrs.len() {
        super::step_aside(i);
        producer[starts[i] as usize..starts[i + 1] as usize].fill(Some(i));
    }
    let mut seconds = 0.0;
    for (axis, &parts) in ask.shape.iter().enumerate() {
        let lies = |v: u32| match producer[v as usize] {
            None => choice.inputs[v as usize][axis],
            Some(i) => {
                let rules = choice.rules[i].as_ref();
                rules.map_or(Layout::Whole, |rules| rules[axis].outs[(v - starts[i]) as usize])
            }
        };
        let split = |layout: Layout| matches!(layout, Layout::Split(_));
        let (mut torn, mut joined) = (0.0, 0.0);
        for (i, was, becomes) in updates(structure, &starts) {
            let Some(rules) = &choice.rules[i] else { continue };
            let asked = structure.outs.iter().position(|v| *v == becomes).and_then(|k| choice.outs[k][axis]);
            let now = asked.unwrap_or(rules[axis].outs[(becomes - starts[i]) as usize]);
            let bytes = ask.types[was as usize].bytes() as f64;
            match (split(lies(was)), split(now)) {
                (false, true) => torn += bytes,
                (true, false) => joined += bytes,
                (true, true) | (false, false) => {}
            }
        }
        let what = Exchange::Broadcast { root: 0 };
        let gather =
            |bytes: f64| if bytes > 0.0 { ask.costs.collective(&what, 0.0, bytes, parts) } else { 0.0 };
        seconds += APART * (gather(torn) - gather(joined));
    }
    seconds
}

/// The parameters that optimizers update: the instruction, what a parameter was and what it becomes.
pub fn updates<'a>(
    structure: &'a Structure,
    starts: &'a [u32],
) -> impl Iterator<Item = (usize, u32, u32)> + 'a {
    structure.instrs.iter().enumerate().flat_map(move |(i, instr)| {
        let numbers = match instr.op {
            Op::Sgd { .. } => SGD_NUMBERS,
            Op::Adam { .. } => ADAM_NUMBERS,
            _ => instr.args.len(),
        };
        let tensors = instr.args.get(numbers..).unwrap_or(&[]).chunks(instr.op.group().max(1));
        let results = (starts[i + 1] - starts[i]) as usize / tensors.len().max(1);
        tensors.enumerate().filter_map(move |(k, tensors)| match tensors.first() {
            Some(Arg::Value(v)) => Some((i, *v, starts[i] + (k * results) as u32)),
            _ => None,
        })
    })
}

/// The most bytes that values take at any time. Views have none of their own, and what dies in an instruction makes room
/// for what it writes.
fn peak(structure: &Structure, types: &[Ty]) -> u64 {
    let starts = structure.starts();
    let mut owner: Vec<u32> = (0..types.len() as u32).collect();
    let mut last = vec![0u32; types.len()];
    for (i, instr) in structure.instrs.iter().enumerate() {
        super::step_aside(i);
        last[starts[i] as usize..starts[i + 1] as usize].fill(i as u32);
        if let (Op::View(_), Some(Arg::Value(v))) = (&instr.op, instr.args.first()) {
            owner[starts[i] as usize] = owner[*v as usize];
        }
        for arg in &instr.args {
            if let Arg::Value(v) = arg {
                last[owner[*v as usize] as usize] = i as u32;
            }
        }
    }
    let inputs = structure.inputs.len();
    let mut stays = vec![false; types.len()];
    (0..inputs).for_each(|v| stays[v] = !structure.inputs[v].dies);
    structure.outs.iter().for_each(|v| stays[owner[*v as usize] as usize] = true);
    let own = |v: usize| types[v].bytes() as u64;
    let mut held: u64 = (0..inputs).map(own).sum();
    let mut most = held;
    let mut dying: Vec<Vec<u32>> = vec![Vec::new(); structure.instrs.len()];
    for v in (0..types.len()).filter(|v| owner[*v] as usize == *v && !stays[*v]) {
        if let Some(dying) = dying.get_mut(last[v] as usize) {
            dying.push(v as u32);
        }
    }
    for i in 0..structure.instrs.len() {
        super::step_aside(i);
        let made = (starts[i]..starts[i + 1]).filter(|v| owner[*v as usize] == *v);
        held += made.map(|v| own(v as usize)).sum::<u64>();
        held -= dying[i].iter().map(|v| own(*v as usize)).sum::<u64>();
        most = most.max(held);
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;
    use gt_ir::{Binary, DType, Input, Instr, Scalar, View};
    use smallvec::smallvec;

    /// y = (x + x) * 2, of which a view is kept.
    fn program(dies: bool) -> (Structure, Vec<Ty>) {
        let ty = Ty::new(DType::F32, [256]);
        let instr = |op, args| Instr { op, args };
        let structure = Structure {
            inputs: vec![Input { ty, dies }],
            instrs: vec![
                instr(Op::Binary(Binary::Add), smallvec![Arg::Value(0), Arg::Value(0)]),
                instr(Op::Binary(Binary::Mul), smallvec![Arg::Value(1), Arg::Const(Scalar::Float(2.0))]),
                instr(Op::View(View::Reshape([16, 16].into())), smallvec![Arg::Value(2)]),
            ],
            outs: vec![3],
            ..Structure::default()
        };
        let types = structure.check().unwrap();
        (structure, types)
    }

    #[test]
    fn memory_is_counted_while_values_live_and_views_have_none() {
        let (structure, types) = program(false);
        assert_eq!(peak(&structure, &types), 2 * 1024);
        let (structure, types) = program(true);
        assert_eq!(peak(&structure, &types), 1024);
    }

    #[test]
    fn time_grows_with_what_passes_through_memory() {
        let (structure, types) = program(false);
        let fast = judge(&structure, &types, &Costs::cpu(4), &[1]);
        let slow = judge(&structure, &types, &Costs { memory: 1e6, ..Costs::cpu(1) }, &[1]);
        assert!(fast.seconds < slow.seconds && fast.collectives == 0, "{fast:?} {slow:?}");
    }
}
