//! Gangs on a GPU: every collective and type by NCCL against what it means, with one rank, and with two ranks that are two
//! processes on one GPU; a plan that comes back as a graph with NCCL's calls inside, and how long its steps take with and
//! without; and ranks that die, before they agree to a step and after.
//!
//! `cargo run --release -p gt-worker --example gpu_gang`. One line for each part; the status says whether all is well.

#[path = "../tests/common/exchanges.rs"]
mod exchanges;

use exchanges::{TOGETHER, cases};
use gt_ir::collective::eval_parts;
use gt_ir::host::close_by_dtype;
use gt_ir::sample::Rng;
use gt_ir::{Arg, Collective, DType, Error, Exchange, HostTensor, Input, Instr, Op, ReduceKind, Structure};
use gt_ir::{Slot, text};
use gt_worker::backend::{Backend, Buffer, Effort, HostBytes, Plan, PlanError};
use gt_worker::backends::cuda::{CudaBackend, gangs_run};
use gt_worker::gang::meeting::Seat;
use gt_worker::gang::ties::Ties;
use gt_worker::gang::{Communicator, Flight, Group, Take, Want};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, ExitCode};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let done = match args.get(1).map(String::as_str) {
        Some("rank") => child(&args[2], &args[3], args[4].parse().expect("a port")),
        Some("alone") => pace_alone(),
        _ => parent(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("FAILED {error}");
            ExitCode::FAILURE
        }
    }
}

fn parent() -> Result<(), String> {
    one_rank()?;
    again_and_again()?;
    for graphs in ["1", "0"] {
        let mut command = Command::new(std::env::current_exe().map_err(|e| e.to_string())?);
        let done = command.arg("alone").env("GT_CUDA_GRAPHS", graphs).status().map_err(|e| e.to_string())?;
        if !done.success() {
            return Err(format!("alone, GT_CUDA_GRAPHS={graphs}: {done}"));
        }
    }
    for what in ["all", "pace", "pace-plain", "pace-waits"] {
        let both = two(what, Duration::from_secs(200))?;
        if both != [Some(0), Some(0)] {
            return Err(format!("{what}: two ranks ended with {both:?}"));
        }
    }
    for what in ["dies", "vanishes", "vanishes-plain"] {
        let both = two(what, Duration::from_secs(60))?;
        if both != [Some(0), Some(9)] {
            return Err(format!("{what}: two ranks ended with {both:?}"));
        }
    }
    println!("all is well");
    Ok(())
}

