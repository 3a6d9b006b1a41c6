//! Looking for NaN in the backward pass, op by op (`detect_anomaly`): slow, and tells which op made it and where.

use super::mode::GradMode;
use super::node::Node;
use super::record::Var;
use crate::Tensor;
use crate::ops;
use gt_ir::{Binary, Result, bail};
use std::sync::atomic::{AtomicU8, Ordering};

/// Bit 0: the mode is on; bit 1: gradients are looked at. Of the process, as in PyTorch.
static MODE: AtomicU8 = AtomicU8::new(0);

/// Switches the mode, and whether gradients are looked at while it is on; gives what was set before.
pub fn set_anomaly(on: bool, look: bool) -> (bool, bool) {
    let before = MODE.swap(u8::from(on) | u8::from(look) << 1, Ordering::Relaxed);
    (before & 1 != 0, before & 2 != 0)
}

/// True while the mode is on.
#[inline]
pub(super) fn is_on() -> bool {
    MODE.load(Ordering::Relaxed) & 1 != 0
}

/// The line that makes a node, if somebody will ask.
#[inline]
pub(super) fn line() -> Option<Box<str>> {
    if is_on() { recorded_at() } else { None }
}

#[cold]
fn recorded_at() -> Option<Box<str>> {
    let session = crate::current::current_session().ok()?;
    let at = crate::source::current(&session);
    session.files.lock().describe(at).map(String::into_boxed_str)
}

/// Raises if one of the gradients that a node has made holds a NaN.
pub(super) fn look<'a>(node: &Node, grads: impl Iterator<Item = Option<&'a Var>>) -> Result<()> {
    if MODE.load(Ordering::Relaxed) != 3 {
        return Ok(());
    }
    let _mode = GradMode::set(false);
    for (nr, g) in grads.enumerate() {
        let Some(g) = g.filter(|g| g.value.ty.dtype.is_float()) else { continue };
        let g = Tensor::from_value(g.value.clone());
        let nan = ops::reduce::any(&ops::arith::binary(Binary::Ne, &(&g).into(), &(&g).into())?, &[], false)?;
        if nan.bytes()?.iter().any(|byte| *byte != 0) {
            let made = node.made.as_deref().map(|at| format!("\n  the operation was recorded at {at}"));
            bail!(
                Runtime,
                "Function '{}' returned nan values in its {nr}th output.{}",
                node.name(),
                made.unwrap_or_default()
            );
        }
    }
    Ok(())
}
