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
use gt_worker::backend::{Backend, Buffer, Effort, HostBytes, Plan, PlanError};
use gt_worker::backends::cuda::{CudaBackend, gangs_run};
use gt_worker::gang::meeting::Seat;
use gt_worker::gang::ties::Ties;
use gt_worker::gang::{Communicator, Flight, Group};
use load::{Count, fake, fake_nccl};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

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

/// Two ranks that run `STEP` again and again, by NCCL.
struct Two {
    backends: Vec<CudaBackend>,
    ties: Vec<Arc<Ties>>,
    plans: Vec<Arc<dyn Plan>>,
    /// What each rank has of the input that is written over.
    held: [Mutex<Option<Buffer>>; 2],
}

impl Two {
    fn new(efforts: [Effort; 2]) -> Two {
        let structure = Arc::new(gt_ir::text::parse_structure(STEP).unwrap());
        let types = structure.check().unwrap();
        let backends: Vec<CudaBackend> = (0..2).map(|_| CudaBackend::open(0).unwrap()).collect();
        let plan = |(b, effort): (&CudaBackend, Effort)| b.compile(&structure, &types, effort).unwrap();
        let plans = backends.iter().zip(efforts).map(plan).collect();
        Two { plans, backends, ties: (0..2).map(|_| Arc::default()).collect(), held: Default::default() }
    }

    /// A step; `fails` says what rank 1 does instead of running it.
    fn step(&self, step: usize, fails: Option<&(dyn Fn(&Seat) + Sync)>) -> [Result<(), PlanError>; 2] {
        let name = (11, number());
        std::thread::scope(|s| {
            let run = |rank: usize| s.spawn(move || self.rank(rank, step, name, fails.filter(|_| rank == 1)));
            let threads = [run(0), run(1)];
            threads.map(|thread| thread.join().unwrap())
        })
    }

    fn rank(
        &self,
        rank: usize,
        step: usize,
        name: (u64, u64),
        fails: Option<&(dyn Fn(&Seat) + Sync)>,
    ) -> Result<(), PlanError> {
        let backend = &self.backends[rank];
        backend.turn(rank as u64);
        let seat = Seat::take(name, 1, &[2], rank).tied(self.ties[rank].clone());
        if let Some(fails) = fails {
            fails(&seat);
            return Ok(());
        }
        let x = HostTensor::from_f64s(DType::F32, [64], &[(1 + rank + step) as f64; 64]);
        let held = self.held[rank].lock().unwrap().take();
        let weight = held.unwrap_or_else(|| upload(backend, std::slice::from_ref(&x)).remove(0));
        let mut inputs = vec![weight, upload(backend, &[x]).remove(0)];
        let rate = [gt_ir::Slot::Num(gt_ir::Scalar::Float(0.5 * step as f64))];
        let outs = self.plans[rank].run_gang(&mut inputs, &rate, &seat, None);
        let (kept, done) = match outs {
            Ok(mut outs) => {
                drop(inputs);
                let sum = HostTensor::from_f64s(DType::F32, [64], &[(3 + 2 * step) as f64; 64]);
                assert_eq!(*backend.download(&outs[1]).unwrap(), sum.data, "rank {rank} step {step}");
                (outs.swap_remove(0), Ok(()))
            }
            Err(error) => {
                seat.fail(&error);
                (inputs.swap_remove(0), Err(error))
            }
        };
        *self.held[rank].lock().unwrap() = Some(kept);
        done
    }

    fn good(&self, steps: std::ops::Range<usize>) {
        for step in steps {
            self.step(step, None).into_iter().for_each(|done| done.unwrap());
        }
    }
}

fn graphs() -> u64 {
    gangs_run().2
}

#[test]
fn a_step_that_comes_back_is_one_graph_with_its_collectives_also_when_ranks_change() {
    let count = fake();
    fake_nccl();
    let two = Two::new([Effort::Full; 2]);
    let before = [Count::Captures, Count::Launches].map(count);
    two.good(0..9);
    let after = [Count::Captures, Count::Launches].map(count);
    assert!(graphs() >= 2 * 5, "{} runs as graphs", graphs());
    assert!(after[1] - before[1] >= 2 * 5, "{} launches", after[1] - before[1]);
    // Nothing lies where it lay before on this device, so it takes a few until operands are copied to where they stay.
    assert!((2..=12).contains(&(after[0] - before[0])), "{} captures", after[0] - before[0]);
    let called = fake_nccl()[2];
    two.good(9..14);
    assert_eq!(fake_nccl()[2], called, "what is replayed is NCCL's own business");
    // Rank 1 fails before it agrees to anything.
    let fail = |seat: &Seat| {
        std::thread::sleep(Duration::from_millis(100));
        seat.fail(&PlanError { instr: None, error: Error::Index("bad index".into()) });
    };
    let [failed, _] = two.step(14, Some(&fail));
    assert!(failed.unwrap_err().error.to_string().contains("bad index"));
    let before = graphs();
    two.good(15..25);
    assert!(graphs() - before >= 2 * 5, "as graphs again");
    assert_eq!(fake_nccl()[0], 4, "two groups of two ranks");
}

