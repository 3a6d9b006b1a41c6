//! Workers of a mesh without workers: each part of a divided program on a thread, collectives by their meaning.

use gt_ir::layout::{Layout, Layouts, Part, place, range_at};
use gt_ir::reference::{self, RefArg, eval};
use gt_ir::{Collective, HostTensor, Op, Scalar, Slot, Structure, View, collective};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What the worker at a place holds of a tensor.
pub fn cut(x: &HostTensor, layouts: &Layouts, place: &[Part]) -> HostTensor {
    (0..x.ty.shape.len()).fold(x.clone(), |x, dim| {
        let range = range_at(x.ty.shape[dim], dim, layouts, place);
        let slice = Op::View(View::Slice { dim, len: range.len(), step: 1 });
        eval(&slice, &[RefArg::Val(&x), RefArg::Num(Scalar::Int(range.start as i64))]).unwrap()
    })
}

pub type Held = Vec<HostTensor>;

/// Gives each worker its results of a collective, once all of its group have come.
struct Table {
    to: Sender<(usize, Held)>,
    from: Receiver<Held>,
}

/// The ranks that differ from each other along one axis only.
fn groups(shape: &[usize], axis: usize) -> Vec<Vec<usize>> {
    let mut groups: Vec<(Vec<Part>, Vec<usize>)> = Vec::new();
    for rank in 0..shape.iter().product() {
        let mut others = place(shape, rank);
        others.remove(axis);
        match groups.iter_mut().find(|(o, _)| *o == others) {
            Some((_, ranks)) => ranks.push(rank),
            None => groups.push((others, vec![rank])),
        }
    }
    groups.into_iter().map(|(_, ranks)| ranks).collect()
}

pub fn collectives(structure: &Structure) -> Vec<Collective> {
    let of = |i: &gt_ir::Instr| if let Op::Collective(c) = &i.op { Some(c.clone()) } else { None };
    structure.instrs.iter().filter_map(of).collect()
}

/// Runs all workers at once, each on a thread, and carries out their collectives by their meaning.
pub fn run_parts(
    shape: &[usize],
    structures: &[(Arc<Structure>, Vec<Slot>, Vec<HostTensor>)],
) -> Result<Vec<Held>, String> {
    let n = structures.len();
    let (to, arrivals) = channel::<(usize, Held)>();
    let mut tables = Vec::new();
    let mut answers = Vec::new();
    for _ in 0..n {
        let (answer, from) = channel::<Held>();
        tables.push(Table { to: to.clone(), from });
        answers.push(answer);
    }
    drop(to);
    let orders: Vec<Vec<Collective>> = structures.iter().map(|(s, ..)| collectives(s)).collect();
    let kinds = |order: &[Collective]| -> Vec<(u8, &'static str)> {
        order.iter().map(|c| (c.axis, c.what.text())).collect()
    };
    assert!(orders.iter().all(|o| kinds(o) == kinds(&orders[0])), "all workers meet in the same collectives");
    let results: Mutex<Vec<Option<Result<Held, String>>>> = Mutex::new(vec![None; n]);
    std::thread::scope(|scope| {
        for (rank, (table, (s, slots, inputs))) in tables.into_iter().zip(structures).enumerate() {
            let results = &results;
            scope.spawn(move || {
                let done = reference::run_part(s, inputs, slots, &mut |_, xs| {
                    let _ = table.to.send((rank, xs.iter().map(|x| (*x).clone()).collect()));
                    let wait = table.from.recv_timeout(Duration::from_secs(30));
                    wait.map_err(|_| gt_ir::Error::Runtime("another part failed".into()))
                });
                results.lock().unwrap()[rank] = Some(done.map_err(|(i, e)| format!("instruction {i}: {e}")));
            });
        }
        for collective in &orders[0] {
            let mut held: Vec<Option<Held>> = vec![None; n];
            for _ in 0..n {
                let Ok((rank, xs)) = arrivals.recv() else { return };
                held[rank] = Some(xs);
            }
            for ranks in groups(shape, collective.axis as usize) {
                let held: Vec<Held> = ranks.iter().map(|r| held[*r].take().unwrap()).collect();
                let outs = collective::eval_parts(&collective.what, &held).unwrap();
                for (rank, outs) in ranks.into_iter().zip(outs) {
                    let _ = answers[rank].send(outs);
                }
            }
        }
        drop(answers);
    });
    results.into_inner().unwrap().into_iter().map(Option::unwrap).collect()
}

/// The whole of what the workers hold: later axes are put together first.
pub fn whole(shape: &[usize], held: &[HostTensor], layouts: &[Layout]) -> Result<HostTensor, String> {
    let (Some((&n, outer)), Some((layout, before))) = (shape.split_last(), layouts.split_last()) else {
        return Ok(held[0].clone());
    };
    let join = |parts: &[HostTensor]| match *layout {
        Layout::Whole => match parts.iter().all(|p| *p == parts[0]) {
            true => Ok(parts[0].clone()),
            false => Err("parts of a whole differ".to_string()),
        },
        Layout::Split(dim) => {
            let args: Vec<RefArg> = parts.iter().map(RefArg::Val).collect();
            eval(&Op::Concat { dim }, &args).map_err(|e| e.to_string())
        }
        Layout::Partial(_) => Err("a live-out is partial".into()),
    };
    let joined = held.chunks(n).map(join).collect::<Result<Vec<_>, _>>()?;
    whole(outer, &joined, before)
}
