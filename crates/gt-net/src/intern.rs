//! Structures that cross a byte link once: both ends keep the same bounded cache, and a structure the other
//! end knows travels as its key (C4). A repeated step sends ids and slots only.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use gt_ir::{Error, Program, Result, Slot, Structure, TensorId, bail};
use serde::{Deserialize, Serialize};

use crate::msg::{Batch, ClientMsg, Fetch, Gang, Ids, Run, SessionId, Share, WorkerCmd};

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
    /// The ids of the last gang's program.
    ids: Arc<Ids>,
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
enum Wire<R, F, I, M, B, V, L> {
    Batch {
        session: Option<SessionId>,
        runs: Vec<R>,
        fetches: F,
        frees: I,
    },
    /// A share of a program whose ids came last.
    Gang {
        session: SessionId,
        gang: Gang,
        seq: u64,
        structure: Named<V>,
        slots: L,
    },
    Plain(M),
    /// A structure to be kept, ahead of the message that names it: the same bytes for every worker of a gang.
    Structure(B),
    /// The ids of the gangs that follow, ahead of them: the same bytes for every worker, too.
    Ids {
        inputs: I,
        outs: I,
        frees: I,
    },
}

type WireRef<'a, M> = Wire<RunRef<'a>, &'a [Fetch], &'a [TensorId], &'a M, &'a [u8], Vec<u8>, &'a [Slot]>;
type WireBuf<'a, M> = Wire<RunBuf<'a>, Vec<Fetch>, Vec<TensorId>, M, &'a [u8], &'a [u8], Vec<Slot>>;

impl Interner {
    /// How a structure is named from now on.
    fn name(&mut self, key: u64, structure: &Arc<Structure>) -> Named<Vec<u8>> {
        if self.knows(key, structure) {
            return Named::Known(key);
        }
        let bytes = to_bytes(&**structure);
        self.keep(key, structure.clone(), bytes.len());
        Named::New(bytes)
    }

    /// The structure of this name, and its key.
    fn named(&mut self, name: Named<&[u8]>) -> Result<(u64, Arc<Structure>)> {
        match name {
            Named::Known(key) => match self.find(key) {
                Some(structure) => Ok((key, structure)),
                None => bail!(Connection, "message: structure {key:016x} was never sent"),
            },
            Named::New(bytes) => self.learn(bytes),
        }
    }

    fn encode_run<'a>(&mut self, run: &'a Run) -> RunRef<'a> {
        let p = &run.program;
        let structure = self.name(p.key, &p.structure);
        let (inputs, outs, slots, frees) = (&p.inputs[..], &p.outs[..], &p.slots[..], &p.frees[..]);
        WireRun { seq: run.seq, structure, inputs, outs, slots, frees, prefix: run.prefix }
    }

    fn decode_run(&mut self, run: RunBuf<'_>) -> Result<Run> {
        let WireRun { seq, structure, inputs, outs, slots, frees, prefix } = run;
        let (key, structure) = self.named(structure)?;
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
        Wire::Batch { .. }
        | Wire::Gang { .. }
        | Wire::Plain(ClientMsg::Batch(_))
        | Wire::Structure(_)
        | Wire::Ids { .. } => bail!(Connection, "message: a batch in disguise"),
        Wire::Plain(message) => Ok(message),
    }
}

/// True if a client's message begins with a program whose structure is new and of many bytes: reading it takes a while.
pub fn brings_much(bytes: &[u8]) -> bool {
    /// The beginning of a `Wire::Batch`: which message it is, its session, the number of runs, and the first run's number
    /// and structure.
    type Start<'a> = (u32, Option<SessionId>, u64, u64, Named<&'a [u8]>);
    let is_much = |(which, _, _, _, structure): Start| match structure {
        Named::New(bytes) => which == 0 && bytes.len() >= MUCH,
        Named::Known(_) => false,
    };
    bytes.len() >= MUCH && postcard::take_from_bytes::<Start>(bytes).is_ok_and(|(start, _)| is_much(start))
}

/// Bytes of a structure that take a while to read.
const MUCH: usize = 16 << 10;

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

