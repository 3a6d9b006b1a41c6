//! The one error type of GT. A variant says which Python exception a person sees.

use serde::{Deserialize, Serialize};

/// What went wrong, worded for the person who wrote the program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Error {
    /// An operand has a type the op does not take (`TypeError`).
    #[error("{0}")]
    Type(String),
    /// An argument has a value the op does not take (`ValueError`).
    #[error("{0}")]
    Value(String),
    /// A dimension or index lies out of range (`IndexError`).
    #[error("{0}")]
    Index(String),
    /// Shapes do not fit, autograd misuse and all that PyTorch calls `RuntimeError`.
    #[error("{0}")]
    Runtime(String),
    /// Out of memory on a worker (`MemoryError`).
    #[error("{0}")]
    Memory(String),
    /// The server or a worker cannot be reached or went away (`ConnectionError`).
    #[error("{0}")]
    Connection(String),
}

/// Shorthand used by every crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What takes the sign off an index of 64 bits: what was negative is then larger than any dimension.
pub const UNSIGNED: i64 = i64::MAX;

/// An index that says how many elements of a mask are true, above this: there are not as many values for them.
pub const MISCOUNTED: i64 = 1 << 61;

impl Error {
    /// An index that is out of range, as a person should read it, with the sign that `UNSIGNED` took off.
    pub fn out_of_bounds(index: i64, dim: usize, size: usize) -> Error {
        if (MISCOUNTED..=UNSIGNED / 2).contains(&index) {
            // The last place is padding for what is not under the mask.
            return Error::Runtime(format!(
                "shape mismatch: value tensor of shape [{}] cannot be broadcast to indexing result of shape [{}], which \
                 is how many elements of the mask are true, at dimension {dim}",
                size - 1,
                index - MISCOUNTED
            ));
        }
        let index = if index > UNSIGNED / 2 { index | !UNSIGNED } else { index };
        Error::Index(format!("index {index} is out of bounds for dimension {dim} with size {size}"))
    }

    /// The same kind of error with its message changed.
    pub fn map_message(self, f: impl FnOnce(String) -> String) -> Error {
        match self {
            Error::Type(m) => Error::Type(f(m)),
            Error::Value(m) => Error::Value(f(m)),
            Error::Index(m) => Error::Index(f(m)),
            Error::Runtime(m) => Error::Runtime(f(m)),
            Error::Memory(m) => Error::Memory(f(m)),
            Error::Connection(m) => Error::Connection(f(m)),
        }
    }
}

/// Builds an `Err(Error::Variant(format!(..)))`.
#[macro_export]
macro_rules! bail {
    ($kind:ident, $($arg:tt)*) => { return Err($crate::Error::$kind(format!($($arg)*))) };
}

/// A line on stderr. Where nobody reads it any more (`2>&1 | head`), `eprintln!` would panic, and the thread that says
/// something would be gone with all who wait for it.
#[macro_export]
macro_rules! say {
    ($($arg:tt)*) => {{
        use std::io::Write as _;
        let _ = std::io::stderr().write_all(format!("{}\n", format_args!($($arg)*)).as_bytes());
    }};
}
