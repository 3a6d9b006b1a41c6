//! The cuda backend on a driver without a GPU (`fake_cuda`): who waits for whom, what memory is held, what is captured.
//! Kernels do nothing there, so no result of one is looked at.

#[path = "fake_cuda/load.rs"]
mod load;

use gt_ir::{DType, Slot, Ty, text};
use gt_worker::backend::{Backend, Borrowed, Borrower, Buffer, Early, Effort, HostBytes, StepClock};
use gt_worker::backends::cuda::CudaBackend;
use load::{Count, fake};
use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn open() -> CudaBackend {
    fake();
    CudaBackend::open(0).unwrap()
}

fn bytes(n: usize, seed: usize) -> Vec<u8> {
    (0..n).map(|i| (i * 31 + seed * 7 + i / 253) as u8).collect()
}

fn upload(backend: &CudaBackend, data: &[u8]) -> Buffer {
    let ty = Ty::new(DType::U8, [data.len()]);
    backend.upload(&ty, HostBytes::Owned(Arc::new(data.to_vec()))).unwrap()
}

#[test]
fn bytes_come_back_as_they_went_whatever_their_number() {
    let backend = open();
    let sizes = [0, 1, 100, 5000, 16 << 10, (16 << 10) + 1, 100_000, 1 << 20, 8 << 20, (20 << 20) + 3];
    for round in 0..3 {
        backend.turn(round as u64);
        let data: Vec<Vec<u8>> = sizes.iter().map(|&n| bytes(n, n + round)).collect();
        let held: Vec<Buffer> = data.iter().map(|d| upload(&backend, d)).collect();
        let coming: Vec<_> = held.iter().map(|b| backend.fetch(b).unwrap()).collect();
        drop(held);
        for (pending, data) in coming.into_iter().zip(&data) {
            assert!(*pending.wait().unwrap() == *data, "{} bytes", data.len());
        }
    }
}

#[test]
fn small_data_of_a_program_arrives() {
    let backend = open();
    backend.turn(50);
    let structure = Arc::new(
        text::parse_structure("slot $0\nTENSOR[0] := DATA{shape=[3],dtype=i32} $0\nout TENSOR[0]").unwrap(),
    );
    let plan = backend.compile(&structure, &structure.check().unwrap(), Effort::Quick).unwrap();
    for round in 0..20i32 {
        let data: Vec<u8> = [round, -round, 7].iter().flat_map(|x| x.to_ne_bytes()).collect();
        let outs = plan.run(&mut Vec::new(), &[Slot::Data(data.clone().into())]).unwrap();
        assert_eq!(*backend.download(&outs[0]).unwrap(), data);
    }
}

#[test]
fn memory_is_counted_and_goes_back() {
    let count = fake();
    let backend = open();
    backend.turn(60);
    let data = bytes(1 << 20, 1);
    let before = backend.memory_in_use().0;
    let a = upload(&backend, &data);
    assert_eq!(backend.memory_in_use().0, before + (1 << 20));
    let live = count(Count::Live);
    assert!(live >= 1 << 20);
    drop(a);
    assert_eq!(backend.memory_in_use().0, before);
    assert!(backend.memory_in_use().1 > before);
    backend.reset_peak();
    assert_eq!(backend.memory_in_use().1, before);
    let ty = Ty::new(DType::U8, [backend.memory() as usize + 1]);
    let error = backend.upload(&ty, HostBytes::Owned(Arc::new(Vec::new())));
    assert!(error.is_err());
}