/// What goes to many workers, so that it is written once.
#[derive(Default)]
pub struct Shelf {
    /// The last used comes last.
    written: Vec<Written>,
    /// The last ids, and the message that carries them.
    ids: Option<(Arc<Ids>, Bytes)>,
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

    /// The message that carries ids.
    fn ids(&mut self, ids: &Arc<Ids>) -> Bytes {
        if let Some((_, message)) = self.ids.as_ref().filter(|(last, _)| Arc::ptr_eq(last, ids)) {
            return message.clone();
        }
        let Ids { inputs, outs, frees } = &**ids;
        let message: Bytes = to_bytes(&WireRef::<WorkerCmd>::Ids { inputs, outs, frees }).into();
        self.ids = Some((ids.clone(), message.clone()));
        message
    }
}

/// A command to a worker as bytes, in one or more messages: large structures, and what all workers of a gang get alike, go
/// ahead, the same bytes for each worker.
pub fn encode_worker(
    command: &WorkerCmd,
    interner: &mut Interner,
    shelf: &mut Shelf,
    mut send: impl FnMut(Bytes),
) {
    let mut ahead = |key: u64, structure: &Arc<Structure>, interner: &mut Interner| {
        if structure.instrs.len() >= AHEAD && !interner.knows(key, structure) {
            let (weight, message) = shelf.message(structure);
            interner.keep(key, structure.clone(), weight);
            send(message);
        }
    };
    let message = match command {
        WorkerCmd::Batch { session, batch } => {
            batch.runs.iter().for_each(|run| ahead(run.program.key, &run.program.structure, interner));
            interner.encode_batch::<WorkerCmd>(Some(*session), batch)
        }
        WorkerCmd::Gang { session, gang, share } => {
            let Share { seq, structure, key, slots, ids } = share;
            ahead(*key, structure, interner);
            if !Arc::ptr_eq(&interner.ids, ids) {
                interner.ids = ids.clone();
                send(shelf.ids(ids));
            }
            let structure = interner.name(*key, structure);
            Wire::Gang { session: *session, gang: *gang, seq: *seq, structure, slots: &slots[..] }
        }
        other => Wire::Plain(other),
    };
    send(to_bytes(&message).into());
}

