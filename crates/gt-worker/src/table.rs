//! What a worker holds for each session: its tensors, and the work that waits in order.

use crate::backend::{Buffer, Pending};
use crate::begun::Begun;
use crate::doubts::Hanging;
use crate::watched::Record;
use foldhash::fast::FixedState;
use gt_ir::{Error, Program, TensorId, Ty};
use gt_net::bulk::{Endpoint, Ticket};
use gt_net::compiling::Compiling;
use gt_net::msg::{Batch, Bytes, Compiled, Failure, Fetch, Gang, Prefix, Run, Share, WorkerId};
use gt_net::observe::Detail;
use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

/// A tensor of a session.
pub enum Entry {
    /// Its bytes are on their way.
    Waiting {
        ty: Ty,
    },
    Here {
        ty: Ty,
        buffer: Buffer,
    },
    /// It has no value, and why (C5).
    Poisoned(Failure),
}

/// A step of a session's work.
pub enum Item {
    Run(Run),
    /// A program that other workers run at the same time.
    Gang(Gang, Box<Share>),
    Prefix(Prefix),
    /// Drops what was kept of a prefix.
    Forget(u64),
    /// The end of a batch: values are given, tensors freed, and the dispatcher is told.
    Close {
        fetches: Vec<Fetch>,
        frees: Vec<TensorId>,
    },
    Send {
        tensor: TensorId,
        goal: Option<WorkerId>,
        to: Option<(Endpoint, Ticket)>,
    },
}

/// Programs of one session begun early at most.
const MAX_BEGUN: usize = 64;

/// One session on this worker.
#[derive(Default)]
pub struct SessionTable {
    entries: HashMap<TensorId, Entry, FixedState>,
    pub queue: VecDeque<Item>,
    /// Tensors whose arrival the dispatcher wants to hear of.
    pub tell: HashSet<TensorId, FixedState>,
    /// What prefixes have come to, by their numbers.
    begun: HashMap<u64, Begun, FixedState>,
    /// Bytes of the tensors that are here, and of what prefixes keep.
    pub bytes: u64,
    /// Time spent on its programs, time they lay in the queue, and how many ran.
    pub busy: Duration,
    pub waited: Duration,
    pub programs: u64,
    /// When each program in the queue came.
    pub arrived: VecDeque<Instant>,
    /// How closely its client watches.
    pub detail: Detail,
    /// Its last programs, and those whose time is not known yet.
    pub recent: VecDeque<Record>,
    pub queued: Vec<Record>,
    /// What the next update will tell.
    pub finished: Vec<u64>,
    pub failures: Vec<(u64, Failure)>,
    pub spared: Vec<TensorId>,
    pub compiled: Vec<Compiled>,
    /// A value of the batch that runs was given before its end.
    pub gave: bool,
    /// When, and how long it took of late until the next programs came.
    pub gave_at: Option<Instant>,
    pub records_for: Option<Duration>,
    /// Values of the last program that came with those given early, should somebody ask.
    pub known: Vec<(TensorId, Box<dyn Pending<Bytes>>)>,
    /// What its client wants to see: what the worker does, and the plans it makes.
    pub watch: Watch,
    /// How its programs are compiled, where its client says so.
    pub compiling: Compiling,
    /// Its programs that were new, all of them in a row.
    pub novel: u32,
    /// What hangs on gangs that the device is at.
    pub hanging: Vec<Hanging>,
}

/// What a session's client wants to see.
#[derive(Clone, Copy, Default)]
pub struct Watch {
    pub work: bool,
    pub plans: bool,
}

/// The inputs of a program, taken from the table.
pub struct Inputs {
    pub buffers: Vec<Buffer>,
    /// Per input: its type, if it was taken out because it dies.
    pub dying: Vec<Option<Ty>>,
}

/// Programs remembered per session.
const MAX_RECENT: usize = 128;

impl SessionTable {
    /// Remembers a program that has run.
    pub fn remember(&mut self, record: Record) {
        if self.recent.len() == MAX_RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(record);
    }

    pub fn push_batch(&mut self, batch: Batch) {
        if !batch.runs.is_empty() {
            self.note_recording();
            self.arrived.extend(std::iter::repeat_n(Instant::now(), batch.runs.len()));
        }
        self.queue.extend(batch.runs.into_iter().map(Item::Run));
        self.queue.push_back(Item::Close { fetches: batch.fetches, frees: batch.frees });
    }

