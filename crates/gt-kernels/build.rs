//! Embeds the compiled kernels, where `tools/kernels.py` has made them: in `GT_KERNELS_DIR`, or in `kernels` in the target
//! folder. Without them the build works all the same, and the worker compiles them by NVRTC.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// What the kernels of attention are made from.
const ATTENTION: [&str; 6] = [
    "attention_parts.cu",
    "attention_wgmma.cu",
    "attention_half.cu",
    "attention_hopper.cu",
    "attention_full.cu",
    "attention_shipped.cu",
];

fn main() {
    println!("cargo:rerun-if-env-changed=GT_KERNELS_DIR");
    println!("cargo:rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    let folder = match env::var_os("GT_KERNELS_DIR") {
        Some(folder) => Some(PathBuf::from(folder)),
        // target/<profile>/build/<package>/out
        None => out.ancestors().nth(4).map(|target| target.join("kernels")),
    };
    let (mut plain, mut attention) = (String::new(), String::new());
    if let Some(folder) = folder {
        // Cargo can only watch what is there.
        let _ = fs::create_dir_all(&folder);
        println!("cargo:rerun-if-changed={}", folder.display());
        let sources = Path::new(&env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("src");
        println!("cargo:rerun-if-changed={}", sources.display());
        if is_fresh(&folder, "plain.cu", &sources, &plain_parts(&sources)) {
            let names = ["sm_80", "sm_90", "sm_100", "compute_80"];
            let files = names.map(|name| {
                let kind = if name.starts_with("sm_") { "cubin" } else { "ptx" };
                (name.to_string(), folder.join(format!("plain_{name}.{kind}")))
            });
            plain = images(files.into_iter());
        }
        if is_fresh(&folder, "attention.cu", &sources, &ATTENTION.map(String::from)) {
            attention = images(attention_files(&folder).into_iter());
        }
    }
    let text = format!(
        "static IMAGES: &[(&str, &[u8])] = &[\n{plain}];\nstatic ATTENTION: &[(&str, &[u8])] = &[\n{attention}];\n"
    );
    fs::write(out.join("images.rs"), text).expect("cannot write to OUT_DIR");
}

/// Entries of a list of images, of those files that are there.
fn images(files: impl Iterator<Item = (String, PathBuf)>) -> String {
    let there = files.filter(|(_, path)| path.is_file());
    there.map(|(name, path)| format!("(\"{name}\", include_bytes!({path:?})),\n")).collect()
}

/// `attention_<name>.cubin`, by name.
fn attention_files(folder: &Path) -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<(String, PathBuf)> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let name = name.strip_prefix("attention_")?.strip_suffix(".cubin")?;
            Some((name.to_string(), entry.path()))
        })
        .collect();
    files.sort();
    files
}

/// The files that the plain kernels are put together from, as `lib.rs` lists them.
fn plain_parts(sources: &Path) -> Vec<String> {
    let text = fs::read_to_string(sources.join("lib.rs")).unwrap_or_default();
    let list =
        text.split("pub const PLAIN").nth(1).and_then(|rest| rest.split(");").next()).unwrap_or_default();
    let parts = list.split("include_str!(\"").skip(1).filter_map(|part| part.split('"').next());
    parts.map(String::from).collect()
}

/// True if images were made from the sources as they are: old ones would not know the descriptions of today.
fn is_fresh(folder: &Path, kept: &str, sources: &Path, parts: &[String]) -> bool {
    let Ok(source) = fs::read(folder.join(kept)) else { return false };
    let now: Vec<u8> =
        parts.iter().flat_map(|part| fs::read(sources.join(part)).unwrap_or_default()).collect();
    let fresh = now == source;
    if !fresh {
        let path = folder.join(kept);
        println!("cargo:warning=gt-kernels: {} is of other sources, run tools/kernels.py", path.display());
    }
    fresh
}
