//! The reference as a backend: every instruction on its own, slow and obviously right. The judge in tests.

use crate::backend::{Backend, Buffer, Effort, HostBytes, Memory, Plan, PlanError, StepClock};
use crate::gang::Group;
use crate::gang::collect::{self, Item};
use gt_ir::host::HostTensor;
use gt_ir::reference::{Together, run_part};
use gt_ir::{Result, Slot, Structure, Ty, bail};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes in use and at most so far.
#[derive(Default)]
struct Usage {
    now: AtomicU64,
    peak: AtomicU64,
}

#[derive(Default)]
pub struct ReferenceBackend {
    usage: Arc<Usage>,
}

struct Held {
    tensor: HostTensor,
    usage: Arc<Usage>,
}

impl Held {
    fn buffer(tensor: HostTensor, usage: &Arc<Usage>) -> Buffer {
        let bytes = tensor.data.len() as u64;
        let now = usage.now.fetch_add(bytes, Ordering::Relaxed) + bytes;
        usage.peak.fetch_max(now, Ordering::Relaxed);
        Arc::new(Held { tensor, usage: usage.clone() })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.usage.now.fetch_sub(self.tensor.data.len() as u64, Ordering::Relaxed);
    }
}

impl Memory for Held {
    fn bytes(&self) -> usize {
        self.tensor.data.len()
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

fn held(buffer: &Buffer) -> Result<&HostTensor> {
    match buffer.as_any().downcast_ref::<Held>() {
        Some(held) => Ok(&held.tensor),
        None => bail!(Runtime, "reference: a buffer of another backend"),
    }
}

struct ReferencePlan {
    structure: Arc<Structure>,
    reserve: usize,
    usage: Arc<Usage>,
}

impl Plan for ReferencePlan {
    fn run(&self, inputs: &mut Vec<Buffer>, slots: &[Slot]) -> Result<Vec<Buffer>, PlanError> {
        self.run_with(inputs, slots, &mut |c, _| bail!(Value, "{}: there is one part", c.what.text()))
    }

    fn run_gang(
        &self,
        inputs: &mut Vec<Buffer>,
        slots: &[Slot],
        group: &dyn Group,
        _: Option<&StepClock>,
    ) -> Result<Vec<Buffer>, PlanError> {
        let mut failed = None;
        let outs = self.run_with(inputs, slots, &mut |c, xs| {
            let mut outs = Vec::with_capacity(xs.len());
            for (i, x) in xs.iter().enumerate() {
                outs.push(HostTensor::zeros(&c.what.result(i, &x.ty)?));
            }
            let mut items: Vec<Item> = xs.iter().zip(&mut outs).map(|(x, out)| item(x, out)).collect();
            let done = group.axis(c.axis).and_then(|comm| collect::run(&c.what, comm, &mut items));
            if let Err(error) = done {
                let text = error.error.clone();
                failed = Some(error);
                return Err(text);
            }
            Ok(outs)
        });
        let outs = outs.map_err(|error| failed.filter(|f| f.instr.is_some()).unwrap_or(error))?;
        // Nothing is overwritten here, so this only makes sure that no rank succeeds alone.
        group.agree().map(|()| outs)
    }

    fn reserve(&self) -> usize {
        self.reserve
    }

    fn text(&self) -> String {
        format!("{} instructions, one by one\n", self.structure.instrs.len())
    }
}

fn item<'a>(x: &'a HostTensor, out: &'a mut HostTensor) -> Item<'a> {
    Item { ty: x.ty.clone(), x: &x.data, out: &mut out.data }
}

impl ReferencePlan {
    fn run_with(
        &self,
        inputs: &[Buffer],
        slots: &[Slot],
        together: Together,
    ) -> Result<Vec<Buffer>, PlanError> {
        let mut tensors = Vec::with_capacity(inputs.len());
        for (buffer, input) in inputs.iter().zip(&self.structure.inputs) {
            let mut tensor = held(buffer).map_err(|error| PlanError { instr: None, error })?.clone();
            // A buffer is plain bytes; its type is what the program says.
            tensor.ty = input.ty.clone();
            tensors.push(tensor);
        }
        let outs = run_part(&self.structure, &tensors, slots, together).map_err(|(i, error)| {
            let instr = (i < self.structure.instrs.len()).then_some(i as u32);
            PlanError { instr, error }
        })?;
        Ok(outs.into_iter().map(|t| Held::buffer(t, &self.usage)).collect())
    }
}

impl Backend for ReferenceBackend {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn device(&self) -> String {
        "reference".into()
    }

    fn threads(&self) -> u32 {
        1
    }

    fn memory(&self) -> u64 {
        4 << 30
    }

    fn memory_in_use(&self) -> (u64, u64) {
        (self.usage.now.load(Ordering::Relaxed), self.usage.peak.load(Ordering::Relaxed))
    }

    fn reset_peak(&self) {
        self.usage.peak.store(self.usage.now.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    fn compile(&self, structure: &Arc<Structure>, types: &[Ty], _: Effort) -> Result<Arc<dyn Plan>> {
        let reserve = types[structure.inputs.len()..].iter().map(Ty::bytes).sum();
        Ok(Arc::new(ReferencePlan { structure: structure.clone(), reserve, usage: self.usage.clone() }))
    }

    fn gangs(&self) -> bool {
        true
    }

    fn upload(&self, ty: &Ty, data: HostBytes) -> Result<Buffer> {
        let bytes = data.as_slice();
        if bytes.len() != ty.bytes() {
            bail!(Value, "upload: {} bytes for {ty}, expected {}", bytes.len(), ty.bytes());
        }
        Ok(Held::buffer(HostTensor { ty: ty.clone(), data: bytes.to_vec() }, &self.usage))
    }

    fn download(&self, buffer: &Buffer) -> Result<Arc<Vec<u8>>> {
        Ok(Arc::new(held(buffer)?.data.clone()))
    }
}
