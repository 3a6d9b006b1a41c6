//! Finding a server: by flags, by `GT_SERVER`, or the one that runs on this host. A server leaves a small file while it
//! runs, so that tools need not be told where it is.

use crate::token;
use gt_ir::{Error, Result};
use gt_net::addr::Addr;
use std::path::{Path, PathBuf};

/// Which server a tool is to look at.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Where {
    /// Host of the server; without host and port, GT_SERVER or the server that runs on this host.
    #[arg(long)]
    pub host: Option<String>,
    /// Port of the server.
    #[arg(short, long)]
    pub port: Option<u16>,
    /// Unix socket of the server, instead of host and port.
    #[arg(long)]
    pub unix: Option<PathBuf>,
    /// File with the server's token (or GT_TOKEN_FILE).
    #[arg(long)]
    pub token_file: Option<PathBuf>,
}

impl Where {
    /// The server's address.
    pub fn addr(&self) -> Result<Addr> {
        if let Some(path) = &self.unix {
            return Ok(Addr::Unix(path.clone()));
        }
        if self.host.is_some() || self.port.is_some() {
            let host = self.host.clone().unwrap_or_else(|| "localhost".into());
            return Ok(Addr::Tcp(host, self.port.unwrap_or(12345)));
        }
        if let Some(server) = std::env::var("GT_SERVER").ok().filter(|v| !v.is_empty()) {
            return server.parse().map_err(|e| Error::Value(format!("GT_SERVER: {e}")));
        }
        Ok(running().into_iter().next().unwrap_or(Addr::Tcp("localhost".into(), 12345)))
    }

    pub fn token(&self) -> Result<Option<String>> {
        token::read(self.token_file.as_deref())
    }
}

/// The folder of the files that running servers leave.
fn folder() -> PathBuf {
    // SAFETY: always succeeds.
    let user = unsafe { libc::getuid() };
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|v| !v.is_empty()) {
        Some(dir) => Path::new(&dir).join("gt"),
        None => std::env::temp_dir().join(format!("gt-{user}")),
    }
}

/// The file of a running server; gone when dropped.
pub struct Announced(Option<PathBuf>);

impl Announced {
    /// Says where this process listens. Without a place for the file the server runs all the same.
    pub fn new(addrs: &[Addr]) -> Announced {
        use std::os::unix::fs::{DirBuilderExt, MetadataExt};
        let folder = folder();
        let _ = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
        // SAFETY: always succeeds.
        let user = unsafe { libc::getuid() };
        let ours = std::fs::metadata(&folder).is_ok_and(|m| m.uid() == user);
        let path = folder.join(format!("server-{}", std::process::id()));
        let text: String = addrs.iter().map(|addr| format!("{addr}\n")).collect();
        let written = ours && std::fs::write(&path, text).is_ok();
        Announced(written.then_some(path))
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        if let Some(path) = self.0.take() {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Servers of this user that run on this host, the newest first.
pub fn running() -> Vec<Addr> {
    let Ok(entries) = std::fs::read_dir(folder()) else { return Vec::new() };
    let mut found: Vec<_> = entries
        .flatten()
        .filter_map(|entry| {
            let pid: i32 = entry.file_name().to_str()?.strip_prefix("server-")?.parse().ok()?;
            // SAFETY: signal 0 only asks whether the process is there.
            let alive = unsafe { libc::kill(pid, 0) } == 0;
            if !alive {
                let _ = std::fs::remove_file(entry.path());
                return None;
            }
            let since = entry.metadata().ok()?.modified().ok()?;
            let text = std::fs::read_to_string(entry.path()).ok()?;
            Some((since, text.lines().next()?.parse().ok()?))
        })
        .collect();
    found.sort_by_key(|(since, _)| std::cmp::Reverse(*since));
    found.into_iter().map(|(_, addr)| addr).collect()
}
