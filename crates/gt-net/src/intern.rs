//! Structures that cross a byte link once: both ends keep the same bounded cache, and a structure the other
//! end knows travels as its key (C4). A repeated step sends ids and slots only.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use gt_ir::{Error, Program, Result, Slot, Structure, TensorId, bail};
use serde::{Deserialize, Serialize};

use crate::msg::{Batch, ClientMsg, Fetch, Gang, Run, SessionId, WorkerCmd};

/// Structures kept at most.
const MAX_STRUCTURES: usize = 512;
/// Bytes of all structures kept at most, as they are on the wire.
const MAX_KEPT_BYTES: usize = 16 << 20;

/// One end's cache for one direction of a link. Sender and receiver make the same changes to theirs in the
/// same order, so every encoded message must be sent, in order, and a decoding error ends the link.
#[derive(Default)]
pub struct Interner {
    known: HashMap<u64, Known>,
    bytes: usize,
    clock: u64,
}

struct Known {
    structure: Arc<Structure>,
    bytes: usize,
    used: u64,
}

impl Interner {
    /// An empty cache.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many structures are kept.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// True when nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// True if the other end knows this very structure under this key.
    fn knows(&mut self, key: u64, structure: &Arc<Structure>) -> bool {
        self.clock += 1;
        match self.known.get_mut(&key) {
            Some(k) if Arc::ptr_eq(&k.structure, structure) || k.structure == *structure => {
                k.used = self.clock;
                // The next comparison with the same object is by pointer.
                k.structure = structure.clone();
                true
            }
            _ => false,
        }
    }

    fn find(&mut self, key: u64) -> Option<Arc<Structure>> {
        self.clock += 1;
        let clock = self.clock;
        self.known.get_mut(&key).map(|k| {
            k.used = clock;
            k.structure.clone()
        })
    }

    fn keep(&mut self, key: u64, structure: Arc<Structure>, bytes: usize) {
        self.bytes += bytes;
        if let Some(old) = self.known.insert(key, Known { structure, bytes, used: self.clock }) {
            self.bytes -= old.bytes;
        }
        while self.known.len() > MAX_STRUCTURES || self.bytes > MAX_KEPT_BYTES {
            let Some(oldest) = self.known.iter().min_by_key(|(_, k)| k.used).map(|(&key, _)| key) else {
                break;
            };
            if let Some(old) = self.known.remove(&oldest) {
                self.bytes -= old.bytes;
            }
        }
    }
}

/// A structure on the wire.
#[derive(Serialize, Deserialize)]
enum Named<B> {
    /// One that both ends keep under this key.
    Known(u64),
    /// One to be kept from now on, as bytes: their number is its weight at both ends.
    New(B),
}

/// A `Run` on the wire; `B` is bytes, `I` ids and `L` slots, borrowed or owned.
#[derive(Serialize, Deserialize)]
struct WireRun<B, I, L> {
    seq: u64,
    structure: Named<B>,
    inputs: I,
    outs: I,
    slots: L,
    frees: I,
    prefix: Option<u64>,
}

type RunRef<'a> = WireRun<Vec<u8>, &'a [TensorId], &'a [Slot]>;
type RunBuf<'a> = WireRun<&'a [u8], Vec<TensorId>, Vec<Slot>>;

/// A message on the wire: batches are interned, all else goes as it is.
#[derive(Serialize, Deserialize)]
enum Wire<R, F, I, M, B> {
    Batch {
        session: Option<SessionId>,
        runs: Vec<R>,
        fetches: F,
        frees: I,
    },
    Gang {
        session: SessionId,
        gang: Gang,
        run: R,
    },
    Plain(M),
    /// A structure to be kept, ahead of the message that names it: the same bytes for every worker of a gang.
    Structure(B),
}

type WireRef<'a, M> = Wire<RunRef<'a>, &'a [Fetch], &'a [TensorId], &'a M, &'a [u8]>;
type WireBuf<'a, M> = Wire<RunBuf<'a>, Vec<Fetch>, Vec<TensorId>, M, &'a [u8]>;

