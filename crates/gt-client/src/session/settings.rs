//! What a session reads from its process's environment.

use crate::stream::prefix::POSITIONS;
use gt_ir::{Result, bail, env};
use std::sync::Arc;

/// Settings of a session, read from `GT_*` at connect (C13).
#[derive(Clone, Debug)]
pub struct Settings {
    /// Instructions per program at most (`GT_CLIENT_BATCH_SIZE`).
    pub batch: usize,
    /// Lengths at which an open program may be started early (`GT_PREFIX`, `0` for never).
    pub prefix: Arc<[usize]>,
    /// Run op by op and wait for each (`GT_SYNC=1`).
    pub sync: bool,
    /// A data-loader worker's: tensors are made, joined and cut, and nothing else (C12).
    pub host: bool,
    /// Print what the client does (`GT_DEBUG_CLIENT=1`).
    pub debug: bool,
    /// Append the instruction log here (`GT_INSTRUCTION_LOG`).
    pub log: Option<std::path::PathBuf>,
}

impl Settings {
    /// Reads the process's environment.
    pub fn from_env() -> Result<Settings> {
        env::check()?;
        let var = |name: &str| std::env::var(name).ok().filter(|v| !v.trim().is_empty());
        let switch = |name: &str| env::switch(name, var(name).as_deref());
        let batch = match var("GT_CLIENT_BATCH_SIZE").map(|v| (v.trim().parse::<usize>(), v)) {
            None => 4096,
            Some((Ok(n), _)) if n > 0 => n,
            Some((_, v)) => {
                bail!(Value, "GT_CLIENT_BATCH_SIZE: expected a whole number from 1 on, got {v:?}")
            }
        };
        let prefix = match var("GT_PREFIX") {
            Some(v) => {
                let list: Vec<usize> =
                    v.split(',').map(|n| n.trim().parse()).collect::<Result<_, _>>().or_else(|_| {
                        bail!(
                            Value,
                            "GT_PREFIX: expected 0, or numbers of instructions with commas, got {v:?}"
                        )
                    })?;
                list.into_iter().filter(|n| *n > 0).collect()
            }
            // A program that reaches the cap is cut behind its first quarter.
            None => POSITIONS.into_iter().filter(|n| *n <= batch / 4).collect(),
        };
        Ok(Settings {
            batch,
            prefix,
            sync: switch("GT_SYNC")?,
            host: false,
            debug: switch("GT_DEBUG_CLIENT")?,
            log: std::env::var_os("GT_INSTRUCTION_LOG").filter(|v| !v.is_empty()).map(Into::into),
        })
    }
}
