//! Collectives between threads, over every road: what each rank gets is what the collective means, and failures reach
//! all.

#[path = "common/exchanges.rs"]
mod exchanges;
#[path = "fake_cuda/load.rs"]
mod load;

use exchanges::cases;
use gt_ir::collective::eval_parts;
use gt_ir::host::close_by_dtype;
use gt_ir::sample::Rng;
use gt_ir::{DType, Error, Exchange, HostTensor, ReduceKind};
use gt_net::bulk::{
    BulkBytes, BulkServer, BulkServerOptions, BulkStore, Endpoint, Ticket, TicketKey, host_id,
};
use gt_net::msg::{Member, Mesh, WorkerId};
use gt_net::process::Process;
use gt_worker::backend::{Backend, Effort, HostBytes, PlanError};
use gt_worker::backends::cuda::CudaBackend;
use gt_worker::gang::Group;
use gt_worker::gang::collect::{self, Item};
use gt_worker::gang::meeting::Seat;
use gt_worker::gang::post::{Desk, Letterbox, Post};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Ranks that reach each other only by their bulk planes.
struct Apart {
    posts: Vec<Arc<Post>>,
    _servers: Vec<BulkServer>,
}

struct Letters(Arc<Letterbox>);

impl BulkStore for Letters {
    fn put(&self, _: &Ticket, bytes: BulkBytes) -> Result<(), String> {
        self.0.take(bytes)
    }

    fn get(&self, _: &Ticket) -> Result<BulkBytes, String> {
        Err("there is nothing to get".into())
    }
}

impl Apart {
    /// Ranks of a mesh, on one host or each on its own.
    fn new(shape: &[u32], near: bool) -> Apart {
        let n: u32 = shape.iter().product();
        let inboxes: Vec<Arc<Letterbox>> = (0..n).map(|_| Arc::default()).collect();
        let keys: Vec<TicketKey> = (0..n).map(|_| TicketKey::random()).collect();
        let start = |(inbox, key): (&Arc<Letterbox>, &TicketKey)| {
            let store = Arc::new(Letters(inbox.clone()));
            BulkServer::start(BulkServerOptions::new(key.clone()), store).unwrap()
        };
        let servers: Vec<BulkServer> = inboxes.iter().zip(&keys).map(start).collect();
        let member = |(rank, (server, key)): (usize, (&BulkServer, &TicketKey))| {
            let endpoint = match near {
                true => server.endpoint().clone(),
                false => Endpoint { host_id: "elsewhere".into(), ..server.endpoint().clone() },
            };
            let worker = WorkerId(rank as u32);
            Member { worker, process: Process::this(), endpoint: Some(endpoint), key: key.0 }
        };
        let members: Vec<Member> = servers.iter().zip(&keys).enumerate().map(member).collect();
        let post = |(rank, inbox): (usize, Arc<Letterbox>)| {
            let (members, shape) = (members.clone(), shape.to_vec());
            let mesh = Mesh { id: 1, cluster: 7, shape, members, rank: rank as u32 };
            Arc::new(Post::new(Arc::new(mesh), inbox))
        };
        Apart { posts: inboxes.into_iter().enumerate().map(post).collect(), _servers: servers }
    }

    /// What every rank makes of a gang.
    fn gang<T: Send>(&self, f: impl Fn(usize, &Desk) -> T + Sync) -> Vec<T> {
        let (gang, f) = (number(), &f);
        std::thread::scope(|s| {
            let run = |(rank, post): (usize, &Arc<Post>)| {
                let desk = Desk::new(post.clone(), gang);
                s.spawn(move || f(rank, &desk))
            };
            let threads: Vec<_> = self.posts.iter().enumerate().map(run).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        })
    }
}

/// One rank's part of a collective.
fn run_rank(seat: &dyn Group, what: &Exchange, xs: &[HostTensor]) -> Result<Vec<HostTensor>, PlanError> {
    let mut outs: Vec<HostTensor> =
        xs.iter().enumerate().map(|(i, x)| HostTensor::zeros(&what.result(i, &x.ty).unwrap())).collect();
    let mut items: Vec<Item> = xs
        .iter()
        .zip(&mut outs)
        .map(|(x, out)| Item { ty: x.ty.clone(), x: &x.data, out: &mut out.data })
        .collect();
    collect::run(what, seat.axis(0)?, &mut items)?;
    Ok(outs)
}

