//! A graph of cuDNN's operations, and the plan by which the library runs it.

use super::api::{Raw, api};
use super::desc::{Desc, Kind, Of, attr};
use gt_ir::{Error, Result};
use std::ffi::c_int;

/// Types of elements, by the library's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(i32)]
pub enum Type {
    F32 = 0,
    F16 = 2,
    I32 = 4,
    BF16 = 9,
    Bool = 11,
}

/// Pointwise operations, by the library's numbers.
#[derive(Clone, Copy, PartialEq, Debug)]
#[repr(i32)]
pub enum Pointwise {
    Add = 0,
    Mul = 1,
    Div = 6,
    Sub = 9,
    Exp = 13,
    Log = 15,
    Identity = 21,
    GreaterEqual = 303,
    Index = 501,
    Select = 601,
}

/// Reductions, by the library's numbers.
#[derive(Clone, Copy)]
#[repr(i32)]
pub enum Reduce {
    Add = 0,
    Max = 3,
}

/// Sizes and distances of four dimensions, in elements.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Lay {
    pub dims: [i64; 4],
    pub strides: [i64; 4],
}

impl Lay {
    /// One element after the other.
    pub fn dense(dims: [i64; 4]) -> Lay {
        let [_, b, c, d] = dims;
        Lay { dims, strides: [b * c * d, c * d, d, 1] }
    }

    /// The last two dimensions the other way round.
    pub fn turned(self) -> Lay {
        let turn = |[a, b, c, d]: [i64; 4]| [a, b, d, c];
        Lay { dims: turn(self.dims), strides: turn(self.strides) }
    }
}

/// A tensor of a graph.
pub struct Tensor {
    desc: Desc,
    pub lay: Lay,
}

/// Ids of tensors that lie between operations start here.
const BETWEEN: i64 = 1000;

/// Operations in the order in which they were put.
#[derive(Default)]
pub struct Ops {
    list: Vec<Desc>,
    /// Parts of operations; a graph needs them as long as it is made.
    parts: Vec<Desc>,
    between: i64,
}

impl Ops {
    fn tensor(&self, id: i64, of: Type, lay: Lay, is_virtual: bool, by_value: bool) -> Result<Tensor> {
        let desc = Desc::new(Kind::Tensor)?;
        desc.set(attr::TENSOR_ID, Of::Int64, &[id])?;
        desc.set(attr::TENSOR_TYPE, Of::DataType, &[of as c_int])?;
        desc.set(attr::TENSOR_DIMS, Of::Int64, &lay.dims)?;
        desc.set(attr::TENSOR_STRIDES, Of::Int64, &lay.strides)?;
        desc.set(attr::TENSOR_ALIGNMENT, Of::Int64, &[16i64])?;
        desc.set(attr::TENSOR_VIRTUAL, Of::Boolean, &[is_virtual])?;
        desc.set(attr::TENSOR_BY_VALUE, Of::Boolean, &[by_value])?;
        Ok(Tensor { desc: desc.finish()?, lay })
    }

    /// A tensor whose address is given when the graph runs.
    pub fn given(&self, id: i64, of: Type, lay: Lay) -> Result<Tensor> {
        self.tensor(id, of, lay, false, false)
    }

    /// A number that is given when the graph runs.
    pub fn number(&self, id: i64) -> Result<Tensor> {
        self.tensor(id, Type::F32, Lay::dense([1; 4]), false, true)
    }

    /// A tensor between operations, which lies nowhere.
    pub fn between(&mut self, of: Type, lay: Lay) -> Result<Tensor> {
        self.between += 1;
        self.tensor(BETWEEN + self.between, of, lay, true, false)
    }

    /// `y = mode(x, b)`, or `y = t ? x : b`.
    pub fn pointwise(&mut self, mode: Pointwise, args: &[&Tensor], y: &Tensor) -> Result<()> {
        self.pointwise_along(mode, args, y, Type::F32, None)
    }

    /// The same, computed in a type; positions are counted along an axis.
    pub fn pointwise_along(
        &mut self,
        mode: Pointwise,
        args: &[&Tensor],
        y: &Tensor,
        precision: Type,
        axis: Option<i64>,
    ) -> Result<()> {
        let what = Desc::new(Kind::Pointwise)?;
        what.set(attr::POINTWISE_MODE, Of::PointwiseMode, &[mode as c_int])?;
        what.set(attr::POINTWISE_PRECISION, Of::DataType, &[precision as c_int])?;
        if let Some(axis) = axis {
            what.set(attr::POINTWISE_AXIS, Of::Int64, &[axis])?;
        }
        let what = what.finish()?;
        let op = Desc::new(Kind::PointwiseOp)?;
        op.set_descs(attr::POINTWISE_DESC, &[&what])?;
        for (at, arg) in [attr::POINTWISE_X, attr::POINTWISE_B, attr::POINTWISE_T].into_iter().zip(args) {
            op.set_descs(at, &[&arg.desc])?;
        }
        op.set_descs(attr::POINTWISE_Y, &[&y.desc])?;
        self.put(op, what)
    }

