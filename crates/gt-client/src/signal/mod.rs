//! Signals: names in a program that a configuration turns into layouts (C8).
//!
//! `scope` knows which signal the thread is in, `config` what signals mean, `registry` keeps both for the process and
//! gives every meaning the number under which programs mark their values, `lay` lays out tensors by name.

pub mod config;
mod lay;
pub mod node;
mod pattern;
mod presets;
pub mod registry;
mod scope;
#[cfg(test)]
mod tests;

pub use lay::{apply, laid_out, lay_out, poll, stage_of};
pub(crate) use lay::{keep, like, of};
pub use pattern::fits;
pub(crate) use scope::{FIRM, FIRM_IF_KEPT, mark_of, now};
pub use scope::{Hold, Scope, current_name, enter, exit, with_scope};
