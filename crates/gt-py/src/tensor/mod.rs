//! `gt.Tensor`: a client tensor and the device its user gave it.

mod arith;
mod grad;
mod index;
mod inplace;
mod linalg;
mod look;
mod moves;
mod name;
mod pointwise;
mod reduce;
mod sort;

pub use grad::{backward, tensors};
pub use look::_rebuild;

use crate::device::Device;
use gt_client::Tensor;
use name::Name;
use pyo3::prelude::*;

/// A tensor somewhere on the workers.
#[pyclass(name = "Tensor", module = "gt", subclass, frozen, weakref)]
pub struct PyTensor {
    pub t: Name,
}

impl PyTensor {
    /// A tensor without a device of its own.
    pub fn new(t: Tensor) -> PyTensor {
        PyTensor::on(t, Device::CPU)
    }

    /// A tensor on a device.
    #[inline]
    pub fn on(t: Tensor, device: Device) -> PyTensor {
        PyTensor { t: Name::new(t, device) }
    }

    /// The device the user gave it.
    #[inline]
    pub fn device(&self) -> Device {
        self.t.device()
    }

    /// A result that lies where this tensor lies.
    #[inline]
    pub fn wrap(&self, t: Tensor) -> PyTensor {
        PyTensor::on(t, self.device())
    }
}

/// What a binary operator gives: a tensor, or `NotImplemented` for operands it does not know.
pub struct Answer(pub Option<PyTensor>);

impl<'py> IntoPyObject<'py> for Answer {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    #[cfg(feature = "stubs")]
    const OUTPUT_TYPE: pyo3::inspect::PyStaticExpr = <PyTensor as pyo3::PyTypeInfo>::TYPE_HINT;

    #[inline]
    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self.0 {
            Some(t) => Ok(Bound::new(py, t)?.into_any()),
            None => Ok(py.NotImplemented().into_bound(py)),
        }
    }
}