#[test]
fn a_value_leaves_between_the_two_pieces_of_a_graph() {
    let count = fake();
    let backend = open();
    backend.turn(80);
    let mut program = "
        in TENSOR[0] f32[64, 64] dies
        slot $0
        TENSOR[1] := TANH TENSOR[0]
        TENSOR[2] := MATMUL{ta=false,tb=false} TENSOR[1] TENSOR[0]
        TENSOR[3] := DATA{shape=[3],dtype=i32} $0
        "
    .to_string();
    for i in 0..30 {
        let [a, b] = [4 + 2 * i, 5 + 2 * i];
        let last = if i == 0 { 2 } else { 3 + 2 * i };
        program += &format!("TENSOR[{a}] := MATMUL{{ta=false,tb=false}} TENSOR[{last}] TENSOR[1]\n");
        program += &format!("TENSOR[{b}] := TANH TENSOR[{a}]\n");
    }
    program += "out TENSOR[3]\nout TENSOR[63]";
    let structure = Arc::new(text::parse_structure(&program).unwrap());
    let plan = backend.compile(&structure, &structure.check().unwrap(), Effort::Full).unwrap();
    let floats = HostBytes::Owned(Arc::new(bytes(4 * 64 * 64, 1)));
    let mut weight = backend.upload(&Ty::new(DType::F32, [64, 64]), floats).unwrap();
    backend.mark().unwrap().wait().unwrap();
    for round in 0..20i32 {
        let data: Vec<u8> = [round, -round, 7].iter().flat_map(|x| x.to_ne_bytes()).collect();
        let before = [Count::Kernels, Count::Launches].map(count);
        let given = RefCell::new(Vec::new());
        let give = |k: usize, bytes| given.borrow_mut().push((k, bytes));
        let early = Early { outs: &[1, 0], asked: 2, give: &give };
        // Some runs are of steps that nobody looks at.
        let looks = round % 5 != 3;
        let mut inputs = vec![weight];
        let slots = [Slot::Data(data.clone().into())];
        let mut outs = match looks {
            true => plan.run_early(&mut inputs, &slots, None, &early).unwrap(),
            false => plan.run(&mut inputs, &slots).unwrap(),
        };
        drop(inputs);
        weight = outs.pop().unwrap();
        let launches = count(Count::Launches) - before[1];
        assert_eq!(launches, if round == 0 { 0 } else { 2 }, "pieces of round {round}");
        for (k, bytes) in given.into_inner() {
            assert_eq!((k, &*bytes.wait().unwrap()), (1, &data));
            let kernels = count(Count::Kernels) - before[0];
            assert!(kernels < 5, "{kernels} kernels were waited for in round {round}");
        }
        assert_eq!(*backend.download(&outs[0]).unwrap(), data);
        backend.mark().unwrap().wait().unwrap();
        assert!(count(Count::Kernels) - before[0] >= 31);
    }
}

#[test]
fn a_step_of_training_becomes_a_graph_whatever_its_addresses() {
    let count = fake();
    let backend = open();
    backend.turn(70);
    let program = "
        in TENSOR[0] f32[64, 64] dies
        in TENSOR[1] f32[16, 64]
        slot $0
        TENSOR[2] := MATMUL{ta=false,tb=false} TENSOR[1] TENSOR[0]
        TENSOR[3] := TANH TENSOR[2]
        TENSOR[4] := MATMUL{ta=true,tb=false} TENSOR[1] TENSOR[3]
        TENSOR[5] := MUL TENSOR[4] $0
        TENSOR[6] := SUB TENSOR[0] TENSOR[5]
        out TENSOR[6]
        out TENSOR[3]";
    let structure = Arc::new(text::parse_structure(program).unwrap());
    let plan = backend.compile(&structure, &structure.check().unwrap(), Effort::Full).unwrap();
    let floats = |n: usize| HostBytes::Owned(Arc::new(bytes(4 * n, n)));
    let mut weight = backend.upload(&Ty::new(DType::F32, [64, 64]), floats(64 * 64)).unwrap();
    let at = Arc::as_ptr(&weight) as *const u8;
    let mut held = Vec::new();
    let before = [Count::Captures, Count::Launches, Count::Sets, Count::Kernels].map(count);
    for step in 0..20 {
        let batch = backend.upload(&Ty::new(DType::F32, [16, 64]), floats(16 * 64)).unwrap();
        let mut inputs = vec![weight, batch];
        let rate = Slot::Num(gt_ir::Scalar::Float(0.1 * step as f64));
        let mut outs = plan.run(&mut inputs, &[rate]).unwrap();
        drop(inputs);
        held.push(outs.pop().unwrap());
        weight = outs.pop().unwrap();
    }
    assert_eq!(Arc::as_ptr(&weight) as *const u8, at, "updated in place");
    backend.mark().unwrap().wait().unwrap();
    let after = [Count::Captures, Count::Launches, Count::Sets, Count::Kernels].map(count);
    let [captures, launches, sets, kernels] = std::array::from_fn(|i| after[i] - before[i]);
    assert_eq!(launches, 19, "all but the first");
    // Every batch and every result lies elsewhere here: a few captures, then those are copied.
    assert!((1..=6).contains(&captures), "{captures} captures");
    assert!(sets >= 10, "{sets} arguments changed");
    assert!(kernels >= 20, "{kernels} kernels ran");
}

