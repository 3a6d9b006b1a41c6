//! Divided programs give the results of the whole: random programs, random layouts, even, uneven and empty parts.

use gt_dispatcher::shard::{Ask, Choice, Costs, divide, rewrite};
use gt_ir::host::{close, tolerance};
use gt_ir::layout::{Layout, Part, legal, part_range};
use gt_ir::reference::{self, RefArg, eval};
use gt_ir::sample::{RandomProgram, Rng, random_program};
use gt_ir::{Arg, ArgTy, Collective, HostTensor, Op, Scalar, Slot, Structure, View, collective};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What a part holds of a tensor.
fn cut(x: &HostTensor, layout: Layout, part: Part) -> HostTensor {
    let Layout::Split(dim) = layout else { return x.clone() };
    let range = part_range(x.ty.shape[dim], part.parts, part.index);
    let slice = Op::View(View::Slice { dim, len: range.len(), step: 1 });
    eval(&slice, &[RefArg::Val(x), RefArg::Num(Scalar::Int(range.start as i64))]).unwrap()
}

type Held = Vec<HostTensor>;

/// Gives each part its results of a collective, once all have come.
struct Table {
    to: Sender<(usize, Held)>,
    from: Receiver<Held>,
}

/// Runs all parts at once, each on a thread, and carries out their collectives by their meaning.
fn run_parts(structures: &[(Arc<Structure>, Vec<Slot>, Vec<HostTensor>)]) -> Result<Vec<Held>, String> {
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
    let orders: Vec<Vec<Collective>> = structures
        .iter()
        .map(|(s, ..)| {
            s.instrs
                .iter()
                .filter_map(|i| if let Op::Collective(c) = &i.op { Some(c.clone()) } else { None })
                .collect()
        })
        .collect();
    let count = orders[0].len();
    assert!(orders.iter().all(|o| o.len() == count), "all parts meet in the same collectives");
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
            let held: Vec<Held> = held.into_iter().map(Option::unwrap).collect();
            let outs = collective::eval_parts(&collective.what, &held).unwrap();
            for (rank, outs) in outs.into_iter().enumerate() {
                let _ = answers[rank].send(outs);
            }
        }
        drop(answers);
    });
    results.into_inner().unwrap().into_iter().map(Option::unwrap).collect()
}

fn whole(parts: &[HostTensor], layout: Layout) -> Result<HostTensor, String> {
    match layout {
        Layout::Whole => match parts.iter().all(|p| *p == parts[0]) {
            true => Ok(parts[0].clone()),
            false => Err("parts of a whole differ".into()),
        },
        Layout::Split(dim) => {
            let args: Vec<RefArg> = parts.iter().map(RefArg::Val).collect();
            eval(&Op::Concat { dim }, &args).map_err(|e| e.to_string())
        }
        Layout::Partial(_) => Err("a live-out is partial".into()),
    }
}

fn random_layout(rng: &mut Rng, rank: usize) -> Layout {
    match rng.below(rank + 1) {
        0 => Layout::Whole,
        d => Layout::Split(d - 1),
    }
}

/// A rule for every instruction, drawn among those that its operands can be brought to.
fn random_choice(rng: &mut Rng, p: &RandomProgram, types: &[gt_ir::Ty], inputs: &[Layout]) -> Choice {
    let s = &p.structure;
    let starts = s.starts();
    let mut layouts: Vec<Layout> = inputs.to_vec();
    let mut rules = Vec::new();
    for (i, instr) in s.instrs.iter().enumerate() {
        let args: Vec<ArgTy> = instr
            .args
            .iter()
            .map(|a| if let Arg::Value(v) = a { ArgTy::Val(&types[*v as usize]) } else { ArgTy::Num })
            .collect();
        let mut legal = legal(&instr.op, &args, &types[starts[i] as usize..starts[i + 1] as usize]);
        if let Op::Random { shape, .. } = &instr.op
            && !shape.is_empty()
        {
            let mut rule = legal[0].clone();
            rule.outs = vec![Layout::Split(0)];
            legal.push(rule);
        }
        legal.retain(|rule| {
            instr.args.iter().zip(&rule.args).all(|(arg, layout)| match (arg, layout) {
                (Arg::Value(v), Some(Layout::Partial(kind))) => {
                    layouts[*v as usize] == Layout::Partial(*kind)
                }
                _ => true,
            })
        });
        let rule = legal.swap_remove(rng.below(legal.len()));
        layouts.extend(rule.outs.iter().copied());
        rules.push(Some(rule));
    }
    let outs = vec![None; s.outs.len()];
    Choice { inputs: inputs.to_vec(), rules, outs, pays: true, seconds: (0.0, 0.0) }
}