impl Interner {
    fn encode_run<'a>(&mut self, run: &'a Run) -> RunRef<'a> {
        let p = &run.program;
        let structure = if self.knows(p.key, &p.structure) {
            Named::Known(p.key)
        } else {
            let bytes = to_bytes(&*p.structure);
            self.keep(p.key, p.structure.clone(), bytes.len());
            Named::New(bytes)
        };
        let (inputs, outs, slots, frees) = (&p.inputs[..], &p.outs[..], &p.slots[..], &p.frees[..]);
        WireRun { seq: run.seq, structure, inputs, outs, slots, frees, prefix: run.prefix }
    }

    fn decode_run(&mut self, run: RunBuf<'_>) -> Result<Run> {
        let (key, structure) = match run.structure {
            Named::Known(key) => match self.find(key) {
                Some(structure) => (key, structure),
                None => bail!(Connection, "message: structure {key:016x} was never sent"),
            },
            Named::New(bytes) => self.learn(bytes)?,
        };
        let WireRun { seq, inputs, outs, slots, frees, prefix, .. } = run;
        Ok(Run { seq, program: Program { structure, key, inputs, outs, slots, frees }, prefix })
    }

    /// Keeps a structure that has come.
    fn learn(&mut self, bytes: &[u8]) -> Result<(u64, Arc<Structure>)> {
        self.clock += 1;
        let structure = Arc::new(from_bytes::<Structure>(bytes)?);
        let key = structure.key();
        self.keep(key, structure.clone(), bytes.len());
        Ok((key, structure))
    }

    fn encode_batch<'a, M>(&mut self, session: Option<SessionId>, batch: &'a Batch) -> WireRef<'a, M> {
        let runs = batch.runs.iter().map(|run| self.encode_run(run)).collect();
        Wire::Batch { session, runs, fetches: &batch.fetches, frees: &batch.frees }
    }

    fn decode_batch(
        &mut self,
        runs: Vec<RunBuf<'_>>,
        fetches: Vec<Fetch>,
        frees: Vec<TensorId>,
    ) -> Result<Batch> {
        let runs = runs.into_iter().map(|run| self.decode_run(run)).collect::<Result<_>>()?;
        Ok(Batch { runs, fetches, frees })
    }
}

fn to_bytes(message: &impl Serialize) -> Vec<u8> {
    // Writing plain data to memory has no way to fail.
    postcard::to_stdvec(message).unwrap_or_default()
}

fn from_bytes<'a, M: Deserialize<'a>>(bytes: &'a [u8]) -> Result<M> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => bail!(Connection, "message: {} bytes too many", rest.len()),
        Err(e) => Err(Error::Connection(format!("message: cannot be read: {e}"))),
    }
}

/// A client's message as bytes. `structure.key()` must be right in every program.
pub fn encode_client(message: &ClientMsg, interner: &mut Interner) -> Vec<u8> {
    to_bytes(&match message {
        ClientMsg::Batch(batch) => interner.encode_batch::<ClientMsg>(None, batch),
        other => Wire::Plain(other),
    })
}

/// Reads a client's message; keys are computed anew.
pub fn decode_client(bytes: &[u8], interner: &mut Interner) -> Result<ClientMsg> {
    match from_bytes::<WireBuf<'_, ClientMsg>>(bytes)? {
        Wire::Batch { runs, fetches, frees, session: None } => {
            Ok(ClientMsg::Batch(interner.decode_batch(runs, fetches, frees)?))
        }
        Wire::Batch { .. } | Wire::Gang { .. } | Wire::Plain(ClientMsg::Batch(_)) | Wire::Structure(_) => {
            bail!(Connection, "message: a batch in disguise")
        }
        Wire::Plain(message) => Ok(message),
    }
}

/// A structure as it goes to workers.
pub struct Written {
    structure: Arc<Structure>,
    /// How many bytes it has, as both ends count them.
    weight: usize,
    /// The message that carries it.
    message: Bytes,
}

impl Written {
    /// Takes a while for a large structure, on whatever thread has the time.
    pub fn new(structure: &Arc<Structure>) -> Written {
        let bytes = to_bytes(&**structure);
        let weight = bytes.len();
        let message = to_bytes(&WireRef::<WorkerCmd>::Structure(&bytes)).into();
        Written { structure: structure.clone(), weight, message }
    }
}

/// Structures as they go to workers, so that one which many get is written once.
#[derive(Default)]
pub struct Shelf {
    /// The last used comes last.
    written: Vec<Written>,
}

/// Structures on a shelf: a gang has one for every shape that its pieces have.
const MAX_SHELF: usize = 64;
/// Structures of fewer instructions go with the message that names them first.
const AHEAD: usize = 64;

impl Shelf {
    /// Puts what was written on the shelf.
    pub fn add(&mut self, written: Written) {
        if self.written.len() == MAX_SHELF {
            self.written.remove(0);
        }
        self.written.push(written);
    }