/// A batch that its client still holds is a result that a product reads, elsewhere each time.
#[test]
fn small_data_that_is_held_stays_what_it_is() {
    let backend = open();
    backend.turn(75);
    let program = "
        in TENSOR[0] f32[8, 8]
        slot $0
        TENSOR[1] := DATA{shape=[4, 8],dtype=f32} $0
        TENSOR[2] := MATMUL{ta=false,tb=false} TENSOR[1] TENSOR[0]
        TENSOR[3] := TANH TENSOR[2]
        TENSOR[4] := MATMUL{ta=true,tb=false} TENSOR[1] TENSOR[3]
        out TENSOR[1]
        out TENSOR[4]";
    let structure = Arc::new(text::parse_structure(program).unwrap());
    let plan = backend.compile(&structure, &structure.check().unwrap(), Effort::Full).unwrap();
    let weight = HostBytes::Owned(Arc::new(bytes(4 * 64, 1)));
    let weight = backend.upload(&Ty::new(DType::F32, [8, 8]), weight).unwrap();
    let mut held = Vec::new();
    for step in 0..20 {
        let data = bytes(4 * 32, step);
        let outs = plan.run(&mut vec![weight.clone()], &[Slot::Data(data.clone().into())]).unwrap();
        held.push((outs, data));
    }
    for (step, (outs, data)) in held.iter().enumerate() {
        assert!(*backend.download(&outs[0]).unwrap() == *data, "step {step}");
    }
}

#[test]
fn steps_are_timed_now_where_somebody_watches_and_later_where_nobody_does() {
    let backend = open();
    backend.turn(80);
    let program = "
        in TENSOR[0] f32[64, 64]
        TENSOR[1] := MATMUL{ta=false,tb=true} TENSOR[0] TENSOR[0]
        TENSOR[2] := SUM{dims=[0, 1],keepdim=false} TENSOR[1]
        out TENSOR[2]";
    let structure = Arc::new(text::parse_structure(program).unwrap());
    let plan = backend.compile(&structure, &structure.check().unwrap(), Effort::Full).unwrap();
    let names: Vec<String> = plan.steps().iter().map(|s| s.name.to_string()).collect();
    let ty = Ty::new(DType::F32, [64, 64]);
    let mut inputs = vec![backend.upload(&ty, HostBytes::Owned(Arc::new(bytes(1 << 14, 1)))).unwrap()];
    let mut steps = |clock: StepClock| {
        plan.run_timed(&mut inputs, &[], &clock).unwrap();
        clock.times().iter().map(|t| names[t.step as usize].clone()).collect::<Vec<_>>()
    };
    let watched = steps(StepClock::watched());
    assert_eq!(watched[0], "matmul 64x64x64");
    assert_eq!(watched.len(), names.len());
    // The first run that nobody watches has none before it whose times are known.
    assert!(steps(StepClock::start()).is_empty());
    backend.mark().unwrap().wait().unwrap();
    assert_eq!(steps(StepClock::start()), watched);
}

