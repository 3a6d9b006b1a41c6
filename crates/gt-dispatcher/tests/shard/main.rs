//! Divided programs give the results of the whole: random programs, random layouts, meshes of one to three axes, even,
//! uneven and empty parts.

mod grid;
mod parts;
#[path = "../../examples/plan72/qwen3.rs"]
mod qwen3;

use gt_dispatcher::shard::{Ask, Choice, Costs, Rules, Template, divide, leans, rewrite};
use gt_ir::host::{close, tolerance};
use gt_ir::layout::{Grains, Layout, Layouts, legal, place};
use gt_ir::reference;
use gt_ir::sample::{RandomProgram, Rng, random_program};
use gt_ir::{Arg, ArgTy, HostTensor, Op};
use parts::{cut, run_parts, whole};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn random_layouts(rng: &mut Rng, rank: usize, axes: usize) -> Layouts {
    let one = |rng: &mut Rng| match rng.below(rank + 1) {
        0 => Layout::Whole,
        d => Layout::Split(d - 1),
    };
    (0..axes).map(|_| one(rng)).collect()
}

/// A mesh of one to three axes, of at most twelve workers.
fn random_mesh(rng: &mut Rng) -> Vec<usize> {
    let meshes: [&[usize]; 10] =
        [&[2], &[3], &[4], &[8], &[2, 2], &[2, 3], &[3, 2], &[4, 2], &[2, 2, 2], &[3, 1, 2]];
    meshes[rng.below(meshes.len())].to_vec()
}

/// Rules for every instruction, drawn on every axis among those that its operands can be brought to.
fn random_choice(
    rng: &mut Rng,
    p: &RandomProgram,
    types: &[gt_ir::Ty],
    inputs: &[Layouts],
    axes: usize,
) -> Choice {
    let s = &p.structure;
    let starts = s.starts();
    let mut rules: Vec<Option<Rules>> = vec![None; s.instrs.len()];
    for axis in 0..axes {
        let mut layouts: Vec<Layout> = inputs.iter().map(|l| l[axis]).collect();
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
            rules[i].get_or_insert_default().push(rule);
        }
    }
    let outs = vec![std::iter::repeat_n(None, axes).collect(); s.outs.len()];
    let keeps = (0..axes).map(|_| rng.below(3) == 0).collect();
    let grains = random_grains(rng, p, types, inputs);
    Choice { inputs: inputs.to_vec(), rules, outs, splits: true, bucket: 64, small: 512, keeps, grains }
}

/// Grains for a few sizes that neither live-outs nor live-ins in pieces have.
fn random_grains(rng: &mut Rng, p: &RandomProgram, types: &[gt_ir::Ty], inputs: &[Layouts]) -> Grains {
    let s = &p.structure;
    let mut taken: BTreeSet<usize> = BTreeSet::from([0]);
    taken.extend(s.outs.iter().flat_map(|v| types[*v as usize].shape.to_vec()));
    let split = |l: &Layout| *l != Layout::Whole;
    for (ty, _) in types.iter().zip(inputs).filter(|(_, lies)| lies.iter().any(split)) {
        taken.extend(ty.shape.to_vec());
    }
    let mut grains = Grains::default();
    for ty in types {
        for &n in ty.shape.iter().filter(|n| !taken.contains(n)) {
            let fits: Vec<usize> = (2..=n).filter(|grain| n % grain == 0).collect();
            if !fits.is_empty() && rng.below(2) == 0 {
                grains.set(n, fits[rng.below(fits.len())]);
            }
        }
    }
    grains
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

fn check(p: &RandomProgram, choice: &Choice, shape: &[usize]) -> Result<(), String> {
    let types = p.structure.check().unwrap();
    let mut locals = Vec::new();
    let mut layouts = Vec::new();
    let mut written: Vec<Template> = Vec::new();
    for rank in 0..shape.iter().product() {
        let place = place(shape, rank);
        let template = rewrite(&p.structure, &types, choice, &place).map_err(|e| e.to_string())?;
        let local = template.own();
        local.structure.check().map_err(|e| format!("worker {rank}: {e}"))?;
        for other in &written {
            // What others give it is what it would have written itself.
            if let Some(given) = other.at(&place) {
                assert!(given.structure == local.structure && given.slots == local.slots, "worker {rank}");
            }
        }
        let inputs = p.inputs.iter().zip(&choice.inputs).map(|(x, l)| cut(x, l, &place)).collect();
        locals.push((local.structure.clone(), local.bind(&p.slots).unwrap(), inputs));
        layouts = template.outs.clone();
        written.push(template);
    }
    let expected = reference::run(&p.structure, &p.inputs, &p.slots).map_err(|(_, e)| e.to_string())?;
    let held = run_parts(shape, &locals)?;
    let outs: Result<Vec<HostTensor>, String> = layouts
        .iter()
        .enumerate()
        .map(|(k, lies)| whole(shape, &held.iter().map(|h| h[k].clone()).collect::<Vec<_>>(), lies))
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
        let shape = random_mesh(&mut rng);
        let inputs: Vec<Layouts> =
            p.inputs.iter().map(|x| random_layouts(&mut rng, x.ty.shape.len(), shape.len())).collect();
        let choice = random_choice(&mut rng, &p, &types, &inputs, shape.len());
        check(&p, &choice, &shape).unwrap_or_else(|e| panic!("seed {seed}, mesh {shape:?}: {e}"));
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
        let shape = random_mesh(&mut rng);
        let inputs: Vec<Layouts> =
            p.inputs.iter().map(|x| random_layouts(&mut rng, x.ty.shape.len(), shape.len())).collect();
        let mut costs = Costs::cpu(1);
        (costs.least, costs.always) = (0, true);
        let ask = Ask {
            structure: Arc::new(p.structure.clone()),
            types,
            at_home: vec![false; inputs.len()],
            inputs,
            fixed: Vec::new(),
            keeps: Default::default(),
            must: false,
            shape: shape.clone(),
            costs,
            follows: false,
            hint: None,
        };
        let by_cost = Ask { costs: Costs { least: 0, ..Costs::cpu(1) }, ..ask.clone() };
        let leaning = leans(&by_cost);
        let lean = &leaning[rng.below(leaning.len())];
        for (how, ask) in [("always", &ask), (lean.name, &lean.ask(&by_cost))] {
            let choice = gt_dispatcher::shard::choose(ask);
            check(&p, &choice, &shape).unwrap_or_else(|e| panic!("seed {seed}, {how}, mesh {shape:?}: {e}"));
        }
        divided += divide(&ask).unwrap().is_some() as usize;
        seed += 1;
    }
}
