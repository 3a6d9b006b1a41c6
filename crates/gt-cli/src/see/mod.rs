//! Seeing what a system does: finding it, watching it, and the tools that show it.

pub mod account;
pub mod dashboard;
pub mod draw;
pub mod explain;
pub mod find;
pub mod http;
pub mod log;
pub mod observer;
pub mod perfetto;
pub mod profile;
pub mod rates;
pub mod text;
pub mod timeline;
pub mod top;
pub mod trace;
pub mod visualize;