#[test]
fn a_rank_that_has_no_graph_any_more_has_all_capture_anew() {
    fake();
    fake_nccl();
    let two = Two::new([Effort::Full; 2]);
    two.good(0..8);
    let before = graphs();
    assert!(before >= 2 * 4);
    // What is kept for speed alone is given back, as when memory is short.
    two.backends[1].shrink();
    two.good(8..16);
    assert_eq!(graphs() - before, 2 * 8, "captured again and replayed");
    two.backends[0].shrink();
    two.good(16..20);
}

#[test]
fn ranks_run_as_graphs_once_the_last_of_them_can() {
    fake();
    fake_nccl();
    // The kernels of rank 1 are compiled when its plan comes back.
    let two = Two::new([Effort::Full, Effort::Quick]);
    two.good(0..4);
    let start = Instant::now();
    let mut step = 4;
    while graphs() < 8 && start.elapsed() < Duration::from_secs(20) {
        two.good(step..step + 1);
        step += 1;
    }
    assert!(graphs() >= 8, "{} runs as graphs in {step} steps", graphs());
}

#[test]
fn a_rank_that_is_gone_after_it_agreed_is_an_error_in_seconds() {
    fake();
    fake_nccl();
    let two = Two::new([Effort::Full; 2]);
    two.good(0..6);
    // It says that it can run step by step, and then nothing more.
    let gone = |seat: &Seat| {
        seat.all().unwrap().share(&[&[0u8; 17]], &|_, _, _| 0..17, &mut |_| {}).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        seat.fail(&PlanError { instr: None, error: Error::Connection("it is gone".into()) });
    };
    let start = Instant::now();
    let [failed, _] = two.step(6, Some(&gone));
    assert!(failed.unwrap_err().error.to_string().contains("it is gone"));
    assert!(start.elapsed() < Duration::from_secs(5));
    two.held.iter().for_each(|held| drop(held.lock().unwrap().take()));
    two.good(7..12);
    assert_eq!(fake_nccl()[0], 4, "two groups of two ranks");
}

/// A seat whose gangs nobody waits for one by one.
struct Unwatched {
    seat: Seat,
    flights: Mutex<Vec<Box<dyn Flight>>>,
}

impl Group for Unwatched {
    fn axis(&self, axis: u8) -> Result<&dyn Communicator, PlanError> {
        self.seat.axis(axis)
    }
    fn agree(&self) -> Result<(), PlanError> {
        self.seat.agree()
    }
    fn all(&self) -> Option<&dyn Communicator> {
        self.seat.all()
    }
    fn failed(&self) -> Option<PlanError> {
        self.seat.failed()
    }
    fn ties(&self) -> Option<&Ties> {
        self.seat.ties()
    }
    fn depart(&self, flight: Box<dyn Flight>) -> Result<(), PlanError> {
        self.flights.lock().unwrap().push(flight);
        Ok(())
    }
}

#[test]
fn gangs_of_two_sessions_are_queued_without_waiting_and_follow_each_other() {
    fake();
    fake_nccl();
    const STEPS: usize = 24;
    let two = Two::new([Effort::Full; 2]);
    let names: Vec<(u64, u64)> = (0..STEPS).map(|_| (12, number())).collect();
    let rank = &|rank: usize| {
        let (backend, mut seats, mut sums) = (&two.backends[rank], Vec::new(), Vec::new());
        for (step, name) in names.iter().enumerate() {
            backend.turn((10 * (step % 2) + rank) as u64);
            let seat = Seat::take(*name, 1, &[2], rank).tied(two.ties[rank].clone());
            let group = Unwatched { seat, flights: Mutex::default() };
            let x = HostTensor::from_f64s(DType::F32, [64], &[(1 + rank + step) as f64; 64]);
            let mut inputs = upload(backend, &[x.clone(), x]);
            let rate = [gt_ir::Slot::Num(gt_ir::Scalar::Float(0.5))];
            sums.push(two.plans[rank].run_gang(&mut inputs, &rate, &group, None).unwrap().swap_remove(1));
            seats.push(group);
        }
        let aloft = seats.iter().map(|group| group.flights.lock().unwrap().len()).sum::<usize>();
        assert!(aloft >= STEPS - 4, "{aloft} were not waited for");
        for (step, sum) in sums.iter().enumerate() {
            let right = HostTensor::from_f64s(DType::F32, [64], &[(3 + 2 * step) as f64; 64]);
            assert_eq!(*backend.download(sum).unwrap(), right.data, "rank {rank} step {step}");
        }
        for group in &seats {
            for flight in group.flights.lock().unwrap().iter() {
                assert!(flight.landed().unwrap() && flight.broken().is_none());
            }
        }
    };
    std::thread::scope(|s| {
        let threads = [0, 1].map(|r| s.spawn(move || rank(r)));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    assert!(graphs() > 0);
}
