//! Kernels of attention that ship compiled: those of the usual types and sizes of a head, so that the first attention of a
//! process waits for no compiler. `attention_shipped.cu` lists them; `tools/kernels.py` compiles each of its groups.

use crate::attention::{FULL, HALF};

/// The kernels that ship. A line `//# GROUP ARCH...` says where the next kernel belongs and for what it is compiled.
const LIST: &str = include_str!("attention_shipped.cu");

/// Compiled kernels, several in one image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shipped {
    /// Names the image.
    pub name: &'static str,
    pub image: &'static [u8],
}

/// The image that holds the kernel of this name and text for a device such as `sm_90`. None in a build without images.
pub fn shipped(name: &str, text: &str, arch: &str) -> Option<Shipped> {
    let (group, archs) = listed(name, text)?;
    let arch = compiled_for(arch).filter(|arch| archs.split(' ').any(|a| a == *arch))?;
    let of = |key: &str| {
        key.strip_prefix(group).and_then(|rest| rest.strip_prefix('_')).is_some_and(|rest| rest == arch)
    };
    crate::ATTENTION.iter().find(|(key, _)| of(key)).map(|&(name, image)| Shipped { name, image })
}

/// The group of a kernel that ships, and what it is compiled for.
fn listed(name: &str, text: &str) -> Option<(&'static str, &'static str)> {
    let at = LIST.find(&format!(" {name}(GtaParams p)"))?;
    let head = LIST[..at].rfind("//# ")?;
    let (line, rest) = LIST[head + 4..].split_once('\n')?;
    let entry = &rest[..rest.find("\n}\n")? + 3];
    let parts = text.strip_suffix(entry)?;
    if parts == HALF || parts == FULL { line.split_once(' ') } else { None }
}

/// What a device's kernels of attention are compiled for.
fn compiled_for(arch: &str) -> Option<&'static str> {
    match arch.strip_prefix("sm_")?.trim_end_matches(['a', 'f']).parse::<u32>().ok()? {
        80..=89 => Some("sm_80"),
        90 => Some("sm_90a"),
        100..=109 => Some("sm_100"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_found_by_their_whole_text() {
        let (head, rest) = LIST[LIST.find("//# ").unwrap() + 4..].split_once('\n').unwrap();
        let (group, archs) = head.split_once(' ').unwrap();
        let entry = &rest[..rest.find("\n}\n").unwrap() + 3];
        let name = entry.split('(').nth(1).unwrap().rsplit(' ').next().unwrap();
        let parts = if group.starts_with("f32") { FULL } else { HALF };
        assert_eq!(listed(name, &format!("{parts}{entry}")), Some((group, archs)), "{name}");
        assert_eq!(listed(name, &format!("{parts} {entry}")), None);
        assert_eq!(listed("gta_no_such", entry), None);
        assert_eq!(compiled_for("sm_86"), Some("sm_80"));
        assert_eq!(compiled_for("sm_90"), Some("sm_90a"));
        assert_eq!(compiled_for("sm_120"), None);
    }
}
