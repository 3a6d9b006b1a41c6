//! Compiled kernels on disk, for later processes. Anything wrong with a file means compiling again.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Bytes kept at most.
const MOST: u64 = 512 << 20;
/// Begins every file, with a number that changes when the format does.
const MAGIC: &[u8; 8] = b"gtcubin1";

/// A folder of compiled kernels.
pub struct Disk {
    folder: PathBuf,
}

impl Disk {
    /// The user's own (`XDG_CACHE_HOME`, else `~/.cache`); none where neither is known, or with `GT_KERNEL_CACHE=0`.
    pub fn open() -> Option<Disk> {
        let var = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
        let base = match var("GT_KERNEL_CACHE") {
            Some(off) if off == "0" => return None,
            Some(folder) => PathBuf::from(folder),
            None => match var("XDG_CACHE_HOME") {
                Some(folder) => PathBuf::from(folder),
                None => PathBuf::from(var("HOME")?).join(".cache"),
            }
            .join("gt/kernels"),
        };
        Disk::at(&base)
    }

    pub fn at(folder: &Path) -> Option<Disk> {
        fs::create_dir_all(folder).ok()?;
        Some(Disk { folder: folder.into() })
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn file(&self, key: u128) -> PathBuf {
        self.folder.join(format!("{key:032x}.cubin"))
    }

    /// What was kept under a key.
    pub fn get(&self, key: u128) -> Option<Vec<u8>> {
        let path = self.file(key);
        let bytes = fs::read(&path).ok()?;
        let (head, image) = bytes.split_at_checked(32)?;
        let whole = &head[..8] == MAGIC
            && head[8..16] == (image.len() as u64).to_le_bytes()
            && head[16..32] == hash(&[image]).to_le_bytes();
        if !whole {
            let _ = fs::remove_file(path);
            return None;
        }
        // What is used stays longest.
        if let Ok(file) = fs::File::options().append(true).open(path) {
            let _ = file.set_modified(SystemTime::now());
        }
        Some(image.to_vec())
    }

    /// Keeps something. A reader sees all of it or nothing; what fails is no harm.
    pub fn put(&self, key: u128, image: &[u8]) {
        let mut bytes = MAGIC.to_vec();
        bytes.extend((image.len() as u64).to_le_bytes());
        bytes.extend(hash(&[image]).to_le_bytes());
        bytes.extend(image);
        let unfinished = self.folder.join(format!("{key:032x}.{}", std::process::id()));
        if fs::write(&unfinished, bytes).and_then(|()| fs::rename(&unfinished, self.file(key))).is_err() {
            let _ = fs::remove_file(unfinished);
        }
        self.trim(MOST);
    }

    /// Removes what was unused longest, down to `most` bytes.
    fn trim(&self, most: u64) {
        let Ok(entries) = fs::read_dir(&self.folder) else { return };
        let mut files: Vec<(SystemTime, u64, PathBuf)> = entries
            .flatten()
            .filter(|e| e.file_name() != super::pins::FILE)
            .filter_map(|e| {
                let about = e.metadata().ok()?;
                Some((about.modified().ok()?, about.len(), e.path()))
            })
            .collect();
        let mut bytes: u64 = files.iter().map(|(_, len, _)| len).sum();
        files.sort();
        for (_, len, path) in files {
            if bytes <= most {
                return;
            }
            let _ = fs::remove_file(path);
            bytes -= len;
        }
    }
}

/// A hash of several texts, the same in every process and on every machine.
pub fn hash(parts: &[&[u8]]) -> u128 {
    // FNV-1a on 128 bits.
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let mut h: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    for part in parts {
        // The lengths keep the borders between parts.
        for byte in (part.len() as u64).to_le_bytes().iter().chain(*part) {
            h = (h ^ *byte as u128).wrapping_mul(PRIME);
        }
    }
    h
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_whole_files_and_forgets_broken_ones() {
        let folder = std::env::temp_dir().join(format!("gt-disk-{}", std::process::id()));
        let disk = Disk::at(&folder).unwrap();
        let key = hash(&[b"source", b"sm_90"]);
        assert_ne!(key, hash(&[b"sources", b"m_90"]));
        assert_eq!(disk.get(key), None);
        disk.put(key, b"image");
        assert_eq!(disk.get(key).as_deref(), Some(&b"image"[..]));
        let mut bytes = fs::read(disk.file(key)).unwrap();
        bytes.pop();
        fs::write(disk.file(key), bytes).unwrap();
        assert_eq!(disk.get(key), None, "cut off");
        assert!(!disk.file(key).exists());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_oldest_go_first() {
        let folder = std::env::temp_dir().join(format!("gt-disk-trim-{}", std::process::id()));
        let disk = Disk::at(&folder).unwrap();
        for key in 0..4u128 {
            disk.put(key, &[0; 1000]);
            let file = fs::File::options().append(true).open(disk.file(key)).unwrap();
            let age = std::time::Duration::from_secs(1000 - key as u64);
            file.set_modified(SystemTime::now() - age).unwrap();
        }
        disk.get(0);
        disk.trim(2 * 1032);
        let left: Vec<bool> = (0..4u128).map(|key| disk.file(key).exists()).collect();
        assert_eq!(left, [true, false, false, true]);
        fs::remove_dir_all(folder).unwrap();
    }
}
