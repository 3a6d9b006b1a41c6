//! The token that lets clients and workers in.

use gt_ir::{Error, Result, bail};
use std::path::{Path, PathBuf};

/// Reads a token from a file, or from the file that `GT_TOKEN_FILE` names.
pub fn read(file: Option<&Path>) -> Result<Option<String>> {
    let from_env = || std::env::var_os("GT_TOKEN_FILE").filter(|v| !v.is_empty()).map(PathBuf::from);
    let Some(path) = file.map(Path::to_path_buf).or_else(from_env) else { return Ok(None) };
    let text = std::fs::read_to_string(&path)
        .map_err(|e| Error::Value(format!("token: cannot read {}: {e}", path.display())))?;
    let token = text.trim();
    if token.is_empty() {
        bail!(Value, "token: {} is empty, put a secret of your choice into it", path.display());
    }
    Ok(Some(token.to_string()))
}
