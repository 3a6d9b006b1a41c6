//! Reading `GT_*` switches.

use crate::{Result, bail};

/// True if a switch is on, for those who have nobody to tell of a value that cannot be meant.
pub fn on(name: &str) -> bool {
    let value = std::env::var(name).unwrap_or_default();
    !matches!(value.trim().to_ascii_lowercase().as_str(), "" | "0" | "false" | "no" | "off")
}

/// A switch: `1` or `0`, which is what nothing means.
pub fn switch(name: &str, value: Option<&str>) -> Result<bool> {
    match value.map(str::trim) {
        None | Some("" | "0") => Ok(false),
        Some("1") => Ok(true),
        Some(other) => bail!(Value, "{name}: expected 0 or 1, got {other:?}"),
    }
}