#[test]
fn a_large_product_that_comes_back_is_measured_for_later_processes() {
    let backend = open();
    backend.turn(90);
    let program = "
        in TENSOR[0] f32[1024, 1024]
        TENSOR[1] := MATMUL{ta=false,tb=true} TENSOR[0] TENSOR[0]
        out TENSOR[1]";
    let structure = Arc::new(text::parse_structure(program).unwrap());
    backend.compile(&structure, &structure.check().unwrap(), Effort::Full).unwrap();
    let file = std::path::PathBuf::from(std::env::var("GT_KERNEL_CACHE").unwrap()).join("products");
    let wanted = "f32 1x1024x1024x1024 bias 0 ";
    let deadline = Instant::now() + Duration::from_secs(60);
    while !std::fs::read_to_string(&file).is_ok_and(|text| text.contains(wanted)) {
        assert!(Instant::now() < deadline, "{:?}", std::fs::read_to_string(&file));
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_forked_child_is_told_that_the_driver_is_its_parents() {
    open();
    // SAFETY: the child only asks for devices, and leaves without running anything of its parent's.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let said = gt_worker::backends::cuda::count().err().map_or(String::new(), |e| e.to_string());
        let status = if said.contains("forked") { 0 } else { 1 };
        // SAFETY: ends the child alone.
        unsafe { libc::_exit(status) };
    }
    let mut status = -1;
    // SAFETY: waits for the child made above.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0);
    assert!(gt_worker::backends::cuda::count().is_ok());
}

#[test]
fn a_tensor_goes_to_another_worker_of_the_process_without_the_host() {
    let (a, b) = (open(), open());
    a.turn(80);
    let data = bytes((1 << 20) + 5, 3);
    let held = upload(&a, &data);
    b.turn(81);
    let copy = b.adopt(&held).expect("a way between GPUs").unwrap();
    // What is given back now must not spoil the copy.
    drop(held);
    assert!(*b.download(&copy).unwrap() == data);
    assert_eq!(copy.bytes(), data.len());
}

/// Takes pieces as late as it may.
struct Late<'a> {
    to: &'a mut dyn Borrowed,
    shown: std::collections::VecDeque<Vec<u8>>,
    most: usize,
}

impl Borrower for Late<'_> {
    fn show(&mut self, card: &[u8]) -> gt_ir::Result<()> {
        self.shown.push_back(card.to_vec());
        self.most = self.most.max(self.shown.len());
        Ok(())
    }

    fn taken(&mut self) -> gt_ir::Result<()> {
        self.shown.pop_front().map_or(Ok(()), |card| self.to.take(&card))
    }
}

#[test]
fn a_tensor_is_lent_to_another_process_piece_by_piece() {
    let (lender, borrower) = (open(), open());
    for (round, size) in [1, 70_000, 32 << 20, (100 << 20) + 5].into_iter().enumerate() {
        lender.turn(90);
        let data = bytes(size, round);
        let buffer = upload(&lender, &data);
        borrower.turn(91);
        let mut coming = borrower.borrow(size).unwrap();
        let mut late = Late { to: &mut *coming, shown: Default::default(), most: 0 };
        lender.lend(&buffer, &mut late).unwrap();
        assert!(late.shown.is_empty() && late.most <= 2, "{} pieces at a time", late.most);
        let got = coming.end().unwrap();
        assert!(*borrower.download(&got).unwrap() == data, "{size} bytes");
    }
    // What is not whole is no tensor, and what does not fit is refused.
    assert!(borrower.borrow(10).unwrap().end().is_err());
    let mut small = borrower.borrow(10).unwrap();
    let mut late = Late { to: &mut *small, shown: Default::default(), most: 0 };
    assert!(lender.lend(&upload(&lender, &bytes(11, 1)), &mut late).is_err());
}
