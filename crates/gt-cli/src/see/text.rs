//! Sizes, times and counts as people write them.

/// `512 B`, `3.8 MB`, `1.2 GB`.
pub fn bytes(n: f64) -> String {
    const UNITS: [&str; 5] = ["B", "KB", "MB", "GB", "TB"];
    scaled(n, 1024.0, &UNITS, " ")
}

/// `950`, `12.3k`, `4.5M`.
pub fn count(n: f64) -> String {
    const UNITS: [&str; 4] = ["", "k", "M", "G"];
    scaled(n, 1000.0, &UNITS, "")
}

fn scaled(mut n: f64, step: f64, units: &[&str], space: &str) -> String {
    let mut unit = 0;
    while n >= step * 0.9995 && unit + 1 < units.len() {
        n /= step;
        unit += 1;
    }
    match (unit, n) {
        (0, n) if n.fract() == 0.0 || n >= 100.0 => format!("{n:.0}{space}{}", units[unit]),
        (_, n) if n < 99.95 => format!("{n:.1}{space}{}", units[unit]),
        (_, n) => format!("{n:.0}{space}{}", units[unit]),
    }
}

/// `85 us`, `12.3 ms`, `4.2 s`, `3m 20s`, `2h 05m`.
pub fn seconds(s: f64) -> String {
    match s {
        s if s < 1e-3 => format!("{:.0} us", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s if s < 100.0 => format!("{s:.1} s"),
        s if s < 3600.0 => format!("{}m {:02}s", s as u64 / 60, s as u64 % 60),
        s => format!("{}h {:02}m", s as u64 / 3600, s as u64 / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_are_short() {
        assert_eq!(bytes(0.0), "0 B");
        assert_eq!(bytes(1023.0), "1023 B");
        assert_eq!(bytes(1024.0), "1.0 KB");
        assert_eq!(bytes(4_000_000.0), "3.8 MB");
        assert_eq!(bytes(17.0 * 1024f64.powi(3)), "17.0 GB");
        assert_eq!(count(999.0), "999");
        assert_eq!(count(12_345.0), "12.3k");
        assert_eq!(seconds(0.000085), "85 us");
        assert_eq!(seconds(200.0), "3m 20s");
        assert_eq!(seconds(7500.0), "2h 05m");
    }
}
