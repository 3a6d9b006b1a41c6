//! Embeds the compiled plain kernels, where `tools/kernels.py` has made them: in `GT_KERNELS_DIR`, or in `kernels` in the
//! target folder. Without them the build works all the same, and the worker compiles them by NVRTC.

use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-env-changed=GT_KERNELS_DIR");
    println!("cargo:rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    let folder = match env::var_os("GT_KERNELS_DIR") {
        Some(folder) => Some(PathBuf::from(folder)),
        // target/<profile>/build/<package>/out
        None => out.ancestors().nth(4).map(|target| target.join("kernels")),
    };
    let mut list = String::new();
    if let Some(folder) = folder {
        // Cargo can only watch what is there.
        let _ = fs::create_dir_all(&folder);
        println!("cargo:rerun-if-changed={}", folder.display());
        let fresh = is_fresh(&folder);
        for (name, file) in [
            ("sm_80", "plain_sm_80.cubin"),
            ("sm_90", "plain_sm_90.cubin"),
            ("sm_100", "plain_sm_100.cubin"),
            ("compute_80", "plain_compute_80.ptx"),
        ] {
            let path: PathBuf = folder.join(file);
            if fresh && path.is_file() {
                list += &format!("(\"{name}\", include_bytes!({path:?})),\n");
            }
        }
    }
    let text = format!("static IMAGES: &[(&str, &[u8])] = &[\n{list}];\n");
    fs::write(out.join("images.rs"), text).expect("cannot write to OUT_DIR");
}

/// True if the folder was made from the sources as they are: an old image would not know the descriptions of today.
fn is_fresh(folder: &Path) -> bool {
    let Ok(source) = fs::read(folder.join("plain.cu")) else { return false };
    let sources = Path::new(&env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("src");
    println!("cargo:rerun-if-changed={}", sources.display());
    let text = fs::read_to_string(sources.join("lib.rs")).unwrap_or_default();
    let list =
        text.split("pub const PLAIN").nth(1).and_then(|rest| rest.split(");").next()).unwrap_or_default();
    let parts = list.split("include_str!(\"").skip(1).filter_map(|part| part.split('"').next());
    let now: Vec<u8> = parts.flat_map(|part| fs::read(sources.join(part)).unwrap_or_default()).collect();
    let fresh = now == source;
    if !fresh {
        println!("cargo:warning=gt-kernels: {} is of other sources, run tools/kernels.py", folder.display());
    }
    fresh
}
