//! Random tensors, by the vectors of the processor.

use super::isa::per_isa;
use gt_ir::{DType, Dist, philox};

per_isa! {
    /// Writes elements `first..` of a random tensor; `out` is whole elements.
    ///
    /// # Safety
    /// None: only code for the processor's vectors is called.
    pub unsafe fn fill(dist: Dist, dtype: DType, key: u64, offset: u64, first: u64, out: &mut [u8]) {
        philox::fill_here(dist, dtype, key, offset, first, out)
    }
}
