//! What a Python tensor stands for, which may change while the object stays the same one.

use crate::device::Device;
use crate::errors::{Result, runtime_error};
use gt_client::Tensor;
use std::ops::Deref;
use std::sync::OnceLock;

/// A tensor and the device its user gave it. What takes its place stands behind it, so that whoever reads the old one
/// may finish.
pub struct Name {
    tensor: Tensor,
    device: Device,
    later: OnceLock<Box<Name>>,
}

impl Name {
    #[inline]
    pub fn new(tensor: Tensor, device: Device) -> Name {
        Name { tensor, device, later: OnceLock::new() }
    }

    #[inline]
    fn last(&self) -> &Name {
        let mut name = self;
        while let Some(later) = name.later.get() {
            name = later;
        }
        name
    }

    #[inline]
    pub fn device(&self) -> Device {
        self.last().device
    }

    /// Stands for another tensor from now on.
    pub fn exchange(&self, tensor: Tensor, device: Device) -> Result<()> {
        let last = self.last();
        if last.later.set(Box::new(Name::new(tensor, device))).is_err() {
            return runtime_error("data: another thread changed the same tensor at this moment");
        }
        last.tensor.set_grad(None)?;
        Ok(last.tensor.let_go()?)
    }
}

impl Deref for Name {
    type Target = Tensor;

    #[inline]
    fn deref(&self) -> &Tensor {
        &self.last().tensor
    }
}
