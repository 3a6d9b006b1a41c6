//! Descriptors of cuDNN's graph interface: made, given attributes, finished, and read.

use super::api::{Api, Raw, api};
use gt_ir::Result;
use std::ffi::{c_int, c_void};

/// What a descriptor describes.
#[derive(Clone, Copy, PartialEq, Debug)]
#[repr(i32)]
pub enum Kind {
    Pointwise = 0,
    Engine = 2,
    EngineConfig = 3,
    Heuristics = 4,
    ExecutionPlan = 5,
    KnobChoice = 7,
    PointwiseOp = 13,
    Graph = 15,
    VariantPack = 16,
    Tensor = 17,
    Matmul = 18,
    MatmulOp = 19,
    Reduction = 21,
    ReductionOp = 22,
    ReshapeOp = 31,
    DeviceProp = 38,
}

/// The attributes that are used here, by the numbers of `cudnnBackendAttributeName_t`.
pub mod attr {
    use std::ffi::c_int;
    pub const POINTWISE_MODE: c_int = 0;
    pub const POINTWISE_PRECISION: c_int = 1;
    pub const POINTWISE_AXIS: c_int = 9;
    pub const HEURISTICS_MODE: c_int = 200;
    pub const HEURISTICS_GRAPH: c_int = 201;
    pub const HEURISTICS_RESULTS: c_int = 202;
    pub const HEURISTICS_DEVICE: c_int = 204;
    pub const CONFIG_ENGINE: c_int = 300;
    pub const CONFIG_KNOBS: c_int = 302;
    pub const PLAN_HANDLE: c_int = 400;
    pub const PLAN_CONFIG: c_int = 401;
    pub const PLAN_WORKSPACE: c_int = 402;
    pub const PLAN_JSON: c_int = 405;
    pub const PLAN_DEVICE: c_int = 407;
    pub const KNOB_TYPE: c_int = 600;
    pub const KNOB_VALUE: c_int = 601;
    pub const POINTWISE_DESC: c_int = 750;
    pub const POINTWISE_X: c_int = 751;
    pub const POINTWISE_B: c_int = 752;
    pub const POINTWISE_Y: c_int = 753;
    pub const POINTWISE_T: c_int = 758;
    pub const GRAPH_HANDLE: c_int = 800;
    pub const GRAPH_OPS: c_int = 801;
    pub const TENSOR_ALIGNMENT: c_int = 900;
    pub const TENSOR_TYPE: c_int = 901;
    pub const TENSOR_DIMS: c_int = 902;
    pub const TENSOR_STRIDES: c_int = 903;
    pub const TENSOR_ID: c_int = 906;
    pub const TENSOR_VIRTUAL: c_int = 907;
    pub const TENSOR_BY_VALUE: c_int = 908;
    pub const PACK_IDS: c_int = 1000;
    pub const PACK_POINTERS: c_int = 1001;
    pub const PACK_WORKSPACE: c_int = 1003;
    pub const ENGINE_GRAPH: c_int = 1300;
    pub const ENGINE_INDEX: c_int = 1301;
    pub const ENGINE_NOTES: c_int = 1303;
    pub const ENGINE_DEVICE: c_int = 1307;
    pub const MATMUL_TYPE: c_int = 1500;
    pub const MATMUL_A: c_int = 1520;
    pub const MATMUL_B: c_int = 1521;
    pub const MATMUL_C: c_int = 1522;
    pub const MATMUL_DESC: c_int = 1523;
    pub const REDUCTION_OPERATOR: c_int = 1600;
    pub const REDUCTION_TYPE: c_int = 1601;
    pub const REDUCTION_X: c_int = 1610;
    pub const REDUCTION_Y: c_int = 1611;
    pub const REDUCTION_DESC: c_int = 1612;
    pub const RESHAPE_X: c_int = 2200;
    pub const RESHAPE_Y: c_int = 2201;
    pub const DEVICE_NUMBER: c_int = 2700;
    pub const DEVICE_JSON: c_int = 2702;
}

