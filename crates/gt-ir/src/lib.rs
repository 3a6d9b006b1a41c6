//! The language of GT: element types, shapes, ops and their rules, programs and errors.
//!
//! An op is defined here and nowhere else: its type rule (`infer`), its gradient (`grad`), its reference meaning
//! (`reference`), its layouts and its samples. Everything that lists ops is derived from these.

pub mod binding;
pub mod build;
pub mod collective;
pub mod composite;
pub mod dtype;
pub mod elementwise;
pub mod env;
pub mod error;
pub mod family;
pub mod grad;
pub mod host;
pub mod infer;
pub mod layout;
pub mod op;
pub mod philox;
pub mod program;
pub mod real;
pub mod reference;
pub mod sample;
pub mod scalar;
pub mod shape;
pub mod signal;
pub mod text;
pub mod whole;

pub use binding::Binding;
pub use build::{Build, Operand, Operands};
pub use collective::{Collective, Exchange};
pub use dtype::{DType, Kind};
pub use elementwise::{Binary, Needs, Unary};
pub use error::{Error, Result};
pub use family::Family;
pub use host::HostTensor;
pub use infer::{ArgTy, Types, infer, infer_all};
pub use layout::Layout;
pub use op::{ArgKind, Dist, Op, ReduceKind, ScanKind, ScatterMode, View};
pub use program::{Arg, Args, Input, Instr, Program, Slot, Structure, TensorId};
pub use scalar::Scalar;
pub use shape::{Ints, Shape, Ty, norm_dim};