/// Starts two ranks on one GPU and gives what they ended with.
fn two(what: &str, most: Duration) -> Result<[Option<i32>; 2], String> {
    let port =
        TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).map_err(|e| e.to_string())?.port();
    let start = |rank: usize| -> Result<Child, String> {
        let mut command = Command::new(std::env::current_exe().map_err(|e| e.to_string())?);
        command.args(["rank", what, &rank.to_string(), &port.to_string()]);
        if what == "pace-plain" {
            command.env("GT_CUDA_GRAPHS", "0");
        }
        // NCCL takes them for two hosts: it refuses two ranks on one GPU otherwise.
        command.env("NCCL_HOSTID", format!("gang-{rank}")).spawn().map_err(|e| e.to_string())
    };
    let mut children = [start(0)?, start(1)?];
    let begin = Instant::now();
    let mut ended = [None, None];
    while ended.contains(&None) {
        for (child, ended) in children.iter_mut().zip(&mut ended) {
            if let (None, Ok(Some(status))) = (&ended, child.try_wait()) {
                *ended = Some(status.code());
            }
        }
        if begin.elapsed() > most {
            children.iter_mut().for_each(|child| drop(child.kill()));
            return Err(format!("{what}: two ranks did not end within {} s", most.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(ended.map(|code| code.flatten()))
}

/// One of two ranks. The arguments change places: `rank WHAT RANK PORT`.
fn child(what: &str, rank: &str, port: u16) -> Result<(), String> {
    let rank: usize = rank.parse().map_err(|_| "rank".to_string())?;
    let backend = CudaBackend::open(0).map_err(|e| e.to_string())?;
    let pair = Pair::connect(rank, port)?;
    match what {
        "all" => all(&backend, rank, 2, &|| &pair).and_then(|()| together(&backend, &pair)),
        "pace" | "pace-plain" => pace(&backend, what, &pair, &Unwatched::new(&pair)),
        "pace-waits" => pace(&backend, what, &pair, &pair),
        _ => dies(&backend, what, &pair),
    }
}

/// The other rank, by a socket.
struct Pair {
    rank: usize,
    stream: TcpStream,
    ties: Ties,
}

impl Pair {
    fn connect(rank: usize, port: u16) -> Result<Pair, String> {
        let wrong = |e: std::io::Error| format!("rank {rank}: {e}");
        let address = ("127.0.0.1", port);
        let stream = match rank {
            0 => TcpListener::bind(address).and_then(|l| l.accept()).map_err(wrong)?.0,
            _ => {
                let start = Instant::now();
                loop {
                    match TcpStream::connect(address) {
                        Ok(stream) => break stream,
                        Err(_) if start.elapsed() < Duration::from_secs(30) => {
                            std::thread::sleep(Duration::from_millis(20));
                        }
                        Err(e) => return Err(wrong(e)),
                    }
                }
            }
        };
        stream.set_nodelay(true).map_err(wrong)?;
        Ok(Pair { rank, stream, ties: Ties::default() })
    }
}

fn gone(error: impl std::fmt::Display) -> PlanError {
    PlanError { instr: None, error: Error::Connection(format!("the other rank is gone: {error}")) }
}

impl Communicator for Pair {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        2
    }

    fn share(&self, mine: &[&[u8]], want: Want, take: Take) -> Result<(), PlanError> {
        let (me, other) = (self.rank, 1 - self.rank);
        let mut stream = &self.stream;
        let send: Vec<u8> = (0..mine.len()).flat_map(|k| &mine[k][want(k, me, other)]).copied().collect();
        let mut got = vec![0; (0..mine.len()).map(|k| want(k, other, me).len()).sum::<usize>() + 1];
        std::thread::scope(|s| {
            let sending = s
                .spawn(move || (&self.stream).write_all(&send).and_then(|()| (&self.stream).write_all(&[7])));
            let read = stream.read_exact(&mut got);
            sending.join().expect("a thread that writes").and(read)
        })
        .map_err(gone)?;
        let mut rest = &got[..];
        let mut theirs = Vec::new();
        for k in 0..mine.len() {
            let (part, after) = rest.split_at(want(k, other, me).len());
            theirs.push(part);
            rest = after;
        }
        let own: Vec<&[u8]> = (0..mine.len()).map(|k| &mine[k][want(k, me, me)]).collect();
        let mut shown = vec![own, theirs];
        if me == 1 {
            shown.swap(0, 1);
        }
        take(&shown);
        Ok(())
    }
}

impl Group for Pair {
    fn axis(&self, _: u8) -> Result<&dyn Communicator, PlanError> {
        Ok(self)
    }

    fn agree(&self) -> Result<(), PlanError> {
        self.share(&[], &|_, _, _| 0..0, &mut |_| {})
    }

    fn all(&self) -> Option<&dyn Communicator> {
        Some(self)
    }

    fn failed(&self) -> Option<PlanError> {
        let mut byte = [0];
        self.stream.set_nonblocking(true).ok()?;
        let looked = self.stream.peek(&mut byte);
        self.stream.set_nonblocking(false).ok()?;
        match looked {
            Ok(0) => Some(gone("it closed its end")),
            Err(e) if e.kind() != std::io::ErrorKind::WouldBlock => Some(gone(e)),
            _ => None,
        }
    }

    fn ties(&self) -> Option<&Ties> {
        Some(&self.ties)
    }
}

/// The same pair without NCCL.
struct Untied<'a>(&'a Pair);

impl Group for Untied<'_> {
    fn axis(&self, axis: u8) -> Result<&dyn Communicator, PlanError> {
        self.0.axis(axis)
    }

    fn agree(&self) -> Result<(), PlanError> {
        self.0.agree()
    }

    fn all(&self) -> Option<&dyn Communicator> {
        self.0.all()
    }

    fn failed(&self) -> Option<PlanError> {
        self.0.failed()
    }
}

/// The same group, whose gangs are not waited for one by one.
struct Unwatched<'a> {
    group: &'a dyn Group,
    flights: Mutex<Vec<Box<dyn Flight>>>,
}

