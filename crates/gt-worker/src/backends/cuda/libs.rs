//! Finding NVIDIA's libraries: in the system's paths, in `CUDA_HOME`, and in the `nvidia-*` packages of a Python
//! environment. cudarc opens libraries by name alone, so one found elsewhere is opened first, by its path: the loader
//! then knows the name.

use std::ffi::{CStr, CString, c_void};
use std::path::{Path, PathBuf};

/// Where Python keeps packages, as the `gt` package says at import; separated as in `PATH`.
pub const PACKAGES: &str = "GT_CUDA_PACKAGES";

/// Folders that may hold libraries, best first, apart from those the loader searches anyway.
fn folders(home: Option<&str>, packages: Option<&str>) -> Vec<PathBuf> {
    let mut out = Vec::new();
    for home in home.into_iter().chain(["/usr/local/cuda"]).filter(|h| !h.is_empty()) {
        for below in ["lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"] {
            out.push(Path::new(home).join(below));
        }
    }
    for site in packages.unwrap_or_default().split(':').filter(|s| !s.is_empty()) {
        // `nvidia/cu13/lib`, `nvidia/cublas/lib`, ...
        let Ok(entries) = std::fs::read_dir(Path::new(site).join("nvidia")) else { continue };
        let mut found: Vec<PathBuf> = entries.flatten().map(|e| e.path().join("lib")).collect();
        found.sort();
        // The newest generation first.
        out.extend(found.into_iter().rev());
    }
    out.retain(|folder| folder.is_dir());
    out
}

/// The library in a folder: `libnvrtc.so.13` rather than `libnvrtc.so`, since the first is the name it knows itself by.
fn in_folder(folder: &Path, start: &str) -> Option<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(folder)
        .ok()?
        .flatten()
        .map(|e| e.path())
        .filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(start)))
        .collect();
    found.sort_by_key(|p| p.as_os_str().len());
    let exact = found.iter().position(|p| p.extension().is_some_and(|e| e != "so"));
    exact.map(|i| found.swap_remove(i)).or_else(|| found.into_iter().next())
}

/// A library opened for good.
#[derive(Clone, Copy)]
pub struct Library(*mut c_void);

// SAFETY: a handle of the loader, which may be used from any thread.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// The address of one of its functions.
    pub fn symbol(&self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the library is never closed.
        Some(unsafe { libc::dlsym(self.0, name.as_ptr()) }).filter(|at| !at.is_null())
    }
}

/// A library that the loader finds by itself.
fn known(start: &str) -> Option<Library> {
    ["", ".13", ".12", ".2", ".9"].iter().find_map(|version| open(&format!("{start}{version}")))
}

/// Opens a library for good.
fn open(name: &str) -> Option<Library> {
    let name = CString::new(name).ok()?;
    // SAFETY: runs the initialisers of NVIDIA's libraries, which is what loading them means.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if handle.is_null() {
        return None;
    }
    // At once: a process may end while the library is made ready for use.
    super::leave::before_libraries();
    Some(Library(handle))
}

/// Opens a library, by its path where the loader would not find it by name.
pub fn find(start: &str) -> Option<Library> {
    known(start).or_else(|| search(start))
}

/// The same, but one of a Python environment before one of the system's: whoever else in this process wants it, as PyTorch
/// does, gets the one that is there, and may ask for the version it came with.
pub fn find_packaged(start: &str) -> Option<Library> {
    let packages = std::env::var(PACKAGES).ok();
    let inside =
        folders(None, packages.as_deref()).into_iter().filter(|f| f.iter().any(|part| part == "nvidia"));
    inside
        .filter_map(|folder| in_folder(&folder, start))
        .find_map(|path| open(&path.to_string_lossy()))
        .or_else(|| find(start))
}

/// Looks for a library in the folders that the loader does not know.
fn search(start: &str) -> Option<Library> {
    let (home, packages) = (home(), std::env::var(PACKAGES).ok());
    let folders = folders(home.as_deref(), packages.as_deref());
    // What a library needs lies beside it.
    let needs: &[&str] = match start {
        "libnvrtc.so" => &["libnvrtc-builtins.so"],
        _ => &[],
    };
    folders.iter().find_map(|folder| {
        let path = in_folder(folder, start)?;
        for need in needs {
            in_folder(folder, need).map(|p| open(&p.to_string_lossy()));
        }
        open(&path.to_string_lossy())
    })
}

/// Makes a library known to the loader by name. False if there is none.
pub fn prepare(start: &str) -> bool {
    find(start).is_some()
}

fn home() -> Option<String> {
    ["CUDA_HOME", "CUDA_PATH"].iter().find_map(|name| std::env::var(name).ok()).filter(|h| !h.is_empty())
}

/// Folders that were searched, for messages.
pub fn searched() -> String {
    let (home, packages) = (home(), std::env::var(PACKAGES).ok());
    let folders = folders(home.as_deref(), packages.as_deref());
    let list: Vec<String> = folders.iter().map(|f| f.display().to_string()).collect();
    match list.is_empty() {
        true => "the system's library paths".into(),
        false => format!("the system's library paths, {}", list.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_found_newest_first_and_by_their_own_name() {
        let root = std::env::temp_dir().join(format!("gt-libs-{}", std::process::id()));
        for folder in ["nvidia/cu12/lib", "nvidia/cu13/lib"] {
            std::fs::create_dir_all(root.join(folder)).unwrap();
        }
        let lib = root.join("nvidia/cu13/lib");
        for name in ["libnvrtc.so", "libnvrtc.so.13", "libnvrtc-builtins.so.13.0"] {
            std::fs::write(lib.join(name), b"").unwrap();
        }
        let packages = root.display().to_string();
        let found = folders(None, Some(&packages));
        let mine: Vec<_> = found.iter().filter(|f| f.starts_with(&root)).collect();
        assert_eq!(mine, [&root.join("nvidia/cu13/lib"), &root.join("nvidia/cu12/lib")]);
        assert_eq!(in_folder(&lib, "libnvrtc.so"), Some(lib.join("libnvrtc.so.13")));
        assert_eq!(in_folder(&lib, "libnvrtc-builtins.so"), Some(lib.join("libnvrtc-builtins.so.13.0")));
        assert_eq!(in_folder(&lib, "libnccl.so"), None);
        assert!(!prepare("libgt-no-such-library.so"));
        std::fs::remove_dir_all(root).unwrap();
    }
}
