//! Gangs on the cuda backend with a driver without a GPU (`fake_cuda`): collectives are real there, kernels do nothing.

#[path = "common/exchanges.rs"]
mod exchanges;
#[path = "fake_cuda/load.rs"]
mod load;

use exchanges::cases;
use gt_ir::collective::eval_parts;
use gt_ir::host::close_by_dtype;
use gt_ir::sample::Rng;
use gt_ir::{Arg, Collective, DType, Error, Exchange, HostTensor, Input, Instr, Op, ReduceKind, Structure};
use gt_worker::backend::{Backend, Buffer, Effort, HostBytes, PlanError};
use gt_worker::backends::cuda::CudaBackend;
use gt_worker::gang::meeting::Seat;
use gt_worker::gang::ties::Ties;
use load::{Count, fake, fake_nccl};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

fn number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A rank's program: one collective of all its inputs.
fn program(what: &Exchange, xs: &[HostTensor]) -> Arc<Structure> {
    let inputs: Vec<Input> = xs.iter().map(|x| Input { ty: x.ty.clone(), dies: false }).collect();
    let op = Op::Collective(Collective { number: 0, axis: 0, what: what.clone() });
    let args = (0..xs.len() as u32).map(Arg::Value).collect();
    let outs = (xs.len() as u32..2 * xs.len() as u32).collect();
    Arc::new(Structure { inputs, instrs: vec![Instr { op, args }], outs, ..Structure::default() })
}

fn upload(backend: &CudaBackend, xs: &[HostTensor]) -> Vec<Buffer> {
    let one = |x: &HostTensor| backend.upload(&x.ty, HostBytes::Owned(Arc::new(x.data.clone()))).unwrap();
    xs.iter().map(one).collect()
}

/// One rank's part of a collective, through a plan.
fn run_rank(
    backend: &CudaBackend,
    seat: &Seat,
    what: &Exchange,
    xs: &[HostTensor],
) -> Result<Vec<HostTensor>, PlanError> {
    backend.turn(seat.rank() as u64);
    let structure = program(what, xs);
    let types = structure.check().unwrap();
    let plan = backend.compile(&structure, &types, Effort::Quick).unwrap();
    let outs = plan.run_gang(&mut upload(backend, xs), &[], seat, None)?;
    let read = |(i, out): (usize, &Buffer)| HostTensor {
        ty: types[xs.len() + i].clone(),
        data: backend.download(out).unwrap().to_vec(),
    };
    Ok(outs.iter().enumerate().map(read).collect())
}

/// Runs every collective on `n` ranks and compares what `checked` lets.
fn run_all(n: usize, tied: bool, checked: impl Fn(&Exchange, DType) -> bool) {
    let mut rng = Rng::new(3);
    let backends: Vec<CudaBackend> = (0..n).map(|_| CudaBackend::open(0).unwrap()).collect();
    let ties: Vec<Arc<Ties>> = (0..n).map(|_| Arc::default()).collect();
    for dtype in DType::ALL {
        for (whats, parts) in cases(&mut rng, n, dtype) {
            let expected = eval_parts(&whats[0], &parts).unwrap();
            let name = (7, number());
            let got: Vec<Vec<HostTensor>> = std::thread::scope(|s| {
                let run = |rank: usize| {
                    let (backend, what, xs) = (&backends[rank], &whats[rank], &parts[rank]);
                    let mut seat = Seat::take(name, 1, &[n], rank);
                    if tied {
                        seat = seat.tied(ties[rank].clone());
                    }
                    s.spawn(move || run_rank(backend, &seat, what, xs).unwrap())
                };
                let threads: Vec<_> = (0..n).map(run).collect();
                threads.into_iter().map(|t| t.join().unwrap()).collect()
            });
            for (rank, (got, expected)) in got.iter().zip(&expected).enumerate() {
                for (got, expected) in got.iter().zip(expected).filter(|_| checked(&whats[0], dtype)) {
                    close_by_dtype(got, expected)
                        .unwrap_or_else(|e| panic!("{:?} rank {rank} of {n} {dtype}: {e}", whats[0]));
                }
            }
        }
    }
}

#[test]
fn collectives_through_the_host_give_what_they_mean() {
    fake();
    [1, 2, 3].into_iter().for_each(|n| run_all(n, false, |_, _| true));
}