impl<'a> Unwatched<'a> {
    fn new(group: &'a dyn Group) -> Unwatched<'a> {
        Unwatched { group, flights: Mutex::default() }
    }
}

impl Group for Unwatched<'_> {
    fn axis(&self, axis: u8) -> Result<&dyn Communicator, PlanError> {
        self.group.axis(axis)
    }

    fn agree(&self) -> Result<(), PlanError> {
        self.group.agree()
    }

    fn all(&self) -> Option<&dyn Communicator> {
        self.group.all()
    }

    fn failed(&self) -> Option<PlanError> {
        self.group.failed()
    }

    fn ties(&self) -> Option<&Ties> {
        self.group.ties()
    }

    fn depart(&self, flight: Box<dyn Flight>) -> Result<(), PlanError> {
        let mut flights = self.flights.lock().expect("no panic");
        flights.retain(|flight| !flight.landed().unwrap_or(true));
        flights.push(flight);
        Ok(())
    }
}

fn upload(backend: &CudaBackend, xs: &[HostTensor]) -> Result<Vec<Buffer>, String> {
    let one = |x: &HostTensor| backend.upload(&x.ty, HostBytes::Owned(Arc::new(x.data.clone())));
    xs.iter().map(one).collect::<Result<_, _>>().map_err(|e| e.to_string())
}

/// A rank's program: one collective of all its inputs.
fn program(what: &Exchange, xs: &[HostTensor]) -> Arc<Structure> {
    let inputs: Vec<Input> = xs.iter().map(|x| Input { ty: x.ty.clone(), dies: false }).collect();
    let op = Op::Collective(Collective { number: 0, axis: 0, what: what.clone() });
    let args = (0..xs.len() as u32).map(Arg::Value).collect();
    let outs = (xs.len() as u32..2 * xs.len() as u32).collect();
    Arc::new(Structure { inputs, instrs: vec![Instr { op, args }], outs, ..Structure::default() })
}

fn make(backend: &CudaBackend, structure: &Arc<Structure>, effort: Effort) -> Result<Arc<dyn Plan>, String> {
    let types = structure.check().map_err(|e| e.to_string())?;
    backend.compile(structure, &types, effort).map_err(|e| e.to_string())
}

/// Every collective and type on `n` ranks, of which this is one.
fn all<'a>(
    backend: &CudaBackend,
    rank: usize,
    n: usize,
    group: &dyn Fn() -> &'a dyn Group,
) -> Result<(), String> {
    let mut rng = Rng::new(11);
    let (start, mut count) = (Instant::now(), 0);
    for dtype in DType::ALL {
        for (whats, parts) in cases(&mut rng, n, dtype) {
            let (what, xs) = (&whats[rank], &parts[rank]);
            let expected = eval_parts(&whats[0], &parts).map_err(|e| e.to_string())?;
            let structure = program(what, xs);
            let plan = make(backend, &structure, Effort::Quick)?;
            let outs = plan.run_gang(&mut upload(backend, xs)?, &[], group(), None);
            let outs = outs.map_err(|e| format!("{what:?} {dtype}: {}", e.error))?;
            for (out, expected) in outs.iter().zip(&expected[rank]) {
                let data = backend.download(out).map_err(|e| e.to_string())?.to_vec();
                let got = HostTensor { ty: expected.ty.clone(), data };
                close_by_dtype(&got, expected).map_err(|e| format!("{what:?} rank {rank} {dtype}: {e}"))?;
            }
            count += 1;
        }
    }
    let (nccl, host, _) = gangs_run();
    let took = start.elapsed().as_secs_f64();
    println!(
        "rank {rank} of {n}: {count} collectives right in {took:.1} s, {nccl} gangs by NCCL, {host} by the host"
    );
    if nccl == 0 { Err("NCCL was not used".into()) } else { Ok(()) }
}

/// A seat in a gang of one.
struct Alone {
    seat: Seat,
}

fn alone(ties: &Arc<Ties>) -> Alone {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let name = (1, NEXT.fetch_add(1, Ordering::Relaxed));
    Alone { seat: Seat::take(name, 1, &[1], 0).tied(ties.clone()) }
}

fn one_rank() -> Result<(), String> {
    let backend = CudaBackend::open(0).map_err(|e| e.to_string())?;
    let ties = Arc::new(Ties::default());
    let seat = alone(&ties);
    all(&backend, 0, 1, &|| &seat.seat)
}

