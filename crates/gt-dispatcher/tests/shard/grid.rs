//! A step of Qwen3 on meshes of several axes: data parallel along one, tensor parallel along the other.

use super::parts::{cut, run_parts, whole};
use super::qwen3::{Sizes, step};
use gt_dispatcher::shard::{Ask, Asked, Costs, Divided, Local, divide};
use gt_ir::collective::Exchange;
use gt_ir::host::close;
use gt_ir::layout::{Layout, Layouts, place};
use gt_ir::sample::Rng;
use gt_ir::{Arg, DType, HostTensor, Op, Scalar, Structure, Ty, reference};
use std::sync::Arc;

const SIZES: Sizes = Sizes {
    layers: 2,
    hidden: 16,
    inner: 24,
    heads: 4,
    key_heads: 2,
    head: 4,
    vocab: 19,
    batch: 6,
    length: 5,
};

/// How the inputs of a step lie along an axis for data parallel: batches split, all else whole.
fn data(s: &Structure) -> Vec<Layout> {
    (0..s.inputs.len()).map(|v| if v < 2 { Layout::Split(0) } else { Layout::Whole }).collect()
}

/// And for tensor parallel: the first products of each pair split by their outputs, the second ones by their inputs.
fn tensor(s: &Structure, layers: usize) -> Vec<Layout> {
    use Layout::{Split, Whole};
    let products = [Split(0), Split(0), Split(0), Split(1), Split(0), Split(0), Split(1)];
    let layer = [Whole; 4].into_iter().chain(products);
    let params: Vec<Layout> =
        [Whole].into_iter().chain((0..layers).flat_map(|_| layer.clone())).chain([Whole]).collect();
    let states = params.iter().flat_map(|l| [*l, *l]);
    let all: Vec<Layout> = [Whole; 4].into_iter().chain(params.iter().copied()).chain(states).collect();
    assert_eq!(all.len(), s.inputs.len());
    all
}

/// The step divided over a mesh on whose axes its inputs lie so; parameters stay as they lie.
fn divided(sizes: &Sizes, shape: &[usize], axes: &[Vec<Layout>]) -> (Ask, Divided) {
    let structure = Arc::new(step(sizes).unwrap());
    let types: Arc<[Ty]> = structure.check().unwrap().into();
    let inputs: Vec<Layouts> =
        (0..structure.inputs.len()).map(|v| axes.iter().map(|axis| axis[v]).collect()).collect();
    let params = (structure.outs.len() - 1) / 3;
    // Results come as parameter, mean, square.
    let fixed = |k: usize| -> (u32, Asked) {
        (structure.outs[k], inputs[4 + k / 3].iter().copied().map(Some).collect())
    };
    let ask = Ask {
        fixed: (0..3 * params).map(fixed).collect(),
        at_home: vec![false; inputs.len()],
        structure,
        types,
        inputs,
        // Where batches are whole, so is what is computed.
        keeps: axes.iter().map(|axis| axis[0] == Layout::Whole).collect(),
        must: true,
        shape: shape.to_vec(),
        costs: Costs::cpu(1).signalled(),
        follows: false,
        hint: None,
    };
    let divided = divide(&ask).unwrap().expect("signals say so");
    (ask, divided)
}

/// Values where a wrong answer shows, and numbers of tokens.
fn inputs(structure: &Structure, vocab: usize) -> Vec<HostTensor> {
    let mut rng = Rng::new(7);
    let draw = |(v, input): (usize, &gt_ir::Input)| {
        let numel = input.ty.shape.numel();
        let squares = v >= 4 && input.ty.dtype == DType::F32;
        let mut number = |_| match input.ty.dtype {
            DType::I64 => Scalar::Int(rng.below(vocab) as i64),
            _ if squares => Scalar::Float(0.05 + rng.below(1000) as f64 / 1000.0),
            _ => Scalar::Float(rng.below(2000) as f64 / 1000.0 - 1.0),
        };
        HostTensor::from_scalars(&input.ty, (0..numel).map(&mut number).collect::<Vec<_>>())
    };
    structure.inputs.iter().enumerate().map(draw).collect()
}

fn equals_the_whole(sizes: &Sizes, shape: &[usize], axes: &[Vec<Layout>]) {
    let (ask, divided) = divided(sizes, shape, axes);
    let given = inputs(&ask.structure, sizes.vocab);
    let expected = reference::run(&ask.structure, &given, &[]).unwrap();
    let parts: Vec<_> = divided
        .parts
        .iter()
        .enumerate()
        .map(|(rank, local)| {
            let place = place(shape, rank);
            let held = given.iter().zip(&ask.inputs).map(|(x, l)| cut(x, l, &place)).collect();
            (local.structure.clone(), local.bind(&[]).unwrap(), held)
        })
        .collect();
    let held = run_parts(shape, &parts).unwrap();
    for (k, want) in expected.iter().enumerate() {
        let pieces: Vec<HostTensor> = held.iter().map(|h| h[k].clone()).collect();
        let got = whole(shape, &pieces, &divided.outs[k]).unwrap();
        close(&got, want, 1e-4, 1e-5).unwrap_or_else(|e| panic!("{shape:?}, result {k}: {e}"));
    }
}

