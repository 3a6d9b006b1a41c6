//! The moves of all ranks, carried out in host memory: together they are the collective.

#[path = "../../../tests/common/exchanges.rs"]
mod exchanges;

use super::*;
use exchanges::cases;
use gt_ir::collective::eval_parts;
use gt_ir::host::close_by_dtype;
use gt_ir::sample::Rng;
use gt_ir::{HostTensor, Ty};

/// One rank's memory.
struct Rank {
    xs: Vec<HostTensor>,
    outs: Vec<HostTensor>,
    scratch: Vec<u8>,
    acts: std::vec::IntoIter<Act>,
}

impl Rank {
    fn bytes(&self, at: At, len: usize) -> Vec<u8> {
        let (from, at) = match at {
            At::X(k, at) => (&self.xs[k].data, at),
            At::Out(k, at) => (&self.outs[k].data, at),
            At::Scratch(at) => (&self.scratch, at),
        };
        from[at..at + len].to_vec()
    }

    fn write(&mut self, at: At, bytes: &[u8]) {
        let (to, at) = match at {
            At::X(..) => panic!("an operand is written"),
            At::Out(k, at) => (&mut self.outs[k].data, at),
            At::Scratch(at) => (&mut self.scratch, at),
        };
        to[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Carries on to the next calls, or to the end.
    fn alone(&mut self) -> Option<Vec<Call<At>>> {
        while let Some(act) = self.acts.next() {
            match act {
                Act::Calls(calls) => return Some(calls),
                Act::Copy { from, to, bytes, rows, from_step, to_step } => {
                    for row in 0..rows {
                        let run = self.bytes(from.plus(row * from_step), bytes);
                        self.write(to.plus(row * to_step), &run);
                    }
                }
                Act::Join { from, to, runs, count, kind, dtype } => {
                    let ty = Ty::new(dtype, [count]);
                    let run = |r: usize| self.bytes(from.plus(r * ty.bytes()), ty.bytes());
                    let parts: Vec<Vec<HostTensor>> =
                        (0..runs).map(|r| vec![HostTensor { ty: ty.clone(), data: run(r) }]).collect();
                    let all = eval_parts(&Exchange::AllReduce { kind }, &parts).unwrap();
                    self.write(to, &all[0][0].data);
                }
            }
        }
        None
    }
}

/// The bytes that rank `me` writes for its calls, given all ranks' memory.
fn called(ranks: &[Rank], all: &[Vec<Call<At>>], me: usize) -> Vec<(At, Vec<u8>)> {
    let n = ranks.len();
    let mut received = vec![0; n];
    let mut writes = Vec::new();
    for (at, call) in all[me].iter().enumerate() {
        match *call {
            Call::AllReduce { to, count, kind, dtype, .. }
            | Call::ReduceScatter { to, count, kind, dtype, .. } => {
                assert!(native(kind, dtype).is_some());
                let scatters = matches!(call, Call::ReduceScatter { .. });
                let ty = Ty::new(dtype, [if scatters { n * count } else { count }]);
                let part = |r: usize| match all[r][at] {
                    Call::AllReduce { from, .. } | Call::ReduceScatter { from, .. } => {
                        vec![HostTensor { ty: ty.clone(), data: ranks[r].bytes(from, ty.bytes()) }]
                    }
                    ref other => panic!("{other:?}"),
                };
                let parts: Vec<_> = (0..n).map(part).collect();
                let joined = &eval_parts(&Exchange::AllReduce { kind }, &parts).unwrap()[0][0].data;
                let first = if scatters { me * count * dtype.size() } else { 0 };
                writes.push((to, joined[first..first + count * dtype.size()].to_vec()));
            }
            Call::AllGather { to, bytes, .. } => {
                for (r, rank) in ranks.iter().enumerate() {
                    let Call::AllGather { from, bytes: theirs, .. } = all[r][at] else { panic!() };
                    assert_eq!(bytes, theirs);
                    writes.push((to.plus(r * bytes), rank.bytes(from, bytes)));
                }
            }
            Call::Broadcast { to, bytes, root, .. } => {
                let Call::Broadcast { from, .. } = all[root][at] else { panic!() };
                writes.push((to, ranks[root].bytes(from, bytes)));
            }
            Call::Send { .. } => {}
            Call::Recv { to, bytes, from } => {
                let sent = all[from].iter().filter_map(|call| match *call {
                    Call::Send { from, bytes, to } if to == me => Some((from, bytes)),
                    _ => None,
                });
                let (at, sent) = sent.clone().nth(received[from]).expect("nothing was sent");
                received[from] += 1;
                assert_eq!(sent, bytes, "sizes of sender and receiver");
                writes.push((to, ranks[from].bytes(at, bytes)));
            }
        }
    }
    writes
}

/// Carries out a collective on all ranks.
fn carry_out(whats: &[Exchange], parts: &[Vec<HostTensor>]) -> Vec<Vec<HostTensor>> {
    let n = parts.len();
    let rank = |(rank, (what, xs)): (usize, (&Exchange, &Vec<HostTensor>))| {
        let types: Vec<Ty> = xs.iter().map(|x| x.ty.clone()).collect();
        let made = moves(what, &types, rank, n);
        assert!(made.scratch <= most_scratch(what, &types) + (types.len() + 2) * 4 * GRAIN * n.max(16));
        let outs = types.iter().enumerate().map(|(i, ty)| HostTensor::zeros(&what.result(i, ty).unwrap()));
        Rank {
            xs: xs.clone(),
            outs: outs.collect(),
            scratch: vec![0xab; made.scratch],
            acts: made.acts.into_iter(),
        }
    };
    let mut ranks: Vec<Rank> = whats.iter().zip(parts).enumerate().map(rank).collect();
    loop {
        let calls: Vec<Option<Vec<Call<At>>>> = ranks.iter_mut().map(Rank::alone).collect();
        if calls.iter().all(Option::is_none) {
            return ranks.into_iter().map(|rank| rank.outs).collect();
        }
        // A rank that has nothing to say in a round goes through it all the same.
        let calls: Vec<Vec<Call<At>>> = calls.into_iter().map(Option::unwrap_or_default).collect();
        let writes: Vec<_> = (0..n).map(|me| called(&ranks, &calls, me)).collect();
        for (rank, writes) in ranks.iter_mut().zip(writes) {
            writes.iter().for_each(|(at, bytes)| rank.write(*at, bytes));
        }
    }
}

#[test]
fn the_moves_of_all_ranks_are_the_collective() {
    let mut rng = Rng::new(5);
    for n in [1, 2, 3, 8] {
        // Many ranks take long, and what types differ in shows with few.
        let few = |dtype: &DType| n < 8 || matches!(dtype, DType::F32 | DType::BF16);
        for dtype in DType::ALL.into_iter().filter(few) {
            for (whats, parts) in cases(&mut rng, n, dtype) {
                let expected = eval_parts(&whats[0], &parts).unwrap();
                let got = carry_out(&whats, &parts);
                for (rank, (got, expected)) in got.iter().zip(&expected).enumerate() {
                    for (got, expected) in got.iter().zip(expected) {
                        close_by_dtype(got, expected)
                            .unwrap_or_else(|e| panic!("{:?} rank {rank} of {n} {dtype}: {e}", whats[0]));
                    }
                }
            }
        }
    }
}

#[test]
fn halves_and_sizes_that_do_not_divide_need_no_more_than_their_bytes() {
    let what = Exchange::AllReduce { kind: ReduceKind::Sum };
    let types = [Ty::new(DType::BF16, [13_000, 7]), Ty::new(DType::BF16, [5])];
    let bytes: usize = types.iter().map(Ty::bytes).sum();
    let sent = |act: &Act| match act {
        Act::Calls(calls) => calls
            .iter()
            .map(|call| if let Call::Send { bytes, .. } = call { *bytes } else { 0 })
            .sum::<usize>(),
        _ => 0,
    };
    let made = moves(&what, &types, 3, 8);
    assert!(made.acts.iter().map(sent).sum::<usize>() <= 2 * bytes);
    assert_eq!(made.acts.iter().filter(|act| matches!(act, Act::Join { .. })).count(), 1);
    let plain = moves(&what, &[Ty::new(DType::F32, [13_000, 7])], 3, 8);
    assert!(matches!(&plain.acts[..], [Act::Calls(calls)] if calls.len() == 1));
    assert_eq!(plain.scratch, 0);
}