/// Kernels of the fake driver join nothing, so what NCCL does not reduce by itself is not looked at.
fn by_nccl_alone(what: &Exchange, dtype: DType) -> bool {
    let wide = !matches!(dtype, DType::F16 | DType::BF16 | DType::I16);
    match what {
        Exchange::AllReduce { kind } => wide && (*kind == ReduceKind::Sum || !dtype.is_float()),
        Exchange::ReduceScatter { .. } => false,
        Exchange::AllGather { .. } | Exchange::AllToAll { .. } | Exchange::Broadcast { .. } => true,
    }
}

#[test]
fn collectives_by_nccl_give_what_they_mean_and_groups_are_kept() {
    fake_nccl();
    for n in [1, 2, 3] {
        let [joined, cut, called] = fake_nccl();
        run_all(n, true, by_nccl_alone);
        // Ranks are cut off on threads of their own.
        let start = std::time::Instant::now();
        while fake_nccl()[1] - cut < n as u64 && start.elapsed().as_secs() < 10 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let after = fake_nccl();
        assert_eq!(after[0] - joined, n as u64, "one group of {n} ranks");
        assert_eq!(after[1] - cut, n as u64, "given back at the end");
        assert!(after[2] > called + 100, "calls were made");
    }
}

#[test]
fn ranks_that_share_a_gpu_go_by_way_of_the_host() {
    // SAFETY: no other thread of this test process reads the environment yet.
    unsafe { std::env::set_var("FAKE_ONE_GPU", "1") };
    fake_nccl();
    run_all(2, true, |_, _| true);
    assert_eq!(fake_nccl(), [0, 0, 0]);
}

#[test]
fn a_rank_that_fails_cuts_the_others_off_and_the_next_gang_meets_anew() {
    fake_nccl();
    let backends: Vec<CudaBackend> = (0..2).map(|_| CudaBackend::open(0).unwrap()).collect();
    let ties: Vec<Arc<Ties>> = (0..2).map(|_| Arc::default()).collect();
    let what = Exchange::AllReduce { kind: ReduceKind::Sum };
    let xs = [HostTensor::from_f64s(DType::F32, [3], &[1.0, 2.0, 3.0])];
    let twice = [HostTensor::from_f64s(DType::F32, [3], &[2.0, 4.0, 6.0])];
    let both = |fails: bool| -> Vec<Result<Vec<HostTensor>, PlanError>> {
        let name = (9, number());
        std::thread::scope(|s| {
            let run = |rank: usize| {
                let (backend, what, xs, ties) = (&backends[rank], &what, &xs, ties[rank].clone());
                s.spawn(move || {
                    let seat = Seat::take(name, 1, &[2], rank).tied(ties);
                    let done = match fails && rank == 1 {
                        // It fails after the others have begun to wait for it.
                        true => {
                            std::thread::sleep(std::time::Duration::from_millis(100));
                            Err(PlanError { instr: Some(4), error: Error::Index("bad index".into()) })
                        }
                        false => run_rank(backend, &seat, what, xs),
                    };
                    done.inspect_err(|error| seat.fail(error))
                })
            };
            let threads: Vec<_> = (0..2).map(run).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        })
    };
    let good = |done: Vec<Result<Vec<HostTensor>, PlanError>>| {
        done.into_iter().for_each(|outs| assert_eq!(outs.unwrap(), twice));
    };
    good(both(false));
    let failed = both(true).swap_remove(0).unwrap_err();
    assert_eq!((failed.instr, failed.error), (Some(4), Error::Index("bad index".into())));
    good(both(false));
    assert_eq!(fake_nccl()[0], 4, "two groups of two ranks");
}

#[test]
fn a_rank_that_fails_fails_the_others_and_their_workers_live_on() {
    fake();
    let backend = CudaBackend::open(0).unwrap();
    let x = HostTensor::from_f64s(DType::F32, [4], &[1.0, 2.0, 3.0, 4.0]);
    let what = Exchange::AllReduce { kind: ReduceKind::Sum };
    let name = (8, number());
    let other = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(20));
        let seat = Seat::take(name, 1, &[2], 1);
        seat.fail(&PlanError { instr: Some(4), error: Error::Index("bad index".into()) });
    });
    let xs = [x];
    let failed = run_rank(&backend, &Seat::take(name, 1, &[2], 0), &what, &xs).unwrap_err();
    other.join().unwrap();
    assert_eq!((failed.instr, failed.error), (Some(4), Error::Index("bad index".into())));
    let alone = run_rank(&backend, &Seat::take((8, number()), 1, &[1], 0), &what, &xs).unwrap();
    assert_eq!(alone, xs);
}

