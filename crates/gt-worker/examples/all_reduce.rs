//! How long an all-reduce takes on each road between ranks (memory of one process, windows of one host, sockets), beside
//! every rank copying as many bytes at the same time. `cargo run --release -p gt-worker --example all_reduce -- RANKS THREADS`

use gt_ir::{DType, Exchange, ReduceKind, Ty};
use gt_net::bulk::{BulkBytes, BulkServer, BulkServerOptions, BulkStore, Endpoint, Ticket, TicketKey};
use gt_net::msg::{Member, Mesh, WorkerId};
use gt_net::process::Process;
use gt_worker::backends::cpu::threads::{Threads, cores, pin};
use gt_worker::gang::Group;
use gt_worker::gang::collect::{self, Item};
use gt_worker::gang::meeting::Seat;
use gt_worker::gang::post::{Desk, Letterbox, Post};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Instant;

struct Letters(Arc<Letterbox>);

impl BulkStore for Letters {
    fn put(&self, _: &Ticket, bytes: BulkBytes) -> Result<(), String> {
        self.0.take(bytes)
    }

    fn get(&self, _: &Ticket) -> Result<BulkBytes, String> {
        Err("there is nothing to get".into())
    }
}

/// Ranks that reach each other by their bulk planes, through shared memory or, as if on other hosts, by sockets.
fn posts(n: usize, near: bool) -> (Vec<Arc<Post>>, Vec<BulkServer>) {
    let inboxes: Vec<Arc<Letterbox>> = (0..n).map(|_| Arc::default()).collect();
    let keys: Vec<TicketKey> = (0..n).map(|_| TicketKey::random()).collect();
    let start = |(inbox, key): (&Arc<Letterbox>, &TicketKey)| {
        let store = Arc::new(Letters(inbox.clone()));
        BulkServer::start(BulkServerOptions::new(key.clone()), store).expect("a bulk plane")
    };
    let servers: Vec<BulkServer> = inboxes.iter().zip(&keys).map(start).collect();
    let member = |(rank, (server, key)): (usize, (&BulkServer, &TicketKey))| {
        let mut endpoint: Endpoint = server.endpoint().clone();
        if !near {
            endpoint.host_id = "elsewhere".into();
        }
        let worker = WorkerId(rank as u32);
        Member { worker, process: Process::this(), endpoint: Some(endpoint), key: key.0 }
    };
    let members: Vec<Member> = servers.iter().zip(&keys).enumerate().map(member).collect();
    let post = |(rank, inbox): (usize, Arc<Letterbox>)| {
        let (members, shape) = (members.clone(), vec![n as u32]);
        let mesh = Mesh { id: 1, cluster: 1, shape, members, rank: rank as u32 };
        Arc::new(Post::new(Arc::new(mesh), inbox))
    };
    (inboxes.into_iter().enumerate().map(post).collect(), servers)
}

/// What a rank does: it is given its number, its threads, and what times a piece of work.
type Work<'a> = dyn Fn(usize, &Threads, &mut dyn FnMut(&mut dyn FnMut())) + Sync + 'a;

/// Calls `work` on every rank, each on cores of its own; the fastest of several rounds, in seconds.
fn timed(n: usize, each: usize, rounds: usize, work: &Work) -> f64 {
    let (cores, barrier) = (cores(), Barrier::new(n));
    let slowest: Vec<AtomicU64> = (0..rounds).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|s| {
        for rank in 0..n {
            let (cores, barrier, slowest) = (&cores, &barrier, &slowest);
            s.spawn(move || {
                let own: Vec<usize> = (0..each).map(|i| cores[(rank * each + i) % cores.len()]).collect();
                pin(own[0]);
                let threads = Threads::pinned(&own);
                work(rank, &threads, &mut |once| {
                    for best in slowest {
                        barrier.wait();
                        let start = Instant::now();
                        once();
                        best.fetch_max(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
                    }
                });
            });
        }
    });
    let best = slowest.into_iter().map(AtomicU64::into_inner).min().unwrap_or(0);
    best as f64 / 1e9
}

fn main() {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<usize>().expect("numbers"));
    let (n, each) = (args.next().unwrap_or(2), args.next().unwrap_or(1));
    let what = Exchange::AllReduce { kind: ReduceKind::Sum };
    let (near, _near) = posts(n, true);
    let (far, _far) = posts(n, false);
    println!("{n} ranks of {each} threads, all-reduce of f32, fastest of several");
    println!("{:>12} {:>14} {:>14} {:>14} {:>14}", "bytes", "copy", "process", "host", "sockets");
    for bytes in [256usize, 16 << 10, 256 << 10, 4 << 20, 64 << 20] {
        let ty = Ty::new(DType::F32, [bytes / 4]);
        let rounds = if bytes > 1 << 20 { 7 } else { 200 };
        let copy = timed(n, each, rounds, &|_, threads, again| {
            let (x, mut out) = (vec![1u8; bytes], vec![0u8; bytes]);
            again(&mut || {
                gt_worker::gang::hands::copy(threads, &x, &mut out);
            });
        });
        let reduce = |road: usize| {
            static GANGS: AtomicU64 = AtomicU64::new(1);
            let gang = GANGS.fetch_add(1, Ordering::Relaxed);
            timed(n, each, rounds, &|rank, threads, again| {
                let group: Box<dyn Group> = match road {
                    0 => Box::new(Seat::take((1, gang), 1, &[n], rank)),
                    1 => Box::new(Desk::new(near[rank].clone(), gang)),
                    _ => Box::new(Desk::new(far[rank].clone(), gang)),
                };
                let x: Vec<u8> = 1f32.to_ne_bytes().repeat(bytes / 4);
                let mut out = vec![0u8; bytes];
                again(&mut || {
                    let item = Item { ty: ty.clone(), x: &x, out: &mut out };
                    let comm = group.axis(0).expect("an axis");
                    collect::run_with(&what, comm, threads, &mut [item]).expect("a sum");
                });
                assert!(out == (n as f32).to_ne_bytes().repeat(bytes / 4));
            })
        };
        let shown = |seconds: f64| match bytes > 1 << 20 {
            true => format!("{:.2} GB/s", bytes as f64 / seconds / 1e9),
            false => format!("{:.1} us", seconds * 1e6),
        };
        let (here, host, sockets) = (reduce(0), reduce(1), reduce(2));
        println!(
            "{bytes:>12} {:>14} {:>14} {:>14} {:>14}",
            shown(copy),
            shown(here),
            shown(host),
            shown(sockets)
        );
    }
}
