//! Programs over several workers that come again: they go as they went, and what is wrong with them is still found.

#[path = "../../gt-worker/tests/common/mod.rs"]
mod common;
mod rig;

use common::{full, mul_add};
use gt_dispatcher::Event;
use gt_ir::{Program, TensorId};
use gt_net::msg::{Share, WorkerId};
use rig::{Rig, WORKERS, errors, rig, rig_of, shares, update};
use std::sync::Arc;

#[test]
fn a_program_that_comes_again_goes_as_it_went() {
    let mut rig = rig();
    rig.run(full(9, 1, 1));
    rig.run(full(9, 1, 2));
    // Each uses up what the one before made.
    let sent: Vec<_> =
        (3..8).map(|out| shares(&rig.run(mul_add(9, out - 1, 1, 2, [true, false], out)))).collect();
    for (shares, out) in sent.iter().zip(3..) {
        assert_eq!(shares.len(), WORKERS as usize);
        let (_, first) = &shares[0];
        assert_eq!(first.ids.inputs, [TensorId(out - 1), TensorId(1)]);
        assert_eq!((&first.ids.outs, &first.ids.frees), (&vec![TensorId(out)], &vec![TensorId(out - 1)]));
        for ((_, share), (_, before)) in shares.iter().zip(&sent[0]) {
            assert!(Arc::ptr_eq(&share.ids, &first.ids), "there once for all workers");
            assert!(Arc::ptr_eq(&share.structure, &before.structure), "divided once");
        }
    }
}

#[test]
fn what_is_wrong_with_a_program_that_comes_again_is_found() {
    let mut rig = rig();
    for out in 1..3 {
        rig.run(full(9, 1, out));
    }
    for out in 3..6 {
        assert_eq!(shares(&rig.run(mul_add(9, 1, 2, 2, [false, false], out))).len(), WORKERS as usize);
    }
    let wrong = [
        (mul_add(9, 1, 77, 2, [false, false], 10), "does not exist"),
        (mul_add(9, 1, 1, 2, [false, false], 11), "is an input twice"),
        (mul_add(9, 1, 2, 2, [false, false], 5), "is written twice"),
    ];
    for (program, why) in wrong {
        let told = rig.run(program);
        assert!(shares(&told).is_empty());
        assert!(errors(&told).iter().any(|error| error.contains(why)), "{why}: {told:?}");
    }
    // Another type under the same number of the same structure, and then the right ones again.
    rig.run(full(12, 1, 20));
    let told = rig.run(mul_add(9, 20, 2, 2, [false, false], 21));
    assert!(errors(&told).iter().any(|error| error.contains("not")), "{told:?}");
    assert_eq!(shares(&rig.run(mul_add(9, 1, 2, 2, [false, false], 22))).len(), WORKERS as usize);
}

#[test]
fn another_worker_ends_the_old_course() {
    let mut rig = rig();
    rig.run(full(12, 1, 1));
    rig.run(full(12, 1, 2));
    for out in 3..6 {
        rig.run(mul_add(12, 1, 2, 2, [false, false], out));
    }
    rig.add_worker(WORKERS);
    rig.run(full(12, 1, 10));
    rig.run(full(12, 1, 11));
    let sent = shares(&rig.run(mul_add(12, 10, 11, 2, [false, false], 12)));
    assert_eq!(sent.len(), WORKERS as usize + 1);
    rig.step(Event::WorkerGone { worker: WorkerId(1), reason: "gone".into() });
    rig.run(full(12, 1, 20));
    rig.run(full(12, 1, 21));
    let sent = shares(&rig.run(mul_add(12, 20, 21, 2, [false, false], 22)));
    let workers: Vec<u32> = sent.iter().map(|(worker, _)| worker.0).collect();
    assert_eq!(workers, [0, 2, 3]);
}

/// A product of tensor `left`, which it uses up, with tensor 1, which it leaves as it is.
fn product(left: u64, out: u64) -> Program {
    let text = "in TENSOR[0] f32[30, 30] dies
                in TENSOR[1] f32[30, 30]
                TENSOR[2] := MATMUL{ta=false,tb=false} TENSOR[0] TENSOR[1]
                out TENSOR[2]";
    let structure = Arc::new(gt_ir::text::parse_structure(text).unwrap());
    let (key, inputs) = (structure.key(), vec![TensorId(left), TensorId(1)]);
    Program { key, structure, inputs, outs: vec![TensorId(out)], slots: Vec::new(), frees: Vec::new() }
}

/// Sends that product; gives the collectives it takes, and the programs that were added.
fn meetings(rig: &mut Rig, i: u64) -> (usize, Vec<(WorkerId, Share)>) {
    rig.run(square(10 + i));
    let sent = shares(&rig.run(product(10 + i, 100 + i)));
    let (mine, added): (Vec<_>, Vec<_>) = sent.into_iter().partition(|(_, share)| share.seq == rig.seq);
    let collective = |i: &&gt_ir::Instr| matches!(i.op, gt_ir::Op::Collective(_));
    let meets = |(_, share): &(WorkerId, Share)| share.structure.instrs.iter().filter(collective).count();
    (mine.iter().map(meets).max().expect("it was sent"), added)
}

/// Ones.
fn square(out: u64) -> Program {
    let text = "TENSOR[0] := FULL{shape=[30, 30],dtype=f32} 1.0\nout TENSOR[0]";
    let structure = Arc::new(gt_ir::text::parse_structure(text).unwrap());
    let (key, outs) = (structure.key(), vec![TensorId(out)]);
    Program { key, structure, inputs: Vec::new(), outs, slots: Vec::new(), frees: Vec::new() }
}

#[test]
fn what_is_put_together_twice_stays_so_where_there_is_room() {
    for (memory, stays) in [(1 << 30, true), (8 << 10, false)] {
        let mut rig = rig_of(memory);
        rig.run(square(1));
        let meet: Vec<usize> = (0..5).map(|i| meetings(&mut rig, i).0).collect();
        assert!(meet[0] > 0, "one side is put together: {meet:?}");
        assert!(meet[1..].iter().all(|n| (*n == 0) == stays), "from the second time on: {meet:?}");
    }
}

#[test]
fn what_cannot_be_put_together_stays_in_pieces() {
    let mut rig = rig();
    rig.run(square(1));
    assert!(meetings(&mut rig, 0).0 > 0);
    let (left, added) = meetings(&mut rig, 1);
    assert_eq!((left, added.len()), (0, WORKERS as usize));
    for (worker, share) in added {
        let error = gt_ir::Error::Runtime("out of memory".into());
        let failure = gt_net::msg::Failure { root: share.seq, instr: None, error };
        let told = update(vec![share.seq], Vec::new(), vec![(share.seq, failure)]);
        rig.step(Event::Worker(worker, told));
    }
    for i in 2..5 {
        let (meet, added) = meetings(&mut rig, i);
        assert!(meet > 0 && added.is_empty(), "as it was, and not tried again: {meet}, {added:?}");
    }
}
