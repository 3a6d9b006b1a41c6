//! A plan made ready for the device: kernels compiled, algorithms found, the arena allocated.

use crate::Res;
use crate::device::{Device, Memory, Module, launch};
use crate::graph::{Captured, Graph};
use crate::kernel_text::{KernelText, Param, kernel_text};
use crate::matmul::{Library, Product};
use cudarc::driver::sys;
use gt_compiler::{Place, Plan, Work};
use gt_ir::Slot;

/// The kernels of a plan, by step, each a function named after its step.
pub fn plan_text(plan: &Plan) -> Res<Vec<(usize, KernelText)>> {
    let kernels = plan.steps.iter().enumerate().filter_map(|(i, step)| match &step.work {
        Work::Kernel(kernel) => Some((i, kernel)),
        _ => None,
    });
    kernels.map(|(i, kernel)| Ok((i, kernel_text(&name(i), kernel)?))).collect()
}

fn name(step: usize) -> String {
    format!("step{step}")
}

/// A step the device can take.
enum Ready {
    Kernel { function: sys::CUfunction, params: Vec<Param>, threads: usize },
    Product(Box<Product>),
}

/// A plan with all that does not depend on a run.
pub struct Prepared<'a> {
    device: &'a Device,
    library: &'a Library,
    plan: &'a Plan,
    steps: Vec<Ready>,
    _module: Module,
    pub arena: Memory,
}

/// Bytes behind the arena that no step may touch.
pub const GUARD: usize = 256;

impl<'a> Prepared<'a> {
    pub fn new(device: &'a Device, library: &'a Library, plan: &'a Plan) -> Res<Prepared<'a>> {
        let texts = plan_text(plan)?;
        let module = device.compile(&texts.iter().map(|(_, k)| k.text.as_str()).collect::<String>())?;
        let mut texts = texts.into_iter();
        let mut steps = Vec::with_capacity(plan.steps.len());
        for (i, step) in plan.steps.iter().enumerate() {
            steps.push(match &step.work {
                Work::Kernel(_) => {
                    let Some((_, text)) = texts.next() else { return Err("a kernel without text".into()) };
                    let function = module.function(&name(i))?;
                    Ready::Kernel { function, params: text.params, threads: text.threads }
                }
                Work::Matmul(matmul) => {
                    Ready::Product(Box::new(Product::prepare(library, matmul, &plan.storages)?))
                }
                other => return Err(format!("no part of the smoke test: {other}").into()),
            });
        }
        let arena = device.alloc(plan.arena + GUARD)?;
        Ok(Prepared { device, library, plan, steps, _module: module, arena })
    }

    /// Where every storage lies in a run.
    pub fn addresses(&self, inputs: &[Memory], outs: &[Memory]) -> Vec<u64> {
        let mut outs = outs.iter();
        let lies = |storage: &gt_compiler::Storage| match (storage.place, storage.reuse) {
            (Place::Input(i), _) | (Place::Out, Some(i)) => inputs[i as usize].address,
            (Place::Out, None) => outs.next().map_or(0, |m| m.address),
            (Place::Arena(offset), _) => self.arena.address + offset as u64,
        };
        self.plan.storages.iter().map(lies).collect()
    }

    fn words(params: &[Param], addresses: &[u64], slots: &[Slot]) -> Vec<u64> {
        params.iter().map(|p| p.word(addresses, slots)).collect()
    }

    /// Puts one step on the stream.
    fn enqueue(&self, step: usize, addresses: &[u64], slots: &[Slot]) -> Res<()> {
        match &self.steps[step] {
            Ready::Kernel { function, params, threads } => {
                launch(&self.device.stream, *function, *threads, &mut Self::words(params, addresses, slots))
            }
            Ready::Product(product) => product.launch(self.device, self.library, addresses, slots),
        }
    }

    /// Runs the plan step by step, without a graph.
    pub fn run(&self, addresses: &[u64], slots: &[Slot]) -> Res<()> {
        (0..self.steps.len()).try_for_each(|step| self.enqueue(step, addresses, slots))
    }

    /// The plan's work on these addresses and slots, not yet run.
    pub fn capture(&self, addresses: &[u64], slots: &[Slot]) -> Res<Captured> {
        Captured::new(&self.device.stream, self.steps.len(), |step| self.enqueue(step, addresses, slots))
    }

    /// Gives a captured graph other slots. Addresses must be those of the graph.
    pub fn set_slots(&self, graph: &Graph, addresses: &[u64], slots: &[Slot]) -> Res<()> {
        for (i, step) in self.steps.iter().enumerate() {
            match step {
                Ready::Kernel { params, .. } => {
                    graph.set_kernel(i, &mut Self::words(params, addresses, slots))?
                }
                Ready::Product(product) if product.moves() => {
                    return Err("a slot moves an operand of a matmul: capture again".into());
                }
                Ready::Product(_) => {}
            }
        }
        Ok(())
    }
}
