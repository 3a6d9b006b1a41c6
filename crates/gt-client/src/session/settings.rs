//! What a session reads from its process's environment.

use crate::stream::prefix::POSITIONS;
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
    pub fn from_env() -> Settings {
        let batch = std::env::var("GT_CLIENT_BATCH_SIZE").ok().and_then(|v| v.parse().ok()).unwrap_or(4096);
        let prefix = match std::env::var("GT_PREFIX") {
            Ok(v) if !v.is_empty() => {
                let list = v.split(',').filter_map(|n| n.trim().parse().ok()).filter(|n| *n > 0);
                list.collect()
            }
            // A program that reaches the cap is cut behind its first quarter.
            _ => POSITIONS.into_iter().filter(|n| *n <= batch / 4).collect(),
        };
        Settings {
            batch,
            prefix,
            sync: gt_ir::env::on("GT_SYNC"),
            host: false,
            debug: gt_ir::env::on("GT_DEBUG_CLIENT"),
            log: std::env::var_os("GT_INSTRUCTION_LOG").filter(|v| !v.is_empty()).map(Into::into),
        }
    }
}