/// A step of training whose gradient is summed.
const TRAINING: &str = "
    in TENSOR[0] f32[64, 64] dies
    in TENSOR[1] f32[16, 64]
    slot $0
    TENSOR[2] := MATMUL{ta=false,tb=false} TENSOR[1] TENSOR[0]
    TENSOR[3] := TANH TENSOR[2]
    TENSOR[4] := MATMUL{ta=true,tb=false} TENSOR[1] TENSOR[3]
    TENSOR[5] := CAST{dtype=bf16} TENSOR[4]
    TENSOR[6] := ALLREDUCE{number=0,axis=0,kind=SUM} TENSOR[5]
    TENSOR[7] := ALLREDUCE{number=1,axis=0,kind=SUM} TENSOR[4]
    TENSOR[8] := MUL TENSOR[7] $0
    TENSOR[9] := SUB TENSOR[0] TENSOR[8]
    out TENSOR[9]
    out TENSOR[3]
    out TENSOR[6]";

/// A step of training whose gradient is summed, as often as it takes to become a graph: every run is right.
fn again_and_again() -> Result<(), String> {
    let backend = CudaBackend::open(0).map_err(|e| e.to_string())?;
    let ties = Arc::new(Ties::default());
    let program = TRAINING;
    let structure = Arc::new(text::parse_structure(program).map_err(|e| e.to_string())?);
    let alone_text = program
        .replace("ALLREDUCE{number=0,axis=0,kind=SUM}", "MUL")
        .replace("ALLREDUCE{number=1,axis=0,kind=SUM}", "MUL");
    let alone_text = alone_text
        .replace("MUL TENSOR[5]", "MUL TENSOR[5] 1.0")
        .replace("MUL TENSOR[4]\n", "MUL TENSOR[4] 1.0\n");
    let plain = Arc::new(text::parse_structure(&alone_text).map_err(|e| e.to_string())?);
    let (plan, judge) = (make(&backend, &structure, Effort::Full)?, make(&backend, &plain, Effort::Full)?);
    let mut rng = Rng::new(3);
    let draw = |rng: &mut Rng, shape: [usize; 2]| {
        gt_ir::sample::draw(rng, &gt_ir::Ty::new(DType::F32, shape), (-1.0, 1.0))
    };
    let weight = draw(&mut rng, [64, 64]);
    let mut both =
        [upload(&backend, std::slice::from_ref(&weight))?.remove(0), upload(&backend, &[weight])?.remove(0)];
    let (mut held, mut took) = (Vec::new(), Vec::new());
    for step in 0..20 {
        let batch = draw(&mut rng, [16, 64]);
        let rate = [Slot::Num(gt_ir::Scalar::Float(0.01 * step as f64))];
        let [gang, lone] = both;
        let mut inputs = vec![gang, upload(&backend, std::slice::from_ref(&batch))?.remove(0)];
        let begin = Instant::now();
        let outs =
            plan.run_gang(&mut inputs, &rate, &alone(&ties).seat, None).map_err(|e| e.error.to_string())?;
        took.push(begin.elapsed());
        drop(inputs);
        let mut inputs = vec![lone, upload(&backend, &[batch])?.remove(0)];
        let expected = judge.run(&mut inputs, &rate).map_err(|e| e.error.to_string())?;
        drop(inputs);
        for (i, (a, b)) in outs.iter().zip(&expected).enumerate() {
            let down = |x: &Buffer| backend.download(x).map_err(|e| e.to_string());
            if down(a)? != down(b)? {
                return Err(format!(
                    "step {step}: result {i} of a gang of one is not that of the program alone"
                ));
            }
        }
        both = [outs[0].clone(), expected[0].clone()];
        held.push((outs[1].clone(), outs[2].clone()));
        drop((outs, expected));
    }
    println!("a step of a gang of one, 20 times: first {:?}, last {:?}", took[0], took[19]);
    Ok(())
}

