//! Programs over several workers that fail: what does not depend on a mistake is computed again, and who asks for it
//! meanwhile gets the value.

mod rig;

use gt_dispatcher::{Action, Event};
use gt_ir::{Error, Program, TensorId};
use gt_net::msg::{Batch, ClientMsg, Failure, Fetch, Payload, SessionMsg, Share, Value, WorkerCmd, WorkerId};
use rig::{Rig, S, WORKERS, rig, shares, update};
use std::sync::Arc;

fn program(text: &str, inputs: &[u64], outs: &[u64]) -> Program {
    let structure = Arc::new(gt_ir::text::parse_structure(text).unwrap());
    let ids = |of: &[u64]| of.iter().map(|id| TensorId(*id)).collect();
    let (key, inputs, outs) = (structure.key(), ids(inputs), ids(outs));
    Program { key, structure, inputs, outs, slots: Vec::new(), frees: Vec::new() }
}

const MADE: &str = "TENSOR[0] := FULL{shape=[9],dtype=f32} 1.0\nout TENSOR[0]";
const THREE: &str = "in TENSOR[0] f32[9]
    TENSOR[1] := EXP TENSOR[0]
    TENSOR[2] := TANH TENSOR[0]
    TENSOR[3] := RELU TENSOR[0]
    out TENSOR[1]
    out TENSOR[2]
    out TENSOR[3]";
const NEXT: &str = "in TENSOR[0] f32[9] dies
    TENSOR[1] := NEG TENSOR[0]
    out TENSOR[1]";

/// The answers and failures that the client is told.
fn told(actions: &[Action]) -> (Vec<Value>, Vec<(u64, Failure)>) {
    let mut all = (Vec::new(), Vec::new());
    for action in actions {
        if let Action::ToClient(_, SessionMsg::Update { values, failures, .. }) = action {
            all.0.extend(values.iter().cloned());
            all.1.extend(failures.iter().cloned());
        }
    }
    all
}

/// The workers that are asked for a piece.
fn asked(actions: &[Action], req: u64) -> Vec<WorkerId> {
    let of = |a: &Action| match a {
        Action::ToWorker(worker, WorkerCmd::Batch { batch, .. }) => {
            batch.fetches.iter().any(|f| f.req == req).then_some(*worker)
        }
        _ => None,
    };
    actions.iter().filter_map(of).collect()
}

fn look(rig: &mut Rig, req: u64, id: u64) -> Vec<WorkerId> {
    let fetches = vec![Fetch { req, tensor: TensorId(id) }];
    let actions = rig.step(Event::Client(S, ClientMsg::Batch(Batch { fetches, ..Batch::default() })));
    asked(&actions, req)
}

/// The mistake of an op in a share of a program.
fn mistake(share: &Share, op: &str) -> Failure {
    let at = share.structure.instrs.iter().position(|i| i.op.text() == op).expect("it is there");
    let error = Error::Index(format!("{op} is wrong"));
    Failure { root: share.seq, instr: Some(at as u32), error }
}

/// All workers fail at an op; what follows from the last word.
fn fail(rig: &mut Rig, sent: &[(WorkerId, Share)], op: &str) -> Vec<Action> {
    let mut last = Vec::new();
    for (worker, share) in sent {
        let failure = mistake(share, op);
        last = rig.step(Event::Worker(*worker, update(vec![share.seq], vec![], vec![(share.seq, failure)])));
    }
    last
}

fn nothing(req: u64, failure: &Failure) -> Value {
    Value { req, result: Err(failure.clone()) }
}

/// A machine on which tensor 1 lies on all workers, and a program of three results sent.
fn three() -> (Rig, Vec<(WorkerId, Share)>) {
    let mut rig = rig();
    rig.run(program(MADE, &[], &[1]));
    let sent = shares(&rig.send(program(THREE, &[1], &[10, 11, 12])));
    assert_eq!(sent.len(), WORKERS as usize);
    (rig, sent)
}