/// Some kernels, which do nothing here, before and after a collective of an input; then the other input is written over.
const STEP: &str = "
    in TENSOR[0] f32[64] dies
    in TENSOR[1] f32[64]
    slot $0
    TENSOR[2] := CUMSUM{dim=0} TENSOR[0]
    TENSOR[3] := CUMSUM{dim=0} TENSOR[2]
    TENSOR[4] := CUMSUM{dim=0} TENSOR[3]
    TENSOR[5] := CUMSUM{dim=0} TENSOR[4]
    TENSOR[6], TENSOR[7] := ALLREDUCE{number=0,axis=0,kind=SUM} TENSOR[1] TENSOR[5]
    TENSOR[8] := CUMSUM{dim=0} TENSOR[7]
    TENSOR[9] := CUMSUM{dim=0} TENSOR[8]
    TENSOR[10] := CUMSUM{dim=0} TENSOR[9]
    TENSOR[11] := MUL TENSOR[0] $0
    out TENSOR[11]
    out TENSOR[6]
    out TENSOR[10]";

#[test]
fn a_step_that_comes_back_is_graphs_between_its_collectives_also_when_ranks_change() {
    let count = fake();
    fake_nccl();
    let structure = Arc::new(gt_ir::text::parse_structure(STEP).unwrap());
    let types = structure.check().unwrap();
    let backends: Vec<CudaBackend> = (0..2).map(|_| CudaBackend::open(0).unwrap()).collect();
    let ties: Vec<Arc<Ties>> = (0..2).map(|_| Arc::default()).collect();
    let plans: Vec<_> =
        backends.iter().map(|b| b.compile(&structure, &types, Effort::Full).unwrap()).collect();
    // Rank 1 fails in step 9, after rank 0 has launched its graph.
    let run = |rank: usize, step: usize, held: &mut Option<Buffer>, name: (u64, u64)| {
        let backend = &backends[rank];
        backend.turn(rank as u64);
        let seat = Seat::take(name, 1, &[2], rank).tied(ties[rank].clone());
        if step == 9 && rank == 1 {
            std::thread::sleep(std::time::Duration::from_millis(100));
            let error = PlanError { instr: None, error: Error::Index("bad index".into()) };
            return seat.fail(&error);
        }
        let x = HostTensor::from_f64s(DType::F32, [64], &[(1 + rank + step) as f64; 64]);
        let weight = held.take().unwrap_or_else(|| upload(backend, std::slice::from_ref(&x)).remove(0));
        let mut inputs = vec![weight, upload(backend, &[x]).remove(0)];
        let rate = [gt_ir::Slot::Num(gt_ir::Scalar::Float(0.5 * step as f64))];
        match plans[rank].run_gang(&mut inputs, &rate, &seat, None) {
            Ok(mut outs) => {
                assert_ne!(step, 9);
                drop(inputs);
                let sum = HostTensor::from_f64s(DType::F32, [64], &[(3 + 2 * step) as f64; 64]);
                assert_eq!(*backend.download(&outs[1]).unwrap(), sum.data, "rank {rank} step {step}");
                *held = Some(outs.swap_remove(0));
            }
            Err(error) => {
                assert_eq!((step, error.error.to_string().contains("bad index")), (9, true), "{error:?}");
                seat.fail(&error);
                *held = Some(inputs.swap_remove(0));
            }
        }
    };
    let before = [Count::Captures, Count::Launches].map(count);
    let mut held = [None, None];
    for step in 0..16 {
        let name = (11, number());
        std::thread::scope(|s| {
            for (rank, held) in held.iter_mut().enumerate() {
                let run = &run;
                s.spawn(move || run(rank, step, held, name));
            }
        });
    }
    let [captures, launches] = [Count::Captures, Count::Launches].map(count);
    assert!(launches - before[1] >= 2 * 2 * 10, "{} launches of two pieces", launches - before[1]);
    assert!((4..=24).contains(&(captures - before[0])), "{} captures", captures - before[0]);
    assert_eq!(fake_nccl()[0], 4, "two groups of two ranks");
}