/// How long a step of a gang of one takes when many are queued one after the other.
fn pace_alone() -> Result<(), String> {
    const FIRST: usize = 20;
    const STEPS: usize = 500;
    let backend = CudaBackend::open(0).map_err(|e| e.to_string())?;
    let structure = Arc::new(text::parse_structure(TRAINING).map_err(|e| e.to_string())?);
    let (plan, ties, mut rng) = (make(&backend, &structure, Effort::Full)?, Arc::default(), Rng::new(3));
    let mut draw =
        |shape: [usize; 2]| [gt_ir::sample::draw(&mut rng, &gt_ir::Ty::new(DType::F32, shape), (-1.0, 1.0))];
    let mut weight = upload(&backend, &draw([64, 64]))?.remove(0);
    let batch = upload(&backend, &draw([16, 64]))?.remove(0);
    let (mut begin, mut queued, mut graphs) = (Instant::now(), Duration::ZERO, 0);
    for step in 0..FIRST + STEPS {
        if step == FIRST {
            backend.download(&weight).map_err(|e| e.to_string())?;
            (begin, queued, graphs) = (Instant::now(), Duration::ZERO, gangs_run().2);
        }
        let rate = [Slot::Num(gt_ir::Scalar::Float(1e-4 * step as f64))];
        let (seat, mut inputs) = (alone(&ties), vec![weight, batch.clone()]);
        let put = Instant::now();
        let outs = plan.run_gang(&mut inputs, &rate, &Unwatched::new(&seat.seat), None);
        queued += put.elapsed();
        drop(inputs);
        weight = outs.map_err(|e| e.error.to_string())?.swap_remove(0);
    }
    backend.download(&weight).map_err(|e| e.to_string())?;
    let each = |time: Duration| time.as_secs_f64() * 1e6 / STEPS as f64;
    println!(
        "a step of a gang of one: {:.1} us ({:.1} us on the host), {} of {STEPS} as graphs",
        each(begin.elapsed()),
        each(queued),
        gangs_run().2 - graphs
    );
    Ok(())
}

/// A step of two ranks that comes back: its plan, and what goes in.
struct Step<'a> {
    backend: &'a CudaBackend,
    plan: Arc<dyn Plan>,
    rng: Rng,
}

impl Step<'_> {
    fn new<'a>(backend: &'a CudaBackend, rank: usize) -> Result<Step<'a>, String> {
        let structure = Arc::new(text::parse_structure(TOGETHER).map_err(|e| e.to_string())?);
        let plan = make(backend, &structure, Effort::Full)?;
        Ok(Step { backend, plan, rng: Rng::new(17 + rank as u64) })
    }

    fn draw(&mut self, shape: [usize; 2]) -> [HostTensor; 1] {
        [gt_ir::sample::draw(&mut self.rng, &gt_ir::Ty::new(DType::F32, shape), (-1.0, 1.0))]
    }

    fn run(
        &self,
        step: usize,
        weight: Buffer,
        batch: &[HostTensor],
        group: &dyn Group,
    ) -> Result<Vec<Buffer>, PlanError> {
        let wrong = |error| PlanError { instr: None, error: Error::Runtime(error) };
        let rate = [Slot::Num(gt_ir::Scalar::Float(0.001 * step as f64))];
        let mut inputs = vec![weight, upload(self.backend, batch).map_err(wrong)?.remove(0)];
        self.plan.run_gang(&mut inputs, &rate, group, None)
    }
}

/// Such a step by NCCL, as often as it takes to run as a graph, gives bit for bit what it gives by way of the host.
fn together(backend: &CudaBackend, pair: &Pair) -> Result<(), String> {
    const STEPS: usize = 30;
    let mut one = Step::new(backend, pair.rank)?;
    let weight = one.draw([64, 64]);
    let mut both = [upload(backend, &weight)?.remove(0), upload(backend, &weight)?.remove(0)];
    let mut took = [Duration::ZERO; 2];
    let graphs = gangs_run().2;
    for step in 0..STEPS {
        let batch = one.draw([16, 64]);
        let groups: [&dyn Group; 2] = [pair, &Untied(pair)];
        let mut outs = Vec::new();
        for ((group, weight), took) in groups.into_iter().zip(both).zip(&mut took) {
            let begin = Instant::now();
            let made = one.run(step, weight, &batch, group);
            outs.push(made.map_err(|e| format!("together, step {step}: {}", e.error))?);
            *took = begin.elapsed();
        }
        for (i, (a, b)) in outs[0].iter().zip(&outs[1]).enumerate() {
            let down = |x: &Buffer| backend.download(x).map_err(|e| e.to_string());
            if down(a)? != down(b)? {
                return Err(format!("step {step}: result {i} by NCCL is not that by way of the host"));
            }
        }
        both = [outs[0][0].clone(), outs[1][0].clone()];
    }
    let ([nccl, host], graphs) = (took, gangs_run().2 - graphs);
    println!(
        "rank {}: {STEPS} steps of many collectives right, {graphs} of them graphs, the last {nccl:?}, {host:?} by the host",
        pair.rank
    );
    if graphs == 0 { Err("no step ran as a graph".into()) } else { Ok(()) }
}

