//! The axis of time: round steps, and times as people write them.

/// A unit that fits a length of time: how many of it make a second, and its name.
pub fn unit(length: f64) -> (f64, &'static str) {
    match length {
        l if l < 2e-3 => (1e6, "µs"),
        l if l < 2.0 => (1e3, "ms"),
        _ => (1.0, "s"),
    }
}

/// A round step so that about `count` of them make `length`.
pub fn step(length: f64, count: usize) -> f64 {
    let rough = length / count.max(1) as f64;
    let ten = 10f64.powf(rough.log10().floor());
    let times = [1.0, 2.0, 5.0, 10.0].into_iter().find(|m| m * ten >= rough).unwrap_or(10.0);
    times * ten
}

/// A number with as many digits as its step needs.
pub fn label(value: f64, step: f64) -> String {
    let digits = (-step.log10().floor()).max(0.0) as usize;
    format!("{value:.digits$}")
}

/// `12.3 ms`.
pub fn time(seconds: f64) -> String {
    let (per, name) = unit(seconds.abs().max(1e-7));
    let value = seconds * per;
    match value {
        v if v.abs() >= 100.0 => format!("{v:.0} {name}"),
        v if v.abs() >= 10.0 => format!("{v:.1} {name}"),
        v => format!("{v:.2} {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round() {
        assert_eq!(step(1.0, 10), 0.1);
        assert_eq!(step(7.3, 10), 1.0);
        assert!((step(0.0023, 8) - 0.0005).abs() < 1e-12);
        assert_eq!(label(0.5, 0.5), "0.5");
        assert_eq!(label(20.0, 10.0), "20");
        assert_eq!(time(0.0123), "12.3 ms");
    }
}