    pub fn get(&self, id: TensorId) -> Option<&Entry> {
        self.entries.get(&id)
    }

    /// The type of a tensor whose bytes are on their way.
    pub fn waits_for(&self, id: TensorId) -> Option<&Ty> {
        match self.entries.get(&id) {
            Some(Entry::Waiting { ty }) => Some(ty),
            _ => None,
        }
    }

    pub fn insert(&mut self, id: TensorId, entry: Entry) {
        self.bytes += entry_bytes(&entry);
        if let Some(old) = self.entries.insert(id, entry) {
            self.bytes -= entry_bytes(&old);
        }
    }

    pub fn remove(&mut self, id: TensorId) -> Option<Entry> {
        let old = self.entries.remove(&id)?;
        self.bytes -= entry_bytes(&old);
        Some(old)
    }

    /// Keeps what a prefix has come to.
    pub fn keep_begun(&mut self, prefix: u64, begun: Begun) -> Option<Begun> {
        if self.begun.len() >= MAX_BEGUN {
            return Some(begun);
        }
        self.bytes += begun.bytes();
        let old = self.begun.insert(prefix, begun);
        self.bytes -= old.as_ref().map_or(0, Begun::bytes);
        old
    }

    pub fn take_begun(&mut self, prefix: u64) -> Option<Begun> {
        let begun = self.begun.remove(&prefix)?;
        self.bytes -= begun.bytes();
        Some(begun)
    }

    pub fn len(&self) -> usize {
        self.entries.len() + self.begun.len()
    }

    /// Takes a program's inputs; those that die leave the table, so that the program holds the only handle.
    pub fn take_inputs(&mut self, seq: u64, program: &Program) -> Result<Inputs, Failure> {
        let wrong = |what: String| Failure { root: seq, instr: None, error: Error::Value(what) };
        let declared = &program.structure.inputs;
        if declared.len() != program.inputs.len() {
            return Err(wrong("program: the binding does not fit its structure".into()));
        }
        for (id, input) in program.inputs.iter().zip(declared) {
            match self.entries.get(id) {
                Some(Entry::Here { ty, .. }) if *ty == input.ty => {}
                Some(Entry::Here { ty, .. }) => {
                    return Err(wrong(format!("program: tensor {} is {ty}, not {}", id.0, input.ty)));
                }
                Some(Entry::Poisoned(failure)) => return Err(failure.clone()),
                Some(Entry::Waiting { .. }) | None => {
                    return Err(wrong(format!("program: tensor {} is not on this worker", id.0)));
                }
            }
        }
        let mut taken = Inputs { buffers: Vec::new(), dying: Vec::new() };
        for (id, input) in program.inputs.iter().zip(declared) {
            let (buffer, dying) = match self.entries.get(id) {
                Some(Entry::Here { buffer, .. }) if !input.dies => (buffer.clone(), None),
                _ => match self.remove(*id) {
                    Some(Entry::Here { ty, buffer }) => (buffer, Some(ty)),
                    _ => {
                        let failure = wrong(format!("program: tensor {} is an input twice", id.0));
                        self.put_back(program, taken, &failure);
                        return Err(failure);
                    }
                },
            };
            taken.buffers.push(buffer);
            taken.dying.push(dying);
        }
        Ok(taken)
    }

    /// Undoes `take_inputs` after a failure. A program that panicked may have lost some: those have no value now.
    pub fn put_back(&mut self, program: &Program, inputs: Inputs, failure: &Failure) {
        let whole = inputs.buffers.len() == inputs.dying.len();
        let mut buffers = inputs.buffers.into_iter();
        for (id, dying) in program.inputs.iter().zip(inputs.dying) {
            match (buffers.next(), dying) {
                (Some(buffer), Some(ty)) if whole => self.insert(*id, Entry::Here { ty, buffer }),
                (_, Some(_)) => self.insert(*id, Entry::Poisoned(failure.clone())),
                (_, None) => {}
            }
        }
    }
}

fn entry_bytes(entry: &Entry) -> u64 {
    match entry {
        Entry::Here { ty, .. } => ty.bytes() as u64,
        Entry::Waiting { .. } | Entry::Poisoned(_) => 0,
    }
}
