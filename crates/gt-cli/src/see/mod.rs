//! Seeing what a system does: finding it, watching it, and the tools that show it.

pub mod draw;
pub mod find;
pub mod log;
pub mod observer;
pub mod perfetto;
pub mod rates;
pub mod text;
pub mod timeline;
pub mod top;
pub mod trace;
pub mod visualize;
