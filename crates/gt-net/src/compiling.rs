//! How a session's programs are compiled: the variables that say so, as they travel (C13).

use gt_ir::{Error, Result};
use serde::{Deserialize, Serialize};

/// What the variables of one process say; what it leaves open is for the next to say.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Compiling {
    /// `GT_AUTO_COMPILE`.
    pub auto: Option<bool>,
    /// `GT_COMPILE`.
    pub at_once: Option<bool>,
    /// `GT_WORKER_BATCH_SIZE`.
    pub batch: Option<u32>,
    /// `GT_HOTPATH_THRESHOLD`.
    pub threshold: Option<u32>,
    /// `GT_HOTPATH_MIN_SEQ`.
    pub min_seq: Option<u32>,
    /// `GT_HOTPATH_MAX_EXPAND`.
    pub max_expand: Option<u32>,
}

impl Compiling {
    /// Reads the variables, found by name. A value that cannot be meant is an error, never ignored.
    pub fn read(var: impl Fn(&str) -> Option<String>) -> Result<Compiling> {
        let var = |name: &str| var(name).filter(|v| !v.is_empty());
        let switch = |name: &str| match var(name).as_deref() {
            None => Ok(None),
            Some("0") => Ok(Some(false)),
            Some("1") => Ok(Some(true)),
            Some(other) => Err(Error::Value(format!("{name}: expected 0 or 1, got {other:?}"))),
        };
        let count = |name: &str| match var(name) {
            None => Ok(None),
            Some(v) => match v.trim().parse::<u32>() {
                Ok(n) if n > 0 => Ok(Some(n)),
                _ => Err(Error::Value(format!("{name}: expected a whole number from 1 on, got {v:?}"))),
            },
        };
        Ok(Compiling {
            auto: switch("GT_AUTO_COMPILE")?,
            at_once: switch("GT_COMPILE")?,
            batch: count("GT_WORKER_BATCH_SIZE")?,
            threshold: count("GT_HOTPATH_THRESHOLD")?,
            min_seq: count("GT_HOTPATH_MIN_SEQ")?,
            max_expand: count("GT_HOTPATH_MAX_EXPAND")?,
        })
    }

    /// Reads the variables of this process.
    pub fn from_env() -> Result<Compiling> {
        Compiling::read(|name| std::env::var_os(name).map(|v| v.to_string_lossy().into_owned()))
    }

    /// What is open here as `other` says.
    pub fn or(self, other: Compiling) -> Compiling {
        Compiling {
            auto: self.auto.or(other.auto),
            at_once: self.at_once.or(other.at_once),
            batch: self.batch.or(other.batch),
            threshold: self.threshold.or(other.threshold),
            min_seq: self.min_seq.or(other.min_seq),
            max_expand: self.max_expand.or(other.max_expand),
        }
    }

    /// Programs are compiled whole; otherwise they run op by op. Asking for the best plan at once asks for a plan.
    pub fn auto(self) -> bool {
        self.auto.unwrap_or(true) || self.at_once()
    }

    /// The best plan is made before the first run.
    pub fn at_once(self) -> bool {
        self.at_once.unwrap_or(false)
    }

    /// Instructions that run together where programs are not compiled.
    pub fn batch(self) -> usize {
        self.batch.unwrap_or(1) as usize
    }

    /// How often a sequence comes before it is hot.
    pub fn threshold(self) -> u32 {
        self.threshold.unwrap_or(3)
    }

    /// Instructions of the shortest sequence that counts.
    pub fn min_seq(self) -> usize {
        self.min_seq.unwrap_or(2) as usize
    }

    /// How many sizes of one structure get plans of their own before sizes become run-time arguments.
    pub fn max_expand(self) -> u32 {
        self.max_expand.unwrap_or(4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(vars: &[(&str, &str)]) -> Result<Compiling> {
        Compiling::read(|name| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string()))
    }

    #[test]
    fn the_client_comes_first_then_the_worker_then_what_is_built_in() {
        let client = read(&[("GT_AUTO_COMPILE", "0"), ("GT_WORKER_BATCH_SIZE", "")]).unwrap();
        let worker = read(&[("GT_AUTO_COMPILE", "1"), ("GT_WORKER_BATCH_SIZE", "10")]).unwrap();
        let both = client.or(worker);
        assert_eq!((both.auto(), both.batch(), both.threshold(), both.max_expand()), (false, 10, 3, 4));
        let forced = read(&[("GT_COMPILE", "1")]).unwrap().or(client);
        assert!(forced.auto() && forced.at_once());
    }

    #[test]
    fn bad_values_are_told() {
        let error = read(&[("GT_AUTO_COMPILE", "yes")]).unwrap_err();
        assert_eq!(error.to_string(), "GT_AUTO_COMPILE: expected 0 or 1, got \"yes\"");
        for bad in ["0", "-1", "many"] {
            let error = read(&[("GT_HOTPATH_THRESHOLD", bad)]).unwrap_err();
            assert!(error.to_string().contains("expected a whole number from 1 on"), "{error}");
        }
    }
}