/// Reads a command to a worker; keys are computed anew. There is none in what goes ahead of one.
pub fn decode_worker(bytes: &[u8], interner: &mut Interner) -> Result<Option<WorkerCmd>> {
    match from_bytes::<WireBuf<'_, WorkerCmd>>(bytes)? {
        Wire::Batch { runs, fetches, frees, session: Some(session) } => {
            Ok(Some(WorkerCmd::Batch { session, batch: interner.decode_batch(runs, fetches, frees)? }))
        }
        Wire::Gang { session, gang, seq, structure, slots } => {
            let (key, structure) = interner.named(structure)?;
            let share = Share { seq, structure, key, slots, ids: interner.ids.clone() };
            Ok(Some(WorkerCmd::Gang { session, gang, share }))
        }
        Wire::Structure(bytes) => interner.learn(bytes).map(|_| None),
        Wire::Ids { inputs, outs, frees } => {
            interner.ids = Arc::new(Ids { inputs, outs, frees });
            Ok(None)
        }
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
    use crate::msg::WorkerMsg;
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
    fn a_message_that_brings_much_is_known_by_its_beginning() {
        let mut interner = Interner::new();
        let large = ClientMsg::Batch(batch(vec![program(5000, 1), program(2, 1)]));
        let (new, again) = (encode_client(&large, &mut interner), encode_client(&large, &mut interner));
        let small = encode_client(&ClientMsg::Batch(batch(vec![program(20, 1)])), &mut interner);
        let data = Some(Arc::new(vec![1; 60_000]));
        let ty = Ty::new(DType::U8, [60_000]);
        let upload = encode_client(&ClientMsg::Upload { tensor: TensorId(1), ty, data }, &mut interner);
        assert_eq!(
            [&new, &again, &small, &upload].map(|bytes| brings_much(bytes)),
            [true, false, false, false]
        );
    }

    #[test]
    fn tensor_bytes_are_one_piece_and_look_alike() {
        let data: Vec<u8> = (0..=255).cycle().take(1000).collect();
        let shared = Arc::new(data.clone());
        let slot = Slot::Data(shared.clone());
        assert_eq!(to_bytes(&slot), to_bytes(&(1u32, data)), "as if written one by one");
        assert_eq!(from_bytes::<Slot>(&to_bytes(&slot)).unwrap(), slot);
        let error = Error::Value("no value".into());
        let failure = crate::msg::Failure { root: 1, instr: None, error };
        for result in [Ok(Some(shared)), Ok(None), Err(failure)] {
            let moved = WorkerMsg::Moved { session: SessionId(1), tensor: TensorId(2), goal: None, result };
            assert_eq!(decode::<WorkerMsg>(&encode(&moved)).unwrap(), moved);
        }
    }

    #[test]
    fn both_ends_forget_alike() {
        let (mut a, mut b) = (Interner::new(), Interner::new());
        let (session, mut shelf) = (SessionId(4), Shelf::default());
        for i in 0..3000i64 {
            let programs = vec![program(2, i % 700), program(3, i % 31), program(2000, i)];
            let command = WorkerCmd::Batch { session, batch: batch(programs) };
            let sent = send(&command, &mut a, &mut shelf);
            let read: Vec<_> =
                sent.iter().filter_map(|bytes| decode_worker(bytes, &mut b).unwrap()).collect();
            assert_eq!(read, [command]);
        }
        assert_eq!(a.len(), b.len());
        assert!(a.len() <= MAX_STRUCTURES && a.bytes <= MAX_KEPT_BYTES && a.bytes == b.bytes);
    }

    /// The messages that a command becomes.
    fn send(command: &WorkerCmd, interner: &mut Interner, shelf: &mut Shelf) -> Vec<Bytes> {
        let mut sent = Vec::new();
        encode_worker(command, interner, shelf, |bytes| sent.push(bytes));
        sent
    }

    #[test]
    fn what_a_gang_runs_is_written_once_for_all_its_workers() {
        let ids = |first: u64| Ids {
            inputs: (first..first + 900).map(TensorId).collect(),
            outs: (first + 900..first + 1800).map(TensorId).collect(),
            frees: vec![TensorId(first)],
        };
        let gang = |number, ids: &Arc<Ids>, scalar| {
            let run = Run { seq: number, program: program(500, scalar), prefix: None };
            let share = Share { ids: ids.clone(), ..Share::from(run) };
            WorkerCmd::Gang { session: SessionId(4), gang: Gang { mesh: 1, number }, share }
        };
        let (some, others) = (Arc::new(ids(1)), Arc::new(ids(3000)));
        let (first, again) = (gang(1, &some, 1), gang(2, &others, 1));
        let mut shelf = Shelf::default();
        let mut carried = Vec::new();
        let mut ends: Vec<_> = (0..3).map(|_| (Interner::new(), Interner::new())).collect();
        for command in [&first, &again] {
            for (a, b) in &mut ends {
                let sent = send(command, a, &mut shelf);
                let (last, ahead) = sent.split_last().unwrap();
                assert!(last.len() < 64, "{} bytes beside what is the same for all", last.len());
                for message in ahead {
                    assert_eq!(decode_worker(message, b).unwrap(), None);
                }
                assert_eq!(decode_worker(last, b).unwrap().as_ref(), Some(command));
                carried.push(ahead.iter().map(|message| message.as_ptr()).collect::<Vec<_>>());
            }
        }
        let counts: Vec<usize> = carried.iter().map(Vec::len).collect();
        assert_eq!(counts, [2, 2, 2, 1, 1, 1], "structure and ids, then ids alone");
        assert!(carried[1..3].iter().all(|at| *at == carried[0]), "the same bytes serve all");
        assert!(carried[4..].iter().all(|at| *at == carried[3]), "the same bytes serve all");
        // Small structures go with the command; ids that were there last are not sent again.
        let small =
            Share { ids: others, ..Share::from(Run { seq: 3, program: program(2, 1), prefix: None }) };
        let small =
            WorkerCmd::Gang { session: SessionId(4), gang: Gang { mesh: 1, number: 3 }, share: small };
        let (a, b) = &mut ends[0];
        let sent = send(&small, a, &mut shelf);
        assert_eq!(sent.len(), 1);
        assert_eq!(decode_worker(&sent[0], b).unwrap(), Some(small));
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