/// How long a step takes when many are queued one after the other.
fn pace(backend: &CudaBackend, what: &str, pair: &Pair, group: &dyn Group) -> Result<(), String> {
    const FIRST: usize = 12;
    const STEPS: usize = 60;
    let mut one = Step::new(backend, pair.rank)?;
    let mut weight = upload(backend, &one.draw([64, 64]))?.remove(0);
    let batch = one.draw([16, 64]);
    let (mut begin, mut queued) = (Instant::now(), Duration::ZERO);
    let mut graphs = 0;
    for step in 0..FIRST + STEPS {
        if step == FIRST {
            backend.download(&weight).map_err(|e| e.to_string())?;
            (begin, queued, graphs) = (Instant::now(), Duration::ZERO, gangs_run().2);
        }
        let put = Instant::now();
        let outs = one.run(step, weight, &batch, group).map_err(|e| format!("step {step}: {}", e.error))?;
        queued += put.elapsed();
        weight = outs.into_iter().next().ok_or("no results")?;
    }
    backend.download(&weight).map_err(|e| e.to_string())?;
    let each = begin.elapsed().as_secs_f64() * 1e3 / STEPS as f64;
    let host = queued.as_secs_f64() * 1e3 / STEPS as f64;
    let graphs = gangs_run().2 - graphs;
    // Nobody goes before the other is done.
    pair.agree().map_err(|e| e.error.to_string())?;
    println!(
        "rank {}: {what}: {each:.3} ms a step ({host:.3} ms on the host), {graphs} of {STEPS} as graphs",
        pair.rank
    );
    Ok(())
}

/// Rank 1 dies; rank 0 gets an error in seconds and goes on. It dies before it agrees to a step, or right after: then rank
/// 0 has queued all of it, as a graph or step by step.
fn dies(backend: &CudaBackend, what: &str, pair: &Pair) -> Result<(), String> {
    let mut one = Step::new(backend, pair.rank)?;
    let mut weight = upload(backend, &one.draw([64, 64]))?.remove(0);
    let batch = one.draw([16, 64]);
    for step in 0..12 {
        let outs = one.run(step, weight, &batch, pair).map_err(|e| format!("step {step}: {}", e.error))?;
        weight = outs.into_iter().next().ok_or("no results")?;
    }
    if pair.rank == 1 {
        // Any capture would suit it, or none.
        let mut offer = [0u8; 17];
        if what == "vanishes" {
            offer[0] = 2;
            (0..4).for_each(|k| offer[1 + 4 * k] = k as u8 + 1);
        }
        if what != "dies" {
            pair.share(&[&offer], &|_, _, _| 0..offer.len(), &mut |_| {}).map_err(|e| e.error.to_string())?;
        }
        // As one that is killed: nothing is told to anybody.
        std::thread::sleep(Duration::from_millis(300));
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(9) };
    }
    let (begin, graphs) = (Instant::now(), gangs_run().2);
    let Err(failed) = one.run(12, weight, &batch, pair) else {
        return Err("a gang with a dead rank succeeded".into());
    };
    let took = begin.elapsed().as_secs_f64();
    let graphs = gangs_run().2 - graphs;
    pair.ties.clear();
    let ties = Arc::new(Ties::default());
    let xs = [HostTensor::from_f64s(DType::F32, [1000], &vec![1.0; 1000])];
    let plan = make(backend, &program(&Exchange::AllReduce { kind: ReduceKind::Sum }, &xs), Effort::Quick)?;
    let outs = plan.run_gang(&mut upload(backend, &xs)?, &[], &alone(&ties).seat, None);
    let outs = outs.map_err(|e| format!("after the failure: {}", e.error))?;
    let data = backend.download(&outs[0]).map_err(|e| e.to_string())?;
    if *data != xs[0].data {
        return Err("after the failure a gang of one gives something else".into());
    }
    println!(
        "{what}: the other rank had `{}` after {took:.2} s, {graphs} graphs queued, and went on",
        failed.error
    );
    if took > 8.0 { Err("that took too long".into()) } else { Ok(()) }
}