#[test]
fn an_answer_waits_for_all_that_is_computed_again() {
    let (mut rig, sent) = three();
    let seq = rig.seq;
    let workers = look(&mut rig, 5, 12);
    assert_eq!(workers.len(), WORKERS as usize);
    // One worker has failed and says that there is no value; the others fail, too, and say so later.
    let first = mistake(&sent[0].1, "EXP");
    let word = update(vec![seq], vec![nothing(5, &first)], vec![(seq, first.clone())]);
    assert_eq!(told(&rig.step(Event::Worker(sent[0].0, word))), (vec![], vec![]));
    let actions = fail(&mut rig, &sent[1..], "EXP");
    let (values, failures) = told(&actions);
    assert!(values.is_empty() && failures.len() == 1, "{values:?} {failures:?}");
    assert_eq!((failures[0].0, failures[0].1.instr), (seq, Some(0)));
    let again = shares(&actions);
    assert_eq!(again.len(), WORKERS as usize, "what is left is computed again");
    for (worker, _) in &sent[1..] {
        let word = update(vec![], vec![nothing(5, &first)], vec![]);
        assert_eq!(told(&rig.step(Event::Worker(*worker, word))).0, []);
    }
    // That has a mistake of its own, of which the other result is told in the client's terms.
    let actions = fail(&mut rig, &again, "TANH");
    let (last, second) = (shares(&actions), mistake(&again[0].1, "TANH"));
    assert_eq!(last.len(), WORKERS as usize);
    assert!(told(&actions).0.is_empty(), "nothing is certain yet");
    let wrong = look(&mut rig, 6, 11);
    assert!(wrong.is_empty());
    let mut answers = Vec::new();
    for (worker, share) in &last {
        answers = rig.step(Event::Worker(*worker, update(vec![share.seq], vec![], vec![])));
    }
    assert_eq!(asked(&answers, 5).len(), WORKERS as usize, "the value is asked for again");
    for worker in workers {
        let piece = Payload::Inline(Arc::new(vec![0; 12]));
        answers = rig
            .step(Event::Worker(worker, update(vec![], vec![Value { req: 5, result: Ok(piece) }], vec![])));
    }
    assert!(
        matches!(&told(&answers).0[..], [Value { req: 5, result: Ok(Payload::Pieces(_)) }]),
        "{answers:?}"
    );
    // An answer that a worker gave before the second mistake was known names the client's instruction, too.
    let fetches = vec![Fetch { req: 7, tensor: TensorId(11) }];
    let actions = rig.step(Event::Client(S, ClientMsg::Batch(Batch { fetches, ..Batch::default() })));
    let why = told(&actions).0.remove(0).result.unwrap_err();
    assert_eq!((why.root, why.instr, why.error), (seq, Some(1), second.error));
}

#[test]
fn what_came_too_early_goes_again() {
    let (mut rig, sent) = three();
    // It reads a result that has nothing to do with the mistake, and goes before that is known.
    let behind = shares(&rig.send(program(NEXT, &[12], &[20])));
    let seq = rig.seq;
    let again = shares(&fail(&mut rig, &sent, "EXP"));
    let failure = mistake(&sent[0].1, "EXP");
    let mut actions = Vec::new();
    for (worker, share) in &behind {
        let word = update(vec![share.seq], vec![], vec![(seq, failure.clone())]);
        actions = rig.step(Event::Worker(*worker, word));
    }
    let (values, failures) = told(&actions);
    assert!(values.is_empty() && failures.is_empty(), "{failures:?}");
    let anew = shares(&actions);
    assert!(anew.len() == WORKERS as usize && anew.iter().all(|(_, share)| share.seq == seq), "{anew:?}");
    for (worker, share) in again.iter().chain(&anew) {
        rig.step(Event::Worker(*worker, update(vec![share.seq], vec![], vec![])));
    }
    assert_eq!(look(&mut rig, 5, 20).len(), WORKERS as usize);
    // What really depends on the mistake is lost with it.
    let behind = shares(&rig.send(program(NEXT, &[11], &[21])));
    assert_eq!(behind.len(), WORKERS as usize);
    let lost = told(&rig.send(program(NEXT, &[10], &[22])));
    assert_eq!(lost.1.iter().map(|(seq, f)| (*seq, f.root)).collect::<Vec<_>>(), [(rig.seq, failure.root)]);
}
