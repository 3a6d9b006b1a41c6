//! Algorithms of products that were measured, in a file beside the compiled kernels. A process reads it once, when it
//! starts, and keeps to what it found there; what it measures itself serves later ones (C7).

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The file's name.
pub const FILE: &str = "products";

/// What was found for one form of a product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pin {
    /// The library's own words for the algorithm.
    pub algo: [u64; 8],
    /// Microseconds of the library's first choice, and of this one.
    pub first: f64,
    pub best: f64,
}

/// The choices for one kind of device and one version of the library.
pub struct Pins {
    file: Option<PathBuf>,
    /// Device and version, which begin every line.
    head: String,
    known: HashMap<String, Pin>,
}

impl Pins {
    /// What the file in a folder holds for a device and a version of the library; nothing where there is no folder.
    pub fn open(folder: Option<&Path>, device: &str, version: usize) -> Pins {
        let head = format!("{}\t{version}", device.replace(['\t', '\n'], " "));
        let file = folder.map(|folder| folder.join(FILE));
        let text = file.as_ref().and_then(|file| fs::read_to_string(file).ok()).unwrap_or_default();
        let lines = text.lines().filter_map(|line| parse(line.strip_prefix(&head)?.strip_prefix('\t')?));
        Pins { known: lines.collect(), head, file }
    }

    pub fn get(&self, form: &str) -> Option<Pin> {
        self.known.get(form).copied()
    }

    /// Writes a choice down for later processes. Whoever reads sees whole lines; what fails is no harm.
    pub fn keep(&self, form: &str, pin: &Pin) {
        let Some(file) = &self.file else { return };
        let algo: String = pin.algo.iter().map(|word| format!("{word:016x}")).collect();
        let line = format!("{}\t{form}\t{algo}\t{:.3}\t{:.3}\n", self.head, pin.first, pin.best);
        if let Ok(mut file) = fs::File::options().append(true).create(true).open(file) {
            let _ = file.write_all(line.as_bytes());
        }
    }

    /// True if choices are kept anywhere.
    pub fn is_kept(&self) -> bool {
        self.file.is_some()
    }
}

/// A line without its head.
fn parse(line: &str) -> Option<(String, Pin)> {
    let mut fields = line.split('\t');
    let (form, algo) = (fields.next()?, fields.next()?);
    let (first, best) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    if algo.len() != 128 || !algo.is_ascii() {
        return None;
    }
    let mut words = [0; 8];
    for (i, word) in words.iter_mut().enumerate() {
        *word = u64::from_str_radix(&algo[16 * i..16 * (i + 1)], 16).ok()?;
    }
    Some((form.into(), Pin { algo: words, first, best }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_read_by_the_next_and_only_for_its_device_and_version() {
        let folder = std::env::temp_dir().join(format!("gt-pins-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let pins = Pins::open(Some(&folder), "H200", 130000);
        let pin = Pin { algo: [1, 2, 3, 4, 5, 6, 7, u64::MAX], first: 10.5, best: 9.25 };
        pins.keep("bf16 64x64x64", &pin);
        assert_eq!(pins.get("bf16 64x64x64"), None, "a process keeps to what it read");
        let next = Pins::open(Some(&folder), "H200", 130000);
        assert_eq!(next.get("bf16 64x64x64"), Some(pin));
        // The newest line counts; a broken one does not.
        pins.keep("bf16 64x64x64", &Pin { best: 8.0, ..pin });
        fs::File::options()
            .append(true)
            .open(folder.join(FILE))
            .unwrap()
            .write_all(b"H200\t130000\tx\t12")
            .unwrap();
        let next = Pins::open(Some(&folder), "H200", 130000);
        assert_eq!(next.get("bf16 64x64x64").unwrap().best, 8.0);
        assert_eq!(next.get("x"), None);
        assert_eq!(Pins::open(Some(&folder), "H200", 130100).get("bf16 64x64x64"), None);
        assert_eq!(Pins::open(Some(&folder), "A100", 130000).get("bf16 64x64x64"), None);
        assert_eq!(Pins::open(None, "H200", 130000).get("bf16 64x64x64"), None);
        fs::remove_dir_all(folder).unwrap();
    }
}
