//! Which attention steps cuDNN runs. A step's shapes, the device's architecture and the library's version decide, so that the
//! same program keeps its way in every run (C7).

use gt_ir::{Result, bail};
use gt_kernels::attention::Form;

/// Who attends, as the worker's user wants it (`GT_ATTENTION`).
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum Wish {
    /// Whoever was measured to be faster.
    #[default]
    Best,
    /// Kernels of ours alone.
    Own,
    /// The library wherever it can.
    Cudnn,
}

impl Wish {
    pub fn from_env() -> Result<Wish> {
        match std::env::var("GT_ATTENTION").unwrap_or_default().as_str() {
            "" => Ok(Wish::Best),
            "own" => Ok(Wish::Own),
            "cudnn" => Ok(Wish::Cudnn),
            other => bail!(Value, "GT_ATTENTION: got `{other}`, expected `own`, `cudnn` or nothing"),
        }
    }
}

/// What the choice depends on beside a step's form.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    pub wish: Wish,
    /// Compute capability: 90 for Hopper.
    pub arch: u32,
    /// 91400 for 9.14.0.
    pub version: usize,
}

/// Shorter rows are split over keys by the library, and the order of those sums is not its promise.
const FEWEST_ROWS: usize = 64;

impl Choice {
    /// True if the library runs a step.
    pub fn takes(&self, form: &Form) -> bool {
        match self.wish {
            Wish::Own => false,
            Wish::Cudnn => self.can(form),
            Wish::Best => self.can(form) && self.is_faster(form),
        }
    }

    /// True if the library has a way that gives the same bits in every run.
    fn can(&self, form: &Form) -> bool {
        let eights = form.d.is_multiple_of(8) && form.e.is_multiple_of(8);
        let widest = form.d.max(form.e);
        // On Ampere, Ada and Blackwell gradients of wide heads have no way, or none that adds in order.
        let most = if form.grad.is_some() && self.arch != 90 { 128 } else { 256 };
        // Up to 9.15.0 gradients take the last tile of keys for whole.
        let whole = form.grad.is_none() || self.version > 91500 || form.cols.is_multiple_of(128);
        self.arch >= 80 && eights && widest <= most && form.rows >= FEWEST_ROWS && whole
    }

    /// The figures behind this are in docs/products-and-attention.md.
    fn is_faster(&self, form: &Form) -> bool {
        // On Hopper kernels of ours take heads of 64 and 128 as fast, and gradients without memory for scores.
        let wide = form.d.max(form.e) > 128 || !(form.d | form.e).is_multiple_of(64);
        self.arch != 90 || form.grad.is_none() && wide
    }
}
