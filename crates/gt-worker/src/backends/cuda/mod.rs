//! A GPU of NVIDIA's. Every library is loaded at run time.

pub mod matmul;
mod matmul_call;
