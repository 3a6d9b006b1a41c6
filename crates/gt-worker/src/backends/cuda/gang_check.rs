//! A gang whose every step is checked, for somebody who searches for the reason of wrong numbers (`GT_NCCL=check`): collectives
//! by NCCL against what the host works out, and kernels made for the plan against those that ship with the program.

use super::gang_host::{self, fetch};
use super::gang_nccl::Gang;
use super::lane::Lane;
use super::plan::Inner;
use super::steps::{Bound, Ready, Steps, Wanted};
use crate::backend::PlanError;
use crate::gang::Group;
use gt_compiler::Work;
use gt_ir::{Error, Result};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// Differences that are told at most.
const MOST: u32 = 6;

fn wrong(error: Error) -> PlanError {
    PlanError { instr: None, error }
}

/// Says something, unless much was said before.
fn tell(text: impl FnOnce() -> String) {
    static SAID: AtomicU32 = AtomicU32::new(0);
    if SAID.fetch_add(1, Ordering::Relaxed) < MOST {
        gt_ir::say!("gt worker: {}", text());
    }
}

impl Inner {
    /// Queues steps one by one and compares what each gives.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn compared(
        &self,
        steps: &Steps,
        which: Range<usize>,
        passed: &[usize],
        run: &Bound,
        lane: &Lane,
        group: &dyn Group,
        gang: &Gang,
    ) -> Result<(), PlanError> {
        let plain = self.plain_steps().filter(|plain| !std::ptr::eq(&**plain, steps));
        let groups = plain.as_ref().map_or_else(Vec::new, |_| Wanted::new(&self.plan).together());
        for i in which {
            if let Work::Collective(c) = &self.plan.steps[i].work {
                let expected = gang_host::results(c, &self.plan, run, lane, group)?;
                self.queue(steps, i..i + 1, passed, run, lane)?;
                gang_host::compare(c, &expected, run, lane, group)?;
                continue;
            }
            let group = groups.iter().find(|group| group.contains(&i));
            let unit = group.cloned().unwrap_or_else(|| vec![i]);
            let kernels = matches!(steps.list[i], Ready::Kernels { .. }) && unit.last() == Some(&i);
            match plain.as_ref().filter(|_| kernels) {
                Some(plain) => {
                    self.compare_unit(steps, plain, &unit, run, lane).map_err(wrong)?;
                    gang.step(i, run, lane).map_err(wrong)?;
                }
                None => self.queue(steps, i..i + 1, passed, run, lane)?,
            }
        }
        Ok(())
    }

    /// Runs steps by the plain kernels and by the plan's own, from the same bytes.
    fn compare_unit(
        &self,
        steps: &Steps,
        plain: &Steps,
        unit: &[usize],
        run: &Bound,
        lane: &Lane,
    ) -> Result<()> {
        let mut storages: Vec<u32> = Vec::new();
        for &i in unit {
            self.plan.steps[i].writes(|s| storages.push(s));
        }
        let place = |s: &u32| (run.addresses[*s as usize], self.plan.storages[*s as usize].bytes);
        let spans: Vec<(u64, usize)> = storages.iter().map(place).collect();
        let before = fetch(&spans, lane)?;
        unit.iter().try_for_each(|&i| plain.enqueue(i, run, lane))?;
        let expected = fetch(&spans, lane)?;
        for ((at, _), bytes) in spans.iter().zip(&before) {
            // SAFETY: the storage has that many bytes, and the run keeps it.
            unsafe { lane.send(&lane.stream, *at, bytes)? };
        }
        unit.iter().try_for_each(|&i| steps.enqueue(i, run, lane))?;
        let got = fetch(&spans, lane)?;
        for (k, (got, expected)) in got.iter().zip(&expected).enumerate().filter(|(_, (a, b))| a != b) {
            let words = |bytes: &[u8]| -> Vec<f32> {
                bytes.chunks_exact(4).map(|w| f32::from_ne_bytes([w[0], w[1], w[2], w[3]])).collect()
            };
            let (got, expected) = (words(got), words(expected));
            let differ: Vec<usize> =
                (0..got.len()).filter(|&j| got[j].to_bits() != expected[j].to_bits()).collect();
            let first = differ.first().copied().unwrap_or(0);
            tell(|| {
                let texts: Vec<String> =
                    unit.iter().map(|&i| format!("{i}: {}", self.plan.steps[i].work)).collect();
                format!(
                    "steps {unit:?}: s{} differs in {} of {} words, the first {first}: {} for {} ({})\n{}\nplaces {:?}\n{}",
                    storages[k],
                    differ.len(),
                    got.len(),
                    got.get(first).copied().unwrap_or(0.0),
                    expected.get(first).copied().unwrap_or(0.0),
                    differ.iter().take(16).map(ToString::to_string).collect::<Vec<_>>().join(" "),
                    texts.join("\n"),
                    storages
                        .iter()
                        .zip(&spans)
                        .map(|(s, (at, n))| format!("s{s} {at:x} {n}"))
                        .collect::<Vec<_>>(),
                    Wanted::new(&self.plan).text(unit),
                )
            });
        }
        Ok(())
    }
}
