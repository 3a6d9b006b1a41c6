//! `gt.device`: carried by tensors as PyTorch programs expect, without meaning for where they lie.

use crate::errors::{Fault, Result, runtime_error, type_error};
use pyo3::Borrowed;
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyString, PyTuple};
use std::cell::RefCell;

const KINDS: [&str; 6] = ["cpu", "cuda", "mps", "xpu", "meta", "gt"];
const NO_INDEX: u16 = u16::MAX;

thread_local! {
    /// The devices of what is made without one: that of `set_default_device`, then those of `with` blocks.
    static DEFAULTS: RefCell<Vec<Device>> = const { RefCell::new(Vec::new()) };
}

/// A device as the user named it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Device {
    kind: u8,
    index: u16,
}

impl Device {
    pub const CPU: Device = Device { kind: 0, index: NO_INDEX };
    pub const CUDA: Device = Device { kind: 1, index: 0 };

    /// The device of a result: that of the first operand that is not on the CPU.
    #[inline]
    pub fn or(self, other: Device) -> Device {
        if self.kind == 0 { other } else { self }
    }

    /// The device of what is made without one.
    pub fn default() -> Device {
        DEFAULTS.with_borrow(|all| all.last().copied().unwrap_or(Device::CPU))
    }

    pub fn is_cpu(self) -> bool {
        self.kind == 0
    }

    pub fn is_cuda(self) -> bool {
        self.kind == 1
    }

    /// `cuda:0`.
    pub fn text(self) -> String {
        let kind = KINDS[self.kind as usize];
        if self.index == NO_INDEX { kind.into() } else { format!("{kind}:{}", self.index) }
    }

    fn parse(text: &str) -> Result<Device> {
        let (kind, index) = match text.split_once(':') {
            None => (text, NO_INDEX),
            Some((kind, index)) => match index.parse() {
                Ok(i) => (kind, i),
                Err(_) => return runtime_error(format!("device: invalid device string: '{text}'")),
            },
        };
        match KINDS.iter().position(|k| *k == kind) {
            Some(kind) => Ok(Device { kind: kind as u8, index }),
            None => runtime_error(format!(
                "device: expected one of {} at the start of a device string, got '{text}'",
                KINDS.join(", ")
            )),
        }
    }

    /// The device a tensor is said to lie on: a bare `cuda` means the first.
    pub fn settled(self) -> Device {
        if self.is_cuda() && self.index == NO_INDEX { Device::CUDA } else { self }
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for Device {
    type Error = Fault;

    #[cfg(feature = "stubs")]
    const INPUT_TYPE: pyo3::inspect::PyStaticExpr = <PyDevice as pyo3::PyTypeInfo>::TYPE_HINT;

    fn extract(obj: Borrowed<'a, 'py, PyAny>) -> Result<Device> {
        if let Ok(d) = obj.cast::<PyDevice>() {
            return Ok(d.get().0);
        }
        if let Ok(text) = obj.cast::<PyString>() {
            return Device::parse(text.to_str()?);
        }
        if obj.cast::<PyInt>().is_ok() {
            return Ok(Device { kind: 1, index: obj.extract()? });
        }
        if obj.hasattr("type")? && obj.hasattr("index")? {
            return Device::parse(obj.str()?.to_str()?);
        }
        type_error(format!("device: expected a device or a string such as 'cuda:0', got {}", obj.repr()?))
    }
}

/// A device, as PyTorch programs name it.
#[pyclass(name = "device", module = "gt", frozen, eq, hash)]
#[derive(PartialEq, Eq, Hash)]
pub struct PyDevice(pub Device);

#[pymethods]
impl PyDevice {
    #[new]
    #[pyo3(signature = (device, index = None))]
    fn new(device: Device, index: Option<u16>) -> PyDevice {
        PyDevice(Device { index: index.unwrap_or(device.index), ..device })
    }

    #[getter(r#type)]
    fn kind(&self) -> &'static str {
        KINDS[self.0.kind as usize]
    }

    #[getter]
    fn index(&self) -> Option<u16> {
        (self.0.index != NO_INDEX).then_some(self.0.index)
    }

    fn __str__(&self) -> String {
        self.0.text()
    }

    fn __repr__(&self) -> String {
        match self.index() {
            None => format!("device(type='{}')", self.kind()),
            Some(i) => format!("device(type='{}', index={i})", self.kind()),
        }
    }

    fn __reduce__(slf: Bound<'_, Self>) -> (Bound<'_, pyo3::types::PyType>, (String,)) {
        (slf.get_type(), (slf.get().0.text(),))
    }
    /// Makes it the device of what is made without one, for a `with` block.
    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        let default = Device::default();
        DEFAULTS.with_borrow_mut(|all| {
            if all.is_empty() {
                all.push(default);
            }
            all.push(slf.get().0.settled());
        });
        slf
    }

    #[pyo3(signature = (*error))]
    fn __exit__(&self, error: &Bound<PyTuple>) {
        let _ = error;
        DEFAULTS.with_borrow_mut(|all| all.pop());
    }
}

/// Sets the device of what is made without one in this thread; none is the CPU.
#[pyfunction]
pub fn set_default_device(device: Option<Device>) {
    DEFAULTS.with_borrow_mut(|all| {
        all.clear();
        all.push(device.map_or(Device::CPU, Device::settled));
    });
}

/// The device of what is made without one.
#[pyfunction]
pub fn get_default_device() -> PyDevice {
    PyDevice(Device::default())
}
