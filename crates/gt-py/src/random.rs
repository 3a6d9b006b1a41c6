//! `gt.Generator`: random numbers apart from the session's.

use crate::device::{Device, PyDevice};
use crate::errors::Result;
use gt_client::current::current_session;
use gt_client::session::{Generator, drawing_from};
use gt_sync::Mutex;
use pyo3::prelude::*;

/// The seed of a generator that was given none, as in PyTorch.
const FIRST_SEED: u64 = 67_280_421_310_721;

/// A source of random numbers with a seed of its own.
#[pyclass(name = "Generator", module = "gt", frozen)]
pub struct PyGenerator {
    /// The session's numbers, where there is nothing.
    own: Option<Mutex<Generator>>,
    device: Device,
}

impl PyGenerator {
    /// The generator that everything without one draws from.
    pub fn of_session() -> PyGenerator {
        PyGenerator { own: None, device: Device::CPU }
    }

    fn state(&self) -> Result<Generator> {
        match &self.own {
            Some(own) => Ok(*own.lock()),
            None => Ok(current_session()?.generator()),
        }
    }

    fn put(&self, state: Generator) -> Result<()> {
        match &self.own {
            Some(own) => *own.lock() = state,
            None => current_session()?.set_generator(state),
        }
        Ok(())
    }
}

#[pymethods]
impl PyGenerator {
    #[new]
    #[pyo3(signature = (device = None))]
    fn py_new(device: Option<Device>) -> PyGenerator {
        let own = Some(Mutex::new(Generator { key: FIRST_SEED, offset: 0 }));
        PyGenerator { own, device: device.unwrap_or(Device::CPU) }
    }

    /// Starts again from a seed.
    fn manual_seed(slf: Bound<Self>, seed: i64) -> Result<Bound<Self>> {
        slf.get().put(Generator { key: seed as u64, offset: 0 })?;
        Ok(slf)
    }

    /// Starts again from a seed that nobody knows, and gives it.
    fn seed(&self) -> Result<u64> {
        let key = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0u8) >> 1;
        self.put(Generator { key, offset: 0 })?;
        Ok(key)
    }

    fn initial_seed(&self) -> Result<u64> {
        Ok(self.state()?.key)
    }

    /// The state, for `set_state`.
    fn get_state(&self) -> Result<(u64, u64)> {
        let g = self.state()?;
        Ok((g.key, g.offset))
    }

    fn set_state(slf: Bound<Self>, new_state: (u64, u64)) -> Result<Bound<Self>> {
        let (key, offset) = new_state;
        slf.get().put(Generator { key, offset })?;
        Ok(slf)
    }

    /// Another generator that goes on from here.
    fn clone_state(&self) -> Result<PyGenerator> {
        Ok(PyGenerator { own: Some(Mutex::new(self.state()?)), device: self.device })
    }

    #[getter(device)]
    fn py_device(&self) -> PyDevice {
        PyDevice(self.device)
    }
}

/// Draws from a generator, or from the session's numbers where none is given.
pub fn drawn<T>(generator: Option<&Bound<PyGenerator>>, draw: impl FnOnce() -> Result<T>) -> Result<T> {
    match generator.and_then(|g| g.get().own.as_ref()) {
        None => draw(),
        Some(own) => {
            let mut state = *own.lock();
            let out = drawing_from(&mut state, draw);
            *own.lock() = state;
            out
        }
    }
}