/// How often the workers of a data-parallel step meet.
fn meetings(sizes: &Sizes, workers: usize) -> usize {
    let mut axis = data(&step(sizes).unwrap());
    // The targets come as rows, which a worker would have other rows of than of the batch.
    axis[1] = Layout::Whole;
    let (_, divided) = divided(sizes, &[workers], &[axis]);
    let meets = |op: &Op| matches!(op, Op::Collective(_));
    divided.parts[0].structure.instrs.iter().filter(|i| meets(&i.op)).count()
}

#[test]
fn a_batch_that_does_not_divide_is_split_all_the_same() {
    let sizes = Sizes { batch: 7, ..SIZES };
    let axis = data(&step(&sizes).unwrap());
    for shape in [&[4][..], &[3], &[8], &[2, 2], &[4, 2], &[2, 3]] {
        equals_the_whole(&sizes, shape, &vec![axis.clone(); shape.len()]);
    }
    // Nothing else travels than with a batch that divides: gradients.
    let even = meetings(&TINY, 4);
    for batch in [7, 15] {
        let uneven = meetings(&Sizes { batch, ..TINY }, 4);
        assert!(uneven <= even + 2, "{batch} samples: {uneven} meetings, {even} with 8");
    }
}

#[test]
fn a_hybrid_step_equals_the_whole() {
    let structure = step(&SIZES).unwrap();
    let (data, tensor) = (data(&structure), tensor(&structure, SIZES.layers));
    let fsdp: Vec<Layout> =
        (0..data.len()).map(|v| if v == 2 || v == 3 { Layout::Whole } else { Layout::Split(0) }).collect();
    equals_the_whole(&SIZES, &[2, 2], &[data.clone(), tensor.clone()]);
    equals_the_whole(&SIZES, &[3, 2], &[fsdp.clone(), tensor.clone()]);
    equals_the_whole(&SIZES, &[2, 2, 2], &[data.clone(), fsdp, tensor]);
    equals_the_whole(&SIZES, &[2, 4], &[data.clone(), data]);
    assert!(structure.instrs.iter().any(|i| matches!(i.op, Op::Adam { .. })));
}

/// The sizes of examples/qwen3: `tiny` and `small`.
const TINY: Sizes = Sizes {
    layers: 2,
    hidden: 64,
    inner: 128,
    heads: 4,
    key_heads: 2,
    head: 16,
    vocab: 1000,
    batch: 8,
    length: 64,
};
const SMALL: Sizes =
    Sizes { layers: 4, hidden: 256, inner: 768, heads: 8, key_heads: 4, head: 32, vocab: 4096, ..TINY };

/// How often activations travel in a step that is tensor parallel: by all-reduces and by anything else, forward and
/// backward.
fn journeys(sizes: &Sizes, workers: usize) -> [[usize; 2]; 2] {
    let structure = step(sizes).unwrap();
    let axis = tensor(&structure, sizes.layers);
    let (ask, divided) = divided(sizes, &[workers], std::slice::from_ref(&axis));
    let loss = ask.structure.instrs.iter().position(|i| i.op == Op::CrossEntropy).unwrap();
    let Local { structure: local, origins, .. } = &divided.parts[0];
    let types = local.check().unwrap();
    let mut counts = [[0; 2]; 2];
    for (i, instr) in local.instrs.iter().enumerate() {
        let Op::Collective(c) = &instr.op else { continue };
        for arg in &instr.args {
            let Arg::Value(v) = arg else { continue };
            let ty = &types[*v as usize];
            let parameter = (*v as usize) < local.inputs.len() && axis[*v as usize] != Layout::Whole;
            assert!(!parameter, "{}: input {v}, {ty}", c.what.text());
            let reduces = matches!(c.what, Exchange::AllReduce { .. });
            let whole = sizes.batch * sizes.length * sizes.hidden;
            // What is gathered counts as much as what was scattered.
            if [whole, whole.div_ceil(workers)].contains(&ty.shape.numel()) && ty.dtype == DType::F32 {
                counts[(origins[i] as usize > loss) as usize][!reduces as usize] += 1;
            }
        }
    }
    counts
}

/// One all-reduce of activations for each pair of products and direction, nothing else that travels in the layers, and
/// parameters that never do.
#[test]
fn tensor_parallel_sums_once_for_each_pair_and_direction() {
    for sizes in [SIZES, TINY, SMALL] {
        for workers in [2, sizes.key_heads] {
            let [forward, backward] = journeys(&sizes, workers);
            // Attention and the inner layers. The head may be divided besides, and its gradient put together.
            let pairs = 2 * sizes.layers;
            assert_eq!(forward, [pairs, 0], "forward, {} wide on {workers} workers", sizes.hidden);
            let [sums, others] = backward;
            assert!(
                (pairs..=pairs + 1).contains(&sums) && sums + others <= pairs + 1,
                "backward, {} wide on {workers} workers: {sums} all-reduces, {others} others",
                sizes.hidden
            );
        }
    }
    // Key heads that do not divide: attention is put together somewhere, but parameters stay.
    journeys(&SIZES, 1 + SIZES.key_heads);
}
