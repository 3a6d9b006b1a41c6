//! Attention by cuDNN on a driver and a library without a GPU (`fake_cuda`): who attends, what is given, kept and counted. The
//! fake library refuses a call that leaves out a tensor of its graph.

#[path = "fake_cuda/load.rs"]
mod load;

use gt_compiler::CompileOptions;
use gt_ir::{Structure, text};
use gt_worker::backend::{Backend, Buffer, Effort, HostBytes, Plan};
use gt_worker::backends::cuda::CudaBackend;
use gt_worker::backends::cuda::cudnn::Wish;
use load::fake_cudnn;
use std::sync::Arc;

fn open(wish: Wish) -> CudaBackend {
    fake_cudnn();
    CudaBackend::attending(0, CompileOptions::default(), wish).unwrap()
}

/// Attention and its gradient, with steps before and after.
fn program(dtype: &str, [batch, heads, key_heads, rows, d]: [usize; 5]) -> Arc<Structure> {
    let (q, k) = (format!("[{batch}, {heads}, {rows}, {d}]"), format!("[{batch}, {key_heads}, {rows}, {d}]"));
    let program = format!(
        "in TENSOR[0] {dtype}{q}
         in TENSOR[1] {dtype}{k}
         in TENSOR[2] {dtype}{k}
         in TENSOR[3] {dtype}{q}
         TENSOR[4] := TANH TENSOR[0]
         TENSOR[5], TENSOR[6] := ATTENTION{{causal=true}} TENSOR[4] TENSOR[1] TENSOR[2] 0.125
         TENSOR[7] := TANH TENSOR[5]
         TENSOR[8], TENSOR[9], TENSOR[10] := ATTENTIONGRAD{{causal=true}} TENSOR[4] TENSOR[1] TENSOR[2] TENSOR[5] TENSOR[6] TENSOR[3] 0.125
         TENSOR[11] := TANH TENSOR[8]
         out TENSOR[7]
         out TENSOR[11]
         out TENSOR[9]
         out TENSOR[10]"
    );
    Arc::new(text::parse_structure(&program).unwrap())
}

fn compile(backend: &CudaBackend, structure: &Arc<Structure>) -> Arc<dyn Plan> {
    backend.compile(structure, &structure.check().unwrap(), Effort::Full).unwrap()
}

fn inputs(backend: &CudaBackend, structure: &Structure) -> Vec<Buffer> {
    let zero = |ty: &gt_ir::Ty| backend.upload(ty, HostBytes::Owned(Arc::new(vec![0; ty.bytes()]))).unwrap();
    structure.inputs.iter().map(|input| zero(&input.ty)).collect()
}

/// Calls of the library in so many runs of a program.
fn calls(backend: &CudaBackend, structure: &Arc<Structure>, runs: usize) -> u64 {
    let plan = compile(backend, structure);
    let before = fake_cudnn()[1];
    let mut held = Vec::new();
    let kept = inputs(backend, structure);
    for _ in 0..runs {
        held.push(plan.run(&mut kept.clone(), &[]).unwrap());
    }
    backend.mark().unwrap().wait().unwrap();
    fake_cudnn()[1] - before
}

#[test]
fn the_library_attends_where_it_is_wished_for_and_is_captured() {
    let backend = open(Wish::Cudnn);
    backend.turn(1);
    for (dtype, sizes) in
        [("f16", [2, 4, 4, 128, 64]), ("bf16", [2, 8, 2, 128, 96]), ("bf16", [1, 4, 1, 256, 128])]
    {
        let structure = program(dtype, sizes);
        assert_eq!(calls(&backend, &structure, 1), 2, "one call forward, one backward: {dtype} {sizes:?}");
        // A few captures of a graph, which is launched from then on.
        let many = calls(&backend, &structure, 60);
        assert!((4..=40).contains(&many), "{many} calls of 120 that were not captured");
    }
}

#[test]
fn kernels_of_ours_attend_where_the_library_cannot_or_may_not() {
    let own = open(Wish::Own);
    own.turn(2);
    assert_eq!(calls(&own, &program("bf16", [2, 4, 4, 128, 64]), 3), 0);
    let backend = open(Wish::Cudnn);
    backend.turn(2);
    for (dtype, sizes) in [
        ("f32", [2, 4, 4, 128, 64]),
        ("bf16", [2, 4, 4, 128, 60]),
        ("bf16", [2, 4, 4, 128, 272]),
        ("bf16", [64, 8, 8, 32, 64]),
        ("bf16", [1, 2, 2, 32, 16]),
    ] {
        assert_eq!(calls(&backend, &program(dtype, sizes), 3), 0, "{dtype} {sizes:?}");
    }
}

#[test]
fn memory_for_the_scores_of_a_gradient_is_told_before_and_bounded() {
    let backend = open(Wish::Cudnn);
    backend.turn(3);
    let own = open(Wish::Own);
    let need = |sizes: [usize; 5]| {
        let structure = program("bf16", sizes);
        compile(&backend, &structure).reserve() - compile(&own, &structure).reserve()
    };
    let small = need([2, 4, 4, 512, 64]);
    assert!((2 * 2 * 4 * 512 * 512..8 << 20).contains(&small), "{small}");
    let large = need([8, 16, 8, 2048, 64]);
    assert!((256 << 20..514 << 20).contains(&large), "{large}");
    // What does not fit is sliced: as few batches, then heads, at a time as have room.
    let structure = program("bf16", [8, 16, 8, 2048, 64]);
    assert_eq!(calls(&backend, &structure, 1), 1 + 4);
    // The scores of heads that share keys are too many: kernels of ours take the gradient.
    let structure = program("bf16", [1, 8, 1, 8192, 64]);
    assert_eq!(calls(&backend, &structure, 1), 1);
}

#[test]
fn plans_are_made_once_and_read_by_the_next_process_and_descriptors_go_back() {
    let before = fake_cudnn();
    let structure = program("f16", [3, 4, 2, 192, 64]);
    let backend = open(Wish::Cudnn);
    backend.turn(4);
    calls(&backend, &structure, 2);
    let again = compile(&backend, &structure);
    drop(again);
    let after = fake_cudnn();
    assert_eq!(after[2] - before[2], 2, "one plan forward, one backward");
    backend.end(4);
    drop(backend);
    assert_eq!(fake_cudnn()[0], before[0], "descriptors that nobody destroys");
    // Another backend stands for another process: it knows nothing but what is on disk.
    let next = open(Wish::Cudnn);
    next.turn(4);
    assert_eq!(calls(&next, &structure, 1), 2);
    let last = fake_cudnn();
    assert_eq!([last[2] - after[2], last[3] - after[3]], [0, 2]);
}