#[test]
fn collectives_give_what_they_mean() {
    let mut rng = Rng::new(3);
    for n in [1, 2, 3, 5, 8] {
        for dtype in DType::ALL {
            for (whats, parts) in cases(&mut rng, n, dtype) {
                let expected = eval_parts(&whats[0], &parts).unwrap();
                let name = (7, number());
                let got: Vec<Vec<HostTensor>> = std::thread::scope(|s| {
                    let run = |(rank, (what, xs)): (usize, (&Exchange, &Vec<HostTensor>))| {
                        let (what, xs) = (what.clone(), xs.clone());
                        s.spawn(move || {
                            let seat = Seat::take(name, 1, &[n], rank);
                            run_rank(&seat, &what, &xs).unwrap()
                        })
                    };
                    let threads: Vec<_> = whats.iter().zip(&parts).enumerate().map(run).collect();
                    threads.into_iter().map(|t| t.join().unwrap()).collect()
                });
                for (rank, (got, expected)) in got.iter().zip(&expected).enumerate() {
                    for (got, expected) in got.iter().zip(expected) {
                        close_by_dtype(got, expected)
                            .unwrap_or_else(|e| panic!("{:?} rank {rank} of {n} {dtype}: {e}", whats[0]));
                    }
                }
                // All ranks get the same bits.
                if matches!(whats[0], Exchange::AllReduce { .. }) {
                    assert!(got.iter().all(|g| *g == got[0]));
                }
            }
        }
    }
}

#[test]
fn collectives_mean_the_same_between_processes() {
    let mut rng = Rng::new(5);
    for (n, near) in [(2, true), (3, true), (5, true), (2, false), (3, false)] {
        let ranks = Apart::new(&[n as u32], near);
        for dtype in [DType::F32, DType::BF16, DType::I16, DType::Bool] {
            for (whats, parts) in cases(&mut rng, n, dtype) {
                let got = ranks.gang(|rank, desk| run_rank(desk, &whats[rank], &parts[rank]).unwrap());
                // The same bits as within a process.
                let name = (7, number());
                let here: Vec<Vec<HostTensor>> = std::thread::scope(|s| {
                    let (whats, parts) = (&whats, &parts);
                    let run = |rank: usize| {
                        s.spawn(move || {
                            let seat = Seat::take(name, 1, &[n], rank);
                            run_rank(&seat, &whats[rank], &parts[rank]).unwrap()
                        })
                    };
                    let threads: Vec<_> = (0..n).map(run).collect();
                    threads.into_iter().map(|t| t.join().unwrap()).collect()
                });
                assert!(got == here, "{:?} {dtype} on {n} ranks, near: {near}", whats[0]);
            }
        }
    }
}

#[test]
fn a_gang_that_fails_between_processes_leaves_nothing_behind() {
    for near in [true, false] {
        let ranks = Apart::new(&[3], near);
        let what = Exchange::AllReduce { kind: ReduceKind::Sum };
        let x = |rank: usize| HostTensor::from_f64s(DType::F32, [40_000], &vec![rank as f64 + 1.0; 40_000]);
        for round in 0..20 {
            let start = Instant::now();
            let errors = ranks.gang(|rank, desk| {
                // One rank fails before, between or after collectives of the others.
                let error = PlanError { instr: Some(9), error: Error::Index("bad index".into()) };
                let result = match (rank, round % 3) {
                    (1, 0) => Err(error),
                    (1, 1) => run_rank(desk, &what, &[x(rank)]).and(Err(error)),
                    _ => (0..3).try_for_each(|_| run_rank(desk, &what, &[x(rank)]).map(|_| ())),
                };
                if let Err(error) = &result {
                    desk.fail(error);
                }
                result.err().and_then(|e| e.instr)
            });
            if round % 3 < 2 {
                assert_eq!(errors, [Some(9); 3], "round {round}, near: {near}");
            }
            assert!(start.elapsed() < Duration::from_secs(5));
            let sums = ranks.gang(|rank, desk| run_rank(desk, &what, &[x(rank)]).unwrap());
            assert!(sums.iter().all(|s| s[0].to_f64s().iter().all(|v| *v == 6.0)), "near: {near}");
        }
    }
}

