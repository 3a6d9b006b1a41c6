//! The functions of cuDNN's graph interface, loaded when the first attention may need them.

use super::super::libs::{self, Library};
use gt_ir::{Error, Result, bail};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

/// A handle or a descriptor of the library's.
pub type Raw = *mut c_void;

/// The library's functions. Each that gives a number gives 0, or what went wrong.
pub struct Api {
    get_version: unsafe extern "C" fn() -> usize,
    get_last_error: unsafe extern "C" fn(*mut c_char, usize),
    pub create: unsafe extern "C" fn(*mut Raw) -> c_int,
    pub destroy: unsafe extern "C" fn(Raw) -> c_int,
    pub set_stream: unsafe extern "C" fn(Raw, Raw) -> c_int,
    pub create_descriptor: unsafe extern "C" fn(c_int, *mut Raw) -> c_int,
    pub destroy_descriptor: unsafe extern "C" fn(Raw) -> c_int,
    pub finalize: unsafe extern "C" fn(Raw) -> c_int,
    pub set_attribute: unsafe extern "C" fn(Raw, c_int, c_int, i64, *const c_void) -> c_int,
    pub get_attribute: unsafe extern "C" fn(Raw, c_int, c_int, i64, *mut i64, *mut c_void) -> c_int,
    pub execute: unsafe extern "C" fn(Raw, Raw, Raw) -> c_int,
}

/// The oldest version used here: the first whose masks may be minus infinity. 9.10.0 and 9.10.1 have known faults.
const OLDEST: usize = 91002;

/// Finds a function of the library. The type is that of the field it is written to.
macro_rules! function {
    ($library:expr, $name:literal) => {{
        let Some(at) = $library.symbol($name) else {
            bail!(
                Runtime,
                "cudnn: {} is missing in libcudnn: install cuDNN 9.10.2 or newer",
                $name.to_string_lossy()
            )
        };
        // SAFETY: the library's function of that name has that type.
        unsafe { std::mem::transmute(at) }
    }};
}

impl Api {
    // The fields say what the functions are.
    #[allow(clippy::missing_transmute_annotations)]
    fn load(library: Library) -> Result<Api> {
        let api = Api {
            get_version: function!(library, c"cudnnGetVersion"),
            get_last_error: function!(library, c"cudnnGetLastErrorString"),
            create: function!(library, c"cudnnCreate"),
            destroy: function!(library, c"cudnnDestroy"),
            set_stream: function!(library, c"cudnnSetStream"),
            create_descriptor: function!(library, c"cudnnBackendCreateDescriptor"),
            destroy_descriptor: function!(library, c"cudnnBackendDestroyDescriptor"),
            finalize: function!(library, c"cudnnBackendFinalize"),
            set_attribute: function!(library, c"cudnnBackendSetAttribute"),
            get_attribute: function!(library, c"cudnnBackendGetAttribute"),
            execute: function!(library, c"cudnnBackendExecute"),
        };
        let version = api.version();
        if version < OLDEST {
            bail!(Runtime, "cudnn: version {} is too old, expected 9.10.2 or newer", spelled(version));
        }
        Ok(api)
    }

    /// 91400 for 9.14.0.
    pub fn version(&self) -> usize {
        // SAFETY: plain query.
        unsafe { (self.get_version)() }
    }

    /// The result of a call as an error a person can read.
    pub fn check(&self, what: &str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let mut text = [0 as c_char; 512];
        // SAFETY: writes a text that ends within the room it is told of.
        let said = unsafe {
            (self.get_last_error)(text.as_mut_ptr(), text.len());
            CStr::from_ptr(text.as_ptr()).to_string_lossy().into_owned()
        };
        Err(Error::Runtime(format!("cudnn: {what}: error {code}: {}", said.trim())))
    }
}

/// A version as people write it.
pub fn spelled(version: usize) -> String {
    format!("{}.{}.{}", version / 10000, version / 100 % 100, version % 100)
}

/// The library, or why there is none.
pub fn api() -> Result<&'static Api> {
    static API: OnceLock<Result<Api>> = OnceLock::new();
    let load = || match libs::find_packaged("libcudnn.so") {
        Some(library) => {
            super::super::leave::before_libraries();
            Api::load(library)
        }
        None => bail!(
            Runtime,
            "cudnn: libcudnn.so.9 not found in {}: install cuDNN 9, or `pip install nvidia-cudnn-cu13`",
            libs::searched()
        ),
    };
    API.get_or_init(load).as_ref().map_err(Clone::clone)
}