    /// `y = a @ b`, summed in f32.
    pub fn matmul(&mut self, a: &Tensor, b: &Tensor, y: &Tensor) -> Result<()> {
        let what = Desc::new(Kind::Matmul)?;
        what.set(attr::MATMUL_TYPE, Of::DataType, &[Type::F32 as c_int])?;
        let what = what.finish()?;
        let op = Desc::new(Kind::MatmulOp)?;
        op.set_descs(attr::MATMUL_A, &[&a.desc])?;
        op.set_descs(attr::MATMUL_B, &[&b.desc])?;
        op.set_descs(attr::MATMUL_C, &[&y.desc])?;
        op.set_descs(attr::MATMUL_DESC, &[&what])?;
        self.put(op, what)
    }

    /// `y = how(x)` along dimensions in which `y` has one element, or as many as share one.
    pub fn reduce(&mut self, how: Reduce, x: &Tensor, y: &Tensor) -> Result<()> {
        let what = Desc::new(Kind::Reduction)?;
        what.set(attr::REDUCTION_OPERATOR, Of::ReductionOperator, &[how as c_int])?;
        what.set(attr::REDUCTION_TYPE, Of::DataType, &[Type::F32 as c_int])?;
        let what = what.finish()?;
        let op = Desc::new(Kind::ReductionOp)?;
        op.set_descs(attr::REDUCTION_X, &[&x.desc])?;
        op.set_descs(attr::REDUCTION_Y, &[&y.desc])?;
        op.set_descs(attr::REDUCTION_DESC, &[&what])?;
        self.put(op, what)
    }

    /// `y` is `x` seen otherwise.
    pub fn reshape(&mut self, x: &Tensor, y: &Tensor) -> Result<()> {
        let op = Desc::new(Kind::ReshapeOp)?;
        op.set_descs(attr::RESHAPE_X, &[&x.desc])?;
        op.set_descs(attr::RESHAPE_Y, &[&y.desc])?;
        self.list.push(op.finish()?);
        Ok(())
    }

    fn put(&mut self, op: Desc, part: Desc) -> Result<()> {
        self.list.push(op.finish()?);
        self.parts.push(part);
        Ok(())
    }
}

/// What a graph is planned for.
pub enum For<'a> {
    /// The device on which the library was opened.
    Handle(Raw),
    /// A device known by its properties alone.
    Properties(&'a Desc),
}

impl For<'_> {
    fn tell(&self, desc: &Desc, handle: Option<c_int>, properties: Option<c_int>) -> Result<()> {
        match (self, handle, properties) {
            (For::Handle(raw), Some(at), _) => desc.set(at, Of::Handle, &[*raw]),
            (For::Properties(device), _, Some(at)) => desc.set_descs(at, &[device]),
            _ => Ok(()),
        }
    }
}

/// A property of results, by the library's number: two runs may differ.
const NONDETERMINISTIC: c_int = 4;
/// How many ways of running a graph are asked for.
const WAYS: usize = 16;

/// A way of running a graph.
pub struct Plan {
    pub desc: Desc,
    pub workspace: usize,
    /// The number of the engine, for whoever wants to know.
    pub engine: i64,
}

impl Plan {
    /// The plan as a text that another process can make it from.
    pub fn written(&self) -> Result<String> {
        self.desc.text(attr::PLAN_JSON)
    }

    /// A plan that was written on such a device by such a library.
    pub fn read(text: &str, device: &For) -> Result<Plan> {
        let desc = Desc::new(Kind::ExecutionPlan)?;
        device.tell(&desc, Some(attr::PLAN_HANDLE), Some(attr::PLAN_DEVICE))?;
        let bytes: Vec<u8> = text.bytes().chain([0]).collect();
        desc.set(attr::PLAN_JSON, Of::Char, &bytes)?;
        let desc = desc.finish()?;
        let mut workspace = [0i64];
        desc.get(attr::PLAN_WORKSPACE, Of::Int64, &mut workspace)?;
        Ok(Plan { desc, workspace: workspace[0].max(0) as usize, engine: -1 })
    }
}

/// A finished graph.
pub struct Graph(Desc);

impl Graph {
    pub fn new(ops: &Ops, device: &For) -> Result<Graph> {
        let desc = Desc::new(Kind::Graph)?;
        let list: Vec<&Desc> = ops.list.iter().collect();
        desc.set_descs(attr::GRAPH_OPS, &list)?;
        device.tell(&desc, Some(attr::GRAPH_HANDLE), None)?;
        Ok(Graph(desc.finish()?))
    }

    /// The library's first way that can run and gives the same bits in every run, with at most `workspace` bytes.
    pub fn plan(&self, device: &For, workspace: usize) -> Result<Plan> {
        let mut refused = None;
        for config in self.configs(device)? {
            match self.try_config(config, device) {
                Ok((_, notes)) if notes.contains(&NONDETERMINISTIC) => {
                    refused = Some(Error::Runtime("cudnn: only ways whose runs differ".into()));
                }
                Ok((plan, _)) if plan.workspace > workspace => {
                    let text = format!("cudnn: a workspace of {} bytes", plan.workspace);
                    refused = Some(Error::Runtime(text));
                }
                Ok((plan, _)) => return Ok(plan),
                Err(error) => refused = Some(error),
            }
        }
        Err(refused.unwrap_or_else(|| Error::Runtime("cudnn: no way to run this".into())))
    }