    /// The message that carries a structure, and the structure's weight.
    fn message(&mut self, structure: &Arc<Structure>) -> (usize, Bytes) {
        match self.written.iter().position(|known| Arc::ptr_eq(&known.structure, structure)) {
            Some(at) => self.written[at..].rotate_left(1),
            None => self.add(Written::new(structure)),
        }
        self.written.last().map_or((0, Bytes::new()), |last| (last.weight, last.message.clone()))
    }
}

/// The structure that a gang's command brings, if it is large and the worker does not know it: a message that goes ahead
/// of the command.
pub fn encode_ahead(command: &WorkerCmd, interner: &mut Interner, shelf: &mut Shelf) -> Option<Bytes> {
    let WorkerCmd::Gang { run, .. } = command else { return None };
    let Program { structure, key, .. } = &run.program;
    if structure.instrs.len() < AHEAD || interner.knows(*key, structure) {
        return None;
    }
    let (weight, message) = shelf.message(structure);
    interner.keep(*key, structure.clone(), weight);
    Some(message)
}

/// A command to a worker as bytes.
pub fn encode_worker(command: &WorkerCmd, interner: &mut Interner) -> Vec<u8> {
    to_bytes(&match command {
        WorkerCmd::Batch { session, batch } => interner.encode_batch::<WorkerCmd>(Some(*session), batch),
        WorkerCmd::Gang { session, gang, run } => {
            Wire::Gang { session: *session, gang: *gang, run: interner.encode_run(run) }
        }
        other => Wire::Plain(other),
    })
}

/// Reads a command to a worker; keys are computed anew. There is none in what goes ahead of one.
pub fn decode_worker(bytes: &[u8], interner: &mut Interner) -> Result<Option<WorkerCmd>> {
    match from_bytes::<WireBuf<'_, WorkerCmd>>(bytes)? {
        Wire::Batch { runs, fetches, frees, session: Some(session) } => {
            Ok(Some(WorkerCmd::Batch { session, batch: interner.decode_batch(runs, fetches, frees)? }))
        }
        Wire::Gang { session, gang, run } => {
            Ok(Some(WorkerCmd::Gang { session, gang, run: interner.decode_run(run)? }))
        }
        Wire::Structure(bytes) => interner.learn(bytes).map(|_| None),
        Wire::Batch { .. } | Wire::Plain(WorkerCmd::Batch { .. } | WorkerCmd::Gang { .. }) => {
            bail!(Connection, "message: a batch in disguise")
        }
        Wire::Plain(command) => Ok(Some(command)),
    }
}

/// Any other message as bytes (`SessionMsg`, `WorkerMsg`, handshake bodies).
pub fn encode(message: &impl Serialize) -> Vec<u8> {
    to_bytes(message)
}

