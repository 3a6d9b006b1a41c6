//! Collectives between threads: what each rank gets is what the collective means, and failures reach all.

#[path = "common/exchanges.rs"]
mod exchanges;

use exchanges::cases;
use gt_ir::collective::eval_parts;
use gt_ir::host::close_by_dtype;
use gt_ir::sample::Rng;
use gt_ir::{DType, Error, Exchange, HostTensor, ReduceKind};
use gt_worker::backend::PlanError;
use gt_worker::gang::Group;
use gt_worker::gang::collect::{self, Item};
use gt_worker::gang::meeting::Seat;
use std::sync::atomic::{AtomicU64, Ordering};

fn number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// One rank's part of a collective.
fn run_rank(seat: &Seat, what: &Exchange, xs: &[HostTensor]) -> Result<Vec<HostTensor>, PlanError> {
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
