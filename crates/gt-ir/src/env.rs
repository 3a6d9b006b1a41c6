//! Reading `GT_*` switches.

use crate::{Result, bail};

/// True if a switch is on; what cannot be meant was told by `check`.
pub fn on(name: &str) -> bool {
    std::env::var(name).is_ok_and(|value| value.trim() == "1")
}

/// The switches of a process that are read where there is nobody to tell.
const SWITCHES: [&str; 7] = [
    "GT_VERBOSE",
    "GT_AUTO_SHARD",
    "GT_DEBUG_DISPATCHER",
    "GT_DEBUG_WORKER",
    "GT_DEBUG_COMPILE",
    "GT_DEBUG_MEMORY",
    "GT_INSTRUCTION_LOG_FULL",
];

/// Looks at the switches of this process: one that cannot be meant is told at its start.
pub fn check() -> Result<()> {
    let value = |name: &str| std::env::var_os(name).map(|v| v.to_string_lossy().into_owned());
    SWITCHES.iter().try_for_each(|name| switch(name, value(name).as_deref()).map(drop))
}

/// A switch: `1` or `0`, which is what nothing means.
pub fn switch(name: &str, value: Option<&str>) -> Result<bool> {
    match value.map(str::trim) {
        None | Some("" | "0") => Ok(false),
        Some("1") => Ok(true),
        Some(other) => bail!(Value, "{name}: expected 0 or 1, got {other:?}"),
    }
}