/// Reads what `encode` wrote.
pub fn decode<'a, M: Deserialize<'a>>(bytes: &'a [u8]) -> Result<M> {
    from_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gt_ir::{Arg, Binary, DType, Input, Instr, Op, Scalar, Ty};
    use proptest::prelude::*;

    fn program(instrs: usize, scalar: i64) -> Program {
        let ty = Ty::new(DType::F32, [2, 3]);
        let add = |i: usize| Instr {
            op: Op::Binary(Binary::Add),
            args: [Arg::Value(i as u32), Arg::Const(Scalar::Int(scalar))].into_iter().collect(),
        };
        let structure = Structure {
            inputs: vec![Input { ty, dies: false }],
            instrs: (0..instrs).map(add).collect(),
            outs: vec![instrs as u32],
            slots: 0,
            ..Default::default()
        };
        let (key, structure) = (structure.key(), Arc::new(structure));
        let frees = vec![TensorId(9)];
        Program { structure, key, inputs: vec![TensorId(1)], outs: vec![TensorId(2)], slots: vec![], frees }
    }

    fn batch(programs: Vec<Program>) -> Batch {
        let runs =
            programs.into_iter().zip(1..).map(|(program, seq)| Run { seq, program, prefix: None }).collect();
        Batch { runs, fetches: vec![Fetch { req: 7, tensor: TensorId(2) }], frees: vec![TensorId(3)] }
    }

    #[test]
    fn a_repeated_structure_is_sent_once() {
        let (mut a, mut b) = (Interner::new(), Interner::new());
        let mut sizes = Vec::new();
        for _ in 0..3 {
            let message = ClientMsg::Batch(batch(vec![program(500, 1)]));
            let bytes = encode_client(&message, &mut a);
            sizes.push(bytes.len());
            assert_eq!(decode_client(&bytes, &mut b).unwrap(), message);
        }
        assert!(sizes[0] > 2000 && sizes[1] < 40 && sizes[2] == sizes[1], "{sizes:?}");
    }

    #[test]
    fn both_ends_forget_alike() {
        let (mut a, mut b) = (Interner::new(), Interner::new());
        let session = SessionId(4);
        for i in 0..3000i64 {
            let programs = vec![program(2, i % 700), program(3, i % 31), program(2000, i)];
            let command = WorkerCmd::Batch { session, batch: batch(programs) };
            let bytes = encode_worker(&command, &mut a);
            assert_eq!(decode_worker(&bytes, &mut b).unwrap(), Some(command));
        }
        assert_eq!(a.len(), b.len());
        assert!(a.len() <= MAX_STRUCTURES && a.bytes <= MAX_KEPT_BYTES && a.bytes == b.bytes);
    }

    #[test]
    fn what_a_gang_runs_is_written_once_for_all_its_workers() {
        let gang = |number| WorkerCmd::Gang {
            session: SessionId(4),
            gang: Gang { mesh: 1, number },
            run: Run { seq: number, program: program(500, 1), prefix: None },
        };
        let (first, again) = (gang(1), gang(2));
        let mut shelf = Shelf::default();
        let mut carried = Vec::new();
        for _worker in 0..3 {
            let (mut a, mut b) = (Interner::new(), Interner::new());
            let ahead = encode_ahead(&first, &mut a, &mut shelf).expect("the worker does not know it");
            assert_eq!(decode_worker(&ahead, &mut b).unwrap(), None);
            let bytes = encode_worker(&first, &mut a);
            assert!(bytes.len() < 64, "{} bytes beside the structure", bytes.len());
            assert_eq!(decode_worker(&bytes, &mut b).unwrap().as_ref(), Some(&first));
            assert_eq!(encode_ahead(&again, &mut a, &mut shelf), None);
            assert_eq!(decode_worker(&encode_worker(&again, &mut a), &mut b).unwrap().as_ref(), Some(&again));
            carried.push(ahead.as_ptr());
        }
        assert!(carried.iter().all(|at| *at == carried[0]), "the same bytes serve all");
    }

    #[test]
    fn a_structure_larger_than_the_cache_still_passes() {
        let (mut a, mut b) = (Interner::new(), Interner::new());
        let message = ClientMsg::Batch(batch(vec![program(MAX_KEPT_BYTES / 6, 1), program(2, 2)]));
        for _ in 0..2 {
            let bytes = encode_client(&message, &mut a);
            assert_eq!(decode_client(&bytes, &mut b).unwrap(), message);
        }
        assert_eq!((a.len(), b.len()), (1, 1));
    }

    #[test]
    fn equal_keys_of_unequal_structures_are_told_apart() {
        let (first, mut second) = (program(2, 1), program(2, 2));
        let right = second.key;
        second.key = first.key;
        let bytes =
            encode_client(&ClientMsg::Batch(batch(vec![first, second.clone()])), &mut Interner::new());
        let read = decode_client(&bytes, &mut Interner::new()).unwrap();
        let ClientMsg::Batch(read) = read else { panic!("no batch") };
        assert_eq!(read.runs[1].program.structure, second.structure);
        assert_eq!(read.runs[1].program.key, right);
    }

    proptest! {
        #[test]
        fn garbage_is_refused_without_panic(
            junk in prop::collection::vec(any::<u8>(), 0..200),
            at in any::<prop::sample::Index>(),
            keep in any::<prop::sample::Index>(),
        ) {
            let whole = encode_client(&ClientMsg::Batch(batch(vec![program(4, 1), program(5, 1)])), &mut Interner::new());
            let mut damaged = whole[..keep.index(whole.len())].to_vec();
            let place = at.index(damaged.len() + 1);
            damaged.splice(place..place, junk.iter().copied());
            for bytes in [&damaged, &junk] {
                let mut interner = Interner::new();
                if let Ok(ClientMsg::Batch(b)) = decode_client(bytes, &mut interner) {
                    for run in b.runs {
                        prop_assert_eq!(run.program.key, run.program.structure.key());
                    }
                }
                let _ = decode_worker(bytes, &mut Interner::new());
                let _ = decode::<crate::msg::SessionMsg>(bytes);
                let _ = decode::<crate::msg::WorkerMsg>(bytes);
                prop_assert!(interner.bytes <= bytes.len());
            }
        }
    }
}