/// The type of an attribute's values.
#[derive(Clone, Copy)]
#[repr(i32)]
pub enum Of {
    Handle = 0,
    DataType = 1,
    Boolean = 2,
    Int64 = 3,
    Pointer = 6,
    HeuristicsMode = 8,
    KnobType = 9,
    Note = 11,
    PointwiseMode = 14,
    Descriptor = 15,
    ReductionOperator = 18,
    Int32 = 23,
    Char = 24,
}

/// A descriptor, destroyed with this.
pub struct Desc {
    raw: Raw,
    kind: Kind,
}

// SAFETY: a descriptor belongs to no thread, and is changed only by whoever has it alone.
unsafe impl Send for Desc {}
// SAFETY: the library only reads finished descriptors.
unsafe impl Sync for Desc {}

impl Desc {
    pub fn new(kind: Kind) -> Result<Desc> {
        let api = api()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: gives a descriptor of a kind the library knows, or an error.
        let made = unsafe { (api.create_descriptor)(kind as c_int, &mut raw) };
        api.check(&format!("create {kind:?}"), made)?;
        Ok(Desc { raw, kind })
    }

    fn said(&self, api: &Api, what: &str, attribute: c_int, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        api.check(&format!("{what} attribute {attribute} of {:?}", self.kind), code)
    }

    /// Sets an attribute to values of the type that the library expects for `of`.
    pub fn set<T: Copy>(&self, attribute: c_int, of: Of, values: &[T]) -> Result<()> {
        let api = api()?;
        let (len, at) = (values.len() as i64, values.as_ptr().cast::<c_void>());
        // SAFETY: the library copies as many values as it is told of.
        let done = unsafe { (api.set_attribute)(self.raw, attribute, of as c_int, len, at) };
        self.said(api, "set", attribute, done)
    }

    /// Sets an attribute to other descriptors, which have to be finished.
    pub fn set_descs(&self, attribute: c_int, descs: &[&Desc]) -> Result<()> {
        let raws: Vec<Raw> = descs.iter().map(|d| d.raw).collect();
        self.set(attribute, Of::Descriptor, &raws)
    }

    /// No attribute changes from now on.
    pub fn finish(self) -> Result<Desc> {
        let api = api()?;
        // SAFETY: the descriptor lives.
        api.check(&format!("finish {:?}", self.kind), unsafe { (api.finalize)(self.raw) })?;
        Ok(self)
    }

    /// Reads an attribute: at most as many values as there is room for, and how many there are.
    pub fn get<T: Copy>(&self, attribute: c_int, of: Of, room: &mut [T]) -> Result<usize> {
        let api = api()?;
        let mut count = 0;
        // SAFETY: the library writes at most as many values as it is told there is room for.
        let done = unsafe {
            let at = room.as_mut_ptr().cast::<c_void>();
            (api.get_attribute)(self.raw, attribute, of as c_int, room.len() as i64, &mut count, at)
        };
        self.said(api, "get", attribute, done)?;
        Ok(count as usize)
    }

    /// Reads a text.
    pub fn text(&self, attribute: c_int) -> Result<String> {
        let len = self.get::<u8>(attribute, Of::Char, &mut [])?;
        let mut bytes = vec![0u8; len];
        let len = self.get(attribute, Of::Char, &mut bytes)?;
        bytes.truncate(len);
        Ok(String::from_utf8_lossy(&bytes).trim_end_matches('\0').into())
    }

    /// Reads descriptors into new ones of a kind.
    pub fn get_descs(&self, attribute: c_int, kind: Kind, most: usize) -> Result<Vec<Desc>> {
        let mut out = (0..most).map(|_| Desc::new(kind)).collect::<Result<Vec<_>>>()?;
        let mut raws: Vec<Raw> = out.iter().map(|d| d.raw).collect();
        let count = self.get(attribute, Of::Descriptor, &mut raws)?;
        out.truncate(count);
        Ok(out)
    }

    pub fn raw(&self) -> Raw {
        self.raw
    }
}

impl Drop for Desc {
    fn drop(&mut self) {
        if let Ok(api) = api() {
            // SAFETY: made in `new`, destroyed once.
            unsafe { (api.destroy_descriptor)(self.raw) };
        }
    }
}
