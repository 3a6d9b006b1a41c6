//! The floating-point type of what is made without one.

use gt_ir::{DType, Result, bail};
use std::sync::atomic::{AtomicU8, Ordering};

static FLOAT: AtomicU8 = AtomicU8::new(DType::F32 as u8);

/// The type of floating-point numbers that come without one.
#[inline]
pub fn float() -> DType {
    DType::ALL[FLOAT.load(Ordering::Relaxed) as usize]
}

/// Sets it, for this process.
pub fn set_float(dtype: DType) -> Result<()> {
    if !dtype.is_float() {
        bail!(Type, "only floating-point types are supported as the default type, got {}", dtype.name());
    }
    FLOAT.store(dtype as u8, Ordering::Relaxed);
    Ok(())
}