#[test]
fn a_rank_that_does_not_answer_holds_up_nobody_who_fails() {
    // Connections to it are taken by the system, and nobody serves them.
    let name = format!("gt-frozen-{}", std::process::id());
    let _frozen = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let at = |unix: &str| Endpoint { tcp: None, unix: Some(unix.into()), host_id: host_id().into() };
    let member = |rank: u32, unix: &str| Member {
        worker: WorkerId(rank),
        process: Process::this(),
        endpoint: Some(at(unix)),
        key: TicketKey::random().0,
    };
    let members = vec![member(0, "gt-nobody"), member(1, &name)];
    let mesh = Mesh { id: 1, cluster: 7, shape: vec![2], members, rank: 0 };
    let desk = Desk::new(Arc::new(Post::new(Arc::new(mesh), Arc::default())), number());
    let error = PlanError { instr: None, error: Error::Connection("the other worker was lost".into()) };
    let start = Instant::now();
    desk.fail(&error);
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_rank_that_fails_fails_all_and_late_ones_hear_of_it() {
    let name = (7, number());
    let error = PlanError { instr: Some(4), error: Error::Index("bad index".into()) };
    let waiting = std::thread::spawn(move || Seat::take(name, 1, &[3], 0).agree());
    std::thread::sleep(std::time::Duration::from_millis(20));
    let seat = Seat::take(name, 1, &[3], 1);
    seat.fail(&error);
    drop(seat);
    let first = waiting.join().unwrap().unwrap_err();
    assert_eq!((first.instr, first.error), (Some(4), Error::Index("bad index".into())));
    let late = Seat::take(name, 1, &[3], 2).agree().unwrap_err();
    assert_eq!(late.instr, Some(4));
}

#[test]
fn ranks_of_a_mesh_of_two_axes_meet_along_each() {
    let name = (7, number());
    let sums: Vec<(Vec<f64>, Vec<f64>)> = std::thread::scope(|s| {
        let run = |rank: usize| {
            s.spawn(move || {
                let seat = Seat::take(name, 1, &[2, 3], rank);
                let x = HostTensor::from_f64s(DType::F32, [1], &[(1 << rank) as f64]);
                let along = |axis: u8| {
                    let mut out = HostTensor::zeros(&x.ty);
                    let item = Item { ty: x.ty.clone(), x: &x.data, out: &mut out.data };
                    let what = Exchange::AllReduce { kind: ReduceKind::Sum };
                    collect::run(&what, seat.axis(axis).unwrap(), &mut [item]).unwrap();
                    out.to_f64s()
                };
                (along(0), along(1))
            })
        };
        let threads: Vec<_> = (0..6).map(run).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    for (rank, (along_0, along_1)) in sums.iter().enumerate() {
        let (row, column) = (rank / 3, rank % 3);
        assert_eq!(along_0[0], ((1 << column) + (1 << (3 + column))) as f64);
        assert_eq!(along_1[0], (0b111 << (3 * row)) as f64);
    }
}

#[test]
fn all_ranks_of_a_mesh_show_each_other_bytes_on_every_road() {
    for near in [true, false] {
        let apart = Apart::new(&[2, 2], near);
        let seen = apart.gang(|rank, desk| {
            let mut seen = Vec::new();
            let own = [rank as u8; 200];
            let take = &mut |shown: &[Vec<&[u8]>]| seen = shown.iter().map(|r| r[0].to_vec()).collect();
            desk.all().unwrap().share(&[&own], &|_, _, _| 0..200, take).unwrap();
            seen
        });
        let expected: Vec<Vec<u8>> = (0..4).map(|rank| vec![rank; 200]).collect();
        seen.into_iter().for_each(|seen| assert_eq!(seen, expected));
    }
}

#[test]
fn gpus_of_several_processes_meet_by_nccl() {
    load::fake_nccl();
    let program = "in TENSOR[0] f32[5]\n\
        TENSOR[1] := ALLREDUCE{number=0,axis=0,kind=SUM} TENSOR[0]\nout TENSOR[1]";
    let structure = Arc::new(gt_ir::text::parse_structure(program).unwrap());
    let types = structure.check().unwrap();
    for near in [true, false] {
        let apart = Apart::new(&[2], near);
        let backends: Vec<CudaBackend> = (0..2).map(|_| CudaBackend::open(0).unwrap()).collect();
        let plans: Vec<_> =
            backends.iter().map(|b| b.compile(&structure, &types, Effort::Quick).unwrap()).collect();
        for step in 0..3 {
            let sums = apart.gang(|rank, desk| {
                let (backend, x) = (&backends[rank], vec![(rank + step) as f64; 5]);
                backend.turn(rank as u64);
                let x = HostBytes::Owned(Arc::new(HostTensor::from_f64s(DType::F32, [5], &x).data));
                let mut inputs = vec![backend.upload(&types[0], x).unwrap()];
                let outs = plans[rank].run_gang(&mut inputs, &[], desk, None).unwrap();
                backend.download(&outs[0]).unwrap().to_vec()
            });
            let sum = HostTensor::from_f64s(DType::F32, [5], &[(1 + 2 * step) as f64; 5]).data;
            assert_eq!(sums, [sum.clone(), sum]);
        }
    }
    assert_eq!(load::fake_nccl()[0], 4, "a group of two ranks for each mesh");
}
