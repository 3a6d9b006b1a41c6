//! Seeing what a system does: finding it, watching it, and the tools that show it.

pub mod find;
pub mod observer;
pub mod rates;
pub mod text;
pub mod top;
pub mod trace;
