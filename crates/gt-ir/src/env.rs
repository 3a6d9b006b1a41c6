//! Reading `GT_*` switches.

/// True if a switch is set to anything but nothing or `0`.
pub fn on(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|v| !v.is_empty() && v != "0")
}
