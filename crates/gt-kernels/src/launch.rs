//! A launch of a kernel, with all that is known before it runs.

use gt_compiler::{Map, Num};
use gt_ir::{DType, Slot};
use std::sync::Arc;

/// The kernels of one step, in order on one stream.
#[derive(Clone, Debug, Default)]
pub struct Launches {
    pub list: Vec<Launch>,
    /// Bytes of scratch memory the launches share; unset when they start, unless `zeroed` says how many bytes from
    /// its start are zero.
    pub scratch: usize,
    pub zeroed: usize,
}

/// One launch.
#[derive(Clone, Debug)]
pub struct Launch {
    pub function: Function,
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: u32,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// The kernel's arguments in order.
    pub args: Vec<Arg>,
}

/// The kernel to launch.
#[derive(Clone, Debug)]
pub enum Function {
    /// One of those that ship with the program, by name.
    Plain(&'static str),
    /// One made for a plan: a function of this name in this text, to which the prelude is put in front. Equal texts have
    /// equal names.
    Made { name: Arc<str>, text: Arc<str> },
}

/// One argument: bytes, of which some are known only when the plan runs.
#[derive(Clone, Debug)]
pub struct Arg {
    pub bytes: Vec<u8>,
    pub fills: Vec<Fill>,
}

/// Eight bytes of an argument that are filled in for a run.
#[derive(Clone, Debug)]
pub struct Fill {
    /// Where in the argument.
    pub at: u32,
    pub word: Word,
}

/// What is filled in.
#[derive(Clone, PartialEq, Debug)]
pub enum Word {
    /// The address of a storage.
    Address(u32),
    /// The address of this byte of a storage.
    Byte(u32, usize),
    /// A number rounded to an element type: an `i64`, or a `double` for floats.
    Number(Num, DType),
    /// The first element of a map, counted in elements.
    Start(Map),
    /// The address of this byte of the step's scratch memory.
    Scratch(usize),
    /// The address of the run's failure record: a `u64`, zero while all is well; the first check that fails
    /// writes 1 + its number in the plan's steps with `atomicCAS`. Kernels that write donated memory leave when it is not zero (C5).
    Failed,
}

impl Arg {
    /// An argument of eight bytes that is filled in.
    pub fn word(word: Word) -> Arg {
        Arg { bytes: vec![0; 8], fills: vec![Fill { at: 0, word }] }
    }

    /// An integer that is known.
    pub fn int(x: i64) -> Arg {
        Arg { bytes: x.to_ne_bytes().to_vec(), fills: Vec::new() }
    }
}

impl Word {
    /// The eight bytes for one run.
    pub fn get(&self, addresses: &[u64], slots: &[Slot], scratch: u64, failed: u64) -> u64 {
        match self {
            Word::Address(storage) => addresses[*storage as usize],
            Word::Byte(storage, at) => addresses[*storage as usize] + *at as u64,
            Word::Number(num, dtype) => {
                let x = num.get(slots).to_dtype(*dtype);
                if dtype.is_float() { x.as_f64().to_bits() } else { x.as_i64() as u64 }
            }
            Word::Start(map) => map.offset(slots) as u64,
            Word::Scratch(at) => scratch + *at as u64,
            Word::Failed => failed,
        }
    }
}
