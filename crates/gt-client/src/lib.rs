//! The client of GT: sessions, cells and views, recording, autograd. Also the Rust API.

pub mod autograd;
pub mod cell;
pub mod current;
pub mod default;
pub mod hostmem;
mod lived;
pub mod ops;
mod relay;
pub mod remote;
pub mod seen;
pub mod session;
pub mod signal;
pub mod source;
pub mod stream;
pub mod tensor;
mod tensor_ext;
pub mod value;
pub mod wait;

pub use session::{Link, Session, Settings};
pub use tensor::Tensor;