    /// The library's choices, the best first.
    pub fn configs(&self, device: &For) -> Result<Vec<Desc>> {
        const MODE_A: c_int = 3;
        let heuristics = Desc::new(Kind::Heuristics)?;
        heuristics.set_descs(attr::HEURISTICS_GRAPH, &[&self.0])?;
        heuristics.set(attr::HEURISTICS_MODE, Of::HeuristicsMode, &[MODE_A])?;
        device.tell(&heuristics, None, Some(attr::HEURISTICS_DEVICE))?;
        let heuristics = heuristics.finish()?;
        heuristics.get_descs(attr::HEURISTICS_RESULTS, Kind::EngineConfig, WAYS)
    }

    /// A way by its engine and knobs.
    pub fn config(&self, engine: i64, knobs: &[(c_int, i64)], device: &For) -> Result<Desc> {
        let desc = Desc::new(Kind::Engine)?;
        desc.set_descs(attr::ENGINE_GRAPH, &[&self.0])?;
        desc.set(attr::ENGINE_INDEX, Of::Int64, &[engine])?;
        device.tell(&desc, None, Some(attr::ENGINE_DEVICE))?;
        let desc = desc.finish()?;
        let choices = knobs.iter().map(|&(knob, value)| {
            let choice = Desc::new(Kind::KnobChoice)?;
            choice.set(attr::KNOB_TYPE, Of::KnobType, &[knob])?;
            choice.set(attr::KNOB_VALUE, Of::Int64, &[value])?;
            choice.finish()
        });
        let choices = choices.collect::<Result<Vec<_>>>()?;
        let config = Desc::new(Kind::EngineConfig)?;
        config.set_descs(attr::CONFIG_ENGINE, &[&desc])?;
        config.set_descs(attr::CONFIG_KNOBS, &choices.iter().collect::<Vec<_>>())?;
        config.finish()
    }

    /// Makes a way ready, which may compile; with what the library notes of its results.
    pub fn try_config(&self, config: Desc, device: &For) -> Result<(Plan, Vec<c_int>)> {
        let engine = config.get_descs(attr::CONFIG_ENGINE, Kind::Engine, 1)?;
        let (mut index, mut notes) = ([0i64], [0 as c_int; 16]);
        let mut count = 0;
        for engine in &engine {
            engine.get(attr::ENGINE_INDEX, Of::Int64, &mut index)?;
            count = engine.get(attr::ENGINE_NOTES, Of::Note, &mut notes)?;
        }
        let desc = Desc::new(Kind::ExecutionPlan)?;
        device.tell(&desc, Some(attr::PLAN_HANDLE), Some(attr::PLAN_DEVICE))?;
        desc.set_descs(attr::PLAN_CONFIG, &[&config])?;
        let desc = desc.finish()?;
        let mut workspace = [0i64];
        desc.get(attr::PLAN_WORKSPACE, Of::Int64, &mut workspace)?;
        let plan = Plan { desc, workspace: workspace[0].max(0) as usize, engine: index[0] };
        Ok((plan, notes[..count.min(16)].to_vec()))
    }
}

/// A device by its properties, for planning where it is not: written by `properties` where it is.
pub fn device_from(json: &str) -> Result<Desc> {
    let desc = Desc::new(Kind::DeviceProp)?;
    let bytes: Vec<u8> = json.bytes().chain([0]).collect();
    desc.set(attr::DEVICE_JSON, Of::Char, &bytes)?;
    desc.finish()
}

/// The properties of a device of this process.
pub fn properties(number: i32) -> Result<String> {
    let desc = Desc::new(Kind::DeviceProp)?;
    desc.set(attr::DEVICE_NUMBER, Of::Int32, &[number])?;
    let desc = desc.finish()?;
    desc.text(attr::DEVICE_JSON)
}

/// Puts a plan on a stream.
///
/// # Safety
/// The pointers are memory of the device as the graph's tensors say, or a number of the host's where they are numbers;
/// the device's memory stays until the stream is done, and the workspace has the plan's size.
pub unsafe fn execute(handle: Raw, plan: &Plan, ids: &[i64], pointers: &[Raw], workspace: u64) -> Result<()> {
    let pack = Desc::new(Kind::VariantPack)?;
    pack.set(attr::PACK_IDS, Of::Int64, ids)?;
    pack.set(attr::PACK_POINTERS, Of::Pointer, pointers)?;
    pack.set(attr::PACK_WORKSPACE, Of::Pointer, &[workspace as Raw])?;
    let pack = pack.finish()?;
    let api = api()?;
    // SAFETY: the caller's.
    api.check("execute", unsafe { (api.execute)(handle, plan.desc.raw(), pack.raw()) })
}