fn compare(p: &RandomProgram, outs: &[HostTensor], expected: &[HostTensor]) -> Result<(), String> {
    for (k, (got, want)) in outs.iter().zip(expected).enumerate() {
        let (rtol, atol) = tolerance(want.ty.dtype);
        let loose = if want.ty.dtype.is_float() { 64.0 } else { 0.0 };
        close(got, want, rtol * loose, atol * loose)
            .map_err(|e| format!("live-out {k}: {e}\n{}", p.text()))?;
    }
    Ok(())
}

fn check(p: &RandomProgram, choice: &Choice, parts: usize) -> Result<(), String> {
    let types = p.structure.check().unwrap();
    let mut locals = Vec::new();
    let mut layouts = Vec::new();
    for index in 0..parts {
        let part = Part { index, parts };
        let (local, outs) = rewrite(&p.structure, &types, choice, part, 0).map_err(|e| e.to_string())?;
        local.structure.check().map_err(|e| format!("part {index}: {e}"))?;
        let inputs = p.inputs.iter().zip(&choice.inputs).map(|(x, l)| cut(x, *l, part)).collect();
        locals.push((local.structure.clone(), local.bind(&p.slots).unwrap(), inputs));
        layouts = outs;
    }
    let expected = reference::run(&p.structure, &p.inputs, &p.slots).map_err(|(_, e)| e.to_string())?;
    let held = run_parts(&locals)?;
    let outs: Result<Vec<HostTensor>, String> = layouts
        .iter()
        .enumerate()
        .map(|(k, layout)| whole(&held.iter().map(|h| h[k].clone()).collect::<Vec<_>>(), *layout))
        .collect();
    compare(p, &outs?, &expected)
}

fn seconds() -> Duration {
    Duration::from_secs(std::env::var("GT_RANDOM_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(5))
}

#[test]
fn random_programs_with_random_layouts_equal_the_whole() {
    let start = Instant::now();
    let mut seed = std::env::var("GT_RANDOM_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(0);
    let mut tried = 0;
    while start.elapsed() < seconds() || tried < 20 {
        let p = random_program(seed, 24);
        let mut rng = Rng::new(seed ^ 0x5eed);
        let types = p.structure.check().unwrap();
        let inputs: Vec<Layout> =
            p.inputs.iter().map(|x| random_layout(&mut rng, x.ty.shape.len())).collect();
        let choice = random_choice(&mut rng, &p, &types, &inputs);
        let parts = [2, 3, 4, 8][rng.below(4)];
        check(&p, &choice, parts).unwrap_or_else(|e| panic!("seed {seed}, {parts} parts: {e}"));
        seed += 1;
        tried += 1;
    }
}

#[test]
fn planned_programs_equal_the_whole() {
    let start = Instant::now();
    let mut seed = 1_000_000;
    let mut divided = 0;
    while start.elapsed() < seconds() || divided < 20 {
        let p = random_program(seed, 40);
        let mut rng = Rng::new(seed);
        let types: Arc<[gt_ir::Ty]> = p.structure.check().unwrap().into();
        let inputs: Vec<Layout> =
            p.inputs.iter().map(|x| random_layout(&mut rng, x.ty.shape.len())).collect();
        let parts = [2, 3, 4, 8][rng.below(4)];
        let mut costs = Costs::cpu(1);
        (costs.least, costs.always) = (0, true);
        let ask = Ask {
            structure: Arc::new(p.structure.clone()),
            types,
            at_home: vec![false; inputs.len()],
            inputs,
            fixed: Vec::new(),
            must: false,
            parts,
            costs,
        };
        let choice = gt_dispatcher::shard::choose(&ask);
        check(&p, &choice, parts).unwrap_or_else(|e| panic!("seed {seed}, {parts} parts: {e}"));
        divided += divide(&ask).unwrap().is_some() as usize;
        seed += 1;
    }
}
